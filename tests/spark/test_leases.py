"""Goal: a batch of the native scan is kept from retention while it is read, for as long as that takes, and not longer:
by any action on its frame, first or later, that ends or fails; also when the planner, or the node, is killed meanwhile.

Method: jobs whose tasks wait for a file; the word of the planner's client slot says whether it holds something. The
session holds what nobody reads for HOLD_S.
"""

import json
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException

import warren
from warren.workers.spark import native

from support.real_node import RealNode
from support.spark_queries import HOLD_S, finished, holders
from support.topic_log import log_files
from support.waiting import patience, wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(native.jar() is None, reason=native.missing() or "it is there"),
]

WAIT_S = 60.0


@pytest.fixture
def topic(client: warren.Node) -> Iterator[warren.Topic]:
    """A new topic with messages in its only queue."""
    made = client.topic(f"t-{uuid.uuid4().hex[:8]}", queues=1)
    made.append_many([b"%d" % n for n in range(100)])
    yield made
    made.delete()


def frame_of(spark: Any, topic: warren.Topic, **options: str) -> Any:
    given = {"path": str(topic._client.directory.path), "subscribe": topic.name, "scan": "native", **options}
    return spark.read.format("warren").options(**given).load()


class Job:
    """An action on a frame, whose tasks wait for a file before their second Arrow batch, or the end of the first."""

    def __init__(self, frame: Any, folder: Path, action: str = "collect") -> None:
        self.began, self.go = folder / "began", folder / "go"
        began, go, wait_s = str(self.began), str(self.go), WAIT_S * patience()

        def waiting(batches: Any) -> Any:
            for batch in batches:
                Path(began).touch()
                until = time.monotonic() + wait_s
                while not Path(go).exists():
                    assert time.monotonic() < until, "nobody said that it goes on"
                    time.sleep(0.02)
                assert Path(go).read_text() != "fail"
                yield batch

        self.frame = frame.select("offset").mapInArrow(waiting, "offset long")
        self.action = action
        self.found: list[int] = []
        self.error: Exception | None = None

    def __enter__(self) -> "Job":
        """Begin, and wait until a task has rows."""
        self.began.unlink(missing_ok=True)
        self.go.unlink(missing_ok=True)
        self.error = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        wait_until(lambda: self.began.exists() or self.error, WAIT_S, what="the first rows")
        return self

    def _run(self) -> None:
        try:
            self.found = [row.offset for row in getattr(self.frame, self.action)()]
        except Exception as problem:  # noqa: BLE001 - looked at by the test
            self.error = problem

    def end(self, how: str = "go") -> None:
        """Let it go on, and wait for its end."""
        beside = self.go.with_suffix(".new")
        beside.write_text(how)
        beside.rename(self.go)
        self.thread.join()

    def __exit__(self, *_error: object) -> None:
        if self.thread.is_alive():
            self.end()


def given_back(node: warren.Node) -> None:
    wait_until(lambda: not holders(node), WAIT_S, what="that nothing is held")


def test_it_is_held_as_long_as_an_action_takes(
    spark: Any, client: warren.Node, topic: warren.Topic, tmp_path: Path
) -> None:
    """Messages of another topic, which lie before, show that retention has looked."""
    earlier = client.topic(f"{topic.name}-earlier", queues=1)
    earlier.append_many([b"x" * 100] * 100)
    topic.append_many([b"%d" % n for n in range(100, 200)])
    job = Job(frame_of(spark, topic, startingOffsets=json.dumps({topic.name: {"0": 100}})), tmp_path)
    for retention_bytes in (10_000, 1):  # Spark plans it once, and reads it twice
        began = time.monotonic()
        with job:
            wait_until(lambda: holders(client), WAIT_S, what="a hold")
            wait_until(lambda until=began + 1.5 * HOLD_S: time.monotonic() > until, WAIT_S)  # longer than unread ones
            topic.set(retention_bytes=1)
            low = earlier.offsets(0)[0]
            earlier.set(retention_bytes=retention_bytes)
            wait_until(lambda low=low: earlier.offsets(0)[0] > low, WAIT_S, what="retention")
            assert holders(client)
            assert topic.offsets(0)[0] == 100
            topic.set(retention_bytes=None)
            job.end()
        assert job.error is None
        assert job.found == list(range(100, 200))
        given_back(client)
    earlier.delete()
    topic.append(b"last")
    topic.set(retention_bytes=1)
    wait_until(lambda: topic.offsets(0)[0] == 200, WAIT_S, what="the retention")


def test_an_action_that_fails_gives_it_back(
    spark: Any, client: warren.Node, topic: warren.Topic, tmp_path: Path
) -> None:
    with Job(frame_of(spark, topic), tmp_path) as job:
        assert holders(client)
        job.end("fail")
    assert isinstance(job.error, PySparkException)
    given_back(client)


