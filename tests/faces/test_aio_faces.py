"""Goal: what warren.aio mirrors of the blocking interface does the same, awaited: work queues, the store, publishing of
many, browsing, releasing, subscriptions.

Method: a real node; programs as an asyncio user writes them; another client, blocking, looks at what came of it.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import warren
import warren.aio

from support.real_node import RealNode, frozen
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(240):
            return await work

    return asyncio.run(limited())


def holds(queue: warren.Queue, count: int) -> None:
    """So many messages are ready; the counts may be some milliseconds old."""
    wait_until(lambda: queue.depth() == count, what=f"{count} are ready in {queue.name}")


def drain(queue: warren.Queue, count: int) -> list[warren.Message]:
    """So many messages, and no more are there."""
    found: list[warren.Message] = []
    while len(found) < count:
        more = queue.get_many(count - len(found), timeout=60)
        assert more, f"{len(found)} of {count}"
        found += more
    holds(queue, 0)
    queue.ack(found)
    return found


# ---- work queues -----------------------------------------------------------------------------------------------------


def test_tasks_share_the_items_of_a_work_queue(node: warren.Node, directory: Path, name: str) -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        async with warren.aio.attach(directory) as mine:
            tasks = await mine.work_queue(name, serializer="json")

            async def work() -> None:
                while (item := await tasks.get()) is not None:
                    seen.append(item)
                    tasks.task_done()
                tasks.task_done()

            workers = [asyncio.create_task(work()) for _number in range(20)]
            await asyncio.gather(*(tasks.put(number) for number in range(200)))
            await tasks.join()
            assert len(seen) == 200
            assert (await tasks.qsize(), await tasks.empty(), await tasks.full()) == (0, True, False)
            for _worker in workers:
                await tasks.put(None)
            await asyncio.gather(*workers)
            with pytest.raises(ValueError, match="too many"):
                tasks.task_done()
            with pytest.raises(asyncio.QueueEmpty) as empty:
                await tasks.get_nowait()
            assert isinstance(empty.value, warren.QueueEmpty)
        return seen

    assert sorted(run(main())) == list(range(200))
    node.work_queue(name).join(timeout=60)


def test_an_unfinished_item_comes_again(node: warren.Node, directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            async with await mine.work_queue(name) as tasks:
                for number in range(5):
                    await tasks.put(b"%d" % number)
                assert [await tasks.get(), await tasks.get(timeout=5)] == [b"0", b"1"]
                tasks.task_done()
                with pytest.raises(warren.TimedOut, match="items left: 4"):
                    await tasks.join(timeout=patience())
            assert await tasks.qsize() == 4
            assert await tasks.get() == b"1"  # it can be used again
            await tasks.close()

    run(main())
    theirs = node.work_queue(name)
    assert [theirs.get(timeout=30) for _number in range(4)] == [b"1", b"2", b"3", b"4"]


def test_task_done_is_for_the_tasks_own_item(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            tasks = await mine.work_queue(name)
            for number in range(3):
                await tasks.put(b"%d" % number)
            assert await tasks.get() == b"0"

            async def other() -> None:
                assert await tasks.get() == b"1"
                tasks.task_done()

            await asyncio.create_task(other())
            await tasks.close()  # this task's 0 returns, in its place
            assert [await tasks.get(), await tasks.get()] == [b"0", b"2"]
            asyncio.get_running_loop().call_soon(tasks.task_done)  # a callback has none: the oldest
            await asyncio.sleep(0)
            await tasks.close()
            assert await tasks.get() == b"2"
            tasks.task_done()
            await tasks.join(60)

    run(main())


def test_a_full_work_queue_makes_tasks_wait(node: warren.Node, directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            tasks = await mine.work_queue(name, maxsize=2)
            await tasks.put(b"1")
            await tasks.put_nowait(b"2")
            assert (tasks.maxsize, await tasks.full()) == (2, True)
            for put in (tasks.put_nowait(b"3"), tasks.put(b"3", timeout=patience())):
                with pytest.raises(asyncio.QueueFull, match="max_length=2") as full:
                    await put
                assert isinstance(full.value, warren.QueueFull)
            waiting = asyncio.create_task(tasks.put(b"3"))
            got = await asyncio.to_thread(node.work_queue(name).get)
            await waiting
            assert (got, await tasks.get(), await tasks.get()) == (b"1", b"2", b"3")
            again = await mine.work_queue(name)
            assert again.maxsize == 2
            with pytest.raises(warren.DeclarationMismatch, match="max_length=2, not max_length=3"):
                await mine.work_queue(name, maxsize=3)

    run(main())


def test_an_item_that_cannot_be_read_is_the_callers(node: warren.Node, directory: Path, name: str) -> None:
    node.declare_exchange(f"{name}-dead", "fanout")
    letters = node.queue(f"{name}-letters")
    letters.bind(f"{name}-dead")

    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            tasks = await mine.work_queue(name, serializer="json")
            dead = await mine.work_queue(f"{name}-2", serializer="json", dead_letter_exchange=f"{name}-dead")
            for queue in (tasks, dead):
                await queue.queue.put(b"not json")
                await queue.put({"page": 1})
            with pytest.raises(warren.Undecodable, match="stays unacked") as told:
                await tasks.get()
            assert told.value.body == b"not json"
            assert await tasks.get() == {"page": 1}
            tasks.task_done()
            with pytest.raises(ValueError, match="too many"):
                tasks.task_done()
            with pytest.raises(warren.TimedOut, match="items left: 1"):
                await tasks.join(patience())
            await told.value.message.reject()
            await tasks.join(60)
            with pytest.raises(warren.Undecodable, match="dead-lettered"):
                await dead.get()
            assert await dead.get() == {"page": 1}
            with pytest.raises(warren.UsageError, match="cannot write"):
                await tasks.put(object())

    run(main())
    assert letters.get(timeout=60).body == b"not json"


class Poison:
    """What ends the program that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (3,)


