"""Refused, or let pass: texts of 404 and 406, queues of others, returns beside alternate exchanges, wrong frames,
channels that are used again, heartbeats that are agreed on."""

import struct
from typing import Any

from amqp_diff.scene import Scene, case
from amqp_diff.wire import BODY, HEADER, HEARTBEAT, METHOD, Lane, Typed, Wire, frame, header, method


def _each(s: Scene, lane: Lane, *calls: tuple[str, dict[str, Any]]) -> None:
    """Call each, on a channel that is opened anew after an error."""
    for name, given in calls:
        lane.call(name, **given)
        lane.again()


# ---- what is missing


@case
def missing_queues(s: Scene) -> None:
    lane, queue = s.wire().channel(), s.name("no queue")
    _each(
        s, lane,
        ("queue.bind", {"queue": queue, "exchange": "amq.direct", "routing_key": "k"}),
        ("queue.unbind", {"queue": queue, "exchange": "amq.direct", "routing_key": "k"}),
        ("queue.purge", {"queue": queue}),
        ("basic.get", {"queue": queue}),
        ("basic.consume", {"queue": queue, "tag": "t"}),
        ("queue.delete", {"queue": queue, "if_unused": True, "if_empty": True}),
    )  # fmt: skip


@case
def missing_exchanges(s: Scene) -> None:
    lane, queue, exchange = s.wire().channel(), s.name(), s.name("no exchange")
    lane.call("queue.declare", queue=queue)
    _each(
        s, lane,
        ("queue.bind", {"queue": queue, "exchange": exchange, "routing_key": "k"}),
        ("queue.unbind", {"queue": queue, "exchange": exchange, "routing_key": "k"}),
        ("exchange.bind", {"destination": exchange, "source": "amq.direct"}),
        ("exchange.bind", {"destination": "amq.direct", "source": exchange}),
        ("exchange.unbind", {"destination": exchange, "source": "amq.direct"}),
        ("exchange.unbind", {"destination": "amq.direct", "source": exchange}),
        ("exchange.declare", {"exchange": exchange, "type": "direct", "passive": True}),
        ("exchange.delete", {"exchange": exchange, "if_unused": True}),
    )  # fmt: skip


@case
def a_missing_queue_and_a_missing_exchange(s: Scene) -> None:
    lane = s.wire().channel()
    _each(
        s, lane,
        ("queue.bind", {"queue": s.name("q"), "exchange": s.name("x")}),
        ("queue.unbind", {"queue": s.name("q"), "exchange": s.name("x")}),
        ("exchange.bind", {"destination": s.name("x"), "source": s.name("y")}),
    )  # fmt: skip


@case
def a_binding_that_is_not_there(s: Scene) -> None:
    lane, queue = s.wire().channel(), s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("queue.bind", queue=queue, exchange="amq.direct", routing_key="k")
    for given in ({"routing_key": "other"}, {"routing_key": "k", "arguments": {"a": 1}}):
        lane.call("queue.unbind", queue=queue, exchange="amq.direct", **given)
    lane.call("queue.unbind", queue=queue, exchange="amq.direct", routing_key="k")
    lane.call("queue.unbind", queue=queue, exchange="amq.direct", routing_key="k")


@case
def publishing_to_what_is_missing_is_told_once(s: Scene) -> None:
    lane = s.wire().channel()
    for body in "123":
        lane.publish("k", body, s.name("x"))
    lane.expect("channel.close")
    lane.again()
    lane.alive()


# ---- declared again otherwise


def _otherwise(s: Scene, fixed: dict[str, Any], first: dict[str, Any], *others: dict[str, Any]) -> None:
    """Declared with arguments, then with others."""
    lane, queue = s.wire().channel(), s.name()
    for arguments in (first, first, *others):
        lane.call("queue.declare", queue=queue, durable=True, arguments=fixed | arguments)
        lane.again()


@case
def two_arguments_differ(s: Scene) -> None:
    first = {"x-message-ttl": 60000, "x-max-length": 5, "x-expires": 600000}
    _otherwise(
        s, {}, first,
        {"x-max-length": 6, "x-message-ttl": 60001, "x-expires": 600000}, {"x-max-length": 6, "x-message-ttl": 60000},
        {"x-expires": 600000, "x-max-length": 5, "x-message-ttl": 60000}, {},
    )  # fmt: skip


