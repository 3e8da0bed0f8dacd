"""Goal: rule C17. After an orderly stop a client says of each message whether the node has it, and it is so.

Method: the client's core, with the servers played by hand (support/fake_server.py): they take a part, close the link,
and the node is stopped. The last server is the topic worker.
"""

import pickle
import struct
from typing import Any

import pytest

import warren
from warren.engine import _core
from warren.engine.errors import ClosedError, PeerLost, QueueFull, TimedOut
from warren.engine.kernel.protocol import PROTOCOL
from warren.ipc.layout import COMMAND, CONSTANTS

from support.fake_server import WORKER, FakeNode

QUEUE, OTHER = 17, WORKER + 1
LEVELS = (_core.LEVEL_NONE, _core.LEVEL_WRITTEN, _core.LEVEL_SYNCED)
SYNCED = _core.LEVEL_SYNCED
BODIES = [b"%d" % n for n in range(10)]


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


def taken(node: FakeNode, server: int, n: int) -> None:
    """The server ends: it took so many commands."""
    node.finish(server, n)
    node.set_link(server, "closed", n + 1)


def stop(node: FakeNode) -> None:
    """The node ends, and with it the attachment."""
    node.set_node("state", CONSTANTS["NODE_STOPPED"])
    node.client.end(None)


def published(node: FakeNode, route: Any, level: int = SYNCED, bodies: list[bytes] = BODIES) -> Any:
    return node.client.publish_many(route, bodies, level, None, None, False)


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_not_taken_is_named(node: FakeNode, level: int) -> None:
    confirm = published(node, _core.Route([(WORKER, [QUEUE])]), level)
    taken(node, WORKER, 6)
    assert confirm.untaken() is None, "it is not over"
    stop(node)
    for _again in range(2):
        with pytest.raises(ClosedError, match="4 of 10") as raised:
            confirm.wait(0.0)
        assert raised.value.not_taken == (6, 7, 8, 9)
        assert raised.value.confirm is None
    assert confirm.untaken() == [(WORKER, 6, 4)]
    assert isinstance(confirm.exception(0.0), ClosedError)
    assert confirm.done()


def test_what_was_taken_is_confirmed(node: FakeNode) -> None:
    one, other = (published(node, _core.Route([(WORKER, [QUEUE])])) for _ in range(2))
    taken(node, WORKER, 10)
    stop(node)
    one.wait(0.0)
    assert one.untaken() == []
    with pytest.raises(ClosedError) as raised:
        other.wait(0.0)
    assert raised.value.not_taken == tuple(range(10))


def test_one_message(node: FakeNode) -> None:
    confirm = node.client.publish(_core.Route([(WORKER, [QUEUE])]), b"x", SYNCED, None, None, False)
    taken(node, WORKER, 0)
    stop(node)
    with pytest.raises(ClosedError, match="before it took the message: it is not stored") as raised:
        confirm.wait(0.0)
    assert raised.value.not_taken == ()
    assert confirm.untaken() == [(WORKER, 0, 1)]


def test_a_call_that_waits_says_it_too(node: FakeNode) -> None:
    def end() -> None:
        taken(node, WORKER, 3)
        node.client.end(None)
        raise _core.AttachmentLost("the node was stopped")

    node.set_node("state", CONSTANTS["NODE_STOPPED"])
    node.hook = lambda code, *_told: end() if code == _core.HOOK_STOPPING and node.link(WORKER, "tail") else None  # type: ignore[method-assign]
    client = node.client = _core.Client(node.superblock, node.region, 5, 9, 0xABCD, node.hook)
    client.catalog_seen = 0
    node.restart(WORKER)
    with pytest.raises(ClosedError) as raised:
        client.publish_many(_core.Route([(WORKER, [QUEUE])]), BODIES, SYNCED, None, 10.0, True)
    assert raised.value.not_taken == tuple(range(3, 10))


