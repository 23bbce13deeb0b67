"""A broker of a cluster over real sockets, without a tree: a test is its controller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Self, TypeVar, cast

from tests.support.raw import RawConnection
from tidelog.cluster.fetch import Fetcher
from tidelog.cluster.fetch_session import FetchSessionCache
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.moves import ReplicaMoves
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.cluster.replica_states import ReplicaStates
from tidelog.cluster.topic_metrics import AllTopicMetrics
from tidelog.cluster.topic_overrides import TopicOverrides
from tidelog.cluster.worker import ThreadWorker
from tidelog.controller.interface import NewTopic, TopicResult
from tidelog.coordinator.group.coordinator import GroupCoordinator
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.transaction.markers import LocalMarkers
from tidelog.endpoints import Endpoint
from tidelog.errors import KafkaError, NotController, StaleBrokerEpoch
from tidelog.metadata.state import PartitionState
from tidelog.metadata.tree import TreeUnavailable
from tidelog.metrics.registry import Registry
from tidelog.network.limits import NetworkLimits
from tidelog.network.loop import BrokerLoop
from tidelog.network.server import SocketServer
from tidelog.partitions import PartitionKey, TopicPartition
from tidelog.protocol.api import ApiKey
from tidelog.protocol.election_type import ElectionType
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from tidelog.server.apis import served_apis
from tidelog.server.apis.router import Router
from tidelog.server.apis.small_produce import SmallProduces
from tidelog.server.audit import AuditLog
from tidelog.server.cluster_services import ClusterServices
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.group import overrides_of
from tidelog.server.dynamic_config import DynamicConfig
from tidelog.server.forwarding import ForwardingManager
from tidelog.server.quota.quota_managers import QuotaManagers
from tidelog.server.services import Services
from tidelog.storage.disk import RealDisk
from tidelog.storage.log_manager import LogManager

T = TypeVar("T")

CLIENTS, BROKERS, CONTROL = "CLIENTS", "BROKERS", "CONTROL"
EPOCH = 100
OFFSETS = "__consumer_offsets"


class Controller:
    """Both sides of the controller: that of brokers, and that of clients' requests."""

    def __init__(self) -> None:
        self.is_active = True
        self.moves_on = False  # another broker becomes the controller while a request is handled
        self.created: list[str] = []
        self.remaining: list[PartitionKey] = []
        self.altered: list[tuple[AlterPartitionRequest, int]] = []
        self.asked: list[object] = []
        self.errors: dict[TopicPartition, KafkaError | None] = {}
        self.moving: dict[TopicPartition, PartitionState] = {}

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Sequence[PartitionKey]:
        if broker_epoch != EPOCH:
            raise StaleBrokerEpoch
        return self.remaining

    async def alter_partition(self, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
        self.altered.append((request, version))
        return AlterPartitionResponse(topics=[AlterPartitionResponse.TopicData(topic_id=b"T" * 16)])

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        return range(broker_id * 1000, broker_id * 1000 + 1000)

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None,
        election_type: ElectionType,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        self.asked.append((partitions, election_type, timeout))
        return self.errors

    async def alter_partition_reassignments(
        self,
        wanted: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        self.asked.append((wanted, allow_replication_factor_change))
        return self.errors

    async def list_partition_reassignments(
        self, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, PartitionState]:
        self.asked.append(partitions)
        return self.moving

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, quota: object = None
    ) -> list[TopicResult]:
        if self.moves_on:
            return [TopicResult(topic.name, error=NotController("no longer")) for topic in topics]
        self.created += [topic.name for topic in topics]
        return [TopicResult(topic.name, b"N" * 16, None, 1, 1) for topic in topics]


class ClusterBroker:
    """`with ClusterBroker(tmp_path) as broker:`: broker 0, whose loop runs in a thread."""

    def __init__(self, folder: Path, limits: NetworkLimits | None = None) -> None:
        self._folder = folder
        self._limits = limits or NetworkLimits()
        self._limits.inter_broker_listener_name = BROKERS
        self._limits.control_plane_listener_name = CONTROL
        self.controller = Controller()
        self.broker_epoch = EPOCH
        self.refusing: set[int] = set()
        """The brokers that refuse connections of this one."""
        self.tree: dict[str, dict[str, str]] = {}
        self.tree_is_there = True
        self._loop = BrokerLoop(2)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._connections: list[RawConnection] = []

    # -- the broker

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def on_loop(self, work: Callable[[], T]) -> T:
        """Run something on the broker's thread."""

        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread.start()
        self.on_loop(self._assemble)
        return self

    def _assemble(self) -> None:
        loop, registry = self._loop, Registry()
        config = BrokerConfig.load(None, {"log.dirs": str(self._folder), "broker.id": "0"})
        dynamic = DynamicConfig(config)
        logs = LogManager(
            [str(self._folder)],
            dynamic.topics.log_config({}),
            disk=RealDisk(),
            clock=loop.clock,
            scheduler=loop,
        )
        logs.log_dirs.lock()
        logs.log_dirs.claim("cluster", 0)
        logs.load()
        worker = ThreadWorker("append", loop.post)
        self.replicas = replicas = ReplicaManager(0, logs, loop, worker, AllTopicMetrics(registry))
        self.metadata = metadata = MetadataCache("cluster")
        replicas.metadata = metadata
        groups = GroupCoordinator(
            replicas, metadata, loop, GroupSettings(config.__getitem__, overrides_of(metadata))
        )
        overrides = TopicOverrides(self._read)
        self.states = ReplicaStates(
            replicas,
            metadata,
            overrides,
            lambda found: dynamic.topics.log_config(dict(found)),
            {OFFSETS: groups.runtime},
        )
        made = SimpleNamespace(
            broker_id=0,
            clock=loop.clock,
            config=config,
            dynamic_config=dynamic,
            logs=logs,
            replicas=replicas,
            fetcher=Fetcher(replicas),
            sessions=FetchSessionCache(loop.clock, 100),
            metadata=metadata,
            controller=self.controller,
            quotas=QuotaManagers(loop.clock),
            groups=groups,
            transactions=SimpleNamespace(
                local_markers=LocalMarkers(replicas, loop, lambda: groups.runtime, lambda: 1000)
            ),
            moves=ReplicaMoves(replicas, loop, None),
            apis=served_apis(cluster=True),
            supported_features={},
            authorizer=None,
            audit=AuditLog(),
            cluster=ClusterServices(
                controller=self.controller,
                states=self.states,
                overrides=overrides,
                forwarding=cast("ForwardingManager", SimpleNamespace(is_needed=False)),
                broker_epoch=lambda: self.broker_epoch,
                listeners=frozenset((BROKERS, CONTROL)),
                refuses_connections=self._refuses_connections,
            ),
        )
        self.services = services = cast("Services", made)
        router = Router(services, services.apis)
        services.handle, services.respond, services.failed = router.handle, router.respond, router.failed
        names = (CLIENTS, BROKERS, CONTROL)
        self.server = SocketServer(
            loop,
            [Endpoint(name, "PLAINTEXT", "127.0.0.1", 0) for name in names],
            router.handle,
            self._limits,
            registry,
            versions=router.versions,
            formatter=router.describe,
            fast_paths={ApiKey.PRODUCE: SmallProduces(services).take},
        )
        self.server.start()
        self._logs = logs

    async def _refuses_connections(self, broker_id: int) -> bool:
        return broker_id in self.refusing

    async def _read(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        if not self.tree_is_there:
            raise TreeUnavailable("/config/topics")
        return {topic: self.tree[topic] for topic in topics if topic in self.tree}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.close()

        async def close() -> None:
            self.services.groups.close()
            self.replicas.end_waits()
            await self.server.close(1.0)
            self.replicas.shutdown()
            await asyncio.to_thread(self._logs.shutdown)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # -- its peers

    def connect(self, listener: str = BROKERS) -> RawConnection:
        connection = RawConnection(self.server.addresses[listener])
        self._connections.append(connection)
        return connection
