"""The delay of failed logins, and the time that logins take from other requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.raw import RawConnection
from tests.support.sasl_broker import sasl_broker
from tests.support.sasl_walks import ITERATIONS, SCRAM_USERS
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog import Admin
from tidelog.protocol.messages.api_versions import ApiVersionsRequest
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tidelog.security.sasl.authenticator import SaslServerAuthenticator, Step
from tidelog.testing import Broker

DELAY = 0.5
LOGINS = scale(20, 1_000)
MOST_SECONDS = 0.020
"""No step of a login keeps the loop from other requests for longer."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    running = sasl_broker(**{"connection.failed.authentication.delay.ms": int(DELAY * 1000)})
    yield running
    running.close()


def begun_login(broker: Broker) -> RawConnection:
    connection = RawConnection(broker.address_of("SASL"))
    connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    return connection


def test_a_failed_login_is_answered_after_the_delay_and_others_are_served_meanwhile(broker: Broker) -> None:
    def others_were_served() -> bool:
        with begun_login(broker) as wrong, begun_login(broker) as right:
            began = time.monotonic()
            wrong.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
            request = SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret")
            assert right.ask(request, SaslAuthenticateResponse, 2).error_code == 0
            right.call(ApiVersionsRequest(), 0)
            answered = time.monotonic() - began
            refused = wrong.receive(SaslAuthenticateRequest, 2)
            assert isinstance(refused, SaslAuthenticateResponse)
            assert refused.error_code == 58
            assert time.monotonic() - began >= DELAY
            return answered < DELAY

    # A machine without time for a test may need another try.
    eventually(others_were_served, "another client is served during the delay")


def test_what_a_client_sends_during_the_delay_is_never_looked_at(broker: Broker) -> None:
    with begun_login(broker) as connection:
        connection.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
        connection.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"), 2)
        first = connection.receive(SaslAuthenticateRequest, 2)
        assert isinstance(first, SaslAuthenticateResponse)
        assert first.error_code == 58
        assert connection.socket.recv(1) == b""


def test_no_step_of_a_login_holds_the_loop_for_long(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time of the thread: other programs on the machine do not count."""
    steps: list[tuple[threading.Thread, float]] = []

    def timed(step: Callable[..., Step]) -> Callable[..., Step]:
        def run(*args: object) -> Step:
            began = time.thread_time()
            try:
                return step(*args)
            finally:
                steps.append((threading.current_thread(), time.thread_time() - began))

        return run

    for name in ("receive", "resume"):
        monkeypatch.setattr(SaslServerAuthenticator, name, timed(getattr(SaslServerAuthenticator, name)))
    user, password = next(iter(SCRAM_USERS.items()))
    assert ITERATIONS >= 4096
    login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": password}
    settings = {"security.protocol": "SASL_PLAINTEXT", **login}
    for _ in range(LOGINS):
        with Admin(settings, bootstrap_servers=broker.address_of("SASL")) as admin:
            admin.describe_cluster()
    assert len({thread for thread, _ in steps}) == 1
    assert len(steps) >= 3 * LOGINS
    seconds = sorted(spent for _, spent in steps)
    assert seconds[-1] < MOST_SECONDS, seconds[-5:]
