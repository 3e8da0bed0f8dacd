"""Exchanges and what is bound to them: the declarations, the arguments of bindings, what a protocol said of them.

    alternate    the exchange that gets what no binding of this one matches
    internal     programs cannot publish to it: it gets what other exchanges and dead letters send
    auto_delete  it is deleted in the change that takes away the last thing that was bound to it
    arguments    opaque: kept, shown and compared
    origin       opaque: what the client of another protocol declared it with; kept and shown, not compared

Invariants
  A binding is one by source, destination, routing key and arguments: two that differ in arguments alone are two, and a
  message that both match goes there once.
  A headers exchange compares its bindings' arguments with headers, so they are what a header can be compared with. Of
  every other exchange they are opaque.
  The default exchange has no bindings, and is the destination of none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from warren.engine.catalog.metadata import plain
from warren.engine.errors import UsageError
from warren.engine.saying import quoted, shown

#: arguments and origins; conditions; an origin that is not there
Opaque = dict[str, Any] | str | msgspec.UnsetType
EXCHANGE_TYPES = ("direct", "fanout", "topic", "headers")
X_MATCH = ("all", "any", "all-with-x", "any-with-x")
RESERVED_PREFIX = "amq."
#: of arguments and origins, as JSON; what exists may have more, as older versions kept it
ARGUMENTS_BYTES_MAX, ARGUMENTS_BYTES_BEFORE = 4096, 65536
#: of a node: every process of it has them all
EXCHANGES_MAX, BINDINGS_MAX = 65536, 1 << 20
#: of all arguments and origins together
ALL_BYTES_MAX = 128 << 20


class ExchangeDeclaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One exchange; `type` is direct, fanout, topic or headers. `alternate`: the exchange that gets what no binding of
    this one matches, None: it is dropped. The rest: see above.
    """

    name: str
    type: str
    durable: bool
    alternate: str | None = msgspec.field(default_factory=lambda: None)  # a factory: it is written as ever, null too
    internal: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] = {}
    origin: dict[str, Any] = {}

    @property
    def plain(self) -> bool:
        """True when catalogs of the first format versions have room for it."""
        return not (self.internal or self.auto_delete or self.arguments or self.origin)


class ExchangeBinding(
    msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """Messages of an exchange that match go to the exchange `destination`, too, as if they had been published there.
    `conditions`: as those of a binding of a queue.
    """

    exchange: str
    destination: str
    routing_key: str
    conditions: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that it was bound with."""
        found: dict[str, Any] = msgspec.json.decode(self.conditions) if self.conditions else {}
        return found


#: exchanges that are always there; "" routes to the queue that is named by the routing key
DEFAULT_EXCHANGES = (
    ExchangeDeclaration("", "direct", True),
    ExchangeDeclaration("amq.direct", "direct", True),
    ExchangeDeclaration("amq.fanout", "fanout", True),
    ExchangeDeclaration("amq.headers", "headers", True),
    ExchangeDeclaration("amq.topic", "topic", True),
    *(
        NEWER := (
            ExchangeDeclaration("amq.match", "headers", True),
            ExchangeDeclaration("amq.rabbitmq.trace", "topic", True, None, internal=True),
        )
    ),
)
#: those that catalogs of the first format versions do not have
NEWER_EXCHANGES = frozenset(item.name for item in NEWER)


def checked_opaque(what: str, given: object) -> dict[str, Any]:
    """Arguments that nobody but who gave them understands, a copy; none for None. Raises UsageError for what cannot
    have been kept; `check_new` is for what comes.
    """
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"{what} must be a mapping, not {type(given).__name__}")
    found: dict[str, Any] = {_name(what, name): _kept(what, name, value, 0) for name, value in (given or {}).items()}
    _check_size(what, len(_written(what, found)) if found else 0, ARGUMENTS_BYTES_BEFORE)
    return found


def check_new(what: str, arguments: Opaque) -> None:
    """Raises UsageError for arguments, or conditions, that are more than is kept of something new."""
    _check_size(what, size_of(arguments), ARGUMENTS_BYTES_MAX)


def size_of(*opaque: Opaque) -> int:
    """How much arguments, conditions and origins count: their bytes as JSON, none for none."""
    return sum(len(one.encode() if isinstance(one, str) else _written("arguments", one)) for one in opaque if one)


def _check_size(what: str, size: int, most: int) -> None:
    if size > most:
        raise UsageError(f"{what} have {size} bytes together: at most {ARGUMENTS_BYTES_MAX} are kept")


def checked_conditions(arguments: object) -> dict[str, Any]:
    """Arguments of a binding to a headers exchange, a copy; none for None. Raises UsageError for what cannot be
    compared with a header.
    """
    found = checked_opaque("binding arguments", arguments)
    for key, value in found.items():
        if isinstance(value, list | dict):
            raise UsageError(
                f"binding argument {shown(key)} is of type {type(value).__name__}: "
                "give None (any value), bool, int, float or str"
            )
    match = found.get("x-match", "all")
    if match not in X_MATCH:
        raise UsageError(f"binding argument x-match={shown(match)}: choose one of {', '.join(X_MATCH)}")
    return found


def conditions_of(type: str, arguments: object) -> str:
    """Binding arguments as canonical text, '' for none. Raises UsageError for what an exchange of that type cannot
    take.
    """
    checked = checked_conditions(arguments) if type == "headers" else checked_opaque("binding arguments", arguments)
    return _written("binding arguments", checked).decode() if checked else ""


def compared(exchange: ExchangeDeclaration) -> tuple[object, ...]:
    """What two declarations of an exchange have to agree in; 1, 1.0 and True are different arguments."""
    return (*msgspec.structs.astuple(exchange)[:6], _written("arguments", exchange.arguments))


def described(exchange: ExchangeDeclaration) -> str:
    """What an exchange is declared as, for an error."""
    said = [exchange.type, "durable" if exchange.durable else "transient"]
    said += [name.replace("_", "-") for name in ("internal", "auto_delete") if getattr(exchange, name)]
    alternate = f" with alternate {quoted(exchange.alternate)}" if exchange.alternate is not None else ""
    arguments = f"{' and' if alternate else ' with'} arguments {exchange.arguments}" if exchange.arguments else ""
    return f"{', '.join(said)}{alternate}{arguments}"


#: lists and maps in each other
_DEPTH_MAX = 32


def _name(what: str, name: object) -> str:
    if not isinstance(name, str):
        raise UsageError(f"{what} must have str names, not {shown(name)}")
    return str.__str__(name)


def _kept(what: str, name: object, value: object, depth: int) -> Any:
    """A value as it is kept: what JSON has, in its own types."""
    if value is None or isinstance(value, bool):
        return value
    one = f"{what.removesuffix('s')} {shown(name)}"
    if isinstance(value, list | Mapping):
        if depth >= _DEPTH_MAX:
            raise UsageError(f"{one}: more than {_DEPTH_MAX} lists and mappings lie in each other")
        if isinstance(value, list):
            return [_kept(what, name, item, depth + 1) for item in value]
        return {_name(one, key): _kept(what, name, item, depth + 1) for key, item in value.items()}
    if not isinstance(value, int | float | str):
        raise UsageError(f"{one} is of type {type(value).__name__}: give None (any value), bool, int, float or str")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise UsageError(f"{one}: an int must lie from -2**63 to 2**64 - 1")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{one} is {value}: give a finite number")
    return plain(value)


def _written(what: str, arguments: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(arguments, order="sorted")
    except (msgspec.MsgspecError, OverflowError, UnicodeError) as error:
        raise UsageError(f"{what} cannot be stored: {error}") from error
