"""A matrix of damage and absence: each kind of file of the topics' folder × what can happen to it.

Goal: `check` reports it, a start serves nothing wrong (or refuses, where the log itself is not whole), readers get
each message as it was appended or are told that it is damaged, and what is derived is made again by a repair: then
nothing that the log has is lost. Method: one directory, made by a worker in this process, with several files of each
kind and a copy of an earlier moment; then a copy of it for each case, damaged by hand, checked, served and read.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import google_crc32c
import pytest

from warren.engine import _core
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.config import Settings
from warren.engine.errors import CorruptRecord, StoreError
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.kernel.protocol import TOPIC_RING
from warren.engine.topics.check import TopicsCheck
from warren.engine.topics.found import Found
from warren.engine.topics.service import boot_bytes
from warren.workers.faces.topic_reading import TopicReading

from support import topic_folder
from support.long import damages
from support.topic_probe import Life, Topic, TopicNode

pytestmark = pytest.mark.crash

TOPICS = [Topic(7, "flights", 2), Topic(9, "other", 1)]
QUEUES = [(7, 0), (7, 1), (9, 0)]
PAGE = 4096


def body(topic: int, queue: int, offset: int) -> bytes:
    return b"%d/%d/%d " % (topic, queue, offset) + bytes([offset % 251]) * 900


def key_of(topic: int, queue: int, offset: int) -> str:
    return f"k{topic}.{queue}.{offset}" if offset % 4 == 0 else "often"


def node_at(path: Path) -> TopicNode:
    return TopicNode(path, topics=TOPICS, consume_queue_entries=400, index_slots=50, index_entries=500)


def foreign_at(path: Path) -> TopicNode:
    node = node_at(path)
    node.superblock.set("node_id", 12345)
    return node


def settings(node: TopicNode) -> Settings:
    return Settings(
        log_file_bytes=node.log_file_bytes,
        consume_queue_entries=node.consume_queue_entries,
        index_slots=node.index_slots,
        index_entries=node.index_entries,
    )


def checking(node: TopicNode, running: bool = False) -> TopicsCheck:
    topics = [(topic.id, topic.name.encode(), topic.queues) for topic in TOPICS]
    return TopicsCheck(node.folder, node.superblock.node_id, settings(node), topics, running=running)


def another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if power had been lost."""
    for module in ("warren.engine.topics.check", "support.topic_probe"):
        monkeypatch.setattr(f"{module}.boot_bytes", lambda _folder: b"another boot id.")


def problems(found: list[Found]) -> dict[Path, str]:
    return {item.path: item.problem for item in found if item.problem}


@dataclass
class Made:
    """A directory, and what it was at an earlier moment."""

    path: Path
    older: Path
    foreign: Path = Path()
    counts: dict[tuple[int, int], int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))


def append(made: Made, life: Life, n: int) -> None:
    appender = life.node.appender(life)
    for _ in range(n):
        for topic, queue in QUEUES:
            offset = made.counts[topic, queue]
            made.counts[topic, queue] += 1
            told = {"KEYS": key_of(topic, queue, offset), "TAGS": f"t{offset % 3}"}
            life.until(lambda: appender.get("tail") - appender.get("head") < 40)
            last = appender.append(topic, queue, body(topic, queue, offset), properties=told)
    life.until(lambda: appender.get("synced") > last)
    life.until(lambda: all(life.maximum(*place) == made.counts[place] for place in QUEUES))


