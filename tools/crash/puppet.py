"""A client in a process of its own that does what it is told, so that it can be killed: `… puppet DIRECTORY`.

Commands and answers are lines of JSON: [operation, argument …] → [answer]; ids and bodies in hexadecimal.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import warren
from warren.workers.process import interpreter

TIMEOUT_S = 30.0


class Puppet:
    """The side that tells."""

    def __init__(self, directory: Path, module: str = "warren.tools.crash.puppet") -> None:
        self.process = subprocess.Popen(
            interpreter.command(module, str(directory)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=interpreter.environment(),
        )

    def tell(self, *command: Any) -> None:
        """Say what to do, and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def ask(self, *command: Any) -> Any:
        """Say what to do, and return the answer. Raises RuntimeError when there is none."""
        self.tell(*command)
        return self.hear()

    def hear(self) -> Any:
        """The answer to the eldest command that was told. Raises RuntimeError when there is none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client ended with {self.process.wait()}")
        return json.loads(line)[0]

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self._forget()

    def close(self) -> None:
        """Let it leave in good order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._forget()

    def _forget(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:  # it never read its last command
                    continue


def perform(store: warren.Store, operation: str, arguments: list[Any]) -> Any:
    """One command of a puppet, or of anybody who has a store."""
    ids = [bytes.fromhex(text) for text in arguments[0]] if arguments else []
    if operation == "write":
        bodies = [bytes.fromhex(text) for text in arguments[1]]
        if len(ids) == 1:
            store.write(ids[0], bodies[0], timeout=TIMEOUT_S)
        else:
            store.write_many(ids, bodies, timeout=TIMEOUT_S)
    elif operation == "overtaken":
        store.write_many(ids, [bytes.fromhex(text) for text in arguments[1]], wait=False, timeout=TIMEOUT_S)
        store.remove(ids, timeout=TIMEOUT_S)
        store.barrier("synced", timeout=TIMEOUT_S)
    elif operation == "remove":
        store.remove(ids, timeout=TIMEOUT_S)
        store.barrier("synced", timeout=TIMEOUT_S)
    elif operation == "read":
        return [None if body is None else body.hex() for body in map(store.read, ids)]
    elif operation == "read_many":
        return [None if body is None else body.hex() for body in store.read_many(ids)]
    elif operation == "contains":
        return [store.contains(id, timeout=TIMEOUT_S) for id in ids]
    elif operation == "new_ids":
        return [store.new_id().hex() for _ in range(int(arguments[1]))]
    elif operation == "barrier":
        store.barrier("synced", timeout=TIMEOUT_S)
    else:
        raise ValueError(operation)
    return None


def main(argv: list[str]) -> int:
    """Do what standard input says until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with warren.attach(argv[0], timeout=TIMEOUT_S, name="puppet") as node:
        store = node.store()
        for line in sys.stdin:
            operation, *arguments = json.loads(line)
            print(json.dumps([perform(store, operation, arguments)]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
