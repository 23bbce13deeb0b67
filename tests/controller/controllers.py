"""Several controllers on one simulated ZooKeeper, with brokers that only answer the controller.

Time is simulated: the tests run on a VirtualLoop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tests.support.virtual_loop import VirtualLoop
from tests.support.wait import eventually_async
from tidelog.cluster.metadata_update import FULL_UPDATE
from tidelog.cluster.transport import BrokerConnection
from tidelog.controller.channel_manager import ChannelSettings
from tidelog.controller.cluster_controller import ClusterController
from tidelog.controller.interface import ConfigEntity
from tidelog.controller.planning import ControllerSettings
from tidelog.endpoints import Endpoint
from tidelog.errors import ErrorCode, NetworkException
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.nodes import BrokerNode
from tidelog.metadata.simulated import SimulatedTree, SimulatedZooKeeper
from tidelog.metadata.state import LEADER_DURING_DELETE, BrokerRegistration
from tidelog.metadata.zookeeper.settings import ZooKeeperSettings
from tidelog.partitions import TopicPartition
from tidelog.protocol.message import Message
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from tidelog.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

R = TypeVar("R", bound=Message)
T = TypeVar("T")

LISTENER = "PLAINTEXT"


def simulated(work: Coroutine[object, object, T]) -> T:
    """Run a test on a loop whose time jumps."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


class LoopClock:
    """The time of the running loop."""

    def ms(self) -> int:
        return 1_700_000_000_000 + round(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class AnyConfig:
    def validate(self, entity: ConfigEntity, overrides: Mapping[str, str]) -> None: ...

    def inherited_list(self, entity: ConfigEntity, name: str) -> str | None:
        return None

    def encoded(
        self, entity: ConfigEntity, configs: Mapping[str, str], stored: Mapping[str, str]
    ) -> dict[str, str]:
        return dict(configs)

    def decoded(self, entity: ConfigEntity, stored: Mapping[str, str]) -> dict[str, str]:
        return dict(stored)


@dataclass
class FakeBroker:
    """Applies the controller's requests as a broker does, and keeps what it was told."""

    broker_id: int
    is_up: bool = True
    epoch: int = -1
    controller_epoch: int = 0
    leading: dict[TopicPartition, int] = field(default_factory=dict)
    """The partitions it leads, with their leader epochs."""
    following: set[TopicPartition] = field(default_factory=set)
    deleted: list[TopicPartition] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    leaders: dict[TopicPartition, int] = field(default_factory=dict)
    """The leaders of all partitions, from UpdateMetadata."""
    forgotten: set[str] = field(default_factory=set)
    """The topics that a full update did not have."""
    failed_dir: set[TopicPartition] = field(default_factory=set)
    received: list[Message] = field(default_factory=list)
    refused_by: Callable[[int], bool] = lambda broker_id: False
    """Whether a broker refuses its connections."""
    acting: set[tuple[int, int]] = field(default_factory=set)
    """The controllers whose requests it took, with their epochs."""

    def handle(self, request: Message) -> Message:
        assert isinstance(request, (LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest))
        self.received.append(request)
        code = self._fence(request)
        if isinstance(request, LeaderAndIsrRequest):
            return self._leader_and_isr(request, code)
        if isinstance(request, StopReplicaRequest):
            return self._stop_replica(request, code)
        return self._update_metadata(request, code)

    def _fence(self, request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest) -> int:
        if request.controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if -1 < request.broker_epoch < self.epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        self.controller_epoch = request.controller_epoch
        self.acting.add((request.controller_id, request.controller_epoch))
        return ErrorCode.NONE

    def _leader_and_isr(self, request: LeaderAndIsrRequest, code: int) -> LeaderAndIsrResponse:
        response = LeaderAndIsrResponse(error_code=code)
        for topic in request.topic_states if not code else ():
            errors = []
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                error = ErrorCode.NONE
                if partition in self.failed_dir:
                    error = ErrorCode.KAFKA_STORAGE_ERROR
                    self.leading.pop(partition, None)
                elif state.leader == self.broker_id:
                    self.leading[partition] = state.leader_epoch
                    self.following.discard(partition)
                else:
                    self.following.add(partition)
                    self.leading.pop(partition, None)
                errors.append(
                    LeaderAndIsrResponse.LeaderAndIsrPartitionError(
                        partition_index=state.partition_index, error_code=error
                    )
                )
            response.topics.append(
                LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors)
            )
        return response

    def _stop_replica(self, request: StopReplicaRequest, code: int) -> StopReplicaResponse:
        response = StopReplicaResponse(error_code=code)
        response.is_refused = not code and self.refused_by(request.refusing_broker_id)
        for topic in request.topic_states if not code else ():
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                self.leading.pop(partition, None)
                self.following.discard(partition)
                if state.delete_partition:
                    self.deleted.append(partition)
                response.partition_errors.append(
                    StopReplicaResponse.StopReplicaPartitionError(
                        topic_name=topic.topic_name, partition_index=state.partition_index
                    )
                )
        return response

    def _update_metadata(self, request: UpdateMetadataRequest, code: int) -> UpdateMetadataResponse:
        if not code:
            self.live = {broker.id for broker in request.live_brokers}
            if request.type == FULL_UPDATE:
                named = {topic.topic_name for topic in request.topic_states}
                self.forgotten.update({topic for topic, _ in self.leaders} - named)
                self.leaders.clear()
            for topic in request.topic_states:
                for state in topic.partition_states:
                    partition = TopicPartition(topic.topic_name, state.partition_index)
                    if state.leader == LEADER_DURING_DELETE:
                        self.leaders.pop(partition, None)
                    else:
                        self.leaders[partition] = state.leader
        return UpdateMetadataResponse(error_code=code)


