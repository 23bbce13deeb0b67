"""Transactions on two brokers, step by step: what is committed, what is told, and who does what."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.coordinator.moving_offsets import READ, fetch_request, group_coordinator
from tests.coordinator.transaction.stage import DATA, DEFAULTS, Ids
from tests.coordinator.transaction.two_broker_stage import LOG, TransactionNode, TwoBrokerStage
from tests.coordinator.two_brokers import TwoBrokers
from tidelog.coordinator.group.coordinator import OFFSETS_TOPIC
from tidelog.coordinator.transaction.coordinator import Initialized
from tidelog.coordinator.transaction.markers import LocalMarkers
from tidelog.coordinator.transaction.state import EPOCH_BUMP, ProducerIdAndEpoch, State
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    KafkaError,
    NotCoordinator,
    TransactionAbortable,
    TransactionalIdNotFound,
)
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.offset_fetch import OffsetFetchResponse
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

PARTITION = (DATA, 0)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[TwoBrokerStage]:
    """The coordinator is on broker 0, the data on broker 1."""
    stage = TwoBrokerStage(tmp_path / "data", settings={"request.timeout.ms": 1000})
    stage.world.elect(LOG, 0)
    for index in range(3):
        stage.world.elect((DATA, index), 1)
    stage.world.advance(0.2)
    yield stage
    stage.close()


def producer_of(stage: TwoBrokerStage) -> ProducerIdAndEpoch:
    answer = stage.init()
    assert isinstance(answer.value, Initialized)
    return answer.value.producer


def described(stage: TwoBrokerStage) -> State:
    return stage.coordinator.describe("id").state


def test_a_transaction_spans_brokers(stage: TwoBrokerStage) -> None:
    producer = producer_of(stage)
    assert stage.add(producer).kind is None
    assert stage.produce(producer, b"one").kind is None
    assert stage.end(producer).kind is None
    assert stage.committed() == [b"one"]
    assert described(stage) is State.COMPLETE_COMMIT


def test_a_newer_producer_has_its_partitions_added_by_the_broker(stage: TwoBrokerStage) -> None:
    producer = producer_of(stage)
    assert stage.produce(producer, b"one", version=12).kind is None
    assert stage.known().partitions == {PARTITION}
    assert stage.end(producer, version=EPOCH_BUMP).kind is None
    assert stage.committed() == [b"one"]


def test_a_partition_that_was_not_added_is_refused_over_the_network(stage: TwoBrokerStage) -> None:
    producer = producer_of(stage)
    stage.add(producer, (1,))
    assert stage.produce(producer, b"one").kind is TransactionAbortable


def test_what_is_not_committed_is_not_told(stage: TwoBrokerStage) -> None:
    stage.world.stall(LOG, 0.5)
    answer = stage.init()
    assert not answer.is_there
    with pytest.raises(TransactionalIdNotFound):
        stage.coordinator.describe("id")
    assert list(stage.coordinator.transactions()) == []
    stage.world.advance(0.5)
    assert answer.kind is None
    assert described(stage) is State.EMPTY
    assert [name for name, _ in stage.coordinator.transactions()] == ["id"]


def test_partitions_that_are_not_committed_are_not_verified(stage: TwoBrokerStage) -> None:
    producer = producer_of(stage)
    stage.world.stall(LOG, 0.8)
    added = stage.add(producer)
    assert not added.is_there
    assert stage.known().partitions == {PARTITION}
    assert stage.produce(producer, b"one").kind is TransactionAbortable
    stage.world.advance(1.0)
    assert added.kind is None
    assert stage.produce(producer, b"one").kind is None


def test_markers_wait_until_the_decision_is_committed(stage: TwoBrokerStage) -> None:
    producer = producer_of(stage)
    stage.add(producer)
    stage.produce(producer, b"one")
    stage.world.stall(LOG, 3.0)
    ended = stage.end(producer)
    stage.world.advance(1.5)
    assert ended.kind is CoordinatorNotAvailable  # the time of the request is over
    assert described(stage) is State.ONGOING
    assert stage.committed() == []
    stage.world.advance(2.0)
    assert stage.committed() == [b"one"]


def test_a_lost_decision_has_no_markers(stage: TwoBrokerStage) -> None:
    producer = producer_of(stage)
    stage.add(producer)
    stage.produce(producer, b"one")
    stage.world.stall(LOG, 2.0)
    ended = stage.end(producer)
    stage.world.elect(LOG, 1)
    assert ended.kind is NotCoordinator
    stage.world.advance(2.0)
    assert described(stage) is State.ONGOING
    assert stage.committed() == []
    assert stage.end(producer, commit=False).kind is None
    assert stage.committed() == []
    assert stage.is_stable(0)


def test_the_next_coordinator_completes_a_committed_decision_after_its_commit(stage: TwoBrokerStage) -> None:
    producer = producer_of(stage)
    stage.add(producer)
    stage.produce(producer, b"one")
    stage.world.stall((DATA, 0), 1.0)  # the marker cannot be committed
    assert stage.end(producer).kind is None
    stage.world.elect(LOG, 1)
    assert stage.on[0].coordinator.completions == {}
    stage.world.advance(2.0)
    assert described(stage) is State.COMPLETE_COMMIT
    assert stage.committed() == [b"one"]


def test_a_loaded_decision_waits_for_the_replicas(stage: TwoBrokerStage) -> None:
    """The new leader has the record and no sign that the other replica has it."""
    producer = producer_of(stage)
    stage.add(producer)
    stage.produce(producer, b"one")
    stage.world.in_loop(
        lambda: stage.coordinator.end_transaction(
            "id", *producer, commit=True, client_version=0, done=lambda _: None, failed=lambda _: None
        )
    )
    stage.world.replicate(LOG)  # the follower has it now, and has not said so
    stage.world.partitions[LOG].is_stalled = True
    stage.world.elect(LOG, 1)
    stage.world.advance(0.3)
    assert stage.known().state is State.PREPARE_COMMIT
    with pytest.raises(CoordinatorLoadInProgress):
        described(stage)
    assert stage.committed() == []
    stage.world.partitions[LOG].is_stalled = False
    stage.world.advance(1.5)
    assert described(stage) is State.COMPLETE_COMMIT
    assert stage.committed() == [b"one"]


def test_a_new_leader_that_does_not_know_what_is_committed_verifies_nothing(stage: TwoBrokerStage) -> None:
    """The partition was added with success: to deny it would end the producer."""
    producer = producer_of(stage)
    copy = stage.world.nodes[1].log(LOG)
    before = copy.high_watermark
    assert stage.add(producer).kind is None
    stage.world.partitions[LOG].is_stalled = True
    copy.update_high_watermark(before)  # the answer that has the new one is lost
    stage.world.elect(LOG, 1)
    stage.world.advance(0.3)
    denied: list[dict[PartitionKey, KafkaError]] = []
    wanted = frozenset((PARTITION,))
    verify = partial(stage.coordinator.verify_partitions, "id", *producer, wanted, denied.append)
    stage.world.in_loop(verify)
    assert [type(error) for (error,) in map(dict.values, denied)] == [CoordinatorLoadInProgress]
    stage.world.partitions[LOG].is_stalled = False
    stage.world.advance(1.5)
    stage.world.in_loop(verify)
    assert denied[1:] == [{}]


# -- offsets of groups on the other broker -----------------------------------------------------------


class GroupStage:
    """Transactions of broker 0 with offsets of groups on broker 1."""

    def __init__(self, folder: Path) -> None:
        self.world = TwoBrokers(folder, 0, {OFFSETS_TOPIC: 1, READ: 1, LOG[0]: 1})
        self.on = [
            self.world.in_loop(lambda node=node: TransactionNode(node, Ids(), DEFAULTS))  # type: ignore[misc]
            for node in self.world.nodes
        ]
        self.groups = [group_coordinator(node) for node in self.world.nodes]
        for node, groups in zip(self.on, self.groups, strict=True):
            groups.offsets.check_transaction = node.verification.check_offsets
            node.local._groups = lambda groups=groups: groups.runtime  # type: ignore[misc]
            assert isinstance(node.local, LocalMarkers)
        for key in self.world.partitions:
            self.world.elect(key, 1)
        self.world.elect(LOG, 0)
        self.world.advance(0.2)

    def producer(self) -> ProducerIdAndEpoch:
        found: list[Initialized] = []
        self.world.in_loop(
            lambda: self.on[0].coordinator.init_producer_id("id", 60_000, None, found.append, self.failed)
        )
        self.world.advance(0.2)
        return found[0].producer

    @staticmethod
    def failed(error: KafkaError) -> None:
        raise error

    def commit(self, producer: ProducerIdAndEpoch, offset: int, version: int) -> int:
        partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=READ, partitions=[partition])
        request = TxnOffsetCommitRequest(
            transactional_id="id",
            group_id="g",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation_id=-1,
            topics=[topic],
        )
        answers: list[TxnOffsetCommitResponse] = []
        self.world.in_loop(
            lambda: self.groups[1].offsets.commit_in_transaction(request, version, answers.append)
        )
        self.world.advance(0.3)
        return answers[0].topics[0].partitions[0].error_code

    def end(self, producer: ProducerIdAndEpoch) -> None:
        self.world.in_loop(
            lambda: self.on[0].coordinator.end_transaction(
                "id",
                *producer,
                commit=True,
                client_version=EPOCH_BUMP,
                done=lambda _: None,
                failed=self.failed,
            )
        )

    def fetch(self) -> tuple[int, int]:
        """Offset and error code of the group."""
        answers: list[OffsetFetchResponse] = []
        for _ in self.groups[1].offsets.fetch(fetch_request("g", stable=True), 8, answers.append):
            pass
        (partition,) = answers[0].groups[0].topics[0].partitions
        return partition.committed_offset, partition.error_code

    def close(self) -> None:
        for node, groups in zip(self.on, self.groups, strict=True):
            self.world.in_loop(node.close)
            self.world.in_loop(groups.close)
        self.world.close()


@pytest.fixture
def group_stage(tmp_path: Path) -> Iterator[GroupStage]:
    stage = GroupStage(tmp_path / "groups")
    yield stage
    stage.close()


def test_offsets_of_a_group_elsewhere_are_part_of_the_transaction(group_stage: GroupStage) -> None:
    producer = group_stage.producer()
    assert group_stage.commit(producer, 5, version=5) == 0
    assert group_stage.fetch() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    group_stage.end(producer)
    group_stage.world.advance(0.5)
    assert group_stage.fetch() == (5, 0)


def test_offsets_stay_unstable_until_the_marker_is_committed(group_stage: GroupStage) -> None:
    producer = group_stage.producer()
    group_stage.commit(producer, 5, version=5)
    group_stage.world.stall((OFFSETS_TOPIC, 0), 1.0)
    group_stage.end(producer)
    group_stage.world.advance(0.5)
    assert group_stage.fetch() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    group_stage.world.advance(1.0)
    assert group_stage.fetch() == (5, 0)


def test_offsets_outside_of_the_transaction_are_refused(group_stage: GroupStage) -> None:
    producer = group_stage.producer()
    assert group_stage.commit(producer, 5, version=4) == ErrorCode.TRANSACTION_ABORTABLE
    assert group_stage.commit(producer, 5, version=3) == ErrorCode.INVALID_TXN_STATE


def test_a_coordinator_that_cannot_be_reached_makes_the_client_wait(group_stage: GroupStage) -> None:
    producer = group_stage.producer()
    group_stage.world.faults = 1.0
    assert group_stage.commit(producer, 5, version=5) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
