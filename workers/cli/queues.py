"""`warren queue …`, `warren exchange …`: what is declared in a node."""

from __future__ import annotations

import contextlib
import glob
from typing import Any

import click

from warren.engine.catalog.arguments import QueueArguments, of_text
from warren.engine.catalog.exchanges import EXCHANGE_TYPES
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import QueueNotFound, UsageError
from warren.engine.saying import command, counted, shown
from warren.workers.cli import output
from warren.workers.cli.attached import ANSWER, attached, awaited, note_failed
from warren.workers.cli.bindings import CONDITION, bound, conditions_of, grouped, leads_to, not_bound, values_of
from warren.workers.cli.consent import YES, consented
from warren.workers.cli.inspect import attach
from warren.workers.cli.node import kind
from warren.workers.cli.queue_holders import holders
from warren.workers.process.control import ControlClient

DIRECTORY = click.argument("directory", metavar="DIR")
NAME = click.argument("name")
NAMES = click.argument("names", metavar="NAME...", nargs=-1, required=True)
JSON = click.option("--json", "as_json", is_flag=True, help="One line of JSON.")


ARGUMENT = click.option("--argument", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument; repeatable.")


def _asking(directory: str) -> ControlClient:
    """The supervisor of a directory, to be asked. Raises NodeNotRunning for one that was never a node's."""
    NodeDirectory(directory).check_made()
    return ControlClient(directory, output.waiting)


def _call(directory: str, op: str, **fields: Any) -> dict[str, Any]:
    with _asking(directory) as client:
        return client.call(op, **fields)


def _call_named(directory: str, op: str, **fields: Any) -> dict[str, Any]:
    """The same for what names a queue or an exchange, which may not be there."""
    with output.found_in(directory):
        return _call(directory, op, **fields)


def _done(as_json: bool, answer: dict[str, Any], text: str) -> None:
    if as_json:
        output.print_json(answer)
    else:
        print(text)


@click.group(cls=output.Group)
def queue() -> None:
    """Declare, list, bind, purge and delete queues."""


class _Declare(click.Command):
    """`queue declare`, where the arguments of a queue are no options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            if name not in QueueArguments.__struct_fields__:
                raise
            raise UsageError(f"{error.option_name}: an argument of a queue is written --argument {name}=…") from None


@queue.command("declare", cls=_Declare)
@DIRECTORY
@NAMES
@click.option(
    "--durable/--transient",
    default=True,
    help="Whether queues and messages survive a stop of the node; default: durable.",
)
@ARGUMENT
@JSON
def declare_queue(
    directory: str, names: tuple[str, ...], durable: bool, arguments: tuple[str, ...], as_json: bool
) -> None:
    """Declare queues. Queues that already exist with the same properties are left as they are. Several names are one
    change: all, or none.

    Arguments: message_ttl, expires, ack_timeout, deduplication_window (seconds), max_length, max_length_bytes,
    overflow (drop-head, reject-publish, reject-publish-dlx), dead_letter_exchange, dead_letter_routing_key,
    max_priority (0-255), delivery_limit, single_active_consumer, auto_delete (true or false).
    """
    given = of_text(output.pairs("--argument", arguments))
    if len(names) > 1:
        wanted = [{"name": name, "durable": durable, "arguments": given} for name in names]
        with output.found_in(directory, queues=names):
            answer = _call(directory, "declare_queues", queues=wanted)
        new, old = len(answer["new"]), len(set(names)) - len(answer["new"])
        text = f"{counted(new, 'queue')} declared" + (f", {old} there already" if old else "")
        _done(as_json, answer, text)
        return
    name = names[0]
    with output.found_in(directory, queue=name):
        answer = _call(directory, "declare_queue", name=name, durable=durable, arguments=given)
    text = "declared" if answer["created"] else "exists already"
    kind = "durable" if durable else "transient"
    known = "".join(f", {key}={output.escaped(value)}" for key, value in answer["queue"]["arguments"].items())
    _done(as_json, answer, f"queue {name} {text} ({kind}, worker {answer['queue']['worker']}{known})")


def _ask_for(yes: bool, directory: str, names: tuple[str, ...], undone: str, states: tuple[str, ...]) -> None:
    """Ask for the messages of these queues. Raises UsageError; QueueNotFound, before it asks."""
    if yes:
        return
    with _asking(directory) as client:
        found = [row for name in names for row in client.call("status", pattern=glob.escape(name))["queues"]]
    there = {row["name"] for row in found}
    for name in names:
        if name not in there:
            raise _not_there(directory, name, undone)
    lost = sum(row.get(state) or 0 for row in found for state in states)
    where = f"queue {shown(names[0])}" if len(names) == 1 else counted(len(names), "queue")
    consented(yes, lost, where, undone)


@queue.command("delete")
@DIRECTORY
@NAMES
@click.option("--if-unused", is_flag=True, help="Only if nobody consumes from it; of one queue.")
@click.option(
    "--if-empty", is_flag=True, help="Only if it has no messages but those that consumers hold; of one queue."
)
@YES
@JSON
def delete_queue(
    directory: str, names: tuple[str, ...], if_unused: bool, if_empty: bool, yes: bool, as_json: bool
) -> None:
    """Delete queues with their messages, bindings and subscriptions. Several names are one change: all, or none. Where
    messages are lost, it asks.
    """
    names = tuple(dict.fromkeys(names))
    if (if_unused or if_empty) and len(names) > 1:
        raise UsageError("--if-unused and --if-empty are for one queue: delete one after the other")
    if not if_empty:
        _ask_for(yes, directory, names, "nothing was deleted", ("ready", "unacked", "delayed"))
    if if_unused or if_empty:
        conditions = {"if_unused": if_unused, "if_empty": if_empty}
        answer, text = _call_named(directory, "delete_queue", name=names[0], **conditions), f"queue {names[0]} deleted"
    elif len(names) > 1:
        answer, text = _call_named(directory, "delete_queues", names=names), f"{counted(len(names), 'queue')} deleted"
    else:
        answer, text = _call_named(directory, "delete_queue", name=names[0]), f"queue {names[0]} deleted"
    _done(as_json, output.done(answer), text)


@queue.command("list")
@DIRECTORY
@click.argument("pattern", required=False)
@click.option("--all", "everything", is_flag=True, help=f"Show all queues, not only {output.ROWS}.")
@JSON
def list_queues(directory: str, pattern: str | None, everything: bool, as_json: bool) -> None:
    """List queues with their depths and bindings: all, or those whose names match PATTERN (*, ?, [abc]). A name that is
    not there is an error, a pattern that matches none is not.

    The table shows the queues with the most messages and traffic, ordered by name; --all and --json show all.
    """
    output.check_seen()
    most = None if everything or as_json else output.ROWS
    with _asking(directory) as client:
        report = client.call("status", pattern=pattern, most=most)
        whole = pattern is None and most is None
        shown = None if whole else [item["name"] for item in report["queues"]]
        bindings = grouped(client.call("queues", of=shown)["bindings"], "queue")
    note_failed(directory, report, {("queue_worker", item["worker"]) for item in report["queues"]})
    rows = [{**item, "bindings": bindings.get(item["name"], [])} for item in report["queues"]]
    if not rows and pattern is not None and glob.escape(pattern) == pattern:
        raise _not_there(directory, pattern)
    if as_json:
        output.print_json(rows)
        return
    if not rows:
        print("no queues" if pattern is None else f"no queue has a name like {output.escaped(pattern)}")
        return
    console = output.console()
    wide = console.width >= output.NARROW
    columns = [output.Column(name) for name in ("name", *(("kind", "worker") if wide else ()))]
    columns += [output.Column(name, True) for name in ("ready", "unacked", "bytes", "consumers")]
    columns += [output.Column("bindings"), output.Column("arguments")]
    lines = []
    for row in rows:
        line = [
            row["name"],
            *((kind(row), str(row["worker"])) if wide else ()),
            f"{row['ready']:,}",
            f"{row['unacked']:,}",
            output.bytes_text(row["bytes"]),
            str(row["consumers"]),
            ", ".join(output.escaped(_way(item)) for item in row["bindings"]),
            ", ".join(f"{key}={output.escaped(value)}" for key, value in row["arguments"].items()),
        ]
        lines.append(line)
    if everything:
        output.print_rows(columns, lines)
        return
    console.print(output.table("", columns, lines))
    if more := output.more(len(lines), report["queues_n"], "--all shows them, a PATTERN those that match"):
        print(more)


def _way(item: dict[str, Any]) -> str:
    """A binding of a queue, in a table."""
    conditions = conditions_of(item.get("arguments") or {})
    return f"{item['exchange']}:{item['routing_key']}" + (f" ({conditions})" if conditions else "")


def _not_there(directory: str, name: str, undone: str = "") -> QueueNotFound:
    what = f"there is no queue {shown(name)}: {undone}{'; ' if undone else ''}"
    return QueueNotFound(f"{what}{command('queue', 'list', directory)} shows the names")


@queue.command("show")
@DIRECTORY
@NAME
@JSON
def show_queue(directory: str, name: str, as_json: bool) -> None:
    """Show everything about one queue: arguments, counters, clients that hold unacked messages, bindings,
    subscriptions, waiting dead letters.
    """
    output.check_seen()
    with _asking(directory) as client:
        report = client.call("status", pattern=glob.escape(name))
        bindings = client.call("queues", of=[name])["bindings"]
    found = next((item for item in report["queues"] if item["name"] == name), None)
    if found is None:
        raise _not_there(directory, name)
    note_failed(directory, report, [("queue_worker", found["worker"])])
    with contextlib.closing(attach(directory)) as superblock:
        found["holders"] = holders(superblock, found["id"], found["worker"])
    found["bindings"] = bindings
    found["subscriptions"] = report["subscriptions"]
    found["dead_letters"] = next(iter(report["dead_letters"]), None)
    if as_json:
        output.print_json(found)
        return
    for key, value in found.items():
        if key == "arguments":
            print("arguments:" + ("" if value else " none"))
            for argument, set_to in value.items():
                print(f"  {argument} = {output.escaped(set_to)}")
        elif key == "holders":
            for item in value:
                alone = ", and consumes alone" if item["alone"] else ""
                who = f"{output.escaped(item['client'])} (process {item['pid']})"
                print(f"held by {who}: {counted(item['unacked'], 'message')}{alone}")
        elif key == "bindings":
            for item in value:
                print(f"bound to {item['exchange']} with {bound(item)}")
        elif key == "subscriptions":
            for item in value:
                print(f"subscription {item['name']}: {item['ready']:,} claimed")
        elif key == "dead_letters":
            if value is not None:
                print(f"dead letters on their way: {value['ready'] + value['unacked']:,}")
        elif key == "rates":
            print(", ".join(f"{rate} {number:,}" for rate, number in value.items()))
        elif value is not None:
            print(f"{key}: {value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{key}: {value}")


@queue.command("purge")
@DIRECTORY
@NAME
@YES
@JSON
def purge_queue(directory: str, name: str, yes: bool, as_json: bool) -> None:
    """Drop all ready messages of a queue; delivered and unacked ones stay. Where messages are lost, it asks."""
    _ask_for(yes, directory, (name,), "nothing was dropped", ("ready",))
    with output.found_in(directory), attached(directory, "warren-purge") as node, awaited(ANSWER):
        count = node.queue(name, create=False).purge()
    _done(as_json, {"queue": name, "count": count}, f"queue {name}: {counted(count, 'message')} dropped")


@queue.command("bind")
@DIRECTORY
@NAME
@click.argument("exchange")
@click.argument("routing_key", default="")
@CONDITION
@JSON
def bind_queue(
    directory: str, name: str, exchange: str, routing_key: str, arguments: tuple[str, ...], as_json: bool
) -> None:
    """Route messages of EXCHANGE with ROUTING_KEY to the queue. --argument: headers that a headers exchange matches;
    `warren publish --header shop=7` sends text, which --argument shop='"7"' matches, and --header-json shop=7 a number.
    """
    fields = {"exchange": exchange, "routing_key": routing_key, "arguments": values_of(arguments)}
    with output.found_in(directory, queue=name, exchange=exchange):
        answer = _call(directory, "bind", queue=name, **fields)
    _done(as_json, answer, f"queue {name} is bound to exchange {exchange} with {bound(fields)}")


@queue.command("unbind")
@DIRECTORY
@NAME
@click.argument("exchange")
@click.argument("routing_key", default="")
@CONDITION
@JSON
def unbind_queue(
    directory: str, name: str, exchange: str, routing_key: str, arguments: tuple[str, ...], as_json: bool
) -> None:
    """Remove a binding. One that is not there is an error."""
    fields = {"exchange": exchange, "routing_key": routing_key, "arguments": values_of(arguments)}
    answer = _call_named(directory, "unbind", queue=name, **fields)
    if not answer["removed"]:
        raise not_bound(f"queue {name}", fields, command("queue", "show", directory, name))
    _done(as_json, output.done(answer), f"queue {name} is no longer bound to exchange {exchange} with {bound(fields)}")


@click.group()
def exchange() -> None:
    """Declare, list and delete exchanges."""


@exchange.command("declare", context_settings={"allow_extra_args": True})
@click.pass_context
@DIRECTORY
@NAME
@click.option("--type", "kind", type=click.Choice(EXCHANGE_TYPES), default="direct", show_default=True)
@click.option("--durable/--transient", default=True)
@click.option("--alternate", help="Exchange for messages that this one cannot route.")
@click.option("--internal", is_flag=True, help="It gets what other exchanges send, and nobody publishes to it.")
@click.option("--auto-delete", is_flag=True, help="It is deleted with the last binding of something to it.")
@JSON
def declare_exchange(
    context: click.Context,
    directory: str,
    name: str,
    kind: str,
    durable: bool,
    alternate: str | None,
    internal: bool,
    auto_delete: bool,
    as_json: bool,
) -> None:
    """Declare an exchange. One that already exists with the same properties is left as it is."""
    if context.args:
        known = context.args[0] in EXCHANGE_TYPES
        advice = f"give its type as --type {context.args[0]}" if known else "it takes DIR and NAME, and options"
        raise UsageError(f"exchange declare: unexpected {shown(context.args[0])}: {advice}")
    more = {"internal": internal, "auto_delete": auto_delete}
    answer = _call(directory, "declare_exchange", name=name, type=kind, durable=durable, alternate=alternate, **more)
    _done(as_json, answer, f"exchange {name} {'declared' if answer['created'] else 'exists already'} ({kind})")


@exchange.command("delete")
@DIRECTORY
@NAME
@click.option("--if-unused", is_flag=True, help="Only if nothing is bound to it.")
@JSON
def delete_exchange(directory: str, name: str, if_unused: bool, as_json: bool) -> None:
    """Delete an exchange and its bindings."""
    answer = _call_named(directory, "delete_exchange", name=name, if_unused=if_unused)
    _done(as_json, output.done(answer), f"exchange {name} deleted")


_SOURCE = click.argument("source")
_KEY = click.argument("routing_key", default="")


@exchange.command("bind")
@DIRECTORY
@NAME
@_SOURCE
@_KEY
@CONDITION
@JSON
def bind_exchange(
    directory: str, name: str, source: str, routing_key: str, arguments: tuple[str, ...], as_json: bool
) -> None:
    """Send messages of the exchange SOURCE with ROUTING_KEY to the exchange NAME, too."""
    fields = {"routing_key": routing_key, "arguments": values_of(arguments)}
    answer = _call(directory, "bind_exchange", destination=name, source=source, **fields)
    _done(as_json, answer, f"exchange {name} is bound to exchange {source} with {bound(fields)}")


@exchange.command("unbind")
@DIRECTORY
@NAME
@_SOURCE
@_KEY
@CONDITION
@JSON
def unbind_exchange(
    directory: str, name: str, source: str, routing_key: str, arguments: tuple[str, ...], as_json: bool
) -> None:
    """Remove a binding of the exchange NAME to SOURCE. One that is not there is an error."""
    fields = {"routing_key": routing_key, "arguments": values_of(arguments)}
    answer = _call(directory, "unbind_exchange", destination=name, source=source, **fields)
    if not answer["removed"]:
        shows = command("exchange", "list", directory)
        raise not_bound(f"exchange {name}", {"exchange": source, **fields}, shows)
    _done(as_json, output.done(answer), f"exchange {name} is no longer bound to exchange {source} with {bound(fields)}")


@exchange.command("list")
@DIRECTORY
@JSON
def list_exchanges(directory: str, as_json: bool) -> None:
    """List exchanges and what is bound to them: queue (routing key), or exchange or topic NAME (routing key). The
    default exchange reaches every queue by its name.
    """
    output.check_seen()
    answer = _call(directory, "queues")
    kinds = ("bindings", "topic_bindings", "exchange_bindings")
    by_kind = {name: grouped(answer[name], "exchange") for name in kinds}
    rows = [{**item, **{name: by_kind[name].get(item["name"], []) for name in kinds}} for item in answer["exchanges"]]
    if as_json:
        output.print_json(rows)
        return
    columns = [output.Column(name) for name in ("name", "type", "kind", "alternate", "bindings")]
    lines = []
    for row in rows:
        every = [*row["topic_bindings"], *row["exchange_bindings"], *row["bindings"]]
        first, count = every[: output.ROWS], len(every)
        text = ", ".join(map(leads_to, first))
        text += f", and {count - len(first):,} more (--json shows them)" if count > len(first) else ""
        lines.append([row["name"] or "(default)", row["type"], kind(row), row["alternate"] or "", text])
    output.print_rows(columns, lines)
