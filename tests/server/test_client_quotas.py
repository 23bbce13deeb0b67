"""Client quotas by real requests: who is throttled, for how long, and that others are not."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.quota_broker import (
    QuotaBroker,
    fetch,
    fetched_bytes,
    produce,
    produce_request,
    quota_broker,
    until_throttled,
)
from tests.support.raw import ConnectionClosed, RawConnection
from tests.support.wait import eventually
from tidelog.clients.admin.users import QuotaEntity
from tidelog.errors import ErrorCode
from tidelog.network.request import Part
from tidelog.protocol.messages.api_versions import ApiVersionsRequest
from tidelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.server.apis.fetch_answer import FetchAnswerWriter

APP: QuotaEntity = (("client-id", "app"),)
LIMIT = 20_000.0


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[QuotaBroker]:
    with quota_broker(monkeypatch) as made:
        yield made


def seconds_until_next_answer(connection: RawConnection, began: float) -> float:
    """How long after `began` the next request is answered.

    A throttle time starts when the broker answers, so `began` is before the throttled request: an answer
    that this thread sees late makes the time longer, never shorter.
    """
    connection.call(ApiVersionsRequest(), 0)
    return time.monotonic() - began


# Produce


def test_a_producer_over_its_quota_is_answered_at_once_and_muted_for_the_throttle_time(
    broker: QuotaBroker,
) -> None:
    broker.set_quota(APP, producer_byte_rate=LIMIT)
    app = broker.connect()
    assert produce(app, 10_000) == 0
    began = time.monotonic()
    throttle_ms = produce(app, 50_000)
    # 60 kB in one window where 20 kB are allowed: two more seconds, less the time between the two.
    assert 1000 <= throttle_ms < 2200
    assert time.monotonic() - began < throttle_ms / 1000
    assert broker.managers.produce.throttled == 1
    assert seconds_until_next_answer(app, began) * 1000 >= throttle_ms - 1
    assert broker.managers.produce.throttled == 0


def test_a_producer_over_its_quota_whose_records_the_broker_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    by_broker = {"log.message.timestamp.type": "LogAppendTime"}
    with quota_broker(monkeypatch, by_broker) as broker:
        broker.set_quota(APP, producer_byte_rate=LIMIT)
        assert produce(broker.connect(), 30_000) > 0


@pytest.mark.parametrize("version", [3, 8, 9])
def test_every_version_has_the_throttle_time(broker: QuotaBroker, version: int) -> None:
    broker.set_quota(APP, producer_byte_rate=LIMIT)
    assert produce(broker.connect(), 30_000, version) > 0


def test_a_producer_without_acknowledgements_is_muted(broker: QuotaBroker) -> None:
    broker.set_quota(APP, producer_byte_rate=LIMIT)
    app = broker.connect()
    began = time.monotonic()
    app.send(produce_request(40_000, acks=0), 9)
    assert seconds_until_next_answer(app, began) > 0.5


def test_pipelined_requests_of_a_throttled_client_wait(broker: QuotaBroker) -> None:
    broker.set_quota(APP, producer_byte_rate=LIMIT)
    app = broker.connect()
    request = produce_request(12_000)
    began = time.monotonic()
    for _ in range(4):
        app.send(request, 9)
    for _ in range(4):
        app.receive(type(request), 9)
    # The third is the first over the quota; the fourth waits for it.
    assert time.monotonic() - began > 0.5


def test_a_client_that_goes_while_it_is_throttled_is_forgotten(broker: QuotaBroker) -> None:
    broker.set_quota(APP, producer_byte_rate=LIMIT)
    app = broker.connect()
    assert produce(app, 200_000) > 5000
    assert broker.managers.produce.throttled == 1
    app.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it resets
    app.close()
    eventually(lambda: broker.managers.produce.throttled == 0, "the channel is closed", 5.0)


def test_a_broker_stops_while_clients_are_throttled(broker: QuotaBroker) -> None:
    broker.set_quota(APP, producer_byte_rate=LIMIT)
    assert produce(broker.connect(), 400_000) > 10_000
    began = time.monotonic()
    broker.broker.stop()
    assert time.monotonic() - began < 10.0


def test_other_clients_and_small_produces_within_the_quota_are_not_slowed(broker: QuotaBroker) -> None:
    broker.set_quota(APP, producer_byte_rate=LIMIT)
    app, other = broker.connect(), broker.connect(client_id="other")
    until_throttled(app, 10_000)
    assert [produce(other, 10_000) for _ in range(100)] == [0] * 100
    assert not broker.managers.request.enabled


def test_a_changed_quota_counts_at_once(broker: QuotaBroker) -> None:
    app = broker.connect()
    assert produce(app, 100_000) == 0
    broker.set_quota(APP, producer_byte_rate=LIMIT)
    until_throttled(app, 10_000)
    broker.set_quota(APP, producer_byte_rate=100_000_000.0)
    assert [produce(app, 10_000) for _ in range(20)] == [0] * 20
    broker.set_quota(APP, producer_byte_rate=None)
    assert not broker.managers.is_active
    assert produce(app, 100_000) == 0


def test_quotas_survive_a_restart(broker: QuotaBroker) -> None:
    broker.set_quota(APP, producer_byte_rate=LIMIT)
    broker.broker.restart()
    broker.bootstrap = broker.broker.bootstrap_servers
    assert produce(broker.connect(), 40_000) > 0


LEVELS: list[QuotaEntity] = [
    (("user", "alice"), ("client-id", "app")),
    (("user", "alice"), ("client-id", None)),
    (("user", "alice"),),
    (("user", None), ("client-id", "app")),
    (("user", None), ("client-id", None)),
    (("user", None),),
    (("client-id", "app"),),
    (("client-id", None),),
]


def test_the_most_particular_quota_of_a_client_counts(broker: QuotaBroker) -> None:
    """Each level is set after the less particular ones, with a limit of its own."""
    alice = broker.connect("alice")
    tags = {0: ("alice", "app"), 1: ("alice", "app"), 2: ("alice", ""), 3: ("alice", "app")}
    tags |= {4: ("alice", "app"), 5: ("alice", ""), 6: ("", "app"), 7: ("", "app")}
    for level in reversed(range(len(LEVELS))):
        limit = 1_000_000.0 * (level + 1)
        broker.set_quota(LEVELS[level], producer_byte_rate=limit)
        assert produce(alice, 1_000) == 0
        sensors = broker.managers.produce.sensors("User:alice", "app")
        assert (sensors.limit, tuple(sensors.tags)) == (limit, tags[level])
        assert ("kafka_server_produce_byte_rate", *tags[level]) in broker.metrics()


def test_users_have_quotas_of_their_own_with_a_default(broker: QuotaBroker) -> None:
    broker.set_quota((("user", None),), producer_byte_rate=LIMIT)
    broker.set_quota((("user", "bob c"),), producer_byte_rate=10_000_000.0)
    alice, bob, anonymous = broker.connect("alice"), broker.connect("bob c"), broker.connect()
    assert produce(bob, 100_000) == 0
    assert produce(alice, 100_000) > 0
    assert produce(anonymous, 100_000) > 0
    # All clients of a user share its quota, whatever their connection or client id.
    assert produce(broker.connect("alice", "other"), 1_000) > 0


# Fetch


def test_a_consumer_over_its_quota_gets_no_records_and_the_throttle_time(broker: QuotaBroker) -> None:
    assert produce(broker.connect(client_id="producer"), 18_000) == 0
    broker.set_quota(APP, consumer_byte_rate=LIMIT)
    app = broker.connect()
    first = fetch(app)
    assert (first.throttle_time_ms, fetched_bytes(first) > 15_000) == (0, True)
    second = fetch(app)
    assert second.throttle_time_ms > 0
    assert (second.responses, second.error_code) == ([], ErrorCode.NONE)
    # The records that were not sent do not count.
    third = fetch(app)
    assert fetched_bytes(third) > 15_000


def test_the_largest_answer_fits_into_the_quota_of_an_idle_consumer(broker: QuotaBroker) -> None:
    producer = broker.connect(client_id="producer")
    for _ in range(10):
        produce(producer, 5_000)
    broker.set_quota(APP, consumer_byte_rate=LIMIT)
    app = broker.connect()
    # As in Kafka, the limit is for the records alone: with its other fields the answer may be larger.
    first = fetch(app)
    answer = fetch(app) if first.throttle_time_ms else first
    assert first.throttle_time_ms < 100
    assert 15_000 < fetched_bytes(answer) <= LIMIT


def test_an_answer_within_the_quota_is_encoded_once(
    broker: QuotaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker.connect(client_id="filler"), 100)
    broker.set_quota(APP, consumer_byte_rate=LIMIT)
    encoded: list[list[Part] | bytes] = []

    def counted(name: str) -> None:
        original = getattr(FetchAnswerWriter, name)

        def encode(writer: FetchAnswerWriter, *args: Any) -> list[Part] | bytes | None:
            answer: list[Part] | bytes | None = original(writer, *args)
            if answer is not None:
                encoded.append(answer)
            return answer

        monkeypatch.setattr(FetchAnswerWriter, name, encode)

    counted("write")
    counted("frame_of_one")
    assert fetched_bytes(fetch(broker.connect())) > 100
    assert len(encoded) == 1


def test_a_throttled_session_goes_on_where_it_was(broker: QuotaBroker) -> None:
    produce(broker.connect(client_id="producer"), 18_000)
    broker.set_quota(APP, consumer_byte_rate=LIMIT)
    app = broker.connect()
    full = fetch(app, epoch=0)
    assert full.session_id
    assert fetched_bytes(full) > 12_000
    throttled = fetch(app, session_id=full.session_id, epoch=1)
    assert throttled.throttle_time_ms > 0
    assert (throttled.session_id, throttled.responses) == (full.session_id, [])
    again = fetch(app, session_id=full.session_id, epoch=2)
    assert fetched_bytes(again) > 12_000
    refused = fetch(app, epoch=0)
    assert (refused.throttle_time_ms > 0, refused.session_id, refused.responses) == (True, 0, [])


def test_followers_are_exempt(broker: QuotaBroker) -> None:
    produce(broker.connect(client_id="producer"), 30_000)
    broker.set_quota((("client-id", None),), consumer_byte_rate=LIMIT, request_percentage=0.001)
    app = broker.connect()
    assert [fetch(app, replica_id=5).throttle_time_ms for _ in range(5)] == [0] * 5


# Request time


def test_a_client_over_its_share_of_time_is_throttled_for_a_window_at_most(broker: QuotaBroker) -> None:
    broker.set_quota(APP, request_percentage=0.01)
    app, other = broker.connect(), broker.connect(client_id="other")

    def metadata(connection: RawConnection) -> int:
        return connection.ask(MetadataRequest(topics=None), MetadataResponse, 8).throttle_time_ms

    def throttled() -> tuple[float, int] | None:
        began = time.monotonic()
        throttle_ms = metadata(app)
        return (began, throttle_ms) if throttle_ms else None

    began, throttle_ms = eventually(throttled, "a throttle time")
    assert 0 < throttle_ms <= 1000
    assert seconds_until_next_answer(app, began) * 1000 >= throttle_ms - 1
    assert metadata(other) == 0
    assert broker.metrics()["kafka_server_request_request_time", "", "app"] > 0.01
    assert produce(app, 10) > 0
    assert fetch(app).throttle_time_ms > 0


def test_time_of_requests_that_wait_does_not_count(broker: QuotaBroker) -> None:
    broker.set_quota(APP, request_percentage=1000.0)
    app = broker.connect()
    assert fetch(app, max_wait_ms=1500).throttle_time_ms == 0
    # The wait would be 75 percent of two windows.
    assert 0 < broker.metrics()["kafka_server_request_request_time", "", "app"] < 40


# Controller mutations


def create(connection: RawConnection, name: str, partitions: int, version: int) -> CreateTopicsResponse:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return connection.ask(
        CreateTopicsRequest(topics=[topic], timeout_ms=10_000), CreateTopicsResponse, version
    )


def test_new_versions_of_topic_changes_are_refused_over_the_quota(broker: QuotaBroker) -> None:
    app = broker.connect()
    broker.set_quota(APP, controller_mutation_rate=1.0)
    # The bucket of two windows has two tokens: a change may go below zero once.
    allowed = create(app, "a", 3, 6)
    assert (allowed.topics[0].error_code, allowed.throttle_time_ms) == (0, 0)
    refused = create(app, "b", 1, 6)
    assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert 0 < refused.throttle_time_ms <= 1000
    assert "b" not in broker.admin.list_topics()
    after = create(app, "b", 3, 6)
    assert (after.topics[0].error_code, after.throttle_time_ms) == (0, 0)
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=5, assignments=None)],
        timeout_ms=10_000,
    )
    grown = app.ask(grow, CreatePartitionsResponse, 3)
    assert grown.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert grown.throttle_time_ms > 0
    deleted = app.ask(DeleteTopicsRequest(topic_names=["a"], timeout_ms=10_000), DeleteTopicsResponse, 5)
    assert deleted.responses[0].error_code == 0
    metrics = broker.metrics()
    assert metrics["kafka_server_controllermutation_tokens", "", "app"] < 1
    assert metrics["kafka_server_controllermutation_mutation_rate", "", "app"] > 0


def test_old_versions_of_topic_changes_are_carried_out_and_throttled(broker: QuotaBroker) -> None:
    app = broker.connect()
    broker.set_quota(APP, controller_mutation_rate=2.0)
    began = time.monotonic()
    answer = create(app, "a", 5, 5)
    assert answer.topics[0].error_code == 0
    assert 0 < answer.throttle_time_ms <= 500
    assert seconds_until_next_answer(app, began) * 1000 >= answer.throttle_time_ms - 1
    deleted = app.ask(DeleteTopicsRequest(topic_names=["a"], timeout_ms=10_000), DeleteTopicsResponse, 4)
    assert deleted.responses[0].error_code == 0
    assert deleted.throttle_time_ms > 500


def test_checks_of_topics_take_no_tokens(broker: QuotaBroker) -> None:
    app = broker.connect()
    broker.set_quota(APP, controller_mutation_rate=1.0)
    topic = CreateTopicsRequest.CreatableTopic(name="a", num_partitions=100, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=True)
    for _ in range(3):
        answer = app.ask(request, CreateTopicsResponse, 6)
        assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 0)

def ask_for_topics(connection: RawConnection, *names: str) -> MetadataResponse:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return connection.ask(
        MetadataRequest(topics=topics, allow_auto_topic_creation=True), MetadataResponse, 9
    )


def test_topics_that_are_created_automatically_take_tokens_and_are_never_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with quota_broker(monkeypatch, {"num.partitions": 5}) as broker:
        app = broker.connect()
        broker.set_quota(APP, controller_mutation_rate=1.0)
        # Kafka 3.9 creates all of them, and neither throttles nor refuses the request.
        began = time.monotonic()
        assert ask_for_topics(app, "a", "b").throttle_time_ms == 0
        assert seconds_until_next_answer(app, began) < 7.0, "eight tokens below zero would be eight seconds"
        assert ask_for_topics(app, "c").throttle_time_ms == 0
        eventually(lambda: {"a", "b", "c"} <= set(broker.admin.list_topics()), "the topics")
        # 15 partitions of a bucket with two tokens
        refused = create(app, "d", 1, 6)
        assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert refused.throttle_time_ms > 10_000


def test_a_topic_that_cannot_be_created_automatically_takes_no_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with quota_broker(monkeypatch, {"num.partitions": 5, "default.replication.factor": 3}) as broker:
        app = broker.connect()
        broker.set_quota(APP, controller_mutation_rate=1.0)
        ask_for_topics(app, "a")
        key = ("kafka_server_controllermutation_tokens", "", "app")
        eventually(lambda: broker.metrics()[key] > 1, "tokens that are given back")
        assert create(app, "b", 1, 6).topics[0].error_code == 0


def test_a_client_that_has_the_topic_of_offsets_created_takes_its_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with quota_broker(monkeypatch, {"offsets.topic.num.partitions": 20}) as broker:
        app = broker.connect()
        broker.set_quota(APP, controller_mutation_rate=1.0)
        found = app.ask(FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse, 4)
        assert (found.coordinators[0].error_code, found.throttle_time_ms) == (0, 0)
        assert create(app, "a", 1, 6).topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


# Connections


def test_an_address_that_opens_too_many_connections_has_them_closed_later(broker: QuotaBroker) -> None:
    broker.set_quota((("ip", "127.0.0.1"),), connection_creation_rate=2.0)

    def answers() -> bool:
        try:
            raw = RawConnection(broker.bootstrap)
            raw.call(ApiVersionsRequest(), 0)
        except (OSError, ConnectionClosed):
            return False
        raw.close()
        return True

    eventually(lambda: not answers(), "a connection is closed")
    broker.set_quota((("ip", "127.0.0.1"),), connection_creation_rate=None)
    eventually(answers, "a connection is served again")
