"""What is declared in a node: queues, exchanges, bindings, topics. One writer, the supervisor.

On disk it is `catalog.json` and, while a node runs and after it was killed, a log of the changes since
(engine/catalog/log.py). The file is `{"crc32": …, "catalog": {…}}`, replaced as a whole; its format version is the
oldest that has room for what it says (`_format_version`). `version` rises with every change and goes to
`superblock.catalog_version` when the change is on disk, so a reader that sees a version finds that catalog.

Invariants
  A queue id is never used again (`next_queue_id` only rises), because journals of the past name it. Topics draw theirs
  from the same numbers: records of the past name them.
  A binding's exchange and queue (topic, exchange) exist. It is as durable as the less durable of them.
  An auto_delete exchange goes in the change that takes away the last thing that was bound to it.
  A queue stays with its worker while a node runs. A subscription lives with the worker of its queue.
  A queue that moved to another worker has another id there: for the old worker it is one that was deleted.
  A queue with a dead_letter_exchange has a companion, a hidden queue of the same worker and durability that holds its
  dead letters until they are forwarded; both are declared and deleted in one change.
  Transient and exclusive queues and transient exchanges vanish when a node starts cold (`drop_transient`), not when a
  supervisor is replaced.
  A file of an older version loads: what it does not name has its default.
  A change costs what it changes: nothing but `copy`, `encode` and what asks for all queues goes through all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from warren.engine.catalog import group_topics, topics
from warren.engine.catalog.arguments import PRIORITY_MAX_BEFORE, ZERO_COUNTS, QueueArguments
from warren.engine.catalog.exchanges import (
    ALL_BYTES_MAX,
    BINDINGS_MAX,
    DEFAULT_EXCHANGES,
    EXCHANGE_TYPES,
    EXCHANGES_MAX,
    NEWER_EXCHANGES,
    RESERVED_PREFIX,
    ExchangeBinding,
    ExchangeDeclaration,
    Opaque,
    check_new,
    checked_opaque,
    compared,
    conditions_of,
    described,
    size_of,
)
from warren.engine.catalog.group_topics import Kind
from warren.engine.catalog.names import (
    check_name,
    check_routing_key,
    check_topic_name,
    dead_letters_name,
    subscription_name,
)
from warren.engine.catalog.placement import place
from warren.engine.catalog.topic_bindings import KEY, TAG, TopicBinding, checked_source
from warren.engine.catalog.topics import TOPIC_QUEUES, TOPIC_ROWS_MAX, TopicDeclaration
from warren.engine.errors import (
    CorruptRecord,
    DeclarationMismatch,
    ExchangeNotFound,
    FormatVersionError,
    LimitError,
    PreconditionFailed,
    QueueNotFound,
    ResourceLocked,
    TopicNotFound,
    UsageError,
)
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.formats import (
    CATALOG_VERSION,
    CATALOG_VERSION_ALONE,
    CATALOG_VERSION_BOUND,
    CATALOG_VERSION_LOGGED,
    CATALOG_VERSION_TOPICS,
)
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.saying import (
    AS_IT_IS,
    DECLARE_EXCHANGE,
    DECLARE_QUEUE,
    DECLARE_TOPIC,
    NOTHING_DELETED,
    counted,
    in_a_program,
    quoted,
    shown,
    undecoded,
)

FILE_NAME = "catalog.json"
#: queues of one worker, the hidden ones too: rows of its statistics region
QUEUES_PER_WORKER_MAX = PROTOCOL["QUEUES_PER_WORKER_MAX"]
_NONE: Mapping[Any, Any] = {}


# What is declared has no cycles: `gc=False`, so that reading thousands of them sets off no collection of garbage.


class QueueDeclaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One queue. `subscription_of`, `dead_letters_of`: id of the queue whose claims or dead letters it holds, 0 for a
    queue of its own. `owner`: client epoch of the client that an exclusive queue belongs to, else 0. `first_id`: its id
    before it moved for the first time, 0: it never did. `origin`: what the client of another protocol declared it with.
    """

    id: int
    name: str
    durable: bool
    worker: int
    hidden: bool = False
    arguments: dict[str, Any] = {}
    subscription_of: int = 0
    dead_letters_of: int = 0
    owner: int = 0
    first_id: int = 0
    origin: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET

    @property
    def lasting_id(self) -> int:
        """The id that it was declared with. What outlives a start (checkpoints, keys of letters) names it by this."""
        return self.first_id or self.id

    @property
    def policy(self) -> QueueArguments:
        """Its arguments, each in its type."""
        return msgspec.convert(self.arguments, QueueArguments)

    @property
    def outlives_node(self) -> bool:
        """False when it vanishes with the node."""
        return self.durable and not self.owner

    @property
    def leased(self) -> bool:
        """True when it may go by itself: exclusive, auto_delete, expires (workers/node/queue_life.py)."""
        return not self.hidden and bool(self.owner or "auto_delete" in self.arguments or "expires" in self.arguments)


