"""A Celery worker as a process of its own, and this process as its client."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from support.programs import session_of
from support.waiting import patience, wait_until

START_S, END_S = 60.0, 60.0


class Worker:
    """`celery -A support.celery_tasks worker` with `options`; a context manager that ends it warmly."""

    READY = "ready."  #: what it logs when it has started

    def __init__(self, folder: Path, broker: str, *options: str, backend: str | None = None, name: str = "w") -> None:
        self.folder = folder
        self.log = folder / f"{name}.log"
        self.marks = folder / "marks"
        self.name = f"{name}@tests"
        self.options = options or ("--concurrency", "2")
        self.environment = os.environ | {
            "WARREN_BROKER": broker,
            "WARREN_BACKEND": backend or broker,
            "WARREN_MARKS": str(self.marks),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start it and wait until it is ready."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "support.celery_tasks", *self.command(), "-l", "info"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )
        self.wait_for(self.READY)

    def command(self) -> list[str]:
        """The command of Celery, with its options."""
        return ["worker", "-n", self.name, *self.options]

    def said(self) -> str:
        """What it has logged."""
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Until it has logged something."""

        def there() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.said()
            return text in self.said()

        wait_until(there, START_S, what=f"{text!r} in the log of the worker")

    @property
    def pid(self) -> int:
        """The process that consumes."""
        assert self.process is not None
        return self.process.pid

    def children(self) -> list[int]:
        """The processes of its pool."""
        return [child.pid for child in psutil.Process(self.pid).children()]

    def marked(self) -> list[str]:
        """What its tasks have marked."""
        return self.marks.read_text().splitlines() if self.marks.exists() else []

    def kill(self) -> None:
        """All of it, at once."""
        assert self.process is not None
        for process in session_of(self.pid):
            process.kill()
        self.process.wait(END_S)
        self._ended()

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Warmly (SIGTERM), or coldly (SIGQUIT); returns when all of it has ended."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """Until all of it has ended."""
        assert self.process is not None
        try:
            self.process.wait(END_S * patience())
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the worker did not end:\n{self.said()}") from None
        self._ended()

    def _ended(self) -> None:
        assert self.process is not None
        leader = self.process.pid
        wait_until(lambda: not session_of(leader), END_S, what="the end of the pool's processes")

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is not None and self.log.exists():
            print(self.said())
        self.stop()


class Beat(Worker):
    """`celery -A support.celery_tasks beat`: it sends mark_it("tick") a few times in a second."""

    READY = "beat: Starting..."

    def command(self) -> list[str]:
        """The command of Celery, with its options."""
        return ["beat", "-s", str(self.folder / "schedule"), "--pidfile", ""]
