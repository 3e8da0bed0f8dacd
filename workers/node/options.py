"""How a supervisor is started, and what it runs in its children."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from warren.engine.config import Settings
from warren.workers.node import starting

STOP_TIMEOUT_S = 30.0


class Servers(Protocol):
    """What the supervisor runs in its children; tests inject their own."""

    def store(self, directory: Path, shared_id: int, settings: Settings, supervisor_pidfd: int) -> int:
        """Serve both stores; returns an exit code."""

    def worker(self, directory: Path, shared_id: int, worker: int, settings: Settings, supervisor_pidfd: int) -> int:
        """Serve the queues of one worker; returns an exit code."""

    def topics(self, directory: Path, shared_id: int, settings: Settings, supervisor_pidfd: int) -> int:
        """Serve the topics; returns an exit code."""

    def collector(self, directory: Path, shared_id: int, settings: Settings, supervisor_pidfd: int) -> int:
        """Collect garbage for the stores; returns an exit code."""


class RealServers:
    """The servers of a node. Made before forking, so that a restart has nothing to load."""

    def __init__(self) -> None:
        from warren.workers.servers.collector import run_collector
        from warren.workers.servers.queue_worker import run_queue_worker
        from warren.workers.servers.store_server import run_store_server
        from warren.workers.servers.topic_worker import run_topic_worker

        self.store: Callable[[Path, int, Settings, int], int] = run_store_server
        self.worker: Callable[[Path, int, int, Settings, int], int] = run_queue_worker
        self.topics: Callable[[Path, int, Settings, int], int] = run_topic_worker
        self.collector: Callable[[Path, int, Settings, int], int] = run_collector


@dataclass(frozen=True)
class Options:
    """How a supervisor is started. `idle_exit`: seconds without clients after which the node ends, None: never."""

    idle_exit: float | None = None
    adopt: bool = False  #: losing the race for the directory is fine
    successor: bool = False  #: takes over from a killed supervisor, and never begins a node anew
    changes: dict[str, Any] = field(default_factory=dict)  #: settings by name
    stop_timeout: float = STOP_TIMEOUT_S
    close_in_child: Callable[[], None] = lambda: None  #: closes in a child what the starter of the supervisor opened
    locked: Callable[[], None] = lambda: None  #: called once it has the directory's lock
    terminal: bool = False  #: a Ctrl-C reaches it
    detached: bool = False  #: its standard output and error lead to its log; else it logs to standard error, too
    start_timeout: float = starting.START_TIMEOUT_S  #: how long a start waits for what comes from outside
    #: called with what is waited for, and whether that comes from outside, when the node is not up at once
    waiting: Callable[[str, bool], None] = lambda text, outside: None
    gave_up: Callable[[str], None] = lambda text: None  #: the start timeout is over, and it goes on trying
    no_room: Callable[[str], None] = lambda text: None  #: the start fails because a server found no room
    left: Callable[[], bool] = lambda: False  #: whether the process that started it ended before it was up
