"""HTTPS servers of others: identity providers, collectors, S3. Every Python takes the same certificates."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from tests.support.certificates import Signed, make_authority, make_certificate
from tidelog.console.errors import ApiError
from tidelog.console.oidc import Provider
from tidelog.security import jwks
from tidelog.server.tracing import OtlpJsonExporter
from tidelog.spark.tables.conditional_put import S3Place


class Answers(BaseHTTPRequestHandler):
    """Describes an OIDC provider, and takes spans and objects."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer()

    do_PUT = do_DELETE = do_POST

    def _answer(self) -> None:
        issuer = f"https://{self.headers['Host']}"
        ends = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        body = json.dumps({"issuer": issuer} | {end: f"{issuer}/{end}" for end in ends}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def https_server(identity: Signed, folder: Path) -> Iterator[str]:
    """The URL of a server with this certificate."""
    pem = folder / "server.pem"
    pem.write_text(identity.pem())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def s3(url: str) -> S3Place:
    return S3Place(url, "bucket", "table", "region", "key", "secret")


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Signed:
    """An authority that the system trusts."""
    authority = make_authority()
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(authority.certificate_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    return authority


def test_a_certificate_without_key_identifiers_is_trusted(authority: Signed, tmp_path: Path) -> None:
    """ssl.create_default_context() of Python 3.13 and later refuses it."""
    with https_server(make_certificate(authority, key_identifiers=False), tmp_path) as url:
        assert b"issuer" in jwks.fetch(url)
        assert Provider.discover(url).token_endpoint == f"{url}/token_endpoint"
        assert OtlpJsonExporter(url).export([]) is SpanExportResult.SUCCESS
        assert s3(url).has_conditional_writes() is False, "it takes the second write, too"


@pytest.mark.parametrize("hosts", [("localhost",), ("elsewhere",)])
def test_a_certificate_of_a_stranger_or_for_another_host_is_refused(
    authority: Signed, tmp_path: Path, hosts: tuple[str, ...]
) -> None:
    signer = make_authority("stranger") if hosts == ("localhost",) else authority
    with https_server(make_certificate(signer, hosts=hosts), tmp_path) as url:
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            jwks.fetch(url)
        with pytest.raises(ApiError, match="CERTIFICATE_VERIFY_FAILED"):
            Provider.discover(url)
        assert OtlpJsonExporter(url).export([]) is SpanExportResult.FAILURE
        with pytest.raises(ssl.SSLCertVerificationError):
            s3(url).has_conditional_writes()
