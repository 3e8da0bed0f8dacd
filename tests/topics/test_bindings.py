"""Goal: one publish goes to queues and into topics: to all of them or, refused, to none; confirmed when all have it.
What a topic keeps of a message is that message.

Method: a node of the module's own, exchanges of every type bound to queues and topics, read back through both faces.
Kills and stops of workers: test_bindings_kill.py.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warren
import warren.aio
from warren.workers.client.carried import message_of

from support.real_node import RealNode
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
WAIT = 30.0


@pytest.fixture
def topic(node: warren.Node, name: str) -> Iterator[warren.Topic]:
    made = node.topic(name, queues=3)
    yield made
    if name in node.topics():
        made.delete()


@pytest.fixture
def queue(node: warren.Node, name: str) -> Iterator[warren.Queue]:
    """A queue with the topic's name."""
    yield node.queue(name)
    node.delete_queue(name)


def records(topic: warren.Topic) -> list[Any]:
    """All records of a topic, in the order of the log."""
    found = [record for queue in range(topic.queues) for record in topic.read(queue, max=10_000).records]
    return sorted(found, key=lambda record: record.physical_offset)


def bodies(topic: warren.Topic) -> list[bytes]:
    return [record.body for record in records(topic)]


def taken(queue: warren.Queue, count: int) -> list[bytes]:
    """So many messages of a queue, and there are no more."""
    found: list[bytes] = []
    while len(found) < count:
        messages = queue.get_many(count - len(found), timeout=WAIT * patience())
        assert messages, f"{len(found)} of {count}"
        found += [message.body for message in messages]
        messages[-1].ack(multiple=True)
    assert queue.get_many(1, timeout=0) == []
    return found


#: of each type of exchange: binding (routing key, arguments), a message that matches (routing key, headers), and one
#: that does not
KINDS: list[tuple[str, Any, Any, Any]] = [
    ("direct", ("k", None), ("k", None), ("other", None)),
    ("fanout", ("", None), ("whatever", None), None),
    ("topic", ("a.#", None), ("a.b.c", None), ("b.a", None)),
    ("headers", ("", {"shop": 7}), ("k", {"shop": 7}), ("k", {"shop": "7"})),
]


@pytest.mark.parametrize(("kind", "binding", "matches", "misses"), KINDS)
def test_every_type_of_exchange_leads_to_queues_and_topics(
    node: warren.Node,
    name: str,
    topic: warren.Topic,
    queue: warren.Queue,
    kind: str,
    binding: Any,
    matches: Any,
    misses: Any,
) -> None:
    node.declare_exchange(name, kind)
    key, arguments = binding
    node.bind_topic(topic, name, key, arguments)
    node.publish(b"1", name, matches[0], headers=matches[1], mandatory=True)
    node.bind(queue, name, key, arguments)
    node.publish(b"2", name, matches[0], headers=matches[1], mandatory=True)
    assert node.unbind_topic(topic, name, key, arguments)
    assert not node.unbind_topic(topic.name, name, key, arguments)
    node.publish(b"3", name, matches[0], headers=matches[1], mandatory=True)
    node.bind_topic(topic.name, name, key, arguments)
    node.publish_many([b"4", b"5"], name, matches[0], headers=matches[1], mandatory=True)
    if misses is not None:
        node.publish(b"no", name, misses[0], headers=misses[1])
        with pytest.raises(warren.Unroutable):
            node.publish(b"no", name, misses[0], headers=misses[1], mandatory=True)
    assert bodies(topic) == [b"1", b"2", b"4", b"5"]
    assert taken(queue, 4) == [b"2", b"3", b"4", b"5"]
    node.delete_exchange(name)
    node.declare_exchange(name, kind)
    with pytest.raises(warren.Unroutable):
        node.publish(b"no", name, matches[0], headers=matches[1], mandatory=True)


def test_an_alternate_exchange_leads_to_a_topic(
    node: warren.Node, name: str, topic: warren.Topic, queue: warren.Queue
) -> None:
    node.declare_exchange(f"{name}-rest", "fanout")
    node.declare_exchange(name, "direct", alternate=f"{name}-rest")
    node.bind_topic(topic, f"{name}-rest")
    node.bind(queue, name, "known")
    node.publish(b"known", name, "known", mandatory=True)
    node.publish(b"unknown", name, "unknown", mandatory=True)
    node.bind_topic(topic, name, "known")
    node.publish(b"both", name, "known")
    assert bodies(topic) == [b"unknown", b"both"]
    assert taken(queue, 2) == [b"known", b"both"]


