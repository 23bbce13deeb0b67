"""The settings of TLS on the broker's listeners: `listener.name.NAME.ssl.*`, else `ssl.*`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.config.entries import ConfigSource
from tidelog.security.tls import TlsSettings

if TYPE_CHECKING:
    from tidelog.server.config.broker import BrokerConfig

CLIENT_AUTH = "ssl.client.auth"
METRICS_LISTENER = "METRICS"
"""The name of the metrics port in `listener.name.metrics.ssl.*`."""


def given_text(config: BrokerConfig, listener: str, name: str) -> str | None:
    """The text of a setting for a listener or for all listeners; None if only its default is known."""
    for candidate in (f"listener.name.{listener.lower()}.{name}", name):
        if config.source(candidate) is not ConfigSource.DEFAULT_CONFIG:
            return config.text(candidate)
    return None


def tls_settings(config: BrokerConfig, listener: str, security_protocol: str) -> TlsSettings:
    """The settings of a listener with TLS. Errors name the setting with the prefix, if it has one.

    As in Kafka, clients of a SASL_SSL listener need no certificate unless the listener's own setting asks for
    it: SASL tells who they are.
    """
    prefix = f"listener.name.{listener.lower()}."
    stores = ("keystore.location", "keystore.type", "keystore.key", "truststore.location")
    own = any(config.source(f"{prefix}ssl.{name}") is not ConfigSource.DEFAULT_CONFIG for name in stores)
    settings = TlsSettings.read(lambda name: given_text(config, listener, name), prefix if own else "")
    if security_protocol == "SASL_SSL" and config.source(prefix + CLIENT_AUTH) is ConfigSource.DEFAULT_CONFIG:
        return replace(settings, client_auth="none")
    return settings
