"""Model of a reader of stored messages beside swings, retired and recycled files, and dense blocks that are reused.

What is modelled (design note 003, sections 1, 5, 6 and 9), for one id x and a neighbour y that may get x's block
  server   writes x afresh, removes it, drops the entry, frees the block, gives it to y; copies x into another file,
           swings the entry, unlinks the old file, recycles it for another message; an entry changes word by word
  reader   table row → version → file → references → version again → table row again → frame of that file; what does
           not fit is looked up again. The directory is in `batches.py`

Invariants: a reader gets x's bytes or nothing; never bytes that were removed before it began; it does not miss x when
x was there all the time. Freed blocks lose their versions here: the frame's own id and checksum cover that. They cover
the second look at the table row as well, which only saves reads; and looking again covers the order of copy and unlink.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False breaks one."""

    version_again: bool = True  #: the version is read again after the fields
    odd_waits: bool = True  #: an odd version is not read
    frame_is_checked: bool = True  #: id and checksum (of that very file) must fit
    gone_is_looked_up: bool = True  #: a file that is gone means: look again, not: not found


class Reader(NamedTuple):
    """A reader: what it has read so far."""

    left: int
    step: int
    version: int
    file: int
    live: bool
    dead: frozenset[int]
    there: bool
    removals: int


class State(NamedTuple):
    """Everything. A message's bytes are the number of the write that made them; -1 is another message's."""

    owner: str  # of the block: x, y or nobody
    version: int
    file: int
    live: bool
    todo: tuple[tuple[str, int], ...]  # what the server is in the middle of
    files: tuple[int | None, ...]  # bytes in each file, None: gone
    truth: int | None
    dead: frozenset[int]
    removals: int
    writes: int
    swings: int
    reuses: int
    reader: Reader
    broken: str


IDLE = Reader(0, 0, 0, 0, False, frozenset(), False, 0)


