"""Goal: messages go when their topic's retention says so, and when the disk is full; nothing else goes, whatever is
killed when; what was removed stays removed, and offsets go on.

Method: the worker's service without a node (support/topic_probe.py), with small files, so that it rolls and removes for
real; a clock and a disk that the tests set; kills of a child at each crash point, and at random against a list model;
readers with their own look at memory and files; the log alone, without what is derived from it.
"""

import os
import random
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from warren.engine import _core
from warren.engine.errors import CorruptRecord
from warren.engine.topics import bounds
from warren.engine.topics.retention import Marks, Policy
from warren.engine.topics.retention_clock import HELD_S, RetentionClock
from warren.engine.topics.retention_rules import NO_RECORD
from warren.ipc.layout import CONSTANTS

from support.topic_log import log_files
from support.topic_probe import MIB, SERVER, Appender, Life, Topic, TopicNode

HOUR = 3600.0


@dataclass
class World:
    """What time it is, and how full the disk is."""

    hours: float = 0.0
    use: float = 0.5
    asked: list[str] = field(default_factory=list)

    def clock(self) -> RetentionClock:
        began = time.time()
        return RetentionClock(lambda: began + self.hours * HOUR, lambda: self.hours * HOUR)

    def disk(self, path: str) -> tuple[int, int]:
        self.asked.append(path)
        return int(self.use * 1000), 1000


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def node(tmp_path: Path, world: World) -> TopicNode:
    found = TopicNode(tmp_path / "node", consume_queue_entries=64, index_slots=64, index_entries=256)
    found.policy = Policy(check_s=HOUR, clock=world.clock(), disk=world.disk)
    found.topics = [Topic(1, "flights", 2, retention_s=24 * HOUR)]
    return found


def fill(life: Life, appender: Appender, topic: int, count: int, *, size: int = 4000, queues: int = 2) -> None:
    """Messages in turns over the queues, with a key each; shown when this returns."""
    before = [life.maximum(topic, queue) for queue in range(queues)]
    for number in range(count):
        life.until(lambda: appender.get("tail") - appender.get("head") < 20)
        key = f"k{topic}-{before[number % queues] + number // queues}"
        last = appender.append(
            topic, number % queues, b"%d" % number + b"." * size, properties={"KEYS": key}, synced=number == count - 1
        )
    life.until(lambda: appender.get("synced") > last)
    life.until(lambda: sum(life.maximum(topic, queue) for queue in range(queues)) == sum(before) + count)


def checkpointed(life: Life) -> None:
    """What is there now is in a checkpoint, and in a snapshot of groups: files of the log before it may go."""
    end = life.server.counters()["dispatched"]
    life.until(lambda: life.server.counters()["saved_position"] >= end)
    life.until(lambda: life.service.groups.needed(end) >= end)


def bases(node: TopicNode) -> list[int]:
    return sorted(int(path.name) for path in log_files(node.folder.log))


def reader(life: Life, topic: Topic, root: int) -> _core.TopicReader:
    node = life.node
    found = _core.TopicReader(
        root, topic.id, topic.name.encode(), node.log_file_bytes, node.ring_bytes, node.consume_queue_entries,
        node.index_slots, node.index_entries,
    )  # fmt: skip
    found.begin(life.ring, life.rows)
    return found


def read_all(life: Life, topic: Topic, queue: int) -> list[int]:
    """Offsets that a reader gets from the minimum to the maximum."""
    root = os.open(life.node.folder.path, os.O_RDONLY)
    found = reader(life, topic, root)
    try:
        bounds_now = found.bounds(queue)
        assert bounds_now is not None
        answer = found.read(queue, bounds_now[0], NO_RECORD, 100_000, 1 << 30, ())
        assert answer is not None
        assert answer[-1] is None
        return [record.offset for record in answer[4]]
    finally:
        found.close()
        os.close(root)


# -- age ------------------------------------------------------------------------------------------------------------


