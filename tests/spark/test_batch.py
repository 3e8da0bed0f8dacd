"""Batch reads and writes through a real session: rows, columns, order, errors, and who is attached meanwhile."""

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import AnalysisException, PySparkException

import warren
from warren.workers.spark import session

from support.waiting import wait_until

pytestmark = pytest.mark.spark
Options = Callable[..., dict[str, str]]
Taking = Callable[[warren.Queue, int], list[bytes]]


def test_browse_leaves_everything_there(spark: Any, queue: warren.Queue, reading: Options) -> None:
    bodies = [b"%d" % n for n in range(2500)]
    queue.put_many(bodies)
    frame = spark.read.format("warren").options(**reading(batchRows="1000")).load()
    assert [row.value for row in frame.sort("offset").collect()] == bodies
    assert queue.depth() == len(bodies)


def test_rows(spark: Any, node: warren.Node, queue: warren.Queue, reading: Options) -> None:
    node.declare_exchange("rows", "topic")
    queue.bind("rows", "a.#")
    node.publish(b"\x00\xff", exchange="rows", routing_key="a.b", headers={"text": "ä", "bytes": b"\x01", "number": 7})
    queue.put(b"")
    first, second = (
        spark.read.format("warren").options(**reading(includeHeaders="true")).load().sort("offset").collect()
    )
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition) == (b"a.b", b"\x00\xff", queue.name, 0)
    assert {pair.key: bytes(pair.value) for pair in first.headers} == {
        "text": "ä".encode(),
        "bytes": b"\x01",
        "number": b"7",
    }
    assert (first.delivery_count, first.tag) == (0, None)
    assert len(first.msg_id) == 16
    assert (second.key, bytes(second.value), second.headers) == (None, b"", None)
    assert second.offset == first.offset + 1


def test_columns_can_be_left_out(spark: Any, queue: warren.Queue, reading: Options) -> None:
    queue.put_many([b"x" * 10_000, b"y"])
    assert "value" not in spark.read.format("warren").options(**reading(includeValue="false")).load().columns
    frame = spark.read.format("warren").schema("offset long, key binary").options(**reading()).load()
    assert [row.offset for row in frame.collect()] == [0, 1]


def test_names_of_columns_and_options_in_any_case(spark: Any, queue: warren.Queue, reading: Options) -> None:
    queue.put(b"x")
    options = {name.upper(): value for name, value in reading(batchRows="10").items()}
    [row] = spark.read.format("warren").schema("VALUE binary, Offset long").options(**options).load().collect()
    assert row.asDict() == {"VALUE": bytearray(b"x"), "Offset": 0}


def test_a_table(spark: Any, queue: warren.Queue, reading: Options) -> None:
    """Spark calls the option `path` of a table its location."""
    queue.put_many([b"a", b"b"])
    given = ", ".join(f"{name} '{value}'" for name, value in reading(minPartitions="1").items())
    spark.sql(f"CREATE TABLE waiting USING warren OPTIONS ({given})")
    try:
        rows = spark.sql("SELECT cast(value AS string) AS v FROM waiting ORDER BY offset DESC").collect()
        assert [row.v for row in rows] == ["b", "a"]
    finally:
        spark.sql("DROP TABLE waiting")


def test_what_a_table_cannot_be(spark: Any, queue: warren.Queue, reading: Options) -> None:
    path = f"path 'data', queue '{queue.name}'"
    with pytest.raises(PySparkException, match=r"path of a table must be absolute.* below its warehouse"):
        spark.sql(f"CREATE TABLE relative USING warren OPTIONS ({path})")
    given = ", ".join(f"{name} '{value}'" for name, value in reading().items())
    with pytest.raises(PySparkException, match="a table of Warren is for reading"):
        spark.sql(f"CREATE TABLE copied USING warren OPTIONS ({given}) AS SELECT cast('x' AS binary) AS value")


def test_errors_keep_their_texts_when_the_jvm_ends(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnalysisException, match="nope") as caught:
        spark.sql("SELECT nope")
    problem = RuntimeError("of a program")
    problem.__cause__ = caught.value
    session._keep_texts(problem)
    monkeypatch.setattr("pyspark.SparkContext._jvm", None)
    assert "nope" in str(caught.value)
    assert isinstance(caught.value, AnalysisException)
    assert "AnalysisException: " in "".join(traceback.format_exception(problem))


def test_bodies_of_the_store_and_many_of_them(spark: Any, queue: warren.Queue, reading: Options) -> None:
    bodies = [bytes([n % 256]) * (5000 + n) for n in range(300)]
    queue.put_many(bodies)
    found = spark.read.format("warren").options(**reading(batchBytes="100000")).load().sort("offset").collect()
    assert [bytes(row.value) for row in found] == bodies


def test_an_empty_queue(spark: Any, queue: warren.Queue, reading: Options) -> None:
    assert spark.read.format("warren").options(**reading()).load().collect() == []


def test_workers_of_spark_are_clients(spark: Any, node: warren.Node, queue: warren.Queue, reading: Options) -> None:
    queue.put_many([b"x"] * 10)
    assert spark.read.format("warren").options(**reading()).load().count() == 10

    def attached() -> list[dict[str, Any]]:
        clients = node.status()["clients"]
        return [client for client in clients if client["name"].startswith("spark-tests-executor-")]

    client = wait_until(attached, what="an executor among the clients")[0]
    parents = psutil.Process(client["pid"]).parents()
    assert os.getpid() in [parent.pid for parent in parents], "it is not a process of our Spark"
    assert any("java" in parent.name() for parent in parents)


