"""`warren check` of the sinks: their states, and the parts that a commit names. It changes nothing, and may run beside
Spark: a part that goes, or a state that changes meanwhile, is looked at again.

What a repair may do is little: nothing else has what a state or a part says. It removes what no commit names and no
task writes; what is damaged stays where it is, and is named.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from warren.engine.errors import Error, PermissionRefused, TimedOut
from warren.engine.kernel import data_files
from warren.engine.saying import counted
from warren.engine.transactions import state as states
from warren.engine.transactions.folder import PartName, SinkFolder, sinks, strangers
from warren.engine.transactions.parts import PartReader, is_written
from warren.engine.transactions.state import Pending

#: how often a sink is looked at that changes during the look
LOOKS = 5
_LOCK_S = 1.0


class Checked:
    """What a look at a file of a sink found."""

    def __init__(self, path: Path, kind: str, records: int = 0, problem: str = "", note: str = "") -> None:
        self.path = path
        self.kind = kind
        self.records = records
        self.problem = problem  #: bytes that are not what was written
        self.note = note  #: no damage, but worth knowing
        self.bytes = 0
        with contextlib.suppress(OSError):
            self.bytes = path.stat().st_size


def examine(directory: Path, node_id: int) -> list[Checked]:
    """Look at all sinks."""
    found = [each for folder in sinks(directory) for each in _sink(folder, node_id)]
    return found + [Checked(path, "foreign", note=said) for path, said in strangers(directory)]


def _sink(folder: SinkFolder, node_id: int) -> list[Checked]:
    for _ in range(LOOKS - 1):
        before = _stamp(folder)
        found = _look(folder, node_id)
        if before == _stamp(folder) or not any(each.problem for each in found):
            return found
    return _look(folder, node_id)


def _stamp(folder: SinkFolder) -> tuple[int, int]:
    try:
        found = folder.state.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _look(folder: SinkFolder, node_id: int) -> list[Checked]:
    named: set[str] = set()
    found = []
    try:
        state = states.load(folder, node_id)
    except Error as error:
        return [Checked(folder.state, "sink", problem=str(error).removeprefix(f"{folder.state} "))]
    if state is not None:
        told = Checked(folder.state, "sink", state.number)
        found.append(told)
        if state.pending is not None:
            named = {part.name for part in state.pending.parts}
            told.note = said_of(state.pending)
            found += _parts(folder, state.pending)
    try:
        names = folder.in_staged()
    except Error as error:
        return [*found, Checked(folder.staged, "foreign", note=str(error))]
    for name in names:
        if PartName.of(name) is None:
            found.append(Checked(folder.staged / name, "foreign", note="does not belong here; it is left alone"))
        elif name not in named:
            found.append(Checked(folder.staged / name, "part", note="is staged, and no commit names it (yet)"))
    return found


def said_of(pending: Pending) -> str:
    """What is told of a batch that is committed and not everywhere yet."""
    left = counted(pending.messages - pending.done, "message")
    what = "a write" if pending.batch is None else f"batch {pending.batch}"
    return f"{what} is committed, and {left} of it may not be in topics and queues yet: the next commit finishes it"


def _parts(folder: SinkFolder, pending: Pending) -> list[Checked]:
    found = []
    for part in pending.parts:
        told = Checked(folder.staged / part.name, "part", part.messages)
        try:
            with PartReader(folder, part) as reader:
                reader.verify()
        except Error as error:
            told.problem = str(error).removeprefix(f"{told.path} ")
        found.append(told)
    return found


def repair(directory: Path, node_id: int) -> tuple[list[str], list[Checked]]:
    """Remove parts that no commit names and nobody writes, with the node down: no task that could still be committed is
    alive then. Returns what was done, and what is left to other users. What is damaged stays."""
    done, left = [], []
    for folder in sinks(directory):
        try:
            folder.check_mine()
        except PermissionRefused as error:
            left.append(Checked(folder.path, "sink", note=f"is left as it is: {error}"))
            continue
        with contextlib.suppress(TimedOut), folder.locked(_LOCK_S):
            try:
                state = states.load(folder, node_id)
            except Error:
                continue  # `examine` tells of it
            named = {part.name for part in state.pending.parts} if state is not None and state.pending else set()
            for _name, path in folder.parts():
                if path.name not in named and not data_files.instead(path) and not is_written(path):
                    data_files.unlink(path)
                    done.append(f"{path}: removed, no commit names it")
    return done, left
