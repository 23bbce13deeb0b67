"""BrokerTransport: connections from this broker to other brokers, over the clients' AsyncConnection."""

from __future__ import annotations

from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.metadata import BrokerNode
from tidelog.clients.security import Security
from tidelog.clients.settings import ClientSettings, admin_settings
from tidelog.config.values import Password
from tidelog.endpoints import Endpoint
from tidelog.server.config.broker import BrokerConfig

TLS_SETTINGS = (
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
)
"""The settings of a listener that its clients share."""


class BrokerTransport:
    """Implements tidelog.cluster.transport.Transport. The client id names the purpose in the logs."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._security = Security(settings)

    async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> AsyncConnection:
        node = BrokerNode(broker_id, endpoint.host, endpoint.port)
        return await AsyncConnection.open(node, self._settings, self._security, timeout=timeout)


def transport_to(config: BrokerConfig, listener: str, client_id: str) -> BrokerTransport:
    """The transport to a listener of the other brokers, secured as this broker's listener of that name."""
    (endpoint,) = [endpoint for endpoint in config.endpoints if endpoint.listener == listener]
    return BrokerTransport(_client_settings(config, endpoint, client_id))


def _client_settings(config: BrokerConfig, endpoint: Endpoint, client_id: str) -> ClientSettings:
    protocol = endpoint.security_protocol
    properties: dict[str, object] = {
        "bootstrap.servers": f"{endpoint.host or 'localhost'}:{endpoint.port}",  # required, not used
        "client.id": client_id,
        "request.timeout.ms": config["request.timeout.ms"],
        "security.protocol": protocol,
    }
    prefix = f"listener.name.{endpoint.listener.lower()}."
    if protocol.endswith("SSL"):
        properties |= _given(config, prefix, TLS_SETTINGS)
    if protocol.startswith("SASL"):
        properties["sasl.mechanism"] = config["sasl.mechanism.inter.broker.protocol"]
        properties |= _given(config, prefix, ("sasl.jaas.config",))
    return admin_settings(properties)


def _given(config: BrokerConfig, prefix: str, names: tuple[str, ...]) -> dict[str, object]:
    """The settings that the broker's settings give, for the listener or for all listeners."""
    found: dict[str, object] = {}
    for name in names:
        text = config.text(prefix + name) or config.text(name)
        if text is not None:
            found[name] = Password(text) if config.definition[name].sensitive else text
    return found