@pytest.fixture(scope="module", params=["stopped", "killed"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = tmp_path_factory.mktemp("made")
    made = Made(place / "node", place / "older", place / "foreign")
    other = foreign_at(made.foreign).life()
    append(Made(made.foreign, made.older), other, 1300)
    assert other.stop()
    life = node_at(made.path).life()
    append(made, life, 300)
    assert life.stop()
    shutil.copytree(made.path, made.older)
    life = node_at(made.path).life()
    append(made, life, 900)
    if request.param == "stopped":
        assert life.stop()
    else:
        life.release()
    node = node_at(made.path)
    assert problems(checking(node).examine()) == {}
    assert len(list(node.folder.log.iterdir())) > 2
    assert len(list((node.folder.queues / "flights" / "0").iterdir())) > 2
    assert len(list(node.folder.index.iterdir())) > 2
    return made


# ---- kinds of files -------------------------------------------------------------------------------------------------


def log(folder: TopicsFolder) -> list[Path]:
    return sorted(path for path in folder.log.iterdir() if any(path.read_bytes()))


def units(folder: TopicsFolder) -> list[Path]:
    return sorted((folder.queues / "flights" / "1").iterdir())


def index(folder: TopicsFolder) -> list[Path]:
    return sorted(folder.index.iterdir())


KINDS: dict[str, Callable[[TopicsFolder], tuple[Path, Path | None]]] = {
    "log-old": lambda folder: (log(folder)[0], log(folder)[1]),
    "log-middle": lambda folder: (log(folder)[1], log(folder)[0]),
    "log-new": lambda folder: (log(folder)[-1], log(folder)[-2]),
    "units-old": lambda folder: (units(folder)[0], units(folder)[1]),
    "units-new": lambda folder: (units(folder)[-1], units(folder)[-2]),
    "index-old": lambda folder: (index(folder)[0], index(folder)[1]),
    "index-new": lambda folder: (index(folder)[-1], index(folder)[-2]),
    "checkpoint": lambda folder: (folder.checkpoint, None),
}
HURTS = ("missing", "empty", "cut", "bit", "head-bit", "zero", "head-zero", "swapped", "older", "foreign")
#: what cannot happen to a file, or is no damage: a start goes on from an older checkpoint
NEVER = {
    "log-old": {"older"},
    "log-middle": {"older", "foreign"},  # another node's may happen to have the same records at the same places
    "units-old": {"older", "foreign"},
    "units-new": {"older", "foreign"},
    "index-old": {"older", "foreign"},
    "index-new": {"older", "foreign"},
    "checkpoint": {"zero", "swapped"},
}
#: what of the key index only `check` sees: slots that do not lead to their newest key, keys that became other ones
UNSEEN = ("bit", "zero")
CASES = damages(KINDS, HURTS, NEVER)


def hurt(made: Made, path: Path, other: Path | None, how: str) -> None:
    content = bytearray(path.read_bytes())
    used = len(content.rstrip(b"\0"))
    middle = used // 2
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(content[:middle])
    elif how in ("bit", "head-bit"):
        content[middle if how == "bit" else 5] ^= 16
        path.write_bytes(content)
    elif how in ("zero", "head-zero"):
        at = middle // PAGE * PAGE if how == "zero" else 0
        n = min(PAGE, len(content) - at)
        path.write_bytes(content[:at] + bytes(n) + content[at + n :])
    elif how == "swapped":
        assert other is not None
        first, second = path.read_bytes(), other.read_bytes()
        path.write_bytes(second)
        other.write_bytes(first)
    elif how == "older":
        old = log(TopicsFolder.of(made.older))[-1] if path.name.isdigit() else TopicsFolder.of(made.older).checkpoint
        shutil.copy(old, path.parent / old.name)
    elif how == "foreign":
        strange = TopicsFolder.of(made.foreign)
        shutil.copy(strange.log / path.name if path.name.isdigit() else strange.checkpoint, path)


# ---- what readers get -----------------------------------------------------------------------------------------------


class Reader:
    """Reads a topic of a worker in this process, as clients do."""

    def __init__(self, life: Life) -> None:
        node = life.node
        self.path = node.folder.path
        self.root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self.log_bytes, self.entries = node.log_file_bytes, node.consume_queue_entries
        self.slots, self.index_entries = node.index_slots, node.index_entries
        self.ring = bytearray(TOPIC_RING.size + (1 << 16))
        self.rows = life.rows

    def reading(self, topic: Topic) -> tuple[topic_folder.Place, TopicReading]:
        place = topic_folder.Place(self)  # type: ignore[arg-type]  # all that it looks at
        declared = TopicDeclaration(topic.id, topic.name, topic.queues)
        of = SimpleNamespace(topic=declared, topics={topic.id: declared}, place=place, path=self.path)
        return place, topic_folder.TopicFolder.reading(of)  # type: ignore[arg-type]

    def close(self) -> None:
        os.close(self.root)


def all_of(reading: TopicReading, queue: int) -> tuple[dict[int, bytes], int]:
    """(every message of a queue, damaged parts): what is not there lies in one of those."""
    found: dict[int, bytes] = {}
    at = damaged = 0
    _first, end = reading.offsets(queue)
    while at < end:
        read = reading.read(queue, at, 500, 1 << 24, damage="skip")
        damaged += len(read.damaged)
        found |= {record.offset: record.body for record in read.records}
        assert read.next_offset > at, read
        assert read.damaged or all(offset in found for offset in range(at, read.next_offset)), "nothing is hidden"
        at = read.next_offset
    return found, damaged


def serve(node: TopicNode, counts: dict[tuple[int, int], int]) -> tuple[int, int, int, str]:
    """Start and read all: (messages lost, damaged parts that readers were told of, keys not found and not told, what
    the start said of derived files).
    """
    life = node.life()
    reader = Reader(life)
    lost = told = keys = 0
    try:
        for topic in TOPICS:
            place, reading = reader.reading(topic)
            for queue in range(topic.queues):
                found, damaged = all_of(reading, queue)
                told += damaged
                for offset, content in found.items():
                    assert content == body(topic.id, queue, offset), "nothing wrong is delivered"
                lost += counts[topic.id, queue] - len(found)
                for offset in range(0, counts[topic.id, queue], 4):
                    try:
                        records = reading.find(key_of(topic.id, queue, offset))
                    except CorruptRecord:
                        told += 1
                        continue
                    assert all(record.body == body(topic.id, queue, offset) for record in records)
                    keys += not records
            place.forget()
    finally:
        reader.close()
        assert life.stop()
    return lost, told, keys, life.recovered.absent


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_damage_is_reported_and_what_is_derived_is_made_again(made: Made, tmp_path: Path, kind: str, how: str) -> None:
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    node = node_at(path)
    target, other = KINDS[kind](node.folder)
    hurt(made, target, other, how)
    found = problems(checking(node).examine())
    if (kind, how) == ("checkpoint", "older"):
        assert found == {}, "a start walks the log from there"
    else:
        assert any(path.is_relative_to(target.parent) for path in found), f"check says so: {found}"
        assert target in found or how in ("missing", "older", "swapped", "zero"), "and it names the file"

    repaired = tmp_path / "repaired"
    shutil.copytree(path, repaired)
    again = checking(node_at(repaired))
    done = again.repair()
    assert bool(done) == (bool(found) and not kind.startswith("log"))
    if done:
        assert problems(again.examine()) == {}
        assert serve(node_at(repaired), made.counts) == (0, 0, 0, "")

    content = {path: path.read_bytes() for path in node.folder.log.iterdir()}
    refused = any("topics do not serve" in problem for problem in found.values())
    assert not (refused and any("topics go on" in problem for problem in found.values())), found
    assert all(problem.count("accept-loss") <= 1 for problem in found.values()), "advice stands once"
    try:
        lost, told, keys, absent = serve(node, made.counts)
    except (CorruptRecord, StoreError):
        assert kind.startswith("log"), "only a log that is not whole is not served"
        assert refused, f"and check says so: {found}"
        assert {path: path.read_bytes() for path in node.folder.log.iterdir()} == content, "and it is left as it is"
        return
    assert not refused, f"topics serve: {found}"
    assert not (kind in ("log-old", "log-new") and how == "foreign"), "it is not gone on with"
    if kind.startswith("log"):
        # One bit may lie in a commit record, or in a field that no checksum covers: that only `check` sees.
        assert told or how == "bit", "who reads what was there is told"
    else:
        assert not lost or told, "and here, too"
        assert not keys or (kind.startswith("index") and how in UNSEEN), "what is not found is told"
        assert not absent or str(target.parent) in absent
        if kind in ("units-old", "units-new", "index-old") and how in ("missing", "empty", "cut"):
            assert str(target) in absent, "the start says so"
        if kind == "index-new" and how in ("missing", "empty", "cut"):
            assert (told, absent) == (0, ""), "the newest one is made again at once"
    if kind == "checkpoint":
        assert (lost, told, keys, absent) == (0, 0, 0, "")


def test_damage_beside_a_file_that_stops_topics_does_not_say_that_they_go_on(made: Made, tmp_path: Path) -> None:
    """Whichever of the two comes first in the log."""
    for case, (cut, damaged) in enumerate(((0, 1), (1, 0))):
        path = tmp_path / str(case)
        shutil.copytree(made.path, path)
        node = node_at(path)
        files = log(node.folder)[:2]
        hurt(made, files[damaged], None, "zero")
        alone = problems(checking(node).examine())[files[damaged]]
        assert "topics go on" in alone
        hurt(made, files[cut], None, "empty")
        found = problems(checking(node).examine())
        assert all("topics do not serve" in found[file] and "topics go on" not in found[file] for file in files), found
        with pytest.raises(CorruptRecord, match="the file was cut"):
            node.life()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "checkpoint"])
