"""Goal: a node looks at what it can have and takes sizes that fit, says what it chose, refuses with figures what cannot
be, and in little shared memory no message is lost and no call waits past its timeout, whoever is killed.

Method: sizes and refusals by figures; programs in mount namespaces of their own with a small /dev/shm, which publish
and consume under load while servers are killed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory, changed_settings
from warren.engine.config import MIB, Settings
from warren.engine.kernel.image_room import sure
from warren.workers.node import room
from warren.workers.node.room import Room
from warren.workers.process import interpreter
from warren.workers.process.control import ControlClient

from support.files import sizes
from support.waiting import wait_until

pytestmark = pytest.mark.integration

PLENTY = Room(1 << 40, 1 << 40, 1 << 40)
SMALL = changed_settings(Settings(), {"profile": "small"}).checked()
DEFAULT = changed_settings(Settings(), {"workers": 2}).checked()


def only(**values: int) -> Room:
    return PLENTY._replace(**values)


@pytest.mark.parametrize(
    ("there", "profile"),
    [
        (PLENTY, None),
        (only(shared=1 << 30), None),
        (only(shared=64 * MIB), "small"),
        (only(shared=20 * MIB), "small"),
        (only(memory=128 * MIB), "small"),
        (only(disk=60 * MIB), "small"),
    ],
)
def test_small_is_chosen_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: Room, profile: str | None
) -> None:
    monkeypatch.setattr(room, "here", lambda _path: there)
    changes, said = room.chosen(NodeDirectory(tmp_path), {"workers": 2, "spin_us": 7})
    assert changes.get("profile") == profile
    assert changes["spin_us"] == 7
    assert bool(said) == bool(profile)
    if profile:
        assert "the profile small was chosen, because default wants" in said
        assert "half as fast" in said


@pytest.mark.parametrize(
    ("there", "short", "advice"),
    [
        (only(shared=12 * MIB), "of shared memory, and 12 MiB are free in /dev/shm", "--shm-size"),
        (only(memory=40 * MIB), "of memory, and the machine or its control group has 40 MiB left", "--memory"),
        (only(disk=4 * MIB), "8 MiB of disk, and 4 MiB are free", "choose a directory on a larger disk"),
    ],
)
def test_what_cannot_be_is_refused_with_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: Room, short: str, advice: str
) -> None:
    monkeypatch.setattr(room, "here", lambda _path: there)
    with pytest.raises(warren.NoRoom, match=r"^a node of the profile small needs") as caught:
        room.chosen(NodeDirectory(tmp_path), {})
    said = str(caught.value)
    assert short in said
    others = {"--shm-size", "--memory", "choose a directory on a larger disk"} - {advice}
    assert advice in said
    assert not any(other in said for other in others), "what is not short is not to be enlarged"
    with pytest.raises(warren.NoRoom, match="of the profile large") as caught:
        room.chosen(NodeDirectory(tmp_path), {"profile": "large"})
    assert "or take the profile small" not in str(caught.value), "which does not fit either"
    monkeypatch.setattr(room, "here", lambda _path: only(shared=20 * MIB))
    with pytest.raises(warren.NoRoom, match="or take the profile small"):
        room.chosen(NodeDirectory(tmp_path), {"profile": "large"})


@pytest.mark.parametrize("place", ["/proc/warren", "/proc/self/a/b", "/proc", "/sys/warren", "/dev/pts/warren"])
def test_a_place_where_no_file_can_be_is_named(place: str) -> None:
    """No memory is short there, and no disk."""
    for enter in (lambda: room.chosen(NodeDirectory(place), {}), lambda: warren.open(place)):
        with pytest.raises(
            warren.UsageError, match=r"is on a file system of the kernel \((proc|sysfs|devpts)\)"
        ) as told:
            enter()
        assert "choose a directory on a disk" in str(told.value)
        assert "memory" not in str(told.value)


def test_a_file_system_that_tells_no_size_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = os.statvfs("/proc")
    assert nothing.f_blocks == 0
    monkeypatch.setattr(os, "statvfs", lambda _path: nothing)
    assert room.here(tmp_path).disk > 1 << 60


@pytest.mark.parametrize("settings", [SMALL, DEFAULT], ids=["small", "default"])
def test_images_are_shared_out_so_that_the_node_never_wants_more_than_there_is(settings: Settings) -> None:
    workers, logs = settings.workers, 2 * (1 + settings.workers)
    needed = room.need(settings, workers)
    assert room.fit(settings, workers, PLENTY) == room.Fit(settings.images_n, settings.file_bytes, "")
    before = 0
    for free in range(needed.shared + needed.restart, 400 * MIB, 3 * MIB):
        fit = room.fit(settings, workers, only(shared=free))
        assert fit.images_n >= 2
        assert max(sure(settings)) <= fit.image_bytes <= settings.file_bytes
        total = needed.shared - needed.images + logs * fit.images_n * fit.image_bytes + needed.restart
        assert total <= free or fit.image_bytes == max(sure(settings))
        assert fit.images_n * fit.image_bytes >= before
        before = fit.images_n * fit.image_bytes
    with pytest.raises(warren.NoRoom):
        room.fit(settings, workers, only(shared=needed.shared + needed.restart - 1))
    for free, advised in ((20 * MIB, True), (10 * MIB, False)):
        with pytest.raises(warren.NoRoom) as caught:
            room.fit(DEFAULT, 2, only(shared=free), SMALL)
        assert ("or take the profile small" in str(caught.value)) == advised


def test_an_existing_node_keeps_its_sizes_unless_it_is_told(tmp_path: Path) -> None:
    directory = NodeDirectory(tmp_path / "node")
    directory.make()
    made = directory.open_or_make({"workers": 2, "garbage_fraction": 0.3}).settings
    assert (made.profile, made.file_bytes) == ("default", 16 * MIB)
    again = directory.open_or_make({"profile": "default"}).settings
    assert again == made, "the profile that it has changes nothing"
    small = directory.open_or_make({"profile": "small"}).settings
    assert (small.profile, small.file_bytes, small.summary_rows) == ("small", 16 * MIB, made.summary_rows)
    assert (small.workers, small.images_n, small.garbage_fraction) == (1, 2, 0.3)


def disk_used(directory: Path) -> int:
    return sum(taken for _size, taken in sizes(directory, "**/*").values())


IN_SMALL = """
import os, subprocess, sys
if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={sys.argv.pop(1)}", "none", "/dev/shm"]).returncode:
    sys.exit(77)
