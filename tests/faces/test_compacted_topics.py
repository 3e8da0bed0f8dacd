"""Goal: a program keeps the newest message of each key in a compacted topic, whatever way it reads one, and is told
what a compacted topic does not take.

Method: a real node with small files, which compacts all the time; a dictionary says what has to be there.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import warren
import warren.aio
from warren.engine.catalog.node_directory import NodeDirectory

from support import command_line
from support.real_node import RealNode
from support.small_disk import status
from support.waiting import wait_until

pytestmark = pytest.mark.integration

TINY = {
    "log_file_bytes": 32 << 20,  # so that passes are due by what a queue has alone
    "consume_queue_entries": 100,
    "index_slots": 100,
    "index_entries": 700,
    "topic_ring_bytes": 1 << 17,
    "retention_check_s": 0.05,
    "compaction_dirty": 0.1,
    "compaction_tombstone_s": 3600,
}
KEYS = 60


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("compacted") / "data", workers=1, **TINY) as running:
        yield running


@pytest.fixture
def node(own: RealNode) -> Iterator[warren.Node]:
    with warren.attach(own.directory) as attached:
        yield attached


@pytest.fixture
def topic(node: warren.Node, request: pytest.FixtureRequest) -> Iterator[warren.Topic]:
    made = node.topic(f"t{abs(hash(request.node.name)) % 10**9}", queues=2, compacted=True)
    yield made
    made.delete()


def fill(topic: warren.Topic, rounds: int = 20, size: int = 3000) -> dict[str, bytes]:
    """Each key so often, the last time with these bodies; more than a pass wants."""
    newest: dict[str, bytes] = {}
    for number in range(rounds):
        keys = [f"k{key}" for key in range(KEYS)]
        newest = {key: f"{key} {number} ".encode().ljust(size, b".") for key in keys}
        topic.append_many(list(newest.values()), keys=keys)
    return newest


def compacted(directory: Path, topic: warren.Topic) -> dict[str, Any]:
    """What `status` says of it, once each queue was compacted, and minima have risen. After one `fill` no other pass is
    due then: less than 1 MiB of a queue is left.
    """

    def told() -> dict[str, Any]:
        (found,) = (item for item in status(directory)["topics"] if item["name"] == topic.name)
        return found

    folder = directory / "topics" / "compacted" / str(told()["id"])

    def row() -> dict[str, Any] | None:
        if not all((folder / str(queue)).exists() for queue in range(topic.queues)):
            return None
        # what lies in the file and in the log, status counts twice, and stats once: equal where the minimum has risen
        found = told()
        return found if found["messages"] == topic.stats()["messages"] else None

    return wait_until(row, 60, what="the passes") or {}


def table(topic: warren.Topic) -> dict[str, bytes]:
    """By the loop of the guide."""
    found: dict[str, bytes] = {}
    for queue in range(topic.queues):
        at, end = topic.offsets(queue)
        while at < end:
            answer = topic.read(queue, at, max=1000)
            found.update((record.key or "", bytes(record.body)) for record in answer.records)
            at = answer.next_offset
    return found


def test_every_way_of_reading_finds_the_newest(own: RealNode, node: warren.Node, topic: warren.Topic) -> None:
    newest = fill(topic)
    row = compacted(own.directory, topic)
    assert row["compacted"] is True
    assert row["compacted_bytes"] > KEYS * 3000
    assert table(topic) == newest
    stats = topic.stats()
    count = stats["messages"]
    assert KEYS <= count == row["messages"] < 20 * KEYS == stats["appended"]

    bounds = [topic.offsets(queue) for queue in range(2)]
    assert all(0 < first < end for first, end in bounds)
    answer = topic.read(0, 0, max=1)
    assert (answer.status, answer.records[0].offset, answer.min_offset) == (0, bounds[0][0], bounds[0][0])
    parts: list[pa.RecordBatch] = []
    for queue, (at, end) in enumerate(bounds):
        while at < end:
            parts.append(topic.read_arrow(queue, at))
            at = parts[-1]["offset"][-1].as_py() + 1
    columns = pa.Table.from_batches(parts).to_pydict()
    assert len(columns["key"]) == count
    assert dict(zip(columns["key"], columns["value"], strict=True)) == newest
    for key in ("k0", "k59"):
        record = topic.find(key, limit=1)[0]
        assert record.body == newest[key]
        found = topic.find_id(record.message_id)
        assert found is not None
        assert (found.offset, found.key) == (record.offset, key)
    first = topic.read(0, 0, max=1).records[0]
    assert topic.offset_at(0, 0) == first.offset
    assert topic.offset_at(0, first.timestamp, "upper") >= first.offset  # type: ignore[operator]

    with topic.reader("report", start="earliest") as reader:  # the holes are no loss
        seen: dict[str, bytes] = {}
        for _ in range(count):
            record = reader.get(timeout=20)
            seen[record.key or ""] = bytes(record.body)
        assert seen == newest
        assert reader.skipped == 0

    queue = node.queue(f"{topic.name}-replayed")
    topic.replay(queue)
    assert queue.depth() == count
    queue.delete()

    async def read() -> set[str | None]:
        async with await warren.aio.attach(own.directory) as other:
            there = await other.topic(topic.name)
            found = [await there.read(queue, 0, max=1000) for queue in range(2)]
            return {record.key for answer in found for record in answer.records}

    assert asyncio.run(read()) == newest.keys()
    said = command_line.warren("topic", "describe", own.directory, topic.name).stdout
    assert "removes all but the newest message of each key" in said
    told = json.loads(command_line.warren("topic", "describe", own.directory, topic.name, "--json").stdout)
    assert [(item["min"], item["max"]) for item in told["queues"]] == bounds
    assert told["bytes"] == row["bytes"]
    assert all(item["last_timestamp"] >= item["first_timestamp"] > 0 for item in told["queues"])
    tailed = command_line.warren(
        "topic", "tail", own.directory, topic.name, "--start", "earliest", "--count", str(count), "--json"
    ).stdout
    assert {json.loads(line)["keys"][0] for line in tailed.splitlines()} == newest.keys()
    command_line.warren("check", own.directory)


def test_it_outlives_the_node(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with RealNode(directory, workers=1, **TINY), warren.attach(directory) as node:
        newest = fill(node.topic("t", queues=2, compacted=True))
        compacted(directory, node.topic("t"))
    with RealNode(directory, workers=1, **TINY) as running, warren.attach(directory) as node:
        topic = node.topic("t", compacted=True)
        assert topic.compacted
        assert (node.topic("t").compacted, node.topic("other").compacted) == (True, False)
        assert repr(topic) == "<Topic 't', 2 queues, compacted>"
        assert table(topic) == newest
        running.kill("topic_worker")
        topic.append(b"", key="k7")
        assert table(topic) == newest | {"k7": b""}
        newest = fill(topic, rounds=30)
        assert table(topic) == newest
        compacted(directory, topic)
        assert table(topic) == newest
    command_line.warren("check", directory)


def test_its_folder_goes_with_it(own: RealNode, node: warren.Node) -> None:
    topic = node.topic("short", queues=2, compacted=True)
    fill(topic)
    folder = own.directory / "topics" / "compacted" / str(compacted(own.directory, topic)["id"])
    assert folder.is_dir()
    topic.delete()
    again = node.topic("short", compacted=True)
    wait_until(lambda: not folder.exists(), 30, what="the folder's end")
    assert again.stats()["messages"] == 0


def test_one_key_of_many_messages_finds_them_all(own: RealNode, node: warren.Node) -> None:
    topic = node.topic("shared", queues=1, compacted=True)
    bodies = [f"{number} ".encode().ljust(4000, b".") for number in range(600)]
    topic.append_many(bodies, keys=[[f"id{number}", "cat"] for number in range(600)])
    compacted(own.directory, topic)
    assert topic.offsets(0) == (0, 600), "each has a key of its own"
    assert [record.body for record in topic.find("cat", limit=1000)] == bodies[::-1]
    assert [record.body for record in topic.find("cat", limit=3)] == bodies[:-4:-1]
    with topic.hold(0, 0) as held:
        assert (held.start, held.end) == (0, 600)
    topic.delete()


def test_a_hold_begins_where_there_are_messages(own: RealNode, topic: warren.Topic) -> None:
    fill(topic)
    compacted(own.directory, topic)
    first, end = topic.offsets(0)
    with topic.hold(0, 0) as held:  # what was replaced is no loss
        assert (held.start, held.end) == (first, end)


def refused(node: warren.Node, topic: warren.Topic) -> list[tuple[str, Callable[[], object]]]:
    """What a compacted topic does not take, and what is said of it."""
    table = pa.table({"value": [b"x", b"y"], "key": ["a", None]})
    return [
        ("give each message a key", lambda: topic.append(b"x")),
        ("give each message a key", lambda: topic.append(b"x", key=[])),
        ("give each message a key", lambda: topic.append(b"x", tag="t", delay=1)),
        ("give each message a key", lambda: topic.prepare(b"x")),
        ("give each message a key", lambda: topic.append_many([b"x", b"y"])),
        ("message 1 of 2: .*give each message a key", lambda: topic.append_many([b"x", b"y"], keys=["a", None])),
        ("give each message a key", lambda: topic.append_arrow(table)),
        ("has no retention", lambda: topic.set(retention_s=5)),
        ("say what becomes it", lambda: node.bind_topic(topic, "amq.topic", "#", key=None)),
        ("has no retention", lambda: node.topic("never", compacted=True, retention_bytes=5)),
        ("compacted", lambda: node.topic("never", compacted=1)),  # type: ignore[arg-type]
    ]


def test_what_it_does_not_take(node: warren.Node, topic: warren.Topic) -> None:
    node.declare_exchange("amq.topic", "topic")
    for words, call in refused(node, topic):
        with pytest.raises(warren.UsageError, match=words):
            call()
    assert topic.stats()["appended"] == 0
    assert topic.stats()["delayed"] == topic.stats()["halves"] == 0
    assert "never" not in node.topics()
    node.topic("plain")
    with pytest.raises(warren.DeclarationMismatch, match="compacted=False, not True"):
        node.topic("plain", compacted=True)
    with pytest.raises(warren.DeclarationMismatch, match="compacted=True, not False"):
        node.topic(topic.name, compacted=False)
    assert not node.topic("plain", compacted=False).compacted
    assert node.topic(topic.name).queues == 2, "opened as it is"
    assert node.topic(topic.name, queues=2).queues == 2
    for retention in ({"retention_s": 5.0}, {"retention_bytes": 7}):
        with pytest.raises(warren.DeclarationMismatch):
            node.topic(topic.name, **retention)  # type: ignore[arg-type]


def test_a_published_message_needs_what_becomes_its_key(node: warren.Node, topic: warren.Topic) -> None:
    node.declare_exchange("keyed", "fanout")
    beside = node.queue("beside", exclusive=True)
    node.bind_topic(topic, "keyed", key="header:seat")
    node.bind(beside, "keyed")
    node.publish(b"1", "keyed", headers={"seat": "12A"})
    for publish in (
        lambda: node.publish(b"2", "keyed", headers={"row": "12"}),
        lambda: node.publish_many([b"3", b"4"], "keyed", headers=[{"seat": "12B"}, {}]),
    ):
        with pytest.raises(warren.UsageError, match="is compacted, and has no header:seat, its key there"):
            publish()
    assert beside.depth() == 1, "nothing of it went anywhere"
    assert table(topic) == {"12A": b"1"}
    topic.append(b"5", key="12B", delay=0.05)
    wait_until(lambda: table(topic).get("12B") == b"5", 20, what="the later one")
    with topic.prepare(b"6", key="12A"):
        pass
    assert table(topic) == {"12A": b"6", "12B": b"5"}
    node.delete_exchange("keyed")


def test_a_dead_letter_without_its_key_waits_alone(node: warren.Node, topic: warren.Topic) -> None:
    node.declare_exchange("letters", "fanout")
    node.bind_topic(topic, "letters", key="header:seat")
    dying = node.queue("dying", message_ttl=0.05, dead_letter_exchange="letters")
    dying.put(b"without")
    for number in range(5):
        dying.put(b"%d" % number, headers={"seat": f"s{number}"})
    wait_until(lambda: len(table(topic)) == 5, 60, what="the letters that have one")
    assert set(table(topic)) == {f"s{number}" for number in range(5)}
    dying.delete()
    node.delete_exchange("letters")


def test_the_command_line_declares_one(own: RealNode) -> None:
    said = command_line.warren("topic", "create", own.directory, "told", "--compacted").stdout
    assert "declared" in said
    assert "exists already" in command_line.warren("topic", "create", own.directory, "told", "--compacted").stdout
    assert "exists already" in command_line.warren("topic", "create", own.directory, "told").stdout
    told = json.loads(command_line.warren("topic", "list", own.directory, "told", "--json").stdout)
    assert [row["compacted"] for row in told] == [True]
    assert NodeDirectory(own.directory).read().settings.compaction_dirty == 0.1
    command_line.warren("topic", "delete", own.directory, "told")
