"""Bindings on the command line: what headers have to be, and how a binding is shown."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.workers.cli import output

CONDITION = click.option(
    "--argument",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help='A header to match; repeatable. 7, 1.5, true and null (any value) are that, "7" and all else is text.',
)


def values_of(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Arguments of a binding: what reads as JSON (7, 1.5, true, null, "7") is that, anything else is text."""
    found: dict[str, Any] = {}
    for name, text in output.pairs("--argument", arguments).items():
        try:
            found[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            found[name] = text
        if isinstance(found[name], list | dict):
            raise UsageError(
                f"--argument {shown(f'{name}={text}')}: give a number, true, false, null (any value) or text"
            )
    return found


def conditions_of(arguments: dict[str, Any]) -> str:
    """Those of a binding of a headers exchange, as they are typed: shop=7 is a number, shop="7" text."""
    return ", ".join(
        output.escaped(f"{name}={msgspec.json.encode(value).decode()}") for name, value in arguments.items()
    )


def bound(item: dict[str, Any]) -> str:
    """How a binding reaches its queue or topic: the routing key, or what headers have to be."""
    conditions = conditions_of(item.get("arguments") or {})
    return f"{item['routing_key']!r}{' ' if conditions else ''}{conditions}"


def not_bound(what: str, item: dict[str, Any], shows: str) -> UsageError:
    """What is said of a binding that is to be removed, and is not there. `shows`: the command that shows those that
    are.
    """
    return UsageError(
        f"{what} is not bound to exchange {item['exchange']} with {bound(item)}: {shows} shows its bindings"
    )


def leads_to(item: dict[str, Any]) -> str:
    """Where a binding of an exchange leads: a queue, by its name, or another exchange, or a topic."""
    kinds = ((key, item[key]) for key in ("destination", "topic") if key in item)
    name = next((f"{'exchange' if key == 'destination' else key} {name}" for key, name in kinds), item.get("queue"))
    return f"{name} ({bound(item)})"


def grouped(rows: list[dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    """Rows by what they have in a field."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found
