"""What the kill campaign of the gateway says of a stream: nothing of what is right, and it sees what is wrong.

Goal: each thing that tools/crash/amqp_streams.py promises to see, it sees; so a campaign without violations means
something. Method: logs as a good campaign has them, in which one thing is wrong.
"""

from collections.abc import Callable

import pytest

from warren.tools.crash.amqp_streams import END, judge

KEYS = [f"kill-stream.{publisher}.{n}.0" for n in range(3) for publisher in ("a", "b")]
A0, B0, A1, B1, A2, B2 = KEYS
LINES = [
    *("o first", *(f"s {n} {key}" for n, key in enumerate(KEYS))),
    *("o 2", f"s 2 {A1}", f"s 3 {B1}"),
    *("o last", f"s 5 {B2}", "e Lost: the connection has ended"),
    *("o next", f"s 4 {A2}"),
]


class Logs:
    """Of a good campaign."""

    def __init__(self) -> None:
        self.there = [*enumerate(KEYS), (len(KEYS), f"{END}.1")]
        self.announced = set(KEYS)
        self.confirmed = set(KEYS) - {B2}
        self.lines = list(LINES)
        self.node_died = False

    def judged(self) -> list[str]:
        """What is said of them."""
        readers = {"reader": [line.split(" ") for line in self.lines]}
        return list(judge(self.there, self.announced, self.confirmed, readers, self.node_died))

    def replace(self, line: str, by: str) -> None:
        """Another line of the reader."""
        self.lines[self.lines.index(line)] = by

    def renumber(self, keys: list[str]) -> None:
        """The stream has these keys."""
        self.there = list(enumerate(keys))


def test_nothing_is_said_of_what_is_right() -> None:
    assert Logs().judged() == []


def lose(logs: Logs) -> None:
    logs.renumber(KEYS[:4])
    logs.lines.clear()


def leave_out(logs: Logs) -> None:
    del logs.there[3]
    logs.confirmed.discard(B1)


def double(logs: Logs) -> None:
    logs.renumber([*KEYS, A2])


def swap(logs: Logs) -> None:
    logs.renumber([A1, B0, A0, B1, A2, B2])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lose, f"{A2} was confirmed and is not there"),
        (leave_out, "offset 4 comes where 3 is next"),
        (double, f"{A2} is there twice, at 4 and 6"),
        (swap, f"{A0} at 2 comes after number 1"),
        (lambda logs: logs.announced.discard(A2), f"{A2} was never published"),
        (lambda logs: logs.lines.remove(f"s 2 {A1}"), "got offset 3, and 2 was next of what it began at first"),
        (lambda logs: logs.replace("o first", "o 1"), "got offset 0, and 1 was next of what it began at 1"),
        (lambda logs: logs.replace(f"s 5 {B2}", f"s 5 {A0}"), f"got {A0} at 5, where the stream has {B2}"),
        (lambda logs: logs.replace(f"s 5 {B2}", f"s 9 {B2}"), f"got {B2} at 9, where the stream has nothing"),
    ],
)
def test_what_is_wrong_is_seen(wrong: Callable[[Logs], None], said: str) -> None:
    logs = Logs()
    wrong(logs)
    assert any(said in line for line in logs.judged()), logs.judged()


def test_what_was_not_confirmed_may_go_with_the_memory_of_a_node() -> None:
    logs = Logs()
    logs.renumber(KEYS[:5])
    assert logs.judged() != []
    logs.node_died = True
    assert logs.judged() == []
    logs.confirmed.add(B2)
    assert logs.judged() != []
