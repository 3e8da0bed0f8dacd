"""The one Warren client of a Spark Python process, opened at the first use.

Spark's Python workers are forked from a daemon that never runs our code, live for many tasks, and end without any
clean-up (idle ones are killed, others leave by `os._exit`). So the client belongs to the process, is found by its pid
(a fork must not use its parent's), and nothing here relies on being closed: the node sweeps what a dead client held.

`warren.spark.register` puts the application's name into the environment that Spark gives to these workers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from warren.engine.errors import ClosedError, NodeNotRunning, PeerLost
from warren.workers.client.attachment import NODE_DRAINING
from warren.workers.faces.node import attach, client_of

if TYPE_CHECKING:
    from warren.workers.faces.node import Node

#: set by `warren.spark.register` for all Python workers of the application
APPLICATION_VARIABLE = "WARREN_SPARK_APPLICATION"
NAME_BYTES_MAX = 47
#: between two looks whether a node that was stopped runs again
PAUSE_S = 0.1

T = TypeVar("T")
#: of an executor's JVM, two or three parents above its workers
EXECUTOR_OPTION = b"--executor-id"
GENERATIONS_MAX = 5

_lock = threading.Lock()
_clients: dict[tuple[int, str], Node] = {}


def executor_id() -> str | None:
    """Return the number of the executor that this process works for, which its JVM was started with; None: it is the
    driver's, as in local mode.
    """
    pid = os.getppid()
    for _generation in range(GENERATIONS_MAX):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None  # it has just ended, or is another user's
        if EXECUTOR_OPTION in words[:-1]:
            return words[words.index(EXECUTOR_OPTION) + 1].decode(errors="replace")
        pid = int(status.rpartition(")")[2].split()[1])
        if not pid:
            return None
    return None


def client_name(role: str) -> str:
    """Return the name under which this process is seen in `warren status`: spark-<application>-<role>-<pid>, in a
    cluster with the executor's number before the pid.
    """
    application = os.environ.get(APPLICATION_VARIABLE) or "application"
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in application)
    executor = executor_id()
    end = f"-{role}-{os.getpid()}" if executor is None else f"-{role}-{executor[:8]}-{os.getpid()}"
    return f"spark-{plain}"[: NAME_BYTES_MAX - len(end)] + end


def node_of(path: str, role: str, timeout_s: float) -> Node:
    """Return this process's client of the node at `path`, attached now if it was not yet.

    `role` ("executor", "planner") goes into the name of a new client. Errors: those of `warren.attach`.
    """
    key = (os.getpid(), path)
    with _lock:
        node = _clients.get(key)
        if node is None or node.closed:
            for old in [other for other in _clients if other[0] != key[0]]:
                del _clients[old]  # a parent's: not ours to close
            node = _clients[key] = attach(path, timeout=timeout_s, name=client_name(role))
        return node


def is_stop(path: str, problem: Exception, role: str = "executor") -> bool:
    """Whether an error of this process's client says that the node was stopped, or is being stopped, in order.

    Then a task waits for the node to come back, as it does when the node is killed: to fail would have Spark repeat
    what the task has done. A planner that was never attached has no such node.
    """
    node = _clients.get((os.getpid(), path))
    if node is None:
        return role == "executor" and isinstance(problem, NodeNotRunning)
    if node.closed:
        return False
    attachment = client_of(node).attached
    return attachment is None or attachment.core.over or attachment.superblock.state >= NODE_DRAINING


def check_runs(node: Node) -> None:
    """Raise ClosedError, NodeNotRunning unless the node runs, and is not about to end."""
    client = client_of(node)
    client.catalog()  # which leaves a node that is no more
    if client.attachment().superblock.state >= NODE_DRAINING:
        raise ClosedError(f"the node of {client.directory.path} is being stopped: start it again")


def outlasting(path: str, timeout_s: float, call: Callable[[], T], role: str = "executor") -> T:
    """What `call` gives; while the node is stopped it is called again, until it runs, or for `timeout_s`.

    The call must bear to be made twice. Raises what it raises.
    """
    end: float | None = None
    while True:
        try:
            return call()
        except (ClosedError, NodeNotRunning, PeerLost) as problem:
            now = time.monotonic()
            end = now + timeout_s if end is None else end
            if now >= end or not is_stop(path, problem, role):
                raise
        time.sleep(PAUSE_S)


def close_clients() -> None:
    """Close the clients of this process, for programs that are not Spark's: its own workers are swept by the node."""
    with _lock:
        closing = [node for (pid, _path), node in _clients.items() if pid == os.getpid()]
        _clients.clear()
    for node in closing:
        node.close()
