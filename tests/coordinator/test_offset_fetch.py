"""What is told of the offsets of groups, in every version of the request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiokafka
import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.protocol.commit import OffsetFetchResponse_v3

from tests.coordinator.offsets_stage import ORDERS_ID, OffsetsStage
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    GroupIdNotFound,
    NotCoordinator,
    StaleMemberEpoch,
)
from tidelog.metadata.state import TopicState
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest

Group = OffsetFetchRequest.OffsetFetchRequestGroup
Topics = OffsetFetchRequest.OffsetFetchRequestTopics


@pytest.fixture
def stage(tmp_path: Path) -> OffsetsStage:
    stage = OffsetsStage(tmp_path / "data")
    stage.commit(partition=0, offset=5, metadata="m")
    stage.commit(partition=1, offset=6)
    stage.commit(topic="payments", partition=0, offset=7)
    return stage


def test_what_was_never_committed_is_minus_one(stage: OffsetsStage) -> None:
    found = stage.fetch(topics={"orders": [0, 77], "nope": [0]})
    assert found == {("orders", 0): (5, 0), ("orders", 77): (-1, 0), ("nope", 0): (-1, 0)}


def test_a_group_that_nobody_knows_has_committed_nothing(stage: OffsetsStage) -> None:
    assert stage.fetch("nobody", {"orders": [0]}) == {("orders", 0): (-1, 0)}
    assert stage.fetch("nobody") == {}


def test_all_topics_are_those_that_the_group_committed(stage: OffsetsStage) -> None:
    stage.commit("other", offset=99)
    assert stage.fetch() == {("orders", 0): (5, 0), ("orders", 1): (6, 0), ("payments", 0): (7, 0)}


def test_several_groups_are_answered_in_the_order_of_the_request(stage: OffsetsStage) -> None:
    stage.commit("other", offset=99)
    groups = [Group(group_id=name, topics=None) for name in ("other", "nobody", "g")]
    found = stage.fetched(OffsetFetchRequest(groups=groups), 8)
    assert [(group.group_id, len(group.topics)) for group in found.groups] == [
        ("other", 1),
        ("nobody", 0),
        ("g", 2),
    ]
    assert stage.fetched(OffsetFetchRequest(groups=[]), 8).groups == []


@pytest.mark.parametrize("version", [1, 2, 5, 7])
def test_older_requests_ask_for_one_group(stage: OffsetsStage, version: int) -> None:
    topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
    found = stage.fetched(OffsetFetchRequest(group_id="g", topics=topics), version)
    assert (found.topics[0].name, found.topics[0].partitions[0].committed_offset) == ("orders", 5)
    assert (found.topics[0].partitions[0].metadata, found.error_code) == ("m", 0)


def test_older_requests_ask_for_all_topics_too(stage: OffsetsStage) -> None:
    found = stage.fetched(OffsetFetchRequest(group_id="g", topics=None), 2)
    assert [topic.name for topic in found.topics] == ["orders", "payments"]


def test_topics_are_named_by_id_from_version_10_on(stage: OffsetsStage) -> None:
    topics = [
        Topics(topic_id=b"?" * 16, partition_indexes=[0]),
        Topics(topic_id=ORDERS_ID, partition_indexes=[1]),
    ]
    (group,) = stage.fetched(OffsetFetchRequest(groups=[Group(group_id="g", topics=topics)]), 10).groups
    told = [
        (topic.topic_id, topic.partitions[0].committed_offset, topic.partitions[0].error_code)
        for topic in group.topics
    ]
    assert told == [(ORDERS_ID, 6, 0), (b"?" * 16, -1, ErrorCode.UNKNOWN_TOPIC_ID)]


def test_all_topics_by_id_are_those_that_still_exist(stage: OffsetsStage) -> None:
    stage.metadata.update(stage.metadata.snapshot.with_topics(removed=["payments"]))
    request = OffsetFetchRequest(groups=[Group(group_id="g", topics=None)])
    (by_id,) = stage.fetched(request, 10).groups
    assert [topic.topic_id for topic in by_id.topics] == [ORDERS_ID]
    (by_name,) = stage.fetched(request, 9).groups
    assert [topic.name for topic in by_name.topics] == ["orders", "payments"]


def test_offsets_of_a_topic_that_was_made_anew_are_not_those_of_the_old_one(stage: OffsetsStage) -> None:
    old = stage.metadata.snapshot.topics["payments"]
    anew = TopicState("payments", b"q" * 16, old.partitions)
    stage.metadata.update(stage.metadata.snapshot.with_topics([anew], removed=["payments"]))
    assert stage.fetch(topics={"payments": [0]}) == {("payments", 0): (-1, 0)}


def test_offsets_that_wait_for_a_transaction_are_not_stable(stage: OffsetsStage) -> None:
    stage.commit_in_transaction(partition=1, offset=8)
    named = {"orders": [0, 1]}
    assert stage.fetch(topics=named) == {("orders", 0): (5, 0), ("orders", 1): (6, 0)}
    unstable = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert stage.fetch(topics=named, stable=True) == {("orders", 0): (5, 0), ("orders", 1): unstable}
    assert stage.fetch(stable=True)[("orders", 1)] == unstable
    stage.end(commit=True)
    assert stage.fetch(topics=named, stable=True) == {("orders", 0): (5, 0), ("orders", 1): (8, 0)}


def test_an_offset_that_only_a_transaction_has_is_not_among_all(stage: OffsetsStage) -> None:
    stage.commit_in_transaction(group_id="new")
    assert stage.fetch("new", stable=True) == {}
    assert stage.fetch("new", {"orders": [0]}, stable=True) == {
        ("orders", 0): (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    }


def test_a_member_that_may_not_fetch_gets_the_error_of_its_group(stage: OffsetsStage) -> None:
    stage.shard.made["g"].refuses = StaleMemberEpoch()
    request = OffsetFetchRequest(groups=[Group(group_id="g", topics=None)])
    (group,) = stage.fetched(request, 9).groups
    assert (group.error_code, group.topics) == (ErrorCode.STALE_MEMBER_EPOCH, [])
    topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
    old = OffsetFetchRequest(group_id="g", topics=topics)
    assert (stage.fetched(old, 2).error_code, stage.fetched(old, 2).topics) == (113, [])
    # Version 1 has no place for the error of a group.
    assert stage.fetched(old, 1).topics[0].partitions[0].error_code == ErrorCode.STALE_MEMBER_EPOCH


def test_a_group_that_is_dead_has_committed_nothing(stage: OffsetsStage) -> None:
    stage.shard.made["g"].refuses = GroupIdNotFound()
    assert stage.fetch(topics={"orders": [0]}) == {("orders", 0): (-1, 0)}


def test_a_coordinator_that_leads_nothing_says_so(stage: OffsetsStage) -> None:
    stage.runtime.resigned(0)
    (group,) = stage.fetched(OffsetFetchRequest(groups=[Group(group_id="g", topics=None)]), 9).groups
    assert group.error_code == ErrorCode.NOT_COORDINATOR


def test_aiokafka_asks_a_coordinator_again_that_has_no_offsets_now(stage: OffsetsStage) -> None:
    topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
    request = OffsetFetchRequest(group_id="g", topics=topics)
    assert aiokafkas_offsets(stage, request) == {aiokafka.TopicPartition("orders", 0): (5, "m")}
    for error in (CoordinatorNotAvailable(), NotCoordinator()):
        stage.shard.made["g"].refuses = error
        with pytest.raises(aiokafka.errors.NotCoordinatorForGroupError):
            aiokafkas_offsets(stage, request)
    stage.shard.made["g"].refuses = CoordinatorLoadInProgress()
    with pytest.raises(aiokafka.errors.GroupLoadInProgressError):
        aiokafkas_offsets(stage, request)


def aiokafkas_offsets(
    stage: OffsetsStage, request: OffsetFetchRequest
) -> dict[aiokafka.TopicPartition, tuple[int, str]]:
    """The offsets as aiokafka understands the answer to its request."""
    version = 3
    answer = OffsetFetchResponse_v3.decode(stage.fetched(request, version).encode(version))

    class Coordinator:
        group_id = "g"
        _do_fetch_commit_offsets = GroupCoordinator._do_fetch_commit_offsets

        async def _send_req(self, _: object) -> object:
            return answer

        def coordinator_dead(self) -> None:
            pass

    partitions = [aiokafka.TopicPartition(topic.name, 0) for topic in request.topics or ()]
    found = asyncio.run(Coordinator()._do_fetch_commit_offsets(partitions))
    return {partition: (offset.offset, offset.metadata) for partition, offset in found.items()}
