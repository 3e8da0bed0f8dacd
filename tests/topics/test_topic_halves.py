"""Goal: a half message is committed once, or rolled back, whatever is killed; nobody sees it before, nor one that was
rolled back; who asks again is told the same; what is pending is taken up from a snapshot and the log behind it, or from
the log alone; those that were left behind are asked for, and put aside in the end.

Method: the worker's server and service without a node, a client by hand (support/topic_probe.py); kills of a child
process at random and at each crash point, against what the client was told; a damaged, missing, old, foreign snapshot.
Files are read by the tables of the formats (support/topic_tables.py).
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from warren.engine.config import Settings
from warren.engine.errors import StoreError
from warren.engine.kernel import atomic_file, quarantine
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.topics import kept
from warren.engine.topics.check import TopicsCheck
from warren.engine.topics.formats import HALF, HALF_COMMITTED, HALF_OUTCOME, HALF_PUT_ASIDE, HALF_ROLLED_BACK, HALVES
from warren.ipc.layout import CONSTANTS, CRASH_POINTS

from support.small_disk import Disk
from support.topic_log import log_files
from support.topic_probe import OK, SERVER, Appender, Life, Topic, TopicNode

TRIES = int(os.environ.get("WARREN_TOPIC_KILLS", "12"))
FULL = PROTOCOL["RESULT_FULL"]
NONE_YET = (1 << 64) - 1
PREPARED, COMMIT, ROLLBACK = 4, 8, 12


@pytest.fixture
def node(tmp_path: Path) -> TopicNode:
    return TopicNode(tmp_path / "node")


@contextlib.contextmanager
def living(node: TopicNode) -> Iterator[Life]:
    """A worker that is stopped in good order."""
    life = node.life()
    try:
        yield life
    except BaseException:
        life.release()
        raise
    assert life.stop()


def said(node: TopicNode, what: str) -> list[str]:
    return [line for line in node.said if what in line]


def pending(life: Life) -> int:
    count: int = life.server.counters()["halves"]
    return count


def reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def prepared(life: Life, appender: Appender, body: bytes, queue: int = 0, topic: int = 1, **given: str) -> int:
    """A half message that is durable; its position."""
    sequence = appender.prepare(topic, queue, body, given)
    life.until(lambda: appender.get("synced") > sequence)
    result, offset, position = appender.answer(sequence)
    assert (result, offset) == (OK, NONE_YET)
    return position


def ask(life: Life, appender: Appender, op: str, **fields: Any) -> dict[str, Any]:
    """A request, and its answer."""
    sequence = appender.send_control(op=op, **{"topic": 1, **fields})
    life.until(lambda: appender.get("processed") > sequence)
    return appender.told()


def finish(life: Life, appender: Appender, position: int, commit: bool, topic: int = 1) -> dict[str, Any]:
    return ask(life, appender, "finish_half", topic=topic, position=position, commit=commit)


def judge(node: TopicNode, told: dict[bytes, int | None]) -> None:
    """By the log alone: each half message was finished once at most, and as its client was told (None: it was not
    told); a committed one has what was given to it, in its queue, once; no other message is in the topic.
    """
    found = node.records()
    halves = {fields["position"]: fields for fields in found if fields["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"}
    outcomes: dict[int, dict[str, Any]] = {}
    for fields in found:
        if fields["position"] in halves:
            assert fields["sys_flag"] == PREPARED
            continue
        half = fields["prepared_transaction_offset"]
        assert half in halves
        assert half < fields["position"]
        assert half not in outcomes, f"{half} was finished twice"
        outcomes[half] = fields
        before = halves[half]
        assert fields["flag"] == before["flag"] == 1
        if fields["sys_flag"] == COMMIT:
            given = {name: value for name, value in before["properties"].items() if name not in OWN}
            assert (fields["topic"], fields["body"], fields["properties"]) == ("flights", before["body"], given)
            assert str(fields["queue_id"]) == before["properties"]["REAL_QID"]
            assert fields["born_timestamp"] == before["born_timestamp"]
        else:
            assert fields["sys_flag"] == ROLLBACK
            assert fields["topic"] == "RMQ_SYS_TRANS_OP_HALF_TOPIC"
            assert fields["body"] == b"%d" % half
    for queue in (0, 1):
        offsets = [
            fields["queue_offset"]
            for fields in outcomes.values()
            if fields["sys_flag"] == COMMIT and fields["queue_id"] == queue
        ]
        assert sorted(offsets) == list(range(len(offsets)))
    by_body = {fields["body"]: position for position, fields in halves.items()}
    assert len(by_body) == len(halves)
    for body, kind in told.items():
        if kind is not None:
            assert outcomes[by_body[body]]["sys_flag"] == (COMMIT if kind == HALF_COMMITTED else ROLLBACK)


OWN = ("TRAN_MSG", "REAL_TOPIC", "REAL_QID")


def test_no_reader_sees_it_before_it_is_committed(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        given = {"KEYS": "N14228 N24211", "TAGS": "UA", "origin": "EWR"}
        position = prepared(life, appender, b"a flight", 1, **given)
        record = node.record(position)
        assert (record["topic"], record["sys_flag"], record["flag"]) == ("RMQ_SYS_TRANS_HALF_TOPIC", PREPARED, 1)
        own = {"TRAN_MSG": "true", "REAL_TOPIC": "flights", "REAL_QID": "1"}
        assert record["properties"] == {**given, **own}
        assert (life.halves(1), life.maximum(1, 1)) == (1, 0)
        other = appender.append(1, 1, b"another")  # what is behind it is seen
        life.until(lambda: life.maximum(1, 1) == 1)
        told = finish(life, appender, position, True)
        assert (told["kind"], told["queue"], told["offset"]) == (HALF_COMMITTED, 1, 1)
        life.until(lambda: life.maximum(1, 1) == 2)
        assert (life.halves(1), appender.answer(other).offset) == (0, 0)
        came = node.record(told["position"])
        assert (came["topic"], came["queue_id"], came["queue_offset"]) == ("flights", 1, 1)
        assert (came["sys_flag"], came["prepared_transaction_offset"]) == (COMMIT, position)
        assert (came["body"], came["properties"]) == (b"a flight", given)
        for key in ("N14228", "N24211"):
            assert node.found_by_key("flights", key) == [told["position"]]


def test_what_was_rolled_back_is_never_seen(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        position = prepared(life, appender, b"a flight", KEYS="N14228")
        assert finish(life, appender, position, False)["kind"] == HALF_ROLLED_BACK
        assert (life.halves(1), life.maximum(1, 0)) == (0, 0)
        assert finish(life, appender, position, True)["kind"] == HALF_ROLLED_BACK
    judge(node, {b"a flight": HALF_ROLLED_BACK})
    node.folder.checkpoint.unlink()  # all that is derived is made again
    with living(node) as life:
        assert life.maximum(1, 0) == 0
        assert not node.folder.index.exists()  # there is no key


@pytest.mark.parametrize("how", ["same life", "snapshot", "log"])
def test_who_asks_again_is_told_the_same(node: TopicNode, how: str) -> None:
    with contextlib.ExitStack() as stack:
        life = stack.enter_context(living(node))
        appender = node.appender(life)
        first, second = (prepared(life, appender, body, queue=1) for body in (b"one", b"two"))
        told = finish(life, appender, first, True)
        finish(life, appender, second, False)
        if how != "same life":
            stack.close()
            if how == "log":
                node.folder.halves.unlink()
            life = stack.enter_context(living(node))
        assert finish(life, appender, first, True) == told
        assert finish(life, appender, first, False) == told
        assert finish(life, appender, second, True)["kind"] == HALF_ROLLED_BACK
        assert life.maximum(1, 1) == 1
    judge(node, {b"one": HALF_COMMITTED, b"two": HALF_ROLLED_BACK})


def test_no_more_outcomes_are_kept_than_the_setting_says(node: TopicNode) -> None:
    node.half_outcomes = 3
    with living(node) as life:
        appender = node.appender(life)
        positions = [prepared(life, appender, b"%d" % n) for n in range(6)]
        for position in positions:
            finish(life, appender, position, True)
        found = [finish(life, appender, position, True) for position in positions]
    assert [answer.get("error") for answer in found] == ["HalfNotFound"] * 3 + [None] * 3
    assert [answer["offset"] for answer in found[3:]] == [3, 4, 5]
    assert HALVES.unpack(node.folder.halves.read_bytes(), "outcomes_n") == 3
    judge(node, {b"%d" % n: HALF_COMMITTED for n in range(6)})


def test_what_is_no_half_message_of_the_topic_is_refused(node: TopicNode) -> None:
    node.topics = [Topic(1, "flights"), Topic(2, "seats")]
    with living(node) as life:
        appender = node.appender(life)
        position = prepared(life, appender, b"one")
        plain = appender.append(1, 0, b"plain")
        life.until(lambda: appender.get("synced") > plain)
        for topic, place in (
            (2, position),
            (1, position + 1),
            (1, appender.answer(plain).position),
            (1, (1 << 63) - 1),
        ):
            for commit in (True, False):
                assert finish(life, appender, place, commit, topic)["error"] == "HalfNotFound"
        assert finish(life, appender, position, True, 9)["error"] == "TopicNotFound"
        for fields in ({"position": -1, "commit": True}, {"position": position}, {"position": 1 << 63, "commit": True}):
            assert ask(life, appender, "finish_half", **fields)["error"] == "UsageError"
        assert finish(life, appender, position, True)["kind"] == HALF_COMMITTED
        assert finish(life, appender, position, True, 2)["error"] == "HalfNotFound"


# -- kills ----------------------------------------------------------------------------------------------------------


class Program:
    """A client that prepares, and commits or rolls back, in any order, while its worker is killed again and again."""

    def __init__(self, node: TopicNode, chance: random.Random) -> None:
        self.appender = node.appender()
        self.chance = chance
        self.sent: dict[int, bytes] = {}  # by command
        self.positions: dict[bytes, int] = {}
        self.told: dict[bytes, int | None] = {}
        self.asked: tuple[int, bytes, bool] | None = None  # a request that is on its way
        self.answers: dict[bytes, dict[str, Any]] = {}

    def hear(self) -> None:
        """What was confirmed, and answered. As a client reads them: below `synced`, below `processed`."""
        synced = self.appender.get("synced")
        for sequence in [sequence for sequence in self.sent if sequence < synced]:
            body = self.sent.pop(sequence)
            result, _offset, self.positions[body] = self.appender.answer(sequence)
            assert result == OK
        if self.asked is None or self.appender.get("processed") <= self.asked[0]:
            return
        _sequence, body, _commit = self.asked
        self.asked = None
        answer = self.appender.told()
        before = self.answers.setdefault(body, answer)
        assert answer == before, f"{body!r} was told {before}, then {answer}"
        self.told[body] = answer["kind"]

    def act(self) -> None:
        self.hear()
        if self.asked is None and self.positions and self.chance.random() < 0.6:
            body = self.chance.choice(list(self.positions)[-20:])
            commit = self.chance.random() < 0.6
            request = {"op": "finish_half", "topic": 1, "position": self.positions[body], "commit": commit}
            data = msgspec.msgpack.encode(request)
            sequence = self.appender.command("OP_CONTROL", body=self.appender.blob(data), length=len(data))
            self.asked = (sequence, body, commit)
        elif len(self.sent) < 30:
            body = b"%d:" % len(self.told) + b"x" * self.chance.randrange(300)
            self.told[body] = None
            self.sent[self.appender.prepare(1, self.chance.randrange(2), body, {"KEYS": f"k{len(self.told)}"})] = body


def test_killed_at_any_instant_each_is_finished_once(
    node: TopicNode, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "LOG_BYTES", 20_000)
    chance = random.Random(seed)
    node.log_file_bytes, node.halves_max, node.half_outcomes = 1 << 18, 1 << 20, 1 << 20
    program = Program(node, chance)
    for tried in itertools.count(1):
        pid = node.child()
        until = time.monotonic() + chance.random() * 0.4
        while time.monotonic() < until:
            program.act()
        os.kill(pid, signal.SIGKILL)
        assert reap(pid) == -signal.SIGKILL
        if chance.random() < 0.2:
            node.folder.halves.unlink(missing_ok=True)
        if tried >= TRIES and len(program.answers) > 20:  # a busy machine needs more
            break
    with living(node) as life:
        appender = program.appender
        life.until(lambda: appender.get("synced") > max(program.sent, default=-1))
        life.until(lambda: program.asked is None or appender.get("processed") > program.asked[0])
        program.hear()
        for body, position in list(program.positions.items()):
            told = finish(life, appender, position, True)
            assert told == program.answers.get(body, told)
            program.told[body] = told["kind"]
        assert pending(life) == 0
    judge(node, program.told)
    assert None not in program.told.values()


@pytest.mark.parametrize("point", [point for point in CRASH_POINTS if point.startswith("topic_hal")])
@pytest.mark.parametrize("times", [0, 3])
def test_killed_at_each_point_each_is_finished_once(
    node: TopicNode, point: str, times: int, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(kept, "LOG_BYTES", 4096)
    node.halves_max = node.half_outcomes = 1 << 20
    program = Program(node, random.Random(seed))
    node.superblock.arm_crash(point, times)
    pid = node.child()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        program.act()
    node.superblock.disarm_crash()
    with living(node) as life:
        appender = program.appender
        life.until(lambda: appender.get("synced") > max(program.sent, default=-1))
        life.until(lambda: program.asked is None or appender.get("processed") > program.asked[0])
        program.hear()
        for body, position in list(program.positions.items()):
            told = finish(life, appender, position, False)
            assert told == program.answers.get(body, told)
            program.told[body] = told["kind"]
        assert pending(life) == 0
    judge(node, program.told)


# -- the snapshot ---------------------------------------------------------------------------------------------------


def test_a_start_reads_the_log_from_the_snapshot_on(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        positions = [prepared(life, appender, b"%d" % n) for n in range(20)]
        for position in positions[:5]:
            finish(life, appender, position, True)
    snapshot = node.folder.halves.read_bytes()
    assert len(snapshot) == HALVES.size + 15 * HALF.size + 5 * HALF_OUTCOME.size
    found = [HALF.unpack(snapshot, "position", HALVES.size + n * HALF.size) for n in range(15)]
    assert found == positions[5:]
    with living(node) as life:
        assert pending(life) == life.halves(1) == 15
        more = prepared(life, appender, b"more")
        finish(life, appender, positions[5], True)
        finish(life, appender, positions[6], False)
        life.server.request_stop()
        life.service.halves.snapshot.saved = life.server.counters()["sealed"]  # as if it were killed: no last one
    assert node.folder.halves.read_bytes() == snapshot
    with living(node) as life:
        assert pending(life) == 14
        listed = ask(life, appender, "list_halves")
        assert [one[0] for one in listed["halves"]] == [*positions[7:], more]
        assert finish(life, appender, positions[5], True)["offset"] == 5
    assert not said(node, "missing")
    assert not said(node, "damaged")


@pytest.mark.parametrize("how", ["missing", "cut", "changed", "foreign", "newer"])
def test_without_a_snapshot_all_is_read_from_the_log(node: TopicNode, how: str) -> None:
    node.log_file_bytes = 1 << 18
    with living(node) as life:
        appender = node.appender(life)
        positions = [prepared(life, appender, b"%d" % n) for n in range(10)]
        for position in positions[:4]:
            finish(life, appender, position, position != positions[0])
    path, whole = node.folder.halves, bytearray(node.folder.halves.read_bytes())
    match how:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(whole[:-1])
        case "changed":
            whole[HALVES.size + 5] ^= 1
            path.write_bytes(whole)
        case "newer":
            HALVES.pack_into(whole, "version", 2)
            path.write_bytes(whole)
        case "foreign":
            whole[HALVES.offset("node")] ^= 1
            path.write_bytes(whole)
    with living(node) as life:
        assert pending(life) == life.halves(1) == 6
        assert life.maximum(1, 0) == 3
        assert finish(life, appender, positions[0], True)["kind"] == HALF_ROLLED_BACK
        assert finish(life, appender, positions[3], True)["offset"] == 2
    damaged = path.with_name("halves.damaged")
    assert damaged.exists() == (how != "missing")
    assert bool(said(node, "halves is missing")) == (how == "missing")
    assert bool(said(node, "is damaged")) == damaged.exists()


def looked_at(life: Life) -> None:
    """Retention has removed what it can, and nobody's snapshot holds it up."""
    counters = life.server.counters
    life.until(lambda: counters()["saved_position"] >= counters()["sealed"] == counters()["append"])
    life.retain()
    life.until(lambda: life.service.groups.snapshot.saved > 2 << 20)
    life.retain(2)


