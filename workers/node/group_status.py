"""What `warren status` tells of groups of readers: their lag, by the snapshot of what they have committed.

Nobody is asked. The snapshot is written within about a second after a change (engine/topics/keeper.py), so a lag is of
a moment ago; `topic.group()` asks the worker. A snapshot that is missing or damaged tells of no groups: the worker says
so, and writes another one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warren.engine.topics import foreign, offsets
from warren.engine.topics.snapshots import Unreadable

#: (topic id, queue) → its first offset, and behind its last
Bounds = Mapping[tuple[int, int], tuple[int, int]]


def lags(snapshot: Path, node_id: int, bounds: Bounds, topics: Mapping[int, int]) -> dict[int, list[dict[str, Any]]]:
    """By topic id, each of its groups by name: `name`, `lag`. `topics`: how many queues each has."""
    try:
        known = offsets.decode_snapshot(struct.pack("<QQ", node_id, 0), foreign.read(snapshot)).offsets
    except (OSError, Unreadable):
        return {}
    found: dict[int, list[dict[str, Any]]] = {}
    for (topic, name), committed in sorted(known.items()):
        if topic in topics:
            lag = 0
            for queue in range(topics[topic]):
                first, end = bounds.get((topic, queue), (0, 0))
                lag += max(0, end - (committed[queue].offset if queue in committed else first))
            found.setdefault(topic, []).append({"name": name, "lag": lag})
    return found
