"""What processes share memory through, declared once: the superblock, slots, links, rings of commands, arenas.

This is the carrier: it knows nothing of messages. What it carries is declared in `engine/kernel/protocol.py`.
The C header `ipc/core/layout.h` and the tables of `docs/formats.md` are generated from this file
(`python -m warren.tools.generate_layout`). The hash of both declarations, which the engine gives, stands in the
superblock: two processes with different ones refuse to share memory. All numbers are little-endian, because shared
memory never leaves the machine.

Who writes what is part of the layout: every cache line has one writer, or is changed by compare-and-swap only.
"""

from __future__ import annotations

from warren.ipc.declare import Field, Struct

PAGE_BYTES = 4096
CLIENT_SLOTS = 256
WORKERS_MAX = 30
#: the first slots are the queue workers', so many each: one in use, and one of a dead incarnation that the stores sweep
WORKER_SLOTS = 2
#: processes that speak AMQP to programs
GATEWAYS_MAX = 16
#: a delivery slot of a link; what stands in it is the engine's (protocol.DELIVERY)
DELIVERY_SLOT_BYTES = 64
#: what the client writes for each slot: which delivery it handed out from it last
HANDED_BYTES = 4
#: what the word says besides of which delivery: its low bits
HANDED_BITS = 2
#: delivery slots that a client may have at each queue worker: whoever holds a message is found by a number of 20 bits
DELIVERY_SLOTS_MAX = 1 << 18
#: so many at each worker are warm from the start; the others are memory where they are used
DELIVERY_SLOTS_WARM = 4096

#: server indexes: the two stores live in one process, each queue worker is a server of its own, and so is the topic
#: worker, which comes last (superblock.topic_server)
SERVER_STORE_PERSISTENT = 0
SERVER_STORE_TRANSIENT = 1
SERVER_WORKER_FIRST = 2
SERVERS_MAX = SERVER_WORKER_FIRST + WORKERS_MAX + 1

SUPERBLOCK_MAGIC = 0x4253_4E45_5252_4157  # "WARRENSB" read as bytes
CLIENT_MAGIC = 0x4C43_4E45_5252_4157  # "WARRENCL"

#: where a process kills itself when a test asks for it (superblock.crash_point = index + 1); cold paths only
CRASH_POINTS = (
    "roll",  # store loop: a file was rolled, nothing of the next one is written
    "batch_written",  # committer: bytes are handed over, not synced
    "batch_synced",  # committer: synced, no horizon published
    "batch_done",  # committer: horizons published
    "file_made",  # helper: the next file has its name, the log does not know it
    "file_recycled",  # helper: a spare has its new header and not yet its new name
    "list_written",  # helper: a list has its name
    "retire_begun",  # some entries of a file that goes are dropped
    "retire_unlinked",  # helper: its list is gone, the file is there
    "retired",  # helper: the file is gone, the loop does not know it
    "collect_locked",  # sources are locked, the job is not posted
    "collect_copying",  # collector: some records are copied
    "collect_copied",  # collector: copied, not synced
    "collect_synced",  # collector: output and list are synced, not answered
    "collect_list_renamed",  # helper: the output's list has its name, the output not
    "collect_committed",  # helper: the output has its name
    "swing_begun",  # some entries have their new place
    "swung",  # all entries have their new place
    "dying",  # the death point is recorded
    "index_extent",  # helper: a dense extent is made, not taken
    "index_growing",  # helper: a larger hash table is made, not taken
    "start_mark_gone",  # the clean mark is removed
    "start_superseded",  # one superseded file is removed
    "start_half",  # half of the files are applied
    "start_torn",  # a torn tail is cut
    "start_quarantined",  # a file was moved to quarantine
    "start_applied",  # everything is applied, nothing announced
    "start_attached",  # clients are attached, nothing announced
    "stop_lists",  # clean stop: lists are written, no mark
    "stop_marked",  # clean stop: the mark is written
    "worker_flush_data",  # queue worker: the .dat of a flushed journal file is synced
    "worker_flush_index",  # queue worker: the .idx entries are synced, the journal file is there
    "worker_resync",  # queue worker: some of its ids are answered, the end is not sent
    "worker_claimed",  # queue worker: it has its slot, its segment is not recorded
    "worker_recovered",  # queue worker: everything is recovered, no server knows of its slot
    "worker_attached",  # queue worker: the servers know of its slot, it does not serve
    "topic_recovered",  # topic worker: its log is walked, consume queues and index have caught up, nothing is synced
    "topic_settled",  # topic worker: what was found is synced, zeros are behind it
    "topic_begun",  # topic worker: clients are attached, nothing is announced
    "topic_file_made",  # topic worker's helper: the log's next file has its name, the log does not know it
    "retain_raised",  # topic worker's retention: minima rose, no checkpoint says so
    "retain_told",  # retention: log and checkpoint say which files go, none is gone
    "retain_removed",  # retention: a file of the log is unlinked, its folder is not synced
    "topic_later_came",  # topic worker: a message that was to come later is appended to its topic, nothing is sealed
    "topic_later_saved",  # topic worker's helper: a snapshot of those that are to come has its name
    "topic_half_finished",  # topic worker: a record says what became of a half message, nothing is sealed
    "topic_halves_saved",  # topic worker's helper: a snapshot of half messages has its name
    "compact_written",  # topic worker's compaction: a new file of newest messages is synced, another one has its name
    "compact_renamed",  # compaction: it has its name, durably; the queue's minimum is below its end
)

