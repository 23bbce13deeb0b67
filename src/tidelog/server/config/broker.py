"""The settings of a broker: from a file, from the command line, and from changes while it runs.

A served setting is an attribute (`config.socket_request_max_bytes`). Every setting is an item
(`config["socket.request.max.bytes"]`). The attributes change when the settings change.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.config.definition import ConfigKey
from tidelog.config.entries import ConfigEntry, ConfigSource, ConfigSynonym
from tidelog.config.properties import read_properties
from tidelog.config.values import ConfigError, ConfigValue, Password, render_value
from tidelog.endpoints import Endpoint
from tidelog.server.config.broker_definition import (
    FILE_ONLY,
    LISTENER_PREFIX,
    broker_definition,
    cluster_settings,
    internal_topic_settings,
    key_of,
    security_settings,
    tls_listener_settings,
)
from tidelog.server.config.broker_rules import check_dirs, check_together
from tidelog.server.config.listeners import Listeners, resolve_listeners

if TYPE_CHECKING:
    from tidelog.server.config.cluster import ClusterConfig

log = logging.getLogger("tidelog.server.config")

LISTENER_LIMITS = ("max.connections", "max.connection.creation.rate")

_RETENTION_TIMES = ("log.retention.hours", "log.retention.minutes", "log.retention.ms")
_MS_PER_UNIT = {"hours": 3_600_000, "minutes": 60_000}


class BrokerConfig:
    # Served settings, from the table. Resolved settings such as log_retention_ms are never None.
    add_partitions_to_txn_retry_backoff_max_ms: int
    add_partitions_to_txn_retry_backoff_ms: int
    advertised_listeners: tuple[str, ...] | None
    allow_everyone_if_no_acl_found: bool
    authorizer_class_name: str
    auto_create_topics_enable: bool
    broker_id: int
    broker_id_generation_enable: bool
    broker_rack: str | None
    client_quota_callback_class: str | None
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    connections_max_idle_ms: int
    console_access_config: str
    console_allowed_hosts: tuple[str, ...]
    console_cluster_name: str
    console_command_config: str
    console_listener: str | None
    console_pipelines: tuple[str, ...]
    console_read_only: bool
    console_rules_file: str
    console_scheduling_policy: str
    controller_listener_names: tuple[str, ...] | None
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    default_replication_factor: int
    delete_topic_enable: bool
    fetch_max_bytes: int
    group_consumer_assignment_interval_ms: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_heartbeat_interval_ms: int
    group_consumer_max_assignment_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_consumer_min_assignment_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_session_timeout_ms: int
    group_coordinator_rebalance_protocols: tuple[str, ...]
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    inter_broker_listener_name: str | None
    listener_security_protocol_map: str
    listeners: tuple[str, ...]
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_delete_retention_ms: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_max_compaction_lag_ms: int
    log_cleaner_min_cleanable_ratio: float
    log_cleaner_min_compaction_lag_ms: int
    log_cleaner_threads: int
    log_cleanup_policy: tuple[str, ...]
    log_dir: tuple[str, ...]
    log_dirs: tuple[str, ...] | None
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_index_interval_bytes: int
    log_index_size_max_bytes: int
    log_message_timestamp_after_max_ms: int
    log_message_timestamp_before_max_ms: int
    log_message_timestamp_type: str
    log_retention_bytes: int
    log_retention_check_interval_ms: int
    log_retention_hours: int
    log_retention_minutes: int | None
    log_retention_ms: int
    log_roll_hours: int
    log_roll_jitter_hours: int
    log_roll_jitter_ms: int
    log_roll_ms: int
    log_segment_bytes: int
    log_segment_delete_delay_ms: int
    max_connection_creation_rate: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    message_max_bytes: int
    metrics_listener: str | None
    min_insync_replicas: int
    node_id: int | None
    num_io_threads: int
    num_partitions: int
    num_recovery_threads_per_data_dir: int
    num_replica_alter_log_dirs_threads: int | None
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    offsets_load_buffer_size: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    password_encoder_cipher_algorithm: str
    password_encoder_iterations: int
    password_encoder_key_length: int
    password_encoder_keyfactory_algorithm: str | None
    password_encoder_old_secret: Password | None
    password_encoder_secret: Password | None
    producer_id_expiration_ms: int
    queued_max_request_bytes: int
    queued_max_requests: int
    quota_window_num: int
    quota_window_size_seconds: int
    replica_alter_log_dirs_io_max_bytes_per_second: int | None
    replica_high_watermark_checkpoint_interval_ms: int
    reserved_broker_max_id: int
    security_inter_broker_protocol: str
    share_coordinator_state_topic_min_isr: int
    share_coordinator_state_topic_replication_factor: int
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int
    super_users: str
    tidelog_audit_topic: str
    tidelog_batch_unpacked_max_bytes: int
    tidelog_canary_interval_ms: int
    tidelog_canary_topic: str
    tidelog_log_level: str
    tidelog_log_levels: tuple[str, ...]
    tidelog_metrics_partitions_enable: bool
    tidelog_tracing_endpoint: str
    tidelog_tracing_sample_ratio: float
    telemetry_max_bytes: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_load_buffer_size: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transaction_two_phase_commit_enable: bool
    transactional_id_expiration_ms: int
    unclean_leader_election_enable: bool

    # Derived from several settings.
    cluster: ClusterConfig | None  # None for a broker on its own
    data_dirs: tuple[str, ...]
    endpoints: tuple[Endpoint, ...]
    advertised_endpoints: tuple[Endpoint, ...]
    inter_broker_listener: str
    connections_per_ip: dict[str, int]

    def __init__(self, static: Mapping[str, str]) -> None:
        """`static` has the settings of the start. Raises ConfigError if the broker cannot run with them."""
        self.definition = broker_definition()
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.revision = 0  # counts changes of values: derived values of an older revision are out of date
        self._static = dict(static)
        self._defaults: dict[str, str] = {}
        self._dynamic: dict[str, str] = {}
        self._dynamic_default: dict[str, str] = {}
        self._observers: list[Callable[[frozenset[str]], None]] = []
        self._values: dict[str, ConfigValue] = {}
        self._unite_ids()
        self._limit_internal_topics()
        self._review_static()
        self._refresh()
        for name in self._resolve_listeners().left_out:
            self.notes.append(f"listener {name} is left out: it is named in controller.listener.names")

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """The settings of a properties file, if any, and of the command line, which takes precedence."""
        static = read_properties(path) if path is not None else {}
        return cls(static | dict(overrides or {}))

    def __getitem__(self, name: str) -> ConfigValue:
        """The value of a known setting, also with the prefix of a listener."""
        if name in self._values:
            return self._values[name]
        key = key_of(name)
        if key is None:
            raise KeyError(name)
        text = self.text(name)
        return key.parse(text if text is not None else self.text(key.name))

    def text(self, name: str) -> str | None:
        """The text of the value that takes precedence; None if there is no value."""
        for layer, _ in self._layers():
            if name in layer:
                return layer[name]
        return self.default(name)

    def texts(self) -> dict[str, str]:
        """The texts of all settings that have a value, known or not, for plug-ins."""
        names = {*self.definition, *(name for layer, _ in self._layers() for name in layer)}
        return {name: text for name in sorted(names) if (text := self.text(name)) is not None}

    def public_texts(self) -> dict[str, str]:
        """The settings that have a value, without secrets."""
        found = {key.name: self.text(key.name) for key in self.definition.values() if not key.sensitive}
        return {name: text for name, text in found.items() if text is not None}

    def default(self, name: str) -> str | None:
        if name in self._defaults:
            return self._defaults[name]
        key = self.definition.get(name)
        return key.default if key is not None else None

    def source(self, name: str) -> ConfigSource:
        return next(
            (source for layer, source in self._layers() if name in layer), ConfigSource.DEFAULT_CONFIG
        )

    def _layers(self) -> tuple[tuple[dict[str, str], ConfigSource], ...]:
        return (
            (self._dynamic, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self._dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self._static, ConfigSource.STATIC_BROKER_CONFIG),
        )

    # At start ---------------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether there is no zookeeper.connect: the broker is a cluster by itself."""
        return not self._static.get("zookeeper.connect", "").strip()

    def _unite_ids(self) -> None:
        node, broker = (self._static.get(name) for name in ("node.id", "broker.id"))
        if node is None and broker is not None:
            return
        if node is not None and broker is not None and node.strip() != broker.strip():
            raise ConfigError("node.id", node, f"has to be equal to broker.id, which is {broker}")
        if node is not None:
            self._static["broker.id"] = node

    def _limit_internal_topics(self) -> None:
        if not self.is_alone:
            return
        why = "there is one broker"
        lowered = []
        for name in internal_topic_settings():
            if (given := self._static.get(name)) is None:
                self._defaults[name] = "1"
                lowered.append(name)
            elif self.definition[name].parse(given) != 1:
                raise ConfigError(name, given, f"has to be 1, as {why}")
        if lowered:
            self.notes.append(f"1 instead of Kafka's default, as {why}: {', '.join(lowered)}")

    def _review_static(self) -> None:
        """Check the values of the start, and add a warning for each setting that changes nothing."""
        for name, text in sorted(self._static.items()):
            key = key_of(name)
            if key is None:
                self.warnings.append(f"{name} is not a setting and is ignored{_suggestion(name)}")
                continue
            try:
                key.parse(text)
            except ConfigError as error:
                raise ConfigError(name, error.value, error.problem) from None
            if name != key.name and key.name not in LISTENER_LIMITS and key.name not in security_settings():
                reason = key.reason or "it cannot be set for one listener"
                self.warnings.append(f"{name} changes nothing: {reason}")
            elif key.reason is not None:
                self.warnings.append(f"{name} changes nothing: {key.reason}")
            elif key.name in tls_listener_settings() and not self._may_use_tls:
                self.warnings.append(f"{name} changes nothing: no listener has TLS")
            elif self.is_alone and name in cluster_settings() and text.strip():
                self.warnings.append(f"{name} changes nothing: a broker without zookeeper.connect is alone")
            elif name in _RETENTION_TIMES and int(text) < -1:
                self.warnings.append(f"{name}={text} keeps records for ever, as -1 does: write -1")

    @property
    def _may_use_tls(self) -> bool:
        texts = ("listener.security.protocol.map", "listeners", "metrics.listener")
        return any("SSL" in text or "https" in text for name in texts if (text := self._static.get(name)))

    def assume_broker_id(self, broker_id: int) -> None:
        """Set the broker id that was generated or found in the log folder."""
        self._static["broker.id"] = self._static["node.id"] = str(broker_id)
        self._refresh()

    # Values -----------------------------------------------------------------------------------------

    def resolved_text(self, name: str) -> tuple[str | None, ConfigSource]:
        """The text and source of a setting or, without a value, of its first synonym; times are in ms."""
        key = self.definition[name]
        for candidate in (name, *key.synonyms):
            if (text := self.text(candidate)) is None:
                continue
            unit = _MS_PER_UNIT.get(candidate.rpartition(".")[2], 1) if candidate != name else 1
            if unit != 1:
                text = str(int(text) * unit)
            if name == "log.retention.ms" and int(text) < 0:
                text = "-1"  # negative times mean for ever
            return text, self.source(candidate)
        return None, ConfigSource.DEFAULT_CONFIG

    def _refresh(self) -> None:
        """Parse all settings, at start and after changes. If one is invalid, no attribute changes."""
        values = {name: key.parse(self.text(name)) for name, key in self.definition.items()}
        others = cluster_settings() | security_settings()
        own = (key for name, key in self.definition.items() if key.served and name not in others)
        attributes = {key.attribute: values[key.name] for key in own}
        for name in ("log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.flush.interval.ms"):
            key = self.definition[name]
            attributes[key.attribute] = key.parse(self.resolved_text(name)[0])
        check_together(attributes)
        self._values = values
        self.revision += 1
        for attribute, value in attributes.items():
            setattr(self, attribute, value)
        dirs = self.log_dirs or self.log_dir
        self.data_dirs = tuple(os.path.abspath(directory) for directory in dirs)
        self.connections_per_ip = _host_counts(self.max_connections_per_ip_overrides)
        check_dirs(self.data_dirs)
        listeners = self._resolve_listeners()
        self.endpoints = listeners.bound
        self.advertised_endpoints = listeners.advertised
        self.inter_broker_listener = listeners.inter_broker
        self.cluster = None
        if not self.is_alone:
            from tidelog.server.config.cluster import cluster_config

            self.cluster = cluster_config(values, listeners.advertised, listeners.inter_broker)

    def _resolve_listeners(self) -> Listeners:
        return resolve_listeners(
            listeners=self.listeners,
            advertised=self.advertised_listeners,
            protocol_map=self.listener_security_protocol_map,
            controller_names=self.controller_listener_names or (),
            inter_broker_name=self.inter_broker_listener_name,
            inter_broker_protocol=self.security_inter_broker_protocol,
        )

    @property
    def needs_security(self) -> bool:
        """Whether a listener has TLS or SASL, or delegation tokens are enabled."""
        keys = ("delegation.token.secret.key", "delegation.token.master.key")
        return (
            self.uses_tls
            or any(self[key] for key in keys)
            or any(endpoint.uses_sasl for endpoint in self.endpoints)
        )

    def protocol_of(self, listener: str) -> str:
        """The security protocol of a listener by its name."""
        return next(found.security_protocol for found in self.endpoints if found.listener == listener)

    @property
    def uses_tls(self) -> bool:
        """Whether a listener, or the port of the metrics, has TLS."""
        return self.metrics_uses_tls or any(endpoint.uses_tls for endpoint in self.endpoints)

    @property
    def metrics_uses_tls(self) -> bool:
        return (self.metrics_listener or "").startswith("https://")

    def listener_limit(self, listener: str, name: str) -> int | None:
        """The limit of one listener (`listener.name.NAME.max.connections`), or None."""
        text = self.text(f"{LISTENER_PREFIX}{listener.lower()}.{name}")
        value = self.definition[name].parse(text)
        return value if isinstance(value, int) else None

    # Changes while running --------------------------------------------------------------------------

    def on_change(self, observer: Callable[[frozenset[str]], None]) -> None:
        """Call `observer` with the names of changed settings, after the attributes changed."""
        self._observers.append(observer)

    def dynamic(self, *, cluster_default: bool) -> dict[str, str]:
        return dict(self._dynamic_default if cluster_default else self._dynamic)

    def set_dynamic(
        self, *, broker: Mapping[str, str] | None = None, cluster_default: Mapping[str, str] | None = None
    ) -> frozenset[str]:
        """Apply the stored settings of this broker or of all brokers; returns the names of changed settings.

        Leaves out invalid values and logs them, so that stored settings never stop the broker.
        """
        before = (self._dynamic, self._dynamic_default)
        names = set(self._dynamic) | set(self._dynamic_default)
        if broker is not None:
            self._dynamic = _usable(broker)
        if cluster_default is not None:
            self._dynamic_default = _usable(cluster_default)
        names |= set(self._dynamic) | set(self._dynamic_default)
        old = dict(self._values)
        old_texts = {name: _text_in(before, self._static, name) for name in names}
        try:
            self._refresh()
        except ConfigError as error:
            log.error("stored settings are ignored: %s", error)
            self._dynamic, self._dynamic_default = before
            self._refresh()
            return frozenset()
        changed = frozenset(
            name
            for name in names
            if (old[name] != self._values[name] if name in old else old_texts[name] != self.text(name))
        )
        if changed:
            for observer in self._observers:
                observer(changed)
        return changed

    def with_dynamic(self, properties: Mapping[str, str], *, cluster_default: bool) -> BrokerConfig:
        """A copy with these settings. Raises ConfigError if they are invalid."""
        trial = BrokerConfig(self._static)
        trial._dynamic = dict(self._dynamic)
        trial._dynamic_default = dict(self._dynamic_default)
        if cluster_default:
            trial._dynamic_default = dict(properties)
        else:
            trial._dynamic = dict(properties)
        trial._refresh()
        return trial

    # For DescribeConfigs ----------------------------------------------------------------------------

    def synonyms(self, name: str) -> list[ConfigSynonym]:
        """The synonyms of a setting; the value in effect comes first."""
        key = key_of(name)
        names: tuple[str, ...] = (name,)
        if key is not None:
            names += key.synonyms if key.name == name else (key.name,)
        hidden = key is None or key.sensitive
        found = []
        for layer, source in self._layers():
            found += [ConfigSynonym(n, None if hidden else layer[n], source) for n in names if n in layer]
        for candidate in names:
            if (text := self.default(candidate)) is not None:
                found.append(ConfigSynonym(candidate, None if hidden else text, ConfigSource.DEFAULT_CONFIG))
        # As in Kafka, a setting without a value of its own does not show its synonyms.
        while found and found[0].name != name:
            del found[0]
        return found

    def describe(
        self, names: Iterable[str] | None = None, *, documentation: bool = False
    ) -> Iterator[ConfigEntry]:
        """The settings of this broker, one by one: all, or the known or set ones of `names`."""
        given = {name for layer, _ in self._layers() for name in layer}
        listed = {name for name, key in self.definition.items() if _listed(key)} | given
        chosen = listed if names is None else listed & set(names)
        return (self._entry(name, self.synonyms(name), documentation) for name in sorted(chosen))

    def describe_default(
        self, names: Iterable[str] | None = None, *, documentation: bool = False
    ) -> list[ConfigEntry]:
        """The settings that are stored for all brokers."""
        wanted = set(self._dynamic_default) if names is None else set(self._dynamic_default) & set(names)
        entries = []
        for name in sorted(wanted):
            key = key_of(name)
            hidden = key is None or key.sensitive
            text = None if hidden else self._dynamic_default[name]
            own = ConfigSynonym(name, text, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
            entry = self._entry(name, [own], documentation)
            if key is not None and not key.sensitive:
                entry = replace(entry, value=render_value(key.parse(self._dynamic_default[name])))
            entries.append(entry)
        return entries

    def _entry(self, name: str, synonyms: list[ConfigSynonym], documentation: bool) -> ConfigEntry:
        key = key_of(name)
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        if key is None:
            # As in Kafka, an unknown setting is secret.
            return ConfigEntry(name, None, source, is_sensitive=True, is_read_only=True, synonyms=synonyms)
        doc = None
        if documentation:
            from tidelog.server.config.docs import broker_texts  # the broker itself needs no documentation

            doc = broker_texts()[key.name]
        return ConfigEntry(
            name=name,
            value=None if key.sensitive else render_value(self[name]),
            source=source,
            type=key.type,
            is_read_only=key.name != name or key.dynamic.value == "read-only",
            is_sensitive=key.sensitive,
            synonyms=synonyms,
            documentation=doc,
        )


def _listed(key: ConfigKey) -> bool:
    return not key.retired and not key.unlisted


def _usable(properties: Mapping[str, str]) -> dict[str, str]:
    usable = {}
    for name, text in properties.items():
        key = key_of(name)
        if key is not None and key.name in FILE_ONLY:
            log.error("a stored setting is ignored: only the file of the broker can set %s", name)
            continue
        try:
            if key is not None:
                key.parse(text)
            usable[name] = text
        except ConfigError as error:
            log.error("a stored setting is ignored: %s", error)
    return usable


def _text_in(layers: Iterable[Mapping[str, str]], static: Mapping[str, str], name: str) -> str | None:
    return next((layer[name] for layer in (*layers, static) if name in layer), None)


def _suggestion(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, broker_definition(), n=1, cutoff=0.85)
    return f"; did you mean {close[0]}?" if close else ""


def _host_counts(text: str) -> dict[str, int]:
    pairs = (pair.strip().rpartition(":") for pair in text.split(",") if pair.strip())
    return {host.strip(): int(count) for host, _, count in pairs}
