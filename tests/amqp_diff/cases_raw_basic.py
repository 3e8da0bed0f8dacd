"""Messages: publishing, properties, returns, carbon copies, getting, and every way to settle what was delivered."""

import json
import struct
from typing import Any

from amqp_diff.scene import Scene, case, queue_with
from amqp_diff.wire import BODY, Typed, field, frame, header, method, short_string

ALL: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"a": "b"},
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "correlation",
    "reply_to": "somebody",
    "expiration": "60000",
    "message_id": "id",
    "timestamp": 1234567890,
    "type": "kind",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "cluster",
}
FIELDS: dict[str, Any] = {
    "bool": True,
    "off": False,
    "b": Typed("b", -5),
    "B": Typed("B", 250),
    "s": Typed("s", -300),
    "u": Typed("u", 65000),
    "I": Typed("I", -70000),
    "i": Typed("i", 4000000000),
    "l": Typed("l", -5000000000),
    "f": Typed("f", 1.5),
    "d": Typed("d", 2.25),
    "D": Typed("D", (2, 314)),
    "S": "text",
    "empty": "",
    "x": b"\x00\xff",
    "T": Typed("T", 1700000000),
    "V": None,
    "A": [1, "x", [], {"a": None}],
    "F": {"nested": {"deeper": [Typed("b", 1)]}},
    "ä": "ü",
}


