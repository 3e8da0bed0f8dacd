"""Goal: whatever system call fails, nothing confirmed is lost, nobody hangs, nothing is left; and the campaign that
says so can see it.

Method: a seeded part of the fault campaign (warren.tools.fault) on real nodes, and the cases that once found something.
The library that lets calls fail, and the ledger that judges, are tested by themselves: with calls whose answers are
known, and with logs in which something is wrong.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.tools.bench.harness import real_folder
from warren.tools.fault import __main__ as command
from warren.tools.fault import cases, shim
from warren.tools.fault.__main__ import Campaign
from warren.tools.fault.cases import Case
from warren.tools.fault.ledger import Ledger
from warren.workers.process.exit_codes import EXIT_KILLED

from support.long import rounds
from support.seeds import new_seed

#: cases, with their seeds, that lost something until it was mended
FOUND = (
    ("kill/store/open/store/EIO/1/often/die", 4293759541),  # one refusal, and a file of the store was set aside
    ("stop/store/mmap/sysv/ENOMEM/2/once/lift", 3992839190),  # a client whose segment was refused was taken for gone
    ("kill/store/unlink/store/EIO/6/ever/lift", 2270662113),  # a refused unlink, and no file was made any more
    ("stop/supervisor/pidfd/process/ENOMEM/7/once/lift", 2633739374),  # a living client was swept as dead
    ("work/client/semop/sysv/ENOSPC/2/once/lift", 4070422107),  # close() raised a bare OSError
    ("work/client/malloc/memory/ENOMEM/26/often/lift", 1925050180),  # a reader of a topic raised ValueError
)
CASES, SECONDS = rounds(30), 120.0  # a quiet machine needs 20


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    seed = new_seed()
    made = Campaign(real_folder(None), seed, 1)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.crash
@pytest.mark.parametrize(("text", "seed"), FOUND)
def test_what_was_found_stays_mended(campaign: Campaign, text: str, seed: int) -> None:
    answer = campaign.lanes[0].ask(do="session", cases=[text], seed=seed)
    assert "failed" not in answer, answer
    assert answer["violations"] == [], answer
    assert answer["cases"][0]["violations"] == [], answer
    assert answer["confirmed"] > 100


@pytest.mark.crash
@pytest.mark.parametrize(
    "text",
    [
        "work/store/write/store/ENOSPC/1/ever/lift",
        "work/worker/write/journal/EDQUOT/1/ever/lift",
    ],
)
def test_a_write_without_space_goes_on_when_there_is_some(campaign: Campaign, text: str) -> None:
    """Of a log whose file is there: nothing is lost, and nobody has to start the node again."""
    answer = campaign.lanes[0].ask(do="session", cases=[text], seed=campaign.report.seed)
    assert "failed" not in answer, answer
    assert answer["violations"] == [], answer
    (case,) = answer["cases"]
    assert case["violations"] == [], answer
    assert case["fired"] > 1, answer
    assert not case["started"], answer


@pytest.mark.crash
def test_nothing_confirmed_is_lost(campaign: Campaign) -> None:
    """Of every kind of call some fail, once each."""
    counts = campaign.counts()
    assert {role for _scene, role, _call, _class in counts} >= {
        "supervisor",
        "store",
        "worker",
        "topics",
        "collector",
        "client",
    }
    planned = [case for case in cases.plan(counts, campaign.report.seed) if case.how == "once"]
    assert len(planned) > 1000
    campaign.run(planned, time.monotonic() + SECONDS, CASES)
    assert campaign.report.violations == [], str(campaign.report)
    assert campaign.report.fired.total() > 0
    assert campaign.report.confirmed > 100


SUCCEEDED = """
import os, subprocess, sys, time
from pathlib import Path
from warren.tools.fault import shim
from warren.tools.fault.session import Session

session = Session(shim.Shim.current(), Path(sys.argv[1]), 1)
session.begin()
session.kill("supervisor")
command = [sys.executable, "-m", "warren", "up", session.directory, "--adopt"]
starting = subprocess.Popen(command, env=os.environ | {shim.ROLE_VARIABLE: "supervisor"})
while starting.pid not in session._left():
    time.sleep(0.001)
