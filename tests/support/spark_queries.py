"""Streaming queries of tests, and programs with some: begun and ended without trusting that the machine is fast."""

from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

import warren
from warren.ipc import _core
from warren.workers.faces.node import client_of

from support import programs
from support.waiting import patience, wait_until

END_S = 60
#: how long the session of tests/spark holds what nobody reads natively
HOLD_S = 3
BEGIN_TRIES = 5


def begin(writer: Any) -> Any:
    """Start a query. Spark gives the Python process of a source 10 s to begin: on a busy machine that takes longer."""
    while True:
        query = writer.start()
        wait_until(lambda query=query: query.status["message"] != "Initializing sources", END_S, what="the query")
        if not never_began(query.exception()):
            return query


def never_began(problem: object) -> bool:
    """Whether it is only that Spark did not wait for the source's process."""
    return "Python worker failed to connect back" in str(problem)


def finished(writer: Any) -> Any:
    """The query after it has taken what is there; raises its error."""
    while True:
        query = begin(writer)
        try:
            assert query.awaitTermination(END_S * patience()), "the query did not end"
        except StreamingQueryException as error:
            if never_began(error) and "State: INITIALIZING" in str(error):
                continue
            raise
        return query


def holders(node: warren.Node) -> list[int]:
    """The planners that hold something."""
    superblock = client_of(node).attachment().superblock
    return [
        slot.pid
        for slot in superblock.slots()
        if "planner" in slot.name and _core.load64(superblock.buffer, superblock.slot_at(slot.slot, "holds"))
    ]


def run_program(program: Path, folder: Path, stop: bool = False) -> str:
    """Spark gives the Python process of a source 10 s to begin; on a busy machine that takes longer, and the program
    fails before its stream has done anything. A program with a node of its own (`stop`) begins in a folder of its own.
    """
    for number in range(BEGIN_TRIES):
        place = folder / f"try-{number}" if stop else folder
        place.mkdir(exist_ok=True)
        try:
            return programs.run_program(program, place, options=(), stop=stop)  # PySpark itself warns
        except AssertionError as error:
            if not never_began(error):
                raise
    raise AssertionError(f"Spark's Python did not begin in time, {BEGIN_TRIES} times")
