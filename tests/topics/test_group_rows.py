"""Goal: whoever was told a group's stamp sees another one after the next change, and never takes another group's for
it; without room or memory groups have no row, and nothing else is missing.

Method: rows by hand; the worker's server and service without a node, a client by hand (support/topic_probe.py).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warren.engine import _core
from warren.engine.kernel.protocol import PROTOCOL, TOPIC_GROUP_ROW, TOPIC_ROW, TOPIC_ROWS, TOPIC_ROWS_BYTES
from warren.engine.topics.group_rows import NO_ROW, GroupRow, GroupRows
from warren.workers.client.group_member import NOWHERE

from support.topic_probe import OK, Appender, Life, Topic, TopicNode

AT = TOPIC_ROWS.size + PROTOCOL["TOPIC_ROWS_MAX"] * TOPIC_ROW.size


class Memory:
    """Takes what is told."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.full = False

    def tell_group(self, row: int, _topic: int, stamp: int, /) -> bool:
        if not self.full:
            self.rows[row] = stamp
        return not self.full


def test_no_stamp_comes_again() -> None:
    memory = Memory()
    seen: set[int] = set()
    for epoch in (3, 4):  # a worker, and the next one
        rows = GroupRows(memory, most=2, epoch=epoch)
        for _ in range(5):
            groups = [GroupRow(1), GroupRow(2)]
            for generation in range(1, 4):
                for group in groups:
                    rows.show(group, generation)
                    rows.show(group, generation)  # nothing has changed
                    assert memory.rows[group.number] == group.stamp
                    assert group.stamp not in seen
                    seen.add(group.stamp)
            assert {group.number for group in groups} == {0, 1}
            for group in groups:
                number = group.number
                rows.take(group)
                assert memory.rows[number] == 0
    assert len(seen) == 2 * 5 * 3 * 2


def test_without_room_or_memory_a_group_has_no_row() -> None:
    memory = Memory()
    rows = GroupRows(memory, most=1)
    first, second, third = GroupRow(1), GroupRow(1), GroupRow(2)
    rows.show(first, 1)
    rows.show(second, 1)
    assert (first.number, second.number) == (0, NO_ROW)
    rows.take(first)
    rows.show(second, 2)
    assert second.number == 0
    rows.take(second)
    memory.full = True
    rows.show(third, 1)
    assert third.number == NO_ROW
    memory.full = False
    rows.show(third, 2)
    assert third.number == 0
    assert memory.rows[0] == third.stamp


@pytest.fixture
def node(tmp_path: Path) -> TopicNode:
    return TopicNode(tmp_path / "node", [Topic(1, "flights", 3), Topic(2, "seats", 2)])


@pytest.fixture
def life(node: TopicNode) -> Iterator[Life]:
    life = node.life()
    yield life
    assert life.stop()


def ask(life: Life, appender: Appender, op: str, **told: Any) -> dict[str, Any]:
    sequence = appender.send_control(op=op, **told)
    life.until(lambda: appender.get("processed") > sequence)
    assert appender.result(sequence) == OK
    return appender.told()


def stamp(life: Life, row: int) -> int:
    return TOPIC_GROUP_ROW.unpack(life.rows, "stamp", AT + row * TOPIC_GROUP_ROW.size)


def watch_of(life: Life, told: dict[str, Any]) -> _core.TopicWatch:
    return _core.TopicWatch(life.rows, told["row"], told["stamp"], told["own_row"], told["own_number"])


def test_members_see_each_change_in_shared_memory(node: TopicNode, life: Life) -> None:
    one, other = node.appender(life), node.appender(life)
    member = {"topic": 1, "group": "report", "member": 1}
    mine = ask(life, one, "sync_group", **member)
    assert stamp(life, mine["row"]) == mine["stamp"] != 0
    watch = watch_of(life, mine)
    ask(life, one, "sync_group", **member)
    ask(life, other, "sync_group", topic=2, group="report", member=1)  # another topic's group has another row
    assert not watch.changed()
    closed = watch_of(life, mine)
    closed.close()
    assert closed.changed()  # it looks at nothing any more: whoever has it asks anew
    ask(life, other, "sync_group", **member)
    assert watch.changed()
    watch.close()
    mine = ask(life, one, "sync_group", **member)
    watch = watch_of(life, mine)
    assert not watch.changed()
    ask(life, other, "leave_group", **member)
    assert watch.changed()
    watch.close()
    mine = ask(life, one, "sync_group", **member)
    watch = watch_of(life, mine)
    ask(life, one, "leave_group", **member)
    assert watch.changed()  # nobody is in the group: the row is free
    assert stamp(life, mine["row"]) == 0
    again = ask(life, one, "sync_group", topic=1, group="another", member=1)
    assert again["row"] == mine["row"]
    assert watch.changed()
    watch.close()


def test_members_of_a_client_that_is_gone_and_of_a_topic_that_is_deleted(node: TopicNode, life: Life) -> None:
    one, other = node.appender(life), node.appender(life)
    mine = ask(life, one, "sync_group", topic=1, group="report", member=1)
    gone = ask(life, other, "sync_group", topic=2, group="seats", member=1)
    node.tell_catalog([Topic(1, "flights", 3)])
    life.until(lambda: stamp(life, gone["row"]) == 0)
    assert stamp(life, mine["row"]) == mine["stamp"]


def test_the_next_worker_has_other_stamps(node: TopicNode) -> None:
    seen: set[int] = set()
    for _ in range(2):
        life = node.life()
        appender = node.appender(life)
        seen.add(ask(life, appender, "sync_group", topic=1, group="report", member=1)["stamp"])
        assert life.stop()
    assert len(seen) == 2


def test_a_watch_wants_the_whole_region() -> None:
    with pytest.raises(ValueError, match="too small"):
        _core.TopicWatch(bytearray(TOPIC_ROWS_BYTES - 1), 0, 1, 0, 1)
    watch = _core.TopicWatch(bytearray(TOPIC_ROWS_BYTES), NOWHERE, 1, NOWHERE, 1)  # without a row nothing changes
    assert not watch.changed()
    watch.beat(1)
