"""Goal: rows that Spark writes with delivery=transactional are in topics and queues once, where they say and as they
were, whatever fails and is repeated; what cannot be written so is refused before anything is.

Method: writers without Spark for what a task and a commit do; a session for what Spark does: tasks that fail, a commit
that raises, a restart, another checkpoint. Each is counted exactly.
"""

import json
import os
import pickle
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType

import warren
from warren.engine.errors import InvalidName, QueueNotFound, StoreError, TimedOut, TopicNotFound, UsageError
from warren.engine.transactions.sink import Batch
from warren.workers.faces import transactions
from warren.workers.process import interpreter
from warren.workers.process.control import ControlClient
from warren.workers.spark import transactional_sink
from warren.workers.spark.schema import row_schema
from warren.workers.spark.transactional_options import TransactionalOptions
from warren.workers.spark.transactional_rows import check_schema
from warren.workers.spark.transactional_sink import TransactionalWriter

from support.waiting import patience, wait_until

pytestmark = pytest.mark.spark
END_S = 60
PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
VALUES = StructType([StructField("value", StringType())])
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(autouse=True)
def one_client(node: warren.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process does as a planner or an executor it does as the client of the tests, which is closed."""
    monkeypatch.setattr(transactional_sink, "node_of", lambda *_told: node)


@pytest.fixture
def topic(node: warren.Node) -> Iterator[warren.Topic]:
    made = node.topic(f"t-{uuid.uuid4().hex[:8]}", queues=3)
    yield made
    made.delete()


@pytest.fixture
def once(node: warren.Node) -> Iterator[warren.Queue]:
    """A queue that takes transactions."""
    made = node.queue(f"q-{uuid.uuid4().hex[:8]}", deduplication_window=3600)
    yield made
    made.delete()


def told(node: warren.Node, **more: str) -> dict[str, str]:
    return {"path": str(node.directory), "delivery": "transactional", "sinkId": f"s-{uuid.uuid4().hex[:8]}", **more}


def writer_of(options: dict[str, str], schema: StructType = VALUES) -> TransactionalWriter:
    return TransactionalWriter(TransactionalOptions.parse(options), schema, overwrite=False)


def write(options: dict[str, str], schema: StructType, *batches: pa.RecordBatch) -> None:
    """One task's rows, as Spark writes a batch: everything goes through pickle."""
    writer = pickle.loads(pickle.dumps(writer_of(options, schema)))
    message = pickle.loads(pickle.dumps(writer.write(iter(batches))))
    pickle.loads(pickle.dumps(writer)).commit([message])


def records(node: warren.Node, topic: warren.Topic) -> list[list[warren.Record]]:
    """All messages of a topic, by queue; read by a client of its own, which lets go of the files."""
    found = []
    with warren.attach(node.directory, name="reader") as other:
        reading = other.topic(topic.name)
        for queue in range(topic.queues):
            first, end = reading.offsets(queue)
            assert first == 0
            rows: list[warren.Record] = []
            while len(rows) < end:
                rows += reading.read(queue, len(rows), max=4096, max_bytes=16 << 20).records
            found.append(rows)
    return found


def bodies(node: warren.Node, topic: warren.Topic) -> list[bytes]:
    return sorted(record.body for rows in records(node, topic) for record in rows)


def sink_of(options: dict[str, str]) -> Any:
    return transactions.sink_of(options["path"], options["sinkId"], 10.0)


# -- without Spark ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"topic": "t"}, UsageError, "option 'sinkId' is missing"),
        ({"topic": "t", "sinkId": "a/b"}, InvalidName, "the name of a sink has"),
        ({"topic": "t", "queue": "q", "sinkId": "s"}, UsageError, "leave one out"),
        ({"exchange": "e", "sinkId": "s"}, UsageError, "'exchange' does not go with delivery=transactional"),
        ({"topic": "t", "sinkId": "s", "DURABILITY": "none"}, UsageError, "all of a transaction is synced"),
        ({"topic": "t", "sinkId": "s", "takeOver": "perhaps"}, UsageError, "must be true or false"),
        ({"topic": "t", "sinkId": "s", "sinkID2": "x"}, UsageError, "unknown option"),
    ],
)
def test_options_that_cannot_be(options: dict[str, str], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        TransactionalOptions.parse({"path": "/data", "delivery": "transactional", **options})


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"key": StringType()}, "column named value"),
        ({"value": LongType()}, "binary or string, not bigint"),
        ({"value": StringType(), "VALUE": StringType()}, "two columns named 'value'"),
        ({"value": StringType(), "price": LongType()}, "'price' has no place"),
        ({"value": StringType(), "headers": ArrayType(StringType())}, "array<struct<key:string,value:binary>>"),
        ({"value": StringType(), "partition": StringType()}, "'partition' must be int"),
    ],
)
def test_schemas_that_cannot_be(fields: dict[str, Any], match: str) -> None:
    options = TransactionalOptions.parse({"path": "/data", "topic": "t", "sinkId": "s"})
    with pytest.raises(UsageError, match=match):
        check_schema(StructType([StructField(name, kind) for name, kind in fields.items()]), options, False)


