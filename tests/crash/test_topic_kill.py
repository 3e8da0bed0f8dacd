"""A short kill campaign of topics: what was confirmed is there once, where it was said to be, and found in every way.

Goal: whoever is killed or stopped at whatever moment, the logs that appenders and readers kept outside of the node
agree with what can be read, and with the files; and the judge that says so sees what is wrong. Method:
tools/crash/topic_campaign.py with a seed that is printed (`python -m warren.tools.crash topics --seed …` repeats its
choices); logs, records and files in which something is wrong. The judges of the compacted topic and of half messages:
test_compacted_judge.py, test_half_judge.py.
"""

import os
import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import warren
from warren.engine.catalog.catalog import Catalog
from warren.ipc.layout import CRASH_POINTS
from warren.tools.crash.logs import Log
from warren.tools.crash.points import owner_of
from warren.tools.crash.topic_actors import Reader, crc_of
from warren.tools.crash.topic_campaign import OF_THIS_LOAD, TopicCampaign
from warren.tools.crash.topic_files import differences
from warren.tools.crash.topic_judge import Logs, There, Topics, judge, judge_group
from warren.tools.crash.topic_log import BadFileError
from warren.tools.crash.topic_messages import Message, body_of, chosen, java_hash, key_hash, parsed, queue_of

from support.covering import run_covering
from support.real_node import RealNode
from support.topic_log import log_files

KILLS = 30
#: of the report: what has to have happened
WANTED = (
    "confirmed",
    "reads",
    "rounds",
    "committed",
    "newest_confirmed",
    "newest_keys",
    "newest_looks",
    "passes",
    "prepared",
    "halves_committed",
    "halves_rolled_back",
    "probes",
)


@pytest.mark.crash
@pytest.mark.integration
def test_kill_campaign_of_topics(tmp_path: Path) -> None:
    run_covering(lambda seed: TopicCampaign(tmp_path, seed, print), KILLS, WANTED)


