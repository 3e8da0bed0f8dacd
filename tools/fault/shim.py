"""The library that lets system calls fail (shim.c): compiled here, and ruled through a file that every process maps.

`Shim(folder)` compiles it and makes the control file; `environment()` is for the process that runs under it, which may
be the campaign itself: without a role nothing fails. `arm` sets a rule, `lift` takes all away, `counts` says how often
each role made each call on each class of things, `hits` what failed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
MAGIC = 0x5741524E4641554C
RULES_MAX, PIDS_MAX, HITS_MAX = 8, 8192, 4096
ROLES = ("none", "starting", "supervisor", "store", "worker", "topics", "collector", "client")
CALLS = (
    "open", "create", "dup", "lock", "pipe", "epoll", "write", "read", "sync", "truncate", "allocate", "rename", "link",
    "unlink", "mkdir", "list", "mmap", "madvise", "malloc", "semop", "socket", "connect", "listen", "accept", "fork",
    "pidfd", "wait",
)  # fmt: skip
CLASSES = (
    "journal", "pages", "large", "store", "topics", "compacted", "meta", "log", "shm", "sysv", "socket",
    "process", "memory", "other",
)  # fmt: skip
SHORT, SLOW = "short", "slow"
OTHERS = {SHORT: -1, SLOW: -2}  #: answers that are no errno
CONTROL_VARIABLE, ROLE_VARIABLE = "WARREN_FAULT_CONTROL", "WARREN_FAULT_ROLE"
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread"]
FOR_EVER = 1 << 60


class _Rule(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("armed", "roles", "call", "classes")),
        ("error", ctypes.c_int32),
        ("delay_ms", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("first", "every", "times", "seen", "failed")),
    )


class _Hit(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("pid", "role", "call", "klass")),
        ("error", ctypes.c_int32),
        ("rule", ctypes.c_uint32),
        ("number", ctypes.c_uint64),
        ("text", ctypes.c_char * 96),
    )


class _Page(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("memory", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("below", ctypes.c_char * 256),
        ("rules", _Rule * RULES_MAX),
        ("counts", ctypes.c_uint64 * len(CLASSES) * len(CALLS) * len(ROLES)),
        ("pids_n", ctypes.c_uint64),
        ("pids", ctypes.c_uint32 * PIDS_MAX),
        ("hits_n", ctypes.c_uint64),
        ("hits", _Hit * HITS_MAX),
    )


class ShimError(Exception):
    """The library cannot be used; the message says why."""


@dataclass(frozen=True)
class Hit:
    """A call that failed."""

    pid: int
    role: str
    call: str
    klass: str
    error: str
    number: int  #: which of the calls that the rule matches
    text: str

    def __str__(self) -> str:
        what = f"{self.call} {self.klass} {self.text}".strip()
        return f"{self.role} {self.pid}: {what}, number {self.number}: {self.error}"


def _names() -> str:
    """The header that shim.c is compiled with: what is numbered here."""
    lines = [f"#define MAGIC 0x{MAGIC:x}ull"]
    lines += [f"#define {name} {globals()[name]}" for name in ("RULES_MAX", "PIDS_MAX", "HITS_MAX")]
    for prefix, names in (("ROLE", ROLES), ("CALL", CALLS), ("CLASS", CLASSES)):
        lines.append(f"enum {{ {', '.join(f'{prefix}_{name.upper()}' for name in names)} }};")
    lines += [f"#define {name} {len(globals()[name])}" for name in ("ROLES", "CALLS", "CLASSES")]
    return "\n".join(lines) + "\n"


def error_number(name: str) -> int:
    """errno of a name; -1 for a short count, -2 for a delay."""
    return OTHERS[name] if name in OTHERS else int(getattr(errno, name))


def error_name(number: int) -> str:
    """The name that error_number takes."""
    return next((name for name, other in OTHERS.items() if other == number), errno.errorcode.get(number, str(number)))


class Shim:
    """The compiled library and its control file."""

    def __init__(self, folder: Path, library: Path | None = None) -> None:
        self.library = library or compiled(folder)
        self.file = folder / "control"
        with open(self.file, "wb") as file:
            file.write(MAGIC.to_bytes(8, "little"))
            file.truncate(ctypes.sizeof(_Page))
        self._map()

    def _map(self) -> None:
        with open(self.file, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), ctypes.sizeof(_Page))
        self._page = _Page.from_buffer(self._memory)

    def close(self) -> None:
        """Let go of the control file; nothing else works afterwards."""
        del self._page
        self._memory.close()

    @classmethod
    def current(cls) -> Shim:
        """That of a process which runs under it."""
        shim = cls.__new__(cls)
        shim.library, shim.file = Path(os.environ["LD_PRELOAD"]), Path(os.environ[CONTROL_VARIABLE])
        shim._map()
        return shim

    def environment(self) -> dict[str, str]:
        """Environment of a process that is to run under it, without a role."""
        return os.environ | {"LD_PRELOAD": str(self.library), CONTROL_VARIABLE: str(self.file)}

    def begin(self, below: Path) -> None:
        """A node's directory, a real path: nothing is armed, counted or hit yet."""
        self.lift()
        self._page.below = os.fsencode(below)
        self._page.pids_n = 0
        self.forget()

    def forget(self) -> None:
        """Begin to count anew, and forget what failed."""
        ctypes.memset(ctypes.addressof(self._page.counts), 0, ctypes.sizeof(self._page.counts))
        ctypes.memset(ctypes.addressof(self._page.hits), 0, min(self._page.hits_n, HITS_MAX) * ctypes.sizeof(_Hit))
        self._page.hits_n = 0

    def count_memory(self, on: bool) -> None:
        """Whether allocations of the C core are counted, and may fail."""
        self._page.memory = on

    def arm(
        self,
        number: int,
        role: str,
        call: str,
        klass: str,
        error: str,
        *,
        first: int = 1,
        every: int = 1,
        times: int = FOR_EVER,
        delay_s: float = 0.0,
    ) -> None:
        """Rule `number`: from the first-th matching call on each every-th fails, `times` of them. "slow": it is made
        after `delay_s`.
        """
        rule = self._page.rules[number]
        rule.armed = 0
        rule.roles, rule.classes = 1 << ROLES.index(role), 1 << CLASSES.index(klass)
        rule.call, rule.error = CALLS.index(call), error_number(error)
        rule.first, rule.every, rule.times = first, every, times
        rule.seen = rule.failed = 0
        rule.delay_ms = round(delay_s * 1000)
        if call == "malloc":
            self._page.memory = 1
        rule.armed = 1

    def lift(self) -> None:
        """No rule any more."""
        for rule in self._page.rules:
            rule.armed = 0
        self._page.memory = 0

    def failed(self) -> int:
        """How many calls failed since they were forgotten."""
        return int(self._page.hits_n)

    def hits(self) -> list[Hit]:
        """What failed, the first ones."""
        return [
            Hit(
                hit.pid,
                ROLES[hit.role],
                CALLS[hit.call],
                CLASSES[hit.klass],
                error_name(hit.error),
                hit.number,
                hit.text.decode(errors="replace"),
            )
            for hit in self._page.hits[: min(self._page.hits_n, HITS_MAX)]
            if hit.pid
        ]

    def counts(self) -> Counter[tuple[str, str, str]]:
        """(role, call, class) → how often."""
        found: Counter[tuple[str, str, str]] = Counter()
        for r, role in enumerate(ROLES):
            for c, call in enumerate(CALLS):
                for k, klass in enumerate(CLASSES):
                    if number := self._page.counts[r][c][k]:
                        found[role, call, klass] = number
        return found

    def pids(self) -> set[int]:
        """Every process that had a role since begin()."""
        return set(self._page.pids[: min(self._page.pids_n, PIDS_MAX)])


def compiled(folder: Path) -> Path:
    """The library, made in a folder. Raises ShimError."""
    header, library = folder / "names.h", folder / "shim.so"
    header.write_text(_names())
    command = [os.environ.get("CC", "gcc"), *FLAGS, f'-DNAMES="{header}"', str(SOURCE), "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ShimError(f"no {command[0]} to compile {SOURCE.name}: apt-get install gcc libc6-dev") from None
    if done.returncode:
        raise ShimError(f"{SOURCE.name} does not compile: {done.stderr.strip()}")
    return library


def play(role: str) -> None:
    """In a process that was just forked under the library: it has this role, and so have those that it executes."""
    os.environ[ROLE_VARIABLE] = role
    ctypes.CDLL(os.environ["LD_PRELOAD"]).warren_fault_role(ROLES.index(role))


@contextlib.contextmanager
def lifted(shim: Shim) -> Iterator[None]:
    """Nothing is armed after the block, however it ends."""
    try:
        yield
    finally:
        shim.lift()
