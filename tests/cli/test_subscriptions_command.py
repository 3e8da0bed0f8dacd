"""Goal: `warren subscriptions` says what streams hold, and gives it back.

Method: the command line as processes of their own; claims of this process; one node.
"""

import json
from pathlib import Path

import pytest

import warren
from warren.workers.faces.queue_range import number_of
from warren.workers.faces.subscription_owner import Owner

from support.command_line import warren as command
from support.real_node import RealNode

pytestmark = pytest.mark.integration


def test_what_is_held_and_how_it_goes_back(tmp_path: Path) -> None:
    with RealNode(tmp_path / "node", workers=1) as running, warren.attach(running.directory) as node:
        orders = node.queue("orders")
        assert command("subscriptions", running.directory).stdout == "no subscriptions\n"
        assert "has no subscriptions" in command("subscriptions", running.directory, "orders").stdout
        orders.put_many([b"%d" % n for n in range(10)])
        claims = orders.subscription("spark-orders")
        assert claims.claim(6) == (0, 6)
        claims.ack(2)
        row = {"queue": "orders", "name": "spark-orders", "claimed": 4, "first": 2, "next": 6, "read": False}
        assert json.loads(command("subscriptions", running.directory, "--json").stdout) == [row]
        shown = command("subscriptions", running.directory, "orders").stdout.splitlines()
        assert shown[-1].split() == ["orders", "spark-orders", "4", "2", "6", "no"]

        owner = Owner(str(running.directory), number_of(claims.incarnation), "the subscription")
        assert json.loads(command("subscriptions", running.directory, "--json").stdout)[0]["read"]
        delete = ("subscriptions", running.directory, "orders", "--delete", "spark-orders")
        assert "stop it first, or say --force" in command(*delete, code=2).stderr
        owner.release()
        told = "subscription spark-orders deleted, 4 messages returned to queue orders\n"
        assert command(*delete).stdout == told
        assert "has no subscription" in command(*delete, code=2).stderr
        back = orders.browse(100)
        assert [bytes(message.body) for message in back] == [b"%d" % n for n in [*range(6, 10), *range(2, 6)]]
        assert [message.redelivered for message in back] == [False] * 4 + [True] * 4
        assert "wants the queue, too" in command("subscriptions", running.directory, "--delete", "x", code=2).stderr
        assert command("subscriptions", running.directory, "no-such", code=2).stderr
