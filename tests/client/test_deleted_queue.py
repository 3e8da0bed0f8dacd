"""Goal: whoever waits for a queue that goes is told so, in every face and by whatever way it goes; nobody sleeps on.

Method: a real node. Each call waits on a queue of its own, in threads (or a loop) without a timeout; then all queues go
in one way, and every call has to end, with what the table of docs/design/007-waiting.md says. A call that never ends
fails the test by its join.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import warren
import warren.aio
from warren.engine import _core
from warren.engine.errors import ResourceLocked
from warren.engine.queues.control import Counts, Stats
from warren.ipc.layout import CONSTANTS, SERVER_WORKER_FIRST
from warren.workers.faces.message import Message

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

#: how long a call may take to end in a test; a call that sleeps on would take for ever
END_S = 20
Call = Callable[[], object]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("node") / "data") as started:
        yield started


@pytest.fixture(autouse=True)
def nobody_died(running: RealNode) -> Iterator[None]:
    """A worker that dies over a deletion would end the waiting, too."""
    before = running.pids()
    yield
    logs = [path.read_text()[-2000:] for path in sorted((running.directory / "log").glob("worker-*.log"))]
    assert running.pids() == before, logs


class Waiting:
    """A call in a thread, and what came of it."""

    def __init__(self, call: Call) -> None:
        self.outcome: object = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._call()
        except Exception as error:  # noqa: BLE001 - handed to the test
            self.outcome = error

    def ended(self) -> object:
        """The outcome, an exception by its class; "waits" when there is none in time."""
        self._thread.join(END_S)
        if self._thread.is_alive():
            return "waits"
        return type(self.outcome) if isinstance(self.outcome, Exception) else self.outcome


# ---- calls: each prepares its queue, and returns what waits for it --------------------------------------------------


def get(node: warren.Node, name: str, **arguments: Any) -> Call:
    return node.queue(name, **arguments).get


def get_many(node: warren.Node, name: str, **arguments: Any) -> Call:
    return node.queue(name, **arguments).get_many


def get_again_and_again(node: warren.Node, name: str, **arguments: Any) -> Call:
    """Polls: no call of them waits for long."""
    queue = node.queue(name, **arguments)

    def call() -> object:
        while True:
            try:
                return queue.get(timeout=0)
            except warren.QueueEmpty:
                continue

    return call


def consume(node: warren.Node, name: str, **arguments: Any) -> Call:
    messages = node.queue(name, **arguments).consume()
    return lambda: next(messages)


def consume_with_all_in_hand(node: warren.Node, name: str, **arguments: Any) -> Call:
    """As many as the prefetch allows are held: nothing can come before an ack."""
    queue = node.queue(name, **arguments)
    queue.put_many([b"held", b"never"])
    messages = queue.consume(prefetch=1)
    held = next(messages)
    return lambda: (next(messages), held)


def work_get(node: warren.Node, name: str, **arguments: Any) -> Call:
    return node.work_queue(name, **arguments).get


def work_join(node: warren.Node, name: str, **arguments: Any) -> Call:
    tasks = node.work_queue(name, **arguments)
    tasks.put(b"never done")
    return tasks.join


def work_put(node: warren.Node, name: str, **arguments: Any) -> Call:
    """It waits for a place."""
    tasks = node.work_queue(name, maxsize=1, **arguments)
    tasks.put(b"in its place")
    return lambda: tasks.put(b"another")


CALLS = (get, get_many, get_again_and_again, consume, consume_with_all_in_hand, work_get, work_join, work_put)
#: those that do not count as consumers of an auto_delete queue, or as use of one that expires
NO_CONSUMERS = (get, get_many, work_get, work_join, work_put)
NO_USE = (work_join, work_put)


def begin(node: warren.Node, calls: tuple[Any, ...], threads: int = 2, **arguments: Any) -> dict[str, list[Waiting]]:
    """Every call on a queue of its own, in several threads; they wait when this returns."""
    mark = uuid4().hex[:8]
    waiting = {}
    for make in calls:
        name = f"{make.__name__}-{mark}"
        call = make(node, name, **arguments)
        waiting[name] = [
            Waiting(call) for _thread in range(1 if make in (consume, consume_with_all_in_hand) else threads)
        ]
    for name in waiting:
        if name.startswith(("get", "consume-", "work_get")):
            wait_until(lambda name=name: node.queue(name, create=False).stats()["consumers"], what=name)  # type: ignore[misc]
    return waiting


def outcomes(waiting: dict[str, list[Waiting]]) -> dict[str, list[object]]:
    return {name.rpartition("-")[0]: [one.ended() for one in threads] for name, threads in waiting.items()}


def all_of(outcome: object, waiting: dict[str, list[Waiting]]) -> dict[str, list[object]]:
    return {name.rpartition("-")[0]: [outcome] * len(threads) for name, threads in waiting.items()}


# ---- the ways a queue goes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("by", ["another client", "the same client"])
def test_deleted(running: RealNode, by: str, durable: bool) -> None:
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        waiting = begin(node, CALLS, durable=durable)
        for name in waiting:
            (other if by == "another client" else node).delete_queue(name)
        assert outcomes(waiting) == all_of(warren.QueueNotFound, waiting)


def test_auto_delete(running: RealNode) -> None:
    """Its last consumer leaves; those who get without being consumers are told."""
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        waiting = begin(node, NO_CONSUMERS, auto_delete=True)
        consumers = []
        for name in waiting:
            queue = other.queue(name, create=False)
            consumers.append(queue.consume(prefetch=1, timeout=0 if name.startswith(("get", "work_get")) else END_S))
            held = list(consumers[-1]) if name.startswith(("get", "work_get")) else [next(consumers[-1])]
            if name.startswith("work_put"):  # a place counts what nobody has got: exactly one of the two has it now
                assert [message.body for message in held] == [b"in its place"]
                wait_until(lambda queue=queue: queue._ask(Stats, Counts)["ready"] == 1, what="one put took the place")  # type: ignore[misc]
        for consumer in consumers:
            consumer.close()  # type: ignore[attr-defined]
        other.close()
        found = outcomes(waiting)
        (putting,) = (name for name in found if name.startswith("work_put"))
        assert sorted(found.pop(putting), key=str) == sorted([None, warren.QueueNotFound], key=str)
        assert found == {name: all_of(warren.QueueNotFound, waiting)[name] for name in found}


def test_expires(running: RealNode) -> None:
    """Who gets or consumes uses it; who waits for others to do something does not."""
    with warren.attach(running.directory) as node:
        waiting = begin(node, NO_USE, expires=0.5)
        used = begin(node, (get,), expires=0.5)
        assert outcomes(waiting) == all_of(warren.QueueNotFound, waiting)
        (name,) = used
        assert name in node.queues(), "somebody waits in it"
        node.queue(name, create=False).put_many([b"x", b"y"])
        assert [type(one) for one in outcomes(used)["get"]] == [Message, Message]


def test_exclusive_when_the_attachment_of_its_owner_has_ended(running: RealNode) -> None:
    """The client lives on with another attachment, to which the queue does not belong."""
    with warren.attach(running.directory) as node:
        waiting = begin(node, tuple(call for call in CALLS if call is not work_put), exclusive=True)
        putting = begin(node, (work_put,), exclusive=True)
        node._client.attachment().lose()
        assert outcomes(waiting) == all_of(warren.QueueNotFound, waiting)
        # PeerLost: it waited for a confirm at that moment
        assert set(outcomes(putting)["work_put"]) <= {warren.QueueNotFound, warren.PeerLost}


# ---- the name is another queue's now ---------------------------------------------------------------------------------


def test_declared_anew(running: RealNode) -> None:
    """A Queue is a name: who waits goes on with the new queue of that name."""
    calls = (get, get_many, get_again_and_again, consume, consume_with_all_in_hand, work_get)
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        waiting = begin(node, calls, threads=1)
        with node._client._lock:  # nobody looks between the two
            for name in waiting:
                other.delete_queue(name)
                other.queue(name).put(b"new")
        for name, (one,) in waiting.items():
            got: Any = one.ended()
            assert got != "waits", name
            first = got[0] if isinstance(got, (list, tuple)) else got
            assert getattr(first, "body", first) == b"new", name


def test_declared_anew_as_another_clients_own(running: RealNode) -> None:
    """What is exclusive to somebody else by now is not taken from."""
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        waiting = begin(node, (get, consume, work_get))
        with node._client._lock:  # nobody looks between the two
            for name in waiting:
                other.delete_queue(name)
                other.queue(name, exclusive=True).put(b"its own")
        assert outcomes(waiting) == all_of(ResourceLocked, waiting)
        assert [other.queue(name, exclusive=True).depth() for name in waiting] == [1, 1, 1]


def test_a_timeout_is_kept_though_the_queue_is_declared_anew_again_and_again(running: RealNode) -> None:
    name = uuid4().hex
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        queue = node.queue(name)
        waiting = [Waiting(lambda: queue.get(timeout=1.5)), Waiting(lambda: list(queue.consume(timeout=1.5)))]
        waiting.append(Waiting(lambda: queue.get_many(timeout=1.5)))
        ended = threading.Event()

        def churn() -> None:
            while not ended.is_set():
                other.delete_queue(name)
                other.queue(name)

        churning = threading.Thread(target=churn)
        churning.start()
        try:
            # QueueNotFound when it looked between a deletion and the next declaration
            assert all(
                one.ended() in (warren.QueueEmpty, warren.QueueNotFound, []) or one.ended() == [] for one in waiting
            )
        finally:
            ended.set()
            churning.join()


def test_a_handle_that_is_made_while_its_queue_goes_is_not_waited_with(running: RealNode) -> None:
    """The catalog is read between the look at the declaration and the making of the handle."""
    name = uuid4().hex
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        node.queue(name)
        declaration = node._client.router().catalog.queue(name)
        other.delete_queue(name)
        node._client.router()
        handle = node._client.handle(declaration, object(), Message)
        with pytest.raises(_core.AttachmentLost, match="deleted"):
            handle.get(END_S)


def test_every_handle_of_a_queue_is_told(running: RealNode) -> None:
    """A queue may have several in a client, of several owners; the last one made is not the only one that waits."""
    name = uuid4().hex
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        queue = node.queue(name)
        first = queue._handle
        second = node._client.handle(queue._declaration, object(), Message)
        assert first is not second
        other.delete_queue(name)
        node._client.router()
        assert not first.usable
        assert not second.usable


# ---- publishers ------------------------------------------------------------------------------------------------------


def fill(queue: warren.Queue) -> warren.Confirm | None:
    """Put until there is no room; the last Confirm."""
    last = None
    while True:
        try:
            last = queue.put(b"x", wait=False, timeout=0)
        except warren.TimedOut:
            return last


def test_publishers_to_a_queue_that_goes_while_its_worker_stands_still(running: RealNode) -> None:
    """Who waits for room is told at once; who waits for a confirm when the worker has answered."""
    name = uuid4().hex
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        queue = node.queue(name)
        worker = running.pids()[f"worker-{queue._server - SERVER_WORKER_FIRST}"]
        os.kill(worker, signal.SIGSTOP)
        try:
            first = queue.put(b"x", wait=False)
            assert first is not None
            future = first.future()
            confirmed = Waiting(lambda: other.queue(name).put(b"y"))
            last = fill(queue)
            room = [Waiting(lambda: queue.put(b"z")), Waiting(lambda: node.publish(b"z", "", name, mandatory=True))]
            room.append(Waiting(lambda: queue.put_many([b"z", b"z"])))
            wait_until(lambda: node._client.core.busy > len(room), what="they, and the thread of the future")
            with warren.attach(running.directory) as third:
                third.delete_queue(name)
            assert [one.ended() for one in room] == [warren.QueueNotFound, warren.Unroutable, warren.QueueNotFound]
        finally:
            os.kill(worker, signal.SIGCONT)
        # The worker executes what was submitted before it hears of the deletion, or after it.
        assert confirmed.ended() in (None, warren.QueueNotFound)
        assert type(future.exception(END_S)) in (type(None), warren.QueueNotFound)
        assert last is not None
        assert type(last.exception(END_S)) in (type(None), warren.QueueNotFound)
        for put in (lambda: queue.put(b"x"), lambda: queue.put(b"x", wait=False), lambda: queue.put_many([b"x"])):
            with pytest.raises(warren.QueueNotFound):
                put()


def test_a_publisher_who_waits_for_the_end_of_an_alarm(running: RealNode) -> None:
    name = uuid4().hex
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        queue = node.queue(name)
        superblock = node._client.attachment().superblock
        superblock.set("alarms", superblock.get("alarms") | CONSTANTS["ALARM_MEMORY"])
        waiting = Waiting(lambda: queue.put(b"x"))
        other.delete_queue(name)
        assert waiting.ended() == warren.QueueNotFound
        wait_until(lambda: not superblock.get("alarms"), 20, what="the supervisor ends the alarm")


# ---- what does not wait ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True])
def test_questions_and_claims(running: RealNode, stopped: bool) -> None:
    """Also when the workers have not heard of it: they stand still."""
    workers = [pid for role, pid in running.pids().items() if role.startswith("worker-")]
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        names = [uuid4().hex for _call in range(9)]
        queues = [node.queue(name) for name in names]
        claims = [queue.subscription("s") for queue in queues[5:]]
        calls: list[Call] = [
            queues[0].stats,
            queues[1].purge,
            queues[2].browse,
            lambda: queues[3].bind("amq.topic", "a"),
            lambda: list(queues[4].browse_arrow()),
            lambda: claims[0].claim(1),
            claims[1].range,
            lambda: claims[2].read(0, 1),
            lambda: claims[3].ack(1),
        ]
        try:
            for pid in workers if stopped else []:
                os.kill(pid, signal.SIGSTOP)
            for name in names:
                other.delete_queue(name)
            for call in calls:
                with pytest.raises((warren.QueueNotFound, warren.ExchangeNotFound)):
                    call()
        finally:
            for pid in workers if stopped else []:
                os.kill(pid, signal.SIGCONT)


def test_large_messages_that_lie_here(running: RealNode) -> None:
    """What was delivered ahead and went with its queue is not handed out, and not taken for damaged."""
    name = uuid4().hex
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        queue = node.queue(name)
        queue.put_many([b"%d" % n * 10_000 for n in range(20)])
        messages = queue.consume(prefetch=10)
        held = next(messages)
        wait_until(lambda: queue._handle.pending or queue._handle.unacked)
        other.delete_queue(name)
        with pytest.raises(warren.QueueNotFound):
            list(messages)
        held.ack()


# ---- asyncio ---------------------------------------------------------------------------------------------------------


async def _all_in_hand(queue: warren.aio.Queue) -> object:
    await queue.put_many([b"held", b"never"])
    async with queue.consume(prefetch=1) as messages:
        held = [await anext(messages)]
        held.append(await anext(messages))
        return held


async def _polls(queue: warren.aio.Queue) -> object:
    while True:
        try:
            return await queue.get(timeout=0)
        except warren.QueueEmpty:
            continue


AWAITED: dict[str, Callable[[warren.aio.Queue], Awaitable[object]]] = {
    "get": lambda queue: queue.get(),
    "get_many": lambda queue: queue.get_many(),
    "consume": lambda queue: anext(queue.consume()),
    "all in hand": _all_in_hand,
    "polls": _polls,
}


@pytest.mark.parametrize("by", ["another client", "the same client", "exclusive"])
def test_asyncio(running: RealNode, by: str) -> None:
    mark = uuid4().hex[:8]
    arguments = {"exclusive": True} if by == "exclusive" else {}

    async def main() -> dict[str, object]:
        async with warren.aio.attach(running.directory) as node:
            queues = {name: await node.queue(f"{name.replace(' ', '-')}-{mark}", **arguments) for name in AWAITED}
            tasks = {name: asyncio.ensure_future(call(queues[name])) for name, call in AWAITED.items()}
            for queue in queues.values():
                while not (await queue.stats())["consumers"]:  # the limit of the loop bounds it
                    await asyncio.sleep(0)
            if by == "exclusive":
                node._loop.client.attachment().lose()
            for queue in queues.values():
                if by == "the same client":
                    await queue.delete()
                elif by == "another client":
                    await asyncio.to_thread(_delete, running.directory, queue.name)
            done, _waiting = await asyncio.wait(tasks.values(), timeout=END_S)
            found = {name: type(task.exception()) if task in done else "waits" for name, task in tasks.items()}
            for task in tasks.values():
                task.cancel()
            return found

    assert asyncio.run(asyncio.wait_for(main(), 3 * END_S)) == dict.fromkeys(AWAITED, warren.QueueNotFound)


def _delete(directory: Path, name: str) -> None:
    with warren.attach(directory) as other:
        other.delete_queue(name)
