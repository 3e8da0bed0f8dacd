"""`warren publish` and `warren consume`: messages from and to a terminal or a pipe."""

from __future__ import annotations

import base64
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

import click

from warren.engine.errors import QueueEmpty, UsageError
from warren.workers.cli import output
from warren.workers.process.exit_codes import EXIT_TIMEOUT

DIRECTORY = click.argument("directory", metavar="DIR")
BATCH = 1000


@click.command()
@DIRECTORY
@click.argument("queue", required=False)
@click.option("--exchange", help="Publish to this exchange instead of a queue.")
@click.option("--routing-key", default="", help="Routing key, with --exchange.")
@click.option(
    "--file", "source", type=click.File("rb", lazy=False), help="What to publish; default (or '-'): standard input."
)
@click.option("--body", help="Publish this text as one message, byte for byte.")
@click.option("--whole", is_flag=True, help="Publish the whole input as one message, not one per line.")
@click.option(
    "--durability",
    type=click.Choice(["none", "written", "synced"]),
    help="What a confirm means; default: as the queue requires.",
)
@click.option("--priority", type=click.IntRange(0, 9), default=0, help="Priority, 0 to 9.")
@click.option("--ttl", type=output.Seconds(min=0), help="Messages expire after this many seconds.")
@click.option("--delay", type=output.Seconds(min=0), help="Messages are not delivered for this many seconds.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; repeatable.")
@click.option("--transient", is_flag=True, help="Keep messages in memory only, even in a durable queue.")
@click.option("--mandatory", is_flag=True, help="With --exchange: fail if no queue receives them.")
@click.option("--json", "as_json", is_flag=True)
def publish(
    directory: str,
    queue: str | None,
    exchange: str | None,
    routing_key: str,
    source: BinaryIO | None,
    body: str | None,
    whole: bool,
    durability: str | None,
    priority: int,
    ttl: float | None,
    delay: float | None,
    headers: tuple[str, ...],
    transient: bool,
    mandatory: bool,
    as_json: bool,
) -> None:
    """Publish each line (or the whole) of a file or of standard input to QUEUE, or to an exchange."""
    import warren

    if (queue is None) == (exchange is None):
        raise UsageError("name either a QUEUE or an --exchange: `warren publish DIR QUEUE`")
    if body is not None and source is not None:
        raise UsageError("--body and --file both name the input: give only one of them")
    lines = sys.stdin.buffer if source is None else source
    if body is not None:
        bodies: Iterator[bytes] = iter([os.fsencode(body)])
    elif whole:
        bodies = iter([lines.read()])
    else:
        bodies = (line.rstrip(b"\r\n") for line in lines)
    pairs = [item.partition("=") for item in headers]
    if not all(name and sign for name, sign, _value in pairs):
        raise UsageError("--header: write NAME=VALUE")
    options: dict[str, Any] = {
        "durability": durability,
        "priority": priority,
        "ttl": ttl,
        "delay": delay,
        "headers": {name: value for name, _sign, value in pairs} or None,
        "persistent": not transient,
    }
    began = time.monotonic()
    count = 0
    with (
        output.found_in(directory, queue=queue, exchange=exchange),
        warren.attach(directory, name="warren-publish") as node,
    ):
        target = node.queue(queue, create=False) if queue is not None else None
        while batch := _take(bodies):
            if target is not None:
                target.put_many(batch, **options)
            else:
                node.publish_many(batch, exchange or "", routing_key, mandatory=mandatory, **options)
            count += len(batch)
    seconds = time.monotonic() - began
    if as_json:
        output.print_json({"published": count, "seconds": round(seconds, 3)})
    else:
        print(f"{count:,} message{'s' if count != 1 else ''} published in {seconds:.2f} s", file=sys.stderr)


def _take(bodies: Iterator[bytes]) -> list[bytes]:
    batch: list[bytes] = []
    for body in bodies:
        batch.append(body)
        if len(batch) == BATCH:
            break
    return batch


@click.command()
@DIRECTORY
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option("--timeout", type=output.Seconds(min=0), help="End when no message arrives for this many seconds.")
@click.option("--no-ack", is_flag=True, help="Do not ack: the messages return to the queue, marked redelivered.")
@click.option("--format", "style", type=click.Choice(["raw", "json"]), default="raw", show_default=True)
def consume(directory: str, queue: str, count: int | None, timeout: float | None, no_ack: bool, style: str) -> int:
    """Print messages of QUEUE and ack them: one per line (raw), or as JSON with their properties.

    Exit code 4 if fewer than --count messages arrive, or the node does not answer, within --timeout.
    """
    import warren

    printed = 0
    with output.found_in(directory), warren.attach(directory, name="warren-consume") as node:
        source = node.queue(queue, create=False)
        while count is None or printed < count:
            try:
                message = source.get(timeout=timeout)
            except QueueEmpty:
                if count is not None or not printed:
                    came = f"{printed:,} of {count:,} messages arrived, then none" if printed else "no message arrived"
                    print(f"warren: queue {output.escaped(queue)}: {came} within {timeout:g} s", file=sys.stderr)
                break
            _print(message, style)
            printed += 1
            if not no_ack:
                message.ack()
    return EXIT_TIMEOUT if count is not None and printed < count else 0


def _print(message: object, style: str) -> None:
    body = bytes(getattr(message, "body", b""))
    if style == "raw":
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()
        return
    shown: dict[str, object] = {}
    try:
        shown["body"] = body.decode()
    except UnicodeDecodeError:
        shown["body_base64"] = base64.b64encode(body).decode()
    for name in (
        "exchange",
        "routing_key",
        "headers",
        "properties",
        "priority",
        "redelivered",
        "delivery_count",
        "delivery_tag",
    ):
        value = getattr(message, name, None)
        if value is not None:
            shown[name] = value
    output.print_json(shown)
