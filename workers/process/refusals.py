"""Why a server cannot serve at all: it says so in the last line of its log, and ends with EXIT_DO_NOT_RESTART.

Nobody starts it again, so the line stays the last one. Whoever needs that server says it in its own words: a client,
`warren status`. What is not there any more (the log was removed, or cannot be read) is not said.
"""

from __future__ import annotations

import json
from pathlib import Path

from warren.engine.kernel import data_files

CANNOT_SERVE = "cannot serve: "
_READ_BYTES = 64 << 10


def refusal(log: Path) -> str:
    """What the last line of a server's log says, if it is why the server cannot serve; else empty."""
    try:
        with data_files.reading(log) as file:
            file.seek(max(0, file.seek(0, 2) - _READ_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    line = lines[-1] if lines else ""
    if line.startswith("{"):  # log_format=json
        try:
            found = json.loads(line)
        except ValueError:
            return ""
        line = f": {found.get('text', '')}" if isinstance(found, dict) else ""
    _before, marker, why = line.partition(f": {CANNOT_SERVE}")
    return why if marker else ""


def because(log: Path) -> str:
    """The same in parentheses, behind a blank; empty without one."""
    why = refusal(log)
    return f" ({why})" if why else ""
