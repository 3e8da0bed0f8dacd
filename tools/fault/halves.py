"""The half messages of a fault campaign: what its clients do with them, and what follows from what they wrote down.

A client prepares some, commits a part, rolls a part back and leaves the others; the next one finishes a few of those by
their ids. Whoever shows that all goes answers for the rest (on_check), at the end for all. In the clients' logs:

    h NUMBER QUEUE                   is about to be prepared        H NUMBER   was prepared
    f NUMBER commit|rollback         is about to be finished so, by a call or as an answer of on_check
    F NUMBER committed QUEUE:OFFSET  is what became of it, as Warren says it after a call
    F NUMBER rolled-back
    p NUMBER…                        are all that are pending
    u QUEUE NUMBER:OFFSET…           are all that a queue has, read behind the line before

Invariants (what breaks them is a complaint)
  what was committed, and told so, is there once, where it was said to be, and not pending
  what was rolled back, and told so, is never there, and not pending
  what is there was prepared for this queue, and somebody was about to commit it; it stays at its offset, without holes
  what was prepared, and told so, is pending or there, unless somebody was about to roll it back; a commit may be
  under way, so it is missed at the second look
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import warren
from warren.tools.crash.history import message_of

if TYPE_CHECKING:
    from warren.tools.fault.work import Client

NAME, QUEUES = "orders", 2
LETTERS = "hHfFpu"
SIZES = (60, 900, 5000)
EACH = 6  #: half messages of a client that works
COMMIT, ROLLBACK = "commit", "rollback"
#: of the numbers, in turn; None: left to others
PLANS = (COMMIT, ROLLBACK, None)
COMMITTED, ROLLED_BACK = "committed", "rolled-back"


# -- what clients do --------------------------------------------------------------------------------------------------


def opened(client: Client, *, answers: bool = False) -> warren.Topic:
    """The topic; with `answers` this client answers for what was left."""
    if not answers:
        return client.node.topic(NAME, queues=QUEUES)
    return client.node.topic(NAME, queues=QUEUES, on_check=lambda left: _answer(client, left))


def _answer(client: Client, left: warren.HalfMessage) -> str | None:
    """What becomes of one: some are known at the second question only."""
    number = _number(client, left)
    if number is None or (number % 4 == 0 and left.asked < 2):
        return None
    plan = COMMIT if number % 2 else ROLLBACK
    client.log.write(f"f {number} {plan}")
    return plan


def play(client: Client, errors_max: int) -> None:
    """Prepare some, finish most of them, and some that others left."""
    halves: list[tuple[int, warren.Half]] = []
    for number, size in client.items(EACH, SIZES):
        if client.errors >= errors_max:
            return
        queue = client.rng.randrange(QUEUES)
        client.log.write(f"h {number} {queue}")
        half = client.attempt("prepare", _prepare, client, number, size, queue)
        if half is not None:
            client.log.write(f"H {number}")
            halves.append((number, half))
    client.rng.shuffle(halves)
    for number, half in halves:
        plan = PLANS[number % len(PLANS)]
        if plan is not None:
            finish(client, number, half, plan)
    left = client.attempt("halves", lambda: opened(client).halves())
    for message in (left or [])[:2]:
        if (found := _number(client, message)) is not None and client.errors < errors_max:
            half = client.attempt("half", opened(client).half, message.message_id)
            if half is not None:
                finish(client, found, half, client.rng.choice((COMMIT, ROLLBACK)))


def _prepare(client: Client, number: int, size: int, queue: int) -> warren.Half:
    body = message_of(NAME, number, size)
    return opened(client).prepare(body, key=f"h{number}", queue=queue, timeout=client.timeout)


def finish(client: Client, number: int, half: warren.Half, plan: str) -> None:
    """Commit it, or roll it back, and write down what became of it."""
    client.log.write(f"f {number} {plan}")

    def call() -> str:
        try:
            half.commit(timeout=client.timeout) if plan == COMMIT else half.rollback(timeout=client.timeout)
        except warren.HalfFinished:
            pass  # another one, or an answer, was first: its state says so
        except warren.HalfNotFound as error:
            client.log.write(f"b halves: {number} was prepared, and is not found: {error}")
        return half.state

    state = client.attempt(plan, call)
    if state == "committed" and (position := half.position) is not None:
        client.log.write(f"F {number} {COMMITTED} {position.queue}:{position.offset}")
    elif state == "rolled back":
        client.log.write(f"F {number} {ROLLED_BACK}")


def look(client: Client, ends: dict[tuple[str, int], int]) -> None:
    """What is pending, and all that the topic has. `ends`: up to where it was confirmed."""
    left = client.attempt("halves", lambda: opened(client).halves())
    if left is None:
        return
    numbers = [number for message in left if (number := _number(client, message)) is not None]
    client.log.write(f"p {' '.join(map(str, numbers))}".rstrip())
    for queue in range(QUEUES):
        records = client.read_queue(lambda: opened(client), queue, ends.get((NAME, queue), 0), NAME)
        if records is None:
            return
        placed = [(_number(client, record), record.offset) for record in records]
        client.log.write(f"u {queue} {' '.join(f'{number}:{offset}' for number, offset in placed)}".rstrip())


def answer_all(client: Client, seconds: float) -> None:
    """Until nothing is pending any more: this client answers."""
    deadline = time.monotonic() + seconds
    while not client.errors:
        left = client.attempt("halves", lambda: opened(client).halves())
        if not left:
            return
        if time.monotonic() > deadline:
            client.errors += 1
            client.log.write(f"e halves {len(left)} are pending after {seconds:g} s, asked {left[0].asked} times")
            return
        time.sleep(0.01)


def _number(client: Client, message: warren.HalfMessage | warren.Record) -> int | None:
    """The number in its body; None, and it is written down, when the body is not what it says."""
    body = bytes(message.body)
    number, size = int.from_bytes(body[:4], "big"), len(body)
    if size < 8 or body != message_of(NAME, number, size):
        client.log.write(f"b halves: {message.message_id} has {size} bytes {body[:24].hex()}")
        return None
    return number


# -- what follows -----------------------------------------------------------------------------------------------------


class OfHalves:
    """What follows for the half messages and their topic."""

    def __init__(self) -> None:
        self._queues: dict[int, int] = {}  #: number → queue, of all that were announced
        self._prepared: set[int] = set()
        self._plans: dict[str, set[int]] = {COMMIT: set(), ROLLBACK: set()}
        self._committed: dict[int, tuple[int, int]] = {}  #: number → queue, offset: told or seen
        self._rolled_back: set[int] = set()
        self._pending: set[int] = set()
        self._missed: dict[int, set[int]] = {}  #: queue → numbers that the last look missed

    @property
    def confirmed(self) -> int:
        """How many were prepared, and told so."""
        return len(self._prepared)

    def ends(self) -> dict[tuple[str, int], int]:
        """Up to where each queue has messages."""
        found: dict[tuple[str, int], int] = {}
        for queue, offset in self._committed.values():
            found[NAME, queue] = max(found.get((NAME, queue), 0), offset + 1)
        return found

    def take(self, letter: str, words: list[str]) -> Iterator[str]:
        """A line of a client's log: what is wrong with it."""
        if letter == "h":
            self._queues[int(words[0])] = int(words[1])
        elif letter == "H":
            self._prepared.add(int(words[0]))
        elif letter == "f":
            self._plans[words[1]].add(int(words[0]))
        elif letter == "F":
            yield from self._told(int(words[0]), words[1], words[2:])
        elif letter == "p":
            yield from self._listed([int(word) for word in words if word])
        else:
            yield from self._look(int(words[0]), [_pair(word) for word in words[1:]])

    def _told(self, number: int, what: str, place: list[str]) -> Iterator[str]:
        plan = COMMIT if what == COMMITTED else ROLLBACK
        if number not in self._plans[plan]:
            yield f"invented: half message {number} is {what}, and nobody decided that"
        if what == ROLLED_BACK:
            self._rolled_back.add(number)
        else:
            queue, offset = _pair(place[0])
            before = self._committed.setdefault(number, (queue, offset))
            if before != (queue, offset):
                yield f"moved: half message {number} is committed at {(queue, offset)}, and was at {before}"
        if number in self._rolled_back and number in self._committed:
            yield f"both: half message {number} was committed, and rolled back"

    def _listed(self, numbers: list[int]) -> Iterator[str]:
        self._pending = set(numbers)
        if len(self._pending) < len(numbers):
            yield f"doubled: half messages are listed twice: {sorted(numbers)[:20]}"
        for number in sorted(self._pending):
            if number not in self._queues:
                yield f"invented: half message {number} is pending"
            elif number in self._committed:
                yield f"back: half message {number} was committed, and is pending"
            elif number in self._rolled_back:
                yield f"back: half message {number} was rolled back, and is pending"

    def _look(self, queue: int, found: list[tuple[int, int]]) -> Iterator[str]:
        there = dict(found)
        if len(there) < len(found):
            yield f"doubled: {NAME} {queue} has {len(found) - len(there)} messages twice"
        if [offset for _number, offset in found] != list(range(len(found))):
            yield f"hole: {NAME} {queue} has offsets {[offset for _number, offset in found][:20]}"
        for number, offset in there.items():
            if self._queues.get(number) != queue:
                yield f"invented: {NAME} {queue} has {number}"
            elif number in self._rolled_back:
                yield f"back: half message {number} was rolled back, and {NAME} {queue} has it at {offset}"
            elif number not in self._plans[COMMIT]:
                yield f"early: {NAME} {queue} has half message {number} at {offset}, and nobody committed it"
        for number, (whose, offset) in self._committed.items():
            if whose == queue and there.get(number) != offset:
                yield f"lost: half message {number} was committed at {queue}:{offset}, and is at {there.get(number)}"
        self._committed.update((number, (queue, offset)) for number, offset in there.items())
        yield from self._miss(queue, there)

    def _miss(self, queue: int, there: dict[int, int]) -> Iterator[str]:
        """Those that are neither pending nor there."""
        missed = set()
        for number in self._prepared - self._pending - there.keys() - self._rolled_back - self._committed.keys():
            if self._queues[number] != queue:
                continue
            if number not in self._plans[ROLLBACK]:
                missed.add(number)
            elif number not in self._plans[COMMIT]:
                self._rolled_back.add(number)
        again = missed & self._missed.get(queue, set())
        yield from (
            f"lost: half message {number} was prepared, and is neither pending nor there" for number in sorted(again)
        )
        self._missed[queue] = missed


def _pair(word: str) -> tuple[int, int]:
    first, second = word.split(":")
    return int(first), int(second)
