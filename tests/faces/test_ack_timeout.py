"""Goal: with an ack_timeout, what a stuck consumer holds goes to another, marked if a program has it, else not; its
late ack says so; whoever acks in time notices nothing.

Method: a real node; consumers that are stopped processes, or threads and tasks that hold a message until another has
got it. No time is measured.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import warren
import warren.aio
from warren.engine.catalog.arguments import QueueArguments

from support.long import in_part
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration

#: nobody whose ack must be in time takes so long, also on a busy machine
SHORT_S = 0.3 * patience()
BODIES = [b"%d" % number for number in range(20)]


@pytest.fixture
def theirs(directory: Path, name: str) -> Iterator[warren.Queue]:
    """The same queue of another client, who has time."""
    with warren.attach(directory) as attached:
        queue = attached.queue(name, ack_timeout=SHORT_S)
        yield queue


def told(messages: list[warren.Message]) -> list[tuple[bytes, bool, int]]:
    return [(message.body, message.redelivered, message.delivery_count) for message in messages]


def take(queue: warren.Queue, count: int) -> list[warren.Message]:
    """So many messages, acked as they come."""
    found: list[warren.Message] = []
    while len(found) < count:
        message = queue.get(timeout=30)
        message.ack()
        found.append(message)
    return found


def hold(directory: Path, name: str, prefetch: int | None, lying: int, parent: Connection) -> None:
    """A consumer that has one message in hand when it is stopped."""
    with warren.attach(directory) as node:
        queue = node.queue(name, create=False)
        messages = queue.consume(prefetch)
        message = next(messages)
        wait_until(lambda: queue.stats()["unacked"] == lying)
        parent.send(message.body)
        parent.recv()
        try:
            message.ack()
        except warren.AckTimedOut as error:
            parent.send(str(error))
        following = next(messages)
        parent.send((following.body, following.redelivered))
        following.ack()
        messages.close()  # type: ignore[attr-defined]  # a generator
        parent.send("end")


@pytest.mark.parametrize(("prefetch", "lying"), [(20, 20), (1, 1), (None, 1)])
def test_a_stopped_process_loses_what_it_holds(
    directory: Path, theirs: warren.Queue, name: str, prefetch: int | None, lying: int
) -> None:
    theirs.put_many(BODIES)
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    process = context.Process(target=hold, args=(directory, name, prefetch, lying, other))
    process.start()
    try:
        other.close()
        assert mine.recv() == b"0"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        found = sorted(take(theirs, 20), key=lambda message: message.delivery_tag)
        assert told(found) == [(b"0", True, 1)] + [(body, False, 0) for body in BODIES[1:]]
        theirs.release()
        theirs.put(b"next")
        os.kill(process.pid, signal.SIGCONT)
        mine.send("go on")
        said = mine.recv()
        assert f"queue {name!r}" in said
        assert f"ack_timeout ({SHORT_S:g} s)" in said
        assert "went back" in said
        assert mine.recv() == (b"next", False), "it is served again"
        assert mine.recv() == "end"
    finally:
        if process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
        process.join(60)
        process.kill()
        process.join()
        mine.close()
    wait_until(lambda: theirs.stats()["ready"] + theirs.stats()["unacked"] == 0)


def late(queue: warren.Queue, theirs: warren.Queue, body: bytes = b"x") -> warren.Message:
    """A message that was held for too long: another client has got and acked it."""
    theirs.put(body)
    message = queue.get(timeout=30)
    assert not message.timed_out
    assert told(take(theirs, 1)) == [(message.body, True, 1)]
    assert message.timed_out
    return message


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_what_comes_too_late_says_so_each_time(node: warren.Node, theirs: warren.Queue, name: str, how: str) -> None:
    queue = node.queue(name, create=False)
    message = late(queue, theirs)
    for _again in range(2):
        with pytest.raises(warren.AckTimedOut, match=rf"queue '{name}': message 0 .* this {how} comes too late"):
            getattr(message, how)()
    with pytest.raises(warren.AckTimedOut):
        message.nack(delay=1) if how == "nack" else message.ack(multiple=True)
    with pytest.raises(warren.AckTimedOut) as caught:
        queue.ack([message])
    assert caught.value.late == (0,)
    wait_until(lambda: theirs.stats()["ready"] + theirs.stats()["unacked"] == 0)
    theirs.put(b"y")
    message = queue.get(timeout=30)
    assert told([message]) == [(b"y", False, 0)]
    message.ack()


def test_a_block_says_that_it_was_too_late_but_not_over_what_it_raised(
    node: warren.Node, theirs: warren.Queue, name: str
) -> None:
    queue = node.queue(name, create=False)
    with pytest.raises(warren.AckTimedOut), late(queue, theirs):
        pass
    with pytest.raises(ZeroDivisionError), late(queue, theirs):
        raise ZeroDivisionError


def test_it_may_come_to_the_same_consumer_again(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    """The mark tells the two apart: the first one cannot ack the second."""
    theirs.put(b"x")
    queue = node.queue(name, create=False)
    first = queue.get(timeout=30)
    second = queue.get(timeout=30)
    assert told([second]) == [(b"x", True, 1)]
    assert second.delivery_tag == first.delivery_tag
    with pytest.raises(warren.AckTimedOut):
        first.ack()
    wait_until(lambda: theirs.stats()["unacked"] == 1)
    second.ack()
    wait_until(lambda: theirs.stats()["unacked"] == 0)


@pytest.mark.parametrize("prefetch", [1, None])
def test_who_never_acks_goes_on(node: warren.Node, theirs: warren.Queue, name: str, prefetch: int | None) -> None:
    """A place that nobody gives back is free again when the message has gone."""
    theirs.put(b"x")
    seen = []
    for message in node.queue(name, create=False).consume(prefetch):
        seen.append(message.delivery_count)
        if len(seen) == 3:
            message.ack()
            break
    assert seen == [0, 1, 2]


def test_of_a_batch_the_others_are_settled(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    queue = node.queue(name, create=False)
    theirs.put_many(BODIES[:3])
    batch = queue.get_many(3, timeout=30, ahead=False)
    assert len(take(theirs, 3)) == 3
    theirs.release()
    theirs.put_many(BODIES[3:5])
    batch += queue.get_many(2, timeout=30, ahead=False)
    with pytest.raises(warren.AckTimedOut, match="3 of 5 messages") as caught:
        queue.ack(batch)
    assert caught.value.late == (0, 1, 2)
    wait_until(lambda: theirs.stats()["ready"] + theirs.stats()["unacked"] == 0)
    assert all(message.settled for message in batch)


def test_what_was_said_to_be_late_is_late_in_a_batch_too(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    queue = node.queue(name, create=False)
    theirs.put(b"old")
    old = queue.get(timeout=30, ahead=False)
    assert len(take(theirs, 1)) == 1
    theirs.release()
    theirs.put(b"new")
    new = queue.get(timeout=30, ahead=False)
    with pytest.raises(warren.AckTimedOut):
        old.ack()
    with pytest.raises(warren.AckTimedOut) as caught:
        queue.ack([old, new])
    assert caught.value.late == (0,)
    assert new.settled
    wait_until(lambda: theirs.stats()["ready"] + theirs.stats()["unacked"] == 0)


def test_ack_with_multiple_settles_the_rest(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    queue = node.queue(name, create=False)
    theirs.put_many(BODIES[:2])
    first = queue.get_many(2, timeout=30, ahead=False)
    assert len(take(theirs, 2)) == 2
    theirs.release()
    theirs.put_many(BODIES[2:4])
    then = queue.get_many(2, timeout=30, ahead=False)
    with pytest.raises(warren.AckTimedOut, match="2 of 4 messages"):
        then[1].ack(multiple=True)
    wait_until(lambda: theirs.stats()["ready"] + theirs.stats()["unacked"] == 0)
    with pytest.raises(warren.UsageError, match="before"):
        then[1].ack()
    assert len(first) == 2


def test_an_ack_in_time_is_not_disturbed(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    """It is held while another queue's shorter timeout runs out."""
    patient = node.queue(f"{name}-patient", ack_timeout=600)
    patient.put_many(BODIES)
    held = patient.get_many(20, timeout=30)
    late(node.queue(name, create=False), theirs)
    patient.ack(held[:10])
    for message in held[10:]:
        assert not message.timed_out
        message.ack()
    wait_until(lambda: patient.stats()["unacked"] == 0)
    assert patient.depth() == 0, "nothing came back"


