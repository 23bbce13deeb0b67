"""The settings of producers, consumers and admins: Kafka's names and defaults, checked when a client is made.

Pass them as keyword arguments with underscores, or as a dict with Kafka's names. An unknown name logs a
warning with the nearest name. An invalid value raises ConfigError, which says what is allowed.

>>> settings = producer_settings({"bootstrap.servers": "localhost:9092"}, linger_ms=20)
>>> settings.linger_ms, settings.batch_size
(20, 16384)
>>> producer_settings({}, bootstrap_servers="localhost:9092", acks="some")
Traceback (most recent call last):
tidelog.config.values.ConfigError: acks=some: expected one of all, -1, 0, 1
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TypeVar

from tidelog.clients import setting_tables as tables
from tidelog.config import ConfigDef, ConfigError, ConfigKey, ConfigType, Password

log = logging.getLogger("tidelog.clients")

S = TypeVar("S", bound="ClientSettings")


@dataclass(slots=True, kw_only=True)
class ClientSettings:
    """The settings of every client. The attributes have the names of the settings, with underscores."""

    bootstrap_servers: tuple[str, ...]
    client_dns_lookup: str
    client_id: str
    connections_max_idle_ms: int
    metadata_max_age_ms: int
    metadata_recovery_rebootstrap_trigger_ms: int
    metadata_recovery_strategy: str
    receive_buffer_bytes: int
    reconnect_backoff_max_ms: int
    reconnect_backoff_ms: int
    request_timeout_ms: int
    retry_backoff_max_ms: int
    retry_backoff_ms: int
    sasl_jaas_config: Password | None
    sasl_kerberos_service_name: str | None
    sasl_login_callback_handler_class: object
    sasl_login_connect_timeout_ms: int | None
    sasl_login_read_timeout_ms: int | None
    sasl_login_refresh_buffer_seconds: int
    sasl_login_refresh_min_period_seconds: int
    sasl_login_refresh_window_factor: float
    sasl_login_refresh_window_jitter: float
    sasl_login_retry_backoff_max_ms: int
    sasl_login_retry_backoff_ms: int
    sasl_mechanism: str
    sasl_oauth_token_provider: object
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: Password | None
    sasl_oauthbearer_header_urlencode: bool
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_password: Password | None
    sasl_username: str | None
    security_protocol: str
    send_buffer_bytes: int
    socket_connection_setup_timeout_max_ms: int
    socket_connection_setup_timeout_ms: int
    ssl_cipher_suites: tuple[str, ...]
    ssl_enabled_protocols: tuple[str, ...]
    ssl_endpoint_identification_algorithm: str
    ssl_key_password: Password | None
    ssl_keystore_certificate_chain: Password | None
    ssl_keystore_key: Password | None
    ssl_keystore_location: str | None
    ssl_keystore_password: Password | None
    ssl_keystore_type: str
    ssl_protocol: str
    ssl_truststore_certificates: Password | None
    ssl_truststore_location: str | None
    ssl_truststore_password: Password | None
    ssl_truststore_type: str
    given: frozenset[str] = field(default_factory=frozenset)
    """Kafka's names of the settings that were given, not left at their defaults."""


@dataclass(slots=True, kw_only=True)
class ProducerSettings(ClientSettings):
    """The settings of a producer. `acks` is a number here: -1 (all), 0 or 1."""

    acks: int
    batch_size: int
    buffer_memory: int
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delivery_timeout_ms: int
    enable_idempotence: bool
    interceptor_classes: tuple[object, ...]
    key_serializer: object
    linger_ms: int
    max_block_ms: int
    max_in_flight_requests_per_connection: int
    max_request_size: int
    metadata_max_idle_ms: int
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    partitioner_class: object
    partitioner_ignore_keys: bool
    retries: int
    transaction_timeout_ms: int
    transaction_two_phase_commit_enable: bool
    transactional_id: str | None
    value_serializer: object


