"""What the clients of the store wrote down outside of the node: which id has which version, and how many references.

A keeper (keeper.py) owns a file for each of its incarnations, `<name>.<n>`, which begins with the sums of the one
before. Lines, each written with one `write` before what it announces or after what it reports:

    T CONFIRMED REMOVED READ SLOT    totals of the incarnations before; last slot of shared ids
    S ID VERSION LOW HIGH            an id that is held: between LOW and HIGH references of this keeper
    L ID VERSION LOW HIGH            the same, and nobody of this keeper touches it again
    P PID                            who writes from here on; those before may still have commands in their rings
    w                                the servers are done with all of those before
    i VERSION ID,ID…                 are about to be written     c ID,ID…     were confirmed
    x ID,ID…                         are about to be removed     d ID,ID…     their removal is applied and synced
    r ID N                           after the sweep of the incarnation before, N references were there
    m ID,ID…                         were masked by this client's announced death: they were never written
    q READS                          so many reads were right    b TEXT       a violation     e TEXT   an error

LOW counts confirmed writes and announced removes, HIGH announced writes and applied removes; the truth lies between.
"""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

SHARED = b"shared"
FILES_KEPT = 40
FORGOTTEN_KEPT = 300
#: sizes of bodies: below so many of 64, so many bytes
SIZES = ((40, 100), (54, 1000), (61, 6000), (63, 30_000), (64, 100_000))


def body_of(id: bytes, version: int) -> bytes:
    """The body that belongs to a version of an id; its size follows from both."""
    seed = f"{id.hex()}.{version}|".encode()
    pick = zlib.crc32(seed) % 64
    size = next(size for below, size in SIZES if pick < below)
    return seed * (size // len(seed) + 1)


def shared_id(slot: int, number: int) -> bytes:
    """An id that every keeper writes in this slot of time."""
    return SHARED + number.to_bytes(2, "big") + slot.to_bytes(8, "big")


def is_shared(id: bytes) -> bool:
    """Whether other keepers write it, too."""
    return id.startswith(SHARED)


@dataclass
class Held:
    """One id, as one keeper knows it."""

    version: int
    low: int = 0
    high: int = 0

    @property
    def certain(self) -> bool:
        return self.low == self.high


@dataclass
class Ledger:
    """The sum of a keeper's log."""

    held: dict[bytes, Held] = field(default_factory=dict)
    limbo: dict[bytes, Held] = field(default_factory=dict)
    #: removed ids with their versions, the youngest ones
    gone: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    confirmed: int = 0
    removed: int = 0
    reads: int = 0
    slot: int = 0
    #: whose commands the servers may still execute, and who writes now (the last one)
    pids: list[int] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """What one incarnation's file comes to. A torn last line announced nothing yet, and is left out."""
        ledger = cls()
        for line in path.read_text(errors="replace").split("\n")[:-1]:
            ledger.apply(line)
        return ledger

    @classmethod
    def latest(cls, base: Path) -> tuple[Ledger, int]:
        """The sum of all incarnations of a keeper, and the number of the next one."""
        numbers = files_of(base)
        return (cls.read(numbered(base, numbers[-1])), numbers[-1] + 1) if numbers else (cls(), 0)

    def apply(self, line: str) -> None:
        """Take one line into the sum."""
        kind, _, rest = line.partition(" ")
        if kind == "i":
            version, _, ids = rest.partition(" ")
            for id in parsed(ids):
                self._announced(id, int(version))
        elif kind == "c":
            for id in parsed(rest):
                self.held[id].low += 1
                self.confirmed += 1
        elif kind == "x":
            for id in parsed(rest):
                self.held[id].low -= 1
        elif kind == "d":
            for id in parsed(rest):
                self.removed += 1
                self.held[id].high -= 1
                self._forget(id)
        elif kind == "m":
            for id in parsed(rest):
                self.held[id].high -= 1
                self._forget(id)
        elif kind == "r":
            text, number = rest.split(" ")
            id = bytes.fromhex(text)
            self.held[id].low = self.held[id].high = int(number)
            self._forget(id)
        elif kind == "q":
            self.reads += int(rest)
        elif kind in ("S", "L"):
            text, version, low, high = rest.split(" ")
            place = self.held if kind == "S" else self.limbo
            place[bytes.fromhex(text)] = Held(int(version), int(low), int(high))
        elif kind == "T":
            self.confirmed, self.removed, self.reads, self.slot = map(int, rest.split(" "))
        elif kind == "P":
            self.pids.append(int(rest))
        elif kind == "w":
            del self.pids[:-1]
        elif kind == "b":
            self.complaints.append(rest)
        elif kind == "e":
            self.errors.append(rest)

    def _announced(self, id: bytes, version: int) -> None:
        held = self.held.setdefault(id, Held(version))
        if held.high <= 0:
            held.version, held.low, held.high = version, 0, 0
        held.high += 1
        self.gone.pop(id, None)
        if is_shared(id):
            self.slot = max(self.slot, int.from_bytes(id[8:], "big"))

    def _forget(self, id: bytes) -> None:
        """An id without references is only remembered for a while, to be written again with another body."""
        held = self.held[id]
        if held.low == held.high == 0:
            del self.held[id]
            if not is_shared(id):
                self.gone[id] = held.version
            while len(self.gone) > FORGOTTEN_KEPT:
                self.gone.popitem(last=False)

    def to_limbo(self, ids: Iterable[bytes]) -> None:
        """Nobody can say what became of these: they are left to the check at the end."""
        for id in ids:
            self.limbo[id] = self.held.pop(id)

    def lines(self) -> list[str]:
        """The beginning of the next incarnation's file."""
        return [
            f"T {self.confirmed} {self.removed} {self.reads} {self.slot}",
            *(f"P {pid}" for pid in self.pids),
            *(
                f"{kind} {id.hex()} {held.version} {held.low} {held.high}"
                for kind, place in (("S", self.held), ("L", self.limbo))
                for id, held in place.items()
            ),
        ]


def joined(ids: Iterable[bytes]) -> str:
    """Ids as a log has them."""
    return ",".join(id.hex() for id in ids)


def parsed(text: str) -> list[bytes]:
    """The ids of a log's line."""
    return [bytes.fromhex(part) for part in text.split(",")]


def numbered(base: Path, number: int) -> Path:
    """The file of one incarnation."""
    return base.with_name(f"{base.name}.{number}")


def files_of(base: Path) -> list[int]:
    """Numbers of the incarnations whose files are there."""
    found = (path.suffix[1:] for path in base.parent.glob(f"{base.name}.*"))
    return sorted(int(suffix) for suffix in found if suffix.isdigit())


def begin(base: Path, ledger: Ledger, number: int) -> Path:
    """Make the file of a new incarnation, whole or not at all; the eldest go, but not what tells of violations."""
    path = numbered(base, number)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text("\n".join([*ledger.lines(), f"P {os.getpid()}", ""]))
    fresh.rename(path)
    ledger.pids.append(os.getpid())
    for old in files_of(base)[:-FILES_KEPT]:
        if not Ledger.read(numbered(base, old)).complaints:
            numbered(base, old).unlink()
    return path
