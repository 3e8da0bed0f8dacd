"""Where topics are read from: memory and files of the topic worker's present incarnation, opened once by a process, and
readers of the core that wait to be used again.

Invariants: a reader is one thread's while it has it. What a reader uses is open until the last one is back: a place
that is over (the worker was restarted, the attachment ended) closes then. What watches a group is closed at once.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque

from warren.engine import _core
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.config import Settings
from warren.engine.kernel import data_files
from warren.engine.kernel.paths import TOPICS
from warren.engine.kernel.protocol import TOPIC_RING
from warren.engine.topics.names import node_bytes
from warren.ipc.region import Region, posix_open
from warren.ipc.superblock import Superblock

#: readers that are kept for the next call; each has some descriptors, and as much memory as it reads at once
IDLE_MAX = 32


class TopicPlace:
    """Regions and folder of one incarnation of the topic worker."""

    def __init__(self, superblock: Superblock, generation: int, settings: Settings, directory: int) -> None:
        """`directory`: a descriptor of the node's. Raises RegionError (not there, or not any more),
        OSError."""
        self.generation = generation
        self.past = False  #: another has served since, and its memory has gone: this one lacks what that confirmed
        self._settings = settings
        self._node = node_bytes(superblock.node_id)
        self._lock = threading.RLock()  # a reader that is forgotten lets go of its watch wherever that happens
        self._idle: deque[tuple[int, _core.TopicReader]] = deque()
        self._watches: set[_core.TopicWatch] = set()
        self._used = 0
        self._over = False
        self._regions: list[Region] = []
        self._root = -1
        try:
            for what, writable in (("tring", False), ("trows", True)):
                name = superblock.region_name(what, superblock.topic_server, generation)
                self._regions.append(posix_open(name, writable=writable))
            self._root = data_files.open_folder(TOPICS, folder=directory)
        except BaseException:
            self.close()
            raise

    def take(self, topic: TopicDeclaration) -> _core.TopicReader:
        """A reader of a topic, the caller's until `give`."""
        with self._lock:
            self._used += 1
            for at, (id, reader) in enumerate(self._idle):
                if id == topic.id:
                    del self._idle[at]
                    return reader
        try:
            return self._make(topic)
        except BaseException:
            self._back()
            raise

    def _make(self, topic: TopicDeclaration) -> _core.TopicReader:
        ring, rows = self._regions
        settings = self._settings
        reader = _core.TopicReader(
            self._root,
            topic.id,
            topic.name.encode(),
            settings.log_file_bytes,
            ring.size - TOPIC_RING.size,
            settings.consume_queue_entries,
            settings.index_slots,
            settings.index_entries,
            self._node if topic.compacted else None,
        )
        reader.begin(ring.buffer, rows.buffer)
        return reader

    def give(self, topic: TopicDeclaration, reader: _core.TopicReader) -> None:
        """The reader is not used any more."""
        dropped: _core.TopicReader | None = reader
        with self._lock:
            if not self._over:
                self._idle.append((topic.id, reader))
                dropped = self._idle.popleft()[1] if len(self._idle) > IDLE_MAX else None
        if dropped is not None:
            dropped.close()
        self._back()

    def watch(self, row: int, stamp: int, member_row: int, member: int) -> _core.TopicWatch | None:
        """What sees that a group of readers has changed, and where its member beats, until `unwatch`; None: this place
        is over.
        """
        with self._lock:
            if self._over:
                return None
            watch = _core.TopicWatch(self._regions[1].buffer, row, stamp, member_row, member)
            self._watches.add(watch)
            return watch

    def unwatch(self, watch: _core.TopicWatch) -> None:
        """It is not looked at any more."""
        with self._lock:
            self._watches.discard(watch)
        watch.close()

    def _back(self) -> None:
        with self._lock:
            self._used -= 1
            last = self._over and not self._used
        if last:
            self._let_go()

    def close(self, forked: bool = False) -> None:
        """It is over: what is open is closed when the last reader is back. `forked`: in a child of fork, where those of
        its parent's threads never come back.
        """
        if forked:
            self._lock, self._used = threading.RLock(), 0
        with self._lock:
            if self._over:
                return
            self._over = True
            idle, self._idle = self._idle, deque()
            watches, self._watches = self._watches, set()
            last = not self._used
        for watch in watches:
            watch.close()  # it says so to whoever looks at it
        for _id, reader in idle:
            reader.close()
        if last:
            self._let_go()

    def _let_go(self) -> None:
        regions, self._regions = self._regions, []
        for region in regions:
            with contextlib.suppress(
                BufferError
            ):  # a child of fork, whose parent's threads were reading: it never reads here
                region.close()
        root, self._root = self._root, -1
        if root >= 0:
            os.close(root)
