"""What has to become of half messages: logs of those who prepare and finish them (half_actors.py), held against what is
there and what is pending.

Lines of a log, each written before what it announces or after what it reports; times as in topic_actors.py:

    p TOKEN TOPIC TIME              is about to be prepared
    d TOKEN TIME ID                 was prepared, with this id
    C TOKEN · R TOKEN               somebody is about to commit it, to roll it back
    + TOKEN QUEUE OFFSET POSITION   was committed, and lies there: told by a commit, or by a rollback that came too late
    - TOKEN                         was rolled back: told by a rollback, or by a commit that came too late
    a TOKEN ASKED ANSWER            somebody is asked what becomes of it, and is about to answer so
    s TOPIC QUEUE OFFSET:TOKEN …    a reader found these for the first time

Judged at the end (`judge_halves`):

- what was committed is there once, where everybody was told, and is not pending; what was rolled back is neither
- nothing is there that nobody wanted to commit; nothing is gone that nobody wanted to roll back, or was asked for
- what was prepared and not finished is pending, with its id; what was never confirmed may be pending or not
- nobody is told both; what a reader found is there, at this place
- in the log (`judge_outcomes`) at most one record says what became of a half message, and it says the same
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from warren.tools.crash.topic_log import HALF_ASIDE, Logged, Waits, is_commit
from warren.tools.crash.topic_messages import parsed

if TYPE_CHECKING:
    from warren.tools.crash.topic_judge import There

COMMIT, ROLLBACK, UNKNOWN = "commit", "rollback", "unknown"
#: what became of a half message, as the log says it
COMMITTED, ROLLED_BACK, PUT_ASIDE, PENDING = "committed", "rolled back", "put aside", "pending"
Place = tuple[int, int, int]
"""Queue, offset, position."""


@dataclass(slots=True)
class Prepared:
    """A half message, and what is known of it."""

    token: str
    topic: str
    message_id: str = ""  #: "": whoever prepared it was not told
    commits: int = 0  #: somebody wanted to commit it so often
    rollbacks: int = 0
    committed: set[Place] = field(default_factory=set)  #: what somebody was told
    rolled_back: bool = False  #: somebody was told so
    answers: list[str] = field(default_factory=list)

    @property
    def wanted(self) -> bool:
        """Whether somebody may have committed it."""
        return bool(self.commits) or COMMIT in self.answers

    @property
    def unwanted(self) -> bool:
        """Whether somebody may have rolled it back, or it may have been put aside."""
        return bool(self.rollbacks) or bool(self.answers)

    @property
    def untouched(self) -> bool:
        """Whether nobody has done anything with it."""
        return not (self.commits or self.rollbacks or self.answers)


@dataclass
class Halves:
    """What the logs say."""

    by_token: dict[str, Prepared] = field(default_factory=dict)
    seen: set[tuple[str, int, int, str]] = field(default_factory=set)  #: topic, queue, offset, token
    complaints: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    questions: int = 0
    right: int = 0

    def take(self, words: Sequence[str]) -> None:
        """One line of a log."""
        kind = words[0]
        if kind == "p":
            self._of(words[1]).topic = words[2]
        elif kind == "d":
            self._of(words[1]).message_id = words[3]
        elif kind in ("C", "R"):
            self._of(words[1]).commits += kind == "C"
            self._of(words[1]).rollbacks += kind == "R"
        elif kind == "+":
            queue, offset, position = map(int, words[2:])
            self._of(words[1]).committed.add((queue, offset, position))
        elif kind == "-":
            self._of(words[1]).rolled_back = True
        elif kind == "a":
            self._of(words[1]).answers.append(words[3])
            self.questions += 1
        elif kind == "s":
            places = (word.split(":") for word in words[3:])
            self.seen.update((words[1], int(words[2]), int(offset), token) for offset, token in places)
        elif kind == "b":
            self.complaints.append(" ".join(words[1:]))
        elif kind == "e":
            self.errors.append(words[1].rstrip(":"))
        elif kind == "q":
            self.right += int(words[1])

    def _of(self, token: str) -> Prepared:
        """Logs are read one after the other: another actor's may speak first of it."""
        return self.by_token.setdefault(token, Prepared(token, ""))


@dataclass
class HalvesVerdict:
    """What the judge counted."""

    prepared: int = 0  #: confirmed
    committed: int = 0  #: that are there
    rolled_back: int = 0  #: confirmed, or neither there nor pending
    checked: int = 0  #: that are there, or gone, because of an answer, or for want of one
    pending: int = 0
    wrong: list[str] = field(default_factory=list)


