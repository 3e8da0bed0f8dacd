"""The topics of the catalog in a topic worker: taken up at the start, followed a piece at a time, let go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import WARNING
from typing import NamedTuple, Protocol

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.saying import Say
from warren.ipc.superblock import Superblock

TURN_S = 0.001  #: how long changes of the catalog are followed before others are served


class Declaration(Protocol):
    """What a topic worker needs to know of a topic (warren.engine.catalog.topics.TopicDeclaration)."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def queues(self) -> int: ...
    @property
    def retention_s(self) -> float | None: ...
    @property
    def retention_bytes(self) -> int | None: ...
    @property
    def compacted(self) -> bool: ...


class Changes(NamedTuple):
    """A piece of what changed in the catalog."""

    came: list[Declaration]
    went: list[int]  #: ids
    more: bool  #: another piece follows


@dataclass
class DeclaredTopics:
    """The topics that a topic worker serves."""

    server: _core.TopicServer
    superblock: Superblock
    index: int  #: of the server
    load_catalog: Callable[[], list[Declaration]]
    #: what changed next since it was asked last or the catalog was loaded, up to a version; None: load it
    follow_catalog: Callable[[int], Changes | None]
    say: Say
    behind: bool = False  #: some of what was told is not done
    changed: Callable[[], None] = lambda: None  #: called when a topic that is there has another retention

    def __post_init__(self) -> None:
        self._declared: dict[int, Declaration] = {}
        self._failed = False
        self._seen = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._declared)

    def all(self) -> list[Declaration]:
        """Those that there are; any thread."""
        return list(self._declared.values())

    def queues_of(self, id: int) -> int | None:
        """How many queues a topic has; None: there is none, after a look at the catalog as it is now."""
        found = self._declared.get(id)
        if found is None and not self._failed and self.superblock.get("catalog_version") != self._seen:
            self.reload()
            while self.behind:
                self.reload()
            found = self._declared.get(id)
        return None if found is None else found.queues

    def name_of(self, id: int) -> str:
        """The name of a topic; its id, if it is gone."""
        found = self._declared.get(id)
        return str(id) if found is None else found.name

    def load(self) -> None:
        """Take up all topics. Before the server recovers. Raises StoreError."""
        self._seen = self.superblock.get("catalog_version")
        for item in self.load_catalog():
            self._take_up(item)

    def shown(self) -> None:
        """The server has begun: what the catalog said is in its rows."""
        self.server.catalog_loaded(self._seen)
        self.superblock.server_set(self.index, "catalog_read", self._seen)

    def on_timer(self) -> None:
        """Changes that do not concern topics are read, too: it is never far behind."""
        if self._failed or (self.superblock.get("catalog_version") != self._seen and not self.behind):
            self.reload()

    def reload(self) -> None:
        """Follow the catalog, a piece at a time: what is left is done in the next turns, after others were served."""
        version = self.superblock.get("catalog_version")
        deadline = time.monotonic() + TURN_S
        try:
            self.behind = True
            while self.behind and time.monotonic() < deadline:
                self.behind = self._learn(version)
        except (StoreError, OSError, MemoryError) as error:
            if not self._failed:
                self.say(f"topics of the catalog cannot be taken up, and are tried again: {error}", WARNING)
            self._failed, self.behind = True, False
            self.server.catalog_loaded(version)  # or whoever names one would be asked for again and again
            return
        if self.behind:
            return
        self._failed = False
        self._seen = version
        self.shown()

    def _learn(self, version: int) -> bool:
        """True when there is more."""
        found = None if self._failed else self.follow_catalog(version)
        if found is None:
            wanted = {item.id: item for item in self.load_catalog()}
            found = Changes(list(wanted.values()), [id for id in self._declared if id not in wanted], False)
        for id in found.went:
            if self._declared.pop(id, None) is not None:
                self.server.drop(id)
        for item in found.came:
            self._take_up(item)
        return found.more

    def _take_up(self, item: Declaration) -> None:
        before = self._declared.get(item.id)
        if before is None:
            self.server.declare(item.id, item.name.encode(), item.queues, item.compacted)
        self._declared[item.id] = item
        if before is not None and before != item:
            self.changed()
