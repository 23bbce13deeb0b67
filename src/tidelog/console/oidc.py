"""Login at an OpenID Connect provider: the authorization code flow with PKCE (RFC 7636).

The provider's addresses come from its discovery document, its keys from its JWKS. State and nonce bind an
answer to the login that this console began, and a cookie binds it to the browser that began it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote_plus, urlencode, urlsplit

from tidelog.config import ConfigError, Password
from tidelog.console.errors import ApiError
from tidelog.console.sessions import Identity
from tidelog.security.jwks import MAX_BYTES, Jwks
from tidelog.security.jwt_validator import ClaimRules, JwtValidator
from tidelog.security.sasl.oauthbearer import InvalidToken

SECONDS: Final = 10.0
ATTEMPT_SECONDS: Final = 600.0
MOST_ATTEMPTS: Final = 1_000
DISCOVERY: Final = "/.well-known/openid-configuration"
DISCOVERY_SECONDS: Final = 3600.0


@dataclass(slots=True, frozen=True)
class OidcSettings:
    """The provider, and this console as its client."""

    issuer: str
    client_id: str
    client_secret: Password | None = None
    redirect_url: str = ""
    """The address of this console's callback; "" takes the host of the request."""
    scope: str = "openid profile email"
    audience: str = ""
    """The audience that access tokens of programs have to name; "" takes the id of this client."""
    principal_claim: str = "sub"
    groups_claim: str = "groups"
    acts_as_user: bool = False
    """Whether the access token logs in at the cluster, by SASL/OAUTHBEARER."""
    client: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Client settings for the SASL listener. They override the cluster's."""

    def __post_init__(self) -> None:
        check_url("console.oidc.issuer", self.issuer)
        if not self.client_id:
            raise ConfigError("console.oidc.client.id", self.client_id, "expected the id of this console")
        if "openid" not in self.scope.split():
            raise ConfigError("console.oidc.scope", self.scope, "expected openid among the words")


def check_url(setting: str, url: str) -> None:
    """Raise ConfigError unless it is https://, or http:// on this machine."""
    parts = urlsplit(url)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not parts.hostname or parts.scheme not in (("http", "https") if is_local else ("https",)):
        raise ConfigError(setting, url, "expected a URL that begins with https://")


@dataclass(slots=True)
class Attempt:
    """A login that was begun. The browser has `key` in a cookie."""

    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    key_hash: bytes = field(repr=False)
    redirect_url: str
    then: str
    began: float


@dataclass(slots=True, frozen=True)
class Begun:
    """Where to send the browser, and the cookie that it has to bring back."""

    url: str
    key: str = field(repr=False)


class OidcLogin:
    """Begins and finishes logins. The provider is asked on a thread, at the first login."""

    def __init__(self, settings: OidcSettings, now: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._now = now
        self._attempts: dict[str, Attempt] = {}
        self._provider: Provider | None = None
        self._provider_at = 0.0
        self._finding = asyncio.Lock()

    async def begin(self, redirect_url: str, then: str) -> Begun:
        """Begin a login of a browser; `then` is the page to go to. ApiError 502 without the provider."""
        provider = await self._found()
        now = self._now()
        for state in [state for state, each in self._attempts.items() if now - each.began > ATTEMPT_SECONDS]:
            del self._attempts[state]
        while len(self._attempts) >= MOST_ATTEMPTS:
            del self._attempts[next(iter(self._attempts))]
        state, nonce, key = (secrets.token_urlsafe(32) for _ in range(3))
        verifier = secrets.token_urlsafe(48)
        where = self.settings.redirect_url or redirect_url
        self._attempts[state] = Attempt(nonce, verifier, _hash(key), where, then, now)
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": where,
            "scope": self.settings.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
        }
        joint = "&" if urlsplit(provider.authorization_endpoint).query else "?"
        return Begun(f"{provider.authorization_endpoint}{joint}{urlencode(query)}", key)

    async def finish(self, answer: Mapping[str, str], key: str) -> tuple[Identity, str]:
        """The identity, and the page to go to, from the provider's answer and the browser's cookie.

        Raises ApiError 401 if the answer is not one to a login of this browser, or is not valid.
        """
        attempt = self._attempts.pop(answer.get("state", ""), None)
        if attempt is None or self._now() - attempt.began > ATTEMPT_SECONDS:
            raise refused("it was not begun here, or too long ago")
        if not hmac.compare_digest(attempt.key_hash, _hash(key)):
            raise refused("it was begun in another browser")
        if "error" in answer:
            raise refused(f"the provider says {answer['error'][:100]}")
        provider = await self._found()
        issuer = answer.get("iss")
        if issuer is not None and issuer != self.settings.issuer:
            raise refused("another provider has answered")
        code = answer.get("code", "")
        tokens = await asyncio.to_thread(provider.redeem, self.settings, code, attempt)
        return await asyncio.to_thread(self._identity, provider, tokens, attempt), attempt.then

    def _identity(self, provider: Provider, tokens: Mapping[str, object], attempt: Attempt) -> Identity:
        settings = self.settings
        id_token = tokens.get("id_token")
        if not isinstance(id_token, str):
            raise refused("the provider sent no id token")
        rules = ClaimRules(
            expected_issuer=settings.issuer,
            expected_audience=(settings.client_id,),
            sub_claim=settings.principal_claim,
        )
        try:
            token, claims = JwtValidator(provider.keys, rules).validated(id_token)
        except InvalidToken as error:
            raise refused(str(error)) from None
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), attempt.nonce.encode()):
            raise refused("the id token belongs to another login")
        audience = claims.get("aud")
        many = isinstance(audience, list) and len(audience) > 1
        if claims.get("azp", None if many else settings.client_id) != settings.client_id:
            raise refused("the id token was made for another client")
        credentials, ends_in = _token_login(tokens) if settings.acts_as_user else ({}, None)
        return Identity(f"User:{token.principal}", self._groups(claims), credentials, ends_in)

    async def identity_of_token(self, token: str) -> Identity:
        """The identity of a program that has an access token (a JWT) of the provider.

        The identity ends with the token. Raises ApiError 401 for a token that is not valid, or not for this
        console, and 502 without the provider.
        """
        provider = await self._found()
        return await asyncio.to_thread(self._token_identity, provider, token)

    def _token_identity(self, provider: Provider, text: str) -> Identity:
        settings = self.settings
        rules = ClaimRules(
            expected_issuer=settings.issuer,
            expected_audience=(settings.audience or settings.client_id,),
            sub_claim=settings.principal_claim,
        )
        try:
            token, claims = JwtValidator(provider.keys, rules).validated(text)
        except InvalidToken as error:
            raise refused(str(error)) from None
        ends_in = max(token.expiry_ms / 1000 - time.time(), 0.0)
        found = {"access_token": text, "expires_in": ends_in}
        credentials = _token_login(found)[0] if settings.acts_as_user else {}
        return Identity(f"User:{token.principal}", self._groups(claims), credentials, ends_in)

    def _groups(self, claims: Mapping[str, object]) -> tuple[str, ...]:
        found = claims.get(self.settings.groups_claim, [])
        return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()

    async def _found(self) -> Provider:
        async with self._finding:
            if self._provider is None or self._now() - self._provider_at > DISCOVERY_SECONDS:
                self._provider = await asyncio.to_thread(Provider.discover, self.settings.issuer)
                self._provider_at = self._now()
            return self._provider


