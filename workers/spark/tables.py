"""`CREATE TABLE … USING warren OPTIONS (…)`: what a table's options are, and where they are kept.

When a table is created, Spark asks for its schema with all of the table's properties: the options, once more with
`option.` before their names, `path` also as `location`, and things of its own (owner, provider, comment). When it is
read, Spark gives a source in Python no options, but the schema that the catalog keeps. So they are kept there, in
the metadata of the first column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructField, StructType

from warren.engine.errors import UsageError
from warren.engine.saying import shown

#: of a column's metadata
KEY = "warren"
_PREFIX = "option."
#: only tables have it
_PROVIDER = "provider"


def plain_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options among what Spark gives: all of it, but of a table those that were given as its options."""
    lower = {key.lower(): value for key, value in given.items()}
    if _PROVIDER not in lower:
        return _with_path({key: value for key, value in given.items() if key.lower() != "serialization.format"})
    options = {key[len(_PREFIX) :]: value for key, value in lower.items() if key.startswith(_PREFIX)}
    options.pop("serialization.format", None)
    for key in ("path", "location"):
        if key in lower:
            options.setdefault("path", lower[key])
    path = options.get("path", "/")
    if ":" not in path and not path.startswith("/"):
        raise UsageError(
            f"the path of a table must be absolute, and {shown(path)} is not: Spark would look below its warehouse"
        )
    return options


def _with_path(options: dict[str, str]) -> dict[str, str]:
    location = next((key for key in options if key.lower() == "location"), None)
    if location is not None:
        found = options.pop(location)
        if not any(key.lower() == "path" for key in options):
            options["path"] = found
    return options


def is_table(given: Mapping[str, str]) -> bool:
    """Whether Spark asks for a table."""
    return any(key.lower() == _PROVIDER for key in given)


def keeping(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a table, with its options."""
    first, *others = schema.fields
    metadata: dict[str, Any] = {**first.metadata, KEY: dict(options)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def kept(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """The options of a read: those given, over those that the schema of a table keeps."""
    found: dict[str, str] = {}
    for field in schema.fields:
        found |= {str(key).lower(): str(value) for key, value in (field.metadata or {}).get(KEY, {}).items()}
    return found | {key.lower(): value for key, value in given.items()}