def test_schemas_that_say_where_rows_go() -> None:
    options = TransactionalOptions.parse({"path": "/data", "sinkId": "s"})
    with pytest.raises(UsageError, match='needs one of the options "topic" and "queue", or a column'):
        check_schema(VALUES, options, False)
    check_schema(StructType([*VALUES, StructField("topic", StringType())]), options, False)
    check_schema(row_schema(headers=True), options, False)  # what was read can be written
    both = [StructField(name, StringType()) for name in ("topic", "queue")]
    with pytest.raises(UsageError, match="both where a row goes"):
        check_schema(StructType([*VALUES, *both]), options, False)
    with pytest.raises(UsageError, match="Warren appends"):
        check_schema(VALUES, options, True)


def test_what_takes_no_transactions_is_refused_by_the_planner(node: warren.Node, queue: warren.Queue) -> None:
    with pytest.raises(TopicNotFound, match="there is no topic 'missing'"):
        writer_of(told(node, topic="missing"))
    with pytest.raises(QueueNotFound):
        writer_of(told(node, queue="missing"))
    with pytest.raises(UsageError, match="has no deduplication_window of at least 60 s"):
        writer_of(told(node, queue=queue.name))
    table = node.topic(f"t-{uuid.uuid4().hex[:8]}", compacted=True)
    with pytest.raises(UsageError, match="is compacted"):
        writer_of(told(node, topic=table.name))
    table.delete()


def test_rows_are_there_as_they_were(node: warren.Node, topic: warren.Topic) -> None:
    schema = StructType(
        [
            StructField("Value", BinaryType()),
            StructField("key", BinaryType()),
            StructField("partition", IntegerType()),
            StructField("tag", StringType()),
            StructField("headers", ArrayType(PAIR)),
            StructField("offset", LongType()),
        ]
    )
    rows = pa.RecordBatch.from_pydict(
        {
            "Value": pa.array([b"a", b"b", b"", b"d"], pa.binary()),
            "key": pa.array([b"k1", None, "Ü".encode(), b"k1"], pa.binary()),
            "partition": pa.array([None, 2, None, 0], pa.int32()),
            "tag": pa.array([None, "t", None, None]),
            "headers": pa.array([None, [{"key": "h", "value": b"1"}], [], None], HEADERS),
            "offset": pa.array([7, 8, 9, 10], pa.int64()),
        }
    )
    options = told(node, topic=topic.name)
    write(options, schema, rows)
    found = {record.body: record for queue in records(node, topic) for record in queue}
    assert {body: record.key for body, record in found.items()} == {b"a": "k1", b"b": None, b"": "Ü", b"d": "k1"}
    assert [found[b"a"].queue, found[b"b"].queue, found[b"d"].queue] == [topic.queue_of("k1"), 2, 0]
    assert (found[b"b"].tag, found[b"a"].tag) == ("t", None)
    mark = found[b"a"].properties[transactions.PROPERTY]
    assert mark.startswith(f"{options['sinkId']}:")
    assert {name: value for name, value in found[b"b"].properties.items() if name != transactions.PROPERTY} == {
        "h": "1"
    }


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"value": pa.array(["a", None])}, "row 1: its value is null"),
        ({"value": ["a", "b"], "key": pa.array([b"k", b"\xff"])}, "row 1: its key is .* no UTF-8"),
        ({"value": ["a"], "partition": pa.array([3], pa.int32())}, "row 0: topic .* has partitions 0 to 2, and no 3"),
        ({"value": ["a"], "headers": pa.array([[None]], HEADERS)}, "row 0: a header has no name"),
        ({"value": ["a"], "headers": pa.array([[{"key": "h", "value": None}]], HEADERS)}, "header 'h' has no value"),
        ({"value": ["a"], "headers": pa.array([[{"key": "h", "value": b""}] * 2], HEADERS)}, "'h' comes twice"),
    ],
)
def test_rows_that_cannot_be_written_leave_nothing(
    node: warren.Node, topic: warren.Topic, columns: dict[str, Any], match: str
) -> None:
    options = told(node, topic=topic.name)
    with pytest.raises(UsageError, match=match):
        writer_of(options).write(iter([pa.RecordBatch.from_pydict(columns)]))
    assert sink_of(options).folder.parts() == []
    assert bodies(node, topic) == []


