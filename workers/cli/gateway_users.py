"""`warren gateway users`: who logs in at the AMQP gateway of a node.

A password is never a word of the command line, where every user of the machine can read it: it is asked for, or read
from a file or from standard input.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from warren.engine.errors import UsageError
from warren.engine.kernel.atomic_file import file_explained
from warren.engine.saying import command, shown
from warren.workers.amqp import passwords, users_file
from warren.workers.amqp.passwords import ARGON2, PASSWORD_BYTES_MAX
from warren.workers.amqp.users_file import Account
from warren.workers.cli import output
from warren.workers.cli.gateway_words import DIRECTORY, JSON, NAME, changing, done, read, set_limits, user_of

PASSWORD_FILE = click.option(
    "--password-file",
    metavar="FILE",
    help="Its first line is the password; - is standard input. Without it the password is asked for.",
)
NO_PASSWORD = click.option("--no-password", is_flag=True, help="Who logs in by other means alone (EXTERNAL).")
FOR_RABBITMQ = click.option(
    "--for-rabbitmq",
    is_flag=True,
    help="Keep a hash that RabbitMQ can import (salted SHA-512), which is easier to guess than Argon2.",
)


@click.group()
def users() -> None:
    """Add, change and delete users of the AMQP gateway."""


def _password(file: str | None, none: bool) -> bytes | None:
    """What was given as the password; None: the user has none."""
    if none:
        if file is not None:
            raise UsageError("--password-file and --no-password: give only one of them")
        return None
    if file is None and sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)).encode()
    if file in (None, "-"):
        line = sys.stdin.buffer.readline(PASSWORD_BYTES_MAX + 2)
    else:
        with file_explained(f"cannot read {file}"), open(str(file), "rb") as opened:
            line = opened.readline(PASSWORD_BYTES_MAX + 2)
    if not line:
        raise UsageError(
            "there is no password: write it into standard input, name a file with --password-file, or give "
            "--no-password"
        )
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _keep(account: Account, password: bytes | None, for_rabbitmq: bool) -> None:
    account.hashing_algorithm = "rabbit_password_hashing_sha512" if for_rabbitmq else ARGON2
    account.password_hash = (
        "" if password is None else passwords.make(password, passwords.check_kept("", account.hashing_algorithm))
    )


@users.command("list")
@DIRECTORY
@JSON
def list_users(directory: str, as_json: bool) -> None:
    """List users, with their tags, vhosts and limits."""
    output.check_seen()
    accounts = read(directory)
    rows: list[dict[str, Any]] = [
        {
            "user": name,
            "tags": account.tags,
            "password": bool(account.password_hash),
            "hashing_algorithm": account.hashing_algorithm,
            "loopback_only": account.loopback_only,
            "vhosts": sorted(account.permissions),
            "limits": account.limits,
        }
        for name, account in sorted(accounts.users.items())
    ]
    if as_json:
        output.print_json(rows)
        return
    columns = [output.Column(word) for word in ("user", "tags", "vhosts", "password", "from", "limits")]
    output.print_rows(
        columns,
        [
            [
                row["user"],
                ", ".join(row["tags"]) or "–",
                ", ".join(row["vhosts"]) or "–",
                _kept(row),
                "this host" if row["loopback_only"] else "anywhere",
                ", ".join(f"{name} {value}" for name, value in row["limits"].items()) or "–",
            ]
            for row in rows
        ],
    )


def _kept(row: dict[str, Any]) -> str:
    if not row["password"]:
        return "none"
    return "Argon2" if row["hashing_algorithm"] == ARGON2 else "RabbitMQ's hash"


@users.command("add")
@DIRECTORY
@NAME
@PASSWORD_FILE
@NO_PASSWORD
@FOR_RABBITMQ
@click.option("--tag", "tags", multiple=True, help="As in RabbitMQ: administrator, monitoring …; repeatable.")
@click.option("--loopback-only", is_flag=True, help="From this host alone, as guest.")
@JSON
def add_user(
    directory: str,
    name: str,
    password_file: str | None,
    no_password: bool,
    for_rabbitmq: bool,
    tags: tuple[str, ...],
    loopback_only: bool,
    as_json: bool,
) -> None:
    """Add a user, who may do nothing before `warren gateway permissions set`. The password is asked for, or the first
    line of standard input.
    """
    users_file.check_name("user", name)
    if name in read(directory).users:  # before a password is asked for
        raise _there_already(directory, name)
    account = Account(tags=list(dict.fromkeys(tags)), loopback_only=loopback_only)
    _keep(account, _password(password_file, no_password), for_rabbitmq)
    with changing(directory) as accounts:
        if name in accounts.users:
            raise _there_already(directory, name)
        accounts.users[name] = account
    rights = command("gateway", "permissions", "set", directory, name)[:-1] + " --configure … --write … --read …`"
    done(as_json, {"user": name, "created": True}, f"user {name} is added; {rights} says what this user may do")


def _there_already(directory: str, name: str) -> UsageError:
    return UsageError(
        f"there is a user {shown(name)} already: {command('gateway', 'users', 'password', directory, name)} changes "
        "the password"
    )


@users.command("delete")
@DIRECTORY
@NAME
@JSON
def delete_user(directory: str, name: str, as_json: bool) -> None:
    """Delete a user, whose connections are closed within a second."""
    with changing(directory) as accounts:
        user_of(accounts, directory, name)
        del accounts.users[name]
    done(as_json, {"user": name, "deleted": True}, f"user {name} is deleted")


@users.command("password")
@DIRECTORY
@NAME
@PASSWORD_FILE
@NO_PASSWORD
@FOR_RABBITMQ
@JSON
def change_password(
    directory: str, name: str, password_file: str | None, no_password: bool, for_rabbitmq: bool, as_json: bool
) -> None:
    """Give a user another password, or none. Connections that are open stay."""
    user_of(read(directory), directory, name)
    password = _password(password_file, no_password)
    with changing(directory) as accounts:
        _keep(user_of(accounts, directory, name), password, for_rabbitmq)
    done(as_json, {"user": name, "password": password is not None}, f"user {name} has {_new(password)}")


def _new(password: bytes | None) -> str:
    return "no password now" if password is None else "a new password"


@users.command("tags")
@DIRECTORY
@NAME
@click.argument("tags", nargs=-1)
@JSON
def set_tags(directory: str, name: str, tags: tuple[str, ...], as_json: bool) -> None:
    """Give a user these tags instead of those before; without any: none. `impersonator` lets the property user_id be
    another one's; administrator, monitoring, policymaker and management are kept for RabbitMQ.
    """
    given = list(dict.fromkeys(tags))
    with changing(directory) as accounts:
        user_of(accounts, directory, name).tags = given
    done(
        as_json,
        {"user": name, "tags": given},
        f"user {name} has {'the tags ' + ', '.join(given) if given else 'no tags now'}",
    )


@users.command("limits")
@DIRECTORY
@NAME
@click.option("--max-connections", type=click.IntRange(-1), help="-1: no limit.")
@click.option("--max-channels", type=click.IntRange(-1), help="-1: no limit.")
@JSON
def limits_of(directory: str, name: str, max_connections: int | None, max_channels: int | None, as_json: bool) -> None:
    """Limit the connections of a user, and the channels of all of them together; all gateway processes count."""
    if max_connections is None and max_channels is None:
        raise UsageError("give --max-connections or --max-channels")
    with changing(directory) as accounts:
        limits = user_of(accounts, directory, name).limits
        set_limits({"max-connections": max_connections, "max-channels": max_channels}, limits)
    said = ", ".join(f"{limit} {value}" for limit, value in limits.items()) or "no limits now"
    done(as_json, {"user": name, "limits": limits}, f"user {name} has {said}")
