"""Goal: queues move to other workers with their messages when a node starts with more or fewer of them: nothing is
lost, doubled or reordered, what is known of a message comes along, and a death at any point of a move changes nothing.

Method: a real node that is filled with everything a queue can hold, stopped or killed, and started with another number
of workers, to and fro. Contents are compared by browsing; in the end all is acked and the store must be empty. Deaths:
a supervisor of support/moving_node.py, killed at each named point, also twice.
"""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.workers.process.control import ControlClient

from support.long import in_part
from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parents[1]
PLAIN = [f"plain-{i}" for i in range(9)]
LARGE = b"L" * 9000
FAR_S = 3600.0


@dataclass(frozen=True)
class Seen:
    """What is compared of a message."""

    tag: int
    body: bytes
    priority: int
    count: int
    marked: bool
    reason: int
    headers: tuple[tuple[str, Any], ...]


Contents = dict[str, list[Seen]]


def seen(message: warren.Message) -> Seen:
    return Seen(
        message.delivery_tag,
        message.body,
        message.priority,
        message.delivery_count,
        message.redelivered,
        message.reason,
        tuple(sorted(message.headers.items())),
    )


def fill(node: warren.Node) -> None:
    """Queues of all kinds, small and stored bodies; messages that were delivered, claimed, are dead or to come."""
    node.declare_exchange("all", "fanout")
    for i, name in enumerate(PLAIN):
        queue = node.queue(name)
        queue.put_many([b"%d-%d" % (i, n) + b"." * 3400 for n in range(100)])
        queue.put(LARGE + name.encode(), headers={"of": name})
        queue.put_many([b"%d-%d" % (i, n) for n in range(100, 120)])
        node.bind(name, "all")
    for n in range(5):
        node.publish(b"to all %d" % n + (LARGE if n % 2 else b""), exchange="all")
    with warren.attach(node.directory) as other:
        for name in PLAIN[:3]:
            messages = other.queue(name).get_many(10, timeout=10.0)
            for message in messages[:4]:
                message.ack()
            messages[5].nack()
        # what is held when the client leaves returns marked
    levels = node.queue("levels", max_priority=5)
    for n in range(20):
        levels.put(b"level %d" % n, priority=n % 6)
    late = node.queue("late")
    late.put_many([b"late %d" % n for n in range(5)], delay=FAR_S)
    late.put(b"now")
    brief = node.queue("brief", message_ttl=FAR_S)
    brief.put_many([b"brief %d" % n for n in range(5)])
    once = node.queue("once", deduplication_window=FAR_S)
    once.put_many([b"once %d" % n for n in range(4)], message_id=[b"id-%012d" % n for n in range(4)])
    deadly = node.queue("deadly", dead_letter_exchange="nowhere")
    deadly.put_many([b"dead 0", LARGE + b"dead 1", b"alive"])
    for message in deadly.get_many(2, timeout=10.0):
        message.nack(requeue=False)
    deadly.release()
    claimed = node.queue("claimed")
    claimed.put_many([b"claim %d" % n + (LARGE if n == 3 else b"") for n in range(12)])
    reader = claimed.subscription("reader")
    assert reader.claim(6) == (0, 6)
    assert reader.ack(2) == 2
    empty = node.queue("emptied")
    empty.put_many([b"x"] * 30)
    for message in empty.get_many(30, timeout=10.0):
        message.ack()
    wait_until(lambda: stats(node, "deadly")["ready"] == 1, 20, what="the letters")


def stats(node: warren.Node, name: str) -> dict[str, int]:
    return node.queue(name, create=False).stats()


def names_of(directory: Path) -> list[str]:
    return sorted(Catalog.load(directory).queues)


