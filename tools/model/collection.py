"""Model of the store's files: MESSAGE, ADD_REFERENCE, REMOVE frames, collection, deletion, replay by position.

What is modelled (design note 003, sections 3 to 6, 9 and 12), for one id with payloads 0 and 1
  server     writes (rules S5, S12), removes, rolls; deletes empty files: lock, drop of the entry, unlink, gone;
             commits an output (rename), swings, retires, unlinks sources one by one
  collector  copies frame by frame, each decided against the index of that moment; answers; dies
  restart    everything in memory is lost; files are replayed in the order of their positions, the higher number wins
             where two overlap, superseded files are removed one by one; rings are executed from `head` on
  worker     holds by a bit without frames; the bit of a MESSAGE is provisional until the resync
  kills      of the server (every step is also checked for what a kill there would leave) and of the collector
  power      unlinked files come back unless the directory was synced

One id is enough: ids meet only in files, and whether another message keeps a file, or makes it worth a collection, is
left open (each file may be deleted or collected at any time the rules allow). Lists are not modelled: a file without
its list is scanned. Readers are in `readers.py`.

Invariants: what the index says, and what a replay of the files at any moment would say, is what the executed (durable)
commands add up to: no loss, no resurrection, no doubled reference, no other payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

FREE, JOB, GOING = range(3)
COPYING, ANSWERED, SYNCED, COMMITTED, SWUNG = range(5)
SEEN, DURABLE, DROPPED, UNLINKED = range(4)


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False breaks one."""

    payload_makes_ghost: bool = True  #: an entry dropped because of other bytes marks its file
    locked_write_makes_ghost: bool = True  #: an entry dropped because its file is locked marks it
    deletion_makes_ghost: bool = True  #: a file locked for deletion is marked before its entries go
    replay_makes_ghost: bool = True  #: a MESSAGE that replaces an entry in another file marks that file
    output_is_ghost: bool = True  #: an output is marked until the swing's end, and then if an entry was not swung
    ghosts_keep_controls: bool = True  #: the collector keeps control frames behind a marked file
    ghosts_keep_files: bool = True  #: an empty file with control frames stays while a marked file lies before it
    copied_keep_controls: bool = True  #: control frames of an id whose MESSAGE this job copied are kept
    index_before_ghosts: bool = True  #: the collector looks into the index first, then for marked files
    entries_keep_controls: bool = True  #: control frames of ids that have an entry elsewhere are kept
    unheld_keep_controls: bool = True  #: also when that entry has no references
    pins: bool = True  #: a file with control frames stays while a file exists that they are for
    output_inherits_pins: bool = True  #: an output is pinned by what its sources were pinned by
    locked_never_gain: bool = True  #: an entry without references in a locked file is not revived
    bytes_are_compared: bool = True  #: rule S12: an entry with other bytes is not revived
    provisional_is_compared: bool = True  #: before the resync other bytes wait, unless a client holds the entry
    resync_gate: bool = True  #: nothing is deleted or collected before the workers have resynced
    higher_number_wins: bool = True  #: of two files at one position the newer counts
    replay_by_position: bool = True  #: a collected file is replayed in the place of its sources
    swing_checks_place: bool = True  #: only entries that still lie in a source are swung
    output_waits_for_sources: bool = True  #: an output is not deleted before its sources are off the disk
    gone_after_sync: bool = True  #: a file counts as gone after the directory was synced
    attempts_have_numbers: bool = True  #: each posting of a job has an output number of its own
    answers_have_epochs: bool = True  #: an answer to a dead server counts nothing
    durable_before_loss: bool = True  #: an output is committed, a file unlinked only when the log is durable up to then
    replay_free: bool = True  #: no file goes whose commands a ring may still replay
    replay_free_after_start: bool = True  #: nor one that was recovered


class Frame(NamedTuple):
    """A frame: kind M, m (a worker's message), A, R, F (of another id); its payload; its command in a ring."""

    kind: str
    value: int
    client: int
    sequence: int


class File(NamedTuple):
    """A file on the disk."""

    number: int
    low: int
    high: int
    frames: tuple[Frame, ...]


