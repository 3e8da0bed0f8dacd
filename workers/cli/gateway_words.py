"""What the commands of the gateway's users, permissions and vhosts have in common.

They change `DIR/users.json` (workers/amqp/users_file.py), whether or not the node runs; a gateway that runs follows
within a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from warren.engine.catalog import ownership
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import UsageError
from warren.engine.saying import command, shown
from warren.workers.amqp import users_file
from warren.workers.amqp.users_file import Account, Accounts, Vhost
from warren.workers.cli import output

DIRECTORY = click.argument("directory", metavar="DIR")
NAME = click.argument("name")
JSON = click.option("--json", "as_json", is_flag=True, help="One line of JSON.")


def read(directory: str) -> Accounts:
    node = NodeDirectory(directory)
    node.check_made()
    return users_file.load(node.path)


@contextmanager
def changing(directory: str) -> Iterator[Accounts]:
    node = NodeDirectory(directory)
    node.check_made()
    ownership.check_owner(node.path)
    with users_file.changing(node.path) as accounts:
        yield accounts


def user_of(accounts: Accounts, directory: str, name: str) -> Account:
    found = accounts.users.get(name)
    if found is None:
        raise UsageError(f"there is no user {shown(name)}: {command('gateway', 'users', 'list', directory)} shows them")
    return found


def vhost_of(accounts: Accounts, directory: str, name: str) -> Vhost:
    found = accounts.vhosts.get(name)
    if found is None:
        raise UsageError(
            f"there is no vhost {shown(name)}: {command('gateway', 'vhosts', 'list', directory)} shows them"
        )
    return found


def done(as_json: bool, told: dict[str, Any], text: str) -> None:
    output.print_json(told) if as_json else print(output.escaped(text))


def set_limits(given: dict[str, int | None], limits: dict[str, int]) -> None:
    for name, value in given.items():
        if value is not None and value >= 0:
            limits[name] = value
        elif value is not None:
            limits.pop(name, None)