def test_what_is_too_old_goes_also_without_appends(node: TopicNode, world: World) -> None:
    """Minimum, files of log, consume queue and index follow; the last file stays, and min = max for ever."""
    life = node.life()
    appender = node.appender(life)
    fill(life, appender, 1, 1000)
    assert len(bases(node)) > 3
    life.retain()
    assert life.row(1, 0) == {"minimum": 0, "maximum": 500, "appended": 500}  # nothing is too old
    assert bases(node)[0] == 0
    world.hours = 25
    checkpointed(life)
    life.retain(3)
    for queue in range(2):
        assert life.row(1, queue, ("minimum", "maximum", "bytes", "from")) == {
            "minimum": 500, "maximum": 500, "bytes": 0, "from": NO_RECORD
        }  # fmt: skip
    last = life.server.counters()["append"] // node.log_file_bytes * node.log_file_bytes
    assert bases(node)[0] >= last - node.log_file_bytes
    assert bases(node)[-1] >= last
    # what is derived goes behind the checkpoint
    life.until(lambda: [path.name for path in (node.folder.queues / "flights" / "0").iterdir()] == [f"{448 * 20:020d}"])
    life.until(lambda: len(list(node.folder.index.iterdir())) <= 2)  # of four
    assert read_all(life, node.topics[0], 0) == []
    fill(life, appender, 1, 10)
    assert life.row(1, 0) == {"minimum": 500, "maximum": 505, "appended": 505}
    assert life.stop()
    life = node.life()
    assert life.row(1, 0) == {"minimum": 500, "maximum": 505, "appended": 505}
    assert read_all(life, node.topics[0], 1) == list(range(500, 505))
    assert life.stop()


@pytest.mark.parametrize("lost", ["checkpoint", "derived", "settings"])
def test_an_empty_queue_goes_on_whatever_is_lost_but_the_log(node: TopicNode, world: World, lost: str) -> None:
    """The log alone says where a queue goes on of which it has no record: over several turns of all its files."""
    node.topics = [Topic(1, "flights", 2, retention_s=24 * HOUR), Topic(2, "other", 1, retention_s=24 * HOUR)]
    life = node.life()
    appender = node.appender(life)
    fill(life, appender, 1, 100)
    for turn in range(3):
        fill(life, appender, 2, 600, queues=1)
        world.hours += 25
        checkpointed(life)
        life.retain(2)
        assert bases(node)[0] > turn * 2 * MIB
    assert life.stop()
    node.folder.checkpoint.unlink()
    if lost == "derived":
        shutil.rmtree(node.folder.queues)
        shutil.rmtree(node.folder.index)
    if lost == "settings":
        node.consume_queue_entries = 50
    life = node.life()
    assert life.row(1, 0) == {"minimum": 50, "maximum": 50, "appended": 50}
    assert life.row(1, 1) == {"minimum": 50, "maximum": 50, "appended": 50}
    assert life.maximum(2, 0) == 1800
    fill(life, appender, 1, 2)
    assert read_all(life, node.topics[0], 0) == [50]
    assert life.stop()


@pytest.mark.parametrize("lost", ["checkpoint", "derived", "nothing"])
def test_what_went_stays_away_though_no_file_went_and_the_checkpoint_is_lost(node: TopicNode, lost: str) -> None:
    """A minimum that a look raised is in the log, also of a queue that still has messages, and after a kill."""
    node.topics = [Topic(1, "flights", 2, retention_bytes=100_000)]
    life = node.life()
    fill(life, node.appender(life), 1, 40)
    checkpointed(life)
    life.retain(1)
    raised = [life.row(1, queue) for queue in range(2)]
    minimum = raised[0]["minimum"]  # type: ignore[index]
    assert raised == [{"minimum": minimum, "maximum": 20, "appended": 20}] * 2
    assert 0 < minimum < 20
    assert bases(node) == [0]
    life.release()  # no checkpoint, nothing more is synced
    if lost != "nothing":
        node.folder.checkpoint.unlink(missing_ok=True)
    if lost == "derived":
        shutil.rmtree(node.folder.queues)
        shutil.rmtree(node.folder.index)
    life = node.life()
    assert [life.row(1, queue) for queue in range(2)] == raised
    assert read_all(life, node.topics[0], 0) == list(range(minimum, 20))
    assert life.stop()


