"""The processes that a kill campaign of topics runs and kills: appenders, readers, a maker of topics that go, a probe;
and those of compacted_actors.py and half_actors.py.

`python -m warren.tools.crash.topic_actors ROLE DIRECTORY LOG SEED`, as actors.py. Lines of their logs, each written
before what it announces or after what it reports; times are of the machine's monotonic clock:

    appender  i WHO FIRST LEVEL TOPIC PLAN              messages are about to be appended together; PLAN is the queue of
                                                        each, a digit; t: of those all go to one; -: it may be any
              c WHO FIRST LEVEL TOPIC TIME Q:O:P …      were confirmed, with queue, offset and position of each
    reader    r TOPIC QUEUE OFFSET COUNT CRC            were read, whole, in order; the CRC is of positions and tokens
    group     g TOPIC QUEUE OFFSET COUNT CRC            a member of the group was handed these out, in order
              k TOPIC QUEUE OFFSET                      the group has committed up to there
    maker     m TOPIC ROUNDS                            so often a topic was made, used, deleted, and was another one
    newest-…  of a compacted topic: compacted_judge.py  half-…  of half messages: half_judge.py
    all       b TEXT  a violation                       e TEXT  an error that an actor lived through
              q COUNT  so many answers were right

An appender's name is another one for each attachment: only within one its messages come in order. What an actor
expects of a message says its body (topic_messages.py). A reader knows of confirmed messages from the appenders' logs.
"""

from __future__ import annotations

import os
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import warren
from warren.tools.crash import actors, compacted_actors, half_actors
from warren.tools.crash.actors import OPERATION_TIMEOUT_S, attached, complain, probing, stopping
from warren.tools.crash.logs import Log
from warren.tools.crash.topic_messages import TAGS, TOPICS, Message, body_of, chosen, parsed, queue_of

PROBE_TOPIC = "kill-probe"
#: the group that `group` plays the members of, and its topic
GROUP, GROUP_TOPIC = "kill-group", "kill-c"
MAKER_TOPIC = "kill-maker-{}"
LEVELS: tuple[warren.Durability, ...] = ("synced", "synced", "written", "none")
#: of the log, in a batch: together, or not at all
BATCH_BYTES_MAX = 150_000
APPENDER_PAUSE_S = 0.04
READER_PAUSE_S = 0.05
#: what is read of an appender's log to find what was confirmed last
TAIL_BYTES = 16 << 10
FIND_MAX = 1 << 16
#: setting of the node: how long a member may keep a queue that it has to give back
GROUP_RELEASE_S = 1.0
GROUP_SESSION_S = 1.0  #: of members; some are stopped for longer


def crc_of(records: Iterable[tuple[int, str]]) -> int:
    """What a reader notes of a range: positions and tokens."""
    found = 0
    for position, token in records:
        found = zlib.crc32(f"{position} {token};".encode(), found)
    return found


