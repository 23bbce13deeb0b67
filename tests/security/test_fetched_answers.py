"""A broker, console or client reads a short answer from an HTTP server, and follows no redirect."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from opentelemetry.sdk.trace.export import SpanExportResult

from tests.support.certificates import make_authority, make_certificate
from tests.support.sasl_walks import Walk, oauth
from tidelog.clients.sasl import token_endpoint
from tidelog.clients.sasl.token_endpoint import TokenEndpoint
from tidelog.clients.settings import producer_settings
from tidelog.config import Password
from tidelog.console import oidc
from tidelog.console.errors import ApiError
from tidelog.errors import KafkaError
from tidelog.security import jwks
from tidelog.security.jwks import Jwks
from tidelog.security.sasl.oauthbearer import InvalidToken
from tidelog.server import tracing
from tidelog.testing import Broker

Answer = Callable[[BaseHTTPRequestHandler], None]
KEY = ec.generate_private_key(ec.SECP256R1())
KEYS = json.dumps({"keys": [json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key())) | {"kid": "k"}]})


class Server:
    """Gives the same answer to each request, and counts requests."""

    def __init__(self, answer: Answer, context: ssl.SSLContext | None) -> None:
        self.requests = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests += 1
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                try:
                    answer(self)
                except OSError:
                    pass  # the client has read enough

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.url = f"http{'s' if context else ''}://localhost:{self.http.server_port}"


@contextmanager
def serving(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(answer, context)
    with server.http:
        thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.http.shutdown()
            thread.join()


def body(content: bytes, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def redirect(status: int, url: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Location", url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def token_endpoint_at(url: str) -> TokenEndpoint:
    given = {
        "bootstrap_servers": "127.0.0.1:1",
        "sasl_oauthbearer_client_credentials_client_id": "me",
        "sasl_oauthbearer_client_credentials_client_secret": "secret",
        "sasl_login_retry_backoff_max_ms": 1,
    }
    return TokenEndpoint(url, producer_settings(given), {})


def post(url: str) -> None:
    """The console asks the provider for tokens."""
    attempt = oidc.Attempt("nonce", "verifier", b"", "https://console", "/", 0.0)
    settings = oidc.OidcSettings(url, "console", Password("secret"))
    oidc.Provider(url, url, Jwks(url)).redeem(settings, "code", attempt)


def export(url: str) -> None:
    """A broker sends spans to a collector."""
    if tracing.OtlpJsonExporter(url).export([]) is SpanExportResult.FAILURE:
        raise OSError("the collector does not take them")


ASKS: dict[str, Callable[[str], object]] = {
    "keys": jwks.fetch,
    "discovery": oidc.Provider.discover,
    "redeem": post,
    "token": lambda url: token_endpoint_at(url).fetch(),
    "spans": export,
}
FAILED = (OSError, ApiError, KafkaError)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A certificate of an authority that the system trusts."""
    authority = make_authority()
    trusted, pem = tmp_path / "trusted.pem", tmp_path / "server.pem"
    trusted.write_text(authority.certificate_pem)
    pem.write_text(make_certificate(authority).pem())
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


@pytest.mark.parametrize("ask", ["keys", "discovery", "redeem", "spans"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int, ask: str, context: ssl.SSLContext, tmp_path: Path) -> None:
    found = tmp_path / "keys.json"
    found.write_text(KEYS)
    with serving(body(KEYS.encode())) as plain, serving(body(KEYS.encode()), context) as other:
        for target in (other.url, plain.url, found.as_uri(), f"data:application/json,{KEYS}"):
            with serving(redirect(status, target), context) as first:
                with pytest.raises(FAILED):
                    ASKS[ask](first.url)
                assert first.requests == 1
        assert (plain.requests, other.requests) == (0, 0)


def test_a_client_secret_does_not_follow_a_redirect() -> None:
    for status in (302, 307, 308):
        with serving(body(b'{"access_token": "t"}')) as other, serving(redirect(status, other.url)) as first:
            with pytest.raises(KafkaError, match=f"status {status}"):
                ASKS["token"](first.url)
            assert (first.requests, other.requests) == (1, 0)


def test_no_token_is_valid_by_the_keys_behind_a_redirect() -> None:
    """The second server has the key of the token, and is not in the allow-list."""
    with serving(body(KEYS.encode())) as other, serving(redirect(302, other.url)) as allowed:
        for server, valid in ((other, True), (allowed, False)):
            settings = {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": server.url,
                "tidelog.sasl.oauthbearer.allowed.urls": server.url,
            }
            before = other.requests
            with Broker(settings) as broker:
                walk = Walk(broker.address_of("SASL_PLAINTEXT"))
                walk.handshake("OAUTHBEARER")
                claims = {"sub": "alice", "exp": 2**31}
                walk.authenticate(oauth(jwt.encode(claims, KEY, "ES256", {"kid": "k"})))
                walk.close()
                last = walk.answers[-1]
                assert isinstance(last, dict)
                assert (last["authBytes"] == "") is valid, last
            assert other.requests - before == int(valid)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ENDLESS = {
    "body": (HEAD + b"\r\n", b" "),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "header": (HEAD + b"X-Long: ", b"x"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("ask", ASKS)
def test_an_answer_that_never_ends_has_a_time(kind: str, ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part comes every 10 ms, for 5 s: a limit of each read alone does not end it."""
    for module, name in (
        (jwks, "FETCH_SECONDS"),
        (oidc, "SECONDS"),
        (tracing, "SEND_SECONDS"),
        (token_endpoint, "DEFAULT_TIMEOUT_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.3)
    ended = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        begin, part = ENDLESS[kind]
        handler.wfile.write(begin)
        for _ in range(500):
            handler.wfile.write(part)
            ended.wait(0.01)
        ended.set()  # the client has waited for all of it

    with serving(answer) as server, pytest.raises(FAILED):
        ASKS[ask](server.url)
    assert not ended.is_set()


def flood(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(HEAD + b"\r\n")
    for _ in range(1_000):
        handler.wfile.write(b" " * 100_000)


@pytest.mark.parametrize("ask", ASKS)
def test_an_answer_has_a_size(ask: str) -> None:
    """100 MB of spaces."""
    with serving(flood) as server:
        tracemalloc.start()
        try:
            with pytest.raises(FAILED):
                ASKS[ask](server.url)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 8 << 20


def test_a_compressed_answer_is_not_unpacked() -> None:
    """64 MB of spaces before the keys make 64 KB of gzip."""
    packed = gzip.compress(b" " * (64 << 20) + KEYS.encode())
    with serving(body(packed, Content_Encoding="gzip")) as server:
        assert jwks.fetch(server.url) == packed
        with pytest.raises(InvalidToken, match="cannot be read"):
            Jwks(server.url).find("k", "ES256")
        with pytest.raises(ApiError, match="not a JSON object"):
            oidc.Provider.discover(server.url)


def test_a_deep_answer_is_no_json_of_a_provider() -> None:
    with serving(body(b"[" * 100_000)) as server, pytest.raises(ApiError, match="not a JSON object"):
        oidc.Provider.discover(server.url)