def test_many_queues_and_topics_get_one_message_each(node: warren.Node, name: str) -> None:
    """Queues of both workers, several of each, and several topics, of which one has two bindings that match."""
    node.declare_exchange(name, "topic")
    queues = [node.queue(f"{name}-{number}") for number in range(9)]
    topics = [node.topic(f"{name}-t{number}", queues=1 + number) for number in range(3)]
    for item in queues:
        node.bind(item, name, "#")
    for item in topics:
        node.bind_topic(item, name, "#")
        node.bind_topic(item, name, "a.*", key="routing_key", tag=None)
    sent = [b"%d" % number * (1 + number % 97) for number in range(300)]
    for body in sent[:50]:
        node.publish(body, name, "a.b")
    confirms = [node.publish(body, name, "a.b", wait=False) for body in sent[50:100]]
    for confirm in confirms:
        confirm.wait(WAIT * patience())
    node.publish_many(sent[100:200], name, "a.b", headers=[{"n": n} for n in range(100)])
    node.publish_many(sent[200:], name, routing_keys=["a.b", "b"] * 50, ttl=[100.0] * 100)
    for item in queues:
        assert taken(item, 300) == sent
    for item in topics:
        assert bodies(item) == sent
        assert all(record.key is None and record.tag in ("a.b", "b") for record in records(item)), "its first binding"
        item.delete()
    node.delete_queues([item.name for item in queues])
    with pytest.raises(warren.Unroutable):
        node.publish(b"", name, "a.b", mandatory=True)


def test_keys_decide_the_queue_and_find_messages(node: warren.Node, name: str, topic: warren.Topic) -> None:
    node.declare_exchange(name, "topic")
    node.bind_topic(topic, name, "#", key="header:plane", tag="message_id")
    for number in range(30):
        node.publish(b"%d" % number, name, headers={"plane": f"N {number % 5}"}, message_id=f"m{number}")
    for plane in range(5):
        key = f"N%20{plane}"
        found = topic.find(key)
        assert [int(record.body) for record in found] == list(range(25 + plane, -1, -5))
        assert {record.queue for record in found} == {topic.queue_of(key)}
        assert [record.tag for record in found] == [f"m{number}" for number in range(25 + plane, -1, -5)]
    assert len(topic.read(topic.queue_of("N%200"), tag="m25", max=100).records) == 1


MESSAGE = {
    "headers": {
        "text": "é",
        "n": 7,
        "f": 1.0,
        "yes": True,
        "none": None,
        "bytes": b"\0\xff",
        "list": [1, {"a": b""}],
        "\1": 1,
    },
    "properties": {"content_type": "text/plain", "correlation_id": b"\xff", "timestamp": 5.5},
}


def test_a_topic_keeps_what_a_queue_delivers(
    node: warren.Node, name: str, topic: warren.Topic, queue: warren.Queue
) -> None:
    node.declare_exchange(name, "topic")
    node.bind(queue, name, "#")
    node.bind_topic(topic, name, "#")
    node.publish(b"\0\1\2", name, "k\1\2", **MESSAGE, message_id="id 1", priority=4, ttl=50.0, persistent=False)  # type: ignore[arg-type]
    node.publish(memoryview(b"view"), name, "plain")
    first, second = queue.get(timeout=WAIT * patience()), queue.get(timeout=WAIT * patience())
    kept, plain = records(topic)
    assert (kept.body, kept.key, kept.tag) == (b"\0\1\2", "id%201", "k%01%02")
    assert (plain.body, plain.key, plain.tag) == (b"view", None, "plain")
    assert {
        "text": "é",
        "n": "7",
        "content_type": "text/plain",
        "message_id": "id 1",
    }.items() <= kept.properties.items()
    for message, record in ((first, kept), (second, plain)):
        found = message_of(record.properties, "")
        assert (found.exchange, found.routing_key) == (message.exchange, message.routing_key)
        assert (found.headers, found.properties) == (message.headers, message.properties)
        assert (found.priority, found.persistent) == (message.priority, message.persistent)
        message.ack()
    assert message_of(kept.properties, "").ttl_ms == 50_000


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def test_any_message_is_the_same_in_both(
    node: warren.Node, name: str, topic: warren.Topic, queue: warren.Queue
) -> None:
    """Method: whatever a queue delivers is what the record says (Hypothesis)."""
    node.declare_exchange(name, "fanout")
    node.bind(queue, name)
    node.bind_topic(topic, name, key=None)
    values = TEXT | st.integers(-5, 5) | st.binary(max_size=5) | st.none()

    @settings(max_examples=60)
    @given(
        body=st.binary(max_size=300),
        key=TEXT,
        headers=st.none() | st.dictionaries(TEXT, values, max_size=4),
        message_id=st.none() | TEXT.filter(bool),
        priority=st.integers(0, 9),
    )
    def publish(body: bytes, key: str, headers: Any, message_id: Any, priority: int) -> None:
        node.publish(body, name, key, headers=headers, message_id=message_id, priority=priority)
        record = records(topic)[-1]
        with queue.get(timeout=WAIT * patience()) as message:
            found = message_of(record.properties, "")
            assert record.body == message.body == body
            assert (found.exchange, found.routing_key, found.priority) == (name, key, priority)
            assert found.headers == message.headers == (headers or {})
            assert found.properties == message.properties == ({} if message_id is None else {"message_id": message_id})

    publish()


