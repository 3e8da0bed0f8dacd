"""Goal: a channel does one thing after the other, keeps what it cannot do yet within bounds, and stops nobody else.

Method: slots of a connection that is a record of what is asked of it, with a channel whose calls end when told to.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from warren.engine import _core
from warren.engine.amqp import spec
from warren.engine.errors import ClosedError, PeerLost
from warren.workers.amqp.backlog import FLOOR, Backlog, Kept, size_of
from warren.workers.amqp.faults import ChannelFault, ConnectionFault, Fault
from warren.workers.amqp.slots import Slot


class _Peer:
    name = "peer"


class _Gateway:
    def __init__(self) -> None:
        self.events = asyncio.get_running_loop()


class FakeConnection:
    """What a slot uses of a connection."""

    peer, user_name, vhost = _Peer(), "guest", "/"

    def __init__(self) -> None:
        self.gateway = _Gateway()
        self.kept = Kept(Backlog(1 << 30), lambda: None)
        self.flooded = self.closing = False
        self.published = 0
        self.said: list[object] = []
        self.waiting: list[asyncio.Future[None]] = []

    def send_method(self, channel: int, id: int, arguments: tuple[Any, ...] = ()) -> None:
        self.said.append((channel, spec.METHODS[id].name, *arguments))

    def told(self, fault: Fault, method: int = 0) -> tuple[int, str, int, int]:
        return fault.code, fault.said, method >> 16, method & 0xFFFF

    def fail(self, fault: ConnectionFault, method: int = 0) -> None:
        self.closing = True
        self.said.append((fault.code, fault.text))

    def channel_closed(self, number: int) -> None:
        self.said.append(f"channel {number} is closed")

    def channel_closes(self, number: int) -> None:
        self.said.append(f"channel {number} closes")

    def may_read(self) -> None:
        pass

    def channel_rests(self) -> None:
        self.said.append("rests")

    async def until_writable(self) -> None:
        future = self.gateway.events.create_future()
        self.waiting.append(future)
        await future


class FakeChannel:
    """Notes what it is asked; what is `slow` ends when its future does."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.slow: list[asyncio.Future[None]] = []
        self.next: Exception | None = None
        self.waits = False
        self.ends = 0

    def method(self, id: int, arguments: tuple[Any, ...]) -> Awaitable[None] | None:
        self.done.append(arguments[0])
        return self._answer()

    def publish(
        self, exchange: str, key: str, flags: int, properties: list[bytes], bodies: list[bytes]
    ) -> Awaitable[None] | None:
        self.done.append(bodies)
        return self._answer()

    def _answer(self) -> Awaitable[None] | None:
        error, self.next = self.next, None
        if error is not None and not self.waits:
            raise error
        if not self.waits:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.slow.append(future)
        return future

    def ended(self) -> None:
        self.ends += 1

    def writable(self) -> None:
        pass

    def facts(self) -> dict[str, Any]:
        return {}


def method(argument: object) -> tuple[Any, ...]:
    return spec.METHOD, 1, spec.BASIC_QOS, (argument,)


def publish(body: bytes) -> tuple[Any, ...]:
    return spec.PUBLISH, 1, "", "key", 0, [b"\0\0"], [body]


Test = Callable[[Slot, FakeConnection, FakeChannel], Coroutine[Any, Any, None]]


def run(test: Test) -> None:
    async def whole() -> None:
        connection, channel = FakeConnection(), FakeChannel()
        slot = Slot(connection, 1, channel)  # type: ignore[arg-type]
        await test(slot, connection, channel)
        await slot.stop()
        assert channel.ends == 1
        assert not slot.busy

    asyncio.run(whole())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_what_need_not_wait_is_done_at_once() -> None:
    async def test(slot: Slot, connection: FakeConnection, channel: FakeChannel) -> None:
        slot.feed(method(1))
        slot.feed(publish(b"x"))
        assert channel.done == [1, [b"x"]]
        assert not slot.busy
        assert slot.published == 1

    run(test)


def test_what_comes_while_a_call_is_under_way_waits_in_order() -> None:
    async def test(slot: Slot, connection: FakeConnection, channel: FakeChannel) -> None:
        channel.waits = True
        slot.feed(method(1))
        slot.feed(method(2))
        slot.feed(publish(b"3"))
        await turns()
        assert channel.done == [1]
        channel.slow.pop().set_result(None)
        await turns()
        assert channel.done == [1, 2]
        channel.waits = False
        channel.slow.pop().set_result(None)
        await turns()
        assert channel.done == [1, 2, [b"3"]]
        assert not slot.busy
        assert connection.said == ["rests"]

    run(test)


