"""Goal: a gateway lets in whom `users.json` names, by the right password alone and from where they may come; it follows
the file; a file that is wrong changes nothing.

Method: `Users` on a directory, with a clock that the test holds; files written by `users_file`, and by hand.
"""

import base64
import hashlib
import os
import pwd
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from warren.engine.errors import CorruptRecord, FormatVersionError, TimedOut, UsageError
from warren.workers.amqp import passwords, users_file
from warren.workers.amqp.users import RIGHT_S, Users, is_local
from warren.workers.amqp.users_file import ALL, Account, Rights, TopicRights, Vhost


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def rabbit_hash(password: str, digest: str = "sha256", salt: bytes = b"\x90\x8d\xc6\x0a") -> str:
    """As in RabbitMQ's documents: base64 of the salt and of the digest of salt and password."""
    return base64.b64encode(salt + hashlib.new(digest, salt + password.encode()).digest()).decode()


def add(directory: Path, name: str, password: str = "secret", **more: Any) -> None:
    with users_file.changing(directory) as accounts:
        accounts.users[name] = Account(
            rabbit_hash(password), "rabbit_password_hashing_sha256", permissions={"/": Rights(ALL, ALL, ALL)}, **more
        )


# -- logging in -------------------------------------------------------------------------------------------------------


def test_guest_is_there_without_a_file_and_comes_from_this_host_alone(tmp_path: Path) -> None:
    said: list[str] = []
    users = Users(tmp_path, lambda text, *_more, **_options: said.append(text))
    for peer in ("", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert users.check("guest", b"guest", peer) is not None, peer
    assert not said
    for peer in ("10.0.0.7", "::ffff:10.0.0.7", "2001:db8::1", "nonsense"):
        assert users.check("guest", b"guest", peer) is None, peer
        assert "can only connect via localhost" in said.pop()
    assert users.check("guest", b"Guest", "") is None
    assert users.check("Guest", b"guest", "") is None
    assert [line.split(": ")[-1] for line in said] == ["wrong password", "there is no such user"]
    assert not any("uest'" in line.replace("'guest'", "").replace("'Guest'", "") for line in said), (
        "no password is told"
    )
    guest = users.check("guest", b"guest", "")
    assert guest is not None
    assert guest.tags == {"administrator"}
    assert guest.enters("/")
    assert not guest.enters("other")
    assert not list(tmp_path.iterdir()), "looking makes nothing"


@pytest.mark.parametrize("digest", ["sha256", "sha512", "md5"])
def test_users_of_rabbitmq_log_in_with_the_hashes_that_it_made(tmp_path: Path, digest: str) -> None:
    with users_file.changing(tmp_path) as accounts:
        accounts.users["moved"] = Account(rabbit_hash("test12", digest), f"rabbit_password_hashing_{digest}")
    users = Users(tmp_path)
    assert users.check("moved", b"test12", "10.0.0.7") is not None
    for wrong in (b"test1", b"", b"test12\0", b"x" * 5000):
        assert users.check("moved", wrong, "10.0.0.7") is None


def test_the_hash_of_rabbitmqs_documentation() -> None:
    """The worked example of its page on passwords: test12 with salt 908DC60A."""
    kept = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    assert passwords.right(b"test12", kept, "rabbit_password_hashing_sha256")
    assert kept == rabbit_hash("test12")


def test_a_new_password_is_kept_as_argon2(tmp_path: Path) -> None:
    kept = passwords.make("pässword".encode())
    assert kept.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert kept != passwords.make("pässword".encode()), "each has its own salt"
    with users_file.changing(tmp_path) as accounts:
        accounts.users["new"] = Account(kept)
    users = Users(tmp_path)
    assert users.check("new", "pässword".encode(), "10.0.0.7") is not None
    assert users.check("new", b"password", "10.0.0.7") is None
    assert users.check("nobody", b"password", "10.0.0.7") is None


def test_a_user_without_a_password_does_not_log_in_by_one(tmp_path: Path) -> None:
    with users_file.changing(tmp_path) as accounts:
        accounts.users["certified"] = Account()
    users = Users(tmp_path)
    assert users.check("certified", b"", "") is None
    assert users.named("certified") is not None
    assert users.named("nobody") is None


def test_a_password_that_was_right_costs_no_hash_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "alice")
    clock, hashed = Clock(), []
    real = passwords.right
    monkeypatch.setattr(passwords, "right", lambda *given: hashed.append(given) or real(*given))
    users = Users(tmp_path, clock=clock)
    for _ in range(3):
        assert users.check("alice", b"secret", "") is not None
    assert len(hashed) == 1
    for _ in range(2):
        assert users.check("alice", b"wrong", "") is None
    assert len(hashed) == 3, "what was wrong is not remembered"
    clock.now += RIGHT_S
    assert users.check("alice", b"secret", "") is not None
    assert len(hashed) == 4
    add(tmp_path, "alice", "other")
    users.refresh(now=True)
    assert users.check("alice", b"secret", "") is None, "the old password is out at once"
    assert users.check("alice", b"other", "") is not None


