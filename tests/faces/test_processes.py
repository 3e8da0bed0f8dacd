"""Goal: queues, work queues, nodes and stores are given to other processes as other objects are, however those start.

Method: a script as a user would write it, for each start method of multiprocessing, which runs in a process of its own:
forkservers stay as long as who began them.
"""

import asyncio
import copy
import json
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
import warren.aio

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

METHODS = multiprocessing.get_all_start_methods()

HEAD = """
import concurrent.futures, json, multiprocessing, os, sys, threading
import warren

directory, method = sys.argv[1:]
context = multiprocessing.get_context(method)
"""

POOL = """
def square(squares, number):
    squares.put(b"%d" % number ** 2)
    return os.getpid()

def clients(node):
    return sorted(client["pid"] for client in node.status()["clients"] if client["kind"] == "client")

if __name__ == "__main__":
    with warren.attach(directory) as node:
        squares = node.queue("squares")
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            pids = set(pool.map(square, [squares] * 40, range(40)))
            seen = pool.submit(clients, node).result(60)
        with context.Pool(1) as pool:
            pool.starmap(square, [(squares, number) for number in range(40, 50)])
        found = squares.get_many(100, timeout=20)
        print(json.dumps({
            "squares": sorted(int(message.body) for message in found),
            "attached once": all(seen.count(pid) == 1 for pid in pids) and len(seen) <= 3,
        }))
"""

PROCESSES = """
def work(tasks, node, store, key):
    done = 0
    while (task := tasks.get(timeout=60)) is not None:
        assert store.read(key) == b"shared"
        node.queue("results").put(json.dumps(task["number"] * 2).encode())
        tasks.task_done()
        done += 1
    tasks.task_done()

if __name__ == "__main__":
    with warren.attach(directory) as node:
        tasks = node.work_queue("tasks", 1000, serializer=json)
        results, store = node.queue("results"), node.store()
        key = store.new_id()
        store.write(key, b"shared")
        processes = [context.Process(target=work, args=(tasks, node, store, key)) for _number in range(2)]
        for process in processes:
            process.start()
        for number in range(50):
            tasks.put({"number": number})
        for _process in processes:
            tasks.put(None)
        tasks.join(timeout=120)
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        found = results.get_many(100, timeout=20)
        print(json.dumps(sorted(int(message.body) for message in found)))
"""

LEAVES = """
def take(queue):
    # a loop of gets, which has messages ahead when it ends
    for number in range(30):
        message = queue.get(timeout=60)
        assert int(message.body) == number
        message.ack()

if __name__ == "__main__":
    with warren.attach(directory) as node:
        queue = node.queue("many")
        queue.put_many([b"%d" % number for number in range(200)])
        process = context.Process(target=take, args=(queue,))
        process.start()
        process.join(120)
        assert process.exitcode == 0
        found = []
        while len(found) < 170:
            found += queue.get_many(200, timeout=60)
        print(json.dumps([[int(m.body), m.redelivered, m.delivery_count] for m in found]))
"""


