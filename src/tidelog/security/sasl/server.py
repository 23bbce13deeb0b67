"""SaslServer: the broker's side of one exchange of a mechanism. Bytes in, bytes out, no socket.

`evaluate` is a generator. It yields work that may block (a callback handler that asks a directory), gets the
result of that work, and returns the token for the client. A mechanism that needs no such work yields nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol, TypeAlias

Work: TypeAlias = Callable[[], object]
"""Called on a thread; what it returns or raises goes back into the exchange."""

Evaluation: TypeAlias = Generator[Work, object, bytes | None]


class SaslException(Exception):
    """An exchange failed. The client learns only that it failed; no client gets the message."""


class SaslAuthenticationException(SaslException):
    """An exchange failed, and the client gets this message. It must not say whether the user exists."""


class SaslServer(Protocol):
    is_complete: bool
    authorization_id: str
    """The user, when the exchange is complete."""

    credential_expiry_ms: int | None
    """When the credential (a token) expires, in milliseconds since 1970; None if it does not."""

    is_token_authenticated: bool
    """Whether a delegation token was the credential."""

    def evaluate(self, response: bytes) -> Evaluation:
        """Take a message of the client; returns the answer, or None. Raises SaslException."""


MakeSaslServer: TypeAlias = Callable[[], SaslServer]
