"""`warren publish`, `warren consume`, `warren peek`: messages from and to a terminal or a pipe."""

from __future__ import annotations

import array
import base64
import contextlib
import fcntl
import math
import os
import select
import stat
import sys
import termios
import time
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from warren.engine.catalog.metadata import PRIORITY_MAX, PROPERTIES
from warren.engine.errors import QueueEmpty, Unroutable, UsageError
from warren.engine.saying import DECLARE, command, counted, shown
from warren.workers.cli import output
from warren.workers.cli.attached import ANSWER, CONFIRM, CONFIRM_TIMEOUT, attached, awaited, given_time
from warren.workers.cli.lines import Lines
from warren.workers.faces.queues import browse_all
from warren.workers.process.exit_codes import EXIT_TIMEOUT

if TYPE_CHECKING:
    import warren

DIRECTORY = click.argument("directory", metavar="DIR")
#: messages that `peek` shows when it is not said how many
PEEKED = 10
#: the smallest that a pipe can be; then it takes nothing more until its reader has taken all
PIPE_BYTES = 4096
AGAIN_S = 0.001


@click.command(context_settings={"allow_extra_args": True})
@click.pass_context
@DIRECTORY
@click.argument("queue", required=False)
@click.option("--exchange", help="Publish to this exchange instead of a queue.")
@click.option("--routing-key", help="Routing key, with --exchange.")
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
@click.option("--priority", type=output.Count(0, PRIORITY_MAX), default=0, help="Priority, 0 to 255.")
@click.option("--ttl", type=output.Seconds(min=0), help="Messages expire after this many seconds.")
@click.option("--delay", type=output.Seconds(min=0), help="Messages are not delivered for this many seconds.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header, as text; repeatable.")
@click.option(
    "--header-json",
    "headers_json",
    multiple=True,
    metavar="NAME=JSON",
    help="A header whose value is read as JSON: 7, 1.5, true, null, a list, …; repeatable. What `queue bind --argument "
    "shop=7` matches is --header-json shop=7.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"A property; repeatable: {', '.join(PROPERTIES)}.",
)
@click.option("--message-id", help="Id of the one message: its queue may drop what has an id that was seen.")
@click.option("--reply-to", metavar="QUEUE", help="Where an answer is to go: property reply_to.")
@click.option("--transient", is_flag=True, help="Keep messages in memory only, even in a durable queue.")
@click.option("--mandatory", is_flag=True, help="With --exchange: publish nothing if no queue receives it.")
@CONFIRM_TIMEOUT
@click.option("--json", "as_json", is_flag=True)
def publish(
    context: click.Context,
    directory: str,
    queue: str | None,
    exchange: str | None,
    routing_key: str | None,
    source: BinaryIO | None,
    body: str | None,
    whole: bool,
    durability: str | None,
    priority: int,
    ttl: float | None,
    delay: float | None,
    headers: tuple[str, ...],
    headers_json: tuple[str, ...],
    properties: tuple[str, ...],
    message_id: str | None,
    reply_to: str | None,
    transient: bool,
    mandatory: bool,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Publish each line (or the whole) of a file or of standard input to QUEUE, or to an exchange. Lines are sent when
    1,000 are together or the input pauses, and at Ctrl-C those that were read.

    Exit code 1 if no queue receives a message.
    """
    _check_target(context.args, directory, queue, exchange, routing_key, mandatory)
    if body is not None and source is not None:
        raise UsageError("--body and --file both name the input: give only one of them")
    if transient and durability not in (None, "none"):
        raise UsageError(f"--transient keeps messages in memory only: leave out --durability {durability}")
    given = sys.stdin.buffer if source is None else source
    lines: Lines | None = None
    one = b""
    if body is not None:
        one = os.fsencode(body)
    elif whole:
        one = given.read()
    else:
        lines = Lines(given, pauses=message_id is None)
    told = _properties(properties, reply_to)
    if message_id == "":
        raise UsageError("--message-id must not be empty: give an id, or leave it out")
    options: dict[str, Any] = {
        "durability": durability,
        "priority": priority,
        "ttl": ttl,
        "delay": delay,
        "headers": _headers(headers, headers_json) or None,
        "properties": told or None,
        "message_id": None if message_id is None else _told(message_id),
        "persistent": not transient,
        "timeout": timeout,
    }
    began = time.monotonic()
    count = unroutable = 0
    why = ""
    with (
        output.found_in(directory, queue=queue, exchange=exchange),
        attached(directory, "warren-publish") as node,
    ):
        target = node.queue(queue, create=False) if queue is not None else None

        def put(batch: list[bytes]) -> int:
            nonlocal count, unroutable, why
            if message_id is not None and count + unroutable + len(batch) > 1:
                raise UsageError(
                    "--message-id is the id of one message, and the input has several lines: publish each with an id "
                    "of its own, or all of them as one message (--whole)"
                )
            try:
                with awaited(CONFIRM), given_time(timeout):
                    if target is not None:
                        target.put_many(batch, **options)
                    else:
                        node.publish_many(batch, exchange or "", routing_key or "", mandatory=True, **options)
                count += len(batch)
                return len(batch)
            except Unroutable as error:
                why = str(error).rpartition(": bind one")[0] or str(error).rpartition(f": {DECLARE}")[0] or str(error)
                if mandatory and exchange:
                    bind = command("queue", "bind", directory, "QUEUE", exchange, *filter(None, [routing_key]))
                    raise Unroutable(f"{why}: {bind} binds one") from None
                if mandatory:
                    declare = command("queue", "declare", directory, routing_key or "QUEUE")
                    raise Unroutable(f"{why}: {declare} creates it") from None
                unroutable += len(batch)
                return 0

        if lines is None:
            put([one])
        else:
            with lines:
                lines.send(put, "published")
    seconds = time.monotonic() - began
    if as_json:
        output.print_json({"published": count, "unroutable": unroutable, "seconds": round(seconds, 3)})
    else:
        output.say(f"{counted(count, 'message')} published in {seconds:.2f} s", error=True)
        if unroutable:
            output.note(f"{counted(unroutable, 'message')} dropped: {why}")
    if lines is not None:
        lines.end()
    return output.EXIT_ERROR if unroutable else 0


def _check_target(
    extra: list[str], directory: str, queue: str | None, exchange: str | None, routing_key: str | None, mandatory: bool
) -> None:
    """Raises UsageError for a target that is none, or is said twice."""
    if queue is None and exchange is None:
        raise UsageError(f"name a QUEUE, as in {command('publish', directory, 'QUEUE')}, or an --exchange")
    if queue is not None and exchange is not None:
        advice = f"if it is the body, give it as --body {shown(queue)}"
        raise UsageError(f"{shown(queue)} names a queue, and --exchange an exchange: give only one of them; {advice}")
    if extra:
        advice = f"a body is given with --body: {command('publish', directory, queue, '--body', *extra[:1])}"
        raise UsageError(f"publish takes DIR and QUEUE, and then there is {shown(extra[0])}: {advice}")
    if queue is not None and (mandatory or routing_key is not None):
        given = "--mandatory" if mandatory else "--routing-key"
        raise UsageError(f"{given} goes with --exchange: a QUEUE that is named receives every message")


def _headers(texts: tuple[str, ...], values: tuple[str, ...]) -> dict[str, Any]:
    """What is said of the messages by --header and --header-json. Raises UsageError."""
    told: dict[str, Any] = {name: _told(value) for name, value in output.pairs("--header", texts).items()}
    for name, value in output.pairs("--header-json", values).items():
        if name in told:
            raise UsageError(f"--header {name} and --header-json {name} are the same header: give only one of them")
        try:
            told[name] = msgspec.json.decode(_told(value))
        except (msgspec.DecodeError, UnicodeDecodeError):
            advice = f"give text as --header {shown(f'{name}={value}')}"
            raise UsageError(
                f"--header-json {shown(f'{name}={value}')}: {shown(value)} is not JSON: {advice}"
            ) from None
    return told


def _properties(given: tuple[str, ...], reply_to: str | None) -> dict[str, Any]:
    """What is said of the messages by --property and --reply-to. Raises UsageError."""
    told: dict[str, Any] = {name: _told(value) for name, value in output.pairs("--property", given).items()}
    if "headers" in told:
        raise UsageError("--property headers: headers are no property: write --header NAME=VALUE")
    if reply_to is not None:
        told["reply_to"] = reply_to
    if "timestamp" in told:
        try:
            told["timestamp"] = float(told["timestamp"])
        except ValueError:
            raise UsageError(
                f"--property timestamp={told['timestamp']}: give a number of seconds since 1970, as `date +%s` does"
            ) from None
    return told


def _told(value: str) -> str | bytes:
    """What the command line says of a message: text or, when it is no UTF-8, its bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return os.fsencode(value)
    return value


FORMAT = click.option("--format", "style", type=click.Choice(["raw", "json"]), default="raw", show_default=True)
JSON = click.option("--json", "as_json", is_flag=True, help="The same as --format json: an object per line.")


@click.command()
@DIRECTORY
@click.argument("queue")
@click.option("--count", type=output.Count(min=1), help="End after this many messages.")
@click.option("--timeout", type=output.Seconds(min=0), help="End when no message arrives for this many seconds.")
@click.option("--no-ack", is_flag=True, help="Do not ack: the messages return to the queue, marked redelivered.")
@FORMAT
@JSON
def consume(
    directory: str,
    queue: str,
    count: int | None,
    timeout: float | None,
    no_ack: bool,
    style: str,
    as_json: bool,
) -> int:
    """Print messages of QUEUE and ack them: one per line (raw), or as JSON with their properties.

    In JSON, `id` is the one that logs name a message by. A body that is no UTF-8 is body_base64. In headers and
    properties, {"base64": "…"} stands for bytes, and {"float": "nan"} (inf, -inf) for a number that JSON has not.

    A message is acked when it was written or, to a pipe, when its reader has taken it: what a reader leaves behind
    (`warren consume DIR QUEUE | head -n 1`) returns to the queue.

    Exit code 4 if fewer than --count messages arrive, or the node does not answer, within --timeout.
    """
    output.check_seen("takes")
    printed = 0
    with output.found_in(directory), attached(directory, "warren-consume") as node:
        source = node.queue(queue, create=False)
        taken = _Taken()
        while count is None or printed < count:
            try:
                message = source.get(timeout=timeout)
            except QueueEmpty:
                if count is not None or not printed:
                    came = "no message arrived"
                    if count is not None and printed:
                        came = f"{printed:,} of {counted(count, 'message')} arrived, then none"
                    output.note(f"queue {output.escaped(queue)}: {came} within {timeout:g} s")
                break
            _print(message, "json" if as_json else style)
            printed += 1
            if not no_ack:
                taken.wait()
                message.ack()
    return EXIT_TIMEOUT if count is not None and printed < count else 0


@click.command()
@DIRECTORY
@click.argument("queue")
@click.option("--count", type=output.Count(min=1), default=PEEKED, show_default=True, help="Messages at most.")
@FORMAT
@JSON
def peek(directory: str, queue: str, count: int, style: str, as_json: bool) -> None:
    """Print the first ready messages of QUEUE, and leave them there: nothing is delivered, acked or marked.

    They come in the order in which they were published, whatever their priority; what was returned, or delayed until
    now, at its old place. Unacked, delayed and expired messages are not shown. Standard error says how many of the
    others cannot be read. JSON is that of `warren consume`: `id`, body or body_base64; {"base64": "…"} and
    {"float": "nan"} in headers and properties.
    """
    output.check_seen()
    with output.found_in(directory), attached(directory, "warren-peek") as node:
        with awaited(ANSWER):
            found, unreadable = browse_all(node.queue(queue, create=False), count)
        for message in found:
            _print(message, "json" if as_json else style)
    if unreadable:
        what = f"{counted(unreadable, 'message')} among these cannot be read, and so cannot be shown"
        output.note(f"queue {output.escaped(queue)}: {what}: see {command('check', directory)}")


class _Taken:
    """Whether what was written to standard output is in its reader's hands: a pipe keeps what nobody has read, and what
    is in it when the reader goes is lost.
    """

    def __init__(self) -> None:
        self._descriptor = sys.stdout.fileno()
        self._is_pipe = stat.S_ISFIFO(os.fstat(self._descriptor).st_mode)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)
        if self._is_pipe:
            with contextlib.suppress(OSError):  # others wrote so much to it: `wait` looks again and again
                fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def wait(self) -> None:
        """Return when the reader has taken all. Raises BrokenPipeError when it has gone, and left something."""
        while self._is_pipe and self._unread():
            (_descriptor, event), *_none = self._poll.poll()
            if not self._unread():
                return
            if event & select.POLLERR:
                raise BrokenPipeError
            time.sleep(AGAIN_S)  # it has room for more

    def _unread(self) -> int:
        """Bytes that lie in the pipe."""
        count = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.FIONREAD, count)
        return count[0]


def _print(message: warren.Message, style: str) -> None:
    body = message.body
    if style == "raw":
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()
        return
    told: dict[str, object] = {"id": message.message_id.hex()}
    try:
        told["body"] = body.decode()
    except UnicodeDecodeError:
        told["body_base64"] = base64.b64encode(body).decode()
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
            told[name] = _for_json(value)
    output.print_json(told)


def _for_json(value: object) -> object:
    """The same, with marks for what JSON cannot say: {"base64": …}, {"float": "nan"}."""
    match value:
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case float() if not math.isfinite(value):
            return {"float": str(value)}
        case list():
            return [_for_json(item) for item in value]
        case dict():
            return {name: _for_json(item) for name, item in value.items()}
        case _:
            return value
