"""A client of the store that remembers everything outside of it: churn, versions, references, elders, shared ids.

What it does, at random: single writes, batches of consecutive ids, mixed ones, second references, writes whose remove
overtakes them, removes, re-writes of removed ids with another body (the body names its version, so an old one that
comes back is seen), reads and `contains` of everything it holds. One id of fifty is kept long, so that files hold few
live messages and have to be collected. All keepers write the same *shared* ids in the same slot of time.

A new incarnation waits until the servers are done with those before (their slots are free), then asks what became of
what was under way.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import warren
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc.region import RegionError
from warren.ipc.superblock import Superblock
from warren.tools.crash.ledger import Held, Ledger, begin, body_of, is_shared, joined, shared_id
from warren.tools.crash.logs import Log, node_epoch_of, shared_id_of

TIMEOUT_S = 15.0
SWEEP_S = 8.0
LIVE_MAX = 350
ELDERS_MAX = 60
SLOTS_PER_S = 3
SHARED_IN_A_SLOT = 3


class Keeper:
    """One incarnation."""

    def __init__(self, directory: str, base: str, rng: random.Random, stopping: Callable[[], bool]) -> None:
        self.directory = Path(directory)
        self.rng = rng
        self.stopping = stopping
        self.ledger, number = Ledger.latest(Path(base))
        self.before = set(self.ledger.pids)
        self.log = Log(str(begin(Path(base), self.ledger, number)))
        self._resolved = not self.before
        self._right = 0

    def run(self) -> None:
        """Attach and work; after an error attach anew, until told to stop."""
        while not self.stopping():
            try:
                with warren.attach(self.directory, timeout=TIMEOUT_S, name="kill-keeper") as node:
                    self._resolve(node)
                    store = node.store()
                    while not self.stopping():
                        self._turn(store)
                        time.sleep(self.rng.random() * 0.02)
            except warren.Error as error:
                self.log.error(error)
                self.ledger.to_limbo([id for id, held in self.ledger.held.items() if not held.certain])
                time.sleep(0.02)
        self._note_reads()

    # -- the log --------------------------------------------------------------------------------------------------

    def _say(self, *lines: str) -> None:
        self.log.write(*lines)
        for line in lines:
            self.ledger.apply(line)

    def _complain(self, text: str) -> None:
        self.log.write(f"b {time.monotonic():.3f} {text}")

    def _note_reads(self) -> None:
        if self._right:
            self._say(f"q {self._right}")
            self._right = 0

    # -- after a death --------------------------------------------------------------------------------------------

    def _resolve(self, node: warren.Node) -> None:
        """What was under way when those before died: ask, once the servers are done with all of them."""
        open_ids = [id for id, held in self.ledger.held.items() if not held.certain]
        if self._resolved:
            return
        store = node.store()
        if self._swept():
            self._say("w")
        else:  # commands of those before may still come; whoever follows asks again
            self.ledger.to_limbo(open_ids)
            open_ids = []
        for id in open_ids:
            held = self.ledger.held[id]
            if is_shared(id):
                self.ledger.to_limbo([id])
            elif not store.contains(id, timeout=TIMEOUT_S):
                if held.low > 0:
                    self._complain(f"lost: {id.hex()} version {held.version} with {held.low} to {held.high} references")
                self._say(f"r {id.hex()} 0")
            elif held.high == 1:
                self._say(f"r {id.hex()} 1")
            else:
                self.ledger.to_limbo([id])
        self._resolved = True

    def _swept(self) -> bool:
        """Wait until no slot belongs to one of those before; False when that takes too long, or the node went."""
        deadline = time.monotonic() + SWEEP_S
        while time.monotonic() < deadline and not self.stopping():
            with contextlib.suppress(RegionError, OSError):
                superblock = Superblock.attach(shared_id_of(self.directory), LAYOUT_HASH)
                try:
                    if all(view.pid not in self.before for view in superblock.slots()):
                        return True
                finally:
                    superblock.close()
            time.sleep(0.02)
        return False

    # -- work -----------------------------------------------------------------------------------------------------

    def _turn(self, store: warren.Store) -> None:
        actions = (
            (6, self._write_one),
            (6, self._write_batch),
            (2, self._write_mixed),
            (2, self._second_reference),
            (2, self._overtaken),
            (4, self._write_again),
            (4, self._read_some),
            (2, self._contains_some),
            (3, self._remove_some),
            (1, self._announce_death),
        )
        chosen = self.rng.choices([action for _, action in actions], [weight for weight, _ in actions])[0]
        chosen(store)
        self._shared(store)
        while len(self._own()) > LIVE_MAX:
            self._remove_some(store)

    def _own(self) -> list[bytes]:
        return [id for id, held in self.ledger.held.items() if held.certain and not is_shared(id)]

    def _write(self, store: warren.Store, ids: Sequence[bytes], version: int) -> None:
        self._say(f"i {version} {joined(ids)}")
        bodies = [body_of(id, version) for id in ids]
        if len(ids) == 1:
            store.write(ids[0], bodies[0], timeout=TIMEOUT_S)
        else:
            store.write_many(ids, bodies, timeout=TIMEOUT_S)
        self._say(f"c {joined(ids)}")

    def _write_one(self, store: warren.Store) -> None:
        self._write(store, [store.new_id()], 0)

    def _write_batch(self, store: warren.Store) -> None:
        self._write(store, [store.new_id() for _ in range(self.rng.choice((2, 7, 40, 130)))], 0)

    def _write_mixed(self, store: warren.Store) -> None:
        ids = [os.urandom(16) if self.rng.random() < 0.5 else store.new_id() for _ in range(self.rng.choice((2, 9)))]
        self._write(store, ids, 0)

    def _write_again(self, store: warren.Store) -> None:
        """Ids that had no reference left, with other bodies: the old ones must never come back."""
        gone = self.ledger.gone
        if not gone:
            return
        ids = self.rng.sample(sorted(gone), min(len(gone), self.rng.choice((1, 5, 20))))
        version = max(gone[id] for id in ids) + 1
        self._write(store, ids, version)
        self._check(store, ids[:3])

    def _second_reference(self, store: warren.Store) -> None:
        """A write of what is held adds a reference; the body stays the first one."""
        own = self._own()
        if own:
            id = self.rng.choice(own)
            self._write(store, [id], self.ledger.held[id].version)

    def _overtaken(self, store: warren.Store) -> None:
        """Writes whose removes come before their confirms; most are eliminated."""
        ids = [store.new_id() for _ in range(self.rng.choice((1, 4, 30)))]
        self._say(f"i 0 {joined(ids)}")
        bodies = [body_of(id, 0) for id in ids]
        if len(ids) == 1:
            store.write(ids[0], bodies[0], wait=False, timeout=TIMEOUT_S)
        else:
            store.write_many(ids, bodies, wait=False, timeout=TIMEOUT_S)
        self._say(f"x {joined(ids)}")
        store.remove(ids, timeout=TIMEOUT_S)
        store.barrier("synced", timeout=TIMEOUT_S)
        self._say(f"c {joined(ids)}", f"d {joined(ids)}")

    def _announce_death(self, store: warren.Store) -> None:
        """Writes that this client's announced death overtakes: dropped, or done and confirmed."""
        ids = [store.new_id() for _ in range(self.rng.choice((1, 6)))]
        self._say(f"i 0 {joined(ids)}")
        node_epoch = node_epoch_of(self.directory)
        confirms = [store.write(id, body_of(id, 0), wait=False, timeout=TIMEOUT_S) for id in ids]
        store.delete_and_terminate(timeout=TIMEOUT_S)
        for id, confirm in zip(ids, confirms, strict=True):
            assert confirm is not None
            try:
                confirm.wait(TIMEOUT_S)
            except warren.ClosedError:
                if node_epoch_of(self.directory) != node_epoch:  # nobody dropped it: the whole node died
                    raise
                self._say(f"m {joined([id])}")
                if store.contains(id, timeout=TIMEOUT_S):
                    self._complain(f"doubled: {id.hex()} was dropped by its client's death and is there")
            else:
                self._say(f"c {joined([id])}")

    def _remove_some(self, store: warren.Store) -> None:
        own = self._own()
        elders = [id for id in own if _is_elder(id)]
        choices = own if len(elders) > ELDERS_MAX else [id for id in own if not _is_elder(id)]
        self._remove(store, self.rng.sample(choices, min(len(choices), self.rng.choice((1, 10, 60)))))

    def _remove(self, store: warren.Store, ids: Sequence[bytes]) -> None:
        if not ids:
            return
        self._say(f"x {joined(ids)}")
        store.remove(list(ids), timeout=TIMEOUT_S)
        store.barrier("synced", timeout=TIMEOUT_S)
        self._say(f"d {joined(ids)}")

    def _shared(self, store: warren.Store) -> None:
        """What every keeper writes in this slot of time; what is of an earlier slot is removed again."""
        slot = int(time.time() * SLOTS_PER_S)
        if slot == self.ledger.slot:
            return
        ids = [shared_id(slot, number) for number in range(SHARED_IN_A_SLOT)]
        self._write(store, ids, 0)
        self._check(store, ids)
        old = [id for id, held in self.ledger.held.items() if is_shared(id) and held.certain and id not in ids]
        self._remove(store, [id for id in old if self.rng.random() < 0.5])

    # -- looking --------------------------------------------------------------------------------------------------

    def _read_some(self, store: warren.Store) -> None:
        ids = list(self.ledger.held)
        self._check(store, self.rng.sample(ids, min(len(ids), self.rng.choice((1, 10, 50)))))

    def _check(self, store: warren.Store, ids: Sequence[bytes]) -> None:
        ids = [id for id in ids if self.ledger.held[id].certain]
        gone = self.rng.sample(sorted(self.ledger.gone), min(2, len(self.ledger.gone)))
        bodies = [store.read(ids[0])] if len(ids) == 1 else store.read_many(ids)
        bodies += store.read_many(gone)
        for id, body in zip([*ids, *gone], bodies, strict=True):
            held = self.ledger.held.get(id)
            wanted = None if held is None else body_of(id, held.version)
            if body == wanted:
                self._right += 1
            else:
                what = "nothing" if body is None else f"{len(body)} bytes {body[:50]!r}"
                self._complain(f"{'lost' if body is None else 'wrong'}: {id.hex()} {held or 'removed'} reads {what}")
        if self._right > 50:
            self._note_reads()

    def _contains_some(self, store: warren.Store) -> None:
        held = [id for id in self.ledger.held if self.ledger.held[id].certain]
        for id in self.rng.sample(held, min(len(held), 3)):
            if not store.contains(id, timeout=TIMEOUT_S):
                self._complain(f"lost: {id.hex()} {self.ledger.held[id]} is not contained")
        for id in self.rng.sample(sorted(self.ledger.gone), min(2, len(self.ledger.gone))):
            if store.contains(id, timeout=TIMEOUT_S):
                self._complain(f"doubled: {id.hex()} version {self.ledger.gone[id]} was removed and is contained")


