"""The native scan: the same rows as Python's source, the same errors, and what it saves.

Method: a node with small files, topics with whatever a message can have, and each read done by both scans through the
shared session. Damage is put into the files.
"""

import array
import fcntl
import json
import mmap
import signal
import termios
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import warren
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.topics.formats import CONSUME_QUEUE_UNIT, UNIT_EMPTY
from warren.workers.process.control import ControlClient
from warren.workers.spark import native, session

from support.spark_queries import begin, finished
from support.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(native.jar() is None, reason=native.missing() or "it is there"),
]

FILE_BYTES = 4 << 20
FILE_ENTRIES = 100


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[warren.Node]:
    """A node whose log and consume queues have many files."""
    directory = tmp_path_factory.mktemp("small") / "data"
    settings = {"log_file_bytes": FILE_BYTES, "topic_ring_bytes": 4 << 20, "consume_queue_entries": FILE_ENTRIES}
    with warren.open(directory, workers=1, name="tests", **settings) as opened:
        warm = opened.topic("first", queues=1)
        warm.append(b"x")
        assert warm.read().records
        warm.delete()
        yield opened
        with ControlClient(directory) as control:
            control.call("stop")


@pytest.fixture
def client(small: warren.Node) -> Iterator[warren.Node]:
    """A client of the test's own, which takes along what readers keep open."""
    with warren.attach(small.directory, name="test") as attached:
        yield attached


@pytest.fixture
def topic(client: warren.Node) -> Iterator[warren.Topic]:
    """A new topic of two queues."""
    made = client.topic(f"t-{uuid.uuid4().hex[:8]}", queues=2)
    yield made
    client.topic(made.name).delete()


def reading(spark: Any, topic: warren.Topic, **options: str) -> Any:
    """A batch of the topic."""
    given = {"path": str(topic._client.directory.path), "subscribe": topic.name, "scan": "native", **options}
    return spark.read.format("warren").options(**given)


def rows(frame: Any) -> list[Any]:
    """All rows, in the order of their places."""
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def both(spark: Any, topic: warren.Topic, **options: str) -> list[Any]:
    """The rows of the native scan, which are those of Python's."""
    found = rows(reading(spark, topic, **options).load())
    frame = reading(spark, topic, **{**options, "scan": "python"}).load()
    assert "(Python)" in frame._jdf.queryExecution().executedPlan().toString()
    wanted = rows(frame)
    assert found == wanted
    return found


def folder(topic: warren.Topic) -> TopicsFolder:
    return TopicsFolder.of(topic._client.directory.path)


def overwrite(path: Path, place: int, content: bytes) -> bytes:
    """Put other bytes there; what was there."""
    with path.open("r+b") as file:
        file.seek(place)
        before = file.read(len(content))
        file.seek(place)
        file.write(content)
    return before


def damage(topic: warren.Topic, body: bytes, queue: int = 0) -> tuple[Path, int]:
    """Another byte in the body of a message: the file, and its place there. The first are in memory no more."""
    record = next(
        record for record in topic.read(queue, 0, max=10_000, max_bytes=1 << 30).records if record.body == body
    )
    base = record.physical_offset - record.physical_offset % FILE_BYTES
    path = folder(topic).log / f"{base:020d}"
    at = path.read_bytes().index(body, record.physical_offset - base)
    overwrite(path, at, bytes([body[0] ^ 1]))
    return path, at


