"""Goal: `warren check` names what is damaged or missing of the files of newest messages, with place and offsets; a
repair keeps each sound message, sets the damaged file aside and says what it cost; the log is repaired as without them.

Method: files that a pass has made of a real log, damaged by hand, each in a copy; files that are made by the tables of
the format (support/compacted_file.py) where no damage of a disk could make them so: their checksums fit. What has to be
left is what the file held before, less the damaged block.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from warren.engine import _core
from warren.engine.config import Settings
from warren.engine.errors import StoreError
from warren.engine.kernel import data_files, quarantine
from warren.engine.topics import bounds
from warren.engine.topics.check import TopicsCheck
from warren.engine.topics.compacted_check import CompactedCheck, Minima
from warren.engine.topics.formats import BOUNDS_TOPIC
from warren.engine.topics.found import Found
from warren.engine.topics.names import node_bytes
from warren.ipc import access

from support import topic_tables
from support.compacted_file import CompactedFile, decode, places_of, record
from support.topic_probe import Life, Topic, TopicNode

TOPICS = [Topic(7, "flights", 2), Topic(9, "other", 1)]
COUNT, END, KEYS = 330, 300, 250  #: messages of a queue, those below this offset are in its file, different keys


def node_at(path: Path) -> TopicNode:
    return TopicNode(path, topics=TOPICS, consume_queue_entries=400, index_slots=50, index_entries=500)


def checking(node: TopicNode, *, running: bool = False, compacted: tuple[int, ...] = (7,)) -> TopicsCheck:
    topics = [(topic.id, topic.name.encode(), topic.queues) for topic in TOPICS]
    settings = Settings(
        log_file_bytes=node.log_file_bytes,
        consume_queue_entries=node.consume_queue_entries,
        index_slots=node.index_slots,
        index_entries=node.index_entries,
    )
    return TopicsCheck(node.folder, node.superblock.node_id, settings, topics, running, compacted)


def problems(found: list[Found]) -> dict[Path, str]:
    return {item.path: item.problem for item in found if item.problem}


def notes(found: list[Found]) -> dict[Path, str]:
    return {item.path: item.note for item in found if item.note}


def append(life: Life) -> None:
    """The first queues of `flights` get messages with keys; each seventh is a tombstone."""
    appender = life.node.appender(life)
    last = 0
    for offset in range(COUNT):
        for queue in range(2):
            life.until(lambda: appender.get("tail") - appender.get("head") < 40)
            body = b"" if offset % 7 == 0 else b"%d/%d " % (queue, offset) + bytes([offset % 251]) * 900
            last = appender.append(7, queue, body, properties={"KEYS": f"k{offset % KEYS}"})
    life.until(lambda: appender.get("synced") > last)
    life.until(lambda: all(life.maximum(7, queue) == COUNT for queue in range(2)))


def compact(life: Life, queue: int, now: int, old: int = -1, start: int = 0) -> None:
    """A pass over a queue, which gives its file a name."""
    node = life.node
    root = os.open(node.folder.path, os.O_RDONLY)
    sizes = (node.log_file_bytes, node.ring_bytes, node.consume_queue_entries, node.index_slots, node.index_entries)
    reader = _core.TopicReader(root, 7, b"flights", *sizes, node_bytes(node.superblock.node_id))
    reader.begin(life.ring, life.rows)
    path = node.folder.compacted / "7" / str(queue)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = os.open(path.with_name("made"), os.O_RDWR | os.O_CREAT)
    try:
        found = reader.compact(queue, old, start, END, 1 << 62, 1 << 20, now, 1 << 40, 0, new, bytearray(1))
        assert found[0] == END
    finally:
        os.close(new)
        reader.close()
        os.close(root)
    path.with_name("made").rename(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a file of each queue. The first one had two passes, so its tombstones have their time."""
    path = tmp_path_factory.mktemp("made") / "node"
    node = node_at(path)
    life = node.life()
    append(life)
    for queue in range(2):
        compact(life, queue, 1000)
    ticket = life.server.retain(7, [END, END])
    life.until(lambda: life.server.counters()["retained"] >= ticket)
    old = os.open(node.folder.compacted / "7" / "0", os.O_RDONLY)
    compact(life, 0, 2000, old, END)
    os.close(old)
    assert life.stop()
    return path


#: where a log would be, if it were wanted
NOWHERE = (0, bytes(16), bytes(16), 1, 1, 1, 2)


