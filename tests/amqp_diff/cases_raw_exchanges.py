"""Exchanges of all types, their arguments, bindings of queues and of exchanges, and where a message goes by them."""

from typing import Any

from amqp_diff.scene import Scene, case
from amqp_diff.wire import Lane, Typed, method


def _bound(
    s: Scene, kind: str, keys: dict[str, list[Any]], arguments: dict[str, Any] | None = None
) -> tuple[Lane, str]:
    """A channel, and an exchange with a queue for each word; a key is a routing key or the arguments of a binding."""
    lane = s.wire().channel()
    exchange = s.name("x")
    lane.call("exchange.declare", exchange=exchange, type=kind, arguments=arguments or {})
    for word, bindings in keys.items():
        queue = s.name(word)
        lane.call("queue.declare", queue=queue)
        for key in bindings:
            given = {"arguments": key} if isinstance(key, dict) else {"routing_key": key}
            lane.call("queue.bind", queue=queue, exchange=exchange, **given)
    return lane, exchange


def _arrived(s: Scene, lane: Lane, *words: str) -> None:
    """Say the bodies that lie in each queue, taking them."""
    for word in words:
        bodies = []
        while True:
            lane.wire.raw(_get(lane.number, s.name(word)))
            found = lane.wire.wait(lane.number, ["basic.get-ok", "basic.get-empty", "channel.close"])
            if found is None or found.name != "basic.get-ok":
                break
            assert found.body is not None
            bodies.append(found.body.decode())
        s.say(f"{word} has {bodies}")


def _get(channel: int, queue: str) -> bytes:
    return method(channel, "basic.get", {"queue": queue, "no_ack": True})


@case
def direct(s: Scene) -> None:
    lane, exchange = _bound(s, "direct", {"one": ["a"], "two": ["a", "b"], "none": []})
    for key in ("a", "b", "c", "A", ""):
        lane.publish(key, f"<{key}>", exchange)
    lane.alive()
    _arrived(s, lane, "one", "two", "none")


@case
def fanout(s: Scene) -> None:
    lane, exchange = _bound(s, "fanout", {"one": [""], "two": ["a", "b"]})
    for key in ("a", "c"):
        lane.publish(key, f"<{key}>", exchange)
    lane.alive()
    _arrived(s, lane, "one", "two")


@case
def topic(s: Scene) -> None:
    keys = {
        "star": ["a.*"], "hash": ["a.#"], "middle": ["*.b.*"], "both": ["#.c.#", "a.b.c"], "all": ["#"],
        "exact": ["a.b"], "empty": [""], "dots": ["a..b"], "two": ["*.#"],
    }  # fmt: skip
    lane, exchange = _bound(s, "topic", keys)
    for key in ("a", "a.b", "a.b.c", "x.b.y", "c", "x.y.z", "", "a..b", ".", "a.", "a.*", "a.#", "A.B"):
        lane.publish(key, f"<{key}>", exchange)
    lane.alive()
    _arrived(s, lane, *keys)


@case
def headers_all_and_any(s: Scene) -> None:
    keys: dict[str, list[Any]] = {
        "default": [{"a": "1", "b": "2"}],
        "all": [{"x-match": "all", "a": "1", "b": "2"}],
        "any": [{"x-match": "any", "a": "1", "b": "2"}],
        "present": [{"x-match": "all", "a": None}],
        "nothing": [{}],
        "any_nothing": [{"x-match": "any"}],
    }
    lane, exchange = _bound(s, "headers", keys)
    for label, found in {
        "a": {"a": "1"}, "ab": {"a": "1", "b": "2"}, "other": {"a": "2"}, "number": {"a": 1}, "none": {},
        "more": {"a": "1", "b": "2", "c": "3"},
    }.items():  # fmt: skip
        lane.publish("", label, exchange, properties={"headers": found})
    lane.publish("", "without", exchange)
    lane.alive()
    _arrived(s, lane, *keys)


@case
def headers_with_x(s: Scene) -> None:
    keys: dict[str, list[Any]] = {
        "all": [{"x-match": "all", "x-kind": "1", "a": "1"}],
        "all_with_x": [{"x-match": "all-with-x", "x-kind": "1", "a": "1"}],
        "any_with_x": [{"x-match": "any-with-x", "x-kind": "1", "a": "1"}],
    }
    lane, exchange = _bound(s, "headers", keys)
    for label, found in {"a": {"a": "1"}, "x": {"x-kind": "1"}, "both": {"a": "1", "x-kind": "1"}}.items():
        lane.publish("", label, exchange, properties={"headers": found})
    lane.alive()
    _arrived(s, lane, *keys)


