"""Goal: what the tables of the formats write, a client reads: records, Arrow columns, times, keys and ids agree with a
list of what was written; each answer without a message says why; damage is named by its file and byte, and can be
passed by; what callers give wrong is refused in words.

Method: files and rows from the tables alone (support/topic_folder.py), in no process but this. Hypothesis makes topics
and asks for ranges, times and keys of them.
"""

import copy
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warren
from warren import ReadStatus
from warren.engine import _core
from warren.engine.topics.formats import UNIT_EMPTY
from warren.workers.client.attachment import SERVER_FAILED
from warren.workers.faces import topic_reading
from warren.workers.faces.topic_reading import TopicReading

from support import topic_tables as tables
from support.topic_folder import HOST, TopicFolder
from support.waiting import wait_until

NOW = 1_700_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[TopicFolder]:
    made = TopicFolder(tmp_path / "topics", queues=3)
    yield made
    made.close()


def same(record: warren.Record, fields: tables.Fields) -> bool:
    """Whether a record says what was written."""
    properties = {name: value for name, value in fields["properties"].items() if name not in ("KEYS", "TAGS")}
    keys = tuple(fields["properties"].get("KEYS", "").split(" "))
    keys = tuple(key for key in keys if key)
    return (
        (record.queue, record.offset, record.physical_offset)
        == (fields["queue_id"], fields["queue_offset"], fields["physical_offset"])
        and (record.body, record.properties) == (fields["body"], properties)
        and (record.keys, record.key) == (keys, keys[0] if keys else None)
        and record.tag == fields["properties"].get("TAGS")
        and (record.timestamp, record.born_timestamp) == (fields["store_timestamp"], fields["born_timestamp"])
        and record.message_id == (fields["store_host"] + fields["physical_offset"].to_bytes(8, "big")).hex().upper()
        and record.reconsume_times == fields["reconsume_times"]
    )


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    return batch.to_pylist()


def row_of(fields: tables.Fields) -> dict[str, Any]:
    """What Arrow says of a record."""
    properties = fields["properties"]
    return {
        "offset": fields["queue_offset"],
        "key": properties.get("KEYS"),
        "tag": properties.get("TAGS"),
        "value": fields["body"],
        "timestamp": datetime.fromtimestamp(fields["store_timestamp"] / 1000, UTC),
        "born_timestamp": datetime.fromtimestamp(fields["born_timestamp"] / 1000, UTC),
        "message_id": (fields["store_host"] + fields["physical_offset"].to_bytes(8, "big")).hex().upper(),
        "properties": [(name, value) for name, value in properties.items() if name not in ("KEYS", "TAGS")],
    }


def fill(folder: TopicFolder, n: int, queue: int = 0) -> list[tables.Fields]:
    return [
        folder.append(queue, b"%d" % i * 10, NOW + 10 * i, {"KEYS": f"k{i % 5}", "TAGS": "ab"[i % 2], "n": str(i)})
        for i in range(n)
    ]


# ---- one by one
# -----------------------------------------------------------------------------------------------------------


def test_a_read_gives_what_was_written_and_where_to_go_on(folder: TopicFolder) -> None:
    wrote, reading = fill(folder, 120), folder.reading()
    result = reading.read(0, 0, max=50)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (ReadStatus.FOUND, 50, 0, 120)
    assert len(result.records) == 50
    assert all(same(record, fields) for record, fields in zip(result.records, wrote, strict=False))
    assert [record.offset for record in reading.read(0, 110).records] == list(range(110, 120))
    assert len(reading.read(0, 0, max=50, max_bytes=1).records) == 1
    assert reading.offsets(0) == (0, 120)
    assert reading.offsets(1) == (0, 0)


def test_a_record_keeps_what_it_says(folder: TopicFolder) -> None:
    folder.append(
        1,
        "Grüße".encode(),
        NOW,
        {"KEYS": " N1  N2 ", "TAGS": "Aa", "origin": "EWR", "leer": "", "UNIQ_KEY": "7F"},
        reconsume_times=3,
    )
    (record,) = folder.reading().read(1).records
    assert (record.keys, record.key, record.tag, record.reconsume_times) == (("N1", "N2"), "N1", "Aa", 3)
    assert record.properties == {"origin": "EWR", "leer": "", "UNIQ_KEY": "7F"}
    assert repr(record) == "Record(queue=1, offset=0, key='N1', tag='Aa', 7 bytes: b'Gr\\xc3\\xbc\\xc3\\x9fe')"
    again = pickle.loads(pickle.dumps(record))
    assert again == record == copy.deepcopy(record)
    assert hash(again) == hash(record)
    assert {again, record} == {record}
    assert record != "another"
    with pytest.raises(ValueError, match="no record"):
        warren.Record(b"x" * 200)
    with pytest.raises(ValueError, match="no record"):
        warren.Record(b"")


