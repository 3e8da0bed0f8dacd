"""Goal: a power failure at any point takes no key of a compacted topic back to an older message, and loses no half
message, and none that comes later; and the campaign that says so can see it.

Method: a short seeded history of a real node with a compacted topic, recorded and crashed
(warren.tools.crash.powerloss). The same recording with syncs of compaction that did nothing; states in which a file of
newest messages is missing, cut, or damaged; a truth that says otherwise; the judges with records made by hand.
"""

import dataclasses
from collections.abc import Callable, Iterator

import msgspec
import pytest

from warren.tools.crash.compacted_files import NewestFile
from warren.tools.crash.disk import State
from warren.tools.crash.recording import Record
from warren.tools.crash.topic_content import COMPACTED, body_of, keys_of, tag_of
from warren.tools.crash.topic_life import Row, Seen
from warren.tools.crash.topic_log import COMMITTED, HALF, HALF_OVER, LATER, ROLLED_BACK, Logged
from warren.tools.crash.topic_newest import unlike_files, unlike_newest
from warren.tools.crash.topic_truth import DELAYED, TopicTruth
from warren.tools.crash.topic_truth import HALF as PREPARED
from warren.tools.crash.topic_waiting import Places, Waiting

from support.crashed_topics import Recorded, recorded_topics

OPERATIONS = 120


def last_with_files(recorded: Recorded) -> tuple[int, State, str, bytes] | None:
    """(point, state, path and bytes of a file of newest messages) of a late state whose queue needs that file."""
    for _number, point, state in reversed(list(recorded.states(recorded.records, 200))):
        for path, content in state.items():
            if path.startswith("topics/compacted/") and content and not path.endswith(".new"):
                changed = {name: there for name, there in state.items() if name != path}
                if recorded.checker.check(changed, TopicTruth(recorded.records), point):
                    return point, state, path, content
    return None


def last_finished(recorded: Recorded) -> tuple[int, State, int] | None:
    """(point, state, number) of a half message that was finished for sure, and is in the log of a late state still."""
    truth = TopicTruth(recorded.records)
    for _number, point, state in reversed(list(recorded.states(recorded.records, 40))):
        living = set(truth.topics(point)[0].values())
        begin = min((int(path.rpartition("/")[2]) for path in state if path.startswith("topics/commitlog/")), default=0)
        for number in reversed(truth.finishes):
            batch, finish = truth.of_number[number], truth.finishes[number][0]
            told = truth.is_confirmed(batch.token, point) and truth.is_confirmed(finish.token, point)
            if told and batch.topic in living and truth.answers[batch.token][0][1] >= begin:
                return point, state, number
    return None


def has_all(recorded: Recorded) -> bool:
    """Every kind of operation, a file of newest messages that is needed, and a half message that was finished."""
    did = TopicTruth(recorded.records).did
    return (
        min(did["passes"], did["prepared"], did["delayed"], did["commits"] + did["rollbacks"]) > 0
        and last_finished(recorded) is not None
        and last_with_files(recorded) is not None
    )


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    with recorded_topics("compacted", OPERATIONS, has_all) as recorded:
        yield recorded


@pytest.mark.crash
def test_no_key_goes_back_and_nothing_that_waits_is_lost(recorded: Recorded) -> None:
    assert recorded.wrong(recorded.records) == []


