"""A million frames of clients that cannot log in: no crash, no session, no memory that stays."""

from __future__ import annotations

import gc
import os
import random
import ssl
from pathlib import Path

import pytest

from tests.faults.client import resident_bytes
from tests.faults.corpus import golden_payloads, pointed_payloads
from tests.network.tls_listener import TlsListener
from tests.security.login_fuzz import Machine, SaslFuzz, TlsFuzz, encoded
from tests.support.certificates import make_certificate
from tests.support.scale import scale
from tidelog.protocol.messages.api_versions import ApiVersionsResponse
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.security.sasl.authenticator import (
    MechanismOptions,
    Outcome,
    SaslServerAuthenticator,
    Step,
)
from tidelog.security.sasl.plain import PlainSaslServer

MEGABYTE = 1 << 20
SASL_FRAMES = scale(8_000, 800_000)
TLS_FLIGHTS = scale(500, 200_000)


def grown_by(before: int) -> int:
    gc.collect()
    return resident_bytes(os.getpid()) - before


def test_no_frame_logs_in_without_a_password() -> None:
    fuzz = SaslFuzz(random.Random(19), golden_payloads() + pointed_payloads(bytes(16)))
    fuzz.run(SASL_FRAMES // 10)
    before = resident_bytes(os.getpid())
    fuzz.run(SASL_FRAMES)
    assert grown_by(before) < 20 * MEGABYTE
    # Walks get far: frames are answered, refused, and violate the protocol.
    for outcome in (Outcome.CONTINUE, Outcome.FAILED, Outcome.CLOSED):
        assert fuzz.outcomes[outcome] > SASL_FRAMES // 20


def test_no_flight_ends_a_handshake_without_a_certificate(tmp_path: Path) -> None:
    security = TlsListener(tmp_path, client_auth=ssl.CERT_REQUIRED)
    fuzz = TlsFuzz(random.Random(19), security, security.client_context())
    fuzz.run(TLS_FLIGHTS // 10)
    before = resident_bytes(os.getpid())
    fuzz.run(TLS_FLIGHTS)
    assert grown_by(before) < 20 * MEGABYTE
    assert len(fuzz.failures) > 3, fuzz.failures


class BelievesEverybody:
    def configure(self, options: object) -> None: ...

    def authenticate(self, username: str, password: str) -> bool:
        return True


class AnswersEverything:
    """A machine that answers any request before the login."""

    def __init__(self, machine: Machine) -> None:
        self.state = machine.state
        self.session = None

    def receive(self, frame: bytes) -> Step:
        return Step(Outcome.CONTINUE, b"answer")

    def resume(self, result: object, error: BaseException | None) -> Step:
        raise NotImplementedError


def test_the_fuzz_finds_a_mechanism_that_believes_everybody() -> None:
    fuzz = SaslFuzz(random.Random(19), [b"\0\0"])
    mechanisms = {"PLAIN": MechanismOptions(lambda: PlainSaslServer(None, BelievesEverybody()))}

    def walks() -> None:
        for _ in range(2_000):
            fuzz.walk(SaslServerAuthenticator(mechanisms, lambda _v, _r: ApiVersionsResponse(), lambda: 0))

    with pytest.raises(AssertionError, match="logs in"):
        walks()


def test_the_fuzz_finds_an_answer_before_the_login() -> None:
    fuzz = SaslFuzz(random.Random(19), [encoded(MetadataRequest(), 9)])

    def walks() -> None:
        for _ in range(200):
            fuzz.walk(AnswersEverything(fuzz.machine()))

    with pytest.raises(AssertionError, match="answered before the login"):
        walks()


def test_the_fuzz_finds_a_client_that_is_let_in(tmp_path: Path) -> None:
    security = TlsListener(tmp_path, client_auth=ssl.CERT_REQUIRED)
    certificate = make_certificate(security.authority)
    fuzz = TlsFuzz(random.Random(19), security, security.client_context(certificate=certificate))
    fuzz.walk(is_changed=False)
    assert [secured.principal for secured in fuzz.secured] == ["User:127.0.0.1"]
