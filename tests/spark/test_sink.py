"""The sink without Spark: which rows can be written, and what of them comes back from queues and topics."""

import pickle
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import warren
from warren.workers.process.control import ControlClient
from warren.workers.spark import sink
from warren.workers.spark.schema import row_schema
from warren.workers.spark.sink_options import SinkOptions
from warren.workers.spark.sink_schema import check_sink_schema

TO_QUEUE = {"path": "/data", "queue": "results"}
TO_EXCHANGE = {"path": "/data", "exchange": "events"}
TO_TOPIC = {"path": "/data", "topic": "flights"}
TO_EACH = {"path": "/data"}
PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MICROS = pa.timestamp("us", "UTC")
BORN = datetime(2013, 1, 1, 5, 17, 0, 123000, UTC)


def rows(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (rows(value=BinaryType()), TO_QUEUE),
        (rows(VALUE=StringType(), Key=StringType()), TO_EXCHANGE),
        (rows(value=StringType()), {**TO_EXCHANGE, "ROUTINGKEY": "a.b"}),
        (rows(value=BinaryType(), headers=ArrayType(PAIR)), TO_QUEUE),
        (row_schema(headers=True), TO_QUEUE),  # what was read can be written
        (row_schema(headers=True), TO_TOPIC),
        (row_schema(headers=True), TO_EACH),
        (rows(value=BinaryType(), queue=StringType(), exchange=StringType()), TO_EACH),
        (rows(value=BinaryType(), ttl=LongType(), delay=DoubleType(), priority=IntegerType()), TO_QUEUE),
        (rows(value=BinaryType(), key=NullType(), headers=NullType()), TO_QUEUE),
        (rows(value=BinaryType(), tag=StringType(), partition=LongType(), timestamp=TimestampType()), TO_TOPIC),
    ],
)
def test_schemas_that_can_be_written(schema: StructType, options: dict[str, str]) -> None:
    check_sink_schema(schema, SinkOptions.parse(options), overwrite=False)


@pytest.mark.parametrize(
    ("schema", "options", "told"),
    [
        (rows(key=StringType()), TO_QUEUE, "column named value"),
        (rows(value=LongType()), TO_QUEUE, "binary or string, not bigint"),
        (rows(value=NullType()), TO_QUEUE, "'value' must be"),
        (rows(value=StringType(), key=LongType()), TO_QUEUE, "'key'"),
        (rows(value=StringType(), price=LongType()), TO_QUEUE, "'price' has no place"),
        (rows(value=StringType(), headers=StringType()), TO_QUEUE, "array<struct<key:string,value:binary>>"),
        (rows(value=StringType(), headers=ArrayType(StringType())), TO_QUEUE, "array<struct<key:string,value:binary>>"),
        (rows(value=StringType()), TO_EXCHANGE, "routingKey"),
        (rows(value=StringType()), TO_EACH, "queue.*exchange.*topic"),
        (rows(value=StringType(), topic=StringType()), {**TO_EACH, "routingKey": "a"}, "no row names one"),
        (rows(value=StringType(), queue=StringType()), TO_TOPIC, "leave one of them out"),
        (rows(value=StringType(), exchange=StringType()), TO_QUEUE, "leave one of them out"),
        (rows(value=StringType(), message_id=StringType()), TO_TOPIC, "'message_id' has no place"),
        (rows(value=StringType(), ttl=LongType()), TO_TOPIC, "'ttl' has no place"),
        (rows(value=StringType(), ttl=StringType()), TO_QUEUE, "number of seconds"),
        (rows(value=StringType(), priority=DoubleType()), TO_QUEUE, "'priority' must be int"),
        (rows(value=StringType(), timestamp=LongType()), TO_TOPIC, "'timestamp' must be timestamp"),
        (StructType([StructField("value", StringType()), StructField("Value", StringType())]), TO_QUEUE, "two columns"),
    ],
)
def test_schemas_that_cannot(schema: StructType, options: dict[str, str], told: str) -> None:
    with pytest.raises(warren.UsageError, match=told):
        check_sink_schema(schema, SinkOptions.parse(options), overwrite=False)


