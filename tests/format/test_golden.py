"""Goal: files of every released format version can be read for ever, and today's code writes the newest one bit by bit.

Method: one committed golden file per version with a frame of each kind, compared with what the code makes and finds.
A changed format gets a new version, a new golden file and a reader for the old; an old one is never written again.
To make the file of a new version: python tests/format/test_golden.py
"""

import hashlib
import os
import sys
from pathlib import Path

import numpy as np

from warren.engine import _core
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.catalog import Catalog
from warren.engine.kernel import file_register, frame, segment
from warren.engine.kernel.formats import (
    FILE_HEADER_BYTES,
    FILE_JOURNAL,
    FILE_SEGMENT,
    FILE_STORE,
    FRAME_BYTES_MIN,
    FRAME_KEYED,
    FRAME_PRIORITY_SHIFT,
    FRAME_STORED,
    FRAME_TIMED,
    FRAME_TRANSIENT,
    KIND_ACK,
    KIND_ADD_REFERENCE,
    KIND_DELAY,
    KIND_MESSAGE,
    KIND_MOVE,
    KIND_PUBLISH,
    KIND_REMOVE,
    LISTED_DATA,
    LISTED_INDEX,
    LISTED_JOURNAL,
    LISTED_SUBSCRIPTIONS,
    LISTED_TERMS,
    QUEUE_SEGMENT_ENTRY,
    RANGE,
    ROUTE,
    SEEN_KEY,
    SEGMENT_ENTRY_COUNT,
    TERM,
    TIMES,
)
from warren.engine.queues import segment_stamp, terms
from warren.engine.queues.flush import ROW
from warren.engine.queues.folder import Folder

from support import large_file

FOLDER = Path(__file__).parent / "golden"
V1 = FOLDER / "v1.jnl"
V1_SHA256 = "4bb26a363c715a18302263ecc4fb41a2d67136e98b0657f0a7d7736596df580e"
PLACE = {"kind": FILE_JOURNAL, "node_id": 0x0102030405060708, "owner": 3, "file": 9}
SALT = 0xF0E1D2C3B4A59687
TIMED_V1 = FOLDER / "timed-v1.jnl"
TIMED_V1_SHA256 = "fe1410e0473fcf9b8e91e1f2bb3bfb3ee6493a30116cb6513c020ec97e847905"
INDEX_V1 = FOLDER / "index-v1.idx"
INDEX_V1_SHA256 = "71e62b8ce913751762c6776e6db73c276dac2a7f9962e90f10de458962526dbf"
LIST_V1 = FOLDER / "list-v1.lst"
LIST_V1_SHA256 = "8504ae65b70cdf30fcaad811c523914ede5eaedc8965bfbad836607ddcd63d17"
FILES_V1 = FOLDER / "files-v1"
FILES_V1_SHA256 = "cbea2b5bc88602afe99fdf0fb73f712b17784d65d93f6d9aee7f6cb8bf65f62b"
TERMS_V1 = FOLDER / "terms-v1"
TERMS_V1_SHA256 = "87362e308032c85129999c9041c89a4c97f9bed3ae667c15da3d35603600bc4d"
QUEUE_TERMS_V1 = FOLDER / "queue-terms-v1"
QUEUE_TERMS_V1_SHA256 = "e97f14ca3d932f7f7f3ddc5195d04bde961585990f7172bd7997119b6783d47a"
LARGE_V1 = FOLDER / "large-v1"
LARGE_V1_SHA256 = "da72854f832c32f5b1ee75dea6bd6d61e0a135fb66207482333e68258a23f13c"
CREATED_NS = 1_700_000_000_000_000_000


def route(queue: int, sequence: int) -> bytes:
    data = bytearray(ROUTE.size)
    ROUTE.pack_into(data, "queue", queue)
    ROUTE.pack_into(data, "sequence", sequence)
    return bytes(data)


def range_(queue: int, count: int, first: int, to: int = 0) -> bytes:
    data = bytearray(RANGE.size)
    for name, value in (("queue", queue), ("count", count), ("first", first), ("to", to)):
        RANGE.pack_into(data, name, value)
    return bytes(data)


