"""Every error Warren raises; each message says what happened and what to do.

```
Error
├── UsageError (ValueError)        the call is wrong; nothing was done
│   ├── QueueNotFound, ExchangeNotFound, TopicNotFound
│   ├── DeclarationMismatch        exists with other properties
│   ├── HalfFinished               a half message that was committed is rolled back, or the other way round
│   ├── HalfNotFound               a half message that is not there; what became of it is not kept
│   ├── PreconditionFailed         a queue or exchange is not as the call wants it (if_unused, if_empty)
│   ├── ResourceLocked             an exclusive queue of another client, or one that another consumer has alone
│   ├── InvalidName
│   └── MessageTooLarge
├── Unroutable                     mandatory publish without a queue
├── CallFailed                     what serves a queue raised instead of answering a call
├── Undecodable (ValueError)       an item that the serializer of a work queue cannot read; nothing is lost
├── QueueEmpty (queue.Empty), QueueFull (queue.Full)
├── ShutDown (queue.ShutDown)      a work queue that was shut down; the base is Python's own from 3.13 on
├── TimedOut (TimeoutError)        the time given was not enough; says what it waited for
├── AckTimedOut                    an ack, nack or reject after the queue's ack_timeout: the message went back before
├── DataLoss                       messages of a topic that are wanted are gone: queue, wanted, minimum
├── Fenced                         a reader of a group commits what lies in queues that are others' by now; a driver
│   │                              writes into a sink that another driver has by now
│   └── SessionExpired             its process stood still, or its program made no call, for longer than its limit
├── ClosedError                    you closed it, or the node was stopped in good order
├── PeerLost (ConnectionError)     a server died or is not running (retryable)
│   └── NodeNotRunning
├── LimitError                     a limit was reached; names the setting to raise
│   ├── SystemLimit (StoreError)   the system has no more descriptors, memory or threads; names the limit to raise
│   └── NoRoom (StartFailed)       too little shared memory, memory or disk to start a node; has the figures
├── StartFailed                    a node ended before it served; says why, and where to read more
├── StoreError                     durable state
│   ├── CatalogCut                 queues have records that the catalog does not know
│   ├── DataMissing                a folder of the data directory is gone
│   ├── CorruptRecord              path, position, expected, found
│   ├── FormatVersionError         written by a newer Warren
│   ├── DirectoryInUse             another supervisor owns it
│   ├── PermissionRefused (PermissionError)
│   ├── DiskFull                   refused, nothing lost, continues when there is space
│   └── SyncFailed                 the disk refused to make data durable; frozen until the node is reopened
└── NotYet (NotImplementedError)   planned and not part of this version
```
"""

from __future__ import annotations

import queue
import re
import sys
from pathlib import Path
from typing import Any


class Error(Exception):
    """Base of every error raised by Warren."""


class UsageError(Error, ValueError):
    """The call is wrong; nothing was done."""


class QueueNotFound(UsageError):
    """No queue of that name is declared."""


class ExchangeNotFound(UsageError):
    """No exchange of that name is declared."""


class TopicNotFound(UsageError):
    """No topic of that name is declared, or it was deleted."""


class DeclarationMismatch(UsageError):
    """A queue, exchange or topic of that name exists with other properties."""


class PreconditionFailed(UsageError):
    """A queue or exchange is not as the call wants it: it is used (`if_unused`), or not empty (`if_empty`)."""


class ResourceLocked(UsageError):
    """The queue is exclusive and belongs to another client; or another consumer has it alone, or is in the way of that
    (`consume(exclusive=True)`)."""


class InvalidName(UsageError):
    """The name is empty, too long, or has a character that is not allowed."""


class MessageTooLarge(UsageError):
    """The message is larger than `message_bytes_max`."""


class Unroutable(Error):
    """A mandatory message matched no queue; it was not stored."""


class CallFailed(Error):
    """The function that serves a queue raised instead of answering a call; the message says what."""


