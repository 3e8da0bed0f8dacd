"""What a queue service is made of: its folder and settings, and how it learns of the catalog and of the stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from warren.engine.catalog.arguments import QueueArguments
from warren.engine.queues.folder import Folder, Reached
from warren.engine.saying import Say, silent
from warren.ipc.superblock import Superblock


class Declaration(Protocol):
    """What a worker needs to know of a queue (warren.engine.catalog.catalog.QueueDeclaration)."""

    @property
    def id(self) -> int: ...
    @property
    def durable(self) -> bool: ...
    @property
    def subscription_of(self) -> int: ...
    @property
    def dead_letters_of(self) -> int: ...
    @property
    def policy(self) -> QueueArguments: ...


class Changes(NamedTuple):
    """A piece of what changed in the catalog."""

    came: list[Declaration]
    went: list[int]
    more: bool  #: another piece follows, in which may be what belongs to a queue of this one


@dataclass
class Options:
    """What a queue service is made of."""

    superblock: Superblock
    worker: int
    folder: Folder
    node_id: int
    file_bytes: int
    reply_bytes: int
    load_catalog: Callable[[], list[Declaration]]
    open_store: Callable[[int], None]  #: attach the regions of a store and tell the engine; RegionError: later
    ids_end: Callable[[], int] = lambda: 0  #: the loaded catalog never gave an id from here on; 0: nobody knows
    #: what changed next since it was asked last or the catalog was loaded, up to a version; None: load it
    follow_catalog: Callable[[int], Changes | None] = lambda _version: None
    own_slot: int = -1
    memory_bytes: int = 0  #: rows of messages beyond this leave memory; 0: never
    next_transient: int = 0  #: first file number of the transient journal
    timer: Callable[[], None] = lambda: None  #: called some times a second
    say: Say = silent
    reached: Reached = lambda point: None
