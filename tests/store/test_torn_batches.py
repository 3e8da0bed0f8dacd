"""Goal: after a power failure a hole in the youngest file is told for what it is: pages of a batch that never were
confirmed (cut, silently), or damage to what was (the rest is served, the loss is named).

Method: a real server's files, changed at places before and behind what its padding frames vouch for.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine import _core
from warren.engine.kernel import frame
from warren.engine.kernel.formats import FILE_HEADER
from warren.engine.store.check import StoreCheck

from support.store_node import SYNCED, Client, StoreNode, message_id

OLD, NEW, SIZE = 20, 60, 1000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoreNode]:
    # both batches lie in the part of a file that is filled without a next one
    with StoreNode(tmp_path / "node", file_bytes=1 << 20) as made:
        made.start()
        yield made


def one_batch(node: StoreNode, client: Client, numbers: range) -> None:
    """Submitted while the server is stopped, so that it commits them together."""
    os.kill(node.pid, signal.SIGSTOP)
    horizon = client.core.write_many([(message_id(n), b"%08d" % n + bytes(SIZE)) for n in numbers], SYNCED, True)
    os.kill(node.pid, signal.SIGCONT)
    client.wait(horizon)


def there(node: StoreNode) -> set[int]:
    client = node.client()
    found = {n for n in range(OLD + NEW) if (client.read(message_id(n)) or b"")[:8] == b"%08d" % n}
    client.close()
    return found


def harmed(node: StoreNode, vouched_for: bool) -> tuple[bytearray, int]:
    """Two batches in file 0, and a flipped byte in the first record of one of them; the file, and where."""
    client = node.client()
    one_batch(node, client, range(OLD))
    one_batch(node, client, range(OLD, OLD + NEW))
    node.kill()
    path = node.folder() / "0.rdq"
    data = bytearray(path.read_bytes())
    listed, _reason = _core.scan_list(0, FILE_HEADER.unpack(data, "salt"), data)
    offsets = {id: offset for id, offset, *_rest in listed.items()}
    assert offsets[message_id(0)] < listed.vouched <= offsets[message_id(OLD + 1)]
    at = offsets[message_id(0 if vouched_for else OLD + 1)] + 60
    data[at] ^= 1
    path.write_bytes(data)
    found = StoreCheck(node.folder(), node.node_id, 0, False).examine()
    assert [bool(item.problem) for item in found if item.path == path] == [vouched_for], "check says what a start says"
    node.restart_cold()
    node.start()
    return data, at


def nothing_was_confirmed(node: StoreNode) -> None:
    """That is what check says of file 0, and a start makes of it."""
    found = StoreCheck(node.folder(), node.node_id, 0, False).examine()
    assert not any(item.problem for item in found if item.path == node.folder() / "0.rdq"), (
        "check says what a start says"
    )
    node.restart_cold()
    node.start()
    assert there(node) == set()
    assert "damage" not in node.log_text()


def test_a_batch_with_a_hole_was_never_confirmed(node: StoreNode) -> None:
    data, at = harmed(node, vouched_for=False)
    assert there(node) == set(range(OLD + 1))
    assert "damage" not in node.log_text()
    after = (node.folder() / "0.rdq").read_bytes()
    found = frame.scan(after, FILE_HEADER.unpack(data, "salt"))
    assert found.reason == "end"
    assert found.end <= at + 4096
    node.kill()
    node.restart_cold()
    node.start()
    assert there(node) == set(range(OLD + 1))


def test_a_first_batch_whose_beginning_never_came_to_the_disk(node: StoreNode) -> None:
    """However long the hole is: the file was begun, by what lies behind it."""
    client = node.client()
    one_batch(node, client, range(OLD + NEW))
    node.kill()
    path = node.folder() / "0.rdq"
    data = bytearray(path.read_bytes())
    data[4096 : 4096 + (1 << 16)] = os.urandom(1 << 16)
    path.write_bytes(data)
    listed, _reason = _core.scan_list(0, FILE_HEADER.unpack(data, "salt"), data)
    assert listed.messages
    nothing_was_confirmed(node)


def test_a_first_batch_of_which_only_its_padding_came_to_the_disk(node: StoreNode) -> None:
    client = node.client()
    one_batch(node, client, range(OLD))
    node.kill()
    path = node.folder() / "0.rdq"
    data = bytearray(path.read_bytes())
    listed, _reason = _core.scan_list(0, FILE_HEADER.unpack(data, "salt"), data)
    end = max(offset + total for _id, offset, total, *_rest in listed.items())
    assert listed.used > end, "the batch ends with padding"
    data[4096:end] = os.urandom(end - 4096)
    path.write_bytes(data)
    listed, _reason = _core.scan_list(0, FILE_HEADER.unpack(data, "salt"), data)
    assert (listed.messages, listed.controls, len(listed.damage)) == (0, 0, 1)
    nothing_was_confirmed(node)


def test_a_hole_in_what_was_synced_is_damage(node: StoreNode) -> None:
    harmed(node, vouched_for=True)
    assert there(node) == set(range(1, OLD + NEW))
    assert "damage" in node.log_text()


def test_a_hole_in_an_older_file_is_damage(node: StoreNode) -> None:
    """Its last batch was synced before anything was written to the next file, whatever its frames vouch for."""
    client = node.client()
    one_batch(node, client, range(OLD))
    path = node.folder() / "0.rdq"
    sequence = 1000
    while len(node.files()) < 3 or node.summary()[-1].file == 0:
        one_batch(node, client, range(sequence, sequence + 100))
        sequence += 100
    one_batch(node, client, range(sequence, sequence + 100))
    node.kill()
    data = bytearray(path.read_bytes())
    listed, _reason = _core.scan_list(0, FILE_HEADER.unpack(data, "salt"), data)
    behind = [offset for _id, offset, *_rest in listed.items() if offset > listed.vouched]
    data[behind[0] + 60] ^= 1
    path.write_bytes(data)
    (node.folder() / "0.lst").unlink(missing_ok=True)
    node.restart_cold()
    node.start()
    assert "damage" in node.log_text()
    assert node.counted("messages") == OLD + sequence + 100 - 1000 - 1


def test_the_last_file_of_a_clean_stop_says_that_it_ends(node: StoreNode) -> None:
    """It may be a recycled one; and when its list is gone, and it is not the youngest any more, it is read."""
    client = node.client()
    one_batch(node, client, range(OLD))
    assert node.stop() == 0
    path = node.folder() / "0.rdq"
    data = path.read_bytes()
    found = frame.scan(data, FILE_HEADER.unpack(data, "salt"))
    assert (len(found), found.reason) == (OLD, "end")
    assert found.end < len(data)