def test_a_worker_that_said_nothing_leaves_it_unknown(node: FakeNode) -> None:
    confirm = published(node, _core.Route([(WORKER, [QUEUE])]))
    node.finish(WORKER, 6)
    stop(node)
    with pytest.raises(PeerLost, match="may or may not"):
        confirm.wait(0.0)
    assert confirm.untaken() is None


def test_a_worker_that_never_served_the_client_took_nothing(node: FakeNode) -> None:
    confirm = published(node, _core.Route([(WORKER, [QUEUE])]))
    node.set_link(WORKER, "server_epoch", 0)
    stop(node)
    with pytest.raises(ClosedError) as raised:
        confirm.wait(0.0)
    assert raised.value.not_taken == tuple(range(10))


def test_an_attachment_that_ends_otherwise_knows_nothing_of_a_worker_that_may_come(node: FakeNode) -> None:
    confirm = published(node, _core.Route([(WORKER, [QUEUE])]))
    node.set_link(WORKER, "server_epoch", 0)
    node.client.end(None)
    with pytest.raises(PeerLost):
        confirm.wait(0.0)


def test_what_a_full_queue_refused_besides_is_named_with_it(node: FakeNode) -> None:
    confirm = published(node, _core.Route([(WORKER, [QUEUE])]))
    node.result(WORKER, 2, PROTOCOL["RESULT_REFUSED"])
    taken(node, WORKER, 6)
    stop(node)
    with pytest.raises(QueueFull) as raised:
        confirm.wait(0.0)
    assert raised.value.refused == (2, 6, 7, 8, 9), "none of them is there"


def test_what_some_workers_took_is_not_called_untaken(node: FakeNode) -> None:
    confirm = published(node, _core.Route([(WORKER, [QUEUE]), (OTHER, [QUEUE + 1])]))
    taken(node, WORKER, 10)
    taken(node, OTHER, 8)
    stop(node)
    with pytest.raises(PeerLost, match="others had not"):
        confirm.wait(0.0)
    assert confirm.untaken() == [(OTHER, 8, 2)]


def test_what_no_worker_took_is(node: FakeNode) -> None:
    confirm = published(node, _core.Route([(WORKER, [QUEUE]), (OTHER, [QUEUE + 1])]))
    taken(node, WORKER, 8)
    taken(node, OTHER, 8)
    stop(node)
    with pytest.raises(ClosedError) as raised:
        confirm.wait(0.0)
    assert raised.value.not_taken == (8, 9)
    assert confirm.untaken() == [(WORKER, 8, 2), (OTHER, 8, 2)]


class Rooms:
    """A node whose state changes when its client first waits for room: its ring has 64 places."""

    def __init__(self) -> None:
        self.node = FakeNode()
        self.client = _core.Client(self.node.superblock, self.node.region, 5, 9, 0xABCD, self.hook)
        self.node.client = self.client
        self.client.catalog_seen = 0
        for server in (WORKER, OTHER):
            self.node.restart(server)

    def hook(self, code: int, _server: int, _what: str, _seconds: float = -1.0) -> None:
        if code == _core.HOOK_CHECK:  # a second has passed: it does wait
            self.node.set_node("state", CONSTANTS["NODE_DRAINING"])
        if code == _core.HOOK_STOPPING:
            raise ClosedError("being stopped")


def test_a_stop_in_the_middle_of_a_call_leaves_its_confirm() -> None:
    rooms = Rooms()
    node = rooms.node
    with pytest.raises(ClosedError, match="being stopped") as raised:
        published(node, _core.Route([(WORKER, [QUEUE])]), bodies=[b"x"] * 100)
    assert raised.value.not_taken == tuple(range(64, 100))
    assert pickle.loads(pickle.dumps(raised.value)).not_taken == raised.value.not_taken
    confirm = raised.value.confirm
    taken(node, WORKER, 60)
    with pytest.raises(TimedOut):  # what was handed over might still be taken
        confirm.wait(0.0)
    stop(node)
    with pytest.raises(ClosedError) as told:
        confirm.wait(0.0)
    assert told.value.not_taken == tuple(range(60, 100))
    assert confirm.untaken() == [(WORKER, 60, 4), (-1, 64, 36)]


