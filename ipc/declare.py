"""How a binary structure is declared: once, here in Python; C headers and documentation tables are generated from it.

A structure is a list of fields with explicit offsets. `check()` proves at import that nothing overlaps and that the
size is exact, so a mistake in a declaration stops every process at once instead of corrupting memory.
"""

from __future__ import annotations

import struct as _struct
from dataclasses import dataclass, field
from typing import Any

#: type name → (C type, size in bytes, struct code)
SCALARS: dict[str, tuple[str, int, str]] = {
    "u8": ("uint8_t", 1, "B"),
    "u16": ("uint16_t", 2, "H"),
    "u32": ("uint32_t", 4, "I"),
    "i32": ("int32_t", 4, "i"),
    "u64": ("uint64_t", 8, "Q"),
    "a32": ("_Atomic uint32_t", 4, "I"),
    "a64": ("_Atomic uint64_t", 8, "Q"),
}


@dataclass(frozen=True)
class Field:
    """One field: `type` is a scalar of SCALARS or `bytes`; `count` > 1 makes an array (for `bytes`: its length)."""

    name: str
    offset: int
    type: str
    meaning: str
    count: int = 1

    @property
    def size(self) -> int:
        return self.count if self.type == "bytes" else SCALARS[self.type][1] * self.count


@dataclass(frozen=True)
class Struct:
    """A fixed-size structure. `order` is `<` for shared memory (native little-endian) and `>` for files."""

    name: str
    size: int
    meaning: str
    fields: tuple[Field, ...]
    order: str = "<"
    by_name: dict[str, Field] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        position = 0
        for item in self.fields:
            if item.offset < position:
                raise ValueError(f"{self.name}.{item.name} at {item.offset} overlaps the field before it ({position})")
            if item.type != "bytes" and item.offset % SCALARS[item.type][1] and self.order == "<":
                raise ValueError(f"{self.name}.{item.name} at {item.offset} is not aligned")
            position = item.offset + item.size
            self.by_name[item.name] = item
        if position > self.size:
            raise ValueError(f"{self.name} ends at {position}, beyond its size {self.size}")

    def offset(self, name: str) -> int:
        """Byte offset of a field."""
        return self.by_name[name].offset

    def columns(self, *names: str) -> Any:
        """What numpy.dtype takes (its DTypeDict) for an array of such structures: all fields, or these alone."""
        fields = [self.by_name[name] for name in names] if names else self.fields
        return {
            "names": [item.name for item in fields],
            "formats": [_format(item, self.order) for item in fields],
            "offsets": [item.offset for item in fields],
            "itemsize": self.size,
        }

    def unpack(self, buffer: memoryview | bytes | bytearray, name: str, base: int = 0) -> int:
        """Read one scalar field of a structure that starts at `base` (plain load; for atomics use the C core)."""
        item = self.by_name[name]
        value: int = _struct.unpack_from(self.order + SCALARS[item.type][2], buffer, base + item.offset)[0]
        return value

    def pack_into(self, buffer: memoryview | bytearray, name: str, value: int, base: int = 0) -> None:
        """Write one scalar field (plain store)."""
        item = self.by_name[name]
        _struct.pack_into(self.order + SCALARS[item.type][2], buffer, base + item.offset, value)

    def get_bytes(self, buffer: memoryview | bytes | bytearray, name: str, base: int = 0) -> bytes:
        item = self.by_name[name]
        return bytes(buffer[base + item.offset : base + item.offset + item.size])

    def set_bytes(self, buffer: memoryview | bytearray, name: str, value: bytes, base: int = 0) -> None:
        item = self.by_name[name]
        if len(value) > item.size:
            raise ValueError(f"{self.name}.{name} holds {item.size} bytes, not {len(value)}")
        start = base + item.offset
        buffer[start : start + item.size] = value.ljust(item.size, b"\0")


def _format(item: Field, order: str) -> str:
    """numpy's name of a field's type."""
    if item.type == "bytes":
        return f"V{item.count}"
    name = f"{order}{'i' if item.type.startswith('i') else 'u'}{SCALARS[item.type][1]}"
    return name if item.count == 1 else f"({item.count},){name}"
