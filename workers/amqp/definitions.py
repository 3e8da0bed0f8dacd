"""RabbitMQ's definitions: the file that it exports and imports, as its versions 3.8 to 4.x write it.

A file is of a whole broker, or of one virtual host (then nothing in it names the vhost). It is read with what is known
of it; what is not is left out, and named in `unknown`. Versions differ in how they write the same: maps as lists of
pairs, tags as a text with commas, the description of a vhost in `metadata` or beside it. `read` makes one of these.

What a user may do, and where, is said in full: a permission without its vhost or an expression is refused.

Bounds: the file has at most `FILE_BYTES_MAX` bytes.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import msgspec

from warren.engine.errors import UsageError
from warren.engine.kernel.atomic_file import file_explained
from warren.engine.saying import shown
from warren.workers.amqp.users_file import DEFAULT_VHOST

FILE_BYTES_MAX = 256 << 20
#: what is written: the version whose format it is
VERSION = "3.10.0"
#: lists of a file, each with its kind
SECTIONS = (
    *("users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies"),
    *("queues", "exchanges", "bindings"),
)
#: what else a file may say: of the broker, or of its one vhost
_ABOUT = {
    *("rabbit_version", "rabbitmq_version", "rabbitmq_definition_format", "product_name", "product_version"),
    *("original_cluster_name", "original_vhost_name", "explanation", "metadata", "description", "default_queue_type"),
    *("limits", "name", "tags"),
}
LIMITS = "vhost-limits"
OPERATOR_POLICY = "operator_policy"

Table = dict[str, Any]


class DefinedUser(msgspec.Struct, kw_only=True):
    name: str
    password_hash: str | None = None
    password: str | None = None  #: of files that people write
    hashing_algorithm: str = "rabbit_password_hashing_sha256"
    tags: list[str] = []
    limits: dict[str, int] = {}


class DefinedVhost(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None  #: None: it is not said, as of all of these
    tags: list[str] | None = None
    default_queue_type: str | None = None


class DefinedPermission(msgspec.Struct, kw_only=True):
    user: str
    vhost: str
    configure: str
    write: str
    read: str


class DefinedTopicPermission(msgspec.Struct, kw_only=True):
    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class DefinedParameter(msgspec.Struct, kw_only=True):
    component: str = ""
    name: str
    vhost: str = DEFAULT_VHOST
    value: Any = None


class DefinedPolicy(msgspec.Struct, kw_only=True):
    name: str
    vhost: str = DEFAULT_VHOST
    pattern: str
    apply_to: str = msgspec.field(default="all", name="apply-to")
    priority: int = 0
    definition: Table = {}


class DefinedQueue(msgspec.Struct, kw_only=True):
    name: str
    vhost: str = DEFAULT_VHOST
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    type: str = ""
    arguments: Table = {}


class DefinedExchange(msgspec.Struct, kw_only=True):
    name: str
    vhost: str = DEFAULT_VHOST
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = {}


class DefinedBinding(msgspec.Struct, kw_only=True):
    source: str
    vhost: str = DEFAULT_VHOST
    destination: str
    destination_type: str = "queue"
    routing_key: str = ""
    arguments: Table = {}


class Definitions(msgspec.Struct):
    """Content of a file. `unknown`: its sections that nobody here knows, by name, with how much is in each."""

    users: list[DefinedUser] = []
    vhosts: list[DefinedVhost] = []
    permissions: list[DefinedPermission] = []
    topic_permissions: list[DefinedTopicPermission] = []
    parameters: list[DefinedParameter] = []
    global_parameters: list[DefinedParameter] = []
    policies: list[DefinedPolicy] = []
    operator_policies: list[DefinedPolicy] = []
    queues: list[DefinedQueue] = []
    exchanges: list[DefinedExchange] = []
    bindings: list[DefinedBinding] = []
    vhost_limits: dict[str, dict[str, int]] = {}
    unknown: dict[str, int] = {}


_TYPES: dict[str, type[msgspec.Struct]] = {
    "users": DefinedUser,
    "vhosts": DefinedVhost,
    "permissions": DefinedPermission,
    "topic_permissions": DefinedTopicPermission,
    "parameters": DefinedParameter,
    "global_parameters": DefinedParameter,
    "policies": DefinedPolicy,
    "queues": DefinedQueue,
    "exchanges": DefinedExchange,
    "bindings": DefinedBinding,
}


def read(path: Path, vhost: str | None = None) -> Definitions:
    """What a file says. `vhost`: where the things of a file belong that is of one vhost; default: `/`.

    Raises StoreError and its kinds (it cannot be read), UsageError (it is not such a file: where, and why).
    """
    with file_explained(f"cannot read {path}"), open(path, "rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise UsageError(f"{path} has more than {FILE_BYTES_MAX >> 20} MiB: it is no file of definitions")
    return decode(content, str(path), vhost)


def decode(content: bytes, called: str, vhost: str | None = None) -> Definitions:
    """What the bytes of a file say. Raises UsageError."""
    try:
        raw = msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{called} is not a file of RabbitMQ's definitions: {error}; `rabbitmqctl export_definitions FILE` makes "
            "one"
        ) from None
    if not raw.keys() & {*SECTIONS, "rabbit_version", "rabbitmq_version"}:
        raise UsageError(
            f"{called} is not a file of RabbitMQ's definitions: it has none of {', '.join(SECTIONS)}; "
            "`rabbitmqctl export_definitions FILE` makes one"
        )
    if vhost is not None and (raw.get("users") or raw.get("vhosts")):
        raise UsageError(
            f"{called} is of a whole broker, and says which vhost each thing is of: leave out --vhost, which is for a "
            "file of one vhost"
        )
    found = Definitions()
    for name, section in raw.items():
        if name in _TYPES:
            setattr(found, name, _section(called, name, section, vhost))
        elif name not in _ABOUT:
            found.unknown[name] = len(section) if isinstance(section, list | dict) else 1
    _parameters(called, found, vhost)
    _of_one_vhost(called, found, raw, vhost)
    return found


def _section(called: str, name: str, section: object, vhost: str | None) -> list[Any]:
    if not isinstance(section, list):
        raise UsageError(f"{called}: {name} must be a list, and is {shown(section)}")
    return [_item(f"{called}: {name}[{number}]", name, item, vhost) for number, item in enumerate(section)]


def _item(where: str, name: str, item: object, vhost: str | None) -> Any:
    if not isinstance(item, dict):
        raise UsageError(f"{where} must be a map, and is {shown(item)}")
    plain = {key: value for key, value in item.items() if value is not None}
    for key in ("arguments", "definition", "limits", "metadata"):
        if key in plain:
            plain[key] = pairs(plain[key])
    metadata = plain.get("metadata")
    if name == "vhosts" and isinstance(metadata, dict):
        plain = {key: value for key, value in metadata.items() if value is not None} | plain
    if isinstance(tags := plain.get("tags"), str):
        plain["tags"] = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if vhost is not None:
        plain.setdefault("vhost", vhost)
    try:
        return msgspec.convert(plain, _TYPES[name])
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from None


def pairs(value: object) -> object:
    """A map that may be written as a list of pairs, or empty as an empty list."""
    if isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value):
        return {str(key): content for key, content in value}
    return value


def _parameters(called: str, found: Definitions, vhost: str | None) -> None:
    """Limits of vhosts and policies of operators are parameters."""
    rest = []
    for number, parameter in enumerate(found.parameters):
        where, value = f"{called}: parameters[{number}]", pairs(parameter.value)
        if parameter.component == LIMITS:
            found.vhost_limits.setdefault(parameter.vhost, {}).update(_limits(where, value))
        elif parameter.component == OPERATOR_POLICY and isinstance(value, dict):
            item = value | {"name": parameter.name, "vhost": parameter.vhost}
            found.operator_policies.append(_item(where, "policies", item, vhost))
        else:
            rest.append(parameter)
    found.parameters = rest


def _limits(where: str, value: object) -> dict[str, int]:
    try:
        return msgspec.convert(value, dict[str, int])
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from None


def _of_one_vhost(called: str, found: Definitions, raw: Table, vhost: str | None) -> None:
    """A file of one vhost says nothing of vhosts; what it says of its own is beside the sections."""
    if found.vhosts or "users" in raw:
        return
    name = vhost or DEFAULT_VHOST
    about = {key: raw[key] for key in ("metadata", "description", "default_queue_type", "tags") if key in raw}
    found.vhosts.append(_item(f"{called}: the vhost", "vhosts", about | {"name": name}, None))
    if (limits := pairs(raw.get("limits"))) is not None:
        found.vhost_limits[name] = _limits(f"{called}: limits", limits)