def test_what_a_topic_cannot_take_goes_nowhere(
    node: warren.Node, name: str, topic: warren.Topic, queue: warren.Queue
) -> None:
    node.declare_exchange(name, "fanout")
    node.bind(queue, name)
    node.bind_topic(topic, name)
    too_much = {"h": "x" * 40_000}
    with pytest.raises(warren.MessageTooLarge, match="goes to a topic"):
        node.publish(b"", name, headers=too_much)
    with pytest.raises(warren.MessageTooLarge, match="goes to a topic"):
        node.publish_many([b"a", b"b"], name, headers=[None, too_much])

    async def publish() -> None:
        async with await warren.aio.attach(node.directory) as other:
            with pytest.raises(warren.MessageTooLarge, match="goes to a topic"):
                await other.publish_many([b"a"] * 500 + [b"b"], name, headers=[None] * 500 + [too_much])

    asyncio.run(publish())
    assert bodies(topic) == []
    assert queue.get_many(1, timeout=0) == []
    node.publish(b"", "", queue.name, headers=too_much)  # a queue alone has room
    assert taken(queue, 1) == [b""]


def test_a_record_that_is_too_large_for_the_log_goes_nowhere(tmp_path: Path) -> None:
    small = {
        "log_file_bytes": 1 << 20,
        "topic_ring_bytes": 1 << 20,
        "arena_bytes": 1 << 24,
        "message_bytes_max": 1 << 21,
        "file_bytes": 1 << 22,
    }
    with RealNode(tmp_path / "data", **small) as running, warren.attach(running.directory) as node:
        queue, topic = node.queue("q"), node.topic("t")
        node.declare_exchange("e", "fanout")
        node.bind(queue, "e")
        node.bind_topic(topic, "e")
        large = bytes(3 << 19)
        with pytest.raises(warren.MessageTooLarge, match="topic 't': the message takes"):
            node.publish(large, "e")
        with pytest.raises(warren.MessageTooLarge, match="topic 't': the message takes"):
            node.publish_many([b"", large], "e", headers=[{"a": 1}, {}])

        async def publish() -> None:
            async with await warren.aio.attach(node.directory) as other:
                with pytest.raises(warren.MessageTooLarge, match="topic 't': the message takes"):
                    await other.publish_many([*[b""] * 500, large], "e")

        asyncio.run(publish())
        assert bodies(topic) == []
        assert queue.get_many(1, timeout=0) == []
        queue.put(large)
        assert taken(queue, 1) == [large]


def test_in_an_event_loop(node: warren.Node, name: str) -> None:
    async def main() -> None:
        async with await warren.aio.attach(node.directory) as other:
            topic = await other.topic(name, queues=2)
            queue = await other.queue(name)
            await other.declare_exchange(name, "topic")
            await other.bind_topic(topic, name, "a.#", key=None)
            await other.bind(queue, name, "a.#")
            await other.publish(b"1", name, "a.b", mandatory=True)
            confirms = [await other.publish(b"2", name, "a", wait=False) for _ in range(20)]
            for confirm in confirms:
                await confirm
            await other.publish_many([b"%d" % number for number in range(3000)], name, "a.b", headers={"n": 1})
            await other.publish_many([b"x", b"y"], name, routing_keys=["a", "b"])
            assert await other.unbind_topic(name, name, "a.#")
            assert not await other.unbind_topic(topic, name, "a.#")
            await other.publish(b"3", name, "a.b")

    asyncio.run(main())
    topic = node.topic(name)
    wanted = [b"1", *[b"2"] * 20, *(b"%d" % number for number in range(3000)), b"x"]
    assert bodies(topic) == wanted
    assert taken(node.queue(name), len(wanted) + 1) == [*wanted, b"3"]
    topic.delete()


def test_durability_and_defaults(node: warren.Node, name: str, topic: warren.Topic) -> None:
    """A log keeps every message: also one that queues keep in memory alone."""
    queue = node.queue(name, durable=False)
    node.declare_exchange(name, "fanout")
    node.bind(queue, name)
    with pytest.raises(warren.UsageError, match="transient"):
        node.publish(b"", name, durability="synced")
    node.bind_topic(topic, name)
    for durability in (None, "none", "written", "synced"):
        node.publish(b"", name, durability=durability, persistent=False)  # type: ignore[arg-type]
        node.publish_many([b""], name, durability=durability)  # type: ignore[arg-type]
    assert taken(queue, 8) == [b""] * 8
    assert bodies(topic) == [b""] * 8
    node.delete_queue(name)


