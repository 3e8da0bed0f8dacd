"""Files and folders of a data directory: opened, made, renamed and removed, but never outside it, whatever it contains.

With an older Warren the members of a node's group could put links into its folders, and a directory may be a copy from
anywhere. So no part of a path below the directory is followed as a link: each is opened relative to the one above it,
and only regular files of the owner of the directory are opened. The directory itself may be reached through links.

Where a path begins: a relative one in the current directory, in which servers work (workers/process/tie.py), or in
`folder`, a descriptor; an absolute one in the directory that `NodeDirectory` has named (`is_root`), or in a descriptor
of one (`/proc/self/fd/7`). A path in none of these, such as a report that a user asked for, begins in its own folder.

All modules of a node open, make, rename and remove through this one, in C through kernel/data_files.h;
tests/house/test_data_files.py checks that. Invariant: nothing is written, removed or given a mode where a link leads.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from warren.ipc import access

_roots: set[str] = set()
_DESCRIPTOR = re.compile(r"/proc/self/fd/\d+")
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: bytes of a file that is read as a whole; SMALL_MAX: of one that is small whatever the node holds
READ_MAX, SMALL_MAX = 1 << 31, 1 << 20
#: what to do about a link: who only moves it away loses what it stands for
NO_LINKS = "put what belongs there in its place, or move it away if nothing does"
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
#: errors for a path that leads through a link or a file
_NO_WAY = (errno.ELOOP, errno.ENOTDIR)


def is_root(directory: Path) -> None:
    """Declare a data directory: links may lead to it, but none is followed below it."""
    _roots.add(str(directory))


# -- where ------------------------------------------------------------------------------------------------------------


def _root_of(path: str) -> str:
    """The data directory that contains an absolute path, or is it."""
    above = path
    while len(above) > 1:
        if above in _roots or _DESCRIPTOR.fullmatch(above):
            return above
        above = os.path.dirname(above)
    return ""


@contextlib.contextmanager
def _within(path: Path | str, folder: int | None, itself: bool = False) -> Iterator[tuple[int, str, int]]:
    """(descriptor of the folder of a path, its name in there, owner of the directory). `itself`: the path may be that
    of the directory, which is "." then.
    """
    text = os.fspath(path)
    root = "."
    if text.startswith("/"):
        folder, start = None, text if itself else os.path.dirname(text)
        root = _root_of(start) or start
        text = text[len(root) :]
    names = [name for name in text.split("/") if name not in ("", ".")]
    if ".." in names:
        raise OSError(errno.EINVAL, "a path in a data directory never leads up", str(path))
    above = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        owner = os.fstat(above).st_uid
        for name in names[:-1]:
            try:
                below = os.open(name, os.O_PATH | _FOLDER, dir_fd=above)
            except OSError as error:
                raise _refused(error, name, above, path) from error
            _let_go(above)
            above = below
        yield above, names[-1] if names else ".", owner
    finally:
        _let_go(above)


def _let_go(descriptor: int) -> None:
    """Of a folder on the way: closing it says nothing about the file."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _refused(error: OSError, name: str, above: int, path: Path | str) -> OSError:
    """The same error, with the whole path; and of a link that was not followed, whose it is."""
    if error.errno in _NO_WAY:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            what = "" if os.path.basename(path) == name else f"{name} in it "
            whose = access.user(found.st_uid)
            said = f"{what}is a symbolic link of {whose}, and a data directory has none: {NO_LINKS}"
            return OSError(errno.ELOOP, said, str(path))
    return OSError(error.errno, error.strerror, str(path))


