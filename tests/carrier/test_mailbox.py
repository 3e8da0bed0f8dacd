"""Goal: control messages come by priority, survive their sender, never block, and nonsense is dropped.

Method: one mailbox; senders of this and of a killed process; a full one; bytes that are no message.
"""

import os
import secrets
import select
import subprocess
import sys
from collections.abc import Iterator

import posix_ipc
import pytest

from warren.ipc import mailbox
from warren.ipc.mailbox import PRIORITY_CLIENT, PRIORITY_ORDINARY, PRIORITY_READ, Mailbox, post


@pytest.fixture
def box() -> Iterator[Mailbox]:
    """A mailbox that is gone after the test."""
    created = Mailbox(f"/warren-{secrets.token_hex(6)}-mail-test", create=True)
    yield created
    created.close()
    mailbox.unlink(created.name)


def test_order_is_by_priority_and_then_by_age(box: Mailbox) -> None:
    for kind, priority in (
        ("a", PRIORITY_ORDINARY),
        ("b", PRIORITY_READ),
        ("c", PRIORITY_CLIENT),
        ("d", PRIORITY_READ),
    ):
        assert post(box.name, kind, priority, slot=1)
    assert [box.receive() for _ in range(5)] == [*({"kind": kind, "slot": 1} for kind in "cbda"), None]


def test_it_can_be_selected(box: Mailbox) -> None:
    assert not select.select([box.fileno()], [], [], 0)[0]
    post(box.name, "x")
    assert select.select([box.fileno()], [], [], 5)[0]
    box.receive()
    assert not select.select([box.fileno()], [], [], 0)[0]


def test_a_full_mailbox_refuses_at_once(box: Mailbox) -> None:
    sent = 0
    while post(box.name, "x", number=sent):
        sent += 1
    assert sent == mailbox.MESSAGES_MAX
    assert [message["number"] for message in iter(box.receive, None)] == list(range(sent))


def test_nobody_there() -> None:
    assert not post("/warren-000000000000-mail-nobody", "x")
    assert not mailbox.unlink("/warren-000000000000-mail-nobody")


def test_messages_survive_their_sender(box: Mailbox) -> None:
    pid = os.fork()
    if pid == 0:
        post(box.name, "last words", slot=7)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert box.receive() == {"kind": "last words", "slot": 7}


@pytest.mark.parametrize("nonsense", [b"", b"\xc1", b"\x01", b"\x80", b"\x81\xa4kind\x05", bytes(range(256)) * 16])
def test_nonsense_is_dropped(box: Mailbox, nonsense: bytes) -> None:
    queue = posix_ipc.MessageQueue(box.name)
    queue.send(nonsense)
    queue.close()
    post(box.name, "good")
    assert box.receive() == {"kind": "good"}
    assert box.receive() is None


def test_a_message_that_is_too_long_is_refused(box: Mailbox) -> None:
    try:
        sent = post(box.name, "x", text="y" * 5000)
    except ValueError:
        sent = False
    assert not sent
    assert box.receive() is None


def test_a_new_receiver_begins_empty(box: Mailbox) -> None:
    post(box.name, "for the old one")
    again = Mailbox(box.name, create=True)
    assert again.receive() is None
    assert post(box.name, "for the new one")
    assert again.receive() == {"kind": "for the new one"}
    again.close()


def test_an_interrupted_look_finds_nothing_and_does_no_harm(box: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is interrupted looks again, as he does after every message."""

    class Interrupted:
        def receive(self, timeout: float) -> None:
            raise posix_ipc.SignalError("the wait was interrupted")

    assert box.send("hint")
    with monkeypatch.context() as patched:
        patched.setattr(box, "_queue", Interrupted())
        assert box.receive() is None
    assert box.receive() == {"kind": "hint"}


def test_a_user_who_may_have_no_more_queues_is_told_so() -> None:
    """The system says that too many files are open."""
    code = (
        "import errno, resource\n"
        "from warren.ipc.mailbox import Mailbox\n"
        "resource.setrlimit(resource.RLIMIT_MSGQUEUE, (1000, 1000))\n"
        "try:\n"
        f"    Mailbox('/warren-{secrets.token_hex(6)}-mail-test', create=True)\n"
        "except OSError as error:\n"
        "    print(error.errno == errno.EMFILE, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        "True [Errno 24] message queues of this user have all of their 1,000 bytes (`ulimit -q`)"
    )
