"""Goal: a replay puts the messages of a topic into a queue, in the order of the log, each as it was published. It goes
on where it ended, and without doubles where the queue drops them.

Method: topics that exchanges and programs filled, replayed as a whole and in parts; replays that are interrupted.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio

from support.command_line import warren as run
from support.waiting import patience

pytestmark = pytest.mark.integration


def emptied(queue: warren.Queue, count: int) -> list[warren.Message]:
    """So many messages, and there are no more."""
    found: list[warren.Message] = []
    while len(found) < count:
        messages = queue.get_many(count - len(found), timeout=30.0 * patience())
        assert messages, f"{len(found)} of {count}"
        found += messages
        messages[-1].ack(multiple=True)
    assert queue.get_many(1, timeout=0) == []
    return found


def bodies(queue: warren.Queue, count: int) -> list[bytes]:
    return [message.body for message in emptied(queue, count)]


def test_what_was_published_comes_back_as_it_was(node: warren.Node, name: str) -> None:
    """exchange → topic → replay → queue: beside x-topic, the same as exchange → queue."""
    topic, direct, filled = node.topic(name, queues=3), node.queue(f"{name}-direct"), node.queue(f"{name}-filled")
    node.declare_exchange(name, "topic")
    node.bind(direct, name, "#")
    node.bind_topic(topic, name, "#")
    sent: list[dict[str, Any]] = [
        {},
        {"headers": {"n": 7, "b": b"\0", "deep": [{"f": 1.0}]}, "priority": 7},
        {"message_id": "id 1", "properties": {"content_type": "a/b", "timestamp": 5}, "persistent": False},
        {"message_id": b"\xff", "ttl": 500.0},
    ]
    for number, said in enumerate(sent):
        node.publish(b"%d" % number, name, f"k.{number}", **said)
    done = topic.replay(filled)
    assert (done.messages, done.bytes, done.passed_by, done.lost) == (4, 4, 0, 0)
    wanted = {message.body: message for message in emptied(direct, 4)}
    for message in emptied(filled, 4):
        was = wanted[message.body]
        headers = message.headers
        origin = headers.pop("x-topic")
        assert (message.exchange, message.routing_key, headers) == (was.exchange, was.routing_key, was.headers)
        assert (message.priority, message.persistent) == (was.priority, was.persistent)
        assert message.properties == {"message_id": origin["message_id"], **was.properties}
        record = topic.find_id(origin["message_id"])
        assert record is not None
        assert (origin["name"], origin["queue"], origin["offset"]) == (name, record.queue, record.offset)
        assert (origin["keys"], origin["tag"]) == (list(record.keys), record.tag) == (origin["keys"], was.routing_key)
    topic.delete()


def test_what_was_appended_comes_with_its_properties(node: warren.Node, name: str) -> None:
    topic, queue = node.topic(name, queues=1), node.queue(name)
    topic.append(b"x", key=["a", "b"], tag="t", properties={"to": "IAH"})
    topic.replay(name)
    (message,) = emptied(queue, 1)
    origin = message.headers["x-topic"]
    assert (message.body, message.exchange, message.routing_key, message.headers["to"]) == (b"x", "", name, "IAH")
    assert (origin["keys"], origin["tag"], message.properties) == (
        ["a", "b"],
        "t",
        {"message_id": origin["message_id"]},
    )
    topic.delete()


def test_parts_of_a_topic(node: warren.Node, name: str) -> None:
    topic, queue = node.topic(name, queues=3), node.queue(name)
    sent = [b"%d" % number for number in range(2000)]
    for number in range(0, 1000, 100):
        keys = [f"k{n % 7}" for n in range(number, number + 100)]
        topic.append_many(sent[number : number + 100], keys=keys, tags=[f"t{n % 2}" for n in range(100)])

    def let_time_pass() -> None:
        """The next message has another time than all before it."""
        last = max(topic.read(n, topic.offsets(n)[1] - 1).records[0].timestamp for n in range(3))
        while time.time_ns() // 1_000_000 <= last + 1:
            time.sleep(0.001)

    let_time_pass()
    moment = topic.find_id(topic.append(b"between").message_id)
    assert moment is not None
    let_time_pass()
    for number in range(1000, 2000, 100):
        topic.append_many(sent[number : number + 100])
    records = [record for n in range(3) for record in topic.read(n, max=5000, max_bytes=1 << 24).records]
    log = [record.body for record in sorted(records, key=lambda record: record.physical_offset)]
    assert topic.replay(queue).messages == 2001
    assert bodies(queue, 2001) == log
    assert topic.replay(queue, start=moment.timestamp + 1).messages == 1000
    assert bodies(queue, 1000) == log[1001:]
    assert topic.replay(queue, end=moment.timestamp).messages == 1000
    assert bodies(queue, 1000) == log[:1000]
    assert topic.replay(queue, tags="t1").messages == 500
    assert bodies(queue, 500) == [body for body in log[:1000] if int(body) % 2]
    done = topic.replay(queue, key="k3")
    assert (done.messages, done.passed_by) == (143, 1858)
    assert bodies(queue, 143) == [body for body in log[:1000] if int(body) % 7 == 3]
    assert topic.replay(queue, start={1: 10}, end={1: 13}).messages == 3
    assert bodies(queue, 3) == [record.body for record in topic.read(1, 10, max=3).records]
    assert topic.replay(queue, start=done.next_offsets).messages == topic.replay(queue, start="latest").messages == 0
    topic.append(b"new")
    assert topic.replay(queue, start=done.next_offsets).messages == 1
    assert bodies(queue, 1) == [b"new"]
    topic.delete()


def test_an_interrupted_replay_goes_on(node: warren.Node, name: str) -> None:
    """Ended behind a part, it goes on without doubles; begun again from before, a queue with a window drops them."""
    topic = node.topic(name, queues=2)
    queue = node.queue(name, deduplication_window=600)
    sent = [b"%d" % number for number in range(1700)]
    for number in range(0, 1700, 10):
        topic.append_many(sent[number : number + 10])
    told: list[warren.Replayed] = []

    def stop(done: warren.Replayed) -> None:
        told.append(done)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        topic.replay(queue, progress=stop)
    assert [done.messages for done in told] == [500, 1000]
    assert topic.replay(queue, start=told[0].next_offsets).messages == 1200
    assert bodies(queue, 1700) == sent
    topic.delete()


def test_a_queue_that_is_full_gets_the_rest_in_order(node: warren.Node, name: str) -> None:
    topic = node.topic(name, queues=1)
    queue = node.queue(name, max_length=3, overflow="reject-publish")
    topic.append_many([b"%d" % number for number in range(10)])
    with pytest.raises(warren.QueueFull, match="3 messages replayed so far"):
        topic.replay(queue, timeout=0.2)
    assert bodies(queue, 3) == [b"0", b"1", b"2"]

    async def main() -> list[bytes]:
        async with await warren.aio.attach(node.directory) as other:
            replay = asyncio.ensure_future((await other.topic(name)).replay(name, start={0: 3}))
            found: list[bytes] = []
            taking = await other.queue(name)
            while len(found) < 7:
                message = await taking.get(timeout=30 * patience())
                found.append(message.body)
                await message.ack()
            assert (await replay).messages == 7
            return found

    assert asyncio.run(main()) == [b"%d" % number for number in range(3, 10)]
    topic.delete()


def test_what_is_refused(node: warren.Node, name: str) -> None:
    topic = node.topic(name, queues=2)
    node.queue(name)
    for wrong in (
        {"start": "soon"},
        {"start": {2: 0}},
        {"end": {0: -1}},
        {"rate": 0},
        {"key": 7},
        {"start": {0: True}},
        {"timeout": float("nan")},
        {"progress": 5},
        {"start": {0: 1}},  # nothing is there yet: whoever goes on there would miss what comes before it
    ):
        with pytest.raises(warren.UsageError):
            topic.replay(name, **wrong)  # type: ignore[arg-type]
    with pytest.raises(warren.UsageError, match=r"an offset is given by queue, as \{0: 7\}"):
        topic.replay(name, start=7)
    for queue in (None, 7, topic):
        with pytest.raises(warren.UsageError, match="goes into a queue"):
            topic.replay(queue)  # type: ignore[arg-type]
    with pytest.raises(warren.QueueNotFound):
        topic.replay("nowhere")
    topic.delete()


def test_from_a_shell(directory: Path, node: warren.Node, name: str) -> None:
    topic, queue = node.topic(name, queues=2), node.queue(name)
    topic.append_many([b"a", b"b", b"c"], queue=1, tags="t")
    told: Any = run("topic", "replay", directory, name, name, "--json", "--rate", "1000").json()
    assert (told["replayed"], told["bytes"], told["next"]) == (3, 3, {"0": 0, "1": 3})
    assert "3 messages of topic" in run("topic", "replay", directory, name, name, "--tag", "t").stderr
    assert "2 messages of topic" in run("topic", "replay", directory, name, name, "--start", "1=1").stderr
    assert bodies(queue, 8) == [b"a", b"b", b"c", b"a", b"b", b"c", b"b", b"c"]
    assert "offsets are a queue's" in run("topic", "replay", directory, name, name, "--start", "1", code=2).stderr
    assert "queue declare" in run("topic", "replay", directory, name, "nowhere", code=2).stderr
    topic.delete()