def test_a_topic_without_retention_keeps_the_log_of_all(node: TopicNode, world: World) -> None:
    node.topics = [Topic(1, "flights", 2, retention_s=24 * HOUR), Topic(2, "kept", 1)]
    life = node.life()
    appender = node.appender(life)
    fill(life, appender, 2, 1, queues=1)
    fill(life, appender, 1, 1000)
    world.hours, world.use = 25, 0.86
    checkpointed(life)
    life.retain(2)
    assert life.row(1, 0) == {"minimum": 500, "maximum": 500, "appended": 500}
    assert bases(node)[0] == 0
    assert read_all(life, node.topics[1], 0) == [0]
    assert any("topic 'kept' has messages there, and no retention" in line for line in node.said)
    node.tell_catalog([node.topics[0]])  # it is deleted
    life.until(lambda: life.row(2, 0) is None)
    checkpointed(life)
    life.retain(2)
    assert bases(node)[0] > 0
    assert life.stop()


# -- size -----------------------------------------------------------------------------------------------------------


def test_of_too_many_bytes_the_oldest_go_of_all_queues(node: TopicNode) -> None:
    """What is left has at most so many bytes, and is the newest by the order of the log; the newest one stays."""
    node.topics = [Topic(1, "flights", 3, retention_bytes=400_000)]
    life = node.life()
    appender = node.appender(life)
    chance = random.Random(1)
    for _ in range(40):
        queue = chance.randrange(3)
        for _ in range(chance.randrange(1, 20)):
            life.until(lambda: appender.get("tail") - appender.get("head") < 20)
            last = appender.append(1, queue, b"x" * chance.randrange(1, 9000))
    life.until(lambda: appender.get("synced") > last)
    life.until(lambda: appender.answer(last).offset < life.maximum(1, queue))
    before = sum(row["bytes"] for row in rows(life, 3))
    assert before == sum(size for of_queue in units(life, node, 3) for _position, size in of_queue)
    assert before > 800_000
    all_units = sorted(unit for of_queue in units(life, node, 3) for unit in of_queue)
    life.retain()
    left = sum(row["bytes"] for row in rows(life, 3))
    kept = [unit for unit in all_units if unit[0] >= min(row["from"] for row in rows(life, 3))]
    assert left == sum(size for _position, size in kept) <= 400_000
    assert left + all_units[-len(kept) - 1][1] > 400_000  # not one more than needed
    node.topics = [Topic(1, "flights", 3, retention_bytes=1)]
    node.tell_catalog(node.topics)
    life.until(lambda: life.service.topics.all()[0].retention_bytes == 1)
    life.retain()
    assert sum(row["maximum"] - row["minimum"] for row in rows(life, 3)) == 1
    assert life.row(1, queue, ("from",)) == {"from": appender.answer(last).position}
    assert life.stop()


def rows(life: Life, queues: int) -> list[dict[str, int]]:
    found = [life.row(1, queue, ("minimum", "maximum", "bytes", "from")) for queue in range(queues)]
    assert all(row is not None for row in found)
    return found  # type: ignore[return-value]


def units(life: Life, node: TopicNode, queues: int) -> list[list[tuple[int, int]]]:
    return [
        [(position, size) for position, size, _tags in node.units("flights", queue, life.maximum(1, queue))]
        for queue in range(queues)
    ]


# -- the disk -------------------------------------------------------------------------------------------------------


def test_on_a_full_disk_the_oldest_go_before_their_time(node: TopicNode, world: World) -> None:
    """A file of the log at a time, as long as the disk asks for it; never the last one."""
    life = node.life()
    appender = node.appender(life)
    fill(life, appender, 1, 2000)
    checkpointed(life)
    count = len(bases(node))
    world.use = 0.84
    life.retain(3)
    assert len(bases(node)) == count
    world.use = 0.86
    before = bases(node)[0]
    life.retain(8)
    assert before < bases(node)[0]
    assert any("full to 86%: messages of topics with a retention go before their time" in line for line in node.said)
    first = life.row(1, 0)["minimum"]  # type: ignore[index]
    assert 0 < first < 1000
    assert read_all(life, node.topics[0], 0) == list(range(first, 1000))
    life.retain(30)
    assert len(bases(node)) >= 1
    assert life.maximum(1, 0) == 1000
    fill(life, appender, 1, 4)
    assert read_all(life, node.topics[0], 0)[-2:] == [1000, 1001]
    assert life.stop()


