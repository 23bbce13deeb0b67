"""BrokerSecurity: the SASL listeners and the delegation tokens of a broker. Imported only if it has some."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from tidelog.clock import Clock
from tidelog.config.values import ConfigError
from tidelog.security.delegation_tokens import DelegationTokenManager
from tidelog.server.apis.api_versions import answer_versions
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.sasl import sasl_settings, token_settings
from tidelog.server.listener_security import SaslListener
from tidelog.server.membership import Membership
from tidelog.server.run import StartFailed
from tidelog.server.services import Services
from tidelog.server.token_changes import TokenService

log = logging.getLogger("tidelog.server")


class BrokerSecurity:
    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._tokens: TokenService | None = None
        self._listeners: dict[str, SaslListener] = {}

    async def start(self, services: Services, membership: Membership) -> None:
        """Read the tokens, and make the listeners' mechanisms. Raises StartFailed."""
        await self._start_tokens(services, membership)
        find_token = None if services.tokens is None else services.tokens.credential
        try:
            self._listeners = {
                endpoint.listener: SaslListener(
                    sasl_settings(self._config, endpoint.listener),
                    services.metadata,
                    find_token,
                    partial(answer_versions, services, endpoint.listener),
                    self._clock.ms,
                )
                for endpoint in self._config.endpoints
                if endpoint.uses_sasl
            }
        except ConfigError as error:
            raise StartFailed(str(error)) from error

    @property
    def listeners(self) -> Mapping[str, SaslListener]:
        """The listeners whose clients authenticate, by name."""
        return self._listeners

    def settings_changed(self) -> None:
        """Apply the settings to new connections. Settings that cannot work are logged, and change nothing."""
        for name, listener in self._listeners.items():
            try:
                listener.update(sasl_settings(self._config, name))
            except ConfigError as error:
                log.error("the changed settings of listener %s are ignored: %s", name, error)

    async def close(self) -> None:
        if self._tokens is not None:
            await self._tokens.close()

    async def _start_tokens(self, services: Services, membership: Membership) -> None:
        settings = token_settings(self._config)
        if settings is None:
            return
        store, metadata, broker_id = membership.token_store(), services.metadata, services.broker_id
        services.tokens = DelegationTokenManager(settings, store, self._clock.ms)
        interval = self._config["delegation.token.expiry.check.interval.ms"]
        assert isinstance(interval, int)
        self._tokens = TokenService(
            services.tokens,
            store,
            lambda: metadata.snapshot.controller_id == broker_id,
            interval / 1000,
        )
        await self._tokens.start()
