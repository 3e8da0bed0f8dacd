"""Kill campaign of the AMQP gateway: `python -m warren.tools.crash amqp --kills N --seed S`. How kills are chosen:
campaign.py.

Two gateways share a port, and one with TLS. Producers with confirms and consumers with acks (amqp_actors.py), by raw
frames and by pika, others with transactions (amqp_tx.py), and some of a stream (amqp_streams.py) work on a node whose
files are small. Gateways, queue workers, the topic worker, store, supervisor, collector and the clients themselves are
killed and stopped at random, gateways also ended in good order, and so is the whole node, which is then opened again.

Violations, as of queues
  a message that was confirmed to an AMQP client is lost; of all its receipts more than one has no mark; a body that is
  not what its key says; a consumer that gets the unmarked messages of a publisher out of order; a dead letter that
  does not come out; a mandatory message to a queue that is there, returned
  a client waits longer than its bound (amqp_actors.BOUND_S) without deaths that excuse it: a connection that hangs
  one that was received in a transaction that was not committed, and does not come again; one that was published in
  such a transaction, and comes
  what amqp_streams.py says of the stream
And of the gateway
  at the end a gateway counts connections that are gone, a queue has unacked messages, or a slot is not free
  the port is still listened at when the node has stopped
"""

from __future__ import annotations

import errno
import random
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import warren
from warren.ipc.identity import Identity
from warren.tools.crash import amqp_streams
from warren.tools.crash.actors import LETTERS_QUEUE, declare_all, opened
from warren.tools.crash.amqp_actors import PROBE_QUEUE
from warren.tools.crash.amqp_client import Client
from warren.tools.crash.amqp_working import EXCHANGE, LIVED_THROUGH, PORTS_FILE, PUT
from warren.tools.crash.campaign import DRAIN_S, SETTINGS, Campaign
from warren.tools.crash.logs import Log
from warren.tools.crash.report import Report
from warren.tools.crash.victims import Node, send

GATEWAYS = 2
ROLES = (
    ("producer", 2),
    ("consumer", 2),
    ("getter", 1),
    ("pika-producer", 1),
    ("pika-consumer", 1),
    ("amqp-probe", 1),
    ("tx-producer", 1),
    ("tx-consumer", 1),
    ("stream-producer", 1),
    ("stream-reader", 1),
)
DRAINED_FIRST = (
    "producer", "pika-producer", "tx-producer", "stream-producer", "amqp-probe", "stream-reader", "getter",
    "pika-consumer", "tx-consumer", "consumer",
)  # fmt: skip


@dataclass
class AmqpReport(Report):
    """What a campaign of the gateway found."""

    restarts: int = 0  #: of the whole node, in good order
    gateway_restarts: int = 0
    held: int = 0  #: receipts in transactions that were not committed
    stream_confirmed: int = 0
    stream_read: int = 0

    def _sums(self) -> list[str]:
        letters = f"{self.letters:,} dead letters, {self.letters_again:,} of them again"
        received = f"{self.received:,} received, {self.redelivered:,} of them marked"
        return [
            f"messages: {self.confirmed:,} confirmed; {received}, {self.unconfirmed_received:,} never confirmed",
            letters,
            f"transactions: {self.held:,} received in those that were never committed",
            f"stream: {self.stream_confirmed:,} confirmed, {self.stream_read:,} read",
            f"gateways: {self.gateway_restarts:,} restarts; the node {self.restarts:,} times stopped and opened again",
        ]


class AmqpNode(Node):
    """A node with gateways: `gateway-0`, `gateway-1`."""

    def find(self, name: str) -> Identity | None:
        kind, _minus, index = name.partition("-")
        if kind != "gateway":
            return super().find(name)
        identity = self.superblock.gateway_identity(int(index))
        return identity if identity.pid and identity.alive() else None

    def names(self, role: str) -> list[str]:
        return [f"gateway-{index}" for index in range(GATEWAYS)] if role == "gateway" else super().names(role)

    def watch(self) -> None:
        super().watch()
        for index, name in enumerate(self.names("gateway")):
            identity = self.find(name)
            if identity is not None:
                self.pids.add(identity.pid)
            restarts = self.superblock.gateway_get(index, "restarts")
            for _ in range(restarts - self._restarts.get(name, restarts)):
                self.died(name)
            self._restarts[name] = restarts

    def connections(self) -> list[int]:
        """How many each gateway counts."""
        return [self.superblock.gateway_get(index, "connections") for index in range(GATEWAYS)]

    def restarts(self) -> int:
        """Of all gateways."""
        return sum(self.superblock.gateway_get(index, "restarts") for index in range(GATEWAYS))


