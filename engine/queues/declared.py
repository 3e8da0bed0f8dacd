"""The queues of the catalog in a worker's engine: taken up at the start, followed a piece at a time, let go.

Invariants
  A queue of the catalog exists in the engine, and no other, but past queues (of frames of the past) until their claims
  are back.
  Whose claims a subscription holds is written before the subscription is taken up, and remembered beyond its deletion,
  until a start has found nothing of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from logging import WARNING
from typing import Any

from warren.engine import _core
from warren.engine.errors import CorruptRecord, QueueNotFound, StoreError
from warren.engine.kernel import quarantine
from warren.engine.kernel.file_register import Entry, FileRegister
from warren.engine.kernel.formats import LISTED_SUBSCRIPTIONS
from warren.engine.queues.causes import Causes
from warren.engine.queues.folder import read_subscriptions, remove_queue, write_subscriptions
from warren.engine.queues.options import Declaration, Options
from warren.engine.queues.policy import give_policy
from warren.engine.queues.recovered import Recovered

TURN_S = 0.001  #: how long changes of the catalog are followed before others are served
TURN_N = 8  #: how many queues come or go between two looks at the clock


class DeclaredQueues:
    """What the catalog declares for one worker. `ask`: a job for the thread that removes files, and what follows."""

    def __init__(
        self,
        engine: _core.QueueEngine,
        options: Options,
        files: FileRegister,
        ask: Callable[[Callable[[], Any], Callable[[Any], None]], None],
    ) -> None:
        self.engine = engine
        self.behind = False  #: some of what was told is not done
        self.causes = Causes()
        self._options = options
        self._list = files
        self._ask = ask
        self._listed = False  # the list of files is loaded
        self._segment_live: dict[tuple[int, int], int] = {}
        self._declared: dict[int, Declaration] = {}
        self._coming: dict[int, Declaration] = {}  # of the catalog, not yet in the engine
        self._companions: dict[int, int] = {}  # of those that come: queue → queue of its dead letters
        self._going: dict[int, Declaration] = {}  # in the engine, not in the catalog any more
        self._subscriptions: dict[int, int] = {}
        self._failed = False
        self._seen = 0  # the version that was read last

    def load(self) -> bool:
        """Take up the queues of the catalog; whether it was written down whose claims the subscriptions hold."""
        folder = self._options.folder
        written = folder.subscriptions.exists()
        try:
            self._subscriptions = read_subscriptions(folder)
        except CorruptRecord as error:
            quarantine.move(folder.path, folder.subscriptions, str(error))
            written = False
        self._declare(self._options.load_catalog())
        return written

    def recovered(self, found: Recovered) -> None:
        """What was on disk is in the engine, and the list of files is loaded."""
        self._segment_live = found.segment_live
        self._listed = True

    @property
    def unfinished(self) -> int:
        """How many queues have still to come or to go."""
        return len(self._coming) + len(self._going)

    def on_timer(self, now: float) -> None:
        """Changes that do not concern this worker are read, too: it is never far behind."""
        changed = self._options.superblock.get("catalog_version") != self._seen
        if self._failed or (changed and not self.behind):
            self.reload()
        elif self._going and not self._coming:
            self._catch_up(now + TURN_S)

    def _declare(self, wanted: list[Declaration]) -> None:
        """Take up queues, all at once."""
        self._remember(wanted)
        companions = {item.dead_letters_of: item.id for item in wanted if item.dead_letters_of}
        for item in wanted:
            self._take_up(item, companions.get(item.id, 0))

    def _remember(self, wanted: list[Declaration]) -> None:
        subscriptions = {item.id: item.subscription_of for item in wanted if item.subscription_of}
        if not subscriptions.items() <= self._subscriptions.items():
            self._subscriptions |= subscriptions
            write_subscriptions(self._options.folder, self._subscriptions)
            if self._listed:
                self._list.note({(LISTED_SUBSCRIPTIONS, 0, 0): Entry()})

    def _take_up(self, item: Declaration, companion: int) -> None:
        if item.id in self._declared:
            return
        self.engine.declare(item.id, item.durable, False, item.dead_letters_of != 0)
        give_policy(self.engine, item.id, item.policy, companion)
        self._declared[item.id] = item

    def reload(self, *, whole: bool = False) -> None:
        """Follow the catalog, a piece at a time: what is left is done in the next turns, after others were served.
        `whole`: all that was told is read now."""
        o = self._options
        version = o.superblock.get("catalog_version")
        deadline = time.monotonic() + TURN_S
        try:
            self.behind = not self._learn(version, math.inf if whole else deadline)
        except StoreError as error:
            if not self._failed:
                o.say(f"the catalog cannot be read, the old one is used until it can be: {error}", WARNING)
            self._failed, self.behind = True, False
            self.engine.catalog_loaded(version)
            return
        self._failed = False
        if self.behind:
            return  # what belongs to a queue may come in the next piece
        self._seen = version
        self.behind = not self._catch_up(deadline)
        if not self.behind:
            self.engine.catalog_loaded(version)

    def _learn(self, version: int, deadline: float) -> bool:
        """What came and what went up to a version goes to `_coming` and `_going`; False: there is more of it."""
        while self._learn_piece(version):
            if time.monotonic() >= deadline:
                return False
        return True

    def _learn_piece(self, version: int) -> bool:
        """True when there is more."""
        found = self._options.follow_catalog(version)
        if found is None:
            wanted = {item.id: item for item in self._options.load_catalog()}
            came = [item for id, item in wanted.items() if id not in self._declared and id not in self._coming]
            gone = [item for item in (*self._declared.values(), *self._coming.values()) if item.id not in wanted]
            went = [item.id for item in sorted(gone, key=lambda item: item.subscription_of == 0)]
            more = False
        else:
            came, went, more = found
        self._remember(came)
        self._coming |= {item.id: item for item in came}
        self._companions |= {item.dead_letters_of: item.id for item in came if item.dead_letters_of}
        for id in went:
            if self._coming.pop(id, None) is None and id in self._declared:
                self._going[id] = self._declared[id]
        return more

    def _catch_up(self, deadline: float) -> bool:
        """Let queues come and go until it is time to serve others; True when what can be done is done."""
        done: list[int] = []
        for id, item in self._coming.items():
            if len(done) % TURN_N == TURN_N - 1 and time.monotonic() >= deadline:
                break
            self._take_up(item, self._companions.get(id, 0))
            done.append(id)
        for id in done:
            del self._coming[id]
        if self._coming:
            return False
        self._companions.clear()
        done.clear()
        # Subscriptions come first: their claims go back to their queue, unless that goes, too.
        for id, item in self._going.items():
            if len(done) % TURN_N == TURN_N - 1 and time.monotonic() >= deadline:
                break
            of = item.subscription_of
            if of in self._declared and of not in self._going and not self.release_claims(id, of):
                continue  # the journal has no room now: with the next turn
            self.engine.drop(id)
            del self._declared[id]
            done.append(id)
            if not of:
                live = self._segment_live
                removal = partial(remove_queue, self._options.folder, id, live, self._list)
                self._ask(removal, lambda _: None)
        timely = len(done) == len(self._going) or time.monotonic() < deadline
        for id in done:
            del self._going[id]
        return timely

    def drop_past(self) -> None:
        """After recovery, of queues that only frames of the past name: claims of subscriptions deleted since return to
        their queue, and what else is left of them is removed.

        The segments of such a queue stay as long as they have entries on disk: a MOVE frame in the journal may need
        them.
        """
        o = self._options
        for id, claimed_from, entries in self.engine.past_queues():
            of = claimed_from or self._subscriptions.get(id, 0)
            if entries and of in self._declared:
                if not self.release_claims(id, of):
                    raise StoreError(
                        f"the journal has no room to bring back the claims of subscription {id}: raise file_bytes"
                    )
                self.engine.drop(id)
                continue
            self.engine.drop(id)  # before its segments go: rows that are not in memory are read from them once more
            if entries or not any(n > 0 for (queue, _m), n in self._segment_live.items() if queue == id):
                remove_queue(o.folder, id, self._segment_live, self._list)

    def known(self, id: int) -> Declaration:
        """A queue that is served, taken up now if the catalog has it. Raises QueueNotFound."""
        if id not in self._declared:
            self.reload(whole=True)
        if id in self._coming:  # its turn has not come: it comes now
            self._take_up(self._coming[id], self._companions.get(id, 0))
        if id not in self._declared or id in self._going:
            raise QueueNotFound(f"worker {self._options.worker} has no queue with id {id}: declare it first")
        return self._declared[id]

    def release_claims(self, source: int, target: int) -> bool:
        """Everything of a subscription goes back to the end of its queue; False when the journal has no room now."""
        while True:
            moved = self.engine.move(source, target, 1 << 62, 1 << 62, True, 0, 0)
            if moved is None:
                return False
            if moved[0] == moved[1]:
                return True
