"""Acks, nacks and rejects: which message comes back where, recover, cancelled consumers, queues that went meanwhile."""

from amqp_diff.scene import Scene, case, queue_with
from amqp_diff.wire import Lane


def _got(lane: Lane, queue: str, count: int) -> None:
    for _ in range(count):
        lane.call("basic.get", queue=queue)


def _left(lane: Lane, queue: str, count: int) -> None:
    """Take so many, and see that there is no more."""
    for _ in range(count + 1):
        lane.call("basic.get", queue=queue, no_ack=True)


@case
def the_last_first(s: Scene) -> None:
    lane, queue = queue_with(s, *"1234")
    _got(lane, queue, 3)
    for tag in (3, 2, 1):
        lane.send("basic.nack", delivery=tag, requeue=True)
    _left(lane, queue, 4)


@case
def one_of_the_middle_comes_before_newer_ones(s: Scene) -> None:
    lane, queue = queue_with(s, *"12345")
    _got(lane, queue, 3)
    lane.send("basic.nack", delivery=2, requeue=True)
    _got(lane, queue, 1)
    lane.send("basic.nack", delivery=3, requeue=True)
    lane.send("basic.nack", delivery=1, requeue=True)
    _left(lane, queue, 4)


@case
def a_nack_of_several_where_some_are_acked(s: Scene) -> None:
    lane, queue = queue_with(s, *"123456")
    _got(lane, queue, 5)
    lane.send("basic.ack", delivery=2)
    lane.send("basic.reject", delivery=3)
    lane.send("basic.nack", delivery=4, multiple=True, requeue=True)
    _left(lane, queue, 3)
    lane.send("basic.nack", delivery=5, multiple=True, requeue=True)
    _left(lane, queue, 1)


@case
def a_nack_of_several_up_to_a_tag_that_is_settled(s: Scene) -> None:
    lane, queue = queue_with(s, *"123")
    _got(lane, queue, 3)
    lane.send("basic.ack", delivery=2)
    lane.alive()
    lane.send("basic.nack", delivery=2, multiple=True, requeue=True)
    lane.alive()
    lane.again()
    _left(lane, queue, 2)


@case
def an_ack_of_several_up_to_a_tag_that_is_settled(s: Scene) -> None:
    lane, queue = queue_with(s, *"123")
    _got(lane, queue, 3)
    lane.send("basic.ack", delivery=3)
    lane.alive()
    lane.send("basic.ack", delivery=3, multiple=True)
    lane.alive()


@case
def a_consumer_gets_again_what_it_gave_back(s: Scene) -> None:
    lane, queue = queue_with(s, *"12345")
    lane.call("basic.qos", count=3)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(3)
    lane.send("basic.nack", delivery=3, multiple=True, requeue=True)
    lane.deliveries(3)
    lane.send("basic.ack", delivery=4)
    lane.deliveries(1)
    lane.nothing()


@case
def a_consumer_gives_back_one_of_three(s: Scene) -> None:
    lane, queue = queue_with(s, *"12345")
    lane.call("basic.qos", count=3)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(3)
    lane.send("basic.reject", delivery=2, requeue=True)
    lane.deliveries(1)
    lane.send("basic.ack", delivery=3, multiple=True)
    lane.deliveries(2)
    lane.nothing()