def _tail(path: Path) -> list[str]:
    """The last whole lines of a log."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read().decode(errors="replace").split("\n")[1:-1]


# -- who appends ------------------------------------------------------------------------------------------------------


class Appender:
    """One attachment of an appender."""

    def __init__(self, node: warren.Node, log: Log, rng: random.Random) -> None:
        self.log, self.rng = log, rng
        self.who = f"{os.getpid()}-{time.monotonic_ns() & 0xFFFFFFFF:x}"
        self.number = 0
        self.topics = {name: node.topic(name) for name in TOPICS}

    def turn(self) -> None:
        """Messages together, or one behind the other without waiting in between."""
        name = self.rng.choice(list(TOPICS))
        level = self.rng.choice(LEVELS)
        count = self.rng.choice((1, 1, 2, 5, 40, 200))
        queue = self.rng.randrange(TOPICS[name]) if self.rng.random() < 0.3 else None
        try:
            if self.rng.random() < 0.3:
                self._one_by_one(name, level, count, queue)
            else:
                self._together(name, level, count, queue)
        except warren.Error as error:
            self.log.error(error)  # they may be there or not
            if isinstance(error, warren.ClosedError):
                raise

    def _announced(
        self, name: str, level: warren.Durability, count: int, queue: int | None
    ) -> tuple[list[Message], list[bytes]]:
        messages: list[Message] = []
        bodies: list[bytes] = []
        room = BATCH_BYTES_MAX
        while len(messages) < count:
            message = chosen(f"{self.who}.{self.number + len(messages)}", name, self.rng)
            body = body_of(message)
            room -= len(body) + 250
            if messages and room < 0:
                break
            messages.append(message)
            bodies.append(body)
        keyed = any(message.keys for message in messages)
        plan = "".join(_planned(message, queue, "-" if keyed else "t") for message in messages)
        self.log.write(f"i {self.who} {self.number} {level} {name} {plan}")
        self.number += len(messages)
        return messages, bodies

    def _say(self, messages: Sequence[Message], level: warren.Durability, positions: Sequence[warren.Position]) -> None:
        places = " ".join(f"{at.queue}:{at.offset}:{at.physical_offset}" for at in positions)
        first = messages[0]
        self.log.write(f"c {self.who} {first.number} {level} {first.topic} {time.monotonic():.3f} {places}")

    def _together(self, name: str, level: warren.Durability, count: int, queue: int | None) -> None:
        topic = self.topics[name]
        messages, bodies = self._announced(name, level, count, queue)
        if len(messages) == 1:
            (message,) = messages
            positions = [
                topic.append(
                    bodies[0],
                    list(message.keys) or None,
                    message.tag or None,
                    queue=queue,
                    durability=level,
                    timeout=OPERATION_TIMEOUT_S,
                )
            ]
        else:
            positions = topic.append_many(
                bodies,
                [list(message.keys) or None for message in messages] if any(m.keys for m in messages) else None,
                [message.tag or None for message in messages],
                queue=queue,
                durability=level,
                timeout=OPERATION_TIMEOUT_S,
            )
        self._say(messages, level, positions)

    def _one_by_one(self, name: str, level: warren.Durability, count: int, queue: int | None) -> None:
        confirms = []
        for _ in range(count):
            (message,), (body,) = self._announced(name, level, 1, queue)
            confirm = self.topics[name].append(
                body,
                list(message.keys) or None,
                message.tag or None,
                queue=queue,
                durability=level,
                wait=False,
                timeout=OPERATION_TIMEOUT_S,
            )
            confirms.append((message, confirm))
        for message, confirm in confirms:
            self._say([message], level, [confirm.result(OPERATION_TIMEOUT_S)])


def _planned(message: Message, queue: int | None, without_key: str) -> str:
    if queue is not None:
        return str(queue)
    return str(queue_of(message.keys[0], TOPICS[message.topic])) if message.keys else without_key


def appender(directory: str, log: Log, rng: random.Random) -> None:
    """Append, singly and together, with all durabilities, and log what was confirmed, and where it lies."""

    def work(node: warren.Node) -> None:
        made = Appender(node, log, rng)
        while not stopping():
            made.turn()
            time.sleep(rng.random() * APPENDER_PAUSE_S)

    attached(directory, log, "kill-appender", work)


# -- who reads --------------------------------------------------------------------------------------------------------


class Reader:
    """One attachment of a reader: it goes on with the queues of all topics, and looks for what was confirmed."""

    def __init__(self, node: warren.Node, log: Log, rng: random.Random, logs: Path) -> None:
        self.node, self.log, self.rng, self.logs = node, log, rng, logs
        self.topics = {name: node.topic(name) for name in TOPICS}
        self.at: dict[tuple[str, int], int] = {}
        self.highest: dict[tuple[str, int], int] = {}
        self.committed: dict[int, int] = {}
        #: the newest number of each appender in each queue, along a range that is gone on with
        self.numbers: dict[tuple[str, int], dict[str, int]] = {}
        self.right = 0

    def turn(self) -> None:
        """One look."""
        name = self.rng.choice(list(TOPICS))
        queue = self.rng.randrange(TOPICS[name])
        looks = (
            (10, self._go_on),
            (3, self._with_tag),
            (3, self._by_time),
            (2, self._bounds),
            (6, self._confirmed),
            (1, self._committed),
        )
        look = self.rng.choices([look for _weight, look in looks], [weight for weight, _look in looks])[0]
        try:
            look(name, queue)
        except (warren.CorruptRecord, warren.DataLoss, warren.TopicNotFound, warren.UsageError) as error:
            self._complain(f"{look.__name__} of {name}/{queue}: {type(error).__name__}: {error}")
        if self.right >= 500:
            self.log.write(f"q {self.right}")
            self.right = 0

    def _complain(self, text: str) -> None:
        self.log.write(f"b {time.monotonic():.3f} {text}".replace("\n", " "))

    def _checked(self, name: str, queue: int, record: warren.Record) -> Message | None:
        """The message of a record, None and a complaint if it is not whole."""
        message = parsed(record.body)
        said = (record.queue, record.tag or "", tuple(record.keys))
        if message is None or (message.topic, queue, message.tag, message.keys) != (name, *said):
            self._complain(f"wrong: {name}/{queue}:{record.offset} reads {said} {record.body[:80]!r}")
            return None
        self.right += 1
        return message

    def _go_on(self, name: str, queue: int) -> None:
        """Read on, from where the last look ended, from the begin, or from anywhere."""
        topic, place = self.topics[name], (name, queue)
        at = self.at.get(place)
        if at is None or self.rng.random() < 0.05:
            low, high = topic.offsets(queue)
            at = self.rng.choice((low, max(low, high - 50), self.rng.randint(low, high)))
            self.numbers[place] = {}
        found = topic.read(queue, at, max=self.rng.choice((1, 10, 100)), timeout=self.rng.choice((0, 0, 0.05)))
        self._highest(place, found.max_offset)
        offsets = [record.offset for record in found.records]
        if offsets != list(range(at, at + len(offsets))) or found.next_offset != at + len(offsets):
            self._complain(f"hole: {name}/{queue} from {at} on reads {offsets[:9]} and goes on at {found.next_offset}")
        self._note(name, queue, at, found.records)
        self.at[place] = found.next_offset

    def _note(self, name: str, queue: int, at: int, records: Sequence[warren.Record]) -> None:
        numbers = self.numbers.setdefault((name, queue), {})
        read = []
        for record in records:
            message = self._checked(name, queue, record)
            if message is None:
                return
            if message.number <= numbers.get(message.appender, -1):
                self._complain(f"order: {name}/{queue}:{record.offset} is {message.token}, after a later one of it")
            numbers[message.appender] = message.number
            read.append((record.physical_offset, message.token))
        if read:
            self.log.write(f"r {name} {queue} {at} {len(read)} {crc_of(read)}")

    def _highest(self, place: tuple[str, int], high: int) -> None:
        """What readers see never goes back."""
        if high < self.highest.get(place, 0):
            self._complain(f"back: {place} ended at {self.highest[place]}, and now at {high}")
        self.highest[place] = max(high, self.highest.get(place, 0))

    def _with_tag(self, name: str, queue: int) -> None:
        """A filter gives all that has the tag and nothing else: compared with the same range without one."""
        topic = self.topics[name]
        low, high = topic.offsets(queue)
        at = self.rng.randint(low, high)
        tags = self.rng.sample(TAGS[:-1], self.rng.choice((1, 1, 2)))
        whole = topic.read(queue, at, max=200)
        some = topic.read(queue, at, max=200, tag=tags)
        end = min(whole.next_offset, some.next_offset)
        wanted = [record.offset for record in whole.records if record.tag in tags and record.offset < end]
        got = [record.offset for record in some.records if record.offset < end]
        if wanted != got:
            self._complain(f"tags {tags} of {name}/{queue} from {at} to {end} give {got[:9]}, not {wanted[:9]}")
        for record in some.records:
            self._checked(name, queue, record)

    def _by_time(self, name: str, queue: int) -> None:
        """A message's time leads to the first one and to the last one with it."""
        topic = self.topics[name]
        low, high = topic.offsets(queue)
        if low == high:
            return
        at = self.rng.randrange(low, high)
        (record,) = topic.read(queue, at, max=1).records
        first = topic.offset_at(queue, record.timestamp)
        last = topic.offset_at(queue, record.timestamp, "upper")
        if first is None or last is None or not low <= first <= at <= last:
            self._complain(f"time {record.timestamp} of {name}/{queue}:{at} leads to {first} and {last}")
            return
        around = topic.read(queue, max(low, first - 1), max=2).records
        times = [found.timestamp for found in around]
        if times[-1 if first > low else 0] != record.timestamp or (first > low and times[0] >= record.timestamp):
            self._complain(f"time {record.timestamp} of {name}/{queue}:{at} leads to {first}, around which are {times}")
        self.right += 1

    def _bounds(self, name: str, queue: int) -> None:
        low, high = self.topics[name].offsets(queue)
        if low != 0:
            self._complain(f"lost: {name}/{queue} begins at {low}")
        self._highest((name, queue), high)
        self.right += 1

    def _committed(self, _name: str, _queue: int) -> None:
        """What the group has committed never goes back, and is no less than what its members were told before."""
        told = dict(self.committed)
        for path in self.logs.glob("group-*.log"):
            for words in (line.split(" ") for line in _tail(path)):
                if words[0] == "k":
                    told[int(words[2])] = max(told.get(int(words[2]), 0), int(words[3]))
        if not told:
            return
        for row in self.topics[GROUP_TOPIC].group(GROUP)["queues"]:
            queue, now = row["queue"], row["committed"] or 0
            if now < told.get(queue, 0):
                self._complain(f"back: the group had committed {told[queue]} of queue {queue}, and now {now}")
            self.committed[queue] = now
        self.right += 1

    # -- what an appender was told --------------------------------------------------------------------------------

    def _confirmed(self, _name: str, _queue: int) -> None:
        """One of the newest confirmed messages of an appender, read by its offset, and found by its keys and id."""
        logs = sorted(self.logs.glob("appender-*.log"))
        if not logs:
            return  # no appender has begun yet
        lines = _tail(self.rng.choice(logs))
        said = [words for line in lines if (words := line.split(" "))[0] == "c" and words[3] != "none"]
        if not said:
            return
        _c, who, first, _level, name, _time, *places = self.rng.choice(said[-3:])
        number = self.rng.randrange(len(places))
        queue, offset, position = map(int, places[number].split(":"))
        began = time.monotonic()
        wrong = self._look(name, queue, offset, position, f"{who}.{int(first) + number}")
        took = time.monotonic() - began
        if wrong:
            complain(self.node, self.log, f"unseen: {wrong}", took)

    def _look(self, name: str, queue: int, offset: int, position: int, token: str) -> str:
        """What is wrong with a message that was confirmed; "": nothing."""
        topic = self.topics[name]
        what = f"{token} was confirmed in {name}/{queue}:{offset} at {position}, and"
        found = topic.read(queue, offset, max=1)
        if len(found.records) != 1 or found.records[0].offset != offset:
            return f"{what} a read says {found.status.name}, {found.min_offset} to {found.max_offset}"
        (record,) = found.records
        message = self._checked(name, queue, record)
        if message is None or message.token != token or record.physical_offset != position:
            return f"{what} there is {message} at {record.physical_offset}"
        if message.keys:
            wrong = self._find(name, self.rng.choice(message.keys), position, record.timestamp)
            if wrong:
                return f"{what} {wrong}"
        by_id = topic.find_id(record.message_id)
        if by_id is None or by_id.physical_offset != position or by_id.body != record.body:
            return f"{what} its id {record.message_id} leads to {by_id}"
        self.right += 1
        return ""

    def _find(self, name: str, key: str, position: int, stored: int) -> str:
        topic = self.topics[name]
        exact = self.rng.random() < 0.5
        found = (
            topic.find(key, since=stored, until=stored, limit=FIND_MAX) if exact else topic.find(key, limit=FIND_MAX)
        )
        positions = [record.physical_offset for record in found]
        if positions.count(position) != 1:
            return f"key {key} leads {positions.count(position)} times to it, of {len(positions)}"
        if sorted(positions, reverse=True) != positions or len(set(positions)) != len(positions):
            return f"key {key} leads to {positions[:20]}, which are not the newest first, each once"
        for record in found:
            message = parsed(record.body)
            if message is None or key not in message.keys or message.topic != name:
                return f"key {key} leads to {message} at {record.physical_offset}"
            if exact and record.timestamp != stored:
                return f"key {key} at {stored} leads to a message of {record.timestamp}"
        return ""


