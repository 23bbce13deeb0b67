"""Long answers are made in small steps, so that no turn of the loop takes long. Steps are counted here."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import cast

import pytest

from tidelog.network.loop import BrokerLoop
from tidelog.network.request import Request
from tidelog.protocol.message import sliced_encoder_for
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tidelog.protocol.source import ELEMENTS_PER_SLICE
from tidelog.server.apis.configs import BROKER, TOPIC, describe_configs
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.topic import TopicConfigs
from tidelog.server.services import Services
from tidelog.slices import SLICE_NS, SliceRunner, Slices

STEP_NS = 30_000


def services() -> Services:
    config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0"})
    topics = {"t": SimpleNamespace(configs={"retention.ms": "1000"})}
    return cast(
        "Services",
        SimpleNamespace(
            cluster=None,
            authorizer=None,
            broker_id=0,
            metadata=SimpleNamespace(snapshot=SimpleNamespace(topics=topics)),
            dynamic_config=SimpleNamespace(topics=TopicConfigs(config), broker=config),
        ),
    )


@pytest.mark.parametrize(("kind", "name", "least"), [(TOPIC, "t", 25), (BROKER, "0", 150)])
def test_each_setting_is_described_in_a_step_of_its_own(kind: int, name: str, least: int) -> None:
    resource = DescribeConfigsRequest.DescribeConfigsResource(resource_type=kind, resource_name=name)
    body = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    work = describe_configs(services(), cast("Request", None), body)
    steps = 0
    while True:
        try:
            work.send(None)
        except StopIteration as done:
            answer: DescribeConfigsResponse = done.value
            break
        steps += 1
    (result,) = answer.results
    assert (result.error_code, len(result.configs) >= least) == (0, True)
    assert steps >= len(result.configs)
    encoding = sliced_encoder_for(DescribeConfigsResponse, 4)(answer, b"")
    elements = sum(1 + len(config.synonyms) for config in result.configs)
    assert sum(1 for _ in encoding) >= elements // ELEMENTS_PER_SLICE


def test_a_turn_has_one_slice_of_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0
    turns = [0]

    def work(steps: int) -> Slices[None]:
        nonlocal now_ns
        for _ in range(steps):
            now_ns += STEP_NS
            turns[-1] += 1
            yield

    def poll(timeout: float | None, most: int) -> list[tuple[int, int]]:
        turns.append(0)
        return real_poll(timeout, most)

    async def run() -> None:
        runner = SliceRunner()
        reading, writing = os.pipe()

        def on_event(_: int) -> None:
            loop.unregister(reading)
            runner.start(work(100))
            done.set()

        done = asyncio.Event()
        loop.register(reading, on_event)
        os.write(writing, b"a request")
        await done.wait()
        await runner.drain()
        os.close(reading)
        os.close(writing)

    monkeypatch.setattr("tidelog.slices.perf_counter_ns", lambda: now_ns)
    loop = BrokerLoop(1)
    real_poll = loop.direct._poll
    monkeypatch.setattr(loop.direct, "_poll", poll)
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    assert sum(turns) == 100
    assert max(turns) <= SLICE_NS // STEP_NS + 1
    assert SLICE_NS <= 300_000