@case
def an_argument_and_a_property_differ(s: Scene) -> None:
    lane, queue = s.wire().channel(), s.name()
    lane.call("queue.declare", queue=queue, durable=True, arguments={"x-max-length": 5})
    for given in (
        {"arguments": {"x-max-length": 6}}, {"durable": True, "auto_delete": True, "arguments": {"x-max-length": 6}},
        {"durable": True, "exclusive": True, "arguments": {"x-max-length": 6}}, {"auto_delete": True},
    ):  # fmt: skip
        lane.call("queue.declare", queue=queue, **given)
        lane.again()


@case
def quorum_arguments_differ(s: Scene) -> None:
    quorum = {"x-queue-type": "quorum"}
    _otherwise(
        s, quorum, {"x-delivery-limit": 5, "x-quorum-initial-group-size": 1, "x-dead-letter-strategy": "at-most-once"},
        {"x-delivery-limit": 6, "x-quorum-initial-group-size": 1, "x-dead-letter-strategy": "at-most-once"},
        {"x-delivery-limit": 5, "x-quorum-initial-group-size": 3, "x-dead-letter-strategy": "at-most-once"},
        {"x-delivery-limit": 5, "x-quorum-initial-group-size": 1},
        {"x-delivery-limit": 5},
        {},
        {"x-queue-type": "classic"},
    )  # fmt: skip


@case
def quorum_arguments_that_are_wrong(s: Scene) -> None:
    lane = s.wire().channel()
    quorum = {"x-queue-type": "quorum"}
    for number, wrong in enumerate((
        {"x-delivery-limit": "5"}, {"x-delivery-limit": 1.5}, {"x-dead-letter-strategy": "sometimes"},
        {"x-dead-letter-strategy": 1}, {"x-queue-leader-locator": 1}, {"x-queue-leader-locator": "somewhere"},
        {"x-max-in-memory-length": -1}, {"x-max-in-memory-bytes": "1"}, {"x-single-active-consumer": 1},
        {"x-max-length": -1}, {"x-overflow": "drop-tail"}, {"x-max-age": "1h"},
    )):  # fmt: skip
        lane.call("queue.declare", queue=s.name(str(number)), durable=True, arguments=quorum | wrong)
        lane.again()


@case
def classic_arguments_of_other_types_of_queues(s: Scene) -> None:
    lane = s.wire().channel()
    for number, wrong in enumerate((
        {"x-delivery-limit": 5}, {"x-max-age": "1h"}, {"x-dead-letter-strategy": "at-least-once"},
        {"x-quorum-initial-group-size": 3}, {"x-stream-max-segment-size-bytes": 1000}, {"x-queue-leader-locator": "c"},
    )):  # fmt: skip
        lane.call("queue.declare", queue=s.name(str(number)), durable=True, arguments=wrong)
        lane.again()


@case
def stream_arguments_differ(s: Scene) -> None:
    stream = {"x-queue-type": "stream"}
    _otherwise(
        s, stream, {"x-max-age": "1h", "x-max-length-bytes": 1000000, "x-stream-max-segment-size-bytes": 100000},
        {"x-max-age": "2h", "x-max-length-bytes": 1000000, "x-stream-max-segment-size-bytes": 100000},
        {"x-max-age": "1h", "x-max-length-bytes": 1000001, "x-stream-max-segment-size-bytes": 100000},
        {"x-max-age": "1h", "x-max-length-bytes": 1000000},
        {"x-queue-type": "classic"},
    )  # fmt: skip


@case
def arguments_of_numbers_of_other_sizes(s: Scene) -> None:
    _otherwise(
        s, {}, {"x-max-length": Typed("b", 5)},
        {"x-max-length": Typed("B", 5)}, {"x-max-length": Typed("u", 5)}, {"x-max-length": Typed("i", 5)},
        {"x-max-length": Typed("l", 5)}, {"x-max-length": Typed("d", 5.0)}, {"x-max-length": Typed("T", 5)},
    )  # fmt: skip


@case
def arguments_that_nobody_knows(s: Scene) -> None:
    _otherwise(s, {}, {"x-mine": 1}, {"x-mine": 2}, {"x-mine": "1"}, {}, {"x-yours": 1})


