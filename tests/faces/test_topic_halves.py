"""Goal: half messages do what docs/topics.md says, from every face: nobody sees one before it is committed, nor one
that was rolled back; any process finishes one by its id; those that were left behind are answered for.

Method: a real node whose times for asking are some milliseconds; programs as users write them, in several processes.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio

from support import command_line
from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

QUICK = {"half_after_s": 0.05, "half_interval_s": 0.2, "half_checks_max": 3, "half_messages_max": 20}
SIZES = {"log_file_bytes": 1 << 20, "topic_ring_bytes": 1 << 18}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("halves") / "data", **SIZES, **QUICK) as made:
        yield made


@pytest.fixture
def node(running: RealNode) -> Iterator[warren.Node]:
    with warren.attach(running.directory) as attached:
        yield attached


@pytest.fixture
def topic(node: warren.Node, request: pytest.FixtureRequest) -> Iterator[warren.Topic]:
    made = node.topic(request.node.name.replace("[", "-").replace("]", ""), queues=2)
    yield made
    made.delete()  # its half messages, too: others count all of the node


def bodies(topic: warren.Topic) -> list[bytes]:
    return [bytes(record.body) for queue in range(topic.queues) for record in topic.read(queue, max=100).records]


def test_it_is_seen_when_it_is_committed(topic: warren.Topic) -> None:
    half = topic.prepare(b"one", key=["N1", "N2"], tag="UA", properties={"to": "IAH"}, queue=1)
    assert (half.state, half.position, half.topic) == ("pending", None, topic.name)
    assert topic.stats() == {"queues": 2, "messages": 0, "appended": 0, "delayed": 0, "halves": 1}
    assert (topic.find("N1"), topic.find_id(half.message_id), bodies(topic)) == ([], None, [])
    position = half.commit()
    assert (position.queue, position.offset, half.position, half.state) == (1, 0, position, "committed")
    (record,) = topic.read(1, timeout=10).records
    assert (record.body, record.keys, record.tag, record.properties) == (b"one", ("N1", "N2"), "UA", {"to": "IAH"})
    assert (record.message_id, record.offset) == (position.message_id, 0)
    assert topic.find("N2") == topic.find("N1") == [record]
    assert topic.find_id(half.message_id) is None
    assert half.commit() == topic.half(half.message_id).commit() == position
    assert half.message_id in repr(half)
    assert topic.stats()["halves"] == 0


def test_queue_key_and_turn_are_those_of_append(topic: warren.Topic) -> None:
    key = next(f"k{n}" for n in range(9) if topic.queue_of(f"k{n}") == 1)
    assert topic.prepare(b"x", key).commit().queue == 1
    assert {topic.prepare(b"x").commit().queue for _ in range(2)} == {0, 1}


def test_what_was_rolled_back_is_not_seen_and_cannot_be_committed(topic: warren.Topic) -> None:
    half = topic.prepare(b"never", key="k", queue=0)
    half.rollback()
    half.rollback()
    assert half.state == "rolled back"
    for again in (half, topic.half(half.message_id.lower())):
        with pytest.raises(warren.HalfFinished, match="was rolled back and cannot be committed"):
            again.commit()
        assert again.state == "rolled back"
    other = topic.prepare(b"seen", queue=0)
    position = other.commit()
    with pytest.raises(warren.HalfFinished, match="was committed and cannot be rolled back"):
        other.rollback()
    assert (other.position, bodies(topic), topic.find("k")) == (position, [b"seen"], [])


def test_a_block_commits_and_an_error_rolls_back(topic: warren.Topic) -> None:
    with topic.prepare(b"kept", queue=0) as half:
        assert half.state == "pending"
    assert half.state == "committed"
    with pytest.raises(ZeroDivisionError), topic.prepare(b"dropped", queue=0) as dropped:
        _ = 1 // 0
    assert dropped.state == "rolled back"
    with topic.prepare(b"decided within", queue=0) as inner:
        inner.rollback()
    assert (inner.state, bodies(topic)) == ("rolled back", [b"kept"])


def test_threads_that_finish_one_together_are_told_the_same(topic: warren.Topic) -> None:
    with ThreadPoolExecutor(8) as pool:
        for n in range(10):
            half = topic.prepare(b"%d" % n, queue=0)
            assert len(set(pool.map(lambda _n, half=half: half.commit(), range(8)))) == 1
            other = topic.prepare(b"never")
            ways = pool.map(lambda n, id=other.message_id: outcome(topic.half(id), n % 2 == 0), range(8))
            assert len(set(ways)) == 1
            other.rollback() if outcome(other, False) == "rolled back" else other.commit()
    assert bodies(topic)[:10] == [b"%d" % n for n in range(10)] or topic.stats()["messages"] >= 10


def outcome(half: warren.Half, commit: bool) -> str:
    """What became of it, whoever decided."""
    with contextlib.suppress(warren.HalfFinished):
        half.commit() if commit else half.rollback()
    return half.state


def test_another_process_finishes_it_by_its_id(running: RealNode, topic: warren.Topic) -> None:
    halves = [topic.prepare(b"%d" % n, queue=0) for n in range(2)]
    child = os.fork()
    if not child:
        with warren.attach(running.directory) as node:
            there = node.topic(topic.name, create=False)
            there.half(halves[0].message_id).commit()
            there.half(halves[1].message_id).rollback()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert halves[0].commit().offset == 0
    with pytest.raises(warren.HalfFinished):
        halves[1].commit()


def test_a_child_of_fork_prepares_and_finishes_as_itself(topic: warren.Topic) -> None:
    before = topic.prepare(b"of the parent", queue=0)
    child = os.fork()
    if not child:
        before.commit()
        with topic.prepare(b"of the child", queue=0):
            pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert before.commit().offset == 0
    assert bodies(topic) == [b"of the parent", b"of the child"]


def test_what_is_wrong_is_told_and_prepares_nothing(node: warren.Node, topic: warren.Topic) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"queue": 2}, warren.UsageError, "from 0 to 1"),
        ({"key": ""}, warren.UsageError, "key"),
        ({"tag": "\x01"}, warren.UsageError, "tag"),
        ({"properties": {"TRAN_MSG": "x"}}, warren.UsageError, "TRAN_MSG"),
        ({"properties": 7}, warren.UsageError, "properties"),
        ({"tag": "t" * 32740}, warren.MessageTooLarge, "is prepared"),
        ({"body": b"x" * 400_000}, warren.MessageTooLarge, "bytes"),
        ({"timeout": -1}, warren.UsageError, "timeout"),
    ]
    for told, error, says in wrong:
        with pytest.raises(error, match=says):
            topic.prepare(**{"body": b"x", **told})
    for message_id, says in (("x", "not a message id"), (7, "is a str"), ("01" * 8 + "00" * 8, "of this node")):
        with pytest.raises(warren.UsageError, match=says):
            topic.half(message_id)  # type: ignore[arg-type]
    plain = topic.append(b"plain", queue=0)
    for place in (plain.message_id, f"{0:016X}{1 << 50:016X}"):
        for finish in (warren.Half.commit, warren.Half.rollback):
            unknown = topic.half(place)
            with pytest.raises(warren.HalfNotFound, match=f"topic '{topic.name}': .*has no half message"):
                finish(unknown)
            assert unknown.state == "unknown"
    with pytest.raises(warren.UsageError, match="limit"):
        topic.halves(0)
    with pytest.raises(warren.UsageError, match="on_check must be a function"):
        node.topic(topic.name, on_check=True)  # type: ignore[arg-type]
    with pytest.raises(warren.UsageError):
        topic.prepare(b"x").commit(timeout=-1)
    assert topic.stats()["halves"] == 1


def test_as_many_as_the_setting_says(topic: warren.Topic) -> None:
    halves = [topic.prepare(b"%d" % n) for n in range(20)]
    with pytest.raises(warren.LimitError, match="half_messages_max"):
        topic.prepare(b"one too many")
    assert [half.message_id for half in topic.halves()] == [half.message_id for half in halves]
    halves[7].rollback()
    topic.prepare(b"there is room")


def test_a_worker_that_stands_still_is_waited_for_as_long_as_is_said(running: RealNode, topic: warren.Topic) -> None:
    half = topic.prepare(b"x")
    worker = running.pids()["topic_worker"]
    os.kill(worker, signal.SIGSTOP)
    try:
        for call in (topic.halves, half.commit, half.rollback, topic.half(half.message_id).commit):
            with pytest.raises(warren.TimedOut, match=f"topic '{topic.name}'"):
                call(timeout=0.1)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert topic.halves(timeout=None) == [], "it did what it was asked first"
    assert half.commit() == topic.half(half.message_id).commit()
    with pytest.raises(warren.UsageError, match="timeout"):
        topic.halves(timeout=-1)


def test_what_a_deleted_topic_had_is_gone(node: warren.Node, topic: warren.Topic) -> None:
    half = topic.prepare(b"x")
    topic.delete()
    with pytest.raises(warren.TopicNotFound):
        half.commit()
    again = node.topic(topic.name, queues=2)
    assert (again.halves(), again.stats()["halves"]) == ([], 0)
    with pytest.raises(warren.HalfNotFound):
        again.half(half.message_id).commit()


def test_a_list_says_what_was_given(topic: warren.Topic) -> None:
    half = topic.prepare(b"body", key=["a", "b"], tag="T", properties={"x": "y"}, queue=1)
    (found,) = topic.halves()
    assert (found.message_id, found.body, found.queue, found.key, found.keys) == (
        *(half.message_id, b"body", 1),
        *("a", ("a", "b")),
    )
    assert (found.tag, found.properties, found.damaged) == ("T", {"x": "y"}, False)
    assert found.born_timestamp <= found.timestamp <= time.time() * 1000
    assert half.message_id in repr(found)


# -- check-back -----------------------------------------------------------------------------------------------------


def test_those_left_behind_are_answered_for(node: warren.Node, topic: warren.Topic) -> None:
    answers = {b"yes": True, b"commit": "commit", b"no": False, b"rollback": "rollback"}
    for body in answers:
        topic.prepare(body, key="k", queue=0)
    asked: list[warren.HalfMessage] = []

    def check(half: warren.HalfMessage) -> object:
        assert threading.current_thread() is not threading.main_thread()
        asked.append(half)
        return answers[half.body]

    node.topic(topic.name, on_check=check)
    wait_until(lambda: not topic.stats()["halves"], 20, what="answers")
    assert sorted(half.body for half in asked) == sorted(answers)
    assert {(half.key, half.asked, half.queue) for half in asked} == {("k", 1, 0)}
    wait_until(lambda: sorted(bodies(topic)) == [b"commit", b"yes"], 10)


def test_the_preparer_died_and_another_process_knows(running: RealNode, node: warren.Node, topic: warren.Topic) -> None:
    child = os.fork()
    if not child:
        with warren.attach(running.directory) as mine:
            mine.topic(topic.name, create=False).prepare(b"of a dead process", queue=0)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    node.topic(topic.name, on_check=lambda half: half.body == b"of a dead process")
    wait_until(lambda: bodies(topic) == [b"of a dead process"], 20)
    assert topic.stats()["halves"] == 0


def test_unknown_is_asked_again_and_put_aside_in_the_end(
    node: warren.Node, topic: warren.Topic, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[bytes, int]] = []
    ways: dict[bytes, Any] = {b"none": None, b"word": "unknown", b"error": ZeroDivisionError("x"), b"nonsense": 7}

    def check(half: warren.HalfMessage) -> object:
        told.append((half.body, half.asked))
        if isinstance(ways[half.body], Exception):
            raise ways[half.body]
        return ways[half.body]

    halves = [topic.prepare(body, queue=0) for body in ways]
    with caplog.at_level(logging.INFO, "warren.halves"):
        node.topic(topic.name, on_check=check)
        wait_until(lambda: not topic.stats()["halves"], 30, what="the last questions")
    assert sorted(told) == sorted((body, count) for body in ways for count in (1, 2, 3))
    with pytest.raises(warren.HalfFinished, match="because nobody answered for it"):
        halves[0].commit()
    assert bodies(topic) == []
    texts = [record.getMessage() for record in caplog.records]
    assert sum("on_check raised" in text for text in texts) == 3
    assert sum("on_check returned 7" in text for text in texts) == 3


def test_who_is_asked_ends_with_its_node(running: RealNode, topic: warren.Topic) -> None:
    asked = threading.Event()

    def check(_half: warren.HalfMessage) -> None:
        asked.set()

    with warren.attach(running.directory) as mine:
        mine.topic(topic.name, on_check=check)
        topic.prepare(b"x", queue=0)
        assert asked.wait(20)
    assert not [thread for thread in threading.enumerate() if thread.name == "warren-halves"]
    gc.collect()
    with warren.attach(running.directory) as mine:  # another function in its place
        mine.topic(topic.name, on_check=check)
        mine.topic(topic.name, on_check=lambda _half: False)
        wait_until(lambda: not topic.stats()["halves"], 20)


# -- asyncio --------------------------------------------------------------------------------------------------------


def test_in_an_event_loop(running: RealNode, topic: warren.Topic) -> None:
    async def program() -> None:
        async with warren.aio.attach(running.directory) as node:
            there = await node.topic(topic.name)
            half = await there.prepare(b"one", key="k", queue=0)
            assert (half.state, half.topic, half.position) == ("pending", topic.name, None)
            assert [one.message_id for one in await there.halves()] == [half.message_id]
            position = await half.commit()
            assert position == await (await there.half(half.message_id)).commit() == half.position
            async with await there.prepare(b"two", queue=0) as second:
                assert second.message_id in repr(second)
            assert second.state == "committed"
            with pytest.raises(ZeroDivisionError):
                async with await there.prepare(b"three", queue=0) as third:
                    _ = 1 // 0
            with pytest.raises(warren.HalfFinished):
                await third.commit()
            await third.rollback()
            loop = asyncio.get_running_loop()
            asked: asyncio.Future[bytes] = loop.create_future()

            async def check(left: warren.aio.HalfMessage) -> bool:
                assert asyncio.get_running_loop() is loop
                asked.set_result(left.body)
                return True

            await there.prepare(b"left behind", queue=0)
            await node.topic(topic.name, on_check=check)
            assert await asyncio.wait_for(asked, 20) == b"left behind"
            answer = await there.read(0, 2, timeout=20)
            assert [record.body for record in answer.records] == [b"left behind"]

    asyncio.run(program())
    assert bodies(topic) == [b"one", b"two", b"left behind"]


# -- take-over ------------------------------------------------------------------------------------------------------


def test_they_outlive_the_worker_and_the_node(tmp_path: Path) -> None:
    with RealNode(tmp_path / "data", **SIZES) as running:
        with warren.attach(running.directory) as node:
            topic = node.topic("orders", queues=1)
            halves = [topic.prepare(b"%d" % n) for n in range(6)]
            first = halves[0].commit()
            halves[1].rollback()
            running.kill("topic_worker")
            assert topic.half(halves[0].message_id).commit() == first
            second = halves[2].commit()
            assert second.offset == 1
        running.kill_all()
        running.start()
        with warren.attach(running.directory) as node:
            topic = node.topic("orders", create=False)
            assert [half.body for half in topic.halves()] == [b"3", b"4", b"5"]
            assert topic.half(halves[2].message_id).commit() == second
            with pytest.raises(warren.HalfFinished):
                topic.half(halves[1].message_id).commit()
            for half in halves[3:]:
                topic.half(half.message_id).commit()
            wait_until(lambda: bodies(topic) == [b"0", b"2", b"3", b"4", b"5"], 10)
            pending = topic.prepare(b"pending")
        running.stop()
        for options in ((), ("--repair",)):  # what is derived is made of the same log
            assert (
                json.loads(command_line.warren("check", running.directory, *options, "--json").stdout)["problems"] == []
            )
        (running.directory / "topics" / "checkpoint").unlink()
        running.start()
        with warren.attach(running.directory) as node:
            topic = node.topic("orders", create=False)
            assert bodies(topic) == [b"0", b"2", b"3", b"4", b"5"]
            assert topic.half(pending.message_id).commit().offset == 5
