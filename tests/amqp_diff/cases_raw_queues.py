"""Queues: declaring, each argument (equal, different, bad), purging, deleting, exclusive names, expiry, lengths."""

import time
from typing import Any

from amqp_diff.scene import Scene, case
from amqp_diff.wire import Typed, method


def _argument(s: Scene, name: str, value: Any, *others: Any, also: dict[str, Any] | None = None) -> None:
    """Declare with an argument, again, and again with others; each on a channel of its own when it was closed."""
    lane = s.wire().channel()
    queue = s.name()
    fixed = also or {}
    lane.call("queue.declare", queue=queue, durable=True, arguments=fixed | {name: value})
    lane.again()
    lane.call("queue.declare", queue=queue, durable=True, arguments=fixed | {name: value})
    lane.again()
    for other in others:
        lane.call("queue.declare", queue=queue, durable=True, arguments=fixed | {name: other})
        lane.again()
    lane.call("queue.declare", queue=queue, durable=True, arguments=fixed)
    lane.again()
    lane.call("queue.declare", queue=queue, passive=True, durable=True, arguments=fixed | {name: "whatever"})


def _bad(s: Scene, name: str, *values: Any) -> None:
    """Declare with values that are refused, or not."""
    lane = s.wire().channel()
    for number, value in enumerate(values):
        lane.call("queue.declare", queue=s.name(str(number)), durable=True, arguments={name: value})
        lane.again()


@case
def x_message_ttl(s: Scene) -> None:
    _argument(s, "x-message-ttl", 60000, Typed("l", 60000), Typed("s", 6000), 60001, "60000", None)


@case
def x_message_ttl_bad(s: Scene) -> None:
    _bad(
        s,
        "x-message-ttl",
        -1,
        "1",
        1.5,
        None,
        Typed("l", 2**40),
        Typed("T", 5),
        True,
        [1],
        Typed("l", 4294967295),
        Typed("l", 4294967296),
    )


@case
def x_expires(s: Scene) -> None:
    _argument(s, "x-expires", 600000, Typed("l", 600000), 5)


@case
def x_expires_bad(s: Scene) -> None:
    _bad(s, "x-expires", 0, -1, "1", Typed("l", 2**40))


@case
def x_max_length(s: Scene) -> None:
    _argument(s, "x-max-length", 5, 6, Typed("b", 5))


@case
def x_max_length_bad(s: Scene) -> None:
    _bad(s, "x-max-length", -1, "1", 2.0, True)


@case
def x_max_length_bytes(s: Scene) -> None:
    _argument(s, "x-max-length-bytes", 500, 600)


@case
def x_max_length_bytes_bad(s: Scene) -> None:
    _bad(s, "x-max-length-bytes", -1, "1")


@case
def x_overflow(s: Scene) -> None:
    _argument(s, "x-overflow", "reject-publish", "drop-head", "reject-publish-dlx", also={"x-max-length": 1})


@case
def x_overflow_bad(s: Scene) -> None:
    _bad(s, "x-overflow", "explode", 1, "")


@case
def x_dead_letter_exchange(s: Scene) -> None:
    _argument(s, "x-dead-letter-exchange", "dlx", "other", "")


@case
def x_dead_letter_exchange_bad(s: Scene) -> None:
    _bad(s, "x-dead-letter-exchange", 1, None, "missing")


@case
def x_dead_letter_routing_key(s: Scene) -> None:
    _argument(s, "x-dead-letter-routing-key", "key", "other", also={"x-dead-letter-exchange": "dlx"})


@case
def x_dead_letter_routing_key_bad(s: Scene) -> None:
    _bad(s, "x-dead-letter-routing-key", "without an exchange", 1)


@case
def x_max_priority(s: Scene) -> None:
    _argument(s, "x-max-priority", 5, 6)


@case
def x_max_priority_bad(s: Scene) -> None:
    _bad(s, "x-max-priority", -1, 0, 1, 255, 256, "5", 1.5)


@case
def x_single_active_consumer(s: Scene) -> None:
    _argument(s, "x-single-active-consumer", True, False)


@case
def x_single_active_consumer_bad(s: Scene) -> None:
    _bad(s, "x-single-active-consumer", 1, "true")


