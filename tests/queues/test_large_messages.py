"""Messages that are too large for shared memory, through a real node: whole, once, durable as others are, and gone when
the last row is.

Goal: every way into and out of a queue takes them; whoever dies in the middle leaves neither a message without its file
nor a file without a message.
Method: a node with small sizes, so that 60 kB are large; the files in `large/` are looked at.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import warren
import warren.aio
from warren.engine import _core
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import CorruptRecord
from warren.engine.kernel.formats import LARGE_HEADER
from warren.engine.queues.folder import Folder
from warren.engine.queues.large_files import ids_in
from warren.workers.cli.check import Checked, verify
from warren.workers.client.client import Client
from warren.workers.faces.aio.line import Line
from warren.workers.faces.row_columns import Rows
from warren.workers.faces.row_publish import put_rows

from support import command_line, large_file
from support.real_node import RealNode, frozen
from support.small_disk import Disk
from support.waiting import wait_until

SIZES = {
    "workers": 2,
    "file_bytes": 1 << 18,
    "arena_bytes": 1 << 17,
    "message_bytes_max": 1 << 20,
    "journal_files_max": 2,
}
SHARED = (1 << 16) - 16384  #: what goes through shared memory with these
LARGE = 200_000

pytestmark = [pytest.mark.integration]


def body(number: int, size: int = LARGE) -> bytes:
    """Bytes that say which message they are of, all along."""
    line = b"message %9d, " % number
    return (line * (size // len(line) + 1))[:size]


def files(directory: Path) -> list[list[bytes]]:
    """The large messages that have a file, by worker."""
    return [ids_in(Folder.of(directory, worker)) for worker in range(SIZES["workers"])]


def none_left(directory: Path) -> None:
    wait_until(lambda: files(directory) == [[], []], 30, what="the removal of all files of large messages")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("large") / "node", **SIZES) as running:
        yield running


@pytest.fixture
def node(real: RealNode) -> Iterator[warren.Node]:
    """An attached client; what it leaves in `large/` fails the test."""
    with warren.attach(real.directory) as attached:
        yield attached
        for queue in attached.queues():
            attached.delete_queue(queue)
    none_left(real.directory)


def test_what_goes_through_shared_memory_is_as_the_settings_say(real: RealNode) -> None:
    settings = NodeDirectory(real.directory).read().settings
    assert (settings.shared_bytes_max, settings.message_bytes_max) == (SHARED, 1 << 20)


@pytest.mark.parametrize("size", [4095, 4096, SHARED - 1, SHARED, SHARED + 1, LARGE, (1 << 20) - 1, 1 << 20])
@pytest.mark.parametrize("durability", ["none", "written", "synced"])
def test_sizes_around_each_border_come_back_whole(
    real: RealNode, node: warren.Node, size: int, durability: warren.Durability
) -> None:
    queue = node.queue("borders")
    queue.put(body(7, size), durability=durability)
    message = queue.get(timeout=30)
    assert message.body == body(7, size)
    assert bytes(message.view()) == body(7, size)
    assert sum(map(len, files(real.directory))) == (size > SHARED)
    message.ack()


def test_headers_count_for_the_size(real: RealNode, node: warren.Node) -> None:
    queue = node.queue("headers")
    queue.put(body(1, SHARED - 100), headers={"why": "x" * 200})
    message = queue.get(timeout=30)
    assert (message.headers, len(message.body)) == ({"why": "x" * 200}, SHARED - 100)
    assert sum(map(len, files(real.directory))) == 1
    message.ack()
    with pytest.raises(warren.MessageTooLarge, match="message_bytes_max = 1048576"):
        queue.put(body(1, (1 << 20) - 10), headers={"why": "x" * 200})


def test_what_is_too_large_is_refused_before_anything_is_sent(real: RealNode, node: warren.Node) -> None:
    queue = node.queue("refused")
    for bodies in ([body(1), bytes((1 << 20) + 1)], [b"", memoryview(bytes(2 << 20))]):
        with pytest.raises(warren.MessageTooLarge, match="larger than message_bytes_max"):
            queue.put_many(bodies)
    assert queue.stats()["ready"] == 0


def test_many_of_all_sizes_keep_their_order(node: warren.Node) -> None:
    queue = node.queue("many")
    sizes = [LARGE if n % 7 == 3 else 60_000 if n % 7 == 5 else 10 + n for n in range(150)]
    wanted = [body(n, size) for n, size in enumerate(sizes)]
    queue.put_many(wanted, headers=[{"n": n} for n in range(150)])
    assert queue.stats()["ready"] == 150
    assert [message.body for message in queue.browse(1000)] == wanted
    got = queue.get_many(150, timeout=30)
    while len(got) < 150:
        got += queue.get_many(150 - len(got), timeout=30)
    assert [(message.body, message.headers["n"]) for message in got] == [(item, n) for n, item in enumerate(wanted)]
    queue.ack(got)


def test_one_file_for_queues_of_two_workers(real: RealNode, node: warren.Node) -> None:
    """Links of one file, each of which goes when the last row of its worker has gone."""
    names = [f"fan-{n}" for n in range(6)]
    node.declare_exchange("fan", "fanout")
    for name in names:
        node.queue(name)
        node.bind(name, "fan")
    node.publish(body(5), "fan", headers={"to": "all"})
    there = files(real.directory)
    assert [len(ids) for ids in there] == [1, 1]
    found = [Folder.of(real.directory, worker).large / there[0][0].hex() for worker in (0, 1)]
    assert found[0].samefile(found[1])
    content, size = found[0].read_bytes(), LARGE_HEADER.size
    meta = content[size : size + LARGE_HEADER.unpack(content, "meta_length")]
    assert content == large_file.built(NodeDirectory(real.directory).read().node_id, there[0][0], meta, body(5))
    assert found[0].stat().st_nlink == 2
    for name in names:
        message = node.queue(name).get(timeout=30)
        assert (message.body, message.headers) == (body(5), {"to": "all"})
        message.ack()
    node.delete_exchange("fan")


def test_transient_ones_are_not_synced_and_go_as_well(node: warren.Node) -> None:
    queue = node.queue("transient", durable=False)
    queue.put(body(1))
    durable = node.queue("kept")
    durable.put(body(2), persistent=False)
    for source, number in ((queue, 1), (durable, 2)):
        message = source.get(timeout=30)
        assert message.body == body(number)
        message.ack()


def test_returns_delays_and_the_end_of_queues(real: RealNode, node: warren.Node) -> None:
    queue = node.queue("returns")
    queue.put(body(1))
    first = queue.get(timeout=30)
    first.nack()
    again = queue.get(timeout=30)
    assert (again.body, again.redelivered) == (body(1), True)
    again.nack(delay=0.05)
    late = queue.get(timeout=30)
    assert late.body == body(1)
    late.ack()
    queue.put(body(2), delay=0.05)
    queue.put(body(3), ttl=0.05)
    message = queue.get(timeout=30)
    while message.body != body(2):
        message.ack()
        message = queue.get(timeout=30)
    message.ack()
    queue = node.queue("purged")
    queue.put_many([body(n) for n in range(5)])
    assert queue.purge() == 5
    none_left(real.directory)
    queue.put_many([body(n) for n in range(5)])
    assert sum(map(len, files(real.directory))) == 5
    node.delete_queue("purged")
    none_left(real.directory)


def test_a_full_queue_refuses_and_keeps_no_file(real: RealNode, node: warren.Node) -> None:
    queue = node.queue("full", max_length=1, overflow="reject-publish")
    queue.put(body(1))
    with pytest.raises(warren.QueueFull):
        queue.put(body(2))
    wait_until(lambda: sum(map(len, files(real.directory))) == 1, 30, what="the removal of the refused message's file")
    node.queue("first", max_length_bytes=2 * LARGE).put_many([body(n) for n in range(4)])
    assert [message.body for message in node.queue("first").browse(10)] == [body(2), body(3)]


def test_dead_letters_have_a_file_of_their_own(real: RealNode, node: warren.Node) -> None:
    node.queue("dead")
    queue = node.queue("mortal", dead_letter_exchange="", dead_letter_routing_key="dead")
    queue.put_many([body(n) for n in range(3)], headers={"of": "mortal"})
    for _ in range(3):
        queue.get(timeout=30).nack(requeue=False)
    for number in range(3):
        letter = node.queue("dead").get(timeout=60)
        assert letter.body == body(number)
        assert letter.headers["x-death"][0]["queue"] == "mortal"
        letter.ack()


def test_an_event_loop_goes_on_while_they_are_written(real: RealNode, node: warren.Node) -> None:
    """Files are written in threads; order is that of the calls of a task."""

    async def program() -> list[bytes]:
        async with await warren.aio.attach(real.directory) as attached:
            queue = await attached.queue("loop")
            turns = 0

            async def ticks() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            ticking = asyncio.create_task(ticks())
            await queue.put(body(0, 1 << 20))
            assert turns > 1, "the loop stood still while a large message was written"
            ticking.cancel()
            await queue.put_many([body(n, LARGE if n % 3 else 100) for n in range(1, 20)])
            await attached.publish(body(20), "", "loop")
            found = []
            while len(found) < 21:
                message = await queue.get(timeout=30)
                found.append(message.body)
                await message.ack()
            return found

    found = asyncio.run(program())
    assert found == [body(0, 1 << 20), *(body(n, LARGE if n % 3 else 100) for n in range(1, 20)), body(20)]


def test_an_event_loop_does_not_read_them_itself(
    real: RealNode, node: warren.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[int] = []
    read_some = Line._read_some

    def watched(line: Line, handle: _core.QueueHandle) -> None:
        readers.append(threading.get_ident())
        read_some(line, handle)

    monkeypatch.setattr(Line, "_read_some", watched)
    polled = []

    async def program() -> None:
        async with await warren.aio.attach(real.directory) as attached:
            queue = await attached.queue("read")
            handle = queue._line.handle
            for number in range(3):
                await queue.put(body(number))
                message = await queue.get(timeout=30)
                assert message.body == body(number)
                await message.ack()
            await queue.put(body(3))
            while (answer := handle.poll(1, 1, True)) != _core.POLL_SLOW:
                polled.append(answer)
                await asyncio.sleep(0.01)
            assert (await queue.get(timeout=30)).body == body(3)

    asyncio.run(program())
    assert len(readers) >= 4
    assert threading.get_ident() not in readers
    assert not any(isinstance(answer, list) for answer in polled), "a message was read by the loop's own thread"


def test_inspect_lists_their_files(real: RealNode, node: warren.Node) -> None:
    queue = node.queue("shown")
    fanned = [node.queue(f"shown-{number}") for number in range(2 * SIZES["workers"])]
    node.declare_exchange("shown", type="fanout")
    for one in fanned:
        node.bind(one, "shown")
    queue.put(body(1))
    node.publish(body(2), "shown", "")
    there = files(real.directory)
    rows = command_line.warren("inspect", real.directory, "large", "--json").json()["large"]
    assert sorted((row["worker"], row["id"]) for row in rows) == sorted(
        (worker, id.hex()) for worker, ids in enumerate(there) for id in ids
    )
    first, *more = rows
    assert first["links"] == 1
    assert {row["links"] for row in more} == {len(more)}
    assert all(row["file_bytes"] > LARGE and row["disk_bytes"] >= LARGE for row in rows)
    mine = [row["client_epoch"] for row in node.status()["clients"] if row["pid"] == os.getpid()]
    assert {row["client_epoch"] for row in rows} <= set(mine)
    assert first["id"] in command_line.warren("inspect", real.directory, "large").stdout
    node.delete_exchange("shown")


def test_calls_and_their_answers_may_be_large(real: RealNode, node: warren.Node) -> None:
    node.queue("calls", durable=False)
    worker = node.serve("calls", lambda message: message.body + b"!")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(worker.run)
        try:
            assert node.call("calls", body(1), 60.0) == body(1) + b"!"
        finally:
            worker.stop()
        running.result(60)


def test_rows_of_columns_may_be_large(real: RealNode, node: warren.Node) -> None:
    queue = node.queue("rows")
    bodies = [body(n, LARGE if n % 2 else 50) for n in range(10)]
    client = Client(real.directory, "rows", 5.0)
    try:
        put_rows(client, "rows", Rows(_batch(bodies)), "synced", 30).wait(30)
        found = [item for batch in queue.browse_arrow() for item in batch.column("value").to_pylist()]
        assert found == bodies
        with pytest.raises(warren.MessageTooLarge, match="message_bytes_max"):
            put_rows(client, "rows", Rows(_batch([b"", bytes((1 << 20) + 1)])), "synced", 30)
    finally:
        client.close(5.0)
    assert queue.stats()["ready"] == 10


def _batch(bodies: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(bodies, pa.binary())})


def test_topics_say_what_they_take(node: warren.Node) -> None:
    topic = node.topic("of-small-ones")
    with pytest.raises(warren.MessageTooLarge, match=f"larger than topics and stores take, {SHARED}"):
        topic.append(body(1))
    with pytest.raises(warren.MessageTooLarge, match="send it to queues alone"):
        node.store().write(bytes(16), body(1))


PUBLISHER = """
import sys
import warren
with warren.attach(sys.argv[1]) as node:
    queue = node.queue("killed")
    print("begins", flush=True)
    for number in range(int(sys.argv[2]), 1 << 30):
        line = b"message %9d, " % number
        queue.put((line * (200_000 // len(line) + 1))[:200_000])
        print(number, flush=True)
"""


def publisher(directory: Path, start: int) -> "tuple[int, int]":
    """A process that publishes; its pid, and what it says."""
    reading, writing = os.pipe()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", PUBLISHER, str(directory), str(start)],
        os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        file_actions=[(os.POSIX_SPAWN_DUP2, writing, 1)],
    )
    os.close(writing)
    return pid, reading


def test_publishers_that_are_killed_leave_whole_messages_and_no_file(real: RealNode, node: warren.Node) -> None:
    queue = node.queue("killed")
    confirmed: set[int] = set()
    for turn in range(4):
        pid, reading = publisher(real.directory, turn * 1000)
        with open(reading) as said:
            assert said.readline() == "begins\n"
            for _ in range(turn):
                confirmed.add(int(said.readline()))
            time.sleep(0.003 * turn)  # somewhere in the next one
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            confirmed.update(int(line) for line in said.read().split("\n") if line)
    numbers = []
    while True:
        try:
            message = queue.get(timeout=1)
        except warren.QueueEmpty:  # the worker's word
            break
        number = int(message.body[8:17])
        assert message.body == body(number)
        numbers.append(number)
        message.ack()
    assert len(numbers) == len(set(numbers))
    assert confirmed <= set(numbers)


def test_what_a_publisher_had_submitted_when_it_died_is_published(real: RealNode, node: warren.Node) -> None:
    queue = node.queue("killed")
    pid, reading = publisher(real.directory, 5)
    with open(reading) as said:
        assert said.readline() == "begins\n"
        with frozen(real, "worker-0"), frozen(real, "worker-1"):
            wait_until(lambda: any(files(real.directory)), 30, what="a file of the publisher")
            time.sleep(0.2)  # its command is submitted, or never will be
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    wait_until(lambda: queue.stats()["ready"] == sum(map(len, files(real.directory))), 30, what="a row for each file")
    for message in queue.get_many(100, timeout=30):
        assert message.body == body(int(message.body[8:17]))
        message.ack()


@pytest.mark.parametrize("role", ["worker-0", "store", "all"])
def test_kills_of_the_node_lose_nothing_that_was_confirmed(tmp_path: Path, role: str) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, **SIZES | {"workers": 1}) as real:
        with warren.attach(directory) as node:
            queue = node.queue("kept")
            queue.put_many([body(n) for n in range(8)])
            for message in queue.get_many(3, timeout=30):
                message.ack()
            held = queue.get(timeout=30)
            assert held.body == body(3)
            if role != "all":
                real.kill(role)
                queue.put(body(8))
        if role == "all":
            real.kill_all()
            real.start()
        with warren.attach(directory) as node:
            queue = node.queue("kept")
            wanted = list(range(3, 8 if role == "all" else 9))
            found = []
            while len(found) < len(wanted):
                message = queue.get(timeout=30)
                number = int(message.body[8:17])
                assert message.body == body(number)
                if number >= 3:  # an ack that was not durable yet
                    found.append(number)
                message.ack()
            assert sorted(found) == wanted
        wait_until(lambda: not ids_in(Folder.of(directory, 0)), 30, what="the removal of all files")


def test_a_start_counts_what_lacks_its_file_and_removes_what_nobody_needs(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, **SIZES | {"workers": 1}) as real:
        with warren.attach(directory) as node:
            node.queue("kept").put_many([body(n) for n in range(4)])
        folder = Folder.of(directory, 0)
        ids = sorted(ids_in(folder))
        real.stop()
        (folder.large / ids[1].hex()).unlink()
        stray = folder.large / (b"\0" * 7 + b"\1" + b"\0" * 8).hex()
        stray.write_bytes(b"of a publisher that died long ago")
        mine = folder.large / "notes.txt"
        mine.write_text("what is no message stays")
        real.start()
        with warren.attach(directory) as node:
            queue = node.queue("kept")
            assert queue.stats()["lost"] == 1
            got = queue.get_many(4, timeout=30)
            assert [message.body for message in got] == [body(n) for n in (0, 2, 3)]
            wait_until(lambda: not stray.exists(), 30, what="the removal of a stray file")
            queue.ack(got)
            wait_until(lambda: not ids_in(folder), 30, what="the removal of all files")
        assert mine.read_text() == "what is no message stays"


def test_a_damaged_file_costs_its_message_and_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, **SIZES | {"workers": 1}), warren.attach(directory) as node:
        queue = node.queue("kept")
        queue.put_many([body(n) for n in range(2)])
        folder = Folder.of(directory, 0)
        first = min(ids_in(folder))
        with open(folder.large / first.hex(), "r+b") as file:
            file.seek(100_000)
            file.write(b"other bytes")
        with pytest.raises(CorruptRecord, match=f"large/{first.hex()}.*the message is lost"):
            queue.get(timeout=30)
        message = queue.get(timeout=30)
        assert message.body == body(1)
        message.ack()
        wait_until(lambda: not ids_in(folder), 30, what="the removal of all files")


def test_large_messages_move_with_their_queues(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    names = [f"q{n}" for n in range(4)]
    for workers in (2, 1, 3):
        with RealNode(directory, **SIZES | {"workers": workers}), warren.attach(directory) as node:
            for name in names:
                queue = node.queue(name)
                if workers == 2:
                    queue.put(body(int(name[1:])))
                assert [message.body for message in queue.browse(10)] == [body(int(name[1:]))]
            if workers == 3:
                for name in names:
                    node.queue(name).get(timeout=30).ack()
                wait_until(
                    lambda: not any(ids_in(Folder.of(directory, worker)) for worker in range(3)),
                    30,
                    what="the removal of all files",
                )


def test_on_a_full_disk_a_publisher_waits_and_leaves_nothing(small_disk: Path) -> None:
    """What has no room is not begun, and goes on when there is some."""
    disk = Disk(small_disk)
    sizes = SIZES | {"workers": 1, "message_bytes_max": 8 << 20, "disk_free_bytes_min": 0}
    with RealNode(disk.directory, **sizes), warren.attach(disk.directory) as node:
        queue = node.queue("waits")
        queue.put(b"begins")  # the journal has its files
        folder = Folder.of(disk.directory, 0)
        disk.leave(2 << 20)
        began = time.monotonic()
        with pytest.raises(warren.TimedOut):
            queue.put(body(1, 6 << 20), timeout=0.3)
        assert time.monotonic() - began >= 0.3
        assert ids_in(folder) == []
        with ThreadPoolExecutor(1) as thread:
            waits = thread.submit(queue.put, body(2, 6 << 20), timeout=60)
            time.sleep(0.2)
            assert not waits.done()
            disk.empty()
            waits.result(60)
        assert queue.get(timeout=30).body == b"begins"
        message = queue.get(timeout=30)
        assert message.body == body(2, 6 << 20)
        message.ack()


def test_a_check_reads_the_files_that_rows_name(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, **SIZES | {"workers": 1}), warren.attach(directory) as node:
        node.queue("kept").put_many([body(n) for n in range(3)])
    folder = Folder.of(directory, 0)
    ids = sorted(ids_in(folder))
    (folder.large / ("00" * 16)).write_bytes(b"what no row names is left to the next start")

    def checked() -> list[Checked]:
        return [item for item in verify(NodeDirectory(directory)).files if item.kind == "large"]

    assert [(item.problem, item.bytes) for item in checked()] == [("", LARGE)] * 3
    with open(folder.large / ids[1].hex(), "r+b") as file:
        file.seek(100_000)
        file.write(b"other bytes")
    (folder.large / ids[2].hex()).unlink()
    found = {Path(item.path).name: item.problem for item in checked()}
    assert found[ids[0].hex()] == ""
    assert found[ids[1].hex()] == "bad crc: its message, of queue 'kept', is lost"
    assert found[ids[2].hex()] == "is missing: its message is lost"
