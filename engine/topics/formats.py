"""The formats of topics, declared once: those of Apache RocketMQ's store, byte by byte.

`engine/topics/formats.h` and the tables of `docs/formats.md` are generated from this file. All numbers are big-endian. They are
Java's signed types, so none is above 2^31 − 1 or 2^63 − 1 where it says that it counts something.

A file of the commit log holds records without gaps. A record is log_head, born host, log_stored, store host, log_tail, body,
length of the topic (1 byte in V1, 2 in V2), topic, properties_length:2, properties. A host is host_v4, or host_v6 where
sys_flag says so. V1 with IPv4 hosts has 91 bytes beside body, topic and properties. A record is written only where its size + 8
bytes are left in the file; else `size:4, magic:4` of a blank record say that the rest of the file (`size` bytes) is empty.
Where a file was not written yet it is zeros.

Properties are `name 0x01 value 0x02`, one behind the other. KEYS (separated by spaces), TAGS and UNIQ_KEY have a meaning. Bytes
0x00 to 0x02 stand in no topic, name or value, and all three are UTF-8.

Records lie in commits. A commit record, of a topic of its own, ends each of them: it says where the commit begins, sums all
of it, and says to each client how many of its commands are in the log. For other readers it is a message like any other.

Consume queues and key index are derived from the log. A checkpoint says from where it is walked to bring them up to date: one
file, replaced as a whole, a checkpoint with its commit_mark and checkpoint_row records. One that is damaged, of another node or of
other settings is none, and the log is walked from its first file; so is one of an older version, whose files have no key_index_link.

Where retention removes files of the log, a bounds record with its bound records, of a topic of Warren's own, stands in the log
before: from which position on all files have to be there, and what no record says any more.

Offsets of groups of readers are records of a topic of Warren's own, too; of each queue the newest one counts. A snapshot, one
file, replaced as a whole, has them all, and says from where the log is walked for newer ones. One that is damaged, missing or
of another node is none, and the log is walked from its first file.

A message that is to come later (docs/design/024-later-messages.md) is a record of SCHEDULE_TOPIC (one of the DELAY_LEVELS_MS;
queue_id is the level − 1) or of TIMER_TOPIC (any time): its flag is the id of the topic that it is for, REAL_TOPIC, REAL_QID and
TIMER_OUT_MS (milliseconds since 1970) say where it goes, and when, and the properties before them what the publisher said of
it; queue_offset is 0. When it is due it is appended to that topic, without those properties, and with
prepared_transaction_offset: so the log itself says what has come. A snapshot, one file, replaced as a whole, has all that is
pending at a position: later, then pending records in the order of their positions. One that is damaged, missing or of another
node is none, and the log is walked from its first file.

A half message (docs/design/027-halves.md) is a record of HALF_TOPIC with SYS_PREPARED: its flag is the id of the topic that it is for,
TRAN_MSG, REAL_TOPIC and REAL_QID stand behind the properties that its publisher gave it; queue_id and queue_offset are 0. One record
says what became of it, with the position of the half message as prepared_transaction_offset: with SYS_COMMIT the message in its
topic, without those properties; with SYS_ROLLBACK a record of OP_HALF_TOPIC, or of PUT_ASIDE_TOPIC with the whole message, where
nobody answered for it. A snapshot, one file, replaced as a whole, has what is pending at a position, and what became of the newest of
those that are not: halves, then half records in the order of their positions, then half_outcome records in the order of `by`. One that
is damaged, missing or of another node is none, and the log is walked from its first file.

What is alive of a compacted topic below its minimum (docs/design/029-compaction.md) lies in a file for each queue, replaced as a whole:
compacted, then blocks (compacted_block, then records as they lay in the log, in the order of their offsets), pages of keys (compacted_page,
then up to KEYS_PAGE_N compacted_key in the order of their hashes, then of their offsets), compacted_place of each block, and
compacted_tombstone of each record without a body, in the order of their offsets. It can not be made again from the log.

Checked by a reader: magic, size, all lengths (they must add up to the size), physical_offset against the record's position, and
the body against body_crc. No checksum covers queue_id, flag, queue_offset, sys_flag, the times, the hosts, reconsume_times,
prepared_transaction_offset, topic and properties. (Bits of sys_flag that change a host's length are noticed, unless they
shorten one and lengthen the other.)

A file of a consume queue holds consume_queue_unit records, the n-th for the n-th message of its queue. A file of the key index is
key_index_header, then slots of 4 bytes (newest entry of the slot's keys, 0: none), then key_index_entry records; RocketMQ does not use
the entry 0. The slot of a key is its hash modulo the slots. Its hash is that of `topic#key` (Java's String.hashCode) without its
sign, 0 for the smallest one. In the place of entry 0 lies a key_index_link, which says which file comes before. The message id is the store host and physical_offset in upper case hexadecimal digits.

Where Warren differs from RocketMQ:

- A topic has 127 bytes at most in RocketMQ, which refuses longer ones although V2 holds 32,767. Warren writes V2 from 128
  bytes on, and limits nothing further here. It reads V2 with a shorter topic, too.
- Some versions of RocketMQ leave out the last 0x02 of the properties. Warren writes it, and reads both. A property with an
  empty value is kept; RocketMQ ignores it. 0x00 in properties is refused, and so is what is not UTF-8.
- body_crc of an empty body must be 0. A record with a negative queue_id, queue_offset or reconsume_times is refused.
- time_diff is cut to 0 … 2^31 − 1, as there. The first entry's is 0: there it may count from the end of the file before.
- A look-up by time misses nothing. time_diff counts whole seconds, and what was cut says little: an entry is found when its
  message may lie in the range, and the record itself says whether it does. RocketMQ compares the second's beginning alone.
- A look-up ends at the first entry older than the range only where store times never step back. previous must get smaller
  with each step, and every entry of a chain must belong to its slot: else the index is damaged, and says so.
- hash_slot_count and index_count change together, in one store.
"""

