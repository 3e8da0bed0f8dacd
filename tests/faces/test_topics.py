"""Goal: a topic is appended to as docs/topics.md says, by threads, processes, event loops, and from Arrow; positions
are true, what is wrong is told, and nothing is accepted that has no effect.

Method: a real node; programs as users write them; what was appended is read from the log's files by the format alone.
"""

import asyncio
import concurrent.futures
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import warren
import warren.aio

from support.real_node import RealNode
from support.topic_log import bodies, by_queue, holds, logged
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def topic(node: warren.Node, name: str) -> warren.Topic:
    return node.topic(name)


def test_positions_say_where_messages_lie(node: warren.Node, directory: Path, topic: warren.Topic) -> None:
    one = topic.append(b"one", key="N14228", tag="UA", properties={"origin": "EWR"})
    many = topic.append_many([b"two", b"three", b"four"], queue=one.queue)
    later = topic.append(b"five", queue=one.queue, wait=False)
    five = later.result(60)
    assert [position.offset for position in [one, *many, five]] == [0, 1, 2, 3, 4]
    assert one.queue == topic.queue_of("N14228")
    holds(directory, topic.name, [one, *many, five], [b"one", b"two", b"three", b"four", b"five"])
    record = logged(directory, topic.name)[0]
    assert record.properties == {"KEYS": "N14228", "TAGS": "UA", "origin": "EWR"}
    assert 0 <= record.store_timestamp - record.born_timestamp < 60_000
    assert pickle.loads(pickle.dumps(one)) == one


def test_ids_begin_with_the_host_of_the_node(own: RealNode, node: warren.Node, topic: warren.Topic) -> None:
    """Of the first message, too; after a restart it is the same, and another node has another one."""
    with warren.attach(own.directory) as its:
        first = its.topic("t", queues=1).append(b"one")
        half = its.topic("t").prepare(b"half")
        with half:
            position = half.commit()
    own.stop()
    own.start()
    with warren.attach(own.directory) as its:
        again = its.topic("t")
        later = again.append(b"later")
        records = again.read(max=10).records
        assert [record.message_id for record in records] == [
            one.message_id for one in (first, position, later) if one is not None
        ]
        assert [again.find_id(record.message_id) for record in records] == records
        zeros = "0" * 16 + first.message_id[16:]
        assert again.find_id(zeros) is None, "the host is part of the id"
        old = again.prepare(b"prepared by an earlier version")
        assert again.half("0" * 16 + old.message_id[16:]).commit() is not None
    hosts = {one.message_id[:16] for one in (first, half, later)}
    assert hosts == {first.message_id[:16]} - {"0" * 16}
    assert first.message_id[0] == "F", "an address that no machine has"
    assert topic.append(b"elsewhere").message_id[:16] not in hosts


def test_a_message_is_found_by_the_id_that_its_producer_gave(topic: warren.Topic) -> None:
    unique = "7F0000010A2018B4AAC2042E5B2C0000"  # as MessageClientIDSetter of RocketMQ makes them
    topic.append(b"old", properties={"UNIQ_KEY": unique})
    position = topic.append(b"new", key="k", properties={"UNIQ_KEY": unique})
    topic.append(b"a key like it", key=unique)
    found = topic.find_id(unique)
    assert found is not None
    assert (found.body, found.properties) == (b"new", {"UNIQ_KEY": unique})
    assert topic.find_id(position.message_id) == found
    assert topic.find_id(unique[::-1]) is None


@pytest.mark.parametrize("durability", ["none", "written", "synced", None])
def test_each_durability(directory: Path, topic: warren.Topic, durability: warren.Durability | None) -> None:
    positions = [topic.append(b"%d" % n, queue=0, durability=durability) for n in range(20)]
    positions += topic.append_many([b"%d" % n for n in range(20, 40)], queue=0, durability=durability)
    topic.append(b"40", queue=0)
    assert [position.offset for position in positions] == list(range(40))
    holds(directory, topic.name, positions, [b"%d" % n for n in range(40)])