def reader(directory: str, log: Log, rng: random.Random, path: Path) -> None:
    """Read everything there is, in all ways that there are."""

    def work(node: warren.Node) -> None:
        made = Reader(node, log, rng, path.parent)
        while not stopping():
            made.turn()
            time.sleep(rng.random() * READER_PAUSE_S)

    attached(directory, log, "kill-reader", work)


# -- members of a group -----------------------------------------------------------------------------------------------


class Member:
    """A member of the group: it notes what it is handed out, and then what it has committed."""

    def __init__(self, reader: warren.Reader, log: Log, rng: random.Random) -> None:
        self.reader, self.log, self.rng = reader, log, rng
        #: behind what was handed out of each queue since it has been this member's
        self.at: dict[int, int] = {}

    def turn(self) -> None:
        """Some messages, and mostly a commit of them."""
        try:
            records = self.reader.get_many(self.rng.choice((1, 20, 200)), timeout=0.1)
        except warren.SessionExpired as error:  # it was stopped for too long: its queues are others'
            self.log.error(error)
            self.at.clear()
            return
        by_queue: dict[int, list[warren.Record]] = {}
        for record in records:
            by_queue.setdefault(record.queue, []).append(record)
        for queue, those in by_queue.items():
            self._note(queue, those)
        if self.rng.random() < 0.02:
            time.sleep(self.rng.random() * 2 * GROUP_RELEASE_S)  # a queue that is asked back meanwhile is lost
        if not records or self.rng.random() < 0.3:
            return
        try:
            self.reader.commit(timeout=OPERATION_TIMEOUT_S)
        except warren.Fenced as error:
            self.log.error(error)
            self.at.clear()
            return
        held = set(self.reader.assigned)
        lines = [f"k {GROUP_TOPIC} {queue} {at}" for queue, at in self.at.items() if queue in held]
        if lines:
            self.log.write(*lines)

    def _note(self, queue: int, records: Sequence[warren.Record]) -> None:
        """What follows each other: between two such parts the queue was another member's."""
        while records:
            first, read = records[0].offset, []
            for number, record in enumerate(records):
                if record.offset != first + number:
                    break
                message = parsed(record.body)
                token = "?" if message is None else message.token
                read.append((record.physical_offset, token))
            self.at[queue] = first + len(read)
            self.log.write(f"g {GROUP_TOPIC} {queue} {first} {len(read)} {crc_of(read)}")
            records = records[len(read) :]


