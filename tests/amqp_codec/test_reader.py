"""Goal: whatever a client sends, however it is cut, becomes the same methods and messages, or a fault in RabbitMQ's
words.

Method: sessions that pika's encoder made, cut at each byte and in random pieces (Hypothesis); frames that are wrong in
one way each, beside what RabbitMQ answers to them; the memory that a peer can make the reader keep.
"""

import sys
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from amqp_codec.wire import method, parsed, publish
from hypothesis import example, given
from hypothesis import strategies as st
from pika import frame
from pika import spec as pika_spec

from warren.engine._core import AmqpReader
from warren.engine.amqp import spec

BODY_MAX = 1 << 20
PROPERTIES = pika_spec.BasicProperties(content_type="text/plain", headers={"a": [1, {"b": "c"}]}, delivery_mode=2)
HEARTBEAT = bytes(frame.Heartbeat().marshal())
QOS = method(1, pika_spec.Basic.Qos(prefetch_count=3))
START = method(1, pika_spec.Basic.Publish(exchange="", routing_key="k"))


def reader(frame_max: int = 4096, **limits: int) -> AmqpReader:
    return AmqpReader(frame_max, limits.pop("body_max", BODY_MAX), **limits)


def header(size: int, channel: int = 1, class_id: int = 60, properties: bytes = b"\0\0") -> bytes:
    return raw(spec.FRAME_HEADER, class_id.to_bytes(2) + b"\0\0" + size.to_bytes(8) + properties, channel)


def raw(kind: int, payload: bytes, channel: int = 1, end: bytes = b"\xce") -> bytes:
    return bytes([kind]) + channel.to_bytes(2) + len(payload).to_bytes(4) + payload + end


def body(data: bytes, channel: int = 1) -> bytes:
    return raw(spec.FRAME_BODY, data, channel)


def flat(events: Iterable[tuple[Any, ...]]) -> dict[int, list[Any]]:
    """What happened on each channel, message by message: runs differ with how the bytes are cut."""
    found: dict[int, list[Any]] = {}
    for event in events:
        if event[0] == spec.PUBLISH:
            _kind, channel, *where, properties, bodies = event
            assert len(properties) == len(bodies) > 0
            found.setdefault(channel, []).extend((*where, *pair) for pair in zip(properties, bodies, strict=True))
        else:
            channel = event[1] if event[0] in (spec.METHOD, spec.REFUSED) else 0
            found.setdefault(channel, []).append(event)
    return found


def fault(*pieces: bytes, **limits: int) -> tuple[int, str, int, int, int]:
    """The fault with which a reader ends."""
    read = reader(**limits)
    events = [event for piece in pieces for event in read.read(piece)]
    assert events[-1][0] == spec.FAULT
    assert read.read(HEARTBEAT) == [], "nothing is read behind a fault"
    return events[-1][1:]  # type: ignore[return-value]


SESSION = b"".join(
    [
        method(0, pika_spec.Connection.TuneOk(2047, 131072, 60)),
        *publish(1, "e", "k", b"one", PROPERTIES),
        *publish(1, "e", "k", b"", PROPERTIES),
        *publish(1, "e", "other", b"x" * 5000, flags=(True, False)),
        HEARTBEAT,
        method(1, pika_spec.Queue.Declare(queue="q", durable=True, arguments={"x-max-length": 5})),
        *publish(65535, "", "q", b"two" * 50, PROPERTIES),
        method(1, pika_spec.Basic.Ack(7, True)),
    ]
)


def test_a_session_is_read() -> None:
    header_bytes = PROPERTIES.encode()
    packed = b"".join(header_bytes)
    assert [parsed(event) for event in reader().read(SESSION)] == [
        (spec.METHOD, 0, spec.CONNECTION_TUNE_OK, (2047, 131072, 60)),
        (spec.PUBLISH, 1, "e", "k", 0, [packed, packed], [b"one", b""]),
        (spec.PUBLISH, 1, "e", "other", 1, [b"\0\0"], [b"x" * 5000]),
        (spec.HEARTBEAT,),
        (spec.METHOD, 1, spec.QUEUE_DECLARE, ("q", False, True, False, False, False, {"x-max-length": 5})),
        (spec.PUBLISH, 65535, "", "q", 0, [packed], [b"two" * 50]),
        (spec.METHOD, 1, spec.BASIC_ACK, (7, True)),
    ]


def test_a_session_is_the_same_cut_at_each_byte() -> None:
    whole = flat(reader().read(SESSION))
    for at in range(len(SESSION) + 1):
        read = reader()
        assert flat([*read.read(SESSION[:at]), *read.read(SESSION[at:])]) == whole
        assert read.kept <= 4096
    by_byte = reader()
    assert flat(event for at in range(len(SESSION)) for event in by_byte.read(SESSION[at : at + 1])) == whole