def test_with_marks_of_1_a_full_disk_takes_nothing_away(node: TopicNode, world: World) -> None:
    """Neither what its retention keeps nor what somebody holds; nor is there an alarm beside that of the disk."""
    node.policy.marks = Marks(quick=1.0, forced=1.0, full=1.0)
    life = node.life()
    appender = node.appender(life)
    fill(life, appender, 1, 2000)
    checkpointed(life)
    before = bases(node)
    world.use = 1.0
    life.until(lambda: node.superblock.get("topics_disk_used") == 1000)
    life.retain(8)
    assert bases(node) == before
    assert life.row(1, 0) == {"minimum": 0, "maximum": 1000, "appended": 1000}
    assert not node.superblock.server_get(SERVER, "alarms") & CONSTANTS["ALARM_TOPICS_DISK"]
    assert life.stop()


def test_above_the_last_mark_the_alarm_is_on(node: TopicNode, world: World) -> None:
    life = node.life()
    alarm = CONSTANTS["ALARM_TOPICS_DISK"]
    life.until(lambda: node.superblock.get("topics_disk_used") == 500)
    assert not node.superblock.server_get(SERVER, "alarms") & alarm
    world.use = 0.91
    life.until(lambda: node.superblock.server_get(SERVER, "alarms") & alarm)
    assert [node.superblock.get(f"topics_disk_{name}") for name in ("used", "total", "limit")] == [910, 1000, 900]
    world.use = 0.89  # not at once
    life.until(lambda: node.superblock.get("topics_disk_used") == 890)
    assert node.superblock.server_get(SERVER, "alarms") & alarm
    world.use = 0.87
    life.until(lambda: not node.superblock.server_get(SERVER, "alarms") & alarm)
    assert life.stop()


# -- holds ----------------------------------------------------------------------------------------------------------


def test_what_is_held_stays_until_it_is_let_go(node: TopicNode, world: World) -> None:
    life = node.life()
    appender = node.appender(life)
    fill(life, appender, 1, 1000)
    node.superblock.slot_move(node.superblock.slot(appender.slot), CONSTANTS["SLOT_ACTIVE"])
    position = node.units("flights", 0, 101)[100][0]
    hold = lambda word: _core.topic_hold(node.superblock.buffer, appender.slot, word)  # noqa: E731
    hold(position + 1)
    world.hours = 25
    checkpointed(life)
    life.retain(2)
    assert life.row(1, 0) == {"minimum": 100, "maximum": 500, "appended": 500}
    assert read_all(life, node.topics[0], 0) == list(range(100, 500))
    assert bases(node)[0] == position // MIB * MIB
    world.use = 0.95  # then it does not count
    life.until(lambda: life.service.retention._full)
    life.retain(2)
    assert life.row(1, 0) == {"minimum": 500, "maximum": 500, "appended": 500}
    world.use = 0.5
    hold(0)
    assert life.stop()


def test_a_dead_clients_hold_ends_with_its_slot(node: TopicNode, world: World) -> None:
    life = node.life()
    appender = node.appender(life)
    fill(life, appender, 1, 100)
    node.superblock.slot_move(node.superblock.slot(appender.slot), CONSTANTS["SLOT_ACTIVE"])
    _core.topic_hold(node.superblock.buffer, appender.slot, 1)
    world.hours = 25
    life.retain()
    assert life.row(1, 0) == {"minimum": 0, "maximum": 50, "appended": 50}
    node.superblock.slot_move(node.superblock.slot(appender.slot), CONSTANTS["SLOT_DEAD"])
    life.retain()
    assert life.row(1, 0) == {"minimum": 50, "maximum": 50, "appended": 50}
    assert node.superblock.give_back(node.superblock.slot(appender.slot))
    assert _core.topic_close(life.rows, node.superblock.buffer, 0) is None
    assert life.stop()


