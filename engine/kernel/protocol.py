"""What the engine puts into shared memory, declared once: operations and their results, deliveries, images, index, counters.

The carrier, `ipc/layout.py`, has the rings and regions that these lie in. The C header `engine/kernel/protocol.h` and
the tables of `docs/formats.md` are generated from this file (`python -m warren.tools.generate_layout`). `LAYOUT_HASH`
covers both: two processes with different declarations refuse to share memory.

Who writes what is part of the protocol: every cache line has one writer, or is changed by compare-and-swap only.
"""

from __future__ import annotations

import hashlib

from warren.engine.config import MESSAGE_BYTES_MOST
from warren.ipc import layout
from warren.ipc.declare import Field, Struct

#: queues of one worker, hidden ones too: rows of its statistics region, which is memory only as far as it is used
QUEUES_PER_WORKER_MAX = 65536
#: why a message died, from 1 on; also in the target range of a MOVE frame
REASONS = ("rejected", "expired", "maxlen", "delivery_limit")

PROTOCOL: dict[str, int] = {
    "QUEUES_PER_WORKER_MAX": QUEUES_PER_WORKER_MAX,
    # 1/n of file_bytes: keys, and as much of delays, at the start of a journal file; the largest frame of moved messages
    "JOURNAL_KEYS_PART": 8,
    "JOURNAL_MOVE_PART": 32,
    # flying word of a command record (rule S4)
    "FLYING_NONE": 0,
    "FLYING_WRITTEN": 1,
    "FLYING_TAKEN": 2,
    "FLYING_ELIMINATED": 3,
    "FLYING_DONE": 4,  # a message of a batch: look into the index
    # operations
    "OP_STORE_WRITE": 1,
    "OP_STORE_REMOVE": 2,
    "OP_STORE_CONTAINS": 3,
    "OP_STORE_BARRIER": 4,
    "OP_STORE_RESYNC_BEGIN": 5,
    "OP_STORE_RESYNC_IDS": 6,
    "OP_STORE_RESYNC_END": 7,
    "OP_STORE_WRITE_MANY": 8,
    "OP_STORE_TERMINATE": 9,
    "OP_PUBLISH": 16,
    "OP_ACK": 17,
    "OP_NACK": 18,
    "OP_CREDIT": 19,
    "OP_CANCEL": 20,
    "OP_LOCATE": 21,
    "OP_CONTROL": 22,
    "OP_BARRIER": 23,
    "OP_LEAVE": 24,
    "OP_APPEND": 32,
    "OP_APPEND_MANY": 33,
    # command flags (bits)
    "FLAG_SYNCED": 1,
    "FLAG_WRITTEN": 2,
    "FLAG_PERSISTENT": 4,
    "FLAG_MULTIPLE": 8,
    "FLAG_REQUEUE": 16,
    "FLAG_ROUTES": 32,
    "FLAG_DEDUPLICATE": 64,
    # of a NACK with FLAG_REQUEUE: nobody was handed it, so its delivery does not count; without: its bytes are damaged
    "FLAG_UNSEEN": 128,
    # of a PUBLISH: behind routes and key the blob has the length of metadata + payload as a native u32, and nothing else:
    # they lie in `large/<id>` of the worker, where the client has made them durable (engine/kernel/large.h)
    "FLAG_LARGE": 16,
    # of an APPEND: its messages come later; their properties say when (engine/topics/later.h)
    "FLAG_LATER": 4,
    # of an APPEND: its message is a half one, which is committed or rolled back afterwards (engine/topics/halves.h)
    "FLAG_HALF": 8,
    # result word of a command record; the server writes it before it publishes `processed`
    "RESULT_NONE": 0,
    "RESULT_OK": 1,
    "RESULT_NO": 2,
    "RESULT_ERROR": 3,
    "RESULT_MASKED": 4,
    "RESULT_REFUSED": 5,  # PUBLISH: a queue was full and refused it (overflow reject-publish); the others have it
    "RESULT_DUPLICATE": 6,  # PUBLISH: every queue has seen its key within its window; nothing was stored
    "RESULT_FULL": 7,  # APPEND with FLAG_LATER or FLAG_HALF: as many messages are pending as can be
    # delivery slot state
    "DELIVERY_FREE": 0,
    "DELIVERY_HELD": 1,
    "DELIVERY_EXCLUSIVE": 2,  # no delivery: its `queue` is consumed by this client alone (engine/queues/exclusive.h)
    # where a delivered body lies
    "LOCATION_JOURNAL": 1,
    "LOCATION_JOURNAL_TRANSIENT": 2,
    "LOCATION_SEGMENT": 3,
    "LOCATION_STORE": 4,
    "LOCATION_STORE_TRANSIENT": 5,
    "LOCATION_LARGE": 6,  # in a file of its own, `large/<id>` of the worker
    "LOCATION_LARGE_TRANSIENT": 7,
    # flags of a delivery
    "DELIVERY_REDELIVERED": 1,
    "DELIVERY_REASON_SHIFT": 1,  # bits 1 to 3: REASON_…, why a message lies in a queue of dead letters
    "DELIVERY_REASON_MASK": 7,
    "DELIVERY_LOCATION_SHIFT": 4,  # bits 4 to 7: LOCATION_…
    # why a message died; also in the target range of a MOVE frame
    "REASON_NONE": 0,
    **{f"REASON_{name.upper()}": number for number, name in enumerate(REASONS, 1)},
    # the queue of replies to a client, at each worker: REPLY_QUEUE | low bits of its generation << REPLY_SHIFT | slot. No
    # catalog has it: the client's first CREDIT makes it, and it goes with the client's link. Ids of catalogs are below.
    "REPLY_QUEUE": 1 << 31,
    "REPLY_SHIFT": 8,
    # PUBLISH: `count` is expires | priority << 56, `tag` is due. NACK of one message with FLAG_REQUEUE: `body` is due. Times in milliseconds of CLOCK_REALTIME, 0: none
    "TIME_BITS": 48,
    "EXPIRES_AT_ONCE": 1,  # for `expires`: who waits at that moment gets it, else it has expired
    "PRIORITY_SHIFT": 56,
    "PRIORITY_MAX": 255,
    "KEY_BYTES": 16,  # of FLAG_DEDUPLICATE
    "MESSAGE_BYTES_MOST": MESSAGE_BYTES_MOST,  # that message_bytes_max can be
    "DIRECTORY_WAYS": 32,
    # APPEND: `queue` is the topic's id, `row` the queue's number, `tag` the time when it was born (ms since 1970), the blob
    # properties and body. APPEND_MANY: `count` parts (append_part), then properties and body of each. Before RESULT_OK the
    # worker writes where the first record lies into `id`: queue offset (with FLAG_LATER, FLAG_HALF 2^64 − 1: none yet), then
    # position in the log, 8 bytes each.
    "APPEND_COUNT_MAX": 4096,
    # rows of topics: a node's queues of topics at most, and how many pairs of wake words their readers share
    "TOPIC_ROWS_MAX": 65536,
    "TOPIC_WAKES": 32,
    "TOPIC_GROUPS_MAX": 8192,  # groups of readers with members that have a row; those of others ask by the clock
    "TOPIC_MEMBERS_MAX": 8192,  # members of groups that have a row; of others their requests are seen alone
    # batches of writes (OP_STORE_WRITE_MANY)
    "BATCH_COUNT_MAX": 4096,
    "DIRECTORY_GROUP": 64,
    "PART_WHOLE": 0xFFFF,
    # dense part of the index
    "DENSE_BLOCK_ENTRIES": 1024,
    "DENSE_EXTENT_BLOCKS": 512,
    "DENSE_TABLE_FREE": 0,
    "DENSE_TABLE_LIVE": 1,
    "DENSE_TABLE_TOMBSTONE": 2,
}