CONSTANTS: dict[str, int] = {
    **{f"CRASH_{name.upper()}": at + 1 for at, name in enumerate(CRASH_POINTS)},
    "PAGE_BYTES": PAGE_BYTES,
    "CLIENT_SLOTS": CLIENT_SLOTS,
    "SERVERS_MAX": SERVERS_MAX,
    "WORKERS_MAX": WORKERS_MAX,
    "WORKER_SLOTS": WORKER_SLOTS,
    "GATEWAYS_MAX": GATEWAYS_MAX,
    "DELIVERY_SLOT_BYTES": DELIVERY_SLOT_BYTES,
    "HANDED_BYTES": HANDED_BYTES,
    "HANDED_BITS": HANDED_BITS,
    "DELIVERY_SLOTS_MAX": DELIVERY_SLOTS_MAX,
    "HANDED_OUT": 1,  # to the program
    "HANDED_SETTLING": 2,  # its ack, or its return, is submitted, or is about to be
    "HANDED_TAKEN": 3,  # the worker took it back: the queue's ack timeout ran out
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
    "ALARM_TOPICS_DISK": 16,
    "ALARM_ROLE_FAILING": 32,
    # roles without a server (superblock.failing): the bit of the collector, and of the first gateway
    "FAILING_COLLECTOR": 40,
    "FAILING_GATEWAY": 41,
    # what the machine is short of (superblock.shortages), bits
    "SHORT_MEMORY": 1,
    "SHORT_DISK": 2,
    "SHORT_OWN_MEMORY": 4,
    # what a server lacked when it could not start, so that it is started again and again (server.lacks)
    "LACK_DISK": 1,
    "LACK_SHM": 2,
    "LACK_SEGMENTS": 3,
    "LACK_MEMORY": 4,
    "LACK_FILES": 5,
    "LACK_SLOTS": 6,
    "PRESSURE_PAGE": 500,
    # what a worker finds in a queue that is barred (server.barred_found), bits
    "BARRED_MESSAGES": 1,  # ready, delayed or dying ones, and delivered ones that no program has got
    "BARRED_CONSUMERS": 2,
    "BARRED_LETTERS": 4,  # dead letters that are not forwarded
    # client slot state, low 8 bits of the claim word
    "SLOT_FREE": 0,
    "SLOT_CLAIMED": 1,
    "SLOT_ACTIVE": 2,
    "SLOT_LEAVING": 3,
    "SLOT_DEAD": 4,
    # why a node ends by itself (workers/process/tie.py)
    "ENDING_NONE": 0,
    "ENDING_REMOVED": 1,
    "ENDING_MOVED": 2,
    "ENDING_TAKEN_OVER": 3,
    "ENDING_SHARED_MEMORY": 4,
}
#: rows of the superblock that say when a queue went: who has a queue's handle reads the catalog when its row is newer
QUEUE_GONE_ROWS = 256
CONSTANTS["QUEUE_GONE_ROWS"] = QUEUE_GONE_ROWS
#: why a server, store or queue worker, closed a link (link.evicted): name of the number, what was wrong with the client
EVICTIONS = {
    "EVICTED_OPERATION": "an unknown command, or one with inconsistent fields",
    "EVICTED_BLOB": "a body or list outside its arena, or inconsistent lengths",
    "EVICTED_OWNER": "a body that the client may not pass on, because it is not a queue worker",
    "EVICTED_TAIL": "more commands than its ring holds",
    "EVICTED_DYING": "it announced its end (`delete_and_terminate`) and did not finish within a minute",
    "EVICTED_TAKEUP": "head and tail of its ring were inconsistent when the server took it up",
}
CONSTANTS.update({name: number for number, name in enumerate(EVICTIONS, 1)})

