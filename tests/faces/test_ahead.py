"""Goal: what is delivered ahead is never in the way: of order after a nack, of other consumers, of a maximum length.

Method: hot loops of gets, which have messages delivered ahead, beside a second client that sees what is in the queue.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import warren
import warren.aio

pytestmark = pytest.mark.integration
COUNT = 200


@pytest.fixture
def other(directory: Path) -> Iterator[warren.Node]:
    with warren.attach(directory) as attached:
        yield attached


def warm_up(queue: warren.Queue, count: int) -> list[int]:
    """A hot loop of gets: its window grows."""
    found = []
    for _ in range(count):
        message = queue.get(timeout=5)
        found.append(int(message.body))
        message.ack()
    return found


def test_what_was_nacked_comes_next(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"%d" % n for n in range(COUNT)])
    assert warm_up(queue, 50) == list(range(50))
    for n in range(50, COUNT):
        message = queue.get(timeout=5)
        assert int(message.body) == n
        message.nack()
        again = queue.get(timeout=5)
        assert (int(again.body), again.redelivered) == (n, True)
        again.ack()


def test_many_that_were_nacked_come_next(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"%d" % n for n in range(COUNT)])
    for n in range(0, COUNT, 20):
        first = queue.get_many(20, timeout=5)
        assert [int(message.body) for message in first] == list(range(n, n + 20))
        queue.nack(first)
        again = queue.get_many(20, timeout=5)
        assert [int(message.body) for message in again] == list(range(n, n + 20))
        queue.ack(again)


@pytest.mark.parametrize("hot", [False, True])
def test_nothing_is_ahead_of_an_exact_get(node: warren.Node, other: warren.Node, name: str, hot: bool) -> None:
    mine, theirs = node.queue(name), other.queue(name)
    mine.put_many([b"%d" % n for n in range(COUNT)])
    begun = 50 if hot else 0
    warm_up(mine, begun)
    for n in range(begun, COUNT, 2):
        message = mine.get(timeout=5, ahead=False)
        assert int(message.body) == n
        message.ack()
        assert int(theirs.get(timeout=0, ahead=False).body) == n + 1


def test_the_call_of_a_get_is_a_simple_one(node: warren.Node, other: warren.Node, name: str) -> None:
    """Python calls functions with keyword-only parameters slowly: a tenth of what a loop of gets did."""
    assert warren.Queue.get.__code__.co_kwonlyargcount == 0
    mine, theirs = node.queue(name), other.queue(name)
    mine.put_many([b"1", b"2", b"3"])
    warm_up(mine, 1)
    assert mine.get(5, False).body == b"2"
    assert theirs.get(0, False).body == b"3"


@pytest.mark.parametrize("hot", [False, True])
def test_nothing_is_ahead_of_an_exact_get_many(node: warren.Node, other: warren.Node, name: str, hot: bool) -> None:
    mine, theirs = node.queue(name), other.queue(name)
    mine.put_many([b"%d" % n for n in range(100)])
    if hot:
        mine.nack(mine.get_many(30, timeout=5))
    found = mine.get_many(30, timeout=5, ahead=False)
    assert [int(message.body) for message in found] == list(range(30))
    rest = theirs.get_many(1000, timeout=0, ahead=False)
    assert [int(message.body) for message in rest] == list(range(30, 100))
    mine.put_many([b"late"] * 5)
    assert [message.body for message in theirs.get_many(1000, timeout=5, ahead=False)] == [b"late"] * 5


def test_an_exact_get_many_takes_no_more_than_is_there(node: warren.Node, other: warren.Node, name: str) -> None:
    mine, theirs = node.queue(name), other.queue(name)
    for _ in range(50):
        mine.put_many([b"1", b"2"])
        assert [message.body for message in mine.get_many(30, timeout=5, ahead=False)] == [b"1", b"2"]
        mine.put(b"3")
        assert theirs.get(timeout=0, ahead=False).body == b"3"


def test_asyncio_takes_no_more_than_it_waits_for_where_there_is_a_maximum(
    directory: Path, other: warren.Node, name: str
) -> None:
    theirs = other.queue(name, max_length=10, overflow="reject-publish")

    def fill() -> int:
        for count in range(100):
            try:
                theirs.put(b"x")
            except warren.QueueFull:
                return count
        raise AssertionError("there is no maximum")

    async def take() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name, max_length=10, overflow="reject-publish")
            assert fill() == 10
            for _ in range(10):
                for _ in range(6):
                    await (await queue.get(timeout=5)).ack()
                assert fill() == 6

    asyncio.run(take())


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
@pytest.mark.parametrize(
    "get",
    [
        lambda queue: [queue.get(timeout=5) for _ in range(6)],
        lambda queue: queue.get_many(6, timeout=5),
        lambda queue: queue.get_many(6, timeout=5, ahead=False),
    ],
)
def test_a_maximum_length_counts_what_nobody_has_got(
    node: warren.Node, other: warren.Node, name: str, overflow: str, get: Callable[[warren.Queue], list[warren.Message]]
) -> None:
    """However much is got in between, and in whatever way: beyond the maximum nothing is taken or kept."""
    mine, theirs = (
        node.queue(name, max_length=10, overflow=overflow),
        other.queue(name, max_length=10, overflow=overflow),
    )
    number, expected = 0, []
    for _ in range(20):
        for _ in range(16):
            try:
                theirs.put(b"%d" % number)
                expected.append(number)
            except warren.QueueFull:
                assert overflow == "reject-publish"
                assert len(expected) == 10
            number += 1
        if overflow == "drop-head":
            expected = expected[-10:]
        found = get(mine)
        assert [int(message.body) for message in found] == expected[:6]
        mine.ack(found)
        del expected[:6]
    assert [int(message.body) for message in theirs.get_many(100, timeout=5)] == expected
