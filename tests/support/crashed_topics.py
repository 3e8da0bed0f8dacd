"""A short seeded history of a real node with topics, recorded, for tests that crash it (tools/crash/powerloss.py)."""

import contextlib
import dataclasses
from collections.abc import Iterator

from warren.tools.crash import powerloss
from warren.tools.crash.disk import State
from warren.tools.crash.recording import Record, Recorder
from warren.tools.crash.topic_afterwards import TopicChecker
from warren.tools.crash.topic_truth import TopicTruth

from support.long import rounds
from support.seeds import new_seed

STATES = rounds(40)


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
        return [text for wrong in found for text in wrong]


@contextlib.contextmanager
def recorded_topics(kind: str, operations: int) -> Iterator[Recorded]:
    """A history of so many operations. `kind`: of topics, a name in powerloss.TOPICS."""
    seed = new_seed()
    with powerloss.scratch("warren-powerloss-test-") as folder:
        records, root = powerloss.record_history(Recorder(folder), folder, seed, operations, powerloss.TOPICS[kind])
        checker = TopicChecker(folder)
        yield Recorded(records, root, checker)
        checker.close()