def test_a_host_of_ipv6_is_read(folder: TopicFolder) -> None:
    v6 = bytes(range(16)) + (10911).to_bytes(4, "big")
    wrote = folder.append(0, b"x", NOW, store_host=v6, born_host=v6, sys_flag=tables.BORN_V6 | tables.STORE_V6)
    reading = folder.reading()
    (record,) = reading.read(0).records
    assert same(record, wrote)
    assert reading.find_id(record.message_id) == record
    assert rows_of(reading.read_arrow(0)) == [row_of(wrote)]


def test_each_status_says_why(folder: TopicFolder) -> None:
    reading = folder.reading()
    result = reading.read(0, 5)
    assert (result.status, result.next_offset, result.records) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0, [])
    fill(folder, 100)
    result = reading.read(0, 100)
    assert (result.status, result.next_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 100)
    result = reading.read(0, 101)
    assert (result.status, result.next_offset) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 100)
    folder.row(0, "minimum", 40)
    result = reading.read(0, 39)
    assert (result.status, result.next_offset, result.min_offset) == (ReadStatus.OFFSET_TOO_SMALL, 40, 40)
    result = reading.read(0, 40, tag="nobody's")
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 100)
    for offset in range(50, 60):
        folder.unit(0, offset, 0, UNIT_EMPTY, 0)
    result = reading.read(0, 45, max=10)
    assert [record.offset for record in result.records] == [45, 46, 47, 48, 49, 60, 61, 62, 63, 64]
    for offset in range(60, 100):
        folder.unit(0, offset, 0, UNIT_EMPTY, 0)
    result = reading.read(0, 55)
    assert (result.status, result.next_offset) == (ReadStatus.OFFSET_FOUND_NULL, 100)
    folder._set(0, folder.log_bytes)  # the log begins later by now
    folder.log_file(0).unlink()
    folder.place.forget()
    result = reading.read(0, 45)
    assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 46)
    assert tuple(status.name for status in ReadStatus) == _core.READ_STATUSES[:-1]


def test_tags_are_told_apart_exactly(folder: TopicFolder) -> None:
    """Aa and BB have one hash."""
    for i in range(60):
        folder.append(0, b"x", NOW, {"TAGS": ("Aa", "BB", "C")[i % 3]} if i < 45 else {})
    reading = folder.reading()
    for tag, wanted in (("Aa", {0}), ("BB", {1}), (["BB", "C"], {1, 2}), (("Aa",), {0})):
        offsets = [record.offset for record in reading.read(0, 0, 100, tag=tag).records]
        assert offsets == [i for i in range(45) if i % 3 in wanted]
    assert len(reading.read(0, 0, 100).records) == 60


def test_a_deleted_topic_is_not_found_even_when_another_has_its_name(folder: TopicFolder) -> None:
    fill(folder, 3)
    reading = folder.reading()
    assert reading.read(0).records
    for queue in range(3):
        folder.row(queue, "key", 9 << 32 | queue + 1)
    folder.topics.clear()
    calls: list[Callable[[], Any]] = [
        lambda: reading.read(0),
        lambda: reading.read_arrow(0, 3),
        lambda: reading.offsets(0),
        lambda: reading.offset_at(0, NOW),
        lambda: reading.find("k1"),
        lambda: reading.find_id("0" * 32),
        lambda: reading.wait(0, 0, 5),
    ]
    for call in calls:
        with pytest.raises(warren.TopicNotFound, match="was deleted"):
            call()


