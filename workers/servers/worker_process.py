"""What the processes of a queue worker and of the topic worker have in common: their regions by generation, their ties
to directory and supervisor, how they are told to end, and with which exit code they do.

Exit codes: 0 clean, 1 try again, 3 do not restart, 5 the catalog was cut.
"""

from __future__ import annotations

import contextlib
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import ClassVar, Protocol

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.config import Settings
from warren.engine.errors import CatalogCut, CorruptRecord, Error, FormatVersionError, PermissionRefused
from warren.engine.saying import Say
from warren.ipc import region as regions
from warren.ipc.identity import pidfd_dead
from warren.ipc.layout import CONSTANTS, SERVER_STORE_PERSISTENT
from warren.ipc.superblock import Superblock
from warren.workers.process import lack, logs, remains
from warren.workers.process.exit_codes import EXIT_CATALOG_CUT, EXIT_DO_NOT_RESTART
from warren.workers.process.launch import Succession
from warren.workers.process.refusals import CANNOT_SERVE
from warren.workers.process.tie import Tie, described, end


class Stoppable(Protocol):
    """The C engine of a worker."""

    def request_stop(self) -> None: ...


class WorkerProcess(ABC):
    """One incarnation of a worker; how it lives says its own `run`."""

    WHATS: ClassVar[tuple[str, ...]] = ()  #: its regions
    CRASH_POINTS: ClassVar[Mapping[str, int]] = {}  #: places of its service that are named crash points of the node

    def __init__(
        self,
        directory: Path,
        shared_id: int,
        server: int,
        settings: Settings,
        supervisor_pidfd: int | None,
        superblock: Superblock,
        say: Say,
    ) -> None:
        self.directory = directory
        self.shared_id = shared_id
        self.server = server
        self.settings = settings
        self.supervisor_pidfd = supervisor_pidfd
        self.superblock = superblock
        self.say = say
        self.tie = Tie(directory, self.superblock)
        self._stack = contextlib.ExitStack()
        self._succession = Succession(NodeDirectory(directory), say)
        self._served_at = self._stopping_at = 0.0

    @abstractmethod
    def run(self) -> int:
        """Serve until told to stop; returns the exit code."""

    def close(self) -> None:
        """Unmap everything."""
        self._stack.close()
        self.superblock.close()
        self.tie.close()

    # -- regions ------------------------------------------------------------------------------------------------

    def _old_generations(self) -> list[int]:
        """Generations of this server's regions that exist."""
        found: set[int] = set()
        for what in self.WHATS:
            found.update(self.superblock.generations(what, self.server))
        return sorted(found)

    def _region(
        self, what: str, generation: int, size: int, reserve: Iterable[tuple[int, int]] | None = None
    ) -> regions.Region:
        """`reserve`: only these parts. The engine asks for the rest itself, as it needs it."""
        region = regions.posix_create(self._name(what, generation), size, reserve)
        self._stack.callback(region.close)
        return region

    def _name(self, what: str, generation: int) -> str:
        return self.superblock.region_name(what, self.server, generation)

    def _unlink(self, generations: Iterable[int]) -> None:
        for generation in generations:
            for what in self.WHATS:
                regions.posix_drop(self._name(what, generation))

    # -- life ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self, engine: Stoppable) -> Iterator[None]:
        def stop(_number: int, _frame: object) -> None:
            engine.request_stop()

        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            signal.signal(number, stop)
        try:
            yield
        finally:
            for number in numbers:  # it ends by itself now: a signal that comes late does not make that a kill
                signal.signal(number, signal.SIG_IGN)

    def _reached(self, point: str) -> None:
        """The service has come to a place."""
        named = self.CRASH_POINTS.get(point)
        if named is not None:
            self.superblock.crash_point(named)

    def _tell_end(self, clean: bool, kept: str) -> None:
        """Say that it ended, and what was `kept`."""
        told = "the node is being stopped" if self.superblock.state == CONSTANTS["NODE_DRAINING"] else "it was told to"
        now = time.monotonic()
        level = INFO if clean else WARNING
        self.say(logs.ended(f"{told}; {kept}", self._stopping_at - self._served_at, now - self._stopping_at), level)

    def _timer(self) -> None:
        """Some times a second: is there still a supervisor? When it and the store server are gone, start a new one."""
        self._succession.poll()
        if self.supervisor_pidfd is None or not pidfd_dead(self.supervisor_pidfd):
            return
        if self.superblock.supervisor.alive():
            return
        if self.superblock.state in (CONSTANTS["NODE_STOPPED"], CONSTANTS["NODE_DRAINING"]):
            return
        if ending := self.tie.look():
            self.say(f"the node ends: {described(ending, self.directory)}", WARNING)
            end(self.superblock, ending)
            return
        if self.superblock.server_identity(SERVER_STORE_PERSISTENT).alive():
            return  # its task: it was there first
        self._succession.start("the supervisor and the store server are gone")


def run_worker(make: Callable[[], WorkerProcess], say: Say) -> int:
    """The whole life of a worker's process; returns its exit code (engine.errors; 0 clean, 1 start anew)."""
    try:
        instance = make()
    except regions.RegionError as error:
        say(f"finds no superblock: {error}", ERROR)
        return 1
    try:
        return instance.run()
    except CatalogCut as error:
        say(f"{CANNOT_SERVE}{error}", ERROR)
        return EXIT_CATALOG_CUT
    except (FormatVersionError, PermissionRefused, CorruptRecord) as error:
        say(f"{CANNOT_SERVE}{error}", ERROR)
        return EXIT_DO_NOT_RESTART
    except Error as error:
        if lack.of_error(error):
            raise  # children.py says so, once
        say(f"failed: {error}", ERROR)
        return 1
    finally:
        remains.remove_lost(instance.superblock, instance.tie)
        with contextlib.suppress(BufferError):
            instance.close()
