"""Goal: what a topic worker confirmed is there, once, with the offset that it said, after any death; what it derives
from its log follows, whatever became of it; what cannot be served is said, and nothing is overwritten.

Method: the worker's server and service without a node, clients by hand (support/topic_probe.py); kills of a child
process at random and at each crash point; damage, cut and missing files; a small disk. Files are read by the tables of
the formats (support/topic_tables.py).
"""

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine import _core
from warren.engine.errors import CorruptRecord, StoreError
from warren.engine.topics.service import tell
from warren.ipc.layout import CONSTANTS, CRASH_POINTS

from support.small_disk import Disk
from support.topic_log import log_files
from support.topic_probe import MIB, NO, OK, SERVER, Appender, Life, Topic, TopicNode
from support.waiting import wait_until

TRIES = int(os.environ.get("WARREN_TOPIC_KILLS", "12"))


@pytest.fixture
def node(tmp_path: Path) -> TopicNode:
    return TopicNode(tmp_path / "node")


@contextlib.contextmanager
def living(node: TopicNode) -> Iterator[Life]:
    """A worker that is stopped in good order."""
    life = node.life()
    try:
        yield life
    except BaseException:
        life.release()
        raise
    assert life.stop()


def synced(life: Life, appender: Appender, sequence: int) -> None:
    life.until(lambda: appender.get("synced") > sequence)


def test_an_append_is_in_log_queue_and_index_with_the_topics_id(node: TopicNode) -> None:
    node.topics = [Topic(7, "flights", 2), Topic(9, "empty", 1)]
    with living(node) as life:
        appender = node.appender(life)
        properties = {"KEYS": "N14228 N24211", "TAGS": "UA", "UNIQ_KEY": "u-1", "origin": "EWR"}
        first = appender.append(7, 1, b"a flight", properties=properties)
        many = appender.append_many(7, 1, [b"%d" % i for i in range(50)])
        unsynced = appender.append(7, 0, b"accepted", synced=False)
        synced(life, appender, many)
        life.until(lambda: life.maximum(7, 1) == 51 and life.maximum(7, 0) == 1)
        assert appender.answer(first)[:2] == (OK, 0)
        assert appender.answer(many)[:2] == (OK, 1)
        assert appender.answer(unsynced)[:2] == (OK, 0)
        assert life.row(7, 1) == {"minimum": 0, "maximum": 51, "appended": 51}
        assert life.row(9, 0) == {"minimum": 0, "maximum": 0, "appended": 0}
        assert life.row(9, 1) is None
        record = node.record(appender.answer(first).position)
        assert (record["flag"], record["properties"], record["body"]) == (7, properties, b"a flight")
        assert node.bodies("flights", 1, 51) == [b"a flight", *(b"%d" % i for i in range(50))]
        for key in ("N14228", "N24211", "u-1"):
            assert node.found_by_key("flights", key) == [appender.answer(first).position]
        (unit,) = node.units("flights", 1, 1)
        assert unit[2] == 2700  # Java's hash of UA
        life.until(lambda: node.superblock.server_get(SERVER, "messages") == 52)
    assert not (node.folder.queues / "empty").exists()


def test_a_record_with_many_keys_is_found_by_each(node: TopicNode) -> None:
    node.index_entries = 5000
    keys = [f"k{i}" for i in range(3000)]
    with living(node) as life:
        appender = node.appender(life)
        sequence = appender.append(1, 0, b"", properties={"KEYS": " ".join(keys)})
        synced(life, appender, sequence)
        life.until(lambda: life.maximum(1, 0) == 1)
        for key in (keys[0], keys[1500], keys[-1]):
            assert node.found_by_key("flights", key) == [appender.answer(sequence).position]