def test_a_killed_worker_is_swept_and_replaced(
    spark: Any, node: warren.Node, queue: warren.Queue, reading: Options
) -> None:
    queue.put_many([b"x"] * 10)
    frame = spark.read.format("warren").options(**reading()).load()
    assert frame.count() == 10

    def executors() -> set[int]:
        clients = node.status()["clients"]
        return {client["pid"] for client in clients if client["name"].startswith("spark-tests-executor-")}

    killed = wait_until(executors, what="an executor among the clients")
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not killed & executors(), what="the sweep")
    assert frame.count() == 10
    assert executors()


def test_write_to_a_queue(spark: Any, node: warren.Node, queue: warren.Queue, taking: Taking) -> None:
    frame = spark.range(2500).selectExpr("cast(id as string) as value")
    frame.write.format("warren").option("path", str(node.directory)).option("queue", queue.name).mode("append").save()
    assert sorted(map(int, taking(queue, 2500))) == list(range(2500))


def test_write_to_an_exchange(spark: Any, node: warren.Node, queue: warren.Queue) -> None:
    node.declare_exchange("writes", "direct")
    queue.bind("writes", "even")
    frame = spark.range(10).selectExpr(
        "cast(id as string) as value",
        "if(id % 2 = 0, 'even', 'odd') as key",
        "array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary))) as headers",
    )
    frame.write.format("warren").option("path", str(node.directory)).option("exchange", "writes").mode("append").save()
    found = sorted(queue.get_many(100, timeout=5), key=lambda message: bytes(message.body))
    assert [bytes(message.body) for message in found] == [b"0", b"2", b"4", b"6", b"8"]
    assert all(message.headers == {"n": bytes(message.body)} for message in found)
    assert {message.routing_key for message in found} == {"even"}
    queue.ack(found)


def test_what_was_read_can_be_written(spark: Any, node: warren.Node, queue: warren.Queue, reading: Options) -> None:
    """Keys, headers and nulls are in the copy what they were; column names are compared without case."""
    made = spark.createDataFrame(
        [("a", b"1", [("h", b"1"), ("h", None)]), (None, b"2", None), (None, b"3", [])],
        "KEY string, Value binary, headers array<struct<key:string, value:binary>>",
    )
    made.write.format("warren").options(**reading()).mode("append").save()
    target = node.queue(f"{queue.name}-copy")
    frame = spark.read.format("warren").options(**reading(includeHeaders="true")).load()
    frame.write.format("warren").option("path", str(node.directory)).option("queue", target.name).mode("append").save()
    copied = spark.read.format("warren").options(**reading(includeHeaders="true", queue=target.name)).load()
    assert {(row.key and bytes(row.key), bytes(row.value), str(row.headers)) for row in copied.collect()} == {
        (b"a", b"1", "[Row(key='h', value=b'1'), Row(key='h', value=None)]"),
        (None, b"2", "None"),
        (None, b"3", "[]"),
    }
    target.delete()


def test_a_target_in_each_row(spark: Any, node: warren.Node, queue: warren.Queue) -> None:
    topic = node.topic("rows-of-spark")
    frame = spark.range(100).selectExpr(
        "cast(id as string) as value",
        f"if(id < 40, '{queue.name}', null) as queue",
        "if(id < 40, null, 'rows-of-spark') as topic",
        "cast(id % 7 as string) as key",
        "timestamp_seconds(id) as timestamp",
        "interval 1 hour * if(id = 99, 1, 0) as delay",
    )
    frame.write.format("warren").option("path", str(node.directory)).mode("append").save()
    with warren.attach(node.directory, name="reader") as other:
        counted = other.topic("rows-of-spark").stats()
        other.topic("rows-of-spark").delete()
    assert (queue.depth(), counted["appended"], counted["delayed"]) == (40, 59, 1)
    assert topic.queues == 4


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queue": "no-such-queue"}, "QueueNotFound"),
        ({"path": "/nowhere/at/all"}, "NodeNotRunning"),
        ({"queue": ""}, "nothing says what is read: give option 'queue'"),
        ({"subscribe": "flights"}, "give one of the options 'queue' and 'subscribe'"),
    ],
)
def test_read_errors(spark: Any, queue: warren.Queue, reading: Options, options: dict[str, str], told: str) -> None:
    with pytest.raises(PySparkException, match=told):
        spark.read.format("warren").options(**reading(timeout="2", **{**reading(), **options})).load().collect()


def test_write_errors(spark: Any, node: warren.Node, queue: warren.Queue) -> None:
    writer = spark.range(3).selectExpr("cast(id as string) as value").write.format("warren")
    writer = writer.option("path", str(node.directory))
    with pytest.raises(PySparkException, match="QueueNotFound"):
        writer.option("queue", "no-such-queue").mode("append").save()
    empty = spark.range(0).selectExpr("cast(id as string) as value").write.format("warren")
    with pytest.raises(PySparkException, match="QueueNotFound"):
        empty.option("path", str(node.directory)).option("queue", "no-such-queue").mode("append").save()
    with pytest.raises(AnalysisException, match="append"):
        writer.option("queue", queue.name).mode("overwrite").save()
    assert queue.depth() == 0


def test_the_path_may_be_relative(
    spark: Any, node: warren.Node, queue: warren.Queue, reading: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put(b"x")
    relative = os.path.relpath(node.directory)
    assert not Path(relative).is_absolute()
    assert spark.read.format("warren").options(**{**reading(), "path": relative}).load().count() == 1


def test_idle_workers_are_ended_before_spark_closes_their_sockets(spark: Any) -> None:
    def passed(batches: Any) -> Any:
        yield from batches

    frame = spark.range(10).mapInArrow(passed, "id long")
    assert frame.count() == 10
    workers = session.idle_workers()
    assert workers
    session.hang_up(workers)
    wait_until(lambda: not set(workers) & set(session.idle_workers()), 30, what="the end of the workers")
    assert frame.count() == 10  # by others
