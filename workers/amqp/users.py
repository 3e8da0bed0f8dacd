"""The users of a gateway process: who logs in, and what each may do in a vhost.

`Users` follows `DIR/users.json` (users_file.py): it looks at most every half second whether there is another one, at
once before it refuses anybody, and takes it as a whole. A file that cannot be read or is wrong changes nothing: the
last good one holds, and the log says why. At the start there is no last good one: then the error is raised.

`check` blocks for a hash of a password (20 ms of a core, 19 MiB): it is called in a few threads of their own, never in
the loop. Passwords that were right a moment ago cost a keyed digest alone, so clients that come back all at once after
a restart are in soon. The key is this process's own and random; a changed password or user is another entry.

`User` is one login. What it may do is looked up once for each name (`may`), until the file changes.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
import pwd
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from warren.engine.errors import Error
from warren.engine.saying import Say, shown, silent
from warren.workers.amqp import passwords, users_file
from warren.workers.amqp.users_file import ADMINISTRATOR, ALL, Account, Accounts, Rights, Vhost

Permission = Literal["configure", "write", "read"]
Kind = Literal["queue", "exchange"]

#: how often, at most, the file is looked at
LOOK_S = 0.5
#: right passwords that are remembered, and for how long
RIGHT_MAX, RIGHT_S = 4096, 300.0
#: decisions that a login remembers
DECISIONS_MAX = 2048
#: the name that the default exchange has in permissions
DEFAULT_EXCHANGE = "amq.default"


class Users:
    """Those of a data directory. Any thread may call anything. Raises StoreError and its kinds if the file is wrong."""

    def __init__(self, directory: Path, say: Say = silent, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory, self._say, self._clock = directory, say, clock
        self._lock = threading.Lock()
        self._signature: tuple[Any, ...] | None = None
        self._looked = clock()
        self._right = _RightPasswords(clock)
        self._nobody: tuple[str, passwords.Algorithm] | None = None
        self.generation = 0  #: it rises with each new content
        self._signature = users_file.signature(directory)
        self.accounts = users_file.load(directory)  #: replaced as a whole, never changed

    def refresh(self, *, now: bool = False) -> bool:
        """Take what the file says, if it is another one; it is looked at every half second, or `now`. Whether it was.

        A gateway calls this once a second at least, and closes the connections that `why_closed` names then.
        """
        with self._lock:
            moment = self._clock()
            if not now and moment - self._looked < LOOK_S:
                return False
            self._looked = moment
            try:
                signature = users_file.signature(self._directory)
                if signature == self._signature:
                    return False
                self._signature = signature  # what is wrong is said once, not twice a second
                self.accounts = users_file.load(self._directory)
            except (Error, OSError) as error:
                self._say(
                    f"users and permissions stay as they were, because the new ones cannot be used: {error}",
                    logging.ERROR,
                )
                return False
            self.generation += 1
            return True

    # -- logging in -----------------------------------------------------------------------------------------------

    def check(self, name: str, password: bytes, peer: str) -> User | None:
        """Who logs in with this name and password from `peer` (an address; empty: a Unix socket). None: refused, the
        log says why, and the peer is not told. It blocks for a hash. Raises LimitError (argon2-cffi is not there).
        """
        self.refresh()
        why = self._why_refused(name, password, peer)
        if why is not None and self.refresh(now=True):  # what was changed a moment ago counts
            why = self._why_refused(name, password, peer)
        if why is None:
            return User(self, name)
        self._refused(name, peer, why)
        return None

    def _why_refused(self, name: str, password: bytes, peer: str) -> str | None:
        account = self.accounts.users.get(name)
        if account is None:
            self._as_slow(password)
            return "there is no such user"
        if not self._is_right(name, account, password):
            return "wrong password" if account.password_hash else "the user has no password"
        if account.loopback_only and not is_local(peer):
            return "this user can only connect via localhost"
        return None

    def external(self, uid: int) -> User | None:
        """Who connects by a Unix socket as this user of the system: the gateway's user of that name or, when there is
        none, for the user who runs the node, one who may do everything. None: refused.
        """
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = str(uid)
        found = self.named(name)
        if found is None and uid == os.geteuid():
            return User(self, name, owner=True)
        if found is None:
            self._refused(name, "", "there is no user with the name of this user of the system")
        return found

    def named(self, name: str) -> User | None:
        """The user of this name, who was recognised by other means (a certificate, the system). None: there is none."""
        self.refresh(now=name not in self.accounts.users)
        return User(self, name) if name in self.accounts.users else None

    def _is_right(self, name: str, account: Account, password: bytes) -> bool:
        token = self._right.token(name, account.password_hash, password)
        if self._right.has(token):
            return True
        algorithm = passwords.check_kept("", account.hashing_algorithm)
        if not passwords.right(password, account.password_hash, algorithm):
            return False
        self._right.add(token)
        return True

    def _as_slow(self, password: bytes) -> None:
        """Nobody's password is checked, so that the time does not tell which names there are."""
        if self._nobody is None:
            argon2 = any(found.hashing_algorithm == passwords.ARGON2 for found in self.accounts.users.values())
            algorithm: passwords.Algorithm = passwords.ARGON2 if argon2 else "rabbit_password_hashing_sha256"
            self._nobody = passwords.make(secrets.token_bytes(16), algorithm), algorithm
        passwords.right(password, *self._nobody)

    def _refused(self, name: str, peer: str, why: str) -> None:
        self._say(f"login of user {shown(name)} from {peer or 'a Unix socket'} was refused: {why}", logging.WARNING)

    # -- vhosts ---------------------------------------------------------------------------------------------------

    def vhost(self, name: str) -> Vhost | None:
        """A virtual host. None: there is none of that name."""
        if name not in self.accounts.vhosts:
            self.refresh(now=True)
        return self.accounts.vhosts.get(name)

    def why_closed(self, user: User, vhost: str) -> str | None:
        """Why a connection cannot go on, after the file has changed: the text of its close (320). None: it can."""
        if not user.exists:
            return f"user '{user.name}' was deleted"
        if vhost not in self.accounts.vhosts:
            return f"vhost '{vhost}' was deleted"
        return None


