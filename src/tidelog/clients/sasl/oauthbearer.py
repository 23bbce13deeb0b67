"""The mechanism OAUTHBEARER (RFC 7628): one message with a token."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from tidelog.errors import SaslAuthenticationFailed

_TOKEN = re.compile(r"[-_~+/.A-Za-z0-9]+=*")
_EXTENSION = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


@dataclass(slots=True, frozen=True)
class Token:
    """A token and what is known of it. Times are in seconds since 1970; without `expires` it is not kept."""

    value: str = field(repr=False)
    expires: float | None = None
    starts: float | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.value):
            raise ValueError("the token has other characters than tokens may have")
        for name, value in self.extensions.items():
            if not _EXTENSION.fullmatch(name) or name == "auth":
                raise ValueError(
                    f"the extension {name!r} has a name of other characters than letters, or auth"
                )
            if not _EXTENSION_VALUE.fullmatch(value):
                raise ValueError(f"the value of the extension {name!r} has characters that are not allowed")


def oauthbearer_steps(token: Token) -> Generator[bytes, bytes, None]:
    """Send the token. A broker that refuses it says why before it ends the exchange."""
    extensions = "".join(f"{name}={value}\x01" for name, value in token.extensions.items())
    answer = yield f"n,,\x01auth=Bearer {token.value}\x01{extensions}\x01".encode()
    if not answer:
        return
    reason = _reason(answer)
    yield b"\x01"  # the broker ends the exchange with an error, which is raised there
    raise SaslAuthenticationFailed(f"OAUTHBEARER: the broker refused the token: {reason}")


def jwt_claims(token: str) -> dict[str, object]:
    """The claims of a signed token, unchecked; empty if it is none."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}


def token_of(value: str, extensions: Mapping[str, str], lifetime: float | None, now: float) -> Token:
    """A token with the times of its claims; `lifetime` in seconds counts if it has none."""
    claims = jwt_claims(value)
    expires, starts = claims.get("exp"), claims.get("iat")
    if not isinstance(expires, int | float):
        expires = None if lifetime is None else now + lifetime
    return Token(value, expires, starts if isinstance(starts, int | float) else None, extensions)


def _reason(answer: bytes) -> str:
    try:
        found = json.loads(answer)
        return str(found.get("status", "no reason")) if isinstance(found, dict) else "no reason"
    except ValueError:
        return "no reason"
