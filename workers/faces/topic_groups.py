"""Groups of a topic from outside, as operators see them: names, members, how far each queue is; offsets that are set.

The topic worker answers (engine/topics/control.py); ends of queues are read from shared memory afterwards, so a lag is
never below 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from warren.engine._core import AttachmentLost
from warren.engine.catalog.group_topics import Kind, check_group, name_of, owner_of
from warren.engine.errors import InvalidName, TopicNotFound, UsageError
from warren.engine.saying import shown
from warren.engine.topics import control
from warren.workers.client.arguments import checked_count, checked_flag, milliseconds
from warren.workers.faces.topic_reading import TopicReading
from warren.workers.faces.topic_scans import TIME_MAX

T = TypeVar("T")


def listed(reading: TopicReading) -> list[dict[str, Any]]:
    """Each group by name: how many members it has, how long ago the reader called whose last call was longest ago,
    and its lag.
    """
    names: list[str] = []
    more = True
    while more:
        request = control.ListGroups(reading.declared.id, names[-1] if names else "")
        found = _asked(lambda request=request: reading.client.ask_topics(request, control.Names))  # type: ignore[misc]
        names, more = names + found.names, found.more
    rows = []
    for name in sorted({*names, *_with_topics(reading)}):
        try:
            told = described(reading, name)
        except UsageError:  # its last reader left just now, and it has committed nothing
            continue
        called = max((member["last_call_s"] for member in told["members"]), default=None)
        rows.append({"name": name, "members": len(told["members"]), "last_call_s": called, "lag": told["lag"]})
    return rows


def _with_topics(reading: TopicReading) -> set[str]:
    """Groups that have topics, whether or not they have committed anything."""
    owners = [owner_of(name) for name in reading.client.catalog().topics]
    return {owner.group for owner in owners if owner is not None and owner.topic == reading.declared.name}


def described(reading: TopicReading, group: str) -> dict[str, Any]:
    """A group: its members, and of each queue its owner, what is committed, and the lag. Raises UsageError."""
    told = _told(reading, group)
    members = [_member(reading, *member) for member in told.members]
    queues: list[dict[str, Any]] = []
    for queue, (owner, committed) in enumerate(zip(told.owners, told.offsets, strict=True)):
        first, end = reading.offsets(queue)
        queues.append(
            {
                "queue": queue,
                "owner": None if owner < 0 else owner,
                "committed": None if committed < 0 else committed,
                "min": first,
                "max": end,
                "lag": max(0, end - (first if committed < 0 else committed)),
            }
        )
    again, dead = _again(reading, group), _dead(reading, group)
    lag = sum(row["lag"] for row in queues) + (0 if again is None else again["lag"])
    named = {"name": group, "generation": told.generation, "members": members, "queues": queues, "lag": lag}
    return {**named, "retry": again, "dead": dead}


def _again(reading: TopicReading, group: str) -> dict[str, Any] | None:
    """Its retry topic: `topic` (the name), `delayed` (messages that are to come again), `lag` (those, and messages that
    came and are not committed); None: it has none.
    """
    found = _of_group(reading, "retry", group)
    if found is None:
        return None
    request = control.DescribeGroup(found.declared.id, group)
    try:
        delayed = found.delayed()  # before the ends of queues: what comes meanwhile counts twice, but is not left out
        told = _asked(lambda: found.client.ask_topics(request, control.Described))
        lag = delayed
        for queue, committed in enumerate(told.offsets):
            first, end = found.offsets(queue)
            lag += max(0, end - (first if committed < 0 else committed))
    except TopicNotFound:  # it was deleted just now
        return None
    return {"topic": found.declared.name, "delayed": delayed, "lag": lag}


def _dead(reading: TopicReading, group: str) -> dict[str, Any] | None:
    """The topic of its dead letters: `topic` (the name), `messages`; None: it has none."""
    found = _of_group(reading, "dead", group)
    if found is None:
        return None
    try:
        bounds = [found.offsets(queue) for queue in range(found.declared.queues)]
    except TopicNotFound:
        return None
    return {"topic": found.declared.name, "messages": sum(end - first for first, end in bounds)}


def _of_group(reading: TopicReading, kind: Kind, group: str) -> TopicReading | None:
    try:
        name = name_of(kind, reading.declared.name, group)
    except InvalidName:  # too long: there is none
        return None
    declared = reading.client.catalog().topics.get(name)
    return None if declared is None else TopicReading(reading.client, declared)


def seek(reading: TopicReading, group: str, where: object, queue: int | None, force: bool) -> dict[int, int]:
    """Set what is committed; the new offsets by queue. Raises UsageError."""
    checked_name(group)
    checked_flag(force, "force")
    count = reading.declared.queues
    if queue is not None:
        checked_count(queue, "queue", 0, count - 1)
    queues = range(count) if queue is None else [queue]
    if isinstance(where, int) and not isinstance(where, bool) and len(queues) > 1:
        raise UsageError(f"{where} is an offset, and offsets are a queue's: name the queue, or give a time")
    found = {each: _offset(reading, each, where) for each in queues}
    request = control.SeekGroup(reading.declared.id, group, list(found.items()), force)
    _asked(lambda: reading.client.ask_topics(request, control.Done))
    return found


def publish(reading: TopicReading, group: str, offsets: Mapping[int, int]) -> None:
    """Write down how far a reader is that keeps its offsets elsewhere, so that the group's lag is seen; durable. Raises
    UsageError: the group has members, whose offsets these would be.
    """
    request = control.SeekGroup(reading.declared.id, checked_name(group), sorted(offsets.items()))
    _asked(lambda: reading.client.ask_topics(request, control.Done))


def delete(reading: TopicReading, group: str) -> None:
    """Forget a group, then delete its topics: who is killed in between calls it again. Raises UsageError."""
    _told(reading, group)
    request = control.DeleteGroup(reading.declared.id, group)
    _asked(lambda: reading.client.ask_topics(request, control.Done))
    reading.client.declare("delete_group_topics", topic=reading.declared.name, group=group)
    reading.client.router()


def _told(reading: TopicReading, group: str) -> control.Described:
    request = control.DescribeGroup(reading.declared.id, checked_name(group))
    told = _asked(lambda: reading.client.ask_topics(request, control.Described))
    unknown = not told.members and all(offset < 0 for offset in told.offsets)
    if unknown and _of_group(reading, "retry", group) is None and _of_group(reading, "dead", group) is None:
        raise UsageError(f"topic {reading.declared.name!r} has no group {shown(group)}: topic.groups() lists them")
    return told


def _member(reading: TopicReading, slot: int, number: int, called_s: float) -> dict[str, Any]:
    seen = reading.client.attachment().superblock.slot(slot)
    told = {"client": seen.name, "pid": seen.pid, "slot": slot, "number": number}
    return {**told, "last_call_s": round(called_s, 3)}


def _offset(reading: TopicReading, queue: int, where: object) -> int:
    first, end = reading.offsets(queue)
    if where in ("earliest", "latest"):
        return end if where == "latest" else first
    if isinstance(where, datetime):
        milliseconds(where, "where", up=True)
        return reading.offset_at(queue, where) or 0
    return checked_count(where, "where: 'earliest', 'latest', a datetime or an offset;", 0, TIME_MAX)


def checked_name(group: object) -> str:
    """The name of a group. Raises UsageError, InvalidName."""
    if not isinstance(group, str):
        raise UsageError(f"a group has a name, not {shown(group)}")
    check_group(group)
    return group


def _asked(ask: Callable[[], T]) -> T:
    while True:
        try:
            return ask()
        except AttachmentLost:  # the next attachment raises what is wrong with it
            continue