class Entry(NamedTuple):
    """The id's entry in the index."""

    file: int
    at: int
    references: int
    bit: bool


class Row(NamedTuple):
    """A file in the summary."""

    number: int
    lock: int
    ghosts: bool
    pins: tuple[int, int] | None
    step: int  # of its deletion
    old: bool  # recovered by the last start


class Job(NamedTuple):
    """A collection under way, the server's side."""

    number: int
    sources: tuple[int, ...]
    step: int


class Collector(NamedTuple):
    """The collector's side."""

    epoch: int
    number: int
    at: int
    frames: tuple[Frame, ...]
    copied: bool
    looked: int  # 1: the first look of two is done; 2: it said "keep"


class State(NamedTuple):
    """Everything."""

    disk: tuple[File, ...]  # by number; the last but outputs is the current one
    undead: tuple[File, ...]  # unlinked, the directory is not synced
    durable: int  # frames of the current file on the disk
    epoch: int
    current: int
    next: int
    entry: Entry | None
    rows: tuple[Row, ...]
    resynced: bool
    job: Job | None
    superseded: tuple[tuple[int, int], ...]  # (file, by which): to be unlinked
    collector: Collector | None
    made: tuple[tuple[int, tuple[Frame, ...], bool], ...]  # .new files: number, frames, complete
    mail: frozenset[tuple[int, int]]
    sum: tuple[int, bool, int]  # references, bit, payload: what the durable commands add up to
    late: tuple[tuple[str, int, int], ...]  # commands (and whose) with frames that are not durable
    done: frozenset[tuple[int, int]]  # commands of rings whose frames became durable
    left: int
    heads: tuple[int, ...]
    processed: tuple[int, ...]
    high: tuple[int, ...]
    server_kills: int
    collector_kills: int
    jobs: int
    broken: str


def added(total: tuple[int, bool, int], op: str) -> tuple[int, bool, int]:
    """What a command makes of the sum."""
    references, bit, value = total
    if op[0] == "W":
        return (references + 1, bit, value if references or bit else int(op[1]))
    if op[0] == "w":
        return (references, True, value if references or bit else int(op[1]))
    if op == "R":
        return (max(references - 1, 0), bit, value)
    if op == "F":
        return total
    return (references, False, value)


class Replayed(NamedTuple):
    """What a start makes of the files."""

    entry: Entry | None
    value: int
    ghosts: frozenset[int]
    pins: tuple[tuple[int, tuple[int, int]], ...]
    superseded: tuple[tuple[int, int], ...]


def wider(pins: tuple[int, int] | None, low: int, high: int) -> tuple[int, int]:
    """A range of positions that holds another one, too."""
    return (low, high) if pins is None else (min(pins[0], low), max(pins[1], high))


@lru_cache(maxsize=400_000)
def replay(disk: tuple[File, ...], rules: Rules) -> Replayed:
    """Read all files as a start does."""
    superseded = []
    if rules.higher_number_wins:
        for file in disk:
            for other in disk:
                if other.number > file.number and other.low <= file.high and file.low <= other.high:
                    superseded.append((file.number, other.number))
                    break
    gone = {number for number, _ in superseded}
    files = [file for file in disk if file.number not in gone]
    if rules.replay_by_position:
        files.sort(key=lambda file: (file.low, file.number))
    by_number = {file.number: file for file in files}
    entry: Entry | None = None
    value = -1
    ghosts = set()
    pins: dict[int, tuple[int, int]] = {}
    for file in files:
        for at, frame in enumerate(file.frames):
            if frame.kind in "Mm":
                if entry is not None and entry.file != file.number:
                    ghosts.add(entry.file)
                entry = Entry(file.number, at, int(frame.kind == "M"), frame.kind == "m")
                value = frame.value
            elif frame.kind in "AR" and entry is not None and (frame.kind == "A" or entry.references):
                change = 1 if frame.kind == "A" else -1
                entry = entry._replace(references=entry.references + change)
                if entry.file != file.number:
                    of = by_number[entry.file]
                    pins[file.number] = wider(pins.get(file.number), of.low, of.high)
    marked = frozenset(ghosts) if rules.replay_makes_ghost else frozenset()
    return Replayed(entry, value, marked, tuple(sorted(pins.items())), tuple(superseded))