@case
def what_is_given_back_goes_to_who_has_room(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    one, two = wire.channel(), wire.channel()
    one.call("queue.declare", queue=queue)
    one.confirmed(queue, "1")
    one.call("basic.qos", count=1)
    one.call("basic.consume", queue=queue, tag="one")
    one.deliveries(1)
    two.call("basic.consume", queue=queue, tag="two")
    one.call("basic.cancel", tag="one")
    one.send("basic.nack", delivery=1, requeue=True)
    two.deliveries(1)
    two.nothing()


@case
def acks_after_a_delete(s: Scene) -> None:
    lane, queue = queue_with(s, *"123")
    _got(lane, queue, 3)
    lane.call("queue.delete", queue=queue)
    lane.send("basic.ack", delivery=1)
    lane.send("basic.nack", delivery=2, requeue=True)
    lane.send("basic.reject", delivery=3)
    lane.alive()
    lane.send("basic.ack", delivery=3)
    lane.alive()


@case
def acks_after_a_delete_and_a_new_queue(s: Scene) -> None:
    lane, queue = queue_with(s, *"12")
    _got(lane, queue, 2)
    lane.call("queue.delete", queue=queue)
    lane.call("queue.declare", queue=queue)
    lane.confirmed(queue, "new")
    lane.send("basic.nack", delivery=2, multiple=True, requeue=True)
    lane.alive()
    _left(lane, queue, 1)


@case
def requeued_after_a_purge(s: Scene) -> None:
    lane, queue = queue_with(s, *"1234")
    _got(lane, queue, 2)
    lane.call("queue.purge", queue=queue)
    lane.send("basic.nack", delivery=2, multiple=True, requeue=True)
    lane.confirmed(queue, "5")
    _left(lane, queue, 3)


@case
def acked_after_a_purge(s: Scene) -> None:
    lane, queue = queue_with(s, *"123")
    _got(lane, queue, 2)
    lane.call("queue.purge", queue=queue)
    lane.send("basic.ack", delivery=2, multiple=True)
    lane.alive()
    _left(lane, queue, 0)


@case
def a_delete_counts_what_is_ready(s: Scene) -> None:
    lane, queue = queue_with(s, *"123")
    _got(lane, queue, 1)
    lane.call("queue.delete", queue=queue)


@case
def delete_if_empty_with_unacked_messages(s: Scene) -> None:
    lane, queue = queue_with(s, "1")
    _got(lane, queue, 1)
    lane.call("queue.delete", queue=queue, if_empty=True)


@case
def purge_with_a_consumer(s: Scene) -> None:
    lane, queue = queue_with(s, *"1234")
    lane.call("basic.qos", count=2)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)
    lane.call("queue.purge", queue=queue)
    lane.send("basic.ack", delivery=2, multiple=True)
    lane.nothing()
    lane.confirmed(queue, "5")
    lane.deliveries(1)


@case
def several_queues_by_one_ack(s: Scene) -> None:
    lane = s.wire().channel()
    one, two = s.name("one"), s.name("two")
    for queue in (one, two):
        lane.call("queue.declare", queue=queue)
        for body in "12":
            lane.confirmed(queue, body)
    for queue in (one, two, two, one):
        lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=3, multiple=True)
    lane.call("basic.recover", requeue=True)
    _left(lane, one, 1)
    _left(lane, two, 0)


@case
def several_queues_by_one_nack(s: Scene) -> None:
    lane = s.wire().channel()
    one, two = s.name("one"), s.name("two")
    for queue in (one, two):
        lane.call("queue.declare", queue=queue)
        for body in "12":
            lane.confirmed(queue, body)
    for queue in (one, two, two, one):
        lane.call("basic.get", queue=queue)
    lane.call("queue.delete", queue=two)
    lane.send("basic.nack", delivery=4, multiple=True, requeue=True)
    _left(lane, one, 2)


@case
def recover_leaves_out_what_is_settled(s: Scene) -> None:
    lane, queue = queue_with(s, *"12345")
    _got(lane, queue, 4)
    lane.send("basic.ack", delivery=2)
    lane.send("basic.reject", delivery=4)
    lane.call("basic.recover", requeue=True)
    _left(lane, queue, 3)


@case
def recover_with_nothing_held(s: Scene) -> None:
    lane, queue = queue_with(s, "1")
    lane.call("basic.recover", requeue=True)
    lane.call("basic.get", queue=queue, no_ack=True)
    lane.call("basic.recover", requeue=True)
    _left(lane, queue, 0)


