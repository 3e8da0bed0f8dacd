"""Warren as a broker and a result backend of Taskiq, on `warren.aio`.

Labels of a task: `delay` (seconds until it runs, in the node), `priority` (0 to 255, in a queue with `max_priority`).

Crash points
  Worker killed with a task that was not acked: it returns to its place, and runs again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeVar

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.serializers import JSONSerializer

from warren.engine.catalog.arguments import PRIORITY_MAX
from warren.engine.errors import (
    ClosedError,
    DeclarationMismatch,
    MessageTooLarge,
    PeerLost,
    TimedOut,
    TopicNotFound,
    UsageError,
)
from warren.workers.celery.kept import QUEUES, key_of, named_parts, split
from warren.workers.celery.patience import AWAY, TROUBLE
from warren.workers.celery.place import ATTACH_S, START_S, Place
from warren.workers.faces import aio

T = TypeVar("T")
#: how long results are kept when the topic is made
RESULTS_S = 86400.0
#: pause before a node that was stopped is looked for again
AWAY_S = 0.5


async def _attached(place: Place) -> aio.Node:
    if place.start:
        return await aio.open(place.directory, timeout=START_S, call_timeout=place.call_timeout)
    return await aio.attach(place.directory, ATTACH_S, call_timeout=place.call_timeout)


class WarrenBroker(AsyncBroker):
    """A broker of Taskiq in a node: `WarrenBroker("warren:///data")`.

    `queue_name`: of the tasks. `prefetch`: so many are delivered to a worker at a time. `max_priority`: the queue has
    priorities 0 to that (255 at most), which tasks say by the label `priority`. `options`: those of the URL
    (docs/celery.md).
    """

    def __init__(
        self,
        url: str,
        *,
        queue_name: str = "taskiq",
        prefetch: int = 10,
        max_priority: int | None = None,
        options: Mapping[str, Any] | None = None,
        task_id_generator: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(None, task_id_generator)
        if max_priority is not None and not 0 < max_priority <= PRIORITY_MAX:
            raise UsageError(f"max_priority must be 1 to {PRIORITY_MAX}, not {max_priority}")
        self.place = Place.of(url, options)
        self.queue_name = queue_name
        self.prefetch = prefetch
        self.max_priority = max_priority
        self._node: aio.Node | None = None
        self._queue: aio.Queue | None = None

    async def startup(self) -> None:
        """Attach, and declare the queue. Raises NodeNotRunning."""
        await super().startup()
        self._node = await _attached(self.place)
        given: dict[str, Any] = {"max_priority": self.max_priority} if self.max_priority else {}
        self._queue = await self._node.queue(self.queue_name, durable=True, **given)

    async def shutdown(self) -> None:
        """Leave the node: what was not acked returns."""
        await super().shutdown()
        node, self._node, self._queue = self._node, None, None
        if node is not None:
            await node.close()

    def _opened(self) -> aio.Queue:
        if self._queue is None:
            raise ClosedError("the broker was not started: await broker.startup() first")
        return self._queue

    async def kick(self, message: BrokerMessage) -> None:
        """Put a task into the queue; returns when it is as durable as was asked for."""
        labels = message.labels
        delay, place = labels.get("delay"), self.place
        await self._opened().put(
            message.message,
            place.durability,
            place.confirm_publish,
            place.call_timeout if place.confirm_publish else None,
            {"task_id": message.task_id, "task_name": message.task_name},
            priority=min(max(int(labels.get("priority", 0)), 0), PRIORITY_MAX),
            delay=float(delay) if delay is not None and float(delay) > 0 else None,
            properties={"message_id": message.task_id},
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """The tasks of the queue. A node that was stopped is waited for."""
        queue = self._opened()
        while True:
            try:
                async with queue.consume(self.prefetch) as messages:
                    async for message in messages:
                        yield AckableMessage(data=message.body, ack=message.ack)
            except (ClosedError, PeerLost, TimedOut):
                if self._queue is None:
                    return
                await asyncio.sleep(AWAY_S)


class WarrenResultBackend(AsyncResultBackend[T]):
    """A result backend of Taskiq in a topic of a node; results go as the topic's retention says (`expires` seconds, if
    it is made here). Any process gets them, as often as it likes."""

    def __init__(
        self,
        url: str,
        *,
        expires: float | None = RESULTS_S,
        serializer: TaskiqSerializer | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.place = Place.of(url, {"topic": "taskiq-results", **(options or {})})
        self.expires = expires
        self.serializer = serializer or JSONSerializer()
        self._node: aio.Node | None = None
        self._topic: aio.Topic | None = None

    async def startup(self) -> None:
        """Attach, and declare the topic. Raises NodeNotRunning."""
        self._node = await _attached(self.place)
        try:
            self._topic = await self._node.topic(self.place.topic, create=False)
        except TopicNotFound:
            try:
                self._topic = await self._node.topic(self.place.topic, queues=QUEUES, retention_s=self.expires)
            except DeclarationMismatch:  # another process was first
                self._topic = await self._node.topic(self.place.topic, create=False)

    async def shutdown(self) -> None:
        """Leave the node."""
        node, self._node, self._topic = self._node, None, None
        if node is not None:
            await node.close()

    async def _store(self, key: str, value: dict[str, Any]) -> None:
        end = time.monotonic() + self.place.node_timeout
        while True:
            try:
                return await self._append(key, value)
            except TROUBLE:  # Taskiq forgets what could not be stored, and acks
                if self._topic is None or time.monotonic() + AWAY_S > end:
                    raise
            await asyncio.sleep(AWAY_S)

    async def _append(self, key: str, value: dict[str, Any]) -> None:
        topic, data, durability = self._started(), self.serializer.dumpb(value), self.place.durability or "written"
        try:
            await topic.append(data, key, durability=durability)
        except MessageTooLarge:
            parts, names = split(data)
            for part_key, part in parts:
                await topic.append(part, part_key, durability=durability)
            await topic.append(names, key, durability=durability)

    async def _get(self, key: str) -> Any:
        found = await self._newest(key)
        parts = [await self._newest(part) for part in named_parts(found or b"")]
        if parts:
            found = b"".join(part for part in parts if part is not None) if None not in parts else None
        return None if found is None else self.serializer.loadb(found)

    async def _newest(self, key: str) -> bytes | None:
        found = await self._started().find(key, limit=1)
        return found[0].body if found else None

    def _started(self) -> aio.Topic:
        if self._topic is None:
            raise ClosedError("the result backend was not started: await broker.startup() first")
        return self._topic

    async def set_result(self, task_id: str, result: TaskiqResult[T]) -> None:
        """Keep a result. A node that is away is waited for, for `node_timeout`."""
        await self._store(key_of(task_id), result.model_dump())

    async def is_result_ready(self, task_id: str) -> bool:
        """Whether there is one; while the node is away there is none yet, so that whoever waits goes on."""
        topic = self._started()
        try:
            return bool(await topic.find(key_of(task_id), limit=1))
        except AWAY:
            return False

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[T]:
        """The result. Raises ResultGetError: there is none."""
        found = await self._get(key_of(task_id))
        if found is None:
            raise ResultGetError
        result = TaskiqResult[T].model_validate(found)
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Keep how far a task is."""
        await self._store(f"{key_of(task_id)}/progress", progress.model_dump())

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """How far it is, if it has said so."""
        found = await self._get(f"{key_of(task_id)}/progress")
        return None if found is None else TaskProgress[Any].model_validate(found)
