"""What a server answers to a control request that it refuses."""

from __future__ import annotations

import msgspec


class Refusal(msgspec.Struct):
    """The name of an error's class (warren.engine.errors) and what it says."""

    error: str
    message: str
