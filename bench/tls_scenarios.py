"""Brokers with a TLS listener, and the way to it for the load generators."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from broker import Broker, BrokerFailed, Source, free_port

HERE = Path(__file__).parent
PROTOCOLS = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL"
"""Kafka has no protocol for its controller's listener by default beside a listener with TLS."""


@contextmanager
def tls_broker(source: Source, settings: Mapping[str, str] | None = None) -> Iterator[tuple[Broker, Broker]]:
    """A broker by its plain listener, and the same broker by its TLS listener."""
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-keys-", dir=source.folder) as folder:
        keys, trusted = make_keys(Path(folder))
        with _tls_broker(source, settings, keys, trusted) as pair:
            yield pair


@contextmanager
def _tls_broker(
    source: Source, settings: Mapping[str, str] | None, keys: Path, trusted: Path
) -> Iterator[tuple[Broker, Broker]]:
    tls_port, port = free_port(), free_port()
    tls = {
        "listeners": f"{{listeners}},SSL://127.0.0.1:{tls_port}",
        "listener.security.protocol.map": PROTOCOLS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keys),
    }
    with source.broker({**(settings or {}), **tls}) as broker:
        words = [sys.executable, str(HERE / "tls_relay.py"), str(port), str(tls_port), str(trusted)]
        relay = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            assert relay.stdout is not None
            if relay.stdout.readline() != "ready\n":
                raise BrokerFailed("the relay to the TLS listener did not start")
            yield broker, replace(broker, port=port)
        finally:
            relay.kill()
            relay.wait()


def make_keys(folder: Path) -> tuple[Path, Path]:
    """A private key with its certificate, and the certificate alone."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    keys, trusted = folder / "tls-keys.pem", folder / "tls-trusted.pem"
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    keys.write_bytes(private + certificate)
    trusted.write_bytes(certificate)
    return keys, trusted
