"""Who logs in: SASL PLAIN, AMQPLAIN and EXTERNAL, and a few threads in which passwords are checked.

A hash of a password takes a thread tens of milliseconds. Logins wait in line for THREADS of them, at most WAITING_MAX
at a time, so that a storm of them takes nothing from connections at work; those beyond are turned away at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from warren.engine._core import amqp_table
from warren.engine.errors import Error, UsageError
from warren.engine.saying import quoted
from warren.workers.amqp.interfaces import Link
from warren.workers.amqp.peers import Peer
from warren.workers.amqp.users import User, Users

log = logging.getLogger("warren.amqp")

THREADS = 2
WAITING_MAX = 2000


class Credentials(NamedTuple):
    """What a client says of itself. No password: its peer proves the name."""

    name: str
    password: bytes | None


def mechanisms(peer: Peer) -> list[str]:
    """What a peer is offered."""
    return ["PLAIN", "AMQPLAIN", *(["EXTERNAL"] if peer.external else [])]


def credentials(mechanism: str, response: bytes, peer: Peer) -> Credentials | None:
    """What a response of a mechanism says; None: it was not offered, or says nothing that can be read."""
    if mechanism not in mechanisms(peer):
        return None
    if mechanism == "EXTERNAL":
        return Credentials(peer.external, None)
    try:
        if mechanism == "AMQPLAIN":
            table = amqp_table(len(response).to_bytes(4, "big") + response)
            name, password = (table[key] for key in ("LOGIN", "PASSWORD"))
            if not (isinstance(name, str | bytes) and isinstance(password, str | bytes)):
                return None
        else:
            authorised, name, password = response.split(b"\0")
            if authorised:  # to be somebody else is not offered
                return None
        name = name if isinstance(name, str) else name.decode()
        return Credentials(name, password.encode() if isinstance(password, str) else password)
    except (UsageError, ValueError, KeyError):
        return None


class Logins:
    """The threads."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="warren-login")
        self._waiting = 0
        self.refused_n = 0

    def close(self) -> None:
        """Nobody waits any more."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def submit(self, link: Link, asked: Credentials, then: Callable[[User | None], None]) -> None:
        """Have credentials checked, and call `then` in the loop with who it is, or None."""
        if self._waiting >= WAITING_MAX:
            self.refused_n += 1
            link.abort(f"{WAITING_MAX} logins wait already")
            return
        self._waiting += 1
        events = link.gateway.events

        def done(user: User | None) -> None:
            self._waiting -= 1
            if user is None:
                self.refused_n += 1
            then(user)

        def check() -> None:
            user = self._check(link.peer, asked)
            try:
                events.call_soon_threadsafe(done, user)
            except RuntimeError:  # the gateway has ended
                log.debug("nobody waits for the login of %s any more", quoted(asked.name))

        self._threads.submit(check)

    def _check(self, peer: Peer, asked: Credentials) -> User | None:
        try:
            if asked.password is not None:
                return self._users.check(asked.name, asked.password, peer.host)
            return self._users.external(peer.uid) if peer.uid >= 0 else self._users.named(asked.name)
        except Error as error:
            log.error("the login of %s cannot be checked: %s", quoted(asked.name), error)
        except Exception:
            log.exception("the login of %s cannot be checked", quoted(asked.name))
        return None
