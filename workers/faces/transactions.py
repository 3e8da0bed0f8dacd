"""Sinks of a node: what engine/transactions commits is appended to topics, and put into queues, through a client.

Each use has an attachment of its own: so who comes next can wait for the end of this one, and what it had submitted is
executed by then (`Targets.settle`), whether this process was killed or not. Within one attachment appends to a queue
are executed in their order, and after the first error nothing is appended any more: handles are renewed when the
catalog changed, never when the attachment did.

Crash points: docs/design/031-transactions.md §4.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from warren.engine import _core
from warren.engine._core import AttachmentLost, Confirm, Record
from warren.engine.catalog.catalog import Catalog, QueueDeclaration
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import (
    ClosedError,
    Error,
    LimitError,
    MessageTooLarge,
    PeerLost,
    QueueFull,
    QueueNotFound,
    StoreError,
    TimedOut,
    TopicNotFound,
    UsageError,
)
from warren.engine.saying import command, counted, shown
from warren.engine.topics.formats import PROPERTIES_BYTES_MAX
from warren.engine.transactions.parts import Destination, Part, Rows
from warren.engine.transactions.sink import Batch, Mark, Sink
from warren.engine.transactions.state import Pending, Place, Roller, State
from warren.ipc.superblock import FREE
from warren.workers.client.told import Told
from warren.workers.faces.node import Node, attach, client_of
from warren.workers.faces.topic_reading import TopicReading
from warren.workers.faces.topic_scans import ReadStatus

if TYPE_CHECKING:
    from warren.workers.client.client import Client
    from warren.workers.faces import row_columns

#: the property by which messages of a transaction are known
PROPERTY = "WARREN_SINK"
#: the shortest window of deduplication of a queue that takes transactions
WINDOW_MIN_S = 60.0
#: so much earlier than the window ends nobody relies on it any more
WINDOW_MARGIN_S = 5.0
#: what is read at once when messages are counted
READ_ROWS, READ_BYTES = 4096, 16 << 20
_LOOK_S = 0.002
_AGAIN_S = 0.1
_END = frozenset({ReadStatus.OFFSET_OVERFLOW_ONE, ReadStatus.NO_MESSAGE_IN_QUEUE})
_SYNCED = _core.LEVEL_SYNCED


# -- what may be written to -------------------------------------------------------------------------------------------


def topic_of(catalog: Catalog, name: str) -> tuple[int, int]:
    """The id of a topic that takes transactions, and how many queues it has. Raises TopicNotFound, UsageError."""
    found = catalog.topic(name)
    if found.compacted:
        raise UsageError(
            f"topic {name!r} is compacted, so nobody could tell after a crash which messages of a batch are in it: "
            "write to it with delivery=direct (a message that comes twice is the newest of its key all the same)"
        )
    return found.id, found.queues


def queue_of(catalog: Catalog, name: str) -> int:
    """The lasting id of a queue that takes transactions. Raises QueueNotFound, UsageError."""
    found: QueueDeclaration = catalog.queue(name)
    window = found.policy.deduplication_window
    if not found.durable or window is None or window < WINDOW_MIN_S:
        raise UsageError(
            f"queue {name!r} has no deduplication_window of at least {WINDOW_MIN_S:g} s, or is not durable: after a "
            "crash nobody could tell which messages of a batch were in it. Declare it durable with a window that is "
            "longer than a driver may be down in the middle of a batch (deduplication_window=86400), or write with "
            "delivery=direct"
        )
    return found.lasting_id


# -- topics and queues for one client ---------------------------------------------------------------------------------


class NodeTargets:
    """`engine.transactions.sink.Targets` for a node: with NodeTargets(path, timeout_s, name) as targets: …"""

    def __init__(self, path: str | Path, timeout_s: float, name: str) -> None:
        """Attach. `timeout_s`: of each wait. Raises what warren.attach raises."""
        self._path = Path(path)
        self._timeout_s = timeout_s
        self._node: Node = attach(path, timeout=timeout_s, name=name)
        self._client = client_of(self._node)
        self._attachment = self._client.attachment()
        self._handles: dict[Destination, _core.TopicHandle] = {}
        self._flying: list[tuple[Rows, Mark, int, Confirm[Any]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._node.close()

    def me(self) -> Roller:
        slot = self._attachment.slot
        return Roller(slot.slot, slot.client_epoch, slot.pid, slot.start_time)

    def settle(self, roller: Roller) -> None:
        """Wait until the servers are done with that client: its slot is free, or another's."""
        deadline = time.monotonic() + self._timeout_s
        while roller != self.me():
            view = self._attachment.superblock.slot(roller.slot)
            there = (view.client_epoch, view.pid, view.start_time) == (roller.epoch, roller.pid, roller.start_time)
            if view.state == FREE or not there:
                return
            if time.monotonic() >= deadline:
                raise TimedOut(
                    f"process {roller.pid}, which has begun to append a batch of this sink, was still attached after "
                    f"{self._timeout_s:g} s (client slot {roller.slot} of {command('status', self._path, '--all')}): "
                    "what it has submitted may still come; end it, or wait"
                )
            time.sleep(_LOOK_S)

    def begin(self, destination: Destination) -> int:
        """The end of the queue of a topic; 0 for a queue."""
        self._check(destination)
        return self._reading(destination).offsets(destination.queue)[1] if destination.kind == "topic" else 0

    def _check(self, destination: Destination) -> None:
        """Raises TopicNotFound, QueueNotFound, UsageError."""
        catalog, name = self._client.catalog(), destination.name
        if destination.kind == "topic":
            if topic_of(catalog, name)[0] != destination.id:
                raise TopicNotFound(f"topic {name!r} was deleted and declared again while rows for it were staged")
        elif queue_of(catalog, name) != destination.id:
            raise QueueNotFound(f"queue {name!r} was deleted and declared again while rows for it were staged")

    def _reading(self, destination: Destination) -> TopicReading:
        return TopicReading(self._client, self._client.catalog().topic(destination.name))

    # -- what is there -------------------------------------------------------------------------------------------

    def present(self, place: Place, mark: Mark, progressed: float, again: bool) -> tuple[int, int]:
        """Topics: count the messages with the property of the transaction. Queues: those that are confirmed, if the
        window lets the others be put again."""
        if place.done == place.messages:
            return place.done, place.start
        self._check(place.destination)
        if place.destination.kind == "topic":
            return self._counted(place, mark, again)
        queue = self._client.catalog().queue(place.destination.name)
        window = queue.policy.deduplication_window or 0.0
        if not again and not 0 <= time.time() - progressed <= window - WINDOW_MARGIN_S:
            raise self._doubt(
                place, mark, f"its deduplication_window of {window:g} s has passed since the batch was interrupted"
            )
        return place.done, place.start

    def _doubt(self, place: Place, mark: Mark, why: str) -> StoreError:
        finish = command("transactions", self._path, "--finish", mark.sink)
        left = counted(place.messages - place.done, "message")
        what = f"{place.destination.kind} {place.destination.name!r}"
        return StoreError(
            f"nobody can say which of {left} of transaction {mark.number} of sink {mark.sink!r} are in {what}: {why}. "
            f"{finish} --again appends those of the last step (8 MiB at most) again, which may double them; "
            f"{command('transactions', self._path, '--forget', mark.sink, '--force')} gives the batch up"
        )

    def _counted(self, place: Place, mark: Mark, again: bool) -> tuple[int, int]:
        """The count of the batch's messages in a queue of a topic, and the offset behind the last of them."""
        reading, queue = self._reading(place.destination), place.destination.queue
        at = start = place.start
        count, gap, groups, last = place.done, False, 0, -1
        begins = mark.property(0)[:-1]
        while True:
            found = reading.read(queue, at, READ_ROWS, READ_BYTES)
            for record in found.records:
                n = _number(record, begins)
                if n is None:
                    continue
                if n != last:
                    if n != count and not (gap and n > count):
                        raise self._doubt(place, mark, f"{count} are there before one that says that there are {n}")
                    count, last, groups = n, n, groups + 1
                count += 1
                start = record.offset + 1
            if found.max_offset < at:
                raise self._doubt(place, mark, f"queue {queue} ends at offset {found.max_offset}, and ended at {at}")
            if found.status in _END:
                break
            if found.status != ReadStatus.FOUND:
                gap, last = True, -1
            at = found.next_offset
        # Behind a gap the first group may lack some at its begin; a later one says how many there were.
        if gap and groups < 2 and not again:
            raise self._doubt(place, mark, f"messages of queue {queue} from offset {place.start} on were removed")
        return count, start

    # -- appending -----------------------------------------------------------------------------------------------

    def append(self, rows: Rows, mark: Mark, n: int) -> None:
        """Submit rows; `flush` waits for them. Raises StoreError and its kinds, PeerLost, TimedOut."""
        begin = self._append if rows.destination.kind == "topic" else self._put
        self._flying.append((rows, mark, n, begin(rows, mark, n)))

    def _append(self, rows: Rows, mark: Mark, n: int) -> Confirm[Any]:
        destination = rows.destination
        told = _told(rows.keys, rows.tags, rows.properties, mark.property(n), destination.queue)
        while True:
            handle = self._handles.get(destination) or self._renewed(destination)
            try:
                confirm = handle.append_many(rows.bodies, *told, _SYNCED, self._timeout_s, False)
            except AttachmentLost:  # nothing was submitted
                del self._handles[destination]
            else:
                assert isinstance(confirm, Confirm)
                return confirm

    def _renewed(self, destination: Destination) -> _core.TopicHandle:
        handle, declared = self._client.topic_handle(destination.name)
        self._check_attached()
        if declared.id != destination.id:
            raise TopicNotFound(f"topic {destination.name!r} was deleted and declared again in the middle of a batch")
        self._handles[destination] = handle
        return handle

    def _check_attached(self) -> None:
        if self._client.attached is not self._attachment or self._attachment.core.over:
            raise PeerLost("the node was stopped or started anew in the middle of a batch")

    def _put(self, rows: Rows, mark: Mark, n: int) -> Confirm[Any]:
        from warren.workers.faces import row_publish

        name, count = rows.destination.name, len(rows.bodies)
        if self._client.catalog().queue(name).lasting_id != rows.destination.id:
            raise QueueNotFound(f"queue {name!r} was deleted and declared again in the middle of a batch")
        ids = [mark.message_id(n + i) for i in range(count)]
        put = _to_put(rows.bodies, rows.keys, rows.properties, ids)
        return row_publish.put_rows(self._client, name, put, "synced", self._timeout_s)

    def flush(self) -> dict[Destination, int]:
        """Wait for all that was submitted; returns the offset behind it, of each queue of a topic."""
        flying, self._flying = self._flying, []
        ends: dict[Destination, int] = {}
        deadline = time.monotonic() + self._timeout_s
        for rows, mark, n, confirm in flying:
            if rows.destination.kind == "topic":
                ends[rows.destination] = confirm.result(max(0.0, deadline - time.monotonic()))[-1].offset + 1
            else:
                self._taken(rows, mark, n, confirm, deadline)
        self._check_attached()
        return ends

    def _taken(self, rows: Rows, mark: Mark, n: int, confirm: Confirm[Any], deadline: float) -> None:
        """Wait until a queue has the rows. What it refuses while it is full is put again, with what it has."""
        while True:
            try:
                return confirm.wait(max(0.0, deadline - time.monotonic()))
            except QueueFull:
                if time.monotonic() >= deadline:
                    raise QueueFull(
                        f"queue {rows.destination.name!r} was full for {self._timeout_s:g} s (its max_length or "
                        "max_length_bytes, with overflow reject-publish): the batch is committed, and is finished when "
                        "there is room; start its consumers, or raise the timeout"
                    ) from None
                time.sleep(_AGAIN_S)
                confirm = self._put(rows, mark, n)


