"""Goal: each name of AMQP has one name in the node, and comes back. Method: names of all kinds, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.engine.catalog.names import check_name, check_topic_name
from warren.engine.errors import InvalidName
from warren.workers.amqp.faults import ChannelFault
from warren.workers.amqp.mapping import amqp_name, engine_name, stream_called, stream_name

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def test_usual_names_are_the_same() -> None:
    for name in ("orders", "a.b-c_d:e", "amq.gen-xyz", "with space", "ümläut", "50%"):
        assert engine_name("/", name) == name
        assert amqp_name(name) == ("/", name)


def test_names_that_the_node_does_not_allow() -> None:
    assert engine_name("/", "a/b") == "a%2Fb"
    assert engine_name("/", ".hidden") == "%2Ehidden"
    assert engine_name("/", "@x:y") == "%40x:y"
    assert engine_name("/", "a%20b") == "a%2520b"
    assert engine_name("v:w", "q") == "@v%3Aw:q"
    assert engine_name("/", "") == ""


def test_a_name_for_answers_is_the_same_in_each_vhost() -> None:
    """Other names with nearly the same prefix are not."""
    name = "amq.rabbitmq.reply-to.token"
    assert engine_name("v", name) == engine_name("/", name) == name
    for other in ("amq.rabbitmq.reply-to", "amq.rabbitmq.reply-tox", "xamq.rabbitmq.reply-to.token"):
        assert engine_name("v", other) == f"@v:{other}"


@given(st.just("/") | NAMES, NAMES)
def test_there_and_back(vhost: str, name: str) -> None:
    try:
        made = engine_name(vhost, name)
    except ChannelFault:  # too long
        return
    assert check_name(made) == made
    assert amqp_name(made) == (vhost, name)


@given(NAMES)
def test_every_name_of_the_node_is_shown(name: str) -> None:
    try:
        check_name(name)
    except InvalidName:
        return
    vhost, shown = amqp_name(name)
    assert (vhost, shown) == ("/", name) or engine_name(vhost, shown) == name


def test_names_of_streams() -> None:
    assert stream_name("/", "orders") == "orders"
    assert stream_name("/", "a.b") == "a%2Eb"
    for vhost, name in (("/", ".x"), ("/", "ü b"), ("v", "q"), ("a/b", "%")):
        assert check_topic_name(stream_name(vhost, name))
    assert len({stream_name("/", "a.b"), stream_name("a", "b"), stream_name("/", "a%2Eb")}) == 3


@given(st.just("/") | NAMES, NAMES)
def test_streams_there_and_back(vhost: str, name: str) -> None:
    """So no two streams have one topic."""
    assert stream_called(stream_name(vhost, name)) == (vhost, name)


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(ChannelFault, match="too many bytes"):
        engine_name("another", "x" * 255)
