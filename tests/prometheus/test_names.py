"""Every metric that a dashboard of the field asks for is there, with the labels that it selects."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.prometheus.dashboards import (
    ABSENT,
    Dashboard,
    dashboards,
    own_alerts,
    own_dashboard,
    selected,
    why_absent,
)
from tests.prometheus.loaded_broker import loaded_broker
from tests.server.scrape import Metrics, metrics_url
from tests.support.broker import Broker
from tidelog.clients.admin.blocking import Admin
from tidelog.clients.admin.configs import AlterConfigOp, ConfigResource, ResourceType


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with loaded_broker(tmp_path_factory.mktemp("dashboards")) as (running, _):
        yield running


def get(broker: Broker, query: str = "") -> str:
    with urllib.request.urlopen(metrics_url(broker) + query, timeout=30) as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def labels(broker: Broker) -> dict[str, dict[str, list[set[str]]]]:
    """The sets of labels of each metric, by dialect and name."""
    found: dict[str, dict[str, list[set[str]]]] = {}
    for dialect in ("strimzi", "confluent"):
        of_dialect = found[dialect] = {}
        for name, given, _ in Metrics(get(broker, f"?dialect={dialect}")).samples:
            if set(given) not in of_dialect.setdefault(name, []):
                of_dialect[name].append(set(given))
    return found


@pytest.mark.parametrize(
    "dashboard", [*dashboards(), own_dashboard(), own_alerts()], ids=lambda dashboard: dashboard.name
)
def test_a_dashboard_finds_its_metrics(
    dashboard: Dashboard, labels: dict[str, dict[str, list[set[str]]]]
) -> None:
    missing: list[str] = []
    for expression in dashboard.expressions:
        if why_absent(expression) is not None:
            continue
        for name, wanted in selected(expression).items():
            if not any(wanted <= given for given in labels[dashboard.dialect].get(name, [])):
                missing.append(f"{name} with {sorted(wanted)}")
    assert missing == []


def test_what_is_said_to_be_absent_is_absent(labels: dict[str, dict[str, list[set[str]]]]) -> None:
    for names in labels.values():
        assert [name for name in names if any(re.fullmatch(pattern, name) for pattern in ABSENT)] == []


def test_a_metric_that_is_missing_is_noticed() -> None:
    expression = 'sum(rate(kafka_nothing_total{topic=~"$topic",job="x"}[5m])) by (topic)'
    assert selected(expression) == {"kafka_nothing_total": {"topic"}}
    assert why_absent(expression) is None
    assert why_absent("sum(kafka_log_log_tiersize)") == "there is no tiered storage"


@pytest.mark.parametrize("query", ["", "?dialect=confluent", "?partitions=false"])
def test_no_series_occurs_twice_and_each_name_has_one_block(broker: Broker, query: str) -> None:
    text = get(broker, query)
    series = Counter(line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#"))
    assert [name for name, count in series.items() if count > 1] == []
    names = Counter(family.name for family in text_string_to_metric_families(text))
    assert [name for name, count in names.items() if count > 1] == []


def test_without_partitions_a_topic_has_one_series(broker: Broker) -> None:
    all_of_them, folded = Metrics(get(broker)), Metrics(get(broker, "?partitions=false"))
    assert not [given for _, given, _ in folded.samples if "partition" in given]
    for name in ("kafka_log_log_size", "kafka_topic_partition_current_offset", "kafka_consumergroup_lag"):
        assert folded(name, topic="orders") == all_of_them(name, topic="orders")
    late = "kafka_consumergroup_lag_seconds"
    assert folded(late, topic="orders") == pytest.approx(max(all_of_them.all(late, topic="orders")), abs=30)
    assert len(folded.all("kafka_log_log_size", topic="orders")) == 1
    assert "kafka_topic_partition_leader" not in folded.names


def test_an_unknown_dialect_is_refused_with_the_known_ones(broker: Broker) -> None:
    for query in ("?dialect=mars", "?partitions=some"):
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            get(broker, query)
        assert b"expected" in refused.value.read()


def test_the_setting_switches_series_of_partitions_while_the_broker_runs(broker: Broker) -> None:
    all_brokers = ConfigResource(ResourceType.BROKER, "")
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.incremental_alter_configs(
            {all_brokers: [AlterConfigOp("tidelog.metrics.partitions.enable", "false")]}
        )
        assert 'partition="' not in get(broker)
        assert 'partition="1"' in get(broker, "?partitions=true")
        admin.incremental_alter_configs(
            {all_brokers: [AlterConfigOp("tidelog.metrics.partitions.enable", "true")]}
        )
        assert 'partition="1"' in get(broker)