class FakeNetwork:
    """The Transport of all controllers to the FakeBrokers."""

    def __init__(self) -> None:
        self.brokers: dict[int, FakeBroker] = {}
        self.refuses = False
        """Whether the address of a broker that is down refuses connections; else they time out."""
        self.refuses_the_controller: set[int] = set()
        """Brokers whose addresses refuse the controller alone. Its connections to them have ended."""

    def is_refused(self, broker_id: int) -> bool:
        """Whether another broker than the controller is refused."""
        found = [broker for broker in self.brokers.values() if broker.broker_id == broker_id]
        return self.refuses and any(not broker.is_up for broker in found)

    async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> BrokerConnection:
        await asyncio.sleep(0.0005)
        broker = self.brokers.get(endpoint.port)
        if broker_id in self.refuses_the_controller:
            raise NetworkException(f"broker {broker_id} refuses") from ConnectionRefusedError()
        if broker is None or not broker.is_up:
            reason = ConnectionRefusedError() if self.refuses else None
            raise NetworkException(f"broker {broker_id} is down") from reason
        return FakeConnection(broker, self)


class FakeConnection:
    def __init__(self, broker: FakeBroker, network: FakeNetwork) -> None:
        self.correlation_id = 0
        self._broker = broker
        self._network = network
        self._is_closed = False

    @property
    def closed(self) -> bool:
        is_refused = self._broker.broker_id in self._network.refuses_the_controller
        return self._is_closed or is_refused or not self._broker.is_up

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
        self.correlation_id += 1
        decoded = type(request).decode(request.encode(version), version)
        await asyncio.sleep(0.0005)
        if not self._broker.is_up:
            self._is_closed = True
            raise NetworkException(f"broker {self._broker.broker_id} is down")
        return answer.decode(self._broker.handle(decoded).encode(version), version)

    def close(self, reason: str = "it was closed") -> None:
        self._is_closed = True


