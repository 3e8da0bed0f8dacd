"""What a test may leave behind on the machine: a census before, a census after, and who is to blame for the difference.

Counted: names `warren-…` in /dev/shm, among the message queues (for root, or where /dev/mqueue is mounted) and in the
temporary directory; System V segments and semaphore sets of this user; processes started by this one, zombies too,
also where they detached themselves; this process's own descriptors and mappings.

Two kinds of difference are nobody's fault:
- What belongs to something that lived before the test, a node shared by a module's tests for example: more names of a
  node known before, more processes below one known before. The census around the module answers for these.
- What belongs to another run on the same machine. A thing that a process of ours holds or made is ours, and one held
  or made by a living stranger is his. A thing whose maker is dead could be either's: it counts as ours
  unless another run is going on (a process that carries another mark, runs pytest, or maps a Warren region).

Processes of ours are known by descent, or by the mark WARREN_TEST_RUN in their environment (of a lane: ours, a dot,
and its name). Spark's session lives as
long as the test run: the JVM started by this process, and all below it, are left out.
"""

import contextlib
import ctypes
import functools
import gc
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import posix_ipc
import psutil

from support.waiting import patience

MARK = "WARREN_TEST_RUN"
OWN = ("descriptor", "descriptors", "mapping")  # kinds of leaks that an object of this process holds
GRACE_S = float(os.environ.get("WARREN_LEAK_GRACE_S", "5"))
DESCRIPTORS_SPARE = 8  # opened lazily, once: random, locale, selectors, …
SHM, MQUEUE = Path("/dev/shm"), Path("/dev/mqueue")
NODE_NAME = re.compile(r"warren-[0-9a-f]{12}")
SEMCTL_GETPID = 11
SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT = 430, 431, 432
FSCONFIG_CMD_CREATE, CLOSE_ON_EXEC = 6, 1
KERNEL_THREAD = 0x200000  # of the flags in /proc/PID/stat
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "/support/warm.py ")  # they end with us

os.environ.setdefault(MARK, str(os.getpid()))
_libc = ctypes.CDLL(None, use_errno=True)
_known: dict[int, float] = {}  # every pid of ours that a census has seen, and when one saw that it was gone
_foreign: set[object] = set()  # nodes, names, segments and semaphores that were seen to be another run's: they stay so
_strangers: set[tuple[int, int]] = set()  # pid and begin of another run's processes
_others: "dict[tuple[int, int], Entry | None]" = {}  # pid and inode of /proc/PID, of those that are not ours for sure


class Maker(NamedTuple):
    """Who made a thing, or used it last, and when (seconds since 1970)."""

    pid: int
    at: float


class Leak(NamedTuple):
    """One thing left behind: what it is, which one, and more about it for the reader."""

    kind: str
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" ({self.detail})" if self.detail else "")


@dataclass
class Census:
    """What is there at one moment; each field maps a name to what else is known of the thing."""

    names: dict[str, str] = field(default_factory=dict)  # "/dev/shm/warren-…" -> node name
    segments: dict[int, Maker] = field(default_factory=dict)  # by shmid; its creator
    semaphores: dict[int, Maker] = field(default_factory=dict)  # by semid; who operated on it last
    processes: dict[psutil.Process, str] = field(default_factory=dict)  # ours
    descriptors: dict[int, str] = field(default_factory=dict)  # fd -> what /proc says that it is
    mappings: dict[str, int] = field(default_factory=dict)  # path, or "segment N" -> how often
    strangers: bool = False  # whether processes of another run are known to be there
    newest: "ClassVar[Census | None]" = None  # the one that was taken last

    @classmethod
    def take(cls) -> "Census":
        """Count everything now."""
        entries = _all_processes()
        processes = dict(_our_processes(entries))
        _note({process.pid for process in processes})
        cls.newest = cls(
            dict(_names()),
            dict(_system_v("shm")),
            dict(_system_v("sem")),
            processes,
            dict(_descriptors()),
            _mappings(),
            _is_beside_another_run(entries),
        )
        return cls.newest

    def nodes(self) -> set[str]:
        """Return the names of the nodes of which something is there."""
        return {node for node in self.names.values() if node}


def leaks_since(
    before: Census, private_root: Path, *, own_process: bool = True, grace_s: float = GRACE_S
) -> list[Leak]:
    """Return what is there now, was not there `before`, and is ours; gives it `grace_s` seconds to go away.

    `private_root` is a folder that only this run uses: an open file below it is a leak, too. With `own_process` false,
    descriptors and mappings of this process do not count (after a failure its traceback holds on to them).
    """
    began = time.monotonic()
    pause_s = 0.005
    while True:
        found = _difference(before, Census.take(), private_root, own_process=own_process)
        if not found or time.monotonic() - began > grace_s * patience():
            return found
        if any(leak.kind in OWN for leak in found):
            gc.collect()
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.1)


