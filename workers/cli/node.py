"""`warren up`, `status`, `stop`, `top`: the life of a node."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from warren.engine import errors
from warren.engine.catalog import ownership
from warren.engine.catalog.node_directory import NodeDirectory, with_places
from warren.engine.config import LOG_FORMATS, LOG_LEVELS, Settings
from warren.engine.errors import (
    ClosedError,
    DirectoryInUse,
    Error,
    NodeNotRunning,
    PeerLost,
    StartFailed,
    TimedOut,
    UsageError,
)
from warren.engine.saying import command, counted, shown
from warren.ipc.region import RegionError
from warren.workers.cli import output
from warren.workers.node.starting import START_TIMEOUT_S
from warren.workers.process import logs, standstill
from warren.workers.process.control import WAIT_MAX_S, WITHIN, ControlClient
from warren.workers.process.exit_codes import EXIT_KILLED, EXIT_TIMEOUT

if TYPE_CHECKING:
    from rich.console import Group

    from warren.workers.node.options import Options

DIRECTORY = click.argument("directory", metavar="DIR")


@click.command()
@DIRECTORY
@click.option(
    "--profile",
    type=click.Choice(["small", "default", "large"]),
    help="Sizes of memory and files; by itself small where default does not fit (docs/containers.md).",
)
@click.option("--workers", type=output.Count(1, 30), help="Queue workers; default: one per core.")
@click.option(
    "--amqp",
    multiple=True,
    metavar="ADDRESS",
    help="Serve AMQP clients at HOST:PORT, a port of 127.0.0.1, tls:HOST:PORT or unix:PATH; repeatable; '' ends that.",
)
@click.option("--group", metavar="NAME", help="Members of this group may use the node, too; '' ends that.")
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="A setting (docs/operations.md); repeatable."
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="What the logs in DIR/log have; default: info.")
@click.option("--log", "log_format", type=click.Choice(LOG_FORMATS), help="Lines of the logs; default: text.")
@click.option("--idle-exit", type=output.Seconds(min=0), metavar="SECONDS", help="End after this long without clients.")
@click.option(
    "--adopt",
    is_flag=True,
    help="Succeed if a node with these settings already runs; take over from a dead supervisor.",
)
@click.option("--successor", is_flag=True, hidden=True)
@click.option("--starting", type=int, default=-1, hidden=True)  # descriptor of the lock of launch.start_successor
@click.option(
    "--stop-timeout", type=output.Seconds(min=0), default=30.0, show_default=True, help="Longest drain, in seconds."
)
@click.option(
    "--start-timeout",
    type=output.Seconds(min=0),
    default=START_TIMEOUT_S,
    show_default=True,
    help="Longest wait for room, or for a folder that another process holds, in seconds; then exit code 4.",
)
@click.option("--quiet", is_flag=True, help="Print nothing when the node is up.")
@click.option(
    "--foreground/--detach", default=True, help="Stay in the foreground (default), or go to the background when up."
)
def up(
    directory: str,
    profile: str | None,
    workers: int | None,
    amqp: tuple[str, ...],
    group: str | None,
    changes: tuple[str, ...],
    log_level: str | None,
    log_format: str | None,
    idle_exit: float | None,
    adopt: bool,
    successor: bool,
    starting: int,
    stop_timeout: float,
    start_timeout: float,
    quiet: bool,
    foreground: bool,
) -> int:
    """Run a node for DIR: store server, queue workers, and the supervisor that keeps them alive.

    DIR is created if it does not exist. Ctrl-C, SIGTERM or `warren stop DIR` shut the node down cleanly.
    """
    settings: dict[str, Any] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise UsageError(f"--set takes NAME=VALUE, not {shown(change)}")
        settings[name.strip()] = value.strip()
    listening = ",".join(amqp) if amqp else None
    given = {
        "profile": profile,
        "workers": workers,
        "amqp": listening,
        "group": group,
        "log_level": log_level,
        "log_format": log_format,
    }
    settings = with_places(settings | {name: value for name, value in given.items() if value is not None})
    from warren.workers.node.options import Options
    from warren.workers.node.supervise import supervise

    options = Options(
        idle_exit,
        adopt or idle_exit is not None,
        successor,
        settings,
        stop_timeout,
        terminal=foreground,
        start_timeout=start_timeout,
        waiting=output.starting,
    )

    def announce(line: str) -> None:
        output.started(line)
        if not quiet:
            output.say(f"warren: {output.escaped_lines(line)}")

    if starting >= 0:
        options = dataclasses.replace(options, locked=lambda: os.close(starting))
    target = NodeDirectory(directory)
    made = target.missing()
    try:
        if foreground:
            return supervise(directory, options, ready=announce)
        return _detached(directory, options, announce, starting)
    except BaseException as error:
        if made:
            target.unmake(made)
        if isinstance(error, DirectoryInUse) and not options.adopt and not target.foreign_lock():
            advice = "with --adopt, a node that runs with these settings is a success"
            raise DirectoryInUse(f"{error}; {advice}") from None
        raise


#: roles of which there may be several
NUMBERED = ("queue_worker", "amqp_gateway")
#: how long `status` and `top` wait for a gateway
GATEWAY_S = 1.0
#: how long a supervisor that is told to stop may take to say that it heard
ASK_S = 1.0
#: what a supervisor in the background says of a start that is not done; all else ends it
_WORKS, _WAITS = "works", "waits"
#: after so long without a word from it a line says where to look
_SILENT_S = 1.5


class _LetGo(Exception):
    """Who started this command cannot wait any longer, and lets the node go on in the background (SIGUSR1)."""


class _Teller:
    """The way in which a supervisor in the background tells who started it how the start goes: lines of JSON, [kind,
    text], on a socket. The last one says that it is up, or what it failed with. When the other end is closed before
    that, he has ended; what he sent before lets the supervisor go on all the same.

    Its servers must not hold the socket, or a supervisor killed during its start would be waited for for ever.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock: socket.socket | None = sock

    def say(self, kind: str, text: str) -> None:
        if self._sock is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `left` says so
                self._sock.sendall(msgspec.json.encode([kind, os.fsencode(text).decode("utf-8", "replace")]) + b"\n")

    def tell(self, kind: str, text: str) -> None:
        """The last line."""
        self.say(kind, text)
        self.close()

    def left(self) -> bool:
        """Whether he has ended, who waits."""
        if self._sock is None:
            return False
        try:
            found = self._sock.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            found = b""
        self.close()
        return not found

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _detached(directory: str, options: Options, announce: Callable[[str], None], starting: int = -1) -> int:
    """Fork a supervisor into the background; returns when it serves, or fails with what it failed with. `starting` is
    the background's only.
    """
    from warren.workers.node.supervise import prepare

    target = NodeDirectory(directory)
    prepare(target, options.changes)
    target.check_logs()
    ours, theirs = socket.socketpair()
    signal.signal(signal.SIGUSR1, _let_go)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        ours.close()
        _background(target, options, _Teller(theirs))
    theirs.close()
    if starting >= 0:
        os.close(starting)
    with ours:
        try:
            kind, text = _hear(ours, pid, target)
        except _LetGo:
            ours.sendall(b"g")
            raise TimedOut(
                f"the node of {target.path} was not up in time and continues in the background (process {pid}): "
                f"{command('status', target.path)} shows its progress, {command('stop', target.path)} ends it"
            ) from None
        except KeyboardInterrupt:
            ours.close()
            output.waiting(f"interrupted: process {pid} is cleaning up")
            os.waitpid(pid, 0)
            raise
    if kind == "up":
        announce(text)
        return 0
    if kind == "TimedOut":  # it goes on
        raise TimedOut(text)
    _pid, status = os.waitpid(pid, 0)
    if text:
        raise errors.by_name(kind, text)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        raise ClosedError(f"the node of {target.path} was stopped before it served: start it again")
    last = logs.last_lines(target.log_file("supervisor"), 3)
    said = f"the node of {target.path} ended before it served:\n{last}"
    if code == EXIT_TIMEOUT:
        raise TimedOut(said)
    failed = StartFailed(said)
    failed.exit_code = code if code > 0 else output.EXIT_ERROR
    raise failed


