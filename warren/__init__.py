"""Warren: a durable message engine in shared memory, for the Python processes of one host and for Spark.

    import warren
    with warren.open("data") as node:               # starts a node for the directory if none runs
        orders = node.queue("orders")
        orders.put(b"one")                          # returns when it is on stable storage
        message = orders.get(timeout=1.0)
        message.ack()

`warren.attach` only attaches. Errors derive from `warren.Error` and say what to do; their tree stands
in `warren.engine.errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from warren import _sources  # noqa: F401 - finds the rest
from warren.engine import VERSION as __version__
from warren.engine.errors import (
    AckTimedOut,
    CallFailed,
    CatalogCut,
    ClosedError,
    CorruptRecord,
    DataLoss,
    DataMissing,
    DeclarationMismatch,
    DirectoryInUse,
    DiskFull,
    Error,
    ExchangeNotFound,
    Fenced,
    FormatVersionError,
    HalfFinished,
    HalfNotFound,
    InvalidName,
    LimitError,
    MessageTooLarge,
    NodeNotRunning,
    NoRoom,
    NotYet,
    PeerLost,
    PermissionRefused,
    PreconditionFailed,
    QueueEmpty,
    QueueFull,
    QueueNotFound,
    ResourceLocked,
    SessionExpired,
    ShutDown,
    StartFailed,
    StoreError,
    SyncFailed,
    SystemLimit,
    TimedOut,
    TopicNotFound,
    Undecodable,
    Unroutable,
    UsageError,
)

if TYPE_CHECKING:
    from warren.engine._core import Record
    from warren.engine.catalog.arguments import QueueOptions
    from warren.engine.config import NodeSettings
    from warren.workers.client.publish import Durability, PublishManyOptions, PublishOptions
    from warren.workers.faces.message import Message
    from warren.workers.faces.node import Node, attach, open
    from warren.workers.faces.queues import Confirm, Queue
    from warren.workers.faces.replay import Replayed
    from warren.workers.faces.store import Store
    from warren.workers.faces.subscription import Subscription
    from warren.workers.faces.topic_halves import Half, HalfMessage
    from warren.workers.faces.topic_reader import Reader
    from warren.workers.faces.topic_reading import ReadResult
    from warren.workers.faces.topic_scans import ReadStatus
    from warren.workers.faces.topics import Position, Topic
    from warren.workers.faces.work_queue import WorkQueue
    from warren.workers.faces.worker import Worker
    from warren.workers.faces.worker_processes import ProcessWorker

#: what is loaded when it is asked for: the servers of a node need none of it, and start the sooner
_LATER = {
    "open": "warren.workers.faces.node",
    "attach": "warren.workers.faces.node",
    "Node": "warren.workers.faces.node",
    "WorkQueue": "warren.workers.faces.work_queue",
    "Worker": "warren.workers.faces.worker",
    "ProcessWorker": "warren.workers.faces.worker_processes",
    "Queue": "warren.workers.faces.queues",
    "Message": "warren.workers.faces.message",
    "Confirm": "warren.workers.faces.queues",
    "Subscription": "warren.workers.faces.subscription",
    "Half": "warren.workers.faces.topic_halves",
    "HalfMessage": "warren.workers.faces.topic_halves",
    "Reader": "warren.workers.faces.topic_reader",
    "ReadResult": "warren.workers.faces.topic_reading",
    "Replayed": "warren.workers.faces.replay",
    "ReadStatus": "warren.workers.faces.topic_scans",
    "Record": "warren.engine._core",
    "Store": "warren.workers.faces.store",
    "Topic": "warren.workers.faces.topics",
    "Position": "warren.workers.faces.topics",
    "NodeSettings": "warren.engine.config",
    "QueueOptions": "warren.engine.catalog.arguments",
    "Durability": "warren.workers.client.publish",
    "PublishOptions": "warren.workers.client.publish",
    "PublishManyOptions": "warren.workers.client.publish",
}
#: modules of the face; `warren.spark` needs PySpark, which is an extra
_MODULES = ("aio", "spark")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"warren.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'warren' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    """The public names, without the modules that implement them."""
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})


__all__ = [
    "open",
    "attach",
    "Node",
    "Queue",
    "Message",
    "Confirm",
    "Subscription",
    "WorkQueue",
    "Worker",
    "ProcessWorker",
    "Store",
    "Topic",
    "Position",
    "Record",
    "Half",
    "HalfMessage",
    "Reader",
    "ReadResult",
    "Replayed",
    "ReadStatus",
    "NodeSettings",
    "QueueOptions",
    "Durability",
    "PublishOptions",
    "PublishManyOptions",
    "Error",
    "UsageError",
    "QueueNotFound",
    "ExchangeNotFound",
    "TopicNotFound",
    "DeclarationMismatch",
    "HalfFinished",
    "HalfNotFound",
    "PreconditionFailed",
    "ResourceLocked",
    "SessionExpired",
    "InvalidName",
    "MessageTooLarge",
    "Unroutable",
    "CallFailed",
    "Undecodable",
    "QueueEmpty",
    "QueueFull",
    "ShutDown",
    "TimedOut",
    "AckTimedOut",
    "DataLoss",
    "Fenced",
    "ClosedError",
    "PeerLost",
    "NodeNotRunning",
    "NoRoom",
    "LimitError",
    "SystemLimit",
    "StartFailed",
    "StoreError",
    "CatalogCut",
    "DataMissing",
    "CorruptRecord",
    "FormatVersionError",
    "DirectoryInUse",
    "PermissionRefused",
    "DiskFull",
    "SyncFailed",
    "NotYet",
    "__version__",
]