# -- crash points ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["retain_raised", "retain_told", "retain_removed"])
def test_killed_at_each_point_of_a_removal_nothing_else_is_gone(node: TopicNode, world: World, point: str) -> None:
    """Whatever the next start has for a minimum, all messages from there on are there; then retention goes on."""
    node.topics = [Topic(1, "flights", 2, retention_s=24 * HOUR), Topic(2, "other", 1)]
    life = node.life()
    appender = node.appender(life)
    fill(life, appender, 1, 1000)
    fill(life, appender, 2, 10, queues=1)
    assert life.stop()
    count = len(bases(node))
    world.hours = 25
    node.policy = Policy(check_s=0.05, clock=node.policy.clock, disk=world.disk)
    node.superblock.arm_crash(point)
    pid = node.child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    node.superblock.disarm_crash()
    assert len(bases(node)) == count - (point == "retain_removed")
    node.policy = Policy(check_s=HOUR, clock=node.policy.clock, disk=world.disk)
    life = node.life()
    for queue in range(2):
        row = life.row(1, queue)
        assert row is not None
        assert row["maximum"] == 500
        assert read_all(life, node.topics[0], queue) == list(range(row["minimum"], 500))
    assert life.row(1, 0)["minimum"] == (0 if point == "retain_raised" else 500)  # type: ignore[index]
    checkpointed(life)
    life.retain(3)
    assert life.row(1, 0) == {"minimum": 500, "maximum": 500, "appended": 500}
    assert len(bases(node)) < count - 2
    assert read_all(life, node.topics[1], 0) == list(range(10))
    assert life.stop()


def test_a_file_that_retention_did_not_remove_is_missed(node: TopicNode, world: World) -> None:
    """The log begins where it may: a start refuses one that lacks more, also without a checkpoint."""
    life = node.life()
    appender = node.appender(life)
    fill(life, appender, 1, 600)
    world.hours = 25
    checkpointed(life)
    life.retain(2)
    fill(life, appender, 1, 600)
    assert life.stop()
    assert bases(node)[0] > 0
    (node.folder.log / f"{bases(node)[0]:020d}").unlink()
    with pytest.raises(CorruptRecord, match="missing"):
        node.life()
    node.folder.checkpoint.unlink()
    with pytest.raises(CorruptRecord, match="missing"):
        node.life()


def test_against_a_list_with_kills(node: TopicNode, world: World, seed: int) -> None:
    """Two topics, one by age, one by size; appends, time that passes, looks, kills and clean stops, a lost checkpoint.
    What is confirmed and not expired is read, in order; minima never fall below what a look left, unless all is there.
    """
    chance = random.Random(seed)
    node.topics = [Topic(1, "flights", 2, retention_s=24 * HOUR), Topic(2, "sized", 1, retention_bytes=500_000)]
    appended = {(1, 0): 0, (1, 1): 0, (2, 0): 0}
    expired = dict.fromkeys(appended, 0)  # surely gone
    appender = node.appender()
    life: Life | None = None
    for _ in range(int(os.environ.get("WARREN_RETENTION_ROUNDS", "14"))):
        if life is None:
            life = node.life()
        for topic, queues in ((1, 2), (2, 1)):
            count = chance.randrange(1, 200)
            fill(life, appender, topic, count, size=chance.randrange(10, 6000), queues=queues)
        appended = {key: life.maximum(*key) for key in appended}
        if chance.random() < 0.4:
            world.hours = 25
            for queue in range(2):
                expired[1, queue] = appended[1, queue]
            checkpointed(life)
        life.retain(chance.randrange(1, 4))
        world.hours = 0
        check_model(life, node, appended, expired)
        what = chance.random()
        if what < 0.3:
            assert life.stop()
            life = None
        elif what < 0.6:
            life.release()  # no checkpoint, nothing more is synced
            life = None
        if life is None and chance.random() < 0.4:
            node.folder.checkpoint.unlink(missing_ok=True)
    if life is not None:
        assert life.stop()
    life = node.life()
    checkpointed(life)
    life.retain(3)
    check_model(life, node, appended, expired)
    assert life.stop()


