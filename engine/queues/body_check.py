"""Whether the message store has the bodies that rows of queues name; for `warren check` of a node that does not run.

A row says only an id. Two parts of a directory that are each sound may be of different moments: a copy that was made
while the node ran, or an older copy of the whole store. Then ids lead nowhere, which no checksum tells.

Compared: rows of queues that outlive the node, as the next start will read them, with every record of the store's
files. Not compared: messages in journals and data files (they lie with their rows), rows of deleted subscriptions that
are still to be returned, and what programs keep in the store themselves (nothing else names it).

After a kill or a power loss rows may lack their bodies although nothing is lost: a row can be durable before its body
(its publisher was told nothing yet), and a body can go before the acknowledgement of its message is durable. Nobody can
tell these from others by the files. So what is found is certain only when both sides ended in good order.

Memory: about 50 bytes for each such row, and the rows of one worker up to a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warren.engine import _core
from warren.engine.catalog.catalog import Catalog, QueueDeclaration
from warren.engine.kernel.formats import KIND_MESSAGE
from warren.engine.queues.moving import Source


@dataclass(frozen=True)
class Bodiless:
    """Messages of one queue without their bodies."""

    queue: QueueDeclaration
    messages: int


def compare(
    directory: Path,
    node_id: int,
    catalog: Catalog,
    workers: Iterable[int],
    lists: Callable[[], Iterable[_core.FileList]],
    memory_bytes: int,
    progress: Callable[[int, int], None],
) -> list[Bodiless]:
    """What has no body, by queue; nothing is changed. `lists`: what the store's files hold; `memory_bytes`: of rows.

    `progress(done, all)` is called after each worker. Raises FormatVersionError, StoreError.
    """
    runs: list[tuple[QueueDeclaration, NDArray[np.bytes_]]] = []
    workers = list(workers)
    for done, worker in enumerate(workers, 1):
        source = Source(directory, node_id, worker, catalog.of_worker(worker), memory_bytes)
        try:
            runs += source.stored()
        finally:
            source.close()
        progress(done, len(workers))
    if not runs:
        return []
    missing = _without(np.unique(np.concatenate([ids for _queue, ids in runs])), lists())
    if not len(missing):
        return []
    found: dict[int, tuple[QueueDeclaration, int]] = {}
    for queue, ids in runs:
        n = int(np.isin(ids, missing).sum()) + found.get(queue.id, (queue, 0))[1]
        if n:
            found[queue.id] = queue, n
    return [Bodiless(queue, n) for queue, n in found.values()]


def _without(wanted: NDArray[np.bytes_], lists: Iterable[_core.FileList]) -> NDArray[np.bytes_]:
    """Those of some sorted ids that no file holds."""
    there = np.zeros(len(wanted), dtype=bool)
    for held in lists:
        packed = b"".join(item[0] for item in held.items() if item[5] == KIND_MESSAGE)
        if not packed:
            continue
        ids = np.frombuffer(packed, dtype=np.dtype((np.bytes_, 16)))
        places = np.minimum(np.searchsorted(wanted, ids), len(wanted) - 1)
        there[places[wanted[places] == ids]] = True
    missing: NDArray[np.bytes_] = wanted[~there]
    return missing