from __future__ import annotations

from warren.ipc.declare import Field, Struct

RECORD_MAGIC_V1 = 0xDAA320A7
RECORD_MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194

RECORD_BYTES_MAX = 0x7FFFFFFF
#: size of a unit that says that there is no message: its position and tags_code are 0. RocketMQ fills files with them.
UNIT_EMPTY = 0x7FFFFFFF
TOPIC_V1_BYTES_MAX = 127
TOPIC_BYTES_MAX = 32767
PROPERTIES_BYTES_MAX = 32767
BODY_CRC_MASK = 0x7FFFFFFF

#: bits of sys_flag
SYS_COMPRESSED = 1  # the body is compressed
SYS_MULTI_TAGS = 2  # TAGS holds several
SYS_TRANSACTION_MASK = 12  # 0: no transaction
SYS_PREPARED = 4  # a half message
SYS_COMMIT = 8
SYS_ROLLBACK = 12
SYS_BORN_HOST_V6 = 16
SYS_STORE_HOST_V6 = 32
SYS_NEED_UNWRAP = 64
SYS_INNER_BATCH = 128

PROPERTY_NAME_END = 1
PROPERTY_VALUE_END = 2
KEY_SEPARATOR = 32  # between the keys of KEYS

#: topics whose names begin so are Warren's own: programs have none, and nothing is dispatched for them
SYSTEM_TOPICS = "WARREN_SYS_"

#: Warren's own: what a commit ends with (docs/design/019-topics.md)
COMMIT_TOPIC = f"{SYSTEM_TOPICS}COMMIT"
COMMIT_VERSION = 1

#: Warren's own: the offsets that groups of readers have committed (docs/design/022-groups.md)
OFFSETS_TOPIC = f"{SYSTEM_TOPICS}OFFSETS"
OFFSETS_VERSION = 1
GROUPS_MAGIC = "WRGROUPS"
GROUPS_VERSION = 1

