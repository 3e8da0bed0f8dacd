"""Goal: however a consumer of AMQP ends, its messages come first again, and then those that were never delivered, for
every kind of queue (rule Q11).

Method: raw frames to a node with two gateways. A consumer holds the first two of six messages when it ends, or returns
them. After a single active consumer, the next one gets all six; otherwise a second consumer, which held the next two
meanwhile, acks these and gets the other four. If nobody gets a reply for the return (a lost connection, a killed
gateway), the test waits until the queue counts the messages as ready.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import warren

from amqp_diff.wire import Lane, Wire
from support.gateway_node import GatewayNode
from support.two_gateways import is_replaced, kill_gateway, wire_at
from support.waiting import wait_until

pytestmark = pytest.mark.integration

SIX = [b"%d" % number for number in range(6)]
SINGLE = {"x-single-active-consumer": True}
KINDS: dict[str, dict[str, Any]] = {
    "durable": {"durable": True},
    "transient": {},
    "priorities": {"arguments": {"x-max-priority": 5}},
    "time to live": {"arguments": {"x-message-ttl": 3_600_000}},
    "maximum": {"arguments": {"x-max-length": 10}},
    "maximum in bytes": {"arguments": {"x-max-length-bytes": 1000, "x-overflow": "reject-publish"}},
    "quorum": {"durable": True, "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 5}},
    "lazy": {"durable": True, "arguments": {"x-queue-mode": "lazy"}},
    "single active": {"arguments": SINGLE},
    "single active, quorum": {"durable": True, "arguments": SINGLE | {"x-queue-type": "quorum"}},
    "single active, priorities": {"arguments": SINGLE | {"x-max-priority": 5}},
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayNode]:
    """A node with two gateways at one Unix socket."""
    directory = tmp_path_factory.mktemp("two") / "data"
    with GatewayNode(directory, amqp="unix:amqp.sock", amqp_processes=2, profile="small") as running:
        yield running


class Pair:
    """A queue with six messages, and two consumers with a prefetch of 2: `one` ends; `two` was the second to come."""

    def __init__(self, kind: str, name: str, one: Wire, two: Wire) -> None:
        self.kind, self.queue = kind, f"{name}, {kind}"
        self.single = kind.startswith("single")
        self.one, self.two = one.channel(), two.channel()
        self.two.call("queue.declare", queue=self.queue, **KINDS[kind])
        for body in SIX:
            self.two.confirmed_on(self.queue, body)
        for lane in (self.one, self.two):
            lane.call("basic.qos", count=2)
            lane.call("basic.consume", queue=self.queue, tag="t")
            if lane is self.one or not self.single:
                self.came(lane, 2)

    def came(self, lane: Lane, count: int, acked: bool = False) -> list[tuple[bytes | None, bool]]:
        """So many messages of a consumer: the body, and whether it is redelivered."""
        found = []
        for _ in range(count):
            (frame,) = lane.deliveries(1) or [None]
            if frame is None:
                break
            found.append((frame.body, bool(frame.values.get("redelivered"))))
            if acked:
                lane.send("basic.ack", delivery=frame["delivery"])
        return found

    def judge(self) -> None:
        """Check what the second one gets after the first has ended."""
        if not self.single:
            self.two.send("basic.ack", delivery=2, multiple=True)
        rest = SIX[2:] if self.single else SIX[4:]
        wanted = [(b"0", True), (b"1", True), *((body, False) for body in rest)]
        assert self.came(self.two, len(wanted), acked=True) == wanted, self.kind
        self.two.call("queue.delete", queue=self.queue)


def cancel_and_close(lane: Lane) -> None:
    """As pika's channels are closed."""
    lane.call("basic.cancel", tag="t")
    lane.call("channel.close", code=200)


def cancel_and_nack(lane: Lane) -> None:
    lane.call("basic.cancel", tag="t")
    lane.send("basic.nack", delivery=2, requeue=True)
    lane.send("basic.nack", delivery=1, requeue=True)
    lane.alive()


def close(lane: Lane) -> None:
    lane.call("channel.close", code=200)


def fail(lane: Lane) -> None:
    """The server closes it."""
    lane.call("basic.cancel", tag="t")
    lane.call("queue.declare", queue="not there", passive=True)


