"""Goal: who reads a topic gets each message once and in order, whatever happens meanwhile: the topic worker is killed,
the log is longer than what is in memory, files end, the reader is a child of fork or a process of its own; what waits
ends with its node, its client, its topic or by a signal; nothing that was opened stays.

Method: a real node with a small ring and small files; programs as users write them; kills by signal.
"""

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import warren
from warren import ReadStatus

from support.real_node import RealNode
from support.topic_log import log_files
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration

#: everything ends soon: files of the log, of queues and of keys, and the ring
TINY = {
    "log_file_bytes": 1 << 20,
    "consume_queue_entries": 500,
    "index_slots": 100,
    "index_entries": 700,
    "topic_ring_bytes": 1 << 17,
}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "data", workers=1, **TINY) as running:
        yield running


def follow(topic: warren.Topic, queue: int, n: int) -> list[bytes]:
    """The first n messages of a queue, each as it comes."""
    found: list[bytes] = []
    at = 0
    while len(found) < n:
        result = topic.read(queue, at, max=500, timeout=60 * patience())
        assert result.status is ReadStatus.FOUND, result
        assert [record.offset for record in result.records] == list(range(at, at + len(result.records)))
        found += [record.body for record in result.records]
        at = result.next_offset
    return found


def test_arrow_batches_grow_whatever_their_first_message_says_of_the_others(tmp_path: Path) -> None:
    """A large one before small ones, and the other way round; columns of several pages; properties in some."""
    with RealNode(tmp_path / "data", workers=1) as running, warren.attach(running.directory) as node:
        topic = node.topic("grows", queues=2)
        sizes = [300_000, *(n % 900 for n in range(12_000)), *([200_000] * 20)]
        bodies = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
        keys = [f"key-{n}" if n % 3 == 0 else None for n in range(len(bodies))]
        tags = ["tag" if n % 5 == 0 else None for n in range(len(bodies))]
        properties = [{"n": str(n), "twice": str(2 * n)} if n % 1000 < 10 else None for n in range(len(bodies))]
        for queue in (0, 1):
            wrote = slice(None, None, 1 - 2 * queue)
            topic.append_many(bodies[wrote], keys[wrote], tags[wrote], properties[wrote], queue=queue, timeout=60)
            found = topic.read_arrow(queue, max_bytes=64 << 20)
            found.validate(full=True)
            assert found["offset"].to_pylist() == list(range(len(bodies)))
            assert found["value"].to_pylist() == bodies[wrote]
            assert found["key"].to_pylist() == keys[wrote]
            assert found["tag"].to_pylist() == tags[wrote]
            assert found["properties"].to_pylist() == [list((each or {}).items()) for each in properties[wrote]]
            records = topic.read(queue, max=len(bodies), max_bytes=64 << 20).records
            assert found["message_id"].to_pylist() == [record.message_id for record in records]
            assert found["timestamp"].cast(pa.int64()).to_pylist() == [record.timestamp for record in records]
            born = found["born_timestamp"].cast(pa.int64()).to_pylist()
            assert born == [record.born_timestamp for record in records]


def test_all_is_read_that_is_longer_than_memory_and_files(own: RealNode) -> None:
    with warren.attach(own.directory) as node:
        topic = node.topic("long", queues=3)
        wrote: list[list[bytes]] = [[], [], []]
        for n in range(60):
            bodies = [b"%d %d " % (n, i) * (n + 20) for i in range(100)]
            keys = [f"k{i}" for i in range(100)]
            topic.append_many(bodies, keys=keys, tags="ab"[n % 2], queue=n % 3, durability="written")
            wrote[n % 3] += bodies
        assert len(log_files(own.directory / "topics" / "commitlog")) > 2
        assert len(list((own.directory / "topics" / "index").iterdir())) > 2
        for queue in range(3):
            wait_until(lambda queue=queue: topic.offsets(queue) == (0, 2000), 30)  # type: ignore[misc]
            assert follow(topic, queue, 2000) == wrote[queue]
            batches, at = [], 0
            while at < 2000:
                batches.append(topic.read_arrow(queue, at, max_bytes=100_000))
                at = batches[-1].column("offset")[-1].as_py() + 1
            table = pa.Table.from_batches(batches)
            assert table.column("value").to_pylist() == wrote[queue]
            assert table.column("offset").to_pylist() == list(range(2000))
        found = topic.find("k7", limit=100)
        assert [record.body for record in found] == [b"%d 7 " % n * (n + 20) for n in reversed(range(60))]
        assert [topic.find_id(record.message_id) for record in found] == found
        times = [record.timestamp for record in topic.read(1, 0, max=2000, max_bytes=1 << 30).records]
        assert times == sorted(times)
        for when in {times[0], times[700], times[-1]}:
            assert topic.offset_at(1, when) == times.index(when)
            assert topic.offset_at(1, when, "upper") == len(times) - 1 - times[::-1].index(when)
        assert topic.offset_at(1, times[0] - 1, "upper") is None


READER = """
import sys, warren
with warren.attach(sys.argv[1]) as node:
    topic, at, wanted = node.topic("t"), 0, int(sys.argv[2])
    while at < wanted:
        for record in topic.read(0, at, max=100, timeout=120).records:
            assert record.offset == at and record.body.startswith(b"%d:" % at), record
            at += 1
print(at)
"""


