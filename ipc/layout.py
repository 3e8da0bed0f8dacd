"""Every structure that processes share through memory, declared once.

The C header `ipc/core/layout.h` and the tables of `docs/formats.md` are generated from this file
(`python -m warren.tools.generate_layout`). `LAYOUT_HASH` covers every declaration: two processes with different
layouts refuse to share memory. All numbers are little-endian, because shared memory never leaves the machine.

Who writes what is part of the layout: every cache line has one writer, or is changed by compare-and-swap only.
"""

from __future__ import annotations

import hashlib

from warren.ipc.declare import Field, Struct

PAGE_BYTES = 4096
CLIENT_SLOTS = 256
SERVERS_MAX = 32
WORKERS_MAX = 30

#: server indexes: the two stores live in one process, each queue worker is a server of its own
SERVER_STORE_PERSISTENT = 0
SERVER_STORE_TRANSIENT = 1
SERVER_WORKER_FIRST = 2

SUPERBLOCK_MAGIC = 0x4253_4E45_5252_4157  # "WARRENSB" read as bytes
CLIENT_MAGIC = 0x4C43_4E45_5252_4157  # "WARRENCL"

CONSTANTS: dict[str, int] = {
    "PAGE_BYTES": PAGE_BYTES,
    "CLIENT_SLOTS": CLIENT_SLOTS,
    "SERVERS_MAX": SERVERS_MAX,
    "WORKERS_MAX": WORKERS_MAX,
    "SERVER_STORE_PERSISTENT": SERVER_STORE_PERSISTENT,
    "SERVER_STORE_TRANSIENT": SERVER_STORE_TRANSIENT,
    "SERVER_WORKER_FIRST": SERVER_WORKER_FIRST,
    "SUPERBLOCK_MAGIC": SUPERBLOCK_MAGIC,
    "CLIENT_MAGIC": CLIENT_MAGIC,
    # node state
    "NODE_CREATING": 0,
    "NODE_STARTING": 1,
    "NODE_RUNNING": 2,
    "NODE_DRAINING": 3,
    "NODE_STOPPED": 4,
    # server state
    "SERVER_DOWN": 0,
    "SERVER_RECOVERING": 1,
    "SERVER_READY": 2,
    "SERVER_STOPPING": 3,
    "SERVER_FAILED": 4,
    # alarms (bits)
    "ALARM_MEMORY": 1,
    "ALARM_DISK": 2,
    "ALARM_SYNC_FAILED": 4,
    "ALARM_SERVER_FAILED": 8,
    # client slot state, low 8 bits of the claim word
    "SLOT_FREE": 0,
    "SLOT_CLAIMED": 1,
    "SLOT_ACTIVE": 2,
    "SLOT_LEAVING": 3,
    "SLOT_DEAD": 4,
    # flying word of a command record (rule S4)
    "FLYING_NONE": 0,
    "FLYING_WRITTEN": 1,
    "FLYING_TAKEN": 2,
    "FLYING_ELIMINATED": 3,
    # operations
    "OP_STORE_WRITE": 1,
    "OP_STORE_REMOVE": 2,
    "OP_STORE_CONTAINS": 3,
    "OP_STORE_BARRIER": 4,
    "OP_STORE_RESYNC_BEGIN": 5,
    "OP_STORE_RESYNC_IDS": 6,
    "OP_STORE_RESYNC_END": 7,
    "OP_PUBLISH": 16,
    "OP_ACK": 17,
    "OP_NACK": 18,
    "OP_CREDIT": 19,
    "OP_CANCEL": 20,
    "OP_LOCATE": 21,
    "OP_CONTROL": 22,
    "OP_BARRIER": 23,
    # command flags (bits)
    "FLAG_SYNCED": 1,
    "FLAG_WRITTEN": 2,
    "FLAG_PERSISTENT": 4,
    "FLAG_MULTIPLE": 8,
    "FLAG_REQUEUE": 16,
    "FLAG_ROUTES": 32,
    # result word of a command record; the server writes it before it publishes `processed`
    "RESULT_NONE": 0,
    "RESULT_OK": 1,
    "RESULT_NO": 2,
    "RESULT_ERROR": 3,
    # delivery slot state
    "DELIVERY_FREE": 0,
    "DELIVERY_HELD": 1,
    # where a delivered body lies
    "LOCATION_JOURNAL": 1,
    "LOCATION_JOURNAL_TRANSIENT": 2,
    "LOCATION_SEGMENT": 3,
    "LOCATION_STORE": 4,
    "LOCATION_STORE_TRANSIENT": 5,
    "DELIVERY_REDELIVERED": 1,
    "DIRECTORY_WAYS": 32,
    # why a server closed a link (link.evicted)
    "EVICTED_OPERATION": 1,
    "EVICTED_BLOB": 2,
    "EVICTED_OWNER": 3,
    "EVICTED_TAIL": 4,
}

