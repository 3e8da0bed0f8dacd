"""Goal: exchanges behind exchanges, internal and auto_delete ones, by the blocking interface and asyncio's.

Method: a running node; what is published comes out where the bindings lead, also after they changed under a publisher
that had asked for the way before.
"""

import asyncio
from pathlib import Path

import pytest

import warren
import warren.aio

from support.command_line import warren as run

pytestmark = pytest.mark.integration
WAIT = 30.0


def test_a_binding_to_another_exchange_is_followed_at_once(node: warren.Node, name: str) -> None:
    """A way that was found before is not used any more: by the client that changed it, and by another one."""
    node.declare_exchange(f"{name}-in", "topic")
    node.declare_exchange(f"{name}-out", "direct")
    queue = node.queue(name)
    queue.bind(f"{name}-out", "a.b")
    with pytest.raises(warren.Unroutable):
        node.publish(b"", f"{name}-in", "a.b", mandatory=True)
    with warren.attach(node.directory) as other:
        with pytest.raises(warren.Unroutable):
            other.publish(b"", f"{name}-in", "a.b", mandatory=True)
        node.bind_exchange(f"{name}-out", f"{name}-in", "a.*")
        node.bind_exchange(f"{name}-in", f"{name}-out", "a.b")
        for publisher in (node, other):
            publisher.publish(b"x", f"{name}-in", "a.b", mandatory=True)
        got = queue.get_many(4, timeout=WAIT)
        while len(got) < 2:
            got += queue.get_many(4, timeout=WAIT)
        assert [(message.exchange, message.routing_key) for message in got] == [(f"{name}-in", "a.b")] * 2
        got[-1].ack(multiple=True)
        assert node.unbind_exchange(f"{name}-out", f"{name}-in", "a.*")
        assert not node.unbind_exchange(f"{name}-out", f"{name}-in", "a.*")
        with pytest.raises(warren.Unroutable):
            other.publish(b"", f"{name}-in", "a.b", mandatory=True)


def test_headers_are_matched_behind_another_exchange(node: warren.Node, name: str) -> None:
    node.declare_exchange(f"{name}-in", "fanout")
    node.declare_exchange(f"{name}-by", "headers")
    node.bind_exchange(f"{name}-by", f"{name}-in")
    queue = node.queue(name)
    queue.bind(f"{name}-by", "", {"kind": 1})
    with pytest.raises(warren.Unroutable, match="these headers"):
        node.publish(b"", f"{name}-in", "k", headers={"kind": 2}, mandatory=True)
    node.publish(b"one", f"{name}-in", "k", headers={"kind": 1}, mandatory=True)
    node.publish_many([b"two", b"three"], f"{name}-in", "k", headers=[{"kind": 3}, {"kind": 1}])
    assert [queue.get(timeout=WAIT).body for _ in range(2)] == [b"one", b"three"]


def test_an_internal_exchange_takes_no_publishes(node: warren.Node, name: str) -> None:
    """What exchanges send, and dead letters, it does take."""
    inner = f"{name}-inner"
    node.declare_exchange(inner, "fanout", internal=True)
    letters = node.queue(f"{name}-letters")
    letters.bind(inner)
    for publish in (
        lambda: node.publish(b"", inner, "k"),
        lambda: node.publish_many([b"", b""], inner, "k"),
        lambda: node.publish(b"", "amq.rabbitmq.trace", "k"),
    ):
        with pytest.raises(warren.UsageError, match="internal"):
            publish()
    node.bind_exchange(inner, "amq.fanout")
    node.publish(b"by way of another", "amq.fanout", "k", mandatory=True)
    assert letters.get(timeout=WAIT).body == b"by way of another"
    node.unbind_exchange(inner, "amq.fanout")
    queue = node.queue(name, dead_letter_exchange=inner)
    queue.put(b"dead")
    queue.get(timeout=WAIT).reject()
    assert letters.get(timeout=WAIT).body == b"dead"


def test_an_exchange_goes_with_what_was_bound(node: warren.Node, name: str) -> None:
    node.declare_exchange(name, auto_delete=True)
    queue = node.queue(name)
    queue.bind(name, "k")
    with pytest.raises(warren.PreconditionFailed, match="in use"):
        node.delete_exchange(name, if_unused=True)
    node.publish(b"", name, "k", mandatory=True)
    queue.delete()
    with pytest.raises(warren.ExchangeNotFound):
        node.publish(b"", name, "k")
    node.declare_exchange(name, arguments={"n": 1})
    node.declare_exchange(name, arguments={"n": 1})
    with pytest.raises(warren.DeclarationMismatch, match="arguments"):
        node.declare_exchange(name)
    node.delete_exchange(name, if_unused=True)


def test_a_topic_is_reached_by_its_name(node: warren.Node, name: str) -> None:
    topic = node.topic(name, queues=1, by_name=True, origin={"x-queue-type": "stream"})
    node.publish(b"one", "", name, mandatory=True)
    assert [record.body for record in topic.read().records] == [b"one"]
    with pytest.raises(warren.DeclarationMismatch, match="by_name"):
        node.topic(name, by_name=False)
    assert node.topic(name, by_name=True).name == name
    topic.delete()
    with pytest.raises(warren.Unroutable):
        node.publish(b"", "", name, mandatory=True)


def test_asyncio_has_it_all(node: warren.Node, name: str) -> None:
    async def work() -> bytes:
        async with await warren.aio.attach(node.directory) as mine:
            await mine.declare_exchange(f"{name}-in", "fanout", arguments={"n": 1}, origin={"a": 1})
            await mine.declare_exchange(f"{name}-out", "direct", internal=True, auto_delete=True)
            await mine.bind_exchange(f"{name}-out", f"{name}-in")
            queue = await mine.queue(name, origin={"x-max-length": 5})
            await mine.bind(name, f"{name}-out", "k", {"n": [1]})
            await mine.publish(b"x", f"{name}-in", "k", mandatory=True)
            found = await queue.get(timeout=WAIT)
            assert await mine.unbind_exchange(f"{name}-out", f"{name}-in")
            await mine.delete_exchange(f"{name}-in", if_unused=True)
            return found.body

    assert asyncio.run(work()) == b"x"


def test_a_shell_binds_exchanges(directory: Path, node: warren.Node, name: str) -> None:
    inner = f"{name}-inner"
    run("exchange", "declare", directory, name, "--type", "fanout", "--auto-delete")
    run("exchange", "declare", directory, inner, "--internal")
    said = run("exchange", "bind", directory, inner, name, "a.b", "--argument", "n=1").stdout
    assert said == f"exchange {inner} is bound to exchange {name} with 'a.b' n=1\n"
    rows = {row["name"]: row for row in run("exchange", "list", directory, "--json").json()}
    assert rows[name]["exchange_bindings"] == [
        {"exchange": name, "destination": inner, "routing_key": "a.b", "arguments": {"n": 1}}
    ]
    assert (rows[name]["auto_delete"], rows[inner]["internal"]) == (True, True)
    assert f"exchange {inner} ('a.b' n=1)" in run("exchange", "list", directory).stdout
    said = run("exchange", "delete", directory, name, "--if-unused", code=2).stderr
    assert "in use (1 binding of exchanges" in said
    assert "is not bound" in run("exchange", "unbind", directory, inner, name, "a.b", code=2).stderr
    said = run("exchange", "unbind", directory, inner, name, "a.b", "--argument", "n=1").stdout
    assert said == f"exchange {inner} is no longer bound to exchange {name} with 'a.b' n=1\n"
    assert name not in {row["name"] for row in run("exchange", "list", directory, "--json").json()}, "auto_delete"
