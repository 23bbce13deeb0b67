"""BrokerTransport: connections from this broker to other brokers, over the clients' AsyncConnection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.config.entries import ConfigSource
from tidelog.config.values import ConfigError, Password
from tidelog.endpoints import Endpoint
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.sasl import jaas_text
from tidelog.server.file_version import FileVersion, file_version

if TYPE_CHECKING:
    from tidelog.clients.async_connection import AsyncConnection
    from tidelog.clients.security import Security
    from tidelog.clients.settings import ClientSettings

log = logging.getLogger("tidelog.server")

TLS_SETTINGS = tuple(
    f"ssl.{name}"
    for name in (
        "cipher.suites",
        "enabled.protocols",
        "endpoint.identification.algorithm",
        "key.password",
        "keystore.certificate.chain",
        "keystore.key",
        "keystore.location",
        "keystore.password",
        "keystore.type",
        "protocol",
        "truststore.certificates",
        "truststore.location",
        "truststore.password",
        "truststore.type",
    )
)
"""The settings of a listener that its clients share."""

LOGIN_SETTINGS = tuple(
    f"sasl.{name}"
    for name in (
        "jaas.config",
        "kerberos.service.name",
        "login.callback.handler.class",
        "login.connect.timeout.ms",
        "login.read.timeout.ms",
        "login.refresh.buffer.seconds",
        "login.refresh.min.period.seconds",
        "login.refresh.window.factor",
        "login.refresh.window.jitter",
        "login.retry.backoff.max.ms",
        "login.retry.backoff.ms",
        "oauthbearer.client.credentials.client.id",
        "oauthbearer.client.credentials.client.secret",
        "oauthbearer.scope",
        "oauthbearer.token.endpoint.url",
    )
)
"""The settings of the login at another broker."""

LOGIN_HANDLER = "sasl.login.callback.handler.class"
KAFKAS_PACKAGE = "org.apache.kafka."


class BrokerTransport:
    """Implements tidelog.cluster.transport.Transport. The client id names the purpose in the logs.

    The modules of the clients are imported at the first connection, or with `prepare`.
    """

    def __init__(
        self, properties: Mapping[str, object], latest: Callable[[], Mapping[str, object]] | None = None
    ) -> None:
        """`properties` are settings of a client. `latest` returns the settings for the next connection."""
        self._properties = properties
        self._latest = latest
        self._keys = _key_files(properties)
        self._prepared: tuple[ClientSettings, Security] | None = None

    def prepare(self) -> tuple[ClientSettings, Security]:
        """The settings, and the keys that they name. Raises ConfigError if a key cannot be used."""
        if self._prepared is None:
            from tidelog.clients.security import Security
            from tidelog.clients.settings import admin_settings

            settings = admin_settings(self._properties)
            security = Security(settings)
            if security.tls:
                assert security.context is not None
            self._prepared = settings, security
        return self._prepared

    def _follow_changes(self) -> None:
        """Use new settings and new keys, if there are any. Keys that cannot be used are logged.

        Those are also keys that the listener refuses: other brokers do not trust them yet.
        """
        if self._latest is None:
            return
        properties = self._latest()
        keys = _key_files(properties)
        if properties == self._properties and keys == self._keys:
            return
        changed = BrokerTransport(properties)
        try:
            prepared = changed.prepare()
            _check_keys(*prepared)
            self._prepared = prepared
        except ConfigError as error:
            log.error("connections to brokers keep their keys: %s", error)
        self._properties, self._keys = properties, keys

    async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> AsyncConnection:
        from tidelog.clients.async_connection import AsyncConnection
        from tidelog.clients.metadata import BrokerNode

        self._follow_changes()
        settings, security = self.prepare()
        node = BrokerNode(broker_id, endpoint.host, endpoint.port)
        return await AsyncConnection.open(node, settings, security, timeout=timeout)


def transport_to(
    config: BrokerConfig, listener: str, client_id: str, *, receive_buffer: str | None = None
) -> BrokerTransport:
    """The transport to a listener of the other brokers, secured as this broker's listener of that name.

    `receive_buffer` names the setting of the broker with the size of the receive buffer. If it is not given,
    the system sizes the buffer.
    """
    (endpoint,) = [endpoint for endpoint in config.endpoints if endpoint.listener == listener]

    def properties() -> dict[str, object]:
        found = client_properties(config, endpoint, client_id)
        if receive_buffer is not None and (size := config.text(receive_buffer)) is not None:
            found["receive.buffer.bytes"] = size
        return found

    if endpoint.security_protocol == "PLAINTEXT":
        return BrokerTransport(properties())
    transport = BrokerTransport(properties(), properties)
    transport.prepare()  # a key that cannot be used fails the start
    return transport


def _check_keys(settings: ClientSettings, security: Security) -> None:
    """Raise ConfigError if brokers with these stores do not trust each other."""
    if not security.tls:
        return
    from tidelog.clients.security import tls_settings
    from tidelog.security.key_store_changes import check_trusts_itself

    tls = tls_settings(settings)
    if tls.key_store.is_given:
        check_trusts_itself(tls)


def _key_files(properties: Mapping[str, object]) -> tuple[FileVersion, ...]:
    paths = (properties.get(f"ssl.{name}.location") for name in ("keystore", "truststore"))
    return tuple(file_version(path if isinstance(path, str) else None) for path in paths)


def client_properties(config: BrokerConfig, endpoint: Endpoint, client_id: str) -> dict[str, object]:
    """The settings of a client of this listener, with the secrets of the listener's own settings."""
    protocol = endpoint.security_protocol
    properties: dict[str, object] = {
        "bootstrap.servers": f"{endpoint.host or 'localhost'}:{endpoint.port}",  # required, not used
        "client.id": client_id,
        "request.timeout.ms": config["request.timeout.ms"],
        "security.protocol": protocol,
    }
    prefix = f"listener.name.{endpoint.listener.lower()}."
    if protocol.endswith("SSL"):
        properties |= _given(config, (prefix, ""), TLS_SETTINGS)
    if protocol.startswith("SASL"):
        mechanism = str(config[f"{prefix}sasl.mechanism.inter.broker.protocol"])
        properties["sasl.mechanism"] = mechanism
        properties |= _given(config, (f"{prefix}{mechanism.lower()}.", prefix, ""), LOGIN_SETTINGS)
        handler = properties.get(LOGIN_HANDLER)
        if mechanism == "OAUTHBEARER" and isinstance(handler, str) and not handler.startswith(KAFKAS_PACKAGE):
            from tidelog.security.sasl.callback_handlers import load_class

            properties[LOGIN_HANDLER] = load_class(LOGIN_HANDLER, handler)
        if "sasl.jaas.config" not in properties and (jaas := jaas_text(config, endpoint.listener, mechanism)):
            properties["sasl.jaas.config"] = Password(jaas)
    return properties


def _given(config: BrokerConfig, prefixes: Sequence[str], names: Sequence[str]) -> dict[str, object]:
    """The named settings, each from the first prefix with a value in the broker's settings."""
    found: dict[str, object] = {}
    for name in names:
        for prefix in prefixes:
            full = prefix + name
            text = config.text(full)
            if text is not None and config.source(full) is not ConfigSource.DEFAULT_CONFIG:
                found[name] = Password(text) if config.definition[name].sensitive else text
                break
    return found