@case
def x_queue_mode(s: Scene) -> None:
    _argument(s, "x-queue-mode", "lazy", "default")


@case
def x_queue_mode_bad(s: Scene) -> None:
    _bad(s, "x-queue-mode", "busy", 1)


@case
def x_queue_type(s: Scene) -> None:
    _argument(s, "x-queue-type", "classic", "quorum", "stream")


@case
def x_queue_type_bad(s: Scene) -> None:
    _bad(s, "x-queue-type", "wonder", 1, "")


@case
def x_queue_version(s: Scene) -> None:
    _argument(s, "x-queue-version", 2, 1)


@case
def x_queue_master_locator(s: Scene) -> None:
    _argument(s, "x-queue-master-locator", "client-local", "min-masters")


@case
def an_unknown_argument(s: Scene) -> None:
    _argument(s, "x-unknown", "thing", "other")


@case
def an_unknown_argument_of_any_type(s: Scene) -> None:
    _bad(s, "x-unknown", {"a": 1}, [1, 2], None, Typed("T", 1), Typed("D", (2, 314)), b"bytes")


@case
def quorum_queue(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, durable=True, arguments={"x-queue-type": "quorum"})
    lane.call("confirm.select")
    lane.publish(queue, "one", properties={"delivery_mode": 2})
    lane.confirms(1)
    lane.call("basic.get", queue=queue)
    lane.send("basic.nack", delivery=1, requeue=True)
    lane.call("basic.get", queue=queue)
    lane.send("basic.nack", delivery=2, requeue=True)
    lane.call("basic.get", queue=queue)


@case
def quorum_queue_refusals(s: Scene) -> None:
    lane = s.wire().channel()
    quorum = {"x-queue-type": "quorum"}
    for number, given in enumerate((
        {"durable": False}, {"exclusive": True}, {"auto_delete": True},
        {"arguments": quorum | {"x-max-priority": 5}}, {"arguments": quorum | {"x-message-ttl": 5000}},
        {"arguments": quorum | {"x-queue-mode": "lazy"}}, {"arguments": quorum | {"x-overflow": "reject-publish-dlx"}},
        {"arguments": quorum | {"x-delivery-limit": 3}}, {"arguments": quorum | {"x-delivery-limit": -1}},
    )):  # fmt: skip
        lane.call("queue.declare", **({"queue": s.name(str(number)), "durable": True, "arguments": quorum} | given))
        lane.again()


