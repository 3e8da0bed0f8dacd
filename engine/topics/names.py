"""Whose the files of topics are."""

from __future__ import annotations

import struct


def node_bytes(node_id: int) -> bytes:
    """Whose log it is, as its commits say it."""
    return struct.pack("<QQ", node_id, 0)
