"""Whose the files of topics are."""

from __future__ import annotations

import struct

from warren.engine import _core

#: of records that earlier versions wrote
NO_HOST = bytes(8)


def node_bytes(node_id: int) -> bytes:
    """Whose log it is, as its commits say it."""
    return struct.pack("<QQ", node_id, 0)


def store_host(node_id: int) -> bytes:
    """Where a node's records say that they were born and stored: ids of messages begin with it."""
    return _core.message_host(node_bytes(node_id))
