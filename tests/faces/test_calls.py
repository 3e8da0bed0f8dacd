"""Goal: node.call gets the answer of node.serve, one for each call, from any process; a caller or a server that goes
costs nothing.

Method: a real node; programs as a user writes them. Answers say what was asked, so that none is mixed up.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio

from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
CALL_S = 60.0


@contextlib.contextmanager
def serving(
    node: warren.Node, name: str, function: Callable[[warren.Message], Any], **options: Any
) -> Iterator[warren.Worker]:
    worker = node.serve(name, function, **options)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()


def upper(message: warren.Message) -> bytes:
    return bytes(message.body).upper()


def test_a_call_returns_what_the_function_returns(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    with serving(node, name, upper):
        assert node.call(name, b"gold", CALL_S) == b"GOLD"
        assert node.call(queue, b"silver", CALL_S, headers={"a": 1}, properties={"type": "t"}) == b"SILVER"
        assert [node.call(name, b"n%d" % n, CALL_S) for n in range(300)] == [b"N%d" % n for n in range(300)]
    wait_until(lambda: queue.stats()["ready"] + queue.stats()["unacked"] == 0, 30)


@pytest.mark.parametrize("size", [0, 3, 5000, 100_000])
def test_answers_of_any_size(node: warren.Node, name: str, size: int) -> None:
    node.queue(name, durable=False)
    with serving(node, name, lambda message: b"x" * int(message.body)):
        assert node.call(name, b"%d" % size, CALL_S) == b"x" * size


def test_what_the_function_sees_and_raises(node: warren.Node, name: str) -> None:
    node.queue(name)
    seen: list[Any] = []

    def function(message: warren.Message) -> bytes | None:
        seen.append((message.headers, message.properties["type"], message.priority, message.persistent))
        if message.body == b"none":
            return None
        raise ValueError("no gold today")

    with serving(node, name, function):
        assert node.call(name, b"none", CALL_S, headers={"h": 2}, properties={"type": "t"}, priority=3) == b""
        with pytest.raises(warren.CallFailed, match=r"ValueError: no gold today"):
            node.call(name, b"gold", CALL_S, properties={"type": "t"})
    assert seen[0] == ({"h": 2}, "t", 3, False)


def test_an_answer_that_is_none_is_said_to_the_caller(node: warren.Node, name: str) -> None:
    node.queue(name)
    with serving(node, name, lambda message: message.headers), pytest.raises(warren.CallFailed, match="dict"):
        node.call(name, b"?", CALL_S)
    with serving(node, name, lambda message: b"x" * (64 << 20)), pytest.raises(warren.CallFailed, match="TooLarge"):
        node.call(name, b"?", CALL_S)


def test_many_threads_call_and_each_gets_its_own_answer(node: warren.Node, name: str) -> None:
    node.queue(name)
    wrong: list[Any] = []

    def call_some(me: int) -> None:
        try:
            for n in range(100):
                body = b"%d.%d" % (me, n)
                if (found := node.call(name, body, CALL_S)) != b"<" + body + b">":
                    wrong.append((body, found))
        except warren.Error as error:
            wrong.append(error)

    def answer(message: warren.Message) -> bytes:
        return b"<" + bytes(message.body) + b">"

    with serving(node, name, answer, concurrency=3, prefetch=50):
        threads = [threading.Thread(target=call_some, args=(me,)) for me in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    assert wrong == []


def test_asyncio_calls_and_serves(node: warren.Node, name: str) -> None:
    node.queue(name)

    async def main() -> None:
        async with warren.aio.attach(node.directory) as mine, warren.aio.attach(node.directory) as other:

            async def answer(message: warren.aio.Message) -> bytes:
                await asyncio.sleep(0.001)
                if message.body == b"bad":
                    raise KeyError("bad")
                return bytes(message.body).upper()

            worker = await other.serve(name, answer)
            running = asyncio.create_task(worker.run())
            found = await asyncio.gather(*(mine.call(name, b"n%d" % n, CALL_S) for n in range(200)))
            assert found == [b"N%d" % n for n in range(200)]
            with pytest.raises(warren.CallFailed, match="KeyError"):
                await mine.call(name, b"bad", CALL_S)
            worker.stop()
            await running
            with pytest.raises(warren.TimedOut, match="no answer within"):
                await mine.call(name, b"nobody", 0.2)
            with pytest.raises(warren.QueueNotFound):
                await mine.call(f"{name}-not", b"")
            late = asyncio.create_task(mine.call(name, b"cancelled", CALL_S))
            await asyncio.sleep(0.05)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late

    asyncio.run(main())


def worker_pid(node: warren.Node, name: str) -> int | None:
    """The process that has the queue, None while there is none."""
    status = node.status()
    worker = next(queue["worker"] for queue in status["queues"] if queue["name"] == name)
    rows = status["processes"]
    return next(row["pid"] for row in rows if row["role"] == "queue_worker" and row["index"] == worker)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_worker_that_stands_still_for_a_while_only_delays(node: warren.Node, name: str, asynchronous: bool) -> None:
    """As on a machine that has no time for it: a call ends by its own timeout, not by the worker's silence."""
    node.queue(name)
    still_s = 2.5  # longer than who reads gives the worker to say that there is nothing

    async def call(body: bytes) -> bytes:
        if not asynchronous:
            return await asyncio.to_thread(node.call, name, body, CALL_S)
        return await other.call(name, body, CALL_S)

    async def main() -> None:
        nonlocal other
        async with warren.aio.attach(node.directory) as other:
            assert await call(b"before") == b"BEFORE"
            pid = worker_pid(node, name)
            assert pid
            os.kill(pid, signal.SIGSTOP)
            try:
                called = asyncio.create_task(call(b"meanwhile"))
                await asyncio.sleep(still_s)
                assert not called.done()
            finally:
                os.kill(pid, signal.SIGCONT)
            assert await called == b"MEANWHILE"

    other: Any = None
    with serving(node, name, upper):
        asyncio.run(main())


