"""Goal: what a sink commits is in each destination once, in order, whoever is killed at any step; nobody writes with
another's number; what nobody needs goes.

Method: the sink's real files, topics and queues as lists (support.list_targets), a process that is killed at each of
its steps in turn: at each write, sync, rename and removal of a file, and around each append and flush. What it had
submitted is executed later. Then Spark's way: the batch that its log does not have is staged and committed again.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from warren.engine.errors import CorruptRecord, Fenced, InvalidName, LimitError, StoreError, TimedOut, UsageError
from warren.engine.transactions import parts as parts_module
from warren.engine.transactions import sink as sink_module
from warren.engine.transactions import state as state_module
from warren.engine.transactions.folder import PartName, SinkFolder, sinks
from warren.engine.transactions.parts import Destination, Part, PartWriter
from warren.engine.transactions.sink import KEPT_S, Batch, Sink

from support.list_targets import Killed, ListTargets, World
from support.long import LONG

NODE = 7
QUERY, OTHER = "11111111-aaaa", "22222222-bbbb"
A0, A1 = Destination("topic", "a", 1, 0), Destination("topic", "a", 1, 1)
Q = Destination("queue", "q", 5)
EVERYWHERE = (A0, A1, Q)


def sink(directory: Path, **more: Callable[[], float]) -> Sink:
    return Sink(directory, "s", NODE, 5.0, **more)


def rows_of(batch: int, partition: int) -> list[tuple[Destination, bytes]]:
    rng = random.Random(f"{batch}/{partition}")
    return [(rng.choice(EVERYWHERE), b"%d/%d/%d" % (batch, partition, n)) for n in range(rng.randrange(1, 9))]


def stage(target: Sink, batch: Batch, partition: int = 0, rows: list[tuple[Destination, bytes]] | None = None) -> Part:
    number = batch.number or 0
    with PartWriter(target.folder, PartName.new(batch.owner, number, partition)) as writer:
        for destination, body in rows_of(number, partition) if rows is None else rows:
            writer.add(destination, body, tag="t" if body.endswith(b"1") else None)
        return writer.close()


def expected(batches: int) -> dict[Destination, list[bytes]]:
    found: dict[Destination, list[bytes]] = {}
    for batch in range(batches):
        for partition in range(2):
            for destination, body in rows_of(batch, partition):
                found.setdefault(destination, []).append(body)
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of two rows, a step of a few."""
    monkeypatch.setattr(parts_module, "ROWS_MAX", 2)
    monkeypatch.setattr(sink_module, "STEP_BYTES", 12)


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    """Each change of a file is a step of the world in the list: before it happens, and after it."""
    worlds: list[World] = []

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def call(*told: object, **named: object) -> object:
            if worlds:
                worlds[0].step()
            found = (
                None if worlds and name == "fsync" else real(*told, **named)
            )  # a kill loses nothing that was written
            if worlds:
                worlds[0].step()
            return found

        monkeypatch.setattr(os, name, call)

    for name in ("pwrite", "fsync", "rename", "unlink", "mkdir"):
        wrap(name)
    yield worlds
    worlds.clear()


def driver(directory: Path, world: World, log: list[int], batches: int, run: str) -> None:
    """Spark: batch after batch, from the one behind the last in its log."""
    for number in range(len(log), batches):
        batch = Batch(QUERY, number, run)
        target = sink(directory)
        if not target.enter(batch):
            stage(target, batch, 1)  # an attempt that loses
            staged = [stage(target, batch, partition) for partition in range(2)]
        else:
            staged = []
        target.commit(batch, staged, ListTargets(world))
        world.step()
        log.append(number)
        world.step()


@pytest.mark.usefixtures("small")
def test_killed_at_each_step_each_message_comes_once(tmp_path: Path, hooked: list[World], seed: int) -> None:
    batches = 2
    choice = random.Random(seed)
    die_at = deaths = 0
    while True:
        die_at += 1 if LONG else choice.randrange(1, 9)
        directory = tmp_path / "node"
        directory.mkdir()
        world = World(random.Random(f"{seed}/{die_at}"), die_at=die_at)
        hooked[:] = [world]
        log: list[int] = []
        killed = False
        for run in range(100):
            try:
                driver(directory, world, log, batches, f"run-{run}")
                break
            except Killed:
                killed = True
                deaths += 1
                world.dead = False
                # A second death, sometimes, in what sets the first one right.
                world.die_at = world.steps + world.rng.randrange(1, 60) if world.rng.random() < 0.5 else -1
        hooked.clear()
        assert log == list(range(batches))
        assert world.bodies() == expected(batches), f"killed at step {die_at}"
        state = sink(directory).load()
        assert state is not None
        assert state.pending is None
        assert sink(directory).folder.parts() == [], "staged rows are left"
        shutil.rmtree(directory)
        if not killed:
            break
    assert die_at > 200
    assert deaths > 40


