"""`DIR/users.json`: who may use the AMQP gateway of a node, in which virtual hosts, and what for.

Users, virtual hosts and rights are those of RabbitMQ: for each user and vhost three regular expressions, of names that
may be configured (declared, deleted), written and read. A name matches when the expression is found anywhere in it;
the empty expression matches the empty name alone. Without the file there is the vhost `/`, and the user `guest` with
the password `guest`, who may do everything and comes from this host alone.

The file is JSON, mode 0600 (it has hashes of passwords), and checked as a whole when it is read: a gateway never
uses half of it. It is replaced as a whole, durably; who changes it holds `DIR/users.lock` (flock) from reading to
replacing, so two changes do not overwrite each other. The lock's file stays: it has no content. Gateways look once a
second whether the file is another one.

Crash points: killed before the rename, the old file stays; after it, the new one is there. The lock goes with its
holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from warren.engine.errors import CorruptRecord, FormatVersionError, StoreError, TimedOut, UsageError
from warren.engine.kernel import atomic_file, data_files
from warren.engine.saying import shown
from warren.ipc import access
from warren.workers.amqp import passwords
from warren.workers.amqp.passwords import Algorithm

FILE_NAME, LOCK_NAME = "users.json", "users.lock"
VERSION = 1
MODE = access.PRIVATE
FILE_BYTES_MAX = 16 << 20
NAME_BYTES_MAX = 255
PATTERN_CHARACTERS_MAX = 4096
#: how long a change waits for another one
LOCK_S = 10.0
_LOCK_AGAIN_S = 0.02
DEFAULT_VHOST = "/"
GUEST = "guest"
ALL = ".*"
#: limits of a user, of a vhost: as RabbitMQ names them; -1 is none
USER_LIMITS, VHOST_LIMITS = ("max-connections", "max-channels"), ("max-connections", "max-queues")
#: tags that mean something to RabbitMQ; others are kept
ADMINISTRATOR, IMPERSONATOR = "administrator", "impersonator"
TAGS = (ADMINISTRATOR, "monitoring", "policymaker", "management", IMPERSONATOR)


class Rights(msgspec.Struct, forbid_unknown_fields=True):
    """Of a user in a vhost: regular expressions of names."""

    configure: str = ""
    write: str = ""
    read: str = ""


class TopicRights(msgspec.Struct, forbid_unknown_fields=True):
    """Of a user in a vhost and a topic exchange: regular expressions of routing keys."""

    write: str = ""
    read: str = ""


class Account(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A user. `password_hash`: empty: no password logs in."""

    password_hash: str = ""
    hashing_algorithm: str = passwords.ARGON2
    tags: list[str] = []
    loopback_only: bool = False
    permissions: dict[str, Rights] = {}  #: by vhost
    topic_permissions: dict[str, dict[str, TopicRights]] = {}  #: by vhost, and by exchange
    limits: dict[str, int] = {}


class Vhost(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A virtual host."""

    description: str = ""
    tags: list[str] = []
    default_queue_type: str = ""
    limits: dict[str, int] = {}


class Accounts(msgspec.Struct, forbid_unknown_fields=True):
    """Content of users.json."""

    format_version: int
    users: dict[str, Account]
    vhosts: dict[str, Vhost]

    def check(self) -> None:
        """Raises UsageError saying what is wrong."""
        for name, vhost in self.vhosts.items():
            check_name("vhost", name)
            _check_limits(f"vhost {shown(name)}", vhost.limits, VHOST_LIMITS)
        for name, account in self.users.items():
            check_name("user", name)
            passwords.check_kept(account.password_hash, account.hashing_algorithm)
            _check_limits(f"user {shown(name)}", account.limits, USER_LIMITS)
            for rights in account.permissions.values():
                for pattern in (rights.configure, rights.write, rights.read):
                    check_pattern(pattern)
            for exchanges in account.topic_permissions.values():
                for topics in exchanges.values():
                    check_pattern(topics.write)
                    check_pattern(topics.read)

    def forget_vhost(self, name: str) -> None:
        """Remove a vhost, and the rights in it."""
        del self.vhosts[name]
        for account in self.users.values():
            account.permissions.pop(name, None)
            account.topic_permissions.pop(name, None)


def defaults() -> Accounts:
    """What holds without a file."""
    algorithm: Algorithm = "rabbit_password_hashing_sha256"  # everybody knows it: it is not worth 20 ms
    guest = Account(
        passwords.make(GUEST.encode(), algorithm),
        algorithm,
        [ADMINISTRATOR],
        True,
        {DEFAULT_VHOST: Rights(ALL, ALL, ALL)},
    )
    return Accounts(VERSION, {GUEST: guest}, {DEFAULT_VHOST: Vhost("Default virtual host")})


# -- what may be in it ------------------------------------------------------------------------------------------------


def check_name(what: str, name: str) -> str:
    """A name of a user or a vhost, when it is allowed. Raises UsageError."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {shown(name)} cannot be written as UTF-8: {error.reason}") from None
    if not 0 < size <= NAME_BYTES_MAX:
        raise UsageError(f"the name of a {what} has 1 to {NAME_BYTES_MAX} bytes, and {shown(name)} has {size}")
    return name


