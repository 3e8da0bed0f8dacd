"""What RabbitMQ's definitions become here: a plan, made without changing anything, and how it is carried out.

Invariants
  Whatever of a file does not become what it was there stands in `Plan.not_mapped` or `Plan.left`, with the reason.
  What a policy does counts where it is done: not for what is refused or left.
  What is planned, the node takes: each declaration is made in a copy of its catalog first. So what a file says twice is
  found there the second time, and one bad name or argument costs its own declaration alone.
  Importing twice is importing once: what is there already as the file has it counts as `there`; what is there and
  differs is left as it is (`left`), but for users and permissions, which the file replaces, as in RabbitMQ.
  A queue that a policy matches gets the policy's arguments, and remembers those that it was declared with: programs
  that declare it as before find it as it was.

Crash point: users, vhosts and permissions come first, in one change; then exchanges, queues, bindings, each request as
a whole. Killed in between, the same import goes on.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from warren.engine.catalog.arguments import DELIVERY_LIMIT_MAX, QueueArguments
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.exchanges import DEFAULT_EXCHANGES
from warren.engine.errors import DeclarationMismatch, Error, UsageError
from warren.engine.saying import shown
from warren.workers.amqp import passwords, users_file
from warren.workers.amqp.arguments import STREAM, exchange_wanted, plain_arguments, queue_wanted
from warren.workers.amqp.definitions import DefinedBinding, DefinedPolicy, DefinedQueue, Definitions
from warren.workers.amqp.faults import Fault
from warren.workers.amqp.mapping import DEFAULT_VHOST, RESERVED, engine_name, stream_name
from warren.workers.amqp.policies import Policies, not_mapped
from warren.workers.amqp.types import type_of
from warren.workers.amqp.users_file import GUEST, Account, Accounts, Rights, TopicRights, Vhost

#: declarations of one request
MANY = 500
#: what a file declares: none of it may get lost unnoticed
DECLARED = frozenset(("exchange", "queue", "stream", "binding"))
OTHERWISE = "it is there already, declared otherwise"
_OWN = {item.name: item for item in DEFAULT_EXCHANGES if item.name}


class Not(NamedTuple):
    """Something of a file that did not become what it was."""

    kind: str
    vhost: str | None
    name: str
    why: str


class Calls(Protocol):
    """Who asks the supervisor: `ControlClient`."""

    def call(self, op: str, **fields: Any) -> dict[str, Any]: ...


class Plan:
    """What an import does. `accounts`, `catalog`: users, vhosts and permissions, and declarations, as they will be."""

    def __init__(self, accounts: Accounts, catalog: Catalog) -> None:
        self.accounts, self.catalog = accounts, catalog.copy()
        self.new: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.there: Counter[str] = Counter()
        self.left: list[Not] = []
        self.not_mapped: list[Not] = []
        self.policies: list[dict[str, Any]] = []  #: those that were applied, and to how much
        self.no_exchanges: set[str] = set()  #: those that are not mapped
        self.exchanges: dict[str, dict[str, Any]] = {}  #: by name in the node, as all of these
        self.queues: dict[str, dict[str, Any]] = {}
        self.streams: dict[str, dict[str, Any]] = {}
        self.bindings: list[dict[str, Any]] = []
        self.exchange_bindings: list[dict[str, Any]] = []
        self.stream_bindings: list[dict[str, Any]] = []

    @property
    def declares(self) -> bool:
        """Whether anything is to be declared in the node."""
        return any(
            (self.exchanges, self.queues, self.streams, self.bindings, self.exchange_bindings, self.stream_bindings)
        )

    @property
    def refused(self) -> list[Not]:
        """What the file declares, and the node does not take."""
        return [item for item in self.not_mapped if item.kind in DECLARED]

    @property
    def unmapped(self) -> list[Not]:
        """The other parts of the file that the node has nothing for."""
        return [item for item in self.not_mapped if item.kind not in DECLARED]

    def carry_out(self, client: Calls) -> None:
        """Declare what is to be declared. Raises errors of the node; then a part of it is done."""
        for fields in self.exchanges.values():
            client.call("declare_exchange", **fields)
        for many in _chunks(list(self.queues.values())):
            client.call("declare_queues", queues=many)
        for fields in self.streams.values():
            client.call("declare_topic", **fields)
        for many in _chunks(self.bindings):
            client.call("bind_many", bindings=many)
        for fields in self.stream_bindings:
            client.call("bind_topic", **fields)
        for fields in self.exchange_bindings:
            client.call("bind_exchange", **fields)

    def told(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "new": dict(self.new),
            "changed": dict(self.changed),
            "there": dict(self.there),
            "policies": self.policies,
            "left": [item._asdict() for item in self.left],
            "refused": [item._asdict() for item in self.refused],
            "not_mapped": [item._asdict() for item in self.unmapped],
        }


def _chunks(items: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    for at in range(0, len(items), MANY):
        yield items[at : at + MANY]


def plan(found: Definitions, accounts: Accounts, catalog: Catalog) -> Plan:
    """What importing these definitions would do to a node with these users and declarations."""
    made = Plan(_copy(accounts), catalog)
    _accounts(made, found)
    policies = Policies(found.policies, found.operator_policies)
    _exchanges(made, found, policies)
    for queue in found.queues:
        _queue(made, queue, policies)
    for binding in found.bindings:
        _binding(made, binding)
    _policies(made, found, policies)
    _rest(made, found)
    return made


def plan_of_users(found: Definitions, accounts: Accounts) -> Accounts:
    """Users, vhosts and permissions as importing these definitions would make them."""
    made = Plan(_copy(accounts), Catalog())
    _accounts(made, found)
    return made.accounts


def _copy(accounts: Accounts) -> Accounts:
    return msgspec.convert(msgspec.to_builtins(accounts), Accounts)


# -- users ------------------------------------------------------------------------------------------------------------


def _accounts(made: Plan, found: Definitions) -> None:
    _vhosts(made, found)
    _users(made, found)
    _permissions(made, found)


def _vhosts(made: Plan, found: Definitions) -> None:
    for item in found.vhosts:
        before = made.accounts.vhosts.get(item.name)
        limits = dict(before.limits) if before is not None else {}
        _limits(made, "vhost", item.name, found.vhost_limits.get(item.name, {}), users_file.VHOST_LIMITS, limits)
        vhost = msgspec.structs.replace(before or Vhost(), limits=limits)
        for name in ("description", "tags", "default_queue_type"):
            if (said := getattr(item, name)) is not None:
                setattr(vhost, name, said)
        try:
            users_file.check_name("vhost", item.name)
        except UsageError as error:
            made.not_mapped.append(Not("vhost", item.name, item.name, str(error)))
            continue
        _count(made, "vhosts", before, vhost)
        made.accounts.vhosts[item.name] = vhost
    for name in found.vhost_limits.keys() - {item.name for item in found.vhosts}:
        made.not_mapped.append(Not("limits", name, name, "the vhost is not among the definitions"))


def _limits(
    made: Plan, kind: str, name: str, given: dict[str, int], known: Iterable[str], limits: dict[str, int]
) -> None:
    for limit, value in given.items():
        if limit not in known:
            made.not_mapped.append(Not(kind, None, name, f"there is no limit {shown(limit)}"))
        elif value >= 0:
            limits[limit] = value
        else:
            limits.pop(limit, None)


def _count(made: Plan, kind: str, before: object, now: object) -> None:
    if before is None:
        made.new[kind] += 1
    elif before == now:
        made.there[kind] += 1
    else:
        made.changed[kind] += 1


def _users(made: Plan, found: Definitions) -> None:
    for item in found.users:
        before = made.accounts.users.get(item.name)
        account = Account() if before is None else msgspec.structs.replace(before)
        if before is None:
            account.loopback_only = item.name == GUEST
        account.tags, account.limits = item.tags, {}
        _limits(made, "user", item.name, item.limits, users_file.USER_LIMITS, account.limits)
        try:
            users_file.check_name("user", item.name)
            if item.password_hash is None and item.password is not None:
                _password(account, before, item.password)
            else:
                account.password_hash = item.password_hash or ""
                account.hashing_algorithm = passwords.check_kept(account.password_hash, item.hashing_algorithm)
        except UsageError as error:
            made.not_mapped.append(Not("user", None, item.name, str(error)))
            continue
        _count(made, "users", before, account)
        made.accounts.users[item.name] = account


def _password(account: Account, before: Account | None, password: str) -> None:
    """A password in the clear: it is hashed, if it is not the one that is known already."""
    if before is not None:
        algorithm = passwords.check_kept(before.password_hash, before.hashing_algorithm)
        if passwords.right(password.encode(), before.password_hash, algorithm):
            return
    account.password_hash, account.hashing_algorithm = passwords.make(password.encode()), passwords.ARGON2


def _permissions(made: Plan, found: Definitions) -> None:
    for item in found.permissions:
        account = _whose(made, "permissions", item.user, item.vhost, item.configure, item.write, item.read)
        if account is not None:
            rights = Rights(item.configure, item.write, item.read)
            _count(made, "permissions", account.permissions.get(item.vhost), rights)
            account.permissions = account.permissions | {item.vhost: rights}
    for topic in found.topic_permissions:
        account = _whose(made, "topic permissions", topic.user, topic.vhost, topic.write, topic.read)
        if account is not None:
            topics = TopicRights(topic.write, topic.read)
            of_vhost = account.topic_permissions.get(topic.vhost, {})
            _count(made, "topic permissions", of_vhost.get(topic.exchange), topics)
            account.topic_permissions = account.topic_permissions | {topic.vhost: of_vhost | {topic.exchange: topics}}


def _whose(made: Plan, kind: str, user: str, vhost: str, *patterns: str) -> Account | None:
    """The user that permissions are of, when they can be taken."""
    account = made.accounts.users.get(user)
    why = "" if account is not None else "there is no such user"
    if vhost not in made.accounts.vhosts:
        why = "there is no such vhost"
    for pattern in patterns:
        try:
            users_file.check_pattern(pattern)
        except UsageError as error:
            why = str(error)
    if why:
        made.not_mapped.append(Not(kind, vhost, user, why))
        return None
    return account


# -- declarations -----------------------------------------------------------------------------------------------------


def _no_vhost(made: Plan, kind: str, vhost: str, name: str) -> bool:
    if vhost in made.accounts.vhosts:
        return False
    made.not_mapped.append(Not(kind, vhost, name, "there is no such vhost"))
    return True


def _taken(
    made: Plan, kind: str, vhost: str, name: str, declare: Callable[..., object], fields: dict[str, Any]
) -> bool:
    """Whether a node takes it. If not, it is told why."""
    try:
        declare(**fields)
    except Error as error:
        made.not_mapped.append(Not(kind, vhost, name, str(error)))
        return False
    return True


def _exchanges(made: Plan, found: Definitions, policies: Policies) -> None:
    for item in found.exchanges:
        if not item.name or item.name.startswith(RESERVED) or _no_vhost(made, "exchange", item.vhost, item.name):
            continue
        given = item.name, item.type, item.durable, item.auto_delete, item.internal
        applied = policies.exchange(item.vhost, item.name, item.arguments)
        try:
            said = exchange_wanted(item.vhost, *given, item.arguments)
            wanted = exchange_wanted(item.vhost, *given, applied.arguments)
        except Fault as fault:
            made.not_mapped.append(Not("exchange", item.vhost, item.name, fault.text))
            made.no_exchanges.add(f"{item.vhost}\0{item.name}")
            continue
        fields: dict[str, Any] = {
            "name": wanted.name,
            "type": wanted.type,
            "durable": wanted.durable,
            "alternate": wanted.alternate,
            "internal": wanted.internal,
            "auto_delete": wanted.auto_delete,
            "arguments": said.arguments or None,
            "origin": said.origin or ({"arguments": {}} if wanted.alternate != said.alternate else None),
        }
        there = made.catalog.exchanges.get(wanted.name)
        if there is None:
            if _taken(made, "exchange", item.vhost, item.name, made.catalog.declare_exchange, fields):
                made.new["exchanges"] += 1
                policies.count(applied)
                made.exchanges[wanted.name] = fields
            else:
                made.no_exchanges.add(f"{item.vhost}\0{item.name}")
        elif all(
            getattr(there, name) == fields[name] for name in ("type", "durable", "alternate", "internal", "auto_delete")
        ):
            made.there["exchanges"] += 1
            policies.count(applied)
        else:
            made.left.append(Not("exchange", item.vhost, item.name, OTHERWISE))


def _queue(made: Plan, item: DefinedQueue, policies: Policies) -> None:
    if _no_vhost(made, "queue", item.vhost, item.name):
        return
    arguments = dict(item.arguments)
    if item.type and item.type != "classic":
        arguments.setdefault("x-queue-type", item.type)
    type = arguments.get("x-queue-type", "classic")
    applied = policies.queue(item.vhost, item.name, str(type), arguments)
    try:
        wanted = queue_wanted(item.vhost, item.name, item.durable, False, item.auto_delete, applied.arguments)
        if applied.delivery_limit is not None and applied.delivery_limit >= 0:
            wanted.arguments["delivery_limit"] = min(applied.delivery_limit, DELIVERY_LIMIT_MAX)
        if item.exclusive:
            raise UsageError("it belongs to a connection, and goes with it")
        policy = None if wanted.type == STREAM else QueueArguments.of(wanted.name, wanted.arguments).given()
    except Fault as fault:
        made.not_mapped.append(Not("queue", item.vhost, item.name, fault.text))
        return
    except UsageError as error:
        made.not_mapped.append(Not("queue", item.vhost, item.name, str(error)))
        return
    origin: dict[str, Any] | None = {"arguments": {key: [type_of(value), value] for key, value in arguments.items()}}
    if not arguments and not applied.by:
        origin = None
    if policy is None:
        if _stream(made, item, wanted.arguments, origin):
            policies.count(applied)
        return
    there = made.catalog.queues.get(wanted.name)
    stream = made.catalog.topics.get(stream_name(item.vhost, item.name))
    if there is None and not (stream and stream.by_name):
        fields: dict[str, Any] = {
            "name": wanted.name,
            "durable": wanted.durable,
            "arguments": wanted.arguments,
            "origin": origin,
        }
        declare = partial(made.catalog.declare_queue, workers_n=max(1, made.catalog.placed_for))
        if _taken(made, "queue", item.vhost, item.name, declare, fields):
            made.new["queues"] += 1
            policies.count(applied)
            made.queues[wanted.name] = fields
    elif there is not None and there.durable == wanted.durable and there.arguments == policy:
        made.there["queues"] += 1
        policies.count(applied)
    else:
        made.left.append(Not("queue", item.vhost, item.name, OTHERWISE))


def _stream(made: Plan, item: DefinedQueue, retention: dict[str, Any], origin: dict[str, Any] | None) -> bool:
    """Whether it is, or will be, what the file says."""
    name = stream_name(item.vhost, item.name)
    there = made.catalog.topics.get(name)
    if there is None and engine_name(item.vhost, item.name) not in made.catalog.queues:
        fields = {"name": name, "queues": 1, "by_name": True, "origin": origin, **retention}
        if not _taken(made, "stream", item.vhost, item.name, made.catalog.declare_topic, fields):
            return False
        made.new["streams"] += 1
        made.streams[name] = fields
    elif (
        there is not None
        and there.by_name
        and (there.retention_s, there.retention_bytes)
        == (
            retention.get("retention_s"),
            retention.get("retention_bytes"),
        )
    ):
        made.there["streams"] += 1
    else:
        made.left.append(Not("stream", item.vhost, item.name, OTHERWISE))
        return False
    return True


def _binding(made: Plan, item: DefinedBinding) -> None:
    if not item.source:
        return  # the default exchange's, which are there with each queue
    with_key = f" with {shown(item.routing_key)}" if item.routing_key else ""
    called = f"{item.source} → {item.destination_type} {item.destination}{with_key}"
    if _no_vhost(made, "binding", item.vhost, called):
        return
    catalog, key = made.catalog, item.routing_key
    before, exchanges = catalog.version, len(made.exchanges)
    try:
        source = _exchange(made, item.vhost, item.source)
        arguments = plain_arguments(item.arguments) or None
        if item.destination_type == "exchange":
            destination = _exchange(made, item.vhost, item.destination)
            catalog.bind_exchange(destination, source, key, arguments)
            fields, kept = {"source": source, "destination": destination}, made.exchange_bindings
        elif item.destination_type != "queue":
            raise UsageError(f"there is no type of destination {shown(item.destination_type)}: queue, exchange")
        else:
            queue, stream = engine_name(item.vhost, item.destination), stream_name(item.vhost, item.destination)
            if queue in catalog.queues:
                catalog.bind(queue, source, key, arguments)
                fields, kept = {"exchange": source, "queue": queue}, made.bindings
            elif stream in catalog.topics:
                with contextlib.suppress(DeclarationMismatch):  # its records get other keys or tags: it is bound
                    catalog.bind_topic(stream, source, key, arguments)
                fields, kept = {"exchange": source, "topic": stream}, made.stream_bindings
            else:
                raise UsageError(f"there is no queue {shown(item.destination)}")
    except (Fault, Error) as error:
        made.not_mapped.append(
            Not("binding", item.vhost, called, error.text if isinstance(error, Fault) else str(error))
        )
        for name in list(made.exchanges)[exchanges:]:  # they were made for it
            catalog.delete_exchange(name)
            del made.exchanges[name]
    else:
        if catalog.version == before:
            made.there["bindings"] += 1
        else:
            made.new["bindings"] += 1
            kept.append(fields | {"routing_key": key, "arguments": arguments})


def _exchange(made: Plan, vhost: str, name: str) -> str:
    """An exchange that is there, or will be; RabbitMQ's own of another vhost are made when they are needed. Raises
    UsageError: there is none.
    """
    own = engine_name(vhost, name)
    if own in made.catalog.exchanges:
        return own
    if name in _OWN and vhost != DEFAULT_VHOST:
        fields: dict[str, Any] = {"name": own, "type": _OWN[name].type, "internal": _OWN[name].internal}
        made.catalog.declare_exchange(**fields)
        made.exchanges[own] = fields
        return own
    why = "it is not mapped" if f"{vhost}\0{name}" in made.no_exchanges else "RabbitMQ does not export internal ones"
    raise UsageError(f"there is no exchange {shown(name)}: {why}")


# -- what has no place here -------------------------------------------------------------------------------------------


def _policies(made: Plan, found: Definitions, policies: Policies) -> None:
    def note(policy: DefinedPolicy, why: str) -> None:
        made.not_mapped.append(Not("policy", policy.vhost, policy.name, why))

    for policy, why in policies.wrong:
        note(policy, why)
    wrong = {id(policy) for policy, _why in policies.wrong}
    for policy in (*found.policies, *found.operator_policies):
        if id(policy) in wrong:
            continue
        for key, why in not_mapped(policy).items():
            note(policy, f"{key}: {why}")
        count = policies.used.get(id(policy), 0)
        if count:
            made.policies.append({"vhost": policy.vhost, "name": policy.name, "applied": count})
        else:
            note(policy, "it matches nothing that is imported, or others come first")


_WHY_NOT = {
    "federation-upstream": "there is no federation",
    "federation-upstream-set": "there is no federation",
    "shovel": "there are no shovels: a program of a few lines consumes there and publishes here",
}


def _rest(made: Plan, found: Definitions) -> None:
    for parameter in found.parameters:
        why = _WHY_NOT.get(parameter.component, "it is RabbitMQ's own")
        made.not_mapped.append(Not(parameter.component or "parameter", parameter.vhost, parameter.name, why))
    for parameter in found.global_parameters:
        made.not_mapped.append(Not("global parameter", None, parameter.name, "it is RabbitMQ's own"))
    for section, count in found.unknown.items():
        made.not_mapped.append(Not("section", None, section, f"it is not known here ({count} in it)"))
