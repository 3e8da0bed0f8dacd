"""Prefetch over several channels and queues, priorities of consumers, who follows a single active consumer."""

from typing import Any

from amqp_diff.scene import Scene, case
from amqp_diff.wire import Lane, Typed


def _queue(s: Scene, *bodies: str, lanes: int = 2, **declared: Any) -> tuple[list[Lane], str]:
    """Channels of one connection, and a queue with these bodies, unsaid."""
    wire = s.wire()
    made = [wire.channel() for _ in range(lanes)]
    queue = s.name()
    made[0].call("queue.declare", queue=queue, **declared)
    for body in bodies:
        made[0].confirmed(queue, body)
    return made, queue


def _single(s: Scene, *bodies: str, lanes: int = 2, tags: str = "") -> tuple[list[Lane], str]:
    """The same of a queue with a single active consumer, and a consumer of each channel."""
    made, queue = _queue(s, *bodies, lanes=lanes, arguments={"x-single-active-consumer": True})
    for tag, lane in zip(tags, made, strict=False):
        lane.call("basic.consume", queue=queue, tag=tag)
    return made, queue


@case
def a_prefetch_is_of_its_channel(s: Scene) -> None:
    (one, two), queue = _queue(s, *"12345")
    one.call("basic.qos", count=2, **{"global": True})
    one.call("basic.consume", queue=queue, tag="one")
    one.deliveries(2)
    one.nothing()
    two.call("basic.consume", queue=queue, tag="two")
    two.deliveries(3)
    one.send("basic.ack", delivery=2, multiple=True)
    one.nothing()


@case
def a_prefetch_for_consumers_is_of_its_channel(s: Scene) -> None:
    (one, two), queue = _queue(s, *"1234")
    one.call("basic.qos", count=1)
    two.call("basic.consume", queue=queue, tag="two")
    two.deliveries(4)
    one.call("basic.consume", queue=queue, tag="one")
    one.nothing()


@case
def two_channels_share_a_queue(s: Scene) -> None:
    (one, two), queue = _queue(s, *"123456")
    for lane, tag in ((one, "one"), (two, "two")):
        lane.call("basic.qos", count=2, **{"global": True})
        lane.call("basic.consume", queue=queue, tag=tag)
        lane.deliveries(2)
        lane.nothing()
    two.send("basic.ack", delivery=1)
    two.deliveries(1)
    one.nothing()
    one.send("basic.ack", delivery=2)
    one.deliveries(1)


@case
def two_connections_share_a_queue(s: Scene) -> None:
    queue = s.name()
    one, two = s.wire().channel(), s.wire().channel()
    one.call("queue.declare", queue=queue)
    for body in "12345":
        one.confirmed(queue, body)
    for lane, tag in ((one, "one"), (two, "two")):
        lane.call("basic.qos", count=1)
        lane.call("basic.consume", queue=queue, tag=tag)
        lane.deliveries(1)
    two.send("basic.ack", delivery=1)
    two.deliveries(1)
    one.wire.close()
    two.send("basic.ack", delivery=2)
    two.deliveries(1)
    two.send("basic.ack", delivery=3)
    two.deliveries(1)


@case
def a_prefetch_of_the_channel_over_two_queues(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("basic.qos", count=3, **{"global": True})
    for word in ("one", "two"):
        lane.call("queue.declare", queue=s.name(word))
        for body in "12":
            lane.confirmed(s.name(word), body)
    lane.call("basic.consume", queue=s.name("one"), tag="one")
    lane.deliveries(2)
    lane.call("basic.consume", queue=s.name("two"), tag="two")
    lane.deliveries(1)
    lane.nothing()
    lane.send("basic.ack", delivery=1)
    lane.deliveries(1)


@case
def a_prefetch_of_the_channel_lowered(s: Scene) -> None:
    (lane, _), queue = _queue(s, *"123456")
    lane.call("basic.qos", count=3, **{"global": True})
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(3)
    lane.call("basic.qos", count=1, **{"global": True})
    lane.send("basic.ack", delivery=1)
    lane.nothing()
    lane.send("basic.ack", delivery=2)
    lane.nothing()
    lane.send("basic.ack", delivery=3)
    lane.deliveries(1)
    lane.nothing()


@case
def a_prefetch_of_the_channel_given_to_a_consumer_that_holds(s: Scene) -> None:
    (lane, _), queue = _queue(s, *"123")
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(3)
    lane.call("basic.qos", count=2, **{"global": True})
    lane.confirmed(queue, "4")
    lane.nothing()
    lane.send("basic.ack", delivery=2, multiple=True)
    lane.deliveries(1)


@case
def a_prefetch_counts_rejects_as_acks(s: Scene) -> None:
    (lane, _), queue = _queue(s, *"12345")
    lane.call("basic.qos", count=2)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)
    lane.send("basic.reject", delivery=1)
    lane.deliveries(1)
    lane.send("basic.nack", delivery=3, multiple=True)
    lane.deliveries(2)