def contents(directory: Path) -> Contents:
    """Everything that can be seen of the queues, without changing anything but `asked` counters."""
    found: Contents = {}
    with warren.attach(directory) as node:
        catalog = Catalog.load(directory)
        for item in catalog.queues.values():
            if not item.hidden:
                found[item.name] = [seen(message) for message in node.queue(item.name, create=False).browse(10_000)]
        reader = node.queue("claimed", create=False).subscription("reader")
        start, end = reader.range()
        found["claims"] = [seen(message) for message in reader.read(start, end)]
        found["ranges"] = [Seen(start, reader.incarnation.encode(), end, 0, False, 0, ())]
        with ControlClient(directory) as control:
            status = control.call("status")
        counts = {item["name"]: (item["ready"], item["delayed"]) for item in status["queues"]}
        counts |= {item["queue"] + " letters": (item["ready"] + item["unacked"], 0) for item in status["dead_letters"]}
        for name, (ready, delayed) in counts.items():
            found[name + " counts"] = [Seen(ready, b"", delayed, 0, False, 0, ())]
        following = {item.name: stats(node, item.name)["next"] for item in catalog.queues.values() if not item.hidden}
        found["next"] = [Seen(next, name.encode(), 0, 0, False, 0, ()) for name, next in sorted(following.items())]
    return found


def differences(now: Contents, before: Contents) -> list[str]:
    """What is not the same, in few words: a message is named by the queue, its tag and the beginning of its body."""
    found = [f"{name} is there in one of them only" for name in sorted(now.keys() ^ before.keys())]
    for name in sorted(now.keys() & before.keys()):
        rows, wanted = now[name], before[name]
        for what, here, there in (("too much", rows, wanted), ("missing", wanted, rows)):
            found += [
                f"{what} in {name}: {dataclasses.replace(row, body=row.body[:12])}" for row in here if row not in there
            ]
        if not found and rows != wanted:
            found.append(f"{name} has another order: {[row.tag for row in rows]}, not {[row.tag for row in wanted]}")
    return found


def unmarked(found: Contents) -> Contents:
    """Without what an unclean stop changes of each message."""
    return {
        name: [Seen(row.tag, row.body, row.priority, 0, False, row.reason, row.headers) for row in rows]
        for name, rows in found.items()
    }


def workers_of(directory: Path) -> dict[str, int]:
    return {item.name: item.worker for item in Catalog.load(directory).queues.values()}