#: Warren's own: what retention removed of the log (docs/design/023-retention.md)
BOUNDS_TOPIC = f"{SYSTEM_TOPICS}BOUNDS"
BOUNDS_VERSION = 1
#: Warren's own: offsets that an accepted loss took, which no message gets again (docs/design/047-accepted-losses.md)
LOST_TOPIC = f"{SYSTEM_TOPICS}LOST"
#: RocketMQ's, for messages that are to come later: by level, and at any time (docs/design/024-later-messages.md)
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
#: its half messages, and what became of them
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#: half messages of which nobody said in time what becomes of them (docs/design/027-halves.md)
PUT_ASIDE_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
HALVES_MAGIC = "WRHALVES"
HALVES_VERSION = 1
#: what became of a half message
HALF_COMMITTED, HALF_ROLLED_BACK, HALF_PUT_ASIDE = 1, 2, 3
#: what RocketMQ's levels 1 to 18 say: 1 s 5 s 10 s 30 s, 1 to 10, 20 and 30 min, 1 and 2 h
_S, _MIN, _H = 1000, 60_000, 3_600_000
DELAY_LEVELS_MS = (_S, 5 * _S, 10 * _S, 30 * _S, *(n * _MIN for n in (*range(1, 11), 20, 30)), _H, 2 * _H)
#: 3 days: no message is put off for longer
DELAY_MS_MAX = 3 * 24 * _H
LATER_MAGIC = "WRLATER_"
LATER_VERSION = 1

#: Warren's own: the newest records of a queue of a compacted topic
COMPACTED_MAGIC = "WRCOMPAC"
COMPACTED_VERSION = 1
#: bytes of records in one of its blocks, but for a record that is larger
COMPACTED_BLOCK_BYTES = 1 << 16
#: keys in one of its pages, which has 4 KiB then
KEYS_PAGE_N = 341

#: Warren's own, too: what the derived files hold, at a place of the log
CHECKPOINT_MAGIC = "WRTOPICS"
CHECKPOINT_VERSION = 3  #: of 1 and 2 the files of the key index have no key_index_link

#: defaults, all of them settings of the node
LOG_FILE_BYTES = 1 << 30
CONSUME_QUEUE_ENTRIES = 300_000
INDEX_SLOTS = 5_000_000
INDEX_ENTRIES = 20_000_000

CONSTANTS: dict[str, int] = {
    "RECORD_MAGIC_V1": RECORD_MAGIC_V1,
    "RECORD_MAGIC_V2": RECORD_MAGIC_V2,
    "BLANK_MAGIC": BLANK_MAGIC,
    "RECORD_BYTES_MAX": RECORD_BYTES_MAX,
    "UNIT_EMPTY": UNIT_EMPTY,
    "TOPIC_V1_BYTES_MAX": TOPIC_V1_BYTES_MAX,
    "TOPIC_BYTES_MAX": TOPIC_BYTES_MAX,
    "PROPERTIES_BYTES_MAX": PROPERTIES_BYTES_MAX,
    "BODY_CRC_MASK": BODY_CRC_MASK,
    "SYS_COMPRESSED": SYS_COMPRESSED,
    "SYS_MULTI_TAGS": SYS_MULTI_TAGS,
    "SYS_TRANSACTION_MASK": SYS_TRANSACTION_MASK,
    "SYS_PREPARED": SYS_PREPARED,
    "SYS_COMMIT": SYS_COMMIT,
    "SYS_ROLLBACK": SYS_ROLLBACK,
    "SYS_BORN_HOST_V6": SYS_BORN_HOST_V6,
    "SYS_STORE_HOST_V6": SYS_STORE_HOST_V6,
    "SYS_NEED_UNWRAP": SYS_NEED_UNWRAP,
    "SYS_INNER_BATCH": SYS_INNER_BATCH,
    "PROPERTY_NAME_END": PROPERTY_NAME_END,
    "PROPERTY_VALUE_END": PROPERTY_VALUE_END,
    "KEY_SEPARATOR": KEY_SEPARATOR,
    "COMMIT_VERSION": COMMIT_VERSION,
    "CHECKPOINT_VERSION": CHECKPOINT_VERSION,
    "OFFSETS_VERSION": OFFSETS_VERSION,
    "BOUNDS_VERSION": BOUNDS_VERSION,
    "GROUPS_VERSION": GROUPS_VERSION,
    "LATER_VERSION": LATER_VERSION,
    "HALVES_VERSION": HALVES_VERSION,
    "COMPACTED_VERSION": COMPACTED_VERSION,
    "COMPACTED_BLOCK_BYTES": COMPACTED_BLOCK_BYTES,
    "KEYS_PAGE_N": KEYS_PAGE_N,
    "HALF_COMMITTED": HALF_COMMITTED,
    "HALF_ROLLED_BACK": HALF_ROLLED_BACK,
    "HALF_PUT_ASIDE": HALF_PUT_ASIDE,
    "DELAY_LEVELS_N": len(DELAY_LEVELS_MS),
    "DELAY_MS_MAX": DELAY_MS_MAX,
    **{f"DELAY_LEVEL_{level}_MS": ms for level, ms in enumerate(DELAY_LEVELS_MS, 1)},
    "LOG_FILE_BYTES": LOG_FILE_BYTES,
    "CONSUME_QUEUE_ENTRIES": CONSUME_QUEUE_ENTRIES,
    "INDEX_SLOTS": INDEX_SLOTS,
    "INDEX_ENTRIES": INDEX_ENTRIES,
}

