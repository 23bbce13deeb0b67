"""ListenerSecurity: the security of a listener, implemented by the broker. A PLAINTEXT listener has none.

With TLS, the handshake comes first. With SASL, an `Authenticator` then gets the frames of a new connection
until its client is authenticated. No request is read before that.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidelog.network.authentication_metrics import AuthenticationMetrics
    from tidelog.network.channel import Channel


ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection that proved nothing, as in Kafka."""


class AuthenticationStep(Protocol):
    """The next step of an authentication, after a frame."""

    @property
    def response(self) -> bytes | None:
        """A frame without its size, or None."""

    @property
    def work(self) -> Callable[[], object] | None:
        """Work for a thread, or None. Its result goes to `Authenticator.resume`."""

    @property
    def is_complete(self) -> bool:
        """Whether the client is authenticated. `Authenticator.session` has its principal then."""

    @property
    def is_failed(self) -> bool:
        """Whether the connection is closed after the response."""

    @property
    def is_delayed(self) -> bool:
        """Whether response and close wait for `ListenerSecurity.failure_delay_seconds`."""

    @property
    def reason(self) -> str:
        """The reason of a failure, for the log."""


class Session(Protocol):
    """The identity of a client, and its lifetime."""

    @property
    def principal(self) -> str: ...

    @property
    def is_token_authenticated(self) -> bool: ...

    @property
    def lifetime_ms(self) -> int | None: ...

    @property
    def supports_reauthentication(self) -> bool: ...


class Authenticator(Protocol):
    @property
    def session(self) -> Session | None: ...

    @property
    def client_software(self) -> tuple[str, str] | None: ...

    def receive(self, frame: bytes) -> AuthenticationStep: ...

    def resume(self, result: object, error: BaseException | None) -> AuthenticationStep: ...


class ListenerSecurity(Protocol):
    metrics: AuthenticationMetrics

    @property
    def max_receive_size(self) -> int:
        """The largest frame before the client is authenticated (sasl.server.max.receive.size)."""

    @property
    def failure_delay_seconds(self) -> float:
        """connection.failed.authentication.delay.ms"""

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context of a new connection; None without TLS. A reload of keys replaces it."""

    def principal_of(self, certificate: bytes | None, host: str) -> str:
        """The principal of a connection from its client's certificate (DER), if the client has sent one.

        Runs on a thread. An exception refuses the connection. SASL replaces the principal.
        """

    def authenticator(self, channel: Channel, previous: Session | None = None) -> Authenticator | None:
        """A new authentication; `previous` is the session that it renews. None without SASL."""