def instead(path: Path | str, *, folder: bool = False, whose: bool = True) -> str:
    """What lies where a file has to be, or a folder: "a pipe", "a symbolic link of user bob (1002)" (`whose`: of whom)
    …; empty: that, or nothing. Raises OSError.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISLNK(found.st_mode):
        return "a symbolic link" + (f" of {access.user(found.st_uid)}" if whose else "")
    kind = stat.S_IFMT(found.st_mode)
    return "" if kind == (stat.S_IFDIR if folder else stat.S_IFREG) else _KINDS.get(kind, "a device")


# -- opening ----------------------------------------------------------------------------------------------------------


def open(path: Path | str, flags: int, mode: int = 0o600, *, folder: int | None = None, anyones: bool = False) -> int:
    """A descriptor of a file. `folder`: of the one where a relative path begins. `anyones`: members of the group make
    such files, too. Raises OSError: also for what is no file, is a link, or is not the owner's.
    """
    if flags & os.O_DIRECTORY:
        return open_folder(path, folder=folder)
    kept = flags & ~os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    opened = -1
    try:
        with _within(path, folder) as (above, name, owner):
            try:
                opened = os.open(name, kept, mode, dir_fd=above)
            except OSError as error:
                raise _refused(error, name, above, path) from error
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EISDIR, "is not a file: move it away", str(path))
        if found.st_uid != owner and not anyones and not flags & os.O_EXCL:  # it is made just now
            said = f"belongs to {access.user(found.st_uid)}, and the directory to {access.user(owner)}"
            raise OSError(errno.EPERM, said, str(path))
        if flags & os.O_TRUNC and found.st_size:
            os.ftruncate(opened, 0)
    except BaseException:
        if opened >= 0:
            os.close(opened)
        raise
    return opened


def open_folder(path: Path | str, *, folder: int | None = None) -> int:
    """A descriptor of a folder. Raises OSError."""
    with _within(path, folder, itself=True) as (above, name, _owner):
        try:
            return os.open(name, os.O_RDONLY | _FOLDER, dir_fd=above)
        except OSError as error:
            raise _refused(error, name, above, path) from error


def above(folder: int) -> int:
    """A descriptor of the parent of an open folder, also when that was removed. Raises OSError."""
    return os.open(os.pardir, os.O_RDONLY | _FOLDER, dir_fd=folder)


def reading(path: Path | str, *, anyones: bool = False) -> FileIO:
    """A file, to be read without a buffer. Raises OSError."""
    return builtins.open(open(path, os.O_RDONLY, anyones=anyones), "rb", buffering=0)


def writing(path: Path | str, flags: int = 0) -> FileIO:
    """A file, to be written without a buffer; it is there, or `flags` make it. Raises OSError."""
    return builtins.open(open(path, os.O_WRONLY | flags, access.file_mode()), "wb", buffering=0)


def read(path: Path | str, *, anyones: bool = False, most: int = READ_MAX) -> bytes:
    """All that stands in a file. Raises OSError: also for one of more than `most` bytes, which no process of Warren's
    makes; a member of the group may, and a damaged disk.
    """
    with reading(path, anyones=anyones) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} are read", str(path))
        return file.read()


# -- names ------------------------------------------------------------------------------------------------------------


def unlink(path: Path | str, *, missing_ok: bool = False, folder: int | None = None) -> None:
    """Remove a name of a file. Raises OSError."""
    with contextlib.suppress(*((FileNotFoundError,) if missing_ok else ())), _within(path, folder) as found:
        os.unlink(found[1], dir_fd=found[0])


def rename(old: Path | str, new: Path | str, *, folder: int | None = None) -> None:
    """Another name for what has the old one, in the place of what has the new one. Raises OSError."""
    with _within(old, folder) as source, _within(new, folder) as target:
        os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])


def link(old: Path | str, new: Path | str) -> None:
    """A second name for a file. Raises OSError."""
    with _within(old, None) as source, _within(new, None) as target:
        os.link(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0], follow_symlinks=False)


# -- folders ----------------------------------------------------------------------------------------------------------


def make_folder(path: Path | str, *, mode: int | None = None, folder: int | None = None) -> None:
    """Make one, for the group if there is one; `mode`: another one than this process gives. Raises OSError."""
    with _within(path, folder) as (above, name, _owner):
        os.mkdir(name, 0o700, dir_fd=above)
        made = os.open(name, os.O_RDONLY | _FOLDER, dir_fd=above)
        try:
            access.let_in(made, access.directory_mode())
            if mode is not None:
                os.fchmod(made, mode)
        finally:
            os.close(made)


def set_mode(path: Path | str, mode: int, *, folder: int | None = None) -> None:
    """Of a socket, a file or a folder, and never of what a link leads to. Raises OSError."""
    with _within(path, folder) as (above, name, _owner):
        itself = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            if not stat.S_ISLNK(os.fstat(itself).st_mode):
                os.chmod(f"/proc/self/fd/{itself}", mode)
        finally:
            os.close(itself)


def remove_folder(path: Path | str) -> None:
    """Remove an empty one. Raises OSError."""
    with _within(path, None) as (above, name, _owner):
        os.rmdir(name, dir_fd=above)


def remove_tree(path: Path | str, *, ignore_errors: bool = False, folder: int | None = None) -> None:
    """Remove a folder with all in it; links go, and where they lead nothing does. Raises OSError."""
    try:
        with _within(path, folder) as (above, name, _owner):
            shutil.rmtree(name, ignore_errors, dir_fd=above)
    except OSError:
        if not ignore_errors:
            raise
