"""Goal: node.work_queue is a queue.Queue that survives. Method: a real node; the standard promises, over processes."""

import asyncio
import functools
import json
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import warren
import warren.aio
from warren.workers.client.client import Client

from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration


def test_it_is_used_like_the_standard_one(node: warren.Node, name: str) -> None:
    tasks = node.work_queue(name)
    assert (tasks.empty(), tasks.qsize(), tasks.full()) == (True, 0, False)
    for number in range(5):
        tasks.put(b"%d" % number)
    assert (tasks.empty(), tasks.qsize()) == (False, 5)
    assert [tasks.get(timeout=5), tasks.get(), tasks.get_nowait()] == [b"0", b"1", b"2"]
    for _number in range(3):
        tasks.task_done()
    assert [tasks.get(), tasks.get(block=False)] == [b"3", b"4"]
    with pytest.raises(queue.Empty) as empty:
        tasks.get_nowait()
    assert isinstance(empty.value, warren.Error)
    with pytest.raises(queue.Empty):
        tasks.get(timeout=0.01)
    with pytest.raises(warren.TimedOut, match="items left: 2"):
        tasks.join(timeout=patience())
    tasks.task_done()
    tasks.task_done()
    tasks.join(timeout=10)
    with pytest.raises(ValueError, match="too many"):
        tasks.task_done()
    for wrong in (lambda: tasks.get(timeout=-1), lambda: tasks.put(b"", timeout=-1), lambda: tasks.join(-1)):
        with pytest.raises(ValueError, match="non-negative"):
            wrong()


@pytest.mark.parametrize("serializer", ["pickle", "json", "msgpack", json, msgspec.json])
def test_items_are_packed(node: warren.Node, name: str, serializer: object) -> None:
    tasks = node.work_queue(name, serializer=serializer)
    item = {"page": 1, "words": ["a", "ö"], "none": None}
    tasks.put(item)
    assert tasks.get(timeout=5) == item
    tasks.task_done()
    tasks.join(10)


def test_without_a_serializer_items_are_bytes(node: warren.Node, name: str) -> None:
    tasks = node.work_queue(name)
    tasks.put(bytearray(b"1"))
    tasks.put_nowait(memoryview(b"2"))
    assert [tasks.get(timeout=5), tasks.get(timeout=5)] == [b"1", b"2"]
    with pytest.raises(warren.UsageError):
        tasks.put("text")  # type: ignore[call-overload]
    with pytest.raises(warren.UsageError, match="serializer"):
        node.work_queue(name, serializer=5)


@pytest.mark.parametrize(
    ("serializer", "broken", "named"),
    [
        ("json", b"not json", "'json'"),
        ("json", b"\xff", "'json'"),
        ("pickle", b"?", "pickle"),
        (msgspec.json, b"{", "json"),
    ],
)
def test_an_item_that_cannot_be_read_does_not_block_the_next(
    node: warren.Node, name: str, serializer: object, broken: bytes, named: str
) -> None:
    raw = node.queue(name)
    raw.put(broken)
    tasks = node.work_queue(name, serializer=serializer)
    tasks.put(5)
    with pytest.raises(warren.Undecodable, match="stays unacked") as told:
        tasks.get(timeout=5)
    for part in (repr(name), named, f"{len(broken)} bytes", "dead_letter_exchange"):
        assert part in str(told.value)
    assert told.value.body == broken
    assert told.value.__cause__ is not None
    assert tasks.get(timeout=5) == 5
    tasks.task_done()
    with pytest.raises(ValueError, match="too many"):
        tasks.task_done()  # never for what could not be read
    with pytest.raises(warren.TimedOut, match="items left: 1"):
        tasks.join(timeout=patience())
    copy = pickle.loads(pickle.dumps(told.value))
    assert (str(copy), copy.body, copy.message) == (str(told.value), broken, None)
    told.value.message.reject()
    tasks.join(10)


def test_an_item_that_cannot_be_read_is_not_lost(node: warren.Node, name: str) -> None:
    """Nobody settles it: it comes back, in its place, when the work queue is closed."""
    tasks = node.work_queue(name, serializer="json")
    for body in (b"1", b"not json", b"nor this", b"4"):
        tasks.queue.put(body)
    assert tasks.get(timeout=5) == 1
    errors = []
    for _item in range(2):
        with pytest.raises(warren.Undecodable) as told:
            tasks.get(timeout=5)
        errors.append(told.value)
    assert tasks.get(timeout=5) == 4
    errors[1].message.reject()
    tasks.close()
    left = node.work_queue(name)
    assert [left.get(timeout=5) for _item in range(3)] == [b"1", b"not json", b"4"]
    for _item in range(3):
        left.task_done()
    left.join(10)


