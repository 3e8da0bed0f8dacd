"""A Spark driver that can be told to die: run by the tests as a process of its own.

    python driver.py '{"read": {options}, "work": …, "master": …, "die": ["before" | "after", batch] or null}'

Saves the values of each batch in WORK/batch-<id>.json in one step, takes what is there (AvailableNow), prints `done`.
With `die` it kills itself by SIGKILL in that batch, before or after it saved it, which is before Spark commits it.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def main(task: dict[str, Any]) -> None:
    from pyspark.errors import StreamingQueryException

    from warren.spark import session

    work = Path(task["work"])

    def save(frame: Any, batch: int) -> None:
        values = sorted(int(bytes(row.value)) for row in frame.collect())
        if task["die"] == ["before", batch]:
            os.kill(os.getpid(), signal.SIGKILL)
        fresh = work / "batch.tmp"
        fresh.write_text(json.dumps(values))
        fresh.rename(work / f"batch-{batch}.json")
        if task["die"] == ["after", batch]:
            os.kill(os.getpid(), signal.SIGKILL)

    with session(
        "killed", master=task["master"], settings={"spark.local.dir": str(work), "spark.log.level": "OFF"}
    ) as spark:
        frame = spark.readStream.format("warren").options(**task["read"])
        frame = frame.option("maxOffsetsPerTrigger", "100").option("maxRecordsPerPartition", "30").load()
        query = frame.writeStream.foreachBatch(save).option("checkpointLocation", str(work / "checkpoint"))
        while True:
            try:
                query.trigger(availableNow=True).start().awaitTermination()
                break
            except StreamingQueryException as problem:  # Spark waits 10 s for the source's process to begin
                if "Python worker failed to connect back" not in str(problem):
                    raise
    print("done", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