def _number(record: Record, begins: str) -> int | None:
    """Before how many messages of the transaction it says that it was appended; None: it is none of it."""
    value = record.properties.get(PROPERTY)
    if value is None or not value.startswith(begins):
        return None
    rest = value[len(begins) :]
    return int(rest) if rest.isdecimal() else None


# -- what may be staged ------------------------------------------------------------------------------------------------


def apart(keys: str) -> list[str]:
    """The keys of a message of a topic that has several, with spaces between them."""
    return keys.split(" ")


def _told(
    keys: Sequence[Any] | None, tags: Sequence[Any] | None, properties: Sequence[Any] | None, mark: str, queue: int
) -> Told:
    """What is told of messages of a topic, with the property of their transaction; packed, as the names of properties
    that were read from a topic may be such as programs cannot give. Raises MessageTooLarge, UsageError.
    """
    packed: Any = _packed({PROPERTY: mark})
    if properties is not None:
        packed = [packed if not each else _packed({**each, PROPERTY: mark}) for each in properties]
    lists = None if keys is None else [None if key is None else apart(key) for key in keys]
    return Told(lists, None if tags is None else list(tags), packed, queue)


def _packed(properties: dict[str, str]) -> bytes:
    try:
        return _core.properties_encode(properties)
    except ValueError:
        pass
    for name, value in properties.items():
        try:
            _core.properties_encode({name: value})
        except ValueError:
            if len(name.encode()) + len(value.encode()) + 2 <= PROPERTIES_BYTES_MAX:
                raise UsageError(
                    f"header {shown(name)}: its name must not be empty, and neither name nor value may have the "
                    "characters \\x00, \\x01 and \\x02, which separate properties in the log"
                ) from None
    raise MessageTooLarge(
        f"the headers of a message of a topic have {PROPERTIES_BYTES_MAX} bytes at most, with that of its "
        "transaction: put more into the body"
    )


