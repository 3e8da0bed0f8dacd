"""Goal: what a group committed is there after any death of the worker, whatever became of its snapshot; an answer means
that it is durable; what cannot be read is named, and read from the log again.

Method: the worker's server and service without a node, a client by hand (support/topic_probe.py). A death is a child
process that is killed, or a life that is let go without a stop.
"""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from warren.engine.errors import StoreError
from warren.engine.topics import control, offsets
from warren.engine.topics.formats import GROUPS, OFFSETS_TOPIC
from warren.engine.topics.groups import Committed
from warren.engine.topics.names import node_bytes
from warren.engine.topics.offsets import All
from warren.engine.topics.snapshots import Unreadable

from support.topic_probe import OK, SERVER, Appender, Life, Topic, TopicNode
from support.waiting import wait_until

NODE = b"a node of tests."


@pytest.fixture
def node(tmp_path: Path) -> TopicNode:
    return TopicNode(tmp_path / "node", [Topic(1, "flights", 3), Topic(2, "seats", 2)])


@pytest.fixture
def life(node: TopicNode) -> Iterator[Life]:
    life = node.life()
    yield life
    assert life.stop()


def ask(life: Life, appender: Appender, op: str, topic: int = 1, **told: Any) -> dict[str, Any]:
    """A request and its answer; `error` is in it when it was refused."""
    sequence = appender.send_control(op=op, topic=topic, **told)
    life.until(lambda: appender.get("processed") > sequence)
    answer = appender.told()
    assert (appender.result(sequence) == OK) == ("error" not in answer)
    return answer


def filled(life: Life, appender: Appender, topic: int = 1, queues: int = 3, count: int = 50) -> None:
    for queue in range(queues):
        last = appender.append_many(topic, queue, [b"%d" % n for n in range(count)])
    life.until(lambda: appender.get("synced") > last)


def joined(life: Life, appender: Appender, group: str = "report", **told: Any) -> dict[int, tuple[int, int]]:
    """queue → (generation, committed) of what is given to the member 1 of a client."""
    answer = ask(life, appender, "sync_group", group=group, member=1, **told)
    return {queue: (generation, offset) for queue, generation, offset in answer["given"]}


def committed(life: Life, appender: Appender, group: str = "report", topic: int = 1) -> list[int]:
    found: list[int] = ask(life, appender, "describe_group", topic, group=group)["offsets"]
    return found


def commit(life: Life, appender: Appender, at: dict[int, int], group: str = "report") -> dict[str, Any]:
    given = joined(life, appender, group)
    commits = [(queue, given[queue][0], offset) for queue, offset in at.items()]
    return ask(life, appender, "commit_offsets", group=group, member=1, commits=commits)


def offset_records(node: TopicNode) -> int:
    """How many of the log, by their names."""
    return node.log_bytes().count(OFFSETS_TOPIC.encode())


# -- bytes --------------------------------------------------------------------------------------------------------


def test_a_snapshot_says_what_was_written() -> None:
    snapshot = All(1 << 40, 7, 9, {(1, "a"): {0: Committed(3, 17), 5: Committed(1, 0)}, (2, "bü"): {}})
    assert offsets.decode_snapshot(NODE, offsets.encode_snapshot(NODE, snapshot)) == snapshot


def test_a_snapshot_with_any_byte_changed_or_missing_is_none() -> None:
    file = offsets.encode_snapshot(NODE, All(5, 7, 9, {(1, "a"): {0: Committed(3, 17)}}))
    for at in range(len(file)):
        changed = bytearray(file)
        changed[at] ^= 0x40
        for wrong in (bytes(changed), file[:at]):
            with pytest.raises(Unreadable):
                offsets.decode_snapshot(NODE, wrong)
    with pytest.raises(Unreadable, match="another node"):
        offsets.decode_snapshot(b"x" * 16, file)


def test_records_that_are_none_change_nothing() -> None:
    body = offsets.encode((1, "a"), {0: Committed(3, 17)})
    for at in range(len(body)):
        known = {(9, "z"): {1: Committed(1, 1)}}
        if at != len(body) - 1:  # a name is as long as it says
            with pytest.raises(Unreadable):
                offsets.apply(known, body[:at])
        with pytest.raises(Unreadable):
            offsets.apply(known, body + b"more")
        assert known == {(9, "z"): {1: Committed(1, 1)}}


# -- requests -----------------------------------------------------------------------------------------------------


