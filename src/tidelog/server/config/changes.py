"""Checks changes of settings: the operations of a request, and changes while the broker runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from tidelog.config.definition import ConfigKey, Dynamic
from tidelog.config.values import ConfigError
from tidelog.errors import InvalidRequest, UnknownServerError
from tidelog.server.config.broker import LISTENER_LIMITS, BrokerConfig
from tidelog.server.config.broker_definition import (
    FILE_ONLY,
    LISTENER_PREFIX,
    base_name,
    key_of,
    security_settings,
)
from tidelog.server.config.topic import TopicConfigs


class AlterOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigOp(NamedTuple):
    name: str
    operation: int
    value: str | None


# As in Kafka, one change at most doubles or halves a number of threads: no typing error stops a broker.
_THREAD_COUNTS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
)
_PER_LISTENER_ONLY = frozenset(
    f"ssl.{name}"
    for name in (
        "key.password",
        "keystore.certificate.chain",
        "keystore.key",
        "keystore.location",
        "keystore.password",
        "keystore.type",
        "truststore.certificates",
        "truststore.location",
        "truststore.password",
        "truststore.type",
    )
)


_CLASSES = ("metric.reporters", "principal.builder.class", "ssl.engine.factory.class")


def check_operations(ops: Iterable[ConfigOp]) -> None:
    """Raise InvalidRequest if a name is twice or without a value, UnknownServerError for other operations."""
    seen: set[str] = set()
    for op in ops:
        _check_new(op.name, seen)
        seen.add(op.name)
        if op.operation not in AlterOperation._value2member_map_:
            raise UnknownServerError()
        if op.operation != AlterOperation.DELETE:
            _needed(op.name, op.value)


def _check_new(name: str, seen: Iterable[str]) -> None:
    if name in seen:
        raise InvalidRequest(f"{name} is there twice")


def _needed(name: str, value: str | None) -> str:
    if value is None:
        raise InvalidRequest(f"{name} has no value")
    return value


def check_broker(
    config: BrokerConfig, properties: Mapping[str, str], *, cluster_default: bool
) -> BrokerConfig:
    """Raise InvalidRequest if these settings cannot change while the broker runs; unknown names pass.

    Returns the settings of the broker after the change.
    """
    for name in sorted(properties):
        key = key_of(name)
        if key is not None:
            _check_may_change(name, key, cluster_default)
    try:
        for name, text in properties.items():
            if (key := key_of(name)) is not None:
                key.parse(text)
        trial = config.with_dynamic(properties, cluster_default=cluster_default)
        TopicConfigs(trial)
        if any(base_name(name) in security_settings() for name in properties):
            _check_security(trial)
    except ConfigError as error:
        raise InvalidRequest(str(error)) from None
    _check_connections(properties)
    _check_steps(config, trial)
    _check_retention(trial)
    return trial


def _check_may_change(name: str, key: ConfigKey, cluster_default: bool) -> None:
    if key.dynamic is Dynamic.READ_ONLY and key.name == name:
        raise InvalidRequest(f"{name} cannot change while the broker runs")
    if name in _PER_LISTENER_ONLY:
        raise InvalidRequest(f"{name} can change for one listener only: {LISTENER_PREFIX}NAME.{name}")
    if key.name in FILE_ONLY:
        raise InvalidRequest(f"{name} loads code or names an address: only the file of the broker can set it")
    if key.name in _CLASSES:
        raise InvalidRequest(f"{name} names classes, and none is loaded while the broker runs")
    if not cluster_default:
        return
    own = key.dynamic is Dynamic.PER_BROKER or (key.name != name and base_name(name) not in LISTENER_LIMITS)
    if own:
        raise InvalidRequest(f"{name} is a setting of one broker; name the broker")


def _check_security(trial: BrokerConfig) -> None:
    """Raise ConfigError if a listener could not authenticate its clients with these settings."""
    from tidelog.security.sasl.mechanisms import NoScramUsers, make_mechanisms
    from tidelog.server.config.sasl import sasl_settings

    for endpoint in trial.endpoints:
        if endpoint.uses_sasl:
            make_mechanisms(sasl_settings(trial, endpoint.listener), NoScramUsers(), None)


def _check_connections(properties: Mapping[str, str]) -> None:
    """Refuse a limit of 0 connections: no client could connect to raise it again."""
    for name, text in properties.items():
        if base_name(name) in LISTENER_LIMITS and int(text) <= 0:
            raise InvalidRequest(f"{name}={text.strip()}: it has to be above 0 while the broker runs")


def _check_steps(config: BrokerConfig, trial: BrokerConfig) -> None:
    for name in _THREAD_COUNTS:
        old, new = config[name], trial[name]
        if not isinstance(old, int) or not isinstance(new, int) or old == new:
            continue
        least, most = max(1, old // 2), old * 2
        if not least <= new <= most:
            raise InvalidRequest(
                f"{name}={new}: one step from {old} goes to {least} at least and {most} at most"
            )


def _check_retention(trial: BrokerConfig) -> None:
    local, whole = trial["log.local.retention.ms"], trial.log_retention_ms
    if isinstance(local, int) and whole >= 0 and local > whole:
        raise InvalidRequest(f"log.local.retention.ms={local} is more than log.retention.ms={whole}")
    local, whole = trial["log.local.retention.bytes"], trial.log_retention_bytes
    if isinstance(local, int) and whole >= 0 and local > whole:
        raise InvalidRequest(f"log.local.retention.bytes={local} is more than log.retention.bytes={whole}")
    dirs = trial["cordoned.log.dirs"]
    if isinstance(dirs, tuple) and not set(dirs) <= {"*", *(trial.log_dirs or trial.log_dir)}:
        raise InvalidRequest(f"cordoned.log.dirs={','.join(dirs)}: not all folders are in log.dirs")
    buffer, threads = trial["log.cleaner.dedupe.buffer.size"], trial["log.cleaner.threads"]
    if isinstance(buffer, int) and isinstance(threads, int) and buffer < threads << 20:
        raise InvalidRequest(f"log.cleaner.dedupe.buffer.size={buffer}: each cleaner thread needs a megabyte")