# fmt: off
DELIVERY = Struct(
    "delivery",
    64,
    "One delivered message, held until it is acked. Writer: the queue worker. It survives the worker and says who holds what.",
    (
        Field("state", 0, "a32", "DELIVERY_…; written last on delivery, first on release"),
        Field("queue", 4, "u32", "queue id"),
        Field("sequence", 8, "u64", "position of the message in its queue: the delivery tag"),
        Field("id", 16, "bytes", "message id", 16),
        Field("file", 32, "u32", "file number at the location"),
        Field("offset", 36, "u32", "byte offset of the frame in the file"),
        Field("frame_length", 40, "u32", "bytes of the frame (segment: of the body)"),
        Field("blob_offset", 44, "u16", "start of metadata in the frame"),
        Field("meta_length", 46, "u16", "bytes of metadata"),
        Field("priority", 48, "u8", "of the message"),
        Field("flags", 49, "u8", "DELIVERY_REDELIVERED | reason << DELIVERY_REASON_SHIFT | location << DELIVERY_LOCATION_SHIFT"),
        Field("delivery_count", 50, "u16", "deliveries before this one"),
        Field("body_length", 52, "u32", "bytes of metadata + payload"),
        Field("pushed_at", 56, "u64", "delivery_tail at which this slot was pushed; not below the tail means: never pushed"),
    ),
)

