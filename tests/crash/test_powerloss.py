"""Goal: a power failure at any point loses nothing that was confirmed; and the campaign that says so can see a loss.

Method: short seeded histories of a real node, recorded and crashed (warren.tools.crash.powerloss). Then faults are
planted in such a recording: syncs that did nothing, names whose directory was never synced, confirms that came too
early, a truth that says otherwise; each must be found. The model of the disk is tested with records made by hand.
"""

import dataclasses
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from warren.tools.crash import powerloss
from warren.tools.crash.afterwards import Checker, Truth, fates
from warren.tools.crash.disk import SECTOR, Disk, State, put_down
from warren.tools.crash.recording import NEVER, Record, Recorder, RecordingError, parse

from support.long import rounds
from support.seeds import new_seed

ROOT = "/root"
STATES = rounds(120)


@dataclasses.dataclass
class Recorded:
    """A history of a node."""

    records: list[Record]
    root: str
    folder: Path

    def wrong(self, records: list[Record], states: int = STATES) -> list[str]:
        """What a campaign finds in crash states of these records."""
        truth, checker = Truth(records), Checker(self.folder)
        try:
            return powerloss.named_early(records, self.root) + [
                text
                for _number, point, state in powerloss.states_of(records, self.root, states, "test")
                for text in checker.check(state, truth, point)
            ]
        finally:
            checker.close()


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    seed = new_seed()
    with powerloss.scratch("warren-powerloss-test-") as folder:
        records, root = powerloss.record_history(Recorder(folder), folder, seed, 150)
        yield Recorded(records, root, folder)


@pytest.mark.crash
def test_nothing_confirmed_is_lost(recorded: Recorded) -> None:
    kinds = {record.kind for record in recorded.records}
    assert {"write", "sync", "create", "rename", "note", "space", "mkdir"} <= kinds
    assert sum(record.kind == "sync" and record.result == 0 for record in recorded.records) > 50
    assert recorded.wrong(recorded.records) == []


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("fault", ["data syncs", "directory syncs", "early confirms"])
def test_planted_faults_are_found(recorded: Recorded, fault: str) -> None:
    """The same record, with something in it that the node did not do right."""
    planted = []
    for record in recorded.records:
        if record.kind == "sync" and bool(record.path) == (fault == "directory syncs") and fault != "early confirms":
            record = dataclasses.replace(record, result=-1)
        planted.append(record)
    if fault == "early confirms":
        for at, record in enumerate(planted):
            what = msgspec.msgpack.decode(record.data) if record.kind == "note" else [""]
            if what[0] in ("w", "p"):  # confirmed before anything was done
                token = msgspec.msgpack.encode(("c", what[1]))
                last = next((n for n in range(at, len(planted)) if planted[n].data == token), None)
                if last is not None:
                    planted[at + 1 : last + 1] = [planted[last], *planted[at + 1 : last]]
    wrong = recorded.wrong(planted)
    assert any("and should have" in text or "is gone" in text for text in wrong), wrong[:5]


@pytest.mark.crash
def test_what_is_there_is_looked_at(recorded: Recorded) -> None:
    """A truth that knows less, or something else, than the disk has: false and doubled messages are found."""
    truth = Truth(recorded.records)
    checker = Checker(recorded.folder)

    def held_at(point: int) -> Iterator[tuple[bytes, Any]]:
        """Messages that must be there, and what was done to them last."""
        truth.fates_at = -1
        for id, acts in truth.acts.items():
            known = [act for act in acts if act.submitted < point]
            there = fates(acts, truth, point, truth.barrier(point))[0] == {1}
            if there and known[-1].write and known[-1].size:
                yield id, known[-1]

    points = [(point, state) for _, point, state in powerloss.states_of(recorded.records, recorded.root, 40, "last")]
    point, state = [(point, state) for point, state in points if any(held_at(point))][-1]
    try:
        held, act = next(held_at(point))
        assert checker.check(state, truth, point) == []
        truth.fates_at = -1
        truth.acts[held].append(dataclasses.replace(act))
        wrong = checker.check(state, truth, point)
        assert any(f"{held.hex()} has 1 references, and should have [2]" in text for text in wrong)
        truth.acts[held] = [dataclasses.replace(act, version=act.version + 1)]
        truth.fates_at = -1
        assert any(f"{held.hex()} reads other bytes" in text for text in checker.check(state, truth, point))
        del truth.acts[held]
        truth.fates_at = -1
        assert any(f"{held.hex()} was never written" in text for text in checker.check(state, truth, point))
        files = [path for path, content in state.items() if path.endswith(".rdq") and content]
        damaged = state | {path: b"\xff" * len(state[path] or b"") for path in files[:1]}
        assert any("damage" in text or "should have" in text for text in checker.check(damaged, truth, point))
    finally:
        checker.close()


