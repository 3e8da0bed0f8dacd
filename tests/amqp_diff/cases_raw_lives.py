"""How long messages and queues live: expiration behind the head, deaths in circles, their counts, leases of queues."""

from typing import Any

from amqp_diff.scene import Scene, case
from amqp_diff.wire import Lane


def _declared(s: Scene, lane: Lane, word: str, to: str | None = None, exchange: str = "", **arguments: Any) -> str:
    """A queue whose dead letters go on, if it is said where."""
    given = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    if to is not None:
        given |= {"x-dead-letter-exchange": exchange} | ({"x-dead-letter-routing-key": to} if to else {})
    lane.call("queue.declare", queue=s.name(word), arguments=given)
    return s.name(word)


def _dead(lane: Lane, queue: str, count: int = 1) -> None:
    """Take dead letters as they come."""
    lane.call("basic.consume", queue=queue, tag=f"dead-{queue}", no_ack=True)
    lane.deliveries(count)
    lane.call("basic.cancel", tag=f"dead-{queue}")


def _rejected(lane: Lane, queue: str) -> None:
    """A message of the queue is rejected when it comes."""
    lane.call("basic.consume", queue=queue, tag="once")
    found = lane.deliveries(1)
    lane.send("basic.reject", delivery=found[0]["delivery"])
    lane.call("basic.cancel", tag="once")


@case
def a_short_expiration_behind_a_long_one(s: Scene) -> None:
    lane = s.wire().channel()
    dead = _declared(s, lane, "dead")
    queue = _declared(s, lane, "q", dead)
    lane.confirmed(queue, "long", properties={"expiration": "60000"})
    lane.confirmed(queue, "short", properties={"expiration": "50"})
    s.pause(0.6)
    lane.message_count(queue)
    lane.message_count(dead)
    lane.call("basic.consume", queue=queue, tag="t", no_ack=True)
    lane.deliveries(1)
    _dead(lane, dead)
    lane.nothing()


@case
def a_short_expiration_behind_one_that_has_none(s: Scene) -> None:
    lane = s.wire().channel()
    queue = _declared(s, lane, "q")
    for body, properties in (("none", {}), ("short", {"expiration": "50"}), ("end", {})):
        lane.confirmed(queue, body, properties=properties)
    s.pause(0.6)
    lane.message_count(queue)
    lane.call("basic.consume", queue=queue, tag="t", no_ack=True)
    lane.deliveries(2)
    lane.nothing()


@case
def a_short_expiration_behind_one_that_is_unacked(s: Scene) -> None:
    lane = s.wire().channel()
    dead = _declared(s, lane, "dead")
    queue = _declared(s, lane, "q", dead)
    lane.confirmed(queue, "none")
    lane.confirmed(queue, "short", properties={"expiration": "300"})
    lane.call("basic.get", queue=queue)
    _dead(lane, dead)
    lane.message_count(queue)


@case
def what_expires_goes_before_a_consumer_comes(s: Scene) -> None:
    lane = s.wire().channel()
    queue = _declared(s, lane, "q")
    for number in range(3):
        lane.confirmed(queue, f"short {number}", properties={"expiration": "50"})
    lane.confirmed(queue, "end")
    s.pause(0.6)
    lane.call("basic.consume", queue=queue, tag="t", no_ack=True)
    lane.deliveries(1)
    lane.nothing()


@case
def an_expiration_of_zero(s: Scene) -> None:
    lane = s.wire().channel()
    dead = _declared(s, lane, "dead")
    queue = _declared(s, lane, "q", dead)
    lane.confirmed(queue, "nobody waits", properties={"expiration": "0"})
    _dead(lane, dead)
    lane.call("basic.consume", queue=queue, tag="t", no_ack=True)
    lane.confirmed(queue, "somebody waits", properties={"expiration": "0"})
    lane.deliveries(1)


@case
def a_message_ttl_below_its_expiration_and_above(s: Scene) -> None:
    lane = s.wire().channel()
    dead = _declared(s, lane, "dead")
    queue = _declared(s, lane, "q", dead, message_ttl=50)
    lane.confirmed(queue, "longer by itself", properties={"expiration": "60000"})
    _dead(lane, dead)
    queue = _declared(s, lane, "r", dead, message_ttl=60000)
    lane.confirmed(queue, "shorter by itself", properties={"expiration": "50"})
    _dead(lane, dead)


@case
def the_time_of_a_message_goes_on_while_it_is_unacked(s: Scene) -> None:
    lane = s.wire().channel()
    dead = _declared(s, lane, "dead")
    queue = _declared(s, lane, "q", dead, message_ttl=1500)
    lane.confirmed(queue, "one")
    lane.call("basic.get", queue=queue)
    s.pause(1.8)
    lane.message_count(dead)
    lane.send("basic.nack", delivery=1, requeue=True)
    _dead(lane, dead)