def script(directory: Path, folder: Path, method: str, text: str) -> object:
    """What it prints, as JSON."""
    path = folder / "script.py"
    path.write_text(HEAD + text)
    done = subprocess.run(
        [sys.executable, str(path), str(directory), method], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with RealNode(tmp_path / "data") as running:
        yield running.directory


@pytest.mark.parametrize("method", METHODS)
def test_pools_share_a_queue(directory: Path, tmp_path: Path, method: str) -> None:
    found = script(directory, tmp_path, method, POOL)
    assert found == {"squares": [number**2 for number in range(50)], "attached once": True}


@pytest.mark.parametrize("method", METHODS)
def test_processes_share_a_work_queue_a_node_and_a_store(directory: Path, tmp_path: Path, method: str) -> None:
    assert script(directory, tmp_path, method, PROCESSES) == [2 * number for number in range(50)]


@pytest.mark.parametrize("method", METHODS)
def test_what_a_child_had_ahead_returns_unseen_when_it_ends(directory: Path, tmp_path: Path, method: str) -> None:
    """Also a forked one, which ends without what atexit knows."""
    assert script(directory, tmp_path, method, LEAVES) == [[number, False, 0] for number in range(30, 200)]


def test_unpickling_never_fails_for_want_of_a_node(tmp_path: Path) -> None:
    """A pool would lose the task, and wait for it for ever; the first use says what is wrong."""
    with RealNode(tmp_path / "data") as running, warren.attach(running.directory) as node:
        queue = node.queue("q")
        pickled = pickle.dumps((queue, node.work_queue("tasks"), node, node.store()))
    queue, tasks, node, store = pickle.loads(pickled)
    assert repr(queue) == "<Queue 'q', durable>"
    uses = (
        lambda: queue.put(b"1"),
        lambda: queue.get(timeout=0),
        lambda: next(queue.consume()),
        lambda: tasks.put(b"1"),
        tasks.get_nowait,
        tasks.qsize,
        node.queues,
        lambda: store.contains(bytes(16)),
    )
    for use in uses:
        with pytest.raises(warren.NodeNotRunning, match="no node"):
            use()
    queue.ack([])
    tasks.close()
    node.close()
    node.close()


def test_a_pickled_queue_may_be_deleted(directory: Path) -> None:
    with warren.attach(directory) as node:
        pickled = pickle.dumps((node.queue("gone"), node))
        node.delete_queue("gone")
    gone, copy = pickle.loads(pickled)
    for use in (lambda: gone.put(b"1"), lambda: gone.get(timeout=1), gone.depth, lambda: next(gone.consume())):
        with pytest.raises(warren.QueueNotFound, match="'gone' was deleted"):
            use()
    copy.close()


def test_an_exclusive_queue_stays_with_its_client(directory: Path) -> None:
    with warren.attach(directory) as node:
        copy, other = pickle.loads(pickle.dumps((node.queue("mine", durable=False, exclusive=True), node)))
        with pytest.raises(warren.ResourceLocked, match="belongs to another client"):
            copy.put(b"1")
        other.close()


def test_what_is_unpickled_is_one_client(directory: Path) -> None:
    """And one consumer of a queue: several handles would take its messages from each other."""
    with warren.attach(directory) as node:
        queue = node.queue("q")
        queue.put(b"1")
        pickled = pickle.dumps((queue, node.work_queue("q"), node))
        copies = [pickle.loads(pickled) for _number in range(3)]
        first, tasks, other = copies[0]
        assert all(copy[0] is first and copy[1].queue is first for copy in copies)
        assert (first.get(timeout=5).body, tasks.qsize()) == (b"1", 0)
        assert other.queue("q") is first
        names = [client["name"] for client in node.status()["clients"] if client["kind"] == "client"]
        assert len(names) == 2
        other.close()
        assert not node.closed
        with pytest.raises(warren.ClosedError):
            first.depth()
        again = pickle.loads(pickled)[0]
        assert again is not first
        wait_until(lambda: again.depth() == 1, what="what the closed one held is back")
        pickle.loads(pickled)[2].close()


def test_what_belongs_to_one_process_says_so(node: warren.Node, name: str, directory: Path) -> None:
    queue = node.queue(name)
    queue.put(b"1")
    with pytest.raises(TypeError, match="its body"):
        pickle.dumps(queue.get(timeout=5))
    confirm = queue.put(b"2", wait=False)
    workers = (node.worker(queue, print), node.worker(queue, print, processes=True))
    for thing, advice in (
        (confirm, "a Confirm stays in the process that published: wait for it there"),
        (node.store().write(node.store().new_id(), b"x", wait=False), "a Confirm stays in the process that published"),
        (queue.subscription("s"), r"call queue\.subscription\(name\) there"),
        *((worker, r"call node\.worker there") for worker in workers),
    ):
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=advice):
                copied(thing)
    confirm.result(60)

    async def of_a_loop() -> None:
        async with warren.aio.attach(directory) as there:
            mine = await there.queue(name)
            things: list[object] = [there, mine, await mine.put(b"3", wait=False), await mine.subscription("s")]
            things += [there.store(), await there.work_queue(name), await there.worker(name, of_a_loop), mine.consume()]  # type: ignore[arg-type]
            for thing in things:
                with pytest.raises(TypeError, match="belongs to its event loop"):
                    pickle.dumps(thing)
                with pytest.raises(TypeError, match="belongs to its event loop"):
                    copy.copy(thing)

    asyncio.run(of_a_loop())
