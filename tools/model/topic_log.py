"""Model of the commit log of topics: append, commit, confirm, take-over and cut (design note 019).

What is modelled
  client   submits commands: a record, or a batch; wants `none`, `written` or `synced`; dies
  worker   takes commands link by link, appends their records to the ring, tells the offset, seals a commit with marks,
           leaves a file by a blank record; after a kill a new one walks the files, judges, cuts, syncs, and goes on
  committer  seals with `synced` and a checksum, writes pages in any order (the last, partial one is written again by
           the next commit), says written, syncs its file, says done; a failed sync freezes it
  disk     a slot holds a record, a commit record or a blank one. What was written and not synced is there or not when
           power fails, slot by slot; a failed sync leaves it in memory alone, or nowhere
  reader   looks at `low`, copies out of the ring, looks again; else reads the file
  kills    of worker and clients, losses of power (no client outlives one) and failed syncs between any two steps, also
           those of a start; a page that was synced is destroyed

What is not: checkpoints, retention, several (topic, queue) pairs, a disk that is full.

Invariants: what was confirmed as synced is in the log for ever, once, at its offset; as written, until power or a sync
fails; so is what readers could see; offsets of a batch are consecutive, a client's records in order; what a start found
stays, and what it cut off never comes back; a torn tail is not called damage, nor damage a torn tail where a commit
vouches. A record confirmed as `none` may get another offset when the worker is killed: readers see it once written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

ALIVE, DEAD, GONE = range(3)
DOWN, CUTTING, RUNNING, FROZEN, ENDED = range(5)
PAGE = 2  # slots
ENDING = 2  # slots behind records: a commit record, and a blank one
JOBS = 2


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False breaks one."""

    marks_with_records: bool = True  #: a commit holds the marks of the commands whose records it has (else: the next)
    marks_before_roll: bool = True  #: what is not sealed is sealed with its marks before the file is left
    marks_name_epochs: bool = True  #: a mark is of one client for ever, not of the slot that it has
    told_before_seal: bool = True  #: the client's command says its offset before it can be in the log
    batch_in_one_commit: bool = True  #: no commit ends inside a batch
    batch_alone: bool = True  #: no other client's records stand inside a batch
    confirm_after_sync: bool = True  #: `synced` is said when the sync has returned
    head_after_sync: bool = True  #: `head` rises over a commit with a sync after it
    attach_not_below_head: bool = True  #: a new worker takes nothing below `head`, whatever the marks say
    dead_is_drained: bool = True  #: what a dead client had submitted is executed before its link goes
    epochs: bool = True  #: a commit has the next number and no lower epoch (else: the number alone)
    whole_commits: bool = True  #: its checksum covers its records
    cut: bool = True  #: what lies behind the last commit is zeroed
    zeros_are_cut: bool = True  #: also where the next commit's place reads as zeros
    cut_is_synced: bool = True  #: before the new epoch begins
    tail_is_synced: bool = True  #: so is what was found in the file, also where there is nothing to cut
    tail_is_written_again: bool = True  #: what no commit says was synced is written again before that
    file_before_is_synced: bool = True  #: where the log ends with a file, that one is synced
    low_first: bool = True  #: `low` rises before a byte of the ring changes (else: right behind)
    ring_waits_for_write: bool = True  #: nothing is written over that is not in its file
    page_is_read_back: bool = True  #: the first page is written with the bytes that its file has
    shown_after_sync: bool = True  #: readers see a record whose producer wants `synced` when it is
    shown_after_write: bool = True  #: and any other when it is in the file
    synced_is_past: bool = True  #: a commit says how far the log was synced when it was sealed
    vouched_by_synced: bool = True  #: and only that tells damage from a torn tail (else: any commit that lies behind)
    zeros_are_judged: bool = True  #: a place that holds zeros is judged, too
    frozen_for_ever: bool = True  #: after a failed sync nothing is confirmed (else: a later one counts)
    roll_is_synced: bool = True  #: a file is synced before the next one gets a commit


class Record(NamedTuple):
    """A record of the log."""

    position: int
    offset: int
    client: int
    sequence: int
    part: int


class Commit(NamedTuple):
    """A commit record; `records` stands for its checksum."""

    position: int
    epoch: int
    number: int
    begin: int
    synced: int
    records: tuple[object, ...]
    marks: tuple[tuple[int, int], ...]


class Blank(NamedTuple):
    """The rest of the file is empty."""

    position: int


Cell = Record | Commit | Blank | str
ZERO, GARBAGE = "", "x"


