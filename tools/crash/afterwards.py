"""What a node finds after a power failure, compared with what it had confirmed.

`Truth(records)` knows from the notes of a history (history.py) what must, may and must not be there at any point of it.
`Checker(folder).check(state, truth, point)` puts a state of the disk (disk.py) into a directory, starts the
persistent store and the queue worker's engine there as a node does, in this process, and returns what is wrong:

- a confirmed message is there, once, with its bytes, unless its removal (ack) was submitted; a confirmed removal stays
- nothing is read that was not written, nothing is doubled, a queue keeps its order
- a power failure is no damage: nothing is reported as damaged or foreign, and before the start `warren check` finds no
  problem
- a second start finds the same as the first
- the node's own files are readable, and declare what was declared
"""

from __future__ import annotations

import mmap
import shutil
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from warren.engine import _core
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory, NodeFile
from warren.engine.config import Settings
from warren.engine.errors import Error
from warren.engine.kernel import protocol
from warren.engine.kernel.formats import FILE_HEADER, FRAME, LARGE_HEADER
from warren.engine.kernel.protocol import DELIVERY, PROTOCOL
from warren.engine.queues import recovery
from warren.engine.queues.folder import Folder
from warren.engine.store import index
from warren.engine.store.message_store import MessageStore
from warren.ipc import layout
from warren.ipc.layout import SERVER_WORKER_FIRST, SUPERBLOCK
from warren.ipc.region import Region
from warren.ipc.superblock import GEOMETRY, Superblock
from warren.tools.crash.disk import State, put_down
from warren.tools.crash.history import body_of, message_of
from warren.tools.crash.recording import Record
from warren.workers.cli.check import verify

LATER = 1 << 62
#: how many references an id may have, and which (version, size) its body may be
Fate = tuple[set[int], set[tuple[int, int]]]


@dataclass(slots=True)
class _Act:
    """A write or removal of one id: when it was submitted and confirmed (LATER: never)."""

    write: bool
    version: int
    size: int
    submitted: int
    token: int


@dataclass(slots=True)
class _Put:
    """A message of a queue."""

    size: int
    submitted: int
    token: int
    acked: int = LATER


class Truth:
    """What a history's notes say."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.acts: dict[bytes, list[_Act]] = defaultdict(list)
        self.puts: dict[str, dict[int, _Put]] = defaultdict(dict)
        self.confirmed: dict[int, int] = {}  #: token → number of the record that confirms it
        self.declared: list[tuple[str, int]] = []
        self.barriers: list[tuple[int, int]] = []  #: (submitted, token)
        self.stops: list[int] = []
        self.kills: Counter[str] = Counter()
        self.did: Counter[str] = Counter()
        self.ends: list[int] = []  #: where all of the node was killed, or ended
        self.fates: dict[bytes, Fate] = {}
        self.fates_at = -1
        for number, record in enumerate(records):
            if record.kind == "note":
                self._note(number, *msgspec.msgpack.decode(record.data))

    def _note(self, number: int, what: str, *words: Any) -> None:
        if what == "w":
            for id, version, size in words[1]:
                self.acts[id].append(_Act(True, version, size, number, words[0]))
        elif what == "r":
            for id in words[1]:
                self.acts[id].append(_Act(False, 0, 0, number, words[0]))
        elif what == "b":
            self.barriers.append((number, words[0]))
        elif what == "c":
            self.confirmed[words[0]] = number
        elif what == "q":
            self.declared.append((words[1], words[0]))
        elif what == "p":
            for message, size in words[2]:
                self.puts[words[1]][message] = _Put(size, number, words[0])
        elif what == "a":
            for message in words[1]:
                put = self.puts[words[0]][message]
                put.acked = min(put.acked, number)
        elif what == "s":
            self.stops.append(number)
        elif what == "k":
            self.kills[words[0]] += 1
            if words[0] == "all":
                self.ends.append(number)

    def is_confirmed(self, token: int, point: int) -> bool:
        """Whether the confirm lies before the point."""
        return self.confirmed.get(token, LATER) < point

    def life(self, number: int) -> int:
        """Which life of the client's links a record lies in: with all of the node, what it had not executed dies."""
        return bisect_left(self.ends, number)

    def barrier(self, point: int) -> dict[int, int]:
        """Life → all that the store was told in it before this record is durable."""
        done: dict[int, int] = {}
        for submitted in [
            *(submitted for submitted, token in self.barriers if self.is_confirmed(token, point)),
            *(stop for stop in self.stops if stop < point),
        ]:
            done[self.life(submitted)] = max(submitted, done.get(self.life(submitted), -1))
        return done