#: (kind, id, flags, client_epoch, sequence, extra, meta_length, body) of each frame of version 1
FRAMES = [
    (KIND_MESSAGE, bytes(range(16)), 0, 1 << 32 | 5, 1, 3, 4, b"metapayload"),
    (KIND_ADD_REFERENCE, bytes(range(16)), 0, 1 << 32 | 5, 2, 0, 0, b""),
    (KIND_REMOVE, bytes(16), 0, 1 << 32 | 5, 3, 2, 0, bytes(range(16)) + b"\xee" * 16),
    (KIND_PUBLISH, bytes(range(16, 32)), 0, 1 << 32 | 6, 1, 2, 0, route(7, 0) + route(8, 99) + b"embedded"),
    (KIND_PUBLISH, bytes(range(32, 48)), FRAME_STORED, 1 << 32 | 6, 2, 1, 0, route(7, 1) + b"\0\1\0\0"),
    (KIND_PUBLISH, b"\xff" * 16, FRAME_TRANSIENT, (1 << 64) - 1, (1 << 64) - 1, 1, 5, route(7, 2) + b"\xff" * 300),
    (KIND_DELAY, bytes(16), 0, 0, 0, 1, 0, range_(7, 3, 0)),
    (KIND_ACK, bytes(16), 0, 0, 0, 2, 0, range_(7, 2, 0) + range_(8, 1, 99)),
    (KIND_MOVE, bytes(16), 0, 0, 0, 2, 0, range_(8, 10, 100, 1 << 40) + range_(9, 10, 1 << 40)),
]


def build() -> bytes:
    """The file as today's code writes it: after the fourth frame and at the end padding to a page, then zeros."""
    data = _core.file_header_pack(PLACE["kind"], PLACE["node_id"], PLACE["owner"], PLACE["file"], SALT, CREATED_NS)
    for number, (kind, id, flags, client_epoch, sequence, extra, meta_length, body) in enumerate(FRAMES):
        data += _core.frame_encode(kind, id, flags, client_epoch, sequence, extra, meta_length, body, SALT)
        if number in (3, len(FRAMES) - 1):
            data += frame.pad(-len(data) % 4096, salt=SALT)
    return data + bytes(4096)


def test_golden_file_itself_is_unchanged() -> None:
    assert hashlib.sha256(V1.read_bytes()).hexdigest() == V1_SHA256


def test_version_1_is_written_as_ever() -> None:
    assert build() == V1.read_bytes()


def test_version_1_is_read() -> None:
    found = segment.scan_file(V1, **PLACE)
    assert found.header == segment.Header(1, FILE_JOURNAL, PLACE["node_id"], 3, 9, SALT, CREATED_NS, 9, 9)
    assert (found.frames.end, found.frames.reason) == (3 * 4096, "zeros")
    assert len(found.frames) == len(FRAMES)
    for row, (kind, id, flags, client_epoch, sequence, extra, meta_length, body) in zip(
        found.frames.rows, FRAMES, strict=True
    ):
        offset, total = int(row["offset"]), int(row["total"])
        assert frame.check(found.data, offset, SALT) == (
            total, kind, flags, id, client_epoch, sequence, extra, meta_length
        )  # fmt: skip
        assert frame.body(found.data, offset, total) == body


def test_padding_of_version_1() -> None:
    """Padding lies where a group commit ended, fills its page, and is no shorter than a frame can be."""
    data = V1.read_bytes()
    for page_end in (2 * 4096, 3 * 4096):
        size = next(
            size for size in range(FRAME_BYTES_MIN, 4096) if frame.check(data, page_end - size, SALT) is not None
        )
        made = frame.pad(size, salt=SALT)
        assert data[page_end - size : page_end] == made


def test_version_1_ends_where_its_salt_ends() -> None:
    assert len(frame.scan(V1.read_bytes(), SALT + 1)) == 0
    assert frame.scan(V1.read_bytes(), SALT + 1).end == FILE_HEADER_BYTES


# -- messages with times, and the queue index --------------------------------------------------------------------------


