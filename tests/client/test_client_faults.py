"""Goal: whatever dies, a client never hangs, loses nothing confirmed, and goes on. Method: kill parts of a node."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren.ipc.layout import CONSTANTS, SERVER_WORKER_FIRST
from warren.ipc.region import RegionError

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.crash]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data") as node:
        yield node


def worker_of(queue: warren.Queue) -> str:
    return f"worker-{queue._declaration.worker}"


def everything(queue: warren.Queue) -> list[bytes]:
    """All bodies of a queue, acked."""
    found = []
    while part := queue.get_many(1000, timeout=1.0):
        found += [message.body for message in part]
        queue.ack(part)
    return found


def test_a_killed_worker_loses_and_doubles_nothing(running: RealNode) -> None:
    """Publish single and in batches while the worker is killed again and again: each message is there once."""
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        done = threading.Event()
        sent = 0

        def publish() -> None:
            nonlocal sent
            with warren.attach(running.directory) as mine:
                target = mine.queue("q")
                while not done.is_set():
                    target.put(b"%d" % sent, timeout=20)
                    target.put_many([b"%d" % n for n in range(sent + 1, sent + 50)], timeout=20)
                    sent += 50

        thread = threading.Thread(target=publish)
        thread.start()
        for _ in range(3):
            before = sent
            running.kill(worker_of(queue))
            wait_until(lambda before=before: sent > before, 10, what="publishing to go on")  # type: ignore[misc]
        done.set()
        thread.join(30)
        assert not thread.is_alive()
        assert everything(queue) == [b"%d" % n for n in range(sent)]


@pytest.mark.parametrize("durable", [True, False])
def test_a_consumer_lives_through_its_worker(running: RealNode, durable: bool) -> None:
    with warren.attach(running.directory) as node:
        queue = node.queue("q", durable=durable)
        queue.put_many([b"%d" % n for n in range(100)])
        iterator = queue.consume(prefetch=20, timeout=10)
        held = [next(iterator) for _ in range(10)]
        running.kill(worker_of(queue))
        for message in held[:5]:
            message.ack()
        if not durable:
            queue.put(b"after")  # what was transient went with the worker
            assert next(iterator).body == b"after"
            iterator.close()  # type: ignore[attr-defined]
            return
        for number in range(10, 100):
            message = next(iterator)
            assert int(message.body) == number
            message.ack()
        held[5].nack()
        again = next(iterator)
        assert (again.body, again.redelivered) == (b"5", True)
        queue.ack([*held[6:], again])
        iterator.close()  # type: ignore[attr-defined]
        wait_until(lambda: queue.stats()["unacked"] == 0)
        assert queue.depth() == 0


def test_a_waiting_get_survives_its_worker(running: RealNode) -> None:
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        queue = node.queue("q")
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.append(queue.get(timeout=20).body))
        thread.start()
        wait_until(lambda: queue.stats()["consumers"] == 1)
        running.kill(worker_of(queue))
        other.queue("q").put(b"x")
        thread.join(20)
        assert found == [b"x"]


def test_a_killed_store_loses_nothing(running: RealNode) -> None:
    """Large bodies and the store API, while the store server is killed."""
    with warren.attach(running.directory) as node:
        queue, store = node.queue("q"), node.store()
        ids: list[bytes] = []
        bodies: list[bytes] = []
        for _round in range(3):
            fresh = [store.new_id() for _ in range(20)]
            texts = [os.urandom(9000) for _ in fresh]
            confirm = store.write_many(fresh, texts, wait=False)
            queue.put_many(texts, wait=False)
            running.kill("store")
            assert confirm is not None
            confirm.wait(20)
            ids += fresh
            bodies += texts
            assert store.read_many(ids) == bodies
        assert everything(queue) == bodies
        store.remove(ids)
        store.barrier(timeout=20)
        assert not any(store.read_many(ids))


def test_a_killed_supervisor_is_not_noticed(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        os.kill(running.pids()["supervisor"], signal.SIGKILL)
        queue.put(b"x", timeout=60)  # no other one is started before somebody needs it
        assert queue.get(timeout=60).body == b"x"
        node.queue("another").put(b"y", timeout=10)
        old = running.process
        pid = wait_until(lambda: node.ping()["pid"], 20)
        assert old is not None
        assert pid != old.pid
        node._client.control("stop")
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30, what="the node to end")


def test_a_stopped_node_and_its_successor(running: RealNode) -> None:
    node = warren.attach(running.directory)
    queue = node.queue("q")
    queue.put_many([b"0", b"1"])
    message = queue.get(timeout=5)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            node.queue("empty").get()
        except warren.Error as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: node.queue("empty").stats()["consumers"] == 1)
    running.stop()
    thread.join(10)
    assert [type(error) for error in caught] == [warren.ClosedError]
    for use in (lambda: queue.put(b"x", timeout=5), lambda: queue.get(timeout=1), node.status, queue.depth):
        with pytest.raises((warren.ClosedError, warren.NodeNotRunning)):
            use()
    running.start()
    queue.put(b"2", timeout=10)
    with pytest.raises(warren.PeerLost, match="redelivered"):
        message.ack()
    assert everything(queue) == [b"0", b"1", b"2"]
    node.close()


def test_when_all_are_killed_nobody_hangs_and_nothing_is_lost(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        queue.put_many([b"%d" % n for n in range(1000)])
        running.kill_all()
        with pytest.raises(warren.NodeNotRunning, match="warren up"):
            queue.put(b"1000")
        with pytest.raises(warren.PeerLost):
            queue.put(b"1001", timeout=0.2)
        running.start()
        assert everything(queue) == [b"%d" % n for n in range(1002)], "what was submitted was executed, once"


def test_a_stopped_worker_is_alive(running: RealNode) -> None:
    """SIGSTOP is not death: calls time out and say on what, and go on afterwards."""
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        pid = running.pids()[worker_of(queue)]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(warren.TimedOut, match="confirm"):
                queue.put(b"x", timeout=0.2)
            with pytest.raises(warren.TimedOut, match="whether there is a message"):
                queue.get(timeout=0.1)
            with pytest.raises(warren.TimedOut, match="kill -CONT"):
                queue.put_many([b"y" * 1000] * 5000, timeout=0.2)
            with pytest.raises(warren.TimedOut):
                queue.purge(timeout=0.1)
        finally:
            os.kill(pid, signal.SIGCONT)
        queue.put(b"z", timeout=10)
        found = everything(queue)
        assert found[0] == b"x"
        assert found[-1] == b"z"


@pytest.mark.parametrize(("alarm", "says"), [("DISK", "disk_free_bytes_min"), ("MEMORY", "memory_used_max")])
def test_an_alarm_blocks_publishers_only(running: RealNode, alarm: str, says: str) -> None:
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        queue.put(b"x")
        superblock = node._client.attachment().superblock
        supervisor = running.pids()["supervisor"]
        os.kill(supervisor, signal.SIGSTOP)  # it would clear the alarm
        try:
            superblock.set("shortages", CONSTANTS[f"SHORT_{alarm}"])
            superblock.set("alarms", CONSTANTS[f"ALARM_{alarm}"])
            for publish in (
                queue.put,
                lambda body, timeout: node.store().write(node.store().new_id(), body, timeout=timeout),
            ):
                with pytest.raises(warren.DiskFull if alarm == "DISK" else warren.TimedOut, match=says):
                    publish(b"y", timeout=0.1)  # type: ignore[operator]
            queue.get(timeout=5).ack()
            superblock.set("shortages", 0)
            superblock.set("alarms", 0)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        queue.put(b"y", timeout=5)


def test_a_client_that_writes_nonsense_harms_itself_only(running: RealNode) -> None:
    with warren.attach(running.directory) as node, warren.attach(running.directory) as other:
        queue = node.queue("q")
        queue.put(b"x")
        theirs = other.queue("q")
        attachment = node._client.attachment()
        links = 4096
        ring = links + -(-attachment.superblock.servers_n * 512 // 4096) * 4096
        server = SERVER_WORKER_FIRST + queue._declaration.worker
        records = attachment.superblock.get("ring_records")
        first = ring + server * records * 64
        attachment.region.buffer[first : first + 64 * records] = bytes([0xEE]) * (64 * records)
        tail = attachment.core.horizons(server)["tail"]
        attachment.region.buffer[links + server * 512 : links + server * 512 + 8] = (tail + 1).to_bytes(8, "little")
        attachment.superblock.ring(server)
        wait_until(lambda: attachment.core.evicted(server), what="the worker to close the link")
        with pytest.raises(warren.PeerLost, match=r"closed this client's link: .* \(EVICTED_OPERATION\)"):
            queue.put(b"y", timeout=5)
        theirs.put(b"others go on", timeout=5)
        queue.put(b"and so do we, with another attachment", timeout=5)
        assert len(everything(queue)) == 3


def test_no_memory_for_a_client(running: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_size: int, **_options: object) -> None:
        raise RegionError(12, "cannot make a System V segment")

    with warren.attach(running.directory) as node:
        slots = len(list(node._client.attachment().superblock.slots()))
        with monkeypatch.context() as patch:
            patch.setattr("warren.workers.client.attachment.sysv_create", refuse)
            with pytest.raises(warren.LimitError, match="arena_bytes"):
                warren.attach(running.directory)
        with warren.attach(running.directory):
            assert len(list(node._client.attachment().superblock.slots())) == slots + 1


def _hold(directory: Path, ready: "multiprocessing.synchronize.Event") -> None:
    node = warren.attach(directory)
    queue = node.queue("q")
    queue.get_many(5, timeout=10)
    iterator = queue.consume(prefetch=20, timeout=10)
    next(iterator)
    queue.put(b"submitted", wait=False)
    ready.set()
    signal.pause()


def test_a_killed_client_returns_what_it_held(running: RealNode) -> None:
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        queue.put_many([b"%d" % n for n in range(50)])
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        child = context.Process(target=_hold, args=(running.directory, ready))
        child.start()
        assert ready.wait(60)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(10)
        wait_until(lambda: queue.stats()["unacked"] == 0, 5)
        found = queue.get_many(100, timeout=5)
        assert [message.body for message in found] == [b"%d" % n for n in range(50)] + [b"submitted"]
        assert all(message.redelivered for message in found[:6])
        queue.ack(found)
        wait_until(lambda: str(child.pid) not in {str(client["pid"]) for client in node.status()["clients"]})
        child.close()


def test_a_backlog_is_read_from_files(tmp_path: Path) -> None:
    """More than the journal's images and files hold: bodies come from journal files and segments, whole, in order."""
    with (
        RealNode(tmp_path / "data", workers=1, journal_files_max=2, images_n=2) as running,
        warren.attach(running.directory) as node,
    ):
        queue = node.queue("q")
        bodies = [b"%06d" % n + bytes(n % 4000) for n in range(6000)]
        for first in range(0, len(bodies), 500):
            queue.put_many(bodies[first : first + 500], headers={"first": first})
        iterator = queue.consume(prefetch=100, timeout=20)
        for number, body in enumerate(bodies):
            message = next(iterator)
            assert message.body == body, number
            if number % 1000 == 0:
                assert message.headers == {"first": number // 500 * 500}
            message.ack()
        iterator.close()  # type: ignore[attr-defined]
        wait_until(lambda: queue.stats()["unacked"] == 0)


def test_reading_goes_on_while_files_move(tmp_path: Path) -> None:
    """A consumer that holds messages for long finds their bodies, though the journal was flushed meanwhile."""
    with (
        RealNode(tmp_path / "data", workers=1, journal_files_max=2, images_n=2) as running,
        warren.attach(running.directory) as node,
    ):
        queue, filler = node.queue("q"), node.queue("filler")
        bodies = [b"%d" % n * 300 for n in range(200)]
        queue.put_many(bodies)
        iterator = queue.consume(prefetch=200, timeout=20)
        first = next(iterator)
        wait_until(lambda: queue._handle.pending >= 150 or queue.stats()["unacked"] == 200)
        for _ in range(10):
            filler.put_many([bytes(3000)] * 300, timeout=30)
        assert first.body == bodies[0]
        assert [next(iterator).body for _ in range(199)] == bodies[1:]
        with contextlib.suppress(StopIteration):
            iterator.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_look_waits_for_a_slow_worker(running: RealNode, ahead: bool) -> None:
    """QueueEmpty is the worker's word: a confirmed message is found, however long the worker takes."""
    with warren.attach(running.directory) as node:
        queue = node.queue("q")
        queue.put(b"x")
        pid = running.pids()[worker_of(queue)]
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.append(queue.get(timeout=0, ahead=ahead).body))
        os.kill(pid, signal.SIGSTOP)
        try:
            thread.start()
            thread.join(0.3)
            assert thread.is_alive(), "the worker has not answered"
        finally:
            os.kill(pid, signal.SIGCONT)
        thread.join(20)
        assert found == [b"x"]
