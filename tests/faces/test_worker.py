"""Goal: messages are handled with retries by `with message` and node.worker, in threads, processes and asyncio, and a
stop loses and doubles nothing.

Method: a real node; programs as a user writes them. Counts decide, never times: a delay is far longer than a test, or
so short that the next try comes while the test waits.
"""

import ast
import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio

from support.waiting import wait_until

pytestmark = pytest.mark.integration


def run_in_thread(worker: Any) -> threading.Thread:
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    return thread


def ended(worker: Any, thread: threading.Thread) -> None:
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()


def is_empty(queue: warren.Queue) -> bool:
    stats = queue.stats()
    return not stats["ready"] and not stats["unacked"] and not stats["delayed"]


# -- with message -----------------------------------------------------------------------------------------------------


def test_with_message_acks_and_after_an_exception_returns(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"good", b"bad"])
    with queue.get(timeout=10) as message:
        assert message.body == b"good"
    with pytest.raises(ValueError, match="of mine"), queue.get(timeout=10) as message:
        raise ValueError("of mine")
    with queue.get(timeout=10) as message:
        assert (message.body, message.redelivered) == (b"bad", True)
        message.reject()  # what is done inside stays
    wait_until(lambda: is_empty(queue), 10)


def test_async_with_message(node: warren.Node, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(node.directory) as mine:
            queue = await mine.queue(name)
            await queue.put_many([b"good", b"bad"])
            async with await queue.get(timeout=10) as message:
                assert message.body == b"good"
            with pytest.raises(ValueError, match="of mine"):
                async with await queue.get(timeout=10):
                    raise ValueError("of mine")
            async with await queue.get(timeout=10) as message:
                assert (message.body, message.redelivered) == (b"bad", True)
                await message.reject()
            with pytest.raises(warren.UsageError, match="async with"), message:
                pass

    asyncio.run(main())
    wait_until(lambda: is_empty(node.queue(name)), 10)


def test_reject_of_asyncio_drops_the_message(node: warren.Node, name: str) -> None:
    letters = node.queue(f"{name}-dead")
    node.queue(name, dead_letter_exchange="", dead_letter_routing_key=letters.name).put(b"bad")

    async def main() -> None:
        async with warren.aio.attach(node.directory) as mine:
            await (await (await mine.queue(name, create=False)).get(timeout=10)).reject()

    asyncio.run(main())
    assert letters.get(timeout=30).body == b"bad"


# -- nack(delay=...) --------------------------------------------------------------------------------------------------


def test_a_dead_letter_says_what_the_function_raised(node: warren.Node, name: str) -> None:
    """At the last try; of one that a program rejects by itself nothing is known."""
    letters = node.queue(f"{name}-dead")
    queue = node.queue(name, dead_letter_exchange="", dead_letter_routing_key=letters.name)

    def handle(message: warren.Message) -> None:
        if message.body == b"long":
            raise ValueError("no " + "x" * 5000)
        raise KeyError(f"try {message.delivery_count + 1} of {message.body.decode()}")

    async def main() -> None:
        async with warren.aio.attach(node.directory) as mine:

            async def answer(message: warren.aio.Message) -> None:
                handle(message)  # type: ignore[arg-type]

            worker = await mine.worker(name, answer, retries=0)
            running = asyncio.create_task(worker.run())
            while not worker.counts["rejected"]:
                await asyncio.sleep(0.01)
            worker.stop()
            await running

    queue.put_many([b"short", b"long"], headers={"mine": 1})
    worker = node.worker(name, handle, retries=1, backoff=0.01)
    thread = run_in_thread(worker)
    wait_until(lambda: worker.counts["rejected"] == 2, 60)
    ended(worker, thread)
    queue.put(b"aio")
    asyncio.run(main())
    queue.put(b"by hand")
    queue.get(timeout=30).reject()
    told = {letter.body: dict(letter.headers) for letter in [letters.get(timeout=30) for _n in range(4)]}
    assert told[b"short"]["x-last-death-exception"] == "KeyError: 'try 2 of short'"
    assert told[b"short"]["mine"] == 1
    assert told[b"long"]["x-last-death-exception"].startswith("ValueError: no ")
    assert len(told[b"long"]["x-last-death-exception"]) < 1000
    assert told[b"aio"]["x-last-death-exception"] == "KeyError: 'try 1 of aio'"
    assert "x-last-death-exception" not in told[b"by hand"]


def test_a_message_that_is_nacked_with_a_delay_comes_later_the_same(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put(b"again", headers={"n": 1})
    queue.put(b"next")
    first = queue.get(timeout=10)
    assert queue.get(timeout=10).body == b"next"
    began = time.monotonic()
    first.nack(delay=0.2)
    again = queue.get(timeout=60)
    assert time.monotonic() - began > 0.19
    assert (again.body, again.headers, again.delivery_tag) == (b"again", {"n": 1}, first.delivery_tag)
    assert (again.message_id, again.delivery_count, again.redelivered) == (first.message_id, 1, True)
    again.nack(delay=3600)
    assert queue.get_many(timeout=0.2) == []
    wait_until(lambda: queue.stats()["delayed"] == 1, 10)
    assert (queue.stats()["ready"], queue.stats()["unacked"]) == (0, 1)


def test_a_delay_outlives_a_stop_and_a_kill(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put(b"late")
    queue.get(timeout=10).nack(delay=3600)
    wait_until(lambda: queue.stats()["delayed"] == 1, 10)
    queue.put(b"synced behind it")  # the nack lies before it in the journal
    worker = _worker_of(node, name)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: _worker_of(node, name) not in (None, worker), 60)
    assert queue.get(timeout=60).body == b"synced behind it"
    assert queue.get_many(timeout=0.3) == []
    assert queue.stats()["delayed"] == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"delay": float("nan")}, "delay"),
        ({"delay": 1e300}, "delay"),
        ({"delay": 1, "requeue": False}, "returns to its queue"),
        ({"delay": 1, "multiple": True}, "one message"),
    ],
)
def test_a_delay_that_is_none_is_refused_and_the_message_kept(
    node: warren.Node, name: str, arguments: dict[str, Any], text: str
) -> None:
    queue = node.queue(name)
    queue.put(b"mine")
    message = queue.get(timeout=10)
    with pytest.raises(warren.UsageError, match=text):
        message.nack(**arguments)
    assert not message.settled
    message.nack(delay=0)
    assert queue.get(timeout=10).redelivered