def test_a_message_that_comes_ends_the_wait(folder: TopicFolder) -> None:
    reading = folder.reading()
    assert not reading.wait(0, 0, timeout=0.01)
    assert reading.read(0, 0, timeout=0.01).status == ReadStatus.NO_MESSAGE_IN_QUEUE
    found: list[warren.Record] = []
    thread = threading.Thread(target=lambda: found.extend(reading.read(0, 1, tag="b", timeout=60).records))
    folder.append(0, b"first", NOW, {"TAGS": "b"})
    thread.start()
    folder.append(0, b"other", NOW, {"TAGS": "a"})
    folder.append(0, b"second", NOW, {"TAGS": "b"})
    wait_until(lambda: not thread.is_alive())
    assert [record.body for record in found] == [b"second"]
    assert reading.wait(0, 2, timeout=0)
    assert reading.read(0, 3, tag="b", timeout=0.01).status == ReadStatus.OFFSET_OVERFLOW_ONE


# ---- damage
# ---------------------------------------------------------------------------------------------------------------


def test_damage_is_named_and_can_be_passed_by(folder: TopicFolder) -> None:
    wrote, reading = fill(folder, 20), folder.reading()
    position = wrote[7]["physical_offset"]
    with folder.log_file(position).open("r+b") as file:
        file.seek(position + 95)
        file.write(b"\xff")
    assert len(reading.read(0, 0).records) == 7
    with pytest.raises(warren.CorruptRecord, match="go on at offset 8 of queue 0") as caught:
        reading.read(0, 7)
    assert (caught.value.path, caught.value.position) == (folder.log_file(position), position)
    assert "message 7 of queue 0" in caught.value.expected
    result = reading.read(0, 7, damage="skip")
    assert ([record.offset for record in result.records], result.status) == (list(range(8, 20)), ReadStatus.FOUND)
    assert [(error.path, error.position) for error in result.damaged] == [(folder.log_file(position), position)]
    with pytest.raises(warren.CorruptRecord):
        list(reading.arrow_batches(0))
    rows = [row for batch in reading.arrow_batches(0, damage="skip") for row in rows_of(batch)]
    assert rows == [row_of(fields) for fields in wrote[:7] + wrote[8:]]
    with pytest.raises(warren.CorruptRecord):
        reading.find("k2", limit=4)
    assert [record.offset for record in reading.find("k2", damage="skip")] == [17, 12, 2]
    with pytest.raises(warren.CorruptRecord):
        reading.find_id((HOST + position.to_bytes(8, "big")).hex())


def test_zeros_in_a_consume_queue_are_damage_for_whoever_meets_them(folder: TopicFolder) -> None:
    wrote, reading = fill(folder, 20), folder.reading()
    for offset in range(5, 10):
        folder.unit(0, offset, 0, 0, 0)
    assert len(reading.read(0, 0).records) == 5
    with pytest.raises(warren.CorruptRecord, match=r"go on at offset 10 of queue 0.*check --repair") as caught:
        reading.read(0, 5)
    place = caught.value.path, caught.value.position, caught.value.expected, caught.value.found
    assert place == (folder.queue_file(0, 5), 100, "where message 5 of queue 0 lies", "zeros")
    result = reading.read(0, 5, damage="skip")
    assert [record.offset for record in result.records] == list(range(10, 20))
    assert [(error.path, error.position) for error in result.damaged] == [place[:2]]
    with pytest.raises(warren.CorruptRecord):
        reading.read(0, 5, tag="no such tag")
    with pytest.raises(warren.CorruptRecord):
        list(reading.arrow_batches(0))
    rows = [row for batch in reading.arrow_batches(0, damage="skip") for row in rows_of(batch)]
    assert rows == [row_of(fields) for fields in wrote[:5] + wrote[10:]]
    with pytest.raises(warren.CorruptRecord):
        reading.find("k2")
    assert [record.offset for record in reading.find("k2", damage="skip")] == [17, 12, 2]
    with pytest.raises(warren.CorruptRecord):
        reading.find_id((HOST + wrote[7]["physical_offset"].to_bytes(8, "big")).hex())
    assert reading.offset_at(0, wrote[7]["store_timestamp"]) == 5, "who begins there is told"


def test_a_unit_may_say_that_there_is_no_message(folder: TopicFolder) -> None:
    """As RocketMQ fills files."""
    wrote, reading = fill(folder, 20), folder.reading()
    for offset in range(5, 10):
        folder.unit(0, offset, 0, UNIT_EMPTY, 0)
    assert [record.offset for record in reading.read(0, 0).records] == [*range(5), *range(10, 20)]
    with folder.log_file(0).open("r+b") as file:  # nothing of it matters
        file.seek(wrote[7]["physical_offset"])
        file.write(bytes(50))
    result = reading.read(0, 5, max=3)
    assert [record.offset for record in result.records] == [10, 11, 12]
    batches = list(reading.arrow_batches(0, 5, 10))
    assert sum(batch.num_rows for batch in batches) == 0
    assert [record.offset for record in reading.find("k3")] == [18, 13, 3]


