"""The message store in an event loop: warren.Store, awaited.

A write is handed over in the loop when there is room for it, and its confirm awaited; many tasks share one fsync. What
reads from files or waits for the server's answer runs in the threads for what blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn, overload

from warren.engine import _core
from warren.ipc.layout import SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT
from warren.workers.client.arguments import checked_flag, listed
from warren.workers.client.publish import Durability
from warren.workers.faces import store as stores
from warren.workers.faces.aio.base import Body, deadline_of, size_of
from warren.workers.faces.aio.loop import Confirm, Loop
from warren.workers.faces.aio.parts import in_parts

#: so many ids are removed by one command: all of them, or none when there is no room
REMOVED_AT_ONCE = 4096


class Store:
    """The persistent or the transient message store of the node. Created by `node.store()`."""

    def __init__(self, loop: Loop, store: stores.Store) -> None:
        self._loop = loop
        self._store = store
        self._server = SERVER_STORE_TRANSIENT if store.transient else SERVER_STORE_PERSISTENT

    def __reduce__(self) -> NoReturn:
        """It cannot be pickled: TypeError."""
        raise TypeError(
            "a store of warren.aio belongs to its event loop: give another process the node's directory, and use "
            "warren.aio.attach there"
        )

    def __repr__(self) -> str:
        return f"<aio.Store, {'transient' if self.transient else 'persistent'}>"

    @property
    def transient(self) -> bool:
        """Whether it keeps messages in memory only."""
        return self._store.transient

    # -- writing ------------------------------------------------------------------------------------------------

    @overload
    async def write(
        self,
        id: bytes,
        body: Body,
        durability: Durability | None = None,
        wait: Literal[True] = True,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    async def write(
        self,
        id: bytes,
        body: Body,
        durability: Durability | None = None,
        *,
        wait: Literal[False],
        timeout: float | None = None,
    ) -> Confirm: ...
    @overload
    async def write(
        self, id: bytes, body: Body, durability: Durability | None, wait: Literal[False], timeout: float | None = None
    ) -> Confirm: ...
    @overload
    async def write(
        self,
        id: bytes,
        body: Body,
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Confirm | None: ...
    async def write(
        self,
        id: bytes,
        body: Body,
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Confirm | None:
        """Write a message: as warren.Store.write; with wait=False a Confirm to await. If it is cancelled while it waits
        for the confirm, the message may be stored.
        """
        self._loop.enter()
        deadline = deadline_of(timeout)
        checked_flag(wait, "wait")
        write = self._store.write
        part = await self._submit(
            lambda: write(id, body, durability, False, 0.0), (1, size_of(body)), deadline, ahead=not wait
        )
        return await self._loop.wait_for(Confirm(self._loop, [(0, part)]), wait, deadline)

    @overload
    async def write_many(
        self,
        ids: Iterable[bytes] | Body,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        wait: Literal[True] = True,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    async def write_many(
        self,
        ids: Iterable[bytes] | Body,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        *,
        wait: Literal[False],
        timeout: float | None = None,
    ) -> Confirm: ...
    @overload
    async def write_many(
        self,
        ids: Iterable[bytes] | Body,
        bodies: Iterable[Body],
        durability: Durability | None,
        wait: Literal[False],
        timeout: float | None = None,
    ) -> Confirm: ...
    @overload
    async def write_many(
        self,
        ids: Iterable[bytes] | Body,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Confirm | None: ...
    async def write_many(
        self,
        ids: Iterable[bytes] | Body,
        bodies: Iterable[Body],
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Confirm | None:
        """Write many messages in order: as warren.Store.write_many. They are sent in parts; after a TimedOut for lack
        of room, the first parts may be stored.
        """
        loop = self._loop
        loop.enter()
        deadline = deadline_of(timeout)
        checked_flag(wait, "wait")
        many, all_ids = listed(bodies, "bodies"), _ids(ids)
        write_many = self._store.write_many
        if len(many) != len(all_ids) or not all(map(_is_id, all_ids)):
            write_many(all_ids, many, durability, False, 0.0)  # it says what is wrong
        await loop.ready()
        parts = await in_parts(
            loop.client.attachment().superblock,
            many,
            [0] * len(many),
            lambda start, end: write_many(all_ids[start:end], many[start:end], durability, False, 0.0),
            lambda call, need: self._submit(call, need, deadline, ahead=not wait),
        )
        return await loop.wait_for(Confirm(loop, parts), wait, deadline)

    async def remove(self, ids: Iterable[bytes] | Body, timeout: float | None = None) -> int:
        """Remove one reference of each id: as warren.Store.remove. It waits for room alone, at most call_timeout if no
        timeout is given.
        """
        self._loop.enter()
        deadline = deadline_of(timeout)
        given = _ids(ids)
        eliminated = 0
        for start in range(0, len(given), REMOVED_AT_ONCE):
            some = given[start : start + REMOVED_AT_ONCE]
            remove = functools.partial(self._store.remove, some, 0.0)
            eliminated += await self._submit(remove, (1, 16 * len(some)), deadline, ahead=True)
        return eliminated

    async def _submit(self, call: Callable[[], Any], need: tuple[int, int], deadline: float | None, ahead: bool) -> Any:
        await self._loop.ready()
        await self._loop.store_opened(self._server)
        return await self._loop.submit(call, need, deadline, ahead=ahead, store=self._server)

    # -- reading ------------------------------------------------------------------------------------------------

    async def read(self, id: bytes) -> bytes | None:
        """The body of a message, or None if there is none: as warren.Store.read."""
        return await self._loop.do(self._store.read, id)

    async def read_many(self, ids: Iterable[bytes] | Body) -> list[bytes | None]:
        """The bodies of many messages, None for each that does not exist: as warren.Store.read_many."""
        return await self._loop.do(self._store.read_many, _ids(ids))

    async def contains(self, id: bytes, timeout: float | None = None) -> bool:
        """Whether the store holds the message, after everything this node did before."""
        return await self._loop.do(self._store.contains, id, timeout)

    # -- ids, the end -------------------------------------------------------------------------------------------

    async def new_id(self) -> bytes:
        """A message id that no other client makes."""
        await self._ready()
        return self._store.new_id()

    async def new_ids(self, count: int) -> list[bytes]:
        """Consecutive new ids, for writing batches."""
        await self._ready()
        return self._store.new_ids(count)

    async def _ready(self) -> _core.Client:
        self._loop.enter()
        return await self._loop.ready()

    async def barrier(self, durability: Durability = "none", timeout: float | None = None) -> None:
        """Return when everything that this node did before is applied (and as durable as requested)."""
        await self._loop.do(self._store.barrier, durability, timeout)

    async def terminate(self, timeout: float | None = None) -> None:
        """Return when everything that this node did before is applied and, in the persistent store, durable."""
        await self._loop.do(self._store.terminate, timeout)

    async def delete_and_terminate(self, timeout: float | None = None) -> int:
        """Abandon what is under way: as warren.Store.delete_and_terminate."""
        return await self._loop.do(self._store.delete_and_terminate, timeout)


def _is_id(id: object) -> bool:
    return isinstance(id, bytes) and len(id) == 16


def _ids(ids: Any) -> list[bytes] | tuple[bytes, ...]:
    """One by one, also out of a buffer of 16 bytes each; what is no whole number of them is for the store to refuse."""
    try:
        flat = bytes(memoryview(ids))
    except TypeError:  # no buffer
        return listed(ids, "ids")
    return [flat[at : at + 16] for at in range(0, len(flat), 16)]