def _free_port() -> int:
    """One that the system gives to no client: who connects to a port of that kind while nobody listens there may be
    given it himself, is connected to himself then, and has the port that the gateway is to have again.
    """
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [port for port in range(10_000, 1 << 16) if not low <= port <= high] or [0]
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.SystemRandom().choice(ports)))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return int(probe.getsockname()[1])


class AmqpCampaign(Campaign):
    """A node whose clients speak AMQP."""

    actor_module: ClassVar[str] = "warren.tools.crash.amqp_actors"
    actor_roles: ClassVar[tuple[tuple[str, int], ...]] = ROLES
    weights: ClassVar[dict[tuple[str, str], int]] = {
        ("kill", "gateway"): 12,
        ("end", "gateway"): 2,
        ("stop", "gateway"): 2,
        ("kill", "producer"): 3,
        ("kill", "consumer"): 3,
        ("kill", "getter"): 1,
        ("kill", "pika-producer"): 2,
        ("kill", "pika-consumer"): 2,
        ("kill", "tx-producer"): 2,
        ("kill", "tx-consumer"): 2,
        ("kill", "stream-producer"): 2,
        ("kill", "stream-reader"): 1,
        ("kill", "topics"): 3,
        ("again", "topics"): 1,
        ("kill", "worker"): 4,
        ("kill", "store"): 3,
        ("kill", "supervisor"): 2,
        ("kill", "collector"): 1,
        ("again", "worker"): 1,
        ("several", "node"): 3,
        ("stop", "worker"): 1,
        ("stop", "consumer"): 1,
        ("stop", "supervisor"): 1,
        ("restart", "node"): 1,
    }
    report_of: ClassVar[type[Report]] = AmqpReport
    node_of: ClassVar[type[Node]] = AmqpNode
    publishers: ClassVar[tuple[str, ...]] = ("producer", "pika-producer", "tx-producer")
    takers: ClassVar[tuple[str, ...]] = ("consumer", "getter", "pika-consumer", "tx-consumer")
    report: AmqpReport

    def __init__(self, folder: Path, seed: int, *more: Any, **options: Any) -> None:
        super().__init__(folder, seed, *more, **options)
        self.certificate = self._certificate()
        self.port: int = _free_port()
        self.tls_port: int = _free_port() if self.certificate else 0
        (self.root / PORTS_FILE).write_text(f"{self.port} {self.tls_port}")
        self._stream: list[tuple[int, str]] = []
        self._gateway_restarts = 0

    def _certificate(self) -> Path | None:
        """One that this campaign has made for itself, with its key in the same file."""
        command = shutil.which("openssl")
        if command is None:
            self.say("there is no openssl command (Debian: apt-get install openssl): no connection has TLS")
            return None
        path = self.root / "tls.pem"
        subject = ["-subj", "/CN=localhost", "-days", "1", "-keyout", str(path), "-out", str(path)]
        kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        subprocess.run([command, "req", *kind, *subject], check=True, capture_output=True, timeout=60)
        return path

    def _settings(self) -> dict[str, Any]:
        plain = SETTINGS | {
            "delivery_slots": 1024,
            "amqp": f"127.0.0.1:{self.port}",
            "amqp_processes": GATEWAYS,
            "amqp_heartbeat_s": 6,
            "log_file_bytes": 1 << 20,
            "topic_ring_bytes": 1 << 20,
        }
        if self.certificate is None:
            return plain
        return plain | {
            "amqp": f"{plain['amqp']},tls:127.0.0.1:{self.tls_port}",
            "amqp_tls_certificate": str(self.certificate),
        }

    @property
    def _amqp(self) -> AmqpNode:
        node = self._node
        assert isinstance(node, AmqpNode)
        return node

    def _prepare(self, observer: warren.Node) -> None:
        declare_all(observer)
        observer.declare_exchange(EXCHANGE)
        for name in PUT:
            observer.bind(name, EXCHANGE, name)
        observer.queue(PROBE_QUEUE)

    # -- hitting --------------------------------------------------------------------------------------------------

    def _hit(self, node: Node, what: str, role: str) -> None:
        if what == "restart":
            self._restart()
        elif what == "several":
            names = ["supervisor", *node.servers(), *node.names("gateway")]
            for name in self.rng.sample(names, self.rng.choice((2, 2, 3, 4))):
                self._kill(node, name)
        else:
            super()._hit(node, what, role)

    def _restart(self) -> None:
        """Stop the node in good order, and open it again: its clients reconnect by themselves."""
        if not self._node.supervisor_ready():
            return
        self._note("stopping the node", death=True)
        began = time.monotonic()
        assert self._observer is not None
        self._observer.close()
        self._sum_restarts()
        self._stop_node()
        self.report.restarts += 1
        self._open()
        self._note("the node is open again", death=True)
        self._down.append((began, time.monotonic()))

    def _sum_restarts(self) -> None:
        self.report.gateway_restarts += self._amqp.restarts()

    def _revive(self) -> warren.Node:
        if not self._node.all():
            self._sum_restarts()
        return super()._revive()

    def _sizes(self) -> str:
        return f"{super()._sizes()}; {self._amqp.connections()} connections"

    # -- the end --------------------------------------------------------------------------------------------------

    def _drain(self, node: warren.Node) -> None:
        self._end_actors(DRAINED_FIRST)
        log = Log(str(self.logs / "drain.log"))
        self._read_stream(log)
        self._await_no_connections()
        for name in (*PUT, PROBE_QUEUE):
            self._drain_queue(opened(node, name), None if name == PROBE_QUEUE else log)
        self._drain_letters(node.queue(LETTERS_QUEUE), log)
        log.close()

    def _read_stream(self, log: Log) -> None:
        """All of it; a gateway that was killed last may not be back yet."""
        deadline = time.monotonic() + DRAIN_S
        while True:
            try:
                client = Client(self.port, DRAIN_S)
                try:
                    self._stream = amqp_streams.read_all(client, log)
                    client.close()
                finally:
                    client.socket.close()
                return
            except LIVED_THROUGH as error:
                if time.monotonic() > deadline:
                    self.report.violations.append(f"the stream cannot be read: {error}")
                    return
                time.sleep(0.1)

    def _await_no_connections(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        while any(self._amqp.connections()):
            if time.monotonic() > deadline:
                found = self._amqp.connections()
                self.report.violations.append(f"gateways have {found} connections, and no client is left")
                return
            time.sleep(0.05)

    def _compare(self, node: warren.Node) -> None:
        self._sum_restarts()
        report = self.report
        self._compare_messages()
        self._compare_held()
        self._compare_stream()
        self._compare_probes("amqp")
        for role, _count in ROLES:
            for entry in self._entries(role):
                if entry[0] == "e":
                    report.errors[entry[1].rstrip(":")] += 1
                elif entry[0] == "b" and role in self.publishers:
                    report.violations.append(f"{role}: {' '.join(entry[1:])}")
                elif entry[0] == "f" and role != "amqp-probe":
                    self._slow(role, int(entry[2]) / 1e6, float(entry[3]))
        self._wait_for_sweep()
        self._end_store(node)

    def _compare_held(self) -> None:
        """Each receipt in a transaction that was not committed is followed by another one."""
        held = Counter(entry[1] for entry in self._entries("tx-consumer") if entry[0] == "h")
        found = (entry for role in (*self.takers, "drain") for entry in self._entries(role))
        received = Counter(entry[1] for entry in found if entry[0] == "r")
        self.report.held = held.total()
        for key, count in held.items():
            if received[key] <= count:
                text = f"{key} was received {received[key]} times, {count} of them without a commit, and never again"
                self.report.violations.append(f"lost: {text}")

    def _compare_stream(self) -> None:
        report = self.report
        published = list(self._entries("stream-producer"))
        confirmed = {entry[1] for entry in published if entry[0] == "c"}
        announced = {entry[1] for entry in published if entry[0] == "i"}
        logs = sorted(self.logs.glob("stream-reader-*.log"))
        readers = {path.stem: [line.split(" ") for line in path.read_text().split("\n")[:-1]] for path in logs}
        for entry in self._entries("stream-reader"):
            report.stream_read += entry[0] == "s"
            if entry[0] == "b":
                report.violations.append("wrong bytes: " + " ".join(entry[1:]))
        report.stream_confirmed = len(confirmed)
        report.violations += amqp_streams.judge(self._stream, announced, confirmed, readers, bool(self._node_deaths))

    def _not_clients(self) -> set[int]:
        found = (self._amqp.find(name) for name in self._amqp.names("gateway"))
        return {identity.pid for identity in found if identity is not None}

    def _compare_files(self) -> None:
        """The node has stopped."""
        deadline = time.monotonic() + 5
        for port in filter(None, (self.port, self.tls_port)):
            while self._listened_at(port):
                if time.monotonic() > deadline:
                    self.report.violations.append(f"port {port} is listened at, and the node has stopped")
                    break
                time.sleep(0.1)

    @staticmethod
    def _listened_at(port: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    def _stop_node(self) -> None:
        super()._stop_node()
        deadline = time.monotonic() + 10
        for name in self._amqp.names("gateway"):
            while (identity := self._amqp.find(name)) is not None:
                if time.monotonic() > deadline:
                    self.report.violations.append(f"{name} {identity.pid} outlives its node")
                    send(identity, signal.SIGKILL)
                    break
                time.sleep(0.02)
