"""Goal: control messages come by priority, survive their sender, never block, and nonsense is dropped.

Method: one mailbox; senders of this and of a killed process; a full one; bytes that are no message.
"""

import errno
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from warren.ipc import mailbox
from warren.ipc.mailbox import PRIORITY_CLIENT, PRIORITY_ORDINARY, PRIORITY_READ, Mailbox, post


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Mailbox]:
    """The mailbox `test` of a directory."""
    made = Mailbox(tmp_path, "test")
    yield made
    made.close()


def test_order_is_by_priority_and_then_by_age(box: Mailbox, tmp_path: Path) -> None:
    for kind, priority in (
        ("a", PRIORITY_ORDINARY),
        ("b", PRIORITY_READ),
        ("c", PRIORITY_CLIENT),
        ("d", PRIORITY_READ),
    ):
        assert post(tmp_path, "test", kind, priority, slot=1)
    assert [box.receive() for _ in range(5)] == [*({"kind": kind, "slot": 1} for kind in "cbda"), None]


def test_it_can_be_selected(box: Mailbox, tmp_path: Path) -> None:
    assert not select.select([box.fileno()], [], [], 0)[0]
    post(tmp_path, "test", "x")
    assert select.select([box.fileno()], [], [], 5)[0]
    box.receive()
    assert not select.select([box.fileno()], [], [], 0)[0]


def test_a_full_mailbox_refuses_at_once(box: Mailbox, tmp_path: Path) -> None:
    sent = 0
    while post(tmp_path, "test", "x", number=sent):
        sent += 1
    assert sent
    assert [message["number"] for message in iter(box.receive, None)] == list(range(sent))


def test_nobody_there(tmp_path: Path) -> None:
    assert not post(tmp_path, "test", "x"), "no folder"
    box = Mailbox(tmp_path, "test")
    assert not post(tmp_path, "nobody", "x")
    box.close()
    assert not post(tmp_path, "test", "x"), "its receiver is gone"


def test_a_descriptor_of_the_directory_does_as_its_path(box: Mailbox, tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert post(descriptor, "test", "x")
    finally:
        os.close(descriptor)
    assert box.receive() == {"kind": "x"}


def test_a_directory_with_a_long_path(tmp_path: Path) -> None:
    far = tmp_path.joinpath(*["a folder with a long name"] * 8)
    far.mkdir(parents=True)
    box = Mailbox(far, "test")
    assert post(far, "test", "x")
    assert box.receive() == {"kind": "x"}
    box.close()


def test_messages_survive_their_sender(box: Mailbox, tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        post(tmp_path, "test", "last words", slot=7)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert box.receive() == {"kind": "last words", "slot": 7}


@pytest.mark.parametrize("nonsense", [b"", b"\xc1", b"\x01", b"\x80", b"\x81\xa4kind\x05", bytes(range(256)) * 16])
def test_nonsense_is_dropped(box: Mailbox, tmp_path: Path, nonsense: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for priority in (b"", b"\x00"):
            sender.sendto(priority + nonsense, str(tmp_path / mailbox.FOLDER / mailbox.name("test")))
    post(tmp_path, "test", "good")
    assert box.receive() == {"kind": "good"}
    assert box.receive() is None


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM, errno.ECONNRESET])
def test_a_system_that_refuses_costs_no_message(box: Mailbox, tmp_path: Path, number: int) -> None:
    """The receiver lives on, and is told again."""
    post(tmp_path, "test", "good")
    real = box._socket
    box._socket = Mock(recv=Mock(side_effect=OSError(number, os.strerror(number))))
    assert box.receive() is None
    box._socket = real
    assert select.select([box.fileno()], [], [], 5)[0]
    assert box.receive() == {"kind": "good"}


def test_a_message_that_is_too_long_is_refused(box: Mailbox, tmp_path: Path) -> None:
    assert not post(tmp_path, "test", "x", text="y" * 5000)
    assert box.receive() is None


def test_a_new_receiver_begins_empty(box: Mailbox, tmp_path: Path) -> None:
    post(tmp_path, "test", "for the old one")
    again = Mailbox(tmp_path, "test")
    assert again.receive() is None
    assert post(tmp_path, "test", "for the new one")
    assert again.receive() == {"kind": "for the new one"}
    again.close()


def test_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / mailbox.FOLDER).mkdir()
    (tmp_path / mailbox.FOLDER / mailbox.name("test")).write_text("somebody's")
    with pytest.raises(OSError, match="in use"):
        Mailbox(tmp_path, "test")
    mailbox.clear(tmp_path)
    assert (tmp_path / mailbox.FOLDER / mailbox.name("test")).read_text() == "somebody's"
    (tmp_path / mailbox.FOLDER / mailbox.name("test")).unlink()
    Mailbox(tmp_path, "test").close()
    mailbox.clear(tmp_path)
    assert not (tmp_path / mailbox.FOLDER).exists()


def test_a_user_may_have_any_number(tmp_path: Path) -> None:
    """Message queues of a user have 819,200 bytes in all; mailboxes of 200 nodes have none of them: each of a process
    that may have no queue at all works.
    """
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from warren.ipc.mailbox import Mailbox, post\n"
        "resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))\n"
        "for number in range(200):\n"
        "    directory = Path(sys.argv[1], str(number))\n"
        "    directory.mkdir()\n"
        "    boxes = {role: Mailbox(directory, role) for role in ('supervisor', 'store', 'collector')}\n"
        "    assert all(post(directory, role, 'x') for role in boxes)\n"
        "    assert all(box.receive() == {'kind': 'x'} for box in boxes.values())\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
