"""What queues and exchanges are declared with: RabbitMQ's arguments, checked as it checks them, and as Warren's own.

A declaration has three sides. What the client said is kept beside the declaration (`origin`: the arguments with their
types), so that a later declaration can be compared with it, by any connection, also after a restart. What the engine
needs is made of it (`arguments`). And what nobody declared by AMQP is told as if somebody had (`told_by`).

Invariants
  What RabbitMQ refuses is refused with its code and text; an argument that it does not know is accepted, and means
  nothing. So are those that say how RabbitMQ stores or places a queue, which has no meaning here (`MEANINGLESS`).
  Whatever is accepted and has a meaning is what the engine does: nothing is dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from warren.engine.catalog.arguments import DELIVERY_LIMIT_MAX, PRIORITY_MAX
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.catalog.exchanges import X_MATCH, ExchangeDeclaration
from warren.engine.catalog.topics import TopicDeclaration
from warren.workers.amqp.faults import ChannelFault, ConnectionFault
from warren.workers.amqp.mapping import amqp_name, described, engine_name
from warren.workers.amqp.types import class_of, type_of

CLASSIC, QUORUM, STREAM = "classic", "quorum", "stream"
_MODULES = {CLASSIC: "rabbit_classic_queue", QUORUM: "rabbit_quorum_queue", STREAM: "rabbit_stream_queue"}
EXCHANGE_TYPES = ("direct", "fanout", "topic", "headers")
ALTERNATE = "alternate-exchange"
_DEAD = ("x-dead-letter-exchange", "x-dead-letter-routing-key")
_LENGTHS = ("x-max-length", "x-max-length-bytes")
#: what each type of queue takes, in the order in which they are compared
KNOWN: dict[str, tuple[str, ...]] = {
    CLASSIC: (
        "x-expires",
        "x-message-ttl",
        *_DEAD,
        *_LENGTHS,
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-queue-version",
        "x-single-active-consumer",
        "x-queue-type",
        "x-queue-master-locator",
    ),
    QUORUM: (
        *_DEAD,
        "x-dead-letter-strategy",
        "x-expires",
        *_LENGTHS,
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-overflow",
        "x-single-active-consumer",
        "x-queue-type",
        "x-quorum-initial-group-size",
        "x-delivery-limit",
        "x-message-ttl",
        "x-queue-leader-locator",
    ),
    STREAM: (
        "x-max-length-bytes",
        "x-queue-type",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-initial-cluster-size",
        "x-queue-leader-locator",
    ),
}
#: how RabbitMQ stores and places a queue; and a strategy of dead letters that is always "at-least-once" here
MEANINGLESS = frozenset(
    {
        "x-queue-mode",
        "x-queue-version",
        "x-queue-master-locator",
        "x-queue-leader-locator",
        "x-dead-letter-strategy",
        "x-quorum-initial-group-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-stream-max-segment-size-bytes",
        "x-initial-cluster-size",
    }
)
_ALL = frozenset(name for names in KNOWN.values() for name in names)
#: where RabbitMQ puts the leader of a queue
LEADERS = ("client-local", "balanced", "random", "least-leaders")
#: milliseconds, at most, as RabbitMQ has it: ten years
EXPIRY_MAX = 10 * 365 * 86400 * 1000
AMQP_PRIORITY_MAX = 255
_AGE = re.compile(r"(\d{1,9})(Y|M|D|h|m|s)", re.ASCII)
_AGES = {"Y": 365 * 86400, "M": 30 * 86400, "D": 86400, "h": 3600, "m": 60, "s": 1}
#: types as `origin` names them
Typed = dict[str, tuple[str, Any]]


class _Wrong(Exception):
    """What RabbitMQ writes of an argument that it refuses: an Erlang term."""


class _WrongType(Exception):
    """The type of an argument, where RabbitMQ says that in other words."""


# -- checks ---------------------------------------------------------------------------------------------------------


def _whole(value: Any) -> int:
    if class_of(value) != "int":
        raise _Wrong(f'"expected integer, got {type_of(value)}"')
    return int(value)


def _count(value: Any) -> int:
    found = _whole(value)
    if found < 0:
        raise _Wrong(f"{{value_negative,{found}}}")
    return found


def _time(value: Any) -> int:
    found = _count(value)
    if found > EXPIRY_MAX:
        raise _Wrong(f"{{value_too_large,{found}}}")
    return found


def _lease(value: Any) -> int:
    found = _time(value)
    if not found:
        raise _Wrong("{value_zero,0}")
    return found


def _priorities(value: Any) -> int:
    found = _count(value)
    if found > AMQP_PRIORITY_MAX:
        raise _Wrong(f"{{max_value_exceeded,{found}}}")
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"{{unacceptable_type,{type_of(value)}}}")
    return value


def _exchange(value: Any) -> str:
    if not isinstance(value, str):
        raise _WrongType(type_of(value))
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"{{unacceptable_type,{type_of(value)}}}")
    return value


def _one_of(error: str, *choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if _text(value) not in choices:
            raise _Wrong(error.format(value))
        return str(value)

    return check


def _age(value: Any) -> int:
    found = _AGE.fullmatch(_text(value))
    if found is None:
        raise _Wrong("invalid_max_age")
    return int(found[1]) * _AGES[found[2]]


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "x-expires": _lease,
    "x-message-ttl": _time,
    "x-dead-letter-exchange": _exchange,
    "x-dead-letter-routing-key": _text,
    "x-dead-letter-strategy": _one_of("invalid_dlx_strategy", "at-most-once", "at-least-once"),
    "x-max-length": _count,
    "x-max-length-bytes": _count,
    "x-max-in-memory-length": _count,
    "x-max-in-memory-bytes": _count,
    "x-max-priority": _priorities,
    "x-overflow": _one_of("invalid_overflow", "drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": _one_of("\"unsupported queue mode '{}'\"", "default", "lazy"),
    "x-queue-version": _count,
    "x-single-active-consumer": _truth,
    "x-queue-type": _text,
    "x-delivery-limit": _whole,
    "x-max-age": _age,
    "x-stream-max-segment-size-bytes": _count,
    "x-initial-cluster-size": _count,
    "x-quorum-initial-group-size": _count,
    "x-queue-leader-locator": _text,
    "x-queue-master-locator": _text,
}


# -- queues ---------------------------------------------------------------------------------------------------------


class QueueWanted(NamedTuple):
    """A queue.declare, understood."""

    name: str  #: in the node
    type: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]  #: Warren's; of a stream those of its topic
    origin: dict[str, Any]  #: what was said, for later comparisons
    dead_letter_exchange: str | None  #: as AMQP has it


def typed(arguments: Mapping[str, Any]) -> Typed:
    """Arguments with their types, as far as JSON has them: what is kept, compared and shown."""
    found: Typed = {}
    for name, value in arguments.items():
        kind = type_of(value)
        if isinstance(value, bool | str) or value is None:
            found[name] = (kind, value)
        elif isinstance(value, int):
            found[name] = (kind, int(value))
        elif isinstance(value, float):
            found[name] = (kind, float(value))
    return found


def type_of_queue(arguments: Mapping[str, Any], what: str) -> str:
    """x-queue-type. Raises ChannelFault."""
    found = arguments.get("x-queue-type", CLASSIC)
    if not isinstance(found, str):
        raise _invalid("x-queue-type", what, f"{{unacceptable_type,{type_of(found)}}}")
    if found not in KNOWN:
        raise _invalid("x-queue-type", what, f"\"unsupported queue type '{found}'\"")
    return found


def queue_wanted(
    vhost: str, name: str, durable: bool, exclusive: bool, auto_delete: bool, arguments: Mapping[str, Any]
) -> QueueWanted:
    """What a queue.declare asks for. Raises ChannelFault 406 as RabbitMQ does."""
    what = described("queue", name, vhost)
    checked: dict[str, Any] = {}
    for argument, value in arguments.items():
        check = _CHECKS.get(argument)
        if check is None:
            continue
        try:
            checked[argument] = check(value)
        except _Wrong as error:
            raise _invalid(argument, what, str(error)) from None
        except _WrongType as error:
            raise ChannelFault(406, f"invalid type '{error}' for arg '{argument}' in {what}") from None
    if "x-dead-letter-routing-key" in checked and "x-dead-letter-exchange" not in checked:
        raise _invalid("x-dead-letter-routing-key", what, "routing_key_but_no_dlx_defined")
    kind = type_of_queue(arguments, what)
    for argument in arguments:
        if argument in _ALL and argument not in KNOWN[kind]:
            raise ChannelFault(406, f"invalid arg '{argument}' for {what} of queue type {_MODULES[kind]}")
    if kind != CLASSIC:
        if checked.get("x-queue-leader-locator", LEADERS[0]) not in LEADERS:
            raise _invalid("x-queue-leader-locator", what, "invalid_queue_locator_arg")
        for wrong, said in (
            (auto_delete, "auto-delete"),
            (exclusive, "exclusive-owner"),
            (not durable, "non-durable"),
        ):
            if wrong:
                raise ChannelFault(406, f"invalid property '{said}' for {what}")
    made = _of_stream(checked) if kind == STREAM else _of_queue(vhost, checked)
    if exclusive:
        made["exclusive"] = True
    if auto_delete:
        made["auto_delete"] = True
    dead = checked.get("x-dead-letter-exchange")
    origin = {"arguments": {key: list(value) for key, value in typed(arguments).items()}}
    return QueueWanted(
        engine_name(vhost, name), kind, durable, exclusive, auto_delete, made, origin if arguments else {}, dead
    )


def _of_queue(vhost: str, checked: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if "x-message-ttl" in checked:
        made["message_ttl"] = checked["x-message-ttl"] / 1000
    if "x-expires" in checked:
        made["expires"] = checked["x-expires"] / 1000
    for argument, own in (("x-max-length", "max_length"), ("x-max-length-bytes", "max_length_bytes")):
        if argument in checked:
            made[own] = checked[argument]
    overflow = checked.get("x-overflow", "drop-head")
    if overflow != "drop-head" and ("max_length" in made or "max_length_bytes" in made):
        made["overflow"] = overflow
    if "x-dead-letter-exchange" in checked:
        exchange = checked["x-dead-letter-exchange"]
        made["dead_letter_exchange"] = engine_name(vhost, exchange)
        key = checked.get("x-dead-letter-routing-key")
        if key is not None:
            made["dead_letter_routing_key"] = key if exchange else engine_name(vhost, key)
    if checked.get("x-max-priority"):
        made["max_priority"] = min(checked["x-max-priority"], PRIORITY_MAX)
    if checked.get("x-delivery-limit", -1) >= 0:  # below 0: none
        made["delivery_limit"] = min(checked["x-delivery-limit"], DELIVERY_LIMIT_MAX)
    if checked.get("x-single-active-consumer"):
        made["single_active_consumer"] = True
    return made


def _of_stream(checked: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if "x-max-age" in checked:
        made["retention_s"] = float(checked["x-max-age"])
    if checked.get("x-max-length-bytes"):
        made["retention_bytes"] = checked["x-max-length-bytes"]
    return made


def told_by(declaration: QueueDeclaration | TopicDeclaration) -> Typed:
    """The AMQP arguments of a queue: those that were said, or what says the same of one that Warren's own programs
    declared. Their queues are classic ones, of which AMQP has no x-delivery-limit.
    """
    origin = getattr(declaration, "origin", None)
    if origin and "arguments" in origin:
        return {name: (kind, value) for name, (kind, value) in origin["arguments"].items()}
    if isinstance(declaration, TopicDeclaration):
        said: Typed = {"x-queue-type": ("longstr", STREAM)}
        if declaration.retention_s is not None:
            said["x-max-age"] = ("longstr", f"{max(1, round(declaration.retention_s))}s")
        if declaration.retention_bytes is not None:
            said["x-max-length-bytes"] = ("long", declaration.retention_bytes)
        return said
    policy, said = declaration.policy, {}
    vhost = amqp_name(declaration.name)[0]
    for name, seconds in (("x-message-ttl", policy.message_ttl), ("x-expires", policy.expires)):
        if seconds is not None:
            said[name] = ("long", round(seconds * 1000))
    for name, number in (
        ("x-max-length", policy.max_length),
        ("x-max-length-bytes", policy.max_length_bytes),
        ("x-max-priority", policy.max_priority or None),
    ):
        if number is not None:
            said[name] = ("long", number)
    if policy.overflow != "drop-head":
        said["x-overflow"] = ("longstr", policy.overflow)
    if policy.dead_letter_exchange is not None:
        said["x-dead-letter-exchange"] = ("longstr", amqp_name(policy.dead_letter_exchange)[1])
        if policy.dead_letter_routing_key is not None:
            key = policy.dead_letter_routing_key
            if not policy.dead_letter_exchange and vhost != "/":
                key = amqp_name(key)[1]
            said["x-dead-letter-routing-key"] = ("longstr", key)
    if policy.single_active_consumer:
        said["x-single-active-consumer"] = ("bool", True)
    return said


def type_of_declared(found: QueueDeclaration) -> str:
    """The type of a queue that exists."""
    return str(told_by(found).get("x-queue-type", ("longstr", CLASSIC))[1])


def check_same_queue(found: QueueDeclaration, durable: bool, auto_delete: bool, said: Typed, what: str) -> None:
    """Raises ChannelFault 406 when a queue that exists was declared otherwise."""
    check_same("durable", found.durable, durable, what)
    check_same("auto_delete", bool(found.arguments.get("auto_delete")), auto_delete, what)
    _check_queue_arguments(told_by(found), said, what)


def check_same_stream(found: TopicDeclaration, said: Typed, what: str) -> None:
    """The same of a stream."""
    _check_queue_arguments(told_by(found), said, what)


def _check_queue_arguments(has: Typed, said: Typed, what: str) -> None:
    kind = ("longstr", CLASSIC)
    has, said = {"x-queue-type": kind, **has}, {"x-queue-type": kind, **said}
    check_arguments(has, said, what, KNOWN[has["x-queue-type"][1]])


def _said(origin: Mapping[str, Any]) -> Typed:
    return {name: (kind, value) for name, (kind, value) in origin.get("arguments", {}).items()}


# -- exchanges ------------------------------------------------------------------------------------------------------


class ExchangeWanted(NamedTuple):
    """An exchange.declare, understood."""

    name: str  #: in the node
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    alternate: str | None  #: in the node; None also where what was said is no name
    arguments: dict[str, Any]  #: what else was said, as far as it can be kept
    origin: dict[str, Any]
    alternate_exchange: str | None  #: as AMQP has it


def exchange_wanted(
    vhost: str,
    name: str,
    type: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: Mapping[str, Any],
) -> ExchangeWanted:
    """What an exchange.declare asks for. Raises ConnectionFault 503: there is no such type."""
    if type not in EXCHANGE_TYPES:
        raise ConnectionFault(503, f"{'unknown' if type else 'invalid'} exchange type '{type}'")
    given = arguments.get(ALTERNATE)
    alternate = given if isinstance(given, str) else None
    said = typed(arguments)
    origin = {"arguments": {key: list(value) for key, value in said.items()}} if said else {}
    rest = {key: value for key, (_kind, value) in said.items() if key != ALTERNATE}
    own = (
        engine_name(vhost, alternate) if alternate else None
    )  # by the default exchange RabbitMQ brings nothing anywhere
    return ExchangeWanted(engine_name(vhost, name), type, durable, auto_delete, internal, own, rest, origin, alternate)


def check_alternate(arguments: Mapping[str, Any], what: str) -> None:
    """Raises ChannelFault 406 when a new exchange has an alternate exchange that is no name."""
    given = arguments.get(ALTERNATE)
    if ALTERNATE in arguments and not isinstance(given, str):
        raise ChannelFault(406, f"invalid type '{type_of(given)}' for arg '{ALTERNATE}' in {what}")


def exchange_told_by(declaration: ExchangeDeclaration) -> Typed:
    """The AMQP arguments of an exchange."""
    origin = getattr(declaration, "origin", None)
    if origin and "arguments" in origin:
        return {name: (kind, value) for name, (kind, value) in origin["arguments"].items()}
    said = typed(getattr(declaration, "arguments", None) or {})
    if declaration.alternate is not None:
        said[ALTERNATE] = ("longstr", amqp_name(declaration.alternate)[1])
    return said


def check_same_exchange(found: ExchangeDeclaration, wanted: ExchangeWanted, what: str) -> None:
    """Raises ChannelFault 406 when an exchange that exists was declared otherwise."""
    check_same("type", found.type, wanted.type, what)
    check_same("durable", found.durable, wanted.durable, what)
    check_same("auto_delete", bool(getattr(found, "auto_delete", False)), wanted.auto_delete, what)
    check_same("internal", bool(getattr(found, "internal", False)), wanted.internal, what)
    check_arguments(exchange_told_by(found), _said(wanted.origin), what, (ALTERNATE,))


# -- comparisons ----------------------------------------------------------------------------------------------------


def check_same(key: str, has: object, wanted: object, what: str) -> None:
    """Raises ChannelFault 406 when a property is another one."""
    if has != wanted:
        raise _inequivalent(key, what, _shown(wanted), _shown(has))


def check_arguments(has: Typed, wanted: Typed, what: str, names: tuple[str, ...]) -> None:
    """Raises ChannelFault 406 when one of these arguments is another one."""
    for name in names:
        one, other = has.get(name), wanted.get(name)
        if one is None or other is None:
            if one is not other:
                raise _inequivalent(name, what, _shown_typed(other), _shown_typed(one))
        elif class_of(one[1]) != class_of(other[1]) or one[1] != other[1]:
            raise _inequivalent(name, what, _shown(other[1]), _shown(one[1]))


def _inequivalent(key: str, what: str, wanted: str, has: str) -> ChannelFault:
    return ChannelFault(406, f"inequivalent arg '{key}' for {what}: received {wanted} but current is {has}")


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


def _shown_typed(value: tuple[str, Any] | None) -> str:
    return "none" if value is None else f"the value {_shown(value[1])} of type '{value[0]}'"


def _invalid(argument: str, what: str, error: str) -> ChannelFault:
    return ChannelFault(406, f"invalid arg '{argument}' for {what}: {error}")


def check_headers_match(arguments: Mapping[str, Any]) -> None:
    """Raises ChannelFault 406 for an x-match that a headers exchange does not know."""
    if "x-match" not in arguments:
        return
    match = arguments["x-match"]
    if not isinstance(match, str):
        shown = str(match).lower() if isinstance(match, bool) else match
        raise ChannelFault(406, f"Invalid x-match field type {type_of(match)} (value {shown}); expected longstr")
    if match not in X_MATCH:
        raise ChannelFault(
            406,
            f'Invalid x-match field value <<"{match}">>; expected all, any, all-with-x, or any-with-x',
        )


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a binding, as the catalog compares them: what has no meaning for JSON is told by its bytes."""
    return {name: _plain(value) for name, value in arguments.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return plain_arguments(value)
    return repr(value)
