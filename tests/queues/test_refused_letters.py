"""Goal: overflow reject-publish-dlx refuses a message and makes a dead letter of it, once, whatever is killed.

Method: a node of its own; queues of one message; letters that have to wait because their exchange is missing.
"""

from collections.abc import Iterator

import pytest

import warren

from support.real_node import RealNode

pytestmark = pytest.mark.integration
WAIT = 30.0


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("refused") / "data", workers=1) as made:
        yield made


def letters_of(queue: warren.Queue, count: int) -> list[warren.Message]:
    """So many letters, acked, and there are no more."""
    found: list[warren.Message] = []
    while len(found) < count:
        got = queue.get_many(count - len(found), timeout=WAIT)
        assert got, f"{len(found)} of {count}"
        got[-1].ack(multiple=True)
        found += got
    with pytest.raises(warren.QueueEmpty):
        queue.get(timeout=0)
    return found


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_refused_is_a_dead_letter(own: RealNode, durable: bool) -> None:
    name = f"q-{durable}"
    with warren.attach(own.directory) as node:
        letters = node.queue(f"{name}-letters")
        queue = node.queue(
            name,
            durable,
            max_length=1,
            overflow="reject-publish-dlx",
            dead_letter_exchange="",
            dead_letter_routing_key=letters.name,
        )
        queue.put(b"kept")
        for number in range(3):
            with pytest.raises(warren.QueueFull):
                queue.put(b"%d" % number, ttl=0.001, delay=500 if number == 1 else None, headers={"n": number})
        with pytest.raises(warren.QueueFull) as refused:
            queue.put_many([b"3", b"4"])
        assert refused.value.refused == (0, 1)
        found = letters_of(letters, 5)
        assert sorted(item.body for item in found) == [b"0", b"1", b"2", b"3", b"4"]
        for item in found:
            (death,) = item.headers["x-death"]
            assert (death["queue"], death["reason"], death["count"]) == (name, "maxlen", 1)
        assert [item.body for item in queue.get_many(10, timeout=WAIT)] == [b"kept"]
        with pytest.raises(warren.UsageError, match="dead letter of each"):
            queue.put(b"x", block=True)


def test_letters_wait_over_a_kill(own: RealNode) -> None:
    """They wait in the journal; what they died of is known afterwards; their time to live is over, and they stay."""
    with warren.attach(own.directory) as node:
        queue = node.queue("killed", max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="later")
        letters = node.queue("later-letters")
        queue.put(b"kept")
        for number in range(10):
            with pytest.raises(warren.QueueFull):
                queue.put(b"%d" % number, ttl=0.01, priority=200)
        own.kill("worker-0")
        node.declare_exchange("later", "fanout")
        letters.bind("later")
        found = letters_of(letters, 10)
        assert [item.body for item in found] == [b"%d" % number for number in range(10)]
        assert {(item.headers["x-death"][0]["reason"], item.priority) for item in found} == {("maxlen", 200)}


def test_it_wants_a_place_for_the_letters(own: RealNode) -> None:
    with (
        warren.attach(own.directory) as node,
        pytest.raises(warren.UsageError, match="without dead_letter_exchange"),
    ):
        node.queue("nowhere", max_length=1, overflow="reject-publish-dlx")