# -- node.worker ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_fails_is_tried_again_and_then_dead_lettered(node: warren.Node, name: str, concurrency: int) -> None:
    letters = node.queue(f"{name}-dead")
    queue = node.queue(name, dead_letter_exchange="", dead_letter_routing_key=letters.name)
    queue.put_many([b"%d" % n for n in range(40)])
    tries: dict[bytes, list[int]] = {}
    lock = threading.Lock()

    def handle(message: warren.Message) -> None:
        with lock:
            tries.setdefault(message.body, []).append(message.delivery_count)
        number = int(message.body)
        if number % 10 == 3 or (number % 10 == 5 and message.delivery_count < 2):
            raise RuntimeError(f"not {number}")

    worker = node.worker(queue, handle, concurrency=concurrency, retries=2, backoff=0.05)
    thread = run_in_thread(worker)
    dead = sorted(letters.get(timeout=60).body for _ in range(4))
    wait_until(lambda: is_empty(queue), 60)
    ended(worker, thread)
    assert dead == [b"13", b"23", b"3", b"33"]
    for body, counts in tries.items():
        assert counts == ([0, 1, 2] if int(body) % 10 in (3, 5) else [0]), body
    assert len(tries) == 40
    assert worker.counts == {"handled": 36, "failed": 16, "rejected": 4, "late": 0}


