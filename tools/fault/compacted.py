"""The compacted topic of a fault campaign: what its clients do with it, and what follows from what they wrote down.

Each number is a value of one key, or its tombstone, and each key lies in one queue. A client appends so much that a
queue is due for a pass (engine/topics/compaction.py), and waits a moment for it: so calls of passes fail as others do.
In the clients' logs:

    v QUEUE KEY:NUMBER:SIZE…         are about to be appended together; SIZE 0 is a tombstone
    V QUEUE NUMBER:OFFSET…           were confirmed
    y QUEUE KEY:NUMBER:OFFSET…       are all that a reader from offset 0 got
    Y QUEUE KEY[:NUMBER:OFFSET]      is what a look-up gave as the newest of the key, if it gave one

Invariants (what breaks them is a complaint)
  a read and a look-up give, of each key, the newest value that was confirmed, or that anybody saw, or one behind it
  a key is gone only when the newest of it is a tombstone, or when one was announced later that may have come
  what is there was announced, for this key and queue; it lies once, at the same offset ever after, and offsets rise
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import warren
from warren.tools.crash.history import message_of

if TYPE_CHECKING:
    from warren.tools.fault.work import Client

NAME, QUEUES, KEYS = "seats", 2, 12
LETTERS = "vVyY"
NUMBER = "number"  #: a tombstone has no body, so a property says which message it is
#: a pass is due when the log has 1 MiB more than the first message of a queue that is not in its file
DUE_BYTES = 1 << 20
SMALL, LARGE = (100, 2000), 20_000
#: of `LARGE`: less than a quarter of `topic_ring_bytes`
TOGETHER = 3
TOMBSTONES = 0.25
#: of the newest messages that a look-up is asked for: the newest one is the first
LOOKED_UP = 1


# -- what clients do --------------------------------------------------------------------------------------------------


def opened(client: Client) -> warren.Topic:
    """The topic."""
    return client.node.topic(NAME, queues=QUEUES, compacted=True)


def append(
    client: Client, queue: int, sizes: Sequence[int], level: warren.Durability, *, tombstones: float = TOMBSTONES
) -> bool:
    """A batch into a queue; whether it was confirmed. `tombstones`: this share of it."""
    items = client.items(len(sizes), sizes)
    whole = [
        (client.rng.randrange(queue, KEYS, QUEUES), number, 0 if client.rng.random() < tombstones else size)
        for number, size in items
    ]
    client.log.write(f"v {queue} " + " ".join(f"{key}:{number}:{size}" for key, number, size in whole))
    bodies = [message_of(NAME, number, size) if size else b"" for _key, number, size in whole]
    named: dict[str, Any] = {
        "keys": [f"k{key}" for key, _number, _size in whole],
        "properties": [{NUMBER: str(number)} for _key, number, _size in whole],
    }
    options: dict[str, Any] = {"queue": queue, "durability": level, "timeout": client.timeout}
    found = client.attempt("append", lambda: opened(client).append_many(bodies, **named, **options))
    if found is None:
        return False
    placed = zip(whole, found, strict=True)
    client.log.write(f"V {queue} " + " ".join(f"{item[1]}:{position.offset}" for item, position in placed))
    client.ends[NAME, queue] = found[-1].offset + 1
    return True


def renew(client: Client, errors_max: int) -> None:
    """So many values that a queue is due for a pass, and in most cases the other one, too."""
    queues = list(range(QUEUES))
    client.rng.shuffle(queues)
    for queue in queues:
        append(client, queue, SMALL * 3, "synced")
    for _ in range(DUE_BYTES * 5 // 4 // (LARGE * TOGETHER)):
        if client.errors >= errors_max:
            return
        append(client, queues[0], [LARGE] * TOGETHER, "written", tombstones=0)


def _gone(client: Client) -> int | None:
    """How many messages passes have taken so far; None after an error."""
    stats = client.attempt("stats", lambda: opened(client).stats())
    return None if stats is None else stats["appended"] - stats["messages"]


def renew_and_wait(client: Client, seconds: float, errors_max: int) -> bool:
    """So many values that a pass is due, and until it came; False: it did not come in time."""
    before = _gone(client)
    renew(client, errors_max)
    deadline = time.monotonic() + seconds
    while before is not None and client.errors < errors_max:
        gone = _gone(client)
        if gone is None or gone > before:
            break
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def prove_pass(client: Client, seconds: float) -> None:
    """Without a fault a pass comes."""
    if not renew_and_wait(client, seconds, 1):
        client.errors += 1
        client.log.write(f"e compaction no pass within {seconds:g} s: {opened(client).stats()}")


def look(client: Client, ends: dict[tuple[str, int], int]) -> None:
    """All that a reader gets, and what a look-up gives of each key. `ends`: up to where they were confirmed."""
    for queue in range(QUEUES):
        records = client.read_queue(lambda: opened(client), queue, ends.get((NAME, queue), 0), NAME)
        if records is None:
            return
        said = [_said(client, record) for record in records]
        client.log.write(f"y {queue} {' '.join(said)}".rstrip())
        for key in range(queue, KEYS, QUEUES):
            found = client.attempt("find", lambda: opened(client).find(f"k{key}", limit=LOOKED_UP))  # noqa: B023
            if found is None:
                return
            client.log.write(f"Y {queue} {_said(client, found[0]) if found else key}")


def _said(client: Client, record: warren.Record) -> str:
    """KEY:NUMBER:OFFSET; what is wrong with a record by itself is written down at once."""
    key, text = record.key or "", (record.properties or {}).get(NUMBER, "")
    if not (text.isdecimal() and key[1:].isdecimal()):
        client.log.write(f"b compacted: {record.queue}:{record.offset} has key {key!r} and number {text!r}")
        return "0:0:0"
    number, body = int(text), bytes(record.body)
    if body and body != message_of(NAME, number, max(8, len(body))):
        client.log.write(
            f"b compacted: {number} at {record.queue}:{record.offset} has other bytes, {len(body)} of them"
        )
    return f"{key[1:]}:{number}:{record.offset}"


# -- what follows -----------------------------------------------------------------------------------------------------


class _Announced(NamedTuple):
    queue: int
    key: int
    size: int


class _Placed(NamedTuple):
    number: int
    offset: int


class OfCompacted:
    """What follows for the compacted topic."""

    def __init__(self) -> None:
        self._announced: dict[int, _Announced] = {}
        self._offsets: dict[int, int] = {}  #: number → where it lies, for those that were confirmed or seen
        self._numbers: dict[tuple[int, int], int] = {}  #: queue, offset → the number that lies there
        self._newest: dict[int, _Placed] = {}  #: key → the last one that was confirmed or seen
        self._gone: set[int] = set()  #: keys of which a reader saw nothing: what they had does not come back
        self.confirmed = 0

    def take(self, letter: str, words: list[str]) -> Iterator[str]:
        """A line of a client's log: what is wrong with it."""
        queue = int(words[0])
        if letter == "v":
            for word in words[1:]:
                key, number, size = map(int, word.split(":"))
                self._announced[number] = _Announced(queue, key, size)
        elif letter == "V":
            for word in words[1:]:
                number, offset = map(int, word.split(":"))
                self.confirmed += 1
                yield from self._place(queue, number, offset)
                self._rise(self._announced[number].key, _Placed(number, offset))
        elif letter == "y":
            yield from self._look(queue, [_triple(word) for word in words[1:]])
        else:
            found = words[1].split(":")
            newest = [_triple(words[1])] if found[1:] else []
            yield from self._look(queue, newest, only=int(found[0]), how="a look-up")

    def ends(self) -> dict[tuple[str, int], int]:
        """Up to where each queue was confirmed or seen."""
        found: dict[tuple[str, int], int] = {}
        for queue, offset in self._numbers:
            found[NAME, queue] = max(found.get((NAME, queue), 0), offset + 1)
        return found

    def _place(self, queue: int, number: int, offset: int) -> Iterator[str]:
        """One lies there, now and ever after."""
        before = self._offsets.setdefault(number, offset)
        if before != offset:
            yield f"moved: compacted {queue} has {number} at {offset}, and had it at {before}"
        other = self._numbers.setdefault((queue, offset), number)
        if other != number:
            yield f"replaced: compacted {queue} has {number} at {offset}, where {other} was"

    def _rise(self, key: int, placed: _Placed) -> None:
        known = self._newest.get(key)
        if known is None or placed.offset > known.offset:
            self._newest[key] = placed
            self._gone.discard(key)

    def _look(
        self, queue: int, found: list[tuple[int, int, int]], only: int | None = None, how: str = "a reader"
    ) -> Iterator[str]:
        """What somebody was given of a queue, or of one key of it."""
        offsets = [offset for _key, _number, offset in found]
        if offsets != sorted(set(offsets)):
            yield f"order: {how} got the offsets {offsets[:20]} of compacted {queue}"
        newest: dict[int, _Placed] = {}
        for key, number, offset in found:
            announced = self._announced.get(number)
            if announced is None or announced[:2] != (queue, key):
                yield f"invented: {how} got {number} at {offset} as one of key {key} in compacted {queue}"
                continue
            yield from self._place(queue, number, offset)
            newest[key] = _Placed(number, offset)
        for key in range(queue, KEYS, QUEUES) if only is None else [only]:
            yield from self._key(queue, key, newest.get(key), how)

    def _key(self, queue: int, key: int, seen: _Placed | None, how: str) -> Iterator[str]:
        known = self._newest.get(key)
        if seen is not None:
            if known is not None and seen.offset < known.offset:
                yield (
                    f"old: the newest of key {key} in compacted {queue} is {known.number} at {known.offset}, "
                    f"and {how} got {seen.number} at {seen.offset}"
                )
            elif key in self._gone and known is not None and seen.offset == known.offset:
                yield f"back: {how} got {seen.number} of key {key} in compacted {queue}, which was gone before"
            self._rise(key, seen)
        elif known is not None:
            if not self._may_be_gone(key, known):
                yield (
                    f"lost: {how} got nothing of key {key} in compacted {queue}: its newest is {known.number} "
                    f"at {known.offset}"
                )
            self._gone.add(key)

    def _may_be_gone(self, key: int, known: _Placed) -> bool:
        """Its newest is a tombstone, or one that nobody placed may have come behind."""
        if not self._announced[known.number].size:
            return True
        return any(
            announced.key == key and not announced.size and number > known.number and number not in self._offsets
            for number, announced in self._announced.items()
        )


def _triple(word: str) -> tuple[int, int, int]:
    key, number, offset = map(int, word.split(":"))
    return key, number, offset
