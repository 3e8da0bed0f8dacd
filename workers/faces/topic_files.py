"""Topics of a data directory, read from its files alone: on another host, where a mount shows the directory, or here
with the node down.

What may be read says the checkpoint of consume queues (engine/topics/checkpoint.h), which a node writes each second
while something changes: all below it is on stable storage, and retention raises a minimum there before it removes what
lies below. So the readers of the core are those of a running node, on rows of this process's own that have the
checkpoint's numbers, and without a ring. Nothing is written, and nobody knows of these readers: retention does not
wait.

Invariants: numbers of a row rise only, but for a directory that was put back (a backup), where the maximum falls.
A row keeps its place while this is open. What looks damaged is looked at again behind the newest checkpoint, as it may
have been removed.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from warren.engine import _core
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import StoreError, TimedOut, TopicNotFound, UsageError
from warren.engine.kernel import data_files
from warren.engine.kernel.atomic_file import explain, explained
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.kernel.protocol import PROTOCOL, TOPIC_ROW, TOPIC_ROWS, TOPIC_ROWS_BYTES
from warren.engine.saying import counted
from warren.engine.topics.names import node_bytes
from warren.engine.topics.service import boot_bytes
from warren.workers.faces.topic_scans import DAMAGED, TopicScans, deleted

if TYPE_CHECKING:
    from warren.engine.catalog.topics import TopicDeclaration

T = TypeVar("T")
P = ParamSpec("P")

#: between two looks at a checkpoint that does not reach far enough yet
PAUSE_S = 0.2
#: readers that are kept for the next call
IDLE_MAX = 16


class TopicFiles:
    """A directory's topics; safe for threads. Raises NodeNotRunning (no data directory), PermissionRefused, StoreError,
    CorruptRecord, FormatVersionError everywhere.
    """

    def __init__(self, path: Path | str) -> None:
        self.directory = NodeDirectory(path)
        self.directory.check_made(makes=False)
        node = self.directory.read()
        self.node_id = node.node_id
        self._settings = node.settings
        self._lock = threading.Lock()
        self._region = mmap.mmap(-1, TOPIC_ROWS_BYTES)  # has memory as far as it was used
        self._rows = memoryview(self._region)
        self._ring = bytes(mmap.PAGESIZE)
        self._places: dict[tuple[int, int], int] = {}
        self._idle: deque[tuple[int, _core.TopicReader]] = deque()
        self._bounds: dict[tuple[int, int], tuple[int, int]] = {}
        self._root = -1
        folder = TopicsFolder.of(self.directory.path).path
        try:
            self._root = data_files.open_folder(folder)
        except FileNotFoundError:
            pass  # the node never had a topic
        except OSError as error:
            raise explain(error, f"cannot read {folder}") from error
        self.refresh()

    def close(self) -> None:
        """Let go of files and memory."""
        with self._lock:
            while self._idle:
                self._idle.pop()[1].close()
            if self._root >= 0:
                os.close(self._root)
            self._root = -1
            self._rows.release()
            self._region.close()

    def topics(self) -> Mapping[str, TopicDeclaration]:
        """The topics that are declared, by name."""
        return catalog_log.load(self.directory.path).catalog.topics

    def reading(self, topic: TopicDeclaration) -> TopicFilesReading:
        """What reads one. UsageError: it is compacted."""
        if topic.compacted:
            raise UsageError(
                f"topic {topic.name!r} is compacted: only processes of its own host read it, with its node up "
                f"({self.directory.path} is read by its files alone here)"
            )
        return TopicFilesReading(self, topic)

    def refresh(self) -> None:
        """See what the newest checkpoint says."""
        if self._root < 0:
            return
        settings = self._settings
        whose = node_bytes(self.node_id), boot_bytes(self._root)
        sizes = settings.consume_queue_entries, settings.index_slots, settings.index_entries
        with explained(f"cannot read {self.directory.path}"):
            kind, found = _core.topics_checkpoint(self._root, *whose, settings.log_file_bytes, *sizes)
        if kind == "none":
            return
        if found is None:
            raise StoreError(
                f"the checkpoint of the topics of {self.directory.path} is {kind}: without it nobody but its node "
                "knows what is there. Start the node, which makes it again"
            )
        with self._lock:
            self._bounds = {(row[0], row[1]): (row[2], row[4]) for row in found["rows"]}
            TOPIC_ROWS.pack_into(self._rows, "first", found["first"])
            for key in self._places:
                self._write(key)

    def _write(self, key: tuple[int, int]) -> None:
        """The row of a queue as the checkpoint has it; one that it does not know has no message yet."""
        at = TOPIC_ROWS.size + self._places[key] * TOPIC_ROW.size
        minimum, maximum = self._bounds.get(key, (0, 0))
        with self._rows[at : at + TOPIC_ROW.size] as row, row.cast("Q") as words:
            words[TOPIC_ROW.offset("minimum") // 8] = minimum
            words[TOPIC_ROW.offset("maximum") // 8] = max(minimum, maximum)
            words[TOPIC_ROW.offset("from") // 8] = (1 << 64) - 1
            words[TOPIC_ROW.offset("key") // 8] = key[0] << 32 | key[1] + 1

    def _have(self, topic: TopicDeclaration) -> None:
        """Rows of a topic."""
        for queue in range(topic.queues):
            key = topic.id, queue
            if key in self._places:
                continue
            if len(self._places) == PROTOCOL["TOPIC_ROWS_MAX"]:
                raise UsageError(f"{self.directory.path}: a read of files is of {len(self._places):,} queues at most")
            self._places[key] = len(self._places)
            self._write(key)
        TOPIC_ROWS.pack_into(self._rows, "rows_n", len(self._places))

    def take(self, topic: TopicDeclaration) -> _core.TopicReader:
        """A reader of a topic, the caller's until `give`."""
        with self._lock:
            self._have(topic)
            for at, (id, reader) in enumerate(self._idle):
                if id == topic.id:
                    del self._idle[at]
                    return reader
        if self._root < 0:
            raise TopicNotFound(f"{self.directory.path} has no files of topics")
        settings = self._settings
        sizes = settings.consume_queue_entries, settings.index_slots, settings.index_entries
        reader = _core.TopicReader(self._root, topic.id, topic.name.encode(), settings.log_file_bytes, 0, *sizes)
        reader.begin(self._ring, self._rows)
        return reader

    def give(self, topic: TopicDeclaration, reader: _core.TopicReader) -> None:
        """The reader is not used any more."""
        with self._lock:
            self._idle.append((topic.id, reader))
            if len(self._idle) > IDLE_MAX:
                self._idle.popleft()[1].close()