def test_opening_and_declaring(node: warren.Node, directory: Path, name: str) -> None:
    with pytest.raises(warren.TopicNotFound, match=name):
        node.topic(name, create=False)
    made = node.topic(name, queues=7)
    assert (made.name, made.queues, repr(made)) == (name, 7, f"<Topic {name!r}, 7 queues>")
    assert node.topic(name).queues == node.topic(name, create=False).queues == 7
    with pytest.raises(warren.DeclarationMismatch, match="7"):
        node.topic(name, queues=8)
    assert name in node.topics()
    assert node.topic(f"{name}-plain").queues == 4
    with warren.attach(directory) as other:
        assert other.topic(name, create=False).append(b"x", queue=6).queue == 6
    for wrong in ("", "a/b", "a b", "WARREN_SYS_X", "x" * 256, 5):
        with pytest.raises(warren.InvalidName):
            node.topic(wrong)  # type: ignore[arg-type]
    for queues in (0, 1025, 1.5, "4"):
        with pytest.raises(warren.UsageError):
            node.topic(f"{name}-wrong", queues=queues)  # type: ignore[arg-type]
    assert f"{name}-wrong" not in node.topics()


def test_a_word_that_does_not_exist_is_refused(topic: warren.Topic) -> None:
    with pytest.raises(TypeError, match="dealy"):
        topic.append(b"x", dealy=5)  # type: ignore[call-overload]


def test_bad_input_is_refused_and_appends_nothing(directory: Path, topic: warren.Topic) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"body": "text"}, warren.UsageError, "bytes"),
        ({"body": bytes(10 << 20)}, warren.MessageTooLarge, "message_bytes_max"),
        ({"key": "a b"}, warren.UsageError, "space"),
        ({"tag": "\x01"}, warren.UsageError, "into the body"),
        ({"properties": {"a": "\x02"}}, warren.UsageError, "into the body"),
        ({"properties": [("a", "b")]}, warren.UsageError, "mapping"),
        ({"queue": 4}, warren.UsageError, "0 to 3"),
        ({"durability": "sync"}, warren.UsageError, "'synced'"),
        ({"timeout": -1}, warren.UsageError, "timeout"),
    ]
    for told, error, says in wrong:
        with pytest.raises(error, match=says):
            topic.append(**{"body": b"x", **told})
    with pytest.raises(warren.UsageError, match="message 1 of 2"):
        topic.append_many([b"good", b"bad"], keys=["k", ""])
    with pytest.raises(warren.UsageError, match="keys: 1 for 2"):
        topic.append_many([b"good", b"bad"], keys=["k"])
    with pytest.raises(warren.UsageError, match="bodies must be a list"):
        topic.append_many(b"body")
    assert topic.append(b"only").offset == 0
    assert bodies(logged(directory, topic.name)) == [b"only"]


def test_keys_keep_their_queue_and_order(directory: Path, topic: warren.Topic) -> None:
    keys = [f"k{n % 13}" for n in range(2000)]
    sent = [b"%d" % n for n in range(2000)]
    positions = topic.append_many(sent, keys=keys, tags=["even" if n % 2 == 0 else None for n in range(2000)])
    holds(directory, topic.name, positions, sent)
    assert [position.queue for position in positions] == [topic.queue_of(key) for key in keys]
    for records in by_queue(logged(directory, topic.name)).values():
        numbers = [int(record.body) for record in records]
        assert numbers == sorted(numbers)
        assert all(
            record.properties.get("TAGS") == ("even" if int(record.body) % 2 == 0 else None) for record in records
        )