# fmt: off
SUPERBLOCK = Struct(
    "superblock",
    4096,
    "First page of the node's superblock (POSIX shared memory `/warren-<node>-super`). Writer: supervisor, but for the atomics.",
    (
        Field("magic", 0, "u64", "SUPERBLOCK_MAGIC; written last, so a half-made superblock is never attached"),
        Field("layout_hash", 8, "u64", "LAYOUT_HASH of the writer; others refuse to attach"),
        Field("node_id", 16, "u64", "random number of the data directory; names every shared object"),
        Field("node_epoch", 24, "u64", "counts superblocks of this directory; persisted, so client epochs never repeat"),
        Field("state", 32, "a32", "NODE_…"),
        Field("servers_n", 36, "u32", "servers in use: 2 stores + queue workers"),
        Field("supervisor_pid", 40, "u32", "process id of the supervisor"),
        Field("supervisor_start", 48, "u64", "its start time, clock ticks since boot"),
        Field("client_epoch_next", 56, "a64", "next client epoch (node_epoch << 32 | n); fetch-add by whoever registers"),
        Field("catalog_version", 64, "a64", "version of catalog.json; clients and workers re-read it on a change"),
        Field("slots_version", 72, "a64", "counts changes of any client slot; servers rescan on a change"),
        Field("alarms", 80, "a64", "ALARM_… bits (supervisor): its own and the servers' ones; publishers are blocked while memory or disk is set"),
        Field("live_semaphore_key", 88, "u32", "System V semaphore counting live clients (SEM_UNDO)"),
        Field("store_lock_key", 92, "u32", "System V semaphore that makes the store server single (SEM_UNDO)"),
        Field("ring_records", 96, "u32", "command records in each ring; power of two"),
        Field("delivery_slots", 100, "u32", "delivery slots in each link; power of two"),
        Field("arena_bytes", 104, "u64", "arena of each client region; power of two"),
        Field("message_bytes_max", 112, "u64", "largest metadata + payload of one message"),
        Field("embed_bytes_max", 120, "u32", "bodies below this are embedded in the queue index"),
        Field("reply_bytes", 124, "u32", "reply area of each link"),
        Field("file_bytes", 128, "u64", "size of a segment file and of its image; multiple of the page"),
        Field("images_n", 136, "u32", "file images kept in memory by each log"),
        Field("directory_rows", 140, "u32", "words in the cur_file_cache directory; power of two"),
        Field("summary_rows", 144, "u32", "rows of the file summary; power of two"),
        Field("client_region_bytes", 152, "u64", "size of every client region"),
    ),
)

SERVER = Struct(
    "server",
    512,
    "One server (a store or a queue worker), in the superblock. Writer: that server, but for `sleeping`.",
    (
        Field("epoch", 0, "a64", "incarnation; rises with every restart, published last when the server is ready"),
        Field("state", 8, "a32", "SERVER_…"),
        Field("pid", 12, "u32", "process id"),
        Field("start_time", 16, "u64", "its start time, clock ticks since boot"),
        Field("generation", 24, "a64", "generation of the server's regions (images, summary, directory); part of their names"),
        Field("index_generation", 32, "a64", "generation of the index region (it grows by a new region)"),
        Field("error", 40, "a32", "errno that froze the durable horizon, 0 if none"),
        Field("restarts", 44, "u32", "restarts counted by the supervisor"),
        Field("alarms", 48, "a32", "ALARM_… bits that this server raises (server); the supervisor sums them up in the superblock"),
        Field("sleeping", 64, "a32", "1: the server sleeps on this word (futex); whoever flips it to 0 wakes it"),
        Field("messages", 128, "a64", "messages with a positive reference count (store) or in queues (worker)"),
        Field("files", 136, "a64", "segment files"),
        Field("valid_bytes", 144, "a64", "bytes of live records"),
        Field("file_bytes_sum", 152, "a64", "bytes of all files"),
        Field("processed_n", 160, "a64", "commands processed"),
        Field("written_n", 168, "a64", "records appended"),
        Field("eliminated_n", 176, "a64", "writes that never reached the disk because a remove overtook them"),
        Field("commits_n", 184, "a64", "group commits"),
        Field("syncs_n", 192, "a64", "fdatasync calls"),
        Field("commit_ns_sum", 200, "a64", "time spent in commits"),
        Field("wakes_n", 208, "a64", "times the server slept and was woken or timed out"),
        Field("delivered_n", 216, "a64", "messages delivered"),
        Field("acked_n", 224, "a64", "messages acknowledged"),
        Field("published_n", 232, "a64", "messages published into queues"),
        Field("evicted_n", 240, "a64", "links closed because their memory held nonsense"),
        Field("queue_stats_generation", 256, "a64", "generation of the worker's queue statistics region, 0 if none"),
    ),
)

