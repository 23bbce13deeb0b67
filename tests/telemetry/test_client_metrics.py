"""Who may ask and push when. The error codes are those of Kafka 4.3 with a collector for the same steps."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.telemetry.protobuf import attribute, field, gauge, metrics_data, point, total
from tidelog.clock import ManualClock
from tidelog.errors import ErrorCode, InvalidConfig, InvalidRequest, KafkaError
from tidelog.metadata.state import ClusterState
from tidelog.protocol.wire import ZERO_UUID
from tidelog.records.codecs import Codec, compress
from tidelog.server.config.client_metrics import ClientMetricsConfigs
from tidelog.server.telemetry import client_metrics, client_series
from tidelog.server.telemetry.client_metrics import ClientFacts, ClientInstance, ClientMetricsManager
from tidelog.server.telemetry.client_series import ClientSeries

FACTS = ClientFacts("app", "soft", "1.2", "10.0.0.1", "4711")
MEGABYTE = 1 << 20


class Metadata:
    snapshot = ClusterState("cluster")


class Fixture:
    """A manager with one subscription of 5 seconds for everyone."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metadata = Metadata()
        self.series = ClientSeries(self.clock)
        self.manager = ClientMetricsManager(self.clock, self.metadata, self.series, MEGABYTE)  # type: ignore[arg-type]
        self.configure("sub", {"metrics": "org.apache.kafka.producer.", "interval.ms": "5000"})

    def configure(self, name: str, configs: dict[str, str]) -> None:
        snapshot = self.metadata.snapshot
        self.metadata.snapshot = snapshot.with_entity_configs(f"client-metrics/{name}", configs)

    def client(self, facts: ClientFacts = FACTS) -> ClientInstance:
        return self.manager.subscribe(ZERO_UUID, facts)

    def ask(self, client: ClientInstance) -> int:
        try:
            self.manager.subscribe(client.instance_id, FACTS)
        except KafkaError as error:
            return error.code
        return 0

    def push(
        self,
        client: ClientInstance,
        metrics: bytes = b"",
        *,
        wrong: int = 0,
        codec: int = 0,
        terminating: bool = False,
    ) -> int:
        try:
            self.manager.push(
                client.instance_id,
                FACTS,
                client.subscription_id + wrong,
                codec,
                metrics,
                terminating=terminating,
            )
        except KafkaError as error:
            return error.code
        return 0

    def shown(self) -> Mapping[str, list[tuple[dict[str, str], float]]]:
        return {
            str(family.name): [(dict(labels), value) for labels, value in family.samples]
            for family in self.series.families()
        }


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_a_client_asks_and_pushes_once_per_interval(fixture: Fixture) -> None:
    client = fixture.client()
    assert fixture.ask(client) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert fixture.push(client) == 0
    assert fixture.push(client) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert fixture.push(client, wrong=1) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert fixture.ask(client) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    fixture.clock.advance(5.1)
    assert fixture.push(client) == 0
    fixture.clock.advance(5.1)
    assert fixture.ask(client) == 0
    assert fixture.push(client) == 0


@pytest.mark.parametrize(
    ("wrong", "codec", "size", "error", "asked"),
    [
        (1, 0, 0, ErrorCode.UNKNOWN_SUBSCRIPTION_ID, 0),
        (0, 9, 0, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 0),
        (0, -1, 0, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 0),
        (0, 0, MEGABYTE + 1, ErrorCode.TELEMETRY_TOO_LARGE, ErrorCode.THROTTLING_QUOTA_EXCEEDED),
    ],
)
def test_after_an_error_of_its_subscription_a_client_asks_at_once(
    fixture: Fixture, wrong: int, codec: int, size: int, error: int, asked: int
) -> None:
    client = fixture.client()
    assert fixture.push(client, bytes(size), wrong=wrong, codec=codec) == error
    assert fixture.ask(client) == asked
    assert fixture.push(client) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert fixture.ask(client) == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_the_last_push_comes_at_any_time_and_once(fixture: Fixture) -> None:
    client = fixture.client()
    assert fixture.push(client) == 0
    assert fixture.push(client, terminating=True) == 0
    assert fixture.push(client, terminating=True) == ErrorCode.INVALID_REQUEST
    assert fixture.push(client) == ErrorCode.INVALID_REQUEST
    other = fixture.client()
    assert fixture.push(other, wrong=1, terminating=True) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert fixture.push(other, terminating=True) == ErrorCode.INVALID_REQUEST


def test_a_push_without_an_id_or_of_an_unknown_client(fixture: Fixture) -> None:
    client = fixture.client()
    with pytest.raises(InvalidRequest):
        fixture.manager.push(ZERO_UUID, FACTS, client.subscription_id, 0, b"", terminating=False)
    client.instance_id = bytes(15) + b"x"
    assert fixture.push(client) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID


def test_a_changed_subscription_is_told_at_once(fixture: Fixture) -> None:
    client = fixture.client()
    assert fixture.push(client) == 0
    fixture.configure("sub", {"metrics": "a,b", "interval.ms": "5000"})
    assert fixture.push(client) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    changed = fixture.manager.subscribe(client.instance_id, FACTS)
    assert changed.metrics == {"a", "b"}
    assert fixture.push(changed) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    fixture.configure("sub", {})
    assert fixture.manager.subscribe(client.instance_id, FACTS).interval_ms == 300_000