# fmt: off
LOG_HEAD = Struct(
    "log_head",
    48,
    "Head of a record of the commit log, up to the born host.",
    (
        Field("size", 0, "u32", "bytes of the whole record"),
        Field("magic", 4, "u32", "RECORD_MAGIC_V1 or RECORD_MAGIC_V2"),
        Field("body_crc", 8, "u32", "CRC-32 (IEEE 802.3) of the body, without its highest bit"),
        Field("queue_id", 12, "u32", "queue of the topic"),
        Field("flag", 16, "u32", "id of the topic, so that a topic that was deleted and made again shows nothing of before; 0: it goes by its name"),
        Field("queue_offset", 20, "u64", "n-th message of its queue, from 0"),
        Field("physical_offset", 28, "u64", "position of this record in the log: protects against moved and old records"),
        Field("sys_flag", 36, "u32", "SYS_…"),
        Field("born_timestamp", 40, "u64", "milliseconds since 1970, of the publisher"),
    ),
    ">",
)

LOG_STORED = Struct(
    "log_stored",
    8,
    "Of a record, between the two hosts.",
    (
        Field("store_timestamp", 0, "u64", "milliseconds since 1970, when it was appended"),
    ),
    ">",
)

LOG_TAIL = Struct(
    "log_tail",
    16,
    "Of a record, behind the store host.",
    (
        Field("reconsume_times", 0, "u32", "deliveries that failed before"),
        Field("prepared_transaction_offset", 4, "u64", "commit and rollback: physical_offset of the half message; of a message that was to come later: that of its record there, + 1"),
        Field("body_length", 12, "u32", "bytes of the body, which follows"),
    ),
    ">",
)

HOST_V4 = Struct(
    "host_v4",
    8,
    "A host with an IPv4 address.",
    (
        Field("ip", 0, "bytes", "address", 4),
        Field("port", 4, "u32", "port"),
    ),
    ">",
)

HOST_V6 = Struct(
    "host_v6",
    20,
    "A host with an IPv6 address.",
    (
        Field("ip", 0, "bytes", "address", 16),
        Field("port", 16, "u32", "port"),
    ),
    ">",
)

BLANK = Struct(
    "blank",
    8,
    "The rest of a file of the commit log is empty.",
    (
        Field("size", 0, "u32", "bytes up to the end of the file, these 8 among them"),
        Field("magic", 4, "u32", "BLANK_MAGIC"),
    ),
    ">",
)

