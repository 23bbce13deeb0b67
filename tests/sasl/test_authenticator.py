"""The states of an authentication, without a socket and with a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.clients.connection import request_frame
from tidelog.errors import ErrorCode
from tidelog.protocol.headers import read_response_header
from tidelog.protocol.message import Message
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tidelog.security.kerberos_names import KerberosNames
from tidelog.security.sasl.authenticator import (
    MechanismOptions,
    Outcome,
    SaslServerAuthenticator,
    SaslState,
    Session,
    Step,
)
from tidelog.security.sasl.plain import JaasUsers, PlainSaslServer
from tidelog.security.sasl.server import Evaluation, SaslServer

NOW_MS = 1_000_000


class OneStep:
    """A mechanism that believes every name, with a token that expires."""

    def __init__(self, expiry_ms: int | None = None) -> None:
        self.is_complete = False
        self.authorization_id = ""
        self.credential_expiry_ms = expiry_ms
        self.is_token_authenticated = False

    def evaluate(self, response: bytes) -> Evaluation:
        name = yield lambda: response.decode()
        self.authorization_id = str(name)
        self.is_complete = True
        return b"hello"


class Directory:
    """A callback handler that fails, or that takes everybody."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def configure(self, options: object) -> None:
        """It has no options."""

    def authenticate(self, username: str, password: str) -> bool:
        if self._error is not None:
            raise self._error
        return True


def machine(
    make: Callable[[], SaslServer] | None = None, reauth_ms: int = 0, previous: Session | None = None
) -> SaslServerAuthenticator:
    users = JaasUsers({"user_alice": "secret"})
    mechanisms = {"PLAIN": MechanismOptions(make or (lambda: PlainSaslServer(users)), reauth_ms)}
    return SaslServerAuthenticator(
        mechanisms, lambda _version, _request: ApiVersionsResponse(), lambda: NOW_MS, previous
    )


def frame(request: Message, version: int) -> bytes:
    return request_frame(request, version, 7, "client")[4:]


def handshake(authenticator: SaslServerAuthenticator, version: int = 1) -> Step:
    return authenticator.receive(frame(SaslHandshakeRequest(mechanism="PLAIN"), version))


def authenticate(authenticator: SaslServerAuthenticator, token: bytes, version: int = 2) -> Step:
    """A token, and the work that it needs."""
    step = authenticator.receive(frame(SaslAuthenticateRequest(auth_bytes=token), version))
    while step.work is not None:
        try:
            result, error = step.work(), None
        except Exception as raised:
            result, error = None, raised
        step = authenticator.resume(result, error)
    return step


def answer_of(step: Step, version: int = 2) -> SaslAuthenticateResponse:
    assert step.response is not None
    correlation_id, start = read_response_header(36, version, step.response)
    assert correlation_id == 7
    return SaslAuthenticateResponse.decode(step.response[start:], version)


def test_from_the_first_frame_to_the_principal() -> None:
    authenticator = machine()
    versions = ApiVersionsRequest(client_software_name="c", client_software_version="1")
    assert authenticator.receive(frame(versions, 3)).outcome is Outcome.CONTINUE
    assert authenticator.state is SaslState.HANDSHAKE_REQUEST
    assert handshake(authenticator).outcome is Outcome.CONTINUE
    step = authenticate(authenticator, b"\0alice\0secret")
    assert step.outcome is Outcome.COMPLETE
    assert answer_of(step).error_code == 0
    assert authenticator.session == Session("alice", "PLAIN", False, None, True)
    assert authenticator.client_software == ("c", "1")


def test_nothing_follows_the_end() -> None:
    authenticator = machine()
    handshake(authenticator)
    authenticate(authenticator, b"\0alice\0secret")
    assert handshake(authenticator).outcome is Outcome.CLOSED
    failed = machine()
    handshake(failed)
    assert authenticate(failed, b"\0alice\0wrong").outcome is Outcome.FAILED
    assert authenticate(failed, b"\0alice\0secret").outcome is Outcome.CLOSED


