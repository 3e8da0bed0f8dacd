"""Goal: what a channel holds unacked is kept rightly, in runs (rule A2). Method: beside a plain dictionary."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from warren.workers.amqp.consumers import Run, Taken, Unacked

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("one"), st.integers(0, 30)),
        st.tuples(st.just("many"), st.integers(0, 30)),
        st.tuples(st.just("back"), st.integers(0, 30)),
    ),
    max_size=40,
)


@given(STEPS)
def test_it_is_what_a_plain_dictionary_would_be(steps: list[tuple[str, int]]) -> None:
    held, kept, tag = Unacked(), cast("dict[int, str]", {}), 1
    put_away: list[tuple[list[Taken], dict[int, str]]] = []
    for step, number in steps:
        if step == "add":
            names = [f"message {tag + more}" for more in range(number)]
            held.add(Run(tag, list(cast("list[Any]", names)), None, 0, None))
            kept.update(zip(range(tag, tag + number), names, strict=True))
            tag += number
        elif step == "one":
            assert held.known(number) == (number in kept)
            taken = held.take(number)
            assert (taken and taken.deliveries) == ([kept.pop(number)] if number in kept else None)
        elif step == "many":
            found = held.take_up_to(number, tags_too=True)
            gone = {one: kept.pop(one) for one in sorted(kept) if not number or one <= number}
            assert [name for part in found for name in part.deliveries] == list(gone.values())
            assert [one for part in found for one in part.tags] == list(gone)
            put_away.append((found, gone))
        elif put_away:
            found, gone = put_away.pop()
            held.put_back(found)
            kept.update(gone)
        assert held.count == len(kept)
    left = held.take_up_to(0)
    assert [name for part in left for name in part.deliveries] == [kept[one] for one in sorted(kept)]
    assert held.count == 0
