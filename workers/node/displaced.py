"""What lies where a file or a folder of Warren's has to be, and is none: a link, a pipe, a folder in place of a file.
Nothing is read through it, so that what belongs there counts as missing: a start takes its messages for lost.

`warren check` names each; a repair refuses (`refuse`), since it would give up what only has to be put back. A link is
named under any name: no start takes one (ownership.py). What lies deeper in the folder of topics is theirs
(engine/topics/foreign.py). Where members make something, too, a start and a repair pass by what they put there, else
each of them could hold up both; `check` names it (`planted`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warren.engine.catalog import catalog
from warren.engine.catalog.node_directory import LAUNCH, LOCK, LOG, NODE
from warren.engine.catalog.ownership import is_meeting_place
from warren.engine.errors import UsageError
from warren.engine.kernel import atomic_file, data_files, quarantine
from warren.engine.kernel.paths import LARGE, QUEUES, STORES, TOPICS, TRANSACTIONS
from warren.engine.saying import inert
from warren.ipc.doorbells import FOLDER as DOORBELLS

#: such things that a refusal names one by one
NAMED_MAX = 5
_NUMBER = "(?:0|[1-9][0-9]{0,18})"
#: what has to be a folder, and a file, by its path in the directory
_FOLDERS = re.compile(
    rf"{LOG}|{DOORBELLS}|{TOPICS}|{TRANSACTIONS}|{STORES}|{STORES}/(?:persistent|transient)(?:/{quarantine.QUARANTINE})?"
    rf"|{QUEUES}|{QUEUES}/worker-[0-9]+(?:/(?:journal|transient|segments|{LARGE}|{quarantine.QUARANTINE}))?"
    rf"|{QUEUES}/worker-[0-9]+/segments/[0-9]+",
    re.ASCII,
)
_FILES = re.compile(
    rf"{NODE}|{LOCK}|{LAUNCH}|{re.escape(catalog.FILE_NAME)}|catalog\.{_NUMBER}\.log|{LOG}/[a-z0-9-]+\.log"
    rf"|{STORES}/(?:persistent|transient)/(?:{_NUMBER}\.(?:rdq|lst|free|lost)|files|clean|epoch)"
    rf"|{QUEUES}/worker-[0-9]+/(?:files|terms|epoch|subscriptions\.json"
    rf"|(?:journal|transient)/{_NUMBER}\.jnl|transient/rows|segments/{_NUMBER}\.dat"
    rf"|segments/[0-9]+/(?:{_NUMBER}\.idx|terms))",
    re.ASCII,
)


@dataclass(frozen=True)
class Displaced:
    """What lies in the place of something else. `hides`: "file", "folder"; empty: nothing is known to belong there."""

    path: Path
    what: str  #: "a pipe", "a symbolic link of user bob (1002)"
    hides: str

    @property
    def text(self) -> str:
        """What it is, for people."""
        return f"{self.what} lies here" + (f", where a {self.hides} of Warren's belongs" if self.hides else "")

    @property
    def advice(self) -> str:
        """What to do."""
        if not self.hides:
            return "a data directory has no links: move it away"
        return f"put the {self.hides} back in its place; who only moves this away loses what is in the {self.hides}"


def find(directory: Path) -> list[Displaced]:
    """All of a data directory, whatever runs; nothing is changed. Raises StoreError."""
    with atomic_file.file_explained(f"cannot look at {directory}"):
        return list(_within(directory, ()))


def refuse(directory: Path) -> None:
    """Before a repair. Raises UsageError when there is such a thing, StoreError."""
    found = find(directory)
    if not found:
        return
    named = "; ".join(f"{inert(str(item.path))}: {item.text}: {item.advice}" for item in found[:NAMED_MAX])
    more = f"; and {len(found) - NAMED_MAX} more, see `warren check`" if len(found) > NAMED_MAX else ""
    raise UsageError(f"nothing was changed: {named}{more}")


def planted(directory: Path) -> list[tuple[Path, str]]:
    """(path, what it is) of what lies in the folders where members make something, too, and is nothing that Warren
    makes there. Nothing is followed. Raises StoreError.
    """
    found = []
    with atomic_file.file_explained(f"cannot look at {directory}"):
        places = [directory / DOORBELLS, directory / TRANSACTIONS, *directory.glob(f"{QUEUES}/worker-*/{LARGE}")]
        for place in sorted(places):
            inside = place.relative_to(directory).parts
            if any(data_files.instead(directory.joinpath(*inside[:n]), folder=True) for n in range(1, len(inside) + 1)):
                continue  # `find` names it
            for folder, folders, files in os.walk(place):  # what a member has shut is left out
                paths = [Path(folder, name) for name in sorted(folders + files)]
                looked = ((path, _strange(path, place.name if path.parent == place else "")) for path in paths)
                found += [(path, what) for path, what in looked if what]
    return found


def _strange(path: Path, place: str) -> str:
    """What something is that has no business directly in a folder (`place`), or below one; empty: nothing strange."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:  # it went meanwhile
        return ""
    if place == DOORBELLS:
        return "" if stat.S_ISSOCK(mode) else data_files.instead(path) or "a file"
    return data_files.instead(path) if place == LARGE or stat.S_ISLNK(mode) else ""


def _within(directory: Path, above: tuple[str, ...]) -> Iterator[Displaced]:
    try:
        with os.scandir(directory.joinpath(*above)) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:  # it went meanwhile
        return
    for entry in found:
        names = (*above, entry.name)
        inside = "/".join(names)
        folder = entry.is_dir(follow_symlinks=False)
        hides = "folder" if _FOLDERS.fullmatch(inside) else "file" if _FILES.fullmatch(inside) else ""
        wrong = entry.is_symlink() or (
            not folder if hides == "folder" else hides and not entry.is_file(follow_symlinks=False)
        )
        if wrong and (what := data_files.instead(entry.path, folder=hides == "folder")):
            yield Displaced(Path(entry.path), what, hides)
        elif folder and not is_meeting_place(names):
            yield from _within(directory, names)