def fill(topic: warren.Topic) -> None:
    """Of each kind some."""
    topic.append(b"", queue=0)
    topic.append(b"plain", queue=0)
    topic.append(b"key", key="N14228", queue=0)
    topic.append(b"keys", key=["N14228", "über", "a%20b%00"], tag="UA", queue=0)
    topic.append(b"tag", tag="päckchen", queue=1)
    topic.append(b"headers", properties={"to": "IAH", "leer": "", "ö": "ü 漢字 🐇"}, queue=1)
    topic.append(b"all", key="k", tag="UA", properties={"KEYSX": "1", "TAG": "2", "KEY": "3"}, queue=1)
    topic.append(bytes(range(256)) * 4096, key="large", queue=0)
    for part in range(8):
        bodies = [b"%d-%d-" % (part, n) + bytes(n % 97) for n in range(200)]
        keys = [f"k{n % 7}" for n in range(200)]
        tags = [["UA", "B6", "AA"][n % 3] for n in range(200)]
        topic.append_many(bodies, keys=keys, tags=tags, queue=part % 2)
    topic.append_many([b"behind " * 100_000] * 8, queue=1)  # what was before is in no memory any more


def test_both_scans_give_the_same_rows(spark: Any, topic: warren.Topic) -> None:
    fill(topic)
    found = both(spark, topic, includeHeaders="true", includeTimestampType="true", minPartitions="7")
    assert len(found) == 8 + 1600 + 8
    assert {row.partition for row in found} == {0, 1}
    assert found[0].value == b""
    assert found[0].key is None
    assert found[3].key == "N14228 über a%20b%00".encode()
    assert len(list(folder(topic).log.iterdir())) > 1
    assert len(list((folder(topic).queues / topic.name / "0").iterdir())) > 1
    both(spark, topic, includeValue="false")


def test_filters_of_the_options_are_the_same(spark: Any, topic: warren.Topic) -> None:
    fill(topic)
    assert len(both(spark, topic, tags="UA")) == 2 + 67 * 8
    assert len(both(spark, topic, tags="päckchen, nix")) == 1
    assert len(both(spark, topic, keys="N14228, k3")) == 2 + 8 * 29
    middle = topic.read(0, 700, max=1).records[0].timestamp
    later = both(spark, topic, timestampFrom=str(middle))
    before = both(spark, topic, timestampTo=str(middle))
    assert len(later) + len(before) == 1616
    both(spark, topic, tags="UA,AA", keys="k1", timestampFrom=str(middle))
    both(spark, topic, startingOffsets=json.dumps({topic.name: {"0": 250, "1": 0}}))


def test_filters_and_columns_of_a_query_save_reading_and_change_nothing(spark: Any, topic: warren.Topic) -> None:
    fill(topic)
    frame = reading(spark, topic).load()
    apart = spark.createDataFrame(frame.collect(), frame.schema)  # nothing is pushed there
    for condition in (
        "tag = 'UA'",
        "tag in ('B6', 'nix')",
        "tag = 'UA' and tag = 'B6'",
        "tag is null",
        "not tag = 'UA'",
        "partition = 1 and offset > 50 and offset <= 300",
        "partition in (0, 5) and offset >= 20 and offset < 21",
        "partition = 7",
        "offset = 9223372036854775807",
        "offset > 9223372036854775807 or key = 'k1'",
        "offset in (3, 5)",
        "topic = 'another'",
        "cast(value as string) like '3-%' and tag = 'AA'",
    ):
        assert rows(frame.filter(condition)) == rows(apart.filter(condition)), condition
    narrow = frame.filter("tag = 'UA' and partition = 1").select("offset")
    plan = narrow._jdf.queryExecution().executedPlan().toString()
    assert "pushed [EqualTo(tag,UA), EqualTo(partition,1)]" in plan
    assert "value" not in plan
    assert frame.count() == 1616  # a filter of one query is of no other


def test_a_query_sees_what_it_read(spark: Any, topic: warren.Topic) -> None:
    fill(topic)
    frame = reading(spark, topic).load()
    (row,) = frame.selectExpr("sum(length(value))", "max(tag)", "min(key)", "count(distinct offset)").collect()
    wanted = [record for queue in (0, 1) for record in topic.read(queue, 0, 10_000, 1 << 30).records]
    tags = [record.tag for record in wanted if record.tag is not None]
    keys = [" ".join(record.keys).encode() for record in wanted if record.keys]
    assert list(row) == [sum(len(record.body) for record in wanted), max(tags), min(keys), 811]
    ordered = frame.orderBy("value", ascending=False).limit(3).collect()  # rows that are kept are copies
    assert [bytes(row.value) for row in ordered] == sorted((record.body for record in wanted), reverse=True)[:3]


