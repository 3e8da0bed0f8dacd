"""Goal: what a gateway keeps of its clients counts for no less than the memory that it takes; a client with too much
waits, or is refused, and others are not.

Method: backlogs without connections; what the reader hands out, measured by tracemalloc, against what it counts for.
"""

import tracemalloc
from collections.abc import Callable

import pytest

from warren.engine import _core
from warren.engine.amqp import spec
from warren.workers.amqp.backlog import LEAST_BYTES, READ_BYTES, STAYS_MAX, WAITS_MAX, Backlog, Kept, size_of

from amqp_diff.wire import BODY, frame, header, method

#: fields that take the most memory for their bytes, of each kind
FIELDS = {
    "octets": b"b\5", "unsigned octets": b"B\5", "numbers": b"s\0\5", "nothing": b"V", "booleans": b"t\1",
    "decimals": b"D\1\0\0\0\5", "floats": b"f\0\0\0\0", "tables": b"F\0\0\0\0", "arrays": b"A\0\0\0\0",
    "tables in tables": b"F\0\0\0\4\1at\1", "texts": b"S\0\0\0\1x", "no texts": b"S\0\0\0\1\xff",
}  # fmt: skip
TABLE_BYTES = 60_000


def _wide(field: bytes) -> bytes:
    fields, size = [], 0
    while size < TABLE_BYTES:
        name = b"%x" % len(fields)
        fields.append(bytes([len(name)]) + name + field)
        size += len(fields[-1])
    return b"".join(fields)


def _array(field: bytes) -> bytes:
    items = field * (TABLE_BYTES // len(field))
    return b"\1aA" + len(items).to_bytes(4) + items


def _taken(make: Callable[[], object]) -> int:
    """Bytes of memory that are taken by what is made, and while it is."""
    tracemalloc.start()
    try:
        kept = make()
        taken = tracemalloc.get_traced_memory()[1]
        del kept
    finally:
        tracemalloc.stop()
    return taken


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("shape", [_wide, _array])
def test_a_table_counts_for_no_less_than_it_takes(shape: Callable[[bytes], bytes], field: str) -> None:
    inside = shape(FIELDS[field])
    sent = method(1, "queue.declare", {"queue": "q", "arguments": len(inside).to_bytes(4) + inside})
    reader = _core.AmqpReader(1 << 20, 1)
    (event,) = reader.read(sent)
    assert _taken(lambda: _core.amqp_arguments(event[2], event[3])) < size_of(event)
    assert _taken(lambda: _core.AmqpReader(1 << 20, 1).read(sent)) < 1.2 * len(sent), "they wait as bytes"


SMALL: dict[str, Callable[[int], bytes]] = {
    "acks": lambda number: method(1, "basic.ack", {"delivery": (1 << 40) + number}),
    "declarations": lambda number: method(1, "queue.declare", {"queue": f"q{number}"}),
    "runs of one message": lambda number: _message(f"k{number}", b"", b"\x10\0\2"),
    "messages with other properties": lambda number: _message("k", b"", b"\x10\0%c" % (1 + number % 2)),
    "messages": lambda _number: _message("k", b"x", b"\x10\0\2"),
}


@pytest.mark.parametrize("what", SMALL)
def test_small_events_count_for_no_less_than_they_take(what: str) -> None:
    sent = b"".join(map(SMALL[what], range(500)))
    events = _core.AmqpReader(1 << 20, 1 << 20).read(sent)
    assert _taken(lambda: _core.AmqpReader(1 << 20, 1 << 20).read(sent)) < sum(map(size_of, events))


def _message(key: str, body: bytes, properties: bytes) -> bytes:
    sent = method(1, "basic.publish", {"routing_key": key}) + header(1, len(body), properties)
    return sent + frame(BODY, 1, body) if body else sent


def test_a_connection_waits_when_it_has_too_much_until_it_is_done() -> None:
    backlog = Backlog(1 << 40)
    kept = Kept(backlog, lambda: None)
    kept.came(WAITS_MAX - 1)
    assert not kept.full
    kept.came(1)
    assert kept.full
    kept.done(1)
    assert not kept.full
    kept.done(WAITS_MAX - 1)
    assert (backlog.waits, backlog.waiting, kept.waits) == (0, 0, 0)


def test_at_the_bound_who_has_more_than_a_share_waits_and_is_woken() -> None:
    backlog = Backlog(1000)
    woken: list[str] = []
    greedy, small = (Kept(backlog, lambda name=name: woken.append(name)) for name in ("greedy", "small"))  # type: ignore[misc]
    greedy.came(1000)
    small.came(10)
    assert greedy.full
    assert not small.full
    small.came(241)
    assert small.full, "a share is a quarter of it: half of it, for two"
    assert woken == []
    small.done(251)
    assert woken == [], "there is as much as before"
    greedy.done(1)
    assert sorted(woken) == ["greedy", "small"]
    assert not greedy.full
    greedy.end()
    greedy.done(999)
    assert (backlog.waits, backlog.waiting) == (0, 0)


def test_little_is_read_at_once_when_there_is_much() -> None:
    backlog = Backlog(READ_BYTES)
    kept = Kept(backlog, lambda: None)
    assert backlog.read_bytes == READ_BYTES
    kept.came(READ_BYTES - LEAST_BYTES - 1)
    assert backlog.read_bytes == LEAST_BYTES + 1
    kept.came(1 << 20)
    assert backlog.read_bytes == LEAST_BYTES


def test_what_stays_is_refused_when_there_is_too_much() -> None:
    backlog = Backlog(1000)
    greedy, small = Kept(backlog, lambda: None), Kept(backlog, lambda: None)
    assert greedy.reserve(1000)
    assert not greedy.reserve(1)
    assert small.reserve(250), "its share"
    assert not small.reserve(1)
    greedy.release(1000)
    assert small.reserve(750)
    small.release(1000)
    assert (backlog.stays, backlog.staying) == (0, 0)
    large = Kept(Backlog(1 << 40), lambda: None)
    assert large.reserve(STAYS_MAX)
    assert not large.reserve(1)


def test_sizes_of_events() -> None:
    """Their texts, bodies and properties count."""
    plain = size_of((spec.METHOD, 1, spec.BASIC_ACK, (1, False)))
    assert size_of((spec.METHOD, 1, spec.BASIC_CANCEL, ("t" * 200, False))) == plain + 200
    empty = size_of((spec.PUBLISH, 1, "", "k", 0, [b""], [b""]))
    assert size_of((spec.PUBLISH, 1, "", "k", 0, [b""], [bytes(1000)])) == empty + 1000
    assert size_of((spec.PUBLISH, 1, "", "k", 0, [bytes(1000)], [b""])) >= empty + 1000
    assert size_of((spec.PUBLISH, 1, "", "k", 0, [b""] * 100, [b""] * 100)) >= 50 * empty / 4
