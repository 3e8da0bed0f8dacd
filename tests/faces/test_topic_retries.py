"""Goal: a message that a reader could not handle comes again to its group as it was, to one of its readers, so often
as it was told; then it is a dead letter. It is passed when that is confirmed, and not before; others go on in order.
Its topics belong to the group, and go with it.

Method: a real node; readers of several clients in this process, and of processes that are killed; a topic worker that
is stopped and killed.
"""

import asyncio
import itertools
import math
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
import warren.aio
from warren.engine.topics.formats import DELAY_LEVELS_MS
from warren.workers.client import retried
from warren.workers.faces import group_places, topic_retries
from warren.workers.faces.topic_reader import Commit

from support.real_node import RealNode
from support.seeds import new_seed
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration

TIMEOUT = 60 * patience()
SOON = 0.02


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("node") / "data", group_release_s=3) as running:
        yield running


@pytest.fixture(scope="module")
def directory(running: RealNode) -> Path:
    return running.directory


@pytest.fixture
def topic(node: warren.Node, name: str) -> Iterator[warren.Topic]:
    topic = node.topic(name, queues=2)
    yield topic
    if name in node.topics():
        topic.delete()
    assert [left for left in node.topics(all=True) if name in left] == []


def retry_name(topic: warren.Topic, group: str = "g") -> str:
    return f"%RETRY%{group}+{topic.name}"


def test_it_comes_again_as_it_was_and_is_a_dead_letter_in_the_end(topic: warren.Topic) -> None:
    told = {"origin": "EWR"}
    position = topic.append(b"late", key=["k", "l"], tag="UA", properties=told, queue=1)
    topic.append_many([b"%d" % n for n in range(5)], queue=1)
    with topic.reader(group="g", max_reconsume_times=2) as reader:
        first = reader.get(TIMEOUT)
        assert [reader.get(TIMEOUT).body for _ in range(5)] == [b"%d" % n for n in range(5)]
        reader.retry(first, delay=SOON)
        for times in (1, 2):
            again = reader.get(TIMEOUT)
            assert (again.queue, again.offset, again.physical_offset) == (1, 0, position.physical_offset)
            assert (again.body, again.keys, again.tag) == (b"late", ("k", "l"), "UA")
            assert (again.message_id, again.timestamp) == (position.message_id, first.timestamp)
            assert (again.born_timestamp, again.reconsume_times) == (first.born_timestamp, times)
            assert again.properties == {**told, retried.PLACE: f"1 {times - 1}"}
            reader.retry(again, delay=SOON)
        assert reader.get_many(timeout=0.1) == []
        reader.commit()
        told_of = topic.group("g")
        assert told_of["lag"] == 0
        assert told_of["retry"] == {"topic": retry_name(topic), "delayed": 0, "lag": 0}
        assert told_of["dead"] == {"topic": f"%DLQ%g+{topic.name}", "messages": 1}
    dead = topic.dead_letters("g")
    (letter,) = dead.read(queue=1).records
    assert (letter.body, letter.key, letter.tag, letter.reconsume_times) == (b"late", "k", "UA", 2)
    wanted = {
        "DLQ_ORIGIN_TOPIC": topic.name,
        "DLQ_ORIGIN_QUEUE": "1",
        "DLQ_ORIGIN_OFFSET": "0",
        "DLQ_ORIGIN_MESSAGE_ID": position.message_id,
    }
    assert {**told, **wanted}.items() <= letter.properties.items()
    assert dead.find("l") == [letter]