def test_a_history_is_refused_when_something_in_it_has_no_model() -> None:
    with pytest.raises(RecordingError, match="never made"):
        Disk([_record("write", inode=5, data=b"x")], ROOT).advance(1)
    with pytest.raises(RecordingError, match="no file of records"):
        parse(bytes(4096))


# -- the model of the disk --------------------------------------------------------------------------------------------


def _record(kind: str, **more: object) -> Record:
    base = Record(kind, 1, 0, 0, 0, "", "", b"")
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def _sync(records: list[Record], **more: object) -> None:
    records.append(_record("sync", over=len(records) + 1, result=0, **more))


def _write(records: list[Record], inode: int, at: int, data: bytes, over: int | None = None) -> None:
    end = len(records) + 1 if over is None else over
    records.append(_record("write", inode=inode, at=at, length=len(data), data=data, over=end, result=len(data)))


def _made(name: str = "a", inode: int = 1) -> list[Record]:
    """A file whose name is certain."""
    records = [_record("create", path=f"{ROOT}/{name}", inode=inode)]
    _sync(records, path=ROOT)
    return records


def _states(records: list[Record], tries: int = 400) -> list[State]:
    disk = Disk(records, ROOT)
    disk.advance(len(records))
    return [disk.crash(random.Random(n)) for n in range(tries)]


def test_synced_bytes_are_always_there_and_others_in_any_part() -> None:
    records = _made()
    _write(records, 1, 0, b"s" * 4 * SECTOR)
    _sync(records, inode=1)
    _write(records, 1, SECTOR, b"n" * 2 * SECTOR)
    found = {state["a"] for state in _states(records)}
    expected = {
        b"".join(byte * SECTOR for byte in (b"s", first, second, b"s"))
        for first, second in itertools.product((b"s", b"n"), repeat=2)
    }
    assert found == expected


def test_a_sync_covers_only_calls_that_had_returned_before_it_began() -> None:
    for over, certain in ((3, True), (4, False), (NEVER, False)):
        records = _made()
        _write(records, 1, 0, b"x" * 100, over)
        _sync(records, inode=1)
        found = {state["a"] for state in _states(records)}
        assert (found == {b"x" * 100}) == certain
        assert b"x" * 100 in found
    failed = [*records[:-1], _record("sync", inode=1, over=len(records), result=-1)]
    assert len({state["a"] for state in _states(failed)}) > 1


def test_what_a_failed_sync_dropped_no_later_sync_brings_back() -> None:
    """It is read, and it may be there or not, until it is written again: then its sectors are, as they are read."""
    records = _made()
    _write(records, 1, 0, b"s" * 4 * SECTOR)
    _sync(records, inode=1)
    _write(records, 1, 0, b"d" * 3 * SECTOR)
    records.append(_record("sync", inode=1, over=len(records) + 1, result=-1))
    parts = {b"".join(byte * SECTOR for byte in (*three, b"s")) for three in itertools.product((b"s", b"d"), repeat=3)}
    assert {state["a"] for state in _states(records, 3000)} == parts
    _sync(records, inode=1)
    assert {state["a"] for state in _states(records, 3000)} == parts, "a sync alone does nothing"
    _write(records, 1, SECTOR + 10, b"w")
    _sync(records, inode=1)
    found = {state["a"] for state in _states(records)}
    sector = b"d" * 10 + b"w" + b"d" * (SECTOR - 11)
    assert found == {
        first * SECTOR + sector + third * SECTOR + b"s" * SECTOR
        for first, third in itertools.product((b"s", b"d"), repeat=2)
    }
    disk = Disk(records, ROOT)
    disk.advance(len(records))
    assert disk.now() == {"a": b"d" * SECTOR + sector + b"d" * SECTOR + b"s" * SECTOR}
    _write(records, 1, 0, b"d" * 3 * SECTOR)
    _sync(records, inode=1)
    assert {state["a"] for state in _states(records)} == {b"d" * 3 * SECTOR + b"s" * SECTOR}
    _write(records, 1, 0, b"n" * SECTOR)
    assert {(state["a"] or b"")[:SECTOR] for state in _states(records)} == {b"d" * SECTOR, b"n" * SECTOR}
    disk.advance(len(records))


