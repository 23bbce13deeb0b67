"""Classic groups of a running broker: found, described, kept over a restart, deleted, told of in metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.scrape import scrape
from tests.support.broker import Broker
from tests.support.raw import NoAnswer, RawConnection
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.create_topics import CreateTopicsRequest
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "metrics.listener": "127.0.0.1:0"}
NEWEST = {"join": 9, "sync": 5, "heartbeat": 4, "leave": 5}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, SETTINGS) as running:
        yield running


@pytest.fixture
def peer(broker: Broker) -> Iterator[RawConnection]:
    with RawConnection(broker.address, client_id="app") as connection:
        find(connection, "g")
        yield connection


def find(peer: RawConnection, *keys: str, kind: int = 0) -> list[FindCoordinatorResponse.Coordinator]:
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
    return peer.ask(request, FindCoordinatorResponse, 6).coordinators


def join_request(
    group: str, member_id: str = "", instance: str | None = None, **more: object
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")],
        **more,  # type: ignore[arg-type]
    )


def join(
    peer: RawConnection, group: str, member_id: str = "", instance: str | None = None
) -> JoinGroupResponse:
    answer = peer.ask(join_request(group, member_id, instance), JoinGroupResponse, NEWEST["join"])
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return join(peer, group, answer.member_id)
    return answer


def sync(
    peer: RawConnection, group: str, joined: JoinGroupResponse, work: bytes = b"work"
) -> SyncGroupResponse:
    request = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=work)
        ],
    )
    return peer.ask(request, SyncGroupResponse, NEWEST["sync"])


def beat(peer: RawConnection, group: str, joined: JoinGroupResponse) -> int:
    request = HeartbeatRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
    return peer.ask(request, HeartbeatResponse, NEWEST["heartbeat"]).error_code


def describe(peer: RawConnection, group: str, version: int = 6) -> DescribeGroupsResponse.DescribedGroup:
    (described,) = peer.ask(DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse, version).groups
    return described


def listed(peer: RawConnection, **filters: list[str]) -> dict[str, tuple[str, str]]:
    answer = peer.ask(ListGroupsRequest(**filters), ListGroupsResponse, 5)  # type: ignore[arg-type]
    assert answer.error_code == 0
    return {group.group_id: (group.group_state, group.group_type) for group in answer.groups}


def commit(peer: RawConnection, group: str, topic: str, offset: int) -> int:
    part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=group,
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )
    answer = peer.ask(request, OffsetCommitResponse, 8)
    return answer.topics[0].partitions[0].error_code


def test_the_first_who_asks_for_a_coordinator_has_its_topic_made(broker: Broker) -> None:
    with RawConnection(broker.address) as peer:
        first, second = find(peer, "one", "two")
        assert (first.error_code, first.host, first.port) == (0, broker.host, broker.port)
        assert (first.key, second.key, second.node_id) == ("one", "two", first.node_id)
        topic = MetadataRequest.MetadataRequestTopic(name="__consumer_offsets")
        (made,) = peer.ask(MetadataRequest(topics=[topic]), MetadataResponse, 12).topics
        assert made.is_internal
        assert len(made.partitions) == 50


def test_the_topic_has_the_settings_that_kafka_gives_it(tmp_path: Path) -> None:
    few = {"offsets.topic.num.partitions": "3", "offsets.topic.segment.bytes": "20000000"}
    with Broker(tmp_path, {**SETTINGS, **few}) as broker, RawConnection(broker.address) as peer:
        find(peer, "g")
        answer = peer.call_json(
            "DescribeConfigs",
            4,
            {
                "resources": [
                    {"resourceType": 2, "resourceName": "__consumer_offsets", "configurationKeys": None}
                ],
                "includeSynonyms": False,
                "includeDocumentation": False,
            },
        )
        configs = answer["results"][0]["configs"]  # type: ignore[index, call-overload]
        own = {c["name"]: c["value"] for c in configs if c["configSource"] == 1}  # type: ignore[index, call-overload, union-attr]
        assert own == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "20000000",
        }
        assert len(list((broker.data).glob("__consumer_offsets-*"))) == 3


def test_one_at_a_time_and_what_there_is_no_coordinator_for(peer: RawConnection, broker: Broker) -> None:
    answer = peer.ask(FindCoordinatorRequest(key="g", key_type=0), FindCoordinatorResponse, 2)
    assert (answer.error_code, answer.port, answer.error_message) == (0, broker.port, "NONE")
    (share,) = find(peer, "g:AAAAAAAAAAAAAAAAAAAAAA:0", kind=2)
    assert (share.error_code, share.node_id, share.port) == (ErrorCode.INVALID_REQUEST, -1, -1)


def test_the_oldest_join_is_answered_as_it_can_read_it(peer: RawConnection) -> None:
    answer = peer.ask(join_request("g"), JoinGroupResponse, 0)
    assert (answer.error_code, answer.protocol_name) == (0, "range")
    refused = peer.ask(join_request("g", "nobody"), JoinGroupResponse, 6)
    assert (refused.error_code, refused.protocol_name) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    left = peer.ask(LeaveGroupRequest(group_id="g", member_id="nobody"), LeaveGroupResponse, 2)
    assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    left = peer.ask(LeaveGroupRequest(group_id="g", member_id=answer.member_id), LeaveGroupResponse, 0)
    assert left.error_code == 0


def test_a_group_is_described_listed_and_deleted(peer: RawConnection) -> None:
    joined = join(peer, "g")
    assert describe(peer, "g").group_state == "CompletingRebalance"
    assert sync(peer, "g", joined).assignment == b"work"
    described = describe(peer, "g")
    assert (described.group_state, described.protocol_type, described.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (member,) = described.members
    assert (member.client_id, member.client_host) == ("app", "/127.0.0.1")
    assert bytes(member.member_assignment) == b"work"
    other = RawConnection(peer.address)
    other.send(join_request("g"), 3)
    (member, _) = eventually(
        lambda: describe(peer, "g").members[1:] and describe(peer, "g").members, "it joins"
    )
    assert describe(peer, "g").group_state == "PreparingRebalance"
    assert (bytes(member.member_assignment), bytes(member.member_metadata)) == (b"work", b"")
    assert beat(peer, "g", joined) == ErrorCode.REBALANCE_IN_PROGRESS
    other_id = describe(peer, "g").members[1].member_id
    leaving = LeaveGroupRequest.MemberIdentity(member_id=other_id)
    peer.ask(LeaveGroupRequest(group_id="g", members=[leaving]), LeaveGroupResponse, 5)
    other.close()
    assert sync(peer, "g", join(peer, "g", joined.member_id)).assignment == b"work"
    assert listed(peer) == {"g": ("Stable", "classic")}
    assert listed(peer, states_filter=["stable"], types_filter=["Classic"]) == {"g": ("Stable", "classic")}
    assert listed(peer, types_filter=["consumer"]) == listed(peer, states_filter=["Empty"]) == {}
    assert delete(peer, "g", "other") == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    leaving = LeaveGroupRequest.MemberIdentity(member_id=joined.member_id, reason="enough for today")
    peer.ask(LeaveGroupRequest(group_id="g", members=[leaving]), LeaveGroupResponse, 5)
    assert listed(peer) == {"g": ("Empty", "classic")}
    assert delete(peer, "g") == [0]
    assert listed(peer) == {}
    gone = describe(peer, "g")
    assert (gone.error_code, gone.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert describe(peer, "g", version=5).error_code == 0


def delete(peer: RawConnection, *groups: str) -> list[int]:
    answer = peer.ask(DeleteGroupsRequest(groups_names=list(groups)), DeleteGroupsResponse, 2)
    assert [result.group_id for result in answer.results] == list(groups)
    return [result.error_code for result in answer.results]


@pytest.mark.parametrize("kill", [True, False])
def test_a_group_and_its_members_are_there_after_a_restart(broker: Broker, kill: bool) -> None:
    with RawConnection(broker.address) as peer:
        find(peer, "g")
        joined = join(peer, "g", instance="i")
        sync(peer, "g", joined, b"mine")
        join(peer, "half")
    broker.restart(kill=kill)
    with RawConnection(broker.address) as peer:
        assert eventually(lambda: beat(peer, "g", joined) == 0, "the group is loaded")
        assert sync(peer, "g", joined).assignment == b"mine"
        assert listed(peer) == {"g": ("Stable", "classic"), "half": ("Empty", "classic")}
        again = join(peer, "g", instance="i")
        assert (again.error_code, again.generation_id, again.skip_assignment) == (0, 1, True)


def test_a_deleted_group_stays_deleted_and_so_do_its_offsets(broker: Broker) -> None:
    with RawConnection(broker.address) as peer:
        find(peer, "g")
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        peer.call(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
        assert commit(peer, "g", "t", 5) == 0
        assert listed(peer) == {"g": ("Empty", "classic")}
        assert delete(peer, "g") == [0]
    broker.restart(kill=True)
    with RawConnection(broker.address) as peer:
        eventually(lambda: find(peer, "g")[0].error_code == 0, "the coordinator is found")
        eventually(
            lambda: peer.ask(ListGroupsRequest(), ListGroupsResponse, 5).error_code == 0, "groups are loaded"
        )
        assert listed(peer) == {}


def test_whoever_waits_is_answered_when_the_broker_stops(broker: Broker) -> None:
    with RawConnection(broker.address) as peer, RawConnection(broker.address) as other:
        find(peer, "g")
        leader = join(peer, "g")
        sync(peer, "g", leader)
        other.send(join_request("g"), 3)
        with pytest.raises(NoAnswer):
            other.receive(JoinGroupRequest, 3, timeout=0.3)
        broker.process.terminate()
        answer = other.receive(JoinGroupRequest, 3)
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        assert broker.wait() == 0


def test_the_log_tells_why_a_group_rebalances(peer: RawConnection, broker: Broker) -> None:
    asked = peer.ask(join_request("g", reason="I am hungry"), JoinGroupResponse, 9)
    peer.ask(join_request("g", asked.member_id, reason="still hungry"), JoinGroupResponse, 9)
    leaving = LeaveGroupRequest.MemberIdentity(member_id=asked.member_id, reason="full")
    peer.ask(LeaveGroupRequest(group_id="g", members=[leaving]), LeaveGroupResponse, 5)
    for text in ("preparing to rebalance", "still hungry", "a member left", "full"):
        eventually(lambda text=text: text in broker.log(), f"{text!r} is in the log")  # type: ignore[misc]


def test_groups_show_in_the_metrics(peer: RawConnection, broker: Broker) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    peer.call(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
    assert commit(peer, "simple", "t", 7) == 0
    sync(peer, "g", join(peer, "g"))
    metrics = scrape(broker)
    manager = "kafka_coordinator_group_groupmetadatamanager"
    assert metrics(f"{manager}_numgroups") == 2
    assert metrics(f"{manager}_numoffsets") == 1
    assert metrics(f"{manager}_numgroupsstable") == metrics(f"{manager}_numgroupsempty") == 1
    assert metrics(f"{manager}_numgroupspreparingrebalance") == 0
    assert metrics("kafka_server_group_coordinator_metrics_group_count", protocol="classic") == 2
    assert metrics("kafka_server_group_coordinator_metrics_group_completed_rebalance_count") == 1
    assert metrics("kafka_consumergroup_members", consumergroup="g") == 1
    assert metrics("kafka_consumergroup_current_offset", consumergroup="simple", topic="t") == 7
    assert metrics("kafka_consumergroup_lag_sum", consumergroup="simple", topic="t") == 0
