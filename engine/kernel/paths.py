"""Where the servers' files lie in a data directory. What the files in there are: engine/store/folder.py and
engine/queues/folder.py, which a client does without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from warren.ipc.layout import SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT

STORES = "store"  #: the folder of both stores, in the data directory
QUEUES = "queues"  #: the folder of those of the queue workers
TOPICS = "topics"  #: the folder of the topic worker
TRANSACTIONS = "transactions"  #: the folder of sinks
LARGE = "large"  #: the folder of large messages, in that of a queue worker
STORE_FOLDERS = {SERVER_STORE_PERSISTENT: "persistent", SERVER_STORE_TRANSIENT: "transient"}


def store_folder(directory: Path, server: int) -> Path:
    """The folder of a store's files: DIR/store/persistent, DIR/store/transient."""
    return directory / STORES / STORE_FOLDERS[server]


def queues_of(worker: int) -> str:
    """The folder of a queue worker, in the data directory."""
    return f"{QUEUES}/worker-{worker}"


@dataclass(frozen=True)
class TopicsFolder:
    """The directory of the topics."""

    path: Path

    @classmethod
    def of(cls, directory: Path) -> Self:
        return cls(directory / TOPICS)

    @property
    def log(self) -> Path:
        """The commit log."""
        return self.path / "commitlog"

    @property
    def queues(self) -> Path:
        """The consume queues: `<topic>/<queue>/`."""
        return self.path / "consumequeue"

    @property
    def index(self) -> Path:
        """The key index."""
        return self.path / "index"

    @property
    def compacted(self) -> Path:
        """The newest messages of compacted topics: `<topic's id>/<queue>`."""
        return self.path / "compacted"

    @property
    def checkpoint(self) -> Path:
        """The file that says from where the log has to be walked."""
        return self.path / "checkpoint"

    @property
    def loss(self) -> Path:
        """The plan of an accepted loss, while it is being carried out (engine/topics/log_loss.py)."""
        return self.path / "loss"

    @property
    def groups(self) -> Path:
        """The snapshot of the offsets of groups of readers."""
        return self.path / "groups"

    @property
    def later(self) -> Path:
        """The snapshot of the messages that are to come later."""
        return self.path / "later"

    @property
    def halves(self) -> Path:
        """The snapshot of half messages."""
        return self.path / "halves"


@dataclass(frozen=True)
class WorkerFolder:
    """The directory of one queue worker, and the folders of which clients read the files."""

    path: Path

    @classmethod
    def of(cls, directory: Path, worker: int) -> Self:
        return cls(directory / queues_of(worker))

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def transient(self) -> Path:
        return self.path / "transient"

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    @property
    def large(self) -> Path:
        """Messages in files of their own (engine/kernel/large.h)."""
        return self.path / LARGE
