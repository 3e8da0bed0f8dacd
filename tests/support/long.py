"""What takes long, and is tried at length by ./scripts/test-long (marker `long`): each time in short, or in part."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

LONG = bool(os.environ.get("WARREN_LONG_TESTS"))


def rounds(most: int) -> int:
    """How often something is tried that goes by chance."""
    return most if LONG else max(1, most // 4)


def in_part(values: Iterable[Any], kept: int = 1) -> list[Any]:
    """Parameters of which the first few are tried each time, and the others at length."""
    found: list[Any] = list(values)
    return found[:kept] + [pytest.param(value, marks=pytest.mark.long) for value in found[kept:]]


#: ways to damage a file for which others stand, but for where the damage lies
_LIKE_OTHERS = ("head-bit", "zero")


def damages(kinds: Iterable[str], hows: Iterable[str], never: Mapping[str, set[str]]) -> list[Any]:
    """Parameters: each kind of file, damaged in each way, but for those that it cannot have."""
    return [
        pytest.param(kind, how, marks=[pytest.mark.long] if how in _LIKE_OTHERS else [])
        for kind in kinds
        for how in hows
        if how not in never.get(kind, set())
    ]
