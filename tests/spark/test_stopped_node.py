"""Goal: tasks outlast an orderly stop of the node: they go on where they were when it runs again, nothing is doubled.

Method: a task's part is played here: rows are published from batches, or claims read, while the node is stopped between
two batches, or in the middle of calls, and started again. Rule C17.
"""

import concurrent.futures
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

import warren
from warren.engine.errors import NodeNotRunning
from warren.engine.transactions.sink import Batch
from warren.workers.faces.node import client_of
from warren.workers.process.control import ControlClient
from warren.workers.spark import client, sink
from warren.workers.spark.data_source import WarrenDataSource
from warren.workers.spark.queue_options import QueueReadOptions
from warren.workers.spark.queue_source import QueueReader, QueueStreamReader
from warren.workers.spark.schema import row_schema
from warren.workers.spark.sink import publish
from warren.workers.spark.sink_options import SinkOptions
from warren.workers.spark.transactional_options import TransactionalOptions
from warren.workers.spark.transactional_sink import TransactionalStreamWriter, stage

from support.waiting import wait_until

COUNT, EACH = 30_000, 1000


def stop(directory: Path) -> None:
    with ControlClient(directory) as control:
        control.call("stop")


def opened(directory: Path, **settings: Any) -> warren.Node:
    return warren.open(directory, name="tests", idle_exit=120, **settings)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Of a node that runs; whatever client the tasks have is closed at the end, and the node stopped."""
    place = tmp_path / "data"
    opened(place, workers=1).close()
    yield place
    for attached in list(client._clients.values()):
        attached.close()
    client._clients.clear()
    stop(place)


def bodies(directory: Path, queue: str) -> list[int]:
    with opened(directory) as node:
        return [int(value) for batch in node.queue(queue).browse_arrow() for value in batch["value"].to_pylist()]


def batches(directory: Path, stops: list[int]) -> Iterator[pa.RecordBatch]:
    """Numbers, in batches; before those of `stops` the node is stopped, and started again a moment later."""
    starting: list[threading.Timer] = []
    for number in range(COUNT // EACH):
        if number in stops:
            stop(directory)
            starting.append(threading.Timer(0.5, lambda: opened(directory).close()))
            starting[-1].start()
        values = [b"%d" % n for n in range(number * EACH, (number + 1) * EACH)]
        yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    for timer in starting:
        timer.join()


def test_rows_are_published_once(directory: Path) -> None:
    with opened(directory) as node:
        node.queue("q")
    options = SinkOptions.parse({"path": str(directory), "queue": "q", "batchRows": "300"})
    assert publish(options, batches(directory, [5, 17])).messages == COUNT
    assert bodies(directory, "q") == list(range(COUNT))


def logged(topic: warren.Topic, queue: int) -> Iterator[tuple[str, int]]:
    """Keys and numbers of a queue of a topic."""
    at = 0
    while (batch := topic.read_arrow(queue, at)).num_rows:
        yield from zip(batch["key"].to_pylist(), map(int, batch["value"].to_pylist()), strict=True)
        at = batch["offset"][-1].as_py() + 1


STOPS, CALL = 4, 400


class Rows:
    """Numbers, in batches, until `over` is set; `made` of them."""

    def __init__(self) -> None:
        self.made = 0
        self.over = threading.Event()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while not self.over.is_set():
            numbers = range(self.made, self.made + 2 * CALL)
            self.made += 2 * CALL
            columns = {
                "value": pa.array([b"%d" % n for n in numbers], pa.binary()),
                "key": pa.array([str(n % 40) for n in numbers]),
            }
            yield pa.RecordBatch.from_pydict(columns)


def written_over_stops(directory: Path, target: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Write while the node is stopped and started several times, each time in the middle of a call; how many rows."""
    rows, outlasted = Rows(), []
    outlast = sink.Publisher._outlast

    def noted(self: sink.Publisher, rest: Any) -> None:
        outlasted.append(sum(piece.rows.count for _target, _name, piece in rest))
        outlast(self, rest)

    monkeypatch.setattr(sink.Publisher, "_outlast", noted)
    options = SinkOptions.parse({"path": str(directory), "batchRows": str(CALL), "timeout": "300", **target})
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        task = pool.submit(publish, options, iter(rows))
        try:
            for _ in range(STOPS):
                before, met = rows.made, len(outlasted)
                wait_until(lambda before=before: rows.made > before + 20 * CALL or task.done(), timeout=120)
                stop(directory)
                opened(directory).close()
                wait_until(lambda met=met: len(outlasted) > met or task.done(), timeout=120, what="who outlasts it")
        finally:
            rows.over.set()
        assert task.result().messages == rows.made
    assert sum(outlasted) > 0, "every stop came between two calls"
    return rows.made


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Path]:
    """Of a node with two workers and short rings, so that a stop meets calls that wait for room."""
    place = tmp_path / "data"
    opened(place, workers=2, ring_records=1024).close()
    yield place
    for attached in list(client._clients.values()):
        attached.close()
    client._clients.clear()
    stop(place)


