"""What lies below the folder of topics where a file or a folder of Warren's has to be, and is none: a folder in place
of a file, a pipe, a link. It is named, with what to do; nothing is read through it, and nobody waits for it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from warren.engine.errors import CorruptRecord
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.paths import TopicsFolder

DAMAGED = ".damaged"  #: behind the name of what was set aside
ASIDE = "was damaged, or did not belong there, and was set aside: nothing reads it"
MOVE = "move it away, or remove it"
REPAIR = "then `warren check --repair`, when the node is down, makes consume queues and index again"
#: what the system says where such a thing lies
ERRORS = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ESPIPE, errno.EINVAL, errno.ENOTEMPTY)
#: names of files of the log and of consume queues, of the key index, and of folders and files of a topic or queue
POSITION, TIME, NUMBER = re.compile(r"[0-9]{20}"), re.compile(r"[0-9]{17}"), re.compile(r"0|[1-9][0-9]{0,9}")


def instead(path: Path, folder: bool = False) -> str:
    """What lies at a path where a file has to be, or a folder: "a pipe" …; empty: that, or nothing. Raises OSError."""
    return data_files.instead(path, folder=folder, whose=False)


def read(path: Path) -> bytes:
    """All of a file. Raises OSError; EISDIR: it is none."""
    if instead(path):
        raise IsADirectoryError(errno.EISDIR, f"it is {instead(path)}, and no file", str(path))
    return data_files.read(path)


def set_aside(path: Path) -> Path:
    """Rename what lies there, durably; a file that was set aside before goes, anything else stays. Raises OSError."""
    aside = path.with_name(path.name + DAMAGED)
    number = 1
    while os.path.lexists(aside) and (instead(path) or instead(aside)):
        number += 1
        aside = path.with_name(f"{path.name}{DAMAGED}.{number}")
    data_files.rename(path, aside)
    atomic_file.sync_directory(path.parent)
    return aside


def is_aside(name: str) -> bool:
    """Of something that was set aside."""
    return DAMAGED in name


def all_of(folder: TopicsFolder) -> Iterator[tuple[Path, str]]:
    """(path, what lies there) of each. Raises OSError."""
    for path in (folder.log, folder.queues, folder.index):
        if what := instead(path, folder=True):
            yield path, what
    for path in (folder.checkpoint, folder.groups, folder.later, folder.halves):
        if what := instead(path):
            yield path, what
    yield from _in(folder.log, POSITION)
    yield from _in(folder.index, TIME)
    for topic in _names(folder.queues):
        if what := instead(topic, folder=True):
            yield topic, what
        for queue in _names(topic):
            if NUMBER.fullmatch(queue.name):
                if what := instead(queue, folder=True):
                    yield queue, what
                yield from _in(queue, POSITION)


def _names(folder: Path) -> list[Path]:
    if instead(folder, folder=True) or not folder.exists():
        return []
    return sorted(path for path in folder.iterdir() if not is_aside(path.name))


def _in(folder: Path, name: re.Pattern[str]) -> Iterator[tuple[Path, str]]:
    for path in _names(folder):
        if name.fullmatch(path.name) and (what := instead(path)):
            yield path, what


def explain(folder: TopicsFolder, error: OSError) -> OSError | CorruptRecord:
    """What the system says of a file that is none names no file: the first that is so; else the error as it is."""
    if error.errno not in ERRORS:
        return error
    path, what = next(all_of(folder), (folder.path, ""))
    if not what:
        return error
    derived = path.is_relative_to(folder.queues) or path.is_relative_to(folder.index)
    return corrupt(path, what, f"{MOVE}; {REPAIR}" if derived else MOVE)


def corrupt(path: Path, what: str, advice: str) -> CorruptRecord:
    """The error that names it."""
    return CorruptRecord(path, 0, "what Warren has made there", what, advice)
