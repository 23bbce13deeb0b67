"""Key stores that keytool and OpenSSL wrote (tests/data/key_stores), and what is said about unusable ones."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.decrepit.ciphers.algorithms import RC2
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.modes import CBC

from tests.data.key_stores.record import KEY_PASSWORD, PASSWORD
from tests.security.handshake import shake_hands
from tests.support.certificates import make_authority, make_certificate
from tidelog.config import ConfigError
from tidelog.config.values import Password
from tidelog.security import private_file as private_files
from tidelog.security.der import Der, DerError, encode
from tidelog.security.key_stores import KeyStoreSettings, TrustStoreSettings, load_identities, load_trusted
from tidelog.security.pem import pem_blocks
from tidelog.security.private_file import private_file
from tidelog.security.rc2 import decrypt_cbc
from tidelog.security.tls import TlsSettings, client_context, server_context

FOLDER = Path(__file__).parent.parent / "data" / "key_stores"
STORE = Password(PASSWORD)
KEY = Password(KEY_PASSWORD)


def key_store(name: str, password: Password | None = STORE, **given: object) -> KeyStoreSettings:
    settings = KeyStoreSettings(location=str(FOLDER / name), password=password)
    return replace(settings, **given)  # type: ignore[arg-type]


def trust_store(name: str, password: Password | None = STORE, kind: str | None = None) -> TrustStoreSettings:
    return TrustStoreSettings(kind, str(FOLDER / name), password)


def subjects(text: str | None) -> list[str]:
    """The common names of certificates in PEM."""
    assert text is not None
    names = []
    for block in pem_blocks(text):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=block.text)
        der = ssl.PEM_cert_to_DER_cert(block.text)
        names.append(_subject(der))
    return names


def _subject(certificate: bytes) -> str:
    subject = Der.parse(certificate).items()[0].items()[5]
    return subject.items()[0].items(0x31)[0].items()[1].content.decode()


@pytest.mark.parametrize(
    ("name", "key_password"),
    [("server.jks", KEY), ("server.p12", None), ("legacy.p12", None), ("openssl.p12", None)],
)
def test_a_listener_and_a_client_use_stores(name: str, key_password: Password | None) -> None:
    server = server_context(
        TlsSettings(keystore_location=str(FOLDER / name), keystore_password=STORE, key_password=key_password)
    )
    client = client_context(
        TlsSettings(truststore_location=str(FOLDER / "trust.p12"), truststore_password=STORE)
    )
    shake_hands(server, client)


def test_a_store_with_keys_of_two_types_serves_clients_of_both() -> None:
    server = server_context(
        TlsSettings(keystore_location=str(FOLDER / "server.p12"), keystore_password=STORE)
    )
    trust = {"truststore_location": str(FOLDER / "trust.jks"), "truststore_password": STORE}
    for kind, suite in (("RSA", "ECDHE_RSA"), ("EC", "ECDHE_ECDSA")):
        settings = TlsSettings(cipher_suites=(f"TLS_{suite}_WITH_AES_128_GCM_SHA256",), **trust)  # type: ignore[arg-type]
        _, client = shake_hands(server, client_context(settings))
        certificate = client.getpeercert(binary_form=True)
        assert certificate is not None
        assert _subject(certificate) == f"server-{kind.lower()}"


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("trust.jks", STORE),
        ("trust.jks", None),  # as in Java the digest is not checked then
        ("trust.p12", STORE),
        ("trust-legacy.p12", STORE),
        ("trust-open.p12", None),
        ("trust-open.p12", STORE),
    ],
)
def test_trusted_certificates(name: str, password: Password | None) -> None:
    assert sorted(subjects(load_trusted(trust_store(name, password)))) == ["authority", "other"]


def test_a_store_with_keys_trusts_what_java_trusts() -> None:
    """The entries with certificates and the keys' own certificates, not the authorities above these."""
    trusted = subjects(load_trusted(trust_store("server.p12")))
    assert sorted(trusted) == ["other", "server-ec", "server-rsa"]
    assert subjects(load_trusted(trust_store("openssl.p12"))) == ["server-rsa"]
    assert subjects(load_trusted(trust_store("server.jks"))) == ["server-rsa"]


def test_openssl_does_not_mark_trusted_certificates() -> None:
    assert subjects(load_trusted(trust_store("openssl-trust.p12"))) == ["other"]


@pytest.mark.parametrize("kind", ["JKS", "PKCS12", "pkcs12"])
@pytest.mark.parametrize("name", ["trust.jks", "trust.p12"])
def test_java_opens_jks_and_pkcs12_by_either_name(name: str, kind: str) -> None:
    assert load_trusted(trust_store(name, kind=kind)) is not None


def test_a_store_without_a_type_is_what_its_file_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.security")
    load_identities(key_store("server.jks", key_password=KEY))
    assert "server.jks is read as JKS; ssl.keystore.type is not set" in caplog.text
    caplog.clear()
    load_identities(key_store("server.jks", type="JKS", key_password=KEY))
    assert caplog.text == ""