@pytest.fixture(autouse=True)
def log_begins_behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the files of the log that have what is below the minimum had gone, unless a test wants them."""
    if "log" in request.fixturenames:
        return
    examine = CompactedCheck.examine

    def examined(check: CompactedCheck, minima: Minima) -> Iterator[Found]:
        return examine(check, {queue: (minimum, minimum) for queue, (minimum, _log) in minima.items()})

    monkeypatch.setattr(CompactedCheck, "examine", examined)


@pytest.fixture
def log() -> None:
    """The log has all that it ever had."""


@dataclass
class Case:
    """A copy of it."""

    node: TopicNode
    content: bytes  #: of the file of queue 0

    @property
    def path(self) -> Path:
        return self.node.folder.compacted / "7" / "0"

    @property
    def whole(self) -> CompactedFile:
        return decode(self.content)

    def look(self, **more: Any) -> list[Found]:
        return checking(self.node, **more).examine()

    @property
    def problem(self) -> str:
        """The one that there is: of the file."""
        found = problems(self.look())
        assert list(found) == [self.path], found
        return found[self.path]

    def repair(self) -> list[str]:
        return checking(self.node).repair()

    def has_nothing(self) -> None:
        """A repair has given up what was in it: an empty one lies in its place."""
        assert problems(self.look()) == {}
        file = decode(self.path.read_bytes())
        assert (file.end, records(file), file.keys) == (END, [], [])
        assert self.repair() == []

    def flip(self, at: int) -> None:
        content = bytearray(self.path.read_bytes())
        content[at] ^= 4
        self.path.write_bytes(content)

    @property
    def entries(self) -> list[quarantine.Entry]:
        return quarantine.entries(self.node.folder.path)


@pytest.fixture
def case(made: Path, tmp_path: Path) -> Case:
    shutil.copytree(made, tmp_path / "node")
    node = node_at(tmp_path / "node")
    return Case(node, (node.folder.compacted / "7" / "0").read_bytes())


def records(file: CompactedFile) -> list[bytes]:
    return [each for block in file.blocks for each in block]


def offset_of(data: bytes) -> int:
    return int.from_bytes(data[20:28], "big")


def test_sound_files_are_listed_with_their_bytes_and_messages(case: Case) -> None:
    found = {item.path: item for item in case.look()}
    assert problems(list(found.values())) == {}
    item = found[case.path]
    count = len(records(case.whole))
    assert (item.kind, item.bytes, item.records, item.note) == ("compacted", len(case.content), count, "")
    assert count == KEYS  # no key went
    assert len(case.whole.blocks) > 2
    assert set(case.whole.since.values()) == {2000}
    assert case.path.with_name("1") in found
    assert case.repair() == []


def test_the_format_here_is_that_of_the_core(case: Case) -> None:
    assert replace(case.whole, keys=case.whole.keys).encode() == case.content


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_damaged_block_costs_itself(case: Case, number: int) -> None:
    whole = case.whole
    number %= len(whole.blocks)
    at = places_of(case.content)[f"block{number}"]
    first = offset_of(whole.blocks[number][0])
    behind = offset_of(whole.blocks[number + 1][0]) if number + 1 < len(whole.blocks) else END
    lost = len(whole.blocks[number])
    case.flip(at + 300)
    problem = case.problem
    assert problem.startswith("1 damaged place: ")
    assert f"at byte {at}: a block does not have its checksum; messages of offsets {first} to {behind - 1} " in problem
    assert f"{lost} of {len(records(whole))} messages are lost" in problem
    damaged = case.path.read_bytes()
    (done,) = case.repair()
    assert done.startswith(f"{case.path}: 1 damaged place: at byte {at}")
    assert f"{lost} of {len(records(whole))} messages are lost" in done
    (entry,) = case.entries
    assert (entry.file, entry.messages, entry.moved) == ("compacted/7/0", lost, "compacted-7-0")
    assert (case.node.folder.path / "quarantine" / "compacted-7-0").read_bytes() == damaged
    after = decode(case.path.read_bytes())
    assert records(after) == [each for n, block in enumerate(whole.blocks) if n != number for each in block]
    assert (after.end, after.queue, after.made > whole.made) == (END, 0, True)
    left = set(map(offset_of, records(after)))
    assert after.since == {offset: since for offset, since in whole.since.items() if offset in left}
    assert after.keys == [key for key in whole.keys if key[1] in left]
    assert case.path.stat().st_mode & 0o777 == access.file_mode()
    assert problems(case.look()) == {}
    assert case.repair() == []


def test_each_damaged_block_is_named(case: Case) -> None:
    starts = places_of(case.content)
    for name in ("block0", "block2"):
        case.flip(starts[name] + 50)
    problem = case.problem
    assert problem.startswith("2 damaged places: ")
    assert all(f"at byte {starts[name]}: " in problem for name in ("block0", "block2"))
    case.repair()
    left = records(decode(case.path.read_bytes()))
    assert left == [each for n, block in enumerate(case.whole.blocks) if n not in (0, 2) for each in block]


def test_what_the_log_has_too_is_not_given_up(case: Case) -> None:
    """A pass was killed before the minimum rose: a repaired file ends there, so that it never rises over what is
    damaged.
    """
    whole = case.whole
    last = len(whole.blocks) - 1
    minimum = offset_of(whole.blocks[last][0])
    case.flip(places_of(case.content)[f"block{last}"] + 100)
    check = CompactedCheck(
        case.node.folder, node_bytes(case.node.superblock.node_id), {7: (b"flights", 2)}, running=False
    )
    (problem,) = problems(list(check.examine({(7, 0): (minimum, minimum), (7, 1): (minimum, minimum)}))).values()
    assert "1 damaged place" in problem
    assert "no message is lost" in problem
    assert check.repair(NOWHERE, 0, print)
    left = decode(case.path.read_bytes())
    assert left.end == minimum
    assert records(left) == [each for block in whole.blocks[:last] for each in block]


def test_a_damaged_page_of_keys_costs_nothing(case: Case) -> None:
    at = places_of(case.content)["keys"]
    case.flip(at + 100)
    problem = case.problem
    assert f"at byte {at}: a page of keys does not have its checksum" in problem
    assert "no message is lost" in problem
    case.repair()
    after = decode(case.path.read_bytes())
    assert (records(after), after.keys, after.since) == (records(case.whole), case.whole.keys, case.whole.since)
    assert [entry.messages for entry in case.entries] == [0]
    assert problems(case.look()) == {}


def another_queues(case: Case) -> None:
    shutil.copy(case.path.with_name("1"), case.path)


def another_nodes(case: Case) -> None:
    case.path.write_bytes(replace(case.whole, node=b"another node's..").encode())


def another_topics(case: Case) -> None:
    case.path.write_bytes(replace(case.whole, topic=9).encode())


UNUSABLE: dict[str, tuple[Callable[[Case], None], str]] = {
    "head": (lambda case: case.flip(50), "its head does not have its checksum"),
    "magic": (lambda case: case.flip(3), "it is no file of newest records"),
    "places": (lambda case: case.flip(places_of(case.content)["places"] + 5), "its head does not have its checksum"),
    "tombstones": (lambda case: case.flip(len(case.content) - 1), "its head does not have its checksum"),
    "cut": (lambda case: os.truncate(case.path, len(case.content) - 1), "it was cut"),
    "cut in its head": (lambda case: os.truncate(case.path, 20), "it is cut"),
    "empty": (lambda case: os.truncate(case.path, 0), "it is cut"),
    "another queue's": (another_queues, "it is another queue's"),
    "another topic's": (another_topics, "it is another queue's"),
    "another node's": (another_nodes, "it is another node's"),
}


@pytest.mark.parametrize("how", UNUSABLE)
def test_of_a_file_without_its_head_nothing_can_be_kept(case: Case, how: str) -> None:
    hurt, reason = UNUSABLE[how]
    hurt(case)
    damaged = case.path.read_bytes()
    problem = case.problem
    assert problem.startswith(f"{reason}; ")
    assert "messages of offsets 0 to 299 that were kept for readers are gone" in problem
    moved, missing = case.repair()
    assert moved.startswith(f"{case.path}: {reason}; moved to ")
    assert missing.startswith(f"{case.path}: made again, with 0 messages; messages of offsets 0 to 299 ")
    assert (case.node.folder.path / "quarantine" / "compacted-7-0").read_bytes() == damaged
    assert [(entry.moved, entry.messages) for entry in case.entries] == [("compacted-7-0", None), ("", None)]
    case.has_nothing()


def test_a_missing_file_is_named_until_it_is_written_down(case: Case) -> None:
    case.path.unlink()
    assert case.problem.startswith("is missing; messages of offsets 0 to 299 that were kept for readers are gone")
    (done,) = case.repair()
    assert "written down in quarantine/report.jsonl; readers go on at offset 300" in done
    case.has_nothing()
    shutil.rmtree(case.path.parent)
    assert len(case.repair()) == 2
    case.has_nothing()
    life = case.node.life()
    sizes = (case.node.log_file_bytes, case.node.ring_bytes, case.node.consume_queue_entries)
    root = os.open(case.node.folder.path, os.O_RDONLY)
    of_log = case.node.index_slots, case.node.index_entries, node_bytes(case.node.superblock.node_id)
    reader = _core.TopicReader(root, 7, b"flights", *sizes, *of_log)
    reader.begin(life.ring, life.rows)
    try:
        for queue in range(2):
            bounds_now = reader.bounds(queue)
            assert bounds_now is not None
            assert bounds_now[:2] == (END, COUNT)
            answer = reader.read(queue, END, 1 << 62, 10_000, 1 << 30, ())
            assert answer is not None
            assert answer[-1] is None  # no damage
            assert [record.offset for record in answer[4]] == list(range(END, COUNT))
    finally:
        reader.close()
        os.close(root)
    assert life.stop()


def test_a_queue_whose_minimum_is_0_needs_no_file(case: Case) -> None:
    found = case.look(compacted=(9,))
    assert problems(found) == {}
    assert not any(item.path.name == "0" for item in found)


@pytest.mark.parametrize("whole", [False, True], ids=["queue", "all"])
def test_what_is_no_file_is_none(case: Case, whole: bool) -> None:
    """A folder where the file should be, a file where the folder should be."""
    if whole:
        shutil.rmtree(case.node.folder.compacted)
        case.node.folder.compacted.write_bytes(b"")
    else:
        case.path.unlink()
        case.path.mkdir()
    found = case.look()
    assert problems(found)[case.path].startswith("is missing; ")
    assert whole or "foreign" in [item.kind for item in found if item.path == case.path]


def test_an_older_copy_is_named(case: Case) -> None:
    whole = case.whole
    keep = [block for block in whole.blocks if offset_of(block[-1]) < 200]
    offsets = {offset_of(each) for block in keep for each in block}
    older = replace(
        whole,
        end=200,
        blocks=keep,
        keys=[key for key in whole.keys if key[1] in offsets],
        since={offset: since for offset, since in whole.since.items() if offset in offsets},
    )
    case.path.write_bytes(older.encode())
    assert case.problem.startswith("ends at offset 200: it is an older copy; messages of offsets 200 to 299 ")
    moved, noted = case.repair()  # what it has may have been replaced, or taken away, since
    assert "an older copy, which ends at offset 200" in moved
    assert "written down" in noted
    assert (case.node.folder.path / "quarantine" / "compacted-7-0").read_bytes() == older.encode()
    case.has_nothing()


def test_bounds_in_the_log_tell_the_minimum_without_a_checkpoint(case: Case) -> None:
    life = case.node.life()
    (body,) = bounds.encode(0, [bounds.Bound(7, 0, END, COUNT)])
    end = life.server.append_system(BOUNDS_TOPIC.encode(), body)
    life.until(lambda: life.server.counters()["dispatched"] >= end)
    assert life.stop()
    case.node.folder.checkpoint.unlink()
    for queue in "01":
        case.path.with_name(queue).unlink()
    found = problems(case.look())
    assert found[case.path].startswith("is missing; messages of offsets 0 to 299 ")
    assert case.path.with_name("1") not in found  # nothing tells
    case.repair()


def hidden(case: Case) -> None:
    case.path.unlink()


def older(case: Case) -> None:
    keep = [block for block in case.whole.blocks if offset_of(block[-1]) < 200]
    offsets = {offset_of(each) for block in keep for each in block}
    keys = [key for key in case.whole.keys if key[1] in offsets]
    since = {offset: since for offset, since in case.whole.since.items() if offset in offsets}
    case.path.write_bytes(replace(case.whole, end=200, blocks=keep, keys=keys, since=since).encode())


def two_blocks(case: Case) -> None:
    for block in ("block0", "block1"):
        case.flip(places_of(case.content)[block] + 100)


@pytest.mark.parametrize("how", [*UNUSABLE, "missing", "an older copy", "damaged blocks"])
def test_what_the_log_has_is_taken_from_it(case: Case, log: None, how: str) -> None:
    """Whatever becomes of the file: of each key the newest message is there again, and nothing is given up."""
    hurt = {"missing": hidden, "an older copy": older, "damaged blocks": two_blocks}.get(how) or UNUSABLE[how][0]
    hurt(case)
    assert "messages of offsets" not in case.problem
    done = case.repair()
    assert any("made again" in line and "from what the log has" in line for line in done), done
    assert problems(case.look()) == {}
    made = decode(case.path.read_bytes())
    assert (made.end, records(made), made.keys) == (END, records(case.whole), case.whole.keys)
    assert not any(entry.messages is None and not entry.moved for entry in case.entries), "nothing is gone"
    assert checking(case.node).repair() == []


def test_what_somebody_appended_is_cut_off(case: Case) -> None:
    with case.path.open("ab") as file:
        file.write(b"x")
    assert "somebody appended 1 byte to it, which nothing reads" in case.problem
    (done,) = case.repair()
    assert done == f"{case.path}: 1 byte that somebody had appended, cut off"
    assert case.path.read_bytes() == case.content


def test_what_does_not_belong_there_is_noted(case: Case) -> None:
    folder = case.node.folder.compacted
    (folder / "7" / "0.new").write_bytes(b"half")
    (folder / "7" / "2").write_bytes(b"of no queue")
    (folder / "7" / "00").write_bytes(b"of no queue")
    (folder / "9").mkdir()
    (folder / "8").mkdir()
    (folder / "x").mkdir()
    found = case.look()
    assert problems(found) == {}
    kinds = {item.path: (item.kind, item.note) for item in found}
    assert kinds[folder / "7" / "0.new"][0] == "unfinished"
    for name in ("7/2", "7/00", "x"):
        assert kinds[folder / name] == ("foreign", "does not belong here; it is left alone")
    for name in ("8", "9"):
        assert kinds[folder / name][0] == "foreign"
        assert "the next start removes it" in kinds[folder / name][1]
    beside = {item.path for item in case.look(running=True)}
    assert not beside & {folder / "7" / "0.new", folder / "8", folder / "9"}  # of what happens just now


# ---- what no disk does ----------------------------------------------------------------------------------------------


def crafted(case: Case, **more: Any) -> CompactedFile:
    """Three blocks of two records each, one of them a tombstone."""
    blocks = [
        [record(0, offset, f"k{offset}", b"" if offset == 40 else b"%d" % offset) for offset in pair]
        for pair in ((0, 10), (20, 30), (40, 50))
    ]
    node = node_bytes(case.node.superblock.node_id)
    keys = [(topic_tables.key_hash("flights", f"k{offset}"), offset) for offset in range(0, 60, 10)]
    return replace(CompactedFile(node, 7, 0, END, blocks, {40: 5}, keys), **more)


def put(case: Case, file: CompactedFile, block: int, place: int, content: bytes) -> None:
    """Another record in the file."""
    file.blocks[block][place] = content
    case.path.write_bytes(file.encode())


def test_a_file_made_by_the_tables_is_sound(case: Case) -> None:
    case.path.write_bytes(crafted(case).encode())
    assert problems(case.look()) == {}


RECORDS: dict[str, tuple[bytes, str]] = {
    "body": (record(0, 30, "k30", b"thirty").replace(b"thirty", b"thirtY"), "a record is damaged in itself"),
    "topic": (record(0, 30, "k30", b"30", topic="flightz"), "a record is another topic's"),
    "id": (record(0, 30, "k30", b"30", flag=8), "a record is another topic's"),
    "position": (record(0, 30, "k30", b"30", physical_offset=20_000), "a record is in no order"),
    "time": (record(0, 30, "k30", b"30", store_timestamp=1), "a record is in no order"),
}


@pytest.mark.parametrize("how", RECORDS)
def test_a_record_that_is_none_costs_itself(case: Case, how: str) -> None:
    content, reason = RECORDS[how]
    file = crafted(case)
    whole = records(file)
    put(case, file, 1, 1, content)
    at = places_of(case.path.read_bytes())["block1"] + 8 + len(file.blocks[1][0])
    assert f"1 damaged place: at byte {at}: {reason}; messages of offsets 30 to 30 are lost; 1 of 6 " in case.problem
    case.repair()
    assert records(decode(case.path.read_bytes())) == whole[:3] + whole[4:]
    assert problems(case.look()) == {}


def test_behind_a_record_that_is_none_its_block_is_lost(case: Case) -> None:
    file = crafted(case)
    whole = records(file)
    put(case, file, 0, 1, record(1, 10, "k10", b"of another queue"))
    assert "a record is none of this queue's; messages of offsets 1 to 19 are lost; 1 of 6 messages" in case.problem
    case.repair()
    assert records(decode(case.path.read_bytes())) == whole[:1] + whole[2:]


def changed(case: Case, **more: Any) -> CompactedFile:
    file = crafted(case)
    return replace(file, **{name: make(file) for name, make in more.items()})


TABLES: dict[str, tuple[dict[str, Callable[[CompactedFile], object]], str]] = {
    "count": ({"records_n": lambda _file: 7}, "its head has another number of records"),
    "keys": ({"keys": lambda file: file.keys[1:]}, "its keys are not those of its records"),
    "no tombstone": ({"since": lambda _file: {}}, "its tombstones are not those of its records"),
    "another tombstone": ({"since": lambda _file: {41: 5}}, "its tombstones are not those of its records"),
    "one tombstone more": ({"since": lambda _file: {40: 5, 50: 5}}, "its tombstones are not those of its records"),
    "place": ({"places": lambda _file: {1: (20, 15_000, 1_700_000_000_020)}}, "a block begins with another record"),
    "time": ({"places": lambda _file: {1: (20, 20_000, 1_700_000_000_015)}}, "a block begins with another record"),
}


@pytest.mark.parametrize("how", TABLES)
def test_tables_that_say_other_than_the_records_are_made_again(case: Case, how: str) -> None:
    changes, reason = TABLES[how]
    file = changed(case, **changes)
    case.path.write_bytes(file.encode())
    problem = case.problem
    assert f": {reason}; " in problem
    case.repair()
    after = decode(case.path.read_bytes())
    assert records(after) == records(file)
    assert set(after.since) == {40}
    assert len(after.keys) == 6
    assert problems(case.look()) == {}


# ---- repair ---------------------------------------------------------------------------------------------------------


def test_the_log_is_repaired_beside_it(case: Case) -> None:
    """Units are made again, and the file is, too; each alone, as well."""
    unit = next(iter((case.node.folder.queues / "flights" / "1").iterdir()))
    content = bytearray(unit.read_bytes())
    content[(END + 5) * 20 + 3] ^= 1
    unit.write_bytes(content)
    case.flip(places_of(case.content)["block1"] + 50)
    assert set(problems(case.look())) == {unit, case.path}
    kept, derived = case.repair()
    assert kept.startswith(f"{case.path}: ")
    assert "were made again from the log" in derived
    assert problems(case.look()) == {}
    case.flip(places_of(case.path.read_bytes())["block1"] + 50)
    (kept,) = case.repair()
    assert kept.startswith(f"{case.path}: ")


def test_it_is_repaired_whatever_the_log_is(case: Case) -> None:
    log = min(case.node.folder.log.iterdir())
    content = bytearray(log.read_bytes())
    content[300] ^= 1
    log.write_bytes(content)
    case.flip(places_of(case.content)["block1"] + 50)
    (kept,) = case.repair()
    assert kept.startswith(f"{case.path}: ")
    found = problems(case.look())
    assert log in found
    assert case.path not in found


@pytest.mark.parametrize("how", ["link", "rename"])
def test_a_repair_that_was_ended_is_done_again(case: Case, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file stays at its place until another one gets it, and comes into the quarantine once."""
    case.flip(places_of(case.content)["block1"] + 50)
    damaged = case.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(data_files, how, ended)
        if how == "link":
            patch.setattr(data_files, "rename", ended)
        with pytest.raises((KeyboardInterrupt, StoreError)):
            case.repair()
    assert case.path.read_bytes() == damaged
    case.repair()
    assert problems(case.look()) == {}
    aside = [path.name for path in (case.node.folder.path / "quarantine").iterdir()]
    assert sorted(aside) == ["compacted-7-0", "report.jsonl"]


def ended(*_given: object, **_named: object) -> None:
    raise KeyboardInterrupt


def test_where_there_are_no_links_it_is_moved(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.flip(places_of(case.content)["block1"] + 50)
    damaged = case.path.read_bytes()

    def refused(*_given: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(data_files, "link", refused)
    case.repair()
    assert (case.node.folder.path / "quarantine" / "compacted-7-0").read_bytes() == damaged
    assert problems(case.look()) == {}


def test_a_file_that_changes_meanwhile_stays(case: Case) -> None:
    """Somebody else writes there, though nobody should."""
    case.flip(places_of(case.content)["block1"] + 50)
    name = {7: (b"flights", 2)}
    found = CompactedCheck(case.node.folder, node_bytes(case.node.superblock.node_id), name, running=False)
    list(found.examine({}))
    case.path.write_bytes(case.content)
    with pytest.raises(StoreError, match="changed while it was repaired"):
        found.repair(NOWHERE, 0, print)
    assert case.path.read_bytes() == case.content
    assert not case.path.with_name("0.new").exists()
