"""The alarms that are on, in words: what each is about, since when, and what ends it.

They are read from the superblock, so everybody can say them, also while the supervisor is dead: clients in what they
raise, `warren status`. The supervisor decides them and writes the figures (workers/node/alarms.py).
"""

from __future__ import annotations

import errno
import itertools
import os
from typing import Any

from warren.ipc.layout import CONSTANTS
from warren.ipc.names import TOPICS
from warren.ipc.region import SHM_DIRECTORY
from warren.ipc.superblock import Superblock
from warren.workers.process import lack
from warren.workers.process.lack import size

MEMORY, DISK = CONSTANTS["ALARM_MEMORY"], CONSTANTS["ALARM_DISK"]
SYNC_FAILED, SERVER_FAILED = CONSTANTS["ALARM_SYNC_FAILED"], CONSTANTS["ALARM_SERVER_FAILED"]
TOPICS_DISK, ROLE_FAILING = CONSTANTS["ALARM_TOPICS_DISK"], CONSTANTS["ALARM_ROLE_FAILING"]
SHORT_MEMORY, SHORT_DISK = CONSTANTS["SHORT_MEMORY"], CONSTANTS["SHORT_DISK"]
SHORT_OWN_MEMORY = CONSTANTS["SHORT_OWN_MEMORY"]
#: those that block publishers; TOPICS_DISK blocks who appends to topics, and nobody else
BLOCKING = MEMORY | DISK
#: alarm → (its name, the superblock's word that says since when)
NAMES = {
    MEMORY: ("memory", "memory_since"),
    DISK: ("disk", "disk_since"),
    SYNC_FAILED: ("sync_failed", "sync_failed_since"),
    SERVER_FAILED: ("server_failed", "server_failed_since"),
    TOPICS_DISK: ("topics_disk", "topics_disk_since"),
    ROLE_FAILING: ("role_failing", "role_failing_since"),
}
#: a memory shortage ends below this share of the limit, one of disk above so many times the limit
MEMORY_CLEARS, DISK_CLEARS = 0.95, 1.1
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def _free_shared() -> int:
    found = os.statvfs(SHM_DIRECTORY)
    return found.f_bavail * found.f_frsize


def _rows(superblock: Superblock, bit: int) -> list[int]:
    return [server for server in range(superblock.servers_n) if superblock.server_get(server, "alarms") & bit]


def _raised_by(superblock: Superblock, bit: int) -> list[str]:
    """Servers that run and raise an alarm."""
    rows = [server for server in _rows(superblock, bit) if not superblock.server_get(server, "lacks")]
    return list(dict.fromkeys(map(superblock.role_of, rows)))


def _lacking(superblock: Superblock, bit: int) -> dict[int, list[str]]:
    """LACK_… → servers that cannot start for it."""
    found: dict[int, list[str]] = {}
    for server in _rows(superblock, bit):
        kind, name = superblock.server_get(server, "lacks"), superblock.role_of(server)
        if kind in lack.WORDS and name not in found.setdefault(kind, []):
            found[kind].append(name)
    return found


#: what is missed while a role that has no server does not run
_MISSED = {"collector": "no garbage is collected, so files of the store only grow", "amqp": "no program reaches it"}


def _failing(superblock: Superblock) -> list[str]:
    """Roles that cannot start, or end again and again."""
    bits = superblock.get("failing")
    found = [superblock.role_of(server) for server in range(superblock.servers_n) if bits >> server & 1]
    if bits >> CONSTANTS["FAILING_COLLECTOR"] & 1:
        found.append("collector")
    gateways = bits >> CONSTANTS["FAILING_GATEWAY"]
    found += [f"amqp-{index}" for index in range(CONSTANTS["GATEWAYS_MAX"]) if gateways >> index & 1]
    return list(dict.fromkeys(found))