@case
def a_prefetch_of_zero_is_none(s: Scene) -> None:
    (lane, _), queue = _queue(s, *"123")
    lane.call("basic.qos", count=1)
    lane.call("basic.qos", count=0)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(3)


@case
def the_largest_prefetch(s: Scene) -> None:
    (lane, _), queue = _queue(s, *"123")
    lane.call("basic.qos", count=65535)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(3)
    lane.call("basic.qos", count=65535, **{"global": True})
    lane.confirmed(queue, "4")
    lane.deliveries(1)


@case
def acks_of_one_consumer_make_no_room_for_another(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("basic.qos", count=1)
    for word in ("one", "two"):
        lane.call("queue.declare", queue=s.name(word))
        for body in "12":
            lane.confirmed(s.name(word), body)
        lane.call("basic.consume", queue=s.name(word), tag=word)
        lane.deliveries(1)
    lane.send("basic.ack", delivery=2)
    lane.deliveries(1)
    lane.nothing()


@case
def a_cancelled_consumer_still_counts_for_its_channel(s: Scene) -> None:
    (lane, _), queue = _queue(s, *"1234")
    lane.call("basic.qos", count=2, **{"global": True})
    lane.call("basic.consume", queue=queue, tag="one")
    lane.deliveries(2)
    lane.call("basic.cancel", tag="one")
    lane.call("basic.consume", queue=queue, tag="two")
    lane.nothing()
    lane.send("basic.ack", delivery=1)
    lane.deliveries(1)
    lane.nothing()


@case
def consumers_without_acks_do_not_count_for_their_channel(s: Scene) -> None:
    (lane, _), queue = _queue(s, *"12")
    lane.call("basic.qos", count=1, **{"global": True})
    lane.call("basic.consume", queue=queue, tag="no", no_ack=True)
    lane.deliveries(2)
    lane.call("basic.cancel", tag="no")
    for body in "345":
        lane.confirmed(queue, body)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(1)
    lane.nothing()


@case
def a_prefetch_of_a_channel_opened_again(s: Scene) -> None:
    (lane, _), queue = _queue(s, *"123")
    lane.call("basic.qos", count=1)
    lane.call("basic.qos", count=1, **{"global": True})
    lane.call("channel.close", code=200, text="bye")
    lane.open()
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(3)


@case
def quorum_with_a_prefetch_of_the_channel(s: Scene) -> None:
    """RabbitMQ's quorum queues know it in a way of their own."""
    (lane, _), queue = _queue(s, *"1234", durable=True, arguments={"x-queue-type": "quorum"})
    lane.call("basic.qos", count=2)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)
    lane.nothing()
    lane.send("basic.ack", delivery=2, multiple=True)
    lane.deliveries(2)


# ---- priorities


@case
def priorities_over_channels(s: Scene) -> None:
    (one, two, three), queue = _queue(s, lanes=3)
    for lane, tag, priority in ((one, "low", -5), (two, "none", 0), (three, "high", 7)):
        lane.call("basic.qos", count=1)
        lane.call("basic.consume", queue=queue, tag=tag, arguments={"x-priority": priority} if priority else {})
    for body, lane in (("1", three), ("2", two), ("3", one)):
        one.confirmed(queue, body)
        lane.deliveries(1)
    one.confirmed(queue, "4")
    two.send("basic.ack", delivery=1)
    two.deliveries(1)


@case
def a_higher_priority_comes_later(s: Scene) -> None:
    (one, two), queue = _queue(s)
    one.call("basic.consume", queue=queue, tag="one")
    one.confirmed(queue, "1")
    one.deliveries(1)
    two.call("basic.consume", queue=queue, tag="two", arguments={"x-priority": 1})
    for body in "23":
        one.confirmed(queue, body)
    two.deliveries(2)
    one.nothing()
    two.call("basic.cancel", tag="two")
    one.confirmed(queue, "4")
    one.deliveries(1)


@case
def what_a_high_priority_gives_back_comes_to_it_again(s: Scene) -> None:
    (one, two), queue = _queue(s)
    one.call("basic.consume", queue=queue, tag="low")
    two.call("basic.consume", queue=queue, tag="high", arguments={"x-priority": 1})
    one.confirmed(queue, "1")
    two.deliveries(1)
    two.send("basic.nack", delivery=1, requeue=True)
    two.deliveries(1)
    one.nothing()


@case
def the_largest_priorities(s: Scene) -> None:
    (one, two), queue = _queue(s)
    one.call("basic.consume", queue=queue, tag="one", arguments={"x-priority": Typed("l", 2**62)})
    two.call("basic.consume", queue=queue, tag="two", arguments={"x-priority": Typed("l", 2**62 + 1)})
    one.confirmed(queue, "1")
    two.deliveries(1)
    one.nothing()


@case
def equal_priorities_take_turns(s: Scene) -> None:
    (lane, other), queue = _queue(s)
    other.call("basic.consume", queue=queue, tag="low")
    for tag in ("one", "two"):
        lane.call("basic.consume", queue=queue, tag=tag, arguments={"x-priority": 3})
    for body in "1234":
        lane.confirmed(queue, body)
        lane.deliveries(1)
    other.nothing()