"""
LOAD = (
    IN_SMALL
    + """
import json, signal, threading, time
import warren
from warren.workers.process.control import ControlClient

directory, role = sys.argv[1], sys.argv[2]

def report():
    with ControlClient(directory) as control:
        return control.call("status", timeout=60)

def call(function, *values):
    # what a death in between costs is said, and the call is made again
    for _ in range(20):
        try:
            return function(*values)
        except (warren.PeerLost, warren.TimedOut):
            pass
    raise AssertionError("no call came through")

got, ended = set(), threading.Event()
with warren.open(directory, idle_exit=60, timeout=120) as node:
    found = os.statvfs("/dev/shm")
    said = {"empty": (found.f_blocks - found.f_bfree) * found.f_frsize, "free": found.f_bavail * found.f_frsize}
    with ControlClient(directory) as control:
        settings = control.call("settings", timeout=60)["settings"]
    said |= {"profile": settings["profile"], "messages": report()["messages"]}
    small, large = node.queue("small"), node.queue("large")

    def consume():
        with warren.attach(directory, timeout=60) as mine:
            queues = [mine.queue("small"), mine.queue("large")]
            while not ended.is_set():
                for queue in queues:
                    messages = call(lambda: queue.get_many(200, timeout=0.2))
                    got.update(bytes(message.body[:8]) for message in messages)
                    if messages:
                        try:
                            queue.ack(messages)
                        except warren.PeerLost:
                            pass  # they come again

    consumer = threading.Thread(target=consume)
    consumer.start()
    wanted = set()
    for number in range(60):
        names = [b"%08d" % (1000 * number + n) for n in range(200)]
        call(lambda: small.put_many([name + bytes(2000) for name in names], timeout=60))
        call(lambda: large.put_many([b"L" + name[1:] + bytes(60000) for name in names[:10]], timeout=60))
        wanted.update(names)
        wanted.update(b"L" + name[1:] for name in names[:10])
        if number in (15, 35):
            pid = next(p["pid"] for p in report()["processes"] if p["role"] == role)
            os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 120
    while not wanted <= got:
        assert time.monotonic() < end, (len(wanted - got), report()["alarms"], report()["messages"])
        time.sleep(0.05)
    ended.set()
    consumer.join()
    small.release()
    assert list(small.consume(timeout=0.5)) == []
    said["alarms"] = report()["alarms"]
    said["restarts"] = sum(p["restarts"] for p in report()["processes"])
    with ControlClient(directory) as control:
        control.call("stop", timeout=60)
