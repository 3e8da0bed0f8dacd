"""A data directory whose files are read: who it is, how its files are made, what its catalog calls them.

It is read once, in the planner, and goes to the executors as it was.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql.datasource import InputPartition

from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.config import Settings
from warren.engine.errors import CorruptRecord
from warren.engine.kernel.paths import TopicsFolder
from warren.workers.process.tie import served

#: a row that is no record: (file, position, bytes, kind, status)
Told = tuple[str, int | None, int | None, str, str]


@dataclass(frozen=True)
class Directory:
    """The directory of a node."""

    path: Path
    node_id: int
    settings: Settings
    running: bool
    queues: tuple[QueueDeclaration, ...]
    topics: tuple[TopicDeclaration, ...]
    #: why the names of queues and topics are not known; empty: they are
    nameless: str

    @classmethod
    def read(cls, path: str) -> Directory:
        """Raises NodeNotRunning (no data directory), FormatVersionError, CorruptRecord, PermissionRefused."""
        directory = NodeDirectory(path)
        directory.check_made(makes=False)
        node = directory.read()
        queues: Sequence[QueueDeclaration] = ()
        topics: Sequence[TopicDeclaration] = ()
        nameless = ""
        try:
            catalog = catalog_log.load(directory.path).catalog
            queues, topics = tuple(catalog.by_id.values()), tuple(catalog.topics.values())
        except CorruptRecord as error:  # the files can be read all the same, only their names are not known
            nameless = str(error)
        running = directory.in_use() or served(directory.path)
        return cls(directory.path, node.node_id, node.settings, running, tuple(queues), tuple(topics), nameless)

    @property
    def topics_folder(self) -> TopicsFolder:
        """The folder of topics."""
        return TopicsFolder.of(self.path)

    def relative(self, path: Path) -> str:
        """A file as rows name it."""
        return os.fsencode(path.relative_to(self.path)).decode(errors="backslashreplace")

    def whole(self, name: str) -> Path:
        """The path of a file that rows name."""
        return self.path / name

    def queue_names(self) -> dict[int, str]:
        """Id → name."""
        return {item.id: item.name for item in self.queues}


@dataclass
class Part:
    """A range [start, stop) of a file, in bytes of the file; what `more` means the kind of file says."""

    file: str
    start: int
    stop: int
    more: dict[str, int | str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return self.stop - self.start


@dataclass
class FilesPartition(InputPartition):
    """What a task reads: parts of files, and what the planner knows already."""

    parts: list[Part] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)


def partitions(parts: Sequence[Part], told: Sequence[Told], bytes_max: int) -> list[FilesPartition]:
    """Neighbouring parts together, up to a size; what is told goes with the first ones."""
    made: list[FilesPartition] = []
    size = 0
    for part in parts:
        if not made or size + part.bytes > bytes_max:
            made.append(FilesPartition())
            size = 0
        made[-1].parts.append(part)
        size += part.bytes
    if told:
        made = made or [FilesPartition()]
        made[0].told = list(told)
    return made
