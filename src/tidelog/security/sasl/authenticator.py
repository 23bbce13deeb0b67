"""SaslServerAuthenticator: the states of an authentication, from the first frame to the principal.

Frames in, `Step`s out, no socket: the caller sends the response of a step and does what its `outcome` says.
The same machine re-authenticates an open connection: principal and mechanism may not change then.

After a handshake of version 1 each message of the mechanism is a SaslAuthenticate request. After one of
version 0 the messages are frames without a header.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tidelog.errors import ErrorCode
from tidelog.protocol.api import API, ApiKey
from tidelog.protocol.headers import read_request_header, response_header
from tidelog.protocol.message import Message, decoder_for
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tidelog.protocol.wire import ProtocolError
from tidelog.security.sasl.server import (
    Evaluation,
    MakeSaslServer,
    SaslAuthenticationException,
    SaslException,
    SaslServer,
    Work,
)

GSSAPI: Final = "GSSAPI"
HIGHEST_API_VERSIONS: Final = ApiVersionsRequest.VERSIONS.high

LATEST_MS: Final = 2**63 - 1
"""A time in an answer has 64 bits, and a token may claim to be valid for longer."""

AnswerVersions = Callable[[int, ApiVersionsRequest], ApiVersionsResponse]
"""Answers ApiVersions in a version, before the client is known."""


class SaslState(Enum):
    """Kafka's states."""

    INITIAL_REQUEST = 1  # the first frame may be a GSSAPI token of a client before Kafka 0.10
    HANDSHAKE_OR_VERSIONS_REQUEST = 2
    HANDSHAKE_REQUEST = 3  # after ApiVersions
    AUTHENTICATE = 4
    COMPLETE = 5
    FAILED = 6
    REAUTH_PROCESS_HANDSHAKE = 7
    REAUTH_BAD_MECHANISM = 8


class Outcome(Enum):
    CONTINUE = "read the next frame"
    WORK = "run `work` on a thread, then call `resume`"
    COMPLETE = "the client is authenticated"
    FAILED = "send the response, if any, after the delay for failed authentications, then close"
    CLOSED = "close at once: the peer does not follow the protocol"


@dataclass(slots=True, frozen=True)
class Step:
    """What the caller does after a frame. `response` is a frame without its size."""

    outcome: Outcome
    response: bytes | None = None
    work: Work | None = None
    reason: str = ""

    @property
    def is_complete(self) -> bool:
        return self.outcome is Outcome.COMPLETE

    @property
    def is_failed(self) -> bool:
        return self.outcome in (Outcome.FAILED, Outcome.CLOSED)

    @property
    def is_delayed(self) -> bool:
        """Whether the caller waits before it answers and closes."""
        return self.outcome is Outcome.FAILED


@dataclass(slots=True, frozen=True)
class Session:
    """An authenticated client. `lifetime_ms` is None if its session does not end."""

    user: str
    mechanism: str
    is_token_authenticated: bool
    lifetime_ms: int | None
    supports_reauthentication: bool

    @property
    def principal(self) -> str:
        return f"User:{self.user}"


@dataclass(slots=True, frozen=True)
class MechanismOptions:
    """A mechanism of a listener, and its connections.max.reauth.ms."""

    make_server: MakeSaslServer
    max_reauth_ms: int = 0


class _Refused(Exception):
    """The authentication failed; `response` goes to the client after the delay."""

    def __init__(self, reason: str, response: bytes | None = None) -> None:
        super().__init__(reason)
        self.response = response


class _Violation(Exception):
    """The peer does not follow the protocol: the connection is closed at once."""