def test_a_thread_that_sleeps_does_not_stop_the_others(node: warren.Node, theirs: warren.Queue, name: str) -> None:
    """One thread of a process holds the first message; another one works, and is given it again."""
    theirs.put_many(BODIES)
    queue = node.queue(name, create=False)
    awake, errors = threading.Event(), []

    def sleep() -> None:
        message = queue.get(timeout=30)
        got.set()
        awake.wait(120)
        try:
            message.ack()
        except warren.AckTimedOut as error:
            errors.append(error)

    got = threading.Event()
    thread = threading.Thread(target=sleep)
    thread.start()
    try:
        assert got.wait(30)
        found = take(queue, 20)
    finally:
        awake.set()
        thread.join()
    assert sorted(told(found)) == sorted([(b"0", True, 1)] + [(body, False, 0) for body in BODIES[1:]])
    assert len(errors) == 1


def test_it_counts_for_the_delivery_limit(node: warren.Node, name: str) -> None:
    letters = node.queue(f"{name}-letters")
    queue = node.queue(
        name, ack_timeout=0.1, delivery_limit=1, dead_letter_exchange="", dead_letter_routing_key=letters.name
    )
    queue.put(b"poison")
    held = [queue.get(timeout=30), queue.get(timeout=30)]
    letter = letters.get(timeout=30)
    assert letter.body == b"poison"
    assert letter.headers["x-death"][0]["reason"] == "delivery_limit"
    letter.ack()
    for message in held:
        with pytest.raises(warren.AckTimedOut):
            message.ack()


