"""Goal: a program can follow in its own log what happens between it and its node, and is told nothing it did not ask
for; what it does often logs nothing.

Method: real nodes that are killed, stopped, blocked; the records of the logger `warren`, as a program reads them.
"""

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren.workers.process import interpreter
from warren.workers.process.control import ControlClient

from support.real_node import SMALL, RealNode
from support.small_disk import LIMIT, Disk, alarm_on, filled
from support.waiting import kill, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "node", workers=1) as real:
        yield real


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[logging.LogRecord]:
    """The records with these words; each belongs to a logger below `warren`."""
    assert all(record.name.startswith("warren") for record in caplog.records)
    return [record for record in caplog.records if re.search(words, record.getMessage())]


def test_a_program_that_only_puts_is_told_that_a_server_is_down_and_serves_again(
    running: RealNode, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "warren"), warren.attach(running.directory) as node:
        queue = node.queue("q")
        queue.put(b"first")
        pids = running.pids()
        os.kill(pids["supervisor"], signal.SIGSTOP)  # nobody starts another worker
        try:
            kill(pids["worker-0"])
            confirm = queue.put(b"second", wait=False)
            with pytest.raises(warren.PeerLost):
                confirm.wait(1.5)
            (record,) = said(caplog, "server worker-0 .* is down")
            assert record.levelno == logging.WARNING
            assert said(caplog, "serves again") == []
        finally:
            os.kill(pids["supervisor"], signal.SIGCONT)
        confirm.wait(60)
        wait_until(lambda: said(caplog, "serves again"), 60)
        (record,) = said(caplog, rf"worker-0 .* serves again \(process {running.pids()['worker-0']}\)")
        assert (record.name, record.levelno) == ("warren.client", logging.INFO)
        queue.put(b"third")
    assert len(said(caplog, "is down|serves again")) == 2


def test_a_restarted_server_is_told_of(running: RealNode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "warren"), warren.attach(running.directory) as node:
        queue = node.queue("q")
        queue.put(b"first")
        queue.get(timeout=60).ack()
        queue.put(b"a secret body", headers={"key": "a secret header"})
        store = node.store()
        store.write(store.new_id(), b"a secret record")
        assert said(caplog, "restarted") == []
        worker = running.kill("worker-0")
        queue.put(b"b")
        assert queue.get(timeout=60).body == b"a secret body"
        (record,) = said(caplog, "worker-0 .* was restarted")
        assert (record.name, record.levelno) == ("warren.client", logging.INFO)
        assert f"process {worker}" in record.getMessage()
        running.kill("store")
        store.write(store.new_id(), b"c")
        store.read(store.new_id())
        assert said(caplog, "store .* was restarted")
    assert "secret" not in caplog.text


def test_another_node_of_the_directory_is_told_of(running: RealNode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "warren"), warren.attach(running.directory) as node:
        node.queue("q").put(b"a")
        running.stop()
        with pytest.raises(warren.ClosedError):
            node.queue("q")
        with pytest.raises(warren.ClosedError):
            node.queue("q")
        assert len(said(caplog, "has ended")) == 1, "it is told once, however often it is asked for"
        running.start()
        assert node.queue("q").get(timeout=60).body == b"a"
        (record,) = said(caplog, "attached again to the node of")
        assert (record.name, record.levelno) == ("warren.client", logging.INFO)


def test_an_alarm_and_what_it_blocks_are_told_once(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(small_disk)
    with (
        RealNode(disk.directory, workers=1, disk_free_bytes_min=LIMIT),
        caplog.at_level(logging.INFO, "warren"),
        warren.attach(disk.directory) as node,
    ):
        queue = node.queue("q")
        queue.put(b"before")
        filled(disk)
        for _ in range(5):
            with pytest.raises(warren.DiskFull):
                queue.put(b"no", timeout=0.1)
        (alarm,) = said(caplog, "alarm of the node of .*: disk: ")
        assert (alarm.name, alarm.levelno) == ("warren.client", logging.WARNING)
        assert "disk_free_bytes_min" in alarm.getMessage()
        (blocked,) = said(caplog, "a publish .* is blocked")
        assert blocked.levelno == logging.WARNING
        assert said(caplog, "is over|unblocked") == []
        disk.empty()
        wait_until(lambda: said(caplog, "publishers .* are unblocked after"), 60, what="the end of the alarm")
        assert len(said(caplog, "alarm disk .* is over")) == 1
        queue.put(b"after", timeout=60)
        filled(disk)
        with pytest.raises(warren.DiskFull):
            queue.put(b"no", timeout=0.1)
        assert len(said(caplog, "is blocked")) == 2, "another alarm is told of"
        disk.empty()


def test_a_memory_alarm_is_told_of_to_a_client_that_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        RealNode(tmp_path / "node", workers=1, memory_used_max=0.001) as real,
        caplog.at_level(logging.INFO, "warren"),
        warren.attach(real.directory) as node,
    ):
        alarm_on(real.directory, "memory")
        queue = node.queue("q")
        with pytest.raises(warren.TimedOut):
            queue.put(b"no", timeout=0.05)
        assert len(said(caplog, "alarm of the node of .*: memory: .*memory_used_max")) == 1
        assert len(said(caplog, "is blocked")) == 1