CONSUME_QUEUE_UNIT = Struct(
    "consume_queue_unit",
    20,
    "One message of a queue of a topic, at 20 × (queue_offset mod CONSUME_QUEUE_ENTRIES) of its file.",
    (
        Field("physical_offset", 0, "u64", "of its record"),
        Field("size", 8, "u32", "bytes of its record; UNIT_EMPTY: there is no message, nor will be; 0: not written yet"),
        Field("tags_code", 12, "u64", "Java's hashCode of TAGS, sign-extended; 0: no tag"),
    ),
    ">",
)

KEY_INDEX_HEADER = Struct(
    "key_index_header",
    40,
    "Head of a file of the key index. All zero: no entry.",
    (
        Field("begin_timestamp", 0, "u64", "store_timestamp of the first entry, milliseconds since 1970"),
        Field("end_timestamp", 8, "u64", "of the last one"),
        Field("begin_physical_offset", 16, "u64", "of the first entry's record"),
        Field("end_physical_offset", 24, "u64", "of the last one's"),
        Field("hash_slot_count", 32, "u32", "slots that are not empty"),
        Field("index_count", 36, "u32", "entries, plus 1"),
    ),
    ">",
)

KEY_INDEX_SLOT = Struct(
    "key_index_slot",
    4,
    "One slot of the key index.",
    (
        Field("newest", 0, "u32", "number of the newest entry, 0: none"),
    ),
    ">",
)

KEY_INDEX_ENTRY = Struct(
    "key_index_entry",
    20,
    "One key of a message.",
    (
        Field("key_hash", 0, "u32", "of `topic#key`"),
        Field("physical_offset", 4, "u64", "of the message's record"),
        Field("time_diff", 12, "u32", "whole seconds from begin_timestamp to its store_timestamp, 0 … 2^31 − 1"),
        Field("previous", 16, "u32", "number of the entry before it in its slot, 0: none"),
    ),
    ">",
)

KEY_INDEX_LINK = Struct(
    "key_index_link",
    20,
    "Warren's own, in the place of entry 0 of a file of the key index: which file comes before it. So one that was removed is missed.",
    (
        Field("previous", 0, "u64", "its name, as a number; 0: there was none"),
        Field("end", 8, "u64", "its end_physical_offset: below the log's first position it may have been removed"),
        Field("crc", 16, "u32", "CRC-32C of the name of this file (17 bytes) and the 16 bytes before"),
    ),
    ">",
)

COMMIT = Struct(
    "commit",
    68,
    "Begin of the body of a commit record, which is a record of the topic COMMIT_TOPIC at the end of each commit.",
    (
        Field("version", 0, "u32", "COMMIT_VERSION"),
        Field("marks_n", 4, "u32", "commit_mark records that follow"),
        Field("node", 8, "bytes", "whose log it is", 16),
        Field("epoch", 24, "u64", "of the server that wrote it; never lower than that of the commit before"),
        Field("number", 32, "u64", "of the commit, from 1 on; queue_offset of the record, too"),
        Field("from", 40, "u64", "where its first record begins"),
        Field("synced", 48, "u64", "everything below was on stable storage when this one was sealed"),
        Field("store_timestamp", 56, "u64", "of its newest record; born_timestamp and store_timestamp of the record, too"),
        Field("crc", 64, "u32", "CRC-32C of the log from `from` to this record"),
    ),
    ">",
)

COMMIT_MARK = Struct(
    "commit_mark",
    16,
    "What a commit confirms to one client.",
    (
        Field("client_epoch", 0, "u64", "the client"),
        Field("sequence", 8, "u64", "its commands below it are in the log"),
    ),
    ">",
)

