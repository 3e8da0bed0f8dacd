"""Warren as a broker of Dramatiq: delays, retries, dead letters, priorities, results, and a worker that is killed.

Method: Dramatiq's own worker in this process, by threads; for the kill its command line, by processes.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import ConnectionClosed
from dramatiq.results import Results, ResultTimeout

import warren
from warren.dramatiq import WarrenBackend, WarrenBroker
from warren.engine.errors import UsageError

from support.programs import session_of
from support.real_node import RealNode
from support.waiting import patience, wait_until

WAIT_S = 60.0


@pytest.fixture
def broker(directory: Path) -> Iterator[WarrenBroker]:
    url = f"warren:///{directory}"
    made = WarrenBroker(url, max_priority=9)
    made.add_middleware(Results(backend=WarrenBackend(url)))
    old = dramatiq.broker.global_broker
    dramatiq.set_broker(made)
    yield made
    made.close()
    dramatiq.broker.global_broker = old


@pytest.fixture
def worker(broker: WarrenBroker) -> Iterator[dramatiq.Worker]:
    running = dramatiq.Worker(broker, worker_threads=2, worker_timeout=50)
    yield running
    running.stop()


def test_messages_run_and_results_are_waited_for(broker: WarrenBroker, worker: dramatiq.Worker, name: str) -> None:
    @dramatiq.actor(queue_name=name, store_results=True)
    def add(x: int, y: int) -> int:
        return x + y

    message = add.send(1, 2)
    with pytest.raises(ResultTimeout):
        message.get_result(block=True, timeout=50)
    worker.start()
    assert message.get_result(block=True, timeout=int(WAIT_S * 1000)) == 3
    assert message.get_result() == 3  # as often as it likes
    broker.join(name, timeout=int(WAIT_S * 1000))

    @dramatiq.actor(queue_name=name, store_results=True)
    def big(size: int) -> str:
        return "x" * size

    large = big.send(5 << 20)  # more than one record takes
    assert len(str(large.get_result(block=True, timeout=int(WAIT_S * 1000)))) == 5 << 20
    assert len(str(large.get_result())) == 5 << 20
    group = dramatiq.group([add.message(n, n) for n in range(10)]).run()
    assert list(group.get_results(block=True, timeout=int(WAIT_S * 1000))) == [2 * n for n in range(10)]


def test_a_delayed_message_waits_in_the_node(
    broker: WarrenBroker, worker: dramatiq.Worker, name: str, node: warren.Node
) -> None:
    ran: list[float] = []

    @dramatiq.actor(queue_name=name)
    def note() -> None:
        ran.append(time.time())

    note.send_with_options(delay=3_600_000)
    assert node.queue(name, create=False).stats()["delayed"] == 1
    worker.start()
    due = time.time() + 0.5
    note.send_with_options(delay=500)
    wait_until(lambda: ran, WAIT_S)
    assert ran[0] >= due - 0.005
    assert node.queue(name, create=False).stats()["delayed"] == 1


def test_what_fails_is_retried_and_then_a_dead_letter(
    broker: WarrenBroker, worker: dramatiq.Worker, name: str, node: warren.Node
) -> None:
    tries: list[int] = []

    @dramatiq.actor(queue_name=name, max_retries=2, min_backoff=10, max_backoff=20)
    def fail() -> None:
        tries.append(1)
        raise RuntimeError("on purpose")

    worker.start()
    fail.send()
    wait_until(lambda: node.queue(f"{name}.XQ").depth() == 1, WAIT_S, what="the dead letter")
    assert len(tries) == 3
    (letter,) = node.queue(f"{name}.XQ").browse()
    assert letter.headers["actor"] == "fail"
    broker.flush(name)


def test_priorities_are_those_of_the_queue(broker: WarrenBroker, name: str) -> None:
    ran: list[str] = []
    done = threading.Event()

    @dramatiq.actor(queue_name=name)
    def note(what: str) -> None:
        ran.append(what)
        if len(ran) == 3:
            done.set()

    for what, priority in (("low", 0), ("high", 9), ("middle", 5)):
        note.send_with_options(args=(what,), broker_priority=priority)
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
    worker.start()
    try:
        assert done.wait(WAIT_S * patience())
        assert ran == ["high", "middle", "low"]
    finally:
        worker.stop()


def test_a_node_that_was_stopped_is_waited_for(tmp_path: Path) -> None:
    with RealNode(tmp_path / "data") as running:
        made = WarrenBroker(f"warren:///{running.directory}")
        ran: list[int] = []

        @dramatiq.actor(queue_name="q", broker=made)
        def note(number: int) -> None:
            ran.append(number)

        worker = dramatiq.Worker(made, worker_threads=1, worker_timeout=50)
        worker.start()
        try:
            note.send(1)
            wait_until(lambda: ran == [1], WAIT_S)
            running.stop()
            with pytest.raises(ConnectionClosed):
                note.send(2)
            running.start()
            note.send(3)
            wait_until(lambda: ran == [1, 3], WAIT_S)
        finally:
            worker.stop()
            made.close()


def test_a_result_is_stored_and_waited_for_over_a_stop_of_the_node(tmp_path: Path) -> None:
    with RealNode(tmp_path / "data") as running:
        made = WarrenBroker(f"warren:///{running.directory}")
        backend = WarrenBackend(f"warren:///{running.directory}")
        message: dramatiq.Message[Any] = dramatiq.Message("q", "an actor", (), {}, {})
        try:
            with ThreadPoolExecutor(2) as pool:
                waits = pool.submit(backend.get_result, message, block=True, timeout=int(WAIT_S * 1000))
                time.sleep(0.1)  # it may wait by then, or not yet: both must do
                running.stop()
                stores = pool.submit(backend.store_result, message, 7, 60_000)
                assert not wait([stores, waits], timeout=0.5).done
                running.start()
                stores.result(WAIT_S)
                assert waits.result(WAIT_S) == 7
        finally:
            made.close()


def test_a_broker_that_is_closed_leaves_others_of_its_process_alone(broker: WarrenBroker, name: str) -> None:
    @dramatiq.actor(queue_name=name)
    def note() -> None: ...

    (backend,) = [entry.backend for entry in broker.middleware if isinstance(entry, Results)]
    note.send()
    assert backend.kept.newest("none") is None
    WarrenBroker(f"warren:///{broker.place.directory}").close()  # the client of both
    note.send()
    assert backend.kept.newest("none") is None
    assert broker.queue(name).depth() == 2
    broker.flush(name)


def test_names_in_keys_of_results_may_have_spaces(broker: WarrenBroker) -> None:
    backend = WarrenBackend(
        f"warren:///{broker.place.directory}", namespace="my results", use_namespace_prefix_keys=True
    )
    message: dramatiq.Message[Any] = dramatiq.Message("q", "an actor", (), {}, {})
    backend.store_result(message, 7, 60_000)
    assert backend.get_result(message) == 7
    assert backend.get_result(message, block=True, timeout=1000) == 7


def test_what_is_wrong_is_said(broker: WarrenBroker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_priority must be 1 to 255"):
        WarrenBroker("warren:///data", max_priority=256)
    away = WarrenBroker(f"warren:///{tmp_path / 'none'}")
    away.declare_queue("q")
    with pytest.raises(ConnectionClosed, match="warren up"):
        away.consume("q")


PROGRAM = """
import os, time
import dramatiq
from warren.dramatiq import WarrenBroker

