"""The rates that clients reach under quotas with the default windows, over 33 seconds of a simulated clock.

Each client sends its next request as soon as the broker has answered and unmuted it. The broker handles one
request at a time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import pytest

from tidelog.metrics.sampled_stat import SampleConfig
from tidelog.server.quota.callback import QuotaEntity, QuotaType
from tidelog.server.quota.client_quota_manager import ClientQuotaManager, ClientRequestQuotaManager
from tidelog.server.quota.quota_managers import PERCENT_OF_NS

PRINCIPAL = "User:ANONYMOUS"
APP, OTHER = "app", "other"
ROUND_TRIP_MS = 2
WARM_UP_MS, MEASURED_MS = 12_000, 33_000
"""A client that begins may use the quota of ten windows at once: that burst does not count. When its window
is forgotten, eleven seconds later, a smaller one follows: the measured time has three of these periods."""

WITHIN = 0.1


@dataclass(slots=True)
class Simulation:
    """Clients that share a quota, and one client without a quota beside them."""

    manager: ClientQuotaManager
    size: float
    handling_ms: float
    is_fetch: bool = False
    used: float = 0.0
    """What the clients with the quota got in the measured time."""

    slowest_other_ms: float = 0.0

    def run(self, clients: int) -> float:
        """The use of a second by the clients with the quota."""
        queue: list[tuple[float, int, str]] = [(number % 7, number, APP) for number in range(clients)]
        queue.append((0.0, clients, OTHER))
        heapq.heapify(queue)
        free_ms, end_ms = 0.0, float(WARM_UP_MS + MEASURED_MS)
        while queue[0][0] < end_ms:
            due_ms, number, client_id = heapq.heappop(queue)
            began_ms = max(due_ms, free_ms)
            free_ms = began_ms + self.handling_ms
            muted_ms = self._handle(client_id, free_ms)
            if client_id == OTHER:
                assert muted_ms == 0
                if due_ms >= WARM_UP_MS:
                    self.slowest_other_ms = max(self.slowest_other_ms, free_ms - due_ms)
                muted_ms = 20  # it sends one now and then
            heapq.heappush(queue, (free_ms + ROUND_TRIP_MS + muted_ms, number, client_id))
        return self.used / (MEASURED_MS / 1000)

    def _handle(self, client_id: str, at_ms: float) -> int:
        manager, now_ms = self.manager, int(at_ms)
        sensors = manager.sensors(PRINCIPAL, client_id)
        throttle_ms = manager.record(sensors, self.size, now_ms)
        if throttle_ms and self.is_fetch:
            manager.unrecord(sensors, self.size, now_ms)  # the answer has no records
        elif at_ms >= WARM_UP_MS and client_id == APP:
            self.used += self.size
        return throttle_ms


def limited(manager: ClientQuotaManager, limit: float) -> ClientQuotaManager:
    manager.update(QuotaEntity(None, APP), limit)
    return manager


@pytest.mark.parametrize("clients", [1, 20])
@pytest.mark.parametrize("size", [600, 2_000])
def test_produced_bytes(clients: int, size: int) -> None:
    limit = 200_000.0
    manager = limited(ClientQuotaManager(QuotaType.PRODUCE, SampleConfig(), lambda: 0), limit)
    simulation = Simulation(manager, size, 0.2)
    assert simulation.run(clients) == pytest.approx(limit, rel=WITHIN)
    assert simulation.slowest_other_ms <= 0.2 * (clients + 1)


@pytest.mark.parametrize("clients", [1, 20])
@pytest.mark.parametrize("size", [600, 2_000])
def test_fetched_bytes(clients: int, size: int) -> None:
    limit = 200_000.0
    manager = limited(ClientQuotaManager(QuotaType.FETCH, SampleConfig(), lambda: 0), limit)
    simulation = Simulation(manager, size, 0.2, is_fetch=True)
    assert simulation.run(clients) == pytest.approx(limit, rel=WITHIN)
    assert simulation.slowest_other_ms <= 0.2 * (clients + 1)


@pytest.mark.parametrize("clients", [1, 20])
@pytest.mark.parametrize("percent", [5.0, 20.0])
def test_the_time_of_requests(clients: int, percent: float) -> None:
    handling_ms = 0.5
    manager = limited(ClientRequestQuotaManager(SampleConfig(), lambda: 0), percent)
    simulation = Simulation(manager, handling_ms * 1_000_000 * PERCENT_OF_NS, handling_ms)
    # Percents of a second in each second: the share of the broker's only thread.
    assert simulation.run(clients) == pytest.approx(percent, rel=WITHIN)
    assert simulation.slowest_other_ms <= handling_ms * (clients + 1)


@pytest.mark.parametrize(("size", "share"), [(2_930, 0.97), (12_000, 0.84)])
def test_a_consumer_gets_less_than_its_quota_if_a_fetch_is_large_beside_it(size: int, share: float) -> None:
    """Kafka takes back what it counted, and the client waits as if it had got it."""
    limit = 40_000.0
    manager = limited(ClientQuotaManager(QuotaType.FETCH, SampleConfig(2), lambda: 0), limit)
    assert Simulation(manager, size, 0.2, is_fetch=True).run(1) == pytest.approx(limit * share, rel=0.03)
