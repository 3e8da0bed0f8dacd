"""Whose a data directory is, and who may use its node: its owner, and the members of the group that he lets in.

    owner                    everything; only he starts, stops and repairs
    members of its group     attach, publish, consume, declare (setting `group`); read the files, and change none
    root                     reads (`status`, `check`); all else he does as the owner: what he made would not be theirs
    others                   nothing

The modes of files and shared memory keep others out, but not root, and they say little about why. So each entry asks
here first, before it makes anything.

Invariant: what the directory itself says (group, mode) is true of all in it: it is changed last.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterable
from pathlib import Path

from warren.engine.errors import PermissionRefused, StoreError, UsageError
from warren.engine.kernel.atomic_file import explain
from warren.engine.kernel.data_files import NO_LINKS
from warren.engine.kernel.paths import LARGE, QUEUES, TRANSACTIONS
from warren.engine.saying import command, in_a_program, inert, shown
from warren.ipc import access
from warren.ipc.access import ALONE, user
from warren.ipc.doorbells import FOLDER as DOORBELLS

#: names of a group that are shown when another one was meant
GROUPS_SHOWN = 8
#: mode of a directory whose group is being changed: its owner's alone, and told from one that is private throughout
_CHANGING = 0o1700
#: folders in which members make something, too; files whose locks they take; files that are not for them
_MEETING = {(DOORBELLS,), (TRANSACTIONS,)}
_LOCKS = {("lock",)}
_PRIVATE = {("users.json",), ("users.lock",), ("amqp.shared",)}
_HIDES = ("hidepid=1", "hidepid=2", "hidepid=4", "hidepid=noaccess", "hidepid=invisible", "hidepid=ptraceable")


def group_text(gid: int) -> str:
    """A group as `--group` takes it: its name, or its number where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _my_groups() -> set[int]:
    return {os.getegid(), *os.getgroups()}


# -- may this process? ------------------------------------------------------------------------------------------------


def check_user(path: Path, *, reading: bool = False) -> None:
    """Before the node of a directory is used. `reading`: nothing is made or changed, so root may. A directory that is
    not there is nobody's. Raises PermissionRefused, StoreError.
    """
    found = _look(path)
    me = os.geteuid()
    if found is None or found.st_uid == me or (reading and me == 0):
        return
    if _group_of(found) in _my_groups():
        return
    let_in = f"join the group {group_text(found.st_gid)}, which may use its node"
    if _group_of(found) == ALONE:
        let_in = f"have its owner let a group in that you are in ({command('up', path, '--group', 'NAME')})"
    raise PermissionRefused(f"{_whose(path, found.st_uid)}: run it as that user{_as(found.st_uid)}, or {let_in}")


def check_owner(path: Path, names: Iterable[str] = ()) -> None:
    """Before a start, a stop or a repair: the same for what only the owner does. `names`: of what in it must be his."""
    found = _look(path)
    me = os.geteuid()
    if found is None:
        return
    if found.st_uid != me:
        if _group_of(found) in _my_groups():
            raise PermissionRefused(
                f"{_whose(path, found.st_uid)}: the group {group_text(found.st_gid)} may use its node, "
                f"and only its owner starts, stops and repairs it{_as(found.st_uid)}{in_a_program('warren.attach')}"
            )
        check_user(path)
    for name in sorted(names) if me else ():  # root may write them all
        part = _look(path / name)
        if part is not None and part.st_uid != me:
            raise PermissionRefused(
                f"{path} belongs to {user(me)}, but {name} in it to {user(part.st_uid)}, as after a start by that "
                f"user: give all of it to its owner (sudo chown -R {me} {path})"
            )


def check_served(path: Path, owner: tuple[int, int]) -> None:
    """Whether this process may use the shared memory of a node, which has this `owner` (Superblock.owner): user or
    group of the directory may have been changed while the node ran. Raises PermissionRefused.
    """
    if owner[0] != os.geteuid() and owner[1] not in _my_groups():
        raise PermissionRefused(
            f"the node of {path} runs as {user(owner[0])} without a group of this process, which runs as "
            f"{user(os.geteuid())}: run it as that user{_as(owner[0])}, or have that user stop the node, and the owner "
            "of the directory start it"
        )