def times(published: int, expires: int, due: int) -> bytes:
    data = bytearray(TIMES.size)
    for name, value in (("published", published), ("expires", expires), ("due", due)):
        TIMES.pack_into(data, name, value)
    return bytes(data)


KEY = b"key of 16 bytes!"
#: (flags, body) of each PUBLISH to one queue
TIMED = [
    (FRAME_TIMED | 9 << FRAME_PRIORITY_SHIFT, route(7, 3) + times(1000, 2000, 0) + b"metapayload"),
    (FRAME_TIMED | FRAME_KEYED, route(7, 4) + times((1 << 48) - 1, 0, (1 << 48) - 2) + KEY + b"metapayload"),
    (FRAME_TIMED | FRAME_KEYED | FRAME_STORED, route(7, 5) + b"\0\1\0\0" + times(1, 2, 3) + KEY),
]


def build_timed() -> bytes:
    data = _core.file_header_pack(PLACE["kind"], PLACE["node_id"], PLACE["owner"], PLACE["file"], SALT, CREATED_NS)
    for number, (flags, body) in enumerate(TIMED):
        data += _core.frame_encode(KIND_PUBLISH, bytes(range(16)), flags, 1 << 32 | 6, number + 1, 1, 4, body, SALT)
    dead = range_(7, 3, 3, 0) + range_(9, 3, 0, 2)  # to the dead letters, expired
    return data + _core.frame_encode(KIND_MOVE, bytes(16), 0, 0, 0, 2, 0, dead, SALT)


def build_index() -> bytes:
    """Two entries of queue 7: sequence 16384 × 2 + 1, and the one after it, dead and of the highest numbers."""
    data = _core.file_header_pack(FILE_SEGMENT, PLACE["node_id"], PLACE["owner"], 2, SALT, CREATED_NS)
    rows = np.zeros(2, ROW)
    rows["queue"] = 7
    rows["sequence"] = (2 * SEGMENT_ENTRY_COUNT + 1, 2 * SEGMENT_ENTRY_COUNT + 2)
    rows["due"] = (0, (1 << 48) - 2)
    rows["id"] = [bytes(range(16)), b"\xff" * 16]
    rows["file"], rows["offset"] = (9, 0xFFFF_FFFF), (4096, 0xFFFF_FFFE)
    rows["frame_length"], rows["body_length"] = (100, 0xFFFF_FFFD), (40, 0xFFFF_FFFC)
    rows["blob_offset"], rows["meta_length"] = (68, 0xFFFF), (4, 0xFFFE)
    rows["where"] = (3, 4)
    # state, flags, holder, delivery_count:2, delivery:2, then expires:6, priority and reason
    life = (bytes(15), b"\1\2\0\x02\1\0\0" + ((1 << 48) - 1).to_bytes(6, "little") + bytes([9, 4]))
    rows["rest"] = life
    return data + bytes(QUEUE_SEGMENT_ENTRY.size) + _core.QueueEngine.encode_entries(rows.tobytes(), SALT)


def test_times_and_keys_of_version_1_are_written_as_ever() -> None:
    assert hashlib.sha256(TIMED_V1.read_bytes()).hexdigest() == TIMED_V1_SHA256
    assert build_timed() == TIMED_V1.read_bytes()


def test_index_entries_of_version_1_are_written_as_ever() -> None:
    assert hashlib.sha256(INDEX_V1.read_bytes()).hexdigest() == INDEX_V1_SHA256
    assert build_index() == INDEX_V1.read_bytes()
    first, last = (INDEX_V1.read_bytes()[4096 + at * 64 : 4160 + at * 64] for at in (1, 2))
    names = ("state", "location", "delivery_count", "expires", "priority", "reason", "due", "meta_length")
    assert [QUEUE_SEGMENT_ENTRY.unpack(first, name) for name in names] == [1, 3, 0, 0, 0, 0, 0, 4]
    limits = [1, 4, 0x102, (1 << 48) - 1, 9, 4, (1 << 48) - 2, 0xFFFE]
    assert [QUEUE_SEGMENT_ENTRY.unpack(last, name) for name in names] == limits


# -- lists of the store's files ---------------------------------------------------------------------------------------

LIST_FILE = 11


