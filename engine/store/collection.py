"""Garbage collection of a store, as the store server decides it (design note 003, section 5).

    choose             which files are collected next: a pure function of the file summary
    GarbageCollection  one store's work: empty files go, collections are asked for, committed, swung to, retired

One task at a time for each store. A task is a generator that runs in the server's loop thread, between two rounds; it
yields what it waits for: the next round, a function for the helper thread (whatever blocks), or the collector's answer.

Invariants
  Files of a task are locked from its beginning to its end. Until the output has its name nothing has happened but the
  lock; from then on the output is what a start takes, and the task only goes forward.
  A source is removed when no entry leads into it and the output is durable, in its directory, too.
  What the collector says is believed only about the output that this server asked for (number and salt), and checked.
Crash points
  collect_locked, collect_list_renamed, collect_committed, retire_unlinked, retired (others: engine/store/store.c)
  before collect_committed: the `.new` files go at the next start; after it, the next start removes the sources.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from warren.engine import _core
from warren.engine.errors import CorruptRecord, StoreError
from warren.engine.kernel import atomic_file, segment
from warren.engine.kernel.formats import FILE_HEADER_BYTES, FILE_STORE, FRAME_BYTES_MIN, LIST_HEADER
from warren.engine.store.file_summary import FileRow
from warren.ipc import mailbox, names
from warren.ipc.layout import CONSTANTS, PAGE_BYTES
from warren.ipc.superblock import Superblock

DATA, LIST, LOST = ".rdq", ".lst", ".lost"
#: neighbours that one collection combines at most: the job has to fit into a message
SOURCES_MAX = 40
#: empty files that go together: a server that is killed again and again gets somewhere, however many there are
EMPTIES_MAX = 64
#: a run is worth copying when so much of the threshold's share of its bytes is won
GAIN_SHARE = 0.5
ASK_AGAIN_S = 5.0
GIVE_UP_S = 30.0
LOOK_AGAIN_S = 1.0
DURABLE_POLL_S = 0.001
BACKOFF_FIRST_S, BACKOFF_MAX_S = 1.0, 60.0


# -- policy -----------------------------------------------------------------------------------------------------------


def pinned(row: FileRow, files: Iterable[FileRow]) -> bool:
    """True while its own removals speak of messages in files that are there: without it a start would revive those."""
    if not row.pin_low:
        return False
    low, high = row.pin_low - 1, row.pin_high - 1
    return any(other.file != row.file and other.position_low <= high and other.position_high >= low for other in files)


def triggered(files_n: int, valid: int, total: int, file_bytes: int, fraction: float) -> bool:
    """Rule S15: more than two files besides the current one, and too much of them is garbage."""
    return files_n > 3 and total > 2 * file_bytes and total - valid > fraction * total


def pressed(valid: int, total: int, file_bytes: int) -> bool:
    """So much garbage that it is collected without a pause."""
    return total > 4 * valid + 4 * file_bytes


def choose(
    files: Sequence[FileRow],
    *,
    file_bytes: int,
    fraction: float,
    floors: Mapping[int, int] | None = None,
    suspects: Iterable[int] = (),
    crowded: bool = False,
    refused: Iterable[int] = (),
    controls_share: float = 0.25,
) -> list[FileRow]:
    """The neighbours to be collected into one file, eldest first; empty: nothing is worth it.

    `floors`: bytes of a collected file that were needed without being live (its control frames), while it is pinned.
    `suspects`: files with damage, collected as they are. `crowded`: too many files, so small ones are combined even
    when that wins nothing. `refused`: files that cannot be collected. `controls_share`: what is taken to be control
    frames that are needed, of the dead bytes of a pinned file that was never collected.
    """
    room = file_bytes - FILE_HEADER_BYTES - FRAME_BYTES_MIN
    known, left_out = floors or {}, set(refused)
    ordered = sorted(files, key=lambda row: (row.position_low, row.file))
    pins = {row.file for row in ordered if pinned(row, ordered)}

    def needed(row: FileRow) -> int:
        most = max(0, row.file_size - FILE_HEADER_BYTES)
        if row.file not in pins:
            return min(row.valid_total_size, most)
        guess = int((most - row.valid_total_size) * controls_share)
        return min(row.valid_total_size + known.get(row.file, max(0, guess)), most)

    def fit(row: FileRow) -> bool:
        alive = row.valid_total_size > 0 or row.file in pins
        return bool(row.settled and not row.locked and alive and row.file not in left_out)

    wanted = set(suspects)
    for row in ordered:
        if row.file in wanted and fit(row):
            return [row]
    for first, row in enumerate(ordered):
        if not fit(row):
            continue
        run, sum_needed = [row], needed(row)
        for neighbour in ordered[first + 1 : first + SOURCES_MAX]:
            more = needed(neighbour)
            if not fit(neighbour) or sum_needed + more > room:
                break
            run.append(neighbour)
            sum_needed += more
        if _worth(run, sum_needed, fraction, crowded):
            return run
        if needed(row) < (1 - fraction) * row.file_size and row.file_size > 2 * PAGE_BYTES + needed(row):
            return [row]
    return []


def _worth(run: Sequence[FileRow], needed: int, fraction: float, crowded: bool) -> bool:
    if len(run) < 2:
        return False
    size = sum(row.file_size for row in run)
    return size - needed - 2 * PAGE_BYTES >= fraction * GAIN_SHARE * size or (crowded and len(run) >= 4)


# -- files ------------------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """A file that is collected or retired, open for reading: whoever has it closes `fd`."""

    fd: int
    list: _core.FileList
    size: int


def data_path(folder: Path, number: int) -> Path:
    """`<n>.rdq`"""
    return folder / f"{number}{DATA}"


def list_path(folder: Path, number: int) -> Path:
    """`<n>.lst`"""
    return folder / f"{number}{LIST}"


def unfinished(path: Path) -> Path:
    """The name that a file has until it counts."""
    return path.with_name(path.name + segment.UNFINISHED)


def output_paths(folder: Path, number: int) -> list[Path]:
    """What a collection that was given up may have left."""
    paths = (data_path(folder, number), list_path(folder, number), folder / f"{number}{LOST}")
    return [unfinished(path) for path in paths]


def remove_leftovers(folder: Path) -> int:
    """Before a start: outputs of collections that were never committed. Raises StoreError, OSError."""
    found = 0
    for suffix in (DATA, LIST, LOST):
        for path in segment.list_files(folder, suffix).unfinished:
            path.unlink(missing_ok=True)
            found += 1
    return found


def open_source(folder: Path, node_id: int, owner: int, number: int) -> Source:
    """A file and what lies in it: by its list, or by reading it all when there is no good list.

    Raises CorruptRecord (neither header nor list can be read), StoreError, OSError.
    """
    fd = os.open(data_path(folder, number), os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        try:
            stored = list_path(folder, number).read_bytes()
        except OSError:
            stored = b""
        salt = _salt_of(fd, folder, node_id, owner, number, stored)
        found = _core.decode_list(stored, node_id, owner, number, salt, size) if stored else "none"
        if isinstance(found, str):
            found, _reason = _core.scan_list(number, salt, _read_all(fd, size))
        with contextlib.suppress(OSError):  # from here on whole pages are read, once; a file system may not have it
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
        return Source(fd, found, size)
    except BaseException:
        os.close(fd)
        raise


def _salt_of(fd: int, folder: Path, node_id: int, owner: int, number: int, stored: bytes) -> int:
    path = data_path(folder, number)
    try:
        page = os.pread(fd, FILE_HEADER_BYTES, 0)
        return segment.check_header(path, page, kind=FILE_STORE, node_id=node_id, owner=owner, file=number).salt
    except (CorruptRecord, OSError):
        # a damaged header page: the list knows the salt as well, and is checked by its own sum
        if len(stored) >= LIST_HEADER.size:
            return LIST_HEADER.unpack(stored, "salt")
        raise


def _read_all(fd: int, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        n = os.preadv(fd, [view[got : got + (8 << 20)]], got)
        if n == 0:
            break
        got += n
    return data


# -- jobs -------------------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """What the collector is asked to do. Travels as a message."""

    server: int
    store_epoch: int
    output: int
    salt: int
    sources: list[tuple[int, int, int, bool]]  #: file, position_low, position_high, keep every control frame
    bytes: int  #: how much will be copied, about
    paced: bool

    def message(self) -> dict[str, Any]:
        """Fields of the message `collect`."""
        return {**vars(self), "sources": [list(source) for source in self.sources]}

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Job:
        """Back from a message. Raises KeyError, TypeError, ValueError on nonsense."""
        sources = [(int(file), int(low), int(high), bool(keep)) for file, low, high, keep in message["sources"]]
        if not sources:
            raise ValueError("a job without sources")
        server, store_epoch = int(message["server"]), int(message["store_epoch"])
        output, salt = int(message["output"]), int(message["salt"])
        return cls(server, store_epoch, output, salt, sources, int(message["bytes"]), bool(message["paced"]))

    @property
    def key(self) -> tuple[int, int, int, int]:
        """What an answer is recognised by."""
        return self.server, self.store_epoch, self.output, self.salt


class Loss(NamedTuple):
    """A record that a collection could not copy."""

    id: bytes
    file: int
    offset: int
    total: int
    reason: str
    kind: int


class Failed(Exception):
    """A collection came to nothing; its sources stay as they are."""


class _Again(Failed):
    """The collector that was asked has ended; another one is asked anew, for another output."""


class _Answer:
    """What a task yields to wait for the collector."""


class Surroundings(Protocol):
    """What the store server lends to its garbage collection."""

    def helper(self, work: Callable[[], None]) -> None:
        """Run on the helper thread."""

    def hand_over(self, action: Callable[[], None]) -> None:
        """From a helper thread: run in the loop thread."""

    def take_number(self) -> int:
        """The next file number whose row of the summary is free."""

    def remember(self, number: int, salt: int, size: int) -> None:
        """On the helper thread: a file is there for good. Raises StoreError."""

    def forget(self, numbers: Iterable[int]) -> None:
        """On the helper thread: files are about to go. Raises StoreError; then they must stay."""

    def discard(self, path: Path) -> None:
        """On the helper thread: keep a file that goes as a spare, or unlink it. Raises OSError, StoreError."""

    def quarantine(self, path: Path, losses: list[Loss]) -> None:
        """On the helper thread: move a damaged file aside. Raises OSError, StoreError."""

    def files(self) -> list[FileRow]:
        """The file summary as it is now."""


ROUND = None
Step = Callable[[], Any] | _Answer | None
Task = Generator[Step, Any, None]


@dataclass
class Counts:
    """For the log and for tests."""

    collections: int = 0
    failures: int = 0
    emptied: int = 0
    losses: list[Loss] = field(default_factory=list)


class GarbageCollection:
    """One store's collection of garbage, driven from the server's loop: on_timer, on_empty, on_answer, go_on."""

    def __init__(
        self,
        core: _core.StoreServer,
        superblock: Superblock,
        number: int,
        folder: Path,
        file_bytes: int,
        fraction: float,
        store_epoch: int,
        around: Surroundings,
        say: Callable[[str], None],
    ) -> None:
        self.core = core
        self.superblock = superblock
        self.number = number
        self.folder = folder
        self.file_bytes = file_bytes
        self.fraction = fraction
        self.store_epoch = store_epoch
        self.counts = Counts()
        self.stopping = False
        self.broken = False  #: a commit could not be made durable: nothing more is collected until the next start
        self._around = around
        self._say = say
        self._task: Task | None = None
        self._waiting: Step = ROUND
        self._ready = False  #: the task wants the next round
        self._empties: list[int] = []
        self._floors: dict[int, int] = {}
        self._controls_share = 0.25  #: as the last collections found it
        self._suspects: set[int] = set()
        self._refused: set[int] = set()
        self._not_before = 0.0
        self._backoff = 0.0
        self._job: Job | None = None  #: asked for, not answered
        self._output: int | None = None  #: of the task at hand
        self._asked_at = self._alive_at = 0.0
        self._asked_pid = 0
        self._verify_below: int | None = None  #: files below it are to be verified in the background
        self._verify_asked: tuple[int, float] = (0, 0.0)

    # -- from the loop --------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """A task is under way."""
        return self._task is not None

    def on_empty(self, files: Iterable[int]) -> None:
        """Files without live records, locked by the core: they go before anything else is collected."""
        self._empties.extend(files)
        self._begin()

    def on_timer(self) -> None:
        """Four times a second: choose, ask again, give up."""
        now = time.monotonic()
        if self._job is not None:
            self._ask(now)
        self._ask_for_verification(now)
        self._begin()

    def on_answer(self, message: Mapping[str, Any]) -> None:
        """`collected`: of the job at hand, or of one that was given up."""
        key = tuple(message.get(name) for name in ("server", "store_epoch", "output", "salt"))
        if self._job is not None and key == self._job.key:
            self._job = None
            self._advance(message)
        elif key[1] == self.store_epoch and isinstance(key[2], int) and key[2] != self._output:
            paths = output_paths(self.folder, key[2])
            self._around.helper(lambda: _unlink(paths))

    def on_damage(self, message: Mapping[str, Any]) -> None:
        """`damage`: the background pass found a damaged record; its file is collected, which names and drops it."""
        if message.get("store_epoch") == self.store_epoch and isinstance(message.get("file"), int):
            file = message["file"]
            self._say(
                f"damage in {data_path(self.folder, file)}: {message.get('damaged_n')} records, the first at byte "
                f"{message.get('offset')} ({message.get('reason')}); the file is collected without them"
            )
            self._suspects.add(file)
            self._not_before = 0.0

    def on_verified(self, message: Mapping[str, Any]) -> None:
        """`verified`: the background pass has read everything."""
        if message.get("store_epoch") == self.store_epoch and self._verify_below is not None:
            self._verify_below = None
            self._say(
                f"all bodies were verified in the background: {message.get('files')} files, {message.get('bytes')} "
                f"bytes, {message.get('damaged_n')} damaged records"
            )

    def verify(self, below: int) -> None:
        """After an unclean start: let the collector read all files with smaller numbers once."""
        self._verify_below = below

    def go_on(self) -> bool:
        """Once a round: the next slice of the task, if it waits for that, or the next task. True: there is more."""
        if self._ready:
            self._ready = False
            self._advance(None)
        elif self._task is None and not self._empties:
            now = time.monotonic()
            if now >= self._not_before:
                self._choose(now)
        return self._ready

    def stop(self) -> None:
        """The server ends: what is not committed is given up; what is goes on at the next start."""
        self.stopping = True
        self._job = None
        if self._task is not None and isinstance(self._waiting, _Answer):
            self._fail(Failed("the server ends"))

    # -- tasks ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._task is None and self._empties and not self.stopping:
            files, self._empties = self._empties[:EMPTIES_MAX], self._empties[EMPTIES_MAX:]
            self._start(self._retire_empty(files))

    def _start(self, task: Task) -> None:
        self._task = task
        self._advance(None)

    def _advance(self, value: Any) -> None:
        self._run(lambda task: task.send(value))

    def _fail(self, error: BaseException) -> None:
        self._run(lambda task: task.throw(error))

    def _run(self, resume: Callable[[Task], Step]) -> None:
        """Let the task go on to what it waits for next."""
        assert self._task is not None
        self._waiting = ROUND
        try:
            step = resume(self._task)
        except StopIteration:
            self._task = self._output = None
            self._begin()
            return
        except (RuntimeError, OSError, StoreError):
            # Files of this task stay as they are, locked; a start sorts them out.
            self._say(f"collection of garbage ends until the next start: {traceback.format_exc()}")
            self._task = self._output = None
            self.broken = True
            return
        self._waiting = step
        if step is ROUND:
            self._ready = True
        elif callable(step):
            self._around.helper(lambda: self._help(step))

    def _help(self, work: Callable[[], Any]) -> None:
        """On the helper thread."""
        try:
            result = work()
        except (OSError, StoreError, Failed) as error:
            failure = error
            self._around.hand_over(lambda: self._fail(failure))
        else:
            self._around.hand_over(lambda: self._advance(result))

    def _retire_empty(self, files: list[int]) -> Task:
        try:
            lists = yield lambda: self._lists_of(files)
        except (OSError, StoreError) as error:
            self._say(f"cannot read {self.folder} to let empty files go ({error}); they stay until the next start")
            return
        yield from self._retire(lists)
        gone = yield lambda: self._remove(files, [])
        self._gone(gone)
        self.counts.emptied += len(gone)

    def _retire(self, lists: Mapping[int, _core.FileList]) -> Task:
        """Drop the entries that lie in files on their way out."""
        for file, contents in lists.items():
            cursor = 0
            while cursor >= 0:
                cursor = self.core.retire(self.number, file, contents, cursor)
                yield ROUND

    def _gone(self, files: Iterable[int]) -> None:
        for file in files:
            self.core.file_gone(self.number, file)
            self._floors.pop(file, None)
            self._suspects.discard(file)

    # -- a collection ---------------------------------------------------------------------------------------------

    def _choose(self, now: float) -> None:
        if self.stopping or self.broken:
            return
        get = self.superblock.server_get
        files_n, valid = get(self.number, "files"), get(self.number, "valid_bytes")
        total = get(self.number, "file_bytes_sum")
        alarm = bool(
            (self.superblock.get("alarms") | get(self.number, "alarms")) & CONSTANTS["ALARM_DISK"]
            and total - valid > self.file_bytes
        )
        hurry = alarm or pressed(valid, total, self.file_bytes)
        crowded = files_n > self.superblock.get("summary_rows") // 2
        due = triggered(files_n, valid, total, self.file_bytes, self.fraction)
        if not (due or hurry or crowded or self._suspects):
            return
        rows = self._around.files()
        run = choose(
            rows,
            file_bytes=self.file_bytes,
            fraction=self.fraction,
            floors=self._floors,
            suspects=self._suspects,
            crowded=crowded,
            refused=self._refused,
            controls_share=self._controls_share,
        )
        if not run or not self.superblock.collector.alive():
            self._not_before = now + LOOK_AGAIN_S
            return
        self._start(self._collect(run, rows, hurry))

    def _collect(self, run: list[FileRow], rows: list[FileRow], hurry: bool) -> Task:
        began = time.monotonic()
        files = [row.file for row in run]
        if not self.core.lock_files(self.number, files):
            self._not_before = began + LOOK_AGAIN_S
            return
        self.superblock.crash_point(CONSTANTS["CRASH_COLLECT_LOCKED"])
        ghosts = [row.position_low for row in rows if row.ghosts and row.file not in files]
        job = Job(
            self.number,
            self.store_epoch,
            self._around.take_number(),
            secrets.randbits(64),
            [
                (row.file, row.position_low, row.position_high, any(at <= row.position_high for at in ghosts))
                for row in run
            ],
            sum(row.valid_total_size for row in run),
            not hurry,
        )
        self._output = job.output
        try:
            answer = yield from self._answer(job)
            yield from self._until_durable()
            files, rest = files[: answer["sources_n"]], files[answer["sources_n"] :]
            lists, output, losses = yield lambda: self._commit(job, files)
        except (Failed, OSError, StoreError) as error:
            self._failed(job, [row.file for row in run], error)
            return
        if rest:
            self.core.unlock_files(self.number, rest, True)
        low, high = run[0].position_low, run[len(files) - 1].position_high
        try:
            self.core.collected(self.number, job.output, output.used, low, high)
        except OSError as error:
            self._say(f"cannot take up the collected file {job.output}: {error}; raise the setting summary_rows")
            self.broken = True  # its sources stay locked; the next start takes the output
            return
        lost = [loss for loss in losses if loss.kind == _MESSAGE]
        if lost:
            self.core.drop_lost(self.number, [loss.id for loss in lost])
        cursor = 0
        while cursor >= 0:
            cursor = self.core.swing(self.number, output, files, cursor)
            yield ROUND
        yield from self._retire(lists)
        gone = yield lambda: self._remove(files, losses)
        self._gone(gone)
        self._floors[job.output] = floor = max(0, output.used - FILE_HEADER_BYTES - output.message_bytes)
        dead = sum(row.file_size - row.valid_total_size for row in run if row.file in files)
        self._controls_share = (self._controls_share + min(1.0, floor / max(dead, PAGE_BYTES))) / 2
        self._tell(job, files, losses)
        self.counts.collections += 1
        self.counts.losses += lost
        self._backoff = 0.0
        now = time.monotonic()
        self._not_before = now if hurry else now + (now - began)

    def _answer(self, job: Job) -> Generator[Step, Any, dict[str, Any]]:
        """Ask the collector, and wait; raises Failed when it refused, or was not there for long."""
        self._job = job
        self._alive_at = time.monotonic()
        self._asked_pid = 0
        self._ask(self._alive_at)
        answer = yield _Answer()
        if not answer.get("ok"):
            error = int(answer.get("error") or 0)
            if isinstance(answer.get("refused"), int):
                self._refused.add(answer["refused"])
                self._suspects.discard(answer["refused"])
            raise Failed(str(answer.get("said") or os.strerror(error)))
        sources_n = answer.get("sources_n")
        if not isinstance(sources_n, int) or not 0 < sources_n <= len(job.sources):
            raise Failed("the collector's answer makes no sense")
        return dict(answer)

    def _until_durable(self) -> Task:
        """Wait for what the collector may have seen: a reference that went by a frame that is lost would come back,
        and find its record left out. Raises Failed when the log has failed.
        """
        mark = self.core.log_mark(self.number)
        while not self.core.log_durable(self.number, mark):
            if self.core.look(self.number)["failed"]:
                raise Failed("the log has failed, so nothing is replaced or deleted any more")
            yield lambda: time.sleep(DURABLE_POLL_S)

    def _ask(self, now: float) -> None:
        """Post the job: at first, to a new collector, and now and then, because a message may be lost."""
        assert self._job is not None
        collector = self.superblock.collector
        if collector.pid and collector.alive():
            self._alive_at = now
        elif now - self._alive_at > GIVE_UP_S:
            self._job = None
            self._fail(Failed("the collector does not run"))
            return
        if self._asked_pid not in (0, collector.pid):
            # Its answer may be on the way, about a file that its successor would begin to write again.
            self._job = None
            self._fail(_Again("the collector ended"))
            return
        if collector.pid != self._asked_pid or now - self._asked_at > ASK_AGAIN_S:
            self._asked_pid, self._asked_at = collector.pid, now
            mailbox.post(names.mailbox(self.superblock.shared_id, "collector"), "collect", **self._job.message())

    def _ask_for_verification(self, now: float) -> None:
        if self._verify_below is None or self.stopping:
            return
        collector = self.superblock.collector
        asked_pid, asked_at = self._verify_asked
        if collector.pid and (collector.pid != asked_pid or now - asked_at > ASK_AGAIN_S * 6):
            self._verify_asked = collector.pid, now
            mailbox.post(
                names.mailbox(self.superblock.shared_id, "collector"),
                "verify",
                server=self.number,
                store_epoch=self.store_epoch,
                below=self._verify_below,
            )

    def _failed(self, job: Job, files: list[int], error: BaseException) -> None:
        if isinstance(error, _NotDurable):
            self.broken = True
            self._say(f"{error}; nothing more is collected until the node is started again")
            return
        self.core.unlock_files(self.number, files, True)
        self.counts.failures += 1
        paths = output_paths(self.folder, job.output)
        self._around.helper(lambda: _unlink(paths))
        if isinstance(error, _Again):
            self._not_before = 0.0
            return
        self._backoff = min(BACKOFF_MAX_S, self._backoff * 2 or BACKOFF_FIRST_S)
        self._not_before = time.monotonic() + self._backoff
        if not self.stopping:
            self._say(f"files {_numbers(files)} were not collected: {error}; tried again in {self._backoff:g} s")

    # -- on the helper thread -------------------------------------------------------------------------------------

    def _lists_of(self, files: Iterable[int]) -> dict[int, _core.FileList]:
        lists = {}
        for file in files:
            source = open_source(self.folder, self.superblock.node_id, self.number, file)
            os.close(source.fd)
            lists[file] = source.list
        return lists

    def _commit(self, job: Job, files: list[int]) -> tuple[dict[int, _core.FileList], _core.FileList, list[Loss]]:
        """Check the output, and give it its name. Raises Failed, OSError, StoreError: nothing has changed."""
        node_id, number = self.superblock.node_id, self.number
        data, contents = data_path(self.folder, job.output), list_path(self.folder, job.output)
        lists = self._lists_of(files)
        header = segment.read_header(unfinished(data), kind=FILE_STORE, node_id=node_id, owner=number, file=job.output)
        size = unfinished(data).stat().st_size
        output = _core.decode_list(unfinished(contents).read_bytes(), node_id, number, job.output, job.salt, size)
        if header.salt != job.salt or isinstance(output, str):
            raise Failed(f"the collector left another file than it was asked for ({output})")
        lost = unfinished(self.folder / f"{job.output}{LOST}")
        losses = _read_losses(lost)
        # The file first, durably: without its list the next start reads it; a list without its file says that it is
        # missing.
        unfinished(data).rename(data)
        try:
            segment.sync_directory(self.folder)
        except StoreError as error:
            raise _NotDurable(f"cannot make a collected file durable: {error}") from error
        try:
            self._around.remember(job.output, job.salt, size)
        except StoreError as error:
            self._say(f"{data} is not listed: {error}; the next start lists it")
        self.superblock.crash_point(CONSTANTS["CRASH_COLLECT_LIST_RENAMED"])
        try:
            unfinished(contents).rename(contents)
        except OSError as error:
            self._say(f"{data} has no list: {error}; the next start reads it")
        self.superblock.crash_point(CONSTANTS["CRASH_COLLECT_COMMITTED"])
        lost.unlink(missing_ok=True)
        return lists, output, losses

    def _remove(self, files: Sequence[int], losses: list[Loss]) -> list[int]:
        """Remove files that nothing leads into; returns those that are gone for good."""
        gone = []
        damaged = {loss.file for loss in losses}
        try:
            self._around.forget(files)
            for file in files:
                list_path(self.folder, file).unlink(missing_ok=True)
                self.superblock.crash_point(CONSTANTS["CRASH_RETIRE_UNLINKED"])
            # A list without its file says that the file is missing: so the lists are gone for good before.
            segment.sync_directory(self.folder)
        except (OSError, StoreError) as error:
            self._say(f"cannot remove the lists of files {_numbers(files)}: {error}; they stay until the next start")
            return []
        for file in files:
            path = data_path(self.folder, file)
            try:
                if file in damaged:
                    self._around.quarantine(path, [loss for loss in losses if loss.file == file])
                else:
                    self._around.discard(path)
                gone.append(file)
            except (OSError, StoreError) as error:
                self._say(f"cannot remove {path}: {error}; it stays until the next start")
        try:
            segment.sync_directory(self.folder)
        except StoreError as error:
            # As far as anybody knows the files are there: what pins itself to them stays, too.
            self._say(f"cannot make it durable that files {_numbers(files)} are gone: {error}")
            return []
        self.superblock.crash_point(CONSTANTS["CRASH_RETIRED"])
        return gone

    def _tell(self, job: Job, files: list[int], losses: list[Loss]) -> None:
        for loss in losses:
            where = f"{data_path(self.folder, loss.file)} at byte {loss.offset}, {loss.total} bytes ({loss.reason})"
            if loss.kind == _MESSAGE:
                self._say(f"message {loss.id.hex()} is lost: damaged in {where}")
            else:
                self._say(f"a damaged record of references was made anew from the list: {where}")
        if losses:
            self._say(f"{len({loss.file for loss in losses})} damaged files were moved to {self.folder}/quarantine")


class _NotDurable(StoreError):
    """The output has its name, and the disk refused to make that durable."""


_MESSAGE = 1  # KIND_MESSAGE


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise


def write_losses(path: Path, losses: Sequence[tuple[bytes, int, int, int, str, int]]) -> None:
    """What a collection could not copy, beside its output; nothing when it copied all. Raises OSError."""
    path.unlink(missing_ok=True)
    if losses:
        atomic_file.write_synced(path, msgspec.msgpack.encode(losses))


def _read_losses(path: Path) -> list[Loss]:
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return []
    try:
        return msgspec.msgpack.decode(stored, type=list[Loss])
    except msgspec.MsgspecError as error:
        raise Failed(f"{path} is not what the collector wrote: {error}") from error


def _numbers(files: Sequence[int]) -> str:
    shown = ", ".join(map(str, files[:8]))
    return shown if len(files) <= 8 else f"{shown} and {len(files) - 8} more"
