"""What a node leaves in shared memory, and how it is removed: at the end of every stop, and before a cold start.

Everything carries the node's shared id in its name, or stands in its superblock or node.json, so nothing of another
node is touched. Removing is repeatable: a death in the middle leaves less of the same. The superblock goes last,
because it names the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal

from warren.engine.catalog.node_directory import NodeDirectory, NodeFile
from warren.engine.errors import Error
from warren.ipc import doorbells, mailbox, names, region
from warren.ipc.identity import Namespaces
from warren.ipc.layout import CONSTANTS, WORKERS_MAX
from warren.ipc.superblock import Superblock
from warren.workers.process.shared_objects import belongs, remove_semaphore, remove_unrecorded
from warren.workers.process.tie import SEMAPHORES, Tie

ROLES = ("supervisor", "store", "collector", *(f"worker-{index}" for index in range(WORKERS_MAX)))


def remove(directory: NodeDirectory, node: NodeFile, shared_id: int, superblock: Superblock | None) -> None:
    """Remove all shared memory of a node that does not run any more. Clients that still map some keep what they map.

    The caller holds the lock of the directory. A client's segment is marked for removal: the kernel frees it at its
    last detach.
    """
    keys: set[int] = set()
    if superblock is not None:
        _end_collector(superblock)
        _remove_segments(superblock)
        keys |= {superblock.get(name) for name in SEMAPHORES}
    with contextlib.suppress(Error):  # the path leads nowhere any more
        keys |= set(directory.own_semaphores(node))
    for key in keys - {0}:
        remove_semaphore(key)
    doorbells.clear(directory.itself)
    _remove_mailboxes(shared_id)
    _remove_regions(shared_id)


def remove_lost(superblock: Superblock, tie: Tie) -> None:
    """At the end of a process of a node without a supervisor that lost its directory or its shared memory, however it
    ends: the last one removes what no supervisor will find, and tells the clients that it is over. Two may both be the
    last.
    """
    if not superblock.get("ending") or superblock.supervisor.alive():
        return
    me = os.getpid()
    for server in range(superblock.servers_n):
        if superblock.server_identity(server).pid == me:
            superblock.server_set(server, "state", CONSTANTS["SERVER_DOWN"])
    # DOWN is said before this look: of two that end at once, one at least sees that the other does
    for server in range(superblock.servers_n):
        identity = superblock.server_identity(server)
        down = superblock.server_get(server, "state") == CONSTANTS["SERVER_DOWN"]
        if identity.pid not in (0, me) and not down and identity.alive():
            return
    if superblock.collector.pid != me:
        _end_collector(superblock)
    _remove_segments(superblock)
    for name in SEMAPHORES:
        remove_semaphore(superblock.get(name))
    # A later node of this directory has its own under the same names, unless it cannot see ours.
    mine, later = Namespaces.current(), tie.lock_or_holder()
    if later is None or later.shm != mine.shm:
        _remove_regions(superblock.shared_id)
    if later is None or later.ipc != mine.ipc:
        _remove_mailboxes(superblock.shared_id)
    superblock.set_state(CONSTANTS["NODE_STOPPED"])


def _remove_segments(superblock: Superblock) -> None:
    for view in superblock.slots():
        size = superblock.region_bytes(view.delivery_slots)
        if view.shmid >= 0 and belongs(view, size):
            region.sysv_remove(view.shmid)
        elif not view.identity.alive():
            remove_unrecorded(view.pid, size)


def _remove_mailboxes(shared_id: int) -> None:
    for role in ROLES:
        mailbox.unlink(names.mailbox(shared_id, role))


def _remove_regions(shared_id: int) -> None:
    last = names.superblock(shared_id)
    for name in region.posix_names(names.node_prefix(shared_id)):
        if name != last:
            region.posix_unlink(name)
    region.posix_unlink(last)


def _end_collector(superblock: Superblock) -> None:
    """One that outlived everybody else would notice within a second that its node is gone; it has nothing to finish."""
    try:
        pidfd = superblock.collector.open_pidfd() if superblock.get("collector_pid") else None
    except OSError:  # no descriptor for it: it ends by itself
        return
    if pidfd is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