def test_settings_of_other_entities_change_no_subscription(fixture: Fixture) -> None:
    client = fixture.client()
    snapshot = fixture.metadata.snapshot
    fixture.metadata.snapshot = snapshot.with_entity_configs("groups/g", {"consumer.session.timeout.ms": "1"})
    assert fixture.push(client) == 0


def test_subscriptions_that_match_are_joined(fixture: Fixture) -> None:
    fixture.configure("x1", {"metrics": "a, b", "interval.ms": "7000", "match": "client_id=ap."})
    fixture.configure(
        "x2", {"metrics": "b,c", "interval.ms": "400", "match": "client_id=app,client_software_name=s.*"}
    )
    fixture.configure("no", {"metrics": "z", "interval.ms": "100", "match": "client_id=ap"})
    fixture.configure("bad", {"metrics": "z", "interval.ms": "100", "match": "client_id=["})
    client = fixture.client()
    assert client.metrics == {"org.apache.kafka.producer.", "a", "b", "c"}
    assert client.interval_ms == 400
    fixture.configure("all", {"metrics": "*,q"})
    assert fixture.client().metrics == {"*"}
    long = ClientFacts("app" * 1000, "soft", "1.2", "10.0.0.1", "4711")
    fixture.configure("all", {"metrics": "long", "match": "client_id=(a|p)+"})
    assert "long" not in fixture.client(long).metrics


def test_numbers_are_shown_with_the_client_and_sums_add_up(fixture: Fixture) -> None:
    client = fixture.client()
    name = "org.apache.kafka.producer.record.send"
    pushed = metrics_data(
        gauge(f"{name}.rate", point(2.5, attribute("topic", 'a"b'), attribute("client_id", "forged"))),
        total(f"{name}.total", point(10)),
        gauge("org.apache.kafka.consumer.not.wanted", point(1)),
    )
    assert fixture.push(client, compress(Codec.ZSTD, pushed), codec=Codec.ZSTD) == 0
    fixture.clock.advance(6)
    assert fixture.push(client, pushed) == 0
    found = fixture.shown()
    assert set(found) == {"kafka_client_producer_record_send_rate", "kafka_client_producer_record_send_total"}
    ((labels, value),) = found["kafka_client_producer_record_send_rate"]
    assert (labels["client_id"], labels["topic"], value) == ("app", 'a"b', 2.5)
    ((_, value),) = found["kafka_client_producer_record_send_total"]
    assert value == 20


def test_numbers_of_a_client_that_ended_or_is_silent_disappear(fixture: Fixture) -> None:
    one, two = fixture.client(), fixture.client()
    pushed = metrics_data(gauge("org.apache.kafka.producer.x", point(1)))
    for client in (one, two):
        assert fixture.push(client, pushed) == 0
    assert len(fixture.series) == 2
    assert fixture.push(one, pushed, terminating=True) == 0
    assert len(fixture.series) == 1
    fixture.clock.advance(16)
    assert fixture.shown() == {}
    assert len(fixture.series) == 0


def test_clients_and_their_numbers_are_bounded(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "MAX_INSTANCES", 5)
    monkeypatch.setattr(client_series, "MAX_SERIES", 40)
    monkeypatch.setattr(client_series, "MAX_SERIES_OF_CLIENT", 10)
    names = [gauge(f"org.apache.kafka.producer.n{n}", point(n)) for n in range(25)]
    for _ in range(20):
        assert fixture.push(fixture.client(), metrics_data(*names)) == 0
        assert len(fixture.series) <= 40
        assert len(fixture.manager) <= 5
    assert fixture.series.dropped == 20 * 15


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_push_that_unpacks_to_too_much_or_not_at_all_is_refused(fixture: Fixture, codec: Codec) -> None:
    bomb = compress(codec, bytes(200 * MEGABYTE))[:MEGABYTE]
    assert fixture.push(fixture.client(), bomb, codec=codec) == ErrorCode.INVALID_RECORD
    # One that could be read: numbers, and a field that readers pass over.
    for padding, code in ((1000, 0), (MEGABYTE, ErrorCode.INVALID_RECORD)):
        padded = metrics_data(gauge("a.b", point(1.0))) + field(15, bytes(padding))
        assert fixture.push(fixture.client(), compress(codec, padded), codec=codec) == code
    assert fixture.push(fixture.client(), b"garbage", codec=codec) == ErrorCode.INVALID_RECORD
    assert len(fixture.series) == 0


@pytest.mark.parametrize(
    ("name", "configs", "error"),
    [
        ("s", {"interval.ms": "99"}, InvalidRequest),
        ("s", {"interval.ms": "3600001"}, InvalidRequest),
        ("s", {"interval.ms": "abc"}, InvalidConfig),
        ("s", {"match": "nonsense"}, InvalidConfig),
        ("s", {"match": "foo=bar"}, InvalidConfig),
        ("s", {"match": "client_id=["}, InvalidConfig),
        ("s", {"unknown": "x"}, InvalidRequest),
        ("", {"metrics": "*"}, InvalidRequest),
        ("s", {"metrics": "a b"}, None),
        ("s", {"match": "client_id=a,client_id=b"}, None),
        ("s", {"match": "client_instance_id=x,client_source_port=12"}, None),
        ("s", {"match": "", "metrics": ""}, None),
    ],
)
def test_settings_of_subscriptions_are_checked_as_in_kafka(
    name: str, configs: dict[str, str], error: type[KafkaError] | None
) -> None:
    if error is None:
        ClientMetricsConfigs().validate(name, configs)
    else:
        with pytest.raises(error):
            ClientMetricsConfigs().validate(name, configs)
