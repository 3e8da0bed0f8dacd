"""What the notes of a recorded history of topics say (topic_history.py): what was asked for, and what was confirmed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from warren.tools.crash.recording import Record

#: how messages come to a topic: at once, later, by a commit
APPENDED, DELAYED, HALF = "l", "d", "h"
WORDS = {APPENDED: "appended", DELAYED: "delayed", HALF: "prepared"}


@dataclass(slots=True)
class Batch:
    """What was appended together, or prepared."""

    kind: str
    topic: int
    queue: int
    level: str
    items: list[tuple[int, int]]
    submitted: int
    token: int


@dataclass(slots=True)
class Finish:
    """A half message was committed, or rolled back."""

    commit: bool
    submitted: int
    token: int


@dataclass(slots=True)
class Change:
    """A topic was declared, or deleted."""

    name: str
    submitted: int
    token: int
    declared: bool


class TopicTruth:
    """What a history's notes say."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.confirmed: dict[int, int] = {}  #: token → number of the record that confirms it
        self.answers: dict[int, Any] = {}
        self.batches: list[Batch] = []
        self.of_number: dict[int, Batch] = {}
        self.finishes: defaultdict[int, list[Finish]] = defaultdict(list)  #: by number of the half message
        self.changes: list[Change] = []
        self.kills: Counter[str] = Counter()
        self.did: Counter[str] = Counter()
        for number, record in enumerate(records):
            if record.kind == "note":
                self._note(number, *msgspec.msgpack.decode(record.data))
            elif record.kind == "rename" and "/topics/compacted/" in record.to:
                self.did["passes"] += 1
            elif record.kind == "unlink" and "/topics/commitlog/" in record.path:
                self.did["files of the log removed"] += 1

    def _note(self, number: int, what: str, *words: Any) -> None:
        if what in (APPENDED, DELAYED, HALF):
            token, topic, queue, level, items = words
            self.did[WORDS[what]] += len(items)
            batch = Batch(what, topic, queue, level, [(item, size) for item, size in items], number, token)
            self.batches.append(batch)
            self.of_number.update((item, batch) for item, _size in items)
        elif what == "f":
            token, item, commit = words
            self.did["commits" if commit else "rollbacks"] += 1
            self.finishes[item].append(Finish(commit, number, token))
        elif what in ("q", "x"):
            self.changes.append(Change(words[1], number, words[0], what == "q"))
        elif what == "c":
            self.confirmed[words[0]], self.answers[words[0]] = number, words[1]
        elif what == "k":
            self.kills[words[0]] += 1

    def is_confirmed(self, token: int, point: int) -> bool:
        """Whether the client had been told before that point."""
        return self.confirmed.get(token, point) < point

    def finished(self, number: int, point: int) -> list[Finish]:
        """What was asked to become of a half message before that point: each time the same."""
        return [finish for finish in self.finishes.get(number, ()) if finish.submitted < point]

    def topics(self, point: int) -> tuple[dict[str, int], set[int], set[str]]:
        """(names that must be there, with their ids; ids that must not; names of which nothing is sure) at a point."""
        there: dict[str, int] = {}
        gone: set[int] = set()
        unsure: set[str] = set()
        for change in self.changes:
            if change.submitted >= point:
                break
            if not self.is_confirmed(change.token, point):
                if not change.declared or change.name not in there:
                    unsure.add(change.name)
                    there.pop(change.name, None)
            elif change.declared:
                there[change.name] = self.answers[change.token]
                unsure.discard(change.name)
            else:
                if change.name in there:
                    gone.add(there.pop(change.name))
                unsure.discard(change.name)
        return there, gone, unsure

    def sure(self, point: int, end: int) -> Iterator[tuple[Batch, int, int, int]]:
        """(batch, number, offset, position) of each message that was appended, or committed, and has to be there, or to
        have been replaced or removed since. `end`: position of the last record of the log: what was confirmed at
        `written` is there up to here.
        """
        for batch in self.batches:
            if batch.submitted >= point:
                break
            if batch.kind == HALF:
                for number, _size in batch.items:
                    for finish in self.finished(number, point):
                        if finish.commit and self.is_confirmed(finish.token, point):
                            yield batch, number, *self.answers[finish.token]
                            break
            elif batch.kind == APPENDED and batch.level != "none" and self.is_confirmed(batch.token, point):
                for (number, _size), place in zip(batch.items, self.answers[batch.token], strict=True):
                    if batch.level == "synced" or place[1] <= end:
                        yield batch, number, *place