def test_what_waits_and_what_is_under_way_count_until_they_are_done() -> None:
    async def test(slot: Slot, connection: FakeConnection, channel: FakeChannel) -> None:
        slot.feed(method(0))
        assert connection.kept.waits == 0, "it is done"
        channel.waits = True
        sizes = [size_of(event) for event in (method(1), publish(bytes(1000)), method(2))]
        assert min(sizes) >= FLOOR
        slot.feed(method(1))
        slot.feed(publish(bytes(1000)))
        slot.feed(method(2))
        for done in range(3):
            assert connection.kept.waits == sum(sizes[done:])
            await turns()
            channel.slow.pop().set_result(None)
            await turns()
        assert connection.kept.waits == 0

    run(test)


@pytest.mark.parametrize("end", ["fault", "stop"])
def test_what_is_not_done_any_more_counts_no_more(end: str) -> None:
    async def test(slot: Slot, connection: FakeConnection, channel: FakeChannel) -> None:
        channel.waits = True
        for number in range(3):
            slot.feed(method(number))
        await turns()
        if end == "fault":
            channel.slow.pop().set_exception(ChannelFault(404, "no queue 'x'"))
        else:
            await slot.stop()
        await turns()
        assert connection.kept.waits == 0

    run(test)


def test_arguments_are_made_objects_when_it_is_their_turn() -> None:
    async def test(slot: Slot, connection: FakeConnection, channel: FakeChannel) -> None:
        channel.waits = True
        asked = _core.amqp_method(1, spec.QUEUE_BIND, ("q", "x", "k", False, {"a": 1}))
        (event,) = _core.AmqpReader(4096, 1).read(asked)
        slot.feed(method(0))
        slot.feed(event)
        channel.slow.pop().set_result(None)
        await turns()
        assert channel.done == [0, "q"]

    run(test)


def test_nothing_is_done_for_a_client_that_is_flooded() -> None:
    async def test(slot: Slot, connection: FakeConnection, channel: FakeChannel) -> None:
        connection.flooded = True
        slot.feed(method(1))
        await turns()
        assert channel.done == []
        connection.flooded = False
        connection.waiting.pop().set_result(None)
        await turns()
        assert channel.done == [1]

    run(test)


@pytest.mark.parametrize("slow", [False, True])
def test_a_fault_closes_the_channel_and_what_is_kept_is_forgotten(slow: bool) -> None:
    async def test(slot: Slot, connection: FakeConnection, channel: FakeChannel) -> None:
        fault = ChannelFault(404, "no queue 'x'")
        channel.waits = slow
        if not slow:
            channel.next = fault
        slot.feed(method(1))
        slot.feed(method(2))
        if slow:
            channel.slow.pop().set_exception(fault)
        await turns()
        assert channel.done == [1]
        assert channel.ends == 1
        assert connection.said[:2] == [
            "channel 1 closes",
            (1, "channel.close", 404, "NOT_FOUND - no queue 'x'", 60, 10),
        ]

    run(test)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConnectionFault(530, "no"), 530), (ClosedError("gone"), 320), (PeerLost("worker"), 541), (KeyError("bug"), 541)],
)
def test_other_errors_end_the_connection(error: Exception, code: int, caplog: pytest.LogCaptureFixture) -> None:
    async def test(slot: Slot, connection: FakeConnection, channel: FakeChannel) -> None:
        channel.next = error
        with caplog.at_level(logging.CRITICAL, "warren.amqp"):
            slot.feed(method(1))
        (said,) = connection.said
        assert isinstance(said, tuple)
        assert said[0] == code

    run(test)


def test_flow_and_close_are_answered_in_their_turn() -> None:
    async def test(slot: Slot, connection: FakeConnection, channel: FakeChannel) -> None:
        channel.waits = True
        slot.feed(method(1))
        slot.feed((spec.METHOD, 1, spec.CHANNEL_FLOW, (True,)))
        slot.feed((spec.METHOD, 1, spec.CHANNEL_CLOSE, (200, "bye", 0, 0)))
        slot.feed(method(2))
        assert connection.said == []
        channel.slow.pop().set_result(None)
        await turns()
        assert connection.said == [(1, "channel.flow-ok", True), "channel 1 is closed", "rests"]
        assert channel.done == [1]

    run(test)


def test_flow_off_is_not_implemented() -> None:
    async def test(slot: Slot, connection: FakeConnection, channel: FakeChannel) -> None:
        slot.feed((spec.METHOD, 1, spec.CHANNEL_FLOW, (False,)))
        assert connection.said == [(540, "active=false")]

    run(test)


def test_a_call_that_is_under_way_is_cancelled_before_the_end() -> None:
    async def test(slot: Slot, connection: FakeConnection, channel: FakeChannel) -> None:
        channel.waits = True
        slot.feed(method(1))
        await turns()
        await slot.stop()
        assert channel.slow.pop().cancelled()
        assert channel.ends == 1

    run(test)
