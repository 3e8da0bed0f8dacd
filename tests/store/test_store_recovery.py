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
from typing import Any

import pytest

from warren.engine import _core
from warren.engine.errors import DiskFull
from warren.engine.kernel import frame, quarantine, segment
from warren.engine.kernel.formats import FILE_HEADER, FILE_STORE, KIND_MESSAGE
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.store import scanning
from warren.engine.store.folder import CLEAN, list_path
from warren.engine.store.host import StoreHost
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


def test_what_comes_while_the_server_stops_is_the_next_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the last rounds do after the last sync: the list of the current file names nothing that is not in it."""
    synced, submitted = tmp_path / "synced", tmp_path / "submitted"
    last_rounds = StoreHost._finish_retiring

    def finish(host: StoreHost) -> None:
        synced.touch()
        wait_until(submitted.exists, 20)
        host._handle(host.core.run(0))
        last_rounds(host)

    monkeypatch.setattr(StoreHost, "_finish_retiring", finish)
    with StoreNode(tmp_path / "node") as node:
        node.start()
        client = node.client()
        client.write([(message_id(1), b"before")])
        os.kill(node.pid, signal.SIGTERM)
        wait_until(synced.exists, 20)
        horizon = client.core.write_many([(message_id(2), b"meanwhile")], NONE, True)  # no commit for it alone
        submitted.touch()
        assert node.wait_end() == 0
        (number,) = node.files()
        path = node.folder() / f"{number}.rdq"
        found = segment.scan_file(path, kind=FILE_STORE, node_id=node.node_id, owner=0, file=number)
        listed = _core.decode_list(
            list_path(node.folder(), number).read_bytes(),
            node.node_id,
            0,
            number,
            found.header.salt,
            len(found.data),
        )
        scanned, _reason = _core.scan_list(number, found.header.salt, bytes(found.data))
        assert (listed.messages, listed.damage) == (scanned.messages, [])
        node.start()
        client.wait(horizon, NONE)
        client.refresh()
        assert [client.read(message_id(i)) for i in (1, 2)] == [b"before", b"meanwhile"]


def test_clean_start_reads_no_file(node: StoreNode) -> None:
    write(node, 0, 1000)
    client = node.client()
    client.remove([message_id(i) for i in range(0, 1000, 2)])
    before = [(row.file, row.valid_total_size, row.file_size, row.pin_low, row.pin_high) for row in node.summary()]
    assert node.stop() == 0
    assert (node.folder() / CLEAN).exists()
    again(node)
    assert "started after a clean stop" in node.log_text()
    assert not (node.folder() / CLEAN).exists()
    assert missing(node, range(1, 1000, 2)) == []
    assert len(missing(node, range(0, 1000, 2))) == 500
    after = [(row.file, row.valid_total_size, row.file_size, row.pin_low, row.pin_high) for row in node.summary()]
    live = [row for row in before if row[1]]
    assert after[: len(live)] == before[: len(live)]
    wait_until(lambda: node.get("messages") == 500, what="500 messages")


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


@pytest.mark.parametrize("harm", ["mark gone", "list gone", "list bit", "file gone", "file more", "another node"])
def test_what_does_not_fit_the_clean_mark_is_not_believed(node: StoreNode, harm: str) -> None:
    write(node, 0, 1000)
    node.stop()
    folder = node.folder()
    lost = 0
    if harm == "mark gone":
        (folder / CLEAN).unlink()
    elif harm == "list gone":
        list_path(folder, 0).unlink()
    elif harm == "list bit":
        data = bytearray(list_path(folder, 1).read_bytes())
        data[len(data) // 2] ^= 4
        list_path(folder, 1).write_bytes(data)
    elif harm == "file gone":
        (folder / "1.rdq").unlink()
        lost = 1
    elif harm == "file more":
        made = segment.create(folder / "77.rdq", 1, node.node_id, 0, 77, node.settings.file_bytes)
        os.close(made.fd)
    elif harm == "another node":
        text = (folder / CLEAN).read_text()
        (folder / CLEAN).write_text(text.replace(str(node.node_id), str(node.node_id + 1)))
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
            sequence = client.core.command(PROTOCOL["OP_STORE_BARRIER"], chance.choice([NONE, SYNCED]), bytes(16), [])
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
    wait_until(lambda: node.get("messages") == 900, what="900 messages")
    again_client = node.client()
    again_client.remove([message_id(i) for i in range(100, 1000)])
    wait_until(lambda: node.get("messages") == 0)
    wait_until(lambda: len(node.files()) <= 4)


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
            wait_until(lambda: node.get("messages") == len(alive), what="the messages that are alive")
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
        file.write(frame.encode(KIND_MESSAGE, os.urandom(5000), salt=1)[:4000])
    again(node)
    assert missing(node, range(500)) == []
    assert "torn tail" in node.log_text()
    assert path.stat().st_size == node.settings.file_bytes
    number = int(path.stem)
    found = segment.scan_file(path, kind=1, node_id=node.node_id, owner=0, file=number).frames
    assert found.reason == "end"  # whatever stands behind it is never looked at again


def kill_and_unlist(node: StoreNode, listed: bool) -> None:
    """Kill the server; without lists every file is read by the next start."""
    wait_until(lambda: list_path(node.folder(), 1).exists(), what="the list of file 1")
    node.kill()
    if not listed:
        for path in node.folder().glob("*.lst"):
            path.unlink()


def harm(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def places(node: StoreNode, number: int) -> dict[int, tuple[int, int]]:
    """Where the messages of a file lie: offset and bytes."""
    path = node.folder() / f"{number}.rdq"
    salt = segment.read_header(path, kind=1, node_id=node.node_id, owner=0, file=number).salt
    found, _reason = scanning.scan(path, number, salt)
    return {int.from_bytes(item[0][8:], "big"): item[1:3] for item in found.items()}


def unreadable(node: StoreNode, ids: range) -> set[int]:
    """Messages that cannot be read; what can be read is what was written."""
    client = node.client()
    found = set()
    for i in ids:
        try:
            body = client.read(message_id(i))
        except OSError:  # the record is damaged, and the list said that it is there
            body = None
        if body is None:
            found.add(i)
        else:
            assert body == b"%08d" % i + bytes(1000)
    client.close()
    return found


#: byte of a frame that is flipped: each field of the head, the body, the marker
FIELDS = {
    "size": 5, "id": 20, "version": 24, "kind": 25, "flags": 26, "crc": 29, "epoch": 35, "sequence": 47, "extra": 50,
    "meta": 53, "part": 55, "body": 500, "marker": -1,
}  # fmt: skip


@pytest.mark.parametrize("listed", [True, False])
def test_flipped_bit_in_any_field_costs_one_message(node: StoreNode, listed: bool) -> None:
    write(node, 0, 1000)
    kill_and_unlist(node, listed)
    at = places(node, 1)
    victims = dict(zip(FIELDS, sorted(at)[5:200:7], strict=False))
    for name, victim in victims.items():
        offset, total = at[victim]
        byte = offset + FIELDS[name] % total
        data = (node.folder() / "1.rdq").read_bytes()
        harm(node.folder() / "1.rdq", byte, bytes([data[byte] ^ 1 << byte % 8]))
    again(node)
    assert unreadable(node, range(1000)) == set(victims.values())
    if not listed:
        lines = {(line.start, line.end) for line in quarantine.entries(node.folder())}
        assert {at[victim][0] for victim in victims.values()} <= {start for start, _end in lines}
        assert "1.rdq has damaged bytes" in node.log_text()
    write(node, 5000, 10)
    assert missing(node, range(5000, 5010)) == []


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("kind", ["dropped page", "hole", "truncated", "nonsense"])
def test_larger_damage_costs_what_it_hit(node: StoreNode, kind: str, listed: bool) -> None:
    write(node, 0, 1000)
    kill_and_unlist(node, listed)
    at = places(node, 1)
    middle = at[sorted(at)[len(at) // 2]][0] // 4096 * 4096
    path = node.folder() / "1.rdq"
    if kind == "truncated":
        end = path.stat().st_size
        os.truncate(path, middle)
    else:
        end = middle + (4096 if kind == "dropped page" else 40000)
        harm(path, middle, os.urandom(end - middle) if kind == "nonsense" else bytes(end - middle))
    again(node)
    hit = {i for i, (offset, total) in at.items() if offset < end and offset + total > middle}
    assert unreadable(node, range(1000)) == hit
    if not listed or kind == "truncated":
        assert [line.file for line in quarantine.entries(node.folder())] == ["1.rdq"]
    if listed and kind == "truncated":
        assert quarantine.entries(node.folder())[0].messages == len(hit)
        assert node.counted("lost_n") == len(hit)


def test_damaged_lists_cost_nothing(node: StoreNode) -> None:
    write(node, 0, 1000)
    kill_and_unlist(node, True)
    for number, path in enumerate(sorted(node.folder().glob("*.lst"))):
        size = path.stat().st_size
        harm(path, (number * 37) % size, b"\xa5")
    again(node)
    assert unreadable(node, range(1000)) == set()
    assert quarantine.entries(node.folder()) == []
    lists = {path.name for path in node.folder().glob("*.lst")}
    assert node.stop() == 0
    assert lists <= {path.name for path in node.folder().glob("*.lst")}  # written anew
    node.log.write_text("")
    again(node)
    assert "after a clean stop" in node.log_text()
    assert unreadable(node, range(1000)) == set()


@pytest.mark.parametrize("stopped", [True, False])
def test_missing_file_is_named(node: StoreNode, stopped: bool) -> None:
    write(node, 0, 1000)
    kill_and_unlist(node, True)
    if stopped:
        again(node)
        assert node.stop() == 0
    held = set(places(node, 1))
    (node.folder() / "1.rdq").unlink()
    again(node)
    assert unreadable(node, range(1000)) == held
    (line,) = quarantine.entries(node.folder())
    assert (line.file, line.reason, line.messages) == ("1.rdq", "the file is missing", len(held))
    assert "1.rdq is missing" in node.log_text()


def test_swapped_files_are_set_aside(node: StoreNode) -> None:
    write(node, 0, 1000)
    kill_and_unlist(node, True)
    held = set(places(node, 0)) | set(places(node, 1))
    folder = node.folder()
    (folder / "0.rdq").rename(folder / "x")
    (folder / "1.rdq").rename(folder / "0.rdq")
    (folder / "x").rename(folder / "1.rdq")
    again(node)
    assert unreadable(node, range(1000)) == held
    assert {line.file for line in quarantine.entries(folder)} == {"0.rdq", "1.rdq"}
    assert {path.name for path in (folder / "quarantine").glob("*.rdq")} == {"0.rdq", "1.rdq"}


@pytest.mark.parametrize("kind", ["stranger", "foreign", "other node", "renamed", "header", "empty"])
def test_file_that_is_not_ours_is_set_aside_or_left_alone(node: StoreNode, kind: str) -> None:
    write(node, 0, 300)
    node.kill()
    folder = node.folder()
    path = folder / "90.rdq"
    if kind == "stranger":
        path = folder / "notes.txt"
        path.write_bytes(b"somebody's")
    elif kind == "foreign":
        path.write_bytes(b"somebody's" * 1000)
    elif kind == "other node":
        os.close(segment.create(path, 1, node.node_id + 1, 0, 90, node.settings.file_bytes).fd)
    elif kind == "renamed":
        path.write_bytes((folder / "0.rdq").read_bytes())
    elif kind == "header":
        os.close(segment.create(path, 1, node.node_id, 0, 90, node.settings.file_bytes).fd)
        harm(path, 50, b"\xff" * 20)
    else:
        path.write_bytes(b"")
    content = path.read_bytes()
    again(node)
    assert path.name in node.log_text()
    assert missing(node, range(300)) == []
    write(node, 1000, 300)
    assert missing(node, range(1000, 1300)) == []
    place = path if kind == "stranger" else folder / "quarantine" / path.name
    if kind == "empty":  # it was never used, and nothing is lost with it
        assert not place.exists()
    else:
        assert place.read_bytes() == content
    assert path.exists() == (kind == "stranger")
    assert node.stop() == 0
    again(node)
    assert missing(node, range(1000, 1300)) == []


@pytest.mark.parametrize("point", ["start_mark_gone", "start_half", "start_torn", "start_quarantined", "start_applied"])
def test_killed_starts_lead_to_the_same_state(node: StoreNode, point: str) -> None:
    write(node, 0, 600)
    client = node.client()
    client.remove([message_id(i) for i in range(0, 600, 3)])
    client.close()
    alive = {i for i in range(600) if i % 3}
    node.kill()
    path, end = last_used(node)
    harm(path, end, frame.encode(KIND_MESSAGE, os.urandom(5000), salt=1)[:4000])
    (node.folder() / "90.rdq").write_bytes(b"foreign" * 1000)
    for _ in range(3):
        node.restart_cold()
        node.superblock.arm_crash(point)
        node.fork()
        try:
            code = node.wait_end()
        except AssertionError:
            node.kill()
            raise
        assert code == -signal.SIGKILL
        if point in ("start_torn", "start_quarantined"):
            break  # it is done once
    again(node)
    assert unreadable(node, range(600)) == set(range(600)) - alive
    wait_until(lambda: node.get("messages") == len(alive), what="the messages that are alive")


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


def test_second_store_server_waits_until_the_first_is_dead(node: StoreNode) -> None:
    first, epoch = node.pid, node.epoch
    node.fork()
    second, node.pid = node.pid, first
    wait_until(
        lambda: f"waits for process {first} of an earlier node" in node.log_text(), 20, what="the second to say so"
    )
    node.superblock.server_set(0, "state", CONSTANTS["SERVER_READY"])
    write(node, 0, 10)
    assert node.epoch == epoch
    node.kill()
    node.pid = second
    wait_until(lambda: node.epoch > epoch, 20, what="the second to serve")
    write(node, 10, 20)


# -- full disk --------------------------------------------------------------------------------------------------------


def test_full_disk_lets_writes_wait_and_goes_on_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "the disk is full"
    create = segment.create

    def refuse(path: Path, kind: int, node_id: int, owner: int, file: int, size: int, **more: Any) -> segment.Created:
        if full.exists():
            raise DiskFull(f"cannot make {path}: no space")
        return create(path, kind, node_id, owner, file, size, **more)

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
        client.wait(horizon, NONE)
        assert missing(node, range(1000, 1800)) == []
        wait_until(
            lambda: not node.superblock.server_get(0, "alarms") & CONSTANTS["ALARM_DISK"], what="the end of the alarm"
        )