@pytest.mark.usefixtures("small")
def test_an_error_in_the_middle_is_finished_by_the_next_use(tmp_path: Path, seed: int) -> None:
    world = World(random.Random(seed))
    first = Batch(QUERY, 0, "r")
    sink(tmp_path).enter(first)
    staged = [stage(sink(tmp_path), first, partition) for partition in range(2)]
    world.die_at = 5
    with pytest.raises(Killed):
        sink(tmp_path).commit(first, staged, ListTargets(world))
    world.dead = False
    sink(tmp_path).abort(staged)  # Spark says so after each commit that raised
    state = sink(tmp_path).load()
    assert state is not None
    assert state.pending is not None
    assert len(sink(tmp_path).folder.parts()) == 2
    with pytest.raises(UsageError, match="has a batch that is committed and not finished"):
        sink(tmp_path).forget()
    found = sink(tmp_path).finish(ListTargets(world))
    assert found is not None
    assert world.bodies() == expected(1)
    assert sink(tmp_path).finish(ListTargets(world)) is None
    assert sink(tmp_path).commit(first, staged, ListTargets(world)) is False
    assert world.bodies() == expected(1)


def test_aborted_and_superseded_parts_go(tmp_path: Path) -> None:
    target, world = sink(tmp_path), World(random.Random(1))
    batch = Batch(QUERY, 0, "r")
    target.enter(batch)
    target.abort([stage(target, batch)])
    assert target.folder.parts() == []
    lost, won = stage(target, batch), stage(target, batch)
    old = stage(target, Batch("w-1"))
    young = stage(target, Batch("w-2"))
    os.utime(target.folder.staged / old.name, (1, 1))
    assert target.commit(batch, [won], ListTargets(world))
    assert [path.name for _name, path in target.folder.parts()] == [young.name], lost
    late = sink(tmp_path, now=lambda: os.stat(target.folder.staged / young.name).st_mtime + KEPT_S + 1)
    with PartWriter(target.folder, PartName.new("w-3", 0, 0)) as writer:
        late.finish(ListTargets(world))
        assert [path for _name, path in target.folder.parts()] == [writer.path], "the part of a living task went"
    assert target.folder.parts() == []


def test_another_query_is_refused_and_may_take_over_and_give_back(tmp_path: Path) -> None:
    world = World(random.Random(1))
    target = sink(tmp_path)

    def write(batch: Batch, take_over: bool = False) -> bool:
        if target.enter(batch, take_over):
            return False
        return target.commit(batch, [stage(target, batch)], ListTargets(world))

    assert write(Batch(QUERY, 0, "a"))
    assert write(Batch(QUERY, 1, "a"))
    with pytest.raises(UsageError, match=f"takes batches of query {QUERY}, up to 1 so far, and this is query {OTHER}"):
        target.enter(Batch(OTHER, 0, "b"))
    assert write(Batch(OTHER, 0, "b"), take_over=True)
    with pytest.raises(UsageError, match=f"takes batches of query {OTHER}"):
        target.commit(Batch(QUERY, 2, "a"), [], ListTargets(world))
    assert not write(Batch(QUERY, 1, "c"), take_over=True), "its batch was written again"
    assert write(Batch(QUERY, 2, "c"))


def test_of_two_drivers_the_first_is_fenced(tmp_path: Path) -> None:
    target, world = sink(tmp_path), World(random.Random(1))
    old, new = Batch(QUERY, 0, "first"), Batch(QUERY, 0, "second")
    target.enter(old)
    staged = stage(target, old)
    target.enter(new)
    again = stage(target, new)
    with pytest.raises(Fenced, match="run second of query"):
        target.commit(old, [staged], ListTargets(world))
    with pytest.raises(Fenced, match="two drivers must not run on one checkpoint"):
        target.enter(old)
    assert target.commit(new, [again], ListTargets(world))
    assert world.bodies() == {
        each: [body for where, body in rows_of(0, 0) if where == each] for each in dict(rows_of(0, 0))
    }


def test_writes_that_are_no_streams_are_transactions_of_their_own(tmp_path: Path) -> None:
    target, world = sink(tmp_path), World(random.Random(1))
    for owner in ("w-1", "w-2"):
        batch = Batch(owner)
        assert not target.enter(batch)
        assert target.commit(batch, [stage(target, batch, rows=[(A0, owner.encode())])], ListTargets(world))
    assert world.bodies() == {A0: [b"w-1", b"w-2"]}
    state = target.load()
    assert state is not None
    assert (state.number, state.messages, state.stream) == (2, 2, None)


def test_staged_rows_that_are_damaged_are_not_committed(tmp_path: Path) -> None:
    target, world = sink(tmp_path), World(random.Random(1))
    batch = Batch(QUERY, 0, "r")
    target.enter(batch)
    staged = stage(target, batch)
    path = target.folder.staged / staged.name
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptRecord):
            target.commit(batch, [staged], ListTargets(world))
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptRecord, match="bytes"):
        target.commit(batch, [staged], ListTargets(world))
    path.unlink()
    with pytest.raises(CorruptRecord, match="found no file"):
        target.commit(batch, [staged], ListTargets(world))
    assert world.bodies() == {}
    path.write_bytes(whole)
    assert target.commit(batch, [staged], ListTargets(world))