def _let_go(_number: int, _frame: object) -> None:
    raise _LetGo


def _hear(sock: socket.socket, pid: int, target: NodeDirectory) -> tuple[str, str]:
    """The last word of the supervisor about its start, as (kind, text): empty when it ended without one."""
    received = b""
    sock.settimeout(_SILENT_S)
    while True:
        try:
            part = sock.recv(1 << 16)
        except TimeoutError:
            output.starting(
                f"the supervisor (process {pid}) is preparing the start; see {target.log_file('supervisor')}",
                False,
            )
            sock.settimeout(None)
            continue
        if not part:
            return "", ""
        *lines, received = (received + part).split(b"\n")
        for line in lines:
            kind, text = msgspec.json.decode(line, type=tuple[str, str])
            if kind not in (_WORKS, _WAITS):
                return kind, text
            output.starting(text, kind == _WAITS)
            sock.settimeout(None)


def _background(target: NodeDirectory, options: Options, teller: _Teller) -> NoReturn:
    from warren.workers.node.supervise import supervise

    locked = options.locked

    def log_again() -> None:
        """A start that was refused may have removed the directory before this one had the lock, and its log with it."""
        locked()
        if not os.fstat(1).st_nlink:
            target.make_log()
            logs.redirect(target.log_file("supervisor"))

    options = dataclasses.replace(
        options,
        locked=log_again,
        detached=True,
        close_in_child=teller.close,
        waiting=lambda text, outside: teller.say(_WAITS if outside else _WORKS, text),
        gave_up=lambda text: teller.tell("TimedOut", text),
        no_room=lambda text: teller.tell("NoRoom", text),
        # one that takes over for the servers is theirs, not that of the command which began it
        left=(lambda: False) if options.successor else teller.left,
    )
    code = 1
    try:
        os.setsid()
        os.chdir("/")  # it keeps no file system busy but that of its directory
        target.make_log()
        logs.redirect(target.log_file("supervisor"))
        code = output.run(
            lambda: _told(
                lambda: supervise(target.path, options, ready=lambda line: teller.tell("up", line)), teller, target
            )
        )
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _told(run: Callable[[], int], teller: _Teller, target: NodeDirectory) -> int:
    """Run a supervisor in the background; what it fails with is told to who started it, and to the log."""
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        name = type(error).__name__
        code = output.exit_code(error) if isinstance(error, Error) else None
        teller.tell("Error" if code is None else name, f"{name}: {error}" if code is None else str(error))
        if not logs.begun():
            logs.begin("supervisor", target.log_file("supervisor"), _settings_of(target), streams=True)
            logs.log.error("the start failed: %s", error)
        if code is None:
            logs.log.critical("ends: %s", name, exc_info=True)
        return output.EXIT_ERROR if code is None else code