def test_what_somebody_appended_to_a_file_is_said_and_cut_off(made: Made, tmp_path: Path, kind: str) -> None:
    """Also what could be read as if it belonged there: the file that follows."""
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    node = node_at(path)
    target, other = KINDS[kind](node.folder)
    assert other is not None
    size = target.stat().st_size
    with target.open("ab") as file:
        file.write(other.read_bytes() if kind == "log-old" else b"surplus")
    found = problems(checking(node).examine())
    assert list(found) == [target]
    assert "somebody appended" in found[target], found

    repaired = tmp_path / "repaired"
    shutil.copytree(path, repaired)
    again = checking(node_at(repaired))
    assert again.repair() == [f"{repaired / target.relative_to(path)}: {found_more(target, size)}"]
    assert problems(again.examine()) == {}
    assert (repaired / target.relative_to(path)).stat().st_size == size

    counts = dict(made.counts)
    life = node.life()
    append(Made(path, made.older, counts=counts), life, 30)
    assert life.stop()
    warned = [line for line in node.said if "somebody appended" in line]
    assert len(warned) == kind.startswith("log"), node.said
    assert all(str(target) in line for line in warned)
    assert serve(node_at(path), counts) == (0, 0, 0, "")
    assert target.stat().st_size > size, "a start cuts nothing that it did not write"
    assert list(problems(checking(node).examine())) == [target]


