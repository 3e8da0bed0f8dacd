"""What a node finds of its topics after a power failure, compared with what it had confirmed.

As afterwards.py, with the notes of topic_history.py. A state of the disk is checked, started as a topic worker starts
it, in this process and as in another life of the machine, stopped, and started again:

- a message that was confirmed at `synced` is there, once, at its offset and position, with its bytes, tag and keys;
  so is each that was confirmed at `written` and lies before one that is there
- of a batch, all is there, with consecutive offsets, or nothing; nothing is there that was not appended, or comes
  twice; messages are in the order of their appends
- topics that were declared are there, those that were deleted are not, and show nothing in ones of their name
- consume queues and key index are what the log says, read by other code (topic_files.py)
- a power failure is no damage: the start says of none, and `warren check` finds no problem, before it and after it
- a second start finds the same as the first
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from warren.engine import _core
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory, NodeFile
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import Error
from warren.engine.kernel import atomic_file
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.kernel.protocol import TOPIC_ROW, TOPIC_ROWS, TOPIC_ROWS_BYTES
from warren.engine.topics import check as topics_check
from warren.engine.topics.declared import Declaration
from warren.engine.topics.names import node_bytes
from warren.engine.topics.retention import Place
from warren.engine.topics.service import Options, TopicService
from warren.ipc import layout
from warren.ipc.layout import SUPERBLOCK
from warren.tools.crash.afterwards import MemorySuperblock, node_of
from warren.tools.crash.disk import State, put_down
from warren.tools.crash.history import message_of
from warren.tools.crash.recording import Record
from warren.tools.crash.topic_files import BadFileError, Logged, differences, logged
from warren.tools.crash.topic_history import keys_of, tag_of
from warren.workers.cli.check import verify

#: of the life of the machine in which a state is found
BOOT = b"another boot id."


@dataclass(slots=True)
class _Batch:
    """What was appended together."""

    topic: int
    queue: int
    level: str
    items: list[tuple[int, int]]
    submitted: int
    token: int


@dataclass(slots=True)
class _Change:
    """A topic was declared, or deleted."""

    name: str
    submitted: int
    token: int
    declared: bool


class TopicTruth:
    """What a history's notes say."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.confirmed: dict[int, int] = {}  #: token → number of the record that confirms it
        self.answers: dict[int, Any] = {}
        self.batches: list[_Batch] = []
        self.of_number: dict[int, _Batch] = {}
        self.changes: list[_Change] = []
        self.kills: Counter[str] = Counter()
        for number, record in enumerate(records):
            if record.kind == "note":
                self._note(number, *msgspec.msgpack.decode(record.data))

    def _note(self, number: int, what: str, *words: Any) -> None:
        if what == "l":
            token, topic, queue, level, items = words
            batch = _Batch(topic, queue, level, [(item, size) for item, size in items], number, token)
            self.batches.append(batch)
            self.of_number.update((item, batch) for item, _size in items)
        elif what in ("q", "x"):
            self.changes.append(_Change(words[1], number, words[0], what == "q"))
        elif what == "c":
            self.confirmed[words[0]], self.answers[words[0]] = number, words[1]
        elif what == "k":
            self.kills[words[0]] += 1

    def is_confirmed(self, token: int, point: int) -> bool:
        """Whether the client had been told before that point."""
        return self.confirmed.get(token, point) < point

    def topics(self, point: int) -> tuple[dict[str, int], set[int], set[str]]:
        """(names that must be there, with their ids; ids that must not; names of which nothing is sure) at a point."""
        there: dict[str, int] = {}
        gone: set[int] = set()
        unsure: set[str] = set()
        for change in self.changes:
            if change.submitted >= point:
                break
            if not self.is_confirmed(change.token, point):
                if not change.declared or change.name not in there:
                    unsure.add(change.name)
                    there.pop(change.name, None)
            elif change.declared:
                there[change.name] = self.answers[change.token]
                unsure.discard(change.name)
            else:
                if change.name in there:
                    gone.add(there.pop(change.name))
                unsure.discard(change.name)
        return there, gone, unsure


