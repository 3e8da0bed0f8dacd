"""What a node waits for that is not up yet, in words: for whoever started it, and waits for it.

Two kinds. What the servers do themselves (recovery) ends by itself, and takes as long as it takes. Room, or a folder
that another process has, comes from outside or never: only that is bounded by the start timeout.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from warren.engine.kernel import data_files
from warren.engine.kernel.paths import TOPICS, queues_of
from warren.ipc import kernel_locks
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.node.children import Role
from warren.workers.process import lack
from warren.workers.process.tie import STORE, lock_owner

#: seconds for which a start waits for something outside of the node
START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Wait:
    """What a start waits for now."""

    text: str  #: for people: what, and what ends it
    key: tuple[object, ...]  #: the same, without figures
    outside: bool  #: it does not end by itself


def wait_of(superblock: Superblock, directory: Path, roles: Iterable[Role]) -> Wait | None:
    """What the servers of a node wait for that do not serve yet; None: all do."""
    if superblock.state == CONSTANTS["NODE_DRAINING"]:
        return Wait("the stop that a killed supervisor began is finished first", ("drain",), False)
    lacking: dict[int, list[str]] = {}
    held: list[str] = []
    busy: list[str] = []
    for role in roles:
        if not role.holds_up or role.failed or role.served(superblock):
            continue
        if role.lack:
            lacking.setdefault(role.lack, []).append(role.name)
            continue
        folder = directory / {"store": STORE, "topic_worker": TOPICS}.get(role.kind, queues_of(role.index))
        owner = _other_owner(folder, role.identity.pid) if role.running and role.identity is not None else ""
        if owner:
            held.append(f"{role.name} waits for {owner}, which has {folder}")
        else:
            busy.append(role.name)
    if not lacking and not held:
        who = ", ".join(busy)
        return Wait(f"{who}: reading what is on the disk; see {directory / 'log'}", (who,), False) if busy else None
    texts = [f"{lack.missing(kind, who)}; {lack.advice(kind)}" for kind, who in lacking.items()]
    if lacking:
        texts[-1] += "; it is tried again each second"
    if held:
        held[-1] += ": stop the node that it belongs to, or end it"
    return Wait("; ".join(texts + held), (*((kind, *who) for kind, who in lacking.items()), *held), True)


def _other_owner(folder: Path, pid: int) -> str:
    """Who has the lock of a server's folder instead of the server; "" when it is free, or the server's."""
    try:
        descriptor = data_files.open_folder(folder)
    except OSError:  # it is just being made
        return ""
    try:
        found = os.fstat(descriptor)
        with contextlib.suppress(OSError):
            if not (owner := lock_owner(found)):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the server tries again in some milliseconds
                return ""
            return "" if owner == pid else str(next(iter(kernel_locks.holders(found)), f"process {owner}"))
        return "" if lock_owner(found) == pid else "a process that cannot be seen from here"
    finally:
        os.close(descriptor)