IMAGE = Struct(
    "image",
    64,
    "State of one file image in memory (header page of an images region). Writer: the server.",
    (
        Field("file", 0, "a64", "file number + 1 held by the image, 0 while it changes"),
        Field("appended", 8, "a64", "bytes appended"),
        Field("durable", 16, "a64", "bytes on stable storage"),
        Field("generation", 24, "a64", "rises whenever the image takes another file"),
    ),
)

INDEX_HEADER = Struct(
    "index_header",
    4096,
    "Header page of an index region (open addressing, linear probing, entries never move).",
    (
        Field("rows", 0, "u64", "rows of the table; power of two"),
        Field("used", 8, "a64", "rows ever used (live + tombstones)"),
        Field("live", 16, "a64", "rows with an id"),
        Field("replaced", 24, "a32", "1: by the region of a later index_generation; readers open that one"),
    ),
)

INDEX_ENTRY = Struct(
    "index_entry",
    32,
    "References and place of one message. Writer: the store server; readers copy and re-check `version` (odd: changing).",
    (
        Field("version", 0, "a32", "0: never used; odd: being changed"),
        Field("file", 4, "u32", "file number"),
        Field("offset", 8, "u32", "byte offset of the frame"),
        Field("total_size", 12, "u32", "bytes of the frame"),
        Field("ref_count", 16, "u32", "references by clients of the store API"),
        Field("holders", 20, "u32", "bit w: queue worker w holds the message"),
        Field("marks", 24, "u32", "bit w: seen in worker w's running resync"),
        Field("meta_length", 28, "u16", "bytes of metadata"),
        Field("state", 30, "u8", "0 unused (hash: tombstone), 1 live, 2 hash: free again (ends a probe as version 0 does)"),
    ),
)

DENSE_TABLE_ROW = Struct(
    "dense_table_row",
    32,
    "Where the block of a group of counted ids lies (open addressing by hash, linear probing). Writer: the store server; readers copy and re-check `version`.",
    (
        Field("version", 0, "a32", "0: never used; odd: being changed"),
        Field("state", 4, "u32", "DENSE_TABLE_…"),
        Field("epoch", 8, "u64", "client epoch: the first half of the ids"),
        Field("group", 16, "u64", "counter of the ids / DENSE_BLOCK_ENTRIES"),
        Field("block", 24, "u32", "number of the block: extent block / DENSE_EXTENT_BLOCKS, place in it the rest"),
        Field("used", 28, "u32", "entries of the block in use (for the server alone)"),
    ),
)

INDEX_ROW = Struct(
    "index_row",
    64,
    "One row of the index's hash table: an index_entry, and the id. Writer: the store server; readers copy and re-check `version` (odd: changing).",
    (
        Field("version", 0, "a32", "0: never used; odd: being changed"),
        Field("file", 4, "u32", "file number"),
        Field("offset", 8, "u32", "byte offset of the frame"),
        Field("total_size", 12, "u32", "bytes of the frame"),
        Field("ref_count", 16, "u32", "references by clients of the store API"),
        Field("holders", 20, "u32", "bit w: queue worker w holds the message"),
        Field("marks", 24, "u32", "bit w: seen in worker w's running resync"),
        Field("meta_length", 28, "u16", "bytes of metadata"),
        Field("state", 30, "u8", "0 tombstone, 1 live, 2 free again (ends a probe as version 0 does)"),
        Field("id", 32, "bytes", "message id", 16),
    ),
)