CHECKPOINT = Struct(
    "checkpoint",
    140,
    "Head of the checkpoint of consume queues and key index: from where the log is walked, and what is on stable storage.",
    (
        Field("magic", 0, "bytes", "CHECKPOINT_MAGIC", 8),
        Field("version", 8, "u32", "CHECKPOINT_VERSION"),
        Field("crc", 12, "u32", "CRC-32C of all of the file but these 4 bytes"),
        Field("node", 16, "bytes", "whose log it is", 16),
        Field("epoch", 32, "u64", "of the last commit below `position`"),
        Field("number", 40, "u64", "of that commit"),
        Field("position", 48, "u64", "the log is walked from here on"),
        Field("store_timestamp", 56, "u64", "of the newest record below it"),
        Field("boot", 64, "bytes", "of the machine and the mount: in another one, what was not synced may be gone", 16),
        Field("consume_queue_entries", 80, "u32", "setting of the files"),
        Field("index_slots", 84, "u32", "setting of the files"),
        Field("index_entries", 88, "u32", "setting of the files"),
        Field("index_count", 92, "u32", "index_count of the newest file of the key index; older files are whole"),
        Field("index_begin", 96, "u64", "its begin_timestamp"),
        Field("index_name", 104, "bytes", "its name; zeros: there is none", 17),
        Field("marks_n", 124, "u32", "commit_mark records that follow"),
        Field("rows_n", 128, "u32", "checkpoint_row records that follow those"),
        Field("first", 132, "u64", "retention may have removed the files of the log below this position"),
    ),
    ">",
)

CHECKPOINT_ROW = Struct(
    "checkpoint_row",
    48,
    "A queue of a topic, in a checkpoint.",
    (
        Field("topic", 0, "u32", "id of the topic"),
        Field("queue", 4, "u32", "queue of it"),
        Field("minimum", 8, "u64", "offset of the first message that a reader may see"),
        Field("next", 16, "u64", "offset behind the last message below `position`"),
        Field("durable", 24, "u64", "units below are on stable storage"),
        Field("bytes", 32, "u64", "of the records from `minimum` on and below `position`"),
        Field("from", 40, "u64", "position of the first of those records; all bits set: there is none"),
    ),
    ">",
)

OFFSETS = Struct(
    "offsets",
    16,
    "Begin of the body of a record of the topic OFFSETS_TOPIC: offsets that a group of readers has committed.",
    (
        Field("version", 0, "u32", "OFFSETS_VERSION"),
        Field("topic", 4, "u32", "id of the topic"),
        Field("group_bytes", 8, "u32", "bytes of the group's name, UTF-8, behind the offset records"),
        Field("queues_n", 12, "u32", "offset records that follow; 0: the group was deleted, with all its offsets"),
    ),
    ">",
)

OFFSET = Struct(
    "offset",
    20,
    "Where a group is in one queue.",
    (
        Field("queue", 0, "u32", "queue of the topic"),
        Field("generation", 4, "u64", "in which the queue was given to the member that committed"),
        Field("offset", 12, "u64", "of the first message that is not done"),
    ),
    ">",
)

BOUNDS = Struct(
    "bounds",
    16,
    "Begin of the body of a record of the topic BOUNDS_TOPIC: what retention takes. It is in the log, and synced, before a file of the log is removed. "
    "Of a record of the topic LOST_TOPIC: what an accepted loss took; what is left of a queue stays, and offsets up to `next` get empty units.",
    (
        Field("version", 0, "u32", "BOUNDS_VERSION"),
        Field("rows_n", 4, "u32", "bound records that follow"),
        Field("first", 8, "u64", "files of the log below this position may be missing from now on"),
    ),
    ">",
)

BOUND = Struct(
    "bound",
    24,
    "A queue whose minimum rose, or without any message: its offsets go on here, though no record that is left says so.",
    (
        Field("topic", 0, "u32", "id of the topic"),
        Field("queue", 4, "u32", "queue of it"),
        Field("minimum", 8, "u64", "offset of the first message that a reader may see"),
        Field("next", 16, "u64", "offset of the next message"),
    ),
    ">",
)

