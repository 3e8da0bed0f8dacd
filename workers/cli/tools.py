"""`warren bench` and `warren stress`: tools with options of their own, loaded when they are called."""

from __future__ import annotations

import importlib

import click

_OWN_OPTIONS = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


def _run(tool: str, words: tuple[str, ...]) -> int:
    """Run a tool's `main(arguments)`; argparse's exits become exit codes."""
    try:
        code = importlib.import_module(f"warren.tools.{tool}").main(list(words))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    return int(code or 0)


@click.command(context_settings=_OWN_OPTIONS)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def bench(words: tuple[str, ...]) -> int:
    """Measure this machine and Warren on it; `warren bench --help` lists the options."""
    return _run("bench", words)


@click.command(context_settings=_OWN_OPTIONS)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def stress(words: tuple[str, ...]) -> int:
    """Kill producers, consumers and servers, and count every message; `warren stress --help` lists the options."""
    return _run("stress", words)
