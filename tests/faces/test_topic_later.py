"""Goal: a message that comes later is put off and comes as docs/topics.md says, from every face; what is wrong with its
time is told, and nothing is accepted then.

Method: a real node; programs as users write them, and delays of some milliseconds: who reads waits for the message.
"""

import asyncio
import pickle
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import warren
import warren.aio
from warren.engine.topics.formats import DELAY_LEVELS_MS

from support.real_node import RealNode
from support.topic_log import logged
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def topic(node: warren.Node, name: str) -> warren.Topic:
    return node.topic(name, queues=2)


def came(topic: warren.Topic, queue: int, count: int) -> list[warren.Record]:
    """The first messages of a queue, when they are there."""
    wait_until(lambda: topic.offsets(queue)[1] >= count, 30, what=f"{count} messages")
    return topic.read(queue, 0, max=count + 1).records


def now_ms() -> float:
    return time.time() * 1000


def test_it_comes_when_its_time_has_come(node: warren.Node, topic: warren.Topic) -> None:
    before = now_ms()
    position = topic.append(b"later", key="N1", tag="UA", properties={"to": "IAH"}, queue=1, delay=0.3)
    assert (position.queue, position.offset) == (1, -1)
    assert position.physical_offset >= 0
    assert "offset=-1" in repr(position)
    assert pickle.loads(pickle.dumps(position)) == position
    assert topic.find_id(position.message_id) is None
    (record,) = came(topic, 1, 1)
    assert (record.body, record.key, record.tag, record.properties) == (b"later", "N1", "UA", {"to": "IAH"})
    assert (record.offset, record.queue, record.message_id != position.message_id) == (0, 1, True)
    assert record.born_timestamp + 300 <= record.timestamp
    assert before - 1 <= record.born_timestamp
    assert topic.find("N1") == [record]
    assert topic.find_id(position.message_id) is None
    assert topic.find_id(record.message_id) == record


def test_times_and_levels(topic: warren.Topic) -> None:
    topic.append(b"first", queue=0, at=now_ms() - 60_000)  # its time is over: it comes at once
    at = datetime.now(UTC) + timedelta(milliseconds=200)
    topic.append(b"second", queue=0, at=at)
    topic.append(b"third", queue=0, delay_level=1)
    records = came(topic, 0, 3)
    assert [record.body for record in records] == [b"first", b"second", b"third"]
    assert records[1].timestamp >= at.timestamp() * 1000
    assert records[2].timestamp - records[2].born_timestamp >= DELAY_LEVELS_MS[0] == 1000
    assert len(DELAY_LEVELS_MS) == 18
    assert DELAY_LEVELS_MS[-1] == 2 * 3600 * 1000


def test_many_come_one_by_one_in_the_order_of_their_times(topic: warren.Topic) -> None:
    delay = 0.4 * patience()
    late = topic.append_many([b"%d" % n for n in range(300)], keys=[f"k{n}" for n in range(300)], queue=0, delay=delay)
    soon = topic.append_many([b"soon"] * 50, queue=0, delay=0.01)
    each = topic.append_many([b"a", b"b", b"c", b"d"], queue=None, keys=["x", "y", "z", "x"], delay=0.5)
    assert {position.offset for position in [*late, *soon, *each]} == {-1}
    assert [position.queue for position in each] == [topic.queue_of(key) for key in ("x", "y", "z", "x")]
    positions = [position.physical_offset for position in [*late, *soon, *each]]
    assert positions == sorted(set(positions)) or len(set(positions)) == len(positions)
    assert topic.append(b"at once", queue=0).offset <= 50
    wait_until(lambda: topic.stats()["messages"] == 355, 30, what="all messages")
    bodies = [record.body for record in topic.read(0, 0, max=500).records if record.body not in (b"at once", *b"abcd")]
    bodies = [body for body in bodies if len(body) > 1 or body.isdigit()]
    assert bodies == [b"soon"] * 50 + [b"%d" % n for n in range(300)]
    assert [record.body for record in topic.find("k7")] == [b"7"]
    assert [record.body for record in topic.find("x")] == [b"d", b"a"]


def test_positions_of_a_batch_are_those_of_its_records(directory: Path, topic: warren.Topic) -> None:
    given = [b"x" * n for n in (0, 1, 500, 7)]
    positions = topic.append_many(given, tags=["a", None, "b", "c"], queue=1, delay=3600)
    there = {record.physical_offset: record for record in logged(directory, "rmq_sys_wheel_timer")}
    for body, position in zip(given, positions, strict=True):
        record = there[position.physical_offset]
        assert (record.body, record.properties["REAL_QID"]) == (body, "1")
    assert topic.stats()["delayed"] == 4


def test_in_an_event_loop_and_from_arrow(directory: Path, name: str) -> None:
    async def program() -> None:
        async with warren.aio.attach(directory) as node:
            topic = await node.topic(name, queues=1)
            promise = await topic.append(b"1", delay=0.05, wait=False)
            assert (await promise).offset == -1
            batch = await topic.append_many([b"2", b"3"], delay=0.1)
            assert [position.offset for position in batch] == [-1, -1]
            table = pa.table({"value": [b"4", b"5"], "key": ["k", None]})
            assert len(await topic.append_arrow(table, at=now_ms() + 150)) == 2
            with pytest.raises(warren.UsageError, match="delay must be"):
                await topic.append(b"x", delay=-1)
            found: list[bytes] = []
            while len(found) < 5:
                answer = await topic.read(0, len(found), timeout=30)
                found += [record.body for record in answer.records]
            assert found == [b"1", b"2", b"3", b"4", b"5"]
            assert (await topic.stats())["delayed"] == 0

    asyncio.run(program())
    with warren.attach(directory) as node:
        topic = node.topic(name)
        positions = topic.append_arrow(pa.table({"value": [b"6"]}), delay_level=1)
        assert [position.offset for position in positions] == [-1]
        assert topic.append_arrow(pa.table({"value": [b"7"]}), delay=0, wait=False).result(30)[0].offset == -1
        assert [record.body for record in came(topic, 0, 7)[5:]] == [b"7", b"6"]