def test_overwriting_is_refused() -> None:
    with pytest.raises(warren.UsageError, match="append"):
        check_sink_schema(rows(value=StringType()), SinkOptions.parse(TO_QUEUE), overwrite=True)


# -- into a node --------------------------------------------------------------------------------------------------


@pytest.fixture
def at(node: warren.Node, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SinkOptions]:
    """Options for writing to the node, whose client the sink uses."""
    monkeypatch.setattr(sink, "node_of", lambda *_: node)
    return lambda **more: SinkOptions.parse({"path": str(node.directory), "timeout": "20", **more})


@pytest.fixture
def topic(node: warren.Node) -> Iterator[warren.Topic]:
    """A topic, opened by a client of its own, which keeps files open for reading until its end."""
    with warren.attach(node.directory, name="reader") as other:
        made = other.topic("flights")
        yield made
        made.delete()


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def written(options: SinkOptions, *batches: pa.RecordBatch) -> sink.Published:
    return sink.publish(options, iter(batches))


def shown(queue: warren.Queue, *names: str) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names} for found in queue.browse_arrow() for row in found.to_pylist()]


def read(topic: warren.Topic) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in range(topic.queues):
        first, end = topic.offsets(number)
        if end > first:
            found += [{"queue": number, **row} for row in topic.read_arrow(number, first, end).to_pylist()]
    return found


def test_what_a_row_says_comes_back_from_a_queue(at: Callable[..., SinkOptions], queue: warren.Queue) -> None:
    """Keys of all kinds, repeated headers in order, nulls, no headers and an empty array of them."""
    given = {
        "key": [b"N14228", None, b"\xff\x00", queue.name.encode(), b"k" * 300, b"", b"late"],
        "value": [b"1", b"", b"3", b"4", b"5", b"6", b"7"],
        "headers": [
            [{"key": "h", "value": b"1"}, {"key": "g", "value": b""}, {"key": "h", "value": b"2"}],
            None,
            [],
            [{"key": "h", "value": None}],
            [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}],
            None,
            [{"key": "", "value": b"x"}],
        ],
    }
    columns = {"headers": pa.array(given["headers"], HEADERS)}
    columns |= {name: pa.array(given[name], pa.binary()) for name in ("key", "value")}
    assert written(at(queue=queue.name), batch(**columns)) == sink.Published(7, 6)
    expected = [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]
    assert shown(queue, *given) == expected
    first, second, *_ = queue.browse()
    assert (first.routing_key, first.headers) == ("N14228", {"h": b"2", "g": b""})
    assert (second.routing_key, second.headers) == (queue.name, {})
    copy = written(at(queue=queue.name), *queue.browse_arrow())
    assert copy.messages == 7
    assert shown(queue, *given) == expected * 2, "what was read can be written"


