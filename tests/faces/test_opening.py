"""Goal: a queue that exists is opened by its name alone; where more is said and differs, the error says what.

Method: a real node; one program declares, others open, also at the same time, blocking and in asyncio.
"""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio
from warren.workers.client.client import Client

pytestmark = pytest.mark.integration


def test_a_name_is_enough(node: warren.Node, directory: Path, name: str) -> None:
    made = node.queue(name, durable=False, max_length=5, message_ttl=60)
    made.put(b"here")
    with warren.attach(directory) as other:
        found = other.queue(name)
        assert not found.durable
        found.put(b"and here")
        assert other.queue(name, create=False) is found
        assert [message.body for message in made.get_many(5, timeout=5)] == [b"here", b"and here"]

    async def opened() -> None:
        async with warren.aio.attach(directory) as third:
            queue = await third.queue(name)
            assert not queue.durable
            await queue.put(b"from asyncio")
            assert await third.declare_queues([name, f"{name}-new"]) == [f"{name}-new"]
            assert (await third.queue(f"{name}-new")).durable

    asyncio.run(opened())
    assert made.get(timeout=5).body == b"from asyncio"
    rows = {row["name"]: row["arguments"] for row in node.status()["queues"]}
    assert (rows[name], rows[f"{name}-new"]) == ({"max_length": 5, "message_ttl": 60.0}, {})


def test_what_differs_is_said(node: warren.Node, name: str) -> None:
    node.queue(name, max_length=5, max_priority=3)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"durable": False}, "durable, not transient; max_length=5, not without max_length"),
        ({"max_length": 6, "max_priority": 3}, "differs: max_length=5, not max_length=6: open"),
        ({"max_length": 5, "max_priority": 3, "message_ttl": 1}, "differs: without message_ttl, not message_ttl=1.0:"),
        ({"overflow": "drop-head"}, "max_length=5, not without max_length"),
    ]
    for wanted, said in cases:
        with pytest.raises(warren.DeclarationMismatch, match="create=False") as told:
            node.queue(name, **wanted)
        assert said in str(told.value)
        with pytest.raises(warren.DeclarationMismatch):
            node.declare_queues([f"{name}-new", name], **wanted)
    assert f"{name}-new" not in node.queues()
    node.queue(name, max_length=5, max_priority=3, durable=True)
    node.queue(name, max_length=99, create=False)


def test_a_work_queue_has_the_size_that_it_was_made_with(node: warren.Node, directory: Path, name: str) -> None:
    made = node.work_queue(name, maxsize=2, serializer="json")
    made.put(1)
    with warren.attach(directory) as other:
        found = other.work_queue(name, serializer="json")
        assert (found.maxsize, found.full()) == (2, False)
        found.put_nowait(2)
        assert made.full()
        with pytest.raises(warren.QueueFull):
            found.put_nowait(3)
        with pytest.raises(warren.DeclarationMismatch, match="max_length=2, not max_length=3"):
            other.work_queue(name, maxsize=3)


def test_opening_counts_as_a_use(node: warren.Node, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that expires is asked for, so that the supervisor notes it; of others nothing is asked."""
    node.queue(f"{name}-short", expires=60.0)
    node.queue(f"{name}-long")
    asked: list[tuple[str, object]] = []
    control = Client.control

    def noted(self: Client, op: str, **fields: Any) -> dict[str, Any]:
        asked.append((op, fields.get("name")))
        return control(self, op, **fields)

    monkeypatch.setattr(Client, "control", noted)
    node.queue(f"{name}-long")
    assert asked == []
    node.queue(f"{name}-short")
    assert asked == [("declare_queue", f"{name}-short")]
    monkeypatch.undo()
    (row,) = (row for row in node.status()["queues"] if row["name"] == f"{name}-short")
    assert row["arguments"] == {"expires": 60.0}


def test_whoever_is_later_opens_what_the_first_has_made(node: warren.Node, directory: Path, name: str) -> None:
    """Clients that say nothing of a queue never get an error, whoever comes first."""
    begin = threading.Barrier(4)
    errors: list[BaseException] = []
    refused: list[str] = []

    def use(arguments: dict[str, Any]) -> None:
        try:
            with warren.attach(directory) as client:
                for number in range(20):
                    begin.wait(120)
                    try:
                        client.queue(f"{name}-{number}", **arguments).put(b"here")
                    except warren.DeclarationMismatch:
                        if not arguments:
                            raise
                        refused.append(f"{name}-{number}")
        except BaseException as error:  # noqa: BLE001 - seen below
            errors.append(error)
            begin.abort()

    wanted: list[dict[str, Any]] = [{}, {}, {}, {"max_length": 7}]
    threads = [threading.Thread(target=use, args=(arguments,)) for arguments in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert errors == []
    rows = {row["name"]: row for row in node.status()["queues"]}
    for queue in (f"{name}-{number}" for number in range(20)):
        found = node.queue(queue).get_many(10, timeout=5)
        assert len(found) == (3 if queue in refused else 4)
        assert rows[queue]["arguments"] == ({} if queue in refused else {"max_length": 7})


def test_a_queue_of_a_client_that_is_gone_is_free(node: warren.Node, directory: Path, name: str) -> None:
    with warren.attach(directory) as owner:
        owner.queue(name, exclusive=True)
        with pytest.raises(warren.ResourceLocked):
            node.queue(name)
        assert owner.queue(name) is owner.queue(name, exclusive=True)
    assert node.queue(name).durable


def test_a_node_of_asyncio_that_was_not_awaited_says_so(directory: Path) -> None:
    for opening in (warren.aio.attach(directory), warren.aio.open(directory)):
        forgotten: Any = opening
        with pytest.raises(AttributeError, match="no node yet, and has no 'queue': write `async with"):
            forgotten.queue("q")


def test_the_help_of_a_message_names_all_it_has() -> None:
    told = warren.Message.__doc__ or ""
    names = [name for name in dir(warren.Message) if not name.startswith("_")]
    data = [name for name in names if not callable(getattr(warren.Message, name))]
    elsewhere = {"meta", "queue", "content_type", "correlation_id", "reply_to", "timestamp", "app_id", "type"}
    assert [name for name in data if f"`{name}`" not in told and name not in elsewhere] == []
