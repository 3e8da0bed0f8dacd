"""A node as commands use it that read and write messages: attached, and what makes a call wait is said.

What programs hear through the logger `warren` (alarms that block publishers, servers that are down or stand still, and
the ends of that) people hear on standard error. A call that waits, and of which nothing else is known, is `awaited`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import DiskFull, TimedOut
from warren.ipc import names
from warren.workers.cli import output
from warren.workers.cli.shell_texts import for_the_command_line
from warren.workers.process.control import TELL_S

if TYPE_CHECKING:
    import warren

LOGGER = "warren"
#: the client itself says after a second what it waits for
PATIENCE_S = TELL_S + 0.7


#: what is awaited of a node that is busy
CONFIRM, ANSWER = "the node has not confirmed yet", "the node has not answered yet"
CONFIRM_TIMEOUT = click.option(
    "--timeout",
    type=output.Seconds(min=0),
    help="Longest wait for the confirm of what is sent together, in seconds; then exit code 4. Default: no limit.",
)


class _Teller(logging.Handler):
    """Says what a client tells its program."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.troubles_n = 0  #: that were said
        self.awaited = False  #: a call is under way that the node answers: what is said is what it waits for

    def emit(self, record: logging.LogRecord) -> None:
        """Troubles, and after those their ends."""
        said = for_the_command_line(record.getMessage())
        trouble = record.levelno >= logging.WARNING
        self.troubles_n += trouble
        if trouble and self.awaited:
            output.waiting(said)
        elif self.troubles_n:
            output.note(said)


def note_failed(directory: str, report: dict[str, Any], roles: Iterable[tuple[str, int]]) -> None:
    """Of these processes (role and index) say which have failed: what a report counts of them is not true."""
    failed = {(row["role"], row["index"]) for row in report["processes"] if row["state"] == "failed"}
    for role, index in sorted(failed.intersection(roles)):
        from warren.workers.client.attachment import given_up

        name = names.TOPICS if role == "topic_worker" else f"worker-{index}"
        output.note(for_the_command_line(str(given_up(NodeDirectory(directory), name))))


@contextlib.contextmanager
def attached(directory: str, name: str) -> Iterator[warren.Node]:
    """Attach to the running node of a directory, under this name. Raises what `warren.attach` raises."""
    import warren

    logger = logging.getLogger(LOGGER)
    level, teller = logger.level, _Teller()
    logger.addHandler(teller)
    logger.setLevel(logging.INFO)
    try:
        with warren.attach(directory, name=name) as node:
            yield node
    finally:
        logger.removeHandler(teller)
        logger.setLevel(level)


@contextlib.contextmanager
def awaited(what: str) -> Iterator[None]:
    """Around a call that the node answers, while attached: when that takes long, and nothing was said of why, `what` is
    said.
    """
    (teller,) = (handler for handler in logging.getLogger(LOGGER).handlers if isinstance(handler, _Teller))
    before, teller.awaited = teller.troubles_n, True

    def tell() -> None:
        if teller.troubles_n == before:
            output.waiting(what)

    timer = threading.Timer(PATIENCE_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        teller.awaited = False


@contextlib.contextmanager
def given_time(timeout: float | None) -> Iterator[None]:
    """Around a call with this timeout: what ends it then is a timeout, whatever it waited for. Raises TimedOut."""
    try:
        yield
    except DiskFull as error:
        if timeout is None:
            raise
        raise TimedOut(str(error)) from error
