"""Journal files are emptied and removed: what is alive of the oldest one goes to segments, the acks of segment entries
are applied there, and a file that nothing needs goes. The slow part runs in the thread of helpers.IndexKeeper.

Invariants
  A journal file goes when all older ones are gone for good: a younger one has the acks of what an older one publishes
  (rule Q33).
  One flush or one application of acks is under way, or waits for the disk: a journal file stays until the acks that it
  has are applied.
  A file leaves the list of files before it is removed. A data file goes after the acks that emptied it are durable.
"""

from __future__ import annotations

import math
import time
from collections import deque
from functools import partial
from logging import WARNING
from pathlib import Path

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.kernel import data_files, segment
from warren.engine.kernel.file_register import FileRegister, Key
from warren.engine.kernel.formats import LISTED_DATA, LISTED_JOURNAL
from warren.engine.queues.helpers import IndexKeeper, prepare
from warren.engine.queues.options import Options
from warren.engine.queues.recovered import Recovered

ROWS_KEPT_S = 2.0  #: after a flush, the memory of its rows
PREPARE_S = 2.0  #: after the start, at the earliest, what flushes need is loaded


class Emptying:
    """What follows when a journal has many files, or some that are empty."""

    def __init__(
        self, engine: _core.QueueEngine, options: Options, server: int, files: FileRegister, index: IndexKeeper
    ) -> None:
        self._engine = engine
        self._options = options
        self._server = server
        self._list = files
        self._index = index
        self.recovered = Recovered()  #: what the start found: which files have entries in segments, and whose
        self._at_work = False  # a flush or acks, or they wait for the disk
        self._flush_failed_at = 0.0
        self._rows = bytearray()  # of the flush under way; the next one uses the memory again
        self._rows_at = math.inf  # when a flush ended
        self._zero_since: dict[int, int] = {}  # data file → batch
        self._acks_waiting = b""
        self._unlink_at = 0.0
        self._unlink_later: list[tuple[Path, Key | None]] = []
        self._doomed: deque[int] = deque()  # journal files that nothing needs, oldest first
        self._doomed_wait = False  # the oldest of them could not be removed
        self._prepare_at = math.inf

    def begin(self) -> None:
        """Serving begins: what flushes need is loaded when there is time."""
        self._prepare_at = time.monotonic() + PREPARE_S

    def on_timer(self, now: float) -> None:
        """What the disk refused is tried again."""
        if self._flush_failed_at and now - self._flush_failed_at > 1.0:
            self._flush_failed_at = 0.0
            self._busy(False)
        if (self._unlink_later or self._doomed_wait) and now >= self._unlink_at:
            self._unlink_at = now + 1.0
            later, self._unlink_later = self._unlink_later, []
            for path, key in later:
                self._unlink(path, key)
            if self._doomed_wait:
                self._doomed_wait = False
                self._remove_doomed()
        if self._acks_waiting:
            acks, self._acks_waiting = self._acks_waiting, b""
            self._apply(acks)
        if now > self._rows_at + ROWS_KEPT_S:
            self._rows, self._rows_at = bytearray(), math.inf
        self._remove_data_files()
        if now >= self._prepare_at and len(self._engine.files(False)) > 1:
            self._prepare_at = math.inf
            self._index.ask(prepare, lambda _: None)

    def _busy(self, on: bool) -> None:
        self._at_work = on
        self._engine.pending(_core.QUEUE_EVENT_FILES_MANY | _core.QUEUE_EVENT_FILES_EMPTY, on)

    def serve(self, events: int) -> None:
        """Both events may come at once: the flush waits for the acks."""
        if events & _core.QUEUE_EVENT_FILES_EMPTY:
            self._delete_files()
        if events & _core.QUEUE_EVENT_FILES_MANY and not self._at_work:
            self._flush()

    def _flush(self) -> None:
        """Move what is alive of the oldest journal file into segments."""
        o = self._options
        file = self._engine.files(False)[0][0]
        rows_bytes = self._engine.export_file(file, self._rows)
        rows = memoryview(self._rows)[:rows_bytes]
        self._busy(True)

        def then(result: StoreError | None) -> None:
            if result is not None:
                self._rows = bytearray()  # the error may keep what it was raised in, and with it a view of the rows
                o.say(f"journal file {file} stays: {result}", WARNING)
                self._flush_failed_at = time.monotonic()
                return
            self._engine.flushed(file, rows)
            rows.release()
            self._rows_at = time.monotonic()
            o.reached("flush.forgotten")
            self._busy(False)

        live, named = self.recovered.segment_live, self.recovered.named

        def job() -> None:
            from warren.engine.queues import flush as queue_flush

            queue_flush.flush(o.folder, o.node_id, self._server, file, rows, live, named, self._list, o.reached)

        self._index.ask(job, then)

    def _delete_files(self) -> None:
        """Remove journal files that nothing needs, oldest first, after their acks of segment entries are applied."""
        o = self._options
        engine = self._engine
        while (files := engine.files(True)) and len(files) > 1 and files[0][1] == 0:
            engine.drop_first(True)
            self._unlink(o.folder.transient_file(files[0][0]))
        while (files := engine.files(False)) and len(files) > 1 and files[0][1] == 0 and engine.may_delete(files[0][0]):
            file = files[0][0]
            acks = engine.segment_acks(file)
            if acks:
                self._busy(True)
                self._apply(acks)
                return
            engine.drop_first(False)
            if file not in self.recovered.foreign:
                self._doomed.append(file)
                if not self._doomed_wait:
                    self._remove_doomed()
        if acks := engine.early_acks():
            self._busy(True)
            self._apply(acks)

    def _apply(self, acks: bytes) -> None:
        o = self._options
        live = self.recovered.segment_live

        def then(result: int | StoreError) -> None:
            if isinstance(result, StoreError):
                o.say(f"acks wait for the disk: {result}", WARNING)
                self._acks_waiting = acks  # the timer tries again
                return
            self._busy(False)

        def job() -> int:
            from warren.engine.queues import flush as queue_flush

            return queue_flush.apply_acks(o.folder, acks, live, self._list, o.reached)

        self._index.ask(job, then)

    def _remove_doomed(self) -> None:
        """Remove journal files. One that cannot be removed keeps those behind it."""
        doomed = self._doomed

        def job() -> None:
            while doomed:
                self._remove(self._options.folder.journal_file(doomed[0]), (LISTED_JOURNAL, 0, doomed[0]))
                doomed.popleft()

        def then(result: StoreError | None) -> None:
            if result is not None and doomed:  # the next job may have removed it meanwhile
                path = self._options.folder.journal_file(doomed[0])
                self._options.say(f"cannot remove {path}; trying again: {result}", WARNING)
                self._doomed_wait = True

        self._index.ask(job, then)

    def _unlink(self, path: Path, key: Key | None = None) -> None:
        """Remove a file that may stay longer than others."""

        def then(result: StoreError | None) -> None:
            if result is not None:
                self._options.say(f"cannot remove {path}; trying again: {result}", WARNING)
                self._unlink_later.append((path, key))

        self._index.ask(partial(self._remove, path, key), then)

    def _remove(self, path: Path, key: Key | None) -> None:
        """Remove a file; one of the list leaves that first, and is gone for good. Raises StoreError, OSError."""
        if key is not None:
            self._list.note(gone=[key])
        data_files.unlink(path, missing_ok=True)
        if key is not None:
            segment.sync_directory(path.parent)

    def _remove_data_files(self) -> None:
        """Segment data files without live entries go, once the acks that emptied them are durable."""
        present, synced = self._engine.tokens()
        for file, live in self._engine.data_files().items():
            if live:
                self._zero_since.pop(file, None)
            elif file not in self._zero_since:
                self._zero_since[file] = present
            elif self._zero_since[file] <= synced or self._engine.all_durable():
                del self._zero_since[file]
                self._engine.forget_data_file(file)
                self._unlink(self._options.folder.data_file(file), (LISTED_DATA, 0, file))
