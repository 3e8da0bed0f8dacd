"""The session that a pipeline runs in, and how far it is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from warren.workers.spark.session import JAVA_OPTIONS, LOCAL, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: told how many tasks of those known so far are done, and how many there are
Tell = Callable[[int, int], None]
LOOK_S = 0.3
MEMORY = "1g"
#: large sorts and sums in small pieces, each of which fits into the memory of a task
#: and both compilers of the JVM: pipelines run for longer than what the session's defaults are for
_JAVA = JAVA_OPTIONS.replace("-XX:TieredStopAtLevel=1 ", "")
SETTINGS = {
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.adaptive.enabled": "true",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.log.level": "ERROR",
}


@contextlib.contextmanager
def running(
    name: str, master: str | None = None, memory: str | None = None, tell: Tell | None = None
) -> Iterator[SparkSession]:
    """A session of its own for a pipeline, stopped at the end. `tell` hears from another thread how far it is.
    Raises JavaMissing, Error (PySpark is not installed)."""
    with session(f"warren-{name}", master=master or LOCAL, memory=memory or MEMORY, settings=SETTINGS) as spark:
        if tell is None:
            yield spark
            return
        ended = threading.Event()
        watcher = threading.Thread(target=_watch, args=(spark, tell, ended), name="progress", daemon=True)
        watcher.start()
        try:
            yield spark
        finally:
            ended.set()
            watcher.join()


def _watch(spark: SparkSession, tell: Tell, ended: threading.Event) -> None:
    """Count tasks of all stages that were seen."""
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}
    while not ended.wait(LOOK_S):
        for stage in {*tracker.getActiveStageIds(), *(id for id, (done, of) in seen.items() if done < of)}:
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = info.numCompletedTasks, info.numTasks
        if seen:
            tell(sum(done for done, _of in seen.values()), sum(of for _done, of in seen.values()))
