"""Transactions: acks, nacks and publishes together, and what else a channel does meanwhile."""

from amqp_diff.scene import Scene, case
from amqp_diff.wire import Lane


def _queue(s: Scene, *bodies: str) -> tuple[Lane, Lane, str]:
    """Two channels, the first of them with transactions, and a queue with these bodies, unsaid."""
    wire = s.wire()
    lane, other = wire.channel(), wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    for body in bodies:
        lane.confirmed(queue, body)
    lane.call("tx.select")
    return lane, other, queue


def _all(lane: Lane, queue: str, count: int) -> None:
    """Take so many, and see that there is no more."""
    for _ in range(count + 1):
        lane.call("basic.get", queue=queue, no_ack=True)


@case
def an_ack_and_a_publish_commit_together(s: Scene) -> None:
    lane, other, queue = _queue(s, "job")
    lane.call("queue.declare", queue=s.name("done"))
    lane.call("basic.get", queue=queue)
    lane.publish(s.name("done"), "result")
    lane.send("basic.ack", delivery=1)
    lane.alive()
    other.message_count(s.name("done"))
    lane.call("tx.commit")
    other.message_count(s.name("done"))
    lane.call("channel.close", code=200, text="bye")
    other.call("basic.get", queue=queue)


@case
def an_ack_and_a_publish_are_rolled_back_together(s: Scene) -> None:
    lane, other, queue = _queue(s, "job")
    lane.call("queue.declare", queue=s.name("done"))
    lane.call("basic.get", queue=queue)
    lane.publish(s.name("done"), "result")
    lane.send("basic.ack", delivery=1)
    lane.call("tx.rollback")
    other.message_count(s.name("done"))
    lane.call("channel.close", code=200, text="bye")
    other.call("basic.get", queue=queue)


@case
def a_nack_requeues_at_the_commit(s: Scene) -> None:
    lane, other, queue = _queue(s, "1", "2")
    lane.call("basic.get", queue=queue)
    lane.send("basic.nack", delivery=1, requeue=True)
    lane.alive()
    other.message_count(queue)
    lane.call("tx.commit")
    _all(other, queue, 2)


@case
def a_reject_dead_letters_at_the_commit(s: Scene) -> None:
    lane, other, _ = _queue(s)
    queue, dead = s.name("dying"), s.name("dead")
    lane.call("queue.declare", queue=dead)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    lane.call("queue.declare", queue=queue, arguments=arguments)
    lane.confirmed(queue, "one")
    lane.call("basic.get", queue=queue)
    lane.send("basic.reject", delivery=1)
    lane.alive()
    other.message_count(dead)
    lane.call("tx.commit")
    other.call("basic.consume", queue=dead, tag="dead", no_ack=True)
    other.deliveries(1)


@case
def acks_and_nacks_in_one_transaction(s: Scene) -> None:
    lane, other, queue = _queue(s, *"12345")
    for _ in range(5):
        lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=2)
    lane.send("basic.nack", delivery=3, multiple=True, requeue=True)
    lane.send("basic.reject", delivery=4, requeue=True)
    lane.send("basic.ack", delivery=5)
    lane.call("tx.commit")
    _all(other, queue, 3)


@case
def an_ack_twice_in_one_transaction(s: Scene) -> None:
    lane, _other, queue = _queue(s, "1")
    lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=1)
    lane.alive()
    lane.send("basic.ack", delivery=1)
    lane.call("tx.commit")


@case
def an_unknown_tag_forgets_the_transaction(s: Scene) -> None:
    lane, other, queue = _queue(s, "1")
    lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=1)
    lane.publish(queue, "never")
    lane.send("basic.nack", delivery=9)
    lane.call("tx.commit")
    _all(other, queue, 1)


