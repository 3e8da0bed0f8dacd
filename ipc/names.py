"""Names of everything that a node shares: POSIX shared memory and message queues are `/warren-<12 hex>-<what>`."""

from __future__ import annotations

from warren.ipc.layout import SERVER_WORKER_FIRST


def role_of(server: int) -> str:
    """The name of a server's process, as in `warren status` and in its log: store or worker-<i>."""
    return "store" if server < SERVER_WORKER_FIRST else f"worker-{server - SERVER_WORKER_FIRST}"


def node_prefix(node_id: int) -> str:
    """Prefix of all names of one node; `node_id` has 48 bits."""
    return f"/warren-{node_id:012x}-"


def superblock(node_id: int) -> str:
    """The superblock."""
    return node_prefix(node_id) + "super"


def region(node_id: int, what: str, server: int, generation: int) -> str:
    """A region made by a server: `what` is images, timages, summary, directory, index or qstats."""
    return f"{node_prefix(node_id)}{what}-{server}-{generation}"


def mailbox(node_id: int, role: str) -> str:
    """The control mailbox of a process role: supervisor, store (a thread of its process), collector."""
    return f"{node_prefix(node_id)}mail-{role}"
