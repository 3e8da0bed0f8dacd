"""Every named crash point: a process dies just there, is started again, and nothing that was confirmed is missing.

Goal: each point of ipc/layout.py is reached by what its comment says, and is survived, also when the next incarnation
dies there again while it recovers.
Method: a real node with small files; the point is armed in the superblock, a workload runs that passes it, and whoever
gets there kills itself. A dictionary says what was confirmed. Two points need files that are damaged while no server
runs, so they are reached in a store server with a hand-made superblock. A point that nobody reaches fails its test.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

import warren
from warren.engine.kernel import frame, segment
from warren.engine.kernel.formats import KIND_MESSAGE
from warren.ipc.layout import CRASH_POINTS, SERVER_STORE_PERSISTENT, SERVER_WORKER_FIRST
from warren.ipc.superblock import Superblock
from warren.tools.crash.victims import Node, send

from support.store_node import StoreNode, message_id
from support.waiting import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.integration]

FILE_BYTES = 256 << 10
SETTINGS = {
    "workers": 1,
    "file_bytes": FILE_BYTES,
    "arena_bytes": 2 << 20,
    "message_bytes_max": 128 << 10,
    "journal_files_max": 2,
    "index_rows": 64,
    "ring_records": 1024,
}
#: files whose collection takes several steps
LARGE = {"file_bytes": 4 << 20, "arena_bytes": 8 << 20}
IN_STEPS = ("collect_copying", "swing_begun")
WAIT_S = 30.0
WORKER_STARTS = ("worker_claimed", "worker_recovered", "worker_attached")
OF_WORKER = ("worker_flush_data", "worker_flush_index", "worker_resync", *WORKER_STARTS)
OF_COLLECTOR = ("collect_copying", "collect_copied", "collect_synced")
#: what somebody has to die at before, so that the next start comes to the point
BEFORE = {"start_superseded": ["swung"]}
#: reached with damaged files, below
COLD = ("start_torn", "start_quarantined")
#: those of the topic worker, which this load does not use: tests/topics/test_topic_worker.py, test_retention.py,
#: test_compaction.py
OF_TOPICS = tuple(point for point in CRASH_POINTS if point.startswith(("topic_", "retain_", "compact_")))


class Load:
    """A client of the store (and of one queue) that knows what was confirmed."""

    def __init__(self, node: warren.Node, seed: int) -> None:
        self.node = node
        self.store = node.store()
        self.queue = node.queue("points")
        self.rng = random.Random(seed)
        self.bodies: dict[bytes, bytes] = {}
        self.removed: list[bytes] = []
        self.put: list[bytes] = []

    def write(self, count: int = 24, size: int = 4000) -> None:
        """A batch of consecutive ids, and one id that is not of this client."""
        ids = [*(self.store.new_id() for _ in range(count)), self.rng.randbytes(16)]
        bodies = [id + self.rng.randbytes(8) * (size // 8) for id in ids]
        self.store.write_many(ids, bodies, timeout=WAIT_S)
        self.bodies.update(zip(ids, bodies, strict=True))

    def remove(self, share: float) -> None:
        """Take the references of some of what is there away."""
        ids = [id for id in self.bodies if self.rng.random() < share]
        self.store.remove(ids, timeout=WAIT_S)
        self.store.barrier("synced", timeout=WAIT_S)
        for id in ids:
            del self.bodies[id]
        self.removed += ids

    def churn(self) -> None:
        """Files fill, empty, are collected and used again."""
        for _ in range(3):
            self.write()
        self.remove(0.8 if len(self.bodies) < 200 else 0.97)

    def churn_large(self) -> None:
        """The same with so much that a collection copies megabytes and swings thousands of places."""
        for _ in range(8):
            self.write(3000, 400)
        self.remove(0.6)

    def small_ids(self) -> None:
        """Ids that are no client's: the hash part of the index has to grow."""
        ids = [self.rng.randbytes(16) for _ in range(200)]
        self.store.write_many(ids, ids, timeout=WAIT_S)
        self.bodies.update(zip(ids, ids, strict=True))

    def queues(self) -> None:
        """Messages in the queue's journal; large ones lie in the store."""
        bodies = [self.rng.randbytes(8) * size for size in (100, 100, 400, 1000)]
        self.queue.put_many(bodies, timeout=WAIT_S)
        self.put += bodies

    def large(self) -> None:
        """A message whose body the queue worker holds in the store."""
        self.queue.put(bytes(50_000), timeout=WAIT_S)
        self.put.append(bytes(50_000))

    def dying(self) -> None:
        """Announce the death of this client with writes under way: a message that comes after them means nothing."""
        ids = self.store.new_ids(500)
        self.store.write_many(ids, [b"under way" * 100] * len(ids), wait=False)
        self.store.delete_and_terminate(timeout=WAIT_S)
        self.store.remove([id for id in ids if self.store.contains(id, timeout=WAIT_S)])

    def check(self) -> None:
        """What was confirmed is there once, and goes when it is removed."""
        assert self.store.read_many(list(self.bodies)) == list(self.bodies.values())
        for id in self.removed[-50:]:
            assert not self.store.contains(id, timeout=WAIT_S)
        got = []
        while len(got) < len(self.put):
            messages = self.queue.get_many(100, timeout=WAIT_S)
            assert messages, f"{len(self.put) - len(got)} of {len(self.put)} messages are lost"
            got += [message.body for message in messages]
            self.queue.ack(messages)
        assert sorted(got) == sorted(self.put)
        self.put.clear()

    def check_end(self, superblock: Superblock) -> None:
        """Everything once more; then nothing is left."""
        self.check()
        self.remove(1.0)
        self.store.barrier("synced", timeout=WAIT_S)
        wait_until(
            lambda: not superblock.server_get(SERVER_STORE_PERSISTENT, "messages"), WAIT_S, what="an empty store"
        )


