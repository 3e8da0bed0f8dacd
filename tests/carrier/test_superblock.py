"""Goal: slots go through their states by compare-and-swap only, a half-made or foreign superblock is never attached,
and processes that race for slots each get their own.

Method: one superblock per test; the states by hand; 8 processes that claim and free slots at once, and a count
afterwards.
"""

import errno
import os
import re
import secrets
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.ipc import _core as atomics
from warren.ipc import layout, names, region
from warren.ipc.identity import Identity, pid_namespace
from warren.ipc.layout import CLIENT_SLOTS, CONSTANTS, SERVER_WORKER_FIRST, SUPERBLOCK, WORKER_SLOTS
from warren.ipc.region import RegionError
from warren.ipc.superblock import ACTIVE, CLAIMED, DEAD, FREE, GEOMETRY, LEAVING, SlotsFull, Superblock

HASH = 0x5EED  #: of declarations that the carrier does not know
SMALL = dict.fromkeys(GEOMETRY, 64) | {"servers_n": 3, "arena_bytes": 65536, "reply_bytes": 4096}


def resident(id: int) -> int:
    """Bytes of a System V segment that are memory."""
    header, *rows = (line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines())
    return next(int(row[header.index("rss")]) for row in rows if int(row[header.index("shmid")]) == id)


@pytest.fixture
def superblock() -> Iterator[Superblock]:
    """A superblock of a node that does not exist otherwise."""
    made = Superblock.create(secrets.randbits(47), 5, 11, 12, SMALL, layout_hash=HASH)
    yield made
    made.unlink()
    made.close()


def test_what_was_created_is_read(superblock: Superblock) -> None:
    other = Superblock.attach(superblock.shared_id, HASH)
    assert {name: other.get(name) for name in GEOMETRY} == SMALL
    assert (other.get("node_epoch"), other.get("live_semaphore_key"), other.get("store_lock_key")) == (5, 11, 12)
    assert other.get("client_epoch_next") == (5 << 32) + 1
    assert other.get("client_base_bytes") == layout.client_base_bytes(3, 64, 4096, 65536)
    assert other.state == CONSTANTS["NODE_CREATING"]
    assert list(other.slots()) == []
    other.close()


def test_the_topic_worker_is_the_last_server_and_no_queue_worker() -> None:
    """What goes over queue workers ends before it; a node without one (0) is as it was."""
    for servers_n, topic_server, workers_n in ((5, 4, 2), (4, 0, 2), (3, 2, 0), (33, 32, 30)):
        made = Superblock.create(
            secrets.randbits(47),
            *(5, 11, 12),
            SMALL | {"servers_n": servers_n, "topic_server": topic_server},
            layout_hash=HASH,
        )
        try:
            workers = [f"worker-{number}" for number in range(workers_n)]
            assert (made.workers_n, made.topic_server) == (workers_n, topic_server)
            assert [made.role_of(server) for server in made.queue_workers] == workers
            last = ["topics"] if topic_server else []
            assert [made.role_of(server) for server in range(servers_n)] == ["store", "store", *workers, *last]
            assert [made.server_name(server) for server in range(2)] == ["store", "store-transient"]
            assert made.client_slots.start == WORKER_SLOTS * workers_n
            made.topics_changed(7)
            told = [made.server_get(server, "queues_version") for server in range(servers_n)]
            assert told == [7 if topic_server and server == topic_server else 0 for server in range(servers_n)]
            view = made.claim(Identity.current(), "client")
            made.set_server_done(view.slot, servers_n - 1, 0x1FF)
            assert made.server_done(view.slot, servers_n - 1) == 0xFF
            reading = made.slot_at(view.slot, "reading")
            assert bytes(made.buffer[reading : reading + 8]) == bytes(8), "a word of its own line"
        finally:
            made.unlink()
            made.close()


