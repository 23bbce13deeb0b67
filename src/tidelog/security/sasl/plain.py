"""PLAIN (RFC 4616): user and password in one message. Only safe on a TLS listener."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Protocol

from tidelog.security.sasl.server import Evaluation, SaslAuthenticationException

USER_PREFIX = "user_"


class PlainCallbackHandler(Protocol):
    """Checks user and password. `authenticate` runs on a thread and may block.

    `configure` gets the options of the login module before the first check.
    """

    def configure(self, options: Mapping[str, str]) -> None: ...

    def authenticate(self, username: str, password: str) -> bool: ...


class JaasUsers:
    """The users of a JAAS text: user_alice="secret"."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._passwords = {
            name.removeprefix(USER_PREFIX): value.encode()
            for name, value in options.items()
            if name.startswith(USER_PREFIX)
        }

    def authenticate(self, username: str, password: str) -> bool:
        """Compares in the same time whether or not the user exists."""
        expected = self._passwords.get(username)
        same = hmac.compare_digest(b"\0" if expected is None else expected, password.encode())
        return same and expected is not None


class PlainSaslServer:
    """Implements SaslServer."""

    is_token_authenticated = False
    credential_expiry_ms: int | None = None

    def __init__(self, users: JaasUsers | None, handler: PlainCallbackHandler | None = None) -> None:
        self._users = users
        self._handler = handler
        self.is_complete = False
        self.authorization_id = ""

    def evaluate(self, response: bytes) -> Evaluation:
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise SaslAuthenticationException(
                f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            )
        wanted, username, password = (part.decode("utf-8", "replace") for part in parts)
        if not username:
            raise SaslAuthenticationException("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationException("Authentication failed: password not specified")
        handler = self._handler
        if handler is not None:
            is_right = bool((yield lambda: handler.authenticate(username, password)))
        else:
            is_right = self._users is not None and self._users.authenticate(username, password)
        if not is_right:
            raise SaslAuthenticationException("Authentication failed: Invalid username or password")
        if wanted and wanted != username:
            raise SaslAuthenticationException(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.authorization_id = username
        self.is_complete = True
        return b""
