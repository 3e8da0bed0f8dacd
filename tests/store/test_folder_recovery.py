"""Goal: whatever the files of a store's folder look like, a start serves all that was not damaged and nothing false,
says what was lost, and reaches the same state however often it is killed.

Method: folders made by hand (files, lists, marks, spares, collected files), a stand-in for the core that applies lists
as note 003 says and reads each message back from its place, damage of every kind, a death at each crash point. Real
servers on damaged folders: test_store_recovery.py.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warren.engine import _core
from warren.engine.errors import FormatVersionError, StoreError
from warren.engine.kernel.formats import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FILE_STORE,
)
from warren.engine.store import recovery, scanning
from warren.engine.store.folder import list_path

from support.heard import Heard
from support.store_folder import (
    ALL,
    NODE,
    OWNER,
    SIZE,
    WITHOUT_1,
    A,
    Folder,
    Killed,
    M,
    R,
    body,
    harm_bytes,
    message_id,
    three,
)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "store"
    path.mkdir()
    return Folder(path)


def test_clean_start_reads_lists_only(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    three(folder)
    folder.mark(9, [0, 1, 2])
    monkeypatch.setattr(scanning, "read_file", None)
    started = folder.start()
    assert started.report.clean
    assert started.served == ALL
    assert (started.report.files, started.report.scanned, started.report.next_file) == (3, 0, 9)
    assert (started.report.damaged, started.report.lists) == ([], [])
    assert "clean" not in folder.names()
    assert started.core.entries[message_id(5)][3] == 1
    assert started.passed[0] == "start_mark_gone"
    assert started.passed[-1] == "start_applied"


def test_a_list_more_or_less_costs_a_scan_and_nothing_else(folder: Folder) -> None:
    three(folder)
    want = folder.start().state
    for missing in ([0], [1, 2], [0, 1, 2]):
        for number in missing:
            list_path(folder.path, number).unlink()
        started = folder.start()
        assert started.state == want
        assert started.report.scanned == len(missing)
        assert [found.file for found in started.report.lists] == missing
        assert (started.report.damaged, started.report.torn_bytes) == ([], 0)
    for harm in (b"", b"nonsense", b"\0" * 500):
        list_path(folder.path, 1).write_bytes(harm)
        started = folder.start()
        assert (started.state, started.report.scanned, started.report.damaged) == (want, 1, [])
    shutil.copy(list_path(folder.path, 0), list_path(folder.path, 1))  # of another file
    assert folder.start().state == want
    assert folder.start().report.scanned == 0  # the lists were written anew


def test_torn_tail_of_the_youngest(folder: Folder) -> None:
    three(folder, listed=False)
    folder.put(3, [], listed=False, last=False)  # made ahead
    data = folder.file(2).read_bytes()
    last = folder.places[message_id(29)][1]
    whole = data.rstrip(b"\0")
    for cut in range(last + 1, last + 80, 9):
        folder.file(2).write_bytes(data[:cut] + bytes(SIZE - cut))
        list_path(folder.path, 2).unlink(missing_ok=True)
        started = folder.start()
        assert started.served == ALL - {29}
        assert started.report.damaged == []
        assert (started.report.torn_bytes > 0) == (cut > last + 26)  # below, nothing says what it was
        list_path(folder.path, 2).unlink()
        again = folder.start()
        assert again.state == started.state
        assert (again.report.damaged, again.report.torn_bytes) == ([], 0)
    assert len(whole) > last


def test_a_spare_that_was_not_filled_ends_where_it_ends(folder: Folder) -> None:
    folder.put(0, [(M, n) for n in range(5)], last=False, listed=False, behind=99)
    started = folder.start()
    assert started.served == set(range(5))
    assert started.report.damaged == []
    assert started.passed.count("start_torn") == 1
    folder.put(1, [(M, 6)], last=False, listed=False)
    list_path(folder.path, 0).unlink()
    started = folder.start()
    assert started.served == {0, 1, 2, 3, 4, 6}
    assert started.report.damaged == []


@pytest.mark.parametrize("listed", [True, False])
def test_flipped_bit_in_a_body_costs_its_message(folder: Folder, listed: bool) -> None:
    three(folder, listed)
    _file, offset, _n = folder.places[message_id(12)]
    with folder.file(1).open("r+b") as file:
        file.seek(offset + 60)
        file.write(b"\xff")
    started = folder.start()
    assert started.served == ALL - {12}
    if not listed:
        assert "1.rdq has damaged bytes" in started.report.damaged[0]
        (line,) = folder.lines()
        assert (line.file, line.start, line.reason) == ("1.rdq", offset, "crc")
        assert folder.start().report.damaged == []  # its list is there now
        list_path(folder.path, 1).unlink()
        assert folder.start().report.damaged  # said again,
        assert len(folder.lines()) == 1  # but not written again


@pytest.mark.parametrize("at", [0, 3, 8, 11, 12, 16, 24, 32, 40, 48, 56, 64, 1000, 4091, 4092, 4095])
def test_flipped_bit_in_a_header_is_mended(folder: Folder, at: int) -> None:
    three(folder)
    folder.put(7, [(M, n) for n in range(30, 35)], positions=(3, 5), listed=False)
    want = folder.start().state
    for number in (1, 7):
        before = folder.file(number).read_bytes()
        damaged = bytearray(before)
        damaged[at] ^= 1 << at % 8
        folder.file(number).write_bytes(damaged)
        started = folder.start()
        assert started.state == want
        assert f"{number}.rdq had a flipped bit" in started.report.damaged[0]
        assert folder.file(number).read_bytes() == before


def test_a_header_that_cannot_be_written_is_served(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    three(folder)
    harm_bytes(folder.file(1), 24, b"\x80")

    pwrite = os.pwrite

    def refuse(descriptor: int, data: bytes, at: int) -> int:
        if os.path.samefile(f"/proc/self/fd/{descriptor}", folder.file(1)):
            raise OSError(5, "bad sector")
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", refuse)
    started = folder.start()
    monkeypatch.undo()
    assert set(started.core.files) == {0, 1, 2}
    assert "cannot be repaired" in started.report.damaged[0]
    assert folder.start().served == ALL


HARMS: dict[str, Callable[[Folder], None]] = {
    "zeroed first page": lambda folder: harm_bytes(folder.file(1), 0, bytes(4096)),
    "foreign": lambda folder: folder.file(1).write_bytes(b"what is this" * 1000),
    "empty": lambda folder: folder.file(1).write_bytes(b""),
    "short": lambda folder: folder.file(1).write_bytes(b"WRNSEG01"),
    "of another number": lambda folder: shutil.copy(folder.file(2), folder.file(1)) and None,
    "of another owner": lambda folder: harm_bytes(
        folder.file(1), 0, _core.file_header_pack(FILE_STORE, NODE, 5, 1, folder.salts[1], 1)
    ),
    "of another kind": lambda folder: harm_bytes(
        folder.file(1), 0, _core.file_header_pack(2, NODE, OWNER, 1, folder.salts[1], 1)
    ),
    "of another node": lambda folder: harm_bytes(
        folder.file(1), 0, _core.file_header_pack(FILE_STORE, NODE + 1, OWNER, 1, folder.salts[1], 1)
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_file_that_is_not_what_its_name_says_is_set_aside(folder: Folder, harm: str) -> None:
    three(folder)
    folder.mark(3, [0, 1, 2])
    HARMS[harm](folder)
    content = folder.file(1).read_bytes()
    started = folder.start()
    assert not started.report.clean
    assert started.served == WITHOUT_1
    assert (folder.path / "quarantine" / "1.rdq").read_bytes() == content
    assert (folder.path / "quarantine" / "1.rdq.lst").exists()
    assert "1.rdq" not in folder.names()
    assert started.report.lost == started.core.lost == 10
    (line,) = folder.lines()
    assert (line.file, line.end, line.messages, line.moved) == ("1.rdq", len(content), 10, "1.rdq")
    assert started.passed.count("start_quarantined") == 1
    again = folder.start()
    assert (again.state, again.report.damaged) == (started.state, [])
    # The same once more: nothing in the quarantine is overwritten.
    folder.put(1, [(M, 50)])
    HARMS[harm](folder)
    folder.start()
    assert {path.name for path in (folder.path / "quarantine").glob("*.rdq*")} >= {"1.rdq", "1.rdq.1"}


def test_swapped_files(folder: Folder) -> None:
    three(folder)
    folder.file(0).rename(folder.path / "x")
    folder.file(1).rename(folder.file(0))
    (folder.path / "x").rename(folder.file(1))
    started = folder.start()
    assert started.served == set(range(20, 30))
    assert {line.file for line in folder.lines()} == {"0.rdq", "1.rdq"}


def test_missing_files_are_named(folder: Folder) -> None:
    three(folder)
    folder.file(1).unlink()
    started = folder.start()
    assert started.served == WITHOUT_1
    assert started.report.damaged == [f"{folder.file(1)} is missing; it held up to 10 messages"]
    assert "1.lst" not in folder.names()
    assert [(line.file, line.messages) for line in folder.lines()] == [("1.rdq", 10)]
    folder.mark(4, [0, 2])
    folder.file(2).unlink()
    list_path(folder.path, 2).unlink()
    started = folder.start()
    assert started.report.damaged == [f"{folder.file(2)} is missing"]
    assert not started.report.clean


@pytest.mark.parametrize("listed", [True, False])
def test_truncated_file(folder: Folder, listed: bool) -> None:
    three(folder, listed)
    _file, offset, _n = folder.places[message_id(16)]
    os.truncate(folder.file(1), offset + 20)
    started = folder.start()
    assert started.served == {n for n in ALL if not 16 <= n < 20}
    assert "1.rdq has damaged bytes" in started.report.damaged[0]
    if listed:
        assert started.report.lost == 4  # exact
        assert folder.lines()[0].messages == 4
    assert folder.start().served == started.served


def test_dropped_page_and_hole(folder: Folder) -> None:
    three(folder, listed=False)
    _file, offset, _n = folder.places[message_id(13)]
    page = offset // 4096 * 4096
    harm_bytes(folder.file(1), page, bytes(4096))
    started = folder.start()
    lost = {n for n in range(30) if (at := folder.places[message_id(n)])[0] == 1 and at[1] // 4096 * 4096 == page}
    assert started.served | {4, 14} == (set(range(30)) - lost) | {4, 14}
    assert str(page) in started.report.damaged[0]


def test_newer_format_touches_nothing(folder: Folder) -> None:
    three(folder)
    folder.mark(3, [0, 1, 2])
    (folder.path / "9.rdq.new").write_bytes(b"half")
    folder.file(0).write_bytes(b"foreign" + bytes(9000))
    page = bytearray(folder.file(2).read_bytes()[:FILE_HEADER_BYTES])
    FILE_HEADER.pack_into(page, "version", 2)
    page[4092:] = _core.crc32c(page[:4092]).to_bytes(4, "big")
    harm_bytes(folder.file(2), 0, page)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(FormatVersionError):
        folder.start()
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


def test_files_of_another_node_are_not_set_aside(tmp_path: Path) -> None:
    other = Folder(tmp_path)
    three(other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("support.store_folder.NODE", NODE + 1)
        before = other.names()
        with pytest.raises(StoreError, match="belong to another data directory"):
            other.start()
    assert other.names() == before


def test_leavings_go_and_strangers_stay(folder: Folder) -> None:
    three(folder)
    for name in ("5.rdq.new", "5.lst.new", "index.snapshot", "12.free"):
        (folder.path / name).write_bytes(b"x")
    (folder.path / "notes.txt").write_text("mine")
    started = folder.start()
    assert folder.names() == ["0.lst", "0.rdq", "1.lst", "1.rdq", "12.free", "2.lst", "2.rdq", "notes.txt"]
    assert [path.name for path in started.report.foreign] == ["notes.txt"]
    assert started.report.next_file == 13  # no number is used twice
    assert started.report.damaged == []


def test_a_list_of_a_collection_that_did_not_happen(folder: Folder) -> None:
    three(folder)
    shutil.copy(list_path(folder.path, 2), list_path(folder.path, 3))
    (folder.path / "3.rdq.new").write_bytes(b"output")
    started = folder.start()
    assert (started.served, started.report.damaged) == (ALL, [])
    assert "3.lst" not in folder.names()


def test_unreadable_sector(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    three(folder, listed=False)
    _file, offset, _n = folder.places[message_id(13)]
    page = offset // 4096 * 4096
    bad = os.stat(folder.file(1)).st_ino
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], at: int) -> int:
        end = at + sum(len(buffer) for buffer in buffers)
        if os.fstat(fd).st_ino == bad and at < page + 4096 and end > page:
            raise OSError(5, "bad sector")
        return real(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", preadv)
    started = folder.start()
    lost = {n for n in range(30) if (at := folder.places[message_id(n)])[0] == 1 and at[1] // 4096 * 4096 == page}
    monkeypatch.undo()
    served = {n for n in range(30) if (entry := started.core.entries.get(message_id(n))) is not None and entry[3]}
    assert served == ALL - lost | ({4} if 4 in served else set())
    assert "the disk cannot read them" in started.report.damaged[0]


def test_progress_is_said(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    three(folder)
    monkeypatch.setattr(recovery, "PROGRESS_S", 0.0)
    said = Heard()
    folder.start(said=said)
    assert "2 of 3 files" in said[1]


def test_many_damaged_parts_are_said_in_short(folder: Folder) -> None:
    folder.put(0, [(M, n) for n in range(300)], listed=False)
    folder.put(1, [(M, 300)], listed=False)  # so a hole in the other one is damage, and no torn batch
    for n in range(0, 300, 2):
        harm_bytes(folder.file(0), folder.places[message_id(n)][1] + 60, b"\xff")
    started = folder.start()
    assert started.served == {*range(1, 300, 2), 300}
    assert len(started.report.damaged) == 21
    assert "130 more damaged parts" in started.report.damaged[-1]
    assert len(folder.lines()) == 150


# -- collected files --------------------------------------------------------------------------------------------------


def collected(folder: Folder) -> None:
    """Files 0 and 1 were collected into 5, the sources are still there."""
    three(folder)
    folder.put(5, [*[(M, n) for n in range(20) if n != 4], (A, 5), (R, 14)][:20], positions=(0, 1))


def test_collected_file_wins(folder: Folder) -> None:
    collected(folder)
    started = folder.start()
    assert folder.names() == ["2.lst", "2.rdq", "5.lst", "5.rdq"]
    assert started.served == ALL
    assert list(started.core.files) == [5, 2]
    assert started.core.files[5][1:] == (0, 1)
    assert started.passed.count("start_superseded") == 2
    assert started.report.next_file == 6
    assert started.report.damaged == []


def test_damaged_collected_file_loses_against_its_sources(folder: Folder) -> None:
    collected(folder)
    harm_bytes(folder.file(5), FILE_HEADER_BYTES + 70, b"\xff\xff")
    started = folder.start()
    assert started.served == ALL
    assert list(started.core.files) == [0, 1, 2]
    assert (folder.path / "quarantine" / "5.rdq").exists()
    assert "5.lst" not in folder.names()


def test_damaged_collected_file_without_all_sources_is_served(folder: Folder) -> None:
    collected(folder)
    harm_bytes(folder.file(5), FILE_HEADER_BYTES + 70, b"\xff\xff")
    folder.file(1).unlink()
    list_path(folder.path, 1).unlink()
    started = folder.start()
    assert list(started.core.files) == [5, 2]
    assert started.served == ALL - {0}
    assert (folder.path / "quarantine" / "0.rdq").exists()  # it may hold what is damaged
    assert started.report.damaged


def test_the_tail_of_a_collected_file_is_no_torn_tail(folder: Folder) -> None:
    folder.put(2, [(M, n) for n in range(20, 25)], last=False)
    folder.put(5, [(M, n) for n in range(10)], positions=(0, 1), listed=False)
    harm_bytes(folder.file(5), folder.places[message_id(9)][1] + 60, b"\xff" * 9000)
    started = folder.start()
    assert started.served == {*range(9), *range(20, 25)}
    assert started.report.torn_bytes == 0
    assert "5.rdq has damaged bytes" in started.report.damaged[0]


# -- kills ------------------------------------------------------------------------------------------------------------


def everything(folder: Folder) -> None:
    """A folder on which a start does all that it can do."""
    folder.put(0, [(M, n) for n in range(10)])
    folder.put(1, [(A, 5), (R, 4), *[(M, n) for n in range(10, 20)]])
    folder.put(5, [*[(M, n) for n in range(20) if n != 4], (A, 5)], positions=(0, 1))
    folder.put(6, [(M, n) for n in range(40, 45)])
    folder.put(7, [(R, 5), (R, 14), *[(M, n) for n in range(20, 30)]], listed=False)
    folder.put(8, [(M, 31), (M, 32)], last=False, listed=False)
    folder.file(6).write_bytes(b"foreign" * 3000)
    harm_bytes(folder.file(7), folder.places[message_id(22)][1] + 60, b"\xff")
    harm_bytes(folder.file(8), folder.places[message_id(32)][1] + 60, b"\xff" * 5000)
    (folder.path / "3.rdq.new").write_bytes(b"half")
    folder.mark(9, [0, 1])


def test_every_kill_leads_to_the_same_state(tmp_path: Path) -> None:
    first = Folder(tmp_path / "first")
    first.path.mkdir()
    everything(first)
    image = tmp_path / "image"
    shutil.copytree(first.path, image)
    want = first.start()
    points = list(dict.fromkeys(want.passed))
    assert set(points) == {
        "start_mark_gone", "start_superseded", "start_half", "start_torn", "start_quarantined", "start_applied",
    }  # fmt: skip
    for number, point in enumerate([*points, "all"]):
        killed = Folder(tmp_path / f"killed{number}", dict(first.places), dict(first.salts))
        shutil.copytree(image, killed.path)
        for each in points if point == "all" else [point] * 2:
            try:
                killed.start(each)
            except Killed:
                continue
        started = killed.start()
        assert started.state == want.state
        assert started.served == want.served
        assert {line.key for line in killed.lines()} == {line.key for line in first.lines()}
        assert {path.name for path in (killed.path / "quarantine").iterdir()} == {
            path.name for path in (first.path / "quarantine").iterdir()
        }


# -- any damage -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_damage_costs_no_more_than_it_hit(choices: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path))
        three(folder, listed=choices.draw(st.booleans()))
        if choices.draw(st.booleans()):
            folder.mark(3, [0, 1, 2])
        hit: list[tuple[str, int, int]] = []
        names = folder.names()
        folder.put(3, [(M, 300)])  # behind them, so a hole in the others is damage, and no torn batch
        for _ in range(choices.draw(st.integers(1, 4))):
            target = choices.draw(st.sampled_from(names))
            size = (folder.path / target).stat().st_size
            at = choices.draw(st.integers(0, min(size, 5 * 4096) - 1))
            data = choices.draw(st.binary(min_size=1, max_size=80)) * choices.draw(st.sampled_from([1, 1, 60]))
            data = data[: size - at]
            harm_bytes(folder.path / target, at, data)
            hit.append((target, at, at + len(data)))
        started = folder.start()
        served = started.served  # it checks each body
        first_pages = {name for name, start, _end in hit if start < FILE_HEADER_BYTES and name.endswith(".rdq")}
        for n in ALL:
            number, offset, _ = folder.places[message_id(n)]
            name = f"{number}.rdq"
            total = 57 + len(body(n))
            touched = any(at == name and start < offset + total and end > offset for at, start, end in hit)
            second = n == 5 and any(at == "1.rdq" for at, _start, _end in hit)  # its second reference
            if not touched and name not in first_pages and not second:
                assert n in served, (n, hit)
        assert folder.start().served >= served - {4, 14}
