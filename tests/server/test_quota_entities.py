"""Quotas as the tree has them, and the time of requests whose work is done in steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tidelog.clock import ManualClock
from tidelog.metadata.nodes import decode_config
from tidelog.server.quota import handling_time
from tidelog.server.quota.handling_time import HandlingTime, TimedCoroutine, timed
from tidelog.server.quota.quota_managers import QuotaManagers

TREE = Path(__file__).parent.parent / "data" / "zookeeper-tree.json"


def test_the_quotas_of_a_tree_of_kafka_are_loaded() -> None:
    nodes = json.loads(TREE.read_text())
    entities = {
        path.removeprefix("/config/"): decode_config(node["data"].encode())
        for path, node in nodes.items()
        if path.startswith("/config/users/") and node["data"]
    }
    quotas = QuotaManagers(ManualClock())
    quotas.load(entities)
    assert quotas.is_active
    assert quotas.produce.sensors("User:bob", "app").limit == 1_024_000.0
    assert quotas.produce.sensors("User:bob", "other").limit is None
    assert not quotas.request.enabled


def test_an_entity_without_settings_has_no_quota_any_more() -> None:
    quotas = QuotaManagers(ManualClock())
    quotas.entity_changed("clients/app", {"consumer_byte_rate": "5", "request_percentage": "1.5"})
    assert (quotas.fetch.enabled, quotas.request.enabled, quotas.produce.enabled) == (True, True, False)
    quotas.entity_changed("clients/app", {"request_percentage": "1.5"})
    assert not quotas.fetch.enabled
    assert quotas.is_active
    quotas.entity_changed("clients/app", {})
    assert not quotas.is_active


@pytest.mark.parametrize("path", ["topics/t", "brokers/1", "users", "users/a/clients", "groups/g"])
def test_other_entities_have_no_quotas(path: str) -> None:
    quotas = QuotaManagers(ManualClock())
    quotas.entity_changed(path, {"producer_byte_rate": "5"})
    assert not quotas.is_active


@pytest.mark.parametrize("text", ["much", "NaN"])
def test_a_value_that_is_no_number_is_logged_and_not_applied(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    quotas = QuotaManagers(ManualClock())
    quotas.entity_changed("users/a", {"producer_byte_rate": text, "consumer_byte_rate": "7"})
    assert (quotas.produce.enabled, quotas.fetch.enabled) == (False, True)
    assert f"producer_byte_rate={text}" in caplog.text


def test_rates_of_addresses_go_to_the_network() -> None:
    rates: list[tuple[str | None, int | None]] = []
    quotas = QuotaManagers(ManualClock())
    quotas.set_connection_rate = lambda address, rate: rates.append((address, rate))
    quotas.entity_changed("ips/<default>", {"connection_creation_rate": "7"})
    quotas.entity_changed("ips/%3A%3A1", {"connection_creation_rate": "8"})
    for settings in ({}, {"connection_creation_rate": "NaN"}, {"connection_creation_rate": "Infinity"}):
        quotas.entity_changed("ips/%3A%3A1", settings)
    assert rates == [(None, 7), ("::1", 8), ("::1", None), ("::1", None), ("::1", None)]
    assert not quotas.is_active


class Nanoseconds:
    def __init__(self) -> None:
        self.now = 1

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Nanoseconds:
    made = Nanoseconds()
    monkeypatch.setattr(handling_time, "perf_counter_ns", made)
    return made


def test_only_the_steps_of_a_coroutine_count(clock: Nanoseconds) -> None:
    spent = HandlingTime()

    async def work() -> str:
        clock.now += 10
        assert spent.ns == 10
        await asyncio.sleep(0)
        clock.now += 5
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError:
            clock.now += 1
        return "done"

    async def run() -> str:
        async def others() -> None:
            clock.now += 1000

        asyncio.get_running_loop().create_task(others())
        return await TimedCoroutine(work(), spent)

    assert asyncio.run(run()) == "done"
    assert spent.ns == 16


def test_errors_and_the_end_reach_steps_that_are_timed(clock: Nanoseconds) -> None:
    spent, ended = HandlingTime(), []

    def steps() -> Generator[int, None, str]:
        try:
            clock.now += 3
            yield 1
        except ValueError:
            clock.now += 4
            yield 2
        try:
            yield 3
        finally:
            ended.append(True)
        return "never"

    running = timed(steps(), spent)
    assert next(running) == 1
    clock.now += 100
    assert running.throw(ValueError()) == 2
    assert next(running) == 3
    running.close()
    assert ended == [True]
    assert spent.ns == 7
