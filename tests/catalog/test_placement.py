"""Goal: queues are spread evenly, the same name goes to the same worker, a worker more or less moves few names.

Method: `place` over many names, and properties of single placements.
"""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from warren.engine.catalog.placement import Family, bound_of, moves, place, weight
from warren.engine.queues.folder import Folder, workers_needed


def spread(names: list[str], workers_n: int) -> dict[str, int]:
    loads = dict.fromkeys(range(workers_n), 0)
    found = {}
    for name in names:
        found[name] = place(name, loads)
        loads[found[name]] += 1
    return found


def test_few_queues_are_even() -> None:
    for workers_n in (1, 2, 3, 8):
        for n in range(1, 4 * workers_n):
            found = spread([f"q{i}" for i in range(n)], workers_n)
            counts = [list(found.values()).count(worker) for worker in range(workers_n)]
            assert max(counts) - min(counts) <= 1 or max(counts) <= -(-n // workers_n)


def test_many_queues_keep_their_worker_and_one_more_takes_its_share() -> None:
    names = [f"queue-{i}" for i in range(4000)]
    eight, nine = spread(names, 8), spread(names, 9)
    counts = [list(eight.values()).count(worker) for worker in range(8)]
    assert max(counts) <= 1.25 * 500
    assert min(counts) >= 0.75 * 500
    moved = sum(eight[name] != nine[name] for name in names)
    assert moved < 0.25 * len(names), "a worker more takes a ninth, not everything"
    assert spread(names, 8) == eight


def test_order_matters_little() -> None:
    """Consistent choice: declared the other way round, nearly all go where they went."""
    names = [f"queue-{i}" for i in range(1000)]
    there, back = spread(names, 4), spread(names[::-1], 4)
    assert sum(there[name] == back[name] for name in names) > 0.8 * len(names)


@given(
    st.text(min_size=1, max_size=20),
    st.dictionaries(st.integers(0, 29), st.integers(0, 500), min_size=1),
    st.integers(1, 3),
)
def test_the_heaviest_that_is_not_too_full(name: str, loads: dict[int, int], queues_n: int) -> None:
    worker = place(name, loads, queues_n)
    total = sum(loads.values()) + queues_n
    bound = max(-(-total // len(loads)), int(1.25 * total / len(loads)))
    assert loads[worker] + queues_n <= bound or loads[worker] == min(loads.values())
    for other, load in loads.items():
        if load + queues_n <= bound and loads[worker] + queues_n <= bound:
            assert weight(name, worker) >= weight(name, other)


def test_weights_do_not_change() -> None:
    """They decide where names go on every node: another formula would be another placement."""
    assert weight("orders", 0) == 0x961BD390B4C84D80


def test_which_workers_a_start_needs(tmp_path: Path) -> None:
    assert workers_needed(tmp_path, 2, [], 30) == 2
    assert workers_needed(tmp_path, 2, [0, 4], 30) == 5
    folder = Folder.of(tmp_path, 6)
    folder.make()
    assert workers_needed(tmp_path, 2, [], 30) == 7, "it was killed: the store may keep something for it"
    folder.terms.write_bytes(b"")
    assert workers_needed(tmp_path, 2, [], 30) == 2


def after(families: list[Family], plan: dict[str, int]) -> list[Family]:
    return [Family(item.name, plan.get(item.name, item.worker), item.queues_n) for item in families]


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.tuples(st.integers(0, 11), st.integers(1, 3)), max_size=60),
    st.integers(1, 12),
    st.integers(1, 12),
)
def test_moves_are_few_and_come_to_an_end(found: dict[str, tuple[int, int]], before: int, wanted: int) -> None:
    """Who moves has a reason: its worker goes, or a new one takes its share; a second start moves nothing more."""
    families = [Family(name, worker % before, queues_n) for name, (worker, queues_n) in found.items()]
    plan = moves(families, before, wanted, 4096)
    for family in families:
        if family.name in plan:
            assert plan[family.name] < wanted
            assert plan[family.name] != family.worker
            assert family.worker >= wanted or before < wanted
        else:
            assert family.worker < wanted
    assert moves(after(families, plan), wanted, wanted, 4096) == {}
    total = sum(item.queues_n for item in families)
    if before < wanted and all(item.queues_n == 1 for item in families):
        bound = bound_of(total, wanted)
        assert all(sum(item.worker == worker for item in after(families, plan)) <= bound for worker in range(wanted))


def test_a_worker_more_takes_its_share_of_those_that_are_there() -> None:
    names = [f"queue-{i}" for i in range(2000)]
    families = [Family(name, worker) for name, worker in spread(names, 8).items()]
    plan = moves(families, 8, 9, 4096)
    assert set(plan.values()) == {8}
    assert 0.75 * 2000 / 9 < len(plan) < 1.3 * 2000 / 9
    assert moves(after(families, plan), 8, 9, 4096).keys() <= set(), "also when the number was not noted"
