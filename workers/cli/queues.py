"""`warren queue …`, `warren exchange …`, `warren topic …`: what is declared in a node."""

from __future__ import annotations

from typing import Any

import click

from warren.engine.errors import NotYet
from warren.workers.cli import output
from warren.workers.control import ControlClient

DIRECTORY = click.argument("directory", metavar="DIR")
NAME = click.argument("name")
JSON = click.option("--json", "as_json", is_flag=True, help="One line of JSON.")


def _call(directory: str, op: str, **fields: Any) -> dict[str, Any]:
    with ControlClient(directory) as client:
        return client.call(op, **fields)


def _done(as_json: bool, answer: dict[str, Any], text: str) -> None:
    if as_json:
        output.print_json(answer)
    else:
        print(text)


@click.group()
def queue() -> None:
    """Declare, list, bind, purge and delete queues."""


@queue.command("declare")
@DIRECTORY
@NAME
@click.option(
    "--durable/--transient", default=True, help="Whether it and its messages outlive the node; default: durable."
)
@JSON
def declare_queue(directory: str, name: str, durable: bool, as_json: bool) -> None:
    """Declare a queue; well too when it exists with the same properties."""
    answer = _call(directory, "declare_queue", name=name, durable=durable)
    text = "declared" if answer["created"] else "exists already"
    _done(
        as_json,
        answer,
        f"queue {name} {text} ({'durable' if durable else 'transient'}, worker {answer['queue']['worker']})",
    )


@queue.command("delete")
@DIRECTORY
@NAME
@JSON
def delete_queue(directory: str, name: str, as_json: bool) -> None:
    """Delete a queue with its messages, bindings and subscriptions."""
    _done(as_json, _call(directory, "delete_queue", name=name), f"queue {name} deleted")


@queue.command("list")
@DIRECTORY
@JSON
def list_queues(directory: str, as_json: bool) -> None:
    """List queues with their depths and bindings."""
    with ControlClient(directory) as client:
        report = client.call("status")
        bindings = client.call("queues")["bindings"]
    rows = [
        {**item, "bindings": [binding for binding in bindings if binding["queue"] == item["name"]]}
        for item in report["queues"]
    ]
    if as_json:
        output.print_json(rows)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "kind", "worker"):
        table.add_column(column)
    for column in ("ready", "unacked", "bytes", "consumers"):
        table.add_column(column, justify="right")
    table.add_column("bindings")
    for row in rows:
        table.add_row(
            row["name"],
            "durable" if row["durable"] else "transient",
            str(row["worker"]),
            f"{row['ready']:,}",
            f"{row['unacked']:,}",
            output.bytes_text(row["bytes"]),
            str(row["consumers"]),
            ", ".join(f"{item['exchange']}:{item['routing_key']}" for item in row["bindings"]),
        )
    if rows:
        output.console().print(table)
    else:
        print("no queues")


@queue.command("purge")
@DIRECTORY
@NAME
@JSON
def purge_queue(directory: str, name: str, as_json: bool) -> None:
    """Drop all ready messages of a queue; delivered and unacked ones stay."""
    import warren

    with warren.attach(directory, name="warren-purge") as node:
        count = node.queue(name, create=False).purge()
    _done(as_json, {"queue": name, "count": count}, f"queue {name}: {count:,} messages dropped")


@queue.command("bind")
@DIRECTORY
@NAME
@click.argument("exchange")
@click.argument("routing_key", default="")
@JSON
def bind_queue(directory: str, name: str, exchange: str, routing_key: str, as_json: bool) -> None:
    """Let messages of EXCHANGE with ROUTING_KEY go to the queue."""
    answer = _call(directory, "bind", queue=name, exchange=exchange, routing_key=routing_key)
    _done(as_json, answer, f"queue {name} is bound to exchange {exchange} with {routing_key!r}")


@queue.command("unbind")
@DIRECTORY
@NAME
@click.argument("exchange")
@click.argument("routing_key", default="")
@JSON
def unbind_queue(directory: str, name: str, exchange: str, routing_key: str, as_json: bool) -> None:
    """Remove a binding."""
    answer = _call(directory, "unbind", queue=name, exchange=exchange, routing_key=routing_key)
    text = "is no longer bound" if answer["removed"] else "was not bound"
    _done(as_json, answer, f"queue {name} {text} to exchange {exchange} with {routing_key!r}")


@click.group()
def exchange() -> None:
    """Declare, list and delete exchanges."""


@exchange.command("declare")
@DIRECTORY
@NAME
@click.option("--type", "kind", type=click.Choice(["direct", "fanout", "topic"]), default="direct", show_default=True)
@click.option("--durable/--transient", default=True)
@JSON
def declare_exchange(directory: str, name: str, kind: str, durable: bool, as_json: bool) -> None:
    """Declare an exchange; well too when it exists with the same properties."""
    answer = _call(directory, "declare_exchange", name=name, type=kind, durable=durable)
    _done(as_json, answer, f"exchange {name} {'declared' if answer['created'] else 'exists already'} ({kind})")


@exchange.command("delete")
@DIRECTORY
@NAME
@JSON
def delete_exchange(directory: str, name: str, as_json: bool) -> None:
    """Delete an exchange and its bindings."""
    _done(as_json, _call(directory, "delete_exchange", name=name), f"exchange {name} deleted")


@exchange.command("list")
@DIRECTORY
@JSON
def list_exchanges(directory: str, as_json: bool) -> None:
    """List exchanges and what is bound to them."""
    answer = _call(directory, "queues")
    rows = [
        {**item, "bindings": [binding for binding in answer["bindings"] if binding["exchange"] == item["name"]]}
        for item in answer["exchanges"]
    ]
    if as_json:
        output.print_json(rows)
        return
    for row in rows:
        bound = ", ".join(f"{item['queue']} ({item['routing_key']!r})" for item in row["bindings"]) or "nothing bound"
        print(f"{row['name'] or '(default)'}  {row['type']}  {'durable' if row['durable'] else 'transient'}  {bound}")


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def topic(words: tuple[str, ...]) -> None:
    """Replayable topics. They are planned and not part of this version."""
    raise NotYet("topics are planned and not part of this version; use queues, which are (`warren queue --help`)")
