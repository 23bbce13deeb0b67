"""Connections to other brokers use new keys as soon as the other brokers can trust them."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from tests.support.certificates import Signed, make_certificate
from tests.support.tls_broker import TlsFiles, another_authority, authority
from tidelog.endpoints import Endpoint
from tidelog.errors import KafkaError
from tidelog.server.broker_transport import BrokerTransport


async def shown_serials(
    transport: BrokerTransport, files: TlsFiles, changes: list[Signed | str]
) -> list[int]:
    """The serial numbers of the transport's certificates, at first and after each change of its files.

    A change is a new certificate, or new trusted certificates.
    """
    found: list[int] = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        found.append(x509.load_der_x509_certificate(certificate).serial_number)
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.write("other.pem", make_certificate(authority(), "other").pem()))
    context.verify_mode = ssl.CERT_REQUIRED
    both = authority().certificate_pem + another_authority().certificate_pem
    context.load_verify_locations(cadata=both)
    async with await asyncio.start_server(note, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        for change in [None, *changes]:
            if isinstance(change, Signed):
                files.write("server.pem", change.pem())
            elif change is not None:
                files.write("trust.pem", change)
            with pytest.raises(KafkaError):  # the other side closes the connection
                await transport.connect(2, Endpoint("SSL", "SSL", "127.0.0.1", port), timeout=20)
    return found


def test_keys_that_other_brokers_do_not_trust_yet_wait_for_the_trust(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the listener, which refuses such keys: else no broker could connect to another one until then."""
    files = TlsFiles(tmp_path)
    old = make_certificate(authority(), "broker")
    files.write("server.pem", old.pem())
    properties = {
        "bootstrap.servers": "127.0.0.1:1",
        "ssl.endpoint.identification.algorithm": "",
        **files.client_settings(files.server),
    }
    transport = BrokerTransport(properties, lambda: properties)
    renewed = make_certificate(authority(), "broker")
    of_another = make_certificate(another_authority(), "broker")
    both = authority().certificate_pem + another_authority().certificate_pem
    with caplog.at_level(logging.ERROR, "tidelog.server"):
        found = asyncio.run(shown_serials(transport, files, [renewed, of_another, both]))
    wanted = [old, renewed, renewed, of_another]
    assert found == [each.certificate.serial_number for each in wanted]
    (line,) = caplog.messages
    assert "connections to brokers keep their keys" in line
