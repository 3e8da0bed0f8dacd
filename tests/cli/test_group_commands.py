"""Goal: `warren topic groups · lag · seek · delete-group` on a real node say what is so, and do what their help says.

Method: the command line as processes of their own; readers of this process; one node for all tests.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warren

from support.command_line import warren as command
from support.real_node import RealNode
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
TIMEOUT = 60 * patience()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with RealNode(tmp_path_factory.mktemp("groups") / "node", workers=1) as running:
        with warren.attach(running.directory) as node:
            topic = node.topic("flights", queues=2)
            for queue in range(2):
                topic.append_many([b"%d" % n for n in range(1500)], queue=queue)
            node.topic("seats", queues=1)
        yield running.directory


def told(*words: object, code: int = 0) -> Any:
    return json.loads(command("topic", *words, "--json", code=code).stdout)


def test_groups_lag_and_seek(directory: Path) -> None:
    assert told("groups", directory) == []
    assert command("topic", "groups", directory).stdout == "no groups\n"
    assert "has no groups" in command("topic", "groups", directory, "seats").stdout
    with warren.attach(directory, name="the-reader") as node, node.topic("flights").reader(group="report") as reader:
        reader.get_many(1000, TIMEOUT)
        reader.commit()
        (row,) = told("groups", directory)
        assert told("groups", directory, "flights")[0].keys() == row.keys()
        assert row.pop("last_call_s") >= 0
        assert row == {"topic": "flights", "group": "report", "members": 1, "lag": 2000}
        assert "2,000" in command("topic", "groups", directory).stdout
        lag = told("lag", directory, "flights", "report")
        assert (lag["topic"], lag["group"], lag["lag"]) == ("flights", "report", 2000)
        assert [(queue["committed"], queue["max"]) for queue in lag["queues"]] == [(500, 1500), (500, 1500)]
        shown = command("topic", "lag", directory, "flights", "report").stdout
        assert "1 member, lag 2,000" in shown
        assert "the-reader (process" in shown
        refused = command("topic", "seek", directory, "flights", "report", "earliest", code=2).stderr
        assert refused.endswith("has members: end its readers, or give --force\n")
        assert "goes on at" in command("topic", "seek", directory, "flights", "report", "earliest", "--force").stdout
        assert reader.get(TIMEOUT).offset == 0
    assert told("seek", directory, "flights", "report", "7", "--queue", 1)["offsets"] == {"1": 7}
    assert told("seek", directory, "flights", "report", "2020-01-01", "--queue", 1)["offsets"] == {"1": 0}
    assert told("seek", directory, "flights", "report", "latest")["offsets"] == {"0": 1500, "1": 1500}
    assert told("lag", directory, "flights", "report")["lag"] == 0
    for words, what in (
        (("seek", directory, "flights", "report", "7"), "name it with --queue"),
        (("seek", directory, "flights", "report", "soon"), "give earliest, latest"),
        (("seek", directory, "flights", "report", "-15", "--queue", 0), "WHERE -15: offsets are not negative"),
        (("seek", directory, "flights", "report", "--earliest"), "no such option '--earliest'"),
        (("seek", directory, "flights", "report", "1501", "--queue", 0), "ends at offset 1500"),
        (("lag", directory, "flights", "another"), f"no group 'another': `warren topic groups {directory} flights`"),
        (("groups", directory, "trains"), "topic list"),
        (("lag", directory, "trains", "report"), "topic list"),
    ):
        assert what in command("topic", *words, code=2).stderr, words


def test_what_a_group_tries_again_and_gives_up(directory: Path) -> None:
    with warren.attach(directory) as node:
        topic = node.topic("gates", queues=1)
        topic.append_many([b"one", b"two"])
        with topic.reader(group="report", max_reconsume_times=1) as reader:
            reader.retry(reader.get(TIMEOUT), delay=0)
            reader.retry(reader.get(TIMEOUT), delay=3600)
            reader.retry(reader.get(TIMEOUT))
            reader.commit()
    assert [row["name"] for row in told("list", directory)] == ["flights", "gates", "seats"]
    again, dead = "%RETRY%report+gates", "%DLQ%report+gates"
    everything = [row["name"] for row in told("list", directory, "--all")]
    assert everything == [dead, again, "flights", "gates", "seats"]
    assert [row["name"] for row in told("list", directory, "%*")] == [dead, again]
    assert [row["name"] for row in told("list", directory, dead)] == [dead]
    assert dead not in command("topic", "list", directory).stdout
    shown = command("topic", "lag", directory, "gates", "report").stdout
    assert "0 members, lag 1" in shown
    assert "to be handled again: 1 message, 1 of them later" in shown
    assert "given up: 1 message" in shown
    assert f"topic tail {directory} %DLQ%report+gates" in shown.replace("'", "")
    assert command("topic", "tail", directory, dead, "--start", "earliest").stdout == "one\n"
    assert told("lag", directory, "gates", "report")["dead"] == {"topic": dead, "messages": 1}
    assert "reserved" in command("topic", "create", directory, "%mine", code=2).stderr


def test_a_group_that_is_prepared_is_said_to_be_new(directory: Path) -> None:
    seek = ("seek", directory, "flights", "prepared")
    made = told(*seek, 7, "--queue", 1)
    assert made == {"topic": "flights", "group": "prepared", "created": True, "offsets": {"1": 7}}
    assert told(*seek, 8, "--queue", 1)["created"] is False
    said = command("topic", *seek, "latest").stdout
    assert said.startswith("group prepared of topic flights goes on at:\n")
    said = command("topic", "seek", directory, "flights", "mistyped", "latest").stdout
    assert said.startswith(
        "group mistyped is new: topic flights had none of that name\ngroup mistyped of topic flights begins at:\n"
    )
    for group in ("prepared", "mistyped"):
        command("topic", "delete-group", directory, "flights", group)


@contextlib.contextmanager
def retried(topic: warren.Topic, group: str) -> Iterator[None]:
    """A reader of a group with two messages that will come again, and one dead letter."""
    topic.append_many([b"one", b"two", b"three"])
    with topic.reader(group=group, max_reconsume_times=1) as reader:
        reader.retry(reader.get(TIMEOUT), delay=0)
        reader.retry(reader.get(TIMEOUT), delay=3600)
        reader.retry(reader.get(TIMEOUT), delay=3600)
        reader.retry(reader.get(TIMEOUT))
        reader.commit()
        yield


def test_a_group_is_deleted(directory: Path) -> None:
    delete = ("delete-group", directory, "trains", "report")
    with warren.attach(directory) as node:
        topic = node.topic("trains", queues=1)
        with retried(topic, "report"):
            said = command("topic", *delete, "--force", code=2).stderr
            assert said.endswith("has members: end its readers first\n")
    said = command("topic", *delete, code=2).stderr
    assert "has 2 messages that would come again, and 1 dead letter: with --force they go with it" in said
    assert f"topic lag {directory} trains report" in said
    assert [row["group"] for row in told("groups", directory, "trains")] == ["report"], "nothing was deleted"
    said = command("topic", *delete, "--force").stdout
    assert said == (
        "group report of topic trains deleted, with 2 messages that would have come again and 1 dead letter\n"
    )
    assert told("groups", directory, "trains") == []
    assert told("list", directory, "%*trains") == []
    for words in (delete, (*delete, "--force")):
        said = command("topic", *words, code=2).stderr
        assert said == (
            f"warren: topic 'trains' has no group 'report': `warren topic groups {directory} trains` lists them\n"
        )
    command("topic", "seek", directory, "trains", "report", "latest")
    assert told(*delete) == {"topic": "trains", "group": "report", "retry": 0, "dead": 0}
    assert "there is no topic 'roads'" in command("topic", "delete-group", directory, "roads", "g", code=2).stderr
    command("topic", "delete", "--yes", directory, "trains")


def test_nothing_comes_into_the_topics_of_a_group_or_goes_from_them_by_mistake(directory: Path) -> None:
    again, dead = "%RETRY%g+roads", "%DLQ%g+roads"
    with warren.attach(directory) as node:
        topic = node.topic("roads", queues=1)
        with retried(topic, "g"):
            pass
    for name in (again, dead, "%DLQ%another+roads"):
        for words in (("append", directory, name, "--body", "x"), ("bind", directory, name, "amq.topic", "x")):
            said = command("topic", *words, code=2).stderr
            assert "and gets its messages from readers of the group alone" in said
            assert f"`warren topic {words[0]} {directory} roads`" in said
    assert told("lag", directory, "roads", "g")["dead"]["messages"] == 1
    said = command("topic", "delete", directory, again, code=2).stderr
    assert "has 2 messages to be handled again by group 'g': with --yes it is deleted all the same" in said
    said = command("topic", "delete", directory, dead, code=2).stderr
    assert "has 1 message given up by group 'g': with --yes it is deleted all the same" in said
    assert told("list", directory, "%*roads") != []
    for name in (again, dead):
        assert command("topic", "delete", directory, name, "--force").stdout == f"topic {name} deleted\n"
        for words in (("delete", directory, name), ("tail", directory, name), ("unbind", directory, name, "amq.topic")):
            said = command("topic", *words, code=2).stderr
            assert (
                said == f"warren: there is no topic '{name}': `warren topic list {directory} --all` shows the names\n"
            )
    command("topic", "delete", "--yes", directory, "roads")


def test_a_topic_of_a_group_in_which_nothing_waits_is_deleted(directory: Path) -> None:
    with warren.attach(directory) as node:
        topic = node.topic("roads", queues=1)
        topic.append(b"one")
        with topic.reader(group="g") as reader:
            reader.retry(reader.get(TIMEOUT), delay=0)
            assert reader.get(TIMEOUT).body == b"one"
            reader.commit()
    command("topic", "delete", "--yes", directory, "%RETRY%g+roads")
    command("topic", "delete", "--yes", directory, "roads")


def test_status_says_whose_lag_it_shows(directory: Path) -> None:
    """A topic has one number, however many groups it has."""
    said = "lag: messages that are not committed, of the group that is furthest behind, a moment ago."

    def lines(*options: str) -> list[str]:
        return [line.rstrip() for line in command("status", directory, *options).stdout.splitlines()]

    with warren.attach(directory) as node:
        topic = node.topic("roads", queues=1)
        topic.append_many([b"x"] * 7)
        topic.seek_group("ahead", 6, 0)
        topic.seek_group("behind", 2, 0)
        wait_until(
            lambda: any(line.split()[:5] == ["roads", "1", "7", "7", "5"] for line in lines()), 60, what="the lag"
        )
        for shown in (lines(), lines("--all")):
            assert sum(line.startswith(said) for line in shown) == 1
        topic.delete()
