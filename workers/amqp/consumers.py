"""Consumers of a channel, and what the channel holds unacked.

Invariants
  Delivery tags of a channel count from 1, over all of its consumers and gets. What is unacked lies in runs, by tag: the
  messages of one hand-out, those settled already as None. So an ack of many is a few slices.
  `held` of a consumer is what it got and has not settled; `Channel.consumed` is the sum for the limit of the channel.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from warren.engine import _core
from warren.engine._core import Delivery
from warren.engine.amqp import spec
from warren.workers.amqp.content import told_by

if TYPE_CHECKING:
    from warren.workers.amqp.speaker import Speaker
    from warren.workers.amqp.taps import Tap

#: messages that a consumer without acks is given at once, at most
NO_ACK_WINDOW = 1024


class Consumer:
    """One consumer of a channel."""

    __slots__ = (
        "allowed",
        "asked",
        "channel",
        "full_since",
        "tag",
        "tap",
        "queue",
        "no_ack",
        "exclusive",
        "priority",
        "prefetch",
        "held",
        "arguments",
    )

    def __init__(
        self,
        channel: Speaker,
        tag: str,
        tap: Tap,
        queue: str,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        prefetch: int,
    ) -> None:
        self.channel, self.tag, self.tap = channel, tag, tap
        self.queue = queue  #: its name in AMQP
        self.no_ack, self.exclusive, self.priority = no_ack, exclusive, priority
        self.prefetch = prefetch  #: 0: no limit
        self.held = 0
        self.allowed = 0  #: its tap: it may hold so many
        self.asked = 0  #: its tap: what it asked for when that was counted
        #: its taps: when it was seen to hold all it may, since it settled something; below 0: that was said
        self.full_since = 0.0

    @property
    def asks(self) -> int:
        """How many messages it would hold; 0: no limit."""
        if self.no_ack:
            return NO_ACK_WINDOW
        limit = self.channel.limit
        return min(self.prefetch, limit) if self.prefetch and limit else self.prefetch or limit

    @property
    def full(self) -> bool:
        """It holds as much as it may, which is less than it asks for: it gets no more until it acks."""
        return self.held >= self.allowed and not self.no_ack and not 0 < self.asks <= self.allowed

    @property
    def room(self) -> int:
        """How many more it takes now."""
        channel = self.channel
        if channel.over or not channel.connection.writable:
            return 0
        if self.no_ack:
            return self.allowed
        room = self.allowed - self.held
        return min(room, channel.limit - channel.consumed) if channel.limit else room

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send messages, which are in its hands from now on."""
        channel = self.channel
        first = channel.tagged(len(deliveries))
        connection, other = channel.connection, channel.taps.other(self.queue)
        if self.tap.counts_deliveries:
            for tag, delivery in enumerate(deliveries, first):
                counted = delivery.delivery_count > 0  # as RabbitMQ: a consumer's first has none, a get's says 0
                exchange, key, properties = told_by(delivery, other, counted)
                arguments = (self.tag, tag, delivery.redelivered, exchange, key)
                connection.send(
                    _core.amqp_content(
                        channel.number, spec.BASIC_DELIVER, arguments, properties, delivery.body, connection.frame_max
                    )
                )
        else:
            connection.send(
                _core.amqp_deliver(channel.number, self.tag, first, deliveries, connection.frame_max, other)
            )
        channel.delivered_n += len(deliveries)
        if self.no_ack:
            self.tap.settle_later(deliveries, self.tap.generation, True, False)
            return
        _core.amqp_shed(deliveries)
        self.held += len(deliveries)
        channel.consumed += len(deliveries)
        channel.unacked.add(Run(first, deliveries, self.tap, self.tap.generation, self))

    def settled(self, count: int) -> None:
        """It holds so many less."""
        self.held -= count
        if self.full_since > 0:
            self.full_since = 0.0
        self.channel.consumed -= count

    def lost(self) -> None:
        """Its queue has gone."""
        self.channel.consumer_lost(self)


