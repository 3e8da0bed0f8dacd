"""Which queue worker gets a new queue, and which queues move when a node starts with more or fewer workers.

Rendezvous hashing with a bound: every worker has a weight for a name, and the heaviest one that is not too full gets
the queue. So a name goes to the same worker on every node with as many workers, and one worker more takes names from
all others alike. The bound keeps few queues evenly spread; many may differ by `SLACK`.

A queue stays where it was placed while a node runs. A start with more workers gives the new ones what they are
heaviest for, and what is too much elsewhere; a start with fewer places anew what the missing ones had
(workers/node/moves.py). What cannot be moved stays: its worker is started, too, and gets no new queues.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: how much more than its share a worker may have, once shares are large enough for that to be a queue
SLACK = 1.25


def weight(name: str, worker: int) -> int:
    """Of a worker for a name: the same everywhere, and as if at random."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, salt=b"%d" % worker).digest(), "big")


def bound_of(queues_n: int, workers_n: int) -> int:
    """As many queues as one of the workers may have."""
    return max(-(-queues_n // workers_n), int(SLACK * queues_n / workers_n))


def place(name: str, loads: Mapping[int, int], queues_n: int = 1) -> int:
    """The worker for `queues_n` queues that belong together under this name; `loads`: worker → queues that it has."""
    bound = bound_of(sum(loads.values()) + queues_n, len(loads))
    fits = [worker for worker, load in loads.items() if load + queues_n <= bound]
    # queues that belong together may be more than a share: then the emptiest workers
    fits = fits or [worker for worker, load in loads.items() if load == min(loads.values())]
    return max(fits, key=lambda worker: (weight(name, worker), -worker))


@dataclass(frozen=True)
class Family:
    """A queue and those that belong to it, which stay together: `queues_n` queues on one worker."""

    name: str
    worker: int
    queues_n: int = 1


def moves(families: Sequence[Family], before: int, wanted: int, most: int) -> dict[str, int]:
    """Which families go to which worker when a node had `before` workers and starts with `wanted` ones.

    As few as possible: a second start, also one after a death in between, finds nothing more to move. `most`: queues
    that a worker can have.
    """
    workers = range(wanted)
    loads = dict.fromkeys(workers, 0)
    for family in families:
        if family.worker < wanted:
            loads[family.worker] += family.queues_n
    plan: dict[str, int] = {}
    bound = min(most, bound_of(sum(family.queues_n for family in families), wanted))

    def go(family: Family, to: int) -> None:
        if family.worker < wanted:
            loads[family.worker] -= family.queues_n
        loads[to] += family.queues_n
        plan[family.name] = to

    if before < wanted:
        old = [family for family in families if family.worker < before]
        for family in old:
            to = max(workers, key=lambda worker: (weight(family.name, worker), -worker))
            if to >= before and loads[to] + family.queues_n <= bound:
                go(family, to)

        def gain(family: Family) -> int:
            return max(weight(family.name, worker) for worker in range(before, wanted)) - weight(
                family.name, family.worker
            )

        for family in sorted((item for item in old if item.name not in plan), key=gain, reverse=True):
            fits = [worker for worker in workers if loads[worker] + family.queues_n <= bound]
            if fits and loads[family.worker] > bound:
                go(family, max(fits, key=lambda worker: (weight(family.name, worker), -worker)))
    for family in families:
        if family.worker >= wanted and family.name not in plan:
            to = place(family.name, loads, family.queues_n)
            if loads[to] + family.queues_n <= most:
                go(family, to)
    return plan
