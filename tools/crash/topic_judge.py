"""What became of a campaign's messages of topics: the logs of its actors (topic_actors.py), held against what is there.

`there` is all that is read at the end: of each topic, of each queue, the records by offset.

- what was confirmed at `written` or `synced` is there once, where its appender was told; at `none` it is there once
- of a batch, all that belongs to one queue is there, with consecutive offsets, or nothing of it, confirmed or not
- a key's queue is that of its hash; an appender's messages are in order in each queue; times do not step back
- nothing is there twice, nothing that nobody appended
- what a reader was given is still there, the same at the same offsets
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from warren.tools.crash.topic_actors import crc_of
from warren.tools.crash.topic_messages import Message


class There(NamedTuple):
    """A record at its offset."""

    position: int
    stored: int  #: milliseconds since 1970
    message: Message
    message_id: str = ""


class Place(NamedTuple):
    """Where a message is."""

    topic: str
    queue: int
    offset: int
    position: int


Topics = dict[str, list[list[There]]]


@dataclass(slots=True)
class Batch:
    """What was appended together."""

    who: str
    first: int
    level: str
    topic: str
    plan: str  #: the queue of each, a digit; t: all of these in one, whose turn it was; -: in any
    positions: list[tuple[int, int, int]] | None = None  #: queue, offset, position of each, when it was confirmed
    confirmed_at: float = 0.0

    def tokens(self) -> Iterator[str]:
        """Of its messages."""
        return (f"{self.who}.{self.first + n}" for n in range(len(self.plan)))


@dataclass
class Logs:
    """What the actors' logs say."""

    batches: dict[tuple[str, int], Batch] = field(default_factory=dict)
    #: topic, queue, offset, count, CRC
    seen: set[tuple[str, int, int, int, int]] = field(default_factory=set)
    #: of the group: (topic, queue) → ranges that its members were handed out, and up to where it has committed
    handed: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    right: int = 0
    rounds: int = 0

    def take(self, words: Sequence[str]) -> None:
        """One line of a log."""
        kind = words[0]
        if kind == "i":
            who, first, level, topic, plan = words[1:]
            self.batches[who, int(first)] = Batch(who, int(first), level, topic, plan)
        elif kind == "c":
            who, first, _level, _topic, when, *places = words[1:]
            batch = self.batches[who, int(first)]
            batch.confirmed_at = float(when)
            found = [place.split(":") for place in places]
            batch.positions = [(int(queue), int(offset), int(position)) for queue, offset, position in found]
        elif kind in ("r", "g"):
            topic, queue, offset, count, crc = words[1], *map(int, words[2:])
            self.seen.add((topic, queue, offset, count, crc))
            if kind == "g":
                self.handed.setdefault((topic, queue), []).append((offset, offset + count))
        elif kind == "k":
            place = words[1], int(words[2])
            self.committed[place] = max(int(words[3]), self.committed.get(place, 0))
        elif kind == "b":
            self.complaints.append(" ".join(words[1:]))
        elif kind == "e":
            self.errors.append(words[1].rstrip(":"))
        elif kind == "q":
            self.right += int(words[1])
        elif kind == "m":
            self.rounds += int(words[2])


@dataclass
class Verdict:
    """What the judge counted."""

    confirmed: int = 0
    unconfirmed_there: int = 0
    moved: int = 0  #: confirmed with `none`, and not where it was said to be
    excused: int = 0
    wrong: list[str] = field(default_factory=list)


def judge(there: Topics, logs: Logs, excused: Callable[[float], bool]) -> Verdict:
    """Compare. `excused`: whether what was confirmed with `none` at a time may have gone with its memory."""
    verdict = Verdict()
    places: dict[str, Place] = {}
    for topic, queues in there.items():
        for queue, records in enumerate(queues):
            for offset, record in enumerate(records):
                token = record.message.token
                if token in places:
                    verdict.wrong.append(f"doubled: {token} is at {places[token]} and in {topic}/{queue}:{offset}")
                places[token] = Place(topic, queue, offset, record.position)
    announced = {token for batch in logs.batches.values() for token in batch.tokens()}
    verdict.wrong += [f"invented: {token} is there, and nobody appended it" for token in places.keys() - announced]
    for batch in logs.batches.values():
        _judge_batch(batch, places, excused, verdict)
    verdict.wrong += _out_of_order(there)
    verdict.wrong += _unlike_what_was_seen(there, logs.seen)
    return verdict


