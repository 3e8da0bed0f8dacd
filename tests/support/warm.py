"""A process that has the command line imported already: it forks one for each command that a test runs.

A start of Python with its imports costs more than most commands do. What runs is `python -m warren` all the same: a
process of its own, with its own words, environment, folder, streams and exit code.
"""

import atexit
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

REQUEST_BYTES = 1 << 20
MODULES = ("bindings", "check", "inspect", "main", "messages", "node", "queues", "topics")
_lock = threading.Lock()
_server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None


class TimedOut(Exception):
    """A command did not end in time, and was killed."""


def run(words: list[str], given: str, timeout_s: float) -> tuple[int, str, str]:
    """Run `warren` with these words: its exit code (negative: what killed it), and what it printed on both streams."""
    mine, its = socket.socketpair()
    (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
    request = json.dumps({"words": words, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
    with mine:
        with _lock:
            socket.send_fds(_started(), [request], [its.fileno(), stdin, stdout, stderr])
        its.close()
        for stream in (stdin, stdout, stderr):
            os.close(stream)
        said: dict[int, bytes] = {}

        def give() -> None:
            left = given.encode()
            try:
                while left:
                    left = left[os.write(to_stdin, left) :]
            except BrokenPipeError:
                pass  # it ended without reading all
            os.close(to_stdin)

        def take(stream: int) -> None:
            with open(stream, "rb") as pipe:
                said[stream] = pipe.read()

        threads = [threading.Thread(target=give, daemon=True)]
        threads += [threading.Thread(target=take, args=(stream,), daemon=True) for stream in (from_stdout, from_stderr)]
        for thread in threads:
            thread.start()
        mine.settimeout(timeout_s)
        pid = _number(mine)
        try:
            code = _number(mine)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise TimedOut(f"{words}: still running after {timeout_s} s") from None
        for thread in threads:
            thread.join(timeout_s)  # a process that it left may hold its streams
    return code, said[from_stdout].decode(), said[from_stderr].decode()


def _number(connection: socket.socket) -> int:
    received = connection.recv(4, socket.MSG_WAITALL)
    assert len(received) == 4, "the process that forks commands is gone"
    return int.from_bytes(received, "little", signed=True)


def _started() -> socket.socket:
    global _server
    if _server is None:
        requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            command = [sys.executable, "-P", str(Path(__file__).resolve()), str(its.fileno())]
            process = subprocess.Popen(command, pass_fds=[its.fileno()])
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
    return request["words"]


if __name__ == "__main__":
    for module in MODULES:
        import_module(f"warren.workers.cli.{module}")
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        arguments = serve(listening)
    if arguments is not None:
        sys.argv[1:] = arguments
        runpy.run_module("warren", run_name="__main__", alter_sys=True)