def _to_put(
    bodies: Sequence[bytes],
    keys: Sequence[Any] | None,
    headers: Sequence[Any] | None,
    ids: Sequence[str],
    numbers: Sequence[int] = (),
) -> row_columns.Rows:
    """Messages as rows for a queue. `numbers`: of the rows, for errors."""
    import numpy as np
    import pyarrow as pa

    from warren.workers.faces import row_columns

    columns = {"value": pa.array(bodies, pa.binary()), "message_id": pa.array(ids, pa.string())}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    if headers is not None:
        pairs = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in headers]
        value = next((value for each in headers for _name, value in each or () if value is not None), b"")
        kind = pa.string() if isinstance(value, str) else pa.binary()
        columns["headers"] = pa.array(pairs, pa.list_(pa.struct([("key", pa.string()), ("value", kind)])))
    return row_columns.Rows(pa.RecordBatch.from_pydict(columns), np.asarray(numbers, np.int64) if numbers else 0)


class Checks:
    """What a node would refuse of rows is refused before they are staged: behind the commit it would be too late."""

    def __init__(self, client: Client, state: State) -> None:
        most = 10**19  # no number of a transaction, or of a message, has more digits
        mark = Mark(state.sink, state.incarnation, most)
        self._client = client
        self._property, self._id = mark.property(most), mark.message_id(most)
        self._handles: dict[str, _core.TopicHandle] = {}

    def topic(
        self,
        name: str,
        bodies: Sequence[bytes],
        keys: Sequence[str | None] | None,
        tags: Sequence[str | None] | None,
        properties: Sequence[dict[str, str] | None] | None,
        numbers: Sequence[int],
    ) -> None:
        """Rows of a topic. Raises what an append raises, with the number of the row."""
        try:
            self._look(name, bodies, keys, tags, properties)
        except (UsageError, LimitError):
            for at, number in enumerate(numbers):  # which one
                one = [None if column is None else column[at : at + 1] for column in (keys, tags, properties)]
                try:
                    self._look(name, bodies[at : at + 1], one[0], one[1], one[2])
                except (UsageError, LimitError) as error:
                    raise type(error)(f"row {number}: {error}") from None
            raise

    def _look(self, name: str, bodies: Sequence[bytes], keys: Any, tags: Any, properties: Any) -> None:
        told = _told(keys, tags, properties, self._property, 0)
        while True:
            handle = self._handles.get(name)
            if handle is None:
                handle = self._handles[name] = self._client.topic_handle(name)[0]
            try:
                return handle.check_many(bodies, *told)
            except AttachmentLost:
                del self._handles[name]

    def queue(
        self,
        name: str,
        bodies: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Any] | None,
        numbers: Sequence[int],
    ) -> None:
        """Rows of a queue. Raises what a put raises, with the number of the row."""
        from warren.workers.faces import row_publish

        row_publish.check_rows(self._client, name, _to_put(bodies, keys, headers, [self._id] * len(bodies), numbers))


