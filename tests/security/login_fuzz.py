"""Frames of clients that cannot log in, against the states of SASL and TLS, without sockets.

Nothing here knows a right password or has a certificate: a session is always a fault. A frame of another API
than those of a login is never answered as if the client had logged in.
"""

from __future__ import annotations

import base64
import random
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from tests.security.frame_flood import changed
from tidelog.clients.connection import request_frame
from tidelog.clock import TimerHandle
from tidelog.network.listener_security import ListenerSecurity
from tidelog.network.loop import READ, BrokerLoop
from tidelog.network.tls_handshake import Secured, TlsHandshake
from tidelog.protocol.message import Message
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tidelog.security.sasl.authenticator import (
    MechanismOptions,
    Outcome,
    SaslServerAuthenticator,
    SaslState,
    Session,
    Step,
)
from tidelog.security.sasl.oauthbearer import InvalidToken, OAuthBearerSaslServer, OAuthBearerToken
from tidelog.security.sasl.plain import JaasUsers, PlainSaslServer
from tidelog.security.sasl.scram import ScramSaslServer
from tidelog.security.scram import ScramAlgorithm, ScramCredential

LOGIN_KEYS: Final = (17, 18, 36)
MOST_ANSWER_BYTES: Final = 4_000
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
TOKENS: Final = (
    b"\0alice\0wrong",
    b"alice\0alice\0wrong",
    b"\0nobody\0",
    b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL",
    b"n,a=bob,n=alice,r=fyko",
    b"n,,n=id,r=fyko,tokenauth=true",
    b"y,,n=alice,r=fyko",
    b"n,,\1auth=Bearer e30.e30.\1\1",
    b"n,a=alice,\1host=h\1auth=Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.\1\1",
    b"\1",
)


class RefusesTokens:
    """A validator without keys."""

    def validate(self, token: str) -> OAuthBearerToken:
        raise InvalidToken("invalid_token")


class Machine(Protocol):
    """The part of SaslServerAuthenticator that a walk needs."""

    state: SaslState
    session: Session | None

    def receive(self, frame: bytes) -> Step: ...

    def resume(self, result: object, error: BaseException | None) -> Step: ...


class SaslFuzz:
    """Walks of a few frames each. `outcomes` counts what became of the frames."""

    def __init__(self, chance: random.Random, corpus: list[bytes]) -> None:
        self._chance = chance
        self._corpus = corpus
        self._users = JaasUsers({"user_alice": "secret"})
        self._credentials = {
            mechanism: ScramCredential(bytes(24), *(key * mechanism.key_bytes for key in (b"k", b"s")), 4096)
            for mechanism in ScramAlgorithm
        }
        self.outcomes: Counter[Outcome] = Counter()
        self.frames = 0

    def machine(self) -> Machine:
        again = self._chance.random() < 0.2
        previous = Session("alice", self._chance.choice(MECHANISMS), False, 1000, True) if again else None
        mechanisms = {
            "PLAIN": MechanismOptions(lambda: PlainSaslServer(self._users)),
            "OAUTHBEARER": MechanismOptions(lambda: OAuthBearerSaslServer(RefusesTokens())),
        }
        for one in ScramAlgorithm:
            mechanisms[one.mechanism_name] = MechanismOptions(partial(self._scram, one))
        return SaslServerAuthenticator(
            mechanisms, lambda _version, _request: ApiVersionsResponse(), lambda: 0, previous
        )

    def _scram(self, mechanism: ScramAlgorithm) -> ScramSaslServer:
        credential = self._credentials[mechanism]
        return ScramSaslServer(mechanism, lambda name: credential if name == "alice" else None)

    def run(self, frames: int) -> None:
        """Send so many frames. Raises AssertionError for a session or an answer that should not be."""
        while self.frames < frames:
            self.walk(self.machine())

    def walk(self, machine: Machine) -> None:
        chance, answered = self._chance, b""
        has_headers = chance.random() < 0.8
        for _ in range(chance.randint(1, 8)):
            frame = self._frame(machine.state, answered, has_headers)
            before = machine.state
            step = machine.receive(frame)
            while step.work is not None:
                if chance.random() < 0.1:
                    return  # the client has gone meanwhile
                step = machine.resume(step.work(), None)
            self.frames += 1
            self.outcomes[step.outcome] += 1
            check(machine, before, frame, step)
            if step.is_failed:
                return
            answered = step.response or b""

    def _frame(self, state: SaslState, answered: bytes, has_headers: bool) -> bytes:
        chance = self._chance
        if chance.random() < 0.1:
            found = chance.choice(self._corpus)
        elif state is SaslState.AUTHENTICATE:
            found = self._token(answered)
            if has_headers:
                found = encoded(SaslAuthenticateRequest(auth_bytes=found), chance.randint(0, 2))
        elif state is SaslState.HANDSHAKE_REQUEST or chance.random() < 0.5:
            mechanism = chance.choice(MECHANISMS)
            found = encoded(SaslHandshakeRequest(mechanism=mechanism), int(has_headers))
        else:
            found = encoded(ApiVersionsRequest(), chance.randint(0, 2))
        return changed(chance, found) if chance.random() < 0.4 else found

    def _token(self, answered: bytes) -> bytes:
        at = answered.find(b"r=")
        if at < 0 or self._chance.random() < 0.3:
            return self._chance.choice(TOKENS)
        nonce = answered[at + 2 :].partition(b",")[0]
        proof = base64.b64encode(self._chance.randbytes(self._chance.choice((0, 32, 64))))
        return b"c=biws,r=" + nonce + b",p=" + proof


