"""A process that has the command line imported already: it forks one for each command and each node that a test runs.

A start of Python with its imports costs more than most commands do. What runs is `python -m warren` all the same: a
process of its own, with its own words, environment, folder, streams and exit code, and with that command line in /proc.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import NoReturn, TextIO

REQUEST_BYTES = 1 << 20
COMMAND_BYTES = 4096  # of a command line in /proc
MARK = "WARREN_TEST_RUN"  # of this run's processes; the lanes of pytest change it at their start
MODULES = ("bindings", "check", "inspect", "main", "messages", "node", "queues", "topics")
_lock = threading.Lock()
_server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None
#: how the variables begin that Python, the loader of libraries, or the C library look at when a process starts
_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "GCONV_", "LANG", "LC_", "TZ", "WARREN_")


class TimedOut(Exception):
    """A command did not end in time, and was killed."""


class Forked:
    """A command that runs: what tests use of subprocess.Popen, for one that is another process's child."""

    def __init__(
        self,
        words: list[str],
        streams: tuple[int, int, int],
        environment: dict[str, str],
        folder: str = "",
        user: tuple[int, tuple[int, ...]] | None = None,
    ) -> None:
        """`words`: behind `python`. `folder`: where it runs and finds modules, not here. `user`: number and groups of
        who it runs as.
        """
        self.args = words
        self.returncode: int | None = None
        self._told, its = socket.socketpair()
        told = {"words": words, "environment": environment, "folder": folder or os.getcwd(), "user": user}
        request = json.dumps(told).encode()
        try:
            with its, _lock:
                socket.send_fds(_started(), [request], [its.fileno(), *streams])
            self.pid = self._number()
        except BaseException:
            self._told.close()
            raise

    def _number(self) -> int:
        received = self._told.recv(4, socket.MSG_WAITALL)
        assert len(received) == 4, "the process that forks commands is gone"
        return int.from_bytes(received, "little", signed=True)

    def poll(self) -> int | None:
        """Its exit code (negative: what killed it); None while it runs."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = self._number()
            self._told.close()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end: its exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not select.select([self._told], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal while it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _at_start() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_AT_START) and name != MARK}


_environment = _at_start()


def same_environment() -> bool:
    """No test has changed what a start of a process may go by."""
    return _at_start() == _environment


def run(words: list[str], given: str, timeout_s: float) -> tuple[int, str, str]:
    """Run `warren` with these words: its exit code (negative: what killed it), and what it printed on both streams."""
    (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
    try:
        process = Forked(["-m", "warren", *words], (stdin, stdout, stderr), dict(os.environ))
    finally:
        for stream in (stdin, stdout, stderr):
            os.close(stream)
    given_bytes = threading.Thread(target=_give, args=(to_stdin, given.encode()), daemon=True)
    given_bytes.start()
    try:
        with open(from_stdout) as out, open(from_stderr) as error:
            said, complained = rest_of(out, error, timeout=timeout_s)
        return process.wait(timeout_s), said, complained
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout_s)
        raise TimedOut(f"{words}: still running after {timeout_s} s") from None


def _give(pipe: int, left: bytes) -> None:
    try:
        while left:
            left = left[os.write(pipe, left) :]
    except BrokenPipeError:
        pass  # it ended without reading all
    os.close(pipe)


def rest_of(*pipes: TextIO, timeout: float) -> list[str]:
    """All that comes out of pipes up to their ends. Raises subprocess.TimeoutExpired."""
    found = [""] * len(pipes)

    def take(number: int) -> None:
        found[number] = pipes[number].read()

    threads = [threading.Thread(target=take, args=(number,), daemon=True) for number in range(len(pipes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        if thread.is_alive():
            raise subprocess.TimeoutExpired("reading what it prints", timeout)
    return found


def _started() -> socket.socket:
    global _server
    if _server is None:
        requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            # the last word is where the command lines of its children are written
            command = [sys.executable, "-P", str(Path(__file__).resolve()), str(its.fileno()), "-" * COMMAND_BYTES]
            others = {name: value for name, value in os.environ.items() if not name.startswith(_AT_START)}
            environment = others | _environment | {MARK: os.environ[MARK]}
            process = subprocess.Popen(command, pass_fds=[its.fileno()], env=environment)
        _server = requests, process

        @atexit.register
        def end() -> None:
            requests.close()
            process.wait()

    return _server[0]


# ---- that process ---------------------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> list[str] | None:
    """Fork a process for each request, and tell its number and its exit code; in that process, return its words."""
    running: dict[int, tuple[int, int]] = {}  # pidfd → pid, and the socket of who waits
    events = select.poll()
    events.register(requests, select.POLLIN)
    while True:
        for descriptor, _event in events.poll():
            if descriptor != requests.fileno():
                pid, connection = running.pop(descriptor)
                events.unregister(descriptor)
                os.close(descriptor)
                _tell(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(connection)
                continue
            request, descriptors, _flags, _address = socket.recv_fds(requests, REQUEST_BYTES, 4)
            if not request:
                return None
            if (pid := os.fork()) == 0:
                requests.detach()
                return _become(json.loads(request), descriptors[1:])
            for stream in descriptors[1:]:
                os.close(stream)
            _tell(descriptors[0], pid)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, descriptors[0]
            events.register(pidfd, select.POLLIN)


def _tell(connection: int, number: int) -> None:
    try:
        os.write(connection, number.to_bytes(4, "little", signed=True))
    except BrokenPipeError:
        sys.stderr.write("nobody waits for a command any more\n")


def _become(request: dict, streams: list[int]) -> list[str]:
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    # made anew: those that are there go by what the streams were
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path.insert(0, request["folder"])
    _show([sys.executable, *request["words"]])
    if request["user"] is not None:
        become(*request["user"])
    return request["words"]


def _run(module: str) -> NoReturn:
    """Run it, and end as Python does, but for taking all objects apart, which would copy each page that holds one."""
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - as at the end of Python
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _show(command: list[str]) -> None:
    """This is the command line in /proc: it is read from where it lay at the start."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end: proc(5) counts the two before ")" and from 1
    shown = b"".join(os.fsencode(word) + b"\0" for word in command)[: end - begin - 1]
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


if __name__ == "__main__":
    for module in MODULES:
        import_module(f"warren.workers.cli.{module}")
    import_module("warren.workers.node.supervise")
    sys.path.append(str(Path(__file__).resolve().parent))
    become = import_module("other_user").become
    sys.path.pop()
    import_module("warren.workers.node.options").RealServers()
    gc.freeze()  # what is loaded stays: nobody looks through it again, and its pages stay shared
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        arguments = serve(listening)
    if arguments is not None:
        _m, module, *sys.argv[1:] = arguments
        _run(module)
