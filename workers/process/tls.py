"""What `tls:` addresses are served with: the files of a certificate, of its key, and of the authorities of clients.

They are read twice: before a node begins, so that what is wrong with them refuses the start, and by each gateway. Both
say which file it is. Nobody is asked for a pass phrase: a node starts where nobody is.
"""

from __future__ import annotations

import os
import re
import shlex
import ssl
import stat

from warren.engine.config import Settings
from warren.engine.errors import UsageError

#: a file with more is none of these; OpenSSL would read it to its end
FILE_BYTES_MAX = 4 << 20
CERTIFICATE, KEY, CA = "amqp_tls_certificate", "amqp_tls_key", "amqp_tls_ca"
_CERTIFICATE_BEGINS = re.compile(rb"^-----BEGIN (X509 |TRUSTED )?CERTIFICATE-----", re.MULTILINE)
#: reasons of OpenSSL: of another pair, of another kind of key
_OTHERS_KEY = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
_KEY_BEGINS = re.compile(rb"^-----BEGIN ([A-Z]+ )*PRIVATE KEY-----", re.MULTILINE)


def context(settings: Settings) -> ssl.SSLContext:
    """A server's context. Raises UsageError, which names the setting and the file that is wrong."""
    certificate, key, ca = settings.amqp_tls_certificate, settings.amqp_tls_key, settings.amqp_tls_ca
    if not _CERTIFICATE_BEGINS.search(_read(CERTIFICATE, certificate)):
        raise _no_pem(CERTIFICATE, certificate, "certificate", "x509")
    key_setting, key_file = (KEY, key) if key else (CERTIFICATE, certificate)
    if not _KEY_BEGINS.search(_read(key_setting, key_file)):
        if key:
            raise _no_pem(KEY, key, "private key", "pkey")
        raise UsageError(
            f"the file of setting {CERTIFICATE}, {_place(certificate)}, has no private key: give the file with its "
            f"key as setting {KEY}"
        )
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    asked: list[bool] = []

    def pass_phrase() -> str:
        asked.append(True)
        return ""

    try:
        made.load_cert_chain(certificate, key or None, password=pass_phrase)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        if asked:
            raise UsageError(
                f"the private key in {_place(key_file)} (setting {key_setting}) is encrypted, and a node has nobody to "
                f"ask for the pass phrase: `openssl pkey -in {_quoted(key_file)} -out NEW` writes it without one; keep "
                f"NEW readable by the node's user alone, and give it as setting {KEY}"
            ) from error
        reason = getattr(error, "reason", None) or ""
        if reason in _OTHERS_KEY:
            raise UsageError(
                f"the private key in {_place(key_file)} (setting {key_setting}) is not that of the certificate in "
                f"{_place(certificate)}: give those that belong together (settings {CERTIFICATE} and {KEY}; the "
                "certificate of this server is the first one of its file)"
            ) from error
        if (wrong := _unreadable(certificate)) is not None:
            raise _unusable(CERTIFICATE, certificate, "certificate", wrong) from error
        if reason.startswith(("EE_", "CA_")):  # too weak for what this OpenSSL demands
            raise _unusable(CERTIFICATE, certificate, "certificate", error) from error
        raise _unusable(key_setting, key_file, "private key", error) from error
    if ca:
        _read(CA, ca)
        made.verify_mode = ssl.CERT_REQUIRED
        try:
            made.load_verify_locations(ca)
        except OSError as error:
            raise _unusable(CA, ca, "certificates of authorities", error) from error
    return made


def _place(path: str) -> str:
    return os.path.abspath(path)


def _quoted(path: str) -> str:
    return shlex.quote(_place(path))


def _read(setting: str, path: str) -> bytes:
    """A file as a whole. Raises UsageError; it does not wait, whatever lies there."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"cannot read {_place(path)}, the file of setting {setting} ({why}): "
            "give a file in PEM format that the node's user may read"
        ) from error
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{_place(path)} is no file: setting {setting} takes one in PEM format")
        if found.st_size > FILE_BYTES_MAX:
            raise UsageError(
                f"{_place(path)}, the file of setting {setting}, has {found.st_size:,} bytes, which is too much for "
                "one in PEM format: give the right file"
            )
        return os.read(opened, FILE_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"cannot read {_place(path)}, the file of setting {setting} ({error.strerror})") from error
    finally:
        os.close(opened)


def _unreadable(certificate: str) -> Exception | None:
    """What OpenSSL says of the certificates of a file alone."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certificate)
    except OSError as error:
        return error
    return None


def _no_pem(setting: str, path: str, what: str, tool: str) -> UsageError:
    return UsageError(
        f"the file of setting {setting}, {_place(path)}, has no {what} in PEM format (a line -----BEGIN …-----): give "
        f"one that has; `openssl {tool} -inform DER -in {_quoted(path)} -out NEW.pem` makes one of a file in DER format"
    )


def _unusable(setting: str, path: str, what: str, error: Exception) -> UsageError:
    reason = getattr(error, "reason", None)
    said = reason.replace("_", " ").lower() if reason else "it is damaged, or a part of it is missing"
    return UsageError(
        f"OpenSSL does not take the {what} in {_place(path)} (setting {setting}): {said}; give another file"
    )