def test_damage_is_the_same_error_and_may_be_passed_by(spark: Any, topic: warren.Topic) -> None:
    fill(topic)
    path, at = damage(topic, b"0-7-" + bytes(7))
    for scan in ("native", "python"):
        with pytest.raises(PySparkException, match=rf"{path.name}") as error:
            reading(spark, topic, scan=scan).load().collect()
        assert "CorruptRecord" in str(error.value)
    assert len(both(spark, topic, failOnDataLoss="false")) == 1615
    assert reading(spark, topic).load().count() == 1616  # nobody asked for the body
    overwrite(path, at, b"0")
    assert len(both(spark, topic)) == 1616
    unit = folder(topic).queues / topic.name / "0" / f"{FILE_ENTRIES * CONSUME_QUEUE_UNIT.size:020d}"
    size_at = 5 * CONSUME_QUEUE_UNIT.size + CONSUME_QUEUE_UNIT.offset("size")
    for wrong in (0, 77, 0x7FFFFFFE):
        before = overwrite(unit, size_at, wrong.to_bytes(4, "big"))
        with pytest.raises(PySparkException, match="CorruptRecord"):
            reading(spark, topic).load().collect()
        overwrite(unit, size_at, before)


def test_damage_of_what_is_in_memory_is_an_error_in_words(spark: Any, topic: warren.Topic) -> None:
    fill(topic)
    last = topic.append(b"the newest", queue=1)
    topic.append(bytes(2 * mmap.PAGESIZE), queue=0)  # the next commit writes the last page again, and would mend it
    path, at = damage(topic, b"the newest", 1)
    told = rf"message {last.offset} is not whole in the files of the node \(found: no record: crc\), but its memory"
    with pytest.raises(PySparkException, match=told) as error:
        reading(spark, topic).load().collect()
    assert "`warren check`" in str(error.value)
    assert reading(spark, topic, scan="python").load().count() == 1618
    overwrite(path, at, b"t")
    assert len(both(spark, topic)) == 1618


def test_an_offset_without_a_message_gives_no_row(spark: Any, topic: warren.Topic) -> None:
    fill(topic)
    unit = folder(topic).queues / topic.name / "1" / f"{0:020d}"
    empty = bytes(8) + UNIT_EMPTY.to_bytes(4, "big") + bytes(8)
    before = overwrite(unit, 9 * CONSUME_QUEUE_UNIT.size, empty)
    found = both(spark, topic)
    assert len(found) == 1615
    assert 9 not in {row.offset for row in found if row.partition == 1}
    overwrite(unit, 9 * CONSUME_QUEUE_UNIT.size, before)


def test_a_topic_that_was_made_anew_shows_nothing_to_an_older_plan(
    spark: Any, client: warren.Node, topic: warren.Topic
) -> None:
    topic.append_many([b"%d" % n for n in range(100)], queue=0)
    frame = reading(spark, topic).load()
    assert frame.count() == 100
    topic.delete()
    anew = client.topic(topic.name, queues=2)
    anew.append_many([b"x%d" % n for n in range(100)], queue=0)
    with pytest.raises(PySparkException, match="deleted and made again"):
        frame.collect()
    assert {bytes(row.value)[:1] for row in rows(reading(spark, anew).load())} == {b"x"}


def test_a_compacted_topic_is_read_in_python(spark: Any, client: warren.Node) -> None:
    made = client.topic(f"c-{uuid.uuid4().hex[:8]}", queues=1, compacted=True)
    made.append(b"1", key="k")
    assert [bytes(row.value) for row in reading(spark, made, scan="auto").load().collect()] == [b"1"]
    with pytest.raises(PySparkException, match="compacted"):
        reading(spark, made).load().collect()
    made.delete()