def test_logins_at_once_from_many_threads(tmp_path: Path) -> None:
    with users_file.changing(tmp_path) as accounts:
        accounts.users["new"] = Account(passwords.make(b"one"))
    users = Users(tmp_path)
    found: list[bool] = []

    def log_in(number: int) -> None:
        found.append((users.check("new", b"one" if number % 2 else b"two", "") is not None) == bool(number % 2))

    threads = [threading.Thread(target=log_in, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 8


def test_external_is_the_user_of_the_system(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    users = Users(tmp_path)
    owner = users.external(os.geteuid())
    assert owner is not None
    assert (owner.name, owner.tags, owner.exists) == (me, {"administrator"}, True)
    assert owner.enters("/")
    assert not owner.enters("not there")
    assert owner.may("configure", "queue", "any", "/")
    assert owner.may_topic("write", "amq.topic", "any", "/")
    assert users.external(os.geteuid() + 54321) is None
    with users_file.changing(tmp_path) as accounts:
        accounts.users[me] = Account(permissions={"/": Rights("", "", ".*")})
    users.refresh(now=True)
    listed = users.external(os.geteuid())
    assert listed is not None
    assert not listed.may("write", "queue", "any", "/"), "the file says what this user may do, when it names one"
    assert listed.may("read", "queue", "any", "/")


def test_which_addresses_are_this_hosts() -> None:
    assert [peer for peer in ("", "127.0.0.1", "::1", "fe80::1%eth0", "0.0.0.0", "1.2.3.4") if is_local(peer)] == [
        "",
        "127.0.0.1",
        "::1",
    ]


# -- following the file -----------------------------------------------------------------------------------------------


def test_a_changed_file_is_seen_within_half_a_second(tmp_path: Path) -> None:
    clock = Clock()
    users = Users(tmp_path, clock=clock)
    add(tmp_path, "alice")
    assert users.named("alice") is not None, "it was looked at a moment ago, and is again before anybody is refused"
    alice = users.check("alice", b"secret", "10.0.0.7")
    assert alice is not None
    assert alice.may("write", "exchange", "x", "/")
    assert users.why_closed(alice, "/") is None
    assert users.why_closed(alice, "gone") == "vhost 'gone' was deleted"
    with users_file.changing(tmp_path) as accounts:
        accounts.users["alice"].permissions["/"].write = "^y"
    assert alice.may("write", "exchange", "x", "/")
    clock.now += 0.5
    assert users.refresh()
    assert not users.refresh(now=True)
    assert not alice.may("write", "exchange", "x", "/"), "what was decided before is decided anew"
    with users_file.changing(tmp_path) as accounts:
        del accounts.users["alice"]
    users.refresh(now=True)
    assert users.why_closed(alice, "/") == "user 'alice' was deleted"
    assert not alice.enters("/")
    assert not alice.may("write", "exchange", "y", "/")
    users_file.path_of(tmp_path).unlink()
    assert users.refresh(now=True)
    assert users.check("guest", b"guest", "") is not None


def test_what_was_allowed_a_moment_ago_counts(tmp_path: Path) -> None:
    clock = Clock()
    add(tmp_path, "alice")
    users = Users(tmp_path, clock=clock)
    alice = users.named("alice")
    assert alice is not None
    assert users.vhost("shop") is None
    with users_file.changing(tmp_path) as accounts:
        accounts.vhosts["shop"] = Vhost()
    assert users.vhost("shop") is not None
    assert not alice.enters("shop")
    with users_file.changing(tmp_path) as accounts:
        accounts.users["alice"].permissions["shop"] = Rights("", "", "^q")
    assert alice.enters("shop")
    assert alice.may("read", "queue", "q", "shop")
    assert not alice.may("read", "queue", "p", "shop")
    with users_file.changing(tmp_path) as accounts:
        accounts.users["alice"].permissions["shop"] = Rights("", "", "^p")
        accounts.users["alice"].password_hash = passwords.make(b"another", "rabbit_password_hashing_sha256")
        accounts.users["alice"].hashing_algorithm = "rabbit_password_hashing_sha256"
    assert alice.may("read", "queue", "p", "shop")
    assert users.check("alice", b"another", "10.0.0.7") is not None


BROKEN = [
    (b"", "users and permissions"),
    (b"{", "users and permissions"),
    (b'{"format_version": 1, "users": {}}', "vhosts"),
    (b'{"format_version": 1, "users": {"a": {"pasword_hash": ""}}, "vhosts": {}}', "pasword_hash"),
    (b'{"format_version": 1, "users": {"": {}}, "vhosts": {}}', "1 to 255 bytes"),
    (b'{"format_version": 1, "users": {"a": {"hashing_algorithm": "rot13"}}, "vhosts": {}}', "rot13"),
    (b'{"format_version": 1, "users": {"a": {"password_hash": "plain"}}, "vhosts": {}}', "no hash of Argon2"),
    (
        (
            b'{"format_version": 1, "users": {"a": {"password_hash": "AAAA", '
            b'"hashing_algorithm": "rabbit_password_hashing_sha256"}}, "vhosts": {}}'
        ),
        "has 36 bytes, and this one 3",
    ),
    (
        (
            b'{"format_version": 1, "vhosts": {}, '
            b'"users": {"a": {"permissions": {"/": {"configure": "(", "write": "", "read": ""}}}}}'
        ),
        "not a regular expression",
    ),
    (b'{"format_version": 1, "users": {}, "vhosts": {"/": {"limits": {"max-cheese": 1}}}}', "max-cheese"),
    (b"[" * 100_000, "users and permissions"),
]


@pytest.mark.parametrize(("content", "told"), BROKEN, ids=range(len(BROKEN)))
def test_a_file_that_is_wrong_changes_nothing_and_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    said: list[str] = []
    clock = Clock()
    add(tmp_path, "alice")
    users = Users(tmp_path, lambda text, *_more, **_options: said.append(text), clock)
    users_file.path_of(tmp_path).write_bytes(content)
    for _ in range(3):
        clock.now += 1
        assert not users.refresh()
    assert users.check("alice", b"secret", "") is not None
    assert len(said) == 1
    assert told in said[0]
    assert "stay as they were" in said[0]
    with pytest.raises(CorruptRecord, match="move it away"):
        Users(tmp_path)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    users_file.path_of(tmp_path).write_bytes(b'{"format_version": 2, "cheese": []}')
    with pytest.raises(FormatVersionError, match="use a newer one"):
        Users(tmp_path)


# -- the file ---------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    with users_file.changing(tmp_path) as accounts:
        accounts.vhosts["shop/ü"] = Vhost("The shop", ["a"], "quorum", {"max-connections": 3})
        accounts.users["bob"] = Account(
            rabbit_hash("x"),
            "rabbit_password_hashing_sha256",
            ["monitoring"],
            permissions={"shop/ü": Rights("^a", "", ".*")},
            topic_permissions={"shop/ü": {"amq.topic": TopicRights("^a", "b$")}},
            limits={"max-channels": 7},
        )
        written = accounts
    assert users_file.load(tmp_path) == written
    assert set(written.users) == {"guest", "bob"}, "guest, who was there without a file, is in it"
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "users.json": 0o600,
        "users.lock": 0o600,
    }
    before = users_file.signature(tmp_path)
    with users_file.changing(tmp_path):
        pass
    assert users_file.signature(tmp_path) == before, "what changes nothing writes nothing"
    with pytest.raises(UsageError, match="not a regular"), users_file.changing(tmp_path) as accounts:
        accounts.users["bob"].permissions["/"] = Rights("(", "", "")
    assert users_file.signature(tmp_path) == before


def test_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from warren.workers.amqp import users_file\n"
        "for number in range(20):\n"
        "    with users_file.changing(Path(sys.argv[1]), 60.0) as accounts:\n"
        "        accounts.users[f'{sys.argv[2]}-{number}'] = users_file.Account()\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, tmp_path, name]) for name in ("a", "b", "c")]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    assert len(users_file.load(tmp_path).users) == 61


def test_a_change_does_not_wait_for_another_for_ever(tmp_path: Path) -> None:
    with (
        users_file.changing(tmp_path),
        pytest.raises(TimedOut, match="try again when it has ended"),
        users_file.changing(tmp_path, 0.05),
    ):
        pass


def test_a_hash_that_would_cost_too_much_is_refused() -> None:
    kept = passwords.make(b"x").replace("m=19456", "m=4194304")
    with pytest.raises(UsageError, match="at most 262,144 KiB"):
        passwords.check_kept(kept, passwords.ARGON2)


@pytest.mark.parametrize("password", [b"", b"x" * 4097])
def test_passwords_have_bounds(password: bytes) -> None:
    with pytest.raises(UsageError, match=r"empty|at most 4,096"):
        passwords.make(password)
