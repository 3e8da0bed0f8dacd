"""A recorded history of topics: as history.py, of a client that appends to topics, deletes them and makes them again,
prepares half messages and finishes them, and appends messages that come later.

`python -m warren.tools.crash.topic_history DIRECTORY SEED OPERATIONS [KIND]`, in the environment of a recorder
(recording.py). KIND is "any", or what a history surely is: "plain", or "compacted". A compacted one has a topic that
keeps the newest message of each key, beside others with a retention, so that files of the log go; its node looks often
what there is to compact.

Notes (msgpack arrays)                        in the record before / after
    q TOKEN name                                  a topic is declared      c TOKEN id      it is, and has this id
    x TOKEN name                                  a topic is deleted       c TOKEN 0       it is
    l TOKEN id queue level [[number, size] …]     appended together        c TOKEN [[offset, position] …]   confirmed
    d TOKEN id queue level [[number, size] …]     to come later            c TOKEN [[-1, position] …]       confirmed
    h TOKEN id queue "synced" [[number, size]]    prepared                 c TOKEN [[-1, position]]         confirmed
    f TOKEN number commit                         committed, or rolled back
                                                                           c TOKEN [offset, position], or 0
    s, k role                                     as history.py has them

A message's body, tag and keys are those of topic_content.py. What becomes of a half message is decided once: whoever
finishes it again decides the same.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import warren
from warren.tools.crash import history, recording
from warren.tools.crash.topic_content import COMPACTED, body_of, keys_of, number_of, tag_of

KINDS = ("any", "plain", "compacted")
LEVELS: tuple[warren.Durability, ...] = ("synced", "synced", "written", "none")
#: of what such a node appends together, or not at all (docs/topics.md)
TOGETHER_BYTES = 24_000
#: names, and how many queues a topic of that name may have: of more than 32 the whole file system is synced
NAMES = {"first": (1, 2, 3), "second": (1, 4), "wide": (40,), COMPACTED: (1, 2)}
SIZES = ((0.6, 60, 400), (0.95, 400, 4000), (1.0, 4000, 20_000))
COMPACTED_SIZES = ((0.15, 0, 0), (0.4, 60, 400), (1.0, 400, 4000))
COMPACTED_SHARE = 0.6
#: how many together; where files of the log shall go, more
TOGETHER = (1, 1, 2, 12, 40)
MANY_TOGETHER = (1, 12, 40, 40)
DELAYED_TOGETHER = (1, 1, 5)
#: seconds until a message comes: some are still to come when the history ends; but a message that waits keeps the log
DELAYS = (0.01, 0.05, 0.3, 2.0, 3600.0)
SHORT_DELAYS = DELAYS[:3]
RESTS_S = (0.1, 0.2, 0.4)
COMMITTED_SHARE = 0.6
#: so many half messages that nobody has decided are left alone; where files of the log shall go, none
HALVES_LEFT = 3
LISTED = 20


class _Half(NamedTuple):
    """A half message that this client has to finish."""

    name: str
    topic: int
    number: int
    message_id: str


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
        "topics/compacted",
        "topics/halves",
        "topics/later",
    )

    def __init__(self, directory: Path, seed: int, kind: str = "any") -> None:
        super().__init__(directory, seed)
        self.topics: dict[str, warren.Topic] = {}
        self.ids: dict[str, int] = {}
        self.made: set[str] = set()
        self.message = itertools.count(1)
        self.halves: list[_Half] = []
        self.decided: dict[int, bool] = {}  #: number of a half message → whether it is committed
        self.together: tuple[int, ...] = TOGETHER
        self.delays: tuple[float, ...] = DELAYS
        #: in some there are many queues, in others few
        self.names = [name for name in NAMES if name != COMPACTED and (name != "wide" or self.rng.random() < 0.3)]
        self.declared: dict[str, dict[str, Any]] = {name: {} for name in self.names}
        if kind == "compacted" or (self.rng.random() < 0.5 and kind == "any"):
            self._compact()

    def _compact(self) -> None:
        """It has a compacted topic, and its log loses files."""
        self.declared = {name: {"retention_bytes": self.rng.choice((20_000, 300_000))} for name in self.names}
        self.declared[COMPACTED] = {"compacted": True}
        self.names.append(COMPACTED)
        self.together, self.delays = MANY_TOGETHER, SHORT_DELAYS
        self.chosen = {
            "retention_check_s": 0.05,
            "compaction_dirty": 0.01,
            "compaction_keys": self.rng.choice((7, 1_000_000, 1_000_000)),
            "compaction_tombstone_s": self.rng.choice((0.0, 0.5, 3600.0)),
            "topics_disk_quick": 0.0,
            # at 0 a pass is due when a queue has anything in the log's first file
            "topics_disk_forced": self.rng.choice((0.0, 1.0)),
            "topics_disk_full": 1.0,
        }

    def declare(self) -> None:
        """All topics, as they are or new."""
        for name in self.names:
            self._open_topic(name, new=name not in self.made)
            self.made.add(name)

    def works(self) -> list[tuple[Any, float]]:
        """What a step may be, and how often."""
        return [
            (self.rest, 10 * (COMPACTED in self.declared)),
            (self.append, 40),
            (self.append_later, 16),
            (self.append_delayed, 4),
            (self.prepare, 7),
            (self.decide, 7),
            (self.decide_left, 4 if COMPACTED in self.declared else 0.7),
            (self.remake, 1.5),
            (self.kill, 1.0),
            (self.fail, 0.7),
        ]

    def rest(self) -> None:
        """Let compaction and retention look for a while."""
        time.sleep(self.rng.choice(RESTS_S))

    def busy(self) -> None:
        """Something that is synced."""
        self.rng.choice((self.append, self.append, self.append_later, self.append_delayed, self.prepare, self.decide))()

    # -- topics -------------------------------------------------------------------------------------------------

    def _declared(self, name: str, queues: int | None = None) -> warren.Topic:
        return self.node.topic(name, queues=queues, **self.declared[name])

    def _open_topic(self, name: str, *, new: bool) -> None:
        """`new`: surely it is not there."""
        token = next(self.tokens)
        queues = self.rng.choice(NAMES[name]) if new else None
        self.say("q", token, name)
        self.topics[name] = self._declared(name, queues)
        self.ids[name] = self.node._client.catalog().topic(name).id  # nobody else needs to know it
        self.say("c", token, self.ids[name])

    def remake(self) -> None:
        """Delete a topic, and make it again: another one."""
        name = self.rng.choice(self.names)
        token = next(self.tokens)
        self.say("x", token, name)
        self.ids.pop(name, None)
        self.topics.pop(name, self._declared(name)).delete()
        self.say("c", token, 0)
        self._open_topic(name, new=True)

    def _any_topic(self) -> str:
        compacted = COMPACTED in self.declared and self.rng.random() < COMPACTED_SHARE
        name = COMPACTED if compacted else self.rng.choice(self.names)
        if name not in self.ids:  # a change of it was not confirmed
            self._open_topic(name, new=False)
        return name

    def kill(self) -> None:
        """kill -9 a server, mostly the topic worker."""
        pid = self._pids().get("topic_worker")
        if pid is None or self.rng.random() < 0.2:
            super().kill()
            return
        self.say("k", "topic_worker")
        recording.kill([pid])

    # -- messages -----------------------------------------------------------------------------------------------

    def _size_in(self, name: str) -> int:
        pick = self.rng.random()
        sizes = COMPACTED_SIZES if name == COMPACTED else SIZES
        low, high = next((low, high) for below, low, high in sizes if pick < below)
        return self.rng.randint(low, high)

    def _submit(  # type: ignore[override]  # of topics, not of the store
        self, wait: bool, delay: float | None = None
    ) -> tuple[int, Any]:
        name = self._any_topic()
        topic = self.topics[name]
        level = self.rng.choice(LEVELS)
        queue = self.rng.randrange(topic.queues)
        items: list[tuple[int, int]] = []
        room = TOGETHER_BYTES
        for _ in range(self.rng.choice(self.together if delay is None else DELAYED_TOGETHER)):
            size = self._size_in(name)
            room -= size + 200
            if items and room < 0:
                break
            items.append((next(self.message), size))
        token = next(self.tokens)
        self.say("l" if delay is None else "d", token, self.ids[name], queue, level, items)
        numbers = [number for number, _size in items]
        return token, topic.append_many(
            [body_of(name, *item) for item in items],
            [keys_of(name, number) or None for number in numbers],
            [tag_of(name, number) for number in numbers],
            queue=queue,
            durability=level,
            wait=wait,
            timeout=self.timeout,
            delay=delay,
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

    def append_delayed(self) -> None:
        """Messages that come later, confirmed."""
        self._confirmed(*self._submit(wait=True, delay=self.rng.choice(self.delays)))

    # -- half messages ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """A half message, confirmed."""
        name = self._any_topic()
        number, size = next(self.message), self._size_in(name)
        queue, token = self.rng.randrange(self.topics[name].queues), next(self.tokens)
        self.say("h", token, self.ids[name], queue, "synced", [(number, size)])
        half = self.topics[name].prepare(
            body_of(name, number, size),
            keys_of(name, number) or None,
            tag_of(name, number),
            queue=queue,
            timeout=self.timeout,
        )
        self.halves.append(_Half(name, self.ids[name], number, half.message_id))
        self.say("c", token, [(-1, int(half.message_id[-16:], 16))])  # what ends it is the position

    def decide(self) -> None:
        """Commit a half message, or roll it back; mostly an old one, which holds up the log."""
        self.halves = [half for half in self.halves if self.ids.get(half.name) == half.topic]
        if len(self.halves) <= (0 if COMPACTED in self.declared else HALVES_LEFT):
            self.prepare()
            return
        self._decide(self.halves[0] if self.rng.random() < 0.7 else self.rng.choice(self.halves))

    def decide_left(self) -> None:
        """Finish those that a topic lists: whoever prepared them may not have been told."""
        name = self._any_topic()
        for left in self.topics[name].halves(LISTED):
            if self.rng.random() < 0.7:
                number = number_of(name, left.body, left.tag)
                self._decide(_Half(name, self.ids[name], number, left.message_id))

    def _decide(self, half: _Half) -> None:
        commit = self.decided.setdefault(half.number, self.rng.random() < COMMITTED_SHARE)
        token = next(self.tokens)
        self.say("f", token, half.number, commit)
        of_topic = self.topics[half.name].half(half.message_id)
        if commit:
            position = of_topic.commit(timeout=self.timeout)
            self.say("c", token, (position.offset, position.physical_offset))
        else:
            of_topic.rollback(timeout=self.timeout)
            self.say("c", token, 0)
        with contextlib.suppress(ValueError):
            self.halves.remove(half)


def main() -> int:
    """Live through one history."""
    directory, seed, operations, *kind = sys.argv[1:]
    TopicHistory(Path(directory), int(seed), *kind).run(int(operations))
    return 0


if __name__ == "__main__":
    sys.exit(main())