def test_a_stop_and_a_start_go_on_with_the_next_offset(node: TopicNode) -> None:
    bodies = []
    for round in range(3):
        with living(node) as life:
            assert life.recovered.checkpoint == ("good" if round else "none")
            assert not life.recovered.torn
            assert life.maximum(1, 0) == len(bodies)  # shown at once: the log is walked
            appender = node.appender(life)
            for i in range(300):
                sequence = appender.append(1, 0, b"%d of %d" % (i, round) * 20)
                bodies.append(b"%d of %d" % (i, round) * 20)
            synced(life, appender, sequence)
            assert appender.answer(sequence).offset == len(bodies) - 1
        assert node.bodies("flights", 0, len(bodies)) == bodies


def test_files_of_the_log_follow_each_other(node: TopicNode) -> None:
    """Much more than the ring, and some files."""
    bodies = [b"%07d" % i * 100 for i in range(4000)]
    with living(node) as life:
        appender = node.appender(life)
        for i in range(0, len(bodies), 20):
            life.until(lambda: appender.get("tail") - appender.get("head") < 40)
            sequence = appender.append_many(1, 0, bodies[i : i + 20], synced=i % 100 == 0)
        life.until(lambda: life.maximum(1, 0) == len(bodies))
        assert appender.answer(sequence).offset == len(bodies) - 20
    files = sorted(path.name for path in log_files(node.folder.log))
    assert files[:4] == [f"{i * node.log_file_bytes:020d}" for i in range(4)]
    assert all(path.stat().st_size == node.log_file_bytes for path in log_files(node.folder.log))
    assert node.bodies("flights", 0, len(bodies)) == bodies


def expect_all_once(
    node: TopicNode, sent: list[list[bytes]], confirmed: dict[tuple[int, int], tuple[int, int]]
) -> None:
    """All that was sent is there once, in order, where it was said to be."""
    found = {queue: node.bodies("flights", queue, life_max) for queue, life_max in enumerate(maxima(node))}
    for who, bodies in enumerate(sent):
        of_mine = [body for queue in sorted(found) for body in found[queue] if body.startswith(b"%d:" % who)]
        assert sorted(of_mine) == sorted(bodies)
        assert len(set(of_mine)) == len(of_mine)
    for (who, number), (offset, position) in confirmed.items():
        record = node.record(position)
        assert (record["queue_offset"], record["body"]) == (offset, sent[who][number])


def maxima(node: TopicNode) -> list[int]:
    life = node.life()
    try:
        return [life.maximum(1, queue) for queue in range(2)]
    finally:
        life.release()


def harvest(appenders: list[Appender], looked: list[int], confirmed: dict[tuple[int, int], tuple[int, int]]) -> None:
    """Take the answers of what is confirmed, before their places are used again."""
    for who, appender in enumerate(appenders):
        while looked[who] < appender.get("synced"):
            answer = appender.answer(looked[who])
            assert answer.result == OK
            confirmed[who, looked[who]] = (answer.offset, answer.position)
            looked[who] += 1


def reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_killed_at_any_instant_all_that_was_confirmed_is_there_once(node: TopicNode, seed: int) -> None:
    chance = random.Random(seed)
    node.log_file_bytes = 1 << 18
    appenders = [node.appender(), node.appender()]
    sent: list[list[bytes]] = [[], []]
    looked = [0, 0]
    confirmed: dict[tuple[int, int], tuple[int, int]] = {}
    for _ in range(TRIES):
        pid = node.child()
        until = time.monotonic() + chance.random() * 0.4
        while time.monotonic() < until:
            harvest(appenders, looked, confirmed)
            for who, appender in enumerate(appenders):
                if len(sent[who]) - looked[who] < 500:
                    body = b"%d:%d:" % (who, len(sent[who])) + b"x" * chance.randrange(300)
                    appender.append(1, chance.randrange(2), body)
                    sent[who].append(body)
        os.kill(pid, signal.SIGKILL)
        assert reap(pid) == -signal.SIGKILL
        harvest(appenders, looked, confirmed)
    with living(node) as life:
        for who, appender in enumerate(appenders):
            life.until(lambda appender=appender, who=who: appender.get("synced") == len(sent[who]))
        harvest(appenders, looked, confirmed)
    assert len(confirmed) == len(sent[0]) + len(sent[1])
    expect_all_once(node, sent, confirmed)


