"""Breadth-first search over the states of a model.

A model is anything with `start()`, `steps(state)` and `wrong(state)`; `rest(state)` is asked for states that have no
step left but kills. The search visits every state that can be reached, counts them, and stops at the first one
that is wrong, with the shortest way there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Model(Protocol[S]):
    """What the search wants to know of a model."""

    def start(self) -> S:
        """The state in which everything begins."""

    def steps(self, state: S) -> Iterator[tuple[str, S]]:
        """Every (name, next state); the name of a step that need not happen (a kill, a reader) begins with `~`."""

    def wrong(self, state: S) -> str | None:
        """Which invariant the state breaks, None if none."""

    def rest(self, state: S) -> str | None:
        """Which expectation a state breaks in which nothing more will happen by itself."""


@dataclass(frozen=True)
class Found(Generic[S]):
    """What a search found: counts, and the first violation with the steps that lead to it."""

    states: int
    transitions: int
    rests: int
    depth: int
    violation: str | None
    trace: tuple[str, ...]
    last: S | None

    def __str__(self) -> str:
        counts = f"{self.states:,} states, {self.transitions:,} transitions, {self.rests:,} at rest, depth {self.depth}"
        if self.violation is None:
            return f"{counts}: no violation"
        steps = "".join(f"\n    {i:2} {step}" for i, step in enumerate(self.trace, 1))
        return f"{counts}: {self.violation}{steps}\n    in {self.last}"


def search(model: Model[S], states_max: int = 5_000_000) -> Found[S]:
    """Visit every reachable state; raises OverflowError beyond `states_max` (the model is too large to be a proof)."""
    first = model.start()
    came: dict[S, tuple[S, str] | None] = {first: None}
    waiting = deque([(first, 0)])
    transitions = rests = depth = 0

    def trace_of(state: S) -> tuple[str, ...]:
        steps = []
        at: S = state
        while (before := came[at]) is not None:
            steps.append(before[1])
            at = before[0]
        return tuple(reversed(steps))

    def found(violation: str | None, state: S | None) -> Found[S]:
        trace = trace_of(state) if state is not None else ()
        return Found(len(came), transitions, rests, depth, violation, trace, state)

    violation = model.wrong(first)
    if violation:
        return found(violation, first)
    while waiting:
        state, depth = waiting.popleft()
        goes_on = False
        for name, following in model.steps(state):
            transitions += 1
            goes_on = goes_on or not name.startswith("~")
            if following in came:
                continue
            if len(came) >= states_max:
                raise OverflowError(f"more than {states_max:,} states")
            came[following] = (state, name)
            violation = model.wrong(following)
            if violation:
                return found(violation, following)
            waiting.append((following, depth + 1))
        if not goes_on:
            rests += 1
            violation = model.rest(state)
            if violation:
                return found(violation, state)
    return found(None, None)
