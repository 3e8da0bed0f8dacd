"""Goal: the gateway is a process of its node as its operator expects: where it listens, how it is refused, shared, and
stopped.

Method: real nodes with settings of their own; pika and sockets.
"""

import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pika
import pika.credentials
import pika.exceptions
import psutil
import pytest

import warren
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import UsageError
from warren.ipc.identity import Identity
from warren.workers.process import interpreter
from warren.workers.process.control import ControlClient

from support import command_line
from support.gateway_node import GatewayNode, free_port
from support.waiting import patience, wait_until

pytestmark = pytest.mark.integration
TLS = Path(__file__).parent / "tls"


def test_a_port_that_is_taken_refuses_the_start_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command_line.warren("up", tmp_path / "data", "--amqp", port, code=2)
        assert f"cannot serve AMQP at 127.0.0.1:{port}" in done.said
        assert f"sport = :{port}" in done.said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("how", ["--foreground", "--detach"])
def test_files_of_tls_that_are_wrong_refuse_the_start_and_leave_nothing(tmp_path: Path, how: str) -> None:
    key = TLS / "encrypted_key.pem"
    settings = ("--set", f"amqp_tls_certificate={TLS / 'server.pem'}", "--set", f"amqp_tls_key={key}")
    done = command_line.warren("up", tmp_path / "data", how, "--amqp", "tls:0", *settings, code=2)
    assert f"the private key in {key} (setting amqp_tls_key) is encrypted" in done.said
    assert "PEM pass phrase" not in done.said
    assert not (tmp_path / "data").exists()


def test_a_node_that_was_made_is_refused_its_start_when_its_certificate_is_gone(tmp_path: Path) -> None:
    certificate = tmp_path / "server.pem"
    certificate.write_bytes((TLS / "server.pem").read_bytes())
    with GatewayNode(tmp_path / "data", amqp="tls:127.0.0.1:0", amqp_tls_certificate=certificate):
        pass
    certificate.unlink()
    done = command_line.warren("up", tmp_path / "data", "--detach", code=2)
    assert f"cannot read {certificate}" in done.said


def test_a_certificate_lies_where_the_command_is_given(tmp_path: Path) -> None:
    """A node in the background runs elsewhere."""
    (tmp_path / "server.pem").write_bytes((TLS / "server.pem").read_bytes())
    given = ("--amqp", "tls:127.0.0.1:0", "--set", "amqp_tls_certificate=server.pem", "--profile", "small")
    up = [sys.executable, "-m", "warren", "up", "data", "--detach", *given]
    subprocess.run(up, cwd=tmp_path, check=True, capture_output=True, timeout=100 * patience())
    try:
        assert GatewayNode(tmp_path / "data").port
        kept = NodeDirectory(tmp_path / "data").read().settings
        assert kept.amqp_tls_certificate == str(tmp_path / "server.pem")
    finally:
        command_line.warren("stop", tmp_path / "data")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("none/amqp.sock", "make the folder"),
        ("/etc/passwd", "there is a file of this name"),
        ("/etc/passwd/amqp.sock", "is no folder"),
    ],
)
def test_a_unix_socket_that_cannot_be_refuses_the_start(tmp_path: Path, path: str, said: str) -> None:
    done = command_line.warren("up", tmp_path / "data", "--detach", "--amqp", f"unix:{path}", code=2)
    assert "cannot listen at unix:" in done.said
    assert said in done.said
    assert not (tmp_path / "data").exists()


def test_a_unix_socket_of_another_process_refuses_the_start_and_stays(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path), socket.socket(socket.AF_UNIX) as other:
        other.bind("taken.sock")
        other.listen()
        address = f"unix:{tmp_path / 'taken.sock'}"
        done = command_line.warren("up", tmp_path / "data", "--detach", "--amqp", address, code=2)
        assert "another process does" in done.said
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect("taken.sock")


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_ends_a_gateway_at_its_start_is_said_when_the_node_is_up(tmp_path: Path, form: str) -> None:
    with GatewayNode(tmp_path / "data", log_format=form):
        pass
    (tmp_path / "data" / "users.json").write_text("no users")
    done = command_line.warren("up", tmp_path / "data", "--detach")
    command_line.warren("stop", tmp_path / "data")
    log = tmp_path / "data" / "log" / "amqp-0.log"
    assert re.search(rf"amqp-0 is not up: .*users\.json.* \(see {log}\)", done.stdout)