class Run:
    """Messages of one hand-out, with tags from `first` on; None where one was settled."""

    __slots__ = ("consumer", "first", "generation", "items", "left", "tap")

    def __init__(
        self, first: int, items: list[Any], tap: Tap | None, generation: int, consumer: Consumer | None
    ) -> None:
        self.first = first
        self.items = items  #: Delivery or None; nobody else has the list
        self.tap, self.generation = tap, generation  #: tap None: of a stream
        self.consumer = consumer  #: None: of a get
        self.left = len(items)

    def settle(self, deliveries: list[Any], ack: bool, requeue: bool) -> None:
        """These of it are settled."""
        assert self.tap is not None
        self.tap.settle_later(deliveries, self.generation, ack, requeue)
        if self.consumer is not None:
            self.consumer.settled(len(deliveries))


class Taken(NamedTuple):
    """Messages taken out of the unacked ones, with what they belong to; of a transaction the tags, to put them back."""

    run: Run
    deliveries: list[Any]
    tags: list[int]


class Unacked:
    """What a channel holds."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._firsts: list[int] = []
        self.count = 0

    def add(self, run: Run) -> None:
        """Messages with the highest tags so far."""
        self._runs.append(run)
        self._firsts.append(run.first)
        self.count += run.left

    def take(self, tag: int) -> Taken | None:
        """The message with a tag; None: there is none."""
        at = bisect_right(self._firsts, tag) - 1
        if at < 0:
            return None
        run = self._runs[at]
        place = tag - run.first
        if place >= len(run.items) or (found := run.items[place]) is None:
            return None
        run.items[place] = None
        run.left -= 1
        self.count -= 1
        if not run.left:
            del self._runs[at], self._firsts[at]
        return Taken(run, [found], [tag])

    def take_up_to(self, tag: int, tags_too: bool = False) -> list[Taken]:
        """The messages with tags up to this one, in order; 0: all. `tags_too`: they may be put back."""
        taken: list[Taken] = []
        done = 0
        for run in self._runs:
            if tag and run.first > tag:
                break
            end = len(run.items) if not tag else min(len(run.items), tag + 1 - run.first)
            if end == len(run.items):
                found = run.items if run.left == end else [item for item in run.items if item is not None]
                done += 1
            else:
                found = [item for item in run.items[:end] if item is not None]
            if not found:
                continue
            tags = [run.first + at for at in range(end) if run.items[at] is not None] if tags_too else []
            taken.append(Taken(run, found, tags))
            if end < len(run.items):
                run.items[:end] = [None] * end
                run.left -= len(found)
            self.count -= len(found)
        del self._runs[:done], self._firsts[:done]
        return taken

    def known(self, tag: int) -> bool:
        """Whether a message with this tag is held."""
        at = bisect_right(self._firsts, tag) - 1
        if at < 0:
            return False
        run = self._runs[at]
        place = tag - run.first
        return place < len(run.items) and run.items[place] is not None

    def put_back(self, taken: list[Taken]) -> None:
        """A transaction is rolled back: these are held again."""
        for part in taken:
            for tag, delivery in zip(part.tags, part.deliveries, strict=True):
                again = Run(tag, [delivery], part.run.tap, part.run.generation, part.run.consumer)
                at = bisect_right(self._firsts, tag)
                before = self._runs[at - 1] if at else None
                if before is not None and tag - before.first < len(before.items):
                    before.items[tag - before.first] = delivery
                    before.left += 1
                else:
                    self._runs.insert(at, again)
                    self._firsts.insert(at, tag)
                self.count += 1

    def first_of(self, tap: Tap) -> Delivery | None:
        """The oldest message that came by a tap as it is now."""
        for run in self._runs:
            if run.tap is tap and run.generation == tap.generation:
                return next((item for item in run.items if item is not None), None)
        return None

    @property
    def taps(self) -> set[Tap]:
        """The taps that something of it came by."""
        return {run.tap for run in self._runs if run.tap is not None}
