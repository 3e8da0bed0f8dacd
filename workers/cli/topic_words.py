"""What the commands of topics have in common: arguments, times, and what is said when a topic is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime

import click

from warren.engine.catalog.group_topics import owner_of
from warren.engine.catalog.names import GROUP_TOPICS
from warren.engine.errors import TopicNotFound, UsageError
from warren.engine.saying import command, shown

DIRECTORY = click.argument("directory", metavar="DIR")
NAME = click.argument("name")
JSON = click.option("--json", "as_json", is_flag=True, help="One line of JSON.")


@contextlib.contextmanager
def found(directory: str, name: str, *, makes: bool = False) -> Iterator[None]:
    """What is said when the topic is not there: where the names are and, with `makes`, how it is declared. And of what
    else a program would be told, what to type.
    """
    try:
        yield
    except TopicNotFound as error:
        if not str(error).startswith("there is no topic"):
            raise
        raise not_there(directory, name, makes=makes) from None
    except UsageError as error:
        said = str(error)
        for theirs, ours in (
            ("topic.groups() lists them", f"{command('topic', 'groups', directory, name)} lists them"),
            ("close its readers, or give force=True (--force)", "end its readers, or give --force"),
            ("close its readers first", "end its readers first"),
        ):
            said = said.replace(theirs, ours)
        error.args = (said,)
        raise


def check_not_of_a_group(directory: str, name: str, does: str) -> None:
    """Raises UsageError for a topic of a group's: what comes into it otherwise has not what its readers look for."""
    owner = owner_of(name)
    if owner is not None:
        raise UsageError(
            f"topic {shown(name)} belongs to group {shown(owner.group)} of topic {shown(owner.topic)}, and gets its "
            f"messages from readers of the group alone: {command('topic', does, directory, owner.topic)} is what you "
            "can do"
        )


def not_there(directory: str, name: str, *, makes: bool = False) -> TopicNotFound:
    of_group = name.startswith(GROUP_TOPICS)
    advice = f"{command('topic', 'list', directory, *(['--all'] if of_group else []))} shows the names"
    if makes and not of_group:
        advice = f"{command('topic', 'create', directory, name)} creates it, {advice}"
    return TopicNotFound(f"there is no topic {shown(name)}: {advice}")


def moment(option: str, text: str, more: str = "") -> datetime:
    """A time that was given; without a zone it is local."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(f"{option} {shown(text)}: give {more}a time as 2026-05-01T12:30:00") from None
