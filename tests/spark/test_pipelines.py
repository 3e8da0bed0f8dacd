"""Pipelines through Spark: each on a directory that is whole, on one that is damaged, and from the command line.

Method: a directory is written by a node and stopped; copies are damaged. The command line runs in this process, in the
session that all tests share.
"""

import contextlib
import io
import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
import pyarrow.parquet as parquet
import pytest

import warren
import warren.spark
from warren.engine.errors import DirectoryInUse, StoreError, TopicNotFound, UsageError
from warren.engine.topics.formats import CONSUME_QUEUE_UNIT
from warren.workers.cli import spark as commands
from warren.workers.cli.main import invoke
from warren.workers.spark.files import ids
from warren.workers.spark.files.directory import Directory
from warren.workers.spark.pipelines import audit, consume_queue_check, export, republish, running, scan

from support import written_directory as written
from support.files_rows import flip, rows
from support.real_node import RealNode
from support.snippets import ROOT, snippets
from support.waiting import patience, wait_until

pytestmark = pytest.mark.spark

#: of a record with IPv4 hosts; no checksum covers what lies before the body
BODY_AT = 88


@pytest.fixture
def copy(written_files: Path, tmp_path: Path) -> Path:
    """A copy to damage, or to go on with."""
    return written.Written(written_files).copy(tmp_path / "copy")


