"""Spark sessions with Warren's source, and settings for small machines."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import socket
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from warren.engine.errors import Error, UsageError
from warren.engine.saying import shown
from warren.workers.spark import native
from warren.workers.spark.client import APPLICATION_VARIABLE
from warren.workers.spark.java import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

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
#: what a JVM logs: errors
LOGGING = Path(__file__).resolve().with_name("log4j2.properties")
#: short-lived, small, quiet JVMs
JAVA_OPTIONS = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss4m -Dlog4j2.configurationFile={LOGGING.as_uri()}"
#: the setting that says in which Python the native scan is planned
PYTHON_SETTING = "spark.warren.python"
#: who writes the checkpoints of streams, without starting processes for each file (LocalCheckpoints.java)
CHECKPOINTS_SETTING = "spark.sql.streaming.checkpointFileManagerClass"
CHECKPOINTS = "warren.spark.LocalCheckpoints"
#: what PySpark's Python workers, and who forks them, are started with
DAEMON = "pyspark.daemon"
#: how long a JVM gets to end by itself
GATEWAY_END_S = 20.0


def register(spark: SparkSession) -> None:
    """Register `format("warren")` with a session, for reading and writing, batch and stream.

    Each Python worker of the session attaches to a node when it first needs it, as a client named
    `spark-<application>-<role>-<pid>`. Workers run the driver's Python unless PYSPARK_PYTHON says otherwise. Of a Spark
    Connect session the workers are where its server is: this is logged as a warning if that may be another machine than
    this one, as Warren's shared memory is on one. Raises UsageError for what is no session.
    """
    from warren.workers.spark.data_source import WarrenDataSource, WarrenPythonDataSource
    from warren.workers.spark.files.source import FilesDataSource

    server = server_of(spark)
    if server is None:
        context = spark.sparkContext
        context.environment[APPLICATION_VARIABLE] = context.appName
        if "PYSPARK_PYTHON" not in os.environ and context.getConf().get("spark.pyspark.python") is None:
            context.pythonExec = sys.executable  # PySpark would take any `python3` of the PATH, where Warren may not be
    elif not is_here(server):
        log.warning(
            "the server of this Spark Connect session is on %s: option 'path' names the directory of a node there",
            server,
        )
    # Where the native scan is, `format("warren")` is Java's, which finds Python's source by another name.
    if server is None and _add_native_scan(spark):
        spark.conf.set(PYTHON_SETTING, sys.executable)
        spark.dataSource.register(WarrenPythonDataSource)
    else:
        spark.dataSource.register(WarrenDataSource)
    spark.dataSource.register(FilesDataSource)


def server_of(spark: SparkSession) -> str | None:
    """The host of a Spark Connect session's server, as the client knows it; None for a classic session."""
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        if not hasattr(type(spark), "sparkContext"):
            raise UsageError(f"warren.spark.register takes a Spark session, not {shown(spark)}")
        return None
    return str(spark.client.host)


def is_here(host: str) -> bool:
    """Whether a host's name is of this machine, as far as its name tells."""
    plain = host.strip("[]").lower()
    return plain in ("localhost", "::1", socket.gethostname().lower(), socket.getfqdn().lower()) or plain.startswith(
        "127."
    )


