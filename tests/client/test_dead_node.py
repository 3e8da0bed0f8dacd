"""Goal: nobody is told what a node of the past says, nobody waits for a node of which no process lives, and "there was
no message" is always the word of a worker that looked; in both faces.

Method: a real node that is stopped and started anew under a client that stays attached, or killed as a whole; workers
that stand still. Calls that have to end are in threads, and joined; calls that have to end at once run under a limit
that is made far longer than the test waits, so that only a call that does not wait for it can pass.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import warren
import warren.aio
from warren.ipc.layout import CONSTANTS
from warren.workers.client import client as clients
from warren.workers.client import trouble

from support.long import in_part
from support.real_node import RealNode, frozen
from support.waiting import kill, patience, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.crash]

#: how long a call may take to end in a test; a call that sleeps on would take for ever
END_S = 30
Call = Callable[[], object]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", workers=1) as node:
        yield node
        if node.process is None:  # the next one removes what a killed one left
            node.start()


def outcome(call: Call) -> object:
    """What the call returns; an exception is handed out, not raised."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - handed to the test
        return error


class Waiting:
    """A call in a thread, and what came of it."""

    def __init__(self, call: Call) -> None:
        self.found: object = "waits"
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Call) -> None:
        self.found = outcome(call)

    def ended(self) -> object:
        self._thread.join(END_S * patience())
        return self.found


def seen(running: RealNode, work: Callable[["warren.aio.Node"], Awaitable[object]]) -> object:
    """What asyncio's face finds with a node of its own; an exception is handed out."""

    async def main() -> object:
        async with warren.aio.attach(running.directory) as node:
            return await work(node)

    return outcome(lambda: asyncio.run(main()))


# ---- a node that was stopped and started anew: what it says now, not what it said -----------------------------------


def anew(running: RealNode, change: Callable[[warren.Node], object] = lambda node: None) -> None:
    """The node is stopped and started, and `change` is made with a client of the new one."""
    running.stop()
    running.start()
    with warren.attach(running.directory) as other:
        change(other)


def test_the_catalog_of_a_node_started_anew_is_read(running: RealNode) -> None:
    """Nothing is put or got in between: each of these calls notices by itself."""
    calls: list[tuple[str, Callable[[warren.Node], object], object]] = [
        ("declare", lambda node: node.queue("new").name, "new"),
        ("names", lambda node: node.queues(), ["made", "stays"]),
        ("another's", lambda node: node.queue("made", create=False).name, "made"),
        ("gone", lambda node: node.queue("gone", create=False), warren.QueueNotFound),
        (
            "many",
            lambda node: (node.declare_queues(["m1", "m2"]), node.queue("m1", create=False).name),
            (["m1", "m2"], "m1"),
        ),
        ("mandatory", lambda node: node.publish(b"x", "", "made", mandatory=True), None),
        ("mandatory to what is gone", lambda node: node.publish(b"x", "", "gone", mandatory=True), warren.Unroutable),
        ("exchange", lambda node: node.declare_exchange("x", "fanout"), None),
        ("bind", lambda node: node.bind("made", "amq.topic", "a.#"), None),
        ("work queue", lambda node: node.work_queue("made").qsize(), 0),
    ]
    for what, call, expected in calls:
        with warren.attach(running.directory) as node:
            node.declare_queues(["gone", "stays"])
            assert "gone" in node.queues()
            anew(running, lambda other: (other.delete_queue("gone"), other.queue("made")))
            found = outcome(lambda: call(node))  # noqa: B023 - called here
            assert found == expected or type(found) is expected, (what, found)
        with warren.attach(running.directory) as other:
            other.delete_queues(other.queues())


