"""Goal: consumers without a prefetch, and such as hold very much, stop nobody. Method: shares alone, at random, and as
taps use them."""

import random

import pytest

from warren.workers.amqp.shares import AHEAD, Shares

from support.seeds import new_seed

SLOTS = 1 << 18
COMMON, RESERVE = SLOTS * 3 // 4, SLOTS // 4


class Tap:
    """Some consumers of a queue, as taps.py has them: what each asks for, and holds."""

    def __init__(self, shares: Shares, *asks: int) -> None:
        self.shares = shares
        self.asks = list(asks)
        self.held = [0] * len(asks)
        self.granted = 0
        for one in asks:
            shares.came(one)

    def divide(self) -> list[int]:
        """How many each may hold now."""
        floor = self.shares.floor
        fair = [self.shares.fair(one) for one in self.asks]
        each = self.shares.free(self) // max(1, sum(most > floor for most in fair))
        allowed = [min(most, floor + each) for most in fair]
        pairs = list(zip(self.held, allowed, strict=True))
        self.granted = sum(max(held, min(most, held + AHEAD)) for held, most in pairs)
        self.shares.grant(self, self.granted - floor * len(self.asks))
        return allowed

    def take_all(self) -> list[int]:
        """Each holds all it may, as when nobody acks."""
        for _turn in range(SLOTS // AHEAD + 2):
            pairs = zip(self.held, self.divide(), strict=True)
            self.held = [max(held, min(most, held + AHEAD)) for held, most in pairs]
        return self.held


def test_one_without_a_prefetch_gets_three_quarters_and_its_floor() -> None:
    shares = Shares(SLOTS)
    alone = Tap(shares, 0)
    assert alone.take_all() == [COMMON + 64]


@pytest.mark.parametrize("asks", [1, 50, 64, 300, 1000, 65535])
def test_a_prefetch_is_kept_exactly_beside_one_that_takes_all(asks: int) -> None:
    shares = Shares(SLOTS)
    first, second = Tap(shares, asks), Tap(shares, 0)
    assert first.take_all() == [asks]
    second.take_all()
    assert first.take_all() == [asks]
    assert second.held == [COMMON + 64 - asks]


def test_who_comes_when_all_is_held_gets_its_floor_at_once_and_its_part_later() -> None:
    shares = Shares(SLOTS)
    greedy = Tap(shares, 0)
    greedy.take_all()
    later = [Tap(shares, 0) for _number in range(3)]
    assert [tap.take_all() for tap in later] == [[64]] * 3
    small = Tap(shares, 10)
    assert small.take_all() == [10]
    greedy.held = [0]  # it acks
    greedy.divide()
    for tap in later:
        tap.take_all()
    greedy.take_all()
    assert all(held >= COMMON // 5 for tap in (*later, greedy) for held in tap.held)


def test_consumers_of_one_queue_share_too() -> None:
    shares = Shares(SLOTS)
    together = Tap(shares, 0, 0, 20)
    held = together.take_all()
    assert held[2] == 20
    assert held[0] == held[1] >= (COMMON - 20) // 2
    assert sum(held) <= SLOTS


def test_very_many_have_a_floor_each() -> None:
    shares = Shares(SLOTS)
    taps = [Tap(shares, 100) for _number in range(10_000)]
    assert shares.floor == RESERVE // 10_000
    assert sum(sum(tap.take_all()) for tap in taps) <= SLOTS
    assert all(tap.held[0] >= shares.floor for tap in taps)


@pytest.mark.parametrize("slots", [64, 256, 4096, SLOTS])
def test_no_more_is_granted_than_there_are_slots(slots: int) -> None:
    dice = random.Random(new_seed())
    shares = Shares(slots)
    taps: list[Tap] = []
    most = max(1, slots // 64)  # so many have a whole floor of 16 out of the reserve of any of these sizes
    for _step in range(600):
        if len(taps) < min(most, 60) and (not taps or dice.random() < 0.3):
            taps.append(Tap(shares, dice.choice([0, 0, 1, 10, 50, 300, 5000])))
        tap = dice.choice(taps)
        if dice.random() < 0.6:
            tap.take_all()
        elif dice.random() < 0.7:
            tap.held = [dice.randrange(held + 1) for held in tap.held]
            tap.divide()
        else:
            taps.remove(tap)
            shares.went(tap.asks[0])
            shares.grant(tap, 0)
        assert sum(tap.granted for tap in taps) <= slots
        assert all(tap.held[0] <= tap.granted for tap in taps)
    for tap in taps:
        shares.went(tap.asks[0])
        shares.grant(tap, 0)
    assert (shares.consumers_n, shares.free(None)) == (0, shares.common)
