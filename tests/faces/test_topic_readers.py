"""Goal: a reader gives each message once, in order, and keeps what it says it keeps; members of a group share its
queues and hear of each other at once; what ends, is gone or is wrong is told in words, and no call outlasts its
timeout.

Method: a real node; readers of several clients in this process, threads, a child of fork.
"""

import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

import warren
from warren.engine.topics import control
from warren.workers.client import beats as beating
from warren.workers.client.beats import beats
from warren.workers.faces import topic_reader

from support.real_node import RealNode
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration

QUEUES, MESSAGES = 4, 50
TIMEOUT = 60 * patience()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing is taken away because of the time: what is given back is given back by its reader."""
    with RealNode(tmp_path_factory.mktemp("node") / "data", group_release_s=3600) as running:
        yield running.directory


@pytest.fixture
def topic(node: warren.Node, name: str) -> warren.Topic:
    topic = node.topic(name, queues=QUEUES)
    for queue in range(QUEUES):
        topic.append_many([b"%d" % n for n in range(MESSAGES)], tags=["Aa", "BB"] * (MESSAGES // 2), queue=queue)
    return topic


@pytest.fixture
def other(directory: Path, topic: warren.Topic) -> Iterator[warren.Topic]:
    """The same topic of another client."""
    with warren.attach(directory) as attached:
        yield attached.topic(topic.name)


def offsets(topic: warren.Topic, group: str) -> list[int]:
    """What is committed."""
    client = topic._client
    declared = client.catalog().topics[topic.name]
    return client.ask_topics(control.DescribeGroup(declared.id, group), control.Described, TIMEOUT).offsets


def take(reader: warren.Reader, n: int) -> list[tuple[int, int]]:
    """(queue, offset) of the next n messages, each asked for by itself."""
    return [(record.queue, record.offset) for record in (reader.get(TIMEOUT) for _ in range(n))]


def in_order(found: list[tuple[int, int]]) -> dict[int, list[int]]:
    """Offsets by queue."""
    return {queue: [offset for of, offset in found if of == queue] for queue, _offset in found}


def test_all_messages_once_in_order_and_in_turns(topic: warren.Topic) -> None:
    with topic.reader(prefetch=20) as reader:
        assert reader.assigned == list(range(QUEUES))
        found = take(reader, QUEUES * MESSAGES)
        assert in_order(found) == {queue: list(range(MESSAGES)) for queue in range(QUEUES)}
        assert {queue for queue, _offset in found[:20]} == set(range(QUEUES))  # none waits for the end of another
        with pytest.raises(warren.QueueEmpty, match=r"no message for this reader within 0 s"):
            reader.get(timeout=0)
        assert reader.get_many(timeout=0) == []
        topic.append(b"new", queue=2)
        assert reader.get(timeout=0).body == b"new"  # what was confirmed is there
    with topic.reader() as reader:  # nothing is kept
        many = reader.get_many(10_000, TIMEOUT)
        assert len(many) == QUEUES * MESSAGES + 1
        assert len(reader.get_many(10_000, 0)) == 0


def test_what_was_asked_behind_is_done_and_the_next_reader_goes_on_there(topic: warren.Topic) -> None:
    reader = topic.reader(group="report", prefetch=1)
    first = take(reader, 10)
    reader.close()
    with topic.reader(group="report", prefetch=1) as reader:
        again = take(reader, QUEUES * MESSAGES - 9)  # the last one was handed out, and nothing was asked for behind it
        assert set(again) & set(first) == {first[-1]}
        assert set(again) | set(first) == {(queue, offset) for queue in range(QUEUES) for offset in range(MESSAGES)}
        assert len(set(again)) == len(again)
        reader.commit()
        assert offsets(topic, "report") == [MESSAGES] * QUEUES
        assert reader.lag() == dict.fromkeys(range(QUEUES), 0)
    with topic.reader(group="another") as reader:  # each group for itself
        assert reader.lag() == dict.fromkeys(range(QUEUES), MESSAGES)


def test_an_error_in_the_program_commits_nothing_of_what_it_was_at(topic: warren.Topic) -> None:
    def work() -> None:
        with topic.reader(group="report", prefetch=1) as reader:
            for number, _record in enumerate(reader):
                assert number < QUEUES, "the program has an error"

    with pytest.raises(AssertionError, match="an error"):
        work()
    assert offsets(topic, "report") == [1] * QUEUES  # and not the second of the first queue


def test_the_end_of_a_with_block_is_done_with_all(topic: warren.Topic) -> None:
    """A job that takes what there is, once a day: one call, which no other follows."""

    def committed(group: str) -> int:
        return sum(max(0, offset) for offset in offsets(topic, group))

    for day in range(1, 6):
        with topic.reader(group="daily") as reader:
            left = 40
            while left:
                left -= len(reader.get_many(left, TIMEOUT))
        assert committed("daily") == 40 * day

    def fail(closes: bool) -> None:
        with topic.reader(group="fails") as reader:
            reader.get_many(10, TIMEOUT)
            if closes:
                reader.close()
            raise ZeroDivisionError

    for closes in (False, True):  # an exception says that something was perhaps not done
        with pytest.raises(ZeroDivisionError):
            fail(closes)
        assert committed("fails") == 0
    with topic.reader(group="by-hand", commit="manual") as reader:
        reader.get_many(10, TIMEOUT)
    assert committed("by-hand") == 0


def test_auto_commits_while_it_is_asked(topic: warren.Topic) -> None:
    with topic.reader(group="report") as reader:
        reader.get_many(QUEUES * MESSAGES, TIMEOUT)

        def committed() -> bool:
            assert reader.get_many(1, 0.01) == []
            return offsets(topic, "report") == [MESSAGES] * QUEUES

        wait_until(committed, 30, what="a commit without a word")


def test_manual_commits_what_the_program_says(topic: warren.Topic) -> None:
    with topic.reader(group="report", commit="manual", prefetch=QUEUES * 10) as reader:
        found = reader.get_many(25, TIMEOUT)
        assert reader.get_many(1, TIMEOUT)
        assert offsets(topic, "report") == [-1] * QUEUES
        reader.commit(found[3])
        assert offsets(topic, "report")[found[3].queue] == 4
        reader.commit(found[1])  # behind it already
        assert offsets(topic, "report")[found[3].queue] == 4
        last = topic.read(found[3].queue, MESSAGES - 1).records[0]
        with pytest.raises(warren.UsageError, match="was not handed out by this reader"):
            reader.commit(last)
        reader.commit()
        assert sum(offset for offset in offsets(topic, "report") if offset > 0) == 26
    assert sum(offset for offset in offsets(topic, "report") if offset > 0) == 26
    with topic.reader() as reader, pytest.raises(warren.UsageError, match="no group"):
        reader.commit()


def test_tags_by_hash_and_then_by_name(topic: warren.Topic) -> None:
    """`Aa` and `BB` have one hash."""
    with topic.reader(group="report", tags="Aa") as reader:
        found = reader.get_many(10_000, TIMEOUT)
        assert {record.tag for record in found} == {"Aa"}
        assert len(found) == QUEUES * MESSAGES // 2
        reader.commit()
        assert offsets(topic, "report") == [MESSAGES] * QUEUES  # what does not match is done, too
    with topic.reader(group="none", tags=["of", "these"]) as reader:
        assert reader.get_many(1, 0) == []
        wait_until(lambda: not reader.get_many(1, 0.01) and offsets(topic, "none") == [MESSAGES] * QUEUES, 30)


def test_where_a_group_begins(topic: warren.Topic, node: warren.Node, directory: Path) -> None:
    second = topic.read(1, 30).records[0]
    with topic.reader(group="late", start="latest") as reader:
        assert offsets(topic, "late") == [MESSAGES] * QUEUES  # it is known to all before the first message
        topic.append(b"new", queue=3)
        assert reader.get(TIMEOUT).body == b"new"
    when = datetime.fromtimestamp(second.timestamp / 1000, UTC)
    for number, start in enumerate((when, second.timestamp)):
        with topic.reader(group=f"time-{number}", start=start) as reader:
            found = reader.get_many(10_000, TIMEOUT)
            assert all(record.timestamp >= second.timestamp for record in found)
            assert any(record.offset == topic.offset_at(1, when) for record in found if record.queue == 1)
    for wrong in ("first", True, None, b"x"):
        with pytest.raises(warren.UsageError, match="start must be"):
            topic.reader(start=wrong)  # type: ignore[arg-type]


def test_seek(topic: warren.Topic) -> None:
    with topic.reader(group="report") as reader:
        reader.get_many(10_000, TIMEOUT)
        reader.commit()
        reader.seek(2, 40)
        assert take(reader, 10) == [(2, offset) for offset in range(40, 50)]
        reader.seek(1, "earliest")
        assert take(reader, 3) == [(1, 0), (1, 1), (1, 2)]
        reader.seek(1, "latest")
        with pytest.raises(warren.QueueEmpty):
            reader.get(0)
        reader.seek(0, datetime.fromtimestamp(0, UTC))
        assert reader.get(TIMEOUT).offset == 0
        reader.commit()
        assert offsets(topic, "report") == [1, 50, 50, 50]
        with pytest.raises(warren.UsageError, match="ends at offset 50"):
            reader.seek(0, 51)
        with pytest.raises(warren.UsageError, match="not this reader's now"):
            reader.seek(QUEUES, 0)
        for wrong in (-1, 1.5, "now", None):
            with pytest.raises(warren.UsageError, match="where"):
                reader.seek(0, wrong)  # type: ignore[arg-type]


def test_members_share_and_hear_of_each_other(topic: warren.Topic, other: warren.Topic) -> None:
    with topic.reader(group="report") as one:
        assert len(one.assigned) == QUEUES
        done = take(one, 7)
        two = other.reader(group="report")
        wait_until(lambda: one.get(TIMEOUT) and len(one.assigned) == QUEUES // 2, 30)  # it gives back when it is asked
        wait_until(lambda: two.get_many(1, 0) is not None and len(two.assigned) == QUEUES // 2, 30)
        assert not set(one.assigned) & set(two.assigned)
        assert done
        # asleep for messages it hears of the end of the other one, and goes on with its queues
        mine = set(one.assigned)
        two.get_many(10_000, 0)
        one.get_many(10_000, 0)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(one.get, TIMEOUT)
            two.close()
            queue = min(set(range(QUEUES)) - mine)
            wait_until(lambda: waiting.done() or len(one.assigned) == QUEUES, 30)
            topic.append(b"new", queue=queue)
            assert waiting.result(TIMEOUT).queue not in mine


def test_a_rebalance_commits_what_is_done_and_nothing_comes_twice(topic: warren.Topic, other: warren.Topic) -> None:
    found: list[tuple[int, int]] = []
    one = topic.reader(group="report", prefetch=8)
    found += take(one, 30)
    two = other.reader(group="report", prefetch=8)
    while len(found) < QUEUES * MESSAGES:
        for reader in (one, two):
            found += [(record.queue, record.offset) for record in reader.get_many(9, 0)]
    one.close()
    two.close()
    assert in_order(found) == {queue: list(range(MESSAGES)) for queue in range(QUEUES)}


def test_manual_queues_that_go_before_their_commit_are_told(topic: warren.Topic, other: warren.Topic) -> None:
    one = topic.reader(group="report", commit="manual", prefetch=QUEUES * MESSAGES)
    found = one.get_many(QUEUES * MESSAGES, TIMEOUT)
    with other.reader(group="report", commit="manual") as two:
        one.get_many(1, 0)
        gone = set(range(QUEUES)) - set(one.assigned)
        assert len(gone) == QUEUES // 2
        with pytest.raises(warren.Fenced, match=rf"queues \[{', '.join(map(str, sorted(gone)))}\] went to other"):
            one.commit()
        assert [offset >= 0 for offset in offsets(topic, "report")] == [queue not in gone for queue in range(QUEUES)]
        one.commit()  # said once
        with pytest.raises(warren.Fenced, match="went to another reader"):
            one.commit(next(record for record in found if record.queue in gone))
        again = two.get_many(10_000, TIMEOUT)
        assert {record.queue for record in again} == gone
        assert len(again) == len(gone) * MESSAGES
    one.close()


def test_a_commit_keeps_a_queue_of_which_something_is_not_committed(topic: warren.Topic, other: warren.Topic) -> None:
    """With commit(record) a program is at others of the batch still: they are not given away under its hands."""
    with topic.reader(group="report", commit="manual", prefetch=QUEUES * 10) as one:
        found = one.get_many(QUEUES * 10, TIMEOUT)
        with other.reader(group="report", commit="manual") as two:
            for record in found:
                one.commit(record)
            assert offsets(topic, "report") == [10] * QUEUES
            wait_until(lambda: two.get_many(1, 0.01) or len(two.assigned) == QUEUES // 2, 30)
            assert len(one.assigned) == QUEUES // 2


def test_what_a_commit_has_kept_the_next_get_gives_back(topic: warren.Topic, other: warren.Topic) -> None:
    with topic.reader(group="report", commit="manual", prefetch=QUEUES * 10) as one:
        found = one.get_many(QUEUES * 10, TIMEOUT)
        with other.reader(group="report", commit="manual") as two:
            one.commit(found[0])  # of each queue something is not committed
            two.get_many(1, 0)
            assert two.assigned == []
            one.get_many(1, 0)
            two.get_many(1, 0)
            assert len(two.assigned) == len(one.assigned) == QUEUES // 2
            with pytest.raises(warren.Fenced):
                one.commit()


def test_one_thread_at_a_time(topic: warren.Topic) -> None:
    with topic.reader(group="report", start="latest") as reader, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.get, TIMEOUT)
        wait_until(lambda: reader._inside, 30)
        for call in (lambda: reader.get(0), reader.commit, reader.lag, lambda: reader.seek(0, 0)):
            with pytest.raises(warren.UsageError, match="another thread is inside"):
                call()
        reader.close()  # of any thread
        with pytest.raises(warren.ClosedError, match="closed"):
            waiting.result(TIMEOUT)
        reader.close()
        with pytest.raises(warren.ClosedError, match="make another"):
            reader.get(0)
    assert list(reader) == []


def test_it_is_no_other_process_s(topic: warren.Topic) -> None:
    with topic.reader(group="report") as reader:
        take(reader, 1)
        with pytest.raises(TypeError, match="make a reader of its own"):
            pickle.dumps(reader)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                try:
                    reader.get(0)
                except warren.UsageError as error:
                    code = 0 if "fork" in str(error) else 2
                reader.close()
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert take(reader, 1)
        assert len(reader.assigned) == QUEUES


def test_a_reader_that_is_forgotten_leaves(topic: warren.Topic) -> None:
    reader = topic.reader(group="report")
    take(reader, 1)
    del reader
    with topic.reader(group="report") as reader:
        wait_until(lambda: reader.get_many(1, 0) is not None and len(reader.assigned) == QUEUES, 5)


def test_a_deleted_topic_is_said_once(node: warren.Node, topic: warren.Topic) -> None:
    with topic.reader(group="report") as reader:
        reader.get_many(10_000, TIMEOUT)
        deleter = threading.Timer(0.05, topic.delete)
        deleter.start()
        with pytest.raises(warren.TopicNotFound):
            reader.get(TIMEOUT)
        deleter.join()
        with pytest.raises(warren.TopicNotFound, match="declare it"):
            reader.get(0)
        reader.commit()  # of nothing
        node.topic(topic.name, queues=1).append(b"another topic's")
        assert reader.get(TIMEOUT).body == b"another topic's"
        assert reader.assigned == [0]


def test_messages_that_are_gone(topic: warren.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is removed yet: a look at the queue says so here, as the core will."""
    true_read = topic_reader.TopicReading.read

    def read(self: object, queue: int, offset: int, *rest: object, **named: object) -> warren.ReadResult:
        if queue == 1 and offset < 20:
            return warren.ReadResult(warren.ReadStatus.OFFSET_TOO_SMALL, [], 20, 20, MESSAGES)
        return true_read(self, queue, offset, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(topic_reader.TopicReading, "read", read)
    with topic.reader(group="report") as reader:
        found: list[tuple[int, int]] = []
        told: list[tuple[int, int, int]] = []
        while len(found) < (QUEUES - 1) * MESSAGES or not told:
            try:
                found += take(reader, 1)
            except warren.DataLoss as error:
                told.append((error.queue, error.wanted, error.minimum))
        assert set(told) == {(1, 0, 20)}
        assert {queue for queue, _offset in found} == {0, 2, 3}  # others go on
        reader.seek(1, 20)
        assert take(reader, 30) == [(1, offset) for offset in range(20, MESSAGES)]
    with topic.reader(group="skips", on_data_loss="skip") as reader:
        found = take(reader, QUEUES * MESSAGES - 20)
        assert reader.skipped == 20
        assert in_order(found)[1] == list(range(20, MESSAGES))


def test_wrong_arguments(topic: warren.Topic) -> None:
    for wrong in (
        {"group": ""},
        {"group": 7},
        {"commit": "never"},
        {"on_data_loss": "ignore"},
        {"prefetch": 0},
        {"tags": ""},
        {"tags": 7},
        {"damage": "no"},
    ):
        with pytest.raises(warren.UsageError, match=next(iter(wrong)).removesuffix("s")):
            topic.reader(**wrong)  # type: ignore[arg-type]
    for group in ("a b", "a name\n", "ä", "n" * 256):
        for call in (topic.reader, topic.group, topic.delete_group, topic.dead_letters):
            with pytest.raises(warren.InvalidName, match=r"group name .*: 1 to 255 letters, digits"):
                call(group)
        with pytest.raises(warren.InvalidName, match="group name"):
            topic.seek_group(group, "earliest")
    with pytest.raises(warren.UsageError, match=r"an offset is given with seek\(queue, offset\)"):
        topic.reader(start=7)  # type: ignore[arg-type]
    with topic.reader() as reader:
        for timeout in (-1, "1"):
            with pytest.raises(warren.UsageError, match="timeout"):
                reader.seek(0, 0, timeout)  # type: ignore[arg-type]
        reader.get(TIMEOUT)  # and others are read ahead
        for timeout in (-1, "1", float("nan"), True):
            with pytest.raises(warren.UsageError, match="timeout"):
                reader.get(timeout)  # type: ignore[arg-type]
            with pytest.raises(warren.UsageError, match="timeout"):
                reader.get_many(1, timeout)  # type: ignore[arg-type]
        with pytest.raises(warren.UsageError, match="max"):
            reader.get_many(0)


# -- silent readers ------------------------------------------------------------------------------------------------


def test_a_program_that_did_not_call_for_too_long_is_told_once_and_goes_on(topic: warren.Topic) -> None:
    with topic.reader("report", prefetch=5, session_timeout=None, max_poll_interval=1) as reader:
        record = reader.get(TIMEOUT)
        wait_until_alone(topic, "report")
        with pytest.raises(warren.SessionExpired, match="max_poll_interval is 1 s"):
            reader.get(TIMEOUT)
        assert reader.fenced == 1
        assert reader.assigned == []
        reader.commit()  # nothing: SessionExpired was the error for these messages
        assert offsets(topic, "report") == [-1] * QUEUES
        with pytest.raises(warren.Fenced):
            reader.commit(record)
        taken = []
        while len(taken) < QUEUES * MESSAGES:  # a loaded machine may take its queues again
            try:
                taken += take_many(reader)
            except warren.SessionExpired:
                taken = []
        for queue in range(QUEUES):
            assert [offset for of, offset in taken if of == queue] == list(range(MESSAGES))


def wait_until_alone(topic: warren.Topic, group: str) -> None:
    """The group has no members."""
    wait_until(lambda: not any(row["members"] for row in topic.groups() if row["name"] == group), TIMEOUT)


def take_many(reader: warren.Reader) -> list[tuple[int, int]]:
    return [(record.queue, record.offset) for record in reader.get_many(1000, TIMEOUT)]


def test_any_call_tells_it_and_close_ends_all_the_same(topic: warren.Topic) -> None:
    for number, call in enumerate((warren.Reader.get_many, warren.Reader.commit, warren.Reader.lag)):
        with topic.reader(f"report-{number}", commit="manual", max_poll_interval=1) as reader:
            reader.get_many(3, TIMEOUT)
            wait_until_alone(topic, f"report-{number}")
            with pytest.raises(warren.SessionExpired, match="the next call joins the group again"):
                call(reader)  # type: ignore[operator]
            wait_until_alone(topic, f"report-{number}")
        assert reader.closed


def patient(topic: warren.Topic) -> warren.Reader:
    return topic.reader("report", session_timeout=float("inf"), max_poll_interval=None)


def test_who_waits_in_a_call_calls(topic: warren.Topic) -> None:
    with ThreadPoolExecutor(1) as pool, patient(topic) as reader:
        before = reader._calls
        reader._beat_now()
        assert reader._calls == before  # the process runs, and the program does something else
        take_many(reader)
        reader.seek(0, "latest")
        while take_many_now(reader):
            pass
        waiting = pool.submit(reader.get)
        wait_until(lambda: reader._inside, TIMEOUT, what="it waits")
        for more in range(1, 4):
            called = reader._calls
            reader._beat_now()
            assert reader._calls == called + 1, more
        reader.close()
        assert isinstance(waiting.exception(TIMEOUT), warren.ClosedError)


def take_many_now(reader: warren.Reader) -> list[warren.Record]:
    return reader.get_many(1000, 0)


def test_who_beats_no_more_when_nobody_is_a_member(topic: warren.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beating, "_beats", beating.Beats())  # without members of earlier tests
    with patient(topic), patient(topic):
        assert any(thread.name == "warren-beats" for thread in threading.enumerate())
    wait_until(lambda: beats()._thread is None, TIMEOUT, what="the thread has ended")


@pytest.mark.parametrize("limit", ["session_timeout", "max_poll_interval"])
def test_limits_are_of_a_group_and_long_enough(topic: warren.Topic, limit: str) -> None:
    for wrong in (0.9, 0, -1, True, "1", float("nan")):
        with pytest.raises(warren.UsageError, match=limit):
            topic.reader("report", **{limit: wrong})  # type: ignore[arg-type]
    with pytest.raises(warren.UsageError, match=f"{limit} is of a group"):
        topic.reader(**{limit: 5.0})  # type: ignore[arg-type]
    topic.reader("report", **{limit: 1}).close()  # type: ignore[arg-type]
