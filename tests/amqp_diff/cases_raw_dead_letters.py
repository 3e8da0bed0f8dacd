"""Dead letters: each reason, x-death exactly, keys, copies, cycles, and what does not dead-letter."""

from typing import Any

from amqp_diff.scene import Scene, case
from amqp_diff.wire import Lane, Typed


def _queues(s: Scene, key: str | None = "dead", **arguments: Any) -> tuple[Lane, str, str]:
    """A channel, a queue whose dead letters go to another by the default exchange, and the other."""
    lane = s.wire().channel()
    queue, dead = s.name(), s.name("dead")
    lane.call("queue.declare", queue=dead)
    given = {"x-dead-letter-exchange": ""} | ({} if key is None else {"x-dead-letter-routing-key": s.name(key)})
    lane.call(
        "queue.declare", queue=queue, arguments=given | {name.replace("_", "-"): arguments[name] for name in arguments}
    )
    return lane, queue, dead


def _dead(lane: Lane, queue: str, count: int = 1) -> None:
    """Take dead letters as they come."""
    lane.call("basic.consume", queue=queue, tag=f"dead-{queue}", no_ack=True)
    lane.deliveries(count)
    lane.call("basic.cancel", tag=f"dead-{queue}")


@case
def rejected(s: Scene) -> None:
    lane, queue, dead = _queues(s)
    properties = {"headers": {"mine": 1}, "delivery_mode": 2, "message_id": "m", "priority": 3}
    lane.confirmed(queue, "one", properties=properties)
    lane.call("basic.get", queue=queue)
    lane.send("basic.reject", delivery=1)
    _dead(lane, dead)


@case
def nacked(s: Scene) -> None:
    lane, queue, dead = _queues(s)
    for body in "123":
        lane.confirmed(queue, body)
        lane.call("basic.get", queue=queue)
    lane.send("basic.nack", delivery=3, multiple=True)
    _dead(lane, dead, 3)


@case
def expired_in_the_queue(s: Scene) -> None:
    lane, queue, dead = _queues(s, x_message_ttl=100)
    lane.confirmed(queue, "one")
    _dead(lane, dead)


@case
def expired_by_its_own_expiration(s: Scene) -> None:
    lane, queue, dead = _queues(s)
    lane.confirmed(queue, "one", properties={"expiration": "100", "headers": {"mine": 1}})
    _dead(lane, dead)


@case
def pushed_out(s: Scene) -> None:
    lane, queue, dead = _queues(s, x_max_length=1)
    for body in "123":
        lane.confirmed(queue, body)
    _dead(lane, dead, 2)


@case
def pushed_out_by_bytes(s: Scene) -> None:
    lane, queue, dead = _queues(s, x_max_length_bytes=5)
    for body in ("aaa", "bbb", "c" * 6):
        lane.confirmed(queue, body)
    _dead(lane, dead, 3)


@case
def with_its_own_key(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("dlx"), type="topic")
    lane.call("queue.declare", queue=s.name("dead"))
    lane.call("queue.bind", queue=s.name("dead"), exchange=s.name("dlx"), routing_key="#")
    lane.call("queue.declare", queue=s.name(), arguments={"x-dead-letter-exchange": s.name("dlx")})
    lane.call("queue.bind", queue=s.name(), exchange="amq.topic", routing_key=f"{s.case}.#")
    lane.confirmed(f"{s.case}.key", "one", exchange="amq.topic")
    lane.call("basic.get", queue=s.name())
    lane.send("basic.reject", delivery=1)
    _dead(lane, s.name("dead"))


@case
def with_copies(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("dlx"), type="fanout")
    lane.call("queue.declare", queue=s.name("dead"))
    lane.call("queue.bind", queue=s.name("dead"), exchange=s.name("dlx"))
    lane.call("queue.declare", queue=s.name(), arguments={"x-dead-letter-exchange": s.name("dlx")})
    headers = {"CC": ["copy", "another"], "BCC": ["hidden"]}
    lane.confirmed(s.name(), "one", properties={"headers": headers})
    lane.call("basic.get", queue=s.name())
    lane.send("basic.reject", delivery=1)
    _dead(lane, s.name("dead"))


@case
def with_copies_and_a_new_key(s: Scene) -> None:
    lane, queue, dead = _queues(s)
    lane.call("queue.declare", queue=s.name("copy"))
    lane.confirmed(queue, "one", properties={"headers": {"CC": [s.name("copy")], "BCC": ["hidden"]}})
    lane.call("basic.get", queue=queue)
    lane.send("basic.reject", delivery=1)
    _dead(lane, dead)
    lane.message_count(s.name("copy"))


