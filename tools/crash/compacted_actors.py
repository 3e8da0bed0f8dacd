"""The processes of a kill campaign that use a compacted topic: who appends to it, and who reads it meanwhile.

Roles of topic_actors.py; lines of their logs: compacted_judge.py, and `q LOOKS COUNT`: so many looks, so many records
that were right. Keys are few, so each has many values, and passes always have something to replace. Some messages have
a second key: the two together are another key. A tombstone has no body, so its token is a property, as that of a value.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import warren
from warren.tools.crash.actors import LATE_S, OPERATION_TIMEOUT_S, attached, complain, stopping
from warren.tools.crash.compacted_judge import Changes, Kept, Newest, wrong_newest, wrong_record
from warren.tools.crash.logs import Log, Tails
from warren.tools.crash.topic_messages import Message, body_of, key_of, parsed, queue_of

TOPIC, QUEUES = "kill-newest", 3
KEYS_N = 36
#: of these each second value is
HOT_N = 4
SECOND_KEY = "pair"
#: setting of the node: how long a tombstone stays when nobody finds what it took away
TOMBSTONE_S = 2.0
LEVELS: tuple[warren.Durability, ...] = ("synced", "synced", "written", "none")
APPENDER_PAUSE_S = 0.05
READER_PAUSE_S = 0.1
FIND_MAX = 1 << 16


def kept(record: warren.Record) -> Kept:
    """What a record of the topic is. Raises ValueError: it is not what its appender made of it."""
    token = record.properties.get("token", "")
    message = Message(token, TOPIC, "", tuple(record.keys))
    if "." not in token or not record.keys or (record.body and parsed(record.body) != message):
        raise ValueError(f"{record.queue}:{record.offset} has keys {record.keys}, {token!r}, {record.body[:80]!r}")
    at, position = record.offset, record.physical_offset
    return Kept(at, position, token, message.keys, not record.body, record.message_id)


def read_on(topic: warren.Topic, queue: int, at: int = 0, step: int = 500) -> Iterator[Kept]:
    """All records of a queue from an offset on, to the end that it has then. Raises ValueError: what is read is wrong,
    or a read gives what is not behind the one before; errors of `read`.
    """
    while True:
        found = topic.read(queue, at, max=step, max_bytes=4 << 20)
        for record in found.records:
            if record.queue != queue or record.offset < at:
                raise ValueError(f"order: {record.queue}:{record.offset} was read behind {queue}:{at}")
            yield kept(record)
            at = record.offset + 1
        if found.next_offset < at:
            raise ValueError(f"order: {queue}:{at - 1} was read, and next is {found.next_offset}")
        if not found.records and found.next_offset == at < found.max_offset:
            raise ValueError(
                f"hole: {queue}:{at} of {found.max_offset} says {found.status.name}, and to ask there again"
            )
        at = found.next_offset
        if at >= found.max_offset:
            return


# -- who appends ------------------------------------------------------------------------------------------------------


class Appender:
    """One attachment of an appender."""

    def __init__(self, node: warren.Node, log: Log, rng: random.Random) -> None:
        self.log, self.rng = log, rng
        self.who = f"{os.getpid()}-{time.monotonic_ns() & 0xFFFFFFFF:x}"
        self.number = 0
        self.topic = node.topic(TOPIC)

    def turn(self) -> None:
        """Messages together, or one behind the other without waiting in between."""
        level = self.rng.choice(LEVELS)
        messages = [self._chosen() for _ in range(self.rng.choice((1, 1, 3, 20)))]
        now = f"{time.monotonic():.3f}"
        self.log.write(
            *(
                f"i {message.token} {level} {now} {'v' if body else 't'} {','.join(message.keys)}"
                for message, body in messages
            )
        )
        try:
            if self.rng.random() < 0.5:
                self._say(messages, self._together(messages, level))
            else:
                confirms = [self._submitted(message, body, level) for message, body in messages]
                self._say(messages, [confirm.result(OPERATION_TIMEOUT_S) for confirm in confirms])
        except warren.Error as error:
            self.log.error(error)  # they may be there or not
            if isinstance(error, warren.ClosedError):
                raise

    def _chosen(self) -> tuple[Message, bytes]:
        number = self.rng.randrange(HOT_N if self.rng.random() < 0.5 else KEYS_N)
        keys = (f"n{number}", SECOND_KEY) if self.rng.random() < 0.1 else (f"n{number}",)
        message = Message(f"{self.who}.{self.number}", TOPIC, "", keys)
        self.number += 1
        return message, b"" if self.rng.random() < 0.15 else body_of(message)

    def _together(
        self, messages: Sequence[tuple[Message, bytes]], level: warren.Durability
    ) -> Sequence[warren.Position]:
        return self.topic.append_many(
            [body for _message, body in messages],
            [list(message.keys) for message, _body in messages],
            properties=[{"token": message.token} for message, _body in messages],
            durability=level,
            timeout=OPERATION_TIMEOUT_S,
        )

    def _submitted(self, message: Message, body: bytes, level: warren.Durability) -> warren.Confirm[warren.Position]:
        return self.topic.append(
            body,
            list(message.keys),
            properties={"token": message.token},
            durability=level,
            wait=False,
            timeout=OPERATION_TIMEOUT_S,
        )

    def _say(self, messages: Sequence[tuple[Message, bytes]], positions: Sequence[warren.Position]) -> None:
        now = f"{time.monotonic():.3f}"
        self.log.write(
            *(
                f"c {message.token} {now} {at.queue} {at.offset} {at.physical_offset} {at.message_id or '-'}"
                for (message, _body), at in zip(messages, positions, strict=True)
            )
        )


def appender(directory: str, log: Log, rng: random.Random) -> None:
    """Append values and tombstones, and log what was confirmed, and where it lies."""

    def work(node: warren.Node) -> None:
        made = Appender(node, log, rng)
        while not stopping():
            made.turn()
            time.sleep(rng.random() * APPENDER_PAUSE_S)

    attached(directory, log, "kill-newest-appender", work)


# -- who reads --------------------------------------------------------------------------------------------------------


class Reader:
    """A reader. What it has found of a key never goes back for it, in whatever way it looks."""

    def __init__(self, node: warren.Node, log: Log, rng: random.Random, tails: Tails) -> None:
        self.log, self.rng, self.tails = log, rng, tails
        self.changes = Changes()
        self.found: dict[str, Newest] = {}
        self.highest = [0] * QUEUES
        self.noted: dict[tuple[int, int], str] = {}
        self.fresh: dict[int, list[str]] = {}
        self.looks = self.right = 0
        self.attach(node)

    def attach(self, node: warren.Node) -> None:
        """Go on with this attachment."""
        self.node, self.topic = node, node.topic(TOPIC)

    def turn(self) -> None:
        """One look."""
        looks = ((4, self._table), (6, self._key), (3, self._id), (2, self._anywhere), (1, self._as_a_reader))
        look = self.rng.choices([look for _weight, look in looks], [weight for weight, _look in looks])[0]
        began = time.monotonic()
        try:
            wrong = look()
        except (ValueError, warren.CorruptRecord, warren.DataLoss, warren.TopicNotFound, warren.UsageError) as error:
            wrong = [f"{look.__name__}: {type(error).__name__}: {error}"]
        took = time.monotonic() - began
        self.looks += 1
        if self.fresh:
            self.log.write(*(f"v {queue} {' '.join(places)}" for queue, places in self.fresh.items()))
            self.fresh.clear()
        for text in wrong:
            complain(self.node, self.log, f"{TOPIC}: {text}", took)
        if self.looks >= 20:
            self.log.write(f"q {self.looks} {self.right}")
            self.looks = self.right = 0

    def _hear(self) -> None:
        """Take up what appenders have written down by now."""
        for words in self.tails.lines():
            self.changes.take(words)

    def _least(self) -> dict[str, Newest]:
        """Of each key what nothing older may be found than, from now on."""
        self._hear()
        least = dict(self.changes.newest)
        for key, one in self.found.items():
            if key not in least or one.offset > least[key].offset:
                least[key] = one
        return least

    def _checked(self, queue: int, record: Kept) -> list[str]:
        before = self.noted.get((queue, record.offset))
        if before is None:
            self.noted[queue, record.offset] = record.token
            self.fresh.setdefault(queue, []).append(f"{record.offset}:{record.token}")
        elif before != record.token:
            return [f"changed: {before} was at {queue}:{record.offset}, and now is {record.token}"]
        if text := wrong_record(record, queue, QUEUES, self.changes):
            return [text]
        self.right += 1
        return []

    def _compared(self, key: str, found: Newest | None, least: Newest | None, ended: float) -> list[str]:
        text = wrong_newest(key, found, least, self.changes, ended=ended, tombstone_s=TOMBSTONE_S)
        if not text and found is not None:
            self.found[key] = found
        return [text] if text else []

    def _all(self, queue: int, least: dict[str, Newest], records: Sequence[Kept]) -> list[str]:
        """All of a queue was read: the newest of each key is among it."""
        ended = time.monotonic()
        self._hear()
        wrong = [text for record in records for text in self._checked(queue, record)]
        newest = {key_of(record.keys): Newest(record.offset, record.token) for record in records}
        for key in self.changes.by_key:
            if self._queue(key) == queue:
                wrong += self._compared(key, newest.get(key), least.get(key), ended)
        return wrong

    def _table(self) -> list[str]:
        """A whole queue, by the loop of the guide."""
        queue = self.rng.randrange(QUEUES)
        least = self._least()
        low, high = self.topic.offsets(queue)
        wrong = self._higher(queue, high)
        records = list(read_on(self.topic, queue, self.rng.choice((0, 0, low)), self.rng.choice((7, 50, 500))))
        return wrong + self._all(queue, least, records)

    def _higher(self, queue: int, high: int) -> list[str]:
        before, self.highest[queue] = self.highest[queue], max(high, self.highest[queue])
        return [f"back: queue {queue} ended at {before}, and now at {high}"] if high < before else []

    def _key(self) -> list[str]:
        """The newest of a key, by a look-up; or all messages that have it, the newest first."""
        least = self._least()
        if not least:
            return []
        key = self.rng.choice(sorted(least))
        keys = tuple(key.split(" "))
        limit = self.rng.choice((1, FIND_MAX)) if len(keys) == 1 else FIND_MAX
        found = self.topic.find(keys[0], limit=limit)
        ended = time.monotonic()
        records = [kept(record) for record in found]
        self._hear()
        wrong = [text for at, record in zip(found, records, strict=True) for text in self._checked(at.queue, record)]
        offsets = [record.offset for record in records]
        if offsets != sorted(set(offsets), reverse=True):
            wrong.append(f"order: key {keys[0]} leads to {offsets[:20]}, which are not the newest first, each once")
        if limit == 1 and records and records[0].keys != keys:
            return wrong  # the newest of the two keys
        newest = next((Newest(one.offset, one.token) for one in records if one.keys == keys), None)
        return wrong + self._compared(key, newest, least.get(key), ended)

    def _id(self) -> list[str]:
        """The newest of a key by its id: it is there as long as no newer one may be."""
        self._hear()
        sure = [self.changes.by_token[one.token] for one in self.changes.newest.values()]
        if not sure:
            return []
        change = self.rng.choice(sure)
        found = self.topic.find_id(change.message_id)
        ended = time.monotonic()
        self._hear()
        if found is not None:
            record = kept(found)
            if record.token != change.token:
                return [f"wrong: the id of {change} leads to {record}"]
            return self._checked(found.queue, record)
        later = [one for one in self.changes.by_key[change.key] if not one.sure or one.offset > change.offset]
        taken = change.tombstone and ended - change.announced_at >= TOMBSTONE_S
        return [] if later or taken else [f"lost: the id of {change}, which nothing has replaced, leads to nothing"]

    def _anywhere(self) -> list[str]:
        """Reading begins at any offset, and finds what is there behind it; a time leads to no later message."""
        queue = self.rng.randrange(QUEUES)
        low, high = self.topic.offsets(queue)
        at = self.rng.randint(0, high)
        found = self.topic.read(queue, at, max=20)
        records = [kept(record) for record in found.records]
        self._hear()
        wrong = self._higher(queue, found.max_offset)
        wrong += [text for record in records for text in self._checked(queue, record)]
        offsets = [record.offset for record in records]
        if offsets != sorted(set(offsets)) or any(not at <= offset < found.next_offset for offset in offsets):
            wrong.append(f"order: {queue} from {at} on reads {offsets}, and goes on at {found.next_offset}")
        if records:
            first = self.topic.offset_at(queue, found.records[-1].timestamp)
            if first is None or first > self._replaced_to(queue, offsets[-1]):
                wrong.append(f"the time of {queue}:{offsets[-1]} leads to {first}")
        return wrong + ([f"back: queue {queue} begins at {low} and ends at {high}"] if low > high else [])

    def _replaced_to(self, queue: int, offset: int) -> int:
        """Where a time may lead whose message was at an offset: behind it when it was replaced meanwhile."""
        there = self.topic.read(queue, offset, max=1)
        return there.records[0].offset if there.records else there.next_offset

    def _as_a_reader(self) -> list[str]:
        """A reader without a group: holes are no loss, and it comes to the newest of each key."""
        least = self._least()
        ends = [self.topic.offsets(queue)[1] for queue in range(QUEUES)]
        at = [0] * QUEUES
        records: list[list[Kept]] = [[] for _ in range(QUEUES)]
        wrong: list[str] = []
        with self.topic.reader(start="earliest") as reader:
            deadline = time.monotonic() + LATE_S
            while time.monotonic() < deadline and not stopping():
                handed = reader.get_many(max=200, timeout=0.1)
                for record in handed:
                    if record.offset < at[record.queue]:
                        wrong.append(
                            f"order: a reader is given {record.queue}:{record.offset} after {at[record.queue]}"
                        )
                    at[record.queue] = record.offset + 1
                    records[record.queue].append(kept(record))
                if not handed:
                    break
            if reader.skipped:
                wrong.append(f"lost: a reader skipped {reader.skipped} messages")
        ended = time.monotonic()
        self._hear()
        for queue, those in enumerate(records):
            wrong += [text for record in those for text in self._checked(queue, record)]
            newest = {key_of(record.keys): Newest(record.offset, record.token) for record in those}
            for key, one in least.items():
                changes = self.changes.by_key[key]
                later = any(not change.sure or change.offset >= at[queue] for change in changes)
                if self._queue(key) == queue and at[queue] >= ends[queue] and not later:
                    text = wrong_newest(key, newest.get(key), one, self.changes, ended=ended, tombstone_s=TOMBSTONE_S)
                    wrong += [text] if text else []
        return wrong

    @staticmethod
    def _queue(key: str) -> int:
        return queue_of(key.split(" ")[0], QUEUES)


def reader(directory: str, log: Log, rng: random.Random, path: Path) -> None:
    """Read the topic in all ways that there are, while it is compacted."""
    tails = Tails(path.parent, "newest-appender-*.log")
    made: Reader | None = None

    def work(node: warren.Node) -> None:
        nonlocal made
        if made is None:
            made = Reader(node, log, rng, tails)
        made.attach(node)
        while not stopping():
            made.turn()
            time.sleep(rng.random() * READER_PAUSE_S)

    attached(directory, log, "kill-newest-reader", work)