def all_fates(truth: Truth, point: int) -> dict[bytes, Fate]:
    """The fates of all ids; remembered for one point, at which there are several states and starts."""
    if truth.fates_at != point:
        barrier = truth.barrier(point)
        truth.fates = {id: fates(acts, truth, point, barrier) for id, acts in truth.acts.items()}
        truth.fates_at = point
    return truth.fates


def fates(acts: Sequence[_Act], truth: Truth, point: int, barrier: dict[int, int]) -> Fate:
    """How many references an id may have at a point, and which (version, size) its body may be."""
    known = [act for act in acts if act.submitted < point]
    counts: set[int] = {0}
    bodies: set[tuple[int, int]] = set()
    certain = [
        truth.is_confirmed(act.token, point) or act.submitted < barrier.get(truth.life(act.submitted), -1)
        for act in known
    ]
    for number in range(len(known) - 1, 0, -1):  # in one life: what came before it in the ring is done, too
        if certain[number] and truth.life(known[number].submitted) == truth.life(known[number - 1].submitted):
            certain[number - 1] = True
    for act, sure in zip(known, certain, strict=True):
        after = {count + 1 for count in counts} if act.write else {max(0, count - 1) for count in counts}
        if act.write and 0 in counts:
            # The first body wins as long as anything holds the id.
            body = (act.version, act.size)
            bodies = {body} if sure and counts == {0} else bodies | {body}
        counts = after if sure else counts | after
    return counts, bodies


# ---- the state, as a node finds it ----------------------------------------------------------------------------------


class _Memory:
    """Memory with the look of warren.ipc.region.Region, of this process alone."""

    def __init__(self, size: int) -> None:
        self.buffer = memoryview(mmap.mmap(-1, size))
        self.size = size
        self.name = "nothing"

    def close(self) -> None:
        """It goes with the last reference."""


class MemorySuperblock(Superblock):
    """A superblock that no other process sees."""

    def __init__(self, node: NodeFile) -> None:
        super().__init__(_Memory(layout.SUPERBLOCK_BYTES), node.node_id)  # type: ignore[arg-type]
        settings = node.settings
        values = {name: getattr(settings, name) for name in GEOMETRY if name != "servers_n"}
        values |= {"servers_n": 2 + settings.workers, "node_id": node.node_id, "magic": layout.SUPERBLOCK_MAGIC}
        for name, value in values.items():
            SUPERBLOCK.pack_into(self.buffer, name, value)
        for server in range(2 + settings.workers):
            self.server_set(server, "epoch", 1)


@dataclass
class Found:
    """What one start found."""

    stored: dict[bytes, int] = field(default_factory=dict)  #: id → references of clients
    workers: dict[bytes, int] = field(default_factory=dict)  #: id → holders
    queues: dict[str, list[int]] = field(default_factory=dict)  #: the numbers, in order
    wrong: list[str] = field(default_factory=list)


class Checker:
    """Checks states of one history. The folder is the caller's, and should lie in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"
        self.states = 0
        self.lost_queue = 0

    def close(self) -> None:
        """Remove the last state."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def check(self, state: State, truth: Truth, point: int) -> list[str]:
        """What is wrong with a state; nothing is what there should be."""
        self.states += 1
        self.build(state)
        node = node_of(self.folder)
        if node is None:
            expected = any(truth.is_confirmed(token, point) for _name, token in truth.declared)
            return ["node.json is gone or unreadable, and the node had served"] if expected else []
        wrong: list[str] = []
        try:
            catalog = Catalog.load(NodeDirectory(self.folder).path)
        except (Error, OSError) as error:
            return [f"the catalog cannot be read: {error}"]
        for name, token in truth.declared:
            if truth.is_confirmed(token, point) and name not in catalog.queues:
                wrong.append(f"queue {name} was declared and is not in the catalog")
        # nothing was removed or copied: what check calls a problem now is a false alarm
        wrong += [f"check before the start: {text}" for text in verify(NodeDirectory(self.folder)).problems]
        first = self._start(node, catalog, truth, point)
        second = self._start(node, catalog, truth, point)
        wrong += first.wrong
        wrong += [f"second start: {text}" for text in second.wrong if text not in first.wrong]
        # Holders are provisional until the workers have resynced: a snapshot knows more of them than the files.
        if first.stored != second.stored:
            changed = {
                id.hex() for id in {*first.stored, *second.stored} if first.stored.get(id) != second.stored.get(id)
            }
            wrong.append(f"a second start finds other messages in the store than the first: {sorted(changed)[:5]}")
        if first.queues != second.queues:
            wrong.append("a second start finds other messages in the queues than the first")
        return wrong

    def build(self, state: State) -> None:
        """Put a state into the folder `state`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        put_down(state, self.folder)

    def _start(self, node: NodeFile, catalog: Catalog, truth: Truth, point: int) -> Found:
        found = Found()
        superblock = MemorySuperblock(node)
        try:
            with _Store(superblock, self.folder, node.settings, found) as store:
                store.check(truth, point)
                for worker in range(node.settings.workers):
                    _check_queues(superblock, self.folder, node, worker, catalog, truth, point, store, found)
        except (Error, OSError) as error:
            found.wrong.append(f"the start fails: {error!r}")
        return found


def node_of(folder: Path) -> NodeFile | None:
    """Its node.json, None when there is none that can be read."""
    try:
        return NodeDirectory(folder).read()
    except Error:
        return None


_COLUMNS = ("state", "ref_count", "holders", "file", "offset", "total_size", "meta_length")
_ENTRY = np.dtype(protocol.INDEX_ENTRY.columns(*_COLUMNS))
_HASH_ROW = np.dtype(protocol.INDEX_ROW.columns(*_COLUMNS, "id"))
_TABLE_ROW = np.dtype(protocol.DENSE_TABLE_ROW.columns("state", "epoch", "group", "block"))


class _MessageStore(MessageStore):
    """The store's policy; extents of the index are not made in shared memory, where 16 MiB would be touched each."""

    def make_extent(self) -> Region:
        return _Memory(index.EXTENT_BYTES)  # type: ignore[return-value]  # it has all that is used of one


