"""The message store keeps its rules (docs/rules.md, rules S1 to S12), seen from outside.

Method: a real store server process over a hand-made superblock, bare clients in this process. Where an order of events
matters the server is stopped with SIGSTOP, so that the client's half happens first; nothing depends on time.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine.kernel.protocol import PROTOCOL
from warren.ipc import mailbox
from warren.ipc.layout import CONSTANTS
from warren.ipc.region import posix_open

from support.store_node import NONE, OK, SYNCED, WRITTEN, Client, StoreNode, message_id
from support.waiting import wait_until

pytestmark = pytest.mark.contract

BODY = b"a body that is easy to find in a file"
STRANGE = 1 << 60  #: epoch of ids that Warren would not make: they lie in the hash part of the index


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoreNode]:
    with StoreNode(tmp_path / "node") as made:
        made.start()
        yield made


class Paused:
    """While it lasts the server does not run."""

    def __init__(self, node: StoreNode) -> None:
        self.node = node

    def __enter__(self) -> None:
        os.kill(self.node.pid, signal.SIGSTOP)
        wait_until(lambda: Path(f"/proc/{self.node.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")

    def __exit__(self, *_: object) -> None:
        os.kill(self.node.pid, signal.SIGCONT)


def on_disk(node: StoreNode, text: bytes = BODY, server: int = 0) -> int:
    """How often a text occurs in the segment files."""
    return sum((node.folder(server) / f"{n}.rdq").read_bytes().count(text) for n in node.files(server))


# -- rules S1, S2: registration, write --------------------------------------------------------------------------------


def test_s1_death_executes_what_was_submitted_and_sweeps_what_was_not(node: StoreNode) -> None:
    victim, other = node.client(), node.client()
    with Paused(node):
        victim.core.write_many([(message_id(1), BODY)], NONE, True)
        victim.core.write_many([(message_id(2), BODY)], NONE, False)  # F and C, but not S
        assert node.directory_rows() == 2
        victim.die()
    wait_until(victim.swept)
    assert node.directory_rows() == 0
    assert other.read(message_id(1)) == BODY
    assert other.read(message_id(2)) is None
    assert not other.contains(message_id(2))


def test_s1_slot_is_used_again_by_another_client(node: StoreNode) -> None:
    first = node.client()
    first.write([(message_id(1), BODY)])
    first.die()
    wait_until(first.swept)
    first.free()
    first.close()
    second = node.client()
    assert second.slot == first.slot
    second.write([(message_id(2), BODY)])
    assert (second.read(message_id(1)), second.read(message_id(2))) == (BODY, BODY)


def test_s2_write_is_readable_by_all_before_the_server_has_seen_it(node: StoreNode) -> None:
    writer, reader = node.client(), node.client()
    reader.set_other(writer)
    with Paused(node):
        writer.core.write_many([(message_id(1), BODY)], NONE, True)
        assert writer.read(message_id(1)) == BODY
        assert reader.read(message_id(1)) == BODY
    writer.barrier()
    assert reader.read(message_id(1)) == BODY
    assert node.directory_rows() == 0


def test_s2_batch_is_readable_by_all_before_the_server_has_seen_it(node: StoreNode) -> None:
    writer, reader = node.client(), node.client()
    reader.set_other(writer)
    bodies = [b"%08d" % i for i in range(1000)]
    with Paused(node):
        horizon = writer.core.write_batch(message_id(5), bodies, SYNCED, True)
        assert node.directory_rows() == 16  # one for each group of 64 counters
        for i in (0, 1, 500, 999):
            assert writer.read(message_id(5 + i)) == bodies[i]
            assert reader.read(message_id(5 + i)) == bodies[i]
        assert reader.read(message_id(4)) is None
        assert reader.read(message_id(1005)) is None
    writer.wait(horizon)
    assert node.directory_rows() == 0
    assert [i for i in range(1000) if reader.read(message_id(5 + i)) != bodies[i]] == []
    wait_until(lambda: node.get("messages") == 1000)


def test_s2_batch_over_messages_that_are_there_gives_each_a_reference(node: StoreNode) -> None:
    client = node.client()
    client.write([(message_id(i), BODY) for i in range(10, 20)])
    client.wait(client.core.write_batch(message_id(0), [b"other"] * 30, SYNCED, True))
    wait_until(lambda: node.get("messages") == 30)
    assert client.read(message_id(15)) == BODY  # the first payload wins
    client.remove([message_id(i) for i in range(30)])
    assert [i for i in range(30) if client.contains(message_id(i))] == list(range(10, 20))


def test_s2_several_clients_write_one_id_it_is_stored_once(node: StoreNode) -> None:
    clients = [node.client() for _ in range(3)]
    for i, client in enumerate(clients):
        client.write([(message_id(1), BODY + b"%d" % i)])
    assert on_disk(node) == 1
    assert node.counted("messages") == 1
    for client in clients:
        assert client.read(message_id(1)) == BODY + b"0"  # the first payload wins
        client.remove([message_id(1)])
    assert not clients[0].contains(message_id(1))
    assert clients[0].read(message_id(1)) is None
    wait_until(lambda: node.get("messages") == 0)


# -- rules S3, S4: flying ---------------------------------------------------------------------------------------------


def test_s4_write_and_remove_in_flight_never_reach_the_disk_and_are_confirmed(node: StoreNode) -> None:
    client = node.client()
    client.write([(message_id(0), b"another")])
    written = node.counted("written_n")
    with Paused(node):
        horizon = client.core.write_many([(message_id(i), BODY) for i in range(1, 101)], SYNCED, True)
        _horizon, eliminated = client.core.remove([message_id(i) for i in range(1, 101)])
        assert eliminated == 100
        assert client.read(message_id(1)) is None
    client.wait(horizon, SYNCED)
    assert client.core.wait("head", horizon, 10**10)
    assert not client.contains(message_id(1))
    wait_until(lambda: node.get("eliminated_n") == 100)
    assert node.counted("written_n") == written
    assert on_disk(node) == 0
    assert node.directory_rows() == 0


def test_s4_removes_eliminate_single_messages_of_a_batch_in_flight(node: StoreNode) -> None:
    client = node.client()
    client.write([(message_id(999), b"another")])
    written = node.counted("written_n")
    with Paused(node):
        horizon = client.core.write_batch(message_id(0), [BODY] * 100, SYNCED, True)
        _horizon, eliminated = client.core.remove([message_id(i) for i in range(0, 100, 2)])
        assert eliminated == 50
        assert client.read(message_id(2)) is None
        assert client.read(message_id(3)) == BODY
    client.wait(horizon)
    assert [i for i in range(100) if client.contains(message_id(i))] == list(range(1, 100, 2))
    wait_until(lambda: node.get("written_n") == written + 50)
    assert (on_disk(node), node.counted("eliminated_n"), node.directory_rows()) == (50, 50, 0)


def test_s4_write_remove_write_in_flight_is_one_write(node: StoreNode) -> None:
    client = node.client()
    with Paused(node):
        client.core.write_many([(message_id(1), b"first")], SYNCED, True)
        assert client.core.remove([message_id(1)])[1] == 1
        horizon = client.core.write_many([(message_id(1), BODY)], SYNCED, True)
    client.wait(horizon)
    assert client.read(message_id(1)) == BODY
    assert (on_disk(node, b"first"), on_disk(node), node.counted("messages")) == (0, 1, 1)


def test_s4_remove_write_of_a_stored_message_stays_stored(node: StoreNode) -> None:
    client = node.client()
    client.write([(message_id(1), BODY)])
    with Paused(node):
        client.core.remove([message_id(1)])
        horizon = client.core.write_many([(message_id(1), BODY)], SYNCED, True)
    client.wait(horizon)
    assert client.contains(message_id(1))
    assert client.read(message_id(1)) == BODY
    assert on_disk(node) == 1  # revived, not written again


def test_s4_remove_write_remove_is_one_remove(node: StoreNode) -> None:
    client = node.client()
    client.write([(message_id(1), BODY)])
    with Paused(node):
        assert client.core.remove([message_id(1)])[1] == 0
        client.core.write_many([(message_id(1), BODY)], SYNCED, True)
        assert client.core.remove([message_id(1)])[1] == 1
    client.barrier()
    assert not client.contains(message_id(1))
    assert client.read(message_id(1)) is None


def test_s4_two_writes_one_remove_in_flight_leave_one_reference(node: StoreNode) -> None:
    client = node.client()
    with Paused(node):
        horizon = client.core.write_many([(message_id(1), BODY), (message_id(1), BODY)], SYNCED, True)
        assert client.core.remove([message_id(1)])[1] == 1
    client.wait(horizon)
    assert client.contains(message_id(1))
    client.remove([message_id(1)])
    assert not client.contains(message_id(1))


def test_s4_only_own_writes_are_eliminated(node: StoreNode) -> None:
    writer, other = node.client(), node.client()
    with Paused(node):
        horizon = writer.core.write_many([(message_id(1), BODY)], SYNCED, True)
        assert other.core.remove([message_id(1)])[1] == 0
    writer.wait(horizon)
    other.barrier()


# -- rules S5, S6: references -----------------------------------------------------------------------------------------


def test_s6_references_are_counted_in_a_batch_with_doubles_and_strangers(node: StoreNode) -> None:
    client = node.client()
    client.write([(message_id(1), BODY)] * 3 + [(message_id(2), BODY)])
    client.remove([message_id(1), message_id(9), message_id(1)])
    assert client.contains(message_id(1))
    client.remove([message_id(1), message_id(2), message_id(2)])
    assert not client.contains(message_id(1))
    assert not client.contains(message_id(2))
    wait_until(lambda: (node.get("messages"), node.get("valid_bytes")) == (0, 0))


def test_s5_removed_message_is_revived_without_rewriting_it(node: StoreNode) -> None:
    client, other = node.client(), node.client()
    client.write([(message_id(1), BODY)])
    client.remove([message_id(1)])
    assert client.read(message_id(1)) is None
    other.write([(message_id(1), BODY)])
    assert client.read(message_id(1)) == BODY
    assert on_disk(node) == 1


def test_s12_id_written_again_after_its_file_is_gone_has_the_new_payload(node: StoreNode) -> None:
    client = node.client()
    client.write([(message_id(1), b"old payload")])
    fill(client, 100, 270)
    client.remove([message_id(1)])
    client.remove([message_id(i) for i in range(100, 370)])
    wait_until(lambda: 0 not in node.files())
    client.write([(message_id(1), b"new payload")])
    assert client.read(message_id(1)) == b"new payload"


@pytest.mark.parametrize("aged", [False, True])
def test_s12_id_written_again_with_other_bytes_never_yields_the_old_ones(node: StoreNode, aged: bool) -> None:
    client = node.client()
    client.write([(message_id(i), b"old payload") for i in range(4)])
    if aged:  # no image holds the file any more
        fill(client, 100, 270)
    client.remove([message_id(i) for i in range(3)])
    client.write([(message_id(0), b"new payload"), (message_id(1), b"old payload"), (message_id(2), b"old payloa")])
    assert [client.read(message_id(i)) for i in range(3)] == [b"new payload", b"old payload", b"old payloa"]
    assert on_disk(node, b"old payload") == 4  # 1 was revived
    node.kill()
    node.restart_cold()
    node.start()
    again = node.client()
    assert [again.read(message_id(i)) for i in range(3)] == [b"new payload", b"old payload", b"old payloa"]


# -- rule S9: the end of a client -------------------------------------------------------------------------------------


def die_first(node: StoreNode, client: Client) -> None:
    """The message that overtakes the client's commands; returns when new messages are masked."""
    generation = client.view.generation
    client.announce_death(1 << 40)
    who = {"slot": client.slot, "generation": generation}
    mailbox.post(node.directory, "store", "client_dying", mailbox.PRIORITY_CLIENT, **who, store=0, until=1 << 40)
    probes = iter(range(10**6, 10**9))

    def masked() -> bool:
        sequence = client.core.write_many([(message_id(next(probes)), BODY)], NONE, True) - 1
        client.wait(sequence + 1, NONE)
        return client.core.result(sequence) == PROTOCOL["RESULT_MASKED"]

    wait_until(masked, what="the death point")


