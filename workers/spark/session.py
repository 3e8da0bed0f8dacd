"""Spark sessions with Warren's source, and settings for small machines."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from warren.engine.errors import Error, UsageError
from warren.workers.spark.client import APPLICATION_VARIABLE
from warren.workers.spark.java import check_java

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

#: local mode that repeats a failed task (plain `local[2]` never does)
LOCAL = "local[2,3]"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",  # a quarter of the CPU time
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
#: short-lived, small JVMs
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss4m"
#: how long a JVM gets to end by itself
GATEWAY_END_S = 20.0


def register(spark: SparkSession) -> None:
    """Register `format("warren")` with a session, for reading and writing, batch and stream.

    Each Python worker of the session attaches to a node when it first needs it, as a client named
    `spark-<application>-<role>-<pid>`. Raises UsageError for a Spark Connect session, whose workers are elsewhere.
    """
    from warren.workers.spark.source import WarrenDataSource

    try:
        context = spark.sparkContext
    except Exception as problem:
        raise UsageError(
            "warren.spark.register needs a classic session: a Spark Connect client may be on another machine, "
            "and Warren's shared memory is on this one"
        ) from problem
    context.environment[APPLICATION_VARIABLE] = context.appName
    spark.dataSource.register(WarrenDataSource)


def check_spark() -> None:
    """Raise unless PySpark is installed and a Java for it is there: before PySpark's own stack trace."""
    if importlib.util.find_spec("pyspark") is None:
        raise Error("PySpark is not installed; install Warren with it: pip install 'warren[spark]'")
    check_java()


@contextlib.contextmanager
def session(
    application: str,
    *,
    master: str = LOCAL,
    memory: str = "512m",
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A small, quiet Spark session with `format("warren")` registered; stopped at the end, its JVM with it.

    `master` is `local[cores,tries]` or `local-cluster[executors,cores,MB]`; `memory` is the driver's heap; `settings` go
    to Spark as they are, above the defaults of this module. Raises JavaMissing. There must be no other session in the process.
    """
    check_spark()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(application).master(master)
    wanted = {
        **SETTINGS,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.log.level": "ERROR",
        **(settings or {}),
    }
    for key, value in wanted.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    context = spark.sparkContext
    process = getattr(context._gateway, "proc", None)
    try:
        register(spark)
        yield spark
    finally:
        application_id = context.applicationId
        spark.stop()
        if process is not None:
            _end_gateway(context, process)
        if master.startswith("local-cluster["):
            remove_cluster_work(application_id)


def remove_cluster_work(application_id: str) -> None:
    """Remove what a local cluster's workers leave in PySpark's own folder: `work/<application>`."""
    specification = importlib.util.find_spec("pyspark")
    assert specification is not None
    assert specification.origin is not None
    work = Path(os.environ.get("SPARK_HOME") or Path(specification.origin).parent, "work")
    shutil.rmtree(work / application_id, ignore_errors=True)
    with contextlib.suppress(OSError):
        work.rmdir()  # unless another application uses it


def _end_gateway(context: SparkContext, process: subprocess.Popen[bytes]) -> None:
    """End the JVM, which PySpark would keep until this process ends; the next session starts another."""
    gateway = context._gateway
    if gateway is not None:
        gateway.shutdown()
    type(context)._gateway = None
    type(context)._jvm = None
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends when its standard input does
    try:
        process.wait(timeout=GATEWAY_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
