"""Alarms under random steps: publishes, gets, a disk that fills and empties, kills of worker, store and supervisor,
clients that come, block and are killed.

Goal: a publish is refused or held back only while an alarm is on, and is not let through then; consumers never block;
whatever was confirmed is received, once, or marked redelivered; an emptied disk ends the alarm, and everybody who was
blocked goes on; nothing is left behind, after a failed example neither. Method: Hypothesis makes the steps; each
example has a real node of its own on a small tmpfs. Two examples here; WARREN_MACHINE_EXAMPLES makes it more.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import DirectoryInUse
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc import names
from warren.ipc.layout import CONSTANTS, SERVER_WORKER_FIRST
from warren.ipc.region import RegionError
from warren.ipc.superblock import Superblock
from warren.tools.crash.victims import Node as Victims
from warren.tools.crash.victims import names_in, processes_of, send, system_v_left
from warren.workers.process import remains
from warren.workers.process.control import ControlClient

from support.real_node import RealNode
from support.small_disk import LIMIT, Disk, Later, filled, status
from support.waiting import wait_until

pytestmark = pytest.mark.integration

EXAMPLES = int(os.environ.get("WARREN_MACHINE_EXAMPLES", "2"))
END_S = 60
QUEUE = "work"
BLOCKING = CONSTANTS["ALARM_DISK"] | CONSTANTS["ALARM_MEMORY"]
#: deaths of one server in an example: the supervisor restarts it (nearly) at once so often
DEATHS_MAX = 3
PROGRAM = """
import sys, warren
with warren.attach(sys.argv[1], timeout=30) as node:
    node.queue(sys.argv[2]).put(sys.argv[3].encode())
    print("confirmed", flush=True)
