"""A topic worker's server without a node, and the client's side of its protocol played by hand.

`TopicNode` is a superblock in memory that children share, and a directory; `TopicNode.life()` is one incarnation of the
worker in this process, `TopicNode.child()` one in a process of its own, which a test may kill. `Appender` is a client.
"""

import mmap
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from warren.engine import _core
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.kernel.protocol import PROTOCOL, TOPIC_ROW, TOPIC_ROWS, TOPIC_ROWS_BYTES
from warren.engine.topics.compaction import Rates
from warren.engine.topics.declared import Changes, Declaration
from warren.engine.topics.names import node_bytes
from warren.engine.topics.retention import Place, Policy
from warren.engine.topics.service import Options, Recovered, TopicService, boot_bytes
from warren.ipc import layout
from warren.ipc.layout import COMMAND, CONSTANTS

from support import queue_probe, topic_tables
from support.heard import Heard
from support.topic_tables import UNIT

SERVER = queue_probe.SERVER_INDEX  #: the last one of queue_probe's superblock
MIB = 1 << 20
OK, NO, ERROR = PROTOCOL["RESULT_OK"], PROTOCOL["RESULT_NO"], PROTOCOL["RESULT_ERROR"]


@dataclass(frozen=True)
class Topic:
    """A declaration, as a catalog has them."""

    id: int
    name: str
    queues: int = 2
    retention_s: float | None = None
    retention_bytes: int | None = None
    compacted: bool = False


class Answer(NamedTuple):
    """What became of a command."""

    result: int
    offset: int
    position: int


class Appender(queue_probe.Peer):
    """A client that appends."""

    def append(
        self, topic: int, queue: int, body: bytes, *, synced: bool = True, properties: dict[str, str] | None = None
    ) -> int:
        """One record; returns the command's number."""
        known = topic_tables.write_properties(properties or {})
        return self._submit("OP_APPEND", topic, queue, known + body, synced, meta_length=len(known))

    def append_later(self, topic: int, queue: int, body: bytes, delay_ms: int, properties: dict[str, str]) -> int:
        """One record that comes after so many milliseconds; returns the command's number."""
        known = topic_tables.write_properties({**properties, "TIMER_DELAY_MS": str(delay_ms)})
        later = PROTOCOL["FLAG_LATER"]
        return self._submit("OP_APPEND", topic, queue, known + body, True, later, meta_length=len(known))

    def prepare(self, topic: int, queue: int, body: bytes, properties: dict[str, str] | None = None) -> int:
        """A half message; returns the command's number."""
        known = topic_tables.write_properties(properties or {})
        half = PROTOCOL["FLAG_HALF"]
        return self._submit("OP_APPEND", topic, queue, known + body, True, half, meta_length=len(known))

    def append_many(self, topic: int, queue: int, bodies: list[bytes], *, synced: bool = True) -> int:
        """A batch; returns the command's number."""
        table = b"".join(struct.pack("<II", len(body), 0) for body in bodies)
        return self._submit("OP_APPEND_MANY", topic, queue, table + b"".join(bodies), synced, count=len(bodies))

    def _submit(self, op: str, topic: int, queue: int, blob: bytes, synced: bool, more: int = 0, **fields: int) -> int:
        flags = more | (PROTOCOL["FLAG_SYNCED"] if synced else 0)
        born = time.time_ns() // 1_000_000
        at = self.blob(blob)
        return self.command(op, flags=flags, queue=topic, row=queue, body=at, length=len(blob), tag=born, **fields)

    def told(self) -> dict[str, Any]:
        """The answer to the last control request."""
        return super().answer()

    def answer(self, sequence: int) -> Answer:  # type: ignore[override] # of another protocol
        """What stands in the command's record."""
        base = self.ring + sequence % self.node.geometry["ring_records"] * COMMAND.size
        offset, position = struct.unpack("<QQ", COMMAND.get_bytes(self.buffer, "id", base))
        return Answer(self.result(sequence), offset, position)