def _settings_of(target: NodeDirectory) -> Settings:
    """What is known of them when a start fails."""
    try:
        return target.read().settings
    except Error:
        return Settings()


@click.command()
@DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="One line of JSON, with all queues (docs/operations.md).")
@click.option(
    "--all", "everything", is_flag=True, help=f"Show all queues, topics and clients, not only {output.ROWS} of each."
)
@click.option("--timeout", type=output.Seconds(min=0), default=10.0, show_default=True)
def status(directory: str, as_json: bool, everything: bool, timeout: float) -> int:
    """Show processes, clients, queues, topics, store and alarms of a node. Exit code 3 if none runs.

    Shows the queues, topics and clients with the most messages and traffic, ordered by name. The memory of a process
    counts what it shares with others; the bytes of a queue are bodies and headers of its ready and unacked messages.
    """
    NodeDirectory(directory).check_made()
    with ControlClient(directory, output.waiting) as client:
        report = client.call("status", timeout=timeout, most=None if as_json or everything else output.ROWS)
        report = _with_gateways(client.directory, report)
    if as_json:
        output.print_json(report)
        return 0
    console = output.console()
    if not everything:
        console.print(tables(report, console.width))
        return 0
    console.print(_heading(report, console.width))
    topics = [_topics(report)] if report["topics_n"] else []
    gateways = [_gateways(report)] if report["gateways"] else []
    for title, columns, rows, more in (_queues(report, console.width), *topics, *gateways, _clients(report)):
        print(f"\n{title}" if rows else f"\n{title}: none")
        if rows:
            output.print_rows(columns, rows)
        if more:
            print(more)
    console.print(_last(report))
    return 0