"""

sizes = st.sampled_from((20, 20, 3000, 6000))
steps = st.one_of(
    st.tuples(st.just("put"), sizes),
    st.tuples(st.just("put_many"), st.integers(2, 30), sizes),
    st.tuples(st.just("put_later"), sizes),
    st.tuples(st.just("get"), st.integers(1, 20), st.booleans()),
    st.tuples(st.just("ack_all")),
    st.tuples(st.just("fill")),
    st.tuples(st.just("full")),
    st.tuples(st.just("empty")),
    st.tuples(st.just("kill"), st.sampled_from(("worker-0", "store", "supervisor"))),
    st.tuples(st.just("client")),
    st.tuples(st.just("kill_client")),
)


class Watch:
    """What the alarms word has been, looked at all the time."""

    def __init__(self, directory: Path) -> None:
        self._superblock = Superblock.attach(NodeDirectory(directory).shared_id, LAYOUT_HASH)
        self._ended = threading.Event()
        self.on_seen = self.off_seen = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.001):
            self.look()

    def lacks(self, server: int) -> int:
        """What a server lacked at its last start, 0: nothing."""
        return self._superblock.server_get(server, "lacks")

    def look(self) -> bool:
        """Whether publishers are blocked now."""
        on = bool(self._superblock.get("alarms") & BLOCKING)
        if on:
            self.on_seen = True
        else:
            self.off_seen = True
        return on

    def begin(self) -> bool:
        """Look, and begin to note what is seen."""
        self.on_seen = self.off_seen = False
        return self.look()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._superblock.close()


class Example:
    """One node and what is known of its messages."""

    def __init__(self, place: Path) -> None:
        self.disk = Disk(place)
        self.directory = self.disk.directory
        self.real = RealNode(self.directory, workers=1, disk_free_bytes_min=LIMIT)
        self.number = 0
        self.deaths: Counter[str] = Counter()
        self.confirmed: set[int] = set()
        self.maybe: set[int] = set()
        self.receipts: Counter[int] = Counter()
        self.held: list[warren.Message] = []
        self.later: list[tuple[Later, int]] = []
        self.clients: list[tuple[subprocess.Popen[str], int]] = []
        self.node: warren.Node | None = None
        self.watch: Watch | None = None
        self.pids: set[int] = set()

    def begin(self) -> None:
        self.real.start()
        self.pids |= set(self.real.pids().values())
        self.node = warren.attach(self.directory)
        self.queue = self.node.queue(QUEUE)
        self.watch = Watch(self.directory)

    # -- steps --------------------------------------------------------------------------------------------------

    def _bodies(self, count: int, size: int) -> tuple[list[int], list[bytes]]:
        numbers = list(range(self.number, self.number + count))
        self.number += count
        return numbers, [b"%d|".ljust(size, b"x") % number for number in numbers]

    def _publish(self, numbers: list[int], call: Any) -> None:
        """A call with a timeout: short when it has to be refused."""
        assert self.watch is not None
        on = self.watch.begin()
        try:
            call(0.2 if on else END_S)
        except (warren.DiskFull, warren.TimedOut):
            self.maybe |= set(numbers)
            assert self.watch.on_seen, "refused without an alarm"
        else:
            self.confirmed |= set(numbers)
            assert not on or self.watch.off_seen or not self.watch.look(), "published in spite of the alarm"

    def put(self, size: int) -> None:
        numbers, (body,) = self._bodies(1, size)
        self._publish(numbers, lambda timeout: self.queue.put(body, timeout=timeout))

    def put_many(self, count: int, size: int) -> None:
        numbers, bodies = self._bodies(count, size)
        self._publish(numbers, lambda timeout: self.queue.put_many(bodies, timeout=timeout))

    def put_later(self, size: int) -> None:
        """Somebody who waits as long as it takes."""
        (number,), (body,) = self._bodies(1, size)
        self.later.append((Later(lambda: self.queue.put(body)), number))

    def _receive(self, messages: list[warren.Message]) -> None:
        for message in messages:
            number = int(message.body.partition(b"|")[0])
            self.receipts[number] += 1
            assert number in self.confirmed | self.maybe | {number for _call, number in self.later + self.clients}
            assert self.receipts[number] == 1 or message.redelivered, f"message {number} came again without the mark"

    def get(self, count: int, ack: bool) -> None:
        """Consumers never block: what is there comes, alarm or not; but for a worker that was killed, and finds not one
        byte for its start.
        """
        there = any(not self.receipts[number] for number in self.confirmed)
        try:
            messages = self.queue.get_many(count, timeout=END_S if there else 0.0)
        except warren.PeerLost:
            assert self.watch is not None
            assert self.watch.lacks(SERVER_WORKER_FIRST), "the worker is down, and lacks nothing"
            return
        assert messages or not there, "nothing came of what was confirmed"
        self._receive(messages)
        self.held += messages
        if ack:
            self.ack_all()

    def ack_all(self) -> None:
        if self.held:
            self.queue.ack(self.held)
            self.held = []

    def fill(self) -> None:
        filled(self.disk)

    def empty(self) -> None:
        self.disk.empty()
        wait_until(lambda: not status(self.directory)["alarms"], END_S, what="the end of the alarms")

    def kill(self, role: str) -> None:
        if self.deaths[role] < DEATHS_MAX:
            self.deaths[role] += 1
            self.pids.add(self.real.kill(role))

    def full(self) -> None:
        """Fill it to the last byte."""
        self.fill()
        self.disk.leave(0)

    def die(self, role: str) -> None:
        """Kill it where a server may have to wait for space; another supervisor comes at once."""
        before = self.real.pids()
        if role == "supervisor":
            self.kill(role)
            others = self.real.pids() | {role: before[role]}
            assert others == before, "somebody else died of the full disk"
        else:
            os.kill(before[role], signal.SIGKILL)

    def client(self) -> None:
        """Another process that publishes one message, and blocks for as long as it has to."""
        (number,), (body,) = self._bodies(1, 20)
        command = [sys.executable, "-c", PROGRAM, str(self.directory), QUEUE, body.decode()]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.pids.add(process.pid)
        self.clients.append((process, number))

    def _blocked(self, pid: int) -> bool:
        return any(row["pid"] == pid and row["blocked"] == "alarm" for row in status(self.directory)["clients"])

    def kill_client(self) -> None:
        """The first one, when it is blocked or done."""
        if self.clients:
            process, number = self.clients.pop(0)
            self.maybe.add(number)
            try:
                wait_until(lambda: process.poll() is not None or self._blocked(process.pid), END_S, what="it to block")
            finally:
                process.kill()
                process.communicate()

    # -- the end ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Space comes back: everybody goes on, and all is there."""
        self.empty()
        for call, number in self.later:
            call.end()
            self.confirmed.add(number)
        self.later = []
        while self.clients:
            process, number = self.clients.pop()
            said, _nothing = process.communicate(timeout=END_S)
            assert (said, process.returncode) == ("confirmed\n", 0)
            self.confirmed.add(number)
        while missing := {number for number in self.confirmed if not self.receipts[number]}:
            messages = self.queue.get_many(100, timeout=END_S)
            assert messages, f"confirmed, and not there: {sorted(missing)}"
            self._receive(messages)
            self.held += messages
        self.ack_all()

        def quiet() -> bool:
            stats, blocked = self.queue.stats(), status(self.directory)["blocked_publishers"]
            self._receive(rest := self.queue.get_many(100, timeout=0.0))
            self.queue.ack(rest)
            return not stats["ready"] and not stats["unacked"] and blocked == {"alarm": 0, "credit": 0}

        wait_until(quiet, END_S, what="an empty queue and nobody blocked")
        again = [number for number in sorted(self.confirmed) if self.receipts[number] != 1]
        assert not again, f"{again} came twice, and nobody died who had them"

    def stop(self) -> None:
        """In good order; the supervisor may be another one than the one that was started."""
        assert self.node is not None
        self.node.close()
        with ControlClient(self.directory) as control:
            control.call("stop")
        wait_until(lambda: not processes_of(self.directory), END_S, what="the end of the node")

    def end(self) -> None:
        """Whatever is there goes, by its pid, whoever is dead already."""
        self.disk.empty()
        for process, _number in self.clients:
            process.kill()
            process.communicate()
        if self.watch is not None:
            self.watch.close()
        end_node(self.directory)
        if self.node is not None:
            self.node.close()  # whoever waits in a thread of ours is told
        for call, _number in self.later:
            call.thread.join(END_S)
        end_node(self.directory)  # they may have started another supervisor meanwhile
        self.real.stop()

    def check_nothing_left(self, shared_id: int, keys: tuple[int, int]) -> None:
        part = names.node_prefix(shared_id).lstrip("/")

        def left() -> list[str]:
            found = names_in("/dev/shm", part) + names_in("/dev/mqueue", part)
            found += system_v_left(self.pids, set(keys) - {0})
            return found + [f"process {process.pid}" for process in processes_of(self.directory)]

        wait_until(lambda: not left(), 20, what="nothing left behind")


