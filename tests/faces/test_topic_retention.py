"""Goal: a program says how long a topic keeps its messages, changes its mind, holds what it is going to read, and is
told what is gone; a disk that is too full stops appends to topics, and nothing else.

Method: a real node with small files, which looks all the time; programs as users write them; a process that is killed
with a hold; a small disk.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren import ReadStatus

from support import command_line
from support.files import gone
from support.real_node import RealNode
from support.small_disk import Disk, alarm_off, alarm_row, status
from support.topic_log import log_files
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration

TINY = {
    "log_file_bytes": 1 << 20,
    "consume_queue_entries": 100,
    "index_slots": 100,
    "index_entries": 700,
    "topic_ring_bytes": 1 << 17,
    "retention_check_s": 0.05,
}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", workers=1, **TINY) as running:
        yield running


@pytest.fixture
def node(own: RealNode) -> Iterator[warren.Node]:
    with warren.attach(own.directory) as attached:
        yield attached


def fill(topic: warren.Topic, megabytes: float, queue: int = 0) -> None:
    for _ in range(int(megabytes * 10)):
        topic.append_many([b"x" * 10_000] * 10, keys="k", queue=queue)


def minimum_is(topic: warren.Topic, offset: int, queue: int = 0) -> None:
    wait_until(lambda: topic.offsets(queue)[0] == offset, 60, what=f"the minimum {offset}")


def first_file(own: RealNode) -> int:
    return min(int(path.name) for path in log_files(own.directory / "topics" / "commitlog"))


def test_a_retention_is_declared_shown_and_changed(own: RealNode, node: warren.Node) -> None:
    topic = node.topic("flights", queues=2, retention_s=3600, retention_bytes=1 << 20)
    assert node.topic("flights", retention_s=3600).queues == 2
    assert node.topic("flights", queues=2).name == "flights"
    for other in ({"retention_s": 7200}, {"retention_bytes": 5}):
        with pytest.raises(warren.DeclarationMismatch, match=r"topic\.set\(\), or `warren topic set`"):
            node.topic("flights", **other)
    for wrong in ({"retention_s": 0}, {"retention_s": float("nan")}, {"retention_bytes": 0}, {"retention_bytes": 1.5}):
        with pytest.raises(warren.UsageError):
            node.topic("other", **wrong)
        with pytest.raises(warren.UsageError):
            topic.set(**wrong)
    assert node.topics() == ["flights"]
    topic.set(retention_s=60)
    (row,) = status(own.directory)["topics"]
    assert (row["retention_s"], row["retention_bytes"]) == (60, 1 << 20)
    topic.set(retention_s=None)
    (row,) = status(own.directory)["topics"]
    assert (row["retention_s"], row["retention_bytes"]) == (None, 1 << 20)
    fill(topic, 3)
    wait_until(lambda: 0 < status(own.directory)["topics"][0]["bytes"] <= 1 << 20, 60, what="the size")
    with warren.attach(own.directory) as another:  # what was changed outlives a reload of the catalog
        assert another.topic("flights", retention_bytes=1 << 20).queues == 2
    topic.delete()
    with pytest.raises(warren.TopicNotFound):
        topic.set(retention_s=5)


def test_it_outlives_a_restart_of_the_node(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with RealNode(directory, workers=1, **TINY), warren.attach(directory) as node:
        topic = node.topic("t", queues=1, retention_s=3600)
        fill(topic, 3)
        topic.set(retention_s=None, retention_bytes=1)
        minimum_is(topic, 299)
    with RealNode(directory, workers=1, **TINY), warren.attach(directory) as node:
        topic = node.topic("t", retention_bytes=1)
        assert topic.offsets(0) == (299, 300)
        topic.append(b"x", queue=0)
        minimum_is(topic, 300)
        assert [record.offset for record in topic.find("k")] == []
    command_line.warren("check", directory)


def test_who_is_late_is_told_with_both_numbers(own: RealNode, node: warren.Node) -> None:
    topic = node.topic("t", queues=1)
    fill(topic, 3)
    first = topic.read(0, 0, max=1).records[0]
    topic.set(retention_bytes=150_000)
    wait_until(lambda: topic.offsets(0)[0] > 0 and first_file(own) > 0, 60, what="the removal")
    low, high = topic.offsets(0)
    assert high == 300
    answer = topic.read(0, 5)
    assert (answer.status, answer.next_offset, answer.min_offset) == (ReadStatus.OFFSET_TOO_SMALL, low, low)
    with pytest.raises(warren.DataLoss) as caught:
        topic.read_arrow(0, 5, 10)
    assert (caught.value.queue, caught.value.wanted, caught.value.minimum) == (0, 5, low)
    with pytest.raises(warren.DataLoss) as caught:
        topic.hold(0, low - 1, high)
    assert (caught.value.wanted, caught.value.minimum) == (low - 1, low)
    assert topic.read_arrow(0, low, high)["offset"].to_pylist() == list(range(low, high))
    assert topic.find_id(first.message_id) is None
    assert topic.offset_at(0, 0) == low
    assert [record.offset for record in topic.find("k", limit=1000)] == list(range(high - 1, low - 1, -1))


def test_a_reader_in_the_middle_of_removals_gets_messages_or_is_told(own: RealNode, node: warren.Node) -> None:
    """It follows at the edge, where messages go all the time."""
    topic = node.topic("t", queues=1, retention_bytes=100_000)
    at = read = late = 0
    for number in range(1500):
        topic.append(b"%d" % number + b"." * 5000, durability="written")
        if number % 3:
            continue
        answer = topic.read(0, at, max=3)
        if answer.status is ReadStatus.FOUND:
            for record in answer.records:
                assert record.body.startswith(b"%d." % record.offset)
                read += 1
        else:
            assert answer.status in (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.MESSAGE_WAS_REMOVING), answer
            late += 1
        assert answer.next_offset > at or answer.status is not ReadStatus.FOUND
        at = answer.next_offset
    assert read > 100
    assert topic.offsets(0)[1] == 1500
    assert late or topic.offsets(0)[0] <= at


def test_files_that_go_give_their_space_back_whoever_has_them_open(own: RealNode, node: warren.Node) -> None:
    """An idle reader has them open as long as it lives; a copy by links keeps what it has."""
    topic = node.topic("t", queues=1)
    fill(topic, 3)
    first = topic.read(0, 0, max=300, max_bytes=1 << 25).records[0]
    log = own.directory / "topics" / "commitlog"
    copied = own.directory.parent / "copied"
    with contextlib.ExitStack() as open_:
        files = [open_.enter_context(path.open("rb")) for path in log_files(log)]
        copied.hardlink_to(log_files(log)[1])
        content = copied.read_bytes()
        topic.set(retention_bytes=150_000)
        wait_until(lambda: first_file(own) >= 2 << 20, 60, what="the removal")
        wait_until(lambda: not os.fstat(files[0].fileno()).st_blocks, 30, what="the space")
        assert [gone(file) for file in files] == [True, False, *([False] * (len(files) - 2))]
        assert copied.read_bytes() == content
    assert topic.read(0, 5).status is ReadStatus.OFFSET_TOO_SMALL
    assert topic.find_id(first.message_id) is None
    low, high = topic.offsets(0)
    assert [record.offset for record in topic.find("k", limit=1000)] == list(range(high - 1, low - 1, -1))


HOLDER = """
import sys, time, warren
with warren.attach(sys.argv[1]) as node:
    held = node.topic("t").hold(0, int(sys.argv[2]))
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_hold_ends_with_its_block_its_process_and_its_node(own: RealNode, node: warren.Node) -> None:
    topic = node.topic("t", queues=1)
    fill(topic, 2)
    with topic.hold(0, 50, 80) as held, topic.hold(0, 70):
        assert (held.queue, held.start, held.end) == (0, 50, 80)
        topic.set(retention_bytes=1)
        minimum_is(topic, 50)
        assert topic.read_arrow(0, 50, 80)["offset"].to_pylist() == list(range(50, 80))
        held.release()
        minimum_is(topic, 70)
        own.kill("topic_worker")  # a hold outlives the worker
        topic.append(b"x", timeout=60 * patience())
        wait_until(lambda: topic.offsets(0) == (70, 201), 60, what="the next worker")
        assert topic.read_arrow(0, 70, 200).num_rows > 0
    minimum_is(topic, 200)
    fill(topic, 1)
    minimum_is(topic, 300)
    topic.set(retention_bytes=None)
    fill(topic, 1)
    program = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(own.directory), "350"], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    with program, program.stdout:
        assert program.stdout.readline() == "held\n"
        topic.set(retention_bytes=1)
        minimum_is(topic, 350)
        program.kill()
    minimum_is(topic, topic.offsets(0)[1] - 1)
    with pytest.raises(warren.UsageError, match="cannot be held"):
        topic.hold(0, 0, 1000)
    with pytest.raises(warren.UsageError, match="queue"):
        topic.hold(1, 0)


