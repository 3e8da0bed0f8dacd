"""A server's side of a client region, driven by hand, for tests of the client's core: nothing is shared or threaded.

The superblock, the client's region and the worker's images are plain bytearrays.
"""

import struct
from typing import Any

from warren.engine import _core
from warren.engine.kernel.protocol import DELIVERY, IMAGE, PROTOCOL
from warren.ipc import _core as atomics
from warren.ipc import layout
from warren.ipc.layout import CLIENT, COMMAND, CONSTANTS, LINK, SERVER, SUPERBLOCK

PAGE = layout.PAGE_BYTES
WORKER = layout.SERVER_WORKER_FIRST
GEOMETRY = {
    "servers_n": 4,
    "ring_records": 64,
    "delivery_slots": 64,
    "reply_bytes": 4096,
    "arena_bytes": 65536,
    "message_bytes_max": 20_000,
    "images_n": 2,
    "file_bytes": 262_144,
    "directory_rows": 64,
    "dense_blocks": 64,
    "summary_rows": 64,
}


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


class FakeNode:
    """A node of two workers for one client, as memory."""

    def __init__(self, **changes: int) -> None:
        self.geometry = GEOMETRY | changes
        g = self.geometry
        g.setdefault("shared_bytes_max", g["message_bytes_max"])
        self.superblock = bytearray(layout.SUPERBLOCK_BYTES)
        for name, value in g.items():
            SUPERBLOCK.pack_into(self.superblock, name, value)
        SUPERBLOCK.pack_into(self.superblock, "node_id", 77)
        self.set_node("state", CONSTANTS["NODE_RUNNING"])
        for server in range(g["servers_n"]):
            self.set_server(server, "state", CONSTANTS["SERVER_READY"])
        n = g["servers_n"]
        base = layout.client_base_bytes(n, g["ring_records"], g["reply_bytes"], g["arena_bytes"])
        each = layout.client_slots_bytes(g["delivery_slots"])
        self.region = bytearray(base + (n - WORKER) * each)
        self.links_at = PAGE
        self.rings_at = self.links_at + _pages(n * LINK.size)
        self.replies_at = self.rings_at + _pages(n * g["ring_records"] * COMMAND.size)
        self.slots_at = {server: base + (server - WORKER) * each for server in range(WORKER, n)}
        self.arena_at = self.replies_at + _pages(n * g["reply_bytes"])
        self.images = {
            server: bytearray(PAGE + g["images_n"] * g["file_bytes"]) for server in range(WORKER, g["servers_n"])
        }
        self.image_end = dict.fromkeys(self.images, PAGE)
        self.slots_used = dict.fromkeys(self.images, 0)
        self.trouble: list[tuple[int, int, str]] = []
        self.raising: dict[int, BaseException] = {}
        self.epoch = 1
        self.client: Any = _core.Client(self.superblock, self.region, 5, 9, 0xABCD, self.hook)
        self.client.catalog_seen = 0
        for server in self.images:
            self.restart(server)

    def hook(self, code: int, server: int, what: str, seconds: float = -1.0) -> None:
        """Note the trouble; raise what the test says."""
        self.trouble.append((code, server, what))
        if code in self.raising:
            raise self.raising[code]
        if code == _core.HOOK_EPOCH:
            self.give(server)
        if code == _core.HOOK_CATALOG:
            self.client.catalog_seen = SUPERBLOCK.unpack(self.superblock, "catalog_version")

    def give(self, server: int) -> None:
        """Give the worker's memory to the client."""
        images = self.images[server]
        self.client.set_worker(server, images, images, -1, -1, -1, self.client.link_epoch(server))

    # -- words --------------------------------------------------------------------------------------------------

    def set_node(self, name: str, value: int) -> None:
        """Store a field of the superblock."""
        SUPERBLOCK.pack_into(self.superblock, name, value)

    def queue_gone(self, queue: int, version: int) -> None:
        """A queue with this id went with a version of the catalog."""
        at = SUPERBLOCK.offset("queue_gone") + 8 * (queue % layout.QUEUE_GONE_ROWS)
        self.superblock[at : at + 8] = version.to_bytes(8, "little")

    def set_server(self, server: int, name: str, value: int) -> None:
        """Store a field of a server."""
        SERVER.pack_into(self.superblock, name, value, layout.SUPERBLOCK_SERVERS_AT + server * SERVER.size)

    def link(self, server: int, name: str) -> int:
        """Load a word of a link."""
        return LINK.unpack(self.region, name, self.links_at + server * LINK.size)

    def set_link(self, server: int, name: str, value: int) -> None:
        """Store a word of a link, and wake the client as a server does."""
        LINK.pack_into(self.region, name, value, self.links_at + server * LINK.size)
        atomics.bell_ring(self.region, CLIENT.offset("waiting"))

    def restart(self, server: int) -> None:
        """Another incarnation of the worker takes the link up."""
        self.epoch += 1
        self.set_link(server, "server_epoch", self.epoch)

    # -- commands -----------------------------------------------------------------------------------------------

    def record_at(self, server: int, sequence: int) -> int:
        """Byte offset of a command record."""
        ring = self.geometry["ring_records"]
        return self.rings_at + (server * ring + sequence % ring) * COMMAND.size

    def commands(self, server: int, first: int = 0) -> list[dict[str, Any]]:
        """The submitted commands from `first` on, with their blobs."""
        found = []
        for sequence in range(first, self.link(server, "tail")):
            at = self.record_at(server, sequence)
            record: dict[str, Any] = {
                item.name: COMMAND.unpack(self.region, item.name, at) for item in COMMAND.fields if item.type != "bytes"
            }
            record["id"] = COMMAND.get_bytes(self.region, "id", at)
            start = self.arena_at + record["body"] % self.geometry["arena_bytes"]
            record["blob"] = bytes(self.region[start : start + record["length"]]) if record["length"] else b""
            found.append(record)
        return found

    def ops(self, server: int, first: int = 0) -> list[int]:
        """The operations among them."""
        return [record["op"] for record in self.commands(server, first)]

    def finish(self, server: int, upto: int | None = None, **horizons: bool) -> None:
        """Raise the horizons of a link to `upto` (default: the tail); `written`, `synced`, `head` false leave those."""
        upto = self.link(server, "tail") if upto is None else upto
        for name in ("processed", "written", "synced", "head"):
            if horizons.get(name, True):
                self.set_link(server, name, upto)

    def result(self, server: int, sequence: int, value: int) -> None:
        """Write the result of a command."""
        COMMAND.pack_into(self.region, "result", value, self.record_at(server, sequence))
        if value != PROTOCOL["RESULT_OK"]:
            self.set_link(server, "unusual_until", max(self.link(server, "unusual_until"), sequence + 1))

    # -- deliveries ---------------------------------------------------------------------------------------------

    def deliver(
        self, server: int, queue: int, sequence: int, body: bytes, meta: bytes = b"", flags: int = 0, count: int = 0
    ) -> int:
        """Push one message whose bytes lie in image 0 (file 3); returns its delivery slot."""
        images = self.images[server]
        offset = self.image_end[server] - PAGE + 64
        start = PAGE + offset
        images[start : start + len(meta) + len(body)] = meta + body
        self.image_end[server] = start + len(meta) + len(body)
        for name, value in (("file", 4), ("appended", self.image_end[server] - PAGE)):
            IMAGE.pack_into(images, name, value)
        slots = self.geometry["delivery_slots"]
        slot = self.slots_used[server] % slots
        self.slots_used[server] += 1
        tail = self.link(server, "delivery_tail")
        at = self.slots_at[server] + slot * DELIVERY.size
        values = {
            "queue": queue,
            "sequence": sequence,
            "file": 3,
            "offset": offset,
            "frame_length": len(meta) + len(body),
            "blob_offset": 0,
            "meta_length": len(meta),
            "flags": flags | PROTOCOL["LOCATION_JOURNAL"] << PROTOCOL["DELIVERY_LOCATION_SHIFT"],
            "delivery_count": count,
            "body_length": len(meta) + len(body),
            "pushed_at": tail,
            "state": PROTOCOL["DELIVERY_HELD"],
        }
        DELIVERY.set_bytes(self.region, "id", sequence.to_bytes(16, "big"), at)
        for name, value in values.items():
            DELIVERY.pack_into(self.region, name, value, at)
        ring = self.slots_at[server] + slots * DELIVERY.size
        struct.pack_into("<I", self.region, ring + tail % slots * 4, slot)
        self.set_link(server, "delivery_tail", tail + 1)
        return slot

    def withdraw(self, server: int, slot: int) -> None:
        """Free a delivery slot, as after an ack, or when the message was returned meanwhile."""
        at = self.slots_at[server] + slot * DELIVERY.size
        DELIVERY.pack_into(self.region, "state", PROTOCOL["DELIVERY_FREE"], at)