def test_without_retries_it_is_tried_until_it_succeeds(node: warren.Node, name: str) -> None:
    node.queue(name).put(b"stubborn")
    tries = 0

    def handle(message: warren.Message) -> None:
        nonlocal tries
        tries += 1
        if tries < 6:
            raise RuntimeError("not yet")

    worker = node.worker(name, handle, backoff=0.01, backoff_max=0.02)
    thread = run_in_thread(worker)
    wait_until(lambda: worker.counts["handled"] == 1, 60)
    ended(worker, thread)
    assert (tries, worker.counts["failed"]) == (6, 5)


def test_what_the_function_settles_stays_so(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"ack", b"reject", b"raise"])

    def handle(message: warren.Message) -> None:
        message.reject() if message.body == b"reject" else message.ack()
        if message.body == b"raise":
            raise RuntimeError("after the ack")

    worker = node.worker(name, handle)
    thread = run_in_thread(worker)
    wait_until(lambda: sum(worker.counts.values()) == 3, 60)
    ended(worker, thread)
    assert is_empty(queue)


def test_a_stop_ends_what_was_begun_and_returns_the_rest(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"%d" % n for n in range(20)])
    begun, go = threading.Semaphore(0), threading.Event()
    seen: list[bytes] = []

    def handle(message: warren.Message) -> None:
        seen.append(message.body)
        begun.release()
        assert go.wait(60)

    worker = node.worker(name, handle, concurrency=3)
    thread = run_in_thread(worker)
    for _ in range(3):
        assert begun.acquire(timeout=60)
    worker.stop()
    go.set()
    thread.join(60)
    assert not thread.is_alive()
    rest = [message.body for message in queue.get_many(timeout=10)]
    assert 3 <= len(seen) <= 6  # those begun, and what came while the loop did not know yet
    assert sorted(seen + rest, key=int) == [b"%d" % n for n in range(20)]


def test_what_takes_longer_than_the_grace_is_said(node: warren.Node, name: str) -> None:
    node.queue(name).put_many([b"1", b"2"])
    begun, go = threading.Semaphore(0), threading.Event()

    def handle(message: warren.Message) -> None:
        begun.release()
        assert go.wait(60)

    worker = node.worker(name, handle, concurrency=2)

    def stop_soon() -> None:
        assert begun.acquire(timeout=60)
        assert begun.acquire(timeout=60)
        worker.stop()

    stopping = threading.Thread(target=stop_soon)
    stopping.start()
    with pytest.raises(warren.TimedOut, match=r"still run 0\.1 s after the stop: 2"):
        worker.run(grace=0.1)
    go.set()
    stopping.join(60)
    wait_until(lambda: worker.counts["handled"] == 2, 60)


def test_a_worker_goes_on_when_its_queue_worker_was_killed(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put(b"before")
    worker = node.worker(name, lambda message: None)
    thread = run_in_thread(worker)
    wait_until(lambda: worker.counts["handled"] == 1, 60)
    pid = _worker_of(node, name)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _worker_of(node, name) not in (None, pid), 60)
    queue.put(b"after", timeout=60)
    wait_until(lambda: worker.counts["handled"] == 2, 60)
    ended(worker, thread)


def test_a_closed_node_ends_the_worker(node: warren.Node, name: str) -> None:
    told: list[BaseException] = []
    with warren.attach(node.directory) as mine:
        worker = mine.worker(mine.queue(name), print)

        def run() -> None:
            try:
                worker.run()
            except warren.Error as error:
                told.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: node.queue(name).stats()["consumers"] == 1, 60)
    thread.join(60)
    assert isinstance(told[0], warren.ClosedError)


