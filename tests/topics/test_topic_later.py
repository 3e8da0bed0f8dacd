"""Goal: a message that comes later comes once, not before its time, whenever its worker is killed; what is pending is
taken up from a snapshot and the log behind it, or from the log alone; what is wrong with the snapshot is said.

Method: the worker's server and service without a node, a client by hand (support/topic_probe.py); kills of a child
process at random and at each crash point; a damaged, missing, old, foreign snapshot; damage in the log. Files are read
by the tables of the formats (support/topic_tables.py).
"""

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.kernel import atomic_file
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.topics import kept
from warren.engine.topics.formats import LATER, PENDING
from warren.ipc.layout import CONSTANTS, CRASH_POINTS

from support.small_disk import Disk
from support.topic_probe import OK, SERVER, Appender, Life, Topic, TopicNode

#: between two messages of a program that appends until it is killed: some thousand are enough
PACE_S = 0.0003
TRIES = int(os.environ.get("WARREN_TOPIC_KILLS", "12"))
FULL = PROTOCOL["RESULT_FULL"]
LONG_MS = 3_600_000
NONE_YET = (1 << 64) - 1


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


def came_once(node: TopicNode, sent: dict[bytes, tuple[int, dict[str, str]]]) -> None:
    """Each message is in its queue once, not before its time, with what was given to it, in the order of the times."""
    found = node.records()
    to_come = {fields["position"]: fields for fields in found if fields["topic"] == "rmq_sys_wheel_timer"}
    came = [fields for fields in found if fields["prepared_transaction_offset"]]
    assert sorted(fields["body"] for fields in came) == sorted(sent)
    pending: dict[int, int] = {}
    for fields in found:
        if fields["position"] in to_come:
            pending[fields["position"]] = int(fields["properties"]["TIMER_OUT_MS"])
            continue
        position = fields["prepared_transaction_offset"] - 1
        before, (queue, properties) = to_come[position], sent[fields["body"]]
        assert min(pending, key=lambda at: (pending[at], at)) == position
        assert fields["store_timestamp"] >= pending.pop(position)
        assert (before["body"], before["flag"], before["properties"]["REAL_QID"]) == (fields["body"], 1, str(queue))
        assert (fields["topic"], fields["queue_id"], fields["properties"]) == ("flights", queue, properties)
        assert fields["born_timestamp"] == before["born_timestamp"]
        assert before["store_timestamp"] >= before["born_timestamp"]
    assert not pending
    for queue in (0, 1):
        offsets = [fields["queue_offset"] for fields in came if fields["queue_id"] == queue]
        assert offsets == list(range(len(offsets)))


def pending(life: Life) -> int:
    count: int = life.server.counters()["delayed"]
    return count


def reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def said(node: TopicNode, what: str) -> list[str]:
    return [line for line in node.said if what in line]


def put_off(life: Life, appender: Appender, count: int, queue: int = 0, topic: int = 1) -> list[int]:
    """So many messages that nobody will see in this test; their commands."""
    sequences = [appender.append_later(topic, queue, b"%d" % n, LONG_MS, {}) for n in range(count)]
    life.until(lambda: appender.get("synced") > sequences[-1])
    assert all(appender.answer(sequence)[:2] == (OK, NONE_YET) for sequence in sequences)
    return sequences


