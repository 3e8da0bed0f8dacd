"""Messages that wait: half messages, and those that come later. What the log says of them, read by other code than the
engine's (topic_log.py), against what the worker kept, and against what a client was told.

- a half message that was prepared, and confirmed, is there until it is decided, and pending as long as nobody decided
- one that is committed or rolled back is so once, as it was decided; nobody decides but the client. A commit that was
  confirmed is in its topic, where it was said to be; what was rolled back never is
- a message that comes later waits, or has come, once
- snapshots and rows of a worker that has stopped have what the log says is pending, and no more
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from warren.tools.crash.topic_content import is_genuine, number_of
from warren.tools.crash.topic_life import Row
from warren.tools.crash.topic_log import HALF_ASIDE, BadFileError, Waits, is_commit
from warren.tools.crash.topic_truth import DELAYED, Batch, TopicTruth
from warren.tools.crash.topic_truth import HALF as PREPARED

HALVES_HEAD = struct.Struct(">8sII16sQQQQQ")
HALF_ENTRY = struct.Struct(">QQIII")
LATER_HEAD = struct.Struct(">8sII16sQQQQ")
LATER_ENTRY = struct.Struct(">QQII")


@dataclass(frozen=True)
class Places:
    """Where messages of programs are: number → (offset, position); and below which offset of a queue some are gone."""

    found: Mapping[int, tuple[int, int]]
    rows: Mapping[tuple[int, int], Row]
    begin: int  #: where the log begins
    end: int  #: position of its last record, as it was found at first

    def minimum(self, batch: Batch) -> int:
        """Of the queue that a batch is for."""
        row = self.rows.get((batch.topic, batch.queue))
        return row.minimum if row is not None else 0


class Waiting(Waits):
    """What the log says of messages that wait, or waited, against what else is known of them."""

    # -- against what the worker kept ---------------------------------------------------------------------------

    def unlike_kept(self, folder: Path, rows: Mapping[tuple[int, int], Row], living: set[int]) -> Iterator[str]:
        """Of a worker that has stopped in good order. Raises BadFileError."""
        halves, later = self.pending(living)
        for what, said, due in (
            ("halves", _kept(folder / "halves", HALVES_HEAD, HALF_ENTRY), halves),
            ("later", _kept(folder / "later", LATER_HEAD, LATER_ENTRY), later),
        ):
            if said != due:
                yield f"{what}: the snapshot has {said}, and the log says that {due} are pending"
        for what, positions, records in (("halves", halves, self.halves), ("delayed", later, self.later)):
            counts = Counter(records[position].topic_id for position in positions)
            for (topic, queue), row in rows.items():
                shown = row.halves if what == "halves" else row.delayed
                if topic in living and not queue and shown != counts[topic]:
                    yield f"topic {topic} shows {shown} {what}, and the log says that {counts[topic]} are pending"

    # -- against what a client was told -------------------------------------------------------------------------

    def unlike(self, truth: TopicTruth, point: int, living: set[int], places: Places) -> Iterator[str]:
        """What waits, and what came of it, against what was asked for and confirmed."""
        at: dict[str, dict[int, int]] = {PREPARED: {}, DELAYED: {}}  # number → position
        for kind, records in ((PREPARED, self.halves), (DELAYED, self.later)):
            for position, record in records.items():
                number = number_of(record.real[0], record.body, record.tag)
                batch = truth.of_number.get(number)
                if batch is None or batch.submitted >= point or batch.kind != kind:
                    yield f"the record at {position} is of {number}, which was not to wait yet"
                elif (record.topic_id, record.real[1]) != (batch.topic, batch.queue) or not is_genuine(
                    record.real[0], number, record.body
                ):
                    yield f"the record at {position} is not what was said of {number}"
                elif number in at[kind]:
                    yield f"{number} waits twice, at {at[kind][number]} and {position}"
                else:
                    at[kind][number] = position
        for batch in truth.batches:
            if batch.submitted < point and batch.topic in living:
                if batch.kind == PREPARED:
                    yield from self._unlike_half(batch, at[PREPARED], truth, point, places)
                elif batch.kind == DELAYED:
                    yield from self._unlike_later(batch, at[DELAYED], truth, point, places)

    def _unlike_half(
        self, batch: Batch, at: Mapping[int, int], truth: TopicTruth, point: int, places: Places
    ) -> Iterator[str]:
        ((number, _size),) = batch.items
        finishes = truth.finished(number, point)
        position = at.get(number)
        if truth.is_confirmed(batch.token, point):
            said: int = truth.answers[batch.token][0][1]
            if position is None and (said >= places.begin or not finishes):
                yield f"half message {number} was prepared at {said}, and is gone"
            elif position not in (None, said):
                yield f"half message {number} was prepared at {said}, and is at {position}"
            position = said
        outcomes = self.outcomes.get(position, []) if position is not None else []
        committed = [is_commit(outcome) for outcome in outcomes]
        if len(outcomes) > 1:
            yield f"half message {number} was finished {len(outcomes)} times"
        if (outcomes or number in places.found) and not finishes:
            yield f"half message {number} was finished, and nobody had decided"
            return
        if any(commit != finishes[0].commit for commit in committed):
            yield f"half message {number} was to be {_word(finishes[0].commit)}, and was {_word(committed[0])}"
        if any(outcome.topic == HALF_ASIDE for outcome in outcomes):
            yield f"half message {number} was put aside, and nobody was asked"
        if finishes and not finishes[0].commit and number in places.found:
            yield f"half message {number} was to be rolled back, and is at {places.found[number]}"
        for finish in finishes:
            if truth.is_confirmed(finish.token, point):
                yield from self._unlike_finish(batch, number, finish.commit, truth.answers[finish.token], at, places)
                break

    def _unlike_finish(
        self, batch: Batch, number: int, commit: bool, answer: object, at: Mapping[int, int], places: Places
    ) -> Iterator[str]:
        """Of a half message of which it was confirmed that it is finished."""
        if number in at and at[number] not in self.outcomes:
            yield f"half message {number} was {_word(commit)}, and is pending"
        if commit and isinstance(answer, (list, tuple)):
            found = places.found.get(number)
            if found is None and answer[0] >= places.minimum(batch):
                yield f"half message {number} was committed at {answer[0]}, {answer[1]}, and is gone"
            elif found not in (None, tuple(answer)):
                yield f"half message {number} was committed at {answer[0]}, {answer[1]}, and is at {found}"

    def _unlike_later(
        self, batch: Batch, at: Mapping[int, int], truth: TopicTruth, point: int, places: Places
    ) -> Iterator[str]:
        sure = truth.is_confirmed(batch.token, point) and batch.level != "none"
        answers = truth.answers[batch.token] if sure else [None] * len(batch.items)
        waits = [number for number, _size in batch.items if number in at]
        if 0 < len(waits) < len(batch.items) and not places.begin:
            yield f"{len(waits)} of the {len(batch.items)} messages from {batch.items[0][0]} on wait, or came"
        for (number, _size), answer in zip(batch.items, answers, strict=True):
            position = at.get(number)
            if position is not None and len(self.came.get(position, ())) > 1:
                yield f"{number} came {len(self.came[position])} times"
            if answer is None or (batch.level == "written" and answer[1] > places.end):
                continue
            if position not in (None, answer[1]):
                yield f"{number} was to come later, from {answer[1]}, and waits at {position}"
            elif position is None and number not in places.found and not self._may_be_gone(answer[1], batch, places):
                yield f"{number} was to come later ({batch.level}), from {answer[1]}, and is gone"

    @staticmethod
    def _may_be_gone(position: int, batch: Batch, places: Places) -> bool:
        """It came, before the log begins, and went: it was replaced, or retention took it."""
        return position < places.begin and places.minimum(batch) > 0


def _word(commit: bool) -> str:
    return "committed" if commit else "rolled back"


def _kept(path: Path, head: struct.Struct, entry: struct.Struct) -> list[int]:
    """The positions in a snapshot. Raises BadFileError."""
    if not path.exists():
        return []
    data = path.read_bytes()
    count = head.unpack_from(data)[7]
    if len(data) < head.size + count * entry.size:
        raise BadFileError(f"{path}: it says that it has {count}, and ends before")
    return [entry.unpack_from(data, head.size + number * entry.size)[0] for number in range(count)]
