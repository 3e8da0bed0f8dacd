"""Alarms: when memory or disk run short publishers wait, consumers never, and everybody can read why.

The supervisor checks (`Alarms.check`, every second) and writes the figures into the superblock, where everybody reads
them (workers/process/alarm_words.py), also while the supervisor is dead. A shortage begins when a limit is passed and
ends only well below it.

Two limits for memory: that of the machine (or of the control group that the node runs in, whichever is nearer), and
that of what grows with the messages of this node: private memory of its servers and their shared regions. The regions
of clients do not count there: they have a size of their own, and blocking publishers would not free a byte of them.

Invariants
  Figures and times are written before the bit that makes somebody read them.
  What decides the end of a shortage stands in the superblock: a successor of a killed supervisor goes on with it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from warren.engine.config import MIB, Settings
from warren.engine.kernel.low_disk import free_disk
from warren.ipc import names
from warren.ipc.region import SHM_DIRECTORY
from warren.ipc.superblock import Superblock
from warren.workers.process.alarm_words import (
    DISK,
    DISK_CLEARS,
    MEMORY,
    MEMORY_CLEARS,
    NAMES,
    ROLE_FAILING,
    SERVER_FAILED,
    SHORT_DISK,
    SHORT_MEMORY,
    SHORT_OWN_MEMORY,
    SYNC_FAILED,
    TOPICS_DISK,
    cause,
)

#: the machine's memory asks for paging only from this share of its limit on: most of it may be somebody else's
MACHINE_PRESSES = 0.9
#: private memory of a server with nothing in its queues
PROCESS_BYTES = 64 * MIB
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
                    found = entry.stat(follow_symlinks=False)
                    used += found.st_blocks * 512 if found.st_uid == os.geteuid() else 0
    return used


def own_limit(settings: Settings, workers_n: int, total: int, topics: bool = False) -> int:
    """Bytes that the node itself may use; never so few that an idle node with these settings would be above."""
    images = 2 * (workers_n + 1) * settings.images_n * settings.file_bytes
    of_topics = 2 * settings.topic_ring_bytes + PROCESS_BYTES if topics else 0
    needed = images + settings.queue_memory_bytes + PROCESS_BYTES * (workers_n + 3) + of_topics
    return max(int(settings.memory_own_max * total), needed)


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
        #: what was said last; in the superblock a server may have added the disk's (engine/kernel/low_disk.py)
        self._told = superblock.get("alarms")

    def check(self, role_failed: bool, failing: int = 0) -> list[str]:
        """Look at everything; raise and clear. `failing`: roles that do not come up, as the superblock has them.
        Returns lines for people about what changed.
        """
        superblock = self._superblock
        short = self._shortages()
        superblock.set("shortages", short)
        superblock.set("failing", failing)
        on = SERVER_FAILED if role_failed else 0
        on |= ROLE_FAILING if failing else 0
        on |= MEMORY if short & (SHORT_MEMORY | SHORT_OWN_MEMORY) else 0
        on |= DISK if short & SHORT_DISK else 0
        for server in range(superblock.servers_n):
            on |= superblock.server_get(server, "alarms") & (MEMORY | DISK | SYNC_FAILED | TOPICS_DISK)
        before = self._told
        if before == on and superblock.get("alarms") == on:
            return []
        self._told = on
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
            topics = bool(superblock.topic_server and superblock.server_get(superblock.topic_server, "epoch"))
            my_limit = own_limit(settings, superblock.workers_n, memory.total, topics)
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
