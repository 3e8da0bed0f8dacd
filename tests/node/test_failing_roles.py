"""Goal: a role that cannot start, or ends again and again, raises an alarm; publishers are not blocked by it.

Method: a real node whose collector is killed whenever it is there, until `status` says so; one whose collector cannot
start, which `up` says; one without any mailbox; the decision alone, for every kind of role.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren.engine.errors import Error
from warren.ipc.layout import CONSTANTS
from warren.workers.node import children, gateway_roles
from warren.workers.node.children import DEATHS_AT_ONCE, DEATHS_WINDOW_S, Role
from warren.workers.process.control import ControlClient

from support.dummy_node import Starter, behave, start
from support.real_node import RealNode
from support.waiting import wait_until

__all__ = ["start"]
COLLECTOR, GATEWAY = CONSTANTS["FAILING_COLLECTOR"], CONSTANTS["FAILING_GATEWAY"]


def alarms(directory: Path) -> dict[str, dict[str, object]]:
    with ControlClient(directory) as control:
        return {item["alarm"]: item for item in control.call("status", timeout=60.0)["alarm_details"]}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "node", workers=1) as node:
        yield node


@pytest.mark.integration
def test_a_collector_that_is_killed_again_and_again(node: RealNode) -> None:
    def killed() -> bool:
        with contextlib.suppress(ProcessLookupError):
            if pid := node.pids()["collector"]:
                os.kill(pid, signal.SIGKILL)
        return "role_failing" in alarms(node.directory)

    wait_until(killed, 120, what="the alarm")
    alarm = alarms(node.directory)["role_failing"]
    assert alarm["servers"] == ["collector"]
    assert not alarm["blocks_publishers"]
    assert "no garbage is collected" in str(alarm["text"])
    with warren.attach(node.directory) as client:
        client.queue("q").put(b"it is not blocked", timeout=60)
    said = subprocess.run(
        [sys.executable, "-m", "warren", "status", str(node.directory)], capture_output=True, text=True, check=True
    ).stdout
    assert "collector cannot start" in " ".join(said.split())


@pytest.mark.integration
def test_roles_start_without_a_mailbox(tmp_path: Path) -> None:
    """There is a file where the folder of mailboxes should be."""
    directory = tmp_path / "node"
    with RealNode(directory, workers=1):
        pass
    (directory / "mail").write_text("where mailboxes should be")
    command = [sys.executable, "-m", "warren", "up", "--detach", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    try:
        assert "is up" in done.stdout
        wait_until(lambda: RealNode(directory).pids()["collector"], 60, what="the collector")
        with warren.attach(directory) as client:
            queue = client.queue("q")
            queue.put(b"x", timeout=60)
            assert queue.get(timeout=60).body == b"x"
        (directory / "mail").unlink()
    finally:
        subprocess.run([sys.executable, "-m", "warren", "stop", str(directory)], capture_output=True, check=True)


def test_up_says_which_role_does_not_come_up(start: Starter, tmp_path: Path) -> None:
    """A worker holds the start up until the collector has died twice."""
    start().ready().stop()
    for role in ("collector", "worker-1"):
        behave(tmp_path / "node", role, "exit", "1")
    node = start()

    def died_twice() -> bool:
        with contextlib.suppress(Error):
            found = {item["role"]: item["restarts"] for item in node.status()["processes"]}
            return int(found["collector"]) >= 2
        return False

    wait_until(died_twice, 60, what="two deaths of the collector")
    (tmp_path / "node" / "behave" / "worker-1.exit").unlink()
    node.ready()
    assert "collector is not up" in node.printed
    assert "log/collector.log" in node.printed
    wait_until(lambda: "role_failing" in alarms(node.directory), 60, what="the alarm")
    (tmp_path / "node" / "behave" / "collector.exit").unlink()
    node.stop()


def role(kind: str, servers: tuple[int, ...] = (), **more: object) -> Role:
    made: type[Role] = gateway_roles.GatewayRole if kind == "amqp_gateway" else Role
    found = made("it", kind, 3 if kind == "amqp_gateway" else 0, servers, lambda _pidfd: 0, Path("log"))
    for name, value in more.items():
        setattr(found, name, value)
    return found


LACK = CONSTANTS["LACK_FILES"]
UNSERVED, SERVED = [(10.0, False)], [(10.0, True)]


@pytest.mark.parametrize(
    ("found", "bits"),
    [
        (role("collector"), 0),
        (role("collector", deaths=UNSERVED), 0),
        (role("collector", deaths=2 * UNSERVED), 1 << COLLECTOR),
        (role("collector", deaths=DEATHS_AT_ONCE * SERVED), 0),
        (role("collector", deaths=(DEATHS_AT_ONCE + 1) * SERVED), 1 << COLLECTOR),
        (role("collector", lack=LACK), 1 << COLLECTOR),
        (role("collector", failed=True), 1 << COLLECTOR),
        (role("amqp_gateway", lack=LACK), 1 << GATEWAY + 3),
        (role("amqp_gateway", deaths=2 * UNSERVED), 1 << GATEWAY + 3),
        (role("store", (0, 1), deaths=2 * UNSERVED), 3),
        (role("store", (0, 1), lack=LACK), 0),  # the alarm of what it lacks is on
        (role("queue_worker", (2,), deaths=2 * UNSERVED, failed=True), 0),  # that of a server that was given up
        (role("topic_worker", (4,), lack=LACK), 16),
        (role("topic_worker", (4,), lack=LACK, wanted=False), 0),
    ],
)
def test_which_roles_fail(found: Role, bits: int) -> None:
    assert children.failing([found], 11.0) == bits
    found.lack, found.failed = 0, False
    assert children.failing([found], 11.0 + DEATHS_WINDOW_S) == 0, "it has been well since"
