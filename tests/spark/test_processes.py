"""Drivers as processes of their own: killed again and again with exact counts, and a cluster of two executor JVMs."""

import importlib.util
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

import warren

from support.waiting import patience, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long]
DRIVER = Path(__file__).with_name("driver.py")
END_S = 100


def drive(read: dict[str, str], work: Path, *, die: tuple[str, int] | None, master: str) -> int:
    """Run a driver to its end, and wait for the JVMs that it leaves to notice; returns its exit code."""
    task = {"read": read, "work": str(work), "master": master, "die": die}
    with open(work / "driver.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(task)], stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(timeout=END_S * patience())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def left() -> list[int]:
        found = []
        for other in psutil.process_iter():
            try:
                if os.getsid(other.pid) == process.pid and other.status() != psutil.STATUS_ZOMBIE:
                    found.append(other.pid)
            except (ProcessLookupError, psutil.Error):
                continue
        return found

    wait_until(lambda: not left(), timeout=END_S, what="the end of the driver's processes")
    return code


def batches(work: Path) -> list[list[int]]:
    found: list[Any] = [json.loads(path.read_text()) for path in sorted(work.glob("batch-*.json"))]
    return found


@pytest.mark.crash
def test_a_driver_killed_again_and_again_counts_exactly(node: warren.Node, queue: warren.Queue, tmp_path: Path) -> None:
    read = {"path": str(node.directory), "queue": queue.name}
    queue.put_many([b"%d" % n for n in range(450)])
    for die in (("before", 0), ("after", 2)):
        assert drive(read, tmp_path, die=die, master="local[2,3]") == -9, (tmp_path / "driver.log").read_text()
        base, end = queue.subscription(f"spark-{queue.name}").range()
        assert base <= 100 * die[1] < end, "acked a batch that was not committed"
    assert drive(read, tmp_path, die=None, master="local[2,3]") == 0, (tmp_path / "driver.log").read_text()
    assert [len(batch) for batch in batches(tmp_path)] == [100, 100, 100, 100, 50]
    assert sorted(n for batch in batches(tmp_path) for n in batch) == list(range(450))
    assert queue.subscription(f"spark-{queue.name}").range() == (450, 450)


@pytest.mark.crash
def test_a_driver_killed_again_and_again_reads_a_topic_in_the_same_batches(node: warren.Node, tmp_path: Path) -> None:
    """The first batch, which is empty, is one of those in which it is killed; and messages are appended meanwhile."""
    topic = node.topic(f"t-{uuid.uuid4().hex[:8]}", queues=3)
    read = {"path": str(node.directory), "subscribe": topic.name, "startingOffsets": "earliest"}

    def fill(start: int, end: int) -> None:
        for queue in range(3):
            topic.append_many([b"%d" % n for n in range(start, end) if n % 3 == queue], queue=queue)

    fill(0, 300)
    seen: dict[int, list[int]] = {}
    for die in (("before", 0), ("after", 2), ("before", 3)):
        assert drive(read, tmp_path, die=die, master="local[2,3]") == -9, (tmp_path / "driver.log").read_text()
        now = dict(enumerate(batches(tmp_path)))
        assert {batch: now[batch] for batch in seen} == seen, "a batch that was replayed has other messages"
        seen = now
        if die[0] == "before":
            fill(300 + 30 * die[1], 330 + 30 * die[1])
    assert drive(read, tmp_path, die=None, master="local[2,3]") == 0, (tmp_path / "driver.log").read_text()
    found = batches(tmp_path)
    assert found[0] == []
    assert found[: len(seen)] == list(seen.values())
    assert all(len(batch) <= 100 for batch in found)
    assert sorted(n for batch in found for n in batch) == [*range(330), *range(390, 420)]
    topic.delete()


def test_a_local_cluster(node: warren.Node, queue: warren.Queue, tmp_path: Path) -> None:
    specification = importlib.util.find_spec("pyspark")
    assert specification is not None
    assert specification.origin is not None
    work = Path(specification.origin).parent / "work"
    before = set(work.glob("*"))  # of a run that was killed
    queue.put_many([b"%d" % n for n in range(250)])
    read = {"path": str(node.directory), "queue": queue.name}
    code = drive(read, tmp_path, die=None, master="local-cluster[2,1,1024]")
    assert code == 0, (tmp_path / "driver.log").read_text()
    assert sorted(n for batch in batches(tmp_path) for n in batch) == list(range(250))
    assert set(work.glob("*")) <= before, "the workers' folders are still there"


SESSIONS = """
import psutil
from warren.spark import session

def once(kill):
    with session("again", master="local[1]", settings={"spark.log.level": "OFF"}) as spark:
        if kill:
            [jvm] = psutil.Process().children()
            jvm.kill()
            jvm.wait()
        return spark.range(5).count()

if __name__ == "__main__":
    try:
        once(True)
    except OSError as problem:
        print("raised", problem)
    assert once(False) == 5
    assert psutil.Process().children() == []
    print("done")
"""


def test_a_session_can_be_made_behind_one_whose_jvm_was_killed(tmp_path: Path) -> None:
    (tmp_path / "sessions.py").write_text(SESSIONS)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "sessions.py")],
        capture_output=True,
        text=True,
        timeout=END_S * patience(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "raised" in done.stdout
    assert "done" in done.stdout
