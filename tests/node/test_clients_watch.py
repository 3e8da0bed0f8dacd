"""The supervisor's watch over client slots: what a client leaves that dies before it is a client."""

import errno
import os
import secrets
import selectors
import threading
import time
from collections.abc import Iterator

import pytest

from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc import region
from warren.ipc.identity import Identity
from warren.ipc.superblock import ACTIVE, CLAIMED, DEAD, FREE, GEOMETRY, SlotView, Superblock
from warren.workers.node.clients_watch import ClientsWatch
from warren.workers.process.shared_objects import UNMAPPING_S, remove_unrecorded, segments

from support.waiting import wait_until

SMALL = dict.fromkeys(GEOMETRY, 64) | {"servers_n": 3, "arena_bytes": 65536, "reply_bytes": 4096}


@pytest.fixture
def superblock() -> Iterator[Superblock]:
    made = Superblock.create(secrets.randbits(47), 5, 11, 12, SMALL, layout_hash=LAYOUT_HASH)
    yield made
    made.unlink()
    made.close()


def die_with_a_segment(superblock: Superblock) -> int:
    """A client that claims a slot, makes its segment and dies before it has recorded it; its pid."""
    pid = os.fork()
    if not pid:
        superblock.claim(Identity.current(), "short-lived")
        region.sysv_create(superblock.region_bytes())
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def made_by(pid: int) -> list[int]:
    return [item.id for item in segments() if item.creator == pid]


def test_a_slot_is_not_free_before_its_unrecorded_segment_is_gone(superblock: Superblock) -> None:
    """A supervisor that is killed behind the freed slot leaves nobody who knows of the segment."""
    pid = die_with_a_segment(superblock)
    assert len(made_by(pid)) == 1
    with selectors.DefaultSelector() as selector:
        watch = ClientsWatch(superblock, selector, list, list)
        slot = next(view.slot for view in superblock.slots() if view.pid == pid)
        watch.look(slot)
        assert superblock.slot(slot).state == CLAIMED, "its death is seen twice"

        def freed() -> bool:
            watch.look(slot)
            return superblock.slot(slot).state == FREE

        wait_until(freed, what="the second look at a later time")
        assert made_by(pid) == []
        watch.close()


def test_a_segment_of_the_pids_next_owner_stays(superblock: Superblock) -> None:
    pid = die_with_a_segment(superblock)
    (made,) = made_by(pid)
    size = next(item.size for item in segments() if item.id == made)
    assert remove_unrecorded(pid, size, before=time.time() - 5) == 0
    assert made_by(pid) == [made]
    assert remove_unrecorded(pid, size, before=time.time() + 5) == 1
    assert made_by(pid) == []


def test_an_unrecorded_segment_that_is_still_mapped_is_waited_for(superblock: Superblock) -> None:
    """The kernel takes the memory of a killed process apart after others see its end, the later the more they read."""
    pid = die_with_a_segment(superblock)
    (made,) = made_by(pid)
    mapped = region.sysv_attach(made)
    size = mapped.size
    assert remove_unrecorded(pid, size) == 0
    assert made_by(pid) == [made], "what somebody has attached stays"
    later = threading.Timer(UNMAPPING_S / 4, mapped.close)
    later.start()
    found = 0
    while not found and later.is_alive():
        found = remove_unrecorded(pid, size)
    later.join()
    assert found + remove_unrecorded(pid, size) == 1
    assert made_by(pid) == []


def dead(superblock: Superblock, worker: int = -1) -> SlotView:
    """The slot of somebody who has died after the servers had heard of it."""
    view = superblock.activate(superblock.claim(Identity.current(), "dead", worker))
    assert superblock.slot_move(view, DEAD)
    return superblock.slot(view.slot)


def test_a_workers_slot_waits_for_the_stores_and_a_clients_for_everybody(superblock: Superblock) -> None:
    """A worker that cannot start never is done with anything: slots of its dead incarnations would stay for ever."""
    mine, clients = dead(superblock, 0), dead(superblock)
    with selectors.DefaultSelector() as selector:
        watch = ClientsWatch(superblock, selector, lambda: [0, 1, 2], list)
        for server in (0, 1):
            watch.scan()
            assert superblock.slot(mine.slot).state == superblock.slot(clients.slot).state == DEAD
            for view in (mine, clients):
                superblock.set_server_done(view.slot, server, view.generation)
        watch.scan()
        assert superblock.slot(mine.slot).state == FREE
        assert superblock.slot(clients.slot).state == DEAD, "the worker still has what it submitted"
        superblock.set_server_done(clients.slot, 2, clients.generation)
        watch.scan()
        assert superblock.slot(clients.slot).state == FREE
        watch.close()


class Refusing(selectors.DefaultSelector):
    """The system watches no more descriptors, so often."""

    refusals = 1

    def register(self, *arguments: object) -> selectors.SelectorKey:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().register(*arguments)  # type: ignore[arg-type]


def test_who_could_not_be_watched_is_watched_later(superblock: Superblock) -> None:
    """Nobody would have seen the end of such a client."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(write)
        superblock.activate(superblock.claim(Identity.current(), "client", -1))
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    wait_until(lambda: any(view.pid == pid and view.state == ACTIVE for view in superblock.slots()), what="a client")
    before = len(os.listdir("/proc/self/fd"))
    with Refusing() as selector:
        watch = ClientsWatch(superblock, selector, list, list)
        watch.scan()
        assert len(os.listdir("/proc/self/fd")) == before + 1  # the selector's own
        watch.scan()
        os.close(write)
        os.waitpid(pid, 0)
        ready = selector.select(30)
        assert ready
        for key, _events in ready:
            key.data()
        assert not any(view.pid == pid and view.state == ACTIVE for view in superblock.slots())
        watch.close()