GROUPS = Struct(
    "groups",
    64,
    "Head of the snapshot of all groups' offsets (`groups`): bodies as of OFFSETS_TOPIC follow, one for each group.",
    (
        Field("magic", 0, "bytes", "GROUPS_MAGIC", 8),
        Field("version", 8, "u32", "GROUPS_VERSION"),
        Field("crc", 12, "u32", "CRC-32C of all of the file but these 4 bytes"),
        Field("node", 16, "bytes", "whose log it is", 16),
        Field("position", 32, "u64", "records of OFFSETS_TOPIC below it are contained; the log is walked from here on"),
        Field("epoch", 40, "u64", "no commit from there on has a lower one"),
        Field("number", 48, "u64", "of the last commit below it"),
        Field("groups_n", 56, "u32", "bodies that follow"),
    ),
    ">",
)

LATER = Struct(
    "later",
    64,
    "Head of the snapshot of messages that are to come later (`later`): pending records follow.",
    (
        Field("magic", 0, "bytes", "LATER_MAGIC", 8),
        Field("version", 8, "u32", "LATER_VERSION"),
        Field("crc", 12, "u32", "CRC-32C of all of the file but these 4 bytes"),
        Field("node", 16, "bytes", "whose log it is", 16),
        Field("position", 32, "u64", "what the log says below it is contained, and on stable storage; it is walked from here on"),
        Field("epoch", 40, "u64", "no commit from there on has a lower one"),
        Field("number", 48, "u64", "of the last commit below it"),
        Field("pending_n", 56, "u64", "pending records that follow"),
    ),
    ">",
)

PENDING = Struct(
    "pending",
    24,
    "A message that is to come later.",
    (
        Field("position", 0, "u64", "physical_offset of its record, of SCHEDULE_TOPIC or TIMER_TOPIC"),
        Field("due", 8, "u64", "when it comes, milliseconds since 1970"),
        Field("size", 16, "u32", "bytes of that record"),
        Field("topic", 20, "u32", "id of the topic that it is for"),
    ),
    ">",
)

HALVES = Struct(
    "halves",
    72,
    "Head of the snapshot of half messages (`halves`): half records, then half_outcome records follow.",
    (
        Field("magic", 0, "bytes", "HALVES_MAGIC", 8),
        Field("version", 8, "u32", "HALVES_VERSION"),
        Field("crc", 12, "u32", "CRC-32C of all of the file but these 4 bytes"),
        Field("node", 16, "bytes", "whose log it is", 16),
        Field("position", 32, "u64", "what the log says below it is contained, and on stable storage; it is walked from here on"),
        Field("epoch", 40, "u64", "no commit from there on has a lower one"),
        Field("number", 48, "u64", "of the last commit below it"),
        Field("pending_n", 56, "u64", "half records that follow"),
        Field("outcomes_n", 64, "u64", "half_outcome records behind them"),
    ),
    ">",
)

HALF = Struct(
    "half",
    28,
    "A half message of which it is not known yet what becomes of it.",
    (
        Field("position", 0, "u64", "physical_offset of its record, of HALF_TOPIC"),
        Field("due", 8, "u64", "when it is asked for, milliseconds since 1970"),
        Field("size", 16, "u32", "bytes of that record"),
        Field("topic", 20, "u32", "id of the topic that it is for"),
        Field("asked", 24, "u32", "how often it was asked for"),
    ),
    ">",
)

HALF_OUTCOME = Struct(
    "half_outcome",
    36,
    "What became of a half message.",
    (
        Field("half", 0, "u64", "physical_offset of its record"),
        Field("by", 8, "u64", "physical_offset of the record that says so"),
        Field("offset", 16, "u64", "HALF_COMMITTED: of the message in its queue"),
        Field("queue", 24, "u32", "HALF_COMMITTED: queue of the topic"),
        Field("topic", 28, "u32", "id of the topic that it was for"),
        Field("kind", 32, "u32", "HALF_…"),
    ),
    ">",
)

