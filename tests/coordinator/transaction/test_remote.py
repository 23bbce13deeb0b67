"""Markers for and verification by other brokers, request by request, over a scripted network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest

from tidelog.clock import SimulatedScheduler
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.coordinator.transaction.markers import Marker, MarkerDone
from tidelog.coordinator.transaction.remote_markers import RETRY_SECONDS, RemoteMarkers
from tidelog.coordinator.transaction.remote_verification import TOPIC, Errors, RemoteVerification
from tidelog.endpoints import Endpoint
from tidelog.errors import (
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    NetworkException,
    NotLeaderOrFollower,
    ProducerFenced,
    RequestTimedOut,
    SaslAuthenticationFailed,
    TransactionCoordinatorFenced,
    UnsupportedVersion,
)
from tidelog.metadata.state import BrokerRegistration, ClusterState, PartitionState, TopicState
from tidelog.partitions import PartitionKey
from tidelog.protocol.message import Message
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tidelog.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

R = TypeVar("R", bound=Message)
HERE, THERE, ELSEWHERE = 0, 1, 2
MARKER = Marker(7, 3, 5, True, 2)


class Call:
    """A request on its way; the test answers it."""

    def __init__(self, broker_id: int, request: Message, version: int | None) -> None:
        self.broker_id = broker_id
        self.request = request
        self.version = version
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()


class Network:
    """Implements Transport: every request waits for the test.

    Brokers in `down` refuse connections, and those in `silent` do not answer.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.down: dict[int, KafkaError] = {}
        self.silent: set[int] = set()
        self.connections = 0

    async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> Connection:
        if broker_id in self.silent:
            await asyncio.Event().wait()
        if broker_id in self.down:
            raise self.down[broker_id]
        self.connections += 1
        return Connection(self, broker_id)


class Connection:
    def __init__(self, network: Network, broker_id: int) -> None:
        self.closed = False
        self._network = network
        self._broker_id = broker_id
        self._call: Call | None = None

    async def call(
        self, request: Message, answer: type[R], *, version: int | None = None, timeout: float | None = None
    ) -> R:
        self._call = Call(self._broker_id, request, version)
        self._network.calls.append(self._call)
        found = await self._call.answer
        assert isinstance(found, answer)
        return found

    def close(self, reason: str = "it was closed") -> None:
        self.closed = True
        if self._call is not None and not self._call.answer.done():
            self._call.answer.set_exception(NetworkException(reason))


class Local:
    """The markers of this broker."""

    def __init__(self) -> None:
        self.written: list[tuple[Marker, list[PartitionKey]]] = []
        self.errors: dict[PartitionKey, KafkaError] = {}

    def write(self, marker: Marker, partitions: list[PartitionKey], done: MarkerDone) -> None:
        self.written.append((marker, list(partitions)))
        for key in list(partitions):
            done(key, self.errors.pop(key, None))

    def cancel(self, done: MarkerDone) -> None: ...


class Stage:
    def __init__(self) -> None:
        self.scheduler = SimulatedScheduler()
        self.metadata = MetadataCache("cluster")
        self.network = Network()
        self.local = Local()
        self.alive = {HERE, THERE, ELSEWHERE}
        self.leaders: dict[PartitionKey, int] = {}
        self.markers = RemoteMarkers(
            HERE,
            self.local,  # type: ignore[arg-type]
            self.metadata,
            self.scheduler,
            self.network,
            self.endpoint_of,
            lambda: 1000,
        )
        self.verification = RemoteVerification(self.metadata, self.network, self.endpoint_of, lambda: 1000)
        self.done: list[tuple[PartitionKey, KafkaError | None]] = []
        self.verified: list[tuple[str, Errors]] = []

    def endpoint_of(self, broker_id: int) -> Endpoint | None:
        return Endpoint("L", "PLAINTEXT", "host", broker_id) if broker_id in self.alive else None

    def lead(self, **leaders: int) -> None:
        """The leaders of partitions by names such as `t_0`; a leader of -9 deletes the partition."""
        for name, leader in leaders.items():
            topic, _, index = name.rpartition("_")
            if leader == -9:
                self.leaders.pop((topic, int(index)), None)
            else:
                self.leaders[topic, int(index)] = leader
        topics: dict[str, TopicState] = {}
        for (topic, number), leader in self.leaders.items():
            state = topics.setdefault(topic, TopicState(topic, topic.encode()[:16].ljust(16, b"-"), {}))
            state.partitions[number] = PartitionState([leader], leader, 0, [leader])
        brokers = {broker: BrokerRegistration(broker, []) for broker in self.alive}
        self.metadata.update(ClusterState("cluster", brokers=brokers).with_topics(topics.values()))

    def write(self, *keys: PartitionKey, marker: Marker = MARKER) -> None:
        self.markers.write(marker, keys, self.written)

    def written(self, key: PartitionKey, error: KafkaError | None) -> None:
        self.done.append((key, error))

    def verify(
        self, name: str, epoch: int = 0, partition: PartitionKey = ("t", 0), *, adds: bool = False
    ) -> None:
        self.verification.check(
            0,
            name,
            7,
            epoch,
            frozenset((partition,)),
            adds=adds,
            done=lambda errors: self.verified.append((name, errors)),
        )

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        self.scheduler.advance(seconds)
        await self.settle()

    @property
    def kinds(self) -> list[tuple[str, type[KafkaError] | None]]:
        """What each transaction was told of its partition."""
        return [(name, type(next(iter(errors.values()), None))) for name, errors in self.verified]  # type: ignore[misc]