def test_another_request_before_the_handshake_closes_at_once_and_during_it_is_answered() -> None:
    assert machine().receive(frame(MetadataRequest(), 9)).outcome is Outcome.CLOSED
    authenticator = machine()
    handshake(authenticator)
    step = authenticator.receive(frame(SaslHandshakeRequest(mechanism="PLAIN"), 1))
    assert step.outcome is Outcome.FAILED
    assert step.response is not None
    assert int.from_bytes(step.response[4:6], "big") == ErrorCode.ILLEGAL_SASL_STATE


def test_tokens_without_headers_after_a_handshake_of_version_0() -> None:
    authenticator = machine()
    handshake(authenticator, 0)
    step = authenticator.receive(b"\0alice\0secret")
    assert (step.outcome, step.response) == (Outcome.COMPLETE, b"")
    assert authenticator.session is not None
    assert not authenticator.session.supports_reauthentication
    refused = machine()
    handshake(refused, 0)
    assert refused.receive(b"\0alice\0wrong") == Step(
        Outcome.FAILED, None, reason="PLAIN: Authentication failed: Invalid username or password"
    )


@pytest.mark.parametrize(
    ("reauth_ms", "expiry_ms", "lifetime_ms"),
    [
        (0, None, None),
        (500, None, 500),
        (0, NOW_MS + 200, 200),
        (500, NOW_MS + 200, 200),
        (100, NOW_MS + 200, 100),
        (500, NOW_MS - 1, 0),
        (0, 10**19, 2**63 - 1 - NOW_MS),  # a token that is valid longer than an answer can say
    ],
)
def test_the_lifetime_of_a_session(reauth_ms: int, expiry_ms: int | None, lifetime_ms: int | None) -> None:
    authenticator = machine(lambda: OneStep(expiry_ms), reauth_ms)
    handshake(authenticator)
    step = authenticate(authenticator, b"erin")
    assert answer_of(step).session_lifetime_ms == (lifetime_ms or 0)
    assert authenticator.session is not None
    assert authenticator.session.lifetime_ms == lifetime_ms


def test_work_on_a_thread_that_fails_tells_the_client_nothing() -> None:
    secret = RuntimeError("ldap://admin:password@directory")
    authenticator = machine(lambda: PlainSaslServer(None, Directory(secret)))
    handshake(authenticator)
    step = authenticate(authenticator, b"\0anybody\0any")
    assert step.outcome is Outcome.FAILED
    message = answer_of(step).error_message
    assert message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
    )
    assert "password@" not in step.reason


def test_a_callback_handler_decides() -> None:
    authenticator = machine(lambda: PlainSaslServer(None, Directory()))
    handshake(authenticator)
    assert authenticate(authenticator, b"\0anybody\0any").outcome is Outcome.COMPLETE


def test_a_re_authentication_keeps_the_principal() -> None:
    before = Session("alice", "PLAIN", False, 500, True)
    same = machine(previous=before)
    handshake(same)
    assert authenticate(same, b"\0alice\0secret").outcome is Outcome.COMPLETE
    other = machine(OneStep, previous=before)
    handshake(other)
    step = authenticate(other, b"bob")
    assert answer_of(step).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert other.session is None


def test_kerberos_principals_become_users() -> None:
    rules = (
        "RULE:[1:$1@$0](.*@HOME)s/@.*//",
        "RULE:[2:$1/$2](app/.*)s/app.(.*)/$1//L",
        "DEFAULT",
    )
    names = KerberosNames(rules, "REALM")
    assert names.short_name("alice@HOME") == "alice"
    assert names.short_name("app/Billing@ELSE") == "billing"
    assert names.short_name("kafka/host@REALM") == "kafka"
    with pytest.raises(ValueError, match="no rule"):
        names.short_name("kafka/host@ELSE")
    with pytest.raises(ValueError, match="is not a rule"):
        KerberosNames(["RULE:nothing"], "REALM")
