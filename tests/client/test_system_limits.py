"""Goal: a client to which the system gives no more descriptors or memory says so, leaves nothing, and can go on.

Method: a client of its own process does the same with more and more left (tests/support/limited_client.py): from
nothing, where the first step of all fails, to plenty, where none does. And each step of attaching is made to fail.
"""

import errno
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sysv_ipc

import warren
from warren.engine import _core
from warren.ipc import mailbox, region
from warren.ipc.identity import Identity
from warren.ipc.superblock import Superblock
from warren.workers.client import client as clients
from warren.workers.process import shared_objects as segments

from support import leaks
from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration
CLIENT = Path(__file__).parents[1] / "support" / "limited_client.py"


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Path]:
    """A node of the test's own: its servers die, and the census is of nothing else."""
    with RealNode(tmp_path / "data") as running:
        yield running.directory


@pytest.mark.parametrize("phase", ["attach", "use", "again"])
@pytest.mark.parametrize("limit", ["files", "memory"])
def test_a_client_with_nothing_left_says_so_and_goes_on_when_there_is_some(lone: Path, limit: str, phase: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # one arena of the allocator: it must not have memory of its own in reserve
    environment |= {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(
        [sys.executable, CLIENT, lone, limit, phase],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    failed = [item for item in told if item["error"]]
    assert failed, "nothing failed: the limit was none"
    assert told[-1]["error"] is None, told[-1]
    advice = "ulimit -n" if limit == "files" else "memory"
    for item in failed:
        assert item["ours"], item
        assert item["error"] in ("SystemLimit", "LimitError"), item
        assert advice in item["text"], item
    assert [item for item in told if item["stayed"]] == []


#: what attaching calls: owner, name, and which of its calls fails
STEPS: dict[str, tuple[Any, str, int]] = {
    "node.json": (clients.NodeDirectory, "read", 1),
    "superblock": (Superblock, "attach", 1),
    "the node's state": (Superblock, "state", 1),
    "is it alive": (Identity, "alive", 1),
    "who am I": (Identity, "current", 1),
    "slot": (Superblock, "claim", 1),
    "segment made": (region._core, "segment_create", 1),
    "segment attached": (region, "sysv_attach", 1),
    "segment recorded": (Superblock, "set_segment", 1),
    "core": (_core, "Client", 1),
    "semaphore": (sysv_ipc, "Semaphore", 1),
    "active": (Superblock, "activate", 1),
    "register": (mailbox, "post", 1),
    "the node's state again": (Superblock, "state", 2),
}
#: these give what they made to nobody when they raise afterwards, which they do not
NEVER_AFTER = ("segment made", "segment attached", "superblock", "slot", "core")


@pytest.mark.parametrize(
    ("step", "after"),
    [(step, after) for step in STEPS for after in (False, True) if not (after and step in NEVER_AFTER)],
)
def test_an_attach_that_fails_at_any_step_leaves_nothing(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """The step raises instead of being done, or when it is done; an OSError, and an interrupt of the user's."""
    before = leaks.Census.take()
    for error, wanted in (
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), warren.LimitError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):
        with monkeypatch.context() as patch:
            _break(patch, *STEPS[step], error, after)
            with pytest.raises(wanted):
                warren.attach(directory)
    with warren.attach(directory) as node:

        def slots() -> int:
            return sum(view.pid == os.getpid() for view in node._client.attachment().superblock.slots())

        wait_until(lambda: slots() == 1, 10, what="the slots of failed clients to be free")
    wait_until(lambda: not _segments(), 10, what="the segments to be gone")
    assert leaks.leaks_since(before, tmp_path) == []


def _segments() -> list[int]:
    return [item.id for item in segments.segments() if item.creator == os.getpid()]


def _break(patch: pytest.MonkeyPatch, owner: Any, name: str, nth: int, error: BaseException, after: bool) -> None:
    real = vars(owner)[name]
    call: Callable[..., Any] = real.__func__ if isinstance(real, (classmethod, staticmethod)) else real
    if isinstance(real, property):
        assert real.fget is not None
        call = real.fget
    calls = itertools.count(1)

    def broken(*args: Any, **named: Any) -> Any:
        fails = next(calls) == nth
        made = call(*args, **named) if after or not fails else None
        if fails:
            raise error
        return made

    kind = type(real) if isinstance(real, (classmethod, staticmethod, property)) else None
    patch.setattr(owner, name, kind(broken) if kind else broken)
