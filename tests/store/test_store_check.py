"""Goal: `warren check` names every damage of a store's folder and changes nothing; a repair makes the folder whole
again without losing a good message, wherever it is killed.

Method: folders made by hand (support/store_folder.py) with every kind of damage; the folder's bytes before and after a
check; a second check and a start after a repair; the folder as it is at each rename, link and unlink of a repair.
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
from warren.engine.kernel import quarantine, segment
from warren.engine.kernel.formats import FILE_HEADER_BYTES, FILE_STORE, KIND_MESSAGE
from warren.engine.store import file_lists, scanning
from warren.engine.store.check import Found, StoreCheck
from warren.engine.store.folder import Spares, list_path, recycle

from support.store_folder import ALL, NODE, OWNER, SIZE, WITHOUT_1, Folder, body, harm_bytes, message_id, three


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "store"
    path.mkdir()
    made = Folder(path)
    three(made)
    made.mark(3, [0, 1, 2])
    return made


def check(folder: Folder, running: bool = False) -> StoreCheck:
    made = StoreCheck(folder.path, NODE, OWNER, running)
    made.examine()
    return made


def content(folder: Folder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def problems(found: list[Found]) -> dict[str, str]:
    return {item.path.name: item.problem for item in found if item.problem}


def repaired(folder: Folder) -> StoreCheck:
    made = StoreCheck(folder.path, NODE, OWNER, False)
    found = made.repair()
    assert problems(found) == {}
    again = check(folder)
    assert problems(again.found) == {}
    assert [item.note for item in again.found if item.note and item.kind != "foreign"] == []
    return made


def test_a_good_folder(folder: Folder) -> None:
    before = content(folder)
    for running in (False, True):
        found = check(folder, running).found
        assert problems(found) == {}
        assert [(item.path.name, item.records) for item in found] == [("0.rdq", 10), ("1.rdq", 12), ("2.rdq", 12)]
        assert not any(item.note for item in found)
    made = StoreCheck(folder.path, NODE, OWNER, False)
    made.repair()
    assert made.actions == []
    assert content(folder) == before


def test_a_torn_tail_before_a_prepared_spare_is_no_problem(tmp_path: Path) -> None:
    torn = Folder(tmp_path)
    torn.put(0, [(KIND_MESSAGE, 0), (KIND_MESSAGE, 1)], last=False, listed=False)
    torn.put(1, [], last=False, listed=False, behind=99)  # nothing of its own, but records of what it was
    end = len(torn.file(0).read_bytes().rstrip(b"\0"))
    harm_bytes(torn.file(0), end + -end % 4096, b"torn" * 50)
    found = check(torn, False).found
    assert problems(found) == {}
    assert any("torn tail" in item.note for item in found if item.path == torn.file(0))


@pytest.mark.parametrize("listed", [True, False])
def test_a_flipped_bit_is_named_and_repaired(folder: Folder, listed: bool) -> None:
    if not listed:
        for number in (0, 1, 2):
            list_path(folder.path, number).unlink()
        (folder.path / "clean").unlink()
    _file, offset, _n = folder.places[message_id(12)]
    harm_bytes(folder.file(1), offset + 60, b"\xff")
    before = content(folder)
    for running in (False, True):
        found = check(folder, running).found
        (part,) = next(item.damage for item in found if item.path == folder.file(1))
        assert (part.start, part.end, part.reason) == (offset, offset + 57 + len(body(12)), "crc")
        assert (part.messages, part.ids) == ((1, [message_id(12).hex()]) if listed else (None, []))
        assert list(problems(found)) == ["1.rdq"]
    assert content(folder) == before
    made = repaired(folder)
    assert any("good messages" in action for action in made.actions)
    assert folder.names() == sorted(
        ["0.lst", "0.rdq", "2.lst", "2.rdq", "3.lst", "3.rdq", "quarantine", *(["clean"] if listed else [])]
    )
    assert (folder.path / "quarantine" / "1.rdq").read_bytes() == before[str(folder.file(1))]
    (line,) = folder.lines()
    assert (line.file, line.start, line.messages, line.moved) == ("1.rdq", offset, 1 if listed else None, "1.rdq")
    started = folder.start()
    assert started.served == ALL - {12}
    assert started.report.damaged == []
    assert started.report.clean == listed
    assert list(started.core.files) == [0, 3, 2]  # at the old position


HARMS: dict[str, tuple[Callable[[Folder], object], set[int]]] = {
    "foreign": (lambda folder: folder.file(1).write_bytes(b"foreign" * 9999), WITHOUT_1),
    "empty": (lambda folder: folder.file(1).write_bytes(b""), WITHOUT_1),
    "first page": (lambda folder: harm_bytes(folder.file(1), 0, bytes(4096)), WITHOUT_1),
    "copy": (lambda folder: shutil.copy(folder.file(2), folder.file(1)), WITHOUT_1),
    "missing": (lambda folder: folder.file(1).unlink(), WITHOUT_1),
    "missing with its list": (
        lambda folder: (folder.file(1).unlink(), list_path(folder.path, 1).unlink()),
        WITHOUT_1,
    ),
    "header bit": (lambda folder: harm_bytes(folder.file(1), 24, b"\x80"), ALL),
    "list": (lambda folder: harm_bytes(list_path(folder.path, 1), 140, b"\xaa"), ALL),
    "renamed": (lambda folder: folder.file(1).rename(folder.file(9)), ALL),
    "cut off": (lambda folder: os.truncate(folder.file(1), folder.places[message_id(17)][1] + 5), ALL - {17, 18, 19}),
    "garbage": (
        lambda folder: harm_bytes(folder.file(1), folder.places[message_id(17)][1], b"\xaa" * 9000),
        ALL - {17, 18, 19},
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_every_damage_is_named_and_repaired(folder: Folder, harm: str) -> None:
    do, want = HARMS[harm]
    do(folder)
    before = content(folder)
    found = check(folder).found
    assert problems(found), "nothing was found"
    assert set(problems(found)) <= {"1.rdq", "9.rdq"}
    assert content(folder) == before
    made = repaired(folder)
    assert made.actions
    started = folder.start()
    assert started.served == want
    assert started.report.damaged == []
    if harm not in ("header bit", "list", "renamed"):
        assert "1.rdq" in {line.file for line in folder.lines()}
    kept = {path.read_bytes() for path in (folder.path / "quarantine").glob("*.rdq*")}
    if harm in ("foreign", "empty", "first page", "copy", "cut off", "garbage"):
        assert before[str(folder.file(1))] in kept  # nothing is thrown away


def test_swapped_files_are_put_back(folder: Folder) -> None:
    folder.file(0).rename(folder.path / "x")
    folder.file(1).rename(folder.file(0))
    (folder.path / "x").rename(folder.file(1))
    assert set(problems(check(folder).found)) == {"0.rdq", "1.rdq"}
    repaired(folder)
    started = folder.start()
    assert started.served == ALL
    assert started.report.clean


def test_missing_lists_are_made(folder: Folder) -> None:
    for number in (0, 2):
        list_path(folder.path, number).unlink()
    notes = {item.path.name: item.note for item in check(folder).found if item.note}
    assert set(notes) == {"0.rdq", "2.rdq"}
    assert "no list" in notes["0.rdq"]
    repaired(folder)
    assert folder.start().report.clean


def test_a_list_that_does_not_name_all(folder: Folder) -> None:
    header = segment.read_header(folder.file(1), kind=FILE_STORE, node_id=NODE, owner=OWNER, file=1)
    found, _reason = _core.scan_list(1, header.salt, folder.file(1).read_bytes()[:5000])
    file_lists.write_list(folder.path, NODE, OWNER, found)
    notes = [item.note for item in check(folder).found if item.note]
    assert "does not name all" in notes[0]
    repaired(folder)
    assert folder.start().served == ALL


def test_torn_tail_is_no_damage(folder: Folder) -> None:
    (folder.path / "clean").unlink()
    list_path(folder.path, 2).unlink()
    last = folder.places[message_id(29)][1]
    harm_bytes(folder.file(2), last + 30, bytes(9000))
    found = check(folder).found
    assert problems(found) == {}
    assert "torn tail" in next(item.note for item in found if item.path == folder.file(2))
    assert not any(item.note for item in check(folder, running=True).found)
    repaired(folder)
    assert folder.start().served == ALL - {29}


@pytest.mark.parametrize("content", [b"", bytes(SIZE), bytes(100)], ids=["empty", "zeros", "short"])
def test_a_file_that_never_had_its_header_is_a_note_and_goes(folder: Folder, content: bytes) -> None:
    (folder.path / "clean").unlink()
    folder.file(3).write_bytes(content)
    for running in (False, True):
        found = check(folder, running).found
        assert problems(found) == {}
        assert "never used" in next(item.note for item in found if item.path == folder.file(3))
    list_path(folder.path, 0).unlink()  # something to repair
    made = repaired(folder)
    assert any("3.rdq" in action for action in made.actions)
    assert not folder.file(3).exists()
    folder.file(3).write_bytes(content)
    started = folder.start()
    assert (started.served, started.report.damaged, started.report.next_file) == (ALL, [], 4)
    assert not folder.file(3).exists()
    assert not (folder.path / "quarantine").exists()


@pytest.mark.parametrize("evidence", ["list", "mark", "later file", "bytes"])
def test_a_file_that_was_used_is_missed_though_nothing_is_in_it(folder: Folder, evidence: str) -> None:
    gone = 1 if evidence == "later file" else 2
    if evidence != "mark":
        (folder.path / "clean").unlink()
    if evidence != "list":
        list_path(folder.path, gone).unlink()
    folder.file(gone).write_bytes(bytes(SIZE) + b"x" if evidence == "bytes" else b"")
    assert list(problems(check(folder).found)) == [f"{gone}.rdq"]
    started = folder.start()
    assert any(f"{gone}.rdq" in line for line in started.report.damaged)
    assert (folder.path / "quarantine" / f"{gone}.rdq").exists()


def test_strangers_and_leavings_are_notes(folder: Folder) -> None:
    (folder.path / "notes.txt").write_text("mine")
    (folder.path / "8.rdq.new").write_bytes(b"half")
    (folder.path / "7.free").write_bytes(b"x")
    found = check(folder).found
    assert problems(found) == {}
    assert {item.path.name for item in found if item.note} == {"notes.txt", "8.rdq.new"}


def test_beside_a_running_node(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is written while it is read, and one that becomes a spare, are no damage."""
    (folder.path / "clean").unlink()
    list_path(folder.path, 2).unlink()
    whole = folder.file(2).read_bytes()
    real = scanning.read_file
    reads: list[Path] = []

    def read_file(path: Path, buffer: memoryview) -> tuple[int, list[tuple[int, int]]]:
        reads.append(path)
        if path == folder.file(2):  # half of it is written, and the end of the next commit
            harm_bytes(path, FILE_HEADER_BYTES + 4096, bytes(4096) if reads.count(path) < 3 else whole[8192:12288])
        if path == folder.file(0) and reads.count(path) == 1:
            result = real(path, buffer)
            buffer[4200:4300] = bytes(100)  # what was read of it was overwritten meanwhile
            list_path(folder.path, 0).unlink()
            assert recycle(path, SIZE, Spares(folder.path), 4)
            return result
        return real(path, buffer)

    monkeypatch.setattr(scanning, "read_file", read_file)
    made = check(folder, running=True)
    assert problems(made.found) == {}
    assert [item.path.name for item in made.found] == ["1.rdq", "2.rdq"]