class Binding(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Messages of an exchange whose routing key (headers exchange: whose headers) match go to the queue.

    `conditions`: the arguments as JSON with sorted keys, '' for none, so that a binding can be compared and hashed.
    Those of a headers exchange are compared with the headers of a message, and have `x-match`.
    """

    exchange: str
    queue: str
    routing_key: str
    conditions: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that it was bound with."""
        found: dict[str, Any] = msgspec.json.decode(self.conditions) if self.conditions else {}
        return found


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One thing that came, or went (`gone`): exactly one of a queue, an exchange, a binding, a topic, a binding of a
    topic, and a binding of an exchange to another.
    """

    queue: QueueDeclaration | None = None
    exchange: ExchangeDeclaration | None = None
    binding: Binding | None = None
    topic: TopicDeclaration | None = None
    topic_binding: TopicBinding | None = None
    exchange_binding: ExchangeBinding | None = None
    gone: bool = False


class State(NamedTuple):
    """The numbers of a catalog."""

    version: int
    next_queue_id: int
    placed_for: int


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    format_version: int
    version: int
    next_queue_id: int
    queues: list[QueueDeclaration]
    exchanges: list[ExchangeDeclaration]
    bindings: list[Binding]
    placed_for: int = 0
    log: int | msgspec.UnsetType = msgspec.UNSET
    topics: list[TopicDeclaration] | msgspec.UnsetType = msgspec.UNSET
    topic_bindings: list[TopicBinding] | msgspec.UnsetType = msgspec.UNSET
    exchange_bindings: list[ExchangeBinding] | msgspec.UnsetType = msgspec.UNSET


class _File(msgspec.Struct, forbid_unknown_fields=True):
    crc32: int
    catalog: msgspec.Raw


class _Version(msgspec.Struct):
    format_version: int


class Catalog:
    """The declarations of one node at one version.

    A changing method checks everything before it changes anything; after an error the catalog is what it was. It does
    not touch a file: `catalog_log.Writer` makes changes durable, and `save()` writes a catalog that nobody reads yet.
    `steps`: what changed since `begin()`; None: nobody wants to know.
    """

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.next_queue_id = 1
        self.placed_for = 0  #: workers of the node when its queues were last placed, 0: not known
        self.queues: dict[str, QueueDeclaration] = {}
        self.by_id: dict[int, QueueDeclaration] = {}
        self.exchanges: dict[str, ExchangeDeclaration] = {item.name: item for item in DEFAULT_EXCHANGES}
        self.bindings: set[Binding] = set()
        self.topics: dict[str, TopicDeclaration] = {}
        self.topics_by_id: dict[int, TopicDeclaration] = {}
        self.topic_rows = 0  #: queues of all topics
        self.topic_bindings: set[TopicBinding] = set()
        self.opaque_bytes = 0  #: of all arguments and origins
        self.leased: dict[int, QueueDeclaration] = {}  #: queues that may go by themselves, by id
        self.steps: list[Step] | None = None
        self.log = 0  #: stamp of the log that its file names, 0: the file stands for itself
        self._workers: dict[int, dict[int, QueueDeclaration]] = {}
        self._members: dict[int, dict[int, QueueDeclaration]] = {}  # of a queue: subscriptions, dead letters
        self._of_queue: dict[str, set[Binding]] = {}
        self._of_exchange: dict[str, set[Binding]] = {}
        self._of_topic: dict[str, set[TopicBinding]] = {}
        self._topics_of_exchange: dict[str, set[TopicBinding]] = {}
        self.exchange_bindings: set[ExchangeBinding] = set()
        self._to_exchange: dict[str, set[ExchangeBinding]] = {}
        self._onward: dict[str, set[ExchangeBinding]] = {}  # by the exchange that they lead from
        self._before = self.state
        self._retold: dict[int, TopicDeclaration] = {}  # by number of a step: what the topic was before

    @property
    def state(self) -> State:
        """Its numbers."""
        return State(self.version, self.next_queue_id, self.placed_for)

    # -- file ---------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, directory: Path | str) -> Catalog:
        """Read the catalog of a directory: its file and its log.

        Raises CorruptRecord, FormatVersionError, PermissionRefused, StoreError.
        """
        from warren.engine.catalog import log as catalog_log  # it is built on this

        return catalog_log.load(directory).catalog

    @classmethod
    def read(cls, directory: Path | str) -> Catalog:
        """What `directory/catalog.json` alone says. Raises as `load`."""
        path = Path(directory) / FILE_NAME
        try:
            content = data_files.read(path)
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
            raise CorruptRecord(path, 0, "a catalog", undecoded(error)) from error
        raw = bytes(outer.catalog)
        if zlib.crc32(raw) != outer.crc32:
            raise CorruptRecord(path, 0, f"crc32 {outer.crc32}", str(zlib.crc32(raw)))
        try:
            found = msgspec.json.decode(raw, type=_Version).format_version
            if found > CATALOG_VERSION:
                raise FormatVersionError(
                    f"{path} has format version {found}, and this Warren knows {CATALOG_VERSION}: "
                    "install a newer Warren"
                )
            body = msgspec.json.decode(raw, type=_Body)
        except msgspec.MsgspecError as error:
            raise CorruptRecord(path, 0, "a catalog", undecoded(error)) from error
        catalog = cls(body.version)
        catalog.next_queue_id = body.next_queue_id
        catalog.placed_for = body.placed_for
        for queue in body.queues:
            catalog._put_queue(queue)
        for exchange in body.exchanges:
            catalog._put_exchange(exchange)
        for binding in body.bindings:
            catalog._put_binding(binding)
        declared = body.topics or []
        for topic in declared:
            catalog._put_topic(topic)
        for bound in body.topic_bindings or []:
            if bound.topic not in catalog.topics or bound.exchange not in catalog.exchanges:
                raise CorruptRecord(path, 0, "bindings of topics and exchanges that are there", str(bound))
            catalog._put_topic_binding(bound)
        for onward in body.exchange_bindings or []:
            if not {onward.exchange, onward.destination} <= catalog.exchanges.keys():
                raise CorruptRecord(path, 0, "bindings of exchanges that are there", str(onward))
            catalog._put_exchange_binding(onward)
        ids = catalog.by_id.keys() | catalog.topics_by_id.keys()
        if (
            len(ids) != len(body.queues) + len(declared)
            or len(catalog.queues) != len(body.queues)
            or len(catalog.topics) != len(declared)
            or any(id >= body.next_queue_id for id in ids)
        ):
            raise CorruptRecord(path, 0, "ids and names used once, ids below next_queue_id", "others")
        catalog.log = body.log or 0
        return catalog

    def encode(self) -> bytes:
        """The bytes of the file."""
        defaults = {item.name for item in DEFAULT_EXCHANGES}
        body = _Body(
            self._format_version(),
            self.version,
            self.next_queue_id,
            sorted(self.queues.values(), key=lambda item: item.id),
            [item for name, item in sorted(self.exchanges.items()) if name not in defaults],
            sorted(self.bindings),
            self.placed_for,
            self.log or msgspec.UNSET,
            sorted(self.topics.values(), key=lambda item: item.id) or msgspec.UNSET,
            sorted(self.topic_bindings) or msgspec.UNSET,
            sorted(self.exchange_bindings) or msgspec.UNSET,
        )
        raw = msgspec.json.encode(body)
        return b'{"crc32":%d,"catalog":%s}\n' % (zlib.crc32(raw), raw)

    def _format_version(self) -> int:
        """The oldest that has room for all of it: what has no use for a newer one, an older Warren reads."""
        if self.exchange_bindings or self._says_more():
            return CATALOG_VERSION
        if self.topic_bindings:
            return CATALOG_VERSION_BOUND
        if self.topics:
            return CATALOG_VERSION_TOPICS
        return CATALOG_VERSION_LOGGED if self.log else CATALOG_VERSION_ALONE

    def _says_more(self) -> bool:
        """Whether something is declared that format versions before 5 have no room for, or other rules for."""
        bound: Iterable[Binding | TopicBinding] = (*self.bindings, *self.topic_bindings)
        return (
            any(not item.plain for name, item in self.exchanges.items() if name not in NEWER_EXCHANGES)
            or any(
                item.origin
                or item.arguments.get("max_priority", 0) > PRIORITY_MAX_BEFORE
                or item.arguments.get("overflow") == "reject-publish-dlx"
                or 0 in (item.arguments.get(name) for name in ZERO_COUNTS)
                for item in self.queues.values()
            )
            or any(item.by_name or item.origin for item in self.topics.values())
            or any(
                item.exchange in NEWER_EXCHANGES
                or (item.conditions and self.exchanges[item.exchange].type != "headers")
                for item in bound
            )
        )

    def save(self, directory: Path | str) -> None:
        """Make it the durable catalog of a directory whose node does not run: one file, no log. Raises DiskFull,
        PermissionRefused, SyncFailed; then the old one stands.
        """
        from warren.engine.catalog import log as catalog_log

        self.log = 0
        atomic_file.replace(Path(directory) / FILE_NAME, self.encode())
        catalog_log.remove_logs(directory, keep=())

    def copy(self) -> Catalog:
        """An independent copy."""
        other = Catalog(self.version)
        other.next_queue_id, other.placed_for = self.next_queue_id, self.placed_for
        other.queues, other.by_id, other.leased = dict(self.queues), dict(self.by_id), dict(self.leased)
        other.exchanges, other.bindings = dict(self.exchanges), set(self.bindings)
        other.topics, other.topics_by_id = dict(self.topics), dict(self.topics_by_id)
        other.topic_rows, other.opaque_bytes = self.topic_rows, self.opaque_bytes
        other._workers = {worker: dict(items) for worker, items in self._workers.items()}
        other._members = {id: dict(items) for id, items in self._members.items()}
        other._of_queue = {name: set(items) for name, items in self._of_queue.items()}
        other._of_exchange = {name: set(items) for name, items in self._of_exchange.items()}
        other.topic_bindings = set(self.topic_bindings)
        other._of_topic = {name: set(items) for name, items in self._of_topic.items()}
        other._topics_of_exchange = {name: set(items) for name, items in self._topics_of_exchange.items()}
        other.exchange_bindings = set(self.exchange_bindings)
        other._to_exchange = {name: set(items) for name, items in self._to_exchange.items()}
        other._onward = {name: set(items) for name, items in self._onward.items()}
        return other

    # -- following ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """From now on changes are noted in `steps`, until `end` or `undo`."""
        self.steps = []
        self._retold = {}
        self._before = self.state

    def end(self) -> None:
        """The changes since `begin` stand."""
        self.steps = None

    def undo(self) -> None:
        """Take back every change since `begin`."""
        steps, self.steps = self.steps or [], None
        for number, step in reversed(list(enumerate(steps))):
            if number in self._retold:
                self._put_topic(self._retold[number])
            else:
                self._step(step, not step.gone)
        self.version, self.next_queue_id, self.placed_for = self._before

    def redo(self, steps: Iterable[Step], state: State) -> None:
        """Make the changes once more that were undone."""
        self.begin()
        self.follow(steps, state)

    def follow(self, steps: Iterable[Step], state: State) -> None:
        """Do what another one did. Raises KeyError, ValueError when the steps are not of a catalog like this one."""
        for step in steps:
            self._step(step, step.gone)
        self.version, self.next_queue_id, self.placed_for = state

    def _step(self, step: Step, gone: bool) -> None:
        if step.queue is not None:
            if gone:
                self._cut_queue(self.by_id[step.queue.id])
            elif step.queue.name in self.queues or step.queue.id in self.by_id:
                raise ValueError(f"queue {quoted(step.queue.name)} or its id {step.queue.id} exists already")
            else:
                self._put_queue(step.queue)
        elif step.exchange is not None:
            if gone:
                self._cut_exchange(step.exchange)
            else:
                self._put_exchange(step.exchange)
        elif step.binding is not None:
            if gone:
                self._cut_binding(step.binding)
            else:
                self._put_binding(step.binding)
        elif step.topic is not None:
            if gone:
                self._cut_topic(self.topics_by_id[step.topic.id])
            elif topics.is_retold(self.topics.get(step.topic.name), step.topic):
                self._put_topic(step.topic)
            elif step.topic.name in self.topics or step.topic.id in self.topics_by_id:
                raise ValueError(f"topic {quoted(step.topic.name)} or its id {step.topic.id} exists already")
            else:
                self._put_topic(step.topic)
        elif step.topic_binding is not None:
            if gone:
                self._cut_topic_binding(step.topic_binding)
            elif step.topic_binding.topic not in self.topics or step.topic_binding.exchange not in self.exchanges:
                raise ValueError(f"there is no topic or exchange of {step.topic_binding}")
            else:
                self._put_topic_binding(step.topic_binding)
        elif step.exchange_binding is not None:
            if gone:
                self._cut_exchange_binding(step.exchange_binding)
            elif not {step.exchange_binding.exchange, step.exchange_binding.destination} <= self.exchanges.keys():
                raise ValueError(f"there are no exchanges of {step.exchange_binding}")
            else:
                self._put_exchange_binding(step.exchange_binding)

    # -- asking -------------------------------------------------------------------------------------------------

    def queue(self, name: str, advice: str = DECLARE_QUEUE) -> QueueDeclaration:
        """The queue of that name; raises QueueNotFound with this advice."""
        found = self.queues.get(name)
        if found is None or found.hidden:
            raise QueueNotFound(f"there is no queue {shown(name)}: {advice}")
        return found

    def exchange(self, name: str, advice: str = DECLARE_EXCHANGE) -> ExchangeDeclaration:
        """The exchange of that name; raises ExchangeNotFound with this advice."""
        found = self.exchanges.get(name)
        if found is None:
            raise ExchangeNotFound(f"there is no exchange {shown(name)}: {advice}")
        return found

    def topic(self, name: str, advice: str = DECLARE_TOPIC) -> TopicDeclaration:
        """The topic of that name; raises TopicNotFound with this advice."""
        found = self.topics.get(name)
        if found is None:
            raise TopicNotFound(f"there is no topic {shown(name)}: {advice}")
        return found

    def subscription(self, queue: str, name: str) -> QueueDeclaration | None:
        """The hidden queue of a subscription, None when it is not declared."""
        return self.queues.get(subscription_name(queue, name))

    def subscriptions(self, queue: QueueDeclaration) -> list[QueueDeclaration]:
        """The hidden queues that hold claims of a queue."""
        return [item for item in self._members.get(queue.id, _NONE).values() if item.subscription_of]

    def dead_letters(self, queue: QueueDeclaration) -> QueueDeclaration | None:
        """The hidden queue that holds the dead letters of a queue, None when it has no dead_letter_exchange."""
        found = self.queues.get(dead_letters_name(queue.name))
        return found if found is not None and found.dead_letters_of == queue.id else None

    def of_worker(self, worker: int) -> list[QueueDeclaration]:
        """The queues that a worker owns, the hidden ones too, by id."""
        return sorted(self._workers.get(worker, _NONE).values(), key=lambda item: item.id)

    def families(self) -> dict[str, list[QueueDeclaration]]:
        """The queues with those that belong to them, by id: subscriptions, dead letters."""
        found: dict[int, list[QueueDeclaration]] = {}
        for item in sorted(self.queues.values(), key=lambda item: item.id):
            found.setdefault(item.subscription_of or item.dead_letters_of or item.id, []).append(item)
        return {self.by_id[id].name: members for id, members in found.items()}

    # -- changing -----------------------------------------------------------------------------------------------

    def declare_queue(
        self,
        name: str,
        *,
        workers_n: int,
        without: Collection[int] = (),
        durable: bool = True,
        arguments: dict[str, Any] | None = None,
        as_it_is: bool = False,
        client: int = 0,
        origin: Mapping[str, Any] | None = None,
    ) -> QueueDeclaration:
        """Declare a queue, or find the same one (`as_it_is`: or one of that name, however it was declared). A new one
        gets a worker by its name (placement.py).

        `client`: epoch of the client that declares, which becomes the owner of an exclusive queue; `without`: workers
        that get no new queue as long as there are others. `origin`: kept with a new one, and compared with nothing.
        Raises InvalidName, DeclarationMismatch, UsageError (unknown or wrong argument), ResourceLocked, LimitError.
        """
        check_name(name)
        policy = QueueArguments.of(name, arguments or {})
        given = policy.given()
        said = checked_opaque(f"queue {quoted(name)}: what origin names", origin)
        found = self.queues.get(name)
        if found is not None:
            self.check_owner(found, client)
            if not as_it_is and (found.durable, found.arguments) != (durable, given):
                raise DeclarationMismatch(
                    f"queue {quoted(name)} exists and differs: {_differences(found, durable, given)}: {AS_IT_IS}"
                )
            return found
        if policy.exclusive and not client:
            raise UsageError(
                f"queue {quoted(name)}: an exclusive queue belongs to the client that declares "
                f"it, so only a program can: "
                f"leave out the argument exclusive{in_a_program('node.queue(…, exclusive=True)')}"
            )
        self._check_new(f"queue {quoted(name)}: what origin names", said)
        worker = self._place(name, workers_n, without, 2 if policy.dead_letters else 1)
        owner = client if policy.exclusive else 0
        made = self._add_queue(name, durable, worker, arguments=given, owner=owner, origin=said)
        if policy.dead_letters:
            self._add_queue(dead_letters_name(name), durable, worker, hidden=True, dead_letters_of=made.id, owner=owner)
        return made

    def check_owner(self, queue: QueueDeclaration, client: int) -> None:
        """Raises ResourceLocked when the queue is exclusive and belongs to another client."""
        if queue.owner and queue.owner != client:
            raise ResourceLocked(
                f"queue {quoted(queue.name)} is exclusive and belongs to another client: "
                "use another name, or wait until that client is gone"
            )

    def declare_subscription(self, queue: str, name: str, *, client: int = 0) -> QueueDeclaration:
        """Declare a subscription of a queue, or find the one of that name: a hidden queue on the same worker, as
        durable as it.
        """
        check_name(name, "subscription")
        source = self.queue(queue)
        self.check_owner(source, client)
        found = self.subscription(queue, name)
        if found is not None:
            return found
        self._check_worker(source.worker)
        return self._add_queue(
            subscription_name(queue, name),
            source.durable,
            source.worker,
            hidden=True,
            subscription_of=source.id,
            owner=source.owner,
        )

    def delete_subscription(self, queue: str, name: str) -> QueueDeclaration:
        """Forget a subscription; its claims must have been returned before (`release`). Raises QueueNotFound."""
        found = self.subscription(queue, name)
        if found is None:
            raise QueueNotFound(f"queue {quoted(queue)} has no subscription {quoted(name)}")
        self._remove_queue(found)
        return found

    def delete_queue(self, name: str, *, client: int = 0) -> QueueDeclaration:
        """Delete a queue with its subscriptions, dead letters and bindings. Raises QueueNotFound, ResourceLocked."""
        found = self.deletable(name, client=client)
        for item in self.subscriptions(found):
            self._remove_queue(item)
        companion = self.dead_letters(found)
        if companion is not None:
            self._remove_queue(companion)
        self._remove_queue(found)
        return found

    def deletable(self, name: str, *, client: int = 0) -> QueueDeclaration:
        """The queue that a client may delete. Raises QueueNotFound, ResourceLocked."""
        found = self.queue(name, f"{NOTHING_DELETED}; node.queues() lists those that exist")
        self.check_owner(found, client)
        return found

    def take_ids(self, count: int) -> list[int]:
        """Queue ids that nobody else will ever get, once the catalog is saved. Raises LimitError."""
        if self.next_queue_id + count > PROTOCOL["REPLY_QUEUE"]:
            raise LimitError("all 2^31 queue ids of this data directory were used: move to a new directory")
        self.next_queue_id += count
        self.version += 1
        return list(range(self.next_queue_id - count, self.next_queue_id))

    def move_family(self, worker: int, ids: Mapping[int, int]) -> None:
        """A queue and what belongs to it are with another worker now, under other ids: `ids`, old → new."""
        for item in [self.by_id[id] for id in ids]:
            moved = msgspec.structs.replace(
                item,
                id=ids[item.id],
                worker=worker,
                first_id=item.lasting_id,
                subscription_of=ids.get(item.subscription_of, 0),
                dead_letters_of=ids.get(item.dead_letters_of, 0),
            )
            self._cut_queue(item)
            self._put_queue(moved)
        self.version += 1

    def declare_exchange(
        self,
        name: str,
        *,
        type: str = "direct",
        durable: bool = True,
        alternate: str | None = None,
        internal: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> ExchangeDeclaration:
        """Declare an exchange, or find the same one. `alternate`: where what it cannot route goes; it need not exist.
        The rest: engine/catalog/exchanges.py.

        Raises InvalidName, UsageError (type, arguments), DeclarationMismatch, LimitError.
        """
        found = self.exchanges.get(name)
        if found is None or found.name:
            check_name(name, "exchange")
        if type not in EXCHANGE_TYPES:
            types = ", ".join(EXCHANGE_TYPES)
            raise UsageError(f"exchange {quoted(name)}: there is no type {shown(type)}; choose one of {types}")
        if alternate is not None:
            check_name(alternate, "exchange")
        given = checked_opaque(f"exchange {quoted(name)}: arguments", arguments)
        said = checked_opaque(f"exchange {quoted(name)}: what origin names", origin)
        declaration = ExchangeDeclaration(name, type, durable, alternate, internal, auto_delete, given, said)
        if found is not None:
            if compared(found) != compared(declaration):
                raise DeclarationMismatch(
                    f"exchange {quoted(name)} exists as {described(found)}, not as "
                    f"{described(declaration)}: use it as it is, or delete it first"
                )
            return found
        if name.startswith(RESERVED_PREFIX):
            raise UsageError(
                f"exchange {quoted(name)}: names that begin with {RESERVED_PREFIX!r} are reserved; choose another"
            )
        self._check_new(f"exchange {quoted(name)}: arguments", given)
        self._check_new(f"exchange {quoted(name)}: what origin names", said)
        if len(self.exchanges) >= EXCHANGES_MAX:
            raise LimitError(
                f"exchange {quoted(name)}: the node has {EXCHANGES_MAX} exchanges, which is the most: delete some"
            )
        self._put_exchange(declaration)
        self.version += 1
        return declaration

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> ExchangeDeclaration:
        """Delete an exchange and its bindings; with `if_unused` only one to which nothing is bound. Raises
        ExchangeNotFound, UsageError (a default one), PreconditionFailed.
        """
        found = self.exchange(name, f"{NOTHING_DELETED}; `warren exchange list` lists those that exist")
        if not name or name.startswith(RESERVED_PREFIX):
            raise UsageError(f"exchange {quoted(name)} is built in and cannot be deleted")
        if if_unused and self.is_bound(name):
            raise PreconditionFailed(
                f"exchange {quoted(name)} is in use ({self._bound_to(name)} on it): unbind first, or delete it "
                "whether it is in use or not"
            )
        self._remove_exchange(found)
        self.version += 1
        return found

    def is_bound(self, exchange: str) -> bool:
        """Whether a queue, a topic or another exchange is bound to an exchange, and so gets something from it."""
        return any(exchange in index for index in (self._of_exchange, self._topics_of_exchange, self._onward))

    def _bound_to(self, exchange: str) -> str:
        kinds = ((self._of_exchange, "queues"), (self._topics_of_exchange, "topics"), (self._onward, "exchanges"))
        counts = ((len(index.get(exchange, ())), what) for index, what in kinds)
        said = [counted(count, f"binding of {what}", f"bindings of {what}") for count, what in counts if count]
        return ", ".join(said)

    def bind(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        *,
        client: int = 0,
    ) -> Binding:
        """Bind a queue to an exchange, or find the same binding. `arguments` are for a headers exchange.

        Raises QueueNotFound, ExchangeNotFound, ResourceLocked, UsageError, LimitError.
        """
        binding = self._binding(queue, exchange, routing_key, arguments, client)
        if binding not in self.bindings:
            self._check_binding(binding)
            self._put_binding(binding)
            self.version += 1
        return binding

    def unbind(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        *,
        client: int = 0,
    ) -> bool:
        """Remove a binding; False when there was none. Raises what `bind` raises."""
        binding = self._binding(queue, exchange, routing_key, arguments, client)
        if binding not in self.bindings:
            return False
        self._cut_binding(binding)
        self._unbound([binding.exchange])
        self.version += 1
        return True

    def has_binding(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> bool:
        """Whether there is this binding, whoever owns the queue."""
        try:
            return (
                Binding(exchange, queue, routing_key, self._bindable(exchange, routing_key, arguments)) in self.bindings
            )
        except UsageError:  # nothing can be bound so; ExchangeNotFound is one, too
            return False

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> ExchangeBinding:
        """Send what is published to an exchange `source` and matches to another one, too; or find the same binding.

        Raises ExchangeNotFound, UsageError (the default exchange; arguments), LimitError.
        """
        binding = self._exchange_binding(destination, source, routing_key, arguments)
        if binding not in self.exchange_bindings:
            self._check_binding(binding)
            self._put_exchange_binding(binding)
            self.version += 1
        return binding

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> bool:
        """Remove a binding of an exchange to another; False when there was none. Raises what `bind_exchange` raises."""
        binding = self._exchange_binding(destination, source, routing_key, arguments)
        if binding not in self.exchange_bindings:
            return False
        self._cut_exchange_binding(binding)
        self._unbound([source])
        self.version += 1
        return True

    def _exchange_binding(
        self, destination: str, source: str, routing_key: str, arguments: Mapping[str, Any] | None
    ) -> ExchangeBinding:
        self.exchange(destination)
        if not destination:
            raise UsageError("the default exchange '' reaches every queue by its name, and is bound to no exchange")
        return ExchangeBinding(source, destination, routing_key, self._bindable(source, routing_key, arguments))

    def declare_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        retention_s: float | None = None,
        retention_bytes: int | None = None,
        compacted: bool | None = None,
        by_name: bool | None = None,
        as_it_is: bool = False,
        origin: Mapping[str, Any] | None = None,
    ) -> TopicDeclaration:
        """Declare a topic, or find the same one (`as_it_is`: the one of that name, however it was declared). `queues`
        None: 4, or as many as it has; retention None: none, or what it has; compacted, by_name None: not, or as it is.
        `origin`: kept with a new one, and compared with nothing.

        Raises InvalidName, UsageError (a number out of bounds), DeclarationMismatch, LimitError.
        """
        found = self.topics.get(check_topic_name(name))
        if found is not None and as_it_is:
            return found
        id, has = (self.next_queue_id, TOPIC_QUEUES) if found is None else (found.id, found.queues)
        if found is not None:
            retention_s = found.retention_s if retention_s is None else retention_s
            retention_bytes = found.retention_bytes if retention_bytes is None else retention_bytes
            compacted = found.compacted if compacted is None else compacted
            by_name = bool(found.by_name) if by_name is None else by_name
        compacted, by_name = False if compacted is None else compacted, False if by_name is None else by_name
        count = has if queues is None else queues
        wanted = topics.checked(id, name, count, retention_s, retention_bytes, compacted, by_name)
        said = checked_opaque(f"topic {quoted(name)}: what origin names", origin)
        if found is not None:
            wanted = msgspec.structs.replace(wanted, origin=found.origin)
            if found != wanted:
                only = topics.is_retold(found, wanted) and not found.compacted
                advice = "topic.set(), or `warren topic set`, changes its retention" if only else AS_IT_IS
                raise DeclarationMismatch(
                    f"topic {quoted(name)} exists and differs: {topics.differences(found, wanted)}: {advice}"
                )
            return found
        topics.check_compacted(wanted)
        self._check_new(f"topic {quoted(name)}: what origin names", said)
        return self._add_topic(msgspec.structs.replace(wanted, origin=said or msgspec.UNSET))

    def _add_topic(self, wanted: TopicDeclaration) -> TopicDeclaration:
        if self.topic_rows + wanted.queues > TOPIC_ROWS_MAX:
            raise LimitError(
                f"topic {quoted(wanted.name)} would have {wanted.queues} queues, and all topics "
                f"of a node {TOPIC_ROWS_MAX} "
                f"at most, of which {self.topic_rows} are there: declare it with fewer queues, or delete topics"
            )
        self._take_id()
        self._put_topic(wanted)
        self.version += 1
        return wanted

    def declare_group_topic(self, kind: Kind, topic: str, group: str, id: int) -> TopicDeclaration:
        """Declare the topic of this kind of a group of the topic with this name and id, or find it. Raises
        TopicNotFound (it was deleted), InvalidName (its name would be too long), LimitError.
        """
        of = self.topic(topic)
        if of.id != id:
            raise TopicNotFound(f"the topic {shown(topic)} that this group reads was deleted: another has its name now")
        name = group_topics.name_of(kind, topic, group)
        found = self.topics.get(name)
        return found or self._add_topic(topics.of_group(of, self.next_queue_id, name, group_topics.QUEUES_MAX))

    def delete_group_topics(self, topic: str, group: str) -> list[str]:
        """Delete the topics of a group, as many as there are; their names."""
        found = [item.name for item in self._group_topics(topic, group)]
        for name in found:
            self.delete_topic(name)
        return found

    def _group_topics(self, topic: str, group: str | None = None) -> list[TopicDeclaration]:
        """Those of a topic's groups, or of one of them."""
        owners = ((item, group_topics.owner_of(item.name)) for item in self.topics.values())
        return [item for item, of in owners if of and of.topic == topic and group in (None, of.group)]

    def set_topic(self, name: str, retention_s: float | None, retention_bytes: int | None) -> TopicDeclaration:
        """Give a topic another retention, and so the topics of its groups; None: none. Raises TopicNotFound,
        UsageError.
        """
        found = self.topic(name)
        age, size = topics.checked_retention(name, retention_s, retention_bytes)
        topics.check_compacted(msgspec.structs.replace(found, retention_s=age, retention_bytes=size))
        changed = False
        for of in (found, *self._group_topics(name)):
            wanted = msgspec.structs.replace(of, retention_s=age, retention_bytes=size)
            if wanted != of:
                self._put_topic(wanted)
                changed = True
        self.version += changed
        return self.topics[name]

    def delete_topic(self, name: str) -> TopicDeclaration:
        """Delete a topic with its bindings, and the topics of its groups: its records are found no more. Raises
        TopicNotFound.
        """
        found = self.topic(name, f"{NOTHING_DELETED}; node.topics() lists those that exist")
        for of in self._group_topics(name):
            self.delete_topic(of.name)
        bound = self.bindings_of_topic(name)
        for binding in bound:
            self._cut_topic_binding(binding)
        self._cut_topic(found)
        self._unbound(binding.exchange for binding in bound)
        self.version += 1
        return found

    def bind_topic(
        self,
        topic: str,
        exchange: str,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        *,
        key: str | None = KEY,
        tag: str | None = TAG,
    ) -> TopicBinding:
        """Bind a topic to an exchange, or find the same binding. `key`, `tag`: what of a message becomes the key and
        the tag of its record.

        Raises TopicNotFound, ExchangeNotFound, UsageError, DeclarationMismatch (it is bound with others), LimitError.
        """
        wanted = msgspec.structs.replace(
            self._topic_binding(topic, exchange, routing_key, arguments),
            key=checked_source("key", key),
            tag=checked_source("tag", tag),
        )
        found = self._topic_bound(wanted)
        if found is None:
            if self.topics[topic].compacted and not wanted.key:
                raise UsageError(
                    f"topic {quoted(topic)} is compacted: each of its messages needs a key: say what becomes it"
                )
            self._check_binding(wanted)
            self._put_topic_binding(wanted)
            self.version += 1
            return wanted
        if found != wanted:
            pairs = ((name, getattr(found, name), getattr(wanted, name)) for name in ("key", "tag"))
            differ = "; ".join(f"{name}={has or None!r}, not {new or None!r}" for name, has, new in pairs if has != new)
            raise DeclarationMismatch(
                f"topic {quoted(topic)} is bound to exchange {quoted(exchange)} so already, and "
                f"differs: {differ}: unbind it first"
            )
        return found

    def unbind_topic(
        self, topic: str, exchange: str, routing_key: str = "", arguments: dict[str, Any] | None = None
    ) -> bool:
        """Remove a binding of a topic, whatever makes its keys and tags; False when there was none. Raises what
        `bind_topic` raises.
        """
        found = self._topic_bound(self._topic_binding(topic, exchange, routing_key, arguments))
        if found is None:
            return False
        self._cut_topic_binding(found)
        self._unbound([exchange])
        self.version += 1
        return True

    def bindings_of_topic(self, topic: str) -> list[TopicBinding]:
        """The bindings of a topic, in order."""
        return sorted(self._of_topic.get(topic, ()))

    def drop_transient(self) -> list[QueueDeclaration]:
        """Forget what does not outlive the node: transient and exclusive queues, transient exchanges, and their
        bindings. Returns the queues.
        """
        queues = [item for item in self.queues.values() if not item.outlives_node]
        exchanges = [item for item in self.exchanges.values() if not item.durable]
        if not queues and not exchanges:
            return []
        for item in exchanges:
            if item.name in self.exchanges:  # it may have gone with the last of those before
                self._remove_exchange(item)
        for queue in queues:
            self._remove_queue(queue)
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
        dead_letters_of: int = 0,
        owner: int = 0,
        origin: dict[str, Any] | None = None,
    ) -> QueueDeclaration:
        declaration = QueueDeclaration(
            self._take_id(),
            name,
            durable,
            worker,
            hidden,
            arguments or {},
            subscription_of,
            dead_letters_of,
            owner,
            origin=origin or msgspec.UNSET,
        )
        self._put_queue(declaration)
        self.version += 1
        return declaration

    def _take_id(self) -> int:
        """An id that nobody else will ever get. Raises LimitError."""
        if self.next_queue_id >= PROTOCOL["REPLY_QUEUE"]:
            raise LimitError("all 2^31 queue ids of this data directory were used: move to a new directory")
        self.next_queue_id += 1
        return self.next_queue_id - 1

    def recover_queue(self, id: int, worker: int) -> QueueDeclaration:
        """Declare a queue that was lost (workers/node/catalog_cut.py) under its id, which the caller sees to: durable,
        without arguments. Raises LimitError.
        """
        self._check_worker(worker)
        name = f"recovered-{id}"
        while name in self.queues:
            name += "-again"
        queue = QueueDeclaration(id, name, True, worker)
        self._put_queue(queue)
        self.version += 1
        return queue

    def _remove_queue(self, queue: QueueDeclaration) -> None:
        bound = sorted(self._of_queue.get(queue.name, ()))
        for binding in bound:
            self._cut_binding(binding)
        self._cut_queue(queue)
        self._unbound(binding.exchange for binding in bound)
        self.version += 1

    def _remove_exchange(self, exchange: ExchangeDeclaration) -> None:
        """It goes, and with it what is deleted with the last that was bound to it: a chain of any length."""
        self._unbound(self._drop_exchange(exchange))

    def _drop_exchange(self, exchange: ExchangeDeclaration) -> set[str]:
        """It goes with its bindings. Returns the exchanges that it was bound to."""
        sources = {binding.exchange for binding in self._to_exchange.get(exchange.name, ())} - {exchange.name}
        self._unbind_exchange(exchange.name)
        self._cut_exchange(exchange)
        return sources

    def _unbound(self, exchanges: Iterable[str]) -> None:
        """Something that was bound to these is not any more: those that are deleted with the last of it go."""
        waiting = sorted(set(exchanges), reverse=True)
        while waiting:
            found = self.exchanges.get(waiting.pop())
            if found is not None and found.auto_delete and not self.is_bound(found.name):
                waiting += sorted(self._drop_exchange(found), reverse=True)

    # Each thing comes and goes here alone, so that what is looked up by it is always true.

    def _put_queue(self, queue: QueueDeclaration) -> None:
        self.queues[queue.name] = self.by_id[queue.id] = queue
        self._workers.setdefault(queue.worker, {})[queue.id] = queue
        if of := queue.subscription_of or queue.dead_letters_of:
            self._members.setdefault(of, {})[queue.id] = queue
        if queue.leased:
            self.leased[queue.id] = queue
        self.opaque_bytes += size_of(queue.origin)
        if self.steps is not None:
            self.steps.append(Step(queue=queue))

    def _cut_queue(self, queue: QueueDeclaration) -> None:
        del self.queues[queue.name], self.by_id[queue.id]
        _cut(self._workers, queue.worker, queue.id)
        if of := queue.subscription_of or queue.dead_letters_of:
            _cut(self._members, of, queue.id)
        self.leased.pop(queue.id, None)
        self.opaque_bytes -= size_of(queue.origin)
        if self.steps is not None:
            self.steps.append(Step(queue=queue, gone=True))

    def _put_exchange(self, exchange: ExchangeDeclaration) -> None:
        self.exchanges[exchange.name] = exchange
        self.opaque_bytes += size_of(exchange.arguments, exchange.origin)
        if self.steps is not None:
            self.steps.append(Step(exchange=exchange))

    def _cut_exchange(self, exchange: ExchangeDeclaration) -> None:
        del self.exchanges[exchange.name]
        self.opaque_bytes -= size_of(exchange.arguments, exchange.origin)
        if self.steps is not None:
            self.steps.append(Step(exchange=exchange, gone=True))

    def _put_binding(self, binding: Binding) -> None:
        self.bindings.add(binding)
        self._of_queue.setdefault(binding.queue, set()).add(binding)
        self._of_exchange.setdefault(binding.exchange, set()).add(binding)
        self.opaque_bytes += size_of(binding.conditions)
        if self.steps is not None:
            self.steps.append(Step(binding=binding))

    def _cut_binding(self, binding: Binding) -> None:
        self.bindings.remove(binding)
        for index, key in ((self._of_queue, binding.queue), (self._of_exchange, binding.exchange)):
            index[key].remove(binding)
            if not index[key]:
                del index[key]
        self.opaque_bytes -= size_of(binding.conditions)
        if self.steps is not None:
            self.steps.append(Step(binding=binding, gone=True))

    def _unbind_exchange(self, name: str) -> None:
        for binding in sorted(self._of_exchange.get(name, ())):
            self._cut_binding(binding)
        for bound in sorted(self._topics_of_exchange.get(name, ())):
            self._cut_topic_binding(bound)
        for onward in sorted(self._onward.get(name, set()) | self._to_exchange.get(name, set())):
            self._cut_exchange_binding(onward)

    def _put_exchange_binding(self, binding: ExchangeBinding) -> None:
        self.exchange_bindings.add(binding)
        self._onward.setdefault(binding.exchange, set()).add(binding)
        self._to_exchange.setdefault(binding.destination, set()).add(binding)
        self.opaque_bytes += size_of(binding.conditions)
        if self.steps is not None:
            self.steps.append(Step(exchange_binding=binding))

    def _cut_exchange_binding(self, binding: ExchangeBinding) -> None:
        self.exchange_bindings.remove(binding)
        for index, key in ((self._onward, binding.exchange), (self._to_exchange, binding.destination)):
            index[key].remove(binding)
            if not index[key]:
                del index[key]
        self.opaque_bytes -= size_of(binding.conditions)
        if self.steps is not None:
            self.steps.append(Step(exchange_binding=binding, gone=True))

    def _put_topic_binding(self, binding: TopicBinding) -> None:
        self.topic_bindings.add(binding)
        self._of_topic.setdefault(binding.topic, set()).add(binding)
        self._topics_of_exchange.setdefault(binding.exchange, set()).add(binding)
        self.opaque_bytes += size_of(binding.conditions)
        if self.steps is not None:
            self.steps.append(Step(topic_binding=binding))

    def _cut_topic_binding(self, binding: TopicBinding) -> None:
        self.topic_bindings.remove(binding)
        for index, key in ((self._of_topic, binding.topic), (self._topics_of_exchange, binding.exchange)):
            index[key].remove(binding)
            if not index[key]:
                del index[key]
        self.opaque_bytes -= size_of(binding.conditions)
        if self.steps is not None:
            self.steps.append(Step(topic_binding=binding, gone=True))

    def _put_topic(self, topic: TopicDeclaration) -> None:
        before = self.topics_by_id.get(topic.id)
        self.topic_rows += topic.queues if before is None else 0
        self.topics[topic.name] = self.topics_by_id[topic.id] = topic
        self.opaque_bytes += size_of(topic.origin) if before is None else 0
        if self.steps is not None:
            if before is not None:
                self._retold[len(self.steps)] = before
            self.steps.append(Step(topic=topic))

    def _cut_topic(self, topic: TopicDeclaration) -> None:
        del self.topics[topic.name], self.topics_by_id[topic.id]
        self.topic_rows -= topic.queues
        self.opaque_bytes -= size_of(topic.origin)
        if self.steps is not None:
            self.steps.append(Step(topic=topic, gone=True))

    def _counts(self, workers: Iterable[int]) -> dict[int, int]:
        return {worker: len(self._workers.get(worker, _NONE)) for worker in workers}

    def _place(self, name: str, workers_n: int, without: Collection[int], queues_n: int = 1) -> int:
        """The worker for a queue of this name and those that belong to it (engine/catalog/placement.py)."""
        able = [worker for worker in range(workers_n) if worker not in without] or range(workers_n)
        worker = place(name, self._counts(able), queues_n)
        self._check_worker(worker, queues_n)
        return worker

    def _check_worker(self, worker: int, queues_n: int = 1) -> None:
        if self._counts([worker])[worker] + queues_n > QUEUES_PER_WORKER_MAX:
            raise LimitError(
                f"queue worker {worker} has {QUEUES_PER_WORKER_MAX} queues, which is the most: "
                "delete some, or start the node with more workers (setting workers)"
            )

    def _binding(
        self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any] | None, client: int
    ) -> Binding:
        self.check_owner(self.queue(queue), client)
        return Binding(exchange, queue, routing_key, self._bindable(exchange, routing_key, arguments))

    def _check_new(self, what: str, opaque: Opaque) -> None:
        """Whether there is room for arguments, or an origin, of something new. Raises UsageError, LimitError."""
        check_new(what, opaque)
        if opaque and self.opaque_bytes + size_of(opaque) > ALL_BYTES_MAX:
            raise LimitError(
                f"{what}: those of all exchanges, bindings, queues and topics have {self.opaque_bytes} bytes together, "
                f"and {ALL_BYTES_MAX} are the most: delete some"
            )

    def _check_binding(self, binding: Binding | TopicBinding | ExchangeBinding) -> None:
        """Whether there is room for a new one. Raises UsageError, LimitError."""
        self._check_new("binding arguments", binding.conditions)
        if len(self.bindings) + len(self.topic_bindings) + len(self.exchange_bindings) >= BINDINGS_MAX:
            raise LimitError(
                f"exchange {quoted(binding.exchange)}: the node has {BINDINGS_MAX} bindings, which is the most: "
                "remove some"
            )

    def _topic_binding(
        self, topic: str, exchange: str, routing_key: str, arguments: dict[str, Any] | None
    ) -> TopicBinding:
        self.topic(topic)
        return TopicBinding(exchange, topic, routing_key, self._bindable(exchange, routing_key, arguments))

    def _topic_bound(self, wanted: TopicBinding) -> TopicBinding | None:
        """The binding of that topic at that place."""
        bound = self._of_topic.get(wanted.topic, ())
        return next((item for item in bound if item.place == wanted.place), None)

    def _bindable(self, exchange: str, routing_key: str, arguments: Mapping[str, Any] | None) -> str:
        """The conditions of a binding to an exchange. Raises ExchangeNotFound, UsageError."""
        found = self.exchange(exchange)
        check_routing_key(routing_key)
        if not exchange:
            raise UsageError("the default exchange '' reaches every queue by its name, and takes no bindings")
        return conditions_of(found.type, arguments)


def _cut(index: dict[int, dict[int, QueueDeclaration]], key: int, id: int) -> None:
    del index[key][id]
    if not index[key]:
        del index[key]


def _kept(durable: bool) -> str:
    return "durable" if durable else "transient"


def _differences(found: QueueDeclaration, durable: bool, arguments: dict[str, Any]) -> str:
    """What a queue has and what was wanted, where they differ."""
    said = [] if found.durable == durable else [f"{_kept(found.durable)}, not {_kept(durable)}"]
    for name in sorted(found.arguments.keys() | arguments.keys()):
        has, wanted = (
            f"{name}={given[name]!r}" if name in given else f"without {name}" for given in (found.arguments, arguments)
        )
        if has != wanted:
            said.append(f"{has}, not {wanted}")
    return "; ".join(said)
