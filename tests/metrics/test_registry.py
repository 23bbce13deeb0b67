"""Numbers are counted as they come; rates and percentiles are worked out when they are read."""

from __future__ import annotations

import random

import pytest

from tidelog.clock import ManualClock
from tidelog.metrics import Histogram, Meter, MetricName, Registry
from tidelog.metrics.registry import BUCKET_TABLE, BUCKETS, DIRECT, bucket_bounds, bucket_of


def test_every_value_has_one_bucket_and_they_follow_each_other() -> None:
    expected_low = 0
    for index in range(BUCKETS):
        low, high = bucket_bounds(index)
        assert low == expected_low
        assert bucket_of(low) == bucket_of(high - 1) == index
        expected_low = high
    assert bucket_of(2**62) == BUCKETS - 1


def test_the_table_gives_the_same_bucket_as_the_arithmetic() -> None:
    assert [BUCKET_TABLE[value] for value in range(DIRECT)] == [bucket_of(value) for value in range(DIRECT)]


@pytest.mark.parametrize("seed", range(4))
def test_percentiles_are_within_a_sixteenth_of_the_true_ones(seed: int) -> None:
    chance = random.Random(seed)
    values = sorted(int(chance.lognormvariate(7, 2)) for _ in range(5000))
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    for quantile in (0.5, 0.75, 0.95, 0.99, 0.999):
        true = values[max(0, -(-int(quantile * 100_000) * len(values) // 100_000) - 1)]
        assert histogram.percentiles([quantile])[0] == pytest.approx(true, rel=1 / 16, abs=1)
    assert histogram.count == 5000


def test_a_window_forgets_what_is_older_than_a_minute() -> None:
    clock = ManualClock()
    histogram = Histogram(clock=clock.monotonic)
    histogram.record(4000)
    assert histogram.percentiles([0.5])[0] == pytest.approx(4000, rel=1 / 16)
    for _ in range(30):
        clock.advance(5)
        histogram.record(10)
        histogram.percentiles([0.5])
    assert histogram.percentiles([0.999]) == [10]
    clock.advance(61)
    histogram.percentiles([0.5])
    clock.advance(61)
    assert histogram.percentiles([0.999]) == [0]
    assert histogram.count == 31


def test_a_meter_comes_to_the_rate_at_which_it_is_marked() -> None:
    clock = ManualClock()
    meter = Meter(clock.monotonic)
    for _ in range(200):
        clock.advance(10)
        meter.mark(70)
        meter.rates()
    assert meter.rates() == pytest.approx((7, 7, 7))
    assert meter.mean_rate() == pytest.approx(7)
    assert meter.count == 14_000


def test_the_short_rate_falls_before_the_long_one() -> None:
    clock = ManualClock()
    meter = Meter(clock.monotonic)
    clock.advance(60)
    meter.mark(600)
    assert meter.rates() == pytest.approx((10, 10, 10))
    clock.advance(60)
    one, five, fifteen = meter.rates()
    assert 0 < one < five < fifteen < 10
    assert one == pytest.approx(10 / 2.718281828, rel=1e-6)


def test_asking_for_a_name_again_gives_the_same_metric() -> None:
    registry = Registry()
    first = registry.meter("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", topic="t")
    assert registry.meter("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", topic="t") is first
    assert registry.meter("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", topic="u") is not first
    with pytest.raises(TypeError, match=r"BytesInPerSec,topic=t is a Meter, asked for as a Counter"):
        registry.counter("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", topic="t")


def test_the_metrics_of_a_deleted_topic_are_forgotten() -> None:
    registry = Registry()
    for topic in ("kept", "gone"):
        registry.meter("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", topic=topic)
        registry.meter("kafka.server", "BrokerTopicMetrics", "BytesOutPerSec", topic=topic)
    registry.remove_labelled("topic", "gone")
    assert {name.labels for name, _ in registry} == {(("topic", "kept"),)}


def test_a_name_reads_as_kafka_writes_it() -> None:
    name = MetricName("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", (("topic", "t"),))
    assert str(name) == "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=t"
