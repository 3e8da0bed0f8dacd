"""The processes of a kill campaign that use half messages: who prepares and finishes them, who answers for those that
were left behind, and who reads, and finishes those of others.

Roles of topic_actors.py; lines of their logs: half_judge.py, and `q COUNT`: so many answers were right. There are two
topics: for one somebody answers, for the other nobody does, so what is left there stays pending. What an answer is
follows from the token; some are never known, and are put aside in the end. A message's only key is its token.
"""

from __future__ import annotations

import os
import random
import time
import zlib
from pathlib import Path

import warren
from warren.tools.crash.actors import OPERATION_TIMEOUT_S, attached, complain, stopping
from warren.tools.crash.half_judge import COMMIT, ROLLBACK, UNKNOWN, Halves
from warren.tools.crash.logs import Log, Tails
from warren.tools.crash.topic_messages import Message, body_of, parsed

ANSWERED, ALONE = "kill-half", "kill-half-alone"
#: topics, and their queues
TOPICS = {ANSWERED: 2, ALONE: 1}
#: settings of the node
AFTER_S, INTERVAL_S, CHECKS_MAX = 1.0, 1.0, 4
PREPARER_PAUSE_S = 0.1
READER_PAUSE_S = 0.2
LISTED_MAX = 1 << 20
#: so often a call that was not answered is made again
TRIES = 3


def answer_of(token: str, asked: int) -> str:
    """What becomes of a half message that was left behind, when it is asked for the `asked`-th time."""
    pick = zlib.crc32(token.encode()) % 8
    if pick < 3:
        return COMMIT
    if pick < 6:
        return ROLLBACK
    return COMMIT if pick == 6 and asked > 1 else UNKNOWN


def finish(half: warren.Half, token: str, commit: bool, log: Log) -> None:
    """Commit it, or roll it back; who was not answered asks again. Raises what is neither a loss nor the other way."""
    log.write(f"{'C' if commit else 'R'} {token}")
    for _ in range(TRIES):
        try:
            if commit:
                half.commit(timeout=OPERATION_TIMEOUT_S)
            else:
                half.rollback(timeout=OPERATION_TIMEOUT_S)
        except warren.HalfFinished:
            pass  # somebody else was faster: `position` says what it is
        except (warren.TimedOut, warren.PeerLost) as error:
            log.error(error)
            continue
        except warren.HalfNotFound as error:
            log.write(f"b {time.monotonic():.3f} lost: {token} was prepared as {half.message_id}: {error}")
            return
        at = half.position
        log.write(f"- {token}" if at is None else f"+ {token} {at.queue} {at.offset} {at.physical_offset}")
        return


# -- who prepares -----------------------------------------------------------------------------------------------------


class Preparer:
    """One attachment of a preparer. It finishes what it prepares, later or at once, or leaves it."""

    def __init__(self, node: warren.Node, log: Log, rng: random.Random) -> None:
        self.log, self.rng = log, rng
        self.who = f"{os.getpid()}-{time.monotonic_ns() & 0xFFFFFFFF:x}"
        self.number = 0
        self.topics = {name: node.topic(name) for name in TOPICS}
        #: prepared, and not decided yet
        self.open: list[tuple[str, warren.Half]] = []

    def turn(self) -> None:
        """Prepare one; finish one that is open."""
        try:
            for _ in range(self.rng.choice((1, 1, 1, 5))):
                self._prepare()
            while self.open and self.rng.random() < 0.75:
                token, half = self.open.pop(self.rng.randrange(len(self.open)))
                if self.rng.random() < 0.75:  # the others are left behind
                    finish(half, token, self.rng.random() < 0.65, self.log)
        except warren.Error as error:
            self.log.error(error)
            if isinstance(error, warren.ClosedError):
                raise

    def _prepare(self) -> None:
        name = self.rng.choice(list(TOPICS))
        token = f"{self.who}.{self.number}"
        self.number += 1
        queue = self.rng.choice((None, self.rng.randrange(TOPICS[name])))
        self.log.write(f"p {token} {name} {time.monotonic():.3f}")
        body = body_of(Message(token, name, "", (token,)))
        half = self.topics[name].prepare(body, token, queue=queue, timeout=OPERATION_TIMEOUT_S)
        self.log.write(f"d {token} {time.monotonic():.3f} {half.message_id}")
        self.open.append((token, half))


def preparer(directory: str, log: Log, rng: random.Random) -> None:
    """Prepare, commit, roll back and leave half messages."""

    def work(node: warren.Node) -> None:
        made = Preparer(node, log, rng)
        while not stopping():
            made.turn()
            time.sleep(rng.random() * PREPARER_PAUSE_S)

    attached(directory, log, "kill-half-preparer", work)


# -- who answers ------------------------------------------------------------------------------------------------------


def checker(directory: str, log: Log, rng: random.Random) -> None:
    """Answer for those that were left behind."""

    def check(left: warren.HalfMessage) -> str:
        message = parsed(left.body)
        if message is None or message.topic != ANSWERED or message.keys != left.keys:
            log.write(f"b {time.monotonic():.3f} wrong: asked for {left.message_id}: {left.keys} {left.body[:80]!r}")
            return UNKNOWN
        answer = answer_of(message.token, left.asked)
        log.write(f"a {message.token} {left.asked} {answer}")
        return answer

    def work(node: warren.Node) -> None:
        node.topic(ANSWERED, on_check=check)
        end = time.monotonic() + rng.random() * 20
        while not stopping() and time.monotonic() < end:  # then it leaves, and comes again
            log.write("q 0")
            time.sleep(0.2)

    attached(directory, log, "kill-half-checker", work)


