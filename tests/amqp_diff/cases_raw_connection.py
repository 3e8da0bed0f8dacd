"""Handshake, tune, heartbeats, channels, frames: what the server does with a connection."""

import json
import struct
import time

from amqp_diff.scene import Scene, case
from amqp_diff.wire import (
    BODY,
    HEARTBEAT,
    HELLO,
    METHOD,
    PATIENCE_S,
    Typed,
    Wire,
    field,
    frame,
    header,
    method,
    table,
)


def _tuned(s: Scene, **given: int) -> Wire:
    """A connection whose tune-ok is as given, beside what is offered; then connection.open, and what answers it."""
    wire = s.connect()
    wire.hello()
    wire.start_ok()
    tune = wire.wait(0, ["connection.tune"])
    assert tune is not None
    values = {name: given.get(name, tune[name]) for name in ("channel_max", "frame_max", "heartbeat")}
    s.say(f"a0 > connection.tune-ok {json.dumps(given)}")
    wire.raw(method(0, "connection.tune-ok", values))
    wire.send(0, "connection.open", {"vhost": s.server.vhost})
    wire.expect("connection.open-ok")
    return wire


@case
def start_and_tune(s: Scene) -> None:
    wire = s.connect()
    start = wire.hello()
    s.say(f"version {start['major']}.{start['minor']}")
    s.say(f"mechanisms {sorted(start['mechanisms'].split())} locales {start['locales']}")
    s.say(f"capabilities {json.dumps(start['server_properties']['capabilities'], sort_keys=True)}")
    s.say(f"server properties {sorted(start['server_properties'])}")
    wire.start_ok()
    wire.expect("connection.tune")
    wire.raw(method(0, "connection.tune-ok", {"channel_max": 10, "frame_max": 131072, "heartbeat": 0}))
    wire.send(0, "connection.open", {"vhost": s.server.vhost})
    wire.expect("connection.open-ok")
    wire.send(0, "connection.close", {"code": 200, "text": "bye"})
    wire.expect("connection.close-ok")


@case
def wrong_protocol_header(s: Scene) -> None:
    for hello in (b"AMQP\1\1\0\x0a", b"AMQP\0\0\x09\0", b"AMQP\3\1\0\0", b"HTTP/1.1", b"\0\0\0\0\0\0\0\0"):
        wire = s.connect()
        wire.raw(hello)
        s.say(f"{wire.label} > {hello!r}")
        wire.expect("(header)")
        wire.expect("(closed)")


@case
def header_of_version_0_8_and_0_9(s: Scene) -> None:
    for hello in (b"AMQP\1\1\x08\0", b"AMQP\1\1\0\x09"):
        wire = s.connect()
        wire.raw(hello)
        s.say(f"{wire.label} > {hello!r}")
        found = wire.expect("(header)")
        if found is not None and found.name == "(header)":
            wire.expect("(closed)")


@case
def half_a_header_then_closed(s: Scene) -> None:
    wire = s.connect()
    wire.raw(HELLO[:5])
    wire.shut()
    s.wire().channel().alive()


