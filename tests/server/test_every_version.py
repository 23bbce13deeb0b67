"""Every version of every API that is announced is answered, and answered in that version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.raw import ConnectionClosed, RawConnection
from tests.support.wait import eventually
from tests.transactions.by_hand import open_transaction
from tidelog.errors import ErrorCode
from tidelog.protocol.api import API
from tidelog.protocol.message import Message
from tidelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.protocol.messages.create_topics import CreateTopicsRequest
from tidelog.protocol.messages.delete_records import DeleteRecordsRequest
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest
from tidelog.protocol.messages.describe_producers import DescribeProducersRequest
from tidelog.protocol.messages.end_txn import EndTxnRequest
from tidelog.protocol.messages.fetch import FetchRequest
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest
from tidelog.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from tidelog.protocol.messages.produce import ProduceRequest
from tidelog.protocol.messages.sync_group import SyncGroupRequest
from tidelog.records.batch import Record, build_batch
from tidelog.server.apis import served_apis

SERVED = [
    (api.key, version)
    for api in sorted(served_apis().values(), key=lambda api: api.key)
    for version in range(api.min_version, api.max_version + 1)
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("versions")
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with Broker(folder, settings) as running, RawConnection(running.address) as connection:
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        connection.call(CreateTopicsRequest(topics=[topic]), 7)
        # The first request for it makes the topic of the groups' offsets.
        find = FindCoordinatorRequest(key="g")
        eventually(lambda: not error_codes_of(connection, find, 3), "a coordinator of groups")
        assert error_codes_of(connection, filled(8, 9, connection), 9) == []
        yield running


def error_codes_of(connection: RawConnection, request: Message, version: int) -> list[int]:
    return [code for code in error_codes(connection.call(request, version)) if code]


def topic_id(connection: RawConnection) -> bytes:
    topics = connection.ask(MetadataRequest(topics=None), MetadataResponse, 12).topics
    return next(topic.topic_id for topic in topics if topic.name == "t")


def join_request(group_id: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range")],
    )


def member(connection: RawConnection, group_id: str) -> str:
    """The only member of a new group."""
    joined = connection.ask(join_request(group_id), JoinGroupResponse, 3)
    assert (joined.error_code, joined.generation_id) == (0, 1)
    return joined.member_id


def expected(key: int, version: int) -> list[int]:
    """The error codes of an answer to a request that is as it should be."""
    return [ErrorCode.MEMBER_ID_REQUIRED] if key == 11 and version >= 4 else []


def filled(key: int, version: int, connection: RawConnection) -> Message:
    """A request with content where an empty one would leave the handler's work undone."""
    if key == 0:
        partition = ProduceRequest.PartitionProduceData(
            index=0, records=build_batch([Record(0, 1_700_000_000_000, b"k", b"v")])
        )
        topic = ProduceRequest.TopicProduceData(partition_data=[partition])
        if version >= 13:
            topic.topic_id = topic_id(connection)
        else:
            topic.name = "t"
        return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
    if key == 1:
        wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        fetched = FetchRequest.FetchTopic(partitions=[wanted])
        if version >= 13:
            fetched.topic_id = topic_id(connection)
        else:
            fetched.topic = "t"
        return FetchRequest(max_wait_ms=0, min_bytes=0, topics=[fetched])
    if key == 2:
        listed = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        named = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[listed])
        return ListOffsetsRequest(replica_id=-1, topics=[named])
    if key == 8:
        offset = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        read = OffsetCommitRequest.OffsetCommitRequestTopic(partitions=[offset])
        if version >= 10:
            read.topic_id = topic_id(connection)
        else:
            read.name = "t"
        return OffsetCommitRequest(group_id="g", topics=[read])
    if key == 9:
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
        return OffsetFetchRequest(groups=[group]) if version >= 8 else OffsetFetchRequest(group_id="g")
    if key == 11:
        return join_request(f"join-{version}")
    if key == 12:
        return HeartbeatRequest(
            group_id=f"beat-{version}", generation_id=1, member_id=member(connection, f"beat-{version}")
        )
    if key == 13:
        leaving = member(connection, f"leave-{version}")
        identity = LeaveGroupRequest.MemberIdentity(member_id=leaving)
        group_id = f"leave-{version}"
        if version >= 3:
            return LeaveGroupRequest(group_id=group_id, members=[identity])
        return LeaveGroupRequest(group_id=group_id, member_id=leaving)
    if key == 14:
        sync = SyncGroupRequest(
            group_id=f"sync-{version}", generation_id=1, member_id=member(connection, f"sync-{version}")
        )
        if version >= 5:
            sync.protocol_type, sync.protocol_name = "consumer", "range"
        return sync
    if key == 68:
        return ConsumerGroupHeartbeatRequest(
            group_id=f"consumer-{version}",
            member_id="a-member" if version >= 1 else "",
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
    if key == 47:
        return OffsetDeleteRequest(group_id="g")
    if key == 21:
        deleted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=1, offset=0)
        records = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[deleted])
        return DeleteRecordsRequest(topics=[records], timeout_ms=1000)
    if key == 23:
        epoch = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
        epochs = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=[epoch])
        return OffsetForLeaderEpochRequest(topics=[epochs])
    if key == 32:
        resource = DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name="t")
        return DescribeConfigsRequest(resources=[resource])
    if key == 61:
        producers = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
        return DescribeProducersRequest(topics=[producers])
    if key == 22:
        return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    if key in (24, 25, 26):
        return transactional(key, version, connection)
    request = API[key].request()
    if key == 18 and version >= 3:
        request.client_software_name = request.client_software_version = "test"  # type: ignore[attr-defined]
    return request


