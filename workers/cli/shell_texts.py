"""What errors say to programs, in the words of the command line: options and commands, not arguments and methods."""

from __future__ import annotations

import re
from collections.abc import Callable

from warren.engine.saying import command, for_a_shell

_TEXTS: list[tuple[re.Pattern[str], Callable[[re.Match[str]], str] | str]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^(key|tag) must be (.+) or None, not ", r"--\1 must be \2 or none, not "),
        (r"^key must not be empty, and ", "--key must not be empty, and "),
        (r"^tag must not be empty: None is for.*", "--tag must not be empty: leave it out for all messages"),
        (r"\(give a list of them\)", "(give each of them with --key)"),
        (r"\bdelay_level (and|both|must)\b", r"--delay-level \1"),
        (r"^(delay|at) and ", r"--\1 and "),
        (r" and at (and|both) ", r" and --at \1 "),
        (r"^at must be (.+), not datetime\..*", r"--at must be \1"),
        (r"^delay must be ", "--delay must be "),
        (r"^queue must be None or a number ", "--queue must be a number "),
        (r"^queue must be a whole number ", "--queue must be a whole number "),
        (
            r"^where: 'earliest', 'latest', a datetime or an offset; must be a whole number from 0 to (\d+), not ",
            r"WHERE must be earliest, latest, a time, or an offset from 0 to \1, not ",
        ),
        (r"^(start|end): \{(\d+): (\d+)\} is ", r"--\1 \2=\3 is "),
        (r"leave out retention_s and retention_bytes, or compacted$", "leave out one or the other"),
        (r"\b(retention_s|retention_bytes)=None\b", r"\1=none"),
        (r": or give damage='skip', and what is damaged is passed by(; )?", lambda found: ": " if found[1] else ""),
        (r", or give damage='skip'", ""),
    )
]
_STOPPED = re.compile(r"the node of (.+) was stopped: start it again, or close this client")


def for_the_command_line(text: str) -> str:
    """What is said, for somebody who typed a command."""
    text = _STOPPED.sub(lambda found: f"the node of {found[1]} was stopped: {command('up', found[1])} starts it", text)
    for pattern, replacement in _TEXTS:
        text = pattern.sub(replacement, text)
    return for_a_shell(text)
