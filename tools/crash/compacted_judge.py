"""What has to be there of a compacted topic: logs of its appenders (compacted_actors.py), held against what is read.

Lines of a log, one a message, each written before what it announces or after what it reports; times in seconds of the
machine's monotonic clock:

    i TOKEN LEVEL TIME KIND KEYS              is about to be appended; KIND t: a tombstone, v: a value
    c TOKEN TIME QUEUE OFFSET POSITION ID     was confirmed, there
    v QUEUE OFFSET:TOKEN …                    a reader found these for the first time

The key is all keys of a message together. Messages of a key lie in one queue, so of two the one with the higher offset
is the newer one. What was confirmed at `synced` or `written` is sure to be where it was confirmed.

Judged while all is going on (`wrong_newest`), and at the end (`judge_newest`):

- of a key nothing older is found than the newest that was sure, or was found, before the look began
- a key of which nothing is found has a tombstone that is no older than that, and was there for its time
- what is found was appended, with this key, lies in the queue of its key, and where it was confirmed; no message twice
- messages of an appender are in order; offsets and positions rise
- in the compacted part a key is there once, and nothing of it that a newer one in that part had replaced
- what a reader found at an offset is what others found there
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from warren.tools.crash.topic_messages import key_of, queue_of

#: how exactly the times of logs and of the node are compared
CLOCKS_S = 0.1
#: what was announced so long before something else, and never confirmed, is not appended behind it any more
UNDER_WAY_S = 60.0


@dataclass(slots=True)
class Change:
    """A message that an appender announced: the value of a key, or the tombstone of one."""

    token: str
    key: str
    tombstone: bool
    level: str
    announced_at: float
    #: where it was confirmed
    queue: int = -1
    offset: int = -1
    position: int = -1
    message_id: str = ""

    @property
    def sure(self) -> bool:
        """Whether it was confirmed, and is where it was confirmed."""
        return self.offset >= 0 and self.level != "none"


class Kept(NamedTuple):
    """A record as it was read."""

    offset: int
    position: int
    token: str
    keys: tuple[str, ...]
    tombstone: bool
    message_id: str = ""


class Newest(NamedTuple):
    """The newest of a key, as far as somebody knows: nothing older may be found from then on."""

    offset: int
    token: str


@dataclass
class Changes:
    """What the logs say."""

    by_token: dict[str, Change] = field(default_factory=dict)
    by_key: dict[str, list[Change]] = field(default_factory=dict)
    #: of each key the newest that is sure
    newest: dict[str, Newest] = field(default_factory=dict)
    seen: set[tuple[int, int, str]] = field(default_factory=set)  #: queue, offset, token
    complaints: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    confirmed: int = 0
    right: int = 0
    looks: int = 0

    def take(self, words: Sequence[str]) -> None:
        """One line of a log."""
        kind = words[0]
        if kind == "i":
            token, level, when, what, keys = words[1:]
            change = Change(token, key_of(keys.split(",")), what == "t", level, float(when))
            self.by_token[token] = change
            self.by_key.setdefault(change.key, []).append(change)
        elif kind == "c":
            self._confirmed(*words[1:])
        elif kind == "v":
            places = (word.split(":") for word in words[2:])
            self.seen.update((int(words[1]), int(offset), token) for offset, token in places)
        elif kind == "b":
            self.complaints.append(" ".join(words[1:]))
        elif kind == "e":
            self.errors.append(words[1].rstrip(":"))
        elif kind == "q":
            self.looks += int(words[1])
            self.right += int(words[2])

    def _confirmed(self, token: str, _when: str, queue: str, offset: str, position: str, message_id: str) -> None:
        change = self.by_token[token]
        change.queue, change.offset, change.position = int(queue), int(offset), int(position)
        change.message_id = message_id
        self.confirmed += 1
        if change.sure and change.offset > self.newest.get(change.key, Newest(-1, "")).offset:
            self.newest[change.key] = Newest(change.offset, token)


def wrong_record(record: Kept, queue: int, queues: int, changes: Changes) -> str:
    """What is wrong with a record by itself; "": nothing. `changes`: of logs that were read after it."""
    change = changes.by_token.get(record.token)
    if change is None:
        return f"invented: {record.token} is at {queue}:{record.offset}, and nobody appended it"
    if (key_of(record.keys), record.tombstone) != (change.key, change.tombstone):
        return f"wrong: {record.token} at {queue}:{record.offset} has keys {record.keys}, and {change} was appended"
    if queue != queue_of(record.keys[0], queues):
        return f"strayed: {record.token} is in queue {queue}, and its key {record.keys[0]} belongs into another one"
    there = (queue, record.offset, record.position)
    if change.sure and there != (change.queue, change.offset, change.position):
        return f"moved: {change} was confirmed, and is at {there}"
    return ""


def wrong_newest(
    key: str, found: Newest | None, least: Newest | None, changes: Changes, *, ended: float, tombstone_s: float
) -> str:
    """What is wrong with the newest that a look found of a key; "": nothing.

    `least`: the newest that was known when the look began. `changes`: of logs that were read when it had ended, at
    `ended`. `tombstone_s`: how long tombstones stay.
    """
    if found is not None:
        if least is not None and found.offset < least.offset:
            return f"back: the newest of key {key} was {least.token} at {least.offset}, and now is {found}"
        return ""
    if least is None:
        return ""
    since = changes.by_token[least.token].announced_at - UNDER_WAY_S if least.token in changes.by_token else 0.0
    after = [one for one in changes.by_key.get(key, []) if one.tombstone and _may_follow(one, least, since)]
    if not after:
        return f"lost: key {key} was {least.token} at {least.offset}, was taken away by nobody, and is not there"
    youngest = min(ended - change.announced_at for change in after)
    oldest = max(ended - change.announced_at for change in after)
    if oldest < tombstone_s - CLOCKS_S:
        return f"early: a tombstone of key {key} is not there, {youngest:.3f} to {oldest:.3f} s after it was appended"
    return ""


def _may_follow(change: Change, least: Newest, since: float) -> bool:
    """Whether it may be no older than what was known."""
    return change.offset >= least.offset if change.sure else change.announced_at >= since


@dataclass
class NewestVerdict:
    """What the judge counted."""

    keys: int = 0  #: of which the newest was compared
    gone: int = 0  #: of which nothing is left, because of a tombstone
    there: int = 0
    below: int = 0  #: of `there` those that lie in the compacted part
    unconfirmed_there: int = 0
    wrong: list[str] = field(default_factory=list)


def judge_newest(
    there: Sequence[Sequence[Kept]], changes: Changes, *, ended: float, tombstone_s: float
) -> NewestVerdict:
    """Compare, at the end. `there`: all that is read of each queue; `ended`: when that was."""
    verdict = NewestVerdict()
    found: dict[str, Newest] = {}
    places: dict[str, tuple[int, int]] = {}
    for queue, records in enumerate(there):
        for record in records:
            verdict.wrong += filter(None, [wrong_record(record, queue, len(there), changes)])
            if record.token in places:
                verdict.wrong.append(
                    f"doubled: {record.token} is at {places[record.token]} and {queue}:{record.offset}"
                )
            places[record.token] = queue, record.offset
            found[key_of(record.keys)] = Newest(record.offset, record.token)
            change = changes.by_token.get(record.token)
            verdict.unconfirmed_there += change is None or change.offset < 0
        verdict.there += len(records)
        verdict.wrong += _out_of_order(queue, records)
        below, end = _compacted(records)
        verdict.below += len(below)
        verdict.wrong += _wrong_below(queue, below, end, changes)
    for key in changes.by_key:
        least = changes.newest.get(key)
        text = wrong_newest(key, found.get(key), least, changes, ended=ended, tombstone_s=tombstone_s)
        verdict.wrong += [text] if text else []
        verdict.keys += least is not None or key in found
        verdict.gone += least is not None and key not in found
    verdict.wrong += _unlike_what_was_seen(there, changes)
    return verdict


def _out_of_order(queue: int, records: Sequence[Kept]) -> Iterator[str]:
    before: Kept | None = None
    numbers: dict[str, int] = {}
    for record in records:
        if before is not None and (record.offset <= before.offset or record.position <= before.position):
            yield f"order: {queue}:{record.offset} at {record.position} is behind {before.offset} at {before.position}"
        before = record
        appender, _point, number = record.token.rpartition(".")
        if int(number) <= numbers.get(appender, -1):
            yield f"order: {queue}:{record.offset} is {record.token}, after a later one of its appender"
        numbers[appender] = int(number)


def _compacted(records: Sequence[Kept]) -> tuple[Sequence[Kept], int]:
    """(those below the last offset that is not there, this offset): so far the compacted part surely goes."""
    at = len(records) - 1
    while at > 0 and records[at - 1].offset + 1 == records[at].offset:
        at -= 1
    return (records[:at], records[at].offset - 1) if at > 0 else ([], -1)


def _wrong_below(queue: int, below: Sequence[Kept], end: int, changes: Changes) -> Iterator[str]:
    """`below`: records of the compacted part, in order; `end`: the last offset of it, as far as is sure."""
    keys: dict[str, Kept] = {}
    for record in below:
        key = key_of(record.keys)
        if key in keys:
            yield f"twice: key {key} is in the compacted part at {queue}:{keys[key].offset} and at {record.offset}"
        keys[key] = record
    for key, record in keys.items():
        those = (change for change in changes.by_key.get(key, []) if change.sure)
        newer = [change for change in those if record.offset < change.offset <= end]
        if newer:
            by = max(newer, key=lambda change: change.offset)
            yield f"stale: {record.token} is at {queue}:{record.offset}, and {by.token} replaced it at {by.offset}"


def _unlike_what_was_seen(there: Sequence[Sequence[Kept]], changes: Changes) -> Iterator[str]:
    known = {(queue, record.offset): record.token for queue, records in enumerate(there) for record in records}
    known.update({(one.queue, one.offset): one.token for one in changes.by_token.values() if one.sure})
    for queue, offset, token in changes.seen:
        if known.setdefault((queue, offset), token) != token:
            yield f"changed: a reader had {token} at {queue}:{offset}, where {known[queue, offset]} is"


def unlike_the_log(seen: Iterable[tuple[int, int, str]], log: Sequence[Mapping[int, str]]) -> Iterator[str]:
    """What readers had, against all that the log still has: tokens of each queue, by offset."""
    begins = [min(of_queue, default=0) for of_queue in log]
    for queue, offset, token in seen:
        found = log[queue].get(offset)
        if offset >= begins[queue] and found != token:
            yield f"changed: a reader had {token} at {queue}:{offset}, and the log has {found}"