def on_loop(test: Callable[[Stage], Coroutine[None, None, None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            stage = Stage()
            await test(stage)
            stage.markers.close()
            stage.verification.close()
            await stage.settle()

        asyncio.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def markers_in(call: Call) -> list[tuple[int, bool, dict[str, list[int]]]]:
    assert isinstance(call.request, WriteTxnMarkersRequest)
    return [
        (
            marker.producer_id,
            marker.transaction_result,
            {topic.name: topic.partition_indexes for topic in marker.topics},
        )
        for marker in call.request.markers
    ]


def answer_markers(call: Call, codes: dict[PartitionKey, int] | None = None) -> None:
    assert isinstance(call.request, WriteTxnMarkersRequest)
    call.answer.set_result(
        WriteTxnMarkersResponse(
            markers=[
                WriteTxnMarkersResponse.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                                    partition_index=index,
                                    error_code=(codes or {}).get((topic.name, index), 0),
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in call.request.markers
            ]
        )
    )


# -- markers -----------------------------------------------------------------------------------------


@on_loop
async def test_markers_go_to_the_leaders(stage: Stage) -> None:
    stage.lead(t_0=HERE, t_1=THERE, t_2=ELSEWHERE, u_0=THERE)
    stage.write(("t", 0), ("t", 1), ("t", 2), ("u", 0))
    assert stage.local.written == [(MARKER, [("t", 0)])]
    await stage.settle()
    assert {call.broker_id: markers_in(call) for call in stage.network.calls} == {
        THERE: [(7, True, {"t": [1], "u": [0]})],
        ELSEWHERE: [(7, True, {"t": [2]})],
    }
    assert stage.done == [(("t", 0), None)]
    for call in stage.network.calls:
        answer_markers(call)
    await stage.settle()
    assert sorted(stage.done) == [(key, None) for key in (("t", 0), ("t", 1), ("t", 2), ("u", 0))]


@on_loop
async def test_a_broker_has_one_request_in_flight_with_the_markers_of_many_transactions(stage: Stage) -> None:
    stage.lead(t_0=THERE, t_1=THERE)
    stage.write(("t", 0))
    await stage.settle()
    stage.write(("t", 1), marker=MARKER._replace(producer_id=8))
    stage.write(("t", 0), marker=MARKER._replace(producer_id=9, commit=False))
    # The next marker of a producer goes alone: the answer names producers only.
    stage.write(("t", 1), marker=MARKER._replace(producer_id=8, producer_epoch=4))
    await stage.settle()
    assert len(stage.network.calls) == 1
    answer_markers(stage.network.calls[0])
    await stage.settle()
    assert markers_in(stage.network.calls[1]) == [(8, True, {"t": [1]}), (9, False, {"t": [0]})]
    answer_markers(stage.network.calls[1])
    await stage.settle()
    assert markers_in(stage.network.calls[2]) == [(8, True, {"t": [1]})]
    answer_markers(stage.network.calls[2])
    await stage.settle()
    assert len(stage.done) == 4
    assert stage.network.connections == 1


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_a_marker_that_is_refused_for_now_finds_the_next_leader(code: int) -> None:
    @on_loop
    async def test(stage: Stage) -> None:
        stage.lead(t_0=THERE, t_1=THERE)
        stage.write(("t", 0), ("t", 1))
        await stage.settle()
        answer_markers(stage.network.calls[0], {("t", 0): code})
        await stage.settle()
        assert stage.done == [(("t", 1), None)]
        stage.lead(t_0=ELSEWHERE)
        await stage.advance(RETRY_SECONDS)
        (call,) = stage.network.calls[1:]
        assert (call.broker_id, markers_in(call)) == (ELSEWHERE, [(7, True, {"t": [0]})])
        answer_markers(call)
        await stage.settle()
        assert stage.done == [(("t", 1), None), (("t", 0), None)]

    test()


@pytest.mark.parametrize("kind", [InvalidProducerEpoch, TransactionCoordinatorFenced])
def test_a_fenced_marker_is_told_to_the_coordinator(kind: type[KafkaError]) -> None:
    @on_loop
    async def test(stage: Stage) -> None:
        stage.lead(t_0=THERE)
        stage.write(("t", 0))
        await stage.settle()
        answer_markers(stage.network.calls[0], {("t", 0): kind.code})
        await stage.settle()
        ((key, error),) = stage.done
        assert key == ("t", 0)
        assert type(error) is kind

    test()


@on_loop
async def test_a_partition_without_transactions_needs_no_marker(stage: Stage) -> None:
    stage.lead(t_0=THERE)
    stage.write(("t", 0))
    await stage.settle()
    answer_markers(stage.network.calls[0], {("t", 0): ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT})
    await stage.settle()
    assert stage.done == [(("t", 0), None)]


@on_loop
async def test_markers_wait_for_a_leader_and_deleted_partitions_need_none(stage: Stage) -> None:
    stage.lead(t_0=-1, t_1=-2, t_2=THERE)
    stage.alive.discard(THERE)
    stage.write(("t", 0), ("t", 1), ("t", 2), ("gone", 0))
    await stage.advance(1.0)
    assert stage.done == [(("gone", 0), None)]
    stage.lead(t_0=HERE, t_1=-9)
    await stage.advance(RETRY_SECONDS)
    assert stage.done[1:] == [(("t", 1), None), (("t", 0), None)]
    stage.alive.add(THERE)
    await stage.advance(RETRY_SECONDS)
    answer_markers(stage.network.calls[0])
    await stage.settle()
    assert stage.done[3:] == [(("t", 2), None)]


@on_loop
async def test_before_the_first_metadata_no_partition_is_deleted(stage: Stage) -> None:
    stage.write(("t", 0))
    await stage.advance(1.0)
    assert stage.done == []
    stage.lead(t_0=HERE)
    await stage.advance(RETRY_SECONDS)
    assert stage.done == [(("t", 0), None)]


@on_loop
async def test_a_lost_connection_looks_up_the_leader_again(stage: Stage) -> None:
    stage.lead(t_0=THERE, t_1=THERE)
    stage.write(("t", 0))
    await stage.settle()
    stage.write(("t", 1))
    stage.network.calls[0].answer.set_exception(RequestTimedOut("no answer"))
    await stage.settle()
    stage.lead(t_0=HERE, t_1=HERE)
    await stage.advance(RETRY_SECONDS)
    assert sorted(stage.done) == [(("t", 0), None), (("t", 1), None)]


async def lose_the_leader(stage: Stage) -> None:
    """A leader with a marker does not answer, and the metadata says that it is gone."""
    stage.lead(t_0=THERE)
    stage.write(("t", 0))
    await stage.settle()
    stage.alive.discard(THERE)
    stage.lead(t_0=ELSEWHERE)
    for _ in range(3):
        await stage.advance(RETRY_SECONDS)
    answer_markers(stage.network.calls[-1])
    await stage.settle()
    assert stage.network.calls[-1].broker_id == ELSEWHERE
    assert stage.done == [(("t", 0), None)]


@on_loop
async def test_a_broker_that_is_gone_keeps_no_marker(stage: Stage) -> None:
    await lose_the_leader(stage)


@on_loop
async def test_a_broker_that_was_gone_before_the_connection_was_open_keeps_no_marker(stage: Stage) -> None:
    stage.network.silent.add(THERE)
    await lose_the_leader(stage)


@on_loop
async def test_a_broker_that_refuses_connections_is_tried_again(stage: Stage) -> None:
    stage.lead(t_0=THERE)
    stage.network.down[THERE] = NetworkException("refused")
    stage.write(("t", 0))
    await stage.advance(0.5)
    stage.network.down.clear()
    for _ in range(3):
        await stage.advance(RETRY_SECONDS)
    answer_markers(stage.network.calls[0])
    await stage.settle()
    assert stage.done == [(("t", 0), None)]


@on_loop
async def test_a_leader_that_moved_here_meanwhile_is_found(stage: Stage) -> None:
    stage.lead(t_0=HERE)
    stage.local.errors["t", 0] = NotLeaderOrFollower("not any more")
    stage.write(("t", 0))
    assert stage.done == []
    await stage.advance(RETRY_SECONDS)
    assert stage.done == [(("t", 0), None)]


@on_loop
async def test_a_coordinator_that_resigned_is_not_told(stage: Stage) -> None:
    stage.lead(t_0=THERE, t_1=-1)
    stage.write(("t", 0), ("t", 1))
    await stage.settle()
    stage.markers.cancel(stage.written)
    answer_markers(stage.network.calls[0], {("t", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER})
    stage.lead(t_1=HERE)
    await stage.advance(1.0)
    assert stage.done == []
    assert stage.local.written == []


# -- verification ------------------------------------------------------------------------------------


def transactions_in(call: Call) -> list[tuple[str, int, bool, dict[str, list[int]]]]:
    assert isinstance(call.request, AddPartitionsToTxnRequest)
    return [
        (
            each.transactional_id,
            each.producer_epoch,
            each.verify_only,
            {topic.name: topic.partitions for topic in each.topics},
        )
        for each in call.request.transactions
    ]


def answer_verification(call: Call, code: int = 0, **codes: int) -> None:
    assert isinstance(call.request, AddPartitionsToTxnRequest)
    call.answer.set_result(
        AddPartitionsToTxnResponse(
            error_code=code,
            results_by_transaction=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    transactional_id=each.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                                    partition_index=index,
                                    partition_error_code=codes.get(each.transactional_id, 0),
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for each in call.request.transactions
            ],
        )
    )


@on_loop
async def test_transactions_are_verified_together(stage: Stage) -> None:
    stage.lead(**{f"{TOPIC}_0": THERE})
    stage.verify("a", partition=("t", 1))
    stage.verify("b", 2, adds=True)
    await stage.settle()
    stage.verify("c")
    await stage.settle()
    (call,) = stage.network.calls
    assert call.version == 5
    assert transactions_in(call) == [("a", 0, True, {"t": [1]}), ("b", 2, False, {"t": [0]})]
    answer_verification(call, b=ErrorCode.PRODUCER_FENCED)
    await stage.settle()
    assert stage.verified[0] == ("a", {})
    name, errors = stage.verified[1]
    assert (name, [type(error) for error in errors.values()]) == ("b", [ProducerFenced])
    assert transactions_in(stage.network.calls[1]) == [("c", 0, True, {"t": [0]})]


@on_loop
async def test_a_newer_producer_replaces_the_waiting_one(stage: Stage) -> None:
    stage.lead(**{f"{TOPIC}_0": THERE})
    stage.verify("in flight")
    await stage.settle()
    stage.verify("a", 1)
    stage.verify("a", 1)
    stage.verify("a", 2)
    stage.verify("a", 1)
    assert stage.kinds == [
        ("a", NetworkException),
        ("a", InvalidProducerEpoch),
        ("a", InvalidProducerEpoch),
    ]
    answer_verification(stage.network.calls[0])
    await stage.settle()
    assert transactions_in(stage.network.calls[1]) == [("a", 2, True, {"t": [0]})]


@on_loop
async def test_without_a_coordinator_it_is_not_available(stage: Stage) -> None:
    stage.verify("a")
    stage.lead(**{f"{TOPIC}_0": -1})
    stage.verify("b")
    assert stage.kinds == [("a", CoordinatorNotAvailable), ("b", CoordinatorNotAvailable)]


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (NetworkException("lost"), NetworkException),
        (RequestTimedOut("late"), NetworkException),
        (SaslAuthenticationFailed("no"), SaslAuthenticationFailed),
        (ValueError("a defect"), NetworkException),
    ],
)
def test_a_failed_request_fails_its_transactions(failure: Exception, told: type[KafkaError]) -> None:
    @on_loop
    async def test(stage: Stage) -> None:
        stage.lead(**{f"{TOPIC}_0": THERE})
        stage.verify("a")
        await stage.settle()
        stage.network.calls[0].answer.set_exception(failure)
        await stage.settle()
        assert stage.kinds == [("a", told)]
        stage.verify("b")
        await stage.settle()
        answer_verification(stage.network.calls[1])
        await stage.settle()
        assert stage.verified[1] == ("b", {})

    test()


@on_loop
async def test_an_older_broker_is_asked_in_its_version_and_else_not_at_all(stage: Stage) -> None:
    stage.lead(**{f"{TOPIC}_0": THERE})
    stage.verify("a")
    for version in (5, 4):
        await stage.settle()
        call = stage.network.calls[-1]
        assert call.version == version
        call.answer.set_exception(UnsupportedVersion("no such version"))
    await stage.settle()
    assert stage.verified == [("a", {})]


@on_loop
async def test_a_refused_broker_does_not_show_its_client_why(stage: Stage) -> None:
    stage.lead(**{f"{TOPIC}_0": THERE})
    stage.verify("a")
    await stage.settle()
    answer_verification(stage.network.calls[0], ClusterAuthorizationFailed.code)
    await stage.settle()
    assert stage.kinds == [("a", InvalidTxnState)]


@on_loop
async def test_the_end_of_the_broker_answers_everything(stage: Stage) -> None:
    stage.lead(**{f"{TOPIC}_0": THERE})
    stage.verify("a")
    await stage.settle()
    stage.verify("b")
    stage.verification.close()
    await stage.settle()
    assert sorted(stage.kinds) == [("a", NetworkException), ("b", NetworkException)]
