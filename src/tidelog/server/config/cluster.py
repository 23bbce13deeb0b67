"""ClusterConfig: the settings of a broker with `zookeeper.connect`, checked together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cluster.replica_selector import LEADER_SELECTOR, RACK_AWARE_SELECTOR
from tidelog.config.values import ConfigError, ConfigValue, Password
from tidelog.endpoints import Endpoint

if TYPE_CHECKING:
    from tidelog.security.tls import TlsSettings

OLDEST_PROTOCOL = (3, 4)
"""Brokers send each other requests of this version. From 3.4 on the requests are the same as in 3.9."""

_SOCKETS = "org.apache.zookeeper.ClientCnxnSocket"


@dataclass(slots=True, frozen=True)
class ClusterConfig:
    zookeeper_connect: str
    zookeeper_session_timeout_ms: int
    zookeeper_connection_timeout_ms: int
    zookeeper_max_in_flight_requests: int
    zookeeper_set_acl: bool
    zookeeper_digest: Password | None
    zookeeper_tls: TlsSettings | None
    guardian_enable: bool
    broker_suspicion_enable: bool
    control_plane_listener: str | None
    controlled_shutdown_enable: bool
    controlled_shutdown_max_retries: int
    controlled_shutdown_retry_backoff_ms: int
    controller_socket_timeout_ms: int
    replica_lag_time_max_ms: int
    replica_selector_class: str | None
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    leader_replication_throttled_rate: int | None
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int


def cluster_config(
    values: Mapping[str, ConfigValue], advertised: Sequence[Endpoint], inter_broker: str
) -> ClusterConfig:
    """The settings by their names, and the resolved listeners. Raises ConfigError."""
    _check_protocol(_text(values, "inter.broker.protocol.version"))
    if values["process.roles"]:
        roles = ",".join(_list(values, "process.roles"))
        raise ConfigError("process.roles", roles, "a broker with zookeeper.connect is not a KRaft process")
    if values["zookeeper.metadata.migration.enable"]:
        raise ConfigError("zookeeper.metadata.migration.enable", "true", "migration to KRaft is not served")
    tls = _tls(values)
    digest = values["tidelog.zookeeper.digest"]
    if isinstance(digest, Password) and not re.fullmatch("[^:]+:.+", digest.secret):
        raise ConfigError("tidelog.zookeeper.digest", "[hidden]", "expected user:password")
    if values["zookeeper.set.acl"] and digest is None and (tls is None or tls.keystore_location is None):
        identities = "tidelog.zookeeper.digest or zookeeper.ssl.keystore.location"
        problem = f"access lists need an identity of this broker: set {identities}"
        raise ConfigError("zookeeper.set.acl", "true", problem)
    throttled = values["leader.replication.throttled.rate"]
    session = _number(values, "zookeeper.session.timeout.ms")
    connection = values["zookeeper.connection.timeout.ms"]
    return ClusterConfig(
        zookeeper_connect=_text(values, "zookeeper.connect"),
        zookeeper_session_timeout_ms=session,
        zookeeper_connection_timeout_ms=connection if isinstance(connection, int) else session,
        zookeeper_max_in_flight_requests=_number(values, "zookeeper.max.in.flight.requests"),
        zookeeper_set_acl=bool(values["zookeeper.set.acl"]),
        zookeeper_digest=digest if isinstance(digest, Password) else None,
        zookeeper_tls=tls,
        guardian_enable=bool(values["tidelog.guardian.enable"]),
        broker_suspicion_enable=bool(values["tidelog.broker.suspicion.enable"]),
        control_plane_listener=_control_plane(values, advertised, inter_broker),
        controlled_shutdown_enable=bool(values["controlled.shutdown.enable"]),
        controlled_shutdown_max_retries=_number(values, "controlled.shutdown.max.retries"),
        controlled_shutdown_retry_backoff_ms=_number(values, "controlled.shutdown.retry.backoff.ms"),
        controller_socket_timeout_ms=_number(values, "controller.socket.timeout.ms"),
        replica_lag_time_max_ms=_number(values, "replica.lag.time.max.ms"),
        replica_selector_class=_replica_selector(values),
        replication_quota_window_num=_number(values, "replication.quota.window.num"),
        replication_quota_window_size_seconds=_number(values, "replication.quota.window.size.seconds"),
        leader_replication_throttled_rate=throttled if isinstance(throttled, int) else None,
        request_timeout_ms=_number(values, "request.timeout.ms"),
        socket_connection_setup_timeout_ms=_number(values, "socket.connection.setup.timeout.ms"),
        auto_leader_rebalance_enable=bool(values["auto.leader.rebalance.enable"]),
        leader_imbalance_check_interval_seconds=_number(values, "leader.imbalance.check.interval.seconds"),
        leader_imbalance_per_broker_percentage=_number(values, "leader.imbalance.per.broker.percentage"),
    )


def _replica_selector(values: Mapping[str, ConfigValue]) -> str | None:
    setting = "replica.selector.class"
    name = _text(values, setting)
    if name not in ("", LEADER_SELECTOR, RACK_AWARE_SELECTOR):
        raise ConfigError(setting, name, f"expected {RACK_AWARE_SELECTOR} or {LEADER_SELECTOR}")
    return name or None


def _check_protocol(version: str) -> None:
    major, minor = (int(part) for part in version.partition("-")[0].split(".")[:2])
    if (major, minor) < OLDEST_PROTOCOL:
        oldest = ".".join(map(str, OLDEST_PROTOCOL))
        raise ConfigError("inter.broker.protocol.version", version, f"expected {oldest} or newer")


def _control_plane(
    values: Mapping[str, ConfigValue], advertised: Sequence[Endpoint], inter_broker: str
) -> str | None:
    setting = "control.plane.listener.name"
    if values[setting] is None:
        return None
    name = _text(values, setting).upper()
    others = [endpoint.listener for endpoint in advertised if endpoint.listener != inter_broker]
    if name not in others:
        problem = f"expected an advertised listener other than {inter_broker}, the listener of brokers"
        raise ConfigError(setting, name, problem)
    return name


def _tls(values: Mapping[str, ConfigValue]) -> TlsSettings | None:
    chosen = values["zookeeper.clientCnxnSocket"]
    if chosen not in (None, "", _SOCKETS + "NIO", _SOCKETS + "Netty"):
        expected = f"expected {_SOCKETS}Netty, which Kafka needs for TLS, or {_SOCKETS}NIO"
        raise ConfigError("zookeeper.clientCnxnSocket", str(chosen), expected)
    if not values["zookeeper.ssl.client.enable"]:
        return None
    if chosen == _SOCKETS + "NIO":
        problem = f"it has no TLS, but zookeeper.ssl.client.enable=true; expected {_SOCKETS}Netty"
        raise ConfigError("zookeeper.clientCnxnSocket", str(chosen), problem)
    for name in ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable"):
        if values[name]:
            raise ConfigError(name, "true", "revoked certificates are not looked up; remove this setting")
    from tidelog.security.tls import TlsSettings, enabled_versions

    password = _secret(values, "zookeeper.ssl.keystore.password")
    settings = TlsSettings(
        enabled_protocols=_list(values, "zookeeper.ssl.enabled.protocols"),
        protocol=_text(values, "zookeeper.ssl.protocol"),
        cipher_suites=_list(values, "zookeeper.ssl.cipher.suites"),
        endpoint_identification_algorithm=_text(values, "zookeeper.ssl.endpoint.identification.algorithm"),
        keystore_type=_text(values, "zookeeper.ssl.keystore.type") or None,
        keystore_location=_text(values, "zookeeper.ssl.keystore.location") or None,
        keystore_password=password,
        key_password=password,  # ZooKeeper has one password for both
        truststore_type=_text(values, "zookeeper.ssl.truststore.type") or None,
        truststore_location=_text(values, "zookeeper.ssl.truststore.location") or None,
        truststore_password=_secret(values, "zookeeper.ssl.truststore.password"),
        prefix="zookeeper.",
    )
    enabled_versions(settings)
    return settings


def _secret(values: Mapping[str, ConfigValue], name: str) -> Password | None:
    value = values[name]
    return value if isinstance(value, Password) else None


def _text(values: Mapping[str, ConfigValue], name: str) -> str:
    value = values[name]
    return value if isinstance(value, str) else ""


def _number(values: Mapping[str, ConfigValue], name: str) -> int:
    value = values[name]
    assert isinstance(value, int)
    return value


def _list(values: Mapping[str, ConfigValue], name: str) -> tuple[str, ...]:
    value = values[name]
    return value if isinstance(value, tuple) else ()