def test_s9_dying_client_takes_back_what_it_wrote_and_writes_nothing_new(node: StoreNode) -> None:
    client, other = node.client(), node.client()
    client.write([(message_id(1), BODY), (message_id(2), BODY), (message_id(1), BODY)])
    client.remove([message_id(1)])
    other.write([(message_id(8), BODY)])
    die_first(node, client)
    client.barrier()
    messages = node.counted("messages")
    written = on_disk(node)
    last = client.core.write_many([(message_id(3), BODY), (message_id(2), BODY)], SYNCED, True)
    client.wait(last, NONE)
    assert client.core.result(last - 2) == PROTOCOL["RESULT_MASKED"]  # unknown
    assert client.core.result(last - 1) != PROTOCOL["RESULT_MASKED"]  # one more reference to what is known
    batch = client.core.write_batch(message_id(100), [BODY] * 5, SYNCED, True)
    client.wait(batch, NONE)
    assert client.core.result(batch - 1) == PROTOCOL["RESULT_MASKED"]
    client.remove([message_id(2)])
    client.remove([message_id(1), message_id(2), message_id(3)])
    other.write([(message_id(9), BODY)])
    client.remove([message_id(9)])  # behind the death point: not its own, and not its to take
    assert client.call("OP_STORE_TERMINATE") == OK
    assert [i for i in (1, 2, 3, 8, 9) if other.contains(message_id(i))] == [8, 9]
    assert node.directory_rows() == 0
    assert on_disk(node) == written + 1
    wait_until(lambda: node.get("messages") <= messages)
    client.write([(message_id(3), BODY)])  # it lives on
    assert client.contains(message_id(3))


