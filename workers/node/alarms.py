"""Alarms: when memory or disk run short publishers wait, consumers never, and everybody can read why.

The supervisor checks (`Alarms.check`, every second) and writes the figures into the superblock; clients and `status`
read them there (`described`), also while the supervisor is dead. A shortage begins when a limit is passed and ends
only well below it.

Two limits for memory: that of the machine (or of the control group that the node runs in, whichever is nearer), and
that of what grows with the messages of this node: private memory of its servers and their shared regions. The regions
of clients do not count there: they have a size of their own, and blocking publishers would not free a byte of them.

Invariants
  Figures and times are written before the bit that makes somebody read them.
  What decides the end of a shortage stands in the superblock: a successor of a killed supervisor goes on with it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warren.engine.config import MIB, Settings
from warren.ipc import names
from warren.ipc.layout import CONSTANTS, SERVER_WORKER_FIRST
from warren.ipc.region import SHM_DIRECTORY
from warren.ipc.superblock import Superblock
from warren.workers.process import lack
from warren.workers.process.lack import size as size  # for figures of alarms everywhere

MEMORY, DISK = CONSTANTS["ALARM_MEMORY"], CONSTANTS["ALARM_DISK"]
SYNC_FAILED, SERVER_FAILED = CONSTANTS["ALARM_SYNC_FAILED"], CONSTANTS["ALARM_SERVER_FAILED"]
SHORT_MEMORY, SHORT_DISK = CONSTANTS["SHORT_MEMORY"], CONSTANTS["SHORT_DISK"]
SHORT_OWN_MEMORY = CONSTANTS["SHORT_OWN_MEMORY"]
#: alarm → (its name, the superblock's word that says since when)
NAMES = {
    MEMORY: ("memory", "memory_since"),
    DISK: ("disk", "disk_since"),
    SYNC_FAILED: ("sync_failed", "sync_failed_since"),
    SERVER_FAILED: ("server_failed", "server_failed_since"),
}
#: a memory shortage ends below this share of the limit, one of disk above so many times the limit
MEMORY_CLEARS, DISK_CLEARS = 0.95, 1.1
#: the machine's memory asks for paging only from this share of its limit on: most of it may be somebody else's
MACHINE_PRESSES = 0.9
#: private memory of a server with nothing in its queues
PROCESS_BYTES = 64 * MIB
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
#: more than any machine has: how version 1 of control groups says "no limit"
NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Memory:
    """Bytes in use (without what is only cached) and in all, and whose they are."""

    used: int
    total: int


# -- what the machine says ------------------------------------------------------------------------------------------


def machine_memory(root: Path = Path("/")) -> Memory:
    """Memory of the machine or of one of our control groups, whichever is fuller. Raises OSError, ValueError."""
    lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
    found = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}
    total = found["MemTotal"]
    memories = [Memory(total - found["MemAvailable"], total), *_group_memories(root, total)]
    return max(memories, key=lambda memory: memory.used / memory.total)


def _group_memories(root: Path, total: int) -> Iterable[Memory]:
    """Of every control group above us that has a limit below the machine's memory."""
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return
    base = root / "sys/fs/cgroup"
    for _id, controllers, path in (group for group in groups if len(group) == 3):
        if controllers == "":
            mounts, version = (base, base / "unified"), 2
        elif "memory" in controllers.split(","):
            mounts, version = (base / "memory", base / controllers), 1
        else:
            continue
        for mount in mounts:
            # In a container the path may be the host's, while the mount shows the container's group as its root.
            parts = Path(path.lstrip("/")).parts
            if ".." in parts or not (mount / path.lstrip("/")).is_dir():
                parts = ()
            for depth in range(len(parts), -1, -1):
                memory = _group_memory(mount.joinpath(*parts[:depth]), version)
                if memory is not None and 0 < memory.total < min(total, NO_LIMIT):
                    yield memory


def _group_memory(folder: Path, version: int) -> Memory | None:
    """None: it has no limit, or is not one."""
    limit, usage = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    try:
        total = int((folder / limit).read_text())
        used = int((folder / usage).read_text())
        rows = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        stat = {words[0]: int(words[1]) for words in rows if len(words) == 2}
    except (OSError, ValueError):  # ValueError: "max"
        return None
    cached = stat.get("file", 0) if version == 2 else stat.get("total_cache", stat.get("cache", 0))
    shared = stat.get("shmem", 0) if version == 2 else stat.get("total_shmem", stat.get("shmem", 0))
    return Memory(max(0, used - max(0, cached - shared)), total)


