"""The certificates that brokers show to new connections, and whose certificates they accept."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from cryptography import x509

from tests.support import secure
from tests.support.broker import Broker


def serial_of(broker: Broker) -> int:
    """The serial number of the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=str(secure.security_folder().path / "ca.pem"))
    with (
        socket.create_connection(broker.address, 20) as plain,
        context.wrap_socket(plain, server_hostname=broker.host) as connection,
    ):
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number


def serial_in(file: Path) -> int:
    return x509.load_pem_x509_certificates(file.read_bytes())[0].serial_number


def accepts(broker: Broker, certificate: Path) -> bool:
    """Whether the broker accepts this certificate of a client."""
    context = ssl.create_default_context(cafile=str(secure.security_folder().path / "ca.pem"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # with TLS 1.3 a client learns of a refusal later
    context.load_cert_chain(certificate)
    try:
        with (
            socket.create_connection(broker.address, 20) as plain,
            context.wrap_socket(plain, server_hostname=broker.host),
        ):
            return True
    except (ssl.SSLError, ConnectionError):
        return False
