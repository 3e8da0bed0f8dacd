"""Names: what a queue or an exchange of a virtual host is called in the node (engine/amqp/names.py), and a stream."""

from __future__ import annotations

import re
from functools import lru_cache

from warren.engine.amqp.names import DEFAULT_VHOST, amqp_name, escape, node_name, unescape
from warren.engine.amqp.spec import REPLY_TO
from warren.engine.catalog.names import NAME_BYTES_MAX
from warren.workers.amqp.faults import ChannelFault

__all__ = [
    "DEFAULT_VHOST", "GENERATED", "REPLY_TO", "RESERVED", "amqp_name", "described", "engine_name",
    "stream_called", "stream_name",
]  # fmt: skip

#: names that begin so are the server's
RESERVED = "amq."
#: what the name of a server-named queue begins with
GENERATED = "amq.gen-"


@lru_cache(maxsize=65536)
def engine_name(vhost: str, name: str) -> str:
    """What a queue or exchange of a vhost is called in the node; '' stays ''. Raises ChannelFault: it is too long."""
    made = node_name(vhost, name)
    if len(made.encode()) > NAME_BYTES_MAX:
        raise ChannelFault(
            406,
            f"name '{name[:40]}…' has too many bytes: with its virtual host, and %XX for '/' and control characters, "
            f"{NAME_BYTES_MAX} are allowed",
        )
    return made


_NOT_IN_STREAMS = re.compile("[^A-Za-z0-9_-]")


@lru_cache(maxsize=4096)
def stream_name(vhost: str, name: str) -> str:
    """What the topic of a stream is called: its characters are fewer, so a queue's name `a.b` is `a%2Eb` there, and `n`
    of another vhost `v` is `v|n`. Topics that begin with `%` are groups': such a name gets a `|` in front.
    """
    made = _NOT_IN_STREAMS.sub(escape, name)
    if vhost != DEFAULT_VHOST:
        made = f"{_NOT_IN_STREAMS.sub(escape, vhost)}|{made}"
    return f"|{made}" if made.startswith("%") else made


@lru_cache(maxsize=4096)
def stream_called(topic: str) -> tuple[str, str]:
    """(vhost, name) of the stream whose topic is called so: what `stream_name` did, taken back."""
    first, bar, rest = topic.removeprefix("|").partition("|")
    found = (unescape(first), unescape(rest)) if bar else (DEFAULT_VHOST, unescape(first))
    return found if stream_name(*found) == topic else (DEFAULT_VHOST, topic)


def described(kind: str, name: str, vhost: str) -> str:
    """What RabbitMQ calls a thing in its texts: queue 'orders' in vhost '/'."""
    return f"{kind} '{name}' in vhost '{vhost}'"
