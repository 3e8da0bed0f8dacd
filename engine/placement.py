"""Which queue worker gets a new queue, and which workers a node needs.

Rendezvous hashing with a bound: every worker has a weight for a name, and the heaviest one that is not too full gets
the queue. So a name goes to the same worker on every node with as many workers, and one worker more takes names from
all others alike. The bound keeps few queues evenly spread; many may differ by `SLACK`.

A queue stays where it was placed. A node whose setting `workers` is lowered goes on with the workers that still have
something: they get no new queues, and a start without anything of theirs is a start without them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

#: how much more than its share a worker may have, once shares are large enough for that to be a queue
SLACK = 1.25


def weight(name: str, worker: int) -> int:
    """Of a worker for a name: the same everywhere, and as if at random."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, salt=b"%d" % worker).digest(), "big")


def place(name: str, loads: Mapping[int, int], queues_n: int = 1) -> int:
    """The worker for `queues_n` queues that belong together under this name; `loads`: worker → queues that it has."""
    share = (sum(loads.values()) + queues_n) / len(loads)
    bound = max(-(-(sum(loads.values()) + queues_n) // len(loads)), int(SLACK * share))
    fits = [worker for worker, load in loads.items() if load + queues_n <= bound]
    # queues that belong together may be more than a share: then the emptiest workers
    fits = fits or [worker for worker, load in loads.items() if load == min(loads.values())]
    return max(fits, key=lambda worker: (weight(name, worker), -worker))


def workers_needed(directory: Path, wanted: int, used: Iterable[int], most: int) -> int:
    """How many workers a start needs: as many as are wanted, and those that still have something.

    `used`: workers of queues in the catalog; `most`: as many as there can be. A worker that did not stop in good order
    may have something in its journal that the store knows of, whatever the catalog says.
    """
    from warren.engine.queue_index import Folder  # here: clients place nothing, and it loads numpy

    needed = max([wanted, *(worker + 1 for worker in used)])
    for worker in range(needed, most):
        folder = Folder.of(directory, worker)
        if folder.journal.exists() and not folder.terms.exists():
            needed = worker + 1
    return needed
