"""Goal: servers ring an event loop by its socket, and the waiting thread does it wherever they cannot; whatever lies in
the folder of doorbells, nothing else is touched, and nothing stays.

Method: real nodes, with loops whose ticks are far away, so that only the bell or the thread can bring a message. Where
the bell shall do it the thread's call is taken out; where the thread shall do it the bell's is.
"""

import asyncio
import contextlib
import errno
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

import warren
import warren.aio
from warren.engine import _core
from warren.ipc import _core as atomics
from warren.ipc import doorbells
from warren.ipc.layout import CLIENT, SERVER_WORKER_FIRST
from warren.workers.faces.aio import doorbell as bells
from warren.workers.faces.aio import loop as loops

from support.fake_server import FakeNode
from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

LIMIT_S = 60
THREAD = 1  #: WR_WAITS_THREAD, ipc/core/view.h


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("node") / "data") as started:
        yield started


@pytest.fixture
def directory(running: RealNode, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loops, "TICK_S", 3600)
    return running.directory


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Datagrams that a doorbell was read for."""
    read: list[int] = []
    original = bells._rung

    def rung(sock: socket.socket, call: Callable[[], None]) -> None:
        read.append(1)
        original(sock, call)

    monkeypatch.setattr(bells, "_rung", rung)
    return read


@pytest.fixture
def without_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiting thread tells no event loop anything."""
    monkeypatch.setattr(loops.Loop, "_ring", lambda self: None)


async def passes(node: warren.aio.Node, directory: Path, name: str) -> None:
    """A message of another client comes to a task that waits for it."""
    queue = await node.queue(name)
    waiting = asyncio.ensure_future(queue.get())
    while not queue._line.getters:
        await asyncio.sleep(0)
    with warren.attach(directory) as other:
        await asyncio.to_thread(other.queue(name).put, b"x")
    message = await asyncio.wait_for(waiting, LIMIT_S)
    assert message.body == b"x"
    await message.ack()


async def rung(node: warren.aio.Node, directory: Path, name: str, rings: list[int]) -> None:
    """Messages come, until one of them rings: what is there already when somebody waits needs no bell."""
    before = len(rings)
    while len(rings) == before:
        await passes(node, directory, name)


def mine(node: warren.aio.Node) -> bells.Doorbell:
    found = node._loop._doorbell
    assert found is not None
    return found


def place_of(node: warren.aio.Node, directory: Path) -> Path:
    slot = cast("Any", node._loop.client.attached).slot
    return directory / doorbells.FOLDER / doorbells.name(slot.slot, slot.generation)


