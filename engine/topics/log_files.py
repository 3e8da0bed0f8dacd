"""The files of the topics' commit log: found at a start, and made ahead.

Invariants
  A file under its final name has its whole size, holds zeros where nothing was written, and its name is durable: it is
  made under `<name>.new`, sized, synced, renamed, and the folder synced. It is sparse: the committer asks for blocks as
  it writes. So a smaller file was cut by somebody, and one that is missing between others was removed. What somebody
  appended to a file is never read: a larger one is served, and said.
Crash points: before the rename a `.new` file is left, which the next start removes; after it a file of zeros, which is
replaced when it is wanted.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from logging import WARNING
from pathlib import Path
from typing import Any, NoReturn

from warren.engine import _core
from warren.engine.errors import CorruptRecord, StoreError, errno_of
from warren.engine.kernel import atomic_file, data_files, segment
from warren.engine.kernel.file_maker import FileMaker
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.saying import Say, counted
from warren.engine.topics import foreign
from warren.ipc import access

RETRY_S = 0.2  #: after the disk refused a file
RESTORE_ALL = "restore the folder of topics from a backup, with all its files"
OTHERWISE = "or, with the node down, see with `warren check --repair --accept-loss` what is lost, and go on without it"
RESTORE = f"{RESTORE_ALL}; {OTHERWISE}"
UNFINISHED = (
    "a repair that gave up what the log of topics had lost was not finished: repeat `warren check --repair "
    "--accept-loss`, when the node is down"
)
UNCHANGED = "topics do not serve, and the log was not changed"


def path_of(folder: TopicsFolder, base: int) -> Path:
    """The file of the log that begins at this position."""
    return folder.log / f"{base:020d}"


def find(folder: TopicsFolder, file_bytes: int) -> list[int]:
    """Where the log's files begin. Raises CorruptRecord (one is missing, or was cut), StoreError."""
    with atomic_file.file_explained(f"cannot read {folder.log}"):
        if what := foreign.instead(folder.log, folder=True):
            raise foreign.corrupt(folder.log, what, f"{foreign.MOVE}, and {RESTORE}")
        bases = sorted(int(path.name) for path in folder.log.iterdir() if foreign.POSITION.fullmatch(path.name))
        for base, wanted in zip(bases, range(bases[0], bases[-1] + 1, file_bytes) if bases else (), strict=False):
            if base != wanted or base % file_bytes:
                raise CorruptRecord(
                    path_of(folder, wanted),
                    0,
                    "a file of the log",
                    "none",
                    f"a file is missing: {RESTORE}",
                )
            if what := foreign.instead(path_of(folder, base)):
                raise foreign.corrupt(path_of(folder, base), what, f"{foreign.MOVE}, and {RESTORE}")
            size = path_of(folder, base).stat().st_size
            if size < file_bytes:
                raise CorruptRecord(
                    path_of(folder, base), size, f"{file_bytes} bytes", f"{size}", f"the file was cut: {RESTORE}"
                )
    return bases


def refuse_unfinished(folder: TopicsFolder) -> None:
    """Raises StoreError while a loss is only half accepted."""
    with atomic_file.file_explained(f"cannot look at {folder.loss}"):
        if os.path.lexists(folder.loss):
            raise StoreError(f"{folder.loss} is there: {UNFINISHED}; topics do not serve before that")


def surplus(path: Path, size: int, wanted: int) -> str:
    """What is said of a file that is larger than it was made."""
    more = counted(size - wanted, "byte")
    return f"{path} has {size:,} bytes, and had {wanted:,}: somebody appended {more} to it, which nothing reads"