def found_more(target: Path, size: int) -> str:
    return f"{target.stat().st_size - size:,} bytes that somebody had appended, cut off"


def put(path: Path, how: str) -> str:
    """Something that is no file lies there now; what that is."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if how == "folder":
        path.mkdir()
        (path / "of somebody").write_text("kept")
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "file":
        path.write_text("of somebody")
    else:
        path.symlink_to(path)
    return {"folder": "a folder", "pipe": "a pipe", "loop": "a symbolic link", "file": "a file"}[how]


FOREIGN = [(kind, how) for kind in KINDS for how in ("folder", "pipe", "loop")]


@pytest.mark.parametrize(("kind", "how"), [*FOREIGN, ("queue", "file"), ("topic", "file"), ("index", "file")])
def test_what_is_no_file_is_named_and_set_aside(made: Made, tmp_path: Path, kind: str, how: str) -> None:
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    node = node_at(path)
    folders = {"queue": node.folder.queues / "flights" / "1", "topic": node.folder.queues / "flights"}
    target = {**folders, "index": node.folder.index}.get(kind) or KINDS[kind](node.folder)[0]
    what = put(target, how)
    before = node.folder.checkpoint.lstat().st_ino
    found = problems(checking(node).examine())
    assert target in found
    assert f"is {what}: " in found[target]
    assert "cut" not in found[target]
    if kind.startswith("log"):
        assert checking(node).repair() == []
        with pytest.raises(CorruptRecord, match=f"{target} at byte 0: .*{what}: move it away"):
            node.life()
        assert node.folder.checkpoint.lstat().st_ino == before, "nothing was changed"
        return

    shutil.copytree(made.path, tmp_path / "repaired")
    repaired = node_at(tmp_path / "repaired")
    again = repaired.path / target.relative_to(path)
    aside = again.with_name(f"{again.name}.damaged")
    put(again, how)
    assert checking(repaired).repair()
    assert os.path.lexists(aside), "it is kept"
    after = checking(repaired).examine()
    assert problems(after) == {}
    assert how == "file" or any(item.path == aside for item in after if item.note)
    assert serve(node_at(repaired.path), made.counts) == (0, 0, 0, "")

    error: CorruptRecord | None = None
    lost = told = 0
    try:
        lost, told, _keys, _absent = serve(node, made.counts)
    except CorruptRecord as found_so:
        error = found_so
    assert not lost or told
    assert error is None or (error.path == target and "move it away" in str(error))
    assert kind != "checkpoint" or (error, told) == (None, 0)


def lose_power(made: Made, node: TopicNode) -> None:
    """What was not synced at the checkpoint of the earlier moment becomes anything that a disk can make of it."""
    before = TopicsFolder.of(made.older)
    shutil.copy(before.checkpoint, node.folder.checkpoint)
    known = {path.relative_to(made.older) for path in made.older.rglob("*")}
    new = [path for path in [*units(node.folder), *index(node.folder)] if path.relative_to(node.path) not in known]
    for number, path in enumerate(reversed(new)):
        path.write_bytes(bytes([255]) * path.stat().st_size if number % 2 else b"")
    newest = index(before)[-1]
    old, now = newest.read_bytes(), (node.folder.index / newest.name).read_bytes()
    slots = 40, 40 + 4 * node.index_slots
    assert old[: slots[1]] != now[: slots[1]]
    (node.folder.index / newest.name).write_bytes(old[: slots[0]] + now[slots[0] : slots[1]] + now[slots[1] :])
    assert len(new) > 4


def test_what_a_loss_of_power_makes_of_unsynced_files_is_no_damage(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the checkpoint a start makes all again, and `check` says nothing of it; what was synced is judged."""
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    node = node_at(path)
    lose_power(made, node)
    assert problems(checking(node).examine()), "the machine was not started since: all that was stored is there"
    another_boot(monkeypatch)
    assert problems(checking(node).examine()) == {}
    older = index(TopicsFolder.of(made.older))
    for name, at in (
        (older[0].name, 40 + 4 * node.index_slots + 20 * 3),
        (older[-1].name, 40 + 4 * node.index_slots + 20),
    ):
        damaged = node.folder.index / name
        content = damaged.read_bytes()
        damaged.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert damaged in problems(checking(node).examine())
        damaged.write_bytes(content)
    unit = units(TopicsFolder.of(made.older))[0]
    lost = node.folder.queues / "flights" / "1" / unit.name
    content = lost.read_bytes()
    lost.write_bytes(b"")
    assert lost in problems(checking(node).examine()), "units that were synced are missing"
    lost.write_bytes(content)
    assert serve(node, made.counts) == (0, 0, 0, "")
    assert problems(checking(node).examine()) == {}


