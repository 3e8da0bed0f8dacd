"""A data directory with a topic, queues and stored messages, whose node was stopped: for those who read its files."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import warren

from support.real_node import RealNode

TOPIC, SMALL, LARGE = "flights", "orders", "photos"
#: what the topic holds
RECORDS = 6000
#: small messages lie in journals and data files, large ones in the store
SMALL_N, LARGE_N, SMALL_ACKED, LARGE_ACKED = 12_000, 500, 1500, 50
OWN = b"a program's own!"


@dataclass(frozen=True)
class Written:
    """The directory, and how often it was copied."""

    path: Path

    def copy(self, to: Path) -> Path:
        """A copy to damage."""
        shutil.copytree(self.path, to, ignore=shutil.ignore_patterns("*.sock"))
        return to


def body_of(number: int) -> bytes:
    """What record number n holds."""
    return b"flight %d " % number + b"x" * (number % 40)


def write(directory: Path) -> Written:
    """Make it: several log files and consume queue files, a journal that was flushed, acks, a removed message."""
    with (
        RealNode(
            directory,
            workers=1,
            file_bytes=1 << 20,
            journal_files_max=2,
            log_file_bytes=1 << 20,
            consume_queue_entries=1000,
            index_slots=500,
            index_entries=4000,
        ),
        warren.attach(directory) as node,
    ):
        topic = node.topic(TOPIC, queues=3)
        for first in range(0, RECORDS, 1000):
            numbers = range(first, first + 1000)
            topic.append_many(
                [body_of(n) for n in numbers],
                keys=[f"k{n % 97}" for n in numbers],
                tags=["even" if n % 2 == 0 else None for n in numbers],
                properties=[{"n": str(n)} if n % 3 == 0 else None for n in numbers],
            )
        small, large = node.queue(SMALL), node.queue(LARGE)
        for first in range(0, SMALL_N, 2000):
            small.put_many([b"order %d " % n + b"y" * 150 for n in range(first, first + 2000)])
        large.put_many([b"photo %d " % n + b"z" * 5000 for n in range(LARGE_N)])
        for queue, count in ((small, SMALL_ACKED), (large, LARGE_ACKED)):
            taken = 0
            while taken < count:
                messages = queue.get_many(count - taken, timeout=10)
                assert messages
                messages[-1].ack(multiple=True)
                taken += len(messages)
        store = node.store()
        kept, removed = store.new_id(), store.new_id()
        store.write(kept, OWN)
        store.write(removed, b"removed")
        store.remove([removed])
        store.barrier(durability="synced")
    return Written(directory)
