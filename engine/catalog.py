"""What is declared in a node: queues, exchanges, bindings. One file, `catalog.json`; one writer, the supervisor.

The file is `{"crc32": …, "catalog": {…}}`, replaced as a whole. `version` rises with every change and goes to
`superblock.catalog_version` after the file is in place, so a reader that sees a version finds that catalog or a
newer one.

Invariants
  A queue id is never used again (`next_queue_id` only rises), because journals of the past name it.
  A binding's exchange and queue exist. It is as durable as the less durable of them.
  A queue stays with its worker as long as it exists. A subscription lives with the worker of its queue.
  Transient queues and exchanges vanish when a node starts cold (`drop_transient`), not when a supervisor is replaced.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from warren.engine import atomic_file
from warren.engine.errors import (
    CorruptRecord,
    DeclarationMismatch,
    ExchangeNotFound,
    FormatVersionError,
    LimitError,
    QueueNotFound,
    UsageError,
)
from warren.engine.formats import FORMAT_VERSION
from warren.engine.names import check_name, check_routing_key, subscription_name

FILE_NAME = "catalog.json"
EXCHANGE_TYPES = ("direct", "fanout", "topic")
RESERVED_PREFIX = "amq."
#: rows of a worker's statistics region
QUEUES_PER_WORKER_MAX = 4096
#: arguments that a queue may be declared with; none in this version
QUEUE_ARGUMENTS: frozenset[str] = frozenset()


class QueueDeclaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One queue. `subscription_of`: id of the queue whose claims it holds, 0 for a queue of its own."""

    id: int
    name: str
    durable: bool
    worker: int
    hidden: bool = False
    arguments: dict[str, Any] = {}
    subscription_of: int = 0


class ExchangeDeclaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One exchange; `type` is direct, fanout or topic."""

    name: str
    type: str
    durable: bool


class Binding(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """Messages of an exchange whose routing key matches go to the queue."""

    exchange: str
    queue: str
    routing_key: str


#: exchanges that are always there; "" routes to the queue that is named by the routing key
DEFAULT_EXCHANGES = (
    ExchangeDeclaration("", "direct", True),
    ExchangeDeclaration("amq.direct", "direct", True),
    ExchangeDeclaration("amq.fanout", "fanout", True),
    ExchangeDeclaration("amq.topic", "topic", True),
)


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    format_version: int
    version: int
    next_queue_id: int
    queues: list[QueueDeclaration]
    exchanges: list[ExchangeDeclaration]
    bindings: list[Binding]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    crc32: int
    catalog: msgspec.Raw


class _Version(msgspec.Struct):
    format_version: int


class Catalog:
    """The declarations of one node at one version.

    A changing method checks everything before it changes anything; after an error the catalog is what it was.
    It does not write the file: change a `copy()`, `save()` it, then use it.
    """

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.next_queue_id = 1
        self.queues: dict[str, QueueDeclaration] = {}
        self.by_id: dict[int, QueueDeclaration] = {}
        self.exchanges: dict[str, ExchangeDeclaration] = {item.name: item for item in DEFAULT_EXCHANGES}
        self.bindings: set[Binding] = set()

    # -- file ---------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, directory: Path | str) -> Catalog:
        """Read `directory/catalog.json`. Raises CorruptRecord, FormatVersionError, PermissionRefused, StoreError."""
        path = Path(directory) / FILE_NAME
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise CorruptRecord(path, 0, "the catalog of the node", "no file") from error
        except OSError as error:
            raise atomic_file.explain(error, f"cannot read {path}") from error
        return cls.decode(content, path)

    @classmethod
    def decode(cls, content: bytes, path: Path) -> Catalog:
        """The catalog in the bytes of a file; `path` is for error messages."""
        try:
            outer = msgspec.json.decode(content, type=_File)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptRecord(path, 0, "a catalog", str(error)) from error
        raw = bytes(outer.catalog)
        if zlib.crc32(raw) != outer.crc32:
            raise CorruptRecord(path, 0, f"crc32 {outer.crc32}", str(zlib.crc32(raw)))
        try:
            found = msgspec.json.decode(raw, type=_Version).format_version
            if found > FORMAT_VERSION:
                raise FormatVersionError(
                    f"{path} has format version {found}, and this Warren knows {FORMAT_VERSION}: install a newer Warren"
                )
            body = msgspec.json.decode(raw, type=_Body)
        except msgspec.MsgspecError as error:
            raise CorruptRecord(path, 0, "a catalog", str(error)) from error
        catalog = cls(body.version)
        catalog.next_queue_id = body.next_queue_id
        catalog.queues = {item.name: item for item in body.queues}
        catalog.by_id = {item.id: item for item in body.queues}
        catalog.exchanges.update((item.name, item) for item in body.exchanges)
        catalog.bindings = set(body.bindings)
        if len(catalog.by_id) != len(body.queues) or any(id >= body.next_queue_id for id in catalog.by_id):
            raise CorruptRecord(path, 0, "queue ids used once, below next_queue_id", "others")
        return catalog

    def encode(self) -> bytes:
        """The bytes of the file."""
        defaults = {item.name for item in DEFAULT_EXCHANGES}
        body = _Body(
            FORMAT_VERSION,
            self.version,
            self.next_queue_id,
            sorted(self.queues.values(), key=lambda item: item.id),
            [item for name, item in sorted(self.exchanges.items()) if name not in defaults],
            sorted(self.bindings),
        )
        raw = msgspec.json.encode(body)
        return b'{"crc32":%d,"catalog":%s}\n' % (zlib.crc32(raw), raw)

    def save(self, directory: Path | str) -> None:
        """Make it the durable catalog of the directory. Raises DiskFull, PermissionRefused, SyncFailed; then the old
        one stands.
        """
        atomic_file.replace(Path(directory) / FILE_NAME, self.encode())

    def copy(self) -> Catalog:
        """An independent copy."""
        other = Catalog(self.version)
        other.next_queue_id = self.next_queue_id
        other.queues, other.by_id = dict(self.queues), dict(self.by_id)
        other.exchanges, other.bindings = dict(self.exchanges), set(self.bindings)
        return other

    # -- asking -------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> QueueDeclaration:
        """The queue of that name; raises QueueNotFound."""
        found = self.queues.get(name)
        if found is None or found.hidden:
            raise QueueNotFound(f"there is no queue {name!r}: declare it first")
        return found

    def exchange(self, name: str) -> ExchangeDeclaration:
        """The exchange of that name; raises ExchangeNotFound."""
        found = self.exchanges.get(name)
        if found is None:
            raise ExchangeNotFound(f"there is no exchange {name!r}: declare it first")
        return found

    def subscription(self, queue: str, name: str) -> QueueDeclaration | None:
        """The hidden queue of a subscription, None when it is not declared."""
        return self.queues.get(subscription_name(queue, name))

    def subscriptions(self, queue: QueueDeclaration) -> list[QueueDeclaration]:
        """The hidden queues that hold claims of a queue."""
        return [item for item in self.queues.values() if item.subscription_of == queue.id]

    def of_worker(self, worker: int) -> list[QueueDeclaration]:
        """The queues that a worker owns, the hidden ones too, by id."""
        return sorted((item for item in self.queues.values() if item.worker == worker), key=lambda item: item.id)

    # -- changing -----------------------------------------------------------------------------------------------

    def declare_queue(
        self, name: str, *, workers_n: int, durable: bool = True, arguments: dict[str, Any] | None = None
    ) -> QueueDeclaration:
        """Declare a queue, or find the same one. A new one goes to the worker with the fewest queues.

        Raises InvalidName, DeclarationMismatch, UsageError (unknown argument), LimitError.
        """
        check_name(name)
        arguments = dict(arguments or {})
        for key in arguments:
            if key not in QUEUE_ARGUMENTS:
                raise UsageError(
                    f"queue {name!r}: unknown argument {key!r}: this version knows {sorted(QUEUE_ARGUMENTS) or 'none'}"
                )
        found = self.queues.get(name)
        if found is not None:
            if (found.durable, found.arguments) != (durable, arguments):
                raise DeclarationMismatch(
                    f"queue {name!r} exists as {_describe(found.durable, found.arguments)}, "
                    f"not as {_describe(durable, arguments)}: open it as it is, or delete it first"
                )
            return found
        return self._add_queue(name, durable, self._place(workers_n), arguments=arguments)

    def declare_subscription(self, queue: str, name: str) -> QueueDeclaration:
        """Declare a subscription of a queue, or find the one of that name: a hidden queue on the same worker, as
        durable as it.
        """
        check_name(name, "subscription")
        source = self.queue(queue)
        found = self.subscription(queue, name)
        if found is not None:
            return found
        self._check_worker(source.worker)
        return self._add_queue(
            subscription_name(queue, name), source.durable, source.worker, hidden=True, subscription_of=source.id
        )

    def delete_subscription(self, queue: str, name: str) -> QueueDeclaration:
        """Forget a subscription; its claims must have been returned before (`release`). Raises QueueNotFound."""
        found = self.subscription(queue, name)
        if found is None:
            raise QueueNotFound(f"queue {queue!r} has no subscription {name!r}")
        self._remove_queue(found)
        return found

    def delete_queue(self, name: str) -> QueueDeclaration:
        """Delete a queue with its subscriptions and bindings. Raises QueueNotFound."""
        found = self.queue(name)
        for item in self.subscriptions(found):
            self._remove_queue(item)
        self._remove_queue(found)
        return found

    def declare_exchange(self, name: str, *, type: str = "direct", durable: bool = True) -> ExchangeDeclaration:
        """Declare an exchange, or find the same one. Raises InvalidName, UsageError (type), DeclarationMismatch."""
        found = self.exchanges.get(name)
        if found is None or found.name:
            check_name(name, "exchange")
        if type not in EXCHANGE_TYPES:
            raise UsageError(f"exchange {name!r}: there is no type {type!r}; choose one of {', '.join(EXCHANGE_TYPES)}")
        if found is not None:
            if (found.type, found.durable) != (type, durable):
                raise DeclarationMismatch(
                    f"exchange {name!r} exists as {found.type}, {_describe(found.durable, {})}, "
                    f"not as {type}, {_describe(durable, {})}: use it as it is, or delete it first"
                )
            return found
        if name.startswith(RESERVED_PREFIX):
            raise UsageError(
                f"exchange {name!r}: names that begin with {RESERVED_PREFIX!r} are reserved; choose another"
            )
        declaration = ExchangeDeclaration(name, type, durable)
        self.exchanges[name] = declaration
        self.version += 1
        return declaration

    def delete_exchange(self, name: str) -> ExchangeDeclaration:
        """Delete an exchange and its bindings. Raises ExchangeNotFound, UsageError (a default one)."""
        found = self.exchange(name)
        if not name or name.startswith(RESERVED_PREFIX):
            raise UsageError(f"exchange {name!r} is always there and cannot be deleted")
        del self.exchanges[name]
        self.bindings = {item for item in self.bindings if item.exchange != name}
        self.version += 1
        return found

    def bind(self, queue: str, exchange: str, routing_key: str = "") -> Binding:
        """Bind a queue to an exchange, or find the same binding. Raises QueueNotFound, ExchangeNotFound, UsageError."""
        binding = self._binding(queue, exchange, routing_key)
        if binding not in self.bindings:
            self.bindings.add(binding)
            self.version += 1
        return binding

    def unbind(self, queue: str, exchange: str, routing_key: str = "") -> bool:
        """Remove a binding; False when there was none. Raises QueueNotFound, ExchangeNotFound, UsageError."""
        binding = self._binding(queue, exchange, routing_key)
        if binding not in self.bindings:
            return False
        self.bindings.remove(binding)
        self.version += 1
        return True

    def drop_transient(self) -> list[QueueDeclaration]:
        """Forget what does not outlive the node: transient queues and exchanges, and their bindings. Returns the
        queues.
        """
        queues = [item for item in self.queues.values() if not item.durable]
        exchanges = [item for item in self.exchanges.values() if not item.durable]
        if not queues and not exchanges:
            return []
        for item in exchanges:
            del self.exchanges[item.name]
        for queue in queues:
            del self.queues[queue.name], self.by_id[queue.id]
        self.bindings = {
            item for item in self.bindings if item.exchange in self.exchanges and item.queue in self.queues
        }
        self.version += 1
        return queues

    # -- parts --------------------------------------------------------------------------------------------------

    def _add_queue(
        self,
        name: str,
        durable: bool,
        worker: int,
        *,
        hidden: bool = False,
        arguments: dict[str, Any] | None = None,
        subscription_of: int = 0,
    ) -> QueueDeclaration:
        if self.next_queue_id > 0xFFFF_FFFF:
            raise LimitError("all 2^32 queue ids of this data directory were used: move to a new directory")
        declaration = QueueDeclaration(
            self.next_queue_id, name, durable, worker, hidden, arguments or {}, subscription_of
        )
        self.next_queue_id += 1
        self.queues[name] = self.by_id[declaration.id] = declaration
        self.version += 1
        return declaration

    def _remove_queue(self, queue: QueueDeclaration) -> None:
        del self.queues[queue.name], self.by_id[queue.id]
        self.bindings = {item for item in self.bindings if item.queue != queue.name}
        self.version += 1

    def _counts(self, workers: Iterable[int]) -> dict[int, int]:
        counts = dict.fromkeys(workers, 0)
        for item in self.queues.values():
            if item.worker in counts:
                counts[item.worker] += 1
        return counts

    def _place(self, workers_n: int) -> int:
        """The worker with the fewest queues."""
        counts = self._counts(range(workers_n))
        worker = min(counts, key=lambda item: (counts[item], item))
        self._check_worker(worker)
        return worker

    def _check_worker(self, worker: int) -> None:
        if self._counts([worker])[worker] >= QUEUES_PER_WORKER_MAX:
            raise LimitError(
                f"queue worker {worker} has {QUEUES_PER_WORKER_MAX} queues, which is the most: "
                "delete some, or start the node with more workers (setting workers)"
            )

    def _binding(self, queue: str, exchange: str, routing_key: str) -> Binding:
        self.queue(queue)
        self.exchange(exchange)
        check_routing_key(routing_key)
        if not exchange:
            raise UsageError("the default exchange '' reaches every queue by its name, and takes no bindings")
        return Binding(exchange, queue, routing_key)


def _describe(durable: bool, arguments: dict[str, Any]) -> str:
    return ("durable" if durable else "transient") + (f" with {arguments}" if arguments else "")