@dataclass(frozen=True)
class CollectionModel:
    """How many commands of any kind (or programs in rings), kills and jobs; how many frames a file takes."""

    ops: int = 4
    kinds: tuple[str, ...] = ("W0", "W1", "R")
    script: tuple[str, ...] = ()  #: exactly these commands, instead of `ops` of any kind; F: a frame of another id
    programs: tuple[tuple[str, ...], ...] = ()
    server_kills: int = 1
    collector_kills: int = 0
    jobs: int = 1
    sources: int = 2
    files: int = 8
    frames: int = 1
    power: bool = False
    deletes: bool = True
    rules: Rules = Rules()

    def start(self) -> State:
        zeros = (0,) * len(self.programs)
        return State(
            (File(1, 1, 1, ()),), (), 0, 1, 1, 2, None, (Row(1, FREE, False, None, SEEN, False),), True, None, (), None,
            (), frozenset(), (0, False, 0), (), frozenset(), len(self.script) or self.ops, zeros, zeros, zeros,
            self.server_kills, self.collector_kills, self.jobs, "",
        )  # fmt: skip

    # -- helpers ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _file(s: State, number: int) -> File:
        return next(file for file in s.disk if file.number == number)

    @staticmethod
    def _row(s: State, number: int) -> Row | None:
        return next((row for row in s.rows if row.number == number), None)

    @staticmethod
    def _set(s: State, number: int, **fields: object) -> State:
        rows = tuple(row._replace(**fields) if row.number == number else row for row in s.rows)  # type: ignore[arg-type]
        return s._replace(rows=rows)

    def _value(self, s: State, entry: Entry) -> int:
        return self._file(s, entry.file).frames[entry.at].value

    def _replay_free(self, s: State, row: Row, file: File) -> bool:
        if row.number == s.current or (s.job is not None and row.number == s.job.number):
            return False
        if any(by == row.number for _, by in s.superseded) and self.rules.output_waits_for_sources:
            return False
        if not self.rules.replay_free or (row.old and not self.rules.replay_free_after_start):
            return True
        return all(frame.client < 0 or frame.sequence < s.heads[frame.client] for frame in file.frames)

    def _marked_before(self, s: State, number: int, high: int) -> bool:
        """Is there a marked file (another one than `number`) at or before this position?"""
        return any(row.ghosts and row.number != number and self._file(s, row.number).low <= high for row in s.rows)

    # -- steps ----------------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        yield from self._commands(s)
        yield from self._deletions(s)
        yield from self._jobs(s)
        yield from self._copies(s)
        for number, by in s.superseded:
            file = self._file(s, number)
            left = tuple(pair for pair in s.superseded if pair[0] != number)
            after = self._unlinked(s, file)._replace(superseded=left)
            yield f"server unlinks {number}, superseded by {by}", after
        if not s.resynced:
            yield self._resync(s)
        if s.server_kills:
            for back in range(len(s.undead) + 1):
                for files in combinations(s.undead, back):
                    yield self._restart(s, files)
        if s.undead and not self.rules.gone_after_sync:
            yield "the directory is synced", s._replace(undead=())

    def _unlinked(self, s: State, file: File) -> State:
        disk = tuple(other for other in s.disk if other.number != file.number)
        if self.power and not self.rules.gone_after_sync:
            return s._replace(disk=disk, undead=(*s.undead, file))
        return s._replace(disk=disk)

    def _commands(self, s: State) -> Iterator[tuple[str, State]]:
        if s.left:
            for op in (self.script[-s.left],) if self.script else self.kinds:
                if (op[0] == "w") == s.sum[1] and op[0] in "wr":
                    continue  # the worker writes what it does not hold, and gives back what it holds
                after = self._execute(s, op, -1, 0)
                if after is not None:
                    yield f"server executes {op}", after._replace(left=s.left - 1)
        for k, program in enumerate(self.programs):
            at = s.processed[k]
            if at < len(program):
                processed = (*s.processed[:k], at + 1, *s.processed[k + 1 :])
                if at < s.high[k]:
                    yield f"server skips {k}:{at}", s._replace(processed=processed)
                else:
                    after = self._execute(s, program[at], k, at)
                    if after is not None:
                        yield f"server executes {program[at]} of {k}:{at}", after._replace(processed=processed)
        frames = self._file(s, s.current).frames
        if s.durable < len(frames):
            total = s.sum
            for op, _, _ in s.late:
                total = added(total, op)
            done = s.done | {(client, sequence) for _, client, sequence in s.late}
            yield "server syncs", s._replace(durable=len(frames), sum=total, late=(), done=done)
        for k, head in enumerate(s.heads):
            if head < s.processed[k] and not s.late:
                heads = (*s.heads[:k], s.processed[k], *s.heads[k + 1 :])
                yield f"server publishes head {k}", s._replace(heads=heads)

    def _execute(self, s: State, op: str, client: int, sequence: int) -> State | None:
        entry = s.entry
        worker = op[0] in "wr"
        if op == "r":
            s = s._replace(sum=added(s.sum, op))
            return s._replace(entry=entry._replace(bit=False) if entry is not None else None)
        if op == "F":
            return self._append(s, Frame("F", 0, client, sequence), entry, op, None)
        if op == "R":
            if entry is None or not entry.references:
                return s
            after = entry._replace(references=entry.references - 1)
            return self._append(s, Frame("R", 0, client, sequence), after, op, entry.file)
        value = int(op[1])
        if entry is not None:
            row = self._row(s, entry.file)
            provisional = not entry.references and not s.resynced
            if provisional and self.rules.provisional_is_compared and self._value(s, entry) != value:
                return None  # waits for the resync
            if entry.references or entry.bit:
                pass
            elif row is not None and row.lock and self.rules.locked_never_gain:
                if self.rules.locked_write_makes_ghost:
                    s = self._set(s, entry.file, ghosts=True)
                entry = None
            elif self._value(s, entry) != value and self.rules.bytes_are_compared:
                if entry.file != s.current and self.rules.payload_makes_ghost:
                    s = self._set(s, entry.file, ghosts=True)
                entry = None
        if worker:
            s = s._replace(sum=added(s.sum, op))
            if entry is not None:
                return s._replace(entry=entry._replace(bit=True))
        if entry is not None:
            after = entry._replace(references=entry.references + 1)
            return self._append(s, Frame("A", 0, client, sequence), after, op, entry.file)
        return self._append(s, Frame("m" if worker else "M", value, client, sequence), None, op, None)

    def _append(self, s: State, frame: Frame, entry: Entry | None, op: str, target: int | None) -> State | None:
        """Append a frame, in a new file when the current one is full."""
        current = self._file(s, s.current)
        if len(current.frames) == self.frames:
            if len(s.rows) >= self.files or s.durable < len(current.frames):
                return None
            made = File(s.next, s.next, s.next, ())
            disk = tuple(sorted((*s.disk, made)))
            rows = tuple(sorted((*s.rows, Row(s.next, FREE, False, None, SEEN, False))))
            s = s._replace(disk=disk, rows=rows, current=s.next, next=s.next + 1, durable=0)
            current = made
        if frame.kind in "Mm":
            entry = Entry(s.current, len(current.frames), int(frame.kind == "M"), frame.kind == "m")
        file = current._replace(frames=(*current.frames, frame))
        disk = tuple(file if other.number == file.number else other for other in s.disk)
        s = s._replace(disk=disk, entry=entry)
        if target is not None and target != s.current:
            of = self._file(s, target)
            row = self._row(s, s.current)
            assert row is not None
            s = self._set(s, s.current, pins=wider(row.pins, of.low, of.high))
        if frame.client < 0:  # free commands are durable at once
            total = s.sum if frame.kind == "m" else added(s.sum, op)
            return s._replace(durable=len(file.frames), sum=total)
        broken = "a command is executed twice" if (frame.client, frame.sequence) in s.done else s.broken
        return s._replace(late=(*s.late, (op, frame.client, frame.sequence)), broken=broken)

    # -- empty files -------------------------------------------------------------------------------------------------

    def _deletions(self, s: State) -> Iterator[tuple[str, State]]:
        for row in s.rows if self.deletes else ():
            if row.lock == FREE:
                if self._may_go(s, row):
                    ghosts = row.ghosts or self.rules.deletion_makes_ghost
                    step = DURABLE if not s.late or not self.rules.durable_before_loss else SEEN
                    yield (
                        f"server locks empty {row.number}",
                        self._set(s, row.number, lock=GOING, ghosts=ghosts, step=step),
                    )
            elif row.lock != GOING:
                continue
            elif row.step == SEEN:
                if not s.late:
                    yield f"{row.number} may go", self._set(s, row.number, step=DURABLE)
            elif row.step == DURABLE:
                entry = s.entry
                broken = s.broken
                if entry is not None and entry.file == row.number:
                    if entry.references or entry.bit:
                        broken = "a held entry lies in a file that goes"
                    entry = None
                after = self._set(s, row.number, step=DROPPED)
                yield f"server drops entries of {row.number}", after._replace(entry=entry, broken=broken)
            elif row.step == DROPPED:
                after = self._unlinked(s, self._file(s, row.number))
                rows = tuple(other for other in s.rows if other.number != row.number)
                yield f"server unlinks {row.number}", after._replace(rows=rows)

    def _may_go(self, s: State, row: Row) -> bool:
        file = self._file(s, row.number)
        if not self._replay_free(s, row, file) or (self.rules.resync_gate and not s.resynced):
            return False
        if s.entry is not None and s.entry.file == row.number and (s.entry.references or s.entry.bit):
            return False
        if row.pins is not None and self.rules.pins:
            for other in s.rows:
                of = self._file(s, other.number)
                if other.number != row.number and of.low <= row.pins[1] and row.pins[0] <= of.high:
                    return False
        controls = any(frame.kind in "AR" for frame in file.frames)
        return not (controls and self.rules.ghosts_keep_files and self._marked_before(s, row.number, file.high))

    # -- collection ---------------------------------------------------------------------------------------------------

    def _jobs(self, s: State) -> Iterator[tuple[str, State]]:
        job = s.job
        if job is None:
            if s.jobs and (s.resynced or not self.rules.resync_gate):
                yield from self._post(s)
            return
        if job.step == COPYING:
            answered = {n for epoch, n in s.mail if epoch == s.epoch or not self.rules.answers_have_epochs}
            if job.number in answered:
                step = SYNCED if not s.late or not self.rules.durable_before_loss else ANSWERED
                mail = frozenset(answer for answer in s.mail if answer[1] != job.number)
                yield f"server reads the answer for {job.number}", s._replace(job=job._replace(step=step), mail=mail)
            idle = s.collector is None or s.collector.epoch == s.epoch
            if s.collector_kills and idle:
                number = s.next if self.rules.attempts_have_numbers else job.number
                after = s._replace(collector_kills=s.collector_kills - 1)
                anew = after._replace(
                    job=job._replace(number=number),
                    next=max(s.next, number + 1),
                    collector=Collector(s.epoch, number, 0, (), False, 0),
                    made=(*(made for made in s.made if made[0] != number), (number, (), False)),
                )
                yield "~kill collector: the job is posted anew", anew
                yield "~kill collector: the job is given up", self._given_up(after)
        elif job.step == ANSWERED:
            if not s.late:
                yield "the log is durable", s._replace(job=job._replace(step=SYNCED))
        elif job.step == SYNCED:
            yield self._commit(s, job)
        elif job.step == COMMITTED:
            entry = s.entry
            output = self._file(s, job.number)
            at = next((i for i, frame in enumerate(output.frames) if frame.kind in "Mm"), None)
            swung = entry is not None and (entry.file in job.sources or not self.rules.swing_checks_place)
            if at is not None and swung and entry is not None:
                entry = entry._replace(file=job.number, at=at)
            ghosts = self.rules.output_is_ghost and at is not None and not swung
            after = self._set(s, job.number, ghosts=ghosts)
            yield "server swings", after._replace(entry=entry, job=job._replace(step=SWUNG))
        elif job.step == SWUNG:
            entry = s.entry
            broken = s.broken
            if entry is not None and entry.file in job.sources:
                if entry.references or entry.bit:
                    broken = "a held entry lies in a source that retires"
                entry = None
            rows = tuple(row for row in s.rows if row.number not in job.sources)
            left = tuple((number, job.number) for number in job.sources)
            yield (
                "server retires the sources",
                s._replace(entry=entry, broken=broken, rows=rows, job=None, superseded=(*s.superseded, *left)),
            )

    def _post(self, s: State) -> Iterator[tuple[str, State]]:
        ordered = sorted((self._file(s, row.number).low, row) for row in s.rows)
        for first in range(len(ordered)):
            rows: list[Row] = []
            for _, row in ordered[first : first + self.sources]:
                file = self._file(s, row.number)
                if row.lock or not self._replay_free(s, row, file):
                    break
                rows.append(row)
                sources = tuple(row.number for row in rows)
                after = s
                for source in sources:
                    after = self._set(after, source, lock=JOB)
                yield (
                    f"server posts job {s.next} of {sources}",
                    after._replace(
                        job=Job(s.next, sources, COPYING),
                        collector=s.collector
                        if s.collector is not None
                        else Collector(s.epoch, s.next, 0, (), False, 0),
                        made=(*s.made, (s.next, (), False)),
                        next=s.next + 1,
                        jobs=s.jobs - 1,
                    ),
                )

    def _given_up(self, s: State) -> State:
        assert s.job is not None
        number = s.job.number
        for source in s.job.sources:
            s = self._set(s, source, lock=FREE)
        made = tuple(made for made in s.made if made[0] != number)
        after = s._replace(job=None, collector=None, made=made)
        return after if self.rules.attempts_have_numbers else after._replace(next=number)

    def _commit(self, s: State, job: Job) -> tuple[str, State]:
        made = next((made for made in s.made if made[0] == job.number), None)
        if made is None:
            return "server finds no output", self._given_up(s)
        sources = [self._file(s, number) for number in job.sources]
        output = File(job.number, min(f.low for f in sources), max(f.high for f in sources), made[1])
        pins = None
        for number in job.sources:
            row = self._row(s, number)
            if row is not None and row.pins is not None:
                pins = wider(pins, *row.pins)
        row = Row(
            job.number, FREE, self.rules.output_is_ghost, pins if self.rules.output_inherits_pins else None, 0, False
        )
        return f"server commits {job.number}", s._replace(
            disk=tuple(sorted((*s.disk, output))),
            rows=tuple(sorted((*s.rows, row))),
            made=tuple(other for other in s.made if other[0] != job.number),
            job=job._replace(step=COMMITTED),
            collector=None if s.collector is not None and s.collector.epoch == s.epoch else s.collector,
        )

    def _copies(self, s: State) -> Iterator[tuple[str, State]]:
        collector = s.collector
        if collector is None:
            return
        if collector.epoch != s.epoch:  # its index is a dead server's, its output an unlinked file
            mail = s.mail | {(collector.epoch, collector.number)}
            following = None
            if s.job is not None and s.job.step == COPYING:
                following = Collector(s.epoch, s.job.number, 0, (), False, 0)
            yield "collector answers a dead server", s._replace(mail=mail, collector=following)
            return
        job = s.job
        if job is None or job.step != COPYING:
            return
        frames = [
            (number, at, frame)
            for _, number in sorted((self._file(s, number).low, number) for number in job.sources)
            for at, frame in enumerate(self._file(s, number).frames)
        ]
        if collector.at == len(frames):
            if all(made[0] != collector.number or not made[2] for made in s.made):
                made = tuple(
                    (collector.number, collector.frames, True) if m[0] == collector.number else m for m in s.made
                )
                mail = s.mail | {(s.epoch, collector.number)}
                yield f"collector answers {collector.number}", s._replace(made=made, mail=mail)
            return
        number, at, frame = frames[collector.at]
        kept = collector._replace(at=collector.at + 1, frames=(*collector.frames, frame), looked=0)
        dropped = collector._replace(at=collector.at + 1, looked=0)
        entry = s.entry
        if frame.kind == "F":
            yield "collector drops F", s._replace(collector=dropped)
            return
        if frame.kind in "Mm":
            held = entry is not None and entry[:2] == (number, at) and (entry.references or entry.bit)
            after = kept._replace(copied=True) if held else dropped
            yield f"collector {'copies' if held else 'drops'} {frame.kind}@{number}", s._replace(collector=after)
            return
        first, second = self._by_index, self._by_ghosts
        if not self.rules.index_before_ghosts:
            first, second = second, first
        look = second if collector.looked else first
        if look(s, collector, job, number):
            yield f"collector keeps {frame.kind}@{number}", s._replace(collector=kept)
        elif collector.looked:
            yield f"collector drops {frame.kind}@{number}", s._replace(collector=dropped)
        else:
            yield f"collector looks at {frame.kind}@{number}", s._replace(collector=collector._replace(looked=1))

    def _by_index(self, s: State, collector: Collector, job: Job, number: int) -> bool:
        if collector.copied and self.rules.copied_keep_controls:
            return True
        entry = s.entry
        if entry is None or not self.rules.entries_keep_controls:
            return False
        if entry.references or entry.bit:
            return True
        return entry.file not in job.sources and self.rules.unheld_keep_controls

    def _by_ghosts(self, s: State, collector: Collector, job: Job, number: int) -> bool:
        return self.rules.ghosts_keep_controls and self._marked_before(s, -1, self._file(s, number).high)

    # -- restart ------------------------------------------------------------------------------------------------

    def _survives(self, s: State, back: tuple[File, ...] = ()) -> tuple[File, ...]:
        """What a kill at this moment leaves on the disk."""
        disk = (
            s.disk
            if not s.late
            else tuple(
                file._replace(frames=file.frames[: s.durable]) if file.number == s.current else file for file in s.disk
            )
        )
        return tuple(sorted((*disk, *back))) if back else disk

    def _restart(self, s: State, back: tuple[File, ...]) -> tuple[str, State]:
        disk = self._survives(s, back)
        found = replay(disk, self.rules)
        superseded = {number for number, _ in found.superseded}
        high = [0] * len(self.programs)
        for file in disk:
            for frame in file.frames:
                if frame.client >= 0 and file.number not in superseded:
                    high[frame.client] = max(high[frame.client], frame.sequence + 1)
        current = max(max(file.number, file.high) for file in disk) + 1
        pins = dict(found.pins)
        rows = [
            Row(file.number, FREE, file.number in found.ghosts, pins.get(file.number), SEEN, True)
            for file in disk
            if file.number not in superseded
        ]
        rows.append(Row(current, FREE, False, None, SEEN, False))
        worker = any(op[0] in "wr" for op in self.kinds)
        collector = s.collector
        if collector is not None and (collector.epoch, collector.number) in s.mail:
            collector = None
        text = "".join(f", {file.number} is back" for file in back)
        return f"~kill server, it starts{text}", s._replace(
            disk=tuple(sorted((*disk, File(current, current, current, ())))), undead=(), durable=0, epoch=s.epoch + 1,
            current=current, next=current + 1, entry=found.entry, rows=tuple(sorted(rows)), resynced=not worker,
            job=None, superseded=found.superseded, collector=collector, made=(), late=(), processed=s.heads,
            high=tuple(high),
            server_kills=s.server_kills - 1,
        )  # fmt: skip

    def _resync(self, s: State) -> tuple[str, State]:
        entry, broken = s.entry, s.broken
        holds = s.sum[1]
        if entry is not None:
            entry = entry._replace(bit=holds)
        elif holds:
            broken = "a worker's message is lost"
        return "worker resyncs", s._replace(entry=entry, broken=broken, resynced=True)

    # -- invariants --------------------------------------------------------------------------------------------------

    def _differs(self, total: tuple[int, bool, int], entry: Entry | None, value: int, what: str) -> str | None:
        references, bit, payload = total
        if references or bit:
            if entry is None:
                return f"{what}: the message is lost"
            if value != payload:
                return f"{what}: another payload"
        found = entry.references if entry is not None else 0
        if found > references:
            return f"{what}: {'a reference is doubled' if references else 'the message is back'}"
        if found < references:
            return f"{what}: a reference is lost"
        return None

    def wrong(self, s: State) -> str | None:
        if s.broken:
            return s.broken
        total = s.sum
        for op, _, _ in s.late:
            total = added(total, op)
        entry = s.entry
        value = -1
        if entry is not None:
            if all(file.number != entry.file for file in s.disk):
                return "the entry's file is gone"
            value = self._value(s, entry)
        wrong = self._differs(total, entry, value, "in the index")
        if wrong is None and entry is not None and s.resynced and entry.bit != total[1]:
            wrong = "in the index: a worker's reference differs"
        if wrong:
            return wrong
        for back in range(len(s.undead) + 1):
            for files in combinations(s.undead, back):
                found = replay(self._survives(s, files), self.rules)
                wrong = self._differs(s.sum, found.entry, found.value, "after a kill")
                if wrong:
                    return wrong
        return None

    def rest(self, s: State) -> str | None:
        if s.job is not None:
            return "a collection hangs"
        if any(row.lock for row in s.rows):
            return "a file stays locked"
        return None


