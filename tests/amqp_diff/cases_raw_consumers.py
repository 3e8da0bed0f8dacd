"""Consumers: tags, cancelling, prefetch of both kinds, exclusive ones, priorities, single active ones, streams."""

import time

from amqp_diff.scene import Scene, case, queue_with
from amqp_diff.wire import Lane, Typed


@case
def consume(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2")
    lane.call("basic.consume", queue=queue, tag="mine")
    lane.deliveries(2)
    lane.message_count(queue)
    lane.send("basic.ack", delivery=2, multiple=True)
    lane.call("basic.cancel", tag="mine")
    lane.message_count(queue)


@case
def consume_without_acks(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2")
    lane.call("basic.consume", queue=queue, tag="mine", no_ack=True)
    lane.deliveries(2)
    lane.message_count(queue)
    lane.send("basic.ack", delivery=1)
    lane.alive()


@case
def a_tag_by_the_server(s: Scene) -> None:
    lane, queue = queue_with(s)
    tag = lane.call("basic.consume", queue=queue)["tag"]
    lane.confirmed(queue, "1")
    lane.deliveries(1)
    lane.call("basic.cancel", tag=tag)


@case
def a_tag_used_twice(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.call("basic.consume", queue=queue, tag="t")


@case
def a_tag_used_on_two_channels(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    one, two = wire.channel(), wire.channel()
    one.call("queue.declare", queue=queue)
    one.call("basic.consume", queue=queue, tag="t")
    two.call("basic.consume", queue=queue, tag="t")
    two.alive()


@case
def consume_from_what_is_missing(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("basic.consume", queue=s.name())
    lane.again()
    lane.call("basic.consume")


@case
def nowait_consume_and_cancel(s: Scene) -> None:
    lane, queue = queue_with(s, "1")
    lane.send("basic.consume", queue=queue, tag="t", nowait=True)
    lane.deliveries(1)
    lane.send("basic.cancel", tag="t", nowait=True)
    lane.alive()
    lane.message_count(queue)


@case
def no_local_is_ignored(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.call("basic.consume", queue=queue, tag="t", no_local=True)
    lane.publish(queue, "by myself")
    lane.deliveries(1)


@case
def cancel_an_unknown_tag(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("basic.cancel", tag="nobody")
    lane.call("basic.cancel")


@case
def cancel_keeps_what_is_unacked(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2")
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)
    lane.call("basic.cancel", tag="t")
    lane.message_count(queue)
    lane.send("basic.ack", delivery=1)
    lane.send("basic.nack", delivery=2, requeue=True)
    lane.call("basic.get", queue=queue, no_ack=True)


@case
def consumers_take_turns(s: Scene) -> None:
    lane, queue = queue_with(s)
    for tag in ("one", "two", "three"):
        lane.call("basic.consume", queue=queue, tag=tag)
    for number in range(6):
        lane.confirmed(queue, str(number))
        lane.deliveries(1)


@case
def prefetch_of_each_consumer(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3", "4", "5")
    lane.call("basic.qos", count=2)
    lane.call("basic.consume", queue=queue, tag="one")
    lane.deliveries(2)
    lane.nothing()
    lane.call("basic.consume", queue=queue, tag="two")
    lane.deliveries(2)
    lane.nothing()
    lane.send("basic.ack", delivery=1)
    lane.deliveries(1)
    lane.nothing()


@case
def prefetch_of_a_channel(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3", "4", "5")
    lane.call("basic.qos", count=3, **{"global": True})
    lane.call("basic.consume", queue=queue, tag="one")
    lane.deliveries(3)
    lane.call("basic.consume", queue=queue, tag="two")
    lane.nothing()
    lane.send("basic.ack", delivery=2, multiple=True)
    lane.expect_any(2)
    lane.nothing()


@case
def prefetch_of_both_kinds(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3", "4", "5", "6")
    lane.call("basic.qos", count=2)
    lane.call("basic.qos", count=3, **{"global": True})
    lane.call("basic.consume", queue=queue, tag="one")
    lane.deliveries(2)
    lane.nothing()
    lane.call("basic.consume", queue=queue, tag="two")
    lane.deliveries(1)
    lane.nothing()


@case
def prefetch_changed_for_new_consumers(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3", "4", "5")
    lane.call("basic.qos", count=1)
    lane.call("basic.consume", queue=queue, tag="one")
    lane.deliveries(1)
    lane.call("basic.qos", count=3)
    lane.nothing()
    lane.call("basic.consume", queue=queue, tag="two")
    lane.deliveries(3)
    lane.nothing()


@case
def prefetch_of_a_channel_raised(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3", "4")
    lane.call("basic.qos", count=1, **{"global": True})
    lane.call("basic.consume", queue=queue, tag="one")
    lane.deliveries(1)
    lane.nothing()
    lane.call("basic.qos", count=3, **{"global": True})
    lane.deliveries(2)
    lane.nothing()
    lane.call("basic.qos", count=0, **{"global": True})
    lane.deliveries(1)


@case
def prefetch_does_not_count_gets(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3")
    lane.call("basic.qos", count=1)
    lane.call("basic.get", queue=queue)
    lane.call("basic.consume", queue=queue, tag="one")
    lane.deliveries(1)
    lane.nothing()
    lane.call("basic.get", queue=queue)


@case
def prefetch_of_a_channel_counts_gets(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3")
    lane.call("basic.qos", count=1, **{"global": True})
    lane.call("basic.get", queue=queue)
    lane.call("basic.consume", queue=queue, tag="one")
    lane.nothing()
    lane.send("basic.ack", delivery=1)
    lane.nothing()


@case
def prefetch_without_acks(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", "3")
    lane.call("basic.qos", count=1)
    lane.call("basic.consume", queue=queue, tag="one", no_ack=True)
    lane.deliveries(3)


@case
def prefetch_size(s: Scene) -> None:
    s.wire().channel().call("basic.qos", size=1000)


@case
def exclusive_consumer(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    one, two = wire.channel(), wire.channel()
    one.call("queue.declare", queue=queue)
    one.call("basic.consume", queue=queue, tag="t", exclusive=True)
    for given in ({}, {"exclusive": True}):
        two.call("basic.consume", queue=queue, tag="u", **given)
        two.again()
    two.call("basic.get", queue=queue)
    one.call("basic.cancel", tag="t")
    two.call("basic.consume", queue=queue, tag="u")
    one.call("basic.consume", queue=queue, tag="t", exclusive=True)


@case
def consumer_priorities(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.call("basic.qos", count=2)
    for tag, priority in (("low", -1), ("none", 0), ("high", 5)):
        arguments = {"x-priority": priority} if priority else {}
        lane.call("basic.consume", queue=queue, tag=tag, arguments=arguments)
    for number in range(7):
        lane.confirmed(queue, str(number))
    lane.deliveries(6)
    lane.nothing()
    lane.send("basic.ack", delivery=1)
    lane.deliveries(1)


@case
def a_consumer_priority_that_is_no_number(s: Scene) -> None:
    lane, queue = queue_with(s)
    for value in ("5", 1.5, True, Typed("s", 5)):
        lane.call("basic.consume", queue=queue, tag="t", arguments={"x-priority": value})
        lane.again()


@case
def unknown_consumer_arguments(s: Scene) -> None:
    lane, queue = queue_with(s)
    lane.call("basic.consume", queue=queue, tag="t", arguments={"x-anything": "goes", "x-cancel-on-ha-failover": True})


@case
def single_active_consumer(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    one, two = wire.channel(), wire.channel()
    one.call("queue.declare", queue=queue, arguments={"x-single-active-consumer": True})
    one.call("basic.consume", queue=queue, tag="one")
    two.call("basic.consume", queue=queue, tag="two")
    for body in "12":
        one.confirmed(queue, body)
    one.deliveries(2)
    two.nothing()
    one.send("basic.ack", delivery=1)
    one.call("basic.cancel", tag="one")
    two.nothing()
    one.confirmed(queue, "3")
    two.deliveries(1)
    one.send("basic.nack", delivery=2, requeue=True)
    two.deliveries(1)


@case
def single_active_consumer_whose_channel_ends(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    one, two = wire.channel(), wire.channel()
    one.call("queue.declare", queue=queue, arguments={"x-single-active-consumer": True})
    one.call("basic.consume", queue=queue, tag="one")
    two.call("basic.consume", queue=queue, tag="two")
    one.confirmed(queue, "1")
    one.deliveries(1)
    one.call("channel.close", code=200, text="bye")
    two.deliveries(1)


@case
def single_active_and_exclusive(s: Scene) -> None:
    lane, queue = queue_with(s, arguments={"x-single-active-consumer": True})
    lane.call("basic.consume", queue=queue, tag="t", exclusive=True)


@case
def a_get_beside_a_single_active_consumer(s: Scene) -> None:
    lane, queue = queue_with(s, "1", "2", arguments={"x-single-active-consumer": True})
    lane.call("basic.qos", count=1)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(1)
    lane.call("basic.get", queue=queue)


@case
def consumers_of_two_queues(s: Scene) -> None:
    lane = s.wire().channel()
    for word in ("one", "two"):
        lane.call("queue.declare", queue=s.name(word))
        lane.call("basic.consume", queue=s.name(word), tag=word)
    for word in ("two", "one", "two"):
        lane.confirmed(s.name(word), f"for {word}")
        lane.deliveries(1)
    lane.send("basic.ack", delivery=3, multiple=True)
    lane.alive()


@case
def a_large_message_to_a_consumer_with_small_frames(s: Scene) -> None:
    wire = s.wire(frame_max=4096)
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.confirmed(queue, b"L" * 50_000)
    lane.deliveries(1)
    s.say(f"body frames {wire.sizes}")


STREAM = {"x-queue-type": "stream"}


def _stream(s: Scene, count: int) -> tuple[Lane, str]:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, durable=True, arguments=STREAM)
    for number in range(count):
        lane.confirmed(queue, str(number))
    return lane, queue


@case
def stream_from_the_first(s: Scene) -> None:
    lane, queue = _stream(s, 3)
    lane.call("basic.qos", count=10)
    lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": "first"})
    lane.deliveries(3)
    lane.send("basic.ack", delivery=3, multiple=True)
    lane.confirmed(queue, "3", properties={"headers": {"a": 1}, "message_id": "m"})
    lane.deliveries(1)
    lane.call("basic.cancel", tag="t")
    lane.call("basic.consume", queue=queue, tag="u", arguments={"x-stream-offset": "first"})
    lane.deliveries(4)


@case
def stream_from_a_number(s: Scene) -> None:
    lane, queue = _stream(s, 4)
    lane.call("basic.qos", count=10)
    lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": 2})
    lane.deliveries(2)
    lane.nothing()


@case
def stream_from_the_next(s: Scene) -> None:
    lane, queue = _stream(s, 2)
    lane.call("basic.qos", count=10)
    lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": "next"})
    lane.nothing()
    lane.confirmed(queue, "fresh")
    lane.deliveries(1)


@case
def stream_without_an_offset(s: Scene) -> None:
    lane, queue = _stream(s, 2)
    lane.call("basic.qos", count=10)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.nothing()
    lane.confirmed(queue, "fresh")
    lane.deliveries(1)


@case
def stream_from_a_time(s: Scene) -> None:
    lane, queue = _stream(s, 1)
    lane.call("basic.qos", count=10)
    then = int(time.time()) - 3600
    lane.wire.say("a1 > basic.consume from an hour ago")
    lane.wire.say = lambda line: None if "basic.consume" in line else s.say(line)  # a time differs in each run
    lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": Typed("T", then)})
    lane.wire.say = s.say
    lane.deliveries(1)


@case
def stream_from_nonsense(s: Scene) -> None:
    lane, queue = _stream(s, 1)
    for value in ("nonsense", -1, 1.5, True, "5", ""):
        lane = s.wire().channel()
        lane.call("basic.qos", count=10)
        lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": value})


@case
def stream_from_a_while_ago(s: Scene) -> None:
    lane, queue = _stream(s, 1)
    lane.call("basic.qos", count=10)
    lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": "1h"})
    lane.deliveries(1)


@case
def stream_from_the_last(s: Scene) -> None:
    lane, queue = _stream(s, 1)
    lane.call("basic.qos", count=10)
    lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": "last"})
    lane.deliveries(1)


@case
def stream_from_beyond_its_end(s: Scene) -> None:
    lane, queue = _stream(s, 2)
    lane.call("basic.qos", count=10)
    lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": 10})
    lane.nothing()
    lane.confirmed(queue, "not yet")
    lane.nothing()


@case
def stream_without_a_prefetch(s: Scene) -> None:
    lane, queue = _stream(s, 1)
    lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": "first"})


@case
def stream_without_acks(s: Scene) -> None:
    lane, queue = _stream(s, 1)
    lane.call("basic.qos", count=10)
    lane.call("basic.consume", queue=queue, tag="t", no_ack=True, arguments={"x-stream-offset": "first"})


@case
def stream_credit_follows_the_acks(s: Scene) -> None:
    lane, queue = _stream(s, 5)
    lane.call("basic.qos", count=2)
    lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": "first"})
    lane.deliveries(2)
    lane.nothing()
    lane.send("basic.ack", delivery=2, multiple=True)
    lane.deliveries(2)


@case
def stream_get(s: Scene) -> None:
    lane, queue = _stream(s, 1)
    lane.call("basic.get", queue=queue)


@case
def stream_purge(s: Scene) -> None:
    lane, queue = _stream(s, 1)
    lane.call("queue.purge", queue=queue)


@case
def stream_delete(s: Scene) -> None:
    lane, queue = _stream(s, 2)
    lane.call("queue.delete", queue=queue)
    lane.call("queue.declare", queue=queue, passive=True)


@case
def stream_declarations_that_are_refused(s: Scene) -> None:
    for number, given in enumerate((
        {"durable": False}, {"exclusive": True}, {"auto_delete": True}, {"arguments": STREAM | {"x-message-ttl": 1000}},
        {"arguments": STREAM | {"x-max-length": 10}}, {"arguments": STREAM | {"x-expires": 100000}},
        {"arguments": STREAM | {"x-dead-letter-exchange": "x"}}, {"arguments": STREAM | {"x-max-priority": 1}},
        {"arguments": STREAM | {"x-overflow": "drop-head"}}, {"arguments": STREAM | {"x-max-age": "1 day"}},
        {"arguments": STREAM | {"x-single-active-consumer": True}}, {"arguments": STREAM | {"x-max-age": 5}},
    )):  # fmt: skip
        lane = s.wire().channel()
        lane.call("queue.declare", **({"queue": s.name(str(number)), "durable": True, "arguments": STREAM} | given))


@case
def stream_declarations(s: Scene) -> None:
    lane = s.wire().channel()
    for word, arguments in {
        "bytes": {"x-max-length-bytes": 100000}, "age": {"x-max-age": "1D"},
        "both": {"x-max-length-bytes": 1, "x-max-age": "2h"},
        "segments": {"x-stream-max-segment-size-bytes": 1000000}, "leader": {"x-queue-leader-locator": "client-local"},
    }.items():  # fmt: skip
        for _ in range(2):
            lane.call("queue.declare", queue=s.name(word), durable=True, arguments=STREAM | arguments)
            lane.again()
        lane.call("queue.declare", queue=s.name(word), durable=True, arguments=STREAM)
        lane.again()


@case
def stream_nack(s: Scene) -> None:
    for name in ("nack", "reject"):
        lane, queue = _stream(s, 2)
        lane.call("basic.qos", count=1)
        lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": "first"})
        lane.deliveries(1)
        lane.send(f"basic.{name}", delivery=1, requeue=True)
        lane.expect("basic.deliver")


@case
def stream_two_readers(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    one, two = wire.channel(), wire.channel()
    one.call("queue.declare", queue=queue, durable=True, arguments=STREAM)
    one.confirmed(queue, "for all")
    for lane, tag in ((one, "one"), (two, "two")):
        lane.call("basic.qos", count=5)
        lane.call("basic.consume", queue=queue, tag=tag, arguments={"x-stream-offset": "first"})
        lane.deliveries(1)


@case
def stream_bound_to_an_exchange(s: Scene) -> None:
    lane, queue = _stream(s, 0)
    lane.call("queue.bind", queue=queue, exchange="amq.topic", routing_key=f"{s.case}.#")
    lane.confirmed(f"{s.case}.a", "routed", exchange="amq.topic", properties={"delivery_mode": 1, "type": "t"})
    lane.call("basic.qos", count=5)
    lane.call("basic.consume", queue=queue, tag="t", arguments={"x-stream-offset": "first"})
    lane.deliveries(1)
