"""A recorded history: a real node with small files, a client that says in the record what it is about to do and what
was confirmed, and kills, stops and syncs that fail in between.

`python -m warren.tools.crash.history DIRECTORY SEED OPERATIONS`, in the environment of a recorder (recording.py).

Notes (msgpack arrays)         in the record before / after
    w TOKEN [[id, version, size] …]   written to the store        c TOKEN   confirmed at `synced`
    r TOKEN [id …]                    removed from the store      c TOKEN   applied and synced
    b TOKEN                           barrier of the store        c TOKEN   all that was submitted before is synced
    q TOKEN name                      a queue is declared         c TOKEN   it is
    p TOKEN name [[number, size] …]   put into a queue            c TOKEN   confirmed at `synced`
    a name [number …]                 acked
    s                                 the node has stopped in good order
    k role                            a process of the node was killed

What belongs to an id and a version (`body_of`), or to a queue and a number (`message_of`), can be told from them alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.tools.crash import recording
from warren.workers.process.control import ControlClient

#: small files and few of them, so that a short history has rolls, removals, collections, flushes and reuse
SETTINGS: dict[str, Any] = {
    "workers": 1,
    "file_bytes": 256 * 1024,
    "images_n": 2,
    "arena_bytes": 1 << 20,
    "message_bytes_max": 300_000,
    "ring_records": 1024,
    "delivery_slots": 256,
    "directory_rows": 4096,
    "dense_blocks": 64,
    "summary_rows": 1024,
    "index_rows": 1024,
    "journal_files_max": 2,
}
QUEUES = ("first", "second")
#: of the puts so many have a message in a file of its own
LARGE_SHARE, LARGE_BYTES = 0.1, 260_000
#: 1: an id that is written again has another body than before
OTHER_BODY = 1
STOP_S = 30.0
RETRY_S = 0.01
TIMEOUT_S = 20.0
#: a sync that fails: in which files, how often something is done that may meet it, and how long that is waited for
FAILING_SERVERS = ("store/", ".rdq", "queues/", ".jnl", ".idx", ".dat")
FAILING_STEPS = 8
FAILING_TIMEOUT_S = 0.5


@functools.lru_cache(maxsize=1 << 14)
def body_of(id: bytes, version: int, size: int) -> bytes:
    """The body of a version of a stored message."""
    return hashlib.shake_128(id + version.to_bytes(4, "big")).digest(size)


@functools.lru_cache(maxsize=1 << 14)
def message_of(queue: str, number: int, size: int) -> bytes:
    """The body of a message of a queue; it begins with its number and its size."""
    head = number.to_bytes(4, "big") + size.to_bytes(4, "big")
    return head + hashlib.shake_128(queue.encode() + head).digest(size - len(head))


def wait_unlocked(path: Path) -> None:
    """Until no node runs for a directory. Raises TimedOut."""
    directory = NodeDirectory(path)
    deadline = time.monotonic() + STOP_S
    while directory.locked():
        if time.monotonic() > deadline:
            raise warren.TimedOut(f"the node of {path} did not end within {STOP_S:g} s")
        time.sleep(RETRY_S)


class History:
    """One client's life on a node that is stopped and killed around it. Of topics: topic_history.py."""

    settings: ClassVar[dict[str, Any]] = SETTINGS
    #: in which files syncs fail that servers make
    failing: ClassVar[tuple[str, ...]] = FAILING_SERVERS

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        #: in some a backlog grows, and journal files of which most is alive become data files as they are
        self.put_weight, self.take_weight = self.rng.choice(((24, 16), (24, 16), (120, 4)))
        self.tokens = itertools.count(1)
        self.node: warren.Node
        self.held: dict[bytes, int] = {}  #: id → version: what we have not removed
        self.removed: list[bytes] = []
        self.versions: dict[bytes, int] = {}
        self.sizes: dict[tuple[bytes, int], int] = {}
        self.queues: dict[str, warren.Queue] = {}
        self.numbers = {name: itertools.count(1) for name in QUEUES}
        self.timeout = TIMEOUT_S
        self.chosen: dict[str, Any] = {}  #: settings of this history alone

    def say(self, *words: Any) -> None:
        """Put a note into the record."""
        recording.note(msgspec.msgpack.encode(words))

    def run(self, operations: int) -> None:
        """Some sessions, each with its share of the operations."""
        sessions = self.rng.randint(1, 3)
        for session in range(sessions):
            self.open()
            for _ in range(max(1, operations // sessions)):
                self.step()
            if session + 1 < sessions or self.rng.random() < 0.5:
                self.end()
        self.finish()

    def open(self) -> None:
        """Start the node and declare what is used."""
        self.node = warren.open(self.directory, idle_exit=1.0, name="history", **self.settings, **self.chosen)
        self.declare()

    def declare(self) -> None:
        """What the client works with."""
        self.store = self.node.store()
        for name in QUEUES:
            token = next(self.tokens)
            self.say("q", token, name)
            self.queues[name] = self.node.queue(name)
            self.say("c", token)

    def step(self) -> None:
        """One operation; what fails is not confirmed, and may have happened."""
        works = self.works()
        work = self.rng.choices([work for work, _ in works], [weight for _, weight in works])[0]
        with contextlib.suppress(warren.TimedOut, warren.PeerLost, warren.SyncFailed):
            work()

    def works(self) -> list[tuple[Callable[[], None], float]]:
        """What a step may be, and how often."""
        return [
            (self.write, 40),
            (self.write_later, 8),
            (self.remove, 22),
            (self.write_again, 6),
            (self.barrier, 4),
            (self.put, self.put_weight),
            (self.take, self.take_weight),
            (self.kill, 0.7),
            (self.fail, 0.5),
        ]

    def busy(self) -> None:
        """Something that is synced."""
        self.rng.choice((self.write, self.write_later, self.remove, self.put, self.put, self.take))()

    # -- the store ----------------------------------------------------------------------------------------------

    def _size(self) -> int:
        pick = self.rng.random()
        return (
            self.rng.randint(0, 400)
            if pick < 0.7
            else self.rng.randint(400, 9000)
            if pick < 0.95
            else self.rng.randint(9000, 60000)
        )

    def _submit(self, ids: list[bytes], wait: bool) -> tuple[int, Any]:
        token = next(self.tokens)
        items = []
        for id in ids:
            version = self.versions.get(id, 0)
            size = self.sizes.setdefault((id, version), self._size())
            items.append((id, version, size))
        self.say("w", token, items)
        bodies = [body_of(*item) for item in items]
        self.held.update((id, version) for id, version, _size in items)
        return token, self.store.write_many(ids, bodies, wait=wait, timeout=self.timeout)

    def write(self) -> None:
        """New messages, confirmed."""
        count = self.rng.choice((1, 1, 2, 5, 30))
        token, _ = self._submit([self.store.new_id() for _ in range(count)], wait=True)
        self.say("c", token)

    def write_later(self) -> None:
        """New messages of which some are removed again before they are confirmed, or never asked after."""
        made = self.rng.random() < 0.3
        count = self.rng.randint(1, 20)
        token, confirm = self._submit(
            [self.rng.randbytes(16) if made else self.store.new_id() for _ in range(count)], wait=False
        )
        if self.rng.random() < 0.5:
            self.remove()
        if self.rng.random() < 0.7:
            confirm.wait(self.timeout)
            self.say("c", token)

    def write_again(self) -> None:
        """Ids that were removed before, with another body."""
        ids = [self.removed.pop(self.rng.randrange(len(self.removed))) for _ in range(min(len(self.removed), 4))]
        if ids:
            for id in ids:
                self.versions[id] = self.versions.get(id, 0) + OTHER_BODY
            token, _ = self._submit(ids, wait=True)
            self.say("c", token)

    def remove(self) -> None:
        """Some of what we hold; mostly old ones, so that files become empty."""
        count = min(len(self.held), self.rng.choice((1, 3, 10, 60)))
        if not count:
            return
        known = list(self.held)
        ids = known[:count] if self.rng.random() < 0.6 else self.rng.sample(known, count)
        token = next(self.tokens)
        self.say("r", token, ids)
        for id in ids:
            del self.held[id]
        self.removed += ids
        self.store.remove(ids, timeout=self.timeout)
        if self.rng.random() < 0.5:
            self.store.barrier("synced", timeout=self.timeout)
            self.say("c", token)

    def barrier(self) -> None:
        """All that was submitted is synced."""
        token = next(self.tokens)
        self.say("b", token)
        self.store.barrier("synced", timeout=self.timeout)
        self.say("c", token)

    # -- queues -------------------------------------------------------------------------------------------------

    def put(self) -> None:
        """Messages into a queue; large ones go to the store, and a few are too large for shared memory."""
        name = self.rng.choice(QUEUES)
        sizes = [max(8, self._size()) for _ in range(self.rng.choice((1, 1, 5, 25)))]
        if self.rng.random() < LARGE_SHARE:
            sizes[-1] = LARGE_BYTES
        items = [(next(self.numbers[name]), size) for size in sizes]
        token = next(self.tokens)
        self.say("p", token, name, items)
        self.queues[name].put_many([message_of(name, *item) for item in items], timeout=self.timeout)
        self.say("c", token)

    def take(self) -> None:
        """Take some and ack them, or most of them."""
        name = self.rng.choice(QUEUES)
        messages = self.queues[name].get_many(self.rng.choice((1, 10, 50)), timeout=0)
        if messages and self.rng.random() < 0.2:
            returned, messages = messages[1::2], messages[::2]
            if self.rng.random() < 0.5:
                self.queues[name].nack(returned)
            else:
                for message in returned:
                    message.nack(delay=self.rng.choice((0.01, 0.3)))  # over when a state is looked at
        if messages:
            self.say("a", name, [int.from_bytes(message.body[:4], "big") for message in messages])
            self.queues[name].ack(messages)

    # -- deaths -------------------------------------------------------------------------------------------------

    def _pids(self) -> dict[str, int]:
        return {process["role"]: process["pid"] for process in self.node.status()["processes"] if process["pid"]}

    def kill(self) -> None:
        """kill -9 a server; the supervisor starts another one."""
        pids = self._pids()
        role = self.rng.choice([role for role in pids if role != "supervisor"])
        self.say("k", role)
        recording.kill([pids[role]])

    def fail(self) -> None:
        """A sync fails, in whatever process makes it, as it works or as it starts. Who had it is killed, or all of the
        node: the next one goes on with what it finds.
        """
        hangs = self.rng.random() < 0.5  # it is killed before it knows
        of = self.rng.choice(self.failing if hangs else (*self.failing, "", "catalog"))
        recording.fail_sync(self.rng.choice((1, 1, 2, 5)), of, hangs)
        self.timeout = FAILING_TIMEOUT_S  # a server that had it confirms nothing any more
        try:
            if self.rng.random() < 0.3:
                self.kill()
            for _ in range(FAILING_STEPS):
                with contextlib.suppress(warren.Error):
                    self.busy()
                if recording.failed_sync():
                    break
        finally:
            self.timeout = TIMEOUT_S
            failed = recording.fail_no_sync()
        role = next((role for role, pid in self._pids().items() if pid == failed), "supervisor")
        if failed and (self.rng.random() < 0.4 or (role == "store" and not hangs)):  # it does not serve this node again
            self.kill_all()
            self.open()
        elif role != "supervisor":
            self.say("k", role)
            recording.kill([failed])

    def kill_all(self) -> None:
        """kill -9 all processes of the node, at one moment."""
        pids = self._pids()
        self.say("k", "all")
        recording.kill(pids.values())
        with contextlib.suppress(warren.Error):
            self.node.close()
        wait_unlocked(self.directory)

    def end(self) -> None:
        """Stop the node in good order, or kill all of it."""
        if self.rng.random() < 0.4:
            self.kill_all()
        else:
            self.stop()

    def stop(self) -> None:
        """Stop the node in good order."""
        for queue in self.queues.values():
            queue.release()
        with ControlClient(self.directory) as control:
            control.call("stop")
        with contextlib.suppress(warren.Error):
            self.node.close()
        wait_unlocked(self.directory)
        self.say("s")

    def finish(self) -> None:
        """Leave nothing that runs, and no memory of a node that was killed: the next start removes that."""
        if not NodeDirectory(self.directory).locked():
            self.open()
        self.stop()


def main() -> int:
    """Live through one history."""
    directory, seed, operations = sys.argv[1:]
    History(Path(directory), int(seed)).run(int(operations))
    return 0


if __name__ == "__main__":
    sys.exit(main())