def start_advice(path: Path, what: str = "one") -> str:
    """Who starts a node of a directory, and how: only its owner may."""
    found = None
    with contextlib.suppress(PermissionRefused, StoreError):
        found = _look(path)
    with_what = f"start {what} with {command('up', path)}"
    if found is None or found.st_uid == os.geteuid():
        return with_what
    return f"only its owner may: have {user(found.st_uid)} {with_what}"


def explain_making(error: OSError, path: Path) -> Exception:
    """What to say when a directory cannot be made: whose the place is where it would be."""
    if isinstance(error, PermissionError):
        parent, found = _visible(path)
        me = os.geteuid()
        return PermissionRefused(
            f"cannot make {path}: {parent} belongs to {user(found.st_uid)}, and {user(me)} may not write there: "
            f"choose another directory, or have it made for you (sudo install -d -o {me} {path})"
        )
    return explain(error, f"cannot make {path}")


def _look(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        closed, found = _visible(path)
        raise PermissionRefused(
            f"{path} lies below {_whose(closed, found.st_uid)}, who may not look into it: run it as that user"
            f"{_as(found.st_uid)}, or have the way there opened"
        ) from error
    except OSError as error:
        raise explain(error, f"cannot look at {path}") from error


def _visible(path: Path) -> tuple[Path, os.stat_result]:
    """The nearest directory above that can be seen, and what it is."""
    for parent in path.parents:
        try:
            return parent, os.stat(parent)
        except OSError:
            continue
    return Path("/"), os.stat("/")


def _group_of(found: os.stat_result) -> int:
    """The group that may use a directory (0o2750; 0o2770 of an older Warren); ALONE: none."""
    return found.st_gid if found.st_mode & 0o070 == 0o070 or found.st_mode & 0o2050 == 0o2050 else ALONE


def _whose(path: Path, uid: int) -> str:
    return f"{path} belongs to {user(uid)}, and this process runs as {user(os.geteuid())}"


def _as(uid: int) -> str:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"'#{uid}'"
    return f" (sudo -u {name} …, docker run --user {uid})"


# -- the group --------------------------------------------------------------------------------------------------------


def group_named(given: object) -> str:
    """The setting `group` for what was given: a name or a number; "" for none. Raises UsageError: there is no such
    group.
    """
    text = str(given) if isinstance(given, (str, int)) and not isinstance(given, bool) else ""
    if given == "":
        return ""
    try:
        return grp.getgrnam(text).gr_name
    except (KeyError, ValueError):  # ValueError: a NUL in it
        if text.isascii() and text.isdigit() and int(text) < 1 << 31:
            return group_text(int(text))
    raise UsageError(f"there is no group {shown(given)}: give the name of one (getent group), a number, or '' for none")


def share(group: str) -> None:
    """What this process makes from now on may be used by the group of this setting; "": by nobody else. Raises
    UsageError: there is none, or the user cannot let it in.
    """
    if not group:
        access.share(ALONE)
        return
    name = group_named(group)
    gid = int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    mine = _my_groups()
    if os.geteuid() != 0 and gid not in mine:
        few = ", ".join(group_text(item) for item in sorted(mine)[:GROUPS_SHOWN])
        raise UsageError(
            f"{user(os.geteuid())} is not in the group {name}, and cannot let it in: choose one of {few}, or join it "
            "(sudo usermod -aG) and log in again"
        )
    _check_visible(mine)
    access.share(gid)


def _check_visible(mine: set[int]) -> None:
    """Whether processes of other users can be seen: else those of members would be taken for dead."""
    if os.geteuid() == 0:
        return
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    of_proc = (line.split()[3] for line in reversed(mounts) if line.split()[1:3] == ["/proc", "proc"])
    options = next(of_proc, "").split(",")
    seeing = next((item[4:] for item in options if item.startswith("gid=")), "")
    if any(item in _HIDES for item in options) and not (seeing.isdigit() and int(seeing) in mine):
        raise UsageError(
            "the processes of other users are hidden here (/proc is mounted with hidepid), so a node cannot be "
            "shared with a group: mount /proc without it, or with gid= of a group of the owner"
        )


def give(path: Path) -> None:
    """Directory and files get group and modes as `share` said. The holder of the lock does this while no node runs;
    when it was cut short it is done again. Raises PermissionRefused, UsageError (a link), StoreError.

    From the root to the leaves, and nobody else comes in meanwhile: what was looked at stays as it was seen, also in a
    directory of an older Warren, whose folders the members could write.
    """
    gid = access.group()
    try:
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = os.fstat(root)
            if gid == ALONE and not found.st_mode & (0o077 | _CHANGING):
                return
            if gid == found.st_gid and stat.S_IMODE(found.st_mode) == access.directory_mode():
                return
            os.fchmod(root, _CHANGING)
            _Gift(path, found.st_uid, gid).folder(root, ())
            _set(root, gid, access.directory_mode())
        finally:
            os.close(root)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        whom = f"let the group {group_text(gid)} in" if gid != ALONE else "make it private"
        raise explain(error, f"cannot {whom}: {error.filename or path}") from error


class _Gift:
    """Gives what is in a directory to a group, or takes it back."""

    def __init__(self, path: Path, owner: int, gid: int) -> None:
        self._path = path
        self._owner = owner
        self._gid = gid

    def folder(self, folder: int, above: tuple[str, ...]) -> None:
        """All that is in an open folder, which has its mode; `above`: its name, and those of the folders above it."""
        for name in os.listdir(folder):
            names = (*above, name)
            itself = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                found = os.fstat(itself)
                if is_meeting_place(above) and (found.st_uid != self._owner or stat.S_ISLNK(found.st_mode)):
                    continue  # a member's own
                check_part(Path(self._path, *names), found, self._owner)
                _set(itself, self._gid, _mode_of(names, found.st_mode))
                if stat.S_ISDIR(found.st_mode):
                    below = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=itself)
                    try:
                        self.folder(below, names)
                    finally:
                        os.close(below)
            finally:
                os.close(itself)