def test_batches_are_cut_and_numbered(at: Callable[..., SinkOptions], queue: warren.Queue) -> None:
    options = at(queue=queue.name, batchRows="2")
    assert written(options, batch(value=["ä", "b", "c"]), batch(value=[b"d"])) == sink.Published(4, 5)
    assert [message.body for message in queue.browse()] == ["ä".encode(), b"b", b"c", b"d"]
    with pytest.raises(warren.UsageError, match=r"^row 4: its value is null"):
        written(options, batch(value=["a", "b", "c"]), batch(value=["d", None]))
    assert written(options) == sink.Published(0, 0)
    assert written(options, batch(value=pa.array([], pa.binary()))) == sink.Published(0, 0)


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_arrays_of_all_shapes(at: Callable[..., SinkOptions], queue: warren.Queue, slices: bool, wide: bool) -> None:
    """Slices of arrays, and those with 64-bit offsets, are read where they lie."""
    pairs = pa.list_(pa.struct([("key", pa.large_string() if wide else pa.string()), ("value", pa.large_binary())]))
    made = batch(
        VALUE=pa.array([f"{n}" for n in range(40)], pa.large_string() if wide else pa.string()),
        Key=pa.array([None if n % 3 else b"%d" % n for n in range(40)], pa.large_binary() if wide else pa.binary()),
        headers=pa.array([[("n", b"%d" % n)] * (n % 3) for n in range(40)], pairs if wide else HEADERS),
    )
    made = made.slice(7, 30) if slices else made
    written(at(queue=queue.name, batchRows="11"), made)
    assert shown(queue, "key", "value", "headers") == [
        {
            "key": None if n % 3 else b"%d" % n,
            "value": b"%d" % n,
            "headers": [{"key": "n", "value": b"%d" % n}] * (n % 3),
        }
        for n in (range(7, 37) if slices else range(40))
    ]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"headers": pa.array([[], [None]], HEADERS)}, "row 1: header 0 is null"),
        ({"headers": pa.array([None, [{"key": None, "value": b""}]], HEADERS)}, "row 1: the key of header 0 is null"),
        ({"headers": pa.array([None, [("k", b"v" * 70000)]], HEADERS)}, "row 1: key, headers and properties"),
        ({"tag": [None, "UA"]}, "row 1: a message of a queue has no tag"),
        ({"priority": [3, 256]}, "row 1: its priority must be from 0 to 255"),
        ({"ttl": [1, -1]}, "row 1: its ttl must be a number of seconds"),
        ({"delay": [0.5, float("nan")]}, "row 1: its delay must be a number of seconds"),
        ({"message_id": ["a", ""]}, "row 1: its message_id is empty"),
        ({"timestamp": pa.array([None, -1], MICROS)}, "row 1: its timestamp must be from the year 1970 to 9999"),
        ({"value": [b"", bytes(17 << 20)]}, "row 1: a message of 17825792 bytes"),
    ],
)
def test_rows_that_are_refused(
    at: Callable[..., SinkOptions], queue: warren.Queue, columns: dict[str, Any], told: str
) -> None:
    with pytest.raises(warren.UsageError, match=told):
        written(at(queue=queue.name), batch(**{"value": [b"1", b"2"], **columns}))
    assert queue.depth() == 0, "nothing of the batch was sent"


def test_options_of_a_message(at: Callable[..., SinkOptions], node: warren.Node) -> None:
    queue = node.queue("options", max_priority=9, deduplication_window=60)
    made = batch(
        value=["low", "high", "twice", "twice", "dies", "later"],
        priority=pa.array([0, 9, 5, 5, None, None], pa.int8()),
        message_id=["a", None, "t", "t", None, None],
        ttl=[None, None, None, None, 0, 60],
        delay=[None, None, None, None, None, 3600.5],
        timestamp=pa.array([BORN, *[None] * 5], MICROS),
    )
    options = at(queue="options")
    assert written(options, made, made.slice(2, 1)).messages == 7
    assert queue.stats()["delayed"] == 1
    found = [message for message in queue.get_many(10, timeout=5) if message.ack() is None]
    assert [message.body for message in found] == [b"high", b"twice", b"low"]
    assert found[2].properties == {"message_id": "a", "timestamp": BORN.timestamp()}
    queue.delete()


def test_intervals_are_durations(at: Callable[..., SinkOptions], queue: warren.Queue) -> None:
    made = batch(value=["now", "later"], delay=pa.array([0, 3_600_000_000], pa.duration("us")))
    written(at(queue=queue.name), made)
    assert [message.body for message in queue.get_many(10, timeout=5)] == [b"now"]
    assert queue.stats()["delayed"] == 1


# -- exchanges ----------------------------------------------------------------------------------------------------


@pytest.fixture
def exchange(node: warren.Node, queue: warren.Queue) -> Iterator[str]:
    node.declare_exchange("events", "topic")
    queue.bind("events", "a.#")
    yield "events"
    node.delete_exchange("events")