class Undecodable(Error, ValueError):
    """The serializer of a work queue cannot read an item. `body`: its bytes. `message`: the warren.Message, which is
    the caller's to ack, reject or nack; None when it was rejected to the dead letters.
    """

    body: bytes = b""
    message: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process has the bytes; the message stays with the process that got it."""
        return type(self), self.args, {"body": self.body}


class QueueEmpty(Error, queue.Empty):
    """No message arrived within the timeout."""


class QueueFull(Error, queue.Full):
    """The queue is full (overflow reject-publish). `refused`: the messages of a batch that it refused, by index."""

    refused: tuple[int, ...] = ()


if sys.version_info >= (3, 13):

    class ShutDown(Error, queue.ShutDown):
        """This work queue was shut down in this process: nothing can be put, and nothing is left to get."""

else:

    class ShutDown(Error):
        """This work queue was shut down in this process: nothing can be put, and nothing is left to get."""


class TimedOut(Error, TimeoutError):
    """The operation did not finish within its timeout; the message says what it waited for."""


class AckTimedOut(Error):
    """A message was held for longer than its queue's ack_timeout: it went back to its place before it was acked, nacked
    or rejected, and others receive it. `late`: of a batch, the indexes of such messages; the others are settled.
    """

    late: tuple[int, ...] = ()


class DataLoss(Error):
    """Messages that a reader of a topic wants are not there any more: retention removed them. `queue`; `wanted`: the
    offset that was asked for; `minimum`: the first one that is there.
    """

    queue: int = -1
    wanted: int = -1
    minimum: int = -1


class Fenced(Error):
    """A reader of a group committed offsets of queues that it has lost: it stood still for too long, or somebody set
    the group's offsets. Nothing of the commit counts; who has the queues now reads on from what was committed before.

    Or a driver of Spark writes into a sink after another one began to, on the same checkpoint. Nothing of it counts.
    """


class SessionExpired(Fenced):
    """A reader of a group was silent for too long, and lost its queues: its process gave no sign of life
    (`session_timeout`), or its program made no call (`max_poll_interval`). What it had not committed is handed out
    again, to whoever has the queues now. It is raised once; the next call joins the group again.
    """


class ClosedError(Error):
    """The object was closed by its owner, or the node was stopped in good order.

    `not_taken`: of a call for many messages, those that the node did not take, by index; they are not stored, and the
    others are. `confirm`: None, or where the stop came in the middle of the call its Confirm, which says that of all.
    """

    not_taken: tuple[int, ...] = ()
    confirm: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A Confirm stays in its process."""
        return type(self), self.args, {"not_taken": self.not_taken}


class PeerLost(Error, ConnectionError):
    """A process of the node died or is not running; the call may be repeated."""


class NodeNotRunning(PeerLost):
    """No node runs for this directory."""


class LimitError(Error):
    """A limit was reached; the message names the setting to raise."""


class StartFailed(Error):
    """A node ended before it served; the message says why, and where to read more."""

    exit_code = 1


class NoRoom(LimitError, StartFailed):
    """There is too little shared memory, memory or disk to start a node; the message has the figures."""


class HalfFinished(UsageError):
    """A half message that was committed cannot be rolled back, nor one that was rolled back be committed."""


class HalfNotFound(UsageError):
    """There is no such half message, nor is it kept what became of it."""


class StoreError(Error):
    """Something is wrong with durable state."""


class SystemLimit(LimitError, StoreError):
    """The operating system has no more descriptors, memory or threads; the message names the limit to raise."""


class CorruptRecord(StoreError):
    """A file does not hold the bytes that were written to it."""

    def __init__(self, path: Path | str, position: int, expected: str, found: str, advice: str = "") -> None:
        """`advice`: what to do, where `warren check` does not know it."""
        self.path = Path(path)
        self.position = position
        self.expected = expected
        self.found = found
        self.advice = advice
        super().__init__(f"{path} at byte {position}: expected {expected}, found {found}{advice and ': '}{advice}")

    def __reduce__(self) -> tuple[type[CorruptRecord], tuple[str, int, str, str, str]]:
        return (CorruptRecord, (str(self.path), self.position, self.expected, self.found, self.advice))

    def advised(self, advice: str) -> CorruptRecord:
        """The same with what to do."""
        return CorruptRecord(self.path, self.position, self.expected, self.found, advice)


class CatalogCut(StoreError):
    """A queue worker has records of queues that the catalog never named: the catalog was cut, or is an older copy."""


class DataMissing(StoreError):
    """A folder that held messages is missing: the start is refused, so that it can be put back."""

    exit_code = 3


class FormatVersionError(StoreError):
    """The data directory was written by a newer version of Warren."""


class DirectoryInUse(StoreError):
    """Another supervisor owns the data directory."""


class PermissionRefused(StoreError, PermissionError):
    """The data directory or the node's shared memory belongs to another user."""


class DiskFull(StoreError):
    """There is no space; the write was refused and nothing was lost."""


class SyncFailed(StoreError):
    """The operating system could not make data durable; the node refuses writes until it is reopened."""


class NotYet(Error, NotImplementedError):
    """Planned, and not part of this version."""


for _class in [found for found in globals().values() if isinstance(found, type) and issubclass(found, Error)]:
    _class.__module__ = "warren"  # the name that its users know, in tracebacks and in pickles
del _class


def errno_of(error: BaseException | None) -> int:
    """What the operating system said when an error was raised, 0 when it said nothing."""
    while error is not None:
        if isinstance(error, OSError) and error.errno:
            return error.errno
        error = error.__cause__
    return 0


#: what a CorruptRecord says; its advice stays with what was found
_CORRUPT = re.compile(r"(.+?) at byte (\d+): expected (.*?), found (.*)", re.DOTALL)


def by_name(name: str, message: str) -> Error:
    """The error class of that name with a message; `Error` for an unknown name (answers of the control socket)."""
    found = globals().get(name)
    if found is CorruptRecord and (parts := _CORRUPT.fullmatch(message)):
        return CorruptRecord(parts[1], int(parts[2]), parts[3], parts[4])
    if isinstance(found, type) and issubclass(found, Error) and found is not CorruptRecord:
        return found(message)
    return Error(f"{name}: {message}")
