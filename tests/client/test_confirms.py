"""Goal: a Confirm is as good as a concurrent.futures.Future.

Method: a real node, whose worker stands still while confirms are to stay open.
"""

import asyncio
import concurrent.futures
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

import warren
import warren.aio
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.client import waiter

from support.real_node import RealNode, frozen
from support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("node") / "data", workers=1) as started:
        yield started


@pytest.fixture
def node(running: RealNode) -> Iterator[warren.Node]:
    with warren.attach(running.directory) as attached:
        yield attached


@pytest.fixture
def queue(node: warren.Node) -> warren.Queue:
    return node.queue(f"q-{uuid4().hex[:8]}")


def put(queue: warren.Queue, body: bytes = b"x") -> warren.Confirm:
    confirm = queue.put(body, wait=False)
    assert confirm is not None
    return confirm


def test_callbacks_are_called_in_order_by_one_thread(running: RealNode, queue: warren.Queue) -> None:
    called: list[int] = []
    threads = set()

    def note(number: int) -> None:
        called.append(number)
        threads.add(threading.current_thread().name)

    with frozen(running):
        for number in range(100):
            put(queue).add_done_callback(lambda confirm, number=number: (note(number), confirm.result(0)))  # type: ignore[misc]
        assert called == []
    wait_until(lambda: len(called) == 100)
    assert called == list(range(100))
    assert threads == {"warren-waiter"}


def test_a_callback_of_what_is_done_is_called_at_once(queue: warren.Queue) -> None:
    confirm = put(queue)
    confirm.result(5)
    called: list[object] = []
    confirm.add_done_callback(called.append)
    assert called == [confirm]
    assert (confirm.done(), confirm.exception(), confirm.cancel(), confirm.cancelled()) == (True, None, False, False)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError])
