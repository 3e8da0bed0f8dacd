"""Goal: exactly the names that the design allows pass, and a refusal says what is wrong.

Method: examples at each edge, and random text against the rule written another way.
"""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.engine.catalog import names
from warren.engine.catalog.names import check_name, check_routing_key, check_topic_name, subscription_name
from warren.engine.errors import InvalidName, UsageError
from warren.engine.topics import formats


@pytest.mark.parametrize(
    "name", ["a", "orders", "a.b.c", "größe", "日本", "x" * 255, "é" * 127, "a b", "-", "a\\b", "~", "\xa0"]
)
def test_allowed(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("", "empty"),
        ("x" * 256, "256 bytes"),
        ("é" * 128, "256 bytes"),
        ("x" * 300, "300 bytes"),
        ("a/b", "slash"),
        ("/", "slash"),
        ("a\0b", "NUL"),
        ("a\x1b[2Jb", r"control character '\\x1b'"),
        ("a\nb", r"control character '\\n'"),
        ("a\x7f", "control character"),
        ("\x80", "control character"),
        ("a\x9f", "control character"),
        (".hidden", "dot"),
        ("..", "dot"),
        ("\ud800", "UTF-8"),
        (b"bytes", "str"),
        (None, "str"),
    ],
)
def test_refused(name: object, word: str) -> None:
    with pytest.raises(InvalidName, match=word) as caught:
        check_name(name, "queue")
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, ValueError)


@given(st.text(st.characters(), max_size=300))
def test_rule(name: str) -> None:
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        encoded = b""
    shows = all(unicodedata.category(character) != "Cc" for character in name)
    allowed = 1 <= len(encoded) <= 255 and b"/" not in encoded and encoded[:1] != b"." and shows
    if allowed:
        assert check_name(name) == name
    else:
        with pytest.raises(InvalidName):
            check_name(name)


def test_routing_key() -> None:
    for key in ("", "a.b.c", "/", ".", "x" * 255):
        assert check_routing_key(key) == key
    for wrong in ("x" * 256, b"a", None, "\udfff"):
        with pytest.raises(InvalidName):
            check_routing_key(wrong)


def test_subscription_name_is_no_users_name() -> None:
    with pytest.raises(InvalidName):
        check_name(subscription_name("orders", "report"))


@pytest.mark.parametrize(
    "name", ["flights", "A-z_09", "a%RETRY%report", "a|b", "-", "x" * 255, "WARREN_SYS", "warren_sys_"]
)
def test_allowed_for_topics(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("", "empty"),
        ("x" * 256, "256 bytes"),
        ("a.b", r"has the character '\.': letters \(a to z, A to Z\), digits, and _ - % \| are allowed"),
        ("größe", "has the character 'ö'"),
        ("a b", "has the character ' '"),
        ("a/b", "slash"),
        ("..", "dot"),
        ("a\x1b[2Jb", "control character"),
        ("\ud800", "UTF-8"),
        (b"bytes", "str"),
        ("%RETRY%report", "begins with %"),
        ("%DLQ%report+flights", "begins with %"),
        ("report+flights", r"has the character '\+'"),
        (formats.COMMIT_TOPIC, "reserved"),
        ("WARREN_SYS_", "reserved"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "reserved"),
        ("rmq_sys_wheel_timer", "reserved"),
        ("SCHEDULE_TOPIC_XXXX", "reserved"),
        ("TBW102", "reserved"),
    ],
)
def test_refused_for_topics(name: object, word: str) -> None:
    with pytest.raises(InvalidName, match=f"^topic .*{word}"):
        check_topic_name(name)


def test_the_prefix_of_own_topics_is_the_one_of_their_format() -> None:
    assert names.OWN_TOPICS == formats.SYSTEM_TOPICS
