"""SIGKILLs on the way: the store server, a queue worker and a consumer, while everything runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    spark_up: bool = False


@dataclass
class Kill:
    """One kill of the plan."""

    what: str  #: store, queue_worker or consumer
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


def _plan() -> list[Kill]:
    return [
        Kill("store", 0, "a quarter published", lambda p: p.published >= p.publish_total / 4),
        Kill("consumer", 0, "a third received", lambda p: p.received >= p.receive_total / 3),
        Kill("queue_worker", 0, "half published", lambda p: p.published >= p.publish_total / 2),
        Kill("queue_worker", THE_STREAMS, "Spark's first batch done", lambda p: p.batches >= 1),
        Kill("store", 0, "half streamed", lambda p: p.streamed >= p.stream_total / 2),
    ]


@dataclass
class Chaos:
    """Works off its plan as the job goes on."""

    plan: list[Kill] = field(default_factory=_plan)
    done: list[Killed] = field(default_factory=list)

    def tick(
        self, progress: Progress, status: Callable[[], dict[str, Any]], consumer: Callable[[int], int]
    ) -> list[Killed]:
        """Kill what is due by now. `status` is the node's, `consumer` tells the pid of a consumer."""
        due = [kill for kill in self.plan if kill.due(progress)]
        killed = []
        for kill in due:
            if kill.what == "consumer":
                index, pid = kill.index, consumer(kill.index)
                if pid:
                    os.kill(pid, signal.SIGKILL)
            else:
                index, pid = _kill_server(kill, status())
            if pid:
                self.plan.remove(kill)
                killed.append(Killed(kill.what, index, pid, kill.when, progress.published, progress.streamed))
        self.done += killed
        return killed


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
