"""Who may commit offsets, what is refused, and what a commit leaves in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordinator.offsets_stage import ORDERS_ID, OffsetsStage
from tidelog.coordinator.group.records import CommittedOffset
from tidelog.coordinator.runtime import Done
from tidelog.errors import (
    ErrorCode,
    FencedInstanceId,
    IllegalGeneration,
    InvalidTxnState,
    KafkaError,
    RebalanceInProgress,
    StaleMemberEpoch,
)
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tidelog.protocol.wire import ZERO_UUID

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Partition = OffsetCommitRequest.OffsetCommitRequestPartition


@pytest.fixture
def stage(tmp_path: Path) -> OffsetsStage:
    return OffsetsStage(tmp_path / "data")


def at(index: int, offset: int = 1, metadata: str | None = "") -> Partition:
    return Partition(partition_index=index, committed_offset=offset, committed_metadata=metadata)


def log_end(stage: OffsetsStage) -> int:
    return stage.partition.leader_log().log_end_offset


def test_a_commit_is_what_is_fetched(stage: OffsetsStage) -> None:
    assert stage.commit(offset=42, metadata="here") == 0
    found = stage.offsets.committed("g", "orders", 0)
    assert found == CommittedOffset(42, -1, "here", stage.now, -1, ORDERS_ID)
    assert stage.fetch() == {("orders", 0): (42, 0)}


def test_a_simple_consumer_makes_its_group_by_committing(stage: OffsetsStage) -> None:
    assert stage.commit("new") == 0
    assert list(stage.shard.made) == ["new"]


def test_a_group_id_may_be_empty(stage: OffsetsStage) -> None:
    assert stage.commit("") == 0
    assert stage.fetch("") == {("orders", 0): (1, 0)}


@pytest.mark.parametrize(
    ("version", "error"), [(9, ErrorCode.GROUP_ID_NOT_FOUND), (8, ErrorCode.ILLEGAL_GENERATION)]
)
def test_a_generation_of_a_group_that_nobody_knows_is_refused(
    stage: OffsetsStage, version: int, error: ErrorCode
) -> None:
    assert stage.commit(generation=0, member="m", version=version) == error
    assert (stage.shard.made, log_end(stage)) == ({}, 0)


@pytest.mark.parametrize(
    "error", [IllegalGeneration, FencedInstanceId, StaleMemberEpoch, RebalanceInProgress]
)
def test_what_the_group_refuses_changes_nothing(stage: OffsetsStage, error: type[KafkaError]) -> None:
    stage.commit(offset=1)
    stage.shard.made["g"].refuses = error()
    assert stage.commit(offset=2) == error.code
    assert log_end(stage) == 1


def test_a_member_that_commits_was_heard_from(stage: OffsetsStage) -> None:
    stage.commit()
    assert stage.heard == []
    stage.shard.made["g"].member = "m"
    assert stage.commit(member="m", generation=3) == 0
    assert stage.commit(member="stranger", generation=3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.heard == [("g", "m")]


def test_a_partition_that_the_member_may_not_commit_refuses_the_whole_request(stage: OffsetsStage) -> None:
    def only_the_first(topic_id: bytes, partition: int) -> None:
        if partition > 0:
            raise StaleMemberEpoch

    stage.commit(offset=1)
    stage.shard.made["g"].check = only_the_first
    assert stage.commit(partition=0, offset=2) == 0
    answer = stage.answer(
        OffsetCommitRequest(group_id="g", topics=[Topic(name="orders", partitions=[at(0), at(1)])])
    )
    assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.STALE_MEMBER_EPOCH}
    assert stage.fetch() == {("orders", 0): (2, 0)}


def test_metadata_is_bounded_and_the_other_partitions_are_committed(stage: OffsetsStage) -> None:
    stage.values["offset.metadata.max.bytes"] = 3
    answer = stage.answer(
        OffsetCommitRequest(
            group_id="g", topics=[Topic(name="orders", partitions=[at(0, 5, "four"), at(1, 6, "äöü")])]
        )
    )
    codes = [each.error_code for each in answer.topics[0].partitions]
    assert codes == [ErrorCode.OFFSET_METADATA_TOO_LARGE, 0]
    assert stage.fetch() == {("orders", 1): (6, 0)}


def test_a_commit_that_is_refused_throughout_makes_no_group(stage: OffsetsStage) -> None:
    assert stage.commit(metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert (stage.shard.made, log_end(stage)) == ({}, 0)


def test_metadata_may_be_null(stage: OffsetsStage) -> None:
    assert stage.commit(metadata=None) == 0
    found = stage.offsets.committed("g", "orders", 0)
    assert found is not None
    assert found.metadata == ""


def test_what_does_not_exist_is_told_first_and_the_rest_is_committed(stage: OffsetsStage) -> None:
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            Topic(name="orders", partitions=[at(0), at(9)]),
            Topic(name="nope", partitions=[at(0)]),
            Topic(name="orders", partitions=[at(1)]),
        ],
    )
    told = [
        (topic.name, [(each.partition_index, each.error_code) for each in topic.partitions])
        for topic in stage.answer(request).topics
    ]
    assert told == [("orders", [(9, 3), (0, 0), (1, 0)]), ("nope", [(0, 3)])]
    assert stage.fetch() == {("orders", 0): (1, 0), ("orders", 1): (1, 0)}


def test_topics_are_named_by_id_from_version_10_on(stage: OffsetsStage) -> None:
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            Topic(topic_id=ORDERS_ID, partitions=[at(0, 5), at(9)]),
            Topic(topic_id=b"?" * 16, partitions=[at(0)]),
        ],
    )
    told = [
        (topic.topic_id, [(each.partition_index, each.error_code) for each in topic.partitions])
        for topic in stage.answer(request, 10).topics
    ]
    assert told == [(ORDERS_ID, [(9, 3), (0, 0)]), (b"?" * 16, [(0, ErrorCode.UNKNOWN_TOPIC_ID)])]
    assert stage.fetch() == {("orders", 0): (5, 0)}


def test_a_commit_of_nothing_is_answered_with_nothing(stage: OffsetsStage) -> None:
    assert stage.answer(OffsetCommitRequest(group_id="g")).topics == []
    assert stage.answer(OffsetCommitRequest(group_id="g", topics=[Topic(name="orders")])).topics == []


def test_a_retention_of_the_commit_is_kept_with_it(stage: OffsetsStage) -> None:
    stage.commit(retention_ms=1000, version=4)
    found = stage.offsets.committed("g", "orders", 0)
    assert found is not None
    assert found.expire_timestamp == stage.now + 1000
    assert found.topic_id == ZERO_UUID


def test_a_coordinator_that_leads_nothing_says_so(stage: OffsetsStage) -> None:
    stage.runtime.resigned(0)
    assert stage.commit() == ErrorCode.NOT_COORDINATOR
    assert stage.commit_in_transaction() == ErrorCode.NOT_COORDINATOR
    assert stage.delete().error_code == ErrorCode.NOT_COORDINATOR


def test_while_it_loads_a_coordinator_says_so(stage: OffsetsStage) -> None:
    stage.commit()
    stage.runtime.resigned(0)
    stage.runtime.elected(stage.partition)
    assert stage.commit() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert stage.commit_in_transaction(version=2) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert stage.commit_in_transaction(version=1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    stage.world.advance(1.0)
    assert stage.commit() == 0


# -- in a transaction -------------------------------------------------------------------------------------


def test_an_offset_of_a_transaction_holds_when_that_is_committed(stage: OffsetsStage) -> None:
    stage.commit(offset=1)
    assert stage.commit_in_transaction(offset=5) == 0
    assert stage.fetch() == {("orders", 0): (1, 0)}
    stage.end(commit=True)
    assert stage.fetch() == {("orders", 0): (5, 0)}


def test_an_offset_of_an_aborted_transaction_never_was(stage: OffsetsStage) -> None:
    stage.commit(offset=1)
    stage.commit_in_transaction(offset=5)
    stage.end(commit=False)
    assert stage.fetch(stable=True) == {("orders", 0): (1, 0)}
    assert not stage.offsets.has_open_transactions("g")


def test_a_newer_commit_outlives_a_transaction_that_ends_later(stage: OffsetsStage) -> None:
    stage.commit_in_transaction(offset=5)
    stage.commit(offset=3)
    assert stage.offsets.is_pending("g", ("orders", 0))
    stage.end(commit=True)
    assert stage.fetch() == {("orders", 0): (3, 0)}


def test_of_two_transactions_the_newer_record_holds_in_whatever_order_they_end(stage: OffsetsStage) -> None:
    stage.commit_in_transaction(7, offset=5)
    stage.commit_in_transaction(8, offset=6)
    stage.end(8, commit=True)
    stage.end(7, commit=True)
    assert stage.fetch() == {("orders", 0): (6, 0)}


def test_a_transaction_that_commits_again_is_newer_than_what_came_between(stage: OffsetsStage) -> None:
    stage.commit_in_transaction(offset=5)
    stage.commit(offset=3)
    stage.commit_in_transaction(offset=9)
    stage.end(commit=True)
    assert stage.fetch() == {("orders", 0): (9, 0)}


def test_the_transaction_is_checked_before_anything_is_written(stage: OffsetsStage) -> None:
    asked: list[tuple[str, int, int, int, int]] = []
    outcome: list[KafkaError | None] = [InvalidTxnState()]

    def check(
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partition: int,
        *,
        version: int,
        done: Done,
    ) -> None:
        asked.append((transactional_id, producer_id, producer_epoch, partition, version))
        done(outcome[0])

    stage.service.check_transaction = check
    assert stage.commit_in_transaction(version=5) == ErrorCode.INVALID_TXN_STATE
    assert asked == [("tx", 7, 0, 0, 5)]
    assert log_end(stage) == 0
    outcome[0] = None
    assert stage.commit_in_transaction() == 0
    assert log_end(stage) == 1


def test_members_are_validated_in_transactions_too(stage: OffsetsStage) -> None:
    assert stage.commit_in_transaction(generation=5, member="m") == ErrorCode.ILLEGAL_GENERATION
    stage.commit()
    stage.shard.made["g"].refuses = FencedInstanceId()
    assert stage.commit_in_transaction(generation=5, member="m") == ErrorCode.FENCED_INSTANCE_ID
    stage.shard.made["g"].refuses = StaleMemberEpoch()
    assert stage.commit_in_transaction(generation=5, member="m") == ErrorCode.ILLEGAL_GENERATION
    assert log_end(stage) == 1


def test_a_group_of_a_transaction_needs_an_id(stage: OffsetsStage) -> None:
    assert stage.commit_in_transaction(group_id="") == ErrorCode.INVALID_GROUP_ID


def test_unknown_partitions_of_a_transaction_are_told(stage: OffsetsStage) -> None:
    assert stage.commit_in_transaction(topic="nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert stage.commit_in_transaction(partition=5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answers: list[TxnOffsetCommitResponse] = []
    stage.service.commit_in_transaction(TxnOffsetCommitRequest(group_id="g"), 3, answers.append)
    assert answers[0].topics == []


def test_beside_kafka_3_9_a_commit_has_its_version(stage: OffsetsStage) -> None:
    stage.service._settings.group_version = 0
    assert stage.commit(offset=5) == 0
    (value,) = stage.offsets.of_group("g").values()
    assert value[:2] == b"\0\3"
    assert stage.fetch() == {("orders", 0): (5, 0)}
