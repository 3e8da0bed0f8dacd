"""Goal: what is confirmed is confirmed once and soon, also when nothing of it was ever stored.

Method: a real store server and bare clients; a write that its remove overtakes beside removes that ask for no sync.
"""

import os
import signal
from pathlib import Path

import pytest

from support.store_node import NONE, SYNCED, StoreNode, message_id


@pytest.mark.parametrize("batch", [False, True])
def test_an_eliminated_synced_write_is_confirmed_beside_a_remove_that_wants_no_sync(
    tmp_path: Path, batch: bool
) -> None:
    with StoreNode(tmp_path / "node") as node:
        node.start()
        client = node.client()
        client.write([(message_id(n), b"stored") for n in range(3)])
        os.kill(node.pid, signal.SIGSTOP)
        if batch:
            horizon = client.core.write_batch(message_id(10), [b"eliminated"] * 2, SYNCED, True)
        else:
            horizon = client.core.write_many([(message_id(n), b"eliminated") for n in (10, 11)], SYNCED, True)
        _, eliminated = client.core.remove([message_id(n) for n in (10, 11, 0, 1, 2)])
        os.kill(node.pid, signal.SIGCONT)
        assert eliminated == 2
        client.wait(horizon, SYNCED)
        client.barrier(NONE)
        assert [client.contains(message_id(n)) for n in (0, 1, 2, 10, 11)] == [False] * 5