@pytest.mark.long
def test_a_hundred_thousand_unconfirmed(directory: Path, topic: warren.Topic) -> None:
    confirms = [topic.append(b"%d" % n, wait=False) for n in range(100_000)]
    positions = [confirm.result(120 * patience()) for confirm in confirms]
    assert all(confirm.done() for confirm in confirms)
    holds(directory, topic.name, positions, [b"%d" % n for n in range(100_000)])
    for records in by_queue(logged(directory, topic.name)).values():
        numbers = [int(record.body) for record in records]
        assert numbers == sorted(numbers)


def test_confirms_of_topics_are_confirms(topic: warren.Topic) -> None:
    one = topic.append(b"1", wait=False)
    many = topic.append_many([b"2", b"3"], queue=one.result(60).queue, wait=False)
    called: list[Any] = []
    called_event = threading.Event()
    many.add_done_callback(lambda confirm: (called.append(confirm.result(0)), called_event.set()))
    done, pending = concurrent.futures.wait([one.future(), many.future()], timeout=60)
    assert not pending
    assert {type(future.result()) for future in done} == {warren.Position, list}
    assert called_event.wait(60)
    assert called == [many.result()]
    assert one.wait() is None
    assert one.exception() is None
    assert not one.duplicate
    assert topic.append_many([], wait=False).result(0) == topic.append_many([]) == []
    assert isinstance(one, warren.Confirm)


def test_a_topic_that_was_deleted_and_made_again_is_another(node: warren.Node, directory: Path, name: str) -> None:
    topic = node.topic(name, queues=2)
    topic.append_many([b"old"] * 5, queue=0)
    with warren.attach(directory) as other:
        other.topic(name, create=False).delete()
        assert name not in other.topics()
        with pytest.raises(warren.TopicNotFound, match=name):
            topic.append(b"x")
        with pytest.raises(warren.TopicNotFound, match=name):
            topic.append_many([b"x"])
        with pytest.raises(warren.TopicNotFound, match=name):
            topic.delete()
        other.topic(name, queues=3)
    assert topic.append(b"new", queue=0).offset == 0
    assert topic.queues == 3
    assert topic.append(b"new", queue=2).queue == 2
    assert bodies(logged(directory, name)) == [b"old"] * 5 + [b"new"] * 2


def test_threads_share_a_topic(directory: Path, topic: warren.Topic) -> None:
    def append(thread: int) -> list[warren.Position]:
        found = [topic.append(b"%d-%d" % (thread, n), queue=0, durability="written") for n in range(100)]
        for batch in range(5):
            found += topic.append_many([b"%d-%d" % (thread, 100 + 20 * batch + n) for n in range(20)], queue=0)
        return found

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        positions = list(pool.map(append, range(6)))
    for thread, found in enumerate(positions):
        holds(directory, topic.name, found, [b"%d-%d" % (thread, n) for n in range(200)])
        offsets = [position.offset for position in found]
        assert offsets == sorted(offsets)
        for batch in range(5):
            part = offsets[100 + 20 * batch : 120 + 20 * batch]
            assert part == list(range(part[0], part[0] + 20))


