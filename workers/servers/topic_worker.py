"""The process of the topic worker: regions, start, serving, stop. It claims no client slot: it asks nobody.

What it serves is engine/topics/service.py. The order of a start and of a stop: TopicWorker.run. Crash points: until the
epoch is published clients wait; regions of unfinished starts are found by their names and unlinked by the next one.
What it was killed with lies in the log and in the rings of its clients (docs/design/019-topics.md).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from warren.engine import _core
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.config import Settings
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.paths import TOPICS, TopicsFolder
from warren.engine.kernel.protocol import LAYOUT_HASH, TOPIC_ROWS, TOPIC_ROWS_BYTES
from warren.engine.saying import Voice, counted
from warren.engine.topics.compaction import Rates
from warren.engine.topics.declared import Changes, Declaration
from warren.engine.topics.names import node_bytes
from warren.engine.topics.retention import Marks, Place, Policy
from warren.engine.topics.service import Options, Recovered, TopicService, boot_bytes, tell
from warren.ipc import region as regions
from warren.ipc.layout import CONSTANTS, PAGE_BYTES
from warren.ipc.superblock import Superblock
from warren.workers.process import logs
from warren.workers.servers.worker_process import WorkerProcess, run_worker

CATALOG_STEPS = 100  #: of a change that are read before the clock is looked at

#: one line into the topic worker's log
say = Voice()


@dataclass
class _Memory:
    """The regions of one incarnation."""

    old: list[int]  #: generations of regions that were there
    generation: int
    ring: regions.Region
    rows: regions.Region


class TopicWorker(WorkerProcess):
    """One incarnation of the topic worker."""

    WHATS = ("tring", "trows")
    CRASH_POINTS: ClassVar[Mapping[str, int]] = {
        "recovered": CONSTANTS["CRASH_TOPIC_RECOVERED"],
        "settled": CONSTANTS["CRASH_TOPIC_SETTLED"],
        "begun": CONSTANTS["CRASH_TOPIC_BEGUN"],
        "file.made": CONSTANTS["CRASH_TOPIC_FILE_MADE"],
        "retain.raised": CONSTANTS["CRASH_RETAIN_RAISED"],
        "retain.told": CONSTANTS["CRASH_RETAIN_TOLD"],
        "retain.removed": CONSTANTS["CRASH_RETAIN_REMOVED"],
        "compact.written": CONSTANTS["CRASH_COMPACT_WRITTEN"],
        "compact.renamed": CONSTANTS["CRASH_COMPACT_RENAMED"],
        "later.saved": CONSTANTS["CRASH_TOPIC_LATER_SAVED"],
        "halves.saved": CONSTANTS["CRASH_TOPIC_HALVES_SAVED"],
    }

    def __init__(self, directory: Path, shared_id: int, settings: Settings, supervisor_pidfd: int | None) -> None:
        superblock = Superblock.attach(shared_id, LAYOUT_HASH)
        server = superblock.get("topic_server")
        super().__init__(directory, shared_id, server, settings, supervisor_pidfd, superblock, say)
        self.folder = TopicsFolder.of(Path())  # `tie.enter`: of the directory that is open, not of its path
        self._folder_fd = -1
        self._catalog = catalog_log.Reader(Path())

    # -- life ---------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until told to stop; returns the exit code.

        The order of the steps is the crash protocol: a death between any two leaves what the next start needs.
          take          the folder is this process's alone; the state is RECOVERING
          make_regions  under a higher generation; nobody looks for them yet
          start         the log is walked, settled and begun; clients are attached at their marks
          announce      generation, alarms, READY, and last the epoch: from then on clients come
          serve         until told to stop: rings finished, log synced, dispatch caught up, checkpoint
          leave         regions unlinked
        """
        began = time.monotonic()
        if not self._take():
            return 0
        memory = self._make_regions()
        service = self._service(memory)
        with self._signals(service.server):
            try:
                found = service.start()
                self._announce(service, memory)
                self._tell_start(found, time.monotonic() - began)
                clean = self._serve(service)
            except BaseException:
                service.release()
                raise
        self._leave(memory)
        self._tell_end(clean, "everything is saved" if clean else "not all that was appended is synced")
        return 0

    def _take(self) -> bool:
        """Own the folder, and say that it is being recovered. False: the node ends, or another one has it."""
        superblock = self.superblock
        self.tie.enter()
        needed = str(self.folder.log) if superblock.server_get(self.server, "epoch") else ""
        if not self.tie.take(TOPICS, say, needed):
            superblock.server_set(self.server, "state", CONSTANTS["SERVER_DOWN"])  # nothing was begun
            return False
        superblock.server_set(self.server, "state", CONSTANTS["SERVER_RECOVERING"])
        with atomic_file.file_explained(f"cannot make {self.folder.log}"):
            atomic_file.make_directories(self.folder.log)
            self._folder_fd = data_files.open_folder(self.folder.path)
        self._stack.callback(os.close, self._folder_fd)
        return True

    def _make_regions(self) -> _Memory:
        old = self._old_generations()
        generation = max([*old, self.superblock.server_get(self.server, "generation")]) + 1
        ring = self._region("tring", generation, PAGE_BYTES + self.settings.topic_ring_bytes)
        rows = self._region("trows", generation, TOPIC_ROWS_BYTES, [(0, TOPIC_ROWS.size)])
        return _Memory(old, generation, ring, rows)

    def _service(self, memory: _Memory) -> TopicService:
        """The server and the service around it; they have touched nothing yet."""
        settings = self.settings
        ring = os.open(regions.SHM_DIRECTORY + memory.ring.name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            server = _core.TopicServer(
                self.superblock.buffer,
                self.server,
                self._folder_fd,
                ring,
                memory.rows.buffer,
                node_bytes(self.superblock.node_id),
                boot_bytes(self._folder_fd),
                ring_bytes=settings.topic_ring_bytes,
                log_file_bytes=settings.log_file_bytes,
                consume_queue_entries=settings.consume_queue_entries,
                index_slots=settings.index_slots,
                index_entries=settings.index_entries,
                spin_us=settings.spin_us,
                tick_ms=settings.sync_tick_ms,
                commit_bytes=settings.commit_bytes,
                delayed_max=settings.delayed_messages_max,
                halves_max=settings.half_messages_max,
                half_outcomes=settings.half_outcomes_kept,
                half_after_ms=round(settings.half_after_s * 1000),
                half_interval_ms=round(settings.half_interval_s * 1000),
                half_checks=settings.half_checks_max,
            )
        finally:
            os.close(ring)
        return TopicService(
            server,
            Options(
                superblock=self.superblock,
                server=self.server,
                group_release_s=settings.group_release_s,
                half_after_s=settings.half_after_s,
                place=Place(
                    folder=self.folder,
                    log_file_bytes=settings.log_file_bytes,
                    ring=memory.ring.buffer,
                    rows=memory.rows.buffer,
                    consume_queue_entries=settings.consume_queue_entries,
                    index_slots=settings.index_slots,
                    index_entries=settings.index_entries,
                    ring_bytes=settings.topic_ring_bytes,
                ),
                policy=Policy(
                    check_s=settings.retention_check_s,
                    marks=Marks(settings.topics_disk_quick, settings.topics_disk_forced, settings.topics_disk_full),
                ),
                rates=Rates(
                    settings.compaction_dirty,
                    settings.compaction_keys,
                    settings.compaction_tombstone_s,
                    settings.compaction_bytes_per_s,
                ),
                load_catalog=self._load_catalog,
                follow_catalog=self._follow_catalog,
                timer=self._timer,
                reached=self._reached,
                say=say,
            ),
        )

    def _announce(self, service: TopicService, memory: _Memory) -> None:
        """Clients look at the epoch, and then at what was said before it."""
        superblock = self.superblock
        epoch = superblock.server_get(self.server, "epoch") + 1
        service.begin(epoch)
        superblock.server_set(self.server, "generation", memory.generation)
        superblock.server_set(self.server, "error", 0)
        superblock.server_set(self.server, "alarms", 0)
        superblock.server_set(self.server, "state", CONSTANTS["SERVER_READY"])
        superblock.server_set(self.server, "epoch", epoch)
        self._forget(memory.old)

    def _tell_start(self, found: Recovered, took_s: float) -> None:
        say(f"ready in {took_s:.3f} s: {counted(found.topics, 'topic')}, the log ends at {found.position:,}")
        tell(say, found)

    def _serve(self, service: TopicService) -> bool:
        """Serve until told to stop; whether everything is on disk then."""
        self._served_at = time.monotonic()
        service.serve()
        self._stopping_at = time.monotonic()
        self.superblock.server_set(self.server, "state", CONSTANTS["SERVER_STOPPING"])
        return service.stop()

    def _leave(self, memory: _Memory) -> None:
        self._forget([memory.generation])
        self.superblock.server_set(self.server, "state", CONSTANTS["SERVER_DOWN"])

    def _forget(self, generations: list[int]) -> None:
        """Regions that nobody writes any more: who sleeps on their rows looks for the next ones."""
        for generation in generations:
            self._wake(generation)
        self._unlink(generations)

    def _wake(self, generation: int) -> None:
        try:
            rows = regions.posix_open(self._name("trows", generation))
        except regions.RegionError:
            return  # that start was killed before it made them
        try:
            if rows.size == TOPIC_ROWS_BYTES:
                _core.TopicServer.wake_all(rows.buffer)
        finally:
            rows.close()

    # -- what the service asks for --------------------------------------------------------------------------------

    def _load_catalog(self) -> list[Declaration]:
        # what was told, and nothing that may still be taken back
        return list(self._catalog.load(self.superblock.get("catalog_version")).topics.values())

    def _follow_catalog(self, version: int) -> Changes | None:
        steps = self._catalog.piece(version, CATALOG_STEPS)
        if steps is None:
            return None
        came: dict[int, Declaration] = {}
        went: list[int] = []
        for step in steps:
            if step.topic is None:
                continue
            if not step.gone:
                came[step.topic.id] = step.topic
            elif came.pop(step.topic.id, None) is None:
                went.append(step.topic.id)
        return Changes(list(came.values()), went, self._catalog.version < version)


def run_topic_worker(directory: Path, shared_id: int, settings: Settings, supervisor_pidfd: int | None) -> int:
    """The whole life of the topic worker's process; returns its exit code (worker_process.py)."""
    return run_worker(lambda: TopicWorker(directory, shared_id, settings, supervisor_pidfd), say)


def main() -> int:
    """For tests: `python -m warren.workers.servers.topic_worker DIR SHARED_ID` with the node's settings."""
    directory, shared_id = Path(sys.argv[1]), int(sys.argv[2])
    settings = NodeDirectory(directory).read().settings
    logs.begin("topics", NodeDirectory(directory).log_file("topics"), settings, streams=False)
    return run_topic_worker(directory, shared_id, settings, None)


if __name__ == "__main__":
    os._exit(main())
