"""Goal: groups are seen and set from outside: names, members, owners, lags; a seek and a delete count for whoever reads
next, and are refused under readers' hands.

Method: a real node; readers of two clients.
"""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

import warren
import warren.aio

from support.waiting import patience

pytestmark = pytest.mark.integration

QUEUES, MESSAGES = 2, 30
TIMEOUT = 60 * patience()


@pytest.fixture
def topic(node: warren.Node, name: str) -> warren.Topic:
    topic = node.topic(name, queues=QUEUES)
    for queue in range(QUEUES):
        topic.append_many([b"%d" % n for n in range(MESSAGES)], queue=queue)
    return topic


def test_names_members_and_lags(topic: warren.Topic, directory: Path) -> None:
    assert topic.groups() == []
    with topic.reader(group="b") as reader, warren.attach(directory, name="another") as attached:
        (row,) = topic.groups()
        assert row.pop("last_call_s") >= 0
        assert row == {"name": "b", "members": 1, "lag": QUEUES * MESSAGES}
        reader.get_many(10_000, TIMEOUT)
        reader.commit()
        topic.append(b"new", queue=1)
        with attached.topic(topic.name).reader(group="b") as other:
            reader.get_many(1, 0)
            other.get_many(1, 0)
            told = topic.group("b")
            assert [member["client"] for member in told["members"]][1] == "another"
            assert sorted(row["owner"] for row in told["queues"]) == [0, 1]
            for row in told["queues"]:
                assert row["queue"] in (reader, other)[row["owner"]].assigned
        assert told["lag"] == 1
        assert [(row["committed"], row["min"], row["max"]) for row in told["queues"]] == [(30, 0, 30), (30, 0, 31)]
        assert [row["lag"] for row in told["queues"]] == [0, 1]
    for wrong in ("c", "", 7):
        with pytest.raises(warren.UsageError, match="group"):
            topic.group(wrong)  # type: ignore[arg-type]
    names = [f"group-{number:03}" for number in range(300)]
    for name in names:
        topic.seek_group(name, "latest")
    assert [row["name"] for row in topic.groups()] == ["b", *names]
    assert {row["last_call_s"] for row in topic.groups()} == {None}  # nobody is in them


def test_seek_from_outside(topic: warren.Topic) -> None:
    assert topic.seek_group("report", "latest") == {0: MESSAGES, 1: MESSAGES}
    assert topic.seek_group("report", 20, queue=1) == {1: 20}
    with topic.reader(group="report") as reader:
        assert [(record.queue, record.offset) for record in reader.get_many(100, TIMEOUT)] == [
            (1, offset) for offset in range(20, MESSAGES)
        ]
        with pytest.raises(warren.UsageError, match="has members"):
            topic.seek_group("report", "earliest")
        topic.seek_group("report", "earliest", force=True)
        with pytest.raises(warren.Fenced, match=r"queues \[1\] went"):
            reader.commit()
        assert len(reader.get_many(100, TIMEOUT)) == QUEUES * MESSAGES
        reader.commit()
    assert [row["committed"] for row in topic.group("report")["queues"]] == [MESSAGES] * QUEUES
    second = topic.read(0, 11, max=1).records[0]
    when = datetime.fromtimestamp(second.timestamp / 1000, UTC)
    assert topic.seek_group("report", when) == {queue: topic.offset_at(queue, when) for queue in range(QUEUES)}
    for where, queue, match in (
        (5, None, "offsets are a queue's"),
        (31, 0, "ends at offset 30"),
        (5, QUEUES, "queue"),
        ("now", None, "where"),
        (1.5, 0, "where"),
    ):
        with pytest.raises(warren.UsageError, match=match):
            topic.seek_group("report", where, queue)  # type: ignore[arg-type]


def test_delete(topic: warren.Topic) -> None:
    with topic.reader(group="report") as reader:
        reader.get_many(100, TIMEOUT)
        reader.commit()
        with pytest.raises(warren.UsageError, match="has members"):
            topic.delete_group("report")
    topic.delete_group("report")
    assert topic.groups() == []
    with pytest.raises(warren.UsageError, match="no group 'report'"):
        topic.delete_group("report")
    with topic.reader(group="report") as reader:
        assert len(reader.get_many(100, TIMEOUT)) == QUEUES * MESSAGES


def test_the_same_in_asyncio(topic: warren.Topic, directory: Path) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            mine = await node.topic(topic.name)
            assert await mine.seek_group("report", 7, queue=0) == {0: 7}
            assert (await mine.groups())[0]["lag"] == QUEUES * MESSAGES - 7
            assert (await mine.group("report"))["queues"][0]["committed"] == 7
            await mine.delete_group("report")
            assert await mine.groups() == []

    asyncio.run(main())