def _file_errors(superblock: Superblock) -> dict[int, list[str]]:
    """errno → servers that run and cannot make their next file for it, or cannot write to the one they have."""
    found: dict[int, list[str]] = {}
    for server in _rows(superblock, DISK):
        if not superblock.server_get(server, "lacks"):
            found.setdefault(superblock.server_get(server, "file_error"), []).append(superblock.role_of(server))
    return found


def _no_file(number: int, who: str, free: str) -> str:
    """Why servers cannot make their next file."""
    if number in _NO_SPACE:
        quota = ": the quota of this user is used up" if number == errno.EDQUOT else ""
        return (
            f"there is no space for the files of {who}{quota} ({free} are free; "
            "a larger setting disk_free_bytes_min would have warned before)"
        )
    said = f"{os.strerror(number)}, {errno.errorcode[number]}" if number in errno.errorcode else "see its log"
    return f"the next file of {who} cannot be made: {said}"


def _file_advice(number: int) -> str:
    if number in _NO_SPACE:
        return lack.advice(lack.DISK)
    if number in (errno.EACCES, errno.EPERM):
        return "give the user who runs the node the right to write in every folder of its directory"
    if number == errno.EROFS:
        return "see in the kernel's log why the file system is read-only, and mount it writable"
    if number in (errno.EMFILE, errno.ENFILE):
        return "raise `ulimit -n` and start the node again, or fs.file-max"
    if number in (errno.ENOMEM, errno.EAGAIN):
        return "free memory"
    if number == errno.EIO:
        return "look at the disk, and into the kernel's log"
    return "remove the cause that DIR/log names"


def cause(superblock: Superblock, bit: int) -> str:
    """Why an alarm is on, with figures and the setting that matters."""
    short, get = superblock.get("shortages"), superblock.get
    servers = ", ".join(_raised_by(superblock, bit))
    reasons = [lack.missing(kind, who) for kind, who in _lacking(superblock, bit).items()]
    if bit == MEMORY:
        if short & SHORT_MEMORY:
            reasons.append(
                f"{size(get('memory_used'))} of the memory of the machine or its control group are in use, more than "
                f"{size(get('memory_limit'))} (setting memory_used_max)"
            )
        if short & SHORT_OWN_MEMORY:
            reasons.append(
                f"the node itself uses {size(get('memory_own'))}, more than {size(get('memory_own_limit'))} "
                "(setting memory_own_max)"
            )
        if servers:
            reasons.append(
                f"there is no shared memory for {servers} ({SHM_DIRECTORY}: {lack.figures(lack.SHM)}; "
                f"{size(get('memory_used'))} of the machine's memory are in use)"
            )
    elif bit == DISK:
        free = size(get("disk_free"))
        if short & SHORT_DISK or get("disk_free") < get("disk_limit"):
            reasons.append(
                f"{free} are free on the disk of the node, less than {size(get('disk_limit'))} "
                "(setting disk_free_bytes_min)"
            )
        reasons += [_no_file(number, ", ".join(who), free) for number, who in _file_errors(superblock).items()]
    elif bit == TOPICS_DISK:
        used, total, limit = (get(f"topics_disk_{name}") for name in ("used", "total", "limit"))
        reasons.append(
            f"{size(used)} of {size(total)} of the disk of the topics are in use, more than {size(limit)} (setting "
            "topics_disk_full); nothing is appended to topics until retention, or somebody, has removed something"
        )
    elif bit == ROLE_FAILING:
        for role in _failing(superblock):
            missed = _MISSED.get(role.partition("-")[0])
            meanwhile = f" (meanwhile {missed})" if missed else ""
            reasons.append(
                f"{role} cannot start, or ends again and again, and is tried again{meanwhile}: see DIR/log/{role}.log "
                "and remove the cause"
            )
    elif bit == SYNC_FAILED:
        lost = any(superblock.server_get(server, "error") == errno.ESTALE for server in range(superblock.servers_n))
        whose = servers or "the node"
        reasons.append(
            f"a file that {whose} was writing was removed or cut; nothing is confirmed, and the node ends"
            if lost
            else f"the disk refused to make data of {whose} durable; none of it is confirmed until the node is "
            "stopped and started: look at the disk first"
        )
    elif bit == SERVER_FAILED:
        failed = [
            superblock.role_of(server)
            for server in range(superblock.servers_n)
            if superblock.server_get(server, "state") == CONSTANTS["SERVER_FAILED"]
        ]
        who = " and ".join(dict.fromkeys(failed)) or "a server"
        kept = "the topics are" if set(failed) == {TOPICS} else "its queues are"
        reasons.append(
            f"{who} could not run or died again and again, and is not restarted; {kept} kept as they are: see "
            f"DIR/log/{failed[0] if failed else '*'}.log and supervisor.log beside it, remove the cause, then stop and "
            "start the node"
        )
    return "; ".join(reasons) or "it is just ending"


