"""What a waiting call says when something is wrong at the node: who is dead, silent, frozen or gone, and what to do.

The core asks while it waits (HOOK_…). What can be set right the client does itself (client.py); here is what ends the
wait, or lets it go on because somebody is left who will answer.
"""

from __future__ import annotations

import errno
import logging
import os
import time

from warren.engine import _core
from warren.engine._core import AttachmentLost
from warren.engine.catalog import ownership
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import (
    ClosedError,
    DiskFull,
    NodeNotRunning,
    PeerLost,
    SyncFailed,
    TimedOut,
)
from warren.ipc.layout import CONSTANTS, eviction
from warren.ipc.superblock import Superblock
from warren.workers.client.attachment import NODE_DRAINING, SERVER_READY, Attachment, given_up
from warren.workers.process import alarm_words as alarms
from warren.workers.process import standstill
from warren.workers.process.tie import described

#: how long every process of a node may be dead before a waiting call gives it up
ABANDONED_S = 2.0

log = logging.getLogger("warren.client")


def not_done(what: str, seconds: float) -> str:
    """What was not done in a time; below 0 it had no limit that is known."""
    return f"{what}: not done {_within(seconds)}"


def _within(seconds: float) -> str:
    return f"within {round(seconds, 3):g} s" if seconds >= 0 else "in time"


def restated(error: TimedOut | DiskFull, seconds: float) -> TimedOut | DiskFull:
    """What a last try said that did not wait, as it is told to who has tried for so long."""
    return type(error)(str(error).replace(_within(0.0), _within(seconds)))


