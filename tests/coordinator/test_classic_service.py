"""Classic groups over a real log: their records, what is loaded of them, their timers and their end."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.world import SELF, FailingDisk, World
from tests.coordinator.classic_world import Answer
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.config.values import ConfigValue
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.classic_state import Client, GroupState
from tidelog.coordinator.group.coordinator import OFFSETS_TOPIC, GroupCoordinator
from tidelog.coordinator.group.records import group_key, offset_key, offset_value
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.runtime import NewRecord
from tidelog.errors import CoordinatorLoadInProgress, ErrorCode, KafkaError, NonEmptyGroup, NotCoordinator
from tidelog.metadata.state import ClusterState, PartitionState, TopicState
from tidelog.protocol.messages.group_records import GroupMetadataValue
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

CLIENT = Client("c", "/127.0.0.1", 9)
VALUES: dict[str, ConfigValue] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.max.size": 100,
    "group.min.session.timeout.ms": 6000,
    "group.max.session.timeout.ms": 1_800_000,
    "offsets.commit.timeout.ms": 5000,
    "offsets.load.buffer.size": 1 << 20,
    "offsets.retention.check.interval.ms": 600_000,
    "offsets.retention.minutes": 10_080,
}


class Stage:
    def __init__(self, folder: Path) -> None:
        self.disk = FailingDisk()
        self.world = World(folder, disk=self.disk)
        self.metadata = MetadataCache("cluster")
        self.partition = self.world.partition(OFFSETS_TOPIC)
        state = PartitionState([SELF], SELF, 0, [SELF])
        topic = TopicState(OFFSETS_TOPIC, b"i" * 16, {0: state})
        self.metadata.update(ClusterState("cluster", topics={OFFSETS_TOPIC: topic}))
        self.groups = self.start()

    def start(self) -> GroupCoordinator:
        settings = GroupSettings(VALUES.__getitem__)
        self.groups = GroupCoordinator(self.world.replicas, self.metadata, self.world.scheduler, settings)
        self.groups.runtime.elected(self.partition)
        self.world.advance()
        return self.groups

    def restart(self) -> None:
        self.groups.close()
        self.start()

    def group(self, group_id: str = "g") -> ClassicGroup:
        group = self.groups.runtime.shard(0).groups[group_id]
        assert isinstance(group, ClassicGroup)
        return group

    def join(
        self, member_id: str = "", instance: str | None = None, **more: object
    ) -> Answer[JoinGroupResponse]:
        answer: Answer[JoinGroupResponse] = Answer()
        values: dict[str, object] = {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "member_id": member_id,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        }
        self.groups.classic.join(JoinGroupRequest(**(values | more)), CLIENT, answer)  # type: ignore[arg-type]
        self.world.advance()
        return answer

    def sync(
        self, member_id: str, *, work: bytes = b"work", group_id: str = "g"
    ) -> Answer[SyncGroupResponse]:
        answer: Answer[SyncGroupResponse] = Answer()
        assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=work)
        request = SyncGroupRequest(
            group_id=group_id, generation_id=1, member_id=member_id, assignments=[assignment]
        )
        self.groups.classic.sync(request, answer)
        self.world.advance()
        return answer

    def beat(self, member_id: str, generation: int = 1, group_id: str = "g") -> int:
        request = HeartbeatRequest(group_id=group_id, member_id=member_id, generation_id=generation)
        try:
            return self.groups.classic.heartbeat(request)
        except KafkaError as error:
            return error.code

    def leave(self, member_id: str, group_id: str = "g") -> LeaveGroupResponse:
        answer: Answer[LeaveGroupResponse] = Answer()
        identity = LeaveGroupRequest.MemberIdentity(member_id=member_id)
        self.groups.classic.leave(group_id, [identity], answer)
        return answer.got

    def stable(self) -> str:
        member_id = self.join(instance="i").got.member_id
        assert self.sync(member_id).got.assignment == b"work"
        return member_id

    def append(self, *records: NewRecord) -> None:
        self.groups.runtime.append(0, records, lambda error: None)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "data")
    yield stage
    stage.groups.close()


def test_a_group_that_was_assigned_is_loaded_with_its_members(stage: Stage) -> None:
    member = stage.stable()
    before = stage.group()
    stage.restart()
    after = stage.group()
    assert after is not before
    assert (after.state, after.generation, after.protocol) == (GroupState.STABLE, 1, "range")
    assert after.members.leader_id == member
    assert stage.sync(member).got.assignment == b"work"


def test_loaded_members_have_their_whole_session_and_no_more(stage: Stage) -> None:
    member = stage.stable()
    stage.world.advance(8)
    stage.restart()
    stage.world.advance(9)
    assert stage.beat(member) == 0
    stage.world.advance(9)
    assert stage.beat(member) == 0
    stage.world.advance(10.1)
    assert stage.beat(member) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.group().state is GroupState.EMPTY


def test_that_a_group_became_empty_is_loaded_too(stage: Stage) -> None:
    member = stage.stable()
    assert stage.leave(member).members[0].error_code == 0
    stage.restart()
    assert (stage.group().state, stage.group().generation) == (GroupState.EMPTY, 2)
    assert stage.group().protocol_type == "consumer"


def test_a_group_whose_members_never_synced_is_empty_after_a_restart(stage: Stage) -> None:
    assert stage.join(instance="i").got.generation_id == 1
    stage.restart()
    assert (stage.group().state, stage.group().generation) == (GroupState.EMPTY, 0)


@pytest.mark.parametrize("version", range(5))
def test_records_of_every_version_are_loaded(stage: Stage, version: int) -> None:
    member = GroupMetadataValue.MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        session_timeout=10_000,
        rebalance_timeout=20_000,
        subscription=b"s",
        assignment=b"a",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=7,
        protocol="range",
        leader="m",
        current_state_timestamp=5,
        members=[member],
    )
    stage.append(NewRecord(group_key("old"), value.encode(version, version.to_bytes(2, "big"))))
    stage.restart()
    group = stage.group("old")
    assert (group.generation, group.members.leader_id, group.state) == (7, "m", GroupState.STABLE)
    loaded = group.members.by_id["m"]
    assert loaded.rebalance_timeout_ms == (20_000 if version >= 1 else 10_000)
    assert group.state_timestamp == (5 if version >= 2 else -1)
    assert (loaded.assignment, loaded.metadata("range")) == (b"a", b"s")
    assert stage.beat("m", 7, "old") == 0


def test_a_tombstone_ends_a_group(stage: Stage) -> None:
    stage.stable()
    stage.append(NewRecord(group_key("g"), None))
    assert "g" not in stage.groups.runtime.shard(0).groups
    stage.restart()
    assert "g" not in stage.groups.runtime.shard(0).groups


def test_records_of_other_kinds_of_groups_are_left_alone(stage: Stage) -> None:
    stage.append(NewRecord(b"\x00\x0b share", b"what"), NewRecord(b"\x00\x11 streams", b"ever"))
    stage.stable()
    stage.restart()
    assert stage.group().state is GroupState.STABLE


def test_when_the_partition_leaves_those_who_wait_are_told_where_not_to_look(stage: Stage) -> None:
    stage.stable()
    waiting = stage.join(instance="j")
    assert not waiting.came
    stage.groups.runtime.resigned(0)
    assert waiting.got.error_code == ErrorCode.NOT_COORDINATOR
    assert stage.beat("m") == ErrorCode.NOT_COORDINATOR
    assert stage.join().got.error_code == ErrorCode.NOT_COORDINATOR
    assert stage.sync("m").got.error_code == ErrorCode.NOT_COORDINATOR
    assert stage.leave("m").error_code == ErrorCode.NOT_COORDINATOR
    stage.world.advance(3600)  # nothing of it is left that could wake up


def listed(stage: Stage) -> list[str]:
    """The ids of the groups that ListGroups lists."""
    work = stage.groups.list_groups()
    while True:
        try:
            next(work)
        except StopIteration as done:
            return [group.group_id for group in done.value]


def test_while_a_partition_is_loaded_members_stay_and_tools_are_told_to_wait(stage: Stage) -> None:
    """The answers of Kafka 3.9: aiokafka ends a member whose heartbeat gets COORDINATOR_LOAD_IN_PROGRESS."""
    stage.stable()
    stage.groups.close()
    stage.groups.runtime.elected(stage.partition)
    assert stage.beat("m") == 0
    with pytest.raises(CoordinatorLoadInProgress):
        listed(stage)
    assert stage.sync("m").got.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert listed(stage) == ["g"]


def test_an_assignment_that_cannot_be_written_is_told_and_everyone_joins_anew(stage: Stage) -> None:
    member = stage.join(instance="i").got.member_id
    stage.disk.write_errors.append(errno.EIO)
    answer = stage.sync(member)
    assert answer.got.error_code == NotCoordinator.code


@pytest.mark.parametrize("session_ms", [5999, 1_800_001])
def test_sessions_have_bounds(stage: Stage, session_ms: int) -> None:
    answer = stage.join(session_timeout_ms=session_ms)
    assert answer.got.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_group_needs_an_id(stage: Stage) -> None:
    assert stage.join(group_id="").got.error_code == ErrorCode.INVALID_GROUP_ID
    assert stage.sync("m", group_id="").got.error_code == ErrorCode.INVALID_GROUP_ID
    assert stage.beat("m", group_id="") == ErrorCode.INVALID_GROUP_ID
    assert stage.leave("m", group_id="").error_code == ErrorCode.INVALID_GROUP_ID


def test_a_group_that_nobody_made_knows_nobody(stage: Stage) -> None:
    assert stage.join("m").got.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.sync("m").got.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.beat("m") == ErrorCode.UNKNOWN_MEMBER_ID
    left = stage.leave("m")
    assert (left.error_code, left.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    assert "g" not in stage.groups.runtime.shard(0).groups


def test_a_commit_keeps_a_member_alive(stage: Stage) -> None:
    member = stage.stable()
    for _ in range(3):
        stage.world.advance(7)
        stage.group().heard_from(member)
    assert stage.beat(member) == 0


def test_a_group_has_one_timer_however_often_its_members_beat(stage: Stage) -> None:
    member = stage.stable()
    before = stage.groups.classic.timers
    for _ in range(100):
        assert stage.beat(member) == 0
    assert stage.groups.classic.timers == before == 1
    stage.leave(member)
    stage.world.advance(20)
    assert stage.groups.classic.timers == 0


def commit_many(stage: Stage, offsets: int) -> None:
    """Committed offsets of group g, more than a batch of their tombstones may hold."""
    value = offset_value(1, -1, "", 0)
    records = [NewRecord(offset_key("g", "a-topic-with-a-longer-name", at), value) for at in range(offsets)]
    stage.groups.runtime.append_parts(0, records, lambda error: None)
    assert stage.groups.offsets.count == offsets


def test_a_group_with_20000_offsets_is_deleted_in_turns(stage: Stage) -> None:
    commit_many(stage, 20_000)
    answers: list[KafkaError | None] = []
    stage.groups.delete_group("g", answers.append)
    assert stage.groups.offsets.count == 19_000  # other requests have their turn now
    stage.world.advance()
    assert answers == [None]
    stage.restart()
    assert (stage.groups.offsets.count, list(stage.groups.groups())) == (0, [])


def test_a_member_that_joins_while_its_group_is_deleted_keeps_the_group(stage: Stage) -> None:
    commit_many(stage, 3_000)
    answers: list[KafkaError | None] = []
    stage.groups.delete_group("g", answers.append)
    stage.join(instance="i")
    stage.world.advance()
    assert [type(answer) for answer in answers] == [NonEmptyGroup]
    assert len(stage.group().members.by_id) == 1


def test_a_deletion_that_ends_exactly_with_a_turn_is_complete(stage: Stage) -> None:
    commit_many(stage, 1_000)
    answers: list[KafkaError | None] = []
    stage.groups.delete_group("g", answers.append)
    stage.world.advance()
    assert answers == [None]
    assert list(stage.groups.groups()) == []