MESSAGES = st.tuples(st.integers(1, 4), st.sampled_from(["a", "b"]), st.binary(max_size=60), st.booleans())


@given(st.lists(MESSAGES, max_size=12), st.randoms(use_true_random=False), st.integers(1, 200))
def test_messages_of_channels_that_take_turns(messages: list[Any], random: Any, piece: int) -> None:
    """Frames of one channel keep their order; those of others may lie between them."""
    waiting: dict[int, list[bytes]] = {}
    wanted: dict[int, list[Any]] = {}
    for channel, key, data, with_properties in messages:
        properties = PROPERTIES if with_properties else pika_spec.BasicProperties()
        waiting.setdefault(channel, []).extend(publish(channel, "e", key, data, properties, 24))
        wanted.setdefault(channel, []).append(("e", key, 0, b"".join(properties.encode()), data))
    mixed = b""
    while waiting:
        channel = random.choice(sorted(waiting))
        mixed += waiting[channel].pop(0)
        if not waiting[channel]:
            del waiting[channel]
    read = reader()
    found = [event for at in range(0, len(mixed), piece) for event in read.read(mixed[at : at + piece])]
    assert flat(found) == wanted
    assert read.kept == 0 or read.kept <= 512


def test_messages_that_are_alike_make_one_run_and_share_their_properties() -> None:
    one, two = publish(1, "e", "k", b"1", PROPERTIES), publish(2, "e", "k", b"2", PROPERTIES)
    events = reader().read(b"".join([*one, *two, *one, *two]) * 50)
    assert [event[1] for event in events] == [1, 2], "channels that take turns"
    assert {len(event[6]) for event in events} == {100}
    assert len({id(properties) for event in events for properties in event[5]}) == 1
    other = publish(1, "e", "other", b"3")
    events = reader().read(b"".join([*one, *other, *one]))
    assert [event[3] for event in events] == ["k", "other", "k"], "the order of a channel is kept"
    events = reader().read(b"".join([*one, QOS, *two, *one]))
    assert [event[0] for event in events] == [spec.PUBLISH, spec.METHOD, spec.PUBLISH, spec.PUBLISH], (
        "a method ends runs"
    )


#: what RabbitMQ answers (tests/amqp_diff/recorded), and what it breaks off without a word, which we say
def nested(depth: int) -> bytes:
    """A table in which others lie."""
    made = b""
    for _ in range(depth):
        made = b"\1aF" + len(made).to_bytes(4) + made
    return len(made).to_bytes(4) + made