def test_an_item_that_cannot_be_read_goes_to_the_dead_letters(node: warren.Node, name: str) -> None:
    node.declare_exchange(f"{name}-dead", "fanout")
    dead = node.queue(f"{name}-dead-letters")
    node.bind(dead.name, f"{name}-dead")
    tasks = node.work_queue(name, serializer="json", dead_letter_exchange=f"{name}-dead")
    tasks.queue.put(b"not json")
    tasks.put({"page": 1})
    with pytest.raises(warren.Undecodable, match=f"dead-lettered .exchange '{name}-dead'"):
        tasks.get(timeout=5)
    assert tasks.get(timeout=5) == {"page": 1}
    tasks.task_done()
    letter = dead.get(timeout=30)
    assert letter.body == b"not json"
    letter.ack()


def raising(kind: type[BaseException]) -> None:
    raise kind


class Poison:
    """What raises something when it is unpickled."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return (sys.exit, (3,)) if self.kind is SystemExit else (raising, (self.kind,))


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, asyncio.CancelledError, Speechless])
def test_an_item_that_ends_programs_does_not_block_the_next(
    node: warren.Node, name: str, kind: type[BaseException]
) -> None:
    tasks = node.work_queue(name, serializer="pickle")
    tasks.put(Poison(kind))
    tasks.put(5)
    with pytest.raises(warren.Undecodable, match=kind.__name__) as told:
        tasks.get(timeout=5)
    assert tasks.get(timeout=5) == 5
    tasks.task_done()
    told.value.message.reject()
    tasks.join(60)


@pytest.mark.parametrize("kind", [SystemExit, Speechless])
def test_an_item_that_ends_programs_when_it_is_written_is_refused(
    node: warren.Node, name: str, kind: type[BaseException]
) -> None:
    class Item:
        def __getstate__(self) -> object:
            raise kind

    tasks = node.work_queue(name, serializer="pickle")
    with pytest.raises(warren.UsageError, match=f"cannot write this item of type Item .{kind.__name__}"):
        tasks.put(Item())
    assert tasks.empty()


class Service:
    """A program that a signal ends: its handler raises."""

    def ends(self, number: int, _frame: object) -> None:
        self.leave(number)

    def leave(self, number: int) -> None:
        raise TimeoutError if number == signal.SIGUSR2 else SystemExit(number)

    __call__ = ends


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("handler", [Service().ends, Service(), functools.partial(Service.ends, Service())])
def test_a_signal_that_comes_while_an_item_is_read_is_obeyed_and_gives_it_back(
    node: warren.Node, name: str, number: signal.Signals, handler: Any
) -> None:
    class Signalled:
        dumps = staticmethod(bytes)

        @staticmethod
        def loads(data: bytes) -> bytes:
            signal.raise_signal(number)
            return data

    node.declare_exchange(f"{name}-dead", "fanout")
    tasks = node.work_queue(name, serializer=Signalled, dead_letter_exchange=f"{name}-dead")
    tasks.put(b"1")
    before = signal.signal(number, handler)
    try:
        with pytest.raises(TimeoutError if number == signal.SIGUSR2 else SystemExit) as ended:
            tasks.get(timeout=5)
    finally:
        signal.signal(number, before)
    assert not isinstance(ended.value, warren.Error)
    assert node.work_queue(name).get(timeout=60) == b"1"


def test_an_interrupt_while_an_item_is_read_gives_it_back(node: warren.Node, name: str) -> None:
    class Interrupted:
        @staticmethod
        def dumps(item: bytes) -> bytes:
            return item

        @staticmethod
        def loads(_data: bytes) -> bytes:
            raise KeyboardInterrupt

    tasks = node.work_queue(name, serializer=Interrupted)
    tasks.put(b"1")
    with pytest.raises(KeyboardInterrupt):
        tasks.get(timeout=5)
    assert node.work_queue(name).get(timeout=5) == b"1"


def test_what_cannot_be_written_is_refused(node: warren.Node, name: str) -> None:
    class Numbers:
        dumps = len  # a number of bytes is no item
        loads = bytes

    tasks = node.work_queue(name, serializer="json")
    for wrong, serializer in (
        (object(), "json"),
        (threading.Lock(), "pickle"),
        (object(), "msgpack"),
        ("abc", Numbers),
    ):
        with pytest.raises(warren.UsageError, match="cannot write") as told:
            node.work_queue(name, serializer=serializer).put(wrong)
        assert repr(name) in str(told.value)
    assert tasks.empty()


def test_a_full_queue_refuses_and_waits(node: warren.Node, name: str) -> None:
    with pytest.raises(warren.QueueNotFound):
        node.work_queue(name, create=False)
    tasks = node.work_queue(name, maxsize=2)
    assert node.work_queue(name, create=False).maxsize == 2
    tasks.put(b"1")
    tasks.put(b"2")
    assert tasks.full()
    with pytest.raises(queue.Full) as full:
        tasks.put_nowait(b"3")
    assert isinstance(full.value, warren.Error)
    with pytest.raises(queue.Full, match="max_length=2"):
        tasks.put(b"3", timeout=0.05)
    assert tasks.qsize() == 2
    waiting = threading.Thread(target=tasks.put, args=(b"4",))
    waiting.start()
    assert tasks.get(timeout=5) == b"1"  # a place is free as soon as an item was got, done or not
    waiting.join(30)
    assert not waiting.is_alive()
    assert [tasks.get(timeout=5), tasks.get(timeout=5)] == [b"2", b"4"]


def test_task_done_is_for_the_threads_own_item(node: warren.Node, name: str) -> None:
    tasks = node.work_queue(name)
    for number in range(3):
        tasks.put(b"%d" % number)
    assert tasks.get(timeout=5) == b"0"
    got: list[bytes] = []

    def work() -> None:
        got.append(tasks.get(timeout=5))
        tasks.task_done()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert got == [b"1"]
    tasks.close()  # this thread's 0 returns, in its place
    assert [tasks.get(timeout=5), tasks.get(timeout=5)] == [b"0", b"2"]
    helper = threading.Thread(target=tasks.task_done)  # has none of its own: the oldest of the process
    helper.start()
    helper.join(30)
    tasks.close()
    assert tasks.get(timeout=5) == b"2"
    tasks.task_done()
    tasks.join(10)


def worker(directory: Path, name: str, results: str) -> None:
    with warren.attach(directory) as node:
        tasks = node.work_queue(name, serializer="pickle")
        done = node.work_queue(results, serializer="pickle")
        while (item := tasks.get()) is not None:
            done.put(item * item)
            tasks.task_done()
        tasks.task_done()


def test_join_waits_for_workers_in_other_processes(node: warren.Node, directory: Path, name: str) -> None:
    tasks = node.work_queue(name, serializer="pickle")
    results = node.work_queue(f"{name}-results", serializer="pickle")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=worker, args=(directory, name, f"{name}-results")) for _number in range(2)]
    for process in processes:
        process.start()
    for number in range(200):
        tasks.put(number)
    tasks.join(timeout=60)
    assert results.qsize() == 200, "all was done when join returned"
    for _process in processes:
        tasks.put(None)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(results.get(timeout=5) for _number in range(200)) == [number * number for number in range(200)]


def test_a_killed_worker_leaves_its_item_to_others(node: warren.Node, name: str) -> None:
    tasks = node.work_queue(name)
    tasks.put(b"precious")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, tasks.get(timeout=20))
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 100) == b"precious"
    os.close(read)
    assert tasks.empty()
    with pytest.raises(warren.TimedOut):
        tasks.join(timeout=0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert tasks.get(timeout=20) == b"precious"
    tasks.task_done()
    tasks.join(timeout=20)


def test_producer_and_consumers_over_fork_and_threads(node: warren.Node, name: str) -> None:
    """Items got before the fork stay the parent's; the child takes others, each exactly once."""
    tasks = node.work_queue(name, serializer="json")
    seen = node.work_queue(f"{name}-seen", serializer="json")
    tasks.put("parent's")
    assert tasks.get(timeout=5) == "parent's"
    children = []
    for _number in range(2):
        child = os.fork()
        if not child:
            code = 1
            try:
                try:
                    tasks.task_done()
                except ValueError:
                    code = 2
                while code == 2:
                    item = tasks.get(timeout=60)
                    if item is None:
                        tasks.task_done()
                        node.close()
                        code = 0
                        break
                    seen.put(item)
                    tasks.task_done()
            finally:
                os._exit(code)
        children.append(child)

    def produce(thread: int) -> None:
        for number in range(100):
            tasks.put([thread, number])

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    tasks.task_done()
    tasks.join(timeout=60)
    for _child in children:
        tasks.put(None)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = [tuple(seen.get(timeout=5)) for _number in range(300)]
    assert sorted(found) == [(thread, number) for thread in range(3) for number in range(100)]
    wait_until(tasks.empty)