class SaslServerAuthenticator:
    def __init__(
        self,
        mechanisms: Mapping[str, MechanismOptions],
        answer_versions: AnswerVersions,
        now_ms: Callable[[], int],
        previous: Session | None = None,
        user_name: Callable[[str, str], str] | None = None,
    ) -> None:
        """`previous` is the session that a re-authentication follows.

        `user_name` makes the user's name of a mechanism and an authorization id; without it they are equal.
        """
        self._mechanisms = mechanisms
        self._answer_versions = answer_versions
        self._now_ms = now_ms
        self._previous = previous
        self._user_name = user_name
        self.state = SaslState.INITIAL_REQUEST if previous is None else SaslState.REAUTH_PROCESS_HANDSHAKE
        self.session: Session | None = None
        self.client_software: tuple[str, str] | None = None
        self._mechanism = ""
        self._server: SaslServer | None = None
        self._has_headers = False  # whether tokens are in SaslAuthenticate requests
        self._supports_reauthentication = False
        # The evaluation that waits for its work, and the header of its request.
        self._evaluation: Evaluation | None = None
        self._header: tuple[int, int] | None = None

    def receive(self, frame: bytes) -> Step:
        """Take a frame of the client, without its size."""
        return self._guarded(lambda: self._receive(frame))

    def resume(self, result: object, error: BaseException | None) -> Step:
        """Continue after the work of the last step: its result, or the error that it raised."""
        evaluation = self._evaluation
        assert evaluation is not None
        if isinstance(error, Exception) and not isinstance(error, SaslException):
            error = SaslException(f"a callback handler failed: {type(error).__name__}")

        def go_on() -> Step:
            return self._evaluate(
                lambda: evaluation.send(result) if error is None else evaluation.throw(error)
            )

        return self._guarded(go_on)

    def _guarded(self, work: Callable[[], Step]) -> Step:
        try:
            return work()
        except _Refused as refused:
            self.state = SaslState.FAILED
            return Step(Outcome.FAILED, refused.response, reason=str(refused))
        except (_Violation, ProtocolError) as error:
            self.state = SaslState.FAILED
            return Step(Outcome.CLOSED, reason=str(error))

    def _receive(self, frame: bytes) -> Step:
        if self.state is SaslState.AUTHENTICATE:
            return self._token(frame)
        if self.state is SaslState.REAUTH_BAD_MECHANISM:
            previous = self._previous
            assert previous is not None
            raise _Refused(f"{self._mechanism} does not re-authenticate a connection of {previous.mechanism}")
        if self.state in (SaslState.COMPLETE, SaslState.FAILED):
            raise _Violation(f"a frame came in state {self.state.name}")
        return self._request(frame)

    # The handshake

    def _request(self, frame: bytes) -> Step:
        try:
            key, version, correlation_id, _, start = read_request_header(frame, 0)
            if key not in API:
                raise ProtocolError(f"API key {key} is not known")
        except ProtocolError as error:
            if self.state is not SaslState.INITIAL_REQUEST:
                raise
            # Clients before Kafka 0.10 begin with a GSSAPI token.
            if GSSAPI not in self._mechanisms:
                raise _Refused("the first frame is not a Kafka request") from error
            self._begin(GSSAPI)
            return self._token(frame)
        if self.state is SaslState.INITIAL_REQUEST:
            self.state = SaslState.HANDSHAKE_OR_VERSIONS_REQUEST
        if key == ApiKey.API_VERSIONS:
            return self._versions(frame, version, correlation_id, start)
        if key != ApiKey.SASL_HANDSHAKE:
            raise _Violation(f"{API[key].name} came before the SASL handshake")
        request, _ = decoder_for(SaslHandshakeRequest, version)(frame, start)
        return self._handshake(request.mechanism, version, correlation_id)

    def _versions(self, frame: bytes, version: int, correlation_id: int, start: int) -> Step:
        if self.state is not SaslState.HANDSHAKE_OR_VERSIONS_REQUEST:
            raise _Violation(f"ApiVersions came in state {self.state.name}")
        if not 0 <= version <= HIGHEST_API_VERSIONS:
            answer = self._answer_versions(version, ApiVersionsRequest())
            return self._continue(answer, 0, correlation_id)
        request, _ = decoder_for(ApiVersionsRequest, version)(frame, start)
        answer = self._answer_versions(version, request)
        if not answer.error_code:
            if version >= 3:
                self.client_software = (request.client_software_name, request.client_software_version)
            self.state = SaslState.HANDSHAKE_REQUEST
        return self._continue(answer, version, correlation_id)

    def _handshake(self, mechanism: str, version: int, correlation_id: int) -> Step:
        self._has_headers = self._has_headers or version >= 1
        offered = list(self._mechanisms)
        if mechanism not in self._mechanisms:
            answer = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered
            )
            # Kafka sends no answer while it re-authenticates.
            response = None if self._previous else _frame(answer, version, correlation_id)
            raise _Refused(f"mechanism {mechanism[:40]!r} is not enabled", response)
        step = self._continue(SaslHandshakeResponse(mechanisms=offered), version, correlation_id)
        self._mechanism = mechanism
        if self._previous is not None and self._previous.mechanism != mechanism:
            self.state = SaslState.REAUTH_BAD_MECHANISM
        else:
            self._begin(mechanism)
        return step

    def _begin(self, mechanism: str) -> None:
        self._mechanism = mechanism
        self._server = self._mechanisms[mechanism].make_server()
        self.state = SaslState.AUTHENTICATE

    def _continue(self, answer: Message, version: int, correlation_id: int) -> Step:
        return Step(Outcome.CONTINUE, _frame(answer, version, correlation_id))

    # The messages of the mechanism

    def _token(self, frame: bytes) -> Step:
        server = self._server
        assert server is not None
        self._header = None
        token = frame
        if self._has_headers:
            key, version, correlation_id, _, start = read_request_header(frame, 0)
            if key not in API:
                raise _Violation(f"API key {key} is not known")
            if key != ApiKey.SASL_AUTHENTICATE:
                self._refuse_request(key, version, correlation_id)
            request, _ = decoder_for(SaslAuthenticateRequest, version)(frame, start)
            self._supports_reauthentication = self._supports_reauthentication or version > 0
            self._header = version, correlation_id
            token = bytes(request.auth_bytes)
        self._evaluation = evaluation = server.evaluate(token)
        return self._evaluate(lambda: next(evaluation))

    def _refuse_request(self, key: int, version: int, correlation_id: int) -> None:
        api = API[key]
        if not api.response.VERSIONS.has(version):
            raise _Violation(f"version {version} of {api.name} is not known")
        answer = api.response()
        if hasattr(answer, "error_code"):
            answer.error_code = ErrorCode.ILLEGAL_SASL_STATE
        raise _Refused(
            f"{api.name} came during the SASL authentication", _frame(answer, version, correlation_id, key)
        )

    def _evaluate(self, advance: Callable[[], Work]) -> Step:
        """Advance the evaluation to its next work, or to its end."""
        try:
            work = advance()
        except StopIteration as end:
            self._evaluation = None
            token: bytes | None = end.value
            return self._evaluated(token)
        except SaslAuthenticationException as error:
            self._evaluation = None
            raise _Refused(f"{self._mechanism}: {error}", self._failure(str(error))) from None
        except SaslException as error:
            self._evaluation = None
            again = "re-authentication" if self._previous is not None else "authentication"
            message = (
                f"Authentication failed during {again} due to invalid credentials with SASL mechanism "
                f"{self._mechanism}"
            )
            raise _Refused(f"{self._mechanism}: {error}", self._failure(message)) from None
        return Step(Outcome.WORK, work=work)

    def _evaluated(self, token: bytes | None) -> Step:
        server = self._server
        assert server is not None
        lifetime_ms: int | None = None
        if server.is_complete:
            lifetime_ms = self._complete(server)
        response = token
        if self._header is not None:
            version, correlation_id = self._header
            answer = SaslAuthenticateResponse(
                error_message="", auth_bytes=token or b"", session_lifetime_ms=lifetime_ms or 0
            )
            response = _frame(answer, version, correlation_id)
        return Step(Outcome.COMPLETE if server.is_complete else Outcome.CONTINUE, response)

    def _complete(self, server: SaslServer) -> int | None:
        user = server.authorization_id
        if self._user_name is not None:
            try:
                user = self._user_name(self._mechanism, user)
            except ValueError as error:
                raise _Refused(str(error), self._failure("Authentication failed: no user name")) from None
        previous = self._previous
        if previous is not None and previous.user != user:
            message = (
                f"Cannot change principals during re-authentication from User.{previous.user}: User.{user}"
            )
            raise _Refused(message, self._failure(message))
        lifetime_ms = self._mechanisms[self._mechanism].max_reauth_ms or None
        if server.credential_expiry_ms is not None:
            left = max(0, min(server.credential_expiry_ms, LATEST_MS) - self._now_ms())
            lifetime_ms = left if lifetime_ms is None else min(left, lifetime_ms)
        self.session = Session(
            user,
            self._mechanism,
            server.is_token_authenticated,
            lifetime_ms,
            self._supports_reauthentication,
        )
        self.state = SaslState.COMPLETE
        return lifetime_ms

    def _failure(self, message: str) -> bytes | None:
        """The answer to a failed SaslAuthenticate; None if the client sends tokens without headers."""
        if self._header is None:
            return None
        answer = SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message
        )
        return _frame(answer, *self._header)


def _frame(answer: Message, version: int, correlation_id: int, key: int | None = None) -> bytes:
    key = answer.KEY if key is None else key
    assert key is not None
    return answer.encode(version, response_header(key, version, correlation_id))