def headers_of(*pairs: tuple[str, bytes]) -> pa.Array:
    return pa.array([None, [{"key": name, "value": value} for name, value in pairs]], HEADERS)


LONG = 70_000
#: what a node refuses → the column of two rows, of which the second is refused; in a topic, in a queue
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("topic", {"tag": [None, ""]}, "row 1: a tag must not be empty"),
    ("topic", {"tag": ["t", "a\x01"]}, "row 1: a tag must not contain"),
    ("topic", {"tag": ["t", "t" * LONG]}, "row 1: keys, tag and properties"),
    ("topic", {"key": ["k", ""]}, "row 1: a key must not be empty"),
    ("topic", {"key": ["k", "k" * LONG]}, "row 1: keys, tag and properties"),
    ("topic", {"headers": headers_of(("", b"1"))}, "row 1: header '': its name must not be empty"),
    (
        "topic",
        {"headers": headers_of(("a", b"\x02"))},
        r"row 1: header 'a': .* characters \\x00, \\x01 and \\x02, which separate",
    ),
    ("topic", {"headers": headers_of(("a", b"x" * 32_760))}, "row 1: the headers of a message of a topic"),
    ("topic", {"headers": headers_of(("KEYS", b"1"))}, "row 1: header 'KEYS' is named as the log names"),
    ("topic", {"value": ["a", "b" * (5 << 20)]}, "row 1: a message of .* is larger"),
    ("queue", {"key": pa.array([b"k", b"k" * LONG])}, "row 1: "),
    ("queue", {"headers": headers_of(("a", b"x" * LONG))}, "row 1: "),
    ("queue", {"value": ["a", "b" * (17 << 20)]}, "row 1: a message is larger than"),
]


@pytest.mark.parametrize(("kind", "columns", "match"), REFUSED)
def test_what_the_node_would_refuse_is_refused_before_it_is_staged(
    node: warren.Node, topic: warren.Topic, once: warren.Queue, kind: str, columns: dict[str, Any], match: str
) -> None:
    """Behind the commit it would be in the way of all that comes."""
    options = told(node, **{kind: topic.name if kind == "topic" else once.name})
    rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], **columns})
    with pytest.raises(UsageError, match=match):
        writer_of(options).write(iter([rows]))
    assert sink_of(options).folder.parts() == []


TEXT = st.one_of(
    st.none(), st.text(max_size=6), st.sampled_from(["", " ", "a b", "\x00", "KEYS", "DELAY", "WARREN_SINK"])
)
PAIRS = st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(["topic", "queue"]), key=TEXT, tag=TEXT, headers=PAIRS)
def test_what_is_staged_can_be_appended(
    node: warren.Node,
    topic: warren.Topic,
    once: warren.Queue,
    kind: str,
    key: str | None,
    tag: str | None,
    headers: list[tuple[str, bytes]] | None,
) -> None:
    options = told(node, **{kind: topic.name if kind == "topic" else once.name})
    pairs = None if headers is None else [{"key": name, "value": value} for name, value in headers]
    columns: dict[str, Any] = {"value": ["x"], "key": pa.array([key], pa.string())}
    columns |= {"tag": pa.array([tag], pa.string()), "headers": pa.array([pairs], HEADERS)}
    writer = writer_of(options)
    message, refused = None, ""
    try:
        message = writer.write(iter([pa.RecordBatch.from_pydict(columns)]))
    except UsageError as error:
        refused = str(error)
    if message is None:
        assert refused.startswith("row 0: ")
        assert sink_of(options).folder.parts() == []
        return
    writer.commit([message])
    assert sink_of(options).load().pending is None


