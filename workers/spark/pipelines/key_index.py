"""`keyindex-rebuild`: is the key index what the log says? And with the node down it is made again.

Both is done by the core, as for `warren check`: there is one writer of the format. A rebuild makes consume queues and
checkpoint again, too, because they go together. Crash points: those of the rebuild (engine/topics/rebuild.h); after one
that is cut short the next start, or another run, makes all of it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from warren.engine.catalog import log as catalog_log
from warren.engine.catalog import ownership
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import DirectoryInUse, StoreError
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.saying import command
from warren.engine.topics.check import TopicsCheck
from warren.workers.process.tie import data_folders, owning, served

#: of what `engine/topics/check.py` looks at: what is said of the key index
KEYS = "keys"


class Compared(NamedTuple):
    """What was found. `other`: what is wrong elsewhere in the folder of topics, which a rebuild needs to be whole."""

    keys: int
    problems: list[str]
    other: list[str]
    rebuilt: list[str]


def compare(path: str, progress: Callable[[int, int], None], rebuild: bool = False) -> Compared:
    """Compare the key index with the log; `rebuild`: make it again, if something is wrong, and compare once more.

    Raises NodeNotRunning (no data directory), DirectoryInUse (a rebuild wants the node down), StoreError.
    """
    directory = NodeDirectory(path)
    directory.check_made(makes=False)
    with _alone(directory) if rebuild else contextlib.nullcontext():
        check = _check(directory, not rebuild and (directory.in_use() or served(directory.path)))
        check.examine(progress)
        found = _compared(check)
        if rebuild and found.problems:
            done = check.repair(progress)
            check = _check(directory, False)
            check.examine(progress)
            found = _compared(check)._replace(rebuilt=done)
    return found


def _check(directory: NodeDirectory, running: bool) -> TopicsCheck:
    node = directory.read()
    folder = TopicsFolder.of(directory.path)
    if not folder.path.is_dir():
        raise StoreError(f"{folder.path} is missing: this node never had a topic")
    declared = catalog_log.load(directory.path).catalog.topics
    topics = [(item.id, item.name.encode(), item.queues) for item in declared.values()]
    compacted = {item.id for item in declared.values() if item.compacted}
    return TopicsCheck(folder, node.node_id, node.settings, topics, running, compacted)


def _compared(check: TopicsCheck) -> Compared:
    wrong = [item for item in check.found if item.problem]
    return Compared(
        sum(item.records for item in check.found if item.kind == KEYS),
        [f"{item.path}: {item.problem}" for item in wrong if item.kind == KEYS],
        [f"{item.path}: {item.problem}" for item in wrong if item.kind != KEYS],
        [],
    )


@contextlib.contextmanager
def _alone(directory: NodeDirectory) -> Iterator[None]:
    """The directory is ours while this lasts, as a repair wants it."""
    directory.check_owner()
    ownership.share(directory.read().settings.group)
    try:
        directory.lock()
    except DirectoryInUse as error:
        raise DirectoryInUse(
            directory.foreign_lock()
            or f"the key index of {directory.path} cannot be made again while its node runs: stop it with "
            f"{command('stop', directory.path)}"
        ) from error
    try:
        with owning(directory.path, data_folders(directory.path)):
            yield
    finally:
        directory.unlock()
