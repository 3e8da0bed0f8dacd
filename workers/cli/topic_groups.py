"""`warren topic groups · lag · seek · delete-group`: groups of readers of topics, and how far they are."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Literal

import click

from warren.engine.catalog.group_topics import GROUP
from warren.engine.errors import UsageError
from warren.engine.saying import command, counted, shown
from warren.workers.cli import output
from warren.workers.cli.attached import attached
from warren.workers.cli.topic_words import DIRECTORY, JSON, NAME, found, moment


def _checked(group: str) -> str:
    """The name of a group. Raises UsageError."""
    if not GROUP.fullmatch(group):
        raise UsageError(f"GROUP {shown(group)}: letters, digits, and _ - % | . are allowed, 1 to 255 of them")
    return group


@click.command("groups")
@DIRECTORY
@click.argument("name", required=False)
@JSON
def list_groups(directory: str, name: str | None, as_json: bool) -> None:
    """List the groups of readers of the topic NAME, or of all topics: how many readers each has now, how many seconds
    ago the reader called whose last call was longest ago, and how many messages are not committed (its lag).
    """
    output.check_seen()
    rows: list[dict[str, Any]] = []
    with found(directory, name or ""), attached(directory, "warren-topic") as node:
        for each in node.topics() if name is None else [name]:
            groups = node.topic(each, create=False).groups()
            rows += [{"topic": each, "group": row.pop("name"), **row} for row in groups]
    if as_json:
        output.print_json(rows)
    elif not rows:
        print("no groups" if name is None else f"topic {output.escaped(name)} has no groups")
    else:
        columns = [output.Column("topic"), output.Column("group"), output.Column("members", True)]
        columns += [output.Column("last call", True), output.Column("lag", True)]
        lines = [
            [row["topic"], row["group"], f"{row['members']:,}", _ago(row["last_call_s"]), f"{row['lag']:,}"]
            for row in rows
        ]
        output.print_rows(columns, lines)


@click.command("lag")
@DIRECTORY
@NAME
@click.argument("group")
@JSON
def show_lag(directory: str, name: str, group: str, as_json: bool) -> None:
    """Show how far a GROUP of readers of the topic NAME is in each queue: what is committed, where the queue ends, how
    many messages lie between, and who reads it.
    """
    output.check_seen()
    with found(directory, name), attached(directory, "warren-topic") as node:
        told = node.topic(name, create=False).group(_checked(group))
    if as_json:
        output.print_json({"topic": name, "group": told.pop("name"), **told})
        return
    members = told["members"]
    print(f"group {output.escaped(group)} of topic {name}: {counted(len(members), 'member')}, lag {told['lag']:,}")
    columns = [output.Column(word, True) for word in ("queue", "committed", "end", "lag")]
    lines = []
    for row in told["queues"]:
        owner = None if row["owner"] is None else members[row["owner"]]
        lines.append(
            [
                str(row["queue"]),
                "–" if row["committed"] is None else f"{row['committed']:,}",
                f"{row['max']:,}",
                f"{row['lag']:,}",
                "–" if owner is None else f"{owner['client']} (process {owner['pid']})",
                _ago(None if owner is None else owner["last_call_s"]),
            ]
        )
    output.print_rows([*columns, output.Column("reader"), output.Column("last call", True)], lines)
    again, dead = told["retry"], told["dead"]
    if again is not None:
        print(f"to be handled again: {counted(again['lag'], 'message')}, {again['delayed']:,} of them later")
    if dead is not None:
        tail = command("topic", "tail", directory, dead["topic"])
        print(f"given up: {counted(dead['messages'], 'message')}; {tail} shows them")


def _ago(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f} s ago"


class _Seek(click.Command):
    """`topic seek`, where an offset below 0 is no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption:
            negative = next((word for word in given if re.fullmatch(r"-[0-9]+", word)), None)
            if negative is None:
                raise
            raise UsageError(f"WHERE {negative}: offsets are not negative: give one from 0 on, or earliest") from None


@click.command("seek", cls=_Seek)
@DIRECTORY
@NAME
@click.argument("group")
@click.argument("where")
@click.option("--queue", type=output.Count(min=0), help="Of this queue alone; default: of all.")
@click.option("--force", is_flag=True, help="Also while it has readers: what they have at hand does not count.")
@JSON
def seek_group(
    directory: str, name: str, group: str, where: str, queue: int | None, force: bool, as_json: bool
) -> None:
    """Set from where a GROUP of readers of the topic NAME goes on. WHERE: earliest, latest, an offset (with --queue),
    or a time as 2026-05-01T12:30 (local; with Z or +02:00: of that zone): the first messages stored then or later.

    Refused while the group has readers, who would go on where they are; with --force they go on at WHERE. A group that
    is not there is made, for readers that come later; the output says so.
    """
    _checked(group)
    place: int | datetime | Literal["earliest", "latest"]
    if where in ("earliest", "latest"):
        place = "latest" if where == "latest" else "earliest"
    elif where.isascii() and where.isdigit():
        if queue is None:
            raise UsageError(f"{shown(where)} is an offset, and offsets are a queue's: name it with --queue")
        place = int(where)
    else:
        place = moment("WHERE", where, "earliest, latest, an offset, or ")
    with found(directory, name), attached(directory, "warren-topic") as node:
        topic = node.topic(name, create=False)
        new = all(row["name"] != group for row in topic.groups())
        offsets = topic.seek_group(group, place, queue, force=force)
    if as_json:
        told = {str(of): offset for of, offset in offsets.items()}
        output.print_json({"topic": name, "group": group, "created": new, "offsets": told})
        return
    if new:
        print(f"group {output.escaped(group)} is new: topic {name} had none of that name")
    print(f"group {output.escaped(group)} of topic {name} {'begins' if new else 'goes on'} at:")
    output.print_rows(
        [output.Column("queue", True), output.Column("offset", True)],
        [[str(of), f"{offset:,}"] for of, offset in offsets.items()],
    )


@click.command("delete-group")
@DIRECTORY
@NAME
@click.argument("group")
@click.option("--force", is_flag=True, help="Also its messages that would come again, and its dead letters.")
@JSON
def delete_group(directory: str, name: str, group: str, force: bool, as_json: bool) -> None:
    """Forget a GROUP of readers of the topic NAME, and how far it is; the messages of the topic stay. A group of that
    name that comes later begins anew.

    Refused while it has readers, and while messages of its own are there, which go with it: use --force for those.
    """
    with found(directory, name), attached(directory, "warren-topic") as node:
        topic = node.topic(name, create=False)
        told = topic.group(_checked(group))
        again = 0 if told["retry"] is None else told["retry"]["lag"]
        dead = 0 if told["dead"] is None else told["dead"]["messages"]
        if (again or dead) and not force:
            raise UsageError(
                f"group {shown(group)} of topic {shown(name)} has {counted(again, 'message')} that would come again, "
                f"and {counted(dead, 'dead letter')}: with --force they go with it; "
                f"{command('topic', 'lag', directory, name, group)} says where they are"
            )
        topic.delete_group(group)
    if as_json:
        output.print_json({"topic": name, "group": group, "retry": again, "dead": dead})
        return
    gone = f", with {counted(again, 'message')} that would have come again" if again else ""
    gone += f"{' and' if gone else ', with'} {counted(dead, 'dead letter')}" if dead else ""
    print(f"group {output.escaped(group)} of topic {name} deleted{gone}")


COMMANDS = (list_groups, show_lag, seek_group, delete_group)
