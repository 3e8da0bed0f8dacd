"""Goal: what a soak says of topics is right: each promise that is broken ends the run, and what may be does not.

Method: records and answers made by hand, one with something wrong in it. What a whole run does, test_soak.py sees.
"""

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

import warren
from warren.tools import soak_topics
from warren.tools.soak_clock import HEAD
from warren.tools.soak_topics import APPENDED_SIZE, KEPT_BYTES, RECORD_BYTES_MAX, Halver, Member, Ranges, Updater, Wrong


def record(offset: int, number: int, queue: int = 0, size: int = APPENDED_SIZE) -> Any:
    body = HEAD.pack(7, number).ljust(size, b"\0")
    return SimpleNamespace(queue=queue, offset=offset, body=body, key=f"k{number}")


def parts(*given: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    had = Ranges()
    for queue, start, end in given:
        had.add(queue, start, end)
    return had.plain()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([(0, 5, 6), (0, 6, 9), (0, 9, 10)], []),
        ([(0, 7, 10), (0, 5, 8)], []),  # the second part was another one's, or came again
        ([(0, 0, 20)], []),
        ([(0, 5, 9)], ["queue 0: 9 to 9"]),
        ([(0, 6, 10)], ["queue 0: 5 to 5"]),
        ([(0, 5, 7), (0, 8, 10)], ["queue 0: 7 to 7"]),
        ([(1, 5, 10)], ["queue 0: 5 to 9"]),
        ([], ["queue 0: 5 to 9"]),
    ],
)
def test_what_no_member_had_is_missing(given: list[tuple[int, int, int]], found: list[str]) -> None:
    assert soak_topics.missing(parts(*given), {0: 5}, {0: 10}) == found


def test_parts_that_touch_are_one() -> None:
    assert parts((0, 5, 6), (0, 6, 7), (1, 6, 7), (0, 6, 9), (0, 12, 13)) == [(0, 5, 9), (0, 12, 13), (1, 6, 7)]


@pytest.mark.parametrize(
    ("gone", "left", "wrong"),
    [
        (0, 0, False),
        (9, KEPT_BYTES, False),
        (9, KEPT_BYTES - RECORD_BYTES_MAX, False),
        (9, KEPT_BYTES - RECORD_BYTES_MAX - 1, True),
    ],
)
def test_retention_that_takes_too_much(gone: int, left: int, wrong: bool) -> None:
    assert bool(soak_topics.kept(gone, left)) is wrong


@pytest.mark.parametrize("wrong", [record(12, 3), record(11, 3), record(12, 1), record(12, 2, size=APPENDED_SIZE + 1)])
def test_a_member_sees_what_lies_elsewhere(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    monkeypatch.setattr(soak_topics, "opened", lambda *_: None)
    member = Member(cast(Any, None), comes_and_goes=False)
    for right in (record(10, 0), record(11, 1), record(4, 9, queue=1), record(10, 0), record(12, 2)):
        member._take(right)
    assert (member.read, member.had.plain()) == (5, [(0, 10, 13), (1, 4, 5)])
    with pytest.raises(Wrong, match="lies at"):
        member._take(wrong)


class Table:
    """A compacted topic as a reader sees it."""

    def __init__(self, found: dict[str, bytes], by_key: dict[str, bytes] | None = None) -> None:
        self.records = [SimpleNamespace(key=key, body=body) for key, body in found.items()]
        self.by_key = found if by_key is None else by_key

    def offsets(self, queue: int) -> tuple[int, int]:
        return (0, 1) if queue == 0 else (0, 0)

    def read(self, _queue: int, _at: int, **_options: Any) -> Any:
        return SimpleNamespace(records=self.records, next_offset=1)

    def find(self, key: str, **_options: Any) -> list[Any]:
        return [SimpleNamespace(body=self.by_key[key])] if key in self.by_key else []


ONE, TWO = HEAD.pack(7, 1), HEAD.pack(7, 2)


@pytest.mark.parametrize(
    ("found", "by_key", "wrong"),
    [
        ({"k1": ONE, "k2": TWO}, None, ""),
        ({"k1": ONE, "k2": TWO, "k3": b""}, None, ""),
        ({"k1": TWO, "k2": TWO}, None, "a reader gets .* of key k1"),
        ({"k1": ONE}, None, "a reader gets b'' of key k2"),
        ({"k1": ONE, "k2": TWO, "k3": ONE}, None, "a reader gets .* of key k3, and its newest is b''"),
        ({"k1": ONE, "k2": TWO}, {"k1": ONE, "k2": ONE}, "a look-up gets .* of key k2"),
        ({"k1": ONE, "k2": TWO}, {"k1": ONE}, "a look-up gets b'' of key k2"),
        ({"k1": ONE, "k2": TWO}, {"k1": ONE, "k2": TWO, "k3": ONE}, "a look-up gets .* of key k3"),
    ],
)
def test_the_newest_of_each_key(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, bytes], by_key: dict[str, bytes] | None, wrong: str
) -> None:
    monkeypatch.setattr(soak_topics, "opened", lambda *_: Table(found, by_key))
    monkeypatch.setattr(soak_topics, "KEYS", 4)
    monkeypatch.setattr(soak_topics, "LOOKED_UP", 4)
    updater = Updater(cast(Any, None))
    updater.newest = {"k1": ONE, "k2": TWO, "k3": b""}
    with pytest.raises(Wrong, match=wrong) if wrong else contextlib.nullcontext():
        updater._look()


@pytest.mark.parametrize(
    ("records", "due", "wrong"),
    [
        ([record(0, 1), record(1, 9)], {1}, ""),
        ([record(0, 1), record(1, 1)], {1}, "half message 1 came twice"),
        ([record(0, 5)], set(), "half message 5 came twice, or without a commit"),
        ([record(0, 1)], {1, 2}, r"half messages \[2\] were committed, and are not there"),
        ([record(0, 1), record(2, 9)], {1}, "goes on at 2, behind 0"),
    ],
)
def test_half_messages(records: list[Any], due: set[int], wrong: str) -> None:
    halver = Halver.__new__(Halver)
    halver.incarnation, halver.at, halver.due, halver.left = 7, 0, set(due), {9}
    answers = [records, []]
    halver.topic = cast(Any, SimpleNamespace(read=lambda *_, **__: SimpleNamespace(records=answers.pop(0))))
    with pytest.raises(Wrong, match=wrong) if wrong else contextlib.nullcontext():
        halver._read()


def test_a_group_that_goes_back() -> None:
    judge = soak_topics.Judge.__new__(soak_topics.Judge)
    judge._committed = {}
    rows = iter([[{"queue": 0, "committed": value}] for value in (None, 5, 5, 4)])
    judge.topic = cast(Any, SimpleNamespace(group=lambda _name: {"queues": next(rows)}))
    assert [judge._look_at_group() for _ in range(3)] == [[], [], []]
    assert judge._look_at_group() == ["group: queue 0 is committed up to 4, after 5"]

    def nobody(_name: str) -> None:
        raise warren.UsageError("no such group")

    judge.topic = cast(Any, SimpleNamespace(group=nobody))
    assert judge._look_at_group() == []
