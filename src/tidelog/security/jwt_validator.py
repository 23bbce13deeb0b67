"""Validators of OAUTHBEARER tokens: JSON Web Tokens that a provider signed, or unsecured ones for tests.

Only RS*, PS* and ES* signatures are accepted, never `none` and never an HMAC: a public key must not be taken
for a shared secret.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.security.sasl.oauthbearer import InvalidToken, OAuthBearerToken

if TYPE_CHECKING:
    from tidelog.security.jwks import Jwks

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
)  # fmt: skip


@dataclass(slots=True, frozen=True)
class ClaimRules:
    """What the claims of a token have to say. Times are in seconds."""

    expected_issuer: str | None = None
    expected_audience: tuple[str, ...] = ()
    required_scope: tuple[str, ...] = ()
    scope_claim: str = "scope"
    sub_claim: str = "sub"
    clock_skew: int = 30


class JwtValidator:
    """Checks signature and claims of a token. Implements OAuthBearerValidator."""

    def __init__(self, keys: Jwks, rules: ClaimRules, now: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._rules = rules
        self._now = now

    def configure(self, options: Mapping[str, str]) -> None:
        """The rules have everything."""

    def validate(self, token: str) -> OAuthBearerToken:
        return self.validated(token)[0]

    def validated(self, token: str) -> tuple[OAuthBearerToken, dict[str, object]]:
        """The token and all its claims. Raises InvalidToken."""
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in ALGORITHMS:
                raise InvalidToken("the signature algorithm is not accepted")
            if "crit" in header:  # RFC 7515, 4.1.11
                raise InvalidToken("the header has critical extensions, and none is understood")
            key = self._keys.find(header.get("kid"), algorithm)
            if key is None:
                raise InvalidToken("no key of the provider has the token's key id")
            claims: dict[str, object] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                # The claims are checked below, the same for signed and unsecured tokens.
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": False,
                    "verify_iss": False,
                    "verify_sub": False,
                },
            )
        except jwt.PyJWTError as error:
            raise InvalidToken(f"the token cannot be verified: {type(error).__name__}") from None
        return checked(claims, self._rules, self._now()), claims


class UnsecuredValidator:
    """Takes tokens without a signature: anybody can make one. For tests alone.

    The options of the login module are those of Kafka's OAuthBearerUnsecuredValidatorCallbackHandler.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._rules = ClaimRules(clock_skew=0)

    def configure(self, options: Mapping[str, str]) -> None:
        prefix = "unsecuredValidator"
        skew = options.get(f"{prefix}AllowableClockSkewMs", "0")
        self._rules = ClaimRules(
            required_scope=tuple(options.get(f"{prefix}RequiredScope", "").split()),
            scope_claim=options.get(f"{prefix}ScopeClaimName", "scope"),
            sub_claim=options.get(f"{prefix}PrincipalClaimName", "sub"),
            clock_skew=int(skew) // 1000 if skew.isdigit() else 0,
        )

    def validate(self, token: str) -> OAuthBearerToken:
        parts = token.split(".")
        if len(parts) != 3 or parts[2]:
            raise InvalidToken("not an unsecured token")
        header, claims = _json(parts[0]), _json(parts[1])
        if header.get("alg") != "none":
            raise InvalidToken("not an unsecured token")
        return checked(claims, self._rules, self._now())


def checked(claims: Mapping[str, object], rules: ClaimRules, now: float) -> OAuthBearerToken:
    """The token of valid claims. Raises InvalidToken."""
    principal = claims.get(rules.sub_claim)
    if not isinstance(principal, str) or not principal.strip():
        raise InvalidToken(f"the claim {rules.sub_claim} is missing")
    try:
        principal.encode()
    except UnicodeEncodeError:
        raise InvalidToken(f"the claim {rules.sub_claim} is no text") from None
    expiry = _time(claims, "exp")
    if expiry is None:
        raise InvalidToken("the claim exp is missing")
    issued, not_before = _time(claims, "iat"), _time(claims, "nbf")
    if now > expiry + rules.clock_skew:
        raise InvalidToken("the token has expired")
    if not_before is not None and now < not_before - rules.clock_skew:
        raise InvalidToken("the token is not valid yet")
    if issued is not None and (issued > now + rules.clock_skew or issued > expiry):
        raise InvalidToken("the token was issued in the future")
    if rules.expected_issuer is not None and claims.get("iss") != rules.expected_issuer:
        raise InvalidToken("the issuer is not the expected one")
    if rules.expected_audience and not set(_words(claims, "aud", split=False)) & set(rules.expected_audience):
        raise InvalidToken("the audience is not an expected one")
    scope = frozenset(_words(claims, rules.scope_claim, split=True))
    if not set(rules.required_scope) <= scope:
        needed = " ".join(rules.required_scope)
        raise InvalidToken("the scope is too small", "insufficient_scope", needed)
    return OAuthBearerToken(principal.strip(), int(expiry * 1000), scope)


def _json(part: str) -> dict[str, object]:
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError):
        raise InvalidToken("the token is malformed") from None
    if not isinstance(found, dict):
        raise InvalidToken("the token is malformed")
    return found


def _time(claims: Mapping[str, object], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InvalidToken(f"the claim {name} is not a time")
    return float(value)


def _words(claims: Mapping[str, object], name: str, *, split: bool) -> list[str]:
    """The strings of a claim that is one string or a list of them."""
    value = claims.get(name)
    if isinstance(value, str):
        return value.split() if split else [value]
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return value
    if value is None:
        return []
    raise InvalidToken(f"the claim {name} is not a string or a list of strings")
