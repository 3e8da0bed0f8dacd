"""Goal: what is asked of a publish stands in its command, and what a worker answers reaches who asked, with its place.

Method: the server is played by hand; a small ring, so that records are used again and again.
"""

import collections
import dataclasses
import datetime
import decimal
import enum
import inspect
import random
import types
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import numpy
import pytest

from warren.engine import _core
from warren.engine.catalog import metadata
from warren.engine.errors import MessageTooLarge, QueueFull, QueueNotFound, StoreError, UsageError
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.saying import shown
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
    return _core.QueueHandle(node.client, WORKER, 17, types.SimpleNamespace(name="q"), _core.Delivery)


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
    assert metadata.options(ttl=0, now_ms=1000) == (PROTOCOL["EXPIRES_AT_ONCE"], 0, None, True)
    assert metadata.options(priority=255, ttl=1.5, delay=10, now_ms=1000) == (12501 | 255 << 56, 11001, None, True)
    assert metadata.options(persistent=False, now_ms=1000) == (0, 0, None, False)
    found = metadata.options(message_id="ä")
    assert found is not None
    assert found[2] == metadata.key_of("ä".encode())
    assert len(metadata.key_of(b"x")) == 16
    assert metadata.key_of("a") != metadata.key_of("b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 256},
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
    said = Publish(headers=[{"a": 1}, None, {"b": 2}], priority=(1, 2, 3))
    whole = said.batch(3, "q")
    assert isinstance(whole.meta, list)
    assert whole.meta_bytes(3) == [len(metadata.encode("", "q", {"a": 1})), 0, len(metadata.encode("", "q", {"b": 2}))]
    some = whole.part(1, 3)
    assert some.options == [(2 << 56, 0, None, True), (3 << 56, 0, None, True)]
    assert some.meta == [None, metadata.encode("", "q", {"b": 2})]
    same = Publish(headers={"a": 1}, priority=4).batch(3, "q")
    assert same.part(1, 2) == same, "what is one for all stays so"
    assert same.meta_bytes(2) == [len(metadata.encode("", "q", {"a": 1}))] * 2
    assert PLAIN.batch(2, "q").meta_bytes(2) == [0, 0]
    with pytest.raises(UsageError, match="priority: 3 values for 2"):
        Publish(priority=(1, 2, 3)).batch(2, "q")
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
    assert metadata.decode(b"\x97\xa1x\xa1k\xc0\xc0\xc0\xc0\x07").routing_key == "k", "a later version may add elements"
    for wrong in ({"colour": "red"}, {"type": 5}, {"timestamp": "now"}, ["type"]):
        with pytest.raises(UsageError):
            metadata.encode("x", "k", None, wrong)


LONE = "\ud800"


@dataclasses.dataclass
class Point:
    x: int


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
    with pytest.raises(UsageError, match="header 'a' is nested too deeply"):
        metadata.encode("x", "k", {"a": endless})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"x"}, "header 'a' must be made of .* list and dict: set cannot be sent: give a list"),
        (frozenset("x"), "frozenset cannot be sent: give a list"),
        ((1, 2), "tuple cannot be sent: give a list"),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "datetime cannot be sent: give its isoformat"),
        (datetime.datetime(2026, 1, 1), "datetime cannot be sent: give its isoformat"),
        (datetime.date(2026, 1, 1), "date cannot be sent: give its isoformat"),
        (datetime.timedelta(1), r"timedelta cannot be sent: give its total_seconds\(\)"),
        (uuid.UUID(int=7), r"UUID cannot be sent: give its bytes, or str\(\) of it"),
        (decimal.Decimal("1.1"), r"Decimal cannot be sent: give str\(\) of it"),
        (enum.Enum("Plain", "X").X, "Plain cannot be sent: give its value"),  # type: ignore[attr-defined]
        (Point(1), r"Point cannot be sent: give dataclasses.asdict\(\) of it"),
        (numpy.int64(5), r"int64 cannot be sent: give its item\(\)"),
        (numpy.zeros(2), r"ndarray cannot be sent: give its tolist\(\)"),
        (msgspec.Raw(b"\x01"), "Raw cannot be sent"),
        (msgspec.msgpack.Ext(5, b"x"), "Ext cannot be sent"),
        ({1: 2}, "header 'a': keys of a dict must be str, not int: 1"),
        ([0, {"b": [(1,)]}], r"header 'a'\[1\]\['b'\]\[0\] must be made of .*: tuple cannot be sent"),
        ([{"b": {None: 1}}], r"header 'a'\[0\]\['b'\]: keys of a dict must be str, not NoneType"),
        ([[[[[[[{1}]]]]]]], r"deep in a header, at …\[0\]\[0\]\[0\]\[0\]\[0\] must be made of .*: set"),
        (memoryview(b"xyz")[::2], "header 'a' must be made of .*: memoryview: underlying buffer is not C-contiguous"),
    ],
    ids=lambda given: shown(given).partition(" at 0x")[0],
)
def test_what_would_come_back_as_something_else_is_refused(value: Any, words: str) -> None:
    """msgspec writes a set as a list, and more of that kind: who reads it would never know."""
    for headers in ({"a": value}, {"first": Text("x"), "a": value}):
        with pytest.raises(UsageError, match=words):
            metadata.encode("x", "k", headers)