def test_an_item_that_ends_programs_does_not_block_the_next(node: warren.Node, directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            tasks = await mine.work_queue(name, serializer="pickle")
            await tasks.put(Poison())
            await tasks.put(5)
            with pytest.raises(warren.Undecodable, match="SystemExit: 3") as told:
                await tasks.get()
            assert await tasks.get() == 5
            tasks.task_done()
            await told.value.message.reject()
            await tasks.join(60)

    run(main())


@pytest.mark.parametrize("immediate", [False, True])
def test_a_shutdown_wakes_the_tasks_that_wait(node: warren.Node, directory: Path, name: str, immediate: bool) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            tasks, full = await mine.work_queue(name), await mine.work_queue(f"{name}-full", 1)
            others = await mine.work_queue(name)
            await full.put(b"1")
            waiting = [asyncio.create_task(tasks.get()) for _number in range(3)]
            waiting.append(asyncio.create_task(full.put(b"2")))  # type: ignore[arg-type]
            other = asyncio.create_task(others.get())
            asyncio.get_running_loop().call_later(0.05, tasks.shutdown, immediate)
            asyncio.get_running_loop().call_later(0.05, full.shutdown, immediate)
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(error) for error in found] == [warren.aio.ShutDown] * 4
            assert issubclass(warren.aio.ShutDown, warren.ShutDown)
            assert not other.done(), "another object is not concerned"
            with pytest.raises(warren.ShutDown, match="put into it"):
                await tasks.put(b"3")
            await others.put(b"3")
            assert await other == b"3"
            for get in (tasks.get, tasks.get_nowait):
                with pytest.raises(warren.ShutDown, match="other processes" if immediate else "empty"):
                    await get()

    run(main())
    assert node.work_queue(f"{name}-full").qsize() == 1