def test_what_a_callback_raises_is_logged_and_harms_nobody(
    running: RealNode, queue: warren.Queue, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    called: list[object] = []

    def bad(_confirm: warren.Confirm) -> None:
        raise kind("mine")

    with frozen(running):
        put(queue).add_done_callback(bad)
        put(queue).add_done_callback(called.append)
    wait_until(lambda: called)
    assert "a callback of a Confirm failed" in caplog.text
    with pytest.raises(TypeError):
        put(queue).add_done_callback(5)  # type: ignore[arg-type]


def test_futures_can_be_waited_for_together(running: RealNode, queue: warren.Queue) -> None:
    with frozen(running):
        futures = [put(queue).future() for _number in range(20)]
        done, pending = concurrent.futures.wait(futures, timeout=0.05)
        assert (len(done), len(pending)) == (0, 20)
        assert not futures[0].cancel()
    done, pending = concurrent.futures.wait(futures, timeout=60)
    assert (len(done), len(pending)) == (20, 0)
    assert [one.result() for one in futures] == [None] * 20


def test_a_future_is_good_for_asyncio(running: RealNode, queue: warren.Queue) -> None:
    async def main() -> None:
        with frozen(running):
            waiting = asyncio.wrap_future(put(queue).future())
            done, _pending = await asyncio.wait([waiting], timeout=0.05)
            assert not done, "nobody has confirmed it"
        assert await asyncio.wait_for(waiting, 60) is None

    asyncio.run(main())


def test_the_end_of_the_attachment_is_an_answer(running: RealNode) -> None:
    with warren.attach(running.directory) as own:
        queue = own.queue("end")
        answers: list[BaseException | None] = []
        with frozen(running):
            confirm = put(queue)
            future = confirm.future()
            confirm.add_done_callback(lambda confirm: answers.append(confirm.exception(0)))
            own._client.attachment().lose()
            wait_until(lambda: answers)
        assert isinstance(answers[0], warren.PeerLost)
        assert isinstance(future.exception(5), warren.PeerLost)
        assert confirm.done()


def test_many_threads_add_and_all_are_called(queue: warren.Queue) -> None:
    called: list[object] = []

    def work() -> None:
        for _number in range(200):
            put(queue).add_done_callback(called.append)

    threads = [threading.Thread(target=work) for _number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: len(called) == 800, 30)


def test_a_child_has_a_thread_of_its_own(running: RealNode, queue: warren.Queue) -> None:
    called: list[object] = []
    with frozen(running):
        put(queue).add_done_callback(called.append)
        parent = put(queue)
        child = os.fork()
        if not child:
            code = 1
            try:
                if isinstance(parent.exception(0), warren.PeerLost):
                    code = 2
                    os.kill(running.pids()["worker-0"], signal.SIGCONT)
                    mine: list[object] = []
                    put(queue, b"child").add_done_callback(mine.append)
                    wait_until(lambda: mine, 20)
                    code = 0
            finally:
                os._exit(code)
        _pid, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    wait_until(lambda: called, 20)


def test_without_futex_waitv_it_works_too(
    running: RealNode, queue: warren.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter._waiter, "waitv", False)
    called: list[object] = []
    with frozen(running):
        put(queue).add_done_callback(called.append)
    wait_until(lambda: called)


def test_the_thread_goes_when_nobody_is_left(running: RealNode) -> None:
    with warren.attach(running.directory) as own:
        called: list[object] = []
        put(own.queue("gone")).add_done_callback(called.append)
        wait_until(lambda: called)
    wait_until(lambda: "warren-waiter" not in {thread.name for thread in threading.enumerate()}, 20)


# ---- waiting always ends ---------------------------------------------------------------------------------------------


def test_a_callback_for_what_is_done_leaves_the_next_ones_a_thread(running: RealNode) -> None:
    """The first callback of a client is for a confirm that is done already: those that follow are waited for."""
    with warren.attach(running.directory) as own:
        queue = own.queue("done-first")
        first = put(queue)
        first.result(10)
        called: list[object] = []
        first.add_done_callback(called.append)
        with frozen(running):
            future = put(queue).future()
            put(queue).add_done_callback(called.append)
            assert not future.done()
        assert future.result(10) is None
        wait_until(lambda: len(called) == 2)


def test_a_confirm_of_two_workers_with_the_same_numbers_is_waited_for_without_turning(tmp_path: Path) -> None:
    """One worker has confirmed, the other has not, and both know the message by the same number."""
    with RealNode(tmp_path / "data", workers=2) as running, warren.attach(running.directory) as node:
        node.declare_exchange("both", "fanout")
        workers = {}
        for name in ("a", "b", "c", "d"):
            workers.setdefault(node.queue(name)._server, name)
            node.bind(name, "both")
        assert len(workers) == 2
        called: list[object] = []
        with warren.attach(running.directory) as fresh, ExitStack() as all_frozen:
            stopped = {server: ExitStack() for server in workers}
            for server, stack in stopped.items():
                all_frozen.push(stack)
                stack.enter_context(frozen(running, f"worker-{server - SERVER_WORKER_FIRST}"))
            confirm = fresh.publish(b"x", "both", wait=False)
            assert confirm is not None
            first = confirm.waits_for()
            assert first is not None
            (second,) = workers.keys() - {first[0]}
            confirm.add_done_callback(called.append)
            stopped[first[0]].close()
            wait_until(lambda: confirm.waits_for() == (second, *first[1:]), what="the same number at the other worker")
            others: list[object] = []
            queue = node.queue(workers[first[0]])
            with frozen(running, f"worker-{first[0] - SERVER_WORKER_FIRST}"):
                put(queue).add_done_callback(others.append)
            wait_until(lambda: others, 10, what="a callback of another client")
            assert not called
            all_frozen.close()
            wait_until(lambda: called, 20)


def test_a_callback_is_never_called_by_who_adds_another(running: RealNode) -> None:
    """He may hold locks that it wants."""
    with warren.attach(running.directory) as own:
        queue = own.queue("others")
        stuck, go = threading.Event(), threading.Event()
        callers: list[str] = []
        with frozen(running):
            put(queue).add_done_callback(lambda _confirm: (stuck.set(), go.wait(60)))  # type: ignore[misc]
        try:
            assert stuck.wait(60)
            with frozen(running):
                second = put(queue)
                second.add_done_callback(lambda _confirm: callers.append(threading.current_thread().name))
            second.result(10)
            with frozen(running):
                put(queue).add_done_callback(lambda _confirm: callers.append(threading.current_thread().name))
            assert callers == []
        finally:
            go.set()
        wait_until(lambda: len(callers) == 2)
        assert set(callers) == {"warren-waiter"}


def test_without_a_thread_nothing_is_registered_and_the_next_one_gets_it(
    running: RealNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "_waiter", waiter._Waiter())
    monkeypatch.setattr(waiter, "_callbacks", {})
    start = threading.Thread.start

    def fails(thread: threading.Thread) -> None:
        if thread.name == "warren-waiter":
            raise RuntimeError("can't start new thread")
        start(thread)

    with warren.attach(running.directory) as own:
        queue = own.queue("no-thread")
        called: list[object] = []
        with frozen(running):
            confirm = put(queue)
            with monkeypatch.context() as without:
                without.setattr(threading.Thread, "start", fails)
                with pytest.raises(RuntimeError, match="start new thread"):
                    confirm.add_done_callback(called.append)
            confirm.add_done_callback(called.append)
        wait_until(lambda: called)
        assert called == [confirm]
    waiter._waiter.end()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_is_replaced(running: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = waiter._Waiter()
    monkeypatch.setattr(waiter, "_waiter", fresh)
    monkeypatch.setattr(waiter, "_callbacks", {})
    with warren.attach(running.directory) as own:
        queue = own.queue("died")
        called: list[object] = []

        def dies(_core: object) -> None:
            raise SystemExit

        with monkeypatch.context() as deadly:
            deadly.setattr(fresh, "tell", dies)
            with frozen(running):
                put(queue).add_done_callback(called.append)
            wait_until(lambda: fresh.thread is not None and not fresh.thread.is_alive())
        put(queue).add_done_callback(called.append)
        wait_until(lambda: len(called) == 2)
    fresh.end()


def test_when_all_are_dead_futures_end_too(tmp_path: Path) -> None:
    """As wait() does, in every face; what was submitted is executed by the next node all the same."""
    with RealNode(tmp_path / "data", workers=1) as running, warren.attach(running.directory) as node:
        queue = node.queue("q")
        called: list[object] = []

        async def awaited() -> None:
            async with warren.aio.attach(running.directory) as other:
                mine = await other.queue("q")
                with frozen(running):
                    waiting = asyncio.ensure_future(mine.put(b"awaited"))
                    await asyncio.sleep(0)
                    confirm = await mine.put(b"confirm", wait=False)
                    assert confirm is not None
                    future = put(queue).future()
                    put(queue).add_done_callback(called.append)
                    running.kill_all()
                with pytest.raises(warren.NodeNotRunning):
                    await asyncio.wait_for(waiting, 20)
                with pytest.raises(warren.NodeNotRunning):
                    await asyncio.wait_for(confirm.wait(), 20)
                with pytest.raises(warren.NodeNotRunning):
                    await asyncio.wait_for(asyncio.wrap_future(future), 20)
                wait_until(lambda: called)
                running.start()

        asyncio.run(awaited())
        wait_until(lambda: queue.depth() == 4, 20)


def test_a_child_consumes_though_a_thread_of_its_parent_did(running: RealNode, queue: warren.Queue) -> None:
    """The lock that a thread of the parent held is not held in the child, and its consumer is not counted there."""
    queue.put_many([b"a", b"b"])
    taken = queue.consume(prefetch=1)
    held = next(taken)
    with queue._lock:
        child = os.fork()
        if not child:
            code = 1
            signal.alarm(30)  # a child that hangs is a failure, not the end of the run
            try:
                mine = queue.consume(prefetch=1, timeout=20)
                found = next(mine).body
                mine.close()  # type: ignore[attr-defined]
                code = 0 if (found, queue._consuming) == (b"b", 0) else 2
            finally:
                os._exit(code)
    _pid, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    held.ack()


def test_a_confirm_shows_whether_it_is_done(running: RealNode, queue: warren.Queue) -> None:
    async def shown() -> None:
        async with warren.aio.attach(running.directory) as node:
            theirs = await node.queue(queue.name)
            with frozen(running):
                confirm = await theirs.put(b"x", wait=False)
                assert repr(confirm) == "<Confirm, pending>"
            await confirm
            assert repr(confirm) == "<Confirm, done>"

    with frozen(running):
        confirm = put(queue)
        assert repr(confirm) == "<Confirm, pending>"
    confirm.wait(60)
    assert repr(confirm) == "<Confirm, done>"
    asyncio.run(shown())
