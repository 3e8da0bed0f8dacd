"""Goal: put(block=True) of a queue that refuses what is above its maximum waits for a place, and stores a message once.

Method: a real node; the place comes from another thread or client, or never; how often a full queue was tried is told
by its worker, which counts what it refuses.
"""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio
from warren.workers.faces import full

from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
FULL: dict[str, Any] = {"max_length": 2, "overflow": "reject-publish"}


def refused(node: warren.Node, name: str) -> int:
    (row,) = (row for row in node.status()["queues"] if row["name"] == name)
    return int(row["refused"])


def test_a_put_waits_for_a_place(node: warren.Node, directory: Path, name: str) -> None:
    queue = node.queue(name, **FULL)
    queue.put_many([b"1", b"2"])
    putting = threading.Thread(target=queue.put, args=(b"3",), kwargs={"block": True, "headers": {"n": 3}})
    putting.start()
    wait_until(lambda: refused(node, name) >= 1, 30, what="the put was refused once")
    putting.join(0.05)
    assert putting.is_alive()
    with warren.attach(directory) as other:
        message = other.queue(name).get(timeout=5)
        putting.join(60)
        assert not putting.is_alive()
        message.ack()
    found = [queue.get(timeout=5), queue.get(timeout=5)]
    assert [message.body for message in found] == [b"2", b"3"]
    assert found[1].headers == {"n": 3}
    queue.ack(found)
    queue.put(b"4", block=True)  # there is room: as without
    assert queue.get(timeout=5).body == b"4"


def test_when_no_place_comes_it_is_full(node: warren.Node, name: str) -> None:
    queue = node.queue(name, **FULL)
    queue.put_many([b"1", b"2"])
    with pytest.raises(warren.QueueFull, match=f"queue '{name}' .max_length=2.") as told:
        queue.put(b"3", block=True, timeout=patience())
    with pytest.raises(warren.QueueFull) as at_once:
        queue.put(b"3")
    assert str(told.value) == str(at_once.value)
    with pytest.raises(warren.UsageError, match="wait=False"):
        queue.put(b"3", block=True, wait=False)
    with pytest.raises(warren.UsageError, match="timeout must be"):
        queue.put(b"3", block=True, timeout=-1)
    wait_until(lambda: queue.depth() == 2)


def test_a_full_queue_is_looked_at_and_not_sent_to(
    node: warren.Node, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full, "TRY_S", 1e6)
    queue, tasks = node.queue(name, **FULL), node.work_queue(f"{name}-tasks", 1)
    queue.put_many([b"1", b"2"])
    tasks.put(b"1")
    wait_until(lambda: queue.depth() == 2)
    wait_until(tasks.full)
    puts = [
        threading.Thread(target=queue.put, args=(b"3",), kwargs={"block": True}),
        threading.Thread(target=tasks.put, args=(b"2",)),
    ]
    for put in puts:
        put.start()
    for put in puts:
        put.join(patience())
        assert put.is_alive()
    # at first the counts may be older than the last put
    assert refused(node, name) <= 3
    assert refused(node, f"{name}-tasks") <= 3
    assert queue.get(timeout=5).body == b"1"
    assert tasks.get(timeout=5) == b"1"
    for put in puts:
        put.join(60)
        assert not put.is_alive()
    assert [queue.get(timeout=5).body for _number in range(2)] == [b"2", b"3"]
    assert tasks.get(timeout=5) == b"2"


def test_a_maximum_of_bytes_is_waited_for(node: warren.Node, name: str) -> None:
    queue = node.queue(name, max_length_bytes=100, overflow="reject-publish")
    queue.put(b"x" * 80)
    putting = threading.Thread(target=queue.put, args=(b"y" * 50,), kwargs={"block": True})
    putting.start()
    wait_until(lambda: refused(node, name) >= 2, 30, what="the put is tried")
    queue.get(timeout=5).ack()
    putting.join(60)
    assert not putting.is_alive()
    assert queue.get(timeout=5).body == b"y" * 50


def test_many_wait_and_each_message_is_stored_once(node: warren.Node, name: str) -> None:
    queue = node.queue(name, max_length=3, overflow="reject-publish", durable=False)

    def produce(who: int) -> None:
        for number in range(40):
            queue.put(b"%d %d" % (who, number), block=True)

    threads = [threading.Thread(target=produce, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    found = []
    while len(found) < 160:
        with queue.get(timeout=60) as message:
            found.append(tuple(map(int, message.body.split())))
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [(who, number) for who in range(4) for number in range(40)]
    for who in range(4):
        assert [number for one, number in found if one == who] == list(range(40))


def test_a_task_waits_for_a_place(node: warren.Node, directory: Path, name: str) -> None:
    """And the event loop goes on meanwhile."""

    async def main() -> None:
        async with warren.aio.attach(directory) as mine:
            queue = await mine.queue(name, **FULL)
            await queue.put_many([b"1", b"2"])
            with pytest.raises(warren.QueueFull, match="max_length=2"):
                await queue.put(b"3", block=True, timeout=patience())
            with pytest.raises(warren.UsageError, match="wait=False"):
                await queue.put(b"3", block=True, wait=False)
            puts = [asyncio.create_task(queue.put(b"%d" % number, block=True)) for number in (3, 4, 5)]
            await asyncio.wait(puts, timeout=0.2)
            assert not any(put.done() for put in puts)
            puts.pop().cancel()
            bodies = []
            for _number in range(4):
                async with await queue.get(timeout=30) as message:
                    bodies.append(message.body)
            await asyncio.gather(*puts)
            assert bodies[:2] == [b"1", b"2"]
            assert sorted(bodies[2:]) == [b"3", b"4"]

    asyncio.run(main())
    wait_until(lambda: node.queue(name).depth() == 0)
