"""Rules for a key store that replaces another one while connections are open, as in Kafka."""

from __future__ import annotations

import ssl
from collections import Counter
from dataclasses import dataclass, replace

from tidelog.config import ConfigError
from tidelog.security.certificate_fields import end_of
from tidelog.security.der import DerError
from tidelog.security.distinguished_name import alternative_names, subject_of
from tidelog.security.key_stores import load_identities
from tidelog.security.pem import pem_blocks
from tidelog.security.tls import TlsSettings, client_context, server_context


@dataclass(slots=True, frozen=True)
class CertificateNames:
    """The names of the certificate of one key, and when it ends, in seconds since 1970."""

    distinguished: str
    alternative: frozenset[bytes]
    end: float


def certificate_names(settings: TlsSettings) -> tuple[CertificateNames, ...]:
    """The names of the certificates of all keys of a key store. Raises ConfigError."""
    found = []
    for identity in load_identities(settings.key_store):
        certificate = next(block for block in pem_blocks(identity.chain) if block.is_certificate)
        der = ssl.PEM_cert_to_DER_cert(certificate.text)
        try:
            found.append(CertificateNames(subject_of(der), alternative_names(der), end_of(der)))
        except DerError as error:
            problem = f"the certificate is not valid: {error}"
            raise ConfigError(identity.setting, identity.shown, problem) from None
    return tuple(found)


def check_names(
    settings: TlsSettings,
    old: tuple[CertificateNames, ...],
    new: tuple[CertificateNames, ...],
    *,
    allow_dn_changes: bool,
    allow_san_changes: bool,
) -> None:
    """Refuse a key store whose certificates have other names than the old one's. Raises ConfigError."""
    name, shown = settings.name("keystore.location"), settings.keystore_location
    if len(old) != len(new):
        raise ConfigError(name, shown, f"the store has {len(new)} keys, the one in use has {len(old)}")
    if not allow_dn_changes and Counter(one.distinguished for one in old) != Counter(
        one.distinguished for one in new
    ):
        was, now = (" and ".join(one.distinguished for one in names) for names in (old, new))
        problem = f"the name of the certificate is {now}, not {was}; ssl.allow.dn.changes=true allows that"
        raise ConfigError(name, shown, problem)
    if not allow_san_changes:
        kept = frozenset[bytes]().union(*(one.alternative for one in new))
        if not kept.issuperset(frozenset[bytes]().union(*(one.alternative for one in old))):
            problem = (
                "the certificate lacks an alternative name of the one in use; "
                "ssl.allow.san.changes=true allows that"
            )
            raise ConfigError(name, shown, problem)


def check_trusts_itself(settings: TlsSettings) -> None:
    """Refuse stores with which brokers of the same settings could not connect. Raises ConfigError."""
    if not settings.trust_store.is_given:
        return  # the certificates of the system decide, and may differ from broker to broker
    name = settings.name("keystore.location")
    any_host = replace(settings, endpoint_identification_algorithm="")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context(settings).wrap_bio(to_server, to_client, server_side=True)
    client = client_context(any_host).wrap_bio(to_client, to_server)
    waiting = [client, server]
    for _ in range(8):  # a handshake takes at most three turns
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                reason = getattr(error, "verify_message", "") or error.reason or str(error)
                problem = f"brokers with these stores cannot connect to each other: {reason}"
                raise ConfigError(name, settings.keystore_location, problem) from None
        if not waiting:
            return
    raise ConfigError(name, settings.keystore_location, "a handshake between brokers does not end")
