"""A queue worker's engine without a node, and the client's side of the queue protocol played by hand.

`Node` is a superblock in private memory and a directory; `Node.worker()` is one incarnation of a worker (its engine and
service, no process); `Peer` is a client: it writes commands, raises tail, reads deliveries. What a `kill -9` leaves is
exact: `Incarnation.kill` drops the engine without any stop, but keeps the images and the clients' regions.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from warren.engine import _core
from warren.engine.catalog.arguments import QueueArguments
from warren.engine.kernel.protocol import DELIVERY, PROTOCOL, QUEUE_STATS
from warren.engine.queues import journal_images
from warren.engine.queues.folder import Folder
from warren.engine.queues.options import Options
from warren.engine.queues.service import QueueService
from warren.ipc import _core as atomics
from warren.ipc import layout
from warren.ipc.layout import CLIENT, COMMAND, CONSTANTS, LINK, SERVER, SUPERBLOCK
from warren.ipc.superblock import Superblock

from support.heard import Heard

SERVER_INDEX = layout.SERVER_WORKER_FIRST
FILE_BYTES = 256 * 1024
PAGE = layout.PAGE_BYTES
OK, NO, ERROR = PROTOCOL["RESULT_OK"], PROTOCOL["RESULT_NO"], PROTOCOL["RESULT_ERROR"]
REFUSED, DUPLICATE = PROTOCOL["RESULT_REFUSED"], PROTOCOL["RESULT_DUPLICATE"]


@dataclass(frozen=True)
class Queue:
    """A declaration, as a catalog has them."""

    id: int
    durable: bool = True
    subscription_of: int = 0
    dead_letters_of: int = 0
    policy: QueueArguments = field(default_factory=QueueArguments)


class _Region:
    """Anonymous shared memory with the look of warren.ipc.region.Region."""

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self.buffer = memoryview(self.memory)
        self.size = size

    def close(self) -> None:
        """It stays: the test looks at it."""


class _Superblock(Superblock):
    """A superblock that no other process sees."""

    def __init__(self, geometry: dict[str, int]) -> None:
        self.region = _Region(layout.SUPERBLOCK_BYTES)
        self.buffer = self.region.buffer
        self.shared_id = 0xABCDEF
        for name, value in (geometry | {"node_id": self.shared_id}).items():
            SUPERBLOCK.pack_into(self.buffer, name, value)

    def say_slots(self, slot: int, delivery_slots: int) -> None:
        """What the row of a client says of its delivery slots."""
        atomics.store32(self.buffer, self.slot_at(slot, "delivery_slots"), delivery_slots)


@dataclass
class Delivery:
    """One delivered message, and its body."""

    slot: int
    queue: int
    sequence: int
    redelivered: bool
    count: int
    body: bytes
    location: int
    reason: int
    priority: int
    mark: int  #: of the word beside its slot


class Peer:
    """A client with its region; every method does what the protocol says, and `raw` lets a test do otherwise."""

    def __init__(self, node: Node, slot: int, epoch: int, delivery_slots: int = 0) -> None:
        self.node = node
        self.slot = slot
        self.generation = 1
        self.epoch = epoch
        g = node.geometry
        base = layout.client_base_bytes(g["servers_n"], g["ring_records"], g["reply_bytes"], g["arena_bytes"])
        self.slots_n = delivery_slots or g["delivery_slots"]
        self.size = node.region_bytes(self.slots_n)
        self.region = _Region(self.size)
        self.buffer = self.region.buffer
        page = lambda n: (n + PAGE - 1) // PAGE * PAGE  # noqa: E731
        servers = g["servers_n"]
        at = PAGE
        self.link = at + SERVER_INDEX * LINK.size
        at += page(servers * LINK.size)
        self.ring = at + SERVER_INDEX * g["ring_records"] * COMMAND.size
        at += page(servers * g["ring_records"] * COMMAND.size)
        self.reply = at + SERVER_INDEX * g["reply_bytes"]
        at += page(servers * g["reply_bytes"])
        self.arena = at
        self.slots = base  # SERVER_INDEX is the first queue worker
        self.delivery_ring = self.slots + self.slots_n * DELIVERY.size
        self.handed = self.delivery_ring + self.slots_n * 4
        self.arena_next = 0
        CLIENT.pack_into(self.buffer, "magic", layout.CLIENT_MAGIC)
        self.ids = itertools.count(1)

    # -- words --------------------------------------------------------------------------------------------------

    def get(self, name: str) -> int:
        offset = self.link + LINK.offset(name)
        return (
            atomics.load32(self.buffer, offset) if LINK.by_name[name].size == 4 else atomics.load64(self.buffer, offset)
        )

    def put(self, name: str, value: int) -> None:
        store = atomics.store32 if LINK.by_name[name].size == 4 else atomics.store64
        store(self.buffer, self.link + LINK.offset(name), value)

    # -- commands -----------------------------------------------------------------------------------------------

    def blob(self, data: bytes) -> int:
        size = self.node.geometry["arena_bytes"]
        if self.arena_next % size + len(data) > size:
            self.arena_next += size - self.arena_next % size
        position = self.arena_next
        self.buffer[self.arena + position % size : self.arena + position % size + len(data)] = data
        self.arena_next += (len(data) + 7) & ~7
        return position

    def command(self, op: str, *, ring: bool = True, **fields: Any) -> int:
        """Write a command and raise the tail (unless `ring` is false); returns its sequence."""
        sequence = self.prepared if hasattr(self, "prepared") else self.get("tail")
        base = self.ring + sequence % self.node.geometry["ring_records"] * COMMAND.size
        self.buffer[base : base + COMMAND.size] = bytes(COMMAND.size)
        COMMAND.pack_into(self.buffer, "op", PROTOCOL[op] if isinstance(op, str) else op, base)
        for name, value in fields.items():
            if isinstance(value, bytes):
                COMMAND.set_bytes(self.buffer, name, value, base)
            else:
                COMMAND.pack_into(self.buffer, name, value, base)
        self.prepared = sequence + 1
        if ring:
            self.put("tail", self.prepared)
        return sequence

    def result(self, sequence: int) -> int:
        base = self.ring + sequence % self.node.geometry["ring_records"] * COMMAND.size
        return atomics.load32(self.buffer, base + COMMAND.offset("result"))

    def new_id(self) -> bytes:
        return struct.pack(">QQ", self.epoch, next(self.ids))

    def publish(
        self,
        queue: int | list[int],
        body: bytes,
        *,
        flags: int = 5,
        meta: bytes = b"",
        id: bytes | None = None,
        expires: int = 0,
        due: int = 0,
        priority: int = 0,
        key: bytes = b"",
    ) -> int:
        """Publish; flags default to PERSISTENT | SYNCED. Times are milliseconds since 1970."""
        blob = key + meta + body
        fields: dict[str, Any] = {"id": id or self.new_id(), "meta_length": len(meta), "tag": due}
        fields["count"] = expires | priority << PROTOCOL["PRIORITY_SHIFT"]
        if key:
            flags |= PROTOCOL["FLAG_DEDUPLICATE"]
        if isinstance(queue, list):
            blob = struct.pack(f"<{len(queue)}I", *queue) + blob
            flags |= PROTOCOL["FLAG_ROUTES"]
            queue = len(queue)
        position = self.blob(blob)
        return self.command("OP_PUBLISH", flags=flags, body=position, length=len(blob), queue=queue, **fields)

    def credit(self, queue: int, credit: int = 1 << 40, prefetch: int = 0, epoch: int = 0) -> int:
        return self.command("OP_CREDIT", queue=queue, tag=credit, count=prefetch, body=epoch)

    def ack(self, queue: int, tag: int, flags: int = 0) -> int:
        return self.command("OP_ACK", queue=queue, tag=tag, flags=flags)

    def ack_many(self, queue: int, tags: list[int]) -> int:
        data = struct.pack(f"<{len(tags)}Q", *tags)
        return self.command("OP_ACK", queue=queue, count=len(tags), body=self.blob(data), length=len(data))

    def nack(self, queue: int, tag: int, requeue: bool = True, multiple: bool = False, due: int = 0) -> int:
        flags = (PROTOCOL["FLAG_REQUEUE"] if requeue else 0) | (PROTOCOL["FLAG_MULTIPLE"] if multiple else 0)
        return self.command("OP_NACK", queue=queue, tag=tag, flags=flags, body=due)

    def control(self, worker: Incarnation, **request: Any) -> dict[str, Any]:
        """A control request and its answer."""
        sequence = self.send_control(**request)
        worker.until(lambda: self.get("processed") > sequence)
        answer = self.answer()
        assert (self.result(sequence) == OK) == ("error" not in answer)
        return answer

    def send_control(self, **request: Any) -> int:
        data = msgspec.msgpack.encode(request)
        return self.command("OP_CONTROL", body=self.blob(data), length=len(data))

    def answer(self) -> dict[str, Any]:
        length = LINK.unpack(self.buffer, "reply_length", self.link)
        decoded: dict[str, Any] = msgspec.msgpack.decode(self.buffer[self.reply : self.reply + length])
        return decoded

    # -- deliveries ---------------------------------------------------------------------------------------------

    def slot_at(self, slot: int) -> int:
        return self.slots + slot * DELIVERY.size

    def receive(self, worker: Incarnation) -> list[Delivery]:
        """Everything new in the delivery ring."""
        found = []
        head, tail = self.get("delivery_head"), self.get("delivery_tail")
        while head < tail:
            slot = atomics.load32(self.buffer, self.delivery_ring + head % self.slots_n * 4)
            base = self.slot_at(slot)
            word = lambda name, at=base: DELIVERY.unpack(self.buffer, name, at)  # noqa: E731
            if word("state") == PROTOCOL["DELIVERY_HELD"] and word("pushed_at") == head:
                try:
                    body = worker.body(self.buffer, base)
                except FileNotFoundError:  # flushed since: as a client does, ask where it is now
                    located = self.command("OP_LOCATE", queue=word("queue"), tag=word("sequence"))
                    worker.until(lambda sequence=located: self.get("processed") > sequence)
                    assert self.result(located) == OK
                    body = worker.body(self.buffer, base)
                found.append(
                    Delivery(
                        slot,
                        word("queue"),
                        word("sequence"),
                        bool(word("flags") & 1),
                        word("delivery_count"),
                        body,
                        word("flags") >> PROTOCOL["DELIVERY_LOCATION_SHIFT"],
                        word("flags") >> PROTOCOL["DELIVERY_REASON_SHIFT"] & PROTOCOL["DELIVERY_REASON_MASK"],
                        word("priority"),
                        (head + 1) << layout.HANDED_BITS & 0xFFFFFFFF,
                    )
                )
            head += 1
        self.put("delivery_head", head)
        return found

    def hand_out(self, item: Delivery) -> None:
        """What a client writes when it gives a message to its program."""
        self.say_of(item, "HANDED_OUT")

    def say_of(self, item: Delivery, state: str) -> None:
        """Write the word beside its slot; nobody else is at it."""
        word = item.mark | CONSTANTS[state]
        atomics.store32(self.buffer, self.handed + item.slot * layout.HANDED_BYTES, word)

    def said_of(self, item: Delivery) -> int:
        """HANDED_… of the delivery; 0: its word says nothing of it."""
        word = atomics.load32(self.buffer, self.handed + item.slot * layout.HANDED_BYTES)
        bits = layout.HANDED_BITS
        return word & ((1 << bits) - 1) if word >> bits == item.mark >> bits else 0

    def held_slots(self) -> int:
        """Slots that the shared memory shows as held."""
        return sum(DELIVERY.unpack(self.buffer, "state", self.slot_at(slot)) for slot in range(self.slots_n))


@dataclass
class Incarnation:
    """One life of the worker."""

    node: Node
    service: QueueService
    engine: _core.QueueEngine
    images: _Region
    timages: _Region
    stats: _Region
    epoch: int

    def finished(self, peer: Peer) -> bool:
        """The worker has let go of a client that ended."""
        return peer.slot not in [row[0] for row in self.engine.attached()]

    def turns(self, n: int = 1) -> None:
        """Serve until there is nothing to do now, n times. A worker that waits for a journal file has nothing to do:
        who relies on what was submitted waits for its result with `until`.
        """
        for _ in range(n):
            while not self.service.turn(5_000_000_000, False) & _core.QUEUE_EVENT_TIMER or self.node.store.step():
                pass

    def until(self, condition: Callable[[], object]) -> None:
        """Serve until something is true. The test's own time limit ends it if it never is."""
        while not condition():
            self.service.turn(20_000_000)
            self.node.store.step()

    def body(self, buffer: memoryview, base: int) -> bytes:
        """Body (with metadata) of a delivery, as a client finds it: image, else file."""
        word = lambda name: DELIVERY.unpack(buffer, name, base)  # noqa: E731
        file, offset, length = word("file"), word("offset"), word("frame_length")
        location = word("flags") >> PROTOCOL["DELIVERY_LOCATION_SHIFT"]
        folder = self.node.folder
        data: bytes | None
        if location == PROTOCOL["LOCATION_SEGMENT"]:
            data = folder.data_file(file).read_bytes()[offset : offset + length]
        elif location in (PROTOCOL["LOCATION_JOURNAL"], PROTOCOL["LOCATION_JOURNAL_TRANSIENT"]):
            transient = location == PROTOCOL["LOCATION_JOURNAL_TRANSIENT"]
            images = self.timages if transient else self.images
            data = _core.image_read(images.buffer, self.node.images_n, self.node.file_bytes, file, offset, length)
            if data is None:
                path = folder.transient_file(file) if transient else folder.journal_file(file)
                data = path.read_bytes()[offset : offset + length]
        else:
            return b""
        assert data[8:24] == DELIVERY.get_bytes(buffer, "id", base)
        start = word("blob_offset")
        return data[start : start + word("body_length")]

    def stop(self) -> bool:
        """A stop in good order."""
        return self.service.stop()

    def kill(self) -> None:
        """What kill -9 leaves: the images as they are, files as far as written; nothing is finished."""
        self.service.release()


