"""Requests to the supervisor: each operation is a class, checked as a whole before anything is done.

Programs give the fields by name (`ControlClient.call`, control.py); the supervisor makes the request of them and looks
in its table for what answers it (node/desk.py). What the docstrings name is the answer, a map.

`client` is the client epoch of who asks: exclusive queues belong to one. Declarations are the maps of
warren.engine.catalog.catalog. A request for many is one change: all of it or nothing. A change is durable, and visible
in `superblock.catalog_version`, before its answer; `created` says whether anything was changed, `version` is the
catalog's.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from warren.engine.catalog.group_topics import Kind
from warren.engine.catalog.topic_bindings import KEY, TAG


class Request(msgspec.Struct, forbid_unknown_fields=True, tag_field="op"):
    """What all of them are."""

    #: it may be sent again when the answer was lost: doing it twice is doing it once
    repeatable: ClassVar[bool] = True
    #: it changes nothing: root may ask, too
    reads: ClassVar[bool] = False
    #: no member of the node's group may ask, only its owner
    owners: ClassVar[bool] = False
    #: its answer may take long: `within` says after how many seconds it has to say why
    waits: ClassVar[bool] = False


# -- of the node ----------------------------------------------------------------------------------------------------


class Ping(Request, tag="ping"):
    """{pid, state}"""

    reads: ClassVar[bool] = True


class Status(Request, tag="status"):
    """The map of `warren status --json`; of queues only those that fit the pattern, and of each kind `most`."""

    reads: ClassVar[bool] = True
    pattern: str | None = None
    most: int | None = None


class Settings(Request, tag="settings"):
    """{settings, node_id, shared_id, node_epoch}"""

    reads: ClassVar[bool] = True


class Stop(Request, tag="stop"):
    """{pid}, at once; the node has stopped when that process ends. `finish_s`: at least so long the servers may take
    from now on, before they are killed. `at_end`: answered as `Ended`, so that the end cannot come before
    somebody asks.
    """

    owners: ClassVar[bool] = True
    finish_s: float | None = None
    force: bool = False
    at_end: bool = False


class Ended(Request, tag="ended"):
    """{killed, unclean: [{server, pid, why}]}, when every server of a node that stops is gone: those that had to be
    killed, and those that ended without having saved all.
    """

    reads: ClassVar[bool] = True


class Note(Request, tag="note"):
    """{}: a process of the node has something to say to people, in the log and in `status`."""

    owners: ClassVar[bool] = True
    text: str


# -- of the catalog -------------------------------------------------------------------------------------------------


class Queues(Request, tag="queues"):
    """{version, queues, exchanges, bindings, exchange_bindings, topics, topic_bindings}: the catalog; of queues, topics
    and bindings only what the names `of` have.
    """

    reads: ClassVar[bool] = True
    of: list[str] | None = None


class WantedQueue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One queue of a request for many."""

    name: str
    durable: bool = True
    arguments: dict[str, Any] | None = None
    as_it_is: bool = False  #: if it exists
    origin: dict[str, Any] | None = None  #: of a new one


class WantedBinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One binding of a request for many."""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: dict[str, Any] | None = None


class DeclareQueue(Request, tag="declare_queue"):
    """{queue: declaration, created, version}"""

    name: str
    durable: bool = True
    arguments: dict[str, Any] | None = None
    as_it_is: bool = False  #: if it exists
    origin: dict[str, Any] | None = None  #: of a new one
    client: int = 0


class UseQueue(Request, tag="use_queue"):
    """{queue: declaration}: somebody looks at a queue, which counts as a use of it (expires)."""

    name: str
    client: int = 0


class DeclareQueues(Request, tag="declare_queues"):
    """{new: [name], created, version}"""

    queues: list[WantedQueue]
    client: int = 0


class DeleteQueue(Request, tag="delete_queue"):
    """{queue, created, version}; with a condition that is not true an error, and nothing is done (node/bars.py)."""

    repeatable: ClassVar[bool] = False
    waits: ClassVar[bool] = True
    name: str
    if_unused: bool = False  #: nobody consumes from it
    if_empty: bool = False  #: it has no messages but those that consumers hold
    within: float = 20.0
    client: int = 0


class DeleteQueues(Request, tag="delete_queues"):
    """{queues: how many, created, version}"""

    repeatable: ClassVar[bool] = False
    names: list[str]
    client: int = 0


class ReleaseQueues(Request, tag="release_queues"):
    """{queues: names}: a client leaves, and its exclusive queues go now."""

    client: int


class DeclareExchange(Request, tag="declare_exchange"):
    """{exchange, created, version}"""

    name: str
    type: str = "direct"
    durable: bool = True
    alternate: str | None = None
    internal: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] | None = None
    origin: dict[str, Any] | None = None  #: of a new one


class DeleteExchange(Request, tag="delete_exchange"):
    """{exchange, created, version}"""

    repeatable: ClassVar[bool] = False
    name: str
    if_unused: bool = False


class BindExchange(Request, tag="bind_exchange"):
    """{binding, created, version}: what matches at the exchange `source` goes to `destination`, too."""

    destination: str
    source: str
    routing_key: str = ""
    arguments: dict[str, Any] | None = None


class UnbindExchange(Request, tag="unbind_exchange"):
    """{removed: whether there was one, created, version}"""

    destination: str
    source: str
    routing_key: str = ""
    arguments: dict[str, Any] | None = None


class Bind(Request, tag="bind"):
    """{binding, created, version}"""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: dict[str, Any] | None = None
    client: int = 0


class Unbind(Request, tag="unbind"):
    """{removed: whether there was one, created, version}"""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: dict[str, Any] | None = None
    client: int = 0


class BindMany(Request, tag="bind_many"):
    """{new: how many, created, version}"""

    bindings: list[WantedBinding]
    client: int = 0


class UnbindMany(Request, tag="unbind_many"):
    """{removed: how many, created, version}"""

    bindings: list[WantedBinding]
    client: int = 0


class BindTopic(Request, tag="bind_topic"):
    """{binding, created, version}"""

    topic: str
    exchange: str
    routing_key: str = ""
    arguments: dict[str, Any] | None = None
    key: str | None = KEY  #: what becomes the key of a record, and its tag
    tag: str | None = TAG


class UnbindTopic(Request, tag="unbind_topic"):
    """{removed: whether there was one, created, version}"""

    topic: str
    exchange: str
    routing_key: str = ""
    arguments: dict[str, Any] | None = None


class Subscription(Request, tag="subscription"):
    """{queue: declaration of the hidden queue, created, version}; `delete`: it is deleted instead."""

    repeatable: ClassVar[bool] = False
    queue: str
    name: str
    delete: bool = False
    client: int = 0


class DeclareTopic(Request, tag="declare_topic"):
    """{topic: declaration, created, version}, when its worker serves it. An error may come when it is declared already,
    and says so: the next start of the worker serves it.
    """

    waits: ClassVar[bool] = True
    name: str
    queues: int | None = None  #: as many as it has, or 4
    retention_s: float | None = None
    retention_bytes: int | None = None
    compacted: bool | None = None
    by_name: bool | None = None
    as_it_is: bool = False  #: if it exists
    origin: dict[str, Any] | None = None  #: of a new one
    within: float = 20.0
    client: int = 0


class SetTopic(Request, tag="set_topic"):
    """{topic: declaration, created, version}: another retention. What is not given stays."""

    name: str
    retention_s: float | msgspec.UnsetType | None = msgspec.UNSET
    retention_bytes: int | msgspec.UnsetType | None = msgspec.UNSET
    client: int = 0


class DeleteTopic(Request, tag="delete_topic"):
    """{topic: declaration, created, version}; its worker follows soon."""

    repeatable: ClassVar[bool] = False
    name: str
    client: int = 0


class DeclareGroupTopic(Request, tag="declare_group_topic"):
    """{topic: declaration, created, version}, when its worker serves it: the topic of a group of readers of the topic
    with this name and id. As DeclareTopic.
    """

    waits: ClassVar[bool] = True
    kind: Kind
    topic: str
    group: str
    id: int
    within: float = 20.0
    client: int = 0


class DeleteGroupTopics(Request, tag="delete_group_topics"):
    """{topics: their names, created, version}: the topics of a group, as many as there are."""

    topic: str
    group: str
    client: int = 0


#: name of the operation → its requests
OPERATIONS: dict[str, type[Request]] = {str(kind.__struct_config__.tag): kind for kind in Request.__subclasses__()}
