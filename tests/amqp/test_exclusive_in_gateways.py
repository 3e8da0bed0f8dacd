"""Goal: exclusive consumers, single active ones and exclusive queues are so for all programs of a node: those of two
gateways, and those that attach. Kills of a gateway and of the queue's worker change that as they should.

Method: a node with two gateways at one Unix socket; raw frames, and warren itself. The texts are RabbitMQ's.
"""

from collections.abc import Iterator
from typing import Any

import pytest

import warren

from amqp_diff.wire import Lane, header
from support.gateway_node import GatewayNode
from support.two_gateways import is_replaced, kill_gateway, wire_at
from support.waiting import wait_until

pytestmark = pytest.mark.integration

IN_USE = "ACCESS_REFUSED - queue '{}' in vhost '/' in exclusive use"


def declared(lane: Lane, queue: str, **more: Any) -> None:
    """A durable queue."""
    lane.call("queue.declare", **{"queue": queue, "durable": True} | more)


def consumes(lane: Lane, queue: str, exclusive: bool = False) -> str:
    """Consume; "" or what the channel is closed with."""
    found = lane.call("basic.consume", queue=queue, tag="t", exclusive=exclusive)
    if found.name == "basic.consume-ok":
        return ""
    assert (found.name, found["code"]) == ("channel.close", 403)
    lane.open()
    return str(found["text"])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayNode]:
    """A node with two gateways and one queue worker."""
    settings = {"amqp": "unix:amqp.sock", "amqp_processes": 2, "profile": "small", "workers": 1}
    with GatewayNode(tmp_path_factory.mktemp("two") / "data", **settings) as running:
        yield running


@pytest.fixture
def lanes(two: GatewayNode) -> Iterator[tuple[Lane, Lane]]:
    """A channel at each gateway."""
    wires = wire_at(two, 0), wire_at(two, 1)
    yield wires[0].channel(), wires[1].channel()
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("ends", ["cancel", "channel", "connection", "lost"])
def test_a_consumer_is_exclusive_in_both(two: GatewayNode, lanes: tuple[Lane, Lane], ends: str) -> None:
    """RabbitMQ's code and text, at either gateway, until the consumer is gone."""
    there, queue = lanes[1], f"exclusive-{ends}"
    wire = wire_at(two, 0)
    here = wire.channel()
    declared(here, queue)
    assert consumes(here, queue, exclusive=True) == ""
    for exclusive in (True, False):
        assert consumes(there, queue, exclusive) == IN_USE.format(queue)
        assert consumes(lanes[0], queue, exclusive) == IN_USE.format(queue)
    there.send("basic.publish", routing_key=queue)
    there.wire.raw(header(there.number, 0, {}))
    (message,) = here.deliveries()
    assert there.call("basic.get", queue=queue).name == "basic.get-empty"
    if ends == "cancel":
        here.send("basic.ack", delivery=message["delivery"])
        here.call("basic.cancel", tag="t")
    elif ends == "channel":
        here.call("channel.close", code=200)
    elif ends == "connection":
        wire.close()
    else:
        wire.shut()
    wait_until(lambda: consumes(there, queue, exclusive=True) == "", 20, what="the queue to be free")
    if ends != "cancel":
        assert there.deliveries()[0]["redelivered"]
    assert consumes(lanes[0], queue) == IN_USE.format(queue)
    if not wire.over:
        wire.close()
    there.call("queue.delete", queue=queue)


def test_an_exclusive_consumer_is_refused_where_the_other_gateway_has_one(lanes: tuple[Lane, Lane]) -> None:
    here, there = lanes
    declared(here, "shared")
    assert [consumes(here, "shared"), consumes(there, "shared")] == ["", ""]
    other = here.wire.channel(9)
    assert consumes(other, "shared", exclusive=True) == IN_USE.format("shared")
    here.call("basic.cancel", tag="t")
    assert consumes(here, "shared", exclusive=True) == IN_USE.format("shared")
    there.call("basic.cancel", tag="t")
    assert consumes(here, "shared", exclusive=True) == ""
    here.call("queue.delete", queue="shared")


def test_of_many_that_begin_at_once_one_is_exclusive(two: GatewayNode, lanes: tuple[Lane, Lane]) -> None:
    declared(lanes[0], "race")
    for _ in range(10):
        for lane in lanes:
            lane.send("basic.consume", queue="race", tag="t", exclusive=True)
        answers = [lane.expect("basic.consume-ok") for lane in lanes]
        assert sorted(answer.name for answer in answers if answer) == ["basic.consume-ok", "channel.close"]
        for lane, answer in zip(lanes, answers, strict=True):
            if answer is not None and answer.name == "basic.consume-ok":
                lane.call("basic.cancel", tag="t")
            else:
                lane.open()
    lanes[0].call("queue.delete", queue="race")


def test_a_killed_gateway_leaves_the_queue_and_a_killed_worker_does_not(
    two: GatewayNode, lanes: tuple[Lane, Lane]
) -> None:
    here, _there = lanes
    wire = wire_at(two, 1)
    lane = wire.channel()
    declared(lane, "killed")
    assert consumes(lane, "killed", exclusive=True) == ""
    two.kill("worker-0")
    assert consumes(here, "killed", exclusive=True) == IN_USE.format("killed")
    here.send("basic.publish", routing_key="killed")
    here.wire.raw(header(here.number, 0, {}))
    assert len(lane.deliveries()) == 1
    dead = kill_gateway(two, 1)
    wait_until(lambda: consumes(here, "killed", exclusive=True) == "", 20, what="the queue to be free")
    assert here.deliveries()[0]["redelivered"]
    here.call("queue.delete", queue="killed")
    wire.shut()
    wait_until(lambda: is_replaced(two, 1, dead), 20, what="the successor of gateway 1")