# fmt: off
SUPERBLOCK = Struct(
    "superblock",
    4096,
    "First page of the node's superblock (POSIX shared memory `/warren-<node>-super`). Writer: supervisor, but for the atomics.",
    (
        Field("magic", 0, "u64", "SUPERBLOCK_MAGIC; written last, so a half-made superblock is never attached"),
        Field("layout_hash", 8, "u64", "hash of the carrier and of what it carries, of the writer; others refuse to attach"),
        Field("node_id", 16, "u64", "random number of the data directory; stands in the headers of its files"),
        Field("node_epoch", 24, "u64", "counts superblocks of this directory; persisted, so client epochs never repeat"),
        Field("state", 32, "a32", "NODE_…"),
        Field("servers_n", 36, "u32", "servers in use: 2 stores + queue workers + topic worker"),
        Field("supervisor_pid", 40, "u32", "process id of the supervisor"),
        Field("topic_server", 44, "u32", "the topic worker among the servers, the last one; 0: there is none"),
        Field("supervisor_start", 48, "u64", "its start time, clock ticks since boot"),
        Field("client_epoch_next", 56, "a64", "next client epoch (node_epoch << 32 | n); fetch-add by whoever registers"),
        Field("catalog_version", 64, "a64", "version of the catalog; who needs what it says reads it when this is another (supervisor)"),
        Field("slots_version", 72, "a64", "counts changes of any client slot; servers rescan on a change"),
        Field("alarms", 80, "a64", "ALARM_… bits (supervisor): its own and the servers' ones; publishers are blocked while memory or disk is set"),
        Field("live_semaphore_key", 88, "u32", "System V semaphore counting live clients (SEM_UNDO)"),
        Field("store_lock_key", 92, "u32", "System V semaphore that makes the store server single (SEM_UNDO)"),
        Field("ring_records", 96, "u32", "command records in each ring; power of two"),
        Field("delivery_slots", 100, "u32", "delivery slots that a client has at each queue worker if it asks for no other number; power of two"),
        Field("arena_bytes", 104, "u64", "arena of each client region; power of two"),
        Field("message_bytes_max", 112, "u64", "largest metadata + payload of one message"),
        Field("embed_bytes_max", 120, "u32", "bodies below this are embedded in the queue index"),
        Field("reply_bytes", 124, "u32", "reply area of each link"),
        Field("file_bytes", 128, "u64", "size of a segment file and of its image; multiple of the page"),
        Field("images_n", 136, "u32", "file images kept in memory by each log"),
        Field("directory_rows", 140, "u32", "words in the cur_file_cache directory; power of two"),
        Field("summary_rows", 144, "u32", "rows of the file summary; power of two"),
        Field("client_base_bytes", 152, "u64", "size of every client region without its delivery slots, which lie behind"),
        Field("crash_point", 160, "a32", "CRASH_… at which a process kills itself, 0: none (tests)"),
        Field("crash_after", 164, "a32", "times that the point is passed before (tests)"),
        Field("dense_blocks", 168, "u32", "rows of the dense table of each store's index; power of two"),
        Field("collector_pid", 172, "u32", "process id of the collector, 0: none (supervisor)"),
        Field("collector_start", 176, "u64", "its start time"),
        Field("collector_restarts", 184, "u32", "restarts of it counted by the supervisor"),
        Field("collector_state", 188, "a32", "SERVER_… of the collector (itself; DOWN by the supervisor)"),
        Field("shared_id", 192, "u64", "names the superblock, and begins every other name of the node; drawn at random for each superblock"),
        Field("place_device", 200, "u64", "device of the data directory"),
        Field("place_inode", 208, "u64", "its inode number"),
        Field("pid_namespace", 216, "u64", "inode of the servers' PID namespace; in another one their pids mean nothing"),
        Field("ipc_namespace", 224, "u64", "the same of System V and POSIX IPC"),
        Field("time_namespace", 232, "u64", "the same of the clocks, 0: the kernel has none"),
        Field("ending", 240, "a32", "ENDING_… : why the node ends, when it lost what it is tied to (who notices first)"),
        Field("pressure", 256, "a32", "share of the memory alarm's limits in use, in 1/1000 (supervisor); workers page from PRESSURE_PAGE on"),
        Field("shortages", 260, "a32", "SHORT_… bits: what the machine is short of since it passed a limit and until it is well below (supervisor)"),
        Field("memory_since", 264, "a64", "when the memory alarm was raised, ms since 1970, 0: it is off (supervisor; so are the words below)"),
        Field("disk_since", 272, "a64", "the same of the disk alarm"),
        Field("sync_failed_since", 280, "a64", "the same of the alarm of a log that failed"),
        Field("server_failed_since", 288, "a64", "the same of the alarm of a server that was given up"),
        Field("memory_used", 296, "a64", "bytes in use of the machine's or the control group's memory, without what is only cached"),
        Field("memory_limit", 304, "a64", "above these the memory alarm is raised"),
        Field("memory_own", 312, "a64", "bytes that the node itself uses: private memory of its servers, shared memory"),
        Field("memory_own_limit", 320, "a64", "above these the memory alarm is raised, too"),
        Field("disk_free", 328, "a64", "bytes that are free on the disk of the directory"),
        Field("disk_limit", 336, "a64", "below these the disk alarm is raised"),
        Field("image_bytes", 344, "a64", "bytes of each image of a log that may have memory, 0: all (supervisor, before the servers start)"),
        Field("topics_disk_since", 352, "a64", "when the alarm was raised that the disk is too full for topics"),
        Field("topics_disk_used", 360, "a64", "bytes in use of that disk (topic worker; so are the next two)"),
        Field("topics_disk_total", 368, "a64", "those, and what may still be written"),
        Field("topics_disk_limit", 376, "a64", "above so many in use the alarm is raised"),
        Field("barred", 384, "a64", "a queue that takes no messages and consumers until it is decided whether it goes: number of the question << 32 | its id, 0: none (supervisor)"),
        Field("names_key", 392, "u64", "random key of the names of regions (ipc/core/names.h): without it nobody foretells one", 2),
        Field("failing", 408, "a64", "roles that cannot start, or end again and again: bit n: server n, FAILING_COLLECTOR, FAILING_GATEWAY + n (supervisor)"),
        Field("role_failing_since", 416, "a64", "when the alarm was raised that one is"),
        Field("gateway_pid", 448, "u32", "process id of each AMQP gateway, 0: none (supervisor)", GATEWAYS_MAX),
        Field("gateway_state", 512, "a32", "SERVER_… of it (itself; DOWN by the supervisor)", GATEWAYS_MAX),
        Field("gateway_restarts", 576, "u32", "restarts of it counted by the supervisor", GATEWAYS_MAX),
        Field("gateway_connections", 640, "a32", "connections that it has: a node with some is in use (itself)", GATEWAYS_MAX),
        Field("gateway_start", 704, "u64", "its start time", GATEWAYS_MAX),
        Field("shared_bytes_max", 832, "u64", "largest metadata + payload that goes through arenas, logs and stores; a larger message has a file of its own"),
        Field("queue_gone", 1024, "a64", "version of the catalog with which a queue went last whose id is this, modulo QUEUE_GONE_ROWS; stored after catalog_version", QUEUE_GONE_ROWS),
        Field("directory", 3072, "bytes", "path of the data directory when the superblock was made, zero-padded, cut: for people", 1024),
    ),
)

