"""Kill campaign of the AMQP gateway: `python -m warren.tools.crash amqp --kills N --seed S`. How kills are chosen:
campaign.py.

Two gateways share a port. Producers with confirms and consumers with acks (amqp_actors.py), by raw frames and by pika,
work on a node whose files are small. Gateways, queue workers, store, supervisor, collector and the clients themselves
are killed and stopped at random, gateways also ended in good order, and so is the whole node, which is then opened
again.

Violations, as of queues
  a message that was confirmed to an AMQP client is lost; of all its receipts more than one has no mark; a body that is
  not what its key says; a consumer that gets the unmarked messages of a publisher out of order; a dead letter that
  does not come out; a mandatory message to a queue that is there, returned
  a client waits longer than its bound (amqp_actors.BOUND_S) without deaths that excuse it: a connection that hangs
And of the gateway
  at the end a gateway counts connections that are gone, a queue has unacked messages, or a slot is not free
  the port is still listened at when the node has stopped
"""

from __future__ import annotations

import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import warren
from warren.ipc.identity import Identity
from warren.tools.crash.actors import LETTERS_QUEUE, declare_all, opened
from warren.tools.crash.amqp_actors import EXCHANGE, PORT_FILE, PROBE_QUEUE, PUT
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
)
DRAINED_FIRST = ("producer", "pika-producer", "amqp-probe", "getter", "pika-consumer", "consumer")


@dataclass
class AmqpReport(Report):
    """What a campaign of the gateway found."""

    restarts: int = 0  #: of the whole node, in good order
    gateway_restarts: int = 0

    def _sums(self) -> list[str]:
        letters = f"{self.letters:,} dead letters, {self.letters_again:,} of them again"
        received = f"{self.received:,} received, {self.redelivered:,} of them marked"
        return [
            f"messages: {self.confirmed:,} confirmed; {received}, {self.unconfirmed_received:,} never confirmed",
            letters,
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
    publishers: ClassVar[tuple[str, ...]] = ("producer", "pika-producer")
    takers: ClassVar[tuple[str, ...]] = ("consumer", "getter", "pika-consumer")
    report: AmqpReport

    def __init__(self, folder: Path, seed: int, *more: Any, **options: Any) -> None:
        super().__init__(folder, seed, *more, **options)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        (self.root / PORT_FILE).write_text(str(self.port))
        self._gateway_restarts = 0

    def _settings(self) -> dict[str, Any]:
        return SETTINGS | {
            "delivery_slots": 1024,
            "amqp": f"127.0.0.1:{self.port}",
            "amqp_processes": GATEWAYS,
            "amqp_heartbeat_s": 6,
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
        self._await_no_connections()
        log = Log(str(self.logs / "drain.log"))
        for name in (*PUT, PROBE_QUEUE):
            self._drain_queue(opened(node, name), None if name == PROBE_QUEUE else log)
        self._drain_letters(node.queue(LETTERS_QUEUE), log)
        log.close()

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

    def _not_clients(self) -> set[int]:
        found = (self._amqp.find(name) for name in self._amqp.names("gateway"))
        return {identity.pid for identity in found if identity is not None}

    def _compare_files(self) -> None:
        """The node has stopped."""
        deadline = time.monotonic() + 5
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                return
            if time.monotonic() > deadline:
                self.report.violations.append(f"port {self.port} is listened at, and the node has stopped")
                return
            time.sleep(0.1)

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
