"""Goal: what is asked of a publish stands in its command, and what a worker answers reaches who asked, with its place.

Method: the server is played by hand; a small ring, so that records are used again and again.
"""

import inspect
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from warren.engine import _core
from warren.engine.catalog import metadata
from warren.engine.errors import QueueFull, QueueNotFound, StoreError, UsageError
from warren.engine.kernel.protocol import PROTOCOL
from warren.workers.client.publish import PLAIN, Publish, publish_options
from warren.workers.faces.node import Node
from warren.workers.faces.queues import Queue

from support.fake_server import WORKER, FakeNode

NONE, SYNCED = _core.LEVEL_NONE, _core.LEVEL_SYNCED
OK, NO, ERROR = (PROTOCOL[f"RESULT_{name}"] for name in ("OK", "NO", "ERROR"))
REFUSED, DUPLICATE = PROTOCOL["RESULT_REFUSED"], PROTOCOL["RESULT_DUPLICATE"]
KEYED, PERSISTENT = PROTOCOL["FLAG_DEDUPLICATE"], PROTOCOL["FLAG_PERSISTENT"]
KEY = bytes(range(16))


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def handle(node: FakeNode) -> _core.QueueHandle:
    return _core.QueueHandle(node.client, WORKER, 17, "owner", _core.Delivery)


def test_options_stand_in_the_command(node: FakeNode, handle: _core.QueueHandle) -> None:
    handle.put(b"body", SYNCED, b"meta", None, False, (1234 | 7 << 56, 999, KEY, False))
    handle.put(b"body", SYNCED, None, None, False, (0, 0, None, True))
    handle.put(b"body", SYNCED, None, None, False, None)
    full, plain, none = node.commands(WORKER)
    assert (full["count"], full["tag"]) == (1234 | 7 << 56, 999)
    assert full["blob"] == KEY + b"metabody"
    assert full["meta_length"] == 4
    assert full["flags"] & KEYED
    assert not full["flags"] & PERSISTENT
    for record in (plain, none):
        assert (record["count"], record["tag"], record["blob"]) == (0, 0, b"body")
        assert record["flags"] & (PERSISTENT | KEYED) == PERSISTENT


def test_options_of_a_batch(node: FakeNode, handle: _core.QueueHandle) -> None:
    handle.put_many([b"a", b"b"], NONE, None, None, False, (5, 6, None, True))
    handle.put_many([b"c", b"d"], NONE, None, None, False, [None, (7, 8, KEY, True)])
    found = [(item["count"], item["tag"], item["blob"]) for item in node.commands(WORKER)]
    assert found == [(5, 6, b"a"), (5, 6, b"b"), (0, 0, b"c"), (7, 8, KEY + b"d")]
    tail = node.link(WORKER, "tail")
    for wrong in ((1, 2, None), (1, 2, b"short", True), (-1, 2, None, True), (1, "2", None, True)):
        for options in (wrong, [None, wrong]):
            with pytest.raises((TypeError, OverflowError)):
                handle.put_many([b"a", b"b"], NONE, None, None, False, options)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        handle.put_many([b"a", b"b"], NONE, None, None, False, [None])
    assert node.link(WORKER, "tail") == tail, "nothing was sent"


@pytest.mark.parametrize(
    ("result", "error"), [(REFUSED, QueueFull), (NO, QueueNotFound), (ERROR, StoreError), (DUPLICATE, None), (OK, None)]
)
def test_the_answer_to_one_message(
    node: FakeNode, handle: _core.QueueHandle, result: int, error: type[Exception] | None
) -> None:
    confirm = handle.put(b"x", NONE, None, None, False)
    after = handle.put(b"y", NONE, None, None, False)
    assert confirm is not None
    assert after is not None
    assert not confirm.duplicate
    node.result(WORKER, 0, result)
    node.result(WORKER, 1, OK)
    node.finish(WORKER)
    for _again in range(2):
        if error is None:
            confirm.wait(1)
        else:
            with pytest.raises(error):
                confirm.wait(1)
        assert type(confirm.exception(1)) is (error or type(None))
    assert confirm.duplicate is (result == DUPLICATE)
    after.wait(60)
    node.client.end(None)
    assert type(confirm.exception(1)) is (error or type(None)), "it outlives the attachment"


def test_every_refused_message_of_a_batch_is_named(node: FakeNode) -> None:
    """Batches over two workers and many turns of the ring; some messages go to both."""
    random.seed(4711)
    both, first, second = (
        _core.Route(targets)
        for targets in ([(WORKER, [1, 2]), (WORKER + 1, [3])], [(WORKER, [1])], [(WORKER + 1, [3])])
    )
    served = {WORKER: 0, WORKER + 1: 0}
    where: dict[tuple[int, int], tuple[int, int]] = {}
    wanted: list[set[int]] = []
    confirms: list[Any] = []

    def serve() -> None:
        for server in served:
            for sequence in range(served[server], node.link(server, "tail")):
                batch, index = where[server, sequence]
                refused = batch % 3 == 0 and random.random() < 0.2
                node.result(server, sequence, REFUSED if refused else random.choice((OK, OK, DUPLICATE)))
                if refused:
                    wanted[batch].add(index)
            served[server] = node.link(server, "tail")
            node.finish(server)

    for batch in range(40):
        routes = [random.choice((both, first, second)) for _item in range(random.randrange(1, 30))]
        at = {server: node.link(server, "tail") for server in served}
        for index, route in enumerate(routes):
            for server in served:
                if route is both or route is (first, second)[server - WORKER]:
                    where[server, at[server]] = (batch, index)
                    at[server] += 1
        wanted.append(set())
        confirms.append(node.client.publish_many(routes, [b"x"] * len(routes), NONE, None, 5.0, False))
        if random.random() < 0.6 or max(at.values()) - min(served.values()) > 30:
            serve()
    serve()
    assert any(wanted)
    for confirm, refused in zip(confirms, wanted, strict=True):
        error = confirm.exception(1)
        if refused:
            assert isinstance(error, QueueFull)
            assert error.refused == tuple(sorted(refused))
            assert f"{len(refused)} of" in str(error)
        else:
            assert error is None


