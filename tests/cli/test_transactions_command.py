"""Goal: `warren transactions` says how far sinks are, finishes what a commit left, and forgets a sink; `warren check`
names what is damaged of them; a copied directory works.

Method: the command line as processes of their own, a real node; a commit that is cut short, files that are damaged.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warren as public
from warren.engine.errors import TimedOut
from warren.engine.transactions.folder import PartName
from warren.engine.transactions.parts import Destination, PartWriter
from warren.engine.transactions.sink import Batch, Sink
from warren.workers.faces import transactions

from support.command_line import warren

pytestmark = pytest.mark.integration

QUERY = "11111111-aaaa"
MESSAGES = 3000


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    chosen = tmp_path / "node"
    warren("up", chosen, "--detach", "--workers", 1)
    warren("topic", "create", chosen, "out", "--queues", 1)
    yield chosen
    warren("stop", chosen)


def told(*words: object) -> Any:
    return json.loads(warren(*words, "--json").stdout)


class Cut(transactions.NodeTargets):
    """Appends one frame, and then nothing."""

    appended = 0

    def append(self, *told: Any) -> None:
        self.appended += 1
        if self.appended > 1:
            raise TimedOut("cut short")
        super().append(*told)


def cut_short(directory: Path, number: int = 0) -> Sink:
    """A batch that is committed, and of which one frame may be in the topic."""
    sink = transactions.sink_of(directory, "copies", 10.0)
    batch = Batch(QUERY, number, "run")
    sink.enter(batch)
    with public.attach(directory) as node:
        id, _queues = transactions.topic_of(transactions.client_of(node).catalog(), "out")
    with PartWriter(sink.folder, PartName.new(QUERY, number, 0)) as writer:
        for n in range(MESSAGES):
            writer.add(Destination("topic", "out", id), b"%d" % n)
        part = writer.close()
    with Cut(directory, 10.0, "cut") as targets, pytest.raises(TimedOut):
        sink.commit(batch, [part], targets)
    return sink


def bodies(directory: Path) -> list[int]:
    with public.attach(directory) as node:
        return [int(value) for value in node.topic("out").read_arrow(0).column("value").to_pylist()]


def test_from_nothing_to_forgotten(directory: Path) -> None:
    assert "no job has written" in warren("transactions", directory).stdout
    assert told("transactions", directory) == []
    assert "there is no sink 'copies'" in warren("transactions", directory, "--finish", "copies", code=2).said
    cut_short(directory)
    [row] = told("transactions", directory)
    assert (row["sink"], row["query"], row["batch"], row["staged_parts"]) == ("copies", QUERY, 0, 1)
    assert (row["pending"]["messages"], row["pending"]["done"]) == (MESSAGES, 0)
    assert f"{MESSAGES:,}" in warren("transactions", directory).stdout
    assert "would be lost" in warren("transactions", directory, "--forget", "copies", code=2).said
    checked = warren("check", directory)
    assert "batch 0 is committed, and 3,000 messages of it may not be in topics and queues yet" in checked.stdout
    assert "batch 0 of sink copies is finished" in warren("transactions", directory, "--finish", "copies").stdout
    assert "nothing to finish" in warren("transactions", directory, "--finish", "copies").stdout
    assert bodies(directory) == list(range(MESSAGES))
    assert "is forgotten" in warren("transactions", directory, "--forget", "copies").stdout
    assert told("transactions", directory) == []
    for words in (("--again",), ("--force",), ("--finish", "a", "--forget", "b")):
        warren("transactions", directory, *words, code=2)


def test_a_copy_goes_on_by_itself(directory: Path, tmp_path: Path) -> None:
    """A batch is committed and not in its place; the directory is copied; both finish it, each in its own topic."""
    cut_short(directory)
    warren("stop", directory)
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("control.sock"))
    for place in (copy, directory):
        warren("up", place, "--detach")
        warren("transactions", place, "--finish", "copies")
        assert bodies(place) == list(range(MESSAGES))
        assert "no problem" in warren("check", place).stdout
    warren("stop", copy)


def test_check_names_what_is_damaged(directory: Path) -> None:
    sink = cut_short(directory)
    [(_name, part)] = sink.folder.parts()
    whole = part.read_bytes()
    part.write_bytes(whole[:5000] + b"x" + whole[5001:])
    found = warren("check", directory, code=1).stdout
    assert f"PROBLEM  {part}: at byte" in found
    assert "rows that were staged are damaged" in warren("transactions", directory, "--finish", "copies", code=3).said
    part.write_bytes(whole)
    stray = sink.folder.staged / str(PartName.new(QUERY, 0, 7))
    stray.write_bytes(b"")
    (sink.folder.staged / "mine").touch()
    (sink.folder.path.parent / ".gone-0").mkdir()
    (sink.folder.path.parent / "file").touch()
    os.mkfifo(sink.folder.path.parent / "pipe")
    found = warren("check", directory).stdout
    assert f"{stray}: is staged, and no commit names it" in found
    assert "mine: does not belong here" in found
    assert "is left of a sink that was forgotten" in found
    listed = warren("transactions", directory).stdout
    owned = rf"user \S+ \({os.geteuid()}\) owns it"
    for name in ("file", "pipe"):
        assert re.search(rf"{name}'? does not belong here, and is not a sink; {owned}", listed)
        assert f"{name}: does not belong here" in found
    assert "copies" in listed
    assert [(row["sink"], bool(row["problem"])) for row in told("transactions", directory)] == [
        ("copies", False), ("file", True), ("pipe", True),
    ]  # fmt: skip
    (sink.folder.path.parent / "folder").mkdir()
    os.link(directory / "node.json", sink.folder.path.parent / "second")
    listed = warren("transactions", directory).stdout
    assert re.search(rf"folder'? does not belong here, and is not a sink; {owned}", listed)
    second = rf"it is a second name of a file of user \S+ \({os.geteuid()}\)"
    assert re.search(rf"second'? does not belong here, and is not a sink; {second}", listed)
    state = sink.folder.state.read_bytes()
    sink.folder.state.write_bytes(state.replace(b'"number":1', b'"number":2'))
    assert f"PROBLEM  {sink.folder.state}: at byte 0: expected crc32" in warren("check", directory, code=1).stdout
    assert told("transactions", directory)[0]["problem"]
    sink.folder.state.write_bytes(state)
    warren("stop", directory)
    assert f"repaired {stray}: removed" in warren("check", directory, "--repair").stdout
    assert [path for _name, path in sink.folder.parts()] == [part]
    warren("up", directory, "--detach")
    warren("transactions", directory, "--finish", "copies")
    assert bodies(directory) == list(range(MESSAGES))


def test_a_state_that_is_too_large_is_not_read(directory: Path) -> None:
    """A member can make his as long as he likes, without a disk that is as large."""
    folder = directory / "transactions" / "mine"
    folder.mkdir(parents=True)
    (folder / "state").touch()
    os.truncate(folder / "state", 3 << 30)
    limit = "it has 3,221,225,472 bytes, and at most 269,484,032 are read"
    assert f"{folder}/state: cannot read {folder}/state: {limit}" in warren("check", directory, code=1).stdout
    [row] = told("transactions", directory)
    assert limit in row["problem"]
    assert "cannot be read" in warren("transactions", directory).stdout
