"""A supervisor process with dummy servers (dummy_servers.py), and what tests of it do: `start` is its fixture."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc import region
from warren.ipc.identity import Identity
from warren.ipc.layout import CLIENT, CLIENT_MAGIC
from warren.ipc.region import Region
from warren.ipc.superblock import SlotView, Superblock
from warren.workers.process.control import ControlClient

from support import warm

SMALL = ("ring_records=64", "delivery_slots=64", "arena_bytes=65536", "message_bytes_max=16384", "workers=2")
TESTS = Path(__file__).parents[1]
Starter = Callable[..., "Node"]


class Node:
    """A supervisor process with dummy servers."""

    def __init__(self, directory: Path, *words: str, environment: dict[str, str] | None = None, group: bool = False):
        self.directory = directory
        self.printed = ""
        command = ["-m", "support.dummy_servers", str(directory), *words]
        output, to_output = os.pipe()
        complaints, to_complaints = os.pipe()
        self.pipes = open(output), open(complaints)  # noqa: SIM115 - closed by the fixture
        self.process: subprocess.Popen[bytes] | warm.Forked
        with open(os.devnull, "rb") as nothing, open(to_output, "wb") as out, open(to_complaints, "wb") as error:
            if environment or group or not warm.same_environment():
                self.process = subprocess.Popen(
                    [sys.executable, *command],
                    cwd=TESTS,
                    env=os.environ
                    | {"PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"}
                    | (environment or {}),
                    stdin=nothing,
                    stdout=out,
                    stderr=error,
                    process_group=0 if group else None,
                )
            else:
                streams = nothing.fileno(), out.fileno(), error.fileno()
                self.process = warm.Forked(command, streams, dict(os.environ), str(TESTS))

    def ready(self) -> "Node":
        """Wait for the line that says that the node is up."""
        self.printed = self.pipes[0].readline()
        assert "up for" in self.printed, self.printed + self.end()[2]
        return self

    def end(self, timeout: float = 20.0) -> tuple[int, str, str]:
        """Wait for the end: exit code, standard output, standard error."""
        out, error = warm.rest_of(*self.pipes, timeout=timeout)
        return self.process.wait(timeout), self.printed + out, error

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        with ControlClient(self.directory) as client:
            return client.call(op, **fields)

    def status(self) -> dict[str, Any]:
        return self.call("status")

    def pids(self) -> dict[str, int]:
        """Role (with its index) → pid."""
        return {f"{item['role']}-{item['index']}": item["pid"] for item in self.status()["processes"]}

    def stop(self) -> None:
        self.call("stop")
        code, _out, error = self.end()
        assert code == 0, error

    @contextlib.contextmanager
    def superblock(self) -> Iterator[Superblock]:
        superblock = Superblock.attach(NodeDirectory(self.directory).shared_id, LAYOUT_HASH)
        try:
            yield superblock
        finally:
            superblock.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Start supervisors of DIR (small settings); those that still run at the end of the test are stopped."""
    nodes: list[Node] = []

    def starter(*words: str, directory: Path | None = None, small: bool = True, **more: Any) -> Node:
        target = directory or tmp_path / "node"
        fresh = small and not (target / "node.json").exists()
        node = Node(target, *(SMALL if fresh else ()), *words, **more)
        nodes.append(node)
        return node

    yield starter
    for node in nodes:
        if node.process.poll() is None:
            node.process.terminate()
            node.end()
        for pipe in node.pipes:
            pipe.close()


def behave(directory: Path, role: str, how: str, text: str = "") -> None:
    (directory / "behave").mkdir(exist_ok=True)
    (directory / "behave" / f"{role}.{how}").write_text(text)


def gone(pid: int) -> bool:
    return Identity.of(pid) is None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def register(superblock: Superblock, name: str = "test") -> tuple[SlotView, Region]:
    """Become a client, as warren.workers.client.client does: claim, make and record the segment, activate."""
    view = superblock.claim(Identity.current(), name)
    memory = region.sysv_create(superblock.region_bytes())
    superblock.set_segment(view, memory.id)
    CLIENT.pack_into(memory.buffer, "client_epoch", view.client_epoch)
    CLIENT.pack_into(memory.buffer, "magic", CLIENT_MAGIC)
    return superblock.activate(view), memory