# -- for who commits --------------------------------------------------------------------------------------------------


def sink_of(path: str | Path, name: str, timeout_s: float) -> Sink:
    """A sink of a data directory. Raises InvalidName, NodeNotRunning (it is no data directory), StoreError."""
    directory = NodeDirectory(path)
    return Sink(directory.path, name, directory.read().node_id, timeout_s)


def commit(path: str | Path, sink: Sink, batch: Batch, parts: Sequence[Part], timeout_s: float, name: str) -> bool:
    """Commit a batch, and append it; false: it was committed before. A node that is stopped, killed or started anew
    meanwhile is waited for, for `timeout_s`.

    Raises what Sink.commit raises. An error says if the batch is committed all the same.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with NodeTargets(path, timeout_s, name) as targets:
                return sink.commit(batch, parts, targets)
        except Error as error:
            if isinstance(error, (PeerLost, ClosedError)) and time.monotonic() < deadline:
                time.sleep(_AGAIN_S)
                continue
            with suppress(Error):
                if sink.committed(batch):
                    name = sink.folder.name
                    again = "do not write it again; " if batch.number is None else ""
                    error.add_note(
                        f"sink {name!r}: {batch.text} is committed, and not all of it is there yet: {again}"
                        f"{command('transactions', path, '--finish', name)}, or the next write with this sinkId, "
                        "finishes it. If that fails for good (a setting was lowered, a queue deleted), "
                        f"{command('transactions', path, '--forget', name, '--force')} gives the rest up"
                    )
            raise


def finish(path: str | Path, sink: Sink, timeout_s: float, name: str, again: bool = False) -> Pending | None:
    """Append what is committed and not there yet; returns what it was. Raises what Sink.finish raises."""
    with NodeTargets(path, timeout_s, name) as targets:
        return sink.finish(targets, again)