def test_rows_to_an_exchange(at: Callable[..., SinkOptions], queue: warren.Queue, exchange: str) -> None:
    options = at(exchange=exchange, routingKey="a.other", mandatory="false")
    made = batch(key=pa.array([b"a.b", None, b"elsewhere"]), value=["1", "2", "3"], headers=pa.nulls(3))
    assert written(options, made).messages == 3
    assert shown(queue, "exchange", "key", "value") == [
        {"exchange": "events", "key": b"a.b", "value": b"1"},
        {"exchange": "events", "key": b"a.other", "value": b"2"},
    ]
    with pytest.raises(warren.Unroutable, match="elsewhere"):
        written(at(exchange=exchange, mandatory="true"), made)
    with pytest.raises(warren.UsageError, match="row 1: its key is not UTF-8"):
        written(options, batch(key=[b"a.b", b"\xff"], value=["1", "2"]))
    with pytest.raises(warren.UsageError, match="row 0: its key has 300 bytes"):
        written(options, batch(key=["a" * 300], value=["1"]))
    assert queue.depth() == 2


def test_an_exchange_that_looks_at_headers(at: Callable[..., SinkOptions], node: warren.Node) -> None:
    node.declare_exchange("by-headers", "headers")
    late, early = node.queue("late"), node.queue("early")
    for queue in (late, early):
        queue.bind("by-headers", arguments={"x-match": "all", "when": queue.name})
    headers = [[("when", "late")], [("when", "early")], [("when", "never")], [("when", "late")]]
    of_text = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))  # bindings compare text
    made = batch(value=["1", "2", "3", "4"], headers=pa.array(headers, of_text))
    written(at(exchange="by-headers", routingKey="any"), made)
    assert [message.body for message in late.browse()] == [b"1", b"4"]
    assert [message.body for message in early.browse()] == [b"2"]
    for queue in (late, early):
        queue.delete()
    node.delete_exchange("by-headers")


def test_an_exchange_that_leads_to_a_topic(
    at: Callable[..., SinkOptions], queue: warren.Queue, exchange: str, node: warren.Node, topic: warren.Topic
) -> None:
    node.bind_topic(topic.name, exchange, "a.#", key="routing_key")
    made = batch(key=["a.1", "a.2"], value=["1", "2"], headers=pa.array([[("h", b"x")], None], HEADERS), ttl=[None, 60])
    written(at(exchange=exchange), made)
    assert sorted((row["key"], row["value"]) for row in read(topic)) == [("a.1", b"1"), ("a.2", b"2")]
    assert [message.body for message in queue.browse()] == [b"1", b"2"]
    twice = batch(key=["a.1"], value=["1"], headers=pa.array([[("h", b"x"), ("h", b"y")]], HEADERS))
    with pytest.raises(warren.UsageError, match="row 0: a name comes twice"):
        written(at(exchange=exchange), twice)


# -- topics -------------------------------------------------------------------------------------------------------


def test_rows_to_a_topic(at: Callable[..., SinkOptions], topic: warren.Topic) -> None:
    made = batch(
        value=["1", "2", "3", "4"],
        key=pa.array([b"N14228", None, b"a b", b"N14228"], pa.binary()),
        tag=["UA", None, "B6", None],
        partition=pa.array([None, 2, 3, None], pa.int32()),
        timestamp=pa.array([BORN, None, BORN, BORN], MICROS),
        headers=pa.array(
            [[("h", b"\xc3\xa4"), ("WARREN_SINK", b"s 1"), ("RECONSUME_TIME", b"2")], None, [], None], HEADERS
        ),
        offset=[9, 9, 9, 9],
        topic=["elsewhere"] * 4,
    )
    assert written(at(topic=topic.name), made) == sink.Published(4, 4)
    found = {row["value"]: row for row in read(topic)}
    of_key = topic.queue_of("N14228")
    assert [found[value]["queue"] for value in (b"1", b"2", b"3", b"4")] == [of_key, 2, 3, of_key]
    assert [found[value]["key"] for value in (b"1", b"2", b"3", b"4")] == ["N14228", None, "a b", "N14228"]
    assert [found[value]["tag"] for value in (b"1", b"2", b"3", b"4")] == ["UA", None, "B6", None]
    assert found[b"1"]["born_timestamp"] == BORN
    assert found[b"2"]["born_timestamp"] > BORN
    assert found[b"1"]["properties"] == [("h", "ä")]
    assert {record.body for key in ("a", "b") for record in topic.find(key=key)} == {b"3"}


