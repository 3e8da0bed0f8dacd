"""Topics and queues of a sink as lists, with what a killed client leaves: commands that are executed when it is
dead.
"""

import random
from dataclasses import dataclass, field

from warren.engine.transactions.parts import Destination, Rows
from warren.engine.transactions.sink import Mark
from warren.engine.transactions.state import Place, Roller

QUEUE = "queue"


class Killed(BaseException):
    """The process is dead: no handler of errors sees it."""


@dataclass
class Message:
    body: bytes
    mark: str


@dataclass
class World:
    """What outlives processes: the logs of topics, queues with the ids that they have seen, and what clients
    submitted.
    """

    rng: random.Random
    logs: dict[Destination, list[Message]] = field(default_factory=dict)
    seen: dict[Destination, set[str]] = field(default_factory=dict)
    submitted: dict[Roller, list[tuple[Destination, Message]]] = field(default_factory=dict)
    clients: int = 0
    steps: int = 0
    die_at: int = -1
    dead: bool = False

    def step(self) -> None:
        """A point at which a process can be killed: then none of its handlers does anything any more."""
        self.steps += 1
        self.dead = self.dead or self.steps == self.die_at
        if self.dead:
            raise Killed

    def execute(self, roller: Roller, most: int | None = None) -> None:
        """The servers take commands of a client, in order."""
        queue = self.submitted.get(roller, [])
        for destination, message in queue[:most]:
            if destination.kind == QUEUE:
                if message.mark in self.seen.setdefault(destination, set()):
                    continue
                self.seen[destination].add(message.mark)
            self.logs.setdefault(destination, []).append(message)
        del queue[:most]

    def bodies(self) -> dict[Destination, list[bytes]]:
        """Return what readers see in the end: all that living and dead clients submitted is executed."""
        for roller in self.submitted:
            self.execute(roller)
        return {destination: [message.body for message in log] for destination, log in self.logs.items()}


class ListTargets:
    """`Targets` of one process."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.clients += 1
        self._me = Roller(world.clients % 3, world.clients, 1, 1)
        world.submitted[self._me] = []

    def me(self) -> Roller:
        return self._me

    def settle(self, roller: Roller) -> None:
        self._world.execute(roller)

    def begin(self, destination: Destination) -> int:
        return len(self._world.logs.get(destination, []))

    def present(self, place: Place, mark: Mark, progressed: float, again: bool) -> tuple[int, int]:
        if place.destination.kind == QUEUE:
            return place.done, 0
        log = self._world.logs.get(place.destination, [])[place.start :]
        begins = mark.property(0)[:-1]
        found = [at for at, message in enumerate(log) if message.mark.startswith(begins)]
        for n, at in enumerate(found, place.done):
            assert int(log[at].mark.removeprefix(begins)) <= n
        return place.done + len(found), place.start + (found[-1] + 1 if found else 0)

    def append(self, rows: Rows, mark: Mark, n: int) -> None:
        self._world.step()
        queue = rows.destination.kind == QUEUE
        for i, body in enumerate(rows.bodies):
            told = mark.message_id(n + i) if queue else mark.property(n)
            self._world.submitted[self._me].append((rows.destination, Message(body, told)))
        self._world.step()
        if self._world.rng.random() < 0.5:  # the server may be quick, or be killed
            self._world.execute(self._me, self._world.rng.randrange(len(rows.bodies) + 1))

    def flush(self) -> dict[Destination, int]:
        self._world.step()
        self._world.execute(self._me)
        self._world.step()
        return {each: len(log) for each, log in self._world.logs.items() if each.kind != QUEUE}
