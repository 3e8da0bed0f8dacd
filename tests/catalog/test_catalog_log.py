"""Goal: a catalog in a file and a log is the one that was told, whoever reads it when, whatever fails or dies; damage
is refused with the name of the file.

Method: histories of every kind of change, the same for the same seed; readers that follow at their own pace are
compared with the writer after each step. Every cut and every flipped bit of a log; every call of the writer fails once,
with an error or with the death of the process.
"""

import errno
import os
import random
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.catalog import FILE_NAME, Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.catalog.routing import Router
from warren.engine.errors import CorruptRecord, FormatVersionError, QueueNotFound, StoreError, UsageError
from warren.engine.kernel import atomic_file
from warren.workers.cli.check import verify
from warren.workers.node import absence

from support.catalog_history import LOG_BYTES, alone, changes, states


@pytest.fixture
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_log, "LOG_BYTES_MIN", LOG_BYTES)


def begin(directory: Path) -> catalog_log.Writer:
    Catalog().save(directory)
    return catalog_log.Writer(directory, catalog_log.load(directory))


def filled(directory: Path, queues: int = 4) -> catalog_log.Writer:
    """A writer whose changes are all in the log."""
    writer = begin(directory)
    for number in range(queues):
        writer.change(lambda catalog, n=number: catalog.declare_queue(f"q{n}", workers_n=2))
    return writer


def log_of(directory: Path) -> Path:
    (path,) = directory.glob("catalog.*.log")
    return path


def follow(reader: catalog_log.Reader, catalog: Catalog, router: Router, until: int) -> tuple[Catalog, Router]:
    """What a client does."""
    news = reader.follow(until)
    if news is None:
        catalog = reader.load(until)
        return catalog, Router(catalog)
    if news.state is not None:
        catalog.follow(news.steps, news.state)
        router.follow(news.steps)
    return catalog, router


def unnumbered(catalog: Catalog) -> bytes:
    """What it says, whatever its version: a number may be used up."""
    found = catalog.copy()
    found.version = 0
    return found.encode()


def everything(catalog: Catalog) -> dict[str, Any]:
    """All that is in memory of a catalog, what is looked up by it, too."""
    return {**vars(catalog), "log": 0, "_before": None}


def routes(router: Router) -> list[list[str]]:
    found = []
    for exchange in ("", "x0", "x1", "x2"):
        for key in ("q1", "k.0", "k.1", "k.2"):
            known = exchange in router.catalog.exchanges
            queues, topics = router.route(exchange, key) if known else ((), ())
            names = [*(item.name for item in queues), *(f"topic {item.topic.name}" for item in topics)]
            found.append(names if known else ["no exchange"])
    return found


@pytest.mark.usefixtures("short_logs")
def test_who_follows_has_what_the_writer_has(tmp_path: Path, seed: int) -> None:
    """At any pace, through new logs; catalog, what is looked up by it, and routes, which were asked for before."""
    rng = random.Random(seed)
    writer = begin(tmp_path)
    readers: list[list[Any]] = []
    for _ in range(3):
        reader = catalog_log.Reader(tmp_path)
        catalog = reader.load(writer.catalog.version)
        readers.append([reader, catalog, Router(catalog)])
    loads, begun = 0, set()
    for change in changes(seed, 300):
        try:
            writer.change(change)
        except UsageError:
            continue
        writer.tidy()
        begun |= {path.name for path in tmp_path.glob("catalog.*.log")}
        version = writer.catalog.version
        for pace, state in zip((1.0, 0.3, 0.02), readers, strict=True):
            if rng.random() < pace:
                before = state[1]
                state[1:] = follow(state[0], *state[1:], version)
                loads += state[1] is not before and pace == 1.0
                assert state[1].version == version
                assert alone(state[1]) == alone(writer.catalog)
                assert routes(state[2]) == routes(Router(writer.catalog))
                assert state[2].by_headers == Router(writer.catalog).by_headers
                assert everything(state[1]) == everything(Catalog.decode(alone(writer.catalog), Path()))
    assert len(begun) > 2
    assert loads == 0, "who follows at each version never reads the whole catalog again"
    assert alone(Catalog.load(tmp_path)) == alone(writer.catalog)
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert alone(Catalog.load(tmp_path)) == alone(writer.catalog)


