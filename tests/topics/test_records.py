"""Goal: a record of the commit log is byte by byte what the tables say, and a scan accepts nothing else.

Method: `support.topic_tables`, written from the tables alone, reads what the core writes and writes what it reads, for
any record (Hypothesis); all prefixes of records and all changes of single bytes, with the fields named that no checksum
covers; foreign and illegal contents, each with its reason. tests/topics/record_test.c watches what is read.
"""

import random
import struct
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.engine import _core
from warren.engine.errors import UsageError
from warren.engine.topics import formats, records
from warren.engine.topics.records import Checks, Found, Host, Record, Scanned

from support import topic_tables as tables
from support.long import in_part

U31, U32, U63, U64 = (st.integers(0, (1 << bits) - 1) for bits in (31, 32, 63, 64))
HOSTS = st.builds(Host, st.ip_addresses().map(str), U32)
TEXT = st.text(st.characters(min_codepoint=3, exclude_categories=["Cs"]), max_size=40)
NAMES = TEXT.filter(bool)
TOPICS = st.one_of(NAMES, st.text("aé€😀", min_size=1, max_size=300))
#: bits of the hosts' kinds follow from the hosts
FLAGS = U32.map(lambda flag: flag & ~(tables.BORN_V6 | tables.STORE_V6))
RECORDS = st.builds(
    Record,
    topic=TOPICS,
    body=st.binary(max_size=300),
    queue_id=U31,
    queue_offset=U63,
    physical_offset=U63,
    properties=st.dictionaries(NAMES, TEXT, max_size=6),
    flag=U32,
    sys_flag=FLAGS,
    born_timestamp=U64,
    born_host=HOSTS,
    store_timestamp=U64,
    store_host=HOSTS,
    reconsume_times=U31,
    prepared_transaction_offset=U64,
)
V4, V6 = Host("10.1.2.3", 10911), Host("2001:db8::7", 10911)
POSITION = 0x1122334455
#: one of each layout, with every part in it; what each field holds is unlike its neighbours
SAMPLES = {
    "V1": Record(
        topic="flights",
        body=b"the body of a message",
        queue_id=3,
        queue_offset=0x0102030405,
        physical_offset=POSITION,
        properties={"KEYS": "N14228 N24211", "TAGS": "UA", "UNIQ_KEY": "0A01", "origin": "EWR"},
        flag=0x77665544,
        sys_flag=formats.SYS_COMPRESSED,
        born_timestamp=1_700_000_000_123,
        born_host=V4,
        store_timestamp=1_700_000_000_456,
        store_host=Host("10.1.2.4", 10912),
        reconsume_times=2,
        prepared_transaction_offset=0x99,
    )
}
SAMPLES["IPv6"] = replace(SAMPLES["V1"], born_host=V6, store_host=Host("::1", 1))
SAMPLES["V2"] = replace(SAMPLES["V1"], topic="t" * 200, store_host=V6)
SAMPLES["empty"] = Record(topic="t", physical_offset=POSITION)


def fields_of(record: Record) -> tables.Fields:
    """What the tables know of a record."""
    fields = asdict(record)
    for name, bit in (("born_host", tables.BORN_V6), ("store_host", tables.STORE_V6)):
        host: Host = getattr(record, name)
        fields[name] = host.encode()
        fields["sys_flag"] = fields["sys_flag"] & ~bit | (bit if len(fields[name]) == 20 else 0)
    return fields


def scanned(data: bytes, position: int = POSITION, checks: Checks = Checks.ALL) -> Scanned:
    return records.scan(data, 0, position, checks)


@given(RECORDS)
def test_the_tables_read_and_write_every_record_as_the_core_does(record: Record) -> None:
    made = records.encode(record)
    expected = fields_of(record)
    assert made == tables.write(expected)
    assert tables.read(made, record.physical_offset) == ("record", len(made), expected)
    found = scanned(made, record.physical_offset)
    assert (found.found, found.size, found.reason) == (Found.RECORD, len(made), "good")
    assert found.record is not None
    assert fields_of(found.record) == expected
    assert records.encode(found.record) == made
    assert len(made) == _core.record_size(
        expected["sys_flag"],
        len(record.topic.encode()),
        len(tables.write_properties(dict(record.properties))),
        len(record.body),
    )


