"""What the clients of a session wrote down (work.py), and what follows from it.

Invariants (what breaks them is a complaint)
  a confirmed message of a durable queue is received once it is asked for, with its bytes
  of all receipts of a message at most one is without the redelivered mark; those come in their publisher's order
  what was acked never comes back once that is durable: when a later client had a confirm of the same journal, which
  had not failed meanwhile (nobody waits for an ack, so nobody is told)
  nothing is received that was never put
  what was confirmed in the store is there with its bytes, what was removed is gone
  a call ends within its time, and with an error of Warren, or well
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from warren.tools.fault.work import DURABLE, PUBLISHED_AT_MOST

WRITTEN, CONFIRMED, REMOVING, REMOVED, UNSURE = "w", "k", "x", "d", "?"
REMOVED_KEPT = 60


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
