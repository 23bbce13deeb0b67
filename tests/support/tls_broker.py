"""A broker in this process with listeners that have TLS, and the files of its clients."""

from __future__ import annotations

import os
import ssl
from functools import cache
from pathlib import Path

from tests.support.certificates import Signed, make_authority, make_certificate
from tidelog.testing import Broker


@cache
def authority() -> Signed:
    """The authority of the session: it signs brokers and clients."""
    return make_authority("tests")


@cache
def another_authority() -> Signed:
    return make_authority("strangers")


class TlsFiles:
    """PEM files of a test: the broker's keys, and those of clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trust = self.write("trust.pem", authority().certificate_pem)
        self.server = self.write("server.pem", make_certificate(authority(), "broker").pem())

    def write(self, name: str, text: str) -> str:
        """Replace a file as a careful operator does: other processes see the old one or the new one."""
        path = self.folder / name
        new = self.folder / f"{name}.new"
        new.write_text(text)
        os.replace(new, path)
        return str(path)

    def client(self, name: str, signed_by: Signed | None = None) -> str:
        return self.write(f"{name}.pem", make_certificate(signed_by or authority(), name).pem())

    def client_settings(self, certificate: str | None = None) -> dict[str, str]:
        """The settings of our own clients, which are Kafka's."""
        settings = {"security.protocol": "SSL", "ssl.truststore.location": self.trust}
        settings["ssl.truststore.type"] = "PEM"
        if certificate is not None:
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": certificate}
        return settings

    def client_context(self, certificate: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.trust)
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


def tls_broker(files: TlsFiles, **settings: object) -> Broker:
    """A broker with a PLAINTEXT listener and one with TLS; the caller starts and closes it."""
    return Broker(
        {
            "broker.id": 0,
            "listeners": "PLAINTEXT://127.0.0.1:0,SSL://localhost:0",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": files.server,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": files.trust,
        }
        | {name.replace("__", "."): value for name, value in settings.items()}
    )
