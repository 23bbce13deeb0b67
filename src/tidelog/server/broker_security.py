"""BrokerSecurity: the listeners with TLS or SASL and the delegation tokens of a broker.

This module is imported only if the broker has any of these.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from tidelog.config.values import ConfigError
from tidelog.network.listener_security import ListenerSecurity
from tidelog.network.loop import BrokerLoop
from tidelog.security.delegation_tokens import DelegationTokenManager
from tidelog.server.apis.api_versions import answer_versions
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.sasl import sasl_settings, token_settings
from tidelog.server.listener_security import SaslListener
from tidelog.server.membership import Membership
from tidelog.server.run import StartFailed
from tidelog.server.services import Services
from tidelog.server.tls_listener import SslListener, TlsListener
from tidelog.server.tls_listeners import TlsListeners
from tidelog.server.token_changes import TokenService

log = logging.getLogger("tidelog.server")


class BrokerSecurity:
    def __init__(self, config: BrokerConfig, loop: BrokerLoop) -> None:
        self._config = config
        self._loop = loop
        self._clock = loop.clock
        self._tokens: TokenService | None = None
        self._tls: TlsListeners | None = None
        self._ssl: dict[str, SslListener] = {}
        self._sasl: dict[str, SaslListener] = {}

    async def start(self, services: Services, membership: Membership) -> None:
        """Load the keys and the tokens, and make the listeners' mechanisms. Raises StartFailed."""
        await self._start_tokens(services, membership)
        try:
            if self._config.uses_tls:
                self._start_tls(services)
            self._start_sasl(services)
        except ConfigError as error:
            raise StartFailed(str(error)) from error

    def _start_tls(self, services: Services) -> None:
        self._tls = services.dynamic_config.tls = TlsListeners(self._config, self._loop)
        services.metrics.registry.collect(self._tls.families)
        self._ssl = {name: SslListener(listener) for name, listener in self._tls.by_name.items()}

    def _start_sasl(self, services: Services) -> None:
        find_token = None if services.tokens is None else services.tokens.credential
        tls = {} if self._tls is None else self._tls.by_name
        self._sasl = {
            endpoint.listener: SaslListener(
                sasl_settings(self._config, endpoint.listener),
                services.metadata,
                find_token,
                partial(answer_versions, services, endpoint.listener),
                self._clock.ms,
                tls.get(endpoint.listener),
            )
            for endpoint in self._config.endpoints
            if endpoint.uses_sasl
        }

    @property
    def listeners(self) -> Mapping[str, ListenerSecurity]:
        """The listeners that are not PLAINTEXT, by name."""
        return {**self._ssl, **self._sasl}

    @property
    def metrics_tls(self) -> TlsListener | None:
        """TLS of the port of the metrics."""
        return None if self._tls is None else self._tls.metrics

    def settings_changed(self) -> None:
        """Apply changed settings to new connections. Wrong settings are logged, and change nothing."""
        for name, listener in self._sasl.items():
            try:
                listener.update(sasl_settings(self._config, name))
            except ConfigError as error:
                log.error("the changed settings of listener %s are ignored: %s", name, error)

    async def close(self) -> None:
        if self._tls is not None:
            self._tls.close()
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