def test_a_failed_sync_drops_only_what_it_covered() -> None:
    records = _made()
    _write(records, 1, 0, b"s" * SECTOR)
    _sync(records, inode=1)
    _write(records, 1, 0, b"n" * SECTOR, over=len(records) + 2)  # still under way when the sync begins
    records.append(_record("sync", inode=1, over=len(records) + 1, result=-1))
    _sync(records, inode=1)
    assert {state["a"] for state in _states(records)} == {b"n" * SECTOR}


def test_stores_into_a_mapped_file_are_writes_by_sectors_that_a_sync_of_their_range_covers() -> None:
    records = _made()
    records += [_record("size", inode=1, at=3 * 4096)]
    _sync(records, inode=1)
    for page in range(3):
        data = bytes([65 + page]) * SECTOR + bytes(3) + b"!" * (SECTOR - 3)
        records.append(_record("seen", inode=1, at=page * 4096, length=len(data), data=data))
    assert {(state["a"] or b"")[::4096] for state in _states(records)} == {
        bytes(page) for page in itertools.product((0, 65), (0, 66), (0, 67))
    }
    _sync(records, inode=1, at=4096, length=4096)
    assert {(state["a"] or b"")[::4096] for state in _states(records)} == {
        bytes((first, 66, third)) for first, third in itertools.product((0, 65), (0, 67))
    }
    assert all(len(state["a"] or b"") == 3 * 4096 for state in _states(records))
    records.append(_record("syncfs", over=len(records) + 1, result=0))
    assert {(state["a"] or b"")[::4096] for state in _states(records)} == {b"ABC"}
    records.append(_record("hole", inode=1, at=0, length=SECTOR))
    assert {(state["a"] or b"")[0] for state in _states(records)} == {0, 65}


def test_a_store_makes_no_file_longer() -> None:
    records = [*_made(), _record("size", inode=1, at=100), _record("seen", inode=1, length=100, data=b"x" * 100)]
    assert {state["a"] for state in _states(records)} == {b"", bytes(100), b"x" * 100}


def test_a_sync_of_the_file_system_covers_names() -> None:
    records = [_record("mkdir", path=f"{ROOT}/d"), _record("create", path=f"{ROOT}/d/a", inode=1)]
    records.append(_record("syncfs", over=len(records) + 1, result=0))
    assert {tuple(state) for state in _states(records)} == {("d", "d/a")}


def test_sizes_change_in_order() -> None:
    records = _made()
    records.append(_record("space", inode=1, length=3000))
    _sync(records, inode=1)
    records += [_record("size", inode=1, at=1000), _record("size", inode=1, at=3000)]
    assert {len(state["a"] or b"") for state in _states(records)} == {1000, 3000}
    records = _made()
    _write(records, 1, 0, b"x" * 5 * SECTOR)
    sizes = {len(state["a"] or b"") for state in _states(records)}
    assert {0, 5 * SECTOR} < sizes


def test_names_without_a_sync_may_have_changed_or_not() -> None:
    records = _made("old", 1)
    _write(records, 1, 0, b"1")
    _sync(records, inode=1)
    records += [_record("create", path=f"{ROOT}/new", inode=2), _record("rename", path=f"{ROOT}/new", to=f"{ROOT}/old")]
    found = {(*sorted(state), state.get("old")) for state in _states(records)}
    # neither, the first, both, and the rename alone: it is one change, so `old` is always something
    assert found == {("old", b"1"), ("new", "old", b"1"), ("old", b"")}
    _sync(records, path=ROOT)
    assert {tuple(sorted(state)) for state in _states(records)} == {("old",)}
    records.append(_record("unlink", path=f"{ROOT}/old"))
    assert {tuple(state) for state in _states(records)} == {(), ("old",)}


