"""`warren topic …`: topics of a node, their messages, from and to a terminal or a pipe.

Reading takes nothing away: what is printed stays in the topic. While a node runs nobody is asked for it.
"""

from __future__ import annotations

import base64
import glob
import heapq
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from warren.engine.catalog.group_topics import Owner, is_declared, owner_of
from warren.engine.catalog.names import GROUP_TOPICS
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.catalog.topics import TOPIC_QUEUES, TOPIC_QUEUES_MAX
from warren.engine.errors import UsageError
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.saying import counted, shown
from warren.engine.topics import newest_files, units
from warren.engine.topics.names import node_bytes
from warren.workers.cli import output, topic_exchanges, topic_groups, topic_halves, topic_replay
from warren.workers.cli.attached import CONFIRM, CONFIRM_TIMEOUT, attached, awaited, given_time, note_failed
from warren.workers.cli.consent import consented
from warren.workers.cli.lines import Lines
from warren.workers.cli.shell_texts import for_the_command_line
from warren.workers.cli.topic_words import DIRECTORY, JSON, NAME, check_not_of_a_group
from warren.workers.cli.topic_words import found as _found
from warren.workers.cli.topic_words import moment as _moment
from warren.workers.cli.topic_words import not_there as _not_there
from warren.workers.process.control import ControlClient
from warren.workers.process.exit_codes import EXIT_TIMEOUT

if TYPE_CHECKING:
    import warren
    from warren.engine._core import Position, Record
    from warren.workers.faces.topics import Topic

LINES = click.option("--json", "as_json", is_flag=True, help="The same as --format json: an object per line.")
FORMAT = click.option("--format", "style", type=click.Choice(["raw", "json"]), default="raw", show_default=True)
#: messages that are read of a queue at once
READ = 256
#: how often topics of several queues are looked at, where there is nothing to print
LOOK_S = 0.05
LATEST_MS = 1 << 53  #: milliseconds since 1970: later than any message
_EARLIEST, _LATEST = "earliest", "latest"


def _rows(directory: str, pattern: str | None) -> list[dict[str, Any]]:
    """What the node says of topics whose names match. When their worker has failed, people are told so."""
    with ControlClient(directory, output.waiting) as client:
        report = client.call("status", pattern=pattern)
    found: list[dict[str, Any]] = report["topics"]
    if found:
        note_failed(directory, report, [("topic_worker", row["index"]) for row in report["processes"]])
    return found


@click.group(cls=output.Group)
def topic() -> None:
    """Declare, list, append to, read and delete topics: logs that are read again and again."""


for _command in (*topic_groups.COMMANDS, *topic_halves.COMMANDS, *topic_exchanges.COMMANDS, *topic_replay.COMMANDS):
    topic.add_command(_command)


@topic.command("create")
@DIRECTORY
@NAME
@click.option(
    "--queues",
    type=output.Count(1, TOPIC_QUEUES_MAX),
    help=f"Queues, each in order by itself. Default: {TOPIC_QUEUES}, or as many as it has.",
)
@click.option("--retention-s", type=output.Seconds(min=0, min_open=True), help="Messages go when they are older.")
@click.option("--retention-bytes", type=output.Bytes(min=1), help="The oldest go when all take more of the log.")
@click.option("--compacted", is_flag=True, help="Keep the newest message of each key; there is no retention then.")
@JSON
def create_topic(
    directory: str,
    name: str,
    queues: int | None,
    retention_s: float | None,
    retention_bytes: int | None,
    compacted: bool,
    as_json: bool,
) -> None:
    """Declare a topic. One that already exists with as many queues, and the retention that is given, is left as it
    is; `warren topic set` changes its retention. Without one all messages stay, and files of the log with them.

    Times and sizes can have units: 90s, 12h, 7d; 500M, 10G (10 GiB).
    """
    told: dict[str, Any] = {"queues": queues, "retention_s": retention_s, "retention_bytes": retention_bytes}
    told["compacted"] = compacted or None
    as_it_is = all(value is None for value in told.values())
    with output.found_in(directory, topic=name), ControlClient(directory, output.waiting) as client:
        answer = client.call("declare_topic", name=name, as_it_is=as_it_is, **told)
    if as_json:
        output.print_json(answer)
        return
    text = "declared" if answer["created"] else "exists already"
    print(f"topic {name} {text} ({counted(answer['topic']['queues'], 'queue')})")


