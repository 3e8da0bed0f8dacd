"""Returned messages come before those that were never delivered, in the order of the queue (rule Q11), in its worker.

Goal: however a consumer ends, and whatever the queue's arguments are, the next one gets the messages that the first one
held, and then the rest. Method: a worker's engine and hand-driven clients (support.queue_probe). The first consumer
holds two of six messages; its end and the next one's credit are executed in the same round, the next one's first.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warren.engine.catalog.arguments import ACK_TIMEOUT_MIN, QueueArguments
from warren.engine.kernel.protocol import PROTOCOL

from support.queue_probe import NO, OK, REFUSED, Delivery, Node, Peer, Queue

pytestmark = pytest.mark.contract

DEAD = 9
#: what a queue is declared with
KINDS: dict[str, dict[str, Any]] = {
    "durable": {},
    "transient": {"durable": False},
    "flushed": {},
    "priorities": {"max_priority": 5},
    "time to live": {"message_ttl": 3600.0},
    "maximum": {"max_length": 10},
    "maximum, refusing": {"max_length": 10, "overflow": "reject-publish"},
    "delivery limit": {"delivery_limit": 3, "dead_letter_exchange": "x"},
    "single active": {"single_active_consumer": True},
    "single active, priorities": {"single_active_consumer": True, "max_priority": 5},
    "single active, refusing": {"single_active_consumer": True, "max_length": 10, "overflow": "reject-publish"},
}
SINGLE = [kind for kind in KINDS if kind.startswith("single")]
SIX = [b"%d" % number for number in range(6)]


class Scene:
    """A queue with six messages, of which `first` holds two; `second` comes next, and its commands are read first."""

    def __init__(self, path: Path, kind: str, **more: Any) -> None:
        arguments = KINDS[kind] | more
        durable = arguments.pop("durable", True)
        policy = QueueArguments.of("q", arguments)
        self.node = Node(path, queues=[Queue(1, durable, policy=policy), Queue(2), Queue(DEAD, dead_letters_of=1)])
        self.worker = self.node.worker()
        self.producer, self.second, self.first = (self.node.peer(self.worker) for _ in range(3))
        for body in SIX:
            self.producer.publish(1, body, flags=5 if durable else 0)
        self.worker.until(lambda: self.producer.get("processed") == self.producer.prepared)
        if kind == "flushed":
            self._flush()
        self.first.credit(1, credit=0, prefetch=2)
        self.worker.turns()
        self.held = self.first.receive(self.worker)
        assert [item.body for item in self.held] == SIX[:2]
        for item in self.held:
            self.first.hand_out(item)

    def _flush(self) -> None:
        file = self.worker.engine.files(False)[0][0]
        while self.node.folder.journal_file(file).exists():
            for _ in range(20):
                self.producer.publish(2, b"." * 3000)
            self.worker.until(lambda: self.producer.get("synced") == self.producer.prepared)
            self.worker.turns()

    def comes(self) -> None:
        """The next consumer; nothing of it is executed yet."""
        self.second.credit(1, credit=0, prefetch=10)

    def found(self) -> list[Delivery]:
        """Messages that the next one has received since."""
        self.worker.turns()
        return self.second.receive(self.worker)


def cancels(scene: Scene) -> None:
    scene.comes()
    scene.first.command("OP_CANCEL", queue=1, flags=PROTOCOL["FLAG_REQUEUE"])


def returns_and_cancels(scene: Scene) -> None:
    scene.comes()
    for item in scene.held:
        scene.first.nack(1, item.sequence)
    scene.first.command("OP_CANCEL", queue=1)


def cancels_and_returns(scene: Scene) -> None:
    scene.comes()
    scene.first.command("OP_CANCEL", queue=1)
    for item in reversed(scene.held):
        scene.first.nack(1, item.sequence)


def dies(scene: Scene) -> None:
    scene.comes()
    scene.worker.engine.closing(scene.first.slot)


WAYS = [cancels, returns_and_cancels, cancels_and_returns, dies]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", WAYS)
def test_what_returns_comes_first(tmp_path: Path, kind: str, end: Callable[[Scene], None]) -> None:
    scene = Scene(tmp_path, kind)
    end(scene)
    found = scene.found()
    assert [(item.body, item.redelivered) for item in found] == [(body, body in SIX[:2]) for body in SIX]
    scene.worker.engine.check()
    scene.worker.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_nacked_is_the_next_of_who_stays(tmp_path: Path, kind: str) -> None:
    scene = Scene(tmp_path, kind)
    for item in reversed(scene.held):
        scene.first.nack(1, item.sequence)
    scene.worker.turns()
    found = scene.first.receive(scene.worker)
    assert [(item.body, item.redelivered) for item in found] == [(b"0", True), (b"1", True)]
    scene.worker.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_held_for_too_long_comes_first(tmp_path: Path, kind: str) -> None:
    scene = Scene(tmp_path, kind, ack_timeout=ACK_TIMEOUT_MIN)
    found: list[Delivery] = []
    if kind in SINGLE:
        scene.comes()
    else:  # a message that arrives after the timeout
        scene.worker.until(lambda: scene.first.held_slots() == 0)
        scene.comes()
    scene.worker.until(lambda: found.extend(scene.found()) or len(found) == len(SIX))
    assert [item.body for item in found] == SIX
    scene.worker.kill()


@pytest.mark.parametrize("kind", SINGLE)
@pytest.mark.parametrize("settled", ["acked", "nacked", "dead", "killed"])
def test_the_next_single_active_consumer_waits_for_what_the_last_one_holds(
    tmp_path: Path, kind: str, settled: str
) -> None:
    """It left, and holds two: they may return. Until then the next one gets nothing of what lay there with them."""
    scene = Scene(tmp_path, kind)
    scene.comes()
    scene.first.command("OP_CANCEL", queue=1)
    assert scene.found() == []
    if settled == "killed":  # the worker; its successor knows of what is held, and of nobody who consumes
        scene.worker.kill()
        scene.worker = scene.node.worker()
        scene.comes()
        scene.worker.turns()
        assert scene.found() == []
    (one, two) = scene.held
    if settled == "dead":
        scene.worker.engine.closing(scene.first.slot)
    else:
        scene.first.ack(1, one.sequence)
        assert scene.found() == []
        (scene.first.nack if settled == "nacked" else scene.first.ack)(1, two.sequence)
    expected = {"acked": SIX[2:], "killed": SIX[2:], "nacked": SIX[1:], "dead": SIX}[settled]
    got: list[Delivery] = []
    scene.worker.until(lambda: got.extend(scene.found()) or len(got) >= len(expected))
    assert [item.body for item in got] == expected
    scene.worker.engine.check()
    scene.worker.kill()


def test_what_comes_later_does_not_wait(tmp_path: Path) -> None:
    """As in RabbitMQ: with an empty queue the next one gets what is published then, whatever the last one holds."""
    scene = Scene(tmp_path, "single active")
    scene.first.credit(1, credit=0, prefetch=6)
    scene.worker.turns()
    held = scene.first.receive(scene.worker)
    scene.comes()
    scene.first.command("OP_CANCEL", queue=1)
    assert scene.found() == []
    put = scene.producer.publish(1, b"later")
    assert [item.body for item in scene.found()] == [b"later"]
    assert scene.producer.result(put) == OK
    for item in held:  # unseen: below the mark
        scene.first.command(
            "OP_NACK", queue=1, tag=item.sequence, flags=PROTOCOL["FLAG_REQUEUE"] | PROTOCOL["FLAG_UNSEEN"]
        )
    assert scene.found() == [], "the two that it had in hand come before"
    for item in scene.held:
        scene.first.nack(1, item.sequence)
    assert [item.body for item in scene.found()] == SIX
    scene.worker.kill()


def test_a_full_queue_refuses_while_the_next_one_waits(tmp_path: Path) -> None:
    """Nothing is delivered, so nothing makes room: a publish is refused, and does not wait."""
    scene = Scene(tmp_path, "single active, refusing")
    scene.comes()
    scene.first.command("OP_CANCEL", queue=1)
    scene.worker.turns()
    results = [scene.producer.publish(1, b"more") for _ in range(8)]
    scene.worker.until(lambda: scene.producer.get("processed") == scene.producer.prepared)
    assert [scene.producer.result(one) for one in results] == [OK] * 6 + [REFUSED] * 2
    scene.worker.kill()


def test_who_comes_back_is_served(tmp_path: Path) -> None:
    """Nobody else consumes: it need not wait for itself."""
    scene = Scene(tmp_path, "single active")
    scene.first.command("OP_CANCEL", queue=1)
    scene.worker.turns()
    scene.first.credit(1, credit=0, prefetch=4)
    scene.worker.turns()
    assert [item.body for item in scene.first.receive(scene.worker)] == SIX[2:4]
    scene.worker.kill()


def test_a_deleted_queue_and_a_purge_forget_who_left(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "single active")
    scene.comes()
    scene.first.command("OP_CANCEL", queue=1)
    assert scene.found() == []
    scene.worker.engine.purge(1, 1 << 60, True)
    put: Callable[[Peer], int] = lambda peer: peer.publish(1, b"new")  # noqa: E731
    put(scene.producer)
    assert [item.body for item in scene.found()] == [b"new"]
    assert scene.first.result(scene.first.ack(1, scene.held[0].sequence)) in (NO, 0)
    scene.node.queues = [Queue(2)]
    scene.node.tell_catalog(2)
    scene.worker.turns(2)
    scene.worker.engine.check()
    scene.worker.kill()
