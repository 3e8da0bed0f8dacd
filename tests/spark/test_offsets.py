"""Offsets survive the checkpoint, and ranges are cut without loss or overlap, for all sizes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.engine.errors import StoreError, UsageError
from warren.workers.spark.offsets import ClaimOffset, cut

OFFSET = ClaimOffset("orders", "spark-orders", "00ab-7", 42)


def test_round_trip_with_sorted_keys() -> None:
    text = json.dumps(OFFSET.to_json())
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert ClaimOffset.from_json(json.loads(text)) == OFFSET


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"a": 1, "b": 2},
        {"orders": 7},
        {"orders": {"next": 3}},
        {"orders": {"id": "x", "next": "3", "subscription": "s"}},
    ],
)
def test_a_foreign_checkpoint_is_refused(stored: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="checkpoint"):
        ClaimOffset.from_json(stored)


def test_another_subscription_is_told_from_another_incarnation() -> None:
    OFFSET.check_same("orders", "spark-orders", "00ab-7")
    with pytest.raises(UsageError, match="new checkpointLocation"):
        OFFSET.check_same("orders", "other", "00ab-7")
    with pytest.raises(StoreError, match="made again"):
        OFFSET.check_same("orders", "spark-orders", "00ab-8")


@given(
    start=st.integers(0, 10**12),
    total=st.integers(0, 5000),
    parts_min=st.integers(1, 64),
    records_max=st.none() | st.integers(1, 500),
)
def test_cut(start: int, total: int, parts_min: int, records_max: int | None) -> None:
    ranges = cut(start, start + total, parts_min=parts_min, records_max=records_max)
    assert [claim for low, high in ranges for claim in range(low, high)] == list(range(start, start + total))
    assert all(low < high for low, high in ranges)
    if total:
        assert len(ranges) >= min(parts_min, total)
    if records_max is not None:
        assert all(high - low <= records_max for low, high in ranges)
    assert (
        max((high - low for low, high in ranges), default=0) - min((high - low for low, high in ranges), default=0) <= 1
    )


def test_cut_backwards_is_nothing() -> None:
    assert cut(7, 3, parts_min=2, records_max=None) == []
