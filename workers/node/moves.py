"""Queues move with their messages when a node starts cold with another number of workers: the supervisor's part.

Which ones is decided by engine/catalog/placement.py; a child process per old worker reads and writes
(engine/queues/moving.py), because what it reads may be damaged, and a start does not end of that; the catalog is
written here, by its one writer.

Order: ids that nobody ever had are taken, and the catalog with the raised `next_queue_id` saved (the intent); the child
writes some queues under these ids into the new workers' folders, synced; the catalog that names them is saved (the
commit); the old worker's segments of them go. What is not committed is of queues that no catalog names: it is removed
here, or by the next start of the worker that it was written for.

Invariants
  The child holds the directory's lock as long as it lives, and ends with the supervisor: never two at once.
  What cannot be moved stays where it is and is served there; it is said why.
  The folder of a worker that is not started any more goes when no queue of the catalog is there: what is left of it
  after a death is still of queues that are not there.
Crash points (tests kill at each): taken, those of the child, written (not committed), committed, removing.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from logging import WARNING
from pathlib import Path
from typing import Any

import msgspec

from warren.engine.catalog.catalog import QUEUES_PER_WORKER_MAX, Catalog, QueueDeclaration
from warren.engine.catalog.placement import Family, moves
from warren.engine.config import Settings
from warren.engine.errors import CatalogCut, ClosedError, DirectoryInUse, Error, FormatVersionError
from warren.engine.kernel import data_files
from warren.engine.kernel.file_register import FileRegister
from warren.engine.kernel.paths import queues_of
from warren.engine.queues.folder import Folder, remove_queue
from warren.engine.saying import Say, counted
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.node import forked
from warren.workers.process.tie import owning, workers_there

GROUP = 64  #: families that move with one commit
POLL_S = 0.1
TELL_S = 10.0
#: what a queue worker makes in its folder
OURS = re.compile(
    r"(journal|transient)(/\d+\.jnl(\.new)?)?|transient/rows|segments(/\d+(\.dat(\.new)?|(/(\d+\.idx|terms)(\.new)?)?))?"
    r"|large(/[0-9a-f]{32}(\.new)?)?"
    r"|(terms|files|epoch|subscriptions\.json)(\.new)?",
    re.ASCII,
)


def reached(point: str) -> None:
    """A crash point; tests put something else here."""


@dataclass
class _Group:
    """Families that go from one worker to another one with one commit: their names, and old → new ids."""

    to: int
    names: list[str] = field(default_factory=list)
    ids: list[dict[int, int]] = field(default_factory=list)


@dataclass
class Mover:
    """The moves of one start, under the directory's lock. `stopped`: the start is to end; `say`: a line for people;
    `alive`: called now and then, so that whoever waits for the start goes on waiting."""

    directory: Path
    node_id: int
    settings: Settings
    catalog: Catalog
    say: Say
    stopped: Callable[[], bool] = lambda: False
    alive: Callable[[], None] = lambda: None
    messages_n: int = 0
    _left: bool = False
    _told_at: float = field(default_factory=time.monotonic)

    def run(self) -> Catalog:
        """Move what has to move; returns the catalog of now, which is saved.

        Raises ClosedError (the start is to end; the next one goes on), CatalogCut (nothing was changed), DiskFull,
        SyncFailed, StoreError of the catalog.
        """
        wanted, catalog = self.settings.workers, self.catalog
        members = catalog.families()
        families = [Family(name, items[0].worker, len(items)) for name, items in members.items()]
        before = catalog.placed_for or max((item.worker + 1 for item in families), default=wanted)
        plan = moves(families, before, wanted, QUEUES_PER_WORKER_MAX)
        if plan:
            self.say(f"{len(plan)} of {len(families)} queues move, because there are {wanted} queue workers now")
        by_source: dict[int, dict[str, int]] = {}
        for family in families:
            if family.name in plan:
                by_source.setdefault(family.worker, {})[family.name] = plan[family.name]
        ids_end = self.catalog.next_queue_id
        if plan:  # it takes ids
            for worker in workers_there(self.directory):
                self._check_ids(worker, ids_end)
        with self._owning({*by_source, *plan.values()}):
            for source, targets in sorted(by_source.items()):
                self._move_from(source, targets, members)
        self._remove_folders(ids_end)
        if self.catalog.placed_for != wanted and (wanted <= before or not self._left):
            catalog = self.catalog.copy()
            catalog.placed_for = wanted
            catalog.version += 1
            self._save(catalog)
        if plan and not self._left:
            self.say(f"moved: {counted(len(plan), 'queue')} with {counted(self.messages_n, 'message')}")
        return self.catalog

    @contextlib.contextmanager
    def _owning(self, workers: set[int]) -> Iterator[None]:
        """Own what queue workers write, waiting for those of an earlier node. Raises ClosedError: as `run`."""
        folders = sorted(map(queues_of, workers))
        told = False
        with contextlib.ExitStack() as held:
            while True:
                try:
                    held.enter_context(owning(self.directory, folders))
                except DirectoryInUse as error:
                    if not told:
                        self.say(f"queues are moved when an earlier node has ended: {error}")
                    told = True
                else:
                    break
                if self.stopped():
                    raise ClosedError("the start was ended before queues were moved; the next start does it")
                self.alive()
                time.sleep(POLL_S)
            yield

    def _save(self, catalog: Catalog) -> None:
        catalog.save(self.directory)
        self.catalog = catalog

    def _move_from(self, source: int, targets: dict[str, int], members: dict[str, list[QueueDeclaration]]) -> None:
        groups = self._groups(targets, members)
        old = [id for group in groups for ids in group.ids for id in ids]
        reached("taken")
        left: dict[str, str] = {}
        with contextlib.closing(self._child(source, groups)) as words:
            for word in words:
                if "done" in word:
                    self._commit(groups[word["done"]], word)
                left |= word.get("left", {})
                if "failed" in word:
                    stay = [name for name in targets if self.catalog.queues[name].worker == source]
                    left = dict.fromkeys(stay, word["failed"]) | left
        for group in groups:  # of those that stay; what they have in data files goes with the worker's start
            for id in (id for ids in group.ids for id in ids.values() if id not in self.catalog.by_id):
                self._remove_queue(Folder.of(self.directory, group.to), group.to, id)
        for why in sorted(set(left.values())):
            names = sorted(name for name, reason in left.items() if reason == why)
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            self.say(f"not moved, served by worker-{source} as before: {shown}: {why}", WARNING)
        self._left = self._left or bool(left)
        folder = Folder.of(self.directory, source)
        for id in old:  # its worker would read them at its start, and then do the same
            if id not in self.catalog.by_id:
                self._remove_queue(folder, source, id)

    def _remove_queue(self, folder: Folder, worker: int, id: int) -> None:
        files = FileRegister(folder.files, self.node_id, SERVER_WORKER_FIRST + worker)
        files.load()
        remove_queue(folder, id, {}, files)

    def _check_ids(self, worker: int, ids_end: int) -> None:
        """A catalog that was cut is noticed here, before ids are taken or files removed. Raises CatalogCut."""
        from warren.workers.node import catalog_cut  # here: it loads numpy

        self.alive()
        try:
            cut = catalog_cut.look(self.directory, self.node_id, worker, ids_end)
        except FormatVersionError as error:
            self.say(f"worker-{worker} cannot be searched for queues that the catalog does not know: {error}", WARNING)
        else:
            if cut is not None:
                raise CatalogCut(cut.text)

    def _remove_folders(self, ids_end: int) -> None:
        """Those of workers that are not there any more and have no queue in the catalog: all in them is of queues that
        were deleted or moved. What the store has for them it lets go when the others have said what they hold.
        """
        for worker in workers_there(self.directory):
            if worker < self.settings.workers or self.catalog.of_worker(worker):
                continue
            path = self.directory / queues_of(worker)
            strange = [item for item in path.rglob("*") if not OURS.fullmatch(str(item.relative_to(path)))]
            if strange:
                self.say(f"{path} is no longer needed, but stays, because it contains {strange[0]}", WARNING)
                continue
            self._check_ids(worker, ids_end)
            with contextlib.suppress(DirectoryInUse), owning(self.directory, [queues_of(worker)]):
                data_files.unlink(path / "files", missing_ok=True)  # from here on nothing of it is missed
                data_files.remove_tree(path / "journal", ignore_errors=True)
                reached("removing")
                data_files.remove_tree(path, ignore_errors=True)

    def _commit(self, group: _Group, word: dict[str, Any]) -> None:
        reached("written")
        catalog = self.catalog.copy()
        for name, ids in zip(group.names, group.ids, strict=True):
            if name not in word["left"]:
                catalog.move_family(group.to, ids)
        self._save(catalog)
        self.messages_n += word["messages"]
        reached("committed")

    def _groups(self, targets: dict[str, int], members: dict[str, list[QueueDeclaration]]) -> list[_Group]:
        """What moves together; the ids are nobody else's from now on, whatever happens."""
        catalog = self.catalog.copy()
        groups: list[_Group] = []
        last: dict[int, _Group] = {}
        for name, to in targets.items():
            group = last.get(to)
            if group is None or len(group.names) == GROUP:
                group = last[to] = _Group(to)
                groups.append(group)
            old = [item.id for item in members[name]]
            group.names.append(name)
            group.ids.append(dict(zip(old, catalog.take_ids(len(old)), strict=True)))
        self._save(catalog)
        return groups

    # -- the child ----------------------------------------------------------------------------------------------

    def _child(self, source: int, groups: list[_Group]) -> Generator[dict[str, Any], None, None]:
        """What the child tells, until it has ended."""
        words_read, words_write = os.pipe()
        life_read, life_write = os.pipe()

        def be_child() -> int:
            os.close(words_read)
            os.close(life_write)
            return self._be_child(source, groups, words_write, life_read)

        pid = forked.fork(be_child)
        os.close(words_write)
        os.close(life_read)
        status = -1
        try:
            yield from self._words(words_read)
            _pid, status = os.waitpid(pid, 0)
        finally:
            if status < 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            os.close(words_read)
            os.close(life_write)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            yield {"failed": f"its reader was killed by {signal.Signals(-code).name}; see the lines before"}
        elif code:
            yield {"failed": "it cannot be read; see the lines before"}

    def _words(self, pipe: int) -> Iterator[dict[str, Any]]:
        pending = b""
        while True:
            if self.stopped():
                raise ClosedError("the start was ended while queues were moved; the next start continues")
            self.alive()
            if not select.select([pipe], [], [], POLL_S)[0]:
                continue
            more = os.read(pipe, 65536)
            if not more:
                return
            *lines, pending = (pending + more).split(b"\n")
            for line in lines:
                word: dict[str, Any] = msgspec.json.decode(line)
                if "so_far" in word and time.monotonic() > self._told_at + TELL_S:
                    self._told_at = time.monotonic()
                    self.say(f"queues are moved: {self.messages_n + word['so_far']} messages so far")
                yield word

    def _be_child(self, source: int, groups: list[_Group], words: int, life: int) -> int:
        """The lock's descriptor stays open here: no other supervisor begins before this process has ended."""
        threading.Thread(target=_end_with, args=(life,), name="warren-life", daemon=True).start()

        def tell(**word: Any) -> None:
            os.write(words, msgspec.json.encode(word) + b"\n")

        try:
            self._move(source, groups, tell)
        except Error as error:
            tell(failed=str(error))
        return 0

    def _move(self, worker: int, groups: list[_Group], tell: Callable[..., None]) -> None:
        from warren.engine.queues.moving import (
            Source,  # here: it loads numpy, which no start waits for that moves nothing
        )

        source = Source(
            self.directory, self.node_id, worker, self.catalog.of_worker(worker), self.settings.queue_memory_bytes // 2
        )
        source.read()
        reached("read")
        claimed = source.claimed()

        def passed(point: str) -> None:
            reached(point)
            if point == "entries":
                tell(so_far=source.messages_n)

        for number, group in enumerate(groups):
            left = {
                name: "claims of a subscription that was deleted are still to be returned to it; at the next start"
                for name, ids in zip(group.names, group.ids, strict=True)
                if claimed & ids.keys()
            }
            wanted: dict[int, int] = {}
            for name, ids in zip(group.names, group.ids, strict=True):
                wanted |= {} if name in left else ids
            tell(done=number, left=left, messages=source.write(group.to, wanted, passed))


def _end_with(life: int) -> None:
    """End this process when the supervisor is gone, whose end of the pipe this is."""
    os.read(life, 1)
    os._exit(1)
