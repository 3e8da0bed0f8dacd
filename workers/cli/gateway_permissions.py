"""`warren gateway permissions`: what users of the AMQP gateway may configure, write and read."""

from __future__ import annotations

from typing import Any

import click

from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.workers.amqp import users_file
from warren.workers.amqp.users_file import DEFAULT_VHOST, Accounts, Rights, TopicRights
from warren.workers.cli import output
from warren.workers.cli.gateway_words import DIRECTORY, JSON, changing, done, read, user_of, vhost_of

VHOST = click.option("--vhost", default=DEFAULT_VHOST, show_default=True, help="The virtual host.")


@click.group()
def permissions() -> None:
    """Say what users of the AMQP gateway may configure, write and read."""


@permissions.command("list")
@DIRECTORY
@click.option("--user", "of_user", help="Of this user alone.")
@click.option("--vhost", "of_vhost", help="In this vhost alone.")
@JSON
def list_permissions(directory: str, of_user: str | None, of_vhost: str | None, as_json: bool) -> None:
    """List what users may do: regular expressions of names; with an exchange: of routing keys."""
    output.check_seen()
    accounts = read(directory)
    if of_user is not None:
        user_of(accounts, directory, of_user)
    if of_vhost is not None:
        vhost_of(accounts, directory, of_vhost)
    rows = [row for row in _rows(accounts) if of_user in (None, row["user"]) and of_vhost in (None, row["vhost"])]
    if as_json:
        output.print_json(rows)
        return
    columns = [output.Column(word) for word in ("user", "vhost", "exchange", "configure", "write", "read")]
    output.print_rows(
        columns,
        [
            [
                row["user"],
                row["vhost"],
                row.get("exchange", "–"),
                *(_pattern(row, w) for w in ("configure", "write", "read")),
            ]
            for row in rows
        ],
    )


def _words(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _checked(pattern: str) -> str:
    """The same, if it is a regular expression; else the error shows it as it was typed. Raises UsageError."""
    try:
        return users_file.check_pattern(pattern)
    except UsageError as error:
        typed = f"'{pattern}'" if pattern.isprintable() else repr(pattern)
        raise UsageError(str(error).replace(shown(pattern), typed, 1)) from None


def _pattern(row: dict[str, Any], word: str) -> str:
    found = row.get(word)
    return "–" if found is None else str(found) or "''"


def _rows(accounts: Accounts) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for user, account in sorted(accounts.users.items()):
        for vhost in sorted({*account.permissions, *account.topic_permissions}):
            rights = account.permissions.get(vhost)
            if rights is not None:
                rows.append(
                    {
                        "user": user,
                        "vhost": vhost,
                        "configure": rights.configure,
                        "write": rights.write,
                        "read": rights.read,
                    }
                )
            rows += [
                {"user": user, "vhost": vhost, "exchange": exchange, "write": topics.write, "read": topics.read}
                for exchange, topics in sorted(account.topic_permissions.get(vhost, {}).items())
            ]
    return rows


@permissions.command("set")
@DIRECTORY
@click.argument("user")
@VHOST
@click.option("--exchange", help="A topic exchange: the expressions are of routing keys.")
@click.option("--configure", metavar="REGEX", help="What may be declared and deleted.")
@click.option("--write", metavar="REGEX", help="What may be published to and bound.")
@click.option("--read", metavar="REGEX", help="What may be consumed from and bound to.")
@JSON
def set_permissions(
    directory: str,
    user: str,
    vhost: str,
    exchange: str | None,
    configure: str | None,
    write: str | None,
    read: str | None,
    as_json: bool,
) -> None:
    """Say what a user may do in a vhost: regular expressions, which are searched for in names, as in RabbitMQ ('^a' is
    what begins with a, '' nothing, '.*' everything). All three are required, with --exchange --write and --read; they
    replace those before.
    """
    if exchange is not None and configure is not None:
        raise UsageError("--exchange goes with --write and --read: routing keys are not configured")
    given = {"--configure": configure, "--write": write, "--read": read}
    if exchange is not None:
        del given["--configure"]
    missing = [name for name, pattern in given.items() if pattern is None]
    if missing:
        raise UsageError(
            f"{_words(missing)} {'is' if len(missing) == 1 else 'are'} missing: "
            f"give {'both' if len(given) == 2 else 'all'} of {_words(list(given))} ('.*' allows everything, '' nothing)"
        )
    c, w, r = (_checked(pattern or "") for pattern in (configure, write, read))
    told: dict[str, Any] = {"user": user, "vhost": vhost}
    with changing(directory) as accounts:
        account = user_of(accounts, directory, user)
        vhost_of(accounts, directory, vhost)
        if exchange is not None:
            account.topic_permissions.setdefault(vhost, {})[exchange] = TopicRights(w, r)
            told |= {"exchange": exchange, "write": w, "read": r}
        else:
            account.permissions[vhost] = Rights(c, w, r)
            told |= {"configure": c, "write": w, "read": r}
    words = ", ".join(f"{word} {_pattern(told, word)}" for word in ("configure", "write", "read") if word in told)
    where = f"vhost {vhost}" + ("" if exchange is None else f", routing keys of exchange {exchange or 'amq.default'}")
    done(as_json, told, f"user {user} in {where}: {words}")


@permissions.command("clear")
@DIRECTORY
@click.argument("user")
@VHOST
@click.option("--exchange", help="What is said of routing keys of this exchange alone.")
@JSON
def clear_permissions(directory: str, user: str, vhost: str, exchange: str | None, as_json: bool) -> None:
    """Take a user's permissions in a vhost away, and those of routing keys; the user cannot enter it any more."""
    with changing(directory) as accounts:
        account = user_of(accounts, directory, user)
        vhost_of(accounts, directory, vhost)
        topics = account.topic_permissions.get(vhost, {})
        if exchange is not None:
            there = topics.pop(exchange, None) is not None
        else:
            there = account.permissions.pop(vhost, None) is not None or bool(topics)
            topics = {}
        if topics:
            account.topic_permissions[vhost] = topics
        else:
            account.topic_permissions.pop(vhost, None)
    what = f"user {user} in vhost {vhost}" + ("" if exchange is None else f", exchange {exchange}")
    done(
        as_json,
        {"user": user, "vhost": vhost, "exchange": exchange, "cleared": there},
        f"permissions of {what} are cleared" if there else f"{what} had no permissions",
    )