def test_what_is_needed_of_the_log_stays(node: TopicNode) -> None:
    """Retention takes nothing from the first pending half message on; what was finished holds nothing."""
    node.topics = [Topic(1, "flights", retention_bytes=1)]
    with living(node) as life:
        appender = node.appender(life)
        positions = [prepared(life, appender, b"%d" % n) for n in range(2)]
        for _ in range(6):  # more than three files
            last = [appender.append(1, 0, b"x" * 60_000) for _ in range(10)]
            life.until(lambda last=last: appender.get("synced") > last[-1])
        looked_at(life)
        row = life.row(1, 0, ("from",))
        assert row is not None
        assert row["from"] > 2 << 20
        assert min(log_files(node.folder.log)).name == f"{0:020d}"
        assert finish(life, appender, positions[0], True)["kind"] == HALF_COMMITTED
        assert finish(life, appender, positions[1], False)["kind"] == HALF_ROLLED_BACK
        looked_at(life)
        assert min(log_files(node.folder.log)).name != f"{0:020d}"
        assert finish(life, appender, positions[0], False)["kind"] == HALF_COMMITTED


@pytest.fixture
def shortened(node: TopicNode) -> TopicNode:
    """Of a log that does not begin at 0 any more: what was finished there only the snapshot knows."""
    node.topics = [Topic(1, "flights", retention_bytes=1)]
    with living(node) as life:
        appender = node.appender(life)
        positions = [prepared(life, appender, b"%d" % n) for n in range(3)]
        for position in positions[:2]:
            finish(life, appender, position, position == positions[0])
        for _ in range(6):
            last = [appender.append(1, 0, b"x" * 60_000) for _ in range(10)]
            life.until(lambda last=last: appender.get("synced") > last[-1])
        finish(life, appender, positions[2], True)
        looked_at(life)
    assert first_of(node) > positions[2]
    return node


