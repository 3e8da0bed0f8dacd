"""Goal: a Confirm is as good as a concurrent.futures.Future.

Method: a real node, whose worker stands still while confirms are to stay open.
"""

import asyncio
import concurrent.futures
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

import warren
from warren.workers import waiter

from support.real_node import RealNode
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


@contextmanager
def frozen(running: RealNode) -> Iterator[None]:
    """The worker stands still: nothing is confirmed."""
    pid = running.pids()["worker-0"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


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


def test_what_a_callback_raises_is_logged_and_harms_nobody(
    running: RealNode, queue: warren.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []

    def bad(_confirm: warren.Confirm) -> None:
        raise ValueError("mine")

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
    done, pending = concurrent.futures.wait(futures, timeout=10)
    assert (len(done), len(pending)) == (20, 0)
    assert [one.result() for one in futures] == [None] * 20


def test_a_future_is_good_for_asyncio(queue: warren.Queue) -> None:
    async def main() -> None:
        await asyncio.wait_for(asyncio.wrap_future(put(queue).future()), 10)

    asyncio.run(main())


def test_the_end_of_the_attachment_is_an_answer(running: RealNode) -> None:
    with warren.attach(running.directory) as own:
        queue = own.queue("end")
        answers: list[BaseException | None] = []
        with frozen(running):
            confirm = put(queue)
            future = confirm.future()
            confirm.add_done_callback(lambda confirm: answers.append(confirm.exception(0)))
            own._client._lose(own._client._attachment, None)
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
