"""Goal: one supervisor per directory keeps its servers alive, sweeps what clients leave, survives its own death, and
ends without a trace.

Method: a supervisor process whose servers are dummies (support/dummy_servers.py), so that only the supervisor is
tested; clients are slots claimed by this process or by a child. Things are killed, and then waited for. The census
of conftest.py fails every test that leaves a region, segment, semaphore, mailbox, process or descriptor.
"""

import contextlib
import errno
import json
import os
import random
import re
import resource
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import posix_ipc
import pytest

import warren
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import (
    DeclarationMismatch,
    Error,
    FormatVersionError,
    InvalidName,
    NodeNotRunning,
    QueueNotFound,
    TimedOut,
    UsageError,
)
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc import names, region
from warren.ipc.identity import Identity
from warren.ipc.layout import CLIENT, CLIENT_MAGIC, CONSTANTS, SUPERBLOCK
from warren.ipc.mailbox import post
from warren.ipc.region import RegionError
from warren.ipc.superblock import ACTIVE, FREE, Superblock
from warren.workers.node.supervise import DESCRIPTORS_MIN
from warren.workers.process import interpreter
from warren.workers.process.control import ControlClient
from warren.workers.process.exit_codes import EXIT_KILLED
from warren.workers.process.launch import Succession, start_successor
from warren.workers.process.shared_objects import region_users, segments
from warren.workers.process.tie import end

from support.dummy_node import Node, Starter, behave, gone, kill, register, start
from support.heard import Heard
from support.raw_control import connected
from support.real_node import RealNode
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
__all__ = ["start"]  # a fixture

PROCESSES = ["supervisor", "store", "queue_worker", "queue_worker", "collector"]


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child, which then stays until it is killed; returns its pid when the work is done."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(write_end, b"done")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write_end)
    try:
        assert os.read(read_end, 4) == b"done", "the child failed"
    finally:
        os.close(read_end)
    return pid


def end_child(pid: int) -> None:
    kill(pid)
    os.waitpid(pid, 0)


# ---- life ---------------------------------------------------------------------------------------------------------


