"""Consent: commands that destroy messages say how many, and ask; --yes is the answer of scripts."""

from __future__ import annotations

import sys

import click

from warren.engine.errors import UsageError
from warren.engine.saying import counted

YES = click.option("--yes", "-y", is_flag=True, help="Do not ask: the messages go, too.")


def consented(yes: bool, messages: int, where: str, undone: str = "nothing was deleted") -> None:
    """Ask for consent to delete messages, unless there are none. Raises UsageError where nobody can be asked."""
    if yes or not messages:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{where}: {counted(messages, 'message')} would be lost, and {undone}: --yes agrees to that")
    ask(f"{where}: {counted(messages, 'message')} will be lost. Continue?", undone)


def ask(question: str, undone: str) -> None:
    """Ask at a terminal. Raises Exit (1) for a no, Abort for Ctrl-C and Ctrl-D; both say what was not done."""
    try:
        agreed = click.confirm(question, default=False, err=True)
    except click.Abort:
        print(f"\n{undone}", file=sys.stderr)
        raise
    if not agreed:
        print(undone, file=sys.stderr)
        raise click.exceptions.Exit(1)
