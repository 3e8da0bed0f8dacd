"""The data directory of a node: its layout, its lock, and who it is (`node.json`).

    DIR                 flock of the supervisor on the directory itself. The kernel frees it, whoever dies how
    DIR/lock            text for people: the pid of who held the lock last, and in which namespaces it is
    DIR/node.json       format version, node id, epoch, settings
    DIR/catalog.json    declarations (warren.engine.catalog.catalog)
    DIR/launch.json     how the supervisor was started, for the one that takes over when it dies
    DIR/users.json      users and permissions of the AMQP gateway, when there are any (workers/amqp/users_file.py)
    DIR/amqp.shared     what several AMQP gateways share: locks and counts (workers/amqp/shared_file.py)
    DIR/control.sock    where the supervisor answers
    DIR/doorbells/      sockets of clients' event loops, while the node runs (ipc/doorbells.py)
    DIR/log/            what the processes print
    DIR/store/, DIR/queues/, DIR/topics/   messages (store server, queue workers, topic worker)
    DIR/transactions/   what sinks have staged and committed (whoever writes into one: engine/transactions)

A directory is told from its copies by its place: the device and the inode number. `node.json` notes the place beside
what only means something there, how superblock and semaphores are called; in a copy it is another one.

Directories are 0700, files 0600, or 02750 and 0640 where a group may use the node (`ownership.py`). `node.json` is
written last when a directory is made: without it there is no node, and a start goes on with making one. Only the
holder of the lock writes the files named here, but for users.json and amqp.shared, which have locks of their own.
Crash point: `node_epoch` is durable before the superblock of that epoch is made, so client epochs never repeat.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from warren.engine.catalog import ownership
from warren.engine.catalog.catalog import FILE_NAME as CATALOG_NAME
from warren.engine.catalog.catalog import Catalog
from warren.engine.config import FILE_SETTINGS, Settings, with_profile
from warren.engine.errors import (
    CorruptRecord,
    DirectoryInUse,
    Error,
    FormatVersionError,
    NodeNotRunning,
    UsageError,
)
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.formats import NODE_VERSION, NODE_VERSION_ROTATE
from warren.engine.kernel.paths import QUEUES, STORES, TOPICS
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.engine.saying import command, near, shown, undecoded
from warren.ipc import access, kernel_locks, names
from warren.ipc.identity import Namespaces
from warren.ipc.region import RegionError
from warren.ipc.superblock import Superblock

LOCK, NODE, LAUNCH, CONTROL_SOCKET, LOG = "lock", "node.json", "launch.json", "control.sock", "log"
#: a lock is let go of in an instant by who ends, or only looks whether it is held; on a busy machine such a look may
#: last, and can be told from a supervisor
LOCK_PROBE_S, LOOKED_AT_MAX_S = 0.03, 10.0
#: how often what is above is made again that refused starts remove meanwhile
MAKE_TRIES = 5
#: what an interrupted making leaves behind; anything else in a directory without node.json is somebody else's
_OURS = {
    LOCK,
    LAUNCH,
    CONTROL_SOCKET,
    LOG,
    CATALOG_NAME,
    NODE + atomic_file.NEW_SUFFIX,
    CATALOG_NAME + atomic_file.NEW_SUFFIX,
}
_OURS |= {name + atomic_file.NEW_SUFFIX for name in (LAUNCH, CONTROL_SOCKET)}
_HOW_MADE = "`warren up DIR` makes one, in a new or empty directory"
#: settings that stay as they are once files were written with them
_FIXED = ("file_bytes",)
#: the same, once there are topics
_FIXED_BY_TOPICS = ("log_file_bytes",)
#: settings that only grow, because what they bound is there already
_GROWING = ("summary_rows",)


#: how deep the other folders of a node lie whose names it knows
_DEPTH = 3


class NodeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of node.json. `shared_id` and `semaphore_keys`: what the current superblock and its System V semaphores
    (live clients, store lock) are called. They were drawn for the directory at `place` (device, inode): in a copy they
    are somebody else's.
    """

    format_version: int
    node_id: int
    node_epoch: int
    settings: Settings
    created: float
    semaphore_keys: tuple[int, int] = (0, 0)
    place: tuple[int, int] = (0, 0)
    shared_id: int = 0

    def superblock_at(self, place: tuple[int, int]) -> int:
        """The number that names the superblock of the node, if the directory is at this place; 0: it has none."""
        if self.shared_id or not self.place[1]:
            return self.shared_id if self.place == place else 0
        return names.older_id(self.node_id, place)


