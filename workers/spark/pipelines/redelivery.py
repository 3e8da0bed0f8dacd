"""Redelivery, as a report shows it: how often what queues hold was delivered, and where dead letters are.

How often a message was delivered is in shared memory while a node runs, and an orderly stop writes it down (the file
`terms` of each queue worker, which the next start removes). So it is known of a node that was stopped, and not of one
that runs or was killed: then every message counts as delivered before at the next start.

Dead letters of a queue lie in its hidden companion until they are forwarded, and then in the queues that their exchange
leads to, which may hold other messages, too. Those of a group of a topic have a topic of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from warren.engine.catalog import group_topics
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.catalog import QueueDeclaration
from warren.engine.kernel.formats import TERM
from warren.engine.queues.folder import Folder
from warren.engine.queues.terms import read_terms
from warren.ipc.layout import SERVER_WORKER_FIRST
from warren.workers.spark.files.directory import Directory
from warren.workers.spark.pipelines.facts import Dead, Delivered, Depth

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TERM = np.dtype(TERM.columns())
_SCHEMA = pa.schema([("queue", pa.int64()), ("first", pa.int64()), ("last", pa.int64()), ("times", pa.int64())])


def delivered(spark: SparkSession, directory: Directory, messages: DataFrame) -> list[Delivered] | None:
    """Messages of queues by how often they were delivered, of those that were; None: nobody wrote it down.
    `messages`: rows with queue, sequence and queue_name.
    """
    from pyspark.sql import functions as f

    ranges = terms(directory)
    if ranges is None:
        return None
    if not ranges.num_rows:
        return []
    # of a range only those count that there are, so what it leaves out does not matter
    each = spark.createDataFrame(ranges).select(
        "queue", "times", f.explode(f.sequence("first", "last")).alias("sequence")
    )
    found = messages.join(each, ["queue", "sequence"]).groupBy("queue_name", "times").agg(f.count("*").alias("n"))
    return sorted(Delivered(row["queue_name"], row["times"], row["n"]) for row in found.collect())


def terms(directory: Directory) -> pa.Table | None:
    """Ranges [first, last] of sequences that were delivered, and how often; None: nobody wrote it down."""
    if directory.running:
        return None
    tables = [_SCHEMA.empty_table()]
    for worker in sorted({queue.worker for queue in directory.queues if queue.outlives_node}):
        found = read_terms(Folder.of(directory.path, worker), directory.node_id, SERVER_WORKER_FIRST + worker)
        if found is None:
            return None
        for queue, (_next, packed) in found.queues.items():
            rows = np.frombuffer(packed, dtype=_TERM)
            first = rows["sequence"].astype(np.int64)
            count = np.maximum(rows["redelivered_n"].astype(np.int64), 1)
            times = np.maximum(rows["delivery_count"].astype(np.int64), 1)  # it is there, so it was delivered
            columns = np.full(len(rows), queue, dtype=np.int64), first, first + count - 1, times
            tables.append(pa.table(list(map(pa.array, columns)), schema=_SCHEMA))
    return pa.concat_tables(tables)


def dead(directory: Directory, depths: Mapping[str, Depth], in_log: Mapping[str, int]) -> list[Dead]:
    """Where dead letters are, of all queues that have an exchange for them, and of all groups that gave some up.
    `depths`: of queues, hidden ones too; `in_log`: messages of topics. Raises CorruptRecord (the catalog).
    """
    if directory.nameless:
        return []
    catalog = catalog_log.load(directory.path).catalog
    found = []
    for queue in sorted(directory.queues, key=lambda queue: queue.name):
        if queue.hidden or not queue.durable or not queue.policy.dead_letters:
            continue
        companion = catalog.dead_letters(queue)
        waiting = depths.get(companion.name) if companion is not None else None
        found.append(Dead(f"queue {queue.name}", "not forwarded yet", waiting.messages if waiting else 0))
        bound = {binding.queue for binding in catalog.bindings if binding.exchange == queue.policy.dead_letter_exchange}
        for name in sorted(_by_name(queue) & set(catalog.queues) or bound):
            holds = depths.get(name)
            found.append(Dead(f"queue {queue.name}", f"queue {name}", holds.messages if holds else 0))
    for topic, count in sorted(in_log.items()):
        owner = group_topics.owner_of(topic)
        if owner is not None:
            what = "given up" if owner.kind == "dead" else "tried again"
            found.append(Dead(f"group {owner.group} of topic {owner.topic}", f"{what}: topic {topic}", count))
    return found


def _by_name(queue: QueueDeclaration) -> set[str]:
    """The queue that the default exchange leads to, if dead letters go there with a key that is known."""
    policy = queue.policy
    if policy.dead_letter_exchange != "" or policy.dead_letter_routing_key is None:
        return set()
    return {policy.dead_letter_routing_key}