def check_model(
    life: Life, node: TopicNode, appended: dict[tuple[int, int], int], expired: dict[tuple[int, int], int]
) -> None:
    for key, count in appended.items():
        row = life.row(*key, ("minimum", "maximum", "bytes", "from"))
        assert row is not None
        assert row["maximum"] == count
        topic = node.topics[key[0] - 1]
        if topic.retention_s is not None:
            assert row["minimum"] == expired[key], (key, row)
        else:
            assert row["bytes"] <= 500_000
            assert row["minimum"] < max(1, count)
        assert read_all(life, topic, key[1]) == list(range(row["minimum"], count))
        found = node.found_by_key(topic.name, f"k{key[0]}-{row['minimum']}")
        assert row["minimum"] == count or any(position >= row["from"] for position in found)


# -- groups ---------------------------------------------------------------------------------------------------------


def test_what_groups_committed_outlives_the_log_and_the_snapshot(node: TopicNode, world: World) -> None:
    """The record of a commit is in a file that goes: it is told again in the log before."""
    from warren.engine.topics.groups import Committed

    life = node.life()
    appender = node.appender(life)
    fill(life, appender, 1, 100)
    end = life.service.groups._append((1, "report"), {0: Committed(3, 17)})
    life.service.groups._offsets[1, "report"] = {0: Committed(3, 17)}
    life.until(lambda: life.server.counters()["synced"] >= end)
    fill(life, appender, 1, 900)
    world.hours = 25
    checkpointed(life)
    life.retain()
    life.until(lambda: life.service.groups.snapshot.saved > 3 * MIB)  # the log was needed for the snapshot
    life.retain(2)
    assert bases(node)[0] > end
    assert life.stop()
    node.folder.groups.unlink()
    life = node.life()
    assert life.service.groups._offsets == {(1, "report"): {0: Committed(3, 17)}}
    assert life.stop()


def test_who_needs_the_log_keeps_its_files(node: TopicNode, world: World) -> None:
    life = node.life()
    life.service.retention.needed["a test"] = lambda _first: MIB + 5
    fill(life, node.appender(life), 1, 1000)
    world.hours = 25
    checkpointed(life)
    life.retain(3)
    assert bases(node)[0] == MIB
    assert life.row(1, 0) == {"minimum": 500, "maximum": 500, "appended": 500}
    assert life.stop()


# -- time -----------------------------------------------------------------------------------------------------------


def test_a_clock_that_steps_makes_nothing_old() -> None:
    """Steps forward are believed after an hour, steps back at once; time passes by what the machine counts."""
    now = {"wall": 1000.0, "passed": 10.0}
    clock = RetentionClock(lambda: now["wall"], lambda: now["passed"])

    def passes(seconds: float) -> None:
        now["wall"] += seconds
        now["passed"] += seconds

    assert clock.now_ms() == 1_000_000
    passes(50)
    assert clock.now_ms() == 1_050_000
    now["wall"] += 86400 * 365
    assert clock.now_ms() == 1_050_000
    passes(HELD_S / 2)
    assert clock.now_ms() == int((1050 + HELD_S / 2) * 1000)
    now["wall"] -= 86400 * 365
    assert clock.now_ms() == int((1050 + HELD_S / 2) * 1000)
    now["wall"] += 86400
    clock.now_ms()
    passes(HELD_S)
    assert clock.now_ms() == int((1050 + HELD_S * 1.5 + 86400) * 1000)
    now["wall"] -= 2 * 86400
    assert clock.now_ms() == int((1050 + HELD_S * 1.5 - 86400) * 1000)
    now["wall"] += 3  # slewed
    assert clock.now_ms() == int((1053 + HELD_S * 1.5 - 86400) * 1000)


def test_bounds_come_in_parts() -> None:
    told = [bounds.Bound(1, queue, 5, 5) for queue in range(2500)]
    bodies = list(bounds.encode(MIB, told))
    assert len(bodies) == 3
    assert sum(map(len, bodies)) <= bounds.encoded_bytes(told)
    assert len(list(bounds.encode(MIB, []))) == 1