class Trouble:
    """Of one client of a node, with one attachment after another."""

    def __init__(self, directory: NodeDirectory) -> None:
        self._directory = directory
        self._silence: tuple[float, int] | None = None  #: since when all are dead, and pid of the supervisor that died
        self.missing: set[int] = set()  #: servers that were dead when it was looked last, which was told
        self._still: set[int] = set()  # those that stood still, which was told

    def forget(self) -> None:
        """The client has a new attachment."""
        self._silence = None
        self.missing.clear()
        self._still.clear()

    def judge(self, attachment: Attachment, code: int, server: int, what: str, seconds: float = -1.0) -> None:
        """Raises what ends the wait: AttachmentLost, ClosedError, SyncFailed, PeerLost, TimedOut, DiskFull,
        NodeNotRunning; else it goes on. `seconds`: how long it was waited for `what`, when the time is up (below 0: not
        known).
        """
        if code == _core.HOOK_CHECK:
            self._check(attachment, server)
        elif code == _core.HOOK_STOPPING:
            self._stopping(attachment)
        elif code == _core.HOOK_FROZEN:
            number = attachment.superblock.server_get(server, "error")
            if number == errno.ESTALE:
                raise SyncFailed(described(CONSTANTS["ENDING_REMOVED"], self._directory.path))
            raise SyncFailed(
                f"{attachment.superblock.role_of(server)} could not make data durable ({os.strerror(number)}); "
                "it refuses writes until the node is reopened: look at the disk, then stop and start the node"
            )
        elif code == _core.HOOK_FAILED:
            raise given_up(self._directory, attachment.superblock.role_of(server))
        elif code == _core.HOOK_EVICTED:
            lost = PeerLost(
                f"{attachment.superblock.role_of(server)} closed this client's link: "
                f"{eviction(attachment.core.evicted(server))}; the next call attaches again"
            )
            log.warning("%s", lost)
            attachment.lose()
            raise lost
        elif code == _core.HOOK_TIMED_OUT:
            self._timed_out(attachment, server, what, seconds)
        elif code == _core.HOOK_SILENT:
            superblock = attachment.superblock
            worker = superblock.server_identity(server)
            ready = superblock.server_get(server, "state") == SERVER_READY
            if not (ready and worker.alive()) or worker.stands_still():
                self._timed_out(attachment, server, what, seconds)

    def _stopping(self, attachment: Attachment) -> None:
        if attachment.superblock.state == NODE_DRAINING and not attachment.forsaken():
            why = described(attachment.superblock.get("ending"), self._directory.path)
            raise ClosedError(f"the node of {self._directory.path} is being stopped{': ' if why else ''}{why}")
        if attachment.superblock.state >= NODE_DRAINING:
            attachment.lose()
            raise AttachmentLost("the node was stopped")

    def _check(self, attachment: Attachment, server: int) -> None:
        """A second has passed without an answer. Is there anybody left who could give one?"""
        superblock = attachment.superblock
        if superblock.slot(attachment.slot.slot).claim != attachment.slot.claim:
            attachment.lose()
            raise AttachmentLost("this client's slot was taken away")
        alive = superblock.server_identity(server).alive()
        if not alive and server not in self.missing and superblock.state < NODE_DRAINING:
            log.warning(
                "server %s of the node of %s is down: what was submitted is kept, and waits for its restart",
                attachment.superblock.role_of(server),
                self._directory.path,
            )
        (self.missing.discard if alive else self.missing.add)(server)
        self._look_still(superblock, server)
        if alive or superblock.supervisor.alive():
            self._silence = None
            return
        if attachment.forsaken():
            attachment.lose()
            raise AttachmentLost("the shared memory of the node was removed, and its processes are dead")
        if attachment.supervised() or attachment.served():
            self._silence = None
            return
        now, silence, died = time.monotonic(), self._silence, superblock.supervisor.pid
        if silence is None or silence[1] != died:  # nobody has looked since it was started anew, and died again
            self._silence = (now, died)
        elif now - silence[0] >= ABANDONED_S:
            raise self._abandoned()

    def _look_still(self, superblock: Superblock, server: int) -> None:
        """Tell of a server that somebody has stopped in the middle of its work, once."""
        identity = superblock.server_identity(server)
        if not identity.stands_still():
            self._still.discard(server)
        elif server not in self._still:
            self._still.add(server)
            name = f"server {superblock.role_of(server)} of the node of {self._directory.path}"
            log.warning("%s", standstill.described(name, identity.pid))

    def _abandoned(self, what: str = "") -> NodeNotRunning:
        return NodeNotRunning(
            f"{what}{what and ': '}every process of the node of {self._directory.path} has died: "
            f"{ownership.start_advice(self._directory.path, 'it again')}; what was submitted is kept"
        )

    def _timed_out(self, attachment: Attachment, server: int, what: str, seconds: float) -> None:
        superblock = attachment.superblock
        on = superblock.get("alarms")
        publishing = what == "publish"
        kept = f"publishing is blocked, and was not free {_within(seconds)}" if publishing else not_done(what, seconds)
        if on & alarms.DISK and not what.endswith(_core.THE_ANSWER):
            raise DiskFull(f"{kept}: {alarms.cause(superblock, alarms.DISK)}; {alarms.advice(superblock, alarms.DISK)}")
        if on & alarms.TOPICS_DISK and publishing and server == superblock.topic_server:
            why = f"{alarms.cause(superblock, alarms.TOPICS_DISK)}; {alarms.advice(superblock, alarms.TOPICS_DISK)}"
            raise DiskFull(f"{kept}: {why}")
        if on & alarms.MEMORY and (publishing or what == "room for the message"):
            raise TimedOut(
                f"{kept}: {alarms.cause(superblock, alarms.MEMORY)}; {alarms.advice(superblock, alarms.MEMORY)}"
            )
        state = superblock.server_get(server, "state")
        if state != SERVER_READY or not superblock.server_identity(server).alive():
            raise self._down(attachment, server, what)
        why = standstill.behind(superblock, server)
        if "room" in what and not why:
            why = " (the ring or the arena of this client is full: settings ring_records, arena_bytes)"
        raise TimedOut(f"{not_done(what, seconds)}{why}")

    def _down(self, attachment: Attachment, server: int, what: str) -> PeerLost:
        """A server is not there: who starts it again?"""
        if attachment.forsaken():
            attachment.lose()
            return PeerLost(
                f"{what}: the node of {self._directory.path} was killed, and this is not its directory any more: what "
                "was submitted is lost. Try again: the next call attaches to the node that is there"
            )
        if attachment.deserted():
            return self._abandoned(what)
        doing = "it is being restarted"
        if not attachment.supervised():
            doing = "and so is the supervisor: the servers that still run start another one, which restarts it"
        still = standstill.found(attachment.superblock, [server])  # it was stopped while it started, or ended
        state = still[0] if still else f"server {attachment.superblock.role_of(server)} is down ({doing})"
        return PeerLost(f"{what}: {state}; what was submitted is kept. Try again, or give more time")