def clean_up(leaks: list[Leak]) -> None:
    """Remove what was left behind, so that it is reported once only."""
    remove: dict[str, Callable[[str], object]] = {
        "process": lambda name: psutil.Process(int(name)).kill(),
        "temporary directory": lambda name: shutil.rmtree(name, ignore_errors=True),
        "shared memory": os.unlink,
        "message queue": lambda name: posix_ipc.unlink_message_queue(f"/{Path(name).name}"),
        "System V segment": lambda name: _libc.shmctl(int(name), 0, None),
        "System V semaphore": lambda name: _libc.semctl(int(name), 0, 0),
    }
    for leak in leaks:
        with contextlib.suppress(OSError, psutil.Error, posix_ipc.Error):
            remove.get(leak.kind, lambda _name: None)(leak.name)
    for leak in leaks:
        if leak.kind == "process":
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(leak.name), 0)


# ---- counting -------------------------------------------------------------------------------------------------------


@functools.cache
def message_queues() -> int | Path | None:
    """What lists the message queues: the folder, or a mount of our own that has no place in the tree, for root."""
    if MQUEUE.is_mount():
        return MQUEUE
    opened = _libc.syscall(SYS_FSOPEN, b"mqueue", CLOSE_ON_EXEC)
    if opened < 0:
        return None
    _libc.syscall(SYS_FSCONFIG, opened, FSCONFIG_CMD_CREATE, None, None, 0)
    mounted = _libc.syscall(SYS_FSMOUNT, opened, CLOSE_ON_EXEC, 0)
    os.close(opened)
    if mounted < 0:
        return None
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mounted)
    finally:
        os.close(mounted)


def _names() -> Iterator[tuple[str, str]]:
    listed = {folder: folder for folder in (SHM, Path(tempfile.gettempdir()))}
    if (queues := message_queues()) is not None:
        listed[MQUEUE] = queues
    for folder, where in listed.items():
        for name in os.listdir(where):
            if name.startswith("warren-"):
                node = NODE_NAME.match(name)
                yield f"{folder}/{name}", node.group() if node else ""


def _system_v(kind: str) -> Iterator[tuple[int, Maker]]:
    """Yield this user's segments ("shm") or semaphore sets ("sem")."""
    path = Path("/proc/sysvipc", kind)
    if not path.exists():
        return
    header, *rows = (line.split() for line in path.read_text().splitlines())
    for row in rows:
        values = dict(zip(header, row, strict=False))
        if int(values["cuid"]) != os.geteuid():
            continue
        number = int(values[f"{kind}id"])
        if kind == "shm":
            yield number, Maker(int(values["cpid"]), int(values["ctime"]))
        else:
            used = max(int(values["otime"]), int(values["ctime"]))
            yield number, Maker(_libc.semctl(number, 0, SEMCTL_GETPID), used)


def _note(pids: set[int]) -> None:
    """These processes of ours are there now."""
    now = time.time()
    for pid in _known.keys() - pids:
        _known[pid] = min(_known[pid], now)
    _known.update(dict.fromkeys(pids, math.inf))


class Entry(NamedTuple):
    """A process as /proc tells of it: its parent, and when it began, in ticks since the boot."""

    parent: int
    began: int


def _all_processes() -> dict[int, Entry]:
    """All but threads of the kernel. What was seen to be none of ours is not read again."""
    me = os.getpid()
    found, others = {}, {}
    with os.scandir("/proc") as listed:
        places = [(int(item.name), item.inode()) for item in listed if item.name.isdigit()]
    for pid, inode in places:
        if (pid, inode) in _others:
            entry = others[pid, inode] = _others[pid, inode]
        elif not (stat := _read(f"/proc/{pid}/stat")):
            continue
        elif (entry := _entry_of(stat)) is None or (
            pid != me and (entry.began < _began() or (pid, entry.began) in _strangers)
        ):
            others[pid, inode] = entry
        if entry is not None:
            found[pid] = entry
    _others.clear()
    _others.update(others)
    return found


@functools.cache
def _began() -> int:
    """When this process began, in ticks since the boot."""
    return int(_read("/proc/self/stat").rpartition(b")")[2].split()[19])


def _entry_of(stat: bytes) -> Entry | None:
    """None: a thread of the kernel."""
    fields = stat[stat.rfind(b")") + 2 :].split()
    return None if int(fields[6]) & KERNEL_THREAD else Entry(int(fields[1]), int(fields[19]))


