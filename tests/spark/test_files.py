"""`format("warren-files")` without Spark: what is in the files has a row, and what is wrong with them a status.

Method: a directory is written by a node, stopped, and read; then copies are damaged (bytes flipped, tails torn, files
cut, removed, replaced by others) and read again. Bytes of rows add up to the sizes of files, whatever is in them.
"""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import warren
from warren.engine.errors import CorruptRecord, NodeNotRunning, StoreError, UsageError
from warren.engine.topics.formats import CONSUME_QUEUE_UNIT
from warren.workers.spark.files import queues
from warren.workers.spark.files.options import FilesOptions
from warren.workers.spark.files.source import FilesDataSource

from support import written_directory as written
from support.files_rows import flip, reader, rows, statuses, sums
from support.real_node import RealNode
from support.topic_log import logged


@pytest.fixture
def directory(written_files: Path) -> Path:
    """A directory whose node was stopped; never changed."""
    return written_files


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return written.Written(directory).copy(tmp_path / "copy")


def sizes(directory: Path, pattern: str) -> dict[str, int]:
    """Files and their sizes."""
    return {str(path.relative_to(directory)): path.stat().st_size for path in directory.glob(pattern)}


# ---- whole files -----------------------------------------------------------------------------------------------------


def test_the_log_is_what_its_records_say(directory: Path) -> None:
    """Every field of every record, against a reader made of the format's tables alone."""
    found = sorted(
        (row for row in rows(directory, "log") if row["kind"] == "record"), key=lambda row: row["log_position"]
    )
    expected = logged(directory, written.TOPIC)
    assert len(found) == len(expected) == written.RECORDS
    for row, record in zip(found, expected, strict=True):
        properties = dict(record.properties)
        assert (row["key"], row["tag"]) == (properties.pop("KEYS", None), properties.pop("TAGS", None))
        pairs = row["headers"]
        assert (None if pairs is None else {p["key"]: p["value"].decode() for p in pairs}) == (properties or None)
        assert (row["log_position"], row["queue"], row["offset"]) == (
            record.physical_offset,
            record.queue_id,
            record.queue_offset,
        )
        assert (row["value"], row["body_bytes"], row["topic"]) == (record.body, len(record.body), record.topic)
        assert row["timestamp"].timestamp() * 1000 == pytest.approx(record.store_timestamp, abs=0.5)
        assert row["status"] == "ok"


@pytest.mark.parametrize(
    ("files", "patterns"),
    [
        ("log", ["topics/commitlog/*"]),
        ("consumequeue", ["topics/consumequeue/*/*/*"]),
        ("keyindex", ["topics/index/*"]),
        ("store", ["store/persistent/*.rdq"]),
        ("journal", ["queues/*/journal/*.jnl", "queues/*/segments/*.dat"]),
        ("queues", ["queues/*/segments/*/*.idx"]),
    ],
)
def test_bytes_add_up_to_the_files(directory: Path, files: str, patterns: list[str]) -> None:
    found = [row for row in rows(directory, files) if row["kind"] != "spare"]
    expected = {name: size for pattern in patterns for name, size in sizes(directory, pattern).items()}
    assert expected
    assert sums(found) == expected
    assert set(statuses(found)) == {"ok"}


def test_a_log_file_is_cut_at_records(directory: Path) -> None:
    """However small the ranges are, the rows are the same."""
    whole = rows(directory, "log", "file", "position", "bytes", "status", "kind")
    planner = reader(directory, "log", "file", maxPartitionBytes="20000")
    parts = [part for partition in planner.partitions() for part in partition.parts]  # type: ignore[attr-defined]
    assert len(parts) > 3 * len(sizes(directory, "topics/commitlog/*"))
    cut = rows(directory, "log", "file", "position", "bytes", "status", "kind", maxPartitionBytes="20000")
    assert sorted(cut, key=str) == sorted(whole, key=str)


def test_positions_of_the_log(directory: Path) -> None:
    records = sorted(
        (row for row in rows(directory, "log") if row["kind"] == "record"), key=lambda row: row["log_position"]
    )
    start, end = records[100]["log_position"], records[4000]["log_position"]
    found = rows(directory, "log", startingPosition=str(start), endingPosition=str(end), topics=written.TOPIC)
    assert sorted(row["log_position"] for row in found) == [row["log_position"] for row in records[100:4000]]


def test_units_name_the_records(directory: Path) -> None:
    records = {row["log_position"]: row for row in rows(directory, "log") if row["kind"] == "record"}
    units = [row for row in rows(directory, "consumequeue") if row["kind"] == "unit"]
    assert len(units) == len(records)
    for unit in units:
        record = records[unit["log_position"]]
        for name in ("topic", "topic_id", "queue", "offset", "tags_code"):
            assert unit[name] == record[name]
        assert unit["record_bytes"] == record["bytes"]


