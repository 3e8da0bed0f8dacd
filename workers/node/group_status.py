"""Groups of readers in `warren status`: their lag, by the snapshot of committed offsets, and the age of their members'
last calls, by the rows in shared memory.

Nobody is asked. The snapshot is written within about a second after a change (engine/topics/keeper.py), so a lag is of
a moment ago; `topic.group()` asks the worker. A snapshot that is missing or damaged tells of no groups: the worker says
so, and writes another one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warren.engine.topics import foreign, offsets
from warren.engine.topics.group_rows import digest
from warren.engine.topics.snapshots import Unreadable

#: (topic id, queue) → its first offset, and behind its last
Bounds = Mapping[tuple[int, int], tuple[int, int]]


def lags(
    snapshot: Path, node_id: int, bounds: Bounds, topics: Mapping[int, int], calls: Mapping[int, list[int]]
) -> dict[int, list[dict[str, Any]]]:
    """By topic id, each of its groups by name: `name`, `lag`, `members`, `last_call_s` (of the reader whose last call
    was longest ago; None: it has none). `topics`: how many queues each has; `calls`: when members called last,
    by the group's digest.
    """
    try:
        known = offsets.decode_snapshot(struct.pack("<QQ", node_id, 0), foreign.read(snapshot)).offsets
    except (OSError, Unreadable):
        return {}
    found: dict[int, list[dict[str, Any]]] = {}
    now = time.monotonic_ns()
    for (topic, name), committed in sorted(known.items()):
        if topic in topics:
            lag = 0
            for queue in range(topics[topic]):
                first, end = bounds.get((topic, queue), (0, 0))
                lag += max(0, end - (committed[queue].offset if queue in committed else first))
            called = calls.get(digest((topic, name)), [])
            ago = round(max(0, now - min(called)) / 1e9, 3) if called else None
            row = {"name": name, "lag": lag, "members": len(called), "last_call_s": ago}
            found.setdefault(topic, []).append(row)
    return found
