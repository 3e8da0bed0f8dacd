"""What a node can have (shared memory, memory, disk), what its sizes need, and which sizes fit.

The images of the logs are by far the largest part, and their memory comes as they are used. A node starts when there is
room for what is reserved, and once more for the regions of a store that is restarted beside those of the dead one. What
is left is shared out: each image gets an equal part (`image_bytes`), so the node as a whole never wants more than there
was at its start. A log with a part of an image has shorter files (engine/kernel/log.c).

A new directory gets the profile small by itself where default does not fit. An existing one keeps its sizes.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from warren.engine.catalog.node_directory import NodeDirectory, changed_settings
from warren.engine.config import MIB, Settings
from warren.engine.errors import NoRoom, UsageError
from warren.engine.kernel.image_room import IMAGES_SURE, sure
from warren.engine.kernel.low_disk import ENDLESS, free_disk
from warren.engine.kernel.protocol import TOPIC_ROWS_BYTES
from warren.engine.saying import counted, in_a_program
from warren.engine.store import file_summary, index
from warren.ipc.layout import PAGE_BYTES, SUPERBLOCK_BYTES
from warren.ipc.region import SHM_DIRECTORY, free_bytes
from warren.workers.node.alarms import machine_memory
from warren.workers.process.lack import size

#: private memory of a process of an idle node
PROCESS_BYTES = 16 * MIB
#: supervisor, store, collector
PROCESSES_N = 3
#: what the index of a store, and the statistics of many queues, may grow by: a share of what is left
GROWTH = 0.25
#: file systems of the kernel: what can be made there is not a file of a program
_WITHOUT_FILES = frozenset(
    (
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs", "fusectl"),
        *("mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"),
    )
)
#: a profile fits where each log can have at least this share of its images
COMFORT = 0.25


class Room(NamedTuple):
    """What there is, in bytes."""

    shared: int  #: free in /dev/shm
    memory: int  #: of the machine, or of the nearest control group, that nobody uses
    disk: int  #: free on the disk of the directory


class Need(NamedTuple):
    """What a node needs to start, in bytes."""

    shared: int  #: of shared memory, while it is empty
    restart: int  #: shared memory for the restart of its store
    images: int  #: of `shared`: images
    private: int  #: memory of its processes
    disk: int  #: its first files


class Lack(NamedTuple):
    """What there is too little of."""

    what: str  #: with figures
    advice: str


@dataclass(frozen=True)
class Fit:
    """How a node uses the room."""

    images_n: int
    image_bytes: int  #: of each image that may have memory
    said: str  #: for people, where that is less than the settings say; else ""


def here(directory: Path) -> Room:
    """What there is now. What cannot be found out counts as enough."""
    shared = memory = disk = ENDLESS
    with contextlib.suppress(OSError):
        shared = min(ENDLESS, free_bytes())
    with contextlib.suppress(OSError, ValueError, KeyError):
        looked = machine_memory()
        memory = max(0, looked.total - looked.used)
    with contextlib.suppress(OSError):
        disk = free_disk(_nearest(directory))
    return Room(shared, memory, disk)


def _nearest(directory: Path) -> Path:
    """The directory, or the nearest one above that is there."""
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def check_place(directory: Path) -> None:
    """Raises UsageError for a new directory where the kernel keeps no files of programs, as below /proc."""
    with contextlib.suppress(OSError):
        found = os.stat(_nearest(directory))
        device = f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}"
        for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
            kind = line.partition(" - ")[2].split(" ")[0]
            if kind in _WITHOUT_FILES and line.split(" ")[2] == device:
                raise UsageError(
                    f"{directory} is on a file system of the kernel ({kind}), where programs cannot keep files: choose "
                    "a directory on a disk"
                )


def need(settings: Settings, workers_n: int) -> Need:
    """What a node with these settings needs."""
    reserved = sure(settings)
    tables = (
        index.region_bytes(settings.index_rows)
        + index.dense_bytes(settings.dense_blocks)
        + file_summary.region_bytes(settings.summary_rows)
        + settings.directory_rows * 8
    )
    store_images = PAGE_BYTES + IMAGES_SURE * reserved.store
    worker_images = 2 * PAGE_BYTES + IMAGES_SURE * (reserved.journal + reserved.transient_journal)
    images = 2 * store_images + workers_n * worker_images
    shared = SUPERBLOCK_BYTES + 2 * tables + images + workers_n * PAGE_BYTES
    private = (PROCESSES_N + workers_n) * PROCESS_BYTES
    return Need(shared, 2 * (tables + store_images), images, private, (1 + workers_n) * settings.file_bytes)


def _logs_n(workers_n: int) -> int:
    return 2 * (1 + workers_n)


def lacking(settings: Settings, workers_n: int, room: Room, *, new: bool, comfort: float = 0.0) -> list[Lack]:
    """What there is too little of for such a node, with figures. `comfort`: the share of its images that is wanted."""
    needed = need(settings, workers_n)
    images = int(comfort * _logs_n(workers_n) * settings.images_n * settings.file_bytes)
    shared = needed.shared + needed.restart + max(0, images - needed.images)
    found = []
    if shared > room.shared:
        what = f"{size(shared)} of shared memory, and {size(room.shared)} are free in {SHM_DIRECTORY}"
        how = f"of a container: --shm-size; else mount -o remount,size=… {SHM_DIRECTORY}"
        found.append(Lack(what, f"enlarge {SHM_DIRECTORY} ({how})"))
    if shared + needed.private > room.memory:
        what = f"{size(shared + needed.private)} of memory, and the machine or its control group has "
        how = "free some memory, or raise the limit of the control group (of a container: --memory)"
        found.append(Lack(f"{what}{size(room.memory)} left", how))
    disk = needed.disk + (settings.disk_free_bytes_min if comfort else 0)
    if new and disk > room.disk:
        what = f"{size(disk)} of disk, and {size(room.disk)} are free"
        found.append(Lack(what, "free some space there, or choose a directory on a larger disk"))
    return found


def topics_bytes(settings: Settings) -> int:
    """Shared memory of the topic worker, and once more for its restart: ring and rows."""
    return 2 * (PAGE_BYTES + settings.topic_ring_bytes + TOPIC_ROWS_BYTES)


def fit(settings: Settings, workers_n: int, room: Room, small: Settings | None = None, *, topics: bool = False) -> Fit:
    """Share out what there is. Raises NoRoom, which advises to take `small` (the same with that profile) if it fits."""
    missing = lacking(settings, workers_n, room, new=False)
    if missing:
        raise refusal(settings, missing, small is not None and not lacking(small, small.workers, room, new=False))
    needed = need(settings, workers_n)
    left = min(room.shared - needed.shared, room.memory - needed.shared - needed.private) - needed.restart
    if topics:  # without room for these a node starts, too
        left = max(0, left - topics_bytes(settings) - PROCESS_BYTES)
    images = needed.images + int((1 - GROWTH) * left)
    images_n = settings.images_n
    each = images // (_logs_n(workers_n) * images_n)
    if each >= settings.file_bytes:
        return Fit(images_n, settings.file_bytes, "")
    least = max(sure(settings))
    while images_n > IMAGES_SURE and each < max(least, settings.file_bytes // 2):
        images_n -= 1
        each = images // (_logs_n(workers_n) * images_n)
    each = min(settings.file_bytes, max(least, each // PAGE_BYTES * PAGE_BYTES))
    said = (
        f"{size(min(room.shared, room.memory))} of shared memory are free: each log has {images_n} images of "
        f"{size(each)}, not {settings.images_n} of {size(settings.file_bytes)}; its files are left early, so writing "
        "is slower, and takes more disk"
    )
    return Fit(images_n, each, said)


def refusal(settings: Settings, missing: list[Lack], small_fits: bool) -> NoRoom:
    """Why a node with these settings is not started."""
    advice = "; ".join(item.advice for item in missing)
    if settings.profile != "small" and small_fits:
        advice += ", or take the profile small with --profile small" + in_a_program("profile='small'")
    return NoRoom(f"a node of the profile {settings.profile} needs {_listed(missing)}: {advice}")


def _listed(missing: list[Lack]) -> str:
    return "; and ".join(item.what for item in missing)


def chosen(directory: NodeDirectory, changes: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The changes with a profile for a directory that is new, and a line for people if that is small by itself. Raises
    NoRoom: not even that fits; UsageError, for a place without files, too.
    """
    if directory.exists():
        return changes, ""
    check_place(directory.path)
    room = here(directory.path)
    if "profile" in changes:
        settings = changed_settings(Settings(), changes).checked()
        if missing := lacking(settings, settings.workers, room, new=True):
            least = changed_settings(Settings(), {**changes, "profile": "small"}).checked()
            raise refusal(settings, missing, not lacking(least, least.workers, room, new=True))
        return changes, ""
    settings = changed_settings(Settings(), changes).checked()
    wanted = lacking(settings, settings.workers, room, new=True, comfort=COMFORT)
    if not wanted:
        return changes, ""
    small = {"profile": "small", **changes}
    settings = changed_settings(Settings(), small).checked()
    if missing := lacking(settings, settings.workers, room, new=True):
        raise refusal(settings, missing, False)
    return small, (
        f"the profile small was chosen, because default wants {_listed(wanted)}: messages up to "
        f"{size(settings.message_bytes_max)}, {counted(settings.workers, 'queue worker')}, smaller "
        "buffers; it is up to half as fast (docs/containers.md)"
    )


def with_images(settings: Settings, images_n: int) -> Settings:
    """The settings with so many images, as the servers use them."""
    return msgspec.structs.replace(settings, images_n=images_n)
