"""A sink: whose batches it takes, their commit in one step, and the way of what is committed to where it belongs.

Invariants
  What is appended was committed before, durably: a power loss takes no commit record back of which a message is seen.
  A batch of a query is committed once: its number is in the state that commits it.
  In each destination what is there of a pending batch is a prefix: one client appends it in order, nothing after an
  error, and nobody else begins before what that client had submitted is executed (`Targets.settle`).
  Only who holds the sink's lock writes its state, appends, or removes parts.
Crash points: docs/design/031-transactions.md §4. Each is a `save` of the state, or lies between two.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from warren.engine.errors import Fenced, LimitError, StoreError, UsageError
from warren.engine.kernel import data_files
from warren.engine.saying import command, counted
from warren.engine.transactions import state as states
from warren.engine.transactions.folder import SinkFolder
from warren.engine.transactions.parts import DESTINATIONS_MAX, Destination, Part, PartReader, Rows, is_written, totals
from warren.engine.transactions.state import RUNS_KEPT, SEALS_KEPT, WRITES_KEPT, Pending, Place, Roller, State, Stream

PARTS_MAX = 10_000
#: bytes that are appended between two notes of how far it is
STEP_BYTES = 8 << 20
#: how long a part is kept of which nobody knows whether it will be committed
KEPT_S = 24 * 3600.0
FORMER_KEPT = 16


class Mark(NamedTuple):
    """What tells the messages of a transaction from all others."""

    sink: str
    incarnation: str
    number: int

    def property(self, n: int) -> str:
        """Of messages before which n of this transaction are in their queue."""
        return f"{self.sink}:{self.incarnation}:{self.number}:{n}"

    def message_id(self, n: int) -> str:
        """Of the n-th message in its queue."""
        return f"{self.incarnation}:{self.number}:{n}"


class Targets(Protocol):
    """Topics and queues, for one client that appends."""

    def me(self) -> Roller:
        """Who appends."""

    def settle(self, roller: Roller) -> None:
        """Return when nothing comes any more of what that client submitted. Raises TimedOut."""

    def begin(self, destination: Destination) -> int:
        """Where its next message lies at least. Raises UsageError: it is not there any more, or takes no
        transactions.
        """

    def present(self, place: Place, mark: Mark, progressed: float, again: bool) -> tuple[int, int]:
        """How many messages are there, `place.done` at least, and the offset behind them. Raises StoreError: nobody can
        say; with `again` those that are in doubt are not there."""

    def append(self, rows: Rows, mark: Mark, n: int) -> None:
        """Begin to append rows, the n-th message of the transaction and those behind it."""

    def flush(self) -> dict[Destination, int]:
        """Wait until all is durable; the offset behind it, where there are offsets."""


class Batch(NamedTuple):
    """What is to be committed: of a stream the query, the number of the batch and the run; else an id alone.

    `seal`: what tells a batch from another one of its number and query, if who commits can say so; empty: it cannot.
    """

    owner: str
    number: int | None = None
    run: str = ""
    seal: str = ""

    @property
    def text(self) -> str:
        return "a write" if self.number is None else f"batch {self.number} of query {self.owner}"


class Sink:
    """One sink of a data directory; what it does it does alone."""

    def __init__(
        self, directory: Path, name: str, node_id: int, timeout_s: float, now: Callable[[], float] = time.time
    ):
        """`timeout_s`: how long a call waits until nobody else has the sink."""
        self.folder = SinkFolder.of(directory, name)
        self._directory = directory
        self._node_id = node_id
        self._timeout_s = timeout_s
        self._now = now

    def load(self) -> State | None:
        """The state; None: it has none yet. Raises StoreError and its kinds."""
        return states.load(self.folder, self._node_id)

    # -- before the rows ----------------------------------------------------------------------------------------

    def enter(self, batch: Batch, take_over: bool = False) -> bool:
        """A task begins to stage; true: its batch is committed already, nothing is to be staged.

        Raises UsageError (the sink is another query's; with `take_over` it is this one's from now on), Fenced (another
        run of this query has it), StoreError and its kinds, TimedOut.
        """
        state = self.load()
        if batch.number is None or not (state and state.stream and _has(state.stream, batch)):
            self.folder.make()
            with self.folder.locked(self._timeout_s):
                state = self.load()
                changed = state is None
                state = state or State.new(self._node_id, self.folder.name)
                if batch.number is not None:
                    changed = self._admit(state, batch, take_over) or changed
                if changed:
                    states.save(self.folder, state)
        assert state is not None
        return batch.number is not None and state.stream is not None and batch.number <= state.stream.batch

    def _admit(self, state: State, batch: Batch, take_over: bool) -> bool:
        """Whether the state changed. Raises UsageError, Fenced."""
        stream = state.stream
        if stream is not None and stream.query != batch.owner:
            if not take_over:
                raise UsageError(
                    f"sink {self.folder.name!r} takes batches of query {stream.query}, up to {stream.batch} so far, "
                    f"and this is query {batch.owner}: a query has an id for each checkpoint. Go on with the "
                    "checkpoint of that query, or write with another sinkId; with option takeOver=true this query "
                    "takes the sink, and what that one has written and this one writes again is there twice"
                )
            own = next((each for each in state.former if each.query == batch.owner), None)
            state.former = [each for each in [*state.former, stream] if each.query != batch.owner][-FORMER_KEPT:]
            state.stream = Stream(batch.owner, -1, [batch.run])
            if own is not None:
                state.stream.batch, state.stream.seals = own.batch, own.seals
            return True
        if stream is None:
            state.stream = Stream(batch.owner, -1, [batch.run])
            return True
        if batch.run in stream.runs:
            if stream.runs[-1] != batch.run:
                raise Fenced(
                    f"another driver has the sink {self.folder.name!r}: run {stream.runs[-1]} of query {batch.owner} "
                    f"began after this one, {batch.run}; two drivers must not run on one checkpoint: stop this one"
                )
            return False
        stream.runs = [*stream.runs, batch.run][-RUNS_KEPT:]
        return True

    # -- the commit ---------------------------------------------------------------------------------------------

    def commit(self, batch: Batch, parts: Sequence[Part], targets: Targets) -> bool:
        """Commit what was staged, and bring it where it belongs; false: the batch was committed before, or is empty.
        What another commit left unfinished is finished first.

        Raises what `enter` raises, CorruptRecord, LimitError, and what `targets` raise. `committed` says what an error
        left.
        """
        if len(parts) > PARTS_MAX:
            raise LimitError(f"{batch.text} has {len(parts)} parts, {PARTS_MAX} are the most: use fewer partitions")
        with self.folder.locked(self._timeout_s):
            state = self.load()
            if state is None:
                raise StoreError(
                    f"sink {self.folder.name!r} was forgotten while {batch.text} was written: write it again"
                )
            if batch.number is not None:
                self._admit(state, batch, False)
            self._finish(state, targets, False)
            if _is_there(state, batch):
                self._check_same(state, batch)
                self._collect(state)
                return False
            if not parts:
                return False  # without rows it leaves nothing, and is told from no other one
            self._begin(state, batch, parts, targets)
            states.save(self.folder, state)
            self._roll(state, targets)
            return True

    def concerns(self, batch: Batch) -> bool:
        """Whether a batch without rows is of any concern: something is to be finished, or its number was committed.
        Raises StoreError and its kinds.
        """
        state = self.load()
        return state is not None and (state.pending is not None or _is_there(state, batch))

    def committed(self, batch: Batch) -> bool:
        """Whether the batch is committed, finished or not. Raises StoreError and its kinds."""
        state = self.load()
        if state is None:
            return False
        pending = state.pending
        under_way = pending is not None and (pending.owner, pending.batch) == (batch.owner, batch.number)
        return under_way or _is_there(state, batch)

    def _begin(self, state: State, batch: Batch, parts: Sequence[Part], targets: Targets) -> None:
        """The state is the commit record, when it is saved."""
        counts = totals(parts)
        if len(counts) > DESTINATIONS_MAX:
            what = counted(DESTINATIONS_MAX, "destination")
            raise LimitError(f"{batch.text} goes to more than {what}, the most of a batch: write it in parts")
        for part in parts:
            with PartReader(self.folder, part) as reader:
                reader.verify()
        places = [Place(each, messages, 0, targets.begin(each)) for each, messages in counts.items()]
        now = self._now()
        state.number += 1
        state.committed = now
        state.pending = Pending(state.number, batch.owner, batch.number, tuple(parts), places, targets.me(), now, now)
        if batch.number is not None:
            assert state.stream is not None
            state.stream.batch = batch.number
            if batch.seal:
                kept = sorted(state.stream.seals.items())[-SEALS_KEPT + 1 :]
                state.stream.seals = dict(kept) | {batch.number: batch.seal}

    def _check_same(self, state: State, batch: Batch) -> None:
        """A batch whose number is committed is that very batch, read again, and not one that was planned anew since: a
        checkpoint that is older than the sink would lose what is in it. Raises StoreError.
        """
        stream = state.stream
        if batch.number is None or stream is None:
            return
        known = stream.seals.get(batch.number, "")
        if known == batch.seal if known and batch.seal else batch.number == stream.batch:
            return
        raise StoreError(
            f"sink {self.folder.name!r} has {batch.text} already, up to batch {stream.batch}; this one has its number, "
            "and was planned anew: the checkpoint is older than the sink (put back from a copy, or cut by a loss of "
            "power). Nothing of it is written. Put the newest checkpoint back; or look up which rows are there, and "
            "begin behind them with a new checkpointLocation and takeOver=true"
        )

    # -- what is committed ---------------------------------------------------------------------------------------

    def finish(self, targets: Targets, again: bool = False) -> Pending | None:
        """Bring what is committed where it belongs, if anything is not there yet; returns what it was. `again`: what
        nobody knows of whether it is there is appended, and may be there twice. Raises as `commit`."""
        with self.folder.locked(self._timeout_s):
            state = self.load()
            if state is None:
                raise UsageError(f"there is no sink {self.folder.name!r}")
            pending = state.pending
            self._finish(state, targets, again)
            self._collect(state)
            return pending

    def _finish(self, state: State, targets: Targets, again: bool) -> None:
        pending = state.pending
        if pending is None:
            return
        if pending.roller is not None:
            targets.settle(pending.roller)
        pending.roller = targets.me()
        states.save(self.folder, state)  # it may not have been durable, and who appends is named before
        mark = Mark(state.sink, state.incarnation, pending.number)
        for place in pending.places:
            place.done, place.start = targets.present(place, mark, pending.progressed, again)
            if place.done > place.messages:
                raise StoreError(
                    f"{place.destination.name!r} has {place.done} messages of transaction {pending.number} of sink "
                    f"{state.sink!r}, which has {place.messages}: another program appended some with the property of "
                    "these"
                )
        self._roll(state, targets)

    def _roll(self, state: State, targets: Targets) -> None:
        """Append what is not there yet, and say that nothing is pending."""
        pending = state.pending
        assert pending is not None
        mark = Mark(state.sink, state.incarnation, pending.number)
        places = {place.destination: place for place in pending.places}
        at = dict.fromkeys(places, 0)
        flying = 0
        for part in pending.parts if pending.done < pending.messages else ():
            with PartReader(self.folder, part) as reader:
                for rows in reader:
                    n = at[rows.destination]
                    at[rows.destination] += len(rows.bodies)
                    there = places[rows.destination].done
                    if at[rows.destination] <= there:
                        continue
                    if n < there:
                        rows, n = rows.behind(there - n), there
                    targets.append(rows, mark, n)
                    flying += sum(map(len, rows.bodies))
                    if flying >= STEP_BYTES:
                        self._note(state, targets.flush(), at)
                        flying = 0
        targets.flush()
        state.pending = None
        if pending.batch is None:
            state.writes = [*state.writes, pending.owner][-WRITES_KEPT:]
        state.messages += pending.messages
        state.bytes += sum(part.bytes for part in pending.parts)
        states.save(self.folder, state)
        self._collect(state, {part.name for part in pending.parts})

    def _note(self, state: State, ends: dict[Destination, int], at: dict[Destination, int]) -> None:
        pending = state.pending
        assert pending is not None
        for place in pending.places:
            place.done = max(place.done, at[place.destination])
            place.start = ends.get(place.destination, place.start)
        pending.progressed = self._now()
        states.save(self.folder, state)

    # -- what is not committed ------------------------------------------------------------------------------------

    def abort(self, parts: Sequence[Part]) -> None:
        """Remove what was staged, but what a commit names. Raises StoreError and its kinds, TimedOut."""
        if not parts:
            return
        with self.folder.locked(self._timeout_s):
            state = self.load()
            named = _named(state)
            for part in parts:
                if part.name not in named:
                    _unlink(self.folder.staged / part.name)

    def _collect(self, state: State, finished: set[str] | frozenset[str] = frozenset()) -> None:
        """Remove parts that no commit will name any more: of batches that are committed, and old ones that nobody
        writes.
        """
        stream, named = state.stream, _named(state)
        for name, path in self.folder.parts():
            passed = stream is not None and name.owner == stream.query and name.batch <= stream.batch
            if path.name not in named and (passed or path.name in finished or self._forsaken(path)):
                _unlink(path)

    def _forsaken(self, path: Path) -> bool:
        try:
            return path.stat().st_mtime < self._now() - KEPT_S and not is_written(path)
        except FileNotFoundError:
            return False

    def forget(self, force: bool = False) -> None:
        """The sink was never there: a query that goes on with it begins with an empty one. Raises UsageError: a batch
        is committed and not finished, or tasks stage just now; with `force` both are given up."""
        with self.folder.locked(self._timeout_s):
            if not force:
                state = self.load()
                if state is not None and state.pending is not None:
                    what = counted(state.pending.messages - state.pending.done, "message")
                    raise UsageError(
                        f"sink {self.folder.name!r} has a batch that is committed and not finished: {what} would be "
                        "lost; finish it with "
                        f"{command('transactions', self._directory, '--finish', self.folder.name)}, or give it up "
                        "with --force"
                    )
                if any(is_written(path) for _name, path in self.folder.parts()):
                    raise UsageError(
                        f"tasks write to sink {self.folder.name!r} just now: stop the query first, or give its batch "
                        "up with --force"
                    )
            self.folder.remove()


def _is_there(state: State, batch: Batch) -> bool:
    """Whether a batch is committed, when nothing is pending."""
    if batch.number is None:
        return batch.owner in state.writes
    return state.stream is not None and state.stream.query == batch.owner and batch.number <= state.stream.batch


def _has(stream: Stream, batch: Batch) -> bool:
    return stream.query == batch.owner and stream.runs[-1:] == [batch.run]


def _named(state: State | None) -> set[str]:
    return {part.name for part in state.pending.parts} if state is not None and state.pending is not None else set()


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):  # then the next one removes it
        data_files.unlink(path)