@dataclass
class _Found:
    """What one start found."""

    records: list[Logged] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class TopicChecker:
    """Checks states of one history. The folder is the caller's, and should lie in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"
        self.states = 0

    def close(self) -> None:
        """Remove the last state."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def build(self, state: State) -> None:
        """Put a state into the folder `state`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        put_down(state, self.folder)

    def check(self, state: State, truth: TopicTruth, point: int) -> list[str]:
        """What is wrong with a state; nothing is what there should be."""
        self.states += 1
        self.build(state)
        there, gone, unsure = truth.topics(point)
        node = node_of(self.folder)
        if node is None:
            return ["node.json is gone or unreadable, and the node had topics"] if there else []
        try:
            topics = Catalog.load(self.folder).topics
        except (Error, OSError) as error:
            return [f"the catalog cannot be read: {error}"]
        wrong = [
            f"topic {name} was declared with id {id}, and the catalog says {topics.get(name)}"
            for name, id in there.items()
            if name not in topics or topics[name].id != id
        ]
        wrong += [f"topic {topic} was deleted and is in the catalog" for topic in topics.values() if topic.id in gone]
        wrong += [f"topic {name} was never declared" for name in topics if name not in there and name not in unsure]
        wrong += [f"check before the start: {text}" for text in self._checked()]
        first = self._start(node, topics, truth, point)
        second = self._start(node, topics, truth, point)
        wrong += first.wrong
        wrong += [f"second start: {text}" for text in second.wrong if text not in first.wrong]
        if first.records != second.records:
            wrong.append("a second start finds other messages than the first")
        wrong += [f"check after the start: {text}" for text in self._checked()]
        return wrong

    def _checked(self) -> list[str]:
        """The problems that `warren check` finds, in another life of the machine."""
        with mock.patch.object(topics_check, "boot_bytes", return_value=BOOT):
            return list(verify(NodeDirectory(self.folder)).problems)

    def _start(self, node: NodeFile, topics: dict[str, TopicDeclaration], truth: TopicTruth, point: int) -> _Found:
        found = _Found()
        try:
            maxima = _lived(self.folder, node, list(topics.values()), found)
            found.records = list(logged(self.folder / "topics" / "commitlog"))
            declared = {topic.name: (topic.id, topic.queues) for topic in topics.values()}
            found.wrong += differences(self.folder / "topics", declared, node.settings.index_slots, behind=True)
            found.wrong += _unlike(found.records, declared, maxima, truth, point)
        except (Error, OSError, BadFileError) as error:
            found.wrong.append(f"the start fails: {error!r}")
        return found


def _lived(folder: Path, node: NodeFile, topics: list[TopicDeclaration], found: _Found) -> dict[tuple[int, int], int]:
    """A worker's life: it starts, and stops in good order. The maximum of each (topic, queue)."""
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
        )
        service = TopicService(core, options)
        try:
            recovered = service.start()
            service.begin(1)
            with memoryview(rows) as view:
                maxima = dict(_maxima(view))
            clean = service.stop()
        except BaseException:
            service.release()
            raise
        if recovered.checkpoint not in ("good", "none"):
            found.wrong.append(f"the checkpoint is {recovered.checkpoint}")
        if not clean:
            found.wrong.append("the worker did not stop in good order")
    return maxima


def _maxima(rows: memoryview) -> Iterator[tuple[tuple[int, int], int]]:
    for number in range(TOPIC_ROWS.unpack(rows, "rows_n")):
        at = TOPIC_ROWS.size + number * TOPIC_ROW.size
        key = TOPIC_ROW.unpack(rows, "key", at)
        if key:
            yield (key >> 32, (key & 0xFFFFFFFF) - 1), TOPIC_ROW.unpack(rows, "maximum", at)


def _unlike(
    records: Sequence[Logged],
    topics: dict[str, tuple[int, int]],
    maxima: dict[tuple[int, int], int],
    truth: TopicTruth,
    point: int,
) -> Iterator[str]:
    """What is there against what was confirmed."""
    living = {id for id, _queues in topics.values()}
    queues: dict[tuple[int, int], list[Logged]] = defaultdict(list)
    places: dict[int, tuple[int, int]] = {}  # number → (offset, position)
    end = records[-1].position if records else -1
    for record in records:
        number = int.from_bytes(record.body[:4], "big")
        size = int.from_bytes(record.body[4:8], "big")
        batch = truth.of_number.get(number)
        if size != len(record.body) or record.body != message_of(record.topic, number, size):
            yield f"{record.topic}/{record.queue}:{record.offset} has a body that nobody appended"
        elif batch is None or batch.submitted >= point:
            yield f"{number} was not appended yet, and is at {record.position}"
        elif (record.topic_id, record.queue) != (batch.topic, batch.queue):
            yield f"{number} of topic {batch.topic}/{batch.queue} is in {record.topic_id}/{record.queue}"
        elif (record.tag, list(record.keys)) != (tag_of(number) or "", keys_of(number)):
            yield f"{number} has tag {record.tag} and keys {record.keys}"
        elif number in places:
            yield f"{number} is there twice, at {places[number]} and {record.position}"
        else:
            places[number] = record.offset, record.position
        if record.topic_id in living:
            queues[record.topic_id, record.queue].append(record)
    for place, of_queue in queues.items():
        if maxima.get(place) != len(of_queue):
            yield f"{place} has {len(of_queue)} messages, and shows {maxima.get(place)}"
        numbers = [int.from_bytes(record.body[:4], "big") for record in of_queue]
        if numbers != sorted(numbers):
            yield f"{place} has lost its order: {numbers}"
    for place, maximum in maxima.items():
        if maximum and place not in queues:
            yield f"{place} shows {maximum} messages, and has none"
    for batch in truth.batches:
        if batch.submitted < point:
            yield from _unlike_batch(batch, places, end, truth, point)


def _unlike_batch(
    batch: _Batch, places: dict[int, tuple[int, int]], end: int, truth: TopicTruth, point: int
) -> Iterator[str]:
    numbers = [number for number, _size in batch.items]
    there = [places[number] for number in numbers if number in places]
    if there and len(there) < len(numbers):
        yield f"{len(there)} of the {len(numbers)} messages from {numbers[0]} on are there"
    offsets = [offset for offset, _position in there]
    if offsets and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
        yield f"the messages from {numbers[0]} on have offsets {offsets}"
    if not truth.is_confirmed(batch.token, point) or batch.level == "none":
        return
    for number, (offset, position) in zip(numbers, truth.answers[batch.token], strict=True):
        if batch.level == "written" and position > end:
            continue
        if number not in places:
            yield f"{number} was confirmed ({batch.level}) at {offset}, {position}, and is gone"
        elif places[number] != (offset, position):
            yield f"{number} was confirmed at {offset}, {position}, and is at {places[number]}"
