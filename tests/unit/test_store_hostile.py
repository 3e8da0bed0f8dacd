"""A client whose memory holds nonsense harms itself alone: its link is closed with a reason, the others are served.

Method: raw bytes are put into the rings and link words of a bare client; another one must be served before and after.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.ipc.layout import COMMAND, CONSTANTS, LINK, PAGE_BYTES

from support.store_node import NONE, SYNCED, StoreNode, message_id
from support.waiting import wait_until

OPERATION, BLOB, OWNER, TAIL = (CONSTANTS[f"EVICTED_{name}"] for name in ("OPERATION", "BLOB", "OWNER", "TAIL"))
WRITE, REMOVE = CONSTANTS["OP_STORE_WRITE"], CONSTANTS["OP_STORE_REMOVE"]
FLYING = CONSTANTS["FLYING_WRITTEN"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoreNode]:
    with StoreNode(tmp_path / "node") as made:
        made.start()
        yield made


class Attacker:
    """A client that writes its region by hand."""

    def __init__(self, node: StoreNode) -> None:
        self.client = node.client(name="attacker")
        self.node = node
        self.buffer = self.client.region.buffer
        page = PAGE_BYTES
        self.link = page
        self.ring = page + (node.superblock.servers_n * LINK.size + page - 1) // page * page

    def command(self, at: int, **fields: int) -> None:
        for name, value in fields.items():
            COMMAND.pack_into(self.buffer, name, value, self.ring + at * COMMAND.size)

    def tail(self, value: int) -> None:
        LINK.pack_into(self.buffer, "tail", value, self.link)
        self.node.superblock.ring_all()

    def evicted(self, reason: int) -> None:
        wait_until(lambda: self.client.core.evicted() == reason, what=f"eviction for reason {reason}")


def serves(node: StoreNode, n: int) -> None:
    client = node.client()
    client.write([(message_id(n), b"fine")], SYNCED)
    assert client.read(message_id(n)) == b"fine"
    assert client.core.evicted() == 0
    client.close()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"op": 0}, OPERATION),
        ({"op": 255}, OPERATION),
        ({"op": CONSTANTS["OP_PUBLISH"]}, OPERATION),
        ({"op": WRITE, "flying": 0}, OPERATION),
        ({"op": WRITE, "flying": 77}, OPERATION),
        ({"op": CONSTANTS["OP_STORE_RESYNC_END"]}, OPERATION),
        ({"op": WRITE, "flying": FLYING, "length": 0xFFFFFFFF}, BLOB),
        ({"op": WRITE, "flying": FLYING, "length": 128 * 1024 + 1}, BLOB),
        ({"op": WRITE, "flying": FLYING, "length": 100, "body": (1 << 20) - 50}, BLOB),
        ({"op": WRITE, "flying": FLYING, "length": 10, "meta_length": 11}, BLOB),
        ({"op": WRITE, "flying": FLYING, "length": 10, "tag": 0xFFFF}, OWNER),
        ({"op": WRITE, "flying": FLYING, "length": 10, "tag": 1 << 16}, OWNER),
        ({"op": REMOVE, "count": 1, "length": 15}, BLOB),
        ({"op": REMOVE, "count": 1 << 60, "length": 0}, BLOB),
        ({"op": REMOVE, "count": 4097, "length": 4097 * 16}, BLOB),
        ({"op": REMOVE, "count": 4, "length": 64, "body": (1 << 20) - 32}, BLOB),
    ],
)
def test_nonsense_in_a_command_closes_the_link(node: StoreNode, fields: dict[str, int], reason: int) -> None:
    attacker = Attacker(node)
    attacker.command(0, **fields)
    attacker.tail(1)
    attacker.evicted(reason)
    serves(node, 1)
    wait_until(lambda: node.get("evicted_n") == 1)
    attacker.client.die()
    wait_until(attacker.client.swept)


@pytest.mark.parametrize("tail", [1025, 1 << 40, (1 << 64) - 1])
def test_tail_beyond_the_ring_closes_the_link(node: StoreNode, tail: int) -> None:
    attacker = Attacker(node)
    attacker.tail(tail)
    attacker.evicted(TAIL)
    serves(node, 1)


def test_tail_that_falls_back_closes_the_link(node: StoreNode) -> None:
    attacker = Attacker(node)
    attacker.client.write([(message_id(i), b"x") for i in range(5)])
    attacker.tail(2)
    attacker.evicted(TAIL)
    serves(node, 9)


def test_evicted_link_leaves_no_row_in_the_directory(node: StoreNode) -> None:
    attacker = Attacker(node)
    attacker.client.core.write_many([(message_id(1), b"x")], NONE, False)
    attacker.tail((1 << 64) - 1)
    attacker.evicted(TAIL)
    wait_until(lambda: node.directory_rows() == 0)


def test_words_that_the_server_owns_are_not_believed(node: StoreNode) -> None:
    attacker = Attacker(node)
    attacker.client.barrier()  # taken up by the server
    for name in ("processed", "written", "synced", "head"):
        LINK.pack_into(attacker.buffer, name, 1 << 50, attacker.link)
    attacker.client.core.write_many([(message_id(1), b"x")], NONE, True)
    reader = node.client()
    wait_until(lambda: reader.contains(message_id(1)))
    attacker.client.die()
    wait_until(attacker.client.swept)
    serves(node, 2)


def test_random_rings_harm_nobody(node: StoreNode, seed: int) -> None:
    chance = random.Random(seed)
    for n in range(20):
        attacker = Attacker(node)
        for at in range(64):
            start = attacker.ring + at * COMMAND.size
            attacker.buffer[start : start + COMMAND.size] = chance.randbytes(COMMAND.size)
            if chance.random() < 0.9:
                attacker.command(at, op=chance.randrange(1, 8), flying=chance.randrange(4))
            if chance.random() < 0.7:
                attacker.command(at, length=chance.randrange(200), body=chance.randrange(1 << 19), tag=0, meta_length=0)
        attacker.tail(64)
        serves(node, 1000 + n)
        attacker.client.die()
        wait_until(attacker.client.swept)
        attacker.client.free()
        attacker.client.close()
    assert node.get("evicted_n") > 0
