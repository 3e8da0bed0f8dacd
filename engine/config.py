"""Settings of a node, with defaults, units and bounds; stored in `node.json` when the directory is made."""

from __future__ import annotations

import os
from typing import TypedDict

import msgspec

from warren.engine.addresses import addresses
from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.ipc.layout import DELIVERY_SLOTS_MAX, GATEWAYS_MAX

KIB = 1 << 10
MIB = 1 << 20
MESSAGE_BYTES_MOST = 128 * MIB + 64 * KIB  #: message_bytes_max at most: a body of 128 MiB with any metadata
#: settings that are the path of a file
FILE_SETTINGS = ("amqp_tls_certificate", "amqp_tls_key", "amqp_tls_ca")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a node; units are in the names."""

    profile: str = "default"  #: sizes that belong together: small, default or large
    group: str = ""  #: its members may use the node, too; "": its owner alone
    workers: int = 0  #: queue workers; 0: one per core
    file_bytes: int = 16 * MIB  #: size of a segment file and of its image in memory (rule S8: file_size_limit)
    images_n: int = 3  #: file images kept in memory by each log
    ring_records: int = 8192  #: commands that one client can have under way to one server
    delivery_slots: int = 4096  #: messages that one client can hold unacked from one worker
    arena_bytes: int = 8 * MIB  #: bodies that one client can have under way
    reply_bytes: int = 65536  #: reply area of one link
    message_bytes_max: int = (
        16 * MIB + 64 * KIB
    )  #: largest metadata + payload of one message; one that is too large for shared memory has a file of its own
    embed_bytes_max: int = 4096  #: bodies below this live in the queue index (queue_index_embed_msgs_below)
    dense_blocks: int = (
        65536  #: blocks of 1024 entries that each store's index may have for counted ids (32 KiB each, made as needed)
    )
    spare_files: int = 4  #: files of a store that are kept for reuse
    garbage_fraction: float = 0.5  #: share of garbage in a store's files above which they are collected
    directory_rows: int = 131072  #: rows of cur_file_cache's directory
    summary_rows: int = 16384  #: segment files one store can have
    index_rows: int = 16384  #: first size of the store's index; it grows
    journal_files_max: int = 8  #: journal files a worker keeps before it flushes the oldest into segments
    queue_memory_bytes: int = (
        256 * MIB  #: memory of messages in queues, all workers together; half of it for rows, the others come from disk
    )
    sync_tick_ms: int = 25  #: longest time that accepted writes stay out of the operating system under load
    commit_bytes: int = 1 * MIB  #: write buffer: a commit begins at the latest when so much waits
    spin_us: int = 50  #: longest spin of a server before it sleeps
    disk_free_bytes_min: int = 64 * MIB  #: below it the disk alarm blocks publishers
    memory_used_max: float = (
        0.9  #: share of the machine's (or control group's) memory above which the memory alarm blocks publishers
    )
    memory_own_max: float = 0.4  #: share of it that the node itself may use before the memory alarm blocks publishers
    log_level: str = "info"  #: what the logs have of each process: debug, info, warning or error, and what is worse
    log_format: str = "text"  #: text, or json: one object per line
    log_rotate_bytes: int = 1 * MIB  #: size of a process's log file at which the next one is begun
    log_files: int = 5  #: log files of each process, with the one in use
    log_file_bytes: int = 1024 * MIB  #: size of a file of the topics' commit log
    consume_queue_entries: int = 300_000  #: messages that a file of a topic's queue counts
    index_slots: int = 5_000_000  #: hash slots of a file of the topics' key index
    index_entries: int = 20_000_000  #: keys of a file of the topics' key index
    topic_ring_bytes: int = 16 * MIB  #: newest part of the commit log that is kept in shared memory
    group_release_s: float = 10.0  #: how long a reader of a group may keep queues that it has to give back
    retention_check_s: float = 10.0  #: how often is looked which messages of topics go
    compaction_dirty: float = (
        0.5  #: a queue of a compacted topic is compacted when the log has so much of its file's bytes
    )
    compaction_keys: int = (
        1_000_000  #: different keys of which one pass takes the newest messages: it has 64 bytes for each
    )
    compaction_tombstone_s: float = 86_400.0  #: how long readers can hear that a key of a compacted topic was deleted
    compaction_bytes_per_s: int = 64 * MIB  #: how much a pass reads and writes in a second
    topics_disk_quick: float = 0.75  #: share of the disk in use above which files of the topics' log go without a pause
    topics_disk_forced: float = 0.85  #: above it the oldest messages of topics with a retention go before their time
    topics_disk_full: float = 0.9  #: above it nothing is appended to topics
    delayed_messages_max: int = (
        1_000_000  #: messages of topics that are to come later; the topic worker has 24 to 48 bytes for each
    )
    half_messages_max: int = 100_000  #: half messages of topics that are neither committed nor rolled back
    half_outcomes_kept: int = 10_000  #: half messages of which it is kept what became of them
    half_after_s: float = 6.0  #: until a client with on_check is asked what becomes of a half message …
    half_interval_s: float = 60.0  #: … and asked again
    half_checks_max: int = 15  #: so often; then it is put aside, as if rolled back; 0: without end
    amqp: str = ""  #: where AMQP clients are served (engine/addresses.py), separated by commas; "": nowhere
    amqp_processes: int = 1  #: gateway processes, which share the ports
    amqp_tls_certificate: str = ""  #: file with the certificate of tls: addresses, and what it was signed with
    amqp_tls_key: str = ""  #: file with its private key; "": it is in the file of the certificate
    amqp_tls_ca: str = ""  #: file with the authorities of which clients must show a certificate; "": they need none
    amqp_frame_max: int = 131072  #: largest frame that a client is offered
    amqp_channel_max: int = 2047  #: channels of a connection that a client is offered; 0: no limit
    amqp_heartbeat_s: int = 60  #: heartbeat that a client is offered; 0: none
    amqp_connections_max: int = 10_000  #: connections of each gateway process
    #: messages that the consumers of a gateway process, or of a task queue's client, can hold unacked from one worker
    amqp_delivery_slots: int = DELIVERY_SLOTS_MAX
    amqp_backlog_bytes: int = 256 * MIB  #: what a gateway process keeps of clients; a client that has more of it waits
    amqp_message_bytes_max: int = 16 * MIB  #: largest body that a client may announce; the node's own limit holds, too

    def checked(self) -> Settings:
        """The same settings with `workers` resolved; raises UsageError naming the setting that is out of bounds."""
        if self.profile not in PROFILES:
            raise _no_profile(self.profile)
        for name, words in (("log_level", LOG_LEVELS), ("log_format", LOG_FORMATS)):
            if getattr(self, name) not in words:
                raise UsageError(f"setting {name} must be one of {', '.join(words)}, not {shown(getattr(self, name))}")
        powers = {
            "ring_records": 65536,
            "delivery_slots": DELIVERY_SLOTS_MAX,
            "amqp_delivery_slots": DELIVERY_SLOTS_MAX,
            "arena_bytes": 4096 * MIB,
            "directory_rows": 1 << 24,
            "dense_blocks": 1 << 20,
            "summary_rows": 1 << 20,
            "index_rows": 1 << 24,
            "topic_ring_bytes": 4096 * MIB,
        }
        for name, most in powers.items():
            value = getattr(self, name)
            if not 64 <= value <= most or value & (value - 1):
                raise UsageError(f"setting {name} must be a power of two between 64 and {most}, not {value}")
        bounds = {
            "workers": (0, 30),
            "file_bytes": (256 * 1024, 1024 * MIB),
            "images_n": (2, 16),
            "arena_bytes": (65536, 4096 * MIB),
            "reply_bytes": (4096, 16 * MIB),
            "message_bytes_max": (1, MESSAGE_BYTES_MOST),
            "embed_bytes_max": (0, 65536),
            "journal_files_max": (2, 4096),
            "queue_memory_bytes": (128 * 1024, 1024 * 1024 * MIB),
            "spare_files": (0, 1024),
            "garbage_fraction": (0.1, 0.9),
            "sync_tick_ms": (1, 10000),
            "commit_bytes": (4096, 64 * MIB),
            "spin_us": (0, 10000),
            "disk_free_bytes_min": (0, 1 << 62),
            "memory_used_max": (0.001, 1.0),
            "memory_own_max": (0.001, 1.0),
            "log_rotate_bytes": (4096, 1024 * MIB),
            "log_files": (2, 100),
            "log_file_bytes": (MIB, 1024 * MIB),
            "consume_queue_entries": (1, 100_000_000),
            "index_slots": (1, 100_000_000),
            "index_entries": (2, 100_000_000),
            "topic_ring_bytes": (64 * 1024, 4096 * MIB),
            "group_release_s": (0.1, 86400.0),
            "retention_check_s": (0.05, 86400.0),
            "compaction_dirty": (0.01, 100.0),
            "compaction_keys": (1, 1_000_000_000),
            "compaction_tombstone_s": (0.0, 1e9),
            "compaction_bytes_per_s": (4096, 1 << 40),
            "topics_disk_quick": (0.0, 1.0),
            "topics_disk_forced": (0.0, 1.0),
            "topics_disk_full": (0.001, 1.0),
            "delayed_messages_max": (1, 100_000_000),
            "half_messages_max": (1, 10_000_000),
            "half_outcomes_kept": (1, 10_000_000),
            "half_after_s": (0.01, 86400.0),
            "half_interval_s": (0.01, 86400.0),
            "half_checks_max": (0, 1_000_000),
            "amqp_processes": (1, GATEWAYS_MAX),
            "amqp_frame_max": (4096, 16 * MIB),
            "amqp_channel_max": (0, 65535),
            "amqp_heartbeat_s": (0, 65535),
            "amqp_connections_max": (1, 60_000),
            "amqp_backlog_bytes": (MIB, 1 << 40),
            "amqp_message_bytes_max": (1, 1024 * MIB),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"setting {name} must lie between {low} and {high}, not {value}")
        if not self.topics_disk_quick <= self.topics_disk_forced <= self.topics_disk_full:
            raise UsageError(
                "settings topics_disk_quick, topics_disk_forced and topics_disk_full must not get smaller in this "
                f"order, not {self.topics_disk_quick}, {self.topics_disk_forced}, {self.topics_disk_full}"
            )
        self._check_addresses()
        for name in ("file_bytes", "reply_bytes", "log_file_bytes"):
            if getattr(self, name) % 4096:
                raise UsageError(f"setting {name} must be a multiple of 4096, not {getattr(self, name)}")
        workers = self.workers or min(30, os.cpu_count() or 1)
        return msgspec.structs.replace(self, workers=workers)

    def _check_addresses(self) -> None:
        found = addresses("amqp", self.amqp)
        if any(address.kind == "tls" for address in found) and not self.amqp_tls_certificate:
            raise UsageError("a tls: address of setting amqp needs a certificate: give setting amqp_tls_certificate")
        if self.amqp_processes > 1 and any(address.kind != "unix" and not address.port for address in found):
            raise UsageError(
                "several gateway processes (setting amqp_processes) share a port, and port 0 of setting amqp is "
                "another one for each: give the port"
            )

    @property
    def shared_bytes_max(self) -> int:
        """The largest metadata + payload that goes through arenas, logs and stores: what file_bytes and arena_bytes
        allow. A larger message has a file of its own (docs/queues.md). A topic takes one of this size, too: in the
        log it has half of topic_ring_bytes, but for what ends a commit."""
        return min(self.message_bytes_max, min(self.arena_bytes // 2, self.file_bytes - 8192) - 16384)


class NodeSettings(TypedDict, total=False):
    """The settings that `warren.open` takes beside a profile, for type checkers; what they are, Settings says."""

    workers: int
    file_bytes: int
    images_n: int
    ring_records: int
    delivery_slots: int
    arena_bytes: int
    reply_bytes: int
    message_bytes_max: int
    embed_bytes_max: int
    dense_blocks: int
    spare_files: int
    garbage_fraction: float
    directory_rows: int
    summary_rows: int
    index_rows: int
    journal_files_max: int
    queue_memory_bytes: int
    sync_tick_ms: int
    commit_bytes: int
    spin_us: int
    disk_free_bytes_min: int
    memory_used_max: float
    memory_own_max: float
    log_level: str
    log_format: str
    log_rotate_bytes: int
    log_files: int
    log_file_bytes: int
    consume_queue_entries: int
    index_slots: int
    index_entries: int
    topic_ring_bytes: int
    group_release_s: float
    retention_check_s: float
    compaction_dirty: float
    compaction_keys: int
    compaction_tombstone_s: float
    compaction_bytes_per_s: int
    topics_disk_quick: float
    topics_disk_forced: float
    topics_disk_full: float
    delayed_messages_max: int
    half_messages_max: int
    half_outcomes_kept: int
    half_after_s: float
    half_interval_s: float
    half_checks_max: int
    amqp: str
    amqp_processes: int
    amqp_tls_certificate: str
    amqp_tls_key: str
    amqp_tls_ca: str
    amqp_frame_max: int
    amqp_channel_max: int
    amqp_heartbeat_s: int
    amqp_connections_max: int
    amqp_delivery_slots: int
    amqp_backlog_bytes: int
    amqp_message_bytes_max: int


#: profile → what it sets. `default` has the defaults of what another one sets
PROFILES: dict[str, dict[str, int]] = {
    "small": {
        "workers": 1,
        "file_bytes": 4 * MIB,
        "images_n": 2,
        "ring_records": 4096,
        "arena_bytes": 2 * MIB,
        "message_bytes_max": 4 * MIB + 64 * KIB,
        "dense_blocks": 4096,
        "spare_files": 2,
        "directory_rows": 8192,
        "summary_rows": 2048,
        "index_rows": 4096,
        "queue_memory_bytes": 64 * MIB,
        "disk_free_bytes_min": 16 * MIB,
        "topic_ring_bytes": 2 * MIB,
    },
    "default": {},
    "large": {
        "file_bytes": 64 * MIB,
        "ring_records": 16384,
        "delivery_slots": 16384,
        "arena_bytes": 32 * MIB,
        "message_bytes_max": 64 * MIB + 64 * KIB,
        "index_rows": 131072,
        "queue_memory_bytes": 1024 * MIB,
        "topic_ring_bytes": 64 * MIB,
        "disk_free_bytes_min": 256 * MIB,
    },
}


def _no_profile(given: object) -> UsageError:
    return UsageError(f"there is no profile {shown(given)}; the profiles are {', '.join(PROFILES)}")


def with_profile(settings: Settings, profile: object) -> Settings:
    """The settings with the sizes of a profile; what no profile sets stays. Raises UsageError: there is none."""
    if not isinstance(profile, str) or profile not in PROFILES:
        raise _no_profile(profile)
    defaults = Settings()
    sizes = {name: getattr(defaults, name) for sizes in PROFILES.values() for name in sizes}
    return msgspec.structs.replace(settings, profile=profile, **(sizes | PROFILES[profile]))
