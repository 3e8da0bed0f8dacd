"""From a process to the supervisor of a directory: limits, the race for its lock, and runs until the node has ended."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warren.engine.catalog import ownership
from warren.engine.catalog.node_directory import NodeDirectory, check_running
from warren.engine.errors import ClosedError, DirectoryInUse, Error, LimitError, NodeNotRunning
from warren.engine.kernel.atomic_file import explained
from warren.ipc.identity import Namespaces
from warren.ipc.layout import CLIENT_SLOTS, CONSTANTS
from warren.ipc.region import RegionError
from warren.workers.node import room
from warren.workers.node.options import Options, RealServers, Servers
from warren.workers.node.supervisor import Supervisor
from warren.workers.process.control import TELL_S, ControlClient
from warren.workers.process.tie import elsewhere

#: descriptors: without so many a node does not start, and more than so many are of no use to it
DESCRIPTORS_MIN, DESCRIPTORS_MAX = 512, 65_536
START_WAIT_S = 60.0  #: how long one that lost the race for the lock waits until the winner serves


def supervise(
    path: Path | str,
    options: Options,
    servers: Callable[[], Servers] = RealServers,
    ready: Callable[[str], None] = lambda line: None,
) -> int:
    """Be the supervisor of a directory until the node ends; returns the exit code of the process.

    `ready` is called once with a line for people when the node runs (also by one that lost the race and need not).
    Raises DirectoryInUse, UsageError, StoreError and its kinds, LimitError, SystemLimit.
    """
    raise_descriptors()
    directory = NodeDirectory(path)
    if options.successor and not directory.exists():
        raise ClosedError(f"nothing is left of the node of {directory.path} that could be taken over")
    starting = f"cannot start the node of {directory.path}"
    with explained(starting, limits_alone=True):
        prepare(directory, options.changes)
        while not _lock(directory, options):
            if _serves(directory, options.changes):
                other = options.idle_exit not in (None, directory.read_launch().idle_exit)
                with_other = ", with the --idle-exit of its start" if other else ""
                ready(f"a node runs for {directory.path} already{with_other}")
                return 0
        options.locked()
    try:
        while True:
            with explained(starting, limits_alone=True):
                supervisor = Supervisor(directory, options, servers, ready)
            code = supervisor.run()
            if not supervisor.begin_anew:
                return code
    finally:
        directory.unlock()


def prepare(directory: NodeDirectory, changes: dict[str, Any]) -> None:
    """Make the directory for a node that is started with these settings. What refuses the start is raised before: a
    refusal leaves nothing.
    """
    directory.check_owner()
    ownership.share(directory.group(changes))
    directory.check_new(changes)
    room.chosen(directory, changes)
    directory.make()


def raise_descriptors() -> None:
    """Raise the soft limit of descriptors to the hard one, as far as that is of use. Raises LimitError: too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_MIN:
        raise LimitError(
            f"a process of a node needs up to {DESCRIPTORS_MIN} descriptors (one for each of {CLIENT_SLOTS} clients, "
            f"and for files), and may have {soft}: raise the limit (`ulimit -Hn`, LimitNOFILE of systemd)"
        )


def _lock(directory: NodeDirectory, options: Options) -> bool:
    """Take the directory's lock. False: somebody else has it, serves, and that is fine. Raises DirectoryInUse."""
    deadline = time.monotonic() + START_WAIT_S
    tell_at = time.monotonic() + TELL_S
    seen = False
    while True:
        try:
            directory.lock(making=not options.successor)
        except DirectoryInUse as error:
            if options.successor:
                return False  # somebody else takes over, and if that fails the servers start another one
            if not options.adopt or time.monotonic() > deadline:
                raise
            unlike = directory.holder_namespaces().unlike(Namespaces.current())
            if unlike and seen:  # what the lock file says is of before for an instant
                raise elsewhere(directory, unlike) from error
            seen = True
            if time.monotonic() > tell_at:
                tell_at = deadline
                options.waiting(directory.foreign_lock() or f"{error}, which is not up yet", True)
        else:
            return True
        with contextlib.suppress(Error, RegionError):
            superblock = directory.superblock()
            try:
                if superblock.wait_state({CONSTANTS["NODE_RUNNING"]}, 0.05) and superblock.supervisor.alive():
                    return False
            finally:
                superblock.close()
        time.sleep(0.005)


def _serves(directory: NodeDirectory, changes: dict[str, Any]) -> bool:
    """Whether the node that runs has the settings that are asked for; False: it has ended just now. Raises UsageError
    when it has others.
    """
    if changes:
        try:
            with ControlClient(directory.path) as running:
                check_running(directory.path, running.call("settings")["settings"], changes)
        except (NodeNotRunning, ClosedError):
            return False
    return True