def test_clients_hear_of_a_stop_and_the_node_ends_at_once(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data") as node:
        connection = pika.BlockingConnection(pika.URLParameters(node.url))
        connection.channel()
        stopper = threading.Thread(target=node.stop)
        stopper.start()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"320.*CONNECTION_FORCED.*shutdown"):
            connection.process_data_events(60)
        stopper.join()
        log = (node.directory / "log" / "amqp-0.log").read_text()
        assert "closes 1 connection" in log
        assert "did not close in time" not in log
        assert not (node.directory / "amqp.sock").exists()
        assert not (node.directory / "amqp-0.sock").exists()


def test_a_gateway_that_hangs_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    """The servers end, as they wait for it for a moment only; then it is killed, before the time to stop is over."""
    with GatewayNode(tmp_path / "data") as node:
        pid = node.ask()["pid"]
        os.kill(pid, signal.SIGSTOP)
        node.stop()
        assert Identity.of(pid) is None
        log = (node.directory / "log" / "supervisor.log").read_text()
        assert "amqp-0 is killed: every server has ended" in log
        assert "because it took longer" not in log


def test_a_gateway_that_comes_while_the_node_is_stopped_ends_when_it_is_told(tmp_path: Path) -> None:
    """One that was just started anew: it does not wait for a node that will not serve any more."""
    with GatewayNode(tmp_path / "data") as node:
        pids = node.pids()
        os.kill(pids["worker-0"], signal.SIGSTOP)  # so that the stop lasts
        try:
            os.kill(pids["supervisor"], signal.SIGTERM)
            wait_until(lambda: Identity.of(pids["amqp_gateway"]) is None, 30, what="the end of the gateway")
            command = interpreter.command("warren.workers.amqp", str(node.directory), "0")
            with subprocess.Popen(command, env=interpreter.environment()) as late:
                wait_until(lambda: catches(late.pid, signal.SIGTERM), 60, what="its handler")
                late.send_signal(signal.SIGTERM)
                assert late.wait(60 * patience()) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids["worker-0"], signal.SIGCONT)
        log = (node.directory / "log" / "amqp-0.log").read_text()
        assert "is being stopped: see" not in log


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    words = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(words["SigCgt"], 16) >> (number - 1) & 1)


def test_two_gateways_share_a_port(tmp_path: Path) -> None:
    port = free_port()
    with GatewayNode(tmp_path / "data", amqp=f"{port},unix:amqp.sock", amqp_processes=2) as node:
        for index in (0, 1):
            assert node.ask(index=index)["listening"] == [
                f"127.0.0.1:{port}",
                f"unix:{node.directory / 'amqp.sock'}",
            ]
        open_: list[pika.BlockingConnection] = []
        try:
            while len(open_) < 100 and not all(node.ask(index=index)["connections_n"] for index in (0, 1)):
                open_.append(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)))
            assert [bool(node.connections(index)) for index in (0, 1)] == [True, True]
            done = command_line.warren("gateway", "connections", node.directory, "--json")
            assert done.stdout.count('"given_name"') == len(open_)
        finally:
            for connection in open_:
                connection.close()
        with ControlClient(node.directory) as control:
            roles = [(one["role"], one["index"]) for one in control.call("status")["processes"]]
        assert [one for one in roles if one[0] == "amqp_gateway"] == [("amqp_gateway", 0), ("amqp_gateway", 1)]


def tls(**more: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=TLS / "server.pem")
    if more.get("certificate"):
        context.load_cert_chain(more["certificate"])
    return context


def test_tls_and_a_certificate_that_logs_in(tmp_path: Path) -> None:
    files = {"amqp_tls_certificate": TLS / "server.pem", "amqp_tls_ca": TLS / "guest.pem"}
    with GatewayNode(tmp_path / "data", amqp="tls:127.0.0.1:0", **files) as node:
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            node.port,
            ssl_options=pika.SSLOptions(tls(certificate=TLS / "guest.pem"), "localhost"),
            credentials=pika.credentials.ExternalCredentials(),
        )
        with pika.BlockingConnection(parameters) as connection:
            connection.channel()
            (found,) = node.connections()
            assert (found["tls"], found["user"]) == (True, "guest")
        with pytest.raises((ssl.SSLError, pika.exceptions.AMQPConnectionError, ConnectionError)):  # shows none
            _read_one(tls(), node.port)
        with socket.create_connection(("127.0.0.1", node.port), 60) as sock:  # speaks no TLS
            sock.sendall(b"AMQP\0\0\x09\1")
            while sock.recv(100):
                pass


def _read_one(context: ssl.SSLContext, port: int) -> None:
    with (
        socket.create_connection(("127.0.0.1", port), 60) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as wrapped,
    ):
        wrapped.sendall(b"AMQP\0\0\x09\1")
        if not wrapped.recv(1):
            raise ConnectionError("the gateway has closed it")


