"""Compacted topics: their files of newest messages against the log (compacted_files.py), against what a reader was
given, and against what a client was told.

- where the minimum of a queue has risen its file is there, and ends there or later
- of each key the newest message that was confirmed is found, or a newer one; nothing only where a tombstone says so
- a reader from the beginning is given what file and log have, and nothing else
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from warren.tools.crash.compacted_files import NewestFile, unlike_log
from warren.tools.crash.topic_content import keys_of, number_of
from warren.tools.crash.topic_life import Row, Seen
from warren.tools.crash.topic_log import Logged
from warren.tools.crash.topic_messages import key_of
from warren.tools.crash.topic_truth import APPENDED, HALF, Batch, TopicTruth

# -- what is there ----------------------------------------------------------------------------------------------------


def unlike_files(
    files: Mapping[tuple[int, int], NewestFile],
    rows: Mapping[tuple[int, int], Row],
    compacted: set[int],
    log: Mapping[tuple[int, int], Sequence[Logged]],
    read: Mapping[tuple[int, int], Sequence[Seen]],
    tombstone_ms: float,
) -> Iterator[str]:
    """Files against rows, the log's records by topic and queue, and what readers were given. `tombstone_ms`: how long
    tombstones stay.
    """
    for place, row in rows.items():
        if place[0] not in compacted:
            continue
        name, file = f"{place[0]}/{place[1]}", files.get(place)
        if row.minimum and (file is None or file.end < row.minimum):
            what = "is missing" if file is None else f"ends at {file.end}"
            yield f"{name}: its minimum is {row.minimum}, and its file of newest messages {what}"
        of_log = log.get(place, ())
        if file is not None:
            yield from unlike_log(name, file, row.maximum, of_log, tombstone_ms)
        given = [Seen(record.offset, record.tag or None, record.body) for record in visible(file, row, of_log)]
        if place in read and (seen := list(read[place])) != given:
            wrong = sorted(Counter(one.offset for one in seen).items() ^ Counter(one.offset for one in given).items())
            yield f"{name}: a reader is given {len(seen)} messages of {len(given)}, differing at {wrong[:5]}"


def visible(file: NewestFile | None, row: Row, log: Sequence[Logged]) -> list[Logged]:
    """What a reader finds: below the minimum what the file has, from there on the log."""
    below = [record for record in file.records if record.offset < row.minimum] if file is not None else []
    return below + [record for record in log if record.offset >= row.minimum]


# -- against what a client was told -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sure:
    """The newest message of a key that was confirmed."""

    number: int
    offset: int
    asked: int  #: number of the note before it


def unlike_newest(
    found: Mapping[tuple[int, int], Sequence[Logged]], truth: TopicTruth, point: int, end: int, name: str
) -> Iterator[str]:
    """What a reader finds of each key. `found`: by topic and queue, of compacted topics, which have that name."""
    sure: dict[tuple[int, int, str], _Sure] = {}
    for batch, number, offset, _position in truth.sure(point, end):
        if (batch.topic, batch.queue) in found:
            place = batch.topic, batch.queue, key_of(keys_of(name, number))
            if place not in sure or offset > sure[place].offset:
                sure[place] = _Sure(number, offset, _asked(batch, number, truth, point))
    there: dict[tuple[int, int, str], Logged] = {}
    for (topic, queue), records in found.items():
        there.update(((topic, queue, key_of(record.keys)), record) for record in records)  # the last one is the newest
    tombstones = _tombstones(truth, point, name)
    for place, newest in sure.items():
        of_key, record = f"{place[0]}/{place[1]}, key {place[2]!r}", there.get(place)
        if record is not None:
            if record.offset < newest.offset:
                number = number_of(record.topic, record.body, record.tag)
                yield f"{of_key}: {number} at {record.offset} is found, and {newest.number} at {newest.offset} was last"
            continue
        if not any(
            number == newest.number or asked is None or asked > newest.asked for number, asked in tombstones[place]
        ):
            yield f"{of_key}: {newest.number} at {newest.offset} was confirmed, nothing takes it away, and it is gone"


def _asked(batch: Batch, number: int, truth: TopicTruth, point: int) -> int:
    """When it was asked for what gave a message its place."""
    if batch.kind != HALF:
        return batch.submitted
    return next(finish.submitted for finish in truth.finished(number, point) if finish.commit)


def _tombstones(
    truth: TopicTruth, point: int, name: str
) -> defaultdict[tuple[int, int, str], list[tuple[int, int | None]]]:
    """(number, when it was asked for) of each tombstone that may have come; None: nobody knows when it came."""
    found: defaultdict[tuple[int, int, str], list[tuple[int, int | None]]] = defaultdict(list)
    for batch in truth.batches:
        if batch.submitted >= point:
            break
        for number, size in batch.items:
            if not size and (batch.kind != HALF or any(finish.commit for finish in truth.finished(number, point))):
                asked = batch.submitted if batch.kind == APPENDED else None
                found[batch.topic, batch.queue, key_of(keys_of(name, number))].append((number, asked))
    return found