def test_a_handler_may_publish_what_it_is_told(tmp_path: Path) -> None:
    """A log shipper on warren itself: its records do not lock its own publisher out."""

    class Shipper(logging.Handler):
        def __init__(self, queue: warren.Queue) -> None:
            super().__init__()
            self.queue = queue
            self.refused = 0

        def emit(self, record: logging.LogRecord) -> None:
            try:
                self.queue.put(record.getMessage().encode(), timeout=0.05)
            except warren.TimedOut:
                self.refused += 1

    with (
        RealNode(tmp_path / "node", workers=1, memory_used_max=0.001) as real,
        warren.attach(real.directory) as node,
    ):
        alarm_on(real.directory, "memory")
        queue = node.queue("q")
        shipper = Shipper(queue)
        logging.getLogger("warren").addHandler(shipper)
        try:
            with pytest.raises(warren.TimedOut):
                queue.put(b"no", timeout=0.05)
        finally:
            logging.getLogger("warren").removeHandler(shipper)
        assert shipper.refused >= 2


def test_messages_that_come_again_are_summed_up(running: RealNode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "warren"):
        with warren.attach(running.directory) as node:
            queue = node.queue("q")
            queue.put_many([b"%d" % n for n in range(500)])
            for message in queue.get_many(500, timeout=60):
                message.nack()
            taken = 0
            while taken < 500:
                again = queue.get_many(500, timeout=60)
                taken += len(again)
                for message in again:
                    assert message.redelivered
                    message.ack()
            assert list(queue.browse()) == []
        records = said(caplog, "came again")
    assert {record.levelno for record in records} == {logging.DEBUG}
    assert sum(int(record.getMessage().split()[0]) for record in records) == 500
    assert len(records) <= 100, "a few, not one for each"


def test_open_tells_what_it_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "node"
    with caplog.at_level(logging.INFO, "warren"), warren.open(directory, profile="small", idle_exit=5) as node:
        node.queue("q").put(b"a")
        (record,) = said(caplog, "is up for .*profile small")
        assert record.levelno == logging.INFO
        with warren.open(directory):
            assert len(said(caplog, "is up for")) == 1, "it ran already"
    wait_until(lambda: "ends: no client for 5 s" in (directory / "log/supervisor.log").read_text(), 60)


SILENT = """
import sys, warren
from pathlib import Path
import logging
assert [type(handler) for handler in logging.getLogger("warren").handlers] in ([], [logging.NullHandler])
with warren.attach(sys.argv[1]) as node:
    assert [type(handler) for handler in logging.getLogger("warren").handlers] == [logging.NullHandler]
    queue = node.queue("q")
    print("on", flush=True)
    sys.stdin.readline()
    queue.put(b"a")
    queue.put(b"b", timeout=60)
"""


def test_a_program_that_configures_no_logging_is_told_nothing(running: RealNode) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", SILENT, str(running.directory)],
        env=interpreter.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    running.kill("worker-0")
    out, error = process.communicate("go\n", timeout=300)
    assert (process.returncode, out, error) == (0, "", "")


def test_what_is_done_often_logs_nothing(running: RealNode, caplog: pytest.LogCaptureFixture) -> None:
    with warren.attach(running.directory) as node:
        queue, store = node.queue("q"), node.store()
        queue.put(b"first")
        queue.get(timeout=60).ack()
        with caplog.at_level(logging.DEBUG, "warren"):
            for _ in range(300):
                queue.put(b"x")
                queue.get(timeout=60).ack()
                node.publish(b"y", routing_key="q")
                queue.get(timeout=60).ack()
                kept = store.new_id()
                store.write(kept, b"z")
                store.read(kept)
                store.remove(kept)
            assert len(caplog.records) <= 2, [record.getMessage() for record in caplog.records]


def test_settings_of_the_log_are_settings_of_open(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node", idle_exit=5, log_level="debug", log_format="json", **SMALL):
        with ControlClient(tmp_path / "node") as control:
            settings = control.call("settings")["settings"]
        assert (settings["log_level"], settings["log_format"]) == ("debug", "json")
        with pytest.raises(warren.UsageError, match="log_level"):
            warren.open(tmp_path / "node", log_level="error")
    with pytest.raises(warren.UsageError, match="setting log_level must be one of"):
        warren.open(tmp_path / "other", log_level="loud")
    log = tmp_path / "node/log/supervisor.log"
    wait_until(lambda: "ends: no client" in log.read_text(), 60, what="the end of the node")
