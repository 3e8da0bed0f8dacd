"""A recorded history of topics: as history.py, of a client that appends to topics, deletes them and makes them again.

`python -m warren.tools.crash.topic_history DIRECTORY SEED OPERATIONS`, in the environment of a recorder (recording.py).

Notes (msgpack arrays)                        in the record before / after
    q TOKEN name                                  a topic is declared      c TOKEN id      it is, and has this id
    x TOKEN name                                  a topic is deleted       c TOKEN 0       it is
    l TOKEN id queue level [[number, size] …]     appended together        c TOKEN [[offset, position] …]   confirmed
    s, k role                                     as history.py has them

A message's body, tag and keys follow from its topic's name, its number and its size.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any, ClassVar

import warren
from warren.tools.crash import history, recording
from warren.tools.crash.history import message_of

LEVELS: tuple[warren.Durability, ...] = ("synced", "synced", "written", "none")
KEYS_N = 13
TAGS = ("Aa", "BB", None)
#: of what such a node appends together, or not at all (docs/topics.md)
TOGETHER_BYTES = 24_000
#: names, and how many queues a topic of that name may have: of more than 32 the whole file system is synced
NAMES = {"first": (1, 2, 3), "second": (1, 4), "wide": (40,)}
SIZES = ((0.6, 60, 400), (0.95, 400, 4000), (1.0, 4000, 20_000))


def tag_of(number: int) -> str | None:
    """The tag of a message."""
    return TAGS[number % len(TAGS)]


def keys_of(number: int) -> list[str]:
    """The keys of a message: some have none, some two."""
    return [[f"k{number % KEYS_N}"], [], [f"k{number % KEYS_N}", f"alone{number}"]][number % 3]


class TopicHistory(history.History):
    """One client's life with topics."""

    settings: ClassVar[dict[str, Any]] = history.SETTINGS | {
        "log_file_bytes": 1 << 20,
        "topic_ring_bytes": 128 << 10,
        "consume_queue_entries": 60,
        "index_slots": 20,
        "index_entries": 150,
        "message_bytes_max": 40_000,
    }
    failing: ClassVar[tuple[str, ...]] = (
        "topics/",
        "topics/commitlog",
        "topics/consumequeue",
        "topics/index",
        "topics/checkpoint",
    )

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self.topics: dict[str, warren.Topic] = {}
        self.ids: dict[str, int] = {}
        self.made: set[str] = set()
        self.message = itertools.count(1)
        #: in some there are many queues, in others few
        self.names = [name for name in NAMES if name != "wide" or self.rng.random() < 0.3]

    def declare(self) -> None:
        """All topics, as they are or new."""
        for name in self.names:
            self._open_topic(name, new=name not in self.made)
            self.made.add(name)

    def works(self) -> list[tuple[Any, float]]:
        """What a step may be, and how often."""
        return [
            (self.append, 40),
            (self.append_later, 16),
            (self.remake, 1.5),
            (self.kill, 1.0),
            (self.fail, 0.7),
        ]

    def busy(self) -> None:
        """Something that is synced."""
        self.rng.choice((self.append, self.append, self.append_later))()

    def _open_topic(self, name: str, *, new: bool) -> None:
        """`new`: surely it is not there."""
        token = next(self.tokens)
        queues = self.rng.choice(NAMES[name]) if new else None
        self.say("q", token, name)
        self.topics[name] = self.node.topic(name, queues=queues)
        self.ids[name] = self.node._client.catalog().topic(name).id  # nobody else needs to know it
        self.say("c", token, self.ids[name])

    def remake(self) -> None:
        """Delete a topic, and make it again: another one."""
        name = self.rng.choice(self.names)
        token = next(self.tokens)
        self.say("x", token, name)
        self.ids.pop(name, None)
        self.topics.pop(name, self.node.topic(name)).delete()
        self.say("c", token, 0)
        self._open_topic(name, new=True)

    def kill(self) -> None:
        """kill -9 a server, mostly the topic worker."""
        pid = self._pids().get("topic_worker")
        if pid is None or self.rng.random() < 0.2:
            super().kill()
            return
        self.say("k", "topic_worker")
        recording.kill([pid])

    def _size(self) -> int:
        pick = self.rng.random()
        low, high = next((low, high) for below, low, high in SIZES if pick < below)
        return self.rng.randint(low, high)

    def _submit(self, wait: bool) -> tuple[int, Any]:  # type: ignore[override]  # of topics, not of the store
        name = self.rng.choice(self.names)
        if name not in self.ids:  # a change of it was not confirmed
            self._open_topic(name, new=False)
        topic = self.topics[name]
        level = self.rng.choice(LEVELS)
        queue = self.rng.randrange(topic.queues)
        items: list[tuple[int, int]] = []
        room = TOGETHER_BYTES
        for _ in range(self.rng.choice((1, 1, 2, 12, 40))):
            size = self._size()
            room -= size + 200
            if items and room < 0:
                break
            items.append((next(self.message), size))
        token = next(self.tokens)
        self.say("l", token, self.ids[name], queue, level, items)
        bodies = [message_of(name, *item) for item in items]
        numbers = [number for number, _size in items]
        return token, topic.append_many(
            bodies,
            [keys_of(number) or None for number in numbers],
            [tag_of(number) for number in numbers],
            queue=queue,
            durability=level,
            wait=wait,
            timeout=self.timeout,
        )

    def _confirmed(self, token: int, positions: list[warren.Position]) -> None:
        self.say("c", token, [(position.offset, position.physical_offset) for position in positions])

    def append(self) -> None:
        """Together, confirmed."""
        self._confirmed(*self._submit(wait=True))

    def append_later(self) -> None:
        """Some behind each other, confirmed afterwards, or never asked after."""
        submitted = [self._submit(wait=False) for _ in range(self.rng.randint(1, 6))]
        for token, confirm in submitted:
            if self.rng.random() < 0.8:
                self._confirmed(token, confirm.result(self.timeout))


def main() -> int:
    """Live through one history."""
    directory, seed, operations = sys.argv[1:]
    TopicHistory(Path(directory), int(seed)).run(int(operations))
    return 0


if __name__ == "__main__":
    sys.exit(main())
