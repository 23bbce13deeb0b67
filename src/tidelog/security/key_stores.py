"""Keys and certificates of the settings `ssl.keystore.*` and `ssl.truststore.*`: PEM, PKCS12 or JKS.

Every error is a ConfigError that names the setting, never a secret.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, field

from tidelog.config import ConfigError
from tidelog.config.values import Password
from tidelog.security.jks import MAGIC as JKS_MAGIC
from tidelog.security.jks import read_jks
from tidelog.security.pem import PemBlock, pem, pem_blocks
from tidelog.security.pkcs12 import read_pkcs12
from tidelog.security.private_file import is_in_memory, private_file
from tidelog.security.private_keys import encrypted_key, key_type
from tidelog.security.store_entries import KeyEntry, KeyStore, KeyStoreError, WrongPassword

log = logging.getLogger("tidelog.security")

HIDDEN = "[hidden]"
TYPES = ("JKS", "PKCS12", "PEM")
JCEKS_MAGIC = b"\xce\xce\xce\xce"
_CONVERT = "keytool -importkeystore with -deststoretype PKCS12 converts it"


@dataclass(slots=True, frozen=True)
class KeyStoreSettings:
    """Where the private key and the certificates of this side are.

    A type of None means that it was not set: the store is what its file is. `prefix` stands before the names
    of the settings in errors.
    """

    type: str | None = None
    location: str | None = None
    password: Password | None = None
    key_password: Password | None = None
    key: Password | None = None
    certificate_chain: Password | None = None
    prefix: str = ""

    @property
    def is_given(self) -> bool:
        return self.location is not None or self.key is not None or self.certificate_chain is not None

    def name(self, setting: str) -> str:
        if self.prefix == "zookeeper." and setting == "key.password":
            setting = "keystore.password"  # ZooKeeper has one password for the store and its key
        return f"{self.prefix}ssl.{setting}"


@dataclass(slots=True, frozen=True)
class TrustStoreSettings:
    """Where the trusted certificates are."""

    type: str | None = None
    location: str | None = None
    password: Password | None = None
    certificates: Password | None = None
    prefix: str = ""

    @property
    def is_given(self) -> bool:
        return self.location is not None or self.certificates is not None

    def name(self, setting: str) -> str:
        return f"{self.prefix}ssl.{setting}"


@dataclass(slots=True, frozen=True)
class Identity:
    """A private key and the certificates that belong to it, the key's own first, as PEM.

    `setting` with the value `shown` is the origin. `password` opens the key if it is encrypted.
    """

    key: str = field(repr=False)
    chain: str = field(repr=False)
    password: Password | None
    setting: str
    shown: str
    password_setting: str

    def load_into(self, context: ssl.SSLContext) -> None:
        """Use the key in a TLS context. Raises ConfigError if OpenSSL cannot use it."""
        key, password = self.key, "" if self.password is None else self.password.secret
        if self.password is None and not is_in_memory():
            key, password = encrypted_key(key)
        with private_file((key + self.chain).encode()) as path:
            try:
                context.load_cert_chain(path, password=lambda: password)
            except ssl.SSLError as error:
                if error.reason == "KEY_VALUES_MISMATCH":
                    problem = "the private key does not belong to the first certificate"
                elif self.password is not None:
                    wrong = f"this password does not open the key of {self.setting}"
                    raise ConfigError(self.password_setting, HIDDEN, wrong) from None
                else:
                    problem = f"OpenSSL cannot use the key and its certificates: {reason_of(error)}"
                raise ConfigError(self.setting, self.shown, problem) from None


def load_identities(settings: KeyStoreSettings) -> list[Identity]:
    """The keys of the settings, at most one of each type such as RSA. Raises ConfigError."""
    if settings.key is not None or settings.certificate_chain is not None:
        return [_identity_in_settings(settings)]
    if settings.location is None:
        return []
    name = settings.name("keystore.location")
    data = _read_file(name, settings.location)
    kind = _store_type(settings.name("keystore"), settings.type, settings.location, data)
    if kind == "PEM":
        if settings.password is not None and settings.key_password is None:
            problem = f"a PEM file has no password; the key's is {settings.name('key.password')}"
            raise ConfigError(settings.name("keystore.password"), HIDDEN, problem)
        blocks = _blocks(name, settings.location, data.decode("latin-1"))
        return [_pem_identity(settings, blocks, name, settings.location)]
    if settings.password is None:
        raise ConfigError(settings.name("keystore.password"), None, f"needed by the {kind} store of {name}")
    store = _open_store(settings.name("keystore"), kind, data, settings.location, settings.password)
    return _identities_of(settings, store)


def load_trusted(settings: TrustStoreSettings) -> str | None:
    """The trusted certificates as PEM, None if the settings name none. Raises ConfigError."""
    if settings.certificates is not None:
        name, shown = settings.name("truststore.certificates"), HIDDEN
        if settings.location is not None:
            raise ConfigError(name, HIDDEN, f"expected without {settings.name('truststore.location')}")
        if settings.type is not None and settings.type.upper() != "PEM":
            raise ConfigError(settings.name("truststore.type"), settings.type, f"expected PEM with {name}")
        text = settings.certificates.secret
    elif settings.location is not None:
        name, shown = settings.name("truststore.location"), settings.location
        data = _read_file(name, shown)
        kind = _store_type(settings.name("truststore"), settings.type, shown, data)
        if kind != "PEM":
            store = _open_store(settings.name("truststore"), kind, data, shown, settings.password)
            if not store.trusted:
                raise ConfigError(name, shown, f"the {kind} store has no trusted certificate")
            return "".join(pem("CERTIFICATE", certificate) for certificate in store.trusted)
        if settings.password is not None:
            problem = "a PEM file with certificates has no password"
            raise ConfigError(settings.name("truststore.password"), HIDDEN, problem)
        text = data.decode("latin-1")
    else:
        return None
    certificates = [block.text for block in _blocks(name, shown, text) if block.is_certificate]
    if not certificates:
        raise ConfigError(name, shown, "expected certificates in PEM")
    return "".join(certificates)


def reason_of(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _read_file(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(name, path, f"the file cannot be read: {error.strerror or error}") from None


def _store_type(store: str, given: str | None, path: str, data: bytes) -> str:
    """The type of a file. `store` is the setting's name without its last word.

    Java opens JKS and PKCS12 stores by either name; so do we.
    """
    found = _type_of(data)
    name = f"{store}.location"
    if found == "JCEKS" or (given or "").upper() == "JCEKS":
        raise ConfigError(name, path, f"stores in JCEKS cannot be read; {_CONVERT}")
    if given is None:
        if found is None:
            raise ConfigError(name, path, f"the file is none of {', '.join(TYPES)}")
        log.info("%s=%s is read as %s; %s.type is not set", name, path, found, store)
        return found
    if (kind := given.upper()) not in TYPES:
        raise ConfigError(f"{store}.type", given, f"expected one of {', '.join(TYPES)}")
    if (found == "PEM") != (kind == "PEM") or found is None:
        really = "no store" if found is None else f"a {found} store"
        raise ConfigError(name, path, f"the file is {really}, but {store}.type={given}")
    return found


def _type_of(data: bytes) -> str | None:
    if data.startswith(JKS_MAGIC):
        return "JKS"
    if data.startswith(JCEKS_MAGIC):
        return "JCEKS"
    if b"-----BEGIN " in data:
        return "PEM"
    return "PKCS12" if data.startswith(b"\x30") else None


def _open_store(store: str, kind: str, data: bytes, path: str, password: Password | None) -> KeyStore:
    read = read_jks if kind == "JKS" else read_pkcs12
    try:
        return read(data, None if password is None else password.secret)
    except WrongPassword as error:
        if password is None:
            raise ConfigError(f"{store}.password", None, f"needed: {error}") from None
        problem = f"it does not open {store}.location={path}: {error}"
        raise ConfigError(f"{store}.password", HIDDEN, problem) from None
    except KeyStoreError as error:
        raise ConfigError(f"{store}.location", path, str(error)) from None


def _identities_of(settings: KeyStoreSettings, store: KeyStore) -> list[Identity]:
    assert settings.location is not None
    name = settings.name("keystore.location")
    entries = [entry for entry in store.keys if entry.chain]
    if not entries:
        problem = "a certificate for its private key" if store.keys else "a private key"
        raise ConfigError(name, settings.location, f"the store lacks {problem}")
    chosen: dict[str, Identity] = {}
    used: list[str] = []
    for entry in entries:
        key = _open_key(settings, entry)
        kind = key_type(key)
        if kind in chosen:
            continue
        chain = "".join(pem("CERTIFICATE", certificate) for certificate in entry.chain)
        chosen[kind] = Identity(
            pem("PRIVATE KEY", key), chain, None, name, settings.location, settings.name("key.password")
        )
        used.append(entry.alias)
    if len(entries) > len(used):
        shown = ", ".join(repr(alias) for alias in used)
        log.info("%s=%s has %d keys; %s is used", name, settings.location, len(entries), shown)
    return list(chosen.values())


def _open_key(settings: KeyStoreSettings, entry: KeyEntry) -> bytes:
    password = settings.key_password or settings.password
    assert password is not None
    try:
        return entry.open(password.secret)
    except WrongPassword:
        problem = f"it does not open the key {entry.alias!r} of {settings.name('keystore.location')}"
        if settings.key_password is None:
            problem = f"needed: the key {entry.alias!r} has another password than its store"
            raise ConfigError(settings.name("key.password"), None, problem) from None
        raise ConfigError(settings.name("key.password"), HIDDEN, problem) from None
    except KeyStoreError as error:
        raise ConfigError(settings.name("keystore.location"), settings.location, str(error)) from None


def _blocks(name: str, shown: str, text: str) -> list[PemBlock]:
    try:
        return pem_blocks(text)
    except ValueError as error:
        raise ConfigError(name, shown, f"expected PEM: {error}") from None


def _identity_in_settings(settings: KeyStoreSettings) -> Identity:
    key_name, chain_name = settings.name("keystore.key"), settings.name("keystore.certificate.chain")
    if settings.location is not None:
        raise ConfigError(key_name, HIDDEN, f"expected without {settings.name('keystore.location')}")
    if settings.key is None:
        raise ConfigError(key_name, None, f"needed with {chain_name}")
    if settings.certificate_chain is None:
        raise ConfigError(chain_name, None, f"needed with {key_name}")
    if settings.type is not None and settings.type.upper() != "PEM":
        raise ConfigError(settings.name("keystore.type"), settings.type, f"expected PEM with {key_name}")
    keys = _blocks(key_name, HIDDEN, settings.key.secret)
    chain = _blocks(chain_name, HIDDEN, settings.certificate_chain.secret)
    return _pem_identity(settings, keys + chain, key_name, HIDDEN)


def _pem_identity(settings: KeyStoreSettings, blocks: list[PemBlock], name: str, shown: str) -> Identity:
    keys = [block for block in blocks if block.is_private_key]
    chain = [block for block in blocks if block.is_certificate]
    if not keys or not chain:
        missing = "a private key" if not keys else "certificates"
        expected = f"expected a private key and its certificates in PEM: {missing} missing"
        raise ConfigError(name, shown, expected)
    password, password_setting = None, settings.name("key.password")
    if keys[0].is_encrypted:
        password = settings.key_password
        if password is None:
            raise ConfigError(password_setting, None, "needed: the key is encrypted")
    text = "".join(block.text for block in chain)
    return Identity(keys[0].text, text, password, name, shown, password_setting)
