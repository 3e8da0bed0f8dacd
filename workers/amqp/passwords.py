"""Passwords of the gateway's users: what is kept of them, and whether one that was given is right.

New passwords are kept as Argon2id, by argon2-cffi. Hashes that RabbitMQ made (a salt of four bytes, and one digest of
salt and password) are taken as they are, so that users who come from there log in unchanged. They are cheap to guess:
a new password replaces one by Argon2id.

A password is bytes of any length up to `PASSWORD_BYTES_MAX`; it is never logged, and no text of an error has it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Literal, get_args

from warren.engine.errors import LimitError, UsageError
from warren.engine.saying import shown

if TYPE_CHECKING:
    from argon2 import PasswordHasher

Algorithm = Literal[
    "argon2id", "rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512", "rabbit_password_hashing_md5"
]
ARGON2: Algorithm = "argon2id"
#: RabbitMQ's, by the digest that each uses
RABBITMQ: dict[Algorithm, str] = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
PASSWORD_BYTES_MAX = 4096
SALT_BYTES = 4
#: Argon2id: 19 MiB, two passes, one lane: 15 to 30 ms of a core
MEMORY_KIB, PASSES, LANES = 19 << 10, 2, 1
#: and at most what a hash of a file that somebody wrote may cost
MEMORY_KIB_MAX, PASSES_MAX, LANES_MAX = 256 << 10, 16, 16


def _hasher() -> PasswordHasher:
    try:
        from argon2 import PasswordHasher
    except ImportError:
        raise LimitError(
            "passwords of the gateway's users need argon2-cffi, which is not installed: pip install 'warren[gateway]'"
        ) from None
    return PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


def make(password: bytes, algorithm: Algorithm = ARGON2) -> str:
    """What is kept of a password. Raises UsageError (too long, empty), LimitError (argon2-cffi is not there)."""
    if not password:
        raise UsageError("the password is empty: give one, or make the user without a password (--no-password)")
    if len(password) > PASSWORD_BYTES_MAX:
        raise UsageError(f"the password has {len(password):,} bytes: at most {PASSWORD_BYTES_MAX:,} are allowed")
    if algorithm == ARGON2:
        return str(_hasher().hash(password))
    salt = secrets.token_bytes(SALT_BYTES)
    return base64.b64encode(salt + _digest(algorithm, salt, password)).decode()


def right(password: bytes, kept: str, algorithm: Algorithm) -> bool:
    """Whether this is the password; it takes as long for a wrong one. What is kept of none is never right.

    Raises LimitError (argon2-cffi is not there).
    """
    if not kept or len(password) > PASSWORD_BYTES_MAX:
        return False
    if algorithm != ARGON2:
        raw = base64.b64decode(kept)
        return hmac.compare_digest(_digest(algorithm, raw[:SALT_BYTES], password), raw[SALT_BYTES:])
    hasher = _hasher()
    from argon2.exceptions import Argon2Error, InvalidHashError

    try:
        return bool(hasher.verify(kept, password))
    except (Argon2Error, InvalidHashError):
        return False


def check_kept(kept: str, algorithm: str) -> Algorithm:
    """The algorithm, when this is a hash of it (empty: no password). Raises UsageError."""
    found: Algorithm | None = next((name for name in get_args(Algorithm) if name == algorithm), None)
    if found is None:
        raise UsageError(
            f"passwords are hashed by {shown(algorithm)}, which is unknown here: {', '.join(get_args(Algorithm))} are "
            "understood"
        )
    if not kept:
        return found
    if found == ARGON2:
        _check_argon2(kept)
        return found
    try:
        raw = base64.b64decode(kept, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"a password hash of {algorithm} is base64, and {shown(kept)} is not") from None
    wanted = SALT_BYTES + hashlib.new(RABBITMQ[found], usedforsecurity=False).digest_size
    if len(raw) != wanted:
        raise UsageError(f"a password hash of {algorithm} has {wanted} bytes, and this one {len(raw)}")
    return found


def _check_argon2(kept: str) -> None:
    """It is one, and checking a password against it costs bounded memory and time."""
    _hasher()
    from argon2 import extract_parameters
    from argon2.exceptions import InvalidHashError

    try:
        found = extract_parameters(kept)
    except InvalidHashError:
        raise UsageError(f"{shown(kept)} is no hash of Argon2") from None
    if found.memory_cost > MEMORY_KIB_MAX or found.time_cost > PASSES_MAX or found.parallelism > LANES_MAX:
        raise UsageError(
            f"a hash of Argon2 asks for {found.memory_cost:,} KiB, {found.time_cost} passes and {found.parallelism} "
            f"lanes: at most {MEMORY_KIB_MAX:,} KiB, {PASSES_MAX} passes and {LANES_MAX} lanes are allowed"
        )


def _digest(algorithm: Algorithm, salt: bytes, password: bytes) -> bytes:
    return hashlib.new(RABBITMQ[algorithm], salt + password, usedforsecurity=False).digest()