@case
def exchange_arguments_differ(s: Scene) -> None:
    lane = s.wire().channel()
    exchange = s.name("x")
    lane.call("exchange.declare", exchange=exchange, type="direct", arguments={"alternate-exchange": "a", "x-mine": 1})
    for arguments in ({"alternate-exchange": "b"}, {}, {"alternate-exchange": "a"}, {"alternate-exchange": 1}):
        lane.call("exchange.declare", exchange=exchange, type="direct", arguments=arguments)
        lane.again()
    for given in ({"type": "fanout", "durable": True}, {"type": "direct", "internal": True, "auto_delete": True}):
        lane.call("exchange.declare", exchange=exchange, arguments={"alternate-exchange": "a"}, **given)
        lane.again()


@case
def a_passive_declare_compares_nothing(s: Scene) -> None:
    lane = s.wire().channel()
    queue, exchange = s.name(), s.name("x")
    lane.call("queue.declare", queue=queue, arguments={"x-max-length": 1})
    lane.call("exchange.declare", exchange=exchange, type="direct")
    lane.call("queue.declare", queue=queue, passive=True, durable=True, auto_delete=True, arguments={"x-max-length": 2})
    lane.call("exchange.declare", exchange=exchange, type="fanout", passive=True, durable=True, internal=True)
    lane.call("exchange.declare", exchange=exchange, type="nonsense", passive=True)


# ---- exclusive queues of others


@case
def a_binding_and_a_message_for_an_exclusive_queue(s: Scene) -> None:
    owner, stranger = s.wire(), s.wire()
    mine, theirs = owner.channel(), stranger.channel()
    mine.call("queue.declare", queue=s.name(), exclusive=True)
    mine.call("queue.bind", queue=s.name(), exchange="amq.direct", routing_key=s.name("k"))
    theirs.publish(s.name("k"), "for you", "amq.direct", mandatory=True)
    theirs.alive()
    mine.call("basic.consume", queue=s.name(), tag="t", no_ack=True)
    mine.deliveries(1)


@case
def bindings_of_an_exclusive_queue_are_its_owners(s: Scene) -> None:
    owner, stranger = s.wire(), s.wire()
    mine, theirs = owner.channel(), stranger.channel()
    queue, given = s.name(), {"queue": s.name(), "exchange": "amq.direct", "routing_key": s.name("k")}
    mine.call("queue.declare", queue=queue, exclusive=True)
    mine.call("queue.bind", **given)
    mine.call("queue.bind", queue=queue, exchange="amq.headers", arguments={"x-match": "any", s.name("h"): 1})
    _each(
        s, theirs,
        ("queue.unbind", given),
        ("queue.unbind", given | {"routing_key": s.name("another")}),
        ("queue.unbind", given | {"arguments": {"a": 1}}),
        ("queue.unbind", given | {"exchange": s.name("none")}),
        ("queue.unbind",
         {"queue": queue, "exchange": "amq.headers", "arguments": {"x-match": "any", s.name("h"): 1}}),
        ("queue.unbind",
         {"queue": queue, "exchange": "amq.headers", "arguments": {"x-match": "any", s.name("h"): 2}}),
        ("queue.bind", given),
        ("queue.bind", given | {"routing_key": s.name("another")}),
        ("queue.purge", {"queue": queue}),
        ("basic.get", {"queue": queue}),
        ("basic.consume", {"queue": queue, "tag": "t"}),
        ("queue.declare", {"queue": queue, "passive": True}),
        ("queue.declare", {"queue": queue, "exclusive": True}),
        ("queue.delete", {"queue": queue, "if_unused": True}),
    )  # fmt: skip
    theirs.publish(s.name("k"), "for you", "amq.direct", mandatory=True)
    theirs.alive()
    mine.call("queue.unbind", **given)
    theirs.publish(s.name("k"), "for nobody", "amq.direct", mandatory=True)
    theirs.expect("basic.return")
    mine.call("basic.consume", queue=queue, tag="t", no_ack=True)
    mine.deliveries(1)


@case
def a_dead_letter_for_an_exclusive_queue(s: Scene) -> None:
    owner, stranger = s.wire(), s.wire()
    mine, theirs = owner.channel(), stranger.channel()
    mine.call("queue.declare", queue=s.name("mine"), exclusive=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.name("mine")}
    theirs.call("queue.declare", queue=s.name(), arguments=arguments)
    theirs.confirmed(s.name(), "one")
    theirs.call("basic.get", queue=s.name())
    theirs.send("basic.reject", delivery=1)
    mine.call("basic.consume", queue=s.name("mine"), tag="t", no_ack=True)
    mine.deliveries(1)


