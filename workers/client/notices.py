"""What a client tells its program through the logger `warren.client`, beside what its calls raise: alarms, publishers
that they block, servers that serve again, messages that came again.

Nothing of it costs a call that has nothing to wait for: it is looked when the core asks anyway (HOOK_…), because a wait
takes long. While an alarm is on, or a server down, a thread waits for the end of that, so that it is told, too, when
nobody calls.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Collection

from warren.engine.saying import counted
from warren.workers.client.attachment import SERVER_READY, Attachment
from warren.workers.process import alarm_words as alarms

log = logging.getLogger("warren.client")

#: how often it is looked whether an alarm is over, or a server is back
LOOK_S = 0.1
#: messages that came again are told of at most so often
AGAIN_S = 1.0


class Notices:
    """Of one client, with one attachment after another."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may wait, too
        self._on = 0  # ALARM_… that were told
        self._blocked_since: float | None = None
        self._down: set[int] = set()  # servers that the program was told are down
        self._watched: Attachment | None = None
        self._again = 0  # messages of this attachment that came again and were told of
        self._again_of = 0  # its client epoch
        self._again_at = 0.0

    def look(self, attachment: Attachment, publishing: bool) -> None:
        """Tell of alarms that are on, and that they block a publish if somebody is `publishing`."""
        with self._lock:
            said = self._changes(attachment, publishing)
            watch = self._begin_watch(attachment)
        _tell(said)
        self._watch(attachment, watch)

    def down(self, attachment: Attachment, servers: Collection[int]) -> None:
        """The program was told that these servers are down: it is told when they serve again."""
        with self._lock:
            gone = {server for server in servers if not attachment.superblock.server_identity(server).alive()}
            self._down |= gone
            watch = self._begin_watch(attachment)
        self._watch(attachment, watch)

    def _begin_watch(self, attachment: Attachment) -> bool:
        """Whether a thread is needed that waits for an end."""
        needed = bool(self._on or self._down) and self._watched is not attachment
        if needed:
            self._watched = attachment
        return needed

    def _watch(self, attachment: Attachment, needed: bool) -> None:
        if needed:
            thread = threading.Thread(
                target=_watch, args=(weakref.ref(self), attachment), name="warren-alarms", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the system has no thread for it: the next look tries again
                self._watched = None

    def still(self, attachment: Attachment) -> bool:
        """Whether an alarm is on, or a server down; tells when that is over."""
        with self._lock:
            if self._watched is not attachment:
                return False
            said = self._changes(attachment, False) + self._back(attachment)
            on = bool(self._on or self._down)
            if not on:
                self._watched = None
        _tell(said)
        return on

    def _changes(self, attachment: Attachment, publishing: bool) -> list[tuple[int, str]]:
        """What there is to tell, as (level, text): without the lock, because a handler of the program may publish."""
        superblock, path, said = attachment.superblock, attachment.directory.path, list[tuple[int, str]]()
        try:
            on = 0 if attachment.core.over else superblock.get("alarms")
        except ValueError:  # it was unmapped just now
            on = 0
        for bit, (name, _since) in alarms.NAMES.items():
            if on & ~self._on & bit:
                said.append((logging.WARNING, f"alarm of the node of {path}: {alarms.text(superblock, bit)}"))
            elif self._on & ~on & bit and not attachment.core.over:
                said.append((logging.INFO, f"alarm {name} of the node of {path} is over"))
        self._on = on
        if publishing and self._blocked_since is None and on & alarms.BLOCKING:
            self._blocked_since = time.monotonic()
            said.append((logging.WARNING, f"a publish to the node of {path} is blocked by the alarm"))
        if self._blocked_since is not None and not on & alarms.BLOCKING:
            blocked_s, self._blocked_since = time.monotonic() - self._blocked_since, None
            if not attachment.core.over:
                said.append((logging.INFO, f"publishers of the node of {path} are unblocked after {blocked_s:.1f} s"))
        return said

    def _back(self, attachment: Attachment) -> list[tuple[int, str]]:
        """The servers that serve again, as what is to be told."""
        superblock, said = attachment.superblock, list[tuple[int, str]]()
        try:
            for server in [] if attachment.core.over else sorted(self._down):
                identity = superblock.server_identity(server)
                if superblock.server_get(server, "state") == SERVER_READY and identity.alive():
                    self._down.discard(server)
                    role, path = superblock.role_of(server), attachment.directory.path
                    said.append(
                        (logging.INFO, f"the {role} of the node of {path} serves again (process {identity.pid})")
                    )
        except ValueError:  # it was unmapped just now
            self._down.clear()
        if attachment.core.over:
            self._down.clear()
        return said

    def came_again(self, attachment: Attachment, at_once: bool = False) -> None:
        """Tell how many messages were delivered to this client that somebody may have had before."""
        with self._lock:
            if attachment.slot.client_epoch != self._again_of:
                self._again_of, self._again = attachment.slot.client_epoch, 0
            count, now = attachment.core.redelivered_n, time.monotonic()
            if count == self._again or (now - self._again_at < AGAIN_S and not at_once):
                return
            more, self._again, self._again_at = count - self._again, count, now
        log.debug("%s came again, marked redelivered", counted(more, "message"))


def _tell(said: list[tuple[int, str]]) -> None:
    for level, text in said:
        log.log(level, "%s", text)


def _watch(reference: weakref.ref[Notices], attachment: Attachment) -> None:
    """Body of the thread that waits for the end of an alarm, or for a server."""
    while True:
        time.sleep(LOOK_S)
        notices = reference()
        if notices is None or not notices.still(attachment):
            return
        del notices