@case
def copies_are_routed_again_without_a_new_key(s: Scene) -> None:
    lane = s.wire().channel()
    for word in ("copy", "dead"):
        lane.call("queue.declare", queue=s.name(word))
    lane.call("exchange.declare", exchange=s.name("dlx"), type="direct")
    lane.call("queue.bind", queue=s.name("dead"), exchange=s.name("dlx"), routing_key=s.name("copy"))
    lane.call("queue.declare", queue=s.name(), arguments={"x-dead-letter-exchange": s.name("dlx")})
    lane.confirmed(s.name(), "one", properties={"headers": {"CC": [s.name("copy")]}})
    lane.call("basic.get", queue=s.name())
    lane.send("basic.reject", delivery=1)
    _dead(lane, s.name("dead"))


@case
def twice_through_the_same_queue(s: Scene) -> None:
    lane = s.wire().channel()
    one, two = s.name("one"), s.name("two")
    lane.call("queue.declare", queue=one, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": two})
    lane.call("queue.declare", queue=two, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": one})
    lane.confirmed(one, "round")
    lane.call("basic.consume", queue=one, tag="one")
    lane.call("basic.consume", queue=two, tag="two")
    for _ in range(4):
        found = lane.deliveries(1)
        lane.send("basic.reject", delivery=found[0]["delivery"])
    lane.deliveries(1)


@case
def a_cycle_by_expiry_alone_ends(s: Scene) -> None:
    lane = s.wire().channel()
    one, two = s.name("one"), s.name("two")
    for queue, other in ((one, two), (two, one)):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other, "x-message-ttl": 50}
        lane.call("queue.declare", queue=queue, arguments=arguments)
    lane.confirmed(one, "round")
    s.pause(1)
    for queue in (one, two):
        lane.message_count(queue)


@case
def a_cycle_into_itself_by_expiry_ends(s: Scene) -> None:
    lane = s.wire().channel()
    arguments = {"x-dead-letter-exchange": "", "x-message-ttl": 50}
    lane.call("queue.declare", queue=s.name(), arguments=arguments)
    lane.confirmed(s.name(), "round")
    s.pause(0.6)
    lane.message_count(s.name())


@case
def a_cycle_by_length_ends(s: Scene) -> None:
    lane = s.wire().channel()
    arguments = {"x-dead-letter-exchange": "", "x-max-length": 1}
    lane.call("queue.declare", queue=s.name(), arguments=arguments)
    for body in "12":
        lane.confirmed(s.name(), body)
    s.pause(0.3)
    lane.message_count(s.name())
    lane.call("basic.get", queue=s.name(), no_ack=True)


@case
def rejected_then_retried_with_a_delay(s: Scene) -> None:
    """The usual way to retry: rejected into a queue whose messages expire back."""
    lane = s.wire().channel()
    work, wait = s.name("work"), s.name("wait")
    lane.call("queue.declare", queue=work, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work, "x-message-ttl": 100}
    lane.call("queue.declare", queue=wait, arguments=arguments)
    lane.confirmed(work, "job")
    lane.call("basic.consume", queue=work, tag="t")
    for _ in range(3):
        found = lane.deliveries(1)
        lane.send("basic.reject", delivery=found[0]["delivery"])
    lane.deliveries(1)


@case
def two_reasons_in_one_queue(s: Scene) -> None:
    lane, queue, dead = _queues(s, x_message_ttl=100)
    lane.confirmed(queue, "one")
    lane.call("basic.consume", queue=dead, tag="t")
    found = lane.deliveries(1)
    lane.wire.say("the dead letter is published again with its headers, and rejected")
    headers = _as_sent(found[0].properties["headers"])
    lane.send("basic.ack", delivery=1)
    lane.call("basic.cancel", tag="t")
    lane.wire.say, said = (lambda line: None), lane.wire.say
    lane.confirmed(queue, "two", properties={"headers": headers})
    lane.wire.say = said
    lane.call("basic.consume", queue=dead, tag="u")
    lane.deliveries(1)


def _as_sent(value: Any) -> Any:
    """What a decoded table is when it is encoded again."""
    if isinstance(value, dict):
        return {key: _as_sent(one) for key, one in value.items()}
    if isinstance(value, list):
        if value[0] == "A":
            return [_as_sent(one) for one in value[1:]]
        return Typed(value[0], value[1] if len(value) == 2 else tuple(value[1:]))
    return value


@case
def a_forged_x_death(s: Scene) -> None:
    lane, queue, dead = _queues(s)
    for value in ("text", [], [{"queue": "q", "reason": "rejected", "count": 5}]):
        lane.confirmed(queue, "forged", properties={"headers": {"x-death": value, "x-first-death-queue": "mine"}})
        tag = lane.call("basic.get", queue=queue)["delivery"]
        lane.send("basic.reject", delivery=tag)
        _dead(lane, dead)


@case
def an_empty_table_in_x_death(s: Scene) -> None:
    lane, queue, dead = _queues(s)
    lane.confirmed(queue, "forged", properties={"headers": {"x-death": [{}]}})
    lane.call("basic.get", queue=queue)
    lane.send("basic.reject", delivery=1)
    _dead(lane, dead)


@case
def purged_deleted_and_expired_queues_drop(s: Scene) -> None:
    lane, queue, dead = _queues(s)
    lane.confirmed(queue, "purged")
    lane.call("queue.purge", queue=queue)
    lane.confirmed(queue, "deleted")
    lane.call("queue.delete", queue=queue)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-expires": 200}
    lane.call("queue.declare", queue=queue, arguments=arguments)
    lane.confirmed(queue, "expired with its queue")
    s.pause(1)
    lane.message_count(dead)


@case
def a_missing_dead_letter_exchange_drops(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("queue.declare", queue=s.name(), arguments={"x-dead-letter-exchange": s.name("missing")})
    lane.confirmed(s.name(), "one")
    lane.call("basic.get", queue=s.name())
    lane.send("basic.reject", delivery=1)
    lane.alive()
    lane.message_count(s.name())


@case
def a_dead_letter_exchange_declared_later(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("queue.declare", queue=s.name(), arguments={"x-dead-letter-exchange": s.name("dlx")})
    lane.confirmed(s.name(), "one")
    lane.call("exchange.declare", exchange=s.name("dlx"), type="fanout")
    lane.call("queue.declare", queue=s.name("dead"))
    lane.call("queue.bind", queue=s.name("dead"), exchange=s.name("dlx"))
    lane.call("basic.get", queue=s.name())
    lane.send("basic.reject", delivery=1)
    _dead(lane, s.name("dead"))


@case
def to_an_internal_exchange(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("dlx"), type="fanout", internal=True)
    lane.call("queue.declare", queue=s.name("dead"))
    lane.call("queue.bind", queue=s.name("dead"), exchange=s.name("dlx"))
    lane.call("queue.declare", queue=s.name(), arguments={"x-dead-letter-exchange": s.name("dlx")})
    lane.confirmed(s.name(), "one")
    lane.call("basic.get", queue=s.name())
    lane.send("basic.reject", delivery=1)
    _dead(lane, s.name("dead"))


@case
def through_three_queues(s: Scene) -> None:
    lane = s.wire().channel()
    words = ("a", "b", "c")
    for word, following in zip(words, (*words[1:], "end"), strict=True):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.name(following)}
        lane.call(
            "queue.declare", queue=s.name(word), arguments=arguments | ({"x-message-ttl": 50} if word == "b" else {})
        )
    lane.call("queue.declare", queue=s.name("end"))
    lane.confirmed(s.name("a"), "one")
    lane.call("basic.get", queue=s.name("a"))
    lane.send("basic.reject", delivery=1)
    lane.call("basic.consume", queue=s.name("c"), tag="c")
    lane.deliveries(1)
    lane.send("basic.reject", delivery=2)
    _dead(lane, s.name("end"))


@case
def through_four_queues_and_round_again(s: Scene) -> None:
    lane = s.wire().channel()
    words = ("a", "b", "c", "d")
    for word, following in zip(words, (*words[1:], "a"), strict=True):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.name(following)}
        lane.call("queue.declare", queue=s.name(word), arguments=arguments)
        lane.call("basic.consume", queue=s.name(word), tag=word)
    lane.confirmed(s.name("a"), "one")
    for _ in range(8):
        found = lane.deliveries(1)
        lane.send("basic.reject", delivery=found[0]["delivery"])
    lane.deliveries(1)


@case
def by_a_get_without_ack_nothing_dies(s: Scene) -> None:
    lane, queue, dead = _queues(s)
    lane.confirmed(queue, "one")
    lane.call("basic.get", queue=queue, no_ack=True)
    lane.message_count(dead)


@case
def requeued_above_the_length_drops_at_the_head(s: Scene) -> None:
    lane, queue, dead = _queues(s, x_max_length=1)
    lane.confirmed(queue, "1")
    lane.call("basic.get", queue=queue)
    lane.confirmed(queue, "2")
    lane.send("basic.nack", delivery=1, requeue=True)
    _dead(lane, dead)
    lane.call("basic.get", queue=queue, no_ack=True)
