"""The quota managers under a simulated clock, against what those of Apache Kafka 3.9 answered."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tidelog.errors import ThrottlingQuotaExceeded
from tidelog.metadata.state import DEFAULT_ENTITY
from tidelog.metrics.sampled_stat import SampleConfig
from tidelog.server.quota import client_quota_manager
from tidelog.server.quota.callback import DefaultQuotaCallback, QuotaEntity, QuotaTags, QuotaType
from tidelog.server.quota.client_quota_manager import (
    IDLE_MS,
    ClientQuotaManager,
    ClientRequestQuotaManager,
)
from tidelog.server.quota.controller_mutation_quota import ControllerMutationQuotaManager

RECORDED: dict[str, Any] = json.loads(
    gzip.decompress((Path(__file__).parent.parent / "data" / "quota-answers.json.gz").read_bytes())
)
LIMITS = {"Produce": 1000.0, "Request": 12.5, "Strict": 2.0, "Permissive": 2.0}
APP = QuotaEntity(None, "app")
PRINCIPAL = "User:ANONYMOUS"


class SetClock:
    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


def manager_of(kind: str, config: SampleConfig, clock: SetClock) -> ClientQuotaManager:
    if kind == "Produce":
        return ClientQuotaManager(QuotaType.PRODUCE, config, clock)
    if kind == "Request":
        return ClientRequestQuotaManager(config, clock)
    return ControllerMutationQuotaManager(config, clock)


@pytest.mark.parametrize("kind", LIMITS)
def test_throttle_times_and_measured_values_are_kafkas(kind: str) -> None:
    played = 0
    for series in RECORDED["series"]:
        if series["kind"] != kind:
            continue
        clock = SetClock()
        manager = manager_of(kind, SampleConfig(series["samples"], series["seconds"] * 1000), clock)
        manager.update(APP, LIMITS[kind])
        for at_ms, value, throttle_ms, measured, changed in series["steps"]:
            clock.ms = at_ms
            if changed:
                manager.update(APP, changed)
            sensors = manager.sensors(PRINCIPAL, "app")
            if isinstance(manager, ControllerMutationQuotaManager):
                quota = manager.quota_for(PRINCIPAL, "app", strict=kind == "Strict")
                try:
                    quota.record(value)
                except ThrottlingQuotaExceeded:
                    assert kind == "Strict"
                    assert throttle_ms
                assert quota.throttle_ms == throttle_ms
            else:
                assert manager.record(sensors, value, at_ms) == throttle_ms
                if series["unrecords"] and throttle_ms:
                    manager.unrecord(sensors, value, at_ms)
            assert sensors.measure(at_ms) == pytest.approx(measured)
            played += 1
    assert played == 16 * 40


def test_the_first_level_that_is_set_counts_and_names_the_metric() -> None:
    levels = [
        QuotaEntity(user, client)
        for user, client in (
            ("a%20b", "app"),
            ("a%20b", DEFAULT_ENTITY),
            ("a%20b", None),
            (DEFAULT_ENTITY, "app"),
            (DEFAULT_ENTITY, DEFAULT_ENTITY),
            (DEFAULT_ENTITY, None),
            (None, "app"),
            (None, DEFAULT_ENTITY),
        )
    ]
    for present, limit, tags in RECORDED["levels"]:
        callback = DefaultQuotaCallback()
        for index, entity in enumerate(levels):
            if present >> index & 1:
                callback.set(entity, index + 1.0)
        found = callback.tags("a%20b", "app")
        assert (callback.limit(found) or 0) == limit, present
        if tags is not None:
            assert list(found) == tags, present


def produce_manager(clock: SetClock) -> ClientQuotaManager:
    manager = ClientQuotaManager(QuotaType.PRODUCE, SampleConfig(), clock)
    manager.update(APP, 100.0)
    return manager


def test_nothing_is_enabled_without_a_quota() -> None:
    clock = SetClock()
    manager = produce_manager(clock)
    assert manager.enabled
    manager.update(APP, None)
    assert not manager.enabled


def test_a_user_name_is_encoded_as_in_the_tree() -> None:
    manager = ClientQuotaManager(QuotaType.PRODUCE, SampleConfig(), SetClock())
    manager.update(QuotaEntity("a%20b%2Fc", None), 7.0)
    sensors = manager.sensors("User:a b/c", "any")
    assert (sensors.tags, sensors.limit) == (QuotaTags("a%20b%2Fc", ""), 7.0)
    assert manager.sensors("User:a b/d", "any").limit is None


def test_clients_with_the_same_user_share_its_quota() -> None:
    clock = SetClock()
    manager = ClientQuotaManager(QuotaType.PRODUCE, SampleConfig(), clock)
    manager.update(QuotaEntity("alice", None), 100.0)
    first, second = manager.sensors("User:alice", "one"), manager.sensors("User:alice", "two")
    assert first is second
    assert manager.record(first, 1000.0, 0) == 0
    assert manager.record(second, 10.0, 0) > 0


def test_metrics_of_an_idle_client_are_removed_after_an_hour() -> None:
    clock = SetClock()
    manager = produce_manager(clock)
    manager.record(manager.sensors(PRINCIPAL, "app"), 10.0, clock.ms)
    clock.ms = IDLE_MS - 1
    assert {f.name for f in manager.families()} > {"kafka_server_produce_byte_rate"}
    manager.record(manager.sensors(PRINCIPAL, "other"), 10.0, clock.ms)
    clock.ms += 60_000
    rates = next(f for f in manager.families() if f.name == "kafka_server_produce_byte_rate")
    assert [labels for labels, _ in rates.samples] == [(("user", ""), ("client_id", "other"))]
    assert manager.sensors(PRINCIPAL, "app").limit == 100.0


def test_clients_that_invent_ids_take_bounded_memory_and_others_stay_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_quota_manager, "MOST_SENSORS", 100)
    clock = SetClock()
    manager = ClientQuotaManager(QuotaType.PRODUCE, SampleConfig(), clock)
    manager.update(QuotaEntity(None, DEFAULT_ENTITY), 10.0)
    for number in range(1000):
        clock.ms += 1
        manager.record(manager.sensors(PRINCIPAL, f"invented-{number}"), 1.0, clock.ms)
        throttle_ms = manager.record(manager.sensors(PRINCIPAL, "busy"), 1.0, clock.ms)
    assert throttle_ms > 0, "it is over its quota"
    rates = next(family for family in manager.families() if family.name == "kafka_server_produce_byte_rate")
    assert len(rates.samples) <= 100


def test_a_rate_of_zero_throttles_for_all_windows() -> None:
    manager = produce_manager(SetClock())
    manager.update(APP, 0.0)
    assert manager.record(manager.sensors(PRINCIPAL, "app"), 1.0, 0) == 11_000


def test_what_can_be_fetched_at_once_is_the_quota_of_all_windows_but_one() -> None:
    manager = produce_manager(SetClock())
    sensors = manager.sensors(PRINCIPAL, "app")
    assert manager.most_at_once(sensors) == 1000.0
    assert manager.record(sensors, 1000.0, 0) == 0


class TeamQuotas:
    """All users of a team share one quota, which changes with the number of brokers."""

    def __init__(self) -> None:
        self.limit: float | None = 10.0
        self.changed = False
        self.updates: list[tuple[str, QuotaEntity, float | None]] = []

    def configure(self, configs: object) -> None: ...

    def quota_metric_tags(self, quota_type: str, principal: str, client_id: str) -> dict[str, str]:
        return {"user": principal.partition(":")[2].partition("-")[0]}

    def quota_limit(self, quota_type: str, metric_tags: object) -> float | None:
        return self.limit

    def update_quota(self, quota_type: str, entity: QuotaEntity, new_value: float) -> None:
        self.updates.append((quota_type, entity, new_value))

    def remove_quota(self, quota_type: str, entity: QuotaEntity) -> None:
        self.updates.append((quota_type, entity, None))

    def quota_reset_required(self, quota_type: str) -> bool:
        return self.changed

    def update_cluster_metadata(self, cluster: object) -> bool:
        return False

    def close(self) -> None: ...


def test_a_callback_decides_who_shares_a_quota_and_how_much_it_is() -> None:
    callback = TeamQuotas()
    manager = ClientQuotaManager(QuotaType.FETCH, SampleConfig(), SetClock(), callback)
    assert manager.enabled
    sensors = manager.sensors("User:red-1", "app")
    assert sensors is manager.sensors("User:red-2", "other")
    assert sensors is not manager.sensors("User:blue-1", "app")
    assert sensors.limit == 10.0
    callback.limit = 20.0
    manager.update(QuotaEntity("red", None), 5.0)
    assert sensors.limit == 10.0
    callback.changed = True
    manager.update(QuotaEntity("red", None), None)
    assert sensors.limit == 20.0
    assert callback.updates == [
        ("FETCH", QuotaEntity("red", None), 5.0),
        ("FETCH", QuotaEntity("red", None), None),
    ]