def _script(text: str) -> tuple[str, ...]:
    return tuple(text.split())


#: name → model
STANDARD = {
    "any commands, deletions and a job": CollectionModel(ops=3),
    "a collector that dies": CollectionModel(ops=2, collector_kills=1, jobs=2),
    "a worker that resyncs": CollectionModel(ops=3, kinds=("W0", "W1", "R", "w0", "r")),
    "two clients' rings": CollectionModel(ops=0, programs=(("W0", "R"), ("W0",))),
    "rings and two kills": CollectionModel(ops=0, programs=(("W0",), ("R", "W1")), server_kills=2, jobs=0),
    "two jobs, one behind the other": CollectionModel(
        script=_script("W0 F R W0 R F"), server_kills=0, jobs=2, sources=4, deletes=False
    ),
}

#: what needs more before it shows; searched with a rule broken only
LATE = {
    "files that go one by one": CollectionModel(script=_script("W0 R W1 W1 R R F"), server_kills=0, jobs=0),
    "a job that is given up": CollectionModel(
        script=_script("W0 F R W0 R F"), server_kills=0, collector_kills=1, jobs=2, sources=4, deletes=False
    ),
    "power": CollectionModel(ops=3, power=True),
    "an answer to a dead server": CollectionModel(script=_script("W0 R"), collector_kills=1, jobs=2),
    "four commands": CollectionModel(ops=4),
}

