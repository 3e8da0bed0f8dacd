"""Goal: a queue that is deleted on a condition goes only when the condition is true, and nothing is lost in between.

Method: a running node; publishers and consumers beside whoever deletes; a supervisor and a worker that are killed while
a queue is barred.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

import warren
import warren.aio
from warren.engine.catalog.node_directory import NodeDirectory
from warren.ipc.superblock import Superblock
from warren.workers.process.control import ControlClient

from support.command_line import warren as run
from support.real_node import RealNode
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
WAIT = 30.0


def test_a_queue_with_messages_or_consumers_stays(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put(b"x")
    with pytest.raises(warren.PreconditionFailed, match="not empty"):
        node.delete_queue(name, if_empty=True)
    consumer = queue.consume(prefetch=1)
    message = next(consumer)
    with pytest.raises(warren.PreconditionFailed, match="consumers"):
        queue.delete(if_unused=True, if_empty=True)
    consumer.close()
    queue.put(b"y")
    node.delete_queue(name, if_unused=True)
    with pytest.raises(warren.QueueNotFound):
        node.delete_queue(name, if_empty=True)
    del message


def test_what_consumers_hold_is_no_message_of_the_queue(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put(b"x")
    message = queue.get(timeout=WAIT)
    queue.delete(if_empty=True, if_unused=True)
    del message


def test_delayed_messages_count(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put(b"x", delay=1000)
    with pytest.raises(warren.PreconditionFailed, match="not empty"):
        queue.delete(if_empty=True)
    queue.delete()


def test_letters_are_forwarded_before_their_queue_goes(node: warren.Node, name: str) -> None:
    letters = node.queue(f"{name}-letters")
    queue = node.queue(name, dead_letter_exchange="", dead_letter_routing_key=letters.name)
    for _ in range(20):
        queue.put(b"x")
    rejected = 0
    while rejected < 20:
        found = queue.get_many(20, timeout=WAIT)
        for message in found:
            message.reject()
        rejected += len(found)
    queue.delete(if_empty=True)
    got = 0
    while got < 20:
        found = letters.get_many(20, timeout=WAIT)
        assert found
        got += len(found)
        found[-1].ack(multiple=True)


class Traffic:
    """A publisher that waits for each confirm, and a consumer, until their queue is gone."""

    def __init__(self, queue: warren.Queue) -> None:
        self.queue = queue
        self.confirmed = self.received = 0
        self.threads = [threading.Thread(target=self.publish), threading.Thread(target=self.consume)]

    def publish(self) -> None:
        with contextlib.suppress(warren.QueueNotFound):
            while True:
                self.queue.put(b"x")
                self.confirmed += 1

    def consume(self) -> None:
        with contextlib.suppress(warren.QueueNotFound):
            while True:
                found = self.queue.get_many(10, timeout=WAIT, ahead=False)
                self.received += len(found)
                found[-1].ack(multiple=True)

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        wait_until(lambda: self.received > 5, 30, what="messages")
        return self

    def __exit__(self, *_exception: object) -> None:
        for thread in self.threads:
            thread.join(60 * patience())
            assert not thread.is_alive()


def test_nothing_that_was_confirmed_goes_with_an_empty_queue(node: warren.Node, name: str) -> None:
    """A publisher and a consumer work while it is deleted again and again: each confirmed message was received."""
    for number in range(15):
        queue = node.queue(f"{name}-{number}", durable=number % 2 == 0)
        with Traffic(queue) as traffic:
            refused = 0
            deadline = time.monotonic() + 60 * patience()
            while queue.name in node.queues():
                assert time.monotonic() < deadline, f"never empty in {refused} looks"
                try:
                    node.delete_queue(queue.name, if_empty=True)
                except warren.PreconditionFailed:
                    refused += 1
        assert traffic.received == traffic.confirmed


def test_asyncio_and_the_shell(directory: Path, node: warren.Node, name: str) -> None:
    async def work() -> None:
        async with await warren.aio.attach(node.directory) as mine:
            queue = await mine.queue(name)
            await queue.put(b"x")
            with pytest.raises(warren.PreconditionFailed):
                await mine.delete_queue(name, if_empty=True)
            with pytest.raises(warren.PreconditionFailed):
                await queue.delete(if_empty=True)

    asyncio.run(work())
    said = run("queue", "delete", directory, name, "--if-empty", code=2).stderr
    assert "is not empty" in said
    assert "for one queue" in run("queue", "delete", directory, name, "b", "--if-empty", code=2).stderr
    assert run("queue", "delete", "--yes", directory, name, "--if-unused").stdout == f"queue {name} deleted\n"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", workers=2) as made:
        yield made


def barred(node: warren.Node) -> Superblock:
    return node._client.attachment().superblock


def test_a_bar_that_nobody_looks_after_is_lifted(own: RealNode) -> None:
    """By the supervisor, by its successor, and over a kill of the worker: publishers go on, and lose nothing."""
    with warren.attach(own.directory) as node:
        queue = node.queue("q")
        queue.put(b"1")
        superblock = barred(node)
        declared = node._client.catalog().queue("q")
        superblock.set("barred", 7 << 32 | declared.id)  # as a supervisor that is killed just then leaves it
        superblock.ring(2 + declared.worker)
        wait_until(lambda: superblock.server_get(2 + declared.worker, "barred_seen") == 7 << 32 | declared.id, 30)
        assert superblock.server_get(2 + declared.worker, "barred_found") == 1
        node.queue("other").put(b"x", timeout=WAIT)
        with pytest.raises(warren.TimedOut):
            queue.put(b"", timeout=0.2)
        own.kill(f"worker-{declared.worker}")
        with pytest.raises(warren.TimedOut):
            queue.put(b"", timeout=2.0)
        own.kill("supervisor")
        queue.put(b"2", timeout=WAIT * patience())
        assert superblock.get("barred") == 0
        with pytest.raises(warren.PreconditionFailed):
            node.delete_queue("q", if_empty=True)
    with ControlClient(own.directory) as control:
        control.call("stop")
    wait_until(lambda: not NodeDirectory(own.directory).locked(), 60, what="the end of the successor")


def test_who_looks_at_a_queue_keeps_its_lease(node: warren.Node, name: str) -> None:
    """Opening it as it is counts as a use, as a declaration does; else it would go with one that nobody looks at."""
    for attempt in range(5):
        node.queue(f"{name}-{attempt}-kept", expires=1.5)
        node.queue(f"{name}-{attempt}-other", expires=1.5)
        longest, last = 0.0, time.monotonic()
        while f"{name}-{attempt}-other" in node.queues():
            with contextlib.suppress(warren.QueueNotFound):
                node.queue(f"{name}-{attempt}-kept", create=False)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            time.sleep(0.05)
        if f"{name}-{attempt}-kept" in node.queues():
            return
        assert longest > 0.5, "it was looked at all the time"
