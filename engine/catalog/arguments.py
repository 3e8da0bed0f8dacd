"""What a queue may be declared with besides its name and durability: names, units, limits. Pure rules.

    message_ttl             s     a message that was ready for so long is dropped, or dead-lettered (reason expired);
                                  0: unless a consumer waits for it when it comes
    expires                 s     the queue is deleted when nobody used it for so long
    max_length              –     ready messages at most; 0: none waits, what no consumer takes at once goes
    max_length_bytes        B     bytes of the bodies of ready messages at most
    overflow                –     what happens above the maximum: "drop-head" (default), "reject-publish", or
                                  "reject-publish-dlx": what is refused goes to the dead_letter_exchange, too
    dead_letter_exchange    –     where messages go that are rejected, expired, dropped or delivered too often
    dead_letter_routing_key –     and with which routing key; default: their own
    max_priority            –     0 to 255: priorities above it count as it
    delivery_limit          –     a message that is returned after more deliveries is dropped (reason delivery_limit);
                                  0: at its first return
    ack_timeout             s     a message that a program holds unacked for longer goes to another consumer; default:
                                  none, with a single active consumer SINGLE_ACTIVE_ACK_TIMEOUT
    single_active_consumer  –     one consumer at a time gets all messages, the oldest
    exclusive               –     belongs to the client that declared it, and goes with it
    auto_delete             –     deleted after its last consumer has gone
    deduplication_window    s     a message id seen within this time is dropped

Invariants
  What is stored is `given()`: values that differ from the default, in one type each. So a declaration that says a
  default aloud is the same as one that leaves it out.
  Times are stored in seconds and used in milliseconds; they are at least one millisecond, except message_ttl 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, TypedDict, get_args, get_type_hints

import msgspec

from warren.engine.catalog.names import check_name, check_routing_key
from warren.engine.errors import InvalidName, UsageError
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.saying import near, quoted, shown

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
OVERFLOWS: tuple[str, ...] = get_args(Overflow)
#: those that refuse what is above the maximum
REFUSING = ("reject-publish", "reject-publish-dlx")
#: those that say something when they are 0
ZERO_COUNTS = ("message_ttl", "max_length", "max_length_bytes", "delivery_limit")
PRIORITY_MAX = PROTOCOL["PRIORITY_MAX"]
#: catalogs of format versions before 5 have no higher one
PRIORITY_MAX_BEFORE = 9
#: the longest time an argument may name: 100 years
SECONDS_MAX = 100 * 366 * 86400
COUNT_MAX = (1 << 62) - 1
#: below it a pause of a busy machine would count as a stuck consumer
ACK_TIMEOUT_MIN = 0.1
#: all other consumers wait for a single active one, so it is not waited for without end; as RabbitMQ's consumer_timeout
SINGLE_ACTIVE_ACK_TIMEOUT = 1800.0
DELIVERY_LIMIT_MAX = 65535


class QueueArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of one queue. `message_ttl`, `expires`, `ack_timeout`, `deduplication_window` in seconds; None: not
    set.
    """

    message_ttl: float | None = None
    expires: float | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_priority: int = 0
    delivery_limit: int | None = None
    ack_timeout: float | None = None
    single_active_consumer: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    deduplication_window: float | None = None

    @classmethod
    def of(cls, queue: str, arguments: Mapping[str, Any]) -> Self:
        """The checked arguments of a queue. Raises UsageError that names the queue, the argument and what it takes."""
        checked: dict[str, Any] = {}
        for name, value in arguments.items():
            check = _CHECKS.get(name)
            if check is None:
                advice = near(name.removeprefix("x-").replace("-", "_"), _CHECKS)
                raise UsageError(f"queue {quoted(queue)}: unknown argument {shown(name)}: {advice}")
            if value is None:
                continue
            try:
                checked[name] = check(value)
            except (ValueError, TypeError) as error:  # a UsageError is a ValueError
                raise UsageError(f"queue {quoted(queue)}: argument {name}={shown(value)}: {error}") from None
        found = cls(**checked)
        found._check_together(queue)
        return found

    def _check_together(self, queue: str) -> None:
        if self.dead_letter_routing_key is not None and self.dead_letter_exchange is None:
            raise UsageError(
                f"queue {quoted(queue)}: dead_letter_routing_key without dead_letter_exchange: "
                "give the exchange too ('' is the default one, which routes to the queue of that name)"
            )
        if self.overflow != "drop-head" and self.max_length is None and self.max_length_bytes is None:
            raise UsageError(
                f"queue {quoted(queue)}: overflow={self.overflow!r} without a maximum: give "
                f"max_length or max_length_bytes"
            )

        if self.refused_die and self.dead_letter_exchange is None:
            raise UsageError(
                f"queue {quoted(queue)}: overflow={self.overflow!r} without dead_letter_exchange: give one, or say "
                "overflow='reject-publish'"
            )

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, as it is stored and compared."""
        return {
            name: value for name in self.__struct_fields__ if (value := getattr(self, name)) != getattr(_PLAIN, name)
        }

    # -- in the units of the engine -----------------------------------------------------------------------------

    @property
    def message_ttl_ms(self) -> int | None:
        """0: a message ends at once, unless a consumer waits for it; None: none."""
        return None if self.message_ttl is None else _milliseconds(self.message_ttl)

    @property
    def deduplication_window_ms(self) -> int:
        """0: none."""
        return _milliseconds(self.deduplication_window)

    @property
    def ack_timeout_ms(self) -> int:
        """0: none."""
        return _milliseconds(ack_timeout_of(self.given()))

    @property
    def rejects_publish(self) -> bool:
        """True for overflow "reject-publish", and "reject-publish-dlx"."""
        return self.overflow in REFUSING

    @property
    def refused_die(self) -> bool:
        """True when what is refused goes to the dead letters, too."""
        return self.overflow == "reject-publish-dlx"

    @property
    def dead_letters(self) -> bool:
        """True when what dies in the queue goes on living in its companion."""
        return self.dead_letter_exchange is not None


_PLAIN = QueueArguments()


def ack_timeout_of(arguments: Mapping[str, Any]) -> float | None:
    """The ack timeout that holds in a queue with these arguments (`given`), in seconds; None: there is none."""
    default = SINGLE_ACTIVE_ACK_TIMEOUT if arguments.get("single_active_consumer") else None
    found: float | None = arguments.get("ack_timeout", default)
    return found


def _milliseconds(seconds: float | None) -> int:
    return max(1, round(seconds * 1000)) if seconds else 0


def _seconds_from(least: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= SECONDS_MAX:
            raise UsageError(f"it must be a number of seconds from {least} to {SECONDS_MAX}, without a unit")
        return float(value)

    return check


_seconds = _seconds_from(0.001)


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise UsageError(f"it must be a whole number from {low} to {high}")
        return value

    return check


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError("it must be true or false" if isinstance(value, str) else "it must be True or False")
    return value


def _overflow(value: Any) -> str:
    if value not in OVERFLOWS:
        raise UsageError(f"choose one of {', '.join(OVERFLOWS)}")
    return str(value)


def _exchange(value: Any) -> str:
    if value == "":
        return ""
    try:
        return check_name(value, "exchange")
    except InvalidName as error:
        raise UsageError(str(error)) from error


def _routing_key(value: Any) -> str:
    check_routing_key(value)
    return str(value)


class QueueOptions(TypedDict, total=False):
    """The arguments of `node.queue(name, ...)`: the type of each for callers, and what checks it when it is called.
    None is as good as left out.
    """

    message_ttl: Annotated[float | None, _seconds_from(0)]
    expires: Annotated[float | None, _seconds]
    max_length: Annotated[int | None, _whole(0, COUNT_MAX)]
    max_length_bytes: Annotated[int | None, _whole(0, COUNT_MAX)]
    overflow: Annotated[Overflow | None, _overflow]
    dead_letter_exchange: Annotated[str | None, _exchange]
    dead_letter_routing_key: Annotated[str | None, _routing_key]
    max_priority: Annotated[int | None, _whole(0, PRIORITY_MAX)]
    delivery_limit: Annotated[int | None, _whole(0, DELIVERY_LIMIT_MAX)]
    ack_timeout: Annotated[float | None, _seconds_from(ACK_TIMEOUT_MIN)]
    single_active_consumer: Annotated[bool | None, _truth]
    exclusive: Annotated[bool | None, _truth]
    auto_delete: Annotated[bool | None, _truth]
    deduplication_window: Annotated[float | None, _seconds]


#: argument → what checks a value, and gives it in one type
_CHECKS: dict[str, Callable[[Any], Any]] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(QueueOptions, include_extras=True).items()
}


def of_text(given: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of a command line, where numbers and booleans are text, converted to their types. A value that does
    not fit its type is left unchanged: the check of the arguments reports it.
    """
    return {name: _of_text(_KINDS.get(name, str), text) for name, text in given.items()}


def _of_text(kind: type, text: str) -> Any:
    if kind is bool:
        return _TRUTHS.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text


_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
#: argument → the type of its values
_KINDS: dict[str, type] = {
    name: next((kind for kind in get_args(hint) if kind in (float, int, bool)), str)
    for name, hint in get_type_hints(QueueOptions).items()
}
