"""What a kill campaign found, and how it says so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

VIOLATIONS_SHOWN = 40
SLOW_SHOWN = 12


@dataclass
class Report:
    """What a campaign found."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    #: points that were armed and not reached in time
    missed: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    node_deaths: int = 0
    seconds: float = 0.0
    confirmed: int = 0
    received: int = 0
    redelivered: int = 0
    unconfirmed_received: int = 0
    letters: int = 0
    letters_again: int = 0
    stored: int = 0
    removed: int = 0
    reads: int = 0
    #: counters of the store, summed up over its lives
    store: Counter[str] = field(default_factory=Counter)
    probes: dict[str, dict[str, float]] = field(default_factory=dict)
    #: probes over a second, and what was done to the node meanwhile
    slow: list[str] = field(default_factory=list)
    probe_failures: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    excused: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def kills_n(self) -> int:
        return self.kills.total() + self.points.total()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = {**self.__dict__, "kills_n": self.kills_n}
        return {key: dict(value) if isinstance(value, Counter) else value for key, value in plain.items()}

    def _sums(self) -> list[str]:
        return [
            f"queues: {self.confirmed:,} confirmed, {self.received:,} receipts, {self.redelivered:,} marked redelivered"
            f", {self.unconfirmed_received:,} received that were never confirmed"
            + (f", {self.excused} of durability none gone with the whole node" if self.excused else ""),
            f"dead letters: {self.letters:,}, of them {self.letters_again:,} that came before",
            f"store: {self.stored:,} confirmed, {self.removed:,} removed, {self.reads:,} reads right; "
            + ", ".join(f"{value:,} {name}" for name, value in sorted(self.store.items())),
        ]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.kills_n:,} kills in {self.seconds:.0f} s"]
        lines += _table("killed", self.kills)
        lines += _table("died at the crash point", self.points)
        lines += _table("armed, not reached", self.missed)
        lines += _table("stopped and continued, ended and started", self.stops)
        lines += [
            f"{self.node_deaths} times nothing was left of the node, and the next `open` started it",
            *self._sums(),
        ]
        for kind, row in self.probes.items():
            lines.append(
                f"probe of the {kind}: {row['n']:,.0f}, p50 {row['p50_ms']:.1f}, p99 {row['p99_ms']:.0f}, p99.9 "
                f"{row['p999_ms']:.0f}, max {row['max_ms']:.0f} ms, {row['over_1s']:.0f} over 1 s"
            )
        lines += self.slow[:SLOW_SHOWN]
        lines += [
            f"{len(self.probe_failures)} probes without an answer",
            *(f"  {text}" for text in self.probe_failures[:SLOW_SHOWN]),
            f"errors lived through: {dict(self.errors)}",
            f"violations: {len(self.violations)}",
            *(f"  {text}" for text in self.violations[:VIOLATIONS_SHOWN]),
        ]
        return "\n".join(lines)


def _table(title: str, counts: Counter[str]) -> list[str]:
    if not counts:
        return []
    columns = [f"{name} {number:,}" for name, number in sorted(counts.items(), key=lambda item: -item[1])]
    rows = [columns[at : at + 6] for at in range(0, len(columns), 6)]
    return [f"{title}:", *("  " + "".join(f"{cell:<26}" for cell in row).rstrip() for row in rows)]
