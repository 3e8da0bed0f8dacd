"""A matrix of damage and absence: each kind of file of a queue worker × what can happen to it.

Goal: `check` and the next start both report it, nothing wrong is delivered, nothing sound is lost, and after that start
nothing is wrong any more that a second start would find anew. Method: one directory, made by a worker in this process:
messages of two queues in journal, data and index files, some acked, some with other files of an earlier moment; then a
copy for each case, damaged by hand, checked, and served by another incarnation, which delivers everything. Bodies are
read as clients read them: with their checksums.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from warren.engine import _core
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory, NodeFile
from warren.engine.config import Settings
from warren.engine.kernel import file_register, quarantine, segment
from warren.engine.kernel.formats import FILE_HEADER_BYTES, FORMAT_VERSION, LISTED_DATA, LISTED_INDEX, LISTED_JOURNAL
from warren.engine.kernel.protocol import DELIVERY
from warren.engine.queues import segment_stamp
from warren.engine.queues.folder import Folder
from warren.ipc import _core as atomics
from warren.workers.cli.check import verify
from warren.workers.node import absence

from support.command_line import warren as command
from support.long import damages, in_part
from support.queue_probe import Incarnation, Node, Peer, Queue

NODE_ID = 7
BODY = 1500
pytestmark = pytest.mark.crash

Message = tuple[int, int]  #: queue, number


def body(queue: int, number: int) -> bytes:
    return b"%02d%08d" % (queue, number) + bytes([number % 251]) * (BODY - 10)


class CheckedIncarnation(Incarnation):
    """Reads bodies as a client does."""

    def body(self, buffer: memoryview, base: int) -> bytes:
        word = lambda name: DELIVERY.unpack(buffer, name, base)  # noqa: E731
        folder, file, offset = self.node.folder, word("file"), word("offset")
        for path in (folder.data_file(file), folder.journal_file(file)):
            try:
                data = path.read_bytes()
            except FileNotFoundError:  # moved to a data file, or removed: at any moment
                continue
            salt = segment.salt_of(data[:FILE_HEADER_BYTES])
            if salt is not None and not isinstance(_core.frame_check(data, offset, salt), str):
                start = offset + word("blob_offset")
                return data[start : start + word("body_length")]
        found = _core.image_read(
            self.images.buffer, self.node.images_n, self.node.file_bytes, file, offset, word("frame_length")
        )
        if found is None:
            return b""  # a client gets CorruptRecord
        return found[word("blob_offset") : word("blob_offset") + word("body_length")]


@dataclass
class Made:
    """A directory, what it was at an earlier moment, and what is true."""

    path: Path
    older: Path
    ready: set[Message] = field(default_factory=set)
    acked: set[Message] = field(default_factory=set)

    @property
    def folder(self) -> Folder:
        return Folder.of(self.path, 0)


def node_at(path: Path) -> Node:
    return Node(path, queues=[Queue(1), Queue(2), Queue(5, subscription_of=1)], journal_files_max=3)


def publish(made: Made, worker: Incarnation, producer: Peer, first: int, end: int) -> None:
    for i in range(first, end):
        for queue in (1, 2) if i % 3 else (1,):
            producer.publish(queue, body(queue, i))
            made.ready.add((queue, i))
        worker.until(lambda: producer.get("synced") == producer.prepared)


def take(made: Made, worker: Incarnation, consumer: Peer, queue: int, n: int) -> None:
    consumer.credit(queue, credit=n)
    worker.turns()
    got = consumer.receive(worker)
    consumer.ack_many(queue, [item.sequence for item in got])
    worker.until(lambda: consumer.get("head") == consumer.prepared)
    consumer.command("OP_CANCEL", queue=queue)
    worker.turns()
    done = {(int(item.body[:2]), int(item.body[2:10])) for item in got}
    assert len(done) == n
    made.ready -= done
    made.acked |= done


@pytest.fixture(scope="module", params=in_part(["stopped", "killed"]))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = tmp_path_factory.mktemp("made")
    made = Made(place / "node", place / "older")
    made.path.mkdir()
    absence.prepare_store(made.path, NODE_ID)
    NodeDirectory(made.path).write(NodeFile(FORMAT_VERSION, NODE_ID, 1, Settings(), 0.0))
    catalog = Catalog()
    catalog.next_queue_id = 1 << 20  # it gave the ids that are used here
    catalog.save(made.path)
    node = node_at(made.path)
    worker = node.worker()
    producer, consumer = node.peer(worker), node.peer(worker)
    publish(made, worker, producer, 0, 260)
    take(made, worker, consumer, 2, 60)
    publish(made, worker, producer, 260, 420)
    assert list(made.folder.segments.rglob("*.idx"))
    shutil.copytree(made.path, made.older)
    publish(made, worker, producer, 420, 700)
    take(made, worker, consumer, 1, 150)
    publish(made, worker, producer, 700, 900)
    worker.turns()
    assert len(list(made.folder.segments.glob("*.dat"))) > 1
    if request.param == "stopped":
        assert worker.stop()
    else:
        worker.kill()
    assert verify(NodeDirectory(made.path)).problems == []
    return made


# ---- kinds of files -------------------------------------------------------------------------------------------------


def journals(folder: Folder) -> list[Path]:
    """By rising number, without those prepared ahead."""
    found = [path for _number, path in segment.list_files(folder.journal, ".jnl").files]
    return [path for path in found if any(path.read_bytes()[FILE_HEADER_BYTES : FILE_HEADER_BYTES + 64])]


def data(folder: Folder) -> list[Path]:
    return [path for _number, path in segment.list_files(folder.segments, ".dat").files]


KINDS: dict[str, Callable[[Folder], tuple[Path, Path | None]]] = {
    "journal-old": lambda folder: (journals(folder)[0], journals(folder)[1]),
    "journal-new": lambda folder: (journals(folder)[-1], journals(folder)[-2]),
    "data": lambda folder: (data(folder)[0], data(folder)[1]),
    "index": lambda folder: (folder.index_file(1, 0), folder.index_file(2, 0)),
    "files": lambda folder: (folder.files, None),
    "terms": lambda folder: (folder.terms, None),
    "subscriptions": lambda folder: (folder.subscriptions, None),
}
HURTS = ("missing", "empty", "cut", "bit", "head-bit", "head-zero", "zero", "swapped", "older")


#: what cannot happen to a file: it is small, there is one of its kind, or it has no older copy that differs
NEVER = {
    "journal-old": {"older"},
    "journal-new": {"older"},
    "data": {"older"},
    "files": {"zero", "swapped"},
    "terms": {"zero", "swapped", "older"},
    "subscriptions": {"zero", "swapped", "older"},
}
CASES = damages(KINDS, HURTS, NEVER)


def hurt(made: Made, path: Path, other: Path | None, how: str) -> bool:
    """False: this cannot happen to this file, or is no damage."""
    content = bytearray(path.read_bytes())
    used = len(content.rstrip(b"\0"))
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(content[: FILE_HEADER_BYTES + 3000 if used > 2 * FILE_HEADER_BYTES else used // 2])
    elif how == "bit":
        at = FILE_HEADER_BYTES + 9000 if used > 4 * FILE_HEADER_BYTES else used // 2
        content[at] ^= 16
        path.write_bytes(content)
    elif how == "head-bit":
        content[min(9, len(content) - 1)] ^= 1
        path.write_bytes(content)
    elif how == "head-zero":
        n = min(FILE_HEADER_BYTES, len(content))
        path.write_bytes(bytes(n) + content[n:])
    elif how == "zero":
        if used < 4 * FILE_HEADER_BYTES:
            return False
        at = 2 * FILE_HEADER_BYTES
        if path.suffix == ".idx":  # a page in which there are entries
            at = (len(content[: segment_stamp.STAMP_AT].rstrip(b"\0")) - 1) // FILE_HEADER_BYTES * FILE_HEADER_BYTES
        path.write_bytes(content[:at] + bytes(FILE_HEADER_BYTES) + content[at + FILE_HEADER_BYTES :])
    elif how == "swapped":
        if other is None:
            return False
        first, second = path.read_bytes(), other.read_bytes()
        for one, content_of_other in ((path, second), (other, first)):
            one.unlink()  # a journal and a data file may be one
            one.write_bytes(content_of_other)
    elif how == "older":
        old = made.older / path.relative_to(path.parents[[p.name for p in path.parents].index("queues")].parent)
        if not old.exists() or old.read_bytes() == path.read_bytes():
            return False
        path.unlink()
        shutil.copy(old, path)
    return True


def cost(made: Made, folder: Folder, kind: str, how: str) -> float:
    """How many messages a case may cost at most; what only a damaged file knew is lost."""
    if kind in ("files", "terms", "subscriptions") or how in ("swapped", "head-bit", "head-zero"):
        return 0
    if kind == "index" and how == "bit":
        return 1
    if kind == "index" and how == "zero":
        return 4096 // 64
    if how == "bit":
        return 1
    if how == "zero":
        return 4 * 2  # bodies of 1500 bytes, some for two queues
    return float("inf")


def serve(node: Node) -> tuple[list[str], dict[Message, bool], int]:
    """(what the start says, every message → redelivered, bodies that cannot be read)."""
    worker = node.worker(salvage=False)
    worker.__class__ = CheckedIncarnation
    said = list(worker.service.recovered.damaged)
    engine = worker.service.engine
    assert worker.service.recovered.lost >= sum(engine.lost(queue) for queue in engine.queues()), "one count, one truth"
    found: dict[Message, bool] = {}
    bad = 0
    for queue in (1, 2):
        consumer = node.peer(worker)
        consumer.credit(queue)
        worker.turns()
        while more := _receive(worker, consumer):
            for content, redelivered in more:
                if not content:
                    bad += 1
                    continue
                message = int(content[:2]), int(content[2:10])
                assert content == body(*message), "nothing wrong is delivered"
                assert message[0] == queue
                assert message not in found, "nothing is delivered twice"
                found[message] = redelivered
    worker.kill()
    return said, found, bad


def _receive(worker: Incarnation, consumer: Peer) -> list[tuple[bytes, bool]]:
    """(body, redelivered) of everything new, which is acked; an empty body is one that cannot be read."""
    found = []
    head, tail = consumer.get("delivery_head"), consumer.get("delivery_tail")
    places: list[tuple[int, int]] = []
    for at in range(head, tail):
        slot = atomics.load32(consumer.buffer, consumer.delivery_ring + at % consumer.slots_n * 4)
        base = consumer.slot_at(slot)
        queue, sequence, flags = (
            DELIVERY.unpack(consumer.buffer, name, base) for name in ("queue", "sequence", "flags")
        )
        content = worker.body(consumer.buffer, base)
        if not content:  # flushed since: as a client does, ask where it is now
            located = consumer.command("OP_LOCATE", queue=queue, tag=sequence)
            worker.until(lambda located=located: consumer.get("processed") > located)  # type: ignore[misc]
            content = worker.body(consumer.buffer, base)
        found.append((content, bool(flags & 1)))
        places.append((queue, sequence))
    consumer.put("delivery_head", tail)
    if places:
        consumer.ack_many(places[0][0], [sequence for _queue, sequence in places])
        worker.turns()
    return found


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_damage_is_reported_and_costs_what_was_hit(made: Made, tmp_path: Path, kind: str, how: str) -> None:
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    folder = Folder.of(path, 0)
    target, other = KINDS[kind](folder)
    if not target.exists() or not hurt(made, target, other, how):
        pytest.skip("it has no such file, or this is no damage")
    limit = cost(made, folder, kind, how)
    problems = verify(NodeDirectory(path)).problems
    unseen = kind == "journal-new" and how == "head-zero" and not folder.terms.exists()
    unseen |= kind == "terms" and how == "missing"  # as after a kill
    if not unseen:
        assert problems, "check says so"
    said, found, _bad = serve(node_at(path))
    if not unseen and not (kind == "data" and how in ("bit", "zero")):
        assert said, "the start says so"
    lost = made.ready - found.keys()
    back = found.keys() & made.acked
    assert found.keys() <= made.ready | made.acked
    assert len(lost) <= limit, f"{len(lost)} lost: {problems} {said}"
    if back:
        assert said
        assert all(found[message] for message in back), "what was acked and comes again is marked"
    again, _found, _bad = serve(node_at(path))
    stays = ("valid record", "neither valid nor empty")  # bytes that nobody changes
    assert [line for line in again if not any(what in line for what in stays)] == [], "a start tells it once"


def test_every_file_of_a_copy_that_was_made_meanwhile_is_missed(made: Made, tmp_path: Path) -> None:
    """As `cp -a` of a node that runs: journals of an earlier moment, segments and the list of a later one."""
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    shutil.rmtree(Folder.of(path, 0).journal)
    shutil.copytree(Folder.of(made.older, 0).journal, Folder.of(path, 0).journal)
    problems = verify(NodeDirectory(path)).problems
    assert any("is missing" in line for line in problems)
    said, _found, _bad = serve(node_at(path))
    assert any("is missing" in line for line in said)
    reported = quarantine.entries(Folder.of(path, 0).path)
    assert len(reported) >= len([line for line in said if "is missing" in line])


@pytest.mark.parametrize("kind", [LISTED_JOURNAL, LISTED_DATA, LISTED_INDEX])
def test_whatever_is_listed_and_removed_is_named_by_its_path(made: Made, tmp_path: Path, kind: int) -> None:
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    folder = Folder.of(path, 0)
    listed = file_register.read(folder.files, NODE_ID, 2).entries
    keys = [key for key in listed if key[0] == kind]
    assert keys
    for key in keys:
        folder.path_of(key).unlink()
    problems = verify(NodeDirectory(path)).problems
    said, _found, _bad = serve(node_at(path))
    for key in keys:
        name = str(folder.path_of(key))
        assert any(line.startswith(name) for line in problems)
        assert any(line.startswith(name) for line in said)


def test_an_index_of_zeros_is_named_with_what_it_held(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    folder = Folder.of(path, 0)
    target = folder.index_file(1, 0)
    held = file_register.read(folder.files, NODE_ID, 2).entries[LISTED_INDEX, 1, 0].messages
    assert held
    target.write_bytes(bytes(target.stat().st_size))
    assert any(line.startswith(str(target)) for line in verify(NodeDirectory(path)).problems)
    worker = node_at(path).worker(salvage=False)
    said = [line for line in worker.service.recovered.damaged if line.startswith(str(target))]
    lost = worker.service.recovered.lost
    worker.kill()
    assert not any("no message lost" in line for line in said)
    assert any(f"{held} messages lost" in line for line in said)
    assert lost >= held


@pytest.mark.parametrize("kind", [LISTED_JOURNAL, LISTED_DATA, LISTED_INDEX])
def test_a_directory_in_the_place_of_a_file_is_named(made: Made, tmp_path: Path, kind: int) -> None:
    path = tmp_path / "node"
    shutil.copytree(made.path, path)
    folder = Folder.of(path, 0)
    key = next(key for key in file_register.read(folder.files, NODE_ID, 2).entries if key[0] == kind)
    target = folder.path_of(key)
    target.unlink()
    target.mkdir()
    assert any(line.startswith(str(target)) for line in verify(NodeDirectory(path)).problems)
    said, _found, _bad = serve(node_at(path))
    assert any(line.startswith(str(target)) for line in said)


def as_pipe(path: Path, _kept: Path) -> None:
    os.mkfifo(path)


def as_folder(path: Path, _kept: Path) -> None:
    path.mkdir()


def as_link(path: Path, kept: Path) -> None:
    path.symlink_to(kept)


def as_file(path: Path, _kept: Path) -> None:
    path.touch()


WAYS: dict[str, Callable[[Path, Path], None]] = {
    "a pipe": as_pipe,
    "a folder": as_folder,
    "a symbolic link": as_link,
    "a file": as_file,
}
PLACES: dict[str, Callable[[Folder], Path]] = {
    "journal-old": lambda folder: journals(folder)[0],
    "data": lambda folder: data(folder)[0],
    "index": lambda folder: folder.index_file(1, 0),
    "files": lambda folder: folder.files,
    "terms": lambda folder: folder.terms,
    "epoch": lambda folder: folder.path / "epoch",
    "worker": lambda folder: folder.path,
    "journal": lambda folder: folder.journal,
    "transient": lambda folder: folder.transient,
    "segments": lambda folder: folder.segments,
    "queue": lambda folder: folder.segments / "1",
    "large": lambda folder: folder.large,
    "queues": lambda folder: folder.path.parent,
    "store": lambda folder: folder.path.parent.parent / "store",
    "persistent": lambda folder: folder.path.parent.parent / "store" / "persistent",
    "transactions": lambda folder: folder.path.parent.parent / "transactions",
    "catalog": lambda folder: folder.path.parent.parent / "catalog.json",
}
OF_FILES = ("journal-old", "data", "index", "files", "terms", "epoch", "catalog")
INSTEAD = [
    *((place, way) for place in PLACES for way in ("a pipe", "a symbolic link")),
    *((place, "a folder" if place in OF_FILES else "a file") for place in ("index", "terms", "segments", "worker")),
]


@pytest.mark.parametrize(("place", "way"), INSTEAD)
def test_what_lies_in_the_place_of_something_is_one_problem(made: Made, tmp_path: Path, place: str, way: str) -> None:
    """It is named with its path, the rest is read, and a repair that would give up what it hides is refused."""
    path, kept = tmp_path / "node", tmp_path / "kept"
    shutil.copytree(made.path, path)
    folder = Folder.of(path, 0)
    (path / "transactions").mkdir()
    folder.large.mkdir(exist_ok=True)
    (folder.path / "epoch").write_bytes(b"1\n")
    target = PLACES[place](folder)
    lost = file_register.read(folder.files, NODE_ID, 2).entries[LISTED_INDEX, 1, 0].messages
    if target.exists():
        target.rename(kept)
    WAYS[way](target, kept)
    report = verify(NodeDirectory(path))
    about = [line for line in report.problems + report.notes if line.startswith(f"{target}: ")]
    assert len(about) == 1, about
    assert f"{target}: {way}" in report.problems[-1]
    assert f"where a {'file' if place in OF_FILES else 'folder'} of Warren's belongs" in about[0]
    if place in ("index", "queue", "segments"):
        assert f"at most {lost}" in about[0] if place == "index" else "at most" in about[0], about
    read = {item.path for item in report.files if not item.problem and item.records}
    if place not in ("worker", "queues", "journal", "files"):
        assert any(name.endswith(".jnl") for name in read), read
    if place not in ("worker", "queues", "segments", "files"):
        assert any(name.endswith(".idx") for name in read), read
    assert not any("Error" in line or "Errno" in line for line in report.problems + report.notes)
    assert command("check", path, "--json", code=1).json()["problems"] == report.problems  # type: ignore[index]
    before = sorted(path.rglob("*"))
    said = command("check", path, "--repair", code=2).said
    assert str(target) in said
    assert way in said
    assert sorted(path.rglob("*")) == before
    if place == "terms" and way != "a symbolic link":
        lines, _found, _bad = serve(node_at(path))
        assert any(line.startswith(str(target)) for line in lines)
        assert list(folder.path.glob("quarantine/terms*"))
