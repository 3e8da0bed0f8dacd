"""What `warren status` tells: everything is read from shared memory, nobody is asked, nothing waits.

Numbers of different processes are read one after another; each is true at its moment, their sum only nearly. Rates
are differences to a sample of the supervisor that is at most about a second old.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import psutil

from warren.engine.catalog import Catalog
from warren.engine.node_directory import NodeDirectory, NodeFile
from warren.ipc import names, region
from warren.ipc.identity import Identity
from warren.ipc.layout import (
    CONSTANTS,
    QUEUE_STATS,
    SERVER_STORE_PERSISTENT,
    SERVER_STORE_TRANSIENT,
    SERVER_WORKER_FIRST,
)
from warren.ipc.superblock import Superblock
from warren.workers.children import Role
from warren.workers.segments import semaphore_value

SAMPLE_S = 1.0
NODE_STATES = {
    CONSTANTS[f"NODE_{name}"]: name.lower() for name in ("CREATING", "STARTING", "RUNNING", "DRAINING", "STOPPED")
}
SERVER_STATES = {
    CONSTANTS[f"SERVER_{name}"]: name.lower() for name in ("DOWN", "RECOVERING", "READY", "STOPPING", "FAILED")
}
SLOT_STATES = {CONSTANTS[f"SLOT_{name}"]: name.lower() for name in ("FREE", "CLAIMED", "ACTIVE", "LEAVING", "DEAD")}
ALARMS = {
    CONSTANTS["ALARM_MEMORY"]: "memory: publishers are blocked until memory is free again (setting memory_used_max)",
    CONSTANTS["ALARM_DISK"]: "disk: publishers are blocked until there is space again (setting disk_free_bytes_min)",
    CONSTANTS[
        "ALARM_SYNC_FAILED"
    ]: "sync failed: the disk refused to make data durable; look at the disk, then stop and start the node",
    CONSTANTS["ALARM_SERVER_FAILED"]: "server failed: a process died again and again; see DIR/log",
}
#: counters of a server whose rates are shown: name in the layout → name of the rate
_SERVER_RATES = {
    "processed_n": "commands_per_s",
    "written_n": "records_per_s",
    "commits_n": "commits_per_s",
    "syncs_n": "syncs_per_s",
    "published_n": "published_per_s",
    "delivered_n": "delivered_per_s",
    "acked_n": "acked_per_s",
}
_QUEUE_RATES = ("published", "delivered", "acked")
assert all(item.size == 8 for item in QUEUE_STATS.fields)


@dataclass
class _Sample:
    at: float = 0.0
    servers: dict[int, dict[str, int]] = field(default_factory=dict)
    queues: dict[int, dict[str, int]] = field(default_factory=dict)


class Statistics:
    """Reads the counters of a node, and keeps the sample that rates refer to."""

    def __init__(self, superblock: Superblock) -> None:
        self._superblock = superblock
        self._last = _Sample()
        self._before = _Sample()

    def sample(self) -> None:
        """Keep a sample; the supervisor calls this every second."""
        self._before, self._last = self._last, self._take()

    def _take(self) -> _Sample:
        return _Sample(time.monotonic(), self._servers(), self._queues())

    def _servers(self) -> dict[int, dict[str, int]]:
        return {
            server: {name: self._superblock.server_get(server, name) for name in _SERVER_RATES}
            for server in range(self._superblock.servers_n)
        }

    def _queues(self) -> dict[int, dict[str, int]]:
        """Rows of all workers' statistics regions, by queue id."""
        found: dict[int, dict[str, int]] = {}
        for server in range(SERVER_WORKER_FIRST, self._superblock.servers_n):
            generation = self._superblock.server_get(server, "queue_stats_generation")
            if not generation:
                continue
            name = names.region(self._superblock.node_id, "qstats", server, generation)
            try:
                mapped = region.posix_open(name, writable=False)
            except OSError:  # the worker is being replaced: its queues are shown without numbers
                continue
            try:
                found |= _used_rows(mapped.buffer)
            finally:
                mapped.close()
        return found

    def report(
        self,
        directory: NodeDirectory,
        node: NodeFile,
        roles: Iterable[Role],
        catalog: Catalog,
        messages: list[str],
    ) -> dict[str, Any]:
        """The map of `status --json` (the contract in docs/architecture.md, and more keys)."""
        now = self._take()
        base = self._last if now.at - self._last.at > 0.2 or not self._before.at else self._before
        seconds = now.at - base.at if base.at else 0.0
        alarms = self._superblock.get("alarms")
        roles = list(roles)
        workers = {role.identity.pid for role in roles if role.identity is not None}
        return {
            "dir": str(directory.path),
            "node_id": f"{node.node_id:012x}",
            "epoch": node.node_epoch,
            "state": NODE_STATES.get(self._superblock.state, "unknown"),
            "processes": [self._supervisor(), *(self._process(role, now, base, seconds) for role in roles)],
            "clients": [
                {
                    "slot": view.slot,
                    "pid": view.pid,
                    "name": view.name,
                    "state": SLOT_STATES.get(view.state, "unknown"),
                    "client_epoch": view.client_epoch,
                    "kind": "queue_worker" if view.pid in workers else "client",
                }
                for view in self._superblock.slots()
            ],
            "live_clients": semaphore_value(self._superblock.get("live_semaphore_key")),
            "queues": [
                self._queue(item.name, item.id, item.durable, item.worker, now, base, seconds)
                for item in sorted(catalog.queues.values(), key=lambda item: item.name)
                if not item.hidden
            ],
            "subscriptions": [
                {"queue": source.name, **self._queue(item.name, item.id, item.durable, item.worker, now, base, seconds)}
                for item in sorted(catalog.queues.values(), key=lambda item: item.name)
                if item.hidden and (source := catalog.by_id.get(item.subscription_of)) is not None
            ],
            "topics": [],
            "store": self._store(SERVER_STORE_PERSISTENT),
            "store_transient": self._store(SERVER_STORE_TRANSIENT),
            "catalog_version": catalog.version,
            "alarms": [text for bit, text in ALARMS.items() if alarms & bit],
            "messages": list(messages),
        }

    def _supervisor(self) -> dict[str, Any]:
        identity = self._superblock.supervisor
        return {
            "role": "supervisor",
            "index": 0,
            "pid": identity.pid,
            "start_time": identity.start_time,
            "rss_bytes": rss_bytes(identity),
            "state": "ready",
            "restarts": 0,
            "rates": {},
        }

    def _process(self, role: Role, now: _Sample, base: _Sample, seconds: float) -> dict[str, Any]:
        superblock = self._superblock
        rates: dict[str, float] = {}
        for server in role.servers:
            for name, rate in _SERVER_RATES.items():
                before = base.servers.get(server, {}).get(name, 0)
                rates[rate] = rates.get(rate, 0.0) + _rate(now.servers[server][name], before, seconds)
        first = role.servers[0]
        commits = sum(superblock.server_get(server, "commits_n") for server in role.servers)
        spent = sum(superblock.server_get(server, "commit_ns_sum") for server in role.servers)
        return {
            "role": role.kind,
            "index": role.index,
            "pid": role.identity.pid if role.identity else 0,
            "start_time": role.identity.start_time if role.identity else 0,
            "rss_bytes": rss_bytes(role.identity),
            "state": SERVER_STATES.get(superblock.server_get(first, "state"), "unknown"),
            "epoch": superblock.server_get(first, "epoch"),
            "restarts": superblock.server_get(first, "restarts"),
            "error": max(superblock.server_get(server, "error") for server in role.servers),
            "evicted": sum(superblock.server_get(server, "evicted_n") for server in role.servers),
            "eliminated": sum(superblock.server_get(server, "eliminated_n") for server in role.servers),
            "commits": commits,
            "commit_ms_mean": round(spent / commits / 1e6, 3) if commits else 0.0,
            "rates": rates,
        }

    def _store(self, server: int) -> dict[str, int]:
        return {
            "messages": self._superblock.server_get(server, "messages"),
            "files": self._superblock.server_get(server, "files"),
            "valid_bytes": self._superblock.server_get(server, "valid_bytes"),
            "file_bytes": self._superblock.server_get(server, "file_bytes_sum"),
            "eliminated": self._superblock.server_get(server, "eliminated_n"),
        }

    def _queue(
        self, name: str, id: int, durable: bool, worker: int, now: _Sample, base: _Sample, seconds: float
    ) -> dict[str, Any]:
        row = now.queues.get(id, {})
        before = base.queues.get(id, {})
        ready, unacked = row.get("ready", 0), row.get("unacked", 0)
        beta, gamma, delta = (row.get(state, 0) for state in ("beta", "gamma", "delta"))
        return {
            "name": name,
            "id": id,
            "durable": durable,
            "worker": worker,
            "ready": ready,
            "unacked": unacked,
            "alpha": row.get("alpha", ready + unacked - beta - gamma - delta),
            "beta": beta,
            "gamma": gamma,
            "delta": delta,
            "bytes": row.get("bytes", 0),
            "consumers": row.get("consumers", 0),
            **{key: row.get(key, 0) for key in ("published", "delivered", "acked", "requeued")},
            "rates": {f"{key}_per_s": _rate(row.get(key, 0), before.get(key, 0), seconds) for key in _QUEUE_RATES},
        }


def _used_rows(buffer: memoryview) -> dict[int, dict[str, int]]:
    """The rows of a statistics region that belong to a queue, by queue id."""
    import numpy as np  # here, so that a supervisor that takes over answers before it is loaded

    columns = [item.name for item in QUEUE_STATS.fields]
    row_type = np.dtype(
        {
            "names": columns,
            "formats": ["<u8"] * len(columns),
            "offsets": [item.offset for item in QUEUE_STATS.fields],
            "itemsize": QUEUE_STATS.size,
        }
    )
    rows = np.frombuffer(buffer, row_type, len(buffer) // QUEUE_STATS.size)
    used = rows[rows["queue"] != 0].tolist()
    return {row[0]: dict(zip(columns, row, strict=True)) for row in used}


def rss_bytes(identity: Identity | None) -> int:
    """Resident memory of a process, 0 when it is gone."""
    process = identity.describe() if identity is not None else None
    if process is None:
        return 0
    try:
        resident: int = process.memory_info().rss
    except psutil.Error:
        return 0
    return resident


def _rate(now: int, before: int, seconds: float) -> float:
    return round((now - before) / seconds, 1) if seconds > 0 and now >= before else 0.0
