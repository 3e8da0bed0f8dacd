"""What a node leaves in shared memory, and how it is removed: at the end of every stop, and before a cold start.

Everything carries the node's shared id in its name, or stands in its superblock or node.json, so nothing of another
node is touched. What another user has put between it is passed by, and named: it ends neither start nor stop. Removing
is repeatable: a death in the middle leaves less of the same. The superblock goes last, because it names the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from logging import WARNING
from pathlib import Path

import posix_ipc

from warren.engine.catalog.node_directory import NodeDirectory, NodeFile
from warren.engine.errors import Error
from warren.engine.saying import Say, Voice, counted
from warren.ipc import access, doorbells, mailbox, names, region
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.process.shared_objects import belongs, remove_semaphore, remove_unrecorded
from warren.workers.process.tie import SEMAPHORES, Tie, open_server

_say = Voice()
OLDER_MAILBOXES = ("supervisor", "store", "collector")


def remove(
    directory: NodeDirectory, node: NodeFile, shared_id: int, superblock: Superblock | None, say: Say = _say
) -> None:
    """Remove all shared memory of a node that does not run any more. Clients that still map some keep what they map.
    `shared_id` 0: it had no superblock.

    The caller holds the lock of the directory. A client's segment is marked for removal: the kernel frees it at its
    last detach.
    """
    keys: set[int] = set()
    if superblock is not None:
        end_collector(superblock, directory.itself)
        remove_segments(superblock)
        if node.shared_id == superblock.shared_id:
            keys |= set(node.semaphore_keys)
    with contextlib.suppress(Error):  # the path leads nowhere any more
        keys |= set(directory.own_semaphores(node))
    for key in keys - {0}:
        remove_semaphore(key)
    doorbells.clear(directory.itself)
    mailbox.clear(directory.itself)
    if shared_id:
        remove_older_mailboxes(shared_id)
        remove_regions(shared_id, say)


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
        end_collector(superblock, tie.directory)
    remove_system_v(superblock, tie.semaphores)
    if tie.lock():  # else they are a later node's
        mailbox.clear(tie.directory)
    remove_regions(superblock.shared_id, _say)
    superblock.set_state(CONSTANTS["NODE_STOPPED"])


def remove_system_v(superblock: Superblock, keys: Iterable[int]) -> None:
    """Segments of clients and semaphores of a node of which no process lives."""
    remove_segments(superblock)
    for key in keys:
        if key:
            remove_semaphore(key)


def abandoned_keys(superblock: Superblock) -> tuple[int, ...]:
    """Keys of the semaphores of a node whose directory may be gone: those in its superblock when its owner alone could
    write it, else those in the node.json that it leads to, if that is the owner's and of this very node. Without one
    both stay: what members may have written removes nothing.
    """
    if superblock.owner == (os.geteuid(), access.ALONE):
        return tuple(map(superblock.get, SEMAPHORES))
    try:
        directory = NodeDirectory(superblock.directory)
        node = directory.read()
        if os.stat(directory.path).st_uid == os.geteuid() and node.shared_id == superblock.shared_id:
            return node.semaphore_keys
    except (Error, OSError, ValueError):  # there is no such directory any more
        pass
    return ()


def remove_segments(superblock: Superblock) -> None:
    for view in superblock.slots():
        size = superblock.region_bytes(view.delivery_slots)
        if view.shmid >= 0 and belongs(view, size, superblock.owner[1]):
            region.sysv_remove(view.shmid)
        elif not view.identity.alive():
            remove_unrecorded(view.pid, size, group=superblock.owner[1])


def remove_older_mailboxes(shared_id: int) -> None:
    """POSIX message queues of a node of the version before, which had its control messages in some."""
    for role in OLDER_MAILBOXES:
        with contextlib.suppress(posix_ipc.Error):  # there is none, or it is another user's
            posix_ipc.unlink_message_queue(f"{names.node_prefix(shared_id)}mail-{role}")


def remove_regions(shared_id: int, say: Say) -> None:
    """Remove all that this user has in /dev/shm of a node, the superblock last."""
    last, found = names.superblock(shared_id), region.posix_names(names.node_prefix(shared_id))
    foreign: dict[int, list[str]] = {}
    for name in sorted(found, key=lambda name: name == last):
        owner = region.posix_owner(name)
        if owner not in (-1, os.geteuid()):
            foreign.setdefault(owner, []).append(name)
        else:
            region.posix_drop(name)
    for owner, strangers in foreign.items():
        say(
            f"{access.user(owner)} has put {counted(len(strangers), 'file')} between the shared memory of this node "
            f"({region.SHM_DIRECTORY}{strangers[0]}): passed by",
            WARNING,
        )


def end_collector(superblock: Superblock, directory: Path) -> None:
    """One that outlived everybody else would notice within a second that its node is gone; it has nothing to finish."""
    try:
        pidfd = open_server(superblock.collector, "collector", directory)
    except OSError:  # no descriptor for it: it ends by itself
        return
    if pidfd is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