def test_after_a_shutdown_what_is_there_can_be_got(node: warren.Node, directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            tasks = await mine.work_queue(name)
            for number in range(30):
                await tasks.put(b"%d" % number)
            assert [await tasks.get() for _number in range(5)] == [b"%d" % number for number in range(5)]
            tasks.shutdown()
            assert [await tasks.get(), await tasks.get_nowait()] == [b"5", b"6"]
            for _number in range(7):
                tasks.task_done()
            tasks.shutdown(immediate=True)
            with pytest.raises(warren.ShutDown, match="other processes"):
                await tasks.get()
            theirs = await asyncio.to_thread(node.work_queue, name)
            found = [await asyncio.to_thread(theirs.get, True, 60) for _number in range(23)]
            assert found == [b"%d" % number for number in range(7, 30)]

    run(main())


def test_a_cancelled_get_of_a_work_queue_loses_nothing(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            tasks = await mine.work_queue(name, durable=False)
            found: list[int] = []
            putting = asyncio.create_task(asyncio.wait([asyncio.create_task(tasks.put(b"%d" % n)) for n in range(200)]))
            while len(found) < 200:
                try:
                    async with asyncio.timeout(0.001):
                        item = await tasks.get()
                except TimeoutError:
                    continue
                found.append(int(item))
                tasks.task_done()
            await putting
            assert sorted(found) == list(range(200))
            await tasks.join(60)

    run(main())


# ---- the store -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transient", [False, True])
def test_the_store_awaited(node: warren.Node, directory: Path, transient: bool) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            store = mine.store(transient)
            assert store.transient is transient
            id = await store.new_id()
            await store.write(id, b"body")
            assert await store.read(id) == b"body"
            assert await store.contains(id)
            ids = await store.new_ids(3000)
            await store.write_many(ids, [b"%d" % number for number in range(3000)])
            assert await store.read_many(b"".join(ids)) == [b"%d" % number for number in range(3000)]
            confirm = await store.write(await store.new_id(), b"x" * 100_000, wait=False)
            await confirm
            assert confirm.done()
            confirm = await store.write_many(memoryview(b"".join(await store.new_ids(2))), [b"", b"1"], wait=False)
            await confirm.wait(60)
            assert node.store(transient).read_many([id, ids[7]]) == [b"body", b"7"]
            await store.remove([id])
            assert await store.read(id) is None
            assert not await store.contains(id)
            await store.remove(b"".join(ids))
            assert await store.read_many(ids) == [None] * 3000
            await store.barrier()
            await store.terminate()
            assert await store.delete_and_terminate() == 0

    run(main())


def test_many_tasks_write_and_read_at_once(directory: Path) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            store = mine.store()

            async def use(number: int) -> None:
                id = await store.new_id()
                await store.write(id, b"%d" % number * 500)
                assert await store.read(id) == b"%d" % number * 500
                await store.remove([id])
                assert await store.read(id) is None

            await asyncio.gather(*(use(number) for number in range(300)))

    run(main())


def test_what_is_wrong_for_the_store_is_refused_whole(directory: Path) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            store = mine.store()
            ids = await store.new_ids(600)
            for some, bodies in (
                (ids[:-1], [b"x"] * 600),
                ([*ids[:-1], b"short"], [b"x"] * 600),
                (b"".join(ids) + b"x", [b"x"] * 600),
                (ids, [b"x"] * 599 + ["text"]),
                (ids, [b"x"] * 599 + [bytes(500_001)]),
            ):
                with pytest.raises(warren.UsageError):
                    await store.write_many(some, bodies)  # type: ignore[arg-type]
            for wrong in (b"short", "x" * 16):
                with pytest.raises(warren.UsageError):
                    await store.write(wrong, b"")  # type: ignore[arg-type]
                with pytest.raises(warren.UsageError):
                    await store.read(wrong)  # type: ignore[arg-type]
            with pytest.raises(warren.UsageError, match="durability"):
                await store.write(ids[0], b"", "often")
            assert await store.read_many(ids) == [None] * 600

    run(main())


def test_a_store_that_stands_still_stops_no_other_task(tmp_path: Path) -> None:
    """Nothing of it waits in the event loop; a killed one is waited for."""
    with RealNode(tmp_path / "data") as running:

        async def main() -> None:
            async with warren.aio.attach(running.directory) as mine:
                store, queue = mine.store(), await mine.queue("other")
                first, second = await store.new_ids(2)
                await store.write(first, b"first")
                with frozen(running, "store"):
                    writing = asyncio.create_task(store.write(second, b"second"))
                    with pytest.raises(warren.TimedOut):
                        await store.write(await store.new_id(), b"", timeout=0.05)
                    with pytest.raises(warren.TimedOut):
                        await store.contains(first, timeout=0.05)
                    await queue.put(b"meanwhile")
                    assert await store.read(first) == b"first"
                    assert not writing.done()
                await writing
                await asyncio.to_thread(running.kill, "store")
                third = await store.new_id()
                await store.write(third, b"third")
                assert await store.read_many([first, second, third]) == [b"first", b"second", b"third"]

        run(main())


def test_a_store_is_full_for_a_while(tmp_path: Path) -> None:
    """More than ring and arena take: tasks wait for room, and each body is stored once."""
    with RealNode(tmp_path / "data", ring_records=64) as running:

        async def main() -> None:
            async with warren.aio.attach(running.directory) as mine:
                store = mine.store()
                ids = await store.new_ids(500)
                with frozen(running, "store"):
                    writes = [asyncio.create_task(store.write(id, id * 1000)) for id in ids]
                    many = asyncio.create_task(store.write_many(await store.new_ids(300), [b"x" * 20_000] * 300))
                    await asyncio.wait(writes, timeout=patience())
                    assert not any(write.done() for write in writes)
                    with pytest.raises(warren.TimedOut):
                        await store.remove([b"0" * 16] * 5000, timeout=patience())
                await asyncio.gather(*writes, many)
                assert await store.read_many(ids) == [id * 1000 for id in ids]

        run(main())


# ---- publishing many -------------------------------------------------------------------------------------------------


def test_publish_many(node: warren.Node, directory: Path, name: str) -> None:
    node.declare_exchange(name, "topic")
    one, all_of_them = node.queue(f"{name}-1"), node.queue(f"{name}-all")
    one.bind(name, "k.1")
    all_of_them.bind(name, "#")

    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            assert await mine.publish_many([b"a", b"b"], name, "k.1", headers={"n": 1}) is None
            keys = [f"k.{number % 3}" for number in range(900)]
            confirm = await mine.publish_many(
                (b"%d" % number for number in range(900)),
                name,
                routing_keys=keys,
                headers=[{"n": number} for number in range(900)],
                priority=[number % 2 for number in range(900)],
                message_id=[str(number) for number in range(900)],
                wait=False,
            )
            await confirm
            await mine.publish_many([], name, "nobody")
            await mine.publish_many([b"dropped"], "amq.direct", "nobody")
            with pytest.raises(warren.Unroutable):
                await mine.publish_many([b"x"], "amq.direct", "nobody", mandatory=True)
            with pytest.raises(warren.UsageError, match="routing_keys: 1 for 2 bodies"):
                await mine.publish_many([b"x", b"y"], name, routing_keys=["k"])
            for wrong in ([b"x"] * 300 + [bytes(500_001)], [b"x"] * 300 + ["text"]):
                with pytest.raises(warren.UsageError):
                    await mine.publish_many(wrong, name, "k.1")  # type: ignore[arg-type]
            await mine.publish_many([b"direct"] * 3, routing_key=f"{name}-1", mandatory=True)

    run(main())
    found = drain(all_of_them, 902)
    assert [message.body for message in found] == [b"a", b"b", *(b"%d" % number for number in range(900))]
    assert [message.headers for message in found[2:]] == [{"n": number} for number in range(900)]
    assert [message.routing_key for message in found[2:5]] == ["k.0", "k.1", "k.2"]
    assert found[10].properties["message_id"] == "8"
    holds(one, 2 + 300 + 3)


def test_publish_many_says_which_were_refused(node: warren.Node, directory: Path, name: str) -> None:
    """Numbers count through all parts."""
    node.declare_exchange(name, "fanout")
    full, taker = node.queue(f"{name}-full", max_length=500, overflow="reject-publish"), node.queue(f"{name}-taker")
    for queue in (full, taker):
        queue.bind(name)

    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            with pytest.raises(warren.QueueFull) as told:
                await mine.publish_many([b"%d" % number for number in range(800)], name)
            assert told.value.refused == tuple(range(500, 800))

    run(main())
    holds(full, 500)
    holds(taker, 800)


def test_large_batches_go_to_many_queues_in_parts(node: warren.Node, directory: Path, name: str) -> None:
    node.declare_exchange(name, "headers")
    queues = [node.queue(f"{name}-{number}", durable=False) for number in range(3)]
    for number, queue in enumerate(queues):
        queue.bind(name, arguments={"to": number})

    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            bodies = [b"%d " % number + b"x" * 20_000 for number in range(400)]
            headers = [{"to": number % 3} for number in range(400)]
            await asyncio.gather(mine.publish_many(bodies, name, headers=headers), mine.ping())

    run(main())
    for number, queue in enumerate(queues):
        numbers = range(number, 400, 3)
        assert [int(message.body.split()[0]) for message in drain(queue, len(numbers))] == list(numbers)


# ---- looking, returning, claiming ------------------------------------------------------------------------------------


def test_browse_takes_nothing(node: warren.Node, directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            queue = await mine.queue(name)
            await queue.put_many([b"%d" % number for number in range(1500)], headers={"n": 1})
            found = await queue.browse()
            assert [message.body for message in found] == [b"%d" % number for number in range(100)]
            assert found[0].queue is queue
            assert isinstance(found[0], warren.aio.Message)
            with pytest.raises(warren.UsageError, match="only looked at"):
                await found[0].ack()
            with pytest.raises(warren.UsageError, match="only looked at"):
                async with found[0]:
                    pass
            batches = [batch async for batch in queue.browse_arrow(max_bytes=2000)]
            assert len(batches) > 1
            table = pa.Table.from_batches(batches)
            assert table["value"].to_pylist() == [b"%d" % number for number in range(1500)]
            first = await queue.get()
            assert first.body == b"0"
            await first.ack()

    run(main())
    holds(node.queue(name), 1499)


def test_release_returns_what_nobody_was_given(node: warren.Node, directory: Path, name: str) -> None:
    blocking = node.queue(name)
    blocking.put_many([b"%d" % number for number in range(300)])

    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            queue = await mine.queue(name)
            await queue.release()  # nothing is there: nothing happens
            found = [await queue.get() for _number in range(40)]
            await queue.release()
            returned = await asyncio.to_thread(drain, blocking, 260)
            assert [message.body for message in returned] == [b"%d" % number for number in range(40, 300)]
            assert not any(message.redelivered for message in returned)
            await queue.ack(found)
            waiting = asyncio.create_task(queue.get())
            await asyncio.sleep(0)
            await queue.release()
            await asyncio.to_thread(blocking.put, b"last")
            async with await waiting as last:
                assert (last.body, last.redelivered) == (b"last", False)
            async with queue:
                await queue.put(b"more")
                await (await queue.get()).ack()

    run(main())


def test_release_says_when_the_worker_does_not_answer(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.workers.faces.aio.line.RELEASE_S", 0.2)
    with RealNode(tmp_path / "data", workers=1) as running:

        async def main() -> None:
            async with warren.aio.attach(running.directory) as mine:
                queue = await mine.queue(name)
                await queue.put_many([b"%d" % number for number in range(50)])
                first = [await queue.get() for _number in range(3)]
                with frozen(running), pytest.raises(warren.TimedOut, match=f"queue '{name}': the return of"):
                    await queue.release()
                await queue.release()
                assert [message.body for message in first] == [b"0", b"1", b"2"]
                again = await queue.get_many(50, timeout=30)
                assert again[0].body == b"3"

        run(main())


def test_a_subscription_awaited(node: warren.Node, directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            queue = await mine.queue(name)
            await queue.put_many([b"%d" % number for number in range(10)])
            reader = await queue.subscription("report")
            assert (reader.name, reader.queue) == ("report", queue)
            await asyncio.to_thread(holds, node.queue(name), 10)
            assert await reader.ready() == 10
            start, end = await reader.claim(4)
            assert [message.body for message in await reader.read(start, end)] == [b"0", b"1", b"2", b"3"]
            assert (await reader.read_arrow(start, end))["value"].to_pylist() == [b"0", b"1", b"2", b"3"]
            assert await reader.ack(start + 2) == 2
            assert await reader.range() == (start + 2, end)
            assert await reader.release() == start + 2
            same = node.queue(name).subscription("report")
            assert same.incarnation == reader.incarnation
            assert same.range() == (start + 2, end)
            with pytest.raises(warren.UsageError, match="max_messages"):
                await reader.claim(0)
            assert await reader.delete() == 2

    run(main())
    holds(node.queue(name), 8)


def test_what_belongs_to_an_event_loop_cannot_be_pickled(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            queue = await mine.queue(name)
            for held in (mine.store(), await mine.work_queue(name), await queue.subscription("s")):
                with pytest.raises(TypeError, match="belongs to its event loop"):
                    pickle.dumps(held)
                assert repr(held).startswith("<aio.")

    run(main())


def test_a_child_has_none_of_its_parents_items(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            tasks = await mine.work_queue(name)
            await tasks.put(b"parent's")
            assert await tasks.get() == b"parent's"
            child = os.fork()
            if not child:
                code = 1
                try:
                    try:
                        tasks.task_done()
                    except ValueError:
                        code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            tasks.task_done()
            await tasks.join(60)

    run(main())