def test_what_is_sent_comes_back_as_it_was() -> None:
    headers = {
        "none": None, "yes": True, "no": False, "least": -(1 << 63), "most": (1 << 64) - 1, "float": -0.5,
        "endless": float("inf"), "text": "ä\0", "bytes": b"\xff", "list": [1, [b"", {"a": None}], []],
        "dict": {"a": {"b": [True, 1, 1.0]}}, "": {},
    }  # fmt: skip
    found = metadata.decode(metadata.encode("x", "k", headers)).headers
    assert repr(found) == repr(headers), "values and types"
    found = metadata.decode(metadata.encode("x", "k", {"nan": [float("nan")]})).headers
    assert repr(found) == "{'nan': [nan]}"
    ordered = collections.OrderedDict(a=[Text("b")], c=types.MappingProxyType({"d": bytearray(b"e")}))
    assert metadata.decode(metadata.encode("x", "k", ordered)).headers == {"a": ["b"], "c": {"d": b"e"}}


class Text(str):
    """What is a str, and not of its class: of a library of names or paths, an enumeration."""


class Colour(enum.StrEnum):
    RED = "red"


def test_what_is_text_or_a_number_all_the_same_is_sent_as_it() -> None:
    packed = metadata.encode(
        "x",
        "k",
        {Text("a"): Text("b"), "c": Colour.RED, "f": numpy.float64(2.5)},
        {Text("type"): Text("t")},
        Text("id"),
    )
    found = metadata.decode(packed)
    assert found.headers == {"a": "b", "c": "red", "f": 2.5}
    assert found.properties == {"type": "t", "message_id": "id"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"headers": {"a": 1, "b": object()}}, "header 'b' must be made of None, bool, .*: object cannot be sent"),
        ({"headers": {"b": [1 << 64]}}, "header 'b': an int is sent if it lies from"),
        ({"headers": {7: 1}}, "header names must be str, not int: 7"),
        ({"properties": {"headers": {"a": 1}}}, "headers are no property: give them as headers="),
        ({"properties": {"colour": 1}}, "there is no property 'colour'"),
        ({"properties": {"type": 5}}, "property type must be str or bytes, not int"),
        ({"properties": {"timestamp": "now"}}, "property timestamp must be a finite number of seconds .*, not 'now'"),
        ({"properties": {"timestamp": float("nan")}}, "property timestamp must be a finite number .*, not nan"),
        ({"properties": {"reply_to": b"q"}}, "property reply_to must be a str, the name of a queue, not bytes"),
        ({"properties": {"app_id": LONE}}, "property app_id: text must be UTF-8"),
        ({"message_id": LONE}, "message_id: text must be UTF-8"),
    ],
    ids=lambda given: shown(given).partition(" at 0x")[0],
)
def test_what_cannot_be_sent_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        metadata.encode("x", "k", **arguments)
    assert caught.value.__context__ is None, "what msgspec said of it adds nothing"


@pytest.mark.parametrize(
    ("arguments", "largest"),
    [
        ({"headers": {"a": "x", "b": "x" * 70_000}}, "header 'b' alone takes 70007"),
        ({"headers": {"n" * 70_000: 1}}, "header 'nnn"),
        ({"properties": {"type": "x" * 70_000}, "headers": {"a": "x" * 1000}}, "property type alone"),
        ({"message_id": "x" * 70_000}, "message_id alone takes"),
        ({"message_id": b"x" * 70_000}, "message_id alone takes"),
    ],
    ids=["header", "name", "property", "id", "id in bytes"],
)
def test_metadata_that_is_too_large_names_its_largest_part(arguments: dict[str, Any], largest: str) -> None:
    with pytest.raises(MessageTooLarge, match=largest) as caught:
        metadata.encode("x", "k", **arguments)
    assert str(metadata.META_BYTES_MAX) in str(caught.value)
    assert len(metadata.encode("x", "k", {"a": "x" * 65_520})) <= metadata.META_BYTES_MAX


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ttl": 1e13}, "^ttl must not reach beyond the year 10889"),
        ({"delay": float("inf")}, "^delay must not reach beyond"),
        ({"ttl": 2.8e11}, "^ttl must not reach beyond"),
        ({"ttl": 2e11, "delay": 1e11}, "^ttl and delay must not reach beyond"),
        ({"ttl": float("nan")}, "ttl must be a number of seconds from 0 on, not nan"),
        ({"delay": -1}, "delay must be a number of seconds from 0 on, not -1"),
        ({"message_id": ""}, "message_id must be str or bytes, and not empty, not ''"),
    ],
    ids=repr,
)
def test_options_that_are_wrong_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        metadata.options(**arguments)


def test_durability_that_persistent_denies_is_named() -> None:
    for kept in (False, [False, False]):
        with pytest.raises(UsageError, match=r"persistent=False was given.*can only be 'none', not 'synced'"):
            Publish(persistent=kept).level("synced", True, "queue 'q' is transient")
    with pytest.raises(UsageError, match="queue 'q' is transient"):
        Publish(ttl=1).level("synced", False, "queue 'q' is transient")
    assert Publish(persistent=[False, True]).level("synced", True, "") == SYNCED


def test_a_request_that_is_not_utf8_is_refused_in_words() -> None:
    from warren.workers.process import control

    for request in ({"op": LONE}, {"op": "bind", "arguments": {"a": LONE}}, {LONE: 1}):
        with pytest.raises(UsageError, match="lone surrogates"):
            control.encode(request)
    with pytest.raises(UsageError, match="cannot be sent"):
        control.encode({"op": "declare_queue", "arguments": {"message_ttl": object()}})