def test_an_answered_commit_is_a_record_of_the_log(node: TopicNode, life: Life) -> None:
    appender = node.appender(life)
    filled(life, appender)
    before = offset_records(node)
    assert commit(life, appender, {0: 17, 2: 50}) == {}
    assert offset_records(node) == before + 1  # in the file, when the answer is there
    assert committed(life, appender) == [17, -1, 50]
    assert life.row(1, 0) == {"minimum": 0, "maximum": 50, "appended": 50}


def test_appends_and_requests_of_one_client_go_on_in_order(node: TopicNode, life: Life) -> None:
    appender = node.appender(life)
    filled(life, appender)
    given = joined(life, appender)
    for number in range(20):
        request = {"op": "commit_offsets", "topic": 1, "group": "report", "member": 1}
        appender.send_control(**request, commits=[(0, given[0][0], number)])
        last = appender.append(1, 0, b"behind a request")
    life.until(lambda: appender.get("synced") > last)
    assert appender.answer(last).offset == 69
    assert committed(life, appender)[0] == 19


def test_two_clients_share_and_one_that_goes_leaves_all_to_the_other(node: TopicNode, life: Life) -> None:
    first, second = node.appender(life), node.appender(life)
    filled(life, first)
    given = joined(life, first)
    assert set(given) == {0, 1, 2}
    assert joined(life, second) == {}
    told = ask(life, first, "sync_group", group="report", member=1)
    assert told["give_back"] == [2]
    last = [(2, given[2][0], 5)]
    told = ask(life, first, "sync_group", group="report", member=1, commits=last, released=[2])
    assert ([queue for queue, *_ in told["given"]], told["give_back"]) == ([0, 1], [])
    assert {queue: offset for queue, (_, offset) in joined(life, second).items()} == {2: 5}
    late = [(2, given[2][0], 6)]
    refused = ask(life, first, "commit_offsets", group="report", member=1, commits=late)
    assert refused["error"] == "Fenced"
    assert committed(life, first) == [-1, -1, 5]
    life.server.closing(first.slot)
    life.until(lambda: len(ask(life, second, "describe_group", group="report")["members"]) == 1)
    assert set(joined(life, second)) == {0, 1, 2}


def test_what_a_member_leaves_with_is_committed(node: TopicNode, life: Life) -> None:
    appender = node.appender(life)
    filled(life, appender)
    given = joined(life, appender)
    ask(life, appender, "leave_group", group="report", member=1, commits=[(1, given[1][0], 33)])
    found = ask(life, appender, "describe_group", group="report")
    assert (found["members"], found["offsets"]) == ([], [-1, 33, -1])


def test_a_group_that_was_forgotten_gives_no_generation_again(node: TopicNode, life: Life) -> None:
    """Its only member died, or left, and nothing was committed: nothing of it is kept but how far generations are."""
    first, second = node.appender(life), node.appender(life)
    filled(life, first)
    before = max(generation for generation, _offset in joined(life, first).values())
    life.server.closing(first.slot)
    life.until(lambda: ask(life, second, "list_groups") == {"names": [], "more": False})
    again = {generation for generation, _offset in joined(life, second).values()}
    assert min(again) > before
    ask(life, second, "leave_group", group="report", member=1)
    assert min(generation for generation, _offset in joined(life, second).values()) > max(again)


def test_seek_and_delete(node: TopicNode, life: Life) -> None:
    appender = node.appender(life)
    filled(life, appender)
    commit(life, appender, {0: 40})
    given = joined(life, appender)
    for op, told in (("seek_group", {"offsets": [(0, 3)]}), ("delete_group", {})):
        assert "has members" in ask(life, appender, op, group="report", **told)["message"]
    ask(life, appender, "seek_group", group="report", offsets=[(0, 3)], force=True)
    lost = ask(life, appender, "commit_offsets", group="report", member=1, commits=[(0, given[0][0], 41)])
    assert lost["error"] == "Fenced"
    assert joined(life, appender)[0][1] == 3
    ask(life, appender, "leave_group", group="report", member=1)
    assert ask(life, appender, "list_groups")["names"] == ["report"]
    ask(life, appender, "delete_group", group="report")
    assert ask(life, appender, "list_groups") == {"names": [], "more": False}
    assert committed(life, appender) == [-1, -1, -1]


