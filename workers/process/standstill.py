"""Servers that somebody has stopped in the middle of their work (SIGSTOP, a debugger), in words. They are alive, so
nobody starts them again: whoever waits for them is told what lets them go on.
"""

from __future__ import annotations

from collections.abc import Iterable

from warren.ipc.layout import SERVER_STORE_TRANSIENT
from warren.ipc.superblock import Superblock

#: the state of such a process, where its own row has another one
STOPPED = "stopped"


def described(name: str, pid: int) -> str:
    """What is the matter with it, and what to do."""
    return (
        f"{name} stands still: its process {pid} was stopped (by SIGSTOP, or a debugger); `kill -CONT {pid}` lets it "
        "go on"
    )


def found(superblock: Superblock, servers: Iterable[int] | None = None) -> list[str]:
    """Of these servers, else of all, those that stand still, described; a process of two servers once."""
    told = []
    for server in range(superblock.servers_n) if servers is None else servers:
        identity = superblock.server_identity(server)
        if identity.stands_still():
            told.append(described(f"server {superblock.role_of(server)}", identity.pid))
    return list(dict.fromkeys(told))


def behind(superblock: Superblock, server: int) -> str:
    """Why a server does not do what it was asked for, if somebody stopped it, or the stores, for which queue workers
    wait; with a colon before it, else "".
    """
    stores = () if server == superblock.topic_server else range(SERVER_STORE_TRANSIENT + 1)
    told = "; ".join(found(superblock, dict.fromkeys((server, *stores))))
    return f": {told}" if told else ""