def end_node(directory: Path) -> None:
    """SIGKILL of what is alive of a node, and its shared memory away: as after a stop, when it was none."""
    folder = NodeDirectory(directory)
    if not folder.exists():
        return
    file = folder.read()
    superblock = None
    with contextlib.suppress(RegionError):
        superblock = Superblock.attach(folder.shared_id, LAYOUT_HASH)
    if superblock is not None:
        victims = Victims(directory)
        while found := victims.all():
            for number in (signal.SIGSTOP, signal.SIGKILL):  # so that nobody starts anybody
                for identity in found:
                    send(identity, number)
            wait_until(lambda found=found: not any(one.alive() for one in found), 20, what="the end of who was killed")
        victims.superblock.close()

    def alone() -> bool:
        """A successor that was just being started lives on: our clients are alive, so it would take over for them."""
        for process in processes_of(directory):
            with contextlib.suppress(psutil.Error):
                process.kill()
                process.wait(60)
        try:
            folder.lock()
        except DirectoryInUse:
            return False
        return True

    wait_until(alone, END_S, what="an end of all who take over")
    wait_until(lambda: not processes_of(directory), END_S, what="the end of all who came too late")
    remains.remove(folder, file, folder.shared_id, superblock)
    folder.unlock()
    if superblock is not None:
        superblock.close()


def tails(directory: Path) -> str:
    """The last lines of every log of a node."""
    logs = sorted(NodeDirectory(directory).log.glob("*"))
    return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in logs)


