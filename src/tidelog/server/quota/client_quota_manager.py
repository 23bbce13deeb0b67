"""ClientQuotaManager: measures the use of one type of quota by clients, and computes their throttle times.

`ClientRequestQuotaManager` does so for request_percentage: its values are percents of the time of one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from heapq import nsmallest
from operator import attrgetter
from typing import Final

from tidelog.metadata.paths import encode_name
from tidelog.metrics.registry import Family
from tidelog.metrics.sampled_stat import Avg, Rate, SampleConfig
from tidelog.server.quota.callback import (
    CLIENT_ID,
    USER,
    ClientQuotaCallback,
    DefaultQuotaCallback,
    QuotaEntity,
    QuotaTags,
    QuotaType,
)

IDLE_MS: Final = 3_600_000
"""The metrics of a client that did nothing for an hour are removed."""

SWEEP_MS: Final = 60_000

MOST_CLIENTS: Final = 10_000
"""So many pairs of principal and client id are remembered; after that they are looked up again."""

MOST_SENSORS: Final = 20_000
"""With more clients, the ones that are idle longest are forgotten: a client may invent ids without end."""

LONGEST_MS: Final = 2**31 - 1


class ClientSensors:
    """The common use of the clients with the same tags."""

    __slots__ = ("last_used_ms", "limit", "rate", "tags", "throttle_time")

    def __init__(self, tags: QuotaTags, limit: float | None, config: SampleConfig, now_ms: int) -> None:
        self.tags = tags
        self.limit = limit
        self.rate = Rate(config)
        self.throttle_time = Avg()
        self.last_used_ms = now_ms

    def measure(self, now_ms: int) -> float:
        return self.rate.measure(now_ms)


class ClientQuotaManager:
    """`enabled` says whether any client has a quota of this type: without one nothing is measured."""

    def __init__(
        self,
        quota_type: QuotaType,
        config: SampleConfig,
        now_ms: Callable[[], int],
        callback: ClientQuotaCallback | None = None,
        metric: str = "byte-rate",
    ) -> None:
        self.type = quota_type
        self.metric = metric
        self.enabled = callback is not None
        self.throttled = 0  # channels that are muted because of this quota
        self._config = config
        self._now_ms = now_ms
        self._callback = callback
        self._levels = DefaultQuotaCallback()
        self._sensors: dict[QuotaTags, ClientSensors] = {}
        self._by_client: dict[tuple[str, str | None], ClientSensors] = {}
        self._swept_ms = now_ms()

    # Quotas

    def update(self, entity: QuotaEntity, limit: float | None) -> None:
        """Set the quota of an entity; None removes it. Clients have the new limit at once."""
        self._levels.set(entity, limit)
        callback = self._callback
        if callback is not None:
            if limit is None:
                callback.remove_quota(self.type.name, entity)
            else:
                callback.update_quota(self.type.name, entity, limit)
            if callback.quota_reset_required(self.type.name):
                self.limits_changed()
            return
        self.enabled = not self._levels.is_empty
        self.limits_changed()

    def limits_changed(self) -> None:
        """Look up the limits of all clients again."""
        self._by_client.clear()
        if not self.enabled:
            self._sensors.clear()
        for tags, sensors in self._sensors.items():
            sensors.limit = self._limit(tags)

    def _limit(self, tags: QuotaTags) -> float | None:
        if self._callback is None:
            return self._levels.limit(tags)
        return self._callback.quota_limit(self.type.name, {USER: tags.user, CLIENT_ID: tags.client_id})

    def _tags(self, principal: str, client_id: str) -> QuotaTags:
        if self._callback is None:
            return self._levels.tags(encode_name(principal.partition(":")[2]), client_id)
        tags: Mapping[str, str] = self._callback.quota_metric_tags(self.type.name, principal, client_id)
        return QuotaTags(tags.get(USER, ""), tags.get(CLIENT_ID, ""))

    # Use

    def sensors(self, principal: str, client_id: str | None) -> ClientSensors:
        """The sensors of a client, shared with the clients that have the same quota."""
        found = self._by_client.get((principal, client_id))
        if found is None:
            now_ms = self._now_ms()
            tags = self._tags(principal, client_id or "")
            self._sweep(now_ms)
            found = self._sensors.get(tags)
            if found is None:
                if len(self._sensors) >= MOST_SENSORS:
                    self._forget_longest_idle()
                found = self._sensors[tags] = self._new_sensors(tags, now_ms)
            if len(self._by_client) >= MOST_CLIENTS:
                self._by_client.clear()
            self._by_client[principal, client_id] = found
        return found

    def _new_sensors(self, tags: QuotaTags, now_ms: int) -> ClientSensors:
        return ClientSensors(tags, self._limit(tags), self._config, now_ms)

    def record(self, sensors: ClientSensors, value: float, now_ms: int) -> int:
        """Count the use of a client; returns its throttle time in milliseconds, 0 within the quota."""
        sensors.last_used_ms = now_ms
        sensors.rate.record(value, now_ms)
        limit = sensors.limit
        if limit is None:
            return 0
        rate = sensors.rate.measure(now_ms)
        return 0 if rate <= limit else self._throttle_ms(rate, limit, sensors, now_ms)

    def unrecord(self, sensors: ClientSensors, value: float, now_ms: int) -> None:
        """Undo a `record` of bytes that the client did not get."""
        sensors.rate.record(-value, now_ms)

    def _throttle_ms(self, rate: float, limit: float, sensors: ClientSensors, now_ms: int) -> int:
        """The time without requests after which the rate of the client is the limit again."""
        if limit <= 0:
            return self._config.expiry_ms
        wait = math.floor((rate - limit) / limit * sensors.rate.window_ms(now_ms) + 0.5)
        return min(wait, LONGEST_MS)

    def most_at_once(self, sensors: ClientSensors) -> float:
        """The most that a client can use at once without a throttle time, if it was idle before."""
        limit = sensors.limit
        if limit is None:
            return math.inf
        return limit * (self._config.samples - 1) * self._config.window_ms / 1000

    # Throttled channels and metrics

    def throttle_started(self, sensors: ClientSensors, throttle_ms: int, now_ms: int) -> None:
        self.throttled += 1
        sensors.throttle_time.record(throttle_ms, now_ms)

    def throttle_ended(self) -> None:
        self.throttled -= 1

    def _sweep(self, now_ms: int) -> None:
        if now_ms - self._swept_ms < SWEEP_MS:
            return
        self._swept_ms = now_ms
        idle = [s.tags for s in self._sensors.values() if now_ms - s.last_used_ms >= IDLE_MS]
        for tags in idle:
            del self._sensors[tags]
        if idle:
            self._by_client.clear()

    def _forget_longest_idle(self) -> None:
        """Forget a part at once: a look at all sensors for each new one would take long."""
        for sensors in nsmallest(MOST_SENSORS // 20, self._sensors.values(), key=attrgetter("last_used_ms")):
            del self._sensors[sensors.tags]
        self._by_client.clear()

    def families(self) -> Iterator[Family]:
        """Metrics for each quota that is in use, with Kafka's names and tags."""
        now_ms = self._now_ms()
        self._sweep(now_ms)
        prefix = f"kafka_server_{self.type.value.lower()}_"
        what = self.type.value
        yield Family(
            prefix + "queue_size", "gauge", [((), self.throttled)], f"{what}: connections that are throttled."
        )
        for name, text, measure in self._measures():
            samples: list[tuple[tuple[tuple[str, str], ...], float]] = [
                (((USER, s.tags.user), ("client_id", s.tags.client_id)), measure(s, now_ms))
                for s in self._sensors.values()
            ]
            if samples:
                yield Family(prefix + name.replace("-", "_"), "gauge", samples, f"{what}: {text}")

    def _measures(self) -> Iterator[tuple[str, str, Callable[[ClientSensors, int], float]]]:
        yield self.metric, f"{self.metric} of the clients that share a quota.", ClientSensors.measure
        yield (
            "throttle-time",
            "average throttle time in milliseconds.",
            lambda sensors, now_ms: sensors.throttle_time.measure(now_ms),
        )


class ClientRequestQuotaManager(ClientQuotaManager):
    """Percents of the time of the broker's thread. A throttle time is one window at most, as in Kafka."""

    def __init__(
        self, config: SampleConfig, now_ms: Callable[[], int], callback: ClientQuotaCallback | None = None
    ) -> None:
        super().__init__(QuotaType.REQUEST, config, now_ms, callback, "request-time")
        self._exempt = Rate(config)

    def record_exempt(self, percent: float, now_ms: int) -> None:
        """Count the time of a request that is never throttled: one of another broker."""
        self._exempt.record(percent, now_ms)

    def _throttle_ms(self, rate: float, limit: float, sensors: ClientSensors, now_ms: int) -> int:
        return min(super()._throttle_ms(rate, limit, sensors, now_ms), self._config.window_ms)

    def families(self) -> Iterator[Family]:
        yield from super().families()
        if self.enabled:
            exempt = self._exempt.measure(self._now_ms())
            yield Family(
                "kafka_server_request_exempt_request_time",
                "gauge",
                [((), exempt)],
                "Percents of the broker's thread for requests of other brokers.",
            )
