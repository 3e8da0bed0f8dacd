"""Goal: properties, keys, tags and message ids are what RocketMQ makes of them, whatever characters they hold.

Method: Python's own UTF-8 and UTF-16 as oracles of any text and of any bytes (Hypothesis); hashes that Java is known to
give; the reader of `support.topic_tables`.
"""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warren.engine import _core
from warren.engine.errors import UsageError
from warren.engine.topics import records
from warren.engine.topics.records import Host

from support import topic_tables as tables

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
#: bytes of which many are separators, or begin characters
BYTES = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"\0", b"\1", b"\2", b"\3", b"a", b"name", "é".encode(), "😀".encode(), b"\xed\xa0\x80"]))
    .map(b"".join)
    .filter(lambda data: len(data) < 200),
)


@given(st.one_of(BYTES, TEXT.map(str.encode)))
@example(b"\xf4\x90\x80\x80")
@example(b"\xf0\x8f\x80\x80")
@example(b"\xe0\x9f\xbf")
@example(b"\xc1\xbf")
@example(b"a" * 8 + b"\xed\x9f\xbf")
@example(b"a" * 15 + b"\xc3")
def test_a_text_is_utf_8_without_the_first_three_characters(data: bytes) -> None:
    assert _core.text_good(data) == tables.is_text(data)


def test_every_pair_of_bytes_in_every_place() -> None:
    for first in range(256):
        for second in (0, 1, 2, 3, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF):
            for at in range(9):
                data = b"a" * at + bytes([first, second]) + b"z" * (8 - at)
                assert _core.text_good(data) == tables.is_text(data), data


@given(BYTES)
@example(b"a\1b")
@example(b"a\1b\2")
@example(b"a\1\2")
@example(b"\1b\2")
@example(b"a\2")
@example(b"a\1b\1c\2")
@example(b"aaaaaaa\1" + b"b" * 7 + b"\2c\1")
@example(b"")
def test_properties_are_read_as_the_tables_read_them(data: bytes) -> None:
    expected = tables.read_properties(data)
    if expected is None:
        with pytest.raises(ValueError, match="properties"):
            _core.properties_decode(data)
    else:
        assert _core.properties_decode(data) == expected


NAMES = TEXT.filter(lambda text: bool(text) and tables.is_text(text.encode()))


@given(st.dictionaries(NAMES, TEXT))
def test_properties_are_written_in_order_or_refused(properties: dict[str, str]) -> None:
    if all(tables.is_text(value.encode()) for value in properties.values()):
        made = _core.properties_encode(properties)
        assert made == tables.write_properties(properties)
        assert list(_core.properties_decode(made).items()) == list(properties.items())
    else:
        with pytest.raises(ValueError, match="properties"):
            _core.properties_encode(properties)


def test_keys_tags_and_uniq_key_are_found() -> None:
    made = tables.write_properties({"TAG": "no", "KEYS": " N1  N2 ", "TAGS": "UA", "TAGSS": "no", "UNIQ_KEY": "0A"})
    assert _core.properties_known(made) == ([b"N1", b"N2"], b"UA", b"0A")
    assert _core.properties_known(b"") == ([], None, None)
    assert _core.properties_known(tables.write_properties({"KEYS": "", "TAGS": ""})) == ([], b"", None)
    assert _core.property_value(made, "TAG") == b"no"
    assert _core.property_value(made, "AG") is None
    assert _core.properties_known(b"TAGS\1a\2KEYS\1k\2TAGS\1b") == ([b"k"], b"b", None), "of two, the last counts"
    assert _core.property_value(b"x\1a\2x\1b\2", "x") == b"b"


@given(BYTES)
def test_what_is_found_in_illegal_properties_lies_in_them(data: bytes) -> None:
    keys, tags, uniq_key = _core.properties_known(data)
    for found in (*keys, tags or b"", uniq_key or b"", _core.property_value(data, "name") or b""):
        assert found in data


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(1 << 31)),
        ("hello", 99162322),
        ("hello world", 1794106052),
        ("Hello, World!", 1498789909),
        ("é", 233),
        ("€", 0x20AC),
        ("😀", 0xD83D * 31 + 0xDE00),
        ("￿", 0xFFFF),
        ("\U0010ffff", 0xDBFF * 31 + 0xDFFF),
    ],
)
def test_hashes_of_java(text: str, code: int) -> None:
    assert tables.java_hash(text) == code
    assert _core.tags_code(text.encode()) == code


@given(TEXT)
def test_the_hash_of_any_text(text: str) -> None:
    assert _core.tags_code(text.encode()) == tables.java_hash(text)


def test_the_hash_of_long_texts_with_few_other_characters(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        text = "".join(rng.choices("abcdefgh" * 5 + "é€😀", k=rng.randrange(100)))
        assert _core.tags_code(text.encode()) == tables.java_hash(text)


@given(TEXT, TEXT)
@example("", "")
def test_the_hash_of_a_key(topic: str, key: str) -> None:
    assert _core.key_hash(topic.encode(), key.encode()) == tables.key_hash(topic, key)


def smallest(begin: str) -> str:
    """Seven characters that make the hash of a text the smallest int: what is missing, in digits to the base 31."""
    missing = (-(1 << 31) - tables.java_hash(f"{begin}AAAAAAA")) & 0xFFFFFFFF
    return "".join(chr(ord("A") + missing // 31**place % 31) for place in range(6, -1, -1))


def test_the_hash_that_has_no_absolute_value_is_0() -> None:
    key = smallest("a#")
    assert tables.java_hash(f"a#{key}") == -(1 << 31)
    assert _core.key_hash(b"a", key.encode()) == 0


@given(st.ip_addresses().map(str), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 63) - 1))
def test_message_ids(ip: str, port: int, offset: int) -> None:
    host = Host(ip, port)
    made = records.message_id(host, offset)
    assert made == (host.encode() + offset.to_bytes(8, "big")).hex().upper()
    assert records.parse_message_id(made) == (host, offset)
    assert records.parse_message_id(made.lower()) == (host, offset)


def test_the_message_id_of_the_original() -> None:
    assert records.message_id(Host("192.168.0.1", 10911), 4096) == "C0A8000100002A9F0000000000001000"


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "0" * 55, "0" * 40, "G" + "0" * 31, "0" * 16 + "8" + "0" * 15, "٠" * 16, "é" * 16]
)
def test_what_is_no_message_id(text: str) -> None:
    with pytest.raises(UsageError, match="is not a message id: one has 32 or 56 hexadecimal digits"):
        records.parse_message_id(text)
