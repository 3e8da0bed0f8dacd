"""Goal: `status` shows the numbers of a queue whose worker is replaced while it looks.

Method: the rows of one worker, whose region goes just when it is opened: for the next one's, or for good.
"""

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from warren.engine.kernel.protocol import QUEUE_STATS
from warren.ipc import region
from warren.workers.node.status import Statistics


@pytest.mark.parametrize("replaced", [True, False])
def test_a_worker_that_is_replaced_meanwhile(monkeypatch: pytest.MonkeyPatch, replaced: bool) -> None:
    rows = bytearray(QUEUE_STATS.size)
    for name, value in (("queue", 7), ("ready", 3)):
        at = QUEUE_STATS.offset(name)
        rows[at : at + 8] = value.to_bytes(8, "little")
    numbers = {"queue_stats_generation": 1, "queue_stats_rows": 1}
    opened = []

    def posix_open(name: str, *, writable: bool) -> Any:
        opened.append(name)
        if numbers["queue_stats_generation"] == 1:
            numbers["queue_stats_generation"] += replaced
            raise region.RegionError(errno.ENOENT, name)
        return SimpleNamespace(size=len(rows), buffer=memoryview(rows), close=lambda: None)

    monkeypatch.setattr(region, "posix_open", posix_open)
    superblock: Any = SimpleNamespace(
        queue_workers=[2],
        server_get=lambda _server, name: numbers.get(name, 0),
        region_name=lambda what, server, generation: f"/{what}-{server}-{generation}",
    )
    found = Statistics(superblock).queues()
    assert {id: row["ready"] for id, row in found.items()} == ({7: 3} if replaced else {})
    assert len(set(opened)) == len(opened) == 1 + replaced
