"""Goal: of each key of a compacted topic the newest message stays, whoever is killed and whatever is damaged; those
that it replaced go; a tombstone takes its key away, and goes in the end.

Method: a topic worker without a node, whose compaction looks when the test says so, and a reader of the core; a
dictionary says what has to be found. Kills at each crash point, in a process of its own.
"""

import errno
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine import _core
from warren.engine.kernel import atomic_file
from warren.engine.kernel.atomic_file import NEW_SUFFIX
from warren.engine.topics import newest_files
from warren.engine.topics.compacted_check import CompactedCheck
from warren.engine.topics.compaction import Rates
from warren.engine.topics.names import node_bytes
from warren.engine.topics.retention import Place, Policy
from warren.engine.topics.retention_clock import RetentionClock
from warren.engine.topics.retention_rules import reader_of

from support.long import in_part, rounds
from support.topic_log import log_files
from support.topic_probe import OK, Appender, Life, Topic, TopicNode

HOUR = 3600.0
NEWEST = Topic(1, "newest", 2, compacted=True)


class World:
    """What time it is."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def clock(self) -> RetentionClock:
        return RetentionClock(lambda: 1_700_000_000 + self.seconds, lambda: 1000 + self.seconds)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def node(tmp_path: Path, world: World) -> TopicNode:
    policy = Policy(check_s=HOUR, clock=world.clock(), disk=lambda _path: (0, 1))
    rates = Rates(dirty=0.2, tombstone_s=60.0, bytes_min=1000)
    return TopicNode(tmp_path, [NEWEST], policy=policy, rates=rates)


class Writer:
    """Appends, and knows what has to be found: (queue, key) → body; b"" for a tombstone."""

    def __init__(self, appender: Appender) -> None:
        self.appender = appender
        self.newest: dict[tuple[int, str], bytes] = {}
        self.count = 0

    def put(self, life: Life, count: int, keys: int, chance: random.Random, tombstones: float = 0.1) -> None:
        """So many messages with some of these keys."""
        last = -1
        for _ in range(count):
            queue, key = chance.randrange(NEWEST.queues), f"k{chance.randrange(keys)}"
            body = b"" if chance.random() < tombstones else chance.randbytes(chance.choice((20, 200, 3000)))
            life.until(lambda: self.appender.get("tail") - self.appender.get("head") < 20)
            last = self.appender.append(1, queue, body, properties={"KEYS": key})
            self.newest[queue, key] = body
            self.count += 1
            if self.count % 50 == 0:
                self.wait(life, last)
        self.wait(life, last)

    def wait(self, life: Life, sequence: int) -> None:
        """Until it is on stable storage, and shown."""
        life.until(lambda: self.appender.get("synced") > sequence)
        assert self.appender.result(sequence) == OK
        life.until(lambda: sum(life.maximum(1, queue) for queue in range(NEWEST.queues)) == self.count)

    def values(self) -> dict[tuple[int, str], bytes]:
        """Without those that were taken away."""
        return {key: body for key, body in self.newest.items() if body}


class Reading:
    """All that a reader from the beginning sees."""

    def __init__(self, life: Life) -> None:
        self.newest: dict[tuple[int, str], bytes] = {}
        self.offsets: dict[int, list[int]] = {}
        place = life.service.options.place
        root = os.open(place.folder.path, os.O_RDONLY)
        reader = reader_of(place, root, NEWEST, node_bytes(life.node.superblock.node_id))
        try:
            for queue in range(NEWEST.queues):
                found = self.offsets[queue] = []
                first, end, messages = reader.bounds(queue) or (0, 0, 0)
                at = 0
                while at < end:
                    status, following, _low, _high, records, damage = (
                        reader.read(queue, at, end, 100, 1 << 20, ()) or ()
                    )
                    assert damage is None, damage
                    assert status in (0, 6), status
                    for record in records:
                        found.append(record.offset)
                        self.newest[queue, record.keys[0]] = bytes(record.body)
                    assert following > at
                    at = following
                assert found == sorted(set(found))
                row = life.row(1, queue)
                assert row is not None
                raised = row["minimum"] == life.service.compaction.ends.get((1, queue))
                assert messages == len(found) if raised else messages <= len(found)
                assert not found or found[0] == first
        finally:
            reader.close()
            os.close(root)

    def values(self) -> dict[tuple[int, str], bytes]:
        """Without those that were taken away."""
        return {key: body for key, body in self.newest.items() if body}

    @property
    def count(self) -> int:
        return sum(map(len, self.offsets.values()))


@pytest.fixture
def writer(node: TopicNode) -> Writer:
    return Writer(node.appender())


@pytest.fixture
def life(node: TopicNode, writer: Writer) -> Iterator[Life]:
    running = node.life()
    yield running
    assert running.stop()


def checkpointed(life: Life) -> None:
    """Files of the log before here may go."""
    end = life.server.counters()["dispatched"]
    life.until(lambda: life.server.counters()["saved_position"] >= end)
    life.until(lambda: life.service.groups.needed(end) >= end)


def files(node: TopicNode) -> list[str]:
    return sorted(
        str(path.relative_to(node.folder.compacted)) for path in node.folder.compacted.rglob("*") if path.is_file()
    )


def test_of_each_key_the_newest_message_stays(node: TopicNode, life: Life, writer: Writer) -> None:
    chance = random.Random(1)
    for _ in range(4):
        writer.put(life, 400, 40, chance)
        before = Reading(life)
        assert before.values() == writer.values()
        life.compact()
        after = Reading(life)
        assert after.values() == writer.values()
        assert after.count == len(writer.newest)
        assert [life.row(1, queue)["minimum"] for queue in range(2)] == [life.maximum(1, queue) for queue in range(2)]  # type: ignore[index]
    assert files(node) == ["1/0", "1/1"]
    assert life.service.compaction.passes_n == 8
    life.compact(2)
    assert life.service.compaction.passes_n == 8, "nothing is due"


def test_files_of_the_log_go(node: TopicNode, life: Life, writer: Writer) -> None:
    chance = random.Random(2)
    while len(log_files(node.folder.log)) < 3:
        writer.put(life, 400, 30, chance)
    life.compact()
    checkpointed(life)
    life.retain(3)
    assert min(int(path.name) for path in log_files(node.folder.log)) > 0
    assert Reading(life).values() == writer.values()


def test_a_topic_with_few_messages_does_not_keep_the_log_of_others(node: TopicNode, writer: Writer) -> None:
    node.topics = [NEWEST, Topic(2, "other", 1, retention_bytes=100_000)]
    node.rates = Rates()
    life = node.life()
    writer.put(life, 20, 10, random.Random(3))
    other = node.appender(life)
    for _ in range(3000):
        sequence = other.append(2, 0, b"x" * 2000)
        if sequence % 50 == 0:
            life.until(lambda sequence=sequence: other.get("synced") > sequence)
    life.until(lambda: life.maximum(2, 0) == 3000)
    life.compact()
    checkpointed(life)
    life.retain(3)
    assert len(log_files(node.folder.log)) <= 3
    assert Reading(life).values() == writer.values()
    assert life.stop()


def test_a_tombstone_goes_when_its_time_has_come(node: TopicNode, life: Life, writer: Writer, world: World) -> None:
    chance = random.Random(4)
    writer.put(life, 100, 10, chance)
    for queue in range(2):
        for key in range(10):
            sequence = writer.appender.append(1, queue, b"", properties={"KEYS": f"k{key}"})
            writer.newest[queue, f"k{key}"] = b""
            writer.count += 1
            writer.wait(life, sequence)
    life.compact()
    assert Reading(life).newest == writer.newest, "readers can hear of all"
    world.seconds = 59
    life.compact(2)
    assert Reading(life).newest == writer.newest
    world.seconds = 61  # nobody finds what they took away since the minimum rose: that is said in the file now
    life.compact(2)
    assert Reading(life).newest == writer.newest
    world.seconds = 122
    life.compact(2)
    assert Reading(life).newest == {}
    assert life.service.server.ends(1) == [life.maximum(1, queue) for queue in range(2)]


def test_a_message_without_a_key_ends_who_appends_it(node: TopicNode, life: Life) -> None:
    appender = node.appender(life)
    appender.append(1, 0, b"x", properties={"TAGS": "t"})
    life.until(lambda: any(evicted for _slot, _generation, *_rest, evicted in life.server.attached()))
    assert life.maximum(1, 0) == 0


def test_the_folder_of_a_deleted_topic_goes(node: TopicNode, life: Life, writer: Writer) -> None:
    writer.put(life, 200, 10, random.Random(5))
    life.compact()
    assert files(node)
    node.tell_catalog([])
    life.until(lambda: life.row(1, 0) is None)
    life.compact()
    assert not list(node.folder.compacted.iterdir())
    assert life.service.compaction.ends == {}


def test_more_keys_than_a_pass_takes(node: TopicNode, writer: Writer) -> None:
    node.rates = Rates(dirty=0.01, bytes_min=100, keys_max=7)
    life = node.life()
    writer.put(life, 300, 50, random.Random(6))
    passes = 0
    for _ in range(100):
        life.compact()
        if life.service.compaction.passes_n == passes:
            break
        passes = life.service.compaction.passes_n
        assert Reading(life).values() == writer.values()
    assert passes > 10
    assert Reading(life).count == len(writer.newest)
    assert life.stop()


@pytest.mark.parametrize("point", ["compact_written", "compact_renamed", "retain_raised", "retain_told"])
@pytest.mark.parametrize("passes", [0, 1])
def test_killed_at_each_point_of_a_pass(node: TopicNode, writer: Writer, point: str, passes: int) -> None:
    chance = random.Random(7)
    life = node.life()
    for _ in range(passes):
        writer.put(life, 1200, 20, chance)
        life.compact()
    writer.put(life, 1200, 20, chance)
    assert life.stop()
    quick = Policy(check_s=0.05, clock=node.policy.clock, disk=node.policy.disk)
    slow, node.policy = node.policy, quick
    node.superblock.arm_crash(point)
    pid = node.child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    node.superblock.disarm_crash()
    node.policy = slow
    life = node.life()
    assert Reading(life).values() == writer.values()
    life.compact(2)
    found = Reading(life)
    assert found.values() == writer.values()
    assert found.count == len(writer.newest)
    assert not [name for name in files(node) if name.endswith(NEW_SUFFIX)]
    writer.put(life, 100, 20, chance)
    life.compact()
    assert Reading(life).values() == writer.values()
    assert life.stop()


def test_a_file_that_a_start_finds_raises_the_minimum_without_a_pass(node: TopicNode, writer: Writer) -> None:
    life = node.life()
    writer.put(life, 300, 20, random.Random(8))
    life.compact()
    assert life.stop()
    node.folder.checkpoint.unlink()
    life = node.life()
    life.compact()
    assert life.service.compaction.passes_n == 0
    assert life.service.compaction.ends == {(1, queue): life.maximum(1, queue) for queue in range(2)}
    assert Reading(life).values() == writer.values()
    assert life.stop()


def test_a_name_that_is_not_durable_raises_no_minimum(
    node: TopicNode, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = node.life()
    writer.put(life, 300, 20, random.Random(12))
    synced: list[Path] = []

    def fails_at_first(path: Path) -> None:
        synced.append(path)
        if path.name == "1" and synced.count(path) <= 2:
            raise OSError(errno.EIO, "no sync")
        sync(path)

    sync = atomic_file.sync_directory
    monkeypatch.setattr(atomic_file, "sync_directory", fails_at_first)
    life.compact()
    assert files(node) == ["1/0", "1/1"], "they have their names"
    assert [life.row(1, queue)["minimum"] for queue in range(2)] == [0, 0]  # type: ignore[index]
    assert Reading(life).values() == writer.values()
    life.compact(2)
    assert [life.row(1, queue)["minimum"] for queue in range(2)] == [life.maximum(1, queue) for queue in range(2)]  # type: ignore[index]
    assert Reading(life).values() == writer.values()
    assert life.stop()


def compacted_twice(node: TopicNode, life: Life, writer: Writer, chance: random.Random) -> tuple[Path, bytes]:
    """The file of the first queue, and what the first of two passes had written."""
    path = newest_files.path_of(node.folder.compacted, 1, 0)
    writer.put(life, 300, 20, chance)
    life.compact()
    older = path.read_bytes()
    writer.put(life, 300, 20, chance)
    life.compact()
    return path, older


def test_a_file_that_is_put_back_meanwhile_is_not_gone_on_from(node: TopicNode, writer: Writer) -> None:
    chance = random.Random(13)
    life = node.life()
    path, older = compacted_twice(node, life, writer, chance)
    minimum = life.row(1, 0)["minimum"]  # type: ignore[index]
    path.unlink()
    path.write_bytes(older)
    writer.put(life, 300, 20, chance)
    life.compact(3)
    assert life.row(1, 0)["minimum"] == minimum  # type: ignore[index]
    assert path.read_bytes() == older
    assert any("is an older one" in text for text in node.said)
    told_to_readers(life, minimum)
    assert life.stop()


@pytest.mark.parametrize("how", ["damaged", "missing", "older"])
def test_a_bad_file_is_said_and_nothing_more_is_lost(node: TopicNode, writer: Writer, how: str) -> None:
    chance = random.Random(9)
    life = node.life()
    path, older = compacted_twice(node, life, writer, chance)
    assert life.stop()
    newest = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(older if how == "older" else newest[:100] + bytes([newest[100] ^ 1]) + newest[101:])
    life = node.life()
    minimum = life.row(1, 0)["minimum"]  # type: ignore[index]
    told_to_readers(life, minimum)
    writer.put(life, 300, 20, chance)
    life.compact(2)
    told = {"damaged": str(path), "missing": "is missing", "older": "is an older one"}
    (said,) = [text for text in node.said if "not compacted, and tried again in an hour" in text]
    assert told[how] in said
    assert "warren check" in said
    assert life.row(1, 0)["minimum"] == minimum, "nothing is made of what is left"  # type: ignore[index]
    assert life.row(1, 1)["minimum"] > 0, "others go on"  # type: ignore[index]
    told_to_readers(life, minimum)
    if how == "damaged":
        path.write_bytes(newest)
        life.service.compaction._trouble.until = dict.fromkeys(life.service.compaction._trouble.until, 0.0)
        life.compact(3)
        assert Reading(life).values() == writer.values(), "whole again, it goes on"
        assert life.stop()
        return
    assert life.stop()
    of = {NEWEST.id: (NEWEST.name.encode(), NEWEST.queues)}
    check = CompactedCheck(node.folder, node_bytes(node.superblock.node_id), of, running=False)
    list(check.examine({(1, 0): (minimum, minimum)}))  # the log has nothing of it
    check.repair((0, bytes(16), bytes(16), 1, 1, 1, 2), 0, print)  # which gives it up
    life = node.life()
    life.compact(2)
    assert life.row(1, 0)["minimum"] > minimum  # type: ignore[index]
    found = Reading(life).values()
    assert found.items() <= writer.values().items()
    assert life.stop()


def told_to_readers(life: Life, minimum: int) -> None:
    """Who reads or looks below the minimum of the first queue is told, and sees nothing of it."""
    reader = _reader(life)
    answer = reader.read(0, 0, 1 << 60, 1000, 1 << 20, ())
    assert answer is not None
    assert answer[5] is not None
    assert (answer[1], answer[4]) == (minimum, [])
    for found in (
        reader.find(b"k1", -(1 << 63), (1 << 63) - 1, 10, True),
        reader.find_id("7F00000100002A9F" + "0" * 16),
    ):
        assert found is not None
        assert found[1] is not None
    reader.close()


@pytest.mark.parametrize("what", ["folder", "pipe", "link", "folder beside"])
def test_what_is_no_file_concerns_its_queue_alone(node: TopicNode, writer: Writer, what: str) -> None:
    life = node.life()
    writer.put(life, 300, 20, random.Random(10))
    life.compact()
    assert life.stop()
    path = newest_files.path_of(node.folder.compacted, 1, 0)
    if what == "folder beside":
        path.with_name(f"0{NEW_SUFFIX}").mkdir()
    else:
        path.unlink()
        {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to("1")}[what]()
    (node.folder.compacted / "77").write_text("of nobody")
    life = node.life()
    before = [life.row(1, queue)["minimum"] for queue in range(2)]  # type: ignore[index]
    if what != "folder beside":
        told_to_readers(life, before[0])
    writer.put(life, 300, 20, random.Random(11))
    life.compact(2)
    after = [life.row(1, queue)["minimum"] for queue in range(2)]  # type: ignore[index]
    assert (after[0], after[1] > before[1]) == (before[0], True)
    assert life.stop()


def _reader(life: Life) -> _core.TopicReader:
    place: Place = life.service.options.place
    return reader_of(place, life._folder, NEWEST, node_bytes(life.node.superblock.node_id))


@pytest.mark.parametrize("seed", in_part(list(range(4)), 2))
def test_against_a_dictionary(node: TopicNode, writer: Writer, world: World, seed: int) -> None:
    """Appends, passes, time, stops, ends without a word, and lost checkpoints, in any order."""
    chance = random.Random(seed)
    life: Life | None = None
    for _ in range(rounds(25)):
        if life is None:
            life = node.life()
        what = chance.random()
        if what < 0.5:
            writer.put(
                life, chance.randrange(1, 300), chance.choice((3, 30, 300)), chance, chance.choice((0, 0.1, 0.9))
            )
        elif what < 0.8:
            life.compact(chance.randrange(1, 3))
        else:
            world.seconds += chance.choice((1, 30, 61))
        found = Reading(life)
        assert found.values() == writer.values()
        if chance.random() < 0.3:
            if chance.random() < 0.5:
                assert life.stop()
            else:
                life.release()
            life = None
            if chance.random() < 0.4:
                node.folder.checkpoint.unlink(missing_ok=True)
    if life is not None:
        assert life.stop()