def test_a_repair_that_is_killed_loses_nothing(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder as it is before each call that changes names: a start from there, and a repair and a start."""
    for number, victim in ((0, 3), (1, 12)):
        harm_bytes(folder.file(number), folder.places[message_id(victim)][1] + 60, b"\xff")
    shutil.copy(folder.file(2), folder.file(9))
    images: list[Path] = []

    def watch(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: object, **kwargs: object) -> object:
            images.append(tmp_path / f"image{len(images)}")
            shutil.copytree(folder.path, images[-1])
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for name in ("rename", "link", "unlink"):
        watch(os, name)
    for name in ("rename", "unlink"):
        watch(Path, name)
    repaired(folder)
    monkeypatch.undo()
    assert len(images) > 10
    for image in images:
        for first in ("start", "repair"):
            copy = Folder(tmp_path / "copy", folder.places, folder.salts)
            shutil.copytree(image, copy.path)
            if first == "repair":
                repaired(copy)
            assert copy.start().served == ALL - {3, 12}
            shutil.rmtree(copy.path)


@pytest.mark.parametrize("harmed", [[1, 2], [2], [1]])
@pytest.mark.parametrize("damage", ["first page", "removed"])
def test_a_hole_before_files_that_cannot_be_read_is_no_torn_tail(
    tmp_path: Path, harmed: list[int], damage: str
) -> None:
    """What comes behind the hole was confirmed: the files that would say so were begun later."""
    folder = Folder(tmp_path)
    three(folder)
    harm_bytes(folder.path / "0.rdq", 4096, b"\0" * 8)
    for number in harmed:
        path = folder.path / f"{number}.rdq"
        if damage == "removed":
            path.unlink()
        else:
            harm_bytes(path, 0, b"\0")
    repaired(folder)
    served = folder.start().served
    assert served >= {1, 2, 3, 6, 7, 8, 9}
    assert folder.start().served == served


def test_a_hole_in_a_file_with_a_list_is_no_torn_batch(tmp_path: Path) -> None:
    """A list is written when what it names is synced; what lies behind the hole is served, after a repair, too."""
    folder = Folder(tmp_path)
    three(folder, listed=True)
    harm_bytes(folder.path / "2.rdq", 4298, b"\0")
    repaired(folder)
    assert folder.start().served >= ALL - {4, 5, 14, 20}  # as in any_damage; and the one that was hit


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_damage_is_repaired(choices: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path))
        three(folder, listed=choices.draw(st.booleans()))
        if choices.draw(st.booleans()):
            folder.mark(3, [0, 1, 2])
        names = [name for name in folder.names() if name != "clean"]
        for _ in range(choices.draw(st.integers(1, 3))):
            target = folder.path / choices.draw(st.sampled_from(names))
            size = min(target.stat().st_size, 5 * 4096)
            at = choices.draw(st.integers(0, size - 1))
            harm_bytes(target, at, choices.draw(st.binary(min_size=1, max_size=80))[: size - at])
        copy = Folder(Path(path) / "copy", folder.places, folder.salts)
        shutil.copytree(folder.path, copy.path, ignore=shutil.ignore_patterns("copy"))
        served = copy.start().served
        shutil.rmtree(copy.path)
        repaired(folder)
        assert folder.start().served >= served - {4, 14, 5}


def test_the_report_survives_torn_lines_and_does_not_repeat(tmp_path: Path) -> None:
    entry = quarantine.Entry("1.rdq", 5, 9, "crc", 1, 4)
    assert quarantine.note(tmp_path, entry)
    assert not quarantine.note(tmp_path, quarantine.Entry("1.rdq", 5, 9, "crc", 1, 4))
    report = tmp_path / "quarantine" / "report.jsonl"
    report.write_bytes(report.read_bytes() + b'{"file": "torn')
    assert quarantine.note(tmp_path, quarantine.Entry("2.rdq", 0, 1, "foreign"))
    assert [(line.file, line.messages) for line in quarantine.entries(tmp_path)] == [("1.rdq", 1), ("2.rdq", None)]
    assert quarantine.entries(tmp_path)[0].time > 0


def test_nothing_in_the_quarantine_is_overwritten(folder: Folder) -> None:
    for n in range(3):
        folder.file(50).write_bytes(b"%d" % n)
        assert quarantine.move(folder.path, folder.file(50), "foreign") is not None
    assert {path.read_bytes() for path in (folder.path / "quarantine").glob("50.rdq*")} == {b"0", b"1", b"2"}
