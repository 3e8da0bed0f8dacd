"""A catalog that was cut, or is an older copy: queues that workers have records of and it never named.

A cut at the end of a line of its log leaves no trace in it (engine/catalog/log.py). But a queue id is durable before
anybody is told, and a move saves the ids that it takes before it writes: so a record that names an id from
`next_queue_id` on can only be of a catalog that knew more. A worker that finds one at its start serves nothing, and the
node ends (workers/node/upkeep.py): no id is given again, nothing is removed.

`repair` declares these queues anew, under their ids, as `recovered-<id>`, durable, on the worker that has the records;
their names, arguments, bindings are lost. What a lost subscription had claimed goes back to its queue.
Crash points: catalog.json is replaced as a whole; before that nothing was done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from warren.engine.catalog.catalog import FILE_NAME, Catalog
from warren.engine.errors import StoreError
from warren.engine.queues.folder import Folder, read_subscriptions
from warren.engine.queues.moving import Source
from warren.engine.queues.recovery import catalog_lost
from warren.engine.saying import quoted
from warren.workers.process.tie import workers_there


@dataclass(frozen=True)
class Cut:
    """What one worker has that the catalog does not know."""

    worker: int
    recorded: set[int]  #: queue ids that have records
    named: set[int]  #: all ids that are named anywhere
    text: str  #: for people


def look(directory: Path, node_id: int, worker: int, ids_end: int) -> Cut | None:
    """Read one worker's files; `ids_end`: `next_queue_id`. Raises FormatVersionError, StoreError."""
    source = Source(directory, node_id, worker, [], 0)
    try:
        recorded, named = source.unknown(ids_end)
    finally:
        source.close()
    return Cut(worker, recorded, named, catalog_lost(source.folder, named, ids_end)) if named else None


def find(directory: Path, node_id: int, catalog: Catalog, without: Iterable[int] = ()) -> list[Cut]:
    """Read the files of all workers of a node that does not run, but for some. Raises as `look`."""
    workers = sorted(set(workers_there(directory)) - set(without))
    found = [look(directory, node_id, worker, catalog.next_queue_id) for worker in workers]
    return [cut for cut in found if cut is not None]


def repair(directory: Path, catalog: Catalog, cuts: list[Cut]) -> list[str]:
    """Declare the lost queues anew, durably, and never give an id again that was named; returns what was done.

    Raises StoreError (two workers have records of one id: it was given twice already), LimitError, DiskFull,
    PermissionRefused, SyncFailed; then nothing was changed.
    """
    wanted: dict[int, int] = {}
    highest = catalog.next_queue_id - 1
    for cut in cuts:
        subscriptions = read_subscriptions(Folder.of(directory, cut.worker))
        sources = {subscriptions[id] for id in cut.recorded & subscriptions.keys()}
        highest = max([highest, *cut.named, *subscriptions, *subscriptions.values()])
        for id in (cut.recorded - subscriptions.keys()) | {id for id in sources if id >= catalog.next_queue_id}:
            if id in wanted:
                raise StoreError(
                    f"worker-{wanted[id]} and worker-{cut.worker} both have records of a queue with id {id}: restore "
                    f"{FILE_NAME} and catalog.*.log, all from the same moment, from a backup of {directory}"
                )
            wanted[id] = cut.worker
    names = {id: catalog.recover_queue(id, worker).name for id, worker in sorted(wanted.items())}
    catalog.next_queue_id = highest + 1
    catalog.version += 1
    catalog.save(directory)
    said = [
        f"{directory / FILE_NAME}: queue {id} of worker-{wanted[id]} was lost; it is declared again as {quoted(name)}"
        for id, name in names.items()
    ]
    return [*said, f"{directory / FILE_NAME}: the next queue gets id {catalog.next_queue_id}"]
