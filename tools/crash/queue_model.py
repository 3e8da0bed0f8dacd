"""A queue as its rules say it is, in memory: what the state machine of queues (queue_machine.py) compares with.

What nobody can know is written down as such: an entry is `weak` while the death of the whole node may take it, a
`ghost` was acked so shortly before that its ack may go with the node, and a `shaken` one may be marked redelivered
without having been handed out (it was on its way to a client, or its worker was killed). A message that expires or
becomes due is sure only before the earliest and GRACE_S after the latest moment.

The rules are those of docs/design/004 §2: arguments of a queue (`max_length`, `overflow`, `message_ttl`, …) change what
publish, deliver and settle do; what dies where dead letters are kept is expected as a letter with its reason.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: an ack, and a message of durability none, is on disk after so long
SETTLED_S = 5.0
#: how late an expiry may be seen, on a machine that is busy
GRACE_S = 5.0

Row = tuple[str | None, int, bool, int]
Span = tuple[float, float]


class Presence(enum.Enum):
    """Whether a browse shows an entry that nobody holds."""

    SURE = 1
    MAYBE = 2
    NOT_YET = 3


@dataclass(eq=False)
class Entry:
    """One message in one queue. Times are of the wall clock: the earliest and the latest that it may be."""

    key: str
    weak: bool = False
    priority: int = 0
    expires: Span | None = None
    due: Span | None = None
    handed: int = 0
    shaken: bool = False
    #: returned so often that it may have died: a killed worker has forgotten how often
    doubtful: bool = False
    holder: str | None = None
    tag: int | None = None
    gone_at: float = 0.0
    #: it expired behind another, and nobody sees it any more
    hidden: bool = False

    def __repr__(self) -> str:
        marks = f"{'w' * self.weak}{'s' * self.shaken}{self.handed or ''}"
        return f"{self.key}{':' if marks else ''}{marks}{f' @{self.holder}' if self.holder else ''}"

    def presence(self, before: float, after: float) -> Presence:
        """Looked at between `before` and `after`."""
        if self.due is not None and after < self.due[0]:
            return Presence.NOT_YET
        late = self.due is not None and before < self.due[1] + GRACE_S
        early = self.expires is not None and after >= self.expires[0]
        return Presence.MAYBE if late or early or self.doubtful else Presence.SURE

    def overdue(self, before: float) -> bool:
        """It should have expired by now."""
        return self.expires is not None and before > self.expires[1] + GRACE_S


@dataclass
class Consumer:
    """An open consumer of one client."""

    prefetch: int


@dataclass
class Letter:
    """A message that died. `sure`: it has to come out of the exchange for dead letters."""

    entry: Entry
    reason: str
    sure: bool = True


@dataclass
class QueueModel:
    """One queue. `entries` lie in order of publication, which is the order of delivery, and of a requeue."""

    name: str
    durable: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    ghosts: list[Entry] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    #: message ids that were seen, and those that a worker may have forgotten
    seen: set[str] = field(default_factory=set)
    perhaps: set[str] = field(default_factory=set)

    @property
    def ready(self) -> list[Entry]:
        """What nobody has in hand, in order of publication."""
        return [entry for entry in self.entries if entry.holder is None]

    def _level(self, entry: Entry) -> int:
        return min(entry.priority, int(self.arguments.get("max_priority", 0)))

    def in_turn(self) -> list[Entry]:
        """The same in the order of delivery."""
        return sorted(self.ready, key=lambda entry: -self._level(entry))

    def held(self, client: str) -> list[Entry]:
        """What a client has in hand, in order of publication."""
        return [entry for entry in self.entries if entry.holder == client]

    def obtainable(self, client: str) -> int:
        """How many messages a client can be sure to get now, one after the other."""
        mine = self.consumers.get(client)
        others = {name: consumer for name, consumer in self.consumers.items() if name != client}
        if self.arguments.get("single_active_consumer") and others:
            if mine is None or next(iter(self.consumers)) != client:
                return 0
            others = {}
        kept = sum(max(0, consumer.prefetch - len(self.held(name))) for name, consumer in others.items())
        now = time.time()
        free = sum(entry.presence(now, now + GRACE_S) is Presence.SURE for entry in self.ready) - kept
        return max(0, free if mine is None else min(free, mine.prefetch - len(self.held(client))))

    # -- changes --------------------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many messages a queue that refuses would still take; -1: it takes everything."""
        if self.arguments.get("overflow") != "reject-publish":
            return -1
        return max(0, int(self.arguments["max_length"]) - len(self.ready))

    def publish(
        self,
        keys: Iterable[str],
        *,
        weak: bool = False,
        priority: int = 0,
        ttl: float | None = None,
        delay: float | None = None,
        published: Span = (0.0, 0.0),
    ) -> None:
        """Messages that were confirmed; published between two moments."""
        due = None if delay is None else (published[0] + delay, published[1] + delay)
        start = due or published
        ends = [life for life in (ttl, self.arguments.get("message_ttl")) if life is not None]
        expires = (start[0] + min(ends), start[1] + min(ends)) if ends else None
        self.entries += [Entry(key, weak, priority, expires, due) for key in keys]
        self.shorten()

    def let_in(self, given: Sequence[tuple[str, str]], arrived: Sequence[str]) -> list[str]:
        """Which keys with these message ids are taken: each id once. `arrived` decides where nobody can know."""
        taken = []
        for key, id in given:
            fresh = id not in self.seen if id not in self.perhaps else key in arrived
            assert fresh == (key in arrived), f"{self.name}: {key} with message id {id} is {'not ' * fresh}there"
            self.perhaps.discard(id)
            self.seen.add(id)
            if fresh:
                taken.append(key)
        return taken

    def forget_seen(self) -> None:
        """A start: message ids are known as far as journal and segments reach."""
        self.perhaps |= self.seen

    def shorten(self) -> None:
        """What is too much goes from the head: the oldest of the lowest priority."""
        most = self.arguments.get("max_length")
        if most is None or self.arguments.get("overflow") == "reject-publish":
            return
        top = self.arguments.get("max_priority", 0)
        while len(ready := self.ready) > most:
            self.die(min(ready, key=lambda entry: min(entry.priority, top)), "maxlen")

    def deliver(
        self,
        client: str,
        key: str | None,
        tag: int,
        redelivered: bool,
        count: int,
        *,
        asked: Span | None = None,
    ) -> None:
        """A client has got this; `asked` is when. Raises AssertionError when the rules forbid it."""
        before, after = asked or (time.time(), time.time())
        assert key is not None, f"{self.name}: a body that is not what its key says came as {tag}"
        entry = next((entry for entry in self.entries if entry.key == key), None)
        assert entry is not None, f"{self.name}: {key} came, and is not in the queue"
        assert entry.holder is None, f"{self.name}: {key} came to {client} while {entry.holder} holds it"
        self.look(entry, tag, redelivered, count)
        assert entry.presence(before, after) is not Presence.NOT_YET, f"{self.name}: {key} came before its time"
        if not self.consumers:
            assert not entry.overdue(before), f"{self.name}: {key} came after its time"
            turn = self.in_turn()
            for earlier in turn[: turn.index(entry)]:
                presence = earlier.presence(before, after)
                assert presence is not Presence.SURE, f"{self.name}: {key} came before {earlier}"
                if presence is Presence.MAYBE and (earlier.doubtful or earlier.expires is not None):
                    self.die(earlier, "delivery_limit" if earlier.doubtful else "expired")
        elif list(self.consumers) == [client] and not entry.shaken and not entry.handed:
            alike = [item for item in self.ready if item.priority == entry.priority]
            sure = [item for item in alike if item.presence(before, after) is Presence.SURE]
            first = next((item for item in sure if not item.shaken and not item.handed), entry)
            assert first is entry or entry.presence(before, after) is not Presence.SURE, (
                f"{self.name}: {key} came to its consumer before {first}"
            )
        entry.holder = client
        entry.handed += 1

    def look(self, entry: Entry, tag: int, redelivered: bool, count: int) -> None:
        """An entry was seen, in hand or from afar."""
        assert not entry.hidden, f"{self.name}: {entry} is seen again after it expired"
        assert not entry.handed or redelivered, f"{self.name}: {entry} was delivered before and bears no mark"
        assert entry.handed or entry.shaken or not redelivered, f"{self.name}: {entry} bears a mark and never came"
        assert entry.shaken or count == entry.handed, f"{self.name}: {entry} counts {count} deliveries"
        assert entry.tag in (None, tag), f"{self.name}: {entry} is number {tag} and was {entry.tag}"
        entry.tag = tag

    def settle(self, client: str, tags: Iterable[int], *, multiple: bool, how: str) -> None:
        """A client has acked ("ack"), dropped ("drop") or returned ("nack") what it holds."""
        wanted = set(tags)
        for entry in self.held(client):
            if entry.tag in wanted or (multiple and (entry.tag or 0) < max(wanted)):
                entry.holder = None
                if how == "ack":
                    self.remove(entry)
                elif how == "drop":
                    self.die(entry, "rejected")
                else:
                    self._returned(entry)
        self.shorten()

    def _returned(self, entry: Entry) -> None:
        limit = self.arguments.get("delivery_limit")
        if limit is not None and entry.handed > limit:
            if entry.shaken:
                entry.doubtful = True
            else:
                self.die(entry, "delivery_limit")

    def die(self, entry: Entry, reason: str) -> None:
        """It goes, and becomes a dead letter where they are kept."""
        self.remove(entry)
        if "dead_letter_exchange" in self.arguments:
            self.letters.append(Letter(entry, reason))

    def remove(self, entry: Entry, *, ghost: bool = True) -> None:
        """It is done with."""
        self.entries.remove(entry)
        if ghost and self.durable:
            entry.gone_at = time.monotonic()
            self.ghosts.append(entry)

    def release(self, client: str) -> None:
        """A client is gone: what it held returns."""
        self.consumers.pop(client, None)
        for entry in self.held(client):
            entry.holder = None
            self._returned(entry)
        self.shorten()

    def shake(self) -> None:
        """The worker was killed, and marks everything."""
        for entry in self.entries:
            entry.shaken = True

    # -- comparing ------------------------------------------------------------------------------------------------

    def bounds(self) -> tuple[int, int]:
        """How many messages may be ready now, at least and at most."""
        now = time.time()
        found = [entry.presence(now - GRACE_S, now) for entry in self.ready]
        least = sum(entry.presence(now, now + GRACE_S) is Presence.SURE for entry in self.ready)
        return least, sum(presence is not Presence.NOT_YET for presence in found)

    def compare(self, rows: Sequence[Row], *, learn: bool, asked: Span | None = None) -> None:
        """What a browse shows is what is ready. With `learn` marks may be new: messages went and came back."""
        before, after = asked or (time.time(), time.time())
        found = [key for key, *_ in rows]
        there = set(found)
        states = {entry: entry.presence(before, after) for entry in self.ready}
        wanted = [
            entry.key
            for entry, presence in states.items()
            if presence is Presence.SURE or (presence is Presence.MAYBE and entry.key in there)
        ]
        if not self.consumers:
            assert found == wanted, f"{self.name}: {_difference(found, wanted)}"
        known = {entry.key: entry for entry in states}
        for key, tag, redelivered, count in rows:
            assert key in known, f"{self.name}: {key} is ready, and should not be"
            entry = known[key]
            if (learn or self.consumers) and ((redelivered and not entry.handed) or count > entry.handed):
                entry.shaken = True
            self.look(entry, tag, redelivered, count)
        if self.consumers:
            return
        led: set[int] = set()  # levels with a message that is shown
        for entry, presence in states.items():
            if entry.key in there:
                entry.doubtful = False
                led.add(self._level(entry))
            elif presence is Presence.MAYBE and entry.doubtful:
                self.die(entry, "delivery_limit")
            elif presence is Presence.MAYBE and entry.expires is not None:
                if self._level(entry) in led:
                    entry.hidden = True  # behind one that lives it is counted until it is the head
                else:
                    self.die(entry, "expired")
        head = next(iter(self.in_turn()), None)
        assert head is None or head.key not in there or not head.overdue(before), (
            f"{self.name}: {head} is at the head and should have expired"
        )

    def adopt(self, rows: Sequence[Row], unsure: Iterable[Entry], *, asked: Span | None = None) -> None:
        """After a death: of `unsure` entries each is there or not; all others are. What is there is ready."""
        before, after = asked or (time.time(), time.time())
        maybe = {entry.key: entry for entry in unsure}
        found = [key for key, *_ in rows]
        there = set(found)
        absent = {entry.key for entry in self.ready if entry.presence(before, after) is not Presence.SURE}
        wanted = [entry.key for entry in self.ready if entry.key in there or entry.key not in {*maybe, *absent}]
        known = {entry.key: entry for entry in (*maybe.values(), *self.ready)}
        strangers = [key for key in found if key not in known]
        assert not strangers, f"{self.name}: {strangers[:5]} came from nowhere"
        sure = [key for key in found if key in set(wanted)]
        assert sure == wanted, f"{self.name}: {_difference(sure, wanted)}"
        seen = []
        for key, tag, redelivered, count in rows:
            entry = known[key or ""]
            entry.holder = None
            self.look(entry, tag, redelivered, count)
            seen.append(entry)
        tags = [entry.tag or 0 for entry in seen]
        assert tags == sorted(tags), f"{self.name}: out of order after a death: {tags}"
        for letter in self.letters:
            if letter.entry in seen:
                letter.sure = False  # its death went with the node, and its letter perhaps not
        kept = [entry for entry in self.entries if entry.holder is not None or entry.key in absent - there - set(maybe)]
        late = len(self.entries) + len(seen)
        self.entries = sorted((*seen, *kept), key=lambda entry: late if entry.tag is None else entry.tag)

    def recent_ghosts(self) -> list[Entry]:
        """Entries whose end may not be on disk yet; older ones are forgotten."""
        since = time.monotonic() - SETTLED_S
        self.ghosts = [entry for entry in self.ghosts if entry.gone_at > since]
        return self.ghosts


def _difference(found: Sequence[str | None], wanted: Sequence[str]) -> str:
    at = next((n for n, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted)))
    return (
        f"{len(found)} ready, {len(wanted)} expected; from {at} on "
        f"{found[at : at + 4]} instead of {wanted[at : at + 4]}; "
        f"missing {[key for key in wanted if key not in set(found)][:4]}, "
        f"too many {[key for key in found if key not in set(wanted)][:4]}"
    )