@case
def a_rollback_then_an_ack_of_all(s: Scene) -> None:
    lane, other, queue = _queue(s, *"1234")
    for _ in range(3):
        lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=2, multiple=True)
    lane.call("tx.rollback")
    lane.send("basic.ack", delivery=0, multiple=True)
    lane.call("tx.commit")
    lane.call("channel.close", code=200, text="bye")
    _all(other, queue, 1)


@case
def a_rollback_of_a_nack(s: Scene) -> None:
    lane, other, queue = _queue(s, *"12")
    for _ in range(2):
        lane.call("basic.get", queue=queue)
    lane.send("basic.nack", delivery=2, multiple=True)
    lane.call("tx.rollback")
    other.message_count(queue)
    lane.send("basic.nack", delivery=2, multiple=True, requeue=True)
    lane.call("tx.commit")
    _all(other, queue, 2)


@case
def recover_in_a_transaction(s: Scene) -> None:
    lane, _other, queue = _queue(s, *"123")
    for _ in range(3):
        lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=2)
    lane.call("basic.recover", requeue=True)
    lane.message_count(queue)
    lane.call("tx.commit")
    _all(lane, queue, 2)


@case
def a_prefetch_in_a_transaction(s: Scene) -> None:
    lane, _other, queue = _queue(s, *"123")
    lane.call("basic.qos", count=1)
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(1)
    lane.send("basic.ack", delivery=1)
    lane.nothing()
    lane.call("tx.commit")
    lane.deliveries(1)
    lane.nothing()


@case
def a_prefetch_of_the_channel_in_a_transaction(s: Scene) -> None:
    lane, _other, queue = _queue(s, *"123")
    lane.call("basic.qos", count=1, **{"global": True})
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(1)
    lane.send("basic.ack", delivery=1)
    lane.nothing()
    lane.call("tx.commit")
    lane.deliveries(1)
    lane.nothing()


@case
def cancelled_between_an_ack_and_its_commit(s: Scene) -> None:
    lane, other, queue = _queue(s, *"12")
    lane.call("basic.consume", queue=queue, tag="t")
    lane.deliveries(2)
    lane.send("basic.ack", delivery=1)
    lane.call("basic.cancel", tag="t")
    lane.call("tx.commit")
    lane.call("channel.close", code=200, text="bye")
    _all(other, queue, 1)


@case
def a_get_without_acks_is_no_part_of_it(s: Scene) -> None:
    lane, other, queue = _queue(s, "1")
    lane.call("basic.get", queue=queue, no_ack=True)
    lane.call("tx.rollback")
    _all(other, queue, 0)


@case
def declarations_are_no_part_of_it(s: Scene) -> None:
    lane, other, _ = _queue(s)
    lane.call("queue.declare", queue=s.name("new"))
    lane.call("queue.bind", queue=s.name("new"), exchange="amq.direct", routing_key=s.name("k"))
    lane.call("tx.rollback")
    other.confirmed(s.name("k"), "one", exchange="amq.direct")
    other.message_count(s.name("new"))


@case
def routed_when_it_is_published_or_committed(s: Scene) -> None:
    lane, other, _ = _queue(s)
    queue = s.name("later")
    lane.publish(queue, "before the queue was there", mandatory=True)
    lane.alive()
    other.call("queue.declare", queue=queue)
    lane.send("tx.commit")
    lane.expect("basic.return", "tx.commit-ok")
    lane.nothing("basic.return", "tx.commit-ok")
    other.message_count(queue)


@case
def a_queue_deleted_before_the_commit(s: Scene) -> None:
    lane, other, queue = _queue(s, "1")
    lane.call("basic.get", queue=queue)
    lane.publish(queue, "2")
    lane.send("basic.ack", delivery=1)
    lane.alive()
    other.call("queue.delete", queue=queue)
    lane.call("tx.commit")
    lane.alive()


