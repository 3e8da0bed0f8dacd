"""The log of changes of a catalog, `catalog.<version>.log`: a change costs what it changes, for who makes it and for
who follows it.

Lines of JSON, each with its checksum. The first, `{"crc32": …, "log": {…}}`, tells the version that the log begins at
and its stamp; each other one, `{"crc32": …, "change": {…}}`, is one change: the version that it was made from, the
numbers that it leads to, and the steps (catalog.Step). A change of many declarations is one line: all of it or nothing.

`catalog.json` with the stamp of a log stands for its own version and all that `catalog.<its version>.log` says. Without
a stamp it stands for itself: so it is after `Catalog.save`, and after the clean end of a node.

The writer (supervisor, under the directory's lock) appends and syncs, and only then tells the version. When the log is
long it makes a new log that begins at the version of now, syncs it, replaces `catalog.json` by one that names it, and
removes the logs before the last. When there is no log, the same comes before the change: a change is in a log alone
until it is told, so that whoever reads `catalog.json` just then does not find it there.

Readers know a version and a place in a log. To follow up to a version that the writer has told they read the log from
there; at its end they go on in the log that begins at their version, if there is one; else they load everything. They
take nothing beyond the version that they were told: it may still be taken back.

A line is true if and only if its CRC32 (begun with the log's stamp) is right and it goes on from the version before.
A last line that is cut, or has NUL bytes, is the torn tail of a write that was never confirmed; anything else that is
not true is damage, and refused with the file's name.

Crash points
  The line is written, its version not told: the successor has read it, writes it again, syncs it, and tells it.
  A part of the line is written: the torn tail; the next writer cuts it off before it appends.
  The write or its sync fails: the line is cut off, the change taken back. If that fails too, or the sync, nobody knows
    what the disk has: the version is used up, and the next change begins a new log, beside which the old one counts for
    nothing.
  The new log is made, `catalog.json` does not name it: it counts for nothing; its name is written anew when needed.
  `catalog.json` names the new log, old ones are still there: they count for nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from warren.engine.catalog.catalog import FILE_NAME, Catalog, State, Step
from warren.engine.errors import CorruptRecord, Error, FormatVersionError, StoreError
from warren.engine.kernel import atomic_file, data_files, unsynced
from warren.engine.kernel.formats import CATALOG_LOG_VERSION
from warren.engine.saying import undecoded

#: a log is replaced when it is longer than this, and than the catalog itself
LOG_BYTES_MIN = 1 << 20
NAME = re.compile(r"catalog\.(\d+)\.log(\.new)?")
#: how often a reader begins anew because the writer was just beginning a new log
READS_MAX = 100
#: what who follows in pieces reads at once, if a line is not longer
PIECE_BYTES = 16 << 10
_HEAD_BYTES_MAX = 4096

T = TypeVar("T")
C = TypeVar("C", "_Change", "_UnreadChange")


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    format_version: int
    version: int
    stamp: int


class _HeadLine(msgspec.Struct, forbid_unknown_fields=True):
    crc32: int
    log: msgspec.Raw


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    before: int
    version: int
    next_queue_id: int
    placed_for: int
    steps: list[Step]


class _UnreadChange(msgspec.Struct, forbid_unknown_fields=True):
    """A change whose steps are read one by one."""

    before: int
    version: int
    next_queue_id: int
    placed_for: int
    steps: list[msgspec.Raw]


class _ChangeLine(msgspec.Struct, forbid_unknown_fields=True):
    crc32: int
    change: msgspec.Raw


class _Version(msgspec.Struct):
    format_version: int


_STEP = msgspec.json.Decoder(Step)


@dataclass(frozen=True)
class Place:
    """A place in a log: the version that it begins at, its stamp, how far it was read."""

    begins: int
    stamp: int
    end: int
    format_version: int = CATALOG_LOG_VERSION


@dataclass(frozen=True)
class Loaded:
    """A catalog as it was read; `place`: the end of its log, None: it has none; `torn`: bytes behind that end."""

    catalog: Catalog
    place: Place | None
    changes: int = 0
    torn: int = 0


def log_path(directory: Path | str, begins: int) -> Path:
    """The log that begins at a version."""
    return Path(directory) / f"catalog.{begins}.log"


def remove_logs(directory: Path | str, keep: Iterable[int]) -> None:
    """Remove the logs of a directory but for those that begin at these versions. What stays does no harm."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            match = NAME.fullmatch(name)
            if match and int(match[1]) not in keep:
                with contextlib.suppress(OSError):
                    data_files.unlink(Path(directory) / name)


