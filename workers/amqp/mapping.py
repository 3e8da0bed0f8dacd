"""Names: what a queue or an exchange of a virtual host is called in the node.

Vhost `/` is the node's own name space: its queue `orders` is the node's queue `orders`. AMQP allows names that Warren
does not, so a `/`, control characters, a leading `.`, a leading `@`, and a `%` before two hexadecimal digits are
written as `%XX`, byte by byte. The name `n` of another vhost `v` is `@v:n`, with each `:` of `v` as `%3A`.

Invariant: `amqp_name(*)` takes back what `engine_name` did. A name of the node that no name of AMQP is mapped to (it
has `%XX` where that was not needed) is shown as it is, in `/`, and cannot be reached by it.
"""

from __future__ import annotations

import re
from functools import lru_cache

from warren.engine.catalog.names import NAME_BYTES_MAX
from warren.workers.amqp.faults import ChannelFault

DEFAULT_VHOST = "/"
#: names that begin so are the server's
RESERVED = "amq."
#: what a server-named queue is called, and who is asked for an answer
GENERATED = "amq.gen-"
REPLY_TO = "amq.rabbitmq.reply-to"
_ESCAPED = re.compile("[/\0-\x1f\x7f-\x9f]|^[.@]|%(?=[0-9A-Fa-f]{2})")
_ESCAPED_VHOST = re.compile("[/:\0-\x1f\x7f-\x9f]|%(?=[0-9A-Fa-f]{2})")
_WRITTEN = re.compile("(?:%[0-9A-Fa-f]{2})+")


def _escape(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


def _unescape(text: str) -> str:
    return _WRITTEN.sub(lambda found: bytes.fromhex(found[0].replace("%", "")).decode(errors="replace"), text)


@lru_cache(maxsize=65536)
def engine_name(vhost: str, name: str) -> str:
    """What a queue or exchange of a vhost is called in the node; '' stays ''. Raises ChannelFault: it is too long."""
    if not name:
        return ""
    made = _ESCAPED.sub(_escape, name)
    if vhost != DEFAULT_VHOST:
        made = f"@{_ESCAPED_VHOST.sub(_escape, vhost)}:{made}"
    if len(made.encode()) > NAME_BYTES_MAX:
        raise ChannelFault(
            406,
            f"name '{name[:40]}…' has too many bytes: with its virtual host, and %XX for '/' and control characters, "
            f"{NAME_BYTES_MAX} are allowed",
        )
    return made


@lru_cache(maxsize=65536)
def amqp_name(name: str) -> tuple[str, str]:
    """(vhost, name) of what has this name in the node."""
    vhost, rest = DEFAULT_VHOST, name
    if name.startswith("@") and ":" in name:
        escaped, _colon, rest = name[1:].partition(":")
        vhost = _unescape(escaped)
    found = _unescape(rest)
    try:
        same = engine_name(vhost, found) == name
    except ChannelFault:
        same = False
    return (vhost, found) if same else (DEFAULT_VHOST, name)


_NOT_IN_STREAMS = re.compile("[^A-Za-z0-9_|-]")


@lru_cache(maxsize=4096)
def stream_name(vhost: str, name: str) -> str:
    """What the topic of a stream is called: its characters are fewer, so a queue's name `a.b` is `a%2Eb` there."""
    made = _NOT_IN_STREAMS.sub(_escape, name)
    if made.startswith("%"):
        made = f"_{made}"
    return made if vhost == DEFAULT_VHOST else f"V{_NOT_IN_STREAMS.sub(_escape, vhost)}%3A{made}"


def prefix_of(vhost: str) -> str:
    """What all names of another vhost than `/` begin with."""
    return f"@{_ESCAPED_VHOST.sub(_escape, vhost)}:"


def described(kind: str, name: str, vhost: str) -> str:
    """What RabbitMQ calls a thing in its texts: queue 'orders' in vhost '/'."""
    return f"{kind} '{name}' in vhost '{vhost}'"