def run_example(place: Path, story: list[tuple[Any, ...]], told: list[str]) -> None:
    example = Example(place)
    shared_id, keys = 0, (0, 0)
    try:
        example.begin()
        for name, *arguments in story:
            told.append(f"{name}({', '.join(map(repr, arguments))})")
            getattr(example, name)(*arguments)
        told.append("finish()")
        example.finish()
        told.append("stop()")
        folder = NodeDirectory(example.directory)
        shared_id, keys = folder.shared_id, folder.read().semaphore_keys
        example.stop()
        example.check_nothing_left(shared_id, keys)
    except BaseException as error:
        error.add_note(f"{example.disk.free()} bytes free on the disk; {tails(example.directory)}")
        raise
    finally:
        example.end()
        shutil.rmtree(example.directory, ignore_errors=True)


@pytest.mark.timeout(120 + 60 * EXAMPLES)
def test_alarms_whatever_happens(small_disk: Path, seed: int) -> None:
    counted: Counter[str] = Counter()

    @hypothesis.seed(seed)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),  # what depends on timing is not taken apart
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(st.lists(steps, min_size=6, max_size=16))
    def check(story: list[tuple[Any, ...]]) -> None:
        told: list[str] = []
        counted["examples"] += 1
        try:
            run_example(small_disk, story, told)
        except BaseException as error:
            error.add_note("\n".join(["steps:", *told]))
            raise
        counted.update(name for name, *_rest in story)

    check()
    print(dict(counted))
    assert counted["examples"] >= 1


@pytest.mark.parametrize("role", ["supervisor", "store", "worker-0"])
def test_a_death_on_a_full_disk(small_disk: Path, role: str) -> None:
    """Not a byte is free. Who follows a dead supervisor needs none; whatever else died is there when space is."""
    told: list[str] = []
    story = [
        ("put_many", 10, 20),
        ("put", 6000),
        ("fill",),
        ("put_later", 20),
        ("full",),
        ("die", role),
        ("get", 5, True),
    ]
    run_example(small_disk, story, told)


def test_a_worker_that_cannot_start_is_not_given_up(small_disk: Path) -> None:
    """No alarm was on before the last byte went, and the worker has used up the files that were made ahead."""
    example = Example(small_disk)
    line = "worker-0 finds no space on the disk"
    try:
        example.begin()
        example.put_many(10, 20)
        superblock = Superblock.attach(NodeDirectory(example.directory).shared_id, LAYOUT_HASH)

        def starved() -> bool:
            pid = superblock.server_get(SERVER_WORKER_FIRST, "pid")
            if superblock.server_get(SERVER_WORKER_FIRST, "state") == CONSTANTS["SERVER_READY"] and pid:
                example.pids.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                example.disk.leave(0)
            return line in "\n".join(status(example.directory)["messages"])

        try:
            wait_until(starved, 60, what="a worker without space")
            before = superblock.server_get(SERVER_WORKER_FIRST, "restarts")
            wait_until(
                lambda: superblock.server_get(SERVER_WORKER_FIRST, "restarts") > before + 3, 60, what="more starts"
            )
        finally:
            superblock.close()
        example.finish()
        example.stop()
    finally:
        example.end()
        shutil.rmtree(example.directory, ignore_errors=True)


@pytest.mark.parametrize("dead", ["supervisor", "worker-0", "all"])
def test_a_failed_example_leaves_nothing(small_disk: Path, dead: str) -> None:
    """Publishers here and in another process are blocked; whoever would restart or stop the node may be dead."""
    example = Example(small_disk)
    try:
        example.begin()
        folder = NodeDirectory(example.directory)
        shared_id, keys = folder.shared_id, folder.read().semaphore_keys
        example.fill()
        example.put_later(20)
        example.client()
        wait_until(lambda: example._blocked(example.clients[0][0].pid), END_S, what="it to block")
        pids = example.real.pids()
        for pid in pids.values() if dead == "all" else [pids[dead]]:
            os.kill(pid, signal.SIGKILL)
    finally:
        example.end()
    example.check_nothing_left(shared_id, keys)
    assert not example.later[0][0].thread.is_alive()
    assert isinstance(example.later[0][0].error, warren.Error)