@case
def recover_is_of_its_channel(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    one, two = wire.channel(), wire.channel()
    one.call("queue.declare", queue=queue)
    for body in "12":
        one.confirmed(queue, body)
    one.call("basic.get", queue=queue)
    two.call("basic.get", queue=queue)
    two.call("basic.recover", requeue=True)
    _left(two, queue, 1)
    one.send("basic.ack", delivery=1)
    one.alive()


@case
def recover_within_a_prefetch(s: Scene) -> None:
    lane, queue = queue_with(s, *"1234")
    lane.call("basic.qos", count=2)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)
    lane.call("basic.recover", requeue=True)
    lane.deliveries(2)
    lane.nothing()
    lane.send("basic.ack", delivery=4, multiple=True)
    lane.deliveries(2)


@case
def recover_within_a_prefetch_of_the_channel(s: Scene) -> None:
    lane, queue = queue_with(s, *"1234")
    lane.call("basic.qos", count=2, **{"global": True})
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)
    lane.call("basic.recover", requeue=True)
    lane.deliveries(2)
    lane.nothing()


@case
def recover_for_two_queues_with_consumers(s: Scene) -> None:
    lane = s.wire().channel()
    for word in ("one", "two"):
        lane.call("queue.declare", queue=s.name(word))
        lane.confirmed(s.name(word), f"for {word}")
        lane.call("basic.consume", queue=s.name(word), tag=word)
        lane.deliveries(1)
    lane.send("basic.ack", delivery=1)
    lane.call("basic.recover", requeue=True)
    lane.deliveries(1)
    lane.nothing()


@case
def recover_async_with_a_consumer(s: Scene) -> None:
    lane, queue = queue_with(s, *"12")
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)
    lane.send("basic.recover-async", requeue=True)
    lane.deliveries(2)
    lane.nothing()


@case
def recover_async_without_requeue(s: Scene) -> None:
    lane, queue = queue_with(s, "1")
    _got(lane, queue, 1)
    lane.send("basic.recover-async")
    lane.alive()


@case
def an_old_tag_after_recover(s: Scene) -> None:
    lane, queue = queue_with(s, "1")
    _got(lane, queue, 1)
    lane.call("basic.recover", requeue=True)
    _got(lane, queue, 1)
    lane.send("basic.ack", delivery=1)
    lane.alive()


@case
def cancelled_then_recovered(s: Scene) -> None:
    lane, queue = queue_with(s, *"12")
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)
    lane.call("basic.cancel", tag="t")
    lane.call("basic.recover", requeue=True)
    lane.nothing()
    _left(lane, queue, 2)