def test_what_was_handed_over_may_be_confirmed_before_the_node_ends() -> None:
    rooms = Rooms()
    with pytest.raises(ClosedError) as raised:
        published(rooms.node, _core.Route([(WORKER, [QUEUE])]), bodies=[b"x"] * 100)
    taken(rooms.node, WORKER, 64)
    with pytest.raises(ClosedError) as told:
        raised.value.confirm.wait(0.0)
    assert told.value.not_taken == tuple(range(64, 100))


def test_a_message_in_the_middle_of_which_it_stopped() -> None:
    """Method: each worker has several queues of it, so it is handed over in two parts; one ring is full before."""
    rooms = Rooms()
    node = rooms.node
    published(node, _core.Route([(OTHER, [1])]), bodies=[b"x"] * 63)
    both = _core.Route([(WORKER, [3, 4]), (OTHER, [5, 6])])
    with pytest.raises(ClosedError) as raised:
        published(node, both, bodies=[b"y"] * 5)
    assert raised.value.not_taken == (2, 3, 4)
    taken(node, WORKER, 2)
    taken(node, OTHER, 64)
    stop(node)
    assert raised.value.confirm.untaken() == [(OTHER, 1, 1), (-1, 2, 3)]
    with pytest.raises(PeerLost, match="others had not"):
        raised.value.confirm.wait(0.0)


# -- topics ------------------------------------------------------------------------------------------------------------


def handle(node: FakeNode, queues: int = 3) -> Any:
    return _core.TopicHandle(node.client, OTHER, 70, len("flights"), queues, bytes(8), 262_144, 0)


def answer(node: FakeNode, n: int) -> None:
    """The topic worker appends so many commands."""
    for sequence in range(n):
        at = node.record_at(OTHER, sequence)
        COMMAND.set_bytes(node.region, "id", struct.pack("<QQ", 100 * sequence, 1000 * sequence), at)
        COMMAND.pack_into(node.region, "result", PROTOCOL["RESULT_OK"], at)


def test_topics(node: FakeNode) -> None:
    """Three queues in turn: a command for each."""
    topic = handle(node)
    kept = topic.append_many(BODIES, None, None, None, [n % 3 for n in range(10)], None, None, SYNCED, None, False)
    lost = topic.append_many(BODIES, None, None, None, 1, None, None, SYNCED, None, False)
    one = topic.append(b"x", None, None, None, None, None, None, SYNCED, None, False)
    answer(node, 2)
    taken(node, OTHER, 2)
    stop(node)
    with pytest.raises(ClosedError) as raised:
        kept.wait(0.0)
    left = [n for n in range(10) if n % 3 == 2]
    assert list(raised.value.not_taken) == left
    assert kept.untaken() == [(OTHER, n, 1) for n in left]
    with pytest.raises(ClosedError, match="10 of 10"):
        lost.result(0.0)
    assert lost.untaken() == [(OTHER, 0, 10)]
    with pytest.raises(ClosedError, match="the message"):
        one.result(0.0)


def test_a_stop_in_the_middle_of_an_append() -> None:
    rooms = Rooms()
    node = rooms.node
    topic = handle(node)
    for _ in range(62):
        topic.append(b"x", None, None, None, 0, None, None, SYNCED, None, False)
    with pytest.raises(ClosedError, match="being stopped") as raised:
        topic.append_many(BODIES, None, None, None, [2 - n % 3 for n in range(10)], None, None, SYNCED, None, False)
    assert raised.value.not_taken == (0, 3, 6, 9), "those of the third queue"
    confirm: warren.Confirm[Any] = raised.value.confirm
    answer(node, 63)
    taken(node, OTHER, 63)
    stop(node)
    with pytest.raises(ClosedError) as told:
        confirm.wait(0.0)
    assert told.value.not_taken == (0, 1, 3, 4, 6, 7, 9)
