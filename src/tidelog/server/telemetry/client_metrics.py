"""ClientMetricsManager: the subscriptions of clients, which push their metrics, and the times of their
pushes.

The rules are those of Kafka 4.3. An instance may ask again or push again after its push interval. It may ask
at once after UNKNOWN_SUBSCRIPTION_ID and UNSUPPORTED_COMPRESSION_TYPE, and it may push once more to say that
it ends.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.clock import Clock
from tidelog.config.values import ConfigError
from tidelog.errors import (
    CorruptMessage,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    KafkaError,
    MessageTooLarge,
    TelemetryTooLarge,
    ThrottlingQuotaExceeded,
    UnknownSubscriptionId,
    UnsupportedCompressionType,
)
from tidelog.metadata.paths import decode_name
from tidelog.protocol.wire import ZERO_UUID, uuid_to_text
from tidelog.records.codecs import Codec, decompress
from tidelog.server.config.client_metrics import DEFAULT_INTERVAL_MS, parse_match, split_list
from tidelog.server.telemetry.otlp import OtlpReader

if TYPE_CHECKING:
    from tidelog.cluster.metadata_cache import MetadataCache
    from tidelog.server.telemetry.client_series import ClientSeries

MAX_INSTANCES = 16_384
"""As in Kafka. The instance that was silent for longest is forgotten first."""

MAX_MATCHED = 1024
"""A longer client id matches no pattern: patterns may take long on long texts."""

ACCEPTED_CODECS = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
ALL = "*"
_PREFIX = "client-metrics/"
_MAY_ASK_AGAIN = (UnknownSubscriptionId, UnsupportedCompressionType)


@dataclass(slots=True, frozen=True)
class ClientFacts:
    """The attributes of a client that a subscription can match, except the instance id."""

    client_id: str
    software_name: str
    software_version: str
    source_address: str
    source_port: str

    def values(self, instance_id: bytes) -> dict[str, str]:
        return {
            "client_instance_id": uuid_to_text(instance_id),
            "client_id": self.client_id,
            "client_software_name": self.software_name,
            "client_software_version": self.software_version,
            "client_source_address": self.source_address,
            "client_source_port": self.source_port,
        }


@dataclass(slots=True, frozen=True)
class Subscription:
    """One entity of client metrics; every pattern has to match."""

    name: str
    metrics: frozenset[str]
    interval_ms: int
    patterns: tuple[tuple[str, re.Pattern[str]], ...]

    def matches(self, values: Mapping[str, str]) -> bool:
        return all(
            len(values[key]) <= MAX_MATCHED and pattern.fullmatch(values[key]) is not None
            for key, pattern in self.patterns
        )


@dataclass(slots=True)
class ClientInstance:
    """A client: the metrics that it has to push, and the times of its last request and push, in seconds."""

    instance_id: bytes
    facts: ClientFacts
    metrics: frozenset[str]
    interval_ms: int
    subscription_id: int
    version: int
    asked: float = field(default=float("-inf"))
    pushed: float = field(default=float("-inf"))
    terminating: bool = False
    last_error: type[KafkaError] | None = None

    def may_ask(self, now: float) -> bool:
        if now - max(self.asked, self.pushed) >= self.interval_ms / 1000:
            self.asked = now
            return True
        return self.last_error in _MAY_ASK_AGAIN

    def may_push(self, now: float) -> bool:
        if self.asked > self.pushed or now - self.pushed >= self.interval_ms / 1000:
            self.pushed = now
            return True
        return False

    def wants(self, name: str) -> bool:
        return ALL in self.metrics or name.startswith(tuple(self.metrics))


class ClientMetricsManager:
    """Answers GetTelemetrySubscriptions and PushTelemetry; `series` receives the numbers."""

    def __init__(self, clock: Clock, metadata: MetadataCache, series: ClientSeries, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._metadata = metadata
        self._series = series
        self._instances: OrderedDict[bytes, ClientInstance] = OrderedDict()
        self._seen: Mapping[str, Mapping[str, str]] | None = None
        self._texts: Mapping[str, Mapping[str, str]] = {}
        self._subscriptions: list[Subscription] = []
        self._version = 0

    def __len__(self) -> int:
        return len(self._instances)

    def subscribe(self, instance_id: bytes, facts: ClientFacts) -> ClientInstance:
        """The instance with its subscription; a new id for ZERO_UUID. Raises ThrottlingQuotaExceeded."""
        if instance_id == ZERO_UUID:
            instance_id = _new_id()
        instance = self._instance(instance_id, facts)
        if not instance.may_ask(self._clock.monotonic()):
            raise self._failed(instance, ThrottlingQuotaExceeded("asked before the push interval is over"))
        instance.last_error = None
        return instance

    def push(
        self,
        instance_id: bytes,
        facts: ClientFacts,
        subscription_id: int,
        codec: int,
        metrics: bytes | bytearray | memoryview,
        *,
        terminating: bool,
    ) -> None:
        """Take the metrics of a client. Raises the errors of PushTelemetry."""
        if instance_id == ZERO_UUID:
            raise InvalidRequest("a push without a client instance id")
        instance = self._instance(instance_id, facts)
        try:
            self._check(instance, subscription_id, codec, len(metrics), terminating)
            instance.terminating = instance.terminating or terminating
            self._take(instance, Codec(codec), metrics)
        except KafkaError as error:
            instance.terminating = instance.terminating or terminating
            raise self._failed(instance, error) from None
        instance.last_error = None
        if terminating:
            self._series.remove(instance_id)

    def _check(
        self, instance: ClientInstance, subscription_id: int, codec: int, size: int, terminating: bool
    ) -> None:
        if instance.terminating:
            raise InvalidRequest("a push after the last one")
        if not instance.may_push(self._clock.monotonic()):
            if not terminating:
                raise ThrottlingQuotaExceeded("pushed before the push interval is over")
            instance.pushed = self._clock.monotonic()
        if subscription_id != instance.subscription_id:
            raise UnknownSubscriptionId(f"the subscription of the client is {instance.subscription_id}")
        if codec not in (Codec.NONE, *ACCEPTED_CODECS):
            raise UnsupportedCompressionType(f"compression type {codec}")
        if size > self.max_bytes:
            raise TelemetryTooLarge(f"{size} bytes; telemetry.max.bytes is {self.max_bytes}")

    def _take(self, instance: ClientInstance, codec: Codec, metrics: bytes | bytearray | memoryview) -> None:
        if not metrics:
            return
        try:
            unpacked = decompress(codec, metrics, self.max_bytes)
        except (CorruptMessage, MessageTooLarge) as error:
            raise InvalidRecord(str(error)) from None
        points = [point for point in OtlpReader(unpacked).points() if instance.wants(point.name)]
        self._series.record(
            instance.instance_id, instance.facts.client_id, points, 3 * instance.interval_ms / 1000
        )

    @staticmethod
    def _failed(instance: ClientInstance, error: KafkaError) -> KafkaError:
        instance.last_error = type(error)
        return error

    # --- instances and subscriptions

    def _instance(self, instance_id: bytes, facts: ClientFacts) -> ClientInstance:
        """The client instance; a new one if the client is unknown or the subscriptions have changed since."""
        self._read_subscriptions()
        known = self._instances.get(instance_id)
        if known is not None and known.version == self._version:
            self._instances.move_to_end(instance_id)
            return known
        instance = self._new_instance(instance_id, facts)
        if known is not None:
            instance.terminating = known.terminating
        self._instances[instance_id] = instance
        self._instances.move_to_end(instance_id)
        while len(self._instances) > MAX_INSTANCES:
            self._instances.popitem(last=False)
        return instance

    def _new_instance(self, instance_id: bytes, facts: ClientFacts) -> ClientInstance:
        values = facts.values(instance_id)
        matching = [found for found in self._subscriptions if found.matches(values)]
        metrics = frozenset[str]().union(*(found.metrics for found in matching))
        if ALL in metrics:
            metrics = frozenset((ALL,))
        interval = min((found.interval_ms for found in matching), default=DEFAULT_INTERVAL_MS)
        text = ",".join(sorted(metrics)).encode() + b"|%d|" % interval + instance_id
        crc = zlib.crc32(text)
        subscription_id = crc - (1 << 32) if crc >> 31 else crc
        return ClientInstance(instance_id, facts, metrics, interval, subscription_id, self._version)

    def _read_subscriptions(self) -> None:
        """Read the entities again if the metadata has others since the last call."""
        entities = self._metadata.snapshot.entity_configs
        if entities is self._seen:
            return
        self._seen = entities
        found = {path: configs for path, configs in entities.items() if path.startswith(_PREFIX)}
        if found == self._texts:
            return
        self._texts = found
        self._version += 1
        self._subscriptions = [
            subscription
            for path, configs in found.items()
            if (subscription := _subscription(decode_name(path.removeprefix(_PREFIX)), configs)) is not None
        ]


def _subscription(name: str, configs: Mapping[str, str]) -> Subscription | None:
    """None for settings that another program has written, and that no broker would accept."""
    try:
        interval = int(configs.get("interval.ms", DEFAULT_INTERVAL_MS))
        patterns = tuple(parse_match(configs.get("match", "")))
    except (ValueError, InvalidConfig, ConfigError):
        return None
    metrics = frozenset(split_list(configs.get("metrics", "")))
    return Subscription(name, metrics, interval, patterns)


def _new_id() -> bytes:
    """A random id of version 4, as Java makes them."""
    data = bytearray(os.urandom(16))
    data[6] = data[6] & 0x0F | 0x40
    data[8] = data[8] & 0x3F | 0x80
    return bytes(data)
