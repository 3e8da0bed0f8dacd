"""The collector's process: copies what is still needed of a store's files into a new one, when the store server asks.

It takes no decision: the server locks the files before, and makes the output count afterwards
(engine/store/collection.py). So it may be killed, stopped or missing at any time; the server asks its successor, or
gives the collection up. Messages (ipc/mailbox.py), to `collector`: `collect` (a Job), `verify` {server,
store_epoch, below}; to `store`: `collected`, `damage`, `verified`. A job that was answered already is answered
again, and not done again.

It runs at low priority, and paced jobs take half of the time. When no job waits it verifies the bodies of a store that
was started without a clean stop, at a fraction of the disk's speed.
It ends at SIGTERM, and when its node is gone. Crash points: collect_copying, collect_copied, collect_synced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from logging import ERROR, WARNING
from pathlib import Path
from types import FrameType
from typing import Any

from warren.engine import _core
from warren.engine.config import Settings
from warren.engine.errors import CorruptRecord, StoreError
from warren.engine.kernel import atomic_file, data_files, segment
from warren.engine.kernel.paths import STORE_FOLDERS, store_folder
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.engine.saying import Voice
from warren.engine.store.folder import data_path, list_files, list_path, losses_path, output_paths
from warren.engine.store.job import Job, Source, open_source, write_losses
from warren.ipc import access, mailbox
from warren.ipc.layout import CONSTANTS, PAGE_BYTES, SERVER_STORE_PERSISTENT, whole_pages
from warren.ipc.mailbox import PRIORITY_COLLECTED, Mailbox
from warren.ipc.region import Region, RegionError, posix_open
from warren.ipc.superblock import Superblock
from warren.workers.process import logs, remains
from warren.workers.process.tie import COLLECTOR, Tie

NICE = 5
LOOK_S = 1.0
ALONE_S = 10.0  #: without supervisor and store server for so long, nobody will start them again
STEP_BYTES = 1 << 20
STALE_S = 10.0
ANSWER_S = 30.0
STORE_ENDS_S = 10.0  #: how long the end of the node's store server is waited for, when an output lies there
#: share of the time that a paced job, and the verification in the background, take
JOB_SHARE, VERIFY_SHARE = 0.5, 0.2


#: one line into the collector's log
say = Voice()


class _GivenUp(Exception):
    """Nobody wants this any more: the store server is another one, or this process ends."""


class Collector:
    """One incarnation of the collector."""

    def __init__(self, directory: Path, shared_id: int, settings: Settings, superblock: Superblock, tie: Tie) -> None:
        self.directory = directory
        self.settings = settings
        self.superblock = superblock
        self.stopping = False
        self._tie = tie
        self._shared_id = shared_id
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._mailbox: Mailbox | None = None  #: made when there can be one
        self._make_mailbox()
        self._answered: dict[
            int, tuple[tuple[int, ...], dict[str, Any]]
        ] = {}  # per server: the last job and its answer
        self._verified: dict[int, tuple[int, dict[str, Any]]] = {}
        self._verifying: dict[int, tuple[int, Iterator[float]]] = {}
        self._alone_since: float | None = None
        self._look_at = 0.0
        self._why = ""  # it ends

    # -- life -----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to end, or the node is gone; returns the exit code."""
        before = signal.signal(signal.SIGTERM, self._terminate)
        wakeup = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        with contextlib.suppress(OSError):
            os.nice(NICE)
        self.superblock.set("collector_state", CONSTANTS["SERVER_READY"])
        served_at = stopping_at = time.monotonic()
        say("ready: it has nothing to recover")
        try:
            pause = 0.0
            while not self._over():
                message = self._mailbox.receive() if self._mailbox is not None else None
                if message is not None:
                    self._handle(message)
                elif self._verifying:
                    pause = self._verify_on()
                    self._wait(pause)
                else:
                    self._wait(LOOK_S)
            stopping_at = time.monotonic()
        finally:
            signal.set_wakeup_fd(wakeup)
            signal.signal(
                signal.SIGTERM, signal.SIG_IGN
            )  # it ends by itself: what comes late does not make that a kill
            self._leave_nothing()
            self.superblock.set("collector_state", CONSTANTS["SERVER_DOWN"])
            remains.remove_lost(self.superblock, self._tie)
            self._verifying.clear()
            if self._mailbox is not None:
                self._mailbox.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            self.superblock.close()
            signal.signal(signal.SIGTERM, before)
        say(logs.ended(self._why, stopping_at - served_at, time.monotonic() - stopping_at))
        return 0

    def _leave_nothing(self) -> None:
        """The node stops: an answer that its store server does not read any more leaves an output that nobody takes. It
        may just be taking it, so it is waited for; a server that was killed is started again, and its start tidies up.
        """
        if self.superblock.state != CONSTANTS["NODE_DRAINING"]:
            return
        deadline = time.monotonic() + STORE_ENDS_S
        for server, (key, _answer) in self._answered.items():
            paths = output_paths(store_folder(self.directory, server), key[2])
            while any(path.exists() for path in paths):
                if self.superblock.server_get(server, "state") == CONSTANTS["SERVER_DOWN"]:
                    _discard(paths)
                    break
                if time.monotonic() > deadline or not self.superblock.server_identity(server).alive():
                    break
                time.sleep(0.005)

    def _make_mailbox(self) -> None:
        try:
            self._mailbox = Mailbox(self.directory, "collector")
        except OSError as error:
            say(f"cannot make the mailbox ({error}): nothing is collected until there is one; trying again", WARNING)

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True

    def _wait(self, seconds: float) -> None:
        """Until a message or a signal comes, or for so long."""
        if seconds > 0 and not self.stopping:
            watched = [] if self._mailbox is None else [self._mailbox.fileno()]
            select.select([*watched, self._wake_read], [], [], seconds)

    def _over(self) -> bool:
        """True when there is nobody to work for."""
        now = time.monotonic()
        if self.stopping:
            self._why = "it was told to"
            return True
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        if self._mailbox is None:
            self._make_mailbox()
        if self._tie.look() or self.superblock.state == CONSTANTS["NODE_STOPPED"]:
            self._why = "the node has ended"
            return True
        if self.superblock.supervisor.alive() or self.superblock.server_identity(0).alive():
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        alone = self._alone_since is not None and now - self._alone_since > ALONE_S
        self._why = f"supervisor and store server are gone for {ALONE_S:g} s" if alone else ""
        return alone

    def _handle(self, message: Mapping[str, Any]) -> None:
        try:
            if message["server"] not in STORE_FOLDERS:
                raise ValueError(message["server"])
            if message["kind"] == "collect":
                self._collect(Job.of(message))
            elif message["kind"] == "verify":
                self._begin_verification(int(message["server"]), int(message["store_epoch"]), int(message["below"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            say(f"a message that makes no sense was dropped: {error!r}", WARNING)
        except _GivenUp:
            say("a collection was given up: its store server is gone, or this process ends")

    def _current(self, server: int, store_epoch: int) -> bool:
        return self.superblock.server_get(server, "epoch") == store_epoch

    # -- collecting -----------------------------------------------------------------------------------------------

    def _collect(self, job: Job) -> None:
        known = self._answered.get(job.server)
        if known is not None and known[0] == job.key:
            self._post("collected", known[1])
            return
        if not self._current(job.server, job.store_epoch):
            return
        work = _Collecting(self, job)
        try:
            answer = work.run()
        except (OSError, StoreError) as error:
            work.discard()
            number = error.errno if isinstance(error, OSError) else 0
            answer = {"ok": False, "error": number or 0, "said": str(error)[:300], "refused": work.unreadable}
        except BaseException:
            work.discard()
            raise
        finally:
            work.close()
        answer |= {"server": job.server, "store_epoch": job.store_epoch, "output": job.output, "salt": job.salt}
        self._answered[job.server] = (job.key, answer)
        self._post("collected", answer)

    def _post(self, kind: str, fields: Mapping[str, Any]) -> None:
        """To the store server, waiting for room in its mailbox as long as it is the one that asked. What is lost is
        asked for again."""
        deadline = time.monotonic() + ANSWER_S
        while not self.stopping and self._current(fields["server"], fields["store_epoch"]):
            if mailbox.post(self.directory, "store", kind, PRIORITY_COLLECTED, **fields):
                return
            if time.monotonic() > deadline:
                return
            select.select([self._wake_read], [], [], 0.01)

    def step(self, work: _core.Collection, server: int, store_epoch: int, share: float) -> Iterator[float]:
        """Go through a collection; yields how long to rest after each step. Raises OSError, _GivenUp."""
        stale_since: float | None = None
        while True:
            if self.stopping or not self._current(server, store_epoch):
                raise _GivenUp
            began = time.monotonic()
            try:
                done = work.step(STEP_BYTES)
            except OSError as error:
                if error.errno != errno.ESTALE or began - (stale_since or began) > STALE_S:
                    raise
                stale_since = stale_since or began
                yield 0.005  # the index is being replaced
                continue
            stale_since = None
            if done:
                return
            spent = time.monotonic() - began
            yield spent / share - spent

    def rest(self, seconds: float) -> None:
        """Between two steps of a job; messages wait."""
        if seconds > 0 and not self.stopping:
            select.select([self._wake_read], [], [], min(seconds, 1.0))

    # -- verifying ------------------------------------------------------------------------------------------------

    def _begin_verification(self, server: int, store_epoch: int, below: int) -> None:
        known = self._verified.get(server)
        if known is not None and known[0] == store_epoch:
            self._post("verified", known[1])
        elif self._current(server, store_epoch) and self._verifying.get(server, (None,))[0] != store_epoch:
            self._verifying[server] = store_epoch, self._verification(server, store_epoch, below)

    def _verify_on(self) -> float:
        """One step; returns how long to rest."""
        server, (_epoch, work) = next(iter(self._verifying.items()))
        try:
            return next(work)
        except (StopIteration, _GivenUp):
            del self._verifying[server]
            return 0.0

    def _verification(self, server: int, store_epoch: int, below: int) -> Iterator[float]:
        """Read every file that was there at the start, and check what lives in it. Nothing is locked."""
        folder = store_folder(self.directory, server)
        files = read = damaged = 0
        fields = {"server": server, "store_epoch": store_epoch}
        with contextlib.closing(self.summary(server)) as summary:
            for number, path in list_files(folder).files:
                if number >= below:
                    continue
                try:
                    source = open_source(folder, self.superblock.node_id, server, number)
                except (OSError, StoreError) as error:
                    if path.exists():  # else it was collected meanwhile
                        say(f"file {number} cannot be verified: {error}", WARNING)
                    continue
                try:
                    with contextlib.closing(self._check(server, summary, source)) as check:
                        yield from self.step(check, server, store_epoch, VERIFY_SHARE)
                        found = check.damage()
                        read += check.counts()["read_bytes"]
                    if found and not _is_at(source.fd, path):
                        continue  # it has gone meanwhile: it was cut, or its space is used again
                except OSError as error:
                    say(f"file {number} cannot be verified: {error}", WARNING)
                    continue
                finally:
                    os.close(source.fd)
                files += 1
                damaged += len(found)
                if found:
                    _id, file, offset, _total, reason, _kind = found[0]
                    say(f"file {file} has {len(found)} damaged records, the first at byte {offset} ({reason})", ERROR)
                    where = {"file": file, "damaged_n": len(found), "offset": offset, "reason": reason}
                    self._post("damage", {**fields, **where})
                yield 0.0
        answer = {**fields, "files": files, "bytes": read, "damaged_n": damaged}
        self._verified[server] = store_epoch, answer
        self._post("verified", answer)

    def _check(self, server: int, summary: Region, source: Source) -> _core.Collection:
        """A collection that only checks."""
        given = [(source.fd, source.list, 0, False)]
        return _core.Collection(
            self.superblock.buffer, summary.buffer, server, given, -1, self.settings.file_bytes, 0, 0, 0, 0, 0, 0
        )

    def summary(self, server: int) -> Region:
        """The file summary of a store, as its server has it now. Raises _GivenUp: there is none."""
        generation = self.superblock.server_get(server, "generation")
        try:
            return posix_open(self.superblock.region_name("summary", server, generation))
        except RegionError as error:
            raise _GivenUp from error


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


class _Collecting:
    """One job: its sources and its output."""

    def __init__(self, collector: Collector, job: Job) -> None:
        self.collector = collector
        self.job = job
        self.folder = store_folder(collector.directory, job.server)
        self.superblock = collector.superblock
        self.unreadable: int | None = None
        self._sources: list[Source] = []
        self._fd = -1
        self._fits = 0
        self._summary = collector.summary(job.server)

    def run(self) -> dict[str, Any]:
        """Copy, sync, write the list; returns the answer. Raises OSError, StoreError, _GivenUp."""
        began = time.monotonic()
        job, node_id = self.job, self.superblock.node_id
        for file, *_rest in job.sources:
            try:
                self._sources.append(open_source(self.folder, node_id, job.server, file))
            except CorruptRecord:
                self.unreadable = file
                raise
        sources_n = len(job.sources)
        while True:
            work = self._copy(sources_n)
            if work is not None:
                break
            sources_n = self._fits
        crash = self.superblock.crash_point
        crash(CONSTANTS["CRASH_COLLECT_COPIED"])
        with contextlib.closing(work):
            losses, counts, contents = work.damage(), work.counts(), work.take_list()
        os.ftruncate(self._fd, whole_pages(contents.used))
        os.fdatasync(self._fd)
        path = segment.unfinished_path(list_path(self.folder, job.output))
        atomic_file.write_synced(path, contents.encode(node_id, job.server))
        lost = segment.unfinished_path(losses_path(self.folder, job.output))
        write_losses(lost, losses)
        crash(CONSTANTS["CRASH_COLLECT_SYNCED"])
        return {
            "ok": True,
            "sources_n": sources_n,
            "used": contents.used,
            "copied_bytes": counts["message_bytes"],
            "messages": counts["messages"],
            "controls": counts["controls"],
            "dropped": counts["dropped"],
            "damaged_n": len(losses),
            "seconds": time.monotonic() - began,
        }

    def _copy(self, sources_n: int) -> _core.Collection | None:
        """Into a new output; None: so many do not fit (`_fits` do)."""
        job, settings = self.job, self.collector.settings
        self._make_output(min(settings.file_bytes, whole_pages(job.bytes + 4 * PAGE_BYTES)))
        sources = job.sources[:sources_n]
        used = zip(self._sources, sources, strict=False)
        given = [(source.fd, source.list, high, keep) for source, (_file, _low, high, keep) in used]
        work = _core.Collection(
            self.superblock.buffer,
            self._summary.buffer,
            job.server,
            given,
            self._fd,
            settings.file_bytes,
            self.superblock.node_id,
            job.output,
            job.salt,
            sources[0][1],
            sources[-1][2],
            time.time_ns(),
        )
        try:
            for pause in self.collector.step(work, job.server, job.store_epoch, JOB_SHARE if job.paced else 1.0):
                self.superblock.crash_point(CONSTANTS["CRASH_COLLECT_COPYING"])
                self.collector.rest(pause)
        except OSError as error:
            self._fits = work.fits()
            work.close()
            if error.errno != errno.E2BIG or not 0 < self._fits < sources_n:
                raise
            return None
        except BaseException:
            work.close()
            raise
        return work

    def _make_output(self, size: int) -> None:
        path = segment.unfinished_path(data_path(self.folder, self.job.output))
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        data_files.unlink(path, missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._fd = data_files.open(path, flags | os.O_DIRECT, access.file_mode())
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            data_files.unlink(path, missing_ok=True)
            self._fd = data_files.open(path, flags, access.file_mode())
        os.posix_fallocate(self._fd, 0, size)

    def discard(self) -> None:
        """Remove what there is of the output."""
        _discard(output_paths(self.folder, self.job.output))

    def close(self) -> None:
        """Let go of the files."""
        for source in self._sources:
            os.close(source.fd)
        self._sources.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._summary.close()


def _discard(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            data_files.unlink(path, missing_ok=True)
        except OSError as error:
            say(f"cannot remove {path}: {error}; the next start removes it", WARNING)


def run_collector(directory: Path, shared_id: int, settings: Settings, _supervisor_pidfd: int) -> int:
    """Be the collector until told to end; returns the exit code."""
    superblock = Superblock.attach(shared_id, LAYOUT_HASH)
    tie = Tie(directory, superblock)
    tie.enter()
    needed = COLLECTOR if superblock.server_get(SERVER_STORE_PERSISTENT, "epoch") else ""
    if not tie.take(COLLECTOR, say, needed):
        return 0
    return Collector(Path(), shared_id, settings, superblock, tie).run()