@dataclass(slots=True)
class Provider:
    """The endpoints and keys of a provider."""

    authorization_endpoint: str
    token_endpoint: str
    keys: Jwks

    @classmethod
    def discover(cls, issuer: str) -> Provider:
        """Read the discovery document. Raises ApiError 502 if it cannot be read or names bad addresses."""
        found = _ask(issuer.rstrip("/") + DISCOVERY, None, {})
        if found.get("issuer") != issuer:
            raise unreachable("its discovery document names another issuer")
        urls = [found.get(name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
        for url in urls:
            try:
                check_url("provider", str(url))
            except ConfigError:
                raise unreachable("its discovery document names an address without https") from None
        authorization, token, keys = map(str, urls)
        return cls(authorization, token, Jwks(keys))

    def redeem(self, settings: OidcSettings, code: str, attempt: Attempt) -> dict[str, object]:
        """Exchange the code for tokens."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": attempt.redirect_url,
            "client_id": settings.client_id,
            "code_verifier": attempt.verifier,
        }
        headers = {}
        if settings.client_secret is not None:
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(settings.client_secret.secret)}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        return _ask(self.token_endpoint, form, headers)


def _token_login(tokens: Mapping[str, object]) -> tuple[dict[str, object], float | None]:
    """The client settings that log in with the access token, and how long it is valid."""
    access = tokens.get("access_token")
    if not isinstance(access, str):
        raise refused("the provider sent no access token")
    lifetime = tokens.get("expires_in")
    seconds = float(lifetime) if isinstance(lifetime, int | float) and lifetime > 0 else None
    expires = None if seconds is None else time.time() + seconds

    def token() -> tuple[str, float | None]:
        return access, expires

    return {"sasl.mechanism": "OAUTHBEARER", "sasl.oauth.token.provider": token}, seconds


def _ask(url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]) -> dict[str, object]:
    """The JSON object at a URL; a POST with a form. Redirects are not followed."""
    from urllib.error import HTTPError

    from tidelog.security.https import ask

    data = None if form is None else urlencode(form).encode()
    try:
        body = ask(
            url,
            seconds=SECONDS,
            max_bytes=MAX_BYTES,
            data=data,
            headers={"Accept": "application/json", **headers},
        )
    except HTTPError as error:
        if form is not None and error.code in (400, 401, 403):
            raise refused("the provider does not accept the code of the login") from None
        raise unreachable(f"it answers with status {error.code}") from None
    except OSError as error:
        raise unreachable(str(error)) from None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise unreachable("its answer is not a JSON object")
    return found


def refused(why: str) -> ApiError:
    return ApiError(401, "LOGIN_REFUSED", f"The login failed: {why}.")


def unreachable(why: str) -> ApiError:
    return ApiError(502, "PROVIDER", f"The login provider cannot be used: {why}.")


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