@pytest.fixture
def run(spark: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """`warren spark run …` in this process: (exit code, what it printed)."""

    @contextlib.contextmanager
    def shared(*_words: object) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(running, "running", shared)

    def call(*words: object) -> tuple[int, str]:
        capfd.readouterr()
        code = invoke(["spark", "run", *map(str, words)])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return code, said.out + said.err

    return call


# ---- scan -----------------------------------------------------------------------------------------------------------


def test_scan_counts_every_byte(spark: Any, written_files: Path) -> None:
    lines = scan.scan(spark, str(written_files))
    assert {line.status for line in lines} == {"ok"}
    sizes = {line.file: 0 for line in lines}
    for line in lines:
        sizes[line.file] += line.bytes
    assert sizes == {name: (written_files / name).stat().st_size for name in sizes}
    records = {(line.files, line.kind): 0 for line in lines}
    for line in lines:
        records[line.files, line.kind] += line.records
    assert records["log", "record"] == records["consumequeue", "unit"] == written.RECORDS


def test_scan_from_the_command_line(run: Any, copy: Path) -> None:
    code, said = run("scan", copy, "--files", "log", "--files", "consumequeue")
    assert code == 0
    assert f"{written.RECORDS:,}" in said
    record = next(row for row in rows(copy, "log") if row["kind"] == "record")
    flip(copy / record["file"], record["position"] + BODY_AT)
    code, said = run("scan", copy, "--files", "log", "--json")
    found = json.loads(said)
    assert (code, found["ok"], found["running"]) == (1, False, False)
    assert [line["records"] for line in found["files"] if line["status"].startswith("bad_")] == [1]


# ---- audit ----------------------------------------------------------------------------------------------------------


def test_audit_of_what_is_whole(spark: Any, written_files: Path) -> None:
    found = audit.audit(spark, str(written_files))
    named = written.LARGE_N - written.LARGE_ACKED
    assert found.ids == {"ok": named, "delta": 0, "lost": 0, "orphan": found.ids["orphan"]}
    assert found.queues == [audit.Queue(written.LARGE, "ok", named)]
    assert found.own == 1
    stored = [row for row in rows(written_files, "store") if row["kind"] == "message"]
    assert sum(file.bytes for file in found.files) == sum(row["bytes"] for row in stored)
    garbage = len(stored) - named - found.own
    assert sum(file.garbage for file in found.files) == garbage == found.ids["orphan"] - found.own
    assert garbage >= 1  # the one that was removed


def test_audit_of_damage(spark: Any, copy: Path) -> None:
    """A damaged record, a file that is missing, and a row that says another length than the store."""
    before = audit.audit(spark, str(copy))
    needed = {row["id"] for row in rows(copy, "messages") if row["in_store"]}
    stored = [row for row in rows(copy, "store") if row["kind"] == "message" and row["id"] in needed]
    flip(copy / stored[-1]["file"], stored[-1]["position"] + 1000)
    files = sorted({row["file"] for row in stored} - {stored[-1]["file"]})
    (copy / files[0]).unlink()
    lost = 1 + sum(row["file"] == files[0] for row in stored)
    after = audit.audit(spark, str(copy))
    assert after.ids["lost"] == lost
    assert after.ids["ok"] == before.ids["ok"] - lost
    assert audit.Queue(written.LARGE, "lost", lost) in after.queues


def test_verdicts_of_an_audit() -> None:
    """Each, from rows made by hand: (id, kind, holder, queue, body, bytes, file)."""
    named, message, removed = ids.NAMED, ids.MESSAGE, ids.REMOVED
    queue, other, program = 7, 8, ids.NOBODY
    rows = [
        (1, named, 255, queue, 50, 0, -1), (1, message, 0, 0, 50, 107, 0),  # ok
        (2, named, 255, queue, 50, 0, -1), (2, message, 0, 0, 43, 100, 0),  # delta: another length
        (3, named, 255, queue, 50, 0, -1), (3, message, 0, 0, 50, 107, 0), (3, message, 0, 0, 50, 107, 1),  # delta: two
        (4, named, 255, queue, 50, 0, -1),  # lost
        (6, message, 0, 0, 50, 107, 1),  # orphan: garbage
        (7, message, program, 0, 50, 107, 1),  # orphan: a program's own
        (8, message, program, 0, 50, 107, 1), (8, removed, 255, 0, 0, 0, 1),  # orphan: removed
        (9, named, 255, queue, 50, 0, -1), (9, named, 255, other, 50, 0, -1), (9, message, 0, 0, 50, 107, 1),  # ok
        (10, named, 255, queue, 50, 0, -1), (10, message, program, 0, 50, 107, 1),  # delta: removed there
        (10, removed, 255, 0, 0, 0, 1),
        (11, removed, 255, 0, 0, 0, 1),  # neither
    ]  # fmt: skip
    items = np.zeros(len(rows), dtype=ids.ITEM)
    low = np.array([row[0] for row in rows], dtype=np.int64)
    for place, name in enumerate(("kind", "holder", "queue", "body_bytes", "bytes", "file"), 1):
        items[name] = [row[place] for row in rows]
    shuffled = np.random.default_rng(1).permutation(len(rows))
    found = audit.judged(np.zeros(len(rows), dtype=np.int64), low[shuffled], items[shuffled]).to_pylist()
    counts = {(row["verdict"], row["own"], row["queue"], row["file"]): row["ids"] for row in found}
    assert counts == {
        ("ok", False, queue, 0): 1, ("delta", False, queue, 0): 1, ("delta", False, queue, 1): 2,
        ("lost", False, queue, None): 1, ("orphan", False, None, 1): 2, ("orphan", True, None, 1): 1,
        ("ok", False, queue, 1): 1,
    }  # fmt: skip
    assert sum(row["garbage"] for row in found) == 2
    assert sum(row["garbage_bytes"] for row in found) == 214
    assert sum(row["records"] for row in found) == 9


def test_blocks_of_ids(written_files: Path) -> None:
    """Whatever the blocks are, they have each id of queues and store once."""
    found = rows(written_files, "ids")
    named: list[tuple[int, int]] = []
    stored: list[tuple[int, int]] = []
    for row in found:
        for item in np.frombuffer(row["items"], dtype=ids.ITEM):
            id = row["id_high"], (row["block"] << ids.BLOCK_BITS) + int(item["low"])
            if item["kind"] in (ids.NAMED, ids.MESSAGE):
                (named if item["kind"] == ids.NAMED else stored).append(id)
    messages = [(row["id_high"], row["id_low"]) for row in rows(written_files, "messages") if row["in_store"]]
    records = [(row["id_high"], row["id_low"]) for row in rows(written_files, "store") if row["kind"] == "message"]
    assert sorted(named) == sorted(messages)
    assert sorted(stored) == sorted(records)
    assert len(found) < len(named) + len(stored)


def test_audit_from_the_command_line(run: Any, written_files: Path) -> None:
    code, said = run("audit", written_files)
    assert code == 0
    assert "0 delta, 0 lost" in said
    assert "(1 of them kept by programs)" in said


# ---- consume queues -------------------------------------------------------------------------------------------------


def test_consume_queues_that_are_right(run: Any, written_files: Path) -> None:
    code, said = run("consumequeue-check", written_files, "--json")
    found = json.loads(said)
    assert code == 0
    assert {row["verdict"] for row in found["queues"]} == {"ok"}
    assert sum(row["messages"] for row in found["queues"]) == written.RECORDS


def test_consume_queues_that_differ(spark: Any, run: Any, copy: Path) -> None:
    """Units with another size, another tag and another position, one that is gone, and one that is there twice."""
    path = min((copy / "topics/consumequeue" / written.TOPIC / "1").iterdir())
    size = CONSUME_QUEUE_UNIT.size
    data = bytearray(path.read_bytes())
    data[10 * size + 11] ^= 1  # size
    data[20 * size + 19] ^= 1  # tags_code
    data[30 * size + 7] ^= 1  # position
    data[40 * size : 41 * size] = bytes(size)
    data[50 * size : 51 * size] = data[51 * size : 52 * size]
    path.write_bytes(data)
    found = consume_queue_check.consume_queue_check(spark, str(copy))
    assert {(row.queue, row.verdict, row.messages) for row in found if row.verdict != "ok"} == {
        (1, "wrong_size", 1),
        (1, "wrong_tag", 1),
        (1, "no_record", 1),
        (1, "no_unit", 3),
        (1, "wrong_offset", 1),
    }
    code, said = run("consumequeue-check", copy)
    assert code == 1
    assert "7 differ" in said
    assert "warren check" in said


# ---- key index ------------------------------------------------------------------------------------------------------


def test_a_key_index_is_made_again(run: Any, copy: Path) -> None:
    entry = next(row for row in rows(copy, "keyindex") if row["kind"] == "entry" and row["number"] == 7)
    assert run("keyindex-rebuild", copy, "--compare")[0] == 0
    flip(copy / entry["file"], entry["position"] + 10)
    code, said = run("keyindex-rebuild", copy, "--compare", "--json")
    assert (code, len(json.loads(said)["problems"])) == (1, 1)
    code, said = run("keyindex-rebuild", copy, "--json")
    found = json.loads(said)
    assert (code, found["problems"], found["keys"]) == (0, [], written.RECORDS)
    assert "made again from the log" in found["rebuilt"][0]
    with RealNode(copy, workers=1), warren.attach(copy) as node:
        assert len(list(node.topic(written.TOPIC).find(key="k7", limit=10_000))) == len(range(7, written.RECORDS, 97))
        code, said = run("keyindex-rebuild", copy)
        assert code == 2
        assert "while its node runs" in said


# ---- export ---------------------------------------------------------------------------------------------------------


def exported(folder: Path) -> list[dict[str, Any]]:
    """All rows of all files, in the order of the log."""
    found = [row for path in folder.glob("topic=*/date=*/*.parquet") for row in parquet.read_table(path).to_pylist()]
    return sorted(found, key=lambda row: row["log_position"])


def test_an_export_has_every_message_once(spark: Any, run: Any, copy: Path, tmp_path: Path) -> None:
    """Run, run again, run when more has come, run after a run that was killed."""
    out = tmp_path / "out"
    code, said = run("export", copy, out, "--json")
    assert (code, json.loads(said)["records"]) == (0, {written.TOPIC: written.RECORDS})
    before = os.umask(0)
    os.umask(before)
    assert stat.S_IMODE((out / export.STATE).stat().st_mode) == 0o666 & ~before  # as Spark's files beside it
    first = exported(out)
    assert [row["value"] for row in first] == [
        row["value"]
        for row in sorted(
            (row for row in rows(copy, "log") if row["kind"] == "record"), key=lambda row: row["log_position"]
        )
    ]
    assert sorted((row["queue"], row["offset"]) for row in first) == sorted(
        (row["queue"], row["offset"]) for row in rows(copy, "consumequeue") if row["kind"] == "unit"
    )
    code, said = run("export", copy, out)
    assert (code, "nothing new" in said) == (0, True)
    assert exported(out) == first
    with RealNode(copy, workers=1), warren.attach(copy) as node:
        node.topic(written.TOPIC).append_many([b"later %d" % n for n in range(50)])
    state = json.loads((out / export.STATE).read_text())
    left = next(out.glob("topic=*/date=*")) / f"{state['position']:020d}-{state['position'] + 9:020d}-00000.parquet"
    left.write_bytes(b"of a run that was killed between two renames")
    (out / export.STAGING / "topic=x").mkdir(parents=True)
    (out / export.STAGING / "topic=x" / "part-0.parquet").write_bytes(b"of one that was killed before")
    done = export.export(spark, str(copy), str(out))
    assert (done.removed, done.records, done.total) == (1, {written.TOPIC: 50}, written.RECORDS + 50)
    assert [row["value"] for row in exported(out)[written.RECORDS :]] == [b"later %d" % n for n in range(50)]
    assert exported(out)[: written.RECORDS] == first
    assert not (out / export.STAGING).exists()
    table = spark.read.parquet(str(out))
    assert table.where("topic = 'flights'").count() == written.RECORDS + 50


def test_folders_that_are_no_export_of_this(spark: Any, copy: Path, written_files: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.doc").write_text("years of work")
    with pytest.raises(UsageError, match="other files"):
        export.export(spark, str(copy), str(other))
    with pytest.raises(TopicNotFound, match="no topic 'trains'"):
        export.export(spark, str(copy), str(tmp_path / "none"), ["trains"])
    out = tmp_path / "out"
    (out).mkdir()
    node_id = Directory.read(str(copy)).node_id
    state = {"format_version": 1, "node_id": node_id, "topics": [], "position": 10, "records": 0}

    def given(**changed: object) -> None:
        (out / export.STATE).write_text(json.dumps(state | changed))

    given(node_id=node_id + 1)
    with pytest.raises(UsageError, match="another node"):
        export.export(spark, str(copy), str(out))
    given(topics=["trains"])
    with pytest.raises(UsageError, match="export of trains"):
        export.export(spark, str(copy), str(out))
    given(position=1 << 40)
    with pytest.raises(StoreError, match="older copy"):
        export.export(spark, str(copy), str(out))
    given(format_version=2)
    with pytest.raises(StoreError, match="newer Warren"):
        export.export(spark, str(copy), str(out))
    (out / export.STATE).write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        export.export(spark, str(copy), str(out))
    given(position=0)
    (copy / "topics/commitlog" / ("0" * 20)).unlink()
    with pytest.raises(StoreError, match="skip_lost"):
        export.export(spark, str(copy), str(out))
    with export._locked(out), pytest.raises(DirectoryInUse, match="another export"):
        export.export(spark, str(copy), str(out))


def test_an_export_says_what_is_damaged(run: Any, copy: Path, tmp_path: Path) -> None:
    record = next(row for row in rows(copy, "log") if row["kind"] == "record" and row["offset"] == 100)
    flip(copy / record["file"], record["position"] + BODY_AT)
    code, said = run("export", copy, tmp_path / "out", "--topic", written.TOPIC)
    assert code == 1
    assert "1 range of the log could not be read" in said
    assert len(exported(tmp_path / "out")) == written.RECORDS - 1


# ---- republish ------------------------------------------------------------------------------------------------------


def drained(queue: warren.Queue) -> list[warren.Message]:
    """All that is ready, acked."""
    found = []
    while messages := queue.get_many(1000, timeout=0):
        found += messages
        messages[-1].ack(multiple=True)
    return found


def test_parquet_into_a_queue(spark: Any, run: Any, node: warren.Node, tmp_path: Path) -> None:
    queue = node.queue("republished")
    frame = spark.range(500).selectExpr("cast(concat('row ', id) as binary) as value", "'k' as key", "id as other")
    frame.write.parquet(str(tmp_path / "rows"))
    words = "republish", node.directory, "--from-parquet", tmp_path / "rows", "--to-queue", "republished"
    code, said = run(*words, "--rate", 100_000)
    assert (code, "500 messages published to queue republished" in said) == (0, True)
    assert sorted(bytes(m.body) for m in drained(queue)) == sorted(b"row %d" % n for n in range(500))
    queue.delete()


def test_an_export_into_a_topic(spark: Any, run: Any, node: warren.Node, tmp_path: Path) -> None:
    """What was exported can be put back: bodies, keys, tags and properties, into a topic of another name."""
    first, again = node.topic("exported", queues=2), node.topic("put-back", queues=2)
    for n in range(300):
        first.append(b"%d" % n, key=f"k{n % 7}", tag="even" if n % 2 == 0 else None, properties={"n": str(n)})
    read = {"path": str(node.directory), "includeHeaders": "true", "startingOffsets": "earliest"}
    columns = "value", "key", "tag", "headers", "born_timestamp"

    def content(topic: str) -> list[Any]:
        frame = spark.read.format("warren").options(**read, subscribe=topic).load().select(*columns)
        return sorted(frame.collect(), key=lambda row: int(row.value))

    spark.read.format("warren").options(**read, subscribe="exported").load().write.parquet(str(tmp_path / "rows"))
    words = "republish", node.directory, "--from-parquet", tmp_path / "rows", "--to-topic", "put-back"
    code, said = run(*words)
    assert (code, "300 messages published to topic put-back" in said) == (0, True), said
    assert content("put-back") == content("exported")
    for topic in (first, again):
        topic.delete()


def test_dead_letters_into_an_exchange(spark: Any, run: Any, node: warren.Node) -> None:
    """They leave their queue, each once, with headers, by a routing key of one's own."""
    dead, again = node.queue("dead"), node.queue("again")
    node.declare_exchange("retry", "direct")
    node.bind("again", exchange="retry", routing_key="orders")
    dead.put_many([b"letter %d" % n for n in range(40)], headers=[{"why": f"r{n}"} for n in range(40)])
    code, said = run(
        "republish",
        node.directory,
        "--from-queue",
        "dead",
        "--to-exchange",
        "retry",
        "--routing-key",
        "orders",
        "--json",
    )
    assert (code, json.loads(said)["messages"]) == (0, 40)
    messages = drained(again)
    assert sorted(bytes(m.body) for m in messages) == sorted(b"letter %d" % n for n in range(40))
    assert all(bytes(m.headers["why"]) == b"r" + bytes(m.body).split()[1] for m in messages)
    code, said = run(
        "republish", node.directory, "--from-queue", "dead", "--to-exchange", "retry", "--routing-key", "orders"
    )
    assert (code, "0 messages published" in said) == (0, True)
    for queue in (dead, again):
        queue.delete()
    node.delete_exchange("retry")


def test_where_messages_go(run: Any, node: warren.Node, written_files: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one target"):
        republish.Target("d")
    with pytest.raises(UsageError, match="one target"):
        republish.Target("d", queue="a", exchange="b")
    with pytest.raises(UsageError, match="goes with an exchange"):
        republish.Target("d", queue="a", routing_key="k")
    assert run("republish", written_files, "--to-queue", "x")[0] == 2
    code, said = run("republish", written_files, "--from-queue", "x", "--to-queue", "y")
    assert (code, "running node" in said) == (2, True)
    code, said = run("republish", node.directory, "--from-queue", "x", "--to-queue", "x")
    assert (code, "into itself" in said) == (2, True)


# ---- interrupted ----------------------------------------------------------------------------------------------------


#: what PySpark's daemon prints of a worker whose JVM side was faster: on a busy machine it does that now and then
BROKEN_PIPE = re.compile(
    r'Traceback .*\n(?:  File ".*/pyspark/daemon\.py", line .*\n(?:    .*\n)*)+BrokenPipeError: .*\n'
)


def test_a_pipeline_that_is_terminated(run: Any, node: warren.Node, tmp_path: Path) -> None:
    """SIGTERM to the whole process group, as `timeout` sends it, in the middle of a republish that would last an hour:
    one line says how to go on, nothing is left, and the same command does the rest.
    """
    source, target = node.queue("long"), node.queue("long-target")
    bodies = [b"%d" % n for n in range(6)]
    source.put_many(bodies)
    words = "republish", str(node.directory), "--from-queue", "long", "--to-queue", "long-target"
    place = tmp_path / "tmp"
    place.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "warren.workers.cli.main", "spark", "run", *words, "--rate", "0.001"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(place)},
    )
    try:
        wait_until(lambda: process.poll() is not None or target.depth() > 0, 60, what="the first message")
        below = psutil.Process(process.pid).children(recursive=True)
        assert any("java" in child.name() for child in below)
        os.killpg(process.pid, signal.SIGTERM)
        output, errors = process.communicate(timeout=60 * patience())
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    heard = BROKEN_PIPE.sub("", errors)
    said = [line for line in heard.splitlines() if "Using incubator modules" not in line and ": starting" not in line]
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert output == ""
    assert len([line for line in said if "tasks," not in line]) == 1, errors
    assert "interrupted: what was published stays; the same command does the rest" in said[-1]
    assert os.listdir(place) == []
    wait_until(lambda: not any(child.is_running() for child in below), 20, what="the end of what it started")
    code, said_then = run(*words)
    assert code == 0, said_then
    assert {bytes(m.body) for m in drained(target)} == set(bodies)
    for queue in (source, target):
        queue.delete()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_ends_a_pipeline(number: signal.Signals, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Once: what comes while it ends changes nothing. Behind it all is as it was."""
    before = [signal.getsignal(each) for each in commands.ENDS]

    def interrupted() -> None:
        with commands.interruptible("go on so"):
            try:
                signal.raise_signal(number)
            finally:
                for each in commands.ENDS:
                    signal.raise_signal(each)

    with pytest.raises(click.exceptions.Exit) as ended:
        interrupted()
    assert ended.value.exit_code == code
    assert capfd.readouterr().err == "warren: interrupted: go on so\n"
    assert [signal.getsignal(each) for each in commands.ENDS] == before
    assert logging.root.manager.disable == logging.NOTSET


def test_progress_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines, also before there is anything to count, and none with --json."""
    said: list[str] = []
    monkeypatch.setattr(commands, "TOLD_EVERY_S", 0.001)
    monkeypatch.setattr(commands.output, "note", said.append)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with commands.progress("reading files", False) as tell:
        assert tell is not None
        wait_until(lambda: said, 10, what="a line")
        assert said[0] == "starting Spark, 0 s"
        tell(1200, 3400)
        wait_until(lambda: said[-1].startswith("reading files: 1,200 of 3,400 tasks, "), 10, what="the next one")
    count = len(said)
    assert not [thread for thread in threading.enumerate() if thread.name == "lines"]
    with commands.progress("reading files", True) as tell:
        assert tell is None
    assert len(said) == count


# ---- report ---------------------------------------------------------------------------------------------------------


def test_a_report_has_pictures(run: Any, written_files: Path, tmp_path: Path) -> None:
    code, said = run("report", written_files, tmp_path / "report", "--json")
    assert code == 0
    made = [Path(name) for name in json.loads(said)["files"]]
    assert {path.name for path in made} == {
        "report.html",
        *(f"{name}.png" for name in ("throughput", "latency", "sizes", "keys", "queues", "store")),
    }
    page = made[0].read_text()
    assert page.count("data:image/png;base64,") == 6
    assert f"{written.RECORDS:,}" in page
    assert "Nothing damaged was found" in page
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made[1:])
    assert sorted(os.listdir(tmp_path / "report")) == sorted(path.name for path in made)


def test_the_page_shows_what_works(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """docs/pipelines.md, in the session that is there."""

    @contextlib.contextmanager
    def shared(_name: str) -> Iterator[Any]:
        yield spark

    [snippet] = snippets(ROOT / "docs/pipelines.md")
    monkeypatch.setattr(warren.spark, "session", shared)
    monkeypatch.chdir(tmp_path)
    # the session that is there began in another directory, from which Spark takes relative paths
    code = snippet.code.replace('option("path", "data")', f"option('path', {str(tmp_path / 'data')!r})")
    with RealNode(tmp_path / "data"):
        exec(compile(code, "docs/pipelines.md", "exec"), {})
        said = capfd.readouterr().out
    assert "flights" in said
    assert "{'flights': 2}" in said
    assert len(exported(tmp_path / "exported")) == 2


def test_progress_is_told(spark: Any) -> None:
    """Tasks of the stages that ran, from a thread that has ended."""
    told: list[tuple[int, int]] = []
    heard = threading.Event()

    def tell(done: int, total: int) -> None:
        told.append((done, total))
        heard.set()

    ended = threading.Event()
    watcher = threading.Thread(target=running._watch, args=(spark, tell, ended))
    watcher.start()
    try:
        for _ in range(200):
            spark.range(1000, numPartitions=4).count()
            if heard.wait(0.05):
                break
    finally:
        ended.set()
        watcher.join()
    assert told
    assert all(0 <= done <= total for done, total in told)
