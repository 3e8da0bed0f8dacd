"""Rows that the C core hands to Python as arrays, declared once: native order, in the memory of one process.

`engine/kernel/rows.h` is generated from this file (`python -m warren.tools.generate_layout`): the C structures, and what
proves their sizes and offsets when they are compiled. numpy reads them by `Struct.columns`. Nothing of this is ever
written to a file or seen by another process.
"""

from __future__ import annotations

from warren.ipc.declare import Field, Struct

# fmt: off
FRAME_ROW = Struct(
    "frame_row",
    64,
    "One frame found by a scan.",
    (
        Field("offset", 0, "u64", "of the frame in the file"),
        Field("total", 8, "u64", "bytes of the frame"),
        Field("id", 16, "bytes", "message id", 16),
        Field("client_epoch", 32, "u64", "publisher"),
        Field("sequence", 40, "u64", "of the publisher's command"),
        Field("extra", 48, "u32", "as in the frame"),
        Field("flags", 52, "u16", "FRAME_…"),
        Field("meta_length", 54, "u16", "bytes of metadata"),
        Field("kind", 56, "u8", "KIND_…"),
        Field("part", 58, "u16", "as in the frame"),
    ),
)

SEGMENT_ROW = Struct(
    "segment_row",
    80,
    "One entry of a queue on its way to a segment. No byte without a field: numpy does not copy what none covers.",
    (
        Field("queue", 0, "u32", "queue id"),
        Field("location", 4, "u32", "where the body will be"),
        Field("sequence", 8, "u64", "position in the queue"),
        Field("due", 16, "u64", "of a delayed message, else 0"),
        Field("id", 24, "bytes", "message id", 16),
        Field("file", 40, "u32", "of the body; Python changes it, offset and location of embedded bodies"),
        Field("offset", 44, "u32", "of the frame in that file"),
        Field("frame_length", 48, "u32", "bytes of the frame"),
        Field("body_length", 52, "u32", "bytes of metadata and payload"),
        Field("blob_offset", 56, "u16", "start of metadata in the frame"),
        Field("meta_length", 58, "u16", "bytes of metadata"),
        Field("index_file", 60, "u32", "journal file with the index record"),
        Field("where", 64, "u8", "where the body is now, LOCATION_…"),
        Field("rest", 65, "bytes", "of the entry, C's own", 15),
    ),
)

SEGMENT_ACK = Struct(
    "segment_ack",
    32,
    "Entries of a segment whose messages have gone.",
    (
        Field("queue", 0, "u32", "queue id"),
        Field("count", 4, "u32", "sequences"),
        Field("first", 8, "u64", "first sequence"),
        Field("token", 16, "u64", "the batch with the ACK frame; UINT64_MAX: a MOVE frame, which needs the entries as long as its file is there"),
        Field("file", 24, "u32", "journal file with the frame"),
    ),
)

LOG_ROW = Struct(
    "log_row",
    104,
    "One record found in a part of the topics' commit log. Places are in that part; 0: there is none.",
    (
        Field("position", 0, "u64", "of the record in the log"),
        Field("queue_offset", 8, "u64", "n-th message of its queue"),
        Field("born_timestamp", 16, "u64", "milliseconds since 1970"),
        Field("store_timestamp", 24, "u64", "milliseconds since 1970"),
        Field("prepared", 32, "u64", "prepared_transaction_offset"),
        Field("tags_code", 40, "u64", "what a consume queue has of its tag"),
        Field("size", 48, "u32", "bytes of the record"),
        Field("queue_id", 52, "u32", "queue of the topic"),
        Field("flag", 56, "u32", "id of the topic"),
        Field("sys_flag", 60, "u32", "SYS_…"),
        Field("reconsume_times", 64, "u32", "deliveries that failed before"),
        Field("body_at", 68, "u32", "where the body begins"),
        Field("body_length", 72, "u32", "bytes of the body"),
        Field("topic_at", 76, "u32", "where the topic begins"),
        Field("properties_at", 80, "u32", "where the properties begin"),
        Field("keys_at", 84, "u32", "where the value of KEYS begins"),
        Field("tag_at", 88, "u32", "where the value of TAGS begins"),
        Field("topic_length", 92, "u16", "bytes of the topic"),
        Field("properties_length", 94, "u16", "bytes of the properties"),
        Field("keys_length", 96, "u16", "bytes of KEYS"),
        Field("tag_length", 98, "u16", "bytes of TAGS"),
        Field("commit", 100, "u8", "1: it ends a commit"),
    ),
)

# fmt: on
STRUCTS = (FRAME_ROW, SEGMENT_ACK, LOG_ROW)
#: structures that C writes by hand, because a part of them is another structure, with the C names of fields that have
#: other ones; the header has what proves that both agree, WR_<NAME>_AGREES
WITHIN = (
    (
        SEGMENT_ROW,
        {
            **{f.name: f"entry.{f.name}" for f in SEGMENT_ROW.fields if 24 <= f.offset < 64},
            "where": "entry.location",
            "rest": "entry.state",
        },
    ),
)