def test_what_looks_damaged_while_a_worker_starts_is_asked_of_it(
    folder: TopicFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote, reading = fill(folder, 20), folder.reading()
    folder.unit(0, 5, 0, 0, 0)
    asked = 0

    def is_starting(_reading: object, _attachment: object) -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:  # it has made the file again
            folder.unit(0, 5, wrote[5]["physical_offset"], len(tables.write(wrote[5])), 0)
            folder.succeed()
        return True

    monkeypatch.setattr(TopicReading, "_is_starting", is_starting)
    assert len(reading.read(0, 5).records) == 15
    assert asked == 3
    folder.unit(0, 5, 0, 0, 0)
    monkeypatch.setattr(topic_reading, "CATCH_UP_S", 0.1)
    with pytest.raises(warren.PeerLost, match="starts"):
        reading.read(0, 5)


def test_a_cut_file_ends_nobody(folder: TopicFolder) -> None:
    wrote, reading = fill(folder, 60), folder.reading()
    assert len(reading.read(0, 0, 100).records) == 60
    with folder.queue_file(0, 50).open("r+b") as file:
        file.truncate(45)
    with pytest.raises(warren.CorruptRecord) as caught:
        reading.read(0, 52)
    assert (caught.value.path, caught.value.position) == (folder.queue_file(0, 50), 40)
    folder.queue_file(0, 0).unlink()
    folder.place.forget()
    result = reading.read(0, 0, damage="skip")
    assert ([record.offset for record in result.records], len(result.damaged)) == ([50, 51], 1)
    with folder.log_file(0).open("r+b") as file:
        file.truncate(wrote[50]["physical_offset"] + 10)
    folder.place.forget()
    assert reading.read(0, 50, damage="skip").records == []
    for path in (folder.path / "index").iterdir():
        path.write_bytes(b"nothing")
    with pytest.raises(warren.CorruptRecord, match="a file of the key index"):
        reading.find("k1")
    assert reading.find("k1", damage="skip") == []


# ---- Arrow
# ----------------------------------------------------------------------------------------------------------------


def test_arrow_has_what_was_written(folder: TopicFolder) -> None:
    wrote, reading = fill(folder, 500), folder.reading()
    wrote += [
        folder.append(0, b"", NOW + 9000),
        folder.append(0, b"\0" * 3000, NOW + 9001, {"KEYS": "a b", "TAGS": ""}),
    ]
    whole = reading.read_arrow(0)
    assert whole.schema.names == [
        "offset",
        "key",
        "tag",
        "value",
        "timestamp",
        "born_timestamp",
        "message_id",
        "properties",
    ]
    assert rows_of(whole) == [row_of(fields) for fields in wrote]
    batches = list(reading.arrow_batches(0, 13, 420, max_bytes=3000))
    assert len(batches) > 10
    assert [row for batch in batches for row in rows_of(batch)] == [row_of(fields) for fields in wrote[13:420]]
    assert (
        rows_of(reading.read_arrow(0, 5, 5))
        == rows_of(reading.read_arrow(0, 1000))
        == rows_of(reading.read_arrow(1))
        == []
    )
    assert pa.Table.from_batches([*batches, reading.read_arrow(1)]).num_rows == 407


def test_arrow_columns_outlive_their_reader(folder: TopicFolder) -> None:
    wrote = fill(folder, 100)
    column = folder.reading().read_arrow(0).column("value")
    folder.place.forget()
    assert column.to_pylist() == [fields["body"] for fields in wrote]


def test_data_that_is_gone_is_a_loss_with_both_numbers(folder: TopicFolder) -> None:
    fill(folder, 100)
    folder.row(0, "minimum", 40)
    reading = folder.reading()
    with pytest.raises(warren.DataLoss, match=r"offset 7 was asked for.*offset 40") as caught:
        reading.read_arrow(0, 7, 20)
    assert (caught.value.queue, caught.value.wanted, caught.value.minimum) == (0, 7, 40)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.queue, again.wanted, again.minimum, str(again)) == (0, 7, 40, str(caught.value))
    assert reading.read_arrow(0, 40).num_rows == 60