class Launch(msgspec.Struct, frozen=True):
    """Content of launch.json: options of `warren up` that a successor of a killed supervisor keeps."""

    idle_exit: float | None = None


class _Version(msgspec.Struct):
    format_version: int


def _renamed(content: Any) -> Any:
    """What an older node.json says, in the words of this version."""
    if not isinstance(content, dict) or not isinstance(settings := content.get("settings"), dict):
        return content
    if content["format_version"] < NODE_VERSION_ROTATE:
        settings = {"log_rotate_bytes" if name == "log_file_bytes" else name: value for name, value in settings.items()}
    return content | {"format_version": NODE_VERSION, "settings": settings}


def _absolute(path: object) -> Path:
    """The whole path of what a caller gave as a directory. Raises UsageError for what is no path."""
    try:
        given = os.fspath(path)  # type: ignore[call-overload]  # what is no path is what this is for
    except TypeError:
        raise UsageError(f"a data directory must be a str or a pathlib.Path, not {type(path).__name__}") from None
    if not isinstance(given, str):
        raise UsageError("a data directory must be a str or a pathlib.Path, not bytes: os.fsdecode makes a str")
    if not given:
        raise UsageError("the path of a data directory must not be empty: '.' is the current directory")
    if "\0" in given:
        raise UsageError(f"{shown(given)} is not a valid path of a data directory: it has a NUL character; remove it")
    try:
        os.fsencode(given)
        return Path(os.path.abspath(os.path.expanduser(given)))
    except UnicodeEncodeError as error:
        raise UsageError(f"{shown(given)} is not a valid path of a data directory: {error.reason}") from error
    except FileNotFoundError as error:
        raise UsageError(
            f"{shown(given)} cannot be resolved: the current directory was removed; change to another one, or give an "
            "absolute path"
        ) from error


def open_directory(path: Path | str) -> int:
    """A descriptor of a directory. While it is open, no other directory has its place. Raises OSError."""
    return data_files.open_folder(path)


def held_by_another(descriptor: int) -> bool:
    """Whether somebody has the lock of a directory opened for this look; it is closed."""
    try:
        return not _only_looked_at(descriptor)
    finally:
        os.close(descriptor)


def _only_looked_at(descriptor: int) -> bool:
    """True when nobody has a directory locked but for processes that look whether somebody has (`locked`)."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def place_of(descriptor: int) -> tuple[int, int]:
    """Device and inode number of an open directory."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


