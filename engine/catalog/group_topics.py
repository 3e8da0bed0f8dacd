"""Topics that belong to a group of readers of a topic: the one of its messages that come again (its retry topic), and
the one of those that were given up (its dead letters).

Their names are RocketMQ's for groups that are a topic's: %RETRY%group+topic and %DLQ%group+topic. No user can declare
one: names that begin with % are reserved, and + is in no name of a topic or group. So what belongs to whom says the
name, and whoever deletes a topic deletes them.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from warren.engine.catalog.names import GROUP_TOPICS, NAME_BYTES_MAX
from warren.engine.errors import InvalidName
from warren.engine.saying import shown

Kind = Literal["retry", "dead"]
PREFIXES: dict[Kind, str] = {"retry": "%RETRY%", "dead": "%DLQ%"}
SEPARATOR = "+"
#: names of groups (engine/topics/control.py)
GROUP = re.compile(r"[A-Za-z0-9_%|.-]{1,255}")
#: a group shares what comes again among so many readers at most
QUEUES_MAX = 4


class Owner(NamedTuple):
    """Whose such a topic is."""

    kind: Kind
    group: str
    topic: str


def check_group(name: str) -> None:
    """Whether a group can have this name. Raises InvalidName."""
    if not GROUP.fullmatch(name):
        raise InvalidName(f"group name {shown(name)}: 1 to 255 letters, digits, and _ - % | . are allowed")


def name_of(kind: Kind, topic: str, group: str) -> str:
    """Its name. Raises InvalidName: the names of group and topic are too long for it, or that is no group's name."""
    check_group(group)
    name = f"{PREFIXES[kind]}{group}{SEPARATOR}{topic}"
    if len(name.encode()) > NAME_BYTES_MAX:
        most = NAME_BYTES_MAX - len(f"{PREFIXES['retry']}{SEPARATOR}")
        raise InvalidName(
            f"messages of topic {shown(topic)} cannot be retried by group {shown(group)}: both names together have "
            f"{len((topic + group).encode())} bytes, and {most} at most are possible: choose a shorter name"
        )
    return name


def owner_of(name: str) -> Owner | None:
    """Whose topic this is; None: nobody's, it is one that was declared."""
    if is_declared(name):
        return None
    for kind, prefix in PREFIXES.items():
        if name.startswith(prefix):
            group, separator, topic = name.removeprefix(prefix).partition(SEPARATOR)
            return Owner(kind, group, topic) if separator else None
    return None


def is_declared(name: str) -> bool:
    """Whether a user declared it."""
    return not name.startswith(GROUP_TOPICS) or SEPARATOR not in name
