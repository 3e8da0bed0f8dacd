"""What there is to kill: the actors that a campaign runs itself, and the processes of the node.

The supervisor gives a server up that dies ten times within a minute, and waits longer after each death; a new
supervisor begins to count anew. So a server is killed only while fewer than `SERVER_DEATHS` deaths count against it,
and the supervisor is killed in its place otherwise: the campaign measures restarts, not the back-off.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil

from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc.identity import Identity
from warren.ipc.layout import SERVER_STORE_PERSISTENT, SERVER_WORKER_FIRST
from warren.ipc.superblock import Superblock
from warren.tools.crash.logs import shared_id_of
from warren.workers.process import interpreter

SERVER_DEATHS = 4
DEATHS_WINDOW_S = 60.0
KILL_S = 20.0


class Actor:
    """A process of ours that is started anew when it dies; all its incarnations share one log."""

    def __init__(
        self,
        role: str,
        number: int,
        directory: Path,
        logs: Path,
        rng: random.Random,
        module: str = "warren.tools.crash.actors",
    ) -> None:
        self.role = role
        self._module = module
        self.path = logs / f"{role}-{number}.log"
        self._directory = directory
        self._rng = rng
        self._errors = logs / f"{role}-{number}.err"
        self.pids: set[int] = set()
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        words = (self.role, str(self._directory), str(self.path), str(self._rng.getrandbits(32)))
        with open(self._errors, "ab") as errors:
            process = subprocess.Popen(
                interpreter.command(self._module, *words),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=interpreter.environment(),
            )
        self.pids.add(process.pid)
        return process

    def working(self) -> bool:
        """Whether it has written anything."""
        return any(path.stat().st_size for path in self.path.parent.glob(f"{self.path.name}*"))

    def kill(self) -> None:
        """kill -9, and start the next incarnation."""
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def failed(self) -> str | None:
        """What it printed when it died by itself, None while it lives."""
        if self.process.poll() is None:
            return None
        text = self._errors.read_text(errors="replace").strip()
        return f"a {self.role} ended with {self.process.returncode}: {text[-800:]}"

    def end(self, timeout: float) -> str | None:
        """SIGTERM and wait; the complaint when it does not end, or ends badly."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"a {self.role} did not end within {timeout:g} s of SIGTERM"
        ended_early = -signal.SIGTERM  # it had not come to its signal handler yet
        return None if self.process.returncode in (0, ended_early) else self.failed()


class Node:
    """The processes of a node, as its superblock names them."""

    def __init__(self, directory: Path) -> None:
        self.superblock = Superblock.attach(shared_id_of(directory), LAYOUT_HASH)
        self._deaths: dict[str, list[float]] = {}
        self._restarts: dict[str, int] = {}
        self._supervisor = self.superblock.supervisor
        self._supervisor_since = 0.0
        #: every process of this node that was seen
        self.pids: set[int] = set()
        self.watch()

    def servers(self) -> dict[str, int]:
        """Names of the server processes that have a row in the superblock, and the row."""
        workers = self.superblock.queue_workers
        found = {"store": SERVER_STORE_PERSISTENT} | {f"worker-{n - SERVER_WORKER_FIRST}": n for n in workers}
        topics = self.superblock.topic_server
        if topics and self.superblock.server_get(topics, "epoch"):  # it comes with the first topic
            found["topics"] = topics
        return found

    def find(self, name: str) -> Identity | None:
        """The process of this name (supervisor, store, worker-N, topics, collector) that lives now."""
        if name == "supervisor":
            identity = self.superblock.supervisor
        elif name == "collector":
            identity = self.superblock.collector
        elif name in (servers := self.servers()):
            identity = self.superblock.server_identity(servers[name])
        else:
            return None
        return identity if identity.pid and identity.alive() else None

    def names(self, role: str) -> list[str]:
        """Names of the processes of a role."""
        return [name for name in self.servers() if name.startswith("worker")] if role == "worker" else [role]

    def all(self) -> list[Identity]:
        """Every process of the node that is alive and can start another."""
        found = (self.find(name) for name in ("supervisor", *self.servers()))
        return [identity for identity in found if identity is not None]

    def watch(self) -> None:
        """Look how often each server has died. Call it often."""
        now = time.monotonic()
        self.pids.update(identity.pid for identity in self.all())
        supervisor = self.superblock.supervisor
        if supervisor != self._supervisor:
            self._supervisor, self._supervisor_since = supervisor, now
            self._deaths.clear()
        for name, server in self.servers().items():
            restarts = self.superblock.server_get(server, "restarts")
            for _ in range(restarts - self._restarts.get(name, restarts)):
                self.died(name)
            self._restarts[name] = restarts
        restarts = self.superblock.get("collector_restarts")
        for _ in range(restarts - self._restarts.get("collector", restarts)):
            self.died("collector")
        self._restarts["collector"] = restarts

    def died(self, name: str) -> None:
        """Count a death."""
        self._deaths.setdefault(name, []).append(time.monotonic())

    def may_die(self, name: str, times: int = 1) -> bool:
        """Whether the supervisor would restart it (nearly) at once, so many times."""
        now = time.monotonic()
        if name == "supervisor":
            return True
        self._deaths[name] = [when for when in self._deaths.get(name, []) if now - when < DEATHS_WINDOW_S]
        return len(self._deaths[name]) + times <= SERVER_DEATHS

    def supervisor_ready(self) -> bool:
        """Whether the supervisor has had time to take over what there is."""
        return time.monotonic() - self._supervisor_since > 0.7


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal this very process; False when it is gone."""
    pidfd = identity.open_pidfd()
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def names_in(folder: str, part: str) -> list[str]:
    """Names in a folder that have a part."""
    return [name for name in os.listdir(folder) if part in name] if os.path.isdir(folder) else []


def system_v_left(pids: set[int], keys: set[int], since: float = 0.0) -> list[str]:
    """System V segments that one of these processes made, and semaphores with one of these keys: "segment 7".

    `since`: in seconds since 1970. An older segment is not theirs: an earlier process had that pid.
    """

    def rows(kind: str) -> list[list[str]]:
        return [line.split() for line in Path("/proc/sysvipc", kind).read_text().splitlines()[1:]]

    segments = [f"segment {row[1]}" for row in rows("shm") if int(row[4]) in pids and int(row[13]) >= since]
    return segments + [f"semaphore {row[1]}" for row in rows("sem") if int(row[0]) in keys]


def processes_of(directory: Path) -> list[psutil.Process]:
    """Processes that name the directory in their command line, but for this one; also one that is just beginning its
    program, and has no command line for a moment.
    """
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.pid != os.getpid()
        and (str(directory) in words if (words := process.info["cmdline"]) else _has_open(process.pid, directory))
    ]


def kill_all(directory: Path) -> None:
    """Kill every process that names the directory, at one moment: those of a node start others that they miss."""
    stopped: dict[int, psutil.Process] = {}
    while new := [one for one in processes_of(directory) if one.pid not in stopped]:
        for process in new:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
                process.suspend()
                stopped[process.pid] = process
    for process in stopped.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
            process.wait(KILL_S)


def _has_open(pid: int, directory: Path) -> bool:
    """Whether a process has a file below the directory open."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            return any(os.readlink(item.path).startswith(f"{directory}/") for item in descriptors)
    except OSError:
        return False
