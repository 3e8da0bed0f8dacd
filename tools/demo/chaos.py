"""SIGKILLs on the way: servers, a consumer, Spark's Python workers and its driver, while everything runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

from warren.ipc.identity import Identity, pid_namespace
from warren.tools.demo.inputs import SPARK

THE_STREAMS = -1


@dataclass
class Progress:
    """How far the job is, in messages."""

    publish_total: int = 0
    published: int = 0
    receive_total: int = 0
    received: int = 0
    stream_total: int = 0
    streamed: int = 0
    batches: int = 0
    copied: int = 0  #: records of the topic that Spark has read
    copy_total: int = 0
    copy_batches: int = 0
    spark_up: bool = False


@dataclass
class Kill:
    """One kill of the plan."""

    what: str  #: store, queue_worker, topic_worker, consumer, spark_worker or driver
    index: int  #: THE_STREAMS: the queue worker that serves the stream
    when: str  #: for the reader
    due: Callable[[Progress], bool]


@dataclass
class Killed:
    """One kill that was done."""

    what: str
    index: int
    pid: int
    when: str
    published: int
    streamed: int
    second: float = 0.0  #: since the job's start


def _plan() -> list[Kill]:
    return [
        Kill("store", 0, "a quarter published", lambda p: p.published >= p.publish_total / 4),
        Kill("consumer", 0, "a third received", lambda p: p.received >= p.receive_total / 3),
        Kill("queue_worker", 0, "half published", lambda p: p.published >= p.publish_total / 2),
        Kill("queue_worker", THE_STREAMS, "Spark's first batch done", lambda p: p.batches >= 1),
        Kill("topic_worker", 0, "Spark's first batch of the topic done", lambda p: p.copy_batches >= 1),
        Kill("spark_worker", 0, "a fifth of the topic read", lambda p: p.copied >= p.copy_total / 5),
        Kill("store", 0, "half streamed", lambda p: p.streamed >= p.stream_total / 2),
        # The last one: a new driver counts from where its checkpoint is.
        Kill(
            "driver",
            0,
            "half streamed, and half of the topic read",
            lambda p: p.streamed >= p.stream_total / 2 and p.copied >= p.copy_total / 2,
        ),
    ]


@dataclass
class Chaos:
    """Works off its plan as the job goes on."""

    plan: list[Kill] = field(default_factory=_plan)
    done: list[Killed] = field(default_factory=list)

    def tick(
        self,
        progress: Progress,
        status: Callable[[], dict[str, Any]],
        consumer: Callable[[int], int],
        driver: Callable[[], int],
    ) -> list[Killed]:
        """Kill what is due by now. `status` is the node's, `consumer` tells the pid of a consumer, `driver` that of
        Spark's driver, which leads a process group; 0: it does not run.
        """
        due = [kill for kill in self.plan if kill.due(progress)]
        killed = []
        for kill in due:
            index, pid = kill.index, 0
            if kill.what == "consumer":
                if pid := consumer(kill.index):
                    os.kill(pid, signal.SIGKILL)
            elif kill.what == "driver":
                if pid := driver():
                    os.killpg(pid, signal.SIGKILL)  # with its JVM, as when a machine runs out of memory
            elif kill.what == "spark_worker":
                pid = _kill_spark_worker(driver(), status())
            else:
                index, pid = _kill_server(kill, status())
            if pid:
                self.plan.remove(kill)
                killed.append(Killed(kill.what, index, pid, kill.when, progress.published, progress.streamed))
        self.done += killed
        return killed


def _kill_spark_worker(driver: int, status: dict[str, Any]) -> int:
    """Kill a Python worker of an executor that is attached to the node; its pid, 0 when there is none."""
    attached = {client["pid"] for client in status["clients"] if "-executor-" in client["name"]}
    if not driver:
        return 0
    try:
        for process in psutil.Process(driver).children(recursive=True):
            if process.pid in attached:
                process.kill()
                return process.pid
    except psutil.NoSuchProcess:
        pass
    return 0


def _kill_server(kill: Kill, status: dict[str, Any]) -> tuple[int, int]:
    """Kill a server by a pidfd checked against its start time; its index and pid, 0 when it is not there now."""
    index = kill.index
    if index == THE_STREAMS:
        index = next(queue["worker"] for queue in status["queues"] if queue["name"] == SPARK)
    found = [p for p in status["processes"] if p["role"] == kill.what and p["index"] == index and p["pid"]]
    if not found:
        return index, 0
    identity = Identity(found[0]["pid"], found[0]["start_time"], pid_namespace())
    descriptor = identity.open_pidfd()
    if descriptor is None:
        return index, 0
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return index, 0
    finally:
        os.close(descriptor)
    return index, identity.pid
