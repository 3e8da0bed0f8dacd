"""By librabbitmq's command-line tools (Debian: amqp-tools)."""

import subprocess

from amqp_diff.scene import Scene, case


def _address(s: Scene) -> list[str]:
    return ["-s", s.server.host, f"--port={s.server.port}", f"--vhost={s.server.vhost}"]


def _run(s: Scene, *words: str, text: str = "") -> None:
    """Run a command, and say how it ended and what it printed."""
    address = _address(s)
    shown = " ".join(words)
    done = subprocess.run(
        [words[0], *address, *words[1:]], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    s.say(f"$ {shown}: {done.returncode} {done.stdout!r} {done.stderr.replace(words[0], 'it')!r}")


@case
def declare_publish_get_delete(s: Scene) -> None:
    queue = s.name()
    _run(s, "amqp-declare-queue", "-q", queue)
    _run(s, "amqp-publish", "-r", queue, "-b", "hello")
    _run(s, "amqp-get", "-q", queue)
    _run(s, "amqp-get", "-q", queue)
    _run(s, "amqp-delete-queue", "-q", queue)


@case
def publish_from_standard_input(s: Scene) -> None:
    queue = s.name()
    _run(s, "amqp-declare-queue", "-d", "-q", queue)
    _run(s, "amqp-publish", "-r", queue, "-p", "-C", "text/plain", "-E", "utf-8", text="from a pipe\n")
    _run(s, "amqp-publish", "-r", queue, "-l", text="one\ntwo\n")
    _run(s, "amqp-consume", "-q", queue, "-c", "3", "cat")
    _run(s, "amqp-delete-queue", "-q", queue)


@case
def publish_by_an_exchange(s: Scene) -> None:
    queue = s.name()
    _run(s, "amqp-declare-queue", "-q", queue)
    lane = s.wire().channel()
    lane.call("queue.bind", queue=queue, exchange="amq.topic", routing_key=f"{s.case}.#")
    _run(s, "amqp-publish", "-e", "amq.topic", "-r", f"{s.case}.a", "-b", "by topic", "-t", "reply", "-H", "a: b")
    lane.call("basic.get", queue=queue, no_ack=True)


@case
def consume_of_its_own_queue(s: Scene) -> None:
    _run(s, "amqp-declare-queue", "-q", s.name())
    _run(s, "amqp-publish", "-r", s.name(), "-b", "1")
    _run(s, "amqp-publish", "-r", s.name(), "-b", "2")
    _run(s, "amqp-consume", "-q", s.name(), "-A", "-c", "2", "cat")
    s.wire().channel().message_count(s.name())


@case
def consume_with_acks_and_prefetch(s: Scene) -> None:
    _run(s, "amqp-declare-queue", "-q", s.name())
    for body in "123":
        _run(s, "amqp-publish", "-r", s.name(), "-b", body)
    _run(s, "amqp-consume", "-q", s.name(), "-p", "1", "-c", "2", "cat")
    s.wire().channel().message_count(s.name())


@case
def missing_queues(s: Scene) -> None:
    _run(s, "amqp-get", "-q", s.name())
    _run(s, "amqp-delete-queue", "-q", s.name())
    _run(s, "amqp-consume", "-q", s.name(), "-c", "1", "cat")


@case
def missing_exchange(s: Scene) -> None:
    _run(s, "amqp-publish", "-e", s.name("x"), "-r", "k", "-b", "x")


@case
def delete_with_conditions(s: Scene) -> None:
    _run(s, "amqp-declare-queue", "-q", s.name())
    _run(s, "amqp-publish", "-r", s.name(), "-b", "x")
    _run(s, "amqp-delete-queue", "-e", "-q", s.name())
    _run(s, "amqp-delete-queue", "-u", "-q", s.name())


@case
def wrong_password(s: Scene) -> None:
    _run(s, "amqp-get", "--username=guest", "--password=no", "-q", s.name())


@case
def unknown_vhost(s: Scene) -> None:
    _run(s, "amqp-get", "--vhost=nowhere", "-q", s.name())


@case
def by_a_url(s: Scene) -> None:
    _run(s, "amqp-declare-queue", "-q", s.name())
    url = s.server.url + ("%2f" if s.server.vhost == "/" else "")
    done = subprocess.run(
        ["amqp-publish", "-u", url, "-r", s.name(), "-b", "x"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    s.say(f"$ amqp-publish -u: {done.returncode} {done.stdout!r} {done.stderr!r}")
    _run(s, "amqp-get", "-q", s.name())


@case
def a_large_body(s: Scene) -> None:
    _run(s, "amqp-declare-queue", "-q", s.name())
    done = subprocess.run(
        ["amqp-publish", *_address(s), "-r", s.name()],
        input=b"x" * 400_000, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    s.say(f"$ amqp-publish: {done.returncode}")
    done = subprocess.run(
        ["amqp-get", *_address(s), "-q", s.name()],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    s.say(f"$ amqp-get: {done.returncode} {len(done.stdout)}")
