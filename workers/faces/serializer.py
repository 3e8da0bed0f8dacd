"""How items of a work queue become bytes, and bytes items; and what is said when they cannot.

A serializer is 'pickle', 'json', 'msgpack', None (items are bytes), or an object with dumps and loads or with encode
and decode, as the modules pickle, json and msgspec.msgpack have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from warren.engine.errors import Undecodable, UsageError
from warren.engine.saying import raised, shown
from warren.workers.faces.interrupts import is_interrupt
from warren.workers.faces.message import Message


@runtime_checkable
class Dumps(Protocol):
    """A serializer like the modules pickle and json."""

    def dumps(self, item: Any, /) -> Any: ...
    def loads(self, data: Any, /) -> Any: ...


@runtime_checkable
class Encodes(Protocol):
    """A serializer like the modules msgspec.msgpack and msgspec.json."""

    def encode(self, item: Any, /) -> bytes: ...
    def decode(self, data: bytes, /) -> Any: ...


class Serializer:
    """The serializer of one work queue. `packed` and `unpack` are its calls."""

    def __init__(self, given: object, queue: str) -> None:
        self.given = given
        self._queue = queue
        self._name = _name_of(given)
        self._pack, self.unpack = _codec(given)

    def packed(self, item: Any) -> bytes:
        """The bytes of an item. Raises UsageError."""
        try:
            return self._pack(item)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise UsageError(
                f"queue {self._queue!r}: the serializer {self._name} cannot write this item of type "
                f"{type(item).__name__} ({raised(error)}): nothing was put; put what it can write, or give work_queue "
                f"another serializer"
            ) from error

    def undecodable(self, message: Message, error: BaseException, dead_letters: str | None) -> Undecodable:
        """What to raise for an item that cannot be read: it was rejected to an exchange of `dead_letters`, or is the
        caller's."""
        if dead_letters is not None:
            done = f"it was rejected and is dead-lettered (exchange {dead_letters!r})"
            advice = ""
        else:
            done = (
                "it stays unacked as this error's `message`: reject() drops it, nack() returns it to the queue, and "
                "so does close()"
            )
            advice = ", or declare the queue with a dead_letter_exchange, which takes such items"
        told = Undecodable(
            f"queue {self._queue!r}: the serializer {self._name} cannot read message "
            f"{message.message_id.hex()} of {len(message.body)} bytes ({raised(error)}): {done}; the next get "
            f"continues behind it. Use the same serializer to put and to get{advice}"
        )
        told.body = message.body
        if dead_letters is None:
            told.message = message
        return told


def _codec(serializer: object) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """What packs and unpacks items. Raises UsageError for a serializer that cannot."""
    if serializer is None:
        return _as_is, _as_is
    found: Any = serializer
    if isinstance(serializer, str):
        if serializer == "pickle":
            import pickle as found
        elif serializer == "json":
            import json as found
        elif serializer == "msgpack":
            from msgspec import msgpack as found
    if isinstance(found, Encodes):
        return found.encode, found.decode
    if not isinstance(found, Dumps):
        raise UsageError(
            f"serializer must be 'pickle', 'json', 'msgpack', None (items are bytes), or have dumps and loads or "
            f"encode and decode; not {shown(serializer)}"
        )
    dumps = found.dumps

    def pack(item: Any) -> bytes:
        data = dumps(item)
        if isinstance(data, str):
            return data.encode()
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UsageError(f"dumps gave {type(data).__name__}, not str or bytes")
        return bytes(data)

    return pack, found.loads


def _as_is(item: bytes) -> bytes:
    return item


def _name_of(serializer: object) -> str:
    if isinstance(serializer, str):
        return repr(serializer)
    return str(getattr(serializer, "__name__", type(serializer).__name__))