def test_processes_read_what_another_appends_while_the_worker_is_killed(own: RealNode) -> None:
    n = 6000
    with warren.attach(own.directory) as node:
        topic = node.topic("t", queues=1)
        readers = [
            subprocess.Popen([sys.executable, "-c", READER, own.directory, str(n)], stdout=subprocess.PIPE, text=True)
            for _reader in range(2)
        ]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            here = pool.submit(follow, topic, 0, n)
            confirms = []
            for first in range(0, n, 20):
                bodies = [b"%d:" % at + b"x" * (at % 300) for at in range(first, first + 20)]
                confirms.append(topic.append_many(bodies, durability="written", wait=False))
                if first in (2000, 4000):
                    own.kill("topic_worker")
            for confirm in confirms:
                confirm.result(60 * patience())
            found = here.result(60 * patience())
        assert [int(body.partition(b":")[0]) for body in found] == list(range(n))
        for reader in readers:
            assert reader.communicate(timeout=120 * patience()) == (f"{n}\n", None)
            assert reader.returncode == 0


def test_a_log_is_read_while_its_worker_is_away(own: RealNode) -> None:
    """Who was attached reads on; nobody is asked."""
    with warren.attach(own.directory) as node:
        topic = node.topic("t", queues=1)
        positions = topic.append_many([b"%d" % i for i in range(100)], keys="k")
        assert len(follow(topic, 0, 100)) == 100
        pid = own.pids()["topic_worker"]
        os.kill(pid, signal.SIGSTOP)
        try:
            assert len(follow(topic, 0, 100)) == 100
            with warren.attach(own.directory) as other:
                assert len(other.topic("t").find("k", limit=1000)) == 100
                assert other.topic("t").find_id(positions[50].message_id).offset == 50  # type: ignore[union-attr]
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_deleted_topic_shows_nothing_while_the_worker_stands_still(own: RealNode) -> None:
    """Its rows are in shared memory until the worker hears of it."""
    with warren.attach(own.directory) as node, warren.attach(own.directory) as other:
        topic, another = node.topic("t", queues=1), other.topic("t")
        where = topic.append(b"one", key="k")
        calls = (
            lambda of: of.read(0),
            lambda of: of.read_arrow(0),
            lambda of: of.offsets(0),
            lambda of: of.offset_at(0, 0),
            lambda of: of.find("k"),
            lambda of: of.find_id(where.message_id),
        )
        for call in calls:
            call(topic)
        pid = own.pids()["topic_worker"]
        os.kill(pid, signal.SIGSTOP)
        try:
            topic.delete()
            for call in calls:
                for of in (topic, another):
                    with pytest.raises(warren.TopicNotFound):
                        call(of)
        finally:
            os.kill(pid, signal.SIGCONT)


def in_child(topic: warren.Topic) -> None:
    assert [record.body for record in topic.read(0).records] == [b"one"]
    topic.append(b"two", queue=0)
    assert [record.body for record in topic.read(0, 1, timeout=60).records] == [b"two"]


def test_a_child_of_fork_reads_as_itself(own: RealNode) -> None:
    with warren.attach(own.directory) as node:
        topic = node.topic("t", queues=1)
        topic.append(b"one", queue=0)
        assert topic.read(0, timeout=60 * patience()).records
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(topic.read, 0, 1, timeout=60 * patience())  # a reader is lent out when it forks
            child = multiprocessing.get_context("fork").Process(target=in_child, args=(topic,))
            child.start()
            child.join(60 * patience())
            assert child.exitcode == 0
            assert [record.body for record in waiting.result(60 * patience()).records] == [b"two"]
        assert len(topic.read(0).records) == 2


WAITER = """
import sys, warren
with warren.attach(sys.argv[1]) as node:
    topic = node.topic("t")
    try:
        print("waits", flush=True)
        topic.read(0, 0, timeout=None)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_a_signal_ends_a_wait(own: RealNode) -> None:
    with warren.attach(own.directory) as node:
        node.topic("t", queues=1)
        waiter = subprocess.Popen([sys.executable, "-c", WAITER, own.directory], stdout=subprocess.PIPE, text=True)
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == "waits\n"
        waiter.send_signal(signal.SIGINT)
        assert waiter.communicate(timeout=60 * patience()) == ("interrupted\n", None)
        assert waiter.returncode == 0


def test_what_waits_ends_with_its_client_its_topic_and_its_node(own: RealNode) -> None:
    def waits(topic: warren.Topic) -> concurrent.futures.Future[warren.ReadResult]:
        return pool.submit(topic.read, 0, 0, timeout=None)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        with warren.attach(own.directory) as node:
            deleted = waits(node.topic("deleted", queues=1))
            stopped = waits(node.topic("stopped", queues=1))
            with warren.attach(own.directory) as other:
                closed = waits(other.topic("stopped"))
            with pytest.raises(warren.ClosedError):
                closed.result(60 * patience())
            node.topic("deleted").delete()
            with pytest.raises(warren.TopicNotFound):
                deleted.result(60 * patience())
            own.stop()
            with pytest.raises((warren.ClosedError, warren.PeerLost)):
                stopped.result(60 * patience())
        own.start()


def test_nothing_that_was_opened_stays(own: RealNode) -> None:
    def opened() -> list[str]:
        maps = [item.path for item in psutil.Process().memory_maps(grouped=False)]
        links = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
        return [path for path in maps + links if "-tring-" in path or "-trows-" in path or "/topics/" in f"{path}/"]

    topics = []
    with warren.attach(own.directory) as node:
        for i in range(40):
            topic = node.topic(f"t{i}", queues=4)
            for queue in range(4):
                topic.append(b"x", queue=queue)
                assert topic.read(queue, timeout=60).records
            topics.append(topic)
        assert opened()
        many = len(opened())
        for _round in range(2):
            own.kill("topic_worker")
            wait_until(lambda: topics[0].append(b"more", queue=0), 20)
            assert wait_until(lambda: topics[0].read(0, 1).records, 20)
        assert len(opened()) < many  # of the incarnation of now, and that is read little
        threads = [threading.Thread(target=topics[1].read) for _thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert opened() == []
    with pytest.raises(warren.ClosedError):
        topics[0].read()
