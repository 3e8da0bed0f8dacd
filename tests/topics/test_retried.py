"""Goal: a record of a group's topic says how often the message was tried, also when it comes later, and also after a
restart; records of other topics say 0, whatever their properties are.

Method: a topic worker without a node, clients by hand; records are read from the log's files by the tables.
"""

from pathlib import Path

import pytest

from support.topic_probe import OK, Topic, TopicNode

RETRY, PLAIN = Topic(1, "%RETRY%report+flights", 1), Topic(2, "flights", 1)


@pytest.mark.parametrize(
    ("told", "times"), [("3", 3), ("0", 0), ("999999999", 999_999_999), ("1000000000", 0), ("-1", 0), ("", 0), ("x", 0)]
)
def test_it_says_how_often_it_was_tried(tmp_path: Path, told: str, times: int) -> None:
    node = TopicNode(tmp_path, [RETRY, PLAIN])
    life = node.life()
    client = node.appender(life)
    numbers = [client.append(topic.id, 0, b"m", properties={"RECONSUME_TIME": told}) for topic in (RETRY, PLAIN)]
    numbers += [client.append_many(RETRY.id, 0, [b"a", b"b"])]
    life.until(lambda: client.get("processed") > numbers[-1])
    life.until(lambda: life.maximum(RETRY.id, 0) == 3)
    found = [client.answer(number) for number in numbers]
    assert [answer.result for answer in found] == [OK] * 3
    assert [node.record(answer.position)["reconsume_times"] for answer in found] == [times, 0, 0]
    assert life.stop()


def test_also_when_it_comes_later_and_the_worker_died_meanwhile(tmp_path: Path) -> None:
    node = TopicNode(tmp_path, [RETRY, PLAIN])
    life = node.life()
    client = node.appender(life)
    for topic in (RETRY, PLAIN):
        number = client.append_later(topic.id, 0, b"m", 1, {"RECONSUME_TIME": "5", "origin": "EWR"})
    life.until(lambda: client.get("synced") > number)
    first = [client.answer(number).position for number in (number - 1, number)]
    assert [node.record(position)["reconsume_times"] for position in first] == [5, 0]
    life.release()  # nothing is finished
    life = node.life()
    life.until(lambda: life.maximum(RETRY.id, 0) == life.maximum(PLAIN.id, 0) == 1)
    came = [node.record(node.units(topic.name, 0, 1)[0][0]) for topic in (RETRY, PLAIN)]
    assert [(record["reconsume_times"], record["body"]) for record in came] == [(5, b"m"), (0, b"m")]
    assert all(record["properties"]["origin"] == "EWR" for record in came)
    assert life.stop()
