"""Goal: a message whose body is damaged on disk is named once, counted as lost and never delivered again, and its queue
goes on, in whatever way it is read. Method: a node whose bodies lie in data files or in the store; a bit of one body in
each queue is flipped while the node is stopped; then each face reads its queue to the end.
"""

import asyncio
import queue
from collections.abc import Callable
from pathlib import Path

import pytest

import warren
import warren.aio
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel import quarantine
from warren.workers.cli.check import verify

from support.command_line import warren as run
from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

SETTINGS = {
    "workers": 1,
    "journal_files_max": 3,
    "file_bytes": 512 * 1024,
    "message_bytes_max": 100_000,
}
BAD, COUNT = 2, 6
GOOD = [n for n in range(COUNT) if n != BAD]
SIZES = {"data": 3000, "store": 20_000}

Read = Callable[[Path, str], tuple[list[bytes], int]]  #: (bodies, errors)


def by_get(directory: Path, name: str) -> tuple[list[bytes], int]:
    bodies, errors = [], []
    with warren.attach(directory) as node:
        while True:
            try:
                message = node.queue(name).get(timeout=0.5)
            except warren.QueueEmpty:
                break
            except warren.CorruptRecord as error:
                errors.append(error)
                continue
            bodies.append(message.body)
            message.ack()
    for error in errors:
        assert body(name, BAD, 100).rstrip(b"\0") in (directory / error.path).read_bytes()[error.position :][:200]
        assert f"of queue {name!r}" in str(error)
        assert "the message is lost and not delivered again" in str(error)
    return bodies, len(errors)


def by_get_many(directory: Path, name: str) -> tuple[list[bytes], int]:
    bodies, errors = [], 0
    with warren.attach(directory) as node:
        source = node.queue(name)
        while True:
            try:
                messages = source.get_many(100, timeout=0.5)
            except warren.StoreError:
                errors += 1
                continue
            if not messages:
                return bodies, errors
            bodies += [message.body for message in messages]
            source.ack(messages)


def by_consume(directory: Path, name: str) -> tuple[list[bytes], int]:
    bodies, errors = [], 0
    with warren.attach(directory) as node:
        while True:
            try:
                for message in node.queue(name).consume(timeout=0.5):
                    bodies.append(message.body)
                    message.ack()
            except warren.StoreError:
                errors += 1
                continue
            return bodies, errors


def by_work_queue(directory: Path, name: str) -> tuple[list[bytes], int]:
    bodies, errors = [], 0
    with warren.attach(directory) as node, node.work_queue(name) as tasks:
        while True:
            try:
                bodies.append(tasks.get(timeout=0.5))
            except queue.Empty:
                break
            except warren.StoreError:
                errors += 1
                continue
            tasks.task_done()
        tasks.join(timeout=10)
    return bodies, errors


def by_aio(directory: Path, name: str) -> tuple[list[bytes], int]:
    async def read() -> tuple[list[bytes], int]:
        bodies, errors = [], 0
        async with warren.aio.attach(directory) as node:
            source = await node.queue(name)
            while True:
                try:
                    async with source.consume(prefetch=4, timeout=0.5) as messages:
                        async for message in messages:
                            bodies.append(message.body)
                            await message.ack()
                except warren.StoreError:
                    errors += 1
                    continue
                return bodies, errors

    return asyncio.run(read())


def by_browse(source: warren.Queue) -> list[bytes]:
    return [message.body for message in source.browse()]


def by_browse_arrow(source: warren.Queue) -> list[bytes]:
    return [value for batch in source.browse_arrow() for value in batch.column("value").to_pylist()]


FACES: dict[str, Read] = {
    "get": by_get,
    "get_many": by_get_many,
    "consume": by_consume,
    "work_queue": by_work_queue,
    "aio": by_aio,
}


def body(name: str, number: int, size: int) -> bytes:
    head = b"<%s %d>" % (name.encode(), number)
    return head + bytes(size - len(head))


