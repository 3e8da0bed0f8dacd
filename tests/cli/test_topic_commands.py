"""Goal: `warren topic …` on a real node: what was appended is listed, described, tailed, found and deleted as the help
says, and what cannot be is one line that says what to do.

Method: the command line as processes of their own, as a user starts them; one node for all tests.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warren import attach
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.topics.names import node_bytes

from support.command_line import warren
from support.compacted_file import CompactedFile, places_of, record
from support.topic_tables import key_hash
from support.waiting import wait_until

pytestmark = pytest.mark.integration

SMALL = (
    *("--set", "file_bytes=1048576", "--set", "arena_bytes=1048576", "--set", "message_bytes_max=400000"),
    *("--set", "log_file_bytes=1048576", "--set", "topic_ring_bytes=1048576", "--set", "consume_queue_entries=100"),
    *("--set", "retention_check_s=0.2"),
)


def told(*words: object, given: str = "", code: int = 0) -> Any:
    return json.loads(warren(*words, "--json", given=given, code=code).stdout)


def lines(*words: object, code: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in warren(*words, "--json", code=code).stdout.splitlines()]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    chosen = tmp_path_factory.mktemp("topics") / "node"
    warren("up", chosen, "--detach", "--workers", 1, *SMALL)
    yield chosen
    warren("stop", chosen)


def test_a_topic_from_create_to_delete(directory: Path) -> None:
    assert "declared (2 queues)" in warren("topic", "create", directory, "life", "--queues", 2).stdout
    assert "exists already (2 queues)" in warren("topic", "create", directory, "life").stdout
    differs = warren("topic", "create", directory, "life", "--queues", 3, code=2).stderr
    assert "queues=2, not 3" in differs
    assert f"`warren topic delete {directory} life` first" in differs
    assert "no message has the key" in warren("topic", "find", directory, "life", "--key", "k", code=1).stderr
    bodies = [f"line {number}" for number in range(250)]
    appended = told("topic", "append", directory, "life", "--queue", 1, "--tag", "a", given="\n".join(bodies))
    assert (appended["appended"], appended["last"]["queue"], appended["last"]["offset"]) == (250, 1, 249)
    one = told(
        *("topic", "append", directory, "life", "--body", "one", "--key", "k", "--key", "l", "--tag", "b"),
        *("--property", "to=IAH", "--queue", 0),
    )["last"]
    (row,) = [row for row in told("topic", "list", directory) if row["name"] == "life"]
    assert (row["queues"], row["messages"], row["appended"]) == (2, 251, 251)
    assert "life" in warren("topic", "list", directory).stdout
    described = told("topic", "describe", directory, "life")
    first, second = described["queues"]
    assert (first["min"], first["max"], second["min"], second["max"]) == (0, 1, 0, 250)
    size = first["bytes"]
    assert 91 < size < 400
    assert 250 * 91 < second["bytes"] < 250 * 400
    assert second["first_timestamp"] <= second["last_timestamp"] <= first["first_timestamp"]
    shown = warren("topic", "describe", directory, "life").stdout
    assert "251 messages" in shown
    for wanted in (("--key", "k"), ("--key", "l"), ("--id", one["message_id"])):
        (found,) = lines("topic", "find", directory, "life", *wanted)
        assert (found["body"], found["keys"], found["tag"]) == ("one", ["k", "l"], "b")
        assert found["properties"] == {"to": "IAH"}
        assert found["physical_offset"] == one["physical_offset"]
    assert warren("topic", "find", directory, "life", "--key", "k", "--until", "2020-01-01", code=1).stdout == ""
    assert warren("topic", "find", directory, "life", "--key", "k", "--since", "2020-01-01").stdout == "one\n"
    assert "life deleted" in warren("topic", "delete", "--yes", directory, "life").stdout
    said = warren("topic", "tail", directory, "life", code=2).stderr
    assert "there is no topic 'life'" in said
    assert "topic list" in said
    warren("topic", "create", directory, "life")
    assert warren("topic", "tail", directory, "life").stdout == ""


def test_tail_prints_what_is_there_in_the_order_of_the_log_and_leaves_it(directory: Path) -> None:
    warren("topic", "create", directory, "tailed", "--queues", 3)
    for number in range(6):
        words = ("--tag", f"t{number % 2}", "--queue", number % 3)
        warren("topic", "append", directory, "tailed", "--body", f"m{number}", *words)
    everything = [f"m{number}" for number in range(6)]
    tail = ("topic", "tail", directory, "tailed")
    assert warren(*tail).stdout.split() == everything
    assert warren(*tail).stdout.split() == everything, "it takes nothing away"
    assert warren(*tail, "--count", 2).stdout.split() == everything[:2]
    assert warren(*tail, "--tag", "t1").stdout.split() == everything[1::2]
    assert warren(*tail, "--start", "latest").stdout == ""
    assert warren(*tail, "--start", "2020-01-01T00:00").stdout.split() == everything
    assert warren(*tail, "--start", "2999-01-01T00:00Z").stdout == ""
    second = warren(*tail, "--queue", 1).stdout.split()
    assert len(second) == 2
    assert warren(*tail, "--queue", 1, "--start", 1).stdout.split() == second[1:]
    assert "offsets are a queue's" in warren(*tail, "--start", 1, code=2).stderr
    assert "from 0 to 2" in warren(*tail, "--queue", 3, code=2).stderr
    assert "give earliest, latest" in warren(*tail, "--start", "soon", code=2).stderr
    short = warren(*tail, "--count", 7, "--timeout", 0.1, code=4)
    assert short.stdout.split() == everything
    assert "6 of 7 messages came" in short.stderr


def test_tail_follows_until_it_is_interrupted_or_its_reader_goes(directory: Path) -> None:
    warren("topic", "create", directory, "followed", "--queues", 2)
    warren("topic", "append", directory, "followed", "--body", "before")
    command = [sys.executable, "-m", "warren", "topic", "tail", str(directory), "followed", "--follow"]
    following = subprocess.Popen([*command, "--start", "earliest"], stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None
    assert following.stdout.readline() == "before\n"
    for number in range(3):
        warren("topic", "append", directory, "followed", "--body", f"after {number}")
        assert following.stdout.readline() == f"after {number}\n"
    following.send_signal(signal.SIGINT)
    assert following.wait(60) == 130
    following.stdout.close()
    gone = subprocess.Popen([*command, "--start", "earliest"], stdout=subprocess.PIPE, text=True)
    assert gone.stdout is not None
    assert gone.stdout.readline() == "before\n"
    gone.stdout.close()

    def ended() -> bool:
        warren("topic", "append", directory, "followed", "--body", "nobody reads this")
        return gone.poll() is not None

    wait_until(ended, 60, what="the end of a tail without a reader")
    assert gone.returncode == 0


def test_bytes_in_bodies_and_from_standard_input(directory: Path, tmp_path: Path) -> None:
    warren("topic", "create", directory, "bytes", "--queues", 1)
    warren("topic", "append", directory, "bytes", "--body", "-", given="two\nlines")
    file = tmp_path / "file"
    file.write_bytes(b"\xff\n")
    warren("topic", "append", directory, "bytes", "--file", file, "--durability", "written")
    assert (
        "give only one" in warren("topic", "append", directory, "bytes", "--file", file, "--body", "x", code=2).stderr
    )
    first, second = lines("topic", "tail", directory, "bytes")
    assert first["body"] == "two\nlines"
    assert second["body_base64"] == "/w=="


def test_check_reads_the_files_of_topics(tmp_path: Path) -> None:
    chosen = tmp_path / "node"
    warren("up", chosen, "--detach", "--workers", 1, *SMALL)
    try:
        warren("topic", "create", chosen, "t", "--queues", 1)
        bodies = "\n".join(f"{number}" * 50 for number in range(300))
        warren("topic", "append", chosen, "t", "--key", "k", given=bodies)
        assert told("check", chosen)["problems"] == []
    finally:
        warren("stop", chosen)
    assert told("check", chosen)["problems"] == []
    unit = next(path for path in sorted((chosen / "topics" / "consumequeue" / "t" / "0").iterdir()))
    content = bytearray(unit.read_bytes())
    content[45] ^= 1
    unit.write_bytes(content)
    (problem,) = told("check", chosen, code=1)["problems"]
    assert problem.startswith(f"{unit}: 1 damaged unit")
    repaired = told("check", chosen, "--repair")
    assert any("300 messages, 300 keys" in line for line in repaired["repaired"])
    assert repaired["problems"] == []
    warren("up", chosen, "--detach")
    try:
        assert len(warren("topic", "tail", chosen, "t").stdout.split()) == 300
    finally:
        warren("stop", chosen)


def test_check_repairs_the_files_of_compacted_topics(tmp_path: Path) -> None:
    """No command declares such a topic yet: the catalog is changed by hand, and the file is made by its format."""
    chosen = tmp_path / "node"
    warren("up", chosen, "--detach", "--workers", 1, *SMALL)
    try:
        warren("topic", "create", chosen, "plain", "--queues", 1)
        warren("topic", "append", chosen, "plain", given="one")
    finally:
        warren("stop", chosen)
    node = NodeDirectory(chosen).read()
    found = catalog_log.load(chosen).catalog
    id = found.declare_topic("flights", queues=1, compacted=True).id
    found.save(chosen)
    path = chosen / "topics" / "compacted" / str(id) / "0"
    path.parent.mkdir(parents=True)
    blocks = [[record(0, offset, "k", b"%d" % offset, flag=id)] for offset in range(3)]
    keys = [(key_hash("flights", "k"), offset) for offset in range(3)]
    content = bytearray(CompactedFile(node_bytes(node.node_id), id, 0, 3, blocks, {}, keys).encode())
    path.write_bytes(content)
    sound = told("check", chosen)
    assert sound["problems"] == []
    assert [(item["kind"], item["records"]) for item in sound["files"] if item["path"] == str(path)] == [
        ("compacted", 3)
    ]
    at = places_of(content)["block1"]
    content[at + 20] ^= 1
    path.write_bytes(content)
    (problem,) = told("check", chosen, code=1)["problems"]
    assert problem.startswith(f"{path}: 1 damaged place: at byte {at}: ")
    assert "messages of offsets 1 to 1 are lost; 1 of 3 messages are lost" in problem
    assert f"PROBLEM  {path}: 1 damaged place" in warren("check", chosen, code=1).stdout
    repaired = told("check", chosen, "--repair")
    (line,) = repaired["repaired"]
    assert line.startswith(f"{path}: 1 damaged place: at byte {at}: ")
    assert repaired["problems"] == []
    assert any("1 damaged part was found earlier; 1 message lost" in note for note in repaired["notes"])
    after = told("check", chosen)
    assert [item["records"] for item in after["files"] if item["path"] == str(path)] == [2]


def test_messages_that_come_later(directory: Path) -> None:
    warren("topic", "create", directory, "later", "--queues", 1)
    put_off = told("topic", "append", directory, "later", "--body", "x", "--delay", 3600)
    assert (put_off["appended"], put_off["last"]["offset"]) == (1, -1)
    said = warren("topic", "append", directory, "later", "--at", "2020-01-01T00:00", given="a\nb").stderr
    assert "2 messages appended" in said
    assert "the last one in queue 0, when its time has come" in said
    tailed = lines("topic", "tail", directory, "later", "--count", 2, "--timeout", 30)
    assert [line["body"] for line in tailed] == ["a", "b"]
    (row,) = [row for row in told("topic", "list", directory) if row["name"] == "later"]
    assert (row["messages"], row["delayed"]) == (2, 1)
    assert told("topic", "describe", directory, "later")["delayed"] == 1
    assert "1 message to come later" in warren("topic", "describe", directory, "later").stdout
    both = ("--body", "x", "--delay", 1, "--delay-level", 1)
    assert "both say when" in warren("topic", "append", directory, "later", *both, code=2).stderr
    assert "3 days" in warren("topic", "append", directory, "later", "--body", "x", "--delay", 1e7, code=2).stderr
    assert told("topic", "append", directory, "later", given="")["last"] is None


def test_half_messages(directory: Path) -> None:
    warren("topic", "create", directory, "halves", "--queues", 1)
    assert told("topic", "halves", directory, "halves") == []
    assert "has no half messages" in warren("topic", "halves", directory, "halves").stdout
    with attach(directory) as node:
        topic = node.topic("halves")
        first, second, third = (topic.prepare(b"body %d" % n, key=f"k{n}", tag="T", queue=0) for n in range(3))
    rows = told("topic", "halves", directory, "halves")
    assert [row["id"] for row in rows] == [half.message_id for half in (first, second, third)]
    assert (rows[1]["keys"], rows[1]["tag"], rows[1]["bytes"], rows[1]["asked"]) == (["k1"], "T", 6, 0)
    assert rows[0]["age_s"] >= rows[2]["age_s"] >= 0
    assert len(told("topic", "halves", directory, "halves", "--limit", 2)) == 2
    (row,) = [row for row in told("topic", "list", directory) if row["name"] == "halves"]
    assert (row["messages"], row["halves"]) == (0, 3)
    assert "3 half messages" in warren("topic", "describe", directory, "halves").stdout
    table = warren("topic", "halves", directory, "halves").stdout
    assert second.message_id in table
    assert "3 half messages" in table
    committed = told("topic", "halves", directory, "halves", "--commit", second.message_id)
    assert (committed["state"], committed["queue"], committed["offset"]) == ("committed", 0, 0)
    assert told("topic", "halves", directory, "halves", "--commit", second.message_id) == committed
    text = warren("topic", "halves", directory, "halves", "--rollback", first.message_id).stdout
    assert f"{first.message_id} is rolled back" in text
    assert [line["body"] for line in lines("topic", "tail", directory, "halves", "--count", 1)] == ["body 1"]
    for options, says in (
        (("--rollback", second.message_id), "was committed and cannot be rolled back"),
        (("--commit", first.message_id), "was rolled back and cannot be committed"),
        (("--commit", "01" * 8 + "00" * 8), "no id of a half message of this node"),
        (("--commit", "x"), "is not a message id"),
        (("--commit", f"{0:016X}{1 << 40:016X}"), "has no half message"),
        (("--commit", first.message_id, "--rollback", first.message_id), "give only one"),
    ):
        assert says in warren("topic", "halves", directory, "halves", *options, code=2).stderr
    assert "there is no topic" in warren("topic", "halves", directory, "nowhere", code=2).stderr
    assert [row["id"] for row in told("topic", "halves", directory, "halves")] == [third.message_id]


def test_times_and_sizes_have_units(directory: Path) -> None:
    create = ("topic", "create", directory, "sized", "--retention-s", "7d", "--retention-bytes", "10G")
    made = told(*create)["topic"]
    assert (made["retention_s"], made["retention_bytes"]) == (7 * 86400, 10 << 30)
    assert "exists already" in warren("topic", "create", directory, "sized", "--retention-s", 604800).stdout
    for given, seconds in (("1500ms", 1.5), ("90S", 90), ("1.5m", 90), ("2 min", 120), ("12h", 43200), ("60", 60)):
        assert told("topic", "set", directory, "sized", "--retention-s", given)["topic"]["retention_s"] == seconds
    for given, size in (
        *(("4K", 4096), ("4kb", 4000), ("1.5MiB", 3 << 19), ("2MB", 2_000_000), ("3 g", 3 << 30), ("1T", 1 << 40)),
        *(("7B", 7), ("12345", 12345), ("none", None)),
    ):
        assert told("topic", "set", directory, "sized", "--retention-bytes", given)["topic"]["retention_bytes"] == size
    wrong = "give a number of seconds, or one with ms, s, m, h or d"
    for option, given in (("--retention-s", "7w"), ("--retention-s", "soon"), ("--retention-s", "d")):
        for word in ("create", "set"):
            assert wrong in warren("topic", word, directory, "sized", option, given, code=2).stderr
    assert wrong in warren("topic", "append", directory, "sized", "--body", "x", "--delay", "7 weeks", code=2).stderr
    assert wrong in warren("topic", "tail", directory, "sized", "--timeout", "1_", code=2).stderr
    wrong = "give a number of bytes, or one with K, M, G or T (1K is 1,024 bytes, as 1KiB; 1KB is 1,000)"
    for given in ("10X", "much", "1e3", "1e99999999G", "1.5"):
        for word in ("create", "set"):
            said = warren("topic", word, directory, "sized", "--retention-bytes", given, code=2).stderr
            assert wrong in said
            assert ("or the word none" in said) == (word == "set")
    for option in ("--retention-s", "--retention-bytes"):
        assert "is not in the range" in warren("topic", "set", directory, "sized", option, "0", code=2).stderr
    assert (
        "is not in the range" in warren("topic", "set", directory, "sized", "--retention-bytes", "0.1B", code=2).stderr
    )
    assert "is not in the range" in warren("topic", "tail", directory, "sized", "--timeout", "-5m", code=2).stderr
    assert told("topic", "append", directory, "sized", "--body", "x", "--delay", "1h")["last"]["offset"] == -1
    warren("topic", "delete", "--yes", directory, "sized")


def test_tail_says_that_an_offset_is_not_there(directory: Path) -> None:
    warren("topic", "create", directory, "bounds", "--queues", 2)
    tail = ("topic", "tail", directory, "bounds", "--queue", 1)
    warren("topic", "append", directory, "bounds", "--queue", 1, given="a\nb\nc")
    past = warren(*tail, "--start", 5000)
    assert past.stdout == ""
    assert past.stderr == "warren: queue 1 of topic bounds ends at offset 3: nothing is at 5,000 yet\n"
    for start in (0, 2, 3):
        assert warren(*tail, "--start", start).stderr == ""
    warren("topic", "append", directory, "bounds", "--queue", 1, given="d")
    warren("topic", "set", directory, "bounds", "--retention-bytes", 1)

    def gone() -> bool:
        queues = told("topic", "describe", directory, "bounds")["queues"]
        return bool(queues[1]["min"] == 3)

    wait_until(gone, 60, what="the end of the oldest messages")
    below = warren(*tail, "--start", 1)
    assert below.stdout == "d\n"
    assert below.stderr == "warren: queue 1 of topic bounds begins at offset 3: messages before it are gone\n"
    (line,) = warren(*tail, "--start", 1, "--json").stderr.splitlines()
    assert json.loads(line) == {"note": "queue 1 of topic bounds begins at offset 3: messages before it are gone"}
    warren("topic", "delete", "--yes", directory, "bounds")