def test_what_the_queues_hold(directory: Path) -> None:
    """As the next start will find it: what was acked is gone, whatever is in the files."""
    found = rows(directory, "messages")
    small = sorted(row["sequence"] for row in found if row["queue_name"] == written.SMALL)
    large = sorted(row["sequence"] for row in found if row["queue_name"] == written.LARGE)
    assert small == list(range(written.SMALL_ACKED, written.SMALL_N))
    assert large == list(range(written.LARGE_ACKED, written.LARGE_N))
    assert {row["in_store"] for row in found if row["queue_name"] == written.LARGE} == {True}
    entries = [row for row in rows(directory, "queues") if row["kind"] == "entry"]
    assert entries
    gone = {(row["queue"], row["sequence"]) for row in entries} - {(row["queue"], row["sequence"]) for row in found}
    assert all(sequence < written.SMALL_ACKED for _queue, sequence in gone)  # their acks are in the journal


def test_where_bodies_lie(tmp_path: Path) -> None:
    """In a file of the worker's, in the store, or each in a file of its own."""
    directory, sizes = tmp_path / "node", {"small": 100, "stored": 8000, "large": 300_000}
    settings = {"workers": 1, "file_bytes": 1 << 18, "arena_bytes": 1 << 17, "message_bytes_max": 1 << 20}
    with RealNode(directory, **settings), warren.attach(directory) as node:
        for name, size in sizes.items():
            node.queue(name).put(bytes(size))
    found = {row["queue_name"]: row for row in rows(directory, "messages")}
    assert {name: (row["in_store"], row["body_file"] is None) for name, row in found.items()} == {
        "small": (False, False),
        "stored": (True, True),
        "large": (False, True),
    }
    assert (directory / "queues/worker-0/large" / found["large"]["id"].hex()).exists()


def test_what_the_store_holds(directory: Path) -> None:
    found = rows(directory, "store")
    messages = {row["id"]: row for row in found if row["kind"] == "message"}
    stored = {row["id"]: row for row in rows(directory, "messages") if row["in_store"]}
    assert stored.keys() <= messages.keys()
    assert all(row["body_bytes"] == messages[id]["body_bytes"] for id, row in stored.items())
    [own] = [row for row in messages.values() if row["value"] == written.OWN]
    [gone] = [row["id"] for row in found if row["kind"] == "removed"]
    assert own["holder"] is None
    assert messages[gone]["value"] == b"removed"


def test_beside_a_running_node(directory: Path, copy: Path) -> None:
    """What was there at the start of the read is seen."""
    before = rows(copy, "messages", "queue", "sequence")
    with RealNode(copy, workers=1):
        assert rows(copy, "messages", "queue", "sequence") == before
        assert len([row for row in rows(copy, "log", "kind") if row["kind"] == "record"]) == written.RECORDS