class NodeDirectory:
    """A data directory. Reading needs nothing; changing needs `lock()`."""

    def __init__(self, path: Path | str) -> None:
        self.path = _absolute(path)
        data_files.is_root(self.path)
        self._lock: int | None = None

    # -- layout -------------------------------------------------------------------------------------------------

    @property
    def itself(self) -> Path:
        """A path to the directory that is locked, whatever its name leads to now; without the lock, its path."""
        return self.path if self._lock is None else Path(f"/proc/self/fd/{self._lock}")

    @property
    def control_socket(self) -> Path:
        return self.path / CONTROL_SOCKET

    @property
    def log(self) -> Path:
        return self.path / LOG

    def make_log(self) -> None:
        """Make the folder of the logs. Raises StoreError and its kinds, and what check_logs raises."""
        try:
            if not self.log.is_dir():
                atomic_file.make_directories(self.log)
        except OSError as error:
            raise atomic_file.explain(error, f"cannot make {self.log}") from error
        self.check_logs()

    def check_logs(self) -> None:
        """Raises UsageError (a log that is no file: to open a FIFO would wait for its reader, for ever), StoreError."""
        with atomic_file.file_explained(f"cannot read {self.log}"):
            found = sorted(self.log.glob("*.log"))
        for file in found:
            if file.exists() and not file.is_file():
                raise UsageError(f"{file} is a directory, a FIFO or a device, and a log is a file: move it away")

    def log_file(self, role: str) -> Path:
        """Where a role prints: supervisor, store, worker-<i>."""
        return self.log / f"{role}.log"

    def exists(self) -> bool:
        """True when a node was made here."""
        return (self.path / NODE).exists()

    def check_made(self, makes: bool = True) -> None:
        """Raises NodeNotRunning saying why this is no data directory, when none was made here. `makes`: it says how
        one is made. PermissionRefused: it is another user's.
        """
        ownership.check_user(self.path, reading=True)
        try:
            os.stat(self.path / NODE)
        except NotADirectoryError:
            why = "it is a file, or a part of its path is one"
        except FileNotFoundError:
            if not self.path.exists():
                raise NodeNotRunning(self._missing() + (f"; {_HOW_MADE}" if makes else "")) from None
            why = f"it has no {NODE}"
        except OSError as error:
            raise atomic_file.explain(error, f"cannot look at {self.path}") from error
        else:
            return
        raise NodeNotRunning(self._no_data(why) + (f"; {_HOW_MADE}" if makes else ""))

    def _missing(self) -> str:
        return f"no such directory: {self.path}, so no node runs for it"

    def _no_data(self, why: str) -> str:
        return f"{self.path} is not a data directory of Warren ({why}), and no node runs for it: give the path of one"

    def check_owner(self) -> None:
        """Before a start or a repair: is it this user's, and all that Warren made in it? Raises PermissionRefused,
        UsageError: a link lies in it.
        """
        ownership.check_owner(self.path, _OURS | {NODE, STORES, QUEUES, TOPICS})
        if os.path.lexists(self.path / NODE):
            with atomic_file.file_explained(f"cannot look at {self.path}"):
                self._check_parts((), os.stat(self.path).st_uid)

    def _check_parts(self, names: tuple[str, ...], owner: int) -> None:
        """Is each folder of the node one, and its owner's, and no file a link? At any depth in stores and queues, where
        a link would count as a missing file; elsewhere what lies deeper is looked at when it is opened (data_files.py).
        Raises UsageError, PermissionRefused.
        """
        for entry in os.scandir(self.path.joinpath(*names)):
            below, folder = (*names, entry.name), entry.is_dir(follow_symlinks=False)
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                if folder or entry.is_symlink():
                    ownership.check_part(Path(entry.path), entry.stat(follow_symlinks=False), owner)
                deep = len(below) < _DEPTH or below[0] in (STORES, QUEUES)
                if folder and deep and not ownership.is_meeting_place(below):
                    self._check_parts(below, owner)

    def none_runs(self) -> Error:
        """What to raise when nobody answers for the directory: none runs, none could be made here, or none can run
        because node.json is damaged, of a newer version, or another user's.
        """
        try:
            self.read()
        except Error as error:
            return error
        return NodeNotRunning(f"no node runs for {self.path}: {ownership.start_advice(self.path)}")

    def _not_made(self) -> NodeNotRunning:
        """Nobody made a node here."""
        why = ""
        try:
            if not set(os.listdir(self.path)) <= _OURS:
                why = f"it has no {NODE}"
        except NotADirectoryError:
            why = "it is a file, or a part of its path is one"
        except FileNotFoundError:
            return NodeNotRunning(f"{self._missing()}; {_HOW_MADE}")
        except OSError:  # nobody may look; then a start says so
            pass
        if why:
            return NodeNotRunning(f"{self._no_data(why)}; {_HOW_MADE}")
        return NodeNotRunning(f"no node runs for {self.path}: {ownership.start_advice(self.path)}")

    # -- lock ---------------------------------------------------------------------------------------------------

    def check_new(self, changes: dict[str, Any]) -> None:
        """Before `make`: can a node be made with these settings, if there is none? So that a refusal leaves nothing. Of
        one that is there, or runs: are there such settings? Raises UsageError.
        """
        wanted = changed_settings(Settings(), changes)
        if not self.exists():
            wanted.checked()

    def group(self, changes: dict[str, Any]) -> str:
        """The setting `group` of a start with these changes."""
        if "group" in changes:
            return ownership.group_named(changes["group"])
        with contextlib.suppress(Error):  # there is none yet; or the start says what is wrong
            return self.read().settings.group
        return ""

    def missing(self) -> list[Path]:
        """The directories that a start would make: this one, and what is missing above it."""
        return list(itertools.takewhile(lambda path: not os.path.lexists(path), (self.path, *self.path.parents)))

    def make(self) -> None:
        """Make the directory itself if it is not there, and what is missing above it. Raises PermissionRefused,
        UsageError (not a directory, somebody's).
        """
        try:
            for left in range(MAKE_TRIES, 0, -1):
                try:
                    atomic_file.make_directories(self.path)
                    break
                except FileExistsError:
                    break
                except FileNotFoundError:  # a refused start has removed what it had made above
                    if left == 1:
                        raise
        except NotADirectoryError as error:
            raise UsageError(f"{self.path}: a part of this path is a file; give the path of a directory") from error
        except OSError as error:
            raise ownership.explain_making(error, self.path) from error
        try:
            found = os.stat(self.path)
        except NotADirectoryError as error:
            raise UsageError(f"{self.path}: a part of this path is a file; give the path of a directory") from error
        except OSError as error:
            raise atomic_file.explain(error, f"cannot look at {self.path}") from error
        if not stat.S_ISDIR(found.st_mode):
            raise UsageError(f"{self.path} is not a directory: give the path of one, or one that does not exist yet")
        self.check_owner()
        try:
            names = set(os.listdir(self.path))
        except OSError as error:
            raise atomic_file.explain(error, f"cannot read {self.path}") from error
        if NODE not in names and not names <= _OURS:
            strangers = ", ".join(sorted(names - _OURS)[:3])
            raise UsageError(
                f"{self.path} is not a data directory of Warren, and not empty ({strangers}): "
                "choose a new or an empty directory"
            )

    def unmake(self, made: Sequence[Path] = ()) -> None:
        """Remove a directory that a start made, and in which it could not make a node, with those of `made` (`missing`
        of before) that are empty then. What others put there stays, and so does what is in use. Another start that was
        about to lock it makes it again.
        """
        self._unmake()
        with contextlib.suppress(OSError):  # somebody uses one of them
            for path in made:
                if path != self.path:
                    data_files.remove_folder(path)

    def _unmake(self) -> None:
        try:
            self.lock()
        except (Error, OSError):  # another start is at it, or it is gone
            return
        try:
            # of the directory that is locked, whatever its name leads to; node.json is made by nobody meanwhile
            if (found := set(os.listdir(self.descriptor))) <= _OURS:
                for name in found - {LOG}:
                    data_files.unlink(name, folder=self.descriptor)
                if LOG in found:
                    data_files.remove_tree(LOG, folder=self.descriptor)
                if self._place_now() == place_of(self.descriptor):
                    data_files.remove_folder(self.path)  # not if somebody has put something into it since
        except OSError:  # it stays: the error of the start is what matters
            pass
        finally:
            self.unlock()

    def lock(self, *, making: bool = False) -> None:
        """Become the only supervisor of the directory, until this process ends. Raises DirectoryInUse naming the
        holder. `making`: it was made for this; when another start has removed it (`unmake`) it is made again.
        """
        began = time.monotonic()
        while True:
            try:
                descriptor = open_directory(self.path)
            except (FileNotFoundError, NotADirectoryError) as error:
                if making and isinstance(error, FileNotFoundError):
                    self.make()
                    continue
                raise UsageError(f"{self.path} does not exist") from error
            except OSError as error:
                raise atomic_file.explain(error, f"cannot open {self.path}") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if place_of(descriptor) == self._place_now():
                    break
            except FileNotFoundError:  # it was removed meanwhile
                pass
            except OSError as error:
                looked_at = _only_looked_at(descriptor)
                os.close(descriptor)
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise atomic_file.explain(error, f"cannot lock {self.path}") from error
                if time.monotonic() - began < (LOOKED_AT_MAX_S if looked_at else LOCK_PROBE_S):
                    time.sleep(0.001)
                    continue
                raise DirectoryInUse(self.foreign_lock() or f"{self.path} is in use by {self._said_use()}") from error
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # it was replaced by another directory meanwhile, or is gone
        self._lock = descriptor
        self._write_lock_text(descriptor)

    def _write_lock_text(self, directory: int) -> None:
        here = Namespaces.current()
        said = f"{os.getpid()}\nPID namespace {here.pid}\nIPC namespace {here.ipc}\n"
        said += f"time namespace {here.time}\n/dev/shm {here.shm}\n"
        try:  # in place: who takes over a node on a full disk needs no space for it
            text = data_files.open(LOCK, os.O_RDWR | os.O_CREAT, access.object_mode(), folder=directory)
            try:
                access.let_in(text, access.object_mode())  # members take locks of its bytes (subscription_owner.py)
                atomic_file.write_all(text, said.encode(), 0)
                os.ftruncate(text, len(said))
            finally:
                os.close(text)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self.unlock()
                raise atomic_file.explain(error, f"cannot write {self.path / LOCK}") from error

    @property
    def descriptor(self) -> int:
        """Of the directory, while the lock is held: what is done with it never meets another directory of this path."""
        if self._lock is None:
            raise RuntimeError(f"{self.path} is not locked by this process")
        return self._lock

    def unlock(self) -> None:
        """Let go of the lock. In a child of the holder this only closes the child's descriptor, if done before the
        holder dies.
        """
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def forget_lock(self) -> None:
        """Right after a fork, in the child: close the descriptor, so that the lock ends with the supervisor."""
        self.unlock()

    def locked(self) -> bool:
        """True while some process holds the lock (this one, too). Raises SystemLimit: it cannot be known now."""
        try:
            descriptor = open_directory(self.path)
        except OSError as error:
            if atomic_file.is_limit(error):
                raise atomic_file.explain(error, f"cannot open {self.path}") from error
            return False
        return held_by_another(descriptor)

    def in_use(self) -> bool:
        """The same, but for locks that no node can have. Raises SystemLimit."""
        return self.locked() and not self.foreign_lock()

    def foreign_lock(self) -> str:
        """What to say when processes of other users have the lock: whoever may read a directory can lock it. "": a
        process of the owner has it, or nobody that can be seen from here.
        """
        holders, owner = self._holders()
        if not holders or owner in {holder.uid for holder in holders}:
            return ""
        who, one = " and ".join(map(str, holders)), len(holders) == 1
        return (
            f"no node runs for {self.path}, but {who} {'has' if one else 'have'} its lock (flock on the directory), so "
            f"none can start: end {'that process' if one else 'them'}, or wait until the lock is free"
        )

    def _holders(self) -> tuple[list[kernel_locks.Holder], int]:
        """The processes that have the lock, those that can be seen from here, and the owner of the directory."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return [], -1
        return kernel_locks.holders(found), found.st_uid

    def lock_holder(self) -> int:
        """The pid in the lock file; 0 when it is not readable, that process has ended, or the kernel shows that another
        one has the lock. It is for messages: only the lock itself is true.
        """
        text = self._lock_text()
        if not text or not text[0].isdecimal():
            return 0
        pid = int(text[0])
        elsewhere = Namespaces(self.holder_namespaces().pid, 0, 0, 0).unlike(Namespaces.current())
        return pid if elsewhere or os.path.exists(f"/proc/{pid}") else 0

    def holder_namespaces(self) -> Namespaces:
        """Where the one is who took the lock last; 0 for what is not known."""
        numbers = []
        for line in self._lock_text()[1:5]:
            number = line.rpartition(" ")[2]
            numbers.append(int(number) if number.isdigit() else 0)
        pid, ipc, clock, shm = [*numbers, 0, 0, 0, 0][:4]
        return Namespaces(pid, ipc, clock, shm)

    def _lock_text(self) -> list[str]:
        """What the lock file says; nothing when it says another one than the kernel does: members can write it, and it
        is of before until who has the lock has written it.
        """
        try:
            text = data_files.read(self.path / LOCK, most=data_files.SMALL_MAX).decode("utf-8", "replace").splitlines()
        except OSError:
            return []
        holders, owner = self._holders()
        said = text[0] if text else ""
        return text if not holders or any((str(each.inner), each.uid) == (said, owner) for each in holders) else []

    def _said_use(self) -> str:
        advice = f"attach to its node, stop it with {command('stop', self.path)}, or choose another directory"
        if pid := self.lock_holder():
            unlike = self.holder_namespaces().unlike(Namespaces.current())
            where = f" in another {' and another '.join(unlike)}" if unlike else ""
            return f"process {pid}{where}: {advice}"
        for holder in self._holders()[0]:
            return (
                f"{holder}, which has its lock (flock on the directory) and has not begun to serve: wait until it has, "
                "end it, or choose another directory"
            )
        return f"another process: {advice}"

    # -- place --------------------------------------------------------------------------------------------------

    def _place_now(self) -> tuple[int, int]:
        found = os.stat(self.path)
        return found.st_dev, found.st_ino

    @property
    def place(self) -> tuple[int, int]:
        """Device and inode of the directory that the path leads to now. Raises NodeNotRunning when there is none."""
        try:
            return self._place_now()
        except (FileNotFoundError, NotADirectoryError):
            raise self._not_made() from None
        except OSError as error:
            raise atomic_file.explain(error, f"cannot look at {self.path}") from error

    @property
    def shared_id(self) -> int:
        """The number that names the superblock of the node of this directory, 0: it has none. Raises as `read` does."""
        return self.read().superblock_at(self.place)

    def superblock(self) -> Superblock:
        """The superblock of the node of this directory, which is its owner's. Raises RegionError (ENOENT: none runs),
        and what `read` raises.
        """
        shared_id = self.shared_id
        try:
            owner = os.stat(self.path).st_uid
        except OSError as error:  # it has just gone
            raise RegionError(errno.ENOENT, f"there is no {self.path}") from error
        return Superblock.attach(shared_id, LAYOUT_HASH, owner)

    def own_semaphores(self, node: NodeFile) -> tuple[int, ...]:
        """The keys in node.json, if they were drawn for this directory: those in a copy are of the original."""
        return tuple(key for key in node.semaphore_keys if key) if node.place == self.place else ()

    # -- node.json ----------------------------------------------------------------------------------------------

    def read(self) -> NodeFile:
        """What node.json says. Raises NodeNotRunning (no node was made here), FormatVersionError, CorruptRecord,
        PermissionRefused.
        """
        path = self.path / NODE
        advice = f"a node cannot start without it: restore {NODE} from a backup of {self.path}"
        try:
            content = data_files.read(path, most=data_files.SMALL_MAX)
        except (FileNotFoundError, NotADirectoryError):
            raise self._not_made() from None
        except IsADirectoryError:
            raise CorruptRecord(path, 0, "a file", data_files.instead(path) or "a folder", advice) from None
        except OSError as error:
            raise atomic_file.explain(error, f"cannot read {path}") from error
        try:
            found = msgspec.json.decode(content, type=_Version).format_version
            if found > NODE_VERSION:
                raise FormatVersionError(
                    f"{self.path} was written by a newer Warren "
                    f"(format version {found}; this one knows {NODE_VERSION}): install that version"
                )
            if found == NODE_VERSION:
                return msgspec.json.decode(content, type=NodeFile)
            return msgspec.convert(_renamed(msgspec.json.decode(content)), type=NodeFile)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptRecord(path, 0, "node id, epoch and settings", undecoded(error), advice) from None

    def write(self, node: NodeFile) -> None:
        """Replace node.json (holder of the lock)."""
        atomic_file.replace(self.path / NODE, msgspec.json.format(msgspec.json.encode(node), indent=1) + b"\n")

    def open_or_make(self, changes: dict[str, Any]) -> NodeFile:
        """Under the lock: read the node, or make one with these settings; `changes` are settings asked for by name.

        Changes of an existing node are not written: that is done with its next epoch.
        Raises UsageError (unknown or impossible setting), FormatVersionError, CorruptRecord, DiskFull,
        PermissionRefused.
        """
        self.make_log()
        if not self.exists():
            settings = changed_settings(Settings(), changes).checked()
            Catalog().save(self.path)
            node = NodeFile(NODE_VERSION, secrets.randbelow((1 << 48) - 1) + 1, 0, settings, time.time())
            self.write(node)
            return node
        node = self.read()
        self._refuse_links(node)
        return msgspec.structs.replace(node, settings=self.changed(node, changes))

    def changed(self, node: NodeFile, changes: dict[str, Any]) -> Settings:
        """The settings of a node with these changes. Raises UsageError: one that its files do not allow."""
        fixed = _FIXED + (_FIXED_BY_TOPICS if (self.path / TOPICS).exists() else ())
        if changes.get("profile", node.settings.profile) == node.settings.profile:  # what was changed since stays
            changes = {name: value for name, value in changes.items() if name != "profile"}
        else:
            kept = {name: getattr(node.settings, name) for name in fixed}
            changes = kept | {name: getattr(node.settings, name) for name in _GROWING} | changes
        settings = changed_settings(node.settings, changes).checked()
        for name in fixed:
            if getattr(settings, name) != getattr(node.settings, name):
                raise UsageError(
                    f"setting {name} of {self.path} is {getattr(node.settings, name)} and cannot be changed: "
                    "make a new directory"
                )
        for name in _GROWING:
            old, new = getattr(node.settings, name), getattr(settings, name)
            if new < old:
                raise UsageError(
                    f"{self.path} was made for {name}={old} and cannot be lowered to {new}: "
                    f"start it with at least {old}, or make a new directory"
                )
        return settings

    def _refuse_links(self, node: NodeFile) -> None:
        """A copy made of hard links is no copy: both nodes would write the same files."""
        if node.place == self.place:
            return
        found: Counter[tuple[int, int, int]] = Counter()
        for folder, _folders, files in os.walk(self.path):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    seen = os.lstat(os.path.join(folder, name))
                    found[seen.st_dev, seen.st_ino, seen.st_nlink] += 1
        if any(links > here for (_device, _inode, links), here in found.items()):
            raise UsageError(
                f"{self.path} was copied with hard links, so it shares its files with another directory: make a "
                "copy of their contents (cp -a), and start that"
            )

    # -- launch.json --------------------------------------------------------------------------------------------

    def read_launch(self) -> Launch:
        """How the last supervisor was started; the defaults when that is not known."""
        try:
            return msgspec.json.decode(data_files.read(self.path / LAUNCH, most=data_files.SMALL_MAX), type=Launch)
        except (OSError, msgspec.MsgspecError):
            return Launch()

    def write_launch(self, launch: Launch) -> None:
        """Remember how this supervisor was started. What is known already needs no space on the disk."""
        if self.path.joinpath(LAUNCH).exists() and self.read_launch() == launch:
            return
        atomic_file.replace(self.path / LAUNCH, msgspec.json.encode(launch) + b"\n")


def check_running(directory: Path, running: dict[str, Any], changes: dict[str, Any]) -> None:
    """Does a node that runs with the settings `running` have those that are asked for by name? Raises UsageError."""
    wanted = changed_settings(Settings(), changes)
    for name in changes:
        value = getattr(wanted, name)
        if name == "workers" and not value:
            continue
        if running[name] != value:
            had, value = ("none" if item == "" else item for item in (running[name], value))
            raise UsageError(
                f"the node of {directory} runs with {name}={had}, not {value}: "
                f"stop it to change that ({command('stop', directory)}), or leave the setting out"
            )


def with_places(changes: dict[str, Any]) -> dict[str, Any]:
    """Settings as somebody gives them by name, those that are files with their whole paths: a node runs in another
    directory than he does. Raises UsageError.
    """
    found = dict(changes)
    for name in FILE_SETTINGS:
        given = changes.get(name)
        if given and isinstance(given, str):
            try:
                found[name] = os.path.abspath(os.path.expanduser(given))
            except FileNotFoundError as error:
                raise UsageError(
                    f"setting {name}: {shown(given)} cannot be resolved: the current directory was removed; change to "
                    "another one, or give an absolute path"
                ) from error
    return found


def changed_settings(settings: Settings, changes: dict[str, Any]) -> Settings:
    """Settings with some replaced; text is converted. A profile sets all sizes but those that are given.
    Raises UsageError naming an unknown setting or a wrong value.
    """
    if "profile" in changes:
        settings = with_profile(settings, changes["profile"])
    types = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    converted: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in types:
            raise UsageError(f"there is no setting {shown(name)}: {near(name, types)}")
        try:
            if name == "group":
                converted[name] = ownership.group_named(value)
                continue
            converted[name] = msgspec.convert(value, type=types[name], strict=False)
        except (msgspec.ValidationError, UnicodeEncodeError):
            wanted = {int: "a whole number", float: "a number"}.get(types[name], "a text")
            if "_bytes" in name:
                wanted += " of bytes, without a unit"
            raise UsageError(f"setting {name} must be {wanted}, not {shown(value)}") from None
    return msgspec.structs.replace(settings, **converted)
