"""What `warren status` tells: everything is read from shared memory, nobody is asked, nothing waits.

Numbers of different processes are read one after another; each is true at its moment, their sum only nearly. Rates
are differences to a sample of the supervisor that is at most about a second old.
"""

from __future__ import annotations

import fnmatch
import heapq
import re
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from warren.engine.catalog.catalog import Catalog, QueueDeclaration
from warren.engine.catalog.node_directory import NodeDirectory, NodeFile
from warren.engine.kernel import quarantine
from warren.engine.kernel.paths import TOPICS, TopicsFolder, queues_of
from warren.engine.kernel.protocol import QUEUE_STATS
from warren.engine.saying import counted, readable
from warren.ipc import names, region
from warren.ipc.identity import Identity
from warren.ipc.layout import (
    CLIENT,
    CONSTANTS,
    LINK,
    PAGE_BYTES,
    SERVER_STORE_PERSISTENT,
    SERVER_STORE_TRANSIENT,
    SERVER_WORKER_FIRST,
)
from warren.ipc.superblock import SlotView, Superblock
from warren.workers.node import absence, gateway_roles, topic_status
from warren.workers.node.children import Role
from warren.workers.process import alarm_words, standstill
from warren.workers.process.refusals import refusal
from warren.workers.process.shared_objects import semaphore_value

SAMPLE_S = 1.0
FILES_SAID = 3  #: damaged files that a line of status names
NODE_STATES = {
    CONSTANTS[f"NODE_{name}"]: name.lower() for name in ("CREATING", "STARTING", "RUNNING", "DRAINING", "STOPPED")
}
SERVER_STATES = {
    CONSTANTS[f"SERVER_{name}"]: name.lower() for name in ("DOWN", "RECOVERING", "READY", "STOPPING", "FAILED")
}
SLOT_STATES = {CONSTANTS[f"SLOT_{name}"]: name.lower() for name in ("FREE", "CLAIMED", "ACTIVE", "LEAVING", "DEAD")}
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
#: counters of a queue; all but `delayed` since its worker was started
_QUEUE_COUNTS = (
    *("published", "delivered", "acked", "requeued"),
    *("delayed", "expired", "dropped", "dead_lettered", "refused", "duplicates", "lost"),
)
assert all(item.size == 8 for item in QUEUE_STATS.fields)


