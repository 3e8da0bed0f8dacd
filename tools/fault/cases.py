"""What there is to fail: for each role, call and class of things as many cases as a counting run has calls.

A case is written `SCENE/ROLE/CALL/CLASS/ERROR/FIRST/HOW/AFTER`, as `kill/worker/read/journal/EIO/3/once/lift`:

    SCENE   work: a client works          kill: the role's process is killed, and its successor starts
            stop: the node is stopped and started        all: every process of the node is killed, and it is started
    FIRST   the first call that fails, counted from the beginning of the scene
    HOW     once; often: each third from FIRST on; ever: every one from FIRST on, until it is lifted
    AFTER   lift: the fault ends, and everybody goes on   die: the role's process is killed, and then the fault ends
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, fields

from warren.tools.fault.shim import CALLS, CLASSES, FOR_EVER, ROLES, SHORT

SCENES = ("work", "kill", "stop", "all")
#: scenes in which a role takes part
PLAYED = {
    "client": ("work",),
    "collector": ("work", "kill", "stop"),
    "starting": ("kill", "all"),
}
HOWS = {"once": (1, 1), "often": (3, FOR_EVER), "ever": (1, FOR_EVER)}  #: every, times
AFTERS = ("lift", "die")
#: so many calls of a kind are all tried; of more, as many are chosen
EACH_MAX = 24
#: what a call can really give; by call and class where that differs
ERRORS: dict[str, tuple[str, ...]] = {
    "open": ("EMFILE", "ENOMEM", "EIO", "EINTR"),
    "create": ("ENOSPC", "EMFILE", "EDQUOT", "EIO", "ENOMEM"),
    "create shm": ("ENOSPC", "EMFILE", "ENOMEM"),
    "create sysv": ("ENOMEM", "ENOSPC"),
    "dup": ("EMFILE",),
    "lock": ("ENOLCK", "EINTR"),
    "pipe": ("EMFILE",),
    "epoll": ("EMFILE", "ENOMEM"),
    "write": ("ENOSPC", "EIO", "EDQUOT", "EINTR", SHORT),
    "write socket": ("EPIPE", "EINTR", "ENOBUFS", SHORT),
    "write process": ("EINTR",),
    "read": ("EIO", "EINTR", SHORT, "ENOMEM"),
    "read socket": ("ECONNRESET", "EINTR", SHORT),
    "read process": ("EINTR",),
    "sync": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "truncate": ("EIO", "ENOSPC", "EINTR"),
    "allocate": ("ENOSPC", "EDQUOT", "EIO", "EINTR"),
    "allocate shm": ("ENOSPC", "EINTR"),
    "rename": ("ENOSPC", "EIO", "EDQUOT"),
    "link": ("ENOSPC", "EMLINK", "EIO"),
    "unlink": ("EIO", "ENOMEM"),
    "unlink shm": ("EACCES",),
    "mkdir": ("ENOSPC", "EDQUOT", "EIO"),
    "list": ("EMFILE", "ENOMEM", "EIO"),
    "mmap": ("ENOMEM",),
    "madvise": ("ENOMEM", "EAGAIN"),
    "malloc": ("ENOMEM",),
    "semop": ("EINTR", "ENOSPC"),
    "socket": ("EMFILE", "ENOMEM"),
    "connect": ("EINTR", "EAGAIN", "ECONNREFUSED"),
    "listen": ("ENOSPC", "ENOMEM"),
    "accept": ("EMFILE", "ENOMEM", "ECONNABORTED", "EINTR"),
    "fork": ("EAGAIN", "ENOMEM"),
    "pidfd": ("EMFILE", "ENOMEM"),
    "wait": ("EINTR",),
}
#: waiting calls are interrupted now and then, not for ever: who is interrupted looks again, as he must
NOT_FOR_EVER = ("EINTR", "EAGAIN", SHORT)

#: (scene, role, call, class) → calls in a run without faults
Counts = Mapping[tuple[str, str, str, str], int]


@dataclass(frozen=True, order=True)
class Case:
    """One fault."""

    scene: str
    role: str
    call: str
    klass: str
    error: str
    first: int
    how: str
    after: str

    def __str__(self) -> str:
        return "/".join(map(str, astuple(self)))

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case of its text. Raises ValueError saying what is wrong with it."""
        names, words = [field.name.replace("klass", "class") for field in fields(cls)], text.split("/")
        form = f"a case is {'/'.join(names)}, as in a report of the campaign"
        if missing := names[len(words) :]:
            raise ValueError(f"case {text!r} has no {' and no '.join(missing)}: {form}")
        if len(words) > len(names):
            raise ValueError(f"case {text!r} has {len(words)} fields, and a case has {len(names)}: {form}")
        scene, role, call, klass, error, first, how, after = words
        if not first.isdecimal() or not int(first):
            raise ValueError(f"case {text!r} has {first!r} as the number of the call, which counts from 1: {form}")
        known = {"scene": SCENES, "role": ROLES, "call": CALLS, "class": CLASSES, "how": HOWS, "after": AFTERS}
        for (what, allowed), word in zip(known.items(), (scene, role, call, klass, how, after), strict=True):
            if word not in allowed:
                raise ValueError(f"case {text!r} has {what} {word!r}: one of {', '.join(allowed)}")
        if error not in errors_of(call, klass):
            allowed = ", ".join(errors_of(call, klass))
            raise ValueError(f"case {text!r} has error {error!r}: {call} of {klass} gives one of {allowed}")
        return cls(scene, role, call, klass, error, int(first), how, after)


