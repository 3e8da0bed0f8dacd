"""The message store itself, for programs that want it without queues: bodies under 16-byte ids, counted references.

A write of an id that is there already adds a reference; a remove takes one away; the body goes with the last. The first
body of an id wins while anything holds it. A write whose remove overtakes it is eliminated and never reaches the disk.
What is called for each message is C (`engine/binding/store_type.c`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from warren.engine._core import AttachmentLost, StoreFace
from warren.ipc import mailbox
from warren.ipc.layout import SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT
from warren.workers.client.arguments import level_of
from warren.workers.client.shared import Place, place_of, shared

if TYPE_CHECKING:
    from warren.workers.client.client import Client
    from warren.workers.client.publish import Durability


class Store(StoreFace):
    """The persistent or the transient message store of the node. Created by `node.store()`; thread-safe."""

    _client: Client

    def __reduce__(self) -> tuple[Callable[[Place, bool], Store], tuple[Place, bool]]:
        """Another process that unpickles it attaches by itself when it uses it (docs/python.md)."""
        return _unpickled, (place_of(self._client), self.transient)

    def __repr__(self) -> str:
        return f"<Store, {'transient' if self.transient else 'persistent'}>"

    @property
    def _server(self) -> int:
        return SERVER_STORE_TRANSIENT if self.transient else SERVER_STORE_PERSISTENT

    def barrier(self, durability: Durability = "none", timeout: float | None = None) -> None:
        """Return when everything that this client did before has been applied (and is as durable as requested)."""
        level = level_of(durability, True, "this store")
        while True:
            try:
                return self._client.core.barrier(self._server, level, timeout)
            except AttachmentLost:
                continue

    def terminate(self, timeout: float | None = None) -> None:
        """Return when everything that this client did before is applied and, in the persistent store, durable."""
        self.barrier("none" if self.transient else "synced", timeout)

    def delete_and_terminate(self, timeout: float | None = None) -> int:
        """Abandon what is under way: writes that the store has not yet taken when it learns of this are dropped.

        Returns how many commands were dropped, completely or in part, when everything submitted before is finished;
        then the store can be used again. Dropped writes were not stored, and their Confirms raise ClosedError. A write
        that only adds a reference to an existing message is executed, and so are removes.
        """
        while True:
            attachment = self._client.attachment()
            try:
                since, until = attachment.core.store_dying(self._server)
            except AttachmentLost:
                continue
            mailbox.post(
                attachment.descriptor,
                "store",
                "client_dying",
                mailbox.PRIORITY_CLIENT,
                slot=attachment.slot.slot,
                generation=attachment.slot.generation,
                store=self._server,
                until=until,
            )  # if it is lost, or late, nothing is dropped
            try:
                return attachment.core.store_terminate(self._server, since, timeout)
            except AttachmentLost:
                continue


def _unpickled(place: Place, transient: bool) -> Store:
    return Store(shared(place), transient)