@click.command()
@DIRECTORY
@click.option(
    "--timeout",
    type=output.Seconds(min=0),
    default=60.0,
    show_default=True,
    help="Longest wait until it has stopped, in seconds; then exit code 4, and it continues to stop. When given, its "
    "servers may take nearly so long, too, if that is more than `up --stop-timeout` says, before they are killed.",
)
@click.option(
    "--force", is_flag=True, help="Kill the servers instead of letting them finish; confirmed messages are kept."
)
@click.option("--json", "as_json", is_flag=True)
def stop(directory: str, timeout: float, force: bool, as_json: bool) -> int:
    """Shut down the node of DIR and wait until it has stopped. Exit code 3 if none runs, 6 if servers did not end in
    time, and were killed.
    """
    began = time.monotonic()
    given = click.get_current_context().get_parameter_source("timeout") is click.core.ParameterSource.COMMANDLINE
    NodeDirectory(directory).check_made()
    ownership.check_owner(NodeDirectory(directory).path)
    with ControlClient(directory, output.waiting) as client:
        try:
            pid = int(client.call("ping", timeout=max(timeout, ASK_S))["pid"])
        except NodeNotRunning as error:
            if client.directory.in_use():  # it starts, and has said so
                raise
            if foreign := client.directory.foreign_lock():
                raise NodeNotRunning(f"there is nothing to stop: {foreign}") from error
            raise NodeNotRunning(f"no node runs for {client.directory.path}: there is nothing to stop") from error
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            pidfd = -1
        target = client.directory
        try:
            finish_s = WITHIN * timeout if given else None

            def tell(_silence: str) -> None:
                doing = "; ".join(_still(target)) or "the servers are finishing what was submitted"
                output.waiting(f"{doing}; this command waits for at most {timeout:g} s for that; --force kills them")

            with ControlClient(directory, tell) as ending:
                killed, unclean = _ended(ending, timeout, began, force=force, finish_s=finish_s)
            if pidfd >= 0 and not select.select([pidfd], [], [], min(_left(timeout, began), WAIT_MAX_S))[0]:
                raise _not_done(client, timeout)
        finally:
            if pidfd >= 0:
                os.close(pidfd)
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        output.print_json(
            {"dir": str(target.path), "stopped": True, "seconds": seconds, "killed": killed, "unclean": unclean}
        )
    else:
        print(f"warren: the node of {target.path} has stopped ({seconds:.2f} s)")
    for item in killed if not (force or as_json) else ():
        why = f"{item['server']} (process {item['pid']}) did not end, and was killed: {item['why']}"
        output.note(f"{why}; what was confirmed is kept")
    for item in () if as_json else unclean:
        output.note(f"{item['server']} (process {item['pid']}) {item['why']}")
    return EXIT_KILLED if killed and not force else 0


def _left(timeout: float, began: float) -> float:
    return max(0.0, timeout - (time.monotonic() - began))


