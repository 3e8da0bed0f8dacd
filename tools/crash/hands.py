"""What a client of queues does on command, in this process or in one that can be killed: `… hands DIRECTORY`.

Commands and answers as puppet.py has them. A message is answered as [key, tag, redelivered, deliveries before]; the key
stands for the body, and is None when the body is not what its key says.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import warren
from warren import Durability

TIMEOUT_S = 30.0
#: gets that follow each other within a millisecond ask for more than they need
COLD_S = 0.003

Received = list[Any]


def body_of(key: str) -> bytes:
    """The body of a key "…|SIZE": the key, and what fills it up to so many bytes."""
    seed = f"{key}|".encode()
    size = int(key.rpartition("|")[2])
    return seed + seed[:1] * max(0, size - len(seed))


def key_of(body: bytes) -> str | None:
    """The key of a body, None when the body is not what its key says."""
    parts = body.split(b"|", 2)
    if len(parts) != 3 or not parts[1].isdigit():
        return None
    key = b"|".join(parts[:2]).decode("ascii", "replace")
    return key if body_of(key) == body else None


class Hands:
    """A client, its queues, what it holds unacked, and its open consumers."""

    def __init__(self, node: warren.Node) -> None:
        self.node = node
        self._held: dict[tuple[str, int], warren.Message] = {}
        self._consumers: dict[str, Iterator[warren.Message]] = {}
        self._queues: dict[str, warren.Queue] = {}
        self._confirms: list[warren.Confirm] = []

    def perform(self, operation: str, *arguments: Any) -> Any:
        """One command: the name of a method below, and its arguments."""
        return getattr(self, f"do_{operation}")(*arguments)

    def close(self) -> None:
        """Leave the node."""
        self.node.close()
        self._consumers.clear()
        self._held.clear()

    def _queue(self, name: str) -> warren.Queue:
        if name not in self._queues:
            self._queues[name] = self.node.queue(name, create=False)
        return self._queues[name]

    def _received(self, name: str, message: warren.Message) -> Received:
        self._held[name, message.delivery_tag] = message
        return [key_of(message.body), message.delivery_tag, message.redelivered, message.delivery_count]

    # -- commands -------------------------------------------------------------------------------------------------

    def do_declare(self, name: str, durable: bool, arguments: dict[str, Any]) -> None:
        """Declare a queue; an old one of that name is forgotten."""
        self._queues.pop(name, None)
        self._queues[name] = self.node.queue(name, durable=durable, **arguments)

    def do_delete(self, name: str) -> None:
        """Delete a queue, with what is held of it."""
        self._forget(name)
        self._queue(name).delete()
        del self._queues[name]

    def do_forget(self, name: str) -> None:
        """Another client deleted the queue."""
        self._forget(name)
        self._queues.pop(name, None)

    def _forget(self, name: str) -> None:
        consumer = self._consumers.pop(name, None)
        if consumer is not None:
            consumer.close()  # type: ignore[attr-defined]  # it is a generator
        for key in [key for key in self._held if key[0] == name]:
            del self._held[key]

    def do_put(self, name: str, keys: list[str], durability: Durability | None, options: dict[str, Any]) -> list[int]:
        """Publish, and wait for the confirm; the numbers of those that the queue refused."""
        bodies = [body_of(key) for key in keys]
        try:
            if len(bodies) == 1:
                self._queue(name).put(bodies[0], durability=durability, timeout=TIMEOUT_S, **options)
            else:
                self._queue(name).put_many(bodies, durability=durability, timeout=TIMEOUT_S, **options)
        except warren.QueueFull as error:
            return list(error.refused) if len(bodies) > 1 else [0]
        return []

    def do_submit(self, name: str, keys: list[str], durability: Durability | None, options: dict[str, Any]) -> None:
        """Publish, and do not wait: see `confirm`."""
        bodies = [body_of(key) for key in keys]
        confirm = self._queue(name).put_many(bodies, durability=durability, wait=False, timeout=TIMEOUT_S, **options)
        assert confirm is not None
        self._confirms.append(confirm)

    def do_confirm(self) -> None:
        """Wait for every confirm that is open."""
        while self._confirms:
            self._confirms.pop().wait(TIMEOUT_S)

    def do_publish(self, exchange: str, routing_key: str, keys: list[str]) -> None:
        """Publish to an exchange."""
        bodies = [body_of(key) for key in keys]
        if len(bodies) == 1:
            self.node.publish(bodies[0], exchange, routing_key, timeout=TIMEOUT_S)
        else:
            self.node.publish_many(bodies, exchange, routing_key, timeout=TIMEOUT_S)

    def do_get(self, name: str, alone: bool, timeout: float) -> Received | None:
        """One message; what came ahead of it goes back, but for an open consumer. `alone`: nothing comes ahead."""
        if alone:
            time.sleep(COLD_S)
        try:
            message = self._queue(name).get(timeout=timeout)
        except warren.QueueEmpty:
            message = None
        if name not in self._consumers:
            self._queue(name).release()
        return None if message is None else self._received(name, message)

    def do_letters(self, name: str, most: int, timeout: float) -> list[list[Any]]:
        """Dead letters, taken and acked: [key, queue it died in, reason] of the last death of each."""
        messages = self._queue(name).get_many(most, timeout=timeout)
        self._queue(name).ack(messages)
        deaths = [message.headers["x-death"][0] for message in messages]
        return [
            [key_of(message.body), death["queue"], death["reason"]]
            for message, death in zip(messages, deaths, strict=True)
        ]

    def do_get_many(self, name: str, most: int, timeout: float) -> list[Received]:
        """The same with up to `most` messages."""
        found = self._queue(name).get_many(most, timeout=timeout)
        if name not in self._consumers:
            self._queue(name).release()
        return [self._received(name, message) for message in found]

    def do_consume(self, name: str, prefetch: int, timeout: float) -> Received | None:
        """Begin to consume, and take the first message. None: there was none, and the consumer is over."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self._consumers[name] = self._queue(name).consume(prefetch, timeout)
            try:
                return self.do_next(name)
            except (warren.TimedOut, warren.PeerLost):  # its worker was killed, or stands still: asked once more
                if time.monotonic() >= deadline:
                    raise

    def do_next(self, name: str) -> Received | None:
        """The next message of the open consumer. None: there was none, and it is over."""
        message = next(self._consumers[name], None)
        if message is None:
            del self._consumers[name]
            return None
        return self._received(name, message)

    def do_cancel(self, name: str) -> None:
        """End the open consumer."""
        self._consumers.pop(name).close()  # type: ignore[attr-defined]  # it is a generator

    def do_ack(self, name: str, tags: list[int], multiple: bool) -> None:
        """Ack these, or everything up to the only one."""
        self._settle(name, tags, multiple, "ack", {})

    def do_nack(self, name: str, tags: list[int], multiple: bool, requeue: bool) -> None:
        """Return these, or drop them; or everything up to the only one."""
        self._settle(name, tags, multiple, "nack", {"requeue": requeue})

    def _settle(self, name: str, tags: list[int], multiple: bool, what: str, how: dict[str, Any]) -> None:
        messages = [self._held.pop((name, tag)) for tag in tags]
        if multiple:
            for key in [key for key in self._held if key[0] == name and key[1] < tags[0]]:
                del self._held[key]
            getattr(messages[0], what)(multiple=True, **how)
        elif len(messages) == 1:
            getattr(messages[0], what)(**how)
        else:
            getattr(self._queue(name), what)(messages, **how)

    def do_purge(self, name: str) -> int:
        """Drop what is ready; returns how many."""
        return self._queue(name).purge(timeout=TIMEOUT_S)

    def do_browse(self, name: str, most: int) -> list[Received]:
        """What is ready, in order, without taking it."""
        return [
            [key_of(message.body), message.delivery_tag, message.redelivered, message.delivery_count]
            for message in self._queue(name).browse(most)
        ]

    def do_stats(self, name: str) -> dict[str, int]:
        """The counters of a queue."""
        return self._queue(name).stats()


def main(argv: list[str]) -> int:
    """Do what standard input says until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hands = Hands(warren.attach(argv[0], timeout=TIMEOUT_S, name="hands"))
    for line in sys.stdin:
        operation, *arguments = json.loads(line)
        print(json.dumps([hands.perform(operation, *arguments)]), flush=True)
    hands.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