print(json.dumps(said))
"""
)


def in_small(program: str, size: str, *words: str) -> "subprocess.CompletedProcess[str]":
    command = ["unshare", "--mount", sys.executable, "-P", "-c", program, size, *words]
    done = subprocess.run(
        command, env=interpreter.environment(), capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"a namespace of its own needs the rights of root: {done.stderr.strip()}")
    return done


@pytest.mark.parametrize(
    ("size", "role", "profile"),
    [
        ("16m", "store", "small"),
        ("32m", "queue_worker", "small"),
        ("64m", "store", "small"),
        ("64m", "queue_worker", "small"),
        ("128m", "queue_worker", "default"),
    ],
)
def test_messages_under_load_with_kills(tmp_path: Path, size: str, role: str, profile: str) -> None:
    """A worker or the store is killed twice while one publishes and one consumes: everything comes."""
    if profile == "default" and (os.cpu_count() or 1) > 2:
        profile = ""  # how much default wants depends on the workers
    done = in_small(LOAD, size, str(tmp_path / "node"), role)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["alarms"] == []
    assert said["restarts"] >= 2
    if profile:
        assert said["profile"] == profile
    chose = "the profile small was chosen" in " ".join(said["messages"])
    assert chose == (said["profile"] == "small")


TOPICS = (
    IN_SMALL
    + """
import time

import warren
from warren.workers.process.control import ControlClient

directory = sys.argv[1]

def declare():
    with ControlClient(directory) as control:
        return control.call("declare_topic", name="t", timeout=60)["topic"]["queues"]

with warren.open(directory, profile="small", topic_ring_bytes=16 << 20, idle_exit=60, timeout=120) as node:
    queue = node.queue("q")
    try:
        declare()
    except warren.LimitError as error:
        print(error)
    queue.put(b"body", timeout=60)
    assert bytes(queue.get(timeout=60).body) == b"body"
    until = time.monotonic() + 120
    while not (alarms := node.status()["alarms"]) and time.monotonic() < until:
        time.sleep(0.1)
    print(alarms)
    subprocess.run(["mount", "-o", "remount,size=96m", "/dev/shm"], check=True)
    print(declare())
    with ControlClient(directory) as control:
        control.call("stop", timeout=60)
with warren.open(directory, idle_exit=60, timeout=120) as node:
    print(declare())
    with ControlClient(directory) as control:
        control.call("stop", timeout=60)
"""
)


def test_a_topic_for_which_there_is_no_room_is_refused_with_figures_and_costs_no_queue(tmp_path: Path) -> None:
    """The worker is started again until there is room, and then serves what was declared."""
    done = in_small(TOPICS, "24m", str(tmp_path / "node"))
    assert done.returncode == 0, done.stderr
    said, alarms, *queues = done.stdout.splitlines()
    assert said.startswith("topic 't' is declared, but there is no room in /dev/shm to start the topics (")
    assert "of 24 MiB are free" in said
    assert "--shm-size" in said
    assert alarms.startswith("['role failing: topics cannot start"), alarms
    assert queues == ["4", "4"]


REFUSED = (
    IN_SMALL
    + """
import warren
try:
    warren.open(sys.argv[1], idle_exit=1)
except warren.NoRoom as error:
    assert isinstance(error, warren.LimitError)
    print(error)