class Armed:
    """While it lasts points are armed, one after the other: the next at once when somebody died at the one before."""

    def __init__(self, superblock: Superblock, points: list[str]) -> None:
        self._superblock = superblock
        self._left = list(points)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        superblock.arm_crash(self._left[0])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if not self.done:
            self._superblock.disarm_crash()

    @property
    def done(self) -> bool:
        return not self._left

    def _run(self) -> None:
        while not self._ended.is_set() and self._left:
            if self._superblock.armed_crash is None:
                del self._left[0]
                if self._left:
                    self._superblock.arm_crash(self._left[0])
            self._ended.wait(0.001)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Folder of a node; the node is ended afterwards."""
    path = tmp_path / "node"
    yield path
    node = Node(path)
    supervisor = node.find("supervisor")
    if supervisor is not None:
        send(supervisor, signal.SIGTERM)
    wait_until(lambda: not node.all() and not node.superblock.supervisor.alive(), WAIT_S, what="the end of the node")
    node.superblock.close()


def trigger(node: Node, load: Load, point: str, armed: Armed) -> Callable[[], object]:
    """What leads to the point; called again and again until somebody died there."""

    def signalled(name: str, number: signal.Signals) -> None:
        node.watch()
        assert node.may_die(name), f"the {name} was started again and again, and nobody came to {point}"
        before = node.find(name)
        if before is not None:
            send(before, number)
        wait_until(lambda: node.find(name) not in (None, before), WAIT_S, what=f"the end of the {name}")
        load.store.barrier(timeout=WAIT_S)
        # A start comes there by itself, on a busy machine late; a stop does not come again by itself.
        patience = time.monotonic() + (1.0 if point.startswith("stop_") else WAIT_S / 2)
        wait_until(lambda: armed.done or time.monotonic() > patience, WAIT_S)

    if point == "start_mark_gone" or point.startswith("stop_"):
        return lambda: signalled("store", signal.SIGTERM)
    if point.startswith("start_") and point not in BEFORE:
        return lambda: signalled("store", signal.SIGKILL)
    if point == "worker_resync":
        return lambda: load.large() or signalled("store", signal.SIGKILL)
    if point in WORKER_STARTS:
        return lambda: signalled("worker-0", signal.SIGKILL)
    if point.startswith("worker_"):
        return load.queues
    if point in IN_STEPS:
        return load.churn_large
    if point == "index_extent":
        return lambda: signalled("store", signal.SIGKILL) or load.write()
    if point == "index_growing":
        return load.small_ids
    if point == "dying":
        return load.dying
    return load.churn


def deaths_of(superblock: Superblock, point: str) -> int:
    """How often the process that passes this point has died."""
    if point in OF_COLLECTOR:
        return superblock.get("collector_restarts")
    return superblock.server_get(SERVER_WORKER_FIRST if point in OF_WORKER else SERVER_STORE_PERSISTENT, "restarts")


@pytest.mark.parametrize("point", [point for point in CRASH_POINTS if point not in COLD + OF_TOPICS])
def test_who_dies_there_is_replaced_and_nothing_is_missing(directory: Path, seed: int, point: str) -> None:
    with warren.open(directory, idle_exit=60.0, **SETTINGS | (LARGE if point in IN_STEPS else {})) as public:
        node = Node(directory)
        superblock = node.superblock
        load = Load(public, seed)
        load.write()
        load.queues()
        for times in (1, 2):
            before = deaths_of(superblock, point)
            points = BEFORE.get(point, []) + [point] * times
            with Armed(superblock, points) as armed:
                drive = trigger(node, load, point, armed)
                wait_until(
                    lambda armed=armed, drive=drive: armed.done or drive() or armed.done,
                    2 * WAIT_S,
                    what=f"a death at {point}",
                )
            wait_until(
                lambda points=points, before=before: deaths_of(superblock, point) >= before + len(points),
                WAIT_S,
                what="the restarts",
            )
            load.check()
            load.write()
            load.queues()
        load.check_end(superblock)
        superblock.close()


# -- damaged files ---------------------------------------------------------------------------------------------------


def tear(node: StoreNode) -> None:
    """The beginning of a frame behind the last one of the youngest file: its end never reached the disk."""
    for number in reversed(node.files()):
        path = node.folder() / f"{number}.rdq"
        found = segment.scan_file(path, kind=1, node_id=node.node_id, owner=0, file=number).frames
        if found.packed:
            with open(path, "r+b") as file:
                file.seek(found.end)
                file.write(frame.encode(KIND_MESSAGE, os.urandom(5000), salt=1)[:4000])
            return
    raise AssertionError("no file holds anything")


def put_foreign(node: StoreNode) -> None:
    """A file that is none of the store's, under a name of one."""
    (node.folder() / "77.rdq").write_bytes(b"this is no segment file".ljust(FILE_BYTES, b"."))


@pytest.mark.parametrize(("point", "damage"), [("start_torn", tear), ("start_quarantined", put_foreign)])
def test_who_dies_while_it_mends_files(tmp_path: Path, point: str, damage: Callable[[StoreNode], None]) -> None:
    with StoreNode(tmp_path / "node") as node:
        messages: list[tuple[bytes, bytes]] = []
        for _times in range(3):
            node.start()
            more = [(message_id(len(messages) + n), bytes([n + 1]) * 1000) for n in range(60)]
            node.client().write(more)
            messages += more
            node.kill()
            damage(node)
            node.restart_cold()
            node.superblock.arm_crash(point)
            node.fork()
            assert node.wait_end() == -signal.SIGKILL, node.log_text()
            assert node.superblock.armed_crash is None
            if point == "start_quarantined":
                assert list((node.folder() / "quarantine").glob("77.rdq*"))
            node.restart_cold()
        node.start()
        client = node.client()
        assert [client.read(id) for id, _body in messages] == [body for _id, body in messages]
        assert all(client.contains(id) for id, _body in messages)