def test_a_deleted_queue_ends_the_worker(node: warren.Node, name: str) -> None:
    node.queue(name)
    told: list[BaseException] = []

    def run() -> None:
        try:
            node.worker(name, print).run()
        except warren.Error as error:
            told.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: node.queue(name).stats()["consumers"] == 1, 60)
    node.delete_queue(name)
    thread.join(60)
    assert isinstance(told[0], warren.QueueNotFound)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"function": 5}, "callable"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 4, "prefetch": 3}, "prefetch"),
        ({"retries": 3}, "dead_letter_exchange"),
        ({"retries": -1}, "retries"),
        ({"backoff": -1}, "backoff"),
        ({"backoff_max": None}, "backoff_max"),
    ],
)
def test_wrong_words_of_a_worker_are_refused(
    node: warren.Node, name: str, arguments: dict[str, Any], text: str
) -> None:
    node.queue(name)
    with pytest.raises(warren.UsageError, match=text):
        node.worker(name, **({"function": print} | arguments))
    with pytest.raises(warren.QueueNotFound, match="there is no queue"):
        node.worker(f"{name}-not", print)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dead_letter_exchange": ""}, "would send dead letters back to it.*another one"),
        (
            {"dead_letter_exchange": "", "dead_letter_routing_key": "{name}"},
            "would send dead letters back to it.*another one",
        ),
        (
            {"dead_letter_exchange": "", "dead_letter_routing_key": "{name}-not"},
            "would send dead letters to no queue.*declare queue",
        ),
        ({"dead_letter_exchange": "{name}-fan"}, "would send dead letters back to it"),
        (
            {"dead_letter_exchange": "{name}-direct", "dead_letter_routing_key": "mine"},
            "would send dead letters back to it",
        ),
        ({"dead_letter_exchange": "{name}-direct", "dead_letter_routing_key": "of nobody"}, "bind a queue there"),
    ],
)
@pytest.mark.parametrize("how", ["threads", "processes", "asyncio"])
def test_dead_letters_that_come_back_or_are_dropped_are_refused(
    node: warren.Node, name: str, how: str, arguments: dict[str, str], text: str
) -> None:
    node.declare_exchange(f"{name}-fan", "fanout")
    node.declare_exchange(f"{name}-direct", "direct")
    given: dict[str, Any] = {key: value.format(name=name) for key, value in arguments.items()}
    queue = node.queue(name, **given)
    node.bind(queue, f"{name}-fan")
    node.bind(queue, f"{name}-direct", "mine")

    async def in_a_loop() -> None:
        async def handle(message: warren.aio.Message) -> None:
            pass

        async with warren.aio.attach(node.directory) as mine:
            await mine.worker(name, handle, retries=1)

    def make() -> None:
        if how == "asyncio":
            asyncio.run(in_a_loop())
        else:
            node.worker(queue, print, retries=1, processes=how == "processes")

    with pytest.raises(warren.UsageError, match=text):
        make()
    node.worker(queue, print)  # without an end nothing is rejected


@pytest.mark.parametrize("exchange", ["amq.topic", "not declared yet"])
def test_dead_letters_whose_way_nobody_knows_yet_are_not_refused(node: warren.Node, name: str, exchange: str) -> None:
    """They wait for the exchange; and where their own routing keys lead, the messages say."""
    node.worker(node.queue(name, dead_letter_exchange=exchange), print, retries=1)


def test_pauses_longer_than_a_year_are_refused(node: warren.Node, name: str) -> None:
    node.queue(name)
    with pytest.raises(warren.UsageError, match="longer than a year"):
        node.worker(name, print, backoff=float("inf"), backoff_max=1e308)
    node.worker(name, print, backoff=float("inf"))  # backoff_max is the pause then


def test_a_coroutine_function_belongs_to_asyncio(node: warren.Node, name: str) -> None:
    async def handle(message: warren.Message) -> None:
        pass

    node.queue(name)
    with pytest.raises(warren.UsageError, match=r"warren\.aio"):
        node.worker(name, handle)