def test_of_very_many_delivery_slots_few_are_memory_before_they_are_used() -> None:
    made = Superblock.create(secrets.randbits(47), *(5, 11, 12), SMALL | {"servers_n": 4}, layout_hash=HASH)
    try:
        plain, many = made.region_bytes(), made.region_bytes(layout.DELIVERY_SLOTS_MAX)
        assert made.region_bytes(64) == plain, "the number of this node"
        assert many - plain == 2 * (72 * layout.DELIVERY_SLOTS_MAX - 8192), "two workers"
        assert made.late_parts() == made.late_parts(layout.DELIVERY_SLOTS_WARM) == []
        parts = made.late_parts(layout.DELIVERY_SLOTS_MAX)
        assert all(begin % 4096 == length % 4096 == 0 for begin, length in parts)
        memory = region.sysv_create(many, late=parts)
        region.sysv_remove(memory.id)
        base = made.get("client_base_bytes")
        assert resident(memory.id) == base + 2 * 72 * layout.DELIVERY_SLOTS_WARM
        for begin, length in parts:
            memory.buffer[begin] = memory.buffer[begin + length - 1] = 1
        memory.close()
        view = made.claim(Identity.current(), "many", delivery_slots=layout.DELIVERY_SLOTS_MAX)
        assert view.delivery_slots == layout.DELIVERY_SLOTS_MAX
        assert made.give_back(view)
        assert made.claim(Identity.current(), "plain").delivery_slots == 0
    finally:
        made.unlink()
        made.close()


def test_the_link_of_the_topic_worker_is_memory_only_where_it_is_used() -> None:
    sizes = {"ring_records": 256, "delivery_slots": 128, "reply_bytes": 8192, "arena_bytes": 65536}
    with_one, without = (
        Superblock.create(
            secrets.randbits(47),
            *(5, 11, 12),
            SMALL | sizes | {"servers_n": 3 + bool(topic_server), "topic_server": topic_server},
            layout_hash=HASH,
        )
        for topic_server in (3, 0)
    )
    try:
        assert without.late_parts() == []
        parts = with_one.late_parts()
        assert [length for _begin, length in parts] == [256 * 64, 8192], "ring, replies"
        touched = with_one.region_bytes() - sum(length for _begin, length in parts)
        assert touched == without.region_bytes()
        made = region.sysv_create(with_one.region_bytes(), late=parts)
        region.sysv_remove(made.id)
        assert resident(made.id) == touched
        for begin, length in parts:
            made.buffer[begin] = made.buffer[begin + length - 1] = 1
        made.close()
    finally:
        for superblock in (with_one, without):
            superblock.unlink()
            superblock.close()


def test_there_is_only_one(superblock: Superblock) -> None:
    with pytest.raises(RegionError) as caught:
        Superblock.create(superblock.shared_id, 6, 1, 2, SMALL, layout_hash=HASH)
    assert caught.value.errno == errno.EEXIST


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [("magic", 0, errno.ENOENT), ("layout_hash", 1, errno.EPROTO), ("shared_id", 1, errno.EPROTO)],
)
def test_half_made_and_foreign_ones_are_refused(superblock: Superblock, field: str, value: int, code: int) -> None:
    SUPERBLOCK.pack_into(superblock.buffer, field, value)
    with pytest.raises(RegionError) as caught:
        Superblock.attach(superblock.shared_id, HASH)
    assert caught.value.errno == code


def test_a_superblock_that_is_too_short_is_refused() -> None:
    node_id = secrets.randbits(47)
    region.posix_create(names.superblock(node_id), 4096).close()
    try:
        with pytest.raises(RegionError) as caught:
            Superblock.attach(node_id, HASH)
        assert caught.value.errno == errno.ENOENT
    finally:
        region.posix_unlink(names.superblock(node_id))


def test_the_life_of_a_slot(superblock: Superblock) -> None:
    me = Identity.current()
    version = superblock.get("slots_version")
    view = superblock.claim(me, "näme" * 20)
    assert (view.pid, view.state, view.generation, view.shmid) == (me.pid, CLAIMED, 1, -1)
    assert view.identity == me
    assert view.client_epoch == (5 << 32) + 1
    assert view.name == "näme" * 9 + "nä", "cut to 48 bytes, never inside a character"
    assert superblock.get("slots_version") == version, "nobody looks at a slot that is only claimed"
    superblock.set_segment(view, 4711)
    view = superblock.activate(view)
    assert (view.state, view.shmid) == (ACTIVE, 4711)
    assert superblock.get("slots_version") == version + 1
    assert not superblock.leave(view.slot, view.generation + 1)
    assert superblock.leave(view.slot, view.generation)
    assert not superblock.leave(view.slot, view.generation)
    assert superblock.slot(view.slot).state == LEAVING
    superblock.set_server_done(view.slot, 2, 0x1FF)
    assert superblock.server_done(view.slot, 2) == 0xFF
    assert superblock.slot_move(superblock.slot(view.slot), FREE)
    freed = superblock.slot(view.slot)
    assert (freed.state, freed.pid, freed.generation) == (FREE, 0, 1)
    again = superblock.claim(me, "next")
    assert (again.slot, again.generation) == (view.slot, 2)
    assert superblock.server_done(again.slot, 2) == 0
    assert again.client_epoch == view.client_epoch + 1