@pytest.mark.parametrize(
    "point",
    [point for point in CRASH_POINTS if point.startswith("topic_") and "_later" not in point and "_hal" not in point],
)
def test_killed_at_each_point_of_a_start_the_next_one_has_it_all(node: TopicNode, point: str) -> None:
    node.log_file_bytes = 1 << 18
    bodies = [b"%d" % i * 150 for i in range(1500)]
    with living(node) as life:
        appender = node.appender(life)
        for body in bodies[:300]:
            sequence = appender.append(1, 0, body)
        synced(life, appender, sequence)
    for body in bodies[300:]:
        appender.append(1, 0, body) if appender.get("tail") < 1000 else None
    sent = bodies[: appender.get("tail")]
    node.superblock.arm_crash(point)
    assert reap(node.child()) == -signal.SIGKILL
    node.superblock.disarm_crash()
    with living(node) as life:
        life.until(lambda: appender.get("synced") == len(sent))
        life.until(lambda: life.maximum(1, 0) == len(sent))
        assert not list(node.folder.log.glob("*.new"))
    assert node.bodies("flights", 0, len(sent)) == sent


def test_a_topic_made_again_after_a_kill_shows_nothing_of_before(node: TopicNode) -> None:
    appender = node.appender()
    for i in range(50):
        appender.append(1, i % 2, b"old", properties={"KEYS": "k"})
    pid = node.child()
    wait_until(lambda: appender.get("synced") == 50, 30, what="the old records")
    os.kill(pid, signal.SIGKILL)
    reap(pid)
    node.tell_catalog([Topic(2, "flights", 3)])
    with living(node) as life:
        assert life.row(1, 0) is None
        assert [life.maximum(2, queue) for queue in range(3)] == [0, 0, 0]
        late = appender.append(1, 0, b"for the old one")
        life.until(lambda: appender.get("processed") > late)
        assert appender.answer(late).result == NO
        sequence = appender.append(2, 0, b"new", properties={"KEYS": "k"})
        synced(life, appender, sequence)
        life.until(lambda: life.maximum(2, 0) == 1)
        assert appender.answer(sequence).offset == 0
        # once more, while it runs
        node.tell_catalog([Topic(3, "flights", 1)])
        life.until(lambda: life.row(3, 0))
        assert life.row(2, 0) is None
        sequence = appender.append(3, 0, b"newest", properties={"KEYS": "k"})
        synced(life, appender, sequence)
        life.until(lambda: life.maximum(3, 0) == 1)
        assert node.superblock.server_get(SERVER, "catalog_read") == node.superblock.get("catalog_version")
    assert node.bodies("flights", 0, 1) == [b"newest"]
    assert sorted(path.name for path in (node.folder.queues / "flights").iterdir()) == ["0"]
    # and when all that is derived is made anew
    node.folder.checkpoint.unlink()
    with living(node) as life:
        assert life.recovered.checkpoint == "none"
        assert life.maximum(3, 0) == 1
    assert node.bodies("flights", 0, 1) == [b"newest"]