def first_of(node: TopicNode) -> int:
    return int(min(log_files(node.folder.log)).name)


def checking(node: TopicNode) -> TopicsCheck:
    sizes = Settings(
        log_file_bytes=node.log_file_bytes,
        consume_queue_entries=node.consume_queue_entries,
        index_slots=node.index_slots,
        index_entries=node.index_entries,
    )
    topics = [(topic.id, topic.name.encode(), topic.queues) for topic in node.topics]
    return TopicsCheck(node.folder, node.superblock.node_id, sizes, topics, running=False)


def hurt(path: Path, how: str) -> None:
    whole = bytearray(path.read_bytes())
    match how:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(whole[:-1])
        case "appended":
            path.write_bytes(whole + b"x")
        case "changed":
            whole[40] ^= 1
            path.write_bytes(whole)


@pytest.mark.parametrize("how", ["missing", "cut", "appended", "changed", "older"])
def test_what_the_snapshot_alone_has_is_missed(shortened: TopicNode, tmp_path: Path, how: str) -> None:
    """Files of the log went, with what became of half messages: without the snapshot that is lost, and all say so."""
    node, path = shortened, shortened.folder.halves
    assert not any(item.problem or item.note for item in checking(node).examine())
    if how == "older":
        other = TopicNode(tmp_path / "other")
        with living(other):
            pass
        shutil.copy(other.folder.halves, path)
    else:
        hurt(path, how)
    gone = f"what became of half messages before position {first_of(node):,} of the log of topics"
    found = {item.path: item.problem for item in checking(node).examine() if item.problem}
    assert list(found) == [path]
    assert f"{gone} is lost" in found[path]

    copied = TopicNode(tmp_path / "copied", topics=node.topics)
    shutil.copytree(node.path, copied.path, dirs_exist_ok=True)
    repairing = checking(copied)
    (done,) = repairing.repair()
    assert gone in done
    after = checking(copied).examine()
    assert not any(item.problem for item in after)
    assert any("as was written down" in item.note for item in after if item.path == copied.folder.halves)
    with living(copied):
        assert said(copied, f"{gone} is lost")
        assert copied.superblock.server_get(SERVER, "lost_unknown_n") == 0, "that was accepted"
    assert not any(item.problem for item in checking(copied).examine())

    with living(node) as life:
        assert said(node, f"{gone} is lost")
        assert not said(node, "whole log")
        assert node.superblock.server_get(SERVER, "lost_unknown_n") == 1
        appender = node.appenders[0]
        told = finish(life, appender, 0, True)
        assert (told["error"], "damaged or missing" in told["message"]) == ("HalfNotFound", True)
        position = prepared(life, appender, b"more")
        assert finish(life, appender, position, True)["kind"] == HALF_COMMITTED
    assert said(node, "halves is missing") or said(node, "halves is damaged") or how == "older"
    (entry,) = quarantine.entries(node.folder.path)
    assert (entry.file, entry.reason, entry.messages) == ("halves", gone, None)
    with living(node):
        assert len(said(node, f"{gone} is lost")) == 1, "once"
    assert not any(item.problem for item in checking(node).examine())


