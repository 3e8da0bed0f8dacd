"""What a node leaves in shared memory, and how it is removed: at the end of every stop, and before a cold start.

Everything carries the node's id in its name, or stands in its superblock or node.json, so nothing of another node is
touched. Removing is repeatable: a death in the middle leaves less of the same. The superblock goes last, because it
names the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal

from warren.engine.node_directory import NodeFile
from warren.ipc import mailbox, names, region
from warren.ipc.layout import WORKERS_MAX
from warren.ipc.superblock import Superblock
from warren.workers.segments import belongs, remove_semaphore, remove_unrecorded

ROLES = ("supervisor", "store", "collector", *(f"worker-{index}" for index in range(WORKERS_MAX)))


def remove(node: NodeFile, superblock: Superblock | None) -> None:
    """Remove all shared memory of a node that does not run any more. Clients that still map some keep what they map.

    A client's segment is marked for removal: the kernel frees it at its last detach.
    """
    if superblock is not None:
        _end_collector(superblock)
        size = superblock.get("client_region_bytes")
        for view in superblock.slots():
            if view.shmid >= 0 and belongs(view, size):
                region.sysv_remove(view.shmid)
            elif not view.identity.alive():
                remove_unrecorded(view.pid, size)
    for key in node.semaphore_keys:
        if key:
            remove_semaphore(key)
    for role in ROLES:
        mailbox.unlink(names.mailbox(node.node_id, role))
    last = names.superblock(node.node_id)
    for name in region.posix_names(names.node_prefix(node.node_id)):
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
