"""The text that Prometheus reads: its parser accepts it, under the names that dashboards know."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidelog.metrics import Family, MetricName, Registry
from tidelog.metrics.dialects import Confluent, Strimzi, prometheus_name
from tidelog.metrics.http import Health, MetricsServer
from tidelog.metrics.prometheus import Text, render


def samples(registry: Registry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(render(registry))
        for sample in family.samples
    }


def test_names_of_labels_are_those_that_prometheus_takes() -> None:
    registry = Registry()
    registry.gauge(
        "kafka.controller", "ControllerChannelManager", "QueueSize", lambda: 3, **{"broker-id": "1"}
    )
    name = "kafka_controller_controllerchannelmanager_queuesize"
    assert samples(registry) == {(name, frozenset({("broker_id", "1")})): 3}


@pytest.mark.parametrize(
    ("kafka_name", "kind", "expected"),
    [
        ("server BrokerTopicMetrics MessagesInPerSec", "counter", "brokertopicmetrics_messagesin_total"),
        ("server ReplicaManager LeaderCount", "gauge", "replicamanager_leadercount"),
        ("server ReplicaManager IsrShrinksPerSec", "counter", "replicamanager_isrshrinks_total"),
        ("log Log Size", "gauge", "log_size"),
        ("network RequestMetrics TotalTimeMs", "histogram", "requestmetrics_totaltimems"),
        ("controller KafkaController GlobalTopicCount", "gauge", "kafkacontroller_globaltopiccount"),
        ("server Pool RequestHandlerAvgIdlePercent", "gauge", "pool_requesthandleravgidle_percent"),
        ("coordinator.group GroupMetadataManager NumGroups", "gauge", "groupmetadatamanager_numgroups"),
    ],
)  # fmt: skip
def test_names_are_those_of_the_exporter(kafka_name: str, kind: str, expected: str) -> None:
    group, type_, name = kafka_name.split()
    full = f"kafka_{group.replace('.', '_')}_{expected}"
    assert prometheus_name(MetricName(f"kafka.{group}", type_, name), kind) == full


def test_a_meter_is_a_total_for_all_and_for_each_topic() -> None:
    registry = Registry()
    registry.meter("kafka.server", "BrokerTopicMetrics", "BytesInPerSec").mark(30)
    registry.meter("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", topic="a").mark(10)
    name = "kafka_server_brokertopicmetrics_bytesin_total"
    assert samples(registry) == {(name, frozenset()): 30, (name, frozenset({("topic", "a")})): 10}


def test_a_histogram_is_quantiles_and_a_count() -> None:
    registry = Registry()
    histogram = registry.histogram("kafka.log", "LogFlushStats", "LogFlushRateAndTimeMs", unit=0.5)
    for value in range(1, 11):
        histogram.record(value)
    found = samples(registry)
    name = "kafka_log_logflushstats_logflushrateandtimems"
    assert f"\n{name}_count 10\n" in "\n" + render(registry)
    assert found[name, frozenset({("quantile", "0.50")})] == 2.5
    assert found[name, frozenset({("quantile", "0.999")})] == 5
    assert len(found) == 7


def test_families_made_on_the_spot_may_bear_either_kind_of_name() -> None:
    def collector() -> Iterable[Family]:
        yield Family(
            MetricName("kafka.log", "Log", "Size"), "gauge", [((("topic", "t"), ("partition", "0")), 5)]
        )
        yield Family("kafka_topic_partitions", "gauge", [((("topic", "t"),), 1)])

    registry = Registry()
    registry.collect(collector)
    assert samples(registry) == {
        ("kafka_log_log_size", frozenset({("topic", "t"), ("partition", "0")})): 5,
        ("kafka_topic_partitions", frozenset({("topic", "t")})): 1,
    }


def test_label_values_are_quoted() -> None:
    registry = Registry()
    strange = 'a"b\\c\nd,e}'
    registry.gauge("kafka.server", "x", "y", lambda: float("nan"), client=strange)
    ((name, labels),) = samples(registry)
    assert (name, labels) == ("kafka_server_x_y", frozenset({("client", strange)}))


def test_the_text_is_served_over_http_and_other_paths_are_not() -> None:
    registry = Registry()
    for n in range(100):
        registry.meter("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", topic=f"t{n}").mark(n)

    def get(url: str, kind: str = "text/plain") -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith(kind)
            return str(answer.read().decode())

    async def scenario() -> None:
        health = Health(False, {"state": "starting"})
        server = MetricsServer(registry, "127.0.0.1", 0, lambda: health)
        await server.bind()
        host, port = server.address
        for path in ("metrics", "health"):
            with pytest.raises(urllib.error.HTTPError, match="503"):
                await asyncio.to_thread(get, f"http://{host}:{port}/{path}")
        server.start()
        text = await asyncio.to_thread(get, f"http://{host}:{port}/metrics")
        assert text == render(registry)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            await asyncio.to_thread(get, f"http://{host}:{port}/other")
        health.is_healthy = True
        told = await asyncio.to_thread(get, f"http://{host}:{port}/health", "application/json")
        assert json.loads(told) == {"state": "starting"}
        await server.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "sent", [b"\r\n\r\n", b"GET /metrics\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"x" * 20_000]
)
def test_whatever_else_is_sent_gets_an_error_or_nothing(sent: bytes) -> None:
    async def scenario() -> None:
        server = MetricsServer(Registry(), "127.0.0.1", 0, lambda: Health(True))
        await server.bind()
        server.start()
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(sent)
        try:
            answer = await asyncio.wait_for(reader.read(), 10)
        except ConnectionError:
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 40")
        writer.close()
        await server.close()

    asyncio.run(scenario())


def test_a_long_text_is_made_in_short_steps() -> None:
    """No step of a scrape adds more than a hundred samples, however many partitions and topics there are."""

    def sizes() -> Iterable[Family]:
        for start in range(0, 10_000, 50):
            samples = [((("topic", f"t{n}"), ("partition", "0")), n) for n in range(start, start + 50)]
            yield Family(MetricName("kafka.log", "Log", "Size"), "gauge", samples)
        yield Family("one_long_family", "gauge", [((("n", str(n)),), n) for n in range(5_000)])

    registry = Registry()
    for n in range(2_000):
        registry.meter("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", topic=f"t{n}")
    registry.collect(sizes)
    for partitions, shown in ((True, 17_000), (False, 17_000)):
        text = Text(Strimzi(), partitions=partitions)
        before = most = 0
        for _ in text.fill(registry):
            added = text.size - before
            most, before = max(most, added), text.size
        assert text.size == shown
        assert most <= 100


def test_confluents_names_keep_the_words_of_kafka() -> None:
    registry = Registry()
    registry.meter("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", topic="a").mark(10)
    registry.gauge("kafka.server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent", lambda: 0.5)
    registry.histogram("kafka.network", "RequestMetrics", "TotalTimeMs", request="Produce").record(7)
    registry.collect(
        lambda: [
            Family(
                "kafka_consumergroup_lag",
                "gauge",
                [((("consumergroup", "g"), ("partition", "0"), ("topic", "t")), 4)],
            ),
            Family("kafka_topic_partition_leader", "gauge", [((("topic", "t"),), 1)]),
        ]
    )
    text = render(registry, Confluent("shop"))
    for line in (
        'kafka_server_brokertopicmetrics_bytesinpersec{topic="a"} 10',
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate 0.5",
        'kafka_network_requestmetrics_totaltimems{request="Produce"} 1',
        'kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.99"} 7.0',
        'kafka_consumergroup_group_lag{cluster_name="shop",group="g",partition="0",topic="t"} 4',
        'kafka_consumer_group_lag_ratio{group="g",partition="0",topic="t"} 4',
    ):
        assert f"\n{line}\n" in text, line
    assert "kafka_topic_partition_leader" not in text