def test_a_newest_key_file_of_zeros_is_a_note_and_made_again(made: Made, tmp_path: Path) -> None:
    """What older versions left behind a power failure: they gave the file its name before its link was synced."""
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    node = node_at(path)
    newest = index(node.folder)[-1]
    empty = newest.with_name(f"{int(newest.name) + 1:017d}")
    with open(empty, "wb") as file:
        file.truncate(newest.stat().st_size)
    found = checking(node).examine()
    assert problems(found) == {}
    assert [item.note for item in found if item.path == empty and "lost with the power" in item.note]
    with open(empty, "r+b") as file:
        os.pwrite(file.fileno(), b"\1", 40 + 4 * node.index_slots + 5)
    assert empty in problems(checking(node).examine()), "it holds something, and that is damaged"
    os.truncate(empty, 0)
    os.truncate(empty, newest.stat().st_size)
    assert serve(node, made.counts) == (0, 0, 0, "")
    assert problems(checking(node).examine()) == {}
    assert not empty.exists() or empty.read_bytes()[40 + 4 * node.index_slots :].strip(b"\0")


def test_files_of_another_mount_are_judged_as_after_a_power_failure(tmp_path: Path) -> None:
    """A file system that was mounted again, on a machine that ran on, has what was synced and no more."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    folder = os.open(tmp_path, os.O_RDONLY)
    again = tmp_path / "again"
    again.mkdir()
    mounted = subprocess.run(["mount", "--bind", str(tmp_path), str(again)], capture_output=True, check=False)
    if mounted.returncode:
        os.close(folder)
        pytest.skip("this container may not mount")
    other = os.open(again, os.O_RDONLY)
    try:
        assert boot_bytes(folder) == boot_bytes(folder)
        if _core.mount_number(folder):
            assert boot_bytes(folder) != boot_bytes(other)
    finally:
        os.close(other)
        os.close(folder)
        subprocess.run(["umount", str(again)], check=True)


def test_a_torn_first_commit_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power was lost while the very first commit was written: the checkpoint says that there was none before."""
    node = node_at(tmp_path / "node")
    assert node.life().stop()
    before = node.folder.checkpoint.read_bytes()
    life = node.life()
    appender = node.appender(life)
    sequence = appender.append(7, 0, b"never confirmed" * 100)
    life.until(lambda: appender.get("synced") > sequence)
    life.release()
    node.folder.checkpoint.write_bytes(before)
    hurt(Made(node.path, node.path), log(node.folder)[0], None, "bit")
    another_boot(monkeypatch)
    found = checking(node).examine()
    assert problems(found) == {}
    assert any("torn tail" in item.note for item in found)
    node.folder.checkpoint.write_bytes(b"damaged")
    assert node.folder.log / f"{0:020d}" in problems(checking(node).examine()), "nobody knows what there was"
    node.folder.checkpoint.write_bytes(before)
    node.appenders.clear()
    life = node.life()
    assert life.recovered.torn
    assert life.stop()