def tell_surplus(folder: TopicsFolder, file_bytes: int, bases: list[int], say: Say) -> None:
    """Say which files are larger than they were made. Raises StoreError."""
    with atomic_file.file_explained(f"cannot read {folder.log}"):
        sizes = {path: path.stat().st_size for path in (path_of(folder, base) for base in bases)}
    larger = [path for path, size in sizes.items() if size > file_bytes]
    if larger:
        first, others = larger[0], len(larger) - 1
        more = f" (so have {counted(others, 'other file')})" if others else ""
        what = surplus(first, sizes[first], file_bytes)
        say(f"{what}{more}; `warren check --repair`, when the node is down, cuts it off", WARNING)


def sweep(folder: TopicsFolder) -> None:
    """Remove what was left unfinished. Raises StoreError."""
    with atomic_file.file_explained(f"cannot clear {folder.log}"):
        for path in folder.log.glob(f"*{segment.UNFINISHED}"):
            data_files.unlink(path)


def named(node: bytes) -> str:
    """A node of a commit, as `warren status` shows it."""
    number, rest = struct.unpack("<QQ", node)
    return f"node {number:012x}" if not rest else f"a node {node.hex()}"


def derived_of(folder: TopicsFolder) -> Path | None:
    """A file of a consume queue or of the key index, if there is one. Raises StoreError."""
    with atomic_file.file_explained(f"cannot read {folder.path}"):
        for place in (folder.queues, folder.index):
            found = next((path for path in sorted(place.rglob("*")) if path.is_file()), None)
            if found is not None:
                return found
    return None


def refuse_strange(folder: TopicsFolder, file_bytes: int, position: int, node: bytes | None) -> None:
    """A file, or a commit at a position, that another node wrote is no torn tail. Raises CorruptRecord."""
    if node is None:
        return
    base = position // file_bytes * file_bytes
    raise CorruptRecord(
        path_of(folder, base),
        position - base,
        "a commit of this node",
        f"one of {named(node)}",
        f"{UNCHANGED}: {RESTORE}",
    )


def refuse_absent(folder: TopicsFolder, file_bytes: int, bases: list[int], looked: dict[str, Any]) -> None:
    """The log is there as far as the checkpoint says, and there is one if anything is derived from it. `looked`: of
    TopicServer.look. Raises CorruptRecord, StoreError.
    """
    position: int = looked["position"]
    if looked["shorter"]:
        check_end(folder, bases, file_bytes, position)
        base = (position - 1) // file_bytes * file_bytes
        raise CorruptRecord(
            path_of(folder, base),
            position - base,
            "the end of the last commit that the checkpoint knows",
            "other bytes",
            f"the log was cut, zeroed, or is an older copy; {UNCHANGED}: {RESTORE}",
        )
    # A start makes the checkpoint before the log's first file, and anything derived after both.
    sure = looked["checkpoint"] in ("good", "settings", "older")
    if not looked["empty"] or (bases and sure):
        return
    traces = folder.checkpoint if not bases and not sure and looked["checkpoint"] != "none" else derived_of(folder)
    if traces is not None:
        raise CorruptRecord(
            path_of(folder, bases[0] if bases else 0),
            0,
            f"the log from which {traces} was made",
            "no commit" if bases else "no file",
            f"topics do not serve, and nothing was changed: {RESTORE}",
        )


def refuse_damaged(folder: TopicsFolder, file_bytes: int, position: int, other_settings: bool = False) -> NoReturn:
    """A commit at a position is not what was written. `other_settings`: the checkpoint is of others than the node has
    now, with which a start would not read there. Raises CorruptRecord.
    """
    base = position // file_bytes * file_bytes
    what = "a commit that a later one, the checkpoint or a consume queue knows"
    advice = f"{UNCHANGED}: {RESTORE}"
    if other_settings:
        names = "consume_queue_entries, index_slots and index_entries"
        advice = f"{advice}. With the values of {names} that it had before, topics serve all else"
    raise CorruptRecord(path_of(folder, base), position - base, what, "other bytes", advice)


