"""The forwarder of dead letters: a thread of a queue worker, with a client attachment of its own.

What dies in a queue with a dead_letter_exchange lies in its companion (a hidden queue of the same worker) until it is
through here: taken from the companion, published to the exchange with the death added to its headers, confirmed, acked.

    x-death                 list of {queue, reason, count, time, exchange, routing-keys}, the newest death first; one
                            entry for each queue and reason, whose count rises (time: seconds since 1970, of the first)
    x-first-death-queue, x-first-death-reason, x-first-death-exchange
    x-last-death-exception  what the function of node.worker raised at its last try, as "KeyError: 'shop'", at most
                            1,000 characters; not of other deaths, and not when the worker was killed in between

Letters that came by AMQP have these in AMQP's types, and more: amqp_deaths.py.

Invariants
  At least once: nothing is acked before its copy is confirmed, as durably as the letter was. A letter that is forwarded
  twice has the same key of deduplication, made of its place in the companion; queues with a window drop the second. A
  topic that is bound to the exchange may have it twice.
  A cycle without a rejection ends: a letter does not go to a queue in which it died before, unless somebody rejected it
  since.
  What cannot be forwarded stays: when the exchange is missing until the catalog changes, after any other trouble for a
  while. One that is too large for the node, since it was started with a smaller profile, holds up no others. A letter
  that no binding matches is dropped, as any message is.
Crash points (kill -9 of the worker, or of any other process)
  before the publish is submitted   the letter was held by this client: it returns to the companion
  submitted, not acked              it is published (the ring is the redo log), and forwarded again: same key
  acked                             done
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any

import msgspec

from warren.engine import _core
from warren.engine._core import AttachmentLost, Confirm, Delivery
from warren.engine.amqp.names import amqp_name
from warren.engine.catalog import amqp_metadata, metadata
from warren.engine.catalog.arguments import QueueArguments
from warren.engine.catalog.catalog import Catalog, QueueDeclaration
from warren.engine.catalog.topic_bindings import TopicRoute
from warren.engine.errors import (
    ClosedError,
    Error,
    ExchangeNotFound,
    MessageTooLarge,
    NodeNotRunning,
    QueueNotFound,
    TopicNotFound,
    UsageError,
)
from warren.engine.kernel.protocol import REASONS
from warren.engine.queues.causes import Causes
from warren.engine.saying import Say, inert, quoted
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.client.client import Client
from warren.workers.client.publish import Publish
from warren.workers.client.topic_parts import parts_of
from warren.workers.process.control import ControlClient
from warren.workers.servers import amqp_deaths

REASON_NAMES = dict(enumerate(REASONS, 1))
#: letters of one companion under way at a time
PREFETCH = 200
#: how often the catalog is looked at when nothing dies
IDLE_S = 0.25
#: how long a companion rests after trouble
REST_S = 1.0
#: how long a publish may wait for room, and for its confirm
PUBLISH_S = 5.0
#: how long the end waits for what is under way
LEAVE_S = 2.0

#: header of what a function raised
EXCEPTION = "x-last-death-exception"

Death = dict[str, Any]


def deaths_of(headers: Mapping[str, Any]) -> list[Death]:
    """The deaths that the headers of a message tell of; what is not one is left out."""
    told = headers.get("x-death")
    if not isinstance(told, list):
        return []
    return [item for item in told if isinstance(item, dict) and isinstance(item.get("queue"), str)]


def with_death(
    headers: Mapping[str, Any] | None,
    queue: str,
    reason: str,
    exchange: str,
    routing_keys: Sequence[str],
    now_s: int,
    cause: str | None = None,
) -> dict[str, Any]:
    """The headers of a message after another death; `cause`: what it died of, if a program said so."""
    found = dict(headers or {})
    found.pop(EXCEPTION, None)  # of a death before
    if cause is not None:
        found[EXCEPTION] = cause
    deaths = deaths_of(found)
    before = next((item for item in deaths if (item["queue"], item.get("reason")) == (queue, reason)), None)
    if before is None:
        death = {
            "queue": queue,
            "reason": reason,
            "count": 1,
            "time": now_s,
            "exchange": exchange,
            "routing-keys": list(routing_keys),
        }
    else:
        count = before.get("count")
        death = before | {"count": (count if isinstance(count, int) else 0) + 1}
    if "x-death" not in found:  # else its first death was before, whatever a program left of it
        found["x-first-death-queue"] = queue
        found["x-first-death-reason"] = reason
        found["x-first-death-exchange"] = exchange
    found["x-death"] = [death, *(item for item in deaths if item is not before)]
    return found


def is_cycle(queue: str, deaths: list[Death]) -> bool:
    """Would a message with these deaths come into this queue again without anybody having rejected it since?"""
    for death in deaths:
        if death.get("reason") == "rejected":
            return False
        if death["queue"] == queue:
            return True
    return False


def _told(letter: Delivery, origin: str) -> metadata.Metadata:
    """The metadata of a letter; of one that has none, or none that can be read, what a plain put would have."""
    if letter.meta is not None:
        with contextlib.suppress(msgspec.MsgspecError):
            return metadata.decode(letter.meta)
    return metadata.Metadata("", origin)


@dataclass
class _Died:
    """What a letter says of itself after a death: the exchange and the routing key that it has then, the keys by which
    it goes (as the node has them), and what its publisher said.
    """

    exchange: str
    routing_key: str
    keys: list[str]
    headers: dict[str, Any]
    told: metadata.Metadata

    def named(self, queue: str) -> str:
        """A queue as its deaths name it."""
        return queue if self.told.amqp is None else amqp_name(queue)[1]

    def packed(self) -> bytes:
        """All that it says."""
        told = self.told
        return metadata.passed_on(self.exchange, self.routing_key, self.headers, told.properties, told.row, told.amqp)

    def with_this_death(self) -> bytes:
        """Where it died, and nothing else."""
        headers = {"x-death": self.headers["x-death"][:1]}
        amqp = None if self.told.amqp is None else amqp_metadata.written(headers, None)
        return metadata.passed_on(self.exchange, self.routing_key, headers, None, None, amqp)

    def bare(self) -> bytes:
        """Nothing but the way it goes."""
        return metadata.passed_on(self.exchange, self.routing_key)


def _routed(client: Client, exchange: str, died: _Died) -> tuple[list[QueueDeclaration], tuple[TopicRoute, ...]]:
    """The queues and topics to which its keys lead, each once."""
    found = client.router().route_all(exchange, died.keys, died.headers)
    return list(found.queues), found.topics


@dataclass
class _Origin:
    """The queue that letters come from, as the owner of the messages."""

    name: str


@dataclass
class _Source:
    """One companion and how it goes with it."""

    companion: QueueDeclaration
    origin: QueueDeclaration
    policy: QueueArguments
    handle: _core.QueueHandle
    rests_until: float = 0.0
    begun: bool = False


class Forwarder(threading.Thread):
    """Forwards the dead letters of one worker's queues until `stop`."""

    def __init__(self, directory: Path, worker: int, say: Say, causes: Causes) -> None:
        super().__init__(name="warren-dead-letters", daemon=True)
        self._directory = directory
        self._worker = worker
        self._server = SERVER_WORKER_FIRST + worker
        self._say = say
        self._causes = causes
        self._ending = threading.Event()
        self._said: set[str] = set()
        self._sources: dict[int, _Source] = {}
        self._version = -1

    def stop(self) -> None:
        """End soon; what is under way is finished if that does not take long."""
        self._ending.set()

    def run(self) -> None:
        """Serve with one attachment after another."""
        while not self._ending.is_set():
            try:
                client = Client(self._directory, f"dead-letters-{self._worker}", IDLE_S, counted=False)
            except Error as error:  # the node is just starting, or ending, or there is no slot free
                if not isinstance(error, NodeNotRunning):
                    self._tell(f"dead letters wait: {error}")
                self._ending.wait(IDLE_S)
                continue
            try:
                self._serve(client)
            except Exception as error:  # noqa: BLE001 - the letters wait, and the worker goes on; the log says where it was
                self._say(f"the forwarder of dead letters starts again after {error!r}", ERROR, exc_info=True)
                self._ending.wait(REST_S)
            finally:
                self._sources, self._version = {}, -1
                client.close(LEAVE_S)

    def _serve(self, client: Client) -> None:
        while not self._ending.is_set():
            try:
                router = client.router()
                if router.version != self._version:
                    self._update(client, router.catalog)
                    self._version = router.version
                now, busy = time.monotonic(), False
                for source in self._sources.values():
                    if now >= source.rests_until and not self._ending.is_set():
                        busy = self._forward(client, source) or busy
                if not busy:
                    client.core.wait_delivery(self._server, IDLE_S)
            except AttachmentLost:
                self._sources, self._version = {}, -1
            except ClosedError:
                return  # the node is being stopped
            except Error as error:
                self._tell(f"dead letters wait: {error}")
                self._sources, self._version = {}, -1
                self._ending.wait(REST_S)

    def _update(self, client: Client, catalog: Catalog) -> None:
        """Another version of the catalog: companions that came and went, and exchanges that may be there now."""
        wanted = {item.id: item for item in catalog.of_worker(self._worker) if item.dead_letters_of}
        for id in self._sources.keys() - wanted.keys():
            del self._sources[id]
        for id, companion in wanted.items():
            origin = catalog.by_id[companion.dead_letters_of]
            known = self._sources.get(id)
            if known is None or not known.handle.usable:
                handle = client.handle(companion, _Origin(origin.name), Delivery)
                self._sources[id] = _Source(companion, origin, origin.policy, handle)
            else:
                known.rests_until = 0.0

    # -- one companion ------------------------------------------------------------------------------------------

    def _forward(self, client: Client, source: _Source) -> bool:
        """Forward what lies there; False when there was nothing."""
        if not source.begun:
            source.handle.begin(PREFETCH)
            source.begun = True
        letters: list[Delivery] = source.handle.get_many(PREFETCH, 0)
        if not letters:
            return False
        under_way: list[tuple[Delivery, Confirm]] = []
        done: list[Delivery] = []
        back: list[Delivery] = []
        trouble: Error | None = None
        too_large: Error | None = None
        for letter in letters:
            if trouble is not None or self._ending.is_set():
                back.append(letter)
                continue
            try:
                confirm = self._publish(client, source, letter)
            # taken when the node had a larger profile, or without what a compacted topic needs: it alone waits
            except (MessageTooLarge, UsageError) as error:
                too_large = error
                back.append(letter)
                continue
            except Error as error:
                trouble = error
                back.append(letter)
                continue
            if confirm is None:
                done.append(letter)
            else:
                under_way.append((letter, confirm))
        deadline = time.monotonic() + PUBLISH_S
        for letter, confirm in under_way:
            try:
                confirm.wait(max(0.0, deadline - time.monotonic()))
            except (QueueNotFound, TopicNotFound):  # it went after the routing: the next look routes anew
                back.append(letter)
            except Error as error:
                trouble = trouble or error
                back.append(letter)
            else:
                done.append(letter)
        source.handle.settle_many(done, True, False)
        for letter in done:
            self._causes.forget(source.origin.id, letter.message_id)
        source.handle.settle_many(back, False, True)
        if (wrong := trouble or too_large) is not None:
            self._rest(source, wrong)
        return True

    def _rest(self, source: _Source, trouble: Error) -> None:
        """Nothing more is taken for a while; with a missing exchange until the catalog changes."""
        missing = isinstance(trouble, ExchangeNotFound)
        source.rests_until = float("inf") if missing else time.monotonic() + REST_S
        source.begun = False
        source.handle.release()
        name = source.origin.name
        if missing:
            self._tell(
                f"dead letters of queue {quoted(name)} wait for exchange "
                f"{quoted(source.policy.dead_letter_exchange or '')}: "
                "declare it, and they go on"
            )
        else:
            self._tell(f"dead letters of queue {quoted(name)} wait: {type(trouble).__name__}: {inert(str(trouble))}")

    def _publish(self, client: Client, source: _Source, letter: Delivery) -> Confirm | None:
        """Submit the copy of a letter; None when it goes nowhere."""
        policy, origin = source.policy, source.origin.name
        died = self._died(source, letter)
        headers, exchange = died.headers, policy.dead_letter_exchange or ""
        place = b"dead letter %d %d " % (source.companion.lasting_id, letter.delivery_tag) + letter.message_id
        # its id counts for queues with a window only: what a letter says of itself is made below, with its own id
        said = Publish(message_id=place, priority=letter.priority, persistent=letter.persistent)
        options = said.options()
        while True:
            core = client.core
            queues, topics = _routed(client, exchange, died)
            going = [queue for queue in queues if not is_cycle(died.named(queue.name), headers["x-death"])]
            if len(going) < len(queues):
                self._tell(
                    f"a dead letter of queue {quoted(origin)} went in a circle without being rejected and was dropped"
                )
            elif not queues and not topics:
                self._tell(
                    f"a dead letter of queue {quoted(origin)} was dropped: exchange "
                    f"{quoted(exchange)} has no queue for routing "
                    f"key {quoted(died.keys[0])}"
                )
            if not going and not topics:
                return None
            level = said.level(None, any(queue.durable for queue in going), "every queue that it goes to")
            if topics:
                level = _core.LEVEL_SYNCED
            route = client.route_to(going, died.bare(), topics)
            try:
                for meta in self._metadata(origin, died):
                    with contextlib.suppress(MessageTooLarge):
                        parts = parts_of(client.turns, route, meta, options, None) if topics else None
                        return core.publish(route.core, letter.body, level, meta, PUBLISH_S, False, options, parts)
                parts = parts_of(client.turns, route, route.meta, None, None) if topics else None
                return core.publish(route.core, letter.body, level, None, PUBLISH_S, False, options, parts)
            except AttachmentLost:
                if core.ended:
                    raise  # else the catalog has changed: route again

    def _died(self, source: _Source, letter: Delivery) -> _Died:
        """What a letter says of itself from now on."""
        policy, origin = source.policy, source.origin.name
        told = _told(letter, origin)
        reason = REASON_NAMES.get(letter.reason, "maxlen")  # none: it was refused, and its worker was killed
        cause = self._causes.of(source.origin.id, letter.message_id)
        exchange, chosen, now_s = policy.dead_letter_exchange or "", policy.dead_letter_routing_key, int(time.time())
        if told.amqp is None:
            headers = with_death(told.headers, origin, reason, told.exchange, [told.routing_key], now_s, cause)
            key = amqp_deaths.own_key(origin, told.exchange, told.routing_key, exchange) if chosen is None else chosen
            return _Died(exchange, key, [key], headers, told)
        found = amqp_deaths.letter_of(told.amqp, told.exchange, told.routing_key, origin)
        headers = with_death(found.headers, found.queue, reason, found.exchange, found.keys, now_s, cause)
        keys = amqp_deaths.routing_keys(found, exchange, chosen)
        told.amqp = amqp_deaths.packed(found, headers, chosen)
        return _Died(amqp_name(exchange)[1], amqp_deaths.said_key(exchange, keys[0]), keys, headers, told)

    def _metadata(self, origin: str, died: _Died) -> Iterator[bytes]:
        """What a letter says of itself; less when that is too large for a message: the body must get through."""
        yield died.packed()
        self._tell(
            f"a dead letter of queue {quoted(origin)} lost its headers: with x-death it would be larger than "
            "message_bytes_max"
        )
        yield died.with_this_death()
        yield died.bare()

    def _tell(self, line: str) -> None:
        """A line into the log of the worker and into `warren status`, once."""
        if line in self._said:
            return
        if len(self._said) > 1000:
            self._said.clear()
        self._said.add(line)
        self._say(line, WARNING)
        with contextlib.suppress(Error), ControlClient(self._directory) as control:  # the log has it in any case
            control.call("note", timeout=1.0, text=f"worker {self._worker}: {line}")