# ---- ids and keys
# ---------------------------------------------------------------------------------------------------------


def test_an_id_leads_to_its_message_alone(folder: TopicFolder) -> None:
    wrote, reading = fill(folder, 10), folder.reading()
    for fields in wrote:
        found = reading.find_id((HOST + fields["physical_offset"].to_bytes(8, "big")).hex())
        assert found is not None
        assert same(found, fields)
    forged = {**wrote[3], "body": b""}
    place = folder.position + 8 + 40 + 8 + 8 + 8 + 16  # a body begins there
    forged["physical_offset"] = place = folder.position + 48 + 8 + 8 + 8 + 16
    inner = folder.append(0, tables.write(forged), NOW + 500)
    assert inner["physical_offset"] + 88 == place
    for position in (place, inner["physical_offset"] + 1, 12, 1 << 50, (1 << 63) - 1):
        assert reading.find_id((HOST + position.to_bytes(8, "big")).hex()) is None
    other = b"\x7f\0\0\2" + HOST[4:]
    assert reading.find_id((other + wrote[3]["physical_offset"].to_bytes(8, "big")).hex()) is None
    assert reading.find_id("8" * 16 + "F" * 16) is None  # it may be an id that a producer gave
    for text in ("", "12", "x" * 32, "0" * 31 + "é", "8" * 40 + "F" * 16):
        with pytest.raises(warren.UsageError, match="not a message id"):
            reading.find_id(text)


def test_keys_of_one_hash_are_told_apart_and_count_for_no_limit(folder: TopicFolder) -> None:
    for i in range(40):
        folder.append(i % 3, b"x", NOW + i, {"KEYS": "Aa" if i % 4 == 0 else "BB"})
    reading = folder.reading()
    assert [record.timestamp - NOW for record in reading.find("Aa", limit=3)] == [36, 32, 28]
    assert [record.timestamp - NOW for record in reading.find("Aa", since=NOW + 5, until=NOW + 20)] == [20, 16, 12, 8]
    moment = datetime.fromtimestamp((NOW + 20) / 1000, UTC)
    assert [record.timestamp - NOW for record in reading.find("Aa", until=moment)] == [20, 16, 12, 8, 4, 0]
    assert reading.find("nobody's") == []


# ---- what callers give
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda reading: reading.read(3), "queue of topic 'flights' must be a whole number from 0 to 2"),
        (lambda reading: reading.read(-1), "queue"),
        (lambda reading: reading.read(True), "queue"),
        (lambda reading: reading.read(0, -1), "offset"),
        (lambda reading: reading.read(0, 1 << 63), "offset"),
        (lambda reading: reading.read(0, 0, max=0), "max"),
        (lambda reading: reading.read(0, 0, max_bytes=0), "max_bytes"),
        (lambda reading: reading.read(0, 0, timeout=-1), "timeout"),
        (lambda reading: reading.read(0, 0, tag=""), "tag must not be empty"),
        (lambda reading: reading.read(0, 0, tag=[]), "1 to 64 tags"),
        (lambda reading: reading.read(0, 0, tag=["a"] * 65), "1 to 64 tags"),
        (lambda reading: reading.read(0, 0, tag=[b"a"]), "tag must be a str"),
        (lambda reading: reading.read(0, 0, tag="\ud800"), "tag must be a str that UTF-8 can hold"),
        (lambda reading: reading.read(0, 0, damage="ignore"), "damage must be 'error' or 'skip'"),
        (lambda reading: reading.read_arrow(0, "1"), "start"),
        (lambda reading: reading.read_arrow(0, 0, -1), "end"),
        (lambda reading: reading.offset_at(0, "now"), "when must be a datetime"),
        (lambda reading: reading.offset_at(0, float("nan")), "when must be a datetime"),
        (lambda reading: reading.offset_at(0, True), "when must be a datetime"),
        (lambda reading: reading.offset_at(0, NOW, "middle"), "boundary must be 'lower' or 'upper'"),
        (lambda reading: reading.find(""), "key must not be empty"),
        (lambda reading: reading.find("a b"), "no spaces"),
        (lambda reading: reading.find(b"a"), "key must be a str"),
        (lambda reading: reading.find("a", since="yesterday"), "since must be a datetime"),
        (lambda reading: reading.find("a", limit=0), "limit"),
        (lambda reading: reading.find_id(b"a"), "message_id must be a str"),
        (lambda reading: reading.wait(0, "1"), "offset"),
    ],
)
def test_what_is_wrong_is_said(folder: TopicFolder, call: Callable[[TopicReading], object], says: str) -> None:
    fill(folder, 1)
    with pytest.raises(warren.UsageError, match=says):
        call(folder.reading())


