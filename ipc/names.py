"""Names of everything that a node shares: POSIX shared memory and message queues are `/warren-<12 hex>-<what>`.

The number in them is the node's `shared_id`. It is made of the node's id and of the place of its directory (device and
inode), so that a copy of a directory, which has the same node id, never finds the shared memory of the original. Who
uses it holds a descriptor of the directory, so that the place cannot be given to another one meanwhile.
"""

from __future__ import annotations

import hashlib
import struct

from warren.ipc.layout import SERVER_WORKER_FIRST

#: the topic worker's process
TOPICS = "topics"


def role_of(server: int) -> str:
    """The name of a server's process: store or worker-<i>. Which one is the topic worker knows `Superblock.role_of`."""
    return "store" if server < SERVER_WORKER_FIRST else f"worker-{server - SERVER_WORKER_FIRST}"


def shared_id(node_id: int, place: tuple[int, int]) -> int:
    """48 bits, never 0: what names the shared memory of the node with this id in the directory at this place."""
    digest = hashlib.blake2b(struct.pack("<3Q", node_id, *place), digest_size=6, person=b"warren-place")
    return int.from_bytes(digest.digest(), "little") or 1


def node_prefix(shared_id: int) -> str:
    """Prefix of all names of one node; `shared_id` has 48 bits."""
    return f"/warren-{shared_id:012x}-"


def superblock(shared_id: int) -> str:
    """The superblock."""
    return node_prefix(shared_id) + "super"


def region(shared_id: int, what: str, server: int, generation: int) -> str:
    """A region made by a server: `what` is images, timages, summary, directory, index, qstats, tring
    or trows."""
    return f"{node_prefix(shared_id)}{what}-{server}-{generation}"


def mailbox(shared_id: int, role: str) -> str:
    """The control mailbox of a process role: supervisor, store (a thread of its process), collector."""
    return f"{node_prefix(shared_id)}mail-{role}"
