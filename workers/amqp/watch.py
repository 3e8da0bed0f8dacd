"""A look, each second, at connections from which nothing is heard because nobody reads them, and at those that others
wait for.

Invariants
  A connection that is not read and whose peer has gone is ended within GONE_S and a look, also when bytes lie in its
  socket: nothing but a look at the socket itself tells of it.
  A connection that has begun a message and for which others wait sends at least PACE_BYTES in PACE_S, or is closed.
  Time in which it was not read does not count.
  In a memory alarm what is begun is no more than LEFT_BYTES after a while: it cannot be handed over before the alarm
  ends, which might wait for it. The largest go first; who has begun nothing keeps what waits for it.
"""

from __future__ import annotations

import logging
import select

from warren.engine.amqp import spec
from warren.engine.saying import counted
from warren.workers.amqp.faults import ConnectionFault
from warren.workers.amqp.interfaces import House, Link

log = logging.getLogger("warren.amqp")

#: nothing was read for so long of a peer that has gone
GONE_S = 3.0
#: what has to come in PACE_S of a message for which others wait
PACE_S, PACE_BYTES = 30.0, 1 << 16
#: how long a memory alarm is on before messages that are begun are dropped, and the time between two halves of them
DROP_S, DROP_AGAIN_S = 5.0, 2.0
#: what may be left of them, as far as it is a sixteenth of their bound
LEFT_BYTES, LEFT_PART = 16 << 20, 16
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Watch:
    """Of one gateway."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._gone: dict[Link, tuple[float, int]] = {}  # since when, and what had been read of it
        self._drop_at: float | None = None  # in a memory alarm

    def look(self, now: float, memory: bool) -> None:
        """Look at all of them; `memory`: that alarm is on."""
        self._look_for_the_gone(now)
        self._look_at_the_slow(now)
        if not memory:
            self._drop_at = None
        elif self._drop_at is None:
            self._drop_at = now + DROP_S
        elif now >= self._drop_at:
            self._drop_at = now + DROP_AGAIN_S
            self._drop()

    def _look_for_the_gone(self, now: float) -> None:
        poll, unread = select.poll(), {}
        for connection in self._house.connections:
            if connection.paused and not connection.over and (number := connection.socket.fileno()) >= 0:
                unread[number] = connection
                poll.register(number, _GONE)
        was, self._gone = self._gone, {}
        if not unread:
            return
        for number, _what in poll.poll(0):
            connection = unread[number]
            since, read = was.get(connection, (now, connection.bytes_in))
            if read != connection.bytes_in:  # it is read now and then, and heard to its end
                since = now
            if now - since < GONE_S:
                self._gone[connection] = since, connection.bytes_in
            else:
                connection.abort("its client has gone")

    def _look_at_the_slow(self, now: float) -> None:
        begun = self._house.begun
        for part in list(begun.read):
            connection = part.owner
            sent = connection.bytes_in - part.bytes_in
            if not begun.waited_for or connection.paused or part.since is None or sent >= PACE_BYTES:
                part.since, part.bytes_in = now, connection.bytes_in
            elif now - part.since >= PACE_S:
                connection.fail(
                    ConnectionFault(
                        spec.RESOURCE_ERROR,
                        f"{sent} bytes of a message came in {PACE_S:g} s, and others wait for the memory that is kept "
                        "for it: publish it again",
                    )
                )

    def _drop(self) -> None:
        """Close who has begun most, until half of it is gone."""
        begun = self._house.begun
        parts = sorted((*begun.read, *begun.queue), key=lambda part: part.came, reverse=True)
        total = left = sum(part.came for part in parts)
        if total <= min(LEFT_BYTES, begun.most // LEFT_PART):
            return
        closed = 0
        for part in parts:
            if left <= total // 2:
                break
            left -= part.came
            closed += 1
            part.owner.fail(
                ConnectionFault(
                    spec.RESOURCE_ERROR,
                    "the node is low on memory, and has no room for the message that was begun: connect and publish it "
                    "again when the alarm is over",
                )
            )
        log.warning("memory alarm: closed %s that had begun messages", counted(closed, "connection"))