PROCESSES = """
import json, multiprocessing, sys
import warren

directory, method, name = sys.argv[1:]

def append(topic, producer):
    single = [topic.append(b"%d-%d" % (producer, n), queue=0, wait=False) for n in range(300)]
    found = [confirm.result(120).offset for confirm in single]
    for batch in range(10):
        bodies = [b"%d-%d" % (producer, 300 + 10 * batch + n) for n in range(10)]
        found += [position.offset for position in topic.append_many(bodies, queue=0)]
    return found

if __name__ == "__main__":
    with warren.attach(directory) as node:
        topic = node.topic(name)
        with multiprocessing.get_context(method).Pool(3) as pool:
            print(json.dumps(pool.starmap(append, [(topic, producer) for producer in range(3)])))
"""


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_processes_append_at_once(directory: Path, tmp_path: Path, name: str, method: str) -> None:
    script = tmp_path / "producers.py"
    script.write_text(PROCESSES)
    done = subprocess.run(
        [sys.executable, str(script), str(directory), method, name],
        capture_output=True,
        text=True,
        timeout=120 * patience(),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(offset for offsets in found for offset in offsets) == list(range(1200))
    there = by_queue(logged(directory, name))[0]
    for producer, offsets in enumerate(found):
        assert offsets == sorted(offsets)
        assert [there[offset].body for offset in offsets] == [b"%d-%d" % (producer, n) for n in range(400)]
        for batch in range(10):
            part = offsets[300 + 10 * batch : 310 + 10 * batch]
            assert part == list(range(part[0], part[0] + 10))


def test_a_child_of_fork_appends_as_itself(directory: Path, topic: warren.Topic) -> None:
    under_way = topic.append(b"parent", queue=0, wait=False)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            position = topic.append(b"child", queue=1)
            os.write(write_end, json.dumps([position.queue, position.offset]).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    assert os.waitpid(child, 0)[1] == 0
    assert json.loads(os.read(read_end, 100)) == [1, 0]
    os.close(read_end)
    assert under_way.result(60).offset == 0
    assert topic.append(b"parent", queue=0).offset == 1
    assert sorted(bodies(logged(directory, topic.name))) == [b"child", b"parent", b"parent"]


def test_in_an_event_loop(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            topic = await node.topic(name, queues=2)
            assert (topic.name, topic.queues, await node.topics()) == (name, 2, sorted(await node.topics()))
            one = await topic.append(b"0", key="k", tag="t", properties={"a": "b"})
            assert one.queue == await topic.queue_of("k")
            tasks = [topic.append(b"%d" % n, queue=0, wait=False) for n in range(1, 500)]
            confirms = await asyncio.gather(*tasks)
            positions = [await confirm for confirm in confirms]
            holds(directory, name, [one, *positions], [b"%d" % n for n in range(500)])
            assert [position.offset for position in positions] == sorted(position.offset for position in positions)
            batch = [b"%d" % n for n in range(20_000)]  # more than fits at once
            many = await topic.append_many(batch)
            assert len({position.queue for position in many}) == 1
            holds(directory, name, many, batch)
            promise = await topic.append_many([b"a", b"b"], keys=["k", None], wait=False)
            assert await promise == await promise
            assert promise.done()
            assert await promise.wait() is None
            with pytest.raises(warren.UsageError, match="message 19999 of 20000"):
                await topic.append_many(batch, keys=[*["k"] * 19_999, ""])
            with pytest.raises(warren.MessageTooLarge):
                await topic.append(bytes(10 << 20))
            with pytest.raises(TypeError, match="belongs to its event loop"):
                pickle.dumps(topic)
            assert repr(topic) == f"<aio.Topic {name!r}, 2 queues>"
            rows = await topic.append_arrow(pa.table({"value": [b"r"], "tag": ["T"]}))
            holds(directory, name, rows, [b"r"])
            await topic.delete()
            with pytest.raises(warren.TopicNotFound, match=name):
                await topic.append(b"x")

    asyncio.run(asyncio.wait_for(main(), 120 * patience()))
    with warren.attach(directory) as node:
        assert name not in node.topics()


# ---- Arrow ----------------------------------------------------------------------------------------------------------


def test_rows_of_a_table(directory: Path, topic: warren.Topic) -> None:
    table = pa.table(
        {
            "value": pa.array([b"a", b"b", b"c", b"d"], pa.binary()),
            "key": ["k", None, "l", None],
            "tag": pa.array(["T", "U", None, "T"]).dictionary_encode(),
            "queue": pa.array([1, 1, 2, 2], pa.int32()),
            "born_timestamp": pa.array([5000, 5000, 6000, 6000], pa.timestamp("ms", "UTC")),
            "headers": pa.array([[("h", "1")], None, [], [("a", "x"), ("b", "y")]], pa.map_(pa.string(), pa.string())),
        }
    )
    positions = topic.append_arrow(table)
    holds(directory, topic.name, positions, [b"a", b"b", b"c", b"d"])
    there = {record.body: record for record in logged(directory, topic.name)}
    assert [there[body].queue_id for body in (b"a", b"b", b"c", b"d")] == [1, 1, 2, 2]
    assert [there[body].born_timestamp for body in (b"a", b"c")] == [5000, 6000]
    assert there[b"a"].properties == {"KEYS": "k", "TAGS": "T", "h": "1"}
    assert there[b"d"].properties == {"TAGS": "T", "a": "x", "b": "y"}
    assert there[b"c"].properties == {"KEYS": "l"}


def test_columns_of_other_types(directory: Path, topic: warren.Topic) -> None:
    pair = pa.struct([("key", pa.string()), ("value", pa.string())])
    batch = pa.record_batch(
        {
            "value": pa.array(["text", "ø"], pa.large_string()),
            "key": pa.array([["k", "l"], []], pa.list_(pa.string())),
            "born_timestamp": pa.array([7, None], pa.int64()),
            "headers": pa.array([[{"key": "h", "value": "1"}], None], pa.list_(pair)),
        }
    )
    confirm = topic.append_arrow(batch, queue=3, wait=False)
    assert [position.queue for position in confirm.result(60)] == [3, 3]
    first, second = logged(directory, topic.name)
    assert (first.body, second.body, first.born_timestamp) == (b"text", "ø".encode(), 7)
    assert first.properties == {"KEYS": "k l", "h": "1"}
    assert second.properties == {}
    assert second.born_timestamp > 1_600_000_000_000
    assert topic.append_arrow(pa.table({"value": pa.array([], pa.binary())})) == []
    two = pa.chunked_array([pa.array([b"1"]), pa.array([b"2"])])
    assert len(topic.append_arrow(pa.table({"value": two}))) == 2


def test_what_was_read_is_appended_as_it_was(node: warren.Node, directory: Path, topic: warren.Topic) -> None:
    """A topic is copied by `append_arrow(read_arrow(…))`: several keys, a message of an exchange, names of the log."""
    topic.append(b"1", key=["k", "l"], tag="T", properties={"a": "x"}, queue=2)
    node.declare_exchange("copied", "fanout")
    node.bind_topic(topic.name, "copied")
    node.publish(b"2", exchange="copied", headers={"n": 7, "b": b"\xff"})
    copy = node.topic(f"{topic.name}-copy")
    for number in range(topic.queues):
        start, end = topic.offsets(number)
        if end > start:
            copy.append_arrow(topic.read_arrow(number, start, end), queue=number)
    found = {
        name: {
            record.body: (record.queue_id, record.properties, record.born_timestamp)
            for record in logged(directory, name)
        }
        for name in (topic.name, copy.name)
    }
    assert found[copy.name] == found[topic.name]
    assert "WARREN_MESSAGE" in found[copy.name][b"2"][1]
    kinds = pa.map_(pa.string(), pa.string())
    read = [
        [("WAIT", "true"), ("UNIQ_KEY", "u"), ("RECONSUME_TIME", "3"), ("WARREN_RETRY", "0 0"), ("WARREN_SINK", "s 1")]
    ]
    copy.append_arrow(pa.table({"value": [b"3"], "key": ["k  l"], "properties": pa.array(read, kinds), "offset": [5]}))
    assert logged(directory, copy.name)[-1].properties == {"KEYS": "k l", "WAIT": "true", "UNIQ_KEY": "u"}
    assert copy.find("l")[0].body == b"3"
    copy.delete()
    node.delete_exchange("copied")


_PROPERTIES = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"value": [b"a"], "properties": pa.array([[("KEYS", "k")]], _PROPERTIES)}, "row 0: KEYS is no property"),
        ({"value": [b"a"], "properties": pa.array([[("a", None)]], _PROPERTIES)}, "row 0: a property is null"),
        ({"value": [b"a"], "properties": pa.array([[("a", "\1")]], _PROPERTIES)}, "row 0: its properties cannot be"),
        ({"value": [b"a"], "properties": pa.array([[("a", "b" * 40000)]], _PROPERTIES)}, "row 0: .* 40003 bytes"),
        ({"value": [b"a"], "properties": pa.nulls(1), "headers": pa.nulls(1)}, "are the same"),
        ({"value": [b"a"], "headers": pa.array([[("WARREN_MESSAGE", "m")]], _PROPERTIES)}, "meaning of its own"),
        ({"value": [b"a"], "key": [" "]}, "must not contain a space"),
        ({"key": ["a"]}, "'value' is missing"),
        ({"value": [b"a"], "keys": ["k"]}, "column 'keys' is none of a message"),
        ({"value": [b"a", None]}, "row 1 has no value"),
        ({"value": [1]}, "'value' must hold binary or strings"),
        ({"value": [b"a"], "key": [1]}, "'key' must hold strings"),
        ({"value": [b"a"], "tag": [b"t"]}, "'tag' must hold strings"),
        ({"value": [b"a"], "queue": ["1"]}, "'queue' must hold integers"),
        ({"value": [b"a"], "queue": [9]}, "a number from 0 to 3"),
        ({"value": [b"a"], "born_timestamp": [-1]}, "before 1970"),
        ({"value": [b"a"], "born_timestamp": ["now"]}, "timestamps"),
        ({"value": [b"a"], "headers": ["h"]}, "'headers' must hold maps"),
        (
            {"value": [b"a"], "headers": pa.array([[("h", "1"), ("h", "2")]], pa.map_(pa.string(), pa.string()))},
            "header twice",
        ),
    ],
)
def test_wrong_tables_are_refused(topic: warren.Topic, data: dict[str, Any], says: str) -> None:
    with pytest.raises(warren.UsageError, match=says):
        topic.append_arrow(pa.table(data))
    with pytest.raises(warren.UsageError, match="pyarrow Table"):
        topic.append_arrow(5)


