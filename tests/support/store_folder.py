"""A store's folder made by hand, and what a start makes of it with a stand-in for the core.

`folder = Folder(path); three(folder); folder.start().served` are the messages that can be read.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from warren.engine import _core
from warren.engine.kernel import frame, quarantine, segment
from warren.engine.kernel.file_register import FileRegister
from warren.engine.kernel.formats import FILE_HEADER_BYTES, FILE_STORE, KIND_ADD_REFERENCE, KIND_MESSAGE, KIND_REMOVE
from warren.engine.store import clean_mark, file_lists, recovery, scanning, start_report
from warren.engine.store.folder import FILES
from warren.ipc.layout import CRASH_POINTS

from support.heard import Heard

NODE, OWNER, SIZE = 77, 0, 64 * 1024


def message_id(n: int) -> bytes:
    return (7).to_bytes(8, "big") + n.to_bytes(8, "big")


def body(n: int) -> bytes:
    return b"%08d" % n * (3 + n % 7)


class Core:
    """What the C core does with lists, as note 003 says it."""

    def __init__(self) -> None:
        self.entries: dict[bytes, list[int]] = {}  #: file, offset, total, references
        self.files: dict[int, tuple[int, int, int]] = {}
        self.asked = 0
        self.lost = -1

    def add_file(self, _server: int, file: int, used: int, low: int, high: int) -> None:
        assert file not in self.files
        self.files[file] = (used, low, high)

    def apply_list(self, _server: int, found: _core.FileList, cursor: int = 0) -> tuple[int, str | None]:
        items = found.items()
        for at in range(cursor, len(items)):
            if at % 7 == 6 and self.asked <= at:
                self.asked = at + 1
                return at, "extent" if at % 2 else "index"
            id, offset, total, _extra, _meta, kind = items[at]
            if kind == KIND_MESSAGE:
                self.entries[id] = [found.file, offset, total, 1]
            elif id in self.entries:
                entry = self.entries[id]
                entry[3] = max(0, entry[3] + (1 if kind == KIND_ADD_REFERENCE else -1))
        self.asked = 0
        return len(items), None

    def note_lost(self, _server: int, messages: int) -> None:
        self.lost = messages

    def finish(self, _server: int) -> int:
        return 0


class Killed(BaseException):
    """Stands for a kill."""


@dataclass
class Crash:
    """A superblock with one armed crash point."""

    point: str = ""
    passed: list[str] = field(default_factory=list)

    def crash_point(self, point: int) -> None:
        self.passed.append(CRASH_POINTS[point - 1])
        if self.passed[-1] == self.point:
            raise Killed(self.point)


@dataclass
class Folder:
    """A store's folder, and what is true of it."""

    path: Path
    places: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    salts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """As a node makes it: with its list of files. What is there and not listed does not matter."""
        if self.path.is_dir() and not (self.path / FILES).exists():
            FileRegister(self.path / FILES, NODE, OWNER).begin({}, [])

    def file(self, number: int) -> Path:
        return self.path / f"{number}.rdq"

    def put(
        self,
        number: int,
        records: list[tuple[int, int]],
        *,
        last: bool = True,
        listed: bool = True,
        positions: tuple[int, int] | None = None,
        behind: int | None = None,
    ) -> None:
        """A file with records (kind, message number), three a commit; `behind`: it was a spare with such a salt."""
        made = segment.create(self.file(number), FILE_STORE, NODE, OWNER, number, SIZE, positions=positions)
        os.close(made.fd)
        self.salts[number] = made.salt
        data = bytearray()

        def pad(is_last: bool) -> None:
            size = -len(data) % 4096 or 4096
            data.extend(frame.pad(size if size >= 57 else size + 4096, salt=made.salt, last=is_last))

        for at, (kind, n) in enumerate(records):
            if kind == KIND_MESSAGE:
                self.places[message_id(n)] = (number, FILE_HEADER_BYTES + len(data), n)
            data += frame.encode(
                kind,
                body(n) if kind == KIND_MESSAGE else message_id(n) if kind == KIND_REMOVE else b"",
                salt=made.salt,
                id=message_id(n) if kind != KIND_REMOVE else bytes(16),
                client_epoch=7,
                sequence=n + 1,
                extra=1 if kind == KIND_REMOVE else 0,
            )
            if at % 3 == 2 and len(data) % 4096:
                pad(False)
        if last or len(data) % 4096:
            pad(last)
        if behind is not None:
            old = b"".join(frame.encode(KIND_MESSAGE, b"old", salt=behind, id=message_id(n)) for n in range(900, 1000))
            data += old
        with self.file(number).open("r+b") as file:
            file.seek(FILE_HEADER_BYTES)
            file.write(data)
        if listed:
            found, _reason = scanning.scan(self.file(number), number, made.salt)
            file_lists.write_list(self.path, NODE, OWNER, found)

    def mark(self, next_file: int, files: list[int]) -> None:
        clean_mark.save(self.path, NODE, OWNER, next_file, files)

    def start(self, crash: str = "", said: Heard | None = None) -> "Started":
        core, points = Core(), Crash(crash)
        begun: list[tuple[int, int]] = []
        grown: list[str] = []
        report = recovery.Recovery(
            core,  # type: ignore[arg-type]
            OWNER,
            self.path,
            NODE,
            lambda rows, extents: begun.append((rows, extents)),
            lambda: grown.append("index"),
            lambda: grown.append("extent"),
            points,
            said if said is not None else Heard(),
        ).run()
        assert len(begun) == 1
        for found in report.lists:
            file_lists.write_list(self.path, NODE, OWNER, found)
        return Started(self, core, report, points.passed)

    def names(self) -> list[str]:
        """But for the list of files, which each start and each repair makes."""
        return sorted(path.name for path in self.path.iterdir() if path.name != FILES)

    def lines(self) -> list[quarantine.Entry]:
        return quarantine.entries(self.path)


@dataclass
class Started:
    folder: Folder
    core: Core
    report: start_report.Report
    passed: list[str]

    @property
    def served(self) -> set[int]:
        """Messages with references that can be read, each with its own body."""
        found = set()
        for id, (file, offset, total, references) in self.core.entries.items():
            n = int.from_bytes(id[8:], "big")
            data = self.folder.file(file).read_bytes()
            at = frame.check(
                data,
                offset,
                segment.read_header(self.folder.file(file), kind=FILE_STORE, node_id=NODE, owner=OWNER, file=file).salt,
            )
            if at is None or references == 0:
                continue
            assert (at.id, at.total, at.kind) == (id, total, KIND_MESSAGE)
            assert bytes(frame.body(data, offset, total)) == body(n)
            found.add(n)
        return found

    @property
    def state(self) -> object:
        places = {file: positions for file, (_used, *positions) in self.core.files.items()}
        return (self.core.entries, places, self.report.next_file)


M, A, R = KIND_MESSAGE, KIND_ADD_REFERENCE, KIND_REMOVE


def harm_bytes(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def three(folder: Folder, listed: bool = True) -> None:
    """Files 0, 1, 2 with messages 0 … 29, of which 4, 14 were removed and 5 is held twice and was removed once."""
    folder.put(0, [(M, n) for n in range(10)], listed=listed)
    folder.put(1, [(A, 5), (R, 4), *[(M, n) for n in range(10, 20)]], listed=listed)
    folder.put(2, [(R, 5), (R, 14), *[(M, n) for n in range(20, 30)]], last=False, listed=listed)


ALL = set(range(30)) - {4, 14}
#: without file 1: the remove of 4 and the second reference of 5 stood there
WITHOUT_1 = {*range(10), *range(20, 30)} - {5}