def test_files_are_counted_while_topics_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the campaign says now and then: a topic is deleted just when its folder is to be looked into."""
    campaign = TopicCampaign(tmp_path, 1)
    campaign.hits.close()
    log, queues = (campaign.directory / "topics" / name for name in ("commitlog", "consumequeue"))
    log.mkdir(parents=True)
    (log / "0").touch()
    (queues / "kept" / "0").mkdir(parents=True)
    (queues / "going" / "0").mkdir(parents=True)
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path) == str(queues / "going"):
            shutil.rmtree(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    said = campaign._sizes()
    monkeypatch.undo()
    assert said == "1 in commitlog, 3 in consumequeue, 0 in index"
    assert not (queues / "going").exists()


def test_a_reader_may_begin_before_all_appenders(tmp_path: Path, seed: int) -> None:
    """It looks for what they were told, and there is no log of theirs yet."""
    log = Log(str(tmp_path / "reader-0.log"))
    reader = Reader(mock.create_autospec(warren.Node, instance=True), log, random.Random(seed), tmp_path)
    reader._confirmed("kill-a", 0)
    log.close()
    assert not (tmp_path / "reader-0.log").read_bytes()


def test_the_topic_worker_dies_at_its_points() -> None:
    """The campaign counts a death against its process: of passes and of retention the topic worker is that."""
    of_topics = [name for name in CRASH_POINTS if name.startswith(("topic_", "retain_", "compact_"))]
    assert {owner_of(name) for name in of_topics} == {"topics"}
    assert set(OF_THIS_LOAD) < set(of_topics)


# -- the judge --------------------------------------------------------------------------------------------------------

TOKENS = ("w.0", "w.1", "w.2", "w.3")
LINES = (
    "i w 0 synced t 00",
    "c w 0 synced t 1.0 0:0:100 0:1:200",
    "i w 2 none t 0",
    "c w 2 none t 2.0 0:2:300",
    "i w 3 written t 1",
    "c w 3 written t 3.0 1:0:400",
    f"r t 0 0 2 {crc_of([(100, 'w.0'), (200, 'w.1')])}",
)


def there() -> Topics:
    """What LINES speak of."""
    records = [There(100 * n + 100, 10 + n, Message(token, "t")) for n, token in enumerate(TOKENS)]
    return {"t": [records[:3], records[3:]]}


def wrong(found: Topics, *more: str, excused: bool = False) -> list[str]:
    logs = Logs()
    for line in (*LINES, *more):
        logs.take(line.split(" "))
    return judge(found, logs, lambda _when: excused).wrong


def test_the_judge_says_nothing_of_what_is_right() -> None:
    assert wrong(there()) == []
    late = there()
    late["t"][0].append(There(500, 20, Message("w.4", "t")))
    late["t"][1].append(There(600, 20, Message("w.5", "t")))
    assert wrong(late, "i w 4 synced t --") == [], "an unconfirmed batch may be there in any queue as a whole"
    assert wrong(there(), "i w 4 synced t 01") == [], "or not at all"


def test_the_judge_sees_what_is_lost() -> None:
    found = there()
    del found["t"][1][0]
    assert [text.split(":")[0] for text in wrong(found)] == ["lost"]
    found = there()
    del found["t"][0][2]
    assert [text.split(":")[0] for text in wrong(found)] == ["lost"]
    assert wrong(found, excused=True) == [], "of durability none, with the whole node"


def test_the_judge_sees_what_is_there_twice_or_was_never_appended() -> None:
    found = there()
    found["t"][1].append(replace_record(found["t"][0][0], position=500, stored=20))
    assert any(text.startswith("doubled: w.0") for text in wrong(found))
    found = there()
    found["t"][1].append(There(500, 20, Message("stranger.0", "t")))
    assert any(text.startswith("invented: stranger.0") for text in wrong(found))
    found = there()
    found["t"][1][0] = replace_record(found["t"][1][0], position=300)
    assert any(text.startswith("doubled: two offsets lead to position 300") for text in wrong(found))


def test_the_judge_sees_what_lies_elsewhere_than_was_said() -> None:
    found = there()
    found["t"][1][0] = replace_record(found["t"][1][0], position=450)
    assert [text.split(":")[0] for text in wrong(found)] == ["moved"]
    found = there()
    found["t"][0][2] = replace_record(found["t"][0][2], position=350)
    assert wrong(found) == [], "of durability none it may"
    found = there()
    found["t"][1].insert(0, found["t"][0].pop())
    assert any(text.startswith("strayed: w.2") for text in wrong(found))


def test_the_judge_sees_a_batch_that_is_not_whole_or_not_together() -> None:
    found = there()
    found["t"][0].append(There(500, 20, Message("w.4", "t")))
    assert any(text.startswith("torn: 1 of 2") for text in wrong(found, "i w 4 synced t 00"))
    assert any(text.startswith("torn: 1 of 2") for text in wrong(found, "i w 4 synced t tt"))
    found["t"][0] += [There(600, 21, Message("v.0", "t")), There(700, 22, Message("w.5", "t"))]
    assert any(text.startswith("torn: batch w.4") for text in wrong(found, "i w 4 synced t 00", "i v 0 synced t 0"))


def test_the_judge_sees_a_wrong_order() -> None:
    found = there()
    found["t"][0][0], found["t"][0][1] = found["t"][0][1], found["t"][0][0]
    assert any(text.startswith("order: t/0:1 is w.0, after a later one") for text in wrong(found))
    found = there()
    found["t"][1][0] = replace_record(found["t"][1][0], stored=3)
    assert any(text.startswith("order: the time at 400") for text in wrong(found))


def test_the_judge_sees_that_readers_had_something_else() -> None:
    found = there()
    found["t"][0][1] = replace_record(found["t"][0][1], message=Message("w.7", "t"))
    assert any(text.startswith("changed: 2 messages of t/0") for text in wrong(found))
    assert any(text.startswith("changed") for text in wrong(there(), f"r t 1 0 2 {crc_of([(400, 'w.3'), (9, 'x')])}"))


def test_the_judge_sees_what_a_group_skipped_and_that_it_went_back() -> None:
    logs = Logs()
    for line in ("g t 0 0 3 1", "g t 0 2 3 1", "k t 0 3", "g t 0 5 2 1", "k t 0 7", "g t 1 1 4 1"):
        logs.take(line.split(" "))
    assert list(judge_group(logs, "t", {0: 7})) == []
    assert [text.split(":")[0] for text in judge_group(logs, "t", {0: 6})] == ["back"]
    assert [text.split(":")[0] for text in judge_group(logs, "t", {0: 8})] == ["skipped"]
    assert [text.split(":")[0] for text in judge_group(logs, "t", {0: 7, 1: 5})] == ["skipped"]


def replace_record(record: There, **fields: object) -> There:
    return record._replace(**fields)  # type: ignore[arg-type]


# -- messages and files -----------------------------------------------------------------------------------------------


def test_a_body_says_what_it_is(seed: int) -> None:
    rng = random.Random(seed)
    for number in range(200):
        message = chosen(f"me.{number}", "kill-a", rng)
        body = body_of(message)
        assert parsed(body) == message
        assert parsed(body[:-1]) is None
        assert parsed(body[:40] + bytes([body[40] ^ 1]) + body[41:]) is None
        assert body_of(replace(message, tag="XX")) != body
    assert java_hash("Aa") == java_hash("BB") == 2112
    assert java_hash("TagA") == 2598919
    assert key_hash("t", "Aa") == key_hash("t", "BB")
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert queue_of("polygenelubricants", 3) == (1 << 31) % 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of a node that was stopped, with a topic and one that was made again."""
    directory = tmp_path / "node"
    settings = TopicCampaign.settings | {"index_entries": 20, "consume_queue_entries": 7}
    with RealNode(directory, **settings), warren.attach(directory) as node:
        topic = node.topic("kept", queues=2)
        for n in range(30):
            topic.append(b"%d" % n, key=[f"k{n % 4}", f"alone{n}"], tag="Aa", queue=n % 2)
        node.topic("gone", queues=1).append(b"old", key="k")
        node.topic("gone").delete()
        node.topic("gone", queues=3).append(b"new", key="k", queue=2)
    return directory