SLOT = Struct(
    "slot",
    256,
    "One client slot in the superblock. `claim` is changed by compare-and-swap only; the identity is written by the claimer.",
    (
        Field("claim", 0, "a64", "pid << 32 | generation (24 bits) << 8 | SLOT_… : ownership lives inside the claiming word"),
        Field("start_time", 8, "u64", "start time of the process, clock ticks since boot"),
        Field("client_epoch", 16, "u64", "unique number of this client in the life of the data directory"),
        Field("shmid", 24, "i32", "System V id of the client's region"),
        Field("pid_namespace", 32, "u64", "inode of the pid namespace; a foreign one is never judged by pid"),
        Field("name", 40, "bytes", "name for people, UTF-8, zero-padded", 48),
        Field("server_done", 128, "bytes", "per server: low 8 bits of the generation whose end it has finished handling", 32),
    ),
)

SUPERBLOCK_SERVERS_AT = SUPERBLOCK.size
SUPERBLOCK_SLOTS_AT = SUPERBLOCK_SERVERS_AT + SERVERS_MAX * SERVER.size
SUPERBLOCK_BYTES = SUPERBLOCK_SLOTS_AT + CLIENT_SLOTS * SLOT.size

CLIENT = Struct(
    "client",
    4096,
    "First page of a client region (System V shared memory). Writer: the client, but for `waiting`.",
    (
        Field("magic", 0, "u64", "CLIENT_MAGIC"),
        Field("layout_hash", 8, "u64", "LAYOUT_HASH of the client"),
        Field("client_epoch", 16, "u64", "as in its slot"),
        Field("servers_n", 24, "u32", "links in this region"),
        Field("waiting", 64, "a32", "1: a thread of the client sleeps on this word (futex); the server that flips it to 0 wakes it"),
    ),
)

LINK = Struct(
    "link",
    512,
    "One client's connection to one server, in the client region.",
    (
        Field("tail", 0, "a64", "commands submitted (client). SYNC command-visible: release store, pairs with the server's acquire"),
        Field("delivery_head", 8, "a64", "deliveries taken (client)"),
        Field("processed", 64, "a64", "commands processed (server); results and `none` durability hold below it"),
        Field("written", 72, "a64", "commands whose effects were handed to the operating system (server)"),
        Field("synced", 80, "a64", "commands whose effects are on stable storage (server)"),
        Field("head", 88, "a64", "commands that need no replay: their records and bodies may be reused (server)"),
        Field("delivery_tail", 128, "a64", "deliveries pushed (server)"),
        Field("server_epoch", 136, "a64", "epoch of the server that serves this link now (server)"),
        Field("evicted", 144, "a32", "reason why the server closed this link, 0 if none (server)"),
        Field("reply_length", 148, "u32", "bytes in the reply area (server, before `processed`)"),
    ),
)

COMMAND = Struct(
    "command",
    64,
    "One command in a ring. Written by the client before it raises `tail`; `flying` is compare-and-swap by both; `result` by the server.",
    (
        Field("op", 0, "u8", "OP_…"),
        Field("flags", 1, "u8", "FLAG_…"),
        Field("meta_length", 2, "u16", "bytes of metadata at the start of the blob (after the routes)"),
        Field("flying", 4, "a32", "FLYING_…"),
        Field("id", 8, "bytes", "message id", 16),
        Field("body", 24, "u64", "arena position of the blob (monotone; modulo arena_bytes)"),
        Field("length", 32, "u32", "bytes of the blob: routes, metadata, payload"),
        Field("queue", 36, "u32", "queue id; with FLAG_ROUTES the number of queue ids (u32 each) at the start of the blob"),
        Field("tag", 40, "u64", "delivery tag, credit, or (STORE_WRITE) 0 / owner of the blob: generation << 16 | slot + 1"),
        Field("count", 48, "u64", "ids in the blob, or the end of a range, as the operation says"),
        Field("row", 56, "u32", "row of the directory + 1, 0 if none"),
        Field("result", 60, "a32", "RESULT_…"),
    ),
)