def test_a_file_that_is_named_before_its_bytes_are_certain_is_found() -> None:
    """Its name may come out alone, and then the file is empty."""
    records = [
        _record("create", path=f"{ROOT}/new", inode=5),
        _record("size", inode=5, at=SECTOR),
        _record("seen", inode=5, data=b"link"),
        _record("rename", path=f"{ROOT}/new", to=f"{ROOT}/file"),
    ]
    assert powerloss.named_early(records, ROOT) == ["new became file before it was synced"]
    records.insert(3, _record("sync", inode=5, over=4, result=0))
    assert powerloss.named_early(records, ROOT) == []


def test_two_names_of_one_file(tmp_path: Path) -> None:
    records = _made("a", 1)
    _write(records, 1, 0, b"one")
    _sync(records, inode=1)
    records.append(_record("link", path=f"{ROOT}/a", to=f"{ROOT}/b"))
    assert {tuple(state) for state in _states(records)} == {("a",), ("a", "b")}
    _sync(records, path=ROOT)
    records.append(_record("unlink", path=f"{ROOT}/a"))
    _write(records, 1, 0, b"two", NEVER)
    states = _states(records)
    assert {tuple(state.items()) for state in states} == {
        (*((("a", content),) if there else ()), ("b", content))
        for content, there in itertools.product((b"one", b"two"), (False, True))
    }
    both = next(state for state in states if len(state) == 2)
    put_down(both, tmp_path)
    assert (tmp_path / "a").samefile(tmp_path / "b")
    disk = Disk(records, ROOT)
    disk.advance(len(records))
    assert disk.now() == {"b": b"two"}


def test_a_directory_takes_with_it_what_lies_in_it() -> None:
    records = [_record("mkdir", path=f"{ROOT}/d"), _record("create", path=f"{ROOT}/d/a", inode=1)]
    _sync(records, path=f"{ROOT}/d")
    assert {tuple(state) for state in _states(records)} == {(), ("d", "d/a")}
    _sync(records, path=ROOT)
    assert {tuple(state) for state in _states(records)} == {("d", "d/a")}


def test_an_inode_that_is_used_again_is_another_file() -> None:
    records = _made("a", 1)
    _write(records, 1, 0, b"old")
    _sync(records, inode=1)
    records.append(_record("unlink", path=f"{ROOT}/a"))
    records.append(_record("create", path=f"{ROOT}/b", inode=1))
    _write(records, 1, 0, b"new")
    _sync(records, inode=1)
    _sync(records, path=ROOT)
    assert all(state == {"b": b"new"} for state in _states(records, 20))


@pytest.mark.parametrize(
    ("acts", "counts", "versions"),
    [
        ("W0", {1}, {0}),
        ("w0", {0, 1}, {0}),
        ("W0 R", {0}, {0}),
        ("W0 r", {0, 1}, {0}),
        ("w0 R", {0}, {0}),
        ("W0 W1", {2}, {0}),
        ("W0 R W1", {1}, {1}),
        ("W0 r w1", {0, 1, 2}, {0, 1}),
        ("R W0", {1}, {0}),
        ("W0 r B", {0}, {0}),
        ("W0 r b", {0, 1}, {0}),
        ("W0 r s", {0}, {0}),
        ("W0 r k B", {0, 1}, {0}),
        ("W0 r k R W0", {1}, {0}),
    ],
)
def test_fates(acts: str, counts: set[int], versions: set[int]) -> None:
    """Writes, removes, barriers, stops and kills of everything; what is in capitals was confirmed."""
    notes: list[tuple[object, ...]] = []
    for token, act in enumerate(acts.split()):
        what = act[0].lower()
        more: dict[str, tuple[object, ...]] = {
            "w": (token, [(b"id", int(act[1:] or 0), 1)]),
            "r": (token, [b"id"]),
            "b": (token,),
            "k": ("all",),
        }
        notes.append((what, *more.get(what, ())))
        if act[0].isupper():
            notes.append(("c", token))
    truth = Truth([_record("note", data=msgspec.msgpack.encode(note)) for note in notes])
    found = fates(truth.acts[b"id"], truth, len(notes), truth.barrier(len(notes)))
    assert found[0] == counts
    assert {version for version, _size in found[1]} == versions