SERVER = Struct(
    "server",
    512,
    "One server (a store, a queue worker, the topic worker), in the superblock. Writer: that server, but for `sleeping` and what says (supervisor).",
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
        Field("file_error", 52, "a32", "errno for which the next file was not made or a write waits, 0: that is not known; with ALARM_DISK (server)"),
        Field("lacks", 56, "a32", "LACK_…: what it lacked when it could not start, 0: nothing (supervisor)"),
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
        Field("lost_n", 248, "a64", "messages lost to damage since the node was started"),
        Field("queue_stats_generation", 256, "a64", "generation of the worker's queue statistics region, 0 if none"),
        Field("collected_n", 264, "a64", "files made by collections"),
        Field("retired_n", 272, "a64", "files that went"),
        Field("copied_bytes", 280, "a64", "bytes copied by collections"),
        Field("dense_extents", 288, "a64", "extents of the dense part of the index"),
        Field("begun", 296, "a64", "epoch of the incarnation that began last, before it touched a file of its folder (store)"),
        Field("queue_stats_rows", 304, "a64", "rows of that region that ever had a queue: the rest is not memory yet"),
        Field("lost_unknown_n", 312, "a64", "damaged or missing parts found by starts of which nobody can say what they cost, since the node was started"),
        Field("queues_version", 320, "a64", "version of the catalog with which a queue of this worker came or went last; stored after catalog_version (supervisor); of the topic worker: a topic"),
        Field("catalog_read", 328, "a64", "version of the catalog whose topics it serves and shows (topic worker; before it is READY)"),
        Field("barred_seen", 336, "a64", "the word `barred` of the superblock that it obeys last (queue worker)"),
        Field("barred_found", 344, "a32", "BARRED_… : what was in that queue then; stored before `barred_seen`"),
        Field("exclusive_n", 348, "a32", "queues of it that some client consumes alone (queue worker)"),
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
        Field("delivery_slots", 28, "a32", "delivery slots that its region has for each queue worker; power of two, 0: as the superblock says"),
        Field("pid_namespace", 32, "u64", "inode of the pid namespace; a foreign one is never judged by pid"),
        Field("name", 40, "bytes", "name for people, UTF-8, zero-padded", 48),
        Field("server_done", 128, "bytes", "per server: low 8 bits of the generation whose end it has finished handling; never 0, as in a new slot", 64),
        Field("reading", 192, "a64", "hint: server << 56 | file number + 1 that this client reads now, 0: none (client)"),
        Field("holds", 200, "a64", "lowest position of the log of topics that this client holds, plus 1; 0: none. Counts while the slot is claimed (client)"),
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
        Field("layout_hash", 8, "u64", "as in the superblock"),
        Field("client_epoch", 16, "u64", "as in its slot"),
        Field("servers_n", 24, "u32", "links in this region"),
        Field("shared_id", 32, "u64", "of the node's superblock: without one of that name the region is nobody's when nobody has it attached"),
        Field("shm_device", 40, "u64", "device of the /dev/shm where that superblock was"),
        Field("waiting", 64, "a32", "who is to be woken: WR_WAITS_… (ipc/core/view.h), 1: threads of the client that sleep on this word (futex), from bit 8 on the mark of one of them; the server that flips it to 0 wakes them"),
        Field("blocked_alarm", 128, "a32", "threads whose publish waits for the end of an alarm (client); for people"),
        Field("blocked_credit", 132, "a32", "threads that wait for room in a ring or in the arena (client); for people"),
    ),
)