@dataclass(frozen=True)
class ReaderModel:
    """How many writes of x, swings, uses of the block by y, and reads."""

    writes: int = 2
    swings: int = 1
    reuses: int = 1
    reads: int = 1
    rules: Rules = Rules()

    def start(self) -> State:
        reader = IDLE._replace(left=self.reads)
        return State("", 0, 0, False, (), (), None, frozenset(), 0, self.writes, self.swings, self.reuses, reader, "")

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        if s.todo:
            yield self._on(s)
        else:
            yield from self._server(s)
        yield from self._read(s)

    def _server(self, s: State) -> Iterator[tuple[str, State]]:
        at = len(s.files)
        if s.writes and s.truth is None and s.owner in ("", "x"):
            steps: tuple[tuple[str, int], ...] = (
                ("owner", 1),
                ("begin", 0),
                ("file", at),
                ("live", 1),
                ("end", 0),
                ("there", at),
            )
            yield "~server writes x", s._replace(todo=steps, files=(*s.files, at), writes=s.writes - 1)
        if s.truth is not None:
            yield "~server removes x", s._replace(todo=(("begin", 0), ("live", 0), ("gone", 0), ("end", 0)))
            if s.swings:
                steps = (("copy", at), ("begin", 0), ("file", at), ("end", 0), ("unlink", s.file))
                yield "~server collects", s._replace(todo=steps, swings=s.swings - 1, files=(*s.files, None))
        for file, content in enumerate(s.files):
            if content is None:
                yield f"~server recycles {file}", self._content(s, file, -1)
        if s.owner == "x" and s.truth is None and not s.live:
            yield "~server frees x's block", s._replace(todo=(("owner", 0), ("zero", 0), ("unlink", s.file)))
        if s.owner == "" and s.reuses:
            files = (*s.files, -1)
            steps = (("owner", 2), ("begin", 0), ("file", at), ("live", 1), ("end", 0))
            yield "~server gives the block to y", s._replace(todo=steps, files=files, reuses=s.reuses - 1)
        if s.owner == "y":
            steps = (("begin", 0), ("live", 0), ("end", 0), ("owner", 0), ("zero", 0))
            yield "~server removes y", s._replace(todo=steps)

    @staticmethod
    def _content(s: State, file: int, content: int | None) -> State:
        return s._replace(files=(*s.files[:file], content, *s.files[file + 1 :]))

    def _on(self, s: State) -> tuple[str, State]:
        (what, n), todo = s.todo[0], s.todo[1:]
        after = s._replace(todo=todo)
        if what == "owner":
            after = after._replace(owner=("", "x", "y")[n])
        elif what in ("begin", "end"):
            after = after._replace(version=s.version + 1)
        elif what == "file":
            after = after._replace(file=n)
        elif what == "live":
            after = after._replace(live=bool(n))
        elif what == "there":
            after = after._replace(truth=n)
        elif what == "gone":
            assert s.truth is not None
            after = after._replace(truth=None, dead=s.dead | {s.truth}, removals=s.removals + 1)
        elif what == "copy":
            after = self._content(after, n, s.truth)
        elif what == "unlink":
            after = self._content(after, n, None)
        elif what == "zero":
            after = after._replace(live=False, file=0, version=0)
        return f"server: {what} {n}", after

    def _read(self, s: State) -> Iterator[tuple[str, State]]:
        reader = s.reader
        again = reader._replace(step=1)
        if reader.step == 0:
            if reader.left:
                begun = Reader(reader.left - 1, 1, 0, 0, False, s.dead, s.truth is not None, s.removals)
                yield "~reader begins", s._replace(reader=begun)
        elif reader.step == 1:
            yield (
                "~reader reads the table row",
                self._to(s, reader._replace(step=2)) if s.owner == "x" else self._none(s),
            )
        elif reader.step == 2:
            odd = s.version % 2 and self.rules.odd_waits
            yield "~reader reads the version", self._to(s, again if odd else reader._replace(step=3, version=s.version))
        elif reader.step == 3:
            yield "~reader reads the file", self._to(s, reader._replace(step=4, file=s.file))
        elif reader.step == 4:
            yield "~reader reads the references", self._to(s, reader._replace(step=5, live=s.live))
        elif reader.step == 5:
            fits = s.version == reader.version or not self.rules.version_again
            yield "~reader reads the version again", self._to(s, reader._replace(step=6) if fits else again)
        elif reader.step == 6:
            if s.owner != "x":
                yield "~reader sees another table row", self._to(s, again)
            elif not reader.live:
                yield "~reader sees no references", self._none(s)
            else:
                yield "~reader has a place", self._to(s, reader._replace(step=7))
        elif reader.step == 7:
            content = s.files[reader.file]
            if content is None:
                yield "~reader finds no file", self._to(s, again) if self.rules.gone_is_looked_up else self._none(s)
            elif content < 0 and self.rules.frame_is_checked:
                yield "~reader finds another frame", self._to(s, again)
            else:
                broken = s.broken
                if content < 0:
                    broken = "a reader gets foreign bytes"
                elif content in reader.dead:
                    broken = "a reader gets bytes that were removed before it began"
                yield "~reader returns", s._replace(reader=IDLE._replace(left=reader.left), broken=broken)

    @staticmethod
    def _to(s: State, reader: Reader) -> State:
        return s._replace(reader=reader)

    @staticmethod
    def _none(s: State) -> State:
        missed = s.reader.there and s.reader.removals == s.removals
        return s._replace(reader=IDLE._replace(left=s.reader.left), broken="a reader misses x" if missed else s.broken)

    def wrong(self, s: State) -> str | None:
        return s.broken or None

    def rest(self, s: State) -> str | None:
        return None


#: name → model
STANDARD = {
    "two writes and a swing": ReaderModel(2, 1, 0),
    "the block is reused": ReaderModel(1, 0, 1),
}

#: larger ones
DEEP = {"two writes, a swing, the block is reused": ReaderModel()}