@case
def an_exclusive_queue_named_by_the_server(s: Scene) -> None:
    owner, stranger = s.wire(), s.wire()
    mine, theirs = owner.channel(), stranger.channel()
    name = mine.call("queue.declare", exclusive=True)["queue"]
    theirs.call("basic.consume", queue=name, tag="t")
    theirs.again()
    theirs.call("queue.declare", queue=name, passive=True)
    theirs.again()
    owner.close()
    theirs.call("queue.declare", queue=name, passive=True)


@case
def an_exclusive_queue_whose_consumer_goes(s: Scene) -> None:
    wire = s.wire()
    lane, other = wire.channel(), wire.channel()
    lane.call("queue.declare", queue=s.name(), exclusive=True, auto_delete=True)
    other.call("basic.consume", queue=s.name(), tag="t")
    other.call("basic.cancel", tag="t")
    lane.call("queue.declare", queue=s.name(), passive=True)


@case
def exclusive_again_with_other_arguments(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("queue.declare", queue=s.name(), exclusive=True, arguments={"x-max-length": 1})
    for given in ({"arguments": {"x-max-length": 2}}, {"auto_delete": True, "arguments": {"x-max-length": 1}}):
        lane.call("queue.declare", queue=s.name(), exclusive=True, **given)
        lane.again()


# ---- mandatory, and alternate exchanges


def _alternate(s: Scene, kind: str = "direct", **alternate: Any) -> Lane:
    """A channel, and exchange x whose alternate is ae."""
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("ae"), **({"type": "fanout"} | alternate))
    arguments = {"alternate-exchange": s.name("ae")}
    lane.call("exchange.declare", exchange=s.name("x"), type=kind, arguments=arguments)
    return lane


@case
def mandatory_by_an_alternate_exchange(s: Scene) -> None:
    lane = _alternate(s)
    lane.call("queue.declare", queue=s.name())
    lane.call("queue.bind", queue=s.name(), exchange=s.name("ae"))
    lane.publish("nobody", "one", s.name("x"), mandatory=True)
    lane.nothing("basic.return")
    lane.call("basic.get", queue=s.name(), no_ack=True)


@case
def mandatory_by_an_alternate_exchange_without_queues(s: Scene) -> None:
    lane = _alternate(s)
    lane.call("confirm.select")
    lane.publish("nobody", "one", s.name("x"), mandatory=True)
    lane.expect("basic.return", "basic.ack")
    lane.confirms(1)


@case
def mandatory_by_a_deleted_alternate_exchange(s: Scene) -> None:
    lane = _alternate(s)
    lane.call("exchange.delete", exchange=s.name("ae"))
    lane.publish("nobody", "one", s.name("x"), mandatory=True)
    lane.expect("basic.return")


@case
def mandatory_by_two_alternate_exchanges(s: Scene) -> None:
    lane = _alternate(s, type="direct", arguments={"alternate-exchange": s.name("last")})
    lane.call("exchange.declare", exchange=s.name("last"), type="fanout")
    lane.call("queue.declare", queue=s.name())
    lane.call("queue.bind", queue=s.name(), exchange=s.name("last"))
    lane.publish("nobody", "one", s.name("x"), mandatory=True)
    lane.nothing("basic.return")
    lane.call("basic.get", queue=s.name(), no_ack=True)


@case
def an_alternate_exchange_of_each_type(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("ae"), type="fanout")
    lane.call("queue.declare", queue=s.name())
    lane.call("queue.bind", queue=s.name(), exchange=s.name("ae"))
    arguments = {"alternate-exchange": s.name("ae")}
    for kind in ("direct", "fanout", "topic", "headers"):
        lane.call("exchange.declare", exchange=s.name(kind), type=kind, arguments=arguments)
        lane.confirmed("no.body", kind, exchange=s.name(kind))
        lane.call("basic.get", queue=s.name(), no_ack=True)


@case
def an_internal_alternate_exchange(s: Scene) -> None:
    lane = _alternate(s, internal=True)
    lane.call("queue.declare", queue=s.name())
    lane.call("queue.bind", queue=s.name(), exchange=s.name("ae"))
    lane.publish("nobody", "one", s.name("x"), mandatory=True)
    lane.nothing("basic.return")
    lane.call("basic.get", queue=s.name(), no_ack=True)


