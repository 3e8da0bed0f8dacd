"""The judge of compacted topics in a kill campaign: it says nothing of what is right, and sees what is wrong.

Goal: each thing that tools/crash/compacted_judge.py promises to see, it sees; so a campaign without violations means
something. Method: logs and records as a good campaign has them, in which one thing is wrong; and what is read from a
real node.
"""

from pathlib import Path

import pytest

import warren
from warren.tools.crash import compacted_actors
from warren.tools.crash.compacted_judge import (
    Changes,
    Kept,
    Newest,
    NewestVerdict,
    judge_newest,
    unlike_the_log,
    wrong_newest,
)
from warren.tools.crash.logs import Log, Tails
from warren.tools.crash.topic_campaign import TopicCampaign

from support.real_node import RealNode

TOMBSTONE_S = 2.0
NOW = 100.0
#: w.0 and w.2 were replaced and are gone, w.4 took key c away and is gone; w.5 is in the log
LINES = (
    "i w.0 synced 1.0 v a",
    "c w.0 1.1 0 0 1000 id0",
    "i w.1 synced 1.0 v b",
    "c w.1 1.1 0 1 1100 id1",
    "i w.2 written 2.0 v a",
    "c w.2 2.1 0 2 1200 id2",
    "i w.3 synced 3.0 v c",
    "c w.3 3.1 0 3 1300 id3",
    "i w.4 synced 4.0 t c",
    "c w.4 4.1 0 4 1400 id4",
    "i w.5 synced 5.0 v a,x",
    "c w.5 5.1 0 5 1500 id5",
    "i w.6 synced 6.0 v a",
    "c w.6 6.1 0 6 1600 id6",
    "i w.7 synced 7.0 v b",
    "v 0 1:w.1 2:w.2",
)
B, AX, A = (
    Kept(1, 1100, "w.1", ("b",), tombstone=False),
    Kept(5, 1500, "w.5", ("a", "x"), tombstone=False),
    Kept(6, 1600, "w.6", ("a",), tombstone=False),
)
LATE = Kept(7, 1700, "w.7", ("b",), tombstone=False)


def changes(*more: str) -> Changes:
    found = Changes()
    for line in (*LINES, *more):
        found.take(line.split(" "))
    return found


def verdict(*records: Kept, logs: Changes | None = None, ended: float = NOW) -> NewestVerdict:
    return judge_newest([records], changes() if logs is None else logs, ended=ended, tombstone_s=TOMBSTONE_S)


def kinds(*records: Kept, logs: Changes | None = None, ended: float = NOW) -> list[str]:
    return [text.split(":")[0] for text in verdict(*records, logs=logs, ended=ended).wrong]


def test_nothing_is_said_of_what_is_right() -> None:
    found = verdict(B, AX, A)
    assert (found.wrong, found.keys, found.gone, found.there, found.below) == ([], 4, 1, 3, 1)
    assert kinds(B, AX, A, LATE) == [], "what was never confirmed may be there"
    assert verdict(B, AX, A, LATE).unconfirmed_there == 1
    assert kinds(AX, A, LATE) == [], "and then have replaced what was"
    before = [Kept(n, 1000 + 100 * n, f"w.{n}", (key,), tombstone=n == 4) for n, key in enumerate("abacc")]
    assert kinds(*before, AX, A) == [], "what was not compacted yet is all there"


def test_a_newest_message_that_is_lost_is_seen() -> None:
    assert kinds(AX, A) == ["lost"]
    assert kinds(B, A) == ["lost"], "two keys together are another key than each of them"
    assert kinds() == ["lost"] * 3
    older = Kept(2, 1200, "w.2", ("a",), tombstone=False)
    assert "back" in kinds(B, older, AX), "an older value is none"


def test_an_older_value_that_comes_back_or_stays_is_seen() -> None:
    older = Kept(3, 1300, "w.3", ("c",), tombstone=False)
    assert "back" in kinds(B, older, AX, A), "a tombstone took it away"
    assert kinds(B, Kept(4, 1400, "w.4", ("c",), tombstone=True), AX, A) == [], "which may still be there"
    first = Kept(0, 1000, "w.0", ("a",), tombstone=False)
    gap = changes("i w.8 synced 8.0 v d", "c w.8 8.1 0 8 1800 id8", "i w.9 synced 9.0 v a", "c w.9 9.1 0 9 1900 id9")
    behind = (
        Kept(8, 1800, "w.8", ("d",), tombstone=False),
        Kept(9, 1900, "w.9", ("a",), tombstone=False),
    )
    assert kinds(B, AX, A, *behind, logs=gap) == []
    assert kinds(first, B, AX, A, *behind, logs=gap) == ["twice"]
    assert kinds(first, B, AX, *behind, logs=gap) == ["stale"], "also where the log has a newer one than both"


