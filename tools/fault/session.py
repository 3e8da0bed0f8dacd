"""One node with small files, and one fault after the other; then everything that was confirmed is looked for.

The campaign's lane runs under the library (shim.c) without a role, has everything loaded, and forks the supervisor and
the clients: a node is up in a tenth of a second. Each fault: armed; a client works, or processes are killed, stopped
and started meanwhile; lifted; another client shows that everything goes, and takes what there is. At the end the node
is stopped or killed, started, emptied, stopped and checked.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error
from warren.engine.kernel.atomic_file import NEW_SUFFIX
from warren.ipc.identity import Identity
from warren.ipc.region import RegionError
from warren.tools.crash.logs import Log, shared_id_of
from warren.tools.crash.victims import Node, names_in, send, system_v_left
from warren.tools.fault import shim, work
from warren.tools.fault.cases import HOWS, Case
from warren.tools.fault.ledger import Ledger
from warren.tools.fault.work import DURABLE, SOFT, SURE_TIMEOUT_S, TAKEN, Client, play_client, shorten_declarations
from warren.workers.cli import output
from warren.workers.cli.check import verify
from warren.workers.node.options import Options
from warren.workers.node.supervise import supervise
from warren.workers.process.control import ControlClient
from warren.workers.process.logs import redirect
from warren.workers.process.shared_objects import Segment, segments

SETTINGS: dict[str, Any] = {
    "workers": 1,
    "file_bytes": 256 << 10,
    "images_n": 2,
    "arena_bytes": 1 << 20,
    "message_bytes_max": 400_000,
    "ring_records": 1024,
    "delivery_slots": 512,
    "directory_rows": 4096,
    "dense_blocks": 64,
    "summary_rows": 1024,
    "index_rows": 1024,
    "journal_files_max": 2,
    "queue_memory_bytes": 128 << 10,
    "log_file_bytes": 1 << 20,
    "topic_ring_bytes": 512 << 10,
    "consume_queue_entries": 60,
    "index_slots": 20,
    "index_entries": 150,
    "retention_check_s": 0.05,  # so passes of compaction come while a client waits for them
    "compaction_dirty": 0.1,
    "compaction_tombstone_s": 0.3,
    "half_after_s": 0.1,
    "half_interval_s": 0.2,
    "half_checks_max": 0,  # none is put aside: each has its end by a call or an answer
}
STOP_TIMEOUT_S = 10.0
#: longest life of a client that works, and of one that shows that all goes
WORK_S, PROVE_S = 90.0, 240.0
UP_S = 120.0
ARMED_UP_S = 10.0
DIE_S = 45.0
LEAKS_S = 8.0
#: deaths in a session after which a supervisor would make its servers wait
DEATHS_MAX = 6
#: alarms, and what calls say, that only a start ends, as the manual says
NEED_A_START = ("sync", "server")
SAY_SO = ("SyncFailed", "could not take the message", "has failed")
_TRACE = re.compile(r"^Traceback .*?^(?=\S)(?!Traceback)([^\n]*)", re.MULTILINE | re.DOTALL)
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_ROOT = Path(__file__).resolve().parents[2]
_CRASH = re.compile(
    r"Fatal Python error: [^\n]*|was killed by SIG(?:SEGV|BUS|ABRT|ILL|FPE)|[^\n]*Assertion [^\n]*failed"
)


@dataclass
class Outcome:
    """What came of one case."""

    case: str
    fired: int = 0
    seconds: float = 0.0
    started: bool = False  #: the node had to be started again before all went
    violations: list[str] = field(default_factory=list)
    hits: list[str] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    tracebacks: list[str] = field(default_factory=list)


@dataclass
class Result:
    """What came of a session."""

    cases: list[Outcome] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)  #: found at the end: of any of its cases
    left: list[str] = field(default_factory=list)  #: cases that had no turn any more
    kept: str = ""  #: the directory, when there was a violation
    reads: int = 0
    confirmed: int = 0


class Session:
    """A node, its clients and what they wrote down."""

    def __init__(self, ruler: shim.Shim, folder: Path, seed: int) -> None:
        self.ruler = ruler
        self.rng = random.Random(seed)
        self.root = Path(tempfile.mkdtemp(prefix="warren-fault-", dir=folder)).resolve()
        self.directory = self.root / "node"
        self.began = int(time.time())
        self.ledger = Ledger()
        self.clients = 0
        self.deaths = 0
        self._keys: set[int] = set()
        self._log_ends: dict[Path, int] = {}
        self._supervisors: set[int] = set()
        self.violations: list[str] = []

    # -- processes ----------------------------------------------------------------------------------------------

    def start(self, patience_s: float = UP_S) -> str:
        """Start the node if it does not run; "" when it serves, else why not.

        While a fault is armed a node may try again and again, as it says in its log: nobody waits for that.
        """
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            self._supervise(write)
        os.close(write)
        self._supervisors.add(pid)
        said = b""
        deadline = time.monotonic() + patience_s
        with contextlib.closing(os.fdopen(read, "rb", buffering=0)) as pipe:
            while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                part = pipe.read(65536)
                said += part or b""
                if not part or b"\0" in said:
                    break
            else:
                if patience_s >= UP_S:
                    self.violations.append(f"hang: the start did not end within {UP_S:.0f} s")
        self._reap()
        self._remember()
        kind, _, text = said.decode(errors="replace").rstrip("\0").partition("\n")
        return "" if kind == "up" else text or "it ended without a word"

    def _supervise(self, write: int) -> None:
        """In a forked process: what `warren up --detach` does there."""
        code = 1

        def tell(kind: str, text: str) -> None:
            with contextlib.suppress(OSError):
                os.write(write, f"{kind}\n{text}\0".encode())

        def run() -> int:
            try:
                options = Options(
                    adopt=True,
                    changes=SETTINGS,
                    stop_timeout=STOP_TIMEOUT_S,
                    close_in_child=lambda: os.close(write),
                    detached=True,
                )
                return supervise(self.directory, options, ready=lambda line: tell("up", line))
            except Exception as error:
                tell(type(error).__name__, f"{type(error).__name__}: {error}")
                raise

        try:
            os.setsid()
            log = self.directory / "log"
            log.mkdir(mode=0o700, parents=True, exist_ok=True)
            redirect(log / "supervisor.log")
            shim.play("supervisor")
            code = output.run(run)
        finally:
            os._exit(code)

    def _reap(self) -> None:
        for pid in list(self._supervisors):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self._supervisors.discard(pid)

    def _remember(self) -> None:
        """The keys of the present semaphores, to look whether they go."""
        with contextlib.suppress(Error, OSError):
            self._keys.update(key for key in NodeDirectory(self.directory).read().semaphore_keys if key)

    def client(
        self, run: Callable[[Client], None], deadline_s: float, *, memory: bool = False, timeout: float = work.TIMEOUT_S
    ) -> bool:
        """Run a client to its end and read its log; True when it did everything."""
        self.clients += 1
        number, seed = self.clients, self.rng.getrandbits(32)
        log, said = self.root / f"client-{number}.log", self.root / f"client-{number}.err"
        pid = os.fork()
        if pid == 0:

            def whole() -> None:
                made = Client(self.directory, Log(str(log)), number, seed, timeout)
                made.memory = memory
                shorten_declarations(timeout)
                shim.play("client")
                run(made)

            play_client(said, whole)
        status = self._wait(pid, deadline_s)
        if status is None:
            os.kill(pid, signal.SIGUSR1)
            self._wait(pid, 1.0)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.violations.append(f"hang: a client did not end within {deadline_s:.0f} s: {_end_of(said)}")
        elif status:
            self.violations.append(f"foreign error: a client ended with {status}: {_end_of(said)}")
        done = self.ledger.read(log)
        self.violations += self.ledger.complaints
        self.ledger.complaints.clear()
        return done

    def _wait(self, pid: int, seconds: float) -> int | None:
        """Exit status of a child, None when it does not end."""
        pidfd = os.pidfd_open(pid)
        try:
            if not select.select([pidfd], [], [], seconds)[0]:
                return None
        finally:
            os.close(pidfd)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _node(self) -> Node | None:
        with contextlib.suppress(RegionError, OSError, Error, KeyError, ValueError):
            return Node(self.directory)
        return None

    def pids(self) -> dict[str, int]:
        """The processes of the node that live."""
        node = self._node()
        if node is None:
            return {}
        try:
            names = ("supervisor", "collector", *node.servers())
            return {name: found.pid for name in names if (found := node.find(name)) is not None}
        finally:
            node.superblock.close()

    def kill(self, *roles: str) -> None:
        """kill -9 the processes of some roles, all at once."""
        node = self._node()
        if node is None:
            return
        try:
            names = [name for name in ("supervisor", "collector", *node.servers()) if name.partition("-")[0] in roles]
            found = [identity for name in names if (identity := node.find(name)) is not None]
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for identity in found:
                    send(identity, number)
            self._until_dead(found)
            self.deaths += len(found)
        finally:
            node.superblock.close()

    def _until_dead(self, killed: list[Identity]) -> None:
        """On a busy machine who was killed lives on for a while, and would be taken for one who was not."""
        deadline = time.monotonic() + SURE_TIMEOUT_S
        while any(identity.alive() for identity in killed):
            self._reap()
            if time.monotonic() > deadline:
                self.violations.append(f"stuck: killed, and alive after {SURE_TIMEOUT_S:g} s: {killed}")
                return
            time.sleep(0.001)

    def kill_all(self) -> None:
        """kill -9 every process of the node, and of what a successor that was just starting makes of it."""
        self._until_free(lambda: self.kill("supervisor", "store", "worker", "topics", "collector"))

    def stop(self) -> None:
        """SIGTERM, and wait until the node has ended. One whose supervisor dies of the fault goes on under its
        successor, which is told, too.
        """
        told: set[Identity] = set()

        def tell() -> None:
            node = self._node()
            if node is not None:
                identity = node.find("supervisor")
                node.superblock.close()
                if identity is not None and identity not in told and send(identity, signal.SIGTERM):
                    told.add(identity)

        self._until_free(tell)

    def _until_free(self, tell: Callable[[], None] = lambda: None) -> None:
        """Until nobody holds the directory, and nobody is left."""
        directory = NodeDirectory(self.directory)
        deadline = time.monotonic() + DIE_S
        while directory.locked() or self._left():
            tell()
            self._reap()
            if time.monotonic() > deadline:
                left = self._left()
                self.violations.append(f"hang: the node did not end within {DIE_S:.0f} s; left: {_described(left)}")
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)
                return
            time.sleep(0.005)
        self._reap()

    def _left(self) -> list[int]:
        """Our processes that live: every process that had a role, and still has our control file in its environment."""
        mark = os.fsencode(f"{shim.CONTROL_VARIABLE}={self.ruler.file}")
        found = []
        for pid in self.ruler.pids() - {os.getpid()}:
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found

    def serves(self) -> bool:
        """The node is up, and all its servers are."""
        node = self._node()
        if node is None:
            return False
        try:
            servers = node.servers().keys() - {"topics"}  # they fail alone
            if node.find("supervisor") is None or any(node.find(name) is None for name in servers):
                return False
        finally:
            node.superblock.close()
        with contextlib.suppress(Error, OSError), ControlClient(self.directory) as control:
            return bool(control.call("ping", timeout=5.0)["state"] == "running")
        return False

    def ensure_up(self) -> bool:
        """Start the node if it does not serve. False: it cannot be started, which is a violation."""
        deadline = time.monotonic() + UP_S
        while True:
            if self.serves():
                return True
            why = self.start()
            if not why:
                return True
            if time.monotonic() > deadline:
                self.violations.append(f"stuck: the node does not start any more: {why}")
                return False
            time.sleep(0.05)

    # -- a session ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A node without faults, that has seen some work."""
        self.directory.mkdir(mode=0o700)
        self.ruler.begin(self.directory)
        why = self.start()
        if why:
            raise shim.ShimError(f"a node without faults does not start: {why}")
        done = self.client(_declare, PROVE_S, timeout=SURE_TIMEOUT_S)
        done &= self.client(Client.work, WORK_S, timeout=SURE_TIMEOUT_S)
        if not done:
            raise shim.ShimError(f"a node without faults does not work: {self.violations or self.root}")

    def run(self, cases: list[Case]) -> Result:
        """All cases, and the end. A violation keeps the directory."""
        result = Result()
        try:
            self.begin()
            waiting = list(cases)
            while waiting:
                outcome = self.case(waiting.pop(0))
                result.cases.append(outcome)
                if outcome.violations or self.deaths > DEATHS_MAX:
                    break
            result.left = [str(case) for case in waiting]
            self.end()
        finally:
            self.ruler.lift()
            for pid in self._left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
        result.violations = self.violations
        result.reads = self.ledger.reads
        result.confirmed = sum(map(len, self.ledger.confirmed.values())) + self.ledger.confirmed_in_topics()
        if result.violations or any(outcome.violations for outcome in result.cases):
            result.kept = str(self.root)
        else:
            shutil.rmtree(self.root)
        return result

    def case(self, case: Case) -> Outcome:
        """One fault, and the proof that it cost nothing."""
        outcome = Outcome(str(case))
        began = time.monotonic()
        before = self.pids()
        self._new_log_text()
        errors = Counter(self.ledger.errors)
        self.ruler.forget()
        every, times = HOWS[case.how]
        with shim.lifted(self.ruler):
            self.ruler.arm(0, case.role, case.call, case.klass, case.error, first=case.first, every=every, times=times)
            self.scene(case.scene, case.role)
            if case.after == "die":
                self.kill(victim(case.role))
        outcome.fired = self.ruler.failed()
        outcome.hits = [str(hit) for hit in self.ruler.hits()[:6]]
        if self.ensure_up():
            self._prove(outcome, same=before == self.pids())
        self.deaths += sum(before.get(name) not in (pid, None) for name, pid in self.pids().items())
        outcome.errors = dict(self.ledger.errors - errors)
        self._read_logs(outcome)
        outcome.violations, self.violations = self.violations, []
        outcome.seconds = round(time.monotonic() - began, 3)
        return outcome

    def scene(self, scene: str, role: str) -> None:
        """What happens while a fault is armed."""
        if scene == "kill":
            self.kill(victim(role))
        elif scene == "stop":
            self.stop()
            self.start(ARMED_UP_S)
        elif scene == "all":
            self.kill_all()
            self.start(ARMED_UP_S)
        memory = role == "client"
        self.client(Client.work, WORK_S, memory=memory)

    def _prove(self, outcome: Outcome, *, same: bool) -> None:
        held = self.ledger.held()
        self.ledger.alarms.clear()

        def prove(client: Client) -> None:
            client.prove(all_of_it=False, held=held, ends=self.ledger.ends())

        if not self.client(prove, PROVE_S, timeout=SURE_TIMEOUT_S):
            outcome.started = True
            alarms = list(self.ledger.alarms)
            said = self._last_errors()
            gone = "NodeNotRunning" in said and not self.serves()  # it was just ending, as it may after so many deaths
            if (
                not gone
                and not any(alarm.startswith(NEED_A_START) for alarm in alarms)
                and not any(word in said for word in SAY_SO)
            ):
                self.violations.append(f"stuck: not everything goes after the fault (alarms {alarms}): {said}")
            self.stop()
            self.ledger.failed()
            if not self.ensure_up():
                return
            same = False
            if not self.client(prove, PROVE_S, timeout=SURE_TIMEOUT_S):
                self.violations.append(f"stuck: not everything goes after a start: {self._last_errors()}")
                return
        same = same and self.pids() != {}
        if not same:
            self.ledger.forgive(SOFT)
        for name in TAKEN:
            missing = self.ledger.missing(name)
            if missing:
                self.violations.append(f"lost: {len(missing)} confirmed messages of {name}: {missing[:8]}")
                self.ledger.forgive(name)

    def _last_errors(self) -> str:
        lines = (self.root / f"client-{self.clients}.log").read_text(errors="replace").splitlines()
        return "; ".join(line for line in lines if line[:1] in "eE")[:600]

    def end(self) -> None:
        """A stop or a kill, a start, all messages, and nothing left: in the queues, on the disk, in memory."""
        if self.rng.random() < 0.5:
            self.kill_all()
        else:
            self.stop()
        self.ledger.forgive(SOFT)
        if not self.ensure_up():
            return
        held = self.ledger.held()
        ends = self.ledger.ends()

        def prove(client: Client) -> None:
            client.prove(all_of_it=True, held=held, ends=ends)

        if not self.client(prove, PROVE_S, timeout=SURE_TIMEOUT_S):
            self.violations.append(f"stuck: not everything goes at the end: {self._last_errors()}")
        for name in DURABLE:
            missing = self.ledger.missing(name)
            if missing:
                self.violations.append(f"lost: {len(missing)} confirmed messages of {name}: {missing[:8]}")
        self.stop()
        self._look_at_files()
        self._look_for_leaks()
        late = Outcome("")
        self._read_logs(late)
        self.violations += late.violations

    def _look_at_files(self) -> None:
        try:
            report = verify(NodeDirectory(self.directory))
        except Error as error:
            self.violations.append(f"check: {type(error).__name__}: {error}")
            return
        self.violations += [f"check: {problem}" for problem in report.problems]
        left = list(self.directory.rglob(f"*{NEW_SUFFIX}"))
        self.violations += [f"left behind: file {path.relative_to(self.directory)}" for path in left]

    def _look_for_leaks(self) -> None:
        node = f"warren-{shared_id_of(self.directory):012x}"
        deadline = time.monotonic() + LEAKS_S
        while True:
            left = [f"shared memory {name}" for name in names_in("/dev/shm", node)]
            left += [f"message queue {name}" for name in names_in("/dev/mqueue", node)]
            left += [f"System V {what}" for what in system_v_left(set(), self._keys)]
            left += [f"System V segment {item.id} of {item.size} bytes" for item in self._segments()]
            left += [f"process {what}" for what in _described(self._left())]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self.violations += [f"left behind: {what}" for what in left]

    def _segments(self) -> list[Segment]:
        """Those that a process of ours made: of that number, and since the session began."""
        pids = self.ruler.pids()
        return [item for item in segments() if item.creator in pids and item.changed >= self.began]

    # -- logs ---------------------------------------------------------------------------------------------------

    def _new_log_text(self) -> str:
        parts = []
        for path in sorted((self.directory / "log").glob("*.log*")):
            size = path.stat().st_size
            begin = self._log_ends.get(path, 0)
            self._log_ends[path] = size
            with open(path, "rb") as file:
                file.seek(begin if begin <= size else 0)
                parts.append(file.read().decode(errors="replace"))
        return "\n".join(parts).replace("\n    ", "\n")  # lines that go on

    def _read_logs(self, outcome: Outcome) -> None:
        text = self._new_log_text()
        for found in _TRACE.finditer(text):
            outcome.tracebacks.append(f"{found.group(1)[:120]} ({place_of(found.group())})")
        for crash in _CRASH.findall(text):
            if "/malloc/" not in outcome.case:  # without memory the core ends its process
                self.violations.append(f"crash: {crash[:300]}")


