"""Goal: a log of topics that has lost something is refused, in words that name what to do; `warren check --repair
--accept-loss` says what is lost and changes nothing before somebody says yes; then the rest is served, no offset is
given twice, no group skips a message, and the loss stays known. A repair that was killed can be repeated.

Method: the directory of a stopped node with a plain and a compacted topic, and a group at the end of a queue, is copied
and damaged: its log is cut in the last page, in an older file, loses files at its end, its begin and in between, has
zeros in commits, or is gone. What is served is compared with what was appended. The repair is killed at each step by an
exception.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import warren
from warren.engine import _core
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel import quarantine
from warren.engine.saying import counted
from warren.engine.topics.check import TopicsCheck
from warren.engine.topics.log_loss import Loss
from warren.workers.cli.check import LossRefused, _topics_of, verify

from support.command_line import warren as run
from support.waiting import patience

pytestmark = pytest.mark.integration

MIB = 1 << 20
COUNT = 1300  #: messages of each queue of the plain topic: more than two files of the log
SETTINGS = {"log_file_bytes": MIB, "topic_ring_bytes": MIB, "consume_queue_entries": 300, "index_slots": 1000}
KEYS = 7
TIMEOUT = 20 * patience()


def body(queue: int, offset: int) -> bytes:
    return b"%d %06d" % (queue, offset) + b"." * 900


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("loss") / "node"
    with warren.open(directory, **SETTINGS) as node:
        kept = node.topic("kept", queues=1, compacted=True)
        for number in range(30):
            kept.append(b"%d" % number, key=f"k{number % KEYS}")
        flights = node.topic("flights", queues=2)
        for at in range(0, COUNT, 20):
            for queue in range(2):
                keys = [f"{queue}-{at + i}" for i in range(20)]
                flights.append_many([body(queue, at + i) for i in range(20)], keys=keys, queue=queue)
        with flights.reader("done", start="earliest") as reader:
            seen = 0
            while seen < 2 * COUNT:
                seen += len(reader.get_many(500, timeout=TIMEOUT))
    run("stop", directory)
    return directory


def file_of(directory: Path, number: int) -> Path:
    return directory / "topics" / "commitlog" / f"{number * MIB:020d}"


def zero(path: Path, begin: int, end: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))


def end_of(directory: Path) -> tuple[Path, int]:
    """The file in which the log ends, and where."""
    ends = [(path, len(path.read_bytes().rstrip(b"\0"))) for path in sorted(file_of(directory, 0).parent.iterdir())]
    return next((path, end) for path, end in reversed(ends) if end)


def last_page(directory: Path) -> None:
    path, end = end_of(directory)
    zero(path, end - 3000, MIB)


def last_file_cut(directory: Path) -> None:
    path, end = end_of(directory)
    os.truncate(path, end // 2)


def last_file_gone(directory: Path) -> None:
    path, _end = end_of(directory)
    for item in path.parent.iterdir():
        if item.name >= path.name:
            item.unlink()


def older_file_cut(directory: Path) -> None:
    os.truncate(file_of(directory, 1), MIB // 2)


def middle_gone(directory: Path) -> None:
    file_of(directory, 1).unlink()


def middle_is_a_folder(directory: Path) -> None:
    middle_gone(directory)
    file_of(directory, 1).mkdir()


def first_gone(directory: Path) -> None:
    file_of(directory, 0).unlink()


def begin_zeroed(directory: Path) -> None:
    zero(file_of(directory, 0), 0, 5000)
    (directory / "topics" / "checkpoint").unlink()


def commits_zeroed(directory: Path) -> None:
    """In two places, one of them where two files meet; nothing says where the log had come to."""
    zero(file_of(directory, 0), MIB // 2, MIB // 2 + 100)
    zero(file_of(directory, 0), MIB - 5000, MIB)
    zero(file_of(directory, 1), 0, 7000)
    (directory / "topics" / "checkpoint").unlink()


def all_gone(directory: Path) -> None:
    for path in file_of(directory, 0).parent.iterdir():
        path.unlink()


DAMAGES = (
    last_page,
    last_file_cut,
    last_file_gone,
    older_file_cut,
    middle_gone,
    middle_is_a_folder,
    first_gone,
    begin_zeroed,
    commits_zeroed,
    all_gone,
)
Damage = Callable[[Path], None]


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "node"))


@contextmanager
def locked(directory: Path) -> Iterator[NodeDirectory]:
    target = NodeDirectory(directory)
    target.lock()
    try:
        yield target
    finally:
        target.unlock()


def checked(directory: Path) -> TopicsCheck:
    found = _topics_of(directory, NodeDirectory(directory).read(), False)
    assert found is not None
    return found


def accepted(directory: Path) -> list[Loss]:
    """Accept what is lost; what was asked."""
    asked: list[Loss] = []

    def accepts(loss: Loss) -> bool:
        asked.append(loss)
        return True

    with locked(directory) as target:
        assert verify(target, repair=True, accepts=accepts).problems == []
    return asked


def log_of(directory: Path) -> dict[str, bytes]:
    files = (path for path in file_of(directory, 0).parent.iterdir() if path.is_file())
    return {path.name: path.read_bytes() for path in files}


def numbers(loss: Loss) -> dict[tuple[str, int], set[int]]:
    """Offsets that are named as lost."""
    return {
        (item.topic, item.queue): {offset for begin, end in item.ranges for offset in range(begin, end)}
        for item in loss.queues
    }


def read_all(topic: warren.Topic) -> dict[int, dict[int, bytes]]:
    """All that a reader is given, in order."""
    found: dict[int, dict[int, bytes]] = {queue: {} for queue in range(topic.queues)}
    for queue, of_queue in found.items():
        at, end = topic.offsets(queue)
        while at < end:
            read = topic.read(queue, at, max=1000)
            assert all(at <= record.offset < end for record in read.records)
            of_queue |= {record.offset: record.body for record in read.records}
            assert at < read.next_offset
            at = read.next_offset
        assert list(of_queue) == sorted(of_queue)
    return found


def served_as(directory: Path, lost: dict[tuple[str, int], set[int]]) -> None:
    """All that was not named as lost is there; new messages get the offsets after all that there were."""
    with warren.open(directory) as node:
        flights, kept = node.topic("flights", create=False), node.topic("kept", create=False)
        for queue, found in read_all(flights).items():
            gone = lost.get(("flights", queue), set())
            assert found == {offset: body(queue, offset) for offset in range(COUNT) if offset not in gone}
            for offset in sorted(found)[:: COUNT // 20]:
                assert [item.offset for item in flights.find(f"{queue}-{offset}")] == [offset]
        gone = lost.get(("kept", 0), set())
        assert read_all(kept)[0] == {offset: b"%d" % offset for offset in range(30) if offset not in gone}
        with flights.reader("done", on_data_loss="skip") as reader:
            came = [flights.append(b"new", key="new", queue=queue).offset for queue in (0, 1, 0, 1)]
            assert came == [COUNT, COUNT, COUNT + 1, COUNT + 1]
            assert kept.append(b"new", key="k0").offset == 30
            seen: list[tuple[int, int]] = []
            while not {(0, COUNT + 1), (1, COUNT + 1)} <= set(seen):
                seen += [(item.queue, item.offset) for item in reader.get_many(1000, timeout=TIMEOUT)]
        new = [place for place in seen if place[1] >= COUNT]
        assert sorted(new) == [(0, COUNT), (0, COUNT + 1), (1, COUNT), (1, COUNT + 1)], "nothing twice, nothing skipped"
        assert len(list(flights.find("new"))) == 4
    run("stop", directory)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_is_left_is_served(copied: Path, damage: Damage) -> None:
    """All but the messages that are named as lost are served; then nothing is wrong, and the loss is still known."""
    damage(copied)
    (loss,) = accepted(copied)
    lost = numbers(loss)
    assert all(lost.values())
    assert loss.messages == sum(map(len, lost.values()))
    told = sum(entry.messages or 0 for entry in quarantine.entries(copied / "topics"))
    assert told == loss.messages
    assert accepted(copied) == [], "nothing more is lost"
    served_as(copied, lost)
    found = verify(NodeDirectory(copied))
    assert found.problems == []
    assert any(f"{loss.messages} messages lost" in note.replace(",", "") for note in found.notes)
    shutil.rmtree(copied / "topics" / "index")  # all comes from the log alone, with the numbers of before
    (copied / "topics" / "checkpoint").unlink()
    with warren.open(copied) as node:
        ends = [node.topic("flights", create=False).offsets(queue)[1] for queue in (0, 1)]
        assert ends == [COUNT + 2, COUNT + 2]
    run("stop", copied)


def test_nothing_is_changed_before_somebody_says_yes(copied: Path) -> None:
    """A start, `check`, `--repair`, and `--accept-loss` where nobody can answer: each says what to do, or what would be
    lost. `--yes` answers; `--json` has all of it.
    """
    last_file_gone(copied)
    before = log_of(copied)
    for words in (["check", copied], ["check", copied, "--repair"]):
        assert "`warren check --repair --accept-loss`" in run(*words, code=1).stdout
    with warren.open(copied) as node, pytest.raises(warren.Error, match="--accept-loss"):
        node.topic("flights", create=False).append(b"x", timeout=TIMEOUT)
    run("stop", copied)
    refused = run("check", copied, "--repair", "--accept-loss", code=2)
    assert "queue 1 of topic 'flights': offsets " in refused.stdout
    assert "group 'done' of topic 'flights' had committed up to offset 1,300 of queue 0" in refused.stdout
    assert "give --yes" in refused.stderr
    told = json.loads(run("check", copied, "--repair", "--accept-loss", "--json", code=2).stdout)
    assert [(item["topic"], item["next"]) for item in told["loss"]["queues"]] == [("flights", COUNT)] * 2
    assert log_of(copied) == before
    assert not (copied / "topics" / "quarantine").exists()
    assert "goes with --repair" in run("check", copied, "--accept-loss", code=2).stderr
    assert "goes with --accept-loss" in run("check", copied, "--repair", "--yes", code=2).stderr
    found = json.loads(run("check", copied, "--repair", "--accept-loss", "--yes", "--json").stdout)
    assert found["loss"] == told["loss"]
    assert found["ok"]
    again = json.loads(run("check", copied, "--repair", "--accept-loss", "--yes", "--json").stdout)
    assert (again["loss"], again["repaired"]) == (None, [])


def test_a_terminal_is_asked(copied: Path) -> None:
    """`n` and Ctrl-D change nothing, `y` accepts."""
    last_page(copied)
    before = log_of(copied)
    for answer, code in (("n", 1), ("\x04", 130), ("y", 0)):
        master, slave = os.openpty()
        try:
            words = [sys.executable, "-m", "warren", "check", str(copied), "--repair", "--accept-loss"]
            with subprocess.Popen(words, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asked:
                os.write(master, answer.encode() if answer == "\x04" else f"{answer}\n".encode())
                _out, said = asked.communicate(timeout=6 * TIMEOUT)
        finally:
            os.close(slave)
            os.close(master)
        assert asked.returncode == code, said
        assert b"Go on without what is lost?" in said
        assert (log_of(copied) == before) == (answer != "y")
        assert said.endswith(b"nothing was changed\n") == (answer != "y")


class Killed(BaseException):
    """A repair ends here."""


@pytest.mark.parametrize("damage", [older_file_cut, commits_zeroed, last_file_gone, all_gone])
def test_a_repair_that_was_killed_is_repeated(copied: Path, damage: Damage) -> None:
    """At each step: topics are refused until the repair is done, and the next one loses and reports no more."""
    damage(copied)
    wanted = checked(copied).loss()
    assert wanted is not None
    steps: list[str] = []
    for killed_at in range(20):
        passed: list[str] = []

        def reached(point: str, seen: list[str] = passed, at: int = killed_at) -> None:
            seen.append(point)
            if len(seen) > at:
                raise Killed

        with locked(copied):
            checking = checked(copied)
            loss = checking.loss()
            assert loss is not None, "it is not done"
            assert numbers(loss) == numbers(wanted)
            if "loss.planned" in steps:
                assert "was not finished" in run("check", copied, code=1).stdout
            try:
                checking.accept(loss, lambda _done, _all: None, reached)
            except Killed:
                steps = passed
                continue
        steps = passed
        break
    assert {"loss.planned", "loss.files", "loss.ended", "loss.rebuilt"} <= set(steps)
    assert accepted(copied) == []
    told = sum(entry.messages or 0 for entry in quarantine.entries(copied / "topics"))
    assert told == wanted.messages, "what is lost was reported once"
    served_as(copied, numbers(wanted))


def test_a_sound_log_has_lost_nothing(copied: Path) -> None:
    """Nor has one with the torn tail of an unclean stop."""
    assert accepted(copied) == []
    with checked(copied)._opened() as place:
        _kind, checkpoint = _core.topics_checkpoint(*place)
    assert checkpoint is not None
    with file_of(copied, checkpoint["position"] // MIB).open("r+b") as file:
        file.seek(checkpoint["position"] % MIB)
        file.write(b"no commit" * 100)
    assert checked(copied).loss() is None


ONE_BY_ONE, AT_ONCE, ALONE = "one by one", "the last 500 at once", "one alone"


@pytest.mark.parametrize(
    ("appended", "part"),
    [(ONE_BY_ONE, b"body 000"), (ONE_BY_ONE, b"key-000"), (AT_ONCE, b"body 250"), (ALONE, b"body 000")],
)
def test_damage_of_the_last_commit_is_told_and_accepted(tmp_path: Path, appended: str, part: bytes) -> None:
    """A byte of it changed after a stop in good order: the checkpoint says that it was synced. What `check` says, and
    what can be accepted, is the same before and after further messages.
    """
    directory = tmp_path / "node"
    before, last = {ONE_BY_ONE: (60, 1), AT_ONCE: (60, 500), ALONE: (0, 1)}[appended]
    with warren.open(directory, **SETTINGS) as node:
        topic = node.topic("logs", queues=1)
        for offset in range(before):
            topic.append(b"old %03d" % offset, key=f"old-{offset}")
        topic.append_many([b"body %03d" % i for i in range(last)], keys=[f"key-{i:03d}" for i in range(last)])
    run("stop", directory)
    path, _end = end_of(directory)
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(content.rindex(part))
        file.write(b"!")
    used = Path(shutil.copytree(directory, tmp_path / "used"))
    with warren.open(used) as node:
        assert node.topic("logs", create=False).append(b"more").offset == before + last
    run("stop", used)
    said = [run("check", each, "--json", code=1).stdout for each in (directory, used)]
    ((first,), (second,)) = [json.loads(each)["problems"] for each in said]
    assert "hold a commit that is not what was written" in first
    assert "`warren check --repair --accept-loss`" in first
    assert second.replace(str(used), str(directory)) == first
    for each, more in ((directory, []), (used, [before + last])):
        log = log_of(each)
        assert run("check", each, "--repair", code=1).stdout.count("PROBLEM") == 1
        refused = run("check", each, "--repair", "--accept-loss", code=2)
        assert f"at most {counted(last, 'message')} of queue 0 of topic 'logs': offsets {before}" in refused.stdout
        assert "give --yes" in refused.stderr
        assert log_of(each) == log
        (loss,) = accepted(each)
        assert numbers(loss) == {("logs", 0): set(range(before, before + last))}
        assert accepted(each) == []
        assert verify(NodeDirectory(each)).problems == []
        with warren.open(each) as node:
            topic = node.topic("logs", create=False)
            old = {offset: b"old %03d" % offset for offset in range(before)}
            assert read_all(topic)[0] == old | dict.fromkeys(more, b"more")
            assert topic.append(b"new").offset == before + last + len(more)
        run("stop", each)
        assert verify(NodeDirectory(each)).problems == []


def test_a_refusal_changes_nothing(copied: Path) -> None:
    middle_gone(copied)
    before = log_of(copied)
    with locked(copied) as target, pytest.raises(LossRefused, match="nothing was changed"):
        verify(target, repair=True, accepts=lambda _loss: False)
    assert log_of(copied) == before


def test_a_repair_of_large_files_writes_no_holes(tmp_path: Path) -> None:
    """The log's file was cut to a part of its first MiB; then a blank record of nearly 512 MiB ends it. The node starts
    and serves what is left, and the file takes no more room than what is in it.
    """
    directory = tmp_path / "node"
    with warren.open(directory, **(SETTINGS | {"log_file_bytes": 512 * MIB})) as node:
        topic = node.topic("flights", queues=1)
        topic.append_many([body(0, offset) for offset in range(COUNT)], queue=0)
        for offset in range(COUNT, 2 * COUNT):
            topic.append(body(0, offset), queue=0)
    run("stop", directory)
    first = file_of(directory, 0)
    os.truncate(first, len(first.read_bytes().rstrip(b"\0")) * 3 // 4)
    (loss,) = accepted(directory)
    gone = numbers(loss)["flights", 0]
    assert gone
    ((_name, _begin, to, why),) = loss.reasons
    assert (to, why.count("was cut to"), why.count("the log ends at")) == (512 * MIB, 1, 1), "a file is named once"
    with warren.open(directory) as node:
        found = read_all(node.topic("flights", create=False))[0]
        assert found == {offset: body(0, offset) for offset in range(2 * COUNT) if offset not in gone}
        assert node.topic("flights").append(b"new", queue=0).offset == 2 * COUNT
    run("stop", directory)
    assert first.stat().st_size == 512 * MIB
    assert first.stat().st_blocks * 512 < 8 * MIB