class _OrNone(click.ParamType[Any]):
    """What another type takes, or the word none."""

    def __init__(self, other: click.ParamType[Any]) -> None:
        self._other = other
        self.name = f"{other.name}|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "none":
            return value
        try:
            return self._other.convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message.rstrip('.')}; or the word none.", param, ctx)


@topic.command("set")
@DIRECTORY
@NAME
@click.option(
    "--retention-s",
    type=_OrNone(output.Seconds(min=0, min_open=True)),
    help="Messages go when they are older; 'none': they stay.",
)
@click.option(
    "--retention-bytes",
    type=_OrNone(output.Bytes(min=1)),
    help="The oldest go when all take more of the log; 'none'.",
)
@JSON
def set_topic(
    directory: str, name: str, retention_s: float | str | None, retention_bytes: int | str | None, as_json: bool
) -> None:
    """Give a topic another retention. What is not given stays. It counts for the messages that are there, too.

    Times and sizes can have units: 90s, 12h, 7d; 500M, 10G (10 GiB).
    """
    given = {"retention_s": retention_s, "retention_bytes": retention_bytes}
    told: dict[str, Any] = {
        key: None if value == "none" else value for key, value in given.items() if value is not None
    }
    if not told:
        raise UsageError("give --retention-s or --retention-bytes, or both; 'none' takes it away")
    with _found(directory, name), ControlClient(directory, output.waiting) as client:
        answer = client.call("set_topic", name=name, **told)
    if as_json:
        output.print_json(output.done(answer, "changed"))
        return
    print(f"topic {name}: {_retention(answer['topic'])}")


def _retention(row: dict[str, Any]) -> str:
    """What goes of a topic, in words."""
    said = []
    if row["retention_s"] is not None:
        said.append(f"messages older than {row['retention_s']:,g} s")
    if row["retention_bytes"] is not None:
        said.append(f"the oldest beyond {output.bytes_text(row['retention_bytes'])} of log")
    if row["compacted"]:
        said.append(
            f"all but the newest message of each key ({output.bytes_text(row['compacted_bytes'])} beside the log)"
        )
    return f"removes {', and '.join(said)}" if said else "keeps all messages"


@topic.command("list")
@DIRECTORY
@click.argument("pattern", required=False)
@click.option("--all", "all_of_them", is_flag=True, help="Those, too, that belong to groups: %RETRY%…, %DLQ%….")
@JSON
def list_topics(directory: str, pattern: str | None, all_of_them: bool, as_json: bool) -> None:
    """List topics with their queues and counts: all, or those whose names match PATTERN (*, ?, [abc]). A name that is
    not there is an error, a pattern that matches none is not. Topics that belong to groups of readers are shown with
    --all, or when PATTERN begins with %.

    `messages` can be read; `appended` counts those, too, that are gone; `delayed` ones are to come later,
    `halves` are neither committed nor rolled back.
    """
    output.check_seen()
    rows = _rows(directory, pattern)
    if not rows and pattern is not None and glob.escape(pattern) == pattern:
        raise _not_there(directory, pattern)
    if not all_of_them and not (pattern or "").startswith(GROUP_TOPICS):
        rows = [row for row in rows if is_declared(row["name"])]
    if as_json:
        output.print_json(rows)
    elif not rows:
        print("no topics" if pattern is None else f"no topic has a name like {output.escaped(pattern)}")
    else:
        counts = ("queues", "messages", "appended", "delayed", "halves")
        columns = [output.Column("name"), *(output.Column(word, True) for word in counts)]
        output.print_rows(columns, [[row["name"], *(f"{row[word]:,}" for word in counts)] for row in rows])


