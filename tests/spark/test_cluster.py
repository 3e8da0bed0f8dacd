"""Goal: a topic is copied exactly, in transactions, over executors of their own, also when one of them dies.

Method: a driver of its own (cluster_driver.py), with two executor JVMs, and a copy with each scan. A task kills the JVM
of its executor in its middle, so that what it staged, its clients and its reads are cut off; Spark starts another
executor. At length (marker `long`) that happens in both copies.
"""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.tools.crash.spark_campaign import STANDALONE, SparkCampaign
from warren.tools.crash.spark_processes import end as end_all
from warren.tools.crash.spark_processes import living, write_python
from warren.workers.spark import native

from support.long import LONG
from support.waiting import patience, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.crash]
DRIVER = Path(__file__).with_name("cluster_driver.py")
END_S = 120
QUEUES, MESSAGES, ROWS = 3, 3600, 1800


def content(directory: Path, name: str) -> list[tuple[bytes, str | None]]:
    """Bodies and keys of a topic, sorted; of an attachment of its own, as handles keep files of deleted topics open."""
    with warren.attach(directory, name="judge") as node:
        topic = node.topic(name)
        found: list[Any] = []
        for queue in range(topic.queues):
            at, end = topic.offsets(queue)
            while at < end:
                batch = topic.read_arrow(queue, at, end)
                found += zip(batch["value"].to_pylist(), batch["key"].to_pylist(), strict=True)
                at = batch["offset"][-1].as_py() + 1
    return sorted(found, key=lambda pair: pair[0])


def attached(node: warren.Node) -> list[str]:
    """What Spark's processes are called that have a slot of the node."""
    return [client["name"] for client in node.status()["clients"] if client["name"].startswith("spark-cluster-")]


def drive(task: dict[str, Any], work: Path) -> None:
    """Run the driver to its end, and see that nothing of it is left."""
    write_python(work / "python")
    said = work / "driver.log"
    with open(said, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(task)],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": str(work / "python")},
        )
    try:
        code = process.wait(timeout=END_S * patience())
        assert code == 0, said.read_text(errors="replace")[-4000:]
        wait_until(lambda: not living({process.pid}), timeout=60, what="the end of the driver's processes")
    finally:
        end_all(process)


def test_an_executor_dies_in_the_middle_of_a_copy(node: warren.Node, tmp_path: Path) -> None:
    name = uuid.uuid4().hex[:8]
    source = node.topic(f"s-{name}", queues=QUEUES)
    for queue in range(QUEUES):
        numbers = range(queue, MESSAGES, QUEUES)
        keys = [f"k{n % 7}" if n % 2 else None for n in numbers]
        source.append_many([b"%d " % n + b"x" * (n % 500) for n in numbers], keys, queue=queue)
    wanted = content(node.directory, source.name)
    assert len(wanted) == MESSAGES
    scans = ["python"] if native.missing() else ["native", "python"]
    killed = scans if LONG else scans[:1]
    targets = {scan: node.topic(f"{scan}-{name}", queues=2) for scan in scans}
    drive(
        {
            "path": str(node.directory),
            "source": source.name,
            "targets": {scan: topic.name for scan, topic in targets.items()},
            "start": {str(queue): 0 for queue in range(QUEUES)},
            "work": str(tmp_path),
            "master": "local-cluster[2,1,1024]",
            "rows": str(ROWS),
            "killed": killed,
        },
        tmp_path,
    )
    for scan, topic in targets.items():
        assert content(node.directory, topic.name) == wanted, f"the copy of scan={scan} is another"
    assert sorted(path.name for path in tmp_path.glob("*-killed")) == sorted(f"{scan}-killed" for scan in killed)
    executors = {path.name.partition("-")[2] for path in tmp_path.glob("*-[0-9]*")}
    assert len(executors) >= 2, "one executor had all tasks"
    wait_until(lambda: not attached(node), timeout=60, what="the slots of Spark's processes")
    for topic in (source, *targets.values()):
        topic.delete()


@pytest.mark.long
def test_kill_campaign_of_a_standalone_cluster(tmp_path: Path, seed: int) -> None:
    """A master, two workers, and a topic that is copied by both scans in turns."""
    if native.missing():
        pytest.skip(native.missing())
    said: list[str] = []
    kinds = ("executor", "restart", "driver")
    weights = {"executor": 3, "restart": 2, "driver": 1}
    campaign = SparkCampaign(tmp_path, seed, said.append, kinds, 300, STANDALONE, True, "topic", "turns", weights)
    report = campaign.run(8, seconds=600)
    assert report.violations == [], said
    assert report.kills.total() >= 4
    assert report.messages > 0
    assert list(tmp_path.iterdir()) == []