@dataclass
class TopicNode:
    """A directory, a superblock, and what lives on over the worker's deaths."""

    path: Path
    topics: list[Topic] = field(default_factory=lambda: [Topic(1, "flights")])
    log_file_bytes: int = MIB
    ring_bytes: int = MIB // 4
    consume_queue_entries: int = 100
    index_slots: int = 50
    index_entries: int = 200
    delayed_max: int = 1000
    halves_max: int = 1000
    half_outcomes: int = 1000
    half_after_ms: int = 3_600_000
    half_interval_ms: int = 3_600_000
    half_checks: int = 3
    said: Heard = field(default_factory=Heard)
    #: retention of a worker: it looks when it is woken (`Life.retain`)
    policy: Policy = field(default_factory=lambda: Policy(check_s=3600.0, disk=lambda _path: (0, 1)))

    rates: Rates = field(default_factory=Rates)

    def __post_init__(self) -> None:
        self.base = queue_probe.Node(self.path)
        self.superblock = self.base.superblock
        self.superblock.set("topic_server", SERVER)
        self.superblock.set("node_epoch", 1)
        self.folder = TopicsFolder.of(self.path)
        self.folder.log.mkdir(parents=True, exist_ok=True)
        self.appenders: list[Appender] = []

    def appender(self, life: "Life | None" = None) -> Appender:
        """A new client, attached to the worker that runs."""
        found = Appender(self.base, len(self.appenders) + 1, 1000 + len(self.appenders))
        self.appenders.append(found)
        if life is not None:
            life.take_up(found)
        return found

    def tell_catalog(self, topics: list[Topic]) -> None:
        """The catalog says this now."""
        self.topics = topics
        version = self.superblock.get("catalog_version") + 1
        self.superblock.set("catalog_version", version)
        self.superblock.server_set(SERVER, "queues_version", version)
        self.superblock.ring(SERVER)

    def life(self) -> "Life":
        """A worker that has started, and serves by its turns."""
        return Life(self)

    def child(self) -> int:
        """The same in a child process, which serves until it is killed, or told to stop by SIGTERM; its id."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            Life(self).service.serve()
            code = 0
        finally:
            os._exit(code)

    def found_by_key(self, topic: str, key: str) -> list[int]:
        """Positions of the records with a key, the newest first."""
        found: list[int] = []
        for path in sorted(self.folder.index.iterdir(), reverse=True):
            index = topic_tables.Index(self.index_slots, self.index_entries)
            index.file[:] = path.read_bytes()
            found += index.find(topic_tables.key_hash(topic, key))
        return found

    # -- what is on disk ------------------------------------------------------------------------------------------

    def log_bytes(self) -> bytes:
        """All files of the log, one behind the other."""
        return b"".join(path.read_bytes() for path in sorted(self.folder.log.iterdir()))

    def records(self) -> list[dict[str, Any]]:
        """All records of the log but Warren's own."""
        found, data, at = [], self.log_bytes(), 0
        while at < len(data):
            what, size, fields = topic_tables.read(data, at, at)
            if what == "blank":
                at += size
                continue
            if what != "record":
                at = (at // self.log_file_bytes + 1) * self.log_file_bytes  # the rest of a file that is not full
                continue
            assert fields is not None
            if not fields["topic"].startswith("WARREN_SYS_"):
                found.append(fields | {"position": at})
            at += size
        return found

    def record(self, position: int) -> dict[str, Any]:
        """The record at a position of the log."""
        path = self.folder.log / f"{position // self.log_file_bytes * self.log_file_bytes:020d}"
        with open(path, "rb") as file:
            file.seek(position % self.log_file_bytes)
            data = file.read(MIB)
        what, size, fields = topic_tables.read(data, position)
        assert what == "record", f"at {position} is {what}"
        assert fields is not None
        return fields | {"size": size}

    def units(self, topic: str, queue: int, count: int) -> list[tuple[int, int, int]]:
        """The first units of a consume queue: position, size, tags code."""
        folder = self.folder.queues / topic / str(queue)
        data = b"".join(path.read_bytes() for path in sorted(folder.iterdir())) if folder.exists() else b""
        return [UNIT.unpack_from(data, number * UNIT.size) for number in range(count)]

    def bodies(self, topic: str, queue: int, count: int) -> list[bytes]:
        """The bodies of the first records of a queue, each checked against its unit."""
        found = []
        for offset, (position, size, _tags) in enumerate(self.units(topic, queue, count)):
            record = self.record(position)
            assert (record["size"], record["queue_id"], record["queue_offset"]) == (size, queue, offset)
            assert (record["topic"], record["physical_offset"]) == (topic, position)
            found.append(record["body"])
        return found


class Life:
    """One life of the worker."""

    def __init__(self, node: TopicNode) -> None:
        self.node = node
        self.rows = mmap.mmap(-1, TOPIC_ROWS_BYTES)
        self._folder = os.open(node.folder.path, os.O_RDONLY | os.O_DIRECTORY)
        ring = os.memfd_create("ring")
        os.ftruncate(ring, layout.PAGE_BYTES + node.ring_bytes)
        self.server = _core.TopicServer(
            node.superblock.buffer,
            SERVER,
            self._folder,
            ring,
            self.rows,
            node_bytes(node.superblock.node_id),
            boot_bytes(self._folder),
            ring_bytes=node.ring_bytes,
            log_file_bytes=node.log_file_bytes,
            consume_queue_entries=node.consume_queue_entries,
            index_slots=node.index_slots,
            index_entries=node.index_entries,
            spin_us=20,
            tick_ms=20,
            commit_bytes=64 * 1024,
            delayed_max=node.delayed_max,
            halves_max=node.halves_max,
            half_outcomes=node.half_outcomes,
            half_after_ms=node.half_after_ms,
            half_interval_ms=node.half_interval_ms,
            half_checks=node.half_checks,
        )
        self.ring = mmap.mmap(ring, layout.PAGE_BYTES + node.ring_bytes)
        os.close(ring)
        self.service = TopicService(
            self.server,
            Options(
                superblock=node.superblock,
                server=SERVER,
                place=Place(
                    folder=node.folder,
                    log_file_bytes=node.log_file_bytes,
                    ring=self.ring,
                    rows=self.rows,
                    consume_queue_entries=node.consume_queue_entries,
                    index_slots=node.index_slots,
                    index_entries=node.index_entries,
                    ring_bytes=node.ring_bytes,
                ),
                policy=node.policy,
                rates=node.rates,
                load_catalog=lambda: list[Declaration](node.topics),
                follow_catalog=self._follow,
                reached=self._reached,
                say=node.said,
            ),
        )
        try:
            self.recovered: Recovered = self.service.start()
        except BaseException:
            self.release()
            raise
        for appender in node.appenders:
            self.take_up(appender)
        epoch = node.superblock.server_get(SERVER, "epoch") + 1
        self.service.begin(epoch)
        node.superblock.server_set(SERVER, "epoch", epoch)

    def _follow(self, _version: int) -> Changes | None:
        return None

    def _reached(self, point: str) -> None:
        name = point.upper().replace(".", "_")
        self.node.superblock.crash_point(
            CONSTANTS[f"CRASH_{name}" if name.startswith(("RETAIN", "COMPACT")) else f"CRASH_TOPIC_{name}"]
        )

    def take_up(self, appender: Appender) -> None:
        self.service.take_up(appender.slot, appender.generation, appender.epoch, appender.region)

    def until(self, condition: Callable[[], object]) -> None:
        """Serve until something is true. The test's own time limit ends it if it never is."""
        while not condition():
            self.service.turn(5_000_000)

    def row(
        self, topic: int, queue: int, names: tuple[str, ...] = ("minimum", "maximum", "appended")
    ) -> dict[str, int] | None:
        """A row of the shared memory, as readers find it."""
        count = TOPIC_ROWS.unpack(self.rows, "rows_n")
        for number in range(count):
            at = TOPIC_ROWS.size + number * TOPIC_ROW.size
            if TOPIC_ROW.unpack(self.rows, "key", at) == topic << 32 | queue + 1:
                return {name: TOPIC_ROW.unpack(self.rows, name, at) for name in names}
        return None

    def retain(self, times: int = 1) -> None:
        """Let retention look, so many times, and do what it finds to do."""
        left, owed = times, False
        while left or owed:
            before = self.service.retention.looks_n
            self.service.retention.wake()
            self.until(lambda before=before: self.service.retention.looks_n > before)
            left = max(left - 1, 0)
            # another snapshot of what comes later, or of half messages, needs less of the log: the next look finds that
            owed = any(kept.owes for kept in self.service.kept)
            self.until(lambda: not any(kept.owes for kept in self.service.kept))

    def compact(self, times: int = 1) -> None:
        """Let compaction look, and then retention, so many times."""
        for _ in range(times):
            before = self.service.compaction.looks_n
            self.service.compaction.wake()
            self.until(lambda before=before: self.service.compaction.looks_n > before)
            self.retain(2)  # the first one may have begun before

    def delayed(self, topic: int) -> int:
        """How many messages of a topic are to come later, as everybody sees it."""
        for number in range(TOPIC_ROWS.unpack(self.rows, "rows_n")):
            at = TOPIC_ROWS.size + number * TOPIC_ROW.size
            if TOPIC_ROW.unpack(self.rows, "key", at) == topic << 32 | 1:
                return TOPIC_ROW.unpack(self.rows, "delayed", at)
        raise AssertionError(f"topic {topic} has no row")

    def halves(self, topic: int) -> int:
        """How many half messages of a topic are pending, as everybody sees it."""
        found = self.row(topic, 0, ("halves",))
        assert found is not None, f"topic {topic} has no row"
        return found["halves"]

    def maximum(self, topic: int, queue: int) -> int:
        found = self.row(topic, queue)
        assert found is not None, f"topic {topic} has no row for queue {queue}"
        return found["maximum"]

    def stop(self) -> bool:
        """A stop in good order."""
        clean = self.service.stop()
        self._end()
        return clean

    def release(self) -> None:
        """An end without any promise."""
        self.service.release()
        self._end()

    def _end(self) -> None:
        self.rows.close()
        self.ring.close()
        os.close(self._folder)