@topic.command("describe")
@DIRECTORY
@NAME
@JSON
def describe_topic(directory: str, name: str, as_json: bool) -> None:
    """Show a topic, and of each queue its offsets (the first that is there, and behind the last), the bytes of its
    messages in the log, and the times of the first and the last one.
    """
    output.check_seen()
    rows = _rows(directory, glob.escape(name))
    if not rows:
        raise _not_there(directory, name)
    with _found(directory, name), attached(directory, "warren-topic") as node:
        found = node.topic(name, create=False)
        read = NodeDirectory(directory).read()
        ends = _compacted_ends(node.directory, read.node_id, rows[0])
        entries = read.settings.consume_queue_entries
        queues = [_queue(node, found, queue, entries, end) for queue, end in enumerate(ends)]
        messages = found.stats()["messages"]
    told = {**rows[0], "queues": queues, "messages": messages}
    told["bytes"] = sum(item["bytes"] for item in queues)
    told["bindings"] = topic_exchanges.bindings_of(directory, name)
    if as_json:
        output.print_json(told)
        return
    print(f"topic {name}: {counted(len(queues), 'queue')}, {counted(told['messages'], 'message')}, ", end="")
    later = f"; {counted(told['delayed'], 'message')} to come later" if told["delayed"] else ""
    halves = f"; {counted(told['halves'], 'half message')} (warren topic halves)" if told["halves"] else ""
    print(f"{output.bytes_text(told['bytes'])} of log; id {told['id']}; {_retention(told)}{later}{halves}")
    columns = [output.Column(word, True) for word in ("queue", "min", "max", "bytes")]
    columns += [output.Column("first stored"), output.Column("last stored")]
    lines = [
        [
            *(f"{item[word]:,}" for word in ("queue", "min", "max")),
            output.bytes_text(item["bytes"]),
            *(_time(item[word]) for word in ("first_timestamp", "last_timestamp")),
        ]
        for item in queues
    ]
    output.print_rows(columns, lines)
    for item in told["bindings"]:
        print(topic_exchanges.shown_binding(item))


def _compacted_ends(directory: Path, node_id: int, row: dict[str, Any]) -> list[int]:
    """Up to where another file than the log has the messages of each queue of a topic."""
    if not row["compacted"]:
        return [0] * row["queues"]
    folder = TopicsFolder.of(directory).compacted
    files = newest_files.of_topic(folder, node_bytes(node_id), row["id"], row["queues"])
    return [file.end if file is not None else 0 for file in files]


def _queue(node: warren.Node, found: Topic, queue: int, entries: int, in_log: int) -> dict[str, Any]:
    """What `describe` says of a queue, whose messages from `in_log` on are in the log. Times: milliseconds since 1970,
    None where there is no message.
    """
    first, end = found.offsets(queue)
    folder = TopicsFolder.of(node.directory).queues / found.name / str(queue)
    last = found.offset_at(queue, LATEST_MS, "upper") if first < end else None  # of a compacted topic it may be any
    return {
        "queue": queue,
        "min": first,
        "max": end,
        "bytes": units.bytes_between(folder, entries, max(first, min(in_log, end)), end),
        "first_timestamp": _stored(found, queue, first),
        "last_timestamp": _stored(found, queue, last if last is not None else -1),
    }


def _stored(found: Topic, queue: int, offset: int) -> int | None:
    if offset < 0:
        return None
    records = found.read(queue, offset, max=1, damage="skip").records
    return records[0].timestamp if records else None


def _time(milliseconds: int | None) -> str:
    """A time for people, in local time."""
    if milliseconds is None:
        return "–"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().isoformat(" ", "milliseconds")


# -- appending --------------------------------------------------------------------------------------------------------


