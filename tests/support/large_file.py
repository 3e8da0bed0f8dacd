"""The file of a large message, written by the description of its format (docs/formats.md)."""

from warren.engine import _core
from warren.engine.kernel.formats import LARGE_HEADER, LARGE_MAGIC, LARGE_VERSION

CRC_FROM = 16


def built(node_id: int, id: bytes, meta: bytes, body: bytes) -> bytes:
    """Its bytes."""
    head = bytearray(LARGE_HEADER.size)
    LARGE_HEADER.set_bytes(head, "magic", LARGE_MAGIC)
    LARGE_HEADER.set_bytes(head, "id", id)
    for name, value in (
        ("version", LARGE_VERSION),
        ("node_id", node_id),
        ("body_length", len(meta) + len(body)),
        ("meta_length", len(meta)),
        ("body_crc", _core.crc32c(body)),
    ):
        LARGE_HEADER.pack_into(head, name, value)
    LARGE_HEADER.pack_into(head, "crc", _core.crc32c(meta, _core.crc32c(bytes(head[CRC_FROM:]))))
    return bytes(head) + meta + body
