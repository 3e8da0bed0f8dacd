"""What may be a name of a queue, exchange, subscription or topic, and what may be a routing key.

A name is 1–255 bytes of UTF-8, without `/` and control characters (C0, DEL, C1), and does not start with `.`: it could
be a file name, never climbs out of a directory, and does nothing to the terminal that shows it.
Hidden queues have names with a `/`, which no user can make: `<queue>/<subscription>`, and `<queue>/.dead-letters`,
which is no subscription's, because of its dot.
"""

from __future__ import annotations

import re

from warren.engine.errors import InvalidName
from warren.engine.saying import quoted, shown

NAME_BYTES_MAX = 255
#: C0, DEL and C1
CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")
ROUTING_KEY_BYTES_MAX = 255
NOT_IN_TOPICS = re.compile(r"[^A-Za-z0-9_%|-]")
#: names of topics that begin so are Warren's own (engine/topics/formats.py)
OWN_TOPICS = "WARREN_SYS_"
#: and those that begin so a group's (engine/catalog/group_topics.py)
GROUP_TOPICS = "%"
#: topics that RocketMQ makes itself: records in them have another meaning
SYSTEM_TOPICS_PREFIX = "RMQ_SYS_"
SYSTEM_TOPICS = frozenset(
    (
        *("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC"),
        *("OFFSET_MOVED_EVENT", "DefaultCluster", "AUTO_CREATE_TOPIC_KEY"),
    )
)


def check_name(name: object, what: str = "queue") -> str:
    """The name when it is allowed; raises InvalidName saying what is wrong with it and what is allowed."""
    if not isinstance(name, str):
        raise InvalidName(f"{what} name must be a str, not {type(name).__name__}")
    encoded = _encoded(name, what)
    shown = name if len(name) <= 40 else name[:40] + "…"
    if not encoded:
        raise InvalidName(f"{what} name must not be empty: give it 1 to {NAME_BYTES_MAX} bytes")
    if len(encoded) > NAME_BYTES_MAX:
        raise InvalidName(f"{what} name {shown!r} has {len(encoded)} bytes: at most {NAME_BYTES_MAX} are allowed")
    if "/" in name:
        other = "-" if what == "topic" else "."
        raise InvalidName(f"{what} name {shown!r} has a slash: use another separator, {quoted(other)} for example")
    if "\0" in name:
        raise InvalidName(f"{what} name {shown!r} has a NUL character: remove it")
    if found := CONTROL.search(name):
        raise InvalidName(f"{what} name {shown!r} has the control character {found[0]!r}: remove it")
    if name.startswith("."):
        raise InvalidName(f"{what} name {shown!r} begins with a dot: begin it with another character")
    return name


def check_topic_name(name: object) -> str:
    """The name when a topic may have it; raises InvalidName. Its folder has the name, and so do records that RocketMQ's
    tools read, which is why it is more strict than a queue's.
    """
    checked = check_name(name, "topic")
    if checked.startswith(GROUP_TOPICS):
        raise InvalidName(
            f"topic name {shown(checked)} begins with %: such names are reserved for topics of groups (%RETRY%…, "
            "%DLQ%…), which come and go with their group; choose another"
        )
    if found := NOT_IN_TOPICS.search(checked):
        raise InvalidName(
            f"topic name {shown(checked)} has the character {found[0]!r}: letters (a to z, A to Z), digits, "
            "and _ - % | are allowed"
        )
    if checked.startswith(OWN_TOPICS) or checked.upper().startswith(SYSTEM_TOPICS_PREFIX) or checked in SYSTEM_TOPICS:
        raise InvalidName(f"topic name {checked!r} is reserved for the system: choose another")
    return checked


def check_routing_key(key: object) -> str:
    """The routing key when it is allowed (0 to 255 bytes of UTF-8); raises InvalidName."""
    if not isinstance(key, str):
        raise InvalidName(f"a routing key must be a str, not {type(key).__name__}")
    if len(_encoded(key, "routing key")) > ROUTING_KEY_BYTES_MAX:
        raise InvalidName(f"routing key {key[:40]!r}… is too long: at most {ROUTING_KEY_BYTES_MAX} bytes are allowed")
    return key


def subscription_name(queue: str, subscription: str) -> str:
    """Name of the hidden queue that holds a subscription's claims; no user's queue can have it."""
    return f"{queue}/{subscription}"


def dead_letters_name(queue: str) -> str:
    """Name of the hidden queue that holds a queue's dead letters."""
    return f"{queue}/.dead-letters"


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidName(f"{what} {text[:40]!r} cannot be written as UTF-8: {error.reason}") from error