@dataclass
class _Sample:
    at: float = 0.0
    servers: dict[int, dict[str, int]] = field(default_factory=dict)
    queues: list[tuple[bytes, ...]] = field(default_factory=list)  # of each worker: ids and counters, column by column

    def counters(self, wanted: Container[int] | None = None) -> dict[int, dict[str, int]]:
        """Of each queue, those whose rates are shown; `wanted`: of these queues only."""
        found = {}
        for worker in self.queues:
            for id, *values in _in_rows(worker):
                if wanted is None or id in wanted:
                    found[id] = dict(zip(_QUEUE_RATES, values, strict=True))
        return found


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
        columns = [_columns(buffer, ("queue", *_QUEUE_RATES)) for buffer in self._regions()]
        return _Sample(time.monotonic(), self._servers(), columns)

    def _servers(self) -> dict[int, dict[str, int]]:
        return {
            server: {name: self._superblock.server_get(server, name) for name in _SERVER_RATES}
            for server in range(self._superblock.servers_n)
        }

    def queues(self, wanted: Container[int] | None = None) -> dict[int, dict[str, int]]:
        """Rows of all workers' statistics regions, by queue id; `wanted`: of these queues only."""
        found: dict[int, dict[str, int]] = {}
        for buffer in self._regions():
            found |= _used_rows(buffer, wanted)
        return found

    def _regions(self) -> Iterator[memoryview]:
        """The rows that are used of each worker's statistics region, each until the next is asked for."""
        for server in self._superblock.queue_workers:
            mapped = self._region(server)
            if mapped is None:
                continue
            try:
                rows = min(self._superblock.server_get(server, "queue_stats_rows"), mapped.size // QUEUE_STATS.size)
                with mapped.buffer[: rows * QUEUE_STATS.size] as used:
                    yield used
            finally:
                mapped.close()

    def _region(self, server: int) -> region.Region | None:
        """A worker's statistics region; of a worker that ended in order, and took it along, there is none: its queues
        are shown without numbers until the next one serves."""
        while generation := self._superblock.server_get(server, "queue_stats_generation"):
            try:
                return region.posix_open(self._superblock.region_name("qstats", server, generation), writable=False)
            except OSError:
                if self._superblock.server_get(server, "queue_stats_generation") == generation:
                    return None
        return None

    def report(
        self,
        directory: NodeDirectory,
        node: NodeFile,
        roles: Iterable[Role],
        catalog: Catalog,
        messages: list[str],
        pattern: str | None = None,
        most: int | None = None,
    ) -> dict[str, Any]:
        """The map of `status --json` (the contract in docs/architecture.md, and more keys).

        `pattern`: only queues and topics with such names (*, ?, [abc]). `most`: of queues, subscriptions, dead letters
        and topics only so many each, those with most messages and traffic; `queues_n`, `subscriptions_n` and `topics_n`
        say how many there are.
        """
        now = self._take()
        base = self._last if now.at - self._last.at > 0.2 or not self._before.at else self._before
        seconds = now.at - base.at if base.at else 0.0
        kinds = _Kinds(catalog, pattern)
        scores = None if most is None else self._scores(base)
        queues, subscriptions, dead_letters = (
            _first(kind, scores, most) for kind in (kinds.queues, kinds.subscriptions, kinds.dead_letters)
        )
        shown = None
        if pattern is not None or most is not None:
            shown = {item.id for _source, item in (*queues, *subscriptions, *dead_letters)}
        rows, before = self.queues(shown), base.counters(shown)
        alarmed = alarm_words.described(self._superblock)
        clients = [self._client(view, alarmed) for view in self._superblock.slots()]
        roles = [role for role in roles if role.wanted]
        kinds_of = {
            role.identity.pid: "amqp_gateway" if role.kind == gateway_roles.GATEWAY else "queue_worker"
            for role in roles
            if role.identity is not None
        }
        return {
            "dir": readable(str(directory.path)),
            "node_id": f"{node.node_id:012x}",
            "shared_id": f"{self._superblock.shared_id:012x}",
            "epoch": node.node_epoch,
            "state": NODE_STATES.get(self._superblock.state, "unknown"),
            "processes": [
                self._supervisor(),
                *(self._process(role, now, base, seconds, node.settings.workers) for role in roles),
            ],
            "clients": [{**client, "kind": kinds_of.get(client["pid"], "client")} for client in clients],
            "blocked_publishers": {
                why: sum(
                    client["blocked"] == why for client in clients if kinds_of.get(client["pid"]) != "queue_worker"
                )
                for why in ("alarm", "credit")
            },
            "live_clients": semaphore_value(self._superblock.get("live_semaphore_key")),
            "queues": [
                self._queue(item, rows, before, seconds)
                | {"arguments": item.arguments, "exclusive_to": item.owner or None}
                for _source, item in queues
            ],
            "queues_n": len(kinds.queues),
            "subscriptions": [
                {"queue": source, **self._queue(item, rows, before, seconds)} for source, item in subscriptions
            ],
            "subscriptions_n": len(kinds.subscriptions),
            "dead_letters": [
                {"queue": source, **self._queue(item, rows, before, seconds)} for source, item in dead_letters
            ],
            "topics": topic_status.of_topics(
                self._superblock,
                catalog.topics.values(),
                kinds.matches,
                most,
                TopicsFolder.of(directory.path),
            ),
            "gateways": [self._of_gateway(role) for role in gateway_roles.of(roles)],
            "topics_n": sum(1 for name in catalog.topics if kinds.matches is None or kinds.matches(name)),
            "store": self._store(SERVER_STORE_PERSISTENT),
            "store_transient": self._store(SERVER_STORE_TRANSIENT),
            "catalog_version": catalog.version,
            "alarms": [row["text"] for row in alarmed],
            "alarm_details": alarmed,
            "memory": {name: self._superblock.get(f"memory_{name}") for name in ("used", "limit", "own", "own_limit")},
            "pressure": self._superblock.get("pressure") / 1000,
            "messages": [*messages, *_refusals(roles), *self._losses(directory), *_stopped(roles)],
        }

    def _scores(self, base: _Sample) -> dict[int, int]:
        """Of each queue its messages and what happened to it since a sample: who has most is shown first."""
        found: dict[int, int] = {}
        for buffer in self._regions():
            for id, *counts in _in_rows(_columns(buffer, ("queue", "ready", "unacked", *_QUEUE_RATES))):
                found[id] = sum(counts)
        for worker in base.queues:
            for id, *counts in _in_rows(worker):
                if id in found:
                    found[id] -= sum(counts)
        return found

    def _losses(self, directory: NodeDirectory) -> list[str]:
        """A line for each server that has lost messages to damage, or of which nobody can say whether it has."""
        lines = []
        owners = [(SERVER_STORE_PERSISTENT, "the message store", directory.path / absence.STORE, "store")]
        for server in self._superblock.queue_workers:
            name = f"worker-{server - SERVER_WORKER_FIRST}"
            owners.append((server, name, directory.path / queues_of(server - SERVER_WORKER_FIRST), name))
        if server := self._superblock.topic_server:
            owners.append((server, "the commit log of topics", directory.path / TOPICS, names.TOPICS))
        for server, name, folder, log in owners:
            lost, unknown = (self._superblock.server_get(server, field) for field in ("lost_n", "lost_unknown_n"))
            report = folder / quarantine.QUARANTINE / quarantine.REPORT
            if unknown:
                files = quarantine.of_unknown_cost(folder)[-unknown:]
                more = f" and {len(files) - FILES_SAID} more" if len(files) > FILES_SAID else ""
                which = f" ({', '.join(files[:FILES_SAID])}{more})" if files else ""
                known = f"; {lost} are counted" if lost else ""
                lines.append(
                    f"{name} has found files damaged or missing{which}, and cannot tell how many messages that "
                    f"cost{known}: see {report} and {directory.log_file(log)}"
                )
            elif lost:
                lines.append(
                    f"{name} has lost up to {counted(lost, 'message')} to damaged or missing files: see {report}"
                )
        return lines

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

    def _client(self, view: SlotView, alarmed: list[dict[str, Any]]) -> dict[str, Any]:
        """One client: what it has under way to each server that it ever used, and why it is blocked, if it is."""
        row: dict[str, Any] = {
            "slot": view.slot,
            "pid": view.pid,
            "name": view.name,
            "state": SLOT_STATES.get(view.state, "unknown"),
            "client_epoch": view.client_epoch,
            "blocked": None,
            "blocked_threads": 0,
            "blocked_because": "",
            "under_way": [],
        }
        size, servers_n = self._superblock.get("client_base_bytes"), self._superblock.servers_n
        try:
            memory = region.sysv_attach(view.shmid, read_only=True)
        except region.RegionError:  # it is just coming or going
            return row
        try:
            if memory.size < size:
                return row
            on_alarm, on_credit = (CLIENT.unpack(memory.buffer, name) for name in ("blocked_alarm", "blocked_credit"))
            for server in range(servers_n):
                base = PAGE_BYTES + server * LINK.size
                head = LINK.unpack(memory.buffer, "head", base)  # first: it is the one that follows
                processed, tail = (LINK.unpack(memory.buffer, name, base) for name in ("processed", "tail"))
                if tail:
                    row["under_way"].append(
                        {
                            "server": self._superblock.server_name(server),
                            "commands": max(0, tail - head),
                            "unprocessed": max(0, tail - processed),
                            "room": max(0, self._superblock.get("ring_records") - max(0, tail - head)),
                        }
                    )
        finally:
            memory.close()
        if on_alarm and any(item["blocks_publishers"] for item in alarmed):
            causes = "; ".join(item["text"] for item in alarmed if item["blocks_publishers"])
            row |= {"blocked": "alarm", "blocked_threads": on_alarm, "blocked_because": causes}
        elif on_credit:
            fullest = max(row["under_way"], key=lambda item: int(item["commands"]), default={"server": "a server"})
            row |= {
                "blocked": "credit",
                "blocked_threads": on_credit,
                "blocked_because": f"its ring or arena is full: it waits for {fullest['server']} "
                "(settings ring_records, arena_bytes)",
            }
        return row

    def _collector(self, role: Role) -> dict[str, Any]:
        """The collector serves no client, so it has no row of counters; what it did stands in the stores' rows."""
        superblock = self._superblock
        return {
            "role": role.kind,
            "index": role.index,
            **_who(role),
            "rss_bytes": rss_bytes(role.identity),
            "state": _state(role, superblock.get("collector_state")),
            "restarts": superblock.get("collector_restarts"),
            "rates": {},
        }

    def _of_gateway(self, role: gateway_roles.GatewayRole) -> dict[str, Any]:
        """A gateway; its connections tell `warren gateway connections`, which asks it."""
        connections = self._superblock.gateway_get(role.index, "connections")
        return {"index": role.index, **_who(role), "connections": connections}

    def _gateway_process(self, role: Role) -> dict[str, Any]:
        superblock = self._superblock
        return {
            "role": role.kind,
            "index": role.index,
            **_who(role),
            "rss_bytes": rss_bytes(role.identity),
            "state": _state(role, superblock.gateway_get(role.index, "state")),
            "restarts": superblock.gateway_get(role.index, "restarts"),
            "rates": {},
        }

    def _process(self, role: Role, now: _Sample, base: _Sample, seconds: float, workers_n: int) -> dict[str, Any]:
        if role.kind == gateway_roles.GATEWAY:
            return self._gateway_process(role)
        if not role.servers:
            return self._collector(role)
        superblock = self._superblock
        retiring = role.kind == "queue_worker" and role.index >= workers_n
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
            **_who(role),
            "rss_bytes": rss_bytes(role.identity),
            "state": _state(role, superblock.server_get(first, "state")),
            "epoch": superblock.server_get(first, "epoch"),
            "restarts": superblock.server_get(first, "restarts"),
            "error": max(superblock.server_get(server, "error") for server in role.servers),
            "evicted": sum(superblock.server_get(server, "evicted_n") for server in role.servers),
            "eliminated": sum(superblock.server_get(server, "eliminated_n") for server in role.servers),
            "retiring": retiring,
            "lost": sum(superblock.server_get(server, "lost_n") for server in role.servers),
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
            "collected": self._superblock.server_get(server, "collected_n"),
            "retired": self._superblock.server_get(server, "retired_n"),
            "copied_bytes": self._superblock.server_get(server, "copied_bytes"),
            "lost": self._superblock.server_get(server, "lost_n"),
        }

    def _queue(
        self,
        queue: QueueDeclaration,
        rows: Mapping[int, dict[str, int]],
        rows_before: Mapping[int, dict[str, int]],
        seconds: float,
    ) -> dict[str, Any]:
        row = rows.get(queue.id, {})
        before = rows_before.get(queue.id, {})
        ready, unacked = row.get("ready", 0), row.get("unacked", 0)
        beta, gamma, delta = (row.get(state, 0) for state in ("beta", "gamma", "delta"))
        return {
            "name": queue.name,
            "id": queue.id,
            "durable": queue.durable,
            "worker": queue.worker,
            "ready": ready,
            "unacked": unacked,
            "alpha": row.get("alpha", ready + unacked - beta - gamma - delta),
            "beta": beta,
            "gamma": gamma,
            "delta": delta,
            "bytes": row.get("bytes", 0),
            "consumers": row.get("consumers", 0),
            **{key: row.get(key, 0) for key in _QUEUE_COUNTS},
            "rates": {f"{key}_per_s": _rate(row.get(key, 0), before.get(key, 0), seconds) for key in _QUEUE_RATES},
        }


