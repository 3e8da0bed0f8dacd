"""Warren as a broker of Taskiq: tasks, results, delays, priorities, progress, and what comes back when nobody acks.

Method: Taskiq's own receiver in this process.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from taskiq.api import run_receiver_task
from taskiq.depends.progress_tracker import TaskProgress, TaskState
from taskiq.exceptions import SendTaskError, TaskiqResultTimeoutError

import warren
from warren.engine.errors import ClosedError, NodeNotRunning, UsageError
from warren.taskiq import WarrenBroker, WarrenResultBackend

from support.real_node import RealNode
from support.waiting import patience

WAIT_S = 60.0


@contextlib.asynccontextmanager
async def opened(directory: Path, name: str, **options: Any) -> AsyncIterator[WarrenBroker]:
    url = f"warren:///{directory}"
    broker = WarrenBroker(url, queue_name=name, **options).with_result_backend(WarrenResultBackend(url))
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@contextlib.asynccontextmanager
async def working(broker: WarrenBroker) -> AsyncIterator[None]:
    task = asyncio.create_task(run_receiver_task(broker))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def come(ran: list[Any], count: int) -> None:
    """Wait until `count` tasks have run."""
    async with asyncio.timeout(WAIT_S * patience()):
        while len(ran) < count:
            await asyncio.sleep(0.01)


def test_tasks_run_and_results_come_to_every_process(directory: Path, name: str) -> None:
    async def main() -> None:
        async with opened(directory, name) as broker, opened(directory, name) as other:

            @broker.task(task_name="add")
            async def add(x: int, y: int) -> int:
                return x + y

            @broker.task(task_name="fail")
            def fail() -> None:
                raise ValueError("on purpose")

            sent = await add.kiq(1, 2)
            with pytest.raises(TaskiqResultTimeoutError):
                await sent.wait_result(timeout=0.2)
            async with working(broker):
                result = await sent.wait_result(timeout=WAIT_S, check_interval=0.02)
                assert (result.return_value, result.is_err) == (3, False)
                failed = await (await fail.kiq()).wait_result(timeout=WAIT_S, check_interval=0.02)
                assert failed.is_err
                assert isinstance(failed.error, ValueError)
            assert (await other.result_backend.get_result(sent.task_id)).return_value == 3
            await other.result_backend.set_progress(
                sent.task_id, TaskProgress(state=TaskState.STARTED, meta={"done": 1})
            )
            progress = await broker.result_backend.get_progress(sent.task_id)
            assert progress is not None
            assert progress.meta == {"done": 1}
            assert await broker.result_backend.get_progress("none") is None
            spaced = add.kicker().with_task_id("my task%20 ü")
            sent = await spaced.kiq(2, 2)
            async with working(broker):
                assert (await sent.wait_result(timeout=WAIT_S, check_interval=0.02)).return_value == 4
            await broker.result_backend.set_progress(sent.task_id, progress)
            assert await other.result_backend.get_progress(sent.task_id) == progress

    asyncio.run(main())


def test_a_delay_and_a_priority_are_labels(directory: Path, name: str, node: warren.Node) -> None:
    async def main() -> None:
        async with opened(directory, name, max_priority=9, prefetch=1) as broker:
            ran: list[tuple[str, float]] = []

            @broker.task(task_name="note")
            async def note(what: str) -> None:
                ran.append((what, time.time()))

            await note.kicker().with_labels(delay=3600).kiq("far")
            for what, priority in (("low", 0), ("high", 9)):
                await note.kicker().with_labels(priority=priority).kiq(what)
            counts = node.queue(name, create=False).stats()
            assert (counts["delayed"], counts["ready"]) == (1, 2)
            async with working(broker):
                await come(ran, 2)
                due = time.time() + 0.5
                await note.kicker().with_labels(delay=0.5).kiq("later")
                await come(ran, 3)
            assert [what for what, _when in ran] == ["high", "low", "later"]
            assert ran[2][1] >= due - 0.005

    asyncio.run(main())


def test_results_that_are_larger_than_a_record_and_a_node_that_was_stopped(tmp_path: Path) -> None:
    async def main(running: RealNode) -> None:
        async with opened(running.directory, "q") as broker:

            @broker.task(task_name="large")
            async def large(size: int) -> str:
                return "x" * size

            async with working(broker):
                for size in (5 << 20, 1):
                    sent = await large.kiq(size)
                    result = await sent.wait_result(timeout=WAIT_S, check_interval=0.02)
                    assert result.return_value == "x" * size
                    if size > 1:
                        await asyncio.to_thread(running.stop)
                        with pytest.raises(SendTaskError):
                            await large.kiq(1)
                        await asyncio.to_thread(running.start)

    with RealNode(tmp_path / "data") as running:
        asyncio.run(main(running))


def test_a_result_is_stored_and_waited_for_over_a_stop_of_the_node(tmp_path: Path) -> None:
    async def main(running: RealNode) -> None:
        begun, go = asyncio.Event(), asyncio.Event()
        async with opened(running.directory, "q") as broker:

            @broker.task(task_name="slow")
            async def slow() -> int:
                begun.set()
                await go.wait()
                return 7

            async with working(broker):
                sent = await slow.kiq()
                await asyncio.wait_for(begun.wait(), WAIT_S)
                waits = asyncio.create_task(sent.wait_result(timeout=WAIT_S, check_interval=0.02))
                await asyncio.to_thread(running.stop)
                go.set()
                done, _waiting = await asyncio.wait([waits], timeout=0.5)
                assert not done
                await asyncio.to_thread(running.start)
                assert (await waits).return_value == 7

    with RealNode(tmp_path / "data") as running:
        asyncio.run(main(running))


def test_what_nobody_acked_comes_again(directory: Path, name: str) -> None:
    async def main() -> None:
        async with opened(directory, name) as sender:

            @sender.task(task_name="held")
            async def held() -> None: ...

            await held.kiq()
            async with opened(directory, name) as first:
                messages = first.listen()
                data = (await anext(messages)).data
                await messages.aclose()
            async with opened(directory, name) as second, asyncio.timeout(WAIT_S):
                messages = second.listen()
                again = await anext(messages)
                assert again.data == data
                acked = again.ack()
                assert acked is not None
                await acked
                await messages.aclose()

    asyncio.run(main())


def test_what_is_wrong_is_said(directory: Path, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="max_priority must be 1 to 255"):
            WarrenBroker("warren:///data", max_priority=256)
        broker = WarrenBroker(f"warren:///{directory}")

        @broker.task(task_name="t")
        async def task() -> None: ...

        with pytest.raises(SendTaskError) as raised:
            await task.kiq()
        assert isinstance(raised.value.__cause__, ClosedError)
        with pytest.raises(NodeNotRunning):
            await WarrenBroker(f"warren:///{tmp_path / 'none'}").startup()

    asyncio.run(main())
