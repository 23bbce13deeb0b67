"""The machinery of a cluster's controller over a store and a transport in memory.

Brokers answer every request with success unless a test scripts something else. Requests and answers pass
through their bytes, as on a network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from tidelog.cluster.transport import BrokerConnection
from tidelog.controller.channel_manager import ChannelSettings, ControllerChannelManager
from tidelog.controller.context import ControllerContext
from tidelog.controller.partition_state_machine import PartitionStateMachine
from tidelog.controller.planning import ControllerSettings
from tidelog.controller.replica_state_machine import ReplicaStateMachine
from tidelog.controller.request_batch import ControllerBrokerRequestBatch, ResponseEvent
from tidelog.controller.state_change_log import StateChangeLog
from tidelog.controller.states import PartitionAndReplica, PartitionStatus, ReplicaStatus
from tidelog.controller.topic_deletion import TopicDeletionManager
from tidelog.endpoints import Endpoint
from tidelog.errors import NetworkException
from tidelog.metadata.operations import Fenced
from tidelog.metadata.state import (
    NO_LEADER,
    NO_STATE_NODE,
    BrokerRegistration,
    PartitionState,
    StateUpdates,
)
from tidelog.metadata.tree import NodeExists
from tidelog.partitions import TopicPartition
from tidelog.protocol.message import Message
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from tidelog.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

R = TypeVar("R", bound=Message)

EPOCH = 5
CONTROLLER = 1


def topic_id(topic: str) -> bytes:
    return topic.encode().rjust(16, b"\1")


def broker(broker_id: int, epoch: int | None = None, listener: str = "PLAINTEXT") -> BrokerRegistration:
    endpoint = Endpoint(listener, "PLAINTEXT", f"host{broker_id}", 9000 + broker_id)
    return BrokerRegistration(broker_id, [endpoint], None, 100 + broker_id if epoch is None else epoch)


class FakeStore:
    """The states of partitions, with versions; `meanwhile` runs once before the next write."""

    def __init__(self) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.marks: dict[str, None] = {}
        self.deleted: list[str] = []
        self.failing: dict[TopicPartition, Exception] = {}
        self.fenced = False
        self.writes = 0
        self.reads = 0
        self.meanwhile: Callable[[], None] | None = None

    async def _begin_write(self) -> None:
        await asyncio.sleep(0)
        if self.fenced:
            raise Fenced
        self.writes += 1
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    async def create_partition_states(
        self, states: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, Exception]:
        await self._begin_write()
        errors: dict[TopicPartition, Exception] = {}
        for partition, state in states.items():
            if partition in self.failing:
                errors[partition] = self.failing[partition]
            elif partition in self.states:
                errors[partition] = NodeExists(str(partition))
            else:
                self.states[partition] = state
        return errors

    async def read_partition_states(
        self, known: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, PartitionState]:
        self.reads += 1
        return {partition: self.states[partition] for partition in known if partition in self.states}

    async def update_partition_states(self, states: Mapping[TopicPartition, PartitionState]) -> StateUpdates:
        await self._begin_write()
        outcome = StateUpdates({}, [], {})
        for partition, state in states.items():
            now = self.states.get(partition)
            if partition in self.failing:
                outcome.failed[partition] = self.failing[partition]
            elif now is None or now.partition_epoch != state.partition_epoch:
                outcome.retriable.append(partition)
            else:
                written = replace(state, partition_epoch=state.partition_epoch + 1)
                outcome.updated[partition] = self.states[partition] = written
        return outcome

    async def topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        return {topic: self.configs[topic] for topic in topics if topic in self.configs}

    async def delete_topics(self, topics: Sequence[str]) -> None:
        await self._begin_write()
        self.deleted += topics
        for topic in topics:
            self.marks.pop(topic, None)
        self.states = {key: state for key, state in self.states.items() if key.topic not in topics}

    async def remove_deletion_marks(self, topics: Sequence[str]) -> None:
        await self._begin_write()
        for topic in topics:
            self.marks.pop(topic, None)


Scripted = Message | Exception | None
"""The answer to a request, the error of its connection, or None for no answer."""


def success(request: Message) -> Message:
    if isinstance(request, LeaderAndIsrRequest):
        return LeaderAndIsrResponse(
            topics=[
                LeaderAndIsrResponse.LeaderAndIsrTopicError(
                    topic_id=topic.topic_id,
                    partition_errors=[
                        LeaderAndIsrResponse.LeaderAndIsrPartitionError(
                            partition_index=state.partition_index, error_code=0
                        )
                        for state in topic.partition_states
                    ],
                )
                for topic in request.topic_states
            ]
        )
    if isinstance(request, StopReplicaRequest):
        return stop_replica_answer(request)
    assert isinstance(request, UpdateMetadataRequest)
    return UpdateMetadataResponse()


def stop_replica_answer(
    request: StopReplicaRequest, errors: Mapping[tuple[str, int], int] | None = None
) -> StopReplicaResponse:
    return StopReplicaResponse(
        partition_errors=[
            StopReplicaResponse.StopReplicaPartitionError(
                topic_name=topic.topic_name,
                partition_index=state.partition_index,
                error_code=(errors or {}).get((topic.topic_name, state.partition_index), 0),
            )
            for topic in request.topic_states
            for state in topic.partition_states
        ]
    )


@dataclass(slots=True)
class Sent:
    broker_id: int
    request: Message
    at: float


@dataclass
class ScriptedTransport:
    """`connects` and `answers` hold what happens next to each broker; success follows them."""

    connects: dict[int, deque[Exception]] = field(default_factory=dict)
    answers: dict[int, deque[Scripted | Callable[[Message], Message]]] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    connected: list[tuple[int, Endpoint, float]] = field(default_factory=list)
    connections: list[ScriptedConnection] = field(default_factory=list)

    async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> BrokerConnection:
        await asyncio.sleep(0)
        self.connected.append((broker_id, endpoint, asyncio.get_running_loop().time()))
        script = self.connects.get(broker_id)
        if script:
            raise script.popleft()
        self.connections.append(ScriptedConnection(self, broker_id))
        return self.connections[-1]

    def script(self, broker_id: int, *answers: Scripted | Callable[[Message], Message]) -> None:
        self.answers.setdefault(broker_id, deque()).extend(answers)

    def requests(self, broker_id: int) -> list[Message]:
        return [sent.request for sent in self.sent if sent.broker_id == broker_id]

    @property
    def open(self) -> list[ScriptedConnection]:
        return [connection for connection in self.connections if not connection.closed]

    def of(self, broker_id: int, kind: type[R]) -> list[R]:
        return [request for request in self.requests(broker_id) if isinstance(request, kind)]


class ScriptedConnection:
    def __init__(self, transport: ScriptedTransport, broker_id: int) -> None:
        self.closed = False
        self.correlation_id = 0
        self._transport = transport
        self._broker_id = broker_id
        self._gone = asyncio.get_running_loop().create_future()

    async def call(
        self,
        request: Message,
        answer: type[R],
        *,
        version: int | None = None,
        timeout: float | None = None,
        in_slices: bool = False,
    ) -> R:
        assert version is not None
        assert not self.closed
        self.correlation_id += 1
        decoded = type(request).decode(request.encode(version), version)
        now = asyncio.get_running_loop().time()
        self._transport.sent.append(Sent(self._broker_id, decoded, now))
        await asyncio.sleep(0)
        script = self._transport.answers.get(self._broker_id)
        scripted = script.popleft() if script else success
        if scripted is None:
            await self._gone
        if isinstance(scripted, Exception):
            raise scripted
        made = scripted if isinstance(scripted, Message) else cast("Callable", scripted)(decoded)
        return answer.decode(made.encode(version), version)

    def close(self, reason: str = "it was closed") -> None:
        self.closed = True
        if not self._gone.done():
            self._gone.set_exception(NetworkException(reason))
            self._gone.exception()  # nobody may wait for it


class ControllerRig:
    """Brokers with the given ids are live; the controller is broker 1 with epoch 5."""

    def __init__(self, *broker_ids: int, settings: ControllerSettings | None = None) -> None:
        self.context = ControllerContext()
        self.context.epoch = EPOCH
        self.store = FakeStore()
        self.transport = ScriptedTransport()
        self.events: list[ResponseEvent] = []
        self.forgotten: list[str] = []
        self.settings = settings or ControllerSettings()
        log = StateChangeLog(CONTROLLER, self.context)
        self.channels = ControllerChannelManager(self.transport, ChannelSettings("PLAINTEXT"), log)
        self.batch = ControllerBrokerRequestBatch(
            CONTROLLER,
            self.context,
            self.channels,
            log,
            self.events.append,
            inter_broker_listener="PLAINTEXT",
        )
        self.partitions = PartitionStateMachine(self.context, self.store, self.batch, log, self.settings)
        self.replicas = ReplicaStateMachine(self.context, self.store, self.batch, log)
        self.deletion = TopicDeletionManager(
            self.context,
            self.store,
            self.partitions,
            self.replicas,
            self.batch,
            self.settings,
            on_deleted=self.forgotten.extend,
        )
        self.join(*broker_ids)

    def join(self, *broker_ids: int) -> None:
        brokers = [broker(broker_id) for broker_id in broker_ids]
        self.context.add_live_brokers(brokers)
        self.channels.add_brokers(brokers)

    def leave(self, *broker_ids: int) -> None:
        self.context.remove_live_brokers(broker_ids)
        for broker_id in broker_ids:
            self.channels.remove_broker(broker_id)

    def put(
        self,
        topic: str,
        index: int,
        replicas: list[int],
        leader: int | None = None,
        isr: list[int] | None = None,
        *,
        removing: list[int] | None = None,
        status: PartitionStatus = PartitionStatus.ONLINE,
        replica_status: ReplicaStatus = ReplicaStatus.ONLINE,
    ) -> TopicPartition:
        """A partition in context and store, by default led by its first replica with all in sync."""
        partition = TopicPartition(topic, index)
        state = PartitionState(
            replicas,
            replicas[0] if leader is None else leader,
            3,
            list(replicas) if isr is None else isr,
            partition_epoch=7,
            controller_epoch=EPOCH - 1,
            removing=removing or [],
        )
        self.store.states[partition] = state
        self.put_known(partition, state, status, replica_status)
        return partition

    def put_new(self, topic: str, index: int, replicas: list[int]) -> TopicPartition:
        """A partition without a leader so far."""
        partition = TopicPartition(topic, index)
        state = PartitionState(replicas, NO_LEADER, -1, [], NO_STATE_NODE)
        self.put_known(partition, state, PartitionStatus.NEW, ReplicaStatus.NEW)
        return partition

    def put_known(
        self,
        partition: TopicPartition,
        state: PartitionState,
        status: PartitionStatus,
        replica_status: ReplicaStatus,
    ) -> None:
        self.context.put_topic_id(partition.topic, topic_id(partition.topic))
        self.context.put_partition(partition, state)
        self.context.put_partition_status(partition, status)
        for replica in self.context.replicas_of_partitions([partition]):
            self.context.put_replica_status(replica, replica_status)

    async def settle(self) -> None:
        """Wait until all brokers have answered; a broker with a request without an answer is left."""
        for _ in range(1000):
            if self.channels.total_queue_size == 0:
                return
            await asyncio.sleep(0)

    def replica_status(self, partition: TopicPartition, broker_id: int) -> ReplicaStatus:
        return self.context.replica_status(PartitionAndReplica(*partition, broker_id))