SUMMARY_ROW = Struct(
    "summary_row",
    128,
    "One row of the file summary, at file number modulo rows. Writer: the server that owns the files.",
    (
        Field("file", 0, "a64", "file number + 1, 0 if the row is free"),
        Field("valid_total_size", 8, "a64", "bytes of live records"),
        Field("file_size", 16, "a64", "bytes of the file in use"),
        Field("left", 24, "a64", "file number + 1 of the elder neighbour, 0 if none"),
        Field("right", 32, "a64", "file number + 1 of the younger neighbour, 0 if none"),
        Field("locked", 40, "a32", "1: awaiting deletion or being combined"),
        Field("image", 44, "a32", "image index + 1 that holds the file, 0 if none"),
        Field("pin_low", 48, "u64", "lowest file number + 1 that this file's removals refer to, 0 if none"),
        Field("pin_high", 56, "u64", "highest file number + 1 that this file's removals refer to, 0 if none"),
        Field("position_low", 64, "u64", "first position that the file stands for (its own number, if it was not collected)"),
        Field("position_high", 72, "u64", "last position"),
        Field("replay_free", 80, "a32", "1: no ring replays a command of it (an output: and no source of it is left); it may be collected"),
        Field("ghosts", 84, "a32", "1: it may hold dead records whose ids have no entry (a collection of it failed)"),
        Field("messages", 88, "a64", "records of messages in it, live or dead"),
    ),
)

APPEND_PART = Struct(
    "append_part",
    8,
    "Lengths of one record of an APPEND_MANY. Writer: the client.",
    (
        Field("body_length", 0, "u32", "bytes of its body"),
        Field("properties_length", 4, "u32", "bytes of its properties"),
    ),
)

TOPIC_RING = Struct(
    "topic_ring",
    4096,
    "State of the topics' commit log (header page of its ring's region); positions of the log. Writer: the topic worker.",
    (
        Field("low", 0, "a64", "below it the ring may be written over: raised before the first byte changes"),
        Field("appended", 8, "a64", "records below are complete"),
        Field("written", 64, "a64", "what is below is in its file"),
        Field("synced", 72, "a64", "what is below is on stable storage"),
    ),
)

TOPIC_WAKE = Struct(
    "topic_wake",
    64,
    "Where readers of some topics sleep (topic id modulo TOPIC_WAKES), a cache line.",
    (
        Field("waiters", 0, "a32", "readers that sleep, or are about to (readers); one that is killed stays counted"),
        Field("sequence", 4, "a32", "rises when a row rose and there are waiters: they sleep on it (topic worker)"),
    ),
)

TOPIC_ROWS = Struct(
    "topic_rows",
    4096,
    "Header page of the region of rows; the rows follow. Writer: the topic worker, but for `waiters` in `wakes`.",
    (
        Field("first", 0, "a64", "position of the log's first record that is there"),
        Field("rows_n", 8, "a64", "rows that were ever used"),
        Field("confirmed", 16, "a64", "number of the newest commit of which something is confirmed: stored before it is"),
        Field("shown", 24, "a64", "number of the newest commit that readers see: stored after the rows rose"),
        Field("held", 32, "a32", "not 0: a bit for each thing that keeps `shown` from rising; nobody waits for it then"),
        Field("closing", 40, "a64", "messages below this position are about to be removed: a hold on them does not count yet; 0: none are"),
        Field("index_newest", 48, "a64", "name of the newest file of the key index, as a number: stored before the rows rise; 0: there is none"),
        Field("members_n", 56, "a64", "rows of members of groups that were ever used: those have memory"),
        Field("wakes", 64, "bytes", "topic_wake × TOPIC_WAKES", 64 * 32),
        Field("shown_wake", 64 + 64 * 32, "bytes", "topic_wake: where those sleep who wait for `shown`", 64),
    ),
)

TOPIC_ROW = Struct(
    "topic_row",
    64,
    "One queue of a topic. Writer: the topic worker. Who uses a number looks at the key behind it: ids never come again.",
    (
        Field("key", 0, "a64", "topic id << 32 | queue + 1; 0: the row is free, or its topic was deleted"),
        Field("minimum", 8, "a64", "offset of the first message that is there"),
        Field("maximum", 16, "a64", "offset behind the last message that a reader may see"),
        Field("appended", 24, "a64", "offset behind the last message that was appended"),
        Field("bytes", 32, "a64", "of the records in the log, from `minimum` to `maximum`; stored before that"),
        Field("from", 40, "a64", "position of the first of them; all bits set: there is none"),
        Field("delayed", 48, "a64", "of the topic's queue 0: messages of the topic that are to come later"),
        Field("halves", 56, "a64", "of the topic's queue 0: half messages of the topic that are neither committed nor rolled back"),
    ),
)

TOPIC_GROUP_ROW = Struct(
    "topic_group_row",
    8,
    "One group of readers; behind the rows of topics. Writer: the topic worker. Its members look at it before each message.",
    (
        Field("stamp", 0, "a64", "another one after each change of who has which queue; never comes again. 0: no group's"),
    ),
)