@given(RECORDS, st.data())
def test_tables_and_core_agree_about_bytes_that_were_changed(record: Record, data: st.DataObject) -> None:
    made = bytearray(records.encode(record) + bytes(10))
    for _ in range(data.draw(st.integers(1, 3))):
        made[data.draw(st.integers(0, len(made) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(made[: data.draw(st.integers(0, len(made)))])
    what, size, fields = tables.read(cut, record.physical_offset)
    found = scanned(cut, record.physical_offset)
    assert (found.found.name.lower(), found.size) == (what, size)
    if fields is not None:
        assert found.record is not None
        assert fields_of(found.record) == fields


def test_the_fixed_part_has_91_bytes() -> None:
    record = Record(topic="t", body=b"b", properties={"n": "v"})
    assert len(records.encode(record)) == 91 + 1 + 1 + 4
    assert len(records.encode(replace(record, born_host=V6))) == 91 + 12 + 1 + 1 + 4
    assert len(records.encode(replace(record, born_host=V6, store_host=V6))) == 91 + 24 + 1 + 1 + 4
    assert len(records.encode(replace(record, topic="t" * 128))) == 92 + 128 + 1 + 4


@pytest.mark.parametrize("length", [1, 126, 127, 128, 129, 255, 256, 257, 1000, 32767])
def test_version_2_begins_with_topics_of_128_bytes(length: int) -> None:
    """RocketMQ refuses topics of more than 127 bytes; its format holds 32,767."""
    record = Record(topic="é" * (length // 2) + "t" * (length % 2))
    made = records.encode(record)
    magic = int.from_bytes(made[4:8], "big")
    assert magic == (0xDAA320A7 if length < 128 else 0xDAA320AB)
    assert scanned(made, 0).record == record
    assert tables.read(made, 0)[0] == "record"


def test_a_short_topic_in_version_2_is_read() -> None:
    record = SAMPLES["V1"]
    made = records.encode(record)
    at = made.index(b"\x07flights")
    other = bytearray(made[:at] + b"\0" + made[at:])
    other[:8] = struct.pack(">II", len(made) + 1, formats.RECORD_MAGIC_V2)
    assert scanned(bytes(other)).record == record


def test_the_body_may_come_in_parts(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        parts = [rng.randbytes(rng.choice((0, 1, 7, 16, 100, 5000))) for _ in range(rng.randrange(6))]
        made = _core.record_encode(1, 0, 2, 3, 0, 4, bytes(8), 5, bytes(8), 0, 0, b"t", b"", parts)
        found = scanned(made, 3)
        assert found.record is not None
        assert found.record.body == b"".join(parts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topic": ""}, "1 to 32,767 bytes"),
        ({"topic": "t" * 32768}, "1 to 32,767 bytes"),
        ({"topic": "a\0b"}, "a topic must not contain"),
        ({"topic": "a\1b"}, "a topic must not contain"),
        ({"topic": "\ud800"}, "surrogates not allowed"),
        ({"properties": {"a": "b\0"}}, "names and values of properties"),
        ({"properties": {"a": "1\1"}}, "names and values of properties"),
        ({"properties": {"a\2": "1"}}, "names and values of properties"),
        ({"properties": {"": "1"}}, "a name must not be empty"),
        ({"properties": {"a": "\udcff"}}, "surrogates not allowed"),
        ({"properties": {"a": "x" * 32765}}, "32,767 bytes at most: put it into the body"),
        ({"queue_id": 1 << 31}, "positive numbers of Java"),
        ({"queue_id": 1 << 32}, "queue_id does not fit into 32 bits"),
        ({"queue_offset": 1 << 63}, "positive numbers of Java"),
        ({"physical_offset": 1 << 63}, "positive numbers of Java"),
        ({"reconsume_times": 1 << 31}, "positive numbers of Java"),
        ({"born_host": Host("localhost", 1)}, r"\('localhost', 1\) is no host"),
        ({"born_host": Host("1.2.3.4", -1)}, "is no host"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        records.encode(replace(SAMPLES["V1"], **change))


def test_the_longest_properties() -> None:
    record = Record(topic="t", properties={"a": "x" * 32764})
    assert scanned(records.encode(record), 0).record == record


def test_a_size_beyond_two_gibibytes_is_refused() -> None:
    assert _core.record_size(0, 1, 0, formats.RECORD_BYTES_MAX - 92) == formats.RECORD_BYTES_MAX
    for body in (formats.RECORD_BYTES_MAX - 91, 1 << 31, (1 << 64) - 1):
        with pytest.raises(ValueError, match="size"):
            _core.record_size(0, 1, 0, body)


def test_blank_and_end() -> None:
    assert _core.record_blank(100) == struct.pack(">II", 100, 0xCBD43194)
    assert scanned(_core.record_blank(100) + b"old bytes") == (Found.BLANK, 100, "good", None)
    assert scanned(_core.record_blank(8)) == (Found.BLANK, 8, "good", None)
    assert scanned(struct.pack(">II", 7, 0xCBD43194)).reason == "size"
    with pytest.raises(ValueError, match="size"):
        _core.record_blank(7)
    for n in range(20):
        assert scanned(bytes(n)) == (Found.END, 0, "good", None)


#: of each field without a checksum, its place in a record of IPv4 hosts and a body and topic of any length
UNCOVERED = {
    "queue_id": (12, 4),
    "flag": (16, 4),
    "queue_offset": (20, 8),
    "sys_flag": (36, 4),
    "born_timestamp": (40, 8),
    "born_host": (48, 8),
    "store_timestamp": (56, 8),
    "store_host": (64, 8),
    "reconsume_times": (72, 4),
    "prepared_transaction_offset": (76, 8),
}


def without_checksum(name: str, made: bytes) -> dict[int, str]:
    """Of each byte that no checksum covers, the field that it belongs to."""
    record = SAMPLES[name]
    born, store = len(record.born_host.encode()) - 8, len(record.store_host.encode()) - 8
    found = {}
    for field, (at, size) in UNCOVERED.items():
        begin = at + (born if at > 48 else 0) + (store if at > 64 else 0)
        end = begin + size + (born if field == "born_host" else store if field == "store_host" else 0)
        found.update(dict.fromkeys(range(begin, end), field))
    topic = 88 + born + store + len(record.body) + (2 if len(record.topic) > 127 else 1)
    found.update(dict.fromkeys(range(topic, topic + len(record.topic)), "topic"))
    found.update(dict.fromkeys(range(topic + len(record.topic) + 2, len(made)), "properties"))
    return found


@pytest.mark.parametrize("name", in_part(SAMPLES))
def test_each_change_of_a_byte_is_found_or_is_in_a_field_without_checksum(name: str) -> None:
    made = records.encode(SAMPLES[name])
    expected = fields_of(SAMPLES[name])
    uncovered = without_checksum(name, made)
    missed = set()
    for at in range(len(made)):
        for value in set(range(256)) - {made[at]}:
            found = scanned(made[:at] + bytes([value]) + made[at + 1 :])
            if found.record is None:
                assert found.found == Found.BAD, (at, value)
                continue
            fields = fields_of(found.record)
            wrong = {key for key, was in expected.items() if fields[key] != was}
            if wrong == {"sys_flag", "born_host", "store_timestamp", "store_host"}:
                wrong = {"sys_flag"}  # one host's length more, the other's less: what stands between has moved
            assert wrong == {uncovered[at]}, (at, value)
            missed |= wrong
    assert missed == set(uncovered.values()), "what is not covered is what the tables say"


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("behind", [b"", bytes(40)], ids=["cut", "zeros"])
def test_each_prefix_is_torn(name: str, behind: bytes) -> None:
    """What was not written is the end of the bytes, or zeros."""
    made = records.encode(SAMPLES[name])
    for n in range(len(made)):
        torn = made[:n] + (bytes(len(made) - n) + behind if behind else b"")
        found = scanned(torn)
        if torn == made + behind:
            assert found.found == Found.RECORD, "only zeros were missing"
        elif not any(torn[:8]):
            assert found.found == Found.END
        else:
            assert found.found == Found.BAD, n
            assert found.reason == "truncated" or behind


def changed(name: str, at: int, value: bytes) -> bytes:
    made = records.encode(SAMPLES[name])
    return made[:at] + value + made[at + len(value) :]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (changed("V1", 4, b"\0"), "magic"),
        (b"WRNSEG01" * 20, "magic"),
        (changed("V1", 0, struct.pack(">I", 91)), "size"),
        (changed("V1", 0, b"\x80"), "size"),
        (changed("V1", 0, b"\x7f"), "truncated"),
        (changed("V1", 30, b"\1"), "position"),
        (changed("V1", 84, b"\x7f"), "lengths"),
        (changed("V1", 84, b"\xff"), "lengths"),
        (changed("V1", 36, b"\0\0\0\x30"), "lengths"),
        (changed("V1", 12, b"\x80"), "number"),
        (changed("V1", 88 + 21, b"\0"), "topic length"),
        (changed("V1", 88 + 21, b"\x80"), "topic length"),
        (changed("V1", 88 + 22, b"\0"), "topic"),
        (changed("V1", 88 + 22, b"\xff"), "topic"),
        (changed("V1", 88 + 31, b"\0"), "properties"),
        (changed("V1", 88 + 31, b"\xc0"), "properties"),
        (changed("V1", 88, b"!"), "crc"),
        (changed("V1", 8, b"\xff"), "crc"),
        (changed("empty", 8, b"\0\0\0\1"), "crc"),
        (records.encode(SAMPLES["V1"])[:-1], "truncated"),
        (b"\0\0\1", "truncated"),
    ],
)
def test_reasons(data: bytes, reason: str) -> None:
    assert scanned(data) == (Found.BAD, 0, reason, None)


def test_checks_can_be_left_out() -> None:
    body, topic = changed("V1", 88, b"!"), changed("V1", 88 + 22, b"\0")
    properties = changed("V1", 88 + 31, b"\0")
    assert scanned(body, checks=Checks.TEXT).found == Found.RECORD
    assert scanned(topic, checks=Checks.TEXT).reason == "topic"
    assert scanned(topic, checks=Checks.BODY).found == Found.RECORD
    without = scanned(properties, checks=Checks.NONE)
    assert without.record is not None
    assert (without.record.topic, without.record.properties) == ("flights", {})
    assert scanned(changed("V1", 12, b"\x80"), checks=Checks.NONE).reason == "number"
    assert scanned(changed("V1", 8, b"\xff"), checks=Checks.NONE).reason == "crc", "its highest bit is never set"


def test_a_record_elsewhere_in_a_large_buffer() -> None:
    big = replace(SAMPLES["V1"], body=bytes(range(256)) * 1000)
    data = b"x" * 77 + records.encode(big) + bytes(100_000)
    assert records.scan(data, 77, POSITION).record == big
    assert records.scan(data, 77).reason == "position", "the position of byte `at` is `at` where nothing else is said"
    assert records.scan(data, 0).reason == "magic"
    with pytest.raises(ValueError, match="behind the"):
        records.scan(data, len(data) + 1)


def test_times_beyond_javas_are_read_as_they_stand() -> None:
    record = replace(SAMPLES["V1"], born_timestamp=(1 << 64) - 1)
    assert scanned(records.encode(record)).record == record
