"""Goal: `warren check` and `--repair` on the data directory of a real node, up, killed or stopped; it serves the rest.

Method: the command line as processes; bodies large enough for the message store; bytes changed by hand in between.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import warren as api
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel import quarantine, segment
from warren.engine.kernel.formats import FILE_STORE, KIND_MESSAGE
from warren.engine.store import scanning
from warren.workers.cli.check import _copied_while_it_ran

from support.command_line import warren
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration

SMALL = (
    *("--set", "file_bytes=1048576", "--set", "arena_bytes=1048576", "--set", "message_bytes_max=400000"),
    *("--set", "ring_records=256", "--set", "delivery_slots=256"),
)
COUNT, LENGTH = 400, 6000


def check(node: Path, *more: object, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(warren("check", node, "--json", *more, code=code).stdout)
    return found


def line(n: int) -> str:
    return f"{n:08d}" + "x" * LENGTH


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """A node that runs, with messages in its store."""
    directory = tmp_path / "node"
    warren("up", directory, "--detach", "--workers", 1, *SMALL)
    warren("queue", "declare", directory, "q")
    warren("publish", directory, "q", given="".join(line(n) + "\n" for n in range(COUNT)))
    yield directory
    if NodeDirectory(directory).locked():
        warren("stop", directory)


def damage(node: Path, number: int, at: int) -> Path:
    """Flip a byte in the body of a message in the middle of a file."""
    path = node / "store" / "persistent" / f"{number}.rdq"
    header = segment.read_header(
        path, kind=FILE_STORE, node_id=NodeDirectory(node).read().node_id, owner=0, file=number
    )
    found, _reason = scanning.scan(path, number, header.salt)
    messages = [item for item in found.items() if item[5] == KIND_MESSAGE]
    with path.open("r+b") as file:
        file.seek(messages[at][1] + 500)
        file.write(b"\xff")
    return path


def test_a_node_that_runs_is_checked_and_not_repaired(node: Path) -> None:
    assert check(node)["problems"] == []
    path = damage(node, 0, 5)
    found = check(node, code=1)
    assert [problem.split(":")[0] for problem in found["problems"]] == [str(path)]
    (part,) = next(item["damage"] for item in found["files"] if item["path"] == str(path))
    assert (part["reason"], part["messages"]) == ("crc", 1)
    before = path.read_bytes()
    refused = warren("check", node, "--repair", code=2)
    assert "stop it with `warren stop" in refused.stderr
    assert path.read_bytes() == before


def test_check_beside_traffic_finds_nothing(node: Path) -> None:
    traffic = subprocess.Popen(
        [sys.executable, "-m", "warren", "publish", str(node), "q"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert traffic.stdin is not None
    for round_ in range(3):
        for n in range(300):
            traffic.stdin.write(line(1000 + 300 * round_ + n) + "\n")
        traffic.stdin.flush()
        assert check(node)["problems"] == []
    traffic.stdin.close()
    assert traffic.wait(60) == 0
    assert check(node)["problems"] == []


def test_check_beside_files_that_come_and_go_finds_nothing(tmp_path: Path) -> None:
    """Files, and the list of what is in them, change between two looks: that is no damage."""
    settings = ("file_bytes=262144", "message_bytes_max=100000", "journal_files_max=2", "arena_bytes=1048576")
    small = [word for setting in settings for word in ("--set", setting)]
    over = threading.Event()

    def traffic() -> None:
        with api.attach(tmp_path / "node") as client:
            queue = client.queue("q")
            while not over.is_set():
                queue.put_many([bytes(20_000)] * 20 + [bytes(100)] * 200)
                left = 200
                while left:
                    messages = queue.get_many(left, timeout=60.0)
                    queue.ack(messages)
                    left -= len(messages)

    warren("up", tmp_path / "node", "--detach", *small)
    try:
        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(traffic)
            try:
                for _ in range(8):
                    assert check(tmp_path / "node")["problems"] == []
            finally:
                over.set()
            done.result(120)
    finally:
        warren("stop", tmp_path / "node")


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_repair_and_a_start_that_serves_the_rest(node: Path, how: str) -> None:
    if how == "stopped":
        warren("stop", node)
    else:
        processes = json.loads(warren("status", node, "--json").stdout)["processes"]
        for process in processes:  # first all of them stand still, or they start each other
            os.kill(process["pid"], signal.SIGSTOP)
        for process in processes:
            os.kill(process["pid"], signal.SIGKILL)
        wait_until(lambda: not NodeDirectory(node).locked(), 20, what="the end of the node")
    path = damage(node, 0, 7)
    content = path.read_bytes()
    assert len(check(node, code=1)["problems"]) == 1
    shown = warren("check", node, code=1).stdout
    assert "PROBLEM" in shown
    assert "bytes" in shown
    assert path.read_bytes() == content
    found = check(node, "--repair")
    assert (found["ok"], len(found["repaired"]) > 0) == (True, True)
    assert not path.exists()
    assert (path.parent / "quarantine" / "0.rdq").read_bytes() == content
    assert quarantine.entries(path.parent)[0].file == "0.rdq"
    assert check(node)["problems"] == []
    assert check(node, "--repair")["repaired"] == []
    warren("up", node, "--detach")
    taken = warren("consume", node, "q", "--count", COUNT - 1, "--timeout", 20).stdout.splitlines()
    assert taken == [line(n) for n in range(COUNT) if n != 7]
    assert check(node)["problems"] == []


def test_a_start_names_damage_of_the_last_record_of_a_journal_as_check_does(tmp_path: Path) -> None:
    """After a stop in good order it is no torn tail. The start blames the journal, and not the mark of the stop."""
    node = tmp_path / "node"
    with api.open(node, workers=1) as opened:
        for n in range(10):
            opened.queue("q").put(b"small %d" % n)
    warren("stop", node)
    path = node / "queues" / "worker-0" / "journal" / "0.jnl"
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(content.index(b"small 9"))
        file.write(b"!")
    (problem,) = check(node, code=1)["problems"]
    said = problem.removeprefix(f"{path}: ")
    assert said.startswith("no valid record at byte ")
    with api.open(node) as opened:
        assert [message.body for message in opened.queue("q").browse()] == [b"small %d" % n for n in range(9)]
        (line,) = [line for line in opened.status()["messages"] if "damaged" in line]
        assert f"(journal/{path.name})" in line
    warren("stop", node)
    (entry,) = quarantine.entries(node / "queues" / "worker-0")
    assert (entry.file, entry.reason) == (f"journal/{path.name}", said)
    assert f"byte {entry.start} " in said
    assert check(node, code=1)["problems"] == [problem]


def test_a_file_with_two_names_is_no_sign_of_a_copy(tmp_path: Path) -> None:
    """Linking a journal file as a data file changes one of its times, as keeping the times of an original does."""
    directory = NodeDirectory(tmp_path)
    node = directory.open_or_make({})
    elsewhere = msgspec.structs.replace(node, place=(node.place[0], node.place[1] + 1))
    journal, segments = (tmp_path / "queues/worker-0" / name for name in ("journal", "segments"))
    for folder in (journal, segments):
        folder.mkdir(parents=True)
    (journal / "0.jnl").write_bytes(b"older")
    younger, linked = journal / "1.jnl", segments / "1.dat"
    wait_until(
        lambda: younger.write_bytes(b"x") and younger.stat().st_mtime_ns > (journal / "0.jnl").stat().st_ctime_ns
    )
    written = younger.stat().st_mtime_ns

    def link() -> bool:
        linked.unlink(missing_ok=True)
        linked.hardlink_to(younger)
        return linked.stat().st_ctime_ns > written

    wait_until(link)
    assert not _copied_while_it_ran(directory, elsewhere)
    linked.unlink()
    assert _copied_while_it_ran(directory, elsewhere)


def _fill(queue: api.Queue, confirms: list[api.Confirm[None]], sent: int) -> None:
    while True:
        body = b"%06d" % (sent + len(confirms)) + bytes(20_000)
        confirms.append(queue.put(body, wait=False, timeout=5.0))


def _ended(confirms: list[api.Confirm[None]]) -> int:
    """How many have ended of these, which end one after the other, when the next one does not."""
    for number, confirm in enumerate(confirms):
        try:
            confirm.wait(2.0 * patience())
        except (api.TimedOut, api.DiskFull):
            return number
    return len(confirms)


def test_a_stop_on_a_full_disk_leaves_no_problem(small_disk: Path) -> None:
    """What was refused for want of space is noted, and nothing that was confirmed is missing."""
    directory, ballast, reserve = (small_disk / name for name in ("node", "ballast", "reserve"))
    ballast.write_bytes(bytes(14 << 20))
    reserve.write_bytes(bytes(2 << 20))  # for the start at the end
    small = {"file_bytes": 1 << 20, "disk_free_bytes_min": 0}
    confirmed: list[int] = []
    sent = 0
    notes: list[str] = []
    # The alarm comes with the file that cannot be made. Where it outran what was under way, one more is filled.
    for mebibytes in 14, 12, 10, 8, 6, 4, 2:
        os.truncate(ballast, mebibytes << 20)
        confirms: list[api.Confirm[None]] = []
        with api.open(directory, idle_exit=60, call_timeout=60, profile="small", **small) as node:
            queue = node.queue("q")
            with pytest.raises(api.DiskFull):
                _fill(queue, confirms, sent)
            confirmed += range(sent, sent + _ended(confirms))
        sent += len(confirms)
        warren("stop", directory)
        # on a disk that is fuller still, the stop cannot note it either
        found = [item["note"] or "" for item in check(directory)["files"]]
        notes = [note for note in found if "without a body" in note and "could not finish them before" in note]
        if notes:
            break
    assert confirmed
    assert notes, "some were under way when the disk was full"
    ballast.unlink()
    reserve.unlink()
    there: list[int] = []
    with api.open(directory, idle_exit=60) as node:
        queue = node.queue("q")
        while queue.depth():
            for message in queue.get_many(timeout=60):
                there.append(int(message.body[:6]))
                message.ack()
    assert there == sorted(set(there))
    assert set(confirmed) <= set(there)
    warren("stop", directory)
    assert "without a body" not in json.dumps(check(directory))


#: names that others may give: no UTF-8, what a terminal obeys, a line of its own, what turns a line around, a shell's
NAMES = (
    b"\xff\xfe",
    b"\x1b[31mred\x07",
    b"x\nok       all is well",
    b"\xc2\x9b2J",
    "\u202etxt.\u2066exe".encode(),
    b"$(touch here)`id`",
)


@pytest.mark.parametrize("folder", ["transactions", "store/persistent", "queues/worker-0/journal"])
def test_names_of_files_are_harmless_in_lines_and_json_is_utf8(node: Path, folder: str) -> None:
    warren("stop", node)
    place = node / folder
    place.mkdir(exist_ok=True)
    for name in NAMES:
        descriptor = os.open(os.fsencode(place) + b"/" + name, os.O_CREAT | os.O_WRONLY, 0o600)
        os.close(descriptor)
    for words in (("check",), ("check", "--repair"), ("transactions",)):
        found = json.loads(warren(words[0], node, *words[1:], "--json").stdout)
        if words[0] == "check" or folder == "transactions":
            assert f"{folder}/\\udcff\\udcfe" in str(found).replace("\\\\", "\\") or words[0] != "check"
            assert "\\udcff" in str(found)
        said = warren(words[0], node, *words[1:])
        text = said.stdout + said.said
        assert [c for c in text if not c.isprintable() and c != "\n"] == []
        assert "\nok  " not in text
        if words[0] == "check":
            assert not {"`", "$"} & set(text), text
            lines = [line for line in text.splitlines() if f"{place}/" in line and line.startswith("note     ")]
            assert len(lines) == len(NAMES), text


def test_a_link_with_such_a_name_is_named_without_it(node: Path) -> None:
    warren("stop", node)
    link = node / "store" / "persistent" / "a\x1b[31m`id`\nb"
    link.symlink_to("/nowhere")
    for words in (("up", node), ("check", node, "--repair")):
        said = warren(*words, code=2).said
        assert "a\\x1b[31m\\x60id\\x60\\x0ab is a symbolic link of" in said, said
        assert "\x1b" not in said
    assert "PROBLEM" in warren("check", node, code=1).stdout


@pytest.mark.parametrize("group", [False, True])
def test_what_lies_where_members_make_files_is_named(node: Path, group: bool) -> None:
    """A repair passes by it, and so does a start, but for a link in a sink of a node without a group."""
    warren("stop", node)
    if group:
        warren("up", node, "--detach", "--group", str(os.getegid()))
        warren("stop", node)
    places = ("doorbells", "transactions", "transactions/sink/staged", "queues/worker-0/large")
    for place in places:
        (node / place).mkdir(exist_ok=True, parents=True)
    assert "no problem" in warren("check", node).stdout
    links = [node / place / "1.rdq" for place in places]
    for link in links:
        link.symlink_to("/etc/passwd")
    pipe = node / "queues/worker-0/large" / f"{1:032x}"
    os.mkfifo(pipe)
    word = "note     " if group else "PROBLEM  "
    for words in ((), ("--repair",)):
        found = warren("check", node, *words, code=0 if group else 1).stdout
        for link in links:
            assert f"{word}{link}: a symbolic link of user " in found, found
            assert found.count(f"{link}: ") == 1, "it is reported once"
        assert f"{word}{pipe}: a pipe lies here" in found, found
    if not group:
        assert f"{links[2]} is a symbolic link of" in warren("up", node, "--detach", code=2).said
        links[2].unlink()
    warren("up", node, "--detach")


def test_small_files_that_are_too_large_are_not_read(node: Path) -> None:
    """Sparse, so that a disk has room for them: what Warren writes is never as long."""
    warren("stop", node)
    for name in ("lock", "launch.json", "queues/worker-0/epoch", "store/persistent/clean", "queues/worker-0/files"):
        os.truncate(node / name, 3 << 30)
    limit = "it has 3,221,225,472 bytes, and at most"
    found = warren("check", node, code=1).stdout
    assert f"{node}/queues/worker-0/files: cannot read {node}/queues/worker-0/files: {limit}" in found, found
    assert f"{node}/queues/worker-0: may be an older copy" in found
    os.truncate(node / "node.json", 3 << 30)
    assert f"cannot read {node}/node.json: {limit}" in warren("check", node, code=1).said


def test_damage_of_node_json_is_told_in_plain_words(node: Path) -> None:
    warren("stop", node)
    content = (node / "node.json").read_bytes()
    (node / "node.json").write_bytes(content.replace(b"half_messages_max", b"half^messages_max"))
    said = warren("check", node, code=3).said
    assert "found something else, as after a damaged byte or a change by hand (Object contains unknown field" in said


def test_what_is_left_to_another_user_was_not_repaired(node: Path) -> None:
    warren("stop", node)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    staged = node / "transactions" / "theirs" / "staged"
    staged.mkdir(parents=True)
    os.chown(staged.parent, 1, 1)
    found = check(node, "--repair")
    assert found["repaired"] == []
    assert any(f"{staged.parent}: is left as it is: sink 'theirs' belongs to" in line for line in found["notes"])
