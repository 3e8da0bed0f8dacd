"""The next files of a worker's two journals: made ahead, offered to the engine, and tried again after the disk refused
one. The alarm of the disk is theirs: no next file, or a write to the current one that finds no space.
"""

from __future__ import annotations

import contextlib
import os
import time
from logging import WARNING
from pathlib import Path

from warren.engine import _core
from warren.engine.errors import StoreError, errno_of
from warren.engine.kernel import atomic_file, data_files, low_disk, segment
from warren.engine.kernel.file_maker import FileMaker
from warren.engine.kernel.file_register import Entry, FileRegister
from warren.engine.kernel.formats import FILE_JOURNAL, LISTED_JOURNAL
from warren.engine.queues.options import Options
from warren.ipc.layout import CONSTANTS

RETRY_S = 0.2  #: after the disk refused a file


class NextFiles:
    """`maker` is the thread that makes them; the serving thread calls everything here."""

    def __init__(self, engine: _core.QueueEngine, options: Options, server: int, files: FileRegister) -> None:
        self._engine = engine
        self._options = options
        self._server = server
        self._list = files
        self._next = {False: 0, True: 0}
        self._wanted: set[bool] = set()
        self._retry: dict[bool, float] = {}
        self._left: set[Path] = set()  # files that were not listed, which the disk refused to remove
        self._no_space: set[bool] = set()  # journals without a next file
        self._write_refused = 0  # errno of a write to a journal that found no space
        self.maker = FileMaker(self._make, engine.kick)

    def begin(self, durable: int, transient: int) -> None:
        """Offer the first file of the durable journal. These are the first numbers; the engine asks for the other files
        when it needs them. Raises StoreError.
        """
        self._next = {False: durable, True: transient}
        made = self._make((False, durable))
        self._next[False] += 1
        self._engine.offer(False, made.fd, made.file, made.salt, made.header)

    def on_timer(self, now: float) -> None:
        """What the disk refused is tried again."""
        for transient, when in list(self._retry.items()):
            if now >= when:
                del self._retry[transient]
                self.want(transient)

    def take(self) -> None:
        """Offer what was made."""
        while self.maker.made:
            (transient, _file), made = self.maker.made.popleft()
            self._wanted.discard(transient)
            if isinstance(made, segment.Created):
                self._next[transient] += 1
                self._engine.offer(transient, made.fd, made.file, made.salt, made.header)
            else:
                self._retry[transient] = time.monotonic() + RETRY_S
                self._options.say(f"no new journal file: {made}", WARNING)
            self._short_of_space(transient, None if isinstance(made, segment.Created) else made)
            self._engine.pending(_core.QUEUE_EVENT_CONTROL, False)

    def close(self) -> None:
        """Close what was made and not taken; the thread has ended."""
        while self.maker.made:
            _wanted, made = self.maker.made.popleft()
            if isinstance(made, segment.Created):
                os.close(made.fd)

    def want(self, transient: bool) -> None:
        """The engine needs the next file of a journal."""
        if transient in self._wanted or transient in self._retry:
            return
        self._engine.pending(_core.QUEUE_EVENT_NEED_TRANSIENT_FILE if transient else _core.QUEUE_EVENT_NEED_FILE, True)
        self._wanted.add(transient)
        self.maker.want((transient, self._next[transient]))

    def look_for_space(self, number: int) -> None:
        """A write to a journal finds no space, and is tried again by itself (`number`: its errno): say so, once."""
        if number == self._write_refused:
            return
        self._write_refused = number
        if number:
            self._options.superblock.server_set(self._server, "file_error", number)
            self._options.say(f"publishers wait: the disk has no space for the journal: {os.strerror(number)}", WARNING)
        else:
            self._options.say("there is space for the journal again")
        self._alarm(bool(self._no_space or number))

    def _make(self, wanted: tuple[bool, int]) -> segment.Created:
        transient, file = wanted
        o = self._options
        path = o.folder.transient_file(file) if transient else o.folder.journal_file(file)
        if path in self._left:
            try:
                data_files.unlink(path, missing_ok=True)
            except OSError as error:
                raise atomic_file.explain(error, f"cannot remove {path}") from error
            self._left.discard(path)
        made = segment.create(path, FILE_JOURNAL, o.node_id, self._server, file, o.file_bytes)
        if not transient:
            try:
                self._list.note({(LISTED_JOURNAL, 0, file): Entry(made.salt, o.file_bytes)})
            except StoreError:
                os.close(made.fd)
                self._left.add(path)  # its number is wanted again
                with contextlib.suppress(OSError):  # the first error counts
                    data_files.unlink(path, missing_ok=True)
                    self._left.discard(path)
                raise
        low_disk.look(o.superblock, path.parent)
        return made

    def _short_of_space(self, transient: bool, error: StoreError | None) -> None:
        """Raise or clear this worker's disk alarm; the supervisor sums up those of all servers."""
        short, before = error is not None, bool(self._no_space)
        if short or not self._no_space - {transient}:
            self._options.superblock.server_set(self._server, "file_error", errno_of(error))
        (self._no_space.add if short else self._no_space.discard)(transient)
        if bool(self._no_space) != before:
            self._alarm(bool(self._no_space or self._write_refused))

    def _alarm(self, on: bool) -> None:
        self._options.superblock.server_alarm(self._server, CONSTANTS["ALARM_DISK"], on)
