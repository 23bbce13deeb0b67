"""The requests between brokers over sockets: who may send them, and what is answered."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.cluster.controlled import (
    NO_ID,
    OTHER,
    TOPIC_ID,
    leader_and_isr,
    live_broker,
    stop_replica,
    topic_state,
    update_metadata,
)
from tests.cluster.world import SELF
from tests.server.cluster_broker import BROKERS, CLIENTS, CONTROL, EPOCH, ClusterBroker
from tests.storage.helpers import batch
from tests.support.raw import NoAnswer, RawConnection
from tests.support.wait import eventually
from tidelog.clients.connection import answer_body, request_frame
from tidelog.controller.interface import NewTopic
from tidelog.errors import ErrorCode
from tidelog.network.limits import NetworkLimits
from tidelog.protocol.message import Message
from tidelog.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.principal import DefaultPrincipalData
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tidelog.server.apis import served_apis
from tidelog.server.controller_channel import ControllerChannel
from tidelog.server.forwarding import ForwardingManager

BETWEEN_BROKERS = {4, 5, 6, 7, 56, 58, 67}
OF_CONTROLLER: dict[str, tuple[LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest, int]] = {
    "LeaderAndIsr": (leader_and_isr(), 7),
    "StopReplica": (stop_replica(), 4),
    "UpdateMetadata": (update_metadata(topic_state("t")), 8),
}
OF_BROKERS: dict[str, tuple[Message, int]] = {
    "ControlledShutdown": (ControlledShutdownRequest(broker_id=1, broker_epoch=EPOCH), 3),
    "AlterPartition": (AlterPartitionRequest(broker_id=1, broker_epoch=EPOCH), 3),
    "AllocateProducerIds": (AllocateProducerIdsRequest(broker_id=1, broker_epoch=EPOCH), 0),
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ClusterBroker]:
    with ClusterBroker(tmp_path / "log") as running:
        yield running


def error_code(connection: RawConnection, request: Message, version: int) -> int:
    """The error code of the whole answer."""
    code: int = connection.call(request, version).error_code  # type: ignore[attr-defined]
    return code


# -- who may send them


def test_only_brokers_of_a_cluster_serve_them() -> None:
    assert not BETWEEN_BROKERS & served_apis().keys()
    in_cluster = served_apis(cluster=True)
    assert {key for key, api in in_cluster.items() if api.from_brokers} == BETWEEN_BROKERS
    assert in_cluster.keys() - served_apis().keys() == BETWEEN_BROKERS


@pytest.mark.parametrize("listener", [CLIENTS, BROKERS, CONTROL])
def test_only_listeners_of_brokers_announce_them(broker: ClusterBroker, listener: str) -> None:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    answer = broker.connect(listener).ask(request, ApiVersionsResponse, 4)
    announced = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert BETWEEN_BROKERS & announced.keys() == (set() if listener == CLIENTS else BETWEEN_BROKERS)
    if listener != CLIENTS:
        assert (announced[4], announced[5], announced[6]) == ((5, 7), (3, 4), (7, 8))


@pytest.mark.parametrize("name", [*OF_CONTROLLER, *OF_BROKERS])
def test_a_listener_of_clients_refuses_them(broker: ClusterBroker, name: str) -> None:
    request, version = {**OF_CONTROLLER, **OF_BROKERS}[name]
    code = error_code(broker.connect(CLIENTS), request, version)
    assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert broker.replicas.topics == {}
    assert not broker.metadata.is_initialized


@pytest.mark.parametrize("listener", [BROKERS, CONTROL])
def test_the_controller_makes_a_broker_lead_and_stop(broker: ClusterBroker, listener: str) -> None:
    connection = broker.connect(listener)
    for version in (5, 6, 7):
        answer = connection.ask(leader_and_isr(leader_epoch=version), LeaderAndIsrResponse, version)
        assert answer.error_code == 0
        assert [topic.topic_id for topic in answer.topics] == [TOPIC_ID]
        assert [error.error_code for topic in answer.topics for error in topic.partition_errors] == [0]
    for version in (7, 8):
        updated = connection.ask(update_metadata(topic_state("t")), UpdateMetadataResponse, version)
        assert updated.error_code == 0
    assert produced(connection) == 0
    for version in (3, 4):
        stopped = connection.ask(stop_replica(), StopReplicaResponse, version)
        assert [(e.topic_name, e.partition_index, e.error_code) for e in stopped.partition_errors] == [
            ("t", 0, 0)
        ]
    assert produced(connection) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def produce_request(topic: str = "t", *, acks: int = -1) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch()))
    return ProduceRequest(
        acks=acks,
        timeout_ms=60_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )


def produced(connection: RawConnection) -> int:
    answer = connection.ask(produce_request(), ProduceResponse, 9)
    return answer.responses[0].partition_responses[0].error_code


# -- epochs


@pytest.mark.parametrize("name", OF_CONTROLLER)
@pytest.mark.parametrize(
    ("broker_epoch", "code"),
    [(-1, 0), (EPOCH - 1, ErrorCode.STALE_BROKER_EPOCH), (EPOCH, 0), (EPOCH + 1, 0), (0, 77)],
)
def test_a_request_for_an_earlier_registration_is_refused(
    broker: ClusterBroker, name: str, broker_epoch: int, code: int
) -> None:
    request, version = OF_CONTROLLER[name]
    request.broker_epoch = broker_epoch
    try:
        assert error_code(broker.connect(), request, version) == code
    finally:
        request.broker_epoch = -1
    assert (broker.states.controller_epoch == 0) is (code != 0)


@pytest.mark.parametrize("name", OF_CONTROLLER)
@pytest.mark.parametrize(
    ("epoch", "code"),
    [(4, ErrorCode.STALE_CONTROLLER_EPOCH), (5, 0), (6, 0), (0, ErrorCode.STALE_CONTROLLER_EPOCH)],
)
def test_a_request_of_an_earlier_controller_is_refused(
    broker: ClusterBroker, name: str, epoch: int, code: int
) -> None:
    connection = broker.connect()
    assert error_code(connection, update_metadata(controller_epoch=5), 8) == 0
    request, version = OF_CONTROLLER[name]
    request.controller_epoch = epoch
    try:
        assert error_code(connection, request, version) == code
    finally:
        request.controller_epoch = 1
    assert ("t" in broker.replicas.topics) is (name == "LeaderAndIsr" and not code)


@pytest.mark.parametrize("name", OF_CONTROLLER)
def test_a_request_over_a_connection_that_the_controller_gave_up_is_refused(
    broker: ClusterBroker, name: str
) -> None:
    """It was sent again over the next connection, perhaps with others after it."""
    request, version = OF_CONTROLLER[name]
    given_up, newer = broker.connect(), broker.connect()
    assert error_code(given_up, update_metadata(), 8) == 0
    assert error_code(newer, update_metadata(), 8) == 0
    assert error_code(given_up, request, version) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert "t" not in broker.replicas.topics
    question = StopReplicaRequest(controller_id=1, controller_epoch=1, broker_epoch=-1, refusing_broker_id=1)
    assert error_code(broker.connect(), question, 4) == 0  # has a connection of its own
    assert error_code(newer, request, version) == 0
    assert error_code(given_up, update_metadata(controller_epoch=2), 8) == 0  # of the next controller


@pytest.mark.parametrize("name", OF_CONTROLLER)
def test_a_kraft_controller_is_refused(broker: ClusterBroker, name: str) -> None:
    request, version = OF_CONTROLLER[name]
    request.is_kraft_controller = True
    try:
        assert error_code(broker.connect(), request, version) == ErrorCode.INVALID_REQUEST
    finally:
        request.is_kraft_controller = False


def test_settings_that_cannot_be_read_fail_the_request_alone(broker: ClusterBroker) -> None:
    broker.tree_is_there = False
    connection = broker.connect()
    assert error_code(connection, leader_and_isr(), 7) == ErrorCode.UNKNOWN_SERVER_ERROR
    broker.tree_is_there = True
    broker.tree["t"] = {"segment.bytes": "2000000"}
    assert error_code(connection, leader_and_isr(), 7) == 0
    assert broker.replicas.partition("t", 0).leader_log().config.segment_bytes == 2_000_000


# -- the gate of the request queue


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[ClusterBroker]:
    """A broker that handles one request at a time."""
    with ClusterBroker(tmp_path / "log", NetworkLimits(queued_max_requests=1)) as running:
        yield running


def fill_the_queue(broker: ClusterBroker) -> None:
    """A request of a client is in progress, as if its handler took long."""

    def fill() -> None:
        broker.server.context.in_progress += 1
        broker.server.context.check_limits()

    broker.on_loop(fill)


def drain_the_queue(broker: ClusterBroker) -> None:
    def drain() -> None:
        broker.server.context.in_progress -= 1
        broker.server.context.check_limits()

    broker.on_loop(drain)


def test_the_controller_does_not_wait_behind_clients(narrow: ClusterBroker) -> None:
    known, control, client = narrow.connect(), narrow.connect(CONTROL), narrow.connect(CLIENTS)
    assert error_code(known, update_metadata(), 8) == 0
    fill_the_queue(narrow)
    client.send(MetadataRequest(topics=[]), 9)
    with pytest.raises(NoAnswer):
        client.receive(MetadataRequest, 9, 0.2)
    for connection in (known, control):
        assert error_code(connection, update_metadata(), 8) == 0
    assert error_code(control, leader_and_isr(), 7) == 0
    drain_the_queue(narrow)
    client.receive(MetadataRequest, 9)
    assert narrow.server.context.in_progress == 0


def test_requests_for_another_controller_leave_room_for_others(narrow: ClusterBroker) -> None:
    class Slow:
        async def call(self, request: Message, answer: type[Message]) -> Message:
            return await asyncio.get_running_loop().create_future()

    cluster = narrow.services.cluster
    assert cluster is not None
    cluster.forwarding = ForwardingManager(cast("ControllerChannel", Slow()), lambda: False, lambda: True)
    admin, client, first_of_controller = narrow.connect(CLIENTS), narrow.connect(CLIENTS), narrow.connect()
    admin.send(CreateTopicsRequest(), 7)
    with pytest.raises(NoAnswer):
        admin.receive(CreateTopicsRequest, 7, 0.2)
    client.call(ApiVersionsRequest(), 0)
    assert error_code(first_of_controller, update_metadata(), 8) == 0


def test_a_large_request_of_the_controller_does_not_wait_for_memory(tmp_path: Path) -> None:
    with ClusterBroker(tmp_path / "log", NetworkLimits(queued_max_request_bytes=1)) as broker:
        connection, client = broker.connect(CONTROL), broker.connect(CLIENTS)

        def use_up() -> None:
            broker.server.context.pool.used += 1
            broker.server.context.check_limits()

        broker.on_loop(use_up)
        client.send(MetadataRequest(topics=[]), 9)
        with pytest.raises(NoAnswer):
            client.receive(MetadataRequest, 9, 0.2)
        leaders = dict.fromkeys(range(2_000), OTHER)
        assert error_code(connection, update_metadata(topic_state("t", leaders=leaders)), 8) == 0
        assert len(broker.metadata.snapshot.topics["t"].partitions) == 2_000


# -- requests that the active controller answers


@pytest.mark.parametrize("name", OF_BROKERS)
def test_a_broker_that_is_not_the_controller_says_so(broker: ClusterBroker, name: str) -> None:
    broker.controller.is_active = False
    request, version = OF_BROKERS[name]
    assert error_code(broker.connect(), request, version) == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("version", [2, 3])
def test_a_controlled_shutdown_answers_with_the_partitions_left(broker: ClusterBroker, version: int) -> None:
    broker.controller.remaining = [("t", 0), ("u", 7)]
    connection = broker.connect()
    request = ControlledShutdownRequest(broker_id=1, broker_epoch=EPOCH)
    answer = connection.ask(request, ControlledShutdownResponse, version)
    assert [(left.topic_name, left.partition_index) for left in answer.remaining_partitions] == [
        ("t", 0),
        ("u", 7),
    ]
    request.broker_epoch = 1
    assert error_code(connection, request, version) == ErrorCode.STALE_BROKER_EPOCH


def test_the_controller_gets_alter_partition_with_its_version(broker: ClusterBroker) -> None:
    connection = broker.connect()
    for version in (2, 3):
        answer = connection.ask(AlterPartitionRequest(broker_id=7), AlterPartitionResponse, version)
        assert [topic.topic_id for topic in answer.topics] == [b"T" * 16]
    assert [(request.broker_id, version) for request, version in broker.controller.altered] == [
        (7, 2),
        (7, 3),
    ]


def test_producer_ids_come_in_blocks(broker: ClusterBroker) -> None:
    answer = broker.connect().ask(AllocateProducerIdsRequest(broker_id=3), AllocateProducerIdsResponse, 0)
    assert (answer.error_code, answer.producer_id_start, answer.producer_id_len) == (0, 3000, 1000)


# -- envelopes


def principal(name: str = "alice") -> bytes:
    return b"\0\0" + DefaultPrincipalData(type="User", name=name).encode(0)


def envelope(
    request: bytes, *, principal: bytes | None = principal(), address: bytes = b"\x7f\0\0\x02"
) -> EnvelopeRequest:
    return EnvelopeRequest(request_data=request, request_principal=principal, client_host_address=address)


def create_topic(name: str = "new", version: int = 7) -> bytes:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return request_frame(CreateTopicsRequest(topics=[topic]), version, 4711, "client")[4:]


@pytest.mark.parametrize("version", [2, 5, 7])
def test_the_controller_answers_the_request_in_an_envelope(broker: ClusterBroker, version: int) -> None:
    answer = broker.connect().ask(envelope(create_topic(version=version)), EnvelopeResponse, 0)
    assert answer.error_code == 0
    assert answer.response_data is not None
    data = bytes(answer.response_data)
    assert struct.unpack_from(">i", data)[0] == 4711
    inner = CreateTopicsResponse.decode(answer_body(CreateTopicsRequest, version, data), version)
    assert [(topic.name, topic.error_code) for topic in inner.topics] == [("new", 0)]
    assert broker.controller.created == ["new"]


def test_the_request_in_an_envelope_has_the_client_of_the_other_broker(
    broker: ClusterBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    handle = broker.services.handle

    def noted(request: object) -> None:
        seen.append(request)
        handle(request)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.services, "handle", noted)
    broker.connect().call(envelope(create_topic()), 0)
    (request,) = seen
    assert (request.principal, request.listener, request.client_id) == ("User:alice", BROKERS, "client")
    assert request.channel.peer == "127.0.0.2:0"
    assert request.is_forwarded


@pytest.mark.parametrize(
    ("request_data", "options", "code"),
    [
        (b"", {}, ErrorCode.INVALID_REQUEST),
        (b"\0", {}, ErrorCode.INVALID_REQUEST),
        (create_topic()[:9], {}, ErrorCode.INVALID_REQUEST),
        (create_topic()[:20], {}, ErrorCode.INVALID_REQUEST),  # the body is cut short
        (request_frame(MetadataRequest(topics=[]), 9, 1, "c")[4:], {}, ErrorCode.INVALID_REQUEST),
        (request_frame(leader_and_isr(), 7, 1, "c")[4:], {}, ErrorCode.INVALID_REQUEST),
        (b"\x7f\x7f" + create_topic()[2:], {}, ErrorCode.INVALID_REQUEST),
        (b"\0\x13\0\x63" + create_topic()[4:], {}, ErrorCode.UNSUPPORTED_VERSION),
        (create_topic(), {"address": b"\x7f"}, ErrorCode.INVALID_REQUEST),
        (create_topic(), {"principal": None}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (create_topic(), {"principal": b""}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (
            create_topic(),
            {"principal": b"\0\x09" + principal()[2:]},
            ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE,
        ),
        (create_topic(), {"principal": principal()[:5]}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
    ],
)
def test_an_envelope_that_cannot_be_opened_is_refused(
    broker: ClusterBroker, request_data: bytes, options: dict[str, bytes], code: int
) -> None:
    connection = broker.connect()
    assert error_code(connection, envelope(request_data, **options), 0) == code
    assert broker.controller.created == []
    assert error_code(connection, envelope(create_topic()), 0) == 0  # the connection stays


def test_an_envelope_finds_the_controller_gone(broker: ClusterBroker) -> None:
    connection = broker.connect()
    broker.controller.moves_on = True
    answer = connection.ask(envelope(create_topic()), EnvelopeResponse, 0)
    assert (answer.error_code, answer.response_data) == (ErrorCode.NOT_CONTROLLER, None)
    broker.controller.is_active = False
    assert error_code(connection, envelope(create_topic()), 0) == ErrorCode.NOT_CONTROLLER


def test_a_client_that_sends_an_envelope_is_disconnected(broker: ClusterBroker) -> None:
    connection = broker.connect(CLIENTS)
    connection.send(envelope(create_topic()), 0)
    assert connection.is_closed_by_peer()


def test_a_partition_answers_for_itself(broker: ClusterBroker) -> None:
    """One request may have partitions with any outcome."""
    connection = broker.connect()
    connection.call(leader_and_isr("t", 0, leader_epoch=5), 7)
    request = leader_and_isr("t", 0, leader_epoch=4)
    others = [leader_and_isr("t", 1), leader_and_isr("t", 2, replicas=(OTHER,), leader=OTHER)]
    request.topic_states[0].partition_states += [one.topic_states[0].partition_states[0] for one in others]
    request.topic_states += leader_and_isr("u", 0, topic_id=NO_ID).topic_states
    answer = connection.ask(request, LeaderAndIsrResponse, 7)
    codes = [[error.error_code for error in topic.partition_errors] for topic in answer.topics]
    expected = [ErrorCode.STALE_CONTROLLER_EPOCH, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes == [expected, [0]]
    stop = stop_replica("t", 0, leader_epoch=4)
    stop.topic_states += stop_replica("t", 1).topic_states + stop_replica("gone", 3).topic_states
    stopped = connection.ask(stop, StopReplicaResponse, 4)
    assert [(e.topic_name, e.partition_index, e.error_code) for e in stopped.partition_errors] == [
        ("t", 0, ErrorCode.FENCED_LEADER_EPOCH),
        ("t", 1, 0),
        ("gone", 3, 0),
    ]


@pytest.mark.parametrize("version", [3, 4])
def test_a_broker_says_whether_another_one_refuses_its_connections(
    broker: ClusterBroker, version: int
) -> None:
    connection = broker.connect()
    broker.refusing.add(OTHER)
    for asked, is_refused in ((OTHER, True), (OTHER + 1, False), (-1, False)):
        question = StopReplicaRequest(
            controller_id=OTHER, controller_epoch=1, broker_epoch=EPOCH, refusing_broker_id=asked
        )
        assert connection.ask(question, StopReplicaResponse, version).is_refused == is_refused
    question.controller_epoch, question.refusing_broker_id = 0, OTHER
    refused = connection.ask(question, StopReplicaResponse, version)
    assert (refused.error_code, refused.is_refused) == (ErrorCode.STALE_CONTROLLER_EPOCH, False)


def test_a_thousand_partitions_are_led_at_once(broker: ClusterBroker) -> None:
    request = leader_and_isr("t", 0)
    for index in range(1, 1_000):
        one = leader_and_isr("t", index).topic_states[0].partition_states[0]
        request.topic_states[0].partition_states.append(one)
    answer = broker.connect().ask(request, LeaderAndIsrResponse, 7, 60.0)
    assert {error.error_code for error in answer.topics[0].partition_errors} == {0}
    assert len(broker.replicas.topics["t"].partitions) == 1_000
    assert broker.replicas.partition("t", 999).leader_id == SELF


def test_brokers_without_a_common_listener_are_known_by_it(broker: ClusterBroker) -> None:
    brokers = [live_broker(SELF, (CLIENTS, BROKERS)), live_broker(OTHER, (BROKERS,))]
    assert error_code(broker.connect(), update_metadata(brokers=brokers), 8) == 0
    assert broker.metadata.snapshot.brokers[OTHER].endpoint(CLIENTS) is None


def test_waits_for_an_internal_topic_do_not_fill_the_request_queue(tmp_path: Path) -> None:
    """The topic becomes known by a request of the controller, which waits in the same queue."""
    limits = NetworkLimits(queued_max_requests=2)
    with ClusterBroker(tmp_path, limits) as broker:
        created: list[NewTopic] = []
        done = asyncio.Event()

        async def ensure(topic: NewTopic, quota: object) -> None:
            created.append(topic)
            await done.wait()

        broker.services.internal_topics = SimpleNamespace(ensure=ensure)  # type: ignore[assignment]
        clients = [broker.connect(CLIENTS) for _ in range(4)]
        for number, client in enumerate(clients):
            request = FindCoordinatorRequest(key=f"group-{number}", key_type=0)
            client.send_bytes(request_frame(request, 3, 1, "member"))
        eventually(lambda: len(created) == 4, "all four wait for the topic")
        answer = broker.connect(BROKERS).ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
        assert answer.error_code == 0
        broker.on_loop(done.set)
        for client in clients:
            client.receive_frame()
