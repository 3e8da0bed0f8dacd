"""A case: a small script by one client, and the transcript of what that client sees.

    @case
    def deleting_a_missing_queue(s: Scene) -> None:
        s.wire().channel().call("queue.delete", queue=s.name("no"))

The transcript is a list of lines. What must differ between two servers, or between two runs, is replaced by rules that
stand in `RULES`, and nowhere else.
"""

import re
import string
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amqp_diff.wire import Lane, Wire, method
from support.waiting import patience

#: pattern, and what stands for it; `#` is the number of the different text that it found in this transcript, from 1
RULES = (
    (re.compile(r"amq\.gen-[\w-]{22}"), "amq.gen-#"),
    (re.compile(r"amq\.ctag-[\w-]{22}"), "amq.ctag-#"),
    (re.compile(r"amq\.rabbitmq\.reply-to\.[\w+/=.-]+"), "amq.rabbitmq.reply-to.#"),
    (re.compile(r'(?<="time": )\["T", \d{10}\]'), '["T", now]'),  # in x-death
    (re.compile(r"amq_[0-9a-f]{32}"), "amq_#"),  # what aio-pika and pika call things themselves
    (re.compile(r"ctag1\.[0-9a-f]{32}"), "ctag1.#"),
    (re.compile(r"\bctag\d+\.[0-9a-f]{32}"), "ctag.#"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "hex-#"),  # message ids and tags that clients draw
)


#: time that the steps of a case may take in addition to its pauses: less than any margin between its times
LATE_S = 0.15
ATTEMPTS = 20


@dataclass(frozen=True)
class Server:
    """Where a server listens, and what a test may do to it beside speaking AMQP."""

    host: str
    port: int
    #: raises the alarm that stops publishers, or takes it back
    alarm: Callable[[bool], None] | None = None
    #: of its node
    directory: Path | None = None
    #: in which the cases run
    vhost: str = "/"

    @property
    def url(self) -> str:
        """For clients that take one."""
        vhost = "" if self.vhost == "/" else urllib.parse.quote(self.vhost, safe="")
        return f"amqp://guest:guest@{self.host}:{self.port}/{vhost}"


class Missing(Exception):
    """Something that a case needs is not on this machine."""


class Scene:
    """One run of a case against one server."""

    def __init__(self, name: str, server: Server, stretch: float = 1.0) -> None:
        """`stretch`: how many times longer a pause is."""
        self.case, self.server, self._stretch = name, server, stretch
        self.lines: list[str] = []
        self.names: list[str] = []
        self._wires: list[Wire] = []
        self._lock = threading.Lock()
        self._began, self._paused = time.monotonic(), 0.0

    def name(self, word: str = "q") -> str:
        """A name of this case's own for a queue or an exchange, which is deleted afterwards."""
        name = f"{self.case}.{word}"
        if name not in self.names:
            self.names.append(name)
        return name

    def pause(self, seconds: float) -> None:
        """Wait for at least this long: time enough for something to happen."""
        self.just(seconds * self._stretch)

    def just(self, seconds: float) -> None:
        """Wait for this long and not longer: something else would happen then."""
        self._paused += seconds
        time.sleep(seconds)

    @property
    def late(self) -> bool:
        """The case depends on times, and the machine was too busy to keep them: its transcript proves nothing."""
        return self._paused > 0 and time.monotonic() - self._began > self._paused + LATE_S

    def say(self, line: str) -> None:
        """Add to the transcript; from any thread."""
        with self._lock:
            self.lines.append(line)

    def connect(self) -> Wire:
        """A socket that has said nothing yet; `a`, `b`, … in the transcript."""
        wire = self._wire(string.ascii_lowercase[len(self._wires)], self.say)
        self._wires.append(wire)
        return wire

    def _wire(self, label: str, say: Callable[[str], None]) -> Wire:
        return Wire(label, say, self.server.host, self.server.port, self.server.vhost)

    def wire(self, **options: Any) -> Wire:
        """An open connection by raw frames."""
        wire = self.connect()
        wire.opened(**options)
        return wire

    def ended(self) -> None:
        """Close what is open, and delete what was declared."""
        for wire in self._wires:
            if not wire.over:
                wire.close()
            else:
                wire.shut()
        if not self.names:
            return
        admin = self._wire("", lambda line: None)
        admin.opened()
        for number, name in enumerate(self.names, 1):
            for kind in ("queue", "exchange"):
                lane = number * 2 + (kind == "queue")
                admin.raw(method(lane, "channel.open", {}) + method(lane, f"{kind}.delete", {kind: name}))
                # refused only where a case left an exclusive queue behind, which ends with its connection
                admin.wait(lane, [f"{kind}.delete-ok", "channel.close"])
        admin.close()


Case = Callable[[Scene], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Add a case, under the name of its function and of its module: `raw_queues.delete_missing`."""
    name = f"{function.__module__.removeprefix('amqp_diff.cases_')}.{function.__name__}"
    assert name not in CASES, name
    CASES[name] = function
    return function


def normalised(lines: list[str], prefix: str) -> list[str]:
    """The lines with `RULES` applied, and without the case's own name before those that it gives."""
    lines = [line.replace(prefix, "") for line in lines]
    seen: dict[str, dict[str, str]] = {}

    def stand_in(stands: str, text: str) -> str:
        if "#" not in stands:
            return stands
        found = seen.setdefault(stands, {})
        return found.setdefault(text, stands.replace("#", str(len(found) + 1)))

    for pattern, stands in RULES:
        lines = [pattern.sub(lambda match, stands=stands: stand_in(stands, match[0]), line) for line in lines]  # type: ignore[misc]
    return lines


def queue_with(s: Scene, *bodies: str, **declared: Any) -> tuple[Lane, str]:
    """A channel, and a queue with these bodies, unsaid."""
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, **declared)
    for body in bodies:
        lane.confirmed(queue, body)
    return lane, queue


def run(name: str, server: Server, wanted: list[str] | None = None) -> list[str]:
    """Run a case, and return its transcript, in which each virtual host is called `/`. A late one that is not what was
    `wanted` is run again, with time to spare.
    """
    for attempt in range(ATTEMPTS):
        scene = Scene(name.rpartition(".")[2], server, patience() if attempt else 1.0)
        try:
            CASES[name](scene)
            late = scene.late
        finally:
            scene.ended()
        lines = scene.lines
        for around in ("vhost '{}'", '"vhost": "{}"'):
            lines = [line.replace(around.format(server.vhost), around.format("/")) for line in lines]
        lines = normalised(lines, f"{scene.case}.")
        if wanted is None or lines == wanted or not late:
            break
    return lines