def test_what_a_function_leaves_to_be_awaited_has_not_been_done(
    node: warren.Node, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No look at the function tells that it returns a coroutine: the message is not acked for that."""

    async def handle(message: warren.Message) -> None:
        raise AssertionError("nobody awaits it")

    node.queue("dead")
    queue = node.queue(name, dead_letter_exchange="", dead_letter_routing_key="dead")
    queue.put(b"1")
    worker = node.worker(name, lambda message: handle(message), retries=1, backoff=0.01)  # noqa: PLW0108
    thread = run_in_thread(worker)
    wait_until(lambda: worker.counts["rejected"] == 1, 60)
    ended(worker, thread)
    assert worker.counts == {"handled": 0, "failed": 1, "rejected": 1, "late": 0}
    assert "which nobody awaits" in caplog.text
    with node.queue("dead").get(timeout=30) as message:
        assert message.body == b"1"


def test_a_generator_function_is_refused(node: warren.Node, name: str) -> None:
    """Nobody runs its body: each message would be acked unhandled."""

    def handle(message: warren.Message) -> Any:
        yield message.body

    async def answer(message: warren.aio.Message) -> Any:
        yield message.body

    class Job:
        def __call__(self, message: warren.Message) -> Any:
            yield message.body

    async def main() -> None:
        async with warren.aio.attach(node.directory) as mine:
            for make in (mine.worker, mine.serve):
                with pytest.raises(warren.UsageError, match="generator function"):
                    await make(name, answer)  # type: ignore[operator]

    node.queue(name)
    for function in (handle, functools.partial(handle), Job()):
        for make in (node.worker, node.serve):
            with pytest.raises(warren.UsageError, match="generator function"):
                make(name, function)  # type: ignore[operator]
    asyncio.run(main())


def test_a_generator_or_an_awaitable_that_a_function_returns_has_not_been_run(
    node: warren.Node, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    letters = node.queue(f"{name}-dead")
    queue = node.queue(name, dead_letter_exchange="", dead_letter_routing_key=letters.name)

    async def part(message: warren.aio.Message) -> None:
        raise AssertionError("nobody awaits it")

    async def main() -> None:
        async with warren.aio.attach(node.directory) as mine:

            async def handle(message: warren.aio.Message) -> Any:
                return part(message)

            worker = await mine.worker(name, handle, retries=0)
            running = asyncio.create_task(worker.run())
            while not worker.counts["rejected"]:
                await asyncio.sleep(0.01)
            worker.stop()
            await running

    queue.put(b"plain")
    worker = node.worker(name, lambda message: (byte for byte in message.body), retries=0)
    thread = run_in_thread(worker)
    wait_until(lambda: worker.counts["rejected"] == 1, 60)
    ended(worker, thread)
    queue.put(b"aio")
    asyncio.run(main())
    assert "returned generator, which nobody runs" in caplog.text
    assert "returned coroutine, which nobody awaits: await it there" in caplog.text
    assert sorted(message.body for message in [letters.get(timeout=30), letters.get(timeout=30)]) == [b"aio", b"plain"]


@pytest.mark.parametrize("interrupt", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_in_a_thread_ends_the_worker_and_returns_the_message_once(
    node: warren.Node, name: str, interrupt: type[BaseException]
) -> None:
    queue = node.queue(name)
    queue.put(b"1")
    seen = []

    def handle(message: warren.Message) -> None:
        seen.append(message.delivery_count)
        raise interrupt

    worker = node.worker(name, handle, concurrency=3)
    with pytest.raises(interrupt):
        worker.run()
    assert seen == [0]
    with queue.get(timeout=30) as message:
        assert message.redelivered


@pytest.mark.parametrize("interrupt", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_in_a_task_ends_the_worker_and_returns_the_message_once(
    node: warren.Node, name: str, interrupt: type[BaseException]
) -> None:
    queue = node.queue(name)
    queue.put(b"1")
    seen = []

    async def main() -> None:
        async with warren.aio.attach(node.directory) as mine:

            async def handle(message: warren.aio.Message) -> None:
                seen.append(message.delivery_count)
                raise interrupt

            worker = await mine.worker(name, handle)
            with pytest.raises(interrupt):
                await worker.run()

    asyncio.run(main())
    assert seen == [0]
    with queue.get(timeout=30) as message:
        assert message.redelivered


def test_a_function_that_awaits_what_was_cancelled_has_failed(node: warren.Node, name: str) -> None:
    """It is told CancelledError, as if it was cancelled itself; but nobody ends the worker."""
    letters = node.queue(f"{name}-dead")
    node.queue(name, dead_letter_exchange="", dead_letter_routing_key=letters.name).put(b"1")

    async def main() -> dict[str, int]:
        async with warren.aio.attach(node.directory) as mine:

            async def handle(message: warren.aio.Message) -> None:
                part = asyncio.create_task(asyncio.sleep(3600))
                part.cancel()
                await part

            worker = await mine.worker(name, handle, retries=2, backoff=0.01)
            running = asyncio.create_task(worker.run())
            while not worker.counts["rejected"]:
                await asyncio.sleep(0.01)
            worker.stop()
            await running
            return worker.counts

    assert asyncio.run(main()) == {"handled": 0, "failed": 2, "rejected": 1, "late": 0}
    assert letters.get(timeout=30).body == b"1"


def test_a_function_that_no_process_can_import_is_refused_at_once(node: warren.Node, name: str) -> None:
    node.queue(name)
    with pytest.raises(warren.UsageError, match="that the process can import"):
        node.worker(name, lambda message: None, processes=True)


def test_asyncio_handles_many_at_once_with_retries(node: warren.Node, name: str) -> None:
    letters = node.queue(f"{name}-dead")
    queue = node.queue(name, dead_letter_exchange="", dead_letter_routing_key=letters.name)
    queue.put_many([b"%d" % n for n in range(60)])
    at_once = most = 0

    async def main() -> dict[str, int]:
        async with warren.aio.attach(node.directory) as mine:

            async def handle(message: warren.aio.Message) -> None:
                nonlocal at_once, most
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(0.02)
                at_once -= 1
                if int(message.body) % 10 == 3:
                    raise RuntimeError("never")

            worker = await mine.worker(name, handle, concurrency=20, retries=1, backoff=0.01)
            running = asyncio.create_task(worker.run())
            while worker.counts["handled"] < 54 or worker.counts["rejected"] < 6:
                await asyncio.sleep(0.01)
            worker.stop()
            await running
            return worker.counts

    assert asyncio.run(main()) == {"handled": 54, "failed": 6, "rejected": 6, "late": 0}
    assert 10 <= most <= 20
    assert len([letters.get(timeout=30) for _ in range(6)]) == 6
    assert is_empty(queue)


@pytest.mark.parametrize("how", ["grace", "cancelled"])
def test_asyncio_returns_what_does_not_end(node: warren.Node, name: str, how: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"1", b"2"])

    async def main() -> None:
        async with warren.aio.attach(node.directory) as mine:
            begun = asyncio.Semaphore(0)

            async def handle(message: warren.aio.Message) -> None:
                begun.release()
                await asyncio.sleep(3600)

            worker = await mine.worker(name, handle)
            running = asyncio.create_task(worker.run(grace=0.1))
            await begun.acquire()
            await begun.acquire()
            if how == "grace":
                worker.stop()
                with pytest.raises(warren.TimedOut, match="after the stop: 2"):
                    await running
            else:
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            messages = await (await mine.queue(name)).get_many(timeout=10)
            assert [(message.body, message.redelivered) for message in messages] == [(b"1", True), (b"2", True)]

    asyncio.run(main())


PROGRAM = """
import json, os, signal, sys, time
import warren

def handle(message):
    if message.body == b"die" and not message.redelivered:
        os.kill(os.getpid(), signal.SIGKILL)
    with open(sys.argv[2] if len(sys.argv) > 2 else os.environ["DONE"], "a") as file:
        file.write(json.dumps([message.body.decode(), os.getpid()]) + "\\n")
    if message.body == b"endless" and not message.redelivered:
        time.sleep(100_000)

def main():
    with warren.attach(sys.argv[1]) as node:
        worker = node.worker("{name}", handle, concurrency={concurrency}, processes={processes}, backoff=0.05)
        print("ready", flush=True)
        worker.run(float(os.environ.get("GRACE", "30")))
    print("ended", worker.counts["handled"], flush=True)

if __name__ == "__main__":
    main()
"""


DYING_PROGRAM = """
import os, signal, sys
import warren

with warren.attach(sys.argv[1]) as node:
    node.worker(sys.argv[2], lambda message: os.kill(os.getpid(), signal.SIGKILL), retries=1, prefetch=20).run()
"""


def test_what_lay_ahead_at_killed_workers_has_all_its_tries(node: warren.Node, name: str, tmp_path: Path) -> None:
    """Three programs die at their first message, while all others lie ahead at them."""
    bodies = [b"%d" % n for n in range(20)]
    letters = node.queue(f"{name}-dead")
    queue = node.queue(name, dead_letter_exchange="", dead_letter_routing_key=letters.name, ack_timeout=600)
    queue.put_many(bodies)
    program = tmp_path / "program.py"
    program.write_text(DYING_PROGRAM)
    for _program in range(3):  # at 0, again at 0, and at 1: 0 has had both of its tries
        done = subprocess.run([sys.executable, program, node.directory, name], timeout=120, check=False)
        assert done.returncode == -signal.SIGKILL
        wait_until(lambda: queue.stats()["unacked"] == 0, 60)
    given: list[tuple[bytes, int]] = []
    worker = node.worker(queue, lambda message: given.append((message.body, message.delivery_count)), retries=1)
    thread = run_in_thread(worker)
    wait_until(lambda: is_empty(queue), 60)
    ended(worker, thread)
    assert given == [(body, int(body == b"1")) for body in bodies[1:]]
    assert [message.body for message in letters.get_many(timeout=10)] == [b"0"]


LOGGING_PROGRAM = """
import logging, sys, threading
import warren
{top}
def handle(message):
    raise ValueError("nobody can do " + message.body.decode())

def main():
    with warren.attach(sys.argv[1]) as node:
        letters = node.queue("{name}-dead")
        queue = node.queue("{name}", dead_letter_exchange="", dead_letter_routing_key=letters.name)
        queue.put(b"this")
        worker = node.worker(queue, handle, concurrency=2, processes=True, retries=1, backoff=0.01)

        def end():
            letters.get(timeout=120).ack()
            worker.stop()

        threading.Thread(target=end).start()
        print(worker.counts)
        worker.run()
        print(worker.counts)

if __name__ == "__main__":
    {main}
    main()
"""
CONFIGURE = 'logging.basicConfig(format="%(levelname)s %(name)s %(process)d %(message)s")'


@pytest.mark.parametrize("where", ["main", "top"])
def test_failures_in_processes_are_logged_by_the_program(
    node: warren.Node, name: str, tmp_path: Path, where: str
) -> None:
    """Once: also when its processes configure logging, too, as they import the program."""
    program = tmp_path / "program.py"
    program.write_text(LOGGING_PROGRAM.format(name=name, **({"top": "", "main": "pass"} | {where: CONFIGURE})))
    done = subprocess.run(
        [sys.executable, program, node.directory], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "warren.worker" in line]
    assert [line.split()[0] for line in told] == ["WARNING", "ERROR"], done.stderr
    assert "failed at try 1" in told[0]
    assert "it was the last try" in told[1]
    assert done.stderr.splitlines().count("ValueError: nobody can do this") == 2
    before, after = map(ast.literal_eval, done.stdout.splitlines())
    assert before == {"handled": 0, "failed": 0, "rejected": 0, "late": 0}
    assert after == {"handled": 0, "failed": 1, "rejected": 1, "late": 0}, "whichever processes it came to"


VAIN_PROGRAM = """
import os, sys
import warren
{top}
def handle(message):
    {handle}

def main():
    with warren.attach(sys.argv[1]) as node:
        node.queue("{name}", dead_letter_exchange="", dead_letter_routing_key="{name}-dead").put(b"task")
        node.queue("{name}-dead")
        worker = node.worker("{name}", handle, concurrency=2, processes=True, retries=3)
        try:
            worker.run()
        except warren.UsageError as error:
            print(error)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("top", "handle", "told"),
    [
        (
            'if __name__ == "__mp_main__":\n    warren.open(sys.argv[1], profile="huge")',
            "message.ack()",
            "the processes of its worker cannot come up: 3 in a row ended with exit code 1",
        ),
        (
            "",
            'warren.attach(sys.argv[1]).delete_queue("{name}-dead"); os._exit(7)',
            "would send dead letters to no queue, so a message that fails 4 times would be dropped",
        ),
    ],
)
def test_processes_that_cannot_come_up_end_the_worker(
    node: warren.Node, name: str, tmp_path: Path, top: str, handle: str, told: str
) -> None:
    """The module of the function cannot be imported there, or the dead letters lead nowhere since: to start others for
    ever helps nobody."""
    program = tmp_path / "program.py"
    program.write_text(VAIN_PROGRAM.format(name=name, top=top, handle=handle.format(name=name)))
    done = subprocess.run(
        [sys.executable, program, node.directory], capture_output=True, text=True, timeout=480, check=False
    )
    assert done.returncode == 0, done.stderr
    assert told in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("concurrency", "processes"), [(1, False), (3, False), (3, True)])