def test_stops_in_the_middle_of_calls_for_a_queue(narrow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(narrow) as node:
        node.queue("q")
    made = written_over_stops(narrow, {"queue": "q"}, monkeypatch)
    assert bodies(narrow, "q") == list(range(made))


def test_stops_in_the_middle_of_calls_for_an_exchange(narrow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: each message goes to queues of both workers, which end at places of their own, and to a topic."""
    with opened(narrow) as node:
        node.declare_exchange("all", "fanout")
        for name in ("a", "b"):
            node.queue(name)
            node.bind(name, exchange="all")
        assert {client_of(node).catalog().queue(name).worker for name in ("a", "b")} == {0, 1}
        node.topic("log", queues=1)
        node.bind_topic("log", exchange="all")
    made = written_over_stops(narrow, {"exchange": "all"}, monkeypatch)
    assert bodies(narrow, "a") == list(range(made))
    assert bodies(narrow, "b") == list(range(made))
    with opened(narrow) as node:
        assert [value for _key, value in logged(node.topic("log", create=False), 0)] == list(range(made))


def test_stops_in_the_middle_of_calls_for_a_topic(narrow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key keeps its order, too."""
    with opened(narrow) as node:
        node.topic("t", queues=3)
    made = written_over_stops(narrow, {"topic": "t"}, monkeypatch)
    found: dict[str, list[int]] = {}
    with opened(narrow) as node:
        topic = node.topic("t", create=False)
        for queue in range(3):
            for key, value in logged(topic, queue):
                found.setdefault(key, []).append(value)
    assert found == {str(key): list(range(key, made, 40)) for key in range(40)}


def test_a_stop_while_a_full_queue_is_waited_for(narrow: Path) -> None:
    """What it refused is not there, and what it took is there once."""
    with opened(narrow) as node:
        node.queue("full", max_length=1000, overflow="reject-publish")
    options = SinkOptions.parse({"path": str(narrow), "queue": "full", "batchRows": "700", "timeout": "300"})
    values = pa.array([b"%d" % n for n in range(5000)], pa.binary())
    found: list[int] = []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        task = pool.submit(publish, options, iter([pa.RecordBatch.from_pydict({"value": values})]))
        for stopped in range(4):
            with opened(narrow) as node:
                queue = node.queue("full", max_length=1000, overflow="reject-publish")
                wait_until(lambda queue=queue: len(queue) == 1000 or task.done(), timeout=120)
                if stopped:
                    taken = queue.get_many(1000, timeout=10)
                    found += [int(message.body) for message in taken]
                    for message in taken:
                        message.ack()
            stop(narrow)
            opened(narrow).close()
        with opened(narrow) as node:
            queue = node.queue("full", max_length=1000, overflow="reject-publish")
            while not task.done() or len(queue):
                for message in queue.get_many(1000, timeout=1):
                    found.append(int(message.body))
                    message.ack()
        assert task.result().messages == 5000
    assert sorted(found) == list(range(5000))


def test_what_was_planned_is_read(directory: Path) -> None:
    with opened(directory) as node:
        node.queue("q").put_many([b"%d" % n for n in range(5000)])
        node.queue("claimed").put_many([b"%d" % n for n in range(5000)])
    given = {"path": str(directory), "batchRows": "1000", "minPartitions": "1", "timeout": "60"}

    def read(reader: Any, plan: Any) -> list[int]:
        found: list[int] = []
        for number, batch in enumerate(reader.read(plan)):
            if number == 2:
                stop(directory)
                timers.append(threading.Timer(0.5, lambda: opened(directory).close()))
                timers[-1].start()
            found += [int(value) for value in batch["value"].to_pylist()]
        return found

    timers: list[threading.Timer] = []
    reader = QueueReader(QueueReadOptions.parse({**given, "queue": "q"}), row_schema())
    [plan] = reader.partitions()
    assert read(reader, plan) == list(range(5000))
    stream = QueueStreamReader(QueueReadOptions.parse({**given, "queue": "claimed"}), row_schema())
    start = stream.initialOffset()
    [claims] = stream.partitions(start, end := stream.latestOffset(start, ReadAllAvailable()))
    assert read(stream, claims) == list(range(5000))
    stop(directory)
    timers.append(threading.Timer(0.5, lambda: opened(directory).close()))
    timers[-1].start()
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    stream.stop()
    for timer in timers:
        timer.join()


def test_a_transaction_is_planned_staged_and_committed(directory: Path) -> None:
    """The node is stopped before each of these; what commits is the copy that Spark makes of what planned."""
    with opened(directory) as node:
        node.topic("t", queues=2)
    given = {"path": str(directory), "topic": "t", "delivery": "transactional", "sinkId": "s", "timeout": "60"}
    options, schema = TransactionalOptions.parse(given), StructType([StructField("value", BinaryType())])
    timers: list[threading.Timer] = []

    def stopped() -> None:
        for timer in timers:
            timer.join()
        stop(directory)
        timers.append(threading.Timer(0.5, lambda: opened(directory).close()))
        timers[-1].start()

    source = WarrenDataSource(given)
    source.streamWriter(schema, False)
    stopped()
    planned = source.streamWriter(schema, False)
    stopped()
    batch = Batch("query", 0, "run")
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"%d" % n for n in range(EACH)], pa.binary())})
    staged = stage(options, batch, iter([rows]))
    for attached in list(client._clients.values()):
        attached.close()
    client._clients.clear()  # what commits is a process of its own, which was not attached before
    stopped()
    direct = pickle.loads(pickle.dumps(WarrenDataSource({"path": str(directory), "topic": "t"})))
    direct.streamWriter(schema, False).commit([], 0)
    committer = pickle.loads(pickle.dumps(source)).streamWriter(schema, False)
    assert isinstance(planned, TransactionalStreamWriter)
    committer.commit([staged], 0)
    timers[-1].join()
    with opened(directory) as node:
        topic = node.topic("t")
        found = [value for queue in range(2) for value in topic.read_arrow(queue)["value"].to_pylist()]
    assert sorted(found) == sorted(b"%d" % n for n in range(EACH))


def test_a_planner_does_not_wait_for_a_node_that_never_ran(tmp_path: Path) -> None:
    options = QueueReadOptions.parse({"path": str(tmp_path), "queue": "q", "timeout": "600"})
    with pytest.raises(NodeNotRunning):
        QueueStreamReader(options, row_schema()).initialOffset()
    (tmp_path / "data").mkdir()
    given = {"path": str(tmp_path / "data"), "topic": "t", "delivery": "transactional", "sinkId": "s", "timeout": "600"}
    with pytest.raises(NodeNotRunning):
        WarrenDataSource(given).streamWriter(StructType([StructField("value", BinaryType())]), False)