@pytest.mark.parametrize("place", ["one connection", "one gateway", "two gateways"])
@pytest.mark.parametrize("end", [cancel_and_close, cancel_and_nack, close, fail])
def test_a_channel_that_ends(two: GatewayNode, end: Callable[[Lane], None], place: str) -> None:
    one = wire_at(two, 0)
    other = one if place == "one connection" else wire_at(two, 0 if place == "one gateway" else 1)
    for kind in KINDS:
        pair = Pair(kind, f"{end.__name__}, {place}", one, other)
        end(pair.one)
        if place == "two gateways":  # each has a link of its own to the worker
            returned(two, [pair])
        pair.judge()
    for wire in {one, other}:
        wire.close()


def returned(two: GatewayNode, pairs: list[Pair]) -> None:
    """Wait until the messages of a gone consumer are in the queues again, or at the next consumer."""
    with warren.attach(two.directory) as node:
        for pair in pairs:
            stats = node.queue(pair.queue, create=False).stats
            wait_until(lambda stats=stats: stats()["unacked"] == 2, 60, what=f"the return of what {pair.kind} had")


@pytest.mark.parametrize("index", [0, 1], ids=["one gateway", "two gateways"])
@pytest.mark.parametrize("how", ["closed", "lost"])
def test_a_connection_that_ends(two: GatewayNode, how: str, index: int) -> None:
    one, other = wire_at(two, 0), wire_at(two, index)
    pairs = [Pair(kind, f"{how} {index}", one, other) for kind in KINDS]
    (one.close if how == "closed" else one.shut)()
    returned(two, [pair for pair in pairs if not pair.single])
    for pair in pairs:
        pair.judge()
    other.close()


def test_a_gateway_that_is_killed(two: GatewayNode) -> None:
    one, other = wire_at(two, 0), wire_at(two, 1)
    pairs = [Pair(kind, "killed", one, other) for kind in KINDS]
    dead = kill_gateway(two, 0)
    returned(two, [pair for pair in pairs if not pair.single])
    for pair in pairs:
        pair.judge()
    one.shut()
    other.close()
    wait_until(lambda: is_replaced(two, 0, dead), 20, what="its successor")


def nack(lane: Lane) -> None:
    lane.send("basic.nack", delivery=2, multiple=True, requeue=True)


def reject(lane: Lane) -> None:
    """The other way around, the second one could be there again before the first one returns."""
    lane.send("basic.reject", delivery=1, requeue=True)
    lane.send("basic.reject", delivery=2, requeue=True)


def recover(lane: Lane) -> None:
    lane.call("basic.recover", requeue=True)


@pytest.mark.parametrize("how", [nack, reject, recover])
def test_who_returns_them_and_stays_gets_them_first(two: GatewayNode, how: Callable[[Lane], None]) -> None:
    """The other one is full, or not active."""
    wire = wire_at(two, 0)
    for kind in KINDS:
        pair = Pair(kind, how.__name__, wire, wire)
        how(pair.one)
        assert pair.came(pair.one, 2) == [(b"0", True), (b"1", True)], kind
        pair.one.call("queue.delete", queue=pair.queue)
    wire.close()


def test_what_lies_in_the_gateway_makes_way(two: GatewayNode) -> None:
    """The gateway has messages for a consumer that does not read; another one holds the first two and returns them."""
    body, count = b"." * 65_536, 400
    slow, other = wire_at(two, 0), wire_at(two, 0)
    lane, one = slow.channel(), other.channel()
    one.call("queue.declare", queue="slow")
    for number in range(count):
        one.publish("slow", b"%4d" % number + body)
    one.call("basic.qos", count=2)
    one.call("basic.consume", queue="slow", tag="t")
    one.deliveries(2)
    lane.send("basic.consume", queue="slow", tag="slow")  # it reads nothing of what comes
    with warren.attach(two.directory) as node:
        stats = node.queue("slow", create=False).stats
        wait_until(lambda: stats()["unacked"] == count, 60, what="all messages to reach the gateway")
    one.send("basic.nack", delivery=2, multiple=True, requeue=True)
    again = one.deliveries(2)
    numbers = [int((frame.body or b"")[:4]) for frame in again]
    assert numbers in ([0, 1], [0, 2])  # the second may be handed to the slow one in its turn
    assert [frame["redelivered"] for frame in again] == [number < 2 for number in numbers]
    slow.shut()
    one.call("queue.delete", queue="slow")
    other.close()
