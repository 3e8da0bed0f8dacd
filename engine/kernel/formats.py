"""Every file format of the data directory that carries records, declared once.

`engine/kernel/formats.h` and the tables of `docs/formats.md` are generated from this file. All numbers in files are
big-endian, so that a data directory can be read anywhere.

A segment file (message store `<n>.rdq`, queue journal `<n>.jnl`) is one header page followed by frames without gaps.
A frame is valid if and only if: its size fits the file, its last byte is 0xFF, its envelope version is known, and its
CRC32C (seeded with the salt of the file's header, over size, id and everything up to the marker but for the crc field
itself) matches. A padding frame fills the rest of a 4 KiB block after a group commit; its CRC covers size, id and envelope only.
The first byte that is not the start of a valid frame ends the readable part of the last file: the torn tail.

What is declared is in two files of JSON. `catalog.json`: `{"crc32", "catalog": {…}}`, the CRC over the bytes of the inner
map: format_version, version, next_queue_id, placed_for, queues, exchanges, bindings; format version 2 has `log`, the stamp
of `catalog.<version>.log`, version 1 has no log; version 3 has `topics`, and `log` where there is one; version 4 has
`topic_bindings`, too; version 5 may have `exchange_bindings`, more of an exchange (internal, auto_delete, arguments), `origin`
of what another protocol declared, topics `by_name`, arguments of bindings to exchanges of any type, and queues with a
max_priority above 9 or overflow reject-publish-dlx. That log is lines: first `{"crc32", "log": {format_version, version,
stamp}}`, then for each change `{"crc32", "change": {before, version, next_queue_id, placed_for, steps}}`, the CRC begun with
the stamp, `before` the version that it was made from. Rules, readers and crash points: `engine/catalog/log.py`.

What queues remember over a clean stop or a move is in sealed files: a seal, then a map of msgpack. `terms` of a queue worker,
the mark of a clean stop: format_version, node_id, server, `file` and `end` (where the journal ends), `queues`: id → (next
sequence, terms). `segments/<queue>/terms` of a queue that was moved: format_version, node_id, server, queue, `next` sequence,
`rows` (terms), `keys` (seen_key records). Its terms are the one thing on disk that is little-endian.

Sinks have two kinds of files. `transactions/<sink>/state`: `{"crc32", "sink": {…}}`, the CRC over the bytes of the inner
map (`engine/transactions/state.py`). `transactions/<sink>/staged/…`, a part: magic, salt:8, then frames MESSAGE without an
id, `sequence` their number from 1, `extra` their rows, the body a msgpack array: destination [kind, name, id, queue], bodies, keys, tags, properties
(`engine/transactions/parts.py`).
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
KIND_DELAY = 10  # journal: ranges of sequences were returned, to wait
KIND_MOVE = 11  # journal: ranges of one queue go to the end of another (claims of a subscription)
KIND_KEYS = 12  # journal: keys for deduplication that were seen before this file
KIND_PADDING = 15

#: kinds of files
FILE_STORE = 1
FILE_JOURNAL = 2
FILE_SEGMENT = 3  # queue index segment `<n>.idx`: header page, then SEGMENT_ENTRY_COUNT entries by sequence modulo it

SEGMENT_ENTRY_COUNT = 16384

#: lists `<n>.lst`: what a store's file holds, without the bodies
LIST_MAGIC = b"WRNLST01"
LIST_VERSION = 1

#: `catalog.json`: alone, and with a log of changes beside it; that log, `catalog.<version>.log` (engine/catalog/log.py)
CATALOG_VERSION_ALONE = 1
CATALOG_VERSION_LOGGED = 2
CATALOG_VERSION_TOPICS = 3  # it has topics, and a log or none
CATALOG_VERSION_BOUND = 4  # it has topics that are bound to exchanges
CATALOG_VERSION = (
    5  # exchanges are bound to each other, are internal or auto_delete; origins; arguments of all bindings
)
CATALOG_LOG_VERSION = 4  # a step may be all that; of version 3: a binding of a topic; of version 2: a topic

#: `node.json`: 1 has the size of the processes' logs as the setting log_file_bytes; 2 does not name the superblock
NODE_VERSION_ROTATE = 2
NODE_VERSION = 3

#: `files` of a queue worker: what files its queue index consists of
FILES_MAGIC = b"WRNQFL01"
FILES_VERSION = 1
LISTED_JOURNAL = 1  # `journal/<number>.jnl`
LISTED_DATA = 2  # `segments/<number>.dat`
LISTED_INDEX = 3  # `segments/<queue>/<number>.idx`
LISTED_TERMS = 4  # `segments/<queue>/terms`
LISTED_SUBSCRIPTIONS = 5  # `subscriptions.json`
LISTED_STORE = 6  # `<number>.rdq` of a store

#: `state` of a sink; parts that its tasks stage
SINK_VERSION = 1
PART_MAGIC = b"WRNTXN01"
PART_HEADER_BYTES = 16

#: `large/<id>` of a queue worker: a message that is too large for shared memory
LARGE_MAGIC = b"WRNLARG1"
LARGE_VERSION = 1

#: sealed files: the terms of all queues of a worker, and of a queue that was moved
TERMS_MAGIC = b"WRNTERM1"
QUEUE_TERMS_MAGIC = b"WRNQTRM1"

#: flags of a frame
FRAME_STORED = 1  # PUBLISH: the body is in the message store under the frame's id, not in this frame
FRAME_TRANSIENT = 2  # the message does not survive a restart
FRAME_LAST = 4  # PADDING: nothing follows in this file
FRAME_TIMED = 8  # PUBLISH: times follow the routes (and the body's length)
FRAME_KEYED = 16  # PUBLISH: a key for deduplication follows the times; only together with FRAME_TIMED
FRAME_LARGE = 32  # PUBLISH with FRAME_STORED: the body is not in the message store, but in `large/<id>` of the worker
FRAME_PRIORITY_SHIFT = 8  # PUBLISH: bits 8 to 15 are the message's priority
FRAME_PRIORITY_MASK = 255

CONSTANTS: dict[str, int] = {
    "FORMAT_VERSION": FORMAT_VERSION,
    "FILE_HEADER_BYTES": FILE_HEADER_BYTES,
    "FRAME_MARKER": FRAME_MARKER,
    "KIND_MESSAGE": KIND_MESSAGE,
    "KIND_ADD_REFERENCE": KIND_ADD_REFERENCE,
    "KIND_REMOVE": KIND_REMOVE,
    "KIND_PUBLISH": KIND_PUBLISH,
    "KIND_ACK": KIND_ACK,
    "KIND_DELAY": KIND_DELAY,
    "KIND_MOVE": KIND_MOVE,
    "KIND_KEYS": KIND_KEYS,
    "KIND_PADDING": KIND_PADDING,
    "FILE_STORE": FILE_STORE,
    "FILE_JOURNAL": FILE_JOURNAL,
    "FILE_SEGMENT": FILE_SEGMENT,
    "SEGMENT_ENTRY_COUNT": SEGMENT_ENTRY_COUNT,
    "FRAME_STORED": FRAME_STORED,
    "FRAME_TRANSIENT": FRAME_TRANSIENT,
    "FRAME_LAST": FRAME_LAST,
    "FRAME_TIMED": FRAME_TIMED,
    "FRAME_KEYED": FRAME_KEYED,
    "FRAME_LARGE": FRAME_LARGE,
    "FRAME_PRIORITY_SHIFT": FRAME_PRIORITY_SHIFT,
    "FRAME_PRIORITY_MASK": FRAME_PRIORITY_MASK,
    "LIST_VERSION": LIST_VERSION,
    "LARGE_VERSION": LARGE_VERSION,
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
        Field("position_low", 56, "u64", "collected file: first position it stands for, plus 1; 0: its own number"),
        Field("position_high", 64, "u64", "collected file: last position it stands for, plus 1; 0: its own number"),
        Field("crc", 4092, "u32", "CRC32C of the first 4092 bytes"),
    ),
    ">",
)

FRAME = Struct(
    "frame",
    56,
    "Head of a frame: `size | id` as in RabbitMQ's classic store, and the envelope that starts its body. Metadata, payload and the marker 0xFF follow.",
    (
        Field("size", 0, "u64", "16 + bytes of the body; the frame's total is size + 9"),
        Field("id", 8, "bytes", "message id (zero where there is none)", 16),
        Field("version", 24, "u8", "FORMAT_VERSION"),
        Field("kind", 25, "u8", "KIND_…"),
        Field("flags", 26, "u16", "FRAME_…"),
        Field("crc", 28, "u32", "CRC32C seeded with the file's salt"),
        Field("client_epoch", 32, "u64", "publisher; with `sequence` makes replay after a kill exactly once"),
        Field("sequence", 40, "u64", "number of the command in the publisher's ring to this server, plus 1; PADDING: bytes of the file that were synced before"),
        Field("extra", 48, "u32", "MESSAGE: worker index + 1 of the holder or 0; REMOVE: ids in the body; PUBLISH: routes; ACK, DELAY, MOVE: ranges; KEYS: keys"),
        Field("meta_length", 52, "u16", "bytes of metadata"),
        Field("part", 54, "u16", "store: place in a batch of writes (OP_STORE_WRITE_MANY) plus 1; 0: the command is no batch"),
    ),
    ">",
)

ROUTE = Struct(
    "route",
    12,
    "PUBLISH: one queue of a message. The routes follow the frame head; then (FRAME_STORED) body_length:4; then (FRAME_TIMED) times; "
    "then (FRAME_KEYED) key:16; then metadata and payload.",
    (
        Field("queue", 0, "u32", "queue id"),
        Field("sequence", 4, "u64", "position in the queue"),
    ),
    ">",
)

TIMES = Struct(
    "times",
    24,
    "PUBLISH with FRAME_TIMED. Milliseconds since 1970, 48 bits, 0: none.",
    (
        Field("published", 0, "u64", "when the worker took it: the ttl of a queue and the window of deduplication count from it"),
        Field("expires", 8, "u64", "the message's own end"),
        Field("due", 16, "u64", "not to be delivered before"),
    ),
    ">",
)

SEEN_KEY = Struct(
    "seen_key",
    28,
    "KEYS: one key that a queue has seen; a file begins with those within their window, because the older files may go.",
    (
        Field("queue", 0, "u32", "queue id"),
        Field("published", 4, "u64", "milliseconds since 1970"),
        Field("key", 12, "bytes", "as the publisher gave it", 16),
    ),
    ">",
)

RANGE = Struct(
    "range",
    24,
    "ACK, DELAY: sequences first … first + count - 1 of a queue. MOVE: pairs: a source range, then its range in the target queue.",
    (
        Field("queue", 0, "u32", "queue id"),
        Field("count", 4, "u32", "sequences"),
        Field("first", 8, "u64", "first sequence"),
        Field("to", 16, "u64", "DELAY: not to be delivered before, milliseconds since 1970; MOVE, source: first sequence in the target queue; target: REASON_… why the messages died, 0: a claim; else zero"),
    ),
    ">",
)

QUEUE_SEGMENT_ENTRY = Struct(
    "queue_segment_entry",
    64,
    "One message of a queue in its segment `<n>.idx`, at 4096 + 64 × (sequence mod 16384). All zero: no message (never, or no more).",
    (
        Field("crc", 0, "u32", "CRC32C of salt:8 (of the file's header), queue:4, sequence:8 and bytes 4 … 63: a torn, moved or foreign entry is none"),
        Field("state", 4, "u8", "1: live"),
        Field("location", 5, "u8", "LOCATION_SEGMENT, LOCATION_STORE or LOCATION_LARGE"),
        Field("delivery_count", 6, "u16", "deliveries before it was written here"),
        Field("id", 8, "bytes", "message id", 16),
        Field("expires", 24, "u64", "milliseconds since 1970, 0: never (the message's own end or the queue's, the earlier one)"),
        Field("file", 32, "u32", "segment data file `<file>.dat`"),
        Field("offset", 36, "u32", "byte offset of the frame in it"),
        Field("frame_length", 40, "u32", "bytes of the frame"),
        Field("body_length", 44, "u32", "bytes of metadata + payload"),
        Field("blob_offset", 48, "u16", "start of metadata in the frame"),
        Field("meta_length", 50, "u16", "bytes of metadata"),
        Field("priority", 52, "u8", "0 … 255"),
        Field("reason", 53, "u8", "REASON_…: why it lies in a queue of dead letters, else 0"),
        Field("reserved", 54, "u16", "zero"),
        Field("due", 56, "u64", "milliseconds since 1970 before which it is not delivered, 0: none"),
    ),
    ">",
)

LIST_HEADER = Struct(
    "list_header",
    128,
    "Head of a list `<n>.lst`. The runs follow, then the totals of runs that are not uniform (u32 each, in order), then the waters.",
    (
        Field("magic", 0, "bytes", "`WRNLST01`", 8),
        Field("version", 8, "u32", "LIST_VERSION"),
        Field("crc", 12, "u32", "CRC32C of everything from byte 16 to the end of the list"),
        Field("node_id", 16, "u64", "as in the file's header"),
        Field("owner", 24, "u32", "as in the file's header"),
        Field("file", 32, "u64", "number of the file"),
        Field("salt", 40, "u64", "salt of the file: binds the list to this very file"),
        Field("used", 48, "u64", "bytes of the file up to the end of its last frame"),
        Field("runs", 56, "u64", "list_run records"),
        Field("totals", 64, "u64", "u32 totals"),
        Field("waters", 72, "u64", "list_water records"),
        Field("messages", 80, "u64", "MESSAGE frames"),
        Field("message_bytes", 88, "u64", "their bytes"),
        Field("controls", 96, "u64", "ids in ADD_REFERENCE and REMOVE frames"),
        Field("damaged", 104, "u64", "damaged parts that the scan which made this list skipped"),
    ),
    ">",
)

LIST_RUN = Struct(
    "list_run",
    40,
    "Consecutive ids of one kind. MESSAGE, ADD_REFERENCE: frames one behind the other from `offset` on; REMOVE: ids of the one frame at `offset`.",
    (
        Field("id", 0, "bytes", "first id; the others count up its last 8 bytes", 16),
        Field("count", 16, "u32", "ids"),
        Field("offset", 20, "u32", "byte offset of the first frame"),
        Field("total", 24, "u32", "bytes of each frame; 0: they differ, and stand in the totals"),
        Field("extra", 28, "u32", "MESSAGE: worker index + 1 of the holder or 0"),
        Field("meta_length", 32, "u16", "bytes of metadata of each"),
        Field("kind", 34, "u8", "KIND_MESSAGE, KIND_ADD_REFERENCE or KIND_REMOVE"),
    ),
    ">",
)

LIST_WATER = Struct(
    "list_water",
    16,
    "High water of one client epoch in this file.",
    (
        Field("client_epoch", 0, "u64", "publisher"),
        Field("water", 8, "u64", "(sequence + 1) << 16 | part, part PART_WHOLE for a whole command"),
    ),
    ">",
)

QUEUE_SEGMENT_STAMP = Struct(
    "queue_segment_stamp",
    64,
    "Behind the last entry of a segment `<n>.idx`, at 4096 + 64 × 16384. Absent or wrong (a torn one): nobody can say whether the file is an older copy.",
    (
        Field("crc", 0, "u32", "CRC32C of salt:8 (of the file's header), queue:4, number of the segment:8 and bytes 4 … 63"),
        Field("changes", 8, "u64", "how often the file was changed: a number below the one in `files` is an older copy's"),
    ),
    ">",
)

FILES_HEADER = Struct(
    "files_header",
    64,
    "Head of `files`. Records follow without gaps; the first bytes that are no valid record end the list: a torn append.",
    (
        Field("magic", 0, "bytes", "`WRNQFL01`", 8),
        Field("version", 8, "u32", "FILES_VERSION"),
        Field("crc", 12, "u32", "CRC32C of bytes 0 … 11 and 16 … 63"),
        Field("node_id", 16, "u64", "as in the files' headers"),
        Field("owner", 24, "u32", "as in the files' headers"),
        Field("salt", 32, "u64", "random with each rewriting; seeds the CRC of every record"),
        Field("records", 40, "u64", "records that the list was written with: fewer are damage, and no torn append"),
    ),
    ">",
)

FILES_RECORD = Struct(
    "files_record",
    48,
    "One file comes, changes or goes. The last record of a file counts.",
    (
        Field("crc", 0, "u32", "CRC32C of salt:8 (of the list's header), number of this record:8 and bytes 4 … 47"),
        Field("kind", 4, "u8", "LISTED_…"),
        Field("there", 5, "u8", "1: the file must be there; 0: it need not, it is about to go"),
        Field("sealed", 6, "u8", "journal: 1: nothing was appended behind `end` any more"),
        Field("queue", 8, "u32", "INDEX, TERMS: queue id"),
        Field("messages", 12, "u32", "INDEX: entries that it has at least; those of acked messages leave this count before they are zeroed"),
        Field("number", 16, "u64", "of the file"),
        Field("salt", 24, "u64", "of the file's header: protects against swapped and older files"),
        Field("end", 32, "u64", "journal: bytes of the file, sealed: up to the end of its frames; DATA: its bytes at least; INDEX: changes of its stamp at least"),
        Field("before", 40, "u64", "records of the same append that stand before this one: of an append that was not synced any part may be there"),
    ),
    ">",
)

SEAL = Struct(
    "seal",
    12,
    "Head of a sealed file, which is replaced as a whole. One whose seal does not hold is as good as none.",
    (
        Field("magic", 0, "bytes", "`WRNTERM1` or `WRNQTRM1`", 8),
        Field("crc", 8, "u32", "CRC32 (zlib) of all that follows"),
    ),
    ">",
)

TERM = Struct(
    "term",
    16,
    "Messages of a queue that were delivered. Little-endian.",
    (
        Field("sequence", 0, "u64", "of the first"),
        Field("delivery_count", 8, "u32", "deliveries of each"),
        Field("redelivered_n", 12, "u32", "neighbours, from this one on, that are marked redelivered; 0: this one, not marked. Sequences without a message do not matter in a run"),
    ),
)

LARGE_HEADER = Struct(
    "large_header",
    64,
    "Head of `large/<id>`, a message in a file of its own; metadata and payload follow, and nothing behind them.",
    (
        Field("magic", 0, "bytes", "`WRNLARG1`", 8),
        Field("version", 8, "u32", "LARGE_VERSION"),
        Field("crc", 12, "u32", "CRC32C of bytes 16 … 63 and of the metadata"),
        Field("node_id", 16, "u64", "data directory this file belongs to"),
        Field("id", 24, "bytes", "message id, as in the file's name: two hexadecimal digits for each byte", 16),
        Field("body_length", 40, "u32", "bytes of metadata + payload"),
        Field("meta_length", 44, "u16", "bytes of metadata"),
        Field("body_crc", 48, "u32", "CRC32C of the payload"),
    ),
    ">",
)

# fmt: on
STRUCTS = (
    FILE_HEADER,
    FRAME,
    ROUTE,
    TIMES,
    SEEN_KEY,
    RANGE,
    QUEUE_SEGMENT_ENTRY,
    LIST_HEADER,
    LIST_RUN,
    LIST_WATER,
    QUEUE_SEGMENT_STAMP,
    FILES_HEADER,
    FILES_RECORD,
    SEAL,
    TERM,
    LARGE_HEADER,
)

#: prefix of a padding frame's id
PADDING_ID = b"warren padding\0\0"
FRAME_BYTES_MIN = FRAME.size + 1
CONSTANTS["FRAME_HEAD_BYTES"] = FRAME.size
CONSTANTS["FRAME_BYTES_MIN"] = FRAME_BYTES_MIN