def check_begin(folder: TopicsFolder, bases: list[int], file_bytes: int, first: int) -> None:
    """Files below `first` may be missing: retention removed them, as log and checkpoint say. Raises CorruptRecord."""
    if bases and bases[0] > first:
        missing = bases[0] - file_bytes
        raise CorruptRecord(
            path_of(folder, missing),
            0,
            f"a file of the log, whose files may be missing below position {first} alone",
            "no file",
            f"a file is missing; {UNCHANGED}: {RESTORE}",
        )


def check_end(folder: TopicsFolder, bases: list[int], file_bytes: int, position: int) -> None:
    """The log ends at this position, as its checkpoint or its files say: the file in which it ends must be there.
    Raises CorruptRecord.
    """
    last = (position - 1) // file_bytes * file_bytes
    if position and last not in bases:
        raise CorruptRecord(
            path_of(folder, last),
            0,
            f"the log up to position {position}",
            "no file",
            f"a file is missing: {RESTORE}",
        )


def make(folder: TopicsFolder, file_bytes: int, base: int) -> int:
    """Make a file, open for reading and writing. Raises StoreError."""
    path = path_of(folder, base)
    new = segment.unfinished_path(path)
    with atomic_file.file_explained(f"cannot make {path}"):
        fd = data_files.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, access.file_mode())
        try:
            access.let_in(fd, access.file_mode())
            os.ftruncate(fd, file_bytes)
            os.fsync(fd)
            data_files.rename(new, path)
            segment.sync_directory(folder.log)
        except BaseException:
            os.close(fd)
            raise
    return fd


def first_or_made(folder: TopicsFolder, file_bytes: int, base: int, bases: list[int]) -> int:
    """The file in which the log goes on, open for reading and writing. Raises StoreError."""
    if base not in bases:
        return make(folder, file_bytes, base)
    path = path_of(folder, base)
    with atomic_file.file_explained(f"cannot open {path}"):
        return data_files.open(path, os.O_RDWR)


class NextFiles:
    """The log's next file: made by a thread (`maker`), offered by the serving thread, which calls everything here."""

    def __init__(
        self, server: _core.TopicServer, folder: TopicsFolder, file_bytes: int, say: Say, made: Callable[[], None]
    ) -> None:
        """`made` is called by the thread behind each file."""
        self._server = server
        self._file_bytes = file_bytes
        self._say = say
        self._next = 0
        self._wanted = False
        self._retry_at = 0.0  # 0: nothing was refused
        self.refused = 0  #: errno for which there is no next file

        def make_one(base: int) -> int:
            fd = make(folder, file_bytes, base)
            made()
            return fd

        self.maker = FileMaker(make_one, server.kick)

    def begin(self, fd: int, base: int) -> None:
        """Offer the log's first file. Raises OSError."""
        self._offer(fd, base)

    def want(self) -> None:
        """The log needs its next file."""
        if not self._wanted and not self._retry_at:
            self._wanted = True
            self._server.pending(_core.TOPIC_EVENT_NEED_FILE, True)
            self.maker.want(self._next)

    def on_timer(self, now: float) -> None:
        """What the disk refused is tried again."""
        if self._retry_at and now >= self._retry_at:
            self._retry_at = 0.0
            self.want()

    def take(self) -> None:
        """Offer what was made."""
        if self.maker.crash is not None:
            raise self.maker.crash
        while self.maker.made:
            base, made = self.maker.made.popleft()
            self._wanted = False
            self.refused = errno_of(made) if isinstance(made, StoreError) else 0
            if isinstance(made, StoreError):
                self._retry_at = time.monotonic() + RETRY_S
                self._say(f"no new file of the log of topics: {made}", WARNING)
            else:
                self._offer(made, base)

    def _offer(self, fd: int, base: int) -> None:
        try:
            self._server.offer(fd, base)
        except OSError:
            os.close(fd)
            raise
        self._next = base + self._file_bytes

    def close(self) -> None:
        """Close what was made and not taken; the thread has ended."""
        while self.maker.made:
            _base, made = self.maker.made.popleft()
            if not isinstance(made, StoreError):
                os.close(made)