def check_families(directory: Path, workers: int) -> None:
    """Nobody lies beyond the wanted workers, families are together, and the load is bounded."""
    catalog = Catalog.load(directory)
    for item in catalog.queues.values():
        of = catalog.by_id.get(item.subscription_of or item.dead_letters_of)
        assert of is None or of.worker == item.worker
        assert not item.hidden or of is not None
        assert item.worker < workers
    loads = [len(catalog.of_worker(worker)) for worker in range(workers)]
    total = sum(loads)
    assert max(loads) <= max(-(-total // workers), int(1.25 * total / workers)) + 2, loads


def drain_all(directory: Path) -> None:
    """Ack everything; then the store holds nothing, and the windows of deduplication are still there."""
    with warren.attach(directory) as node:
        once = node.queue("once", create=False)
        confirm = once.put(b"again", message_id=b"id-%012d" % 2, wait=False)
        assert confirm is not None
        confirm.wait(20.0)
        assert confirm.duplicate
        node.queue("claimed", create=False).subscription("reader").delete()
        node.delete_queue("late")
        for item in list(Catalog.load(directory).queues.values()):
            if item.hidden:
                continue
            queue = node.queue(item.name, create=False)
            while queue.stats()["ready"]:
                queue.ack(queue.get_many(1000, timeout=0.01))
            queue.release()
        node.delete_queue("deadly")
        with ControlClient(directory) as control:
            wait_until(lambda: control.call("status")["store"]["messages"] == 0, 30, what="an empty store")


def settings_of(**more: int) -> dict[str, int]:
    return {"file_bytes": 1 << 18, "arena_bytes": 1 << 19, "message_bytes_max": 1 << 16, "journal_files_max": 2} | more


@pytest.mark.parametrize("clean", in_part([True, False]))
def test_there_and_back(tmp_path: Path, clean: bool) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, **settings_of(workers=3)) as real:
        with warren.attach(directory) as node:
            fill(node)
        before = contents(directory)
        assert sum(map(len, before.values())) > 700
        ids = {item.name: item.lasting_id for item in Catalog.load(directory).queues.values()}
        if not clean:
            real.kill_all()
    for workers in (1, 4, 2, 5):
        with RealNode(directory, **settings_of(workers=workers)) as real:
            check_families(directory, workers)
            now = contents(directory)
            if clean:
                assert differences(now, before) == []
            else:
                assert differences(unmarked(now), unmarked(before)) == []
            assert {item.name: item.lasting_id for item in Catalog.load(directory).queues.values()} == ids
            with warren.attach(directory) as node:
                messages = node.status()["messages"]
                assert any("moved: " in line and " with " in line for line in messages)
                assert not any("not moved" in line for line in messages)
            places = workers_of(directory)
            if not clean:
                real.kill_all()
        with RealNode(directory, **settings_of(workers=workers)) as real:
            assert workers_of(directory) == places, "another start of the same number moves nothing"
            assert differences(unmarked(contents(directory)), unmarked(before)) == []
            assert {path.name for path in (directory / "queues").iterdir()} <= {f"worker-{i}" for i in range(workers)}
            if not clean:
                real.kill_all()
    with RealNode(directory, **settings_of(workers=5)):
        drain_all(directory)
    with RealNode(directory, **settings_of(workers=1)):
        assert all(not rows for name, rows in _queues(directory).items())


def _queues(directory: Path) -> dict[str, list[bytes]]:
    with warren.attach(directory) as node:
        return {
            item.name: [message.body for message in node.queue(item.name, create=False).browse(1000)]
            for item in Catalog.load(directory).queues.values()
            if not item.hidden
        }


def test_publishing_goes_on_behind_what_was_moved(tmp_path: Path) -> None:
    """Order over several moves, each behind new messages and acks; journal files of past lives bring nothing back."""
    directory = tmp_path / "node"
    wanted: dict[str, list[bytes]] = {name: [] for name in PLAIN}
    for turn, workers in enumerate((2, 3, 1, 3, 2, 1)):
        with RealNode(directory, **settings_of(workers=workers)) as real:
            with warren.attach(directory) as node:
                for name in PLAIN:
                    queue = node.queue(name)
                    bodies = [b"%d %d" % (turn, n) + (LARGE if n % 10 == 0 else b"") for n in range(30)]
                    queue.put_many(bodies)
                    wanted[name] += bodies
                    messages = queue.get_many(20, timeout=10.0)
                    assert [message.body for message in messages] == wanted[name][:20]
                    queue.ack(messages)
                    wanted[name] = wanted[name][20:]
            if turn % 2:
                real.kill_all()
    with RealNode(directory, **settings_of(workers=1)), warren.attach(directory) as node:
        for name in PLAIN:
            queue = node.queue(name)
            messages = queue.get_many(1000, timeout=10.0)
            assert [message.body for message in messages] == wanted[name]
            queue.ack(messages)
        with ControlClient(directory) as control:
            wait_until(lambda: control.call("status")["store"]["messages"] == 0, 30, what="an empty store")


def test_a_client_stays_over_a_move(tmp_path: Path) -> None:
    """Its queues and subscriptions go on with the next call, wherever they are now."""
    directory = tmp_path / "node"
    real = RealNode(directory, **settings_of(workers=3))
    real.start()
    with warren.attach(directory) as node:
        queues = [node.queue(name) for name in PLAIN]
        readers = [queue.subscription("reader") for queue in queues]
        for queue, reader in zip(queues, readers, strict=True):
            queue.put_many([b"1", LARGE, b"3", b"4"])
            assert reader.claim(2) == (0, 2)
        for workers in (1, 2):
            real.stop()
            real = RealNode(directory, **settings_of(workers=workers))
            real.start()
            for queue, reader in zip(queues, readers, strict=True):
                assert reader.range() == (0, 2)
                assert [message.body for message in reader.read(0, 2)] == [b"1", LARGE]
                assert reader.read_arrow(0, 2).num_rows == 2
                assert [message.body for message in queue.browse()] == [b"3", b"4"]
                assert queue.stats()["ready"] == 2
        real.stop()
        real = RealNode(directory, **settings_of(workers=1))
        real.start()
        for queue, reader in zip(queues, readers, strict=True):
            assert reader.ack(1) == 1
            assert queue.purge() == 2
            queue.put(b"5")
            assert queue.get(timeout=10.0).body == b"5"
    real.stop()


def test_what_cannot_be_read_stays_and_is_served(tmp_path: Path) -> None:
    """A damaged journal: its queues are not moved, it is said why, and their worker runs on."""
    directory = tmp_path / "node"
    with RealNode(directory, **settings_of(workers=2)) as real:
        with warren.attach(directory) as node:
            for name in PLAIN:
                node.queue(name).put_many([b"a", b"b"])
        real.kill_all()
    before = workers_of(directory)
    strange = directory / "queues" / "worker-1" / "journal" / "77.jnl"
    strange.write_bytes(b"x" * 5000)
    with RealNode(directory, **settings_of(workers=1)), warren.attach(directory) as node:
        assert workers_of(directory) == before
        status = node.status()
        assert any("not moved" in line and "77.jnl" in line for line in status["messages"])
        assert [item["retiring"] for item in status["processes"] if item["role"] == "queue_worker"] == [False, True]
        for name in PLAIN:
            assert [message.body for message in node.queue(name).browse(10)] == [b"a", b"b"]
    assert not strange.exists(), "its worker has set it aside"
    with RealNode(directory, **settings_of(workers=1)), warren.attach(directory) as node:
        assert set(workers_of(directory).values()) == {0}
        for name in PLAIN:
            assert [message.body for message in node.queue(name).browse(10)] == [b"a", b"b"]


# ---- deaths ---------------------------------------------------------------------------------------------------------

#: point, the passes at which somebody dies there
POINTS = [
    ("taken", 1),
    ("taken", 2),
    ("read", 1),
    ("entries", 1),
    ("entries", 3),
    ("terms", 1),
    ("terms", 4),
    ("named", 1),
    ("written", 1),
    ("written", 2),
    ("committed", 1),
    ("committed", 2),
    ("removing", 1),
]


def die(directory: Path, point: str, passes: int, whom: str, workers: int) -> bool:
    """Start a node that is killed at a point; False when it came up before, and was stopped."""
    came_up = directory / "came-up"
    came_up.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *(path for path in sys.path if path)])}
    done = subprocess.run(
        [sys.executable, "-m", "support.moving_node", str(directory), point, str(passes), whom, str(workers)],
        env=environment,
        cwd=TESTS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=120,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    wait_until(lambda: not NodeDirectory(directory).locked(), 20, what="the child to end with its supervisor")
    return done.returncode != 0


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    """A data directory of three workers that was left in good order, and what is in it."""
    directory = tmp_path_factory.mktemp("moves") / "node"
    with RealNode(directory, **settings_of(workers=3)):
        with warren.attach(directory) as node:
            fill(node)
        found = contents(directory)
    return directory, found


@pytest.mark.crash
@pytest.mark.parametrize(
    ("point", "passes"), [pytest.param(*point, marks=[pytest.mark.long] if point[1] > 1 else []) for point in POINTS]
)
def test_a_death_at_a_point(tmp_path: Path, filled: tuple[Path, Contents], point: str, passes: int) -> None:
    """Killed there, twice; then the move is finished, and back."""
    directory = tmp_path / "node"
    shutil.copytree(filled[0], directory)
    before = filled[1]
    died = [die(directory, point, passes, "all", 1) for _ in range(2)]
    assert died[0], f"nobody came to {point} {passes} times"
    with RealNode(directory, **settings_of(workers=1)):
        check_families(directory, 1)
        assert differences(contents(directory), before) == []
        assert [path.name for path in (directory / "queues").iterdir()] == ["worker-0"]
    die(directory, point, passes, "all", 3)
    with RealNode(directory, **settings_of(workers=3)):
        assert differences(contents(directory), before) == []
        left = [path for path in directory.glob("queues/*/segments/*") if path.name.endswith(".new")]
        assert not left
        for worker in range(3):
            known = {str(item.id) for item in Catalog.load(directory).of_worker(worker)}
            segments = directory / f"queues/worker-{worker}/segments"
            folders = {path.name for path in segments.iterdir() if path.is_dir()}
            assert folders <= known, "what an attempt has left is removed"
        drain_all(directory)


@pytest.mark.crash
@pytest.mark.parametrize("point", ["read", "entries", "terms", "named"])
def test_the_death_of_the_child_alone(tmp_path: Path, filled: tuple[Path, Contents], point: str) -> None:
    """The node comes up; what was not moved is served where it was, and moves with the next start."""
    directory = tmp_path / "node"
    shutil.copytree(filled[0], directory)
    assert not die(directory, point, 1, "child", 1)
    assert (directory / "came-up").exists()
    with RealNode(directory, **settings_of(workers=1)):
        assert differences(contents(directory), filled[1]) == []
        check_families(directory, 1)
        drain_all(directory)
