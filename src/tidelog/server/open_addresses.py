"""Warnings of a starting broker about addresses without login that other machines can reach."""

from __future__ import annotations

from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.broker_definition import LISTENER_PREFIX

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
OF_LISTENERS = ("sasl.enabled.mechanisms", "sasl.oauthbearer.jwks.endpoint.url", "ssl.client.auth")


def open_address_lines(config: BrokerConfig) -> list[str]:
    """One line for each open address.

    Addresses of this machine only and addresses with a login are not open.
    """
    is_local = all(endpoint.host in LOCAL_HOSTS for endpoint in config.endpoints)
    if is_local and not config.metrics_listener and not config.console_listener:
        return []
    from tidelog.security.exposure import SETTINGS, open_addresses

    settings = {name: config.text(name) for name in SETTINGS if name in config.definition}
    # Without the listeners of a KRaft controller, which nobody binds.
    settings["listeners"] = ",".join(str(endpoint) for endpoint in config.endpoints)
    for endpoint in config.endpoints:
        settings |= _of_listener(config, endpoint.listener.lower())
    settings |= _of_listener(config, "metrics")
    return [
        f"{found.what} is open to other machines: {found.text}"
        for found in open_addresses(settings)
        if found.is_address
    ]


def _of_listener(config: BrokerConfig, name: str) -> dict[str, str | None]:
    prefixed = [f"{LISTENER_PREFIX}{name}.{setting}" for setting in OF_LISTENERS]
    return {setting: config.text(setting) for setting in prefixed}