class _Store:
    """The persistent store, started over the directory as the store server does it, and a reader of it."""

    def __init__(self, superblock: MemorySuperblock, directory: Path, settings: Settings, found: Found) -> None:
        self.found = found
        self.files: dict[int, bytes] = {}
        self.places: dict[bytes, tuple[int, int, int]] = {}
        self.core = _core.StoreServer(superblock.buffer, settings.commit_bytes, 1_000_000, 0)
        self.store = _MessageStore(self.core, superblock, 0, directory, settings)
        try:
            report = self.store.start()
        except BaseException:
            self.__exit__()
            raise
        found.wrong += [f"damage: {line}" for line in report.damaged]
        found.wrong += [f"foreign: {path.name}" for path in report.foreign]
        if report.dropped:
            found.wrong.append(f"{report.dropped} messages without a file were dropped")

    def __enter__(self) -> _Store:
        return self

    def __exit__(self, *_: object) -> None:
        del self.core
        del self.store.core
        self.store.close(unlink=True)

    def rows(self) -> Iterator[tuple[bytes, np.void]]:
        """The entries of the index that are in use, with their ids: hash part, then dense blocks."""
        regions = self.store.regions
        rows = np.frombuffer(regions["index"].buffer, dtype=_HASH_ROW, offset=layout.PAGE_BYTES)
        for row in rows[rows["state"] == 1]:
            yield bytes(row["id"]), row
        entries_n, extent_blocks = PROTOCOL["DENSE_BLOCK_ENTRIES"], PROTOCOL["DENSE_EXTENT_BLOCKS"]
        table = np.frombuffer(regions["dense"].buffer, dtype=_TABLE_ROW, offset=layout.PAGE_BYTES)
        for block in table[table["state"] == PROTOCOL["DENSE_TABLE_LIVE"]]:
            extent, place = divmod(int(block["block"]), extent_blocks)
            entries = np.frombuffer(
                regions[f"dense{extent}"].buffer,
                dtype=_ENTRY,
                count=entries_n,
                offset=place * entries_n * protocol.INDEX_ENTRY.size,
            )
            for at in np.flatnonzero(entries["state"] == 1):
                counter = int(block["group"]) * entries_n + int(at)
                yield int(block["epoch"]).to_bytes(8, "big") + counter.to_bytes(8, "big"), entries[at]

    def body(self, file: int, offset: int, total: int, id: bytes) -> bytes | None:
        """Metadata and payload of a frame that validates, None when it does not."""
        if file not in self.files:
            self.files[file] = (self.store.folder / f"{file}.rdq").read_bytes()
        data = self.files[file]
        salt = int(FILE_HEADER.unpack(data, "salt"))
        frame = _core.frame_check(memoryview(data)[offset : offset + total], 0, salt)
        if isinstance(frame, str) or frame[0] != total or bytes(frame[3]) != id:
            return None
        return data[offset + FRAME.size : offset + total - 1]

    def check(self, truth: Truth, point: int) -> None:
        """Compare all of it with the truth."""
        found, wrong = self.found, self.found.wrong
        seen: set[bytes] = set()
        for id, row in self.rows():
            if id in seen:
                wrong.append(f"{id.hex()} has two entries in the index")
            seen.add(id)
            if row["ref_count"]:
                found.stored[id] = int(row["ref_count"])
            if row["holders"]:
                found.workers[id] = int(row["holders"])
            if row["ref_count"] or row["holders"]:
                self.places[id] = int(row["file"]), int(row["offset"]), int(row["total_size"])
        for id, (counts, bodies) in all_fates(truth, point).items():
            count = found.stored.get(id, 0)
            if count not in counts:
                wrong.append(f"{id.hex()} has {count} references, and should have {sorted(counts)}")
            if count:
                body = self.body(*self.places[id], id)
                if body is None or not any(body == body_of(id, *item) for item in bodies):
                    wrong.append(f"{id.hex()} reads {'nothing' if body is None else 'other bytes'}")
        for id in found.stored.keys() - truth.acts.keys():
            wrong.append(f"{id.hex()} was never written, and has references")