def _ancestors(pid: int, entries: dict[int, Entry]) -> list[int]:
    found = []
    while (entry := entries.get(pid)) and entry.parent:
        found.append(pid := entry.parent)
    return found


def _our_processes(entries: dict[int, Entry]) -> Iterator[tuple[psutil.Process, str]]:
    """Yield those below this one, and those with our mark; without Spark's session, and what is below it."""
    me = os.getpid()
    ancestors = {pid: _ancestors(pid, entries) for pid in entries}
    ours = [
        pid
        for pid in entries
        if pid != me and pid not in ancestors[me] and (me in ancestors[pid] or _has_our_mark(pid, entries))
    ]
    sessions = {pid for pid in ours if entries[pid].parent == me and _is_spark_session(pid)}
    for pid in ours:
        if pid in sessions or sessions.intersection(ancestors[pid]):
            continue
        command = _command_of(pid)
        if entries[pid].parent != me or not any(helper in command for helper in HELPERS):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                yield process, f"{process.status()}, {command or process.name()}"


def _has_our_mark(pid: int, entries: dict[int, Entry]) -> bool:
    """Tell whether a process younger than this one was started with our mark in its environment."""
    began = entries[pid].began
    if began < _began() or (pid, began) in _strangers:
        return False
    mark = _mark_of(pid)
    if mark == os.environ[MARK] or mark.startswith(f"{os.environ[MARK]}."):
        return True
    if mark:  # whatever it becomes, it is the other run's
        _strangers.add((pid, began))
    return False


def _is_beside_another_run(entries: dict[int, Entry]) -> bool:
    """Strangers that are gone are forgotten: their numbers may be ours next."""
    _strangers.intersection_update((pid, entry.began) for pid, entry in entries.items())
    return bool(_strangers)


def _mark_of(pid: int) -> str:
    """The mark that a process was started with; empty without one. Read each time: a process can become another."""
    _, found, behind = (b"\0" + _read(f"/proc/{pid}/environ")).partition(f"\0{MARK}=".encode())
    return os.fsdecode(behind.partition(b"\0")[0]) if found else ""


