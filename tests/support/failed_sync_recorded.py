"""`python -m support.failed_sync_recorded DIR SCENE`: a real node in which one sync fails; then the process that had
it, or all of the node, is killed, and life goes on. To be recorded (warren.tools.crash.recording), with the notes of a
history (warren.tools.crash.history).
"""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warren.engine.queues.folder import Folder
from warren.tools.crash import recording
from warren.tools.crash.history import SETTINGS, History, body_of, message_of

from support.waiting import wait_until

QUEUE = "first"
SIZE = 3000
PATIENCE = 60.0  #: the waiting itself is part of no claim


class Life(History):
    """Steps of which scenes are made."""

    def pids(self) -> dict[str, int]:
        return {process["role"]: process["pid"] for process in self.node.status()["processes"] if process["pid"]}

    def kill_failed(self) -> None:
        """Wait for the failure, and kill at once who had it."""
        wait_until(recording.failed_sync, PATIENCE, what="the sync that fails")
        pid = recording.failed_sync()
        role = next(role for role, its in self.pids().items() if its == pid)
        self.say("k", role)
        recording.kill([pid])

    # -- the store ----------------------------------------------------------------------------------------------

    def written(self, ids: list[bytes]) -> tuple[int, Any]:
        token = next(self.tokens)
        items = [(id, 0, SIZE) for id in ids]
        self.say("w", token, items)
        return token, self.store.write_many(ids, [body_of(*item) for item in items], wait=False)

    def confirmed(self, token: int, confirm: Any) -> None:
        confirm.wait(PATIENCE)
        self.say("c", token)

    # -- queues -------------------------------------------------------------------------------------------------

    def sent(self, count: int, size: int = SIZE) -> tuple[int, Any]:
        token = next(self.tokens)
        items = [(next(self.numbers[QUEUE]), size) for _ in range(count)]
        self.say("p", token, QUEUE, items)
        return token, self.queues[QUEUE].put_many([message_of(QUEUE, *item) for item in items], wait=False)

    def settled(self, count: int) -> None:
        messages = self.queues[QUEUE].get_many(count, timeout=PATIENCE)
        self.say("a", QUEUE, [int.from_bytes(message.body[:4], "big") for message in messages])
        self.queues[QUEUE].ack(messages)

    def journals(self) -> list[int]:
        return sorted(int(path.stem) for path in Folder.of(self.directory, 0).journal.glob("*.jnl"))

    def until_removed(self, last: int, settle: bool = False) -> None:
        """Publish until the journal files up to this one are gone."""
        while min(self.journals()) <= last:
            self.confirmed(*self.sent(10))
            if settle:
                self.settled(10)


# -- scenes -----------------------------------------------------------------------------------------------------------


def store_killed(life: Life) -> None:
    """The store finds frames whose sync failed, and takes the commands for done. The one before it does not know: a
    store that does is not followed by another one in this node."""
    life.confirmed(*life.written([life.store.new_id() for _ in range(3)]))
    recording.fail_sync(1, ".rdq", hangs=True)
    token, confirm = life.written([life.store.new_id() for _ in range(3)])
    life.kill_failed()
    life.confirmed(token, confirm)
    life.confirmed(*life.written([life.store.new_id()]))


def store_anew(life: Life) -> None:
    """The same, with all of the node; then ids that are there are written again, and only their count rises."""
    life.confirmed(*life.written([life.store.new_id() for _ in range(3)]))
    recording.fail_sync(1, ".rdq")
    ids = [life.store.new_id() for _ in range(3)]
    life.written(ids)
    wait_until(recording.failed_sync, PATIENCE, what="the sync that fails")
    life.kill_all()
    life.open()
    life.confirmed(*life.written(ids))


def journal_killed(life: Life) -> None:
    """The worker finds frames whose sync failed in the images, and takes the commands for done."""
    life.confirmed(*life.sent(3))
    recording.fail_sync(1, ".jnl", hangs=True)
    token, confirm = life.sent(3)
    life.kill_failed()
    life.confirmed(token, confirm)
    life.confirmed(*life.sent(3))


def journal_anew(life: Life) -> None:
    """A publish whose sync failed makes the same one a duplicate."""
    token = next(life.tokens)
    life.say("q", token, "once")
    once = life.node.queue("once", deduplication_window=600.0)
    life.say("c", token)
    life.numbers["once"] = itertools.count(1)
    bodies = {number: message_of("once", number, SIZE) for number in range(1, 4)}
    token = next(life.tokens)
    life.say("p", token, "once", [(number, SIZE) for number in bodies])
    recording.fail_sync(1, ".jnl")
    once.put_many(list(bodies.values()), wait=False, message_id=[str(number) for number in bodies])
    wait_until(recording.failed_sync, PATIENCE, what="the sync that fails")
    life.kill_all()
    life.open()
    once = life.node.queue("once", deduplication_window=600.0)
    for number, body in bodies.items():
        confirm = once.put(body, wait=False, message_id=str(number))
        confirm.wait(PATIENCE)
        assert confirm.duplicate
    life.say("c", token)
    life.confirmed(*life.sent(3))


def flush(life: Life) -> None:
    """Entries in a segment whose sync failed stand for a journal file, which goes."""
    segment = Folder.of(life.directory, 0).segments
    while not any(segment.glob("*/0.idx")):
        life.confirmed(*life.sent(10))
    recording.fail_sync(1, ".idx")
    while not recording.failed_sync():
        life.confirmed(*life.sent(10))
    life.kill_failed()
    life.until_removed(min(life.journals()))


def acks(life: Life) -> None:
    """Entries that were zeroed, with a sync that failed, stand for the acks in a journal file, which goes."""
    segment = Folder.of(life.directory, 0).segments
    while not any(segment.glob("*/0.idx")):
        life.confirmed(*life.sent(10))
    last = max(life.journals())
    life.until_removed(last)  # all that is there so far is in segments
    life.settled(100)
    recording.fail_sync(1, ".idx")
    while not recording.failed_sync():
        life.confirmed(*life.sent(10))
    life.kill_failed()
    life.until_removed(max(life.journals()))


SCENES: dict[str, Callable[[Life], None]] = {
    scene.__name__: scene for scene in (store_killed, store_anew, journal_killed, journal_anew, flush, acks)
}


def main(directory: Path, scene: str) -> None:
    life = Life(directory, 1)
    life.open()
    SCENES[scene](life)
    if scene == "acks":  # what was acked stays away from here on
        life.stop()
    else:
        life.kill_all()
        life.finish()


if __name__ == "__main__":
    assert SETTINGS["workers"] == 1
    main(Path(sys.argv[1]), sys.argv[2])