@case
def a_priority_and_an_exclusive_consumer(s: Scene) -> None:
    (one, two), queue = _queue(s)
    one.call("basic.consume", queue=queue, tag="one", exclusive=True, arguments={"x-priority": -1})
    two.call("basic.consume", queue=queue, tag="two", arguments={"x-priority": 9})


# ---- single active consumers


@case
def single_active_in_the_order_of_coming(s: Scene) -> None:
    (one, two, three), queue = _single(s, lanes=3, tags="abc")
    one.confirmed(queue, "1")
    one.deliveries(1)
    two.call("basic.cancel", tag="b")
    one.send("basic.ack", delivery=1)
    one.call("basic.cancel", tag="a")
    one.confirmed(queue, "2")
    three.deliveries(1)


@case
def single_active_again_is_the_last(s: Scene) -> None:
    (one, two), queue = _single(s, tags="ab")
    one.call("basic.cancel", tag="a")
    one.call("basic.consume", queue=queue, tag="a")
    one.confirmed(queue, "1")
    two.deliveries(1)
    one.nothing()


@case
def single_active_over_connections(s: Scene) -> None:
    queue = s.name()
    one, two = s.wire().channel(), s.wire().channel()
    one.call("queue.declare", queue=queue, arguments={"x-single-active-consumer": True})
    one.call("basic.consume", queue=queue, tag="a")
    two.call("basic.consume", queue=queue, tag="b")
    for body in "123":
        two.confirmed(queue, body)
    one.deliveries(3)
    one.send("basic.ack", delivery=1)
    one.alive()
    one.wire.close()
    two.deliveries(2)


@case
def single_active_within_a_prefetch(s: Scene) -> None:
    (one, two), queue = _queue(s, *"1234", arguments={"x-single-active-consumer": True})
    one.call("basic.qos", count=1)
    one.call("basic.consume", queue=queue, tag="a")
    two.call("basic.consume", queue=queue, tag="b")
    one.deliveries(1)
    one.nothing()
    two.nothing()
    one.send("basic.ack", delivery=1)
    one.deliveries(1)
    one.call("basic.cancel", tag="a")
    two.nothing()
    one.send("basic.nack", delivery=2, requeue=True)
    two.deliveries(3)
    two.nothing()


@case
def single_active_without_acks(s: Scene) -> None:
    (one, two), queue = _queue(s, arguments={"x-single-active-consumer": True})
    one.call("basic.consume", queue=queue, tag="a", no_ack=True)
    two.call("basic.consume", queue=queue, tag="b", no_ack=True)
    for body in "12":
        one.confirmed(queue, body)
    one.deliveries(2)
    one.call("basic.cancel", tag="a")
    one.confirmed(queue, "3")
    two.deliveries(1)


@case
def single_active_with_priorities(s: Scene) -> None:
    (one, two), queue = _queue(s, arguments={"x-single-active-consumer": True})
    one.call("basic.consume", queue=queue, tag="a", arguments={"x-priority": 1})
    two.call("basic.consume", queue=queue, tag="b", arguments={"x-priority": 5})
    one.confirmed(queue, "1")
    one.deliveries(1)
    two.nothing()


@case
def single_active_with_priorities_among_those_who_wait(s: Scene) -> None:
    (one, two, three), queue = _queue(s, lanes=3, arguments={"x-single-active-consumer": True})
    for lane, tag, priority in ((one, "a", 9), (two, "b", 1), (three, "c", 5)):
        lane.call("basic.consume", queue=queue, tag=tag, arguments={"x-priority": priority})
    one.call("basic.cancel", tag="a")
    one.confirmed(queue, "1")
    three.deliveries(1)
    two.nothing()


@case
def single_active_and_a_deleted_queue(s: Scene) -> None:
    (one, two), queue = _single(s, "1", tags="ab")
    one.deliveries(1)
    one.call("queue.delete", queue=queue)
    one.expect("basic.cancel")
    two.expect("basic.cancel")


@case
def single_active_after_an_error_of_its_channel(s: Scene) -> None:
    (one, two), queue = _single(s, *"12", tags="ab")
    one.deliveries(2)
    one.call("queue.declare", queue=s.name("missing"), passive=True)
    two.deliveries(2)
    one.again()
    one.call("basic.consume", queue=queue, tag="a")
    one.nothing()


@case
def single_active_of_one_channel(s: Scene) -> None:
    (lane, _), queue = _queue(s, arguments={"x-single-active-consumer": True})
    for tag in ("a", "b"):
        lane.call("basic.consume", queue=queue, tag=tag)
    for body in "12":
        lane.confirmed(queue, body)
    lane.deliveries(2)
    lane.call("basic.cancel", tag="a")
    lane.confirmed(queue, "3")
    lane.deliveries(1)
    lane.send("basic.recover", requeue=True)
    lane.deliveries(3)
