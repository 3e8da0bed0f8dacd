"""Goal: a queue that was drained gives its index back: no segment and no data file stays, and of each journal two files
at most, while nobody uses the worker.

Method: a real node with small files and a queue that is deep enough for segments; beside it, in one case, a queue that
keeps a message. It is drained; the test waits until the worker's folder is that of an empty queue.
"""

from pathlib import Path

import pytest

import warren

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

FILE = 256 * 1024
MESSAGES = 3000


def in_folder(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in (".jnl", ".dat", ".idx")
    )


@pytest.mark.parametrize("kept", [0, 1])
def test_a_drained_queue_gives_its_index_back(tmp_path: Path, kept: int) -> None:
    settings = {"workers": 1, "file_bytes": FILE, "message_bytes_max": 100_000, "journal_files_max": 2}
    with RealNode(tmp_path / "node", **settings) as real, warren.attach(real.directory) as node:
        folder = real.directory / "queues" / "worker-0"
        other, queue = node.queue("other"), node.queue("deep")
        for _ in range(kept):
            other.put(b"stays")
        for _ in range(0, MESSAGES, 500):
            queue.put_many([b"x" * 400] * 500, durability="written")
        wait_until(lambda: [name for name in in_folder(folder) if name.endswith(".idx")], 20, what="a segment")
        left = MESSAGES
        while left:
            for message in queue.get_many(500, timeout=30.0):
                message.ack()
                left -= 1

        def rest() -> list[str]:
            names = in_folder(folder)
            journals = [name for name in names if name.startswith("journal")]
            found = [name for name in names if name.startswith("segments")]
            return journals[2:] + found[2 * kept :]  # the message that stays has an entry and a body

        wait_until(lambda: not rest(), 20, what="a worker's folder without files of the drained queue")
        assert len(queue) == 0
        assert len(other) == kept
