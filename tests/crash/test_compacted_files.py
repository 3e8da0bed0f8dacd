"""What campaigns look for in files of newest messages: they say nothing of what is right, and see what is wrong.

Goal: each thing that tools/crash/compacted_files.py promises to see, it sees; so campaigns without violations mean
something. Method: records made by hand, against logs that have all of them, or have lost the first; the file of a real
node, and files made of it in which one thing is wrong.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import warren
from warren.engine.catalog.catalog import Catalog
from warren.tools.crash.compacted_files import NewestFile, newest_of, unlike_log
from warren.tools.crash.topic_files import differences
from warren.tools.crash.topic_log import BadFileError, Logged, logged

from support.compacted_file import CompactedFile, decode
from support.real_node import RealNode
from support.waiting import wait_until

#: milliseconds
STAYS = 1000
SETTINGS = {
    "log_file_bytes": 1 << 20,
    "topic_ring_bytes": 1 << 20,
    "consume_queue_entries": 300,
    "index_slots": 200,
    "index_entries": 1000,
    "retention_check_s": 0.1,
    "compaction_dirty": 0.01,
    "compaction_keys": 1000,
    "compaction_tombstone_s": 3600.0,
}


# -- records made by hand ---------------------------------------------------------------------------------------------


def record(offset: int, key: str, body: bytes = b"value") -> Logged:
    """Stored at 100 ms for each offset. Several keys are divided by spaces; without a body it is a tombstone."""
    return Logged("t", 7, 0, offset, 1000 * offset, 500, 100 * offset, body, "", tuple(key.split(" ")))


#: key b was replaced, a is a tombstone, and "a x" another key
LOG = [record(0, "b"), record(1, "a x"), record(2, "b"), record(3, "a", b""), record(4, "c")]
_B, AX, NEW_B, A, C = LOG
ALL = [AX, NEW_B, A]


def wrong(records: list[Logged], *, end: int = 4, made: int = 0, log: list[Logged] = LOG) -> str:
    return "; ".join(unlike_log("t/0", NewestFile(end, tuple(records), made), 5, log, STAYS))


def test_nothing_is_said_of_a_file_that_is_right() -> None:
    assert wrong(ALL) == ""
    assert wrong([*ALL, C], end=5) == ""
    assert wrong(ALL[:2], made=A.stored + STAYS) == "", "the tombstone has had its time"


def test_what_is_wrong_with_a_file_is_seen() -> None:
    assert "ends at 6, and the last message is before 5" in wrong([*ALL, C], end=6)
    assert "ends at 2, and the log begins at 3" in wrong([_B, AX], end=2, log=[A, C])
    assert "has key 'b' at 0 and 2" in wrong([_B, *ALL])
    assert "has None of key 'a x', and 1 was" in wrong(ALL[1:])
    assert "has 0 of key 'b', and 2 was" in wrong([_B, AX, A])
    assert "has None of key 'a', and 3 was" in wrong(ALL[:2], made=A.stored + STAYS - 1)
    assert "another message at 2" in wrong([AX, record(2, "b", b"other"), A])
    assert "another message at 2" in wrong([AX, dataclasses.replace(NEW_B, whole=7), A]), "also in bytes without a name"
    assert "another message at 2" in wrong(ALL, log=[_B, AX, A, C]), "the log has nothing there"


def test_a_log_that_has_lost_its_first_files_says_nothing_of_them() -> None:
    rest = LOG[3:]
    assert wrong(ALL, log=rest) == ""
    assert wrong([record(2, "whatever"), A], log=rest) == ""
    assert wrong([record(2, "whatever")], log=[]) == ""
    assert "has None of key 'a'" in wrong(ALL[:2], log=rest)
    assert "has 1 of key 'a', and 3 was" in wrong([record(1, "a")], log=rest)


# -- a file of a node -------------------------------------------------------------------------------------------------


class Compacted:
    """A compacted topic of a node that was stopped: its file, and what the log has of it."""

    def __init__(self, directory: Path) -> None:
        self.topic = Catalog.load(directory).topics["newest"]
        self.folder = directory / "topics"
        self.path = self.folder / "compacted" / str(self.topic.id) / "0"
        self.log = [one for one in logged(self.folder / "commitlog") if one.topic_id == self.topic.id]

    def file(self, path: Path | None = None) -> NewestFile:
        """What a file says; the topic's, unless another one is given."""
        found = newest_of(path or self.path, self.topic.id, 0)
        assert found is not None
        return found

    def wrong(self, path: Path | None = None, tombstone_ms: int = 3_600_000) -> str:
        return "; ".join(unlike_log("newest/0", self.file(path), len(self.log), self.log, tombstone_ms))


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Compacted:
    """Keys, tombstones, and keys of two; all but the last messages are in a file of newest messages."""
    directory = tmp_path_factory.mktemp("compacted") / "node"
    with RealNode(directory, **SETTINGS), warren.attach(directory) as node:
        topic = node.topic("newest", queues=1, compacted=True)
        log = node.topic("log", queues=1)
        for n in range(120):
            keys = [f"k{n % 7}", "pair"] if n % 5 == 0 else [f"k{n % 7}"]
            topic.append(b"" if n % 11 == 3 else b"%d " % n * 300, keys)
        for _ in range(11):  # the first message of the queue has more of the log behind it than a file
            log.append_many([bytes(40_000)] * 4)
        wait_until(lambda: topic.offsets(0)[0] > 0, 60, what="a pass")
        topic.append(b"last", "k1")
    return Compacted(directory)


