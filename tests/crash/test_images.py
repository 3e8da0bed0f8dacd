"""Crash images: a client dies between any two instructions of an operation, and the servers make the right thing of it.

Goal: an operation happened wholly or not at all (the raise of `tail` decides), nothing of it stays behind in directory,
ring or slots, and others can work on the same ids before the server has seen anything.
Method: tools/crash/stepper.c single-steps the core's own code over a dump of a real client's memory. Each image that
differs from the one before is put into a fresh client of a real store server (or a queue worker's engine), which then
dies.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine.kernel.protocol import PROTOCOL
from warren.ipc import _core as atomics
from warren.ipc import layout
from warren.ipc.layout import COMMAND, LINK, PAGE_BYTES, SUPERBLOCK_BYTES
from warren.ipc.region import posix_open
from warren.tools.crash.images import Dump, Image, Stepped, Stepper, SteppingForbidden

from support import queue_probe
from support.store_node import SYNCED, Client, StoreNode
from support.waiting import wait_until

pytestmark = pytest.mark.crash

STORE = layout.SERVER_STORE_PERSISTENT
FLYING, ELIMINATED = PROTOCOL["FLYING_WRITTEN"], PROTOCOL["FLYING_ELIMINATED"]
IDS = {letter: letter.encode() * 16 for letter in "abc"}
BODIES = {letter: letter.encode() * 100 for letter in "abcde"}
#: counter of the first id of a batch: its five ids lie in two groups of the directory
BATCH_FROM = 62
#: what has happened before a client does this
BEFORE = {"remove": "a", "contains": "a", "barrier": "a", "terminate": "a"}
#: how many outcomes an operation has, and fewest images of it
OUTCOMES = {"batch_eliminate": 3, "read": 1, "contains": 1, "barrier": 1, "terminate": 1, "batch_part": 3}
IMAGES_MIN = {"eliminate": 2, "batch_eliminate": 3, "read": 1, "contains": 3, "barrier": 2, "terminate": 2}
COMMANDS = ("write", "write_many", "eliminate", "remove", "read", "contains", "barrier", "terminate")
BATCHES = ("batch", "batch_eliminate", "batch_part")
SMALL = {
    "ring_records": 64,
    "arena_bytes": 65536,
    "message_bytes_max": 16384,
    "directory_rows": 1024,
    "dense_blocks": 64,
}


@pytest.fixture(scope="module")
def stepper(tmp_path_factory: pytest.TempPathFactory) -> Stepper:
    try:
        return Stepper(tmp_path_factory.mktemp("stepper"))
    except SteppingForbidden as reason:
        pytest.skip(str(reason))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoreNode]:
    with StoreNode(tmp_path / "node", **SMALL) as made:
        made.start()
        yield made


def step(stepper: Stepper, dump: Dump, operation: str) -> Stepped:
    """Step an operation; skip where the kernel forbids it."""
    try:
        stepped = stepper.run(dump, operation)
    except SteppingForbidden as reason:
        pytest.skip(str(reason))
    print(f"{operation}: {stepped.instructions} instructions, {len(stepped.images)} images")
    assert stepped.instructions > 20
    assert len(stepped.images) >= IMAGES_MIN.get(operation, 6)
    return stepped


def ids_of(operation: str, dump: Dump) -> dict[str, bytes]:
    """The ids that an operation is about, by the letter of their bodies."""
    if operation not in BATCHES:
        return IDS
    epoch = dump.client_epoch.to_bytes(8, "big")
    return {letter: epoch + (BATCH_FROM + at).to_bytes(8, "big") for at, letter in enumerate("abcde")}


# -- the store -------------------------------------------------------------------------------------------------------


def link_word(buffer: memoryview, name: str, server: int = STORE) -> int:
    return atomics.load64(buffer, PAGE_BYTES + server * LINK.size + LINK.offset(name))


def first_record(buffer: memoryview, servers_n: int, name: str) -> int:
    """A field of the first record of the ring to the persistent store."""
    at = PAGE_BYTES + (servers_n * LINK.size + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
    return int(COMMAND.unpack(buffer, name, at))


class Directory:
    """The store's directory, mapped for writing."""

    def __init__(self, node: StoreNode) -> None:
        name = node.superblock.region_name("directory", STORE, node.get("generation"))
        self.region = posix_open(name, writable=True)

    def __enter__(self) -> memoryview:
        return self.region.buffer

    def __exit__(self, *_: object) -> None:
        self.region.close()