@pytest.mark.crash
def test_files_of_newest_messages_are_looked_at(recorded: Recorded) -> None:
    found = last_with_files(recorded)
    assert found is not None
    point, state, path, content = found
    check, truth = recorded.checker.check, TopicTruth(recorded.records)
    assert check(state, truth, point) == []

    def without(records: list[str]) -> State:
        return {name: there for name, there in state.items() if name not in records}

    assert any("is missing" in text for text in check(without([path]), truth, point))
    assert check(state | {path: content[: len(content) // 2]}, truth, point)
    assert check(state | {path: content[:-1] + bytes([content[-1] ^ 1])}, truth, point)
    assert check(state | {path: b""}, truth, point)


def planted(records: list[Record], fault: str) -> list[Record]:
    """The same record, with syncs in it that did nothing: of files of newest messages, or of the folders of these."""
    inodes = {record.inode for record in records if record.kind == "create" and "/topics/compacted/" in record.path}

    def is_meant(record: Record) -> bool:
        if record.kind != "sync":
            return False
        if fault == "content":
            return not record.path and record.inode in inodes
        return "/topics/compacted" in record.path

    return [dataclasses.replace(record, result=-1) if is_meant(record) else record for record in records]


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("fault", ["content", "names"])
def test_files_that_were_not_synced_are_found(recorded: Recorded, fault: str) -> None:
    wrong = recorded.wrong(planted(recorded.records, fault), 160)
    assert any("newest messages" in text or "cannot be read" in text or "compacted" in text for text in wrong), wrong[
        :5
    ]


@pytest.mark.crash
def test_what_waits_is_looked_at(recorded: Recorded) -> None:
    """A truth that knows something else of half messages than the log has."""

    found = last_finished(recorded)
    assert found is not None
    point, state, number = found

    def changed(change: Callable[[TopicTruth, int], None]) -> list[str]:
        truth = TopicTruth(recorded.records)
        change(truth, number)
        return recorded.checker.check(state, truth, point)

    def other_way(truth: TopicTruth, number: int) -> None:
        for finish in truth.finishes[number]:
            finish.commit = not finish.commit
            truth.answers[finish.token] = (0, 0) if finish.commit else 0

    def nobody(truth: TopicTruth, number: int) -> None:
        del truth.finishes[number]

    assert any("half message" in text for text in changed(other_way))
    assert any("half message" in text for text in changed(nobody))


# -- the judges, with records made by hand ----------------------------------------------------------------------------

TOPIC = 7
PLACE = TOPIC, 0
#: of one key of the compacted topic; see topic_content.py
ONE, TWO, THREE = 1, 11, 16
SIZES = {ONE: 100, TWO: 100, THREE: 0}


def record(number: int, offset: int, size: int = 100) -> Logged:
    """A message of the compacted topic, in its log."""
    return Logged(
        COMPACTED,
        TOPIC,
        0,
        offset,
        1000 * offset,
        500,
        0,
        body_of(COMPACTED, number, size),
        tag_of(COMPACTED, number) or "",
        tuple(keys_of(COMPACTED, number)),
    )


def truth_of(*notes: tuple[object, ...]) -> TopicTruth:
    return TopicTruth(
        [Record("note", 1, 0, 0, 0, "", "", msgspec.msgpack.encode(note)) for note in notes],
    )


def appended(*numbers: int, confirmed: int) -> TopicTruth:
    """Messages at the offsets 0, 1, …, each by itself, of which the first so many were confirmed."""
    notes: list[tuple[object, ...]] = []
    for at, number in enumerate(numbers):
        notes.append(("l", at, TOPIC, 0, "synced", [(number, SIZES[number])]))
        if at < confirmed:
            notes.append(("c", at, [(at, 1000 * at)]))
    return truth_of(*notes)


@pytest.mark.parametrize(
    ("numbers", "confirmed", "found", "wrong"),
    [
        ((ONE, TWO), 2, [(TWO, 1)], ""),
        ((ONE, TWO), 2, [(ONE, 0), (TWO, 1)], ""),
        ((ONE, TWO), 2, [(ONE, 0)], f"{ONE} at 0 is found, and {TWO} at 1 was last"),
        ((ONE, TWO), 1, [(ONE, 0)], ""),
        ((ONE, TWO), 1, [(TWO, 1)], ""),
        ((ONE, TWO), 2, [], "it is gone"),
        ((ONE, TWO), 1, [], "it is gone"),
        ((ONE, TWO), 0, [], ""),
        ((ONE, THREE), 2, [], ""),
        ((ONE, THREE), 2, [(THREE, 1)], ""),
        ((ONE, THREE), 2, [(ONE, 0)], f"and {THREE} at 1 was last"),
        ((ONE, THREE), 1, [], ""),
        ((THREE, ONE), 2, [], "it is gone"),
    ],
)
def test_the_newest_of_a_key(
    numbers: tuple[int, ...], confirmed: int, found: list[tuple[int, int]], wrong: str
) -> None:
    """THREE is a tombstone."""
    truth = appended(*numbers, confirmed=confirmed)
    there = [record(number, offset, SIZES[number]) for number, offset in found]
    said = list(unlike_newest({PLACE: there}, truth, 99, 10**6, COMPACTED))
    assert len(said) == bool(wrong), said
    assert not wrong or wrong in said[0]


def test_files_against_the_log() -> None:
    log = [record(ONE, 0), record(TWO, 1), record(2, 2)]

    def wrong(end: int, kept: list[Logged], minimum: int = 2, seen: list[Logged] | None = None) -> str:
        given = [*(one for one in kept if one.offset < minimum), *log[minimum:]] if seen is None else seen
        read = {PLACE: [Seen(one.offset, one.tag, one.body) for one in given]}
        rows = {PLACE: Row(minimum, 3, 0, 0)}
        files = {PLACE: NewestFile(end, tuple(kept))}
        return "; ".join(unlike_files(files, rows, {TOPIC}, {PLACE: log}, read, 0))

    assert wrong(2, [log[1]]) == ""
    assert "ends at 1" in wrong(1, [log[0]])
    assert "has None of key 'k1', and 1 was the newest" in wrong(2, [])
    assert "a reader is given 1 messages of 2" in wrong(2, [log[1]], seen=log[2:])
    assert "is missing" in "; ".join(unlike_files({}, {PLACE: Row(2, 3, 0, 0)}, {TOPIC}, {PLACE: log}, {}, 0))


def waiting(number: int, position: int, topic: str = HALF) -> Logged:
    """A message that waits, for a topic that is not compacted."""
    body = body_of("first", number, 100)
    keys, tag = tuple(keys_of("first", number)), tag_of("first", number) or ""
    goes = {"REAL_TOPIC": "first", "REAL_QID": "0"}
    return Logged(topic, TOPIC, 0, 0, position, 500, 0, body, tag, keys, properties=goes)


def over(half: int, position: int, commit: bool) -> Logged:
    """What became of one."""
    topic, flags = ("first", COMMITTED) if commit else (HALF_OVER, ROLLED_BACK)
    return Logged(topic, TOPIC, 0, 0, position, 500, 0, b"", "", (), flags, half)


PREPARE = (PREPARED, 1, TOPIC, 0, "synced", [(4, 100)])
TOLD = ("c", 1, [(-1, 1000)])
COMMIT, ROLLBACK = ("f", 2, 4, True), ("f", 2, 4, False)
OF_COMMIT, OF_ROLLBACK = ("c", 2, (0, 2000)), ("c", 2, 0)


@pytest.mark.parametrize(
    ("notes", "log", "wrong"),
    [
        ((PREPARE,), [], ""),
        ((PREPARE, TOLD), [], "was prepared at 1000, and is gone"),
        ((PREPARE, TOLD), [waiting(4, 1000)], ""),
        ((PREPARE, TOLD), [waiting(4, 1500)], "and is at 1500"),
        ((PREPARE,), [waiting(4, 1000), waiting(4, 1500)], "waits twice"),
        ((), [waiting(4, 1000)], "was not to wait yet"),
        ((PREPARE, TOLD), [waiting(4, 1000), over(1000, 2000, True)], "nobody had decided"),
        ((PREPARE, TOLD), [waiting(4, 1000), over(1000, 2000, False)], "nobody had decided"),
        ((PREPARE, TOLD, COMMIT), [waiting(4, 1000)], ""),
        ((PREPARE, TOLD, COMMIT), [waiting(4, 1000), over(1000, 2000, True)], ""),
        ((PREPARE, TOLD, COMMIT), [waiting(4, 1000), over(1000, 2000, False)], "to be committed, and was rolled back"),
        ((PREPARE, TOLD, COMMIT, OF_COMMIT), [waiting(4, 1000), over(1000, 2000, True)], ""),
        ((PREPARE, TOLD, COMMIT, OF_COMMIT), [waiting(4, 1000)], "was committed, and is pending"),
        ((PREPARE, TOLD, COMMIT, OF_COMMIT), [waiting(4, 1000), over(1000, 3000, True)], "and is at (0, 3000)"),
        (
            (PREPARE, TOLD, COMMIT, OF_COMMIT),
            [waiting(4, 1000), over(1000, 2000, True), over(1000, 3000, True)],
            "was finished 2 times",
        ),
        ((PREPARE, TOLD, ROLLBACK, OF_ROLLBACK), [waiting(4, 1000), over(1000, 2000, False)], ""),
        ((PREPARE, TOLD, ROLLBACK, OF_ROLLBACK), [waiting(4, 1000)], "was rolled back, and is pending"),
        ((PREPARE, TOLD, ROLLBACK), [waiting(4, 1000), over(1000, 2000, True)], "to be rolled back"),
    ],
)
def test_half_messages(notes: tuple[tuple[object, ...], ...], log: list[Logged], wrong: str) -> None:
    came = [(one.offset, one.position) for one in log if one.topic == "first"]
    places = {4: came[-1]} if came else {}
    end = max((one.position for one in log), default=0)
    judged = Waiting(log).unlike(truth_of(*notes), 99, {TOPIC}, Places(places, {}, 0, end))
    said = "; ".join(judged)
    assert (wrong in said) if wrong else not said, said


@pytest.mark.parametrize(
    ("level", "log", "came", "wrong"),
    [
        ("synced", [], 0, "is gone"),
        ("none", [], 0, ""),
        ("written", [], 0, ""),
        ("synced", [waiting(4, 1000, min(LATER))], 0, ""),
        ("synced", [waiting(4, 1000, max(LATER))], 1, ""),
        ("synced", [waiting(4, 1000, min(LATER))], 2, "came 2 times"),
        ("synced", [waiting(4, 1500, min(LATER))], 0, "waits at 1500"),
    ],
)
def test_messages_that_come_later(level: str, log: list[Logged], came: int, wrong: str) -> None:
    truth = truth_of((DELAYED, 1, TOPIC, 0, level, [(4, 100)]), TOLD)
    mark = dataclasses.replace(waiting(4, 2000, "first"), prepared=1001)
    records = [*log, *(dataclasses.replace(mark, position=2000 + at) for at in range(came))]
    places = {4: (0, 2000)} if came else {}
    said = "; ".join(Waiting(records).unlike(truth, 99, {TOPIC}, Places(places, {}, 0, 500)))
    assert (wrong in said) if wrong else not said, said
