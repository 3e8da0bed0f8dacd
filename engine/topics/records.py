"""Records of the commit log, properties and message ids as Python sees them. The work is done in C
(`engine/topics/record.c` and its neighbours), the bytes are declared in `engine/topics/formats.py`.

Invariant: what `scan` calls a record has sound lengths, lies where it says, and (as far as `Checks` were asked for)
holds legal texts and the body that was written. No checksum covers its other fields.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, NamedTuple

from warren.engine import _core
from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.engine.topics.formats import (
    HOST_V4,
    HOST_V6,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MAX,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    TOPIC_BYTES_MAX,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_V6_BITS = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

#: what the core's words mean, for who wanted to write
_REFUSED = {
    "size": f"a record has {RECORD_BYTES_MAX:,} bytes at most: send less at once",
    "number": "queue_id, reconsume_times, queue_offset and physical_offset must be positive numbers of Java",
    "topic length": f"a topic has 1 to {TOPIC_BYTES_MAX:,} bytes in UTF-8",
    "topic": "a topic must not contain the characters \\x00, \\x01 and \\x02",
    "properties length": f"properties of a message have {PROPERTIES_BYTES_MAX:,} bytes at most: put it into the body",
    "properties": "names and values of properties must not contain the characters \\x00, \\x01 and \\x02, and a name "
    "must not be empty: put it into the body",
}


class Found(IntEnum):
    """What begins somewhere in the log."""

    RECORD = 1
    BLANK = 2  #: the rest of the file is empty
    END = 3  #: nothing was written here yet
    BAD = 4  #: none of these


class Checks(IntFlag):
    """What a scan checks beside magic, size, lengths, position and signs."""

    NONE = 0
    TEXT = 1  #: topic and properties
    BODY = 2  #: the body's checksum
    ALL = 3


class Host(NamedTuple):
    """Who published or stored a record; `ip`: IPv4 or IPv6."""

    ip: str = "0.0.0.0"  # noqa: S104 - nobody's address; nothing is bound to it
    port: int = 0

    def encode(self) -> bytes:
        """Its 8 or 20 bytes. UsageError: no address, or no port."""
        try:
            return ipaddress.ip_address(self.ip).packed + self.port.to_bytes(4, "big")
        except (ValueError, OverflowError) as error:
            raise UsageError(f"{shown(tuple(self))} is no host: give an IP address and a port") from error

    @classmethod
    def decode(cls, host: bytes) -> Host:
        """The host of its 8 or 20 bytes."""
        return cls(str(ipaddress.ip_address(host[:-4])), int.from_bytes(host[-4:], "big"))


NOBODY = Host()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One message in the log. Times are milliseconds since 1970. The bits of `sys_flag` that tell IPv6 hosts follow
    from the hosts.
    """

    topic: str
    body: bytes = b""
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = NOBODY
    store_timestamp: int = 0
    store_host: Host = NOBODY
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class Scanned(NamedTuple):
    """What a scan found. `size`: bytes of a record, or of the rest of the file that a blank one speaks of; else 0.
    `reason`: why it is BAD: `truncated`, `magic`, `size`, `position`, `lengths`, `number`, `topic length`, `topic`,
    `properties length`, `properties` or `crc`; else `good`.
    """

    found: Found
    size: int = 0
    reason: str = "good"
    record: Record | None = None


def encode(record: Record) -> bytes:
    """The bytes of a record: V1, or V2 for a topic of more than 127 bytes.

    UsageError: a text with characters that the format has no place for, or something too long.
    """
    born_host, store_host = record.born_host.encode(), record.store_host.encode()
    sys_flag = record.sys_flag & ~_V6_BITS
    sys_flag |= SYS_BORN_HOST_V6 if len(born_host) == HOST_V6.size else 0
    sys_flag |= SYS_STORE_HOST_V6 if len(store_host) == HOST_V6.size else 0
    try:
        return _core.record_encode(
            record.queue_id,
            record.flag,
            record.queue_offset,
            record.physical_offset,
            sys_flag,
            record.born_timestamp,
            born_host,
            record.store_timestamp,
            store_host,
            record.reconsume_times,
            record.prepared_transaction_offset,
            record.topic.encode(),
            _core.properties_encode(dict(record.properties)),
            (record.body,),
        )
    except (ValueError, OverflowError) as error:
        raise UsageError(_REFUSED.get(str(error), str(error))) from error


def scan(buffer: Buffer, at: int = 0, position: int | None = None, checks: Checks = Checks.ALL) -> Scanned:
    """What begins at byte `at` of a buffer, which is byte `position` of the log (default: `at`).

    Without Checks.TEXT, a topic that is no UTF-8 comes with replacement characters, and illegal properties come not.
    """
    what, size, reason, fields = _core.record_scan(buffer, at, at if position is None else position, checks)
    if fields is None:
        return Scanned(Found(what), size, reason)
    begin = at + fields[13]
    record = Record(
        topic=fields[15].decode(errors="replace"),
        body=bytes(memoryview(buffer)[begin : begin + fields[14]]),
        queue_id=fields[2],
        queue_offset=fields[4],
        physical_offset=fields[5],
        properties=_properties(fields[16]),
        flag=fields[3],
        sys_flag=fields[6],
        born_timestamp=fields[7],
        born_host=Host.decode(fields[8]),
        store_timestamp=fields[9],
        store_host=Host.decode(fields[10]),
        reconsume_times=fields[11],
        prepared_transaction_offset=fields[12],
    )
    return Scanned(Found(what), size, reason, record)


def _properties(properties: bytes) -> dict[str, str]:
    """What can be read; illegal ones, which a scan without Checks.TEXT lets pass, are none."""
    try:
        return _core.properties_decode(properties)
    except ValueError:
        return {}


def message_id(host: Host, physical_offset: int) -> str:
    """The id of the message whose record lies at `physical_offset`: 32 digits, 56 with an IPv6 host."""
    return _core.message_id(host.encode(), physical_offset)


def parse_message_id(text: str) -> tuple[Host, int]:
    """The store host and the physical offset in an id. UsageError: it is none."""
    try:
        host, physical_offset = _core.message_id_parse(text)
    except ValueError as error:
        digits = f"{2 * (HOST_V4.size + 8)} or {2 * (HOST_V6.size + 8)} hexadecimal digits"
        raise UsageError(f"{shown(text)} is not a message id: one has {digits}") from error
    return Host.decode(host), physical_offset