LINK = Struct(
    "link",
    512,
    "One client's connection to one server, in the client region.",
    (
        Field("tail", 0, "a64", "commands submitted (client). SYNC command-visible: release store, pairs with the server's acquire"),
        Field("delivery_head", 8, "a64", "deliveries taken (client)"),
        Field("dying_until", 16, "a64", "store: below it this client's commands may be masked, 0: it never said so (client)"),
        Field("processed", 64, "a64", "commands processed (server); results and `none` durability hold below it"),
        Field("written", 72, "a64", "commands whose effects were handed to the operating system (server)"),
        Field("synced", 80, "a64", "commands whose effects are on stable storage (server)"),
        Field("head", 88, "a64", "commands that need no replay: their records and bodies may be reused (server)"),
        Field("unusual_until", 96, "a64", "no publish or append from here on has another result than OK (queue worker, topic worker; before `processed`)"),
        Field("delivery_tail", 128, "a64", "deliveries pushed (server)"),
        Field("server_epoch", 136, "a64", "epoch of the server that serves this link now (server)"),
        Field("evicted", 144, "a32", "EVICTED_…: why the server closed this link, 0 if it did not (server)"),
        Field("reply_length", 148, "u32", "bytes in the reply area (server, before `processed`)"),
        Field("death_until", 152, "a64", "store: commands below it are those of a dying client, 0: none (server); for its successor"),
        Field("death_position", 160, "u64", "its death point: position of the file that was current (server)"),
        Field("death_offset", 168, "u64", "and the offset in it (server)"),
        Field("closed", 176, "a64", "of a node that ends: command + 1 up to which all are done, and from which on none ever is; 0: not said (queue worker, topic worker)"),
        Field("slots_used", 184, "a32", "delivery slots from this one on were never used: nobody reads them (queue worker, before it uses one)"),
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
        Field("length", 32, "u32", "bytes of the blob: routes, key (16 bytes, with FLAG_DEDUPLICATE), metadata, payload"),
        Field("queue", 36, "u32", "queue id; with FLAG_ROUTES the number of queue ids (u32 each) at the start of the blob"),
        Field("tag", 40, "u64", "delivery tag, credit, (PUBLISH) time due, or (STORE_WRITE) 0 / owner of the blob: generation << 16 | slot + 1"),
        Field("count", 48, "u64", "ids in the blob, the end of a range, (PUBLISH) time of expiry | priority << PRIORITY_SHIFT, or (APPEND) bytes between properties and body"),
        Field("row", 56, "u32", "row of the directory + 1, 0 if none"),
        Field("result", 60, "a32", "RESULT_…"),
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
)

CONSTANTS.update(
    SUPERBLOCK_SERVERS_AT=SUPERBLOCK_SERVERS_AT,
    SUPERBLOCK_SLOTS_AT=SUPERBLOCK_SLOTS_AT,
    SUPERBLOCK_BYTES=SUPERBLOCK_BYTES,
)


def eviction(reason: int) -> str:
    """Why a server closed a link, in words, with the name of the number."""
    names = list(EVICTIONS.items())
    if not 1 <= reason <= len(names):
        return f"reason {reason}, which this version does not know"
    name, words = names[reason - 1]
    return f"{words} ({name})"


def whole_pages(n: int) -> int:
    """Bytes rounded up to pages."""
    return (n + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES


def client_base_bytes(servers_n: int, ring_records: int, reply_bytes: int, arena_bytes: int) -> int:
    """Size of a client region without its delivery slots. Order: client page | links | command rings | replies | arena.

    Every part starts on a page; the C core (`wr_view_init`) computes the same positions.
    """
    return (
        PAGE_BYTES
        + whole_pages(servers_n * LINK.size)
        + whole_pages(servers_n * ring_records * COMMAND.size)
        + whole_pages(servers_n * reply_bytes)
        + arena_bytes
    )


def client_slots_bytes(delivery_slots: int) -> int:
    """Size of what lies behind that, for each queue worker: delivery slots | delivery ring (u32 each) | handed out (u32
    each).
    """
    return whole_pages(delivery_slots * (DELIVERY_SLOT_BYTES + 4 + HANDED_BYTES))


def client_link_parts(server: int, servers_n: int, ring_records: int, reply_bytes: int) -> list[tuple[int, int]]:
    """The pages of a client region that are one link's alone (from, bytes), but for the link itself; of a server without
    delivery slots.
    """
    at, found = PAGE_BYTES + whole_pages(servers_n * LINK.size), []
    for size in (ring_records * COMMAND.size, reply_bytes):
        begin = whole_pages(at + server * size)
        end = (at + (server + 1) * size) // PAGE_BYTES * PAGE_BYTES
        if end > begin:
            found.append((begin, end - begin))
        at += whole_pages(servers_n * size)
    return found


def client_late_slots(base_bytes: int, workers_n: int, delivery_slots: int) -> list[tuple[int, int]]:
    """The pages of a client region (from, bytes) that only delivery slots above DELIVERY_SLOTS_WARM need, and the part of
    the rings that is reached when so many were delivered.
    """
    found = []
    if delivery_slots > DELIVERY_SLOTS_WARM:
        for worker in range(workers_n):
            at = base_bytes + worker * client_slots_bytes(delivery_slots)
            for size in (DELIVERY_SLOT_BYTES, 4, HANDED_BYTES):
                found.append((at + DELIVERY_SLOTS_WARM * size, (delivery_slots - DELIVERY_SLOTS_WARM) * size))
                at += delivery_slots * size
    return found
