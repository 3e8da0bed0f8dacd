"""`warren`: the list of commands. Each is loaded when it is called, so `warren status` does not pay for Spark."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from typing import NoReturn

import click

from warren.engine.errors import UsageError
from warren.engine.saying import command, shown
from warren.workers.cli import output

#: command → module that has a click command of that name, with `_` for `-`
COMMANDS = {
    "up": "node",
    "status": "node",
    "stop": "node",
    "top": "node",
    "queue": "queues",
    "exchange": "queues",
    "subscriptions": "subscriptions",
    "topic": "topics",
    "publish": "messages",
    "consume": "messages",
    "peek": "messages",
    "demo": "demo",
    "bench": "tools",
    "stress": "tools",
    "inspect": "inspect",
    "check": "check",
    "clean": "clean",
    "transactions": "transactions",
    "gateway": "gateway",
    "import": "definitions",
    "export": "definitions",
    "spark": "spark",
}
SUMMARIES = {
    "up": "Run a node for a directory",
    "status": "Show processes, clients, queues and alarms",
    "stop": "Shut down a node",
    "top": "Watch a node live",
    "queue": "Declare, list, bind, purge and delete queues",
    "exchange": "Declare, list and delete exchanges",
    "subscriptions": "List what streams of Spark hold of queues, and give it back",
    "topic": "Declare, list, append to, read and delete topics",
    "publish": "Publish lines or a file",
    "consume": "Print messages of a queue, and take them",
    "peek": "Print messages of a queue, and leave them there",
    "demo": "Run the main job on real flights, and check it",
    "bench": "Measure this machine and Warren on it",
    "stress": "Kill producers and consumers, and count every message",
    "inspect": "Show the shared memory of a node",
    "check": "Verify every file of a data directory",
    "clean": "Remove what killed nodes have left in shared memory",
    "transactions": "List the transactional sinks of Spark jobs, finish or forget one",
    "gateway": "Users, permissions and virtual hosts of the AMQP gateway",
    "import": "Declare what RabbitMQ has exported",
    "export": "Write what is declared as RabbitMQ's definitions",
    "spark": "Scan, audit, export, republish, report: pipelines on Spark",
}


#: what commands are called elsewhere
ALIASES = {
    **dict.fromkeys(("start", "run", "serve"), "up"),
    **dict.fromkeys(("down", "kill"), "stop"),
    **{word: f"queue {word}" for word in ("declare", "bind", "unbind", "purge", "delete", "list")},
    **dict.fromkeys(("ls", "queues"), "queue list"),
    "exchanges": "exchange list",
    "topics": "topic list",
    **{word: f"topic {word}" for word in ("append", "tail", "find")},
    **dict.fromkeys(("put", "send", "push"), "publish"),
    **dict.fromkeys(("get", "receive", "pop", "read"), "consume"),
    **dict.fromkeys(("browse", "head", "show"), "peek"),
    "help": "--help",
    "version": "--version",
}


class Commands(click.Group):
    """Loads a command's module when the command is asked for."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The same; for a name that is none the error says which are like it."""
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        import difflib

        if name in ("log", "logs"):
            raise UsageError(
                f"there is no command {shown(name)}: the logs of a node are the files in DIR/log "
                "(`tail -f DIR/log/*.log`)"
            )
        if name == "help" and args[1:] and args[1] in COMMANDS:
            raise UsageError(f"there is no command {shown(name)}: did you mean {command(*args[1:], '--help')}?")
        like = [ALIASES[name]] if name in ALIASES else difflib.get_close_matches(name, COMMANDS, 2)
        advice = (
            f"did you mean {' or '.join(command(*word.split()) for word in like)}?"
            if like
            else f"{command('--help')} lists them"
        )
        raise UsageError(f"there is no command {shown(name)}: {advice}")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"warren.workers.cli.{COMMANDS[cmd_name]}")
        found = getattr(module, cmd_name, None) or getattr(module, f"{cmd_name}_")  # `import` is no name in Python
        if not isinstance(found, click.Command):
            raise TypeError(f"{module.__name__}.{cmd_name} is not a click command")
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="warren", message="%(prog)s %(version)s")
def warren() -> None:
    """A durable message engine in shared memory, for the Python processes of one host and for Spark.

    DIR is always the data directory of a node.
    """


def invoke(arguments: list[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    # numpy's helper threads would not survive the forks of a supervisor, and nothing here multiplies matrices
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = sys.argv[1:] if arguments is None else arguments
    words = words[: words.index("--")] if "--" in words else words
    as_json = "--json" in words or "--format=json" in words or ("--format", "json") in itertools.pairwise(words)
    return output.run(lambda: warren.main(arguments, prog_name="warren", standalone_mode=False), as_json)


def main() -> NoReturn:
    """Entry point of the command."""
    output.open_streams()
    sys.exit(invoke())


if __name__ == "__main__":
    main()