def test_programs_of_the_node_and_of_amqp_keep_each_other_out(two: GatewayNode, lanes: tuple[Lane, Lane]) -> None:
    here, there = lanes
    declared(here, "both")
    with warren.attach(two.directory, name="python") as node:
        queue = node.queue("both")
        queue.put(b"x")
        messages = queue.consume(exclusive=True)
        next(messages).ack()
        for lane in lanes:
            assert consumes(lane, "both") == IN_USE.format("both")
        messages.close()
        assert consumes(there, "both", exclusive=True) == ""
        for exclusive in (True, False):
            with pytest.raises(warren.ResourceLocked, match=r"process \d+ \('amqp-1'\) alone"):
                next(queue.consume(exclusive=exclusive))
        there.call("basic.cancel", tag="t")
        assert consumes(here, "both") == ""
        with pytest.raises(warren.ResourceLocked, match=r"has another consumer, process \d+ \('amqp-0'\)"):
            next(queue.consume(exclusive=True))
    here.call("queue.delete", queue="both")


def test_an_exclusive_queue_is_its_connections_in_both(two: GatewayNode, lanes: tuple[Lane, Lane]) -> None:
    here, there = lanes
    declared(here, "own", durable=False, exclusive=True)
    assert consumes(here, "own", exclusive=True) == ""
    for lane in (there, here.wire.channel(9)):
        found = lane.call("queue.declare", queue="own", passive=True)
        if lane is there:
            assert (found["code"], found["text"].partition(" - ")[0]) == (405, "RESOURCE_LOCKED")
            there.open()
            found = there.call("basic.consume", queue="own", tag="t")
            assert (found["code"], found["text"].partition(" - ")[0]) == (405, "RESOURCE_LOCKED")
            there.open()
        else:
            assert found.name == "queue.declare-ok"
            assert consumes(lane, "own") == IN_USE.format("own")
    here.call("queue.delete", queue="own")


def test_one_consumer_is_active_in_both(two: GatewayNode, lanes: tuple[Lane, Lane]) -> None:
    """Single active: the first one gets all; when it goes, the one at the other gateway."""
    here, there = lanes
    declared(here, "active", arguments={"x-single-active-consumer": True})
    assert [consumes(here, "active"), consumes(there, "active")] == ["", ""]
    assert consumes(here.wire.channel(9), "active", exclusive=True) == IN_USE.format("active")
    for _ in range(4):
        there.send("basic.publish", routing_key="active")
        there.wire.raw(header(there.number, 0, {}))
    assert len(here.deliveries(4)) == 4
    here.send("basic.ack", delivery=4, multiple=True)
    here.call("basic.cancel", tag="t")
    there.send("basic.publish", routing_key="active")
    there.wire.raw(header(there.number, 0, {}))
    assert len(there.deliveries()) == 1
    there.call("queue.delete", queue="active")


def test_the_active_consumer_stays_so_over_kills_of_the_worker(two: GatewayNode, lanes: tuple[Lane, Lane]) -> None:
    """While it works on a message, whoever announces itself first to the next worker."""
    here, there = lanes
    declared(here, "steady", arguments={"x-single-active-consumer": True})
    for lane in lanes:
        lane.call("basic.qos", count=1)
        assert consumes(lane, "steady") == ""
    for turn in range(3):
        for _ in range(2):
            there.send("basic.publish", routing_key="steady")
            there.wire.raw(header(there.number, 0, {"delivery_mode": 2}))
        (first,) = here.deliveries()
        two.kill("worker-0")
        there.call("queue.declare", queue="steady", passive=True)  # the next one answers
        here.send("basic.ack", delivery=first["delivery"])
        (second,) = here.deliveries()
        here.send("basic.ack", delivery=second["delivery"])
        assert second["delivery"] == 2 * turn + 2
    there.call("queue.delete", queue="steady")


@pytest.mark.parametrize("gateways", [(0, 0), (0, 1)], ids=["one gateway", "two"])
def test_a_channel_that_never_acks_loses_its_place_as_the_active_consumer(
    two: GatewayNode, gateways: tuple[int, int]
) -> None:
    """With RabbitMQ's code and text; what it held comes to the next consumer, before what was never delivered."""
    queue = f"stuck-{gateways[1]}"
    wires = [wire_at(two, number) for number in gateways]
    stuck, following = (wire.channel() for wire in wires)
    with warren.attach(two.directory) as node:
        node.queue(queue, single_active_consumer=True, ack_timeout=3).put_many([b"0", b"1", b"2"])
        stuck.call("basic.qos", count=2)
        assert consumes(stuck, queue) == ""
        assert len(stuck.deliveries(2)) == 2
        assert consumes(following, queue) == ""
        closed = stuck.expect("channel.close", patience=60)
        assert closed is not None
        assert closed["code"] == 406
        assert "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out" in closed["text"]
        assert "Timeout value used: 3000 ms" in closed["text"]
        found = []
        while len(set(found)) < 3:
            (delivery,) = following.deliveries()
            following.send("basic.ack", delivery=delivery["delivery"])
            found.append(delivery.body)
        assert sorted(set(found)) == [b"0", b"1", b"2"]
        assert found[0] == b"0"
        node.delete_queue(queue)
    for wire in wires:
        wire.close()
