"""The store as a Hypothesis state machine: random steps on a real node, compared with a dictionary after each.

Steps: single writes and batches by either of two clients (one of them a process that can be killed), writes whose
removes overtake them, removes, reads, `contains`, barriers, junk that makes files roll and empty; kill -9 of the store
server, collector, supervisor, of the client between and in the middle of its commands; a clean restart of the node.
The dictionary holds id → (body, references); what a client killed in the middle did is asked once it is swept.

Hypothesis takes examples that fail apart until few steps are left; `main` runs as many as wanted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import warren
from warren.ipc.layout import SERVER_STORE_PERSISTENT
from warren.tools.bench.harness import real_folder
from warren.tools.crash.puppet import Puppet, perform
from warren.tools.crash.victims import Node, send

SETTINGS = {
    "workers": 1,
    "file_bytes": 256 << 10,
    "arena_bytes": 2 << 20,
    "message_bytes_max": 128 << 10,
    "index_rows": 64,
    "ring_records": 256,
    "delivery_slots": 64,
}
IDS = 24
STRANGERS = 6
WAIT_S = 20.0
FILES_MAX = 40
ids_of = st.lists(st.integers(0, IDS + STRANGERS - 1), min_size=1, max_size=8, unique=True)
runs_of = st.tuples(st.integers(0, IDS - 2), st.integers(2, 12))
sizes = st.sampled_from((0, 1, 100, 3000, 60_000))
clients = st.booleans()


class Home:
    """The node that the examples of a run share, because a start takes longer than an example."""

    def __init__(
        self, folder: Path, settings: dict[str, Any] = SETTINGS, puppet: str = "warren.tools.crash.puppet"
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="warren-machine-", dir=folder))
        self.directory = self.root / "node"
        self._settings, self._puppet = settings, puppet
        self.kills = 0
        self.restarts = 0
        self.steps = 0
        self.open()

    def open(self) -> None:
        """Start or find the node, and both clients."""
        self.public = warren.open(self.directory, name="machine", idle_exit=60.0, **self._settings)
        self.node = Node(self.directory)
        self.puppet = Puppet(self.directory, self._puppet)

    def _leave(self) -> None:
        self.puppet.close()
        self.public.close()

    def restart(self) -> None:
        """A clean stop and start of the node."""
        self._leave()
        self._stop()
        self.restarts += 1
        self.open()

    def _stop(self) -> None:
        """SIGTERM once to each supervisor that there is: a second one would not let it finish."""
        deadline = time.monotonic() + WAIT_S
        told = None
        while self.node.all() and time.monotonic() < deadline:
            supervisor = self.node.find("supervisor")
            if supervisor is not None and supervisor != told and send(supervisor, signal.SIGTERM):
                told = supervisor
            time.sleep(0.01)
        while any(self.root.joinpath("node").glob("control.sock")) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.node.superblock.close()

    def kill(self, name: str) -> str | None:
        """kill -9 of a process of the node, or of the supervisor when that one has died too often. Who it was."""
        self.node.watch()
        if not self.node.may_die(name):
            name = "supervisor"
        victim = self.node.find(name)
        if victim is None or not send(victim, signal.SIGKILL):
            return None
        self.kills += 1
        while victim.alive():
            time.sleep(0.0005)
        return name

    def kill_client(self) -> None:
        """kill -9 of the puppet; the next one begins when the servers are done with it."""
        pid = self.puppet.process.pid
        self.puppet.kill()
        self.kills += 1
        deadline = time.monotonic() + WAIT_S
        while any(view.pid == pid for view in self.node.superblock.slots()):
            assert time.monotonic() < deadline, "a dead client's slot is not freed"
            time.sleep(0.002)
        self.puppet = Puppet(self.directory, self._puppet)

    def count(self, name: str) -> int:
        """A counter of the persistent store."""
        return self.node.superblock.server_get(SERVER_STORE_PERSISTENT, name)

    def close(self) -> None:
        """Stop the node and remove everything."""
        self._leave()
        self._stop()
        shutil.rmtree(self.root, ignore_errors=True)


#: set while a run lasts
home: Home | None = None


class StoreMachine(RuleBasedStateMachine):
    """One example."""

    def __init__(self) -> None:
        super().__init__()
        assert home is not None
        self.home = home
        self.bodies: dict[int, bytes] = {}
        self.references: dict[int, int] = {}
        self.version = 0

    @initialize()
    def begin(self) -> None:
        """Fresh ids: consecutive ones of a client, and strangers."""
        made = self._do(True, "new_ids", [], IDS)
        self.ids = [bytes.fromhex(text) for text in made] + [os.urandom(16) for _ in range(STRANGERS)]

    # -- helpers --------------------------------------------------------------------------------------------------

    def _do(self, puppet: bool, operation: str, numbers: list[int], *arguments: Any) -> Any:
        self.home.steps += 1
        ids = [self.ids[number].hex() for number in numbers]
        if puppet:
            return self.home.puppet.ask(operation, ids, *arguments)
        return perform(self.home.public.store(), operation, [ids, *arguments])

    def _body(self, number: int, size: int) -> bytes:
        self.version += 1
        return f"{number}.{self.version}.".encode() + bytes([self.version % 251]) * size

    def _written(self, numbers: list[int], bodies: list[bytes]) -> None:
        for number, body in zip(numbers, bodies, strict=True):
            if not self.references.get(number, 0):
                self.bodies[number] = body  # the first body wins while something holds the id
            self.references[number] = self.references.get(number, 0) + 1

    def _removed(self, numbers: list[int]) -> None:
        for number in numbers:
            self.references[number] = max(0, self.references.get(number, 0) - 1)

    def _wanted(self, number: int) -> str | None:
        return self.bodies[number].hex() if self.references.get(number, 0) else None

    def _write(self, puppet: bool, numbers: list[int], size: int) -> None:
        bodies = [self._body(number, size) for number in numbers]
        self._do(puppet, "write", numbers, [body.hex() for body in bodies])
        self._written(numbers, bodies)

    # -- steps ----------------------------------------------------------------------------------------------------

    @rule(puppet=clients, number=st.integers(0, IDS + STRANGERS - 1), size=sizes)
    def write(self, puppet: bool, number: int, size: int) -> None:
        self._write(puppet, [number], size)

    @rule(puppet=clients, run=runs_of, size=sizes)
    def write_batch(self, puppet: bool, run: tuple[int, int], size: int) -> None:
        first, count = run
        self._write(puppet, list(range(first, min(first + count, IDS))), size)

    @rule(puppet=clients, numbers=ids_of, size=sizes)
    def write_mixed(self, puppet: bool, numbers: list[int], size: int) -> None:
        self._write(puppet, numbers, size)

    @rule(puppet=clients, numbers=ids_of, size=sizes)
    def overtaken(self, puppet: bool, numbers: list[int], size: int) -> None:
        bodies = [self._body(number, size) for number in numbers]
        self._do(puppet, "overtaken", numbers, [body.hex() for body in bodies])

    @rule(puppet=clients, numbers=ids_of)
    def remove(self, puppet: bool, numbers: list[int]) -> None:
        self._do(puppet, "remove", numbers)
        self._removed(numbers)

    @rule(puppet=clients, numbers=ids_of)
    def read(self, puppet: bool, numbers: list[int]) -> None:
        self._compare(numbers, self._do(puppet, "read", numbers))

    @rule(puppet=clients)
    def read_all(self, puppet: bool) -> None:
        numbers = list(range(len(self.ids)))
        self._compare(numbers, self._do(puppet, "read_many", numbers))

    @rule(puppet=clients, numbers=ids_of)
    def contains(self, puppet: bool, numbers: list[int]) -> None:
        answers = self._do(puppet, "contains", numbers)
        assert answers == [self.references.get(number, 0) > 0 for number in numbers]

    @rule(puppet=clients)
    def barrier(self, puppet: bool) -> None:
        self._do(puppet, "barrier", [])

    @rule(count=st.integers(20, 90))
    def junk(self, count: int) -> None:
        """Files roll, and hold little but garbage."""
        store = self.home.public.store()
        ids = [store.new_id() for _ in range(count)]
        store.write_many(ids, [bytes(9000)] * count, timeout=WAIT_S)
        store.remove(ids, timeout=WAIT_S)

    @rule()
    def kill_store(self) -> None:
        self.home.kill("store")

    @rule()
    def kill_collector(self) -> None:
        self.home.kill("collector")

    @rule()
    def kill_supervisor(self) -> None:
        self.home.kill("supervisor")

    @rule()
    def kill_client(self) -> None:
        self.home.kill_client()

    @rule(numbers=ids_of, size=sizes)
    def kill_client_in_a_write(self, numbers: list[int], size: int) -> None:
        """All ids that had no reference before are there afterwards, each or not."""
        numbers = [number for number in numbers if not self.references.get(number, 0)]
        if not numbers:
            return
        bodies = [self._body(number, size) for number in numbers]
        self.home.puppet.tell("write", [self.ids[n].hex() for n in numbers], [body.hex() for body in bodies])
        self.home.kill_client()
        there = self._do(False, "contains", numbers)
        done = [(number, body) for number, body, found in zip(numbers, bodies, there, strict=True) if found]
        self._written([number for number, _ in done], [body for _, body in done])

    @rule(numbers=ids_of)
    def kill_client_in_a_remove(self, numbers: list[int]) -> None:
        """Ids with one reference lose it or not."""
        numbers = [number for number in numbers if self.references.get(number, 0) == 1]
        if not numbers:
            return
        self.home.puppet.tell("remove", [self.ids[number].hex() for number in numbers])
        self.home.kill_client()
        there = self._do(False, "contains", numbers)
        self._removed([number for number, found in zip(numbers, there, strict=True) if not found])

    @rule(dice=st.integers(1, 4))
    def restart(self, dice: int) -> None:
        if dice == 4:  # it takes long
            self.home.restart()

    @rule()
    def collect(self) -> None:
        """Give the collector the time to come down to a few files."""
        deadline = time.monotonic() + WAIT_S
        while self.home.count("files") > FILES_MAX and time.monotonic() < deadline:
            time.sleep(0.01)
        self.read_all(False)

    def _compare(self, numbers: list[int], answers: list[str | None]) -> None:
        for number, answer in zip(numbers, answers, strict=True):
            wanted = self._wanted(number)
            assert answer == wanted, (
                f"id {number} with {self.references.get(number, 0)} references reads {(answer or 'nothing')[:60]}, "
                f"not {(wanted or 'nothing')[:60]}"
            )

    def teardown(self) -> None:
        """Everything is what the dictionary says, and goes."""
        numbers = list(range(len(self.ids)))
        self._compare(numbers, self._do(True, "read", numbers))
        for times in range(1, max([0, *self.references.values()]) + 1):
            self._do(False, "remove", [number for number in numbers if self.references.get(number, 0) >= times])
        assert not any(self._do(False, "contains", numbers)), "references are left"


def run(folder: Path, examples: int, steps: int, *, shrink: bool = True) -> Home:
    """Run the machine on a node below `folder`; raises what the first failing example raises. Returns counts."""
    global home
    phases = (Phase.explicit, Phase.generate, *((Phase.shrink,) if shrink else ()))
    home = Home(folder)
    try:
        run_state_machine_as_test(
            StoreMachine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                phases=phases,
                suppress_health_check=list(HealthCheck),
                database=None,
                print_blob=True,
            ),
        )
        return home
    finally:
        home.close()


def main(argv: list[str] | None = None) -> int:
    """`python -m warren.tools.crash machine`."""
    parser = argparse.ArgumentParser(prog="warren.tools.crash machine", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--examples", type=int, default=100, help="examples (100)")
    parser.add_argument("--steps", type=int, default=50, help="steps of each (50)")
    parser.add_argument("--dir", help="folder for the node (a real disk)")
    options = parser.parse_args(argv)
    found = run(real_folder(options.dir), options.examples, options.steps)
    print(f"{options.examples} examples, {found.steps:,} commands, {found.kills:,} kills, {found.restarts} restarts")
    return 0
