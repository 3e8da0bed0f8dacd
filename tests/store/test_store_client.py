"""Goal: the store's client keeps its promises for batches as for single messages, whatever it is mixed with.
Method: a real node with small files; programs write, read, remove and die as their users would."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc.superblock import Superblock

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("node") / "data") as node:
        yield node


@pytest.fixture(params=["persistent", "transient"])
def store(running: RealNode, request: pytest.FixtureRequest) -> Iterator[warren.Store]:
    with warren.attach(running.directory, name="test-store") as node:
        yield node.store(transient=request.param == "transient")


@pytest.fixture
def persistent(running: RealNode) -> Iterator[warren.Store]:
    with warren.attach(running.directory, name="test-store") as node:
        yield node.store()


def bodies_of(count: int, size_max: int, seed: int = 1) -> list[bytes]:
    generator = random.Random(seed)
    return [generator.randbytes(generator.randrange(size_max)) for _ in range(count)]


def stopped(running: RealNode) -> int:
    """SIGSTOP the store server: what is submitted stays under way until `go_on`."""
    pid = running.pids()["store"]
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    return pid


def test_batches_come_back(store: warren.Store) -> None:
    """All shapes of arguments; sizes around the cuts of a batch; read before and after they are processed."""
    for count, size_max in ((1, 100), (2, 1), (1000, 100), (1025, 50), (3000, 200), (200, 5000), (5, 300_000)):
        ids, bodies = store.new_ids(count), bodies_of(count, size_max)
        given: list[object] = [ids, tuple(ids), b"".join(ids), memoryview(b"".join(ids)), iter(ids)]
        for way in given:
            confirm = store.write_many(way, bodies, durability="none", wait=False)  # type: ignore[arg-type]
            assert store.read_many(ids) == bodies, (count, type(way))
            assert confirm is not None
            confirm.wait(20)
            assert confirm.done()
        assert store.read_many(b"".join(ids)) == bodies
        assert [store.read(id) for id in ids[:10]] == bodies[:10]
        for _ in given:
            assert store.contains(ids[-1])
            store.remove(ids)
        store.barrier()
        assert store.read_many(ids) == [None] * count
        assert not store.contains(ids[0])


def test_what_was_removed_is_not_read(store: warren.Store) -> None:
    """As a program does it, one after another: by id, in batches, with other references, and written anew."""
    for number in range(300):
        id = store.new_id()
        store.write(id, b"%d" % number, durability="none")
        assert store.remove([id]) in (0, 1)
        assert store.read(id) is None
    ids = store.new_ids(6000)
    store.write_many(ids, [b"body"] * 6000, durability="none")
    store.remove(ids[::2])
    assert store.read_many(ids) == [None, b"body"] * 3000
    store.write_many(ids[1:101:2], [b"again"] * 50, durability="none")  # another reference: the first body stays
    store.remove(ids[1::2])
    assert store.read_many(ids[1:101:2]) == [b"body"] * 50
    assert store.read_many(ids[101::2]) == [None] * 2950
    store.remove(ids[1:101:2])
    store.write(ids[1], b"anew", durability="none")
    assert store.read(ids[1]) == b"anew"
    assert store.read(ids[3]) is None
    store.remove([ids[1]])
    assert [store.read(id) for id in ids[:10]] == [None] * 10


def test_a_read_waits_for_the_removal_of_what_it_reads_alone(running: RealNode, store: warren.Store) -> None:
    """The server stands still: other messages are read all the same."""
    removed, kept = store.new_id(), store.new_id()
    for id in (removed, kept):
        store.write(id, b"body", durability="none")
    store.barrier()
    with warren.attach(running.directory, call_timeout=0.2) as short:
        impatient = short.store(store.transient)
        mine = store.new_id()
        impatient.write(mine, b"body", durability="none")
        impatient.barrier(timeout=60)
        pid = stopped(running)
        try:
            assert store.remove([removed]) == 0
            assert impatient.remove([mine]) == 0
            with ThreadPoolExecutor(2) as pool:
                reads = [pool.submit(store.read, removed), pool.submit(store.read_many, [kept, removed])]
                assert store.read(kept) == impatient.read(kept) == b"body"
                assert impatient.read(removed) == b"body", "another client's removal is not waited for"
                for use in (lambda: impatient.read(mine), lambda: impatient.read_many([kept, mine])):
                    with pytest.raises(warren.TimedOut, match="to remove this message"):
                        use()
                assert not any(read.done() for read in reads)
                os.kill(pid, signal.SIGCONT)
                assert [read.result(60) for read in reads] == [None, [b"body", None]]
            impatient.barrier(timeout=60)
            assert impatient.read(mine) is None
        finally:
            os.kill(pid, signal.SIGCONT)
        store.remove([kept])


def test_bodies_of_all_kinds(store: warren.Store) -> None:
    kinds: list[Callable[[bytes], object]] = [bytes, bytearray, memoryview]
    plain = bodies_of(300, 60)
    ids = store.new_ids(300)
    store.write_many(ids, [kinds[n % 3](body) for n, body in enumerate(plain)])  # type: ignore[misc]
    assert store.read_many(ids) == plain
    store.write_many(iter(()), ())
    confirm = store.write_many([], [], wait=False)
    assert confirm is not None
    assert confirm.done()
    assert store.read_many([]) == []
    assert store.new_ids(0) == []
    store.remove(b"".join(ids))
    store.barrier()
    assert store.read_many(ids) == [None] * 300


def test_what_is_wrong_refuses_the_whole_batch(store: warren.Store) -> None:
    ids, bodies = store.new_ids(2000), [b"body"] * 2000
    wrong: list[tuple[object, object]] = [
        (ids[:-1], bodies),
        ([*ids[:-1], b"short"], bodies),
        ([*ids[:-1], "x" * 16], bodies),
        (b"".join(ids) + b"x", bodies),
        (ids, [*bodies[:-1], "text"]),
        (ids, [*bodies[:-1], None]),
        (ids, [*bodies[:-1], bytes(500001)]),
    ]
    for some, many in wrong:
        with pytest.raises(warren.UsageError):
            store.write_many(some, many)  # type: ignore[arg-type]
    for some, many in ((5, bodies), (ids, 5)):
        with pytest.raises(warren.UsageError, match="must be a list"):
            store.write_many(some, many)  # type: ignore[arg-type]
    for durability in ("sync", 1, b"none"):
        with pytest.raises(warren.UsageError):
            store.write_many(ids, bodies, durability=durability)  # type: ignore[arg-type]
        with pytest.raises(warren.UsageError):
            store.write(ids[0], b"", durability)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        store.write(ids[0])  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        store.write(ids[0], b"", durable="none")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        store.write(ids[0], b"", "none", durability="none")  # type: ignore[misc]
    with pytest.raises(warren.UsageError):
        store.write(ids[0], b"", timeout=-1.0)
    with pytest.raises(warren.UsageError):
        store.new_ids(-1)
    with pytest.raises(warren.UsageError, match="from 0 to 1000000, not 1000001"):
        store.new_ids(1_000_001)
    with pytest.raises(warren.UsageError):
        store.read(b"short")
    assert store.read_many(ids) == [None] * 2000


def test_read_your_writes_while_nothing_is_processed(running: RealNode, store: warren.Store) -> None:
    """Batches, single writes and eliminations, with the server stopped in its tracks; then it goes on."""
    ids, bodies = store.new_ids(600), bodies_of(600, 80, seed=3)
    with warren.attach(running.directory, name="other") as node:
        other = node.store(transient=store.transient)
        other.barrier()
        store.barrier()
        pid = stopped(running)
        try:
            confirm = store.write_many(ids, bodies, wait=False)
            assert store.read_many(ids) == bodies
            assert other.read_many(ids) == bodies, "before any server has seen it"
            gone = [*ids[100:200], ids[450]]
            assert store.remove(gone) == len(gone), "all are eliminated"
            assert store.remove(ids[300:310]) == 10
            expected = [None if id in gone or 300 <= n < 310 else bodies[n] for n, id in enumerate(ids)]
            assert store.read_many(ids) == expected
            assert other.read_many(ids) == expected
            assert other.remove(ids[0:1]) == 0, "only the writer can eliminate"
        finally:
            os.kill(pid, signal.SIGCONT)
        assert confirm is not None
        confirm.wait(20)
        other.barrier(timeout=20)
        store.barrier()
        # whose commands the server takes first nobody promises: the removal came behind the write, or before it
        expected[0] = store.read_many(ids[:1])[0]
        assert expected[0] in (None, bodies[0])
        assert store.read_many(ids) == expected
        assert other.read_many(ids) == expected
        store.remove([id for id, body in zip(ids, expected, strict=True) if body is not None])
        store.barrier()
        assert other.read_many(ids) == [None] * 600


def test_mixed_ids(store: warren.Store) -> None:
    """Runs of new ids, ids of others, repeated ones, one list: each as often as it was written."""
    counted, random_ids = store.new_ids(400), [os.urandom(16) for _ in range(100)]
    generator = random.Random(7)
    ids = counted[:150] + random_ids[:50] + counted[150:] + counted[20:30] + random_ids[50:] + random_ids[:3]
    prefix = os.urandom(8)
    ids += [prefix + n.to_bytes(8, "big") for n in range(2**64 - 70, 2**64)] + [prefix + bytes(8)]
    bodies = {id: generator.randbytes(generator.randrange(100)) for id in ids}
    store.write_many(ids, [bodies[id] for id in ids])
    some = ids * 2
    generator.shuffle(some)
    assert store.read_many(some) == [bodies[id] for id in some]
    left = {id: ids.count(id) for id in ids}
    while any(left.values()):
        now = [id for id in left if left[id]]
        store.remove(now)
        store.barrier()
        for id in now:
            left[id] -= 1
        assert store.read_many(list(left)) == [bodies[id] if left[id] else None for id in left]


def test_reads_while_files_roll_and_go(running: RealNode, persistent: warren.Store) -> None:
    """A writer and a remover keep files rolling and going; a reader finds every message that is held, whole."""
    ending = threading.Event()
    wrong: list[str] = []
    kept_ids, kept = persistent.new_ids(200), bodies_of(200, 3000, seed=5)
    persistent.write_many(kept_ids, kept)

    def read() -> None:
        with warren.attach(running.directory, name="reader") as node:
            reader = node.store()
            generator = random.Random(9)
            while not ending.is_set():
                some = generator.sample(range(200), 50)
                found = reader.read_many([kept_ids[n] for n in some])
                if found != [kept[n] for n in some]:
                    wrong.append(f"{sum(body is None for body in found)} of 50 not found")
                n = generator.randrange(200)
                if reader.read(kept_ids[n]) != kept[n]:
                    wrong.append(f"message {n}")

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for round in range(30):
            ids = persistent.new_ids(300)
            persistent.write_many(ids, [b"%d" % round * 500] * 300, durability="written")
            persistent.remove(ids)
        persistent.barrier("synced")
    finally:
        ending.set()
        for thread in threads:
            thread.join(30)
    assert not wrong, wrong[:5]
    persistent.remove(kept_ids)
    persistent.barrier()


def test_a_kill_in_the_middle_of_batches(running: RealNode, persistent: warren.Store) -> None:
    """Each message of a batch is there once, whatever part of it the killed server had executed."""
    for round in range(3):
        batches = []
        for _ in range(20):
            ids, bodies = persistent.new_ids(1000), bodies_of(1000, 60, seed=round)
            batches.append((ids, bodies, persistent.write_many(ids, bodies, wait=False)))
        running.kill("store")
        for ids, bodies, confirm in batches:
            assert persistent.read_many(ids) == bodies
            assert confirm is not None
            confirm.wait(30)
        for ids, bodies, _confirm in batches:
            assert persistent.read_many(ids) == bodies
            persistent.remove(ids)
        persistent.barrier(timeout=30)
        for ids, _bodies, _confirm in batches:
            assert persistent.read_many(ids) == [None] * 1000, "none was stored twice"


def test_a_forked_child_has_an_attachment_of_its_own(store: warren.Store) -> None:
    ids, bodies = store.new_ids(100), bodies_of(100, 50)
    store.write_many(ids, bodies, durability="none")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            mine = store.new_ids(100)
            store.write_many(mine, bodies, durability="none")
            good = not set(mine) & set(ids) and store.read_many(ids) == bodies and store.read_many(mine) == bodies
            store.remove(mine)
            store.barrier(timeout=10)
            code = 0 if good else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.read_many(ids) == bodies
    store.remove(ids)
    store.barrier()


def test_more_than_ring_and_arena_hold(store: warren.Store) -> None:
    """One call of many times what fits: it waits and goes on; a timeout ends it."""
    ids = store.new_ids(5000)
    store.write_many(ids, [bytes(1000)] * 5000, durability="none")
    assert store.read_many(ids) == [bytes(1000)] * 5000
    assert store.remove(ids) <= 5000
    single = [os.urandom(16) for _ in range(3000)]
    store.write_many(single, [b"x"] * 3000, durability="none")
    store.remove(single)
    store.barrier()
    assert store.read_many(ids + single) == [None] * 8000


def test_a_node_that_was_restarted(tmp_path: Path) -> None:
    """The store of before goes on with the node of after: what was synced is there, ids are new."""
    with RealNode(tmp_path / "data") as running, warren.attach(running.directory) as node:
        store = node.store()
        ids, bodies = store.new_ids(2500), bodies_of(2500, 100)
        store.write_many(ids, bodies)
        running.stop()
        with pytest.raises((warren.ClosedError, warren.PeerLost)):
            store.write(store.new_id(), b"x", timeout=1.0)
        running.start()
        assert store.read_many(ids) == bodies
        more = store.new_ids(10)
        assert not set(more) & set(ids)
        store.write_many(more, bodies[:10])
        store.remove(ids + more)
        store.barrier()
        assert store.read_many(ids + more) == [None] * 2510


def test_terminate_and_the_death_point(running: RealNode, persistent: warren.Store) -> None:
    """An end in between: nothing that was confirmed is dropped, and the store is used again."""
    before = persistent.new_ids(10)
    persistent.write_many(before, [b"before"] * 10)
    persistent.terminate()
    assert persistent.delete_and_terminate(timeout=20) == 0, "nothing was under way"
    after = persistent.new_ids(10)
    persistent.write_many(after, [b"after"] * 10)
    assert persistent.read_many(before + after) == [b"before"] * 10 + [b"after"] * 10
    persistent.remove(before + after)
    persistent.terminate()
    assert persistent.read_many(before + after) == [None] * 20


def test_what_was_dropped_is_said(running: RealNode, persistent: warren.Store) -> None:
    """Writes behind a backlog when the store hears of the end: each is stored, or its Confirm raises; never both."""
    dropped = 0
    for round in range(10):
        pid = stopped(running)
        ids, batch, backlog = persistent.new_ids(100), persistent.new_ids(500), persistent.new_ids(16)
        before = persistent.write_many(backlog, [bytes(100_000)] * 16, wait=False)  # files must roll for it
        confirms = [persistent.write(id, b"single", wait=False) for id in ids]
        many = persistent.write_many(batch, [b"batch"] * 500, wait=False)
        counted: list[int] = []
        ending = threading.Thread(
            target=lambda found=counted: found.append(persistent.delete_and_terminate(timeout=30))
        )
        ending.start()
        os.kill(pid, signal.SIGCONT)
        ending.join(30)
        assert counted, "it ended"
        dropped += counted[0]
        for id, confirm in zip(ids, confirms, strict=True):
            assert confirm is not None
            error = confirm.exception(10)
            assert error is None or isinstance(error, warren.ClosedError), error
            assert persistent.read(id) == (b"single" if error is None else None), (round, error)
        assert many is not None
        error = many.exception(10)
        found = persistent.read_many(batch)
        assert set(found) <= {b"batch", None}
        assert (None in found) == (error is not None)
        assert before is not None
        assert before.exception(10) is None or None in persistent.read_many(backlog)
        persistent.write(batch[0], b"again")
        persistent.remove([*ids, *batch, *backlog])
        persistent.remove(batch[:1] if found[0] else [])
        persistent.barrier()
        assert persistent.read_many([*ids, *batch, *backlog]) == [None] * 616
    print(f"{dropped} commands were dropped")


def test_an_eliminated_write_is_confirmed(running: RealNode, persistent: warren.Store) -> None:
    """Also when what came before it in the ring waits for nobody's sync."""
    for batch in (1, 300):
        first, ids = persistent.new_ids(1), persistent.new_ids(batch)
        persistent.write_many(first, [b"first"])
        pid = stopped(running)
        persistent.remove(first)
        confirm = persistent.write_many(ids, [b"eliminated"] * batch, wait=False)
        assert persistent.remove(ids) == batch
        os.kill(pid, signal.SIGCONT)
        assert confirm is not None
        confirm.wait(20)
        assert persistent.read_many(first + ids) == [None] * (batch + 1)