@case
def an_exchange_deleted_before_the_commit(s: Scene) -> None:
    lane, other, queue = _queue(s, "1")
    lane.call("exchange.declare", exchange=s.name("x"), type="fanout")
    lane.call("queue.bind", queue=queue, exchange=s.name("x"))
    lane.call("basic.get", queue=queue)
    lane.publish("", "2", s.name("x"))
    lane.send("basic.ack", delivery=1)
    lane.alive()
    other.call("exchange.delete", exchange=s.name("x"))
    lane.call("tx.commit")
    _all(other, queue, 1)


@case
def bound_and_unbound_before_the_commit(s: Scene) -> None:
    lane, other, queue = _queue(s)
    later = s.name("later")
    lane.call("exchange.declare", exchange=s.name("x"), type="fanout")
    lane.call("queue.declare", queue=later)
    lane.call("queue.bind", queue=queue, exchange=s.name("x"))
    lane.publish("", "1", s.name("x"))
    lane.alive()
    other.call("queue.unbind", queue=queue, exchange=s.name("x"))
    other.call("queue.bind", queue=later, exchange=s.name("x"))
    lane.call("tx.commit")
    _all(other, queue, 1)
    _all(other, later, 0)


@case
def a_missing_exchange_forgets_the_transaction(s: Scene) -> None:
    lane, other, queue = _queue(s)
    lane.publish(queue, "1")
    lane.publish("k", "x", s.name("missing"))
    lane.call("tx.commit")
    lane.again()
    lane.call("tx.commit")
    lane.again()
    other.message_count(queue)


@case
def a_queue_that_refuses(s: Scene) -> None:
    lane, other, _ = _queue(s)
    queue = s.name("small")
    lane.call("queue.declare", queue=queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for body in "12":
        lane.publish(queue, body)
    lane.call("tx.commit")
    _all(other, queue, 1)


@case
def acks_of_a_transaction_that_a_queue_refuses(s: Scene) -> None:
    lane, other, queue = _queue(s, "job")
    small = s.name("small")
    lane.call("queue.declare", queue=small, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    lane.call("basic.get", queue=queue)
    lane.publish(small, "result")
    lane.send("basic.ack", delivery=1)
    lane.call("tx.commit")
    other.call("basic.get", queue=queue)


@case
def two_channels_each_with_its_own(s: Scene) -> None:
    lane, other, queue = _queue(s)
    other.call("tx.select")
    lane.publish(queue, "1")
    other.publish(queue, "2")
    other.call("tx.commit")
    lane.message_count(queue)
    lane.call("tx.commit")
    _all(lane, queue, 2)


@case
def what_was_published_before_select(s: Scene) -> None:
    wire = s.wire()
    lane = wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.publish(queue, "1")
    lane.call("tx.select")
    lane.publish(queue, "2")
    lane.call("tx.rollback")
    _all(lane, queue, 1)


@case
def many_in_order(s: Scene) -> None:
    lane, other, queue = _queue(s)
    for number in range(30):
        lane.publish(queue, str(number), properties={"delivery_mode": 1 + number % 2})
    lane.call("tx.commit")
    other.call("basic.consume", queue=queue, tag="t", no_ack=True)
    other.deliveries(30)


@case
def returns_and_acks_in_one_commit(s: Scene) -> None:
    lane, other, queue = _queue(s, "1")
    lane.call("basic.get", queue=queue)
    lane.publish(s.name("nobody"), "back", mandatory=True)
    lane.publish(queue, "2", mandatory=True)
    lane.send("basic.ack", delivery=1)
    lane.send("tx.commit")
    lane.expect("basic.return", "tx.commit-ok")
    lane.expect("basic.return", "tx.commit-ok")
    _all(other, queue, 1)


@case
def a_channel_opened_again_has_none(s: Scene) -> None:
    lane, _other, queue = _queue(s)
    lane.call("channel.close", code=200, text="bye")
    lane.open()
    lane.publish(queue, "at once")
    lane.call("tx.commit")
    lane.again()
    lane.call("confirm.select")
    _all(lane, queue, 1)
