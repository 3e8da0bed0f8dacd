"""Garbage collection of a store, as the store server decides it (design note 003, section 5).

Empty files go; collections are chosen (engine/store/choose.py), asked for (job.py), committed, swung to, retired.

One task at a time for each store. A task is a generator that runs in the server's loop thread, between two rounds; it
yields what it waits for: the next round, a function for the helper thread (whatever blocks), or the collector's answer.

Invariants
  Files of a task are locked from its beginning to its end. Until the output has its name nothing has happened but the
  lock; from then on the output is what a start takes, and the task only goes forward.
  A source is removed when no entry leads into it and the output is durable, in its directory, too.
  What the collector says is believed only about the output that this server asked for (number and salt), and checked.
Crash points
  collect_locked, collect_list_renamed, collect_committed, retire_unlinked, retired (others: engine/store/store.h)
  before collect_committed: the `.new` files go at the next start; after it, the next start removes the sources.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any, Protocol

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.kernel import data_files, segment
from warren.engine.kernel.formats import FILE_HEADER_BYTES, FILE_STORE, KIND_MESSAGE
from warren.engine.kernel.removal import Removal
from warren.engine.kernel.segment import unfinished_path
from warren.engine.saying import Say, counted
from warren.engine.store.choose import choose, disk_most, pressed, triggered
from warren.engine.store.file_summary import FileRow
from warren.engine.store.folder import data_path, list_path, losses_path, output_paths
from warren.engine.store.job import Failed, Job, Loss, open_source, read_losses
from warren.engine.store.quiet import Quiet
from warren.ipc import mailbox
from warren.ipc.layout import CONSTANTS, PAGE_BYTES
from warren.ipc.superblock import Superblock

#: empty files that go together: a server that is killed again and again gets somewhere, however many there are
EMPTIES_MAX = 64
ASK_AGAIN_S = 5.0
GIVE_UP_S = 30.0
LOOK_AGAIN_S = 1.0
DURABLE_POLL_S = 0.001
BACKOFF_FIRST_S, BACKOFF_MAX_S = 1.0, 60.0


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

    def spares_n(self) -> int:
        """How many spares there are."""

    def spares_useful(self) -> int:
        """How many spares are worth their space while the store is used."""

    def drop_spares(self, most: int) -> None:
        """On the helper thread: spares above this number go. Raises OSError, StoreError."""

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
        say: Say,
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
        self._quiet = Quiet()
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
        if not (self.stopping or self.broken):
            self._look_whether_quiet(now)

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
            records = counted(int(message.get("damaged_n", 0)), "record")
            self._say(
                f"damage in {data_path(self.folder, file)}: {records}, the first at byte "
                f"{message.get('offset')} ({message.get('reason')}); the file is collected without them",
                WARNING,
            )
            self._suspects.add(file)
            self._not_before = 0.0

    def on_verified(self, message: Mapping[str, Any]) -> None:
        """`verified`: the background pass has read everything."""
        if message.get("store_epoch") == self.store_epoch and self._verify_below is not None:
            self._verify_below = None
            self._say(
                f"all bodies were verified in the background: {message.get('files')} files, {message.get('bytes')} "
                f"bytes, {message.get('damaged_n')} damaged records",
                WARNING,
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
        except (RuntimeError, OSError, StoreError) as error:
            # Files of this task stay as they are, locked; a start sorts them out.
            self._say(f"no more garbage is collected until the next start: {error}", ERROR, exc_info=True)
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
            self._say(
                f"cannot read {self.folder} to let empty files go ({error}); they stay until the next start", WARNING
            )
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
                cursor = self.core.drop_entries(self.number, file, contents, cursor)
                yield ROUND

    def _gone(self, files: Iterable[int]) -> None:
        for file in files:
            self.core.file_gone(self.number, file)
            self._floors.pop(file, None)
            self._suspects.discard(file)

    # -- a store that nobody uses -----------------------------------------------------------------------------------

    def _look_whether_quiet(self, now: float) -> None:
        """Settle when it is; while the store is used, spares that are of no use go."""
        look, get = self.core.look(self.number), self.superblock.server_get
        files = get(self.number, "files"), get(self.number, "retired_n")
        state = look["file"], look["append"], look["has_next"], look["messages"], look["valid_bytes"], files
        due = self._quiet.look(state, now)
        if due and self._task is None:
            self._start(self._settle())
        elif self._around.spares_n() > (useful := self._around.spares_useful()):
            self._around.helper(lambda: self._around.drop_spares(useful))

    def _settle(self) -> Task:
        """Give back what a quiet store does not need (rule S24): what is mostly garbage is collected, the current file
        is left when only garbage is in it, and spares go.
        """
        enough = False
        try:
            while True:
                rows = self._around.files()
                valid = sum(row.valid_total_size for row in rows)
                sizes = yield lambda: self._sizes(rows)  # noqa: B023 - called before the next turn
                look = self.core.look(self.number)
                most, taken = disk_most(valid, self.file_bytes), sum(sizes.values())
                taken += self.file_bytes * bool(look["has_next"])
                pinned = set(self.core.pinned(self.number))
                enough = taken <= most
                if enough or not (yield from self._collect_quietly(rows, sizes, pinned)):
                    break
            if self.stopping:
                return
            # Empty files go by themselves.
            own = [row for row in rows if row.valid_total_size or row.file in pinned or row.file == look["file"]]
            staying = sum(sizes[row.file] for row in own) + self.file_bytes * bool(look["has_next"])
            if (not valid or staying > most) and self.core.leave_current(self.number):
                taken -= self.file_bytes
            kept = 1 if taken + self.file_bytes <= most else 0
            if self._around.spares_n() > kept:
                yield lambda: self._around.drop_spares(kept)
        except (OSError, StoreError) as error:
            self._say(f"{self.folder} keeps more of the disk than it needs: {error}; tried again", WARNING)
        self._quiet.settled(time.monotonic(), again=not enough)

    def _sizes(self, rows: Iterable[FileRow]) -> dict[int, int]:
        """On the helper thread: what the files take. A file that was left early, or at a stop, is mostly empty."""
        return {row.file: data_path(self.folder, row.file).stat().st_size for row in rows}

    def _collect_quietly(
        self, rows: Sequence[FileRow], sizes: Mapping[int, int], pinned: Iterable[int]
    ) -> Generator[Step, Any, bool]:
        """One collection by what the files take; False: there is nothing to collect, or it failed."""
        if not self.superblock.collector.alive():
            return False
        chosen = choose(
            [row._replace(file_size=sizes[row.file]) for row in rows],
            pinned=pinned,
            file_bytes=self.file_bytes,
            fraction=min(self.fraction, 0.5),
            floors=self._floors,
            refused=self._refused,
            controls_share=self._controls_share,
        )
        before, files = self.counts.collections, {row.file for row in chosen}
        if chosen:
            run = sorted((row for row in rows if row.file in files), key=lambda row: (row.position_low, row.file))
            yield from self._collect(run, list(rows), hurry=False)
        return self.counts.collections > before

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
            pinned=self.core.pinned(self.number),
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
            self._say(
                f"cannot take up the collected file {job.output}: {error}; raise the setting summary_rows", WARNING
            )
            self.broken = True  # its sources stay locked; the next start takes the output
            return
        lost = [loss for loss in losses if loss.kind == KIND_MESSAGE]
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
            mailbox.post(Path(), "collector", "collect", **self._job.message())

    def _ask_for_verification(self, now: float) -> None:
        if self._verify_below is None or self.stopping:
            return
        collector = self.superblock.collector
        asked_pid, asked_at = self._verify_asked
        if collector.pid and (collector.pid != asked_pid or now - asked_at > ASK_AGAIN_S * 6):
            self._verify_asked = collector.pid, now
            mailbox.post(
                Path(),
                "collector",
                "verify",
                server=self.number,
                store_epoch=self.store_epoch,
                below=self._verify_below,
            )

    def _failed(self, job: Job, files: list[int], error: BaseException) -> None:
        if isinstance(error, _NotDurable):
            self.broken = True
            self._say(f"{error}; nothing more is collected until the node is started again", ERROR)
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
            self._say(
                f"files {_numbers(files)} were not collected: {error}; tried again in {self._backoff:g} s", WARNING
            )

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
        header = segment.read_header(
            unfinished_path(data), kind=FILE_STORE, node_id=node_id, owner=number, file=job.output
        )
        size = unfinished_path(data).stat().st_size
        output = _core.decode_list(
            data_files.read(unfinished_path(contents)), node_id, number, job.output, job.salt, size
        )
        if header.salt != job.salt or isinstance(output, str):
            raise Failed(f"the collector left another file than it was asked for ({output})")
        lost = unfinished_path(losses_path(self.folder, job.output))
        losses = read_losses(lost)
        # The file first, durably: without its list the next start reads it; a list without its file says that it is
        # missing.
        data_files.rename(unfinished_path(data), data)
        try:
            segment.sync_directory(self.folder)
        except StoreError as error:
            raise _NotDurable(f"cannot make a collected file durable: {error}") from error
        try:
            self._around.remember(job.output, job.salt, size)
        except StoreError as error:
            self._say(f"{data} is not listed: {error}; the next start lists it", WARNING)
        self.superblock.crash_point(CONSTANTS["CRASH_COLLECT_LIST_RENAMED"])
        try:
            data_files.rename(unfinished_path(contents), contents)
        except OSError as error:
            self._say(f"{data} has no list: {error}; the next start reads it", WARNING)
        self.superblock.crash_point(CONSTANTS["CRASH_COLLECT_COMMITTED"])
        data_files.unlink(lost, missing_ok=True)
        return lists, output, losses

    def _remove(self, files: Sequence[int], losses: list[Loss]) -> list[int]:
        """Remove files that nothing leads into; returns those that are gone for good."""
        gone = []
        damaged = {loss.file for loss in losses}
        try:
            self._around.forget(files)
            for file in files:
                data_files.unlink(list_path(self.folder, file), missing_ok=True)
                self.superblock.crash_point(CONSTANTS["CRASH_RETIRE_UNLINKED"])
            # A list without its file says that the file is missing: so the lists are gone for good before.
            segment.sync_directory(self.folder)
        except (OSError, StoreError) as error:
            self._say(
                f"cannot remove the lists of files {_numbers(files)}: {error}; they stay until the next start", WARNING
            )
            return []
        with Removal() as removal:
            for file in files:
                path = data_path(self.folder, file)
                try:
                    removal.add(path)
                    if file in damaged:
                        self._around.quarantine(path, [loss for loss in losses if loss.file == file])
                    else:
                        self._around.discard(path)
                    gone.append(file)
                except (OSError, StoreError) as error:
                    self._say(f"cannot remove {path}: {error}; it stays until the next start", WARNING)
            try:
                segment.sync_directory(self.folder)
            except StoreError as error:
                # As far as anybody knows the files are there: what pins itself to them stays, too.
                self._say(f"cannot make it durable that files {_numbers(files)} are gone: {error}", WARNING)
                return []
            removal.give_back()
        self.superblock.crash_point(CONSTANTS["CRASH_RETIRED"])
        return gone

    def _tell(self, job: Job, files: list[int], losses: list[Loss]) -> None:
        for loss in losses:
            where = f"{data_path(self.folder, loss.file)} at byte {loss.offset}, {loss.total} bytes ({loss.reason})"
            if loss.kind == KIND_MESSAGE:
                self._say(f"message {loss.id.hex()} is lost: damaged in {where}", ERROR)
            else:
                self._say(f"a damaged record of references was made again from the list: {where}", WARNING)
        if losses:
            self._say(
                f"{len({loss.file for loss in losses})} damaged files were moved to {self.folder}/quarantine", WARNING
            )


class _NotDurable(StoreError):
    """The output has its name, and the disk refused to make that durable."""


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            data_files.unlink(path, missing_ok=True)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise


def _numbers(files: Sequence[int]) -> str:
    shown = ", ".join(map(str, files[:8]))
    return shown if len(files) <= 8 else f"{shown} and {len(files) - 8} more"