def test_its_delay_is_by_how_often_it_was_tried(topic: warren.Topic) -> None:
    """RocketMQ's levels from the third on; no test waits ten seconds."""
    record = topic.read(queue=topic.append(b"m").queue).records[0]
    delays = []
    for times in range(18):
        packed = retried.retry(record, topic.name, times, None).properties
        level = packed.rsplit(b"DELAY\x01", 1)[1].removesuffix(b"\x02")
        delays.append(DELAY_LEVELS_MS[int(level) - 1] // 1000)
    minutes = [60 * minute for minute in (*range(1, 11), 20, 30, 60, 120, 120, 120)]
    assert delays == [10, 30, *minutes]
    with topic.reader(group="g") as reader:
        reader.retry(reader.get(TIMEOUT))
        assert topic.group("g")["retry"] == {"topic": retry_name(topic), "delayed": 1, "lag": 1}
        assert reader.get_many(timeout=0.3) == []


def test_what_cannot_be_given_back_is_not_passed(topic: warren.Topic) -> None:
    full = {"p": "x" * 32_700}
    topic.append_many([b"0", b"1", b"2"], properties=[None, full, None], queue=0)
    with topic.reader(group="g") as reader:
        assert reader.get(TIMEOUT).body == b"0"
        big = reader.get(TIMEOUT)
        for _ in range(2):
            with pytest.raises(warren.MessageTooLarge, match="offset 1 of queue 0 cannot be retried"):
                reader.retry(big)
            big = reader.get(TIMEOUT)
            assert big.offset == 1
        reader.commit()
        assert topic.group("g")["queues"][0]["committed"] == 2
        with pytest.raises(warren.MessageTooLarge):
            reader.retry(big)
        assert reader.get(TIMEOUT).body == b"2"  # it was committed: what a program has said counts


@pytest.mark.parametrize("commit", ["auto", "manual"])
def test_what_is_given_back_with_a_wrong_argument_is_handed_out_again(topic: warren.Topic, commit: Commit) -> None:
    topic.append_many([b"%d" % n for n in range(6)], queue=0)
    with topic.reader(group="g", commit=commit) as reader:
        for number, wrong in enumerate(({"delay": -1}, {"delay": 300_000}, {"delay": math.nan}, {"timeout": -1})):
            record = reader.get(TIMEOUT)
            assert record.body == b"%d" % number
            with pytest.raises(warren.UsageError, match=next(iter(wrong))):
                reader.retry(record, **wrong)
            assert reader.get(TIMEOUT).body == record.body
        assert reader.get(TIMEOUT).body == b"4"
        reader.commit()
        assert topic.group("g")["queues"][0]["committed"] == 5


def test_a_message_of_another_topic_takes_the_reader_nowhere(node: warren.Node, topic: warren.Topic) -> None:
    other = node.topic(f"{topic.name}-other", queues=2)
    for each in (topic, other):
        each.append_many([b"0", b"1", b"2"], queue=0)
    with topic.reader(group="g") as reader:
        assert reader.get(TIMEOUT).body == b"0"
        assert reader.get(TIMEOUT).body == b"1"
        with pytest.raises(warren.UsageError, match="another topic"):
            reader.retry(other.read(0).records[0])
        assert reader.get(TIMEOUT).body == b"2"
    other.delete()


@pytest.mark.parametrize("commit", ["auto", "manual"])
def test_what_was_retried_is_done_when_all_before_it_is(topic: warren.Topic, commit: Commit) -> None:
    """Also when the program says nothing more: the last one, a close, one that comes again, a dead letter."""
    topic.append_many([b"%d" % n for n in range(4)], queue=0)
    seen: list[tuple[bytes, int]] = []

    def taken(reader: warren.Reader) -> warren.Record:
        record = reader.get(TIMEOUT)
        seen.append((record.body, record.reconsume_times))
        return record

    with topic.reader(group="g", commit=commit) as reader:
        taken(reader)
        if commit == "manual":
            reader.commit()
        reader.retry(taken(reader), delay=SOON)
    with topic.reader(group="g", commit=commit) as reader:
        taken(reader)
        if commit == "manual":
            reader.commit()
        last = taken(reader)
        reader.retry(last, delay=SOON)
        while last.reconsume_times == 0 or (last.body, 1) not in seen[:-1]:
            last = taken(reader)
            reader.retry(last, delay=SOON)
    assert topic.group("g")["queues"][0]["committed"] == 4
    with topic.reader(group="g", commit=commit, max_reconsume_times=1) as reader:
        for _ in range(2):
            reader.retry(taken(reader))
    with topic.reader(group="g", commit=commit) as reader:
        assert reader.get_many(timeout=0.1) == []
    assert len(seen) == len(set(seen)), seen
    assert topic.group("g")["dead"]["messages"] == 2
    assert topic.group("g")["lag"] == 0


def test_what_was_retried_waits_for_those_before_it(topic: warren.Topic) -> None:
    """Of a group that commits by hand; it is committed without a word more when they are."""
    topic.append_many([b"%d" % n for n in range(4)], queue=0)
    committed = lambda: topic.group("g")["queues"][0]["committed"]  # noqa: E731
    with topic.reader(group="g", commit="manual") as reader:
        first, second, third, _fourth = reader.get_many(4, TIMEOUT)
        reader.retry(third, delay=3600)
        reader.retry(second, delay=3600)
    assert committed() is None
    assert [row["name"] for row in topic.groups()] == ["g"]
    assert topic.group("g")["lag"] == 6
    with topic.reader(group="g", commit="manual") as reader:
        first, second, third, _fourth = reader.get_many(4, TIMEOUT)
        reader.retry(second, delay=3600)
        reader.retry(third, delay=3600)
        reader.commit(first)
        wait_until(lambda: reader.get_many(timeout=0.05) == [] and committed() == 3, 30, what="a commit of the three")
        reader.retry(first, delay=3600)  # it was done; the program says now that it was not
        for record in (first, second, third):
            with pytest.raises(warren.UsageError, match=f"offset {record.offset} of queue 0 was retried"):
                reader.retry(record)
    assert committed() == 3
    assert topic.group("g")["retry"]["delayed"] == 5


def test_what_did_not_match_before_it_holds_up_no_retried_message(topic: warren.Topic) -> None:
    topic.append_many([b"%d" % n for n in range(9)], tags=["x", "x", "y", "x", "y", "x", "x", "y", "x"], queue=0)
    with topic.reader(group="g", commit="manual", tags="y") as reader:
        for _ in range(2):
            reader.retry(reader.get(TIMEOUT), delay=3600)
            reader.commit()
        reader.retry(reader.get(TIMEOUT), delay=3600)
    assert topic.group("g")["queues"][0]["committed"] == 9
    with topic.reader(group="h", commit="manual", tags="y") as reader:
        reader.retry(reader.get(TIMEOUT), delay=3600)
    assert topic.group("h")["queues"][0]["committed"] == 4


def test_a_seek_is_not_committed_by_a_retry(topic: warren.Topic) -> None:
    topic.append_many([b"%d" % n for n in range(4)], queue=0)
    with topic.reader(group="g", commit="manual") as reader:
        reader.get(TIMEOUT)
        reader.commit()
        reader.seek(0, 2)
        reader.retry(reader.get(TIMEOUT), delay=3600)
        reader.seek(0, 2)
        reader.retry(reader.get(TIMEOUT), delay=3600)  # handed out anew
    assert topic.group("g")["queues"][0]["committed"] == 1


def test_so_many_retries_of_a_queue_are_remembered(topic: warren.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_places, "RETRIED_MAX", 3)
    topic.append_many([b"%d" % n for n in range(20)], queue=0)
    with topic.reader(group="g", commit="manual") as reader:
        records = reader.get_many(20, TIMEOUT)
        for record in records[1:]:
            reader.retry(record, delay=3600)
        with pytest.raises(warren.UsageError, match="was retried"):
            reader.retry(records[1])  # not committed: it is known, however many there are
        reader.commit(records[0])
    assert topic.group("g")["queues"][0]["committed"] == 20


def test_a_topic_worker_that_stands_still_or_dies(running: RealNode, topic: warren.Topic) -> None:
    topic.append_many([b"%d" % n for n in range(4)], queue=0)
    with topic.reader(group="g", commit="manual") as reader:
        first, second = reader.get(TIMEOUT), reader.get(TIMEOUT)
        assert (first.body, second.body) == (b"0", b"1")
        reader.retry(first, delay=SOON)
        worker = running.pids()["topic_worker"]
        os.kill(worker, signal.SIGSTOP)
        try:
            with pytest.raises(warren.TimedOut):
                reader.retry(second, delay=SOON, timeout=0.2)
        finally:
            os.kill(worker, signal.SIGKILL)
        bodies: list[bytes] = []
        while len(set(bodies)) < 4:
            bodies += [record.body for record in reader.get_many(timeout=TIMEOUT)]
        assert [body for body in bodies if body != b"0"][:3] == [b"1", b"2", b"3"]
        reader.commit()
        assert topic.group("g")["queues"][0]["lag"] == 0


def test_readers_share_what_comes_again(directory: Path, topic: warren.Topic) -> None:
    topic.append_many([b"%d" % n for n in range(40)], queue=0)
    topic.append_many([b"%d" % n for n in range(40, 80)], queue=1)
    with warren.attach(directory) as other, topic.reader(group="g") as one, other.topic(topic.name).reader("g") as two:
        readers, got = (one, two), {0: 0, 1: 0}
        first: set[bytes] = set()
        again: list[bytes] = []
        for number in itertools.cycle((0, 1)):
            for record in readers[number].get_many(timeout=0.05):
                if record.reconsume_times:
                    again.append(record.body)
                    got[number] += 1
                else:
                    first.add(record.body)
                    readers[number].retry(record, delay=SOON)
            if len(set(again)) == 80:
                break
        assert first == set(again) == {b"%d" % n for n in range(80)}
        assert min(got.values()) > 0


def test_a_reader_that_is_killed_with_one_at_hand(directory: Path, topic: warren.Topic) -> None:
    topic.append(b"m", queue=0)
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            with warren.attach(directory) as node:
                reader = node.topic(topic.name).reader(group="g")
                reader.retry(reader.get(TIMEOUT), delay=SOON)
                assert reader.get(TIMEOUT).reconsume_times == 1
                os.write(tell, b"x")
                signal.pause()
        finally:
            os._exit(1)
    assert os.read(ready, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with topic.reader(group="g") as reader:
        found = reader.get(TIMEOUT)
        assert (found.body, found.offset) == (b"m", 0)
        if not found.reconsume_times:  # the original was not committed: it is there besides
            assert reader.get(TIMEOUT).reconsume_times == 1
    os.close(ready)
    os.close(tell)


def test_manual_commits_of_what_came_again(topic: warren.Topic) -> None:
    topic.append_many([b"0", b"1", b"2"], queue=0)
    with topic.reader(group="g", commit="manual") as reader:
        for record in reader.get_many(3, TIMEOUT):
            reader.retry(record, delay=SOON)
        reader.commit()
        wait_until(lambda: topic.group("g")["retry"]["delayed"] == 0, 30, what="that they came")
        again: list[warren.Record] = []
        while len(again) < 3:
            again += reader.get_many(timeout=TIMEOUT)
        assert topic.group("g")["lag"] == 3
        reader.commit(again[1])
        assert topic.group("g")["lag"] == 1
        assert [row["lag"] for row in topic.group("g")["queues"]] == [0, 0]
    with topic.reader(group="g", commit="manual") as reader:
        (last,) = reader.get_many(3, TIMEOUT)
        assert last == again[2]
        with pytest.raises(warren.UsageError, match="was not handed out by this reader"):
            reader.commit(again[1])
        reader.commit()
    assert topic.group("g")["lag"] == 0


def test_dead_letters_are_read_by_groups_as_any_topic(topic: warren.Topic) -> None:
    topic.append(b"m", queue=0)
    with topic.reader(group="g", max_reconsume_times=0) as reader:
        reader.retry(reader.get(TIMEOUT))
        assert reader.get_many(timeout=0) == []
        assert topic.group("g")["retry"] is None
    dead = topic.dead_letters("g")
    with dead.reader(group="care", max_reconsume_times=1) as reader:
        letter = reader.get(TIMEOUT)
        reader.retry(letter, delay=SOON)
        again = reader.get(TIMEOUT)
        assert again.reconsume_times == 1
        assert again.properties["DLQ_ORIGIN_TOPIC"] == topic.name
        assert again.properties.items() - letter.properties.items() == {(retried.PLACE, "0 0")}
        reader.retry(again)
        assert reader.get_many(timeout=0) == []
        reader.commit()
    assert dead.dead_letters("care").read(0).records[0].properties["DLQ_ORIGIN_TOPIC"] == dead.name


def test_names_and_who_has_them(node: warren.Node, topic: warren.Topic) -> None:
    for name in ("%RETRY%g", "%DLQ%g", "%", "%RETRY%g+none"):
        with pytest.raises(warren.UsageError, match=r"reserved for topics of groups|there is no topic"):
            node.topic(name)
    with pytest.raises(warren.TopicNotFound, match="from the first message"):
        node.topic(retry_name(topic), create=False)
    with pytest.raises(warren.TopicNotFound, match="no dead letters"):
        topic.dead_letters("g")
    topic.set(retention_s=1000)
    topic.append_many([b"0", b"1"], queue=0)
    with topic.reader(group="g") as reader:
        reader.retry(reader.get(TIMEOUT), delay=3600)
        assert topic.name in node.topics()
        assert retry_name(topic) not in node.topics()
        assert retry_name(topic) in node.topics(all=True)
        again = node.topic(retry_name(topic))
        assert (again.queues, again.stats()["delayed"]) == (2, 1)
        with pytest.raises(warren.UsageError, match="opened as it is"):
            node.topic(retry_name(topic), queues=2)
        topic.set(retention_bytes=1 << 30)
        declared = {row["name"]: row for row in node.status()["topics"]}
        for name in (topic.name, again.name):
            assert (declared[name]["retention_s"], declared[name]["retention_bytes"]) == (1000, 1 << 30)

        def lag() -> int:
            rows = {row["name"]: row["groups"] for row in node.status()["topics"]}
            return next((int(group["lag"]) for group in rows[topic.name] if group["name"] == "g"), -1)

        reader.commit()
        wait_until(lambda: lag() == 2, 30, what="a lag of one message that was not read, and one that comes again")
        with pytest.raises(warren.UsageError, match="has members"):
            topic.delete_group("g")
    topic.delete_group("g")
    assert retry_name(topic) not in node.topics(all=True)
    assert topic.groups() == []
    with pytest.raises(warren.UsageError, match="no group"):
        topic.delete_group("g")


def test_a_group_of_which_a_topic_was_left_is_deleted_by_a_second_call(
    node: warren.Node, topic: warren.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append(b"m", queue=0)
    with topic.reader(group="g") as reader:
        reader.retry(reader.get(TIMEOUT), delay=3600)
        reader.commit()
    client = topic._client

    def dies(op: str, **_fields: object) -> None:
        raise KeyboardInterrupt(op)

    monkeypatch.setattr(client, "declare", dies)
    with pytest.raises(KeyboardInterrupt, match="delete_group_topics"):
        topic.delete_group("g")
    monkeypatch.undo()
    assert [row["name"] for row in topic.groups()] == ["g"]
    assert retry_name(topic) in node.topics(all=True)
    topic.delete_group("g")
    assert topic.groups() == []
    assert retry_name(topic) not in node.topics(all=True)


def test_the_retry_topic_goes_under_a_reader(node: warren.Node, topic: warren.Topic) -> None:
    topic.append_many([b"0", b"1"], queue=0)
    with topic.reader(group="g") as reader:
        first = reader.get(TIMEOUT)
        assert reader.get(TIMEOUT).body == b"1"
        reader.retry(first, delay=SOON)
        again = reader.get(TIMEOUT)
        node.topic(retry_name(topic)).delete()
        assert reader.get_many(timeout=0.2) == []
        with pytest.raises(warren.UsageError, match="was not handed out"):
            reader.retry(again)
        topic.append(b"2", queue=0)
        reader.retry(reader.get(TIMEOUT), delay=SOON)
        assert reader.get(TIMEOUT).body == b"2"


def test_bad_input(node: warren.Node, topic: warren.Topic) -> None:
    topic.append_many([b"0", b"1"], queue=0)
    with topic.reader() as reader, pytest.raises(warren.UsageError, match="no group"):
        reader.retry(reader.get(TIMEOUT))
    for wrong in (-1, 1.5, "3", True):
        with pytest.raises(warren.UsageError, match="max_reconsume_times"):
            topic.reader(group="g", max_reconsume_times=wrong)  # type: ignore[arg-type]
    with pytest.raises(warren.UsageError, match="give group="):
        topic.reader(max_reconsume_times=3)
    other = node.topic(f"{topic.name}-other", queues=2)
    other.append(b"foreign", queue=0)
    with topic.reader(group="g") as reader:
        reader.get(TIMEOUT)
        for call, match in (
            (lambda: reader.retry(b"m"), "not a bytes"),  # type: ignore[arg-type]
            (lambda: reader.retry(topic.read(0, 1).records[0]), "was not handed out"),
            (lambda: reader.retry(other.read(0).records[0]), "another topic"),
        ):
            with pytest.raises(warren.UsageError, match=match):
                call()
        assert topic.group("g")["retry"] is None
    other.delete()
    long = "g" * 240
    with topic.reader(group=long) as reader, pytest.raises(warren.InvalidName, match="choose a shorter name"):
        reader.retry(reader.get(TIMEOUT))


def test_a_flood_of_retries_starves_nobody(topic: warren.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its turn while the other never ends."""
    monkeypatch.setattr(topic_retries, "TURN", 5)
    with topic.reader(group="g", max_reconsume_times=1000) as reader:
        topic.append_many([b"again"] * 30, queue=0)
        seen = {"again": 0, "first": 0}
        for _ in range(30):
            reader.retry(reader.get(TIMEOUT), delay=0)
        topic.append_many([b"first"] * 2000, queue=1)
        while seen["again"] < 50 or seen["first"] < 50:
            record = reader.get(TIMEOUT)
            if record.body == b"again":
                reader.retry(record, delay=0)
            seen[record.body.decode()] += 1
            if seen["first"] == 1900:
                topic.append_many([b"first"] * 2000, queue=1)
                seen["first"] = 60


def test_in_asyncio(directory: Path, topic: warren.Topic) -> None:
    topic.append(b"m", key="k", queue=1)

    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            same = await node.topic(topic.name)
            async with same.reader(group="g", max_reconsume_times=1) as reader:
                await reader.retry(await reader.get(TIMEOUT), delay=SOON)
                again = await reader.get(TIMEOUT)
                assert (again.body, again.offset, again.reconsume_times) == (b"m", 0, 1)
                await reader.retry(again)
                assert await reader.get_many(timeout=0) == []
                await reader.commit()
            dead = await same.dead_letters("g")
            assert [letter.body for letter in (await dead.read(1)).records] == [b"m"]
            assert dead.name in await node.topics(all=True)
            assert dead.name not in await node.topics()

    asyncio.run(main())


TRIES = 3


def work(directory: Path, name: str, seed: int, file: int) -> None:
    """A member that fails at every other message, and notes what it has handled, and what it saw for the last time."""
    rng = random.Random(seed)
    with warren.attach(directory) as node, node.topic(name).reader(group="g", max_reconsume_times=TRIES) as reader:
        for record in reader:
            if rng.random() < 0.5:
                reader.retry(record, delay=rng.choice((0, SOON)))
            else:
                os.write(file, record.body + b"\n")


def test_members_and_workers_that_are_killed_leave_no_message_behind(
    running: RealNode, topic: warren.Topic, tmp_path: Path
) -> None:
    """Each is handled by somebody, or is a dead letter."""
    seed = new_seed()
    rng = random.Random(seed)
    handled = tmp_path / "handled"
    file = os.open(handled, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    bodies = [b"%d" % n for n in range(400)]
    for queue in (0, 1):
        topic.append_many(bodies[queue::2], queue=queue)
    children: list[int] = []

    def begin() -> None:
        child = os.fork()
        if not child:
            try:
                work(running.directory, topic.name, seed + len(children), file)
            finally:
                os._exit(1)
        children.append(child)

    def kill(child: int) -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        children.remove(child)

    def lag() -> int:
        try:
            return int(topic.group("g")["lag"])
        except warren.UsageError:  # nobody reads, and nothing is committed
            return -1

    def notes() -> int:
        return handled.read_bytes().count(b"\n")

    try:
        for _ in range(2):
            begin()
        for number in range(10):
            seen = notes()
            wait_until(lambda seen=seen: notes() > seen or lag() == 0, TIMEOUT, what="some work")
            kill(rng.choice(children))
            if number == 5:
                running.kill("topic_worker")
            begin()
        wait_until(lambda: lag() == 0, TIMEOUT, what="that all is done")
    finally:
        for child in children[:]:
            kill(child)
        os.close(file)
    dead = topic.dead_letters("g")
    given_up = {letter.body for queue in range(dead.queues) for letter in dead.read(queue, max=1000).records}
    done = set(handled.read_bytes().split())
    print(f"{len(done)} were handled, {len(given_up)} given up")
    assert done | given_up == set(bodies)
    assert len(given_up) > 5