class Stopped:
    """While it lasts the server does not run."""

    def __init__(self, node: StoreNode) -> None:
        self.node = node

    def __enter__(self) -> None:
        os.kill(self.node.pid, signal.SIGSTOP)
        wait_until(lambda: Path(f"/proc/{self.node.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")

    def __exit__(self, *_: object) -> None:
        if self.node.pid:
            os.kill(self.node.pid, signal.SIGCONT)


def fresh_client(node: StoreNode) -> Client:
    """A client whose link the server has taken up."""
    client = node.client()
    wait_until(lambda: link_word(client.region.buffer, "server_epoch"))
    return client


def dump_of(node: StoreNode, client: Client) -> Dump:
    with Directory(node) as directory:
        return Dump(
            bytes(node.superblock.buffer[:SUPERBLOCK_BYTES]),
            bytes(client.region.buffer),
            bytes(directory),
            client.slot,
            client.view.generation,
            client.view.client_epoch,
        )


def apply(node: StoreNode, client: Client, dump: Dump, image: Image) -> None:
    """Make the client's memory what the image says. Its slot must be the dump's: directory rows name it."""
    assert client.slot == dump.slot
    parts = dump.split(image)
    for offset, data in parts["region"]:
        client.region.buffer[offset : offset + len(data)] = data
    with Directory(node) as directory:
        for offset, data in parts["directory"]:
            directory[offset : offset + len(data)] = data


def end_client(node: StoreNode, client: Client) -> None:
    wait_until(client.swept, what="the sweep")
    client.free()
    client.close()


def flying_in_batch(client: Client, node: StoreNode) -> list[int]:
    """The flying words of the batch that the client's first record is."""
    buffer = client.region.buffer
    arena = len(buffer) - node.settings.arena_bytes
    at = arena + first_record(buffer, node.superblock.servers_n, "body") % node.settings.arena_bytes
    return [atomics.load32(buffer, at + 4 * i) for i in range(5)]


def expected(operation: str, client: Client, node: StoreNode) -> tuple[int, set[str]]:
    """(raised tail, letters that must be there once the server has executed what was submitted)."""
    tail = link_word(client.region.buffer, "tail")
    if operation in ("write", "batch"):
        assert tail in (0, 1)
        return tail, set("abcde" if operation == "batch" else "a") if tail else set()
    if operation == "write_many":
        assert tail in (0, 3), "several writes are submitted at once, or not at all"
        return tail, set("abc") if tail else set()
    if operation in ("eliminate", "read"):
        servers = node.superblock.servers_n
        assert tail == 1, "an eliminated pair needs no command"
        gone = first_record(client.region.buffer, servers, "flying") == ELIMINATED
        assert not (gone and operation == "read")
        return tail, set() if gone else set("a")
    if operation in ("batch_eliminate", "batch_part"):
        assert tail == 1 if operation == "batch_eliminate" else tail in (1, 2)
        words = flying_in_batch(client, node)
        assert [words[at] for at in (0, 2, 4)] == [FLYING] * 3
        return tail, {letter for letter, word in zip("abcde", words, strict=True) if word != ELIMINATED}
    assert tail in (0, 1)
    if operation in ("contains", "barrier", "terminate"):
        return tail, set("a")
    assert operation == "remove"
    return tail, set() if tail else set("a")


def copies(node: StoreNode, letters: set[str]) -> int:
    """How often the bodies of these letters lie in the files."""
    files = [(node.folder() / f"{n}.rdq").read_bytes() for n in node.files()]
    return sum(data.count(BODIES[letter]) for data in files for letter in letters)


def prepared_image(node: StoreNode, operation: str, other: Client) -> Client:
    """A client in the state in which the operation begins."""
    if operation in BEFORE:
        other.write([(IDS["a"], BODIES["a"])])
    return fresh_client(node)


def check_gone(other: Client, ids: dict[str, bytes], letters: set[str]) -> None:
    """Remove what is there, once each, and see that nothing is left."""
    if letters:
        other.remove([ids[letter] for letter in sorted(letters)])
    for id in ids.values():
        assert not other.contains(id)


@pytest.mark.parametrize("operation", [*COMMANDS, *BATCHES])
def test_client_dies_at_any_instruction(node: StoreNode, stepper: Stepper, operation: str) -> None:
    other = node.client(name="other")
    client = prepared_image(node, operation, other)
    dump = dump_of(node, client)
    ids = ids_of(operation, dump)
    seen = set()
    # the last image first: what is eliminated must reach the disk for the first time when nothing is
    for image in reversed(step(stepper, dump, operation).images):
        with Stopped(node):
            apply(node, client, dump, image)
            other.set_other(client)
            tail, letters = expected(operation, client, node)
            eliminated = set(ids) - letters
            before = copies(node, eliminated)
            for letter, id in ids.items():  # another process reads before the server has seen anything
                body = other.read(id)
                assert body in (None, BODIES[letter])
                if operation != "remove":
                    assert body is not None or letter not in letters, f"{letter} was submitted and cannot be read"
            client.die()
        seen.add((tail, frozenset(letters)))
        wait_until(client.swept, what=f"the sweep after instruction {image.instruction}")
        assert node.directory_rows() == 0
        assert link_word(client.region.buffer, "head") == link_word(client.region.buffer, "tail")
        for letter, id in ids.items():
            assert other.read(id) == (BODIES[letter] if letter in letters else None)
            assert other.contains(id) == (letter in letters)
        if "eliminate" in operation:
            other.barrier()
            assert copies(node, eliminated) == before, "an eliminated message reached the disk"
        check_gone(other, ids, letters)
        other = renewed(node, other)
        end_client(node, client)
        client = prepared_image(node, operation, other)
    commanded = operation in ("contains", "barrier", "terminate")
    assert len(seen) == (2 if commanded else OUTCOMES.get(operation, 2)), "the images must show it done and not done"


def renewed(node: StoreNode, other: Client) -> Client:
    """A new client in place of one that may hold regions of clients that are gone."""
    other.die()
    end_client(node, other)
    return node.client(name="other")


@pytest.mark.parametrize("operation", ["write", "batch", "batch_eliminate"])
def test_another_process_writes_the_same_id_beside_any_image(node: StoreNode, stepper: Stepper, operation: str) -> None:
    other = node.client(name="other")
    client = fresh_client(node)
    dump = dump_of(node, client)
    ids = ids_of(operation, dump)
    same = {letter: ids[letter] for letter in ("a" if operation == "write" else "abd")}
    for image in step(stepper, dump, operation).images:
        with Stopped(node):
            apply(node, client, dump, image)
            _tail, letters = expected(operation, client, node)
            horizon = other.core.write_many([(id, BODIES[letter]) for letter, id in same.items()], SYNCED, True)
            for letter, id in same.items():
                assert other.read(id) == BODIES[letter]
            client.die()
        other.wait(horizon)
        wait_until(client.swept, what="the sweep")
        both = [ids[letter] for letter in sorted(letters) if letter in same]
        other.remove(both)  # the references of the dead client
        for id in same.values():
            assert other.contains(id)
        other.remove(list(same.values()))
        check_gone(other, ids, letters - set(same))
        assert node.directory_rows() == 0
        end_client(node, client)
        client = fresh_client(node)


@pytest.mark.parametrize(
    "alive", [pytest.param(False, id="both-dead"), pytest.param(True, id="client-lives", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("operation", ["write_many", "eliminate", "batch", "batch_eliminate"])
def test_server_is_killed_beside_any_image(node: StoreNode, stepper: Stepper, operation: str, alive: bool) -> None:
    client = fresh_client(node)
    dump = dump_of(node, client)
    ids = ids_of(operation, dump)
    for image in step(stepper, dump, operation).images:
        with Stopped(node):
            apply(node, client, dump, image)
            tail, letters = expected(operation, client, node)
            if not alive:
                client.die()
            node.kill()
        node.start()
        wait_until(lambda tail=tail, client=client: link_word(client.region.buffer, "head") == tail, what="the replay")
        if alive:
            client.die()
        wait_until(client.swept, what="the sweep")
        assert node.directory_rows() == 0
        other = node.client(name="other")
        for letter, id in ids.items():
            assert other.read(id) == (BODIES[letter] if letter in letters else None)
        check_gone(other, ids, letters)
        end_client(node, client)
        other.die()
        end_client(node, other)
        client = fresh_client(node)


# -- queues ----------------------------------------------------------------------------------------------------------


def peer_dump(probe: queue_probe.Node, peer: queue_probe.Peer) -> Dump:
    superblock = bytes(probe.superblock.buffer[:SUPERBLOCK_BYTES])
    return Dump(superblock, bytes(peer.buffer), bytes(8 * 32), peer.slot, peer.generation, peer.epoch)


def apply_to_peer(peer: queue_probe.Peer, dump: Dump, image: Image) -> None:
    for offset, data in dump.split(image)["region"]:
        peer.buffer[offset : offset + len(data)] = data


def all_messages(worker: queue_probe.Incarnation, probe: queue_probe.Node) -> list[queue_probe.Delivery]:
    """What a new consumer of queue 1 gets; acked."""
    peer = probe.peer(worker)
    peer.credit(1)
    worker.turns(2)
    found = peer.receive(worker)
    for delivery in found:
        peer.ack(1, delivery.sequence)
    worker.turns(2)
    worker.engine.closing(peer.slot)
    worker.until(lambda: worker.finished(peer) or worker.turns())
    probe.peers.remove(peer)
    return found


@pytest.mark.parametrize("worker_dies", [False, True], ids=["client-dies", "both-die"])
def test_publisher_dies_at_any_instruction(tmp_path: Path, stepper: Stepper, worker_dies: bool) -> None:
    probe = queue_probe.Node(tmp_path / "node")
    worker = probe.worker()
    publisher = probe.peer(worker)
    dump = peer_dump(probe, publisher)
    seen = set()
    for image in step(stepper, dump, "publish").images:
        apply_to_peer(publisher, dump, image)
        tail = publisher.get("tail")
        if worker_dies:
            worker.kill()
            worker = probe.worker()
        worker.engine.closing(publisher.slot)
        worker.until(lambda worker=worker, publisher=publisher: worker.finished(publisher) or worker.turns())
        assert publisher.get("head") == tail
        probe.peers.remove(publisher)
        found = all_messages(worker, probe)
        assert [delivery.body for delivery in found] == [BODIES["a"]] * tail
        seen.add(tail)
        publisher = probe.peer(worker)
    worker.kill()
    assert seen == {0, 1}


@pytest.mark.parametrize("worker_dies", [False, True], ids=["client-dies", "both-die"])
def test_consumer_dies_at_any_instruction_of_an_ack(tmp_path: Path, stepper: Stepper, worker_dies: bool) -> None:
    def holding(folder: Path) -> tuple[queue_probe.Node, queue_probe.Incarnation, queue_probe.Peer]:
        probe = queue_probe.Node(folder)
        worker = probe.worker()
        publisher = probe.peer(worker)
        for letter in "abc":
            publisher.publish(1, BODIES[letter])
        worker.until(lambda: publisher.get("synced") == 3)
        consumer = probe.peer(worker)
        consumer.credit(1)
        worker.turns(2)
        received = consumer.receive(worker)
        assert [delivery.sequence for delivery in received] == [0, 1, 2]
        for delivery in received[:2]:  # the third lies ahead
            consumer.hand_out(delivery)
        worker.until(lambda: consumer.get("head") == 1)
        return probe, worker, consumer

    probe, worker, consumer = holding(tmp_path / "first")
    dump = peer_dump(probe, consumer)
    worker.kill()
    seen = set()
    for number, image in enumerate(step(stepper, dump, "settle").images):
        probe, worker, consumer = holding(tmp_path / str(number))
        apply_to_peer(consumer, dump, image)
        acked = consumer.get("tail") == 2
        if worker_dies:
            worker.kill()
            worker = probe.worker()
        worker.engine.closing(consumer.slot)
        worker.until(lambda worker=worker, consumer=consumer: worker.finished(consumer) or worker.turns())
        probe.peers.remove(consumer)
        found = all_messages(worker, probe)
        assert [delivery.body for delivery in found] == ([] if acked else [BODIES[letter] for letter in "abc"])
        # which were handed out the words beside the slots say; a worker that starts does not know what they belong to
        assert [delivery.redelivered for delivery in found] == ([] if acked else [True, True, worker_dies])
        assert consumer.held_slots() == 0 or worker_dies
        seen.add(acked)
        worker.kill()
    assert seen == {False, True}
