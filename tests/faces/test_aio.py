"""Goal: the asyncio face loses and doubles nothing, waits without threads, and survives what happens to node and loop.

Method: real nodes; each test runs loops of its own; messages are counted by what they say.
"""

import asyncio
import contextlib
import functools
import gc
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import warren
import warren.aio
from warren.workers.faces.aio import line

from support.real_node import RealNode

pytestmark = pytest.mark.integration

T = TypeVar("T")
LIMIT_S = 60


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a loop of its own, not for ever."""
    return asyncio.run(asyncio.wait_for(work, LIMIT_S))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("node") / "data") as started:
        yield started


@pytest.fixture
def directory(running: RealNode) -> Path:
    return running.directory


async def getters(n: int, *queues: warren.aio.Queue) -> None:
    """Until so many tasks wait in these queues."""
    while sum(len(queue._line.getters) for queue in queues) < n:
        await asyncio.sleep(0)


def drain(directory: Path, name: str) -> list[warren.Message]:
    """What is left, in order, acked; by the blocking face."""
    with warren.attach(directory) as node:
        queue = node.queue(name, create=False)
        found: list[warren.Message] = []
        while part := queue.get_many(1000, timeout=0.3):
            found += part
        queue.ack(found)
        return found


# ---- as the blocking face -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause", [0.0, 2 * line.IDLE_S])
def test_a_queue_that_was_forgotten_is_opened_again(directory: Path, name: str, pause: float) -> None:
    """Whoever opens it anew, once its object is gone, gets what comes: what was asked for before him has come."""

    async def main() -> None:
        async with warren.aio.attach(directory) as node, warren.aio.attach(directory) as other:
            there = await other.queue(name)
            for number in range(4):
                queue = await node.queue(name)
                waiting = asyncio.ensure_future(queue.get())
                await getters(1, queue)
                await there.put(b"%d" % number)
                message = await waiting
                assert message.body == b"%d" % number
                await asyncio.sleep(pause)
                await message.ack()
                del queue, waiting, message
                gc.collect()

    run(main())


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("size", [0, 100, 5000, 400_000])
def test_a_body_comes_back_as_it_was_put(directory: Path, name: str, durable: bool, size: int) -> None:
    body = os.urandom(size)

    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name, durable)
            assert await queue.put(body, headers={"a": 1}) is None
            message = await queue.get(timeout=10)
            assert (message.body, message.headers, message.redelivered) == (body, {"a": 1}, False)
            assert message.queue is queue
            await message.ack()

    run(main())
    assert drain(directory, name) == []


def test_put_many_get_many_nack_and_confirms(directory: Path, name: str) -> None:
    async def main() -> None:
        node = await warren.aio.attach(directory)
        queue = await node.queue(name)
        bodies = [b"%d" % number for number in range(3000)]
        assert await queue.put_many(bodies) is None
        found: list[warren.aio.Message] = []
        while len(found) < 3000:
            found += await queue.get_many(700, timeout=10)
        assert [message.body for message in found] == bodies
        await queue.ack(found[:2998])
        await queue.nack(found[2998:])
        again = [await queue.get(timeout=10), await queue.get(timeout=10)]
        assert [(message.body, message.redelivered) for message in again] == [(b"2998", True), (b"2999", True)]
        await again[1].ack(multiple=True)
        confirms = [await queue.put(b"x", wait=False) for _number in range(50)]
        for confirm in confirms:
            assert confirm is not None
            await confirm
            assert confirm.done()
        await asyncio.gather(*(confirm.wait(60) for confirm in confirms if confirm is not None))
        await node.close()
        assert confirms[0] is not None
        await confirms[0]  # is known still

    run(main())
    assert len(drain(directory, name)) == 50


def test_what_goes_with_a_message_goes_with_each_part_of_a_batch(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            await queue.put(b"x", properties={"type": "one"}, message_id="first")
            first = await queue.get(timeout=10)
            assert (first.type, first.properties["type"]) == ("one", "one")
            await first.ack()
            each = [{"type": str(number)} for number in range(1000)]
            await queue.put_many([b"%d" % number for number in range(1000)], properties=each, headers={"all": True})
            found: list[warren.aio.Message] = []
            while len(found) < 1000:
                found += await queue.get_many(1000, timeout=10)
            assert [message.type for message in found] == [str(number) for number in range(1000)]
            assert all(message.headers == {"all": True} for message in found)
            with pytest.raises(warren.UsageError, match="properties: 1,000 values for 2 messages"):
                await queue.put_many([b"a", b"b"], properties=each)
            await queue.ack(found)

    run(main())


def test_a_full_queue_says_which_were_refused(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name, max_length=500, overflow="reject-publish")
            with pytest.raises(warren.QueueFull) as full:
                await queue.put_many([b"%d" % number for number in range(1000)])
            assert full.value.refused == tuple(range(500, 1000)), "numbers of the whole batch, not of its parts"
            with pytest.raises(warren.QueueFull, match="max_length=500"):
                await queue.put(b"x")
            confirm = await queue.put(b"x", wait=False)
            assert confirm is not None
            with pytest.raises(warren.QueueFull):
                await confirm

    run(main())


def test_large_batches_larger_than_ring_and_arena(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name, durable=False)
            await queue.put_many([bytes([number % 256]) * 100_000 for number in range(60)])
            await asyncio.gather(*(queue.put(b"y" * 300_000) for _number in range(20)))
            total = 0
            async with queue.consume(prefetch=10, timeout=1) as messages:
                async for message in messages:
                    total += len(message.body)
                    await message.ack()
            assert total == 60 * 100_000 + 20 * 300_000

    run(main())


N = 600  #: messages that are sent in several parts
LAST_IS_WRONG: dict[str, tuple[list[bytes], dict[str, Any]]] = {
    "a header of no kind": ([b"x"] * N, {"headers": [None] * (N - 1) + [{"a": object()}]}),
    "large headers": ([b"x"] * N, {"headers": [None] * (N - 1) + [{"a": "x" * 70_000}]}),
    "no property": ([b"x"] * N, {"properties": [None] * (N - 1) + [{"colour": "red"}]}),
    "no priority": ([b"x"] * N, {"priority": [0] * (N - 1) + [256]}),
    "no time": ([b"x"] * N, {"ttl": [None] * (N - 1) + ["soon"]}),
    "a delay without end": ([b"x"] * N, {"delay": [None] * (N - 1) + [float("inf")]}),
    "no id": ([b"x"] * N, {"message_id": [None] * (N - 1) + [b""]}),
    "no truth": ([b"x"] * N, {"persistent": [True] * (N - 1) + [5]}),
    "no durability": ([b"x"] * N, {"durability": "soon"}),
    "too few": ([b"x"] * N, {"headers": [None] * (N - 1)}),
    "no body": ([b"x"] * (N - 1) + [5], {}),  # type: ignore[list-item]
    "a large body": ([b"x"] * (N - 1) + [b"x" * 600_000], {}),
    "a body that its headers make too large": ([b"x"] * (N - 1) + [b"x" * 499_950], {"headers": {"a": "x" * 100}}),
}


@pytest.mark.parametrize("case", LAST_IS_WRONG)
def test_a_batch_of_which_the_last_is_wrong_stores_nothing(directory: Path, name: str, case: str) -> None:
    """A batch is sent in parts; it is looked at as a whole before the first of them. Both faces refuse it."""
    bodies, options = LAST_IS_WRONG[case]

    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            with pytest.raises(warren.UsageError):
                await queue.put_many(bodies, **options)
            assert (await queue.stats())["published"] == 0
            await queue.put_many(bodies[:-1])
            assert await queue.depth() == N - 1, "it goes on"

    run(main())
    with warren.attach(directory) as node:
        queue = node.queue(name)
        queue.purge()
        exchange: dict[str, Any] = {"exchange": "", "routing_key": name}
        for publish in (queue.put_many, functools.partial(node.publish_many, **exchange)):
            with pytest.raises(warren.UsageError):
                publish(bodies, **options)
        assert queue.depth() == 0


def test_timeouts_and_wrong_use(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            for timeout in (0, 0.01):
                with pytest.raises(warren.QueueEmpty):
                    await queue.get(timeout)
                assert await queue.get_many(10, timeout) == []
            await queue.put(b"x")
            assert (await queue.get(0)).body == b"x", "a first look finds what is there"
            for wrong in (queue.put("text"), queue.put_many([b"a", 5]), queue.get(-1), queue.put(b"", "wrong")):  # type: ignore[arg-type, list-item]
                with pytest.raises(warren.UsageError):
                    await wrong
            for count in (0, 2**70, "5", None):
                with pytest.raises(warren.UsageError, match="max must"):
                    await queue.get_many(count, 0)  # type: ignore[arg-type]
            for count in (0, "5"):
                with pytest.raises(warren.UsageError, match="prefetch must"):
                    queue.consume(count)  # type: ignore[arg-type]
            with pytest.raises(warren.MessageTooLarge):
                await queue.put_many([b"good", b"x" * 600_000])
            with pytest.raises(warren.QueueNotFound):
                await node.queue("nothing", create=False)
            assert (await queue.stats())["published"] == 1
        with pytest.raises(warren.ClosedError):
            await queue.get(0)
        with pytest.raises(warren.NodeNotRunning):
            await warren.aio.attach(directory / "elsewhere", timeout=0.1)

    run(main())


def test_a_first_look_of_a_new_attachment_finds_what_is_there(directory: Path, name: str) -> None:
    async def main() -> None:
        for number in range(10):
            async with warren.aio.attach(directory) as node:
                queue = await node.queue(name)
                await queue.put(b"%d" % number)
            async with warren.aio.attach(directory) as node:
                message = await (await node.queue(name)).get(0)
                assert message.body == b"%d" % number
                await message.ack()

    run(main())


def test_exchanges(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            exchange = f"x-{name}"
            await node.declare_exchange(exchange, "topic")
            queues = [await node.queue(f"{name}-{number}") for number in range(4)]
            for queue in queues:
                await queue.bind(exchange, "a.*")
            await node.publish(b"x", exchange, "a.b")
            for queue in queues:
                message = await queue.get(timeout=10)
                assert (message.exchange, message.routing_key) == (exchange, "a.b")
                await message.ack()
            with pytest.raises(warren.Unroutable):
                await node.publish(b"x", exchange, "b", mandatory=True)
            confirm = await node.publish(b"x", exchange, "b", wait=False)
            assert confirm is not None
            await confirm

    run(main())


# ---- waiting --------------------------------------------------------------------------------------------------------


def test_thousands_wait_without_threads(directory: Path, name: str) -> None:
    """3000 tasks on 50 queues wait; each gets one message."""

    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queues = [await node.queue(f"{name}-{number}", durable=False) for number in range(50)]

            async def one(queue: warren.aio.Queue) -> bytes:
                message = await queue.get()
                await message.ack()
                return message.body

            before = threading.active_count()
            tasks = [asyncio.create_task(one(queues[number % 50])) for number in range(3000)]
            await getters(3000, *queues)
            assert threading.active_count() <= before + 1, threading.enumerate()
            assert not any(task.done() for task in tasks)
            for number, queue in enumerate(queues):
                await queue.put_many([b"%d-%d" % (number, message) for message in range(60)])
            found = await asyncio.gather(*tasks)
            assert Counter(found) == Counter(b"%d-%d" % (queue, n) for queue in range(50) for n in range(60))
            assert threading.active_count() <= before + 1 + 8, "the shared threads for what blocks"
            for queue in queues:
                await queue.delete()

    run(main())


def test_getters_are_served_in_order(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            tasks = [asyncio.create_task(queue.get()) for _number in range(100)]
            await getters(100, queue)
            await queue.put_many([b"%d" % number for number in range(100)])
            assert [int((await task).body) for task in tasks] == list(range(100))

    run(main())


def test_a_queue_that_tasks_open_at_once_is_one(directory: Path, name: str) -> None:
    """They get the same object, and a message wakes who waits with it, however many were made on the way."""

    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            for number in range(10):
                opened = await asyncio.gather(*(node.queue(f"{name}-{number}") for _task in range(5)))
                queue = opened[0]
                assert all(one is queue for one in opened)
                del opened
                gc.collect()
                waiting = asyncio.create_task(queue.get())
                await getters(1, queue)
                await queue.put(b"x")
                assert (await asyncio.wait_for(waiting, 10)).body == b"x"

    run(main())


def test_idle_gets_hoard_nothing(directory: Path, name: str) -> None:
    """A loop of gets gets messages delivered ahead; when it stops, they are there for others, in order."""

    async def main() -> None:
        async with warren.aio.attach(directory) as node, warren.aio.attach(directory) as other:
            queue = await node.queue(name)
            await queue.put_many([b"%d" % number for number in range(2000)])
            for number in range(500):
                message = await queue.get(timeout=10)
                assert int(message.body) == number
                await message.ack()
            theirs = await other.queue(name)
            found: list[int] = []
            while len(found) < 1500:
                for message in await theirs.get_many(1000, timeout=10):
                    found.append(int(message.body))
                    await message.ack()
            assert sorted(found) == list(range(500, 2000))

    run(main())


@pytest.mark.parametrize("size", [50, 6000])
def test_a_storm_of_cancelled_gets_loses_nothing(directory: Path, name: str, seed: int, size: int) -> None:
    """Tasks that get are cancelled at any moment while messages come: each message is got exactly once."""
    count = 3000
    dice = random.Random(seed)

    async def main() -> Counter[int]:
        seen: Counter[int] = Counter()
        async with warren.aio.attach(directory) as node, warren.aio.attach(directory) as producer:
            queue = await node.queue(name)
            to = await producer.queue(name)

            async def consume() -> None:
                message = await queue.get()
                seen[int(message.body[:10])] += 1
                await message.ack()

            async def produce() -> None:
                for start in range(0, count, 50):
                    await to.put_many([b"%010d" % number + bytes(size) for number in range(start, start + 50)])

            producing = asyncio.create_task(produce())
            tasks: set[asyncio.Task[None]] = set()
            while seen.total() < count:
                tasks = {task for task in tasks if not task.done()}
                while len(tasks) < 40:
                    tasks.add(asyncio.create_task(consume()))
                await asyncio.sleep(dice.choice((0, 0, 0, 0.0005, 0.002)))
                for task in dice.sample(sorted(tasks, key=id), 20):
                    task.cancel()
            await producing
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return seen

    seen = run(main())
    assert sorted(seen) == list(range(count))
    assert set(seen.values()) == {1}
    assert drain(directory, name) == []


def test_a_cancelled_get_leaves_the_message_at_its_place(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node, warren.aio.attach(directory) as other:
            queue = await node.queue(name)
            waiting = asyncio.create_task(queue.get())
            await getters(1, queue)
            bodies = [b"%d" % number for number in range(5)]
            await (await other.queue(name)).put_many(bodies)
            while not queue._line.getters or not waiting.done():
                if not queue._line.getters:  # the message was given to the getter, whose task has not run yet
                    break
                await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await waiting).nack()
            theirs = await other.queue(name)
            found = [await theirs.get(timeout=10) for _number in range(5)]
            assert [message.body for message in found] == bodies

    run(main())


def test_wait_for_around_get_loses_nothing(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node, warren.aio.attach(directory) as producer:
            queue, to = await node.queue(name), await producer.queue(name)
            found: list[int] = []

            async def consume() -> None:
                while len(found) < 300:
                    with contextlib.suppress(asyncio.TimeoutError):
                        message = await asyncio.wait_for(queue.get(), 0.001)
                        found.append(int(message.body))
                        await message.ack()

            consuming = asyncio.create_task(consume())
            for number in range(300):
                await to.put(b"%d" % number, durability="none")
            await consuming
            assert sorted(found) == list(range(300))

    run(main())


# ---- consuming ------------------------------------------------------------------------------------------------------


def test_consume_holds_at_most_prefetch_and_returns_the_rest(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node, warren.aio.attach(directory) as other:
            queue = await node.queue(name)
            await queue.put_many([b"%d" % number for number in range(100)])
            held: list[warren.aio.Message] = []
            async with queue.consume(prefetch=10, timeout=0.2) as messages:
                held += [message async for message in messages]
            assert [int(message.body) for message in held] == list(range(10)), "the eleventh waits for an ack"
            async with queue.consume(prefetch=10) as messages:
                async for message in messages:
                    held.append(message)
                    await message.ack()
                    if len(held) == 20:
                        break
            theirs = await other.queue(name)
            rest = [await theirs.get(timeout=10) for _number in range(80)]
            assert [int(message.body) for message in rest] == list(range(20, 100))
            for message in held[:10]:
                await message.ack()

    run(main())


def test_an_iterator_that_is_forgotten_lets_go(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node, warren.aio.attach(directory) as other:
            queue = await node.queue(name)
            await queue.put_many([b"%d" % number for number in range(50)])
            async for message in queue.consume(prefetch=20):
                await message.ack()
                break
            theirs = await other.queue(name)
            rest = [await theirs.get(timeout=10) for _number in range(49)]  # the first may come before all are back
            assert sorted(int(message.body) for message in rest) == list(range(1, 50))

    run(main())


def test_many_consumers_of_one_node_share_the_queue(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            seen: list[int] = []

            async def work() -> None:
                async with queue.consume(prefetch=3, timeout=1) as messages:
                    async for message in messages:
                        seen.append(int(message.body))
                        await asyncio.sleep(0)
                        await message.ack()

            workers = [asyncio.create_task(work()) for _number in range(20)]
            await queue.put_many([b"%d" % number for number in range(2000)])
            await asyncio.gather(*workers)
            assert sorted(seen) == list(range(2000))

    run(main())


def test_close_returns_what_was_delivered_in_order(directory: Path, name: str) -> None:
    """What was handed out is marked redelivered."""

    async def main() -> None:
        node = await warren.aio.attach(directory)
        queue = await node.queue(name)
        await queue.put_many([b"%d" % number for number in range(100)])
        messages = queue.consume(prefetch=30)
        held = [await anext(messages) for _number in range(10)]
        await held[3].ack()
        waiting = asyncio.create_task((await node.queue(f"{name}-empty")).get())
        await asyncio.sleep(0)
        await node.close()
        with pytest.raises(warren.ClosedError):
            await waiting
        with pytest.raises(warren.ClosedError):
            await anext(messages)

    run(main())
    found = drain(directory, name)
    assert [int(message.body) for message in found] == [number for number in range(100) if number != 3]
    assert {message.redelivered for message in found[:9]} == {True}
    assert {message.redelivered for message in found[30:]} == {False}


# ---- what happens to node, process and loop -------------------------------------------------------------------------


def test_a_killed_worker_is_waited_for(tmp_path: Path) -> None:
    """The worker dies while gets, confirms and a consumer are awaited; all of them end well, once."""

    async def main(running: RealNode) -> None:
        async with warren.aio.attach(running.directory) as node:
            queue, empty = await node.queue("q"), await node.queue("empty")
            seen: Counter[int] = Counter()

            async def consume() -> None:
                async for message in queue.consume(prefetch=50):
                    if not message.redelivered or not seen[int(message.body)]:
                        seen[int(message.body)] += 1
                    with contextlib.suppress(warren.PeerLost):
                        await message.ack()

            consuming = asyncio.create_task(consume())
            waiting = asyncio.create_task(empty.get())
            sent = 0
            for _round in range(4):
                putting = asyncio.create_task(queue.put_many([b"%d" % number for number in range(sent, sent + 400)]))
                sent += 400
                for role in ("worker-0", "worker-1"):
                    await asyncio.get_running_loop().run_in_executor(None, running.kill, role)
                await putting
            await empty.put(b"at last")
            assert (await waiting).body == b"at last"
            while len(seen) < sent:
                await asyncio.sleep(0.01)
            consuming.cancel()
            assert set(seen.values()) == {1}

    with RealNode(tmp_path / "data") as running:
        run(main(running))


def test_a_storm_with_kills_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    """Gets, batches, timeouts and consumers are cancelled and servers killed while messages come, small and large.

    What comes twice is marked redelivered.
    """
    dice = random.Random(seed)
    count = 2000
    seen: Counter[int] = Counter()

    async def settle(message: warren.aio.Message) -> None:
        number = int(message.body[:10])
        if not message.redelivered or not seen[number]:
            seen[number] += 1
        with contextlib.suppress(warren.PeerLost):  # its worker forgot it: it comes again
            if dice.random() < 0.1 and len(seen) < count:
                seen[number] -= 1
                await message.nack()
            else:
                await message.ack()

    async def take(queue: warren.aio.Queue) -> None:
        with contextlib.suppress(warren.PeerLost, warren.TimedOut):  # at its timeout, while the worker is restarted
            await take_one_way(queue)

    async def take_one_way(queue: warren.aio.Queue) -> None:
        kind = dice.randrange(4)
        if kind == 0:
            await settle(await queue.get())
        elif kind == 1:
            for message in await queue.get_many(5, timeout=dice.choice((0, 0.001, 0.05, None))):
                await settle(message)
        elif kind == 2:
            with contextlib.suppress(asyncio.TimeoutError):
                await settle(await asyncio.wait_for(queue.get(), 0.003))
        else:
            async with queue.consume(prefetch=dice.choice((1, 3, 20)), timeout=0.05) as messages:
                async for message in messages:
                    await settle(message)
                    if dice.random() < 0.2:
                        break

    async def produce(queue: warren.aio.Queue) -> None:
        for start in range(0, count, 50):
            size = dice.choice((0, 100, 6000))
            await queue.put_many([b"%010d" % number + bytes(size) for number in range(start, start + 50)])

    async def main(running: RealNode) -> None:
        async with warren.aio.attach(running.directory) as node, warren.aio.attach(running.directory) as producer:
            queue = await node.queue("q")
            producing = asyncio.create_task(produce(await producer.queue("q")))
            killing: asyncio.Future[int] | None = None
            left = ["worker-0", "worker-1", "store", "worker-0", "worker-1"]
            tasks: set[asyncio.Task[None]] = set()
            while left or sum(map(bool, seen.values())) < count:
                for task in [task for task in tasks if task.done()]:
                    tasks.remove(task)
                    if not task.cancelled():
                        task.result()
                while len(tasks) < 30:
                    tasks.add(asyncio.create_task(take(queue)))
                await asyncio.sleep(dice.choice((0, 0.001, 0.005)))
                if dice.random() < 0.5:
                    for task in dice.sample(sorted(tasks, key=id), 8):
                        task.cancel()
                if left and (killing is None or killing.done()):
                    killing = asyncio.get_running_loop().run_in_executor(None, running.kill, left.pop())
            await producing
            assert killing is not None
            await killing
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with RealNode(tmp_path / "data") as running:
        run(main(running))
    assert {number: times for number, times in seen.items() if times != 1} == {}
    assert len(seen) == count


def test_a_node_that_stops_tells_everybody(tmp_path: Path) -> None:
    async def main(running: RealNode) -> None:
        node = await warren.aio.attach(running.directory)
        queue = await node.queue("q")
        waiting = [asyncio.create_task(queue.get()) for _number in range(10)]
        await getters(10, queue)
        await asyncio.get_running_loop().run_in_executor(None, running.stop)
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, warren.ClosedError), error
        with pytest.raises(warren.ClosedError):
            await queue.put(b"x")
        running.start()
        await queue.put(b"back")
        assert (await queue.get(timeout=10)).body == b"back", "the node was started again: the same objects go on"
        await node.close()

    with RealNode(tmp_path / "data") as running:
        run(main(running))


def test_a_deleted_queue_ends_the_wait(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node, warren.aio.attach(directory) as other:
            queue = await node.queue(name)
            waiting = asyncio.create_task(queue.get())
            await getters(1, queue)
            await other.delete_queue(name)
            with pytest.raises(warren.QueueNotFound):
                await waiting

    run(main())


def test_loops_in_threads_and_one_after_another(directory: Path, name: str) -> None:
    """Four loops in four threads share one waiting thread; a node goes on in the next loop when its own is closed."""
    errors: list[BaseException] = []

    async def chat(mine: str, theirs: str) -> None:
        async with warren.aio.attach(directory) as node:
            here, there = await node.queue(mine), await node.queue(theirs)
            for number in range(50):
                await there.put(b"%d" % number)
                message = await here.get(timeout=30)
                assert int(message.body) == number
                await message.ack()

    def thread(number: int) -> None:
        try:
            run(chat(f"{name}-{number}", f"{name}-{number ^ 1}"))
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    threads = [threading.Thread(target=thread, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    assert sum(item.name == "warren-waiter" for item in threading.enumerate()) <= 1
    for one in threads:
        one.join(LIMIT_S)
    assert errors == []

    async def first() -> tuple[warren.aio.Node, warren.aio.Queue]:
        node = await warren.aio.attach(directory)
        return node, await node.queue(name)

    node, queue = run(first())

    async def second() -> None:
        waiting = asyncio.create_task(queue.get())
        await getters(1, queue)
        await queue.put(b"x")
        assert (await waiting).body == b"x"
        await node.close()

    run(second())


def test_another_loop_is_refused(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)

            async def elsewhere() -> None:
                await queue.get(0)

            with pytest.raises(warren.UsageError, match="another event loop"):
                await asyncio.get_running_loop().run_in_executor(None, run, elsewhere())

    run(main())


def test_producer_and_consumer_over_fork(directory: Path, name: str) -> None:
    """A node that the parent opened is used by the child's loop: it attaches anew. The parent's own goes on."""

    async def parent() -> tuple[warren.aio.Node, warren.aio.Queue]:
        node = await warren.aio.attach(directory)
        queue = await node.queue(name)
        await queue.put(b"from the parent")
        held = await queue.get(timeout=10)
        child = os.fork()
        if not child:
            os._exit(child_main(queue, held))
        await held.ack()
        seen = []
        async for message in queue.consume(timeout=30):
            seen.append(int(message.body))
            await message.ack()
            if len(seen) == 500:
                break
        assert seen == list(range(500))
        _pid, status = await asyncio.get_running_loop().run_in_executor(None, os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        return node, queue

    def child_main(queue: warren.aio.Queue, held: warren.aio.Message) -> int:
        asyncio._set_running_loop(None)

        async def produce() -> None:
            with pytest.raises(warren.PeerLost):
                await held.ack()
            for start in range(0, 500, 100):
                await queue.put_many([b"%d" % number for number in range(start, start + 100)])
            await queue._loop.close(queue._loop.client.close)

        try:
            run(produce())
        except BaseException:  # noqa: BLE001 - printed, and an exit code
            import traceback

            traceback.print_exc()
            return 1
        return 0

    node, _queue = run(parent())
    run(node.close())


def test_an_alarm_blocks_a_put_until_it_ends(running: RealNode, name: str) -> None:
    """While the worker stands still a full ring blocks puts; a timeout says so, and the others go on afterwards."""

    async def main() -> None:
        async with warren.aio.attach(running.directory) as node:
            queue = await node.queue(name)
            worker = queue._underneath.server
            pid = running.pids()[f"worker-{worker - 2}"]
            os.kill(pid, signal.SIGSTOP)
            try:
                puts = [asyncio.create_task(queue.put(b"%d" % number)) for number in range(1500)]
                await asyncio.sleep(0.1)
                with pytest.raises(warren.TimedOut):
                    await queue.put(b"late", timeout=0.05)
                assert not any(task.done() for task in puts)
            finally:
                os.kill(pid, signal.SIGCONT)
            await asyncio.gather(*puts)
            assert (await queue.stats())["published"] >= 1500

    run(main())


def test_without_futex_waitv_it_works_too(directory: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from warren.workers.client import waiter

    monkeypatch.setattr(waiter._waiter, "waitv", False)

    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            waiting = asyncio.create_task(queue.get())
            await getters(1, queue)
            await queue.put(b"x")
            assert (await waiting).body == b"x"

    run(main())


# ---- another attachment ---------------------------------------------------------------------------------------------


def test_what_the_attachment_in_use_brought_stays_when_the_loop_hears_of_it(directory: Path, name: str) -> None:
    """A thread of the client may have made the attachment and the handle before the event loop notices: what came by
    them since is no rest of the old ones.
    """

    async def work() -> list[bytes]:
        async with await warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            await queue.put_many([b"0", b"1", b"2"])
            first = await queue.get(timeout=10)
            line = queue._line
            while not line._ahead:
                line._put_back(line._take(1, 1))
                await asyncio.sleep(0)
            waiting = asyncio.create_task(queue.get(timeout=10))
            await getters(0, queue)
            await line.renewed()
            second = await waiting
            third = await queue.get(timeout=10)
            await queue.ack([first, second, third])
            return [message.body for message in (first, second, third)]

    assert run(work()) == [b"0", b"1", b"2"]
    assert drain(directory, name) == []
