"""Goal: every command does what its help says on a real node, reports as JSON where it reports, ends with an exit code
that scripts can use, and never shows a traceback.

Method: the command line as processes of their own, as a user starts them; one node for most of the tests.
"""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import CorruptRecord
from warren.ipc import names, region
from warren.workers.cli.main import COMMANDS, SUMMARIES
from warren.workers.faces.node import attach
from warren.workers.faces.node import open as open_node
from warren.workers.process.control import ControlClient

from support.command_line import warren
from support.said import without_waiting
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration

PROCESSES = ["supervisor", "store", "queue_worker", "queue_worker", "collector"]

SMALL = (
    *("--set", "file_bytes=1048576", "--set", "arena_bytes=1048576", "--set", "message_bytes_max=400000"),
    *("--set", "ring_records=256", "--set", "delivery_slots=256"),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node in the background, for the tests of this module."""
    chosen = tmp_path_factory.mktemp("cli") / "node"
    started = warren("up", chosen, "--detach", "--workers", 2, *SMALL)
    assert "is up" in started.stdout
    assert "Ctrl-C" not in started.stdout
    yield chosen
    warren("stop", chosen)


def test_help_names_every_command() -> None:
    shown = warren("--help").stdout
    for command in COMMANDS:
        assert f"  {command} " in shown
        assert SUMMARIES[command]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("demo", "stress")])
def test_every_command_has_help(command: str) -> None:
    assert "sage" in warren(command, "--help").stdout


def test_status(directory: Path) -> None:
    status = warren("status", directory, "--json").json()
    assert isinstance(status, dict)
    assert {"dir", "node_id", "epoch", "state", "processes", "clients", "queues", "topics", "store", "alarms"} <= set(
        status
    )
    assert [item["role"] for item in status["processes"]] == PROCESSES
    assert all({"role", "index", "pid", "start_time", "rss_bytes"} <= set(item) for item in status["processes"])
    assert {item["name"] for item in status["clients"]} >= {"queue-worker-0", "queue-worker-1"}
    assert all({"slot", "pid", "name"} <= set(item) for item in status["clients"])
    assert {"messages", "files", "valid_bytes", "file_bytes"} <= set(status["store"])
    shown = warren("status", directory).stdout
    assert str(directory) in shown
    assert "queue worker 1" in shown


def test_a_queue_from_declare_to_delete(directory: Path) -> None:
    assert "declared (durable" in warren("queue", "declare", directory, "jobs").stdout
    assert "exists already" in warren("queue", "declare", directory, "jobs").stdout
    assert "durable, not transient" in warren("queue", "declare", directory, "jobs", "--transient", code=2).said
    lines = [f"line {number}" for number in range(2500)]
    assert "2,500 messages" in warren("publish", directory, "jobs", given="\n".join(lines)).said
    row = wait_until(
        lambda: next(
            (
                item
                for item in warren("queue", "list", directory, "--json").json()
                if item["name"] == "jobs" and item["ready"] == 2500
            ),  # type: ignore[attr-defined]
            None,
        ),
        what="the depth",
    )
    assert {"ready", "unacked", "alpha", "beta", "gamma", "delta", "bytes"} <= set(row)
    assert {"delayed", "expired", "dropped", "dead_lettered", "refused", "duplicates"} <= set(row)
    assert row["bytes"] >= sum(map(len, lines))
    assert warren("consume", directory, "jobs", "--count", 3).stdout.splitlines() == lines[:3]
    (looked,) = [json.loads(warren("consume", directory, "jobs", "--count", 1, "--no-ack", "--format", "json").stdout)]
    assert looked["body"] == lines[3]
    again = json.loads(warren("consume", directory, "jobs", "--count", 1, "--format", "json").stdout)
    assert (again["body"], again["redelivered"]) == (lines[3], True)
    assert "2,496 messages dropped" in warren("queue", "purge", "--yes", directory, "jobs").stdout
    assert warren("consume", directory, "jobs", "--count", 1, "--timeout", 0.1, code=4).stdout == ""
    assert warren("consume", directory, "jobs", "--timeout", 0).stdout == ""
    warren("queue", "delete", "--yes", directory, "jobs")
    assert "there is no queue 'jobs'" in warren("publish", directory, "jobs", given="x", code=2).said


def test_tables_of_many_queues_show_the_busiest_and_say_how_many_more(directory: Path) -> None:
    """Of 60 queues and 5 subscriptions the table has 40, among them the one with messages; JSON and --all have all."""
    many = [f"many.{number:02d}" for number in range(60)]
    warren("queue", "declare", directory, *many, "many.[x]")
    warren("publish", directory, "many.57", "--body", "x")
    warren("queue", "bind", directory, "many.57", "amq.topic", "a.b")
    everything = len(warren("queue", "list", directory, "--json").json())  # type: ignore[arg-type]
    report = warren("status", directory, "--json").json()
    assert isinstance(report, dict)
    assert len(report["queues"]) == report["queues_n"] == everything > 60
    for words in (("status",), ("queue", "list"), ("top", "--count", "1")):
        shown = warren(*words, directory).stdout
        lines = [line for line in shown.splitlines() if line.startswith("many.")]
        assert len(lines) <= 40
        assert lines == sorted(lines)
        assert any(line.startswith("many.57 ") for line in lines)
        assert f"and {everything - 40:,} more" in shown
    for words in (("status", directory, "--all"), ("queue", "list", directory, "--all")):
        shown = warren(*words).stdout
        assert all(f"\n{name} " in shown for name in many)
        assert " more" not in shown
    found = warren("queue", "list", directory, "many.5?", "--json").json()
    assert isinstance(found, list)
    assert [item["name"] for item in found] == [f"many.5{digit}" for digit in range(10)]
    assert [item["bindings"] for item in found if item["bindings"]] == [
        [{"exchange": "amq.topic", "queue": "many.57", "routing_key": "a.b"}]
    ]
    assert "amq.topic:a.b" in warren("queue", "list", directory, "many.57").stdout
    assert "many.[x] " in warren("queue", "list", directory, "many.[[]x]").stdout  # no markup, but a name
    shown = warren("queue", "show", directory, "many.[x]", "--json").json()
    assert isinstance(shown, dict)
    assert shown["name"] == "many.[x]"
    assert warren("queue", "list", directory, "nothing*").stdout == "no queue has a name like nothing*\n"
    warren("queue", "delete", "--yes", directory, *many, "many.[x]")


def test_exchanges_and_bindings(directory: Path, tmp_path: Path) -> None:
    warren("exchange", "declare", directory, "events", "--type", "topic")
    warren("queue", "declare", directory, "paid")
    warren("queue", "bind", directory, "paid", "events", "order.*.paid")
    (tmp_path / "input").write_bytes(b"first\nsecond\xff\n")
    published = warren(
        "publish",
        directory,
        "--exchange",
        "events",
        "--routing-key",
        "order.7.paid",
        "--file",
        tmp_path / "input",
        "--whole",
        "--json",
    )
    assert published.json()["published"] == 1  # type: ignore[index]
    unheard = ("publish", directory, "--exchange", "events", "--routing-key", "order.7.open")
    said = warren(*unheard, given="one\ntwo\n", code=1).said
    assert said.startswith("0 messages published")
    assert "2 messages dropped: exchange 'events' has no queue for routing key 'order.7.open'" in said
    counted = warren(*unheard, "--body", "not for us", "--json", code=1).json()
    assert (counted["published"], counted["unroutable"]) == (0, 1)  # type: ignore[index]
    got = json.loads(warren("consume", directory, "paid", "--count", 1, "--format", "json").stdout)
    assert (got["exchange"], got["routing_key"], got["body_base64"]) == (
        "events",
        "order.7.paid",
        "Zmlyc3QKc2Vjb25k/wo=",
    )
    listed = warren("exchange", "list", directory, "--json").json()
    (events,) = [item for item in listed if item["name"] == "events"]  # type: ignore[attr-defined]
    assert [item["queue"] for item in events["bindings"]] == ["paid"]
    assert "no longer bound" in warren("queue", "unbind", directory, "paid", "events", "order.*.paid").stdout
    assert "is not bound" in warren("queue", "unbind", directory, "paid", "events", "order.*.paid", code=2).said
    warren("exchange", "delete", directory, "events")
    warren("queue", "delete", "--yes", directory, "paid")


def test_control_characters_are_shown_and_do_nothing(directory: Path) -> None:
    said = warren("queue", "declare", directory, "bad\x1b[2J", code=2)
    assert said.stderr == "warren: queue name 'bad\\x1b[2J' has the control character '\\x1b': remove it\n"
    warren("exchange", "declare", directory, "bad\nname", code=2)
    key = "dead_letter_routing_key=\x1b[2J"
    declared = warren("queue", "declare", directory, "shown", "--argument", "dead_letter_exchange=", "--argument", key)
    warren("exchange", "declare", directory, "keys")
    warren("queue", "bind", directory, "shown", "keys", "one\x1b]0;two\x9b")
    warren("queue", "declare", directory, "left\u202eright")
    try:
        listed, shown = warren("queue", "list", directory), warren("queue", "show", directory, "shown")
        node = attach(directory, name="me\x1b[2J")
        with node:
            status, inspected = warren("status", directory), warren("inspect", directory, "slots")
        for found in (declared, listed, shown, warren("exchange", "list", directory), status, inspected):
            assert not set(found.stdout) & {"\x1b", "\x9b", "\u202e"}
        for found in (listed, status):
            assert "left\\u202eright" in found.stdout
        assert "keys:one\\x1b]0;two\\x9b" in listed.stdout
        assert "dead_letter_routing_key = \\x1b[2J" in shown.stdout
        assert "me\\x1b[2J" in status.stdout
        assert "me\\x1b[2J" in inspected.stdout
    finally:
        warren("queue", "delete", "--yes", directory, "shown", "left\u202eright")
        warren("exchange", "delete", directory, "keys")


def test_the_body_of_the_command_line_is_its_bytes(directory: Path, tmp_path: Path) -> None:
    warren("publish", directory, "bytes", "--body", "x", code=2)
    warren("queue", "declare", directory, "bytes")
    warren("publish", directory, "bytes", "--body", "ö\udcff\udcfe")
    got = json.loads(warren("consume", directory, "bytes", "--count", 1, "--format", "json").stdout)
    assert base64.b64decode(got["body_base64"]) == "ö".encode() + b"\xff\xfe"
    (tmp_path / "input").write_text("y")
    for source in (tmp_path / "input", "-"):
        both = ("publish", directory, "bytes", "--body", "x", "--file", source)
        assert "--body and --file" in warren(*both, given="z", code=2).said
    warren("queue", "delete", "--yes", directory, "bytes")


def test_arguments_headers_and_options(directory: Path) -> None:
    declare = ("queue", "declare", directory, "limited", "--argument", "max_length=5", "--argument", "message_ttl=600")
    assert "message_ttl=600.0, max_length=5" in warren(*declare).stdout
    assert "exists already" in warren(*declare).stdout
    assert "write NAME=VALUE" in warren("queue", "declare", directory, "x", "--argument", "max_length", code=2).said
    assert "known are" in warren("queue", "declare", directory, "x", "--argument", "colour=red", code=2).said
    (listed,) = warren("queue", "list", directory, "--json").json()  # type: ignore[misc]
    assert listed["arguments"] == {"message_ttl": 600.0, "max_length": 5}
    warren("exchange", "declare", directory, "heads", "--type", "headers", "--alternate", "amq.fanout")
    warren("queue", "bind", directory, "limited", "heads", "--argument", "x-match=any", "--argument", "level=2")
    warren("queue", "bind", directory, "limited", "heads", "--argument", "kind=a")
    to_heads = ("publish", directory, "--exchange", "heads", "--mandatory", "--body", "b")
    warren(*to_heads, "--header", "kind=a", "--priority", 3, "--ttl", 600)
    assert "no queue" in warren(*to_heads, "--header", "level=2", code=1).said, "a header of the command line is text"
    assert "not JSON: give text as --header" in warren(*to_heads, "--header-json", "kind=a", code=2).said
    twice = ("--header", "kind=a", "--header-json", "kind=1")
    assert "only one of them" in warren(*to_heads, *twice, code=2).said
    warren("publish", directory, "limited", "--delay", 600, "--transient", "--body", "later")
    shown = warren("queue", "show", directory, "limited").stdout
    assert "max_length = 5" in shown
    assert "bound to heads" in shown
    got = json.loads(warren("consume", directory, "limited", "--count", 1, "--format", "json").stdout)
    assert (got["headers"], got["body"]) == ({"kind": "a"}, "b")
    warren(*to_heads, "--header-json", "level=2", "--header-json", 'parts=[1, "a"]')
    got = json.loads(warren("consume", directory, "limited", "--count", 1, "--format", "json").stdout)
    assert got["headers"] == {"level": 2, "parts": [1, "a"]}
    bound = warren("queue", "bind", directory, "limited", "heads", "--argument", 'kind="7"', "--argument", "level=7")
    assert 'kind="7", level=7' in bound.stdout
    for command in (
        ("queue", "list", directory, "--all"),
        ("exchange", "list", directory),
        ("queue", "show", directory, "limited"),
    ):
        listed = warren(*command).stdout
        assert 'kind="7", level=7' in listed, command
        assert "level=2" in listed, command
    assert (
        'kind="7", level=7'
        in warren(
            "queue", "unbind", directory, "limited", "heads", "--argument", 'kind="7"', "--argument", "level=7"
        ).stdout
    )
    assert "no queue 'none'" in warren("queue", "show", directory, "none", code=2).said
    warren("queue", "delete", "--yes", directory, "limited")
    warren("exchange", "delete", directory, "heads")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("queue", "declare", "DIR", "a/b"), 2, "slash"),
        (("queue", "declare", "DIR", "x" * 300), 2, "300 bytes"),
        (("queue", "delete", "DIR", "none"), 2, "no queue 'none'"),
        (("consume", "DIR", "none"), 2, "no queue 'none'"),
        (("queue", "bind", "DIR", "none", "amq.topic"), 2, "no queue 'none'"),
        (("exchange", "delete", "DIR", "amq.topic"), 2, "built in"),
        (("publish", "DIR"), 2, "--exchange"),
        (("publish", "DIR", "q", "--exchange", "e"), 2, "give only one of them"),
        (("up", "DIR"), 2, "in use by process"),
        (("up", "DIR", "--set", "workers"), 2, "NAME=VALUE"),
        (("up", "DIR", "--idle-exit", "nan"), 2, "not a number of seconds"),
        (("consume", "DIR", "none", "--timeout", "inf"), 2, "not a number of seconds"),
        (("status", "DIR", "--timeout", "-1"), 2, "range"),
        (("topic", "create", "DIR", "t", "--compacted", "--retention-s", "5"), 2, "a compacted topic keeps the newest"),
        (("topic", "create", "DIR", "a.b"), 2, "character '.'"),
        (("topic", "append", "DIR", "none", "--body", "x"), 2, "no topic 'none'"),
        (("topic", "tail", "DIR", "none"), 2, "no topic 'none'"),
        (("topic", "delete", "DIR", "none"), 2, "no topic 'none'"),
        (("topic", "find", "DIR", "none"), 2, "give --key or --id"),
        (("topic", "tail", "DIR", "none", "--follow", "--timeout", "1"), 2, "give only one of them"),
        (("inspect", "DIR", "nothing"), 2, "superblock"),
        (("nonsense",), 2, "nonsense"),
        (("status",), 2, "DIR"),
    ],
)
def test_refusals_are_one_line(directory: Path, words: tuple[str, ...], code: int, said: str) -> None:
    found = warren(*(str(directory) if word == "DIR" else word for word in words), code=code)
    assert said in found.said
    assert found.said.startswith("warren: ")
    assert len(found.said.splitlines()) == 1


def test_not_running_is_exit_code_3(tmp_path: Path) -> None:
    for words in (("status",), ("stop",), ("top",), ("inspect",), ("queue", "list"), ("check",)):
        found = warren(*words, tmp_path / "nowhere", code=3)
        assert ("warren up" in found.said) == (words != ("check",)), "a start makes nothing that could be checked"
    assert not (tmp_path / "nowhere").exists()


def test_top(directory: Path) -> None:
    looks = warren("top", directory, "--count", 2, "--interval", 0.1, "--json").stdout.splitlines()
    assert [json.loads(look)["state"] for look in looks] == ["running", "running"]
    assert "Processes" in warren("top", directory, "--count", 1).stdout


def test_inspect_reads_shared_memory(directory: Path) -> None:
    warren("queue", "declare", directory, "inspected")
    warren("publish", directory, "inspected", "--body", "x" * 5000)
    found = warren("inspect", directory, "--json").json()
    assert isinstance(found, dict)
    assert found["superblock"]["state"] == "running"
    assert [row["state"] for row in found["servers"]] == ["ready"] * 4
    assert [row["role"] for row in found["servers"]] == ["store", "store-transient", "worker-0", "worker-1"]
    pids = {row["role"]: row["pid"] for row in warren("status", directory, "--json").json()["processes"]}  # type: ignore[call-overload]
    assert found["superblock"]["supervisor_pid"] == pids["supervisor"]
    assert found["superblock"]["collector_pid"] == pids["collector"]
    assert {row["name"] for row in found["slots"]} >= {"queue-worker-0", "queue-worker-1"}
    assert all(row["head"] <= row["synced"] <= row["tail"] for row in found["links"])
    assert {row["server"] for row in found["files"]} == {0}, "a store that nobody used has no file"
    assert {"left", "right", "locked", "valid_total_size"} <= set(found["files"][0])
    assert [row["server"] for row in found["index"]] == [0, 1]
    assert any(row["name"].endswith("-super") for row in found["regions"])
    shown = warren("inspect", directory).stdout
    for part in ("superblock", "slots", "links", "files", "index"):
        assert part in shown


def test_check_with_the_node_up(directory: Path) -> None:
    warren("queue", "declare", directory, "checked")
    warren("publish", directory, "checked", given="a\nb\nc\n")
    found = warren("check", directory, "--json").json()
    assert isinstance(found, dict)
    assert (found["ok"], found["running"], found["problems"]) == (True, True, [])
    assert any(item["kind"] == "jnl" and item["records"] >= 3 for item in found["files"])
    warren("queue", "delete", "--yes", directory, "checked")


def test_check_finds_a_flipped_bit(tmp_path: Path) -> None:
    node = tmp_path / "node"
    warren("up", node, "--detach", "--workers", 1, *SMALL)
    warren("queue", "declare", node, "q")
    warren("publish", node, "q", given="".join(f"{number}\n" for number in range(100)))
    warren("stop", node)
    assert "no problem" in warren("check", node).stdout
    (node / "queues" / "worker-0" / "journal" / "strange.txt").write_text("x")
    path = node / "queues" / "worker-0" / "journal" / "0.jnl"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    found = warren("check", node, "--json", code=1).json()
    assert isinstance(found, dict)
    assert [problem.split(":")[0] for problem in found["problems"]] == [str(path)]
    assert any("strange.txt" in note for note in found["notes"])
    assert path.read_bytes() == content, "a check changes nothing"
    assert "PROBLEM" in warren("check", node, code=1).stdout


@pytest.mark.parametrize("name", ["node.json", "catalog.json", "catalog.*.log"])
def test_a_damaged_identity_or_catalog_is_exit_code_3_with_advice(tmp_path: Path, name: str) -> None:
    node = tmp_path / "node"
    warren("up", node, "--detach", "--workers", 1, *SMALL)
    warren("queue", "declare", node, "q")
    if name == "catalog.*.log":  # a clean end leaves none
        copied = next(node.glob(name)).read_bytes(), (node / "catalog.json").read_bytes(), next(node.glob(name)).name
    warren("stop", node)
    path = node / name
    if name == "catalog.*.log":
        (node / "catalog.json").write_bytes(copied[1])
        path = node / copied[2]
        path.write_bytes(b"x" + copied[0][1:])
    else:
        path.write_bytes(path.read_bytes()[:-20])
    for words in (("up", node, "--detach"), ("up", node)):
        said = warren(*words, code=3).said
        assert f"{path} at byte 0" in said
        assert f"from a backup of {node}" in said
    with pytest.raises(CorruptRecord, match="restore"):
        open_node(node)


@pytest.mark.parametrize("command", ["check", "status", "stop", "top"])
def test_what_is_no_data_directory_is_said(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    assert f"no such directory: {tmp_path / 'missing'}" in warren(command, tmp_path / "missing", code=3).said
    for name, why in (("empty", "has no node.json"), ("file", "is a file")):
        said = warren(command, tmp_path / name, code=3).said
        assert f"{tmp_path / name} is not a data directory of Warren (it {why}" in said


def test_foreground_and_signals(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "warren", "up", tmp_path / "node", "--workers", "1", *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "is up" in line
    assert "or Ctrl-C" in line
    assert str(process.pid) in line
    process.send_signal(signal.SIGTERM)
    _out, said = process.communicate(timeout=60)
    assert process.returncode == 0
    slow = "warren: waiting: "  # on a busy machine the start takes longer than a person waits without a word
    lines = [line for line in said.splitlines() if not line.startswith(slow)]
    assert all(f" info supervisor[{process.pid}]: " in line for line in lines), said
    assert "ends: SIGTERM came" in lines[-1]
    shared_id = NodeDirectory(tmp_path / "node").shared_id
    assert region.posix_names(names.node_prefix(shared_id)) == []


def test_detach_fails_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    assert "thesis.tex" in warren("up", tmp_path / "mine", "--detach", code=2).said
    assert "power of two" in warren("up", tmp_path / "new", "--detach", "--set", "ring_records=100", code=2).said
    for detach in ("--detach", "--foreground"):
        for change in ("bad=1", "workers=x", "index_rows=1099511627776"):
            said = warren("up", tmp_path / "new" / "deep", detach, "--set", change, code=2).said
            assert change.partition("=")[0] in said
    assert not (tmp_path / "new").exists()  # a refused start leaves nothing
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "node.json").write_text('{"format_version": 99}')
    assert "newer Warren" in warren("up", tmp_path / "newer", "--detach", code=3).said


def test_detach_of_a_node_that_runs(directory: Path) -> None:
    assert "in use by process" in warren("up", directory, "--detach", code=2).said
    assert "runs for" in warren("up", directory, "--detach", "--adopt").stdout


def test_a_killed_supervisor_is_followed_by_itself(tmp_path: Path) -> None:
    """Nobody starts anything: the store server sees that its supervisor is gone and starts another."""
    node = tmp_path / "node"
    warren("up", node, "--detach", "--workers", 1, *SMALL)
    with ControlClient(node) as client:
        old = client.call("status")["processes"]
        os.kill(old[0]["pid"], signal.SIGKILL)
        new = wait_until(
            lambda: (found := client.call("status", timeout=30)["processes"])[0]["pid"] != old[0]["pid"] and found,
            30,
            what="a new supervisor",
        )
    assert [item["pid"] for item in new[1:]] == [item["pid"] for item in old[1:]]
    warren("stop", node)


def test_stop_by_force(tmp_path: Path) -> None:
    node = tmp_path / "node"
    warren("up", node, "--detach", "--workers", 1, *SMALL)
    warren("queue", "declare", node, "q")
    warren("publish", node, "q", given="kept\n")
    assert warren("stop", node, "--force", "--json").json()["stopped"]  # type: ignore[index]
    warren("up", node, "--detach")
    assert warren("consume", node, "q", "--count", 1, "--timeout", 10).stdout == "kept\n"
    warren("stop", node)


def stressed_s() -> float:
    """A busy machine takes that long to confirm something, and to kill somebody."""
    return 8 * min(2.5, patience())


@pytest.mark.crash
def test_stress_with_kills_counts_every_message(tmp_path: Path, seed: int) -> None:
    kill = ("--kill", "producer,consumer,store,worker", "--kill-every", 0.8)
    words = ("--seconds", stressed_s(), "--backlog-max", 20_000, *kill, "--seed", seed, "--json")
    verdict = warren("stress", *words, environment={"TMPDIR": str(tmp_path)}).json()
    assert isinstance(verdict, dict)
    assert verdict["good"]
    assert verdict["confirmed"] > 0
    assert sum(verdict["kills"].values()) > 0
    assert (verdict["lost"], verdict["doubled"], verdict["foreign"]) == (0, 0, 0)


@pytest.mark.crash
def test_stress_of_a_topic_with_kills_counts_every_message(tmp_path: Path, seed: int) -> None:
    kill = ("--kill", "producer,consumer,topics", "--kill-every", 0.8)
    words = ("--topic", "--seconds", stressed_s(), *kill, "--seed", seed)
    verdict = warren("stress", *words, "--json", environment={"TMPDIR": str(tmp_path)}).json()
    assert isinstance(verdict, dict)
    assert verdict["good"]
    assert verdict["confirmed"] > 0
    assert sum(verdict["kills"].values()) > 0


def test_a_pipe_that_closes_is_no_error(directory: Path) -> None:
    script = f"{sys.executable} -m warren status {directory} | true; exit ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (found.returncode, without_waiting(found.stderr)) == (0, "")
