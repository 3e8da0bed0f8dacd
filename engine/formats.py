"""Every file format of the data directory that carries records, declared once.

`engine/core/formats.h` and the tables of `docs/formats.md` are generated from this file. All numbers in files are
big-endian, so that a data directory can be read anywhere.

A segment file (message store `<n>.rdq`, queue journal `<n>.jnl`) is one header page followed by frames without gaps.
A frame is valid if and only if: its size fits the file, its last byte is 0xFF, its envelope version is known, and its
CRC32C (seeded with the salt of the file's header, over size, id and everything up to the marker but for the crc field
itself) matches. A padding frame fills the rest of a 4 KiB block after a group commit; its CRC covers size, id and envelope only.
The first byte that is not the start of a valid frame ends the readable part of the last file: the torn tail.
"""

from __future__ import annotations

from warren.ipc.declare import Field, Struct

FORMAT_VERSION = 1
FILE_MAGIC = b"WRNSEG01"
FILE_HEADER_BYTES = 4096
FRAME_MARKER = 0xFF

#: kinds of frames
KIND_MESSAGE = 1  # store: a message
KIND_ADD_REFERENCE = 2  # store: one more reference to a message already stored
KIND_REMOVE = 3  # store: one reference less, for each id in the body (store API only; workers' come from the indexes)
KIND_PUBLISH = 8  # journal: a message enters queues
KIND_ACK = 9  # journal: ranges of sequences leave a queue
KIND_DELIVER = 10  # journal: ranges of sequences were delivered
KIND_MOVE = 11  # journal: ranges of one queue go to the end of another (claims of a subscription)
KIND_PADDING = 15

#: kinds of files
FILE_STORE = 1
FILE_JOURNAL = 2
FILE_SEGMENT = 3  # queue index segment `<n>.idx`: header page, then SEGMENT_ENTRY_COUNT entries by sequence modulo it

SEGMENT_ENTRY_COUNT = 16384

#: flags of a frame
FRAME_STORED = 1  # PUBLISH: the body is in the message store under the frame's id, not in this frame
FRAME_TRANSIENT = 2  # the message does not survive a restart

CONSTANTS: dict[str, int] = {
    "FORMAT_VERSION": FORMAT_VERSION,
    "FILE_HEADER_BYTES": FILE_HEADER_BYTES,
    "FRAME_MARKER": FRAME_MARKER,
    "KIND_MESSAGE": KIND_MESSAGE,
    "KIND_ADD_REFERENCE": KIND_ADD_REFERENCE,
    "KIND_REMOVE": KIND_REMOVE,
    "KIND_PUBLISH": KIND_PUBLISH,
    "KIND_ACK": KIND_ACK,
    "KIND_DELIVER": KIND_DELIVER,
    "KIND_MOVE": KIND_MOVE,
    "KIND_PADDING": KIND_PADDING,
    "FILE_STORE": FILE_STORE,
    "FILE_JOURNAL": FILE_JOURNAL,
    "FILE_SEGMENT": FILE_SEGMENT,
    "SEGMENT_ENTRY_COUNT": SEGMENT_ENTRY_COUNT,
    "FRAME_STORED": FRAME_STORED,
    "FRAME_TRANSIENT": FRAME_TRANSIENT,
}

# fmt: off
FILE_HEADER = Struct(
    "file_header",
    4096,
    "First page of a segment file.",
    (
        Field("magic", 0, "bytes", "`WRNSEG01`: protects against foreign files", 8),
        Field("version", 8, "u32", "FORMAT_VERSION: protects against newer directories"),
        Field("kind", 12, "u32", "FILE_STORE or FILE_JOURNAL"),
        Field("node_id", 16, "u64", "data directory this file belongs to: protects against swapped directories"),
        Field("owner", 24, "u32", "server index of the writer"),
        Field("file", 32, "u64", "file number: protects against renamed files"),
        Field("salt", 40, "u64", "random; seeds every CRC in the file: an old record in a recycled block never validates"),
        Field("created_ns", 48, "u64", "wall clock at creation, nanoseconds since 1970"),
        Field("crc", 4092, "u32", "CRC32C of the first 4092 bytes"),
    ),
    ">",
)