def judge_halves(
    there: Mapping[str, Sequence[Sequence[There]]], pending: Mapping[str, Mapping[str, str]], halves: Halves
) -> HalvesVerdict:
    """Compare, at the end. `there`: of each topic, of each queue, the records by offset; `pending`: of each topic, of
    each token that is listed, the id.
    """
    verdict = HalvesVerdict()
    places: dict[str, tuple[str, Place]] = {}
    for topic, queues in there.items():
        for queue, records in enumerate(queues):
            for offset, record in enumerate(records):
                token = record.message.token
                if token in places:
                    verdict.wrong.append(f"doubled: {token} is at {places[token]} and in {topic}/{queue}:{offset}")
                places[token] = topic, (queue, offset, record.position)
    listed = {token: (topic, id) for topic, tokens in pending.items() for token, id in tokens.items()}
    announced = {token for token, half in halves.by_token.items() if half.topic}
    for token in sorted((places.keys() | listed.keys()) - announced):
        verdict.wrong.append(f"invented: {token} is there or pending, and nobody prepared it")
    for half in halves.by_token.values():
        verdict.wrong += _wrong(half, places.get(half.token), listed.get(half.token))
        verdict.prepared += bool(half.message_id)
        verdict.committed += half.token in places
        verdict.pending += half.token in listed
        gone = half.token not in places and half.token not in listed and bool(half.message_id)
        verdict.rolled_back += gone
        finished = half.commits if half.token in places else half.rollbacks
        verdict.checked += bool(half.answers) and not finished and half.token not in listed
    for topic, queue, offset, token in halves.seen:
        if places.get(token, ("", (0, 0, 0)))[0] != topic or places[token][1][:2] != (queue, offset):
            verdict.wrong.append(f"unseen: a reader had {token} in {topic}/{queue}:{offset}; it is {places.get(token)}")
    return verdict


def _wrong(half: Prepared, place: tuple[str, Place] | None, listed: tuple[str, str] | None) -> Iterator[str]:
    token = half.token
    if (half.committed and half.rolled_back) or len(half.committed) > 1:
        yield f"both: {token} was said to be at {sorted(half.committed)}" + ", and rolled back" * half.rolled_back
    if place is not None and listed is not None:
        yield f"both: {token} is at {place}, and pending"
    for where in (place, listed):
        if where is not None and where[0] != half.topic:
            yield f"strayed: {token} was prepared for {half.topic}, and is in {where[0]}"
    if half.committed and place is None:
        yield f"lost: {token} was committed at {sorted(half.committed)} in {half.topic}, and is not there"
    elif place is not None and half.committed - {place[1]}:
        yield f"moved: {token} was committed at {sorted(half.committed)}, and is at {place}"
    if half.rolled_back and (place or listed):
        yield f"back: {token} was rolled back, and is {'pending' if place is None else f'at {place}'}"
    if place is not None and not half.wanted:
        yield f"undecided: {token} is at {place}, and nobody wanted to commit it"
    if listed is not None and half.message_id and listed[1] != half.message_id:
        yield f"wrong: {token} has id {half.message_id}, and is pending as {listed[1]}"
    if half.message_id and place is None and listed is None and not half.unwanted:
        yield f"lost: {token} was prepared ({half.message_id}) for {half.topic}, and is neither there nor pending"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A record of the log that says what became of a half message."""

    half: int  #: position of its record
    kind: str  #: COMMITTED, ROLLED_BACK or PUT_ASIDE
    position: int  #: of the record


def outcomes_of(log: Sequence[Logged]) -> tuple[dict[int, str], list[Outcome]]:
    """What the log says of half messages: position → token of each, and what became of them. `log`: all of it, as
    `walked` gives it.
    """
    waits = Waits(log)
    messages = {position: parsed(record.body) for position, record in waits.halves.items()}
    prepared = {position: "?" if message is None else message.token for position, message in messages.items()}
    return prepared, [
        Outcome(half, _kind(record), record.position) for half, records in waits.outcomes.items() for record in records
    ]


def _kind(record: Logged) -> str:
    if is_commit(record):
        return COMMITTED
    return PUT_ASIDE if record.topic == HALF_ASIDE else ROLLED_BACK


def judge_outcomes(
    prepared: Mapping[int, str], outcomes: Iterable[Outcome], halves: Halves, pending: Iterable[str]
) -> Iterator[str]:
    """What the log says, against what people were told. `prepared`: position → token of each half message in it;
    `pending`: tokens that are listed.
    """
    found: dict[str, Outcome] = {}
    listed = set(pending)
    for outcome in outcomes:
        token = prepared.get(outcome.half)
        if token is None:
            yield f"log: {outcome} speaks of no half message"
        elif token in found:
            yield f"log: two records say what became of {token}: {found[token]} and {outcome}"
        else:
            found[token] = outcome
    for token in prepared.values():
        half = halves.by_token.get(token)
        kind = found[token].kind if token in found else PENDING
        if half is None:
            yield f"log: {token} was prepared by nobody"
            continue
        if (kind == PENDING) is not (token in listed):
            yield f"log: {token} is {kind}, and is {'' if token in listed else 'not '}listed as pending"
        told = {COMMITTED} if half.committed else {ROLLED_BACK, PUT_ASIDE} if half.rolled_back else {kind}
        if kind not in told:
            yield f"log: {token} is {kind}, and somebody was told something else: {half}"
        if kind == ROLLED_BACK and not half.rollbacks and ROLLBACK not in half.answers:
            yield f"log: {token} is {kind}, and nobody wanted that: {half}"
        if kind == PUT_ASIDE and not half.answers:
            yield f"log: {token} is {kind}, and nobody was asked: {half}"
    known = set(prepared.values())
    for token, half in halves.by_token.items():
        if half.message_id and token not in known:
            yield f"log: {token} was prepared ({half.message_id}), and the log has nothing of it"