def judge_group(logs: Logs, topic: str, committed: dict[int, int]) -> Iterator[str]:
    """What a group has committed, by queue, against what its members were told, and were handed out."""
    for (name, queue), told in logs.committed.items():
        if name == topic and committed.get(queue, 0) < told:
            now = committed.get(queue)
            yield f"back: the group was told that {told} of queue {queue} is committed, and it is {now}"
    for queue, end in committed.items():
        at = 0
        for first, behind in sorted(logs.handed.get((topic, queue), [])):
            if first > at:
                break
            at = max(at, behind)
        if at < end:
            yield f"skipped: the group has committed {end} of queue {queue}, and {at} was handed out to nobody"


def _judge_batch(batch: Batch, places: dict[str, Place], excused: Callable[[float], bool], verdict: Verdict) -> None:
    tokens = list(batch.tokens())
    found = [places.get(token) for token in tokens]
    if batch.positions is None:
        verdict.unconfirmed_there += sum(place is not None for place in found)
    else:
        verdict.confirmed += len(tokens)
        _judge_confirmed(batch, tokens, found, excused, verdict)
    name = f"batch {batch.who}.{batch.first}"
    by_queue: dict[int, list[int]] = {}
    by_plan: dict[str, list[bool]] = {}
    turns = {place.queue for planned, place in zip(batch.plan, found, strict=True) if place and planned == "t"}
    for token, planned, place in zip(tokens, batch.plan, found, strict=True):
        by_plan.setdefault(planned, []).append(place is not None)
        if place is None:
            continue
        by_queue.setdefault(place.queue, []).append(place.offset)
        if place.topic != batch.topic or planned not in ("t", "-", str(place.queue)) or len(turns) > 1:
            verdict.wrong.append(f"strayed: {token} is at {place}, and belongs into {batch.topic}/{planned}")
    for queue, offsets in by_queue.items():
        if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            verdict.wrong.append(f"torn: {name} has offsets {offsets[:9]} in {batch.topic}/{queue}")
    for planned, those in by_plan.items():
        if planned != "-" and any(those) and not all(those):
            there = f"{sum(those)} of {len(those)} messages for queue {planned}"
            verdict.wrong.append(f"torn: {there} of {name} are there")


def _judge_confirmed(
    batch: Batch,
    tokens: Sequence[str],
    found: Sequence[Place | None],
    excused: Callable[[float], bool],
    verdict: Verdict,
) -> None:
    assert batch.positions is not None
    for token, place, said in zip(tokens, found, batch.positions, strict=True):
        if place is None:
            if batch.level == "none" and excused(batch.confirmed_at):
                verdict.excused += 1
            else:
                verdict.wrong.append(
                    f"lost: {token} was confirmed ({batch.level}) at {batch.confirmed_at:.3f} in {batch.topic}, "
                    f"{said}, and is not there"
                )
        elif (place.queue, place.offset, place.position) != said:
            if batch.level == "none":
                verdict.moved += 1
            else:
                verdict.wrong.append(f"moved: {token} was confirmed ({batch.level}) at {said}, and is at {place}")


def _out_of_order(there: Topics) -> Iterator[str]:
    everything = []
    for topic, queues in there.items():
        for queue, records in enumerate(queues):
            newest: dict[str, int] = {}
            position = -1
            for offset, record in enumerate(records):
                message = record.message
                if message.number <= newest.get(message.appender, -1):
                    yield f"order: {topic}/{queue}:{offset} is {message.token}, after a later one of its appender"
                newest[message.appender] = message.number
                if record.position <= position:
                    yield f"order: {topic}/{queue}:{offset} lies at {record.position}, before the one before"
                position = record.position
            everything += records
    everything.sort()
    for before, after in pairwise(everything):
        if before.position == after.position:
            yield f"doubled: two offsets lead to position {after.position}"
        if before.stored > after.stored:
            yield f"order: the time at {after.position} is {after.stored}, and {before.stored} before it"


def _unlike_what_was_seen(there: Topics, seen: Iterable[tuple[str, int, int, int, int]]) -> Iterator[str]:
    for topic, queue, offset, count, crc in seen:
        records = there[topic][queue][offset : offset + count]
        if crc_of((record.position, record.message.token) for record in records) != crc:
            yield f"changed: {count} messages of {topic}/{queue} from {offset} on are not what a reader had"