def test_a_file_of_the_log_that_somebody_removed_is_no_loss_of_the_snapshot(node: TopicNode, tmp_path: Path) -> None:
    """It is to be put back: a repair accepts nothing."""
    with living(node) as life:
        appender = node.appender(life)
        finish(life, appender, prepared(life, appender, b"x"), True)
        for _ in range(3):
            last = [appender.append(1, 0, b"x" * 60_000) for _ in range(10)]
            life.until(lambda last=last: appender.get("synced") > last[-1])
    first, *others = log_files(node.folder.log)
    assert others
    first.rename(tmp_path / "elsewhere")
    node.folder.halves.unlink()
    problems = [item.path for item in checking(node).examine() if item.problem]
    assert problems == [first]
    assert checking(node).repair() == []


SNAPSHOTS = ("groups", "later", "halves")


@pytest.mark.parametrize("name", SNAPSHOTS)
@pytest.mark.parametrize("how", ["missing", "cut", "appended", "changed"])
def test_a_snapshot_that_the_log_can_say_again_is_a_note(node: TopicNode, name: str, how: str) -> None:
    with living(node) as life:
        appender = node.appender(life)
        finish(life, appender, prepared(life, appender, b"x"), True)
    path = node.folder.path / name
    hurt(path, how)
    (found,) = [item for item in checking(node).examine() if item.path == path]
    assert not found.problem
    assert "from the whole log of topics" in found.note
    assert ("missing" if how == "missing" else "damaged") in found.note
    assert checking(node).repair() == []
    with living(node):
        assert said(node, f"{name} is {'missing' if how == 'missing' else 'damaged'}")
    notes = {item.path.name: item.note for item in checking(node).examine() if item.note or item.problem}
    assert list(notes) == ([] if how == "missing" else [f"{name}.damaged"]), "what was set aside is mentioned"


