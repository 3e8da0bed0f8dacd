"""A Spark driver that writes numbers into topics with delivery=transactional, until the file `stop` is there: the
victim of the Spark campaign, a process of its own with its JVM.

    python -m warren.tools.crash.spark_driver '{"path", "work", "topics", "rows", "master", "archive", "scratch",
        "source", "name", "scan"}'

Numbers come from a `source`, the topic or the queue `name`, or from Spark's own source `rate-micro-batch`: there batch
n has the numbers n · rows …, whoever runs it and how often. A query that ends by an error is started again, as an
operator would; what it said goes to the standard error. With `scan` turns a query is stopped after TURN batches, and
the next one reads with the other scan.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from warren.tools.crash.spark_processes import java_options

LOOK_S = 0.05
#: batches of a query, if scans take turns
TURN = 12
#: from when on a look at the query is one too many: it hangs
HANGS_S = 300.0


def main(task: dict[str, Any]) -> int:
    """Run the driver; returns its exit code."""
    from pyspark.errors import PySparkException

    from warren.workers.spark.session import session

    work, archive = Path(task["work"]), Path(task["archive"])
    shared = f"-XX:SharedArchiveFile={archive}" if archive.exists() else f"-XX:ArchiveClassesAtExit={archive}"
    java = java_options(Path(task["scratch"]))
    settings = {
        "spark.local.dir": str(work / "local"),
        "spark.log.level": "OFF",
        "spark.driver.extraJavaOptions": f"{java} {shared} -Xshare:auto -Xlog:disable -Xlog:all=off",
        "spark.executor.extraJavaOptions": java,
        "spark.executor.memory": "512m",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
    }
    with session("campaign", master=task["master"], settings=settings) as spark:
        with open(work / "applications", "a", encoding="utf-8") as applications:
            print(spark.sparkContext.applicationId, file=applications)
        stop = work / "stop"
        for scan in itertools.cycle(("native", "python") if task["scan"] == "turns" else (task["scan"],)):
            if stop.exists():
                break
            try:
                if not _query(_writer(spark, task, scan), stop, TURN if task["scan"] == "turns" else None):
                    return 3
            except PySparkException as problem:  # also of a begin while the node is stopped
                print(f"query ended: {str(problem)[:4000]}", file=sys.stderr, flush=True)
        if not archive.exists():
            _write_archive(spark)
    return 0


def _writer(spark: Any, task: dict[str, Any], scan: str) -> Any:
    """The stream, to be started."""
    work, topics = Path(task["work"]), task["topics"]
    if task["source"] == "rate":
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", task["rows"])
        rows = source.option("numPartitions", 2).option("startTimestamp", 1_000_000_000_000).load()
        # Half of the rows have a key; the others go to the queues in turns.
        columns = ["cast(value as string) as value", "if(value % 2 = 0, cast(value % 97 as string), null) as key"]
        columns.append(f"if(value % 3 = 0, '{topics[0]}', '{topics[1]}') as topic")
    else:
        source = spark.readStream.format("warren").option("path", task["path"]).option("timeout", "60")
        source = source.option("maxOffsetsPerTrigger", task["rows"])
        if task["source"] == "queue":
            source = source.option("queue", task["name"])
        else:
            source = source.option("subscribe", task["name"]).option("scan", scan)
            source = source.option("startingOffsets", "earliest")
        rows = source.load()
        columns = ["value", "key", f"if(offset % 3 = 0, '{topics[0]}', '{topics[1]}') as topic"]
    options = {"path": task["path"], "delivery": "transactional", "sinkId": "campaign", "timeout": "60"}
    writer = rows.selectExpr(*columns).writeStream.format("warren").options(**options)
    return writer.option("checkpointLocation", str(work / "checkpoint")).trigger(processingTime="0 seconds")


def _query(writer: Any, stop: Path, turn: int | None) -> bool:
    """Run a query until it ends, the file `stop` is there, or it has done so many batches. False: it hangs."""
    query = writer.start()
    told, since, batches = -1, time.monotonic(), 0
    while query.isActive and not stop.exists() and (turn is None or batches < turn):
        time.sleep(LOOK_S)
        batch = (query.lastProgress or {"batchId": -1})["batchId"]
        if batch != told:
            told, since, batches = batch, time.monotonic(), batches + 1
        if time.monotonic() - since > HANGS_S:
            print(f"the query has stood at batch {told} for {HANGS_S:.0f} s", file=sys.stderr, flush=True)
            return False
    query.stop()
    query.awaitTermination(1)
    return True


def _write_archive(spark: Any) -> None:
    """End the JVM in good order, and wait until it has written the archive of its classes, which takes a while."""
    from py4j.protocol import Py4JError

    gateway = spark.sparkContext._gateway
    spark.stop()
    with contextlib.suppress(Py4JError, OSError):  # there is nobody to answer
        gateway.jvm.java.lang.System.exit(0)
    gateway.proc.wait(HANGS_S)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