def _ended(
    client: ControlClient, timeout: float, began: float, **asked: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Stop a node, and wait for its end: the servers that were killed, and those that ended without having saved all.
    Raises TimedOut.
    """
    try:
        if _left(timeout, began) >= ASK_S:
            answer = client.call("stop", timeout=_left(timeout, began), at_end=True, **asked)
        else:  # too little time to wait for the answer: send it anyway
            client.call("stop", timeout=ASK_S, **asked)
            answer = client.call("ended", timeout=_left(timeout, began))
    except TimedOut as error:
        raise _not_done(client, timeout) from error
    except (NodeNotRunning, ClosedError, PeerLost):  # it was stopping, and is gone by now
        return [], []
    return answer["killed"], answer["unclean"]


def _not_done(client: ControlClient, timeout: float) -> TimedOut:
    silence = client.silence()
    why = [silence] if "is stopped" in silence else _still(client.directory)
    path = client.directory.path
    advice = f"{command('stop', path)} waits for it, --force kills its servers"
    return TimedOut(
        f"the node of {path} was told to stop, and is not done after {timeout:g} s: it goes on; "
        f"{'; '.join([advice, *why])}"
    )


def _still(directory: NodeDirectory) -> list[str]:
    """Its servers that somebody has stopped, described."""
    with contextlib.suppress(Error, RegionError), contextlib.closing(directory.superblock()) as superblock:
        return standstill.found(superblock)
    return []  # the node has just ended


@click.command()
@DIRECTORY
@click.option(
    "--interval", type=output.Seconds(min=0.1), default=1.0, show_default=True, help="Seconds between updates."
)
@click.option("--count", type=output.Count(min=1), help="End after this many updates.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON per update.")
def top(directory: str, interval: float, count: int | None, as_json: bool) -> int:
    """Watch a node: the tables of `status`, updated until Ctrl-C."""
    output.check_seen()
    from rich.live import Live

    looks = 0
    NodeDirectory(directory).check_made()
    with ControlClient(directory, output.waiting) as client:
        if as_json:
            while True:
                output.print_json(_with_gateways(client.directory, client.call("status", timeout=10.0)))
                looks += 1
                if looks == count:
                    return 0
                time.sleep(interval)
        console = output.console()
        screen = sys.stdout.isatty()
        report = _with_gateways(client.directory, client.call("status", timeout=10.0, most=output.ROWS))

        def look() -> Group:
            # half of the lines that head and processes leave is for queues, half for clients
            room = (console.height - len(report["processes"]) - 16) // 2 if screen else output.ROWS
            return tables(report, console.width, max(3, min(output.ROWS, room)))

        live = Live(look(), console=console, screen=True, auto_refresh=False) if screen else None
        with live or contextlib.nullcontext():
            while True:
                if live is not None:
                    live.update(look(), refresh=True)
                else:
                    console.print(look())  # for a file or a reader: one after the other, each with its last line
                    sys.stdout.flush()
                looks += 1
                if looks == count:
                    return 0
                time.sleep(interval)
                report = _with_gateways(client.directory, client.call("status", timeout=10.0, most=output.ROWS))


#: what the columns of a queue mean
PLACES = (
    "bytes: bodies and headers of ready and unacked messages. alpha: messages in memory; beta: their bodies on disk; "
    "gamma: what the queue knows of them on disk, too; delta: that on disk alone."
)
#: and that of topics
LAG = (
    "lag: messages that are not committed, of the group that is furthest behind, a moment ago. last call: of the "
    "reader whose last call was longest ago."
)
#: title, columns, rows, and what is said below them
_Part = tuple[str, list[output.Column], list[list[str]], str]


def tables(report: dict[str, Any], width: int, rows: int = output.ROWS) -> Group:
    """The tables of `status` and `top`, for a screen so wide, with so many rows of queues and of clients."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [_heading(report, width)]
    topics = [_topics(report, rows)] if report["topics_n"] else []
    gateways = [_gateways(report)] if report["gateways"] else []
    for title, columns, lines, more in (_queues(report, width, rows), *topics, *gateways, _clients(report, rows)):
        parts += [Text(""), output.table(title, columns, lines) if lines else Text(f"{title}: none")]
        parts += [Text(more)] if more else []
    return Group(*parts, _last(report))


def _heading(report: dict[str, Any], width: int) -> Group:
    """Who the node is, its store, its alarms and its processes."""
    from rich.console import Group
    from rich.text import Text

    colour = {"running": "green", "starting": "yellow", "draining": "yellow"}.get(report["state"], "red")
    head = Text.assemble(
        (output.escaped(report["dir"]), "bold"),
        "  node ",
        report["node_id"],
        f"  epoch {report['epoch']}  ",
        (report["state"], colour),
    )
    store = report["store"]
    used = f" ({100 * store['valid_bytes'] / store['file_bytes']:.0f} %)" if store["file_bytes"] else ""
    parts: list[Any] = [
        head,
        Text(
            f"store: {counted(store['messages'], 'message')}, {counted(store['files'], 'file')}, "
            f"{output.bytes_text(store['valid_bytes'])} live of {output.bytes_text(store['file_bytes'])}{used}"
        ),
    ]
    for alarm in report["alarm_details"]:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(alarm["since"]))
        parts.append(Text(f"ALARM since {since}: {output.escaped(alarm['text'])}", style="bold red"))
    blocked = {why: n for why, n in report["blocked_publishers"].items() if n}
    if blocked:
        waiting = ", ".join(
            f"{n} by {'an alarm' if why == 'alarm' else 'missing credit'}" for why, n in blocked.items()
        )
        parts.append(Text(f"blocked publishers: {waiting}", style="yellow"))
    wide = width >= output.NARROW
    columns = [output.Column(name) for name in ("role", "pid", "state")]
    numbers = ("memory", "restarts", "commands", *(["records"] if wide else []), "commits", "mean commit")
    columns += [output.Column(name, True) for name in numbers]
    lines = []
    for item in report["processes"]:
        rates = item["rates"]
        line = [
            item["role"].replace("_", " ") + (f" {item['index']}" if item["role"] in NUMBERED else ""),
            str(item["pid"] or "–"),
            item["state"]
            + (f" (error {item['error']})" if item.get("error") else "")
            + (" (retiring)" if item.get("retiring") else ""),
            output.bytes_text(item["rss_bytes"]),
            str(item["restarts"]),
            output.rate_text(rates.get("commands_per_s", 0)),
            *([output.rate_text(rates.get("records_per_s", 0))] if wide else []),
            output.rate_text(rates.get("commits_per_s", 0)),
            f"{item['commit_ms_mean']:.2f} ms" if item.get("commits") else "–",
        ]
        lines.append(line)
    return Group(*parts, Text(""), output.table("Processes", columns, lines))