@pytest.mark.parametrize("name", ["groups", "later"])
@pytest.mark.parametrize("how", ["missing", "changed"])
def test_of_a_shorter_log_these_lose_nothing(shortened: TopicNode, name: str, how: str) -> None:
    """What groups have committed the log says again before its files go; of what is to come it keeps the records."""
    path = shortened.folder.path / name
    hurt(path, how)
    (found,) = [item for item in checking(shortened).examine() if item.note or item.problem]
    assert (found.path, found.problem) == (path, "")
    assert f"the log of topics, which begins at position {first_of(shortened):,}" in found.note
    with living(shortened):
        assert said(shortened, f"which begins at position {first_of(shortened):,}")
        assert not said(shortened, "is lost")


def test_of_a_node_that_did_not_begin_nothing_is_missed(node: TopicNode) -> None:
    assert not any(item.problem or item.note for item in checking(node).examine())
    life = node.life()
    life.release()
    for name in SNAPSHOTS:
        (node.folder.path / name).unlink()
    assert not any(item.problem or item.note for item in checking(node).examine())


def test_they_go_with_their_topic(node: TopicNode) -> None:
    node.topics = [Topic(1, "flights"), Topic(2, "seats")]
    with living(node) as life:
        appender = node.appender(life)
        gone = [prepared(life, appender, b"%d" % n) for n in range(5)]
        stays = [prepared(life, appender, b"%d" % n, topic=2) for n in range(4)]
        assert (life.halves(1), life.halves(2)) == (5, 4)
        node.tell_catalog([Topic(2, "seats"), Topic(3, "flights")])
        life.until(lambda: life.row(3, 0))
        assert (pending(life), life.halves(2), life.halves(3)) == (4, 4, 0)
        assert finish(life, appender, gone[0], True)["error"] == "TopicNotFound"
        assert finish(life, appender, gone[0], True, 3)["error"] == "HalfNotFound"
    node.folder.halves.unlink()  # the log has them for ever
    with living(node) as life:
        assert (pending(life), life.halves(2), life.halves(3)) == (4, 4, 0)
        assert finish(life, appender, stays[0], True, 2)["kind"] == HALF_COMMITTED


