"""The message store itself, for programs that want it without queues: bodies under 16-byte ids, counted references.

A write of an id that is there already adds a reference; a remove takes one away; the body goes with the last. The first
body of an id wins. A write whose remove overtakes it is eliminated and never reaches the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from warren.engine._core import Confirm, SessionLost
from warren.ipc.layout import SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT
from warren.workers.client import level_of

if TYPE_CHECKING:
    from warren.workers.client import Client


class Store:
    """The persistent or the transient message store of the node. Made by `node.store()`; safe for threads."""

    def __init__(self, client: Client, transient: bool) -> None:
        self.transient = transient
        self._client = client
        self._server = SERVER_STORE_TRANSIENT if transient else SERVER_STORE_PERSISTENT

    def __repr__(self) -> str:
        return f"<Store, {'transient' if self.transient else 'persistent'}>"

    def new_id(self) -> bytes:
        """A message id that no other client makes: client epoch, counter."""
        while True:
            try:
                return self._client.core.next_id()
            except SessionLost:
                continue

    def write(
        self,
        id: bytes,
        body: bytes | bytearray | memoryview,
        durability: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Confirm | None:
        """Write a message. Returns when it is as durable as asked for (default: 'synced', transient 'none').

        With wait=False: a Confirm, at once. Raises UsageError (id), MessageTooLarge, TimedOut, PeerLost, SyncFailed.
        """
        level = level_of(durability, not self.transient, "this store")
        while True:
            try:
                return self._client.core.store_write_one(self._server, id, body, level, timeout, wait)
            except SessionLost:
                continue

    def write_many(
        self,
        ids: Sequence[bytes],
        bodies: Sequence[bytes | bytearray | memoryview],
        durability: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Confirm | None:
        """Write many messages in order; one Confirm for all of them."""
        level = level_of(durability, not self.transient, "this store")
        while True:
            try:
                return self._client.core.store_write(self._server, ids, bodies, level, timeout, wait)
            except SessionLost:
                continue

    def read(self, id: bytes) -> bytes | None:
        """The body of a message, None when there is none. Raises StoreError for a damaged one."""
        while True:
            try:
                return self._client.core.store_read(self._server, id)
            except SessionLost:
                continue

    def read_many(self, ids: Iterable[bytes]) -> list[bytes | None]:
        """The bodies of many messages, None for each that is not there."""
        return [self.read(id) for id in ids]

    def remove(self, ids: bytes | Iterable[bytes], timeout: float | None = None) -> int:
        """Take one reference of each id away; returns how many of the writes were eliminated before they were stored.

        An id that is not there is no error. It is done in order; `barrier()` waits for it.
        """
        listed = [ids] if isinstance(ids, bytes) else list(ids)
        while True:
            try:
                return self._client.core.store_remove(self._server, listed, timeout)
            except SessionLost:
                continue

    def contains(self, id: bytes, timeout: float | None = None) -> bool:
        """Whether the store holds the message, after everything this client did before."""
        while True:
            try:
                return self._client.core.store_contains(self._server, id, timeout)
            except SessionLost:
                continue

    def barrier(self, durability: str = "none", timeout: float | None = None) -> None:
        """Return when everything that this client did before is applied (and as durable as asked for)."""
        level = level_of(durability, True, "this store")
        while True:
            try:
                return self._client.core.barrier(self._server, level, timeout)
            except SessionLost:
                continue
