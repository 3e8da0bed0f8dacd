"""Names of everything that a node shares: POSIX shared memory is `/warren-<12 hex>-<what>`.

The number in them is the node's `shared_id`, drawn at random for each superblock and written into node.json before. So
nobody who cannot read the directory knows the name of the next superblock. Names of regions end with a keyed hash (its
key is in the superblock, ipc/core/names.h): whoever sees some of them foretells none.

A copy of a directory has the original's node.json. The number counts only in the directory where it was drawn, whose
place (device and inode) stands beside it. Whoever uses it holds a descriptor of the directory, so that the place
cannot be given to another one meanwhile.
"""

from __future__ import annotations

import hashlib
import secrets
import struct

from warren.ipc.layout import SERVER_WORKER_FIRST

#: the topic worker's process
TOPICS = "topics"


def role_of(server: int) -> str:
    """The name of a server's process: store or worker-<i>. Which one is the topic worker knows `Superblock.role_of`."""
    return "store" if server < SERVER_WORKER_FIRST else f"worker-{server - SERVER_WORKER_FIRST}"


def draw() -> int:
    """A new `shared_id`: 48 random bits, never 0."""
    return secrets.randbelow((1 << 48) - 1) + 1


def draw_key() -> int:
    """A key for a System V semaphore; 0 is IPC_PRIVATE."""
    return secrets.randbelow(0x7FFF_FFFE) + 1


def older_id(node_id: int, place: tuple[int, int]) -> int:
    """The `shared_id` of a node of the version before, which was made of the node's id and its directory's place."""
    digest = hashlib.blake2b(struct.pack("<3Q", node_id, *place), digest_size=6, person=b"warren-place")
    return int.from_bytes(digest.digest(), "little") or 1


def node_prefix(shared_id: int) -> str:
    """Prefix of all names of one node; `shared_id` has 48 bits."""
    return f"/warren-{shared_id:012x}-"


def superblock(shared_id: int) -> str:
    """The superblock."""
    return node_prefix(shared_id) + "super"


def regions(shared_id: int, what: str, server: int) -> str:
    """How the names of a server's regions of a kind begin (Superblock.region_name): `what` is images, timages,
    summary, directory, index, dense, dense<n>, qstats, tring or trows."""
    return f"{node_prefix(shared_id)}{what}-{server}-"