# -- rule S7: confirms ------------------------------------------------------------------------------------------------


def test_s7_synced_means_written_and_synced(node: StoreNode) -> None:
    client = node.client()
    syncs = node.counted("syncs_n")
    horizon = client.write([(message_id(1), BODY)], SYNCED)
    assert on_disk(node) == 1
    assert client.core.horizon("written") >= horizon
    assert node.get("syncs_n") > syncs or wait_until(lambda: node.get("syncs_n") > syncs)


def test_s7_written_is_handed_to_the_system_without_a_sync(tmp_path: Path) -> None:
    with StoreNode(tmp_path / "node", sync_tick_ms=10_000) as node:  # else it is synced by itself before long
        node.start()
        client = node.client()
        client.barrier()
        syncs = node.counted("syncs_n")
        horizon = client.write([(message_id(1), BODY)], WRITTEN)
        assert on_disk(node) == 1
        assert client.core.wait("head", horizon, 10**10)
        assert client.core.horizon("synced") < horizon
        assert node.counted("syncs_n") == syncs
        client.barrier(SYNCED)
        assert client.core.horizon("synced") > horizon


@pytest.mark.parametrize("flag", [NONE, WRITTEN])
def test_s7_what_nobody_waits_for_is_synced_by_itself(node: StoreNode, flag: int) -> None:
    client = node.client()
    horizon = client.core.write_many([(message_id(1), BODY), (message_id(2), BODY)], flag, True)
    assert client.core.wait("synced", horizon, 10**10), "the write is not synced, and nothing will do it"
    horizon = client.core.command(PROTOCOL["OP_STORE_REMOVE"], flag, bytes(16), [message_id(1)]) + 1
    assert client.core.wait("synced", horizon, 10**10), "the remove is not synced, and nothing will do it"