def errors_of(call: str, klass: str) -> tuple[str, ...]:
    """What a call on a class of things can fail with."""
    return ERRORS.get(f"{call} {klass}", ERRORS[call])


def numbers(count: int, rng: random.Random) -> list[int]:
    """Which of `count` calls fail: all when they are few, else the first, the last and some between."""
    if count <= EACH_MAX:
        return list(range(1, count + 1))
    ends = {1, 2, 3, 4, count}
    return sorted(ends | set(rng.sample(range(5, count), EACH_MAX - len(ends))))


def _of_kind(scene: str, role: str, call: str, klass: str, count: int, rng: random.Random) -> Iterator[Case]:
    for error in errors_of(call, klass):
        for first in numbers(count, rng):
            yield Case(scene, role, call, klass, error, first, "once", "lift")
        for how in ("often", "ever"):
            if how == "ever" and error in NOT_FOR_EVER:
                continue
            yield Case(scene, role, call, klass, error, 1, how, "lift")
            if count > EACH_MAX // 2:
                yield Case(scene, role, call, klass, error, count // 2, how, "lift")
            if how == "ever" and role != "client":
                yield Case(scene, role, call, klass, error, 1, how, "die")


def plan(counts: Counts, seed: int) -> list[Case]:
    """Every case, in an order in which each kind comes early: a part of it is a sample of all."""
    rng = random.Random(seed)
    kinds: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for (scene, role, call, klass), count in sorted(counts.items()):
        if role in PLAYED and scene not in PLAYED[role]:
            continue
        for case in _of_kind(scene, role, call, klass, count, rng):
            kinds[case.role, case.call, case.klass, case.error, case.scene].append(case)
    for cases in kinds.values():
        rng.shuffle(cases)
    order: list[Case] = []
    rows = list(kinds.values())
    while rows:
        rng.shuffle(rows)
        order += [row.pop() for row in rows]
        rows = [row for row in rows if row]
    return order


def to_fail(counts: Mapping[tuple[str, str, str], int], scene: str) -> Counter[tuple[str, str, str, str]]:
    """Of what a scene counted, what has cases."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for (role, call, klass), count in counts.items():
        if role != "none" and klass != "other":
            found[scene, role, call, klass] = count
    return found
