"""Goal: the public API does what architecture.md says of it. Method: a real node, used as a program uses it."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.workers.process.control import ControlClient
from warren.workers.process.launch import launch

from support.waiting import wait_until

pytestmark = pytest.mark.integration


def drain(queue: warren.Queue, count: int, timeout: float = 10.0) -> list[warren.Message]:
    """Get exactly `count` messages."""
    found: list[warren.Message] = []
    while len(found) < count:
        part = queue.get_many(count - len(found), timeout=timeout)
        assert part, f"{len(found)} of {count} messages came"
        found += part
    return found


# ---- put and get -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("size", [0, 1, 100, 4095, 4096, 5000, 100_000, 490_000])
def test_a_body_comes_back_as_it_was_put(node: warren.Node, name: str, durable: bool, size: int) -> None:
    queue = node.queue(name, durable=durable)
    body = os.urandom(size)
    assert queue.put(body) is None
    message = queue.get(timeout=5)
    assert message.body == body
    assert (message.redelivered, message.delivery_count, message.routing_key) == (False, 0, name)
    message.ack()
    wait_until(lambda: queue.stats()["acked"] == 1)


def test_any_buffer_is_a_body(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"one", bytearray(b"two"), memoryview(b"xthree")[1:]])
    assert [message.body for message in drain(queue, 3)] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("body", ["text", 5, None, [b"x"], memoryview(b"abcd")[::2]])
def test_what_is_no_buffer_is_refused(node: warren.Node, name: str, body: object) -> None:
    queue = node.queue(name)
    with pytest.raises(warren.UsageError):
        queue.put(body)  # type: ignore[arg-type]
    with pytest.raises(warren.UsageError):
        queue.put_many([b"good", body])  # type: ignore[list-item]
    assert queue.stats()["published"] == 0, "nothing of a refused batch is sent"


def take_one(node: warren.Node, name: str, body: bytes) -> None:
    """With a queue object of its own."""
    node.publish(body, routing_key=name)
    message = node.queue(name, create=False).get(timeout=20)
    assert (message.body, message.redelivered) == (body, False)
    message.ack()


def test_a_queue_object_may_go_after_each_get(node: warren.Node, name: str) -> None:
    node.queue(name)
    for n in range(20):
        take_one(node, name, b"%d" % n)
        gc.collect()  # queue and handle hold each other


def test_what_lay_ahead_at_a_queue_object_that_went_comes_to_the_next_in_order(node: warren.Node, name: str) -> None:
    bodies = [b"%d" % n for n in range(100)]
    node.queue(name).put_many(bodies)

    def first() -> bytes:
        messages = node.queue(name, create=False).get_many(1, timeout=20)
        node.queue(name, create=False).ack(messages)
        return bytes(messages[0].body)

    found = []
    for _round in range(60):
        found.append(first())
        gc.collect()
    other = node.queue(f"{name}-other")  # who asks for anything returns what lies at nobody
    with pytest.raises(warren.QueueEmpty):
        other.get(timeout=0.1)
    with warren.attach(node.directory) as second:
        queue = second.queue(name, create=False)
        wait_until(lambda: queue.stats()["unacked"] == 0, 20)
        rest = drain(queue, 40)
    assert found + [message.body for message in rest] == bodies
    assert not any(message.redelivered for message in rest)


OBJECTS = "holds Python objects, of which it has the addresses"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (np.array(["text"], dtype=object), OBJECTS),
        (np.zeros(2, dtype=[("number", "<i4"), ("any", object)]), OBJECTS),
        (np.zeros((4, 4))[:, ::2], "is not contiguous"),
        (memoryview(b"abcd")[::2], "is not contiguous"),
    ],
)
def test_arrays_whose_bytes_are_not_their_values_are_refused(
    node: warren.Node, name: str, body: Any, said: str
) -> None:
    queue = node.queue(name)
    with pytest.raises(warren.UsageError, match=said):
        queue.put(body)
    with pytest.raises(warren.UsageError, match=said):
        node.store().write(bytes(16), body)
    assert queue.stats()["published"] == 0


@pytest.mark.parametrize("array", [np.arange(3), np.zeros(2, dtype=[("Of", "<i4")]), np.array(["2026-11-25"], "M8[D]")])
def test_arrays_of_plain_values_are_bodies(node: warren.Node, name: str, array: Any) -> None:
    queue = node.queue(name)
    queue.put(array)
    assert queue.get(timeout=10).body == array.tobytes()


def test_a_body_that_is_too_large_names_the_setting(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    with pytest.raises(warren.MessageTooLarge, match="message_bytes_max"):
        queue.put(bytes(500_001))
    with pytest.raises(warren.MessageTooLarge, match="message_bytes_max"):
        queue.put_many([b"good", bytes(500_001)])
    with pytest.raises(warren.MessageTooLarge):
        queue.put(b"", headers={"long": "x" * 70_000})
    queue.put(b"the queue is well")
    assert queue.get(timeout=5).body == b"the queue is well"


def test_order_is_kept_over_many_batches(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    bodies = [b"%d" % number for number in range(20_000)]
    for first in range(0, len(bodies), 1234):
        queue.put_many(bodies[first : first + 1234], wait=False)
    for first in range(0, len(bodies), 4000):
        found = drain(queue, 4000)
        assert [message.body for message in found] == bodies[first : first + 4000]
        assert [message.delivery_tag for message in found] == list(range(first, first + 4000))
        found[-1].ack(multiple=True)
    wait_until(lambda: queue.stats()["acked"] == len(bodies))


def test_a_client_that_holds_too_much_is_told(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b""] * 5000)
    found = drain(queue, 4096)
    for timeout in (0, 0.1, None):
        with pytest.raises(warren.LimitError, match="delivery_slots"):
            queue.get(timeout=timeout)
    found[0].ack()
    assert queue.get(timeout=5).delivery_tag == 4096


def test_headers_travel(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    headers = {"n": 1, "text": "ä", "raw": b"\0", "list": [1, None], "deep": {"a": 1.5}}
    queue.put(b"x", headers=headers)
    queue.put_many([b"y", b"z"], headers=[{"i": 1}, None])
    first, second, third = drain(queue, 3)
    assert first.headers == headers
    assert (second.headers, third.headers) == ({"i": 1}, {})
    for wrong in (
        {"o": object()},
        {1: 2},
        "text",
        {"tags": {"new", "paid"}},
        {"at": [datetime.now(UTC)]},
        {"n": (1, 2)},
    ):
        with pytest.raises(warren.UsageError):
            queue.put(b"x", headers=wrong)  # type: ignore[arg-type]
        with pytest.raises(warren.UsageError):
            queue.put_many([b"x", b"y"], headers=[None, wrong])  # type: ignore[list-item]
        with pytest.raises(warren.UsageError):
            node.publish(b"x", routing_key=name, headers=wrong)  # type: ignore[arg-type]
    with pytest.raises(warren.UsageError):
        queue.put_many([b"x"], headers=[None, None])
    wait_until(lambda: queue.depth() == 0, what="nothing of them in the queue")  # counters may be a turn old


def test_message_ids_are_unique(node: warren.Node, directory: Path, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b""] * 500)
    with warren.attach(directory) as other:
        other.queue(name).put_many([b""] * 500)
    ids = {message.message_id for message in drain(queue, 1000)}
    assert len(ids) == 1000
    assert {len(id) for id in ids} == {16}


# ---- confirms --------------------------------------------------------------------------------------------------------


def test_confirm_is_like_a_future(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    confirm = queue.put(b"x", wait=False)
    assert confirm is not None
    assert confirm.result(timeout=5) is None
    assert confirm.done()
    assert confirm.exception() is None
    assert confirm.wait(0) is None
    many = queue.put_many([b"x"] * 1000, wait=False)
    assert many is not None
    many.wait(60)
    nothing = queue.put_many([], wait=False)
    assert nothing is not None
    assert nothing.done()


def test_durability_is_told_truthfully(node: warren.Node, name: str) -> None:
    durable, transient = node.queue(name), node.queue(name + "-t", durable=False)
    for level in ("none", "written", "synced", None):
        durable.put(b"x", durability=level)
    transient.put(b"x", durability="none")
    for level in ("written", "synced"):
        with pytest.raises(warren.UsageError, match="transient"):
            transient.put(b"x", durability=level)
        with pytest.raises(warren.UsageError, match="transient"):
            node.publish(b"x", routing_key=transient.name, durability=level)
    for wrong in ("sync", "", 2, b"synced"):
        with pytest.raises(warren.UsageError, match="durability"):
            durable.put(b"x", durability=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan")])
def test_a_wrong_timeout(node: warren.Node, name: str, timeout: object) -> None:
    queue = node.queue(name)
    with pytest.raises((warren.UsageError, TypeError)):
        queue.get(timeout=timeout)  # type: ignore[arg-type]


def test_single_puts_overtake_no_ring(node: warren.Node, name: str) -> None:
    """More messages under way than the ring and the arena hold: put waits for room, and nothing is lost."""
    queue = node.queue(name)
    confirms = [queue.put(b"%d" % n * 100, wait=False) for n in range(5000)]
    assert confirms[-1] is not None
    confirms[-1].wait(60)
    assert all(confirm is not None and confirm.done() for confirm in confirms)
    assert queue.depth() == 5000


# ---- ack and nack ----------------------------------------------------------------------------------------------------


def test_nack_returns_to_its_place(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"0", b"1", b"2", b"3"])
    found = drain(queue, 4)
    found[2].nack()
    found[1].nack(requeue=True)
    found[0].ack()
    again = drain(queue, 2)
    assert [message.body for message in again] == [b"1", b"2"]
    assert all(message.redelivered and message.delivery_count == 1 for message in again)
    again[0].nack(requeue=False)
    queue.ack([again[1], found[3]])
    # the counters may be of a moment before the first get, when nothing was unacked either
    wait_until(lambda: (queue.stats()["ready"], queue.stats()["unacked"]) == (0, 0))


@pytest.mark.parametrize("last", [0, 1])
def test_ack_multiple_goes_by_what_was_handed_out_before(node: warren.Node, name: str, last: int) -> None:
    """Not by places in the queue: with priorities these are in another order."""
    queue = node.queue(name, max_priority=9)
    for body, priority in ((b"low", 0), (b"high", 9)):
        queue.put(body, priority=priority)
    handed = [queue.get(timeout=20, ahead=False) for _ in range(2)]
    assert [message.body for message in handed] == [b"high", b"low"]
    handed[last].ack(multiple=True)
    wait_until(lambda: queue.stats()["acked"] == last + 1)
    if not last:
        handed[1].ack()
    wait_until(lambda: queue.stats()["unacked"] == 0)
    assert queue.stats()["acked"] == 2


def test_ack_multiple_leaves_what_came_again_later(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"0", b"1", b"2"])
    first, _second, third = [queue.get(timeout=20, ahead=False) for _ in range(3)]
    first.nack()
    again = queue.get(timeout=20)
    assert again.body == b"0"
    third.ack(multiple=True)
    wait_until(lambda: queue.stats()["acked"] == 2)
    assert queue.stats()["unacked"] == 1
    again.ack()
    wait_until(lambda: queue.stats()["acked"] == 3)


def test_ack_multiple_leaves_what_was_not_handed_out(node: warren.Node, directory: Path, name: str) -> None:
    """A lower message that returned to the queue, and lies here without being asked for, is not acked along."""
    queue = node.queue(name)
    queue.put_many([b"0", b"1", b"2"])
    with warren.attach(directory) as other:
        lower = other.queue(name).get(timeout=5)
        assert lower.body == b"0"
        iterator = queue.consume(prefetch=10)
        assert next(iterator).body == b"1"
        second = next(iterator)
        lower.nack()
        wait_until(
            lambda: queue._handle.pending or queue.stats()["unacked"] == 3, what="the lower one to be delivered here"
        )
        second.ack(multiple=True)
        wait_until(lambda: queue.stats()["unacked"] <= 1)
        third = next(iterator)
        assert (third.body, third.redelivered) == (b"0", True)
        third.ack()
        iterator.close()  # type: ignore[attr-defined]


def test_a_message_is_settled_once(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"0", b"1"])
    first, second = drain(queue, 2)
    first.ack()
    for again in (first.ack, first.nack):
        with pytest.raises(warren.UsageError, match="before"):
            again()
    with pytest.raises(warren.UsageError):
        queue.ack([second, first])
    assert not second.settled, "a refused batch settles nothing"
    second.ack()
    with pytest.raises(TypeError):
        second.ack(many=True)  # type: ignore[call-arg]


def test_messages_of_another_queue_are_refused(node: warren.Node, name: str) -> None:
    queue, other = node.queue(name), node.queue(name + "-2")
    other.put(b"x")
    message = other.get(timeout=5)
    with pytest.raises(warren.UsageError, match="another queue"):
        queue.ack([message])
    message.ack()


# ---- waiting ---------------------------------------------------------------------------------------------------------


def test_get_of_an_empty_queue(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    with pytest.raises(warren.QueueEmpty):
        queue.get(timeout=0)
    with pytest.raises(warren.QueueEmpty):
        queue.get(timeout=0.05)
    assert queue.get_many(5, timeout=0) == []
    queue.put(b"x")
    assert queue.get(timeout=0).body == b"x"


def test_an_idle_getter_hoards_nothing(node: warren.Node, directory: Path, name: str) -> None:
    queue = node.queue(name)
    with pytest.raises(warren.QueueEmpty):
        queue.get(timeout=0.01)
    queue.put_many([b"0", b"1"])
    with warren.attach(directory) as other:
        assert [message.body for message in drain(other.queue(name), 2)] == [b"0", b"1"]


def test_a_hot_getter_that_stops_returns_what_it_hoards(node: warren.Node, directory: Path, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"%d" % n for n in range(3000)])
    for _ in range(1000):
        queue.get(timeout=5).ack()
    assert queue._handle.pending > 0, "the hot loop has messages lying ready"
    with warren.attach(directory) as other:
        rest = drain(other.queue(name), 2000)
        assert sorted(int(message.body) for message in rest) == list(range(1000, 3000))
        other.queue(name).ack(rest)


def test_get_wakes_for_a_later_put(node: warren.Node, directory: Path, name: str) -> None:
    queue = node.queue(name)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(queue.get(timeout=10).body))
    thread.start()
    with warren.attach(directory) as other:
        other.queue(name).put(b"late")
    thread.join(10)
    assert found == [b"late"]


def test_threads_share_a_queue(node: warren.Node, name: str) -> None:
    """Four threads publish, three get on the same Queue: every message once, and a timeout of one starves no other."""
    queue = node.queue(name)
    found: list[bytes] = []
    lock = threading.Lock()
    done = threading.Event()

    def publish(number: int) -> None:
        for n in range(500):
            queue.put(b"%d-%d" % (number, n), wait=False)

    def take() -> None:
        while not done.is_set():
            try:
                message = queue.get(timeout=0.02)
            except warren.QueueEmpty:
                continue
            message.ack()
            with lock:
                found.append(message.body)

    takers = [threading.Thread(target=take) for _ in range(3)]
    publishers = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in takers + publishers:
        thread.start()
    for thread in publishers:
        thread.join(30)
    try:
        wait_until(lambda: len(found) >= 2000, 30, what="all messages")
    except AssertionError as error:
        states = [thread.is_alive() for thread in takers + publishers]
        raise AssertionError(
            f"{len(found)} came; {queue.stats()}, {queue._handle.pending} pending, {states}"
        ) from error
    finally:
        done.set()
        for thread in takers:
            thread.join(10)
    assert sorted(found) == sorted(b"%d-%d" % (number, n) for number in range(4) for n in range(500))


def test_signals_reach_a_waiting_get(node: warren.Node, name: str) -> None:
    class Told(Exception):
        pass

    def tell(_number: int, _frame: object) -> None:
        raise Told

    old = signal.signal(signal.SIGUSR1, tell)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(Told):
            node.queue(name).get(timeout=20)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, old)


# ---- consume ---------------------------------------------------------------------------------------------------------


def test_consume_keeps_to_its_prefetch_and_returns_the_rest(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"%d" % n for n in range(100)])
    iterator = queue.consume(prefetch=10)
    first = next(iterator)
    wait_until(lambda: queue.stats()["unacked"] == 10)
    first.ack()
    second = next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    wait_until(lambda: queue.stats()["unacked"] == 1, what="only what was handed out to be unacked")
    assert queue.depth() == 98
    second.ack()
    assert [int(message.body) for message in drain(queue, 98)] == list(range(2, 100))


def test_consume_ends_after_its_timeout(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"x"] * 1000)
    count = 0
    for message in queue.consume(prefetch=50, timeout=0.2):
        message.ack()
        count += 1
    assert count == 1000
    for wrong in (0, -1, "many", 10**6):
        with pytest.raises(warren.UsageError, match="prefetch"):
            next(queue.consume(prefetch=wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, 2**70, -(2**70), 1.5, "5", None, []])
def test_a_wrong_count_is_refused(node: warren.Node, name: str, wrong: Any) -> None:
    queue = node.queue(name)
    queue.put(b"x")
    with pytest.raises(warren.UsageError, match="max must"):
        queue.get_many(wrong, timeout=0)
    if wrong is not None:  # that is the default: as far as it pays
        with pytest.raises(warren.UsageError, match="prefetch must"):
            next(iter(queue.consume(prefetch=wrong, timeout=0)))
    assert [message.body for message in queue.get_many(sys.maxsize, timeout=5)] == [b"x"]


@pytest.mark.parametrize("wrong", [[], "", (), {}, False, 0.0, None, "5", [1]])
def test_options_of_a_wrong_type_are_refused(node: warren.Node, name: str, wrong: Any) -> None:
    queue = node.queue(name, max_priority=5)
    with pytest.raises(warren.UsageError, match="priority"):
        queue.put(b"x", priority=wrong)
    for option in ("delay", "ttl"):
        if wrong is not None and type(wrong) is not float:
            with pytest.raises(warren.UsageError, match=option):
                queue.put(b"x", **{option: wrong})
    queue.put(b"plain", delay=0)
    assert queue.get(timeout=5).body == b"plain"
    with pytest.raises(warren.QueueEmpty):
        queue.get(timeout=0)


def test_two_consumers_share(node: warren.Node, directory: Path, name: str) -> None:
    queue = node.queue(name)
    with warren.attach(directory) as other:
        mine, theirs = queue.consume(prefetch=5, timeout=5), other.queue(name).consume(prefetch=5, timeout=5)
        queue.put_many([b"%d" % n for n in range(8)])
        wait_until(lambda: queue.stats()["unacked"] == 0)
        found = [next(mine).body]
        wait_until(lambda: queue.stats()["unacked"] == 5)
        found += [next(theirs).body for _ in range(3)]
        assert len(set(found)) == 4
        mine.close()  # type: ignore[attr-defined]
        theirs.close()  # type: ignore[attr-defined]


def test_closing_returns_everything_in_order(directory: Path, name: str) -> None:
    with warren.attach(directory) as first:
        queue = first.queue(name)
        queue.put_many([b"%d" % n for n in range(50)])
        drain(queue, 20)[3].ack()
    with warren.attach(directory) as second:
        found = drain(second.queue(name), 49)
        assert [int(message.body) for message in found] == [n for n in range(50) if n != 3]
        assert all(message.redelivered for message in found[:19])
        second.queue(name).ack(found)


# ---- exchanges -------------------------------------------------------------------------------------------------------


def test_routing_through_exchanges(node: warren.Node, name: str) -> None:
    queues = [node.queue(f"{name}-{n}") for n in range(5)]
    node.declare_exchange(name, "topic")
    for queue, pattern in zip(queues, ["a.*", "a.#", "*.b", "c", "#"], strict=True):
        node.bind(queue, name, pattern)
    node.publish(b"ab", exchange=name, routing_key="a.b", headers={"h": 1})
    node.publish(b"c", exchange=name, routing_key="c", durability="written")
    found = [[message.body for message in queue.get_many(10, timeout=5)] for queue in queues]
    assert found == [[b"ab"], [b"ab"], [b"ab"], [b"c"], [b"ab", b"c"]]
    assert node.unbind(queues[0], name, "a.*")
    assert not node.unbind(queues[0], name, "a.*")
    node.publish(b"again", exchange=name, routing_key="a.b")
    with pytest.raises(warren.QueueEmpty):
        queues[0].get(timeout=0.1)
    message = queues[1].get(timeout=5)
    assert (message.exchange, message.routing_key, message.body) == (name, "a.b", b"again")


def test_a_fanout_of_a_large_body(node: warren.Node, name: str) -> None:
    """One body for many queues of both workers: the copies that everyone reads are whole, and go with the last ack."""
    queues = [node.queue(f"{name}-{n}") for n in range(6)]
    node.declare_exchange(name, "fanout")
    for queue in queues:
        queue.bind(name)
    body = os.urandom(50_000)
    before = node.status()["store"]["messages"]
    node.publish(body, exchange=name)
    assert node.status()["store"]["messages"] == before + 1, "stored once"
    for queue in queues:
        message = queue.get(timeout=5)
        assert message.body == body
        message.ack()
    wait_until(lambda: node.status()["store"]["messages"] == before, what="the body to go with its last reference")


def test_publish_many_with_keys_of_their_own(node: warren.Node, name: str) -> None:
    queues = [node.queue(f"{name}-{n}") for n in range(3)]
    node.declare_exchange(name)
    for number, queue in enumerate(queues):
        node.bind(queue, name, str(number))
    keys = [str(n % 3) for n in range(3000)]
    node.publish_many(
        [b"%d" % n for n in range(3000)], exchange=name, routing_keys=keys, headers=[{"n": n} for n in range(3000)]
    )
    for number, queue in enumerate(queues):
        found = drain(queue, 1000)
        assert [int(message.body) for message in found] == list(range(number, 3000, 3))
        assert found[5].headers == {"n": number + 15}
        assert found[5].routing_key == str(number)
    with pytest.raises(warren.UsageError):
        node.publish_many([b"x"], exchange=name, routing_keys=[])


def test_messages_without_a_queue(node: warren.Node, name: str) -> None:
    node.declare_exchange(name)
    assert node.publish(b"x", exchange=name, routing_key="k") is None
    confirm = node.publish(b"x", exchange=name, routing_key="k", wait=False)
    assert confirm is not None
    assert confirm.done()
    with pytest.raises(warren.Unroutable, match="mandatory"):
        node.publish(b"x", exchange=name, routing_key="k", mandatory=True)
    with pytest.raises(warren.Unroutable):
        node.publish_many([b"x"], exchange=name, routing_key="k", mandatory=True)
    with pytest.raises(warren.ExchangeNotFound):
        node.publish(b"x", exchange=name + "-2", routing_key="k")


# ---- declarations ----------------------------------------------------------------------------------------------------


def test_declaring_twice(node: warren.Node, directory: Path, name: str) -> None:
    assert node.queue(name) is node.queue(name)
    with pytest.raises(warren.DeclarationMismatch, match="transient"):
        node.queue(name, durable=False)
    with pytest.raises(warren.UsageError):
        node.queue(name + "-2", colour="blue")
    node.declare_exchange(name, "topic")
    with pytest.raises(warren.DeclarationMismatch):
        node.declare_exchange(name, "fanout")
    with pytest.raises(warren.UsageError):
        node.declare_exchange(name + "-2", "round")
    assert name in node.queues()
    with warren.attach(directory) as other:
        assert other.queue(name, create=False).durable


@pytest.mark.parametrize("wrong", ["", "a/b", "x" * 300, ".hidden", "nul\0", 5, None, "\udc80"])
def test_wrong_names(node: warren.Node, wrong: object) -> None:
    with pytest.raises(warren.InvalidName):
        node.queue(wrong)  # type: ignore[arg-type]
    with pytest.raises(warren.UsageError):
        node.declare_exchange(wrong, "fanout") if wrong != "" else node.queue("")  # type: ignore[arg-type]


def test_unknown_queues(node: warren.Node, name: str) -> None:
    with pytest.raises(warren.QueueNotFound, match=name):
        node.queue(name, create=False)
    with pytest.raises(warren.QueueNotFound):
        node.delete_queue(name)
    with pytest.raises(warren.QueueNotFound):
        node.bind(name, "amq.topic", "k")


def test_a_deleted_queue(node: warren.Node, directory: Path, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"x"] * 10)
    with warren.attach(directory) as other:
        other.delete_queue(name)
    for use in (lambda: queue.put(b"x"), lambda: queue.get(timeout=1), queue.stats, queue.purge):
        with pytest.raises(warren.QueueNotFound):
            use()
    node.queue(name)
    assert queue.depth() == 0, "a queue declared anew is another one"
    queue.put(b"new")
    assert queue.get(timeout=5).body == b"new"


def test_purge_and_browse(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"%d" % n for n in range(1200)])
    held = queue.get(timeout=5)
    assert [message.body for message in queue.browse(3)] == [b"1", b"2", b"3"]
    assert len(queue.browse(5000)) == 1199
    assert sum(batch.num_rows for batch in queue.browse_arrow()) == 1199
    for settle in (
        lambda shown: shown.ack(),
        lambda shown: shown.nack(),
        lambda shown: shown.nack(delay=1),
        lambda shown: shown.reject(),
        lambda shown: queue.ack([held, shown]),
        lambda shown: shown.__enter__(),
    ):
        with pytest.raises(warren.UsageError, match="only looked at"):
            settle(queue.browse(1)[0])
    assert queue.purge() == 1199
    assert queue.depth() == 0
    held.nack()
    assert queue.get(timeout=5).body == b"0"


def test_a_look_leaves_out_what_has_expired(node: warren.Node, name: str) -> None:
    """Behind a message that does not expire they stay until that has gone; more of them than one answer looks at."""
    queue = node.queue(name)
    queue.put(b"head")
    queue.put_many([b"late"] * 20_000, ttl=0, durability="none")
    queue.put(b"not yet", delay=3600)
    queue.put_many([b"next", b"tail"], ttl=3600)
    assert [message.body for message in queue.browse(1)] == [b"head"]
    assert [message.body for message in queue.browse()] == [b"head", b"next", b"tail"]
    assert sum(batch.num_rows for batch in queue.browse_arrow()) == 3
    head = queue.get(timeout=10)
    assert [message.body for message in queue.browse()] == [b"next", b"tail"]
    head.nack()
    wait_until(lambda: [message.body for message in queue.browse()] == [b"head", b"next", b"tail"], 10)


def test_a_look_follows_the_order_of_publication(node: warren.Node, name: str) -> None:
    queue = node.queue(name, max_priority=9)
    queue.put_many([b"plain", b"urgent"], priority=[0, 9])
    assert [message.body for message in queue.browse()] == [b"plain", b"urgent"]
    assert queue.get(timeout=10).body == b"urgent"


# ---- subscriptions ---------------------------------------------------------------------------------------------------


def test_claims_are_numbered_durable_and_repeatable(node: warren.Node, directory: Path, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"%d" % n for n in range(1500)], headers={"h": "v"})
    queue.put(bytes(20_000))
    subscription = queue.subscription("spark")
    assert subscription.range() == (0, 0)
    assert subscription.ready() == 1501
    assert subscription.claim(1000) == (0, 1000)
    assert [message.body for message in subscription.read(0, 1000)] == [b"%d" % n for n in range(1000)]
    assert subscription.claim(10_000) == (1000, 1501)
    assert subscription.claim(10) == (1501, 1501)
    assert len(subscription.read(1500, 1501)[0].body) == 20_000
    assert subscription.ack(500) == 500
    assert subscription.range() == (500, 1501)
    with warren.attach(directory) as other:
        again = other.queue(name).subscription("spark")
        assert again.incarnation == subscription.incarnation
        assert [message.delivery_tag for message in again.read(0, 600)] == list(range(500, 600))
        batch = again.read_arrow(500, 1501, max_bytes=3 * 50)
        assert batch.num_rows == 50
        assert batch.column("offset").to_pylist() == list(range(500, 550))
        assert batch.column("value")[0].as_py() == b"500"
        assert batch.column("headers")[0].as_py() == [{"key": "h", "value": b"v"}]
        assert again.release() == 500
        assert again.delete() == 1001
    assert queue.depth() == 1001
    assert queue.subscription("spark").incarnation != subscription.incarnation
    with pytest.raises(warren.UsageError):
        queue.subscription("a/b")


# ---- the message store -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transient", [False, True])
def test_the_store(node: warren.Node, transient: bool) -> None:
    store = node.store(transient=transient)
    ids = [store.new_id() for _ in range(100)]
    bodies = [os.urandom(n * 50) for n in range(100)]
    store.write(ids[0], bodies[0])
    store.write_many(ids[1:], bodies[1:])
    assert store.read_many(ids) == bodies
    assert store.contains(ids[5])
    store.write(ids[5], b"a second body of the same id only counts")
    store.remove(ids[5])
    store.barrier()
    assert store.read(ids[5]) == bodies[5]
    store.remove(ids)
    store.barrier()
    assert store.read_many(ids) == [None] * 100
    assert not store.contains(ids[5])
    store.write(ids[5], bodies[5])
    assert store.read(ids[5]) == bodies[5]
    store.remove([ids[5]])
    for wrong in (b"short", "x" * 16, 5):
        with pytest.raises((warren.UsageError, TypeError)):
            store.write(wrong, b"")  # type: ignore[arg-type]
        with pytest.raises((warren.UsageError, TypeError)):
            store.remove(wrong)  # type: ignore[arg-type]
    with pytest.raises(warren.UsageError):
        store.write_many(ids, [b""])


def test_the_store_reads_old_files(node: warren.Node) -> None:
    """More than the images in memory hold: the rest is read from the files."""
    store = node.store()
    ids = [store.new_id() for _ in range(60)]
    bodies = [os.urandom(100_000) for _ in ids]
    store.write_many(ids, bodies)
    assert store.read_many(ids) == bodies
    store.remove(ids)
    store.barrier()


def test_another_process_reads_what_is_under_way(node: warren.Node, directory: Path) -> None:
    store = node.store()
    with warren.attach(directory) as other:
        reader = other.store()
        for n in range(200):
            id = store.new_id()
            confirm = store.write(id, b"%d" % n * 1000, wait=False)
            assert reader.read(id) == b"%d" % n * 1000, "visible with the write, before any disk"
            assert confirm is not None
            confirm.wait(60)
            store.remove(id)


# ---- life ------------------------------------------------------------------------------------------------------------


def test_a_closed_node(directory: Path, name: str) -> None:
    node = warren.attach(directory, name="closing")
    queue, store = node.queue(name), node.store()
    queue.put(b"x")
    message = queue.get(timeout=5)
    late = queue.put(b"y", wait=False)
    assert {client["name"] for client in node.status()["clients"]} >= {"closing"}
    node.close()
    node.close()
    assert node.closed
    assert late is not None
    assert late.done(), "close waits for what was submitted"
    for use in (
        lambda: queue.put(b"x"),
        lambda: queue.get(timeout=1),
        lambda: node.queue(name),
        lambda: store.read(bytes(16)),
        node.status,
        message.ack,
    ):
        with pytest.raises((warren.ClosedError, warren.PeerLost)):
            use()


def test_closing_wakes_who_waits(directory: Path, name: str) -> None:
    node = warren.attach(directory)
    queue = node.queue(name)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            queue.get()
        except warren.Error as error:
            caught.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: queue.stats()["consumers"] == 1)
    node.close()
    for thread in threads:
        thread.join(10)
    assert [type(error) for error in caught] == [warren.ClosedError] * 3


def test_a_forked_child_is_a_client_of_its_own(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"parent", b"child"])
    mine = queue.get(timeout=5)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with pytest.raises(warren.PeerLost):
                mine.ack()
            theirs = queue.get(timeout=5)
            assert theirs.body == b"child"
            queue.put(b"from the child")
            theirs.ack()
            assert node.client_name.endswith(str(os.getpid()))
            node.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    mine.ack()
    assert queue.get(timeout=5).body == b"from the child"
    wait_until(lambda: queue.stats()["unacked"] == 1)


def test_attach_without_a_node(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(warren.NodeNotRunning, match="warren up"):
            warren.attach(path)
    assert issubclass(warren.NodeNotRunning, warren.PeerLost)
    (tmp_path / "node.json").write_text('{"format_version": 99}')
    with pytest.raises(warren.FormatVersionError, match="newer"):
        warren.attach(tmp_path)


def test_a_node_waits_for_who_started_it(tmp_path: Path) -> None:
    launch(tmp_path / "data", idle_exit=0.01, settings={"workers": 1})
    time.sleep(0.5)  # as on a busy machine
    with warren.attach(tmp_path / "data") as node:
        node.queue("q").put(b"x")
    wait_until(lambda: not NodeDirectory(tmp_path / "data").locked(), 20, what="its end, when the first one has left")


OPENER = """
import sys, warren
small = {"workers": 1, "arena_bytes": 1 << 20, "message_bytes_max": 100000}
with warren.open(sys.argv[1], timeout=400, idle_exit=0.5, **small) as node:
    node.queue("q").put(sys.argv[2].encode())
    print(node.ping()["pid"], flush=True)
    sys.stdin.readline()
"""


def test_ten_processes_open_one_node_and_it_goes_after_them(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER, str(directory), str(n)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for n in range(10)
    ]
    supervisors = {process.stdout.readline() for process in openers if process.stdout is not None}
    assert len(supervisors) == 1, supervisors
    with warren.attach(directory) as node:
        found = drain(node.queue("q"), 10)
        assert sorted(int(message.body) for message in found) == list(range(10))
        with pytest.raises(warren.UsageError, match="workers"):
            warren.open(directory, workers=2)
        with pytest.raises(warren.UsageError, match="no setting"):
            warren.open(directory, colour=2)
    for process in openers:
        process.communicate("\n", timeout=60)
        assert process.returncode == 0
    pid = int(supervisors.pop())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 20, what="the node to go")
    with pytest.raises(warren.NodeNotRunning):
        warren.attach(directory)
    with pytest.raises(warren.NodeNotRunning), ControlClient(directory) as control:
        control.call("ping")
