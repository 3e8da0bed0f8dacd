"""Goal: Spark Connect sessions are taken, and one whose server may be elsewhere is warned of.

Method: a session is played: all that is asked of one is its class, its server's host and its registry.
"""

import logging
import socket
from typing import Any

import pytest

from warren.engine.errors import UsageError
from warren.workers.spark.data_source import WarrenDataSource
from warren.workers.spark.files.source import FilesDataSource
from warren.workers.spark.session import is_here, register


def connected(host: str) -> tuple[Any, list[type]]:
    """A session whose server is there, and what was registered with it."""
    taken: list[type] = []
    registry = type("Registry", (), {"register": lambda _self, kind: taken.append(kind)})()
    kind = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "dataSource": registry})
    session: Any = kind()
    session.client = type("Client", (), {"host": host})()
    return session, taken


def test_a_local_server_is_taken_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    for host in ("localhost", "127.0.0.1", "[::1]", socket.gethostname()):
        session, taken = connected(host)
        register(session)
        assert taken == [WarrenDataSource, FilesDataSource]
    assert not caplog.records


def test_another_server_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    session, taken = connected("spark.example")
    with caplog.at_level(logging.WARNING, "warren"):
        register(session)
    assert taken == [WarrenDataSource, FilesDataSource]
    assert "server of this Spark Connect session is on spark.example" in caplog.text
    assert not is_here("localhost.example")


def test_what_is_no_session_is_refused() -> None:
    no_session: Any = "spark"
    with pytest.raises(UsageError, match="a Spark session, not"):
        register(no_session)
