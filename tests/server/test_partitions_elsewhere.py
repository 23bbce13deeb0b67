"""The answers of a broker about partitions that it does not lead, and about brokers of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.controlled import OTHER, OTHER_ID, TOPIC_ID, leader_and_isr, live_broker, topic_state
from tests.cluster.controlled import update_metadata as update
from tests.cluster.world import SELF
from tests.server.cluster_broker import BROKERS, CLIENTS, OFFSETS, ClusterBroker
from tests.storage.helpers import batch
from tests.support.raw import NoAnswer, RawConnection
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from tidelog.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from tidelog.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrResponse
from tidelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tidelog.records.partitioning import partition_for_id

HERE, ELSEWHERE, LEADERLESS, UNKNOWN = 0, 1, 2, 3
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
UNKNOWN_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
EPOCH = 7  # of the leaders in `topic_state`


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ClusterBroker]:
    """Broker 0 leads partition 0 of t, broker 1 partition 1; partition 2 has no leader."""
    with ClusterBroker(tmp_path / "log") as running:
        controller = running.connect()
        brokers = [live_broker(SELF, (CLIENTS, BROKERS), "r0"), live_broker(OTHER, (CLIENTS, BROKERS), "r1")]
        topic = topic_state("t", leaders={HERE: SELF, ELSEWHERE: OTHER, LEADERLESS: -1})
        controller.call(leader_and_isr("t", HERE, leader_epoch=EPOCH), 7)
        controller.call(update(topic, brokers=brokers), 8)
        yield running


ONLY_LEADERS = 10
"""The last version of Fetch without the rack of the client: only the leader serves it."""


@pytest.fixture
def client(broker: ClusterBroker) -> RawConnection:
    return broker.connect(CLIENTS)


# -- requests for single partitions


def produce(client: RawConnection, topic: str, index: int) -> int:
    return produced(client, topic, index, 9).responses[0].partition_responses[0].error_code


def produced(client: RawConnection, topic: str | bytes, index: int, version: int) -> ProduceResponse:
    data = [ProduceRequest.PartitionProduceData(index=index, records=bytes(batch()))]
    if isinstance(topic, str):
        topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=data)]
    else:
        topics = [ProduceRequest.TopicProduceData(topic_id=topic, partition_data=data)]
    request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics)
    return client.ask(request, ProduceResponse, version)


def fetch(client: RawConnection, topic: str, index: int) -> int:
    return fetched(client, topic, index, ONLY_LEADERS).responses[0].partitions[0].error_code


def fetched(
    client: RawConnection, topic: str | bytes, index: int, version: int, epoch: int = -1
) -> FetchResponse:
    wanted = [
        FetchRequest.FetchPartition(
            partition=index, fetch_offset=0, partition_max_bytes=1000, current_leader_epoch=epoch
        )
    ]
    if isinstance(topic, str):
        topics = [FetchRequest.FetchTopic(topic=topic, partitions=wanted)]
    else:
        topics = [FetchRequest.FetchTopic(topic_id=topic, partitions=wanted)]
    # A fetch of what is not here does not wait for records.
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics)
    return client.ask(request, FetchResponse, version)


def list_offsets(client: RawConnection, topic: str, index: int) -> int:
    wanted = [ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)]
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=wanted)]
    answer = client.ask(ListOffsetsRequest(replica_id=-1, topics=topics), ListOffsetsResponse, 8)
    return answer.topics[0].partitions[0].error_code


def offset_for_leader_epoch(client: RawConnection, topic: str, index: int) -> int:
    wanted = [OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=index, leader_epoch=EPOCH)]
    topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=wanted)]
    request = OffsetForLeaderEpochRequest(replica_id=-2, topics=topics)
    return client.ask(request, OffsetForLeaderEpochResponse, 4).topics[0].partitions[0].error_code


def delete_records(client: RawConnection, topic: str, index: int) -> int:
    wanted = [DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=0)]
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=wanted)]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=1000)
    return client.ask(request, DeleteRecordsResponse, 2).topics[0].partitions[0].error_code


def describe_producers(client: RawConnection, topic: str, index: int) -> int:
    topics = [DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[index])]
    request = DescribeProducersRequest(topics=topics)
    return client.ask(request, DescribeProducersResponse, 0).topics[0].partitions[0].error_code


def write_txn_markers(client: RawConnection, topic: str, index: int) -> int:
    topics = [WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])]
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=1, producer_epoch=0, transaction_result=True, topics=topics
    )
    answer = client.ask(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, 1)
    return answer.markers[0].topics[0].partitions[0].error_code


APIS: list[Callable[[RawConnection, str, int], int]] = [
    produce,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    delete_records,
    describe_producers,
    write_txn_markers,
]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__)
@pytest.mark.parametrize(
    ("topic", "index", "code"),
    [
        ("t", HERE, 0),
        ("t", ELSEWHERE, NOT_LEADER),
        ("t", LEADERLESS, NOT_LEADER),
        ("t", UNKNOWN, UNKNOWN_PARTITION),
        ("unknown", HERE, UNKNOWN_PARTITION),
    ],
)
def test_a_partition_of_the_cluster_is_told_from_an_unknown_one(
    client: RawConnection, api: Callable[[RawConnection, str, int], int], topic: str, index: int, code: int
) -> None:
    assert api(client, topic, index) == code


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__)
def test_a_partition_that_moved_away_is_not_served(
    broker: ClusterBroker, client: RawConnection, api: Callable[[RawConnection, str, int], int]
) -> None:
    request = leader_and_isr("t", HERE, leader_epoch=EPOCH + 1, leader=OTHER, replicas=(SELF, OTHER))
    assert broker.connect().ask(request, LeaderAndIsrResponse, 7).error_code == 0
    assert api(client, "t", HERE) == NOT_LEADER


@pytest.mark.parametrize(
    ("index", "code"),
    [(HERE, 0), (ELSEWHERE, ErrorCode.REPLICA_NOT_AVAILABLE), (UNKNOWN, UNKNOWN_PARTITION)],
)
def test_a_replica_of_another_broker_does_not_move_between_folders(
    broker: ClusterBroker, client: RawConnection, index: int, code: int
) -> None:
    topics = [AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="t", partitions=[index])]
    (folder,) = [log_dir.path for log_dir in broker.replicas.logs.log_dirs]
    dirs = [AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=folder, topics=topics)]
    answer = client.ask(AlterReplicaLogDirsRequest(dirs=dirs), AlterReplicaLogDirsResponse, 2)
    assert answer.results[0].partitions[0].error_code == code


def test_a_refused_batch_has_no_offsets(broker: ClusterBroker, client: RawConnection) -> None:
    broker.connect().call(
        leader_and_isr("t", HERE, leader_epoch=EPOCH + 1, leader=OTHER, replicas=(SELF, OTHER)), 7
    )
    answer = produced(client, "t", HERE, 9).responses[0].partition_responses[0]
    assert (answer.base_offset, answer.log_start_offset, answer.error_message) == (-1, -1, None)
    read = fetched(client, "t", HERE, ONLY_LEADERS).responses[0].partitions[0]
    assert (read.high_watermark, read.last_stable_offset, read.log_start_offset) == (-1, -1, -1)


def test_consumers_that_know_of_followers_may_read_from_one(
    broker: ClusterBroker, client: RawConnection
) -> None:
    broker.connect().call(
        leader_and_isr("t", HERE, leader_epoch=EPOCH + 1, leader=OTHER, replicas=(SELF, OTHER)), 7
    )
    read = fetched(client, "t", HERE, ONLY_LEADERS + 1).responses[0].partitions[0]
    assert (read.error_code, read.high_watermark) == (0, 0)


@pytest.mark.parametrize(
    ("topic_id", "index", "code"),
    [
        (TOPIC_ID, HERE, 0),
        (TOPIC_ID, ELSEWHERE, NOT_LEADER),
        (TOPIC_ID, UNKNOWN, UNKNOWN_PARTITION),
        (OTHER_ID, HERE, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_topics_are_known_by_id(client: RawConnection, topic_id: bytes, index: int, code: int) -> None:
    found = produced(client, topic_id, index, 13).responses[0]
    assert (found.topic_id, found.partition_responses[0].error_code) == (topic_id, code)
    read = fetched(client, topic_id, index, 17).responses[0]
    assert (read.topic_id, read.partitions[0].error_code) == (topic_id, code)


# -- the present leader (KIP-951)


LeaderOfAnswer = ProduceResponse.LeaderIdAndEpoch | FetchResponse.LeaderIdAndEpoch
Endpoints = Sequence[ProduceResponse.NodeEndpoint] | Sequence[FetchResponse.NodeEndpoint]


def check_leader(found: LeaderOfAnswer | None, endpoints: Endpoints, leader: int | None) -> None:
    """The answer names this leader, and its address if it is another broker; None: no leader is named."""
    if leader is None:
        assert found is None
        assert list(endpoints) == []
        return
    assert found is not None
    assert (found.leader_id, found.leader_epoch) == (leader, EPOCH)
    nodes = [(node.node_id, node.host, node.port, node.rack) for node in endpoints]
    assert nodes == ([(OTHER, "host1", 9010, "r1")] if leader == OTHER else [])


@pytest.mark.parametrize("version", [9, 10, 12, 13])
@pytest.mark.parametrize(("index", "leader"), [(HERE, None), (ELSEWHERE, OTHER), (LEADERLESS, -1)])
def test_a_produce_answer_names_the_present_leader(
    client: RawConnection, version: int, index: int, leader: int | None
) -> None:
    answer = produced(client, TOPIC_ID if version >= 13 else "t", index, version)
    found = answer.responses[0].partition_responses[0].current_leader
    check_leader(found, answer.node_endpoints, leader if version >= 10 else None)


@pytest.mark.parametrize("version", [12, 13, 15, 16, 17])
@pytest.mark.parametrize(("index", "leader"), [(HERE, None), (ELSEWHERE, OTHER), (LEADERLESS, -1)])
def test_a_fetch_answer_names_the_present_leader(
    client: RawConnection, version: int, index: int, leader: int | None
) -> None:
    answer = fetched(client, TOPIC_ID if version >= 13 else "t", index, version)
    found = answer.responses[0].partitions[0].current_leader
    check_leader(found, answer.node_endpoints, leader if version >= 16 else None)


def test_a_fetch_with_an_old_epoch_learns_the_present_one(client: RawConnection) -> None:
    answer = fetched(client, TOPIC_ID, HERE, 17, epoch=EPOCH - 1)
    found = answer.responses[0].partitions[0]
    assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert found.current_leader is not None
    assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (SELF, EPOCH)
    assert [node.node_id for node in answer.node_endpoints] == [SELF]


def test_a_broker_knows_the_new_leader_before_the_metadata(
    broker: ClusterBroker, client: RawConnection
) -> None:
    """LeaderAndIsr comes before UpdateMetadata."""
    request = leader_and_isr("t", HERE, leader_epoch=9, leader=OTHER, replicas=(SELF, OTHER))
    broker.connect().call(request, 7)
    found = produced(client, "t", HERE, 10).responses[0].partition_responses[0].current_leader
    assert found is not None
    assert (found.leader_id, found.leader_epoch) == (OTHER, 9)


# -- metadata


def set_brokers(broker: ClusterBroker, *listeners_of_other: str, is_alive: bool = True) -> None:
    brokers = [live_broker(SELF, (CLIENTS, BROKERS))]
    if is_alive:
        brokers.append(live_broker(OTHER, listeners_of_other))
    broker.connect().call(update(brokers=brokers), 8)


def described(client: RawConnection, version: int) -> dict[int, MetadataResponse.MetadataResponsePartition]:
    wanted = [MetadataRequest.MetadataRequestTopic(name="t")]
    answer = client.ask(MetadataRequest(topics=wanted), MetadataResponse, version)
    return {partition.partition_index: partition for partition in answer.topics[0].partitions}


@pytest.mark.parametrize("version", [1, 4, 5, 6, 9, 13])
def test_metadata_has_leaders_and_offline_replicas(client: RawConnection, version: int) -> None:
    partitions = described(client, version)
    assert [(found.error_code, found.leader_id) for found in partitions.values()] == [
        (0, SELF),
        (0, OTHER),
        (ErrorCode.LEADER_NOT_AVAILABLE, -1),
    ]
    for found in partitions.values():
        assert (found.replica_nodes, found.isr_nodes) == ([SELF, OTHER], [SELF])
        assert found.offline_replicas == ([OTHER] if version >= 5 else [])
        assert found.leader_epoch == (EPOCH if version >= 7 else -1)


@pytest.mark.parametrize("version", [1, 5, 6, 13])
def test_a_leader_without_the_listener_of_the_client_is_not_found(
    broker: ClusterBroker, client: RawConnection, version: int
) -> None:
    set_brokers(broker, BROKERS)
    found = described(client, version)[ELSEWHERE]
    expected = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
    assert (found.error_code, found.leader_id) == (expected, -1)
    assert described(broker.connect(BROKERS), version)[ELSEWHERE].leader_id == OTHER


def test_a_leader_that_is_not_alive_is_not_available(broker: ClusterBroker, client: RawConnection) -> None:
    set_brokers(broker, is_alive=False)
    found = described(client, 13)[ELSEWHERE]
    assert (found.error_code, found.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert found.replica_nodes == [SELF, OTHER]


def test_the_oldest_metadata_lists_replicas_that_can_be_reached(
    broker: ClusterBroker, client: RawConnection
) -> None:
    assert described(client, 0)[HERE].error_code == 0
    set_brokers(broker, BROKERS)
    found = described(client, 0)[HERE]
    assert (found.error_code, found.leader_id) == (ErrorCode.REPLICA_NOT_AVAILABLE, SELF)
    assert (found.replica_nodes, found.isr_nodes) == ([SELF], [SELF])


def test_a_leader_that_this_broker_lost_is_not_available(
    broker: ClusterBroker, client: RawConnection
) -> None:
    lost = {OTHER}
    broker.services.metadata.hidden_leaders = lambda: lost
    found = described(client, 13)
    assert (found[ELSEWHERE].error_code, found[ELSEWHERE].leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert found[0].leader_id == SELF
    lost.clear()
    assert described(client, 13)[ELSEWHERE].leader_id == OTHER


def test_a_leader_that_is_lost_while_a_client_asks_is_not_available(
    broker: ClusterBroker, client: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.server.apis.metadata.EVENTS_SECONDS", 0.5)
    lost: set[int] = set()
    broker.services.metadata.hidden_leaders = lambda: lost
    client.send(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")]), 13)
    # This one is answered at once, after the request above was read.
    broker.connect(CLIENTS).ask(MetadataRequest(topics=[]), MetadataResponse, 13)
    lost.add(OTHER)
    answer = client.receive(MetadataRequest, 13)
    assert isinstance(answer, MetadataResponse)
    assert answer.topics[0].partitions[ELSEWHERE].error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_metadata_lists_the_brokers_of_the_listener(broker: ClusterBroker, client: RawConnection) -> None:
    answer = client.ask(MetadataRequest(topics=[]), MetadataResponse, 13)
    assert [(node.node_id, node.host, node.port, node.rack) for node in answer.brokers] == [
        (SELF, "host0", 9000, "r0"),
        (OTHER, "host1", 9010, "r1"),
    ]
    assert (answer.controller_id, answer.cluster_id) == (OTHER, "cluster")
    set_brokers(broker, BROKERS)
    answer = client.ask(MetadataRequest(topics=[]), MetadataResponse, 13)
    assert [node.node_id for node in answer.brokers] == [SELF]


def test_described_partitions_have_the_same_leaders(broker: ClusterBroker, client: RawConnection) -> None:
    def pages() -> list[tuple[int, int, list[int]]]:
        topics = [DescribeTopicPartitionsRequest.TopicRequest(name="t")]
        answer = client.ask(DescribeTopicPartitionsRequest(topics=topics), DescribeTopicPartitionsResponse, 0)
        return [(p.error_code, p.leader_id, p.offline_replicas) for p in answer.topics[0].partitions]

    leaderless = (ErrorCode.LEADER_NOT_AVAILABLE, -1, [OTHER])
    assert pages() == [(0, SELF, [OTHER]), (0, OTHER, [OTHER]), leaderless]
    set_brokers(broker, BROKERS)
    assert pages() == [(0, SELF, [OTHER]), (ErrorCode.LISTENER_NOT_FOUND, -1, [OTHER]), leaderless]


# -- coordinators


def groups_of(broker: ClusterBroker) -> tuple[str, str]:
    """Spread the offsets topic over both brokers; returns a group of this broker and one of the other."""
    controller = broker.connect()
    controller.call(leader_and_isr(OFFSETS, 0, topic_id=OTHER_ID, leader_epoch=EPOCH), 7)
    topic = topic_state(OFFSETS, OTHER_ID, {0: SELF, 1: OTHER})
    brokers = [live_broker(SELF, (CLIENTS, BROKERS)), live_broker(OTHER, (CLIENTS, BROKERS))]
    controller.call(update(topic, brokers=brokers), 8)
    names = [f"group-{number}" for number in range(20)]
    own = next(name for name in names if partition_for_id(name, 2) == 0)
    other = next(name for name in names if partition_for_id(name, 2) == 1)
    return own, other


def test_any_broker_finds_the_coordinator(broker: ClusterBroker, client: RawConnection) -> None:
    own, other = groups_of(broker)
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[own, other])
    answer = client.ask(request, FindCoordinatorResponse, 4)
    assert [(found.node_id, found.host, found.port) for found in answer.coordinators] == [
        (SELF, "host0", 9000),
        (OTHER, "host1", 9010),
    ]
    set_brokers(broker, BROKERS)
    answer = client.ask(request, FindCoordinatorResponse, 4)
    codes = [found.error_code for found in answer.coordinators]
    assert codes == [0, ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_no_coordinator_is_found_while_some_partitions_are_not_known(
    broker: ClusterBroker, client: RawConnection
) -> None:
    brokers = [live_broker(SELF, (CLIENTS, BROKERS))]
    broker.connect().call(update(topic_state(OFFSETS, OTHER_ID, {0: SELF, 2: SELF}), brokers=brokers), 8)
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[f"group-{n}" for n in range(9)])
    answer = client.ask(request, FindCoordinatorResponse, 4)
    codes = {found.error_code for found in answer.coordinators}
    assert codes == {ErrorCode.COORDINATOR_NOT_AVAILABLE}, "each may have its group in another partition"


def test_a_group_of_another_coordinator_is_refused(broker: ClusterBroker, client: RawConnection) -> None:
    own, other = groups_of(broker)
    request = DescribeGroupsRequest(groups=[own, other])

    def codes() -> list[int]:
        return [group.error_code for group in client.ask(request, DescribeGroupsResponse, 5).groups]

    eventually(lambda: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS not in codes(), "the groups are loaded")
    assert codes() == [0, ErrorCode.NOT_COORDINATOR]
    assert client.ask(ListGroupsRequest(), ListGroupsResponse, 4).groups == []


# -- settings


def settings(client: RawConnection, kind: int, name: str) -> tuple[int, dict[str, str | None]]:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    answer = client.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 4)
    (result,) = answer.results
    return result.error_code, {
        entry.name: entry.value for entry in result.configs if entry.config_source == 1
    }


def test_the_settings_of_a_topic_come_from_the_tree(broker: ClusterBroker, client: RawConnection) -> None:
    topic = 2
    assert settings(client, topic, "t") == (0, {})
    broker.tree["t"] = {"retention.ms": "4711"}
    assert settings(client, topic, "t") == (0, {"retention.ms": "4711"})
    assert settings(client, topic, "unknown") == (UNKNOWN_PARTITION, {})
    broker.tree_is_there = False
    assert settings(client, topic, "t") == (ErrorCode.KAFKA_STORAGE_ERROR, {})


def test_a_broker_describes_its_own_settings_only(client: RawConnection) -> None:
    broker = 4
    assert settings(client, broker, str(SELF))[0] == 0
    assert settings(client, broker, str(OTHER))[0] == ErrorCode.INVALID_REQUEST


def test_nothing_is_known_before_the_first_update(tmp_path: Path) -> None:
    with ClusterBroker(tmp_path / "log") as broker:
        client = broker.connect(CLIENTS)
        assert produce(client, "t", 0) == UNKNOWN_PARTITION
        client.send(MetadataRequest(topics=None), 13)
        with pytest.raises(NoAnswer):
            client.receive(MetadataRequest, 13, 0.2)
