"""The disk alarm, raised by who takes the disk: the supervisor looks once a second, and in a second a whole disk can be
written. It counts this alarm among its own at its next look, or ends it.
"""

from __future__ import annotations

import os
from pathlib import Path

from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock


def look(superblock: Superblock, folder: Path) -> None:
    """A file was made in this folder: publishers wait from now on when less is free than has to be. In any thread."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return  # the supervisor looks, too
    if found.f_blocks and found.f_bavail * found.f_frsize < superblock.get("disk_limit"):
        superblock.raise_alarm(CONSTANTS["ALARM_DISK"])