@case
def what_expires_while_it_is_unacked_can_be_acked(s: Scene) -> None:
    lane = s.wire().channel()
    dead = _declared(s, lane, "dead")
    queue = _declared(s, lane, "q", dead, message_ttl=400)
    lane.confirmed(queue, "one")
    lane.call("basic.get", queue=queue)
    s.pause(0.7)
    lane.send("basic.ack", delivery=1)
    lane.alive()
    lane.message_count(dead)


@case
def through_two_queues_with_times(s: Scene) -> None:
    lane = s.wire().channel()
    end = _declared(s, lane, "end")
    second = _declared(s, lane, "second", end, message_ttl=60)
    first = _declared(s, lane, "first", second)
    lane.confirmed(first, "one", properties={"expiration": "50", "headers": {"mine": 1}})
    _dead(lane, end)


@case
def an_expiration_is_gone_after_a_reject(s: Scene) -> None:
    lane = s.wire().channel()
    dead = _declared(s, lane, "dead")
    queue = _declared(s, lane, "q", dead)
    lane.confirmed(queue, "one", properties={"expiration": "60000"})
    _rejected(lane, queue)
    _dead(lane, dead)


@case
def rejected_round_and_round(s: Scene) -> None:
    lane = s.wire().channel()
    queue = _declared(s, lane, "q", s.name("q"))
    lane.confirmed(queue, "one")
    lane.call("basic.consume", queue=queue, tag="t")
    for _ in range(4):
        found = lane.deliveries(1)
        lane.send("basic.reject", delivery=found[0]["delivery"])
    lane.deliveries(1)


@case
def by_two_reasons_round_and_round(s: Scene) -> None:
    """The first death of each kind is written down; both counts rise."""
    lane = s.wire().channel()
    wait = _declared(s, lane, "wait", s.name("q"), message_ttl=60)
    queue = _declared(s, lane, "q", wait)
    lane.confirmed(queue, "one")
    lane.call("basic.consume", queue=queue, tag="t")
    for _ in range(3):
        found = lane.deliveries(1)
        lane.send("basic.reject", delivery=found[0]["delivery"])
    lane.deliveries(1)


@case
def one_queue_two_reasons(s: Scene) -> None:
    lane = s.wire().channel()
    other = _declared(s, lane, "other", s.name("q"))
    queue = _declared(s, lane, "q", other)
    lane.confirmed(queue, "one", properties={"expiration": "60"})
    _rejected(lane, other)
    _rejected(lane, queue)
    _dead(lane, other)


@case
def a_dead_letter_for_two_queues(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("dlx"), type="fanout")
    for word in ("left", "right"):
        _declared(s, lane, word, s.name("end"))
        lane.call("queue.bind", queue=s.name(word), exchange=s.name("dlx"))
    end = _declared(s, lane, "end")
    queue = _declared(s, lane, "q", "", s.name("dlx"))
    lane.confirmed(queue, "one")
    _rejected(lane, queue)
    for word in ("left", "right"):
        _rejected(lane, s.name(word))
        _dead(lane, end)


@case
def a_dead_letter_pushes_another_out(s: Scene) -> None:
    lane = s.wire().channel()
    end = _declared(s, lane, "end")
    small = _declared(s, lane, "small", end, max_length=1)
    queue = _declared(s, lane, "q", small)
    for body in "12":
        lane.confirmed(queue, body)
        _rejected(lane, queue)
        if body == "1":
            lane.emptied(queue)
    _dead(lane, end)
    lane.call("basic.get", queue=small, no_ack=True)


@case
def a_dead_letter_for_a_queue_that_refuses(s: Scene) -> None:
    lane = s.wire().channel()
    small = _declared(s, lane, "small", max_length=1, overflow="reject-publish")
    queue = _declared(s, lane, "q", small)
    lane.confirmed(small, "is full")
    lane.confirmed(queue, "1")
    _rejected(lane, queue)
    s.pause(0.3)
    lane.message_count(small)


@case
def an_unroutable_dead_letter_takes_the_alternate_exchange(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("ae"), type="fanout")
    arguments = {"alternate-exchange": s.name("ae")}
    lane.call("exchange.declare", exchange=s.name("dlx"), type="direct", arguments=arguments)
    dead = _declared(s, lane, "dead")
    lane.call("queue.bind", queue=dead, exchange=s.name("ae"))
    queue = _declared(s, lane, "q", "nobody", s.name("dlx"))
    lane.confirmed(queue, "one")
    _rejected(lane, queue)
    _dead(lane, dead)


@case
def a_dead_letter_by_a_topic(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("dlx"), type="topic")
    dead = _declared(s, lane, "dead")
    lane.call("queue.bind", queue=dead, exchange=s.name("dlx"), routing_key="lost.*")
    queue = _declared(s, lane, "q", "lost.one", s.name("dlx"))
    other = _declared(s, lane, "r", "found.one", s.name("dlx"))
    for name in (queue, other):
        lane.confirmed(name, f"of {name}")
        _rejected(lane, name)
    _dead(lane, dead)
    lane.nothing()