@pytest.mark.parametrize("wrong", ["x", -1, float("nan"), [], 10**400], ids=["text", "negative", "nan", "list", "huge"])
def test_what_is_no_timeout_is_refused_by_every_call(node: warren.Node, name: str, wrong: Any) -> None:
    raw, tasks, directory = node.queue(name), node.work_queue(f"{name}-tasks"), node.directory
    confirm = raw.put(b"1", wait=False)
    assert confirm is not None
    calls: list[Callable[[], object]] = [
        lambda: raw.get(timeout=wrong),
        lambda: raw.get_many(timeout=wrong),
        lambda: next(raw.consume(timeout=wrong)),
        lambda: raw.put(b"", timeout=wrong),
        lambda: raw.put_many([b""], timeout=wrong),
        lambda: raw.purge(wrong),
        lambda: confirm.result(wrong),
        lambda: tasks.put(b"", timeout=wrong),
        lambda: tasks.get(timeout=wrong),
        lambda: tasks.join(wrong),
        lambda: warren.attach(directory, timeout=wrong),
        lambda: warren.open(directory, timeout=wrong),
        lambda: warren.open(directory, call_timeout=wrong),
        lambda: asyncio.run(awaited(directory, name, 5, wrong)),
        lambda: asyncio.run(awaited(directory, name, wrong, 5)),
    ]
    for call in calls:
        with pytest.raises(warren.UsageError, match="timeout must be"):
            call()

    assert (raw.depth(), tasks.qsize()) == (1, 0)


