"""What a node finds of its topics after a power failure, compared with what it had confirmed.

As afterwards.py, with the notes of topic_history.py (topic_truth.py). A state of the disk is checked, started as a
topic worker starts it, in this process and as in another life of the machine (topic_life.py), stopped, and started
again. Where there is a compacted topic, or something waits, a third life goes on: what is due comes, and compaction and
retention look. After each:

- a message that was confirmed at `synced` is there, once, at its offset and position, with its bytes, tag and keys;
  so is each that was confirmed at `written` and lies before one that is there. Of a topic with a retention, those below
  the minimum may be gone
- of a batch, all is there, with consecutive offsets, or nothing; nothing is there that was not appended, or comes
  twice; messages are in the order of their appends
- of a compacted topic, the newest of each key is there (topic_newest.py, compacted_files.py)
- half messages and those that come later wait, or came, as was decided (topic_waiting.py)
- topics that were declared are there, those that were deleted are not, and show nothing in ones of their name
- consume queues and key index are what the log says, read by other code (topic_files.py)
- a power failure is no damage: the start says of none, and `warren check` finds no problem, before it and after it
- a second start finds the same as the first
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory, NodeFile
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import Error
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.topics import check as topics_check
from warren.engine.topics.retention_rules import is_limited
from warren.tools.crash.afterwards import node_of
from warren.tools.crash.compacted_files import NewestFile, newest_in
from warren.tools.crash.disk import State, put_down
from warren.tools.crash.topic_content import COMPACTED, is_genuine, keys_of, number_of, tag_of
from warren.tools.crash.topic_files import differences
from warren.tools.crash.topic_life import BOOT, Lived, Row, lived
from warren.tools.crash.topic_log import LATER, OUTCOME, SYSTEM, BadFileError, Logged, begin_of, walked
from warren.tools.crash.topic_newest import unlike_files, unlike_newest, visible
from warren.tools.crash.topic_truth import APPENDED, Batch, TopicTruth
from warren.tools.crash.topic_waiting import Places, Waiting
from warren.workers.cli.check import verify


@dataclass
class _Found:
    """What one life found."""

    records: list[Logged] = field(default_factory=list)  #: of the log
    newest: dict[tuple[int, int], NewestFile] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Position of the last record of the log; -1: it has none."""
        return self.records[-1].position if self.records else -1


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
        first = self._live(node, topics, truth, point)
        second = self._live(node, topics, truth, point)
        wrong += first.wrong
        wrong += [f"second start: {text}" for text in second.wrong if text not in first.wrong]
        if (first.records, first.newest) != (second.records, second.newest):
            wrong.append("a second start finds other messages than the first")
        if any(topic.compacted for topic in topics.values()) or any(one.topic in LATER for one in second.records):
            third = self._live(node, topics, truth, point, before=second)
            wrong += [f"after passes: {text}" for text in third.wrong if text not in first.wrong]
        wrong += [f"check after the start: {text}" for text in self._checked()]
        return wrong

    def _checked(self) -> list[str]:
        """The problems that `warren check` finds, in another life of the machine."""
        with mock.patch.object(topics_check, "boot_bytes", return_value=BOOT):
            return list(verify(NodeDirectory(self.folder)).problems)

    def _live(
        self,
        node: NodeFile,
        topics: Mapping[str, TopicDeclaration],
        truth: TopicTruth,
        point: int,
        *,
        before: _Found | None = None,
    ) -> _Found:
        """A life. `before`: what the last one found; then this one goes on for a while."""
        found = _Found()
        folder = TopicsFolder.of(self.folder)
        try:
            life = lived(self.folder, node, list(topics.values()), passes=before is not None)
            found.wrong += life.wrong
            found.records = list(walked(folder.log))
            found.newest = newest_in(
                folder.compacted, {topic.id: topic.queues for topic in topics.values() if topic.compacted}
            )
            declared = {topic.name: (topic.id, topic.queues) for topic in topics.values()}
            found.wrong += differences(
                folder.path,
                declared,
                node.settings.index_slots,
                behind=True,
                minima={place: row.minimum for place, row in life.rows.items()},
                records=[record for record in found.records if record.topic not in SYSTEM],
            )
            # what comes now lies behind messages that the power took: those were never confirmed at `synced`
            end = found.end if before is None else before.end
            judge = _Judge(found, life, topics, (begin_of(folder.log), end), truth, point)
            found.wrong += judge.unlike(folder.path, node.settings.compaction_tombstone_s * 1000)
        except (Error, OSError, BadFileError) as error:
            found.wrong.append(f"the start fails: {error!r}")
        return found