def test_a_state_that_is_damaged_or_another_ones_is_refused(tmp_path: Path) -> None:
    target = sink(tmp_path)
    target.enter(Batch(QUERY, 0, "r"))
    whole = target.folder.state.read_bytes()
    for at in range(0, len(whole) - 1, 3):
        target.folder.state.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptRecord):
            target.load()
    target.folder.state.write_bytes(whole)
    with pytest.raises(StoreError, match="is of sink 's' of node"):
        Sink(tmp_path, "s", NODE + 1, 1.0).load()
    shutil.copytree(target.folder.path, target.folder.path.with_name("t"))
    with pytest.raises(StoreError, match="somebody put it there"):
        Sink(tmp_path, "t", NODE, 1.0).load()


def test_a_full_disk_while_staging_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = sink(tmp_path)
    batch = Batch(QUERY, 0, "r")
    target.enter(batch)

    def full(*_told: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match="nothing was lost: make space"):
            stage(target, batch)
    assert target.folder.parts() == []


def test_limits_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", ".s", "-s", "a/b", "ü", "x" * 101):
        with pytest.raises(InvalidName):
            SinkFolder.of(tmp_path, name)
    target, world = sink(tmp_path), World(random.Random(1))
    batch = Batch(QUERY, 0, "r")
    target.enter(batch)
    staged = stage(target, batch)
    monkeypatch.setattr(sink_module, "PARTS_MAX", 1)
    with pytest.raises(LimitError, match="has 2 parts, 1 are the most"):
        target.commit(batch, [staged, staged], ListTargets(world))
    monkeypatch.setattr(sink_module, "DESTINATIONS_MAX", 0)
    with pytest.raises(LimitError, match="goes to more than 0 destinations"):
        target.commit(batch, [staged], ListTargets(world))


def test_a_state_that_nobody_would_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, world = sink(tmp_path), World(random.Random(1))
    batch = Batch(QUERY, 0, "r")
    target.enter(batch)
    staged = stage(target, batch)
    before = target.folder.state.read_bytes()
    monkeypatch.setattr(state_module, "STATE_BYTES_MAX", len(before))
    with pytest.raises(LimitError, match="a sink remembers at most"):
        target.commit(batch, [staged], ListTargets(world))
    assert target.folder.state.read_bytes() == before


def test_who_waits_for_a_sink_does_not_wait_for_ever(tmp_path: Path) -> None:
    target = Sink(tmp_path, "s", NODE, 0.01)
    target.enter(Batch(QUERY, 0, "r"))
    with target.folder.locked(1.0), pytest.raises(TimedOut, match=r"sink 's' was busy for 0\.01 s"):
        target.abort([stage(target, Batch(QUERY, 0, "r"))])


def test_a_sink_that_was_forgotten_begins_anew(tmp_path: Path) -> None:
    target, world = sink(tmp_path), World(random.Random(1))
    batch = Batch(QUERY, 0, "r")
    target.enter(batch)
    writer = PartWriter(target.folder, PartName.new(QUERY, 0, 0))
    with writer, pytest.raises(UsageError, match="tasks write to sink"):
        target.forget()
    staged = stage(target, batch)
    target.forget()
    assert sinks(tmp_path) == []
    assert os.listdir(target.folder.path.parent) == []
    with pytest.raises(StoreError):
        target.commit(batch, [staged], ListTargets(world))
    target.enter(Batch(OTHER, 0, "x"))
    assert [each.name for each in sinks(tmp_path)] == ["s"]


def test_rows_come_back_as_they_were(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "HELD_BYTES_MAX", 20_000)
    monkeypatch.setattr(parts_module, "WRITE_BYTES", 10_000)
    target, rng = sink(tmp_path), random.Random(seed)
    target.enter(Batch(QUERY, 0, "r"))
    destinations = [Destination("topic", f"t{n % 40}", n % 40, n // 40) for n in range(160)]
    told: dict[Destination, list[tuple[object, ...]]] = {}
    with PartWriter(target.folder, PartName.new(QUERY, 0, 3)) as writer:
        for _ in range(5000):
            destination = rng.choice(destinations)
            properties = {"p": "x" * rng.randrange(20)} if rng.random() < 0.3 else None
            row = rng.randbytes(rng.randrange(50)), rng.choice([None, "k"]), rng.choice([None, "t"]), properties
            told.setdefault(destination, []).append(row)
            writer.add(destination, *row)
            assert writer._held_bytes < 20_000, "more is held than may be"
        part = writer.close()
    assert part.messages == 5000
    assert dict(part.destinations) == {destination: len(rows) for destination, rows in told.items()}
    found: dict[Destination, list[tuple[object, ...]]] = {}
    with parts_module.PartReader(target.folder, part) as reader:
        reader.verify()
        for rows in reader:
            nothing = [None] * len(rows.bodies)
            columns = (rows.bodies, rows.keys or nothing, rows.tags or nothing, rows.properties or nothing)
            found.setdefault(rows.destination, []).extend(zip(*columns, strict=True))
    assert found == told