# -- lines ------------------------------------------------------------------------------------------------------


def encode_head(begins: int, stamp: int) -> bytes:
    """The first line of a log."""
    raw = msgspec.json.encode(_Head(CATALOG_LOG_VERSION, begins, stamp))
    return b'{"crc32":%d,"log":%s}\n' % (zlib.crc32(raw), raw)


def encode_change(stamp: int, before: int, state: State, steps: list[Step]) -> bytes:
    """The line of one change."""
    raw = msgspec.json.encode(_Change(before, *state, steps))
    return b'{"crc32":%d,"change":%s}\n' % (zlib.crc32(raw, stamp), raw)


def _head(path: Path, line: bytes) -> _Head:
    """What the first line says. Raises CorruptRecord, FormatVersionError."""
    try:
        outer = msgspec.json.decode(line, type=_HeadLine)
        raw = bytes(outer.log)
        if zlib.crc32(raw) != outer.crc32:
            raise CorruptRecord(path, 0, f"crc32 {outer.crc32}", str(zlib.crc32(raw)))
        found = msgspec.json.decode(raw, type=_Version).format_version
        if found > CATALOG_LOG_VERSION:
            raise FormatVersionError(
                f"{path} has format version {found}, and this Warren knows {CATALOG_LOG_VERSION}: "
                "install a newer Warren"
            )
        return msgspec.json.decode(raw, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptRecord(path, 0, "the head of a log of the catalog", undecoded(error)) from error


def _change(path: Path, at: int, line: bytes, stamp: int, kind: type[C]) -> C:
    try:
        outer = msgspec.json.decode(line, type=_ChangeLine)
        raw = bytes(outer.change)
        if zlib.crc32(raw, stamp) != outer.crc32:
            raise CorruptRecord(path, at, f"crc32 {outer.crc32}", str(zlib.crc32(raw, stamp)))
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptRecord(path, at, "a change of the catalog", undecoded(error)) from error


def _changes(
    path: Path, content: bytes, begin: int, stamp: int, version: int, until: int, kind: type[C]
) -> tuple[list[C], int]:
    """The changes in `content`, which lies at `begin` of the log, up to version `until`, and where they end. Ends
    before a torn tail; raises CorruptRecord for damage."""
    found: list[C] = []
    at = 0
    while at < len(content) and version < until:
        stop = content.find(b"\n", at)
        line = content[at:] if stop < 0 else content[at : stop + 1]
        try:
            if stop < 0:
                raise CorruptRecord(path, begin + at, "a whole line", f"{len(line)} bytes")
            change = _change(path, begin + at, line, stamp, kind)
            if change.before != version or change.version <= version:
                raise CorruptRecord(
                    path, begin + at, f"a change from version {version}", f"{change.before} to {change.version}"
                )
        except CorruptRecord:
            last = stop < 0 or stop + 1 == len(content)
            if last and (stop < 0 or b"\0" in line):
                break
            raise
        if change.version > until:
            break
        found.append(change)
        version = change.version
        at += len(line)
    return found, begin + at


def _follow(path: Path, catalog: Catalog, changes: list[_Change]) -> None:
    for change in changes:
        try:
            catalog.follow(change.steps, State(change.version, change.next_queue_id, change.placed_for))
        except (KeyError, ValueError) as error:
            raise CorruptRecord(path, 0, f"changes that fit version {catalog.version}", repr(error)) from error


_NO_END = 1 << 64


def load(directory: Path | str, until: int = _NO_END) -> Loaded:
    """Read the catalog of a directory with its log, up to a version that was told, or all of it.

    Raises CorruptRecord (a file is damaged or missing, named), FormatVersionError, PermissionRefused, StoreError.
    """
    try:
        return _load(directory, until)
    except CorruptRecord as error:
        raise error.advised(
            f"a node cannot start without its catalog: restore {FILE_NAME} and catalog.*.log, all from the same "
            f"moment, from a backup of {directory}"
        ) from error


def _load(directory: Path | str, until: int) -> Loaded:
    for attempt in range(READS_MAX):
        catalog = Catalog.read(directory)
        if not catalog.log:
            return Loaded(catalog, None)
        path = log_path(directory, catalog.version)
        try:
            content = data_files.read(path)
        except FileNotFoundError as error:
            # Was a new one begun just now? Then catalog.json names that.
            if attempt + 1 < READS_MAX and Catalog.read(directory).version != catalog.version:
                continue
            raise CorruptRecord(path, 0, "the changes of the catalog since catalog.json", "no file") from error
        except OSError as error:
            raise atomic_file.explain(error, f"cannot read {path}") from error
        first = content.find(b"\n") + 1
        head = _head(path, content[:first])
        if (head.version, head.stamp) != (catalog.version, catalog.log):
            if Catalog.read(directory).version != catalog.version:
                continue
            raise CorruptRecord(
                path,
                0,
                f"the log of {FILE_NAME}: version {catalog.version}, stamp {catalog.log}",
                f"version {head.version}, stamp {head.stamp}",
            )
        begins = catalog.version
        changes, end = _changes(path, content[first:], first, head.stamp, begins, until, _Change)
        _follow(path, catalog, changes)
        place = Place(begins, head.stamp, end, head.format_version)
        return Loaded(catalog, place, len(changes), len(content) - end)
    raise StoreError(f"the catalog of {directory} changes faster than it can be read: try again")


# -- readers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class News:
    """What changed: `steps` lead to `state`; None: it is as it was."""

    steps: list[Step]
    state: State | None


class Reader:
    """Follows the catalog of a running node. Not for several threads at once."""

    def __init__(self, directory: Path | str, called: Path | None = None) -> None:
        """`called`: what errors call the directory, when it is read by another name (of a descriptor)."""
        self._directory = Path(directory)
        self._called = called or self._directory
        self._place: Place | None = None
        self._unread: deque[_UnreadChange] = deque()  # read from the log, not handed out whole
        self._handed = 0  # steps of the first of them
        self.version = 0  #: what it has read

    def load(self, until: int) -> Catalog:
        """All of it, at the version that the writer tells now. Raises as `catalog_log.load`."""
        try:
            found = load(self._directory, until)
        except CorruptRecord as error:
            path, advice = self._named(error.path), self._named(error.advice)
            raise CorruptRecord(path, error.position, error.expected, error.found, advice) from error.__cause__
        except StoreError as error:
            raise type(error)(self._named(error)) from error.__cause__
        self.version, self._place = found.catalog.version, found.place
        self._unread.clear()
        self._handed = 0
        return found.catalog

    def _named(self, text: object) -> str:
        return str(text).replace(str(self._directory), str(self._called))

    def follow(self, until: int) -> News | None:
        """What changed since it last read, up to the version that the writer tells now; None: load all of it."""
        place, version = self._place, self.version
        steps: list[Step] = []
        state: State | None = None
        while version < until:
            found = self._next(place, version, until, _Change)
            if found is None:
                return None
            changes, place = found
            for change in changes:
                steps += change.steps
            last = changes[-1]
            version, state = last.version, State(last.version, last.next_queue_id, last.placed_for)
        self._place, self.version = place, version
        return News(steps, state)

    def piece(self, until: int, most: int) -> list[Step] | None:
        """The next steps of what changed, at most `most`, for who serves others between them: `version` tells how far
        they lead, whole changes alone; when it is `until`, nothing is left. None: load all of it. Not beside `follow`.
        """
        if not self._unread and self.version < until:
            found = self._next(self._place, self.version, until, _UnreadChange, PIECE_BYTES)
            if found is None:
                return None
            self._unread.extend(found[0])
            self._place = found[1]
        steps: list[Step] = []
        while self._unread and len(steps) < most:
            change = self._unread[0]
            raw = change.steps[self._handed : self._handed + most - len(steps)]
            try:
                steps += map(_STEP.decode, raw)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return None  # what is wrong with it is told by who loads all of it
            self._handed += len(raw)
            if self._handed == len(change.steps):
                self._unread.popleft()
                self._handed, self.version = 0, change.version
        return steps

    def _next(
        self, place: Place | None, version: int, until: int, kind: type[C], most: int | None = None
    ) -> tuple[list[C], Place] | None:
        """Changes that go on from a version, at least one, and the place behind them; None: no log has them."""
        found = self._read(place, version, until, kind, most) if place is not None else None
        if found is None or not found[0]:
            # The end of this log, or no log: is there one that begins here?
            following = self._begin(version)
            if following is None or (place is not None and following.begins == place.begins):
                return None
            found = self._read(following, version, until, kind, most)
            if found is None or not found[0]:
                return None
            place = following
        assert place is not None
        return found[0], Place(place.begins, place.stamp, found[1])

    def _read(
        self, place: Place, version: int, until: int, kind: type[C], most: int | None
    ) -> tuple[list[C], int] | None:
        path = log_path(self._directory, place.begins)
        try:
            descriptor = data_files.open(path, os.O_RDONLY)
            try:
                length = os.fstat(descriptor).st_size - place.end
                wanted = length if most is None else min(length, most)
                content = bytearray()
                while True:
                    while len(content) < wanted:
                        part = os.pread(descriptor, wanted - len(content), place.end + len(content))
                        if not part:
                            wanted = length = len(content)
                        content += part
                    if wanted == length or b"\n" in content:
                        break
                    wanted = min(length, 4 * wanted)  # one line is longer
            finally:
                os.close(descriptor)
            return _changes(path, bytes(content), place.end, place.stamp, version, until, kind)
        except (OSError, CorruptRecord):
            return None  # it was removed, or cut; what is wrong with it is told by who loads all of it

    def _begin(self, version: int) -> Place | None:
        """The beginning of the log that begins at a version."""
        path = log_path(self._directory, version)
        try:
            with data_files.reading(path) as file:
                line = file.readline(_HEAD_BYTES_MAX)
            head = _head(path, line)
        except (OSError, CorruptRecord, FormatVersionError):
            return None
        return Place(version, head.stamp, len(line)) if head.version == version else None


# -- the writer -------------------------------------------------------------------------------------------------


class Writer:
    """Makes changes of a catalog durable. One for a directory, under its lock.

    `catalog` is what stands: a change that failed was taken back. Of `loaded` what is behind the last change is cut
    off, and the rest written again and synced, because it will be built on: the sync of its writer may have failed.
    Raises DiskFull, SyncFailed, PermissionRefused, StoreError.
    """

    def __init__(self, directory: Path | str, loaded: Loaded) -> None:
        self._directory = Path(directory)
        self.catalog = loaded.catalog
        self._place = loaded.place
        self.steps: list[Step] = []  #: of the last change
        self._compact_bytes = LOG_BYTES_MIN
        self._dirty = loaded.place is not None  #: catalog.json does not stand for itself
        if loaded.place is not None:
            path = log_path(directory, loaded.place.begins)
            try:
                descriptor = data_files.open(path, os.O_WRONLY)
                try:
                    if loaded.torn:
                        os.ftruncate(descriptor, loaded.place.end)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise atomic_file.explain(error, f"cannot write {path}", syncing=True) from error
            unsynced.write_again(path, 0, loaded.place.end)

    def change(self, change: Callable[[Catalog], T]) -> T:
        """Change the catalog durably; after an error it is what it was. Raises what `change` raises, too."""
        catalog = self.catalog
        if self._place is not None and self._place.format_version < CATALOG_LOG_VERSION:
            self._place = None  # what it cannot hold goes into a new log, which does not get the name of this one
            catalog.version += 1
        before = catalog.version
        catalog.begin()
        try:
            result = change(catalog)
            used = catalog.version
        except BaseException:
            catalog.undo()
            raise
        try:
            if used != before:
                if self._place is None:
                    self._begin_before()
                self._write(before)
        except BaseException:
            catalog.undo()
            if self._place is None:
                catalog.version = used  # nobody knows whether it is on disk: another change does not get its number
            raise
        self.steps = catalog.steps or []
        catalog.end()
        return result

    def _begin_before(self) -> None:
        """There is no log: one that begins before the change under way, which nobody is to find before it is told."""
        catalog = self.catalog
        steps, state = catalog.steps or [], catalog.state
        catalog.undo()
        try:
            self._begin_log()
        finally:
            catalog.redo(steps, state)

    def _write(self, before: int) -> None:
        place = self._place
        assert place is not None
        path = log_path(self._directory, place.begins)
        line = encode_change(place.stamp, before, self.catalog.state, self.catalog.steps or [])
        syncing = False
        try:
            descriptor = data_files.open(path, os.O_WRONLY)
            try:
                try:
                    atomic_file.write_all(descriptor, line, place.end)
                    syncing = True
                    os.fdatasync(descriptor)
                except BaseException:
                    if syncing:
                        self._place = None  # what a failed sync leaves on the disk is not known
                    try:
                        os.ftruncate(descriptor, place.end)
                        os.fdatasync(descriptor)  # nothing of it shows through what is written there next
                    except OSError:
                        self._place = None
                    raise
            finally:
                os.close(descriptor)
        except OSError as error:
            if not path.exists():
                self._place = None  # somebody removed it: the next change writes everything anew
            raise atomic_file.explain(error, f"cannot write {path}", syncing=syncing) from error
        self._place = Place(place.begins, place.stamp, place.end + len(line))

    def _begin_log(self) -> None:
        """A new log that begins now, and a `catalog.json` that names it."""
        catalog = self.catalog
        stamp = secrets.randbelow((1 << 32) - 1) + 1
        head = encode_head(catalog.version, stamp)
        before, catalog.log = catalog.log, stamp
        try:
            atomic_file.replace(log_path(self._directory, catalog.version), head)
            content = catalog.encode()
            atomic_file.replace(self._directory / FILE_NAME, content)
        except BaseException:
            catalog.log = before
            raise
        old, self._place = self._place, Place(catalog.version, stamp, len(head))
        self._dirty = True
        self._compact_bytes = max(LOG_BYTES_MIN, len(content))
        remove_logs(self._directory, keep={catalog.version, old.begins if old is not None else catalog.version})

    def tidy(self) -> None:
        """Begin a new log when this one is long. Raises as `change`; then the old one goes on."""
        if self._place is None or self._place.end < self._compact_bytes:
            return
        self._compact_bytes = self._place.end + LOG_BYTES_MIN  # when it fails: not at once again
        try:
            self._begin_log()
        except BaseException:
            if not self._named():
                self._place = None
                self.catalog.version += 1  # the next log does not get the name of this one
            raise

    def _named(self) -> bool:
        """True when `catalog.json` names the log in use for certain: a replacement may have failed at its last sync."""
        try:
            found = Catalog.read(self._directory)
        except Error:
            return False
        return self._place is not None and (found.version, found.log) == (self._place.begins, self._place.stamp)

    def close(self) -> None:
        """The node has ended: `catalog.json` stands for itself again. Raises as `change`; then the log counts."""
        if self._dirty:
            self.catalog.save(self._directory)
            self._dirty, self._place = False, None
