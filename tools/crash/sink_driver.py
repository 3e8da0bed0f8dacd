"""What a Spark driver and its tasks do with a sink, without Spark: the victim of `python -m warren.tools.crash sink`.
It begins in a fraction of the time, so it can be killed hundreds of times.

    python -m warren.tools.crash.sink_driver '{"path", "work", "topics", "rows"}'

Batch n has the numbers n · rows …, and is repeated until the log of batches (`checkpoint/commits`) has it, as Spark has
one: written behind the commit. It ends when the file `stop` is there.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

from warren.engine.errors import ClosedError, Error, PeerLost, TimedOut
from warren.engine.kernel import atomic_file
from warren.engine.transactions.folder import PartName
from warren.engine.transactions.parts import Destination, Part, PartWriter
from warren.engine.transactions.sink import Batch, Sink
from warren.workers.faces import transactions
from warren.workers.faces.node import attach, client_of

QUERY = "11111111-2222"
TASKS = 2
TIMEOUT_S = 60.0


def destinations(path: str, topics: list[str]) -> list[Destination]:
    """The queues of all topics."""
    with attach(path, name="planner", timeout=TIMEOUT_S) as node:
        catalog = client_of(node).catalog()
        found = []
        for name in topics:
            id, queues = transactions.topic_of(catalog, name)
            found += [Destination("topic", name, id, queue) for queue in range(queues)]
        return found


def stage(sink: Sink, batch: Batch, task: int, rows: int, places: list[Destination]) -> Part:
    """A task's share of a batch."""
    assert batch.number is not None
    with PartWriter(sink.folder, PartName.new(QUERY, batch.number, task)) as writer:
        for number in range(batch.number * rows + task, (batch.number + 1) * rows, TASKS):
            writer.add(places[number // 7 % len(places)], b"%d" % number, None if number % 5 else f"k{number % 97}")
        return writer.close()


def main(task: dict[str, Any]) -> int:
    """Run the driver; returns its exit code."""
    work, rows = Path(task["work"]), int(task["rows"])
    commits = work / "checkpoint" / "commits"
    atomic_file.make_directories(commits)
    sink = transactions.sink_of(task["path"], "campaign", TIMEOUT_S)
    run = str(uuid.uuid4())
    while not (work / "stop").exists():
        number = 1 + max((int(path.name) for path in commits.iterdir() if path.name.isdigit()), default=-1)
        batch = Batch(QUERY, number, run)
        try:
            parts: list[Part] = []
            if not sink.enter(batch):
                places = destinations(task["path"], task["topics"])
                stage(sink, batch, 1, rows, places)  # an attempt that loses
                parts = [stage(sink, batch, each, rows, places) for each in range(TASKS)]
            transactions.commit(task["path"], sink, batch, parts, TIMEOUT_S, "committer")
        except (PeerLost, ClosedError, TimedOut) as error:
            print(f"query ended: {error}", file=sys.stderr, flush=True)
            run = str(uuid.uuid4())
            continue
        except Error as error:
            print(f"query failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return 4
        atomic_file.replace(commits / str(number), b"")
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