def run(work: Awaitable[None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work, 2 * LIMIT_S)

    asyncio.run(limited())


# ---- the bell --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_thread")
def test_a_message_comes_by_the_socket_alone(directory: Path, name: str, rings: list[int]) -> None:
    async def main() -> None:
        async with await warren.aio.attach(directory) as node:
            place = place_of(node, directory)
            assert stat.S_ISSOCK(place.lstat().st_mode)
            assert stat.S_IMODE(place.lstat().st_mode) == 0o600
            for _time in range(3):
                await rung(node, directory, name, rings)
            queue = await node.queue(name)
            await queue.put(b"confirmed")
            await (await queue.get()).ack()
        assert mine(node)._socket.fileno() == -1
        wait_until(lambda: not place.exists(), 20, what="the end of the doorbell of who has left")

    run(main())


@pytest.mark.usefixtures("without_thread")
def test_the_next_loop_of_a_client_is_rung(directory: Path, name: str, rings: list[int]) -> None:
    kept: list[warren.aio.Node] = []

    async def first() -> None:
        kept.append(await warren.aio.attach(directory))
        await passes(kept[0], directory, name)

    async def second() -> None:
        had = mine(kept[0])
        await rung(kept[0], directory, name, rings)
        assert mine(kept[0]) is had

    async def last() -> None:
        await kept[0].close()

    for work in (first, second, second, last):
        run(work())


@pytest.mark.usefixtures("without_thread")
def test_a_new_attachment_has_a_new_doorbell(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(real: RealNode) -> None:
        async with await warren.aio.attach(real.directory) as node:
            await passes(node, real.directory, name)
            had = mine(node)
            await asyncio.to_thread(real.stop)
            await asyncio.to_thread(real.start)
            await passes(node, real.directory, name)
            assert mine(node) is not had
            assert had._socket.fileno() == -1

    with RealNode(tmp_path / "data") as real:
        run(main(real))


@pytest.mark.usefixtures("without_thread")
def test_servers_that_were_killed_ring_again(tmp_path: Path, name: str, rings: list[int]) -> None:
    async def main(real: RealNode) -> None:
        async with await warren.aio.attach(real.directory) as node:
            await rung(node, real.directory, name, rings)
            for role in ("worker-0", "worker-1", "store"):
                await asyncio.to_thread(real.kill, role)
            await rung(node, real.directory, name, rings)

    with RealNode(tmp_path / "data") as real:
        run(main(real))


@pytest.mark.usefixtures("without_thread")
def test_a_directory_may_be_renamed(tmp_path: Path, name: str) -> None:
    async def main(real: RealNode) -> None:
        async with await warren.aio.attach(real.directory) as node:
            queue = await node.queue(name)
            with warren.attach(real.directory) as other:
                sink = other.queue(name)
                os.rename(real.directory, tmp_path / "elsewhere")  # before a server has ever rung it
                try:
                    waiting = asyncio.ensure_future(queue.get())
                    while not queue._line.getters:
                        await asyncio.sleep(0)
                    await asyncio.to_thread(sink.put, b"x")
                    await (await asyncio.wait_for(waiting, LIMIT_S)).ack()
                finally:
                    os.rename(tmp_path / "elsewhere", real.directory)

    with RealNode(tmp_path / "data") as real:
        run(main(real))


@pytest.mark.usefixtures("without_thread")
def test_a_child_of_fork_takes_nothing_from_its_parent(directory: Path, name: str) -> None:
    async def main() -> None:
        async with await warren.aio.attach(directory) as node:
            await passes(node, directory, name)
            child = os.fork()
            if child == 0:
                status = 1
                with contextlib.suppress(BaseException):
                    mine(node).close()
                    status = 0
                os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            await passes(node, directory, name)

    run(main())


@pytest.mark.usefixtures("without_thread")
def test_garbage_in_the_socket_is_read_and_forgotten(directory: Path, name: str, rings: list[int]) -> None:
    async def main() -> None:
        async with await warren.aio.attach(directory) as node:
            await passes(node, directory, name)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other:
                other.connect(str(place_of(node, directory)))
                sent = 0
                with contextlib.suppress(BlockingIOError):
                    while sent < 10_000:
                        other.send(b"\xff" * 10_000)
                        sent += 1
                assert 0 < sent < 10_000
                await passes(node, directory, name)
            while len(rings) < sent:
                await asyncio.sleep(0)
            await passes(node, directory, name)

    run(main())


# ---- the thread instead ----------------------------------------------------------------------------------------------


def gone(place: Path, _tmp: Path) -> None:
    place.unlink()


def a_file(place: Path, _tmp: Path) -> None:
    place.unlink()
    place.write_bytes(b"")


def a_pipe(place: Path, _tmp: Path) -> None:
    place.unlink()
    os.mkfifo(place)


def a_link(place: Path, tmp: Path) -> None:
    place.unlink()
    place.symlink_to(tmp / "other")


def a_linked_folder(place: Path, tmp: Path) -> None:
    place.parent.rename(tmp / "kept")
    (tmp / "folder").mkdir()
    (tmp / "other").rename(tmp / "folder" / place.name)
    place.parent.symlink_to(tmp / "folder")


@pytest.mark.parametrize("change", [gone, a_file, a_pipe, a_link, a_linked_folder])
def test_what_is_no_socket_of_the_client_is_not_rung(
    directory: Path, name: str, tmp_path: Path, rings: list[int], change: Callable[[Path, Path], None]
) -> None:
    async def main() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other:
            other.bind(str(tmp_path / "other"))
            async with await warren.aio.attach(directory) as node:
                place = place_of(node, directory)
                change(place, tmp_path)
                try:
                    await passes(node, directory, name)
                    await passes(node, directory, name)
                    with pytest.raises(BlockingIOError):
                        other.recv(1)
                finally:
                    if place.parent.is_symlink():
                        place.parent.unlink()
                        (tmp_path / "kept").rename(place.parent)
                    place.unlink(missing_ok=True)
            assert not rings

    run(main())


def test_a_socket_that_nobody_has_any_more(directory: Path, name: str, rings: list[int]) -> None:
    async def main() -> None:
        async with await warren.aio.attach(directory) as node:
            for _time in range(3):
                await rung(node, directory, name, rings)  # so servers are connected to it
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as another:
                os.dup2(another.fileno(), mine(node)._socket.fileno(), inheritable=False)  # it is closed below the loop
            rings.clear()
            await passes(node, directory, name)
            assert not rings

    run(main())


def test_a_socket_that_is_never_read_holds_up_nobody(directory: Path, name: str) -> None:
    async def main() -> None:
        async with await warren.aio.attach(directory) as node, await warren.aio.attach(directory) as other:
            sock = mine(node)._socket
            asyncio.get_running_loop().remove_reader(sock.fileno())
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as filler:
                filler.connect(str(place_of(node, directory)))
                with contextlib.suppress(BlockingIOError):
                    while True:
                        filler.send(b"x")
                for _time in range(3):
                    await passes(node, directory, name)  # the waiting thread looks from time to time
                    await passes(other, directory, name + ".other")

    run(main())


class DeafLoop(asyncio.SelectorEventLoop):
    """It cannot watch descriptors for others."""

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.ENOENT])
def test_where_there_can_be_no_socket(directory: Path, name: str, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def bind(*_arguments: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    async def main() -> None:
        async with await warren.aio.attach(directory) as node:
            assert node._loop._doorbell is None
            await passes(node, directory, name)

    monkeypatch.setattr(doorbells, "bind", bind)
    run(main())


def test_in_a_loop_that_watches_no_sockets(directory: Path, name: str) -> None:
    async def main() -> None:
        async with await warren.aio.attach(directory) as node:
            assert node._loop._doorbell is None
            await passes(node, directory, name)

    with asyncio.Runner(loop_factory=DeafLoop) as runner:
        runner.run(asyncio.wait_for(main(), LIMIT_S))


def test_others_beside_the_loop_are_woken_as_without_a_doorbell() -> None:
    server = FakeNode()
    core, word = server.client, CLIENT.offset("waiting")

    def waits(shared: bool) -> int:
        """What the word says when the thread has slept."""
        atomics.store32(server.region, word, 0)
        assert not core.watch(SERVER_WORKER_FIRST, _core.WANT_PROCESSED, 1 << 40)
        _core.wait_any([core], [core] if shared else [], _core.waiter_kicks(), 0.01, True)
        return atomics.load32(server.region, word) & 0xFF  # without the mark of who sleeps

    loop = 2 << _core.WANT_PROCESSED
    assert waits(shared=False) == THREAD
    core.set_doorbell(True)
    assert waits(shared=False) == loop
    assert waits(shared=True) == loop | THREAD
    core.set_doorbell(False)
    assert waits(shared=False) == THREAD
    core.end(None)


# ---- the folder ------------------------------------------------------------------------------------------------------

CLIENT_OF_A_LOOP = """
import asyncio, sys, warren.aio
async def main():
    node = await warren.aio.attach(sys.argv[1])
    assert node._loop._doorbell is not None
    print(node._loop.client.attached.slot.slot, node._loop.client.attached.slot.generation, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def client_of_a_loop(directory: Path) -> "tuple[subprocess.Popen[str], Path]":
    paths = os.pathsep.join(path for path in sys.path if path)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT_OF_A_LOOP, str(directory)],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    assert client.stdout is not None
    slot, generation = client.stdout.readline().split()
    return client, directory / doorbells.FOLDER / doorbells.name(int(slot), int(generation))


def test_what_killed_clients_and_nodes_leave_goes(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    folder = directory / doorbells.FOLDER
    with RealNode(directory) as real:
        client, place = client_of_a_loop(directory)
        with client:
            assert stat.S_ISSOCK(place.lstat().st_mode)
            client.kill()
            wait_until(lambda: not place.exists(), 20, what="the end of the doorbell of who was killed")
        client, place = client_of_a_loop(directory)
        with client:
            real.kill("supervisor")
            assert place.exists()
            client.send_signal(signal.SIGKILL)
            wait_until(lambda: not place.exists(), 20, what="the same, by a supervisor that took over")
        client, place = client_of_a_loop(directory)
        with client:
            real.kill_all()
            client.kill()
        assert place.exists()
        (folder / "7-7").symlink_to(tmp_path)
        real.start()
        assert os.listdir(folder) == ["7-7"]  # a stranger's
        (folder / "7-7").unlink()
        real.stop()
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_something_else_in_place_of_the_folder(tmp_path: Path, name: str, kind: str) -> None:
    directory, other = tmp_path / "data", tmp_path / "other"
    with RealNode(directory):
        pass
    other.mkdir()
    kept = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with kept:
        kept.bind(str(other / "1-1"))
        if kind == "link":
            (directory / doorbells.FOLDER).symlink_to(other)
        else:
            (directory / doorbells.FOLDER).write_text("mine")

        async def main() -> None:
            async with await warren.aio.attach(directory) as node:
                assert node._loop._doorbell is None
                await passes(node, directory, name)

        if kind == "link":
            with pytest.raises(AssertionError, match="is a symbolic link of"), RealNode(directory):
                pass
        else:
            with RealNode(directory):
                run(main())
            assert (directory / doorbells.FOLDER).read_text() == "mine"
        assert os.listdir(other) == ["1-1"]


class Swapped:
    """A socket in whose place somebody puts a link while it is bound."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def bind(self, place: str) -> None:
        os.symlink(self.victim, place)


def test_only_a_socket_is_given_a_mode(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    doorbells.make(tmp_path / "data")
    victim = tmp_path / "secret"
    victim.write_text("x")
    victim.chmod(0o400)
    directory = os.open(tmp_path / "data", os.O_RDONLY)
    try:
        with pytest.raises(FileExistsError):
            doorbells.bind(cast("socket.socket", Swapped(victim)), directory, 1, 1)
    finally:
        os.close(directory)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o400
    doorbells.forget(tmp_path / "data", 1, 1)
    assert (tmp_path / "data" / doorbells.FOLDER / "1-1").is_symlink()


def test_both_languages_have_one_name_for_the_folder() -> None:
    header = Path(doorbells.__file__).with_name("core") / "doorbell.h"
    assert re.findall(r'#define WR_DOORBELLS "(.*)"', header.read_text()) == [doorbells.FOLDER]
