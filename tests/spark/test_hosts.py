"""Several hosts: a node is read on its own, tasks elsewhere say so, or read the node's files where a mount shows them.

Method: another host is a path that names another directory, or none, when a task reads than it did when the read was
planned; a mount is the directory under another path. Two hosts of a Spark cluster: test_cluster_hosts.py.
"""

import dataclasses
import json
import pickle
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import warren
from warren.engine.errors import DataLoss, NodeNotRunning, StoreError, TimedOut, UsageError
from warren.workers.spark import hosts, topic_source
from warren.workers.spark.client import close_clients
from warren.workers.spark.data_source import WarrenDataSource

from support.snippets import ROOT, snippets
from support.spark_reads import read
from support.waiting import wait_until
from support.written_directory import RECORDS, TOPIC, body_of

pytestmark = pytest.mark.integration

Read = Callable[[Any, Any], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def own_client() -> Iterator[None]:
    """The client of the readers, and the files that they have open, which in Spark's workers stay until the end."""
    yield
    close_clients()
    for files in hosts._files.values():
        files.close()
    hosts._files.clear()


@pytest.fixture
def topic(client: warren.Node) -> Iterator[warren.Topic]:
    made = client.topic(f"h-{uuid.uuid4().hex[:8]}", queues=2)
    yield made
    if made.name in client.topics():
        client.topic(made.name).delete()


def source(**options: str) -> WarrenDataSource:
    return pickle.loads(pickle.dumps(WarrenDataSource(options)))


def batch_of(**options: str) -> Any:
    made = source(**options)
    return made.reader(made.schema())


def stream_of(**options: str) -> Any:
    made = source(**options)
    return made.streamReader(made.schema())


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return sorted(row["value"] for row in rows)


def fill(topic: warren.Topic, count: int, start: int = 0) -> list[bytes]:
    bodies = [b"%06d" % n for n in range(start, start + count)]
    for queue in (0, 1):
        topic.append_many(bodies[queue::2], queue=queue, keys="k", tags="t", properties={"a": "b"})
    return bodies


def moved(reader: Any, path: Path) -> Any:
    """The reader as a host has it on which its path is another directory, or none."""
    copy = pickle.loads(pickle.dumps(reader))
    copy.options = dataclasses.replace(copy.options, path=str(path))
    return copy


# -- a task elsewhere ------------------------------------------------------------------------------------------------


def planned_reads(client: warren.Node, topic: warren.Topic) -> Iterator[tuple[Any, Any]]:
    path = str(client.directory)
    fill(topic, 10)
    batch = batch_of(path=path, subscribe=topic.name)
    yield batch, batch.partitions()
    stream = stream_of(path=path, subscribe=topic.name, startingOffsets="earliest")
    start = stream.initialOffset()
    start = stream.latestOffset(start, ReadAllAvailable())  # the first one is empty
    yield stream, stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    stream.stop()
    queue = client.queue(topic.name)
    queue.put_many([b"1", b"2"])
    browse = batch_of(path=path, queue=queue.name)
    yield browse, browse.partitions()
    claims = stream_of(path=path, queue=queue.name)
    start = claims.initialOffset()
    yield claims, claims.partitions(start, claims.latestOffset(start, ReadAllAvailable()))
    claims.stop()
    queue.subscription(f"spark-{queue.name}").delete()
    queue.delete()


def test_a_read_elsewhere_says_so(
    client: warren.Node, topic: warren.Topic, written_files: Path, tmp_path: Path
) -> None:
    kinds = 0
    for reader, parts in planned_reads(client, topic):
        kinds += 1
        assert read(reader, parts)
        with pytest.raises(UsageError, match=r"runs on host .* another node's data directory .* 'mount'"):
            read(moved(reader, written_files), parts)
        with pytest.raises(UsageError, match=r"is no data directory of Warren; it is about node .* planned it"):
            read(moved(reader, tmp_path / "none"), parts)
    assert kinds == 4


def test_a_read_elsewhere_is_no_lost_data(client: warren.Node, topic: warren.Topic, written_files: Path) -> None:
    """With failOnDataLoss=false a read goes on with what is there: of its own node, never with another one's."""
    fill(topic, 4)
    reader = batch_of(path=str(client.directory), subscribe=topic.name, failOnDataLoss="false")
    parts = reader.partitions()
    with pytest.raises(UsageError, match="another node's data directory"):
        read(moved(reader, written_files), parts)


@pytest.mark.parametrize("delivery", ["direct", "transactional"])
def test_a_write_elsewhere_says_so(
    client: warren.Node, topic: warren.Topic, written_files: Path, tmp_path: Path, delivery: str
) -> None:
    options = {"path": str(client.directory), "topic": topic.name, "delivery": delivery}
    if delivery == "transactional":
        options["sinkId"] = topic.name
    schema = batch_of(path=str(client.directory), subscribe=topic.name).fields
    wanted = type(schema)([field for field in schema.fields if field.name == "value"])
    writer = source(**options).writer(wanted, False)
    rows = pa.RecordBatch.from_pydict({"value": [b"1", b"2"]})
    with pytest.raises(UsageError, match="another node's data directory"):
        moved(writer, written_files).write(iter([rows]))
    with pytest.raises(UsageError, match="is no data directory of Warren"):
        moved(writer, tmp_path / "none").write(iter([rows]))
    assert topic.offsets(0) == topic.offsets(1) == (0, 0)


def test_a_write_per_host(client: warren.Node, topic: warren.Topic, tmp_path: Path) -> None:
    """Each task writes into the node of its host; the driver's needs none."""
    schema = batch_of(path=str(client.directory), subscribe=topic.name).fields
    wanted = type(schema)([field for field in schema.fields if field.name == "value"])
    writer = source(path=str(tmp_path / "none"), topic=topic.name, perHost="true").writer(wanted, False)
    rows = pa.RecordBatch.from_pydict({"value": [b"1", b"2"]})
    assert moved(writer, Path(client.directory)).write(iter([rows])).messages == 2
    assert sum(topic.offsets(queue)[1] for queue in (0, 1)) == 2
    with pytest.raises(UsageError, match=r"perHost.* has no node at .*none"):
        pickle.loads(pickle.dumps(writer)).write(iter([rows]))


# -- a mount ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def mounted(client: warren.Node, tmp_path: Path) -> dict[str, str]:
    """Options of a host that sees the node's files, and has no node at the path."""
    mount = tmp_path / "mount"
    mount.symlink_to(client.directory)
    return {"path": str(tmp_path / "none"), "mount": str(mount)}


def settled(topic: warren.Topic, mounted: dict[str, str], count: int) -> None:
    """Wait until the node's checkpoint has so many messages of a topic."""
    files = hosts.files_at(mounted["mount"])

    def there() -> bool:
        files.refresh()
        reading = files.reading(files.topics()[topic.name])
        return sum(reading.offsets(queue)[1] for queue in (0, 1)) == count

    wait_until(there, 60, what="the checkpoint")


def test_files_give_what_the_node_gives(client: warren.Node, topic: warren.Topic, mounted: dict[str, str]) -> None:
    fill(topic, 1000)
    settled(topic, mounted, 1000)
    more = {"subscribe": topic.name, "includeHeaders": "true", "minPartitions": "5"}
    rows = [
        read(reader, reader.partitions())
        for reader in (batch_of(path=str(client.directory), **more), batch_of(**mounted, **more))
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 1000
    stored = str(int(rows[0][0]["timestamp"].timestamp() * 1000))
    for option, value in (("tags", "u"), ("keys", "k"), ("startingTimestamp", stored), ("timestampTo", stored)):
        chosen = {**more, option: value}
        sides = [batch_of(path=str(client.directory), **chosen), batch_of(**mounted, **chosen)]
        assert read(sides[0], sides[0].partitions()) == read(sides[1], sides[1].partitions())


def test_a_stream_goes_on_between_node_and_files(
    client: warren.Node, topic: warren.Topic, mounted: dict[str, str]
) -> None:
    """What one host committed, another one goes on with: at once by the node, and by the files when they have it."""
    bodies = fill(topic, 100)
    here = {**mounted, "path": str(client.directory), "subscribe": topic.name, "startingOffsets": "earliest"}
    there = {**mounted, "subscribe": topic.name, "startingOffsets": "earliest"}
    first = stream_of(**here)
    start = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    end = first.latestOffset(start, ReadMaxRows(60))
    rows = read(moved(first, Path(there["path"])), first.partitions(start, end))  # a task elsewhere waits for the files
    first.stop()
    second = stream_of(**there)
    last = second.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    rows += read(second, second.partitions(end, last))
    bodies += fill(topic, 50, 100)
    settled(topic, mounted, 150)
    newest = second.latestOffset(last, ReadAllAvailable())
    rows += read(second, second.partitions(last, newest))
    assert values(rows) == bodies


def test_files_of_a_node_that_is_down(written_files: Path) -> None:
    reader = batch_of(path=str(written_files), mount=str(written_files), subscribe=TOPIC)
    assert values(read(reader, reader.partitions())) == sorted(body_of(n) for n in range(RECORDS))
    with pytest.raises(NodeNotRunning, match="no node runs"):
        batch_of(path=str(written_files), subscribe=TOPIC, timeout="1").partitions()


def test_what_the_files_do_not_get_is_said(topic: warren.Topic, mounted: dict[str, str]) -> None:
    fill(topic, 10)
    settled(topic, mounted, 10)
    reader = batch_of(**mounted, subscribe=topic.name, timeout="0.5")
    parts = [dataclasses.replace(part, end=part.end + 7) for part in reader.partitions()]
    with pytest.raises(TimedOut, match=r"have offsets up to 5, 7 messages less than is wanted"):
        read(reader, parts)
    beyond = stream_of(**mounted, subscribe=topic.name, timeout="0.5", startingOffsets="earliest")
    offset = beyond.initialOffset()
    offset[topic.name]["0"] = 12
    with pytest.raises(StoreError, match="older than the checkpoint"):
        beyond.latestOffset(offset, ReadAllAvailable())


def test_what_retention_took_is_a_loss(topic: warren.Topic, mounted: dict[str, str]) -> None:
    fill(topic, 40)
    settled(topic, mounted, 40)
    reader = batch_of(**mounted, subscribe=topic.name)
    parts = reader.partitions()
    topic.set(retention_bytes=1)
    wait_until(lambda: topic.offsets(0)[0] >= 10, 60, what="the retention")
    low = topic.offsets(0)[0]

    def seen() -> bool:
        files = hosts.files_at(mounted["mount"])
        return files.reading(files.topics()[topic.name]).offsets(0)[0] >= low

    wait_until(seen, 60, what="the checkpoint")
    with pytest.raises(DataLoss, match="from offset 0 on are gone"):
        read(reader, parts)


def test_a_topic_that_was_made_again(client: warren.Node, topic: warren.Topic, mounted: dict[str, str]) -> None:
    fill(topic, 10)
    settled(topic, mounted, 10)
    reader = batch_of(**mounted, subscribe=topic.name)
    parts = reader.partitions()
    topic.delete()
    with pytest.raises(StoreError, match="was deleted"):
        read(reader, parts)
    fill(client.topic(topic.name, queues=2), 10)
    with pytest.raises(StoreError, match="deleted and made again"):
        read(reader, parts)


def test_what_files_cannot_give(client: warren.Node, topic: warren.Topic, mounted: dict[str, str]) -> None:
    compacted = client.topic(f"{topic.name}-newest", compacted=True)
    with pytest.raises(UsageError, match="is compacted: only processes of its own host"):
        batch_of(**mounted, subscribe=compacted.name).partitions()
    compacted.delete()
    grouped = stream_of(**mounted, subscribe=topic.name, groupId="g", startingOffsets="earliest")
    first = grouped.latestOffset(grouped.initialOffset(), ReadAllAvailable())
    with pytest.raises(UsageError, match=r"'groupId' .* does not run on this host"):
        grouped.latestOffset(first, ReadAllAvailable())
    with pytest.raises(UsageError, match="option 'mount' must be a directory of this machine"):
        batch_of(path="x", subscribe=topic.name, mount="hdfs://x/y")
    with pytest.raises(UsageError, match="'mount' is for reading topics"):
        batch_of(path=str(client.directory), queue="x", mount="y")


def test_damage_of_files_is_named(written_files: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(written_files, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
    log = min((copy / "topics" / "commitlog").iterdir())
    content = bytearray(log.read_bytes())
    place = content.index(body_of(7))
    content[place] ^= 1
    log.write_bytes(content)
    reader = batch_of(path=str(tmp_path / "none"), mount=str(copy), subscribe=TOPIC)
    with pytest.raises(warren.CorruptRecord, match=r"commitlog/0+ .*"):
        read(reader, reader.partitions())
    (copy / "topics" / "checkpoint").write_bytes(b"x" * 500)
    with pytest.raises(StoreError, match=r"checkpoint of the topics of .* is damaged"):
        batch_of(path=str(tmp_path / "none"), mount=str(copy), subscribe=TOPIC).partitions()


def test_parts_say_where_they_were_planned(client: warren.Node, topic: warren.Topic) -> None:
    fill(topic, 2)
    parts = batch_of(path=str(client.directory), subscribe=topic.name).partitions()
    assert {part.planned_on for part in parts if isinstance(part, topic_source.TopicPartition)} == {hosts.host_name()}


@pytest.mark.spark
def test_the_page_puts_nodes_together(
    spark: Any, client: warren.Node, mounted: dict[str, str], written_files: Path, tmp_path: Path
) -> None:
    """The snippet of docs/scaling.md, with a node that runs here and one whose files are seen."""
    (snippet,) = snippets(ROOT / "docs/scaling.md")
    topic = client.topic("flights", queues=2)
    try:
        bodies = fill(topic, 100)
        names: dict[str, Any] = {}
        exec(compile(snippet.code.replace("/var/lib/warren", str(client.directory)), "scaling", "exec"), names)
        names["MOUNTS"] = {"here": mounted["mount"], "there": str(written_files)}
        query = names["flights"](spark).writeStream.format("memory").queryName("nodes")
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        rows = spark.table("nodes").collect()
        assert sorted(bytes(row.value) for row in rows if row.host == "here") == bodies
        assert sum(row.host == "there" for row in rows) == RECORDS
    finally:
        topic.delete()
