"""`warren topic bind`, `unbind`: topics that get what is published to an exchange."""

from __future__ import annotations

from typing import Any

import click

from warren.engine.catalog.topic_bindings import KEY, TAG
from warren.engine.errors import ExchangeNotFound, TopicNotFound
from warren.engine.saying import DECLARE, command
from warren.workers.cli import output
from warren.workers.cli.bindings import CONDITION, bound, not_bound, values_of
from warren.workers.cli.topic_words import DIRECTORY, JSON, NAME, check_not_of_a_group, not_there
from warren.workers.process.control import ControlClient

_SOURCES = "routing_key, message_id or another property, header:NAME, or none"


def _source(given: str) -> str | None:
    return None if given == "none" else given


def _call(directory: str, op: str, *, makes: bool, **fields: Any) -> dict[str, Any]:
    """Ask the supervisor; of an exchange or a topic that is not there it is said where the names are and, with `makes`,
    how to declare it.
    """
    try:
        with ControlClient(directory, output.waiting) as client:
            return client.call(op, **fields)
    except (ExchangeNotFound, TopicNotFound) as error:
        said, colon, _rest = str(error).rpartition(f": {DECLARE}")
        if not colon:
            raise
        if isinstance(error, TopicNotFound):
            raise not_there(directory, fields["topic"], makes=makes) from None
        make = f"{command('exchange', 'declare', directory, fields['exchange'])} creates it, " if makes else ""
        raise ExchangeNotFound(f"{said}: {make}{command('exchange', 'list', directory)} shows the names") from None


@click.command("bind")
@DIRECTORY
@NAME
@click.argument("exchange")
@click.argument("routing_key", default="")
@CONDITION
@click.option("--key", default=KEY, show_default=True, help=f"What becomes the key of a message there: {_SOURCES}.")
@click.option("--tag", default=TAG, show_default=True, help="What becomes its tag: the same choice.")
@JSON
def bind_topic(
    directory: str,
    name: str,
    exchange: str,
    routing_key: str,
    arguments: tuple[str, ...],
    key: str,
    tag: str,
    as_json: bool,
) -> None:
    """Append what is published to EXCHANGE with ROUTING_KEY to the topic NAME, beside the queues that it goes to."""
    check_not_of_a_group(directory, name, "bind")
    fields = {"exchange": exchange, "routing_key": routing_key, "arguments": values_of(arguments)}
    answer = _call(directory, "bind_topic", makes=True, topic=name, key=_source(key), tag=_source(tag), **fields)
    if as_json:
        output.print_json(answer)
    else:
        print(f"topic {name} is bound to exchange {exchange} with {bound(fields)} (key: {key}, tag: {tag})")


@click.command("unbind")
@DIRECTORY
@NAME
@click.argument("exchange")
@click.argument("routing_key", default="")
@CONDITION
@JSON
def unbind_topic(
    directory: str, name: str, exchange: str, routing_key: str, arguments: tuple[str, ...], as_json: bool
) -> None:
    """Remove a binding of the topic NAME; what was appended stays. One that is not there is an error."""
    fields = {"exchange": exchange, "routing_key": routing_key, "arguments": values_of(arguments)}
    answer = _call(directory, "unbind_topic", makes=False, topic=name, **fields)
    if not answer["removed"]:
        raise not_bound(f"topic {name}", fields, command("topic", "describe", directory, name))
    if as_json:
        output.print_json(output.done(answer))
    else:
        print(f"topic {name} is no longer bound to exchange {exchange} with {bound(fields)}")


def bindings_of(directory: str, name: str) -> list[dict[str, Any]]:
    """The bindings of a topic."""
    with ControlClient(directory, output.waiting) as client:
        found: list[dict[str, Any]] = client.call("queues", of=[name])["topic_bindings"]
    return found


def shown_binding(item: dict[str, Any]) -> str:
    """A binding of a topic, in a line."""
    made = ", ".join(f"{what}: {item[what] or 'none'}" for what in ("key", "tag"))
    return f"bound to exchange {item['exchange']} with {bound(item)} ({made})"


COMMANDS = (bind_topic, unbind_topic)
