"""The judge of half messages in a kill campaign: it says nothing of what is right, and sees what is wrong.

Goal: each thing that tools/crash/half_judge.py promises to see, it sees; so a campaign without violations means
something. Method: logs, records and lists as a good campaign has them, in which one thing is wrong; and the outcomes in
the log of a real node.
"""

import dataclasses
from pathlib import Path

import pytest

import warren
from warren.tools.crash.half_actors import ALONE, ANSWERED, TOPICS, answer_of, finish
from warren.tools.crash.half_judge import (
    COMMIT,
    COMMITTED,
    PUT_ASIDE,
    ROLLBACK,
    ROLLED_BACK,
    UNKNOWN,
    Halves,
    HalvesVerdict,
    Outcome,
    judge_halves,
    judge_outcomes,
    outcomes_of,
)
from warren.tools.crash.logs import Log
from warren.tools.crash.topic_campaign import TopicCampaign
from warren.tools.crash.topic_judge import There, Topics
from warren.tools.crash.topic_log import COMMITTED as COMMITTED_FLAGS
from warren.tools.crash.topic_log import HALF, HALF_ASIDE, HALF_OVER, Logged, walked
from warren.tools.crash.topic_log import ROLLED_BACK as ROLLED_BACK_FLAGS
from warren.tools.crash.topic_messages import Message, body_of

from support.real_node import RealNode

#: w.0 is committed, w.1 rolled back, w.2 pending, w.3 committed by an answer, w.4 put aside, w.5 was never confirmed
LINES = (
    "p w.0 t 1.0",
    "d w.0 1.1 id0",
    "C w.0",
    "+ w.0 0 0 1000",
    "p w.1 t 2.0",
    "d w.1 2.1 id1",
    "R w.1",
    "- w.1",
    "p w.2 t 3.0",
    "d w.2 3.1 id2",
    "p w.3 t 4.0",
    "d w.3 4.1 id3",
    "a w.3 1 commit",
    "p w.4 t 5.0",
    "d w.4 5.1 id4",
    "a w.4 4 unknown",
    "p w.5 t 6.0",
    "s t 0 0:w.0 1:w.3",
)
PREPARED = {100 * n: f"w.{n}" for n in range(5)}
OUTCOMES = (
    Outcome(0, COMMITTED, 1000),
    Outcome(100, ROLLED_BACK, 1100),
    Outcome(300, COMMITTED, 1200),
    Outcome(400, PUT_ASIDE, 1300),
)


def halves(*more: str) -> Halves:
    found = Halves()
    for line in (*LINES, *more):
        found.take(line.split(" "))
    return found


def there(*tokens: str) -> Topics:
    return {"t": [[There(1000 + 200 * n, 10, Message(token, "t", "", (token,))) for n, token in enumerate(tokens)]]}


def verdict(found: Topics, pending: dict[str, str], *more: str) -> HalvesVerdict:
    return judge_halves(found, {"t": pending}, halves(*more))


def kinds(found: Topics, pending: dict[str, str], *more: str) -> list[str]:
    return [text.split(":")[0] for text in verdict(found, pending, *more).wrong]


GOOD, LEFT = there("w.0", "w.3"), {"w.2": "id2"}


def test_nothing_is_said_of_what_is_right() -> None:
    found = verdict(GOOD, LEFT)
    assert found.wrong == []
    assert (found.prepared, found.committed, found.rolled_back, found.checked, found.pending) == (5, 2, 2, 2, 1)
    assert kinds(GOOD, LEFT | {"w.5": "id5"}) == [], "what was never confirmed may be pending"
    assert kinds(there("w.0", "w.3", "w.2"), {}, "C w.2") == [], "whose commit was not answered may be there"
    assert kinds(GOOD, LEFT, "C w.2") == [], "or pending"
    assert kinds(GOOD, {}, "R w.2") == [], "as with a rollback"


def test_what_is_lost_is_seen() -> None:
    assert kinds(there("w.3"), LEFT)[0] == "lost", "it was committed"
    assert kinds(GOOD, {}) == ["lost"], "it was left, and nobody decided"
    assert kinds(GOOD, {}, "C w.2") == ["lost"], "a commit does not take it away"


def test_what_is_there_twice_or_was_never_prepared_is_seen() -> None:
    assert "doubled" in kinds(there("w.0", "w.3", "w.0"), LEFT)
    assert kinds(there("w.0", "w.3", "v.0"), LEFT) == ["invented"]
    assert kinds(GOOD, LEFT | {"v.0": "id9"}) == ["invented"]


def test_what_nobody_wanted_is_seen() -> None:
    assert kinds(there("w.0", "w.3", "w.2"), {}) == ["undecided"]
    assert kinds(there("w.0", "w.3", "w.4"), LEFT) == ["undecided"], "nobody answered so"
    assert "back" in kinds(there("w.0", "w.3", "w.1"), LEFT)
    assert kinds(GOOD, LEFT | {"w.1": "id1"}) == ["back"], "a half message that was rolled back is pending"


def test_two_ends_of_one_are_seen() -> None:
    assert "both" in kinds(GOOD, LEFT, "- w.0")
    assert "both" in kinds(GOOD, LEFT, "+ w.0 0 7 1900")
    assert "both" in kinds(GOOD, LEFT | {"w.0": "id0"})