def _is_elder(id: bytes) -> bool:
    return zlib.crc32(id) % 50 == 0


def reckon(store: warren.Store, ledgers: Sequence[Ledger]) -> list[str]:
    """At the end, with every keeper gone and swept: what is there must be what the ledgers say; then remove it all.

    Returns complaints.
    """
    sums: dict[bytes, Held] = {}
    for ledger in ledgers:
        for place in (ledger.held, ledger.limbo):
            for id, held in place.items():
                total = sums.setdefault(id, Held(held.version))
                total.low += max(held.low, 0)
                total.high += max(held.high, 0)
                total.version = max(total.version, held.version)
    complaints = []
    for id, held in sums.items():
        body = store.read(id)
        if body is None and held.low > 0:
            complaints.append(f"lost: {id.hex()} {held} was confirmed, never removed, and is gone")
        if body is not None and held.high <= 0:
            complaints.append(f"doubled: {id.hex()} {held} was removed and is there again")
        elif body is not None and body != body_of(id, held.version):
            complaints.append(f"wrong: {id.hex()} {held} reads {body[:60]!r}")
    left = dict(sums)
    for turn in range(1, 6):
        if not left:
            break
        store.remove(list(left), timeout=TIMEOUT_S)
        store.barrier("synced", timeout=TIMEOUT_S)
        for id in [id for id in left if not store.contains(id, timeout=TIMEOUT_S)]:
            held = left.pop(id)
            if turn < held.low:
                complaints.append(f"lost: {id.hex()} {held} had {turn} references")
    complaints += [f"doubled: {id.hex()} {held} has references left after 5 removes" for id, held in left.items()]
    return complaints