def test_who_names_a_topic_that_is_new_waits_until_the_catalog_was_read(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        unknown = appender.append(8, 0, b"never declared")
        life.until(lambda: appender.get("processed") > unknown)
        assert appender.answer(unknown).result == NO
        node.topics = [*node.topics, Topic(8, "late", 1)]
        node.superblock.set("catalog_version", 2)  # the worker was not woken
        late = appender.append(8, 0, b"declared")
        synced(life, appender, late)
        assert appender.answer(late)[:2] == (OK, 0)
        bad = appender.append(8, 1, b"a queue too many")
        life.until(lambda: appender.get("processed") > bad)
        assert appender.answer(bad).result == NO


def test_a_torn_tail_is_cut_and_damage_in_what_was_confirmed_is_not(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        for i in range(20):
            last = appender.append(1, 0, b"%d" % i * 50)
            synced(life, appender, last)
    position = appender.answer(last).position
    path = node.folder.log / f"{0:020d}"
    whole = path.read_bytes()

    def with_a_byte_changed(at: int) -> None:
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([whole[at] ^ 0x20]))

    # The newest commit: nobody says that it was synced but the checkpoint, so it is as if it had never been.
    node.folder.checkpoint.unlink()
    with_a_byte_changed(position + 100)
    with living(node) as life:
        assert life.recovered.torn
        assert life.maximum(1, 0) == 19
        tell(node.said, life.recovered)
        assert "was cut off" in node.said[-1]
        again = node.appender(life)
        assert appender.get("synced") == 20
        sequence = again.append(1, 0, b"in its place")
        synced(life, again, sequence)
        assert again.answer(sequence).offset == 19
    # One in the middle.
    node.folder.checkpoint.unlink()
    whole = path.read_bytes()
    with_a_byte_changed(appender.answer(5).position + 100)
    damaged = path.read_bytes()
    with pytest.raises(CorruptRecord, match=r"a commit that a later one.* knows.*restore") as caught:
        node.life()
    assert caught.value.path == path
    assert caught.value.position <= appender.answer(5).position
    assert path.read_bytes() == damaged


def test_a_file_of_the_log_that_is_cut_or_missing_is_said(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        for _ in range(300):
            life.until(lambda: appender.get("tail") - appender.get("head") < 40)
            sequence = appender.append(1, 0, b"x" * 10_000)
        synced(life, appender, sequence)
    files = log_files(node.folder.log)
    assert len(files) > 3
    kept = {path: path.read_bytes() for path in files}
    for path in files[:3]:
        path.unlink()
        if path != files[0]:  # retention removes the first ones
            with pytest.raises(CorruptRecord, match="missing: restore"):
                node.life()
        path.write_bytes(kept[path])
        os.truncate(path, node.log_file_bytes - 4096)
        with pytest.raises(CorruptRecord, match="was cut: restore"):
            node.life()
        path.write_bytes(kept[path])
    for path in files:
        path.unlink()
    with pytest.raises(CorruptRecord, match="missing: restore"):
        node.life()
    for path, content in kept.items():
        path.write_bytes(content)
    with living(node) as life:
        assert life.maximum(1, 0) == 300


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(node: TopicNode, match: str) -> CorruptRecord:
    """A start is, and nothing of the folder was changed, nor anything added."""
    before = everything(node.folder.path)
    with pytest.raises(CorruptRecord, match=match) as caught:
        node.life()
    assert everything(node.folder.path) == before
    return caught.value


def appended(node: TopicNode, count: int) -> int:
    """Append messages of one size, a commit each; where the log ends."""
    with living(node) as life:
        appender = node.appender(life)
        for number in range(count):
            synced(life, appender, appender.append(1, 0, b"%07d" % number * 50, properties={"KEYS": "k"}))
    with living(node) as life:
        return life.recovered.position


@pytest.fixture
def stranger(tmp_path: Path) -> TopicNode:
    other = TopicNode(tmp_path / "stranger")
    other.superblock.set("node_id", 12345)
    return other


@pytest.mark.parametrize("mine", ["nothing", "messages", "no checkpoint"])
def test_the_log_of_another_node_is_left_alone(node: TopicNode, stranger: TopicNode, mine: str) -> None:
    appended(node, 0 if mine == "nothing" else 5)
    appended(stranger, 7)
    if mine == "no checkpoint":
        node.folder.checkpoint.unlink()
    shutil.rmtree(node.folder.log)
    shutil.copytree(stranger.folder.log, node.folder.log)
    (node.folder.log / f"{MIB:020d}.new").write_bytes(b"left of a start")
    found = refused(node, "expected a commit of this node, found one of node 000000003039: .*restore the folder")
    assert (found.path, found.position) == (node.folder.log / f"{0:020d}", 0)


def test_commits_of_another_node_behind_ones_own_are_not_cut_off(node: TopicNode, stranger: TopicNode) -> None:
    end = appended(node, 5)
    appended(stranger, 9)
    path = node.folder.log / f"{0:020d}"
    theirs = (stranger.folder.log / path.name).read_bytes()
    path.write_bytes(path.read_bytes()[:end] + theirs[end:])
    found = refused(node, "one of node 000000003039")
    assert (found.path, found.position) == (path, end)
    # A file of its own, behind the one in which this node's log ends.
    path.write_bytes(path.read_bytes()[:end] + bytes(node.log_file_bytes - end))
    with living(stranger) as life:
        appender = stranger.appender(life)
        for _ in range(150):
            life.until(lambda: appender.get("tail") - appender.get("head") < 40)
            sequence = appender.append(1, 0, b"x" * 10_000)
        synced(life, appender, sequence)
    second = f"{MIB:020d}"
    shutil.copy(stranger.folder.log / second, node.folder.log / second)
    assert refused(node, "one of node 000000003039").path == node.folder.log / second
    (node.folder.log / second).unlink()
    with living(node) as life:
        assert life.maximum(1, 0) == 5


@pytest.mark.parametrize("checkpoint", ["kept", "damaged", "removed"])
@pytest.mark.parametrize("log", ["no file", "zeros", "older"])
def test_a_log_that_lacks_what_was_there_is_not_gone_on_with(node: TopicNode, log: str, checkpoint: str) -> None:
    """Nothing is silently empty: what was derived says that there was a log."""
    appended(node, 3)
    path = node.folder.log / f"{0:020d}"
    older = path.read_bytes()
    appended(node, 3)
    if log == "no file":
        path.unlink()
    else:
        path.write_bytes(older if log == "older" else bytes(node.log_file_bytes))
    if checkpoint == "removed":
        node.folder.checkpoint.unlink()
    elif checkpoint == "damaged":
        node.folder.checkpoint.write_bytes(b"damaged" * 100)
    if (log, checkpoint) in (("older", "damaged"), ("older", "removed")):  # nobody can say that there was more
        with living(node) as life:
            assert life.maximum(1, 0) == 3
        return
    assert refused(node, "restore the folder of topics from a backup").path == path


def test_what_is_derived_is_made_again_from_the_log(node: TopicNode) -> None:
    """The checkpoint is damaged, or the files are of other settings; a file is cut while it is in use."""
    bodies = [b"%d" % i for i in range(500)]
    with living(node) as life:
        appender = node.appender(life)
        for body in bodies:
            sequence = appender.append(1, 0, body, properties={"KEYS": f"k{body[-1]}"})
        synced(life, appender, sequence)
    content = bytearray(node.folder.checkpoint.read_bytes())
    content[20] ^= 1
    node.folder.checkpoint.write_bytes(content)
    with living(node) as life:
        assert life.recovered.checkpoint == "damaged"
        tell(node.said, life.recovered)
        assert "made anew" in node.said[-1]
    assert node.bodies("flights", 0, 500) == bodies
    node.consume_queue_entries = 70
    with living(node) as life:
        assert life.recovered.checkpoint == "settings"
    assert node.bodies("flights", 0, 500) == bodies
    life = node.life()
    try:
        for path in (node.folder.queues / "flights" / "0").iterdir():
            os.truncate(path, 100)
        appender = node.appender(life)
        for _ in range(200):
            appender.append(1, 0, b"more")
        with pytest.raises(StoreError, match="makes them anew"):
            life.until(lambda: False)
    finally:
        life.release()
    with living(node) as life:  # what it had not executed comes from the ring
        life.until(lambda: appender.get("synced") == 200)
        life.until(lambda: life.maximum(1, 0) == 700)
    assert node.bodies("flights", 0, 700) == [*bodies, *[b"more"] * 200]


def test_a_thousand_topics_start_and_keep_no_file_of_theirs(node: TopicNode) -> None:
    node.topics = [Topic(i + 1, f"t{i}", 4) for i in range(1000)]
    with living(node) as life:
        appender = node.appender(life)
        for i in range(0, 1000, 111):
            sequence = appender.append(i + 1, i % 4, b"one")
        synced(life, appender, sequence)
        life.until(lambda: all(life.maximum(i + 1, i % 4) == 1 for i in range(0, 1000, 111)))
    assert len(list(node.folder.queues.iterdir())) == 10
    written = {path: path.stat().st_mtime_ns for path in node.folder.queues.rglob("*") if path.is_file()}
    with living(node) as life:
        assert (life.recovered.topics, life.recovered.absent) == (1000, "")
        assert life.maximum(112, 3) == 1
        assert life.maximum(1000, 3) == 1
        descriptors = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
        assert not [path for path in descriptors if "consumequeue" in path]
        with open("/proc/self/maps") as maps:
            assert "consumequeue" not in maps.read()
    assert written == {path: path.stat().st_mtime_ns for path in node.folder.queues.rglob("*") if path.is_file()}


def _is_open(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def test_a_client_that_ends_is_finished_and_another_takes_its_slot(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        for i in range(100):
            appender.append(1, 0, b"%d" % i, synced=False)
        life.server.closing(appender.slot)
        life.until(lambda: appender.slot not in [row[0] for row in life.server.attached()])
        assert appender.get("head") == 100
        assert node.superblock.server_done(appender.slot, SERVER) == appender.generation
        life.take_up(appender)
        life.until(lambda: life.maximum(1, 0) == 100)


def test_a_start_forgets_clients_that_are_gone(node: TopicNode) -> None:
    """Marks of all clients that ever were would make each checkpoint larger."""

    def marks() -> int:
        return int.from_bytes(node.folder.checkpoint.read_bytes()[124:128], "big")

    with living(node) as life:
        for _ in range(5):
            appender = node.appender(life)
            synced(life, appender, appender.append(1, 0, b"x"))
    assert marks() == 5
    del node.appenders[:3]
    with living(node):
        pass
    assert marks() == 2


def test_a_full_disk_stops_appends_alone_and_they_go_on_with_space(small_disk: Path) -> None:
    disk = Disk(small_disk)
    node = TopicNode(disk.directory)
    sent = 0
    with living(node) as life:
        appender = node.appender(life)
        sequence = appender.append(1, 0, b"before", properties={"KEYS": "k"})
        synced(life, appender, sequence)
        sent += 1
        with disk.kept_full(0):
            alarmed = lambda: node.superblock.server_get(SERVER, "alarms") & CONSTANTS["ALARM_DISK"]  # noqa: E731
            while not alarmed():
                if appender.get("tail") - appender.get("head") < 40:
                    appender.append_many(1, 0, [b"x" * 3000] * 20)
                    sent += 20
                life.service.turn(5_000_000)
            assert node.superblock.server_get(SERVER, "file_error")
            assert "waits" in node.said[-1]
            waiting = appender.get("tail")
            for _ in range(100):
                life.service.turn(1_000_000)
        disk.empty()
        life.until(lambda: appender.get("synced") == waiting)
        life.until(lambda: life.maximum(1, 0) == sent)
        life.until(lambda: not alarmed())
        assert "space again" in node.said[-1]
    assert node.bodies("flights", 0, sent) == [b"before", *[b"x" * 3000] * (sent - 1)]


def test_events_that_are_handled_are_not_told_again(node: TopicNode) -> None:
    with living(node) as life:
        life.server.kick()
        assert life.server.run(1_000_000_000) & _core.TOPIC_EVENT_KICK
        life.server.request_stop()
        assert life.server.run(1_000_000_000) & _core.TOPIC_EVENT_STOP
        life.server.pending(_core.TOPIC_EVENT_STOP, True)
        assert life.server.run(1_000_000) == _core.TOPIC_EVENT_TIMER
