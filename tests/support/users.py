"""Programs of other users, for tests that run as root: numeric ids, which need no account.

They need the Python, its packages and the sources. Where these lie below a folder that is closed to others (the home
of root), a program gets a mount namespace of its own, in which that folder has nothing else in it. Nothing on the
machine is changed. What cannot be is a reason to skip.

Run as a program, this file becomes another user and runs a command: UID GROUP,GROUP… COMMAND….
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
#: exit code of a program that could not become another user
CANNOT = 77


@dataclass(frozen=True)
class User:
    """Somebody; the group of the same number is his, too."""

    uid: int
    groups: tuple[int, ...] = ()


GROUP = 61_300
ALICE, BOB, EVE = User(61_201, (GROUP,)), User(61_202, (GROUP,)), User(61_203)
SUPERUSER = User(0)


def prefix(user: User) -> tuple[str, ...]:
    """What stands before a command that this user runs."""
    if user == SUPERUSER:
        return ()
    return (sys.executable, "-P", __file__, str(user.uid), ",".join(map(str, user.groups)))


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


def warren(user: User, *words: object) -> tuple[int, int, str]:
    """The same for a command of `warren`."""
    return run(user, sys.executable, "-P", "-m", "warren", *map(str, words))


# -- becoming another user ---------------------------------------------------------------------------------------------


def _closed() -> Iterator[tuple[Path, Path]]:
    """(closed folder, what is needed below it)"""
    for needed in dict.fromkeys(Path(path).resolve() for path in (sys.base_prefix, sys.prefix, ROOT)):
        for folder in reversed(needed.parents):
            if not folder.stat().st_mode & 0o001:
                yield folder, needed
                break


def _mount(libc: ctypes.CDLL, source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), None if options is None else options.encode()):
        raise OSError(ctypes.get_errno(), f"mount of {target}: {os.strerror(ctypes.get_errno())}")


def _open_up(closed: list[tuple[Path, Path]]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    _mount(libc, "none", "/", None, MS_REC | MS_PRIVATE, None)
    kept = [(os.open(needed, os.O_PATH), needed) for _folder, needed in closed]
    for folder in dict.fromkeys(folder for folder, _needed in closed):
        _mount(libc, "none", str(folder), "tmpfs", 0, "mode=0755,size=1m")
    for descriptor, needed in kept:
        needed.mkdir(parents=True, exist_ok=True)
        _mount(libc, f"/proc/self/fd/{descriptor}", str(needed), None, MS_BIND | MS_REC, None)
        os.close(descriptor)


def _become(uid: int, groups: list[int], command: list[str]) -> NoReturn:
    try:
        if closed := list(_closed()):
            _open_up(closed)
        os.setgroups(groups)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os.execvp(command[0], command)
    except OSError as error:
        print(error, file=sys.stderr)
    sys.exit(CANNOT)


if __name__ == "__main__":
    _become(int(sys.argv[1]), [int(group) for group in sys.argv[2].split(",") if group], sys.argv[3:])
