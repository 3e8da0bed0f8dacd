"""Control messages between processes: a POSIX message queue, selectable, that outlives its senders.

Priorities are the store server's (rule N8): the kernel hands out the highest first, FIFO within one.
A message is a small msgpack map of at most 4096 bytes. Losing one must never matter: each is a hint
to look at shared memory, and the receiver also looks there periodically.
"""

from __future__ import annotations

import contextlib
import errno
import resource
from typing import Any

import msgspec
import posix_ipc

from warren.ipc import access

PRIORITY_COLLECTED = 8
PRIORITY_CLIENT = 7  # register, client_dying, recovery query
PRIORITY_READ = 2
PRIORITY_ORDINARY = 0

MESSAGE_BYTES_MAX = 4096
MESSAGES_MAX = 10


class Mailbox:
    """One role's mailbox. The receiver creates it; senders open it by name.

    The system limits the bytes of all mailboxes of a user (RLIMIT_MSGQUEUE): who needs little room says so.
    """

    def __init__(
        self, name: str, create: bool = False, *, messages: int = MESSAGES_MAX, bytes_max: int = MESSAGE_BYTES_MAX
    ) -> None:
        self.name = name
        if create:
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_message_queue(name)
            self._queue = _created(name, messages, bytes_max)
            try:
                access.let_in(self._queue.mqd, access.object_mode())
            except OSError:
                self._queue.close()
                posix_ipc.unlink_message_queue(name)
                raise
        else:
            self._queue = posix_ipc.MessageQueue(name)
        self._queue.block = False

    def fileno(self) -> int:
        """Descriptor for select and poll."""
        mqd: int = self._queue.mqd
        return mqd

    def send(self, kind: str, priority: int = PRIORITY_ORDINARY, **fields: Any) -> bool:
        """Post a message; False when the mailbox is full or gone (the receiver will find out by itself)."""
        payload = msgspec.msgpack.encode({"kind": kind, **fields})
        try:
            self._queue.send(payload, timeout=0, priority=priority)
        except (posix_ipc.BusyError, posix_ipc.Error, OSError):
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next message by priority, None when there is none. A malformed one is dropped."""
        while True:
            try:
                payload, _priority = self._queue.receive(timeout=0)
            except (posix_ipc.BusyError, posix_ipc.SignalError):  # the latter: look again
                return None
            with contextlib.suppress(msgspec.MsgspecError, RecursionError, ValueError):
                message = msgspec.msgpack.decode(payload)
                if isinstance(message, dict) and isinstance(message.get("kind"), str):
                    return message

    def close(self) -> None:
        """Close the descriptor; the mailbox stays for others."""
        with contextlib.suppress(posix_ipc.Error, OSError):
            self._queue.close()


def post(name: str, kind: str, priority: int = PRIORITY_ORDINARY, **fields: Any) -> bool:
    """Open, send, close; False when there is no such mailbox or it is full."""
    try:
        mailbox = Mailbox(name)
    except (posix_ipc.Error, OSError):
        return False
    try:
        return mailbox.send(kind, priority, **fields)
    finally:
        mailbox.close()


def unlink(name: str) -> bool:
    """Remove a mailbox; False when there was none."""
    try:
        posix_ipc.unlink_message_queue(name)
    except posix_ipc.ExistentialError:
        return False
    return True


def _created(name: str, messages: int, bytes_max: int) -> posix_ipc.MessageQueue:
    try:
        return posix_ipc.MessageQueue(
            name, posix_ipc.O_CREX, mode=0o600, max_messages=messages, max_message_size=bytes_max
        )
    except OSError as error:
        if error.errno not in (None, errno.ENOSPC):
            raise
        # posix_ipc says of EMFILE that too many files are open, without its number. It is mostly something else.
        most, _hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
        why = "there are as many message queues as the system allows (fs.mqueue.queues_max)"
        if error.errno is None:
            why = (
                f"message queues of this user have all of their {most:,} bytes (`ulimit -q`), or this process has all "
                "of its descriptors (`ulimit -n`)"
            )
        number = error.errno or errno.EMFILE
        raise OSError(number, f"{why}; killed nodes that are not started again leave some (/dev/mqueue)") from error