def test_the_command_line_says_and_changes_it(own: RealNode) -> None:
    run = command_line.warren
    run("topic", "create", own.directory, "t", "--retention-s", 60, "--retention-bytes", 5000)
    shown = run("topic", "describe", own.directory, "t")
    assert "removes messages older than 60 s, and the oldest beyond" in shown.stdout
    changed = run("topic", "set", own.directory, "t", "--retention-bytes", "none", "--retention-s", "none")
    assert "keeps all messages" in changed.stdout
    for arguments in ((), ("--retention-s", 0), ("--retention-bytes", "x")):
        run("topic", "set", own.directory, "t", *arguments, code=2)
    run("topic", "set", own.directory, "u", "--retention-s", 5, code=2)


def test_a_disk_that_is_too_full_stops_appends_to_topics_alone(small_disk: Path) -> None:
    """A topic without retention fills it: appends wait, a queue goes on; with one topics go on by themselves."""
    disk = Disk(small_disk)
    marks = {"topics_disk_quick": 0.3, "topics_disk_forced": 0.4, "topics_disk_full": 0.5}
    with (
        RealNode(disk.directory, workers=1, disk_free_bytes_min=1 << 20, **TINY, **marks) as running,
        warren.attach(disk.directory) as node,
    ):
        topic, queue = node.topic("t", queues=1), node.queue("q", durable=True)

        def blocked() -> str:
            try:
                topic.append_many([b"x" * 10_000] * 10, timeout=0.5)
            except warren.DiskFull as error:
                return str(error)
            return ""

        assert "topics_disk_full" in wait_until(blocked, 60, what="a disk that is too full")
        row = alarm_row(running.directory, "topics_disk")
        assert row is not None
        assert row["used_bytes"] >= row["limit_bytes"]
        queue.put(b"queues go on", timeout=60 * patience())
        assert "topic 't' has messages there, and no retention" in (disk.directory / "log" / "topics.log").read_text()
        topic.set(retention_bytes=1 << 20)
        alarm_off(running.directory)
        topic.append(b"appends go on", timeout=60 * patience())
        assert topic.offsets(0)[0] > 0