def test_later_rows_of_a_topic(at: Callable[..., SinkOptions], topic: warren.Topic) -> None:
    written(at(topic=topic.name), batch(value=["now", "later"], delay=[None, 3600.0], key=["a", "a"]))
    assert [row["value"] for row in read(topic)] == [b"now"]
    assert topic.stats()["delayed"] == 1


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"key": [b"a", b"\xff"]}, "row 1: its key is not UTF-8"),
        ({"key": ["a", ""]}, "row 1: a key must not be empty"),
        ({"key": ["a", "k" * 40000]}, "row 1: keys, tag and properties"),
        ({"tag": ["a", "\0"]}, "row 1: a tag must not contain"),
        ({"partition": [3, 4]}, "row 1: its partition is 4, and the topic has 4"),
        ({"partition": [3, -1]}, "row 1: there is no partition -1"),
        ({"headers": pa.array([[("a", b"")], [("a", b""), ("a", b"")]], HEADERS)}, "row 1: headers 0 and 1 have one"),
        ({"headers": pa.array([None, [("a", None)]], HEADERS)}, "row 1: the value of header 0 is null"),
        ({"headers": pa.array([None, [("a", b"\xff")]], HEADERS)}, "row 1: its header's value is not UTF-8"),
        ({"headers": pa.array([None, [("KEYS", b"a")]], HEADERS)}, "row 1: header 0 is named KEYS"),
        ({"delay": [1, 300_000]}, "row 1: its delay must be a number of seconds from 0 to 259200"),
        ({"timestamp": pa.array([None, -1], MICROS)}, "row 1: its timestamp must be from the year 1970 to 9999"),
    ],
)
def test_rows_that_a_topic_refuses(
    at: Callable[..., SinkOptions], topic: warren.Topic, columns: dict[str, Any], told: str
) -> None:
    with pytest.raises(warren.UsageError, match=told):
        written(at(topic=topic.name), batch(**{"value": [b"1", b"2"], **columns}))
    assert topic.stats()["messages"] == topic.stats()["delayed"] == 0, "nothing of the batch was sent"


# -- a target in each row -----------------------------------------------------------------------------------------


def test_a_target_in_each_row(
    at: Callable[..., SinkOptions], queue: warren.Queue, exchange: str, topic: warren.Topic
) -> None:
    made = batch(
        value=[f"{n}" for n in range(6)],
        queue=[queue.name, None, None, queue.name, None, None],
        exchange=[None, exchange, None, None, exchange, None],
        topic=[None, None, topic.name, None, None, topic.name],
        key=[None, "a.1", "k", None, None, "k"],
    )
    assert written(at(routingKey="a.x"), made).messages == 6
    assert {(message.body, message.exchange) for message in queue.browse()} == {
        (b"0", ""), (b"3", ""), (b"1", exchange), (b"4", exchange)
    }  # fmt: skip
    assert [row["value"] for row in read(topic)] == [b"2", b"5"]


@pytest.mark.parametrize(
    ("columns", "error", "told"),
    [
        ({"queue": ["there", None]}, warren.UsageError, "row 1: it must name one of queue, exchange and topic"),
        ({"queue": ["there"] * 2, "topic": [None, "flights"]}, warren.UsageError, "row 1: it must name one of"),
        ({"queue": ["there", "nowhere"]}, warren.QueueNotFound, "nowhere"),
        ({"topic": ["nowhere"] * 2}, warren.TopicNotFound, "nowhere"),
        ({"exchange": ["nowhere"] * 2, "key": ["a"] * 2}, warren.ExchangeNotFound, "nowhere"),
        ({"queue": ["there", None], "topic": [None, "flights"], "tag": ["t"] * 2}, warren.UsageError, "row 0.*no tag"),
        ({"queue": ["there", None], "topic": [None, "flights"], "ttl": [1] * 2}, warren.UsageError, "row 1.*ttl"),
    ],
)
def test_targets_that_are_wrong(
    at: Callable[..., SinkOptions],
    node: warren.Node,
    topic: warren.Topic,
    columns: dict[str, Any],
    error: type[Exception],
    told: str,
) -> None:
    there = node.queue("there")
    with pytest.raises(error, match=told):
        written(at(), batch(value=["1", "2"], **columns))
    there.delete()


