"""QuotaManagers: the client quotas of a broker, for its handlers and its router.

A request over a quota is answered at once with its throttle time, and its connection is muted for that time
(KIP-219). Requests of other brokers are never throttled.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.clock import Clock
from tidelog.metadata.paths import decode_name
from tidelog.metadata.state import DEFAULT_ENTITY, ClusterState
from tidelog.metrics.registry import Family
from tidelog.metrics.sampled_stat import SampleConfig
from tidelog.network.request import Request
from tidelog.protocol.headers import read_response_header
from tidelog.protocol.message import Message
from tidelog.server.quota.callback import ClientQuotaCallback, QuotaEntity, QuotaType
from tidelog.server.quota.client_quota_manager import (
    ClientQuotaManager,
    ClientRequestQuotaManager,
    ClientSensors,
)
from tidelog.server.quota.controller_mutation_quota import (
    ControllerMutationQuota,
    ControllerMutationQuotaManager,
)
from tidelog.server.quota.handling_time import HandlingTime, TimedCoroutine, timed
from tidelog.slices import Slices

if TYPE_CHECKING:
    from tidelog.network.channel import Channel

R = TypeVar("R")

log = logging.getLogger("tidelog.server.quota")

PERCENT_OF_NS: Final = 100 / 1_000_000_000
"""A nanosecond of handling as percents of a second."""

CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

UNLIMITED_BYTES: Final = 2**31 - 1

ConnectionRate = Callable[["str | None", "int | None"], None]
"""Sets how many connections a second an address may open, None for every other one; a rate of None removes
the limit."""


class QuotaManagers:
    """`is_active` says whether any client has a quota. While it is False, handlers skip the quotas."""

    def __init__(
        self,
        clock: Clock,
        config: SampleConfig | None = None,
        controller_config: SampleConfig | None = None,
        callback: ClientQuotaCallback | None = None,
    ) -> None:
        self._clock = clock
        config = config or SampleConfig()
        self._callback = callback
        now_ms = self._now_ms
        self.produce = ClientQuotaManager(QuotaType.PRODUCE, config, now_ms, callback)
        self.fetch = ClientQuotaManager(QuotaType.FETCH, config, now_ms, callback)
        self.request = ClientRequestQuotaManager(config, now_ms, callback)
        self.controller_mutation = ControllerMutationQuotaManager(
            controller_config or SampleConfig(), now_ms, callback
        )
        self._by_setting: dict[str, ClientQuotaManager] = {
            "producer_byte_rate": self.produce,
            "consumer_byte_rate": self.fetch,
            "request_percentage": self.request,
            "controller_mutation_rate": self.controller_mutation,
        }
        self._limits: dict[QuotaEntity, dict[str, float]] = {}
        self._times: dict[Request, HandlingTime] = {}
        self.set_connection_rate: ConnectionRate | None = None
        self.is_active = callback is not None

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # Quotas of the tree

    def load(self, entities: Mapping[str, Mapping[str, str]]) -> None:
        """Set the quotas that were stored before this start, by path below /config."""
        for entity_path, configs in entities.items():
            self.entity_changed(entity_path, configs)

    def entity_changed(self, entity_path: str, configs: Mapping[str, str]) -> None:
        """Apply changed settings of an entity. Entities without quotas are ignored."""
        kind, *names = entity_path.split("/")
        if kind == "ips" and len(names) == 1:
            self._ip_changed(names[0], configs)
        elif kind == "clients" and len(names) == 1:
            self._limits_changed(QuotaEntity(None, names[0]), configs)
        elif kind == "users" and len(names) == 1:
            self._limits_changed(QuotaEntity(names[0], None), configs)
        elif kind == "users" and len(names) == 3 and names[1] == "clients":
            self._limits_changed(QuotaEntity(names[0], names[2]), configs)

    def _limits_changed(self, entity: QuotaEntity, configs: Mapping[str, str]) -> None:
        before = self._limits.pop(entity, {})
        limits: dict[str, float] = {}
        for name, manager in self._by_setting.items():
            limit = _number(entity, name, configs.get(name))
            if limit is not None:
                limits[name] = limit
            if limit != before.get(name):
                log.info("%s of %s is now %s", name, _title(entity), "unlimited" if limit is None else limit)
                manager.update(entity, limit)
        if limits:
            self._limits[entity] = limits
        self.is_active = any(manager.enabled for manager in self._by_setting.values())

    def _ip_changed(self, name: str, configs: Mapping[str, str]) -> None:
        rate = _number(name, CONNECTION_CREATION_RATE, configs.get(CONNECTION_CREATION_RATE))
        if self.set_connection_rate is not None:
            address = None if name == DEFAULT_ENTITY else decode_name(name)
            self.set_connection_rate(address, None if rate is None or rate == math.inf else int(rate))

    def metadata_changed(self, state: ClusterState) -> None:
        """Pass new metadata to the callback, whose limits may depend on it."""
        if self._callback is not None and self._callback.update_cluster_metadata(state):
            for manager in self._by_setting.values():
                manager.limits_changed()

    def close(self) -> None:
        if self._callback is not None:
            self._callback.close()

    # Produce

    def takes_small_produce(self, channel: Channel, size: int) -> bool:
        """Count a small produce. Returns False and counts nothing if its answer needs a throttle time."""
        if self.request.enabled:
            return False  # only the ordinary path measures the time of a request
        produce = self.produce
        if not produce.enabled:
            return True
        now_ms = self._now_ms()
        sensors = produce.sensors(channel.principal, channel.client_id)
        if not produce.record(sensors, size, now_ms):
            return True
        produce.unrecord(sensors, size, now_ms)
        return False

    def return_small_produce(self, channel: Channel, size: int) -> None:
        """Undo the count of a small produce that the general path handles instead."""
        if self.produce.enabled:
            sensors = self.produce.sensors(channel.principal, channel.client_id)
            self.produce.unrecord(sensors, size, self._now_ms())

    def throttle_produce(self, request: Request, acks: int) -> int:
        """Count a produce and throttle its client; returns the throttle time for the answer."""
        now_ms, size = self._now_ms(), request.size - request.body_start
        bytes_ms = self._record(self.produce, request, size, now_ms)
        # As in Kafka, the time of requests without an answer is not limited.
        time_ms = self._record_time(request, now_ms) if acks else 0
        self._throttle_by(self.produce, request, bytes_ms, time_ms, now_ms)
        return max(bytes_ms, time_ms)

    # Fetch

    def fetch_max_bytes(self, request: Request) -> int:
        """The most bytes of an answer to a consumer.

        A larger answer would always be throttled and never sent.
        """
        if not self.fetch.enabled:
            return UNLIMITED_BYTES
        sensors = self.fetch.sensors(request.principal, request.client_id)
        return int(min(self.fetch.most_at_once(sensors), UNLIMITED_BYTES))

    def throttle_fetch(self, request: Request, size: int) -> int:
        """Count the answer to a fetch and throttle its client; returns the throttle time.

        A throttled client gets an answer without records, so that its bytes do not count.
        """
        now_ms = self._now_ms()
        time_ms = self._record_time(request, now_ms)
        bytes_ms = self._record(self.fetch, request, size, now_ms)
        throttle_ms = max(bytes_ms, time_ms)
        if throttle_ms and self.fetch.enabled:
            self.fetch.unrecord(self.fetch.sensors(request.principal, request.client_id), size, now_ms)
        self._throttle_by(self.fetch, request, bytes_ms, time_ms, now_ms)
        return throttle_ms

    # Other requests

    def throttle_answer(self, request: Request, answer: Message, *, exempt: bool) -> None:
        """Count the time of a request, throttle its client, and put the throttle time into the answer.

        An answer of a handler may have a throttle time already: that of a controller mutation quota.
        """
        now_ms = self._now_ms()
        if exempt:
            if self.request.enabled:
                self.request.record_exempt(self._spent_ns(request) * PERCENT_OF_NS, now_ms)
            return
        mutation_ms: int = getattr(answer, "throttle_time_ms", 0)
        time_ms = self._record_time(request, now_ms)
        throttle_ms = max(mutation_ms, time_ms)
        if throttle_ms and not request.is_forwarded:
            self._throttle_by(self.controller_mutation, request, mutation_ms, time_ms, now_ms)
        if throttle_ms and hasattr(answer, "throttle_time_ms"):
            answer.throttle_time_ms = throttle_ms

    def throttle_forwarded(self, request: Request, answer: bytes) -> bytes:
        """Throttle the client of a request that the controller answered; returns the answer to send.

        The answers of the controller begin with their throttle time, after the response header.
        """
        now_ms = self._now_ms()
        _, start = read_response_header(request.api_key, request.api_version, answer, 0)
        mutation_ms = int.from_bytes(answer[start : start + 4], "big", signed=True)
        time_ms = self._record_time(request, now_ms)
        throttle_ms = max(mutation_ms, time_ms)
        if throttle_ms <= 0:
            return answer
        self._throttle_by(self.controller_mutation, request, mutation_ms, time_ms, now_ms)
        return answer[:start] + throttle_ms.to_bytes(4, "big") + answer[start + 4 :]

    def mutation_quota(self, request: Request, strict_from: int) -> ControllerMutationQuota | None:
        """The quota for the partitions that a request creates or deletes; None if no client has one.

        From version `strict_from` on, changes over the quota are refused.
        """
        if not self.controller_mutation.enabled:
            return None
        return self.controller_mutation.quota_for(
            request.principal, request.client_id, strict=request.api_version >= strict_from
        )

    def permissive_mutation_quota(self, request: Request) -> ControllerMutationQuota | None:
        """The permissive quota for the partitions of a topic that is created automatically for a client."""
        if not self.controller_mutation.enabled:
            return None
        return self.controller_mutation.quota_for(request.principal, request.client_id, strict=False)

    # The time of requests

    def timed_coroutine(self, request: Request, work: Coroutine[None, None, R]) -> Awaitable[R]:
        """Run the work, and count its steps as time of the request. `forget_time` ends that."""
        if not self.request.enabled:
            return work
        return TimedCoroutine(work, self._times.setdefault(request, HandlingTime()))

    def timed_slices(self, request: Request, work: Slices[R]) -> Slices[R]:
        if not self.request.enabled:
            return work
        return timed(work, self._times.setdefault(request, HandlingTime()))

    def forget_time(self, request: Request) -> None:
        if self._times:
            self._times.pop(request, None)

    def _spent_ns(self, request: Request) -> int:
        time = self._times.get(request)
        if time is not None:
            return time.ns
        return (request.local_end_ns or perf_counter_ns()) - request.started_ns

    def _record_time(self, request: Request, now_ms: int) -> int:
        if not self.request.enabled:
            return 0
        return self._record(self.request, request, self._spent_ns(request) * PERCENT_OF_NS, now_ms)

    # Throttling

    def _record(self, manager: ClientQuotaManager, request: Request, value: float, now_ms: int) -> int:
        if not manager.enabled:
            return 0
        return manager.record(manager.sensors(request.principal, request.client_id), value, now_ms)

    def _throttle_by(
        self, manager: ClientQuotaManager, request: Request, manager_ms: int, time_ms: int, now_ms: int
    ) -> None:
        """Mute the connection for the longer of two throttle times, and count it for its quota."""
        if manager_ms > time_ms:
            self._throttle(manager, request, manager_ms, now_ms)
        elif time_ms > 0:
            self._throttle(self.request, request, time_ms, now_ms)

    def _throttle(self, manager: ClientQuotaManager, request: Request, ms: int, now_ms: int) -> None:
        sensors: ClientSensors = manager.sensors(request.principal, request.client_id)
        manager.throttle_started(sensors, ms, now_ms)
        request.throttle(ms, manager.throttle_ended)

    def families(self) -> Iterator[Family]:
        for manager in self._by_setting.values():
            yield from manager.families()


def _number(entity: object, name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        log.error("%s=%s of %s is not a number, and is not applied", name, text, entity)
        return None
    return number


def _title(entity: QuotaEntity) -> str:
    parts = (("user", entity.user), ("client", entity.client_id))
    return ", ".join(f"{kind} {decode_name(name)}" for kind, name in parts if name is not None)