session.kill_all()
assert not session.violations, session.violations
assert starting.wait(10) != 0
assert not session._left()
assert not session.start()  # and what a killed node leaves goes with an orderly end
session.stop()
assert not session.violations, session.violations
"""


@pytest.mark.crash
def test_a_supervisor_that_is_just_starting_is_killed_too(tmp_path: Path) -> None:
    """It took over what was to be dead, and the campaign said that the node does not end."""
    subprocess.run(
        [sys.executable, "-c", SUCCEEDED, str(tmp_path)],
        env=shim.Shim(tmp_path).environment() | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        check=True,
        timeout=300,
    )


SLOW = """
import json, os, subprocess, sys
import warren
from warren.tools.fault import shim

directory, ruler = sys.argv[1], shim.Shim.current()
ruler.begin(os.path.realpath(directory))
command = [sys.executable, "-m", "warren", "up", "--set", "workers=1", "--stop-timeout", "1", directory]

def up():
    node = subprocess.Popen(command, env=os.environ | {shim.ROLE_VARIABLE: "supervisor"}, stdout=subprocess.PIPE)
    while b"is up" not in node.stdout.readline():
        assert node.poll() is None
    return node

def stop():
    command = [sys.executable, "-m", "warren", "stop", directory]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)

supervisor = up()
with warren.attach(directory) as node:
    node.queue("q").put(b"confirmed", timeout=60)
for number, klass in enumerate(("journal", "pages", "meta")):
    ruler.arm(number, "worker", "sync", klass, "slow", delay_s=600)
stopped = stop()
ruler.lift()
code = supervisor.wait(300)
supervisor = up()
with warren.attach(directory) as node:
    body = bytes(node.queue("q").get(timeout=60).body).decode()
last = stop()
print(json.dumps([stopped.returncode, stopped.stderr, code, body, last.returncode, supervisor.wait(300)]))
"""


@pytest.mark.crash
def test_stop_does_not_call_a_node_stopped_whose_disk_did_not_answer(tmp_path: Path) -> None:
    """A sync of the worker takes longer than `stop_timeout`: it is killed, named, and both commands end with 6."""
    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(tmp_path / "node")],
        env=shim.Shim(tmp_path).environment() | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    code, said, of_node, body, *last = json.loads(done.stdout)
    assert (code, of_node) == (EXIT_KILLED, EXIT_KILLED), said
    assert re.search(r"worker-0 \(process \d+\) did not end, and was killed: it took longer than 1 s; ", said), said
    assert (body, last) == ("confirmed", [0, 0])


# -- the library ------------------------------------------------------------------------------------------------------

PROBE = """
import errno, json, os, sys
from pathlib import Path
from warren.tools.fault import shim

below = Path(sys.argv[1])
ruler = shim.Shim.current()
said = []

def attempt(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]

def write(name, size):
    fd = os.open(below / name, os.O_WRONLY | os.O_CREAT)
    try:
        return attempt(lambda: os.write(fd, bytes(size)))
    finally:
        os.close(fd)

ruler.begin(below)
ruler.arm(0, "client", "write", "store", "ENOSPC", first=2, every=2, times=2)
ruler.arm(1, "client", "write", "journal", "short")
ruler.arm(2, "worker", "sync", "meta", "EIO")
ruler.arm(3, "client", "fork", "process", "EAGAIN", times=1)
said.append([write("store/a", 10) for _ in range(3)])  # without a role nothing fails, and nothing is counted
shim.play("client")
said.append([write("store/a", 10) for _ in range(7)])
said.append([write("queues/worker-0/journal/1.jnl", size) for size in (10, 1024, 2000, 1)])
said.append(attempt(os.fork))
fd = os.open(below, os.O_RDONLY)
os.fsync(fd)
with open("/proc/self/comm", "w") as file:
    file.write("warren-worker-0")