def test_headers_by_name_and_keys_apart(node: warren.Node, topic: warren.Topic) -> None:
    """Fields of a header come in any order; several keys have spaces between them; what was read can be written."""
    swapped = pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())]))
    rows = pa.RecordBatch.from_pydict(
        {
            "value": ["a"],
            "key": ["k1 k2"],
            "headers": pa.array([[{"value": b"7", "key": "shop"}, {"value": b"2", "key": "DELAY"}]], swapped),
        }
    )
    write(told(node, topic=topic.name), VALUES, rows)
    ((record,),) = [queue for queue in records(node, topic) if queue]
    properties = {name: value for name, value in record.properties.items() if name != transactions.PROPERTY}
    assert (record.keys, properties, record.queue) == (("k1", "k2"), {"shop": "7", "DELAY": "2"}, topic.queue_of("k1"))


def test_a_target_in_each_row(node: warren.Node, topic: warren.Topic, once: warren.Queue) -> None:
    schema = StructType([*VALUES, StructField("topic", StringType())])
    other = node.topic(f"t-{uuid.uuid4().hex[:8]}", queues=1)
    rows = {"value": [str(n) for n in range(100)], "topic": [(topic.name, other.name)[n % 2] for n in range(100)]}
    write(told(node), schema, pa.RecordBatch.from_pydict(rows))
    assert sorted(map(int, bodies(node, topic))) == list(range(0, 100, 2))
    assert [int(record.body) for record in records(node, other)[0]] == list(range(1, 100, 2))
    other.delete()
    schema = StructType([*VALUES, StructField("headers", ArrayType(PAIR)), StructField("key", BinaryType())])
    pairs = [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}, {"key": "n", "value": None}]
    headers = pa.array([pairs, None], HEADERS)
    options = told(node, queue=once.name)
    writer = writer_of(options, schema)
    rows = {"value": ["a", "b"], "headers": headers, "key": pa.array([b"\xff", None], pa.binary())}
    message = writer.write(iter([pa.RecordBatch.from_pydict(rows)]))
    writer.commit([message])
    writer.commit([message])
    writer.abort([message])  # what is committed stays
    found = [row for batch in once.browse_arrow() for row in batch.to_pylist()]
    assert [(row["value"], row["key"], row["headers"]) for row in found] == [(b"a", b"\xff", pairs), (b"b", None, None)]
    once.purge()


def test_a_batch_that_comes_again_is_there_once(node: warren.Node, topic: warren.Topic, once: warren.Queue) -> None:
    """The commit of a stream's batch is cut short in the middle; then Spark repeats the batch."""
    options = told(node)
    sink = sink_of(options)
    batch = Batch("11111111-aaaa", 0, "run")
    targets = {"topic": topic.name, "queue": once.name}
    parts = []
    for kind, name in targets.items():
        parsed = TransactionalOptions.parse({**options, kind: name})
        rows = pa.RecordBatch.from_pydict({"value": [f"{kind}-{n}" for n in range(5000)]})
        part = transactional_sink.stage(parsed, batch, iter([rows])).part
        assert part is not None
        parts.append(part)

    class Cut(transactions.NodeTargets):
        appended = 0

        def append(self, *told: Any) -> None:
            self.appended += 1
            if self.appended == 8:
                raise TimedOut("cut short")
            super().append(*told)

    with Cut(options["path"], 10.0, "cut") as cut, pytest.raises(TimedOut):
        sink.commit(batch, parts, cut)
    assert 0 < len(bodies(node, topic)) < 10_000
    state = sink.load()
    assert state.pending is not None
    sink.abort(parts)
    assert transactions.commit(options["path"], sink, batch, parts, 10.0, "again") is False
    assert bodies(node, topic) == sorted(b"topic-%d" % n for n in range(5000))
    assert once.stats()["ready"] == 5000
    assert sink.load().pending is None
    once.purge()


def test_a_repeated_batch_finishes_what_a_killed_driver_left(node: warren.Node, topic: warren.Topic) -> None:
    """Its tasks find that it is committed, and stage nothing: the rest of it is appended all the same."""
    options = told(node, topic=topic.name)
    parsed = TransactionalOptions.parse(options)
    batch = Batch("33333333-cccc", 0, "run")
    rows = pa.RecordBatch.from_pydict({"value": [str(n) for n in range(100)]})
    part = transactional_sink.stage(parsed, batch, iter([rows])).part
    assert part is not None

    class Killed(transactions.NodeTargets):
        def append(self, *_told: Any) -> None:
            raise TimedOut("killed")

    sink = sink_of(options)
    with Killed(options["path"], 10.0, "killed") as killed, pytest.raises(TimedOut):
        sink.commit(batch, [part], killed)
    assert bodies(node, topic) == []
    again = transactional_sink.stage(parsed, batch, iter([rows]))
    assert again.part is None
    assert transactional_sink.commit(parsed, [again], 0) is False
    assert bodies(node, topic) == lines(100)
    assert sink.load().pending is None
    empty = transactional_sink.Staged(batch._replace(number=1), None)
    assert transactional_sink.commit(parsed, [empty], 1) is False
    assert sink.load().stream.batch == 0