def test_it_is_of_a_system_topic_until_it_comes(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        given = {"KEYS": "N14228 N24211", "TAGS": "UA", "origin": "EWR"}
        sequence = appender.append_later(1, 1, b"a flight", 200, given)
        life.until(lambda: appender.get("synced") > sequence)
        result, offset, position = appender.answer(sequence)
        assert (result, offset) == (OK, NONE_YET)
        record = node.record(position)
        properties = record["properties"]
        assert (record["topic"], record["queue_id"], record["queue_offset"], record["flag"]) == (
            *("rmq_sys_wheel_timer", 0),
            *(0, 1),
        )
        due = int(properties["TIMER_OUT_MS"])
        assert record["store_timestamp"] <= due - 200 <= record["store_timestamp"] + 5000
        assert properties == {
            **given,
            "TIMER_DELAY_MS": "200",
            "REAL_TOPIC": "flights",
            "REAL_QID": "1",
            "TIMER_OUT_MS": str(due),
        }
        assert life.delayed(1) == 1
        assert life.maximum(1, 1) == 0
        life.until(lambda: life.maximum(1, 1) == 1)
        assert life.delayed(1) == 0
        (came,) = [fields for fields in node.records() if fields["topic"] == "flights"]
        assert (came["prepared_transaction_offset"], came["properties"], came["queue_offset"]) == (
            position + 1,
            given,
            0,
        )
        assert came["store_timestamp"] >= due
        for key in ("N14228", "N24211"):
            assert node.found_by_key("flights", key) == [came["position"]]
    came_once(node, {b"a flight": (1, given)})


def test_killed_at_any_instant_each_comes_once(node: TopicNode, seed: int) -> None:
    chance = random.Random(seed)
    node.log_file_bytes, node.delayed_max = 1 << 18, 1 << 20  # nothing is refused, however fast the machine is
    appender = node.appender()
    sent: dict[bytes, tuple[int, dict[str, str]]] = {}
    for tried in itertools.count(1):
        pid = node.child()
        until = time.monotonic() + chance.random() * 0.4
        while time.monotonic() < until:
            time.sleep(PACE_S)
            if len(sent) - appender.get("head") < 300:
                body, properties = b"%d:" % len(sent) + b"x" * chance.randrange(300), {"KEYS": f"k{len(sent)}"}
                queue = chance.randrange(2)
                appender.append_later(1, queue, body, chance.randrange(60), properties)
                sent[body] = (queue, properties)
        os.kill(pid, signal.SIGKILL)
        assert reap(pid) == -signal.SIGKILL
        if tried >= TRIES and len(sent) > 100:  # a busy machine needs more
            break
    with living(node) as life:
        life.until(lambda: appender.get("synced") == len(sent) and not pending(life))
    came_once(node, sent)


@pytest.mark.parametrize("point", [point for point in CRASH_POINTS if point.startswith("topic_later")])
@pytest.mark.parametrize("times", [0, 3])
def test_killed_at_each_point_each_comes_once(
    node: TopicNode, point: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "LOG_BYTES", 4096)
    appender = node.appender()
    sent: dict[bytes, tuple[int, dict[str, str]]] = {}
    node.superblock.arm_crash(point, times)
    pid = node.child()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(PACE_S)
        if len(sent) - appender.get("head") < 100:
            body = b"%d" % len(sent)
            appender.append_later(1, len(sent) % 2, body, len(sent) % 20, {})
            sent[body] = (len(sent) % 2, {})
    node.superblock.disarm_crash()
    with living(node) as life:
        life.until(lambda: appender.get("synced") == len(sent) and not pending(life))
    came_once(node, sent)


def test_a_start_reads_the_log_from_the_snapshot_on(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        put_off(life, appender, 50)
        assert pending(life) == 50
    snapshot = node.folder.later.read_bytes()
    assert len(snapshot) == LATER.size + 50 * PENDING.size
    assert (LATER.unpack(snapshot, "pending_n"), LATER.unpack(snapshot, "version")) == (50, 1)
    positions = [PENDING.unpack(snapshot, "position", LATER.size + n * PENDING.size) for n in range(50)]
    assert positions == [fields["position"] for fields in node.records()]
    assert PENDING.unpack(snapshot, "topic", LATER.size) == 1
    end = LATER.unpack(snapshot, "position")
    with living(node) as life:
        assert life.recovered.position == end
        assert pending(life) == life.delayed(1) == 50
        put_off(life, appender, 7, 1)
        node.folder.later.write_bytes(snapshot)  # as if it were killed
        life.server.request_stop()
        life.service.later.snapshot.saved = life.server.counters()["sealed"]  # and wrote no last one
    assert node.folder.later.read_bytes() == snapshot
    with living(node) as life:
        assert pending(life) == 57
    assert LATER.unpack(node.folder.later.read_bytes(), "pending_n") == 57
    assert not said(node, "missing")
    assert not said(node, "damaged")


@pytest.mark.parametrize("how", ["missing", "cut", "changed", "foreign", "ahead", "newer"])
def test_without_a_snapshot_all_is_read_from_the_log(node: TopicNode, how: str) -> None:
    node.log_file_bytes = 1 << 18
    with living(node) as life:
        appender = node.appender(life)
        put_off(life, appender, 30)
        come = [appender.append_later(1, 1, b"soon", 1, {}) for _ in range(20)]
        life.until(lambda: appender.get("synced") > come[-1] and pending(life) == 30)
    path, whole = node.folder.later, bytearray(node.folder.later.read_bytes())
    position = LATER.unpack(whole, "position")
    match how:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(whole[:-1])
        case "changed":
            whole[LATER.size + 5] ^= 1
            path.write_bytes(whole)
        case "newer":
            LATER.pack_into(whole, "version", 2)
            path.write_bytes(whole)
        case "foreign":
            path.write_bytes(_core.TopicServer.later_encode(b"x" * 16, position, 1, 1, b""))
        case "ahead":  # of a log that was put back
            node_id = LATER.get_bytes(whole, "node")
            path.write_bytes(_core.TopicServer.later_encode(node_id, position + (1 << 20), 1 << 40, 9, b""))
    with living(node) as life:
        assert pending(life) == life.delayed(1) == 30
        assert life.maximum(1, 1) == 20
    damaged = path.with_name("later.damaged")
    assert damaged.exists() == (how not in ("missing", "ahead"))
    assert bool(said(node, "is missing")) == (how == "missing")
    assert bool(said(node, "is damaged")) == damaged.exists()
    with living(node) as life:
        assert pending(life) == 30


def test_of_a_damaged_log_what_had_come_behind_the_damage_comes_no_more(node: TopicNode) -> None:
    """The snapshot is gone, and so is a part of the log below the checkpoint."""
    with living(node) as life:
        appender = node.appender(life)
        first = put_off(life, appender, 5)
        soon = [appender.append_later(1, 1, b"soon", 1, {}) for _ in range(5)]
        life.until(lambda: appender.get("synced") > soon[-1] and pending(life) == 5)
        put_off(life, appender, 5)
    with open(node.folder.log / f"{0:020d}", "r+b") as file:
        file.seek(appender.answer(first[2]).position + 60)
        file.write(b"\xff")
    node.folder.later.unlink()
    with living(node) as life:
        assert said(node, "1 place of it is damaged")
        assert 5 <= pending(life) < 10  # what was sound behind it; nothing that had come
        assert life.maximum(1, 1) == 5
        last = appender.append(1, 0, b"a turn")
        life.until(lambda: appender.get("synced") > last)
        assert life.maximum(1, 1) == 5


def test_a_snapshot_is_written_as_the_log_grows_and_not_before_it_is_synced(
    node: TopicNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "LOG_BYTES", 20_000)
    with living(node) as life:
        appender = node.appender(life)
        put_off(life, appender, 20)
        seen: list[tuple[int, int]] = []
        want = life.service.later.snapshot.writer.want

        def watched(copy: Any) -> None:
            seen.append((copy.position, life.server.counters()["synced"]))
            want(copy)

        monkeypatch.setattr(life.service.later.snapshot.writer, "want", watched)
        while len(seen) < 3:
            last = appender.append(1, 0, b"x" * 2000)
            life.until(lambda last=last: appender.get("synced") > last)
        assert all(position <= synced for position, synced in seen)
        assert all(end - begin >= 20_000 for (begin, _), (end, _) in itertools.pairwise(seen))
        assert life.service.later.needed(0) == 0


def test_what_is_needed_of_the_log_is_known(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        plain = appender.append(1, 0, b"x" * 1000)
        life.until(lambda: appender.get("synced") > plain)
        first = put_off(life, appender, 3)
    with living(node) as life:
        assert life.service.later.needed(0) == appender.answer(first[0]).position > 1000
        node.tell_catalog([Topic(2, "seats")])
        life.until(lambda: not pending(life))
        assert life.service.later.needed(0) == life.recovered.position


def test_they_go_with_their_topic(node: TopicNode) -> None:
    node.topics = [Topic(1, "flights"), Topic(2, "seats")]
    with living(node) as life:
        appender = node.appender(life)
        put_off(life, appender, 5)
        put_off(life, appender, 4, topic=2)
        assert (life.delayed(1), life.delayed(2)) == (5, 4)
        node.tell_catalog([Topic(2, "seats"), Topic(3, "flights")])
        life.until(lambda: life.row(3, 0))
        assert (pending(life), life.delayed(2), life.delayed(3)) == (4, 4, 0)
        node.folder.later.unlink()
    node.folder.later.unlink()  # the log has them for ever
    with living(node) as life:
        assert (pending(life), life.delayed(2), life.delayed(3)) == (4, 4, 0)


def test_no_more_are_taken_than_the_setting_says(node: TopicNode) -> None:
    node.delayed_max = 10
    with living(node) as life:
        appender = node.appender(life)
        put_off(life, appender, 10)
        more = appender.append_later(1, 0, b"one too many", LONG_MS, {})
        life.until(lambda: appender.get("processed") > more)
        assert appender.answer(more).result == FULL
        now = appender.append(1, 0, b"at once")
        life.until(lambda: appender.get("synced") > now)
        assert appender.answer(now)[:2] == (OK, 0)
    node.delayed_max = 5
    with living(node) as life:
        assert pending(life) == 10  # those that are there stay
        more = appender.append_later(1, 0, b"one too many", LONG_MS, {})
        life.until(lambda: appender.get("processed") > more)
        assert appender.answer(more).result == FULL


def test_a_full_disk_holds_them_up_and_loses_none(small_disk: Path) -> None:
    disk = Disk(small_disk)
    node = TopicNode(disk.directory)
    sent: dict[bytes, tuple[int, dict[str, str]]] = {}
    with living(node) as life:
        appender = node.appender(life)
        with disk.kept_full(0):
            while not node.superblock.server_get(SERVER, "alarms") & CONSTANTS["ALARM_DISK"]:
                if appender.get("tail") - appender.get("head") < 40:
                    queue, body = len(sent) % 2, b"%d " % len(sent) + b"x" * 8000
                    appender.append_later(1, queue, body, len(sent) % 30, {})
                    sent[body] = (queue, {})
                life.service.turn(5_000_000)
        disk.empty()
        life.until(lambda: appender.get("synced") == len(sent) and not pending(life))
    came_once(node, sent)


def test_a_snapshot_that_cannot_be_written_is_tried_again(node: TopicNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LOG_BYTES", 100)
    with living(node) as life:
        appender = node.appender(life)
        replace = atomic_file.replace

        def refuse(path: Path, data: bytes) -> None:
            if path == node.folder.later:
                raise StoreError("no space")
            replace(path, data)

        monkeypatch.setattr(atomic_file, "replace", refuse)
        put_off(life, appender, 3)
        life.until(lambda: life.service.later.snapshot.refused)
        assert len(said(node, "no new snapshot of the messages that come later")) == 1
        monkeypatch.setattr(atomic_file, "replace", replace)
        life.until(lambda: not life.service.later.snapshot.refused)
    assert LATER.unpack(node.folder.later.read_bytes(), "pending_n") == 3
