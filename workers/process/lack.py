"""What a server lacked when it could not start: room that may come back, so it is started again until there is some.

Not a death: a server that dies of itself is given up after some times, and one of these never is. The kind is told by
the exit code, and stands in the superblock (`lacks` of the server) as long as it lasts: alarms name it, with figures.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import posix_ipc
import sysv_ipc

from warren.engine.errors import DiskFull
from warren.ipc.layout import CONSTANTS
from warren.ipc.region import SHM_DIRECTORY, RegionError, SegmentRefused
from warren.ipc.superblock import SlotsFull
from warren.workers.process.exit_codes import EXIT_LACKS, EXIT_NO_SPACE
from warren.workers.process.shared_objects import segments

DISK, SHM, SEGMENTS = CONSTANTS["LACK_DISK"], CONSTANTS["LACK_SHM"], CONSTANTS["LACK_SEGMENTS"]
MEMORY, FILES, SLOTS = CONSTANTS["LACK_MEMORY"], CONSTANTS["LACK_FILES"], CONSTANTS["LACK_SLOTS"]
#: kind → the alarm that it raises
ALARMS = {kind: CONSTANTS["ALARM_DISK" if kind == DISK else "ALARM_MEMORY"] for kind in range(DISK, SLOTS + 1)}
#: kind → what there is none of
WORDS = {
    DISK: "space on the disk",
    SHM: f"room in {SHM_DIRECTORY}",
    SEGMENTS: "System V segment (kernel.shmmni, kernel.shmall)",
    MEMORY: "memory",
    FILES: "free descriptor, process or thread",
    SLOTS: "free slot of a queue worker",
}
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def exit_code(kind: int) -> int:
    """The exit code of a server that lacked something."""
    return EXIT_NO_SPACE if kind == DISK else EXIT_LACKS + kind


def of_exit_code(code: int) -> int:
    """What a server lacked that ended with this code, 0: nothing."""
    kind = DISK if code == EXIT_NO_SPACE else code - EXIT_LACKS
    return kind if kind in WORDS and exit_code(kind) == code else 0


def of_error(error: BaseException) -> int:
    """What was lacking when this was raised, 0: that was not the reason."""
    return next((kind for cause in _causes(error) if (kind := _kind(cause))), 0)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _kind(error: BaseException) -> int:
    if isinstance(error, DiskFull):
        return DISK
    if isinstance(error, SegmentRefused):
        return MEMORY if error.errno == errno.ENOMEM else SEGMENTS
    if isinstance(error, SlotsFull):
        return SLOTS
    if isinstance(error, MemoryError):
        return MEMORY
    if isinstance(error, RuntimeError) and "start new thread" in str(error):  # how Python says EAGAIN of a thread
        return FILES
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, RegionError) and number in _NO_SPACE:
        return SHM
    if number == errno.ENOMEM:
        return MEMORY
    if number in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
        return FILES
    # what these packages say when a limit is reached
    return FILES if isinstance(error, posix_ipc.Error | sysv_ipc.Error) and "limit" in str(error) else 0


def missing(kind: int, who: list[str]) -> str:
    """What is missing to start these servers, with figures."""
    said = figures(kind)
    return f"there is no {WORDS[kind]} to start the {', '.join(who)}{f' ({said})' if said else ''}"


def figures(kind: int) -> str:
    """How much of it there is and is used, for people; "" where that is not known."""
    if kind == SHM:
        found = os.statvfs(SHM_DIRECTORY)
        return f"{size(found.f_bavail * found.f_frsize)} of {size(found.f_blocks * found.f_frsize)} are free"
    if kind == SEGMENTS:
        there = segments()
        count_max, pages = _number("kernel/shmmni"), _number("kernel/shmall")
        bytes_max = pages * os.sysconf("SC_PAGE_SIZE")
        return (
            f"{len(there)} of {count_max} segments, and {size(sum(item.size for item in there))} of "
            f"{size(bytes_max)} are used"
        )
    return ""


def _number(name: str) -> int:
    with open(f"/proc/sys/{name}") as file:
        return int(file.read())


def size(number: int) -> str:
    """Bytes for people."""
    value, unit = float(number), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{number} bytes" if unit == "bytes" else f"{value:.4g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def advice(kind: int) -> str:
    """What ends it."""
    return {
        DISK: "free some space",
        SHM: f"remove what is not needed in {SHM_DIRECTORY}, or enlarge it (mount -o remount,size=…; of a container: "
        "--shm-size)",
        SEGMENTS: "remove segments that are not needed (ipcs -m), or raise the limits with sysctl",
        MEMORY: "free memory, or raise the limit of the control group",
        FILES: "raise `ulimit -n` or `ulimit -u`; log/ says which",
        SLOTS: "the store server has to finish with what died in them, and has when it serves; DIR/log/store.log says "
        "what delays it",
    }[kind]