def test_s7_what_a_client_left_is_synced_by_itself(node: StoreNode) -> None:
    client = node.client()
    syncs = node.counted("syncs_n")
    client.write([(message_id(1), BODY)], WRITTEN)
    client.die()
    wait_until(lambda: node.counted("syncs_n") > syncs)


def test_s7_under_load_too_what_nobody_waits_for_is_synced(tmp_path: Path) -> None:
    with StoreNode(tmp_path / "node", sync_tick_ms=1000) as node:  # longer than a pause of the load below
        node.start()
        client = node.client()
        first = client.core.write_many([(message_id(1), BODY)], NONE, True)
        for n in range(2, 1 << 20):
            if client.core.horizon("synced") >= first:
                break
            client.write([(message_id(n), BODY)], WRITTEN)
            client.remove([message_id(n)], sync=False)
        assert client.core.horizon("synced") >= first


def test_s7_accepted_write_reaches_the_disk_by_itself(node: StoreNode) -> None:
    client = node.client()
    horizon = client.core.write_many([(message_id(1), BODY)], NONE, True)
    assert client.core.wait("written", horizon, 10**10)
    assert on_disk(node) == 1


def test_s7_failed_sync_freezes_the_horizon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warren.engine.store.host import StoreHost

    start = StoreHost.start

    def start_on_a_bad_disk(host: StoreHost) -> None:
        start(host)
        host.core.inject(0, 0, 5)

    monkeypatch.setattr(StoreHost, "start", start_on_a_bad_disk)
    with StoreNode(tmp_path / "node") as node:
        node.start()
        client = node.client()
        horizon = client.core.write_many([(message_id(1), BODY)], SYNCED, True)
        wait_until(lambda: node.get("error") == 5)
        assert node.superblock.server_get(0, "alarms") & CONSTANTS["ALARM_SYNC_FAILED"]
        later = client.core.write_many([(message_id(2), BODY)], WRITTEN, True)
        client.core.command(PROTOCOL["OP_STORE_BARRIER"], SYNCED, bytes(16), [])
        assert client.core.horizon("synced") < horizon
        assert client.core.horizon("head") < later
        # Others still read, and a client that leaves is let go.
        assert client.read(message_id(1)) == BODY
        client.die()
        wait_until(client.swept)
        assert node.stop() == 1
        monkeypatch.undo()
        node.fork()
        assert node.wait_end() == 3  # a restart does not make the disk good


