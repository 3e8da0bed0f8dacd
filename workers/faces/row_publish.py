"""Rows of Arrow batches, published to a queue, an exchange or a topic: one call of the core for all of them.

What a row says besides its body comes back equal from `read_arrow` and `browse_arrow` of a queue: key, headers with
repeated names and nulls (engine/catalog/metadata.py: Row). A row that cannot be carried refuses its batch, before
anything of that is sent, with an error that names the row.

A call returns a Confirm at once; whoever publishes batch after batch waits for those of before. When the node is
stopped in order, a Confirm says what was not taken of its call (`Confirm.untaken`), and that alone is sent again
(`Piece.rest`).

Crash points: those of any publish. A process that dies after a call leaves what it handed over to the servers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from warren.engine import _core
from warren.engine._core import AttachmentLost, Confirm
from warren.engine.catalog import metadata
from warren.engine.errors import MessageTooLarge, UsageError
from warren.engine.topics.formats import DELAY_MS_MAX
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.client import topic_parts
from warren.workers.client.arguments import level_of
from warren.workers.client.publish import Durability, Publish
from warren.workers.faces.full import Room
from warren.workers.faces.many import level_to
from warren.workers.faces.queues import time_left
from warren.workers.faces.row_columns import Rows
from warren.workers.faces.topics import append_columns

if TYPE_CHECKING:
    from warren.engine._core import RowTexts
    from warren.workers.client.client import Client
    from warren.workers.client.routes import Route
    from warren.workers.faces.topics import Topic

_Extras = tuple[Any, Any, Any, Any]
#: what a node that was stopped never took: (server, index of the first row, how many)
Untaken = list[tuple[int, int, int]]
#: in `Untaken`: no server has got it
NO_SERVER = -1
#: ids of queues, and of topics
Only = tuple[frozenset[int], frozenset[int]]
#: of a message for an exchange or a queue
_PUBLISH = Publish()


class Piece(ABC):
    """Rows that one call hands over; at an orderly stop of the node what it did not take of them is told (`rest`)."""

    def __init__(self, rows: Rows, durability: Durability | None) -> None:
        self.rows = rows
        self.durability = durability

    @abstractmethod
    def send(self, timeout: float | None) -> Confirm[Any]:
        """Hand all of it over. Raises what a publish or an append raises."""

    @abstractmethod
    def part(self, rows: Rows) -> Piece:
        """The same of some of its rows."""

    def rest(self, untaken: Untaken) -> list[Piece]:
        """What is to be sent again of what was sent: `Confirm.untaken` says so."""
        return [self.part(self.rows.taken(_indices(untaken)))] if untaken else []


class QueuePiece(Piece):
    """Rows for a queue."""

    def __init__(self, client: Client, queue: str, rows: Rows, durability: Durability | None) -> None:
        super().__init__(rows, durability)
        self._client = client
        self._queue = queue

    def send(self, timeout: float | None) -> Confirm[Any]:
        """Raises what a put raises."""
        return put_rows(self._client, self._queue, self.rows, self.durability, timeout)

    def part(self, rows: Rows) -> Piece:
        """The same of some of its rows."""
        return QueuePiece(self._client, self._queue, rows, self.durability)


class ExchangePiece(Piece):
    """Rows for an exchange, each with its key as the routing key, or with `routing_key` where that is null. `only`: of
    where they go the queues and topics that have not got them already.
    """

    def __init__(
        self,
        client: Client,
        exchange: str,
        routing_key: str,
        rows: Rows,
        durability: Durability | None,
        mandatory: bool,
        only: Only | None = None,
    ) -> None:
        super().__init__(rows, durability)
        self._client = client
        self._to = (exchange, routing_key)
        self._mandatory = mandatory
        self._only = only
        self._sent: tuple[list[Route], npt.NDArray[np.int32] | None] | None = None

    def send(self, timeout: float | None) -> Confirm[Any]:
        """Raises what a publish raises."""
        publication = _Publication(self._client, *self._to, self.rows, self._only)
        try:
            return publication.send(self.durability, timeout, self._mandatory and self._only is None)
        finally:
            self._sent = publication.sent

    def part(self, rows: Rows) -> Piece:
        """The same of some of its rows."""
        return self._narrowed(rows, self._only)

    def _narrowed(self, rows: Rows, only: Only | None) -> ExchangePiece:
        return ExchangePiece(self._client, *self._to, rows, self.durability, self._mandatory, only)

    def rest(self, untaken: Untaken) -> list[Piece]:
        """Of a row that goes to several workers, one may have taken it and another not: then it is sent again to the
        queues of the latter alone.
        """
        if not untaken:
            return []
        assert self._sent is not None  # something was sent
        routes, which = self._sent
        left: dict[int, list[int]] = {}
        for server, first, count in untaken:
            for row in range(first, first + count):
                left.setdefault(row, []).append(server)
        groups: dict[Only | None, list[int]] = {}
        for row in sorted(left):
            route = routes[0 if which is None else int(which[row])]
            groups.setdefault(self._missed(route, left[row]), []).append(row)
        return [
            self._narrowed(self.rows.taken(np.array(rows, np.int64)), only)
            for only, rows in sorted(groups.items(), key=lambda item: item[1][0])
        ]

    def _missed(self, route: Route, servers: list[int]) -> Only | None:
        """Where a row has not got to, by the servers that did not take it, one for each of its commands; None:
        anywhere.
        """
        workers = {SERVER_WORKER_FIRST + queue.worker for queue in route.queues}
        topics = sum(server not in workers for server in servers)
        if servers == [NO_SERVER] or (workers <= set(servers) and topics == len(route.topics)):
            return self._only
        return (
            frozenset(queue.id for queue in route.queues if SERVER_WORKER_FIRST + queue.worker in servers),
            frozenset(item.topic.id for item in route.topics[len(route.topics) - topics :]),  # taken in order
        )


class TopicPiece(Piece):
    """Rows for a topic: by key, or where `partition` says."""

    def __init__(self, topic: Topic, rows: Rows, durability: Durability | None) -> None:
        super().__init__(rows, durability)
        self._topic = topic

    def send(self, timeout: float | None) -> Confirm[Any]:
        """Raises what an append raises."""
        return _append(self._topic, self.rows, level_of(self.durability, True, "this topic"), timeout)

    def part(self, rows: Rows) -> Piece:
        """The same of some of its rows."""
        return TopicPiece(self._topic, rows, self.durability)


def _indices(untaken: Untaken) -> npt.NDArray[np.int64]:
    return np.unique(np.concatenate([np.arange(first, first + count, dtype=np.int64) for _, first, count in untaken]))


# -- queues and exchanges ---------------------------------------------------------------------------------------------


def put_rows(client: Client, queue: str, rows: Rows, durability: Durability | None, timeout: float | None) -> Confirm:
    """Publish rows (at least one) to a queue. Raises what a put raises."""
    return _Publication(client, "", queue, rows).send(durability, timeout, False)


def check_rows(client: Client, queue: str, rows: Rows) -> None:
    """Raise what put_rows would find wrong with rows, before it sends anything."""
    _Publication(client, "", queue, rows).check()


class _Publication:
    """Rows for an exchange, or for a queue: then the exchange is '', and the routing key its name."""

    def __init__(self, client: Client, exchange: str, routing_key: str, rows: Rows, only: Only | None = None) -> None:
        """Raises UsageError."""
        self._only = only
        #: the different routes of what was sent, and which each row has
        self.sent: tuple[list[Route], npt.NDArray[np.int32] | None] | None = None
        self._client = client
        self._exchange = exchange
        self._routing_key = routing_key
        self._rows = rows
        rows.refuse_any("tag", "a message of a queue has no tag: drop the column, or make a header of it")
        self._values = rows.values()
        self._extras = _extras(rows)
        self._metas = self._packed()

    def _packed(self) -> RowTexts | None:
        """The metadata of all rows; None: of none is anything said."""
        rows = self._rows
        keys, headers, ids = rows.texts("key"), rows.headers(), rows.column("message_id")
        born = rows.born_us()
        when = None
        if born is not None:
            when = np.ascontiguousarray(born.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)) / 1e6
        if not self._exchange and all(item is None for item in (keys, headers, ids, when)):
            return None
        is_text = ids is not None and (pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type))
        told = rows.texts("message_id")
        ends, content = _core.row_metadata(
            rows.count, self._exchange, self._routing_key, keys, headers, when, told, is_text, rows.numbers
        )
        return ends, content, None

    def check(self) -> None:
        """Raises MessageTooLarge."""
        sizes = np.diff(np.frombuffer(self._values[0], np.int32, self._rows.count + 1)).astype(np.int64)
        if self._metas is not None:
            metas = np.diff(np.frombuffer(self._metas[0], np.int32)).astype(np.int64)
            sizes = np.where(metas > metadata.META_BYTES_MAX, np.int64(1) << 62, sizes + metas)
        most = self._client.attachment().superblock.get("message_bytes_max")
        if len(wrong := np.flatnonzero(sizes > most)):
            row = int(wrong[0])
            raise MessageTooLarge(
                f"row {self._rows.number(row)}: a message is larger than {most} bytes with its headers (setting "
                f"message_bytes_max), or its key and headers are larger than {metadata.META_BYTES_MAX}"
            )

    def send(self, durability: Durability | None, timeout: float | None, mandatory: bool) -> Confirm:
        """Raises what a publish raises."""
        while True:
            try:
                routes, which = self._routes(mandatory)
                level = level_to(durability, routes, _PUBLISH)
                routes = [self._narrowed(route) for route in routes]
                self.sent = routes, which
                if any(route.topics for route in routes):
                    return self._to_topics(routes, which, level, timeout)
                cores = tuple(route.core for route in routes)
                told: tuple[Any, Any, Any, Any] = (self._values, self._metas, which, self._extras)
                rows = self._rows
                return cast(
                    "Confirm",
                    self._client.core.publish_rows(cores, rows.count, *told, level, timeout, False, rows.numbers),
                )
            except AttachmentLost as lost:
                timeout = time_left(lost, timeout)

    def _narrowed(self, route: Route) -> Route:
        if self._only is None:
            return route
        queues, topics = self._only
        return self._client.route_to(
            [queue for queue in route.queues if queue.id in queues],
            route.meta,
            tuple(item for item in route.topics if item.topic.id in topics),
        )

    def _routes(self, mandatory: bool) -> tuple[list[Route], npt.NDArray[np.int32] | None]:
        """The different routes of the rows, and which each has; None: all have the first."""
        client, exchange = self._client, self._exchange
        if not exchange:
            declared = client.catalog().queue(self._routing_key)
            client.catalog().check_owner(declared, client.epoch)
            return [client.route("", self._routing_key)], None
        find = client.mandatory_route if mandatory else client.route
        keys = self._rows.column("key")
        if exchange in client.router().by_headers:
            return self._by_headers(find)
        if keys is None:
            return [find(exchange, self._routing_key)], None
        known = keys.cast(pa.binary()).dictionary_encode()
        routes = [find(exchange, key.decode()) for key in known.dictionary.to_pylist()]
        which = known.indices
        if which.null_count:
            which = which.fill_null(len(routes))
            routes.append(find(exchange, self._routing_key))
        return routes, np.ascontiguousarray(which.to_numpy(), np.int32)

    def _by_headers(self, find: Any) -> tuple[list[Route], npt.NDArray[np.int32] | None]:
        """The same of an exchange that looks at headers: of each row by itself."""
        known: dict[int, int] = {}
        routes: list[Route] = []
        which = np.empty(self._rows.count, np.int32)
        for row, meta in enumerate(self._each_meta()):
            told = metadata.decode(meta)
            route = find(self._exchange, told.routing_key, told.headers)
            if id(route) not in known:
                known[id(route)] = len(routes)
                routes.append(route)
            which[row] = known[id(route)]
        return routes, which

    def _each_meta(self) -> list[bytes]:
        assert self._metas is not None  # it goes to an exchange
        ends, content = np.frombuffer(self._metas[0], np.int32), memoryview(self._metas[1])
        return [bytes(content[ends[row] : ends[row + 1]]) for row in range(self._rows.count)]

    def _to_topics(
        self, routes: list[Route], which: npt.NDArray[np.int32] | None, level: int, timeout: float | None
    ) -> Confirm:
        """Publish to an exchange that leads to topics, too, whose records are made one by one."""
        rows = self._rows
        metas = self._each_meta()
        for row, meta in enumerate(metas):
            if metadata.decode(meta).row is not None:
                raise UsageError(
                    f"row {rows.number(row)}: a name comes twice among its headers, and exchange {self._exchange!r} "
                    "leads to a topic, which has each name once: join their values"
                )
        each = [routes[0 if which is None else int(which[row])] for row in range(rows.count)]
        options = _options_each(self._extras, rows.count)
        life = rows.milliseconds("ttl")
        said = Publish(
            ttl=None if life is None else [None if item is None else item / 1000 for item in life.to_pylist()]
        )
        try:
            told = topic_parts.parts_each(self._client.turns, each, rows.count, metas, options, said)
        except MessageTooLarge as error:
            raise MessageTooLarge(f"rows {rows.number(0)} to {rows.number(rows.count - 1)}: {error}") from None
        bodies = rows.batch.column("value").cast(pa.binary()).to_pylist()
        cores = [route.core for route in each]
        core = self._client.core
        return cast("Confirm", core.publish_many(cores, bodies, level, metas, timeout, False, options, told))


def _extras(rows: Rows) -> _Extras | None:
    """What the delivery options of rows are for the core; None: all are plain."""
    ids, priorities = rows.column("message_id"), rows.priorities()
    life, wait = rows.milliseconds("ttl"), rows.milliseconds("delay")
    if all(item is None for item in (ids, priorities, life, wait)):
        return None
    expires = np.zeros(rows.count, np.uint64)
    due = np.zeros(rows.count, np.uint64)
    now = time.time_ns() // 1_000_000
    if wait is not None:
        waits = wait.fill_null(0).to_numpy(zero_copy_only=False)
        due[:] = np.where(waits > 0, now + 1 + waits, 0)
    if life is not None:
        there = np.asarray(life.is_valid().to_numpy(zero_copy_only=False), bool)
        lives = life.fill_null(0).to_numpy(zero_copy_only=False)
        begins = np.where(due > 0, due.astype(np.int64), np.where(lives > 0, now + 1, now))
        expires[:] = np.where(there, begins + lives, 0)
    if priorities is not None:
        expires |= priorities << np.uint64(metadata.PRIORITY_SHIFT)
    if ids is None:
        return expires, due, None, None
    keys = bytearray(metadata.KEY_BYTES * rows.count)
    for row, found in enumerate(ids.to_pylist()):
        if found:  # an empty one is refused with its metadata
            keys[metadata.KEY_BYTES * row : metadata.KEY_BYTES * (row + 1)] = metadata.key_of(found)
    there = np.asarray(ids.is_valid().to_numpy(zero_copy_only=False)).astype(np.uint8)
    return expires, due, bytes(keys), there


def _options_each(extras: _Extras | None, count: int) -> list[metadata.Options | None] | None:
    """The same as a list with the options of each."""
    if extras is None:
        return None
    expires, due, keys, keyed = extras
    size = metadata.KEY_BYTES
    return [
        (
            int(expires[row]),
            int(due[row]),
            keys[size * row : size * (row + 1)] if keys is not None and keyed[row] else None,
            True,
        )
        for row in range(count)
    ]


def wait_for_room(client: Client, queue: str, until: float) -> bool:
    """After a queue refused messages because it was full: wait until there seems to be room; False when it is `until`
    (of time.monotonic). Raises QueueNotFound.
    """
    room = Room(client, until)
    if room.late:
        return False
    declared = client.catalog().queue(queue)
    room.refused()
    while (pause_s := room.pause(declared, SERVER_WORKER_FIRST + declared.worker)) is not None:
        time.sleep(pause_s)
    return True


# -- topics -----------------------------------------------------------------------------------------------------------


def topic_pieces(topic: Topic, rows: Rows, durability: Durability | None) -> list[Piece]:
    """Rows for a topic, as calls hand them over. Raises UsageError."""
    for name, what in (
        ("message_id", "does not look for doubles"),
        ("priority", "is in order"),
        ("ttl", "has a retention"),
    ):
        rows.refuse_any(name, f"a topic {what}: drop the column {name}")
    delays = rows.column("delay")
    if delays is None or not delays.null_count:
        return [TopicPiece(topic, rows, durability)]
    later = np.asarray(delays.is_valid().to_numpy(zero_copy_only=False), bool)  # their command says so
    return [TopicPiece(topic, rows.taken(np.flatnonzero(chosen)), durability) for chosen in (~later, later)]


def _append(topic: Topic, rows: Rows, level: int, timeout: float | None) -> Confirm[Any]:
    born, delays = rows.born_us(), rows.milliseconds("delay", DELAY_MS_MAX / 1000)
    born_ms = None if born is None else np.floor_divide(_filled(born), 1000)
    wait_ms = None if delays is None else _filled(delays)
    columns = (rows.values(), rows.texts("key"), rows.texts("tag"), rows.headers(), rows.partitions(), born_ms, wait_ms)
    return append_columns(topic, rows.count, columns, level, timeout, rows.numbers)


def _filled(found: pa.Array) -> npt.NDArray[np.int64]:
    """-1 (of microseconds: below 0) where there is none."""
    return np.ascontiguousarray(found.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