dramatiq.set_broker(WarrenBroker(os.environ["WARREN_BROKER"], max_priority=9))

@dramatiq.actor(queue_name=os.environ["WARREN_QUEUE"], max_retries=0)
def hold():
    with open(os.environ["WARREN_MARKS"], "a") as marks:
        marks.write("begun\\n")
    while not os.path.exists(os.environ["WARREN_MARKS"] + ".go"):
        time.sleep(0.01)
    with open(os.environ["WARREN_MARKS"], "a") as marks:
        marks.write("done\\n")
"""


@pytest.mark.crash
def test_a_killed_worker_leaves_its_message_to_another(broker: WarrenBroker, name: str, tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(PROGRAM)
    marks = tmp_path / "marks"
    environment: dict[str, Any] = os.environ | {
        "WARREN_BROKER": f"warren:///{broker.place.directory}",
        "WARREN_QUEUE": name,
        "WARREN_MARKS": str(marks),
        "PYTHONPATH": str(tmp_path),
    }
    command = [sys.executable, "-m", "dramatiq", "held", "--processes", "1", "--threads", "1"]

    def started() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @dramatiq.actor(queue_name=name, max_retries=0)
    def hold() -> None:
        raise AssertionError("it runs elsewhere")

    hold.send()
    first = started()
    wait_until(lambda: marks.exists() and marks.read_text(), WAIT_S, what="the message at work")
    for process in session_of(first.pid):
        process.kill()
    first.wait()
    wait_until(lambda: not session_of(first.pid), WAIT_S)
    (tmp_path / "marks.go").touch()
    second = started()
    try:
        wait_until(lambda: "done" in marks.read_text(), WAIT_S, what="the end of the message")
        broker.join(name, timeout=int(WAIT_S * 1000))
        assert marks.read_text().split() == ["begun", "begun", "done"]
    finally:
        second.send_signal(signal.SIGTERM)
        second.wait(WAIT_S * patience())
        wait_until(lambda: not session_of(second.pid), WAIT_S)
