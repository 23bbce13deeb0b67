"""Keys and certificates of the settings `ssl.keystore.*` and `ssl.truststore.*`.

Every error is a ConfigError that names the setting, never a secret.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from tidelog.config import ConfigError
from tidelog.config.values import Password
from tidelog.security.pem import PemBlock, pem_blocks
from tidelog.security.private_file import private_file

HIDDEN = "[hidden]"


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


@dataclass(slots=True, frozen=True)
class Identity:
    """A private key and the certificates that belong to it, the key's own first, as PEM."""

    pem: str = field(repr=False)
    password: str | None = field(repr=False)
    setting: str
    shown: str

    def load_into(self, context: ssl.SSLContext, password_setting: str) -> None:
        """Use the key in a TLS context. Raises ConfigError if OpenSSL cannot use it."""
        password = self.password
        with private_file(self.pem.encode()) as path:
            try:
                context.load_cert_chain(path, password=lambda: password or "")
            except ssl.SSLError as error:
                if error.reason == "KEY_VALUES_MISMATCH":
                    problem = "the private key does not belong to the first certificate"
                elif password is not None:
                    raise ConfigError(
                        password_setting, HIDDEN, f"this password does not open the key of {self.setting}"
                    ) from None
                else:
                    problem = f"expected a private key and its certificates: {reason_of(error)}"
                raise ConfigError(self.setting, self.shown, problem) from None


def load_identity(settings: KeyStoreSettings) -> Identity | None:
    """The identity of the settings, None if they name none. Raises ConfigError."""
    name = f"{settings.prefix}ssl.keystore.location"
    if settings.key is not None or settings.certificate_chain is not None:
        return _identity_in_settings(settings)
    if settings.location is None:
        return None
    data = read_store(name, settings.location)
    blocks = blocks_of(name, settings.location, data.decode("latin-1"))
    return _pem_identity(settings, blocks, name, settings.location)


def load_trusted(settings: TrustStoreSettings) -> str | None:
    """The trusted certificates as PEM, None if the settings name none. Raises ConfigError."""
    if settings.certificates is not None:
        name, shown = f"{settings.prefix}ssl.truststore.certificates", HIDDEN
        if settings.location is not None:
            raise ConfigError(name, HIDDEN, f"expected without {settings.prefix}ssl.truststore.location")
        text = settings.certificates.secret
    elif settings.location is not None:
        name, shown = f"{settings.prefix}ssl.truststore.location", settings.location
        text = read_store(name, shown).decode("latin-1")
    else:
        return None
    certificates = [block.text for block in blocks_of(name, shown, text) if block.is_certificate]
    if not certificates:
        raise ConfigError(name, shown, "expected certificates in PEM")
    return "".join(certificates)


def read_store(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(name, path, f"the file cannot be read: {error.strerror or error}") from None


def blocks_of(name: str, shown: str, text: str) -> list[PemBlock]:
    try:
        return pem_blocks(text)
    except ValueError as error:
        raise ConfigError(name, shown, f"expected PEM: {error}") from None


def reason_of(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _identity_in_settings(settings: KeyStoreSettings) -> Identity:
    prefix = settings.prefix
    key_name, chain_name = f"{prefix}ssl.keystore.key", f"{prefix}ssl.keystore.certificate.chain"
    if settings.location is not None:
        raise ConfigError(key_name, HIDDEN, f"expected without {prefix}ssl.keystore.location")
    if settings.key is None:
        raise ConfigError(key_name, None, f"needed with {chain_name}")
    if settings.certificate_chain is None:
        raise ConfigError(chain_name, None, f"needed with {key_name}")
    if settings.type is not None and settings.type.upper() != "PEM":
        raise ConfigError(f"{prefix}ssl.keystore.type", settings.type, f"expected PEM with {key_name}")
    keys = blocks_of(key_name, HIDDEN, settings.key.secret)
    chain = blocks_of(chain_name, HIDDEN, settings.certificate_chain.secret)
    return _pem_identity(settings, keys + chain, key_name, HIDDEN)


def _pem_identity(settings: KeyStoreSettings, blocks: list[PemBlock], name: str, shown: str) -> Identity:
    keys = [block for block in blocks if block.is_private_key]
    chain = [block for block in blocks if block.is_certificate]
    if not keys or not chain:
        missing = "a private key" if not keys else "certificates"
        raise ConfigError(
            name, shown, f"expected a private key and its certificates in PEM: {missing} missing"
        )
    password = None
    if keys[0].is_encrypted:
        if settings.key_password is None:
            raise ConfigError(f"{settings.prefix}ssl.key.password", None, "needed: the key is encrypted")
        password = settings.key_password.secret
    return Identity("".join(block.text for block in (keys[0], *chain)), password, name, shown)
