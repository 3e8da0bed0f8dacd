"""Goal: a server that the system refuses something ends with one line in words and the exit code that says what to do
next, never with a traceback.

Method: a child as the supervisor forks it runs a whole store server, in which one call raises what the system said.
"""

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import posix_ipc
import pytest
import sysv_ipc

from warren.ipc import region
from warren.workers.node import children, forked
from warren.workers.process import lack
from warren.workers.process.exit_codes import EXIT_DO_NOT_RESTART
from warren.workers.servers.store_server import run_store_server

from support.store_node import StoreNode, message_id
from support.waiting import wait_until

FILES, MEMORY = lack.exit_code(lack.FILES), lack.exit_code(lack.MEMORY)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoreNode]:
    """A node whose store server was killed: the next one finds regions to remove."""
    with StoreNode(tmp_path / "node") as made:
        made.start()
        made.client().write([(message_id(1), b"there")])
        made.kill()
        yield made


class Child:
    """A store server in a child, as the supervisor starts it."""

    def __init__(self, node: StoreNode) -> None:
        self.log = node.directory / "child.log"
        role = children.Role("store", "store", 0, (0, 1), lambda _pidfd: self._serve(node), self.log)
        gate, opened = os.pipe()
        pidfd = os.pidfd_open(os.getpid())
        self.pid = forked.fork(lambda: children._be_child(role, gate, pidfd, _own_output))
        node.pid = self.pid
        self._node = node
        os.write(opened, b"g")
        for descriptor in (gate, opened, pidfd):
            os.close(descriptor)

    @staticmethod
    def _serve(node: StoreNode) -> int:
        return run_store_server(node.directory, node.node_id, node.settings, None)

    def end(self) -> tuple[int, str]:
        """Its exit code and what it said."""
        code = self._node.wait_end()
        return code, self.log.read_text()


def _own_output(_role: children.Role) -> None:
    """Not the test runner's: what the child says goes to its log."""
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - as long as the child lives


def raising(error: BaseException, when: Callable[..., bool] = lambda *_: True, real: Any = None) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        if when(*args):
            raise error
        return real(*args, **named)

    return call


def said(node: StoreNode, code: int, words: str) -> None:
    """A server ends with this code, one line with these words, and no traceback; the next one serves everything."""
    ended, log = Child(node).end()
    assert "Traceback" not in log, log
    lines = [line for line in log.splitlines() if words in line]
    assert len(lines) == 1, log
    assert ended == code, log


@pytest.mark.parametrize("name", ["commit-0", "commit-1", "mail", "make-file", "delete-file"])
def test_a_thread_that_cannot_start_is_a_lack(node: StoreNode, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    refused = RuntimeError("can't start new thread")
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", raising(refused, lambda thread: thread.name.startswith(name), start))
    said(node, FILES, "no free descriptor, process or thread: can't start new thread")
    monkeypatch.undo()
    node.start()
    assert node.client().read(message_id(1)) == b"there"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (posix_ipc.PermissionsError("No permission"), "cannot remove shared memory /warren-"),
        (OSError(errno.EIO, "Input/output error"), "cannot remove shared memory /warren-"),
        (posix_ipc.Error("strange"), "strange"),
    ],
)
def test_shared_memory_that_cannot_be_removed(
    node: StoreNode, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    monkeypatch.setattr(posix_ipc, "unlink_shared_memory", raising(error))
    said(node, 1, words)
    monkeypatch.undo()


def test_shared_memory_that_cannot_be_listed(node: StoreNode, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.EIO, "Input/output error", region.SHM_DIRECTORY)
    monkeypatch.setattr(os, "listdir", raising(error, lambda path: path == region.SHM_DIRECTORY, os.listdir))
    said(node, 1, f"cannot list {region.SHM_DIRECTORY}: Input/output error")
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (sysv_ipc.ExistentialError("none"), 1, "the store lock was removed"),
        (sysv_ipc.PermissionsError("none"), EXIT_DO_NOT_RESTART, "the store lock belongs to another user"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "cannot get the store lock: [Errno 28] No space"),
        (MemoryError(), MEMORY, "finds no memory"),
    ],
)
@pytest.mark.parametrize("call", ["semget", "semop"])
def test_store_lock_that_the_system_refuses(
    node: StoreNode, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception, code: int, words: str
) -> None:
    if call == "semget":
        monkeypatch.setattr(sysv_ipc, "Semaphore", raising(error))
    else:
        monkeypatch.setattr(sysv_ipc, "Semaphore", lambda _key: _Lock(acquire=[error]))
    said(node, code, words)
    monkeypatch.undo()


@pytest.mark.parametrize("error", [sysv_ipc.Error("Signaled while waiting"), OSError(errno.ENOSPC, "No space left")])
def test_store_lock_that_is_interrupted_or_not_given_back(
    node: StoreNode, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    acquire = [error] if isinstance(error, sysv_ipc.Error) else []
    monkeypatch.setattr(sysv_ipc, "Semaphore", lambda _key: _Lock(acquire=acquire, release=[error]))
    before = node.epoch
    child = Child(node)
    wait_until(lambda: node.epoch > before, 20, what="the store server")
    os.kill(child.pid, signal.SIGTERM)
    code, log = child.end()
    assert code == 0, log
    assert "Traceback" not in log
    assert f"the store lock was not released ({error})" in log


class _Lock:
    """A semaphore whose calls raise these errors, one after the other, and then do nothing."""

    def __init__(self, acquire: list[Exception] | None = None, release: list[Exception] | None = None) -> None:
        self._acquire, self._release = list(acquire or ()), list(release or ())
        self.undo = self.block = False

    def acquire(self) -> None:
        with contextlib.suppress(IndexError):
            raise self._acquire.pop(0)

    def release(self) -> None:
        with contextlib.suppress(IndexError):
            raise self._release.pop(0)