def encoded(request: Message, version: int) -> bytes:
    return request_frame(request, version, 7, "fuzz")[4:]


def check(machine: Machine, before: SaslState, frame: bytes, step: Step) -> None:
    assert not step.is_complete, f"{frame.hex()} logs in"
    assert machine.session is None, f"{frame.hex()} makes a session"
    if before is not SaslState.AUTHENTICATE and int.from_bytes(frame[:2], "big") not in LOGIN_KEYS:
        assert step.is_failed, f"{frame.hex()} is answered before the login"
    assert len(step.response or b"") <= MOST_ANSWER_BYTES


class FakeSocket:
    """A socket without a kernel: what the peer sent, and what it got."""

    def __init__(self) -> None:
        self.incoming = bytearray()
        self.sent = bytearray()
        self.is_closed = False

    def fileno(self) -> int:
        return 0

    def recv_into(self, buffer: memoryview, size: int) -> int:
        if not self.incoming:
            raise BlockingIOError
        taken = self.incoming[:size]
        buffer[: len(taken)] = taken
        del self.incoming[:size]
        return len(taken)

    def send(self, data: bytes) -> int:
        self.sent += data
        return len(data)

    def shutdown(self, _how: int) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class NoTimer:
    def cancel(self) -> None: ...


class InlineLoop:
    """A loop that runs the steps of a handshake at once."""

    def __init__(self) -> None:
        self.on_event: Callable[[int], None] = lambda _mask: None

    def register(
        self, _fd: int, on_event: Callable[[int], None], _mask: int, *, is_login: bool = False
    ) -> None:
        self.on_event = on_event

    def unregister(self, _fd: int) -> None: ...

    def modify(self, _fd: int, _mask: int) -> None: ...

    def schedule(self, _seconds: float, _call: Callable[[], None]) -> TimerHandle:
        return cast("TimerHandle", NoTimer())

    def run_handshake(
        self, step: Callable[[], object], done: Callable[[object, BaseException | None], None]
    ) -> None:
        try:
            result, error = step(), None
        except BaseException as raised:
            result, error = None, raised
        done(result, error)


class TlsFuzz:
    """Handshakes whose flights are changed. The listener requires a certificate, and `client` has none."""

    def __init__(self, chance: random.Random, security: ListenerSecurity, client: ssl.SSLContext) -> None:
        self._chance = chance
        self._security = security
        self._client = client
        self._raw = memoryview(bytearray(128 * 1024))
        self.flights = 0
        self.failures: Counter[str] = Counter()
        self.secured: list[Secured] = []

    def run(self, flights: int) -> None:
        while self.flights < flights:
            self.walk(self._chance.random() < 0.9)
            assert self.secured == [], "a client without a certificate is let in"

    def walk(self, is_changed: bool) -> None:
        """One handshake, until it fails or the client has nothing to send."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._client.wrap_bio(incoming, outgoing, server_hostname="localhost")
        loop, sock, failed = InlineLoop(), FakeSocket(), list[str]()
        context = self._security.tls_context()
        assert context is not None
        handshake = TlsHandshake(
            cast("BrokerLoop", loop),
            sock,  # type: ignore[arg-type]
            self._security,
            context,
            "127.0.0.1:1",
            "SSL",
            self._raw,
            seconds=60,
            on_secured=lambda _handshake, secured: self.secured.append(secured),
            on_failed=lambda _handshake, reason: failed.append(reason),
        )
        changes_at = self._chance.randrange(3)
        for number in range(6):
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                break
            flight = outgoing.read()
            if not flight:
                break
            if is_changed and number == changes_at:
                flight = changed(self._chance, flight)
            sock.incoming += flight
            self.flights += 1
            while handshake.is_open and sock.incoming:
                loop.on_event(READ)
            if not handshake.is_open:
                break
            incoming.write(bytes(sock.sent))
            sock.sent.clear()
        self.failures.update(failed)
        assert len(failed) <= 1
        handshake.close()
        assert sock.is_closed or self.secured
