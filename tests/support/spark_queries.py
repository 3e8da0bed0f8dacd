"""Streaming queries of tests: begun and ended without trusting that the machine is fast."""

from typing import Any

from pyspark.errors import StreamingQueryException

from support.waiting import patience, wait_until

END_S = 60


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
