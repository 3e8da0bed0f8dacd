"""The node's superblock: who serves, who is attached, what state the node is in.

Invariants
  `magic` is written last: a half-made superblock is never attached.
  A slot's ownership lives inside its claim word (pid, generation, state); each change is one compare-and-swap.
  A slot's identity fields are written only by the process named in its claim word, between CLAIMED and ACTIVE.
  The first slots belong to queue workers (WORKER_SLOTS each), and clients never take them: who waits for a worker
  keeps a slot, so without some of its own a worker could wait for them, and they for it.
Crash points
  after CLAIMED, before ACTIVE: the supervisor frees the slot and removes the segment recorded in it
  after ACTIVE, before the mailbox message: the supervisor's periodic scan finds it
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from warren.ipc import _core, layout, names
from warren.ipc.identity import Identity, Namespaces, pid_namespace
from warren.ipc.layout import CLIENT, CONSTANTS, SERVER, SLOT, SUPERBLOCK
from warren.ipc.region import Region, RegionError, posix_create, posix_inode, posix_names, posix_open, posix_unlink

FREE = CONSTANTS["SLOT_FREE"]
CLAIMED = CONSTANTS["SLOT_CLAIMED"]
ACTIVE = CONSTANTS["SLOT_ACTIVE"]
LEAVING = CONSTANTS["SLOT_LEAVING"]
DEAD = CONSTANTS["SLOT_DEAD"]

#: fields of the superblock that `create` takes by name; and topic_server, if it is given
GEOMETRY = (
    "servers_n",
    "ring_records",
    "delivery_slots",
    "arena_bytes",
    "message_bytes_max",
    "shared_bytes_max",
    "embed_bytes_max",
    "reply_bytes",
    "file_bytes",
    "images_n",
    "directory_rows",
    "dense_blocks",
    "summary_rows",
)


@dataclass(frozen=True)
class SlotView:
    """What one client slot says at one moment."""

    slot: int
    claim: int
    pid: int
    generation: int
    state: int
    start_time: int
    client_epoch: int
    shmid: int
    delivery_slots: int  #: 0: as many as the superblock says
    namespace: int
    name: str

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.start_time, self.namespace)


class SlotsFull(Exception):
    """All client slots are taken, or those of a queue worker."""


class Superblock:
    """A mapped superblock. `.buffer` is the whole region, for the C core."""

    def __init__(self, region: Region, shared_id: int) -> None:
        self._region = region
        self.buffer = region.buffer
        self.shared_id = shared_id

    # -- making and finding -------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        shared_id: int,
        node_epoch: int,
        live_semaphore_key: int,
        store_lock_key: int,
        geometry: dict[str, int],
        *,
        layout_hash: int,
        node_id: int = 0,
        place: tuple[int, int] = (0, 0),
        directory: str = "",
    ) -> Superblock:
        """Make the superblock of a node in state CREATING. Raises RegionError (EEXIST, ENOSPC).

        `layout_hash` covers what its users put into shared memory: they refuse another one.
        `place` are device and inode of the `directory`; a node without one has only the one number.
        """
        region = posix_create(names.superblock(shared_id), layout.SUPERBLOCK_BYTES)
        buffer = region.buffer
        here = Namespaces.current()
        values = {
            "layout_hash": layout_hash,
            "node_id": node_id or shared_id,
            "shared_id": shared_id,
            "place_device": place[0],
            "place_inode": place[1],
            "pid_namespace": here.pid,
            "ipc_namespace": here.ipc,
            "time_namespace": here.time,
            "node_epoch": node_epoch,
            "client_epoch_next": (node_epoch << 32) + 1,
            "live_semaphore_key": live_semaphore_key,
            "store_lock_key": store_lock_key,
            **{name: geometry[name] for name in GEOMETRY},
            "topic_server": geometry.get("topic_server", 0),
        }
        values["client_base_bytes"] = layout.client_base_bytes(
            geometry["servers_n"],
            geometry["ring_records"],
            geometry["reply_bytes"],
            geometry["arena_bytes"],
        )
        for name, value in values.items():
            SUPERBLOCK.pack_into(buffer, name, value)
        for name, content in (("directory", os.fsencode(directory)), ("names_key", os.urandom(16))):
            SUPERBLOCK.set_bytes(buffer, name, content[: SUPERBLOCK.by_name[name].size])
        _core.store64(buffer, SUPERBLOCK.offset("magic"), layout.SUPERBLOCK_MAGIC)
        return cls(region, shared_id)

    @classmethod
    def attach(cls, shared_id: int, layout_hash: int, owner: int = -1) -> Superblock:
        """Map a living superblock; `owner`: the user whose it has to be. Raises RegionError: ENOENT (no node runs),
        EACCES, EPROTO (another hash); ForeignRegion (a user of no concern has made something of that name).
        """
        name = names.superblock(shared_id)
        if not shared_id:
            raise RegionError(2, "the node has no superblock yet")
        region = posix_open(name, owner=owner)
        try:
            if region.size < layout.SUPERBLOCK_BYTES or (
                _core.load64(region.buffer, SUPERBLOCK.offset("magic")) != layout.SUPERBLOCK_MAGIC
            ):
                raise RegionError(2, f"superblock {name} is still being made")
            if SUPERBLOCK.unpack(region.buffer, "layout_hash") != layout_hash:
                raise RegionError(71, f"superblock {name} was made by another version of Warren: stop that node first")
            if SUPERBLOCK.unpack(region.buffer, "shared_id") != shared_id:
                raise RegionError(71, f"superblock {name} belongs to another node")
        except RegionError:
            region.close()
            raise
        return cls(region, shared_id)

    def close(self) -> None:
        """Unmap."""
        self._region.close()

    def unlink(self) -> None:
        """Remove the name; mappings stay valid. Raises RegionError."""
        posix_unlink(names.superblock(self.shared_id))

    @property
    def named(self) -> bool:
        """True while its name leads to it: nobody has removed it or made another one. Raises OSError: not known."""
        return posix_inode(self._region.name) == self._region.inode

    @property
    def owner(self) -> tuple[int, int]:
        """The user whose processes made it, and the group that may use it, too (access.ALONE: none)."""
        return self._region.owner

    @property
    def namespaces(self) -> Namespaces:
        """Those of the servers; only /dev/shm is not told, which is where this was found."""
        return Namespaces(self.get("pid_namespace"), self.get("ipc_namespace"), self.get("time_namespace"), 0)

    @property
    def directory(self) -> str:
        """Path of the data directory when this was made, as far as it had room: for people."""
        return os.fsdecode(SUPERBLOCK.get_bytes(self.buffer, "directory").rstrip(b"\0"))

    @property
    def place(self) -> tuple[int, int]:
        """Device and inode of the data directory; zeros: it has none."""
        return self.get("place_device"), self.get("place_inode")

    # -- regions of servers -------------------------------------------------------------------------------------

    def region_name(self, what: str, server: int, generation: int) -> str:
        """The name of a region of a server."""
        return _core.region_name(self.buffer, what, server, generation)

    def generations(self, what: str, server: int) -> list[int]:
        """Generations of a server's regions of a kind that have a name now, in order. What others have put between them
        has none of these names.
        """
        prefix = names.regions(self.shared_id, what, server)
        found = []
        for name in posix_names(prefix):
            number = name.removeprefix(prefix).partition("-")[0]
            whole = number.isascii() and number.isdigit() and int(number) < 1 << 64
            if whole and name == self.region_name(what, server, int(number)):
                found.append(int(number))
        return sorted(found)

    # -- node ---------------------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """The id that stands in the headers of the node's files."""
        return SUPERBLOCK.unpack(self.buffer, "node_id")

    def get(self, name: str) -> int:
        """A scalar field of the first page (acquire load for atomics)."""
        field = SUPERBLOCK.by_name[name]
        if field.type == "a64":
            return _core.load64(self.buffer, field.offset)
        if field.type == "a32":
            return _core.load32(self.buffer, field.offset)
        return SUPERBLOCK.unpack(self.buffer, name)

    def set(self, name: str, value: int) -> None:
        """Store a scalar field of the first page (release store for atomics)."""
        field = SUPERBLOCK.by_name[name]
        if field.type == "a64":
            _core.store64(self.buffer, field.offset, value)
        elif field.type == "a32":
            _core.store32(self.buffer, field.offset, value)
        else:
            SUPERBLOCK.pack_into(self.buffer, name, value)

    def raise_alarm(self, bit: int) -> None:
        """An alarm of the node, before the supervisor knows of it."""
        _core.or64(self.buffer, SUPERBLOCK.offset("alarms"), bit)

    def add(self, name: str, value: int = 1) -> int:
        """Fetch-add on an a64 field; returns the value before."""
        return _core.add64(self.buffer, SUPERBLOCK.offset(name), value)

    @property
    def state(self) -> int:
        """NODE_…"""
        return self.get("state")

    @property
    def servers_n(self) -> int:
        return self.get("servers_n")

    @property
    def topic_server(self) -> int:
        """The topic worker's number, 0: this node has none. It need not run."""
        return self.get("topic_server")

    @property
    def queue_workers(self) -> range:
        """The servers that are queue workers. Twin of wr_workers_end (ipc/core/view.h)."""
        return range(layout.SERVER_WORKER_FIRST, self.topic_server or self.servers_n)

    @property
    def workers_n(self) -> int:
        """How many queue workers the node has."""
        return len(self.queue_workers)

    def role_of(self, server: int) -> str:
        """The name of a server's process, as in `warren status` and in its log: store, worker-<i>, topics."""
        return names.TOPICS if server and server == self.topic_server else names.role_of(server)

    def server_name(self, server: int) -> str:
        """The name of a server: that of its process, but the two servers of the store are told apart."""
        return "store-transient" if server == layout.SERVER_STORE_TRANSIENT else self.role_of(server)

    @property
    def supervisor(self) -> Identity:
        """Identity of the supervisor that wrote the superblock last."""
        return Identity(self.get("supervisor_pid"), self.get("supervisor_start"), pid_namespace())

    def set_supervisor(self, identity: Identity) -> None:
        self.set("supervisor_pid", identity.pid)
        self.set("supervisor_start", identity.start_time)

    @property
    def collector(self) -> Identity:
        """Identity of the collector that the supervisor started last; pid 0 when there never was one."""
        return Identity(self.get("collector_pid"), self.get("collector_start"), pid_namespace())

    def set_collector(self, pid: int, start_time: int) -> None:
        """The start time first: a pid without its start time is nobody."""
        self.set("collector_pid", 0)
        self.set("collector_start", start_time)
        self.set("collector_pid", pid)

    # -- gateways -----------------------------------------------------------------------------------------------

    def _gateway_at(self, index: int, name: str) -> tuple[int, bool]:
        """Byte offset of a field of a gateway, and whether it has eight bytes."""
        field = SUPERBLOCK.by_name[f"gateway_{name}"]
        assert 0 <= index < field.count
        wide = field.type == "u64"
        return field.offset + index * (8 if wide else 4), wide

    def gateway_get(self, index: int, name: str) -> int:
        """pid, start, state, restarts or connections of an AMQP gateway."""
        at, wide = self._gateway_at(index, name)
        return _core.load64(self.buffer, at) if wide else _core.load32(self.buffer, at)

    def gateway_set(self, index: int, name: str, value: int) -> None:
        """Store one of these."""
        at, wide = self._gateway_at(index, name)
        (_core.store64 if wide else _core.store32)(self.buffer, at, value)

    def gateway_identity(self, index: int) -> Identity:
        """Identity of the gateway that the supervisor started last; pid 0 when there never was one."""
        return Identity(self.gateway_get(index, "pid"), self.gateway_get(index, "start"), pid_namespace())

    def set_gateway(self, index: int, pid: int, start_time: int) -> None:
        """The start time first, as of the collector."""
        self.gateway_set(index, "pid", 0)
        self.gateway_set(index, "start", start_time)
        self.gateway_set(index, "pid", pid)

    # -- crash points -------------------------------------------------------------------------------------------

    def crash_point(self, point: int) -> None:
        """A named place (layout.CRASH_…): when a test armed it, this process dies here. Twin of ipc/core/crash.h."""
        at = SUPERBLOCK.offset("crash_point")
        while (seen := _core.load64(self.buffer, at)) & 0xFFFFFFFF == point:  # `crash_after` is the upper half
            after = seen >> 32
            if after:
                if _core.cas64(self.buffer, at, seen, after - 1 << 32 | point):
                    return
            elif _core.cas64(self.buffer, at, seen, 0):  # of several processes at the same point one dies
                os.kill(os.getpid(), signal.SIGKILL)

    def arm_crash(self, name: str, after: int = 0) -> None:
        """Whoever reaches the point of this name (layout.CRASH_POINTS) after so many passes kills itself. For tests."""
        point = CONSTANTS[f"CRASH_{name.upper()}"]
        _core.store64(self.buffer, SUPERBLOCK.offset("crash_point"), after << 32 | point)

    def disarm_crash(self) -> None:
        """No point is armed any more."""
        _core.store64(self.buffer, SUPERBLOCK.offset("crash_point"), 0)

    @property
    def armed_crash(self) -> str | None:
        """Name of the point that is armed and was not reached yet."""
        point = _core.load32(self.buffer, SUPERBLOCK.offset("crash_point"))
        return layout.CRASH_POINTS[point - 1] if point else None

    # -- servers ------------------------------------------------------------------------------------------------

    def server_at(self, server: int, name: str) -> int:
        """Byte offset of a server's field in the superblock."""
        return layout.SUPERBLOCK_SERVERS_AT + server * SERVER.size + SERVER.offset(name)

    def server_get(self, server: int, name: str) -> int:
        """A field of a server (acquire load for atomics)."""
        field = SERVER.by_name[name]
        offset = self.server_at(server, name)
        if field.type == "a64":
            return _core.load64(self.buffer, offset)
        if field.type in ("a32", "u32"):
            return _core.load32(self.buffer, offset)
        return SERVER.unpack(self.buffer, name, offset - field.offset)

    def server_set(self, server: int, name: str, value: int) -> None:
        """Store a field of a server (release store)."""
        if SERVER.by_name[name].size == 4:
            _core.store32(self.buffer, self.server_at(server, name), value)
        else:
            _core.store64(self.buffer, self.server_at(server, name), value)

    def server_add(self, server: int, name: str, more: int) -> None:
        """Add to a field of a server, which has one writer at a time."""
        self.server_set(server, name, self.server_get(server, name) + more)

    def server_alarm(self, server: int, alarm: int, on: bool) -> None:
        """Raise or clear an alarm (ALARM_…) of a server; the supervisor sums up those of all."""
        alarms = self.server_get(server, "alarms")
        self.server_set(server, "alarms", alarms | alarm if on else alarms & ~alarm)

    def server_identity(self, server: int) -> Identity:
        """Identity of the process that serves `server`; pid 0 when there never was one."""
        return Identity(self.server_get(server, "pid"), self.server_get(server, "start_time"), pid_namespace())

    def ring(self, server: int) -> None:
        """Wake a server if it sleeps (both stores sleep on the persistent one's word)."""
        target = layout.SERVER_STORE_PERSISTENT if server == layout.SERVER_STORE_TRANSIENT else server
        _core.bell_ring(self.buffer, self.server_at(target, "sleeping"))

    def ring_all(self) -> None:
        """Wake every sleeping server."""
        for server in range(self.servers_n):
            self.ring(server)

    def queues_gone(self, queues: Iterable[int], version: int) -> None:
        """Queues with these ids went with a version of the catalog, which was told before: for who has handles."""
        at = SUPERBLOCK.offset("queue_gone")
        for row in {queue % layout.QUEUE_GONE_ROWS for queue in queues}:
            _core.store64(self.buffer, at + 8 * row, version)

    def queues_changed(self, workers: Iterable[int], version: int) -> None:
        """Queues of these workers came or went with a version of the catalog, which was told before: wake them."""
        for worker in workers:
            self._changed(layout.SERVER_WORKER_FIRST + worker, version)

    def topics_changed(self, version: int) -> None:
        """Topics came or went with a version of the catalog, which was told before: wake the topic worker."""
        if server := self.topic_server:
            self._changed(server, version)

    def _changed(self, server: int, version: int) -> None:
        self.server_set(server, "queues_version", version)
        self.ring(server)

    # -- client slots -------------------------------------------------------------------------------------------

    def slot_at(self, slot: int, name: str) -> int:
        """Byte offset of a slot's field in the superblock."""
        return layout.SUPERBLOCK_SLOTS_AT + slot * SLOT.size + SLOT.offset(name)

    def slot(self, slot: int) -> SlotView:
        """What a slot says now."""
        claim = _core.load64(self.buffer, self.slot_at(slot, "claim"))
        base = self.slot_at(slot, "claim")
        return SlotView(
            slot,
            claim,
            claim >> 32,
            claim >> 8 & 0xFFFFFF,
            claim & 0xFF,
            SLOT.unpack(self.buffer, "start_time", base),
            SLOT.unpack(self.buffer, "client_epoch", base),
            SLOT.unpack(self.buffer, "shmid", base),
            _core.load32(self.buffer, self.slot_at(slot, "delivery_slots")),
            SLOT.unpack(self.buffer, "pid_namespace", base),
            SLOT.get_bytes(self.buffer, "name", base).rstrip(b"\0").decode("utf-8", "replace"),
        )

    def slots(self) -> Iterator[SlotView]:
        """Every slot that is not free."""
        for slot in range(layout.CLIENT_SLOTS):
            if _core.load64(self.buffer, self.slot_at(slot, "claim")) & 0xFF != FREE:
                yield self.slot(slot)

    def slot_move(self, view: SlotView, state: int) -> bool:
        """Compare-and-swap a slot from what `view` saw to `state`, same pid and generation; False when it changed.

        FREE keeps the generation and forgets the pid, so that no late writer can mistake the next owner for itself.
        """
        pid = 0 if state == FREE else view.pid
        claim = pid << 32 | view.generation << 8 | state
        return _core.cas64(self.buffer, self.slot_at(view.slot, "claim"), view.claim, claim)

    def slots_changed(self) -> None:
        """Tell the servers that a slot changed."""
        self.add("slots_version")
        self.ring_all()

    def slots_of_worker(self, worker: int) -> range:
        """The slots that only this queue worker claims."""
        return range(layout.WORKER_SLOTS * worker, layout.WORKER_SLOTS * (worker + 1))

    @property
    def client_slots(self) -> range:
        """The slots that clients claim: those behind the workers'."""
        return range(layout.WORKER_SLOTS * self.workers_n, layout.CLIENT_SLOTS)

    def worker_of(self, slot: int) -> int:
        """The queue worker that a slot belongs to; -1: a client's."""
        return -1 if slot in self.client_slots else slot // layout.WORKER_SLOTS

    def claim(self, identity: Identity, name: str, worker: int = -1, delivery_slots: int = 0) -> SlotView:
        """Claim a free slot for this process (state CLAIMED, identity written, client_epoch drawn); `worker`: one of
        this queue worker's. `delivery_slots`: how many its region will have for each queue worker, a power of two up to
        layout.DELIVERY_SLOTS_MAX; 0: the node's number.

        Raises SlotsFull. The caller makes its segment (of `region_bytes`), calls `activate`, and posts `register`.
        """
        slots = self.client_slots if worker < 0 else self.slots_of_worker(worker)
        start = identity.pid * 31 % len(slots)
        for step in range(len(slots)):
            slot = slots[(start + step) % len(slots)]
            offset = self.slot_at(slot, "claim")
            seen = _core.load64(self.buffer, offset)
            if seen & 0xFF != FREE:
                continue
            generation = (seen >> 8) + 1 & 0xFFFFFF
            generation += not generation & 0xFF  # its low byte in `server_done` must differ from what is there at first
            if not _core.cas64(self.buffer, offset, seen, identity.pid << 32 | generation << 8 | CLAIMED):
                continue
            epoch = self.add("client_epoch_next")
            SLOT.pack_into(self.buffer, "shmid", -1, offset)
            _core.store32(self.buffer, self.slot_at(slot, "delivery_slots"), delivery_slots)
            SLOT.pack_into(self.buffer, "start_time", identity.start_time, offset)
            SLOT.pack_into(self.buffer, "client_epoch", epoch, offset)
            SLOT.pack_into(self.buffer, "pid_namespace", identity.namespace, offset)
            SLOT.set_bytes(
                self.buffer,
                "name",
                name.encode("utf-8", "backslashreplace")[:48].decode("utf-8", "ignore").encode(),
                offset,
            )
            SLOT.set_bytes(self.buffer, "server_done", b"", offset)
            SLOT.pack_into(self.buffer, "holds", 0, offset)
            return self.slot(slot)
        if worker >= 0:
            raise SlotsFull(f"the store server has not finished with what died in the slots of queue worker {worker}")
        raise SlotsFull(f"all {len(slots)} client slots are taken: close clients that are not needed")

    def region_bytes(self, delivery_slots: int = 0) -> int:
        """Size of the region of a client with so many delivery slots for each queue worker; 0: the node's number."""
        each = layout.client_slots_bytes(delivery_slots or self.get("delivery_slots"))
        return self.get("client_base_bytes") + self.workers_n * each

    def late_parts(self, delivery_slots: int = 0) -> list[tuple[int, int]]:
        """Parts of such a region (from, bytes) that are memory only where they are used: the topic worker's link, and
        most of very many delivery slots.
        """
        sizes = (self.get(name) for name in ("servers_n", "ring_records", "reply_bytes"))
        found = layout.client_link_parts(self.topic_server, *sizes) if self.topic_server else []
        slots = delivery_slots or self.get("delivery_slots")
        return found + layout.client_late_slots(self.get("client_base_bytes"), self.workers_n, slots)

    def set_segment(self, view: SlotView, shmid: int) -> None:
        """Record the segment of a claimed slot, so that it can be removed if its owner dies now."""
        SLOT.pack_into(self.buffer, "shmid", shmid, self.slot_at(view.slot, "claim"))

    def sign(self, region: Region) -> None:
        """Write the node's number into a client's new region: it may be found when the superblock is gone."""
        CLIENT.pack_into(region.buffer, "shared_id", self.shared_id)
        CLIENT.pack_into(region.buffer, "shm_device", Namespaces.current().shm)

    def give_back(self, view: SlotView) -> bool:
        """Free a slot that nobody uses (any more); False when it changed. Its segment is the caller's business.

        Who was there is forgotten first: what stands in a CLAIMED slot was written by its claimer.
        """
        if self.slot(view.slot).claim != view.claim:
            return False
        base = self.slot_at(view.slot, "claim")
        for name in ("start_time", "client_epoch", "delivery_slots", "pid_namespace", "holds"):
            SLOT.pack_into(self.buffer, name, 0, base)
        SLOT.pack_into(self.buffer, "shmid", -1, base)
        SLOT.set_bytes(self.buffer, "name", b"", base)
        return self.slot_move(view, FREE)

    def activate(self, view: SlotView) -> SlotView:
        """CLAIMED → ACTIVE, and tell the servers. The region must be formatted by now."""
        if not self.slot_move(view, ACTIVE):
            raise RuntimeError(f"client slot {view.slot} was taken away while it was being set up")
        self.slots_changed()
        return self.slot(view.slot)

    def leave(self, slot: int, generation: int) -> bool:
        """ACTIVE → LEAVING, and tell the servers; False when the slot is no longer this client's."""
        view = self.slot(slot)
        if view.generation != generation or view.state != ACTIVE or not self.slot_move(view, LEAVING):
            return False
        self.slots_changed()
        return True

    def server_done(self, slot: int, server: int) -> int:
        """Low 8 bits of the generation whose end `server` has finished handling."""
        return self.buffer[self.slot_at(slot, "server_done") + server]

    def set_server_done(self, slot: int, server: int, generation: int) -> None:
        """Called by a server when nothing of that client is left with it."""
        self.buffer[self.slot_at(slot, "server_done") + server] = generation & 0xFF

    def wait_state(self, wanted: Collection[int], timeout: float) -> bool:
        """Wait until the node's state is one of `wanted`; False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.state not in wanted:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            _core.futex_wait(self.buffer, SUPERBLOCK.offset("state"), self.state, int(min(left, 0.02) * 1e9))
        return True

    def set_state(self, state: int) -> None:
        """Store the node's state and wake who waits for it."""
        self.set("state", state)
        _core.futex_wake(self.buffer, SUPERBLOCK.offset("state"))