def build_listed() -> bytes:
    """A store's file with a run, sizes that differ, references, removes, a batch, and a last padding."""
    data = _core.file_header_pack(FILE_STORE, PLACE["node_id"], 1, LIST_FILE, SALT, CREATED_NS, 3, 5)
    ids = [(1 << 32 | 5).to_bytes(8, "big") + n.to_bytes(8, "big") for n in range(100)]
    for n in range(10):
        data += frame.encode(KIND_MESSAGE, b"same", salt=SALT, id=ids[n], client_epoch=5, sequence=n + 1)
    for n in range(10, 20):
        body = bytes(n)
        data += frame.encode(
            KIND_MESSAGE, body, salt=SALT, id=ids[n], client_epoch=6, sequence=n, extra=2, meta_length=3
        )
    data += frame.pad(-len(data) % 4096, salt=SALT)
    data += frame.encode(KIND_ADD_REFERENCE, salt=SALT, id=ids[3], client_epoch=6, sequence=77)
    removes = b"".join((*ids[5:9], ids[50], b"\xff" * 16))
    data += frame.encode(KIND_REMOVE, removes, salt=SALT, client_epoch=7, sequence=1, extra=6)
    return data + frame.pad(-len(data) % 4096, salt=SALT, last=True) + b"\xee" * 4096


def build_list() -> bytes:
    found, reason = _core.scan_list(LIST_FILE, SALT, build_listed())
    assert reason == "end"
    return found.encode(PLACE["node_id"], 1)


def test_list_of_version_1_is_written_as_ever() -> None:
    assert hashlib.sha256(LIST_V1.read_bytes()).hexdigest() == LIST_V1_SHA256
    assert build_list() == LIST_V1.read_bytes()


def test_list_of_version_1_is_read() -> None:
    data = build_listed()
    found = _core.decode_list(LIST_V1.read_bytes(), PLACE["node_id"], 1, LIST_FILE, SALT, len(data))
    assert not isinstance(found, str)
    assert (found.file, found.salt, found.used) == (LIST_FILE, SALT, 3 * 4096)
    assert (found.messages, found.controls, found.damaged) == (20, 7, 0)
    assert found.waters == {5: 10 << 16 | 0xFFFF, 6: 77 << 16 | 0xFFFF, 7: 1 << 16 | 0xFFFF}
    kinds = [kind for _id, _offset, _total, _extra, _meta, kind in found.items()]
    assert kinds == [KIND_MESSAGE] * 20 + [KIND_ADD_REFERENCE] + [KIND_REMOVE] * 6
    for id, offset, total, extra, meta_length, kind in found.items():
        at = frame.check(data, offset, SALT)
        assert at is not None
        assert (at.total, at.kind) == (total, kind)
        if kind != KIND_REMOVE:
            assert (at.id, at.extra, at.meta_length) == (id, extra, meta_length)
    assert found.verify(data) == ([], 0)


# -- the catalog and its log ------------------------------------------------------------------------------------------

CATALOG_V1, CATALOG_V2 = FOLDER / "catalog-v1.json", FOLDER / "catalog-v2.json"
CATALOG_V3, CATALOG_V4 = FOLDER / "catalog-v3.json", FOLDER / "catalog-v4.json"
CATALOG_LOG_V1, CATALOG_LOG_V2 = FOLDER / "catalog-v1.log", FOLDER / "catalog-v2.log"
CATALOG_LOG_V3, CATALOG_LOG_V4 = FOLDER / "catalog-v3.log", FOLDER / "catalog-v4.log"
CATALOG_V5 = FOLDER / "catalog-v5.json"
STAMP = 0xC0FFEE


