"""Goal: users, permissions and vhosts of the gateway are listed and changed from the command line, on a node that runs
and on one that does not; a password is never a word of it; what cannot be is refused in words that say what to do.

Method: the command line as processes of their own; what it wrote is read by `Users`, as a gateway does.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warren.engine.catalog.catalog import Catalog
from warren.workers.amqp import users_file
from warren.workers.amqp.users import Users

from support.command_line import Ended, warren

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node that runs."""
    chosen = tmp_path_factory.mktemp("gateway users") / "node"
    warren("up", chosen, "--detach", "--workers", 1)
    yield chosen
    warren("stop", chosen)


@pytest.fixture
def directory(made: Path) -> Iterator[Path]:
    """The same without users of its own."""
    yield made
    users_file.path_of(made).unlink(missing_ok=True)


def gateway(directory: Path, line: str, *more: object, given: str = "", code: int = 0) -> Ended:
    what, verb, *rest = line.split()
    return warren("gateway", what, verb, directory, *rest, *more, given=given, code=code)


def told(directory: Path, line: str, *more: object) -> Any:
    return json.loads(gateway(directory, line, *more, "--json").stdout)


def test_guest_is_listed_before_there_is_a_file(directory: Path) -> None:
    assert told(directory, "users list") == [
        {
            "user": "guest",
            "tags": ["administrator"],
            "password": True,
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "loopback_only": True,
            "vhosts": ["/"],
            "limits": {},
        }
    ]
    assert told(directory, "permissions list") == [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ]
    assert [row["vhost"] for row in told(directory, "vhosts list")] == ["/"]
    assert not users_file.path_of(directory).exists()


def test_a_user_is_added_changed_and_deleted(directory: Path, tmp_path: Path) -> None:
    said = gateway(directory, "users add alice --tag monitoring --tag management", given="sécret one\n").stdout
    assert "alice --configure … --write … --read …` says what" in said
    users = Users(directory)
    alice = users.check("alice", "sécret one".encode(), "10.0.0.7")
    assert alice is not None
    assert alice.tags == {"monitoring", "management"}
    assert not alice.enters("/")
    assert "already" in gateway(directory, "users add alice", given="x\n", code=2).said

    file = tmp_path / "password"
    file.write_bytes(b"from a file\r\nsecond line\n")
    gateway(directory, "users password alice --password-file", file)
    users.refresh(now=True)
    assert users.check("alice", b"from a file", "") is not None
    gateway(directory, "users password alice --password-file -", given="piped")
    gateway(directory, "users tags alice")
    users.refresh(now=True)
    assert users.check("alice", b"piped", "") is not None
    assert alice.tags == frozenset()
    assert told(directory, "users limits alice --max-connections 3 --max-channels 9")["limits"] == {
        "max-connections": 3,
        "max-channels": 9,
    }
    assert told(directory, "users limits alice --max-connections -1")["limits"] == {"max-channels": 9}
    gateway(directory, "users password alice --no-password")
    users.refresh(now=True)
    assert users.check("alice", b"piped", "") is None
    assert "Argon2" not in gateway(directory, "users list").stdout
    gateway(directory, "users delete alice")
    assert [row["user"] for row in told(directory, "users list")] == ["guest"]
    gateway(directory, "users delete guest")
    users.refresh(now=True)
    assert users.check("guest", b"guest", "") is None, "guest stays away"


def test_a_hash_for_rabbitmq(directory: Path) -> None:
    gateway(directory, "users add moves --for-rabbitmq", given="secret\n")
    account = users_file.load(directory).users["moves"]
    assert (account.hashing_algorithm, len(account.password_hash)) == ("rabbit_password_hashing_sha512", 92)
    assert Users(directory).check("moves", b"secret", "") is not None