def test_the_library_sees_what_a_process_does(tmp_path: Path) -> None:
    """Every call that the engine uses, made by Python, in the record in its order."""
    recorder, below = Recorder(tmp_path), tmp_path / "below"
    recorder.begin()
    program = """
import os, sys
from warren.tools.crash.recording import note
os.mkdir("below"); os.mkdir("below/log")
open("below/log/x", "w").write("not recorded")
fd = os.open("below/a", os.O_RDWR | os.O_CREAT, 0o600)
os.posix_fallocate(fd, 0, 8192)
os.pwrite(fd, b"one", 100); os.write(fd, b"two"); os.pwritev(fd, [b"th", b"ree"], 8000)
os.ftruncate(fd, 4096)
os.fdatasync(fd); os.fsync(fd); os.close(fd)
note(b"hello")
os.rename("below/a", "below/b"); os.link("below/b", "below/c")
at = os.open("below", os.O_RDONLY | os.O_DIRECTORY); os.fsync(at)
if os.fork() == 0:
    os.unlink("b", dir_fd=at); os._exit(0)
os.wait()
os.write(1, b"elsewhere")
"""
    subprocess.run([sys.executable, "-c", program], env=recorder.environment(below), cwd=tmp_path, check=True)
    records = recorder.read()
    assert [record.kind for record in records] == (
        ["mkdir"] * 2
        + ["create", "space"]
        + ["write"] * 3
        + ["size", "sync", "sync", "note", "rename", "link", "sync", "unlink"]
    )
    assert [(record.at, record.data, record.result) for record in records[4:7]] == [
        (100, b"one", 3), (0, b"two", 3), (8000, b"three", 5)
    ]  # fmt: skip
    assert records[0].path == str(below)
    assert (records[11].path, records[11].to) == (str(below / "a"), str(below / "b"))
    assert (records[14].path, records[14].pid == records[0].pid) == (str(below / "b"), False)
    assert (records[12].path, records[12].to) == (str(below / "b"), str(below / "c"))
    syncs = [(at, record) for at, record in enumerate(records) if record.kind == "sync"]
    assert all(record.result == 0 and record.over == at + 1 for at, record in syncs)
    assert records[10].data == b"hello"


def test_the_library_sees_what_is_stored_into_a_mapped_file(tmp_path: Path) -> None:
    """Before each call of the process, at the end of the mapping, and by whoever maps the file next."""
    recorder, below = Recorder(tmp_path), tmp_path / "below"
    recorder.begin()
    program = """
import ctypes, mmap, os, signal
os.mkdir("below")
fd = os.open("below/a", os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 10000)
there = mmap.mmap(fd, 10000)
there[5000:5003] = b"one"
other = os.open("below/b", os.O_RDWR | os.O_CREAT, 0o600)
os.pwrite(other, b"x", 0)
there[100:103] = b"two"
there.flush(0, 4096)
there[9000:9005] = b"three"
libc = ctypes.CDLL(None)
libc.syncfs(fd)
there[0:4] = b"four"
there.close()
if not os.fork():
    again = mmap.mmap(fd, 10000)
    again[600:604] = b"five"
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
again = mmap.mmap(fd, 10000)
assert libc.fallocate(fd, 3, ctypes.c_long(4096), ctypes.c_long(4096)) == 0
"""
    subprocess.run([sys.executable, "-c", program], env=recorder.environment(below), cwd=tmp_path, check=True)
    records = recorder.read()
    later = [record for record in records[3:] if len(record.data) <= SECTOR or record.kind != "seen"]
    assert [(record.kind, record.at, record.length) for record in later if record.kind != "create"] == [
        ("seen", 4608, SECTOR), ("write", 0, 1), ("seen", 0, SECTOR), ("sync", 0, 4096), ("seen", 8704, SECTOR),
        ("syncfs", 0, 0), ("seen", 0, SECTOR), ("hole", 4096, 4096), ("seen", 4608, SECTOR),
    ]  # fmt: skip
    assert powerloss.differences(records, below) == []
    disk = Disk(records, str(below))
    disk.advance(len(records))
    content = disk.now()["a"]
    assert content is not None
    assert content[600:604] == b"five", "who mapped it next saw what nobody had looked at"
    assert content[5000:5003] == bytes(3)
    assert content[9000:9005] == b"three"