class FakeStore:
    """The persistent store as a worker sees it: takes its commands in order, when told to."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.directory = _Region(node.geometry["directory_rows"] * 8)
        self.ids: set[bytes] = set()
        self.log: list[tuple[str, bytes]] = []
        self.confirm = True  #: raise `head`, too
        self.region: _Region | None = None

    def up(self, epoch: int = 1) -> None:
        self.node.superblock.server_set(0, "state", CONSTANTS["SERVER_READY"])
        self.node.superblock.server_set(0, "epoch", epoch)

    def down(self) -> None:
        self.node.superblock.server_set(0, "state", CONSTANTS["SERVER_DOWN"])

    def step(self) -> int:
        """Execute what the worker submitted; returns how many commands."""
        if self.region is None or self.node.superblock.server_get(0, "state") != CONSTANTS["SERVER_READY"]:
            return 0
        buffer, g = self.region.buffer, self.node.geometry
        page = lambda n: (n + PAGE - 1) // PAGE * PAGE  # noqa: E731
        ring = PAGE + page(g["servers_n"] * LINK.size)
        replies = ring + page(g["servers_n"] * g["ring_records"] * COMMAND.size)
        arena = replies + page(g["servers_n"] * g["reply_bytes"])
        at = lambda name: PAGE + LINK.offset(name)  # noqa: E731
        tail = atomics.load64(buffer, at("tail"))
        done = atomics.load64(buffer, at("processed"))
        n = tail - done
        for sequence in range(done, tail):
            base = ring + sequence % g["ring_records"] * COMMAND.size
            op = COMMAND.unpack(buffer, "op", base)
            blob = arena + COMMAND.unpack(buffer, "body", base) % g["arena_bytes"]
            count = COMMAND.unpack(buffer, "count", base)
            ids = [bytes(buffer[blob + i * 16 : blob + i * 16 + 16]) for i in range(count)]
            if op == PROTOCOL["OP_STORE_WRITE"]:
                id = COMMAND.get_bytes(buffer, "id", base)
                if COMMAND.unpack(buffer, "flying", base) == PROTOCOL["FLYING_ELIMINATED"]:
                    self.log.append(("eliminated", id))
                else:
                    COMMAND.pack_into(buffer, "flying", PROTOCOL["FLYING_TAKEN"], base)
                    self.ids.add(id)
                    self.log.append(("write", id))
            elif op == PROTOCOL["OP_STORE_REMOVE"]:
                self.ids -= set(ids)
                self.log += [("remove", id) for id in ids]
            elif op == PROTOCOL["OP_STORE_RESYNC_IDS"]:
                buffer[replies : replies + count] = bytes(int(id in self.ids) for id in ids)
                self.log += [("resync", id) for id in ids]
        for name in ("processed", *(("written", "synced", "head") if self.confirm else ())):
            atomics.store64(buffer, at(name), tail)
        return n


@dataclass
class Node:
    """A directory, a superblock, and what lives on over the worker's deaths."""

    path: Path
    queues: list[Queue] = field(default_factory=lambda: [Queue(1)])
    file_bytes: int = FILE_BYTES
    images_n: int = 3
    journal_files_max: int = 8
    memory_bytes: int = 0
    reached: Callable[[str], None] = lambda point: None
    said: Heard = field(default_factory=Heard)
    ring_records: int = 1024
    delivery_slots: int = 256
    with_store: bool = False

    def __post_init__(self) -> None:
        self.geometry = {
            "servers_n": 3,
            "ring_records": self.ring_records,
            "delivery_slots": self.delivery_slots,
            "arena_bytes": 1 << 22,
            "message_bytes_max": 200_000,
            "shared_bytes_max": 200_000,
            "embed_bytes_max": 4096,
            "reply_bytes": 65536,
            "directory_rows": 4096,
            "dense_blocks": 64,
        }
        self.superblock = _Superblock(self.geometry)
        self.superblock.set("catalog_version", 1)
        self.folder = Folder.of(self.path, 0)
        self.peers: list[Peer] = []
        self.old_images: _Region | None = None
        self.epoch = 0
        self.salvaged = 0
        self.store = FakeStore(self)

    def region_bytes(self, delivery_slots: int) -> int:
        """Size of a client's region."""
        g = self.geometry
        base = layout.client_base_bytes(g["servers_n"], g["ring_records"], g["reply_bytes"], g["arena_bytes"])
        return base + layout.client_slots_bytes(delivery_slots)

    def tell_catalog(self, version: int) -> None:
        """`queues` are another version now, and that concerns the worker."""
        self.superblock.set("catalog_version", version)
        self.superblock.queues_changed([0], version)

    def peer(self, worker: Incarnation | None = None, delivery_slots: int = 0) -> Peer:
        """A new client, attached to the worker that runs; `delivery_slots`: its row says that it has so many."""
        found = Peer(self, len(self.peers) + 1, 1000 + len(self.peers), delivery_slots)
        self.superblock.say_slots(found.slot, delivery_slots)
        self.peers.append(found)
        if worker is not None:
            worker.service.take_up(found.slot, found.generation, found.epoch, found.region)
        return found

    def _open_store(self, engine: _core.QueueEngine, store: int) -> None:
        if store == 0:
            engine.set_store(0, self.superblock.server_get(0, "epoch"), self.store.directory.buffer)

    def worker_is_clean(self) -> bool:
        """Start a worker, ask whether the start was a clean one, kill it."""
        worker = self.worker()
        clean = worker.service.recovered.clean
        worker.kill()
        return clean

    def worker(self, salvage: bool = True, begin: bool = True) -> Incarnation:
        """Start a worker over what is there."""
        self.folder.make()
        held: dict[int, memoryview] = {}
        if self.old_images is not None and salvage:
            old = self.old_images.buffer
            self.salvaged = journal_images.salvage(old, self.images_n, self.file_bytes, self.folder)
            held = journal_images.held_files(old, self.images_n, self.file_bytes, self.folder)
        size = PAGE + self.images_n * self.file_bytes
        images, timages, stats = _Region(size), _Region(size), _Region(64 * QUEUE_STATS.size)
        own = self.store.region = _Region(self.region_bytes(self.delivery_slots)) if self.with_store else None
        engine = _core.QueueEngine(
            self.superblock.buffer,
            SERVER_INDEX,
            images.buffer,
            timages.buffer,
            stats.buffer,
            own.buffer if own else None,
            200,
            self.epoch + 1,
            5000 + self.epoch,
            images_n=self.images_n,
            file_bytes=self.file_bytes,
            spin_us=0,
            tick_ms=25,
            commit_bytes=1 << 20,
            journal_files_max=self.journal_files_max,
        )
        service = QueueService(
            engine,
            Options(
                superblock=self.superblock,
                worker=0,
                folder=self.folder,
                node_id=7,
                file_bytes=self.file_bytes,
                reply_bytes=65536,
                memory_bytes=self.memory_bytes,
                load_catalog=lambda: list(self.queues),
                open_store=lambda store: self._open_store(engine, store),
                say=self.said,
                reached=self.reached,
            ),
        )
        self.old_images = images
        try:
            service.start(held)
            for one in self.peers:
                service.take_up(one.slot, one.generation, one.epoch, one.region)
        except BaseException:
            service.release()
            raise
        self.epoch += 1
        self.superblock.server_set(SERVER_INDEX, "epoch", self.epoch)
        if begin:
            service.begin(self.epoch)
        return Incarnation(self, service, engine, images, timages, stats, self.epoch)


assert SERVER.size == 512
