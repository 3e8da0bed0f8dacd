"""Goal: a program that looks into its queue sees every message that nobody has received, also right after its gets.

Method: puts, gets and looks in one process, as a stranger tries it; loops, because what is delivered ahead is a matter
of moments.
"""

import threading

import pytest

import warren

from support.waiting import wait_until

pytestmark = pytest.mark.integration
ROUNDS = 200


def test_what_is_put_after_a_get_is_there(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    for number in range(ROUNDS):
        queue.put(b"%d" % number)
        queue.get(timeout=5).ack()
        queue.put(b"%d, again" % number)
        wait_until(lambda: queue.depth() == 1, what="the counters")  # a moment old, where nothing had to come back
        assert [message.body for message in queue.browse()] == [b"%d, again" % number]
        (batch,) = queue.browse_arrow()
        assert batch.column("value").to_pylist() == [b"%d, again" % number]
        assert queue.get(timeout=5, ahead=False).body == b"%d, again" % number


@pytest.mark.parametrize("durability", ["none", "written", "synced"])
def test_what_was_confirmed_is_counted(node: warren.Node, name: str, durability: warren.Durability) -> None:
    queue = node.queue(name)
    for number in range(1, ROUNDS + 1):
        queue.put_many([b"one", b"two", b"three"], durability=durability)
        assert queue.depth() == 3 * number


def test_a_new_queue_has_no_numbers_of_one_that_went(node: warren.Node, name: str) -> None:
    """It takes that one's place in shared memory."""
    limited = [node.queue(f"{name}-{number}", max_length=1, overflow="drop-head") for number in range(8)]
    for queue in limited:
        queue.put_many([b"x"] * 5)
        wait_until(lambda queue=queue: queue.stats()["dropped"] == 4, what="the counters")  # type: ignore[misc]
        queue.delete()
    plain = [node.queue(f"{name}-plain-{number}") for number in range(8)]
    for queue in plain:
        queue.put(b"x")
    assert [(queue.stats()["published"], queue.stats()["dropped"]) for queue in plain] == [(1, 0)] * 8


def test_what_lies_ahead_of_a_loop_of_gets_is_counted_and_stays_in_order(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"%d" % number for number in range(ROUNDS)])
    for number in range(ROUNDS):
        assert len(queue) >= ROUNDS - number, "counters may be a moment old, and then count too many"
        message = queue.get(timeout=5)
        assert (int(message.body), message.redelivered) == (number, False)
        message.ack()
    wait_until(lambda: queue.depth() == 0, what="the counters")


def test_a_loop_that_consumes_keeps_what_lies_ahead(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"%d" % number for number in range(ROUNDS)])
    found = []
    for message in queue.consume(prefetch=20, timeout=5):
        found.append(int(message.body))
        wait_until(lambda: queue.depth() <= ROUNDS - len(found), what="the counters")  # a moment old
        assert len(queue.browse()) <= ROUNDS - len(found)
        message.ack()
        if len(found) == ROUNDS:
            break
    assert found == list(range(ROUNDS))


def test_looking_beside_threads_that_get_loses_and_doubles_nothing(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    found: list[int] = []
    done = threading.Event()

    def take() -> None:
        while not done.is_set():
            for message in queue.get_many(1, timeout=0.01):
                found.append(int(message.body))
                message.ack()

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(ROUNDS):
            queue.put(b"%d" % number)
            assert queue.depth() >= 0
            queue.browse()
        while queue.depth():
            pass
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    found += [int(message.body) for message in queue.get_many(ROUNDS, timeout=0)]
    assert sorted(found) == list(range(ROUNDS))


def test_the_help_of_stats_names_every_counter(node: warren.Node, name: str) -> None:
    told = warren.Queue.stats.__doc__ or ""
    assert [counter for counter in node.queue(name).stats() if f"`{counter}`" not in told] == []
