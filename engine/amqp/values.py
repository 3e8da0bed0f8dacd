"""Values of AMQP's field tables for which Python has no type: each is the nearest type, and remembers its tag.

So a table that is decoded and encoded again has the types that it had. What Python gives by itself is encoded as

    bool t · int I, or l beyond 32 bits · float d · str S · bytes x · None V · list, tuple A · dict F
    datetime T · decimal.Decimal D

and comes back as that. A long string (S) that is not UTF-8 comes back as LongString, which is bytes.
"""

from __future__ import annotations

import decimal
from typing import ClassVar


class Int8(int):
    """A signed octet."""

    amqp_tag: ClassVar[str] = "b"


class UInt8(int):
    """An unsigned octet."""

    amqp_tag: ClassVar[str] = "B"


class Int16(int):
    """A signed number of 2 bytes."""

    amqp_tag: ClassVar[str] = "s"


class UInt16(int):
    """An unsigned number of 2 bytes."""

    amqp_tag: ClassVar[str] = "u"


class UInt32(int):
    """An unsigned number of 4 bytes."""

    amqp_tag: ClassVar[str] = "i"


class Int64(int):
    """A signed number of 8 bytes that would fit into 4."""

    amqp_tag: ClassVar[str] = "l"


class OtherInt64(int):
    """A signed number of 8 bytes under the tag that the specification has for an unsigned one."""

    amqp_tag: ClassVar[str] = "L"


class Timestamp(int):
    """Seconds since 1970."""

    amqp_tag: ClassVar[str] = "T"


class Float32(float):
    """A float of 4 bytes."""

    amqp_tag: ClassVar[str] = "f"


class LongString(bytes):
    """A long string that is not UTF-8."""

    amqp_tag: ClassVar[str] = "S"


class Decimal(decimal.Decimal):
    """A decimal number: 32 bits, and how many of its digits stand behind the point (0 to 255)."""

    amqp_tag: ClassVar[str] = "D"


#: by tag
CLASSES = {
    kind.amqp_tag: kind
    for kind in (Int8, UInt8, Int16, UInt16, UInt32, Int64, OtherInt64, Timestamp, Float32, LongString, Decimal)
}
