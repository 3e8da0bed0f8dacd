"""Whether the bodies that rows of queues name are there, in the message store and in files of their own; for `warren
check` of a node that does not run.

A row says only an id. Two parts of a directory that are each sound may be of different moments: a copy that was made
while the node ran, or an older copy of the whole store. Then ids lead nowhere, which no checksum tells.

Compared: rows of queues that outlive the node, as the next start will read them, with every record of the store's
files. Not compared: messages in journals and data files (they lie with their rows), rows of deleted subscriptions that
are still to be returned, and what programs keep in the store themselves (nothing else names it).

After a kill or a power loss rows may lack their bodies although nothing is lost: a row can be durable before its body
(its publisher was told nothing yet), and a body can go before the acknowledgement of its message is durable. Nobody can
tell these from others by the files. So what is found is certain only when both sides ended in good order.

A large message's file is durable before its row, and goes after its acknowledgement is durable: one that a row lacks is
always damage. Each is read, and its checksums are compared. Files that no row names are left to the next start.

Memory: about 50 bytes for each such row, and the rows of one worker up to a limit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warren.engine import _core
from warren.engine.catalog.catalog import Catalog, QueueDeclaration
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.formats import KIND_MESSAGE
from warren.engine.queues.folder import Folder
from warren.engine.queues.large_files import ID_BYTES
from warren.engine.queues.moving import Source
from warren.engine.saying import quoted


@dataclass(frozen=True)
class Bodiless:
    """Messages of one queue without their bodies."""

    queue: QueueDeclaration
    messages: int


@dataclass(frozen=True)
class LargeFile:
    """The file of a large message, and what is wrong with it."""

    path: Path
    queue: QueueDeclaration
    size: int
    problem: str


def compare(
    directory: Path,
    node_id: int,
    catalog: Catalog,
    workers: Iterable[int],
    lists: Callable[[], Iterable[_core.FileList]],
    memory_bytes: int,
    progress: Callable[[int, int], None],
) -> tuple[list[Bodiless], list[LargeFile]]:
    """What has no body in the store, by queue; and the files of large messages. Nothing is changed. `lists`: what the
    store's files hold; `memory_bytes`: of rows.

    `progress(done, all)` is called after each worker. Raises FormatVersionError, StoreError.
    """
    runs: list[tuple[QueueDeclaration, NDArray[np.bytes_]]] = []
    files: list[LargeFile] = []
    workers = list(workers)
    for done, worker in enumerate(workers, 1):
        source = Source(directory, node_id, worker, catalog.of_worker(worker), memory_bytes)
        try:
            named: dict[bytes, QueueDeclaration] = {}
            for queue, stored, large in source.apart():
                if len(stored):
                    runs.append((queue, stored))
                named |= {id.ljust(ID_BYTES, b"\0"): queue for id in large.tolist()}
            files += _look(source.folder, node_id, named)
        finally:
            source.close()
        progress(done, len(workers))
    if not runs:
        return [], files
    missing = _without(np.unique(np.concatenate([ids for _queue, ids in runs])), lists())
    if not len(missing):
        return [], files
    found: dict[int, tuple[QueueDeclaration, int]] = {}
    for queue, ids in runs:
        n = int(np.isin(ids, missing).sum()) + found.get(queue.id, (queue, 0))[1]
        if n:
            found[queue.id] = queue, n
    return [Bodiless(queue, n) for queue, n in found.values()], files


def _look(folder: Folder, node_id: int, named: dict[bytes, QueueDeclaration]) -> Iterator[LargeFile]:
    """All of the files that rows name. Raises StoreError."""
    if not named:
        return
    with atomic_file.file_explained(f"cannot read {folder.large}"):
        if not folder.large.is_dir():
            for id, queue in named.items():
                yield LargeFile(folder.large / id.hex(), queue, 0, "is missing: its message is lost")
            return
        directory = data_files.open_folder(folder.large)
        try:
            for id, queue in sorted(named.items()):
                path = folder.large / id.hex()
                try:
                    size, _meta, wrong = _core.large_check(directory, node_id, id)
                except FileNotFoundError:
                    yield LargeFile(path, queue, 0, "is missing: its message is lost")
                    continue
                except OSError as error:  # a member of the group may have put something in its place
                    if atomic_file.is_limit(error):
                        raise
                    yield LargeFile(path, queue, 0, f"cannot be read: {error.strerror}")
                    continue
                problem = f"bad {wrong}: its message, of queue {quoted(queue.name)}, is lost" if wrong else ""
                yield LargeFile(path, queue, size, problem)
        finally:
            os.close(directory)


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
