"""Goal: a disk that a node has filled itself gets empty again when its messages are consumed, however late the alarm
came.

Method: a real node on a small disk, with `disk_free_bytes_min` 0, so that nothing stops publishers before a server
finds no space; producers that put until they are blocked, then a consumer that takes and acks all. What the producers
had under way then is still executed, or was never confirmed.
"""

import threading
from pathlib import Path

import pytest

import warren
from warren.engine.errors import DiskFull, TimedOut
from warren.ipc.layout import CONSTANTS
from warren.workers.process.control import ControlClient

from support.waiting import wait_until

pytestmark = pytest.mark.integration

MIB = 1 << 20
PRODUCERS = 3


class Producer(threading.Thread):
    """Puts batches of messages with a client of its own until it is told to end."""

    def __init__(self, directory: Path, size: int, end: threading.Event) -> None:
        super().__init__(daemon=True)
        self._directory, self._size, self._end = directory, size, end
        self.confirmed = 0
        self.blocked = False

    def run(self) -> None:
        count = max(1, min(50, 200_000 // self._size))
        with warren.attach(self._directory) as node:
            queue = node.queue("q")
            while not self._end.is_set():
                try:
                    queue.put_many([bytes(self._size)] * count, timeout=1)
                except (DiskFull, TimedOut):
                    self.blocked = True
                else:
                    self.confirmed += count


def alarmed(node: warren.Node) -> bool:
    return bool(node.status()["alarms"])


def fill(directory: Path, node: warren.Node, size: int, end: threading.Event) -> list[Producer]:
    """Producers who have filled the disk, and are blocked."""
    producers = [Producer(directory, size, end) for _ in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    wait_until(lambda: all(producer.blocked for producer in producers), 120, what="producers that are blocked")
    assert alarmed(node)
    end.set()
    return producers


# Small ones lie in the journal, and in segments when there are many; large ones in the message store.
@pytest.mark.parametrize("size", [100, 1000, 50_000])
def test_a_disk_that_the_node_filled_gets_empty_again(small_disk: Path, size: int) -> None:
    directory, end = small_disk / "node", threading.Event()
    settings = {"workers": 1, "file_bytes": MIB, "disk_free_bytes_min": 0, "journal_files_max": 4}
    with warren.open(directory, profile="small", **settings) as node:
        queue = node.queue("q")
        producers = fill(directory, node, size, end)
        confirmed = sum(producer.confirmed for producer in producers)
        got = 0
        while got < confirmed:
            got += len(messages := queue.get_many(500, timeout=60))
            assert messages, f"{got} of {confirmed} came"
            for message in messages:
                message.ack()
        wait_until(lambda: not alarmed(node), 60, what="the end of the alarm")
        for producer in producers:
            producer.join(60)
        while queue.get_many(500, timeout=0.2):  # what was not confirmed and came all the same
            pass
        queue.put(b"again", timeout=60)
        with ControlClient(directory) as control:
            control.call("stop")


def test_the_alarm_comes_with_the_file_that_takes_the_last_space(small_disk: Path) -> None:
    """Not a second later: producers are blocked while there is space for what is under way, and nobody finds none."""
    directory, end = small_disk / "node", threading.Event()
    settings = {"workers": 1, "file_bytes": MIB, "disk_free_bytes_min": 8 * MIB}
    with warren.open(directory, profile="small", **settings) as node:
        producers = fill(directory, node, 1000, end)
        superblock = node._client.attachment().superblock
        raised = [superblock.server_get(server, "alarms") for server in range(superblock.servers_n)]
        assert not any(alarms & CONSTANTS["ALARM_DISK"] for alarms in raised)
        for producer in producers:
            producer.join(60)
        with ControlClient(directory) as control:
            control.call("stop")
