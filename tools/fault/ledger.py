"""What the clients of a session wrote down (work.py), and what follows from it.

Invariants (what breaks them is a complaint)
  a confirmed message of a durable queue is received once it is asked for, with its bytes
  of all receipts of a message at most one is without the redelivered mark; those come in their publisher's order
  what was acked never comes back once that is durable: when a later client had a confirm of the same journal, which
  had not failed meanwhile (nobody waits for an ack, so nobody is told)
  nothing is received that was never put
  what was confirmed in the store is there with its bytes, what was removed is gone
  what was confirmed in a topic (not at `none`) is there once, where it was said to be; of what was appended together
  all is there or nothing; what it has once, it has ever after at the same place
  compacted topics and half messages: compacted.py, halves.py
  a call ends within its time, and with an error of Warren, or well
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from warren.tools.fault import compacted, halves
from warren.tools.fault.work import DURABLE, PUBLISHED_AT_MOST, TOPIC, Ends

WRITTEN, CONFIRMED, REMOVING, REMOVED, UNSURE = "w", "k", "x", "d", "?"
REMOVED_KEPT = 60


class OfTopic:
    """What follows for the topic."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[int]]] = []
        self.confirmed: dict[int, tuple[int, int, int]] = {}  #: number → queue, offset, position
        self._there: dict[int, dict[int, tuple[int, int]]] = {}  #: queue → number → offset, position

    def appended(self, words: list[str]) -> None:
        """Together, into a queue."""
        self.batches.append((int(words[0]), list(map(int, words[1:]))))

    def told(self, words: list[str]) -> None:
        """Where they are."""
        if words[0] != "none":
            queue = int(words[1])
            self.confirmed.update((number, (queue, *place)) for number, place in _places(words[2:]))

    def ends(self) -> Ends:
        """Up to where each queue was confirmed."""
        found: Ends = {}
        for queue, offset, _position in self.confirmed.values():
            found[TOPIC, queue] = max(found.get((TOPIC, queue), 0), offset + 1)
        return found

    def look(self, words: list[str]) -> Iterator[str]:
        """All that a queue has: what is wrong with it."""
        queue, places = int(words[0]), list(_places(words[1:]))
        there = dict(places)
        if len(there) < len(places):
            yield f"doubled: topic {queue} has {len(places) - len(there)} messages twice"
        if [place[0] for _number, place in places] != list(range(len(places))):
            yield f"hole: topic {queue} has offsets {[place[0] for _number, place in places]}"
        for number, place in self._there.get(queue, {}).items():
            if there.get(number) != place:
                yield f"lost: topic {queue} had {number} at {place}, and now at {there.get(number)}"
        self._there[queue] = there
        for number, (whose, *told) in self.confirmed.items():
            if whose == queue and there.get(number) != tuple(told):
                yield f"lost: {number} was confirmed in topic {queue} at {told}, and is at {there.get(number)}"
        announced = {number for whose, numbers in self.batches for number in numbers if whose == queue}
        yield from (f"invented: topic {queue} has {number}" for number in there.keys() - announced)
        for whose, numbers in self.batches:
            found = [there[number][0] for number in numbers if number in there]
            if whose == queue and found and found != list(range(found[0], found[0] + len(numbers))):
                yield f"torn: of {numbers[:9]} topic {queue} has offsets {found[:9]}"


def _places(words: list[str]) -> Iterator[tuple[int, tuple[int, int]]]:
    for word in words:
        number, offset, position = map(int, word.split(":"))
        yield number, (offset, position)


