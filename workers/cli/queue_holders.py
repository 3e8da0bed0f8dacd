"""The clients that hold messages of a queue, read from their delivery slots in shared memory.

The queue worker writes a slot, with the id of the message's queue (engine/kernel/protocol.py: DELIVERY). The counts are
a snapshot: they may change while they are read.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

from warren.engine.kernel.protocol import DELIVERY, PROTOCOL
from warren.ipc import region
from warren.ipc.layout import LINK, PAGE_BYTES, SERVER_WORKER_FIRST, client_slots_bytes
from warren.ipc.superblock import SlotView, Superblock

_HELD, _ALONE = PROTOCOL["DELIVERY_HELD"], PROTOCOL["DELIVERY_EXCLUSIVE"]
_SLOT = struct.Struct(f"=II{DELIVERY.size - 8}x")  # state, queue


def holders(superblock: Superblock, queue: int, worker: int) -> list[dict[str, Any]]:
    """A map for each client that holds messages of a queue, or consumes it alone: `client`, `pid`, `slot`, `unacked`,
    `alone`; those with most messages first.
    """
    rows = []
    for view in superblock.slots():
        found = _states(superblock, view, queue, worker)
        if found:
            told = {"client": view.name, "pid": view.pid or None, "slot": view.slot}
            rows.append({**told, "unacked": found[_HELD], "alone": bool(found[_ALONE])})
    return sorted(rows, key=lambda row: (-row["unacked"], row["slot"]))


def _states(superblock: Superblock, view: SlotView, queue: int, worker: int) -> Counter[int]:
    """How many delivery slots of a client name the queue, by their state."""
    try:
        memory = region.sysv_attach(view.shmid, read_only=True)
    except region.RegionError:  # it attaches or leaves just now
        return Counter()
    try:
        slots = view.delivery_slots or superblock.get("delivery_slots")
        link = PAGE_BYTES + (SERVER_WORKER_FIRST + worker) * LINK.size
        begin = superblock.get("client_base_bytes") + worker * client_slots_bytes(slots)
        if memory.size < begin + client_slots_bytes(slots):
            return Counter()
        end = begin + min(LINK.unpack(memory.buffer, "slots_used", link), slots) * DELIVERY.size
        with memory.buffer[begin:end] as part:
            return Counter(state for state, of in _SLOT.iter_unpack(part) if state and of == queue)
    finally:
        memory.close()
