"""A Spark driver with executors of their own, one of which dies in the middle of a task: run by the tests as a process.

    python cluster_driver.py '{"path", "source", "targets": {scan: topic}, "start": {offsets}, "work", "master", "rows",
        "killed": [scan, …]}'

Copies the topic `source`, from the offsets `start` on, in transactions: once with each scan, each time into a topic of
its own. In copies with a scan of `killed` the first task that has seen NTH rows kills the JVM of its executor, by its
number, which it finds among its parents. There WORK/<scan>-<executor> says that an executor had a task, and
WORK/<scan>-killed that one was killed.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NTH = 100


def killing(work: Path, scan: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function for mapInArrow that changes nothing; it knows no module of the tests, as executors do not."""

    def executor() -> tuple[int, str]:
        pid = os.getppid()
        while True:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"--executor-id" in words:
                return pid, words[words.index(b"--executor-id") + 1].decode()
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def passed(batches: Iterator[Any]) -> Iterator[Any]:
        pid, number = executor()
        (work / f"{scan}-{number}").touch()
        seen = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if seen >= NTH:
                with contextlib.suppress(FileExistsError):
                    (work / f"{scan}-killed").touch(exist_ok=False)
                    os.kill(pid, signal.SIGKILL)

    return passed


def main(task: dict[str, Any]) -> None:
    from pyspark.errors import StreamingQueryException

    from warren.spark import session

    work = Path(task["work"])
    settings = {
        "spark.local.dir": str(work / "local"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.log.level": "OFF",
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    with session("cluster", master=task["master"], settings=settings) as spark:
        for scan, topic in task["targets"].items():
            frame = spark.readStream.format("warren").option("path", task["path"]).option("subscribe", task["source"])
            frame = frame.option("startingOffsets", json.dumps({task["source"]: task["start"]})).option("scan", scan)
            frame = frame.option("maxOffsetsPerTrigger", task["rows"]).load().select("value", "key")
            if scan in task["killed"]:
                frame = frame.mapInArrow(killing(work, scan), "value binary, key binary")
            writer = frame.writeStream.format("warren").option("path", task["path"]).option("topic", topic)
            writer = writer.option("delivery", "transactional").option("sinkId", f"cluster-{scan}")
            writer = writer.option("checkpointLocation", str(work / f"checkpoint-{scan}"))
            while True:
                try:
                    writer.trigger(availableNow=True).start().awaitTermination()
                    break
                except StreamingQueryException as problem:  # Spark waits 10 s for a process of Python to begin
                    if "Python worker failed to connect back" not in str(problem):
                        raise
    print("done", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
