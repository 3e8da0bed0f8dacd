"""Who may use what a process of a node makes: its user alone, or the members of a group, too.

A server serves one node, so this is the process's own: set once, before it makes anything, and inherited by what it
forks. The umask follows, for files that C makes. A client sets nothing: all that it makes for others is its segment,
which it gives to the owner of the node (`region.sysv_create`).

Files get their group from their directory, which has the set-group-id bit. What lies in no directory of the node is
given to the group when it is made. The group comes before the mode, so no other group is ever let in.
"""

from __future__ import annotations

import os

#: no group
ALONE = -1
_group = ALONE


def share(group: int) -> None:
    """What this process and its children make from now on may be used by this group (ALONE: by nobody else)."""
    global _group
    _group = group
    os.umask(0o077 if group == ALONE else 0o007)


def group() -> int:
    """The group that may use what this process makes; ALONE: none."""
    return _group


def file_mode() -> int:
    """Mode of a file, a socket, shared memory, a mailbox, a semaphore."""
    return 0o600 if _group == ALONE else 0o660


def directory_mode() -> int:
    """Mode of a directory."""
    return 0o700 if _group == ALONE else 0o2770


def let_in(target: int | str) -> None:
    """Give what was made just now (a descriptor, or the path of a directory) to the group, if there is one. Raises
    OSError.
    """
    if _group == ALONE:
        return
    os.chown(target, -1, _group)
    os.chmod(target, directory_mode() if isinstance(target, str) else file_mode())
