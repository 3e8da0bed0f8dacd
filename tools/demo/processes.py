"""The demo's child processes, seen from the parent: started, heard, ordered, ended."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from warren.engine.errors import Error
from warren.workers.process import interpreter

END_S = 30.0


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put Ctrl-C and SIGTERM off until the block is done, so that what it starts is known to who has to end it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda which, _frame: came.append(which))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


class ChildFailed(Error):
    """A process of the demo ended with an error; the message holds what it said."""


class Child:
    """One child process: its last words by field, and whether it is done."""

    def __init__(self, name: str, module: str, task: msgspec.Struct, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.heard: dict[str, Any] = {}
        self.exit_code: int | None = None
        self._incoming = b""
        command = interpreter.command(f"warren.tools.demo.{module}", msgspec.json.encode(task).decode())
        with open(self.log, "ab") as log:
            # A session of its own: Ctrl-C comes to us, and we end the children in order.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=interpreter.environment(),
                start_new_session=True,
            )
        self._pidfd = os.pidfd_open(self.process.pid)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    @property
    def output(self) -> IO[bytes]:
        """The pipe of its standard output."""
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def is_done(self) -> bool:
        """It said that it has done its task."""
        return bool(self.heard.get("done"))

    def order(self, word: str) -> None:
        """Send a word."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(word.encode() + b"\n")
            self.process.stdin.flush()

    def finish(self) -> None:
        """Tell it that there will be nothing more."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def hear(self) -> list[dict[str, Any]]:
        """Return the lines that have come; notes the exit code at the end of the output."""
        lines = []
        while self.exit_code is None:
            try:
                data = os.read(self.output.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not data:
                self.wait(None)
                break
            *whole, self._incoming = (self._incoming + data).split(b"\n")
            for line in whole:
                fields = msgspec.json.decode(line, type=dict[str, Any])
                self.heard.update(fields)
                lines.append(fields)
        return lines

    def failure(self) -> ChildFailed:
        """Say why it ended."""
        if "message" in self.heard:
            return ChildFailed(f"{self.name}: {self.heard['message']}")
        try:
            last = self.log.read_text(errors="replace").strip().splitlines()[-15:]
        except OSError:
            last = []
        how = (
            f"signal {-self.exit_code}"
            if self.exit_code is not None and self.exit_code < 0
            else f"exit code {self.exit_code}"
        )
        return ChildFailed("\n  ".join([f"{self.name} ended with {how}; its last lines:", *last]))

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for its end, note the exit code; False when it still runs. Until close() its pid is nobody else's."""
        if not select.select([self._pidfd], [], [], timeout_s)[0]:
            return False
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        self.exit_code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return True

    def close(self) -> None:
        """Reap it, with what it may have left in its process group, and close the pipes."""
        self.finish()
        self.output.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._pidfd)


class Children:
    """All of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self.all: list[Child] = []

    def start(self, name: str, module: str, task: msgspec.Struct) -> Child:
        """Start one."""
        with uninterrupted():
            child = Child(name, module, task, self._folder)
            self.all.append(child)
            self._selector.register(child.output, selectors.EVENT_READ, child)
        return child

    def listen(self, timeout_s: float) -> list[tuple[Child, list[dict[str, Any]]]]:
        """Wait for words of any child; return who said what, and who has ended (its exit code is set)."""
        told = []
        for key, _events in self._selector.select(timeout_s):
            child: Child = key.data
            lines = child.hear()
            if child.exit_code is not None:
                self._selector.unregister(child.output)
            told.append((child, lines))
        return told

    def close(self) -> None:
        """End all: by the end of their input when they have done their task, else by SIGTERM, and at last by "
        "SIGKILL."""
        running = [child for child in self.all if not child.wait(0)]
        for child in running:
            child.finish()
            if not child.is_done:
                child.process.terminate()
        for child in running:
            child.wait(END_S)
        for child in self.all:
            child.close()
        self._selector.close()
