"""Makes the settings of the broker's parts from the settings of the broker, again after each change."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace

from tidelog.cluster.moves import MoveSettings
from tidelog.controller.planning import ControllerSettings
from tidelog.metrics.sampled_stat import SampleConfig
from tidelog.network.limits import ListenerLimits, NetworkLimits
from tidelog.server.config.broker import BrokerConfig
from tidelog.storage.cleaner.log_cleaner import CleanerSettings
from tidelog.storage.log_manager import Intervals

log = logging.getLogger("tidelog.server")


def controller_settings(config: BrokerConfig) -> ControllerSettings:
    settings = ControllerSettings(
        num_partitions=config.num_partitions,
        default_replication_factor=config.default_replication_factor,
        delete_topic_enable=config.delete_topic_enable,
        unclean_leader_election_enable=config.unclean_leader_election_enable,
    )
    if config.cluster is not None:
        settings.auto_leader_rebalance_enable = config.cluster.auto_leader_rebalance_enable
        interval = config.cluster.leader_imbalance_check_interval_seconds
        settings.leader_imbalance_check_interval_seconds = interval
        percentage = config.cluster.leader_imbalance_per_broker_percentage
        settings.leader_imbalance_per_broker_percentage = percentage
        settings.broker_suspicion_enable = config.cluster.broker_suspicion_enable
    return settings


def network_limits(config: BrokerConfig) -> NetworkLimits:
    cluster, listeners = config.cluster, {}
    for endpoint in config.endpoints:
        limits = ListenerLimits()
        connections = config.listener_limit(endpoint.listener, "max.connections")
        rate = config.listener_limit(endpoint.listener, "max.connection.creation.rate")
        if connections is not None:
            limits = replace(limits, max_connections=connections)
        if rate is not None:
            limits = replace(limits, max_connection_creation_rate=rate)
        listeners[endpoint.listener] = limits
    return NetworkLimits(
        socket_request_max_bytes=config.socket_request_max_bytes,
        queued_max_requests=config.queued_max_requests,
        queued_max_request_bytes=config.queued_max_request_bytes,
        max_connections=config.max_connections,
        max_connections_per_ip=config.max_connections_per_ip,
        max_connections_per_ip_overrides=_by_address(config.connections_per_ip),
        max_connection_creation_rate=config.max_connection_creation_rate,
        quota_windows=quota_windows(config),
        connections_max_idle_ms=config.connections_max_idle_ms,
        socket_send_buffer_bytes=config.socket_send_buffer_bytes,
        socket_receive_buffer_bytes=config.socket_receive_buffer_bytes,
        socket_listen_backlog_size=config.socket_listen_backlog_size,
        inter_broker_listener_name=config.inter_broker_listener,
        control_plane_listener_name=None if cluster is None else cluster.control_plane_listener,
        listeners=listeners,
    )


def intervals(config: BrokerConfig) -> Intervals:
    return Intervals(
        log_retention_check_interval_ms=config.log_retention_check_interval_ms,
        log_flush_scheduler_interval_ms=config.log_flush_scheduler_interval_ms,
        log_flush_offset_checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
        log_flush_start_offset_checkpoint_interval_ms=config.log_flush_start_offset_checkpoint_interval_ms,
        replica_high_watermark_checkpoint_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
    )


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        enable=config.log_cleaner_enable,
        threads=config.log_cleaner_threads,
        dedupe_buffer_size=config.log_cleaner_dedupe_buffer_size,
        io_buffer_size=config.log_cleaner_io_buffer_size,
        io_buffer_load_factor=config.log_cleaner_io_buffer_load_factor,
        io_max_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
        backoff_ms=config.log_cleaner_backoff_ms,
    )


def move_settings(config: BrokerConfig) -> MoveSettings:
    return MoveSettings(
        threads=config.num_replica_alter_log_dirs_threads,
        io_max_bytes_per_second=config.replica_alter_log_dirs_io_max_bytes_per_second,
    )


def quota_windows(config: BrokerConfig) -> SampleConfig:
    """The windows over which bytes, request times and connections of clients are measured."""
    return SampleConfig(config.quota_window_num, config.quota_window_size_seconds * 1000)


def controller_quota_windows(config: BrokerConfig) -> SampleConfig:
    """The windows over which the topic changes of clients are measured."""
    window_ms = config.controller_quota_window_size_seconds * 1000
    return SampleConfig(config.controller_quota_window_num, window_ms)


def _by_address(limits: dict[str, int]) -> dict[str, int]:
    """The limits by address; host names are resolved now."""
    addresses = {}
    for host, limit in limits.items():
        try:
            found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
        except OSError:
            log.warning("max.connections.per.ip.overrides: the host %s has no address", host)
            continue
        addresses.update(dict.fromkeys(found, limit))
    return addresses
