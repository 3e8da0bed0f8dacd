"""Model of waiting that ends: callbacks of confirms, and waits for a queue that goes (design note 007).

Callbacks: who registers, who wakes
  users      threads, each adds one callback for a confirm: decides whether it waits, registers its listener and has it
             watched, puts the confirm among the listener's promises, says the lowest want
  listeners  one for all users, or one each (asyncio beside callbacks); a client's want is the lowest of all
  servers    two, each raises its horizon and rings the client's word. The last confirm needs both, by the same number
  thread     one; looks at the wants, sleeps on the word or, without wants, on the kicks; told, each listener collects
             what is done, calls it back, and says its next want
  end        of the attachment, at any time: every confirm is done then
Sleeps have no time limit in here, so that a lost wake shows.

Deletion: who learns that a queue is gone
  supervisor deletes the queue and may declare it anew: another id, another version of the catalog
  getters    of one client: look up the declaration, make (or share) a handle, wait with it in slices
  publisher  waits for room with a route that was made from a version of the catalog, then for its confirm
  reading    of the catalog: the version first, then the content; whoever does it holds the client's lock
  worker     executes a publish for an id that it knows; for another it reads the catalog first, and then says no
A slice is a step only when it finds something, so a rest in which somebody waits for what is not there shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

NONE = 99


@dataclass(frozen=True)
class Rules:
    """The rules; False breaks one."""

    registers_and_watches: bool = True  #: one step under one lock: who finds a listener finds it watched
    looks_again: bool = True  #: after saying a want, and after setting the word, one looks once more
    want_stays: bool = True  #: only the thread ends a want: the lowest stands for higher ones of others
    met_rings: bool = True  #: who learns while saying a want that it is met has the listener called
    thread_calls: bool = True  #: who adds a callback never calls those of others
    want_kicks: bool = True  #: a want that comes while the thread sleeps without any wakes it
    end_wakes: bool = True  #: the end of an attachment wakes the thread
    moves_by_server: bool = True  #: a promise moves when its next part is of another server, whatever its number
    slices_look: bool = True  #: who waits looks each slice whether the catalog has changed
    version_first: bool = True  #: the version is read before the content
    dead_is_seen: bool = True  #: who waits looks each slice at its handle, though another thread has read the catalog
    made_is_checked: bool = True  #: a handle is dead from the start when its queue went since the look
    all_are_told: bool = True  #: every handle of a queue is told, not only the one made last
    route_is_compared: bool = True  #: a publisher compares the version its route was made from, not what others saw
    unknown_is_answered: bool = True  #: a worker that has read the catalog says no to an id that it does not know


# ---- callbacks -------------------------------------------------------------------------------------------------------

DECIDE, REGISTER, ADD, WATCH, SAY, SAID, LOOK, RING, DONE = range(9)
OFF, TAKES, SETS, SLEEPS, TOLD, COLLECTS, SAYS, AFTER = range(8)


class Callbacks(NamedTuple):
    """State. Wants and horizons by server; heaps: (server, number, confirm)."""

    horizons: tuple[int, int]
    bells: tuple[bool, bool]
    ended: bool
    registered: frozenset[int]
    watched: frozenset[int]
    wants: tuple[int, int]
    heap: frozenset[tuple[int, int, int]]
    users: tuple[tuple[int, bool, tuple[tuple[int, int], ...]], ...]  # step, it registered, what it is about to say
    thread: int
    telling: frozenset[int]  # listeners
    saying: tuple[tuple[int, int], ...]
    word: bool
    kicked: bool
    idle: bool
    rung: frozenset[int]
    called: tuple[int, ...]
    broken: str


@dataclass(frozen=True)
class CallbackModel:
    """`confirms`: the parts (server, number) of each; one user thread adds the callback of each."""

    confirms: tuple[tuple[tuple[int, int], ...], ...]
    ends: bool = False
    apart: bool = False  #: each user has a listener of its own
    rules: Rules = Rules()

    def start(self) -> Callbacks:
        nobody: frozenset[int] = frozenset()
        return Callbacks(
            (0, 0), (False, False), False, nobody, nobody, (NONE, NONE), frozenset(),
            tuple((DECIDE, False, ()) for _confirm in self.confirms),
            OFF, nobody, (), False, False, False, nobody, (0,) * len(self.confirms), "",
        )  # fmt: skip

    def _listener(self, user: int) -> int:
        return user if self.apart else 0

    def _waits_for(self, s: Callbacks, confirm: int) -> tuple[int, int] | None:
        if s.ended:
            return None
        return next((part for part in self.confirms[confirm] if s.horizons[part[0]] <= part[1]), None)

    @staticmethod
    def _kick(s: Callbacks) -> Callbacks:
        woken = TAKES if s.thread == SLEEPS else s.thread
        return s._replace(kicked=s.thread not in (OFF, SLEEPS), thread=woken, idle=False if woken == TAKES else s.idle)

    def _ring_listener(self, s: Callbacks, listener: int) -> Callbacks:
        return self._kick(self._run(s)._replace(rung=s.rung | {listener}))

    @staticmethod
    def _run(s: Callbacks) -> Callbacks:
        return s._replace(thread=TAKES) if s.thread == OFF else s

    def _call(self, s: Callbacks, confirm: int) -> Callbacks:
        called = list(s.called)
        called[confirm] += 1
        return s._replace(called=tuple(called), broken=s.broken or ("called twice" if called[confirm] > 1 else ""))

    def _lowest(self, s: Callbacks, listeners: frozenset[int]) -> tuple[tuple[int, int], ...]:
        heap = [entry for entry in s.heap if self._listener(entry[2]) in listeners]
        return tuple(
            (server, min(number for of, number, _confirm in heap if of == server))
            for server in (0, 1)
            if any(of == server for of, _number, _confirm in heap)
        )

    def _collect(self, s: Callbacks, listeners: frozenset[int], caller: int | None = None) -> Callbacks:
        heap = set(s.heap)
        for entry in sorted(s.heap):
            server, number, confirm = entry
            if self._listener(confirm) not in listeners:
                continue
            place = self._waits_for(s, confirm)
            if place is None:
                heap.discard(entry)
                s = self._call(s, confirm)
                if caller is not None and caller != confirm:
                    s = s._replace(broken="a callback was called by who added another")
            elif place != (server, number) and (self.rules.moves_by_server or place[1] != number):
                heap.discard(entry)
                heap.add((*place, confirm))
        return s._replace(heap=frozenset(heap))

    def _say(self, s: Callbacks, want: tuple[int, int]) -> tuple[Callbacks, bool]:
        """The want is entered; True: it was met before."""
        server, number = want
        if s.ended or s.horizons[server] > number:
            return s, True
        wants = list(s.wants)
        wants[server] = min(wants[server], number)
        return s._replace(wants=(wants[0], wants[1])), False

    def _look(self, s: Callbacks, want: tuple[int, int]) -> tuple[Callbacks, bool]:
        """Entered; now once more. True: met."""
        server, number = want
        met = self.rules.looks_again and (s.ended or s.horizons[server] > number)
        if met and not self.rules.want_stays:
            wants = list(s.wants)
            wants[server] = NONE
            s = s._replace(wants=(wants[0], wants[1]))
        if s.idle and self.rules.want_kicks:
            s = self._kick(s)
        return s, met

    def steps(self, s: Callbacks) -> Iterator[tuple[str, Callbacks]]:
        for server in (0, 1):
            most = max((n + 1 for parts in self.confirms for of, n in parts if of == server), default=0)
            if s.horizons[server] < most and not s.ended:
                horizons = list(s.horizons)
                horizons[server] += 1
                bells = list(s.bells)
                bells[server] = True
                yield f"server {server} raises", s._replace(horizons=tuple(horizons), bells=tuple(bells))  # type: ignore[arg-type]
            if s.bells[server]:
                bells = list(s.bells)
                bells[server] = False
                rung = s._replace(bells=tuple(bells), word=False)  # type: ignore[arg-type]
                if s.word and s.thread == SLEEPS and not s.idle:
                    rung = rung._replace(thread=TAKES)
                yield f"server {server} rings", rung
        if self.ends and not s.ended:
            ended = s._replace(ended=True)
            yield "~end", self._kick(ended._replace(word=False)) if self.rules.end_wakes else ended
        for n, user in enumerate(s.users):
            for name, after in self._user(s, n, *user):
                yield f"user {n} {name}", after
        yield from self._thread(s)

    def _user(
        self, s: Callbacks, n: int, step: int, new: bool, saying: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[str, Callbacks]]:
        def at(state: Callbacks, step: int, new: bool = new, say: tuple[tuple[int, int], ...] = ()) -> Callbacks:
            users = list(state.users)
            users[n] = (step, new, say)
            return state._replace(users=tuple(users))

        rules = self.rules
        mine = self._listener(n)
        if step == DECIDE:
            if self._waits_for(s, n) is None:
                yield "finds it done", at(self._call(s, n), DONE)
            else:
                yield "goes on", at(s, REGISTER)
        elif step == REGISTER:
            fresh = mine not in s.registered
            registered = s._replace(registered=s.registered | {mine})
            if not fresh:
                yield "finds a listener", at(s, ADD, False)
            elif rules.registers_and_watches:
                watched = registered._replace(watched=s.watched | {mine})
                yield "registers and watches", at(self._kick(self._run(watched)), ADD)
            else:
                yield "registers", at(registered, ADD, True)
        elif step == ADD:
            place = self._waits_for(s, n)
            if place is None:  # as it was: who registered, and then finds it done, does not watch any more
                yield "finds it done after all", at(self._call(s, n), DONE)
            else:
                yield "adds", at(s._replace(heap=s.heap | {(*place, n)}), WATCH if new else SAY)
        elif step == WATCH:
            yield "watches", at(self._kick(self._run(s._replace(watched=s.watched | {mine}))), SAY)
        elif step == SAY:
            lowest = self._lowest(s, frozenset({mine}))
            yield "reads the lowest", at(s, SAID if lowest else DONE, say=lowest)
        elif step == SAID:
            entered, met = self._say(s, saying[0])
            yield "says it", at(entered, RING if met else LOOK, say=saying)
        elif step == LOOK:
            looked, met = self._look(s, saying[0])
            following = RING if met else SAID if saying[1:] else DONE
            yield "looks once more", at(looked, following, say=saying if met else saying[1:])
        elif step == RING:
            if not rules.thread_calls:
                yield "collects itself", at(self._collect(s, frozenset({mine}), n), SAY)
            else:
                yield "has it called", at(self._ring_listener(s, mine) if rules.met_rings else s, DONE)

    def _thread(self, s: Callbacks) -> Iterator[tuple[str, Callbacks]]:
        met = s.ended or any(s.horizons[server] > s.wants[server] for server in (0, 1))
        nobody: frozenset[int] = frozenset()
        if s.thread == TAKES:
            taken = s._replace(kicked=False, rung=nobody, telling=s.rung)
            yield "thread takes", taken._replace(thread=COLLECTS if s.rung else SETS)
        elif s.thread == SETS:
            wanting = any(want != NONE for want in s.wants)
            if s.ended and not s.heap and not s.rung:
                yield "thread ends", s._replace(thread=OFF, watched=nobody, registered=nobody)
            elif s.kicked or (met and (wanting or s.ended) and s.watched and self.rules.looks_again):
                yield "thread looks", s._replace(thread=TAKES if s.kicked else TOLD)
            elif not s.word and wanting:
                yield "thread sets the word", s._replace(word=True)
            else:
                yield "thread sleeps", s._replace(thread=SLEEPS, idle=not wanting)
        elif s.thread == TOLD:
            wants = tuple(NONE if s.ended or s.horizons[n] > want else want for n, want in enumerate(s.wants))
            yield "thread is told", s._replace(thread=COLLECTS, telling=s.watched, wants=wants)  # type: ignore[arg-type]
        elif s.thread == COLLECTS:
            collected = self._collect(s, s.telling)
            lowest = self._lowest(collected, s.telling)
            if any(collected.horizons[server] > number for server, number in lowest) and not s.ended:
                collected = collected._replace(broken="the thread collects what is not done, and is told again at once")
            yield "thread collects", collected._replace(thread=SAYS if lowest else TAKES, saying=lowest)
        elif s.thread == SAYS:
            entered, before = self._say(s, s.saying[0])
            yield "thread says", entered._replace(thread=COLLECTS if before else AFTER)
        elif s.thread == AFTER:
            looked, after = self._look(s, s.saying[0])
            rest = s.saying[1:]
            yield (
                "thread looks once more",
                looked._replace(thread=COLLECTS if after else SAYS if rest else TAKES, saying=() if after else rest),
            )

    def wrong(self, s: Callbacks) -> str | None:
        return s.broken or None

    def rest(self, s: Callbacks) -> str | None:
        for confirm, (step, _new, _say) in enumerate(s.users):
            if step != DONE:
                return f"user {confirm} stands still"
            if not s.called[confirm] and self._waits_for(s, confirm) is None:
                return f"confirm {confirm} is done, and its callback is never called"
        return None


# ---- deletion --------------------------------------------------------------------------------------------------------

LOOKS, MAKES, WAITS, GOT, NOT_FOUND = range(5)
ROUTES, ROOM, HANDED, ANSWERED = range(4)


class Deletion(NamedTuple):
    """State. Ids are versions of the catalog; 0: there is no such queue. A handle: (id, dead)."""

    version: int
    queue: int
    messages: bool
    seen: int
    known: int
    reading: tuple[int, int] | None  # who holds the lock, and what it read first
    getters: tuple[tuple[int, int, int], ...]  # step, id that it looked up, handle
    handles: tuple[tuple[int, bool], ...]
    last: int  # the handle that was made last
    publisher: tuple[int, int, int]  # step, id, version that the route was made from
    room: bool
    worker: int
    worker_queue: int


@dataclass(frozen=True)
class DeletionModel:
    """`getters` threads of one client, each with a handle of its own (`shared`: one for all)."""

    getters: int = 2
    shared: bool = True
    changes: tuple[str, ...] = ("delete", "declare")  #: what the supervisor does: "other" is another queue's
    rules: Rules = Rules()

    def start(self) -> Deletion:
        return Deletion(
            1, 1, False, 1, 1, None, ((LOOKS, 0, -1),) * self.getters, (), -1, (ROUTES, 0, 0), False, 1, 1
        )  # fmt: skip

    def _reads(self, s: Deletion, who: int) -> Iterator[tuple[str, Deletion]]:
        """The catalog is read under the lock: two looks at what the supervisor changes at any time."""
        if s.reading is None:
            first = s.version if self.rules.version_first else s.queue
            yield "begins to read the catalog", s._replace(reading=(who, first))
        elif s.reading[0] == who:
            if self.rules.version_first:
                seen, known = s.reading[1], s.queue
            else:
                seen, known = s.version, s.reading[1]
            told = range(len(s.handles)) if self.rules.all_are_told else [s.last]
            handles = tuple((id, dead or (n in told and id != known)) for n, (id, dead) in enumerate(s.handles))
            yield "has read the catalog", s._replace(reading=None, seen=seen, known=known, handles=handles)

    def steps(self, s: Deletion) -> Iterator[tuple[str, Deletion]]:
        if s.version <= len(self.changes):
            change, version = self.changes[s.version - 1], s.version + 1
            queue = 0 if change == "delete" else version if change == "declare" else s.queue
            yield f"supervisor: {change}", s._replace(version=version, queue=queue, messages=False)
        if s.worker != s.version:
            yield "worker reads the catalog", s._replace(worker=s.version, worker_queue=s.queue)
        if s.queue > 1 and not s.messages and s.publisher[0] == ANSWERED:
            yield "somebody publishes", s._replace(messages=True)
        if not s.room:
            yield "~room", s._replace(room=True)
        for n, getter in enumerate(s.getters):
            for name, after in self._getter(s, n, *getter):
                yield f"getter {n} {name}", after
        for name, after in self._publisher(s, *s.publisher):
            yield f"publisher {name}", after

    def _getter(self, s: Deletion, n: int, step: int, id: int, handle: int) -> Iterator[tuple[str, Deletion]]:
        def at(state: Deletion, *new: int) -> Deletion:
            getters = list(state.getters)
            getters[n] = (new[0], new[1], new[2])
            return state._replace(getters=tuple(getters))

        mine = s.reading is not None and s.reading[0] == n
        if mine or (s.seen != s.version and (step == LOOKS or (step == WAITS and self.rules.slices_look))):
            yield from self._reads(s, n)
        elif step == LOOKS:
            yield "looks", at(s, MAKES if s.known else NOT_FOUND, s.known, -1)
        elif step == MAKES and s.reading is None:  # under the lock
            usable = [k for k, (of, dead) in enumerate(s.handles) if of == id and not dead]
            if self.shared and usable:
                yield "shares a handle", at(s, WAITS, id, usable[-1])
            else:
                gone = self.rules.made_is_checked and id != s.known and s.seen == s.version
                made = s._replace(handles=(*s.handles, (id, gone)), last=len(s.handles))
                yield "makes a handle", at(made, WAITS, id, len(s.handles))
        elif step == WAITS:
            of, dead = s.handles[handle]
            learns = self.rules.dead_is_seen or s.seen != s.version
            if dead and learns:
                yield "is told", at(s, LOOKS, 0, -1)
            elif s.messages and of == s.queue:
                yield "gets", at(s, GOT, of, handle)

    def _publisher(self, s: Deletion, step: int, id: int, made: int) -> Iterator[tuple[str, Deletion]]:
        me = self.getters
        mine = s.reading is not None and s.reading[0] == me
        if mine or (s.seen != s.version and step in (ROUTES, ROOM)):
            for name, after in self._reads(s, me):
                compares = self.rules.route_is_compared
                again = step == ROOM and mine and not compares  # only who has read it itself begins anew
                yield name, after._replace(publisher=(ROUTES, 0, 0)) if again else after
        elif step == ROUTES:
            yield "routes", s._replace(publisher=(ROOM, s.known, s.seen) if s.known else (ANSWERED, 0, 0))
        elif step == ROOM:
            if self.rules.route_is_compared and made != s.seen:
                yield "begins anew", s._replace(publisher=(ROUTES, 0, 0))
            elif s.room:
                yield "hands over", s._replace(publisher=(HANDED, id, made))
        elif step == HANDED:
            if id == s.worker_queue:
                yield "is stored", s._replace(publisher=(ANSWERED, id, made))
            elif s.worker == s.version and self.rules.unknown_is_answered:
                yield "is told no", s._replace(publisher=(ANSWERED, 0, made))

    def wrong(self, s: Deletion) -> str | None:
        return None

    def rest(self, s: Deletion) -> str | None:
        for n, (step, id, handle) in enumerate(s.getters):
            if step == WAITS and s.handles[handle][0] != s.queue:
                return f"getter {n} waits for queue {id}, which is gone"
            if step in (LOOKS, MAKES):
                return f"getter {n} stands still"
        step, id, _made = s.publisher
        if step == HANDED:
            return "the publisher's confirm never ends"
        if step == ROOM and id != s.queue:
            return "the publisher waits for room in a queue that is gone"
        return None


ONE, TWO, BOTH = ((0, 0),), ((0, 1),), ((0, 1), (1, 1))
STANDARD: Mapping[str, Any] = {
    "two callbacks": CallbackModel((ONE, TWO)),
    "two listeners": CallbackModel((ONE, TWO), apart=True),
    "one needs both servers": CallbackModel((ONE, BOTH)),
    "the attachment ends": CallbackModel((ONE, TWO), ends=True),
    "deleted": DeletionModel(changes=("delete",), getters=3),
    "deleted after another change": DeletionModel(changes=("other", "delete")),
    "declared anew, one handle": DeletionModel(),
    "declared anew, a handle each": DeletionModel(shared=False),
}
DEEP: Mapping[str, Any] = {
    "three callbacks": CallbackModel((ONE, TWO, BOTH)),
    "three getters": DeletionModel(getters=3, shared=False),
    "deleted twice": DeletionModel(changes=("delete", "declare", "delete"), shared=False),
}
#: the model that shows what a broken rule does, soonest
WHERE: Mapping[str, str] = {
    "want_stays": "two listeners",
    "end_wakes": "the attachment ends",
    "moves_by_server": "one needs both servers",
    "slices_look": "deleted",
    "version_first": "deleted after another change",
    "dead_is_seen": "deleted",
    "made_is_checked": "deleted",
    "all_are_told": "declared anew, a handle each",
    "route_is_compared": "deleted",
    "unknown_is_answered": "deleted",
}