def test_a_later_action_holds_what_is_still_there(
    spark: Any, client: warren.Node, topic: warren.Topic, tmp_path: Path
) -> None:
    frame = frame_of(spark, topic)
    assert frame.count() == 100
    given_back(client)
    topic.append_many([b"x" * 100] * 100)
    topic.set(retention_bytes=26_000)  # so much have these, and half of those before
    gone = wait_until(lambda: topic.offsets(0)[0], WAIT_S, what="the retention")
    assert 0 < gone < 90
    with Job(frame.filter("offset >= 90"), tmp_path) as job:
        assert holders(client)
        topic.set(retention_bytes=1)
        job.end()
    assert job.error is None
    assert job.found == list(range(90, 100))
    given_back(client)
    wait_until(lambda: topic.offsets(0)[0] > gone, WAIT_S, what="the retention")


def test_a_plan_that_nobody_reads_is_held_for_a_time(spark: Any, client: warren.Node, topic: warren.Topic) -> None:
    began = time.monotonic()
    frame = frame_of(spark, topic)
    assert "BatchScan" in frame._jdf.queryExecution().executedPlan().toString()
    given_back(client)
    assert time.monotonic() >= began + HOLD_S


def test_a_job_without_a_query_holds_it_and_for_a_time_behind_it(
    spark: Any, client: warren.Node, topic: warren.Topic, tmp_path: Path
) -> None:
    """Spark says that a query ends when its rows can be asked for, one job after the other."""
    frame = frame_of(spark, topic, maxRecordsPerPartition="50")
    with Job(frame, tmp_path, "toLocalIterator") as job:
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + 1.5 * HOLD_S, WAIT_S)
        assert holders(client)
        ended = time.monotonic()
        job.end()
    assert job.error is None
    assert job.found == list(range(100))
    given_back(client)
    assert time.monotonic() >= ended + HOLD_S


def test_subqueries_joins_and_caches(spark: Any, client: warren.Node, topic: warren.Topic, tmp_path: Path) -> None:
    frame = frame_of(spark, topic)
    frame.createOrReplaceTempView("of_a_topic")
    cached = frame.select("offset").cache()
    try:
        found = spark.sql("select count(*) from of_a_topic where offset > (select avg(offset) from of_a_topic)")
        assert found.collect() == [(50,)]
        given_back(client)
        assert frame.join(cached, "offset").count() == 100
        given_back(client)
        cached.unpersist()
        with Job(cached.union(frame.select("offset")).coalesce(1), tmp_path) as job:
            assert holders(client)
            job.end()
        assert job.error is None
        assert len(job.found) == 200
        given_back(client)
    finally:
        spark.catalog.dropTempView("of_a_topic")
        cached.unpersist()


def test_when_the_planner_is_killed_another_one_holds_it(
    spark: Any, client: warren.Node, topic: warren.Topic, tmp_path: Path
) -> None:
    with Job(frame_of(spark, topic), tmp_path) as job:
        (planner,) = holders(client)
        psutil.Process(planner).send_signal(signal.SIGKILL)
        wait_until(lambda: any(pid != planner for pid in holders(client)), WAIT_S, what="another planner's hold")
        job.end()
    assert job.found == list(range(100))
    given_back(client)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_node_that_is_started_anew_in_the_middle(spark: Any, tmp_path: Path, how: str) -> None:
    """Also what comes behind it: the same frame, another one, a stream, and a message that is damaged."""
    count = 40_000
    with RealNode(tmp_path / "data", workers=1) as running:
        with warren.attach(running.directory) as client:
            topic = client.topic("kept", queues=1)
            for part in range(8):
                topic.append_many([b"%0100d" % n for n in range(part * 5000, (part + 1) * 5000)])
            frame = frame_of(spark, topic)
        options = {"path": str(running.directory), "subscribe": "kept", "scan": "native"}
        options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(count)}
        lines = spark.readStream.format("warren").options(**options).load().select("offset")
        writer = lines.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True)
        finished(writer)
        with Job(frame, tmp_path) as job:
            if how == "stopped":
                running.stop()
            else:
                running.kill_all()
            running.start()
            with warren.attach(running.directory) as client:
                wait_until(lambda: holders(client), WAIT_S, what="the hold at the node of now")
            job.end()
        assert job.error is None
        assert job.found == list(range(count))
        with warren.attach(running.directory) as client:
            given_back(client)
            assert frame.count() == count
            topic = client.topic("kept")
            topic.append_many([b"%0100d" % n for n in range(count, count + 10)])
            assert frame_of(spark, topic).count() == count + 10
            finished(writer)
            found = spark.read.parquet(str(tmp_path / "out")).collect()
            assert sorted(row.offset for row in found) == list(range(count + 10))
            (log,) = log_files(running.directory / "topics/commitlog")
            with log.open("r+b") as file:
                at = log.read_bytes().index(b"%0100d" % 20_000)
                file.seek(at)
                file.write(b"x")
            wrong = frame_of(spark, topic, startingOffsets=json.dumps({"kept": {"0": 19_999}}))
            with pytest.raises(PySparkException, match="CorruptRecord"):
                wrong.collect()
