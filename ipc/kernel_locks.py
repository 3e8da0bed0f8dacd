"""Who has a kernel lock (flock) on a file or a folder, as far as /proc shows it.

Whoever may read a file can lock it, so a lock says nothing about who its holder is: the users of a process do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from warren.ipc import access


class Holder(NamedTuple):
    """A living process that has a lock."""

    pid: int
    inner: int  #: its number in its own PID namespace
    uid: int

    def __str__(self) -> str:
        """Names the user only where he is another one than this process's."""
        return f"process {self.pid}" if self.uid == os.geteuid() else f"process {self.pid} of {access.user(self.uid)}"


def taken() -> Iterator[tuple[str, int]]:
    """Every flock that is held: the place of its file, as `place_of` has it, and the process that took it."""
    with open("/proc/locks") as file:
        for words in map(str.split, file):
            if len(words) == 8 and words[1] == "FLOCK":
                yield words[5], int(words[4])


def place_of(device: int, inode: int) -> str:
    """A file as /proc/locks names it."""
    return f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"


def pids(found: os.stat_result) -> list[int]:
    """Who took the locks of a file. A lock outlives its taker where a child has the descriptor."""
    exact: list[int] = []
    others: list[int] = []
    wanted = place_of(found.st_dev, found.st_ino)
    for place, pid in taken():
        if place.rpartition(":")[2] == str(found.st_ino):
            # file systems with volumes (btrfs) show another device there than in `stat`
            (exact if place == wanted else others).append(max(0, pid))
    return exact or others


def holders(found: os.stat_result) -> list[Holder]:
    """The living processes that took the locks of a file, those that can be seen from here."""
    return [holder for pid in dict.fromkeys(pids(found)) if pid and (holder := _holder(pid)) is not None]


def _holder(pid: int) -> Holder | None:
    """None: it is gone, or cannot be seen."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file if b":" in line)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    effective = int(lines[b"Uid"].split()[1])
    return Holder(pid, int(lines.get(b"NSpid", b"%d" % pid).split()[-1]), effective)
