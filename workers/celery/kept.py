"""Results that are kept in a topic: each is a record under its keys, the newest one counts, all go after a while.

A value that is too large for a record is split: its parts are records under keys of their own, and behind them comes
one under the value's keys that names them.

Crash points
  Killed between the parts: nobody names them; they go as all results do.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from warren.engine._core import Record
from warren.engine.errors import DeclarationMismatch, MessageTooLarge, TopicNotFound
from warren.workers.celery.patience import AWAY, PAUSE_S, TROUBLE, patient
from warren.workers.celery.place import Place
from warren.workers.client.client import Client
from warren.workers.faces.topics import Topic

#: queues of the topic
QUEUES = 4
#: the least time that results are kept
EXPIRES_LEAST_S = 1.0
#: characters of keys that stay as they are
SAFE = "-_.~:+@!$&()*,;=/"
#: records read in one step
READ = 500
#: bytes of a part of a value, and what a record begins with that names parts: NAME, a slash, how many
PART, PARTS = 256 << 10, b"\x00warren.parts\x00"


def key_of(name: bytes | str) -> str:
    """What something is kept under: no spaces, which separate keys, and nothing that is not visible."""
    return quote(name, safe=SAFE)


def split(value: bytes) -> tuple[list[tuple[str, bytes]], bytes]:
    """A value that is too large: its parts with their keys, and the record that names them."""
    name = uuid.uuid4().hex
    parts = [value[at : at + PART] for at in range(0, len(value), PART)]
    return list(zip(part_keys(name, len(parts)), parts, strict=True)), PARTS + f"{name}/{len(parts)}".encode()


def part_keys(name: str, count: int) -> list[str]:
    """The keys of the parts of a value."""
    return [f"warren.part/{name}/{number}" for number in range(count)]


def named_parts(body: bytes) -> list[str]:
    """The keys of the parts that a record names; none: it is the value itself."""
    if not body.startswith(PARTS):
        return []
    name, _slash, count = body[len(PARTS) :].decode().partition("/")
    return part_keys(name, int(count))


class Kept:
    """The topic of a place. Safe for threads and for fork."""

    def __init__(self, place: Place, expires_s: float | None, waits: Callable[[], bool] = lambda: False) -> None:
        """`expires_s`: how long results are kept, if the topic is declared here; None: for ever. `waits`: whether the
        caller of this moment waits for a node that is away, for the place's `node_timeout`."""
        self.place = place
        self.expires_s = expires_s
        self._waits = waits
        self._topics: dict[int, tuple[Client, Topic]] = {}  # of each process

    @property
    def topic(self) -> Topic:
        """The topic; declared with the first use. Raises NodeNotRunning, ClosedError."""
        pid = os.getpid()
        opened = self._topics.get(pid)
        if opened is None or opened[0].closed:  # another user of the process's client may have closed it
            self.place.attach()
            opened = self._topics[pid] = (self.place.client, self._opened())
        return opened[1]

    def _opened(self) -> Topic:
        node, name = self.place.node, self.place.topic
        try:
            return node.topic(name, create=False)
        except TopicNotFound:
            kept = None if self.expires_s is None else max(self.expires_s, EXPIRES_LEAST_S)
            try:
                return node.topic(name, queues=QUEUES, retention_s=kept)
            except DeclarationMismatch:  # another process was first
                return node.topic(name, create=False)

    def append(self, keys: list[str], body: bytes | str, tag: str | None = None) -> None:
        """Another record; it survives every process when this returns, or what the place's durability says."""
        data = body.encode() if isinstance(body, str) else body
        try:
            self._append(data, keys, tag)
        except MessageTooLarge:
            parts, names = split(data)
            for key, part in parts:
                self._append(part, [key], None)
            self._append(names, keys, tag)

    def _append(self, data: bytes, keys: list[str], tag: str | None) -> None:
        durability = self.place.durability or "written"
        self._again(lambda topic: topic.append(data, keys, tag, durability=durability, timeout=self.place.call_timeout))

    def whole(self, body: bytes) -> bytes | None:
        """The value that a record is, or names the parts of; None: there is none, or not all of it any more."""
        parts = [self.find(key, 1) for key in named_parts(body)]
        if not parts:
            return body or None
        return b"".join(found[0].body for found in parts) if all(parts) else None

    def find(self, key: str, limit: int) -> list[Record]:
        """The newest records of a key, the newest first."""
        found: list[Record] = self._again(lambda topic: topic.find(key, limit=limit, damage="skip"))
        return found

    def newest(self, key: str) -> bytes | None:
        """The newest value of a key; None: there is none, or it was taken away."""
        found = self.find(key, 1)
        return self.whole(found[0].body) if found else None

    def wait_for(self, key: str, timeout: float) -> bytes | None:
        """The value of a key, waited for, also while the node is away; None when time is up."""
        end = time.monotonic() + timeout
        while True:
            try:
                return self._read_until(key, end)
            except AWAY:
                if time.monotonic() + PAUSE_S > end:
                    return None
                time.sleep(PAUSE_S)

    def _read_until(self, key: str, end: float) -> bytes | None:
        with self.topic.reader(start="latest", damage="skip", on_data_loss="skip") as reader:
            value = self.newest(key)
            while value is None and (left := end - time.monotonic()) > 0:
                for record in reader.get_many(READ, left):
                    if key in record.keys:
                        value = self.whole(record.body)
        return value

    def _again(self, call: Callable[[Topic], Any]) -> Any:
        if self._waits():
            return patient(lambda: self._once(call), self.place.node_timeout, TROUBLE)
        return self._once(call)

    def _once(self, call: Callable[[Topic], Any]) -> Any:
        """Of a topic that was deleted there is another one then."""
        try:
            return call(self.topic)
        except TopicNotFound:
            self._topics.pop(os.getpid(), None)
            return call(self.topic)