class TopicFilesReading(TopicScans):
    """Reads one topic of a directory by its files. `check_there` sees what the node has deleted since."""

    def __init__(self, files: TopicFiles, topic: TopicDeclaration) -> None:
        super().__init__(topic)
        self.files = files

    def _directory(self) -> Path:
        return self.files.directory.path

    def _ask(self, call: Callable[Concatenate[_core.TopicReader, P], T | None], *args: P.args, **names: P.kwargs) -> T:
        answer = self._answer(call, *args, **names)
        if answer is None or _is_damage(answer):
            self.check_there()  # with the checkpoint of now: what is not there may have been removed
            answer = self._answer(call, *args, **names)
        if answer is None:
            raise StoreError(f"{self._directory()}: the files of topic {self.declared.name!r} cannot be found")
        return answer

    def _answer(
        self, call: Callable[Concatenate[_core.TopicReader, P], T | None], *args: P.args, **names: P.kwargs
    ) -> T | None:
        reader = self.files.take(self.declared)
        try:
            with explained(f"cannot read topic {self.declared.name!r}"):
                return call(reader, *args, **names)
        finally:
            self.files.give(self.declared, reader)

    def hold(self, queue: int, start: int, end: int | None = None) -> None:
        """Return None: retention of another host's node, or of one that is down, hears nothing of this."""

    def check_there(self, queue: int = 0) -> None:
        """See what is there now. Raises TopicNotFound."""
        self.files.refresh()
        found = self.files.topics().get(self.declared.name)
        if found is None or found.id != self.declared.id:
            raise deleted(self.declared.name)

    def reach(self, queue: int, end: int, timeout: float) -> None:
        """Wait until the files have all below an offset. Raises TimedOut, TopicNotFound."""
        until = time.monotonic() + timeout
        while (high := self.offsets(queue)[1]) < end:
            if time.monotonic() >= until:
                raise TimedOut(
                    f"topic {self.declared.name!r}, queue {queue}: the files in {self._directory()} have offsets up to "
                    f"{high}, {counted(end - high, 'message')} less than is wanted, and have not grown for "
                    f"{timeout:g} s: does the node run, and does the mount show its files as they are now?"
                )
            time.sleep(PAUSE_S)
            self.check_there()


def _is_damage(answer: Any) -> bool:
    return isinstance(answer, tuple) and isinstance(answer[0], int) and answer[0] == DAMAGED