def test_mistakes_are_errors_of_the_planner(spark: Any, topic: warren.Topic) -> None:
    for wrong, words in (
        ({"scan": "fast"}, "scan"),
        ({"subscribe": "nowhere"}, "there is no topic 'nowhere'"),
        ({"startingOffset": "earliest"}, "(?i)unknown option 'startingOffset'"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger"),
    ):
        with pytest.raises(PySparkException, match=words):
            reading(spark, topic, **wrong).load().count()
    with pytest.raises(PySparkException, match="no column 'nix'"):
        reading(spark, topic).schema("nix string").load().count()
    frame = reading(spark, topic).schema("VALUE binary, Offset bigint").load()
    topic.append(b"x")
    assert [tuple(row) for row in frame.collect()] == [(bytearray(b"x"), 0)]


def test_a_table_in_sql(spark: Any, topic: warren.Topic) -> None:
    topic.append_many([b"a", b"b"], queue=1)
    place = str(topic._client.directory.path)
    spark.sql(f"create table by_option using warren options (path '{place}', subscribe '{topic.name}')")
    spark.sql(f"create table by_location using warren options (subscribe '{topic.name}') location '{place}'")
    try:
        for table in ("by_option", "by_location"):
            assert spark.sql(f"select offset from {table} where partition = 1 order by 1").collect() == [(0,), (1,)]
    finally:
        spark.sql("drop table by_option")
        spark.sql("drop table by_location")


def test_a_stream_changes_its_scan_at_any_batch(spark: Any, topic: warren.Topic, tmp_path: Path) -> None:
    wanted: list[bytes] = []
    for run, scan in enumerate(("native", "python", "auto")):
        more = [b"%d-%d" % (run, n) for n in range(60)]
        topic.append_many(more[:30], queue=0)
        topic.append_many(more[30:], queue=1)
        wanted += more
        options = {"path": str(topic._client.directory.path), "subscribe": topic.name, "scan": scan}
        options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "25"}
        frame = spark.readStream.format("warren").options(**options).load()
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = finished(writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True))
        assert [part.numInputRows for part in query.recentProgress if part.numInputRows] == [25, 25, 10]
        (source,) = query.recentProgress[-1].sources
        assert ("native" in source.description) == (scan != "python")
        if scan != "python":
            assert source.metrics["maxOffsetsBehindLatest"] == "0"
    found = spark.read.schema("value binary").parquet(str(tmp_path / "out")).collect()
    assert sorted(bytes(row.value) for row in found) == sorted(wanted)


def test_a_checkpoint_is_written_by_warren_or_by_spark(spark: Any, topic: warren.Topic, tmp_path: Path) -> None:
    """Runs of a stream in turn; what each has written is read by the next one, nothing is left beside it."""
    setting = session.CHECKPOINTS_SETTING
    assert spark.conf.get(setting) == session.CHECKPOINTS
    options = {"path": str(topic._client.directory.path), "subscribe": topic.name, "startingOffsets": "earliest"}
    frame = spark.readStream.format("warren").options(**options).load().groupBy("partition").count()
    state = tmp_path / "state"
    writer = frame.writeStream.format("memory").queryName(topic.name.replace("-", "_")).outputMode("complete")
    writer = writer.option("checkpointLocation", str(state)).trigger(availableNow=True)
    try:
        for run, manager in enumerate((session.CHECKPOINTS, None, session.CHECKPOINTS, None), 1):
            topic.append_many([b"x"] * 10, queue=0)
            if manager is None:
                spark.conf.unset(setting)
            else:
                spark.conf.set(setting, manager)
            finished(writer)
            assert spark.table(topic.name.replace("-", "_")).collect() == [(0, 10 * run)]
            assert not [path for path in state.rglob("*") if ".tmp" in path.name]
    finally:
        spark.conf.set(setting, session.CHECKPOINTS)
    assert len(list((state / "commits").glob("[0-9]*"))) >= 4


