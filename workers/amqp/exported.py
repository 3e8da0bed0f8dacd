"""A node's declarations and users as RabbitMQ's definitions, which `rabbitmqctl import_definitions` reads.

What a program declared by AMQP is written as it said it; what was declared otherwise, as RabbitMQ says the same. Where
a queue does what its own arguments do not say (policies that were imported once), the rest is a policy for this queue
alone. What RabbitMQ has no words for is named in `notes`.

Passwords that are kept as Argon2 are none to RabbitMQ: such users are written without one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from warren.engine.catalog.catalog import Catalog, QueueDeclaration
from warren.engine.catalog.exchanges import DEFAULT_EXCHANGES
from warren.engine.catalog.topics import TopicDeclaration
from warren.workers.amqp import passwords
from warren.workers.amqp.arguments import CLASSIC, STREAM, exchange_told_by, queue_wanted, told_by
from warren.workers.amqp.definitions import LIMITS, VERSION, Table
from warren.workers.amqp.faults import Fault
from warren.workers.amqp.mapping import RESERVED, amqp_name, stream_called
from warren.workers.amqp.policies import own_policy
from warren.workers.amqp.users_file import GUEST, Accounts

#: what a queue of Warren's may be declared with, as keys of RabbitMQ's policies, and what a unit of it is there
_KEYS = {
    "message_ttl": ("message-ttl", 1000),
    "expires": ("expires", 1000),
    "max_length": ("max-length", 1),
    "max_length_bytes": ("max-length-bytes", 1),
    "delivery_limit": ("delivery-limit", 1),
    "overflow": ("overflow", 0),
    "dead_letter_exchange": ("dead-letter-exchange", 0),
    "dead_letter_routing_key": ("dead-letter-routing-key", 0),
}
_OWN = ("deduplication_window", "ack_timeout")


class Exported(NamedTuple):
    """The content of a file, and what it does not say."""

    content: Table
    notes: list[str]


def export(catalog: Catalog, accounts: Accounts, version: str) -> Exported:
    """The definitions of a node. `version`: of Warren."""
    made = _Export(catalog, accounts)
    made.users()
    made.declarations()
    made.bindings()
    content: Table = {
        "rabbit_version": VERSION,
        "rabbitmq_version": VERSION,
        "product_name": "Warren",
        "product_version": version,
        **made.sections,
    }
    return Exported(content, made.notes)


class _Export:
    def __init__(self, catalog: Catalog, accounts: Accounts) -> None:
        self.catalog, self.accounts = catalog, accounts
        self.notes: list[str] = []
        names = ("users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies")
        self.sections: dict[str, list[Table]] = {name: [] for name in (*names, "queues", "exchanges", "bindings")}
        self.streams: dict[str, tuple[str, str]] = {}

    # -- users --------------------------------------------------------------------------------------------------

    def users(self) -> None:
        """Users, vhosts and permissions."""
        into = self.sections
        for name, vhost in sorted(self.accounts.vhosts.items()):
            metadata: Table = {"description": vhost.description, "tags": vhost.tags}
            if vhost.default_queue_type:
                metadata["default_queue_type"] = vhost.default_queue_type
            into["vhosts"].append({"name": name, "metadata": metadata, "limits": []})
            if vhost.limits:
                into["parameters"].append({"component": LIMITS, "name": "limits", "vhost": name, "value": vhost.limits})
        for name, account in sorted(self.accounts.users.items()):
            kept, algorithm = account.password_hash, account.hashing_algorithm
            if algorithm == passwords.ARGON2:
                if kept:
                    self.notes.append(
                        f"user {name} has no password there, because RabbitMQ does not know Argon2: `rabbitmqctl "
                        "change_password` gives one"
                    )
                kept, algorithm = "", "rabbit_password_hashing_sha256"
            if account.loopback_only and name != GUEST:
                self.notes.append(
                    f"user {name} comes from this host alone here, and from everywhere there: RabbitMQ's configuration "
                    "says that, by loopback_users"
                )
            into["users"].append(
                {
                    "name": name,
                    "password_hash": kept,
                    "hashing_algorithm": algorithm,
                    "tags": account.tags,
                    "limits": account.limits,
                }
            )
            for vhost_name, rights in sorted(account.permissions.items()):
                if vhost_name in self.accounts.vhosts:
                    into["permissions"].append(
                        {
                            "user": name,
                            "vhost": vhost_name,
                            "configure": rights.configure,
                            "write": rights.write,
                            "read": rights.read,
                        }
                    )
            for vhost_name, exchanges in sorted(account.topic_permissions.items()):
                for exchange, topics in sorted(exchanges.items()):
                    into["topic_permissions"].append(
                        {
                            "user": name,
                            "vhost": vhost_name,
                            "exchange": exchange,
                            "write": topics.write,
                            "read": topics.read,
                        }
                    )

    # -- declarations -------------------------------------------------------------------------------------------

    def _known(self, kind: str, vhost: str, name: str) -> bool:
        if vhost in self.accounts.vhosts:
            return True
        self.notes.append(f"{kind} {name} is left out: there is no vhost {vhost}")
        return False

    def declarations(self) -> None:
        """Exchanges, queues, streams."""
        own = {item.name for item in DEFAULT_EXCHANGES}
        for exchange in sorted(self.catalog.exchanges.values(), key=lambda item: item.name):
            vhost, name = amqp_name(exchange.name)
            if exchange.name in own or name.startswith(RESERVED) or not self._known("exchange", vhost, name):
                continue
            arguments = _plain(exchange_told_by(exchange))
            alternate = None if exchange.alternate is None else amqp_name(exchange.alternate)[1]
            if alternate is not None and arguments.get("alternate-exchange") != alternate:
                self._policy("exchange", vhost, name, {"alternate-exchange": alternate})
            self.sections["exchanges"].append(
                {
                    "name": name,
                    "vhost": vhost,
                    "type": exchange.type,
                    "durable": exchange.durable,
                    "auto_delete": exchange.auto_delete,
                    "internal": exchange.internal,
                    "arguments": arguments,
                }
            )
        for queue in sorted(self.catalog.queues.values(), key=lambda item: item.id):
            if not queue.hidden and not queue.owner:
                self._queue(queue)
        for topic in sorted(self.catalog.topics.values(), key=lambda item: item.id):
            if topic.by_name:
                self._stream(topic)
            elif not topic.name.startswith("%"):
                self.notes.append(f"topic {topic.name} is left out: it is no queue of type stream")

    def _queue(self, queue: QueueDeclaration) -> None:
        vhost, name = amqp_name(queue.name)
        if not self._known("queue", vhost, name):
            return
        arguments = _plain(told_by(queue))
        kind = str(arguments.get("x-queue-type", CLASSIC))
        auto_delete = bool(queue.arguments.get("auto_delete"))
        self.sections["queues"].append(
            {
                "name": name,
                "vhost": vhost,
                "type": kind,
                "durable": queue.durable,
                "auto_delete": auto_delete,
                "arguments": arguments,
            }
        )
        if kind == CLASSIC and "delivery_limit" in queue.arguments:
            self.notes.append(f"queue {name} has delivery_limit, which classic queues of RabbitMQ's have not")
        for argument in _OWN:
            if argument in queue.arguments:
                self.notes.append(f"queue {name} has {argument}, which RabbitMQ has not")
        try:
            said = queue_wanted(vhost, name, queue.durable, False, auto_delete, arguments).arguments
        except Fault:  # as another Warren took it
            said = {}
        self._policy("queue", vhost, name, self._unsaid(queue.arguments, said))

    def _unsaid(self, does: Mapping[str, Any], said: Mapping[str, Any]) -> Table:
        """What a queue does, and its arguments do not say."""
        definition: Table = {}
        for own, (key, unit) in _KEYS.items():
            if own in does and does[own] != said.get(own):
                value = does[own]
                if own.startswith("dead_letter_") and (own.endswith("exchange") or not does["dead_letter_exchange"]):
                    value = amqp_name(value)[1] if value else value
                definition[key] = round(value * unit) if unit else value
        return definition

    def _policy(self, kind: str, vhost: str, name: str, definition: Table) -> None:
        if definition:
            self.sections["policies"].append(
                {
                    "name": own_policy(kind, name),
                    "vhost": vhost,
                    "pattern": f"^{re.escape(name)}$",
                    "apply-to": f"{kind}s",
                    "priority": 0,
                    "definition": definition,
                }
            )

    def _stream(self, topic: TopicDeclaration) -> None:
        vhost, name = stream_called(topic.name)
        self.streams[topic.name] = vhost, name
        if not self._known("stream", vhost, name):
            return
        arguments = _plain(told_by(topic))
        self.sections["queues"].append(
            {
                "name": name,
                "vhost": vhost,
                "type": STREAM,
                "durable": True,
                "auto_delete": False,
                "arguments": arguments,
            }
        )
        try:
            said = queue_wanted(vhost, name, True, False, False, arguments).arguments
        except Fault:  # as another Warren took it
            said = {}
        definition: Table = {}
        for own, key in (("retention_s", "max-age"), ("retention_bytes", "max-length-bytes")):
            does = getattr(topic, own)
            if own in said and does != said[own]:
                self.notes.append(f"stream {name} has {own} {does}, and there what its declaration says: x-{key}")
            elif does is not None and own not in said:
                definition[key] = does if own == "retention_bytes" else f"{max(1, round(does))}s"
        self._policy("queue", vhost, name, definition)

    # -- bindings -----------------------------------------------------------------------------------------------

    def bindings(self) -> None:
        """Those of queues, streams and exchanges."""
        for bound in sorted(self.catalog.bindings):
            queue = self.catalog.queues[bound.queue]
            if not queue.hidden and not queue.owner:
                self._binding(bound.exchange, "queue", *amqp_name(bound.queue), bound.routing_key, bound.arguments)
        for of_topic in sorted(self.catalog.topic_bindings):
            if of_topic.topic in self.streams:
                vhost, name = self.streams[of_topic.topic]
                self._binding(of_topic.exchange, "queue", vhost, name, of_topic.routing_key, of_topic.arguments)
        for onward in sorted(self.catalog.exchange_bindings):
            destination = amqp_name(onward.destination)
            self._binding(onward.exchange, "exchange", *destination, onward.routing_key, onward.arguments)

    def _binding(self, exchange: str, kind: str, vhost: str, name: str, key: str, arguments: Table) -> None:
        source_vhost, source = amqp_name(exchange)
        if source_vhost != vhost:
            self.notes.append(f"the binding of exchange {exchange} to {kind} {name} is left out: it joins two vhosts")
        elif vhost in self.accounts.vhosts and source:
            self.sections["bindings"].append(
                {
                    "source": source,
                    "vhost": vhost,
                    "destination": name,
                    "destination_type": kind,
                    "routing_key": key,
                    "arguments": arguments,
                }
            )


def _plain(typed: Mapping[str, tuple[str, Any]]) -> Table:
    return {name: value for name, (_kind, value) in typed.items()}