@lru_cache(2048)
def compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression of a permission, to be searched for in a name. Raises UsageError."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise UsageError(
            f"a regular expression has {len(pattern):,} characters: at most {PATTERN_CHARACTERS_MAX:,} are allowed"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # [[:alpha:]] is no class of characters here
            return re.compile(pattern or "^$")
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        raise UsageError(
            f"{shown(pattern)} is not a regular expression of Python: {error}; '.*' matches every name, '' none"
        ) from None


def check_pattern(pattern: str) -> str:
    """A regular expression of a permission. Raises UsageError."""
    compiled(pattern)
    return pattern


def _check_limits(whose: str, limits: dict[str, int], known: tuple[str, ...]) -> None:
    for name in limits:
        if name not in known:
            raise UsageError(f"{whose} has the limit {shown(name)}, and there are only {' and '.join(known)}")


# -- the file ---------------------------------------------------------------------------------------------------------


class _Version(msgspec.Struct):
    format_version: int


def path_of(directory: Path) -> Path:
    """Where it is, in the data directory of a node."""
    return directory / FILE_NAME


def load(directory: Path) -> Accounts:
    """What it says; without the file, what holds then. Raises StoreError and its kinds."""
    path = path_of(directory)
    try:
        with data_files.reading(path) as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return defaults()
    except OSError as error:
        raise atomic_file.explain(error, f"cannot read {path}") from error
    return decode(path, content)


def decode(path: Path, content: bytes) -> Accounts:
    """Raises CorruptRecord, FormatVersionError."""
    if len(content) > FILE_BYTES_MAX:
        raise StoreError(f"{path} has more than {FILE_BYTES_MAX >> 20} MiB: it is not the gateway's; move it away")
    try:
        version = msgspec.json.decode(content, type=_Version).format_version
        if version > VERSION:
            raise FormatVersionError(
                f"{path} has format version {version}, and this Warren reads up to {VERSION}: use a newer one"
            )
        accounts = msgspec.json.decode(content, type=Accounts)
        accounts.check()
    except (msgspec.MsgspecError, UnicodeDecodeError, UsageError, RecursionError) as error:
        raise CorruptRecord(
            path,
            0,
            "users and permissions of the gateway",
            str(error),
            "mend it, or move it away: then guest alone is in",
        ) from error
    return accounts


def save(directory: Path, accounts: Accounts) -> None:
    """Replace it, durably. Raises UsageError (what is in it is wrong), StoreError and its kinds."""
    accounts.check()
    content = msgspec.json.format(msgspec.json.encode(accounts), indent=2) + b"\n"
    if len(content) > FILE_BYTES_MAX:
        raise UsageError(f"users and permissions have {len(content):,} bytes: at most {FILE_BYTES_MAX:,} are allowed")
    atomic_file.replace(path_of(directory), content, MODE)


@contextlib.contextmanager
def changing(directory: Path, wait_s: float = LOCK_S) -> Iterator[Accounts]:
    """What it says, to be changed; it is saved at the end, when it was changed and nothing was raised.

    Raises TimedOut (another change takes longer than `wait_s`), and what load and save raise.
    """
    path = directory / LOCK_NAME
    try:
        lock = data_files.open(path, os.O_RDWR | os.O_CREAT, MODE)
    except OSError as error:
        raise atomic_file.explain(error, f"cannot open {path}") from error
    try:
        _wait_for(lock, path, wait_s)
        accounts = load(directory)
        before = msgspec.json.encode(accounts)
        yield accounts
        if msgspec.json.encode(accounts) != before:
            save(directory, accounts)
    finally:
        os.close(lock)


def _wait_for(lock: int, path: Path, wait_s: float) -> None:
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise TimedOut(
                    f"users and permissions are being changed by another process, which holds {path} for more than "
                    f"{wait_s:g} s: try again when it has ended"
                ) from None
            time.sleep(_LOCK_AGAIN_S)


def signature(directory: Path) -> tuple[Any, ...] | None:
    """What tells one content of the file from another, without reading it. None: there is no file. Raises OSError."""
    try:
        found = os.stat(path_of(directory))
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
