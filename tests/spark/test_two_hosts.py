"""Two hosts, a standalone cluster over both, and a node of its own on each: read by one job, exactly.

Method: a host is a mount namespace with its own /dev/shm, in which the path of the data directory is another directory,
and an address of its own. Each also sees the files of both nodes, read-only, below names of their own. The driver runs
on the first host.
"""

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from warren.tools.crash.spark_processes import Standalone, write_python
from warren.workers.spark import native

from support.real_node import RealNode
from support.waiting import patience

pytestmark = [pytest.mark.spark, pytest.mark.long]
DRIVER = Path(__file__).with_name("two_hosts_driver.py")
TOPIC, OUT = "flights", "copies"
MAKE = """
mount --make-rprivate / && mount -t tmpfs none /dev/shm && mount --bind "$1" "$2" || exit 77
for at in 3 5; do
    eval "from=\\${$at} to=\\${$((at + 1))}"
    mount --bind "$from" "$to" && mount -o remount,bind,ro "$to" || exit 77
done
echo ready; exec sleep infinity
"""
APPEND = """
import sys, warren
with warren.attach(sys.argv[1]) as node:
    topic = node.topic(sys.argv[2], queues=2)
    node.topic(sys.argv[3], queues=2)
    for queue in (0, 1):
        bodies = [f"{sys.argv[4]}-{n}".encode() for n in range(int(sys.argv[5]), int(sys.argv[6]))]
        topic.append_many(bodies[queue::2], queue=queue)
"""
COUNT = """
import sys, warren
with warren.attach(sys.argv[1]) as node:
    topic = node.topic(sys.argv[2])
    for queue in range(topic.queues):
        at, end = topic.offsets(queue)
        while at < end:
            found = topic.read(queue, at, max=1000)
            for record in found.records:
                print(bytes(record.body).decode())
            at = found.next_offset
"""


@dataclass
class Host:
    """A mount namespace, and the directory that has the common path there."""

    address: str
    prefix: tuple[str, ...]
    place: str
    node: Path
    mount: Path

    def run(self, *command: str) -> str:
        """Run a program of this host; returns what it prints."""
        done = subprocess.run(
            [*self.prefix, *command], capture_output=True, text=True, timeout=120 * patience(), check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextlib.contextmanager
def made(address: str, path: Path, own: tuple[Path, Path], other: tuple[Path, Path]) -> Iterator[Host]:
    """A host, until the end. `own`, `other`: directories of nodes, and where both hosts see them."""
    words = [str(each) for each in (own[0], path, *own, *other)]
    command = ["unshare", "--mount", "sh", "-c", MAKE, "sh", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != "ready\n":
                pytest.skip(f"this user may make no mount namespaces: {holder.communicate(timeout=60)[1].strip()}")
            place = Path(f"/proc/{holder.pid}/ns/mnt")
            yield Host(address, ("nsenter", f"--mount={place}"), str(place.readlink()), *own)
        finally:
            holder.kill()
            holder.communicate(timeout=60)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Host]]:
    path = tmp_path / "data"
    names = [(tmp_path / f"node-{n}", tmp_path / f"seen-{n}") for n in (1, 2)]
    for folder in (path, *names[0], *names[1]):
        folder.mkdir()
    with (
        made("127.0.0.1", path, names[0], names[1]) as first,
        made("127.0.0.2", path, names[1], names[0]) as second,
    ):
        yield [first, second]


def test_two_hosts_with_a_node_each(two: list[Host], tmp_path: Path) -> None:
    scans = ["python"] if native.jar() is None else ["python", "native"]
    path, work = tmp_path / "data", tmp_path / "work"
    work.mkdir()
    write_python(work / "python")
    nodes = [RealNode(path, prefix=host.prefix, workers=1) for host in two]
    programs = [(host.address, host.prefix) for host in two]

    def append(start: int, end: int) -> None:
        for host in two:
            words = (str(path), TOPIC, OUT, host.address, str(start), str(end))
            host.run(sys.executable, "-P", "-c", APPEND, *words)

    def drive() -> dict[str, Any]:
        task = {
            "master": cluster.url,
            "path": str(path),
            "mounts": {host.address: str(host.mount) for host in two},
            "topic": TOPIC,
            "out": OUT,
            "work": str(work),
            "scans": scans,
        }
        environment = ("env", f"PYSPARK_PYTHON={work / 'python'}", "SPARK_LOCAL_IP=127.0.0.1")
        told: dict[str, Any] = json.loads(two[0].run(*environment, sys.executable, str(DRIVER), json.dumps(task)))
        return told

    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.enter_context(node)
        cluster = stack.enter_context(Standalone(work / "cluster", programs))
        for start, end in ((0, 3000), (3000, 3500)):
            append(start, end)
            told = drive()
            wanted = {host.address: sorted(f"{host.address}-{n}" for n in range(end)) for host in two}
            assert told["stream"] == sorted(itertools.chain(*wanted.values()))
            for scan, host in itertools.product(scans, two):
                found = told[f"{scan} {host.address}"]
                assert found["values"] == wanted[host.address]
                if scan == "native":  # Python's sources have no preferred places: Spark runs them anywhere
                    assert found["places"] == [host.place]
        copies = [host.run(sys.executable, "-P", "-c", COUNT, str(path), OUT).split() for host in two]
        assert all(copies), "no task of a write ran on one of the hosts"
        assert sorted(copies[0] + copies[1]) == sorted(
            [f"{h.address}-{n}" for h in two for n in range(3000)] * 2
            + [f"{h.address}-{n}" for h in two for n in range(3000, 3500)]
        )