class Slot(NamedTuple):
    """A place of the disk: what a read says, what may be on it, whether a sync would write it."""

    cell: Cell
    maybe: tuple[Cell, ...]
    dirty: bool


EMPTY = Slot(ZERO, (ZERO,), False)


class Client(NamedTuple):
    """A client and the words of its link."""

    life: int
    tail: int
    written: int
    synced: int
    head: int
    told: tuple[int, ...]  # offset by command, −1: none yet


class Job(NamedTuple):
    """A commit on its way."""

    begin: int
    at: int  # of its commit record, or of the blank one
    to: int
    number: int  # 0: it holds no commit record
    sync: bool
    last: bool  # of its file
    marks: tuple[tuple[int, int], ...]
    left: tuple[int, ...]  # pages to be written
    step: int  # 0 to be sealed, 1 pages, 2 written is said, 3 synced


class Worker(NamedTuple):
    """The worker's memory."""

    state: int
    number: int
    offset: int
    append: int
    sealed: int
    written: int
    synced: int
    processed: tuple[int, ...]
    parts: tuple[int, ...]  # records appended of the command in work
    marked: tuple[int, ...]  # processed, at the last seal
    marked_before: tuple[int, ...]
    jobs: tuple[Job, ...]
    unsynced: bool
    late_low: int  # with low_first broken: what `low` becomes
    left: tuple[int, ...]  # pages to be cut


class Reader(NamedTuple):
    """A reader of one record at a time."""

    left: int
    step: int
    offset: int
    value: Cell


class State(NamedTuple):
    """Everything."""

    clients: tuple[Client, ...]
    worker: Worker
    disk: tuple[Slot, ...]
    ring: tuple[Cell, ...]
    low: int
    shown: tuple[Record, ...]
    promised: frozenset[tuple[int, int, int, bool]]  # offset, client, sequence, synced
    reader: Reader
    epoch: int
    kept: tuple[int, int]  # epoch and records of the last start
    boot: int
    kills: int
    losses: int
    client_kills: int
    errors: int
    destroys: int
    dropped: bool  # a failed sync has lost what was written
    destroyed: int  # first position of a page that was destroyed, −1: none
    broken: str


class End(NamedTuple):
    """What a walk found."""

    position: int
    number: int
    synced: int
    records: tuple[Record, ...]
    epochs: tuple[int, ...]  # of each record's commit
    marks: dict[int, int]
    torn: bool
    damaged: bool


IDLE = Reader(0, 0, -1, ZERO)