def test_permissions_are_set_and_cleared(directory: Path) -> None:
    gateway(directory, "users add alice --no-password")
    gateway(directory, "vhosts add shop --max-connections 7", "--description", "The shop")
    gateway(directory, "permissions set alice --configure ^a --read .* --write", "")
    gateway(directory, "permissions set alice --vhost shop --configure .* --write .* --read .*")
    gateway(directory, "permissions set alice --exchange amq.topic --write ^x --read", "")
    assert told(directory, "permissions list --user alice") == [
        {"user": "alice", "vhost": "/", "configure": "^a", "write": "", "read": ".*"},
        {"user": "alice", "vhost": "/", "exchange": "amq.topic", "write": "^x", "read": ""},
        {"user": "alice", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"},
    ]
    assert "''" in gateway(directory, "permissions list").stdout, "what is empty is seen"
    assert told(directory, "vhosts list")[1] == {
        "vhost": "shop",
        "description": "The shop",
        "tags": [],
        "default_queue_type": None,
        "limits": {"max-connections": 7},
        "users": ["alice"],
    }
    assert told(directory, "permissions clear alice --exchange amq.topic")["cleared"] is True
    assert told(directory, "permissions clear alice --exchange amq.topic")["cleared"] is False
    assert told(directory, "permissions clear alice")["cleared"] is True
    assert [row["vhost"] for row in told(directory, "permissions list --user alice")] == ["shop"]
    gateway(directory, "vhosts delete shop")
    assert told(directory, "permissions list --user alice") == []


def test_a_vhost_is_deleted_with_what_is_in_it(directory: Path) -> None:
    gateway(directory, "vhosts add shop")
    warren("queue", "declare", directory, "@shop:orders", "@shop:bills", "@shopping:list", "own")
    for name in ("events", "amq.direct"):  # the second is the vhost's own
        warren("exchange", "declare", directory, f"@shop:{name}")
    warren("topic", "create", directory, "shop|log", "--queues", 1)  # no stream
    said = gateway(directory, "vhosts delete shop", code=2).said
    assert "2 queues, 1 exchange" in said
    assert "--force" in said
    assert [row["vhost"] for row in told(directory, "vhosts list")] == ["/", "shop"]
    assert told(directory, "vhosts delete shop --force") == {
        "vhost": "shop",
        "deleted": True,
        "queues": 2,
        "exchanges": 1,
        "topics": 0,
    }
    left = json.loads(warren("queue", "list", directory, "--json").stdout)
    assert sorted(row["name"] for row in left) == ["@shopping:list", "own"]
    assert not [name for name in Catalog.load(directory).exchanges if name.startswith("@shop:")]
    warren("topic", "delete", "--yes", directory, "shop|log")
    warren("queue", "delete", "--yes", directory, "@shopping:list", "own")


def test_a_deletion_that_was_killed_in_the_middle_goes_on(directory: Path) -> None:
    """The vhost is not in the file any more, and its queue is there."""
    warren("queue", "declare", directory, "@shop:orders")
    assert told(directory, "vhosts delete shop --force")["queues"] == 1
    assert "there is no vhost" in gateway(directory, "vhosts delete shop --force", code=2).said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("users delete nobody", "gateway users list"),
        ("users password nobody", "gateway users list"),
        ("users tags nobody x", "gateway users list"),
        ("users limits guest", "--max-connections"),
        ("users add x --no-password --password-file y", "only one of them"),
        ("users add x --password-file /nowhere/at/all", "cannot read /nowhere/at/all"),
        ("users add x", "--password-file"),
        ("permissions set guest --write ( --configure .* --read .*", "'(' is not a regular expression"),
        ("permissions set guest --vhost nope --configure .* --write .* --read .*", "gateway vhosts list"),
        (
            "permissions set guest",
            "missing: give all of --configure, --write and --read",
        ),
        ("permissions set guest --read .*", "--configure and --write are missing"),
        ("permissions set guest --configure .* --write .*", "--read is missing"),
        ("permissions set guest --exchange x", "--write and --read are missing"),
        ("permissions set guest --exchange x --write .*", "--read is missing: give both of --write and --read"),
        ("permissions set guest --exchange x --configure y", "routing keys"),
        ("permissions list --user nobody", "gateway users list"),
        ("permissions list --vhost nope", "gateway vhosts list"),
        ("vhosts delete /", "is not deleted"),
        ("vhosts delete nope", "gateway vhosts list"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(directory: Path, line: str, said: str) -> None:
    code = 1 if "nowhere" in line else 2
    assert said in gateway(directory, line, code=code).said
    assert not users_file.path_of(directory).exists()


def test_a_node_that_does_not_run(tmp_path: Path) -> None:
    chosen = tmp_path / "node"
    warren("up", chosen, "--detach", "--workers", 1)
    gateway(chosen, "vhosts add shop")
    warren("queue", "declare", chosen, "@shop:orders")
    warren("stop", chosen)
    gateway(chosen, "users add alice", given="secret\n")
    gateway(chosen, "permissions set alice --vhost shop --configure .* --write .* --read .*")
    assert [row["user"] for row in told(chosen, "users list")] == ["alice", "guest"]
    assert "1 queue ('orders'): nothing was deleted" in gateway(chosen, "vhosts delete shop", code=2).said
    warren("up", chosen, "--detach")
    warren("queue", "declare", chosen, "@shop:a", "@shop:b", "@shop:c")
    warren("stop", chosen)
    assert "4 queues ('orders', 'a', 'b' …): nothing was" in gateway(chosen, "vhosts delete shop", code=2).said
    assert "no node runs" in gateway(chosen, "vhosts delete shop --force", code=3).said
    assert [row["vhost"] for row in told(chosen, "vhosts list")] == ["/", "shop"], "nothing was deleted"
    gateway(chosen, "vhosts add other")
    gateway(chosen, "vhosts delete other")


def test_a_directory_of_no_node(tmp_path: Path) -> None:
    for line in ("users list", "users add x", "permissions list", "vhosts list", "vhosts add x", "vhosts delete x"):
        assert "is not a data directory" in gateway(tmp_path, line, given="x\n", code=3).said
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_named(directory: Path) -> None:
    users_file.path_of(directory).write_text("{}")
    for line in ("users list", "users add x --no-password", "vhosts list"):
        said = gateway(directory, line, code=3).said
        assert "users.json" in said
        assert "move it away" in said