DELIVERY = Struct(
    "delivery",
    64,
    "One delivered message, held until it is acked. Writer: the queue worker. It survives the worker and says who holds what.",
    (
        Field("state", 0, "a32", "DELIVERY_…; written last on delivery, first on release"),
        Field("queue", 4, "u32", "queue id"),
        Field("sequence", 8, "u64", "position of the message in its queue: the delivery tag"),
        Field("id", 16, "bytes", "message id", 16),
        Field("file", 32, "u32", "file number at `location`"),
        Field("offset", 36, "u32", "byte offset of the frame in the file"),
        Field("frame_length", 40, "u32", "bytes of the frame (segment: of the body)"),
        Field("blob_offset", 44, "u16", "start of metadata in the frame"),
        Field("meta_length", 46, "u16", "bytes of metadata"),
        Field("location", 48, "u8", "LOCATION_…"),
        Field("flags", 49, "u8", "DELIVERY_REDELIVERED"),
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
        Field("retired", 24, "a32", "1: replaced by the region of a later index_generation; readers open that one"),
    ),
)

INDEX_ROW = Struct(
    "index_row",
    64,
    "One row of the store's index: id → location. Writer: the store server; readers copy and re-check `version` (odd: changing).",
    (
        Field("version", 0, "a32", "0: never used; odd: being changed"),
        Field("state", 4, "u32", "0 tombstone, 1 live, 2 free again (ends a probe as version 0 does)"),
        Field("id", 8, "bytes", "message id", 16),
        Field("ref_count", 24, "u32", "references by clients of the store API"),
        Field("holders", 28, "u32", "bit w: queue worker w holds the message"),
        Field("marks", 32, "u32", "bit w: seen in worker w's running resync"),
        Field("file", 36, "u32", "file number"),
        Field("offset", 40, "u32", "byte offset of the frame"),
        Field("total_size", 44, "u32", "bytes of the frame"),
        Field("meta_length", 48, "u16", "bytes of metadata"),
        Field("pending", 50, "u16", "1: not yet durable"),
        Field("next", 52, "u32", "next row of the same file + 1 (for the server alone; outside the version's protection)"),
    ),
)

SUMMARY_ROW = Struct(
    "summary_row",
    64,
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
    ),
)

QUEUE_STATS = Struct(
    "queue_stats",
    128,
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
        Field("consumers", 64, "a64", "consumers with credit registered"),
        Field("base", 72, "a64", "lowest sequence not yet acked"),
        Field("next", 80, "a64", "next sequence to be published"),
    ),
)

# fmt: on
STRUCTS = (
    SUPERBLOCK,
    SERVER,
    SLOT,
    CLIENT,
    LINK,
    COMMAND,
    DELIVERY,
    IMAGE,
    INDEX_HEADER,
    INDEX_ROW,
    SUMMARY_ROW,
    QUEUE_STATS,
)

CONSTANTS.update(
    SUPERBLOCK_SERVERS_AT=SUPERBLOCK_SERVERS_AT,
    SUPERBLOCK_SLOTS_AT=SUPERBLOCK_SLOTS_AT,
    SUPERBLOCK_BYTES=SUPERBLOCK_BYTES,
)


def _layout_hash() -> int:
    text = repr(STRUCTS) + repr(sorted(CONSTANTS.items()))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


LAYOUT_HASH = _layout_hash()


def client_region_bytes(
    servers_n: int, ring_records: int, delivery_slots: int, reply_bytes: int, arena_bytes: int
) -> int:
    """Size of a client region. Order: client page | links | command rings | delivery slots | delivery rings (u32) | replies | arena.

    Every part starts on a page; the C core (`wr_client_view_init`) computes the same positions.
    """

    def page(n: int) -> int:
        return (n + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES

    return (
        PAGE_BYTES
        + page(servers_n * LINK.size)
        + page(servers_n * ring_records * COMMAND.size)
        + page(servers_n * delivery_slots * DELIVERY.size)
        + page(servers_n * delivery_slots * 4)
        + page(servers_n * reply_bytes)
        + arena_bytes
    )