# ---- reading --------------------------------------------------------------------------------------------------------


def test_what_was_appended_is_read(node: warren.Node, directory: Path, name: str) -> None:
    topic = node.topic(name, queues=2)
    positions = topic.append_many([b"%d" % n for n in range(100)], tags=["even", "odd"] * 50, queue=1)
    keyed = topic.append(b"keyed", key=["k", "l"], queue=0, properties={"a": "b"})
    with warren.attach(directory) as other:
        reader = other.topic(name)
        found = reader.read(1, 0, max=1000, timeout=30)
        assert (found.status, found.next_offset, found.min_offset) == (warren.ReadStatus.FOUND, 100, 0)
        assert [record.body for record in found.records] == [b"%d" % n for n in range(100)]
        assert [record.message_id for record in found.records] == [position.message_id for position in positions]
        odd = reader.read(1, 10, max=3, tag="odd")
        assert [record.body for record in odd.records] == [b"11", b"13", b"15"]
        assert reader.read(1, 100).status == warren.ReadStatus.OFFSET_OVERFLOW_ONE
        assert reader.read(1, 100, timeout=0.05).records == []
        batch = reader.read_arrow(1, 5, 8)
        assert batch.column("value").to_pylist() == [b"5", b"6", b"7"]
        assert reader.offsets(1) == (0, 100)
        assert reader.offset_at(1, 0) == 0
        assert reader.offset_at(1, 4_000_000_000_000) == 100
        assert reader.offset_at(1, datetime.min) == 0  # where no zone can be counted from
        assert reader.offset_at(1, datetime.max) == 100
        (record,) = wait_until(lambda: reader.find("l"), 20, what="a key that is found")
        assert (record.body, record.properties["a"], record.offset) == (b"keyed", "b", keyed.offset)
        same = reader.find_id(keyed.message_id)
        assert same is not None
        assert same.body == b"keyed"
        wait_until(
            lambda: reader.stats() == {"queues": 2, "messages": 101, "appended": 101, "delayed": 0, "halves": 0}, 20
        )
        with pytest.raises(warren.UsageError, match="queue"):
            reader.read(2, 0)


