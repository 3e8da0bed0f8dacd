"""What type checkers make of the public face: each line is a case, never run. test_types.py gives it to mypy --strict
and to pyright in its strict mode.

A line that a checker must refuse carries what it calls the error; both are told to complain of such a comment where
there is no error.
"""

import array
import asyncio
import concurrent.futures
import mmap
from collections.abc import Iterator
from typing import Any, assert_type

import warren
import warren.aio

IDS = [bytes(16), bytes(16)]


def putting(queue: warren.Queue, later: bool) -> None:
    assert_type(queue.put(b"x"), None)
    assert_type(queue.put(b"x", "none", True, 1.0, {"a": 1}), None)
    assert_type(queue.put(memoryview(b"x"), wait=True, ttl=3, message_id="a"), None)
    assert_type(queue.put(b"x", wait=False), warren.Confirm)
    assert_type(queue.put(b"x", "synced", wait=False, timeout=1, priority=3), warren.Confirm)
    assert_type(queue.put(b"x", None, False, 1.0, {"a": 1}, delay=0.5), warren.Confirm)
    assert_type(queue.put(b"x", wait=later), warren.Confirm | None)
    assert_type(queue.put(b"x", block=True, timeout=1, ttl=3), None)
    assert_type(queue.put(b"x", block=later), None)
    options: warren.PublishOptions = {"priority": 1, "properties": {"type": "a"}, "persistent": False}
    assert_type(queue.put(b"x", wait=False, **options), warren.Confirm)

    assert_type(queue.put_many([b"x", b"y"]), None)
    assert_type(queue.put_many((body for body in [b"x"]), wait=False), warren.Confirm)
    assert_type(queue.put_many([b"x"], "none", False), warren.Confirm)
    assert_type(queue.put_many([b"x"], wait=later), warren.Confirm | None)
    each: warren.PublishManyOptions = {"priority": [1, 2], "ttl": [None, 1.5], "message_id": ["a", None]}
    assert_type(queue.put_many([b"x", b"y"], wait=False, headers=[None, {"a": 1}], **each), warren.Confirm)

    level: warren.Durability = "written"
    queue.put(b"x", level)
    queue.put(b"x", "sync")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.put("x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.put(b"x", prioriti=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    queue.put(b"x", ttl="1 s")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.put(b"x", priority=[1])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


def publishing(node: warren.Node, later: bool) -> None:
    assert_type(node.publish(b"x", "events", "a.b", mandatory=True), None)
    assert_type(node.publish(b"x", "events", wait=False, headers={"a": 1}), warren.Confirm)
    assert_type(node.publish(b"x", "events", "a.b", False, None, False), warren.Confirm)
    assert_type(node.publish(b"x", routing_key="orders", wait=later), warren.Confirm | None)
    assert_type(node.publish_many([b"x"], "events", routing_keys=["a"]), None)
    assert_type(node.publish_many([b"x"], "events", wait=False, delay=2), warren.Confirm)
    assert_type(node.publish_many([b"x"], "events", wait=later), warren.Confirm | None)
    node.publish(b"x", "events", properties=["a"])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


def any_memory(node: warren.Node, column: array.array[float], mapped: mmap.mmap) -> None:
    queue, store = node.queue("q"), node.store()
    assert_type(queue.put(column), None)
    assert_type(queue.put(array.array("d", [1.0]), wait=False), warren.Confirm)
    queue.put_many([column, mapped, b"x"])
    node.publish(column, "events", "a.b")
    node.publish_many([column, b"x"], "events", routing_keys=["a", "b"])
    node.call("q", column)
    queue.reply(queue.get(), column)
    store.write(store.new_id(), column)
    queue.put(1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    node.publish_many(["x"], "events")  # type: ignore[list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def any_memory_awaited(node: warren.aio.Node, column: array.array[float], mapped: mmap.mmap) -> None:
    queue, store = await node.queue("q"), node.store()
    await queue.put(column)
    await queue.put_many([column, mapped, b"x"])
    await node.publish(column, "events", "a.b")
    await node.publish_many([column, b"x"], "events", routing_keys=["a", "b"])
    await node.call("q", column)
    await queue.reply(await queue.get(), column)
    await store.write(IDS[0], column)


def promised(confirm: warren.Confirm) -> None:
    confirm.add_done_callback(lambda done: print(done.exception()))
    assert_type(confirm.future(), concurrent.futures.Future[None])
    assert_type(confirm.exception(timeout=1), BaseException | None)
    assert_type(confirm.done(), bool)
    assert_type(confirm.duplicate, bool)


def storing(store: warren.Store, later: bool) -> None:
    assert_type(store.write(IDS[0], b"x"), None)
    assert_type(store.write(IDS[0], b"x", wait=False), warren.Confirm)
    assert_type(store.write(IDS[0], b"x", "none", False), warren.Confirm)
    assert_type(store.write(IDS[0], b"x", wait=later), warren.Confirm | None)
    assert_type(store.write_many(IDS, [b"x", b"y"]), None)
    assert_type(store.write_many(bytes(32), [b"x", b"y"], wait=False), warren.Confirm)
    assert_type(store.write_many(IDS, [b"x", b"y"], "synced", False, 1.0), warren.Confirm)
    assert_type(store.write_many(IDS, [b"x", b"y"], wait=later), warren.Confirm | None)
    store.write(IDS[0], b"x", "sync")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    store.barrier("sync")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(store.read(IDS[0]), bytes | None)
    assert_type(store.read_many(IDS), list[bytes | None])
    assert_type(store.remove(IDS), int)
    assert_type(store.new_ids(2), list[bytes])


def binding_topics(node: warren.Node, topic: warren.Topic) -> None:
    node.bind_topic(topic, "e", "k", {"a": 1}, key="header:a", tag=None)
    node.bind_topic("t", exchange="e", routing_key="#")
    assert_type(node.unbind_topic(topic, "e", "k", {"a": 1}), bool)
    assert_type(topic.replay("q", start={0: 7}, tags=["a"], rate=10), warren.Replayed)
    node.bind_topic(7, "e")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def binding_topics_in_a_loop(node: warren.aio.Node, topic: warren.aio.Topic) -> None:
    await node.bind_topic(topic, "e", "k", key="routing_key")
    assert_type(await node.unbind_topic("t", "e", "k"), bool)
    assert_type(await topic.replay("q"), warren.Replayed)


def appending(topic: warren.Topic, later: bool, table: Any) -> None:
    assert_type(topic.append(b"x"), warren.Position)
    assert_type(topic.append(memoryview(b"x"), key="k", tag="t", properties={"a": "b"}, queue=1), warren.Position)
    assert_type(topic.append(b"x", ["k", "l"], wait=False), warren.Confirm[warren.Position])
    assert_type(topic.append(b"x", durability="none", wait=False).result(), warren.Position)
    assert_type(topic.append(b"x", wait=later), warren.Position | warren.Confirm[warren.Position])
    assert_type(topic.append_many([b"x", b"y"]), list[warren.Position])
    assert_type(topic.append_many([b"x", b"y"], keys=["k", None], tags="t"), list[warren.Position])
    confirm = topic.append_many([b"x"], keys=[["k", "l"]], properties=[{"a": "b"}], wait=False)
    assert_type(confirm, warren.Confirm[list[warren.Position]])
    assert_type(confirm.result(), list[warren.Position])
    assert_type(confirm.future(), concurrent.futures.Future[list[warren.Position]])
    half = topic.prepare(b"x", key="k", properties={"a": "b"})
    assert_type(half, warren.Half)
    assert_type(half.commit(timeout=None), warren.Position)
    assert_type(topic.half(half.message_id).position, warren.Position | None)
    assert_type(topic.halves(), list[warren.HalfMessage])
    assert_type(topic.append_arrow(table), list[warren.Position])
    assert_type(topic.append(b"x").message_id, str)
    topic.append("x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    topic.append(b"x", delay="5")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    topic.append(b"x", queue="1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def appending_awaited(node: warren.aio.Node, later: bool) -> None:
    topic = await node.topic("t", queues=8)
    assert_type(topic, warren.aio.Topic)
    assert_type(await topic.append(b"x", key="k"), warren.Position)
    promise = await topic.append(b"x", wait=False)
    assert_type(promise, warren.aio.Confirm[warren.Position])
    half = await topic.prepare(b"x")
    assert_type(half, warren.aio.Half)
    assert_type(await half.commit(), warren.Position)
    assert_type(await topic.halves(), list[warren.HalfMessage])
    assert_type(await promise, warren.Position)
    assert_type(await topic.append_many([b"x"]), list[warren.aio.Position])
    assert_type(await (await topic.append_many([b"x"], wait=False)), list[warren.Position])
    assert_type(await topic.append(b"x", wait=later), warren.Position | warren.aio.Confirm[warren.Position])


def reading_in_a_group(topic: warren.Topic) -> None:
    with topic.reader(
        "g", tags=["a"], commit="manual", on_data_loss="skip", damage="skip", session_timeout=None
    ) as reader:
        assert_type(reader, warren.Reader)
        assert_type(reader.get(1.0), warren.Record)
        assert_type(reader.get_many(10, timeout=None), list[warren.Record])
        for record in reader:
            assert_type(record, warren.Record)
            reader.commit(record)
        assert_type(reader.lag(), dict[int, int])
        assert_type(reader.assigned, list[int])
        reader.seek(0, 17)
        reader.seek(0, "earliest", timeout=1)
    topic.reader(start=1.5e12).seek(0, "first")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    topic.reader(commit="never")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(topic.seek_group("g", 5, queue=1, force=True), dict[int, int])


async def reading_in_a_group_awaited(topic: warren.aio.Topic) -> None:
    async with topic.reader("g", start="latest", max_poll_interval=60) as reader:
        assert_type(reader, warren.aio.Reader)
        assert_type(await reader.get(), warren.Record)
        async for record in reader:
            assert_type(record, warren.Record)
        await reader.commit()


def declaring(node: warren.Node, arguments: dict[str, Any]) -> None:
    assert_type(node.queue("q", max_length=5, overflow="reject-publish", message_ttl=60), warren.Queue)
    assert_type(node.queue("q", False, create=False), warren.Queue)
    assert_type(node.queue("q", delivery_limit=None, **arguments), warren.Queue)
    options: warren.QueueOptions = {"dead_letter_exchange": "", "dead_letter_routing_key": "failed"}
    assert_type(node.queue("q", durable=False, **options), warren.Queue)
    assert_type(node.declare_queues(["a", {"name": "b", "durable": False}], expires=60.0), list[str])
    assert_type(node.work_queue("w"), warren.WorkQueue[bytes])
    assert_type(node.work_queue("w", 10, message_ttl=5.0), warren.WorkQueue[bytes])
    assert_type(node.work_queue("w", serializer="json", max_priority=3), warren.WorkQueue[Any])
    numbers: warren.WorkQueue[int] = node.work_queue("w", serializer="json")
    assert_type(numbers.get(timeout=1), int)
    numbers.put("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    numbers.put(bytearray(b"a"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    raw = node.work_queue("w")
    raw.put(bytearray(b"a"))
    raw.put(memoryview(b"a"), timeout=1)
    raw.put_nowait(bytearray(b"a"))
    raw.put(array.array("d", [1.0]))
    raw.put("a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type(raw.get(), bytes)

    node.queue("q", max_lenght=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    node.queue("q", max_length="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.queue("q", overflow="reject")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.declare_queues(["q"], exclusiv=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    node.work_queue("w", ttl=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def opening(processes: bool) -> None:
    with warren.open("data", profile="small", workers=2, memory_used_max=0.5) as node:
        assert_type(node, warren.Node)
        assert_type(node.store(), warren.Store)
        assert_type(node.queue("q").subscription("s"), warren.Subscription)
        assert_type(node.worker("q", print), warren.Worker)
        assert_type(node.worker("q", print, concurrency=2, processes=True), warren.ProcessWorker)
        assert_type(node.worker("q", print, processes=processes), warren.Worker | warren.ProcessWorker)
        assert_type(node.call("q", b"x", timeout=1), bytes)
        assert_type(node.serve("q", answer), warren.Worker)
    assert_type(warren.attach("data", call_timeout=None), warren.Node)
    warren.open("data", file_byte=1 << 20)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    warren.open("data", workers="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def answer(message: warren.Message) -> bytes:
    return message.body


def getting(queue: warren.Queue) -> None:
    message = queue.get(timeout=1)
    assert_type(message, warren.Message)
    assert_type(message.body, bytes)
    assert_type(message.view(), memoryview)
    assert_type(message.headers, dict[str, Any])
    assert_type(message.redelivered, bool)
    assert_type(queue.get_many(5), list[warren.Message])
    assert_type(queue.consume(prefetch=5), Iterator[warren.Message])
    with message as same:
        assert_type(same, warren.Message)
    body: str = message.body  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(body)


async def awaiting(node: warren.aio.Node, later: bool) -> None:
    queue = await node.queue("q", max_length=5)
    assert_type(queue, warren.aio.Queue)
    assert_type(await queue.put(b"x"), None)
    assert_type(await queue.put(b"x", wait=False, priority=2), warren.aio.Confirm)
    assert_type(await queue.put(b"x", "none", False), warren.aio.Confirm)
    assert_type(await queue.put(b"x", wait=later), warren.aio.Confirm | None)
    assert_type(await queue.put_many([b"x"]), None)
    assert_type(await queue.put_many([b"x"], wait=False, delay=[1.0]), warren.aio.Confirm)
    assert_type(await queue.put_many([b"x"], None, False), warren.aio.Confirm)
    assert_type(await queue.put_many([b"x"], wait=later), warren.aio.Confirm | None)
    assert_type(await node.publish(b"x", "events", "a"), None)
    assert_type(await node.publish(b"x", "events", "a", wait=False), warren.aio.Confirm)
    assert_type(await node.publish(b"x", "events", "a", False, None, False), warren.aio.Confirm)
    assert_type(await node.publish(b"x", "events", "a", wait=later), warren.aio.Confirm | None)
    message = await queue.get(timeout=1)
    assert_type(message, warren.aio.Message)
    assert_type(message.view(), memoryview)
    await message.ack()
    async with queue.consume(prefetch=5) as messages:
        async for one in messages:
            assert_type(one, warren.aio.Message)
            await one.nack()
    await node.declare_exchange("a", "fanout", alternate="b")
    await queue.bind("a", arguments={"x-match": "any"})

    assert_type(await queue.put(b"x", block=True), None)
    assert_type(await node.publish_many([b"x"], "events", routing_keys=["a"]), None)
    assert_type(await node.publish_many([b"x"], "events", wait=False, delay=2), warren.aio.Confirm)
    assert_type(await node.publish_many([b"x"], "events", wait=later), warren.aio.Confirm | None)
    assert_type(await queue.browse(5), list[warren.aio.Message])
    assert_type(await (await queue.subscription("s")).claim(5), tuple[int, int])
    store = node.store()
    assert_type(await store.write(IDS[0], b"x"), None)
    assert_type(await store.write(IDS[0], b"x", wait=False), warren.aio.Confirm)
    assert_type(await store.write_many(IDS, [b"x", b"y"], wait=later), warren.aio.Confirm | None)
    assert_type(await store.read(IDS[0]), bytes | None)
    assert_type(await store.remove(IDS), int)
    assert_type(await node.work_queue("w", 10, message_ttl=5.0), warren.aio.WorkQueue[bytes])
    numbers: warren.aio.WorkQueue[int] = await node.work_queue("w", serializer="json")
    assert_type(await numbers.get(timeout=1), int)
    numbers.task_done()
    await numbers.put("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    raw = await node.work_queue("w")
    await raw.put(bytearray(b"a"))
    await raw.put_nowait(memoryview(b"a"))
    await raw.put("a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await queue.put(b"x", durability="sync")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]

    await queue.put(b"x", ttl="1 s")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await node.queue("q", max_lenght=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await node.declare_exchange("a", alternat="b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def opened() -> None:
    async with warren.aio.open("data", profile="small", workers=2) as node:
        assert_type(node, warren.aio.Node)
    node = await warren.aio.attach("data")
    await node.close()


asyncio.run(opened())
