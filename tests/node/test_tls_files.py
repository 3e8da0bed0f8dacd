"""Goal: what is wrong with the files of TLS is said before anything is served by them: which file, and what to do.
Nobody is asked for a pass phrase.

Method: the certificates of the gateway's tests, broken in each way that people do.
"""

import os
import ssl
from pathlib import Path

import pytest

from warren.engine.config import Settings
from warren.engine.errors import UsageError
from warren.workers.process import tls

FILES = Path(__file__).parent.parent / "amqp" / "tls"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One with files of all kinds; the key of `server.pem` is in the middle of it."""
    key, certificate = parts("server.pem")
    (tmp_path / "key.pem").write_text(key)
    (tmp_path / "certificate.pem").write_text(certificate)
    (tmp_path / "other_key.pem").write_text(parts("guest.pem")[0])
    (tmp_path / "encrypted.pem").write_text((FILES / "encrypted_key.pem").read_text())
    (tmp_path / "encrypted_too.pem").write_text(certificate + (FILES / "encrypted_key.pem").read_text())
    (tmp_path / "cut_key.pem").write_text(key[:100])
    (tmp_path / "cut.pem").write_text(certificate[:200])
    (tmp_path / "der.pem").write_bytes(ssl.PEM_cert_to_DER_cert(certificate))
    (tmp_path / "text.pem").write_text("hello\n")
    (tmp_path / "large.pem").write_bytes(bytes(tls.FILE_BYTES_MAX + 1))
    os.mkfifo(tmp_path / "fifo.pem")
    return tmp_path


def parts(name: str) -> tuple[str, str]:
    """Key and certificate of a file."""
    key, begins, rest = (FILES / name).read_text().partition("-----BEGIN CERTIFICATE-----")
    return key, begins + rest


def context(folder: Path, certificate: str, key: str = "", ca: str = "") -> ssl.SSLContext:
    given = {"amqp_tls_certificate": certificate, "amqp_tls_key": key, "amqp_tls_ca": ca}
    return tls.context(Settings(**{name: str(folder / file) if file else "" for name, file in given.items()}))


def test_what_belongs_together_is_taken(folder: Path) -> None:
    assert context(folder, "certificate.pem", "key.pem").verify_mode == ssl.CERT_NONE
    assert context(folder, "certificate.pem", "key.pem", "certificate.pem").verify_mode == ssl.CERT_REQUIRED
    assert tls.context(Settings(amqp_tls_certificate=str(FILES / "server.pem")))


@pytest.mark.parametrize(
    ("certificate", "key", "ca", "wrong", "said"),
    [
        ("none.pem", "key.pem", "", "amqp_tls_certificate", "none.pem.*No such file"),
        ("certificate.pem", "none.pem", "", "amqp_tls_key", "none.pem.*No such file"),
        ("certificate.pem", "key.pem", "none.pem", "amqp_tls_ca", "none.pem.*No such file"),
        ("certificate.pem", "", "", "amqp_tls_key", "certificate.pem, has no private key"),
        ("certificate.pem", "certificate.pem", "", "amqp_tls_key", "has no private key in PEM format"),
        ("certificate.pem", "other_key.pem", "", "amqp_tls_key", "other_key.pem.*is not that of the certificate"),
        ("certificate.pem", "encrypted.pem", "", "amqp_tls_key", "is encrypted.*openssl pkey -in .*encrypted.pem"),
        ("encrypted_too.pem", "", "", "amqp_tls_certificate", "is encrypted.*openssl pkey -in .*encrypted_too.pem"),
        ("certificate.pem", "cut_key.pem", "", "amqp_tls_key", "private key in .*cut_key.pem.*damaged"),
        ("cut.pem", "key.pem", "", "amqp_tls_certificate", "certificate in .*cut.pem.*damaged"),
        ("der.pem", "key.pem", "", "amqp_tls_certificate", "openssl x509 -inform DER -in .*der.pem"),
        ("text.pem", "key.pem", "", "amqp_tls_certificate", "has no certificate in PEM format"),
        ("certificate.pem", "key.pem", "text.pem", "amqp_tls_ca", "text.pem.*no certificate"),
        ("fifo.pem", "", "", "amqp_tls_certificate", "is no file"),
        ("certificate.pem", "fifo.pem", "", "amqp_tls_key", "is no file"),
        ("certificate.pem", "key.pem", ".", "amqp_tls_ca", "is no file"),
        ("large.pem", "", "", "amqp_tls_certificate", "bytes, which is too much"),
    ],
)
def test_what_is_wrong_names_the_file(
    folder: Path, certificate: str, key: str, ca: str, wrong: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=said) as found:
        context(folder, certificate, key, ca)
    assert f"setting {wrong}" in str(found.value)
    assert str(folder) in str(found.value)
    assert capfd.readouterr() == ("", "")  # nobody was asked for anything
