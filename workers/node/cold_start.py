"""What a start finds of a node that did not end, and how a node begins that nothing is left of.

The caller holds the directory's lock. Crash points: before the superblock, node.json has the new epoch, what the
superblock is to be called and the keys of the semaphores; the next start removes these.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from logging import WARNING
from typing import Any

import msgspec

from warren.engine.catalog import ownership
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory, NodeFile
from warren.engine.config import Settings
from warren.engine.errors import (
    NoRoom,
    PermissionRefused,
    StoreError,
    UsageError,
)
from warren.engine.kernel import atomic_file
from warren.engine.kernel.paths import TRANSACTIONS
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.engine.queues.folder import workers_needed
from warren.engine.saying import Say
from warren.ipc import access, names, region
from warren.ipc.identity import Identity, Namespaces
from warren.ipc.layout import CONSTANTS, SERVER_WORKER_FIRST
from warren.ipc.region import ForeignRegion, RegionError
from warren.ipc.superblock import ACTIVE, CLAIMED, GEOMETRY, Superblock
from warren.workers.node import absence, room, systemd
from warren.workers.node.moves import Mover
from warren.workers.process import remains
from warren.workers.process.shared_objects import create_semaphore, region_users, remove_semaphore, segments
from warren.workers.process.tie import (
    TAKEN_OVER,
    end,
    served,
)

#: names that are drawn when others have those before
NAMES_TRIED = 8
DRAINING, STOPPED = CONSTANTS["NODE_DRAINING"], CONSTANTS["NODE_STOPPED"]


def find(directory: NodeDirectory, node: NodeFile, say: Say) -> Superblock | None:
    """The superblock of a node that still lives in parts (to be adopted); None after removing what no longer does.

    Raises UsageError (processes of another version of Warren use it), PermissionRefused.
    """
    shared_id = node.superblock_at(directory.place)
    try:
        superblock = Superblock.attach(shared_id, LAYOUT_HASH, os.geteuid())
    except ForeignRegion as error:
        if served(directory.path):  # the directory was given to this user while it ran
            owner = access.user(region.posix_owner(names.superblock(shared_id)))
            raise PermissionRefused(
                f"a node of {directory.path} runs as {owner}: have it stopped by that user"
            ) from error
        say(str(error.strerror), WARNING)
        remains.remove(directory, node, shared_id, None, say)
        return None
    except RegionError as error:
        users = region_users(names.node_prefix(shared_id)) if error.errno == errno.EPROTO else []
        if users:
            raise UsageError(
                f"{directory.path} is still used by processes of another version of Warren "
                f"({', '.join(map(str, users[:8]))}): end them first"
            ) from error
        if error.errno not in (errno.ENOENT, errno.EPROTO):  # it may be there, and its node may live
            raise atomic_file.explain(error, f"cannot look for the node of {directory.path}") from error
        remains.remove(directory, node, shared_id, None, say)
        return None
    if superblock.namespaces.unlike(Namespaces.current()):
        # Its pids and System V segments mean nothing here. What lives of it ends, and the servers wait for that.
        end(superblock, TAKEN_OVER)
        superblock.close()
        remains.remove(directory, node, shared_id, None, say)
        return None
    servers = [superblock.server_identity(server) for server in range(superblock.servers_n)]
    alive = any(identity.pid and identity.alive() for identity in servers)
    if superblock.state != STOPPED and alive:
        ownership.check_served(directory.path, (superblock.owner[0], access.ALONE))
    if superblock.state == DRAINING and alive:
        return superblock
    if superblock.state != STOPPED and (alive or any(map(_holds, _clients_of(superblock)))):
        if superblock.state == DRAINING:
            superblock.set_state(STOPPED)
        else:
            _check_settings(directory, node, superblock)
            return superblock
    remains.remove(directory, node, shared_id, superblock, say)
    superblock.close()
    return None


def _check_settings(directory: NodeDirectory, node: NodeFile, superblock: Superblock) -> None:
    """Settings that were asked for must be those of the node that is taken over."""
    stored = directory.read().settings
    if node.settings != stored:
        changed = msgspec.structs.asdict(node.settings).items() - msgspec.structs.asdict(stored).items()
        superblock.close()
        raise UsageError(
            f"the node of {directory.path} still runs in part and cannot take new settings "
            f"({', '.join(sorted(name for name, _value in changed))}): "
            "start it without them, stop it, then start it with them"
        )


def create(
    directory: NodeDirectory,
    node: NodeFile,
    catalog: Catalog,
    say: Say,
    interrupted: Callable[[], bool],
) -> tuple[NodeFile, Catalog, Superblock]:
    """A cold start: a new epoch, queues where they belong now, new semaphores, a new superblock."""
    node_id, place = node.node_id, directory.place
    free = room.here(directory.path)
    small = directory.changed(node, {"profile": "small"})
    room.fit(node.settings, node.settings.workers, free, small)  # refused before anything is written
    ownership.give(directory.path)
    if access.group() != access.ALONE:  # the members make their sinks in there
        atomic_file.make_directories(directory.path / TRANSACTIONS, access.meeting_mode())
    absence.prepare_store(directory.path, node_id)
    epoch = absence.next_epoch(directory.path, node.node_epoch)
    absence.stamp(directory.path, epoch)
    node = _named(msgspec.structs.replace(node, node_epoch=epoch, place=place))
    directory.write(node)
    before = catalog.version
    catalog.drop_transient()
    if catalog.version != before:
        catalog.save(directory.path)
    catalog = Mover(
        directory.path,
        node_id,
        node.settings,
        catalog,
        say,
        interrupted,
        lambda: systemd.notify("EXTEND_TIMEOUT_USEC=30000000"),
    ).run()
    workers_n = _workers_needed(directory, node, catalog, say)
    fit = room.fit(node.settings, workers_n, free, topics=bool(catalog.topics))
    if fit.said:
        say(fit.said, WARNING)
    absence.prepare_workers(directory.path, node_id, epoch, range(workers_n))
    try:
        node, superblock = _make_superblock(
            directory, node, geometry(room.with_images(node.settings, fit.images_n), workers_n), say
        )
    except RegionError as error:
        if error.errno == errno.ENOSPC:
            raise NoRoom(str(error.strerror)) from error
        raise StoreError(str(error.strerror)) from error
    superblock.set("image_bytes", fit.image_bytes)
    return node, catalog, superblock


def _named(node: NodeFile) -> NodeFile:
    """The node with new names of what it is to make, which nobody can foretell."""
    return msgspec.structs.replace(node, shared_id=names.draw(), semaphore_keys=(names.draw_key(), names.draw_key()))


def _make_superblock(
    directory: NodeDirectory, node: NodeFile, sizes: dict[str, int], say: Say
) -> tuple[NodeFile, Superblock]:
    """Semaphores and superblock, by the names in node.json; when somebody else has one of them, by others. Raises
    RegionError, StoreError.
    """
    for _turn in range(NAMES_TRIED):
        try:
            _make_semaphores(node.semaphore_keys)
            return node, Superblock.create(
                node.shared_id,
                node.node_epoch,
                *node.semaphore_keys,
                sizes,
                node_id=node.node_id,
                place=node.place,
                directory=str(directory.path),
                layout_hash=LAYOUT_HASH,
            )
        except BaseException as error:
            if not isinstance(error, _KeyTaken):
                for key in node.semaphore_keys:
                    remove_semaphore(key)
            if not isinstance(error, RegionError) or error.errno != errno.EEXIST:
                raise
            say(f"{error.strerror}: passed by", WARNING)
            node = _named(node)
            directory.write(node)
    raise StoreError(f"{NAMES_TRIED} random names of shared memory were all taken: look at /dev/shm and `ipcs -s`")


class _KeyTaken(RegionError):
    """Somebody else has a semaphore of this key: perhaps another node of this user."""


def _make_semaphores(keys: tuple[int, int]) -> None:
    """Both, or none. Raises _KeyTaken."""
    for at, key in enumerate(keys):  # how many clients live; whether there is a store server: 1 may become one
        if not create_semaphore(key, at):
            if at:
                remove_semaphore(keys[0])
            raise _KeyTaken(errno.EEXIST, f"System V semaphore key {key:#x} is taken")


def _workers_needed(directory: NodeDirectory, node: NodeFile, catalog: Catalog, say: Say) -> int:
    wanted = node.settings.workers
    used = {item.worker for item in catalog.queues.values()}
    needed = workers_needed(directory.path, wanted, used, CONSTANTS["WORKERS_MAX"])
    if needed > wanted:
        say(
            f"{needed} queue workers are started although the setting workers is {wanted}: those from number "
            f"{wanted} on still have queues, and get no new ones",
            WARNING,
        )
    return needed


def geometry(settings: Settings, workers_n: int) -> dict[str, int]:
    """What the superblock of a node with these settings says about sizes."""
    values = {name: getattr(settings, name) for name in GEOMETRY if name != "servers_n"}
    topic_server = SERVER_WORKER_FIRST + workers_n  # the last link
    return {"servers_n": topic_server + 1, "topic_server": topic_server, **values}


def _clients_of(superblock: Superblock) -> list[Any]:
    return [view for view in superblock.slots() if view.state in (CLAIMED, ACTIVE)]


def _holds(view: Any) -> bool:
    """True when the client of a slot is there: a foreign one when somebody has its segment attached."""
    if view.identity.namespace == Identity.current().namespace:
        return bool(view.identity.alive())
    return any(item.id == view.shmid and item.attached for item in segments())