# -- rule S8: roll ----------------------------------------------------------------------------------------------------


def fill(client: Client, first: int, count: int, size: int = 4000) -> None:
    for n in range(first, first + count, 50):
        client.write([(message_id(i), b"%08d" % i + bytes(size - 8)) for i in range(n, min(n + 50, first + count))])


def test_s8_roll_keeps_every_message_readable(node: StoreNode) -> None:
    client = node.client()
    fill(client, 0, 300)
    assert len(node.files()) >= 5
    for i in range(300):
        body = client.read(message_id(i))
        assert body is not None
        assert body[:8] == b"%08d" % i
    rows = node.summary()
    assert [row.file for row in rows] == sorted(row.file for row in rows)
    assert [row.left for row in rows] == [None, *(row.file for row in rows[:-1])]
    assert [row.right for row in rows] == [*(row.file for row in rows[1:]), None]
    assert sum(row.valid_total_size for row in rows) == 300 * (4000 + 57)


def test_s8_empty_files_are_deleted_and_the_others_stay(node: StoreNode) -> None:
    client = node.client()
    fill(client, 0, 450)
    before = node.files()
    client.remove([message_id(i) for i in range(250) if i % 64 != 63])
    gone = [row.file for row in node.summary() if row.valid_total_size == 0]
    client.remove([message_id(i) for i in range(250)])
    wait_until(lambda: node.files()[0] >= before[3], what="deletion of the files without a live record")
    assert not gone or gone[0] not in node.files()
    for i in range(250, 450):
        assert client.read(message_id(i)) is not None
    assert client.read(message_id(1)) is None
    wait_until(lambda: len(node.summary()) <= len(node.files()))


def test_s8_everything_removed_leaves_the_current_file(node: StoreNode) -> None:
    client = node.client()
    fill(client, 0, 300)
    client.remove([message_id(i) for i in range(300)])
    wait_until(lambda: len(node.summary()) == 1)
    wait_until(lambda: len(node.files()) <= 2)  # and the next one, made ahead
    assert not node.summary()[0].replay_free
    assert (node.counted("messages"), node.counted("valid_bytes")) == (0, 0)


# -- rule S10: read ---------------------------------------------------------------------------------------------------


def test_s10_reads_go_on_while_the_server_is_dead(node: StoreNode) -> None:
    client = node.client()
    fill(client, 0, 200)
    horizon = client.core.write_many([(message_id(999), BODY)], NONE, True)
    client.wait(horizon, NONE)
    node.kill()
    for i in range(200):
        assert client.read(message_id(i)) is not None
    assert client.read(message_id(999)) == BODY


def test_s10_damaged_record_is_never_served(node: StoreNode) -> None:
    client = node.client()
    fill(client, 0, 300)
    path = node.folder() / "0.rdq"
    data = path.read_bytes()
    at = data.index(b"%08d" % 3)
    with open(path, "r+b") as file:
        file.seek(at + 100)
        file.write(b"\x55")
    with pytest.raises(OSError, match="cannot be read") as caught:
        client.core.read(message_id(3))
    assert caught.value.errno == 74  # EBADMSG
    assert client.read(message_id(4)) is not None


def test_s10_index_grows_under_readers(node: StoreNode) -> None:
    writer, reader = node.client(), node.client()
    generation = node.get("index_generation")
    for n in range(0, 6000, 500):
        writer.write([(message_id(i, STRANGE), b"%d" % i) for i in range(n, n + 500)])
        assert reader.read(message_id(n, STRANGE)) == b"%d" % n
    assert node.get("index_generation") > generation + 1
    assert [i for i in range(6000) if reader.read(message_id(i, STRANGE)) != b"%d" % i] == []


