"""Names: what a queue or an exchange of a virtual host is called in the node.

Vhost `/` is the node's own name space: its queue `orders` is the node's queue `orders`. AMQP allows names that Warren
does not, so a `/`, control characters, a leading `.`, a leading `@`, and a `%` before two hexadecimal digits are
written as `%XX`, byte by byte. The name `n` of another vhost `v` is `@v:n`, with each `:` of `v` as `%3A`.

A name for answers (direct reply-to) is the node's, the same in each vhost: RabbitMQ delivers an answer from any of
them, and so can a program of the node.

Invariant: `amqp_name` takes back what `node_name` did, except that a name for answers is one of `/`. A name of the node
that no name of AMQP is mapped to (it has `%XX` where that was not needed) is shown as it is, in `/`, and cannot be
reached by it.
"""

from __future__ import annotations

import re
from functools import lru_cache

from warren.engine.amqp.spec import REPLY_TO

DEFAULT_VHOST = "/"
#: what names for answers begin with; a token follows
_ANSWERS = f"{REPLY_TO}."
_ESCAPED = re.compile("[/\0-\x1f\x7f-\x9f]|^[.@]|%(?=[0-9A-Fa-f]{2})")
_ESCAPED_VHOST = re.compile("[/:\0-\x1f\x7f-\x9f]|%(?=[0-9A-Fa-f]{2})")
_WRITTEN = re.compile("(?:%[0-9A-Fa-f]{2})+")


def escape(found: re.Match[str]) -> str:
    """Characters as `%XX`, byte by byte."""
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


def unescape(text: str) -> str:
    """The characters again."""
    return _WRITTEN.sub(lambda found: bytes.fromhex(found[0].replace("%", "")).decode(errors="replace"), text)


def prefix_of(vhost: str) -> str:
    """What all names of a vhost begin with; '' for `/`."""
    return "" if vhost == DEFAULT_VHOST else f"@{_ESCAPED_VHOST.sub(escape, vhost)}:"


@lru_cache(maxsize=65536)
def node_name(vhost: str, name: str) -> str:
    """What a queue or exchange of a vhost is called in the node, however long that is; '' stays ''."""
    if not name:
        return ""
    prefix = "" if name.startswith(_ANSWERS) else prefix_of(vhost)
    return prefix + _ESCAPED.sub(escape, name)


@lru_cache(maxsize=65536)
def amqp_name(name: str) -> tuple[str, str]:
    """(vhost, name) of what has this name in the node."""
    vhost, rest = DEFAULT_VHOST, name
    if name.startswith("@") and ":" in name:
        escaped, _colon, rest = name[1:].partition(":")
        vhost = unescape(escaped)
    found = unescape(rest)
    return (vhost, found) if node_name(vhost, found) == name else (DEFAULT_VHOST, name)
