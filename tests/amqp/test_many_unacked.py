"""Goal: a program that acks only after very many messages gets them all, its death and those of servers return each
once, and who holds all it may is seen. Method: pika, and kills.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

import warren

from support.gateway_node import GatewayNode
from support.waiting import wait_until

MANY = 60_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[GatewayNode]:
    with GatewayNode(tmp_path / "data", workers=1) as running:
        with warren.attach(running.directory) as own:
            own.queue("many").put_many([b"%d" % number for number in range(MANY)])
        yield running


class Holder:
    """A consumer without a prefetch that acks nothing by itself."""

    def __init__(self, connection: pika.BlockingConnection, queue: str = "many", prefetch: int = 0) -> None:
        self.connection, self.channel = connection, connection.channel()
        self.got: list[tuple[int, bytes, bool]] = []  # tag, body, redelivered
        if prefetch:
            self.channel.basic_qos(prefetch_count=prefetch)
        self.channel.basic_consume(queue, self._take)

    def _take(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self.got.append((method.delivery_tag, body, method.redelivered))

    def wait(self, done: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, f"only {len(self.got)} came"
            self.connection.process_data_events(0.05)


def emptied(node: GatewayNode) -> None:
    with warren.attach(node.directory) as own:
        queue = own.queue("many", create=False)
        wait_until(lambda: queue.stats()["unacked"] == queue.stats()["ready"] == 0, 60, what="an empty queue")


def test_one_consumer_holds_very_many_and_acks_them_at_once(node: GatewayNode) -> None:
    with node.connected() as connection:
        holder = Holder(connection)
        holder.wait(lambda: len(holder.got) == MANY)
        assert [body for _tag, body, _again in holder.got] == [b"%d" % number for number in range(MANY)]
        node.kill("worker-0")
        holder.channel.basic_ack(holder.got[-1][0], multiple=True)
        emptied(node)
        assert len(holder.got) == MANY, "the next worker knew what was held"


def test_a_killed_gateway_returns_each_once(node: GatewayNode) -> None:
    first = node.connected()
    holder = Holder(first)
    holder.wait(lambda: len(holder.got) == MANY)
    node.kill("amqp_gateway")
    with pytest.raises(pika.exceptions.AMQPError):
        holder.wait(lambda: False)
    with node.connected() as connection:
        again = Holder(connection)
        again.wait(lambda: len(again.got) == MANY)
        assert [body for _tag, body, _again in again.got] == [b"%d" % number for number in range(MANY)]
        assert all(redelivered for _tag, _body, redelivered in again.got)
        for tag, _body, _again in again.got[::-7]:  # some one by one, the latest first
            again.channel.basic_ack(tag)
        again.channel.basic_ack(0, multiple=True)
        emptied(node)


def test_who_holds_all_it_may_is_seen_and_others_go_on(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data", workers=1, amqp_delivery_slots=256) as small, small.connected() as connection:
        with warren.attach(small.directory) as own:
            for name in ("many", "few"):
                own.queue(name).put_many([b"x"] * 1000)
        greedy = Holder(connection)
        greedy.wait(lambda: len(greedy.got) == 208)
        (found,) = small.connections()
        assert found["state"] == "full"
        assert sum(channel["full"] for channel in found["channels"]) == 1
        careful = Holder(connection, "few", prefetch=10)
        for count in range(10, 200):
            careful.wait(lambda count=count: len(careful.got) >= count)  # type: ignore[misc]
            careful.channel.basic_ack(careful.got[count - 10][0])
        log = Path(small.directory) / "log" / "amqp-0.log"
        careful.wait(lambda: "amqp_delivery_slots (256)" in log.read_text(), 60)
        (line,) = (line for line in log.read_text().splitlines() if "amqp_delivery_slots (256)" in line)
        assert "has held 208 messages for 10 s without an ack (it has no prefetch)" in line
        assert len(greedy.got) == 208
        greedy.channel.basic_ack(greedy.got[99][0], multiple=True)
        greedy.wait(lambda: len(greedy.got) == 100 + 198)  # its part beside the other one's prefetch
        (found,) = small.connections()
        assert sum(channel["unacked"] for channel in found["channels"]) <= 256