def test_items_of_a_work_queue_go_to_another(node: warren.Node, directory: Path, name: str) -> None:
    mine = node.work_queue(name, serializer="json", ack_timeout=SHORT_S)
    with warren.attach(directory) as attached:
        others = attached.work_queue(name, serializer="json", ack_timeout=SHORT_S)
        mine.put({"page": 1})
        assert mine.get(timeout=30) == {"page": 1}
        assert others.get(timeout=30) == {"page": 1}
        others.task_done()
        with pytest.raises(warren.AckTimedOut):
            mine.task_done()
        mine.put({"page": 2})
        mine.get(timeout=30)
        assert others.get(timeout=30) == {"page": 2}
        mine.close()  # what has gone back is nobody's to return
        others.task_done()
        others.join(timeout=30)


def test_a_worker_notes_it_and_goes_on(
    node: warren.Node, theirs: warren.Queue, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs.put(b"slow")
    taken = threading.Event()

    def handle(message: warren.Message) -> None:
        if message.body == b"slow" and not message.redelivered:
            assert told(take(theirs, 1)) == [(b"slow", True, 1)]
            theirs.release()
            theirs.put(b"next")
            taken.set()
        else:
            worker.stop()

    worker = node.worker(name, handle)
    with caplog.at_level(logging.WARNING, "warren"):
        worker.run()
    assert taken.is_set()
    assert worker.counts == {"handled": 1, "failed": 0, "rejected": 0, "late": 1}
    assert "ack_timeout" in caplog.text


@pytest.fixture
def slow(node: warren.Node, name: str) -> tuple[warren.Queue, warren.Queue]:
    """A queue whose functions are too slow, and its dead letters."""
    letters = node.queue(f"{name}-dead")
    return (
        node.queue(f"{name}-slow", ack_timeout=SHORT_S, dead_letter_exchange="", dead_letter_routing_key=letters.name),
        letters,
    )


def check_told(counts: dict[str, int], log: str) -> None:
    """Both tries came too late; then it was rejected without a third."""
    assert counts == {"handled": 0, "failed": 0, "rejected": 1, "late": 2}
    assert "it was the last try" not in log
    assert "tried again in" not in log
    assert log.count("longer than the queue's ack_timeout") == 2
    assert log.count("rejected to the dead letters, without a further try") == 1


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("concurrency", in_part([3, 1]))
def test_a_function_that_is_always_too_slow_ends_in_the_dead_letters(
    node: warren.Node,
    slow: tuple[warren.Queue, warren.Queue],
    caplog: pytest.LogCaptureFixture,
    fails: bool,
    concurrency: int,
) -> None:
    queue, letters = slow
    queue.put(b"slow")
    calls = []

    def handle(message: warren.Message) -> None:
        calls.append(message.delivery_count)
        wait_until(lambda: message.timed_out, 30)
        if fails:
            raise RuntimeError("too slow, and wrong")

    worker = node.worker(queue, handle, concurrency=concurrency, retries=1, backoff=0.01)
    thread = threading.Thread(target=worker.run, daemon=True)
    with caplog.at_level(logging.WARNING, "warren"):
        thread.start()
        assert letters.get(timeout=60).body == b"slow"
        wait_until(lambda: worker.counts["rejected"] == 1, 10)
        worker.stop()
        thread.join(60)
    assert calls == [0, 1]
    check_told(worker.counts, caplog.text)
    assert queue.depth() == 0


@pytest.mark.parametrize("fails", [True, False])
def test_a_coroutine_function_that_is_always_too_slow_ends_in_the_dead_letters(
    directory: Path, slow: tuple[warren.Queue, warren.Queue], caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    queue, letters = slow
    queue.put(b"slow")
    calls = []

    async def main() -> dict[str, int]:
        async with warren.aio.attach(directory) as node:

            async def handle(message: warren.aio.Message) -> None:
                calls.append(message.delivery_count)
                while not message.timed_out:
                    await asyncio.sleep(0.01)
                if fails:
                    raise RuntimeError("too slow, and wrong")

            worker = await node.worker(queue.name, handle, retries=1, backoff=0.01)
            running = asyncio.create_task(worker.run())
            while not worker.counts["rejected"]:
                await asyncio.sleep(0.01)
            worker.stop()
            await running
            return worker.counts

    with caplog.at_level(logging.WARNING, "warren"):
        counts = asyncio.run(main())
    assert letters.get(timeout=60).body == b"slow"
    assert calls == [0, 1]
    check_told(counts, caplog.text)


def fail_slowly(message: warren.Message) -> None:
    """For a process."""
    with Path(os.environ["CALLS"]).open("a") as file:
        file.write(f"{message.delivery_count}\n")
    wait_until(lambda: message.timed_out, 30)
    raise RuntimeError("too slow, and wrong")


def test_processes_that_are_always_too_slow_end_in_the_dead_letters(
    node: warren.Node, slow: tuple[warren.Queue, warren.Queue], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, letters = slow
    queue.put(b"slow")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    worker = node.worker(queue, fail_slowly, concurrency=2, processes=True, retries=1, backoff=0.01)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert letters.get(timeout=120).body == b"slow"
    worker.stop()
    thread.join(60)
    assert (tmp_path / "calls").read_text().split() == ["0", "1"]


def test_what_waits_for_a_thread_does_not_time_out_here(
    node: warren.Node, slow: tuple[warren.Queue, warren.Queue]
) -> None:
    queue, _letters = slow
    queue.put_many(BODIES[:6])
    late: list[bytes] = []
    calls: list[bytes] = []

    def handle(message: warren.Message) -> None:
        if message.timed_out:
            late.append(message.body)
        calls.append(message.body)
        if len(calls) <= 2:
            wait_until(lambda: message.timed_out, 30)
            time.sleep(SHORT_S)  # those that would lie with it have timed out, too

    worker = node.worker(queue, handle, concurrency=2, prefetch=6)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    wait_until(lambda: worker.counts["handled"] >= 6, 60)
    worker.stop()
    thread.join(60)
    assert late == []


# ---- asyncio ---------------------------------------------------------------------------------------------------------


def run(directory: Path, name: str, test: Any) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:
            await test(await node.queue(name, create=False))

    asyncio.run(main())


def test_a_task_is_told(directory: Path, theirs: warren.Queue, name: str) -> None:
    theirs.put(b"x")

    async def test(queue: warren.aio.Queue) -> None:
        message = await queue.get(timeout=30)
        found = await asyncio.to_thread(take, theirs, 1)
        assert told(found) == [(b"x", True, 1)]
        with pytest.raises(warren.AckTimedOut, match=f"queue '{name}'"):
            await message.ack()
        with pytest.raises(warren.AckTimedOut):
            async with message:
                await message.nack()

    run(directory, name, test)


@pytest.mark.parametrize("prefetch", [1, None])
def test_a_task_that_never_acks_goes_on(directory: Path, theirs: warren.Queue, name: str, prefetch: int | None) -> None:
    theirs.put(b"x")

    async def test(queue: warren.aio.Queue) -> None:
        seen = []
        async with queue.consume(prefetch) as messages:
            async for message in messages:
                seen.append(message.delivery_count)
                if len(seen) == 3:
                    await message.ack()
                    break
        assert seen == [0, 1, 2]

    run(directory, name, test)


def test_a_late_ack_frees_the_place_of_a_task(directory: Path, theirs: warren.Queue, name: str) -> None:
    async def test(queue: warren.aio.Queue) -> None:
        async with queue.consume(prefetch=1) as messages:
            for number in range(3):
                theirs.put(b"%d" % number)
                message = await anext(messages)
                found = await asyncio.to_thread(take, theirs, 1)
                assert told(found) == [(b"%d" % number, True, 1)]
                theirs.release()
                with pytest.raises(warren.AckTimedOut):
                    await queue.ack([message])

    run(directory, name, test)


def test_items_of_a_work_queue_of_tasks_go_to_another(directory: Path, node: warren.Node, name: str) -> None:
    others = node.work_queue(name, serializer="json", ack_timeout=SHORT_S)

    async def main() -> None:
        async with warren.aio.attach(directory) as attached:
            mine = await attached.work_queue(name, serializer="json", ack_timeout=SHORT_S)
            for page in range(2):
                await mine.put(page)
                assert await mine.get() == page
                assert await asyncio.to_thread(others.get, timeout=30) == page
                others.task_done()
                if page == 0:
                    with pytest.raises(warren.AckTimedOut):
                        mine.task_done()
            await mine.close()  # what has gone back is nobody's to return

    asyncio.run(main())
    others.join(timeout=30)


# ---- the declaration -------------------------------------------------------------------------------------------------


def test_it_is_an_argument_of_the_queue(node: warren.Node, name: str) -> None:
    node.queue(name, ack_timeout=30)
    assert node.queue(name, ack_timeout=30.0).name == name
    with pytest.raises(warren.DeclarationMismatch):
        node.queue(name, ack_timeout=31)
    with pytest.raises(warren.UsageError, match=r"argument ack_timeout=0.05: it must be a number of seconds from 0\.1"):
        node.queue(f"{name}-2", ack_timeout=0.05)


def test_a_single_active_consumer_is_followed_by_another_when_its_process_is_stopped(
    directory: Path, node: warren.Node, name: str
) -> None:
    node.queue(name, single_active_consumer=True, ack_timeout=SHORT_S)
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    process = context.Process(target=hold, args=(directory, name, 1, 1, other))
    with warren.attach(directory) as attached:
        queue = attached.queue(name, create=False)
        queue.put_many(BODIES[:3])
        process.start()
        try:
            other.close()
            assert mine.recv() == b"0"
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            found = take(queue, 3)
            assert [message.body for message in found] == BODIES[:3]
        finally:
            process.kill()
            process.join()
            mine.close()


def test_without_an_ack_timeout_a_single_active_consumer_has_half_an_hour(node: warren.Node, name: str) -> None:
    """All others wait for it. Its client and its worker go by the same arguments."""
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 0),
        ({"single_active_consumer": True}, 1800),
        ({"single_active_consumer": True, "ack_timeout": 7200}, 7200),
    ]
    for arguments, timeout_s in cases:
        queue = node.queue(f"{name}-{timeout_s}", **arguments)
        assert queue._handle.ack_timeout == timeout_s
        assert QueueArguments.of(name, arguments).ack_timeout_ms == 1000 * timeout_s