@case
def copies_and_an_alternate_exchange(s: Scene) -> None:
    """Each key by itself, or all of them together?"""
    lane = _alternate(s)
    for word, exchange, key in (("known", "x", "k"), ("rest", "ae", "")):
        lane.call("queue.declare", queue=s.name(word))
        lane.call("queue.bind", queue=s.name(word), exchange=s.name(exchange), routing_key=key)
    lane.confirmed("nobody", "one", exchange=s.name("x"), properties={"headers": {"CC": ["k"]}})
    for word in ("known", "rest"):
        lane.message_count(s.name(word))


@case
def mandatory_to_a_queue_that_refuses(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("queue.declare", queue=s.name(), arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    lane.call("confirm.select")
    lane.publish(s.name(), "one", mandatory=True)
    lane.confirms(1)
    lane.nothing("basic.return")


# ---- frames


def _answered(wire: Wire, what: str, data: bytes) -> None:
    """Send bytes, and say what the connection says of them."""
    wire.say(f"{wire.label} > {what}")
    wire.raw(data)
    found = wire.wait(None, ["channel.close"])
    wire.took(found)
    if found is not None and found.name == "connection.close":
        wire.raw(method(0, "connection.close-ok", {}))
        wire.took(wire.wait(0, ["(closed)"]))


@case
def a_header_on_channel_zero(s: Scene) -> None:
    _answered(s.wire(), "a content header on channel 0", header(0, 0, {}))


@case
def a_body_on_channel_zero(s: Scene) -> None:
    _answered(s.wire(), "a body on channel 0", frame(BODY, 0, b"x"))


@case
def a_queue_declared_on_channel_zero(s: Scene) -> None:
    _answered(s.wire(), "queue.declare on channel 0", method(0, "queue.declare", {"queue": "q"}))


@case
def content_on_a_channel_that_is_not_open(s: Scene) -> None:
    _answered(s.wire(), "a publish on channel 7", method(7, "basic.publish", {}) + header(7, 0, {}))


@case
def a_body_on_a_channel_that_is_not_open(s: Scene) -> None:
    _answered(s.wire(), "a body on channel 7", frame(BODY, 7, b"x"))


@case
def methods_that_only_a_server_says(s: Scene) -> None:
    for name in ("basic.deliver", "basic.get-ok", "basic.return"):
        wire = s.wire()
        wire.channel()
        _answered(wire, name, method(1, name, {}) + header(1, 0, {}))


@case
def answers_that_nobody_asked_for(s: Scene) -> None:
    for name in ("queue.declare-ok", "basic.qos-ok", "basic.consume-ok", "tx.commit-ok", "channel.open-ok"):
        wire = s.wire()
        wire.channel()
        _answered(wire, name, method(1, name, {}))


@case
def a_heartbeat_as_content(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    _answered(
        wire, "a publish with a heartbeat where its body is due",
        method(1, "basic.publish", {"routing_key": s.name()}) + header(1, 1, {}) + frame(HEARTBEAT, 1, b""),
    )  # fmt: skip


@case
def two_headers(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    _answered(wire, "a publish with two headers", method(1, "basic.publish", {}) + header(1, 3, {}) + header(1, 3, {}))


@case
def a_publish_within_a_publish(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    _answered(wire, "a publish where a body is due", (method(1, "basic.publish", {}) + header(1, 3, {})) * 2)


@case
def a_close_within_a_publish(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    wire.raw(method(1, "basic.publish", {"routing_key": s.name()}) + header(1, 3, {}))
    lane.call("channel.close", code=200, text="bye")


@case
def a_connection_close_within_a_publish(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    wire.raw(method(1, "basic.publish", {"routing_key": s.name()}) + header(1, 3, {}))
    wire.send(0, "connection.close", {"code": 200, "text": "bye"})
    wire.expect("connection.close-ok")


@case
def a_frame_of_a_large_size(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    _answered(wire, "a frame that says it has 2 GiB", struct.pack(">BHI", METHOD, 1, 1 << 31))


@case
def a_header_with_a_weight(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    lane.call("queue.declare", queue=s.name())
    s.say("a1 > a publish whose header has weight 1")
    wire.raw(method(1, "basic.publish", {"routing_key": s.name()}))
    wire.raw(frame(HEADER, 1, struct.pack(">HHQH", 60, 1, 1, 0)) + frame(BODY, 1, b"x"))
    lane.nothing("channel.close")


@case
def a_method_with_bytes_behind_it(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    payload = struct.pack(">HH", 85, 10) + b"\0" + b"more"
    s.say("a1 > confirm.select, and four bytes more")
    wire.raw(frame(METHOD, 1, payload))
    wire.expect("confirm.select-ok", "channel.close", channel=1)


# ---- channels that are used again


@case
def a_channel_used_again_begins_anew(s: Scene) -> None:
    lane, queue = s.wire().channel(), s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("confirm.select")
    for body in "12":
        lane.publish(queue, body)
    lane.confirms(2)
    lane.call("basic.qos", count=1)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(1)
    lane.call("channel.close", code=200, text="bye")
    lane.open()
    lane.call("confirm.select")
    lane.publish(queue, "3")
    lane.confirms(1)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(3)
    lane.send("basic.ack", delivery=3, multiple=True)
    lane.alive()


@case
def a_channel_used_again_after_an_error(s: Scene) -> None:
    lane, queue = s.wire().channel(), s.name()
    lane.call("queue.declare", queue=queue)
    lane.confirmed(queue, "1")
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(1)
    lane.call("queue.declare", queue=s.name("missing"), passive=True)
    lane.again()
    lane.call("queue.bind", exchange="amq.direct")
    lane.again()
    lane.call("basic.cancel", tag="t")
    lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=1)
    lane.alive()


@case
def closed_twice(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    lane.call("channel.close", code=200, text="bye")
    wire.send(1, "channel.close", {"code": 200, "text": "bye"})
    wire.expect("channel.close-ok", channel=1)


@case
def a_close_that_meets_the_servers(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    lane.send("queue.declare", queue=s.name("missing"), passive=True)
    lane.send("channel.close", code=200, text="bye")
    found = wire.wait(1, ["channel.close"])
    wire.took(found)
    found = wire.wait(1, ["channel.close-ok"])
    wire.took(found)
    wire.raw(method(1, "channel.close-ok", {}))
    wire.channel(2).alive()
    wire.channel(1).alive()


@case
def a_close_that_meets_the_servers_and_no_more(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    lane.send("queue.declare", queue=s.name("missing"), passive=True)
    lane.send("channel.close", code=200, text="bye")
    wire.took(wire.wait(1, ["channel.close"]))
    wire.took(wire.wait(1, ["channel.close-ok"]))
    wire.send(1, "channel.open", {})
    wire.expect("channel.open-ok", channel=1)


@case
def a_close_ok_for_a_channel_that_is_not_open(s: Scene) -> None:
    _answered(s.wire(), "channel.close-ok of channel 5", method(5, "channel.close-ok", {}))


@case
def a_channel_opened_before_its_close_is_answered(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    lane.send("queue.declare", queue=s.name("missing"), passive=True)
    found = wire.wait(1, ["channel.close"])
    wire.took(found)
    wire.send(1, "channel.open", {})
    wire.expect("channel.open-ok", channel=1)


@case
def a_close_ok_that_nobody_waits_for(s: Scene) -> None:
    wire = s.wire()
    wire.channel()
    _answered(wire, "channel.close-ok", method(1, "channel.close-ok", {}))


@case
def many_channels_closed_and_opened(s: Scene) -> None:
    wire = s.wire(channel_max=3)
    for number in (1, 2, 3):
        lane = wire.channel(number)
        lane.call("channel.close", code=200, text="bye")
    for number in (3, 2, 1):
        wire.channel(number).alive()
    wire.send(4, "channel.open", {})
    wire.expect("channel.open-ok", channel=4)


# ---- heartbeats


def _heartbeat(s: Scene, seconds: int) -> None:
    wire = s.wire(heartbeat=seconds)
    wire.channel().alive()


@case
def a_heartbeat_above_the_offered_one(s: Scene) -> None:
    _heartbeat(s, 600)


@case
def the_longest_heartbeat(s: Scene) -> None:
    _heartbeat(s, 65535)


@case
def no_heartbeat_at_all(s: Scene) -> None:
    _heartbeat(s, 0)