@dataclass(frozen=True)
class TopicLogModel:
    """Programs of the clients, by boot: `1s` one synced record, `2w` a batch of two, written; `n` none."""

    programs: tuple[str, ...]
    later: tuple[str, ...] = ()  #: of clients that come after a loss of power
    file_pages: int = 8
    files: int = 1
    ring: int = 16  #: slots
    reads: int = 0
    kills: int = 1
    losses: int = 0
    client_kills: int = 0
    errors: int = 0
    destroys: int = 0
    halves: bool = False  #: a slot that was being written may hold neither
    rules: Rules = Rules()

    def start(self) -> State:
        n = len(self.programs) + len(self.later)
        zeros = (0,) * n
        clients = tuple(Client(ALIVE, 0, 0, 0, 0, (-1,) * len(self._program(k))) for k in range(n))
        worker = Worker(RUNNING, 0, 0, 0, 0, 0, 0, zeros, zeros, zeros, zeros, (), False, -1, ())
        disk = (EMPTY,) * (self.files * self.file_pages * PAGE)
        return State(
            clients, worker, disk, (ZERO,) * self.ring, 0, (), frozenset(), IDLE._replace(left=self.reads), 1, (1, 0),
            0, self.kills, self.losses, self.client_kills, self.errors, self.destroys, False, -1, "",
        )  # fmt: skip

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _program(self, k: int) -> tuple[tuple[int, str], ...]:
        text = self.programs[k] if k < len(self.programs) else self.later[k - len(self.programs)]
        return tuple((int(word[:-1]), word[-1]) for word in text.split())

    def _boot(self, k: int) -> int:
        return 0 if k < len(self.programs) else 1

    def _slot(self, k: int) -> int:
        """What a mark names: the client, or the slot that it has for now."""
        return k if self.rules.marks_name_epochs or not self._boot(k) else k - len(self.programs)

    def _file_end(self, position: int) -> int:
        file = self.file_pages * PAGE
        return (position // file + 1) * file

    @staticmethod
    def _at(values: tuple[int, ...], k: int, value: int) -> tuple[int, ...]:
        return (*values[:k], value, *values[k + 1 :])

    def _put(self, ring: tuple[Cell, ...], position: int, cell: Cell) -> tuple[Cell, ...]:
        at = position % self.ring
        return (*ring[:at], cell, *ring[at + 1 :])

    @staticmethod
    def _write(disk: tuple[Slot, ...], at: int, cells: Iterable[Cell]) -> tuple[Slot, ...]:
        slots = list(disk)
        for place, cell in enumerate(cells, at):
            old = slots[place]
            maybe = old.maybe if cell in old.maybe else (*old.maybe, cell)
            slots[place] = old if (cell,) == old.maybe else Slot(cell, maybe, True)
        return tuple(slots)

    def _sync(self, disk: tuple[Slot, ...], position: int) -> tuple[Slot, ...]:
        """Of the file of a position."""
        end = self._file_end(position)
        begin = end - self.file_pages * PAGE
        return tuple(
            Slot(slot.cell, (slot.cell,), False) if slot.dirty and begin <= at < end else slot
            for at, slot in enumerate(disk)
        )

    def _wants(self, record: Record) -> str:
        return self._program(record.client)[record.sequence][1]

    def _still_shown(self, shown: tuple[Record, ...]) -> tuple[Record, ...]:
        """What readers could see, and must see again when what was not synced is lost."""
        synced = [n for n, record in enumerate(shown, 1) if self._wants(record) == "s"]
        return shown[: max(synced, default=0)]

    def _say(self, s: State, k: int, written: int, synced: int, head: int) -> State:
        """Raise the words of a link; what they confirm is promised."""
        c = s.clients[k]
        promised, broken = s.promised, s.broken
        for old, new, wants in ((c.written, written, "w"), (c.synced, synced, "s")):
            for sequence in range(old, new):
                if self._program(k)[sequence][1] == wants:
                    if c.told[sequence] < 0:
                        broken = broken or f"command {k}:{sequence} is confirmed, and nobody knows its offset"
                    promised |= {(c.told[sequence], k, sequence, wants == "s")}
        c = c._replace(written=max(c.written, written), synced=max(c.synced, synced), head=max(c.head, head))
        clients = (*s.clients[:k], c, *s.clients[k + 1 :])
        return s._replace(clients=clients, promised=promised, broken=broken)

    def _show(self, s: State, written: int, synced: int) -> State:
        """Let readers see what the horizons allow."""
        shown = list(s.shown)
        for slot in s.disk[: max(written, synced)]:
            cell = slot.cell
            if not isinstance(cell, Record) or cell.offset < len(shown):
                continue
            must = synced if self._wants(cell) == "s" and self.rules.shown_after_sync else written
            if cell.position >= must:
                break
            shown.append(cell)
        return s._replace(shown=tuple(shown))

    # -- steps ------------------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        for k, c in enumerate(s.clients):
            if c.life == ALIVE and self._boot(k) == s.boot:
                if c.tail < len(self._program(k)):
                    after = c._replace(tail=c.tail + 1)
                    clients = (*s.clients[:k], after, *s.clients[k + 1 :])
                    yield f"client {k} submits {c.tail}", s._replace(clients=clients)
                if s.client_kills:
                    clients = (*s.clients[:k], c._replace(life=DEAD), *s.clients[k + 1 :])
                    yield f"~kill client {k}", s._replace(clients=clients, client_kills=s.client_kills - 1)
        state = s.worker.state
        if state == ENDED:
            return
        if state == DOWN:
            yield self._walks(s)
            yield from self._destroy(s)
        elif state == CUTTING:
            yield from self._start_steps(s)
        elif state == RUNNING:
            yield from self._loop_steps(s)
            yield from self._committer_steps(s)
        if s.kills and state != DOWN:
            yield "~kill worker", self._down(s)._replace(kills=s.kills - 1)
        if s.losses:
            yield from self._power(s)
        if self.reads:
            yield from self._reader_steps(s)

    def _loop_steps(self, s: State) -> Iterator[tuple[str, State]]:
        w = s.worker
        if w.late_low >= 0:
            yield "worker raises low", s._replace(low=w.late_low, worker=w._replace(late_low=-1))
            return
        inside = [k for k, part in enumerate(w.parts) if part]
        for k, c in enumerate(s.clients):
            if c.life == GONE or self._boot(k) != s.boot:
                continue
            if w.processed[k] < c.tail and (not inside or k in inside or not self.rules.batch_alone):
                yield from self._take(s, k)
            drained = c.head == c.tail or not self.rules.dead_is_drained
            if c.life == DEAD and drained and k not in inside:
                clients = (*s.clients[:k], c._replace(life=GONE), *s.clients[k + 1 :])
                yield f"worker sweeps client {k}", s._replace(clients=clients)
        if len(w.jobs) == JOBS or (inside and self.rules.batch_in_one_commit):
            return
        if w.append > w.sealed:
            yield "worker seals", self._seal(s, marked=True)
        elif w.unsynced:
            job = Job(w.append, w.append, w.append, 0, True, False, (), (), 1)
            yield "worker seals a sync", s._replace(worker=w._replace(jobs=(*w.jobs, job), unsynced=False))

    def _take(self, s: State, k: int) -> Iterator[tuple[str, State]]:
        """Append the next record of a link's command."""
        w, rules = s.worker, self.rules
        sequence, part = w.processed[k], w.parts[k]
        size = self._program(k)[sequence][0]
        end = w.append + size - part + ENDING
        if not part and end > self._file_end(w.append):
            yield from self._roll(s)
            return
        low, late = s.low, -1
        if end > low // PAGE * PAGE + self.ring:
            free = w.written // PAGE * PAGE if rules.ring_waits_for_write else w.append
            if end > free + self.ring:
                return
            low = max(low, end - self.ring)
        if not rules.low_first:
            low, late = s.low, w.append + 1 - self.ring
            late = late if late > low else -1
        record = Record(w.append, w.offset, k, sequence, part)
        c, told = s.clients[k], s.clients[k].told
        if not part and rules.told_before_seal:
            told = self._at(told, sequence, w.offset)
        done = part + 1 == size
        worker = w._replace(
            append=w.append + 1,
            offset=w.offset + 1,
            parts=self._at(w.parts, k, 0 if done else part + 1),
            processed=self._at(w.processed, k, sequence + done),
            late_low=late,
        )
        clients = (*s.clients[:k], c._replace(told=told), *s.clients[k + 1 :])
        after = s._replace(clients=clients, worker=worker, low=low, ring=self._put(s.ring, w.append, record))
        if not rules.shown_after_write and self._program(k)[sequence][1] != "s" and len(s.shown) == record.offset:
            after = after._replace(shown=(*s.shown, record))
        yield f"worker appends {k}:{sequence}.{part} at {w.append}", after

    def _roll(self, s: State) -> Iterator[tuple[str, State]]:
        w = s.worker
        if w.append > w.sealed:
            if self.rules.marks_before_roll or len(w.jobs) == JOBS:
                return
            s = self._seal(s, marked=False)
            w = s.worker
        if len(w.jobs) == JOBS:
            return
        to = self._file_end(w.append)
        page = w.append // PAGE
        job = Job(w.append, w.append, to, 0, self.rules.roll_is_synced, True, (), (page,), 0)
        after = w._replace(append=to, sealed=to, jobs=(*w.jobs, job), unsynced=False)
        yield f"worker leaves the file at {w.append}", s._replace(worker=after)

    def _seal(self, s: State, marked: bool) -> State:
        w = s.worker
        now = w.processed if self.rules.marks_with_records else w.marked_before
        marks = tuple((self._slot(k), now[k]) for k in range(len(now)) if now[k] > w.marked[k]) if marked else ()
        cells = [s.ring[p % self.ring] for p in range(w.sealed, w.append)]
        sync = any(isinstance(cell, Record) and self._wants(cell) == "s" for cell in cells)
        to = w.append + 1
        pages = tuple(range(w.sealed // PAGE, (to - 1) // PAGE + 1))
        job = Job(w.sealed, w.append, to, w.number + 1, sync, False, marks, pages, 0)
        after = w._replace(
            number=w.number + 1,
            append=to,
            sealed=to,
            marked=now if marked else w.marked,
            marked_before=w.processed,
            jobs=(*w.jobs, job),
            unsynced=not sync,
        )
        return s._replace(worker=after)

    # -- committer --------------------------------------------------------------------------------------------------

    def _committer_steps(self, s: State) -> Iterator[tuple[str, State]]:
        w = s.worker
        if not w.jobs:
            return
        job, others = w.jobs[0], w.jobs[1:]
        if job.step == 0:
            cell: Cell = Blank(job.at)
            if job.number:
                records = tuple(s.ring[p % self.ring] for p in range(job.begin, job.at))
                synced = w.synced if self.rules.synced_is_past else job.begin
                cell = Commit(job.at, s.epoch, job.number, job.begin, synced, records, job.marks)
            s = s._replace(ring=self._put(s.ring, job.at, cell))
        if job.left:
            for page in job.left:
                first = page * PAGE
                cells = [s.ring[p % self.ring] if p <= job.at else ZERO for p in range(first, first + PAGE)]
                left = tuple(other for other in job.left if other != page)
                worker = w._replace(jobs=(job._replace(left=left, step=1), *others))
                yield f"committer writes page {page}", s._replace(disk=self._write(s.disk, first, cells), worker=worker)
            return
        if job.step == 1:
            written = max(w.written, job.to)
            after = s._replace(worker=w._replace(written=written, jobs=(job._replace(step=2), *others)))
            after = self._show(after, written, w.synced)
            early, head = not self.rules.confirm_after_sync, not self.rules.head_after_sync
            yield "committer says written", self._say_all(after, job, False, early, head)
        elif job.step == 2 and job.sync:
            position = job.begin if job.last else max(job.at - 1, 0)
            after = s._replace(worker=w._replace(jobs=(job._replace(step=3), *others)))
            yield "committer syncs", after._replace(disk=self._sync(s.disk, position))
            yield from self._sync_fails(s, RUNNING if not self.rules.frozen_for_ever else FROZEN)
        else:
            synced_to = job.to if job.sync else w.synced
            after = s._replace(worker=w._replace(synced=synced_to, jobs=others))
            after = self._show(after, w.written, synced_to)
            yield "committer says done", self._say_all(after, job, True, job.sync, True)

    def _say_all(self, s: State, job: Job, done: bool, synced: bool, head: bool) -> State:
        for name, to in job.marks:
            for k, c in enumerate(s.clients):
                if self._slot(k) != name or self._boot(k) != s.boot or c.life == GONE:
                    continue
                if done and not self.rules.told_before_seal:
                    s = self._tell(s, k, to)
                s = self._say(s, k, to, to if synced else c.synced, to if head else c.head)
        return s

    def _tell(self, s: State, k: int, to: int) -> State:
        """With told_before_seal broken: the offsets are told with the confirm."""
        c = s.clients[k]
        told = list(c.told)
        for slot in s.disk:
            cell = slot.cell
            if isinstance(cell, Record) and cell.client == k and cell.part == 0 and cell.sequence < to:
                told[cell.sequence] = cell.offset
        return s._replace(clients=(*s.clients[:k], c._replace(told=tuple(told)), *s.clients[k + 1 :]))

    def _sync_fails(self, s: State, state: int) -> Iterator[tuple[str, State]]:
        """What was dirty is no more: it stays in memory alone, or is lost with it."""
        if not s.errors:
            return
        failed = s._replace(errors=s.errors - 1, worker=s.worker._replace(state=state))
        if state == FROZEN:
            failed = failed._replace(worker=failed.worker._replace(jobs=(), left=()))
        elif state == DOWN:
            failed = self._down(failed)
        stays = tuple(slot._replace(dirty=False) for slot in s.disk)
        yield "~the sync fails", failed._replace(disk=stays)
        gone = tuple(Slot(slot.maybe[0], slot.maybe[:1], False) if slot.dirty else slot for slot in s.disk)
        yield (
            "~the sync fails and drops",
            failed._replace(
                disk=gone,
                dropped=True,
                shown=self._still_shown(s.shown),
                promised=frozenset(promise for promise in s.promised if promise[3]),
            ),
        )

    # -- kills and power --------------------------------------------------------------------------------------------

    def _down(self, s: State) -> State:
        zeros = (0,) * len(s.clients)
        ring = s.ring if self.reads else (ZERO,) * self.ring
        worker = Worker(DOWN, 0, 0, 0, 0, 0, 0, zeros, zeros, zeros, zeros, (), False, -1, ())
        return s._replace(worker=worker, ring=ring)

    def _power(self, s: State) -> Iterator[tuple[str, State]]:
        down = self._down(s)._replace(losses=s.losses - 1, boot=s.boot + 1, ring=(ZERO,) * self.ring, low=0)
        down = down._replace(
            clients=tuple(
                c._replace(life=GONE, told=(), tail=0, written=0, synced=0, head=0) if self._boot(k) == s.boot else c
                for k, c in enumerate(s.clients)
            ),
            shown=self._still_shown(s.shown),
            promised=frozenset(promise for promise in s.promised if promise[3]),
            reader=IDLE,
        )
        choices = [slot.maybe if len(slot.maybe) == 1 or not self.halves else (*slot.maybe, GARBAGE) for slot in s.disk]
        for cells in product(*choices):
            disk = tuple(Slot(cell, (cell,), False) for cell in cells)
            lost = [at for at, cell in enumerate(cells) if cell != s.disk[at].cell]
            yield f"~power fails, {lost} of what was written is missing", down._replace(disk=disk)

    def _destroy(self, s: State) -> Iterator[tuple[str, State]]:
        if not s.destroys:
            return
        for first in range(0, self._walk(s).position, PAGE):
            slots = s.disk[first : first + PAGE]
            if all(len(slot.maybe) == 1 for slot in slots) and any(slot.cell != ZERO for slot in slots):
                for cell in (ZERO, GARBAGE):
                    disk = (*s.disk[:first], *((Slot(cell, (cell,), False),) * PAGE), *s.disk[first + PAGE :])
                    after = s._replace(disk=disk, destroys=s.destroys - 1, destroyed=first)
                    yield f"~page {first // PAGE} is destroyed, {'zeros' if cell == ZERO else 'garbage'}", after

    # -- start ------------------------------------------------------------------------------------------------------

    def _walk(self, s: State) -> End:
        cells = [slot.cell for slot in s.disk]
        position = number = epoch = synced = 0
        records: list[Record] = []
        epochs: list[int] = []
        marks: dict[int, int] = {}
        while position < len(cells):
            if isinstance(cells[position], Blank):
                position = self._file_end(position)
                continue
            at = position
            scanned = Record if self.rules.whole_commits else Record | str  # its head may be whole
            while at < self._file_end(position) - 1 and isinstance(cells[at], scanned) and cells[at] != ZERO:
                at += 1
            commit, found = cells[at], tuple(cells[position:at])
            if not isinstance(commit, Commit) or commit.begin != position:
                break
            if commit.records != found and (self.rules.whole_commits or len(commit.records) != len(found)):
                break
            if commit.number != number + 1 or (commit.epoch < epoch and self.rules.epochs):
                break
            records += [cell for cell in found if isinstance(cell, Record)]
            epochs += [commit.epoch] * len(found)
            number, epoch, synced = commit.number, commit.epoch, commit.synced
            marks.update(commit.marks)
            position = at + 1
        behind = [cell for cell in cells[position:] if isinstance(cell, Commit)]
        torn = position < len(cells) and cells[position] != ZERO
        damaged = any(commit.synced > position or not self.rules.vouched_by_synced for commit in behind)
        damaged = damaged and (torn or self.rules.zeros_are_judged)
        return End(position, number, synced, tuple(records), tuple(epochs), marks, torn, damaged)

    def _walks(self, s: State) -> tuple[str, State]:
        end = self._walk(s)
        ended = s._replace(worker=s.worker._replace(state=ENDED))
        if s.destroyed >= 0:
            vouched = any(isinstance(slot.cell, Commit) and slot.cell.synced > s.destroyed for slot in s.disk)
            return "worker walks, and judges", ended._replace(
                broken="damage is called a torn tail" if vouched and not end.damaged else ""
            )
        if end.damaged:
            return "worker finds damage", ended._replace(broken="a torn tail is called damage")
        first = end.position // PAGE
        pages = range(first, len(s.disk) // PAGE)
        left = [page for page in pages if any(slot.maybe != (ZERO,) for slot in self._behind(s, page, end.position))]
        if not self.rules.cut or (not end.torn and not self.rules.zeros_are_cut):
            left = []
        worker = s.worker._replace(state=CUTTING, left=tuple(left), append=end.position)
        return f"worker walks to {end.position}", s._replace(worker=worker, epoch=s.epoch + 1)

    @staticmethod
    def _behind(s: State, page: int, position: int) -> tuple[Slot, ...]:
        return s.disk[max(page * PAGE, position) : (page + 1) * PAGE]

    def _start_steps(self, s: State) -> Iterator[tuple[str, State]]:
        w, rules = s.worker, self.rules
        if w.left and rules.cut_is_synced:
            yield f"worker cuts page {w.left[0]}", self._cut(s, w.left[0])
            return
        end = self._walk(s)
        disk = s.disk
        if rules.tail_is_written_again:
            slots = range(end.synced, end.position)
            disk = tuple(slot._replace(dirty=True) if at in slots else slot for at, slot in enumerate(disk))
        cut = any(slot.dirty for slot in s.disk[end.position :])
        if rules.tail_is_synced or cut:
            yield from self._sync_fails(s._replace(disk=disk), DOWN)
            disk = self._sync(disk, min(end.position, len(disk) - 1))
            for at in range(self.file_pages * PAGE, len(disk), self.file_pages * PAGE):
                if at > end.position:
                    disk = self._sync(disk, at)  # a file that goes: its directory is synced
                if at == end.position and rules.file_before_is_synced:
                    disk = self._sync(disk, at - 1)
        synced = s._replace(disk=disk)
        for page in w.left:  # with cut_is_synced broken
            synced = self._cut(synced, page)
        yield "worker syncs and begins", self._begin(synced, end)

    def _cut(self, s: State, page: int) -> State:
        first = max(page * PAGE, s.worker.append)
        disk = self._write(s.disk, first, (ZERO,) * ((page + 1) * PAGE - first))
        left = tuple(other for other in s.worker.left if other != page)
        return s._replace(disk=disk, worker=s.worker._replace(left=left))

    def _begin(self, s: State, end: End) -> State:
        broken = s.broken or self._differs(s, end)
        s = s._replace(broken=broken)
        position = end.position
        processed = []
        for k, c in enumerate(s.clients):
            mark = end.marks.get(self._slot(k), 0) if self._boot(k) == s.boot and c.life != GONE else 0
            if mark < c.head and c.life != GONE:
                lost = [wants for _, wants in self._program(k)[mark : c.head]]
                if "s" in lost or not s.dropped:
                    s = s._replace(broken=s.broken or f"commands of client {k} are lost: they are below head")
                elif not self.rules.attach_not_below_head:
                    s = s._replace(broken=s.broken or f"a record of client {k} is read that is used again")
            processed.append(max(mark, c.head))
        for k, to in enumerate(processed):
            c = s.clients[k]
            if c.life != GONE and self._boot(k) == s.boot:
                to = min(to, len(self._program(k)))
                s = self._say(s, k, to, to, to)
        ring = s.ring
        for at in range(position // PAGE * PAGE, position):
            ring = self._put(ring, at, s.disk[at].cell if self.rules.page_is_read_back else ZERO)
        told = tuple(processed)
        zeros = (0,) * len(told)
        worker = Worker(
            RUNNING, end.number, len(end.records), position, position, position, position,
            told, zeros, told, told, (), False, -1, (),
        )  # fmt: skip
        shown = s.shown if s.broken else end.records
        return s._replace(worker=worker, ring=ring, low=position, shown=shown, kept=(s.epoch, len(end.records)))

    # -- reader -----------------------------------------------------------------------------------------------------

    def _reader_steps(self, s: State) -> Iterator[tuple[str, State]]:
        r = s.reader
        if r.step == 0:
            if r.left:
                for offset, seen in enumerate(s.shown):
                    inside = s.low <= seen.position
                    value = s.ring[seen.position % self.ring] if inside else ZERO
                    after = Reader(r.left - 1, 1 if inside else 2, offset, value)
                    yield f"~reader wants {offset}{', and copies' if inside else ''}", s._replace(reader=after)
            return
        record = s.shown[r.offset] if r.offset < len(s.shown) else None
        idle = s._replace(reader=Reader(r.left, 0, -1, ZERO))
        if record is None:
            yield "~reader finds it gone", idle
        elif r.step == 1 and s.low > record.position:
            yield "~reader sees low", s._replace(reader=r._replace(step=2, value=ZERO))
        else:
            value = r.value if r.step == 1 else s.disk[record.position].cell
            wrong = "" if value == record else f"a reader of offset {r.offset} got other bytes"
            yield "~reader returns", idle._replace(broken=s.broken or wrong)

    # -- invariants -------------------------------------------------------------------------------------------------

    def _differs(self, s: State, end: End) -> str:
        """What is wrong with a log, of which a start or the end of all has read the records."""
        names = [record[2:] for record in end.records]
        if len(set(names)) != len(names):
            return "a record is in the log twice"
        if [record.offset for record in end.records] != list(range(len(names))):
            return "offsets are not consecutive"
        for (client, sequence, part), behind in zip(names, (*names[1:], (-1, -1, 0)), strict=False):
            rest = part + 1 < self._program(client)[sequence][0]
            if rest and behind != (client, sequence, part + 1):
                return "a batch is not whole, or not together"
        for k in range(len(s.clients)):
            order = [sequence for client, sequence, _ in names if client == k]
            if order != sorted(order):
                return "a client's records are out of order"
        for offset, client, sequence, synced in sorted(s.promised):
            if names[offset : offset + 1] != [(client, sequence, 0)]:
                return f"{client}:{sequence}, confirmed as {'synced' if synced else 'written'}, is not at {offset}"
        if end.records[: len(s.shown)] != s.shown:
            return "a reader has seen a record that is gone"
        epoch, kept = s.kept
        if len(names) < kept:
            return "a record is gone that a start found"
        if any(e < epoch for e in end.epochs[kept:]):
            return "what a start cut off has come again"
        return ""

    def wrong(self, s: State) -> str | None:
        return s.broken or None

    def rest(self, s: State) -> str | None:
        if s.worker.state == ENDED or s.worker.state == FROZEN:
            return None
        end = self._walk(s)
        wrong = self._differs(s, end)
        if wrong:
            return wrong
        if end.damaged or end.position != s.worker.append:
            return "a log that came to rest does not end where its worker is"
        names = {(record.client, record.sequence) for record in end.records}
        for k, c in enumerate(s.clients):
            if c.life == DEAD:
                return f"client {k} is dead and was never swept"
            if self._boot(k) != s.boot:
                continue
            if c.life == ALIVE and c.head < c.tail:
                return f"client {k} waits for ever"
            for sequence in range(c.tail):
                if (k, sequence) not in names and not s.dropped:
                    return f"command {k}:{sequence} was submitted and never executed"
        return None


#: name → model; all of them take some seconds
STANDARD = {
    "batches and two kills": TopicLogModel(("2s 1s", "1s 1w"), kills=2),
    "written and none": TopicLogModel(("1n 1s", "1w"), kills=2),
    "power fails twice": TopicLogModel(("1s 1s", "1s"), ("1s", "2s"), file_pages=7, kills=0, losses=2),
    "power, and commits without a sync": TopicLogModel(("1w 1w 1s",), ("1w 1w",), file_pages=7, losses=2),
    "files that end": TopicLogModel(("1w 2s 1s",), ("1s",), file_pages=3, files=4, losses=2),
    "a sync that fails": TopicLogModel(("1w 1s",), ("1s",), file_pages=4, losses=1, errors=1),
    "readers of a ring": TopicLogModel(("1s 1s 1s 1s 1s",), file_pages=6, ring=4, reads=2),
    "clients that die": TopicLogModel(("2s 1s", "1w"), client_kills=2),
    "a page that is destroyed": TopicLogModel(("1s 1s",), ("1s",), file_pages=6, losses=1, destroys=1),
}

#: searched with a rule broken only
LATE = {
    "commits behind a torn one": TopicLogModel(("1w 1w",), ("1w",), file_pages=5, kills=0, losses=2),
}

#: rule → the model that shows it, where that is not the first
WHERE = {
    "marks_before_roll": "files that end",
    "marks_name_epochs": "power fails twice",
    "batch_alone": "power fails twice",
    "confirm_after_sync": "power fails twice",
    "head_after_sync": "a sync that fails",
    "attach_not_below_head": "a sync that fails",
    "dead_is_drained": "clients that die",
    "epochs": "commits behind a torn one",
    "whole_commits": "a page that is destroyed",
    "cut": "commits behind a torn one",
    "zeros_are_cut": "commits behind a torn one",
    "cut_is_synced": "commits behind a torn one",
    "tail_is_synced": "a sync that fails",
    "tail_is_written_again": "a sync that fails",
    "file_before_is_synced": "files that end",
    "low_first": "readers of a ring",
    "ring_waits_for_write": "readers of a ring",
    "shown_after_sync": "power fails twice",
    "synced_is_past": "a sync that fails",
    "vouched_by_synced": "power fails twice",
    "zeros_are_judged": "a page that is destroyed",
    "frozen_for_ever": "a sync that fails",
    "roll_is_synced": "files that end",
}

#: larger ones
DEEP = {
    "batches, three kills": TopicLogModel(("2s 1s", "1w 1s"), kills=3),
    "torn slots, files that end": TopicLogModel(("1w 1w 1s",), ("1w",), file_pages=3, files=3, losses=2, halves=True),
    "files that end, syncs that fail": TopicLogModel(("1w 1s 1s",), ("1s",), file_pages=3, files=3, losses=1, errors=1),
    "two clients, syncs that fail": TopicLogModel(("1w 1s", "1s"), ("1s",), file_pages=5, kills=2, losses=1, errors=2),
    "readers, kills and files": TopicLogModel(("1w 1s 1n 1s 1s",), file_pages=6, files=2, ring=6, reads=1, kills=2),
    "damage, and commits without a sync": TopicLogModel(("1w 1w 1s 1w",), losses=1, destroys=1),
}