def places(directory: Path, where: str) -> list[Path]:
    if where == "data":
        return sorted((directory / "queues" / "worker-0" / "segments").glob("*.dat"))
    return sorted((directory / "store" / "persistent").glob("*.rdq"))


def flip(directory: Path, where: str, what: bytes) -> None:
    """A bit in the middle of the body that begins so, in each of its copies."""
    found = 0
    for path in places(directory, where):
        data = path.read_bytes()
        at = data.find(what)
        if at >= 0:
            found += 1
            with path.open("r+b") as file:
                file.seek(at + 1000)
                file.write(bytes([data[at + 1000] ^ 8]))
    assert found == 1


@pytest.mark.parametrize("where", SIZES)
def test_a_damaged_body_is_named_once_counted_and_passed(
    tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    size = SIZES[where]
    with RealNode(tmp_path / "data", **SETTINGS) as running:
        with warren.attach(running.directory) as node:
            for name in FACES:
                made = node.work_queue(name) if name == "work_queue" else node.queue(name)
                for number in range(COUNT):
                    made.put(body(name, number, size))
            filler = node.queue("filler")
            if where == "data":  # so much that their journal file is flushed
                last = body(list(FACES)[-1], COUNT - 1, size)[:20]

                def flushed() -> bool:
                    filler.put_many([bytes(3000)] * 100)
                    journal = (running.directory / "queues" / "worker-0" / "journal").glob("*.jnl")
                    try:
                        return not any(last in path.read_bytes() for path in journal)
                    except FileNotFoundError:  # one went meanwhile
                        return False

                wait_until(flushed, 30, what="a data file")
        running.stop()
        for name in FACES:
            flip(running.directory, where, body(name, BAD, size)[:20].rstrip(b"\0"))
        running.start()

        with warren.attach(running.directory) as node:
            for look in (by_browse, by_browse_arrow):
                caplog.clear()
                assert look(node.queue("get")) == [body("get", number, size) for number in GOOD], (
                    "a look passes it, too"
                )
                (line,) = caplog.messages
                assert line == f"queue 'get': message {BAD} is left out, its body is damaged; see `warren check`"
        peeked = run("peek", running.directory, "get", "--json")
        assert len(peeked.stdout.splitlines()) == len(GOOD)
        assert "queue get: 1 message among these cannot be read" in peeked.stderr
        assert run("peek", running.directory, "filler").stderr == ""
        for name, read in FACES.items():
            bodies, errors = read(running.directory, name)
            assert bodies == [body(name, number, size) for number in GOOD], name
            assert errors == 1, name
        with warren.attach(running.directory) as node:

            def lost() -> dict[str, int]:
                return {row["name"]: row["lost"] for row in node.status()["queues"] if row["name"] in FACES}

            wait_until(lambda: lost() == dict.fromkeys(FACES, 1), what="counts of what is lost")
            for name in FACES:
                stats = node.queue(name, create=False).stats()
                assert (stats["ready"], stats["unacked"]) == (0, 0), name
            worker = running.directory / "queues" / "worker-0"
            report = worker / quarantine.QUARANTINE / quarantine.REPORT
            wait_until(lambda: len(quarantine.entries(worker)) == len(FACES), what="the report")
            file = ".dat" if where == "data" else "store/persistent"
            assert all(entry.messages == 1 and file in entry.file for entry in quarantine.entries(worker))
            said = [line for line in node.status()["messages"] if "has lost" in line]
            assert said == [f"worker-0 has lost up to {len(FACES)} messages to damaged or missing files: see {report}"]
            assert report.is_file()
        log = (running.directory / "log" / "worker-0.log").read_text()
        assert log.count("dropped: ") == len(FACES)
        running.kill_all()
        running.start()
        for name in FACES:
            with warren.attach(running.directory) as node:
                assert node.queue(name, create=False).get_many(10, timeout=0.2) == []
        running.stop()
        notes = verify(NodeDirectory(running.directory)).notes
        assert any(f"{len(FACES)} messages lost" in note for note in notes if "worker-0/quarantine" in note)
