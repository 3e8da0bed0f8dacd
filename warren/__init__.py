"""Warren: a durable message engine in shared memory, for the Python processes of one host and for Spark.

    import warren
    with warren.open("data") as node:               # starts a node for the directory if none runs
        orders = node.queue("orders")
        orders.put(b"one")                          # returns when it is on stable storage
        message = orders.get(timeout=1.0)
        message.ack()

`warren.attach` only attaches. Errors derive from `warren.Error` and say what to do: see `warren.engine.errors`.
"""

from importlib import import_module
from types import ModuleType

from warren.engine.errors import (
    ClosedError,
    CorruptRecord,
    DeclarationMismatch,
    DirectoryInUse,
    DiskFull,
    Error,
    ExchangeNotFound,
    FormatVersionError,
    InvalidName,
    LimitError,
    MessageTooLarge,
    NodeNotRunning,
    NotYet,
    PeerLost,
    PermissionRefused,
    QueueEmpty,
    QueueFull,
    QueueNotFound,
    StoreError,
    SyncFailed,
    TimedOut,
    Unroutable,
    UsageError,
)
from warren.workers.node import Node, attach, open
from warren.workers.queue_face import WorkQueue
from warren.workers.queues import Confirm, Message, Queue, Subscription
from warren.workers.store import Store

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    """`warren.spark` comes when it is asked for: it needs PySpark, which is an extra."""
    if name == "spark":
        return import_module("warren.spark")
    raise AttributeError(f"module 'warren' has no attribute {name!r}")


__all__ = [
    "open",
    "attach",
    "Node",
    "Queue",
    "Message",
    "Confirm",
    "Subscription",
    "WorkQueue",
    "Store",
    "Error",
    "UsageError",
    "QueueNotFound",
    "ExchangeNotFound",
    "DeclarationMismatch",
    "InvalidName",
    "MessageTooLarge",
    "Unroutable",
    "QueueEmpty",
    "QueueFull",
    "TimedOut",
    "ClosedError",
    "PeerLost",
    "NodeNotRunning",
    "LimitError",
    "StoreError",
    "CorruptRecord",
    "FormatVersionError",
    "DirectoryInUse",
    "PermissionRefused",
    "DiskFull",
    "SyncFailed",
    "NotYet",
    "__version__",
]
