"""How offsets go: by request, with their topic, with time; and what remains of their groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.coordinator.offsets_stage import OffsetsStage, same
from tidelog.coordinator.runtime import NewRecord, in_parts
from tidelog.errors import ErrorCode, GroupIdNotFound, NonEmptyGroup
from tidelog.records.batch import Record, build_batch

MINUTES = 60.0


@pytest.fixture
def stage(tmp_path: Path) -> OffsetsStage:
    stage = OffsetsStage(tmp_path / "data")
    stage.values["offsets.retention.minutes"] = 10
    stage.values["offsets.retention.check.interval.ms"] = 60_000
    stage.service.start()
    return stage


def all_of(stage: OffsetsStage) -> dict[tuple[str, int], int]:
    return {name: offset for name, (offset, _) in stage.fetch().items()}


# -- by request -------------------------------------------------------------------------------------------


def test_deleted_offsets_are_gone_and_stay_gone(stage: OffsetsStage) -> None:
    stage.commit(partition=0)
    stage.commit(partition=1)
    answer = stage.delete(orders=[0, 7], nope=[0])
    told = [
        (topic.name, [(each.partition_index, each.error_code) for each in topic.partitions])
        for topic in answer.topics
    ]
    assert (answer.error_code, told) == (0, [("orders", [(7, 3), (0, 0)]), ("nope", [(0, 3)])])
    assert all_of(stage) == {("orders", 1): 1}
    assert same(stage.loaded_anew().offsets, stage.offsets)


def test_more_offsets_are_deleted_than_one_batch_may_hold(stage: OffsetsStage) -> None:
    log = stage.partition.leader_log()
    stage.commit(partition=0)
    stage.commit(partition=1)
    log.update_config(replace(log.config, max_message_bytes=110))
    stage.partition.config_changed()
    before = log.log_end_offset
    assert stage.delete(orders=[0, 1]).error_code == 0
    assert all_of(stage) == {}
    assert log.log_end_offset == before + 2
    assert same(stage.loaded_anew().offsets, stage.offsets)


def test_records_are_split_so_that_no_batch_is_larger_than_asked() -> None:
    records = [NewRecord(bytes(size), None) for size in (10, 2000, 10, 300, 300, 300, 5)]
    parts = in_parts(records, 1000)
    assert [record for part in parts for record in part] == records
    sizes = [[len(record.key) for record in part] for part in parts]
    assert sizes == [[10], [2000], [10, 300, 300], [300, 5]]
    for part in parts:
        batch = build_batch([Record(at, 0, key, value) for at, (key, value) in enumerate(part)])
        assert len(batch) <= 1000 or len(part) == 1
    assert in_parts([], 1000) == [[]]


def test_what_was_never_committed_is_deleted_without_a_record(stage: OffsetsStage) -> None:
    stage.commit()
    assert stage.delete(orders=[1]).topics[0].partitions[0].error_code == 0
    assert stage.partition.leader_log().log_end_offset == 1


def test_offsets_in_a_transaction_are_deleted_too(stage: OffsetsStage) -> None:
    stage.commit_in_transaction(offset=5)
    assert stage.delete(orders=[0]).error_code == 0
    assert not stage.offsets.has_open_transactions("g")
    stage.end(commit=True)
    assert all_of(stage) == {}


def test_offsets_of_subscribed_topics_stay(stage: OffsetsStage) -> None:
    stage.commit()
    stage.commit(topic="payments")
    stage.shard.made["g"].topics = {"orders"}
    answer = stage.delete(orders=[0], payments=[0])
    assert [topic.partitions[0].error_code for topic in answer.topics] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        0,
    ]
    assert all_of(stage) == {("orders", 0): 1}


def test_groups_that_refuse_and_groups_that_are_not_there(stage: OffsetsStage) -> None:
    assert stage.delete("nobody", orders=[0]).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.delete("", orders=[0]).error_code == ErrorCode.INVALID_GROUP_ID
    stage.commit()
    for error in (NonEmptyGroup(), GroupIdNotFound()):
        stage.shard.made["g"].refuses = error
        answer = stage.delete(orders=[0])
        assert (answer.error_code, answer.topics) == (error.code, [])
    stage.shard.made["g"].refuses = None
    assert all_of(stage) == {("orders", 0): 1}


def test_a_group_is_deleted_with_all_it_has(stage: OffsetsStage) -> None:
    stage.commit(partition=0)
    stage.commit_in_transaction(partition=0, offset=3)
    stage.commit_in_transaction(partition=1, offset=3)
    tombstones = stage.offsets.tombstones("g", most=10)
    assert len(tombstones) == 2
    stage.runtime.append(0, tombstones, lambda _: None)
    assert (stage.offsets.count, list(stage.offsets.pending())) == (0, [])


# -- with their topic -------------------------------------------------------------------------------------


def test_offsets_go_with_their_topic(stage: OffsetsStage) -> None:
    for group in ("g", "h"):
        stage.commit(group, partition=1)
        stage.commit(group, "payments")
    stage.commit_in_transaction(group_id="i")
    stage.without("orders")
    assert all_of(stage) == {("payments", 0): 1}
    assert stage.fetch("h") == {("payments", 0): (1, 0)}
    assert list(stage.offsets.pending()) == []
    assert same(stage.loaded_anew().offsets, stage.offsets)


def test_offsets_of_a_newer_topic_of_that_name_stay(stage: OffsetsStage) -> None:
    stage.commit()
    stage.service.topics_deleted([("orders", b"x" * 16)])
    stage.world.advance()
    assert all_of(stage) == {("orders", 0): 1}


# -- with time --------------------------------------------------------------------------------------------


def test_offsets_of_a_simple_consumer_expire_after_their_last_commit(stage: OffsetsStage) -> None:
    stage.commit(partition=0)
    stage.world.advance(6 * MINUTES)
    stage.commit(partition=1)
    stage.world.advance(5 * MINUTES)
    assert all_of(stage) == {("orders", 1): 1}
    assert stage.service.expirations == 1
    assert same(stage.loaded_anew().offsets, stage.offsets)


def test_a_group_without_members_goes_with_its_last_offset(stage: OffsetsStage) -> None:
    stage.commit()
    stage.world.advance(9 * MINUTES)
    assert "g" in stage.shard.made
    stage.world.advance(2 * MINUTES)
    assert stage.shard.made == {}
    assert stage.loaded_anew().made == {}


def test_a_group_that_has_nothing_and_nobody_goes_at_the_next_look(stage: OffsetsStage) -> None:
    stage.shard.make("empty")
    stage.shard.make("joined").member = "m"
    stage.world.advance(1.1 * MINUTES)
    assert list(stage.shard.made) == ["joined"]


def test_offsets_are_kept_from_when_the_group_became_empty(stage: OffsetsStage) -> None:
    stage.commit()
    stage.world.advance(5 * MINUTES)
    stage.shard.made["g"].empty_since = stage.now
    stage.world.advance(9 * MINUTES)
    assert all_of(stage) == {("orders", 0): 1}
    stage.world.advance(2 * MINUTES)
    assert all_of(stage) == {}


def test_a_group_that_lives_loses_only_what_it_does_not_subscribe_to(stage: OffsetsStage) -> None:
    stage.commit()
    stage.commit(topic="payments")
    group = stage.shard.made["g"]
    group.member, group.topics = "m", {"orders"}
    stage.world.advance(11 * MINUTES)
    assert all_of(stage) == {("orders", 0): 1}
    assert stage.shard.made["g"] is group


def test_a_group_whose_offsets_cannot_expire_now_keeps_them(stage: OffsetsStage) -> None:
    stage.commit()
    stage.shard.made["g"].expires = False
    stage.world.advance(30 * MINUTES)
    assert all_of(stage) == {("orders", 0): 1}


def test_a_retention_of_the_commit_counts_before_that_of_the_broker(stage: OffsetsStage) -> None:
    stage.commit(partition=0, retention_ms=120_000, version=4)
    stage.commit(partition=1, retention_ms=3_600_000, version=4)
    stage.world.advance(3 * MINUTES)
    assert all_of(stage) == {("orders", 1): 1}
    stage.world.advance(30 * MINUTES)
    assert all_of(stage) == {("orders", 1): 1}
    stage.world.advance(30 * MINUTES)
    assert all_of(stage) == {}


def test_an_offset_that_waits_for_a_transaction_does_not_expire(stage: OffsetsStage) -> None:
    stage.commit(offset=1)
    stage.commit_in_transaction(offset=2)
    stage.world.advance(20 * MINUTES)
    assert all_of(stage) == {("orders", 0): 1}
    stage.end(commit=True)
    stage.world.advance(2 * MINUTES)
    assert stage.shard.made == {}


def test_a_group_with_an_open_transaction_is_not_removed(stage: OffsetsStage) -> None:
    stage.commit_in_transaction()
    stage.world.advance(30 * MINUTES)
    assert "g" in stage.shard.made


def test_the_retention_may_be_changed_while_it_runs(stage: OffsetsStage) -> None:
    stage.commit()
    stage.values["offsets.retention.minutes"] = 60
    stage.world.advance(30 * MINUTES)
    assert all_of(stage) == {("orders", 0): 1}


def test_nothing_expires_after_the_close(stage: OffsetsStage) -> None:
    stage.commit()
    stage.service.close()
    stage.world.advance(60 * MINUTES)
    assert all_of(stage) == {("orders", 0): 1}
