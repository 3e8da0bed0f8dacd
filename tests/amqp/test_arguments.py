"""Goal: RabbitMQ's arguments are the engine's, or are refused in its words. Method: tables of both (rule A5)."""

from typing import Any

import pytest

from warren.engine.catalog.arguments import QueueArguments
from warren.engine.catalog.catalog import QueueDeclaration
from warren.workers.amqp.arguments import (
    QUORUM,
    STREAM,
    check_alternate,
    check_same_queue,
    exchange_wanted,
    queue_wanted,
    told_by,
    typed,
)
from warren.workers.amqp.faults import ChannelFault, ConnectionFault

Q = "queue 'q' in vhost '/'"


def _wanted(arguments: dict[str, Any], vhost: str = "/", durable: bool = True) -> dict[str, Any]:
    made = queue_wanted(vhost, "q", durable, False, False, arguments).arguments
    if arguments.get("x-queue-type") != STREAM:
        QueueArguments.of("q", made)  # the engine takes it
    return made


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        ({"x-message-ttl": 1500}, {"message_ttl": 1.5}),
        ({"x-message-ttl": 0}, {"message_ttl": 0.0}),
        ({"x-expires": 60000}, {"expires": 60.0}),
        ({"x-max-length": 5, "x-overflow": "reject-publish"}, {"max_length": 5, "overflow": "reject-publish"}),
        ({"x-max-length-bytes": 5, "x-overflow": "drop-head"}, {"max_length_bytes": 5}),
        ({"x-max-length": 0, "x-max-length-bytes": 0}, {"max_length": 0, "max_length_bytes": 0}),
        ({"x-queue-type": QUORUM, "x-delivery-limit": 0}, {"delivery_limit": 0}),
        ({"x-overflow": "reject-publish"}, {}),
        ({"x-dead-letter-exchange": ""}, {"dead_letter_exchange": ""}),
        (
            {"x-dead-letter-exchange": "a/b", "x-dead-letter-routing-key": "k/l"},
            {"dead_letter_exchange": "a%2Fb", "dead_letter_routing_key": "k/l"},
        ),
        (
            {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k/l"},
            {"dead_letter_exchange": "", "dead_letter_routing_key": "k%2Fl"},
        ),
        ({"x-max-priority": 10}, {"max_priority": 10}),
        ({"x-max-priority": 255}, {"max_priority": 255}),
        ({"x-single-active-consumer": True}, {"single_active_consumer": True}),
        ({"x-single-active-consumer": False, "x-max-priority": 0}, {}),
        ({"x-queue-type": QUORUM, "x-delivery-limit": 3}, {"delivery_limit": 3}),
        ({"x-queue-type": QUORUM, "x-delivery-limit": -1}, {}),
        ({"x-queue-type": STREAM, "x-max-age": "7D"}, {"retention_s": 604800.0}),
        ({"x-queue-type": STREAM, "x-max-length-bytes": 1 << 30}, {"retention_bytes": 1 << 30}),
        ({"x-queue-mode": "lazy", "x-queue-version": 2, "mine": [1]}, {}),
    ],
)
def test_what_the_engine_gets(arguments: dict[str, Any], made: dict[str, Any]) -> None:
    assert _wanted(arguments) == made


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (
            {"x-message-ttl": "1"},
            406,
            "invalid arg 'x-message-ttl' for queue 'q' in vhost '/': \"expected integer, got",
        ),
        ({"x-max-length": -1}, 406, f"invalid arg 'x-max-length' for {Q}: {{value_negative,-1}}"),
        (
            {"x-queue-type": "wonder"},
            406,
            "invalid arg 'x-queue-type' for queue 'q' in vhost '/': \"unsupported queue type",
        ),
        (
            {"x-queue-type": QUORUM, "x-max-priority": 3},
            406,
            "invalid arg 'x-max-priority' for queue 'q' in vhost '/' of",
        ),
        ({"x-dead-letter-exchange": 5}, 406, "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q'"),
        ({"x-queue-type": STREAM, "x-max-age": "long"}, 406, "invalid arg 'x-max-age'"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], code: int, text: str) -> None:
    with pytest.raises(ChannelFault) as raised:
        _wanted(arguments)
    assert (raised.value.code, raised.value.text[: len(text)]) == (code, text)


def test_dead_letters_of_another_vhost_stay_there() -> None:
    assert _wanted({"x-dead-letter-exchange": "dlx"}, "v") == {"dead_letter_exchange": "@v:dlx"}
    made = _wanted({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}, "v")
    assert made == {"dead_letter_exchange": "", "dead_letter_routing_key": "@v:dead"}
    assert _wanted({"x-dead-letter-exchange": ""}, "v") == {"dead_letter_exchange": ""}


def test_a_queue_of_a_python_program_is_told_as_if_it_were_amqps() -> None:
    found = QueueDeclaration(
        1,
        "q",
        True,
        0,
        arguments={"message_ttl": 2.0, "max_length": 7, "dead_letter_exchange": "d", "delivery_limit": 2},
    )
    assert told_by(found) == {
        "x-message-ttl": ("long", 2000),
        "x-max-length": ("long", 7),
        "x-dead-letter-exchange": ("longstr", "d"),
    }
    said = typed({"x-message-ttl": 2000, "x-max-length": 7, "x-dead-letter-exchange": "d", "unknown": 1})
    check_same_queue(found, True, False, said, "queue 'q' in vhost '/'")
    with pytest.raises(ChannelFault, match="inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received '8'"):
        check_same_queue(found, True, False, said | {"x-max-length": ("long", 8)}, "queue 'q' in vhost '/'")


def test_exchanges() -> None:
    made = exchange_wanted("/", "x", "topic", True, False, True, {"alternate-exchange": "a/b", "mine": 1})
    assert (made.alternate, made.internal, made.arguments) == ("a%2Fb", True, {"mine": 1})
    with pytest.raises(ConnectionFault, match="unknown exchange type 'wonder'"):
        exchange_wanted("/", "x", "wonder", True, False, False, {})
    assert exchange_wanted("/", "x", "direct", True, False, False, {"alternate-exchange": 1}).alternate is None
    with pytest.raises(ChannelFault, match="invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x'"):
        check_alternate({"alternate-exchange": 1}, "exchange 'x' in vhost '/'")
