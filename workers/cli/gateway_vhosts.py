"""`warren gateway vhosts`: virtual hosts of the AMQP gateway.

Crash point: `delete` removes the vhost first, so that nobody comes in any more, and then what is in it. Killed in
between, the same command goes on where it was.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import click

from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import ExchangeNotFound, NodeNotRunning, UsageError
from warren.engine.saying import counted, shown
from warren.workers.amqp import mapping, users_file
from warren.workers.amqp.users_file import DEFAULT_VHOST, Vhost
from warren.workers.cli import output
from warren.workers.cli.gateway_words import DIRECTORY, JSON, NAME, changing, done, read, set_limits, vhost_of
from warren.workers.process.control import ControlClient

#: names of what is in a vhost that is not empty, in an error
NAMES_SHOWN = 3


@click.group()
def vhosts() -> None:
    """Add and delete virtual hosts of the AMQP gateway."""


@vhosts.command("list")
@DIRECTORY
@JSON
def list_vhosts(directory: str, as_json: bool) -> None:
    """List virtual hosts, with who may enter them."""
    output.check_seen()
    accounts = read(directory)
    rows: list[dict[str, Any]] = [
        {
            "vhost": name,
            "description": vhost.description,
            "tags": vhost.tags,
            "default_queue_type": vhost.default_queue_type or None,
            "limits": vhost.limits,
            "users": sorted(user for user, account in accounts.users.items() if name in account.permissions),
        }
        for name, vhost in sorted(accounts.vhosts.items())
    ]
    if as_json:
        output.print_json(rows)
        return
    output.print_rows(
        [output.Column(word) for word in ("vhost", "users", "limits", "description")],
        [
            [
                row["vhost"],
                ", ".join(row["users"]) or "–",
                ", ".join(f"{name} {value}" for name, value in row["limits"].items()) or "–",
                row["description"] or "–",
            ]
            for row in rows
        ],
    )


@vhosts.command("add")
@DIRECTORY
@NAME
@click.option("--description", help="A text for people.")
@click.option("--max-connections", type=click.IntRange(-1), help="-1: no limit.")
@click.option("--max-queues", type=click.IntRange(-1), help="-1: no limit.")
@JSON
def add_vhost(
    directory: str,
    name: str,
    description: str | None,
    max_connections: int | None,
    max_queues: int | None,
    as_json: bool,
) -> None:
    """Add a virtual host, or change one that is there. Its queue `q` is the queue `@NAME:q` of the node."""
    users_file.check_name("vhost", name)
    with changing(directory) as accounts:
        new = name not in accounts.vhosts
        found = accounts.vhosts.setdefault(name, Vhost())
        if description is not None:
            found.description = description
        set_limits({"max-connections": max_connections, "max-queues": max_queues}, found.limits)
    done(as_json, {"vhost": name, "created": new}, f"vhost {name} is {'added' if new else 'there already: changed'}")


@vhosts.command("delete")
@DIRECTORY
@NAME
@click.option("--force", is_flag=True, help="Also with its queues, exchanges and streams, and their messages.")
@JSON
def delete_vhost(directory: str, name: str, force: bool, as_json: bool) -> None:
    """Delete a virtual host, with the permissions in it. Its connections are closed within a second. One that has
    queues, exchanges or streams is deleted with --force alone, while its node runs.
    """
    if name == DEFAULT_VHOST:
        raise UsageError("vhost '/' is the node itself, and is not deleted")
    node = NodeDirectory(directory)
    node.check_made()
    inside, own = _inside(node.path, name)
    if name not in users_file.load(node.path).vhosts and not any(inside.values()):
        vhost_of(read(directory), directory, name)
    if any(inside.values()) and not force:
        kinds = (("queues", "queue"), ("exchanges", "exchange"), ("topics", "stream"))
        told = ", ".join(counted(len(inside[kind]), word) for kind, word in kinds if inside[kind])
        names = [mapping.amqp_name(found)[1] for found in itertools.chain(*inside.values())]
        which = ", ".join(map(shown, names[:NAMES_SHOWN])) + (" …" if len(names) > NAMES_SHOWN else "")
        raise UsageError(f"vhost {shown(name)} has {told} ({which}): nothing was deleted; --force deletes them, too")
    _delete(directory, name, inside, own)
    counts = {kind: len(names) for kind, names in inside.items()}
    done(as_json, {"vhost": name, "deleted": True, **counts}, f"vhost {name} is deleted")


def _delete(directory: str, name: str, inside: dict[str, list[str]], own: list[str]) -> None:
    with ControlClient(directory, output.waiting) as client:
        if any(inside.values()):
            client.call("ping")  # nothing is deleted while no node runs
        _forget(directory, name)
        if not own and not any(inside.values()):
            return
        with contextlib.suppress(NodeNotRunning):  # its own exchanges are left then, to a vhost of that name
            _empty(client, inside, own)


def _forget(directory: str, name: str) -> None:
    with changing(directory) as accounts:
        if name in accounts.vhosts:
            accounts.forget_vhost(name)


def _empty(client: ControlClient, inside: dict[str, list[str]], own: list[str]) -> None:
    if inside["queues"]:
        client.call("delete_queues", names=inside["queues"])
    for topic in inside["topics"]:
        client.call("delete_topic", name=topic)
    for exchange in (*inside["exchanges"], *own):
        with contextlib.suppress(ExchangeNotFound):  # it went with its last binding
            client.call("delete_exchange", name=exchange)


def _inside(path: Path, vhost: str) -> tuple[dict[str, list[str]], list[str]]:
    """The names, in the node, of what is declared in a vhost; and of its own exchanges (amq.direct, …)."""
    catalog = Catalog.load(path)
    exchanges = [name for name in catalog.exchanges if _of(name) == vhost]
    own = [name for name in exchanges if mapping.amqp_name(name)[1].startswith(mapping.RESERVED)]
    inside = {
        "queues": [name for name, queue in catalog.queues.items() if not queue.hidden and _of(name) == vhost],
        "exchanges": [name for name in exchanges if name not in own],
        "topics": [
            name for name, topic in catalog.topics.items() if topic.by_name and mapping.stream_called(name)[0] == vhost
        ],
    }
    return inside, own


def _of(name: str) -> str:
    return mapping.amqp_name(name)[0]