# ---- the words -------------------------------------------------------------------------------------------------------


def test_times_are_absolute_milliseconds() -> None:
    assert metadata.options(now_ms=1000) is None
    assert metadata.options(ttl=0, now_ms=1000) == (1000, 0, None, True)
    assert metadata.options(priority=9, ttl=1.5, delay=10, now_ms=1000) == (12501 | 9 << 56, 11001, None, True)
    assert metadata.options(persistent=False, now_ms=1000) == (0, 0, None, False)
    found = metadata.options(message_id="ä")
    assert found is not None
    assert found[2] == metadata.key_of("ä".encode())
    assert len(metadata.key_of(b"x")) == 16
    assert metadata.key_of("a") != metadata.key_of("b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 10},
        {"priority": -1},
        {"priority": True},
        {"priority": 1.0},
        {"ttl": -1},
        {"ttl": float("nan")},
        {"ttl": "5"},
        {"delay": 1e13},
        {"delay": -0.5},
        {"message_id": ""},
        {"message_id": 5},
        {"persistent": 1},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        metadata.options(**wrong)


def test_options_for_each() -> None:
    assert metadata.options_each(3, 0, None, None, None, True) is None
    assert metadata.options_each(2, 4, None, None, None, True) == (4 << 56, 0, None, True)
    assert metadata.options_each(2, [4, 0], None, None, None, True) == [(4 << 56, 0, None, True), None]
    with pytest.raises(UsageError, match="priority: 2 values for 3"):
        metadata.options_each(3, [4, 0], None, None, None, True)
    with pytest.raises(UsageError, match="message_id"):
        metadata.options_each(2, 0, None, None, "same", True)


@pytest.mark.parametrize("face", [Queue.put, Queue.put_many, Node.publish, Node.publish_many])
def test_every_face_has_every_option(face: Callable[..., Any]) -> None:
    """An option that one face lacks, or has with another default, would be silently plain there."""
    given = inspect.signature(face).parameters
    wanted = {field.name: field.default for field in msgspec.structs.fields(Publish)}
    assert {name: given[name].default for name in wanted if name in given} == wanted


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(Publish)])
def test_only_a_publish_that_says_nothing_is_the_plain_one(name: str) -> None:
    plain: dict[str, Any] = msgspec.structs.asdict(PLAIN)
    assert publish_options(**plain) is PLAIN
    said = publish_options(**(plain | {name: False}))  # also what equals a default
    assert said is not PLAIN
    assert msgspec.structs.asdict(said) == plain | {name: False}


def test_parts_of_many() -> None:
    said = Publish(headers=[{"a": 1}, None, {"b": 2}], priority=(1, 2, 3), ttl=5)
    said.check_lengths(3)
    assert Publish(**said.part(1, 3)) == Publish(headers=[None, {"b": 2}], priority=(2, 3), ttl=5)
    with pytest.raises(UsageError, match="priority: 3 for 2"):
        Publish(priority=(1, 2, 3)).check_lengths(2)
    assert not said.is_same
    assert Publish(headers={"a": 1}, ttl=[1]).is_same
    assert said.told_each(3) == [({"a": 1}, None, None), (None, None, None), ({"b": 2}, None, None)]


def test_metadata_of_before_and_after() -> None:
    """Three elements are what a version without properties wrote, and what is written without them."""
    plain = metadata.encode("x", "k", {"a": 1})
    assert plain == b"\x93\xa1x\xa1k\x81\xa1a\x01"
    assert metadata.decode(plain).properties is None
    found = metadata.decode(metadata.encode("x", "k", None, {"content_type": "text/plain", "type": None}, "id"))
    assert (found.headers, found.properties) == (None, {"content_type": "text/plain", "message_id": "id"})
    assert metadata.decode(b"\x95\xa1x\xa1k\xc0\xc0\x07").routing_key == "k", "a later version may add elements"
    for wrong in ({"colour": "red"}, {"type": 5}, {"timestamp": "now"}, ["type"]):
        with pytest.raises(UsageError):
            metadata.encode("x", "k", None, wrong)


LONE = "\ud800"


@pytest.mark.parametrize(
    "arguments",
    [
        {"headers": {"a": LONE}},
        {"headers": {LONE: 1}},
        {"headers": {"a": [{"b": f"x{LONE}"}]}},
        {"properties": {"reply_to": LONE}},
        {"message_id": LONE},
    ],
)
def test_text_that_is_not_utf8_is_refused_in_words(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="lone surrogates"):
        metadata.encode("x", "k", **arguments)


def test_headers_nested_without_end_are_refused_in_words() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="headers must be made of"):
        metadata.encode("x", "k", {"a": endless})


def test_a_request_that_is_not_utf8_is_refused_in_words() -> None:
    from warren.workers.process import control

    for request in ({"op": LONE}, {"op": "bind", "arguments": {"a": LONE}}, {LONE: 1}):
        with pytest.raises(UsageError, match="lone surrogates"):
            control.encode(request)
    with pytest.raises(UsageError, match="cannot be sent"):
        control.encode({"op": "declare_queue", "arguments": {"message_ttl": object()}})
