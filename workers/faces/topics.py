"""Topics (replayable logs) are planned; asking for one says so."""

from __future__ import annotations

from typing import NoReturn

from warren.engine.errors import NotYet
from warren.engine.saying import shown


def topic(name: str) -> NoReturn:
    """Raise NotYet."""
    raise NotYet(
        f"topic {shown(name)}: this version of Warren has queues and the message store; topics come with a later one"
    )