def test_s10_index_gets_extents_under_readers(node: StoreNode) -> None:
    writer, reader = node.client(), node.client()
    for n in range(0, 6000, 500):
        writer.write([(message_id(i), b"%d" % i) for i in range(n, n + 500)])
        assert reader.read(message_id(n)) == b"%d" % n
    assert node.counted("dense_extents") == 1
    assert [i for i in range(6000) if reader.read(message_id(i)) != b"%d" % i] == []


def test_s10_index_is_cleaned_when_messages_come_and_go(node: StoreNode) -> None:
    client = node.client()
    for n in range(0, 6000, 200):
        client.write([(message_id(i, STRANGE), bytes(2000)) for i in range(n, n + 200)])
        client.remove([message_id(i, STRANGE) for i in range(n, n + 200)])
    client.write([(message_id(1, STRANGE), BODY)])
    assert client.read(message_id(1, STRANGE)) == BODY
    region = posix_open(node.superblock.region_name("index", 0, node.get("index_generation")))
    assert region.size <= 4096 + 64 * 16384
    region.close()


# -- rule S11: contains -----------------------------------------------------------------------------------------------


def test_s11_contains_comes_after_the_removes_before_it(node: StoreNode) -> None:
    client = node.client()
    client.write([(message_id(1), BODY), (message_id(2), BODY)])
    with Paused(node):
        client.core.remove([message_id(1)])
        first = client.core.command(PROTOCOL["OP_STORE_CONTAINS"], 0, message_id(1), [])
        second = client.core.command(PROTOCOL["OP_STORE_CONTAINS"], 0, message_id(2), [])
    client.wait(second + 1, NONE)
    assert client.core.result(first) == PROTOCOL["RESULT_NO"]
    assert client.core.result(second) == PROTOCOL["RESULT_OK"]


# -- the transient store ----------------------------------------------------------------------------------------------


def test_transient_store_serves_and_begins_empty(node: StoreNode) -> None:
    client = node.client(server=1)
    client.write([(message_id(i), b"%d" % i) for i in range(100)], NONE)
    assert client.read(message_id(7)) == b"7"
    client.remove([message_id(7)])
    assert client.read(message_id(7)) is None
    fill(client, 1000, 150)
    assert client.read(message_id(1000)) is not None
    assert node.get("syncs_n", 1) == 0
    node.kill()
    node.start()
    client.open()
    assert client.read(message_id(1)) is None
    client.write([(message_id(1), BODY)], NONE)
    assert client.read(message_id(1)) == BODY


# -- queue workers ----------------------------------------------------------------------------------------------------


def test_worker_holds_one_reference_and_its_blob_stays_with_the_publisher(tmp_path: Path) -> None:
    with StoreNode(tmp_path / "node", workers=1) as node:
        node.start()
        publisher, worker = node.client(), node.client(worker=0)
        worker.set_other(publisher)
        arena = node.superblock.get("client_base_bytes") - node.settings.arena_bytes
        publisher.region.buffer[arena + 64 : arena + 64 + len(BODY)] = BODY
        tag = publisher.view.generation << 16 | publisher.slot + 1
        with Paused(node):
            horizon = worker.core.write_owned(message_id(1), 64, len(BODY), tag, SYNCED)
            worker.core.write_owned(message_id(1), 64, len(BODY), tag, SYNCED)
            assert worker.read(message_id(1)) == BODY
        worker.wait(horizon + 1)
        assert on_disk(node) == 1
        worker.remove([message_id(1)])  # one bit, however often it was written
        assert not publisher.contains(message_id(1))
        # The publisher is gone for good: nothing to copy, and the worker is not to blame.
        gone = (publisher.view.generation + 1) << 16 | publisher.slot + 1
        worker.wait(worker.core.write_owned(message_id(2), 64, len(BODY), gone, SYNCED))
        assert worker.core.evicted() == 0
        assert not publisher.contains(message_id(2))