# -- full, gone, stopped ------------------------------------------------------------------------------------------


def test_a_full_queue_is_waited_for(at: Callable[..., SinkOptions], node: warren.Node) -> None:
    """A consumer takes from a queue of 10 while 200 rows go into it, in calls of 50: each comes once."""
    queue = node.queue("full", max_length=10, overflow="reject-publish")
    bodies = [b"%d" % n for n in range(200)]
    taken: list[bytes] = []

    def consume() -> None:
        while len(taken) < len(bodies):
            for message in queue.get_many(10, timeout=30):
                taken.append(bytes(message.body))
                message.ack()

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert written(at(queue="full", batchRows="50", timeout="60"), batch(value=bodies)).messages == 200
    consumer.join(60)
    assert sorted(taken) == sorted(bodies)
    queue.delete()


def test_a_queue_that_stays_full(at: Callable[..., SinkOptions], node: warren.Node) -> None:
    queue = node.queue("full", max_length=2, overflow="reject-publish")
    with pytest.raises(warren.QueueFull, match=r"queue 'full' was full for 0.2 s .* refused 3 rows"):
        written(at(queue="full", timeout="0.2"), batch(value=["1", "2", "3", "4", "5"]))
    assert queue.depth() == 2
    queue.delete()


@pytest.mark.parametrize(
    ("options", "columns", "error", "told"),
    [
        ({"queue": "nowhere"}, {}, warren.QueueNotFound, "nowhere"),
        ({"exchange": "nowhere", "routingKey": "a"}, {}, warren.ExchangeNotFound, "nowhere"),
        ({"topic": "nowhere"}, {}, warren.TopicNotFound, "nowhere"),
        ({"queue": "in-memory", "durability": "synced"}, {}, warren.UsageError, "'in-memory' is transient"),
        ({"topic": "newest"}, {}, warren.UsageError, "compacted"),
    ],
)
def test_a_writer_looks_for_its_target(
    at: Callable[..., SinkOptions],
    node: warren.Node,
    options: dict[str, str],
    columns: dict[str, DataType],
    error: type[Exception],
    told: str,
) -> None:
    """Before anything runs: writers are made in the planner."""
    memory, newest = node.queue("in-memory", durable=False), node.topic("newest", compacted=True)
    for kind in (sink.DirectWriter, partial(sink.DirectStreamWriter, committing=False)):
        with pytest.raises(error, match=told):
            kind(at(**options), rows(value=StringType(), **columns), overwrite=False)
    sink.DirectWriter(at(topic="newest"), rows(value=StringType(), KEY=StringType()), overwrite=False)
    sink.DirectWriter(at(queue="in-memory"), rows(value=StringType()), overwrite=False)
    assert written(at(queue="in-memory"), batch(value=["kept in memory"])).messages == 1
    memory.delete()
    newest.delete()


def test_a_stopped_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is under way says so at once; a writer that is made then, too."""
    options = SinkOptions.parse({"path": str(tmp_path / "data"), "queue": "orders", "timeout": "0.5"})
    with warren.open(tmp_path / "data", name="tests") as opened:
        monkeypatch.setattr(sink, "node_of", lambda *_: opened)
        opened.queue("orders")
        publisher = sink.Publisher(options, opened)
        publisher.publish(batch(value=["1"]))
        with ControlClient(tmp_path / "data") as control:
            control.call("stop")
        with pytest.raises((warren.PeerLost, warren.ClosedError), match=r"running|stopped"):
            publisher.publish(batch(value=["2"]))
    monkeypatch.undo()
    with pytest.raises(warren.NodeNotRunning):
        sink.DirectWriter(options, rows(value=StringType()), overwrite=False)


def test_a_writer_is_pickled(at: Callable[..., SinkOptions], queue: warren.Queue) -> None:
    writer = sink.DirectWriter(at(queue=queue.name), rows(value=StringType()), overwrite=False)
    copy = pickle.loads(pickle.dumps(writer))
    assert copy.write(iter([batch(value=["x"])])) == sink.Published(1, 1)
