"""The desk: what is asked of the catalog, and the changes that follow.

Invariants
  A change is durable before anybody is told of it, and what fails changes nothing.
  Nothing is changed while the node starts, or ends, or has lost its directory.
  An exclusive queue is its client's; when that is gone, the queue is for whoever asks next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import WARNING
from pathlib import Path
from typing import Any

import msgspec

from warren.engine.catalog import group_topics
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.catalog import Catalog, QueueDeclaration
from warren.engine.catalog.topic_bindings import TopicBinding
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import (
    ClosedError,
    Error,
    NodeNotRunning,
)
from warren.engine.saying import Say, quoted
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import Superblock
from warren.workers.node.bars import Bars
from warren.workers.node.clients_watch import ClientsWatch
from warren.workers.node.control_server import Later, Table
from warren.workers.node.queue_life import QueueLife, Sight
from warren.workers.node.topic_life import TopicLife
from warren.workers.process import requests
from warren.workers.process.tie import (
    Tie,
    described,
)

CREATING, STARTING = CONSTANTS["NODE_CREATING"], CONSTANTS["NODE_STARTING"]
DRAINING = CONSTANTS["NODE_DRAINING"]


#: what a declaration of a queue says, alone or among many
Wanted = requests.DeclareQueue | requests.WantedQueue


class Desk:
    """Answers requests about queues, exchanges, bindings and topics of one run."""

    def __init__(
        self,
        directory: Path,
        superblock: Superblock,
        catalog: Catalog,
        declarations: catalog_log.Writer,
        tie: Tie,
        clients: ClientsWatch,
        workers_n: int,
        failed: Callable[[], set[int]],
        topics: TopicLife,
        say: Say,
    ) -> None:
        """`workers_n`: those that get new queues; `failed`: numbers of those that will not serve."""
        self._topics = topics
        self._catalog = catalog
        self._directory = directory
        self._superblock = superblock
        self._declarations = declarations
        self._tie = tie
        self._clients = clients
        self._workers_n = workers_n
        self._failed = failed
        self._say = say
        self._life = QueueLife()
        self._bars = Bars(superblock)

    def table(self) -> Table:
        """Requests → what answers them."""
        return {
            requests.Queues: self.queues,
            requests.DeclareQueue: self.declare_queue,
            requests.UseQueue: self.use_queue,
            requests.DeclareQueues: self.declare_queues,
            requests.DeleteQueue: self.delete_queue,
            requests.DeleteQueues: self.delete_queues,
            requests.ReleaseQueues: self.release_queues,
            requests.DeclareExchange: self.declare_exchange,
            requests.DeleteExchange: self.delete_exchange,
            requests.Bind: self.bind,
            requests.Unbind: self.unbind,
            requests.BindMany: self.bind_many,
            requests.UnbindMany: self.unbind_many,
            requests.BindExchange: self.bind_exchange,
            requests.UnbindExchange: self.unbind_exchange,
            requests.BindTopic: self.bind_topic,
            requests.UnbindTopic: self.unbind_topic,
            requests.Subscription: self.subscription,
            requests.DeclareTopic: self.declare_topic,
            requests.SetTopic: self.set_topic,
            requests.DeleteTopic: self.delete_topic,
            requests.DeclareGroupTopic: self.declare_group_topic,
            requests.DeleteGroupTopics: self.delete_group_topics,
        }

    # -- queues -------------------------------------------------------------------------------------------------

    def queues(self, asked: requests.Queues) -> dict[str, Any]:
        catalog = self._catalog
        wanted = None if asked.of is None else set(asked.of)
        return {
            "version": catalog.version,
            "queues": sorted(
                (item for item in catalog.queues.values() if wanted is None or item.name in wanted),
                key=lambda item: item.id,
            ),
            "exchanges": sorted(catalog.exchanges.values(), key=lambda item: item.name),
            "bindings": [
                {"exchange": item.exchange, "queue": item.queue, "routing_key": item.routing_key}
                | ({"arguments": item.arguments} if item.conditions else {})
                for item in sorted(item for item in catalog.bindings if wanted is None or item.queue in wanted)
            ],
            "exchange_bindings": [
                {"exchange": item.exchange, "destination": item.destination, "routing_key": item.routing_key}
                | ({"arguments": item.arguments} if item.conditions else {})
                for item in sorted(catalog.exchange_bindings if wanted is None else ())
            ],
            "topics": sorted(
                (item for item in catalog.topics.values() if wanted is None or item.name in wanted),
                key=lambda item: item.id,
            ),
            "topic_bindings": [
                {
                    "exchange": item.exchange,
                    "topic": item.topic,
                    "routing_key": item.routing_key,
                    "key": item.key or None,
                    "tag": item.tag or None,
                }
                | ({"arguments": item.arguments} if item.conditions else {})
                for item in sorted(item for item in catalog.topic_bindings if wanted is None or item.topic in wanted)
            ],
        }

    def declare_queue(self, asked: requests.DeclareQueue) -> dict[str, Any]:
        self._free(asked.name, asked.client)
        declare = self._declaring(asked.client)
        answer = self._change("queue", lambda catalog: declare(catalog, asked))
        self._used([answer["queue"]])
        return answer

    def use_queue(self, asked: requests.UseQueue) -> dict[str, Any]:
        self._free(asked.name, asked.client)
        found = self._catalog.queue(asked.name)
        self._catalog.check_owner(found, asked.client)
        self._used([found])
        return {"queue": found}

    def declare_queues(self, asked: requests.DeclareQueues) -> dict[str, Any]:
        for item in asked.queues:
            self._free(item.name, asked.client)
        declare = self._declaring(asked.client)
        known = {item.name for item in asked.queues if item.name in self._catalog.queues}
        answer = self._change("queues", lambda catalog: [declare(catalog, item) for item in asked.queues])
        found = answer.pop("queues")
        self._used(found)
        return {"new": list(dict.fromkeys(item.name for item in found if item.name not in known)), **answer}

    def _declaring(self, client: int) -> Callable[[Catalog, Wanted], QueueDeclaration]:
        workers_n = self._workers_n
        failed = self._failed()

        def declare(catalog: Catalog, wanted: Wanted) -> QueueDeclaration:
            return catalog.declare_queue(
                wanted.name,
                workers_n=workers_n,
                without=failed,
                durable=wanted.durable,
                arguments=wanted.arguments or {},
                as_it_is=wanted.as_it_is,
                client=client,
                origin=wanted.origin,
            )

        return declare

    def _used(self, queues: list[QueueDeclaration]) -> None:
        now = time.monotonic()
        for queue in queues:
            if queue.leased:
                self._life.declared(queue, now)

    def _free(self, name: str, client: int) -> None:
        """Delete an exclusive queue whose client has left: nobody has to wait until it is looked after."""
        queue = self._catalog.queues.get(name)
        if queue is None or queue.owner in (0, client):
            return
        for view in self._clients.clients():
            try:
                if view.client_epoch == queue.owner and view.identity.alive():
                    return
            except OSError:
                return  # no descriptor to look with
        self._change("queue", lambda catalog: catalog.delete_queue(name, client=queue.owner))
        self._say(f"queue {quoted(name)} is deleted: its client is gone")

    def release_queues(self, asked: requests.ReleaseQueues) -> dict[str, Any]:
        """The client leaves: its exclusive queues go now."""
        names = [item.name for item in self._catalog.leased.values() if item.owner == asked.client]

        def delete(catalog: Catalog) -> list[str]:
            for name in names:
                catalog.delete_queue(name, client=asked.client)
            return names

        return self._change("queues", delete) if asked.client and names else {"queues": []}

    def delete_queue(self, asked: requests.DeleteQueue) -> dict[str, Any] | Later:
        self._free(asked.name, asked.client)

        def find() -> QueueDeclaration:
            return self._catalog.deletable(asked.name, client=asked.client)

        def delete() -> dict[str, Any]:
            return self._change("queue", lambda catalog: catalog.delete_queue(asked.name, client=asked.client))

        if not (asked.if_unused or asked.if_empty):
            return delete()
        until = time.monotonic() + asked.within
        return self._bars.awaited(find, delete, if_unused=asked.if_unused, if_empty=asked.if_empty, until=until)

    def tick(self, now: float) -> None:
        """Look after what was asked, and nobody waits for any more."""
        self._bars.tick(now)

    def delete_queues(self, asked: requests.DeleteQueues) -> dict[str, Any]:
        names = list(dict.fromkeys(asked.names))  # one that is given twice counts once
        for name in names:
            self._free(name, asked.client)
        answer = self._change(
            "queues", lambda catalog: [catalog.delete_queue(name, client=asked.client) for name in names]
        )
        return {**answer, "queues": len(names)}

    def has_leases(self) -> bool:
        """Whether there are queues that may go by themselves."""
        return bool(self._catalog.leased)

    def end_queues(self, sight: Sight) -> None:
        """Delete the queues that go by themselves: exclusive ones, auto_delete, expires."""
        ended = self._life.ended(self._catalog, sight)
        if not ended:
            return

        def delete(catalog: Catalog) -> None:
            for name in ended:
                catalog.delete_queue(name, client=catalog.queues[name].owner)

        try:
            self._change("queues", delete)
        except Error as error:
            self._say(f"queues that are due to be deleted stay for now: {error}", WARNING)
            return
        for name, why in ended.items():
            self._say(f"queue {quoted(name)} is deleted: {why}")

    # -- exchanges, bindings, subscriptions ---------------------------------------------------------------------

    def declare_exchange(self, asked: requests.DeclareExchange) -> dict[str, Any]:
        return self._change(
            "exchange",
            lambda catalog: catalog.declare_exchange(
                asked.name,
                type=asked.type,
                durable=asked.durable,
                alternate=asked.alternate,
                internal=asked.internal,
                auto_delete=asked.auto_delete,
                arguments=asked.arguments,
                origin=asked.origin,
            ),
        )

    def delete_exchange(self, asked: requests.DeleteExchange) -> dict[str, Any]:
        return self._change("exchange", lambda catalog: catalog.delete_exchange(asked.name, if_unused=asked.if_unused))

    def bind_exchange(self, asked: requests.BindExchange) -> dict[str, Any]:
        to, source, key = asked.destination, asked.source, asked.routing_key
        return self._change("binding", lambda catalog: catalog.bind_exchange(to, source, key, asked.arguments))

    def unbind_exchange(self, asked: requests.UnbindExchange) -> dict[str, Any]:
        to, source, key = asked.destination, asked.source, asked.routing_key
        return self._change("removed", lambda catalog: catalog.unbind_exchange(to, source, key, asked.arguments))

    def bind(self, asked: requests.Bind) -> dict[str, Any]:
        self._free(asked.queue, asked.client)
        return self._change(
            "binding",
            lambda catalog: catalog.bind(
                asked.queue, asked.exchange, asked.routing_key, asked.arguments, client=asked.client
            ),
        )

    def unbind(self, asked: requests.Unbind) -> dict[str, Any]:
        self._free(asked.queue, asked.client)
        return self._change(
            "removed",
            lambda catalog: catalog.unbind(
                asked.queue, asked.exchange, asked.routing_key, asked.arguments, client=asked.client
            ),
        )

    def bind_many(self, asked: requests.BindMany) -> dict[str, Any]:
        for item in asked.bindings:
            self._free(item.queue, asked.client)

        def bind(catalog: Catalog) -> int:
            before = len(catalog.bindings)
            for item in asked.bindings:
                catalog.bind(item.queue, item.exchange, item.routing_key, item.arguments, client=asked.client)
            return len(catalog.bindings) - before

        return self._change("new", bind)

    def unbind_many(self, asked: requests.UnbindMany) -> dict[str, Any]:
        for item in asked.bindings:
            self._free(item.queue, asked.client)

        def unbind(catalog: Catalog) -> int:
            return sum(
                catalog.unbind(item.queue, item.exchange, item.routing_key, item.arguments, client=asked.client)
                for item in asked.bindings
            )

        return self._change("removed", unbind)

    def bind_topic(self, asked: requests.BindTopic) -> dict[str, Any]:
        def bind(catalog: Catalog) -> TopicBinding:
            return catalog.bind_topic(
                asked.topic, asked.exchange, asked.routing_key, asked.arguments, key=asked.key, tag=asked.tag
            )

        return self._change("binding", bind)

    def unbind_topic(self, asked: requests.UnbindTopic) -> dict[str, Any]:
        return self._change(
            "removed",
            lambda catalog: catalog.unbind_topic(asked.topic, asked.exchange, asked.routing_key, asked.arguments),
        )

    def subscription(self, asked: requests.Subscription) -> dict[str, Any]:
        self._free(asked.queue, asked.client)
        if asked.delete:
            return self._change("queue", lambda catalog: catalog.delete_subscription(asked.queue, asked.name))
        return self._change(
            "queue", lambda catalog: catalog.declare_subscription(asked.queue, asked.name, client=asked.client)
        )

    # -- topics -------------------------------------------------------------------------------------------------

    def declare_topic(self, asked: requests.DeclareTopic) -> Later:
        until = time.monotonic() + asked.within
        self._topics.refuse(asked.name)

        def declare(catalog: Catalog) -> TopicDeclaration:
            found = catalog.declare_topic(
                asked.name,
                queues=asked.queues,
                retention_s=asked.retention_s,
                retention_bytes=asked.retention_bytes,
                compacted=asked.compacted,
                by_name=asked.by_name,
                as_it_is=asked.as_it_is,
                origin=asked.origin,
            )
            self._topics.prepare()  # a refusal has made nothing
            return found

        answer = self._change("topic", declare)
        return self._topics.awaited(asked.name, until, answer)

    def set_topic(self, asked: requests.SetTopic) -> dict[str, Any]:
        def change(catalog: Catalog) -> TopicDeclaration:
            found = catalog.topic(asked.name)
            age = found.retention_s if asked.retention_s is msgspec.UNSET else asked.retention_s
            size = found.retention_bytes if asked.retention_bytes is msgspec.UNSET else asked.retention_bytes
            return catalog.set_topic(asked.name, age, size)

        return self._change("topic", change)

    def delete_topic(self, asked: requests.DeleteTopic) -> dict[str, Any]:
        return self._change("topic", lambda catalog: catalog.delete_topic(asked.name))

    def declare_group_topic(self, asked: requests.DeclareGroupTopic) -> Later:
        until = time.monotonic() + asked.within
        name = group_topics.name_of(asked.kind, asked.topic, asked.group)
        self._topics.refuse(name)

        def declare(catalog: Catalog) -> TopicDeclaration:
            return catalog.declare_group_topic(asked.kind, asked.topic, asked.group, asked.id)

        return self._topics.awaited(name, until, self._change("topic", declare))

    def delete_group_topics(self, asked: requests.DeleteGroupTopics) -> dict[str, Any]:
        return self._change("topics", lambda catalog: catalog.delete_group_topics(asked.topic, asked.group))

    # -- the change itself --------------------------------------------------------------------------------------

    def _change(self, what: str, change: Callable[[Catalog], Any]) -> dict[str, Any]:
        """Change the catalog, durably, then tell everybody; what fails changes nothing."""
        if self._superblock.state == DRAINING:
            raise ClosedError(f"the node of {self._directory} is stopping: try again when it has been started again")
        if self._superblock.state in (CREATING, STARTING):  # a worker may still find that the catalog was cut
            raise NodeNotRunning(f"the node of {self._directory} is starting: try again when it is up")
        if ending := self._tie.look_now():
            raise ClosedError(described(ending, self._directory))  # the path may be another node's by now
        catalog = self._catalog
        before = catalog.version
        result = self._declarations.change(change)
        created = catalog.version != before
        if created:
            self._superblock.set("catalog_version", catalog.version)
            # whom it does not concern reads it in its tick, or when it needs the catalog: nobody waits for that
            queues = [(step.queue, step.gone) for step in self._declarations.steps if step.queue is not None]
            self._superblock.queues_gone((queue.id for queue, gone in queues if gone), catalog.version)
            self._superblock.queues_changed({queue.worker for queue, _gone in queues}, catalog.version)
            if any(step.topic is not None for step in self._declarations.steps):
                self._topics.changed(catalog.version, any_left=bool(catalog.topics))
            try:
                self._declarations.tidy()
            except Error as error:
                self._say(f"the log of the catalog grows: {error}", WARNING)
        return {what: result, "created": created, "version": catalog.version}
