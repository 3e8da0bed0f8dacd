"""Goal: topics are bound to exchanges, and replayed into queues, from a shell; what is wrong is said with what to do.

Method: the command line of a running node, and what its lists show afterwards.
"""

import json
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


def test_what_is_not_bound_cannot_be_unbound(directory: Path, node: warren.Node, name: str) -> None:
    """Of a topic as of a queue: exit code 2, and where the bindings are shown."""
    node.topic(name, queues=1)
    node.queue(name)
    for thing, shows in (("topic", "describe"), ("queue", "show")):
        unbind = (thing, "unbind", directory, name, "amq.topic", "a.b")
        run(thing, "bind", directory, name, "amq.topic", "a.b")
        assert run(*unbind, "--json").json()["removed"]
        said = run(*unbind, code=2).stderr
        assert said == (
            f"warren: {thing} {name} is not bound to exchange amq.topic with 'a.b': "
            f"`warren {thing} {shows} {directory} {name}` shows its bindings\n"
        )
        assert run(thing, shows, directory, name).returncode == 0
        assert json.loads(run(*unbind, "--json", code=2).stderr)["error"] == "UsageError"
        said = run(thing, "unbind", directory, name, "nowhere", code=2).stderr
        assert "there is no exchange 'nowhere': `warren exchange list" in said


def test_json_says_created_of_what_is_made_alone(directory: Path, node: warren.Node, name: str) -> None:
    for thing, make in (("topic", "create"), ("queue", "declare"), ("exchange", "declare")):
        assert run(thing, make, directory, name, "--json").json()["created"] is True
        assert run(thing, make, directory, name, "--json").json()["created"] is False
    retention = ("topic", "set", directory, name, "--retention-s", 60, "--json")
    assert [run(*retention).json().get("changed") for _ in range(2)] == [True, False]
    assert "created" not in run(*retention).json()
    for thing in ("topic", "queue"):
        for word, told in (("bind", True), ("unbind", None)):
            assert run(thing, word, directory, name, name, "k", "--json").json().get("created") is told
    run("queue", "declare", directory, f"{name}-1", f"{name}-2")
    assert "created" not in run("queue", "delete", "--yes", directory, f"{name}-1", f"{name}-2", "--json").json()
    for thing in ("topic", "queue", "exchange"):
        assert "created" not in run(thing, "delete", directory, name, "--json").json()


def test_what_is_wrong(directory: Path, node: warren.Node, name: str) -> None:
    node.topic(name, queues=1)
    failed = run("topic", "bind", directory, name, "nowhere", code=2)
    assert f"exchange declare {directory} nowhere` creates it" in failed.stderr
    failed = run("topic", "bind", directory, "nothing", "amq.topic", code=2)
    assert f"topic create {directory} nothing` creates it" in failed.stderr
    failed = run("topic", "bind", directory, name, "amq.topic", "--key", "price", code=2)
    assert "key must be routing_key, content_type" in failed.stderr
