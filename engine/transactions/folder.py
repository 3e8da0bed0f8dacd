"""Where the files of sinks lie, what they are called, and the lock of a sink.

    DIR/transactions/<sink>/lock       flock of who changes the sink; the kernel frees it
    DIR/transactions/<sink>/state      the commit record (state.py)
    DIR/transactions/<sink>/staged/    parts (parts.py): <owner>.<batch>.<partition>.<attempt>
    DIR/transactions/.gone-<random>    a sink that was forgotten; what a crash left of it goes with the next one

The owner of a part is the query of a stream, or the id of a write that is no stream.

A sink is the user's who made it: in a node that is shared with a group each member makes sinks, as in /tmp, and others
read them. So nobody writes into a folder that another one may change.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from warren.engine.errors import InvalidName, PermissionRefused, TimedOut
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.paths import TRANSACTIONS
from warren.engine.saying import shown
from warren.ipc import access

NAME_MAX = 100
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_OWNER = re.compile(r"[0-9A-Za-z-]{1,64}")
_GONE = ".gone-"
#: how often a lock is tried for
_TRY_S = 0.005


def checked_sink(name: str) -> str:
    """The name of a sink. Raises InvalidName."""
    if not _NAME.fullmatch(name) or len(name) > NAME_MAX:
        raise InvalidName(
            f"the name of a sink has 1 to {NAME_MAX} characters of A-Z a-z 0-9 . _ -, and begins with none of . and -, "
            f"not {shown(name)}"
        )
    return name


class PartName(NamedTuple):
    """What the name of a part says."""

    owner: str
    batch: int
    partition: int
    attempt: str

    @classmethod
    def new(cls, owner: str, batch: int, partition: int) -> Self:
        """A name that no other part has, not even one of the same task."""
        return cls(owner, batch, partition, secrets.token_hex(8))

    @classmethod
    def of(cls, name: str) -> Self | None:
        """None: it is not the name of a part."""
        owner, _, rest = name.partition(".")
        found = re.fullmatch(r"(\d{1,19})\.(\d{1,10})\.([0-9a-f]{16})", rest)
        return cls(owner, int(found[1]), int(found[2]), found[3]) if found and _OWNER.fullmatch(owner) else None

    def __str__(self) -> str:
        return f"{self.owner}.{self.batch}.{self.partition}.{self.attempt}"


@dataclass(frozen=True)
class SinkFolder:
    """The folder of one sink."""

    path: Path

    @classmethod
    def of(cls, directory: Path, name: str) -> Self:
        return cls(directory / TRANSACTIONS / checked_sink(name))

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def staged(self) -> Path:
        return self.path / "staged"

    @property
    def _shared(self) -> bool:
        """Whether a group may use the data directory."""
        return bool(os.stat(self.path.parent.parent).st_mode & 0o040)

    @property
    def file_mode(self) -> int:
        """As in the data directory: a group reads it, too, or its owner alone."""
        return 0o640 if self._shared else 0o600

    def make(self) -> None:
        """Make it, durably, if it is not there. Raises StoreError and its kinds."""
        mode = 0o2750 if self._shared else 0o700
        with atomic_file.file_explained(f"cannot make {self.path}"):
            for path in (self.path.parent, self.path, self.staged):
                if not path.is_dir():
                    with contextlib.suppress(FileExistsError):
                        data_files.make_folder(path, mode=mode)
                atomic_file.sync_directory(path.parent)  # also of one that a killed process made

    def check_mine(self) -> None:
        """Whether this user may write into it. Raises PermissionRefused, StoreError."""
        with atomic_file.file_explained(f"cannot look at {self.path}"):
            found = os.lstat(self.path)
        if found.st_uid != os.geteuid():
            raise PermissionRefused(
                f"sink {self.name!r} belongs to {access.user(found.st_uid)}, and this process runs as "
                f"{access.user(os.geteuid())}: run it as that user, or write with another sinkId"
            )

    @contextlib.contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Alone with the sink. Raises TimedOut, PermissionRefused (another user's), StoreError (it is not there, among
        others).
        """
        self.check_mine()
        deadline = time.monotonic() + timeout_s
        while (descriptor := self._lock()) < 0:
            if time.monotonic() >= deadline:
                raise TimedOut(
                    f"sink {self.name!r} was busy for {timeout_s:g} s: another process commits to it, or finishes a "
                    "batch; wait, or raise the timeout"
                )
            time.sleep(_TRY_S)
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock(self) -> int:
        """The descriptor that holds the lock, -1: others do."""
        with atomic_file.file_explained(f"cannot lock {self.lock}"):
            descriptor = data_files.open(self.lock, os.O_RDWR | os.O_CREAT, self.file_mode, anyones=True)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), os.stat(self.lock)):  # else that sink was forgotten meanwhile
                    descriptor, kept = -1, descriptor
                    return kept
            except BlockingIOError:
                pass
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        return -1

    def parts(self) -> list[tuple[PartName, Path]]:
        """All parts that are there, named by a commit or not. Raises StoreError and its kinds."""
        return [(name, self.staged / each) for each in self.in_staged() if (name := PartName.of(each)) is not None]

    def in_staged(self) -> list[str]:
        """All names among the parts. Raises StoreError and its kinds: the folder may be another user's."""
        with atomic_file.file_explained(f"cannot look into {self.staged}"):
            try:
                return sorted(os.listdir(self.staged))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def remove(self) -> None:
        """The sink goes, in one step for who looks; what a crash leaves goes when the next one is removed."""
        gone = self.path.with_name(_GONE + secrets.token_hex(8))
        with atomic_file.file_explained(f"cannot remove {self.path}"):
            data_files.rename(self.path, gone)
            atomic_file.sync_directory(gone.parent)
            for path in gone.parent.glob(_GONE + "*"):
                if path.lstat().st_uid != os.geteuid():
                    continue  # a member's
                data_files.remove_tree(path)


def sinks(directory: Path) -> list[SinkFolder]:
    """All sinks of a data directory."""
    return [SinkFolder(path) for path in _listed(directory) if _is_sink(path)]


def strangers(directory: Path) -> list[tuple[Path, str]]:
    """Entries among the sinks that are not sinks, each with a text about it: members can put things there."""
    found = []
    for path in _listed(directory):
        if path.name.startswith(_GONE):
            found.append((path, "is left of a sink that was forgotten; the next one that is forgotten takes it along"))
        elif not _is_sink(path):
            with contextlib.suppress(FileNotFoundError):
                looked = path.lstat()
                owner = access.user(looked.st_uid)
                may = f"{owner} owns it and may remove it"
                if stat.S_ISREG(looked.st_mode) and looked.st_nlink > 1:
                    may = f"it is a second name of a file of {owner}, who may remove this name"
                found.append((path, f"does not belong here, and is not a sink; {may}"))
    return found


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted((directory / TRANSACTIONS).iterdir())
    except FileNotFoundError:
        return []


def _is_sink(path: Path) -> bool:
    """Whether it has the name of a sink, and anything that a sink has; or its owner lets nobody see what it has."""
    try:
        if not _NAME.fullmatch(path.name) or not stat.S_ISDIR(path.lstat().st_mode):
            return False
    except FileNotFoundError:  # it was forgotten just now
        return False
    folder = SinkFolder(path)
    for each in (folder.state, folder.lock, folder.staged):
        try:
            each.lstat()
        except FileNotFoundError:
            continue
        except PermissionError:
            pass
        return True
    return False
