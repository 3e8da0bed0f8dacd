"""Goal: what a command says can be done and can be typed: hints fit the command, paths with blanks are quoted, `warren`
is called as the reader can call it, and settings that a running node does not have are refused.

Method: the command line as processes of their own, on a node whose path has a blank; suggested commands are taken out
of the backticks and run.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.config import Settings
from warren.engine.saying import COMMAND_VARIABLE, command, counted
from warren.workers.faces.node import attach
from warren.workers.process.control import ControlClient

from support import command_line
from support.said import without_waiting
from support.waiting import wait_until

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
SMALL = (
    *("--set", "file_bytes=1048576", "--set", "arena_bytes=1048576", "--set", "message_bytes_max=400000"),
    *("--set", "ring_records=256", "--set", "delivery_slots=256"),
)


def run(*words: object, code: int = 0, environment: dict[str, str] | None = None) -> str:
    """Run a command; returns what it printed, standard error first, but for what it waited for."""
    ended = command_line.warren(*words, code=code, environment=environment)
    return without_waiting(ended.stderr) + ended.stdout


def suggested(said: str) -> list[list[str]]:
    """The commands of `warren` that a text suggests, as a shell reads them."""
    return [words[1:] for found in re.findall("`([^`]+)`", said) if (words := shlex.split(found))[0] == "warren"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    chosen = tmp_path_factory.mktemp("hints") / "my node"
    said = run("up", chosen, "--detach", "--workers", 1, *SMALL)
    assert suggested(said) == [["stop", str(chosen)]]
    yield chosen
    run("stop", chosen)


NAMES = {
    "queue delete DIR nope": ("queue", "nothing was deleted"),
    "queue delete DIR nope more": ("queue", "nothing was deleted"),
    "exchange delete DIR nope": ("exchange", "nothing was deleted"),
    "queue purge DIR nope": ("queue", ""),
    "consume DIR nope": ("queue", ""),
    "queue show DIR nope": ("queue", ""),
    "queue unbind DIR nope amq.topic": ("queue", ""),
    "queue unbind DIR kept nope": ("exchange", ""),
    "publish DIR nope --body x": ("queue", "creates it"),
    "publish DIR --exchange nope --body x": ("exchange", "creates it"),
    "queue bind DIR nope amq.topic": ("queue", "creates it"),
    "queue bind DIR kept nope": ("exchange", "creates it"),
}


@pytest.mark.parametrize("line", NAMES)
def test_a_name_that_is_not_there(directory: Path, line: str) -> None:
    """The hint lists the names; only who could declare it first is told so. What is suggested works."""
    run("queue", "declare", directory, "kept")
    thing, word = NAMES[line]
    said = run(*(directory if part == "DIR" else part for part in line.split()), code=2)
    assert f"there is no {thing} 'nope'" in said
    assert word in said
    assert "declare it first" not in said
    hints = suggested(said)
    assert hints[-1] == [thing, "list", str(directory)]
    assert (hints[0][:2] == [thing, "declare"]) == (word == "creates it")
    for hint in hints:
        run(*hint)
    if word == "creates it":
        run(thing, "delete", directory, "nope")


def test_python_is_not_told_to_declare_what_it_deletes(directory: Path) -> None:
    with attach(directory) as node:
        for delete in (lambda: node.delete_queue("nope"), lambda: node.delete_queues(["nope"])):
            with pytest.raises(warren.QueueNotFound, match="nothing was deleted"):
                delete()
        with pytest.raises(warren.ExchangeNotFound, match="nothing was deleted"):
            node.delete_exchange("nope")
        with pytest.raises(warren.QueueNotFound, match="declare it first"):
            node.bind("nope", "amq.topic")


def test_the_type_of_an_exchange_is_an_option(directory: Path) -> None:
    assert "--type topic" in run("exchange", "declare", directory, "events", "topic", code=2)
    assert "'blue'" in run("exchange", "declare", directory, "events", "blue", code=2)
    assert "unexpected" in run("exchange", "declare", directory, "events", "topic", "more", code=2)
    run("exchange", "declare", directory, "events", "--type", "topic")
    run("exchange", "delete", directory, "events")


LINES = "one\ntwo\n"
#: what is wrong of a command line → what is said
SHELL = {
    "publish DIR kept --message-id a": "--message-id is the id of one message, and the input has several lines",
    "publish DIR kept --message-id '' --body x": "--message-id must not be empty",
    "publish DIR kept --property headers=1 --body x": "write --header NAME=VALUE",
    "publish DIR kept --property timestamp=now --body x": "timestamp=now: give a number of seconds since 1970",
    "publish DIR kept --property colour=1 --body x": "there is no property 'colour'",
    "publish DIR kept --ttl 1e13 --body x": "ttl must not reach beyond",
    "publish DIR --exchange '' --routing-key nope --body x": "1 message dropped: there is no queue 'nope'",
    "publish DIR --exchange '' --routing-key nope --mandatory --body x": "queue declare DIR nope` creates it",
    "publish DIR --exchange amq.topic --mandatory --body x": "queue bind DIR QUEUE amq.topic` binds one",
    "queue declare DIR kept more --argument max_length=5": "`warren queue delete DIR kept` first",
    "queue declare DIR kept --argument max_length=5": "`warren queue delete DIR kept` first",
    "queue declare DIR new --argument auto_delete=maybe": "it must be true or false",
    "queue declare DIR new --argument exclusive=true": "so only a program can: leave out the argument exclusive",
    "queue declare DIR new --argument max_length=-1": "it must be a whole number from 0",
    "queue bind DIR kept amq.headers k --argument a=[1]": "give a number, true, false, null (any value) or text",
    "queue bind DIR kept amq.headers k --argument x-match=some": "choose one of all, any",
    "exchange declare DIR amq.topic": "exists as topic, durable",
    "consume NONE kept": "no node runs for NONE: start one with `warren up NONE`",
    "status NONE": "no node runs for NONE: start one with `warren up NONE`",
    "up DIR --adopt --set colour=1": "there is no setting 'colour'",
}
#: what only a program can do
OF_PYTHON = re.compile(
    r"node\.[a-z]|warren\.(open|attach|aio)|[a-z]=…|=False|=True|None|True or|datetime|a list of|a mapping|str or|"
    r"without mandatory|in a program"
)


def down(path: Path) -> Path:
    """A data directory whose node does not run."""
    directory = NodeDirectory(path)
    directory.lock(making=True)
    try:
        directory.open_or_make({})
    finally:
        directory.unlock()
    return path


@pytest.mark.parametrize("line", SHELL)
def test_advice_in_a_shell_is_for_a_shell(directory: Path, tmp_path: Path, line: str) -> None:
    run("queue", "declare", directory, "kept")
    none = down(tmp_path / "none")
    places = {"DIR": str(directory), "NONE": str(none)}
    words = [places.get(word, word) for word in shlex.split(line)]
    program = [sys.executable, "-m", "warren", *words]
    ended = subprocess.run(program, input=LINES, capture_output=True, text=True, timeout=100)
    assert ended.returncode in (1, 2, 3), ended.stdout + ended.stderr
    said = ended.stderr.replace(shlex.quote(str(directory)), "DIR").replace(str(none), "NONE")
    assert SHELL[line] in said
    assert not OF_PYTHON.search(said), said
    assert run("peek", directory, "kept") == "", "nothing was published"


def test_a_program_is_told_what_a_program_can_do(tmp_path: Path) -> None:
    with pytest.raises(warren.NodeNotRunning, match=r"start one with `.*warren up .*` \(in a program: warren\.open\)"):
        warren.attach(down(tmp_path / "none"))


def test_a_list_has_a_heading(directory: Path) -> None:
    run("queue", "declare", directory, "kept")
    run("queue", "bind", directory, "kept", "amq.topic", "a.#")
    heading, *rows = run("exchange", "list", directory).splitlines()
    assert heading.split() == ["name", "type", "kind", "alternate", "bindings"]
    assert rows[0].split()[:3] == ["(default)", "direct", "durable"]
    (topic,) = (row for row in rows if row.startswith("amq.topic "))
    assert topic.endswith("kept ('a.#')")
    assert topic.index("topic", 4) < topic.index("kept") == heading.index("bindings")
    for words in (("queue", "list", directory), ("queue", "list", directory, "--all")):
        assert run(*words).split()[0] == "name"


def test_consume_says_that_nothing_came(directory: Path) -> None:
    run("queue", "declare", directory, "few")
    assert "no message arrived within 0.1 s" in run("consume", directory, "few", "--timeout", 0.1)
    assert "no message arrived within 0.1 s" in run("consume", directory, "few", "--timeout", 0.1, "--count", 2, code=4)
    run("publish", directory, "few", "--body", "x")
    said = run("consume", directory, "few", "--timeout", 0.1, "--count", 2, code=4)
    assert "1 of 2 messages arrived" in said
    run("publish", directory, "few", "--body", "x")
    assert run("consume", directory, "few", "--timeout", 0.1) == "x\n"


@pytest.mark.parametrize("words", ["status DIR --timeout", "stop DIR --timeout", "consume DIR few --timeout"])
def test_times_that_are_none(directory: Path, words: str) -> None:
    for wrong in ("nan", "-1"):
        said = run(*(directory if part == "DIR" else part for part in words.split()), wrong, code=2)
        assert "--timeout" in said


def test_times_without_end(directory: Path, tmp_path: Path) -> None:
    run("status", directory, "--timeout", "1e9")
    with warren.open(directory, timeout=float("inf"), call_timeout=1e9) as node:
        assert node.ping()["state"] == "running"
    forever = float("inf")
    with warren.open(tmp_path / "new", timeout=forever, idle_exit=forever, call_timeout=forever, workers=1) as node:
        assert node.ping()["state"] == "running"
    run("stop", tmp_path / "new")


def test_inspect_into_a_pipe_cuts_no_heading(directory: Path) -> None:
    said = run("inspect", directory, "servers", "links", "slots")
    for heading in ("sleeping", "processed_n", "eliminated_n", "delivered_n", "delivery_head", "blocked_credit"):
        assert re.search(rf"\b{heading}\b", said), heading
    assert "…" not in said


# -- command lines that are wrong --------------------------------------------------------------------------------------

WRONG = {
    "publish DIR kept hello": ("'hello'", ["publish", "DIR", "kept", "--body", "hello"]),
    "publish DIR": ("name a QUEUE", ["publish", "DIR", "QUEUE"]),
    "publish": ("missing argument 'DIR'", ["publish", "--help"]),
    "publish DIR kept --bdy x": ("no such option '--bdy'", ["publish", "--help"]),
    "publish DIR kept --mandatory --body x": ("--mandatory goes with --exchange", None),
    "publish DIR kept --routing-key x --body x": ("--routing-key goes with --exchange", None),
    "publish DIR kept --transient --durability synced --body x": ("--transient keeps messages in memory only", None),
    "inspect DIR nothing": ("'nothing' is not a valid PARTS: known are collection", ["inspect", "--help"]),
    "publish DIR kept --property colour=red --body x": ("there is no property 'colour'", None),
    "publish DIR kept --property type --body x": ("--property 'type': write NAME=VALUE", None),
    "publish DIR kept --property timestamp=now --body x": ("give a number of seconds since 1970", None),
    "queue declare DIR new --max-length 5": ("written --argument max_length=", None),
    "queue declare DIR new --argument message_ttl=5m": ("a number of seconds from 0 to 3162240000, without", None),
    "queue declare DIR kept --argument max_length=7": (
        "differs: without max_length, not max_length=7: ",
        ["publish", "DIR", "kept"],
    ),
    "queue list DIR nope": ("there is no queue 'nope'", ["queue", "list", "DIR"]),
    "queue lst DIR": ("Did you mean 'list'?", ["queue", "--help"]),
    "topic show DIR t": ("there is no command 'topic show'", ["topic", "describe", "DIR", "t"]),
    "queue describe DIR q": ("there is no command 'queue describe'", ["queue", "show", "DIR", "q"]),
    "publih DIR": ("there is no command 'publih'", ["publish"]),
    "send DIR": ("there is no command 'send'", ["publish"]),
    "purge DIR": ("there is no command 'purge'", ["queue", "purge"]),
    "publish DIR --exchange amq.topic --routing-key k --mandatory --body x": (
        "has no queue for routing key 'k'",
        ["queue", "bind", "DIR", "QUEUE", "amq.topic", "k"],
    ),
    "xyz": ("there is no command 'xyz'", ["--help"]),
    "up DIR": ("with --adopt, a node that runs with these settings", ["stop", "DIR"]),
    "up DIR --detach": ("with --adopt, a node that runs with these settings", ["stop", "DIR"]),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_says_what_to_write(directory: Path, line: str) -> None:
    """In one line, with a command that can be typed; with --json (where there is such an option) as JSON."""
    run("queue", "declare", directory, "kept")
    before = run("queue", "list", directory)
    words = [str(directory) if word == "DIR" else word for word in line.split()]
    code = 1 if "k" in words else 2
    said = run(*words, code=code)
    told, hint = WRONG[line]
    assert told in said
    assert len(said.splitlines()) == 1
    if hint is not None:
        assert [str(directory) if word == "DIR" else word for word in hint] in suggested(said)
    error = json.loads(run(*words, "--json", code=code).splitlines()[-1])
    assert error["error"] in ("UsageError", "DeclarationMismatch", "QueueNotFound", "DirectoryInUse", "Unroutable")
    assert run("queue", "list", directory) == before, "nothing was done"


@pytest.mark.parametrize("words", [(), ("queue",), ("exchange",), ("topic",)])
def test_a_command_without_what_it_is_to_do_shows_its_help(words: tuple[str, ...]) -> None:
    said = run(*words, code=2)
    assert said.startswith("Usage: ")
    assert said.rstrip() == run(*words, "--help").rstrip()


def test_stop_that_does_not_wait(tmp_path: Path) -> None:
    place = tmp_path / "node"
    run("up", place, "--detach", "--workers", 1, *SMALL)
    said = run("stop", place, "--timeout", 0, code=4)
    assert "was told to stop, and is not done after 0 s: it goes on" in said
    assert suggested(said)[-1] == ["stop", str(place)]
    wait_until(lambda: not NodeDirectory(place).locked(), 60, what="the end of the node")


# -- settings of a node that runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", ["--detach", "--foreground"])
def test_settings_that_a_running_node_does_not_have_are_refused(directory: Path, background: str) -> None:
    said = run("up", directory, "--set", "workers=3", "--adopt", background, code=2)
    assert "workers=1, not 3" in said
    assert ["stop", str(directory)] in suggested(said)
    assert "images_n=3, not 4" in run(
        "up", directory, "--workers", 1, "--set", "images_n=4", "--adopt", background, code=2
    )
    assert "runs with workers=1, not 2" in run("up", directory, "--workers", 2, "--idle-exit", 60, background, code=2)
    assert "no setting 'workerz'" in run("up", directory, "--set", "workerz=3", "--adopt", background, code=2)
    for same in (("--workers", 1), ("--set", "workers=0"), ("--set", "file_bytes=1048576"), ()):
        assert "runs for" in run("up", directory, *same, "--adopt", background)
    assert "already, with the --idle-exit of its start" in run("up", directory, "--idle-exit", 60, background)
    with ControlClient(directory) as control:
        assert control.call("settings")["settings"]["workers"] == 1


def test_a_node_that_is_down(tmp_path: Path) -> None:
    """There is nothing to stop, and nothing to start for who wants that; new settings are taken."""
    place = tmp_path / "a node"
    run("up", place, "--detach", "--workers", 1, *SMALL)
    run("stop", place)
    said = run("stop", place, code=3)
    assert "nothing to stop" in said
    assert "warren up" not in said
    assert suggested(run("status", place, code=3)) == [["up", str(place)]]
    assert suggested(run("consume", place, "any", code=3)) == [["up", str(place)]]
    run("up", place, "--adopt", "--set", "images_n=4", "--detach")
    with ControlClient(place) as control:
        assert control.call("settings")["settings"]["images_n"] == 4
    run("stop", place)


# -- how `warren` is called --------------------------------------------------------------------------------------------


def test_a_suggested_command_is_quoted_and_called_as_its_reader_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMAND_VARIABLE, raising=False)
    assert command("up", Path("/a b/c")) == "`warren up '/a b/c'`"
    assert command("stop", "/a") == "`warren stop /a`"
    monkeypatch.setenv(COMMAND_VARIABLE, "/my clone/.venv/bin/warren")
    assert command("status", "/a", "--all") == "`'/my clone/.venv/bin/warren' status /a --all`"


def test_what_is_counted_has_its_plural() -> None:
    assert [counted(n, "message") for n in (0, 1, 2, 2500)] == [
        "0 messages",
        "1 message",
        "2 messages",
        "2,500 messages",
    ]
    assert [counted(n, "body", "bodies") for n in (1, 2)] == ["1 body", "2 bodies"]


def test_the_setup_knows_how_its_caller_calls_warren(tmp_path: Path) -> None:
    """The scripts change the PATH for themselves; what they tell is for the PATH of who called them."""
    script = f'warren_extras="" . {shlex.quote(str(ROOT / "scripts" / "setup"))} && echo "$called_as"'
    bare = os.pathsep.join(
        part for part in os.environ["PATH"].split(os.pathsep) if not (Path(part) / "warren").exists()
    )
    within = os.pathsep.join([str(ROOT / ".venv" / "bin"), bare])
    for place, path, expected in (
        (ROOT, bare, ".venv/bin/warren"),
        (tmp_path, bare, str(ROOT / ".venv" / "bin" / "warren")),
        (tmp_path, within, "warren"),
    ):
        environment = os.environ | {"PATH": path}
        told = subprocess.run(
            ["bash", "-c", script], cwd=place, env=environment, capture_output=True, text=True, timeout=250
        )
        assert told.stdout.strip() == expected, told.stderr


@pytest.mark.parametrize("script", ["demo", "warren-supervisor"])
def test_the_scripts_tell_the_program_how_it_is_called(script: str) -> None:
    assert f'export {COMMAND_VARIABLE}="$called_as"' in (ROOT / "scripts" / script).read_text()


# -- docs --------------------------------------------------------------------------------------------------------------


def test_every_setting_stands_in_the_table_with_its_default() -> None:
    text = (ROOT / "docs" / "operations.md").read_text().split("\n## Settings\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text, re.MULTILINE))
    assert rows.keys() == set(Settings.__struct_fields__)
    for name, told in rows.items():
        assert eval(told.replace("&nbsp;MiB", " * (1 << 20)"), {}) == getattr(Settings(), name), name


def test_the_readme_lists_every_command() -> None:
    from warren.workers.cli.main import COMMANDS

    listed = re.search(r"A command line\*\*: `warren ([^`]+)`", (ROOT / "README.md").read_text())
    assert listed is not None
    assert listed[1].split(" · ") == list(COMMANDS)