def _add_native_scan(spark: SparkSession) -> bool:
    """Have the native scan in a session, which its executors get with it. False: there is no jar of it."""
    from py4j.java_gateway import JavaClass

    jar = native.jar()
    if jar is None:
        return False
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    if not isinstance(jvm.warren.spark.WarrenSource, JavaClass):
        spark.sql(f"ADD JAR '{jar}'")
    return True


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
    """A small Spark session with `format("warren")` registered, which logs errors only; stopped at the end, its JVM
    with it.

    `master` is `local[cores,tries]` or `local-cluster[executors,cores,MB]`; `memory` is the driver's heap; `settings`
    go to Spark as they are, above the defaults of this module. Raises JavaMissing. There must be no other session in
    the process.
    """
    check_spark()
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # for its Python workers: no modules from the current directory
    builder = SparkSession.builder.appName(application).master(master)
    wanted = {
        **SETTINGS,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        **(settings or {}),
    }
    if (jar := native.jar()) is not None:
        for where in ("spark.driver.extraClassPath", "spark.executor.extraClassPath"):
            wanted[where] = os.pathsep.join(filter(None, (wanted.get(where), str(jar))))
        if master.startswith("local"):  # elsewhere, executors may be where the jar is not
            wanted.setdefault(CHECKPOINTS_SETTING, CHECKPOINTS)
    if wanted["spark.driver.extraJavaOptions"] != JAVA_OPTIONS:  # Spark says that it sets this
        wanted.setdefault("spark.log.level", "ERROR")
    for key, value in wanted.items():
        builder = builder.config(key, value)
    application_id = ""
    orderly = True
    try:
        with warnings.catch_warnings():  # it says so of every pandas 3, also to who uses none; who does hears it again
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
            spark = builder.getOrCreate()
        application_id = spark.sparkContext.applicationId
        register(spark)
        yield spark
    except BaseException as problem:
        # Interrupted in a call into the JVM, nobody knows what its next answer belongs to.
        orderly = isinstance(problem, Exception)
        if orderly:
            _keep_texts(problem)
        raise
    finally:
        _end_spark(orderly)
        if application_id and master.startswith("local-cluster["):
            remove_cluster_work(application_id)


def _keep_texts(problem: BaseException | None) -> None:
    """Let an error of Spark's, and those that it came of, have their texts still when the JVM has ended, which PySpark
    asks for each.
    """
    from pyspark.errors.exceptions.captured import CapturedException

    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        if isinstance(problem, CapturedException):
            kind, text = type(problem), str(problem)
            names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
            problem.__class__ = type(kind.__name__, (kind,), {**names, "__str__": lambda _self, text=text: text})
        problem = problem.__cause__ or problem.__context__


def remove_cluster_work(application_id: str) -> None:
    """Remove what a local cluster's workers leave in PySpark's own folder: `work/<application>`."""
    specification = importlib.util.find_spec("pyspark")
    assert specification is not None
    assert specification.origin is not None
    work = Path(os.environ.get("SPARK_HOME") or Path(specification.origin).parent, "work")
    shutil.rmtree(work / application_id, ignore_errors=True)
    with contextlib.suppress(OSError):
        work.rmdir()  # unless another application uses it


def _end_spark(orderly: bool) -> None:
    """Stop the session, and end its JVM, which PySpark would keep until this process ends. A JVM that was killed is
    no obstacle: behind it a new session can be made.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if orderly and gateway is not None:
        active = SparkSession._instantiatedSession
        try:
            if active is not None:
                if not (active.streams.active or active.sparkContext.statusTracker().getActiveJobsIds()):
                    hang_up(idle_workers())
                active.stop()
            gateway.shutdown()
        except (Py4JError, OSError) as problem:
            log.warning("Spark's JVM had ended before its session: %s", problem)
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    # A JVM ends when its standard input does, unless it was interrupted while it started.
    process = getattr(gateway, "proc", None)
    if process is not None and process.stdin is not None:
        process.stdin.close()
    children = [child for child in psutil.Process().children() if _is_gateway(child)]
    _gone, left = psutil.wait_procs(children, GATEWAY_END_S if orderly else 0)
    for child in left:
        child.kill()
    if process is not None:
        process.wait()


def idle_workers() -> list[psutil.Process]:
    """Return the Python workers of this process's session, which nobody uses when no job runs."""
    below = psutil.Process().children(recursive=True)
    daemons = {process.pid for process in below if DAEMON in _words(process)}
    found = []
    for process in below:
        with contextlib.suppress(psutil.Error):
            if process.pid in daemons and process.ppid() in daemons:
                found.append(process)
    return found


def hang_up(workers: Iterable[psutil.Process]) -> None:
    """End idle workers as their daemon would, but first: Spark closes their sockets before, and whoever notices that
    prints the trace of an error, or its first line.
    """
    for worker in workers:
        with contextlib.suppress(psutil.Error):
            worker.send_signal(signal.SIGHUP)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_gateway(process: psutil.Process) -> bool:
    words = _words(process)
    return "pyspark-shell" in words and any("SparkSubmit" in word or "spark-submit" in word for word in words)
