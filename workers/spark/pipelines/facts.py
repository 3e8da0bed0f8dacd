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
    """What a queue holds; one that holds nothing has zeros."""

    queue: str
    messages: int
    bytes: int
    stored: int


class Delivered(NamedTuple):
    """Messages of a queue that were delivered so often, and are there still."""

    queue: str
    times: int
    messages: int


class Dead(NamedTuple):
    """Messages that nobody could do: `of` whom, `where` they are."""

    of: str
    where: str
    messages: int


class Kept(NamedTuple):
    """What a topic keeps in the log, and for how long. `oldest`: when its first message was stored, in seconds since
    1970; `growth`: bytes a day, None where its messages say nothing of it.
    """

    topic: str
    messages: int
    bytes: int
    oldest: float | None
    growth: float | None
    retention_s: float | None
    retention_bytes: int | None
    compacted: bool


class Facts(NamedTuple):
    """All that a report shows. `read`: when, in seconds since 1970. `delivered`: None where nobody knows."""

    path: str
    running: bool
    read: float
    bucket_s: int
    points: list[Point]
    sizes: list[Size]
    keys: list[Key]
    queues: list[Depth]
    delivered: list[Delivered] | None
    dead: list[Dead]
    kept: list[Kept]
    audit: auditing.Audit
    damage: list[tuple[str, str, int, int]]
