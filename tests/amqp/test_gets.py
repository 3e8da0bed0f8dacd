"""Goal: basic.get never says that a queue is empty while messages are ready for it, however many gets run together.

Method: rounds of gets at once, by raw frames on several channels of two connections; which get the gateway serves first
is a matter of moments.
"""

from collections.abc import Callable

import pytest

import warren

from amqp_diff.wire import Wire, method
from support.gateway_node import GatewayNode

CHANNELS = 8
ROUNDS = 50


@pytest.mark.parametrize("consumed", [False, True])
def test_none_of_many_gets_finds_a_queue_empty_that_is_not(
    gateway: GatewayNode, connect: Callable[..., Wire], consumed: bool
) -> None:
    """Also beside a consumer that has all that it may hold."""
    name = f"gets-{consumed}"
    wires = [connect(), connect()]
    for wire in wires:
        wire.opened()
    lanes = [wire.channel() for wire in wires for _channel in range(CHANNELS)]
    first = wires[0].channel()
    first.call("queue.declare", queue=name, durable=True)
    if consumed:
        first.call("basic.qos", count=1)
        first.call("basic.consume", queue=name)
    with warren.attach(gateway.directory) as node:
        queue = node.queue(name, create=False)
        if consumed:
            queue.put(b"x")
            first.deliveries()
        for _round in range(ROUNDS):
            queue.put_many([b"x"] * len(lanes))
            for wire in wires:
                gets = (
                    method(number, "basic.get", {"queue": name, "no_ack": True}) for number in range(1, CHANNELS + 1)
                )
                wire.raw(b"".join(gets))
            answers = [lane.expect("basic.get-ok", "basic.get-empty") for lane in lanes]
            assert [answer and answer.name for answer in answers] == ["basic.get-ok"] * len(lanes)
