"""How many connections and channels users and vhosts have, in all gateway processes of the node: what limits are
compared with.

A gateway counts its own, and writes each number into its section of the shared file; the sum goes through the sections
of those that live. So a gateway that is killed counts for nothing at once, and nobody has to be asked.

Invariant: who comes is written first and compared then, so a limit is never passed. Who decides has the lock, so no two
refuse each other; only when a process was stopped with the lock in its hand, both of two that want the last place at
the same moment may be refused.

A section: how many rows were ever used (8 bytes), then rows of 24 bytes: a digest of what is counted (16), and the
number. A row whose number is 0 is used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from warren.workers.amqp.shared_file import SharedFile

Kind = Literal["connections of user", "channels of user", "connections in vhost"]

_NUMBER = struct.Struct("<Q")
_DIGEST_BYTES = 16
_ROW_BYTES = _DIGEST_BYTES + _NUMBER.size
#: of a connection: its user, its user's channels, its vhost
ROWS_OF_CONNECTION = 3


def section_bytes(connections_max: int) -> int:
    """Room for all that a gateway with so many connections counts."""
    return _NUMBER.size + ROWS_OF_CONNECTION * connections_max * _ROW_BYTES


class Counts:
    """Those of a gateway, and of the node. `shared`: None when it is the only one."""

    def __init__(self, shared: SharedFile | None) -> None:
        self._own: Counter[tuple[Kind, str]] = Counter()
        self._shared = shared
        self._rows: dict[tuple[Kind, str], int] = {}  # where each stands in the section
        self._free: list[int] = []
        self._used = 0
        if shared is not None:
            with shared.section(shared.index) as section:
                _NUMBER.pack_into(section, 0, 0)

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Nobody else compares meanwhile."""
        if self._shared is None:
            yield
            return
        with self._shared.deciding():
            yield

    def came(self, kind: Kind, name: str) -> None:
        """One more here."""
        self._set((kind, name), self._own[kind, name] + 1)

    def went(self, kind: Kind, name: str, many: int = 1) -> None:
        """So many less."""
        self._set((kind, name), self._own[kind, name] - many)

    def total(self, kind: Kind, name: str) -> int:
        """How many there are, here and in the others."""
        total = self._own[kind, name]
        if self._shared is not None:
            digest = _digest((kind, name))
            total += sum(self._of_other(self._shared, index, digest) for index in self._shared.living())
        return total

    def _set(self, what: tuple[Kind, str], number: int) -> None:
        self._own[what] = number
        if self._shared is None:
            if not number:
                del self._own[what]
            return
        with self._shared.section(self._shared.index) as section:
            row = self._rows.get(what)
            if row is None:
                row = self._rows[what] = self._free.pop() if self._free else self._used
                at = _NUMBER.size + row * _ROW_BYTES
                section[at : at + _DIGEST_BYTES] = _digest(what)
            _NUMBER.pack_into(section, _NUMBER.size + row * _ROW_BYTES + _DIGEST_BYTES, number)
            if row >= self._used:
                self._used = row + 1
                _NUMBER.pack_into(section, 0, self._used)
        if not number:
            del self._own[what]
            self._free.append(self._rows.pop(what))

    @staticmethod
    def _of_other(shared: SharedFile, index: int, digest: bytes) -> int:
        with shared.section(index) as section:
            end = _NUMBER.size + int(_NUMBER.unpack_from(section, 0)[0]) * _ROW_BYTES
            at = shared.find(index, digest, _NUMBER.size, min(end, len(section)))
            while at >= 0 and (at - _NUMBER.size) % _ROW_BYTES:
                at = shared.find(index, digest, at + 1, min(end, len(section)))
            return int(_NUMBER.unpack_from(section, at + _DIGEST_BYTES)[0]) if at >= 0 else 0


def _digest(what: tuple[Kind, str]) -> bytes:
    return hashlib.blake2b("\0".join(what).encode("utf-8", "surrogateescape"), digest_size=_DIGEST_BYTES).digest()
