"""Long answers are made in small steps, so that no turn of the loop takes long. Steps are counted here."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

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


def test_a_slice_ends_before_a_produce_has_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0
    turns: list[int] = []

    def clock() -> int:
        return now_ns

    def work(steps: int) -> Slices[None]:
        nonlocal now_ns
        for _ in range(steps):
            now_ns += STEP_NS
            turns[-1] += 1
            yield

    async def run() -> None:
        runner = SliceRunner()
        turns.append(0)
        runner.start(work(100))
        done = asyncio.create_task(runner.drain())
        while not done.done():
            turns.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr("tidelog.slices.perf_counter_ns", clock)
    asyncio.run(run())
    assert sum(turns) == 100
    assert max(turns) <= SLICE_NS // STEP_NS + 1
    assert SLICE_NS <= 300_000