def test_exclusive_queues_are_the_new_attachments(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        node.queue("before")
        anew(running)
        mine = node.queue("mine", exclusive=True)
        mine.put(b"x")
        assert mine.get(timeout=10).body == b"x"


def test_statistics_of_a_node_started_anew(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        queue.put_many([b"1", b"2"])
        wait_until(lambda: queue.depth() == 2)
        anew(running, lambda other: other.queue("q").purge())
        assert (queue.depth(), len(queue.browse()), queue.stats()["ready"]) == (0, 0, 0)


def test_the_store_of_a_node_started_anew_is_read(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        store, ids = node.store(), [node.store().new_id() for _number in range(2)]
        store.write_many(ids, [b"gone", b"stays"])
        assert store.read_many(ids) == [b"gone", b"stays"]
        anew(running, lambda other: (other.store().remove([ids[0]]), other.store().barrier("synced")))
        assert store.read(ids[0]) is None
        anew(running)
        assert store.read_many(ids) == [None, b"stays"]
        running.stop()
        with pytest.raises(warren.ClosedError, match="was stopped"):
            store.read(ids[1])
        running.start()
        assert store.contains(ids[1])


def test_statistics_are_not_those_of_a_dead_worker(running: RealNode) -> None:
    with warren.attach(running.directory, call_timeout=END_S) as node:
        queue = node.queue("q")
        queue.put(b"1")
        wait_until(lambda: queue.depth() == 1)
        running.kill_all()
        questions: list[Call] = [queue.stats, queue.depth]
        for question in questions:  # what they say may be a tenth of a second old
            told = wait_until(lambda: [found for found in [outcome(question)] if isinstance(found, Exception)], END_S)  # noqa: B023
            assert isinstance(told[0], warren.NodeNotRunning)


def test_what_lies_ready_of_a_stopped_node_is_not_handed_out(running: RealNode) -> None:
    """It is in the queue again: it would come twice, and its ack be refused."""
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        queue.put_many([b"%d" % n for n in range(20)])
        messages = queue.consume(prefetch=20)
        first = next(messages)
        wait_until(lambda: queue._handle.pending == 19)
        anew(running)
        again = [next(messages) for _number in range(20)]
        assert [message.body for message in again] == [b"%d" % n for n in range(20)]
        queue.ack(again)
        messages.close()  # type: ignore[attr-defined]
        with pytest.raises(warren.PeerLost):
            first.ack()


def test_asyncio_reads_the_catalog_of_a_node_started_anew(running: RealNode) -> None:
    async def work(node: warren.aio.Node) -> object:
        await node.declare_queues(["gone", "stays"])
        held = await node.queue("stays")
        await asyncio.to_thread(anew, running, lambda other: (other.delete_queue("gone"), other.queue("made")))
        names = await node.queues()
        await node.publish(b"x", "", "made", mandatory=True)
        await held.put(b"y")
        with pytest.raises(warren.QueueNotFound):
            await node.queue("gone", create=False)
        fresh = await node.queue("new")
        await fresh.put(b"z")
        return names, [(await one.get(timeout=10)).body for one in (await node.queue("made"), held, fresh)]

    assert seen(running, work) == (["made", "stays"], [b"x", b"y", b"z"])


@pytest.mark.parametrize("first", in_part(["queue", "publish", "queues", "put", "stats"], 2))
def test_asyncio_whatever_is_called_first(running: RealNode, first: str) -> None:
    async def work(node: warren.aio.Node) -> object:
        held = await node.queue("stays")
        await asyncio.to_thread(anew, running, lambda other: other.queue("made"))
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "queue": lambda: node.queue("made", create=False),
            "queues": node.queues,
            "publish": lambda: node.publish(b"x", "", "made", mandatory=True),
            "put": lambda: held.put(b"x"),
            "stats": held.stats,
        }
        await calls[first]()
        return await node.queues()

    assert seen(running, work) == ["made", "stays"]


# ---- a node of which nobody lives -----------------------------------------------------------------------------------


def test_every_wait_for_messages_ends_when_all_are_dead(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        queues = {name: node.queue(name) for name in ("get", "many", "consume", "all in hand")}
        tasks, undone = node.work_queue("work"), node.work_queue("undone")
        undone.put(b"never done")
        queues["all in hand"].put(b"held")
        holding = queues["all in hand"].consume(prefetch=1)
        held = next(holding)
        consuming = queues["consume"].consume()
        calls = {
            "get": queues["get"].get,
            "get with time": lambda: node.queue("timed").get(timeout=10 * END_S),
            "get_many": queues["many"].get_many,
            "consume": lambda: next(consuming),
            "all in hand": lambda: next(holding),
            "work queue": tasks.get,
            "join": undone.join,
        }
        waiting = {name: Waiting(call) for name, call in calls.items()}
        wait_until(lambda: node.queue("get").stats()["consumers"] == 1)
        wait_until(lambda: node.queue("timed").stats()["consumers"] == 1)
        running.kill_all()
        found = {name: one.ended() for name, one in waiting.items()}
        assert {name: type(error) for name, error in found.items()} == dict.fromkeys(calls, warren.NodeNotRunning)
        assert all("warren up" in str(error) for error in found.values())
        assert held.body == b"held"
        for call in (queues["get"].get, queues["many"].get_many, lambda: next(queues["get"].consume())):
            assert isinstance(Waiting(call).ended(), warren.NodeNotRunning), "begun when all were dead"


def test_nobody_says_empty_of_a_dead_node(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        queue, empty = node.queue("q"), node.queue("empty")
        tasks = node.work_queue("work")
        queue.put(b"x")
        asking = Waiting(lambda: empty.get(timeout=1.5))
        wait_until(lambda: empty.stats()["consumers"] == 1)
        running.kill_all()
        assert isinstance(asking.ended(), warren.PeerLost), "it had asked when they lived"
        for timeout in (0.001, 0.3, 1.5):
            for call in (
                lambda: queue.get(timeout=timeout),  # noqa: B023 - called here
                lambda: queue.get(timeout=timeout, ahead=False),  # noqa: B023
                lambda: queue.get_many(10, timeout=timeout),  # noqa: B023
                lambda: tasks.get(timeout=timeout),  # noqa: B023
                lambda: list(queue.consume(timeout=timeout)),  # noqa: B023
            ):
                error = Waiting(call).ended()
                assert isinstance(error, warren.PeerLost), (timeout, error)
                assert "every process of the node" in str(error)
                assert "warren up" in str(error)
        running.start()
        assert [message.body for message in queue.get_many(10, timeout=END_S)] == [b"x"]


def test_asyncio_ends_and_says_no_empty_when_all_are_dead(running: RealNode) -> None:
    async def work(node: warren.aio.Node) -> object:
        queue, empty, timed, hands = [await node.queue(name) for name in ("q", "empty", "timed", "hands")]
        await queue.put(b"x")
        await hands.put(b"held")
        holding = hands.consume(prefetch=1)
        held = await anext(holding)
        endless = [asyncio.ensure_future(call) for call in (empty.get(), empty.get_many(), anext(holding))]
        asking = asyncio.ensure_future(timed.get(timeout=1.5))
        await asyncio.to_thread(wait_until, lambda: len(empty._line.getters) == 2 and len(timed._line.getters) == 1)
        await asyncio.to_thread(running.kill_all)
        found: list[object] = []
        for one in (asking, *endless):
            found += await asyncio.gather(asyncio.wait_for(one, END_S * patience()), return_exceptions=True)
        for timeout in (0.001, 0.3, 1.5):
            for call in (
                queue.get(timeout=timeout),
                queue.get_many(timeout=timeout),
                anext(queue.consume(10, timeout)),
            ):
                found += await asyncio.gather(asyncio.wait_for(call, END_S * patience()), return_exceptions=True)
        await holding.aclose()
        return held.body, found

    told = seen(running, work)
    assert isinstance(told, tuple), told
    body, found = told
    assert body == b"held"
    assert [type(error) for error in found if not isinstance(error, warren.PeerLost)] == []
    assert all("warren up" in str(error) for error in found)


def test_a_node_started_anew_is_waited_for(running: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the time that every process may be dead, which is made long enough for a busy machine."""
    monkeypatch.setattr(trouble, "ABANDONED_S", 10.0 * END_S)
    with warren.attach(running.directory) as node:
        waiting = Waiting(lambda: node.queue("q").get(timeout=8 * END_S))

        async def work(other: warren.aio.Node) -> object:
            return (await (await other.queue("a")).get(timeout=8 * END_S)).body  # type: ignore[attr-defined]

        looping = Waiting(lambda: seen(running, work))
        wait_until(lambda: node.queue("q").stats()["consumers"] == 1)
        wait_until(lambda: node.queue("a").stats()["consumers"] == 1)
        running.kill_all()
        running.start()
        node.queue("q").put(b"x", timeout=END_S)
        node.queue("a").put(b"y", timeout=END_S)
        message = waiting.ended()
        assert isinstance(message, warren.Message), message
        assert (message.body, looping.ended()) == (b"x", b"y")


def test_a_supervisor_that_is_followed_by_another_is_waited_for(running: RealNode) -> None:
    """Supervisor and worker are killed; the store starts a supervisor, and that the worker."""
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        waiting = Waiting(lambda: queue.get(timeout=10 * END_S))
        wait_until(lambda: queue.stats()["consumers"] == 1)
        pids = running.pids()
        for role in ("supervisor", "worker-0"):
            os.kill(pids[role], signal.SIGSTOP)
        for role in ("supervisor", "worker-0"):
            os.kill(pids[role], signal.SIGKILL)
        queue.put(b"x", timeout=10 * END_S)
        message = waiting.ended()
        assert isinstance(message, warren.Message), message
        assert message.body == b"x"
        supervisor = node.ping()["pid"]
        node._client.control("stop")
    wait_until(lambda: not Path(f"/proc/{supervisor}").exists(), 30, what="the node to end")


def test_who_is_down_is_said(running: RealNode) -> None:
    """All dead: nobody restarts anything. The supervisor lives: it does."""
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        supervisor, worker = (running.pids()[role] for role in ("supervisor", "worker-0"))
        os.kill(supervisor, signal.SIGSTOP)
        try:
            kill(worker)
            with pytest.raises(warren.PeerLost, match="is being restarted"):
                queue.put(b"x", timeout=0.1)
            with pytest.raises(warren.PeerLost, match="is being restarted"):
                queue.get(timeout=0.1)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        queue.put(b"y", timeout=END_S)
        running.kill_all()
        with pytest.raises(warren.NodeNotRunning, match=r"every process of the node .* has died: start it again"):
            queue.put(b"z", timeout=0.1)


def test_a_supervisor_that_is_missing_is_said(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        pids = running.pids()
        for pid in pids.values():  # the store stands still, so it starts no supervisor
            os.kill(pid, signal.SIGSTOP)
        kill(pids["supervisor"], pids["worker-0"])
        assert running.process is not None
        running.process.wait(END_S)
        with pytest.raises(warren.PeerLost, match="and so is the supervisor"):
            queue.put(b"x", timeout=0.1)
        for role in pids.keys() - {"supervisor", "worker-0"}:
            os.kill(pids[role], signal.SIGCONT)
        queue.put(b"y", timeout=10 * END_S)
        supervisor = node.ping()["pid"]
        node._client.control("stop")
    wait_until(lambda: not Path(f"/proc/{supervisor}").exists(), 30, what="the node to end")


# ---- leaving a node of which nobody lives: at once ------------------------------------------------------------------


def test_close_and_release_wait_for_nobody(running: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLOSE_WAIT_S", 100.0 * END_S)
    monkeypatch.setattr(clients, "GIVE_BACK_S", 100.0 * END_S)
    monkeypatch.setattr(trouble, "ABANDONED_S", 100.0 * END_S)
    node, other = warren.attach(running.directory), warren.attach(running.directory)
    queue = node.queue("q")
    node.queue("mine", exclusive=True)
    queue.put_many([b"%d" % n for n in range(20)])
    messages = queue.consume(prefetch=10)
    held = [next(messages), next(messages)]
    wait_until(lambda: queue._handle.pending == 8)
    theirs = other.queue("q").get(timeout=10)
    running.kill_all()
    queue.put(b"submitted", wait=False)
    released = Waiting(messages.close)  # type: ignore[attr-defined]
    assert released.ended() is None
    assert queue._handle.pending == 0
    assert Waiting(queue.release).ended() is None
    assert Waiting(lambda: node._client.close(100.0 * END_S)).ended() is None
    assert Waiting(lambda: other._client.close(100.0 * END_S)).ended() is None
    assert (len(held), theirs.body) == (2, b"10")
    running.start()
    with warren.attach(running.directory) as fresh:
        found = fresh.queue("q").get_many(100, timeout=END_S)
        assert sorted(int(message.body) for message in found if message.body.isdigit()) == list(range(20))


def test_what_was_released_to_nobody_is_others_when_the_node_is_back(running: RealNode) -> None:
    """Who released it lives on, and does nothing more."""
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        queue.put_many([b"%d" % n for n in range(10)])
        messages = queue.consume(prefetch=10)
        held = next(messages)
        wait_until(lambda: queue._handle.pending == 9)
        running.kill_all()
        assert Waiting(messages.close).ended() is None  # type: ignore[attr-defined]
        running.start()
        with warren.attach(running.directory) as other:
            theirs = other.queue("q")
            found: list[bytes] = []
            wait_until(
                lambda: found.extend(one.body for one in theirs.get_many(10, timeout=1)) or len(found) == 9, END_S
            )
            assert found == [b"%d" % n for n in range(1, 10)]
        assert held.body == b"0"


def test_asyncio_leaves_a_dead_node_at_once(running: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLOSE_WAIT_S", 100.0 * END_S)
    monkeypatch.setattr(trouble, "ABANDONED_S", 100.0 * END_S)

    async def work(node: warren.aio.Node) -> object:
        queue = await node.queue("q")
        await queue.put_many([b"1", b"2", b"3"])
        async with queue.consume(prefetch=10) as messages:
            found = (await anext(messages)).body
            await asyncio.to_thread(running.kill_all)
        return found

    assert Waiting(lambda: seen(running, work)).ended() == b"1"


def test_the_end_of_a_process_waits_for_no_dead_node(running: RealNode) -> None:
    """It holds a message, and has submitted one that nobody confirms."""
    program = (
        "import os, signal, sys, warren\n"
        "from warren.workers.client import client, trouble\n"
        f"client.CLOSE_WAIT_S = client.GIVE_BACK_S = trouble.ABANDONED_S = {100.0 * END_S}\n"
        "client.Client.close.__defaults__ = (client.CLOSE_WAIT_S,)\n"
        "node = warren.attach(sys.argv[1])\n"
        "queue = node.queue('q')\n"
        "queue.put_many([b'1', b'2'])\n"
        "message = queue.get(timeout=60)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "queue.put(b'submitted', wait=False)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(running.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        running.kill_all()
        process.stdin.write("go\n")
        process.stdin.close()
        assert process.wait(END_S * patience()) == 0


# ---- "none" is the word of a worker that looked ---------------------------------------------------------------------


def test_a_worker_that_stands_still_says_nothing(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        queue, empty, used = node.queue("q"), node.queue("empty"), node.queue("used")
        tasks, exact = node.work_queue("q"), node.queue("exact")
        queue.put(b"x")
        used.put_many([b"1", b"2"])
        consuming = used.consume(prefetch=1, timeout=0.5)
        held = next(consuming)
        asking = Waiting(lambda: empty.get(timeout=3.0))
        wait_until(lambda: empty.stats()["consumers"] == 1)
        with frozen(running):
            held.ack()
            calls: dict[str, Call] = {
                "get": lambda: queue.get(timeout=0.1),
                "exact": lambda: exact.get(timeout=0.1, ahead=False),
                "many": lambda: queue.get_many(10, timeout=0.3),
                "work": lambda: tasks.get(timeout=0.1),
                "consume": lambda: list(queue.consume(timeout=0.1)),
                "consume that goes on": lambda: next(consuming),
                "shortest": lambda: queue.get(timeout=1e-9),
            }
            for name, call in calls.items():
                error = Waiting(call).ended()
                assert type(error) is warren.TimedOut, (name, error)
                assert "call again" in str(error), name
            assert type(asking.ended()) is warren.TimedOut, "the worker had looked, and stands still now"
        assert queue.get(timeout=END_S).body == b"x"
        with pytest.raises(warren.QueueEmpty):
            empty.get(timeout=0.1)


def test_threads_that_share_a_queue_are_told_the_same(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        waiting = Waiting(queue.get)
        wait_until(lambda: queue.stats()["consumers"] == 1)
        assert type(Waiting(lambda: queue.get(timeout=0.05)).ended()) is warren.QueueEmpty
        with frozen(running):
            assert type(Waiting(lambda: queue.get(timeout=0.05)).ended()) is warren.TimedOut
        queue.put(b"x")
        message = waiting.ended()
        assert isinstance(message, warren.Message), message


def test_a_worker_that_is_being_restarted_says_nothing(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        queue, empty = node.queue("q"), node.queue("empty")
        queue.put(b"x")
        asking = Waiting(lambda: empty.get(timeout=1.0))
        wait_until(lambda: empty.stats()["consumers"] == 1)
        pids = running.pids()
        os.kill(pids["supervisor"], signal.SIGSTOP)  # so that it takes long
        try:
            kill(pids["worker-0"])
            for call in (
                lambda: queue.get(timeout=0.1),
                lambda: queue.get_many(timeout=0.1),
                lambda: list(queue.consume(timeout=0.1)),
            ):
                error = Waiting(call).ended()
                assert isinstance(error, warren.PeerLost), error
                assert "is being restarted" in str(error)
            assert isinstance(asking.ended(), warren.PeerLost)
        finally:
            os.kill(pids["supervisor"], signal.SIGCONT)
        assert queue.get(timeout=10 * END_S).body == b"x"


def test_asyncio_takes_no_silence_for_an_answer(running: RealNode) -> None:
    async def work(node: warren.aio.Node) -> object:
        queue, empty, shared = [await node.queue(name) for name in ("q", "empty", "shared")]
        await queue.put(b"x")
        endless = asyncio.ensure_future(shared.get())
        asking = asyncio.ensure_future(empty.get(timeout=3.0))
        with warren.attach(running.directory) as other:
            for name in ("empty", "shared"):
                await asyncio.to_thread(wait_until, lambda: other.queue(name).stats()["consumers"] == 1)  # noqa: B023
        with pytest.raises(warren.QueueEmpty):
            await shared.get(timeout=0.05)
        found: list[object] = []
        with frozen(running):
            for call in (
                queue.get(timeout=0.001),
                queue.get(timeout=0.3),
                queue.get_many(timeout=0.1),
                shared.get(timeout=0.1),
                anext(queue.consume(10, 0.1)),
                asking,
            ):
                found += await asyncio.gather(asyncio.wait_for(call, END_S * patience()), return_exceptions=True)
        body = (await queue.get(timeout=END_S)).body
        with pytest.raises(warren.QueueEmpty):
            await empty.get(timeout=0.1)
        with pytest.raises(StopAsyncIteration):
            await anext(empty.consume(10, 0.1))
        await shared.put(b"y")
        return [type(error) for error in found], body, (await endless).body

    assert seen(running, work) == ([warren.TimedOut] * 6, b"x", b"y")


def test_a_look_of_asyncio_waits_for_the_worker_too(running: RealNode) -> None:
    """As in the blocking face: with a timeout of 0 for call_timeout, and what was confirmed is found."""

    async def work(node: warren.aio.Node) -> object:
        queue = await node.queue("q")
        await queue.put(b"x")
        with frozen(running):
            looking = asyncio.ensure_future(queue.get(timeout=0))
            done, _pending = await asyncio.wait([looking], timeout=1.5)
            assert not done, "the worker has not answered"
        return (await asyncio.wait_for(looking, END_S * patience())).body

    assert seen(running, work) == b"x"


def test_short_looks_of_a_loop_are_all_answered(running: RealNode) -> None:
    """The worker has time to answer, however short the timeout: no look of a loop fails on a machine that is busy."""
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        for _look in range(50):
            with pytest.raises(warren.QueueEmpty):
                queue.get(timeout=1e-6)
            assert queue.get_many(10, timeout=1e-6) == []
        queue.put(b"x")
        assert queue.get(timeout=1e-6).body == b"x"


# ---- acks of a node that is not there any more ----------------------------------------------------------------------


def settlings(queue: warren.Queue) -> list[tuple[str, Callable[[warren.Message], object]]]:
    return [
        ("ack", lambda message: message.ack()),
        ("ack up to", lambda message: message.ack(multiple=True)),
        ("nack", lambda message: message.nack()),
        ("reject", lambda message: message.reject()),
        ("batch ack", lambda message: queue.ack([message])),
        ("batch nack", lambda message: queue.nack([message])),
    ]


@pytest.mark.parametrize("again", [False, True])
def test_what_a_stopped_node_delivered_is_not_settled(running: RealNode, again: bool) -> None:
    with warren.attach(running.directory) as node:
        queue, tasks = node.queue("q"), node.work_queue("work")
        ways = settlings(queue)
        bodies = [b"%d" % n for n in range(len(ways))]
        queue.put_many(bodies)
        tasks.put(b"item")
        held = queue.get_many(len(ways), timeout=10, ahead=False)  # nothing lies ready, whose return would notice
        assert tasks.get(timeout=10, ahead=False) == b"item"
        running.stop()
        if again:
            running.start()
        for (name, settle), message in zip(ways, held, strict=True):
            error = outcome(lambda: settle(message))  # noqa: B023 - called here
            assert type(error) is warren.PeerLost, (name, error)
            assert "redelivered" in str(error), name
            assert not message.settled, name
        with pytest.raises(warren.PeerLost):
            tasks.task_done()
        if not again:
            running.start()
        found = queue.get_many(100, timeout=END_S)
        assert [message.body for message in found] == bodies
        assert all(message.redelivered for message in found)
        assert tasks.get(timeout=END_S) == b"item"


def test_asyncio_settles_nothing_of_a_stopped_node(running: RealNode) -> None:
    async def work(node: warren.aio.Node) -> object:
        queue = await node.queue("q")
        await queue.put_many([b"0", b"1", b"2"])
        held = [await queue.get(timeout=10) for _number in range(3)]
        handle = queue._underneath.handle  # nothing lies ready, whose return would notice
        await asyncio.to_thread(
            wait_until,
            lambda: not handle.hoard() and handle.still and queue._line.tidier is None and not node._loop._tasks,
            END_S,
        )
        await asyncio.to_thread(running.stop)
        found = await asyncio.gather(
            held[0].ack(), held[1].nack(), queue.ack(held[2:]), queue.nack(held[2:]), return_exceptions=True
        )
        await asyncio.to_thread(running.start)
        found += await asyncio.gather(held[0].ack(), queue.ack(held[1:]), return_exceptions=True)
        again: list[bytes] = []
        while len(again) < 3:
            again += [message.body for message in await queue.get_many(10, timeout=END_S)]
        return [type(error) for error in found], again

    assert seen(running, work) == ([warren.PeerLost] * 6, [b"0", b"1", b"2"])


def test_an_ack_is_refused_when_its_worker_has_ended(running: RealNode) -> None:
    """The node is being stopped, and the worker has done its last work: nobody reads what is submitted to it."""
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        queue.put(b"x")
        message = queue.get(timeout=10)
        supervisor, store = (running.pids()[role] for role in ("supervisor", "store"))
        superblock = node._client.attachment().superblock
        os.kill(store, signal.SIGSTOP)  # the node cannot end without it
        try:
            os.kill(supervisor, signal.SIGTERM)
            wait_until(lambda: superblock.server_get(2, "state") == CONSTANTS["SERVER_DOWN"], END_S)
            assert superblock.state == CONSTANTS["NODE_DRAINING"]
            with pytest.raises(warren.PeerLost, match="redelivered"):
                message.ack()
        finally:
            os.kill(store, signal.SIGCONT)


def test_claims_are_acked_at_the_node_of_now(running: RealNode) -> None:
    """A subscription belongs to nobody: its ack is answered, by whichever node there is."""
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        queue.put_many([b"0", b"1"])
        claims = queue.subscription("s")
        assert claims.claim(10) == (0, 2)
        anew(running)
        assert claims.ack(1) == 1
        assert claims.range() == (1, 2)
        running.stop()
        with pytest.raises((warren.ClosedError, warren.NodeNotRunning)):
            claims.ack(2)
        running.start()
        assert claims.ack(2) == 1