@topic.command("append")
@DIRECTORY
@NAME
@click.option("--body", help="Append this text as one message, byte for byte; '-': the whole standard input.")
@click.option("--file", "source", type=click.File("rb", lazy=False), help="What to append; default: standard input.")
@click.option("--whole", is_flag=True, help="Append the whole input as one message, not one per line.")
@click.option("--key", "keys", multiple=True, help="A key by which the messages are found; repeatable.")
@click.option("--tag", help="The tag by which readers choose them.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; repeatable.")
@click.option("--queue", type=output.Count(min=0), help="Queue; default: by the first key, else in turns.")
@click.option("--delay", type=output.Seconds(min=0), help="They come after this many seconds (3 days at most).")
@click.option("--at", metavar="TIME", help="They come at this time, as 2026-05-01T12:30 (local; with Z: UTC).")
@click.option("--delay-level", type=output.Count(1, 18), help="They come after RocketMQ's delay of this level.")
@click.option(
    "--durability",
    type=click.Choice(["none", "written", "synced"]),
    default="synced",
    show_default=True,
    help="What a confirm means.",
)
@CONFIRM_TIMEOUT
@JSON
def append_to_topic(
    directory: str,
    name: str,
    body: str | None,
    source: BinaryIO | None,
    whole: bool,
    keys: tuple[str, ...],
    tag: str | None,
    properties: tuple[str, ...],
    queue: int | None,
    delay: float | None,
    at: str | None,
    delay_level: int | None,
    durability: Any,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Append each line (or the whole) of a file or of standard input to the topic NAME. Keys, tag and properties are
    those of every message. Lines are sent when 1,000 are together or the input pauses, and at Ctrl-C those that were
    read.

    Says where the last message lies, when all are as durable as --durability wants. Of messages that come later it has
    no offset yet (in JSON -1).
    """
    check_not_of_a_group(directory, name, "append")
    when = None if at is None else _moment("--at", at)
    if body is not None and source is not None:
        raise UsageError("--body and --file both name the input: give only one of them")
    given = sys.stdin.buffer if source is None else source
    lines: Lines | None = None
    one = b""
    if body is not None and body != "-":
        one = os.fsencode(body)
    elif whole or body == "-":
        one = given.read()
    else:
        lines = Lines(given)
    told = output.pairs("--property", properties) or None
    began = time.monotonic()
    count = 0
    last: Position | None = None
    with _found(directory, name, makes=True), attached(directory, "warren-append") as node:
        target = node.topic(name, create=False)

        def put(batch: list[bytes]) -> int:
            nonlocal count, last
            each = [list(keys)] * len(batch) if keys else None
            later: dict[str, Any] = {"delay": delay, "at": when, "delay_level": delay_level}
            with awaited(CONFIRM), given_time(timeout):
                last = target.append_many(batch, each, tag, told, queue, durability, timeout=timeout, **later)[-1]
            count += len(batch)
            return len(batch)

        if lines is None:
            put([one])
        else:
            with lines:
                lines.send(put, "appended")
    seconds = time.monotonic() - began
    where = (
        None
        if last is None
        else {word: getattr(last, word) for word in ("queue", "offset", "physical_offset", "message_id")}
    )
    if as_json:
        output.print_json({"appended": count, "seconds": round(seconds, 3), "last": where})
    else:
        tail = "" if where is None else f"; the last one in queue {where['queue']}"
        if where is not None:
            later = where["offset"] == -1
            tail += ", when its time has come" if later else f" at offset {where['offset']}, id {where['message_id']}"
        output.say(f"{counted(count, 'message')} appended in {seconds:.2f} s{tail}", error=True)
    if lines is not None:
        lines.end()


# -- reading ----------------------------------------------------------------------------------------------------------


@topic.command("tail")
@DIRECTORY
@NAME
@click.option("--queue", type=output.Count(min=0), help="Of this queue alone; default: of all, in the log's order.")
@click.option(
    "--start",
    metavar="WHERE",
    help="earliest, latest, an offset (of one queue), or a time as 2026-05-01T12:30 (local; with Z or +02:00: of that "
    "zone). Default: earliest, with --follow latest.",
)
@click.option("--count", type=output.Count(min=1), help="End after this many messages.")
@click.option("--timeout", type=output.Seconds(min=0), help="End when no message arrives for this many seconds.")
@click.option("--follow", is_flag=True, help="Go on with what is appended, without end.")
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; repeatable.")
@FORMAT
@LINES
def tail_topic(
    directory: str,
    name: str,
    queue: int | None,
    start: str | None,
    count: int | None,
    timeout: float | None,
    follow: bool,
    tags: tuple[str, ...],
    style: str,
    as_json: bool,
) -> int:
    """Print messages of the topic NAME, one per line (raw) or as JSON with all that is known of them, and leave them
    there. Without --timeout and --follow: those that are there now.

    In JSON a body that is no UTF-8 is body_base64, and times are milliseconds since 1970.

    Exit code 4 if fewer than --count messages come within --timeout, 1 if some are damaged: they are named, and left
    out.
    """
    output.check_seen()
    if follow and timeout is not None:
        raise UsageError("--follow goes on without end, and --timeout ends: give only one of them")
    with _found(directory, name), attached(directory, "warren-tail") as node:
        source = node.topic(name, create=False)
        reading = _Reading(source, _chosen(source, queue), tags)
        reading.begin(start or (_LATEST if follow else _EARLIEST))
        printed = 0
        for record in reading.messages(None if follow else timeout or 0.0):
            _print(record, "json" if as_json else style)
            printed += 1
            if printed == count:
                break
    if timeout is not None and (printed < count if count is not None else not printed):
        came = f"{printed:,} of {counted(count, 'message')} came, then none" if count and printed else "no message came"
        output.note(f"topic {output.escaped(name)}: {came} within {timeout:g} s")
    if reading.damaged:
        return output.EXIT_ERROR
    return EXIT_TIMEOUT if timeout is not None and count is not None and printed < count else 0


def _chosen(source: Topic, queue: int | None) -> list[int]:
    if queue is None:
        return list(range(source.queues))
    if queue >= source.queues:
        raise UsageError(
            f"--queue {queue}: topic {shown(source.name)} has {counted(source.queues, 'queue')}, from 0 to "
            f"{source.queues - 1}"
        )
    return [queue]


class _Reading:
    """Queues of a topic that are read together, in the order of the log."""

    def __init__(self, source: Topic, queues: list[int], tags: tuple[str, ...]) -> None:
        self._source = source
        self._tags = tags or None
        self._next = dict.fromkeys(queues, 0)
        self.damaged = False

    def begin(self, where: str) -> None:
        """Go to a place in each queue. Raises UsageError."""
        source = self._source
        if where.isascii() and where.isdigit():
            if len(self._next) > 1:
                raise UsageError(
                    f"--start {where} is an offset, and offsets are a queue's: name it with --queue, or give a time"
                )
            at = min(int(where), (1 << 63) - 1)
            self._next = dict.fromkeys(self._next, at)
            ((queue, (first, end)),) = ((queue, source.offsets(queue)) for queue in self._next)
            if at > end:
                output.note(f"queue {queue} of topic {source.name} ends at offset {end:,}: nothing is at {at:,} yet")
            elif at < first:
                gone = "all messages" if first == end else "messages"
                output.note(
                    f"queue {queue} of topic {source.name} begins at offset {first:,}: {gone} before it are gone"
                )
        elif where in (_EARLIEST, _LATEST):
            self._next = {queue: source.offsets(queue)[where == _LATEST] for queue in self._next}
        else:
            moment = _moment("--start", where, "earliest, latest, an offset, or ")
            self._next = {queue: source.offset_at(queue, moment) or 0 for queue in self._next}

    def messages(self, timeout: float | None) -> Iterator[Record]:
        """What is there, and what comes, until nothing came for `timeout` seconds (None: without end)."""
        came_at = time.monotonic()
        while True:
            ends = {queue: self._source.offsets(queue)[1] for queue in self._next}
            parts = [self._range(queue, end) for queue, end in ends.items() if self._next[queue] < end]
            for record in heapq.merge(*parts, key=lambda record: record.physical_offset):
                yield record
                came_at = time.monotonic()
            left = LOOK_S if timeout is None else min(LOOK_S, came_at + timeout - time.monotonic())
            if parts:
                continue
            if left <= 0:
                return
            time.sleep(left)

    def _range(self, queue: int, end: int) -> Iterator[Record]:
        """The messages of a queue below an offset."""
        while (at := self._next[queue]) < end:
            found = self._source.read(queue, at, READ, tag=self._tags, damage="skip")
            for error in found.damaged:
                output.note(output.escaped(for_the_command_line(str(error))))
                self.damaged = True
            for record in found.records:
                if record.offset >= end:
                    break
                yield record
                self._next[queue] = record.offset + 1
            else:
                if found.next_offset <= at:
                    return  # there is less than was said: the topic was put back from a backup meanwhile
                self._next[queue] = found.next_offset
                continue
            self._next[queue] = end


@topic.command("find")
@DIRECTORY
@NAME
@click.option("--key", help="Messages that have this key, the newest first.")
@click.option("--id", "message_id", help="The message with this id, or this UNIQ_KEY.")
@click.option("--since", metavar="TIME", help="Stored at this time or later, as 2026-05-01T12:30 (local time).")
@click.option("--until", metavar="TIME", help="Stored at this time or earlier.")
@click.option("--limit", type=output.Count(1, 1 << 24), default=64, show_default=True, help="Messages at most.")
@FORMAT
@LINES
def find_in_topic(
    directory: str,
    name: str,
    key: str | None,
    message_id: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    style: str,
    as_json: bool,
) -> int:
    """Print messages of the topic NAME by their key or id, as `warren topic tail` does. Exit code 1: there is none."""
    output.check_seen()
    if (key is None) == (message_id is None):
        raise UsageError("give --key or --id: what to look for is one of them")
    if message_id is not None and (since or until):
        raise UsageError("--since and --until go with --key: an id is one message's")
    first = None if since is None else _moment("--since", since)
    last = None if until is None else _moment("--until", until)
    with _found(directory, name), attached(directory, "warren-find") as node:
        source = node.topic(name, create=False)
        if key is not None:
            found = source.find(key, since=first, until=last, limit=limit)
        else:
            assert message_id is not None
            one = source.find_id(message_id)
            found = [] if one is None else [one]
    for record in found:
        _print(record, "json" if as_json else style)
    if not found:
        what = f"key {shown(key)}" if key is not None else f"id {message_id}"
        when = " in that time" if since or until else ""
        output.note(f"topic {output.escaped(name)}: no message has the {what}{when}")
    return 0 if found else output.EXIT_ERROR


def _print(record: Record, style: str) -> None:
    if style == "raw":
        sys.stdout.buffer.write(record.body + b"\n")
        sys.stdout.buffer.flush()
        return
    words = ("queue", "offset", "physical_offset", "message_id", "timestamp", "born_timestamp", "keys", "tag")
    told: dict[str, object] = {word: getattr(record, word) for word in words}
    told["properties"] = record.properties
    try:
        told["body"] = record.body.decode()
    except UnicodeDecodeError:
        told["body_base64"] = base64.b64encode(record.body).decode()
    output.print_json(told)


@topic.command("delete")
@DIRECTORY
@NAME
@click.option(
    "--yes",
    "--force",
    "-y",
    "yes",
    is_flag=True,
    help="Do not ask: the messages go, too; also a group's (%RETRY%…, %DLQ%…) that wait.",
)
@JSON
def delete_topic(directory: str, name: str, yes: bool, as_json: bool) -> None:
    """Delete a topic with its messages: where there are some, it asks. One of that name that is declared afterwards is
    another, and shows none of them.
    """
    with _found(directory, name):
        owner = owner_of(name)
        if owner is not None and not yes:
            _check_nothing_waits(directory, name, owner)
        elif not yes:
            with attached(directory, "warren-topic") as node:
                told = node.topic(name, create=False).stats()
            consented(yes, told["messages"] + told["delayed"] + told["halves"], f"topic {shown(name)}")
        with ControlClient(directory, output.waiting) as client:
            answer = client.call("delete_topic", name=name)
    if as_json:
        output.print_json(output.done(answer))
    else:
        print(f"topic {name} deleted")


def _check_nothing_waits(directory: str, name: str, owner: Owner) -> None:
    """Raises UsageError for a topic of a group's in which messages wait: nobody would handle them."""
    with attached(directory, "warren-topic") as node:
        node.topic(name, create=False)
        told = node.topic(owner.topic, create=False).group(owner.group)
    again, dead = told["retry"], told["dead"]
    waiting, what = (
        (again and again["lag"], "to be handled again")
        if owner.kind == "retry"
        else (dead and dead["messages"], "given up")
    )
    if waiting:
        raise UsageError(
            f"topic {shown(name)} has {counted(waiting, 'message')} {what} by group {shown(owner.group)}: with --yes "
            "it is deleted all the same"
        )
