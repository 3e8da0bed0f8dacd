"""A Spark driver on one of two hosts that each run a node: run by test_two_hosts.py as a process of its own.

    python two_hosts_driver.py '{"master": …, "path": …, "mounts": {host: mount}, "topic": …, "out": …, "work": …}'

Reads the topic of both nodes as batches (by each scan), and as one stream into Parquet files, and writes all rows once
more, each into the node of the host whose task has it. Prints JSON: what each batch had, and where its tasks ran.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa


def with_place(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Bodies, and the mount namespace of the task that has them."""
    place = os.readlink("/proc/self/ns/mnt")
    for batch in batches:
        yield pa.RecordBatch.from_pydict(
            {"value": [bytes(each.as_py()).decode() for each in batch.column(0)], "place": [place] * batch.num_rows}
        )


def main(task: dict[str, Any]) -> None:
    from warren.spark import session

    work = Path(task["work"])
    settings = {
        "spark.local.dir": str(work / "local"),
        "spark.log.level": "OFF",
        "spark.locality.wait": "60s",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
    }

    def options(host: str, mount: str, **more: str) -> dict[str, str]:
        return {"path": task["path"], "subscribe": task["topic"], "host": host, "mount": mount, **more}

    told: dict[str, Any] = {}
    with session("hosts", master=task["master"], settings=settings) as spark:
        for scan in task["scans"]:
            for host, mount in task["mounts"].items():
                frame = spark.read.format("warren").options(**options(host, mount, scan=scan)).load()
                rows = frame.select("value").mapInArrow(with_place, "value string, place string").collect()
                told[f"{scan} {host}"] = {
                    "values": sorted(row.value for row in rows),
                    "places": sorted({row.place for row in rows}),
                }
        frames = [
            spark.readStream.format("warren").options(**options(host, mount, startingOffsets="earliest")).load()
            for host, mount in task["mounts"].items()
        ]
        both = reduce(lambda left, right: left.unionByName(right), frames)
        query = both.selectExpr("cast(value as string) as value").writeStream.format("parquet")
        query = query.option("checkpointLocation", str(work / "checkpoint")).option("path", str(work / "rows"))
        query.trigger(availableNow=True).start().awaitTermination()
        stored = spark.read.parquet(str(work / "rows"))
        told["stream"] = sorted(row.value for row in stored.collect())
        target = {"path": task["path"], "topic": task["out"], "perHost": "true"}
        stored.repartition(8).write.format("warren").options(**target).mode("append").save()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