def test_what_is_refused(node: TopicNode, life: Life) -> None:
    appender = node.appender(life)
    filled(life, appender)
    generation = joined(life, appender)[0][0]
    sync = {"group": "report", "member": 1}
    for op, topic, told, error in (
        ("commit_offsets", 1, sync | {"commits": [(0, generation, 51)]}, "UsageError"),  # behind the queue's end
        ("commit_offsets", 1, sync | {"commits": [(3, generation, 0)]}, "UsageError"),
        ("commit_offsets", 1, sync | {"commits": [(0, generation, -1)]}, "UsageError"),
        ("commit_offsets", 1, sync | {"member": 2, "commits": [(0, generation, 1)]}, "Fenced"),
        ("sync_group", 7, sync, "TopicNotFound"),
        ("sync_group", 1, sync | {"group": "no name"}, "UsageError"),
        ("sync_group", 1, sync | {"member": 1 << 63}, "UsageError"),
        ("seek_group", 1, {"group": "other", "offsets": [(0, 99)]}, "UsageError"),
        ("no_such", 1, {}, "UsageError"),
    ):
        assert ask(life, appender, op, topic, **told)["error"] == error, (op, told)
    assert committed(life, appender) == [-1, -1, -1]
    assert not appender.get("evicted")


def test_names_come_in_parts(node: TopicNode, life: Life) -> None:
    appender = node.appender(life)
    filled(life, appender, count=1)
    names = [f"{number:03}" + "x" * 250 for number in range(400)]
    for name in names:
        joined(life, appender, name)
    found: list[str] = []
    more = True
    while more:
        part = ask(life, appender, "list_groups", after=found[-1] if found else "")
        assert part["names"]
        found, more = found + part["names"], part["more"]
    assert found == names


# -- deaths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshot", ["kept", "missing", "damaged", "cut", "foreign", "of another log"])
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "let go"])
def test_offsets_outlive_a_start_whatever_became_of_their_snapshot(
    node: TopicNode, snapshot: str, stopped: bool
) -> None:
    life = node.life()
    appender = node.appender(life)
    filled(life, appender)
    for number in range(10):
        commit(life, appender, {0: number, 1: 2 * number})
        commit(life, appender, {0: number + 20}, "other")
    ask(life, appender, "leave_group", group="other", member=1)
    ask(life, appender, "delete_group", group="other")
    commit(life, appender, {2: 50})
    life.stop() if stopped else life.release()
    damage(node, snapshot)
    node.said.clear()
    life = node.life()
    try:
        assert committed(life, appender) == [9, 18, 50]
        assert ask(life, appender, "list_groups")["names"] == ["report"]
        assert (node.folder.path / "groups.damaged").exists() == (snapshot in ("damaged", "cut", "foreign"))
        named = any("groups" in text for text in node.said)
        assert named == (snapshot in ("missing", "damaged", "cut", "foreign"))
    finally:
        life.stop()


def damage(node: TopicNode, how: str) -> None:
    path = node.folder.groups
    file = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "damaged":
        path.write_bytes(file[:-1] + bytes([file[-1] ^ 1]))
    elif how == "cut":
        path.write_bytes(file[:-3])
    elif how == "foreign":
        path.write_bytes(offsets.encode_snapshot(NODE, All()))
    elif how == "of another log":  # a good file that fits nowhere: nothing of this log's group is in it
        path.write_bytes(offsets.encode_snapshot(node_bytes(node.superblock.node_id), All(4097, 1, 1)))


def test_a_start_reads_no_more_of_the_log_than_what_the_snapshot_has_not(node: TopicNode) -> None:
    life = node.life()
    appender = node.appender(life)
    filled(life, appender, count=200)
    commit(life, appender, {0: 7})
    life.stop()
    file = node.folder.groups.read_bytes()
    found = offsets.decode_snapshot(node_bytes(node.superblock.node_id), file)
    assert found.offsets == {(1, "report"): {0: Committed(1, 7)}}
    life = node.life()
    assert found.position == life.recovered.position
    assert node.folder.groups.read_bytes() == file  # nothing was to be written
    life.stop()


def test_a_snapshot_follows_while_the_worker_runs(node: TopicNode, life: Life) -> None:
    appender = node.appender(life)
    filled(life, appender)
    commit(life, appender, {0: 7})

    def says() -> bool:
        file = node.folder.groups.read_bytes()
        return (1, "report") in offsets.decode_snapshot(node_bytes(node.superblock.node_id), file).offsets

    life.until(says)


def test_offsets_above_the_end_of_a_queue_are_brought_down(node: TopicNode) -> None:
    life = node.life()
    appender = node.appender(life)
    filled(life, appender)
    life.stop()
    whose = node_bytes(node.superblock.node_id)
    found = offsets.decode_snapshot(whose, node.folder.groups.read_bytes())
    found.offsets = {(1, "report"): {0: Committed(4, 1000), 1: Committed(4, 8), 9: Committed(4, 1)}, (7, "gone"): {}}
    node.folder.groups.write_bytes(offsets.encode_snapshot(whose, found))
    life = node.life()
    written = offsets.decode_snapshot(whose, node.folder.groups.read_bytes()).offsets
    assert written == {(1, "report"): {0: Committed(4, 50), 1: Committed(4, 8)}}
    assert committed(life, appender) == [50, 8, -1]
    life.stop()


