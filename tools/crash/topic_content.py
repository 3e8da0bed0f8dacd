"""What messages of a recorded history of topics are: body, tag, keys follow from the name of a topic, a number, a size.

One topic, COMPACTED, keeps the newest message of each of a few keys. A message without a body is a tombstone there; so
the number of each of its messages stands in the tag.
"""

from __future__ import annotations

from warren.tools.crash.history import message_of

#: name of the topic that is compacted
COMPACTED = "newest"
KEYS_N = 13
COMPACTED_KEYS_N = 5
TAGS = ("Aa", "BB", None)
HEAD_BYTES = 8  #: number and size, where a body begins


def tag_of(topic: str, number: int) -> str | None:
    """The tag of a message."""
    return f"n{number}" if topic == COMPACTED else TAGS[number % len(TAGS)]


def keys_of(topic: str, number: int) -> list[str]:
    """The keys of a message: some have none, some two. Those of a compacted topic count as one, as a whole."""
    if topic == COMPACTED:
        return [f"k{number % COMPACTED_KEYS_N}", *(["all"] if number % 3 == 0 else [])]
    return [[f"k{number % KEYS_N}"], [], [f"k{number % KEYS_N}", f"alone{number}"]][number % 3]


def body_of(topic: str, number: int, size: int) -> bytes:
    """The body of a message; of size 0 it is a tombstone."""
    return message_of(topic, number, size) if size else b""


def number_of(topic: str, body: bytes, tag: str | None) -> int:
    """Which message it says that it is; -1: it says nothing."""
    if topic != COMPACTED:
        return int.from_bytes(body[:4], "big") if len(body) >= HEAD_BYTES else -1
    return int(tag[1:]) if tag is not None and tag[:1] == "n" and tag[1:].isdecimal() else -1


def is_genuine(topic: str, number: int, body: bytes) -> bool:
    """Whether somebody gave this body to the message with this number."""
    return (topic == COMPACTED and not body) or (
        len(body) >= HEAD_BYTES and body == message_of(topic, number, len(body))
    )
