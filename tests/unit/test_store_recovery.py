"""How the store starts: after a clean stop without reading, after a kill exactly once, after damage with the rest.

Method: a real server process that is stopped, killed, or given a directory that was changed in between. Which message
must be there is known from what was confirmed; how often, from one remove per write, after which nothing may be left.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine import _core, recovery, segment
from warren.engine.errors import DiskFull
from warren.engine.formats import FILE_HEADER
from warren.ipc.layout import CONSTANTS

from support.store_node import NONE, SYNCED, WRITTEN, StoreNode, message_id
from support.waiting import wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoreNode]:
    with StoreNode(tmp_path / "node") as made:
        made.start()
        yield made


def write(node: StoreNode, first: int, count: int, size: int = 1000) -> None:
    client = node.client()
    for n in range(first, first + count, 100):
        client.write([(message_id(i), b"%08d" % i + bytes(size)) for i in range(n, min(n + 100, first + count))])
    client.close()


def missing(node: StoreNode, ids: range) -> list[int]:
    client = node.client()
    found = [i for i in ids if (client.read(message_id(i)) or b"")[:8] != b"%08d" % i]
    client.close()
    return found


def again(node: StoreNode) -> None:
    """A cold start: everything in shared memory is new."""
    node.restart_cold()
    node.start()


# -- clean ------------------------------------------------------------------------------------------------------------


def test_clean_start_reads_no_file(node: StoreNode) -> None:
    write(node, 0, 1000)
    client = node.client()
    client.remove([message_id(i) for i in range(0, 1000, 2)])
    before = [(row.file, row.valid_total_size, row.file_size, row.pin_low, row.pin_high) for row in node.summary()]
    assert node.stop() == 0
    assert (node.folder() / recovery.CLEAN).exists()
    again(node)
    assert "started from its snapshot" in node.log_text()
    assert not (node.folder() / recovery.CLEAN).exists()
    assert missing(node, range(1, 1000, 2)) == []
    assert len(missing(node, range(0, 1000, 2))) == 500
    after = [(row.file, row.valid_total_size, row.file_size, row.pin_low, row.pin_high) for row in node.summary()]
    live = [row for row in before if row[1]]
    assert after[: len(live)] == before[: len(live)]
    assert node.get("messages") == 500


def test_clean_stop_executes_and_syncs_what_was_submitted(node: StoreNode) -> None:
    client = node.client()
    os.kill(node.pid, signal.SIGSTOP)
    client.core.write_many([(message_id(i), b"%08d" % i) for i in range(500)], NONE, True)
    os.kill(node.pid, signal.SIGTERM)
    os.kill(node.pid, signal.SIGCONT)
    assert node.wait_end() == 0
    assert client.core.horizon("head") == 500
    again(node)
    assert missing(node, range(500)) == []


def test_drain_ends_the_server_when_no_worker_is_left(node: StoreNode) -> None:
    write(node, 0, 10)
    node.superblock.set_state(CONSTANTS["NODE_DRAINING"])
    node.superblock.ring_all()
    assert node.wait_end() == 0
    names = [name for name in os.listdir("/dev/shm") if f"{node.node_id:012x}" in name]
    assert names == [f"warren-{node.node_id:012x}-super"]
    again(node)
    assert missing(node, range(10)) == []


@pytest.mark.parametrize(
    "harm", ["mark gone", "snapshot gone", "snapshot bit", "file gone", "file more", "another node"]
)
def test_snapshot_that_does_not_fit_is_not_used(node: StoreNode, harm: str) -> None:
    write(node, 0, 1000)
    node.stop()
    folder = node.folder()
    lost = 0
    if harm == "mark gone":
        (folder / recovery.CLEAN).unlink()
    elif harm == "snapshot gone":
        (folder / recovery.SNAPSHOT).unlink()
    elif harm == "snapshot bit":
        data = bytearray((folder / recovery.SNAPSHOT).read_bytes())
        data[len(data) // 2] ^= 4
        (folder / recovery.SNAPSHOT).write_bytes(data)
    elif harm == "file gone":
        (folder / "1.rdq").unlink()
        lost = 1
    elif harm == "file more":
        made = segment.create(folder / "77.rdq", 1, node.node_id, 0, 77, node.settings.file_bytes)
        os.close(made.fd)
    elif harm == "another node":
        text = (folder / recovery.CLEAN).read_text()
        (folder / recovery.CLEAN).write_text(text.replace(str(node.node_id), str(node.node_id + 1)))
    again(node)
    assert "by reading" in node.log_text()
    assert bool(missing(node, range(1000))) == bool(lost)
    write(node, 2000, 10)
    assert missing(node, range(2000, 2010)) == []


# -- killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.crash
def test_killed_server_executes_what_its_clients_submitted_exactly_once(tmp_path: Path, seed: int) -> None:
    """Confirmed or not: everything a living client submitted is there once. One remove per write leaves nothing."""
    chance = random.Random(seed)
    with StoreNode(tmp_path / "node") as node:
        node.start()
        clients = [node.client() for _ in range(2)]
        number = 0
        for _ in range(12):
            written: list[list[int]] = []
            horizons = []
            for client in clients:
                count = chance.randrange(1, 300)
                mine = list(range(number, number + count))
                number += count
                client.refresh()
                flags = chance.choice([NONE, WRITTEN, SYNCED])
                horizons.append(client.core.write_many([(message_id(i), b"%08d" % i) for i in mine], flags, True))
                written.append(mine)
            deadline = time.monotonic() + chance.random() * 0.002
            while time.monotonic() < deadline:
                pass
            node.kill()
            node.start()
            for client, horizon in zip(clients, horizons, strict=True):
                client.refresh()
                client.wait(horizon, NONE)
                client.barrier()
            everything = [i for mine in written for i in mine]
            assert [i for i in everything if clients[0].read(message_id(i)) != b"%08d" % i] == []
            # Whoever wrote twice would be seen here.
            for client, mine in zip(clients, written, strict=True):
                client.remove([message_id(i) for i in mine])
            wait_until(lambda: node.get("messages") == 0, what="nothing left")


@pytest.mark.crash
def test_killed_server_forgets_no_remove_and_repeats_none(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with StoreNode(tmp_path / "node") as node:
        node.start()
        client = node.client()
        for turn in range(8):
            ids = [message_id(i, 100 + turn) for i in range(200)]
            client.write([(id, b"x") for id in ids] * 3)
            client.core.remove(ids)
            sequence = client.core.command(CONSTANTS["OP_STORE_BARRIER"], chance.choice([NONE, SYNCED]), bytes(16), [])
            if chance.random() < 0.5:
                client.wait(sequence + 1, NONE)
            node.kill()
            node.start()
            client.refresh()
            client.barrier()
            client.remove(ids)
            assert client.contains(ids[0])
            assert client.contains(ids[-1])
            client.remove(ids)
            assert not client.contains(ids[0])
            wait_until(lambda: node.get("messages") == 0, what="nothing left")


@pytest.mark.crash
def test_everything_killed_keeps_what_was_confirmed(node: StoreNode) -> None:
    write(node, 0, 1000)
    client = node.client()
    client.remove([message_id(i) for i in range(100)])
    node.kill()
    again(node)
    assert missing(node, range(100, 1000)) == []
    assert len(missing(node, range(100))) == 100
    assert node.get("messages") == 900
    again_client = node.client()
    again_client.remove([message_id(i) for i in range(100, 1000)])
    wait_until(lambda: node.get("messages") == 0)
    wait_until(lambda: len(node.files()) <= 2)


@pytest.mark.crash
def test_dead_client_of_a_dead_server_is_executed_by_the_next_one(node: StoreNode) -> None:
    victim, other = node.client(), node.client()
    os.kill(node.pid, signal.SIGSTOP)
    victim.core.write_many([(message_id(1), b"submitted")], NONE, True)
    victim.die()
    node.kill()
    node.start()
    wait_until(victim.swept)
    assert other.read(message_id(1)) == b"submitted"


@pytest.mark.crash
def test_removed_messages_stay_removed_when_files_are_deleted_between_kills(tmp_path: Path, seed: int) -> None:
    """REMOVE frames in one file speak of messages in another: neither may go in an order that brings a message back."""
    chance = random.Random(seed)
    alive: dict[int, bytes] = {}
    with StoreNode(tmp_path / "node") as node:
        node.start()
        number = 0
        for _ in range(10):
            client = node.client()
            for _ in range(chance.randrange(3, 9)):
                fresh = range(number, number + chance.randrange(20, 100))
                number = fresh.stop
                bodies = {i: b"%08d" % i + bytes(chance.randrange(3000)) for i in fresh}
                client.write([(message_id(i), body) for i, body in bodies.items()])
                alive.update(bodies)
                gone = [i for i in alive if chance.random() < 0.55]
                client.remove([message_id(i) for i in gone])
                for i in gone:
                    del alive[i]
            client.close()
            node.kill()
            again(node)
            assert node.get("messages") == len(alive)
            reader = node.client()
            assert [i for i, body in alive.items() if reader.read(message_id(i)) != body] == []
            reader.close()


# -- damage -----------------------------------------------------------------------------------------------------------


def last_used(node: StoreNode) -> tuple[Path, int]:
    """The file that was written last, and where its records end."""
    for number in reversed(node.files()):
        path = node.folder() / f"{number}.rdq"
        found = segment.scan_file(path, kind=1, node_id=node.node_id, owner=0, file=number)
        if found.frames.packed:
            return path, found.frames.end
    raise AssertionError("no file was written")


def test_torn_tail_is_cut(node: StoreNode) -> None:
    write(node, 0, 500)
    node.kill()
    path, end = last_used(node)
    with open(path, "r+b") as file:
        file.seek(end)
        file.write(os.urandom(5000))
    again(node)
    assert missing(node, range(500)) == []
    assert "torn tail" in node.log_text()
    assert path.read_bytes()[end : end + 5000] == bytes(5000)
    assert path.stat().st_size == node.settings.file_bytes


def test_damage_in_the_middle_is_reported_and_the_rest_is_served(node: StoreNode) -> None:
    write(node, 0, 1000)
    node.kill()
    path = node.folder() / "1.rdq"
    data = path.read_bytes()
    with open(path, "r+b") as file:
        file.seek(len(data) // 2)
        file.write(bytes(100))
    again(node)
    lost = missing(node, range(1000))
    assert 0 < len(lost) < 250
    assert lost == list(range(lost[0], lost[0] + len(lost)))
    assert "1.rdq has bytes at" in node.log_text()
    assert path.read_bytes()[: len(data) // 2] == data[: len(data) // 2]
    write(node, 5000, 10)
    assert missing(node, range(5000, 5010)) == []


@pytest.mark.parametrize("harm", ["foreign", "other node", "renamed", "header bit", "empty"])
def test_file_that_is_not_ours_is_left_alone(node: StoreNode, harm: str) -> None:
    write(node, 0, 300)
    node.kill()
    folder = node.folder()
    path = folder / "90.rdq"
    if harm == "foreign":
        path = folder / "notes.txt"
        path.write_bytes(b"somebody's")
    elif harm == "other node":
        os.close(segment.create(path, 1, node.node_id + 1, 0, 90, node.settings.file_bytes).fd)
    elif harm == "renamed":
        path.write_bytes((folder / "0.rdq").read_bytes())
    elif harm == "header bit":
        os.close(segment.create(path, 1, node.node_id, 0, 90, node.settings.file_bytes).fd)
        with open(path, "r+b") as file:
            file.seek(50)
            file.write(b"\xff")
    else:
        path.write_bytes(b"")
    content = path.read_bytes()
    again(node)
    assert path.name in node.log_text()
    assert missing(node, range(300)) == []
    write(node, 1000, 300)
    assert missing(node, range(1000, 1300)) == []
    assert path.read_bytes() == content
    assert node.stop() == 0
    again(node)
    assert missing(node, range(1000, 1300)) == []


def test_newer_format_is_refused_and_not_tried_again(node: StoreNode) -> None:
    write(node, 0, 10)
    node.kill()
    path = node.folder() / "0.rdq"
    page = bytearray(path.read_bytes()[: FILE_HEADER.size])
    FILE_HEADER.pack_into(page, "version", 2)
    FILE_HEADER.pack_into(page, "crc", _core.crc32c(page[: FILE_HEADER.offset("crc")]))
    with open(path, "r+b") as file:
        file.write(page)
    node.restart_cold()
    node.fork()
    assert node.wait_end() == 3
    assert "format version 2" in node.log_text()
    assert path.exists()


def test_second_store_server_does_not_start(node: StoreNode, monkeypatch: pytest.MonkeyPatch) -> None:
    first = node.pid
    monkeypatch.setattr("warren.workers.store_server.LOCK_WAIT_S", 0.05)
    node.fork()
    second_ended = node.wait_end()
    node.pid = first
    assert second_ended == 1
    node.superblock.server_set(0, "state", CONSTANTS["SERVER_READY"])
    write(node, 0, 10)


# -- full disk --------------------------------------------------------------------------------------------------------


def test_full_disk_lets_writes_wait_and_goes_on_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "the disk is full"
    create = segment.create

    def refuse(path: Path, kind: int, node_id: int, owner: int, file: int, size: int) -> segment.Created:
        if full.exists():
            raise DiskFull(f"cannot make {path}: no space")
        return create(path, kind, node_id, owner, file, size)

    monkeypatch.setattr(segment, "create", refuse)
    with StoreNode(tmp_path / "node") as node:
        node.start()
        write(node, 0, 10)
        full.touch()
        client = node.client()
        horizon = 0
        for n in range(1000, 1800, 100):  # more than the current and the prepared file take
            horizon = client.core.write_many(
                [(message_id(i), b"%08d" % i + bytes(1000)) for i in range(n, n + 100)], SYNCED, True
            )
        wait_until(lambda: node.superblock.server_get(0, "alarms") & CONSTANTS["ALARM_DISK"], what="the alarm")
        assert not client.core.wait("synced", horizon, 50_000_000)
        other = node.client()
        assert other.read(message_id(5)) is not None
        assert other.contains(message_id(5))
        full.unlink()
        client.wait(horizon)
        assert missing(node, range(1000, 1800)) == []
        wait_until(
            lambda: not node.superblock.server_get(0, "alarms") & CONSTANTS["ALARM_DISK"], what="the end of the alarm"
        )
