"""`warren check DIR`: read every file of a data directory, and say what is wrong. It changes nothing, with the node up
or down.

A problem is damage: bytes that are not what was written. It costs what stood there; the rest is served. A note is no
damage: the torn tail of the last file after an unclean stop (what was confirmed lies before it), files that do not
belong here, files that a killed process had not finished. With the node up the last file of each folder is being
written: its end is not judged. Exit code 0: no problem; 1: problems.
"""

from __future__ import annotations

import contextlib
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from warren.engine import _core, segment
from warren.engine.catalog import Catalog
from warren.engine.errors import CorruptRecord, FormatVersionError, StoreError
from warren.engine.formats import (
    FILE_HEADER_BYTES,
    FILE_JOURNAL,
    FILE_SEGMENT,
    FILE_STORE,
    QUEUE_SEGMENT_ENTRY,
    SEGMENT_ENTRY_COUNT,
)
from warren.engine.node_directory import NodeDirectory
from warren.ipc.layout import PAGE_BYTES, SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT, SERVER_WORKER_FIRST
from warren.workers.cli import output

SNAPSHOT_MAGIC = b"WRNSNP01"
TERMS_MAGIC = b"WRNTERM1"
_NO_ENTRY = bytes(QUEUE_SEGMENT_ENTRY.size)


@dataclass
class Checked:
    """One file: how many records it has, and what is wrong."""

    path: str
    kind: str
    bytes: int = 0
    records: int = 0
    problem: str = ""
    note: str = ""


@dataclass
class Report:
    """What a check found."""

    dir: str
    running: bool
    files: list[Checked] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [f"{item.path}: {item.problem}" for item in self.files if item.problem]

    @property
    def notes(self) -> list[str]:
        return [f"{item.path}: {item.note}" for item in self.files if item.note]


@dataclass(frozen=True)
class _Place:
    """A folder of segment files."""

    folder: Path
    suffix: str
    kind: int
    owner: int
    #: the newest file is being written
    appended: bool


def places(directory: Path) -> Iterator[_Place]:
    """The folders of a data directory that have segment files."""
    for name, owner in (("persistent", SERVER_STORE_PERSISTENT), ("transient", SERVER_STORE_TRANSIENT)):
        yield _Place(directory / "store" / name, ".rdq", FILE_STORE, owner, True)
    for worker in sorted((directory / "queues").glob("worker-*")):
        number = worker.name.removeprefix("worker-")
        if not number.isdigit():
            continue
        owner = SERVER_WORKER_FIRST + int(number)
        yield _Place(worker / "journal", ".jnl", FILE_JOURNAL, owner, True)
        yield _Place(worker / "transient", ".jnl", FILE_JOURNAL, owner, True)
        yield _Place(worker / "segments", ".dat", FILE_JOURNAL, owner, False)
        for queue in sorted((worker / "segments").glob("*")):
            if queue.is_dir() and queue.name.isdigit():
                yield _Place(queue, ".idx", FILE_SEGMENT, owner, False)


def verify(directory: NodeDirectory, progress: Any = None) -> Report:
    """Check everything; `progress(done, all)` is called after each file. Raises NodeNotRunning when there is no data
    directory.
    """
    node = directory.read()
    report = Report(str(directory.path), directory.locked())
    report.files.append(Checked(str(directory.path / "node.json"), "node"))
    report.files.append(_catalog(directory.path))
    work: list[tuple[_Place, int, Path, bool]] = []
    for place in places(directory.path):
        if not place.folder.is_dir():
            continue
        listing = segment.list_files(place.folder, place.suffix)
        report.files += _strangers(listing, place)
        last = _last_begun(listing.files) if place.appended else -1
        work += [(place, number, path, place.appended and number >= last) for number, path in listing.files]
        report.files += _marks(place.folder)
    for done, (place, number, path, is_last) in enumerate(work, 1):
        checked = _segment_file(place, number, path, node.node_id, is_last, report.running)
        if checked is not None:
            report.files.append(checked)
        if progress is not None:
            progress(done, len(work))
    return report


def _catalog(directory: Path) -> Checked:
    checked = Checked(str(directory / "catalog.json"), "catalog")
    try:
        checked.records = len(Catalog.load(directory).queues)
    except StoreError as error:
        checked.problem = str(error)
    return checked


def _strangers(listing: segment.Listing, place: _Place) -> Iterable[Checked]:
    known = {"clean", "index.snapshot"} if place.kind == FILE_STORE else set()
    for path in listing.foreign:
        if path.name in known or (place.suffix == ".dat" and path.is_dir()):
            continue
        yield Checked(str(path), "foreign", note="does not belong here; it is left alone")
    for path in listing.unfinished:
        yield Checked(str(path), "unfinished", note="was being made when its process died; it holds nothing")