"""
)


def test_a_node_without_room_is_refused_by_a_class_of_its_own(tmp_path: Path) -> None:
    done = in_small(REFUSED, "8m", str(tmp_path / "node"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("a node of the profile small needs ")
    assert "and 8 MiB are free in /dev/shm" in done.stdout
    assert "--shm-size" in done.stdout
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize(
    ("settings", "shared_most", "disk_most"),
    [({"profile": "small"}, 24 * MIB, 24 * MIB), ({"workers": 2}, 43_200 * 1024, 64 * MIB)],
    ids=["small", "default"],
)
def test_an_empty_node_takes_little(
    tmp_path: Path, settings: dict[str, object], shared_most: int, disk_most: int
) -> None:
    directory = tmp_path / "node"
    with warren.open(directory, idle_exit=60, **settings) as node:
        node.status()
        with ControlClient(directory) as control:
            shared_id = control.call("settings")["shared_id"]
        shared = sum(taken for _size, taken in sizes(Path("/dev/shm"), f"warren-{shared_id:012x}-*").values())
        assert 0 < shared <= shared_most
        assert 0 < disk_used(directory) <= disk_most
        with ControlClient(directory) as control:
            control.call("stop")


STORED = b"k" * 16
SMALLER = (
    IN_SMALL
    + """
import json, subprocess
import warren
from warren.workers.process import interpreter
from warren.workers.process.control import ControlClient

directory = sys.argv[1]
try:
    warren.open(directory, idle_exit=60)
except warren.NoRoom as error:
    assert "a node of the profile default needs" in str(error), error
    assert "or take the profile small with --profile small (in a program: profile='small')" in str(error), error
else:
    raise AssertionError("it started")
up = interpreter.command("warren", "up", directory, "--profile", "small", "--detach", "--quiet")
subprocess.run(up, env=interpreter.environment(), check=True)
with warren.attach(directory, timeout=60) as node:
    found = {}
    for name in node.queues():
        found[name] = []
        for message in node.queue(name, create=False).consume(timeout=1.0):
            found[name].append([len(message.body), message.body[:6].decode()])
            if name == "mortal":
                message.reject()
            else:
                message.ack()
    dead = node.queue("dead").get(timeout=60)  # the larger one waits, and holds up nobody
    found["dead"].append([len(dead.body), dead.body[:6].decode()])
    dead.ack()
    try:
        node.queue("q0").put(bytes(5 << 20), timeout=60)
    except warren.MessageTooLarge as error:
        found["refused"] = str(error)
    node.queue("q0").put(b"new")
    found["profile"] = json.load(open(directory + "/node.json"))["settings"]["profile"]
    while not (said := [line for line in node.status()["messages"] if "dead letters of queue 'mortal' wait" in line]):
        pass
    found["said"] = said[0]
stop = interpreter.command("warren", "stop", directory)
subprocess.run(stop, env=interpreter.environment(), check=True, stdout=subprocess.DEVNULL)
print(json.dumps(found))
"""
)


def stop(directory: Path) -> None:
    with ControlClient(directory) as control:
        control.call("stop")
    wait_until(lambda: not NodeDirectory(directory).locked(), 60, what="the end of the node")


def test_the_advice_to_take_small_for_a_directory_with_messages_is_good(tmp_path: Path) -> None:
    """A directory made where there was plenty is refused in 40 MiB, starts there as it was told, and loses nothing, not
    even what the small node would not have taken; and where there is plenty again it has its old sizes if asked.
    """
    directory = tmp_path / "node"
    large = b"large" + bytes(5 << 20)
    with warren.open(directory, idle_exit=60, workers=2) as node:
        for number in range(6):
            node.queue(f"q{number}").put_many([b"%d-%04d" % (number, n) + bytes(500) for n in range(100)])
        node.queue("large").put_many([large, b"small"])
        node.queue("dead")
        node.queue("mortal", dead_letter_exchange="", dead_letter_routing_key="dead").put_many([large, b"little"])
        node.store().write(STORED, b"in the store")
    stop(directory)
    done = in_small(SMALLER, "40m", str(directory))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for number in range(6):
        assert found[f"q{number}"] == [[506, f"{number}-{n:04d}"] for n in range(100)]
    assert found["large"] == [[len(large), "large\0"], [5, "small"]]
    assert found["mortal"] == [[len(large), "large\0"], [6, "little"]]
    assert found["dead"] == [[6, "little"]]
    assert "start the node with a larger message_bytes_max" in found["said"]
    assert "message_bytes_max" in found["refused"]
    assert found["profile"] == "small"
    with warren.open(directory, idle_exit=60, profile="default") as node:
        assert node.queue("q0").get(timeout=60).body == b"new"
        assert node.store().read(STORED) == b"in the store"
        assert node.queue("dead").get(timeout=60).body == large
        node.queue("q0").put(large)
    stop(directory)
