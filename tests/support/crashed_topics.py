"""A short seeded history of a real node with topics, recorded, for tests that crash it (tools/crash/powerloss.py)."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from warren.tools.crash import powerloss
from warren.tools.crash.disk import State
from warren.tools.crash.recording import Record, Recorder
from warren.tools.crash.topic_afterwards import TopicChecker
from warren.tools.crash.topic_truth import TopicTruth

from support.long import rounds
from support.seeds import new_seed

STATES = rounds(40)
HISTORIES = 6


@dataclasses.dataclass
class Recorded:
    """A history of topics."""

    records: list[Record]
    root: str
    checker: TopicChecker

    def states(self, records: list[Record], count: int) -> Iterator[tuple[int, int, State]]:
        """(number, point, state) of so many crash states of these records."""
        return powerloss.states_of(records, self.root, count, "test")

    def wrong(self, records: list[Record], count: int = STATES) -> list[str]:
        """What a campaign finds in crash states of these records."""
        truth = TopicTruth(records)
        found = (self.checker.check(state, truth, point) for _number, point, state in self.states(records, count))
        return powerloss.named_early(records, self.root) + [text for wrong in found for text in wrong]


@contextlib.contextmanager
def recorded_topics(kind: str, operations: int, has: Callable[[Recorded], bool]) -> Iterator[Recorded]:
    """A history of so many operations. `kind`: of topics, a name in powerloss.TOPICS. `has`: whether there is in it
    what the tests look at. What a client does is drawn by lot, and when a pass of compaction ends is up to the machine:
    now and then there is not, and then another history is recorded.
    """
    for number in range(HISTORIES):
        seed = new_seed(number)
        with powerloss.scratch("warren-powerloss-test-") as folder:
            records, root = powerloss.record_history(Recorder(folder), folder, seed, operations, powerloss.TOPICS[kind])
            with contextlib.closing(TopicChecker(folder)) as checker:
                recorded = Recorded(records, root, checker)
                if has(recorded):
                    yield recorded
                    return
    raise AssertionError(f"none of {HISTORIES} histories has what the tests look at; the last seed was {seed}")