class Node:
    """A broker: its session, its controller, and the part that answers the active controller."""

    def __init__(self, cluster: Cluster, broker_id: int, client: str, rack: str | None) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.client = client
        self.rack = rack
        self.port = cluster.next_port()
        self.broker = FakeBroker(broker_id)
        self.registrations: list[BrokerRegistration] = []

    async def start(self) -> None:
        cluster = self.cluster
        settings = ZooKeeperSettings(session_timeout=6.0)
        rng = random.Random(cluster.rng.random())
        self.tree = await SimulatedTree.open(cluster.zookeeper, self.client, rng=rng, settings=settings)
        clock = LoopClock()
        self.store = ClusterStore(self.tree, clock, rng)
        await self.store.prepare()
        await self.register()
        self.controller = ClusterController(
            self.broker_id,
            self.store,
            cluster.network,
            AnyConfig(),
            self.register,
            settings=cluster.settings,
            channels=ChannelSettings(LISTENER),
            inter_broker_listener=LISTENER,
            clock=clock,
            rng=rng,
        )
        cluster.network.brokers[self.port] = self.broker
        self.broker.refused_by = cluster.network.is_refused
        self.controller.start()

    async def register(self) -> None:
        host = self.cluster.host or f"host{self.broker_id}"
        endpoint = Endpoint(LISTENER, "PLAINTEXT", host, self.port)
        node = BrokerNode([endpoint], LoopClock().ms(), self.rack)
        registration = await self.store.register_broker(self.broker_id, node, wait_seconds=10)
        self.registrations.append(registration)
        self.broker.epoch = registration.epoch

    async def crash(self) -> None:
        """Stop at once, without a word; the session expires by its time-out."""
        self.broker.is_up = False
        self.cluster.zookeeper.cut(self.client)
        await self.controller.events.close()
        self.controller._end_term()

    async def stop(self) -> None:
        await self.controller.close()
        self.broker.is_up = False
        await self.tree.close()


class Cluster:
    def __init__(self, *broker_ids: int, racks: Mapping[int, str] | None = None, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.zookeeper = SimulatedZooKeeper(asyncio.get_running_loop(), random.Random(seed))
        self.network = FakeNetwork()
        self.settings = ControllerSettings()
        self.host: str | None = None
        """The host of all brokers that start from now on; None for one host each."""
        self._ports = 9000
        self._clients = 0
        self._racks = racks or {}
        self._first = broker_ids
        self.nodes: dict[int, Node] = {}
        self.all_nodes: list[Node] = []

    def next_port(self) -> int:
        self._ports += 1
        return self._ports

    async def __aenter__(self) -> Cluster:
        for broker_id in self._first:
            await self.start(broker_id)
        if self._first:
            await self.controller()
            await self.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        acting = {(epoch, who) for node in self.all_nodes for who, epoch in node.broker.acting}
        epochs = [epoch for epoch, _ in acting]
        assert len(epochs) == len(set(epochs)), f"two controllers acted in one epoch: {sorted(acting)}"
        for node in self.nodes.values():
            await node.controller.events.close()
            node.controller._end_term()
            await node.tree.close()

    async def start(self, broker_id: int) -> Node:
        """Start a broker, or a crashed one again."""
        self._clients += 1
        node = Node(self, broker_id, f"client-{self._clients}", self._racks.get(broker_id))
        self.nodes[broker_id] = node
        self.all_nodes.append(node)
        await node.start()
        return node

    async def crash(self, broker_id: int) -> None:
        await self.nodes.pop(broker_id).crash()

    async def controller(self) -> Node:
        """The node whose controller is active, as soon as there is one and all agree."""

        def active() -> Node | None:
            found = [node for node in self.nodes.values() if node.controller.is_active]
            ids = {node.controller.active_controller_id for node in self.nodes.values()}
            is_agreed = len(found) == 1 and ids == {found[0].broker_id}
            return found[0] if is_agreed else None

        return await eventually_async(active, "one active controller", 60)

    async def settle(self) -> None:
        """Wait until the controllers have nothing to do."""

        def idle() -> bool:
            return all(_is_idle(node.controller) for node in self.nodes.values())

        for _ in range(3):  # an event may follow from the last answer
            await eventually_async(idle, "idle controllers", 60)
            await asyncio.sleep(0.02)

    async def until(self, probe: Callable[[], object], what: str) -> None:
        await eventually_async(lambda: bool(probe()) or None, what, 60)

    def epoch_in_tree(self) -> int:
        return int(self.zookeeper.tree.get("/controller_epoch")[0])


def _is_idle(controller: ClusterController) -> bool:
    active = controller._active
    busy = active is not None and any(
        active.term.channels.queue_size(broker_id)
        for broker_id in active.term.channels.broker_ids
        if broker_id in active.term.context.live_or_shutting_down_brokers
    )
    return controller.events.queue_size == 0 and controller.events.is_idle and not busy


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result, which must come within a time of the loop."""
    async with asyncio.timeout(seconds):
        return await work