def test_no_more_are_taken_than_the_setting_says(node: TopicNode) -> None:
    node.halves_max = 5
    with living(node) as life:
        appender = node.appender(life)
        positions = [prepared(life, appender, b"%d" % n) for n in range(5)]
        more = appender.prepare(1, 0, b"one too many")
        life.until(lambda: appender.get("processed") > more)
        assert appender.answer(more).result == FULL
        finish(life, appender, positions[2], False)
        prepared(life, appender, b"there is room")
    node.halves_max = 2
    with living(node) as life:
        assert pending(life) == 5  # those that are there stay
        more = appender.prepare(1, 0, b"one too many")
        life.until(lambda: appender.get("processed") > more)
        assert appender.answer(more).result == FULL


def test_a_snapshot_that_cannot_be_written_is_tried_again(node: TopicNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LOG_BYTES", 100)
    with living(node) as life:
        appender = node.appender(life)
        replace = atomic_file.replace

        def refuse(path: Path, data: bytes) -> None:
            if path == node.folder.halves:
                raise StoreError("no space")
            replace(path, data)

        monkeypatch.setattr(atomic_file, "replace", refuse)
        for n in range(5):
            prepared(life, appender, b"%d" % n + b"x" * 200)
        life.until(lambda: life.service.halves.snapshot.refused)
        assert len(said(node, "no new snapshot of the half messages")) == 1
        monkeypatch.setattr(atomic_file, "replace", replace)
        life.until(lambda: not life.service.halves.snapshot.refused)
    assert HALVES.unpack(node.folder.halves.read_bytes(), "pending_n") == 5


def test_a_full_disk_holds_them_up_and_loses_none(small_disk: Path) -> None:
    disk = Disk(small_disk)
    node = TopicNode(disk.directory)
    with living(node) as life:
        appender = node.appender(life)
        positions = [prepared(life, appender, b"%d" % n + b"x" * 8000) for n in range(10)]
        with disk.kept_full(0):
            last = -1
            while not node.superblock.server_get(SERVER, "alarms") & CONSTANTS["ALARM_DISK"]:
                if appender.get("tail") - appender.get("head") < 40:
                    last = appender.append(1, 1, b"x" * 8000)
                life.service.turn(5_000_000)
            asked = appender.send_control(op="finish_half", topic=1, position=positions[0], commit=True)
        disk.empty()
        life.until(lambda: appender.get("processed") > asked)
        assert appender.told()["kind"] == HALF_COMMITTED
        for position in positions[1:]:
            finish(life, appender, position, True)
        life.until(lambda: appender.get("synced") > last and life.maximum(1, 0) == 10)


def test_a_damaged_one_can_be_rolled_back(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        first = prepared(life, appender, b"body" * 50)
        second = prepared(life, appender, b"other")
        for _ in range(8):  # out of the ring
            last = [appender.append(1, 1, b"x" * 20_000) for _ in range(3)]
            life.until(lambda last=last: appender.get("synced") > last[-1])
        with open(node.folder.log / f"{0:020d}", "r+b") as file:
            file.seek(first + 100)
            file.write(b"\xff\xff")
        told = finish(life, appender, first, True)
        assert told["error"] == "StoreError"
        assert "rolled back" in told["message"]
        assert finish(life, appender, first, False)["kind"] == HALF_ROLLED_BACK
        assert finish(life, appender, second, True)["kind"] == HALF_COMMITTED


# -- asking ---------------------------------------------------------------------------------------------------------


def checks(life: Life, appender: Appender, most: int = 10) -> list[tuple[int, int]]:
    """(position, how often asked) of those that are to be asked for."""
    told = ask(life, appender, "check_halves", most=most)
    return [(position, count) for position, _size, count, _due in told["halves"]]


def test_those_left_behind_are_asked_for_by_one_at_a_time_and_put_aside_in_the_end(node: TopicNode) -> None:
    node.half_after_ms, node.half_interval_ms, node.half_checks = 1, 300, 2
    with living(node) as life:
        first, second = node.appender(life), node.appender(life)
        position = prepared(life, first, b"left behind", 1, KEYS="k")
        found: list[tuple[int, int]] = []
        life.until(lambda: found or found.extend(checks(life, first)))
        assert found == [(position, 1)]
        assert checks(life, second) == []
        life.until(lambda: (more := checks(life, second)) and found.extend(more) is None)
        assert found[1:] == [(position, 2)]
        life.until(lambda: not checks(life, first) and not pending(life))
        told = finish(life, first, position, True)
        assert told["kind"] == HALF_PUT_ASIDE
        life.until(lambda: said(node, "put aside"))
        aside = node.record(told["position"])
        assert (aside["topic"], aside["sys_flag"]) == ("TRANS_CHECK_MAX_TIME_TOPIC", ROLLBACK)
        assert (aside["body"], aside["prepared_transaction_offset"]) == (b"left behind", position)
        assert aside["properties"]["KEYS"] == "k"
    node.folder.halves.unlink()
    with living(node) as life:
        assert pending(life) == 0
        assert finish(life, first, position, False)["kind"] == HALF_PUT_ASIDE


def test_how_often_it_was_asked_for_outlives_a_stop(node: TopicNode) -> None:
    node.half_after_ms, node.half_interval_ms, node.half_checks = 1, 1, 0
    with living(node) as life:
        appender = node.appender(life)
        position = prepared(life, appender, b"left behind")
        seen: list[tuple[int, int]] = []
        life.until(lambda: (found := checks(life, appender)) and found[0][1] == 20 and seen.extend(found) is None)
        assert seen == [(position, 20)]
    with living(node) as life:
        seen.clear()
        life.until(lambda: seen or seen.extend(checks(life, appender)))
        assert seen == [(position, 21)]


def test_none_is_asked_for_before_its_time(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        position = prepared(life, appender, b"fresh")
        assert checks(life, appender) == []
        (one,) = ask(life, appender, "list_halves")["halves"]
        assert one[0] == position
        assert one[3] - int(node.record(position)["store_timestamp"]) == node.half_after_ms


def test_a_list_comes_in_parts(node: TopicNode) -> None:
    with living(node) as life:
        appender = node.appender(life)
        sequences = [appender.prepare(1, 0, b"%d" % n) for n in range(200)]
        life.until(lambda: appender.get("synced") > sequences[-1])
        found, position, more = [], 0, True
        while more:
            told = ask(life, appender, "list_halves", position=position)
            found += [one[0] for one in told["halves"]]
            position, more = found[-1] + 1, told["more"]
        assert found == [appender.answer(sequence).position for sequence in sequences]