FRAME = Struct(
    "frame",
    56,
    "Head of a frame: the seed's `size | id` and the envelope that starts its body. Metadata, payload and the marker 0xFF follow.",
    (
        Field("size", 0, "u64", "16 + bytes of the body; the frame's total is size + 9"),
        Field("id", 8, "bytes", "message id (zero where there is none)", 16),
        Field("version", 24, "u8", "FORMAT_VERSION"),
        Field("kind", 25, "u8", "KIND_…"),
        Field("flags", 26, "u16", "FRAME_…"),
        Field("crc", 28, "u32", "CRC32C seeded with the file's salt"),
        Field("client_epoch", 32, "u64", "publisher; with `sequence` makes replay after a kill exactly once"),
        Field("sequence", 40, "u64", "number of the command in the publisher's ring to this server, plus 1"),
        Field("extra", 48, "u32", "MESSAGE: worker index + 1 of the holder or 0; REMOVE: ids in the body; PUBLISH: routes; ACK, DELIVER, MOVE: ranges"),
        Field("meta_length", 52, "u16", "bytes of metadata"),
        Field("reserved", 54, "u16", "zero"),
    ),
    ">",
)

ROUTE = Struct(
    "route",
    12,
    "PUBLISH: one queue of a message. The routes follow the frame head; then (FRAME_STORED) body_length:4; then metadata and payload.",
    (
        Field("queue", 0, "u32", "queue id"),
        Field("sequence", 4, "u64", "position in the queue"),
    ),
    ">",
)

RANGE = Struct(
    "range",
    24,
    "ACK, DELIVER: sequences first … first + count - 1 of a queue. MOVE: pairs: a source range, then its range in the target queue.",
    (
        Field("queue", 0, "u32", "queue id"),
        Field("count", 4, "u32", "sequences"),
        Field("first", 8, "u64", "first sequence"),
        Field("to", 16, "u64", "MOVE: first sequence in the target queue; else zero"),
    ),
    ">",
)

QUEUE_SEGMENT_ENTRY = Struct(
    "queue_segment_entry",
    64,
    "One message of a queue in its segment `<n>.idx`, at 4096 + 64 × (sequence mod 16384). All zero: no message (never, or no more).",
    (
        Field("crc", 0, "u32", "CRC32C, seeded with the salt of the file's header, of bytes 4 … 63: a torn or foreign entry is none"),
        Field("state", 4, "u8", "1: live"),
        Field("location", 5, "u8", "LOCATION_SEGMENT or LOCATION_STORE"),
        Field("delivery_count", 6, "u16", "deliveries before it was written here"),
        Field("id", 8, "bytes", "message id", 16),
        Field("sequence", 24, "u64", "position in the queue: protects against entries at a wrong place"),
        Field("file", 32, "u32", "segment data file `<file>.dat`"),
        Field("offset", 36, "u32", "byte offset of the frame in it"),
        Field("frame_length", 40, "u32", "bytes of the frame"),
        Field("body_length", 44, "u32", "bytes of metadata + payload"),
        Field("blob_offset", 48, "u16", "start of metadata in the frame"),
        Field("meta_length", 50, "u16", "bytes of metadata"),
        Field("queue", 52, "u32", "queue id: protects against moved files"),
        Field("reserved", 56, "u64", "zero"),
    ),
    ">",
)

# fmt: on
STRUCTS = (FILE_HEADER, FRAME, ROUTE, RANGE, QUEUE_SEGMENT_ENTRY)

#: prefix of a padding frame's id
PADDING_ID = b"warren padding\0\0"
FRAME_BYTES_MIN = FRAME.size + 1
CONSTANTS["FRAME_HEAD_BYTES"] = FRAME.size
CONSTANTS["FRAME_BYTES_MIN"] = FRAME_BYTES_MIN