@case
def amqplain(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.start_ok(mechanism="AMQPLAIN", response=table({"LOGIN": "guest", "PASSWORD": "guest"})[4:])
    wire.expect("connection.tune")


@case
def amqplain_with_a_wrong_password(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.start_ok(mechanism="AMQPLAIN", response=table({"LOGIN": "guest", "PASSWORD": "no"})[4:])
    wire.expect("connection.tune")


@case
def wrong_password_announced(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.start_ok(response="\0guest\0no")
    wire.expect("connection.tune")


@case
def unknown_user_announced(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.start_ok(response="\0nobody\0guest")
    wire.expect("connection.tune")


@case
def wrong_password_unannounced(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.start_ok(response="\0guest\0no", client_properties={})
    wire.expect("connection.tune")


@case
def unknown_mechanism(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.start_ok(mechanism="NONE")
    wire.expect("connection.tune")


@case
def malformed_plain(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.start_ok(response="guest")
    wire.expect("connection.tune")


@case
def plain_with_an_authorization_identity(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.start_ok(response="other\0guest\0guest")
    wire.expect("connection.tune")


@case
def unknown_vhost(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.start_ok()
    wire.wait(0, ["connection.tune"])
    wire.raw(method(0, "connection.tune-ok", {"channel_max": 10, "frame_max": 131072, "heartbeat": 0}))
    wire.send(0, "connection.open", {"vhost": "nowhere"})
    wire.expect("connection.open-ok")


@case
def method_out_of_turn(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.send(0, "connection.open", {"vhost": s.server.vhost})
    wire.expect("connection.open-ok")


@case
def channel_before_open(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.start_ok()
    wire.wait(0, ["connection.tune"])
    wire.send(1, "channel.open", {})
    wire.expect("channel.open-ok", channel=1)


@case
def tune_without_limits_for_channels(s: Scene) -> None:
    _tuned(s, channel_max=0)


@case
def tune_above_the_offered_channels(s: Scene) -> None:
    _tuned(s, channel_max=4000)


@case
def tune_above_the_offered_frame(s: Scene) -> None:
    _tuned(s, frame_max=131073)


@case
def tune_to_an_unlimited_frame(s: Scene) -> None:
    _tuned(s, frame_max=0)


@case
def tune_to_a_frame_that_is_too_small(s: Scene) -> None:
    _tuned(s, frame_max=4095)


@case
def tune_to_the_smallest_frame(s: Scene) -> None:
    wire = _tuned(s, frame_max=4096)
    wire.frame_max = 4096
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.publish(queue, b"x" * 10_000)
    lane.alive()
    lane.call("basic.get", queue=queue, no_ack=True)
    s.say(f"body frames {wire.sizes}")


@case
def a_frame_that_just_fits(s: Scene) -> None:
    wire = s.wire(frame_max=4096)
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.publish(queue, b"x" * 4088)
    lane.alive()
    lane.call("basic.get", queue=queue, no_ack=True)
    s.say(f"body frames {wire.sizes}")


@case
def a_frame_one_byte_too_long(s: Scene) -> None:
    wire = s.wire(frame_max=4096)
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    wire.raw(method(1, "basic.publish", {"routing_key": queue}) + header(1, 4089, {}) + frame(BODY, 1, b"x" * 4089))
    s.say("a1 > a body frame with a payload of frame_max - 7")
    lane.alive()


@case
def a_payload_of_frame_max_and_one(s: Scene) -> None:
    wire = s.wire(frame_max=4096)
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    wire.raw(method(1, "basic.publish", {"routing_key": queue}) + header(1, 4097, {}) + frame(BODY, 1, b"x" * 4097))
    s.say("a1 > a body frame with a payload of frame_max + 1")
    wire.expect("channel.close", channel=1)


@case
def channels_are_counted(s: Scene) -> None:
    wire = s.wire(channel_max=5)
    for number in (65535, 1, 300, 4, 5):
        wire.channel(number).alive()
    wire.send(6, "channel.open", {})
    wire.expect("channel.open-ok", channel=6)


@case
def a_channel_number_is_used_again(s: Scene) -> None:
    wire = s.wire(channel_max=1)
    lane = wire.channel(1)
    for _ in range(3):
        lane.call("channel.close", code=200, text="bye")
        lane.call("channel.open")
    lane.alive()


@case
def a_channel_opened_twice(s: Scene) -> None:
    wire = s.wire()
    wire.channel(1).send("channel.open")
    wire.expect("channel.open-ok", channel=1)


@case
def a_method_on_a_channel_that_is_not_open(s: Scene) -> None:
    wire = s.wire()
    wire.send(3, "queue.declare", {"queue": s.name()})
    wire.expect("queue.declare-ok", channel=3)


@case
def a_channel_method_on_channel_zero(s: Scene) -> None:
    wire = s.wire()
    wire.send(0, "channel.open", {})
    wire.expect("channel.open-ok")


@case
def a_connection_method_on_a_channel(s: Scene) -> None:
    wire = s.wire()
    wire.channel(1)
    wire.send(1, "connection.open", {"vhost": s.server.vhost})
    wire.expect("connection.open-ok", channel=1)


@case
def a_second_connection_open(s: Scene) -> None:
    wire = s.wire()
    wire.send(0, "connection.open", {"vhost": s.server.vhost})
    wire.expect("connection.open-ok")


@case
def after_the_servers_channel_close_others_go_on(s: Scene) -> None:
    wire = s.wire()
    one, two = wire.channel(), wire.channel()
    one.call("queue.declare", queue=s.name("missing"), passive=True)
    two.alive()
    one.again()
    one.alive()


@case
def what_is_sent_after_a_channel_error_is_ignored(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    queue = s.name()
    lane.send("queue.declare", queue=s.name("missing"), passive=True)
    lane.send("queue.declare", queue=queue)
    lane.expect("queue.declare-ok")  # answers channel.close as well
    lane.again()
    lane.call("queue.declare", queue=queue, passive=True)


@case
def close_of_a_connection_with_open_channels(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.publish(queue, "one")
    wire.send(0, "connection.close", {"code": 200, "text": "bye"})
    wire.expect("connection.close-ok")
    other = s.wire().channel()
    other.call("basic.get", queue=queue, no_ack=True)


@case
def channel_flow(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("channel.flow", active=True)
    lane.call("channel.flow", active=False)


@case
def unknown_method(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(frame(METHOD, 1, struct.pack(">HH", 60, 99)))
    s.say("a1 > method 60.99")
    wire.expect("channel.close", channel=1)


@case
def unknown_class(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(frame(METHOD, 1, struct.pack(">HH", 77, 10)))
    s.say("a1 > method 77.10")
    wire.expect("channel.close", channel=1)


@case
def a_method_that_is_cut_short(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(frame(METHOD, 1, struct.pack(">HHHB", 50, 10, 0, 200)))
    s.say("a1 > queue.declare, cut short")
    wire.expect("channel.close", channel=1)


@case
def a_table_with_an_unknown_type(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    bad = table({"a": 1}).replace(b"I", b"?")
    wire.raw(method(1, "queue.declare", {"queue": s.name(), "arguments": bad}))
    s.say("a1 > queue.declare with a field of type ?")
    wire.expect("queue.declare-ok", channel=1)


@case
def unknown_frame_type(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(frame(77, 1, b"abc"))
    s.say("a1 > a frame of type 77")
    wire.expect("channel.close", channel=1)


@case
def a_frame_without_its_end(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(method(1, "basic.qos", {"count": 1})[:-1] + b"\0")
    s.say("a1 > a frame that ends with 0")
    wire.expect("basic.qos-ok", channel=1)


@case
def a_header_without_a_method(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(header(1, 3, {}))
    s.say("a1 > a content header alone")
    wire.expect("channel.close", channel=1)


@case
def a_body_without_a_header(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(method(1, "basic.publish", {"routing_key": "x"}) + frame(BODY, 1, b"abc"))
    s.say("a1 > a publish whose body has no header")
    wire.expect("channel.close", channel=1)


@case
def a_method_where_a_header_is_due(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(method(1, "basic.publish", {"routing_key": "x"}) + method(1, "basic.qos", {}))
    s.say("a1 > a publish, then basic.qos where its header is due")
    wire.expect("basic.qos-ok", channel=1)


@case
def a_method_where_a_body_is_due(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(method(1, "basic.publish", {"routing_key": "x"}) + header(1, 3, {}) + method(1, "basic.qos", {}))
    s.say("a1 > a publish, then basic.qos where its body is due")
    wire.expect("basic.qos-ok", channel=1)


@case
def a_body_longer_than_announced(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    wire.raw(method(1, "basic.publish", {"routing_key": queue}) + header(1, 3, {}) + frame(BODY, 1, b"abcd"))
    s.say("a1 > a body of 4 bytes where 3 are announced")
    lane.nothing("channel.close")
    lane.send("basic.qos")
    lane.expect("basic.qos-ok")


@case
def a_header_of_another_class(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(method(1, "basic.publish", {"routing_key": "x"}) + header(1, 0, {}, class_id=50))
    s.say("a1 > a content header of class 50")
    wire.expect("channel.close", channel=1)


@case
def content_of_two_channels_mixed(s: Scene) -> None:
    wire = s.wire()
    one, _ = wire.channel(), wire.channel()
    queue = s.name()
    one.call("queue.declare", queue=queue)
    first, second = (
        method(1, "basic.publish", {"routing_key": queue}),
        method(2, "basic.publish", {"routing_key": queue}),
    )
    s.say("a > the frames of two messages of two channels, taking turns")
    wire.raw(first + second + header(1, 6, {}) + header(2, 4, {}))
    wire.raw(frame(BODY, 1, b"one") + frame(BODY, 2, b"tw") + frame(BODY, 1, b"111") + frame(BODY, 2, b"22"))
    one.alive()
    one.call("basic.consume", queue=queue, no_ack=True, tag="t")
    bodies = sorted(
        str(found.body) for found in [wire.wait(1, ["basic.deliver"]), wire.wait(1, ["basic.deliver"])] if found
    )
    s.say(f"bodies {bodies}")


@case
def an_empty_body_frame(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    s.say("a1 > a body in frames of 2, 0 and 1 bytes")
    wire.raw(method(1, "basic.publish", {"routing_key": queue}) + header(1, 3, {}))
    wire.raw(frame(BODY, 1, b"ab") + frame(BODY, 1, b"") + frame(BODY, 1, b"c"))
    lane.alive()
    lane.call("basic.get", queue=queue, no_ack=True)


@case
def many_small_body_frames(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    s.say("a1 > a body of 500 frames of 7 bytes")
    wire.raw(method(1, "basic.publish", {"routing_key": queue}) + header(1, 3500, {}))
    wire.raw(b"".join(frame(BODY, 1, b"%07d" % number) for number in range(500)))
    lane.alive()
    lane.call("basic.get", queue=queue, no_ack=True)
    s.say(f"body frames {wire.sizes}")


@case
def a_body_over_several_frames(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    body = bytes(range(256)) * 2000
    lane.publish(queue, body)
    lane.alive()
    found = lane.call("basic.get", queue=queue, no_ack=True)
    s.say(f"body frames {wire.sizes} the same {found.body == body}")


@case
def a_message_of_one_mebibyte_for_a_small_frame(s: Scene) -> None:
    wire, small = s.wire(), s.wire(frame_max=4096)
    lane, other = wire.channel(), small.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.confirmed(queue, b"y" * (1 << 20))
    found = other.call("basic.get", queue=queue, no_ack=True)
    s.say(f"body frames {len(small.sizes)} of {set(small.sizes[:-1])} the same {found.body == b'y' * (1 << 20)}")


@case
def an_announced_body_that_is_enormous(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(method(1, "basic.publish", {"routing_key": "x"}) + header(1, 1 << 40, {}))
    s.say("a1 > a content header that announces a tebibyte")
    wire.expect("channel.close", channel=1, patience=1)


@case
def heartbeats_come(s: Scene) -> None:
    wire = s.wire(heartbeat=1)
    for _ in range(2):
        found = wire.next(time.monotonic() + PATIENCE_S)
        s.say(f"a < {found}")
        wire.raw(frame(HEARTBEAT, 0, b""))


@case
def a_client_without_heartbeats_is_closed(s: Scene) -> None:
    wire = s.wire(heartbeat=1)
    wire.expect("channel.close", patience=30)


@case
def heartbeats_keep_a_silent_client(s: Scene) -> None:
    wire = s.wire(heartbeat=1)
    for _ in range(4):
        wire.next(time.monotonic() + PATIENCE_S)
        wire.raw(frame(HEARTBEAT, 0, b""))
    wire.channel().alive()


@case
def a_heartbeat_on_a_channel(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(frame(HEARTBEAT, 1, b""))
    s.say("a1 > a heartbeat")
    wire.expect("channel.close", channel=1, patience=1)


@case
def a_heartbeat_with_a_payload(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    wire.raw(frame(HEARTBEAT, 0, b"abc"))
    s.say("a0 > a heartbeat with a payload")
    lane.alive()


@case
def connection_update_secret(s: Scene) -> None:
    wire = s.wire()
    wire.send(0, "connection.update-secret", {"secret": "new", "reason": "why not"})
    wire.expect("connection.update-secret-ok")


@case
def client_properties_may_be_anything(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    nested = {"a": [1, "x", {"b": None}], "t": Typed("T", 1), "capabilities": {"consumer_cancel_notify": True}}
    assert field(nested)
    wire.start_ok(client_properties=nested)
    wire.expect("connection.tune")


@case
def another_locale(s: Scene) -> None:
    wire = s.connect()
    wire.hello()
    wire.start_ok(locale="de_DE")
    wire.expect("connection.tune")


@case
def blocked_and_unblocked(s: Scene) -> None:
    alarm = s.server.alarm
    assert alarm is not None, "this server cannot raise an alarm"
    wire, quiet = s.wire(), s.wire()
    lane, reader = wire.channel(), quiet.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    alarm(True)
    try:
        lane.publish(queue, "held back")
        found = wire.wait(0, ["connection.blocked"])
        s.say(f"a0 < {found.name if found else None}")
        reader.alive()
        reader.nothing("connection.blocked")
    finally:
        alarm(False)
    wire.expect("connection.unblocked")
    lane.alive()
    lane.call("basic.get", queue=queue, no_ack=True)
