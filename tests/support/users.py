"""Programs of other users, for tests that run as root: numeric ids, which need no account.

How they become so: other_user.py. What cannot be is a reason to skip.
"""

import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support import other_user, warm
from support.real_node import RealNode

CANNOT = other_user.CANNOT


@dataclass(frozen=True)
class User:
    """Somebody; the group of the same number is his, too."""

    uid: int
    groups: tuple[int, ...] = ()


GROUP = 61_300
ALICE, BOB, EVE = User(61_201, (GROUP,)), User(61_202, (GROUP,)), User(61_203)
SUPERUSER = User(0)


def let_in(place: Path) -> None:
    """Everybody can look into a temporary folder of root's, from now on: other lanes need those above it, too."""
    for folder in (place, *place.parents):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o005 != 0o005:
            folder.chmod(mode | 0o055)


def home(place: Path, user: User) -> Path:
    """A folder of a user's own."""
    path = place / f"home-{user.uid}"
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    os.chown(path, user.uid, user.uid)
    return path


def node_of(user: User, directory: Path, *through: str, **settings: str) -> RealNode:
    """A node that a user starts, `through` a command."""
    if through:
        return RealNode(directory, prefix=(*prefix(user), *through), workers=1, **settings)
    return RealNode(directory, user=as_numbers(user), workers=1, **settings)


def prefix(user: User) -> tuple[str, ...]:
    """What stands before a command that this user runs."""
    if user == SUPERUSER:
        return ()
    return (sys.executable, "-P", other_user.__file__, str(user.uid), ",".join(map(str, user.groups)))


def why_not() -> str:
    """Why programs of other users cannot be run here; "": they can."""
    if os.geteuid() != 0:
        return "becoming another user needs root"
    done = subprocess.run(
        [*prefix(EVE), sys.executable, "-P", "-c", "import warren"], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else f"another user cannot run {sys.executable} here: {done.stderr.strip()}"


def run(user: User, *words: str, timeout: float = 300) -> tuple[int, int, str]:
    """(pid, exit code, what was printed) of a command of a user."""
    with subprocess.Popen(
        [*prefix(user), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
    ) as process:
        said, _nothing = process.communicate(timeout=timeout)
    return process.pid, process.returncode, said


def python(user: User, program: str, *words: object) -> tuple[int, int, str]:
    """The same for a Python program."""
    return run(user, sys.executable, "-P", "-c", program, *map(str, words))


def warren(user: User, *words: object, timeout: float = 300) -> tuple[int, int, str]:
    """The same for a command of `warren`."""
    output, its = os.pipe()
    with open(os.devnull, "rb") as nothing, open(its, "wb") as writing, open(output) as said:
        streams = nothing.fileno(), writing.fileno(), writing.fileno()
        process = warm.Forked(["-m", "warren", *map(str, words)], streams, dict(os.environ), "/", as_numbers(user))
        writing.close()
        [printed] = warm.rest_of(said, timeout=timeout)
        code = process.wait(timeout)
    return process.pid, code, printed


def as_numbers(user: User) -> tuple[int, tuple[int, ...]] | None:
    """A user as warm.Forked wants it."""
    return None if user == SUPERUSER else (user.uid, user.groups)