@case
def headers_types_are_compared(s: Scene) -> None:
    keys: dict[str, list[Any]] = {
        "int": [{"a": 5}],
        "long": [{"a": Typed("l", 5)}],
        "float": [{"a": 5.0}],
        "true": [{"a": True}],
        "text": [{"a": "5"}],
    }
    lane, exchange = _bound(s, "headers", keys)
    for label, value in {"int": 5, "long": Typed("l", 5), "float": 5.0, "true": True, "text": "5"}.items():
        lane.publish("", label, exchange, properties={"headers": {"a": value}})
    lane.alive()
    _arrived(s, lane, *keys)


@case
def headers_with_an_unknown_match(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("queue.declare", queue=s.name())
    lane.call("queue.bind", queue=s.name(), exchange="amq.headers", arguments={"x-match": "some", "a": "1"})


@case
def headers_match_that_is_no_text(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("queue.declare", queue=s.name())
    lane.call("queue.bind", queue=s.name(), exchange="amq.headers", arguments={"x-match": 5, "a": "1"})


@case
def declare_again(s: Scene) -> None:
    lane = s.wire().channel()
    for _ in range(2):
        lane.call("exchange.declare", exchange=s.name("x"), type="topic", durable=True, arguments={"x-any": "thing"})
    lane.call("exchange.declare", exchange=s.name("x"), passive=True)
    lane.call("exchange.declare", exchange=s.name("x"), type="fanout", passive=True)


@case
def declare_again_otherwise(s: Scene) -> None:
    lane = s.wire().channel()
    exchange = s.name("x")
    lane.call("exchange.declare", exchange=exchange, type="direct")
    for change in (
        {"type": "fanout"}, {"durable": True}, {"auto_delete": True}, {"internal": True},
        {"arguments": {"alternate-exchange": "y"}}, {"arguments": {"x-any": "thing"}},
    ):  # fmt: skip
        lane.call("exchange.declare", **{"exchange": exchange, "type": "direct"} | change)
        lane.again()


@case
def declare_passively_what_is_not_there(s: Scene) -> None:
    s.wire().channel().call("exchange.declare", exchange=s.name("x"), passive=True)


@case
def an_unknown_type(s: Scene) -> None:
    s.wire().channel().call("exchange.declare", exchange=s.name("x"), type="wonder")


@case
def an_empty_type(s: Scene) -> None:
    s.wire().channel().call("exchange.declare", exchange=s.name("x"))


@case
def reserved_names(s: Scene) -> None:
    lane = s.wire().channel()
    for given in (
        {"exchange": "amq.mine", "type": "direct"},
        {"exchange": "amq.direct", "type": "direct", "durable": True},
        {"exchange": "amq.direct", "type": "direct"},
        {"exchange": "amq.topic", "type": "fanout", "durable": True},
        {"exchange": "amq.mine", "passive": True},
        {"exchange": "", "type": "direct", "durable": True},
        {"exchange": "", "passive": True},
    ):
        lane.call("exchange.declare", **given)
        lane.again()


@case
def what_is_there_from_the_start(s: Scene) -> None:
    lane = s.wire().channel()
    for name in ("direct", "fanout", "topic", "headers", "match", "rabbitmq.trace", "rabbitmq.log"):
        lane.call("exchange.declare", exchange=f"amq.{name}", passive=True)
        lane.again()


@case
def delete_reserved(s: Scene) -> None:
    lane = s.wire().channel()
    for name in ("amq.direct", "", "amq.mine"):
        lane.call("exchange.delete", exchange=name)
        lane.again()


@case
def the_default_exchange_cannot_be_bound(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("queue.bind", queue=queue, routing_key="k")
    lane.again()
    lane.call("queue.unbind", queue=queue, routing_key="k")
    lane.again()
    lane.call("exchange.bind", destination="amq.fanout", source="", routing_key="k")
    lane.again()
    lane.call("exchange.bind", destination="", source="amq.fanout", routing_key="k")


@case
def delete(s: Scene) -> None:
    lane = s.wire().channel()
    exchange = s.name("x")
    lane.call("exchange.delete", exchange=exchange)
    lane.call("exchange.declare", exchange=exchange, type="direct")
    lane.call("queue.declare", queue=s.name())
    lane.call("queue.bind", queue=s.name(), exchange=exchange, routing_key="k")
    lane.call("exchange.delete", exchange=exchange, if_unused=True)
    lane.again()
    lane.call("queue.unbind", queue=s.name(), exchange=exchange, routing_key="k")
    lane.call("exchange.delete", exchange=exchange, if_unused=True)
    lane.call("exchange.declare", exchange=exchange, passive=True)


@case
def publish_to_a_missing_exchange(s: Scene) -> None:
    lane = s.wire().channel()
    lane.publish("k", "lost", s.name("x"))
    lane.alive()


@case
def publish_to_a_missing_exchange_confirmed(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("confirm.select")
    lane.publish("k", "lost", s.name("x"))
    lane.expect("basic.ack", "basic.nack")


@case
def internal(s: Scene) -> None:
    lane = s.wire().channel()
    exchange = s.name("x")
    lane.call("exchange.declare", exchange=exchange, type="fanout", internal=True)
    lane.publish("k", "refused", exchange)
    lane.alive()


@case
def internal_behind_another(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("inner"), type="fanout", internal=True)
    lane.call("exchange.declare", exchange=s.name("outer"), type="fanout")
    lane.call("queue.declare", queue=s.name())
    lane.call("exchange.bind", destination=s.name("inner"), source=s.name("outer"))
    lane.call("queue.bind", queue=s.name(), exchange=s.name("inner"))
    lane.publish("k", "through", s.name("outer"))
    lane.alive()
    _arrived(s, lane, "q")


@case
def auto_delete(s: Scene) -> None:
    lane = s.wire().channel()
    exchange = s.name("x")
    lane.call("exchange.declare", exchange=exchange, type="direct", auto_delete=True)
    lane.call("exchange.declare", exchange=exchange, passive=True)
    lane.call("queue.declare", queue=s.name())
    lane.call("queue.bind", queue=s.name(), exchange=exchange, routing_key="a")
    lane.call("queue.bind", queue=s.name(), exchange=exchange, routing_key="b")
    lane.call("queue.unbind", queue=s.name(), exchange=exchange, routing_key="a")
    lane.call("exchange.declare", exchange=exchange, passive=True)
    lane.call("queue.unbind", queue=s.name(), exchange=exchange, routing_key="b")
    lane.call("exchange.declare", exchange=exchange, passive=True)


@case
def auto_delete_with_its_last_queue(s: Scene) -> None:
    lane = s.wire().channel()
    exchange = s.name("x")
    lane.call("exchange.declare", exchange=exchange, type="direct", auto_delete=True)
    lane.call("queue.declare", queue=s.name())
    lane.call("queue.bind", queue=s.name(), exchange=exchange, routing_key="a")
    lane.call("queue.delete", queue=s.name())
    lane.call("exchange.declare", exchange=exchange, passive=True)


@case
def auto_delete_with_its_last_exchange(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("source"), type="direct", auto_delete=True)
    lane.call("exchange.declare", exchange=s.name("x"), type="direct")
    lane.call("exchange.bind", destination=s.name("x"), source=s.name("source"))
    lane.call("exchange.delete", exchange=s.name("x"))
    lane.call("exchange.declare", exchange=s.name("source"), passive=True)


@case
def alternate_exchange(s: Scene) -> None:
    lane, exchange = _bound(s, "direct", {"one": ["a"]}, {"alternate-exchange": s.name("other")})
    lane.call("exchange.declare", exchange=s.name("other"), type="fanout")
    lane.call("queue.declare", queue=s.name("rest"))
    lane.call("queue.bind", queue=s.name("rest"), exchange=s.name("other"))
    for key in ("a", "b"):
        lane.publish(key, f"<{key}>", exchange, mandatory=True)
    lane.alive()
    _arrived(s, lane, "one", "rest")
    lane.nothing("basic.return")


@case
def alternate_exchange_that_is_missing(s: Scene) -> None:
    lane, exchange = _bound(s, "direct", {"one": ["a"]}, {"alternate-exchange": s.name("other")})
    lane.publish("b", "nowhere", exchange, mandatory=True)
    lane.expect("basic.return")
    lane.alive()


@case
def alternate_exchanges_in_a_circle(s: Scene) -> None:
    lane = s.wire().channel()
    for one, two in (("x", "y"), ("y", "x")):
        lane.call(
            "exchange.declare", exchange=s.name(one), type="direct", arguments={"alternate-exchange": s.name(two)}
        )
    lane.publish("b", "round", s.name("x"), mandatory=True)
    lane.expect("basic.return")
    lane.alive()


@case
def alternate_exchange_that_is_the_default_one(s: Scene) -> None:
    lane, exchange, queue = s.wire().channel(), s.name("x"), s.name("q")
    given = {"exchange": exchange, "type": "direct"}
    for more in ({"arguments": {"alternate-exchange": ""}}, {"arguments": {"alternate-exchange": ""}}, {}):
        lane.call("exchange.declare", **given, **more)
        lane.again()
    lane.call("queue.declare", queue=queue)
    lane.publish(queue, "by its name", exchange, mandatory=True)
    lane.expect("basic.return")
    lane.call("queue.bind", queue=queue, exchange=exchange, routing_key=s.name("k"))
    lane.publish(s.name("k"), "bound", exchange, mandatory=True)
    lane.call("basic.get", queue=queue, no_ack=True)


@case
def a_dead_letter_by_the_default_exchange(s: Scene) -> None:
    lane, queue, dead = s.wire().channel(), s.name("q"), s.name("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    lane.call("queue.declare", queue=dead)
    for more in ({}, {"arguments": {"x-dead-letter-exchange": ""}}):
        lane.call("queue.declare", queue=queue, **({"arguments": arguments} | more))
        lane.again()
    lane.confirmed(queue, "one")
    lane.call("basic.get", queue=queue)
    lane.send("basic.reject", delivery=1)
    lane.call("basic.consume", queue=dead, tag="t", no_ack=True)
    lane.deliveries(1)


@case
def alternate_exchange_that_is_no_text(s: Scene) -> None:
    s.wire().channel().call(
        "exchange.declare", exchange=s.name("x"), type="direct", arguments={"alternate-exchange": 5}
    )


@case
def an_exchange_behind_an_exchange(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("first"), type="topic")
    lane.call("exchange.declare", exchange=s.name("second"), type="direct")
    lane.call("queue.declare", queue=s.name())
    lane.call("exchange.bind", destination=s.name("second"), source=s.name("first"), routing_key="a.#")
    lane.call("exchange.bind", destination=s.name("second"), source=s.name("first"), routing_key="a.#")
    lane.call("queue.bind", queue=s.name(), exchange=s.name("second"), routing_key="a.b")
    for key in ("a.b", "a.c", "b.b"):
        lane.publish(key, f"<{key}>", s.name("first"))
    lane.alive()
    _arrived(s, lane, "q")
    lane.call("exchange.unbind", destination=s.name("second"), source=s.name("first"), routing_key="a.#")
    lane.publish("a.b", "late", s.name("first"), mandatory=True)
    lane.expect("basic.return")


@case
def exchanges_in_a_circle_deliver_once(s: Scene) -> None:
    lane = s.wire().channel()
    for word in ("x", "y"):
        lane.call("exchange.declare", exchange=s.name(word), type="fanout")
    lane.call("exchange.bind", destination=s.name("x"), source=s.name("y"))
    lane.call("exchange.bind", destination=s.name("y"), source=s.name("x"))
    lane.call("queue.declare", queue=s.name())
    for word in ("x", "y"):
        lane.call("queue.bind", queue=s.name(), exchange=s.name(word))
    lane.publish("", "once", s.name("x"))
    lane.alive()
    _arrived(s, lane, "q")


@case
def exchange_bindings_of_what_is_missing(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.bind", destination=s.name("no"), source="amq.fanout")
    lane.again()
    lane.call("exchange.bind", destination="amq.fanout", source=s.name("no"))
    lane.again()
    lane.call("exchange.unbind", destination=s.name("no"), source="amq.fanout")
    lane.call("exchange.unbind", destination="amq.direct", source="amq.fanout")


@case
def queue_bindings_of_what_is_missing(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("queue.bind", queue=s.name("no"), exchange="amq.fanout")
    lane.again()
    lane.call("queue.declare", queue=s.name())
    lane.call("queue.bind", queue=s.name(), exchange=s.name("none"))
    lane.again()
    lane.call("queue.unbind", queue=s.name("no"), exchange="amq.fanout")
    lane.call("queue.unbind", queue=s.name(), exchange=s.name("none"))
    lane.call("queue.unbind", queue=s.name(), exchange="amq.fanout", routing_key="unbound")


@case
def bindings_differ_by_arguments(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("x"), type="direct")
    lane.call("queue.declare", queue=s.name())
    for arguments in ({}, {"a": 1}, {"a": 1}):
        lane.call("queue.bind", queue=s.name(), exchange=s.name("x"), routing_key="k", arguments=arguments)
    lane.publish("k", "1", s.name("x"))
    lane.call("queue.unbind", queue=s.name(), exchange=s.name("x"), routing_key="k")
    lane.publish("k", "2", s.name("x"))
    lane.call("queue.unbind", queue=s.name(), exchange=s.name("x"), routing_key="k", arguments={"a": 2})
    lane.publish("k", "3", s.name("x"))
    lane.call("queue.unbind", queue=s.name(), exchange=s.name("x"), routing_key="k", arguments={"a": 1})
    lane.publish("k", "4", s.name("x"), mandatory=True)
    lane.expect("basic.return")
    _arrived(s, lane, "q")


@case
def one_copy_for_a_queue_that_matches_twice(s: Scene) -> None:
    lane, exchange = _bound(s, "topic", {"q": ["a.*", "*.b", "#"]})
    lane.publish("a.b", "once", exchange)
    lane.alive()
    _arrived(s, lane, "q")


@case
def nowait(s: Scene) -> None:
    lane = s.wire().channel()
    exchange, queue = s.name("x"), s.name()
    lane.send("exchange.declare", exchange=exchange, type="direct", nowait=True)
    lane.send("queue.declare", queue=queue, nowait=True)
    lane.send("queue.bind", queue=queue, exchange=exchange, routing_key="k", nowait=True)
    lane.publish("k", "here", exchange)
    lane.alive()
    _arrived(s, lane, "q")
    lane.send("exchange.bind", destination=exchange, source="amq.fanout", nowait=True)
    lane.send("exchange.unbind", destination=exchange, source="amq.fanout", nowait=True)
    lane.send("queue.purge", queue=queue, nowait=True)
    lane.send("exchange.delete", exchange=exchange, nowait=True)
    lane.send("queue.delete", queue=queue, nowait=True)
    lane.call("queue.declare", queue=queue, passive=True)


@case
def names_with_odd_letters(s: Scene) -> None:
    lane = s.wire().channel()
    for word in (
        "with space",
        "mit ä",
        "a/b",
        "per%41cent",
        "@at",
        "dot.",
        "emoji 🐇",
        "quote'\"",
        "tab\tin",
        "x" * 200,
    ):
        exchange = s.name(f"{word}.x")
        queue = s.name(word)
        lane.call("exchange.declare", exchange=exchange, type="direct")
        lane.call("queue.declare", queue=queue)
        lane.call("queue.bind", queue=queue, exchange=exchange, routing_key=word)
        lane.publish(word, "here", exchange)
        lane.call("basic.get", queue=queue, no_ack=True)


@case
def names_that_begin_oddly(s: Scene) -> None:
    lane = s.wire().channel()
    for queue in (".hidden", "@vhost:q", "%41", "/", "..", "~", " "):
        s.names.append(queue)
        lane.call("queue.declare", queue=queue)
        lane.publish(queue, "here")
        lane.call("basic.get", queue=queue, no_ack=True)


@case
def line_ends_are_stripped_from_names(s: Scene) -> None:
    lane = s.wire().channel()
    s.name("two lines")
    s.name("twolines")
    lane.call("queue.declare", queue=f"{s.case}.two\r\nlines")
    lane.call("queue.declare", queue=s.name("twolines"), passive=True)
    lane.call("exchange.declare", exchange=f"{s.case}.two\r\nlines", type="direct")
    lane.call("exchange.declare", exchange=s.name("twolines"), passive=True)


@case
def a_name_that_is_no_utf_8(s: Scene) -> None:
    lane = s.wire().channel()
    s.say("a1 > exchange.declare with the name 0xff 0xfe")
    lane.wire.raw(method(1, "exchange.declare", {"exchange": b"\xff\xfe", "type": "direct"}))
    found = lane.expect("exchange.declare-ok")
    if found is not None and found.name == "exchange.declare-ok":
        lane.wire.raw(method(1, "exchange.delete", {"exchange": b"\xff\xfe"}))
        lane.expect("exchange.delete-ok")


@case
def a_name_of_255_bytes(s: Scene) -> None:
    lane = s.wire().channel()
    name = s.name("x" * (254 - len(s.case)))
    lane.call("queue.declare", queue=name)
    lane.call("exchange.declare", exchange=name, type="direct")
    lane.call("queue.bind", queue=name, exchange=name, routing_key="k" * 255)
    lane.publish("k" * 255, "far", name)
    lane.call("basic.get", queue=name, no_ack=True)