class User:
    """One login. Used by one thread."""

    def __init__(self, users: Users, name: str, *, owner: bool = False) -> None:
        self.name = name
        self._users, self._owner = users, owner
        self._accounts: Accounts | None = None
        self._decided: dict[tuple[str, ...], bool] = {}

    @property
    def account(self) -> Account | None:
        """What the file says of this user now. None: not there any more, or whoever runs the node."""
        return self._users.accounts.users.get(self.name)

    @property
    def exists(self) -> bool:
        return self._owner or self.name in self._users.accounts.users

    @property
    def tags(self) -> frozenset[str]:
        account = self.account
        if account is None:
            return frozenset({ADMINISTRATOR}) if self._owner else frozenset()
        return frozenset(account.tags)

    def limit(self, name: str) -> int | None:
        """A limit of this user, `max-connections` or `max-channels`. None: unlimited."""
        account = self.account
        found = None if account is None else account.limits.get(name)
        return None if found is None or found < 0 else found

    def enters(self, vhost: str) -> bool:
        """Whether this user may open a connection to a vhost."""
        return self._rights(vhost) is not None or (self._users.refresh(now=True) and self._rights(vhost) is not None)

    def may(self, permission: Permission, kind: Kind, name: str, vhost: str) -> bool:
        """Whether this user may configure, write or read a queue or an exchange of a vhost."""
        asked = (permission, kind, name, vhost)
        decided = self._decisions()
        found = decided.get(asked, False)
        if not found:
            found = self._may(permission, kind, name, vhost)
            if not found and self._users.refresh(now=True):  # what was allowed a moment ago counts
                decided, found = self._decisions(), self._may(permission, kind, name, vhost)
            if found:
                decided[asked] = found
        return found

    def may_topic(self, permission: Literal["write", "read"], exchange: str, key: str, vhost: str) -> bool:
        """Whether this user may use a routing key of a topic exchange; without topic permissions: any."""
        if self.account is None or not self.account.topic_permissions:
            return self.exists
        asked = (permission, "topic", exchange, key, vhost)
        decided = self._decisions()
        found = decided.get(asked, False)
        if not found:
            found = self._may_topic(permission, exchange, key, vhost)
            if not found and self._users.refresh(now=True):
                decided, found = self._decisions(), self._may_topic(permission, exchange, key, vhost)
            if found:
                decided[asked] = found
        return found

    def _decisions(self) -> dict[tuple[str, ...], bool]:
        accounts = self._users.accounts
        if accounts is not self._accounts or len(self._decided) >= DECISIONS_MAX:
            self._decided = {}
            self._accounts = accounts
        return self._decided

    def _rights(self, vhost: str) -> Rights | None:
        accounts = self._users.accounts
        account = accounts.users.get(self.name)
        if account is not None:
            return account.permissions.get(vhost)
        return Rights(ALL, ALL, ALL) if self._owner and vhost in accounts.vhosts else None

    def _may(self, permission: Permission, kind: Kind, name: str, vhost: str) -> bool:
        rights = self._rights(vhost)
        if rights is None:
            return False
        pattern: str = getattr(rights, permission)
        found = DEFAULT_EXCHANGE if kind == "exchange" and not name else name
        return users_file.compiled(pattern).search(found) is not None

    def _may_topic(self, permission: str, exchange: str, key: str, vhost: str) -> bool:
        account = self.account
        if account is None:
            return self.exists
        rights = account.topic_permissions.get(vhost, {}).get(exchange or DEFAULT_EXCHANGE)
        if rights is None:
            return True
        pattern: str = getattr(rights, permission)
        for word, value in (("{username}", self.name), ("{vhost}", vhost)):
            pattern = pattern.replace(word, re.escape(value))
        return users_file.compiled(pattern).search(key) is not None


def is_local(peer: str) -> bool:
    """Whether an address is this host's own (empty: a Unix socket)."""
    if not peer:
        return True
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class _RightPasswords:
    """Passwords that were right within the last minutes, as keyed digests."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._lock = threading.Lock()

    def token(self, *parts: str | bytes) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in parts:
            raw = part.encode() if isinstance(part, str) else part
            digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.digest()

    def has(self, token: bytes) -> bool:
        with self._lock:
            until = self._until.get(token)
            if until is None:
                return False
            if self._clock() >= until:
                del self._until[token]
                return False
            return True

    def add(self, token: bytes) -> None:
        with self._lock:
            self._until[token] = self._clock() + RIGHT_S
            self._until.move_to_end(token)
            if len(self._until) > RIGHT_MAX:
                self._until.popitem(last=False)