def test_a_client_calls_queues_of_all_workers(node: warren.Node, name: str) -> None:
    """Each worker has answers of its own for a client; threads and asyncio, one after another and at once."""
    names = [f"{name}-{n}" for n in range(8)]
    for each in names:
        node.queue(each)
    rows = {row["name"]: row["worker"] for row in node.status()["queues"]}
    assert len({rows[each] for each in names}) > 1

    async def main() -> None:
        async with warren.aio.attach(node.directory) as other:
            asked = [(each, b"n%d" % n) for n in range(20) for each in names]
            found = await asyncio.gather(*(other.call(each, body, CALL_S) for each, body in asked))
            assert found == [body.upper() for _each, body in asked]

    with contextlib.ExitStack() as stack:
        for each in names:
            stack.enter_context(serving(node, each, upper))
        for n in range(5):
            assert [node.call(each, b"t%d" % n, CALL_S) for each in names] == [b"T%d" % n] * len(names)
        asyncio.run(main())


def test_a_message_that_asks_nothing_is_done_when_it_was_handled(
    node: warren.Node, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Put by hand into a queue that is served: nobody waits for an answer, and it does not come again."""
    queue = node.queue(name)
    seen: list[bytes] = []

    def function(message: warren.Message) -> bytes:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError("it is bad")
        return b"an answer"

    async def main() -> None:
        async with warren.aio.attach(node.directory) as other:

            async def answer(message: warren.aio.Message) -> bytes:
                return function(message)  # type: ignore[arg-type]

            worker = await other.serve(name, answer)
            running = asyncio.create_task(worker.run())
            queue.put_many([b"aio", b"bad"])
            while sum(worker.counts.values()) < 2:
                await asyncio.sleep(0.01)
            worker.stop()
            await running
            assert worker.counts == {"handled": 1, "failed": 1, "rejected": 0, "late": 0}

    with serving(node, name, function) as worker:
        queue.put_many([b"plain", b"bad", b"last"])
        wait_until(lambda: sum(worker.counts.values()) == 3, 60)
        assert worker.counts == {"handled": 2, "failed": 1, "rejected": 0, "late": 0}
        assert node.call(name, b"asks", CALL_S) == b"an answer"
    asyncio.run(main())
    assert sorted(seen) == [b"aio", b"asks", b"bad", b"bad", b"last", b"plain"]
    assert caplog.text.count("it has no reply_to, so nobody is told") == 2


@pytest.mark.parametrize("interrupt", [SystemExit, KeyboardInterrupt])
def test_a_call_that_ends_its_server_is_answered_and_ends_no_other(
    node: warren.Node, name: str, interrupt: type[BaseException]
) -> None:
    """As of a function that parses arguments, which ends by sys.exit, or of one that is interrupted by Ctrl-C."""
    queue = node.queue(name)
    said = f"{interrupt.__name__}: no such option"

    def function(message: warren.Message) -> bytes:
        raise interrupt("no such option")

    async def main() -> None:
        async with warren.aio.attach(node.directory) as other:

            async def answer(message: warren.aio.Message) -> bytes:
                if message.body == b"cancelled":
                    raise asyncio.CancelledError("a part of mine")
                return function(message)  # type: ignore[arg-type]

            async def ask() -> None:
                with pytest.raises(warren.CallFailed, match="CancelledError: a part of mine"):
                    await other.call(name, b"cancelled", CALL_S)
                with pytest.raises(warren.CallFailed, match=said):
                    await other.call(name, b"?", CALL_S)

            asking = asyncio.create_task(ask())
            with pytest.raises(interrupt):
                await (await other.serve(name, answer)).run()
            await asking

    server = node.serve(name, function)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            server.run()
        except interrupt as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    with pytest.raises(warren.CallFailed, match=said):
        node.call(name, b"?", CALL_S)
    thread.join(60)
    assert len(ended) == 1
    asyncio.run(main())
    wait_until(lambda: queue.stats()["ready"] + queue.stats()["unacked"] == 0, 30)


def test_what_asks_nothing_and_is_interrupted_from_outside_returns(node: warren.Node, name: str) -> None:
    """Nobody would be told of it, and it is not the message that ended the server."""
    queue = node.queue(name)

    def interrupted(message: warren.Message) -> bytes:
        raise KeyboardInterrupt

    async def main() -> None:
        async with warren.aio.attach(node.directory) as other:

            async def answer(message: warren.aio.Message) -> bytes:
                return interrupted(message)  # type: ignore[arg-type]

            with pytest.raises(KeyboardInterrupt):
                await (await other.serve(name, answer)).run()

    queue.put(b"a task")
    with pytest.raises(KeyboardInterrupt):
        node.serve(name, interrupted).run()
    asyncio.run(main())
    with queue.get(timeout=30) as message:
        assert (message.body, message.redelivered, message.delivery_count) == (b"a task", True, 2)


def test_what_a_call_of_the_function_raises_is_answered(node: warren.Node, name: str) -> None:
    """Also warren's own errors, as of a call to another service that nobody serves: the function is not called again
    until the caller has given up."""
    node.queue(name)
    node.queue(f"{name}-other")
    seen: list[bytes] = []

    def function(message: warren.Message) -> bytes:
        seen.append(message.body)
        return node.call(f"{name}-other", b"?", 0.1)

    async def main() -> None:
        async with warren.aio.attach(node.directory) as other:

            async def answer(message: warren.aio.Message) -> bytes:
                seen.append(message.body)
                return await other.call(f"{name}-other", b"?", 0.1)

            worker = await other.serve(name, answer)
            running = asyncio.create_task(worker.run())
            with pytest.raises(warren.CallFailed, match=r"TimedOut: .*no answer within 0\.1 s"):
                await other.call(name, b"aio", CALL_S)
            worker.stop()
            await running

    with serving(node, name, function), pytest.raises(warren.CallFailed, match=r"TimedOut: .*no answer within 0\.1 s"):
        node.call(name, b"plain", CALL_S)
    asyncio.run(main())
    assert seen == [b"plain", b"aio"]


def test_an_answer_that_cannot_be_sent_costs_one_try(
    node: warren.Node, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = node.queue(name)
    seen: list[bytes] = []

    def function(message: warren.Message) -> bytes:
        seen.append(message.body)
        if message.body == b"names":
            raise ValueError("bad \udcff name " + "x" * 100_000)
        return b"an answer"

    with serving(node, name, function) as worker:
        with pytest.raises(warren.CallFailed, match=r"ValueError: bad \\udcff name x+ …"):
            node.call(name, b"names", CALL_S)
        queue.put(b"nowhere", properties={"reply_to": "x" * 300})
        wait_until(lambda: worker.counts["failed"] == 2, 60)
        assert worker.counts == {"handled": 0, "failed": 2, "rejected": 0, "late": 0}
    assert seen == [b"names", b"nowhere"]
    assert "cannot be answered" in caplog.text


def test_nobody_serves(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    with pytest.raises(warren.TimedOut, match=r"no answer within 0\.3 s; is anybody serving it"):
        node.call(name, b"?", 0.3)
    wait_until(lambda: queue.stats()["ready"] == 0, 60, what="the end of what nobody waits for")  # its time is over
    with pytest.raises(warren.QueueNotFound):
        node.call(f"{name}-not", b"?")
    node.delete_queue(name)
    with pytest.raises(warren.QueueNotFound):
        node.call(name, b"?", 1)


@pytest.mark.parametrize(
    "words",
    [{"timeout": -1}, {"timeout": None}, {"properties": {"reply_to": "me"}}, {"properties": "reply_to"}, {"body": 5}],
)
def test_wrong_words_are_refused(node: warren.Node, name: str, words: dict[str, Any]) -> None:
    node.queue(name)
    with pytest.raises(warren.UsageError):
        node.call(name, **({"body": b"x"} | words))


def test_a_full_queue_refuses_a_call(node: warren.Node, name: str) -> None:
    node.queue(name, max_length=1, overflow="reject-publish").put(b"full")
    with pytest.raises(warren.QueueFull):
        node.call(name, b"?", 0.5 * patience())


def test_an_answer_by_hand_and_to_an_ordinary_queue(node: warren.Node, name: str) -> None:
    queue, answers = node.queue(name), node.queue(f"{name}-answers")
    queue.put(b"ask", properties={"reply_to": answers.name, "correlation_id": "7"})
    queue.put(b"tell")
    with queue.get(timeout=30) as message:
        queue.reply(message, b"told", {"h": 1})
    got = answers.get(timeout=30)
    assert (got.body, got.correlation_id, got.headers) == (b"told", "7", {"h": 1})
    with queue.get(timeout=30) as message, pytest.raises(warren.UsageError, match="no reply_to"):
        queue.reply(message, b"")


@pytest.mark.parametrize("to", ["warren.reply.0.5", "warren.reply.99.2147483649", "warren.reply.x.y", "warren.reply."])
def test_an_answer_to_nonsense_goes_nowhere(node: warren.Node, name: str, to: str) -> None:
    queue = node.queue(name)
    queue.put(b"ask", properties={"reply_to": to})
    with queue.get(timeout=30) as message:
        queue.reply(message, b"told")
    assert node.ping()


CALLER = """
import sys, warren
with warren.attach(sys.argv[1]) as node:
    print("calls", flush=True)
    print(node.call(sys.argv[2], b"slow", 100))
"""


def test_a_caller_that_dies_costs_nothing(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    begun, go = threading.Event(), threading.Event()

    def function(message: warren.Message) -> bytes:
        if message.body == b"slow":
            begun.set()
            assert go.wait(60)
        return bytes(message.body)

    clients = len(node.status()["clients"])
    with serving(node, name, function, concurrency=2):
        child = subprocess.Popen([sys.executable, "-c", CALLER, node.directory, name], stdout=subprocess.DEVNULL)
        try:
            assert begun.wait(60)
        finally:
            child.kill()
            child.wait()
        wait_until(lambda: len(node.status()["clients"]) == clients, 60, what="the end of the caller")
        go.set()
        assert node.call(name, b"next", CALL_S) == b"next"
    wait_until(lambda: queue.stats()["ready"] + queue.stats()["unacked"] == 0, 30)


def test_a_child_of_fork_calls_by_itself(node: warren.Node, name: str) -> None:
    node.queue(name)
    with serving(node, name, upper):
        assert node.call(name, b"parent", CALL_S) == b"PARENT"
        pid = os.fork()
        if not pid:
            try:
                os._exit(0 if node.call(name, b"child", CALL_S) == b"CHILD" else 1)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        assert node.call(name, b"parent", CALL_S) == b"PARENT"


def test_calls_go_on_after_a_killed_queue_worker(node: warren.Node, name: str) -> None:
    node.queue(name)
    with serving(node, name, upper):
        assert node.call(name, b"before", CALL_S) == b"BEFORE"
        old = worker_pid(node, name)
        assert old
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: worker_pid(node, name) not in (None, old), 60)

        def answered() -> bool:
            try:
                return node.call(name, b"after", 2 * patience()) == b"AFTER"
            except (warren.TimedOut, warren.PeerLost):  # a call that was under way is lost
                return False

        wait_until(answered, 60)
        for n in range(20):
            assert node.call(name, b"n%d" % n, CALL_S) == b"N%d" % n


def test_calls_go_on_after_a_restart_of_the_node(tmp_path: Path) -> None:
    def warren_command(*words: str) -> None:
        command = [sys.executable, "-m", "warren.workers.cli.main", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)

    directory = str(tmp_path / "node")
    with warren.open(directory, idle_exit=None) as node:
        node.queue("up")
        with serving(node, "up", upper):
            assert node.call("up", b"before", CALL_S) == b"BEFORE"
            warren_command("stop", directory)
            warren_command("up", directory, "--detach")

            def answered() -> bool:
                try:
                    return node.call("up", b"after", 2 * patience()) == b"AFTER"
                except (warren.TimedOut, warren.PeerLost, warren.ClosedError):
                    return False

            wait_until(answered, 60)
    warren_command("stop", directory)
