"""Celery as it is, by amqp:// over the gateway: tasks, canvas, retries, remote control, a killed worker, results by rpc://."""

from pathlib import Path

import pytest
from celery import chord, group

from support.celery_client import client, named
from support.celery_worker import Worker
from support.gateway_node import GatewayNode
from support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.crash]
WAIT_S = 60.0


def test_celery_runs_by_amqp_unmodified_and_a_killed_worker_leaves_its_task_to_another(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data") as running:
        broker, backend = running.url.replace("amqp://", "pyamqp://"), f"warren:///{running.directory}"
        with client(broker, backend=backend) as app, Worker(tmp_path, broker, "-c", "2", backend=backend) as worker:
            assert named(app, "add", 1, 2).delay().get(timeout=WAIT_S) == 3
            members = [named(app, "add", n, n) for n in range(10)]
            assert group(members, app=app)().get(timeout=WAIT_S) == [2 * n for n in range(10)]
            assert chord(members, app=app)(named(app, "total")).get(timeout=WAIT_S) == 90
            assert named(app, "flaky", 1).delay().get(timeout=WAIT_S) == 1
            told = named(app, "told").apply_async(priority=7).get(timeout=WAIT_S)
            assert (told["info"]["priority"], told["info"]["redelivered"]) == (7, False)
            assert app.control.ping(destination=[worker.name], timeout=WAIT_S) == [{worker.name: {"ok": "pong"}}]
            held = named(app, "hold", "one", 60.0).delay()
            wait_until(worker.marked, WAIT_S, what="the task at work")
            worker.kill()
            (tmp_path / "marks.go").touch()
            worker.start()
            assert held.get(timeout=WAIT_S) is True
            assert [line.split()[0] for line in worker.marked() if "done" not in line] == ["one", "one"]
        with client(broker, backend="rpc://") as app, Worker(tmp_path, broker, "-c", "1", backend="rpc://", name="r"):
            assert named(app, "add", 1, 2).delay().get(timeout=WAIT_S) == 3
