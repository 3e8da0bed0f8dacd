"""How the command line talks: errors in one line, exit codes for scripts, numbers for people.

With --json (and --format json) an error is a line of JSON, too: {"error": class of warren's errors, "message": text},
on standard error.

Exit codes: 0 well; 1 an error; 2 wrong usage, or the directory is in use; 3 no node runs, or a node that cannot run
(do not restart it); 4 a time was not enough; 130 interrupted.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import signal
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

import click
import msgspec

from warren.engine.errors import (
    CatalogCut,
    CorruptRecord,
    DeclarationMismatch,
    DirectoryInUse,
    Error,
    ExchangeNotFound,
    FormatVersionError,
    NodeNotRunning,
    PermissionRefused,
    QueueEmpty,
    QueueNotFound,
    TimedOut,
    UsageError,
)
from warren.engine.saying import (
    AS_IT_IS,
    DECLARE,
    NOTHING_DELETED,
    command,
    inert,
    near,
    not_installed,
    readable,
    shown,
)
from warren.workers.cli.shell_texts import for_the_command_line
from warren.workers.process.exit_codes import ERRORS_VARIABLE, EXIT_TIMEOUT

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: rows of a table of queues or clients that are shown when not all are asked for
ROWS = 40
#: screens that are narrower get fewer columns
NARROW = 120
#: messages a second: a rate is below
RATE_END = 1e9
#: characters of what is said of a wrong command line
SAID_MAX = 500
EXIT_ERROR, EXIT_USAGE, EXIT_NOT_RUNNING, EXIT_INTERRUPTED = 1, 2, 3, 130


class Column(NamedTuple):
    """One of a table."""

    name: str
    right: bool = False


def exit_code(error: Error) -> int:
    """The exit code that says what kind of error it was."""
    if isinstance(code := getattr(error, "exit_code", None), int):
        return code
    if isinstance(error, (UsageError, DirectoryInUse)):
        return EXIT_USAGE
    if isinstance(error, (NodeNotRunning, FormatVersionError, CatalogCut, CorruptRecord, PermissionRefused)):
        return EXIT_NOT_RUNNING
    if isinstance(error, (TimedOut, QueueEmpty)):
        return EXIT_TIMEOUT
    return EXIT_ERROR


#: units of times and sizes, as they are typed
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_BYTES = {
    "b": 1,
    **{f"{letter}{end}": 1024**power for power, letter in enumerate("kmgt", 1) for end in ("", "ib")},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}
_AMOUNT = re.compile(r"([+-]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})) ?([a-z]+)", re.ASCII | re.IGNORECASE)


def _amount(text: object, units: dict[str, int] | dict[str, float]) -> Fraction | None:
    """What is said with a unit: 90s, 1.5 GiB."""
    found = _AMOUNT.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or found[2].lower() not in units:
        return None
    return Fraction(found[1]) * Fraction(str(units[found[2].lower()]))


class Seconds(click.FloatRange):
    """Type of an option: seconds, at least `min`, and a number that ends; or a time with its unit."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        amount = _amount(value, _SECONDS)
        if amount is None and not _is(float, value):
            self.fail(f"{shown(value)} is no time: give a number of seconds, or one with ms, s, m, h or d.", param, ctx)
        found = super().convert(value if amount is None else float(amount), param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return found


class Bytes(click.IntRange):
    """Type of an option: a number of bytes, or a size with its unit."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        amount = _amount(value, _BYTES)
        if amount is None and not _is(int, value):
            self.fail(
                f"{shown(value)} is no size: give a number of bytes, or one with K, M, G or T (1K is 1,024 bytes, as "
                "1KiB; 1KB is 1,000).",
                param,
                ctx,
            )
        found = super().convert(value if amount is None else int(amount), param, ctx)
        if found >= 1 << 63:
            self.fail(f"{shown(value)} is more than can be counted: up to {(1 << 63) - 1} bytes can.", param, ctx)
        return found


class Count(click.IntRange):
    """Type of an option: a whole number in plain digits, of 64 bits with a sign at most."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not _is(int, value):
            self.fail(f"{shown(value)} is not a whole number.", param, ctx)
        found = super().convert(value, param, ctx)
        if found >= 1 << 63:
            self.fail(f"{shown(value)} is more than can be counted, which is up to {(1 << 63) - 1}.", param, ctx)
        return found


class Rate(click.FloatRange):
    """Type of an option: messages a second, above 0 and below `RATE_END`."""

    name = "rate"

    def __init__(self) -> None:
        super().__init__(0, RATE_END, min_open=True, max_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not _is(float, value) or not 0 < float(value) < RATE_END:
            self.fail(f"{shown(value)} is no number of messages a second above 0, and below 1,000,000,000.", param, ctx)
        return super().convert(value, param, ctx)


def _is(kind: Callable[[Any], object], value: object) -> bool:
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        return False  # Python takes 1_0, and digits of any script
    try:
        kind(value)
    except ValueError:
        return False
    return True


#: standard streams that this process was started without
_closed: set[str] = set()


def check_seen(what: str = "prints") -> None:
    """Raises UsageError when standard output is closed, for a command that does nothing but print, or takes away what
    it prints. What is asked for its exit code, too, as `status` and `check`, does without.
    """
    if "stdout" in _closed:
        raise UsageError(
            f"standard output is closed, so nobody would see what this {what}: open it, if only as > /dev/null"
        )


def open_streams() -> None:
    """Open /dev/null in the place of standard streams that this process was started without (`>&-`): what is opened
    next would get their descriptors, and be written to.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            _closed.add(name)
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:  # a lower one is closed again: nobody but us closes any, and not now
                raise RuntimeError(f"descriptor {descriptor} cannot be opened") from None
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "r" if descriptor == 0 else "w", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # names are UTF-8, and the terminal may not be
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper):
        written = io.BufferedWriter(_Output(sys.stdout.fileno(), "w", closefd=False))
        encoding, lines = sys.stdout.encoding, sys.stdout.line_buffering
        sys.stdout = io.TextIOWrapper(written, encoding, "backslashreplace", line_buffering=lines)


class OutputFailed(OSError):
    """Standard output takes nothing more."""


class _Output(io.FileIO):
    """Standard output, whose failures are known from those of other files."""

    def write(self, data: Any, /) -> int | None:  # type: ignore[override]  # a buffer, as of FileIO
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise BrokenPipeError from error  # without errno, or click ends the process with exit code 1
        except OSError as error:
            raise OutputFailed(error.errno, error.strerror) from error


def say(line: str, *, error: bool = False) -> None:
    """Print a line for people, which nobody may be there to read: what goes on does not depend on it."""
    try:
        print(line, file=sys.stderr if error else sys.stdout, flush=True)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2 if error else 1)  # or what is left in the buffer fails again at every flush, and at the end
        os.close(null)


#: whether errors, and what is waited for, are lines of JSON
_json = False


def run(call: Callable[[], Any], as_json: bool = False) -> int:
    """Run a command; an error becomes one line on standard error (`as_json`: of JSON) and an exit code.
    WARREN_DEBUG=1: tracebacks.
    """
    global _json
    _json = as_json or bool(os.environ.get(ERRORS_VARIABLE))
    debug = os.environ.get("WARREN_DEBUG") == "1"
    try:
        result = call()
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message(), error=True)
        return error.exit_code
    except click.ClickException as error:
        return _fail("UsageError", _advised(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `warren … | head`
        _drop_output()
        return 0
    except Error as error:
        if debug:
            traceback.print_exc()
        said = str(error) if os.environ.get(ERRORS_VARIABLE) else for_the_command_line(str(error))
        return _fail(type(error).__name__, said, exit_code(error))
    except OutputFailed as error:
        _drop_output()
        return _fail(
            "Error", f"cannot write to standard output: {error.strerror}; what was done stays done", EXIT_ERROR
        )
    except ModuleNotFoundError as error:
        if debug:
            traceback.print_exc()
        return _fail("Error", str(not_installed(error, "this command")), EXIT_ERROR)
    except Exception as error:  # noqa: BLE001 - a mistake of ours still ends in one line, and says how to see more
        if debug:
            traceback.print_exc()
        return _fail("Error", f"{type(error).__name__}: {error} (WARREN_DEBUG=1 shows where)", EXIT_ERROR)
    return result if isinstance(result, int) else 0


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends what runs here as Ctrl-C does: it stops what it began, and says what is left to do."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _drop_output() -> None:
    """What is left for standard output goes nowhere: it would fail again at every flush, and at the end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _explained(error: click.ClickException) -> str:
    """Where to read about the command that a wrong command line is of."""
    context = getattr(error, "ctx", None)
    return f"{command(*(context.command_path.split()[1:] if context else ()), '--help')} explains"


def _advised(error: click.ClickException) -> str:
    """What click says of a wrong command line, with how it is written and where to read about it."""
    said = error.format_message().strip()
    if isinstance(error, click.BadParameter) and error.param is not None and isinstance(error.param.type, click.Choice):
        given = re.match(r"Invalid value[^:]*: '(.*)' is not one of", said, re.DOTALL)
        if given is not None:  # the usage would repeat them all
            like = near(given[1], map(str, error.param.type.choices))
            return f"{shown(given[1])} is not a valid {error.param.human_readable_name}: {like} ({_explained(error)})"
    said = said[:1].lower() + said[1:].rstrip(".")
    said = said if len(said) <= SAID_MAX else f"{said[: SAID_MAX - 1]}…"  # it repeats what was given
    context = getattr(error, "ctx", None)
    if context is None:
        return said
    explained = _explained(error)
    if said.endswith("?"):
        return f"{said} ({explained})"
    usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
    return f"{said}; write `{usage}` ({explained})"


def _fail(kind: str, message: str, code: int) -> int:
    if _json:
        _tell(error=kind, message=message)
    else:
        say(f"warren: {escaped_lines(message)}", error=True)
    return code


@contextlib.contextmanager
def found_in(
    directory: str,
    *,
    queue: str | None = None,
    exchange: str | None = None,
    queues: Sequence[str] = (),
    topic: str | None = None,
) -> Iterator[None]:
    """What a command says when a queue or an exchange is not there: where the names are and, when it could be declared
    first (`queue`, `exchange`: its name), how; and when one is there, or a `topic`, and differs. `queues`: those that
    are declared together.
    """
    try:
        yield
    except DeclarationMismatch as error:
        said, colon, _rest = str(error).rpartition(": topic.set(), or ")
        if colon and topic:
            raise DeclarationMismatch(f"{said}: {command('topic', 'set', directory, topic)} changes it") from None
        said, colon, _rest = str(error).rpartition(f": {AS_IT_IS}")
        if colon and topic:
            append, tail, delete = (command("topic", what, directory, topic) for what in ("append", "tail", "delete"))
            raise DeclarationMismatch(
                f"{said}: {append} and {tail} use it as it is; to change it, {delete} first"
            ) from None
        queue = queue or next((name for name in queues if said.startswith(f"queue {name!r} exists")), None)
        if not (colon and queue):
            raise
        raise DeclarationMismatch(
            f"{said}: {command('publish', directory, queue)} and {command('consume', directory, queue)} use it as it "
            f"is; to change it, {command('queue', 'delete', directory, queue)} first"
        ) from None
    except (QueueNotFound, ExchangeNotFound) as error:
        thing, make = ("queue", queue) if isinstance(error, QueueNotFound) else ("exchange", exchange)
        advice = f"{command(thing, 'list', directory)} shows the names"
        if make:
            advice = f"{command(thing, 'declare', directory, make)} creates it, {advice}"
        for theirs, ours in ((DECLARE, advice), (NOTHING_DELETED, f"{NOTHING_DELETED}; {advice}")):
            said, colon, _rest = str(error).rpartition(f": {theirs}")
            if colon:
                raise type(error)(f"{said}: {ours}") from None
        raise


def pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    """What NAME=VALUE options say."""
    found = {}
    for item in given:
        name, sign, value = item.partition("=")
        if not sign or not name:
            raise UsageError(f"{option} {shown(item)}: write NAME=VALUE")
        found[name] = value
    return found


def _json_of(value: Any) -> bytes:
    """JSON, which is UTF-8. Names of files need be none: what is not is escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_readable_in(msgspec.to_builtins(value)))


def _readable_in(value: Any) -> Any:
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, dict):
        return {_readable_in(name): _readable_in(item) for name, item in value.items()}
    return [_readable_in(item) for item in value] if isinstance(value, (list, tuple)) else value


def print_json(value: Any) -> None:
    """One line of JSON, which is UTF-8 whatever the terminal is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(_json_of(value) + b"\n")
    sys.stdout.buffer.flush()


def done(answer: dict[str, Any], word: str | None = None) -> dict[str, Any]:
    """What the supervisor answers to what makes nothing: it says "created" of whatever changed. `word` says it then."""
    told = {name: value for name, value in answer.items() if name != "created"}
    return told if word is None else {**told, word: answer["created"]}


#: what a terminal obeys, or shows as nothing: control and format characters (as U+202E, right to left), line ends
_UNSHOWN = ("Cc", "Cf", "Zl", "Zp", "Cs")


def escaped(text: object) -> str:
    """Text of others for a terminal: control and format characters are shown as \\x1b, \\u202e and do nothing."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) in _UNSHOWN else c for c in shown)


def escaped_lines(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(escaped, text.split("\n")))


def found_path(path: object, directory: object) -> str:
    """The path of what was found below a directory, for a line: no name in it does anything to a terminal, a reader of
    lines or a shell.
    """
    above, text = f"{directory}/", str(path)
    if not text.startswith(above):
        return inert(text) if text != str(directory) else escaped(text)
    return escaped(above) + inert(text.removeprefix(above))


def _tell(**said: str | bool) -> None:
    """A line of JSON beside the output."""
    say(_json_of(said).decode(), error=True)


def waiting(what: str) -> None:
    """Tell people what a command waits for."""
    if _json:
        _tell(waiting=what)
    else:
        say(f"warren: waiting: {escaped(what)}", error=True)


class Group(click.Group):
    """Commands of one kind. `elsewhere`: what some are called in another group, and here."""

    elsewhere: ClassVar[dict[str, str]] = {"show": "describe", "describe": "show"}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The same; for such a name the error says what it is called here."""
        name, *rest = args
        here = self.elsewhere.get(name)
        if name not in self.commands and here in self.commands:
            raise UsageError(
                f"there is no command '{self.name} {name}': did you mean {command(str(self.name), here, *rest)}?"
            )
        return super().resolve_command(ctx, args)


def note(what: str) -> None:
    """Tell people what they have to know beside the result."""
    if _json:
        _tell(note=what)
    else:
        say(f"warren: {escaped(what)}", error=True)


def starting(what: str, outside: bool) -> None:
    """Tell people, or the program that asked for it, what a start waits for; `outside`: it does not end by itself."""
    if os.environ.get(ERRORS_VARIABLE):
        _tell(waiting=what, outside=outside)
    else:
        waiting(what)


def started(what: str) -> None:
    """Tell the program that asked for a start what was started."""
    if os.environ.get(ERRORS_VARIABLE):
        _tell(started=what)


def console() -> Console:
    """Standard output for tables; as wide as it has to be when it is not a terminal."""
    from rich.console import Console

    class Standard(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `run` knows what that means; rich would end with exit code 1

    return Standard(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=not sys.stdout.isatty())


def more(shown: int, count: int, all_of_them: str) -> str:
    """The line below a table that does not show all rows; empty when it does."""
    return f"and {count - shown:,} more: {all_of_them}" if count > shown else ""


def print_rows(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A table of any length, each row on one line however long that is: rich needs a second for a thousand rows."""
    from rich.cells import cell_len

    lines = [[column.name for column in columns], *(list(map(escaped, row)) for row in rows)]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        filled = (" " * (width - cell_len(cell)) for width, cell in zip(widths, line, strict=True))
        cells = (
            space + cell if column.right else cell + space
            for column, cell, space in zip(columns, line, filled, strict=True)
        )
        print("  ".join(cells).rstrip())


def table(title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Table:
    """A table fitted to the screen; the first column is folded, and never cut."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        made.add_column(
            column.name, justify="right" if column.right else "left", overflow="ellipsis" if number else "fold"
        )
    for row in rows:
        made.add_row(
            *(Text(escaped(cell)) for cell in row)
        )  # as text: what looks like markup of rich in a name is part of the name
    return made


def bytes_text(count: float) -> str:
    """A number of bytes for people: 12 B, 3.4 KiB, 5.6 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def rate_text(rate: float) -> str:
    """A rate for people: –, 12/s, 3.4 k/s, 5.6 M/s."""
    if rate < 0.05:
        return "–"
    if rate < 1000:
        return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
    return f"{rate / 1e3:.1f} k/s" if rate < 1e6 else f"{rate / 1e6:.2f} M/s"
