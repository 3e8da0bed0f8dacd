"""Goal: `queue show` names the clients that hold messages of a queue, and the one that consumes it alone.

Method: a real node; clients of this process that hold messages, of which some are acked; the command line.
"""

import contextlib
from pathlib import Path
from typing import Any

import pytest

import warren

from support.command_line import warren as command
from support.waiting import wait_until

pytestmark = pytest.mark.integration


def holders(directory: Path, queue: str) -> list[tuple[str, int, bool]]:
    shown: Any = command("queue", "show", directory, queue, "--json").json()
    return [(row["client"], row["unacked"], row["alone"]) for row in shown["holders"]]


def test_who_holds_what(directory: Path, node: warren.Node, name: str) -> None:
    for queue in (name, f"{name}-2"):
        node.queue(queue).put_many([b"x"] * 10)
    assert holders(directory, name) == []
    with warren.attach(directory, name="one") as one, warren.attach(directory, name="other") as other:
        held = [one.queue(name).get(timeout=60) for _ in range(3)]
        elsewhere = [one.queue(f"{name}-2").get(timeout=60) for _ in range(2)]
        more = [other.queue(name).get(timeout=60) for _ in range(4)]
        for client in (one, other):
            client.queue(name).release()  # messages that were read ahead return
        wait_until(lambda: holders(directory, name) == [("other", 4, False), ("one", 3, False)], what="the holders")
        shown = command("queue", "show", directory, name).stdout
        assert "held by other (process" in shown
        for message in held + more:
            message.ack()
        wait_until(lambda: holders(directory, name) == [], what="nobody")
        assert [client for client, _count, _alone in holders(directory, f"{name}-2")] == ["one"]
        for message in elsewhere:
            message.ack()
        with contextlib.closing(other.queue(name).consume(prefetch=1, exclusive=True)) as messages:  # type: ignore[type-var]
            message = next(messages)
            assert holders(directory, name) == [("other", 1, True)]
            assert "and consumes alone" in command("queue", "show", directory, name).stdout
            message.ack()