#: rule → the model that shows it, where that is not the first
WHERE = {
    "payload_makes_ghost": "files that go one by one",
    "locked_write_makes_ghost": "a job that is given up",
    "replay_makes_ghost": "four commands",
    "output_is_ghost": "two jobs, one behind the other",
    "ghosts_keep_files": "files that go one by one",
    "copied_keep_controls": "two jobs, one behind the other",
    "provisional_is_compared": "a worker that resyncs",
    "resync_gate": "a worker that resyncs",
    "gone_after_sync": "power",
    "attempts_have_numbers": "a collector that dies",
    "answers_have_epochs": "a collector that dies",
    "durable_before_loss": "two clients' rings",
    "replay_free": "rings and two kills",
    "replay_free_after_start": "rings and two kills",
}

#: larger ones
DEEP = {
    "four commands, two jobs": CollectionModel(ops=4, jobs=2),
    "four commands, two kills": CollectionModel(ops=4, server_kills=2),
    "four commands, a collector that dies": CollectionModel(ops=4, collector_kills=1),
    "five commands": CollectionModel(ops=5),
    "two frames a file": CollectionModel(ops=6, frames=2),
    "four commands, a worker that resyncs": CollectionModel(ops=4, kinds=("W0", "W1", "R", "w0", "r")),
    "three commands in rings, two kills": CollectionModel(ops=0, programs=(("W0", "R"), ("W0",)), server_kills=2),
    "four commands in rings": CollectionModel(ops=0, programs=(("W0", "R", "W1"), ("W0",))),
    "three sources": CollectionModel(ops=4, server_kills=1, sources=3, deletes=False),
    "removed and written again under a job": CollectionModel(script=_script("W0 F R W0 W0 R R F"), server_kills=0),
}
