"""A topic worker around its C server: it starts, serves in turns, and stops. The loop is C (engine/topics/worker.h).

One thread serves (`serve`, which alternates between the C loop and the events it returns); the committer and the
dispatcher have threads of their own, and a helper makes the log's next file.

    declared.py    the topics of the catalog
    keeper.py      groups of readers
    retention.py   what goes, by age, size and disk
    compaction.py  what stays of compacted topics
    later.py       messages that come later
    halves.py      half messages
    log_files.py   the log's files
    engine/kernel/clients.py   the clients' regions

Invariant: nothing is shown, confirmed or written before what was found in the log is on stable storage.
Crash points: recovered, settled, begun (what was found is durable; the log's file may be new), file.made, later.saved,
halves.saved.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.kernel import atomic_file, data_files, ending
from warren.engine.kernel.clients import Clients
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.saying import Say, counted, silent
from warren.engine.topics import control, foreign, log_files, units
from warren.engine.topics.compaction import Compaction, Rates
from warren.engine.topics.declared import Changes, Declaration, DeclaredTopics
from warren.engine.topics.groups import RELEASE_S
from warren.engine.topics.halves import Halves
from warren.engine.topics.keeper import Keeper, Log
from warren.engine.topics.later import Later
from warren.engine.topics.names import node_bytes
from warren.engine.topics.retention import Place, Policy, Retention
from warren.ipc import region as regions
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock

TURN_NS = 250_000_000
PAUSE_NS = 4_000_000  #: between two pieces of changes for which nobody waits, and two looks for room in the log
EPOCH_SHIFT = 32  #: of the node's epoch in that of a commit: it is never lower than that of a commit before
#: of derived files that are damaged
AGAIN = "`warren check --repair`, when the node is down, makes consume queues and key index again from the log"
#: what the dispatcher waits out
MEMORY = (errno.ENOMEM,)


def boot_bytes(folder: int) -> bytes:
    """Which life of the machine this is, and of the mount of an open folder: in another one, what was not synced may be
    gone.
    """
    boot = uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    mount = _core.mount_number(folder).to_bytes(8, "little")
    return hashlib.blake2b(boot + mount, digest_size=len(boot)).digest()


@dataclass
class Options:
    """What a topic service is made of."""

    superblock: Superblock
    server: int
    place: Place
    load_catalog: Callable[[], list[Declaration]]
    group_release_s: float = RELEASE_S
    half_after_s: float = 6.0  #: until a half message is asked for
    follow_catalog: Callable[[int], Changes | None] = lambda _version: None
    timer: Callable[[], None] = lambda: None  #: called some times a second
    reached: Callable[[str], None] = lambda _point: None
    say: Say = silent
    policy: Policy = field(default_factory=Policy)
    rates: Rates = field(default_factory=Rates)

    @property
    def folder(self) -> TopicsFolder:
        return self.place.folder

    @property
    def log_file_bytes(self) -> int:
        return self.place.log_file_bytes


@dataclass(frozen=True)
class Recovered:
    """What a start found."""

    topics: int
    checkpoint: str  #: what it was: good, none, damaged, newer, foreign, settings, older
    position: int  #: where the log ends
    torn: bool  #: what lay behind was no whole commit, which nothing says was confirmed
    absent: str = ""  #: what derived files lacked that the checkpoint counts on


class TopicService:
    """One topic worker's server and everything around it."""

    def __init__(self, server: _core.TopicServer, options: Options) -> None:
        o = self.options = options
        self.server = server
        self._clients = Clients(server, o.superblock, o.server, o.say)
        self.topics = DeclaredTopics(server, o.superblock, o.server, o.load_catalog, o.follow_catalog, o.say)
        self._files = log_files.NextFiles(server, o.folder, o.log_file_bytes, o.say, lambda: o.reached("file.made"))
        self._committer = threading.Thread(target=server.commit_run, name="warren-commit", daemon=True)
        self._dispatcher = threading.Thread(target=server.dispatch_run, name="warren-dispatch", daemon=True)
        node = node_bytes(o.superblock.node_id)
        self.groups = Keeper(
            server,
            o.folder.groups,
            node,
            o.superblock.get("reply_bytes"),
            self.topics.queues_of,
            o.say,
            o.group_release_s,
            self.topics.name_of,
        )
        self.later = Later(server, o.folder.later, node, o.say, lambda: o.reached("later.saved"))
        self.halves = Halves(
            server,
            o.folder.halves,
            node,
            o.say,
            lambda: o.reached("halves.saved"),
            o.half_after_s,
            o.superblock.get("reply_bytes"),
        )
        self.groups.others = {
            control.FinishHalf: self.halves.finish,
            control.CheckHalves: self.halves.check,
            control.ListHalves: self.halves.listed,
        }
        #: what the log says beside queues and groups
        self.kept = (self.later, self.halves)
        self.retention = Retention(server, o.superblock, o.server, o.place, o.policy, self.topics.all, o.say, o.reached)
        self.retention.needed["groups of readers"] = self.groups.needed
        self.retention.carried["groups of readers"] = self.groups.carry
        self.topics.changed = self.retention.wake
        self.compaction = Compaction(server, self.retention, node, o.rates, self.topics.all, o.say, o.reached)
        for kept in self.kept:
            self.retention.needed[kept.WHAT] = kept.needed
        self._timer_at = 0.0
        self._trouble: tuple[int, int, int] = (0, 0, 0)

    # -- start ----------------------------------------------------------------------------------------------------

    def start(self) -> Recovered:
        """Recover, and begin the log, with every client. Serving can begin; the epoch is given by `begin`.

        Raises CorruptRecord (what was confirmed is damaged, or missing, or the log is another node's), StoreError.
        """
        o = self.options
        self.topics.load()
        log_files.refuse_unfinished(o.folder)
        bases = log_files.find(o.folder, o.log_file_bytes)
        log_files.tell_surplus(o.folder, o.log_file_bytes, bases, o.say)
        survived = self._look(bases)
        found = self._recover(bases)
        self._check(found, bases, survived)
        log_files.sweep(o.folder)
        o.reached("recovered")
        with atomic_file.file_explained(f"cannot make {o.folder.log} ready"):
            self.server.settle()
        o.reached("settled")
        log = Log(found["position"], bases[0] if bases else 0)
        self.groups.load(log)
        for kept in self.kept:
            kept.load(log)
        if lost := sum(kept.lost for kept in self.kept):
            o.superblock.server_add(o.server, "lost_unknown_n", lost)
        node_epoch, epoch = o.superblock.get("node_epoch"), o.superblock.server_get(o.server, "epoch") + 1
        # A directory that was put back from a backup may have a lower epoch than its log.
        log_epoch = max(node_epoch << EPOCH_SHIFT | epoch, found["epoch"] + 1)
        self.server.begin(log_epoch)
        position: int = found["position"]
        base = position // o.log_file_bytes * o.log_file_bytes
        self._files.begin(log_files.first_or_made(o.folder, o.log_file_bytes, base, bases), base)
        self.topics.shown()
        self.retention.begin(bases[0] if bases else base)
        self._clients.scan(starting=True)
        self.groups.begin(log_epoch)
        for kept in self.kept:
            kept.begin(log_epoch)
        o.reached("begun")
        absent = self._absent(*found["absent"])
        return Recovered(self.topics.count, found["checkpoint"], position, found["torn"], absent)

    def _absent(self, files: int, file: str, reason: str | None) -> str:
        others = f" (and {counted(files - 1, 'other file')})" if files > 1 else ""
        return f"{self.options.folder.path / file} {reason}{others}" if files else ""

    def _look(self, bases: list[int]) -> bool:
        """Nothing is written before it is sure that this log is the node's, and there. Returns whether power was not
        lost since. Raises CorruptRecord.
        """
        o = self.options
        self._set_checkpoint_aside()
        with self._explained("read"):
            looked = self.server.look(bases[0] if bases else 0)
        log_files.refuse_strange(o.folder, o.log_file_bytes, looked["position"], looked["stranger"])
        log_files.refuse_absent(o.folder, o.log_file_bytes, bases, looked)
        if looked["damaged"]:
            log_files.refuse_damaged(o.folder, o.log_file_bytes, looked["position"], looked["checkpoint"] == "settings")
        survived: bool = looked["survived"]
        return survived

    def _recover(self, bases: list[int]) -> dict[str, Any]:
        with self._explained("recover"):
            return self.server.recover(bases[0] if bases else 0)

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """What the system refuses is raised with the file that it is about, where something lies there that is none."""
        folder = self.options.folder
        with atomic_file.file_explained(f"cannot {doing} {folder.path}"):
            try:
                yield
            except OSError as error:
                found = foreign.explain(folder, error)
                if found is error:
                    raise
                raise found from error

    def _set_checkpoint_aside(self) -> None:
        """What is no file cannot be replaced by one."""
        path = self.options.folder.checkpoint
        with atomic_file.file_explained(f"cannot move {path}"):
            if what := foreign.instead(path):
                aside = foreign.set_aside(path)
                self.options.say(f"{path} was {what}, and no file: it was moved to {aside.name}", ERROR)

    def _check(self, found: dict[str, Any], bases: list[int], survived: bool) -> None:
        """What was confirmed is there. Raises CorruptRecord, StoreError."""
        o = self.options
        log_files.check_begin(o.folder, bases, o.log_file_bytes, found["first"])
        log_files.check_end(o.folder, bases, o.log_file_bytes, found["position"])
        log_files.refuse_strange(o.folder, o.log_file_bytes, found["position"], found["stranger"])
        damaged = found["damaged"]
        if found["torn"] and survived and not damaged:
            topics = [(topic.id, topic.name.encode(), topic.queues) for topic in self.topics.all()]
            damaged = units.told_end(o.folder, o.log_file_bytes, topics) > found["position"]
        if damaged:
            log_files.refuse_damaged(o.folder, o.log_file_bytes, found["position"])

    def begin(self, epoch: int) -> None:
        """Serve from now on under this epoch: all clients that were there are attached."""
        self.groups.serve_under(epoch)
        if epoch > 1 and self.server.attached():  # a worker of this node was there before, and clients of it
            self.groups.wait_for_members(time.monotonic())
        self.server.serve(epoch)
        for thread in (self._committer, self._dispatcher, self._files.maker, self.retention.thread):
            thread.start()
        self.compaction.thread.start()
        self.groups.snapshot.writer.start()
        for kept in self.kept:
            kept.snapshot.writer.start()

    def take_up(self, slot: int, generation: int, client_epoch: int, region: regions.Region) -> None:
        """Serve a client; its region is closed when it has ended. Raises OSError (a region of the wrong form)."""
        self._clients.take_up(slot, generation, client_epoch, region)

    # -- serving --------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Until the node drains or `server.request_stop` was called."""
        while not self.turn(PAUSE_NS if self.topics.behind or self.groups.waits else TURN_NS) & _core.TOPIC_EVENT_STOP:
            pass

    def turn(self, max_ns: int, until_event: bool = True) -> int:
        """One run of the C loop and what it asks for; returns its events. Raises StoreError: start anew."""
        events = self.server.run(max_ns, until_event)
        if events & _core.TOPIC_EVENT_DISPATCH_FAILED:
            self._dispatch_failed()
        if events & _core.TOPIC_EVENT_KICK:
            self._files.take()
            self.groups.take()
            self.retention.take()
            self.compaction.take()
            for kept in self.kept:
                kept.take()
        if events & _core.TOPIC_EVENT_NEED_FILE:
            self._files.want()
        if events & _core.TOPIC_EVENT_CATALOG_CHANGED or self.topics.behind:
            self.topics.reload()
        if events & _core.TOPIC_EVENT_SLOTS_CHANGED:
            self._clients.scan()
        if events & _core.TOPIC_EVENT_FINISHED:
            self._clients.let_go()
        now = time.monotonic()
        if events & (_core.TOPIC_EVENT_SLOTS_CHANGED | _core.TOPIC_EVENT_FINISHED):
            self.groups.clients_changed(self._slots(), now)
        if events & _core.TOPIC_EVENT_CONTROL or self.groups.waits:
            self.groups.serve()
        if events & _core.TOPIC_EVENT_LOG_FAILED:
            self._log_failed()
        # By the clock, not by TIMER: under load some other event always comes first.
        if now >= self._timer_at:
            self._timer_at = now + TURN_NS / 1e9
            self._timer(now)
        return events

    def _slots(self) -> set[tuple[int, int]]:
        """(slot, generation) of each client that is there."""
        attached = self.server.attached()
        return {(slot, generation) for slot, generation, *gone in attached if not any(gone)}

    def _timer(self, now: float) -> None:
        self._files.on_timer(now)
        self._clients.on_timer()
        self.topics.on_timer()
        self.groups.on_timer(now)
        self.retention.take()
        self.compaction.take()
        self.retention.on_timer()
        for kept in self.kept:
            kept.on_timer(now)
        self._look_for_space()
        self.options.timer()

    def _log_failed(self) -> None:
        number = self.server.counters()["failed"]
        why = f"the log of topics failed ({os.strerror(number)}): nothing more is confirmed; check the disk and restart"
        if number == errno.ESTALE:
            why = "the file of the log of topics in use was removed or cut: nothing more is confirmed; restart"
        self.options.say(f"{why} the node", WARNING)

    def _dispatch_failed(self) -> None:
        """What is derived from the log cannot be gone on with: the next start makes it again. What was confirmed is in
        the log. Raises StoreError.
        """
        number = self.server.counters()["dispatch_failed"]
        error = OSError(number, os.strerror(number))
        if (found := foreign.explain(self.options.folder, error)) is not error:
            raise found
        if number != errno.EUCLEAN:  # a damaged key index: the start makes that alone anew
            data_files.unlink(self.options.folder.checkpoint, missing_ok=True)  # its files are not what it says
        raise StoreError(
            f"consume queues or key index in {self.options.folder.path} failed ({os.strerror(number)}): the worker "
            "starts again and makes them anew from the log"
        )

    def _look_for_space(self) -> None:
        """No next file, a write to the log, or something derived from it that finds no space: say so once, and raise
        the alarm. All are tried again by themselves.
        """
        counters = self.server.counters()
        trouble = (self._files.refused, counters["no_space"], counters["dispatch_trouble"])
        if trouble == self._trouble:
            return
        o, before = self.options, self._trouble
        self._trouble = trouble
        disk = next((number for number in trouble if number and number not in MEMORY), 0)
        o.superblock.server_set(o.server, "file_error", disk)
        o.superblock.server_alarm(o.server, CONSTANTS["ALARM_DISK"], bool(disk))
        o.superblock.server_alarm(o.server, CONSTANTS["ALARM_MEMORY"], any(number in MEMORY for number in trouble))
        if any(trouble) and not any(before):
            number = next(number for number in trouble if number)
            o.say(f"who appends to topics waits: {os.strerror(number)}; it goes on by itself", WARNING)
        elif not any(trouble):
            o.say("topics go on: there is space again")

    # -- end ------------------------------------------------------------------------------------------------------

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Finish what was submitted, sync, close the links (topics/closing.h), catch up with what is derived, and
        release everything.

        True when all that was appended is on stable storage.
        """
        server = self.server
        server.pending(_core.TOPIC_EVENT_STOP, True)
        server.later_hold()
        self.compaction.end()
        self.retention.end()
        deadline = time.monotonic() + timeout_s
        server.end_links()
        ending.catch_up(server, lambda: self.turn(ending.TURN_NS, False), deadline)
        clean = server.sync(int(timeout_s * 1e9)) and not server.counters()["failed"]
        server.run(0, False)  # the confirms of what was synced
        if clean and self.options.superblock.state == CONSTANTS["NODE_DRAINING"]:  # else another goes on with the rings
            server.close_links()
        self.groups.close()
        for kept in self.kept:
            kept.close()
        self.release()
        return clean

    def release(self) -> None:
        """Stop the threads, close the server and the clients' regions. What is done of the log is dispatched first."""
        self.compaction.end()
        self.retention.end()
        self.server.stop_log()
        self._join(self._committer)
        self.server.stop_dispatch()
        self._join(self._dispatcher)
        self._files.maker.stop()
        self._join(self._files.maker)
        self.groups.end()
        for kept in self.kept:
            kept.end()
        self._files.close()
        self.server.close()
        self._clients.close()

    def _join(self, thread: threading.Thread) -> None:
        if thread.ident is not None:
            thread.join()


def tell(say: Say, found: Recovered) -> None:
    """What a start found that is of note."""
    if found.checkpoint not in ("good", "none"):
        say(
            f"the checkpoint was not used ({found.checkpoint}): consume queues and key index were made anew",
            ERROR if found.checkpoint in ("damaged", "foreign") else WARNING,
        )
    if found.absent:
        say(f"{found.absent}: who reads what it had is told so; {AGAIN}", ERROR)
    if found.torn:
        say(
            "the log ended in a commit that was not whole, and nothing says that it was confirmed: it was cut off",
            WARNING,
        )