@pytest.mark.parametrize("first", [0, 0xFFFE80])
def test_no_generation_looks_finished_in_a_new_slot(superblock: Superblock, first: int) -> None:
    """The 256th client of a slot was swept before its servers had let go of it, and the next one waited for ever."""
    me = Identity.current()
    slot = superblock.claim(me, "a").slot
    offset = superblock.slot_at(slot, "claim")
    atomics.store64(superblock.buffer, offset, first << 8 | FREE)
    seen = set()
    for _ in range(600):
        view = superblock.claim(me, "a")
        assert view.slot == slot
        assert superblock.server_done(slot, 2) == 0
        superblock.set_server_done(slot, 2, view.generation)
        assert superblock.server_done(slot, 2) != 0
        seen.add(view.generation)
        assert superblock.slot_move(view, FREE)
    assert len(seen) == 600
    assert min(seen) > 0
    assert max(seen) < 1 << 24


def test_an_old_view_moves_nothing(superblock: Superblock) -> None:
    view = superblock.activate(superblock.claim(Identity.current(), "a"))
    assert superblock.slot_move(view, DEAD)
    assert not superblock.slot_move(view, FREE)
    dead = superblock.slot(view.slot)
    assert superblock.slot_move(dead, FREE)
    superblock.claim(Identity.current(), "b")
    assert not superblock.slot_move(dead, FREE), "the next owner's slot is not freed by mistake"


def test_a_slot_taken_away_is_noticed(superblock: Superblock) -> None:
    view = superblock.claim(Identity.current(), "slow")
    assert superblock.slot_move(view, FREE)
    with pytest.raises(RuntimeError, match="taken away"):
        superblock.activate(view)


def test_all_slots_taken(superblock: Superblock) -> None:
    me = Identity.current()
    slots = superblock.client_slots
    taken = {superblock.claim(me, str(number)).slot for number in slots}
    assert taken == set(slots)
    with pytest.raises(SlotsFull, match=f"all {len(slots)} client slots"):
        superblock.claim(me, "one more")


def test_a_queue_worker_finds_a_slot_where_clients_have_all_of_theirs(superblock: Superblock) -> None:
    me = Identity.current()
    for number in superblock.client_slots:
        superblock.claim(me, str(number))
    workers = superblock.servers_n - SERVER_WORKER_FIRST
    assert workers
    assert len(superblock.client_slots) + workers * WORKER_SLOTS == CLIENT_SLOTS
    for worker in range(workers):
        taken = [superblock.claim(me, "queue-worker", worker) for _ in range(WORKER_SLOTS)]
        assert {superblock.worker_of(view.slot) for view in taken} == {worker}
        with pytest.raises(SlotsFull, match=f"queue worker {worker}"):
            superblock.claim(me, "queue-worker", worker)
        assert superblock.give_back(taken[0])
        assert superblock.claim(me, "queue-worker", worker).slot == taken[0].slot


def test_a_slot_given_back_says_nothing_of_who_had_it(superblock: Superblock) -> None:
    """Its next owner is looked at before it has written who it is."""
    view = superblock.claim(Identity.current(), "short")
    superblock.set_segment(view, 77)
    view = superblock.slot(view.slot)
    assert superblock.give_back(view)
    free = superblock.slot(view.slot)
    assert free.state == FREE
    assert (free.start_time, free.client_epoch, free.namespace) == (0, 0, 0)
    assert (free.shmid, free.name) == (-1, "")
    again = next(
        found
        for number in superblock.client_slots
        if (found := superblock.claim(Identity.current(), str(number))).slot == view.slot
    )
    assert not superblock.give_back(view), "it is another one's now"
    assert superblock.slot(view.slot) == again