@pytest.mark.integration
def test_a_file_of_a_node_is_what_the_log_says(compacted: Compacted) -> None:
    assert compacted.wrong() == ""
    found = compacted.file()
    assert len(found.records) > 7
    assert any(not one.body for one in found.records)
    assert found.end == 120
    topics = {one.name: (one.id, one.queues) for one in Catalog.load(compacted.folder.parent).topics.values()}
    minima = {(compacted.topic.id, 0): found.end}
    assert list(differences(compacted.folder, topics, SETTINGS["index_slots"], minima=minima)) == []


def _without(found: CompactedFile, index: int) -> None:
    """One record less, in all tables, too."""
    records = [one for block in found.blocks for one in block]
    offset = int.from_bytes(records.pop(index)[20:28], "big")
    found.blocks = [records]
    found.keys = [key for key in found.keys if key[1] != offset]
    found.since.pop(offset, None)


def _with_another_host(found: CompactedFile) -> None:
    first = bytearray(found.blocks[0][0])
    first[48] ^= 1
    found.blocks[0][0] = bytes(first)


def _with_a_higher_end(found: CompactedFile) -> None:
    found.end += 1


def changed(compacted: Compacted, folder: Path, change: Callable[[CompactedFile], None]) -> Path:
    """A copy of the file, with one thing wrong."""
    found = decode(compacted.path.read_bytes())
    change(found)
    path = folder / "0"
    path.write_bytes(found.encode())
    return path


@pytest.mark.integration
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _found: None, ""),
        (lambda found: _without(found, 0), "was the newest below its end"),
        (_with_another_host, "has another message at"),
        (_with_a_higher_end, "of key 'k1', and 120 was the newest below its end"),
    ],
)
def test_a_file_that_is_not_what_the_log_says_is_seen(
    compacted: Compacted, tmp_path: Path, change: Callable[[CompactedFile], None], says: str
) -> None:
    path = changed(compacted, tmp_path, change)
    said = compacted.wrong(path)
    assert (says in said) if says else not said, said


@pytest.mark.integration
def test_tombstones_may_go_when_they_had_their_time(compacted: Compacted, tmp_path: Path) -> None:
    gone = [n for n, one in enumerate(compacted.file().records) if not one.body]

    def without_tombstones(found: CompactedFile) -> None:
        for n in reversed(gone):
            _without(found, n)

    path = changed(compacted, tmp_path, without_tombstones)
    assert compacted.wrong(path, 0) == ""
    assert compacted.wrong(path).count("was the newest below its end") == len(gone)


def _other_queue(found: CompactedFile) -> None:
    found.queue = 1


def _lower_end(found: CompactedFile) -> None:
    found.end -= 40


def _no_tombstones(found: CompactedFile) -> None:
    found.since.clear()


def _other_key(found: CompactedFile) -> None:
    found.keys[0] = (found.keys[0][0], found.keys[0][1] + 1)


def _other_place(found: CompactedFile) -> None:
    found.places[0] = (1, 2, 3)


def _other_count(found: CompactedFile) -> None:
    found.records_n = 1


def _twice(found: CompactedFile) -> None:
    found.blocks[0].insert(0, found.blocks[0][0])


@pytest.mark.integration
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_other_queue, "its head is of"),
        (_lower_end, "its offsets below its end are"),
        (_no_tombstones, "its tombstones are"),
        (_other_key, "its keys are"),
        (_other_place, "its places of blocks are"),
        (_other_count, "its records are"),
        (_twice, "its keys are"),
    ],
)
def test_tables_that_are_not_those_of_the_records_are_seen(
    compacted: Compacted, tmp_path: Path, change: Callable[[CompactedFile], None], says: str
) -> None:
    path = changed(compacted, tmp_path, change)
    with pytest.raises(BadFileError, match=says):
        compacted.file(path)


@pytest.mark.integration
def test_a_file_that_does_not_follow_its_format_is_seen(compacted: Compacted, tmp_path: Path) -> None:
    data = compacted.path.read_bytes()
    path = tmp_path / "0"
    assert newest_of(path, compacted.topic.id, 0) is None, "there is none"
    body = data.index(next(one.body for one in compacted.file().records if one.body))
    damaged = (b"", data[:50], data[:-1], data + b"\0", b"X" + data[1:], data[:body] + b"X" + data[body + 1 :])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(BadFileError):
            compacted.file(path)