def build_catalog(topics: bool = False, bound: bool = False) -> Catalog:
    made = Catalog()
    if topics:
        made.declare_topic("flights", queues=3, retention_s=0.5, retention_bytes=1 << 40)
        made.declare_topic("newest", compacted=True)
    made.declare_queue("orders", workers_n=2, arguments={"message_ttl": 5, "dead_letter_exchange": ""})
    made.declare_queue("mine", workers_n=2, durable=False, arguments={"exclusive": True}, client=1 << 32 | 5)
    made.declare_exchange("events", type="topic", alternate="rest")
    made.declare_exchange("rest", type="headers", durable=False)
    made.declare_subscription("orders", "report")
    made.bind("orders", "events", "order.#")
    made.bind("orders", "rest", arguments={"x-match": "any", "kind": "é", "n": 1.5, "some": None})
    if bound:
        made.bind_topic("flights", "events", "#")
        made.bind_topic("newest", "rest", arguments={"kind": "é"}, key="header:place", tag=None)
    made.placed_for = 2
    return made


def build_onward() -> Catalog:
    """What only the newest format version has room for."""
    made = build_catalog(topics=True, bound=True)
    made.log = STAMP
    made.declare_exchange(
        "inner", type="direct", internal=True, auto_delete=True, arguments={"a": [1, {"b": "é"}]}, origin={"x": None}
    )
    made.declare_queue("told", workers_n=2, origin={"x-queue-type": "classic", "x-max-length": 1})
    made.declare_topic("stream", queues=1, by_name=True, origin={"x-queue-type": "stream"})
    made.bind_exchange("inner", "events", "order.#", {"n": 1.5})
    made.bind("told", "inner", "k", {"n": 2})
    made.bind("told", "amq.match", arguments={"kind": "é"})
    return made


def build_catalog_log(onward: bool = False) -> bytes:
    """One change of everything, and one of little, from what `build_catalog` made."""
    made = build_catalog(topics=True, bound=True)
    content = catalog_log.encode_head(made.version, STAMP)
    for change in (
        lambda: (made.delete_topic("flights"), made.declare_topic("flights", queues=1)),
        lambda: (made.delete_queue("orders"), made.declare_queue("orders", workers_n=2), made.delete_exchange("rest")),
        lambda: made.bind("orders", "events", "a.*"),
        lambda: made.bind_topic("flights", "events", "a.*", key="correlation_id"),
        *(
            (lambda: made.declare_exchange("end", internal=True), lambda: made.bind_exchange("end", "events"))
            if onward
            else ()
        ),
    ):
        before = made.version
        made.begin()
        change()
        content += catalog_log.encode_change(STAMP, before, made.state, made.steps or [])
        made.end()
    return content


def build_catalog_beside(topics: bool = False, bound: bool = False) -> bytes:
    made = build_catalog(topics, bound)
    made.log = STAMP
    return made.encode()


def test_the_catalog_is_written_as_ever() -> None:
    assert build_catalog().encode() == CATALOG_V1.read_bytes()
    assert build_catalog_beside() == CATALOG_V2.read_bytes()
    assert build_catalog_beside(topics=True) == CATALOG_V3.read_bytes()
    assert build_catalog_beside(topics=True, bound=True) == CATALOG_V4.read_bytes()
    assert build_onward().encode() == CATALOG_V5.read_bytes()
    assert build_catalog_log(onward=True) == CATALOG_LOG_V4.read_bytes()