def test_the_chain_of_a_key_is_whole() -> None:
    for name, password in (("server.jks", KEY), ("legacy.p12", None), ("openssl.p12", None)):
        (identity,) = load_identities(key_store(name, key_password=password))
        assert subjects(identity.chain) == ["server-rsa", "authority"]
        assert "PRIVATE" not in repr(identity)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (key_store("server.p12", None), r"^ssl\.keystore\.password: needed by the PKCS12 store"),
        (
            key_store("server.p12", Password("wrong word")),
            r"^ssl\.keystore\.password=\[hidden\]: it does not open ssl\.keystore\.location=.*server\.p12",
        ),
        (
            key_store("server.jks", Password("wrong word")),
            r"^ssl\.keystore\.password=\[hidden\]: it does not open ssl\.keystore\.location=.*server\.jks",
        ),
        (
            key_store("server.jks"),
            r"^ssl\.key\.password: needed: the key 'server-rsa' has another password than its store",
        ),
        (
            key_store("server.jks", key_password=Password("wrong word")),
            r"^ssl\.key\.password=\[hidden\]: it does not open the key 'server-rsa'",
        ),
        (
            key_store("legacy.p12", key_password=Password("wrong word")),
            r"^ssl\.key\.password=\[hidden\]: it does not open the key 'server-rsa'",
        ),
        (key_store("server.jceks"), r"server\.jceks: stores in JCEKS cannot be read; keytool"),
        (key_store("trust.p12"), r"^ssl\.keystore\.location=.*: the store lacks a private key"),
        (key_store("record.py"), r"^ssl\.keystore\.location=.*: the file is none of JKS, PKCS12, PEM"),
        (key_store("server.p12", type="BKS"), r"^ssl\.keystore\.type=BKS: expected one of JKS, PKCS12, PEM"),
        (
            key_store("server.p12", type="PEM"),
            r"^ssl\.keystore\.location=.*: the file is a PKCS12 store, but ssl\.keystore\.type=PEM",
        ),
        (key_store("authority.pem"), r"^ssl\.keystore\.password=\[hidden\]: a PEM file has no password"),
    ],
)
def test_an_unusable_key_store_is_explained(settings: KeyStoreSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_identities(settings)
    assert "wrong word" not in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_an_unusable_trust_store_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^ssl\.truststore\.password: needed: the store has a password"):
        load_trusted(trust_store("trust.p12", None))
    with pytest.raises(ConfigError, match=r"^ssl\.truststore\.password=\[hidden\]: a PEM file"):
        load_trusted(trust_store("authority.pem"))
    for name in ("trust.p12", "trust.jks", "trust-legacy.p12"):
        cut = tmp_path / name
        cut.write_bytes((FOLDER / name).read_bytes()[:-100])
        for password in (STORE, None):
            with pytest.raises(ConfigError, match=r"^ssl\.truststore\."):
                load_trusted(TrustStoreSettings(None, str(cut), password))


@pytest.mark.parametrize("name", ["server.jks", "trust-open.p12"])
def test_a_damaged_store_never_ends_in_another_error(name: str, tmp_path: Path) -> None:
    """Each byte in turn is wrong, in formats whose digest need not be checked."""
    data = (FOLDER / name).read_bytes()
    path = tmp_path / name
    refused = 0
    for at in range(0, len(data), 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :])
        try:
            load_trusted(TrustStoreSettings("JKS", str(path), None))
        except ConfigError:
            refused += 1
    assert refused > 0


def test_old_ciphers() -> None:
    key, iv, text = os.urandom(16), os.urandom(8), os.urandom(80)
    work = Cipher(RC2(key), CBC(iv)).encryptor()
    assert decrypt_cbc(key, iv, work.update(text) + work.finalize()) == text


def test_indefinite_lengths_are_read() -> None:
    pieces = b"\x24\x80" + b"\x04\x02ab" + b"\x04\x01c" + b"\0\0"
    value = Der.parse(b"\x30\x80" + pieces + b"\0\0")
    assert value.items()[0].octets == b"abc"
    with pytest.raises(DerError):
        Der.parse(b"\x30\x80" + pieces)
    assert len(encode(4, bytes(300))) == 304


def test_a_key_is_not_left_on_a_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with private_file(b"secret") as path:
        assert Path(path).read_bytes() == b"secret"
        assert path.startswith("/proc/self/fd/")
    assert not os.path.exists(path)


def test_a_system_without_files_in_memory_gets_an_encrypted_key_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(private_files.tempfile, "tempdir", str(tmp_path))
    written: list[str] = []
    load = ssl.SSLContext.load_cert_chain

    def look(context: ssl.SSLContext, path: str, **given: object) -> None:
        written.append(Path(path).read_text())
        assert os.stat(path).st_mode & 0o077 == 0
        load(context, path, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", look)
    signed = make_certificate(make_authority())
    server_context(
        TlsSettings.of(
            {"ssl.keystore.key": signed.key_pem(), "ssl.keystore.certificate.chain": signed.chain_pem}
        )
    )
    assert "BEGIN ENCRYPTED PRIVATE KEY" in written[0]
    assert list(tmp_path.iterdir()) == []