def group(directory: str, log: Log, rng: random.Random) -> None:
    """Read a topic together with others, and commit."""

    def work(node: warren.Node) -> None:
        topic = node.topic(GROUP_TOPIC)
        with topic.reader(
            GROUP,
            commit="manual",
            prefetch=200,
            session_timeout=GROUP_SESSION_S,
            max_poll_interval=10 * GROUP_SESSION_S,
        ) as reader:
            member = Member(reader, log, rng)
            end = time.monotonic() + rng.random() * 20
            while not stopping() and time.monotonic() < end:  # then it leaves, and comes again
                member.turn()
                time.sleep(rng.random() * READER_PAUSE_S)

    attached(directory, log, "kill-group", work)


# -- topics that come and go ------------------------------------------------------------------------------------------


class Maker:
    """A topic that is made, used and deleted again and again: what has its name then is another one."""

    def __init__(self, node: warren.Node, log: Log, rng: random.Random, name: str) -> None:
        self.node, self.log, self.rng, self.name = node, log, rng, name
        self.gone: list[str] = []
        self.rounds = 0

    def turn(self) -> None:
        """One life of the topic. An error leaves it as it is: the next life begins with its end."""
        if self.name in self.node.topics():
            self.node.topic(self.name).delete()
        queues = self.rng.choice((1, 2, 3))
        topic = self.node.topic(self.name, queues=queues)
        who = f"{os.getpid()}-{time.monotonic_ns() & 0xFFFFFFFF:x}"
        for queue in range(queues):
            if topic.offsets(queue) != (0, 0):
                self._complain(f"stale: the new topic has {topic.offsets(queue)} in queue {queue}")
        if old := topic.find("old", limit=FIND_MAX):
            self._complain(f"stale: the new topic finds {old} by key")
        for id in self.gone:
            if (found := topic.find_id(id)) is not None:
                self._complain(f"stale: the new topic has {found} under an id of before")
        count = self.rng.choice((1, 20, 150))
        queue = self.rng.randrange(queues)
        bodies = [f"{who} {n}|".encode() * 20 for n in range(count)]
        positions = topic.append_many(bodies, "old", "UA", queue=queue, timeout=OPERATION_TIMEOUT_S)
        if [at.offset for at in positions] != list(range(count)):
            self._complain(f"stale: the new topic's offsets are {[at.offset for at in positions][:9]}")
        read = topic.read(queue, 0, max=count + 1, max_bytes=1 << 24)
        if [record.body for record in read.records] != bodies:
            self._complain(f"the new topic reads {[record.body[:40] for record in read.records][:9]}")
        if len(topic.find("old", limit=FIND_MAX)) != count:
            self._complain(f"key old leads to {len(topic.find('old', limit=FIND_MAX))} of {count} messages")
        self.gone = [position.message_id for position in positions[:5]]
        self.rounds += 1
        self.log.write(f"m {self.name} 1")

    def _complain(self, text: str) -> None:
        self.log.write(f"b {time.monotonic():.3f} {self.name}: {text}".replace("\n", " "))


