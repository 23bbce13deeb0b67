"""Analyses count what a topic has, in the background, and can be cancelled."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.console.records.conftest import WithReader
from tests.support.wait import eventually_async
from tidelog import Producer
from tidelog.console.records.analysis import Analyses, Analysis, AnalysisRefused, AnalysisState
from tidelog.console.records.statistics import HyperLogLog, SizeHistogram, rounded
from tidelog.console.records.topic_reader import TopicReader
from tidelog.testing import Broker

HOUR = 3_600_000


@pytest.mark.parametrize("count", [0, 1, 100, 5000, 60_000])
def test_different_values_are_counted_within_five_percent(count: int) -> None:
    found = HyperLogLog()
    for _ in range(2):
        found.add_all(str(number).encode() for number in range(count))
    assert abs(found.count() - count) <= count * 0.05
    other = HyperLogLog()
    other.add_all(str(number).encode() for number in range(count // 2))
    other.merge(found)
    assert other.count() == found.count()


def test_percentiles_are_those_of_sorted_sizes() -> None:
    generator = random.Random(7)
    sizes = [int(generator.paretovariate(0.8) * 40) for _ in range(5000)]
    found = SizeHistogram()
    found.add_all(sizes)
    sizes.sort()
    for name, size in found.percentiles().items():
        exact = sizes[-(-int(5000 * float(name[1:]) * 10) // 1000) - 1]
        assert abs(size - exact) <= exact * 0.002
    assert (found.low, found.high, found.total) == (sizes[0], sizes[-1], sum(sizes))
    assert rounded(1023) == 1023
    assert SizeHistogram().percentiles()["p99.9"] == 0


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    broker.create_topic("analysed", partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=20) as producer:
        for number in range(1000):
            producer.send(
                "analysed",
                None if number % 10 == 0 else b"v" * (number % 50),
                key=None if number % 4 == 0 else f"k{number % 40}".encode(),
                partition=number % 2,
                timestamp_ms=number * HOUR // 100,
            )
    return "analysed"


def test_an_analysis_counts_the_topic(topic: str, with_reader: WithReader[Analysis]) -> None:
    async def run(reader: TopicReader) -> Analysis:
        analyses = Analyses(clock=lambda: 5.0)
        found = analyses.start(reader)
        with pytest.raises(AnalysisRefused, match="is being analysed already"):
            analyses.start(reader)
        await eventually_async(lambda: found.state is not AnalysisState.RUNNING, "the analysis ends", 60)
        assert analyses.get(topic) is found
        return found

    found = with_reader(topic, run)
    assert (found.state, found.error, found.progress) == (AnalysisState.DONE, "", 1.0)
    total = found.total
    assert (total.records, total.null_keys, total.null_values) == (1000, 250, 100)
    # An estimate by hashes that differ from process to process: in one of twenty, two keys count as one.
    assert 27 <= total.keys.count() <= 30
    assert (total.value_sizes.low, total.value_sizes.high) == (1, 49)
    assert total.hours == {hour * HOUR: 100 for hour in range(10)}
    assert [part.records for part in found.partitions.values()] == [500, 500]
    assert found.partitions[1].last_offset == 499
    assert (total.first_ms, total.last_ms, found.started_ms) == (0, 999 * HOUR // 100, 5000)


def test_a_cancelled_analysis_keeps_what_it_has(topic: str, with_reader: WithReader[Analysis]) -> None:
    async def run(reader: TopicReader) -> Analysis:
        analyses = Analyses()
        found = analyses.start(reader)
        await asyncio.sleep(0)
        assert await analyses.cancel(topic)
        assert not await analyses.cancel(topic)
        await analyses.close()
        return found

    assert with_reader(topic, run).state is AnalysisState.CANCELLED


def test_an_analysis_that_fails_says_why(with_reader: WithReader[Analysis]) -> None:
    async def run(reader: TopicReader) -> Analysis:
        analyses = Analyses()
        found = analyses.start(reader)
        await eventually_async(lambda: found.state is not AnalysisState.RUNNING, "the analysis ends", 60)
        return found

    found = with_reader("missing", run)
    assert found.state is AnalysisState.FAILED
    assert "missing" in found.error