@case
def cancelled_then_the_channel_ends(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    one, two = wire.channel(), wire.channel()
    one.call("queue.declare", queue=queue)
    for body in "123":
        one.confirmed(queue, body)
    one.call("basic.consume", queue=queue, tag="t")
    one.deliveries(3)
    one.send("basic.ack", delivery=2)
    one.call("basic.cancel", tag="t")
    two.message_count(queue)
    one.call("channel.close", code=200, text="bye")
    _left(two, queue, 2)


@case
def a_cancelled_tag_is_used_again(s: Scene) -> None:
    lane, queue = queue_with(s, *"12")
    lane.call("basic.qos", count=1)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(1)
    lane.call("basic.cancel", tag="t")
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(1)
    lane.send("basic.nack", delivery=1, requeue=True)
    lane.nothing()
    lane.send("basic.ack", delivery=2)
    lane.deliveries(1)


@case
def cancelled_with_a_prefetch_others_get_the_rest(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    one, two = wire.channel(), wire.channel()
    one.call("queue.declare", queue=queue)
    for body in "1234":
        one.confirmed(queue, body)
    one.call("basic.qos", count=2)
    one.call("basic.consume", queue=queue, tag="one")
    one.deliveries(2)
    one.call("basic.cancel", tag="one")
    two.call("basic.consume", queue=queue, tag="two")
    two.deliveries(2)
    two.nothing()


@case
def an_auto_delete_queue_with_unacked_messages(s: Scene) -> None:
    lane, queue = queue_with(s, *"12", auto_delete=True)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)
    lane.call("basic.cancel", tag="t")
    lane.send("basic.ack", delivery=1)
    lane.send("basic.nack", delivery=2, requeue=True)
    lane.alive()
    lane.call("queue.declare", queue=queue, passive=True)


@case
def redelivered_over_three_connections(s: Scene) -> None:
    queue = s.name()
    first = s.wire()
    lane = first.channel()
    lane.call("queue.declare", queue=queue)
    for body in "12":
        lane.confirmed(queue, body)
    lane.call("basic.get", queue=queue)
    first.close()
    second = s.wire()
    lane = second.channel()
    for _ in range(2):
        lane.call("basic.get", queue=queue)
    second.close()
    _left(s.wire().channel(), queue, 2)


@case
def returned_by_an_ended_channel_in_order(s: Scene) -> None:
    wire = s.wire()
    queue = s.name()
    one, two = wire.channel(), wire.channel()
    one.call("queue.declare", queue=queue)
    for body in "123456":
        one.confirmed(queue, body)
    for lane in (one, two, one, two):
        lane.call("basic.get", queue=queue)
    one.call("channel.close", code=200, text="bye")
    two.send("basic.reject", delivery=1, requeue=True)
    _left(two, queue, 5)


@case
def quorum_counts_deliveries_to_a_consumer(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, durable=True, arguments={"x-queue-type": "quorum"})
    lane.confirmed(queue, "one", properties={"headers": {"mine": 1}})
    lane.call("basic.qos", count=1)
    lane.call("basic.consume", queue=queue, tag="t")
    for tag in (1, 2, 3):
        lane.deliveries(1)
        lane.send("basic.nack", delivery=tag, requeue=True)
    lane.deliveries(1)


@case
def quorum_with_a_delivery_limit(s: Scene) -> None:
    lane = s.wire().channel()
    queue, dead = s.name(), s.name("dead")
    lane.call("queue.declare", queue=dead)
    arguments = {
        "x-queue-type": "quorum", "x-delivery-limit": 2,
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
    }  # fmt: skip
    lane.call("queue.declare", queue=queue, durable=True, arguments=arguments)
    lane.confirmed(queue, "one")
    lane.call("basic.qos", count=1)
    lane.call("basic.consume", queue=queue, tag="t")
    for tag in (1, 2, 3):
        lane.deliveries(1)
        lane.send("basic.nack", delivery=tag, requeue=True)
    lane.nothing()
    lane.call("basic.consume", queue=dead, tag="dead", no_ack=True)
    lane.deliveries(1)


@case
def quorum_with_a_delivery_limit_of_zero(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 0}
    lane.call("queue.declare", queue=queue, durable=True, arguments=arguments)
    lane.confirmed(queue, "one")
    lane.call("basic.qos", count=1)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(1)
    lane.send("basic.nack", delivery=1, requeue=True)
    lane.nothing()
    lane.emptied(queue)


@case
def a_get_beside_a_consumer(s: Scene) -> None:
    lane, queue = queue_with(s, *"1234")
    lane.call("basic.qos", count=1)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(1)
    _got(lane, queue, 2)
    lane.send("basic.nack", delivery=3, multiple=True, requeue=True)
    lane.deliveries(1)
    lane.message_count(queue)
    lane.nothing()


@case
def an_expired_message_that_comes_back(s: Scene) -> None:
    lane = s.wire().channel()
    dead = s.name("dead")
    lane.call("queue.declare", queue=dead)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    lane.call("queue.declare", queue=s.name("dying"), arguments=arguments)
    lane.confirmed(s.name("dying"), "one", properties={"expiration": "2000"})
    lane.call("basic.get", queue=s.name("dying"))
    s.pause(2.2)
    lane.send("basic.nack", delivery=1, requeue=True)
    lane.call("basic.consume", queue=dead, tag="dead", no_ack=True)
    lane.deliveries(1)