def maker(directory: str, log: Log, rng: random.Random, path: Path) -> None:
    """Make, use and delete a topic of this actor alone."""

    def work(node: warren.Node) -> None:
        made = Maker(node, log, rng, MAKER_TOPIC.format(path.stem.rpartition("-")[2]))
        while not stopping():
            try:
                made.turn()
            except warren.CorruptRecord as error:
                made._complain(f"{error}")
            except (warren.TimedOut, warren.PeerLost, warren.TopicNotFound) as error:
                log.error(error)
                if isinstance(error, warren.ClosedError):
                    raise
            time.sleep(rng.random() * 0.2)

    attached(directory, log, "kill-maker", work)


def probe(directory: str, log: Log, _rng: random.Random) -> None:
    """A message through a topic: appended, and read."""

    def prepare(node: warren.Node) -> Callable[[], None]:
        topic = node.topic(PROBE_TOPIC)

        def ask() -> None:
            body = os.urandom(16)
            at = topic.append(body, timeout=OPERATION_TIMEOUT_S)
            (record,) = topic.read(at.queue, at.offset, max=1, timeout=OPERATION_TIMEOUT_S).records
            if record.body != body:
                log.write(f"b topic: {at} was confirmed and reads {record.body!r}")

        return ask

    probing(directory, log, "topic", prepare)


def main(argv: list[str]) -> int:
    """Play one role until SIGTERM."""
    path = Path(argv[2])
    roles: dict[str, actors.Role] = {
        "appender": appender,
        "reader": lambda directory, log, rng: reader(directory, log, rng, path),
        "group": group,
        "maker": lambda directory, log, rng: maker(directory, log, rng, path),
        "newest-appender": compacted_actors.appender,
        "newest-reader": lambda directory, log, rng: compacted_actors.reader(directory, log, rng, path),
        "half-preparer": half_actors.preparer,
        "half-checker": half_actors.checker,
        "half-reader": lambda directory, log, rng: half_actors.reader(directory, log, rng, path),
        "topic-probe": probe,
    }
    return actors.main(argv, roles)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
