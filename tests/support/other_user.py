"""Becoming another user, for tests that run as root (support/users.py): numeric ids, which need no account.

A program of another user needs the Python, its packages and the sources. Where these lie below a folder that is closed
to others (the home of root), it gets a mount namespace of its own, in which that folder has nothing else in it. Nothing
on the machine is changed.

Run as a program, this file becomes another user and runs a command: UID GROUP,GROUP… COMMAND….
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
PR_SET_DUMPABLE = 4
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
#: exit code of a program that could not become another user
CANNOT = 77


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


def become(uid: int, groups: list[int]) -> None:
    """Be another user from now on. Ends the process where that cannot be."""
    try:
        if closed := list(_closed()):
            _open_up(closed)
        os.setgroups(groups)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # who changes its user is hidden in /proc from its own kind, until it starts another program
        if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0):
            raise OSError("prctl failed")
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT)


def _run_as(uid: int, groups: list[int], command: list[str]) -> NoReturn:
    become(uid, groups)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(error, file=sys.stderr)
    sys.exit(CANNOT)


if __name__ == "__main__":
    _run_as(int(sys.argv[1]), [int(group) for group in sys.argv[2].split(",") if group], sys.argv[3:])