TOPIC_MEMBER_ROW = Struct(
    "topic_member_row",
    64,
    "A member of a group of readers; these rows follow those of groups. The worker reads here whether the member's process runs, and calls.",
    (
        Field("member", 0, "a64", "the member that has the row: a number that is used once; 0: the row is free (topic worker)"),
        Field("group", 8, "a64", "digest of the group (group_rows.py) (topic worker)"),
        Field("called", 16, "a64", "when the worker saw its last call: nanoseconds of CLOCK_MONOTONIC (topic worker)"),
        Field("beats", 24, "a64", "rises every few seconds while the process runs (member)"),
        Field("calls", 32, "a64", "rises with the calls of the program, seen at each beat (member)"),
    ),
)

QUEUE_STATS = Struct(
    "queue_stats",
    200,
    "Counters of one queue, in the worker's statistics region. Writer: the queue worker.",
    (
        Field("queue", 0, "a64", "queue id, 0 if the row is free"),
        Field("ready", 8, "a64", "messages ready"),
        Field("unacked", 16, "a64", "messages delivered and not yet acked"),
        Field("bytes", 24, "a64", "bytes of bodies, ready and unacked"),
        Field("published", 32, "a64", "messages published"),
        Field("delivered", 40, "a64", "messages delivered"),
        Field("acked", 48, "a64", "messages acked"),
        Field("requeued", 56, "a64", "messages returned"),
        Field("consumers", 64, "a64", "consumers that ask for messages now"),
        Field("base", 72, "a64", "lowest sequence not yet acked"),
        Field("next", 80, "a64", "next sequence to be published"),
        Field("alpha", 88, "a64", "messages whose body and row are in memory"),
        Field("beta", 96, "a64", "messages whose body is on disk or in the store, the row in memory alone"),
        Field("gamma", 104, "a64", "messages whose row is in memory and in a segment"),
        Field("delta", 112, "a64", "messages whose row is in a segment alone"),
        Field("delayed", 120, "a64", "messages whose time has not come; neither ready nor unacked"),
        Field("expired", 128, "a64", "messages whose time was over"),
        Field("dropped", 136, "a64", "messages dropped from the head because the queue was full"),
        Field("dead_lettered", 144, "a64", "messages moved to the queue of dead letters"),
        Field("refused", 152, "a64", "messages refused because the queue was full"),
        Field("duplicates", 160, "a64", "messages dropped because their key was seen before"),
        Field("consuming", 168, "a64", "consumers with a prefetch (consume, not get)"),
        Field("consumed", 176, "a64", "such consumers that came since the worker's start"),
        Field("asked", 184, "a64", "times that a consumer announced itself since the worker's start, each get that waits too"),
        Field("lost", 192, "a64", "messages lost to damage, found by the worker's start; from damaged journals: at most"),
    ),
)

# fmt: on
STRUCTS = (
    DELIVERY,
    IMAGE,
    INDEX_HEADER,
    INDEX_ENTRY,
    DENSE_TABLE_ROW,
    INDEX_ROW,
    SUMMARY_ROW,
    APPEND_PART,
    TOPIC_RING,
    TOPIC_WAKE,
    TOPIC_ROWS,
    TOPIC_ROW,
    TOPIC_GROUP_ROW,
    TOPIC_MEMBER_ROW,
    QUEUE_STATS,
)

#: where the rows of members begin in the region `trows`, after the header and the rows of topics and groups
TOPIC_MEMBERS_AT = (
    TOPIC_ROWS.size + PROTOCOL["TOPIC_ROWS_MAX"] * TOPIC_ROW.size + PROTOCOL["TOPIC_GROUPS_MAX"] * TOPIC_GROUP_ROW.size
)
TOPIC_ROWS_BYTES = TOPIC_MEMBERS_AT + PROTOCOL["TOPIC_MEMBERS_MAX"] * TOPIC_MEMBER_ROW.size

assert DELIVERY.size == layout.DELIVERY_SLOT_BYTES


def _layout_hash() -> int:
    """Of all declarations of the carrier, and of these."""
    constants = sorted({**layout.CONSTANTS, **PROTOCOL}.items())
    text = repr(layout.STRUCTS + STRUCTS) + repr(constants)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


LAYOUT_HASH = _layout_hash()
