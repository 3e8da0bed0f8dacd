"""Goal: a queue goes by itself when its rule says so, and not while a worker is being restarted.

Method: the judgement alone, with invented sights and clocks.
"""

import math
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from warren.engine.catalog.catalog import Catalog
from warren.ipc.layout import CONSTANTS
from warren.workers.node.queue_life import DECLARED_S, QueueLife, Sight
from warren.workers.node.supervisor import Supervisor


class World:
    """One queue of worker 0, a clock, and what the supervisor would see."""

    def __init__(self, **arguments: object) -> None:
        self.catalog = Catalog()
        self.queue = self.catalog.declare_queue("q", workers_n=1, arguments=arguments, client=7)
        self.catalog.declare_queue("plain", workers_n=1)
        self.life = QueueLife()
        self.now = 1000.0
        self.life.declared(self.queue, self.now)

    def look(
        self,
        after: float,
        row: Mapping[str, int] | None = None,
        serving: bool = True,
        clients: tuple[int, ...] = (7, 8),
    ) -> bool:
        """Is the queue to go, so much later?"""
        self.now += after
        rows = {} if row is None else {self.queue.id: row}
        ended = self.life.ended(self.catalog, Sight(self.now, rows, {0} if serving else set(), set(clients)))
        assert set(ended) <= {"q"}
        return "q" in ended


def test_plain_queues_stay_and_cost_nothing() -> None:
    catalog = Catalog()
    catalog.declare_queue("q", workers_n=1, arguments={"message_ttl": 1})
    assert QueueLife().leased(catalog) == []


def test_an_exclusive_queue_goes_with_its_client() -> None:
    world = World(exclusive=True)
    assert not world.look(100)
    assert world.look(0.1, clients=(8,))
    assert world.look(0.1, clients=(), serving=False), "whether or not its worker serves"


def test_auto_delete_waits_for_a_first_consumer() -> None:
    world = World(auto_delete=True)
    assert not world.look(100)
    assert not world.look(100, {"asked": 5}), "a get is no consumer"
    assert not world.look(1, {"consumed": 1, "consuming": 1})
    assert not world.look(1, {"consumed": 1, "consuming": 0, "unacked": 3}), "somebody still has messages of it"
    assert world.look(1, {"consumed": 1, "consuming": 0})


def test_a_consumer_between_two_looks_counts() -> None:
    world = World(auto_delete=True)
    assert world.look(DECLARED_S + 1, {"consumed": 1, "consuming": 0})


def test_who_declares_has_time_to_consume() -> None:
    world = World(auto_delete=True)
    assert not world.look(DECLARED_S / 2, {"consumed": 1})
    world.life.declared(world.queue, world.now)
    assert not world.look(DECLARED_S * 0.9, {"consumed": 1})
    assert world.look(DECLARED_S * 0.2, {"consumed": 1})


def test_a_restarted_worker_knows_no_consumers_yet() -> None:
    world = World(auto_delete=True)
    assert not world.look(10, {"consumed": 1, "consuming": 1})
    assert not world.look(1, None, serving=False)
    assert not world.look(10, {"consumed": 0, "consuming": 0}), "its consumer may be busy, and comes back later"
    assert not world.look(1, {"consumed": 1, "consuming": 1})
    assert world.look(1, {"consumed": 1, "consuming": 0})
    world = World(auto_delete=True)
    assert not world.look(10, {"consumed": 1, "consuming": 1})
    assert world.look(10, {"consumed": 0}, clients=()), "nobody is there who could come back"


def test_an_unused_queue_expires() -> None:
    world = World(expires=5)
    assert not world.look(4)
    world.life.declared(world.queue, world.now)
    assert not world.look(4)
    assert not world.look(0.5, {"asked": 1}), "a get"
    assert not world.look(4, {"asked": 1})
    assert not world.look(4, {"asked": 2, "consumers": 1})
    assert not world.look(50, {"asked": 2, "consumers": 1})
    assert not world.look(50, {"asked": 2, "unacked": 1})
    assert not world.look(4.9, {"asked": 2, "published": 9})
    assert world.look(0.2, {"asked": 2, "published": 10}), "publishing is no use"


def test_time_without_a_worker_does_not_count() -> None:
    world = World(expires=5)
    assert not world.look(4)
    assert not world.look(100, serving=False)
    assert not world.look(4.9)
    assert world.look(0.2)


@pytest.mark.parametrize(("state", "at_once"), [("NODE_RUNNING", True), ("NODE_DRAINING", False)])
def test_the_supervisor_sleeps_while_it_does_not_look(state: str, at_once: bool) -> None:
    """A queue with a lease is looked after while the node runs; in a drain nothing is due, and nobody spins."""
    catalog = Catalog()
    catalog.declare_queue("leased", workers_n=1, arguments={"auto_delete": True})
    supervisor: Any = object.__new__(Supervisor)
    vars(supervisor).update(
        _superblock=SimpleNamespace(state=CONSTANTS[state]),
        _clients=SimpleNamespace(next_scan=math.inf),
        _next_sample=time.monotonic() + 60,
        _roles=[],
        _drain=SimpleNamespace(due=None),
        _start=SimpleNamespace(announced=True),
        _desk=SimpleNamespace(has_leases=lambda: bool(catalog.leased)),
        _life_at=0.0,
        _control=SimpleNamespace(owes=False),
    )
    assert (supervisor._timeout() == 0) is at_once
