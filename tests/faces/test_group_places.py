"""Goal: what a reader commits was handed out, and what it forgets to commit it says.

Method: places by hand, as a reader moves them.
"""

import pytest

from warren.engine.errors import Fenced, UsageError
from warren.workers.faces.group_places import UNKNOWN, Place, Places


def hand_out(place: Place, n: int, behind: int = 0) -> None:
    """n messages, behind which `behind` do not match."""
    place.given = place.position + n
    place.position = place.fetched = place.given + behind


def test_what_was_handed_out_is_committed_and_nothing_else() -> None:
    places = Places()
    place = Place(0, 7, 5, 5)
    places.add(place)
    assert (places.done(), places.handed_out()) == ({}, {})
    hand_out(place, 3, behind=2)
    assert place.owes
    assert places.done() == {}  # the program is at it still
    assert places.handed_out() == {0: 10}
    assert places.up_to(0, 6) == {0: 7}
    assert places.up_to(0, 7) == {0: 10}  # what does not match is done with the last before it
    for wrong in (4, 8, 12):
        with pytest.raises(UsageError, match=f"offset {wrong} of queue 0 was not handed out"):
            places.up_to(0, wrong)
    places.were_committed({0: 7, 3: 1})
    assert places.up_to(0, 5) == {}  # behind it already
    place.done = place.position
    assert places.done() == {0: 10}
    places.were_committed({0: 10})
    assert not place.owes
    assert (places.done(), places.handed_out()) == ({}, {})


def test_a_seek_is_committed_next_also_backwards() -> None:
    places = Places()
    place = Place(0, 7, 5, 5)
    places.add(place)
    hand_out(place, 5)
    places.were_committed({0: 10})
    place.seek(2)
    assert place.kept == UNKNOWN
    assert places.done() == places.handed_out() == {0: 2}
    hand_out(place, 2)
    assert places.up_to(0, 3) == {0: 4}
    with pytest.raises(UsageError):
        places.up_to(0, 9)


def test_a_queue_that_is_lost_is_told_once_if_something_was_handed_out() -> None:
    places = Places()
    places.add(Place(0, 7, 0, 0))
    places.add(Place(1, 7, 0, 0))
    one, other = places.all()
    hand_out(one, 5)
    other.position = other.fetched = 9  # nothing matched
    for place in (one, other):
        places.lose(place)
    assert len(places) == 0
    assert places.take_lost() == [0]
    assert places.take_lost() == []
    with pytest.raises(Fenced, match="queue 0 went to another reader after offset 4"):
        places.up_to(0, 4)
    places.add(Place(0, 9, 3, 3))  # it comes again, where the other one stood
    with pytest.raises(Fenced):
        places.up_to(0, 4)


def test_queues_take_turns_and_those_that_leave_have_none() -> None:
    places = Places()
    for queue in range(4):
        places.add(Place(queue, 1, 0, 0, pinned=queue != 3))
    order = []
    for _ in range(6):
        place = places.in_turn()[0]
        order.append(place.queue)
        places.had_its_turn(place)
    assert order == [0, 1, 2, 0, 1, 2]
    assert places.unpinned() == {3: 0}
    places.were_committed({3: 0})
    assert not places.unpinned()
    found = places.get(1)
    assert found is not None
    found.leaving = True
    assert [place.queue for place in places.in_turn()] == [3, 0, 2]


def test_what_is_put_back_is_handed_out_again_unless_it_is_committed() -> None:
    places = Places()
    place = Place(0, 7, 5, 5)
    places.add(place)
    hand_out(place, 5, behind=3)
    place.done = place.position
    assert not place.back_to(10)  # it was not handed out
    assert place.back_to(7)
    assert (place.given, place.position, place.fetched, place.done) == (7, 7, 7, 7)
    assert places.done() == places.handed_out() == {0: 7}
    with pytest.raises(UsageError, match="came up to 7"):
        places.handed(0, 7)
    places.were_committed({0: 7})
    assert not place.back_to(6)
    assert (place.given, place.position, place.fetched, place.done) == (7, 7, 7, 7)
    places.lose(place)
    with pytest.raises(Fenced, match="handed out again"):
        places.handed(0, 6)
