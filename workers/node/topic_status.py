"""What `warren status` tells of topics: read from the topic worker's rows in shared memory; nobody is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from warren.engine.catalog.group_topics import Owner, owner_of
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.kernel.paths import TopicsFolder
from warren.engine.kernel.protocol import TOPIC_MEMBER_ROW, TOPIC_MEMBERS_AT, TOPIC_ROW, TOPIC_ROWS
from warren.engine.topics import newest_files
from warren.engine.topics.names import node_bytes
from warren.ipc import region
from warren.ipc.superblock import Superblock
from warren.workers.node import group_status

#: what is known of a topic: messages that are there, messages that ever were appended, bytes of log of the former,
#: messages that come later, and half messages
_Counts = tuple[int, int, int, int, int]
_NONE = (0, 0, 0, 0, 0)


def of_topics(
    superblock: Superblock,
    topics: Iterable[TopicDeclaration],
    matches: Callable[[str], object] | None = None,
    most: int | None = None,
    folder: TopicsFolder | None = None,
) -> list[dict[str, Any]]:
    """A map for each topic whose name matches, by name; `most`: only so many, those with most messages. `folder` has
    the snapshot of what groups have committed, and the newest messages of compacted topics.
    """
    topics = list(topics)
    found = [topic for topic in topics if matches is None or matches(topic.name)]
    bounds: dict[tuple[int, int], tuple[int, int]] = {}
    calls: dict[int, list[int]] = {}
    counts = _counts(superblock, bounds, calls) if found else {}
    if most is not None:
        found = sorted(found, key=lambda item: (-counts.get(item.id, _NONE)[0], item.name))[:most]
    owners = {item.id: owner for item in topics if (owner := owner_of(item.name)) and owner.kind == "retry"}
    queues = {item.id: item.queues for item in topics if item.id in owners} | {item.id: item.queues for item in found}
    lags: dict[int, list[dict[str, Any]]] = {}
    if folder is not None and bounds:
        lags = group_status.lags(folder.groups, superblock.node_id, bounds, queues, calls)
    _add_retries(owners, {item.name: item.id for item in found}, counts, lags)
    return [
        _row(item, counts.get(item.id, _NONE), lags.get(item.id, []), _newest(superblock.node_id, item, folder))
        for item in sorted(found, key=lambda item: item.name)
    ]


def _add_retries(
    owners: dict[int, Owner], ids: dict[str, int], counts: dict[int, _Counts], lags: dict[int, list[dict[str, Any]]]
) -> None:
    """A group's lag has its messages that come again: those that are to come, and those that are not committed."""
    for id, owner in owners.items():
        kept, _appended, _bytes, delayed, _halves = counts.get(id, _NONE)
        lag = next((group["lag"] for group in lags.get(id, []) if group["name"] == owner.group), kept)
        for group in lags.get(ids.get(owner.topic, 0), []):
            if group["name"] == owner.group:
                group["lag"] += lag + delayed


def _newest(node_id: int, topic: TopicDeclaration, folder: TopicsFolder | None) -> tuple[int, int]:
    """Messages and bytes of the files of a compacted topic."""
    if not topic.compacted or folder is None:
        return 0, 0
    files = newest_files.of_topic(folder.compacted, node_bytes(node_id), topic.id, topic.queues)
    there = [file for file in files if file is not None]
    return sum(file.records for file in there), sum(file.bytes for file in there)


def _row(
    topic: TopicDeclaration, counts: _Counts, groups: list[dict[str, Any]], newest: tuple[int, int]
) -> dict[str, Any]:
    kept, appended, size, delayed, halves = counts
    return {
        "name": topic.name,
        "id": topic.id,
        "queues": topic.queues,
        "retention_s": topic.retention_s,
        "retention_bytes": topic.retention_bytes,
        "compacted": topic.compacted,
        "messages": kept + newest[0],
        "appended": appended,
        "bytes": size,
        "compacted_messages": newest[0],
        "compacted_bytes": newest[1],
        "delayed": delayed,
        "halves": halves,
        "groups": groups,
    }


def _counts(
    superblock: Superblock, bounds: dict[tuple[int, int], tuple[int, int]], calls: dict[int, list[int]]
) -> dict[int, _Counts]:
    """By id of topic, of all its queues; nothing while no worker shows them. `bounds` takes those of each queue,
    `calls` by a group's digest when each of its members called last (nanoseconds of CLOCK_MONOTONIC).
    """
    server = superblock.topic_server
    generation = superblock.server_get(server, "generation") if server else 0
    if not generation:
        return {}
    try:
        mapped = region.posix_open(superblock.region_name("trows", server, generation), writable=False)
    except OSError:  # the worker is being replaced: topics are shown without numbers
        return {}
    size = TOPIC_ROW.size // 8
    key, minimum, maximum, appended, size_at, delayed, half = (
        TOPIC_ROW.offset(name) // 8 for name in ("key", "minimum", "maximum", "appended", "bytes", "delayed", "halves")
    )
    found: dict[int, _Counts] = {}
    try:
        with mapped.buffer.cast("Q") as words:
            room = (mapped.size - TOPIC_ROWS.size) // TOPIC_ROW.size
            rows_n = min(words[TOPIC_ROWS.offset("rows_n") // 8], room)
            begin = TOPIC_ROWS.size // 8
            rows = words[begin : begin + rows_n * size].tolist()
            _take_calls(words, calls)
    finally:
        mapped.close()
    for at in range(0, len(rows), size):
        if rows[at + key]:
            kept, sum_n, sum_bytes, later, halves = found.get(rows[at + key] >> 32, _NONE)
            seen = max(0, rows[at + maximum] - rows[at + minimum])
            sums = sum_n + rows[at + appended], sum_bytes + rows[at + size_at]
            pending = later + rows[at + delayed], halves + rows[at + half]
            found[rows[at + key] >> 32] = kept + seen, *sums, *pending
            bounds[rows[at + key] >> 32, (rows[at + key] & 0xFFFFFFFF) - 1] = rows[at + minimum], rows[at + maximum]
    return found


def _take_calls(words: memoryview, calls: dict[int, list[int]]) -> None:
    begin, size = TOPIC_MEMBERS_AT // 8, TOPIC_MEMBER_ROW.size // 8
    member, group, called = (TOPIC_MEMBER_ROW.offset(name) // 8 for name in ("member", "group", "called"))
    count = min(words[TOPIC_ROWS.offset("members_n") // 8], (len(words) - begin) // size)
    rows = words[begin : begin + count * size].tolist()
    for at in range(0, len(rows), size):
        if rows[at + member]:
            calls.setdefault(rows[at + group], []).append(rows[at + called])