@case
def a_dead_letter_by_headers(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("dlx"), type="headers")
    dead = _declared(s, lane, "dead")
    arguments = {"x-match": "all", "kind": "job"}
    lane.call("queue.bind", queue=dead, exchange=s.name("dlx"), arguments=arguments)
    queue = _declared(s, lane, "q", "", s.name("dlx"))
    lane.confirmed(queue, "no", properties={"headers": {"kind": "letter"}})
    _rejected(lane, queue)
    lane.confirmed(queue, "yes", properties={"headers": {"kind": "job"}})
    _rejected(lane, queue)
    _dead(lane, dead)


@case
def a_dead_letter_keeps_every_property(s: Scene) -> None:
    lane = s.wire().channel()
    dead = _declared(s, lane, "dead")
    queue = _declared(s, lane, "q", dead)
    properties = {
        "content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 5,
        "correlation_id": "c", "reply_to": "r", "message_id": "m", "timestamp": 1234567890, "type": "t",
        "user_id": "guest", "app_id": "a", "cluster_id": "l",
    }  # fmt: skip
    lane.confirmed(queue, "one", properties=properties)
    _rejected(lane, queue)
    _dead(lane, dead)


@case
def a_dead_letter_that_is_published_again_by_hand(s: Scene) -> None:
    """Its new death stands beside what it said of the old one, of another queue."""
    lane = s.wire().channel()
    dead = _declared(s, lane, "dead")
    queue = _declared(s, lane, "q", dead)
    headers = {"x-first-death-queue": "elsewhere", "x-first-death-reason": "expired", "x-first-death-exchange": ""}
    lane.confirmed(queue, "one", properties={"headers": headers})
    _rejected(lane, queue)
    _dead(lane, dead)


@case
def a_requeued_message_has_no_death(s: Scene) -> None:
    lane = s.wire().channel()
    dead = _declared(s, lane, "dead")
    queue = _declared(s, lane, "q", dead)
    lane.confirmed(queue, "one")
    lane.call("basic.get", queue=queue)
    lane.send("basic.reject", delivery=1, requeue=True)
    lane.call("basic.get", queue=queue)
    lane.send("basic.reject", delivery=2)
    _dead(lane, dead)


# ---- queues


@case
def a_lease_while_a_message_is_unacked(s: Scene) -> None:
    lane = s.wire().channel()
    queue = _declared(s, lane, "q", expires=400)
    lane.confirmed(queue, "one")
    lane.call("basic.get", queue=queue)
    s.pause(1.2)
    lane.call("queue.declare", queue=queue, passive=True)
    lane.again()
    lane.call("basic.get", queue=queue)


@case
def a_lease_begins_when_the_last_consumer_goes(s: Scene) -> None:
    lane = s.wire().channel()
    queue = _declared(s, lane, "q", expires=1000)
    for tag in ("one", "two"):
        lane.call("basic.consume", queue=queue, tag=tag)
    s.pause(1.4)
    lane.call("basic.cancel", tag="one")
    s.pause(1.4)
    lane.call("basic.cancel", tag="two")
    lane.call("queue.declare", queue=queue, passive=True)
    s.pause(2.0)
    lane.call("queue.declare", queue=queue, passive=True)


@case
def a_lease_after_the_connection_of_its_consumer(s: Scene) -> None:
    one, two = s.wire(), s.wire()
    lane, other = one.channel(), two.channel()
    queue = _declared(s, lane, "q", expires=500)
    lane.call("basic.consume", queue=queue, tag="t")
    s.pause(0.9)
    one.close()
    s.pause(1.5)
    other.call("queue.declare", queue=queue, passive=True)


@case
def a_lease_is_renewed_by_the_same_declaration(s: Scene) -> None:
    lane = s.wire().channel()
    for _ in range(3):
        _declared(s, lane, "q", expires=1500)
        s.just(0.8)
    lane.call("queue.declare", queue=s.name(), passive=True)


@case
def a_lease_is_not_renewed_by_a_binding(s: Scene) -> None:
    lane = s.wire().channel()
    queue = _declared(s, lane, "q", expires=1200)
    for number in range(3):
        s.just(0.7)
        lane.send("queue.bind", queue=queue, exchange="amq.fanout", routing_key=str(number), nowait=True)
    lane.alive()


@case
def a_queue_whose_lease_ends_takes_its_bindings(s: Scene) -> None:
    lane = s.wire().channel()
    queue = _declared(s, lane, "q", expires=200)
    lane.call("queue.bind", queue=queue, exchange="amq.direct", routing_key=s.name("k"))
    s.pause(1.2)
    lane.publish(s.name("k"), "nowhere", "amq.direct", mandatory=True)
    lane.expect("basic.return")
    _declared(s, lane, "q")
    lane.publish(s.name("k"), "nowhere", "amq.direct", mandatory=True)
    lane.expect("basic.return")
