"""OAUTHBEARER (RFC 7628): a bearer token, and the extensions that Kafka's clients may send with it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tidelog.security.sasl.server import Evaluation, SaslAuthenticationException, SaslException

# One class of characters, and the escapes apart: alternatives take time and memory for each byte.
_SASL_NAME = r"[\x01-\x2b\x2d-\x7f]+"
_BAD_ESCAPE = re.compile(r"=(?!2C|3D)")
_INITIAL = re.compile(
    rf"n,(?:a=(?P<authzid>{_SASL_NAME}))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7E \t\r\n]*\x01)*)\x01"
)
_AUTH = re.compile(r"(?P<scheme>[!-~]+)[ ]+(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
GO_AHEAD = b"\x01"
MOST_PAIRS = 100
"""A message with more is refused: nobody has logged in yet, and each pair takes memory."""


@dataclass(slots=True, frozen=True)
class OAuthBearerToken:
    """A valid token: its user, its scope, and when it expires in milliseconds since 1970."""

    principal: str
    expiry_ms: int
    scope: frozenset[str] = field(default_factory=frozenset)


class InvalidToken(Exception):
    """A token is not accepted. `status` and `scope` go to the client (RFC 7628), the message does not."""

    def __init__(self, problem: str, status: str = "invalid_token", scope: str | None = None) -> None:
        super().__init__(problem)
        self.status = status
        self.scope = scope


class OAuthBearerValidator(Protocol):
    """Checks tokens. `validate` runs on a thread and may block. Raises InvalidToken."""

    def configure(self, options: Mapping[str, str]) -> None: ...

    def validate(self, token: str) -> OAuthBearerToken: ...


@dataclass(slots=True, frozen=True)
class InitialResponse:
    """The client's first message."""

    token: str = field(repr=False)
    authorization_id: str
    extensions: dict[str, str]

    @classmethod
    def parse(cls, message: bytes) -> InitialResponse:
        """Raises SaslException."""
        is_short = message.count(b"\x01") <= MOST_PAIRS
        match = _INITIAL.fullmatch(message.decode("utf-8", "replace")) if is_short else None
        if match is None or _BAD_ESCAPE.search(match["authzid"] or ""):
            raise SaslException("not a client's first message of OAUTHBEARER")
        pairs = [pair.partition("=") for pair in match["pairs"].split("\x01") if pair]
        values = {name: value for name, _, value in pairs}
        auth = _AUTH.fullmatch(values.pop("auth", ""))
        if auth is None or auth["scheme"].lower() != "bearer":
            raise SaslException("there is no bearer token in the message")
        authzid = (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
        return cls(auth["token"], authzid, values)


class OAuthBearerSaslServer:
    """Implements SaslServer. After a refused token the client sends a last message, which ends it."""

    is_token_authenticated = False

    def __init__(self, validator: OAuthBearerValidator) -> None:
        self._validator = validator
        self._error: str | None = None
        self.is_complete = False
        self.authorization_id = ""
        self.credential_expiry_ms: int | None = None
        self.extensions: dict[str, str] = {}

    def evaluate(self, response: bytes) -> Evaluation:
        if response == GO_AHEAD and self._error is not None:
            raise SaslAuthenticationException(self._error)
        self._error = None
        initial = InitialResponse.parse(response)
        validator = self._validator

        def validate() -> OAuthBearerToken | InvalidToken:
            try:
                return validator.validate(initial.token)
            except InvalidToken as error:
                return error

        token = yield validate
        if isinstance(token, InvalidToken):
            self._error = _error_text(token)
            return self._error.encode()
        if not isinstance(token, OAuthBearerToken):
            raise SaslException("the validator returned no token")
        wanted = initial.authorization_id
        if wanted and wanted != token.principal:
            raise SaslAuthenticationException(
                f"Authentication failed: Client requested an authorization id ({wanted}) that is different "
                f"from the token's principal name ({token.principal})"
            )
        self.authorization_id = token.principal
        self.credential_expiry_ms = token.expiry_ms
        self.extensions = initial.extensions
        self.is_complete = True
        return b""


def _error_text(error: InvalidToken) -> str:
    fields = {"status": error.status}
    if error.scope is not None:
        fields["scope"] = error.scope
    return json.dumps(fields, separators=(",", ":"))
