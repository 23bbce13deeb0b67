"""Settings of SASL: what fails the start, what changes while the broker runs, and callback handlers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.raw import RawConnection
from tests.support.sasl_broker import PLAIN_MODULE, SETTINGS, free_address, metric, sasl_broker
from tests.support.sasl_walks import PLAIN, Walk, scram_final, scram_first
from tidelog import Admin, Producer
from tidelog.clients.admin import AlterConfigOp, ConfigResource, OpType, ResourceType
from tidelog.clients.connection import request_frame
from tidelog.errors import ErrorCode, InvalidRequest
from tidelog.network.loop import AUTHENTICATION_THREADS
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tidelog.security.sasl.oauthbearer import InvalidToken, OAuthBearerToken
from tidelog.security.scram import ScramAlgorithm, ScramCredential, scram_credential
from tidelog.testing import Broker

JAAS = "listener.name.sasl.plain.sasl.jaas.config"
HERE = "tests.sasl.test_settings"


class Backwards:
    """The password of a user is his name backwards."""

    def __init__(self) -> None:
        self._options: Mapping[str, str] = {}

    def configure(self, options: Mapping[str, str]) -> None:
        self._options = options

    def authenticate(self, username: str, password: str) -> bool:
        return password == username[::-1] and "user_alice" in self._options

    def credential(self, username: str) -> ScramCredential | None:
        return scram_credential(username[::-1], ScramAlgorithm.SCRAM_SHA_256)

    def validate(self, token: str) -> OAuthBearerToken:
        if token != "good":
            raise InvalidToken("not good")
        return OAuthBearerToken("henry", 2**42)


class Slow:
    """A directory that does not answer until `answers` is set."""

    asked = threading.Semaphore(0)
    answers = threading.Event()

    def configure(self, options: Mapping[str, str]) -> None:
        """It needs none."""

    def authenticate(self, username: str, password: str) -> bool:
        Slow.asked.release()
        Slow.answers.wait(60)
        return False


class Incomplete:
    def configure(self, options: Mapping[str, str]) -> None:
        """It has no method of a mechanism."""


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({JAAS: f"{PLAIN_MODULE} required user_a=b"}, "semicolon"),
        ({JAAS: "com.sun.security.auth.module.JndiLoginModule required;"}, "not allowed"),
        ({JAAS: "org.apache.kafka.common.security.scram.ScramLoginModule required;"}, "of PLAIN"),
        ({"listener.name.sasl.sasl.enabled.mechanisms": "DIGEST-MD5"}, "expected some of"),
        ({"listener.name.sasl.sasl.enabled.mechanisms": ""}, "needs a mechanism"),
        ({"listener.name.sasl.sasl.enabled.mechanisms": "GSSAPI"}, "gssapi, which is not installed"),
        ({"tidelog.sasl.oauthbearer.unsecured.enable": "false"}, "needs the keys of a token provider"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https://keys.example"}, "not an allowed URL"),
        ({"listener.name.sasl.plain.sasl.server.callback.handler.class": "no.such.Class"}, "Python class"),
        (
            {"listener.name.sasl.plain.sasl.server.callback.handler.class": f"{HERE}.Incomplete"},
            "authenticate",
        ),
    ],
)
def test_what_cannot_work_fails_the_start_without_a_secret(settings: dict[str, str], problem: str) -> None:
    broker = Broker(SETTINGS | settings)
    with pytest.raises(Exception, match=problem) as refused:
        broker.start()
    broker.close()
    assert "secret" not in str(refused.value)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    broker = sasl_broker(**{"metrics.listener": free_address(), "node.id": 1})
    yield broker
    broker.close()


def logs_in(broker: Broker, token: bytes, mechanism: str = "PLAIN") -> bool:
    walk = Walk(broker.address_of("SASL"))
    walk.handshake(mechanism)
    walk.authenticate(token)
    walk.close()
    answer = walk.answers[-1]
    return isinstance(answer, dict) and answer["errorCode"] == 0


def test_users_and_mechanisms_change_while_the_broker_runs(broker: Broker) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    enabled = "listener.name.sasl.sasl.enabled.mechanisms"
    with Admin(bootstrap_servers=broker.address_of("PLAINTEXT")) as admin:
        new = f'{PLAIN_MODULE} required user_iris="iris-secret";'
        admin.incremental_alter_configs({resource: [AlterConfigOp(JAAS, new)]})
        assert logs_in(broker, b"\0iris\0iris-secret")
        assert not logs_in(broker, PLAIN)
        described = admin.describe_configs([resource])[resource]
        assert described[JAAS].value is None
        for wrong in ({JAAS: "nonsense"}, {enabled: "NONE-SUCH"}):
            with pytest.raises(InvalidRequest):
                admin.incremental_alter_configs(
                    {resource: [AlterConfigOp(name, text) for name, text in wrong.items()]}
                )
        admin.incremental_alter_configs({resource: [AlterConfigOp(enabled, "SCRAM-SHA-256")]})
        assert not logs_in(broker, b"\0iris\0iris-secret")
        admin.incremental_alter_configs(
            {resource: [AlterConfigOp(name, "", OpType.DELETE) for name in (JAAS, enabled)]}
        )
        assert logs_in(broker, PLAIN)


def test_authentications_are_counted(broker: Broker) -> None:
    before = {
        name: metric(broker, f"{name}_authentication_total", "SASL") for name in ("successful", "failed")
    }
    assert logs_in(broker, PLAIN)
    assert not logs_in(broker, b"\0alice\0wrong")
    for name, count in before.items():
        assert metric(broker, f"{name}_authentication_total", "SASL") == count + 1
    for name in (
        "successful_authentication_rate",
        "failed_authentication_rate",
        "successful_reauthentication_rate",
        "failed_reauthentication_total",
        "reauthentication_latency_avg",
        "reauthentication_latency_max",
        "successful_authentication_no_reauth_total",
        "expired_connections_killed_count",
    ):
        assert metric(broker, name, "REAUTH") >= 0


def test_expired_connections_are_counted() -> None:
    broker = sasl_broker(
        **{"metrics.listener": free_address(), "listener.name.reauth.connections.max.reauth.ms": 50}
    )
    walk = Walk(broker.address_of("REAUTH"))
    try:
        walk.handshake("PLAIN")
        walk.authenticate(PLAIN)
        while not walk.is_over:
            walk.metadata()
        assert metric(broker, "expired_connections_killed_count", "REAUTH") == 1
    finally:
        walk.close()
        broker.close()


def test_callback_handlers_check_credentials() -> None:
    prefix, setting = "listener.name.sasl.", "sasl.server.callback.handler.class"
    broker = sasl_broker(
        **{
            f"{prefix}{name}.{setting}": f"{HERE}.Backwards"
            for name in ("plain", "scram-sha-256", "oauthbearer")
        }
    )
    try:
        assert logs_in(broker, b"\0alice\0ecila")
        assert not logs_in(broker, PLAIN)
        assert logs_in(broker, b"n,,\x01auth=Bearer good\x01\x01", "OAUTHBEARER")
        walk = Walk(broker.address_of("SASL"))
        walk.handshake("SCRAM-SHA-256")
        walk.authenticate(scram_first("bob"))
        walk.authenticate(scram_final(scram_first("bob"), walk.token, "bob"))
        walk.metadata()
        walk.close()
        assert walk.answers[-1] == {"metadata": "answered"}
    finally:
        broker.close()


def test_logins_that_wait_for_a_directory_delay_no_other_work() -> None:
    """Neither produces, whose large batches are checked on threads, nor flushes wait for them."""
    setting = "listener.name.sasl.plain.sasl.server.callback.handler.class"
    threads = AUTHENTICATION_THREADS
    broker = sasl_broker(**{setting: f"{HERE}.Slow", "num.io.threads": threads})
    with ExitStack() as open_connections:
        open_connections.callback(broker.close)
        open_connections.callback(Slow.answers.set)
        for _ in range(3 * threads):
            login = open_connections.enter_context(RawConnection(broker.address_of("SASL")))
            login.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            login.send(SaslAuthenticateRequest(auth_bytes=PLAIN), 2)
        for _ in range(threads):
            assert Slow.asked.acquire(timeout=30)
        broker.create_topic("t")
        value = b"v" * 2_000_000
        settings = {"max.request.size": 3 * len(value), "compression.type": "gzip"}
        with Producer(settings, bootstrap_servers=broker.address_of("PLAINTEXT")) as producer:
            assert producer.send("t", value).result(20).offset == 0


def test_kafkas_own_handlers_mean_none(tmp_path: Path) -> None:
    name = "org.apache.kafka.common.security.plain.internals.PlainServerCallbackHandler"
    broker = sasl_broker(**{"listener.name.sasl.plain.sasl.server.callback.handler.class": name})
    try:
        assert logs_in(broker, PLAIN)
    finally:
        broker.close()


def test_a_failed_re_authentication_is_answered_before_requests_behind_it() -> None:
    broker = sasl_broker(**{"connection.failed.authentication.delay.ms": 0})
    try:
        with RawConnection(broker.address_of("REAUTH")) as connection:
            connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            connection.call(SaslAuthenticateRequest(auth_bytes=PLAIN), 2)
            connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            wrong = SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong")
            frames = request_frame(wrong, 2, 8, "raw") + request_frame(MetadataRequest(), 9, 9, "raw")
            connection.send_bytes(frames)
            answer = connection.receive(SaslAuthenticateRequest, 2)
            assert isinstance(answer, SaslAuthenticateResponse)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert connection.is_closed_by_peer()
    finally:
        broker.close()
