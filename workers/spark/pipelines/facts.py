"""What a report shows."""

from __future__ import annotations

from typing import NamedTuple

from warren.workers.spark.pipelines import audit as auditing


class Point(NamedTuple):
    """A topic in one stretch of time. Latencies in milliseconds."""

    topic: str
    second: float
    messages: int
    bytes: int
    p50: float
    p99: float
    most: float


class Size(NamedTuple):
    """Bodies of a topic or of a queue with 2^(power - 1) to 2^power - 1 bytes; power 0: empty ones."""

    of: str
    power: int
    messages: int


class Key(NamedTuple):
    """A key of a topic."""

    topic: str
    key: str
    messages: int
    bytes: int


class Depth(NamedTuple):
    """What a queue holds."""

    queue: str
    messages: int
    bytes: int
    stored: int


class Facts(NamedTuple):
    """All that a report shows."""

    path: str
    running: bool
    bucket_s: float
    points: list[Point]
    sizes: list[Size]
    keys: list[Key]
    queues: list[Depth]
    audit: auditing.Audit
    damage: list[tuple[str, str, int, int]]
