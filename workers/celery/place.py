"""Where a URL `warren://…` leads, and what is wanted there: for the broker and for the result backend.

warren:///data               the node of the directory `data`, seen from where the program was started
warren:////var/lib/node      the node of /var/lib/node
warren:///data?start=true    options, as in `broker_transport_options`
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import parse_qsl, unquote

from warren.engine.errors import ClosedError, NodeNotRunning, UsageError
from warren.engine.saying import shown
from warren.workers.client.client import CALL_TIMEOUT_S, Client
from warren.workers.client.shared import shared
from warren.workers.faces.node import Node, open

SCHEME = "warren"
#: how long a node that is started may take
START_S = 60.0
#: how long a task that has ended waits for a node that is away, by default
NODE_TIMEOUT_S = 600.0
#: how long attaching to one that runs may take
ATTACH_S = 5.0
_HOW = "give warren:///relative/directory or warren:////absolute/directory"
_LEVELS = ("none", "written", "synced")
#: of kombu, in the same mapping: how connections are retried
_KOMBU = frozenset(
    {
        "max_retries",
        "interval_start",
        "interval_step",
        "interval_max",
        "errback",
        "connect_retries_timeout",
        "client_properties",
    }
)


class Place(NamedTuple):
    """A node, and how it is used."""

    directory: str  #: absolute
    start: bool = False  #: start a node if none runs
    durability: Literal["none", "written", "synced"] | None = None  #: of what is published; None: the engine's
    confirm_publish: bool = True  #: a publish returns when the message is as durable as that
    hold_eta: bool = True  #: tasks with an ETA wait in the node
    call_timeout: float = CALL_TIMEOUT_S  #: seconds that a call without a timeout waits
    node_timeout: float = NODE_TIMEOUT_S  #: seconds that a task that has ended waits for a node that is away
    topic: str = "celery-results"  #: of the result backend

    @classmethod
    def of(cls, url: str, options: Mapping[str, Any] | None = None) -> Self:
        """What a URL and options say; the options of the URL count more. Raises UsageError."""
        scheme, separator, rest = url.partition("://")
        if scheme != SCHEME or not separator:
            raise UsageError(f"{shown(url)} is no URL of Warren: {_HOW}")
        path, _mark, query = rest.partition("?")
        if not path.startswith("/") or len(path) == 1:
            raise UsageError(f"{shown(url)} names no directory: {_HOW}; a node is on this host, so there is no other")
        given: dict[str, Any] = {name: value for name, value in (options or {}).items() if name not in _KOMBU}
        given |= parse_qsl(query, keep_blank_values=True)
        checked = {name: _checked(name, value) for name, value in given.items()}
        return cls(os.path.abspath(unquote(path[1:])), **checked)

    @property
    def client(self) -> Client:
        """The client of this process for all that is not consumed. It attaches when it is used."""
        return shared((self.directory, f"tasks-{os.getpid()}", self.call_timeout))

    @property
    def node(self) -> Node:
        """The same as a node."""
        return Node(self.client)

    def attach(self, timeout: float = ATTACH_S) -> None:
        """See that there is a node, and that this process is its client; start one if that is wanted. Raises
        NodeNotRunning, ClosedError, LimitError, and what makes a start fail.
        """
        try:
            self.client.attachment(timeout)
        except (NodeNotRunning, ClosedError):
            if not self.start:
                raise
            with open(self.directory, timeout=START_S):  # it stays while somebody uses it
                self.client.attachment(ATTACH_S)


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "1", "yes", "false", "0", "no"):
        return value.lower() in ("true", "1", "yes")
    raise UsageError("it must be true or false")


def _level(value: Any) -> str | None:
    if value is None or value in _LEVELS:
        return str(value) if value else None
    raise UsageError(f"it must be one of {', '.join(_LEVELS)}")


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise UsageError("it must be a number of seconds above 0")
    return seconds


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError("it must be a text")
    return value


_CHECKS = {
    "start": _flag,
    "durability": _level,
    "confirm_publish": _flag,
    "hold_eta": _flag,
    "call_timeout": _seconds,
    "node_timeout": _seconds,
    "topic": _text,
}


#: options of Redis
_GONE = {
    "visibility_timeout": "there is no visibility timeout: a task is delivered again when its worker dies",
    "fanout_prefix": "leave it out: each node has its own exchanges",
    "fanout_patterns": "leave it out: bindings do what it does",
    "priority_steps": "leave it out: give task_queue_max_priority, and note that the highest is the first here",
    "sep": "leave it out: a queue has its priorities in itself",
    "queue_order_strategy": "leave it out: queues of a consumer are served in turns",
    "global_keyprefix": "for results in result_backend_transport_options; for queues use another node",
    "retry_policy": "give node_timeout: how long a task waits for a node that is away",
}


def _checked(name: str, value: Any) -> Any:
    check = _CHECKS.get(name)
    if check is None:
        raise UsageError(
            f"unknown option {shown(name)} of {SCHEME}://: known are {', '.join(sorted(_CHECKS))} "
            f"({_GONE.get(name, 'see docs/celery.md')})"
        )
    try:
        return check(value)
    except UsageError as error:
        raise UsageError(f"option {name}={shown(value)} of {SCHEME}://: {error}") from None
