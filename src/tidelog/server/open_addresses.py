"""The lines of a starting broker about addresses that need no login and that other machines reach."""

from __future__ import annotations

from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.broker_definition import LISTENER_PREFIX

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


def open_address_lines(config: BrokerConfig) -> list[str]:
    """One line for each open address; none if every address is of this machine or asks who connects."""
    is_local = all(endpoint.host in LOCAL_HOSTS for endpoint in config.endpoints)
    if is_local and not config.metrics_listener and not config.console_listener:
        return []
    from tidelog.security.exposure import SETTINGS, open_addresses

    settings = {name: config.text(name) for name in SETTINGS if name in config.definition}
    # Without the listeners of a KRaft controller, which nobody binds.
    settings["listeners"] = ",".join(str(endpoint) for endpoint in config.endpoints)
    for endpoint in config.endpoints:
        for name in ("ssl.client.auth", "sasl.enabled.mechanisms"):
            prefixed = f"{LISTENER_PREFIX}{endpoint.listener.lower()}.{name}"
            settings[prefixed] = config.text(prefixed)
    return [
        f"{found.what} is open to other machines: {found.text}"
        for found in open_addresses(settings)
        if found.is_address
    ]