def test_a_program_of_a_worker_ends_by_a_signal_and_leaves_nothing(
    node: warren.Node, name: str, tmp_path: Path, concurrency: int, processes: bool, number: signal.Signals
) -> None:
    queue = node.queue(name)
    program, done = tmp_path / "program.py", tmp_path / "done"
    program.write_text(PROGRAM.format(name=name, concurrency=concurrency, processes=processes))
    done.touch()
    bodies = [f"{n}" for n in range(30)] + (["die"] if processes else [])
    queue.put_many([body.encode() for body in bodies])
    child = subprocess.Popen(
        [sys.executable, program, node.directory],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"DONE": str(done)},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        wait_until(lambda: len(done.read_text().splitlines()) >= len(bodies), 60, what="the messages")
        child.send_signal(number)
        out, err = child.communicate(timeout=120)
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    assert (child.returncode, out) == (0, f"ended {len(bodies)}\n"), err  # also those of the process that died
    assert "Traceback" not in err, err
    rows = [json.loads(line) for line in done.read_text().splitlines()]
    assert sorted(body for body, _pid in rows) == sorted(bodies)
    wait_until(lambda: is_empty(queue), 30)
    if processes:
        assert len({pid for _body, pid in rows}) >= 2
        assert child.pid not in {pid for _body, pid in rows}
    for pid in {pid for _body, pid in rows}:
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 30, what="the end of the processes")


