"""Goal: a power failure at any point loses nothing that a topic had confirmed, shows nothing that was not appended, and
is no damage; and the campaign that says so can see a loss.

Method: a short seeded history of a real node with topics, recorded and crashed (warren.tools.crash.powerloss); the same
recording with syncs that did nothing and confirms that came too early, and a truth that says otherwise.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from warren.tools.crash.disk import State
from warren.tools.crash.recording import Record
from warren.tools.crash.topic_truth import APPENDED, TopicTruth

from support.crashed_topics import Recorded, recorded_topics

pytestmark = pytest.mark.crash


def last_synced(recorded: Recorded) -> tuple[int, State, int] | None:
    """(point, state, place among the batches) of what was confirmed `synced`, of a topic that is there still."""
    truth = TopicTruth(recorded.records)
    for _number, point, state in reversed(list(recorded.states(recorded.records, 40))):
        there = set(truth.topics(point)[0].values())
        for place, batch in enumerate(truth.batches):
            synced = batch.kind == APPENDED and batch.level == "synced" and truth.is_confirmed(batch.token, point)
            if synced and batch.topic in there:
                return point, state, place
    return None


def has_all(recorded: Recorded) -> bool:
    """Confirms of every level, and a message that must be there."""
    truth = TopicTruth(recorded.records)
    levels = {batch.level for batch in truth.batches if batch.token in truth.confirmed}
    return levels == {"none", "written", "synced"} and last_synced(recorded) is not None


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    with recorded_topics("plain", 80, has_all) as recorded:
        yield recorded


def test_nothing_confirmed_is_lost(recorded: Recorded) -> None:
    kinds = {record.kind for record in recorded.records}
    assert {"write", "sync", "create", "rename", "note", "seen", "mkdir"} <= kinds
    assert recorded.wrong(recorded.records) == []


def planted(records: list[Record], fault: str) -> list[Record]:
    """The same record, with something in it that the node did not do right."""
    if fault == "file syncs":  # of topics: without its catalog, nothing of a state is looked at
        inodes = {record.inode for record in records if record.kind == "create" and "/topics/" in record.path}
        return [
            dataclasses.replace(record, result=-1) if record.kind == "sync" and record.inode in inodes else record
            for record in records
        ]
    found = list(records)
    for at, record in enumerate(found):
        what = msgspec.msgpack.decode(record.data) if record.kind == "note" else [""]
        last = next((n for n in range(at, len(found)) if what[0] == APPENDED and _confirms(found[n], what[1])), None)
        if last is not None:
            found[at + 1 : last + 1] = [found[last], *found[at + 1 : last]]
    return found


def _confirms(record: Record, token: int) -> bool:
    return record.kind == "note" and msgspec.msgpack.decode(record.data)[:2] == ["c", token]


@pytest.mark.long
@pytest.mark.parametrize("fault", ["file syncs", "early confirms"])
def test_planted_faults_are_found(recorded: Recorded, fault: str) -> None:
    wrong = recorded.wrong(planted(recorded.records, fault), 80)
    assert any("and is gone" in text for text in wrong), wrong[:5]


def test_what_is_there_is_looked_at(recorded: Recorded) -> None:
    """A truth that knows something else than the disk has."""
    found = last_synced(recorded)
    assert found is not None
    point, state, place = found
    check = recorded.checker.check
    assert check(state, TopicTruth(recorded.records), point) == []

    def changed(change: Any) -> list[str]:
        truth = TopicTruth(recorded.records)
        change(truth, truth.batches[place])
        return check(state, truth, point)

    def elsewhere(truth: TopicTruth, batch: Any) -> None:
        truth.answers[batch.token] = [(offset + 1, position) for offset, position in truth.answers[batch.token]]

    def unknown(truth: TopicTruth, batch: Any) -> None:
        del truth.of_number[batch.items[0][0]]

    def more(truth: TopicTruth, batch: Any) -> None:
        del truth.confirmed[batch.token]
        batch.items.append((10**9, 100))

    def in_another_queue(_truth: TopicTruth, batch: Any) -> None:
        batch.queue += 1

    assert any("was confirmed at" in text and "and is at" in text for text in changed(elsewhere))
    assert any("was not appended yet" in text for text in changed(unknown))
    assert any("messages from" in text and "are there" in text for text in changed(more))
    assert any("of topic" in text for text in changed(in_another_queue))
    log = next(path for path, content in state.items() if path.startswith("topics/commitlog/") and content)
    content = state[log]
    assert content is not None
    damaged = state | {log: content[:100] + bytes([content[100] ^ 1]) + content[101:]}
    assert check(damaged, TopicTruth(recorded.records), point)