def test_a_node_with_connections_is_in_use(tmp_path: Path) -> None:
    """One that ends with its users does not end under those that came by AMQP. Nobody asks it meanwhile."""
    with warren.open(tmp_path / "data", idle_exit=1.0, amqp="0", profile="small") as first:
        node = GatewayNode(first.directory)
        connection = pika.BlockingConnection(pika.URLParameters(node.url))
        supervisor = psutil.Process(node.pids()["supervisor"])
    for _ in range(5):
        connection.sleep(0.5)
        assert supervisor.is_running()
    connection.close()
    psutil.wait_procs([supervisor], 60 * patience())
    assert not supervisor.is_running()


def test_a_node_without_a_gateway_says_how_one_is_started(directory: Path) -> None:
    from warren.workers.cli.gateway_connections import gateways

    with pytest.raises(UsageError, match="--amqp ADDRESS"):
        gateways(str(directory), 30.0)


def test_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data", amqp_connections_max=2) as node:
        with (
            pika.BlockingConnection(pika.URLParameters(node.url)),
            pika.BlockingConnection(pika.URLParameters(node.url)),
            socket.create_connection(("127.0.0.1", node.port), 60) as third,
        ):
            third.sendall(b"AMQP\0\0\x09\1")
            with contextlib.suppress(ConnectionResetError):
                assert not third.recv(1)
        wait_until(lambda: not node.connections())
        pika.BlockingConnection(pika.URLParameters(node.url)).close()
        assert "setting amqp_connections_max" in (node.directory / "log" / "amqp-0.log").read_text()


def test_connections_beyond_what_descriptors_allow_are_closed_and_others_go_on(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data", prefix=("prlimit", "--nofile=512:512")) as node, contextlib.ExitStack() as all_:
        connection = all_.enter_context(pika.BlockingConnection(pika.URLParameters(node.url)))
        pid, port = node.ask()["pid"], node.port
        closed = 0
        for _ in range(600):
            sock = all_.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            sock.sendall(b"AMQP\0\0\x09\1")
            try:
                closed += not sock.recv(1)
            except ConnectionResetError:
                closed += 1
        assert closed > 100
        connection.channel().queue_declare("q")
        assert node.ask()["pid"] == pid
        assert "ulimit -Hn" in (node.directory / "log" / "amqp-0.log").read_text()


def test_handshakes_of_tls_are_limited_and_the_others_wait(tmp_path: Path) -> None:
    """They cost memory and descriptors, and have no name."""
    settings = {"amqp": "tls:127.0.0.1:0,unix:amqp.sock", "amqp_tls_certificate": TLS / "server.pem"}
    with GatewayNode(tmp_path / "data", prefix=("prlimit", "--nofile=512:512"), **settings) as node:
        port, gateway = node.port, psutil.Process(node.ask()["pid"])
        before, had = gateway.memory_info().rss, gateway.num_fds()
        with contextlib.ExitStack() as all_:
            for _ in range(400):
                all_.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            wait_until(lambda: gateway.num_fds() >= had + 64, what="handshakes")
            with node.unix() as sock:
                sock.sendall(b"AMQP\0\0\x09\1")
                assert sock.recv(1)
            assert gateway.num_fds() < had + 160
            assert gateway.memory_info().rss < before + 160 * (160 << 10)
            last = socket.create_connection(("127.0.0.1", port), 60)
        with tls().wrap_socket(last, server_hostname="localhost") as secured:
            secured.sendall(b"AMQP\0\0\x09\1")
            assert secured.recv(1)
        assert node.ask()["pid"] == gateway.pid
        said = (node.directory / "log" / "amqp-0.log").read_text()
        assert "Traceback" not in said
        assert "no descriptor is left" not in said


def test_a_gateway_without_a_descriptor_goes_on(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data") as node:
        port, log = node.port, node.directory / "log" / "amqp-0.log"
        gateway = psutil.Process(node.ask()["pid"])
        limits = gateway.rlimit(psutil.RLIMIT_NOFILE)
        gateway.rlimit(psutil.RLIMIT_NOFILE, (1, limits[1]))
        with socket.create_connection(("127.0.0.1", port), 60) as sock:
            wait_until(lambda: "no descriptor is left" in log.read_text(), what="a gateway without descriptors")
            gateway.rlimit(psutil.RLIMIT_NOFILE, limits)
            sock.sendall(b"AMQP\0\0\x09\1")
            assert sock.recv(1)
        assert node.ask()["pid"] == gateway.pid
        assert "Traceback" not in log.read_text()