def _queues(report: dict[str, Any], width: int, most: int | None = None) -> _Part:
    """Queues, and below them the subscriptions."""
    wide = width >= output.NARROW
    states = ("alpha", "beta", "gamma", "delta") if wide else ()
    columns = [output.Column("name"), *([output.Column("kind")] if wide else [])]
    numbers = ("ready", "unacked", *states, "bytes", "consumers", "in", "out", "acks")
    columns += [output.Column(name, True) for name in numbers]
    all_of_them = (
        f"{command('status', report['dir'], '--all')}, or {command('queue', 'list', report['dir'], 'PATTERN*')}"
    )
    items = _busiest(report["queues"], most)
    subscriptions = _busiest(report["subscriptions"], most)
    lines = []
    for item in items + [{**item, "name": "  ⤷ " + item["name"]} for item in subscriptions]:
        rates = item["rates"]
        line = [
            item["name"],
            *([kind(item)] if wide else []),
            *(f"{item[key]:,}" for key in ("ready", "unacked", *states)),
            output.bytes_text(item["bytes"]),
            str(item["consumers"]),
            *(output.rate_text(rates[key]) for key in ("published_per_s", "delivered_per_s", "acked_per_s")),
        ]
        lines.append(line)
    count = report["queues_n"] + report["subscriptions_n"]
    below = [line for line in (output.more(len(lines), count, all_of_them), PLACES if wide and lines else "") if line]
    return "Queues", columns, lines, "\n".join(below)