def check_part(path: Path, found: os.stat_result, owner: int) -> None:
    """Whether what lies below a directory of this owner is his, and no link. Raises UsageError, PermissionRefused."""
    named = inert(str(path))
    if stat.S_ISLNK(found.st_mode):
        raise UsageError(
            f"{named} is a symbolic link of {user(found.st_uid)}, and a data directory has none: {NO_LINKS}"
        )
    if found.st_uid != owner:
        raise PermissionRefused(
            f"{named} belongs to {user(found.st_uid)}, and its directory to {user(owner)}: move it "
            f"away, or give it to that user (sudo chown -h {owner} {shlex.quote(named)})"
        )


def is_meeting_place(names: tuple[str, ...]) -> bool:
    """Whether a folder, by the names that lead to it, is one in which members make something, too."""
    return names in _MEETING or (len(names) == 3 and names[0] == QUEUES and names[2] == LARGE)


def _mode_of(names: tuple[str, ...], mode: int) -> int:
    if stat.S_ISDIR(mode):
        return access.meeting_mode() if is_meeting_place(names) else access.directory_mode()
    if names in _PRIVATE:
        return access.PRIVATE
    return access.object_mode() if names in _LOCKS or stat.S_ISSOCK(mode) else access.file_mode()


def _set(descriptor: int, gid: int, mode: int) -> None:
    """Group and mode of what is open here, whatever has its name meanwhile."""
    found = os.fstat(descriptor)
    itself = f"/proc/self/fd/{descriptor}"
    if gid not in (ALONE, found.st_gid):
        os.chown(itself, -1, gid)
    if stat.S_IMODE(found.st_mode) != mode or gid not in (ALONE, found.st_gid):
        os.chmod(itself, mode)
