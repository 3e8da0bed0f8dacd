"""Goal: view() is the body of a message without a further copy, good for numpy and Arrow, and stays right whatever
becomes of the message, its queue, its node and the files that it came from.

Method: real nodes; bodies of each size and place (journal, store; memory, file), with and without metadata, looked at
as programs do.
"""

import asyncio
import copy
import gc
import os
import pickle
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import warren
import warren.aio

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

Headers = dict[str, Any] | None
#: below and above what a journal holds itself (4 KiB)
SIZES = [0, 1, 100, 4095, 4096, 5000, 300_000]
HEADERS: list[Headers] = [None, {"kind": "x" * 50}, {"kind": "y" * 2000}]
headers_of_all_lengths = pytest.mark.parametrize("headers", HEADERS, ids=["plain", "headers", "long-headers"])


def body_of(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def check(message: warren.Message, body: bytes, headers: Headers) -> memoryview:
    """It has this body, its view is that body, in place; returns the view."""
    view = message.view()
    assert (view.format, view.itemsize, view.ndim, view.nbytes) == ("B", 1, 1, len(body))
    assert view.readonly
    assert view.c_contiguous
    assert view == body == message.body
    assert message.headers == (headers or {})
    assert view.obj is message.body, "no copy"
    return view


# ---- wherever a body lies --------------------------------------------------------------------------------------------


@headers_of_all_lengths
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
def test_a_view_is_the_body(node: warren.Node, name: str, durable: bool, headers: Headers) -> None:
    queue = node.queue(name, durable=durable)
    queue.put_many([body_of(size) for size in SIZES], headers=headers)
    for size in SIZES:
        message = queue.get(timeout=60)
        check(message, body_of(size), headers)
        message.ack()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", workers=1) as running:
        yield running


def test_bodies_from_files_have_views(own: RealNode) -> None:
    """After a start everything is read from files: a small body with its neighbours, a large one by itself."""
    with warren.attach(own.directory) as node:
        for number, headers in enumerate(HEADERS):
            node.queue(f"q{number}").put_many([body_of(size) for size in SIZES], headers=headers)
    own.stop()
    own.start()
    with warren.attach(own.directory) as node:
        for number, headers in enumerate(HEADERS):
            queue = node.queue(f"q{number}", create=False)
            values = [value for batch in queue.browse_arrow() for value in batch.column("value").to_pylist()]
            assert values == [body_of(size) for size in SIZES]
            browsed, messages = queue.browse(), queue.get_many(len(SIZES), timeout=60)
            for seen, message, size in zip(browsed, messages, SIZES, strict=True):
                check(message, body_of(size), headers)
                check(seen, body_of(size), headers)
            queue.ack(messages)


# ---- for numpy, Arrow, and as a body ---------------------------------------------------------------------------------


@headers_of_all_lengths
@pytest.mark.parametrize("count", [0, 10, 1000, 40_000])
def test_numpy_and_arrow_look_at_the_same_bytes(node: warren.Node, name: str, count: int, headers: Headers) -> None:
    values = np.arange(count, dtype="float64")
    queue = node.queue(name)
    queue.put(values.data, headers=headers)
    with queue.get(timeout=60) as message:
        found = np.frombuffer(message.view(), "float64")
        buffer = pa.py_buffer(message.view())
    assert np.array_equal(found, values), "after the ack, too"
    assert found.flags.aligned
    assert not found.flags.writeable
    assert (buffer.size, buffer.is_mutable) == (8 * count, False)
    column = pa.Array.from_buffers(pa.float64(), count, [None, buffer])
    column.validate(full=True)
    assert column.to_pylist() == values.tolist()
    if count:
        assert buffer.address == found.__array_interface__["data"][0], "no copy was made"
        assert buffer.address % 16 == 0, "at home for any type, whatever metadata the message has"
        with pytest.raises(ValueError, match="WRITEABLE"):
            found.flags.writeable = True
        with pytest.raises(TypeError):
            message.view()[:1] = b"x"


def test_an_arrow_stream_is_read_in_place(node: warren.Node, name: str) -> None:
    table = pa.table({"day": list(range(10_000)), "name": ["a rabbit"] * 10_000})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    queue = node.queue(name)
    queue.put(memoryview(sink.getvalue()), headers={"rows": 10_000})
    with queue.get(timeout=60) as message:
        view = message.view()
        with pa.ipc.open_stream(view) as reader:
            found = reader.read_all()
    first = pa.py_buffer(view).address
    assert first <= found["day"].chunk(0).buffers()[1].address < first + view.nbytes, "the columns lie in the body"
    del view, message, reader
    gc.collect()
    assert found.equals(table), "the table keeps the body"


def test_a_view_can_be_put(node: warren.Node, name: str) -> None:
    queue, further = node.queue(name), node.queue(f"{name}-further")
    queue.put(body_of(5000), headers={"n": 1})
    with queue.get(timeout=60) as message:
        further.put(message.view()[1000:2000])
        further.put_many([message.view(), message.view()[:10]])
    assert [m.body for m in further.get_many(3, timeout=60)] == [
        body_of(5000)[1000:2000],
        body_of(5000),
        body_of(5000)[:10],
    ]


# ---- as a value ------------------------------------------------------------------------------------------------------


def test_views_compare_and_hash_like_their_bytes(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put_many([b"one", b"two", b"one"])
    one, two, again = (message.view() for message in queue.get_many(3, timeout=60))
    assert one == again == b"one" == bytes(again)
    assert one != two
    assert hash(one) == hash(again) == hash(b"one")
    assert {one: 1, two: 2}[again] == 1
    assert repr(one).startswith("<memory at ")
    assert one.tobytes() + two[1:].tobytes() == b"onewo"


@pytest.mark.parametrize("headers", [None, {"n": 1}], ids=["plain", "headers"])
def test_the_view_of_an_empty_body(node: warren.Node, name: str, headers: Headers) -> None:
    queue = node.queue(name)
    queue.put(b"", headers=headers)
    with queue.get(timeout=60) as message:
        view = message.view()
        assert (view.nbytes, bytes(view), view == b"", hash(view)) == (0, b"", True, hash(b""))
        assert np.frombuffer(view, "float64").size == 0
        assert pa.py_buffer(view).size == 0
        assert repr(message).endswith("0 bytes: b''>")


def test_a_view_stays_in_its_process(node: warren.Node, name: str) -> None:
    """Python pickles no memoryview; bytes of it, an array of it and a buffer of protocol 5 go."""
    queue = node.queue(name)
    queue.put(body_of(5000))
    with queue.get(timeout=60) as message:
        view = message.view()
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="memoryview"):
            copying(view)  # type: ignore[operator]
    with pytest.raises(TypeError, match="a message stays in the process"):
        pickle.dumps(message)
    assert pickle.loads(pickle.dumps(bytes(view))) == body_of(5000)
    assert pickle.loads(pickle.dumps(np.frombuffer(view, "u1"))).tobytes() == body_of(5000)
    aside: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(pickle.PickleBuffer(view), protocol=5, buffer_callback=aside.append)
    assert len(pickled) < 100
    assert memoryview(pickle.loads(pickled, buffers=aside)) == body_of(5000)


def test_a_released_view_says_so_and_is_alone_in_that(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put(body_of(5000), headers={"n": 1})
    message = queue.get(timeout=60)
    other = message.view()
    with message.view() as view:
        assert view == body_of(5000)
    with pytest.raises(ValueError, match="released"):
        bytes(view)
    assert other == message.view() == message.body == body_of(5000)
    array = np.frombuffer(other, "u1")
    other.release()
    message.ack()
    del message
    assert array.tobytes() == body_of(5000), "an array keeps what it looks at"


# ---- what a view keeps, and what it outlives -------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [None, {"n": 1}], ids=["plain", "headers"])
@pytest.mark.parametrize("size", [100, 300_000])
def test_a_view_holds_the_body_and_lets_it_go(node: warren.Node, name: str, size: int, headers: Headers) -> None:
    queue = node.queue(name)
    queue.put(body_of(size), headers=headers)
    message = queue.get(timeout=60)
    body = message.body
    before = sys.getrefcount(body)
    views = [message.view() for _ in range(5)]
    assert sys.getrefcount(body) == before + 5
    part = views[0][10:20]
    del views
    assert sys.getrefcount(body) == before + 1, "of the first view, for its part"
    message.ack()
    references = sys.getrefcount(message)
    del message
    assert references == 2, "views keep the body, not the message"
    assert sys.getrefcount(body) == before
    del part
    assert sys.getrefcount(body) == before - 1


def test_memory_of_bodies_goes_with_the_last_view(node: warren.Node, name: str) -> None:
    size, count = 100_000, 20
    queue = node.queue(name)
    for _ in range(2):  # what is allocated once is there in the second round
        queue.put_many([bytes(size)] * count, headers={"n": 1})
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            messages = queue.get_many(count, timeout=60)
            while len(messages) < count:
                messages += queue.get_many(count - len(messages), timeout=60)
            views = [message.view() for message in messages]
            queue.ack(messages)
            del messages
            gc.collect()
            held = tracemalloc.get_traced_memory()[0] - before
            assert count * size <= held < (count + 1) * size
            del views[1:]
            assert tracemalloc.get_traced_memory()[0] - before < 2 * size, "one view keeps one body"
            del views
            assert tracemalloc.get_traced_memory()[0] - before < size
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("headers", [None, {"n": 1}], ids=["plain", "headers"])
def test_a_view_outlives_message_queue_and_node(directory: Path, name: str, headers: Headers) -> None:
    with warren.attach(directory) as node:
        queue = node.queue(name)
        queue.put_many([body_of(size) for size in SIZES], headers=headers)
        views = []
        while len(views) < len(SIZES):
            for message in queue.get_many(len(SIZES) - len(views), timeout=60):
                views.append(message.view())
                message.ack()
        del message
        node.delete_queue(name)
        assert [bytes(view) for view in views] == [body_of(size) for size in SIZES]
    gc.collect()
    assert [bytes(view) for view in views] == [body_of(size) for size in SIZES]


@pytest.mark.parametrize("role", ["worker-0", "store"])
def test_a_view_outlives_servers_and_files(own: RealNode, role: str) -> None:
    """What it came from is removed, its files and images are used again; the server is killed; the node ends."""
    bodies = [body_of(300_000), body_of(3000)]
    with warren.attach(own.directory) as node:
        queue = node.queue("q")
        queue.put_many(bodies, headers={"n": 1})
        views = []
        for _ in bodies:
            with queue.get(timeout=60) as message:
                views.append(message.view())
        for _round in range(6):  # several files of 1 MiB
            queue.put_many([bytes(300_000)] * 10 + [bytes(3000)] * 300)
            left = 310
            while left:
                messages = queue.get_many(left, timeout=60)
                queue.ack(messages)
                left -= len(messages)
        own.kill(role)
        queue.put(b"again", timeout=60)
        with queue.get(timeout=60) as message:
            assert message.view() == b"again"
        assert views == bodies
    own.stop()
    assert views == bodies


def test_a_view_of_what_was_nacked_or_timed_out_stays(node: warren.Node, name: str) -> None:
    plain, timed = node.queue(name), node.queue(f"{name}-timed", ack_timeout=0.2)
    for queue in (plain, timed):
        queue.put(body_of(5000), headers={"n": 1})
    returned, late = plain.get(timeout=60), timed.get(timeout=60)
    views = [returned.view(), late.view()]
    returned.nack()
    wait_until(lambda: late.timed_out, 30)
    with pytest.raises(warren.AckTimedOut):
        late.ack()
    views += [returned.view(), late.view()]
    for queue in (plain, timed):
        again = queue.get(timeout=60)
        assert again.redelivered
        views.append(again.view())
    node.delete_queues([plain.name, timed.name])
    assert views == [body_of(5000)] * 6


# ---- threads, processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 20_000])
def test_threads_look_at_one_message_at_once(node: warren.Node, name: str, size: int) -> None:
    """Body and view, of messages that one of them acks meanwhile."""
    threads_n, count = 8, 200
    queue, wanted = node.queue(name), body_of(size)
    queue.put_many([wanted] * count, headers={"n": 1})
    messages: list[warren.Message] = []
    while len(messages) < count:
        messages += queue.get_many(count - len(messages), timeout=60)
    kept = messages[0].body
    references = sys.getrefcount(kept)
    start = threading.Barrier(threads_n)
    wrong: list[object] = []

    def look(number: int) -> None:
        start.wait()
        for message in messages:
            for _ in range(5):
                if number % 2:
                    view, body = message.view(), message.body
                else:
                    body, view = message.body, message.view()
                if view.obj is not body or view != wanted or message.headers != {"n": 1}:
                    wrong.append((view, body))
            if number == 0:
                message.ack()

    threads = [threading.Thread(target=look, args=(number,)) for number in range(threads_n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sys.getrefcount(kept) == references
    assert messages[0].body is kept


def test_a_forked_child_has_the_view(node: warren.Node, name: str) -> None:
    queue = node.queue(name)
    queue.put(body_of(300_000), headers={"n": 1})
    with queue.get(timeout=60) as message:
        view = message.view()
    child = os.fork()
    if not child:
        try:
            os._exit(0 if view == body_of(300_000) and message.view() == view else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert view == body_of(300_000)


# ---- messages of all kinds -------------------------------------------------------------------------------------------


def test_dead_letters_have_views(node: warren.Node, name: str) -> None:
    dead = node.queue(f"{name}-dead")
    queue = node.queue(name, dead_letter_exchange="", dead_letter_routing_key=dead.name)
    for size in SIZES:
        queue.put(body_of(size), headers={"n": 1})
        queue.get(timeout=60).reject()
    for size in SIZES:
        with dead.get(timeout=60) as letter:
            assert letter.view() == body_of(size)
            assert letter.view().obj is letter.body
            assert letter.headers["n"] == 1


def test_functions_of_worker_and_serve_see_views(node: warren.Node, name: str) -> None:
    asked, tasks = node.queue(f"{name}-asked"), node.queue(name)
    seen: list[memoryview] = []

    def handle(message: warren.Message) -> None:
        seen.append(message.view())
        worker.stop()

    tasks.put(body_of(300_000), headers={"n": 1})
    worker = node.worker(tasks, handle)
    worker.run()
    assert seen == [body_of(300_000)]

    def answer(message: warren.Message) -> bytes:
        return b"%d" % np.frombuffer(message.view(), "u1").sum()

    server = node.serve(asked, answer)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        for size in SIZES:
            wanted = np.frombuffer(body_of(size), "u1").sum()
            assert node.call(asked.name, body_of(size), 60.0, headers={"n": 1}) == b"%d" % wanted
    finally:
        server.stop()
        thread.join()


def test_an_item_that_cannot_be_read_has_a_view(node: warren.Node, name: str) -> None:
    tasks = node.work_queue(name, serializer="json")
    node.queue(name, create=False).put(b"{no json", headers={"n": 1})
    with pytest.raises(warren.Undecodable) as caught:
        tasks.get(timeout=60)
    assert caught.value.message is not None
    assert caught.value.message.view() == caught.value.body == b"{no json"
    caught.value.message.reject()
    tasks.close()


def test_messages_of_asyncio_have_views(directory: Path, name: str) -> None:
    async def main() -> list[memoryview]:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue(name)
            await queue.put_many([body_of(size) for size in SIZES], headers={"n": 1})
            browsed = await queue.browse()
            views = [check(message, body_of(size), {"n": 1}) for message, size in zip(browsed, SIZES, strict=True)]
            async with queue.consume() as messages:
                async for message in messages:
                    views.append(check(message, body_of(message.view().nbytes), {"n": 1}))
                    await message.ack()
                    if len(views) == 2 * len(SIZES):
                        break
            return views

    assert asyncio.run(main()) == [body_of(size) for size in SIZES] * 2