def _read(path: str) -> bytes:
    """What one file of /proc says; nothing of a process that is gone, or that we may not look at."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall() or b""
    except OSError:
        return b""


def _is_spark_session(pid: int) -> bool:
    command = _command_of(pid)
    return "pyspark-shell" in command and "org.apache.spark.deploy.SparkSubmit" in command


def _command_of(pid: int) -> str:
    return " ".join(os.fsdecode(word) for word in _read(f"/proc/{pid}/cmdline").rstrip(b"\0").split(b"\0"))


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield int(name), os.readlink(f"/proc/self/fd/{name}")


def _mappings(pid: int | str = "self") -> dict[str, int]:
    """Count the mapped regions of a process that are files named `warren-…`, or System V segments."""
    found: dict[str, int] = {}
    for line in _read(f"/proc/{pid}/maps").splitlines():
        if b"/SYSV" not in line and b"/warren-" not in line:
            continue
        _span, _rights, _offset, _device, inode, *path = os.fsdecode(line).split(maxsplit=5)
        if path and path[0].startswith("/SYSV"):
            name = f"segment {inode}"
        elif path and "/warren-" in path[0]:
            name = path[0].removesuffix(" (deleted)")
        else:
            continue
        found[name] = found.get(name, 0) + 1
    return found


# ---- blaming --------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """Who holds what, looked at only when there is something to explain."""

    holders: dict[str, set[int]]  # as Census.mappings, but to the pids that map it, or anything of a node
    ours: set[int]
    old: set[int]  # ours, and there before the test, or below one that was
    strangers_test: bool

    @classmethod
    def look(cls, before: Census, after: Census) -> "World":
        ours = {process.pid for process in after.processes} | {os.getpid()}
        old = set()
        for process in after.processes:
            with contextlib.suppress(psutil.Error):
                if process in before.processes or any(parent in before.processes for parent in process.parents()):
                    old.add(process.pid)
        holders: dict[str, set[int]] = {}
        # what no process of ours holds or made is excused beside another run: nobody need look who holds it
        strangers_test = after.strangers
        entries = {} if strangers_test else _all_processes()
        ancestors = _ancestors(os.getpid(), entries)
        for pid in entries or ours:
            mapped = after.mappings if pid == os.getpid() else _mappings(pid)
            for name in mapped:
                holders.setdefault(name, set()).add(pid)
                if node := _node_of(name):
                    holders.setdefault(node, set()).add(pid)  # its mailboxes are mapped by nobody
            if pid not in ours and not strangers_test:
                strangers_test = _is_of_another_run(pid, mapped, ancestors)
        return cls(holders, ours, old, strangers_test)

    def excuses(self, thing: object, holders: set[int], maker: Maker | None) -> bool:
        """Tell whether a thing that `holders` map and `maker` made is old, a stranger's, or perhaps a stranger's."""
        if holders & self.old or (maker and maker.pid in self.old):
            return True
        if holders & self.ours or (maker and self._is_ours(maker)):
            return False
        if holders or (maker is not None and psutil.pid_exists(maker.pid)):
            _foreign.add(thing)
            return True
        return self.strangers_test

    def _is_ours(self, maker: Maker) -> bool:
        """Numbers of processes are given again: a dead one of ours made nothing after it was gone."""
        if maker.pid in self.ours:
            return True
        return maker.at <= _known.get(maker.pid, 0) and not psutil.pid_exists(maker.pid)


def _is_of_another_run(pid: int, mapped: dict[str, int], ancestors: list[int]) -> bool:
    if any(name.startswith(f"{SHM}/") for name in mapped):
        return True
    if pid in ancestors:
        return False
    words = _read(f"/proc/{pid}/cmdline").split(b"\0")[:3]
    return (_mark_of(pid) or os.environ[MARK]) != os.environ[MARK] or any(
        os.path.basename(word) in {b"pytest", b"py.test"} for word in words
    )


def _difference(before: Census, after: Census, private_root: Path, *, own_process: bool) -> list[Leak]:
    nodes = before.nodes()
    # numbers of processes are given again: one that was ours is looked at
    made_by_strangers = {pid for pid, _began in _strangers} - _known.keys() - {os.getpid()}
    names = {
        name: node
        for name, node in after.names.items()
        if name not in before.names and node not in nodes and name not in _foreign and node not in _foreign
    }
    segments = {
        number: maker
        for number, maker in after.segments.items()
        if number not in before.segments
        and ("segment", number, maker) not in _foreign
        and maker.pid not in made_by_strangers
    }
    semaphores = {
        number: maker
        for number, maker in after.semaphores.items()
        if number not in before.semaphores
        and ("semaphore", number) not in _foreign
        and maker.pid not in made_by_strangers
    }
    processes = [process for process in after.processes if process not in before.processes]
    found: list[Leak] = []
    if names or segments or semaphores or processes:
        world = World.look(before, after)
        found += [
            Leak(_kind_of(Path(name)), name)
            for name, node in names.items()
            if not world.excuses(name, world.holders.get(name) or world.holders.get(node, set()), None)
        ]
        for number, maker in segments.items():
            holders = world.holders.get(f"segment {number}", set())
            if not world.excuses(("segment", number, maker), holders, maker):
                found.append(Leak("System V segment", str(number), f"made by {maker.pid}, mapped by {sorted(holders)}"))
        for number, maker in semaphores.items():
            if not world.excuses(("semaphore", number), set(), maker if maker.pid else None):
                found.append(Leak("System V semaphore", str(number), f"last used by {maker.pid}"))
        found += [
            Leak("process", str(process.pid), after.processes[process])
            for process in processes
            if process.pid not in world.old
        ]
    if own_process:
        found += _descriptor_leaks(before, after, private_root)
        found += [
            Leak("mapping", name, f"{count} times, {before.mappings.get(name, 0)} before")
            for name, count in after.mappings.items()
            if count > before.mappings.get(name, 0) and _node_of(name) not in before.nodes()
        ]
    return found


def _descriptor_leaks(before: Census, after: Census, private_root: Path) -> list[Leak]:
    """Blame each descriptor of a Warren file, a pidfd more than before, and others when they are many."""
    found = []
    ours = ("/warren-", str(private_root))
    folders = {os.path.dirname(target) for target in before.descriptors.values()}
    for number, target in after.descriptors.items():
        is_new = before.descriptors.get(number) != target
        if is_new and any(word in target for word in ours) and os.path.dirname(target) not in folders:
            found.append(Leak("descriptor", str(number), target))
    for what, spare in (("[pidfd]", 0), ("", DESCRIPTORS_SPARE)):
        counts = [sum(what in target for target in census.descriptors.values()) for census in (before, after)]
        if counts[1] > counts[0] + spare:
            new = [target for number, target in after.descriptors.items() if before.descriptors.get(number) != target]
            found.append(Leak("descriptors", what or "of any kind", f"{counts[0]} before, {counts[1]} now: {new}"))
    return found


def _kind_of(path: Path) -> str:
    return {SHM: "shared memory", MQUEUE: "message queue"}.get(path.parent, "temporary directory")


def _node_of(name: str) -> str | None:
    """Return the node's name inside a path, for names that have one; None is no node."""
    node = NODE_NAME.search(name)
    return node.group() if node else None