def _marks(folder: Path) -> Iterator[Checked]:
    """Checksums of the snapshot of a store, and of the terms of a queue worker."""
    for path, magic in ((folder / "index.snapshot", SNAPSHOT_MAGIC), (folder.parent / "terms", TERMS_MAGIC)):
        if path.name == "terms" and folder.name != "journal":
            continue
        try:
            content = path.read_bytes()
        except OSError:
            continue
        body = content[12:]
        crc = _core.crc32c(body) if magic == SNAPSHOT_MAGIC else zlib.crc32(body)
        checked = Checked(str(path), "mark", len(content))
        if content[:8] != magic or int.from_bytes(content[8:12], "big") != crc:
            checked.note = "has a wrong checksum; it is not used, the next start scans instead"
        yield checked


def _segment_file(place: _Place, number: int, path: Path, node_id: int, is_last: bool, running: bool) -> Checked | None:
    """Check one file; None when it was deleted meanwhile."""
    checked = Checked(str(path), place.suffix[1:])
    try:
        if place.kind == FILE_SEGMENT:
            _index_entries(checked, path, node_id, place.owner, number)
            return checked
        found = segment.scan_file(path, kind=place.kind, node_id=node_id, owner=place.owner, file=number)
    except (CorruptRecord, FormatVersionError) as error:
        if is_last and running:
            return None  # just being made
        checked.problem = str(error)
        return checked
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        checked.problem = str(error)
        return checked
    checked.bytes, checked.records = len(found.data), len(found.frames)
    if not found.frames.clean:
        is_last = is_last and not _goes_on(found)
        what = f"no valid record at byte {found.frames.end} ({found.frames.reason})"
        rest = len(found.data) - found.frames.end
        if not is_last or _stopped_clean(place):
            checked.problem = f"{what}; {rest} bytes behind it are not served"
        elif not running:
            checked.note = f"{what}: the torn tail of an unclean stop, which the next start cuts off"
    return checked


def _stopped_clean(place: _Place) -> bool:
    """Whether the server that owns the folder marked that it ended in good order, and none has begun since."""
    return (place.folder / "clean").exists() or (place.suffix == ".jnl" and (place.folder.parent / "terms").exists())


def _last_begun(files: list[tuple[int, Path]]) -> int:
    """Number of the newest file with a record; newer ones were prepared ahead. Only it may have a torn tail."""
    for number, path in reversed(files):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            file.seek(FILE_HEADER_BYTES)
            if any(file.read(8)):
                return number
    return -1


def _goes_on(found: segment.FileScan) -> bool:
    """Whether a valid record starts a later page, as each group commit does: then before it is no torn tail."""
    start = (found.frames.end // PAGE_BYTES + 1) * PAGE_BYTES
    salt = found.header.salt
    return any(
        not isinstance(_core.frame_check(found.data, at, salt), str)
        for at in range(start, len(found.data) - 64, PAGE_BYTES)
    )


def _index_entries(checked: Checked, path: Path, node_id: int, owner: int, number: int) -> None:
    data = path.read_bytes()
    header = segment.check_header(
        path, data[:FILE_HEADER_BYTES], kind=FILE_SEGMENT, node_id=node_id, owner=owner, file=number
    )
    checked.bytes = len(data)
    seed = _core.crc32c(header.salt.to_bytes(8, sys.byteorder))
    size = QUEUE_SEGMENT_ENTRY.size
    wrong = []
    for slot in range(min(SEGMENT_ENTRY_COUNT, (len(data) - FILE_HEADER_BYTES) // size)):
        entry = data[FILE_HEADER_BYTES + slot * size : FILE_HEADER_BYTES + (slot + 1) * size]
        if entry == _NO_ENTRY:
            continue
        if _core.crc32c(entry[4:], seed) == QUEUE_SEGMENT_ENTRY.unpack(entry, "crc"):
            checked.records += 1
        else:
            wrong.append(slot)
    if wrong:
        at = FILE_HEADER_BYTES + wrong[0] * size
        checked.problem = f"{len(wrong)} entries are damaged, the first at byte {at}"


@click.command()
@click.argument("directory", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
@click.option("--verbose", is_flag=True, help="List every file.")
def check(directory: str, as_json: bool, verbose: bool) -> int:
    """Verify every file of DIR: checksums, numbers, owners. Changes nothing. Exit code 1 when something is damaged."""
    target = NodeDirectory(directory)
    if sys.stderr.isatty() and not as_json:
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("reading files", total=None)
            report = verify(target, lambda done, total: bar.update(task, completed=done, total=total))
    else:
        report = verify(target)
    if as_json:
        output.print_json(
            {
                "dir": report.dir,
                "running": report.running,
                "ok": not report.problems,
                "files": [asdict(item) for item in report.files],
                "problems": report.problems,
                "notes": report.notes,
            }
        )
        return 1 if report.problems else 0
    for item in report.files:
        if verbose and not item.problem:
            print(f"ok       {item.path}: {item.records} records, {output.bytes_text(item.bytes)}")
    for note in report.notes:
        print(f"note     {note}")
    for problem in report.problems:
        print(f"PROBLEM  {problem}")
    records = sum(item.records for item in report.files)
    total = sum(item.bytes for item in report.files)
    verdict = f"{len(report.problems)} problems" if report.problems else "no problem"
    print(f"{len(report.files)} files, {records:,} records, {output.bytes_text(total)}: {verdict}")
    return 1 if report.problems else 0