def test_a_batch_that_was_planned_anew_is_refused(node: warren.Node, topic: warren.Topic, tmp_path: Path) -> None:
    """A checkpoint lost its newest batch; what Spark plans instead has its number, and other rows."""
    options = told(node, topic=topic.name, checkpointLocation=tmp_path.as_uri())
    parsed = TransactionalOptions.parse(options)
    plans = tmp_path / "offsets"
    plans.mkdir()

    def run(number: int, plan: str, *values: str) -> bool:
        (plans / str(number)).write_text(plan)
        batch = Batch("44444444-dddd", number, "run")
        staged = transactional_sink.stage(parsed, batch, iter([pa.RecordBatch.from_pydict({"value": list(values)})]))
        return transactional_sink.commit(parsed, [staged], number)

    assert run(0, "first", "a")
    assert run(1, "second", "b")
    assert not run(1, "second", "b")
    assert not run(0, "first", "a")
    with pytest.raises(StoreError, match="up to batch 1; this one has its number, and was planned anew"):
        run(1, "another", "b", "c")
    with pytest.raises(StoreError, match="was planned anew"):
        run(0, "another", "a")
    assert bodies(node, topic) == [b"a", b"b"]
    assert transactional_sink.seal_of("hdfs://somewhere/checkpoint", 1) == ""
    assert transactional_sink.seal_of(str(tmp_path), 7) == ""


def test_what_nobody_can_say_is_said(node: warren.Node, topic: warren.Topic) -> None:
    """A batch was cut short, and retention removed what was in the topic: an error, until somebody decides."""
    options = told(node, topic=topic.name)
    sink = sink_of(options)
    batch = Batch("11111111-aaaa", 0, "run")
    rows = pa.RecordBatch.from_pydict({"value": [str(n) for n in range(10)]})
    part = transactional_sink.stage(TransactionalOptions.parse(options), batch, iter([rows])).part

    class Cut(transactions.NodeTargets):
        def append(self, *told: Any) -> None:
            raise TimedOut("cut short")

    with Cut(options["path"], 10.0, "cut") as cut, pytest.raises(TimedOut):
        sink.commit(batch, [part], cut)
    with transactions.NodeTargets(options["path"], 10.0, "doubt") as targets:
        state = sink.load()
        assert state.pending is not None
        mark = transactions.Mark(state.sink, state.incarnation, state.pending.number)
        place = state.pending.places[0]
        assert targets.present(place, mark, 0.0, False) == (0, place.start)
        place.start = 5
        with pytest.raises(warren.StoreError, match="nobody can say which of 10 messages"):
            targets.present(place, mark, 0.0, False)
    with pytest.raises(UsageError, match="would be lost; finish it with"):
        sink.forget()
    found = transactions.finish(options["path"], sink, 10.0, "finish")
    assert found is not None
    assert len(bodies(node, topic)) == 10


def test_who_goes_on_waits_for_what_a_dead_client_had_submitted(tmp_path: Path) -> None:
    """The topic worker stands still while a driver commits, which is killed then: what it had submitted is executed
    when the worker goes on, and whoever finishes the batch waits for that."""
    rows = 3000
    with warren.open(tmp_path / "data", name="tests") as own:
        own.topic("out", queues=2)
        [worker] = [each["pid"] for each in own.status()["processes"] if each["role"] == "topic_worker"]
        task = {"path": str(own.directory), "work": str(tmp_path / "work"), "topics": ["out"], "rows": rows}
        command = interpreter.command("warren.tools.crash.sink_driver", json.dumps(task))
        os.kill(worker, signal.SIGSTOP)
        driver = subprocess.Popen(command, env=interpreter.environment())
        try:
            sink = transactions.sink_of(own.directory, "campaign", 10.0)
            wait_until(
                lambda: (state := sink.load()) is not None and state.pending is not None, END_S, what="the commit"
            )
            wait_until(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_SLEEPING, END_S, what="its sleep")
        finally:
            driver.kill()
            driver.wait()
        with pytest.raises(TimedOut, match=f"process {driver.pid}, which has begun to append a batch of this sink"):
            transactions.finish(own.directory, sink, 0.5, "tests")
        os.kill(worker, signal.SIGCONT)
        found = transactions.finish(own.directory, sink, 60.0, "tests")
        assert found is not None
        assert found.batch == 0
        assert bodies(own, own.topic("out")) == sorted(b"%d" % n for n in range(rows))
        with ControlClient(own.directory) as control:
            control.call("stop")