def _topics(report: dict[str, Any], most: int | None = None) -> _Part:
    """Topics; those with most messages when not all are shown."""
    names = ("queues", "messages", "appended", "lag", "last call")
    columns = [output.Column("name"), *(output.Column(name, True) for name in names)]
    items = report["topics"]
    if most is not None and len(items) > most:
        chosen = heapq.nlargest(most, range(len(items)), key=lambda number: int(items[number]["messages"]))
        items = [items[number] for number in sorted(chosen)]
    lines = [
        [
            item["name"],
            *(f"{item[key]:,}" for key in names[:3]),
            f"{max(group['lag'] for group in item['groups']):,}" if item["groups"] else "–",
            _ago([group["last_call_s"] for group in item["groups"]]),
        ]
        for item in items
    ]
    more = output.more(len(lines), report["topics_n"], command("status", report["dir"], "--all"))
    below = [line for line in (more, LAG if any(item["groups"] for item in items) else "") if line]
    return "Topics", columns, lines, "\n".join(below)


def _ago(seconds: list[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    return f"{max(known):.0f} s ago" if known else "–"


def _with_gateways(directory: NodeDirectory, report: dict[str, Any]) -> dict[str, Any]:
    """A report of the supervisor, which waits for nobody, with what the gateways say of themselves."""
    for item in report["gateways"]:
        from warren.workers.amqp import asking

        item["answers"] = False
        if item["pid"]:
            with contextlib.suppress(Error):  # it is starting, ends, or is busy: `answers` says so
                item |= asking.ask(directory.path, item["index"], GATEWAY_S, op="facts") | {"answers": True}
    return report


def _gateways(report: dict[str, Any]) -> _Part:
    """The AMQP gateways."""
    numbers = ("connections", "channels", "blocked", "opened", "refused logins")
    columns = [output.Column("gateway"), output.Column("at"), *(output.Column(name, True) for name in numbers)]
    lines = []
    for item in report["gateways"]:
        at = ", ".join(item["listening"]) if item["answers"] else "does not answer"
        counts = (item.get(f"{name.replace(' ', '_')}_n") for name in numbers[:4])
        line = [str(item["index"]), output.escaped(at), *("–" if n is None else f"{n:,}" for n in counts)]
        refused = item.get("refused_logins_n")
        lines.append([*line, "–" if refused is None else f"{refused:,}"])
    return "AMQP gateways", columns, lines, ""


def _busiest(items: list[dict[str, Any]], most: int | None) -> list[dict[str, Any]]:
    """So many of these queues: those with most messages and traffic, in the order in which they are."""
    if most is None or len(items) <= most:
        return items
    scores = [item["ready"] + item["unacked"] + sum(item["rates"].values()) for item in items]
    chosen = heapq.nlargest(most, range(len(items)), key=lambda number: scores[number])
    return [items[number] for number in sorted(chosen)]


def kind(item: dict[str, Any]) -> str:
    """What becomes of a queue when its node ends, in a word."""
    return "durable" if item["durable"] else "transient"


def _clients(report: dict[str, Any], most: int | None = None) -> _Part:
    """Who is attached; those that are blocked, or have most under way, come before others when not all are shown."""
    columns = [output.Column(name) for name in ("slot", "pid", "name", "state", "under way", "blocked")]
    clients = report["clients"]
    if most is not None and len(clients) > most:
        under_way = {item["slot"]: sum(link["commands"] for link in item["under_way"]) for item in clients}
        clients = heapq.nsmallest(
            most, clients, key=lambda item: (not item["blocked"], -under_way[item["slot"]], item["slot"])
        )
        clients.sort(key=lambda item: int(item["slot"]))
    lines = []
    for item in clients:
        links = ", ".join(f"{link['server']} {link['commands']:,}" for link in item["under_way"] if link["commands"])
        line = [str(item["slot"]), str(item["pid"]), output.escaped(item["name"]), item["state"]]
        lines.append([*line, links or "–", item["blocked"] or "–"])
    hidden = len(report["clients"]) - len(lines)
    more = f"and {hidden:,} more clients: {command('status', report['dir'], '--all')}" if hidden else ""
    return "Clients", columns, lines, more


def _last(report: dict[str, Any]) -> Group:
    """What the node said last."""
    from rich.console import Group
    from rich.text import Text

    if not report.get("messages"):
        return Group()
    return Group(
        Text(""),
        Text("Last messages", style="italic"),
        *(Text(output.escaped(line)) for line in report["messages"][-5:]),
    )
