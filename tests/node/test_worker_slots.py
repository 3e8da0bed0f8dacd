"""Goal: a queue worker that cannot start, or is killed while it starts, takes no client slots away from anybody, and
finds one itself when it can start.

Method: a real node. Its disk is full while servers die; it dies at the named points of its start; its store server is
stopped; clients have every slot that there is for them. The slots in use are counted in the superblock.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.config import Settings
from warren.ipc.identity import Identity
from warren.ipc.layout import CONSTANTS, SERVER_WORKER_FIRST, WORKER_SLOTS
from warren.ipc.superblock import Superblock
from warren.workers.process.shared_objects import segments
from warren.workers.servers.queue_worker import Worker

from support.real_node import RealNode
from support.small_disk import Disk, alarm_off, status
from support.waiting import wait_until

pytestmark = pytest.mark.integration

#: too little for a journal file of 1 MiB, or any file of the store
LEFT = 64 << 10
READY = CONSTANTS["SERVER_READY"]
WAIT_S = 60.0


@contextlib.contextmanager
def superblock_of(directory: Path) -> Iterator[Superblock]:
    target = NodeDirectory(directory)
    found = target.superblock()
    try:
        yield found
    finally:
        found.close()


def put_everywhere(node: warren.Node) -> list[warren.Queue]:
    """Queues of both workers with a small message and one for the store."""
    queues = [node.queue(f"q{number}") for number in range(8)]
    for queue in queues:
        queue.put_many([b"small", bytes(9000)])
    assert {row["worker"] for row in node.status()["queues"]} == {0, 1}
    return queues


def check_everywhere(queues: list[warren.Queue]) -> None:
    for queue in queues:
        assert [message.body for message in queue.get_many(2, timeout=WAIT_S)] == [b"small", bytes(9000)]


def restarts(superblock: Superblock, worker: int) -> int:
    return superblock.server_get(SERVER_WORKER_FIRST + worker, "restarts")


def serves(superblock: Superblock, worker: int) -> bool:
    return superblock.server_get(SERVER_WORKER_FIRST + worker, "state") == READY


@pytest.mark.parametrize("who", [["worker-0"], ["worker-0", "worker-1"], ["store", "worker-0", "worker-1"]])
def test_starts_that_find_no_space_take_no_slots(small_disk: Path, who: list[str]) -> None:
    disk = Disk(small_disk)
    with (
        RealNode(disk.directory, disk_free_bytes_min=0) as real,
        warren.attach(disk.directory) as node,
        superblock_of(disk.directory) as superblock,
    ):
        queues = put_everywhere(node)
        pids = real.pids()
        #: one of each worker in use, one of each that died, this client's, and that of one that just comes
        most, seen, killed = 2 * WORKER_SLOTS + 2, 0, 0

        def tried() -> bool:
            """A server that dies leaves room for an instant: a worker that found it is killed again."""
            nonlocal seen, killed
            seen = max(seen, sum(1 for _view in superblock.slots()))
            worker = superblock.server_identity(SERVER_WORKER_FIRST)
            if serves(superblock, 0) and worker.pid != killed and worker.alive():
                killed = worker.pid
                os.kill(killed, signal.SIGKILL)
            return restarts(superblock, 0) >= 8

        with disk.kept_full(LEFT):
            killed = pids["worker-0"]
            for name in who:
                os.kill(pids[name], signal.SIGKILL)
            wait_until(tried, WAIT_S, what="eight starts without space")
            assert seen <= most
            with warren.attach(disk.directory) as other:
                assert other.status()["alarms"]
        disk.empty()
        wait_until(lambda: serves(superblock, 0) and serves(superblock, 1), WAIT_S, what="the workers")
        alarm_off(disk.directory)
        check_everywhere(queues)
        wait_until(lambda: sum(1 for _view in superblock.slots()) == 3, WAIT_S, what="the end of what died")


@pytest.mark.parametrize("point", ["worker_claimed", "worker_recovered", "worker_attached"])
def test_deaths_in_the_start_take_no_slots(tmp_path: Path, point: str) -> None:
    directory = tmp_path / "node"
    with (
        RealNode(directory) as real,
        warren.attach(directory) as node,
        superblock_of(directory) as superblock,
    ):
        queues = put_everywhere(node)
        superblock.arm_crash(point)
        os.kill(real.pids()["worker-0"], signal.SIGKILL)
        for deaths in range(1, 5):
            wait_until(lambda: superblock.armed_crash is None, WAIT_S, what=f"a death at {point}")
            if deaths < 4:
                superblock.arm_crash(point)
            wait_until(lambda deaths=deaths: restarts(superblock, 0) > deaths, WAIT_S, what="the next start")
        wait_until(lambda: serves(superblock, 0), WAIT_S, what="a worker")
        check_everywhere(queues)
        wait_until(lambda: sum(1 for _view in superblock.slots()) == 3, WAIT_S, what="the end of what died")


def test_a_start_that_fails_gives_slot_and_segment_back(tmp_path: Path) -> None:
    """It does so itself, before it ends. This process lives on, so nobody else takes them."""

    def mine() -> list[int]:
        return [item.id for item in segments() if item.creator == os.getpid()]

    directory = tmp_path / "node"
    with RealNode(directory), superblock_of(directory) as superblock:
        before, made = {view.slot for view in superblock.slots()}, mine()
        worker = Worker(directory, superblock.shared_id, 0, Settings(), None)
        worker._claim()
        assert {view.slot for view in superblock.slots()} - before == {worker._slot.slot}
        assert len(mine()) == len(made) + 1
        worker.close()
        assert {view.slot for view in superblock.slots()} == before
        assert mine() == made


def test_a_worker_waits_for_the_store_rather_than_take_more_slots(tmp_path: Path) -> None:
    """What died in its slots may have submitted something: the store has to be done with that first."""
    directory = tmp_path / "node"
    with (
        RealNode(directory) as real,
        warren.attach(directory) as node,
        superblock_of(directory) as superblock,
    ):
        queues = put_everywhere(node)
        pids = real.pids()
        os.kill(pids["store"], signal.SIGSTOP)
        try:
            superblock.arm_crash("worker_attached")
            os.kill(pids["worker-0"], signal.SIGKILL)
            wait_until(lambda: superblock.armed_crash is None, WAIT_S, what="a death in the start")
            rows = wait_until(lambda: status(directory)["alarm_details"], WAIT_S, what="an alarm")
            assert "there is no free slot of a queue worker to start the worker-0" in rows[0]["text"]
            assert "the store server has to finish" in rows[0]["text"]
            assert {view.slot for view in superblock.slots()} >= set(superblock.slots_of_worker(0))
        finally:
            os.kill(pids["store"], signal.SIGCONT)
        check_everywhere(queues)
        alarm_off(directory)


def test_a_worker_starts_when_clients_have_all_slots(tmp_path: Path) -> None:
    """They may wait for just that worker."""
    directory = tmp_path / "node"
    with (
        RealNode(directory) as real,
        warren.attach(directory) as node,
        superblock_of(directory) as superblock,
    ):
        queues = put_everywhere(node)
        me = Identity.current()
        taken = [superblock.claim(me, f"client {number}") for number in superblock.client_slots[1:]]  # one is ours
        try:
            with pytest.raises(warren.LimitError, match="slots are taken"):
                warren.attach(directory)
            real.kill("worker-0")
            wait_until(lambda: serves(superblock, 0), WAIT_S, what="the worker")
            check_everywhere(queues)
        finally:
            for view in taken:
                assert superblock.give_back(view)
