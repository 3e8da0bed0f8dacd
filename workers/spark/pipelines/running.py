"""The session that a pipeline runs in, how far it is, and how it ends when it is interrupted.

Invariants
  The JVM has a process group of its own: what Ctrl-C or `timeout` sends to ours comes to us alone, and we end the JVM.
  Interrupted, the JVM and what it started are stopped before one of them is killed: none sees another one die, and
  nothing is said of it.
  What Spark puts into its temporary directory goes with the session, however that ends. Killed itself, this process
  leaves the directory, and the JVM ends with its standard input.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psutil

from warren.workers.spark.session import JAVA_OPTIONS, LOCAL, check_spark, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: told how many tasks of those known so far are done, and how many there are
Tell = Callable[[int, int], None]
LOOK_S = 0.3
MEMORY = "1g"
#: of a directory's name: sockets of Python workers lie there, and their names have 108 bytes at most
SCRATCH_MAX = 60
#: large sorts and sums in small pieces, each of which fits into the memory of a task
#: and both compilers of the JVM: pipelines run for longer than what the session's defaults are for
_JAVA = JAVA_OPTIONS.replace("-XX:TieredStopAtLevel=1 ", "")
SETTINGS = {
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.adaptive.enabled": "true",
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.log.level": "ERROR",
}


@contextlib.contextmanager
def running(
    name: str, master: str | None = None, memory: str | None = None, tell: Tell | None = None
) -> Iterator[SparkSession]:
    """A session of its own for a pipeline, stopped at the end. `tell` hears from another thread how far it is.
    Raises JavaMissing, Error (PySpark is not installed)."""
    check_spark()
    with _scratch(name) as place, _own_group():
        settings = {**SETTINGS, "spark.driver.extraJavaOptions": f'{_JAVA} -XX:-UsePerfData "-Djava.io.tmpdir={place}"'}
        with session(f"warren-{name}", master=master or LOCAL, memory=memory or MEMORY, settings=settings) as spark:
            try:
                with _watched(spark, tell):
                    yield spark
            except BaseException as problem:
                if not isinstance(problem, Exception):
                    _still()
                raise


@contextlib.contextmanager
def _scratch(name: str) -> Iterator[str]:
    """A directory for what Spark keeps while it runs."""
    prefix = f"warren-{name}-"
    within = None if len(f"{tempfile.gettempdir()}/{prefix}") < SCRATCH_MAX else "/tmp"  # noqa: S108 - a name of its own within it
    with tempfile.TemporaryDirectory(prefix=prefix, dir=within, ignore_cleanup_errors=True) as place:
        yield place


@contextlib.contextmanager
def _own_group() -> Iterator[None]:
    """A JVM that starts within gets a process group of its own: PySpark can do that, and has no option for it."""
    context: Any = importlib.import_module("pyspark.core.context")
    launch = context.launch_gateway
    context.launch_gateway = functools.partial(launch, popen_kwargs={"process_group": 0})
    try:
        yield
    finally:
        context.launch_gateway = launch


def _still() -> None:
    """Stop the JVM and all below it, then kill what is below; who ends the session kills the JVM."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None or process.poll() is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        jvm = psutil.Process(process.pid)
        jvm.suspend()
        _quiet()
        found: dict[int, psutil.Process] = {}
        while new := [child for child in jvm.children(recursive=True) if child.pid not in found]:
            for child in new:
                found[child.pid] = child
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.suspend()
        for child in found.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def _quiet() -> None:
    """What serves the JVM in this process prints a stack when the JVM is killed."""
    from pyspark import SparkContext

    server = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_of: None


@contextlib.contextmanager
def _watched(spark: SparkSession, tell: Tell | None) -> Iterator[None]:
    if tell is None:
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, tell, ended), name="progress", daemon=True)
    watcher.start()
    try:
        yield
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
