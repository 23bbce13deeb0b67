"""Makes the client quotas of a broker from its settings, loads them from the tree, and follows changes."""

from __future__ import annotations

from tidelog.clock import Clock
from tidelog.config.values import ConfigError
from tidelog.metadata.state import ClusterState
from tidelog.metrics.registry import Registry
from tidelog.network.server import SocketServer
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.part_settings import controller_quota_windows, quota_windows
from tidelog.server.quota.callback import load_callback
from tidelog.server.quota.quota_managers import QuotaManagers
from tidelog.server.run import StartFailed
from tidelog.server.services import Services


def make_quotas(config: BrokerConfig, clock: Clock) -> QuotaManagers:
    """Quotas by the windows of the settings. Raises StartFailed if the callback class cannot be loaded."""
    name = config.client_quota_callback_class
    try:
        callback = None if name is None else load_callback(name, config.public_texts())
    except ConfigError as error:
        raise StartFailed(str(error)) from error
    return QuotaManagers(clock, quota_windows(config), controller_quota_windows(config), callback)


def follow_quotas(services: Services, server: SocketServer, stored: ClusterState, registry: Registry) -> None:
    """Apply the quotas of the tree, and their changes from now on."""
    quotas = services.quotas
    quotas.set_connection_rate = server.set_connection_rate
    services.dynamic_config.on_quota_change = quotas.entity_changed
    quotas.load(stored.entity_configs)
    if services.config.client_quota_callback_class is not None:
        services.metadata.on_update = quotas.metadata_changed
    registry.collect(quotas.families)