# -- with Spark -------------------------------------------------------------------------------------------------------


def test_batches_of_a_session(spark: Any, node: warren.Node, topic: warren.Topic, tmp_path: Path) -> None:
    """Tasks that fail at first are repeated, and each write is a transaction."""
    options = told(node, topic=topic.name)
    flag = tmp_path / "failed"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and not flag.exists():
                flag.touch()
                raise RuntimeError("this task fails once")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    frame = (
        spark.range(0, 2000, numPartitions=2)
        .selectExpr("cast(id as string) as value")
        .mapInArrow(fail_once, "value string")
    )
    for _ in range(2):
        frame.write.format("warren").options(**options).mode("append").save()
    assert flag.exists()
    assert bodies(node, topic) == sorted(b"%d" % n for n in range(2000) for _ in range(2))
    assert sink_of(options).folder.parts() == [], "what the failed task staged is there"


def streamed(spark: Any, options: dict[str, str], place: Path, *, fails: str = "") -> Any:
    """Copy the files of `place` to the sink as they come; a file with `fails` in it fails its task once."""
    flag = place / "failed"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if fails and fails in batch.column("value").to_pylist() and not flag.exists():
                flag.touch()
                raise RuntimeError("this task fails once")

    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(place / "in"))
    frame = lines.mapInArrow(fail_once, "value string")
    writer = frame.writeStream.format("warren").options(**options)
    query = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(END_S * patience()), "the query did not end"
    return query


def more(place: Path, number: int) -> None:
    """One more file of 100 lines."""
    (place / "in").mkdir(exist_ok=True)
    made = place / f"{number}.txt"
    made.write_text("\n".join(str(number * 100 + n) for n in range(100)))
    made.rename(place / "in" / made.name)


def lines(count: int) -> list[bytes]:
    return sorted(b"%d" % n for n in range(count))


def test_a_stream_is_there_once(spark: Any, node: warren.Node, topic: warren.Topic, tmp_path: Path) -> None:
    """A task that fails, a commit that raises, a restart, another checkpoint."""
    options = told(node, topic=topic.name)
    more(tmp_path, 0)
    more(tmp_path, 1)
    streamed(spark, options, tmp_path, fails="150")
    assert (tmp_path / "failed").exists()
    assert bodies(node, topic) == lines(200)

    more(tmp_path, 2)
    sink = sink_of(options)
    with sink.folder.locked(10.0), pytest.raises(StreamingQueryException, match=r"was busy for 0\.5 s"):
        streamed(spark, {**options, "timeout": "0.5"}, tmp_path)
    assert bodies(node, topic) == lines(200)
    streamed(spark, options, tmp_path)
    assert bodies(node, topic) == lines(300)

    # The newest batch is taken out of Spark's log, as if the driver had died behind the commit.
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    more(tmp_path, 3)
    streamed(spark, options, tmp_path)
    assert bodies(node, topic) == lines(400)

    # It lost its newest batch, as by a loss of power: what is planned instead is another one.
    for kind in ("offsets", "commits"):
        newest = max((tmp_path / "checkpoint" / kind).glob("[0-9]*"), key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match="was planned anew: the checkpoint is older than the sink"):
        streamed(spark, options, tmp_path)
    assert bodies(node, topic) == lines(400)

    other = tmp_path / "other"
    other.mkdir()
    more(other, 4)
    with pytest.raises(StreamingQueryException, match=r"takes batches of query .* up to 3 so far"):
        streamed(spark, options, other)
    streamed(spark, {**options, "takeOver": "true"}, other)
    assert bodies(node, topic) == lines(500)
    more(tmp_path, 5)
    with pytest.raises(StreamingQueryException, match="takes batches of query"):
        streamed(spark, options, tmp_path)
    assert bodies(node, topic) == lines(500)
