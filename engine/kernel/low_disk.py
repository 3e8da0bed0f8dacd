"""How much of a disk is free, and its alarm, raised by who takes the disk: the supervisor looks once a second, and in a
second a whole disk can be written. It counts this alarm among its own at its next look, or ends it.
"""

from __future__ import annotations

import os
from pathlib import Path

from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock

#: of what has no size
ENDLESS = 1 << 62


def free_disk(path: Path) -> int:
    """Bytes that this user may still write; of a file system that does not tell its size, endless. Raises OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize if found.f_blocks else ENDLESS


def look(superblock: Superblock, folder: Path) -> None:
    """A file was made in this folder: publishers wait from now on when less is free than has to be. In any thread."""
    try:
        free = free_disk(folder)
    except OSError:
        return  # the supervisor looks, too
    if free < superblock.get("disk_limit"):
        superblock.set("disk_free", free)  # what the alarm says of itself, until the supervisor has looked
        superblock.raise_alarm(CONSTANTS["ALARM_DISK"])