@case
def all_properties(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.confirmed(queue, "body", properties=ALL)
    lane.call("basic.get", queue=queue)


@case
def each_property_alone(s: Scene) -> None:
    lane, queue = queue_with(s)
    for name, value in ALL.items():
        lane.confirmed(queue, name, properties={name: value})
        lane.call("basic.get", queue=queue, no_ack=True)


@case
def empty_properties(s: Scene) -> None:
    lane, queue = queue_with(s)
    empty: dict[str, Any] = {name: "" for name in ALL if isinstance(ALL[name], str)}
    del empty["expiration"], empty["user_id"]
    lane.confirmed(queue, "body", properties=empty | {"headers": {}, "timestamp": 0, "priority": 0})
    lane.call("basic.get", queue=queue)


@case
def all_field_types(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.confirmed(queue, "body", properties={"headers": FIELDS})
    lane.call("basic.get", queue=queue)


@case
def field_types_each_byte(s: Scene) -> None:
    """The properties come back byte for byte."""
    wire = s.wire()
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    entries = b"".join(short_string(name) + field(value) for name, value in FIELDS.items())
    properties = struct.pack(">HI", 1 << 13, len(entries)) + entries
    wire.raw(method(1, "basic.publish", {"routing_key": queue}) + header(1, 1, properties) + frame(BODY, 1, b"x"))
    lane.alive()
    wire.raw(method(1, "basic.get", {"queue": queue, "no_ack": True}))
    seen = wire.read_raw_until(struct.pack(">B", 0xCE) + struct.pack(">BHI", BODY, 1, 1))
    s.say(f"the same bytes {properties in seen}")


@case
def lists_of_every_type(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.confirmed(queue, "body", properties={"headers": {"list": list(FIELDS.values())}})
    lane.call("basic.get", queue=queue)


@case
def a_long_header(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.confirmed(queue, "body", properties={"headers": {"long": "x" * 60000}})
    found = lane.wire
    found.raw(method(1, "basic.get", {"queue": queue, "no_ack": True}))
    got = found.wait(1, ["basic.get-ok"])
    s.say(f"{got and len(got.properties['headers']['long'])} letters")


@case
def headers_that_do_not_fit_a_frame(s: Scene) -> None:
    wire = s.wire(frame_max=4096)
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    wire.raw(method(1, "basic.publish", {"routing_key": queue}))
    wire.raw(header(1, 0, {"headers": {"long": "x" * 5000}}))
    s.say("a1 > a header frame longer than frame_max")
    wire.expect("channel.close", channel=1)


@case
def the_same_key_twice_in_a_table(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    entries = short_string("a") + field("first") + short_string("a") + field("second")
    properties = struct.pack(">HI", 1 << 13, len(entries)) + entries
    wire.raw(method(1, "basic.publish", {"routing_key": queue}) + header(1, 0, properties))
    lane.alive()
    wire.raw(method(1, "basic.get", {"queue": queue, "no_ack": True}))
    seen = wire.read_raw_until(entries)
    s.say(f"the same bytes {entries in seen}")


@case
def delivery_modes(s: Scene) -> None:
    lane, queue = queue_with(s)
    for mode in (0, 1, 2, 3, 255):
        lane.publish(queue, str(mode), properties={"delivery_mode": mode})
        lane.alive()
        lane.again()
    lane.message_count(queue)


@case
def user_id(s: Scene) -> None:
    lane, queue = queue_with(s)
    for user in ("guest", "", "other"):
        lane.publish(queue, user, properties={"user_id": user})
        lane.alive()
        lane.again()
    lane.message_count(queue)


@case
def an_empty_body(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.confirmed(queue, b"")
    lane.call("basic.get", queue=queue)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.confirmed(queue, b"")
    lane.deliveries(1)


@case
def a_body_of_all_bytes(s: Scene) -> None:
    lane, queue = queue_with(s)
    body = bytes(range(256)) * 4
    lane.confirmed(queue, body)
    found = lane.call("basic.get", queue=queue)
    s.say(f"the same {found.body == body}")


@case
def mandatory_to_nobody(s: Scene) -> None:
    lane = s.wire().channel()
    lane.publish(s.name("nobody"), "back", properties=ALL | {"headers": FIELDS}, mandatory=True)
    lane.expect("basic.return")
    lane.publish("key", "back, too", "amq.topic", mandatory=True)
    lane.expect("basic.return")
    lane.publish("key", b"", "amq.fanout", mandatory=True)
    lane.expect("basic.return")
    lane.publish("key", "dropped", "amq.direct")
    lane.alive()


@case
def mandatory_large(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    lane.publish("nobody", b"z" * 300_000, mandatory=True)
    lane.expect("basic.return")
    s.say(f"body frames {wire.sizes}")


@case
def mandatory_to_a_queue(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.publish(queue, "there", mandatory=True)
    lane.alive()
    lane.nothing("basic.return")


@case
def mandatory_to_an_expiring_queue(s: Scene) -> None:
    lane, queue = queue_with(s, arguments={"x-max-length": 0})
    lane.publish(queue, "routed and dropped", mandatory=True)
    lane.alive()
    lane.nothing("basic.return")


@case
def immediate(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.publish(queue, "now", immediate=True)
    lane.expect("basic.return")


@case
def cc_and_bcc(s: Scene) -> None:
    lane = s.wire().channel()
    for word in ("to", "cc1", "cc2", "bcc"):
        lane.call("queue.declare", queue=s.name(word))
    headers = {"CC": [s.name("cc1"), s.name("cc2"), s.name("to")], "BCC": [s.name("bcc")], "other": 1}
    lane.confirmed(s.name("to"), "copies", properties={"headers": headers})
    for word in ("to", "cc1", "cc2", "bcc"):
        lane.call("basic.get", queue=s.name(word), no_ack=True)
        lane.call("basic.get", queue=s.name(word), no_ack=True)


@case
def cc_that_is_no_list(s: Scene) -> None:
    lane, queue = queue_with(s)
    for header_, value in (("CC", "text"), ("BCC", "text"), ("CC", [1]), ("CC", [["x"]]), ("CC", []), ("cc", "lower")):
        lane.publish(queue, f"{header_} {json.dumps(value)}", properties={"headers": {header_: value}})
        lane.alive()
        lane.again()
    lane.message_count(queue)


@case
def cc_to_nobody_mandatory(s: Scene) -> None:
    lane = s.wire().channel()
    lane.publish("nobody", "back", properties={"headers": {"CC": ["no", "one"], "BCC": ["else"]}}, mandatory=True)
    lane.expect("basic.return")


@case
def cc_on_a_topic_exchange(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.call("queue.bind", queue=queue, exchange="amq.topic", routing_key=f"{s.case}.*")
    lane.confirmed(f"{s.case}.a", "once", exchange="amq.topic", properties={"headers": {"CC": [f"{s.case}.b"]}})
    lane.confirmed("elsewhere", "by its copy", exchange="amq.topic", properties={"headers": {"CC": [f"{s.case}.b"]}})
    for _ in range(3):
        lane.call("basic.get", queue=queue, no_ack=True)


@case
def get(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3")
    lane.call("basic.get", queue=queue)
    lane.call("basic.get", queue=queue, no_ack=True)
    lane.message_count(queue)
    lane.send("basic.ack", delivery=1)
    lane.call("basic.get", queue=queue)
    lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=3)
    lane.message_count(queue)


@case
def get_from_what_is_missing(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("basic.get", queue=s.name())
    lane.again()
    lane.call("basic.get")


@case
def no_ack_tags_are_counted(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3")
    lane.call("basic.get", queue=queue, no_ack=True)
    lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=1)
    lane.alive()


@case
def ack_twice(s: Scene) -> None:
    lane, queue = queue_with(s, "1")
    lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=1)
    lane.alive()
    lane.send("basic.ack", delivery=1)
    lane.alive()


@case
def ack_an_unknown_tag(s: Scene) -> None:
    lane, queue = queue_with(s, "1")
    lane.call("basic.get", queue=queue)
    for name, given in (
        ("ack", {}),
        ("nack", {}),
        ("reject", {}),
        ("ack", {"multiple": True}),
        ("nack", {"multiple": True}),
    ):
        lane.send(f"basic.{name}", delivery=99, **given)
        lane.alive()
        lane.again()
    lane.call("basic.get", queue=queue)


@case
def ack_zero(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2")
    lane.send("basic.ack", delivery=0, multiple=True)
    lane.alive()
    lane.call("basic.get", queue=queue)
    lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=0, multiple=True)
    lane.alive()
    lane.call("queue.declare", queue=queue, passive=True)
    lane.send("basic.ack", delivery=0)
    lane.alive()


@case
def reject_zero_and_nack_zero(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2")
    lane.send("basic.nack", delivery=0, multiple=True)
    lane.alive()
    lane.call("basic.get", queue=queue)
    lane.send("basic.nack", delivery=0, multiple=True, requeue=True)
    lane.call("basic.get", queue=queue)
    lane.send("basic.reject", delivery=0, requeue=True)
    lane.alive()
    lane.again()
    lane.send("basic.nack", delivery=0, requeue=True)
    lane.alive()


@case
def ack_multiple(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3", "4")
    for _ in range(4):
        lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=3, multiple=True)
    lane.send("basic.nack", delivery=4, requeue=True)
    lane.call("basic.get", queue=queue)
    lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=3, multiple=True)
    lane.alive()


@case
def a_tag_of_another_channel(s: Scene) -> None:
    wire = s.wire()
    lane, other = wire.channel(), wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.confirmed(queue, "1")
    lane.call("basic.get", queue=queue)
    other.send("basic.ack", delivery=1)
    other.alive()


@case
def nack_requeues_in_place(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3", "4")
    for _ in range(3):
        lane.call("basic.get", queue=queue)
    lane.send("basic.nack", delivery=2, requeue=True)
    lane.call("basic.get", queue=queue)
    lane.send("basic.nack", delivery=4, multiple=True, requeue=True)
    for _ in range(5):
        lane.call("basic.get", queue=queue, no_ack=True)


@case
def reject_requeues_or_drops(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2")
    lane.call("basic.get", queue=queue)
    lane.send("basic.reject", delivery=1, requeue=True)
    lane.call("basic.get", queue=queue)
    lane.send("basic.reject", delivery=2)
    lane.call("basic.get", queue=queue)
    lane.call("basic.get", queue=queue)


@case
def requeued_with_a_consumer_comes_back(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.call("basic.qos", count=1)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.confirmed(queue, "again")
    lane.deliveries(1)
    lane.send("basic.reject", delivery=1, requeue=True)
    lane.deliveries(1)
    lane.send("basic.nack", delivery=2, requeue=True)
    lane.deliveries(1)
    lane.send("basic.ack", delivery=3)
    lane.alive()


@case
def what_is_unacked_returns_with_its_channel(s: Scene) -> None:
    wire = s.wire()
    lane, other = wire.channel(), wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    for body in "123":
        lane.confirmed(queue, body)
    lane.call("basic.get", queue=queue)
    lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=1)
    lane.call("channel.close", code=200, text="bye")
    for _ in range(3):
        other.call("basic.get", queue=queue)


@case
def what_is_unacked_returns_with_its_connection(s: Scene) -> None:
    one, two = s.wire(), s.wire()
    lane, other = one.channel(), two.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("basic.consume", queue=queue, tag="t")
    for body in "12":
        lane.confirmed(queue, body)
    lane.deliveries(2)
    one.close()
    for _ in range(3):
        other.call("basic.get", queue=queue)


@case
def what_is_unacked_returns_after_an_error(s: Scene) -> None:
    lane, queue = queue_with(s, "1")
    lane.call("basic.get", queue=queue)
    lane.call("queue.declare", queue=s.name("missing"), passive=True)
    lane.again()
    lane.call("basic.get", queue=queue)


@case
def recover(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3")
    lane.call("basic.get", queue=queue)
    lane.call("basic.get", queue=queue)
    lane.call("basic.recover", requeue=True)
    for _ in range(4):
        lane.call("basic.get", queue=queue)


@case
def recover_with_a_consumer(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2")
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)
    lane.call("basic.recover", requeue=True)
    lane.deliveries(2)


@case
def recover_async(s: Scene) -> None:
    lane, queue = queue_with(s, "1")
    lane.call("basic.get", queue=queue)
    lane.send("basic.recover-async", requeue=True)
    lane.call("basic.get", queue=queue)


@case
def recover_without_requeue(s: Scene) -> None:
    lane, queue = queue_with(s, "1")
    lane.call("basic.get", queue=queue)
    lane.call("basic.recover")


@case
def redelivered_is_kept(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2")
    lane.call("basic.get", queue=queue)
    lane.send("basic.nack", delivery=1, requeue=True)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)


@case
def order_of_many(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.call("confirm.select")
    for number in range(300):
        lane.wire.raw(
            method(1, "basic.publish", {"routing_key": queue}) + header(1, 4, {}) + frame(BODY, 1, b"%04d" % number)
        )
    lane.confirms(300)
    lane.call("basic.consume", queue=queue, no_ack=True, tag="t")
    bodies = []
    tags = []
    for _ in range(300):
        found = lane.wire.wait(1, ["basic.deliver"])
        if found is None or found.body is None:
            break
        bodies.append(int(found.body))
        tags.append(found["delivery"])
    s.say(f"in order {bodies == list(range(300))} tags {tags == list(range(1, 301))}")


@case
def two_queues_of_one_message(s: Scene) -> None:
    lane = s.wire().channel()
    for word in ("one", "two"):
        lane.call("queue.declare", queue=s.name(word))
        lane.call("queue.bind", queue=s.name(word), exchange="amq.topic", routing_key=f"{s.case}.k")
    lane.confirmed(f"{s.case}.k", b"m" * 10000, exchange="amq.topic")
    for word in ("one", "two"):
        lane.call("basic.get", queue=s.name(word), no_ack=True)


@case
def a_transient_message_in_a_durable_queue(s: Scene) -> None:
    lane, queue = queue_with(s, durable=True)
    for mode in (1, 2):
        lane.confirmed(queue, str(mode), properties={"delivery_mode": mode})
    lane.call("basic.get", queue=queue, no_ack=True)
    lane.call("basic.get", queue=queue, no_ack=True)


@case
def publish_by_default_exchange_name(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.publish(queue, "as an exchange", "amq.default")
    lane.alive()


@case
def a_queue_of_an_empty_key(s: Scene) -> None:
    lane, _ = queue_with(s)
    lane.publish("", "no key", mandatory=True)
    lane.expect("basic.return")
