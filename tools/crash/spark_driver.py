"""A Spark driver that writes numbers into topics with delivery=transactional, until the file `stop` is there: the
victim of the Spark campaign, a process of its own with its JVM.

    python -m warren.tools.crash.spark_driver '{"path", "work", "topics", "rows", "master", "archive"}'

Numbers come from Spark's own source `rate-micro-batch`: batch n has the numbers n · rows …, whoever runs it and how
often. A query that ends by an error is started again, as an operator would; what it said goes to the standard error.
At the end it prints how many batches Spark's log has.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

LOOK_S = 0.05
#: from when on a look at the query is one too many: it hangs
HANGS_S = 300.0


def main(task: dict[str, Any]) -> int:
    """Run the driver; returns its exit code."""
    from pyspark.errors import StreamingQueryException

    from warren.workers.spark.session import JAVA_OPTIONS, session

    work, archive = Path(task["work"]), Path(task["archive"])
    shared = f"-XX:SharedArchiveFile={archive}" if archive.exists() else f"-XX:ArchiveClassesAtExit={archive}"
    settings = {
        "spark.local.dir": str(work / "local"),
        "spark.log.level": "OFF",
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {shared} -Xshare:auto -Xlog:disable -Xlog:all=off",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
    }
    options = {"path": task["path"], "delivery": "transactional", "sinkId": "campaign", "timeout": "60"}
    with session("campaign", master=task["master"], settings=settings) as spark:
        source = (
            spark.readStream.format("rate-micro-batch").option("rowsPerBatch", task["rows"]).option("numPartitions", 2)
        )
        rows = source.option("startTimestamp", 1_000_000_000_000).load()
        # Half of the rows have a key; the others go to the queues in turns.
        columns = ["cast(value as string) as value", "if(value % 2 = 0, cast(value % 97 as string), null) as key"]
        topics = task["topics"]
        columns.append(f"if(value % 3 = 0, '{topics[0]}', '{topics[1]}') as topic")
        writer = rows.selectExpr(*columns).writeStream.format("warren").options(**options)
        writer = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(processingTime="0 seconds")
        stop = work / "stop"
        while not stop.exists():
            query = writer.start()
            told, since = -1, time.monotonic()
            while query.isActive and not stop.exists():
                time.sleep(LOOK_S)
                batch = (query.lastProgress or {"batchId": -1})["batchId"]
                if batch != told:
                    told, since = batch, time.monotonic()
                if time.monotonic() - since > HANGS_S:
                    print(f"the query has stood at batch {told} for {HANGS_S:.0f} s", file=sys.stderr, flush=True)
                    return 3
            try:
                query.stop()
                query.awaitTermination(1)
            except StreamingQueryException as problem:
                print(f"query ended: {str(problem)[:4000]}", file=sys.stderr, flush=True)
        if not archive.exists():
            _write_archive(spark)
    return 0


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