def test_racing_claims_each_get_their_own(superblock: Superblock) -> None:
    """8 processes each claim 20 slots, free every second of them, and report what they kept."""
    processes, claims = 8, 20
    results = region.sysv_create(4096)
    gate_read, gate_write = os.pipe()
    children = []
    for number in range(processes):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                other = Superblock.attach(superblock.shared_id, HASH)
                os.read(gate_read, 1)
                kept = []
                for count in range(claims):
                    view = other.claim(Identity(os.getpid(), 1, pid_namespace()), "racer")
                    if count % 2:
                        assert other.slot_move(view, FREE)
                    else:
                        kept.append(other.activate(view))
                for place, view in enumerate(kept):
                    at = (number * claims + place) * 16
                    struct.pack_into("<QII", results.buffer, at, view.client_epoch, view.slot, os.getpid())
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    os.write(gate_write, b"g" * processes)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * processes
    os.close(gate_read)
    os.close(gate_write)
    kept = [
        struct.unpack_from("<QII", results.buffer, (number * claims + place) * 16)
        for number in range(processes)
        for place in range(claims // 2)
    ]
    assert len({slot for _epoch, slot, _pid in kept}) == processes * claims // 2
    assert len({epoch for epoch, _slot, _pid in kept}) == len(kept)
    assert {(view.slot, view.pid) for view in superblock.slots()} == {(slot, pid) for _epoch, slot, pid in kept}
    assert superblock.get("client_epoch_next") == (5 << 32) + 1 + processes * claims
    region.sysv_remove(results.id)
    results.close()


def test_servers_are_apart(superblock: Superblock) -> None:
    for server in range(superblock.servers_n):
        superblock.server_set(server, "epoch", server + 10)
        superblock.server_set(server, "pid", server + 20)
        superblock.server_set(server, "start_time", server + 30)
    for server in range(superblock.servers_n):
        assert superblock.server_get(server, "epoch") == server + 10
        identity = superblock.server_identity(server)
        assert (identity.pid, identity.start_time) == (server + 20, server + 30)


def test_waiting_for_a_state(superblock: Superblock) -> None:
    running = CONSTANTS["NODE_RUNNING"]
    assert not superblock.wait_state({running}, 0)
    threading.Timer(0.05, superblock.set_state, (running,)).start()
    assert superblock.wait_state({running}, 600)


def test_an_armed_crash_point_kills_one_process_after_so_many_passes(superblock: Superblock) -> None:
    roll, retired = CONSTANTS["CRASH_ROLL"], CONSTANTS["CRASH_RETIRED"]

    def passes() -> tuple[int, bool]:
        """How often a child passed `roll` (and always `retired`) before it died, at most five times."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for _ in range(5):
                superblock.crash_point(retired)
                superblock.crash_point(roll)
                os.write(writer, b".")
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            passed = len(pipe.read())
        return passed, os.WIFSIGNALED(os.waitpid(child, 0)[1])

    assert superblock.armed_crash is None
    assert passes() == (5, False)
    superblock.arm_crash("roll", 2)
    assert superblock.armed_crash == "roll"
    assert passes() == (2, True)
    assert superblock.armed_crash is None
    assert passes() == (5, False)
    superblock.arm_crash("roll")
    superblock.disarm_crash()
    assert passes() == (5, False)
    with pytest.raises(KeyError):
        superblock.arm_crash("nowhere")


def test_reasons_of_evictions_have_words_and_one_table() -> None:
    """Store, queue workers and clients use the numbers of layout.py, and the operations guide shows them."""
    numbers = {name: value for name, value in CONSTANTS.items() if name.startswith("EVICTED_")}
    assert list(numbers.items()) == [(name, number) for number, name in enumerate(layout.EVICTIONS, 1)]
    assert layout.eviction(CONSTANTS["EVICTED_BLOB"]).endswith("(EVICTED_BLOB)")
    assert layout.eviction(0) == "reason 0, which this version does not know"
    root = Path(__file__).resolve().parents[2]
    guide = (root / "docs/operations.md").read_text()
    for number, (name, words) in enumerate(layout.EVICTIONS.items(), 1):
        assert f"| {number} | `{name}` | {words} |" in guide
    sources = "".join(path.read_text() for path in (root / "engine").glob("*/*.c"))
    assert {name for name in numbers if f"WR_{name}" in sources} == set(numbers)
    assert not re.search(r"evict\(\w+, \w+, \d", sources), "a number of its own"