def test_who_waits_reads_what_comes(topic: warren.Topic) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(topic.read, 3, 0, timeout=60 * patience())
        topic.append(b"late", queue=3)
        assert [record.body for record in waiting.result(60 * patience()).records] == [b"late"]


def test_a_reader_of_a_topic_that_was_deleted_is_told_once(node: warren.Node, directory: Path, name: str) -> None:
    topic = node.topic(name)
    topic.append_many([b"old"] * 3, queue=0)
    assert len(topic.read(0, 0, timeout=30).records) == 3
    old = topic.append(b"old", key="k", queue=0)
    with warren.attach(directory) as other:
        other.topic(name).delete()
        other.topic(name, queues=1).append(b"new", key="k")
    with pytest.raises(warren.TopicNotFound, match="deleted"):
        wait_until(lambda: topic.read(0, 3).status == "never", 20)
    assert [record.body for record in topic.read(0, 0, timeout=30).records] == [b"new"]
    assert topic.find_id(old.message_id) is None
    found = wait_until(lambda: topic.find("k"), 20, what="a key that is found")
    assert [record.body for record in found] == [b"new"]


def test_reading_in_an_event_loop(directory: Path, name: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            topic = await node.topic(name, queues=1)
            waiting = asyncio.create_task(topic.read(timeout=60 * patience()))
            await asyncio.sleep(0)
            position = await topic.append(b"one", key="k", tag="t")
            found = await waiting
            assert [record.body for record in found.records] == [b"one"]
            assert (await topic.read(offset=1, timeout=0.05)).status == warren.ReadStatus.OFFSET_OVERFLOW_ONE
            tagged = asyncio.create_task(topic.read(offset=0, tag="later", timeout=None))
            await topic.append_many([b"two", b"three"], tags=["no", "later"])
            assert [record.body for record in (await tagged).records] == [b"three"]
            assert await topic.offsets() == (0, 3)
            assert await topic.offset_at(0, 0) == 0
            assert (await topic.read_arrow()).num_rows == 3
            record = await topic.find_id(position.message_id)
            assert record is not None
            assert record.tag == "t"
            while not await topic.find("k"):
                await asyncio.sleep(0.01)
            assert (await topic.stats())["messages"] == 3

    asyncio.run(asyncio.wait_for(main(), 120 * patience()))


# ---- nodes that are stopped ------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", workers=1) as running:
        yield running


def test_a_restart_of_the_node_keeps_it_all(own: RealNode) -> None:
    with warren.attach(own.directory) as node:
        node.topic("kept", queues=2).append_many([b"a", b"b", b"c"], queue=1)
        node.topic("gone", queues=2).append(b"x")
        node.topic("gone").delete()
    own.stop()
    own.start()
    with warren.attach(own.directory) as node:
        assert node.topics() == ["kept"]
        assert node.topic("kept").append(b"d", queue=1).offset == 3
        assert node.topic("gone").append(b"y", queue=0).offset == 0
    assert bodies(by_queue(logged(own.directory, "kept"))[1]) == [b"a", b"b", b"c", b"d"]


def test_an_open_topic_outlives_its_node(own: RealNode) -> None:
    with warren.attach(own.directory) as node:
        topic = node.topic("t", queues=1)
        topic.append(b"before")
        unopened, its_node = pickle.loads(pickle.dumps((topic, node)))
        own.stop()
        with pytest.raises(warren.ClosedError):
            topic.append(b"nobody is there")
        own.start()
        assert topic.append(b"after").offset == 1
        assert unopened.append(b"by pickle").offset == 2
        assert (unopened.name, unopened.queues, unopened.compacted) == ("t", 1, False)
        its_node.close()
    with pytest.raises(warren.ClosedError):
        topic.append(b"closed")
