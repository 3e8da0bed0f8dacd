"""RabbitMQ's policies, as arguments of the queues and exchanges that they match.

Warren has no policies: what a queue does is declared with it. So a policy is applied once, to what is imported. As in
RabbitMQ one policy of users and one of operators count for each queue, those with the highest priority; of numbers that
both have (and the queue's own arguments) the smallest counts, of the rest the queue's own, then the operators'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.workers.amqp.arguments import CLASSIC, KNOWN
from warren.workers.amqp.definitions import DefinedPolicy
from warren.workers.amqp.users_file import ALL, compiled

#: of a queue: key of a policy → argument of a declaration
_OF_QUEUES = {
    key: f"x-{key}"
    for key in (
        *("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit", "overflow"),
        *("dead-letter-exchange", "dead-letter-routing-key", "max-age"),
    )
}
DELIVERY_LIMIT = "delivery-limit"
_OF_EXCHANGES = {"alternate-exchange": "alternate-exchange"}
#: the smallest counts
_SMALLEST = frozenset(("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit"))
#: keys that say how RabbitMQ stores or copies a queue, which changes nothing for its clients
_MIRRORS = "there is one node, and a message that is confirmed is on its disk"
_STORAGE = "it says how RabbitMQ stores a queue"
WHY_NOT = {
    **dict.fromkeys(
        (
            *("ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown"),
            *("ha-promote-on-failure", "target-group-size", "initial-cluster-size", "queue-master-locator"),
            *("queue-leader-locator",),
        ),
        _MIRRORS,
    ),
    **dict.fromkeys(
        (
            *("queue-mode", "queue-version", "max-in-memory-length", "max-in-memory-bytes"),
            *("stream-max-segment-size-bytes", "stream-filter-size-bytes"),
        ),
        _STORAGE,
    ),
    "dead-letter-strategy": "dead letters are always at least once",
    "consumer-timeout": "Warren has ack_timeout, which gives the message to another consumer and closes nothing",
    "federation-upstream": "there is no federation",
    "federation-upstream-set": "there is no federation",
}
_QUEUE_TYPES = {"classic_queues": "classic", "quorum_queues": "quorum", "streams": "stream"}
APPLY_TO = ("all", "queues", "exchanges", *_QUEUE_TYPES)


class Applied(NamedTuple):
    """What policies make of a declaration."""

    arguments: dict[str, Any]  #: those it was declared with, and what policies add
    by: list[DefinedPolicy]
    delivery_limit: int | None = None  #: of a classic queue, which has no argument for it


def own_policy(kind: str, name: str) -> str:
    """What a policy is called that Warren exports for one queue or exchange alone."""
    return f"of {kind} {name}"


class Policies:
    """Those of a file. `used`: to how much each is applied, by its `id`: a policy of users and one of operators may
    have the same name. `wrong`: those that cannot be used, and why.
    """

    def __init__(self, users: Iterable[DefinedPolicy], operators: Iterable[DefinedPolicy]) -> None:
        self.wrong: list[tuple[DefinedPolicy, str]] = []
        self.used: dict[int, int] = {}
        self._users, self._operators = self._good(users), self._good(operators)

    def _good(self, given: Iterable[DefinedPolicy]) -> list[DefinedPolicy]:
        found = []
        for policy in sorted(given, key=lambda item: -item.priority):
            try:
                compiled(policy.pattern or ALL)
                _check(policy)
            except UsageError as error:
                self.wrong.append((policy, str(error)))
                continue
            found.append(policy)
        return found

    def queue(self, vhost: str, name: str, type: str, arguments: Mapping[str, Any]) -> Applied:
        """What a queue is to be declared with."""
        kinds = ("queues", "all", *(kind for kind, of in _QUEUE_TYPES.items() if of == type))
        keys = {key: argument for key, argument in _OF_QUEUES.items() if argument in KNOWN.get(type, ())}
        found = self._applied(vhost, name, kinds, arguments, keys)
        if type == CLASSIC:  # RabbitMQ's have no limit; Warren's have, and an export says it by this policy alone
            own: Mapping[str, Any] = next(
                (item.definition for item in found.by if item.name == own_policy("queue", name)), {}
            )
            found = found._replace(delivery_limit=own.get(DELIVERY_LIMIT))
        if "x-dead-letter-exchange" not in found.arguments:  # without it, a policy's routing key counts for nothing
            found.arguments.pop("x-dead-letter-routing-key", None)
        return found

    def exchange(self, vhost: str, name: str, arguments: Mapping[str, Any]) -> Applied:
        """What an exchange is to be declared with."""
        return self._applied(vhost, name, ("exchanges", "all"), arguments, _OF_EXCHANGES)

    def _applied(
        self, vhost: str, name: str, kinds: tuple[str, ...], arguments: Mapping[str, Any], keys: Mapping[str, str]
    ) -> Applied:
        by = [found for among in (self._users, self._operators) if (found := _first(among, vhost, name, kinds))]
        made = dict(arguments)
        for key, argument in keys.items():
            values = [policy.definition[key] for policy in by if key in policy.definition]
            if key in _SMALLEST:
                numbers = [value for value in (*values, arguments.get(argument)) if isinstance(value, int)]
                if numbers:
                    made[argument] = min(numbers)
            elif values and argument not in made:
                made[argument] = values[-1]
        return Applied(made, by)

    def count(self, applied: Applied) -> None:
        """What they made is declared."""
        for policy in applied.by:
            self.used[id(policy)] = self.used.get(id(policy), 0) + 1


def _check(policy: DefinedPolicy) -> None:
    """What its keys say is what they may say; RabbitMQ would not have set it otherwise. Raises UsageError."""
    if policy.apply_to not in APPLY_TO:
        raise UsageError(f"apply-to is {shown(policy.apply_to)}, and one of {', '.join(APPLY_TO)} is known")
    for key, value in policy.definition.items():
        if key in _SMALLEST:
            if type(value) is not int or (value < 0 and key != "delivery-limit"):
                raise UsageError(f"{key} is {shown(value)}, and must be a whole number from 0")
        elif (key in _OF_QUEUES or key in _OF_EXCHANGES) and not isinstance(value, str):
            raise UsageError(f"{key} is {shown(value)}, and must be a text")


def _first(among: list[DefinedPolicy], vhost: str, name: str, kinds: tuple[str, ...]) -> DefinedPolicy | None:
    """The first of those by priority that is for a thing of these kinds."""
    return next(
        (
            policy
            for policy in among
            if policy.vhost == vhost and policy.apply_to in kinds and compiled(policy.pattern or ALL).search(name)
        ),
        None,
    )


def not_mapped(policy: DefinedPolicy) -> dict[str, str]:
    """The keys of a policy that no argument stands for, each with why."""
    known = _OF_QUEUES.keys() | _OF_EXCHANGES.keys()
    return {key: WHY_NOT.get(key, "it is not known here") for key in policy.definition if key not in known}