def test_who_is_killed_leaves_nothing_that_the_record_does_not_know(tmp_path: Path) -> None:
    """Processes that are always in some call, killed: names, sizes and bytes are what the record says."""
    recorder, below = Recorder(tmp_path), tmp_path / "below"
    recorder.begin()
    program = """
import itertools, os, random, sys, threading, time
from warren.tools.crash import recording
os.mkdir("below")

def change(name):
    file, moved = f"below/{name}", f"below/{name}-moved"
    steps = [
        lambda: os.pwrite(fd, name.encode() * 3000, 100),
        lambda: os.posix_fallocate(fd, 0, 20000),
        lambda: os.ftruncate(fd, 5000),
        lambda: os.close(fd),
        lambda: os.rename(file, moved),
        lambda: os.unlink(moved),
    ]
    while True:
        fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        for step in steps:
            time.sleep(random.uniform(0, 0.0003))
            step()

for life in itertools.count():
    if life >= 40 and len(os.listdir("below")) > 10:
        break  # enough died in the middle; a busy machine needs more lives for that
    pids = []
    for place in "ab":
        pids.append(os.fork())
        if not pids[-1]:
            for name in "xy":
                threading.Thread(target=change, args=(f"{life}{place}{name}",), daemon=True).start()
            time.sleep(30)
            os._exit(1)
    time.sleep(random.uniform(0.005, 0.02))
    recording.kill(pids)
    for pid in pids:
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == 9
"""
    subprocess.run(
        [sys.executable, "-c", program], env=recorder.environment(below), cwd=tmp_path, check=True, timeout=120
    )
    assert len(list(below.iterdir())) > 10, "nobody was killed in the middle"
    assert powerloss.differences(recorder.read(), below) == []
    (below / "more").touch()
    next(path for path in below.iterdir() if path.stat().st_size).write_bytes(b"other")
    assert len(powerloss.differences(recorder.read(), below)) == 2


def test_one_sync_fails_where_it_should(tmp_path: Path) -> None:
    """Of the files that are meant, in any process, told to who makes it or not; and only once."""
    recorder, below = Recorder(tmp_path), tmp_path / "below"
    recorder.begin()
    program = """
import errno, os
from warren.tools.crash import recording
os.mkdir("below")
one, two = (os.open(f"below/{name}", os.O_RDWR | os.O_CREAT) for name in ("one.x", "two.y"))
folder = os.open("below", os.O_RDONLY | os.O_DIRECTORY)
recording.fail_sync(2, ".y")
for fd in (one, one, two, folder): os.fsync(fd)
assert recording.failed_sync() == 0
child = os.fork()
if not child:
    try: os.fdatasync(two)
    except OSError as error: os._exit(error.errno)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EIO
assert recording.failed_sync() == child
os.fsync(two)
recording.fail_sync(1, hangs=True)
child = os.fork()
if not child: os._exit(os.fsync(one) or 0)
while recording.failed_sync() != child: pass
recording.kill([child])
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9
recording.fail_sync(1)
assert recording.fail_no_sync() == 0
os.fsync(one)
recording.fail_sync(1)
try: os.fsync(one)
except OSError: assert recording.fail_no_sync() == os.getpid()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=recorder.environment(below),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [record.result for record in recorder.read() if record.kind == "sync"]
    assert results == [0, 0, 0, 0, -1, 0, -1, 0, -1]


def test_strange_calls_are_refused(tmp_path: Path) -> None:
    recorder, below = Recorder(tmp_path), tmp_path / "below"
    below.mkdir()
    for program in (
        "os.open('below/b', os.O_RDWR | os.O_CREAT | os.O_SYNC)",
        "os.symlink('x', 'below/c')",
    ):
        recorder.begin()
        command = [sys.executable, "-c", f"import os; {program}"]
        subprocess.run(command, env=recorder.environment(below), cwd=tmp_path, check=True)
        with pytest.raises(RecordingError, match="no model"):
            recorder.read()