@pytest.mark.parametrize("body", [b"one", b"endless"])
def test_processes_of_a_killed_program_end(node: warren.Node, name: str, tmp_path: Path, body: bytes) -> None:
    """Also when their function does not: what it holds returns after the grace."""
    queue = node.queue(name)
    program, done = tmp_path / "program.py", tmp_path / "done"
    # one process: of two the second may get what the first returned, before it knows that the program is gone
    concurrency = 1 if body == b"endless" else 2
    program.write_text(PROGRAM.format(name=name, concurrency=concurrency, processes=True))
    done.touch()
    queue.put(body)
    environment = os.environ | {"DONE": str(done), "GRACE": "0.5"}
    child = subprocess.Popen([sys.executable, program, node.directory], env=environment)
    try:
        wait_until(done.read_text, 60)
    finally:
        child.kill()
        child.wait()
    wait_until(lambda: queue.stats()["consumers"] == 0, 60, what="the end of its processes")
    if body == b"endless":
        assert queue.get(timeout=30).body == body
    queue.put(b"two")
    assert queue.get(timeout=30).body == b"two"


def _worker_of(node: warren.Node, name: str) -> Any:
    """The pid of the queue worker that has a queue, None while there is none."""
    status = node.status()
    index = next(queue["worker"] for queue in status["queues"] if queue["name"] == name)
    return next(p["pid"] for p in status["processes"] if p["role"] == "queue_worker" and p["index"] == index)
