"""Whose node a read or a write is of, where a Spark cluster has several hosts.

A node is used on its own host: who plans notes which node that is, and a task that runs elsewhere says so, instead of
using whatever node has the same path there. A read of topics with the option `mount` goes on by the node's files there.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import NodeNotRunning, UsageError
from warren.workers.faces.node import client_of
from warren.workers.faces.topic_files import TopicFiles
from warren.workers.spark.client import node_of

_lock = threading.Lock()
_files: dict[tuple[int, str], TopicFiles] = {}


def host_name() -> str:
    """Return this host's name, for texts."""
    return socket.gethostname()


def node_name(node_id: int) -> str:
    """Return a node's id as incarnations begin with it."""
    return f"{node_id:012x}"


def node_name_at(path: str) -> str | None:
    """Return which node's directory this is, on this host; None: no node's."""
    try:
        return node_name(NodeDirectory(path).read().node_id)
    except NodeNotRunning:
        return None


def check_here(path: str, incarnation: str, planned_on: str) -> None:
    """Raise UsageError unless a path is, on this host, the directory of the node that an incarnation is of. Raises
    PermissionRefused, CorruptRecord, FormatVersionError.
    """
    found = node_name_at(path)
    if found != (wanted := incarnation.partition("-")[0]):
        raise UsageError(elsewhere(path, wanted, found, planned_on))


@dataclass(frozen=True)
class Planned:
    """Which node a write is about, and which host planned it: made in the driver, looked at in each task."""

    node: str
    host: str

    @classmethod
    def here(cls, path: str) -> Planned:
        """Return the node whose directory a path is on this host. Raises NodeNotRunning, CorruptRecord …"""
        return cls(node_name(NodeDirectory(path).read().node_id), host_name())

    def check(self, path: str) -> None:
        """As check_here."""
        check_here(path, self.node, self.host)


def elsewhere(path: str, wanted: str, found: str | None, planned_on: str) -> str:
    """Say that a task runs where its node is not."""
    what = "no data directory of Warren" if found is None else f"another node's data directory ({found})"
    return (
        f"this task runs on host {host_name()!r}, where {path} is {what}; it is about node {wanted}, as host "
        f"{planned_on!r} planned it. A node is used on its own host: have the job run there, or read topics with "
        "option 'mount', a directory in which all hosts see the node's files (docs/scaling.md)"
    )


def files_at(mount: str) -> TopicFiles:
    """Return this process's view of the topics of a directory, as its files are now. Errors: those of TopicFiles."""
    key = (os.getpid(), mount)
    with _lock:
        found = _files.get(key)
        if found is not None and node_name_at(mount) != node_name(found.node_id):
            del _files[key]  # another node was made there
            found.close()
            found = None
        if found is None:
            found = _files[key] = TopicFiles(mount)
            return found
    found.refresh()
    return found


def runs_here(path: str, files: TopicFiles, role: str, timeout_s: float) -> bool:
    """Return whether the node whose files these are runs at a path of this host."""
    if node_name_at(path) != node_name(files.node_id):
        return False
    try:
        client_of(node_of(path, role, timeout_s)).catalog()
    except (NodeNotRunning, UsageError):
        return False  # it is down, or runs in namespaces of its own: its files are there
    return True
