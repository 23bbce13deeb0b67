"""A certificate authority for one cluster: keys, certificates and key stores, as PEM and PKCS12.

The authority lives in two files. It signs certificates of brokers and clients, first and again when they are
renewed. Brokers and Kafka's own programs read the PEM files and the PKCS12 stores alike.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
KEY_TYPES = ("EC", "RSA")
RSA_BITS = 3072
"""As strong as the curve P-256, which is the default."""

CLOCK_SKEW = datetime.timedelta(minutes=5)
"""Certificates are valid a little before they are made: clocks of other machines may be behind."""


@dataclass(slots=True, frozen=True, repr=False)
class KeyPair:
    """A private key, its certificate, and the certificates of its signers."""

    key: PrivateKey
    certificate: x509.Certificate
    chain: tuple[x509.Certificate, ...] = ()

    def key_pem(self) -> bytes:
        """PKCS8, the one format of keys that Kafka reads from PEM."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def certificate_pem(self) -> bytes:
        return certificates_pem((self.certificate, *self.chain))

    def keystore_pkcs12(self, alias: str, password: str) -> bytes:
        return pkcs12.serialize_key_and_certificates(
            alias.encode(),
            self.key,
            self.certificate,
            self.chain,
            serialization.BestAvailableEncryption(password.encode()),
        )


class CertificateAuthority:
    """Signs certificates; made anew for each cluster."""

    def __init__(self, pair: KeyPair, key_type: str, days: int) -> None:
        self.pair = pair
        self.key_type = key_type
        self.days = days
        """How long the certificates that it signs are valid."""

    @classmethod
    def create(cls, name: str, key_type: str = "EC", days: int = 365) -> CertificateAuthority:
        key = new_key(key_type)
        builder = _builder(_subject(name), None, key, days)
        usage = x509.KeyUsage(
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
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(KeyPair(key, certificate), key_type, days)

    @classmethod
    def load(cls, key_pem: bytes, certificate_pem: bytes, days: int) -> CertificateAuthority:
        """The authority of `create` again, from its key and certificates that have its own among them.

        ValueError if none of the certificates is its own.
        """
        key = serialization.load_pem_private_key(key_pem, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise ValueError("the key is neither an EC nor an RSA key")
        for certificate in x509.load_pem_x509_certificates(certificate_pem):
            if key.public_key() == certificate.public_key():
                return cls(KeyPair(key, certificate), key_type_of(key.public_key()), days)
        raise ValueError("the key and the certificate do not belong together")

    def has_signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self.pair.certificate)
        except (ValueError, InvalidSignature):
            return False
        return True

    def renewed(self, certificate: x509.Certificate) -> KeyPair:
        """A new key with a certificate for the same subject, names and uses."""
        found = certificate.extensions
        usages = found.get_extension_for_class(x509.ExtendedKeyUsage).value
        try:
            names = list(found.get_extension_for_class(x509.SubjectAlternativeName).value)
        except x509.ExtensionNotFound:
            names = []
        return self._issue(certificate.subject, list(usages), names)

    def broker(self, name: str, alternative_names: Iterable[str]) -> KeyPair:
        """A certificate for both sides: a broker accepts connections, and connects to other brokers."""
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(_subject(name), both, [general_name(text) for text in alternative_names])

    def client(self, name: str) -> KeyPair:
        return self._issue(_subject(name), [ExtendedKeyUsageOID.CLIENT_AUTH], [])

    def _issue(
        self,
        subject: x509.Name,
        usages: Sequence[x509.ObjectIdentifier],
        alternative_names: Sequence[x509.GeneralName],
    ) -> KeyPair:
        signer = self.pair.certificate
        key = new_key(self.key_type)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=self.key_type == "RSA",
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=False,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        authority_key = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            _builder(subject, signer.subject, key, self.days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_key), critical=False
            )
        )
        if alternative_names:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
        return KeyPair(key, builder.sign(self.pair.key, hashes.SHA256()), (signer,))


def certificates_pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(map(_pem, certificates))


def truststore_pkcs12(certificates: Sequence[x509.Certificate], password: str) -> bytes:
    """A store that Java trusts: its entries carry Java's mark of a trusted certificate."""
    entries = [
        pkcs12.PKCS12Certificate(certificate, b"ca" if number == 0 else f"ca-{number + 1}".encode())
        for number, certificate in enumerate(certificates)
    ]
    return pkcs12.serialize_java_truststore(entries, serialization.BestAvailableEncryption(password.encode()))


def new_key(key_type: str) -> PrivateKey:
    if key_type == "RSA":
        return rsa.generate_private_key(65537, RSA_BITS)
    return ec.generate_private_key(ec.SECP256R1())


def key_type_of(key: object) -> str:
    """The type of a public key, as `new_key` takes it."""
    return "RSA" if isinstance(key, rsa.RSAPublicKey) else "EC"


def general_name(text: str) -> x509.GeneralName:
    """An address or a host name, as it stands in a certificate. ValueError for neither."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    if not text or len(text) > 253 or not all(part and len(part) < 64 for part in text.split(".")):
        raise ValueError(f"{text!r} is neither an address nor the name of a host")
    return x509.DNSName(text.encode("idna").decode() if not text.isascii() else text)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name | None, key: PrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