def place_of(trace: str) -> str:
    """Where a traceback comes from: its last line of Warren, and the one that raised, if that is a library's."""
    places = [(Path(path), line) for path, line in _PLACE.findall(trace)]
    ours = [(path, line) for path, line in places if path.is_relative_to(_ROOT) and ".venv" not in path.parts]
    told = dict.fromkeys(f"{path.name}:{line}" for path, line in (*ours[-1:], *places[-1:]))
    return " > ".join(told) or "?"


def victim(role: str) -> str:
    """Whom a scene kills for a role."""
    return "worker" if role == "starting" else role


def _declare(client: Client) -> None:
    if client.attach():
        client.declare()
        client.close()
        if not client.errors:
            client.log.write("z")


def _end_of(path: Path) -> str:
    return path.read_text(errors="replace").strip()[-1500:] if path.exists() else ""


def _described(pids: list[int]) -> list[str]:
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            state = next(
                line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("State")
            )
            found.append(f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()} {state[7:]}")
    return found


def count(ruler: shim.Shim, folder: Path) -> Counter[tuple[str, str, str, str]]:
    """How many calls each scene has: (scene, role, call, class) → calls, without faults."""
    from warren.tools.fault.cases import PLAYED, SCENES, to_fail

    found: Counter[tuple[str, str, str, str]] = Counter()
    session = Session(ruler, folder, 1)
    try:
        session.begin()
        for scene in SCENES:
            for role in ("client", "supervisor", "store", "worker", "topics", "collector", "starting"):
                if role in PLAYED and scene not in PLAYED[role]:
                    continue
                ruler.forget()
                ruler.count_memory(True)
                session.scene(scene, role)
                found |= Counter(
                    {key: number for key, number in to_fail(ruler.counts(), scene).items() if key[1] == role}
                )
                if not session.ensure_up() or not session.client(
                    lambda client: client.prove(all_of_it=False, held={}, ends={}), PROVE_S, timeout=SURE_TIMEOUT_S
                ):
                    raise shim.ShimError(f"without faults something is wrong: {session.violations}: {session.root}")
        session.end()
    finally:
        ruler.lift()
        for pid in session._left():
            os.kill(pid, signal.SIGKILL)
    if session.violations:
        raise shim.ShimError(f"without faults something is wrong: {session.violations}; see {session.root}")
    shutil.rmtree(session.root)
    return found