def test_up_status_stop(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    status = node.status()
    assert status["dir"] == str(tmp_path / "node")
    assert (status["state"], status["epoch"], status["alarms"], status["topics"]) == ("running", 1, [], [])
    assert [item["role"] for item in status["processes"]] == PROCESSES
    for item in status["processes"]:
        assert item["rss_bytes"] > 1 << 20
        identity = Identity.of(item["pid"])
        assert identity is not None
        assert identity.start_time == item["start_time"]
    assert set(status["store"]) >= {"messages", "files", "valid_bytes", "file_bytes"}
    assert str(status["processes"][0]["pid"]) in node.printed
    node.stop()
    with pytest.raises(NodeNotRunning, match="warren up"):
        node.status()
    assert not (tmp_path / "node" / "control.sock").exists()


def test_private_files(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    with node.superblock() as superblock:
        name = names.superblock(superblock.shared_id)
    assert os.stat(region.SHM_DIRECTORY + name).st_mode & 0o777 == 0o600
    for path in [tmp_path / "node", *(tmp_path / "node").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_stop_in_good_order(start: Starter, number: signal.Signals) -> None:
    node = start().ready()
    node.process.send_signal(number)
    assert node.end()[0] == 0


def test_a_signal_that_comes_when_a_worker_has_saved_all_is_no_kill(tmp_path: Path) -> None:
    """It sees by itself that the node ends, and may be done before it is told so."""
    with RealNode(tmp_path / "node") as node:
        with warren.attach(node.directory) as client:
            client.queue("q").put_many([b"x"] * 100)
        pids = node.pids()
        workers = [pid for role, pid in pids.items() if role.startswith("worker")]
        superblock = Superblock.attach(NodeDirectory(node.directory).shared_id, LAYOUT_HASH)
        assert node.process is not None
        node.process.send_signal(signal.SIGTERM)
        while superblock.state < CONSTANTS["NODE_DRAINING"]:
            pass  # at once: what comes next is a matter of milliseconds
        superblock.close()
        while workers:
            for pid in list(workers):
                try:
                    os.kill(pid, signal.SIGTERM)
                except ProcessLookupError:
                    workers.remove(pid)
        node.process.wait(60)
        said = (node.directory / "log" / "supervisor.log").read_text()
        assert "SIGTERM while" not in said, said
        for role in (role for role in pids if role.startswith("worker")):
            assert "everything is saved" in (node.directory / "log" / f"{role}.log").read_text()


def test_interrupt_of_the_whole_group_is_a_drain(start: Starter) -> None:
    node = start(group=True).ready()
    os.killpg(node.process.pid, signal.SIGINT)
    code, _out, error = node.end()
    assert code == 0
    assert "killed" not in error


def test_second_start_keeps_identity_and_settings(start: Starter) -> None:
    node = start().ready()
    first, settings = node.status(), node.call("settings")["settings"]
    node.stop()
    again = start().ready()
    second = again.status()
    assert second["node_id"] == first["node_id"]
    assert second["epoch"] == first["epoch"] + 1
    assert again.call("settings")["settings"] == settings


def test_systemd_is_told(start: Starter, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(10)
        node = start(environment={"NOTIFY_SOCKET": str(tmp_path / "notify")}).ready()
        assert listener.recv(100) == b"READY=1"
        node.stop()
        assert listener.recv(100) == b"STOPPING=1"


def locked_by(pid: int) -> list[str]:
    """The files and folders that a process holds a kernel lock on."""
    held = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since
            if "FLOCK" in Path(f"/proc/{pid}/fdinfo/{name}").read_text():
                held.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return sorted(held)


def test_children_hold_nothing_of_the_supervisor(start: Starter) -> None:
    node = start().ready()
    node.call("ping")
    pids = node.pids()
    supervisor = pids.pop("supervisor-0")
    assert locked_by(supervisor) == [str(node.directory)]
    for role, pid in pids.items():
        targets = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        assert not [item for item in targets if "eventpoll" in item or "socket" in item], role
        assert locked_by(pid) == [], role
        assert not [item for item in targets if "mail-supervisor" in item], role
        assert sum("pidfd" in item for item in targets) == 1, (role, targets)


# ---- exactly one --------------------------------------------------------------------------------------------------


def test_ten_starts_one_wins(start: Starter) -> None:
    nodes = [start() for _ in range(10)]
    codes = {}
    wait_until(lambda: sum(node.process.poll() is not None for node in nodes) == 9, 60, what="nine losers")
    winner = next(node for node in nodes if node.process.poll() is None).ready()
    for node in nodes:
        if node is not winner:
            code, out, _error = node.end()
            codes[code] = codes.get(code, 0) + 1
            assert "DirectoryInUse" in out
            assert str(winner.process.pid) in out
    assert codes == {2: 9}
    assert winner.status()["epoch"] == 1
    winner.stop()


def test_ten_adopting_starts_are_all_content(start: Starter) -> None:
    nodes = [start("adopt=1") for _ in range(10)]
    wait_until(lambda: sum(node.process.poll() is not None for node in nodes) == 9, 60, what="nine losers")
    winner = next(node for node in nodes if node.process.poll() is None).ready()
    assert [node.end()[0] for node in nodes if node is not winner] == [0] * 9
    assert winner.status()["epoch"] == 1
    winner.stop()


def test_in_use_is_said_with_the_pid(start: Starter) -> None:
    node = start().ready()
    code, out, _error = start().end()
    assert code == 2
    assert "DirectoryInUse" in out
    assert f"process {node.process.pid}" in out


# ---- deaths of servers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["store-0", "queue_worker-0", "queue_worker-1", "collector-0"])
def test_a_killed_server_is_replaced(start: Starter, role: str) -> None:
    node = start().ready()
    before = node.pids()
    kill(before[role])

    def replaced() -> dict[str, Any] | None:
        item = {f"{item['role']}-{item['index']}": item for item in node.status()["processes"]}[role]
        return item if item["pid"] not in (None, before[role]) and item["state"] == "ready" else None

    found = wait_until(replaced, what="the restart")
    assert found["restarts"] == 1
    after = node.pids()
    assert {name for name in after if after[name] != before[name]} == {role}
    node.stop()


def test_the_node_goes_on_without_a_worker_that_dies_again_and_again(start: Starter, tmp_path: Path) -> None:
    """The alarm names it, new queues go to the others, the drain does not wait for it, and the next start tries again;
    without the last worker the node ends."""
    node = start("deaths_max=4").ready()
    pids = node.pids()
    behave(tmp_path / "node", "worker-1", "exit", "7")
    kill(pids["queue_worker-1"])
    wait_until(lambda: node.status()["processes"][3]["state"] == "failed", 20, what="the worker to be given up")
    status = node.status()
    assert status["state"] == "running"
    assert status["processes"][3]["pid"] is None, "a signal to 0 would hit the group of who sends it"
    assert all(item["pid"] for number, item in enumerate(status["processes"]) if number != 3)
    assert [alarm["alarm"] for alarm in status["alarm_details"]] == ["server_failed"]
    assert "worker-1" in status["alarms"][0]
    assert any("worker-1 died 4 times" in line and "told to end with 7" in line for line in status["messages"])
    placed = [node.call("declare_queue", name=f"queue-{i}")["queue"]["worker"] for i in range(8)]
    assert placed == [0] * 8
    node.stop()
    node = start("deaths_max=4").ready()
    assert "worker-1 has failed" in node.printed
    assert node.status()["processes"][3]["state"] == "failed"
    behave(tmp_path / "node", "worker-0", "exit", "7")
    kill(node.pids()["queue_worker-0"])
    code, _out, error = node.end()
    assert code == 1
    assert "worker-0 died 4 times" in error
    (tmp_path / "node" / "behave" / "worker-0.exit").unlink()
    (tmp_path / "node" / "behave" / "worker-1.exit").unlink()
    node = start().ready()  # which does not wait for the collector
    wait_until(lambda: {item["state"] for item in node.status()["processes"]} == {"ready"}, 20, what="all of it")
    assert not node.status()["alarms"]
    node.stop()


def test_the_successor_of_a_supervisor_tries_a_failed_worker_again(start: Starter, tmp_path: Path) -> None:
    start().ready().stop()
    behave(tmp_path / "node", "worker-1", "exit", "3")
    node = start().ready()
    assert [alarm["alarm"] for alarm in node.status()["alarm_details"]] == ["server_failed"]
    (tmp_path / "node" / "behave" / "worker-1.exit").unlink()
    kill(node.process.pid)
    node.end()
    after = start("adopt=1").ready()
    wait_until(lambda: not after.status()["alarms"], 20, what="the alarm to clear")
    assert after.status()["processes"][3]["state"] == "ready"
    after.stop()


def test_the_node_runs_without_its_collector(start: Starter, tmp_path: Path) -> None:
    """It dies more often than a server may: the node goes on, and it is tried again."""
    start().ready().stop()
    behave(tmp_path / "node", "collector", "exit", "7")
    node = start("deaths_max=3").ready()
    wait_until(lambda: node.status()["processes"][-1]["restarts"] >= 5, 20, what="many deaths")
    assert node.status()["state"] == "running"
    behave(tmp_path / "node", "collector", "exit", "3")
    wait_until(lambda: node.status()["processes"][-1]["state"] == "failed", 20, what="a collector that cannot run")
    assert node.status()["state"] == "running"
    node.stop()


def test_a_server_that_cannot_run_ends_the_node_at_once(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    start().ready().stop()
    behave(tmp_path / "node", "store", "exit", "3")
    code, _out, error = start().end()
    assert code == 3
    assert "store cannot run" in error
    assert "store was told to end with 3" in error


@pytest.mark.parametrize("when", ["at the start", "later"])
def test_a_worker_that_finds_a_catalog_that_was_cut_ends_the_node(start: Starter, tmp_path: Path, when: str) -> None:
    """Although the other worker could serve: the node would give ids again."""
    node = start().ready()
    if when == "at the start":
        node.stop()
        before = (tmp_path / "node" / "catalog.json").read_bytes()
    else:
        node.call("declare_queue", name="queue")
    behave(tmp_path / "node", "worker-1", "exit", "5")
    if when == "at the start":
        node = start()
    else:
        kill(node.pids()["queue_worker-1"])
    code, _out, error = node.end()
    assert code == 3
    assert f"the catalog of {tmp_path / 'node'} was cut, or is an older copy" in error
    if when == "at the start":
        assert (tmp_path / "node" / "catalog.json").read_bytes() == before
    else:
        assert "queue" in Catalog.load(tmp_path / "node").queues


def test_nothing_is_declared_before_every_worker_has_read_what_it_has(start: Starter, tmp_path: Path) -> None:
    start().ready().stop()
    behave(tmp_path / "node", "worker-1", "exit", "7")
    node = start("deaths_max=1000000")

    def state() -> str | None:
        try:
            return str(node.call("ping")["state"])
        except Error:
            return None

    assert wait_until(state, 20, what="an answer") == "starting"
    with pytest.raises(NodeNotRunning, match="is starting"):
        node.call("declare_queue", name="queue", timeout=1.0)
    (tmp_path / "node" / "behave" / "worker-1.exit").unlink()
    node.ready()
    node.call("declare_queue", name="queue")
    node.stop()


def test_a_deaf_server_is_killed_after_the_timeout(start: Starter, tmp_path: Path) -> None:
    start().ready().stop()
    behave(tmp_path / "node", "worker-0", "deaf")
    node = start("stop_timeout=0.3").ready()
    node.call("stop")
    code, _out, error = node.end()
    assert code == EXIT_KILLED
    assert "worker-0 is killed" in error


def stopped(node: Node, *words: str) -> "subprocess.CompletedProcess[str]":
    """`warren stop` of a node."""
    command = interpreter.command("warren", "stop", str(node.directory), *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(
    ("how", "said"),
    [("hung", "it hangs"), ("slow", "its disk is slow"), ("frozen", "would have resumed it")],
)
def test_stop_says_whom_it_had_to_kill_and_why(start: Starter, tmp_path: Path, how: str, said: str) -> None:
    """Goal: a node whose servers did not end by themselves does not count as stopped in good order: `stop` names each
    of them, what it was doing, and ends with a code of its own; so does the node. Method: a worker that does not hear
    SIGTERM, and syncs on, or does not, or is frozen.
    """
    start().ready().stop()
    behave(tmp_path / "node", "worker-0", "deaf")
    if how == "slow":
        behave(tmp_path / "node", "worker-0", "slow")
    node = start("stop_timeout=0.5").ready()
    worker = node.pids()["queue_worker-0"]
    if how == "frozen":
        os.kill(worker, signal.SIGSTOP)
    done = stopped(node)
    assert done.returncode == EXIT_KILLED, done.stderr
    assert "has stopped" in done.stdout
    line, store = sorted((line for line in done.stderr.splitlines() if "was killed" in line), reverse=True)
    assert "it waited for the workers" in store
    assert f"worker-0 (process {worker}) did not end, and was killed: it took longer than 0.5 s; " in line
    assert said in line
    code, _out, error = node.end()
    assert code == EXIT_KILLED
    assert said in error
    assert gone(worker)


def test_stop_tells_programs_too_whom_it_killed(start: Starter, tmp_path: Path) -> None:
    """JSON has all of it; a kill that was asked for is not a failure of the command."""
    start().ready().stop()
    behave(tmp_path / "node", "worker-0", "deaf")
    for words, code in (([], EXIT_KILLED), (["--force"], 0)):
        node = start("stop_timeout=0.5" if not words else "stop_timeout=100").ready()
        done = stopped(node, "--json", *words)
        assert done.returncode == code, done.stderr
        found = json.loads(done.stdout)
        why = {item["server"]: item["why"] for item in found["killed"]}
        assert (why["worker-0"] == "that was asked for") == bool(words)
        assert found["stopped"] is True
        assert node.end()[0] == EXIT_KILLED


def test_stop_tells_of_a_server_that_did_not_save_all(start: Starter, tmp_path: Path) -> None:
    start().ready().stop()
    behave(tmp_path / "node", "store", "unclean")
    node = start().ready()
    store = node.pids()["store-0"]
    done = stopped(node)
    assert (done.returncode, done.stdout.count("has stopped")) == (0, 1), done.stderr
    assert f"store (process {store}) ended with exit code 1 while the node was stopping; see" in done.stderr
    assert node.end()[0] == 0


def test_a_stop_with_a_timeout_lets_servers_finish(start: Starter, tmp_path: Path) -> None:
    """Goal: `stop --timeout` is time for the servers, too, where the node was started with less. Method: a node that
    would kill at once, and a worker that does not end: the node says who is waited for, and that it is still there.
    """
    start().ready().stop()
    behave(tmp_path / "node", "worker-0", "deaf")
    node = start("stop_timeout=0.01").ready()
    worker = node.pids()["queue_worker-0"]
    command = interpreter.command("warren", "stop", str(node.directory), "--timeout", "1000")
    stopping = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def said() -> bool:
        return any("waits for" in line and "worker-0" in line for line in node.status()["messages"])

    wait_until(said, 60, what="a line that names the server")
    assert not gone(worker)
    assert stopping.stderr is not None
    told = stopping.stderr.readline()
    assert re.search(r"finishing what was submitted; this command waits for at most \d+ s for that; --force", told)
    os.kill(worker, signal.SIGKILL)
    out, error = stopping.communicate(timeout=100)
    assert stopping.returncode == 0, error
    assert "has stopped" in out
    assert node.end()[0] == 0


def test_a_drain_that_a_server_began_has_an_end_too(start: Starter, tmp_path: Path) -> None:
    """One that found no supervisor, when this one was just about to take over."""
    start().ready().stop()
    behave(tmp_path / "node", "worker-0", "deaf")
    node = start("stop_timeout=0.3").ready()
    with node.superblock() as superblock:
        end(superblock, CONSTANTS["ENDING_TAKEN_OVER"])
    code, _out, error = node.end()
    assert code == 1
    assert "another node was started for" in error
    assert "worker-0 is killed" in error


def test_a_second_signal_forces(start: Starter, tmp_path: Path) -> None:
    start().ready().stop()
    behave(tmp_path / "node", "store", "deaf")
    node = start().ready()
    store = node.pids()["store-0"]
    node.process.send_signal(signal.SIGINT)
    wait_until(lambda: node.status()["state"] == "draining", what="the drain")
    assert not gone(store)
    node.process.send_signal(signal.SIGINT)
    code, _out, error = node.end()
    assert code == EXIT_KILLED
    assert "second signal" in error
    assert gone(store)


# ---- deaths of the supervisor -------------------------------------------------------------------------------------


def test_a_killed_supervisor_is_followed_and_servers_go_on(start: Starter) -> None:
    node = start().ready()
    node.call("declare_queue", name="kept")
    node.call("declare_queue", name="transient", durable=False)
    before = node.pids()
    kill(node.process.pid)
    node.end()
    again = start().ready()
    after = again.pids()
    assert after.pop("supervisor-0") == again.process.pid
    assert after == {role: pid for role, pid in before.items() if role != "supervisor-0"}
    assert again.status()["epoch"] == 1
    assert {item["name"] for item in again.status()["queues"]} == {"kept", "transient"}
    kill(after["store-0"])
    wait_until(lambda: again.pids()["store-0"] not in (0, after["store-0"]), what="the restart of an adopted server")
    again.stop()
    assert all(map(gone, after.values()))


def test_what_died_with_the_supervisor_is_started(start: Starter) -> None:
    node = start().ready()
    before = node.pids()
    for role in ("supervisor-0", "queue_worker-1"):
        kill(before[role])
    node.end()
    again = start().ready()
    after = again.pids()
    assert after["store-0"] == before["store-0"]
    assert after["queue_worker-0"] == before["queue_worker-0"]
    assert after["queue_worker-1"] not in (0, before["queue_worker-1"])
    again.stop()


def test_all_killed_without_clients_is_a_cold_start(start: Starter) -> None:
    node = start().ready()
    node.call("declare_queue", name="kept")
    node.call("declare_queue", name="transient", durable=False)
    pids = node.pids().values()
    for pid in pids:
        kill(pid)
    node.end()
    wait_until(lambda: all(map(gone, pids)), what="the end of all")  # one that still is there would be taken over
    again = start().ready()
    assert again.status()["epoch"] == 2
    assert [item["name"] for item in again.status()["queues"]] == ["kept"]
    again.stop()


def test_all_killed_while_a_client_lives_keeps_its_memory(start: Starter) -> None:
    node = start().ready()
    with node.superblock() as superblock:
        view, memory = register(superblock)
        pids = node.pids()
        for pid in pids.values():
            kill(pid)
        node.end()
        again = start().ready()
        status = again.status()
        assert status["epoch"] == 1
        assert [item["slot"] for item in status["clients"]] == [view.slot]
        assert not set(pids.values()) & set(again.pids().values())
        assert superblock.state == CONSTANTS["NODE_RUNNING"]
        again.stop()
        memory.close()


def test_a_drain_that_was_cut_off_is_finished_before_a_new_start(start: Starter, tmp_path: Path) -> None:
    start().ready().stop()
    behave(tmp_path / "node", "worker-0", "deaf")
    node = start().ready()
    pids = node.pids()
    node.call("stop")
    wait_until(lambda: gone(pids["queue_worker-1"]), what="the end of one worker")
    kill(node.process.pid)
    node.end()
    (tmp_path / "node" / "behave" / "worker-0.deaf").unlink()
    again = start("stop_timeout=0.3").ready()
    assert all(map(gone, pids.values()))
    assert again.status()["epoch"] == 3
    again.stop()


def test_a_successor_never_begins_a_node_anew(start: Starter) -> None:
    start().ready().stop()
    code, out, _error = start("successor=1", "adopt=1").end()
    assert code == 1
    assert "nothing is left" in out


def test_a_stop_that_nobody_answers_says_at_once_what_it_waits_for(start: Starter) -> None:
    """And what to do about it, and again when its time is over."""
    node = start().ready()
    pid = node.process.pid
    os.kill(pid, signal.SIGSTOP)
    said = f"(process {pid}) is stopped: resume it with `kill -CONT {pid}`"
    command = interpreter.command("warren", "stop", str(node.directory))
    done = subprocess.run([*command, "--timeout", "2"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    first, *_more, last = done.stderr.splitlines()
    assert first.startswith("warren: waiting: its supervisor")
    assert said in first
    assert "within 2 s: " in last
    assert said in last
    stopping = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert stopping.stderr is not None
    assert said in stopping.stderr.readline()  # it waits on, and says so already
    os.kill(pid, signal.SIGCONT)
    out, error = stopping.communicate(timeout=60)
    assert stopping.returncode == 0, error
    assert "has stopped" in out
    assert node.end()[0] == 0


def test_a_long_drain_says_what_it_waits_for(start: Starter, tmp_path: Path) -> None:
    start().ready().stop()
    behave(tmp_path / "node", "worker-0", "deaf")
    node = start().ready()
    command = interpreter.command("warren", "stop", str(node.directory), "--timeout", "2")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    *waiting, last = done.stderr.splitlines()
    assert any("waiting: the servers are finishing" in line for line in waiting)
    assert "--force" in last
    forced = interpreter.command("warren", "stop", str(node.directory), "--force")
    assert subprocess.run(forced, capture_output=True, text=True, timeout=60).returncode == 0
    assert node.end()[0] == EXIT_KILLED


def test_descriptors_are_raised_as_far_as_allowed_or_asked_for(tmp_path: Path) -> None:
    def up(soft: int, hard: int) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            interpreter.command("warren", "up", str(tmp_path / "node"), "--detach", "--set", "workers=1"),
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        )

    done = up(64, DESCRIPTORS_MIN - 1)
    assert done.returncode == 1
    assert f"needs up to {DESCRIPTORS_MIN} descriptors" in done.stderr
    assert f"may have {DESCRIPTORS_MIN - 1}" in done.stderr
    done = up(64, DESCRIPTORS_MIN + 10)
    assert done.returncode == 0, done.stderr
    with ControlClient(tmp_path / "node") as control:
        for item in control.call("status")["processes"]:
            assert resource.prlimit(item["pid"], resource.RLIMIT_NOFILE) == (DESCRIPTORS_MIN + 10,) * 2
        pid = control.call("stop")["pid"]
    wait_until(lambda: gone(pid), 30, what="the end of the node")


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"])
def test_a_node_needs_no_standard_streams(tmp_path: Path, streams: str, detach: bool) -> None:
    directory = tmp_path / "node"
    words = ["warren", "up", str(directory), "--set", "workers=1", *(["--detach"] if detach else [])]
    command = f"exec {shlex.join(interpreter.command(*words))} {streams}"
    process = subprocess.Popen(["bash", "-c", command], stderr=subprocess.PIPE, text=True)
    with ControlClient(directory) as control:

        def answers() -> int | None:
            with contextlib.suppress(Error):
                found = control.call("ping")
                return found["pid"] if found["state"] == "running" else None
            assert process.poll() in (None, 0), process.communicate()[1]
            return None

        pid = wait_until(answers, 60, what="a node that runs")
        store = next(item["pid"] for item in control.call("status")["processes"] if item["role"] == "store")
        kill(store)
        wait_until(
            lambda: control.call("status")["processes"][1]["pid"] not in (None, store), 20, what="another store server"
        )
        control.call("stop")
    process.communicate(timeout=60)
    assert process.returncode == 0
    wait_until(lambda: pid is not None and gone(pid), 30, what="the end of the node")


def up_successor(directory: Path) -> "subprocess.CompletedProcess[str]":
    command = interpreter.command("warren", "up", str(directory), "--detach", "--adopt", "--successor")
    return subprocess.run(command, env=interpreter.environment(), capture_output=True, text=True, timeout=60)


def test_a_successor_that_lost_ends_at_once(start: Starter, tmp_path: Path) -> None:
    """Somebody has the directory's lock, and does not serve (yet): that is his task, and nobody waits for it."""
    start().ready().stop()
    directory = NodeDirectory(tmp_path / "node")
    directory.lock()
    try:
        done = up_successor(directory.path)
    finally:
        directory.unlock()
    assert done.returncode == 0, done.stderr
    assert "runs for" in done.stdout
    done = up_successor(directory.path)
    assert (done.returncode, "nothing is left" in done.stderr) == (1, True)


def test_one_successor_is_started_at_a_time(start: Starter, tmp_path: Path) -> None:
    """Who starts it holds a lock that the successor inherits: nobody else starts one until it has come up, or ended."""
    start().ready().stop()
    directory = NodeDirectory(tmp_path / "node")
    first = start_successor(directory)
    assert first is not None
    try:
        first.send_signal(signal.SIGSTOP)  # on a busy machine it may take long until its program begins
        assert start_successor(directory) is None
    finally:
        first.send_signal(signal.SIGCONT)
        first.communicate(timeout=60)
    assert first.returncode == 1  # there is nothing to take over
    second = wait_until(lambda: start_successor(directory), 20, what="the end of the first one's background process")
    assert second is not None
    second.communicate(timeout=60)
    directory.lock()
    try:
        assert start_successor(directory) is None, "there is a supervisor"
    finally:
        directory.unlock()


def test_a_successor_that_does_not_come_up_is_said_and_tried_later(start: Starter, tmp_path: Path) -> None:
    start().ready().stop()
    said = Heard()
    succession = Succession(NodeDirectory(tmp_path / "node"), said)
    succession.start("gone")
    assert said == ["gone: a new supervisor is started"]

    def failed() -> bool:
        succession.poll()
        return len(said) > 1

    wait_until(failed, 60, what="the end of a supervisor that finds nothing to take over")
    assert "no new supervisor came up: nothing is left" in said[1]
    wait_until(lambda: succession.start("still gone") or len(said) > 2, 60, what="another try")
    assert said[2] == "still gone: a new supervisor is started"

    def failed_again() -> bool:
        succession.poll()
        return len(said) > 3

    wait_until(failed_again, 60, what="the end of the second")


def test_remains_of_another_version_are_replaced(start: Starter) -> None:
    node = start().ready()
    node.stop()
    shared_id = NodeDirectory(node.directory).shared_id
    leftover = region.posix_create(names.superblock(shared_id), 1 << 20)
    SUPERBLOCK.pack_into(leftover.buffer, "layout_hash", 12345)
    SUPERBLOCK.pack_into(leftover.buffer, "magic", 0x42534E4552524157)
    code, out, _error = start().end()
    assert code == 2
    assert f"another version of Warren ({os.getpid()})" in out
    leftover.close()
    region.posix_create(names.regions(shared_id, "images", 0) + "7-0", 4096).close()
    start().ready().stop()
    assert region.posix_names(names.node_prefix(shared_id)) == []


def test_what_the_version_before_has_left_is_removed(start: Starter) -> None:
    """Its node.json does not name the superblock; its control messages were in message queues."""
    node = start().ready()
    node.stop()
    directory = NodeDirectory(node.directory)
    found = json.loads((node.directory / "node.json").read_text())
    del found["shared_id"]
    (node.directory / "node.json").write_text(json.dumps(found | {"format_version": 2}))
    older = directory.shared_id
    assert older == names.older_id(found["node_id"], directory.place)
    region.posix_create(names.superblock(older), 1 << 20).close()
    region.posix_create(names.regions(older, "images", 0) + "7", 4096).close()
    posix_ipc.MessageQueue(f"{names.node_prefix(older)}mail-store", posix_ipc.O_CREX).close()
    start().ready().stop()
    assert region.posix_names(names.node_prefix(older)) == []
    with pytest.raises(posix_ipc.ExistentialError):
        posix_ipc.MessageQueue(f"{names.node_prefix(older)}mail-store")
    assert directory.read().shared_id not in (0, older)


# ---- clients ------------------------------------------------------------------------------------------------------


def freed(superblock: Superblock, slot: int) -> Callable[[], bool]:
    return lambda: superblock.slot(slot).state == FREE


def test_a_client_comes_and_leaves(start: Starter) -> None:
    node = start().ready()
    with node.superblock() as superblock:
        view, memory = register(superblock, "käse")
        assert [(item["slot"], item["pid"], item["name"]) for item in node.status()["clients"]] == [
            (view.slot, os.getpid(), "käse")
        ]
        assert superblock.leave(view.slot, view.generation)
        assert post(node.directory, "supervisor", "deregister", slot=view.slot)
        wait_until(freed(superblock, view.slot), what="the sweep")
        memory.close()
        assert memory.id not in {item.id for item in segments()}
        again, memory = register(superblock)
        assert (again.slot, again.generation) == (view.slot, view.generation + 1)
        superblock.leave(again.slot, again.generation)
        memory.close()
        wait_until(freed(superblock, again.slot), what="the sweep without a message")
    node.stop()


def test_a_killed_client_is_swept(start: Starter) -> None:
    node = start().ready()
    with node.superblock() as superblock:
        child = in_child(lambda: register(superblock) and None)
        (view,) = superblock.slots()
        assert (view.pid, view.state) == (child, ACTIVE)
        assert view.shmid in {item.id for item in segments()}
        end_child(child)
        wait_until(freed(superblock, view.slot), what="the sweep")
        wait_until(lambda: view.shmid not in {item.id for item in segments()}, what="the end of its segment")
    node.stop()


def test_a_stopped_client_is_alive(start: Starter) -> None:
    node = start().ready()
    with node.superblock() as superblock:
        child = in_child(lambda: register(superblock) and None)
        os.kill(child, signal.SIGSTOP)
        (view,) = superblock.slots()
        version = superblock.get("slots_version")
        kill(node.pids()["queue_worker-0"])  # makes the supervisor look at everything
        wait_until(lambda: superblock.server_get(2, "restarts") == 1, what="the restart")
        assert superblock.slot(view.slot).claim == view.claim
        assert superblock.get("slots_version") >= version
        end_child(child)
        wait_until(freed(superblock, view.slot), what="the sweep")
    node.stop()


@pytest.mark.parametrize("step", ["claimed", "segment recorded", "segment not recorded"])
def test_a_client_killed_while_it_registers(start: Starter, step: str) -> None:
    node = start().ready()
    with node.superblock() as superblock:

        def half() -> None:
            view = superblock.claim(Identity.current(), "half")
            if step != "claimed":
                memory = region.sysv_create(superblock.region_bytes())
                if step == "segment recorded":
                    superblock.set_segment(view, memory.id)

        child = in_child(half)
        (view,) = superblock.slots()
        made = {item.id for item in segments() if item.creator == child}
        assert len(made) == (step != "claimed")
        end_child(child)
        wait_until(freed(superblock, view.slot), what="the sweep of a half-claimed slot")
        wait_until(lambda: not made & {item.id for item in segments()}, what="the end of its segment")
    node.stop()


def test_a_slot_that_names_a_strangers_segment_removes_nothing(start: Starter) -> None:
    node = start().ready()
    stranger = region.sysv_create(4096)
    with node.superblock() as superblock:

        def hostile() -> None:
            view, memory = register(superblock)
            superblock.set_segment(view, stranger.id)
            region.sysv_remove(memory.id)

        child = in_child(hostile)
        (view,) = superblock.slots()
        end_child(child)
        wait_until(freed(superblock, view.slot), what="the sweep")
        assert stranger.id in {item.id for item in segments()}
    region.sysv_remove(stranger.id)
    stranger.close()
    node.stop()


def test_a_client_of_another_pid_namespace_is_judged_by_its_segment(start: Starter) -> None:
    node = start().ready()
    with node.superblock() as superblock:
        view = superblock.claim(Identity(999_999, 1, 4711), "foreign")  # no such process here, and that means nothing
        memory = region.sysv_create(superblock.region_bytes())
        superblock.set_segment(view, memory.id)
        CLIENT.pack_into(memory.buffer, "client_epoch", view.client_epoch)
        CLIENT.pack_into(memory.buffer, "magic", CLIENT_MAGIC)
        view = superblock.activate(view)
        kill(node.pids()["queue_worker-0"])
        wait_until(lambda: superblock.server_get(2, "restarts") == 1, what="a full look at the slots")
        assert superblock.slot(view.slot).state == ACTIVE
        memory.close()
        wait_until(freed(superblock, view.slot), what="the sweep")
    node.stop()


def test_a_slot_waits_for_a_server_that_is_being_replaced(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    with node.superblock() as superblock:
        stopped = node.pids()["queue_worker-1"]
        os.kill(stopped, signal.SIGSTOP)
        view, memory = register(superblock)
        superblock.leave(view.slot, view.generation)
        memory.close()
        done = view.generation & 0xFF
        wait_until(lambda: all(superblock.server_done(view.slot, n) == done for n in (0, 1, 2)), what="the others")
        assert superblock.slot(view.slot).state != FREE
        kill(stopped)
        wait_until(freed(superblock, view.slot), what="the sweep after the restart")
        assert superblock.server_get(3, "restarts") == 1
    node.stop()


def test_idle_exit(start: Starter) -> None:
    node = start("idle_exit=0.2", "adopt=1").ready()
    with node.superblock() as superblock:
        view, memory = register(superblock)
        child = in_child(lambda: None)
        end_child(child)  # time passes while a client is there
        assert node.process.poll() is None
        superblock.leave(view.slot, view.generation)
        memory.close()
    code, _out, error = node.end()
    assert code == 0
    assert "no client" in error


# ---- control ------------------------------------------------------------------------------------------------------


def test_control_declares_and_refuses(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    with ControlClient(tmp_path / "node") as client, node.superblock() as superblock:
        version = superblock.get("catalog_version")
        answer = client.call("declare_queue", name="q")
        assert answer["created"]
        assert answer["queue"]["worker"] in range(2)  # which one its name decides
        assert superblock.get("catalog_version") == version + 1 == answer["version"]
        assert Catalog.load(tmp_path / "node").version == version + 1
        assert not client.call("declare_queue", name="q")["created"]
        client.call("declare_exchange", name="x", type="topic")
        client.call("bind", queue="q", exchange="x", routing_key="a.#")
        assert client.call("unbind", queue="q", exchange="x", routing_key="b")["removed"] is False
        hidden = client.call("subscription", queue="q", name="s")["queue"]
        assert hidden["hidden"]
        assert [item["name"] for item in client.call("queues")["queues"]] == ["q", "q/s"]
        assert [item["name"] for item in client.call("status")["queues"]] == ["q"]
        for error, op, fields in (
            (DeclarationMismatch, "declare_queue", {"name": "q", "durable": False}),
            (InvalidName, "declare_queue", {"name": "a/b"}),
            (UsageError, "declare_queue", {"name": 5}),
            (InvalidName, "declare_queue", {"name": "x" * 300}),
            (QueueNotFound, "delete_queue", {"name": "none"}),
            (UsageError, "declare_queue", {}),
            (UsageError, "declare_queue", {"name": "n", "colour": "red"}),
            (UsageError, "bind", {"queue": [], "exchange": {}}),
            (UsageError, "no such operation", {}),
            (UsageError, "_change", {}),
        ):
            with pytest.raises(error):
                client.call(op, **fields)
        client.call("subscription", queue="q", name="s", delete=True)
        client.call("delete_exchange", name="x")
        client.call("delete_queue", name="q")
        assert client.call("queues")["queues"] == []
    node.stop()


def test_nonsense_on_the_socket_harms_nobody(start: Starter, tmp_path: Path) -> None:
    node = start().ready()
    path = tmp_path / "node"
    with ControlClient(path) as client:
        client.call("ping")
        for nonsense in (
            b"\xff" * 64,
            b"GET / HTTP/1.1\r\n\r\n",
            struct.pack(">I", 3) + b"\xc1\xc1\xc1",
            struct.pack(">I", 1) + b"\x01",
        ):
            with connected(path) as sock:
                sock.sendall(nonsense)
                received = b""
                while part := sock.recv(4096):
                    received += part
                assert b"UsageError" in received
        with connected(path) as slow:  # an unfinished request holds nobody up
            slow.sendall(struct.pack(">I", 100) + b"\x81")
            assert client.call("ping")["state"] == "running"
    node.stop()


def test_a_deep_directory_has_a_socket(start: Starter, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100) / "node"
    node = start(directory=deep).ready()
    assert node.status()["dir"] == str(deep)
    node.stop()


def test_a_call_waits_while_the_supervisor_is_replaced(start: Starter) -> None:
    node = start().ready()
    with ControlClient(node.directory) as client:
        client.call("ping")
        kill(node.process.pid)
        node.end()
        with pytest.raises(TimedOut):  # its servers live: somebody may start a successor
            client.call("ping", timeout=0.1)
        again = start()
        assert client.call("ping", timeout=20)["pid"] == again.process.pid
        again.ready().stop()


def test_alarms_come_and_are_said(start: Starter) -> None:
    node = start(f"disk_free_bytes_min={1 << 60}", "memory_used_max=0.001").ready()
    alarms = wait_until(lambda: len(node.status()["alarms"]) == 2 and node.status()["alarms"], what="two alarms")
    assert "memory_used_max" in alarms[0]
    assert "disk_free_bytes_min" in alarms[1]
    with node.superblock() as superblock:
        assert superblock.get("alarms") == CONSTANTS["ALARM_MEMORY"] | CONSTANTS["ALARM_DISK"]
        superblock.set("alarms", 0)
        wait_until(lambda: superblock.get("alarms") == 3, what="the alarms again, as long as they are true")
    node.stop()


def test_alarms_of_servers_are_summed_up_and_clear(start: Starter) -> None:
    node = start().ready()
    disk, failed = CONSTANTS["ALARM_DISK"], CONSTANTS["ALARM_SYNC_FAILED"]
    with node.superblock() as superblock:
        for servers, expected in (
            ({0: disk}, disk),
            ({0: disk, 2: disk | failed}, disk | failed),
            ({2: disk}, disk),
            ({}, 0),
        ):
            for server in range(superblock.servers_n):
                superblock.server_set(server, "alarms", servers.get(server, 0))
            wait_until(lambda want=expected: superblock.get("alarms") == want, what=f"alarms {expected}")
    messages = node.status()["messages"]
    assert any("alarm sync_failed raised" in line for line in messages)
    assert any("alarm disk cleared" in line for line in messages)
    node.stop()


# ---- refusals -----------------------------------------------------------------------------------------------------


def test_settings_are_checked(start: Starter, tmp_path: Path) -> None:
    for word, said in (
        ("colour=red", "no setting 'colour'"),
        ("ring_records=100", "power of two"),
        ("ring_records=many", "setting ring_records must be a whole number, not 'many'"),
        ("arena_bytes=1M", "setting arena_bytes must be a whole number of bytes, without a unit, not '1M'"),
        ("memory_used_max=x", "setting memory_used_max must be a number, not 'x'"),
        ("workers=31", "between"),
    ):
        code, out, _error = start(word, small=False, directory=tmp_path / "new").end()
        assert (code, said in out) == (2, True), out
    start().ready().stop()
    for word, said in (("file_bytes=1048576", "cannot be changed"),):
        code, out, _error = start(word).end()
        assert (code, said in out) == (2, True), out
    node = start("workers=3").ready()
    assert len(node.pids()) == 6
    node.stop()
    assert NodeDirectory(tmp_path / "node").read().settings.workers == 3


#: refuses one of the system's calls, for want of descriptors or memory; what the supervisor raises is printed
REFUSING = """
import errno, importlib, sys
from warren.engine.errors import SystemLimit
from warren.workers.node.options import Options
from warren.workers.node.supervise import supervise

def refuse(*_args, **_named):
    raise MemoryError if sys.argv[3] == "ENOMEM" else OSError(errno.EMFILE, "Too many open files")

module, _, name = sys.argv[2].partition(".")
setattr(importlib.import_module(module), name, refuse)
try:
    supervise(sys.argv[1], Options())
except SystemLimit as error:
    print(error)
    sys.exit(7)
"""


@pytest.mark.parametrize(
    ("call", "error"),
    [("socket.socketpair", "EMFILE"), ("os.pidfd_open", "ENOMEM"), ("socket.socket", "EMFILE"), ("os.mkdir", "ENOMEM")],
)
def test_a_start_without_descriptors_or_memory_says_so(tmp_path: Path, call: str, error: str) -> None:
    directory = tmp_path / "node"
    words = [sys.executable, "-c", REFUSING, str(directory), call, error]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert f"cannot start the node of {directory}" in done.stdout or "cannot make" in done.stdout
    assert ("ulimit -n" if error == "EMFILE" else "free memory") in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_new_settings_wait_for_a_cold_start(start: Starter) -> None:
    node = start().ready()
    pids = node.pids()
    kill(node.process.pid)
    node.end()
    code, out, _error = start("workers=3").end()
    assert code == 2
    assert "(workers)" in out
    again = start().ready()
    assert again.pids()["store-0"] == pids["store-0"]
    again.stop()


def test_directories_that_are_not_ours(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    for name, said in (("file", "not a directory"), ("file/below", "is a file"), ("full", "thesis.tex")):
        code, out, _error = start(directory=tmp_path / name).end()
        assert (code, said in out) == (2, True), out
    assert os.listdir(tmp_path / "full") == ["thesis.tex"]


def test_newer_and_damaged_node_files(start: Starter, tmp_path: Path) -> None:
    start().ready().stop()
    path = tmp_path / "node" / "node.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"format_version": 99, "more": 1}))
    with pytest.raises(FormatVersionError):
        NodeDirectory(tmp_path / "node").read()
    code, out, _error = start().end()
    assert code == 1
    assert "FormatVersionError" in out
    assert "newer Warren" in out
    path.write_text(path.read_text()[:50])
    assert "CorruptRecord" in start().end()[1]
    path.write_text(json.dumps(content))
    (tmp_path / "node" / "catalog.json").unlink()
    assert "CorruptRecord" in start().end()[1]


def test_an_interrupted_making_goes_on(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "node" / "log").mkdir(parents=True)
    (tmp_path / "node" / "lock").write_text("123456\n")
    (tmp_path / "node" / "catalog.json").write_bytes(Catalog().encode())
    (tmp_path / "node" / "node.json.new").write_text("{")
    node = start().ready()
    assert (tmp_path / "node" / "lock").read_text().split()[0] == str(node.process.pid)
    assert not (tmp_path / "node" / "node.json.new").exists()
    assert NodeDirectory(tmp_path / "node").read().settings.ring_records == 64
    node.stop()


def test_full_shared_memory_is_said(tmp_path: Path) -> None:
    with pytest.raises(RegionError) as caught:
        region.posix_create("/warren-000000000000-much", 1 << 50)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG, errno.ENOMEM)


def test_no_process_waits_for_the_dead(start: Starter) -> None:
    """A pidfd of the supervisor becomes readable when it ends: what `warren stop` waits for."""
    node = start().ready()
    pidfd = os.pidfd_open(node.process.pid)
    try:
        node.call("stop")
        assert select.select([pidfd], [], [], 20 * patience())[0]
    finally:
        os.close(pidfd)
    assert node.end()[0] == 0


# ---- deaths at any moment -----------------------------------------------------------------------------------------


def made(directory: Path, shared_id: int) -> list[int]:
    """Pids of all processes that map a region of the node."""
    return region_users(names.node_prefix(shared_id)) if directory.exists() else []


@pytest.mark.crash
def test_a_supervisor_killed_at_any_moment_of_its_start(start: Starter, seed: int) -> None:
    """Kill it a random time after it took the lock; the next one must always find its way, and leave nothing at the
    end.
    """
    chance = random.Random(seed)
    node = start().ready()
    node.stop()
    directory = NodeDirectory(node.directory)
    epochs = [directory.read().node_epoch]
    for _turn in range(12):
        node = start("adopt=1")
        wait_until(lambda node=node: directory.lock_holder() == node.process.pid, what="the lock")
        select.select([], [], [], chance.uniform(0, 0.06))
        if chance.random() < 0.3:
            with contextlib.suppress(RegionError), node.superblock() as superblock:
                kill_servers(superblock, chance)
        kill(node.process.pid)
        node.end()
        epochs.append(directory.read().node_epoch)
    assert epochs == sorted(epochs), "an epoch was used again"
    last = start("adopt=1").ready()
    pids = last.pids()
    assert len(set(pids.values())) == 5
    users = [pid for pid in made(node.directory, directory.shared_id) if pid != os.getpid()]
    assert sorted(users) == sorted(pids.values()), "a server of an earlier supervisor still runs"
    last.stop()


def kill_servers(superblock: Superblock, chance: random.Random) -> None:
    for server in range(1, superblock.servers_n):
        pid = superblock.server_get(server, "pid")
        if pid and chance.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                kill(pid)


@pytest.mark.parametrize("seen", [False, True])
def test_a_stop_waits_for_what_a_dead_worker_was_told(tmp_path: Path, seen: bool) -> None:
    """Acks that were submitted to a worker that had just been killed are done when the node has stopped in good order.

    `seen`: the supervisor has noticed the death, and is about to start another one; else it hears of both at once.
    """
    with RealNode(tmp_path / "data", workers=1) as running:
        with contextlib.suppress(warren.Error), warren.attach(running.directory) as node:
            queue = node.queue("q")
            queue.put_many([b"%d" % n for n in range(20)])
            messages = queue.get_many(20, timeout=20)
            assert len(messages) == 20
            pids = running.pids()
            os.kill(pids["supervisor"], signal.SIGSTOP)
            os.kill(pids["worker-0"], signal.SIGKILL)
            for message in messages:
                message.ack()
            if not seen:
                os.kill(pids["supervisor"], signal.SIGTERM)
            os.kill(pids["supervisor"], signal.SIGCONT)
            if seen:
                os.kill(pids["supervisor"], signal.SIGTERM)
            said = running.wait()
        assert f"store (process {pids['store']})" not in said, "the store did not wait for the worker's last start"
        running.start()
        with warren.attach(running.directory) as node:
            assert node.queue("q").stats()["ready"] == 0
            assert node.queue("q").get_many(20, timeout=0.2) == []
