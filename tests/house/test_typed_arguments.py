"""What type checkers are told of keyword arguments is what the calls take: the same names, and the same types.

Method: the TypedDicts are compared with what checks the arguments when a program runs, and with the signatures.
"""

import inspect
from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import warren
from warren.engine.catalog.arguments import QueueArguments, QueueOptions
from warren.engine.catalog.node_directory import changed_settings
from warren.engine.config import NodeSettings, Settings
from warren.engine.errors import UsageError
from warren.workers.client.publish import Publish, PublishManyOptions, PublishOptions


def kinds(hint: Any) -> set[Any]:
    """The types that a hint allows beside None; of literals their type."""
    if get_origin(hint) is Literal:
        return {type(value) for value in get_args(hint)}
    parts = get_args(hint)
    return set[Any]().union(*map(kinds, parts)) if parts else {hint} - {NoneType}


def keywords(call: Callable[..., Any]) -> set[str]:
    """The parameters of a function that can only be given by name."""
    return {name for name, found in inspect.signature(call).parameters.items() if found.kind is found.KEYWORD_ONLY}


def test_the_arguments_of_a_queue_are_those_that_are_checked_and_kept() -> None:
    told, kept = get_type_hints(QueueOptions), get_type_hints(QueueArguments)
    assert {name: kinds(hint) for name, hint in told.items()} == {name: kinds(hint) for name, hint in kept.items()}
    for name in told:
        with pytest.raises(UsageError, match=f"argument {name}=1j: "):
            QueueArguments.of("q", {name: 1j})
        assert QueueArguments.of("q", {name: None}) == QueueArguments()
    with pytest.raises(UsageError, match=f"unknown argument 'ttlx0': known are {', '.join(sorted(told))}"):
        QueueArguments.of("q", {"ttlx0": 5})


def test_the_settings_that_open_takes_are_those_of_a_node() -> None:
    kept = get_type_hints(Settings)
    assert kept.pop("profile") is kept.pop("group") is str, "open has arguments for them"
    assert get_type_hints(NodeSettings) == kept
    with pytest.raises(
        UsageError, match=f"there is no setting 'zzz': known are {', '.join(sorted(['profile', 'group', *kept]))}"
    ):
        changed_settings(Settings(), {"zzz": 1})


def test_the_options_of_a_publish_are_those_of_every_face() -> None:
    fields = set(Publish.__struct_fields__) - {"headers"}
    assert set(PublishOptions.__annotations__) == fields
    assert set(PublishManyOptions.__annotations__) == fields
    assert keywords(warren.Queue.put) == fields | {"block"}
    for call in (warren.Queue.put_many, warren.Node.publish):
        assert keywords(call) == fields, call
    own = {"routing_keys", "mandatory", "durability", "wait", "timeout", "headers"}
    assert keywords(warren.Node.publish_many) == fields | own
