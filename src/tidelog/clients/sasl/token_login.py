"""Keeps the token of a client, and gets a new one before it expires."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from tidelog.clients.sasl.oauthbearer import Token
from tidelog.clients.settings import ClientSettings
from tidelog.errors import KafkaError

log = logging.getLogger("tidelog.clients")

Clock = Callable[[], float]


class TokenLogin:
    """`current` returns the token while it need not be renewed; `renewed` gets one, and may block."""

    def __init__(
        self, fetch: Callable[[], Token], settings: ClientSettings, clock: Clock = time.time
    ) -> None:
        self._fetch = fetch
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renew_at = 0.0

    def current(self) -> Token | None:
        return self._token if self._clock() < self._renew_at else None

    def renewed(self) -> Token:
        """The token, a new one if it is time. If none can be got, the old one counts until it expires."""
        with self._lock:
            if (token := self.current()) is not None:
                return token
            begun = self._clock()
            try:
                token = self._fetch()
            except KafkaError as error:
                old = self._token
                if old is None or old.expires is None or old.expires <= begun:
                    raise
                log.warning("the token was not renewed, and the old one is used until it expires: %s", error)
                return old
            self._token = token
            self._renew_at = self._time_to_renew(token)
            return token

    def _time_to_renew(self, token: Token) -> float:
        """As Kafka: after a part of the lifetime, but not too soon, and not in the last minutes."""
        now, settings = self._clock(), self._settings
        if token.expires is None:
            return 0.0
        begun = min(now, token.starts if token.starts is not None else now)
        factor = settings.sasl_login_refresh_window_factor
        factor += settings.sasl_login_refresh_window_jitter * random.random()
        at = begun + (token.expires - begun) * factor
        least, buffer = (
            settings.sasl_login_refresh_min_period_seconds,
            settings.sasl_login_refresh_buffer_seconds,
        )
        if now + least + buffer > token.expires:
            return max(at, now)  # the token is too short-lived for both
        return max(min(at, token.expires - buffer), now + least)
