"""ControllerMutationQuotaManager: limits the partitions that a client creates and deletes, by token buckets.

A request takes one token for each partition. New versions of the requests are refused while the bucket is
below zero (strict); older versions are carried out, and their client is throttled (permissive).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tidelog.errors import ThrottlingQuotaExceeded
from tidelog.metrics.sampled_stat import SampleConfig, TokenBucket
from tidelog.server.quota.callback import ClientQuotaCallback, QuotaTags, QuotaType
from tidelog.server.quota.client_quota_manager import LONGEST_MS, ClientQuotaManager, ClientSensors


class MutationSensors(ClientSensors):
    __slots__ = ("bucket",)

    def __init__(self, tags: QuotaTags, limit: float | None, config: SampleConfig, now_ms: int) -> None:
        super().__init__(tags, limit, config, now_ms)
        self.bucket = TokenBucket(config)

    def measure(self, now_ms: int) -> float:
        """The number of tokens in the bucket."""
        return math.inf if self.limit is None else self.bucket.tokens(self.limit, now_ms)


class ControllerMutationQuota:
    """The quota of one request. Nothing is taken from the bucket of a client without a limit."""

    __slots__ = ("_now_ms", "_recorded_ms", "_strict", "_throttle_ms", "sensors")

    def __init__(self, sensors: MutationSensors, strict: bool, now_ms: Callable[[], int]) -> None:
        self.sensors = sensors
        self._strict = strict
        self._now_ms = now_ms
        self._throttle_ms = 0
        self._recorded_ms = 0

    def record(self, partitions: int) -> None:
        """Take tokens. Raises ThrottlingQuotaExceeded if the quota is strict and the bucket below zero."""
        sensors, now_ms = self.sensors, self._now_ms()
        limit = sensors.limit
        sensors.last_used_ms = now_ms
        if limit is None:
            sensors.rate.record(partitions, now_ms)
            return
        if self._strict and sensors.bucket.tokens(limit, now_ms) < 0:
            self._throttle(limit, now_ms)
            raise ThrottlingQuotaExceeded(
                f"the client may change {limit:g} partitions a second: try again in {self._throttle_ms} ms"
            )
        sensors.rate.record(partitions, now_ms)
        sensors.bucket.take(partitions, limit, now_ms)
        if not self._strict and sensors.bucket.tokens(limit, now_ms) < 0:
            self._throttle(limit, now_ms)

    def _throttle(self, limit: float, now_ms: int) -> None:
        tokens = self.sensors.bucket.tokens(limit, now_ms)
        wait = math.floor(-tokens * 1000 / limit + 0.5) if limit > 0 else LONGEST_MS
        self._throttle_ms = min(wait, LONGEST_MS)
        self._recorded_ms = now_ms

    @property
    def throttle_ms(self) -> int:
        """The rest of the throttle time from now on: the request may have taken a part of it."""
        return max(0, self._throttle_ms - (self._now_ms() - self._recorded_ms)) if self._throttle_ms else 0


class ControllerMutationQuotaManager(ClientQuotaManager):
    def __init__(
        self, config: SampleConfig, now_ms: Callable[[], int], callback: ClientQuotaCallback | None = None
    ) -> None:
        super().__init__(QuotaType.CONTROLLER_MUTATION, config, now_ms, callback, "tokens")

    def _new_sensors(self, tags: QuotaTags, now_ms: int) -> MutationSensors:
        return MutationSensors(tags, self._limit(tags), self._config, now_ms)

    def quota_for(self, principal: str, client_id: str | None, *, strict: bool) -> ControllerMutationQuota:
        sensors = self.sensors(principal, client_id)
        assert isinstance(sensors, MutationSensors)
        return ControllerMutationQuota(sensors, strict, self._now_ms)

    def _measures(self) -> Iterator[tuple[str, str, Callable[[ClientSensors, int], float]]]:
        yield "mutation-rate", "partitions created and deleted each second.", _mutation_rate
        yield "tokens", "tokens that are left in the bucket.", lambda sensors, now_ms: sensors.measure(now_ms)
        yield from list(super()._measures())[1:]


def _mutation_rate(sensors: ClientSensors, now_ms: int) -> float:
    return sensors.rate.measure(now_ms)
