"""Keys and certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

_USAGE_OF_AUTHORITIES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(slots=True, frozen=True)
class Signed:
    """A key and its certificate. `chain` has the certificates above it that are no root."""

    key: PrivateKey
    certificate: x509.Certificate
    chain: tuple[x509.Certificate, ...] = ()

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def chain_pem(self) -> str:
        above = (one.public_bytes(Encoding.PEM).decode() for one in self.chain)
        return self.certificate_pem + "".join(above)

    def key_pem(self, password: str | None = None) -> str:
        hidden = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden).decode()

    def pem(self, password: str | None = None) -> str:
        return self.key_pem(password) + self.chain_pem


def make_authority(name: str = "authority", above: Signed | None = None) -> Signed:
    """An authority that trusts itself, or that `above` signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, key, above)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(_USAGE_OF_AUTHORITIES, critical=True)
    return Signed(key, _signed(builder, key, above), _chain(above))


def make_certificate(
    authority: Signed,
    name: str = "server",
    *,
    hosts: tuple[str, ...] = ("localhost",),
    rsa_key: bool = False,
    expired: bool = False,
    key_identifiers: bool = True,
) -> Signed:
    """A certificate for hosts and 127.0.0.1; without hosts it has no alternative names."""
    key: PrivateKey = (
        rsa.generate_private_key(65537, 2048) if rsa_key else ec.generate_private_key(ec.SECP256R1())
    )
    builder = _builder(name, key, authority, expired=expired, key_identifiers=key_identifiers)
    if hosts:
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        if "localhost" in hosts:
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Signed(key, _signed(builder, key, authority), _chain(authority))


def _chain(authority: Signed | None) -> tuple[x509.Certificate, ...]:
    if authority is None or authority.certificate.issuer == authority.certificate.subject:
        return ()
    return (authority.certificate, *authority.chain)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    name: str,
    key: PrivateKey,
    authority: Signed | None,
    *,
    expired: bool = False,
    key_identifiers: bool = True,
) -> x509.CertificateBuilder:
    """A certificate, usually with the key identifiers that Python 3.13 and later ask for by default."""
    now = datetime.datetime.now(datetime.UTC)
    issuer = _name(name) if authority is None else authority.certificate.subject
    issuer_key = (key if authority is None else authority.key).public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(minutes=-1 if expired else 2 * 24 * 60))
    )
    if not key_identifiers:
        return builder
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    of_the_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return builder.add_extension(own, critical=False).add_extension(of_the_issuer, critical=False)


def _signed(builder: x509.CertificateBuilder, key: PrivateKey, authority: Signed | None) -> x509.Certificate:
    return builder.sign(key if authority is None else authority.key, hashes.SHA256())