def test_what_lies_elsewhere_is_seen() -> None:
    assert "moved" in kinds(there("w.3", "w.0"), LEFT)
    assert kinds(GOOD, {"w.2": "id7"}) == ["wrong"]
    assert kinds(GOOD, LEFT, "p v.0 u 7.0", "d v.0 7.1 id7", "s u 0 0:v.0") == ["lost", "unseen"]
    found = verdict(there("w.0", "w.3", "v.0"), LEFT, "p v.0 u 7.0", "C v.0").wrong
    assert [text.split(":")[0] for text in found] == ["strayed"]


def test_what_a_reader_had_and_is_not_there_is_seen() -> None:
    assert kinds(GOOD, LEFT, "s t 0 2:w.2") == ["unseen"], "nobody committed it"
    assert kinds(GOOD, LEFT, "s t 0 3:w.0") == ["unseen"], "it lies elsewhere"


def test_what_the_log_says_is_compared() -> None:
    def wrong(*outcomes: Outcome, prepared: dict[int, str] = PREPARED, left: tuple[str, ...] = ("w.2",)) -> list[str]:
        return list(judge_outcomes(prepared, outcomes, halves(), left))

    first, rolled, answered, aside = OUTCOMES
    assert wrong(*OUTCOMES) == []
    assert "two records" in wrong(*OUTCOMES, Outcome(0, COMMITTED, 1400))[0]
    assert "no half message" in wrong(*OUTCOMES, Outcome(7, COMMITTED, 1400))[0]
    assert "told something else" in wrong(Outcome(0, ROLLED_BACK, 1000), rolled, answered, aside)[0]
    assert "told something else" in wrong(first, Outcome(100, COMMITTED, 1100), answered, aside)[0]
    assert "is not listed" in wrong(first, rolled, answered)[0]
    assert "is listed" in wrong(*OUTCOMES, left=("w.2", "w.0"))[0]
    assert "nobody wanted that" in wrong(first, rolled, Outcome(300, ROLLED_BACK, 1200), aside)[0]
    assert "nobody was asked" in wrong(*OUTCOMES, Outcome(200, PUT_ASIDE, 1400), left=())[0]
    assert "prepared by nobody" in wrong(*OUTCOMES, prepared=PREPARED | {900: "v.0"}, left=("w.2", "v.0"))[0]
    assert "nothing of it" in wrong(first, rolled, answered, prepared=dict(list(PREPARED.items())[:4]))[0]


def test_answers_are_of_all_kinds() -> None:
    given = {answer_of(f"w.{n}", 1) for n in range(50)}
    assert given == {COMMIT, ROLLBACK, UNKNOWN}
    later = [(answer_of(f"w.{n}", 1), answer_of(f"w.{n}", 2)) for n in range(50)]
    assert (UNKNOWN, COMMIT) in later
    assert (UNKNOWN, UNKNOWN) in later


def test_what_a_record_says_of_a_half_message() -> None:
    def record(topic: str, position: int, half: int = 0, flags: int = 0) -> Logged:
        body = body_of(Message(f"w.{position}", "t", "", ()))
        return Logged(topic, 7, 0, 0, position, 100, 0, body, "", (), flags, half)

    log = [
        *(record(HALF, position) for position in (0, 100, 200, 300)),
        record("t", 400),
        record("t", 500, 100, COMMITTED_FLAGS),
        record(HALF_OVER, 600, 200, ROLLED_BACK_FLAGS),
        record(HALF_ASIDE, 700, 300, ROLLED_BACK_FLAGS),
    ]
    prepared, outcomes = outcomes_of(log)
    assert prepared == {position: f"w.{position}" for position in (0, 100, 200, 300)}
    assert outcomes == [
        Outcome(100, COMMITTED, 500),
        Outcome(200, ROLLED_BACK, 600),
        Outcome(300, PUT_ASIDE, 700),
    ]
    assert outcomes_of([dataclasses.replace(log[0], body=b"of nobody")])[0] == {0: "?"}


@pytest.mark.integration
def test_the_log_of_a_node_is_understood(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    logs = Log(str(tmp_path / "half-0.log"))
    with RealNode(directory, **TopicCampaign.settings), warren.attach(directory) as node:
        topics = {name: node.topic(name, queues=queues) for name, queues in TOPICS.items()}
        made = {}
        for number in range(6):
            name = ANSWERED if number % 2 else ALONE
            token = f"w.{number}"
            logs.write(f"p {token} {name} 1.0")
            made[token] = topics[name].prepare(body_of(Message(token, name, "", (token,))), token)
            logs.write(f"d {token} 1.1 {made[token].message_id}")
        for token in ("w.0", "w.1"):
            finish(made[token], token, True, logs)
            finish(topics[made[token].topic].half(made[token].message_id), token, False, logs)  # it is told the same
        finish(made["w.2"], "w.2", False, logs)
        finish(made["w.2"], "w.2", True, logs)
    logs.close()
    found = Halves()
    for line in (tmp_path / "half-0.log").read_text().splitlines():
        found.take(line.split(" "))
    assert not found.complaints
    assert [len(half.committed) for half in found.by_token.values()] == [1, 1, 0, 0, 0, 0]
    assert [half.rolled_back for half in found.by_token.values()] == [False, False, True, False, False, False]
    prepared, outcomes = outcomes_of(list(walked(directory / "topics" / "commitlog")))
    assert sorted(prepared.values()) == sorted(made)
    left = ["w.3", "w.4", "w.5"]
    assert list(judge_outcomes(prepared, outcomes, found, left)) == []
    assert list(judge_outcomes(prepared, outcomes[1:], found, left))
