"""Who may use what a process of a node makes: its user alone, or the members of a group, too.

    files and folders    members read them, and write none: what a process of the owner makes, opens, renames or removes
                         lies where no member can put anything in its place
    objects              shared memory, sockets, mailboxes, semaphores, a file of locks: members write them
    meeting places       folders in which members make something: sockets, large messages, sinks. As in /tmp, each
                         removes only his own

A server serves one node, so this is the process's own: set once, before it makes anything, and inherited by what it
forks. The umask follows, for files that C makes. A client sets nothing: all that it makes for others is its segment,
which it gives to the owner of the node (`region.sysv_create`).

Files get their group from their directory, which has the set-group-id bit. What lies in no directory of the node is
given to the group when it is made. The group comes before the mode, so no other group is ever let in.
"""

from __future__ import annotations

import os
import pwd

#: no group
ALONE = -1
#: of what members do not even read: users of the gateway, locks of processes of the owner
PRIVATE = 0o600
_group = ALONE


def share(group: int) -> None:
    """What this process and its children make from now on may be used by this group (ALONE: by nobody else)."""
    global _group
    _group = group
    os.umask(0o077 if group == ALONE else 0o027)


def group() -> int:
    """The group that may use what this process makes; ALONE: none."""
    return _group


def user(uid: int) -> str:
    """A user for people: user alice (1000)."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"


def file_mode() -> int:
    """Mode of a file."""
    return 0o600 if _group == ALONE else 0o640


def directory_mode() -> int:
    """Mode of a directory."""
    return 0o700 if _group == ALONE else 0o2750


def object_mode() -> int:
    """Mode of a socket, shared memory, a mailbox, a semaphore, a file of locks."""
    return 0o600 if _group == ALONE else 0o660


def meeting_mode() -> int:
    """Mode of a folder in which members make something."""
    return 0o700 if _group == ALONE else 0o3770


def let_in(descriptor: int, mode: int) -> None:
    """Give what was made just now to the group, if there is one, with one of the modes from above. Raises OSError."""
    if _group == ALONE:
        return
    os.chown(descriptor, -1, _group)
    os.chmod(descriptor, mode)
