"""Who a process is: (pid, start time, pid namespace). No timeout ever declares death; a stopped process is alive.

A pid alone can be given to another process; together with its start time (clock ticks since boot) it cannot.
A pidfd opened first and verified after is the authority for reclaiming what a process owned.
"""

from __future__ import annotations

import errno
import os
import select
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil  # loaded when it is asked: that takes longer than all of this room


def _stat_fields(pid: int) -> tuple[str, int] | None:
    """(state letter, start time in ticks) of a process from /proc, None when there is none that runs or is stopped.

    The state is that of its first thread, which ends as a zombie before the others do: until the last one has ended
    the process writes, and holds its memory and its locks.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    state, threads_n = fields[0].decode(), int(fields[17])
    return None if state in ("Z", "X") and threads_n <= 1 else (state, int(fields[19]))


def pid_namespace() -> int:
    """Inode of this process's pid namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def _namespace(name: str) -> int:
    try:
        return os.stat(f"/proc/self/ns/{name}").st_ino
    except FileNotFoundError:  # a kernel without this kind
        return 0


@dataclass(frozen=True)
class Namespaces:
    """What a process sees of the machine. Processes of one node share all four: a pid and a start time of another PID
    or time namespace mean nothing here, and another IPC namespace or another /dev/shm has other shared memory.
    """

    pid: int
    ipc: int
    time: int
    shm: int  #: device number of /dev/shm, 0: not known

    @classmethod
    def current(cls) -> Namespaces:
        """Those of this process."""
        try:
            shm = os.stat("/dev/shm").st_dev  # noqa: S108 (where Linux shows POSIX shared memory)
        except OSError:
            shm = 0
        return cls(_namespace("pid"), _namespace("ipc"), _namespace("time"), shm)

    def unlike(self, other: Namespaces) -> list[str]:
        """Which of them differ, in words for people. What one of the two does not know does not differ."""
        words = {"pid": "PID namespace", "ipc": "IPC namespace", "time": "time namespace", "shm": "/dev/shm"}  # noqa: S108
        pairs = ((words[name], getattr(self, name), getattr(other, name)) for name in words)
        return [word for word, mine, its in pairs if mine and its and mine != its]


@dataclass(frozen=True)
class Identity:
    """One incarnation of a process. `start_time` is in clock ticks since boot."""

    pid: int
    start_time: int
    namespace: int

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Identity of a running process, None when there is none (a zombie is none)."""
        found = _stat_fields(pid)
        if found is None:
            return None
        return cls(pid, found[1], pid_namespace())

    @classmethod
    def current(cls) -> Identity:
        """Identity of this process."""
        found = cls.of(os.getpid())
        if found is None:
            raise RuntimeError("/proc is not mounted: Warren needs it to tell processes apart")
        return found

    def alive(self) -> bool:
        """True while this very process runs or is stopped; False for a zombie or another process with the same pid."""
        if self.namespace != pid_namespace():
            return True  # cannot be judged from here: never reclaimed by pid
        found = _stat_fields(self.pid)
        return found is not None and found[1] == self.start_time

    def stands_still(self) -> bool:
        """True when this very process was stopped (SIGSTOP, a debugger): it is alive, and does nothing."""
        if self.namespace != pid_namespace():
            return False  # cannot be judged from here
        found = _stat_fields(self.pid)
        return found is not None and found[0] in ("T", "t") and found[1] == self.start_time

    def open_pidfd(self) -> int | None:
        """A pidfd of this very process (the caller closes it), None when it is dead. Raises OSError when there is no
        descriptor for it, which says nothing about the process.
        """
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            return None
        try:
            alive = self.alive()
        except OSError:
            os.close(pidfd)
            raise
        if not alive:
            os.close(pidfd)
            return None
        return pidfd

    def describe(self) -> psutil.Process | None:
        """psutil's view of the process (memory, command line), None when it is gone."""
        import psutil

        try:
            process = psutil.Process(self.pid)
        except psutil.Error:
            return None
        return process if self.alive() else None


def pidfd_dead(pidfd: int) -> bool:
    """True when the process behind a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