def test_resync_tells_the_store_what_a_worker_holds(tmp_path: Path) -> None:
    with StoreNode(tmp_path / "node", workers=1) as node:
        node.start()
        worker = node.client(worker=0)
        fill(worker, 0, 200)
        node.kill()
        node.start()
        worker.open()
        held = [message_id(i) for i in range(150, 200)]
        files = node.files()
        worker.remove([message_id(i) for i in range(60)])
        assert set(files) <= set(node.files())  # nothing is deleted before the resync
        assert worker.call("OP_STORE_RESYNC_BEGIN") == PROTOCOL["RESULT_OK"]
        assert worker.call("OP_STORE_RESYNC_IDS", ids=[*held, message_id(7000)]) == PROTOCOL["RESULT_OK"]
        assert worker.core.reply() == b"\1" * 50 + b"\0"
        assert worker.call("OP_STORE_RESYNC_END") == PROTOCOL["RESULT_OK"]
        wait_until(lambda: node.get("messages") == 50)
        assert not worker.contains(message_id(149))
        assert worker.contains(message_id(150))
        wait_until(lambda: files[0] not in node.files())


def test_what_moves_to_another_worker_is_held_all_the_time(tmp_path: Path) -> None:
    """The old worker ends its resync first, and may be read from before the new one has said anything."""
    ids = [message_id(i) for i in range(30)]
    with StoreNode(tmp_path / "node", workers=2) as node:
        node.start()
        old = node.client(worker=1)
        fill(old, 0, 30)
        node.kill()
        node.start()
        old.open()
        new = node.client(worker=0)
        old.call("OP_STORE_RESYNC_BEGIN")
        old.call("OP_STORE_RESYNC_IDS", ids=ids[:10])
        assert old.call("OP_STORE_RESYNC_END") == PROTOCOL["RESULT_OK"]
        old.write([(message_id(100), BODY)])
        assert all(map(new.contains, [*ids, message_id(100)]))
        new.call("OP_STORE_RESYNC_BEGIN")
        new.call("OP_STORE_RESYNC_IDS", ids=ids[10:20])
        assert new.core.reply() == b"\1" * 10
        assert new.call("OP_STORE_RESYNC_END") == PROTOCOL["RESULT_OK"]
        wait_until(lambda: node.get("messages") == 21)
        assert [n for n, id in enumerate(ids) if new.contains(id)] == list(range(20))
        assert new.contains(message_id(100))


def test_a_worker_that_begins_again_is_not_judged_by_the_end_of_another(tmp_path: Path) -> None:
    ids = [message_id(i) for i in range(30)]
    with StoreNode(tmp_path / "node", workers=2) as node:
        node.start()
        one, other = node.client(worker=1), node.client(worker=0)
        fill(one, 0, 30)
        one.call("OP_STORE_RESYNC_BEGIN")
        one.call("OP_STORE_RESYNC_IDS", ids=ids)
        one.call("OP_STORE_RESYNC_END")
        one.call("OP_STORE_RESYNC_BEGIN")  # it was restarted: its marks are gone
        other.call("OP_STORE_RESYNC_BEGIN")
        assert other.call("OP_STORE_RESYNC_END") == PROTOCOL["RESULT_OK"]
        assert all(map(other.contains, ids))
        one.call("OP_STORE_RESYNC_IDS", ids=ids[:5])
        one.call("OP_STORE_RESYNC_END")
        wait_until(lambda: node.get("messages") == 5)


def test_end_of_a_resync_that_began_before_a_restart_counts_for_nothing(tmp_path: Path) -> None:
    with StoreNode(tmp_path / "node", workers=1) as node:
        node.start()
        worker = node.client(worker=0)
        worker.write([(message_id(1), BODY)])
        worker.call("OP_STORE_RESYNC_BEGIN")
        worker.barrier()  # so that `head` passes the BEGIN, which is not executed again then
        wait_until(lambda: worker.core.horizon("head") > 1, what="the head behind the BEGIN")
        node.kill()
        node.start()
        assert worker.call("OP_STORE_RESYNC_END") == PROTOCOL["RESULT_NO"]
        assert worker.contains(message_id(1))


def test_a_worker_that_sleeps_is_woken_by_its_confirms(tmp_path: Path) -> None:
    """It does not sleep in its region as other clients do, but on its server's word; publishers wait for its gates."""
    with StoreNode(tmp_path / "node", workers=2) as node:
        node.start()
        worker = node.client(worker=1)
        for turn in range(20):
            node.superblock.server_set(3, "sleeping", 1)
            worker.write([(message_id(turn), BODY)], SYNCED if turn % 2 else NONE)
            wait_until(lambda: worker.core.horizon("head") == worker.core.horizon("tail"))
            wait_until(lambda: node.get("sleeping", 3) == 0, what="the worker to be woken")