def test_a_file_of_a_checkpoint_is_replaced_only_if_that_is_said(spark: Any, tmp_path: Path) -> None:
    jvm, folder = spark._jvm, tmp_path / "new" / "state"
    checkpoint = getattr(jvm, session.CHECKPOINTS)
    place = jvm.org.apache.hadoop.fs.Path(folder.as_uri())
    made = checkpoint(place, spark._jsc.hadoopConfiguration())
    path = jvm.org.apache.hadoop.fs.Path(place, "0")

    def write(what: bytes, overwrite: bool) -> Any:
        stream = made.createAtomic(path, overwrite)
        stream.write(what)
        return stream

    write(b"first", False).close()
    second = write(b"second", False)
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        second.close()
    assert (folder / "0").read_bytes() == b"first"
    write(b"not wanted", True).cancel()
    (folder / ".0.crc").write_bytes(b"of the file before")
    write(b"third", True).close()
    assert made.exists(path)
    assert made.isLocal()
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir() if "tmp" not in entry.name} == {"0": b"third"}
    made.delete(path)
    assert not made.exists(path)


def planners() -> list[psutil.Process]:
    """The processes that plan for this session."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "warren.workers.spark.native_planner" in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            pass  # it ended meanwhile
    return found


def test_a_planner_that_was_killed_is_followed_by_another(spark: Any, topic: warren.Topic) -> None:
    topic.append_many([b"a", b"b"], queue=1)
    frame = reading(spark, topic).load()
    assert frame.count() == 2
    (planner,) = planners()
    planner.send_signal(signal.SIGKILL)
    wait_until(lambda: not planner.is_running() or planner.status() == psutil.STATUS_ZOMBIE, 30, what="its end")
    assert frame.count() == 2  # it was planned
    wait_until(lambda: reading(spark, topic).load().count() == 2, 30, what="another planner")
    assert len(planners()) == 1


#: a stream asks the planner sooner
ASKED_S = 5.0


def unread(descriptor: int) -> int:
    """How many bytes of a pipe nobody has read yet."""
    found = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, found)
    return found[0]


def test_a_query_that_is_stopped_has_no_error(spark: Any, topic: warren.Topic, tmp_path: Path) -> None:
    """Method: the planner stands still, so that the query is asking it when it is stopped."""
    topic.append(b"a", queue=1)
    given = {"path": str(topic._client.directory.path), "subscribe": topic.name, "scan": "native"}
    frame = spark.readStream.format("warren").options(**given, startingOffsets="earliest").load()
    writer = frame.writeStream.format("noop")
    query = begin(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    wait_until(lambda: query.lastProgress is not None, 60, what="a micro-batch")
    (planner,) = planners()
    planner.suspend()
    try:
        topic.append(b"b", queue=1)
        with open(f"/proc/{planner.pid}/fd/0", "rb", buffering=0) as questions:
            until = time.monotonic() + ASKED_S  # it may have begun with the question, and stand still behind it
            while not unread(questions.fileno()) and time.monotonic() < until:
                time.sleep(0.01)
        later = threading.Timer(2.0, planner.resume)  # for the questions of the end
        later.start()
        query.stop()
        later.join()
    finally:
        planner.resume()
    assert query.exception() is None


def test_many_rows_in_arrow_sized_steps(spark: Any, topic: warren.Topic) -> None:
    table = pa.table({"value": [b"%06d" % n for n in range(30_000)], "tag": ["UA", "B6"] * 15_000})
    topic.append_arrow(table, queue=0)
    found = both(spark, topic, maxRecordsPerPartition="7000")
    assert [bytes(row.value) for row in found] == [b"%06d" % n for n in range(30_000)]