def advice(superblock: Superblock, bit: int) -> str:
    """What ends an alarm that blocks publishers."""
    get = superblock.get
    if bit == TOPICS_DISK:
        return (
            "free some space, give topics a retention (`warren topic set`), delete some, or raise the setting; "
            "appends continue by themselves"
        )
    todo = [lack.advice(kind) for kind in _lacking(superblock, bit)]
    if bit == DISK:
        todo += [_file_advice(number) for number in _file_errors(superblock)]
        if get("shortages") & SHORT_DISK:  # how much, where it is known
            enough = f"free some space (until {size(int(get('disk_limit') * DISK_CLEARS))} are free)"
            todo = [enough, *(item for item in todo if item != lack.advice(lack.DISK))]
        return f"{'; '.join(dict.fromkeys(todo)) or 'free some space'}; publishers continue by themselves"
    if bit == MEMORY and _raised_by(superblock, bit):
        todo.append(lack.advice(lack.SHM))
    if todo:
        return (
            f"{'; '.join(dict.fromkeys(todo))}; the node tries again each second, and publishers continue by themselves"
        )
    return "consumers still drain queues; free memory, or raise the setting; publishers continue by themselves"


def described(superblock: Superblock) -> list[dict[str, Any]]:
    """The alarms that are on, for programs: name, cause, since (seconds since 1970), figures."""
    on, get = superblock.get("alarms"), superblock.get
    found = []
    for bit, (name, since) in NAMES.items():
        if not on & bit:
            continue
        row: dict[str, Any] = {
            "alarm": name,
            "text": text(superblock, bit),
            "cause": cause(superblock, bit),
            "since": get(since) / 1000,
            "blocks_publishers": bool(bit & BLOCKING),
            "blocks_appends": bool(bit & (BLOCKING | TOPICS_DISK)),
            "servers": _failing(superblock)
            if bit == ROLE_FAILING
            else [*_raised_by(superblock, bit), *itertools.chain(*_lacking(superblock, bit).values())],
        }
        if bit == MEMORY:
            row |= {
                "used_bytes": get("memory_used"),
                "limit_bytes": get("memory_limit"),
                "own_bytes": get("memory_own"),
                "own_limit_bytes": get("memory_own_limit"),
                "shared_free_bytes": _free_shared(),
                "settings": ["memory_used_max", "memory_own_max"],
            }
        elif bit == DISK:
            row |= {
                "free_bytes": get("disk_free"),
                "limit_bytes": get("disk_limit"),
                "settings": ["disk_free_bytes_min"],
            }
        elif bit == TOPICS_DISK:
            row |= {
                "used_bytes": get("topics_disk_used"),
                "total_bytes": get("topics_disk_total"),
                "limit_bytes": get("topics_disk_limit"),
                "settings": ["topics_disk_full"],
            }
        found.append(row)
    return found


def text(superblock: Superblock, bit: int) -> str:
    """One alarm in one line for people."""
    name = NAMES[bit][0].replace("_", " ")
    blocks = f"; publishers are blocked: {advice(superblock, bit)}" if bit & BLOCKING else ""
    if bit == TOPICS_DISK:
        blocks = f": {advice(superblock, bit)}"
    return f"{name}: {cause(superblock, bit)}{blocks}"
