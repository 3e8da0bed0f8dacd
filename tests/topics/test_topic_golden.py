"""Goal: the files of topics keep their bytes for ever, and the core reads and writes them so.

Method: three small committed files, which `support.topic_tables` made from the tables alone; the core makes the same
bytes and finds what is in them. To make them again, after a change of what is in them:
python tests/topics/test_topic_golden.py
"""

import hashlib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"
sys.path.append(str(Path(__file__).parents[1]))  # as pytest does: for the program below

from warren.engine import _core  # noqa: E402
from warren.engine.topics import formats, records  # noqa: E402
from warren.engine.topics.records import Found, Host, Record  # noqa: E402

from support import topic_tables as tables  # noqa: E402

#: name of the file → SHA-256
FILES = {
    "commitlog": "2d8a9a4715e172a8843f53cb6d94fc1ae328095098510f9551939401dca33dc1",
    "consumequeue": "09d89af714b1c051b438b5536d99f8fe7de166124f79062f0798b1388be86f0c",
    "index": "eed93c0991896d32183e7bae32069a5aa9d7ae842f6d32c7d0b57d9c3293fa19",
}
LOG_BEGIN = 1 << 30  # the second file of a log: its name would be 00000000001073741824
LOG_BYTES = 2048
SLOTS, ENTRIES = 7, 16
NOW = 1_700_000_000_000
V4, V6 = Host("127.0.0.1", 10911), Host("2001:db8::1", 10912)

RECORDS = [
    Record(topic="flights", body=b"to Boston", properties={"KEYS": "N14228", "TAGS": "TagA"}),
    Record(topic="flights", body=bytes(range(256)), queue_offset=1, properties={"KEYS": "N1 N14228", "UNIQ_KEY": "7F"}),
    Record(topic="t" * 128, body=b"version 2", properties={"Schlüssel": "Straße 😀", "leer": ""}, store_host=V6),
    Record(topic="flights", queue_id=3, flag=-1 & 0xFFFFFFFF, born_host=V6, store_host=V6, reconsume_times=16),
    Record(
        topic="é" * 63,
        body=b"half",
        sys_flag=formats.SYS_PREPARED | formats.SYS_COMPRESSED,
        properties={"TAGS": "polygenelubricants"},
        prepared_transaction_offset=LOG_BEGIN,
    ),
]


def placed() -> list[Record]:
    """The records where they lie."""
    position, found = LOG_BEGIN, []
    for n, record in enumerate(RECORDS):
        fields = {name: getattr(record, name) for name in Record.__slots__}
        fields |= {"physical_offset": position, "born_timestamp": NOW + 2500 * n, "store_timestamp": NOW + 2600 * n}
        fields["sys_flag"] |= (record.born_host == V6) * tables.BORN_V6 | (record.store_host == V6) * tables.STORE_V6
        found.append(Record(**fields))
        position += len(tables.write(fields_of(found[-1])))
    return found


def fields_of(record: Record) -> tables.Fields:
    fields = {name: getattr(record, name) for name in Record.__slots__}
    return fields | {"born_host": record.born_host.encode(), "store_host": record.store_host.encode()}


def keys_of(record: Record) -> list[str]:
    return [*record.properties.get("UNIQ_KEY", "").split(), *record.properties.get("KEYS", "").split()]


def build() -> dict[str, bytes]:
    """The files, from the tables."""
    log, units, index = b"", b"", tables.Index(SLOTS, ENTRIES)
    for record in placed():
        made = tables.write(fields_of(record))
        tag = record.properties.get("TAGS", "")
        units += tables.UNIT.pack(record.physical_offset, len(made), tables.java_hash(tag))
        for key in keys_of(record):
            index.put(tables.key_hash(record.topic, key), record.physical_offset, record.store_timestamp)
        log += made
    left = LOG_BYTES - len(log)
    log += left.to_bytes(4, "big") + tables.BLANK.to_bytes(4, "big")
    return {"commitlog": log.ljust(LOG_BYTES, b"\0"), "consumequeue": units + bytes(20), "index": bytes(index.file)}


def golden(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def test_golden_files_themselves_are_unchanged() -> None:
    assert {name: hashlib.sha256(golden(name)).hexdigest() for name in FILES} == FILES


def test_the_tables_make_the_golden_files() -> None:
    assert {name: golden(name) for name in FILES} == build()


def test_the_core_writes_the_commit_log() -> None:
    made = b"".join(records.encode(record) for record in placed())
    made += _core.record_blank(LOG_BYTES - len(made))
    assert made.ljust(LOG_BYTES, b"\0") == golden("commitlog")


def test_the_core_reads_the_commit_log() -> None:
    data, at, found = golden("commitlog"), 0, []
    while (seen := records.scan(data, at, LOG_BEGIN + at)).record is not None:
        found.append(seen.record)
        at += seen.size
    assert found == placed()
    assert (seen.found, at + seen.size) == (Found.BLANK, LOG_BYTES)


def test_the_core_writes_and_reads_the_consume_queue() -> None:
    file = bytearray(golden("consumequeue"))
    made = bytearray(len(file))
    for n, record in enumerate(placed()):
        unit = _core.unit_get(file, n)
        size = len(records.encode(record))
        assert unit == (record.physical_offset, size, _core.tags_code(record.properties.get("TAGS", "").encode()))
        _core.unit_put(made, n, *unit)
    assert _core.unit_get(file, len(RECORDS)) is None
    assert made == file


def test_the_core_writes_and_reads_the_key_index() -> None:
    made = bytearray(formats.key_index_bytes(SLOTS, ENTRIES))
    index = _core.KeyIndex(made, SLOTS, ENTRIES)
    for record in placed():
        for key in keys_of(record):
            hashed = _core.key_hash(record.topic.encode(), key.encode())
            index.put(hashed, record.physical_offset, record.store_timestamp)
    index.close()
    assert made == golden("index")
    reader = _core.KeyIndex(golden("index"), SLOTS, ENTRIES, writable=False)
    first, second, *_ = placed()
    found, word = reader.find(_core.key_hash(b"flights", b"N14228"), 0, NOW + 10_000, True, 10)
    assert ([entry[1] for entry in found], word) == ([second.physical_offset, first.physical_offset], "end")
    reader.close()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in build().items():
        (FOLDER / name).write_bytes(content)
        print(f'    "{name}": "{hashlib.sha256(content).hexdigest()}",')