def _check_queues(
    superblock: MemorySuperblock,
    directory: Path,
    node: NodeFile,
    worker: int,
    catalog: Catalog,
    truth: Truth,
    point: int,
    store: _Store,
    found: Found,
) -> None:
    """Recover a queue worker's engine and compare its queues with the truth."""
    settings, server = node.settings, SERVER_WORKER_FIRST + worker
    folder = Folder.of(directory, worker)
    folder.make()
    size = layout.PAGE_BYTES + settings.images_n * settings.file_bytes
    images, timages, stats = (_Memory(n) for n in (size, size, 4096 * protocol.QUEUE_STATS.size))
    engine = _core.QueueEngine(
        superblock.buffer,
        server,
        images.buffer,
        timages.buffer,
        stats.buffer,
        None,
        -1,
        0,
        0,
        settings.images_n,
        settings.file_bytes,
        0,
        1,
        settings.commit_bytes,
        settings.journal_files_max,
    )
    try:
        declared = [queue for queue in catalog.queues.values() if queue.worker == worker]
        for queue in declared:
            engine.declare(queue.id, queue.durable)
        report = recovery.recover(engine, folder, node.node_id, server)
        found.wrong += [f"queue worker {worker}, damage: {line}" for line in report.damaged]
        for queue in declared:
            rows, _next = engine.browse(queue.id, 0, 1 << 20, False)
            _check_queue(queue.name, rows, folder, truth, point, store, found)
    finally:
        engine.close()


def _check_queue(name: str, rows: bytes, folder: Folder, truth: Truth, point: int, store: _Store, found: Found) -> None:
    puts = truth.puts.get(name, {})
    last_stop = max((stop for stop in truth.stops if stop < point), default=-1)
    numbers: list[int] = []
    journals: dict[Path, bytes] = {}
    for at in range(0, len(rows), DELIVERY.size):
        body = _body_of_row(memoryview(rows)[at : at + DELIVERY.size], folder, store, journals)
        if body is None:
            continue  # its body is not in the store: the worker drops it, and says so
        number, size = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
        if body != message_of(name, number, size) if 8 <= size <= len(body) else True:
            found.wrong.append(f"queue {name}: a body that nobody published")
            continue
        numbers.append(number)
        put = puts.get(number)
        if put is None or put.submitted >= point:
            found.wrong.append(f"queue {name}: {number} was not published yet")
        elif put.acked < last_stop:
            found.wrong.append(f"queue {name}: {number} was acked before the node stopped in good order, and is there")
    found.queues[name] = numbers
    if numbers != sorted(numbers):
        found.wrong.append(f"queue {name} has lost its order: {numbers}")
    if len(numbers) != len(set(numbers)):
        found.wrong.append(f"queue {name} has messages twice")
    there = set(numbers)
    for number, put in puts.items():
        if number not in there and put.acked >= point and truth.is_confirmed(put.token, point):
            found.wrong.append(f"queue {name}: {number} was confirmed and not acked, and is gone")


def _body_of_row(row: memoryview, folder: Folder, store: _Store, journals: dict[Path, bytes]) -> bytes | None:
    def field(name: str) -> int:
        return int(DELIVERY.unpack(row, name))

    location = field("flags") >> PROTOCOL["DELIVERY_LOCATION_SHIFT"]
    file, offset, length = field("file"), field("offset"), field("frame_length")
    if location == PROTOCOL["LOCATION_STORE"]:
        id = DELIVERY.get_bytes(row, "id")
        place = store.places.get(id)
        body = None if place is None else store.body(*place, id)
        return None if body is None else body[field("meta_length") :]
    if location == PROTOCOL["LOCATION_LARGE"]:
        path = folder.large / DELIVERY.get_bytes(row, "id").hex()
        return path.read_bytes()[LARGE_HEADER.size + field("meta_length") :] if path.exists() else None
    path = folder.data_file(file) if location == PROTOCOL["LOCATION_SEGMENT"] else folder.journal_file(file)
    if path not in journals:
        journals[path] = path.read_bytes()
    frame = journals[path][offset : offset + length]
    start = field("blob_offset") + field("meta_length")
    return frame[start : field("blob_offset") + field("body_length")]