@dataclass(slots=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """The settings of a consumer. Assignors, interceptors and deserializers may be objects or names."""

    allow_auto_create_topics: bool
    auto_commit_interval_ms: int
    auto_offset_reset: str
    check_crcs: bool
    client_rack: str
    default_api_timeout_ms: int
    enable_auto_commit: bool
    exclude_internal_topics: bool
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    group_id: str | None
    group_instance_id: str | None
    group_protocol: str
    group_remote_assignor: str | None
    heartbeat_interval_ms: int
    interceptor_classes: tuple[object, ...]
    isolation_level: str
    key_deserializer: object
    max_partition_fetch_bytes: int
    max_poll_interval_ms: int
    max_poll_records: int
    partition_assignment_strategy: tuple[object, ...]
    session_timeout_ms: int
    value_deserializer: object


@dataclass(slots=True, kw_only=True)
class AdminSettings(ClientSettings):
    bootstrap_controllers: tuple[str, ...]
    default_api_timeout_ms: int
    retries: int


@cache
def producer_definition() -> ConfigDef:
    return ConfigDef(tables.COMMON + tables.PRODUCER, tables.NOT_SERVED)


@cache
def consumer_definition() -> ConfigDef:
    return ConfigDef(tables.COMMON + tables.CONSUMER, {**tables.NOT_SERVED, **tables.NOT_SERVED_CONSUMER})


@cache
def admin_definition() -> ConfigDef:
    return ConfigDef(tables.COMMON + tables.ADMIN, tables.NOT_SERVED)


def producer_settings(config: Mapping[str, object] | None = None, /, **named: object) -> ProducerSettings:
    """The settings of a producer, checked by Kafka's rules between them."""
    values, given = _values(producer_definition(), config, named)
    values["acks"] = -1 if values["acks"] == "all" else int(str(values["acks"]))
    settings = _filled(ProducerSettings, values, given)
    _settle_idempotence(settings)
    _settle_delivery_timeout(settings)
    return settings


def consumer_settings(config: Mapping[str, object] | None = None, /, **named: object) -> ConsumerSettings:
    """The settings of a consumer."""
    values, given = _values(consumer_definition(), config, named)
    return _filled(ConsumerSettings, values, given)


def admin_settings(config: Mapping[str, object] | None = None, /, **named: object) -> AdminSettings:
    """The settings of an admin."""
    values, given = _values(admin_definition(), config, named)
    return _filled(AdminSettings, values, given)


def _filled(kind: type[S], values: dict[str, object], given: frozenset[str]) -> S:
    chosen = {item.name: values[item.name] for item in fields(kind) if item.name != "given"}
    settings = kind(**chosen, given=given)  # type: ignore[arg-type]  # the table gives each its type
    if not settings.bootstrap_servers and not getattr(settings, "bootstrap_controllers", ()):
        raise ConfigError("bootstrap.servers", None, "needed: a list of host:port, such as localhost:9092")
    for server in settings.bootstrap_servers or ():
        if not isinstance(server, str):
            raise ConfigError(
                "bootstrap.servers", repr(server), "expected a list of host:port, such as localhost:9092"
            )
    return settings


def with_keywords(config: Mapping[str, object] | None, named: Mapping[str, object]) -> dict[str, object]:
    """The given settings under Kafka's names. Raises ConfigError for a setting that is given twice."""
    given = {name.replace("_", "."): value for name, value in (config or {}).items()}
    for name, value in named.items():
        dotted = name.replace("_", ".")
        if dotted in given:
            raise ConfigError(dotted, None, f"given twice: in the dict, and as {name}=")
        given[dotted] = value
    return given


def setting_values(definition: ConfigDef, given: Mapping[str, object]) -> dict[str, object]:
    """Every setting by its attribute name. Logs a warning about names that the definition does not have."""
    values: dict[str, object] = {}
    for key in definition.values():
        if key.name in given:
            values[key.attribute] = _value(key, given[key.name])
            if not key.served:
                log.warning("%s is accepted and changes nothing: %s", key.name, key.reason)
        else:
            values[key.attribute] = key.parse(key.default)
    for name in given:
        if name not in definition:
            log.warning("%s", _unknown(name, definition))
    return values


def _values(
    definition: ConfigDef, config: Mapping[str, object] | None, named: Mapping[str, object]
) -> tuple[dict[str, object], frozenset[str]]:
    """Every setting by its attribute name, and Kafka's names of the given ones."""
    given = with_keywords(config, named)
    return setting_values(definition, given), frozenset(name for name in given if name in definition)


def _unknown(name: str, definition: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(definition), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"setting {name} is not known and changes nothing{hint}"


def _value(key: ConfigKey, value: object) -> object:
    """Convert a setting to its type. A str is parsed as in a properties file; Python's types work, too."""
    if value is None:
        return key.parse(key.default)
    if isinstance(value, Password):
        return value
    if key.type is ConfigType.CLASS:
        return value
    if key.type is ConfigType.LIST:
        if isinstance(value, str):
            return key.parse(value)
        if not isinstance(value, list | tuple | set | frozenset):
            value = (value,)
        if all(isinstance(item, str) for item in value):
            return key.parse(",".join(value))
        return tuple(value)
    if isinstance(value, bool):
        return key.parse("true" if value else "false")
    if isinstance(value, str | int | float):
        return key.parse(str(value))
    raise ConfigError(key.name, key.shown(repr(value)), f"expected {key.type.name.lower()}")


def _settle_idempotence(settings: ProducerSettings) -> None:
    """Switch idempotence off for settings that exclude it. Raises if enable.idempotence=true was given."""
    asked = "enable.idempotence" in settings.given
    if settings.enable_idempotence:
        problem = None
        if settings.retries == 0:
            problem = ("retries", "0", "expected at least 1 with enable.idempotence=true")
        elif settings.acks != -1:
            problem = ("acks", str(settings.acks), "expected all with enable.idempotence=true")
        if problem is not None:
            if asked:
                raise ConfigError(*problem)
            log.info("%s=%s switches enable.idempotence off", *problem[:2])
            settings.enable_idempotence = False
        elif settings.max_in_flight_requests_per_connection > 5:
            raise ConfigError(
                "max.in.flight.requests.per.connection",
                str(settings.max_in_flight_requests_per_connection),
                "expected at most 5 with enable.idempotence=true",
            )
    if settings.transactional_id is not None and not settings.enable_idempotence:
        raise ConfigError(
            "transactional.id", settings.transactional_id, "expected enable.idempotence=true beside it"
        )
    if settings.transaction_two_phase_commit_enable and "transaction.timeout.ms" in settings.given:
        raise ConfigError(
            "transaction.timeout.ms",
            str(settings.transaction_timeout_ms),
            "expected not to be set with transaction.two.phase.commit.enable=true",
        )


def _settle_delivery_timeout(settings: ProducerSettings) -> None:
    least = min(settings.linger_ms + settings.request_timeout_ms, 2**31 - 1)
    if settings.delivery_timeout_ms >= least:
        return
    if "delivery.timeout.ms" in settings.given:
        raise ConfigError(
            "delivery.timeout.ms",
            str(settings.delivery_timeout_ms),
            f"expected at least linger.ms + request.timeout.ms, {least}",
        )
    log.warning("delivery.timeout.ms is raised to %d, linger.ms + request.timeout.ms", least)
    settings.delivery_timeout_ms = least