def test_the_core_refuses_what_cannot_be(folder: TopicFolder) -> None:
    reader = folder.place.take(folder.topic)
    with pytest.raises(ValueError, match="too small"):
        reader.begin(bytearray(10), folder.rows)
    with pytest.raises(ValueError, match="too small"):
        reader.begin(folder.ring, bytearray(10))
    assert reader.read(0, 0, 10, 1, 1, ()) is None  # it has none now
    reader.begin(folder.ring, folder.rows)
    with pytest.raises(OverflowError):
        reader.bounds(1 << 31)
    with pytest.raises(TypeError):
        reader.read(0, 0)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        reader.read(0, 0, 10, 1, 1, ("a",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tuple"):
        reader.read(0, 0, 10, 1, 1, ["a"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name"):
        _core.TopicReader(folder.root, 1, b"../x", 4096, 4096, 1, 1, 2)
    with pytest.raises(TypeError):
        _core.Memory()  # type: ignore[call-arg]
    assert len(memoryview(reader.columns(0, 0, 10, 10, 10)[4][4])) == 0  # type: ignore[index]


def test_one_thread_at_a_time(folder: TopicFolder) -> None:
    reader = folder.place.take(folder.topic)
    waits = threading.Thread(target=lambda: reader.wait(0, 0, 5))
    waits.start()

    def refused() -> bool:
        try:
            reader.bounds(0)
        except RuntimeError as error:
            return "another thread" in str(error)
        return False

    wait_until(refused)
    fill(folder, 1)
    folder.row(0, "key", 0)
    waits.join()
    assert reader.bounds(0) is None


# ---- against a list
# -------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0\1\2 "), max_size=6)
MESSAGE = st.tuples(
    st.integers(0, 2),
    st.binary(max_size=300),
    st.integers(0, 3),
    st.fixed_dictionaries(
        {},
        optional={
            "KEYS": st.sampled_from(["Aa", "BB", "Aa BB", "é", "N1 N2 N1"]),
            "TAGS": st.sampled_from(["Aa", "BB", "c"]),
            "n": TEXT,
        },
    ),
    st.booleans(),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(messages=st.lists(MESSAGE, max_size=40), data=st.data())
def test_against_a_list(tmp_path_factory: pytest.TempPathFactory, messages: list[Any], data: st.DataObject) -> None:
    folder = TopicFolder(
        tmp_path_factory.mktemp("list") / "topics",
        queues=3,
        log_bytes=data.draw(st.sampled_from([2048, 65536])),
        entries=data.draw(st.sampled_from([1, 3, 50])),
    )
    try:
        compare(folder, messages, data)
    finally:
        folder.close()


def compare(folder: TopicFolder, messages: list[Any], data: st.DataObject) -> None:
    """A topic of these messages, and reads of it, against a list."""
    stored, order = NOW, []
    for queue, body, passed, properties, lost in messages:
        stored += passed
        made = folder.append(queue, body, stored, properties)
        if lost and passed:  # the log has it no more
            folder.unit(queue, made["queue_offset"], 0, 0x7FFFFFFF, 0)
        else:
            order.append(made)
    reading = folder.reading()
    kept = [[made for made in order if made["queue_id"] == queue] for queue in range(3)]
    for _step in range(6):
        queue = data.draw(st.integers(0, 2))
        start = data.draw(st.integers(0, folder.next[queue] + 1))
        tag = data.draw(st.sampled_from([None, "Aa", "BB", "c"]))
        wanted = [
            made
            for made in kept[queue]
            if made["queue_offset"] >= start and (tag is None or made["properties"].get("TAGS") == tag)
        ]
        most = data.draw(st.integers(1, 20))
        found = reading.read(queue, start, most, tag=tag).records
        assert len(found) == min(most, len(wanted))
        assert all(same(record, made) for record, made in zip(found, wanted, strict=False))
        end = data.draw(st.integers(0, folder.next[queue] + 1))
        rows = [
            row
            for batch in reading.arrow_batches(queue, start, end, max_bytes=data.draw(st.integers(1, 2000)))
            for row in rows_of(batch)
        ]
        assert rows == [row_of(made) for made in kept[queue] if start <= made["queue_offset"] < end]
        when = data.draw(st.integers(NOW - 1, stored + 1))
        later = [made["queue_offset"] for made in kept[queue] if made["store_timestamp"] >= when]
        earlier = [made["queue_offset"] for made in kept[queue] if made["store_timestamp"] <= when]
        assert reading.offset_at(queue, when) == (later[0] if later else folder.next[queue])
        assert reading.offset_at(queue, when, "upper") == (earlier[-1] if earlier else None)
        key = data.draw(st.sampled_from(["Aa", "BB", "é", "N2", "none"]))
        since, limit = data.draw(st.none() | st.integers(NOW, stored + 1)), data.draw(st.integers(1, 10))
        hits = [
            made
            for made in reversed(order)
            if key in made["properties"].get("KEYS", "").split() and (since is None or made["store_timestamp"] >= since)
        ]
        records = reading.find(key, since=since, until=stored, limit=limit)
        assert len(records) == min(limit, len(hits))
        assert all(same(record, made) for record, made in zip(records, hits, strict=False))


def test_a_file_that_was_cut_because_it_goes_is_no_damage(folder: TopicFolder) -> None:
    """Retention removes it, and then gives its space back, while a reader stands in it."""
    wrote = [folder.append(0, b"%d" % n * 4000, NOW + n, {"KEYS": "k"}) for n in range(60)]
    reading = folder.reading()
    assert len(reading.read(0, 0, max=60, max_bytes=1 << 25).records) == 60
    first, second = (folder.log_file(position) for position in (0, folder.log_bytes))
    begin = next(fields for fields in wrote if fields["physical_offset"] >= folder.log_bytes)
    with first.open("r+b") as file:
        first.unlink()
        file.truncate(0)
        folder.header("first", folder.log_bytes)
        for _look in range(2):  # the minimum rises before the file goes; this one was asked for before that
            result = reading.read(0, 3)
            assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 4)
            with pytest.raises(warren.DataLoss):
                reading.read_arrow(0, 3)
            assert reading.find_id(id_of(wrote[3])) is None
            assert [record.offset for record in reading.find("k")][-1] == begin["queue_offset"]
    assert second.exists()
    assert reading.read(0, begin["queue_offset"], max=1).records[0].body == begin["body"]


# ---- memory of answers
# -----------------------------------------------------------------------------------------------------------


def bodies_in(answer: pa.RecordBatch | list[warren.Record]) -> list[bytes]:
    return answer.column("value").to_pylist() if isinstance(answer, pa.RecordBatch) else [one.body for one in answer]


def keep_and_let_go(path: Path, seed: int) -> int:
    """Large answers, of which some are kept for a while. Returns how many there were."""
    rng, folder = random.Random(seed), TopicFolder(path, log_bytes=1 << 24)
    bodies = [rng.randbytes(rng.choice((1_000, 300_000, 900_000))) for _ in range(24)]
    for n, body in enumerate(bodies):
        folder.append(0, body, NOW + n)
    reading = folder.reading()
    kept: list[tuple[int, pa.RecordBatch | list[warren.Record]]] = []
    for turn in range(80):
        at, most = rng.randrange(len(bodies)), rng.choice((1 << 20, 1 << 22, 1 << 25))
        if turn % 2:
            kept.append((at, reading.read_arrow(0, at, max_bytes=most)))
        else:
            kept.append((at, reading.read(0, at, max=rng.choice((4, 40)), max_bytes=most).records))
        while len(kept) > rng.choice((2, 6)):
            del kept[rng.randrange(len(kept))]
        for first, answer in kept:
            found = bodies_in(answer)
            assert found
            assert found == bodies[first : first + len(found)], (turn, first)
    folder.close()
    return turn + 1


def test_memory_that_is_used_again_is_nobodys(tmp_path: Path, seed: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        ran = [pool.submit(keep_and_let_go, tmp_path / str(n), seed + n) for n in range(2)]
        assert [one.result() for one in ran] == [80, 80]


# ---- what was confirmed, and is not shown yet
# -----------------------------------------------------------------------------------------------------------


def hide(folder: TopicFolder, n: int) -> tables.Fields:
    """Fill queue 0; the last message is confirmed, and not shown yet. Returns it."""
    wrote = fill(folder, n)
    folder.row(0, "appended", n)
    folder.row(0, "maximum", n - 1)
    folder.header("confirmed", 8)
    folder.header("shown", 7)
    return wrote[-1]


def id_of(fields: tables.Fields) -> str:
    text: str = (fields["store_host"] + fields["physical_offset"].to_bytes(8, "big")).hex().upper()
    return text


def tag_of(fields: tables.Fields) -> str:
    tag: str = fields["properties"]["TAGS"]
    return tag


def read_offsets(reading: TopicReading, offset: int, tag: str | None = None) -> list[int]:
    return [record.offset for record in reading.read(0, offset, tag=tag).records]


#: offsets of queue 0 that each kind of reading tells of, of 20 messages
KINDS: dict[str, Callable[[TopicReading, tables.Fields], list[int | None]]] = {
    "read": lambda reading, _last: [*read_offsets(reading, 19)],
    "read on": lambda reading, _last: [*read_offsets(reading, 15)],
    "tag": lambda reading, last: [*read_offsets(reading, 0, tag_of(last))],
    "columns": lambda reading, _last: reading.read_arrow(0, 19).column("offset").to_pylist(),
    "offsets": lambda reading, _last: [reading.offsets(0)[1] - 1],
    "time": lambda reading, last: [reading.offset_at(0, last["store_timestamp"], "upper")],
    "key": lambda reading, _last: [record.offset for record in reading.find("k4")],
    "id": lambda reading, last: [found.offset for found in [reading.find_id(id_of(last))] if found],
}


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for something that never comes is a test that never ends."""
    monkeypatch.setattr(topic_reading, "CATCH_UP_S", 1e9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("endless")
def test_what_was_confirmed_is_waited_for(folder: TopicFolder, kind: str) -> None:
    last, reading = hide(folder, 20), folder.reading()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(KINDS[kind], reading, last)
        wait_until(folder.waiters, 30)
        assert not asked.done()
        folder.row(0, "maximum", 20)
        folder.header("shown", 8)
        assert 19 in asked.result(60)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("endless")
def test_a_successor_shows_what_a_worker_confirmed_before_it_died(folder: TopicFolder, kind: str) -> None:
    last, reading = hide(folder, 20), folder.reading()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(KINDS[kind], reading, last)
        wait_until(folder.waiters, 30)
        old = folder.succeed()
        folder.row(0, "maximum", 20)
        folder.header("shown", 8)
        assert 19 in asked.result(60)
    old.forget()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("why", ["held", "late", "given up"])
def test_nobody_waits_without_end(folder: TopicFolder, kind: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of what shows it is full; the worker stands still; it is not started again."""
    last, reading = hide(folder, 20), folder.reading(SERVER_FAILED if why == "given up" else 0)
    monkeypatch.setattr(topic_reading, "CATCH_UP_S", 0.2 if why == "late" else 1e9)
    folder.header("held", int(why == "held"))
    assert 19 not in KINDS[kind](reading, last)
    assert read_offsets(reading, 15) == [15, 16, 17, 18]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("endless")
def test_when_nobody_is_alive_no_answer_lacks_what_was_confirmed(folder: TopicFolder, kind: str) -> None:
    last, reading = hide(folder, 20), folder.reading(deserted=True)
    shown = read_offsets(reading, 15)  # a read says nothing of what lies behind its messages
    assert shown == [15, 16, 17, 18]
    if kind in ("read on", "tag"):
        assert KINDS[kind](reading, last)[-1] == 17 + (kind == "read on")
        return
    with pytest.raises(warren.PeerLost, match="can only be seen in topic 'flights' when it is started again"):
        KINDS[kind](reading, last)


@pytest.mark.usefixtures("endless")
def test_who_has_enough_or_nothing_to_come_waits_for_nothing(folder: TopicFolder) -> None:
    hide(folder, 20)
    reading = folder.reading()
    assert len(reading.read(0, 0, max=19).records) == 19
    assert len(reading.read(0, 0, max_bytes=1).records) == 1
    assert reading.read_arrow(1, 0).num_rows == 0  # another queue, to which nothing was appended
    assert reading.offsets(1) == (0, 0)
    (first,) = reading.read(0, 0, max=1).records
    assert reading.find_id(first.message_id) == first
