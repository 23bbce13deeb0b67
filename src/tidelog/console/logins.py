"""Login with user and password of SCRAM: the cluster itself checks them.

The console has no users of its own. It authenticates at a SASL listener with what was typed, and uses the
same credentials for everything that the session asks the cluster: the cluster's ACLs decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from tidelog.console.errors import ApiError
from tidelog.console.login_limit import LoginLimit
from tidelog.console.sessions import Identity
from tidelog.errors import KafkaError, SaslAuthenticationFailed, UnsupportedSaslMechanism

SECONDS: Final = 15.0
AT_ONCE: Final = 8
"""Logins that are checked at the same time; others wait for their turn."""
LONGEST_USER: Final = 256
LONGEST_PASSWORD: Final = 1024
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")


class LoginRefused(ApiError):
    """User and password do not belong together. The message does not say which of them is wrong."""

    def __init__(self) -> None:
        super().__init__(401, "LOGIN_REFUSED", "The user or the password is wrong.")


class TooManyLogins(ApiError):
    """Too many attempts; `seconds` says how long to wait."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(1, round(seconds + 0.5))
        super().__init__(
            429, "TOO_MANY_LOGINS", f"Too many failed logins: try again in {self.seconds} seconds."
        )
        self.headers["Retry-After"] = str(self.seconds)


class ScramLogin:
    """Checks user and password at a SASL listener. `settings` are those of a client, without credentials."""

    def __init__(
        self,
        settings: Mapping[str, object],
        mechanisms: tuple[str, ...] = MECHANISMS,
        limit: LoginLimit | None = None,
    ) -> None:
        self._settings = dict(settings)
        self._mechanisms = mechanisms
        self._limit = limit or LoginLimit()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def login(self, user: str, password: str, address: str) -> Identity:
        """The identity of the user. Raises LoginRefused, TooManyLogins, or 502 without a cluster."""
        if not 0 < len(user) <= LONGEST_USER or not user.isprintable():
            raise LoginRefused
        if not 0 < len(password) <= LONGEST_PASSWORD:
            raise LoginRefused
        wait = self._limit.attempt(address, user)
        if wait > 0:
            raise TooManyLogins(wait)
        async with self._turns:
            mechanism = await self._check(user, password)
        self._limit.succeeded(address, user)
        return Identity(f"User:{user}", credentials=_credentials(mechanism, user, password))

    async def _check(self, user: str, password: str) -> str:
        """The mechanism that the user has a password for."""
        # The broker reads the access file when it starts, and has no use for a client.
        from tidelog.clients.admin.client import AsyncAdmin

        for mechanism in self._mechanisms:
            settings = self._settings | _credentials(mechanism, user, password)
            try:
                async with AsyncAdmin({**settings, "client.id": "tidelog-console-login"}) as admin:
                    await admin.connect(timeout=SECONDS)
                return mechanism
            except (SaslAuthenticationFailed, UnsupportedSaslMechanism):
                continue
            except KafkaError as error:
                message = f"The cluster cannot check logins: {error}"
                raise ApiError(502, type(error).__name__, message) from None
        raise LoginRefused


def _credentials(mechanism: str, user: str, password: str) -> dict[str, object]:
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