class Ledger:
    """The sum of the logs of a session."""

    def __init__(self) -> None:
        self.announced: dict[str, set[int]] = defaultdict(set)
        self.confirmed: dict[str, set[int]] = defaultdict(set)
        self.received: dict[str, set[int]] = defaultdict(set)
        self._unmarked: Counter[tuple[str, int]] = Counter()
        self._acked: set[tuple[str, int]] = set()  #: before the client whose log is read, durable with the next confirm
        self._gone: set[tuple[str, int]] = set()
        self._stored: dict[bytes, tuple[int, str]] = {}
        self.topic = OfTopic()
        self.compacted = compacted.OfCompacted()
        self.halves = halves.OfHalves()
        self.errors: Counter[str] = Counter()
        self.alarms: list[str] = []
        self.complaints: list[str] = []
        self.reads = 0

    def read(self, path: Path) -> bool:
        """Add one client's log; True when the client did everything that it was to do."""
        highest: dict[tuple[str, int], int] = {}
        acked: set[tuple[str, int]] = set()
        done = erred = False
        for line in path.read_text(errors="replace").split("\n")[:-1] if path.exists() else []:
            letter, _, rest = line.partition(" ")
            words = rest.split(" ")
            erred |= letter in "eE"
            if letter == "z":
                done = True
            elif letter in "ic":
                (self.announced if letter == "i" else self.confirmed)[words[0]].update(map(int, words[1:]))
                if letter == "c" and words[0] in DURABLE:
                    self._gone |= self._acked
                    self._acked.clear()
            elif letter == "a" and words[0] in DURABLE:
                acked.update((words[0], int(word)) for word in words[1:])
            elif letter == "r":
                self._receive(words[0], int(words[1]), words[2] == "1", highest)
            elif letter == "l":
                self.topic.appended(words)
            elif letter == "m":
                self.topic.told(words)
            elif letter == "n":
                self.complaints += self.topic.look(words)
            elif letter in compacted.LETTERS:
                self.complaints += self.compacted.take(letter, words)
            elif letter in halves.LETTERS:
                self.complaints += self.halves.take(letter, words)
            elif letter in "wkxd":
                self._store(letter, words)
            elif letter == "e":
                self.errors[rest.partition(":")[0].split()[-1]] += 1  # "put small DiskFull: …"
            elif letter == "A":
                self.alarms.append(rest)
            elif letter == "b":
                self.complaints.append(f"wrong: {rest}")
            elif letter == "E":
                self.complaints.append(f"foreign error: {rest}")
            elif letter == "t":
                self.complaints.append(f"hang: {' '.join(words[1:])} took {words[0]} s")
        if done and not erred:  # its close() returned well: the worker has executed them
            self._acked |= acked
        return done

    def _receive(self, queue: str, number: int, marked: bool, highest: dict[tuple[str, int], int]) -> None:
        self.reads += 1
        self.received[queue].add(number)
        if number not in self.announced[queue]:
            self.complaints.append(f"invented: {queue} {number}")
        if (queue, number) in self._gone:
            self.complaints.append(f"back: {queue} {number} was acked before")
        if marked:
            return
        self._unmarked[queue, number] += 1
        if self._unmarked[queue, number] > 1:
            self.complaints.append(f"doubled: {queue} {number} came twice without the mark")
        whose = (queue, number // PUBLISHED_AT_MOST)
        if number < highest.get(whose, -1):
            self.complaints.append(f"order: {queue} {number} came after {highest[whose]}")
        highest[whose] = max(number, highest.get(whose, -1))

    def _store(self, letter: str, words: list[str]) -> None:
        if letter == WRITTEN:
            self._stored[bytes.fromhex(words[0])] = (int(words[1]), WRITTEN)
            return
        for word in words:
            id = bytes.fromhex(word)
            size, before = self._stored[id]
            if letter == REMOVING and before != CONFIRMED:
                letter_now = UNSURE  # its write may still come
            else:
                letter_now = letter if before != UNSURE else UNSURE
            self._stored[id] = (size, letter_now)

    def ends(self) -> Ends:
        """Up to where each topic was confirmed."""
        return self.topic.ends() | self.compacted.ends() | self.halves.ends()

    def confirmed_in_topics(self) -> int:
        """How many messages."""
        return len(self.topic.confirmed) + self.compacted.confirmed + self.halves.confirmed

    def held(self) -> dict[bytes, tuple[int, int]]:
        """What the store has to have: id → size, 1; and what it must not have any more: size, 0."""
        there = {id: (size, 1) for id, (size, state) in self._stored.items() if state == CONFIRMED}
        gone = [(id, size) for id, (size, state) in self._stored.items() if state == REMOVED]
        return there | {id: (size, 0) for id, size in gone[-REMOVED_KEPT:]}

    def failed(self) -> None:
        """A journal has failed and was opened anew: what was acked last may not be in it."""
        self._acked.clear()

    def emptied(self) -> None:
        """The store's messages were all removed at the end."""
        self._stored.clear()

    def missing(self, queue: str) -> list[int]:
        """Confirmed messages of a queue that were never received."""
        return sorted(self.confirmed[queue] - self.received[queue])

    def forgive(self, queue: str) -> None:
        """What is missing in a queue may be."""
        self.confirmed[queue] &= self.received[queue]
