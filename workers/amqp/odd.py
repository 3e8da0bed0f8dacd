"""What Python looks at of a message that is published: copies, expiration, user, delivery mode, who is to be answered.

RabbitMQ checks these when a message comes, and closes the channel (406) with the texts below. `BCC` is taken out of the
headers, so that nobody sees it; all other bytes of the properties stay as they came.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from warren.engine import _core
from warren.workers.amqp.arguments import EXPIRY_MAX
from warren.workers.amqp.faults import ChannelFault
from warren.workers.amqp.mapping import REPLY_TO
from warren.workers.amqp.types import type_of
from warren.workers.amqp.users import User
from warren.workers.amqp.users_file import IMPERSONATOR

CC, BCC = "CC", "BCC"


class Looked(NamedTuple):
    """A message that may be published: its properties as they go on, its headers, and more routing keys."""

    properties: bytes
    headers: dict[str, Any]
    copies: list[str]


def checked(told: bytes, user: User, reply_name: str | None) -> Looked:
    """Look at the properties of a message. `reply_name`: where answers to this channel go. Raises ChannelFault 406."""
    properties = _core.amqp_properties(told)
    user_id = properties.get("user_id")
    if user_id is not None and user_id != user.name and IMPERSONATOR not in user.tags:
        raise ChannelFault(406, f"user_id property set to '{user_id}' but authenticated user was '{user.name}'")
    expiration = properties.get("expiration")
    if expiration is not None:
        _check_expiration(expiration)
    mode = properties.get("delivery_mode")
    if mode is not None and mode not in (1, 2):
        raise ChannelFault(406, f"invalid message: {{delivery_mode_unknown,{mode}}}")
    headers: dict[str, Any] = properties.get("headers") or {}
    copies = [key for name in (CC, BCC) for key in _keys(headers, name)]
    changed = False
    if BCC in headers:
        headers = {name: value for name, value in headers.items() if name != BCC}
        properties["headers"] = headers
        changed = True
    if properties.get("reply_to") == REPLY_TO:
        if reply_name is None:
            raise ChannelFault(406, "fast reply consumer does not exist")
        properties["reply_to"] = reply_name
        changed = True
    return Looked(_core.amqp_properties_bytes(properties) if changed else told, headers, copies)


def _keys(headers: dict[str, Any], name: str) -> list[str]:
    found = headers.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise ChannelFault(406, f'invalid message: {{unacceptable_type_in_header,"{name}",{type_of(found)}}}')
    return [key for key in found if isinstance(key, str) and len(key.encode()) <= 255]


def _check_expiration(text: str) -> None:
    digits = text[1:] if text[:1] in ("+", "-") else text
    count = len(digits) - len(digits.lstrip("0123456789"))
    if not count:
        raise ChannelFault(406, f"invalid expiration '{text}': no_integer")
    rest = digits[count:]
    if rest:
        raise ChannelFault(406, f"invalid expiration '{text}': {{leftover_string,\"{rest}\"}}")
    number = int(digits[:count][:20]) * (-1 if text.startswith("-") else 1)
    if number < 0:
        raise ChannelFault(406, f"invalid expiration '{text}': {{value_negative,{number}}}")
    if number > EXPIRY_MAX:
        raise ChannelFault(406, f"invalid expiration '{text}': {{value_too_big,{number}}}")