@pytest.mark.parametrize("kind", ["index-old", "index-new"])
def test_files_of_the_index_that_go_while_the_node_runs_are_missed(made: Made, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    node = node_at(path)
    life = node.life()
    reader = Reader(life)
    try:
        place, reading = reader.reading(TOPICS[0])
        keys = [key_of(7, queue, offset) for queue in range(2) for offset in range(0, 1200, 4)]
        assert all(reading.find(key) for key in keys)
        target, _ = KINDS[kind](node.folder)
        target.rename(tmp_path / "elsewhere")
        told = []
        for key in keys:
            try:
                assert reading.find(key), key
            except CorruptRecord as error:
                told.append((error.path, error.found))
        assert set(told) == {(target, "no such file")}
        with pytest.raises(CorruptRecord, match="check --repair"):
            reading.find("no-such-key")
        assert reading.find("no-such-key", damage="skip") == []
        (tmp_path / "elsewhere").rename(target)
        assert all(reading.find(key) for key in keys)
        place.forget()
    finally:
        reader.close()
        assert life.stop()


def test_what_an_older_version_left_is_made_anew(made: Made, tmp_path: Path) -> None:
    """Its index files do not say which one comes before them."""
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    node = node_at(path)
    for file in index(node.folder):
        content = bytearray(file.read_bytes())
        file.write_bytes(content[: 40 + 4 * node.index_slots] + bytes(20) + content[60 + 4 * node.index_slots :])
    content = bytearray(node.folder.checkpoint.read_bytes())
    content[8:12] = struct.pack(">I", 2)
    content[12:16] = struct.pack(">I", google_crc32c.value(bytes(content[:12] + content[16:])))
    node.folder.checkpoint.write_bytes(content)
    found = checking(node).examine()
    assert problems(found) == {}
    assert any("older version" in item.note for item in found)
    life = node_at(path).life()
    assert life.recovered.checkpoint == "older"
    assert life.stop()
    assert serve(node_at(path), made.counts) == (0, 0, 0, "")
    assert problems(checking(node).examine()) == {}


def test_a_start_says_what_the_last_unit_of_a_queue_is(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    assert node_at(path).life().stop()  # so that all is in the checkpoint
    node = node_at(path)
    target = units(node.folder)[-1]
    content = bytearray(target.read_bytes())
    last = (made.counts[7, 1] - 1) % node.consume_queue_entries * 20
    for wrong, said in (
        (bytes(20), "ends in a unit of zeros"),
        (content[last - 20 : last], "ends in a unit that leads to another message"),
        (struct.pack(">QIq", 1 << 40, 1000, 0), "ends in a unit that leads behind the log's end"),
    ):
        target.write_bytes(content[:last] + wrong + content[last + 20 :])
        life = node.life()
        absent = life.recovered.absent
        assert life.stop()
        assert absent == f"{target} {said}"
    target.write_bytes(content)
    life = node.life()
    assert life.recovered.absent == ""
    assert life.stop()


def test_beside_a_worker_that_appends_nothing_is_wrong(tmp_path: Path) -> None:
    node = node_at(tmp_path / "node")
    life = node.life()
    made = Made(tmp_path, tmp_path)
    try:
        for _ in range(4):
            append(made, life, 50)
            beside = checking(node)
            beside.running = True
            assert problems(beside.examine()) == {}
    finally:
        assert life.stop()


def test_a_look_that_retention_shortened_says_so(made: Made, tmp_path: Path) -> None:
    """It was in the file that was removed, and has not seen what lies behind that."""
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    checked = checking(node_at(path))
    checked.running = True
    first, *others = sorted(checked.folder.log.iterdir())
    assert others

    def remove(told: dict[tuple[int, int], int]) -> list[Found]:
        if first.exists():
            with first.open("r+b") as file:
                first.unlink()
                file.truncate(0)
        return examine(told)

    examine = checked._compacted.examine
    checked._compacted.examine = remove  # type: ignore[method-assign]
    checked.examine()
    assert checked.shrunk
    checked.examine()
    assert not checked.shrunk


def test_a_topic_that_was_deleted_leaves_no_problem(made: Made, tmp_path: Path) -> None:
    """Its records stay in the log; its keys may be in the index, or not."""
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    node = node_at(path)
    node.topics = TOPICS[1:]
    topics = [(9, b"other", 1)]
    left = TopicsCheck(node.folder, node.superblock.node_id, settings(node), topics, running=False)
    assert problems(left.examine()) == {}
    node.folder.checkpoint.unlink()
    assert node.life().stop()  # makes the index again, without them
    assert problems(left.examine()) == {}
    assert not any(item.kind == "foreign" for item in left.examine())


def test_a_log_of_another_node_is_named(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    node = node_at(path)
    topics = [(topic.id, topic.name.encode(), topic.queues) for topic in TOPICS]
    found = problems(TopicsCheck(node.folder, 12345, settings(node), topics, running=False).examine())
    assert any("another node, node " in what for what in found.values()), found
    assert any(path.parent == node.folder.log for path in found), found


@pytest.mark.parametrize("checkpoint", ["kept", "damaged", "removed"])
@pytest.mark.parametrize("how", ["removed", "zeros"])
def test_without_its_log_nothing_is_served_and_nothing_repaired(
    made: Made, tmp_path: Path, how: str, checkpoint: str
) -> None:
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    node = node_at(path)
    for file in node.folder.log.iterdir():
        if how == "removed":
            file.unlink()
        else:
            file.write_bytes(bytes(node.log_file_bytes))
    if checkpoint == "damaged":
        node.folder.checkpoint.write_bytes(b"damaged" * 100)
    elif checkpoint == "removed":
        node.folder.checkpoint.unlink()

    def everything() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in node.folder.path.rglob("*") if path.is_file()}

    before = everything()
    found = checking(node).examine()
    assert any(item.kind == "log" for item in found if item.problem), found
    assert checking(node).repair() == []
    with pytest.raises(CorruptRecord, match="restore the folder of topics"):
        node.life()
    assert everything() == before


def stopped_at(path: Path) -> tuple[TopicNode, int]:
    """A node with some messages that was stopped, and where its log ends."""
    node = node_at(path)
    life = node.life()
    append(Made(path, path), life, 20)
    assert life.stop()
    life = node.life()
    end = life.recovered.position
    assert life.stop()
    return node, end


def test_a_checkpoint_may_lie_behind_the_blank_end_of_a_file(tmp_path: Path) -> None:
    """As a server leaves it that is killed between two files."""
    node, end = stopped_at(tmp_path / "node")
    path = node.folder.log / f"{0:020d}"
    with open(path, "r+b") as file:
        file.seek(end)
        file.write(struct.pack(">II", node.log_file_bytes - end, 0xCBD43194))
    node.folder.checkpoint.unlink()
    assert checking(node).repair()
    for _ in range(2):
        life = node.life()
        assert (life.recovered.checkpoint, life.recovered.position) == ("good", node.log_file_bytes)
        assert life.stop()
    content = bytearray(path.read_bytes())
    content[end - 20] ^= 1  # in the last commit's record
    path.write_bytes(content)
    with pytest.raises(CorruptRecord, match="the last commit that the checkpoint knows"):
        node.life()
    assert path.read_bytes() == content


@pytest.mark.parametrize("walked_because", ["settings", "index"])
def test_damage_at_the_end_of_the_log_is_no_torn_tail(tmp_path: Path, walked_because: str) -> None:
    """The checkpoint knows better, where a start walks the log from before it; so does every start after that."""
    node, end = stopped_at(tmp_path / "node")
    path = node.folder.log / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[end - 300] ^= 1  # in the last commit
    path.write_bytes(content)
    if walked_because == "settings":
        node.index_slots *= 2
    else:
        for file in node.folder.index.iterdir():
            file.unlink()
    for _ in range(3):
        with pytest.raises(CorruptRecord, match="a commit that a later one, the checkpoint or a consume queue knows"):
            node.life()
        assert path.read_bytes() == content
        assert path in problems(checking(node, running=True).examine())


@pytest.mark.parametrize("power", ["kept", "lost"])
def test_a_commit_that_was_dispatched_is_no_torn_tail(
    tmp_path: Path, power: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a kill its units show it, though the checkpoint does not know it. Power may have lost the commit alone."""
    node = node_at(tmp_path / "node")
    made = Made(node.path, node.path)
    life = node.life()
    append(made, life, 20)
    assert life.stop()
    life = node.life()
    before, checkpoint = life.recovered.position, node.folder.checkpoint.read_bytes()
    append(made, life, 3)
    end = life.server.counters()["synced"]
    life.release()
    node.appenders.clear()
    path = node.folder.log / f"{0:020d}"
    content = bytearray(path.read_bytes())
    last = body(*QUEUES[-1], made.counts[QUEUES[-1]] - 1)
    content[content.rindex(last) + 5] ^= 1
    path.write_bytes(content)
    node.folder.checkpoint.write_bytes(checkpoint)
    if power == "lost":
        another_boot(monkeypatch)
        assert problems(checking(node).examine()) == {}
        life = node.life()
        assert before <= life.recovered.position < end
        assert life.stop()
        return
    problem = problems(checking(node).examine())[path]
    assert "although they were confirmed" in problem
    assert "topics do not serve" in problem
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="a commit that a later one, the checkpoint or a consume queue knows"):
            node.life()
        assert path.read_bytes() == content
    loss = checking(node).loss()
    assert loss is not None
    assert loss.messages >= 1
    checking(node).accept(loss, lambda _done, _all: None)
    life = node.life()
    assert life.recovered.position >= end
    assert life.stop()
    assert problems(checking(node).examine()) == {}


def test_files_that_do_not_belong_there_are_notes(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    node = node_at(path)
    strange = [node.folder.log / "notes.txt", node.folder.index / "x", node.folder.queues / "gone" / "0" / "y"]
    for one in strange:
        one.parent.mkdir(parents=True, exist_ok=True)
        one.write_text("of somebody")
    found = checking(node).examine()
    assert problems(found) == {}
    assert {item.path for item in found if item.note} >= {strange[0], strange[1], node.folder.queues / "gone"}