@pytest.mark.parametrize("at_once", [1, catalog_log.PIECE_BYTES], ids=["a line", "many lines"])
@pytest.mark.usefixtures("short_logs")
def test_who_follows_in_pieces_has_what_the_writer_has(
    tmp_path: Path, seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of any length, of small changes and of large ones, through new logs; never more steps than asked for, and
    the version tells when a change is whole."""
    monkeypatch.setattr(catalog_log, "PIECE_BYTES", at_once)
    rng = random.Random(seed)
    writer = begin(tmp_path)
    reader = catalog_log.Reader(tmp_path)
    queues: dict[int, Any] = dict(reader.load(writer.catalog.version).by_id)
    versions = {reader.version: dict(queues)}
    loads = 0
    for number, change in enumerate(changes(seed, 200)):
        try:
            writer.change(change)
        except UsageError:
            continue
        if number % 40 == 5:
            names = [f"many-{number}-{i}" for i in range(100)]
            writer.change(lambda catalog, names=names: [catalog.declare_queue(name, workers_n=2) for name in names])
        writer.tidy()
        version = writer.catalog.version
        versions[version] = dict(writer.catalog.by_id)
        for _ in range(rng.randrange(4)):
            most = rng.randrange(1, 40)
            steps = reader.piece(version, most)
            if steps is None:
                queues = dict(reader.load(version).by_id)
                loads += 1
                continue
            assert len(steps) <= most
            for step in steps:
                if step.queue is not None and step.gone:
                    del queues[step.queue.id]
                elif step.queue is not None:
                    queues[step.queue.id] = step.queue
            if reader.version == version:
                assert queues == versions[version]
                assert reader.piece(version, most) == []
    assert loads < 20
    while reader.version < version:
        steps = reader.piece(version, 7)
        assert steps
        queues |= {step.queue.id: step.queue for step in steps if step.queue is not None and not step.gone}
        for gone in (step.queue for step in steps if step.gone and step.queue is not None):
            del queues[gone.id]
    assert queues == versions[version]


def test_a_reader_takes_nothing_that_was_not_told(tmp_path: Path) -> None:
    writer = filled(tmp_path, 2)
    told = writer.catalog.version
    writer.change(lambda catalog: catalog.declare_queue("untold", workers_n=1))
    reader = catalog_log.Reader(tmp_path)
    assert "untold" not in reader.load(told).queues
    news = reader.follow(told)
    assert news is not None
    assert news.steps == []
    news = reader.follow(told + 1)
    assert news is not None
    assert [step.queue.name for step in news.steps if step.queue is not None] == ["untold"]


@pytest.mark.usefixtures("short_logs")
@pytest.mark.parametrize("failing", [False, True])
def test_who_loads_in_the_middle_of_a_change_finds_what_was_told(tmp_path: Path, plan: "Plan", failing: bool) -> None:
    """The first change after a start, one after a failure, one that begins a new log: before each call of the writer
    somebody reads all of it, and goes on from there when a change was told."""
    writer = begin(tmp_path)
    version, told = writer.catalog.version, unnumbered(writer.catalog)
    readers: list[tuple[catalog_log.Reader, Catalog]] = []
    looks = refused = 0

    def nothing(_number: int, _name: str) -> None:
        """It all goes well."""

    def look(number: int, name: str) -> BaseException | None:
        nonlocal looks
        plan.at = nothing
        reader = catalog_log.Reader(tmp_path)
        seen = reader.load(version)
        assert unnumbered(seen) == told
        readers.append((reader, seen))
        looks += 1
        plan.at = look
        fails = failing and name != "close" and number % 7 == 0
        return OSError(errno.EIO, os.strerror(errno.EIO)) if fails else None

    for change in changes(3, 90):
        plan.at = look
        try:
            writer.change(change)
            plan.at = nothing
            version, told = writer.catalog.version, unnumbered(writer.catalog)
            for reader, seen in readers:
                now, _router = follow(reader, seen, Router(seen), version)
                assert alone(now) == alone(writer.catalog)
            readers.clear()
            plan.at = look
            writer.tidy()
        except UsageError:
            pass
        except StoreError:
            refused += 1
        plan.at = nothing
    assert looks > 100
    assert bool(refused) == failing


@pytest.mark.parametrize("wrong", ["none", "damaged", "a directory"])
def test_what_is_wrong_is_told_by_the_path_that_people_know(tmp_path: Path, wrong: str) -> None:
    """Also of a directory that is read by the name of a descriptor."""
    filled(tmp_path)
    file = tmp_path / "catalog.json"
    file.unlink()
    if wrong == "damaged":
        file.write_text("{")
    elif wrong == "a directory":
        file.mkdir()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(StoreError) as caught:
            catalog_log.Reader(f"/proc/self/fd/{descriptor}", tmp_path).load(1)
    finally:
        os.close(descriptor)
    assert str(file) in str(caught.value)
    assert "/proc/self" not in "".join(traceback.format_exception_only(caught.value))


def test_a_change_of_many_is_all_or_nothing(tmp_path: Path) -> None:
    writer = filled(tmp_path)
    before = alone(writer.catalog)
    size = log_of(tmp_path).stat().st_size

    def many(catalog: Catalog) -> None:
        catalog.declare_queue("new", workers_n=2, arguments={"dead_letter_exchange": ""})
        catalog.bind("new", "amq.topic", "a.#")
        catalog.delete_queue("q1")
        catalog.delete_queue("none")

    with pytest.raises(QueueNotFound):
        writer.change(many)
    assert alone(writer.catalog) == before
    assert log_of(tmp_path).stat().st_size == size
    assert everything(writer.catalog) == everything(Catalog.decode(before, Path()))


def test_every_cut_of_a_log_leaves_what_was_before_and_is_cut_off(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    first = alone(writer.catalog)
    ends: dict[int, bytes] = {}
    for number in range(4):
        writer.change(lambda catalog, n=number: catalog.declare_queue(f"q{n}", workers_n=2))
        ends[log_of(tmp_path).stat().st_size] = alone(writer.catalog)
    path = log_of(tmp_path)
    content = path.read_bytes()
    ends[content.find(b"\n") + 1] = first
    for cut in range(min(ends), len(content) + 1):
        for tail in (b"", b"\0" * 700, b"\0" * 50 + b'"}\n'):
            path.write_bytes(content[:cut] + tail)
            loaded = catalog_log.load(tmp_path)
            end = max(end for end in ends if end <= cut)
            assert alone(loaded.catalog) == ends[end]
            assert loaded.torn == cut + len(tail) - end
            catalog_log.Writer(tmp_path, loaded).change(lambda catalog: catalog.declare_queue("next", workers_n=2))
            assert Catalog.load(tmp_path).version == loaded.catalog.version
            assert "next" in Catalog.load(tmp_path).queues
    for cut in range(min(ends)):
        path.write_bytes(content[:cut])
        with pytest.raises(CorruptRecord, match=re.escape(path.name)):
            Catalog.load(tmp_path)


def test_every_flipped_bit_of_a_log_is_noticed(tmp_path: Path) -> None:
    writer = filled(tmp_path)
    path = log_of(tmp_path)
    content, whole = path.read_bytes(), alone(writer.catalog)
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                found = catalog_log.load(tmp_path)
            except (CorruptRecord, FormatVersionError) as error:
                assert path.name in str(error)  # noqa: PT017 - which error it is depends on the bit
                continue
            # the end of the last line is gone: as a write that was cut, and told as that
            torn = position == len(content) - 1 and found.torn > 0
            assert torn or alone(found.catalog) == whole, f"bit {bit} of byte {position} changed the catalog unnoticed"


def test_what_is_missing_or_of_another_is_named(tmp_path: Path) -> None:
    filled(tmp_path)
    path = log_of(tmp_path)
    content = path.read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    filled(other)
    foreign = log_of(other).read_bytes()
    assert log_of(other).name == path.name
    lines = content.splitlines(keepends=True)
    wrong = [foreign, b"", lines[0] + lines[2], b"".join(lines[1:]), lines[0] + b"\0" * 4096 + content, b"\0" * 4096]
    for damaged in wrong:
        path.write_bytes(damaged)
        with pytest.raises(CorruptRecord, match=re.escape(path.name)):
            Catalog.load(tmp_path)
    path.unlink()
    with pytest.raises(CorruptRecord, match=re.escape(path.name)):
        Catalog.load(tmp_path)
    path.write_bytes(content)
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(CorruptRecord, match=re.escape(FILE_NAME)):
        Catalog.load(tmp_path)


def test_an_older_catalog_beside_a_newer_log_is_refused(tmp_path: Path) -> None:
    writer = filled(tmp_path)
    older = (tmp_path / FILE_NAME).read_bytes()
    writer._compact_bytes = 0
    writer.tidy()
    for path in tmp_path.glob("catalog.*.log"):
        if str(writer.catalog.version) not in path.name:
            path.unlink()
    (tmp_path / FILE_NAME).write_bytes(older)
    with pytest.raises(CorruptRecord, match="no file"):
        Catalog.load(tmp_path)


def test_a_newer_log_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_log, "CATALOG_LOG_VERSION", 9)
    filled(tmp_path)
    monkeypatch.undo()
    with pytest.raises(FormatVersionError, match="newer Warren"):
        Catalog.load(tmp_path)


def test_what_an_older_log_cannot_hold_goes_into_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of an older version was killed: whoever reads a log of that version knows no topics."""
    monkeypatch.setattr(catalog_log, "CATALOG_LOG_VERSION", 1)
    queues = set(filled(tmp_path).catalog.queues)
    monkeypatch.undo()
    old = log_of(tmp_path)
    writer = catalog_log.Writer(tmp_path, catalog_log.load(tmp_path))
    reader = catalog_log.Reader(tmp_path)
    seen, told = reader.load(writer.catalog.version), writer.catalog.version
    with pytest.raises(QueueNotFound):
        writer.change(lambda catalog: catalog.delete_queue("none"))
    writer.change(lambda catalog: catalog.declare_topic("t"))
    assert writer.catalog.version > told
    assert log_of(tmp_path) != old
    seen, _router = follow(reader, seen, Router(seen), writer.catalog.version)
    assert alone(seen) == alone(writer.catalog) == alone(Catalog.load(tmp_path))
    assert (set(seen.queues), set(seen.topics)) == (queues, {"t"})
    monkeypatch.setattr(catalog_log, "CATALOG_LOG_VERSION", 1)
    with pytest.raises(FormatVersionError, match="newer Warren"):
        Catalog.load(tmp_path)


# -- what fails -------------------------------------------------------------------------------------------------

CALLS = ("open", "write", "pwrite", "fsync", "fdatasync", "rename", "ftruncate", "unlink", "close")


class Dies(BaseException):
    """The process is killed at this call."""


class Plan:
    """Counts the writer's system calls, except those that only look up a folder, and makes some fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.on_the_way: set[int] = set()
        self.at: Callable[[int, str], BaseException | None] = lambda _number, _name: None
        for name in CALLS:
            monkeypatch.setattr(os, name, self._around(name, getattr(os, name)))

    def _around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if name == "open" and args[1] & os.O_PATH:  # on the way to a file
                self.on_the_way.add(descriptor := real(*args, **named))
                return descriptor
            if name == "close" and args[0] in self.on_the_way:
                self.on_the_way.remove(args[0])
                return real(*args)
            self.count += 1
            error = self.at(self.count, name)
            if error is not None:
                if name in ("write", "pwrite") and len(args[1]) > 1:
                    real(args[0], args[1][: len(args[1]) // 2], *args[2:])  # a part of it gets there
                if name == "close":
                    real(*args)
                raise error
            return real(*args, **named)

        return call


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    return Plan(monkeypatch)


def history(directory: Path, seed: int, told: list[int], failed: list[Exception]) -> catalog_log.Writer:
    writer = begin(directory)
    told.append(writer.catalog.version)
    for change in changes(seed, 40):
        before = alone(writer.catalog)
        version = writer.catalog.version
        try:
            writer.change(change)
        except UsageError:
            continue
        except StoreError as error:
            failed.append(error)
            assert Catalog.decode(alone(writer.catalog), Path()).queues == Catalog.decode(before, Path()).queues
            continue
        if writer.catalog.version != version:
            told.append(writer.catalog.version)
        try:
            writer.tidy()
        except StoreError as error:
            failed.append(error)
    return writer


def calls_of(plan: Plan, directory: Path, seed: int) -> tuple[int, int]:
    """How many calls there are up to the first one of a directory that is made, and up to the end of its history."""
    for name in ("made", "whole"):
        (directory / name).mkdir()
    plan.count = 0
    begun = begin(directory / "made")
    made = plan.count + 1
    begun.close()
    plan.count = 0
    history(directory / "whole", seed, [], [])
    return made, plan.count


@pytest.mark.usefixtures("short_logs")
def test_a_death_at_every_call_loses_nothing_that_was_told(tmp_path: Path, plan: Plan) -> None:
    seed = 7
    expected = states(seed, 40)
    made, calls = calls_of(plan, tmp_path, seed)
    assert calls > 100
    for last in range(made, calls):
        directory = tmp_path / str(last)
        directory.mkdir()
        told: list[int] = []
        # whoever is dead does nothing any more: no cleaning up either
        plan.at = lambda number, _name, last=last: Dies() if number >= last else None
        plan.count = 0
        with pytest.raises(Dies):
            history(directory, seed, told, [])
        plan.at = lambda _number, _name: None
        loaded = catalog_log.load(directory)
        assert loaded.catalog.version >= max(told)
        assert alone(loaded.catalog) == expected[loaded.catalog.version]
        writer = catalog_log.Writer(directory, loaded)
        writer.change(lambda catalog: catalog.declare_queue("next", workers_n=2))
        writer.close()
        assert alone(Catalog.load(directory)) == alone(writer.catalog)
        assert {path.name for path in directory.iterdir()} <= {FILE_NAME}


@pytest.mark.usefixtures("short_logs")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EMFILE])
@pytest.mark.parametrize("times", [1, 3])
def test_an_error_of_every_call_changes_nothing(tmp_path: Path, plan: Plan, number: int, times: int) -> None:
    """What was refused is not there, what was told is; who follows has the same, also after the next start."""
    seed = 7
    for first in range(*calls_of(plan, tmp_path, seed)):
        directory = tmp_path / str(first)
        directory.mkdir()
        told: list[int] = []
        failed: list[Exception] = []
        plan.at = lambda n, name, first=first: (
            OSError(number, os.strerror(number)) if first <= n < first + times and name != "close" else None
        )
        plan.count = 0
        writer = history(directory, seed, told, failed)
        plan.at = lambda _number, _name: None
        reader = catalog_log.Reader(directory)
        told_last = writer.catalog.version
        writer.change(lambda catalog: catalog.declare_queue("next", workers_n=2))
        assert alone(Catalog.load(directory)) == alone(writer.catalog)
        catalog, _ = follow(reader, Catalog(), Router(Catalog()), writer.catalog.version)
        assert alone(catalog) == alone(writer.catalog)
        assert writer.catalog.version > told_last
        writer.close()


def test_a_failed_change_is_seen_by_nobody(tmp_path: Path, plan: Plan) -> None:
    """Its line may be on the disk after a failed sync: its version is used up, and readers never stop at it."""
    writer = filled(tmp_path, 3)
    reader = catalog_log.Reader(tmp_path)
    catalog = reader.load(writer.catalog.version)
    router = Router(catalog)
    broken = {"fdatasync", "ftruncate"}
    plan.at = lambda _number, name: OSError(errno.EIO, "broken") if name in broken else None
    with pytest.raises(StoreError, match="broken"):
        writer.change(lambda catalog: catalog.declare_queue("refused", workers_n=2))
    assert b"refused" in log_of(tmp_path).read_bytes()
    assert "refused" not in writer.catalog.queues
    plan.at = lambda _number, _name: None
    writer.change(lambda catalog: catalog.declare_queue("good", workers_n=2))
    catalog, router = follow(reader, catalog, router, writer.catalog.version)
    assert "refused" not in catalog.queues
    assert "good" in catalog.queues
    assert "refused" not in Catalog.load(tmp_path).queues
    assert [item.name for item in router.route("", "good").queues] == ["good"]


def test_a_log_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    writer = filled(tmp_path)
    log_of(tmp_path).unlink()
    with pytest.raises(StoreError, match="catalog"):
        writer.change(lambda catalog: catalog.declare_queue("lost", workers_n=2))
    writer.change(lambda catalog: catalog.declare_queue("kept", workers_n=2))
    assert set(Catalog.load(tmp_path).queues) == {"q0", "q1", "q2", "q3", "kept"}


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing here looks at what a sync does; they cost most of the time. What fails is told by `plan`."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)
    if "plan" in request.fixturenames:
        request.getfixturevalue("plan")
    yield
    assert atomic_file.os is os


def test_check_tells_the_log_and_names_what_is_damaged(tmp_path: Path) -> None:
    directory = NodeDirectory(tmp_path / "node")
    directory.make()
    absence.prepare_workers(directory.path, directory.open_or_make({}).node_id, 1, range(2))
    writer = catalog_log.Writer(directory.path, catalog_log.load(directory.path))
    for number in range(3):
        writer.change(lambda catalog, n=number: catalog.declare_queue(f"q{n}", workers_n=2))
    path = log_of(directory.path)
    content = path.read_bytes()
    report = verify(directory)
    assert report.problems == []
    (row,) = (item for item in report.files if item.path == str(path))
    assert (row.kind, row.records, row.bytes) == ("catalog log", 3, len(content))
    path.write_bytes(content[:-7])
    report = verify(directory)
    assert report.problems == []
    assert any("never confirmed" in note for note in report.notes), "a torn tail is told"
    half = len(content) // 2
    for damaged in (content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :], b"", None):
        path.unlink(missing_ok=True)
        if damaged is not None:
            path.write_bytes(damaged)
        (problem,) = verify(directory).problems
        assert path.name in problem


def test_a_retention_that_cannot_be_written_is_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken back is not the topic."""
    writer = begin(tmp_path)
    flights = writer.change(lambda catalog: catalog.declare_topic("flights", retention_s=60))

    def full(*_arguments: object) -> None:
        raise StoreError("no space")

    monkeypatch.setattr(writer, "_write", full)
    with pytest.raises(StoreError):
        writer.change(lambda catalog: catalog.set_topic("flights", 5, None))
    monkeypatch.undo()
    assert writer.catalog.topics == {"flights": flights}
    assert alone(writer.catalog) == alone(Catalog.load(tmp_path))
