"""Control requests of a queue worker: what clients ask it beside publishing and consuming (OP_CONTROL).

A request is a msgpack map with its operation's name as `op`; each operation is one class here, and has one class of
answers. The asking side (workers/client) makes requests of these classes and reads answers by them. A refusal is a
`Refusal` instead, with RESULT_ERROR.

Invariant: a durable answer leaves only after the frames that it speaks of are synced (the engine holds the link).
"""

from __future__ import annotations

import struct
from typing import Protocol, TypeVar

import msgspec

from warren.engine import _core
from warren.engine.errors import StoreError, UsageError
from warren.engine.kernel.protocol import DELIVERY
from warren.engine.kernel.refusal import Refusal
from warren.engine.queues.causes import Causes

#: names of what the engine's policy_counts answers
POLICY_COUNTS = ("delayed", "expired", "dropped", "dead_lettered", "refused", "duplicates")
#: answers of `join`, in the order of WR_JOIN_… (exclusive.h): it consumes; another one consumes alone; another one
#: consumes, so nobody can alone; not known yet, so ask again; no delivery slot
JOINED = ("in", "held", "consumed", "early", "no slot")
MESSAGE_ID_BYTES = 16
#: what the reply of a browse needs beside its rows
REPLY_MARGIN = 128
UNLIMITED = 1 << 62
#: one of the spans of `Spans`: the first sequence, and how many
SPAN = struct.Struct("<QQ")


class Request(msgspec.Struct, tag_field="op"):
    """`queue`: id of the queue that the operation is about."""

    queue: int


class Stats(Request, tag="stats"):
    """How many messages are where, and what became of others: `Counts`."""


class Waiting(Request, tag="waiting"):
    """How many messages nobody has received, those that lie ready at a client too: `Count`."""


class Ranges(Request, tag="ranges"):
    """Lowest and next sequence: `Range`."""


class Purge(Request, tag="purge"):
    """Drop what is ready: `Count`, durable."""


class AckTo(Request, tag="ack_to"):
    """Ack everything below a sequence: `Count`, durable."""

    sequence: int


class Browse(Request, tag="browse"):
    """Look at messages from a sequence on, without taking them: `Rows`."""

    start: int = 0
    count: int = UNLIMITED  #: at most; the worker answers as many as a reply has room for
    ready_only: bool = False


class ReadySpans(Request, tag="ready_spans"):
    """Where ready messages are that have not expired, from a sequence on: `Spans`."""

    start: int = 0


class Measure(Request, tag="measure"):
    """How far messages from `start` on go that have so many bytes together: `Measured`."""

    start: int
    end: int
    bytes: int
    one: bool = False  #: one at least, whatever it has


class Claim(Request, tag="claim"):
    """Move ready messages to a subscription's queue, oldest first: `Claimed`, durable."""

    subscription_queue: int
    max_messages: int
    max_bytes: int = UNLIMITED


class Release(Request, tag="release"):
    """Return everything that a subscription holds to the end of its queue: `Count`, durable."""

    subscription_queue: int


class Join(Request, tag="join"):
    """Consume from now on, alone (`exclusive`) or beside others: `Joined`. It ends by OP_LEAVE, and with the client."""

    exclusive: bool


class Cause(Request, tag="cause"):
    """What a message died of that is about to be rejected, for the headers of its dead letter: `Count`. Kept in memory
    alone (engine/queues/causes.py).
    """

    message: bytes  #: its id
    text: str


#: each counter of a queue, by name; see `Queue.stats` and POLICY_COUNTS
Counts = dict[str, int]


class Range(msgspec.Struct):
    """The lowest sequence in a queue, and the next one to be given out."""

    base: int
    next: int


class Count(msgspec.Struct):
    """How many messages an operation concerned."""

    count: int


class Rows(msgspec.Struct):
    """Rows as deliveries have them (DELIVERY), and the sequence to go on with; no rows: there are no more messages."""

    rows: bytes
    next: int


class Spans(msgspec.Struct):
    """Pairs of 64-bit numbers (first, count), and the sequence to go on with: none behind it, if that is the end."""

    spans: bytes
    next: int
    end: int


class Measured(msgspec.Struct):
    """The sequence behind the messages, the bytes of their metadata and bodies, and whether the next one has too many.
    An answer goes through some 100,000 at most, so there may be more behind it.
    """

    next: int
    bytes: int
    full: bool


class Joined(msgspec.Struct):
    """Whether the client may consume, a word of JOINED; `slot`: of the client that is in the way."""

    how: str
    slot: int


class Claimed(msgspec.Struct):
    """Sequences [start, end) of the subscription's queue."""

    start: int
    end: int


Answer = Counts | Range | Count | Rows | Spans | Measured | Joined | Claimed
#: the one of these that a request has
AnswerOf = TypeVar("AnswerOf")

_decode = msgspec.msgpack.Decoder(
    Stats | Waiting | Ranges | Purge | AckTo | Browse | ReadySpans | Measure | Join | Claim | Cause | Release
).decode