def test_offsets_go_with_their_topic(node: TopicNode) -> None:
    life = node.life()
    appender = node.appender(life)
    filled(life, appender)
    commit(life, appender, {0: 7})
    node.tell_catalog([Topic(2, "seats", 2), Topic(3, "flights", 3)])
    life.until(lambda: life.row(1, 0) is None and life.row(3, 0) is not None)
    assert committed(life, appender, topic=3) == [-1, -1, -1]
    assert ask(life, appender, "list_groups")["error"] == "TopicNotFound"
    life.stop()
    found = offsets.decode_snapshot(node_bytes(node.superblock.node_id), node.folder.groups.read_bytes())
    assert found.offsets == {}


def test_members_of_before_keep_their_queues_over_a_restart(node: TopicNode) -> None:
    life = node.life()
    first, second = node.appender(life), node.appender(life)
    filled(life, first)
    given = joined(life, first)
    life.release()
    life = node.life()
    assert joined(life, second) == {}
    held = [(queue, generation) for queue, (generation, _offset) in given.items()]
    assert joined(life, first, held=held) == given
    commits = [(0, given[0][0], 9)]
    assert ask(life, first, "commit_offsets", group="report", member=1, commits=commits) == {}
    life.stop()


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_instant_what_was_answered_is_there(node: TopicNode, seed: int) -> None:
    """The client commits one offset after the other; its worker is killed again and again."""
    chance, generation = random.Random(seed), 0
    appender = node.appender()
    last = -1  # answered
    life = node.life()
    filled(life, appender, count=400)
    life.stop()
    for _ in range(4):
        epoch = node.superblock.server_get(SERVER, "epoch")
        pid = node.child()
        wait_until(lambda before=epoch: node.superblock.server_get(SERVER, "epoch") > before, 60)
        kill_at = last + chance.randrange(1, 60)
        sequence = -1
        while last < kill_at:
            held = [(0, max(generation, 1))]  # the new worker waits for who was there
            answer = by_child(node, appender, {"op": "sync_group", "group": "report", "member": 1, "held": held})
            (generation,) = (of for queue, of, _offset in answer["given"] if queue == 0)
            commits = [(0, generation, last + 1)]
            told = {"op": "commit_offsets", "group": "report", "member": 1, "commits": commits}
            if last + 1 == kill_at:
                sequence = appender.send_control(topic=1, **told)
                node.superblock.ring(SERVER)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                break
            assert by_child(node, appender, told) == {}
            last += 1
        life = node.life()
        life.until(lambda at=sequence: appender.get("processed") > at)
        found = committed(life, appender)[0]
        assert last <= found <= kill_at
        last = found
        ask(life, appender, "leave_group", group="report", member=1)
        life.stop() if chance.randrange(2) else life.release()
    assert last > 0


def by_child(node: TopicNode, appender: Appender, request: dict[str, Any]) -> dict[str, Any]:
    sequence = appender.send_control(topic=1, **request)
    node.superblock.ring(SERVER)
    wait_until(lambda: appender.get("processed") > sequence, 60)
    return appender.told()


def test_a_full_disk_keeps_the_old_snapshot_and_says_so_once(
    node: TopicNode, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = node.appender(life)
    filled(life, appender)

    def refuse(_path: Path, _content: bytes) -> None:
        raise StoreError("no space")

    monkeypatch.setattr("warren.engine.kernel.atomic_file.replace", refuse)
    commit(life, appender, {0: 7})
    life.until(lambda: life.service.groups.snapshot.refused)
    assert commit(life, appender, {0: 8}) == {}  # the log has it
    monkeypatch.undo()
    life.until(lambda: not life.service.groups.snapshot.refused)
    whose = node_bytes(node.superblock.node_id)
    found = offsets.decode_snapshot(whose, node.folder.groups.read_bytes())
    assert found.offsets[1, "report"][0].offset == 8
    assert GROUPS.unpack(node.folder.groups.read_bytes(), "position") <= life.server.counters()["sealed"]
    assert sum("no new snapshot" in text for text in node.said) == 1


def test_the_map_of_a_request_is_what_the_client_makes() -> None:
    request = control.SyncGroup(1, "g", 5, held=[(0, 1)])
    assert control.decode(msgspec.msgpack.encode(request)) == request