WRONG = [
    (b"\3\0\1\0\0\x10\1", (501, "type 3, all octets = <<>>: {frame_too_large,4097,4088}", 0, 0, 1)),
    (raw(77, b"abc"), (501, 'type 77, all octets = <<"abc">>: unknown_frame', 0, 0, 1)),
    (raw(1, bytes(range(20)), end=b"\0"), (501, None, 0, 0, 1)),
    (raw(1, b"abc"), (501, 'type 1, all octets = <<"abc">>: unknown_frame', 0, 0, 1)),
    (
        QOS[:-1] + b"\0",
        (501, "type 1, all octets = <<0,60,0,10,0,0,0,0,0,3,0>>: {invalid_frame_end_marker,0}", 0, 0, 1),
    ),
    (header(1), (505, "expected method frame, got non method frame instead", 0, 0, 1)),
    (body(b"x"), (505, "expected method frame, got non method frame instead", 0, 0, 1)),
    (
        START + body(b"x"),
        (505, "expected content header for class 60, got non content header frame instead", 60, 40, 1),
    ),
    (START + QOS, (505, "expected content header for class 60, got non content header frame instead", 60, 40, 1)),
    (START + header(1) + QOS, (505, "expected content body, got non content body frame instead", 60, 40, 1)),
    (
        START + header(3) + body(b"abcd") + QOS,
        (505, "expected content body, got non content body frame instead", 60, 40, 1),
    ),
    (
        START + header(1, class_id=50),
        (505, "expected content header for class 60, got one for class 50 instead", 60, 40, 1),
    ),
    (raw(8, b""), (505, "type 8, all octets = <<>>", 0, 0, 1)),
    (raw(8, b"abc", 0), (501, 'type 8, all octets = <<"abc">>: unknown_frame', 0, 0, 0)),
    (header(0, 0), (505, None, 0, 0, 0)),
    (body(b"x", 0), (505, 'type 3, all octets = <<"x">>', 0, 0, 0)),
    (START + header(3) + raw(3, b"abc", end=b"\1"), (501, None, 0, 0, 1)),
    (raw(1, b"\0\x32\0\x0a\0\0\xc8"), (501, "cannot decode <<0,0,200>>", 50, 10, 1)),
    (QOS[:6] + b"\x0c" + QOS[7:-1] + b"\0\xce", (501, "cannot decode <<0,0,0,0,0,3,0,0>>", 60, 10, 1)),
    (raw(1, b"\0\x3c\0\x63"), (540, "there is no method 99 of class 60", 60, 99, 1)),
    (method(1, pika_spec.Queue.DeclareOk("q", 1, 1)), (503, "unimplemented method", 50, 11, 1)),
    (
        method(1, pika_spec.Basic.Deliver("t", 1, False, "", "k")),
        (503, "unimplemented method", 60, 60, 1),
    ),
    (method(0, pika_spec.Basic.Publish()), (504, "basic.publish is for a channel, and 0 is the connection", 60, 40, 0)),
    (raw(1, b"\0\x3c\0\x28\0\0\1\xff\0\0") + header(0), (501, "Malformed UTF-8 in shortstr", 0, 0, 1)),
    (raw(1, b"\0\x3c\0\x1e\1\xff\0"), (501, "Malformed UTF-8 in shortstr", 0, 0, 1)),
    (
        START + header(0, properties=b"\0"),
        (541, "cannot decode the properties of a message: the properties have no flags", 60, 40, 1),
    ),
    (START + header(0, properties=b"\0\1"), (541, None, 60, 40, 1)),
    (START + header(0, properties=b"\x80\0\2a"), (541, None, 60, 40, 1)),
    (START + header(0, properties=b"\x20\0\0\0\0\4\1a?\0"), (541, None, 60, 40, 1)),
    (START + header(0, properties=b"\0\0\0"), (541, None, 60, 40, 1)),
    (raw(1, b"\0\x3c\0\x14\0\0\1q\1t\0\0\0\0\4\1a?\0"), (541, None, 60, 20, 1)),
    (
        raw(1, b"\0\x32\0\x0a\0\0\1q\0" + nested(65)),
        (502, "cannot decode queue.declare: a table is nested too deeply: its values may lie 64 deep", 50, 10, 1),
    ),
    (
        START + header(0, properties=b"\x20\0" + nested(65)),
        (
            502,
            "cannot decode the properties of a message: a table is nested too deeply: its values may lie 64 deep",
            60,
            40,
            1,
        ),
    ),
]


@pytest.mark.parametrize(("sent", "wanted"), WRONG)
def test_what_is_wrong_is_said(sent: bytes, wanted: tuple[Any, ...]) -> None:
    whole = fault(sent)
    assert [one for one, other in zip(whole, wanted, strict=True) if other is not None] == [
        other for other in wanted if other is not None
    ]
    assert fault(*(sent[at : at + 1] for at in range(len(sent)))) == whole, "however it is cut"


def test_tables_may_lie_as_deep_as_is_said() -> None:
    deepest = nested(spec.DEPTH_MAX)
    assert reader().read(raw(1, b"\0\x32\0\x0a\0\0\1q\0" + deepest))[0][0] == spec.METHOD
    assert reader().read(START + header(0, properties=b"\x20\0" + deepest))[0][0] == spec.PUBLISH


def test_a_payload_of_frame_max_is_taken_as_rabbitmq_takes_it() -> None:
    for size in (4088, 4089, 4096):
        assert reader().read(START + header(size) + body(b"x" * size))[0][6] == [b"x" * size]
    read = reader()
    read.frame_max = 5000
    assert read.frame_max == 5000
    assert read.read(START + header(5000) + body(b"x" * 5000))[0][6] == [b"x" * 5000]


def test_a_body_with_empty_frames_and_one_with_too_much() -> None:
    assert reader().read(START + header(3) + body(b"ab") + body(b"") + body(b"c"))[0][6] == [b"abc"]
    read = reader()
    assert read.read(START + header(3) + body(b"ab") + body(b"cd") + body(b"e") + HEARTBEAT) == [(spec.HEARTBEAT,)]
    assert read.read(QOS)[0][1] == 505


def test_a_message_that_is_too_large_is_left_out_and_refused() -> None:
    read = reader(body_max=10)
    assert read.read(START + header(1 << 40)) == []
    assert read.kept <= 512, "nothing is kept of it"
    read = reader(body_max=10)
    assert read.read(START + header(11) + body(b"x" * 11) + START + header(10) + body(b"x" * 10)) == [
        (spec.REFUSED, 1, 406, "message size 11 is larger than configured max size 10", 60, 40),
        (spec.PUBLISH, 1, "", "k", 0, [b"\0\0"], [b"x" * 10]),
    ]