said.append(attempt(lambda: os.fsync(fd)))
ruler.lift()
said.append(attempt(lambda: os.fsync(fd)))
counts = {"/".join(key): number for key, number in ruler.counts().items()}
print(json.dumps([said, counts, [hit.call for hit in ruler.hits()], len(ruler.pids())]))
"""


def test_calls_fail_by_rule_and_role(tmp_path: Path) -> None:
    below = tmp_path / "node"
    (below / "store").mkdir(parents=True)
    (below / "queues" / "worker-0" / "journal").mkdir(parents=True)
    ruler = shim.Shim(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(below)],
        env=ruler.environment() | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, counts, hits, processes = json.loads(done.stdout)
    assert said == [
        [10, 10, 10],
        [10, "ENOSPC", 10, "ENOSPC", 10, 10, 10],
        [5, 512, 512, 1],
        "EAGAIN",
        "EIO",
        None,
    ]
    assert counts["client/write/store"] == 7
    assert counts["client/create/store"] == 7
    assert counts["client/sync/meta"] == 1
    assert counts["worker/sync/meta"] == 2
    assert hits.count("write") == 6
    assert processes == 1


def test_what_does_not_compile_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(shim.ShimError, match="apt-get install gcc"):
        shim.compiled(tmp_path)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(shim.ShimError, match="does not compile"):
        shim.compiled(tmp_path)


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_each_call_has_its_cases() -> None:
    counts = {("work", "store", "sync", "store"): 5, ("work", "client", "read", "meta"): 400}
    planned = cases.plan(counts, 7)
    assert planned == cases.plan(counts, 7)
    assert len(planned) == len(set(planned))
    for error in cases.errors_of("sync", "store"):
        once = [case.first for case in planned if (case.call, case.error, case.how) == ("sync", error, "once")]
        assert sorted(once) == [1, 2, 3, 4, 5]
    many = {case.first for case in planned if (case.call, case.error, case.how) == ("read", "EIO", "once")}
    assert len(many) == cases.EACH_MAX
    assert {1, 400} <= many
    assert not any(case.how == "ever" and case.error == "EINTR" for case in planned)
    assert all(Case.parse(str(case)) == case for case in planned)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("work/store/sync/store/EIO/1/once", "has no after: a case is scene/role/"),
        ("work/store", "has no call and no class and no error"),
        ("work/store/sync/store/EIO/1/once/lift/more", "has 9 fields, and a case has 8"),
        ("work/store/sync/store/EIO/x/once/lift", "has 'x' as the number of the call"),
        ("work/store/sync/store/EIO/0/once/lift", "has '0' as the number of the call"),
        ("work/stores/sync/store/EIO/1/once/lift", "has role 'stores': one of "),
        ("work/store/sync/store/EIO/1/once/left", "has after 'left': one of lift, die"),
        ("work/store/sync/store/EPERM/1/once/lift", "has error 'EPERM': sync of store gives one of EIO"),
    ],
)
def test_a_case_that_cannot_be_replayed_says_what_is_wrong(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--replay", f"work/store/sync/store/EIO/1/once/lift,{text}"])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


# -- the ledger -------------------------------------------------------------------------------------------------------


def _judge(tmp_path: Path, *lines: str) -> Ledger:
    ledger = Ledger()
    path = tmp_path / "log"
    path.write_text("\n".join(lines) + "\n")
    ledger.read(path)
    return ledger


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["i small 1", "r small 1 0", "r small 1 0"], "doubled: small 1"),
        (["i small 1 2", "r small 2 0", "r small 1 0"], "order: small 1 came after 2"),
        (["r small 1 0"], "invented: small 1"),
        (["b small: 9 bytes"], "wrong: small: 9 bytes"),
        (["E put OSError: [Errno 24]"], "foreign error: put OSError"),
        (["t 31.0 get"], "hang: get took 31.0 s"),
    ],
)
def test_the_ledger_complains(tmp_path: Path, lines: list[str], found: str) -> None:
    complaints = _judge(tmp_path, *lines).complaints
    assert len(complaints) == 1
    assert complaints[0].startswith(found)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (["a small 1 2", "z"], ["c small 9", "z"], ["back: small 2 was acked before"]),
        (["a small 1", "z"], ["c small 9", "z"], []),  # the other one was not acked
        (["a small 2", "z"], ["z"], []),  # that it is durable nobody was told
        (["a small 2", "z"], ["c soft 9", "z"], []),  # another journal
        (["a small 2"], ["c small 9", "z"], []),  # it may be under way, as its client did not end well
        (["a small 2", "e close TimedOut: it: 1 s", "z"], ["c small 9", "z"], []),
        (["a soft 2", "z"], ["c small 9", "z"], []),
    ],
)
def test_the_ledger_knows_what_was_acked(tmp_path: Path, first: list[str], second: list[str], found: list[str]) -> None:
    ledger = Ledger()
    put = [f"i {queue} 1 2 9" for queue in ("small", "soft")]
    for number, lines in enumerate([[*put, *first], second, ["r small 2 1", "r soft 2 1", "z"]]):
        path = tmp_path / f"client-{number}.log"
        path.write_text("\n".join(lines) + "\n")
        ledger.read(path)
    assert ledger.complaints == found


def test_the_ledger_knows_that_a_journal_failed(tmp_path: Path) -> None:
    """Nobody waits for an ack: the last ones before a failed write come again after the start that it asks for."""
    ledger = _judge(tmp_path, "i small 1 2", "c small 1 2", "r small 1 0", "a small 1", "z")
    ledger.failed()
    path = tmp_path / "after"
    path.write_text("i small 9\nc small 9\nr small 1 1\nr small 2 0\na small 1 2\nz\n")
    ledger.read(path)
    assert ledger.complaints == []
    path.write_text("i small 10\nc small 10\nr small 1 1\nz\n")
    ledger.read(path)
    assert ledger.complaints == ["back: small 1 was acked before"]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["l 0 1 2", "m synced 0 1:0:100 2:1:200", "n 0 1:0:100 2:1:200"], []),
        (["l 0 1 2", "m synced 0 1:0:100 2:1:200", "n 0"], ["lost: 1 was confirmed", "lost: 2 was confirmed"]),
        (["l 0 1", "m written 0 1:0:100", "n 0 1:0:150"], ["lost: 1 was confirmed in topic 0 at [0, 100]"]),
        (["l 0 1", "m none 0 1:0:100", "n 0 1:0:150"], []),
        (["l 0 1", "n 0 1:0:100", "n 0 1:0:150"], ["lost: topic 0 had 1 at (0, 100), and now at (0, 150)"]),
        (["l 0 1 2", "n 0 1:0:100"], ["torn: of [1, 2] topic 0 has offsets [0]"]),
        (["l 0 1 2", "l 0 3", "n 0 1:0:100 3:1:150 2:2:200"], ["torn: of [1, 2] topic 0 has offsets [0, 2]"]),
        (["l 0 1", "n 0 1:0:100 1:1:200"], ["doubled: topic 0"]),
        (["l 0 1", "n 0 1:1:100"], ["hole: topic 0 has offsets [1]"]),
        (["l 0 1", "n 1 1:0:100"], ["invented: topic 1 has 1"]),
    ],
)
def test_the_ledger_knows_the_topic(tmp_path: Path, lines: list[str], found: list[str]) -> None:
    complaints = _judge(tmp_path, *lines, "z").complaints
    assert all(text.startswith(start) for text, start in zip(complaints, found, strict=False)), complaints
    assert len(complaints) == len(found), complaints


def test_the_ledger_knows_what_is_missing(tmp_path: Path) -> None:
    ledger = _judge(
        tmp_path,
        *("i small 1 2 3", "c small 1 3", "r small 3 0", "r small 3 1"),
        *("i small 10001", "r small 10001 0", "r small 2 0"),  # another publisher's order is its own
        *("w 0a 50", "k 0a", "w 0b 60", "k 0b", "x 0b", "d 0b", "w 0c 70", "x 0c", "d 0c"),
        *("A disk: full", "e put DiskFull: no space", "e put small TimedOut: it: 1 s", "z"),
    )
    assert ledger.complaints == ["order: small 2 came after 3"]
    assert ledger.missing("small") == [1]
    ledger.forgive("small")
    assert ledger.missing("small") == []
    assert ledger.held() == {b"\n": (50, 1), b"\x0b": (60, 0)}  # a write that nobody confirmed may still come
    assert ledger.alarms == ["disk: full"]
    assert ledger.errors == {"DiskFull": 1, "TimedOut": 1}