@case
def declare_again(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    for _ in range(2):
        lane.call("queue.declare", queue=queue, durable=True)
    lane.publish(queue, "one")
    lane.confirmed(queue, "two")
    lane.call("queue.declare", queue=queue, durable=True)
    lane.call("queue.declare", queue=queue, passive=True)


@case
def declare_again_otherwise(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    for change in ({"durable": True}, {"auto_delete": True}, {"exclusive": True}):
        lane.call("queue.declare", queue=queue, **change)
        lane.again()
        lane.call("queue.declare", queue=queue, passive=True, **change)
        lane.again()


@case
def declare_passively_what_is_not_there(s: Scene) -> None:
    s.wire().channel().call("queue.declare", queue=s.name(), passive=True)


@case
def named_by_the_server(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    name = lane.call("queue.declare", exclusive=True)["queue"]
    lane.call("queue.declare", queue=name, passive=True)
    lane.call("queue.declare", queue=name, exclusive=True)
    lane.again()
    other = lane.call("queue.declare", auto_delete=True)["queue"]
    s.say(f"different {name != other}")
    lane.publish(name, "one")
    lane.call("basic.get", queue=name, no_ack=True)
    lane.call("queue.delete", queue=other)


@case
def the_last_declared_queue_has_no_name(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("queue.bind", exchange="amq.direct", routing_key="nothing")
    lane.again()
    lane.call("queue.declare", queue=s.name())
    lane.call("queue.bind", exchange="amq.direct", routing_key=s.name("k"))
    lane.publish(s.name("k"), "one", "amq.direct")
    lane.call("basic.get", no_ack=True)
    lane.call("queue.purge")
    lane.call("basic.consume", tag="t")
    lane.call("queue.bind", exchange="amq.direct")
    lane.publish(s.name(), "by its own name", "amq.direct")
    lane.deliveries(1)
    lane.call("queue.unbind", exchange="amq.direct", routing_key=s.name("k"))
    lane.call("queue.declare", passive=True)
    lane.again()
    lane.call("queue.delete")


@case
def a_reserved_name(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("queue.declare", queue="amq.mine")
    lane.again()
    lane.call("queue.declare", queue="amq.mine", passive=True)
    lane.again()
    lane.call("queue.delete", queue="amq.mine")


@case
def exclusive(s: Scene) -> None:
    owner, stranger = s.wire(), s.wire()
    mine, same, theirs = owner.channel(), owner.channel(), stranger.channel()
    queue = s.name()
    mine.call("queue.declare", queue=queue, exclusive=True)
    mine.call("queue.declare", queue=queue, exclusive=True)
    same.call("queue.declare", queue=queue, passive=True)
    for name, given in (
        ("queue.declare", {"exclusive": True}), ("queue.declare", {"passive": True}), ("queue.declare", {}),
        ("queue.bind", {"exchange": "amq.fanout"}), ("queue.unbind", {"exchange": "amq.fanout"}),
        ("queue.purge", {}), ("queue.delete", {}), ("basic.get", {}), ("basic.consume", {"tag": "t"}),
    ):  # fmt: skip
        theirs.call(name, queue=queue, **given)
        theirs.again()
    theirs.publish(queue, "everybody may publish")
    theirs.alive()
    mine.call("basic.get", queue=queue, no_ack=True)


@case
def exclusive_ends_with_its_connection(s: Scene) -> None:
    owner, other = s.wire(), s.wire()
    queue = s.name()
    owner.channel().call("queue.declare", queue=queue, exclusive=True, durable=True)
    owner.close()
    lane = other.channel()
    lane.call("queue.declare", queue=queue, passive=True)
    lane.again()
    lane.call("queue.declare", queue=queue)


@case
def exclusive_outlives_its_channel(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    lane, other = wire.channel(), wire.channel()
    lane.call("queue.declare", queue=queue, exclusive=True)
    lane.call("channel.close", code=200, text="bye")
    other.call("queue.declare", queue=queue, passive=True)


@case
def exclusive_ends_when_the_socket_breaks(s: Scene) -> None:
    owner, other = s.wire(), s.wire()
    queue = s.name()
    owner.channel().call("queue.declare", queue=queue, exclusive=True)
    owner.shut()
    lane = other.channel()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        other.raw(_declared_passively(lane.number, queue))
        found = other.wait(lane.number, ["queue.declare-ok", "channel.close"])
        if found is not None and found.name == "channel.close":
            other.raw(_close_ok(lane.number))
            lane.open()
            if found["code"] == 404:
                s.say("gone")
                return
    s.say("still there")


def _declared_passively(channel: int, queue: str) -> bytes:
    return method(channel, "queue.declare", {"queue": queue, "passive": True})


def _close_ok(channel: int) -> bytes:
    return method(channel, "channel.close-ok", {})


@case
def auto_delete(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, auto_delete=True)
    lane.call("basic.consume", queue=queue, tag="one")
    lane.call("basic.consume", queue=queue, tag="two")
    lane.call("basic.cancel", tag="one")
    lane.call("queue.declare", queue=queue, passive=True)
    lane.call("basic.cancel", tag="two")
    lane.call("queue.declare", queue=queue, passive=True)


@case
def auto_delete_with_its_channel(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    lane, other = wire.channel(), wire.channel()
    lane.call("queue.declare", queue=queue, auto_delete=True)
    lane.publish(queue, "lost with it")
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(1)
    lane.call("channel.close", code=200, text="bye")
    other.call("queue.declare", queue=queue, passive=True)


@case
def auto_delete_never_consumed(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    lane = wire.channel()
    lane.call("queue.declare", queue=queue, auto_delete=True)
    lane.publish(queue, "stays")
    lane.call("basic.get", queue=queue, no_ack=True)
    lane.call("queue.declare", queue=queue, passive=True)


@case
def purge(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.purge", queue=queue)
    lane.again()
    lane.call("queue.declare", queue=queue)
    lane.call("queue.purge", queue=queue)
    for number in range(5):
        lane.confirmed(queue, str(number))
    lane.call("basic.get", queue=queue)
    lane.call("queue.purge", queue=queue)
    lane.message_count(queue)
    lane.send("basic.reject", delivery=1, requeue=True)
    lane.call("basic.get", queue=queue)


@case
def delete(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.delete", queue=queue)
    lane.call("queue.declare", queue=queue)
    lane.confirmed(queue, "one")
    lane.confirmed(queue, "two")
    lane.call("queue.delete", queue=queue)
    lane.call("queue.declare", queue=queue, passive=True)


@case
def delete_if_empty(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.delete", queue=queue, if_empty=True)
    lane.call("queue.declare", queue=queue)
    lane.confirmed(queue, "one")
    lane.call("queue.delete", queue=queue, if_empty=True)
    lane.again()
    lane.call("queue.purge", queue=queue)
    lane.call("queue.delete", queue=queue, if_empty=True)


@case
def delete_if_unused(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.call("queue.delete", queue=queue, if_unused=True)
    lane.again()
    lane.call("queue.delete", queue=queue, if_unused=True)


@case
def delete_with_a_consumer_cancels_it(s: Scene) -> None:
    wire = s.wire()
    lane, other = wire.channel(), wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("basic.consume", queue=queue, tag="t")
    other.call("queue.delete", queue=queue)
    lane.expect("basic.cancel")
    lane.call("basic.cancel", tag="t")


@case
def delete_is_not_told_to_who_cannot_hear_it(s: Scene) -> None:
    wire = s.wire(client_properties={"capabilities": {"consumer_cancel_notify": False}})
    lane, other = wire.channel(), wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("basic.consume", queue=queue, tag="t")
    other.call("queue.delete", queue=queue)
    lane.nothing("basic.cancel")
    lane.alive()


@case
def bindings_go_with_a_queue(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("queue.bind", queue=queue, exchange="amq.direct", routing_key=s.name("k"))
    lane.call("queue.delete", queue=queue)
    lane.call("queue.declare", queue=queue)
    lane.publish(s.name("k"), "nowhere", "amq.direct", mandatory=True)
    lane.expect("basic.return")


@case
def expires(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-expires": 700})
    lane.publish(queue, "does not renew it")
    lane.alive()
    s.pause(1.5)
    lane.call("queue.declare", queue=queue, passive=True)


@case
def expires_not_while_it_is_used(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-expires": 500})
    lane.call("basic.consume", queue=queue, tag="t")
    s.pause(1.2)
    lane.call("queue.declare", queue=queue, passive=True)
    lane.call("basic.cancel", tag="t")
    s.pause(1.5)
    lane.call("queue.declare", queue=queue, passive=True)


@case
def expires_is_renewed_by_a_passive_declare_and_a_get(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-expires": 1500})
    for _ in range(2):
        s.just(1.0)
        lane.call("queue.declare", queue=queue, passive=True)
    for _ in range(2):
        s.just(1.0)
        lane.call("basic.get", queue=queue, no_ack=True)
    s.pause(2.5)
    lane.call("queue.declare", queue=queue, passive=True)


@case
def max_length_drops_the_head(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-max-length": 2})
    lane.call("confirm.select")
    for number in range(1, 5):
        lane.publish(queue, str(number))
    lane.confirms(4)
    lane.message_count(queue)
    for _ in range(3):
        lane.call("basic.get", queue=queue, no_ack=True)


@case
def max_length_counts_what_is_ready(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-max-length": 2})
    lane.confirmed(queue, "1")
    lane.confirmed(queue, "2")
    lane.call("basic.get", queue=queue)
    lane.confirmed(queue, "3")
    lane.message_count(queue)
    s.pause(0.5)  # then nobody asks for messages any more: what comes back would go to them first (docs/amqp.md)
    lane.send("basic.nack", delivery=1, requeue=True)
    s.pause(0.2)
    for _ in range(3):
        lane.call("basic.get", queue=queue)


@case
def max_length_that_refuses(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    lane.call("confirm.select")
    for number in range(1, 5):
        lane.publish(queue, str(number))
        lane.confirms(number, number)
    for _ in range(3):
        lane.call("basic.get", queue=queue, no_ack=True)


@case
def max_length_that_refuses_in_one_of_two_queues(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("x"), type="fanout")
    lane.call("queue.declare", queue=s.name("small"), arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    lane.call("queue.declare", queue=s.name("large"))
    for word in ("small", "large"):
        lane.call("queue.bind", queue=s.name(word), exchange=s.name("x"))
    lane.call("confirm.select")
    for number in range(1, 4):
        lane.publish("", str(number), s.name("x"))
        lane.confirms(number, number)
    for word in ("small", "large"):
        lane.message_count(s.name(word))


@case
def max_length_that_refuses_and_dead_letters(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("queue.declare", queue=s.name("dead"))
    arguments = {
        "x-max-length": 1, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": s.name("dead"),
    }  # fmt: skip
    lane.call("queue.declare", queue=s.name(), arguments=arguments)
    lane.call("confirm.select")
    for number in range(1, 3):
        lane.publish(s.name(), str(number))
        lane.confirms(number, number)
    lane.call("basic.consume", queue=s.name("dead"), no_ack=True, tag="t")
    lane.deliveries(1)


@case
def max_length_zero(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-max-length": 0})
    lane.confirmed(queue, "1")
    lane.message_count(queue)


@case
def max_length_in_bytes(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-max-length-bytes": 10})
    for body in ("aaaaa", "bbbbb", "ccc", "d", "e" * 11):
        lane.confirmed(queue, body, properties={"headers": {"not": "counted"}})
        lane.message_count(queue)


@case
def message_ttl(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-message-ttl": 300})
    lane.publish(queue, "soon gone")
    lane.call("basic.get", queue=queue)
    lane.publish(queue, "gone, too")
    lane.alive()
    s.pause(1)
    lane.call("basic.get", queue=queue)
    lane.send("basic.nack", delivery=1, requeue=True)
    lane.alive()
    s.pause(0.7)
    lane.message_count(queue)


@case
def message_ttl_zero(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-message-ttl": 0})
    lane.confirmed(queue, "nobody waits")
    lane.emptied(queue)
    lane.call("basic.consume", queue=queue, tag="t", no_ack=True)
    lane.confirmed(queue, "somebody waits")
    lane.deliveries(1)


@case
def expiration_of_a_message(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.confirmed(queue, "short", properties={"expiration": "200"})
    lane.confirmed(queue, "long", properties={"expiration": "60000"})
    lane.confirmed(queue, "none")
    s.pause(1)
    lane.call("basic.get", queue=queue, no_ack=True)
    lane.call("basic.get", queue=queue, no_ack=True)
    lane.call("basic.get", queue=queue, no_ack=True)


@case
def expiration_and_message_ttl(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-message-ttl": 400})
    lane.confirmed(queue, "long by itself", properties={"expiration": "60000"})
    s.pause(1.2)
    lane.message_count(queue)


@case
def expiration_that_is_no_number(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    for text in ("abc", "-1", "1.5", "", " 5", "5 ", "99999999999", "0x10", "4294967295", "4294967296"):
        lane.publish(queue, text, properties={"expiration": text})
        lane.alive()
        lane.again()


@case
def priorities(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-max-priority": 3})
    for number, priority in enumerate((0, 1, 3, 2, 9, None, 1)):
        properties = {} if priority is None else {"priority": priority}
        lane.confirmed(queue, f"{number} of {priority}", properties=properties)
    for _ in range(7):
        lane.call("basic.get", queue=queue, no_ack=True)


@case
def priorities_and_requeue(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-max-priority": 3})
    for number, priority in enumerate((1, 1, 2)):
        lane.confirmed(queue, f"{number} of {priority}", properties={"priority": priority})
    for _ in range(2):
        lane.call("basic.get", queue=queue)
    lane.send("basic.nack", delivery=2, multiple=True, requeue=True)
    lane.confirmed(queue, "3 of 1", properties={"priority": 1})
    for _ in range(4):
        lane.call("basic.get", queue=queue)


@case
def priorities_and_max_length(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, arguments={"x-max-priority": 3, "x-max-length": 2})
    for number, priority in enumerate((3, 0, 1)):
        lane.confirmed(queue, f"{number} of {priority}", properties={"priority": priority})
    for _ in range(3):
        lane.call("basic.get", queue=queue, no_ack=True)