def test_what_is_no_time_is_refused_and_appends_nothing(topic: warren.Topic) -> None:
    days = 3 * 24 * 3600
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"delay": -0.001}, r"from 0 to 259200 \(3 days\), not -0.001"),
        ({"delay": days + 1}, "259200"),
        ({"delay": float("nan")}, "delay"),
        ({"delay": "5"}, "delay"),
        ({"delay": True}, "delay"),
        ({"at": now_ms() + days * 1000 + 60_000}, "up to 3 days from now"),
        ({"at": datetime.max.replace(tzinfo=UTC)}, "up to 3 days"),
        ({"at": "tomorrow"}, "datetime"),
        ({"delay_level": 0}, "1 to 18"),
        ({"delay_level": 19}, "1 to 18"),
        ({"delay_level": 1.0}, "whole number"),
        ({"delay": 1, "at": now_ms()}, "delay and at both"),
        ({"at": now_ms(), "delay_level": 1}, "give only one"),
    ]
    for later, says in wrong:
        with pytest.raises(warren.UsageError, match=says):
            topic.append(b"x", **later)
        with pytest.raises(warren.UsageError, match=says):
            topic.append_many([b"x", b"y"], **later)
        with pytest.raises(warren.UsageError, match=says):
            topic.append_arrow(pa.table({"value": [b"x"]}), **later)
    with pytest.raises(warren.UsageError, match="TIMER_OUT_MS"):
        topic.append(b"x", properties={"TIMER_OUT_MS": "1"})
    most = 32767 - len("TAGS\x01\x02")
    assert topic.append(b"x", tag="t" * most).offset == 0
    for less, says in ((0, "of a message have 32767"), (25, "of a message that comes later have 32")):
        with pytest.raises(warren.MessageTooLarge, match=says):
            topic.append(b"x", tag="t" * (most - less), delay=1)
    assert topic.stats() == {"queues": 2, "messages": 1, "appended": 1, "delayed": 0, "halves": 0}


def test_a_deleted_topic_takes_them_along(node: warren.Node, name: str) -> None:
    topic = node.topic(name)
    topic.append(b"never", delay=0.2)
    topic.append(b"never", delay=3600)
    assert topic.stats()["delayed"] in (1, 2)  # the first may have come already
    topic.delete()
    with pytest.raises(warren.TopicNotFound):
        topic.append(b"x", delay=1)
    again = node.topic(name)
    again.append(b"mark", queue=0, delay=0.4)
    assert [record.body for record in came(again, 0, 1)] == [b"mark"]
    assert again.stats() == {"queues": 4, "messages": 1, "appended": 1, "delayed": 0, "halves": 0}


def test_they_outlive_the_node_and_the_setting_says_how_many_there_may_be(tmp_path: Path) -> None:
    small = {"log_file_bytes": 1 << 20, "topic_ring_bytes": 1 << 18, "delayed_messages_max": 5}
    with RealNode(tmp_path / "data", **small) as running:
        with warren.attach(running.directory) as node:
            topic = node.topic("flights", queues=1)
            topic.append_many([b"x"] * 5, delay=3600)
            with pytest.raises(warren.LimitError, match="delayed_messages_max"):
                topic.append(b"x", delay=3600)
            promise = topic.append(b"x", delay=3600, wait=False)
            with pytest.raises(warren.LimitError, match="delayed_messages_max"):
                promise.result(30)
            with pytest.raises(warren.LimitError):
                topic.append_many([b"x", b"y"], delay=3600)
        running.kill_all()
        running.start()
        with warren.attach(running.directory) as node:
            topic = node.topic("flights", create=False)
            assert topic.stats()["delayed"] == 5
            with pytest.raises(warren.LimitError):
                topic.append(b"x", delay=3600)
            topic.delete()  # takes them along
            topic = node.topic("flights", queues=1)
            topic.append(b"soon", delay=1.0)
            topic.append_many([b"x"] * 4, delay=3600)
        running.kill_all()
        running.start()
        with warren.attach(running.directory) as node:
            topic = node.topic("flights", create=False)
            assert [record.body for record in came(topic, 0, 1)] == [b"soon"]
            assert topic.stats()["delayed"] == 4


def test_seconds_are_not_taken_for_milliseconds(node: warren.Node, topic: warren.Topic) -> None:
    """time.time() as milliseconds is a day of January 1970, wherever a time is meant."""
    now = time.time()
    topic.append(b"m", key="k", queue=0)
    queue = node.queue(topic.name)
    for call in (
        lambda: topic.append(b"x", at=now),
        lambda: topic.append_many([b"x"], at=int(now)),
        lambda: topic.offset_at(0, now),
        lambda: topic.find("k", since=now),
        lambda: topic.find("k", until=now),
        lambda: topic.reader(start=now),
        lambda: topic.replay(queue, start=now),
    ):
        with pytest.raises(warren.UsageError, match="looks like seconds"):
            call()
    assert topic.stats()["appended"] == 1
    assert topic.offset_at(0, 0) == topic.offset_at(0, now * 1000 - 3_600_000) == 0
