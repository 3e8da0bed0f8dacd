"""Messages of topics that say themselves what they are: who appended them as which one, to which topic, with which tag
and keys. So whoever reads one can tell whether it is right, and where it had to lie, without asking anybody.

Tags and keys are few, so that they meet, and some have one hash (`Aa` and `BB` in Java): what is found by one of them
must never be the other's.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

#: topics of a campaign, and their queues
TOPICS = {"kill-a": 3, "kill-b": 1, "kill-c": 8}
TAGS = ("Aa", "BB", "UA", "DL", "")
TWINS = ("AaAa", "BBBB", "AaBB", "BBAa")
KEYS_N = 400
#: sizes of bodies: below so many of 64, so many bytes
SIZES = ((46, 60), (58, 900), (63, 9000), (64, 40_000))
INT_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Message:
    """`token`: the appender's name, a point, and the number of its message. `tag`: "" is none."""

    token: str
    topic: str
    tag: str = ""
    keys: tuple[str, ...] = ()

    @property
    def appender(self) -> str:
        """Whose it is."""
        return self.token.rpartition(".")[0]

    @property
    def number(self) -> int:
        """The how many-th of its appender."""
        return int(self.token.rpartition(".")[2])


def body_of(message: Message) -> bytes:
    """Its body; the size follows from what it is."""
    seed = f"{message.token} {message.topic} {message.tag} {','.join(message.keys)}|".encode()
    pick = zlib.crc32(seed) % 64
    size = next(size for below, size in SIZES if pick < below)
    return seed * (size // len(seed) + 1)


def parsed(body: bytes) -> Message | None:
    """The message of a body, None when it is not what one wrote."""
    words = body.split(b"|", 1)[0].decode("ascii", "replace").split(" ")
    if len(words) != 4 or "." not in words[0] or not words[0].rpartition(".")[2].isdecimal():
        return None
    message = Message(words[0], words[1], words[2], tuple(words[3].split(",")) if words[3] else ())
    return message if body_of(message) == body else None


def chosen(token: str, topic: str, rng: random.Random) -> Message:
    """A message with a tag or none, and no key, a common one, one of its own, or some."""
    pick = rng.random()
    keys: tuple[str, ...] = ()
    if pick < 0.5:
        keys = (f"k{rng.randrange(KEYS_N)}",)
    elif pick < 0.6:
        keys = (token,)
    elif pick < 0.7:
        keys = (f"k{rng.randrange(KEYS_N)}", token, rng.choice(TWINS))
    elif pick < 0.75:
        keys = (rng.choice(TWINS),)
    return Message(token, topic, rng.choice(TAGS), keys)


def java_hash(text: str) -> int:
    """String.hashCode of Java, an int."""
    found = 0
    data = text.encode("utf-16-be")
    for at in range(0, len(data), 2):
        found = (found * 31 + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found


def key_hash(topic: str, key: str) -> int:
    """What the key index has of a key."""
    found = abs(java_hash(f"{topic}#{key}"))
    return 0 if found > INT_MAX else found


def queue_of(key: str, queues: int) -> int:
    """The queue of messages with this first key."""
    return abs(java_hash(key)) % queues


def key_of(keys: Iterable[str]) -> str:
    """What a compacted topic takes for the key of a message with these keys: all of them together."""
    return " ".join(keys)