def transactional(key: int, version: int, connection: RawConnection) -> Message:
    """A request of a producer with an open transaction."""
    name = f"{key}-{version}"
    producer_id, epoch = open_transaction(connection, "t", transactional_id=name)
    if key == 25:
        return AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id="g"
        )
    if key == 26:
        return EndTxnRequest(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True
        )
    topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[1])]
    if version >= 4:
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, topics=topics
        )
        return AddPartitionsToTxnRequest(transactions=[transaction])
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=topics,
    )


def error_codes(value: object) -> Iterator[int]:
    """Every error code anywhere in an answer."""
    if isinstance(value, list):
        for item in value:
            yield from error_codes(item)
    elif hasattr(value, "FIELDS"):
        for field in value.FIELDS:
            inner = getattr(value, field.name)
            if field.name in ("error_code", "partition_error_code"):
                yield inner
            else:
                yield from error_codes(inner)


@pytest.mark.parametrize(("key", "version"), SERVED, ids=lambda value: str(value))
def test_a_served_version_is_answered_without_an_error(broker: Broker, key: int, version: int) -> None:
    with RawConnection(broker.address) as connection:
        answer = connection.call(filled(key, version, connection), version)
        assert [code for code in error_codes(answer) if code] == expected(key, version)


@pytest.mark.parametrize("key", sorted(served_apis()))
def test_a_version_that_is_not_served_closes_the_connection(broker: Broker, key: int) -> None:
    api = served_apis()[key]
    if key == 18:
        return  # answered, so that a newer client learns what it may ask: tested below
    with RawConnection(broker.address) as connection:
        connection.send_frame(key.to_bytes(2, "big") + (api.max_version + 1).to_bytes(2, "big") + bytes(12))
        with pytest.raises(ConnectionClosed):
            connection.receive_frame()


def test_an_api_versions_that_is_too_new_is_answered_in_the_oldest_version(broker: Broker) -> None:
    with RawConnection(broker.address) as connection:
        connection.send_frame((18).to_bytes(2, "big") + (99).to_bytes(2, "big") + b"\0\0\0\x07\xff\xff\0")
        frame = connection.receive_frame()
    assert frame[:4] == b"\0\0\0\x07"
    assert frame[4:] == b"\0\x23" + b"\0\0\0\x01" + b"\0\x12\0\0\0\x04"
