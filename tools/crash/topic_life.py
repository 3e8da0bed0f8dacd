"""A topic worker's life over a state of the disk, in this process, as in another life of the machine: it starts, shows
what there is, and stops in good order. Nobody appends.

`passes`: it lives for a while besides. Messages that are due come, and compaction and retention look twice: each queue
of a compacted topic that has anything in the log is compacted, and minima rise.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from pathlib import Path
from typing import NamedTuple

from warren.engine import _core
from warren.engine.catalog.node_directory import NodeFile
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import TimedOut
from warren.engine.kernel import atomic_file
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.kernel.protocol import TOPIC_ROW, TOPIC_ROWS, TOPIC_ROWS_BYTES
from warren.engine.topics.compaction import Rates
from warren.engine.topics.declared import Declaration
from warren.engine.topics.names import node_bytes
from warren.engine.topics.retention import Marks, Place, Policy
from warren.engine.topics.retention_rules import reader_of
from warren.engine.topics.service import Options, TopicService
from warren.ipc import layout
from warren.ipc.layout import SUPERBLOCK
from warren.tools.crash.afterwards import MemorySuperblock

#: of the life of the machine in which a state is found
BOOT = b"another boot id."
NEVER_S = 1e6
TURN_NS = 5_000_000
PASSES_S = 60.0
PASSES_N = 2
READ_N, READ_BYTES = 100, 1 << 20


class Row(NamedTuple):
    """What a queue of a topic shows."""

    minimum: int
    maximum: int
    delayed: int  #: messages of the topic that are to come, at its queue 0
    halves: int  #: half messages that are pending, at its queue 0


class Seen(NamedTuple):
    """A message that a reader was given."""

    offset: int
    tag: str | None
    body: bytes


@dataclass
class Lived:
    """What a life showed."""

    rows: dict[tuple[int, int], Row] = field(default_factory=dict)  #: by topic and queue
    #: of compacted topics: what a reader from the beginning is given
    read: dict[tuple[int, int], list[Seen]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def say(self, text: str, level: int = INFO, *, exc_info: bool = False) -> None:
        """A power failure is nothing that a worker warns of."""
        if level >= WARNING:
            self.wrong.append(f"the worker says: {text}")


def lived(folder: Path, node: NodeFile, topics: Sequence[TopicDeclaration], *, passes: bool = False) -> Lived:
    """A life. Raises StoreError, OSError, TimedOut."""
    found = Lived()
    settings = node.settings
    place = TopicsFolder.of(folder)
    atomic_file.make_directories(place.log)
    superblock = MemorySuperblock(node)
    server = 2 + settings.workers
    SUPERBLOCK.pack_into(superblock.buffer, "servers_n", server + 1)
    superblock.set("topic_server", server)
    superblock.set("node_epoch", node.node_epoch + 1)
    with contextlib.ExitStack() as stack:
        rows = stack.enter_context(mmap.mmap(-1, TOPIC_ROWS_BYTES))
        root = os.open(place.path, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, root)
        ring = os.memfd_create("ring")
        stack.callback(os.close, ring)
        os.ftruncate(ring, layout.PAGE_BYTES + settings.topic_ring_bytes)
        mapped = stack.enter_context(mmap.mmap(ring, layout.PAGE_BYTES + settings.topic_ring_bytes))
        core = _core.TopicServer(
            superblock.buffer,
            server,
            root,
            ring,
            rows,
            node_bytes(superblock.node_id),
            BOOT,
            ring_bytes=settings.topic_ring_bytes,
            log_file_bytes=settings.log_file_bytes,
            consume_queue_entries=settings.consume_queue_entries,
            index_slots=settings.index_slots,
            index_entries=settings.index_entries,
            spin_us=0,
            tick_ms=20,
            commit_bytes=settings.commit_bytes,
            delayed_max=settings.delayed_messages_max,
            halves_max=settings.half_messages_max,
            half_outcomes=settings.half_outcomes_kept,
            half_after_ms=round(settings.half_after_s * 1000),
            half_interval_ms=round(settings.half_interval_s * 1000),
            half_checks=settings.half_checks_max,
        )
        options = Options(
            superblock=superblock,
            server=server,
            place=Place(
                folder=place,
                log_file_bytes=settings.log_file_bytes,
                ring=mapped,
                rows=rows,
                consume_queue_entries=settings.consume_queue_entries,
                index_slots=settings.index_slots,
                index_entries=settings.index_entries,
                ring_bytes=settings.topic_ring_bytes,
            ),
            load_catalog=lambda: list[Declaration](topics),
            say=found.say,
            # it looks when it is woken
            policy=Policy(check_s=NEVER_S, marks=Marks(0.0, 1.0, 1.0), disk=lambda _path: (0, 1)),
            rates=Rates(
                settings.compaction_dirty, settings.compaction_keys, settings.compaction_tombstone_s, bytes_min=1
            ),
        )
        service = TopicService(core, options)
        try:
            recovered = service.start()
            service.begin(1)
            if passes:
                _pass_time(service)
            with memoryview(rows) as view:
                found.rows = dict(_rows(view))
            whose = node_bytes(superblock.node_id)
            for topic in topics:
                if topic.compacted:
                    _read(options.place, root, topic, whose, found)
            clean = service.stop()
        except BaseException:
            service.release()
            raise
        if recovered.checkpoint not in ("good", "none"):
            found.wrong.append(f"the checkpoint is {recovered.checkpoint}")
        if not clean:
            found.wrong.append("the worker did not stop in good order")
    return found


def _pass_time(service: TopicService) -> None:
    deadline = time.monotonic() + PASSES_S

    def until(done: Callable[[], bool]) -> None:
        while not done():
            if time.monotonic() > deadline:
                raise TimedOut(f"compaction and retention had nothing to say for {PASSES_S:g} s")
            service.turn(TURN_NS)

    for _ in range(PASSES_N):
        for looker in (service.compaction, service.retention, service.retention):  # the first may have begun before
            before = looker.looks_n
            looker.wake()
            until(lambda looker=looker, before=before: looker.looks_n > before)  # type: ignore[misc]
    service.server.later_hold()

    def quiet() -> bool:
        counters = service.server.counters()
        return counters["append"] == counters["sealed"] == counters["dispatched"]

    until(quiet)


def _rows(rows: memoryview) -> Iterator[tuple[tuple[int, int], Row]]:
    for number in range(TOPIC_ROWS.unpack(rows, "rows_n")):
        at = TOPIC_ROWS.size + number * TOPIC_ROW.size
        key = TOPIC_ROW.unpack(rows, "key", at)
        if key:
            yield (
                ((key >> 32), (key & 0xFFFFFFFF) - 1),
                Row(*(TOPIC_ROW.unpack(rows, name, at) for name in Row._fields)),
            )


def _read(place: Place, root: int, topic: TopicDeclaration, node: bytes, found: Lived) -> None:
    """All that a reader sees of a compacted topic."""
    reader = reader_of(place, root, topic, node)
    try:
        for queue in range(topic.queues):
            seen = found.read[topic.id, queue] = list[Seen]()
            row = found.rows.get((topic.id, queue))
            at = 0
            while row is not None and at < row.maximum:
                answer = reader.read(queue, at, row.maximum, READ_N, READ_BYTES, ())
                if answer is None or answer[5] is not None or answer[1] <= at:
                    what = "nothing" if answer is None else answer[5]
                    found.wrong.append(f"a reader of {topic.name}/{queue} is told {what} at {at}")
                    break
                seen += (Seen(record.offset, record.tag, bytes(record.body)) for record in answer[4])
                at = answer[1]
    finally:
        reader.close()