class Declared(Protocol):
    """What has to be known of a queue."""

    @property
    def id(self) -> int: ...
    @property
    def durable(self) -> bool: ...


class Worker(Protocol):
    """What answers: a QueueService."""

    @property
    def engine(self) -> _core.QueueEngine: ...

    @property
    def causes(self) -> Causes: ...

    def known(self, id: int) -> Declared:
        """A queue that is served. Raises QueueNotFound."""

    def release_claims(self, source: int, target: int) -> bool:
        """Everything of a subscription goes back to its queue; False when the journal has no room now."""


def serve(worker: Worker, reply_bytes: int) -> None:
    """Answer the requests that are there, in order."""
    engine = worker.engine
    while (request := engine.control_next()) is not None:
        slot, epoch, sequence, content, high = request
        ok, durable = True, False
        answer: Answer | Refusal
        try:
            found = _answer(worker, _decode(content), slot, epoch, sequence, high, reply_bytes)
            if found is None:
                engine.control_later(slot)
                engine.pending(_core.QUEUE_EVENT_CONTROL, True)  # until a journal file is there
                return
            answer, durable = found
        except (UsageError, StoreError) as error:
            ok, answer = False, Refusal(type(error).__name__, str(error))
        except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
            ok, answer = False, Refusal("UsageError", f"not a control request: {error!r}")
        except OSError as error:
            ok, answer = False, Refusal("SyncFailed", f"the journal failed: {error.strerror}")
        reply = msgspec.msgpack.encode(answer)
        if len(reply) > reply_bytes:
            ok, reply = False, msgspec.msgpack.encode(Refusal("LimitError", "raise reply_bytes"))
        engine.control_answer(slot, reply, ok, durable)


def _answer(
    worker: Worker, request: Request, slot: int, epoch: int, sequence: int, high: int, reply_bytes: int
) -> tuple[Answer, bool] | None:
    """(answer, durable) of one request, None when the journal has no room now."""
    engine, queue = worker.engine, worker.known(request.queue)
    match request:
        case Stats():
            ready, unacked, alpha, beta, gamma, delta, size, base, next = engine.stats(queue.id)
            counts = {"alpha": alpha, "beta": beta, "gamma": gamma, "delta": delta}
            counts |= dict(zip(POLICY_COUNTS, engine.policy_counts(queue.id), strict=True))
            return {"ready": ready, "unacked": unacked, **counts, "bytes": size, "base": base, "next": next}, False
        case Waiting():
            return Count(engine.waiting(queue.id)), False
        case Ranges():
            found = engine.stats(queue.id)
            return Range(found[7], found[8]), False
        case Purge():
            return Count(engine.purge(queue.id, UNLIMITED, False)), True
        case AckTo(sequence=below):
            return Count(engine.purge(queue.id, below, True)), True
        case Browse(start=start, count=count, ready_only=ready_only):
            most = (reply_bytes - REPLY_MARGIN) // DELIVERY.size
            rows, next = engine.browse(queue.id, max(0, start), max(0, min(count, most)), ready_only)
            return Rows(rows, next), False
        case ReadySpans(start=start):
            spans, next = engine.spans(queue.id, max(0, start), (reply_bytes - REPLY_MARGIN) // SPAN.size)
            return Spans(spans, next, engine.stats(queue.id)[8]), False
        case Measure(start=start, end=end, bytes=size, one=one):
            return Measured(*engine.measure(queue.id, max(0, start), max(0, end), max(0, size), one)), False
        case Join(exclusive=exclusive):
            joined, other = engine.join(queue.id, slot, exclusive)
            return Joined(JOINED[joined], other), False
        case Claim(max_messages=messages, max_bytes=size):
            claims = _claims(worker, queue, request.subscription_queue)
            if sequence <= high and (before := engine.replayed_claim(epoch, sequence)) is not None:
                return Claimed(*before), True
            moved = engine.move(queue.id, claims.id, max(0, messages), max(0, size), False, epoch, sequence)
            return None if moved is None else (Claimed(*moved), True)
        case Cause(message=message, text=text):
            if len(message) != MESSAGE_ID_BYTES:
                raise UsageError(f"an id of a message has {MESSAGE_ID_BYTES} bytes, not {len(message)}")
            worker.causes.note(queue.id, message, text)
            return Count(1), False
        case Release():
            claims = _claims(worker, queue, request.subscription_queue)
            before_n = engine.stats(queue.id)[8]
            if not worker.release_claims(claims.id, queue.id):
                return None
            return Count(engine.stats(queue.id)[8] - before_n), True
    raise UsageError(f"there is no control operation {type(request).__name__!r}")


def _claims(worker: Worker, queue: Declared, subscription: int) -> Declared:
    """The queue of a subscription's claims. Raises QueueNotFound, UsageError."""
    claims = worker.known(subscription)
    if queue.id == subscription or not (queue.durable and claims.durable):
        raise UsageError(f"queues {queue.id} and {subscription} cannot be queue and subscription: both must be durable")
    return claims