COMPACTED = Struct(
    "compacted",
    104,
    "Head of a file of the newest records of a queue of a compacted topic.",
    (
        Field("magic", 0, "bytes", "COMPACTED_MAGIC", 8),
        Field("version", 8, "u32", "COMPACTED_VERSION"),
        Field("crc", 12, "u32", "CRC-32C of the head but these 4 bytes, and of the file from the places of the blocks on"),
        Field("node", 16, "bytes", "whose topic it is", 16),
        Field("topic", 32, "u32", "id of the topic"),
        Field("queue", 36, "u32", "queue of it"),
        Field("end", 40, "u64", "offset: what is alive below it is here"),
        Field("made", 48, "u64", "milliseconds since 1970"),
        Field("bytes", 56, "u64", "of the whole file"),
        Field("keys_at", 64, "u64", "where the pages of keys begin; the blocks lie before"),
        Field("keys_n", 72, "u64", "keys in them"),
        Field("records_n", 80, "u64", "records in the blocks"),
        Field("blocks_n", 88, "u64", "blocks"),
        Field("tombstones_n", 96, "u64", "records without a body"),
    ),
    ">",
)

COMPACTED_BLOCK = Struct(
    "compacted_block",
    8,
    "Head of a block.",
    (
        Field("crc", 0, "u32", "CRC-32C of the file's node, topic, queue, end and made, this block's place (u64), and all behind these 4 bytes"),
        Field("size", 4, "u32", "bytes of the records, which follow"),
    ),
    ">",
)

COMPACTED_PAGE = Struct(
    "compacted_page",
    4,
    "Head of a page of keys.",
    (
        Field("crc", 0, "u32", "as of a block"),
    ),
    ">",
)

COMPACTED_KEY = Struct(
    "compacted_key",
    12,
    "A key of a record.",
    (
        Field("key_hash", 0, "u32", "of `topic#key`, as in the key index"),
        Field("offset", 4, "u64", "queue_offset of the record"),
    ),
    ">",
)

COMPACTED_PLACE = Struct(
    "compacted_place",
    32,
    "Where a block lies, and what its first record says.",
    (
        Field("offset", 0, "u64", "queue_offset"),
        Field("position", 8, "u64", "physical_offset"),
        Field("store_timestamp", 16, "u64", "milliseconds since 1970"),
        Field("at", 24, "u64", "place of the block in the file"),
    ),
    ">",
)

COMPACTED_TOMBSTONE = Struct(
    "compacted_tombstone",
    16,
    "A record without a body.",
    (
        Field("offset", 0, "u64", "queue_offset"),
        Field("since", 8, "u64", "from when on nobody finds what it takes away, milliseconds since 1970; 0: not yet"),
    ),
    ">",
)

# fmt: on
STRUCTS = (
    LOG_HEAD,
    HOST_V4,
    HOST_V6,
    LOG_STORED,
    LOG_TAIL,
    BLANK,
    CONSUME_QUEUE_UNIT,
    KEY_INDEX_HEADER,
    KEY_INDEX_SLOT,
    KEY_INDEX_ENTRY,
    KEY_INDEX_LINK,
    COMMIT,
    COMMIT_MARK,
    CHECKPOINT,
    CHECKPOINT_ROW,
    OFFSETS,
    OFFSET,
    BOUNDS,
    BOUND,
    GROUPS,
    LATER,
    PENDING,
    HALVES,
    HALF,
    HALF_OUTCOME,
    COMPACTED,
    COMPACTED_BLOCK,
    COMPACTED_PAGE,
    COMPACTED_KEY,
    COMPACTED_PLACE,
    COMPACTED_TOMBSTONE,
)


def key_index_bytes(slots: int = INDEX_SLOTS, entries: int = INDEX_ENTRIES) -> int:
    """Bytes of a file of the key index."""
    return KEY_INDEX_HEADER.size + slots * KEY_INDEX_SLOT.size + entries * KEY_INDEX_ENTRY.size


def consume_queue_bytes(entries: int = CONSUME_QUEUE_ENTRIES) -> int:
    """Bytes of a file of a consume queue."""
    return entries * CONSUME_QUEUE_UNIT.size