# -- who reads --------------------------------------------------------------------------------------------------------


class Reader:
    """A reader of what was committed, and of what is pending."""

    def __init__(self, node: warren.Node, log: Log, rng: random.Random, tails: Tails) -> None:
        self.log, self.rng, self.tails = log, rng, tails
        self.halves = Halves()
        self.at: dict[tuple[str, int], int] = {}
        self.right = 0
        self.attach(node)

    def attach(self, node: warren.Node) -> None:
        """Go on with this attachment."""
        self.node, self.topics = node, {name: node.topic(name) for name in TOPICS}

    def turn(self) -> None:
        """One look."""
        looks = ((6, self._go_on), (4, self._told), (3, self._listed), (2, self._finish))
        look = self.rng.choices([look for _weight, look in looks], [weight for weight, _look in looks])[0]
        began = time.monotonic()
        try:
            wrong = look()
        except (warren.CorruptRecord, warren.DataLoss, warren.TopicNotFound, warren.UsageError) as error:
            wrong = [f"{look.__name__}: {type(error).__name__}: {error}"]
        took = time.monotonic() - began
        self.right += not wrong
        for text in wrong:
            complain(self.node, self.log, text, took)
        if self.right >= 20:
            self.log.write(f"q {self.right}")
            self.right = 0

    def _hear(self) -> None:
        """Take up what others have written down by now."""
        for words in self.tails.lines():
            self.halves.take(words)

    def _go_on(self) -> list[str]:
        """Read on: nothing is there that nobody wanted to commit, or that somebody has rolled back."""
        name = self.rng.choice(list(TOPICS))
        queue = self.rng.randrange(TOPICS[name])
        at = self.at.get((name, queue), 0)
        found = self.topics[name].read(queue, at, max=100)
        self._hear()
        wrong, places = [], []
        for number, record in enumerate(found.records):
            message = parsed(record.body)
            if message is None or (message.topic, message.keys) != (name, record.keys) or record.offset != at + number:
                return [f"wrong: {name}/{queue}:{at + number} is {record.offset}, {record.keys}, {record.body[:80]!r}"]
            half = self.halves.by_token.get(message.token)
            if half is None or not half.wanted or half.rolled_back:
                wrong.append(f"undecided: {name}/{queue}:{record.offset} has {message.token}, of which is known {half}")
            places.append(f"{record.offset}:{message.token}")
        if places:
            self.log.write(f"s {name} {queue} {' '.join(places)}")
        self.at[name, queue] = at + len(places)
        return wrong

    def _told(self) -> list[str]:
        """What somebody was told, in every way that there is to look."""
        self._hear()
        told = [half for half in self.halves.by_token.values() if half.committed or half.rolled_back]
        if not told:
            return []
        half = self.rng.choice(told[-20:] if self.rng.random() < 0.7 else told)
        topic = self.topics[half.topic]
        found = {(one.queue, one.offset, one.physical_offset) for one in topic.find(half.token)}
        if found != half.committed:
            return [f"unseen: {half} is found at {sorted(found)}"]
        for queue, offset, position in half.committed:
            read = topic.read(queue, offset, max=1).records
            message = parsed(read[0].body) if read else None
            if message is None or (message.token, read[0].physical_offset) != (half.token, position):
                return [f"unseen: {half} was committed, and there is {message}"]
        if half.message_id and topic.find_id(half.message_id) is not None:
            return [f"unseen: the id of the half message {half} is found"]
        return []

    def _listed(self) -> list[str]:
        """What was prepared and is not decided is listed; what is decided is not."""
        name = self.rng.choice(list(TOPICS))
        self._hear()
        told = {token for token, half in self.halves.by_token.items() if half.message_id and half.topic == name}
        over = {token for token, half in self.halves.by_token.items() if half.committed or half.rolled_back}
        listed = self.topics[name].halves(LISTED_MAX)
        self._hear()
        tokens: dict[str, str] = {}
        for one in listed:
            message = parsed(one.body)
            if message is None or (message.topic, message.keys) != (name, one.keys):
                return [f"wrong: half message {one.message_id} is listed with {one.keys}, {one.body[:80]!r}"]
            tokens[message.token] = one.message_id
        wrong = [f"back: {self.halves.by_token[token]} is pending" for token in tokens.keys() & over]
        gone = (self.halves.by_token[token] for token in sorted(told - tokens.keys()))
        return wrong + [f"lost: {half} is not pending" for half in gone if half.untouched]

    def _finish(self) -> list[str]:
        """Decide about one that another process has left."""
        self._hear()
        left = [half for half in self.halves.by_token.values() if half.message_id and half.untouched]
        if left:
            half = self.rng.choice(left)
            topic = self.topics[half.topic]
            finish(topic.half(half.message_id), half.token, self.rng.random() < 0.5, self.log)
        return []


def reader(directory: str, log: Log, rng: random.Random, path: Path) -> None:
    """Read and list, and finish what others have left."""
    tails = Tails(path.parent, "half-*.log")
    made: Reader | None = None

    def work(node: warren.Node) -> None:
        nonlocal made
        if made is None:
            made = Reader(node, log, rng, tails)
        made.attach(node)
        while not stopping():
            try:
                made.turn()
            except (warren.TimedOut, warren.PeerLost) as error:
                log.error(error)
                if isinstance(error, warren.ClosedError):
                    raise
            time.sleep(rng.random() * READER_PAUSE_S)

    attached(directory, log, "kill-half-reader", work)