def _refusals(roles: Iterable[Role]) -> Iterator[str]:
    """Why servers have failed, where they said it."""
    for role in roles:
        if role.failed and (why := refusal(role.log)):
            yield f"{role.name} cannot serve: {why}"


def _state(role: Role, number: int) -> str:
    """What a process does, by its own row, unless somebody has stopped it."""
    still = role.identity is not None and role.identity.stands_still()
    return standstill.STOPPED if still else SERVER_STATES.get(number, "unknown")


def _stopped(roles: Iterable[Role]) -> Iterator[str]:
    """Which processes somebody has stopped, and what lets them go on."""
    for role in roles:
        if role.identity is not None and role.identity.stands_still():
            yield standstill.described(role.name, role.identity.pid)


def _who(role: Role) -> dict[str, int | None]:
    """Which process has a role; None while there is none. Never 0: a signal to 0 hits the sender's process group."""
    identity = role.identity
    return {"pid": identity.pid if identity else None, "start_time": identity.start_time if identity else None}


class _Kinds:
    """The queues of a catalog whose names match, as pairs: the name of the queue that one belongs to, and itself."""

    def __init__(self, catalog: Catalog, pattern: str | None) -> None:
        matches = self.matches = re.compile(fnmatch.translate(pattern)).match if pattern is not None else None
        self.queues: list[tuple[str, QueueDeclaration]] = []
        self.subscriptions: list[tuple[str, QueueDeclaration]] = []
        self.dead_letters: list[tuple[str, QueueDeclaration]] = []
        for item in catalog.queues.values():
            if not item.hidden:
                source, kind = item, self.queues
            elif (found := catalog.by_id.get(item.subscription_of)) is not None:
                source, kind = found, self.subscriptions
            elif (found := catalog.by_id.get(item.dead_letters_of)) is not None:
                source, kind = found, self.dead_letters
            else:
                continue
            if matches is None or matches(source.name):
                kind.append((source.name, item))


