"""The files and regions of a topic, made from the tables alone (support/topic_tables.py) in a folder, and who reads
them: no server runs, and no code of ours wrote anything.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from warren.engine import _core
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.kernel.protocol import TOPIC_RING, TOPIC_ROW, TOPIC_ROWS, TOPIC_ROWS_BYTES
from warren.workers.faces.topic_reading import TopicReading

from support import topic_tables as tables

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
COMMIT_BYTES = 40  #: what lies between two records: not looked at


class Place:
    """What a client has open of the topic worker (workers/client/topic_place.py)."""

    def __init__(self, folder: TopicFolder) -> None:
        self._folder = folder
        self.past = False
        self._reader: _core.TopicReader | None = None

    def take(self, topic: TopicDeclaration) -> _core.TopicReader:
        folder = self._folder
        if self._reader is None:
            sizes = (folder.log_bytes, 1 << 16, folder.entries, folder.slots, folder.index_entries)
            self._reader = _core.TopicReader(folder.root, topic.id, topic.name.encode(), *sizes)
            self._reader.begin(folder.ring, folder.rows)
        return self._reader

    def forget(self) -> None:
        """The next read opens all anew."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def give(self, topic: TopicDeclaration, reader: _core.TopicReader) -> None:
        assert reader is self._reader


def _index_name(number: int) -> str:
    """Of the n-th file of the index."""
    return time.strftime("%Y%m%d%H%M%S000", time.gmtime(1_700_000_000 + number))


class TopicFolder:
    """A topic of some queues: `append` writes a record, its unit and its keys, and raises the row's maximum."""

    def __init__(
        self, path: Path, queues: int = 1, name: str = "flights", log_bytes: int = 1 << 16, entries: int = 50
    ) -> None:
        self.path, self.log_bytes, self.entries = path, log_bytes, entries
        self.slots, self.index_entries = 7, 100
        self.topic = TopicDeclaration(7, name, queues)
        self.topics = {7: self.topic}
        self.position = 0
        self.next = [0] * queues
        self.records: list[list[tables.Fields]] = [[] for _queue in range(queues)]
        for below in ("commitlog", "index"):
            (path / below).mkdir(parents=True)
        self.root = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self.ring = bytearray(TOPIC_RING.size + (1 << 16))
        self.rows = bytearray(TOPIC_ROWS_BYTES)
        self._set(8, queues)
        for queue in range(queues):
            self.row(queue, "key", 7 << 32 | queue + 1)
        self._index = tables.Index(self.slots, self.index_entries)
        self._index_n = 0
        self._index_end = self._key_at = 0  #: positions of the last key of the file before, and of the last one
        self.place = Place(self)

    def close(self) -> None:
        self.place.forget()
        os.close(self.root)

    def _set(self, at: int, value: int) -> None:
        self.rows[at : at + 8] = value.to_bytes(8, "little")

    def header(self, field: str, value: int) -> None:
        """Set a field of the rows' header page."""
        size = 4 if TOPIC_ROWS.by_name[field].type == "a32" else 8
        at = TOPIC_ROWS.offset(field)
        self.rows[at : at + size] = value.to_bytes(size, "little")

    def waiters(self) -> int:
        """How many sleep until a commit is shown."""
        at = TOPIC_ROWS.offset("shown_wake")
        return int.from_bytes(self.rows[at : at + 4], "little")

    def succeed(self) -> Place:
        """The regions are a successor's from now on: copies of what they are. Returns the old place."""
        old, self.rows = self.place, bytearray(self.rows)
        self.place = Place(self)
        return old

    def row(self, queue: int, field: str, value: int) -> None:
        """Set a field of a queue's row."""
        self._set(TOPIC_ROWS.size + queue * TOPIC_ROW.size + TOPIC_ROW.offset(field), value)

    def log_file(self, position: int) -> Path:
        return self.path / "commitlog" / f"{position // self.log_bytes * self.log_bytes:020}"

    def queue_file(self, queue: int, offset: int) -> Path:
        begin = offset // self.entries * self.entries * tables.UNIT.size
        return self.path / "consumequeue" / self.topic.name / str(queue) / f"{begin:020}"

    @staticmethod
    def write(path: Path, at: int, data: bytes, size: int) -> None:
        """Bytes into a file, which gets this size."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(size)
            file.seek(at)
            file.write(data)

    def append(
        self, queue: int, body: bytes, stored: int, properties: dict[str, str] | None = None, **fields: Any
    ) -> tables.Fields:
        """One record; its fields."""
        made: tables.Fields = {
            "topic": self.topic.name,
            "body": body,
            "properties": properties or {},
            "queue_id": queue,
            "queue_offset": self.next[queue],
            "physical_offset": 0,
            "flag": 7,
            "sys_flag": 0,
            "born_timestamp": stored - 5,
            "store_timestamp": stored,
            "born_host": HOST,
            "store_host": HOST,
            "reconsume_times": 0,
            "prepared_transaction_offset": 0,
            **fields,
        }
        size = len(tables.write(made))
        if self.position % self.log_bytes + size + 8 > self.log_bytes:
            self.position += self.log_bytes - self.position % self.log_bytes
        made["physical_offset"] = position = self.position
        self.write(self.log_file(position), position % self.log_bytes, tables.write(made), self.log_bytes)
        self.position += size + COMMIT_BYTES
        tag = made["properties"].get("TAGS", "")
        self.unit(queue, self.next[queue], position, size, tables.java_hash(tag))
        for key in dict.fromkeys([made["properties"].get("UNIQ_KEY", ""), *made["properties"].get("KEYS", "").split()]):
            if key:
                self._key(tables.key_hash(self.topic.name, key), position, stored)
        self.next[queue] += 1
        self.records[queue].append(made)
        self.row(queue, "maximum", self.next[queue])
        return made

    def unit(self, queue: int, offset: int, position: int, size: int, code: int) -> None:
        """The unit of a message."""
        data = tables.UNIT.pack(position, size, code)
        self.write(self.queue_file(queue, offset), offset % self.entries * 20, data, self.entries * 20)

    def _key(self, hashed: int, position: int, stored: int) -> None:
        if not self._index.put(hashed, position, stored):
            self._index, self._index_n = tables.Index(self.slots, self.index_entries), self._index_n + 1
            self._index_end = self._key_at
            self._index.put(hashed, position, stored)
        self._key_at = position
        before, name = (_index_name(number) for number in (self._index_n - 1, self._index_n))
        self._index.link(name, before if self._index_n else "", self._index_end)
        (self.path / "index" / name).write_bytes(self._index.file)

    def reading(self, state: int = 0, deserted: bool = False) -> TopicReading:
        """As a client reads it. `state`: the topic worker's. `deserted`: no process of the node is alive."""
        superblock = SimpleNamespace(
            topic_server=2, server_get=lambda _server, _name: state, role_of=lambda _server: "topic_worker"
        )
        core = SimpleNamespace(over=False)
        directory = SimpleNamespace(path=self.path.parent, log_file=lambda role: self.path.parent / role)
        attachment = SimpleNamespace(
            topics=lambda: self.place,
            superblock=superblock,
            forsaken=lambda: False,
            deserted=lambda: deserted,
            core=core,
            directory=directory,
        )
        catalog = SimpleNamespace(topics_by_id=self.topics)
        client: Any = SimpleNamespace(
            attachment=lambda: attachment,
            catalog=lambda: catalog,
            router=lambda: SimpleNamespace(catalog=catalog),
            directory=directory,
        )
        return TopicReading(client, self.topic)