def test_the_catalog_is_read(tmp_path: Path) -> None:
    (tmp_path / "catalog.json").write_bytes(CATALOG_V1.read_bytes())
    found = Catalog.load(tmp_path)
    assert found.encode() == build_catalog().encode()
    assert found.queue("orders").policy.message_ttl == 5.0
    (tmp_path / "catalog.json").write_bytes(CATALOG_V2.read_bytes())
    (tmp_path / f"catalog.{found.version}.log").write_bytes(CATALOG_LOG_V1.read_bytes())
    loaded = catalog_log.load(tmp_path)
    assert (loaded.changes, loaded.torn) == (2, 0)
    assert set(loaded.catalog.queues) == {"orders", "mine"}
    assert [item.routing_key for item in loaded.catalog.bindings] == ["a.*"]
    assert set(loaded.catalog.exchanges) == set(build_catalog().exchanges) - {"rest"}
    (tmp_path / "catalog.json").write_bytes(CATALOG_V3.read_bytes())
    found = build_catalog(topics=True)
    (tmp_path / f"catalog.{found.version}.log").write_bytes(CATALOG_LOG_V2.read_bytes())
    loaded = catalog_log.load(tmp_path)
    assert (loaded.changes, loaded.torn) == (3, 0)
    flights, newest = loaded.catalog.topics["flights"], loaded.catalog.topics["newest"]
    assert (flights.queues, flights.retention_s, newest) == (1, None, found.topics["newest"])
    assert flights.id > max(found.topics_by_id)
    (tmp_path / "catalog.json").write_bytes(CATALOG_V4.read_bytes())
    found = build_catalog(topics=True, bound=True)
    (tmp_path / f"catalog.{found.version}.log").write_bytes(CATALOG_LOG_V3.read_bytes())
    loaded = catalog_log.load(tmp_path)
    assert (loaded.changes, loaded.torn) == (4, 0)
    assert [(item.exchange, item.routing_key, item.key, item.tag) for item in loaded.catalog.topic_bindings] == [
        ("events", "a.*", "correlation_id", "routing_key")
    ], "the others went with the topic and the exchange"
    (tmp_path / f"catalog.{found.version}.log").write_bytes(CATALOG_LOG_V4.read_bytes())
    loaded = catalog_log.load(tmp_path)
    assert [(item.exchange, item.destination) for item in loaded.catalog.exchange_bindings] == [("events", "end")]
    assert loaded.catalog.exchanges["end"].internal
    newest = Catalog.decode(CATALOG_V5.read_bytes(), CATALOG_V5)
    assert newest.encode() == build_onward().encode()
    assert newest.exchanges["inner"] == build_onward().exchanges["inner"]
    assert [(item.destination, item.arguments) for item in newest.exchange_bindings] == [("inner", {"n": 1.5})]
    assert (newest.queues["told"].origin, newest.topics["stream"].by_name) == (
        build_onward().queues["told"].origin,
        True,
    )


# -- lists of a queue worker's files, stamps of its segments ----------------------------------------------------------

FILES = {
    (LISTED_JOURNAL, 0, 12): file_register.Entry(SALT, 16 << 20, 0, False),
    (LISTED_JOURNAL, 0, 11): file_register.Entry(SALT - 1, 8192, 0, True),
    (LISTED_DATA, 0, (1 << 32) - 1): file_register.Entry(5, 1 << 33),
    (LISTED_INDEX, (1 << 32) - 2, 77): file_register.Entry((1 << 64) - 1, 9, 16384),
    (LISTED_TERMS, 8, 0): file_register.Entry(),
    (LISTED_SUBSCRIPTIONS, 0, 0): file_register.Entry(),
}


def build_files() -> bytes:
    """A list, and behind it the stamp of one of its segments."""
    return file_register.encode(PLACE["node_id"], 3, SALT, FILES) + segment_stamp.stamp(SALT, 9, 77, 12)


def test_lists_of_files_of_version_1_are_written_and_read_as_ever(tmp_path: Path) -> None:
    content = FILES_V1.read_bytes()
    assert hashlib.sha256(content).hexdigest() == FILES_V1_SHA256
    assert build_files() == content
    path = tmp_path / "files"
    path.write_bytes(content[: -segment_stamp.STAMP_BYTES])
    found = file_register.read(path, PLACE["node_id"], 3)
    assert (found.there, found.problem, found.entries) == (True, "", FILES)
    assert segment_stamp.changes_of(content[-segment_stamp.STAMP_BYTES :], SALT, 9, 77) == 12
    assert segment_stamp.changes_of(content[-segment_stamp.STAMP_BYTES :], SALT, 9, 78) is None
    path.write_bytes(content[: -segment_stamp.STAMP_BYTES - 1])
    assert "lost 1 of its records" in file_register.read(path, PLACE["node_id"], 3).problem
    assert "another worker" in file_register.read(path, PLACE["node_id"], 4).problem


def term(sequence: int, delivery_count: int, redelivered_n: int) -> bytes:
    data = bytearray(TERM.size)
    for name, value in (("sequence", sequence), ("delivery_count", delivery_count), ("redelivered_n", redelivered_n)):
        TERM.pack_into(data, name, value)
    return bytes(data)