def found_in(folder: Path) -> list[str]:
    topics = {topic.name: (topic.id, topic.queues) for topic in Catalog.load(folder).topics.values()}
    return list(differences(folder / "topics", topics, TopicCampaign.settings["index_slots"]))


def changed(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.integration
def test_files_are_held_against_each_other(folder: Path) -> None:
    assert found_in(folder) == []
    units = folder / "topics" / "consumequeue" / "kept" / "1"
    first, *_, last = sorted(units.iterdir())
    kept = first.read_bytes()
    changed(first, 20, struct.pack(">QI", 5, 6))
    assert found_in(folder)[0].startswith("consume queue: kept/1:1 is (5, 6,")
    changed(first, 20, bytes(20))
    assert found_in(folder)[0].startswith("consume queue: kept/1:1 is (0, 0, 0)")
    first.write_bytes(kept)
    changed(last, 6 * 20, struct.pack(">QIq", 1, 2, 3))
    assert found_in(folder) == ["consume queue: kept/1 has units behind 15"]
    changed(last, 6 * 20, bytes(20))
    assert found_in(folder) == []


@pytest.mark.integration
def test_a_key_that_is_stale_missing_or_doubled_is_seen(folder: Path) -> None:
    path = min((folder / "topics" / "index").iterdir())
    data = bytearray(path.read_bytes())
    entries = 40 + 4 * TopicCampaign.settings["index_slots"]
    hashed, position = struct.unpack_from(">IQ", data, entries + 20)
    struct.pack_into(">Q", data, entries + 24, position + 1)
    path.write_bytes(data)
    assert {text.rpartition(": ")[2] for text in found_in(folder)} >= {"stale, or doubled"}
    assert any(f"({hashed}, {position}) is there 0 times" in text for text in found_in(folder))
    struct.pack_into(">I", data, entries + 20, hashed + 1)
    path.write_bytes(data)
    with pytest.raises(BadFileError, match="entry 1 does not belong to slot"):
        found_in(folder)


@pytest.mark.integration
def test_a_record_of_another_offset_is_seen(folder: Path) -> None:
    path = min(log_files(folder / "topics" / "commitlog"))
    changed(path, 20, struct.pack(">Q", 7))
    assert found_in(folder)[0].startswith("log: the record at 0 is kept/0:7")
    changed(path, 88, b"\xff")  # of the body
    with pytest.raises(BadFileError, match="no sound record at 0"):
        found_in(folder)