def test_a_channel_that_this_side_closed_is_left_out() -> None:
    close_ok = method(1, pika_spec.Channel.CloseOk())
    last = b"".join(publish(1, "", "k", b"last"))
    for begun in (b"", START, START + header(3), START + header(3) + body(b"a")[:9]):
        read = reader()
        assert read.read(begun) == []
        read.closing(1)
        rest = body(b"a")[9:] if begun.endswith(b"a") else b""
        others = b"".join(publish(2, "", "k", b"other"))
        events = read.read(rest + body(b"b") + START + header(1) + body(b"c") + QOS + others + close_ok + last)
        assert [event[:3] for event in events] == [
            (spec.PUBLISH, 2, ""),
            (spec.METHOD, 1, spec.CHANNEL_CLOSE_OK),
            (spec.PUBLISH, 1, ""),
        ]
        assert events[-1][6] == [b"last"]
        assert read.kept <= 512


def test_a_peer_costs_bounded_memory() -> None:
    read = reader(131072, body_max=1 << 24)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    sizes = [read.read(method(n, pika_spec.Basic.Publish()) + header(1 << 24, n))[0:1] for n in range(1, 30)]
    fault_at = next(at for at, events in enumerate(sizes) if events)
    assert fault_at == 15, "16 bodies of the largest size, and their properties, have no room"
    assert sizes[fault_at][0][1] == 506
    del read
    assert tracemalloc.get_traced_memory()[0] - before < 1 << 20
    tracemalloc.stop()
    read = reader(body_max=1)
    events = [event for n in range(1, 3000) for event in read.read(method(n, pika_spec.Basic.Publish()))]
    assert [event[1] for event in events] == [506]
    assert fault(START + header(100), body_max=100, assembling_max=99)[0] == 506
    read = reader(131072)
    for at in range(0, 100_000, 1000):  # a method that never ends
        assert read.read(b"\1\0\1\0\1\xff\0" if not at else b"x" * 1000) == []
        assert read.kept <= 2 * (131072 + 8)
    assert sys.getrefcount(read) == 2


def test_the_reader_takes_what_has_a_buffer_and_refuses_the_rest() -> None:
    assert reader().read(memoryview(bytearray(HEARTBEAT))) == [(spec.HEARTBEAT,)]
    with pytest.raises(TypeError, match="a bytes-like object is required"):
        reader().read("text")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        reader().closing(1 << 16)


@given(st.binary(max_size=300))
@example(SESSION[:200] + b"\0" + SESSION[200:])
def test_garbage_costs_its_own_connection_alone(data: bytes) -> None:
    for begun in (b"", START, START + header(9)):
        events = reader(body_max=100).read(begun + data)
        assert all(event[0] != spec.FAULT for event in events[:-1])


def test_a_text_that_is_no_utf8_beside_a_table_is_a_fault_at_once() -> None:
    """As without one, though its arguments are not made objects yet."""
    for table in (b"\0\0\0\0", b"\0\0\0\4\1at\1"):
        payload = spec.QUEUE_DECLARE.to_bytes(4) + b"\0\0\1\xff\0" + table
        assert fault(raw(spec.FRAME_METHOD, payload))[:2] == (501, "Malformed UTF-8 in shortstr")


def test_a_body_counts_as_announced_and_as_it_came() -> None:
    read = reader(131072)
    assert read.read(START + header(BODY_MAX)) == []
    assert read.kept >= BODY_MAX
    assert read.came < 1 << 15
    assert read.read(raw(spec.FRAME_BODY, bytes(100_000))) == []
    assert 100_000 <= read.came < 100_000 + (1 << 15)


def test_what_is_left_out_takes_no_memory_and_frames_are_still_told_apart() -> None:
    """In the middle of a frame of a body; another message is begun later; the connection's end is heard."""
    read = reader(131072)
    body, begun = raw(spec.FRAME_BODY, bytes(100_000)), START + header(200_000)
    assert read.read(begun + body + body[:50_000]) == []
    read.leave_out()
    assert read.kept < 1 << 13
    assert [event[0] for event in read.read(body[50_000:])] == [spec.REFUSED]
    assert read.read(begun + body) == []
    assert read.kept < 1 << 13
    refused, close_ok = read.read(body + method(0, pika_spec.Connection.CloseOk()))
    assert refused[0] == spec.REFUSED
    assert close_ok[:3] == (spec.METHOD, 0, spec.CONNECTION_CLOSE_OK)


def test_arguments_that_are_much_too_long_are_not_kept() -> None:
    """They are wrong, and that is said when the message has come."""
    read = reader(131072)
    assert read.read(raw(spec.FRAME_METHOD, START[7:-1] + bytes(100_000))) == []
    assert read.kept < 1 << 13
    assert [event[0] for event in read.read(header(0))] == [spec.FAULT]