def _first(
    kind: list[tuple[str, QueueDeclaration]], scores: Mapping[int, int] | None, most: int | None
) -> list[tuple[str, QueueDeclaration]]:
    """Those with the highest scores, in the order of their names."""
    if scores is not None and most is not None and len(kind) > most:
        kind = heapq.nsmallest(most, kind, key=lambda pair: (-scores.get(pair[1].id, 0), pair[1].name))
    return sorted(kind, key=lambda pair: pair[1].name)


def _columns(buffer: memoryview, wanted: Iterable[str]) -> tuple[bytes, ...]:
    """Fields of the rows of a statistics region, column by column: what a sample keeps of 65,536 queues is read in a
    millisecond. Without numpy: it would be a third of a supervisor's memory."""
    size = QUEUE_STATS.size // 8
    with buffer.cast("Q") as words:
        return tuple(words[QUEUE_STATS.offset(name) // 8 :: size].tobytes() if len(words) else b"" for name in wanted)


def _in_rows(columns: tuple[bytes, ...]) -> Iterator[tuple[int, ...]]:
    """What `_columns` has read, row by row: the id of a queue first, rows of none left out."""
    views = [memoryview(column).cast("Q") for column in columns]
    return (row for row in zip(*views, strict=True) if row[0])


def _used_rows(buffer: memoryview, wanted: Container[int] | None = None) -> dict[int, dict[str, int]]:
    """The rows of a statistics region that belong to a queue, by queue id; `wanted`: those of these queues."""
    size = QUEUE_STATS.size // 8
    columns = [(item.name, item.offset // 8) for item in QUEUE_STATS.fields]
    found: dict[int, dict[str, int]] = {}
    if not len(buffer):
        return found
    with buffer.cast("Q") as words:
        for number, queue in enumerate(words[QUEUE_STATS.offset("queue") // 8 :: size].tolist()):
            if queue and (wanted is None or queue in wanted):
                row = words[number * size : (number + 1) * size].tolist()
                found[queue] = {name: row[at] for name, at in columns}
    return found


def rss_bytes(identity: Identity | None) -> int:
    """Resident memory of a process, 0 when it is gone."""
    process = identity.describe() if identity is not None else None
    if process is None:
        return 0
    import psutil

    try:
        resident: int = process.memory_info().rss
    except psutil.Error:
        return 0
    return resident


def _rate(now: int, before: int, seconds: float) -> float:
    return round((now - before) / seconds, 1) if seconds > 0 and now >= before else 0.0