def test_a_reader_waits_for_the_server_that_is_starting(tmp_path: Path) -> None:
    """A file that went with a server that died is no damage: the next server's index knows where its messages are."""
    settings = {"file_bytes": 256 << 10, "arena_bytes": 2 << 20, "message_bytes_max": 128 << 10, "images_n": 3}
    with RealNode(tmp_path / "data", **settings) as running, warren.attach(running.directory) as node:
        store = node.store()
        ids, bodies = store.new_ids(1000), bodies_of(1000, 4000)
        store.write_many(ids, bodies)
        folder = running.directory / "store" / "persistent"
        file = min(folder.glob("*.rdq"), key=lambda path: int(path.stem))
        superblock = Superblock.attach(NodeDirectory(running.directory).shared_id, LAYOUT_HASH)
        supervisor, server = running.pids()["supervisor"], running.pids()["store"]
        os.kill(supervisor, signal.SIGSTOP)
        try:
            os.kill(server, signal.SIGKILL)
            # What a server that starts does: it says that it has begun, then the sources of a collection go.
            superblock.server_set(0, "begun", superblock.server_get(0, "epoch") + 1)
            file.rename(file.with_suffix(".away"))
            with ThreadPoolExecutor(1) as pool:
                reading = pool.submit(store.read, ids[0])
                with pytest.raises(TimeoutError):
                    reading.result(0.5)
                file.with_suffix(".away").rename(file)
                os.kill(supervisor, signal.SIGCONT)
                assert reading.result(30) == bodies[0]
        finally:
            os.kill(supervisor, signal.SIGCONT)
            superblock.close()
        assert store.read_many(ids) == bodies
