"""What a client tells its program through the logger `warren.client`, beside what its calls raise: alarms, publishers
that they block, messages that came again.

Nothing of it costs a call that has nothing to wait for: it is looked when the core asks anyway (HOOK_…), because a wait
takes long. While an alarm is on, a thread waits for its end, so that this is told, too, when nobody calls.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref

from warren.engine.saying import counted
from warren.workers.client.attachment import Attachment
from warren.workers.process import alarm_words as alarms

log = logging.getLogger("warren.client")

#: how often it is looked whether an alarm is over
LOOK_S = 0.1
#: messages that came again are told of at most so often
AGAIN_S = 1.0


class Notices:
    """Of one client, with one attachment after another."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may wait, too
        self._on = 0  # ALARM_… that were told
        self._blocked_since: float | None = None
        self._watched: Attachment | None = None
        self._again = 0  # messages of this attachment that came again and were told of
        self._again_of = 0  # its client epoch
        self._again_at = 0.0

    def look(self, attachment: Attachment, publishing: bool) -> None:
        """Tell of alarms that are on, and that they block a publish if somebody is `publishing`."""
        with self._lock:
            said = self._changes(attachment, publishing)
            watch = bool(self._on) and self._watched is not attachment
            if watch:
                self._watched = attachment
        _tell(said)
        if watch:
            thread = threading.Thread(
                target=_watch, args=(weakref.ref(self), attachment), name="warren-alarms", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the system has no thread for it: the next look tries again
                self._watched = None

    def still(self, attachment: Attachment) -> bool:
        """Whether an alarm is on; tells when none is any more."""
        with self._lock:
            if self._watched is not attachment:
                return False
            said = self._changes(attachment, False)
            on = bool(self._on)
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
    """Body of the thread that waits for the end of an alarm."""
    while True:
        time.sleep(LOOK_S)
        notices = reference()
        if notices is None or not notices.still(attachment):
            return
        del notices
