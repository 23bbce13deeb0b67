"""Logins of programs: the header Authorization of a request to the API.

`Basic` has a user and password of SCRAM, `Bearer` an access token of the OpenID Connect provider. The first
request with some credentials logs in and begins a session; requests with the same credentials use it until it
ends. No cookie is set: a browser never sends these credentials unless its page names them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from starlette.requests import Request

from tidelog.console.csrf import BROWSER_HEADERS
from tidelog.console.errors import ApiError
from tidelog.console.logins import LoginRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tidelog.console.logins import ScramLogin
    from tidelog.console.oidc import OidcLogin
    from tidelog.console.sessions import Identity, Session, Sessions

HEADER: Final = "authorization"
BASIC_SECONDS: Final = 600.0
"""The time after which a password is checked again, so that a changed one is noticed."""
LONGEST: Final = 16_384


class ApiCredentials:
    """The sessions of programs by their credentials.

    `scram` and `oidc` check credentials; None for a login that the console does not have. `audit` gets the
    request, principal, action and outcome of each login.
    """

    def __init__(
        self,
        sessions: Sessions,
        scram: Callable[[], ScramLogin | None],
        oidc: OidcLogin | None,
        audit: Callable[[Request, str, str, str], None],
    ) -> None:
        self._sessions = sessions
        self._scram = scram
        self._oidc = oidc
        self._audit = audit
        # A key of this process makes the names of credentials: no time that a lookup takes tells an attacker
        # anything about the passwords and tokens of others, and none of them is kept here.
        self._key = secrets.token_bytes(32)
        self._session_ids: dict[bytes, str] = {}
        self._logging_in: dict[bytes, asyncio.Task[Session]] = {}

    async def session(self, request: Request, *, is_used: bool) -> Session:
        """The session of the credentials of a request. Raises ApiError 401, 429 or 502."""
        given = request.headers[HEADER]
        name = hmac.digest(self._key, given.encode(), "sha256")
        found = self._sessions.find(self._session_ids.get(name, ""), is_used=is_used)
        if found is not None:
            return found
        task = self._logging_in.get(name)
        if task is None:  # many requests at once with the same credentials are one login
            task = asyncio.create_task(self._begin(request, name))
            self._logging_in[name] = task
            task.add_done_callback(lambda _: self._logging_in.pop(name, None))
        return await asyncio.shield(task)

    def forget(self, session: Session) -> None:
        """Forget the credentials of a session that has ended."""
        for name in [name for name, each in self._session_ids.items() if each == session.session_id]:
            del self._session_ids[name]

    def challenges(self, request: Request) -> dict[str, str]:
        """The header that tells a program how to log in.

        A browser gets none: it would ask for a password in a window of its own, and then send it with the
        requests of other sites, too.
        """
        if any(header in request.headers for header in BROWSER_HEADERS):
            return {}
        known = []
        if self._scram() is not None:
            known.append('Basic realm="tidelog console", charset="UTF-8"')
        if self._oidc is not None:
            known.append('Bearer realm="tidelog console"')
        return {"WWW-Authenticate": ", ".join(known)}

    async def _begin(self, request: Request, name: bytes) -> Session:
        scheme, _, value = request.headers[HEADER].partition(" ")
        value = value.strip()
        login = self._login(scheme.lower(), value[:LONGEST], request)
        action, principal = f"login.{scheme.lower()}"[:20], _user(scheme, value)
        try:
            identity = await login
        except ApiError as error:
            self._audit(request, principal, action, error.code)
            if error.status == 401:
                error.headers = self.challenges(request)
            raise
        session = self._sessions.begin(identity)
        self._session_ids[name] = session.session_id
        self._audit(request, identity.name, action, "done")
        return session

    def _login(self, scheme: str, value: str, request: Request) -> Awaitable[Identity]:
        address = "" if request.client is None else request.client.host
        if scheme == "basic":
            return self._with_password(value, address)
        if scheme == "bearer":
            return self._with_token(value)
        return _refuse("The header Authorization is neither Basic nor Bearer.")

    async def _with_password(self, value: str, address: str) -> Identity:
        scram = self._scram()
        if scram is None:
            return await _refuse("This console takes no passwords: send a token of its login provider.")
        pair = _pair(value)
        if pair is None:
            raise LoginRefused
        return replace(await scram.login(*pair, address), ends_in=BASIC_SECONDS)

    async def _with_token(self, value: str) -> Identity:
        if self._oidc is None:
            return await _refuse("This console takes no tokens: send a user and password.")
        return await self._oidc.identity_of_token(value)


async def _refuse(message: str) -> Identity:
    raise ApiError(401, "LOGIN_REFUSED", message)


def _pair(value: str) -> tuple[str, str] | None:
    """User and password of Basic (RFC 7617); None if it cannot be read."""
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    user, colon, password = text.partition(":")
    return (user, password) if colon else None


def _user(scheme: str, value: str) -> str:
    """The principal that a refused login names, for the audit."""
    pair = _pair(value) if scheme.lower() == "basic" else None
    return "unknown" if pair is None else f"User:{pair[0]}"