def test_a_delayed_message_is_in_the_topic_at_once(
    node: warren.Node, name: str, topic: warren.Topic, queue: warren.Queue
) -> None:
    node.declare_exchange(name, "fanout")
    node.bind(queue, name)
    node.bind_topic(topic, name)
    node.publish(b"later", name, delay=3600.0)
    (record,) = records(topic)
    due = message_of(record.properties, "").due_ms
    assert record.timestamp < due <= record.born_timestamp + 3_600_001
    assert queue.get_many(1, timeout=0) == []


def test_what_is_refused(node: warren.Node, name: str, topic: warren.Topic) -> None:
    node.declare_exchange(name, "topic")
    with pytest.raises(warren.TopicNotFound, match="no topic"):
        node.bind_topic("none", name)
    with pytest.raises(warren.ExchangeNotFound):
        node.bind_topic(topic, "none")
    with pytest.raises(warren.UsageError, match="default exchange"):
        node.bind_topic(topic, "")
    with pytest.raises(warren.UsageError, match="give None"):
        node.bind_topic(topic, name, "k", {"a": b"bytes"})
    with pytest.raises(warren.UsageError, match="key must be"):
        node.bind_topic(topic, name, key="nothing")
    node.bind_topic(topic, name, "k")
    node.bind_topic(topic, name, "k")
    with pytest.raises(
        warren.DeclarationMismatch, match="key='message_id', not 'routing_key'; tag='routing_key', not None"
    ):
        node.bind_topic(topic, name, "k", key="routing_key", tag=None)
    with pytest.raises(warren.UsageError, match="WARREN_MESSAGE"):
        topic.append(b"", properties={"WARREN_MESSAGE": "x"})


def test_a_topic_that_goes_takes_its_bindings_with_it(node: warren.Node, name: str, queue: warren.Queue) -> None:
    topic = node.topic(name, queues=1)
    node.declare_exchange(name, "topic")
    node.bind_topic(topic, name, "#")
    node.bind(queue, name, "q")
    node.publish(b"1", name, "q")
    topic.delete()
    again = node.topic(name, queues=1)
    node.publish(b"2", name, "q")
    with pytest.raises(warren.Unroutable):
        node.publish(b"3", name, "other", mandatory=True)
    assert bodies(again) == []
    assert taken(queue, 2) == [b"1", b"2"]
    again.delete()


def test_dead_letters_go_into_a_topic(node: warren.Node, name: str, topic: warren.Topic) -> None:
    node.declare_exchange(name, "fanout")
    node.bind_topic(topic, name)
    queue = node.queue(name, dead_letter_exchange=name)
    queue.put(b"dead", headers={"n": 7})
    queue.get(timeout=WAIT * patience()).nack(requeue=False)
    found = wait_until(lambda: records(topic), 30, what="the letter")
    message = message_of(found[0].properties, "")
    assert (found[0].body, message.headers["n"]) == (b"dead", 7)
    assert message.headers["x-death"][0]["reason"] == "rejected"
    node.delete_queue(name)


def test_more_topics_than_a_message_can_go_to(node: warren.Node, name: str) -> None:
    node.declare_exchange(name, "fanout")
    topics = [node.topic(f"{name}-{number}", queues=1) for number in range(65)]
    for item in topics[:64]:
        node.bind_topic(item, name)
    node.publish(b"64", name)
    assert {tuple(bodies(item)) for item in topics[:64]} == {(b"64",)}
    node.bind_topic(topics[64], name)
    with pytest.raises(warren.LimitError, match="65 topics, more than 64"):
        node.publish(b"65", name)
    for item in topics:
        item.delete()


def test_bindings_outlive_the_node(tmp_path: Path) -> None:
    with RealNode(tmp_path / "data") as running:
        with warren.attach(running.directory) as node:
            node.topic("t", queues=1)
            node.declare_exchange("e", "headers")
            node.declare_exchange("gone", "fanout", durable=False)
            node.bind_topic("t", "e", "", {"shop": 7}, key="header:shop", tag=None)
            node.bind_topic("t", "gone")
        for end in (running.stop, running.kill_all):
            end()
            running.start()
            with warren.attach(running.directory) as node:
                node.publish(b"", "e", headers={"shop": 7}, mandatory=True)
                assert records(node.topic("t"))[-1].key == "7"
                with pytest.raises(warren.ExchangeNotFound):
                    node.publish(b"", "gone")
