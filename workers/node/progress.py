"""Whether a server that does not end gets on, in words: one that waits for a slow disk, and one that hangs, look the
same to who waits for them.

It gets on when it has synced or written something since the last look. That is told by its row of the superblock and
by the kernel; so no server has to help, and one that helps nobody any more is judged all the same.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from warren.ipc.superblock import Superblock
from warren.workers.node.children import Role


class Progress:
    """The work of the servers of a node while it stops."""

    def __init__(self, superblock: Superblock) -> None:
        self._superblock = superblock
        self._seen: dict[int, tuple[int, ...]] = {}  # by process: what it had done at the last look
        self._at: dict[int, float] = {}  # … and when it was seen to have done more

    def look(self, roles: list[Role], now: float) -> None:
        """Take note of what they have done by now."""
        for role in roles:
            if role.identity is None or not role.running:
                continue
            pid, done = role.identity.pid, self._done(role)
            if self._seen.get(pid, done) != done:
                self._at[pid] = now
            self._seen[pid] = done

    def _done(self, role: Role) -> tuple[int, ...]:
        rows = (self._superblock.server_get(server, "syncs_n") for server in role.servers)
        assert role.identity is not None
        written = 0
        with contextlib.suppress(psutil.Error, OSError):
            written = psutil.Process(role.identity.pid).io_counters().write_bytes
        return (*rows, written)

    def text(self, role: Role, now: float) -> str:
        """Describe a server that has not ended."""
        if role.identity is None:
            return "nothing is known of it"
        pid = role.identity.pid
        states = _states(pid)
        if states & {"T", "t"}:
            return f"it was stopped, by a signal or a debugger: `kill -CONT {pid}` would have resumed it"
        if pid in self._at:
            return (
                f"it was still writing {now - self._at[pid]:.0f} s ago: its disk is slow, and a longer --timeout lets "
                "it finish"
            )
        if "D" in states:
            return "it waits for the disk, which has finished nothing since: look at the disk"
        return "it has written nothing since it was told to end: it hangs, or waits for one write that does not end"


def _states(pid: int) -> set[str]:
    """Those of its threads, as the kernel has them."""
    found = set()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            found.add(path.read_text(errors="replace").rpartition(")")[2].split()[0])
    return found
