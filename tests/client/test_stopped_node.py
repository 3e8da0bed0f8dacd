"""Goal: rule C17, for programs: who sends again what a stopped node did not take has each message once, in order.

Method: threads hand over call after call, several ahead of their confirms, while a real node is stopped and started
several times; short rings make most stops meet a call in the middle. The numbers of each producer are in order and
without a gap then.
"""

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import warren
from warren.engine.errors import ClosedError, PeerLost, QueueFull
from warren.workers.faces.aio import loop as aio_loop

from support.real_node import RealNode
from support.waiting import wait_until

STOPS, CALL, AHEAD = 3, 1500, 4
Bodies = list[bytes]


class Producer:
    """Sends numbers in calls until `over` is set, and again what was not taken."""

    def __init__(self, send: Callable[[Bodies], Any], over: threading.Event) -> None:
        self.send = send
        self.over = over
        self.made = 0
        self.met = 0  #: stops
        self.left: deque[Bodies] = deque()
        self.ahead: deque[tuple[Bodies, Any]] = deque()

    def run(self) -> int:
        """How many it has sent."""
        while not self.over.is_set() or self.left or self.ahead:
            if not self.over.is_set() and not self.left:
                self.left.append([b"%d" % n for n in range(self.made, self.made + CALL)])
                self.made += CALL
            if self.left and len(self.ahead) < AHEAD:
                self.hand_over(self.left.popleft())
            elif rest := self.settled():
                self.again([rest])
        return self.made

    def hand_over(self, bodies: Bodies) -> None:
        try:
            self.ahead.append((bodies, self.send(bodies)))
        except (ClosedError, PeerLost) as error:  # it is being stopped, or does not run
            if (confirm := getattr(error, "confirm", None)) is not None:
                self.ahead.append((bodies, confirm))
                self.again([])
            else:
                self.again([], bodies)
            self.over.wait(0.02)

    def again(self, first: list[Bodies], last: Bodies | None = None) -> None:
        """The node has stopped: what it did not take of all calls comes next, in order."""
        self.met += 1
        while self.ahead:
            first.append(self.settled())
        if last is not None:
            first.append(last)
        self.left.extendleft(reversed([bodies for bodies in first if bodies]))

    def settled(self) -> Bodies:
        bodies, confirm = self.ahead.popleft()
        try:
            confirm.wait(120)
        except ClosedError as error:
            if not error.not_taken:
                raise
            return [bodies[n] for n in error.not_taken]
        return []


def test_what_was_not_taken_is_sent_again_and_is_there_once(tmp_path: Path) -> None:
    over = threading.Event()
    with RealNode(tmp_path / "data") as real:
        with warren.attach(real.directory) as node:
            node.queue("one"), node.queue("other")
            node.topic("t", queues=2)
        with (
            warren.attach(real.directory) as first,
            warren.attach(real.directory) as second,
            concurrent.futures.ThreadPoolExecutor(3) as pool,
        ):
            one, other = first.queue("one"), second.queue("other")
            topic = second.topic("t", create=False)
            producers = [
                Producer(lambda bodies: one.put_many(bodies, wait=False), over),
                Producer(lambda bodies: other.put_many(bodies, wait=False), over),
                Producer(lambda bodies: topic.append_many(bodies, queue=1, wait=False), over),
            ]
            running = [pool.submit(producer.run) for producer in producers]
            try:
                for _ in range(STOPS):
                    before = [producer.made for producer in producers]

                    def go_on(before: list[int] = before) -> bool:
                        sent = zip(producers, before, strict=True)
                        return all(it.made > n + 2 * CALL for it, n in sent) or any(task.done() for task in running)

                    wait_until(go_on, timeout=120, what="all producers")
                    real.stop()
                    real.start()
            finally:
                over.set()
            made = [task.result() for task in running]
        assert all(producer.met for producer in producers)
        with warren.attach(real.directory) as node:
            for name, n in zip(("one", "other"), made, strict=False):
                found = [
                    int(value) for batch in node.queue(name).browse_arrow() for value in batch["value"].to_pylist()
                ]
                assert found == list(range(n))
            records: list[int] = []
            topic = node.topic("t", create=False)
            while batch := topic.read(1, len(records), max=10_000).records:
                records += [int(record.body) for record in batch]
            assert records == list(range(made[2]))


def test_asyncio_names_them_by_their_numbers_in_the_call() -> None:
    """Method: a call in three parts, of which one is full, too, in the second case."""

    def outcome(*errors: Exception | None) -> Any:
        async def confirmed(part: Exception | None, _deadline: float | None) -> None:
            if part is not None:
                raise part

        loop: Any = SimpleNamespace(confirmed=confirmed)
        parts: Any = [(10 * number, error) for number, error in enumerate(errors)]
        with pytest.raises((ClosedError, QueueFull)) as raised:
            asyncio.run(aio_loop.Confirm[None](loop, parts).wait(1))
        return raised.value

    def closed(*numbers: int) -> ClosedError:
        error = ClosedError("stopped")
        error.not_taken = numbers
        return error

    full = QueueFull("full")
    full.refused = (1, 7)
    assert outcome(None, closed(8, 9), closed(0, 1, 2)).not_taken == (18, 19, 20, 21, 22)
    assert outcome(full, None, closed(5)).refused == (1, 7, 25)
    whole = ClosedError("closed by its owner")
    assert outcome(whole) is whole
