"""OAUTHBEARER and GSSAPI of our clients, where tokens come from, and sessions that are renewed."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from urllib.parse import parse_qs

import pytest

from tests.clients.fake_broker import Answer, FakeBroker
from tidelog import Admin, Consumer, TopicPartition
from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.connection import Connection
from tidelog.clients.metadata import BrokerNode
from tidelog.clients.producer.blocking import Producer
from tidelog.clients.sasl.gssapi import gssapi_steps
from tidelog.clients.sasl.oauthbearer import Token, jwt_claims, oauthbearer_steps
from tidelog.clients.sasl.token_login import TokenLogin
from tidelog.clients.sasl.token_sources import token_source
from tidelog.clients.security import Security
from tidelog.clients.settings import ProducerSettings, producer_settings
from tidelog.config import ConfigError
from tidelog.errors import ErrorCode, NetworkException, SaslAuthenticationFailed
from tidelog.protocol.message import Message
from tidelog.protocol.messages.api_versions import ApiVersionsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeResponse

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


def settings(**given: object) -> ProducerSettings:
    base = {"bootstrap_servers": "localhost:1", "security_protocol": "SASL_PLAINTEXT"}
    return producer_settings({**base, "sasl_mechanism": "OAUTHBEARER", **given})


def jwt(**claims: object) -> str:
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts), ""])


# The mechanism


def test_a_token_is_one_message() -> None:
    steps = oauthbearer_steps(Token("a.b.c", extensions={"logicalCluster": "lkc-1"}))
    assert next(steps) == b"n,,\x01auth=Bearer a.b.c\x01logicalCluster=lkc-1\x01\x01"
    with pytest.raises(StopIteration):
        steps.send(b"")


def test_a_refused_token_is_acknowledged_and_the_reason_kept() -> None:
    steps = oauthbearer_steps(Token("a.b.c"))
    next(steps)
    assert steps.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(SaslAuthenticationFailed, match="refused the token: invalid_token"):
        steps.send(b"")


@pytest.mark.parametrize(
    ("value", "extensions"),
    [("a\x01b", {}), ("", {}), ("a.b.c", {"auth": "x"}), ("a.b.c", {"two words": "x"}), ("a", {"x": "\x01"})],
)
def test_what_would_break_the_message_is_no_token(value: str, extensions: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"token|extension"):
        Token(value, extensions=extensions)


# Where tokens come from


class Provider:
    """As kafka-python's and aiokafka's token providers."""

    def token(self) -> str:
        return jwt(sub="alice", exp=2e9)

    def extensions(self) -> dict[str, str]:
        return {"tenant": "one"}


async def later() -> str:
    await asyncio.sleep(0)
    return jwt(exp=2e9)


@pytest.mark.parametrize(
    "provider",
    [
        lambda: jwt(exp=2e9),
        lambda configuration: ("opaque", 2e9),  # as confluent-kafka's oauth_cb
        lambda: ("opaque", 2e9, "alice", {"tenant": "one"}),
        Provider,
        Provider(),
        later,
    ],
)
def test_a_callable_gives_tokens(provider: object) -> None:
    token = token_source(settings(sasl_oauth_token_provider=provider))()
    assert token.expires == 2e9
    assert token_source(settings(sasl_login_callback_handler_class=provider))().expires == 2e9


def test_extensions_come_with_the_token() -> None:
    for provider in (Provider, lambda: ("opaque", 2e9, "alice", {"tenant": "one"})):
        assert token_source(settings(sasl_oauth_token_provider=provider))().extensions == {"tenant": "one"}


def test_a_callable_that_fails_is_an_error_of_the_login() -> None:
    def fail() -> str:
        raise OSError("no route")

    with pytest.raises(
        SaslAuthenticationFailed, match=r"sasl\.oauth\.token\.provider: no token: OSError: no"
    ):
        token_source(settings(sasl_oauth_token_provider=fail))()
    with pytest.raises(SaslAuthenticationFailed, match="expected a token as text, or a tuple"):
        token_source(settings(sasl_oauth_token_provider=lambda: 7))()


def test_an_unsecured_token_is_not_from_the_future_of_a_broker_that_counts_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_795_127_652.2260122)
    token = token_source(settings(sasl_jaas_config=f'{MODULE} unsecuredLoginStringClaim_sub="alice";'))()
    assert jwt_claims(token.value)["iat"] == 1_795_127_652.226


def test_an_unsecured_token_has_the_claims_of_the_jaas_line() -> None:
    line = (
        f'{MODULE} unsecuredLoginStringClaim_sub="alice" unsecuredLoginNumberClaim_n="2"'
        ' unsecuredLoginListClaim_scope=",a,b" unsecuredLoginLifetimeSeconds="60"'
        ' unsecuredLoginExtension_tenant="one";'
    )
    token = token_source(settings(sasl_jaas_config=line))()
    claims = jwt_claims(token.value)
    assert (claims["sub"], claims["n"], claims["scope"]) == ("alice", 2, ["a", "b"])
    assert token.expires is not None
    assert token.expires - time.time() == pytest.approx(60, abs=5)
    assert token.extensions == {"tenant": "one"}


def test_a_token_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(jwt(exp=2e9) + "\n")
    line = f'{MODULE} extension_tenant="one";'
    source = token_source(
        settings(sasl_oauthbearer_token_endpoint_url=f"file://{file}", sasl_jaas_config=line)
    )
    assert source().expires == 2e9
    assert source().extensions == {"tenant": "one"}
    file.unlink()
    with pytest.raises(SaslAuthenticationFailed, match=r"cannot be read from .*token: No such file"):
        source()


@contextmanager
def endpoint(*answers: tuple[int, object]) -> Iterator[tuple[str, list[tuple[str, dict[str, list[str]]]]]]:
    """A token endpoint that gives these answers in turn: its URL, and what it was asked."""
    left, asked = list(answers), list[tuple[str, dict[str, list[str]]]]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append((self.headers["Authorization"], parse_qs(body)))
            status, answer = left.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", asked
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


CLIENT = {
    "sasl_oauthbearer_client_credentials_client_id": "me",
    "sasl_oauthbearer_client_credentials_client_secret": "pass word",
    "sasl_login_retry_backoff_ms": 1,
}


def test_client_credentials_are_exchanged_for_a_token() -> None:
    with endpoint((503, {}), (200, {"access_token": "opaque", "expires_in": 600})) as (url, asked):
        source = token_source(
            settings(sasl_oauthbearer_token_endpoint_url=url, sasl_oauthbearer_scope="kafka", **CLIENT)
        )
        token = source()
    assert token.value == "opaque"
    assert token.expires is not None
    assert token.expires - time.time() == pytest.approx(600, abs=5)
    assert len(asked) == 2
    authorization, form = asked[0]
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"me:pass word"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}


def test_client_credentials_may_stand_in_the_jaas_line() -> None:
    line = f'{MODULE} clientId="me" clientSecret="pass+word" scope="kafka";'
    with endpoint((200, {"access_token": jwt(exp=2e9)})) as (url, asked):
        given = {"sasl_oauthbearer_token_endpoint_url": url, "sasl_oauthbearer_header_urlencode": True}
        assert token_source(settings(sasl_jaas_config=line, **given))().expires == 2e9
    assert base64.b64decode(asked[0][0].removeprefix("Basic ")) == b"me:pass%2Bword"
    assert asked[0][1]["scope"] == ["kafka"]


def test_an_endpoint_that_refuses_is_not_asked_again() -> None:
    refusal = {"error": "invalid_client", "error_description": "wrong secret"}
    with endpoint((401, refusal)) as (url, asked):
        source = token_source(settings(sasl_oauthbearer_token_endpoint_url=url, **CLIENT))
        with pytest.raises(
            SaslAuthenticationFailed, match="status 401: invalid_client - wrong secret"
        ) as caught:
            source()
    assert len(asked) == 1
    assert "pass word" not in str(caught.value)


def test_an_endpoint_that_cannot_be_reached_is_no_refusal() -> None:
    given = {**CLIENT, "sasl_login_retry_backoff_max_ms": 5}
    source = token_source(settings(sasl_oauthbearer_token_endpoint_url="http://127.0.0.1:1/", **given))
    with pytest.raises(NetworkException, match=r"token endpoint 127\.0\.0\.1 cannot be reached"):
        source()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sasl_oauthbearer_token_endpoint_url": "ftp://x"}, r"endpoint\.url=ftp://x: expected a URL"),
        ({"sasl_oauthbearer_token_endpoint_url": "http://x"}, r"client\.credentials\.client\.id: needed"),
        ({"sasl_login_callback_handler_class": "org.example.Handler"}, "a Java class cannot be called"),
        ({"sasl_oauth_token_provider": "nothing"}, r"sasl\.oauth\.token\.provider=.*: expected a callable"),
    ],
)
def test_missing_settings_of_tokens_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Security(settings(**given))


# Renewing tokens


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_renewed_in_time_and_not_too_often() -> None:
    clock, made = Clock(), list[Token]()

    def fetch() -> Token:
        made.append(Token(f"t{len(made)}", clock.now + 3600))
        return made[-1]

    login = TokenLogin(fetch, settings(sasl_login_refresh_window_jitter=0), clock)
    assert login.current() is None
    assert login.renewed() is login.renewed() is login.current()
    clock.now += 3600 * 0.79
    assert login.current() is made[0]
    clock.now += 3600 * 0.02
    assert login.current() is None
    assert login.renewed() is made[1]
    assert len(made) == 2


def test_the_last_minutes_of_a_token_are_not_used() -> None:
    clock = Clock()
    given = {"sasl_login_refresh_window_factor": 1.0, "sasl_login_refresh_window_jitter": 0}
    login = TokenLogin(lambda: Token("t", clock.now + 3600), settings(**given), clock)
    login.renewed()
    clock.now += 3600 - 301
    assert login.current() is not None
    clock.now += 2
    assert login.current() is None


def test_an_old_token_counts_until_it_expires_if_there_is_no_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, tokens = Clock(), [Token("first", 4600.0)]

    def fetch() -> Token:
        if not tokens:
            raise NetworkException("no route")
        return tokens.pop()

    login = TokenLogin(fetch, settings(), clock)
    first = login.renewed()
    clock.now = 4500.0
    assert login.renewed() is first
    assert "the old one is used until it expires: no route" in caplog.text
    clock.now = 4601.0
    with pytest.raises(NetworkException, match="no route"):
        login.renewed()


def test_a_token_of_unknown_expiry_is_not_kept() -> None:
    made: list[Token] = []
    login = TokenLogin(lambda: made.append(Token("t")) or made[-1], settings(), Clock())  # type: ignore[func-returns-value]
    login.renewed()
    login.renewed()
    assert len(made) == 2


# Kerberos


def fake_gssapi(offered: bytes = b"\x07\x00\x10\x00") -> ModuleType:
    module = ModuleType("gssapi")

    class Name:
        def __init__(self, name: str, name_type: str) -> None:
            assert (name, name_type) in (("kafka@broker", "service"), ("alice", "principal"))
            self.name = name

        def canonicalize(self, mechanism: str) -> Name:
            return self

    def make_credentials(name: Name, usage: str, store: dict[str, str]) -> str:
        return f"{name.name} from {store['client_keytab']}"

    class Wrapped:
        def __init__(self, message: bytes) -> None:
            self.message = message

    class SecurityContext:
        def __init__(self, name: Name, usage: str, mech: str, creds: object) -> None:
            assert creds in (None, "alice from /keys")
            self.complete = False
            self.initiator_name = "alice@REALM"

        def step(self, token: bytes | None) -> bytes | None:
            self.complete = token is not None
            return b"ticket" if token is None else None

        def unwrap(self, message: bytes) -> Wrapped:
            assert message == b"layers"
            return Wrapped(offered)

        def wrap(self, message: bytes, encrypt: bool) -> Wrapped:
            return Wrapped(b"wrapped " + message)

    errors = ModuleType("gssapi.exceptions")
    errors.GSSError = type("GSSError", (Exception,), {})  # type: ignore[attr-defined]
    kinds = {"hostbased_service": "service", "kerberos": "kerberos", "kerberos_principal": "principal"}
    for name, value in {
        "Name": Name,
        "Credentials": make_credentials,
        "SecurityContext": SecurityContext,
        "NameType": type("NameType", (), kinds),
        "MechType": type("MechType", (), kinds),
        "exceptions": errors,
    }.items():
        setattr(module, name, value)
    return module


@pytest.mark.parametrize("options", ["", 'useKeyTab=true keyTab="/keys" principal="alice"'])
def test_gssapi_takes_no_layer_of_protection(monkeypatch: pytest.MonkeyPatch, options: str) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", fake_gssapi())
    line = f"com.sun.security.auth.module.Krb5LoginModule required {options};"
    given = {"sasl_mechanism": "GSSAPI", "sasl_kerberos_service_name": "kafka", "sasl_jaas_config": line}
    steps = Security(settings(**given)).sasl_steps("broker", None)
    assert steps is not None
    assert next(steps) == b"ticket"
    assert steps.send(b"proof") == b""
    assert steps.send(b"layers") == b"wrapped \x01\0\0\0alice@REALM"
    with pytest.raises(StopIteration):
        steps.send(b"")


def test_a_broker_that_insists_on_a_layer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", fake_gssapi(b"\x04\0\0\0"))
    steps = gssapi_steps("kafka", "broker")
    next(steps)
    steps.send(b"proof")
    with pytest.raises(SaslAuthenticationFailed, match="insists on a security layer"):
        steps.send(b"layers")


def test_gssapi_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match=r"sasl\.mechanism=GSSAPI: Kerberos needs the package gssapi"):
        Security(settings(sasl_mechanism="GSSAPI", sasl_kerberos_service_name="kafka"))


# Sessions


class SaslBroker(FakeBroker):
    """Takes PLAIN, and ends sessions after `session_ms`. `keys` are the APIs of all requests in order."""

    def __init__(self, session_ms: int) -> None:
        super().__init__()
        self.session_ms = session_ms
        self.keys: list[int] = []
        self.logins: list[bytes] = []
        self.refuses = False

    def _answer(self, key: int, version: int, body: bytes) -> Message | Answer | None:
        self.keys.append(key)
        if key == 17:
            return SaslHandshakeResponse(mechanisms=["PLAIN"])
        if key == 36:
            self.logins.append(bytes(SaslAuthenticateRequest.decode(body, version).auth_bytes))
            if self.refuses:
                code = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
                return SaslAuthenticateResponse(error_code=code, error_message="no more")
            return SaslAuthenticateResponse(session_lifetime_ms=self.session_ms)
        answer = super()._answer(key, version, body)
        if isinstance(answer, ApiVersionsResponse):
            for api, newest in ((17, 1), (36, 2)):
                answer.api_keys.append(
                    ApiVersionsResponse.ApiVersion(api_key=api, min_version=0, max_version=newest)
                )
        return answer


ALICE = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "alice",
    "sasl_password": "pass word",
}


def logged_in_apart(keys: list[int]) -> bool:
    """Whether no other request came between a handshake and its login."""
    return all(keys[at + 1] == 36 for at, key in enumerate(keys[:-1]) if key == 17)


def test_a_session_is_renewed_on_its_connection_while_requests_go_on() -> None:
    async def main(broker: SaslBroker) -> None:
        given = producer_settings(bootstrap_servers=broker.bootstrap, **ALICE)
        node = BrokerNode(1, "127.0.0.1", broker.port)
        connection = await AsyncConnection.open(node, given, Security(given))
        async with asyncio.timeout(30):
            while len(broker.logins) < 4:
                request = MetadataRequest(topics=[])
                answers = await asyncio.gather(
                    *(connection.call(request, MetadataResponse) for _ in range(20))
                )
                assert all(answer.brokers for answer in answers)
        assert connection.metrics.successful_authentication_total == len(broker.logins)
        connection.close()

    with SaslBroker(session_ms=50) as broker:
        asyncio.run(main(broker))
    assert broker.connections == 1
    assert logged_in_apart(broker.keys)


def test_a_refused_renewal_ends_the_connection_and_its_requests(caplog: pytest.LogCaptureFixture) -> None:
    async def main(broker: SaslBroker) -> None:
        given = producer_settings(bootstrap_servers=broker.bootstrap, **ALICE)
        node = BrokerNode(1, "127.0.0.1", broker.port)
        connection = await AsyncConnection.open(node, given, Security(given))
        broker.refuses = True
        with pytest.raises(NetworkException, match=r"is closed|not renewed"):
            async with asyncio.timeout(30):
                while True:
                    await connection.call(MetadataRequest(topics=[]), MetadataResponse)
        assert connection.closed

    with SaslBroker(session_ms=20) as broker:
        asyncio.run(main(broker))
    assert "was not renewed: 127.0.0.1" in caplog.text
    assert "pass word" not in caplog.text


def test_a_refused_login_ends_every_call_at_once() -> None:
    with SaslBroker(session_ms=0) as broker:
        broker.refuses = True
        given = {"bootstrap_servers": broker.bootstrap, **ALICE}
        begun = time.monotonic()
        with Producer(**given) as producer, pytest.raises(SaslAuthenticationFailed, match="no more"):
            producer.send("t", b"v").result(30)
        with Admin(**given) as admin, pytest.raises(SaslAuthenticationFailed, match="no more"):
            admin.list_topics()
        for read in (
            lambda consumer: consumer.assign([TopicPartition("t", 0)]),
            lambda consumer: consumer.subscribe(["t"]),
        ):
            with Consumer(**given, group_id="g") as consumer:
                read(consumer)
                with pytest.raises(SaslAuthenticationFailed, match="no more"):
                    consumer.poll(30)
        with Consumer(**given) as consumer, pytest.raises(SaslAuthenticationFailed, match="no more"):
            consumer.beginning_offsets([TopicPartition("t", 0)])
        assert time.monotonic() - begun < 20


def test_a_blocking_connection_renews_its_session_between_unanswered_requests() -> None:
    with SaslBroker(session_ms=20) as broker:
        given = producer_settings(bootstrap_servers=broker.bootstrap, **ALICE)
        with Connection("127.0.0.1", broker.port, security=Security(given)) as connection:
            request = MetadataRequest(topics=[])
            version = connection.version_for(MetadataRequest)
            connection.send(request, version)
            end = time.monotonic() + 30
            while len(broker.logins) < 3 and time.monotonic() < end:
                connection.send(request, version)
                assert MetadataResponse.decode(bytes(connection.receive()), version).brokers
            connection.receive()
    assert len(broker.logins) >= 3
    assert logged_in_apart(broker.keys)


def test_a_producer_logs_in_with_a_token() -> None:
    class TokenBroker(SaslBroker):
        def _answer(self, key: int, version: int, body: bytes) -> Message | Answer | None:
            answer = super()._answer(key, version, body)
            return SaslHandshakeResponse(mechanisms=["OAUTHBEARER"]) if key == 17 else answer

    asked: list[str] = []

    def provider() -> tuple[str, float]:
        asked.append(threading.current_thread().name)
        return "opaque", time.time() + 3600

    with (
        TokenBroker(session_ms=0) as broker,
        Producer(
            bootstrap_servers=broker.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provider,
        ) as producer,
    ):
        producer.send("t", b"v").result(10)
    assert set(broker.logins) == {b"n,,\x01auth=Bearer opaque\x01\x01"}
    assert len(asked) == 1, "the token is kept for further connections"