def own_memory(shared_id: int, pids: Iterable[int]) -> int:
    """Bytes that a node's servers use for themselves, and those of its shared regions but the clients'."""
    used = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
            used += next((int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:")), 0)
    prefix = names.node_prefix(shared_id).lstrip("/")
    with contextlib.suppress(OSError), os.scandir(SHM_DIRECTORY) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    used += entry.stat(follow_symlinks=False).st_blocks * 512
    return used


def _free_shared() -> int:
    found = os.statvfs(SHM_DIRECTORY)
    return found.f_bavail * found.f_frsize


def free_disk(path: Path) -> int:
    """Bytes that this user may still write. Raises OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def own_limit(settings: Settings, workers_n: int, total: int) -> int:
    """Bytes that the node itself may use; never so few that an idle node with these settings would be above."""
    images = 2 * (workers_n + 1) * settings.images_n * settings.file_bytes
    return max(
        int(settings.memory_own_max * total), images + settings.queue_memory_bytes + PROCESS_BYTES * (workers_n + 3)
    )


# -- the supervisor's side ------------------------------------------------------------------------------------------


class Alarms:
    """Decides the alarms of a node, and writes them into its superblock. The probes are replaced by tests."""

    def __init__(
        self,
        superblock: Superblock,
        directory: Path,
        settings: Settings,
        pids: Callable[[], list[int]],
        *,
        memory: Callable[[], Memory] = machine_memory,
        own: Callable[[int, Iterable[int]], int] = own_memory,
        disk: Callable[[Path], int] = free_disk,
    ) -> None:
        self._superblock = superblock
        self._directory = directory
        self._settings = settings
        self._pids = pids
        self._memory, self._own, self._disk = memory, own, disk

    def check(self, role_failed: bool) -> list[str]:
        """Look at everything; raise and clear. Returns lines for people about what changed."""
        superblock = self._superblock
        short = self._shortages()
        superblock.set("shortages", short)
        on = SERVER_FAILED if role_failed else 0
        on |= MEMORY if short & (SHORT_MEMORY | SHORT_OWN_MEMORY) else 0
        on |= DISK if short & SHORT_DISK else 0
        for server in range(superblock.servers_n):
            on |= superblock.server_get(server, "alarms") & (MEMORY | DISK | SYNC_FAILED)
        before = superblock.get("alarms")
        if before == on:
            return []
        lines = []
        for bit, (name, since) in NAMES.items():
            if on & bit & ~before:
                superblock.set(since, time.time_ns() // 1_000_000)
                lines.append(f"alarm {name} raised: {cause(superblock, bit)}")
            elif before & bit & ~on:
                lines.append(f"alarm {name} cleared")
        superblock.set("alarms", on)
        for bit, (_name, since) in NAMES.items():
            if not on & bit:
                superblock.set(since, 0)
        return lines

    def _shortages(self) -> int:
        settings, superblock = self._settings, self._superblock
        before = superblock.get("shortages")
        short, pressure = 0, 0.0

        def above(bit: int, used: int, limit: int) -> int:
            return bit if used > (limit * MEMORY_CLEARS if before & bit else limit) else 0

        try:
            memory = self._memory()
        except (OSError, ValueError, KeyError):  # /proc is not there to be read: what was true stays
            short |= before & (SHORT_MEMORY | SHORT_OWN_MEMORY)
            pressure = superblock.get("pressure") / 1000
        else:
            limit = int(settings.memory_used_max * memory.total)
            mine = self._own(superblock.shared_id, self._pids())
            my_limit = own_limit(settings, superblock.servers_n - SERVER_WORKER_FIRST, memory.total)
            for name, value in (
                ("memory_used", memory.used),
                ("memory_limit", limit),
                ("memory_own", mine),
                ("memory_own_limit", my_limit),
            ):
                superblock.set(name, value)
            short |= above(SHORT_MEMORY, memory.used, limit) | above(SHORT_OWN_MEMORY, mine, my_limit)
            filled = memory.used / limit if limit else 1.0
            pressure = max(mine / my_limit, filled if filled >= MACHINE_PRESSES else 0.0)
        superblock.set("pressure", min(int(1000 * pressure), 0xFFFF))
        try:
            free = self._disk(self._directory)
        except OSError:
            return short | before & SHORT_DISK
        limit = settings.disk_free_bytes_min
        superblock.set("disk_free", free)
        superblock.set("disk_limit", limit)
        return short | (SHORT_DISK if free < (limit * DISK_CLEARS if before & SHORT_DISK else limit) else 0)


# -- everybody's side -----------------------------------------------------------------------------------------------


def _rows(superblock: Superblock, bit: int) -> list[int]:
    return [server for server in range(superblock.servers_n) if superblock.server_get(server, "alarms") & bit]


def _raised_by(superblock: Superblock, bit: int) -> list[str]:
    """Servers that run and raise an alarm."""
    rows = [server for server in _rows(superblock, bit) if not superblock.server_get(server, "lacks")]
    return list(dict.fromkeys(map(names.role_of, rows)))


def _lacking(superblock: Superblock, bit: int) -> dict[int, list[str]]:
    """LACK_… → servers that cannot start for it."""
    found: dict[int, list[str]] = {}
    for server in _rows(superblock, bit):
        kind, name = superblock.server_get(server, "lacks"), names.role_of(server)
        if kind in lack.WORDS and name not in found.setdefault(kind, []):
            found[kind].append(name)
    return found


def _file_errors(superblock: Superblock) -> dict[int, list[str]]:
    """errno → servers that run and cannot make their next file for it, or cannot write to the one they have."""
    found: dict[int, list[str]] = {}
    for server in _rows(superblock, DISK):
        if not superblock.server_get(server, "lacks"):
            found.setdefault(superblock.server_get(server, "file_error"), []).append(names.role_of(server))
    return found


def _no_file(number: int, who: str, free: str) -> str:
    """Why servers cannot make their next file."""
    if number in _NO_SPACE:
        quota = ": the quota of this user is used up" if number == errno.EDQUOT else ""
        return (
            f"there is no space for the files of the {who}{quota} ({free} are free; "
            "a larger setting disk_free_bytes_min would have warned before)"
        )
    said = f"{os.strerror(number)}, {errno.errorcode[number]}" if number in errno.errorcode else "see its log"
    return f"the next file of the {who} cannot be made: {said}"


def _file_advice(number: int) -> str:
    if number in _NO_SPACE:
        return "free some space"
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
    return "mend what DIR/log says"


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
                f"there is no shared memory for the {servers} ({SHM_DIRECTORY}: {lack.figures(lack.SHM)}; "
                f"{size(get('memory_used'))} of the machine's memory are in use; settings images_n, file_bytes, "
                "memory_used_max)"
            )
    elif bit == DISK:
        free = size(get("disk_free"))
        if short & SHORT_DISK:
            reasons.append(
                f"{free} are free on the disk of the node, less than {size(get('disk_limit'))} "
                "(setting disk_free_bytes_min)"
            )
        reasons += [_no_file(number, ", ".join(who), free) for number, who in _file_errors(superblock).items()]
    elif bit == SYNC_FAILED:
        lost = any(superblock.server_get(server, "error") == errno.ESTALE for server in range(superblock.servers_n))
        whose = servers or "node"
        reasons.append(
            f"somebody removed or cut a file that the {whose} was writing; nothing is confirmed, and the node ends"
            if lost
            else f"the disk refused to make data of the {whose} durable; nothing of it is confirmed until the node is "
            "stopped and started: look at the disk first"
        )
    elif bit == SERVER_FAILED:
        failed = [
            names.role_of(server)
            for server in range(superblock.servers_n)
            if superblock.server_get(server, "state") == CONSTANTS["SERVER_FAILED"]
        ]
        who = " and ".join(dict.fromkeys(failed)) or "a server"
        reasons.append(
            f"{who} could not run or died again and again, and is not started again; its queues wait as they are: see "
            f"DIR/log/{failed[0] if failed else '*'}.log, mend what it says, then stop and start the node"
        )
    return "; ".join(reasons) or "it is just ending"


def advice(superblock: Superblock, bit: int) -> str:
    """What ends an alarm that blocks publishers."""
    get = superblock.get
    todo = [lack.advice(kind) for kind in _lacking(superblock, bit)]
    if bit == DISK:
        if get("shortages") & SHORT_DISK:
            todo.append(f"free some space (until {size(int(get('disk_limit') * DISK_CLEARS))} are free)")
        todo += [_file_advice(number) for number in _file_errors(superblock)]
        return f"{'; '.join(dict.fromkeys(todo)) or 'free some space'}; publishers go on by themselves"
    if todo:
        return f"{'; '.join(todo)}; it is tried again each second, and publishers go on by themselves"
    return "consumers drain on; free memory, or raise the setting; publishers go on by themselves"


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
            "blocks_publishers": bit in (MEMORY, DISK),
            "servers": [*_raised_by(superblock, bit), *itertools.chain(*_lacking(superblock, bit).values())],
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
        found.append(row)
    return found


def text(superblock: Superblock, bit: int) -> str:
    """One alarm in one line for people."""
    name = NAMES[bit][0].replace("_", " ")
    blocks = f"; publishers are blocked: {advice(superblock, bit)}" if bit in (MEMORY, DISK) else ""
    return f"{name}: {cause(superblock, bit)}{blocks}"