class _Judge:
    """What a life found, against what was confirmed."""

    def __init__(
        self,
        found: _Found,
        life: Lived,
        topics: Mapping[str, TopicDeclaration],
        log: tuple[int, int],
        truth: TopicTruth,
        point: int,
    ) -> None:
        """`log`: where it begins, and the position of the last record that the first life found."""
        self.found, self.life, self.truth, self.point = found, life, truth, point
        self.topics = {topic.id: topic for topic in topics.values()}
        self.of_log: defaultdict[tuple[int, int], list[Logged]] = defaultdict(list)
        for record in found.records:
            if record.topic not in SYSTEM and record.topic_id in self.topics:
                self.of_log[record.topic_id, record.queue].append(record)
        self.places: dict[int, tuple[int, int]] = {}  # number → (offset, position)
        self.waits = Places(self.places, life.rows, *log)

    def unlike(self, folder: Path, tombstone_ms: float) -> Iterator[str]:
        """What is wrong. `tombstone_ms`: how long tombstones stay. Raises BadFileError."""
        rows, truth, point = self.life.rows, self.truth, self.point
        compacted = {id for id, topic in self.topics.items() if topic.compacted}
        yield from self._unlike_records()
        for place, row in rows.items():
            if place[0] in self.topics:
                yield from self._unlike_row(place, row)
        yield from unlike_files(self.found.newest, rows, compacted, self.of_log, self.life.read, tombstone_ms)
        seen = {
            place: visible(self.found.newest.get(place), row, self.of_log.get(place, ()))
            for place, row in rows.items()
            if place[0] in compacted
        }
        yield from unlike_newest(seen, truth, point, self.waits.end, COMPACTED)
        for batch in truth.batches:
            if batch.submitted < point and batch.kind == APPENDED:
                yield from self._unlike_batch(batch)
        waiting = Waiting(self.found.records)
        yield from waiting.unlike(truth, point, set(self.topics), self.waits)
        yield from waiting.unlike_kept(folder, rows, set(self.topics))

    def _all(self) -> Iterator[Logged]:
        """Records of the log, and those that only files of newest messages have."""
        there = {record.position for record in self.found.records}
        for file in self.found.newest.values():
            yield from (record for record in file.records if record.position not in there)
        yield from (record for record in self.found.records if record.topic not in SYSTEM)

    def _unlike_records(self) -> Iterator[str]:
        truth, places = self.truth, self.places
        order: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for record in self._all():
            number = number_of(record.topic, record.body, record.tag)
            batch = truth.of_number.get(number)
            if not is_genuine(record.topic, number, record.body):
                yield f"{record.topic}/{record.queue}:{record.offset} has a body that nobody appended"
            elif batch is None or batch.submitted >= self.point:
                yield f"{number} was not appended yet, and is at {record.position}"
            elif (record.topic_id, record.queue) != (batch.topic, batch.queue):
                yield f"{number} of topic {batch.topic}/{batch.queue} is in {record.topic_id}/{record.queue}"
            elif dict(batch.items)[number] != len(record.body):
                yield f"{number} has {len(record.body)} bytes, and was appended with {dict(batch.items)[number]}"
            elif (record.tag, list(record.keys)) != (tag_of(record.topic, number) or "", keys_of(record.topic, number)):
                yield f"{number} has tag {record.tag} and keys {record.keys}"
            elif number in places:
                yield f"{number} is there twice, at {places[number]} and {record.position}"
            elif (batch.kind == APPENDED) != (not record.prepared and not record.flags & OUTCOME):
                yield f"{number} came another way than was asked for"
            else:
                places[number] = record.offset, record.position
                if batch.kind == APPENDED:
                    order[record.topic_id, record.queue].append((record.offset, number))
        for place, numbers in order.items():
            in_order = [number for _offset, number in sorted(numbers)]
            if in_order != sorted(in_order):
                yield f"{place} has lost its order: {in_order}"

    def _unlike_row(self, place: tuple[int, int], row: Row) -> Iterator[str]:
        topic, there = self.topics[place[0]], self.of_log.get(place, ())
        end = there[-1].offset + 1 if there else row.minimum
        if row.maximum != end:
            yield f"{place} has {end} messages, and shows {row.maximum}"
        if row.minimum > row.maximum or (row.minimum and not (topic.compacted or is_limited(topic))):
            yield f"{place} begins at {row.minimum}, and shows {row.maximum}"

    def _unlike_batch(self, batch: Batch) -> Iterator[str]:
        numbers = [number for number, _size in batch.items]
        there = {at: self.places[number] for at, number in enumerate(numbers) if number in self.places}
        minimum = self.waits.minimum(batch)
        firsts = {offset - at for at, (offset, _position) in there.items()}
        if len(firsts) > 1:
            yield f"the messages from {numbers[0]} on have offsets {[offset for offset, _position in there.values()]}"
        elif firsts:
            (first,) = firsts
            gone = [at for at in range(len(numbers)) if at not in there and first + at >= minimum]
            if gone:
                yield f"{len(numbers) - len(gone)} of the {len(numbers)} messages from {numbers[0]} on are there"
        if not self.truth.is_confirmed(batch.token, self.point) or batch.level == "none":
            return
        for number, (offset, position) in zip(numbers, self.truth.answers[batch.token], strict=True):
            if batch.level == "written" and position > self.waits.end:
                continue
            if number not in self.places:
                if batch.topic in self.topics and offset < minimum:
                    continue  # it was replaced, or retention took it
                if batch.topic not in self.topics and position < self.waits.begin:
                    continue
                yield f"{number} was confirmed ({batch.level}) at {offset}, {position}, and is gone"
            elif self.places[number] != (offset, position):
                yield f"{number} was confirmed at {offset}, {position}, and is at {self.places[number]}"
