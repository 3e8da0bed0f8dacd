"""A RabbitMQ of one's own: the installed one (Debian's rabbitmq-server) as a child, in a temporary directory.

    with RabbitMQ() as server:
        server.port

It listens on loopback and shares nothing with a RabbitMQ that the machine may run: own ports, node name, cookie and
epmd. It is ended by the ids of its processes. For comparisons alone; nothing of Warren needs it.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

PROGRAMS = ("/usr/lib/rabbitmq/bin", "/usr/local/sbin", "/opt/rabbitmq/sbin")


class NoRabbitMQ(RuntimeError):
    """There is none here, or it does not start."""


def programs() -> Path:
    """Where its programs are; raises NoRabbitMQ."""
    for folder in (os.environ.get("RABBITMQ_BIN", ""), *PROGRAMS):
        if folder and (Path(folder) / "rabbitmq-server").exists():
            return Path(folder)
    raise NoRabbitMQ("there is no rabbitmq-server here: apt-get install rabbitmq-server, or set RABBITMQ_BIN")


def free_port() -> int:
    """A TCP port of loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RabbitMQ:
    """A server that lives as long as this object is open."""

    def __init__(
        self, memory_bytes: int = 1 << 30, timeout_s: float = 120.0, said: Callable[[str], None] | None = None
    ) -> None:
        self._programs = programs()
        self._root = Path(tempfile.mkdtemp(prefix="warren-rabbitmq-"))
        self.host, self.port = "127.0.0.1", free_port()
        self._say = said or (lambda text: None)
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        try:
            self._start(memory_bytes, timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the Erlang machine."""
        return int((self._root / "pid").read_text())

    def __enter__(self) -> "RabbitMQ":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, memory_bytes: int, timeout_s: float) -> None:
        epmd_port = free_port()
        home = self._root / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        config = self._root / "rabbitmq.conf"
        config.write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"vm_memory_high_watermark.absolute = {memory_bytes}\n"
            "disk_free_limit.absolute = 1MB\n"
            "log.console = false\n"
        )
        plugins = self._root / "enabled_plugins"
        plugins.write_text("[].\n")
        self._environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "RABBITMQ_NODENAME": f"warren-{os.getpid()}-{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_CONF_ENV_FILE": str(self._root / "none"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self._root / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(self._root / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._root / "log"),
            "RABBITMQ_LOGS": str(self._root / "log/rabbit.log"),
            "RABBITMQ_PID_FILE": str(self._root / "pid"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        epmd = shutil.which("epmd")
        if epmd is None:
            raise NoRabbitMQ("there is no epmd here: apt-get install erlang-base")
        self._epmd = subprocess.Popen(
            [epmd, "-port", str(epmd_port), "-address", "127.0.0.1"],
            env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._say("starting RabbitMQ")
        with (self._root / "output").open("wb") as output:
            self._server = subprocess.Popen(
                [str(self._programs / "rabbitmq-server")], env=self._environment, cwd=self._root,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + timeout_s
        while True:
            if self._server.poll() is not None:
                raise NoRabbitMQ(f"RabbitMQ ended: {(self._root / 'output').read_text(errors='replace')[-2000:]}")
            try:
                with socket.create_connection((self.host, self.port), timeout=5) as probe:
                    probe.sendall(b"AMQP\0\0\x09\x01")
                    if probe.recv(1) == b"\x01":
                        return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise NoRabbitMQ(f"RabbitMQ did not listen within {timeout_s:g} s")
            time.sleep(0.25)

    def control(self, *words: str) -> str:
        """Run rabbitmqctl; return what it prints."""
        done = subprocess.run(
            [str(self._programs / "rabbitmqctl"), "-q", *words],
            env=self._environment, cwd=self._root, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        return done.stdout

    def alarm(self, on: bool) -> None:
        """Raise the alarm of a full disk, which stops publishers; or take it back."""
        self.control("set_disk_free_limit", "1000000GB" if on else "1MB")

    def version(self) -> str:
        """Of RabbitMQ and of Erlang."""
        return self.control("eval", '[rabbit_misc:version(), " on Erlang ", erlang:system_info(otp_release)].').strip()

    def close(self) -> None:
        """End it, and remove its directory."""
        if self._server is not None and self._server.poll() is None:
            os.killpg(self._server.pid, signal.SIGTERM)
            try:
                self._server.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self._server.pid, signal.SIGKILL)
                self._server.wait(60)
        if self._epmd is not None and self._epmd.poll() is None:
            self._epmd.kill()
            self._epmd.wait(60)
        shutil.rmtree(self._root, ignore_errors=True)
