"""TLS contexts of listeners and clients, from the settings `ssl.*`."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

from tidelog.config import ConfigError
from tidelog.config.values import Password
from tidelog.security.cipher_suites import TLS13_SUITES, choose_tls13_suites, openssl_name
from tidelog.security.key_stores import (
    KeyStoreSettings,
    TrustStoreSettings,
    load_identities,
    load_trusted,
)

log = logging.getLogger("tidelog.security")

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
OLD_VERSIONS = ("SSL", "SSLv2", "SSLv3", "SSLv2Hello", "TLSv1", "TLSv1.1")
CLIENT_AUTH = {"required": ssl.CERT_REQUIRED, "requested": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}


@dataclass(slots=True, frozen=True)
class TlsSettings:
    """The settings `ssl.*` of one listener or client.

    A store type of None means that it was not set. `prefix` stands before the names of settings in errors,
    such as `listener.name.external.`.
    """

    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    protocol: str = "TLSv1.3"
    cipher_suites: tuple[str, ...] = ()
    endpoint_identification_algorithm: str = "https"
    client_auth: str = "none"
    keystore_type: str | None = None
    keystore_location: str | None = None
    keystore_password: Password | None = None
    key_password: Password | None = None
    keystore_key: Password | None = None
    keystore_certificate_chain: Password | None = None
    truststore_type: str | None = None
    truststore_location: str | None = None
    truststore_password: Password | None = None
    truststore_certificates: Password | None = None
    prefix: str = ""

    @classmethod
    def read(cls, given: Callable[[str], str | None], prefix: str = "") -> Self:
        """`given` returns the text of a setting such as `ssl.keystore.location`, None if it was not set."""
        settings = cls(prefix=prefix)
        found: dict[str, object] = {}
        for item in fields(cls):
            name = "ssl." + item.name.replace("_", ".")
            text = None if item.name == "prefix" else given(name)
            if text is None:
                continue
            text = text.strip()
            if item.name in _LISTS:
                found[item.name] = tuple(part.strip() for part in text.split(",") if part.strip())
            elif item.name in _SECRETS:
                found[item.name] = Password(text)
            elif text or item.name in _MAY_BE_EMPTY:
                found[item.name] = text
        return replace(settings, **found)  # type: ignore[arg-type]  # each has the type of its field

    @classmethod
    def of(cls, given: Mapping[str, str], prefix: str = "") -> Self:
        """The settings of a mapping with names such as `ssl.keystore.location`."""
        return cls.read(given.get, prefix)

    def name(self, setting: str) -> str:
        return f"{self.prefix}ssl.{setting}"

    @property
    def key_store(self) -> KeyStoreSettings:
        return KeyStoreSettings(
            self.keystore_type,
            self.keystore_location,
            self.keystore_password,
            self.key_password,
            self.keystore_key,
            self.keystore_certificate_chain,
            self.prefix,
        )

    @property
    def trust_store(self) -> TrustStoreSettings:
        return TrustStoreSettings(
            self.truststore_type,
            self.truststore_location,
            self.truststore_password,
            self.truststore_certificates,
            self.prefix,
        )


_LISTS = frozenset({"enabled_protocols", "cipher_suites"})
_SECRETS = frozenset(
    {
        "keystore_password",
        "key_password",
        "keystore_key",
        "keystore_certificate_chain",
        "truststore_password",
        "truststore_certificates",
    }
)
_MAY_BE_EMPTY = frozenset({"endpoint_identification_algorithm"})


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a listener. Raises ConfigError that names the setting."""
    if not settings.key_store.is_given:
        raise ConfigError(settings.name("keystore.location"), None, "needed by a listener with TLS")
    if settings.client_auth not in CLIENT_AUTH:
        expected = f"expected one of {', '.join(CLIENT_AUTH)}"
        raise ConfigError(settings.name("client.auth"), settings.client_auth, expected)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = CLIENT_AUTH[settings.client_auth]
    context.options |= ssl.OP_NO_RENEGOTIATION
    _choose_versions(context, settings)
    _identify(context, settings)
    if context.verify_mode is not ssl.CERT_NONE:
        _trust(context, settings, ssl.Purpose.CLIENT_AUTH)
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a client. Without a trust store it trusts the system's certificates.

    Raises ConfigError that names the setting.
    """
    algorithm = settings.endpoint_identification_algorithm
    if algorithm.lower() not in ("", "https"):
        name = settings.name("endpoint.identification.algorithm")
        raise ConfigError(name, algorithm, "expected https, or nothing to accept any host name")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = algorithm != ""
    _choose_versions(context, settings)
    _trust(context, settings, ssl.Purpose.SERVER_AUTH)
    _identify(context, settings)
    return context


def https_context() -> ssl.SSLContext:
    """The context of a request to an HTTPS server. It trusts the system's certificates.

    The default context of Python 3.13 and later refuses a certificate without key identifiers; this one takes
    it on every Python, as connections to brokers do.
    """
    return client_context(TlsSettings())


def enabled_versions(settings: TlsSettings) -> list[str]:
    """The versions of TLS that the settings allow. Raises ConfigError if they allow no secure version."""
    name = settings.name("enabled.protocols")
    shown = ",".join(settings.enabled_protocols)
    if any(each not in VERSIONS and each not in OLD_VERSIONS for each in settings.enabled_protocols):
        raise ConfigError(name, shown, f"expected a list of {', '.join(VERSIONS)}")
    versions = [each for each in settings.enabled_protocols if each in VERSIONS]
    if not settings.enabled_protocols:
        name, shown = settings.name("protocol"), settings.protocol
        versions = list(VERSIONS) if shown == "TLS" else [shown] if shown in VERSIONS else []
    if not versions:
        raise ConfigError(name, shown, f"expected {' or '.join(VERSIONS)}: older versions are not secure")
    return versions


def _choose_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    versions = enabled_versions(settings)
    if settings.enabled_protocols and len(versions) < len(settings.enabled_protocols):
        shown = ",".join(settings.enabled_protocols)
        name = settings.name("enabled.protocols")
        log.warning("%s=%s: versions older than TLSv1.2 are not secure and stay off", name, shown)
    versions = _choose_suites(context, settings, versions)
    context.minimum_version = min(VERSIONS[each] for each in versions)
    context.maximum_version = max(VERSIONS[each] for each in versions)


def _choose_suites(context: ssl.SSLContext, settings: TlsSettings, versions: list[str]) -> list[str]:
    """Allow the configured suites. Returns the versions of TLS that have a suite."""
    if not settings.cipher_suites:
        return versions
    older = [openssl_name(suite) for suite in settings.cipher_suites if suite not in TLS13_SUITES]
    newer = [suite for suite in settings.cipher_suites if suite in TLS13_SUITES]
    usable = [each for each in versions if (newer if each == "TLSv1.3" else older)]
    name, shown = settings.name("cipher.suites"), ",".join(settings.cipher_suites)
    if not usable:
        raise ConfigError(name, shown, f"no suite of {' or '.join(versions)} is among them")
    for suite in older:
        try:
            context.set_ciphers(suite)
        except ssl.SSLError:
            raise ConfigError(name, shown, f"OpenSSL does not know the suite {suite}") from None
    if older:
        context.set_ciphers(":".join(older))
    if "TLSv1.3" in usable and not choose_tls13_suites(context, newer):
        problem = f"this Python cannot choose among the suites of TLS 1.3: remove {', '.join(newer)}"
        raise ConfigError(name, shown, problem)
    return usable


def _identify(context: ssl.SSLContext, settings: TlsSettings) -> None:
    for identity in load_identities(settings.key_store):
        identity.load_into(context)


def _trust(context: ssl.SSLContext, settings: TlsSettings, purpose: ssl.Purpose) -> None:
    trusted = load_trusted(settings.trust_store)
    if trusted is None:
        context.load_default_certs(purpose)
        return
    # As in Java every certificate of the store is trusted, also one that no authority of the store signed.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=trusted)
    except ssl.SSLError as error:
        location = settings.truststore_location
        name = settings.name("truststore.certificates" if location is None else "truststore.location")
        problem = f"expected certificates: {error.reason or error}"
        raise ConfigError(name, location or "[hidden]", problem) from None