def test_a_tombstone_that_goes_too_early_is_seen() -> None:
    assert kinds(B, AX, A, ended=4.0 + TOMBSTONE_S - 0.5) == ["early"]
    assert kinds(B, AX, A, ended=4.0 + TOMBSTONE_S) == []


def test_what_took_a_key_away_has_to_be_a_tombstone_that_may_be_newer() -> None:
    least = Newest(1, "w.1")
    told = {"ended": NOW, "tombstone_s": TOMBSTONE_S}
    assert wrong_newest("b", None, least, changes(), **told).startswith("lost")
    under_way = changes("i v.0 synced 3.0 t b")
    assert wrong_newest("b", None, least, under_way, **told) == ""
    none = changes("i v.0 none 3.0 t b", "c v.0 3.1 0 0 900 id9")
    assert wrong_newest("b", None, least, none, **told) == "", "the offset of one with `none` is not sure"
    before = changes("i v.0 synced 3.0 t b", "c v.0 3.1 0 0 900 id9")
    assert wrong_newest("b", None, least, before, **told).startswith("lost")
    long_ago = changes("i v.0 synced 3.0 t d", "i v.1 synced 90.0 v d", "c v.1 91.0 0 9 1900 id9")
    assert wrong_newest("d", None, Newest(9, "v.1"), long_ago, **told).startswith("lost")
    assert wrong_newest("b", None, None, changes(), **told) == "", "nothing was known of it"


def test_what_was_never_appended_or_lies_elsewhere_is_seen() -> None:
    assert "invented" in kinds(B, AX, A, Kept(7, 1700, "v.0", ("b",), tombstone=False))
    assert "wrong" in kinds(B, AX, A._replace(keys=("b",)))
    assert "wrong" in kinds(B, AX, A._replace(tombstone=True))
    assert "moved" in kinds(B, AX, A._replace(offset=7))
    assert "moved" in kinds(B, AX, A._replace(position=1650))
    assert "doubled" in kinds(B, AX, A, A._replace(offset=7, position=1700))
    moved = judge_newest([[], [B, AX, A]], changes(), ended=NOW, tombstone_s=TOMBSTONE_S).wrong
    assert any(text.startswith("strayed") for text in moved)


def test_a_wrong_order_is_seen() -> None:
    assert "order" in kinds(AX, B, A)
    assert "order" in kinds(B, AX._replace(position=1000), A)
    assert "order" in kinds(B, AX, A._replace(token="w.3"))


def test_what_a_reader_had_and_others_have_not_is_seen() -> None:
    assert kinds(B, AX, A, logs=changes("v 0 6:w.9")) == ["changed"]
    assert kinds(B, AX, A, logs=changes("v 0 2:w.9")) == ["changed"], "also where nothing is left"
    log = [{4: "w.0", 5: "w.1"}]
    assert list(unlike_the_log([(0, 5, "w.1")], log)) == []
    assert len(list(unlike_the_log([(0, 4, "w.1"), (0, 6, "w.2")], log))) == 2
    assert list(unlike_the_log([(0, 3, "w.0")], log)) == [], "where the log does not reach any more"


def test_lines_are_handed_out_once_and_whole(tmp_path: Path) -> None:
    tails = Tails(tmp_path, "newest-*.log")
    log = Log(str(tmp_path / "newest-0.log"))
    log.write("a 1", "b")
    assert list(tails.lines()) == [["a", "1"], ["b"]]
    with open(tmp_path / "newest-0.log", "a") as file:
        file.write("c 2\nhal")
    assert (list(tails.lines()), list(tails.lines())) == ([["c", "2"]], [])
    with open(tmp_path / "newest-0.log", "a") as file:
        file.write("f\n")
    assert list(tails.lines()) == [["half"]]
    log.close()


# -- who reads --------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_reader_says_what_it_reads_and_refuses_what_nobody_made(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    with RealNode(directory, **TopicCampaign.settings), warren.attach(directory) as node:
        topic = node.topic(compacted_actors.TOPIC, queues=compacted_actors.QUEUES, compacted=True)
        body = compacted_actors.body_of(compacted_actors.Message("w.0", compacted_actors.TOPIC, "", ("k",)))
        at = topic.append(body, "k", properties={"token": "w.0"})
        topic.append(b"", "k", properties={"token": "w.1"})
        found = list(compacted_actors.read_on(topic, at.queue))
        assert [(one.token, one.keys, one.tombstone) for one in found] == [
            ("w.0", ("k",), False),
            ("w.1", ("k",), True),
        ]
        topic.append(body[:-1], "k", properties={"token": "w.2"})
        with pytest.raises(ValueError, match="has keys"):
            list(compacted_actors.read_on(topic, at.queue))