async def awaited(directory: Path, name: str, attaching: Any, getting: Any) -> None:
    async with warren.aio.attach(directory, timeout=attaching) as node:
        await (await node.queue(name)).get(timeout=getting)


def test_an_end_is_needed_to_attach_and_to_open(node: warren.Node) -> None:
    for call in (warren.attach, warren.open):
        with pytest.raises(warren.UsageError, match="non-negative number of seconds, not None"):
            call(node.directory, timeout=None)  # type: ignore[arg-type]


# ---- what is in the queue, when it is emptied and filled -------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 1000])
def test_empty_ends_a_loop_that_drains(node: warren.Node, name: str, count: int) -> None:
    """A loop of gets has messages delivered ahead; they are in the queue all the same."""
    tasks = node.work_queue(name, durable=False)
    for number in range(count):
        tasks.put(b"%d" % number)
    found = []
    while not tasks.empty():
        found.append(int(tasks.get_nowait()))
        tasks.task_done()
        assert tasks.qsize() == count - len(found)
    assert found == list(range(count))
    tasks.join(timeout=30)


def test_the_sizes_count_what_lies_ready_at_another_process(node: warren.Node, name: str) -> None:
    mine = node.work_queue(name, durable=False)
    with warren.attach(node.directory) as other:
        theirs = other.queue(name, create=False)
        theirs.put_many([b"%d" % number for number in range(30)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Client, "_tidy_once", lambda _client: True)  # nothing returns by itself
            ahead = False
            for _round in range(100):  # a process that is kept off the processor asks for less ahead, or for nothing
                for left in range(30, 10, -1):
                    assert mine.qsize() == left
                    theirs.get(timeout=5).ack()
                ahead = ahead or bool(theirs._handle.pending or theirs._handle.hoard())
                assert (mine.qsize(), mine.empty()) == (10, False)
                if ahead:
                    break
                theirs.put_many([b"more"] * 20)
            assert ahead, "it never has messages ahead: the test shows nothing"
        theirs.release()
    assert mine.qsize() == 10


@pytest.mark.parametrize("got", [0, 1, 5, 10])
def test_so_many_fit_as_were_received(node: warren.Node, name: str, got: int) -> None:
    tasks = node.work_queue(name, 10, durable=False)
    for number in range(10):
        tasks.put(b"%d" % number)
    for _number in range(got):
        tasks.get()
    for _number in range(got):
        tasks.put_nowait(b"more")
    with pytest.raises(queue.Full):
        tasks.put_nowait(b"too many")
    assert (tasks.qsize(), tasks.full()) == (10, True)


# ---- shutdown, as in 3.13 --------------------------------------------------------------------------------------------


def held_up(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread that is in a call, and what came of it."""
    came: list[object] = []
    began = threading.Event()

    def run() -> None:
        began.set()
        try:
            came.append(call())
        except warren.Error as error:
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert began.wait(60)
    return thread, came


def test_after_a_shutdown_what_is_there_can_be_got(node: warren.Node, name: str) -> None:
    tasks = node.work_queue(name)
    tasks.put(b"1")
    tasks.put(b"2")
    tasks.shutdown()
    for put in (tasks.put, tasks.put_nowait):
        with pytest.raises(warren.ShutDown, match=name):
            put(b"3")
    assert [tasks.get(), tasks.get_nowait()] == [b"1", b"2"]
    for get in (tasks.get, tasks.get_nowait, lambda: tasks.get(timeout=0.01)):
        with pytest.raises(warren.ShutDown, match="empty"):
            get()
    tasks.task_done()
    tasks.task_done()
    tasks.join(timeout=30)
    assert issubclass(warren.ShutDown, getattr(queue, "ShutDown", warren.Error))


def test_an_immediate_shutdown_leaves_the_items_to_others(node: warren.Node, name: str) -> None:
    tasks = node.work_queue(name)
    for number in range(50):
        tasks.put(b"%d" % number)
    assert [tasks.get() for _item in range(20)] == [b"%d" % number for number in range(20)]
    tasks.shutdown(immediate=True)
    for get in (tasks.get, tasks.get_nowait):
        with pytest.raises(warren.ShutDown, match="other processes"):
            get()
    others = node.work_queue(name)
    assert others.qsize() == 30
    assert [others.get(timeout=5) for _item in range(30)] == [b"%d" % number for number in range(20, 50)]
    for _item in range(20):
        tasks.task_done()
    tasks.shutdown()  # it stays as it is
    with pytest.raises(warren.ShutDown, match="other processes"):
        tasks.get()


@pytest.mark.parametrize("immediate", [False, True])
def test_a_shutdown_wakes_who_waits(node: warren.Node, name: str, immediate: bool) -> None:
    tasks, full = node.work_queue(name), node.work_queue(f"{name}-full", 1)
    full.put(b"1")
    others = node.work_queue(name)
    waiting = [held_up(tasks.get) for _number in range(3)]
    other_thread, other_came = held_up(others.get)
    putting, refused = held_up(lambda: full.put(b"2"))
    wait_until(lambda: node.queue(name).stats()["consumers"] == 1, what="somebody waits")
    tasks.shutdown(immediate)
    full.shutdown(immediate)
    for thread, came in [*waiting, (putting, refused)]:
        thread.join(60)
        assert [type(error) for error in came] == [warren.ShutDown]
    assert not other_came, "another object, or another process, is not concerned"
    others.put(b"3")
    other_thread.join(60)
    assert other_came == [b"3"]
    assert node.work_queue(f"{name}-full", 1).qsize() == 1


def test_who_only_got_messages_is_no_consumer(node: warren.Node, name: str) -> None:
    """Consumers of the statistics are those who ask now."""
    queue = node.queue(name)

    def consumers() -> tuple[int, int]:
        stats = queue.stats()
        return stats["consumers"], stats["consuming"]

    for number in range(3):
        queue.put(b"%d" % number)
    asked = queue.stats()["asked"]
    queue.get().ack()
    wait_until(lambda: queue.stats()["delivered"] == 1 and consumers() == (0, 0), what="a get that is over")
    assert queue.stats()["asked"] > asked
    queue.get().ack()
    queue.get().ack()
    thread, came = held_up(queue.get)
    wait_until(lambda: consumers() == (1, 0), what="a get that waits")
    queue.put(b"last")
    thread.join(60)
    assert [message.body for message in came] == [b"last"]
    came[0].ack()
    wait_until(lambda: consumers() == (0, 0), what="the end of it")
    messages = queue.consume(prefetch=1)
    queue.put(b"more")
    next(messages).ack()
    wait_until(lambda: consumers() == (1, 1), what="one that consumes")
    messages.close()
    wait_until(lambda: consumers() == (0, 0), what="the end of that")


def test_no_shutdown_is_missed(node: warren.Node, name: str) -> None:
    """Whoever is just about to wait is told as well."""
    for _round in range(50):
        tasks = node.work_queue(name)
        thread, came = held_up(tasks.get)
        tasks.shutdown()
        thread.join(60)
        assert [type(error) for error in came] == [warren.ShutDown]
