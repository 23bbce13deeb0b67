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
import math
import secrets
import time
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Login:
    """The session of some credentials, and until when they need no other check."""

    session_id: str
    checked_until: float


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
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions = sessions
        self._scram = scram
        self._oidc = oidc
        self._audit = audit
        self._now = now
        # Credentials are kept only as digests made with a key of this process: the time of a lookup says
        # nothing about the passwords and tokens of others.
        self._key = secrets.token_bytes(32)
        self._logins: dict[bytes, _Login] = {}
        self._logging_in: dict[bytes, asyncio.Task[Session]] = {}

    async def session(self, request: Request, *, is_used: bool) -> Session:
        """The session of the credentials of a request. Raises ApiError 401, 429 or 502."""
        given = request.headers[HEADER]
        name = hmac.digest(self._key, given.encode(), "sha256")
        login = self._logins.get(name)
        if login is not None and self._now() < login.checked_until:
            found = self._sessions.find(login.session_id, is_used=is_used)
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
        ended = session.session_id
        for name in [name for name, login in self._logins.items() if login.session_id == ended]:
            del self._logins[name]

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
        """Check the credentials. The session that they have goes on, or ends if they are no longer right."""
        scheme, _, value = request.headers[HEADER].partition(" ")
        scheme, value = scheme.lower(), value.strip()
        action, principal = f"login.{scheme}"[:20], _user(scheme, value)
        try:
            identity = await self._check(scheme, value[:LONGEST], request)
        except ApiError as error:
            self._audit(request, principal, action, error.code)
            if error.status == 401:
                error.headers = self.challenges(request)
                if name in self._logins:
                    self._sessions.end(self._logins[name].session_id)
            raise
        session = self._sessions.find(self._logins[name].session_id) if name in self._logins else None
        if session is None:
            session = self._sessions.begin(identity)
            self._audit(request, identity.name, action, "done")
        until = self._now() + BASIC_SECONDS if scheme == "basic" else math.inf
        self._logins[name] = _Login(session.session_id, until)
        return session

    def _check(self, scheme: str, value: str, request: Request) -> Awaitable[Identity]:
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
        return await scram.login(*pair, address)

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
    pair = _pair(value) if scheme == "basic" else None
    return "unknown" if pair is None else f"User:{pair[0]}"