def test_a_worker_that_moves_rows_is_read_again(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until nothing has moved meanwhile. Of a stopped one a file that is not there is an error at once."""
    before = rows(copy, "messages", "queue", "sequence")
    real, moves = queues.Source.rows, [1, 0]

    def moving(source: queues.Source, most: int) -> Any:
        move = moves.pop() if moves else None
        if move == 0:
            raise StoreError("cannot read") from FileNotFoundError()
        found = list(real(source, most))
        if move == 1:
            with open(source.folder.files, "ab") as register:
                register.write(bytes(48))
            return iter(found[:1])
        return iter(found)

    monkeypatch.setattr(queues.Source, "rows", moving)
    with pytest.raises(StoreError, match="cannot read"):
        rows(copy, "messages", "queue", "sequence")
    moves[:] = [1, 0]
    running = reader(copy, files="messages")
    running.directory = dataclasses.replace(running.directory, running=True)
    found = [row for part in running.partitions() for batch in running.read(part) for row in batch.to_pylist()]
    assert [(row["queue"], row["sequence"]) for row in found] == [(row["queue"], row["sequence"]) for row in before]
    assert not moves


# ---- damage ----------------------------------------------------------------------------------------------------------


def first(found: list[dict[str, Any]], **fields: object) -> dict[str, Any]:
    """A row in the middle of those that have these fields."""
    fitting = [row for row in found if all(row[name] == value for name, value in fields.items())]
    return fitting[len(fitting) // 2]


@pytest.mark.parametrize(("files", "kind"), [("log", "record"), ("store", "message"), ("journal", "publish")])
def test_a_flipped_bit_costs_its_record(copy: Path, files: str, kind: str) -> None:
    before = rows(copy, files)
    hit = first(before, kind=kind)
    at = {"log": 88, "store": 1000, "journal": hit["bytes"] - 40}  # in the body
    flip(copy / hit["file"], hit["position"] + at[files])
    after = rows(copy, files)
    bad = [row for row in after if row["status"] != "ok"]
    linked = {row["file"] for row in bad}  # a data file may be a second link
    assert len(bad) == len(linked)
    for row in bad:
        assert row["status"].startswith("bad_")
        assert (row["position"], row["bytes"]) == (hit["position"], hit["bytes"])
    assert len(after) == len(before)
    assert sums(after) == sums(before)


def test_a_flipped_bit_of_an_entry(copy: Path) -> None:
    before = rows(copy, "queues")
    hit = first(before, kind="entry")
    flip(copy / hit["file"], hit["position"] + 30)
    [bad] = [row for row in rows(copy, "queues") if row["status"] != "ok"]
    assert (bad["position"], bad["status"]) == (hit["position"], "bad_crc")


def test_a_page_of_zeros_in_the_log(copy: Path) -> None:
    """Records that are gone, in the midst of others, are no end of the file."""
    before = rows(copy, "log")
    hit = first([row for row in before if row["file"].endswith("0" * 20)], kind="record")
    with open(copy / hit["file"], "r+b") as file:
        file.seek(hit["position"])
        file.write(bytes(4096))
    after = rows(copy, "log")
    bad = [row for row in after if row["status"] != "ok"]
    assert [row["status"] for row in bad] == ["zeros"]
    assert bad[0]["position"] == hit["position"]
    assert 4096 <= bad[0]["bytes"] < 4096 + 1000
    assert sums(after) == sums(before)
    lost = [row for row in before if row["kind"] == "record" and row["file"] == hit["file"]]
    lost = [row for row in lost if hit["position"] <= row["position"] < hit["position"] + bad[0]["bytes"]]
    assert len(after) == len(before) - len(lost) + 1


def test_a_torn_tail_of_the_log(copy: Path) -> None:
    """What was appended and not committed, then half a record."""
    before = rows(copy, "log")
    end = max(row["log_position"] + row["bytes"] for row in before if row["kind"] == "system")
    record = first(before, kind="record")
    size = 1 << 20
    base = (end - 1) // size * size
    raw = (copy / record["file"]).read_bytes()[record["position"] : record["position"] + record["bytes"]]
    whole = bytearray(raw)
    whole[28:36] = end.to_bytes(8, "big")  # physical_offset
    with open(copy / f"topics/commitlog/{base:020d}", "r+b") as file:
        file.seek(end - base)
        file.write(bytes(whole) + raw[:50])
    after = rows(copy, "log")
    assert statuses(after) == {**statuses(before), "ok": statuses(before)["ok"] - 1, "uncommitted": 1, "torn": 1}
    [late] = [row for row in after if row["status"] == "uncommitted"]
    assert late["log_position"] == end
    assert sums(after) == sums(before)


def test_a_torn_tail_of_a_journal(copy: Path) -> None:
    before = rows(copy, "journal")
    unwritten = [row for row in before if row["kind"] == "unwritten" and "journal/" in row["file"]]
    newest = max(
        (row for row in before if row["kind"] == "publish" and "journal/" in row["file"]),
        key=lambda row: int(Path(row["file"]).stem),
    )
    [rest] = [row for row in unwritten if row["file"] == newest["file"]]
    with open(copy / rest["file"], "r+b") as file:
        file.seek(rest["position"] - 4096)  # a mark that nothing follows lies there
        block = file.read(4096)
        assert any(block)
        file.seek(newest["position"])
        frame = file.read(newest["bytes"])
        padding = max(
            row["position"] + row["bytes"]
            for row in before
            if row["file"] == rest["file"] and row["kind"] in ("publish", "ack")
        )
        file.seek(padding)
        file.write(bytes(8192))
        file.seek(padding)
        file.write(frame[: len(frame) // 2])
    found = [row for row in rows(copy, "journal") if row["status"] != "ok"]
    assert [row["status"] for row in found] == ["torn"]
    assert found[0]["position"] == padding


def test_files_that_are_missing_cut_foreign_or_another_node_s(copy: Path, tmp_path: Path) -> None:
    logs = sorted((copy / "topics/commitlog").iterdir())
    stores = sorted((copy / "store/persistent").glob("*.rdq"))
    [queue] = [path for path in (copy / "topics/consumequeue" / written.TOPIC).iterdir() if path.name == "0"]
    units = sorted(queue.iterdir())
    segment = next((copy / "queues").glob("*/segments/*/*.idx"))
    journal = max((copy / "queues").glob("*/journal/*.jnl"), key=lambda path: path.stat().st_mtime)
    stores[0].unlink()
    segment.unlink()
    journal.write_bytes(b"another program's" * 1000)
    logs[0].unlink()
    logs[1].rename(tmp_path / "kept")
    os.truncate(units[0], 2000)
    (copy / "topics/index/readme").write_text("hello")
    (copy / "topics/commitlog" / "nothing").mkdir()
    os.mkfifo(copy / "topics/index" / "20260101000000000")
    assert ("missing", stores[0].name) in [
        (row["status"], Path(row["file"]).name) for row in rows(copy, "store") if row["kind"] == "file"
    ]
    assert "missing" in statuses(rows(copy, "queues"))
    found = [row for row in rows(copy, "journal") if row["file"].endswith(f"journal/{journal.name}")]
    assert {(row["kind"], row["status"]) for row in found} == {("header", "bad_header"), ("bytes", "unread")}
    assert "foreign" in statuses(rows(copy, "log"))
    assert statuses(rows(copy, "keyindex"))["foreign"] == 2
    assert [row["bytes"] for row in rows(copy, "consumequeue") if row["status"] == "cut"] == [1000 * 20 - 2000]
    shutil.copy(tmp_path / "kept", logs[1])
    assert "missing" not in statuses(rows(copy, "log"))  # the first file may have gone by retention


def test_a_log_file_that_is_missing_between_others(copy: Path) -> None:
    for number in range(3):  # the log of the fixture may be short
        path = copy / f"topics/commitlog/{number << 20:020d}"
        if not path.exists():
            shutil.copy(copy / "topics/commitlog" / ("0" * 20), path)
    (copy / f"topics/commitlog/{1 << 20:020d}").unlink()
    found = rows(copy, "log")
    assert [row["bytes"] for row in found if row["status"] == "missing"] == [1 << 20]


def test_units_that_mislead(copy: Path) -> None:
    """A damaged consume queue costs no record of the log: positions that it names are looked at first."""
    before = rows(copy, "log", "file", "position", "bytes", "status")
    for path in (copy / "topics/consumequeue").glob("*/*/*"):
        data = bytearray(path.read_bytes())
        for n in range(0, len(data) // CONSUME_QUEUE_UNIT.size, 2):
            at = n * CONSUME_QUEUE_UNIT.size
            if any(data[at : at + 8]):
                data[at + 7] ^= 5
        path.write_bytes(data)
    after = rows(copy, "log", "file", "position", "bytes", "status", maxPartitionBytes="20000")
    assert sorted(after, key=str) == sorted(before, key=str)


def test_without_a_catalog_names_are_missing(copy: Path) -> None:
    for path in copy.glob("catalog*"):
        path.write_bytes(b"damaged")
    assert {row["queue_name"] for row in rows(copy, "queues")} == {None}
    assert len([row for row in rows(copy, "consumequeue") if row["kind"] == "unit"]) == written.RECORDS
    with pytest.raises(CorruptRecord, match="what the queues are"):
        rows(copy, "messages")


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "option 'files' is missing"),
        ({"files": "logs"}, "must be one of store"),
        ({"files": "store", "topics": "a"}, "goes with files=log"),
        ({"files": "store", "startingPosition": "0"}, "go with files=log"),
        ({"files": "log", "endingPosition": "x"}, "whole number"),
        ({"files": "log", "queue": "x"}, "unknown option"),
    ],
)
def test_bad_options(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        FilesOptions.parse({"path": "/data", **options})


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(NodeNotRunning, match="not a data directory"):
        reader(tmp_path, "log")


def test_columns_of_others(directory: Path) -> None:
    source = FilesDataSource({"path": str(directory), "files": "log"})
    with pytest.raises(UsageError, match="no column 'colour'"):
        source.reader(StructType([StructField("colour", StringType())]))
    with pytest.raises(UsageError, match="is string, not bigint"):
        source.reader(StructType([StructField("topic", LongType())]))
    assert "value" not in source.schema().names
    assert "value" in FilesDataSource({"path": str(directory), "files": "log", "includeValue": "true"}).schema().names


def test_a_position_that_went(directory: Path, copy: Path) -> None:
    (copy / "topics/commitlog" / ("0" * 20)).unlink()
    with pytest.raises(UsageError, match="retention"):
        rows(copy, "log", startingPosition="0")
