"""Goal: a request to the supervisor is checked as a whole before anything is done, and each one is answered.

Method: the supervisor's table without a node, and a control server with handlers of the test, asked over its socket.
"""

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error, UsageError
from warren.workers.node import control_server
from warren.workers.node.control_server import ControlServer, Table
from warren.workers.node.desk import Desk
from warren.workers.node.supervisor import Supervisor
from warren.workers.process import requests
from warren.workers.process.control import ControlClient
from warren.workers.process.requests import OPERATIONS


def test_every_request_has_one_that_answers_it() -> None:
    supervisor: Any = object.__new__(Supervisor)
    supervisor._desk = object.__new__(Desk)
    assert set(supervisor._table()) == set(OPERATIONS.values())


def test_what_must_not_be_done_twice_is_not_sent_twice() -> None:
    once = {name for name, kind in OPERATIONS.items() if not kind.repeatable}
    assert once == {"delete_queue", "delete_queues", "delete_exchange", "subscription", "delete_topic"}


@contextmanager
def served(path: Path, table: Table) -> Iterator[ControlClient]:
    """A client of a control server with this table, in a thread of its own."""
    directory = NodeDirectory(path)
    directory.make()
    directory.lock()
    ended = threading.Event()
    with selectors.DefaultSelector() as selector:
        server = ControlServer(directory, selector, table)

        def loop() -> None:
            while not ended.is_set():
                for key, _events in selector.select(0.01):
                    key.data()
                server.turn()

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            with ControlClient(path) as client:
                yield client
        finally:
            ended.set()
            thread.join()
            server.close()
            directory.unlock()


@pytest.mark.parametrize(
    ("op", "fields", "said"),
    [
        ("nothing", {}, "the supervisor knows no operation 'nothing'"),
        ("note", {}, "note: Object missing required field `text`"),
        ("note", {"text": 1}, r"note: Expected `str`, got `int` - at `\$.text`"),
        ("note", {"text": "a", "more": 1}, "note: Object contains unknown field `more`"),
        (
            "declare_queues",
            {"queues": [{"name": "a", "durable": 1}]},
            "Expected `bool`, got `int`",
        ),
    ],
)
def test_wrong_fields_are_named_and_reach_nobody(tmp_path: Path, op: str, fields: dict[str, Any], said: str) -> None:
    reached: list[requests.Request] = []
    table = dict.fromkeys(OPERATIONS.values(), lambda asked: reached.append(asked) or {})
    with served(tmp_path, table) as client:
        with pytest.raises(UsageError, match=said):
            client.call(op, **fields)
        assert reached == []
        assert client.call("note", text="a") == {}
    assert [type(asked) for asked in reached] == [requests.Note]


def test_a_defect_in_an_answer_is_no_wrong_field(tmp_path: Path) -> None:
    def fail(_asked: requests.Ping) -> dict[str, Any]:
        raise TypeError("of its own")

    with served(tmp_path, {requests.Ping: fail, requests.Note: lambda asked: {}}) as client:
        with pytest.raises(Error, match="ping failed in the supervisor: TypeError: of its own") as caught:
            client.call("ping")
        assert not isinstance(caught.value, UsageError)
        assert client.call("note", text="it goes on") == {}


def test_silent_connections_make_room_and_those_that_wait_for_an_answer_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process keeps its connections. They must not keep others out."""
    monkeypatch.setattr(control_server, "CONNECTIONS_MAX", 4)
    answer = threading.Event()
    came = threading.Event()

    def status(_request: Any) -> Any:
        came.set()
        return lambda: {"done": True} if answer.is_set() else None

    table: Table = {OPERATIONS["status"]: status, OPERATIONS["note"]: lambda _request: {}}
    with contextlib.ExitStack() as open_ones, served(tmp_path / "data", table):
        waiting = open_ones.enter_context(ControlClient(tmp_path / "data"))
        found: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: found.append(waiting.call("status", timeout=600)))
        thread.start()
        assert came.wait(60)
        first = open_ones.enter_context(ControlClient(tmp_path / "data"))
        first.call("note", text="it has a connection")
        for _ in range(10):
            silent = open_ones.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            silent.connect(str(tmp_path / "data" / "control.sock"))
            with ControlClient(tmp_path / "data") as fresh:
                fresh.call("note", text="one more", timeout=60)
        first.call("note", text="it has another one", timeout=60)
        answer.set()
        thread.join(60)
        assert found == [{"done": True}]