def seen_key(queue: int, published: int, key: bytes) -> bytes:
    data = bytearray(SEEN_KEY.size)
    SEEN_KEY.pack_into(data, "queue", queue)
    SEEN_KEY.pack_into(data, "published", published)
    SEEN_KEY.set_bytes(data, "key", key)
    return bytes(data)


#: two queues of which one was delivered to nobody; a run of marks, one message without a mark, the largest numbers
TERMS = terms.Terms(1, PLACE["node_id"], 3, 9, 8192, {7: (100, term(5, 1, 3) + term(9, 2, 0)), 8: (1 << 40, b"")})
QUEUE_TERMS = terms.QueueTerms(
    1,
    PLACE["node_id"],
    3,
    7,
    (1 << 64) - 1,
    term((1 << 62) + 1, 65535, (1 << 32) - 1),
    seen_key(7, 1, bytes(range(16))),
)


def test_terms_of_version_1_are_written_and_read_as_ever(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    content = TERMS_V1.read_bytes()
    assert hashlib.sha256(content).hexdigest() == TERMS_V1_SHA256
    assert terms.encode(TERMS) == content
    folder.terms.write_bytes(content)
    assert terms.read_terms(folder, PLACE["node_id"], 3) == TERMS
    assert terms.read_terms(folder, PLACE["node_id"], 4) is None
    for at in range(len(content)):
        folder.terms.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert terms.read_terms(folder, PLACE["node_id"], 3) is None, at


def test_terms_of_a_moved_queue_of_version_1_are_written_and_read_as_ever(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    content = QUEUE_TERMS_V1.read_bytes()
    assert hashlib.sha256(content).hexdigest() == QUEUE_TERMS_V1_SHA256
    terms.write_queue_terms(folder, QUEUE_TERMS)
    assert folder.queue_terms(7).read_bytes() == content
    assert terms.read_queue_terms(folder, 7) == QUEUE_TERMS


LARGE_ID = bytes(range(200, 216))


def test_the_file_of_a_large_message_of_version_1_is_written_and_read_as_ever(tmp_path: Path) -> None:
    """What a client writes: tests/queues/test_large_messages.py."""
    content = LARGE_V1.read_bytes()
    assert hashlib.sha256(content).hexdigest() == LARGE_V1_SHA256
    body = bytes(range(256)) * 4
    assert large_file.built(PLACE["node_id"], LARGE_ID, b"metadata", body) == content
    path = tmp_path / LARGE_ID.hex()
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:

        def found(changed: bytes = content, node: int = PLACE["node_id"]) -> tuple[int, int, str]:
            path.write_bytes(changed)
            return _core.large_check(folder, node, LARGE_ID)

        assert found() == (len(b"metadata" + body), len(b"metadata"), "")
        assert found(node=7)[2] == "node"
        assert found(content[:-1])[2] == "size"
        for at in range(len(content)):
            changed = bytearray(content)
            changed[at] ^= 4
            assert found(bytes(changed))[2] in ("magic", "version", "size", "crc", "node", "message"), at
    finally:
        os.close(folder)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    CATALOG_V1.write_bytes(build_catalog().encode())
    CATALOG_V2.write_bytes(build_catalog_beside())
    CATALOG_V3.write_bytes(build_catalog_beside(topics=True))
    CATALOG_V4.write_bytes(build_catalog_beside(topics=True, bound=True))
    CATALOG_LOG_V3.write_bytes(build_catalog_log())
    V1.write_bytes(build())
    LIST_V1.write_bytes(build_list())
    TIMED_V1.write_bytes(build_timed())
    INDEX_V1.write_bytes(build_index())
    FILES_V1.write_bytes(build_files())
    TERMS_V1.write_bytes(terms.encode(TERMS))
    QUEUE_TERMS_V1.write_bytes(terms.encode(QUEUE_TERMS))
    LARGE_V1.write_bytes(large_file.built(PLACE["node_id"], LARGE_ID, b"metadata", bytes(range(256)) * 4))
    for path in (V1, LARGE_V1, LIST_V1, TIMED_V1, INDEX_V1, FILES_V1, TERMS_V1, QUEUE_TERMS_V1):
        sys.stdout.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.name}\n")
