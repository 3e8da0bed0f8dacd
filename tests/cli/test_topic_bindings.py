"""Goal: topics are bound to exchanges, and replayed into queues, from a shell; what is wrong is said with what to do.

Method: the command line of a running node, and what its lists show afterwards.
"""

from pathlib import Path

import pytest

import warren

from support.command_line import warren as run

pytestmark = pytest.mark.integration


def test_a_topic_is_bound_shown_and_unbound(directory: Path, node: warren.Node, name: str) -> None:
    node.topic(name, queues=1)
    node.declare_exchange(name, "headers")
    said = run(
        "topic", "bind", directory, name, name, "--argument", "shop=7", "--key", "header:id", "--tag", "none"
    ).stdout
    assert said == f"topic {name} is bound to exchange {name} with '' shop=7 (key: header:id, tag: none)\n"
    node.bind(node.queue(name), name, "", {"shop": 7})
    run("publish", directory, "--exchange", name, "--header-json", "shop=7", "--header", "id=x 1", "--body", "b")
    assert [record.key for record in node.topic(name).read().records] == ["x%201"]
    assert node.queue(name).get(timeout=10).body == b"b"
    bound = {
        "exchange": name,
        "topic": name,
        "routing_key": "",
        "key": "header:id",
        "tag": None,
        "arguments": {"shop": 7},
    }
    (listed,) = [row for row in run("exchange", "list", directory, "--json").json() if row["name"] == name]
    assert listed["topic_bindings"] == [bound]
    assert [item["queue"] for item in listed["bindings"]] == [name]
    assert f"topic {name} ('' shop=7), {name} ('' shop=7)" in run("exchange", "list", directory).stdout
    assert run("topic", "describe", directory, name, "--json").json()["bindings"] == [bound]
    shown = run("topic", "describe", directory, name).stdout
    assert f"bound to exchange {name} with '' shop=7 (key: header:id, tag: none)" in shown
    assert "is no longer bound" in run("topic", "unbind", directory, name, name, "--argument", "shop=7").stdout
    assert not run("topic", "unbind", directory, name, name, "--argument", "shop=7", "--json").json()["removed"]


def test_what_is_wrong(directory: Path, node: warren.Node, name: str) -> None:
    node.topic(name, queues=1)
    failed = run("topic", "bind", directory, name, "nowhere", code=2)
    assert f"exchange declare {directory} nowhere` creates it" in failed.stderr
    failed = run("topic", "bind", directory, "nothing", "amq.topic", code=2)
    assert f"topic create {directory} nothing` creates it" in failed.stderr
    failed = run("topic", "bind", directory, name, "amq.topic", "--key", "price", code=2)
    assert "key must be routing_key, content_type" in failed.stderr
