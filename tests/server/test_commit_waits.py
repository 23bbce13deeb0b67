"""Small produces with acks=all to a partition of several replicas, over real connections.

The test is the controller and the follower: it sends LeaderAndIsr requests and fetches.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.controlled import TOPIC_ID, leader_and_isr
from tests.server.cluster_broker import BROKERS, CLIENTS, ClusterBroker
from tests.storage.helpers import batch
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tidelog.clients.connection import answer_body, request_frame
from tidelog.cluster.partition import Partition
from tidelog.errors import ErrorCode, KafkaStorageError
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.storage.log_appender import TurnOutcome

FOLLOWER = 1
VERSION = 9


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ClusterBroker]:
    with ClusterBroker(tmp_path) as broker:
        for index in range(2):
            lead(broker, index)
        yield broker


def lead(broker: ClusterBroker, index: int = 0, leader_epoch: int = 0, leader: int = 0) -> None:
    request = leader_and_isr("t", index, replicas=(0, FOLLOWER), leader_epoch=leader_epoch, leader=leader)
    request.broker_epoch = -1
    answer = broker.connect(BROKERS).ask(request, LeaderAndIsrResponse, 7)
    assert answer.topics[0].partition_errors[0].error_code == 0


def body(
    index: int = 0, *, acks: int = -1, timeout_ms: int = 10_000, data: bytearray | None = None
) -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(index=index, records=bytes(data or batch()))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic])


def send(connection: RawConnection, correlation_id: int, request: ProduceRequest) -> None:
    connection.send_bytes(request_frame(request, VERSION, correlation_id, "producer"))


def received(connection: RawConnection) -> tuple[int, int, int]:
    """The correlation id, the error code and the base offset of the next response."""
    frame = connection.receive_frame()
    correlation_id = int.from_bytes(frame[:4], "big")
    answer = ProduceResponse.decode(answer_body(ProduceRequest, VERSION, frame), VERSION)
    (partition,) = answer.responses[0].partition_responses
    return correlation_id, partition.error_code, partition.base_offset


def is_silent(connection: RawConnection) -> bool:
    """Whether no response has come."""
    return not select.select([connection.socket], [], [], 0.02)[0]


def follow(broker: ClusterBroker, offset: int, index: int = 0) -> None:
    """A fetch of the follower: it has everything below `offset`."""
    partition = FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchRequest.FetchTopic(topic_id=TOPIC_ID, partitions=[partition])
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[topic])
    request.replica_state = FetchRequest.ReplicaState(replica_id=FOLLOWER, replica_epoch=5)
    answer = broker.connect(BROKERS).ask(request, FetchResponse, 17)
    assert answer.responses[0].partitions[0].error_code == 0


def until(broker: ClusterBroker, condition: Callable[[], bool]) -> None:
    eventually(lambda: broker.on_loop(condition), "the state that the test waits for")


def end(broker: ClusterBroker, index: int = 0) -> int:
    log = broker.replicas.topics["t"].partitions[index].log
    assert log is not None
    return log.log_end_offset


def waiting(broker: ClusterBroker) -> int:
    return broker.replicas.produce_purgatory.delayed


def test_a_produce_is_answered_when_the_follower_has_it(broker: ClusterBroker) -> None:
    producer = broker.connect(CLIENTS)
    send(producer, 1, body())
    until(broker, lambda: waiting(broker) == 1)
    assert is_silent(producer)
    follow(broker, 1)
    assert received(producer) == (1, 0, 0)
    assert broker.on_loop(lambda: waiting(broker)) == 0


def test_produces_of_a_connection_wait_together_and_keep_their_order(broker: ClusterBroker) -> None:
    producer = broker.connect(CLIENTS)
    for number in range(3):
        send(producer, number, body(0))
    send(producer, 3, body(1))
    send(producer, 4, body(0, acks=1))
    until(broker, lambda: (end(broker, 0), end(broker, 1)) == (4, 1))
    follow(broker, 1, index=1)
    assert is_silent(producer), "earlier responses of the connection wait"
    follow(broker, 2)
    assert [received(producer) for _ in range(2)] == [(0, 0, 0), (1, 0, 1)]
    assert is_silent(producer)
    follow(broker, 4)
    assert [received(producer) for _ in range(3)] == [(2, 0, 2), (3, 0, 0), (4, 0, 3)]


def test_other_requests_of_the_connection_are_answered_behind(broker: ClusterBroker) -> None:
    producer = broker.connect(CLIENTS)
    send(producer, 1, body())
    large = batch(value=bytes(100_000))
    send(producer, 2, body(acks=1, data=large))
    until(broker, lambda: end(broker) == 2)
    assert is_silent(producer)
    follow(broker, 1)
    assert [received(producer) for _ in range(2)] == [(1, 0, 0), (2, 0, 1)]


def test_a_batch_that_is_too_large_to_copy_waits_too(broker: ClusterBroker) -> None:
    producer = broker.connect(CLIENTS)
    send(producer, 1, body(data=batch(value=bytes(10_000))))
    until(broker, lambda: waiting(broker) == 1)
    follow(broker, 1)
    assert received(producer) == (1, 0, 0)


def test_a_wait_ends_with_its_own_time_out(broker: ClusterBroker) -> None:
    producer, patient = broker.connect(CLIENTS), broker.connect(CLIENTS)
    send(patient, 1, body())
    until(broker, lambda: end(broker) == 1)
    send(producer, 2, body(timeout_ms=50))
    send(producer, 3, body(timeout_ms=50))
    until(broker, lambda: end(broker) == 3)
    began = time.monotonic()
    assert [received(producer) for _ in range(2)] == [
        (2, ErrorCode.REQUEST_TIMED_OUT, -1),
        (3, ErrorCode.REQUEST_TIMED_OUT, -1),
    ]
    assert time.monotonic() - began < 5
    assert is_silent(patient)
    follow(broker, 1)
    assert received(patient) == (1, 0, 0)


def test_a_leader_that_is_replaced_answers_what_waits(broker: ClusterBroker) -> None:
    producer = broker.connect(CLIENTS)
    send(producer, 1, body())
    until(broker, lambda: waiting(broker) == 1)
    lead(broker, leader_epoch=1, leader=FOLLOWER)
    assert received(producer)[:2] == (1, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_produce_does_not_wait_in_a_log_folder_that_failed_in_its_turn(
    broker: ClusterBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_turn = Partition.write_turn

    def failing(partition: Partition, now_ms: int) -> list[TurnOutcome]:
        if partition.index == 0:
            return write_turn(partition, now_ms)
        broker.replicas.partitions_offline([("t", 0), ("t", 1)])
        raise KafkaStorageError("the disk failed")

    monkeypatch.setattr(Partition, "write_turn", failing)
    producer = broker.connect(CLIENTS)
    frames = [request_frame(body(index, timeout_ms=60_000), VERSION, index, "producer") for index in range(2)]
    producer.send_bytes(b"".join(frames))
    errors = [received(producer)[:2] for _ in range(2)]
    assert errors == [(0, ErrorCode.KAFKA_STORAGE_ERROR), (1, ErrorCode.KAFKA_STORAGE_ERROR)]


def test_a_duplicate_is_answered_when_the_original_is_committed(broker: ClusterBroker) -> None:
    producer = broker.connect(CLIENTS)
    for number in range(2):
        send(producer, number, body(data=batch(producer=(7, 0, 0))))
    until(broker, lambda: end(broker) == 1)
    assert is_silent(producer)
    follow(broker, 1)
    assert [received(producer) for _ in range(2)] == [(0, 0, 0), (1, 0, 0)]


def test_a_refused_batch_is_answered_in_its_turn(broker: ClusterBroker) -> None:
    producer = broker.connect(CLIENTS)
    send(producer, 1, body(data=batch(producer=(7, 0, 0))))
    send(producer, 2, body(data=batch(producer=(7, 0, 5))))
    until(broker, lambda: end(broker) == 1)
    follow(broker, 1)
    assert received(producer) == (1, 0, 0)
    assert received(producer)[:2] == (2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_too_few_replicas_in_sync_refuse_the_batch(broker: ClusterBroker) -> None:
    def shrink() -> None:
        partition = broker.replicas.topics["t"].partitions[0]
        partition.followers.commit_isr([0])
        assert partition.log is not None
        partition.log.config.min_insync_replicas = 2

    broker.on_loop(shrink)
    producer = broker.connect(CLIENTS)
    send(producer, 1, body())
    assert received(producer) == (1, ErrorCode.NOT_ENOUGH_REPLICAS, -1)


def test_a_connection_with_many_waits_is_read_no_further(broker: ClusterBroker) -> None:
    producer = broker.connect(CLIENTS)
    for number in range(500):
        send(producer, number, body())
    until(broker, lambda: broker.services.replicas.produce_purgatory.delayed == 2)
    assert is_silent(producer)
    assert 64 < broker.on_loop(lambda: end(broker)) < 300, "the last one mutes the connection"
    while (so_far := broker.on_loop(lambda: end(broker))) < 500:
        follow(broker, so_far)
        until(broker, partial(lambda before: end(broker) > before, so_far))
    follow(broker, 500)
    assert [received(producer)[0] for _ in range(500)] == list(range(500))


def test_a_connection_that_closes_leaves_nothing_behind(broker: ClusterBroker) -> None:
    producer = broker.connect(CLIENTS)
    send(producer, 1, body())
    until(broker, lambda: waiting(broker) == 1)
    producer.close()
    follow(broker, 1)
    until(broker, lambda: waiting(broker) == 0)
    again = broker.connect(CLIENTS)
    send(again, 1, body())
    until(broker, lambda: end(broker) == 2)
    follow(broker, 2)
    assert received(again) == (1, 0, 1)


def test_bytes_for_followers_are_counted_apart(broker: ClusterBroker) -> None:
    producer = broker.connect(CLIENTS)
    send(producer, 1, body(acks=1))
    assert received(producer) == (1, 0, 0)
    follow(broker, 0)
    metrics = broker.replicas.topic_metrics
    assert metrics.replication_bytes_out.count == len(batch())
    assert metrics.all.bytes_out.count == 0
    assert metrics.all.fetches.count == 1
