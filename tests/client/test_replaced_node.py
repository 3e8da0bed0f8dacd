"""Goal: a client whose node was killed finds the node that is in its directory's place then, by every kind of call, and
is told that what it held, or had not confirmed, is gone; it never waits for a node that nobody starts again.

Method: a real node with queues, a topic and a store; a copy of it after a clean stop. It runs on, all its processes
are killed at once, its directory is moved away, the copy put in its place and started, while clients are attached: of
each another kind of call is the first that it makes then, with a timeout and without one, in threads that are joined.
The same of calls that wait already, of event loops, and with a new and empty directory.
"""

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import warren
import warren.aio

from support.real_node import RealNode
from support.waiting import patience

pytestmark = [pytest.mark.integration, pytest.mark.crash]

END_S = 60


def ended(call: Callable[[], object]) -> object:
    """The result or the exception of a call, which must end in time."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - handed to the test
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(END_S * patience())
    assert found, "it waits forever"
    return found[0]


class Place:
    """A directory whose node is replaced by an older copy of it, which has two messages in each queue, and a record."""

    def __init__(self, place: Path, queues: Iterable[str]) -> None:
        self.directory = place / "node"
        self.copy = place / "copy"
        with RealNode(self.directory, workers=1), warren.attach(self.directory) as node:
            for queue in queues:
                node.queue(queue).put_many(OLD)
            node.topic("t").append(b"record", timeout=END_S)
        shutil.copytree(self.directory, self.copy)
        self.node = RealNode(self.directory, workers=1)
        self.node.start()

    def kill(self) -> None:
        """Killed whole, and moved away."""
        self.node.kill_all()
        self.directory.rename(self.directory.with_name("moved"))

    def replace(self) -> None:
        """The older copy is there and runs."""
        self.kill()
        shutil.copytree(self.copy, self.directory)
        self.node.start()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, [*FIRST, "q"])
    yield made
    made.node.stop()


class Before:
    """A client of before with all that it may hold; the records that it has read are not in the copy."""

    def __init__(self, directory: Path, name: str) -> None:
        self.node = warren.attach(directory)
        self.queue = self.node.queue(name)
        self.topic = self.node.topic("t")
        self.store = self.node.store()
        self.id = self.store.new_id()
        self.store.write(self.id, b"body")
        self.held = [self.queue.get(timeout=END_S) for _message in OLD]
        self.topic.append(b"later", timeout=END_S)
        self.reader = self.topic.reader(name.replace(" ", "_"), commit="manual")
        self.records = self.reader.get_many(100, timeout=END_S)
        self.half = self.topic.prepare(b"half", timeout=END_S)


OLD = [b"old-1", b"old-2"]
#: what a client may call first, each with whether it has to end in an error, because it is about what is gone
FIRST: dict[str, tuple[Callable[[Before], object], bool]] = {
    "put": (lambda at: at.queue.put(b"new"), False),
    "put within": (lambda at: at.queue.put(b"new", timeout=END_S), False),
    "get": (lambda at: at.queue.get(timeout=END_S).body, False),
    "append": (lambda at: at.topic.append(b"new"), False),
    "append within": (lambda at: at.topic.append(b"new", timeout=END_S), False),
    "read": (lambda at: at.topic.read(0, 0, 10), False),
    "store": (lambda at: at.store.write(at.store.new_id(), b"x"), False),
    "barrier": (lambda at: at.store.barrier(), False),
    "declare": (lambda at: at.node.queue("another"), False),
    "stats": (lambda at: at.queue.stats(), False),
    "commit": (lambda at: at.reader.commit(), True),
    "finish half": (lambda at: at.half.commit(), True),
    "ack": (lambda at: at.held[0].ack(), True),
}


def test_clients_of_before_find_the_node_that_is_there(place: Place) -> None:
    clients = {first: Before(place.directory, first) for first in FIRST}
    place.replace()
    for first, (call, is_gone) in FIRST.items():
        at = clients[first]
        found = ended(lambda call=call, at=at: call(at))  # type: ignore[misc]
        if not is_gone and isinstance(found, warren.PeerLost | warren.ClosedError):  # it was told once, and tries again
            found = ended(lambda call=call, at=at: call(at))  # type: ignore[misc]
        assert isinstance(found, warren.Error if is_gone else object), (first, found)
        assert is_gone or not isinstance(found, Exception), (first, found)
        for message in at.held:
            lost = ended(message.ack)
            assert isinstance(lost, warren.PeerLost | warren.UsageError if first == "ack" else warren.PeerLost), lost
        bodies = [at.queue.get(timeout=END_S).body for _message in OLD if _message != found]
        assert set(OLD) <= {*bodies, *([found] if first == "get" else [])}, first  # type: ignore[list-item]
        assert ended(lambda at=at: at.queue.put(b"last")) is None, first  # type: ignore[misc]
        at.node.close()


def test_who_waits_while_the_node_is_replaced(place: Place) -> None:
    """Calls that are waiting already: one without a timeout ends at the new node, or raises that its outcome is not
    known."""
    node = warren.attach(place.directory)
    queue, topic = node.queue("empty"), node.topic("t")
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: queue.get(timeout=10 * END_S),
        "append": lambda: topic.append(b"again"),
    }
    found: dict[str, object] = {}
    place.kill()
    threads = []
    for name, call in calls.items():

        def run(name: str = name, call: Callable[[], object] = call) -> None:
            try:
                found[name] = call()
            except Exception as error:  # noqa: BLE001 - handed to the test
                found[name] = error

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
    shutil.copytree(place.copy, place.directory)
    place.node.start()
    with warren.attach(place.directory) as other:
        other.queue("empty").put(b"for whoever waits")
    for thread in threads:
        thread.join(END_S * patience())
    assert set(found) == set(calls)
    for name, what in found.items():
        if isinstance(what, Exception):
            assert isinstance(what, warren.Error), (name, what)
    node.close()


def test_event_loops_find_it_too(place: Place) -> None:
    async def run() -> None:
        async with await warren.aio.attach(place.directory) as node:
            queue = await node.queue("q")
            held = await queue.get(timeout=END_S)
            await asyncio.to_thread(place.replace)
            for _turn in range(2):
                try:
                    await asyncio.wait_for(queue.put(b"new"), END_S * patience())
                except warren.PeerLost:
                    continue
                break
            else:
                raise AssertionError("the second call found no node, either")
            with pytest.raises(warren.PeerLost):
                await held.ack()
            assert (await queue.get(timeout=END_S)).body == b"old-1"

    asyncio.run(run())


def test_a_new_and_empty_directory_in_its_place(place: Place) -> None:
    node = warren.attach(place.directory)
    queue = node.queue("q")
    place.kill()
    place.node.start()
    found = [ended(lambda: queue.put(b"new")) for _turn in range(2)]
    assert isinstance(found[1], warren.QueueNotFound), found
    assert ended(lambda: node.queue("q").put(b"new")) is None
    node.close()
