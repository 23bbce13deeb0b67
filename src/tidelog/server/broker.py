"""The broker: starts its parts in the order of their dependencies, and stops them.

The states are Kafka's. The broker binds its listeners before it recovers logs, which may take minutes, so
that a port in use is reported at once. It accepts connections when every partition can be served.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.cluster.fetch import Fetcher
from tidelog.cluster.fetch_session import FetchSessionCache
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.moves import ReplicaMoves
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.cluster.topic_metrics import AllTopicMetrics
from tidelog.cluster.worker import ThreadWorker
from tidelog.controller.interface import NewTopic
from tidelog.controller.single import SingleController
from tidelog.coordinator.group.coordinator import OFFSETS_TOPIC, GroupCoordinator
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.transaction.coordinator import TOPIC as TRANSACTIONS_TOPIC
from tidelog.coordinator.transaction.coordinator import TransactionCoordinator
from tidelog.coordinator.transaction.markers import LocalMarkers
from tidelog.coordinator.transaction.settings import TransactionSettings
from tidelog.coordinator.transaction.verification import TransactionVerification
from tidelog.endpoints import Endpoint
from tidelog.errors import KafkaError
from tidelog.metadata.embedded import FILE_NAME, EmbeddedTree
from tidelog.metadata.state import INTERNAL_TOPICS, TopicState
from tidelog.metadata.store import MetadataStore
from tidelog.metadata.tree import TreeError, TreeUnavailable
from tidelog.metrics.registry import Registry
from tidelog.network.loop import BrokerLoop
from tidelog.network.server import SocketServer
from tidelog.partitions import PartitionKey
from tidelog.protocol.api import ApiKey
from tidelog.server.apis import served_apis
from tidelog.server.apis.api import Api
from tidelog.server.apis.router import Router
from tidelog.server.apis.small_produce import SmallProduces
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.group import overrides_of
from tidelog.server.dynamic_config import DynamicConfig
from tidelog.server.first_screen import first_screen
from tidelog.server.group_metrics import GroupMetrics
from tidelog.server.host import BrokerHost
from tidelog.server.internal_topics import InternalTopics
from tidelog.server.metrics import BrokerMetrics
from tidelog.server.part_settings import (
    cleaner_settings,
    controller_settings,
    intervals,
    move_settings,
    network_limits,
)
from tidelog.server.producer_ids import ProducerIds
from tidelog.server.run import StartFailed
from tidelog.server.services import Services
from tidelog.server.stale_tree import (
    StaleTree,
    check_folders,
    check_logs,
    check_no_logs,
    last_stop,
    name_empty_folders,
    note_stop,
    what_to_do,
)
from tidelog.storage.cleaner.log_cleaner import LogCleaner
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import RealDisk
from tidelog.storage.log_dir import LogDirRefused
from tidelog.storage.log_manager import LogManager
from tidelog.storage.log_manager_listener import LogManagerListener

if TYPE_CHECKING:
    from tidelog.metrics.http import Health, MetricsServer

log = logging.getLogger("tidelog.server")

# The versions in Kafka 4.3 of the features that the served APIs need.
SUPPORTED_FEATURES = {"group.version": (0, 1), "metadata.version": (7, 30), "transaction.version": (0, 2)}
# Two-phase commits need a newer version of this API.
INIT_PRODUCER_ID, INIT_WITH_TWO_PHASE = 22, 6
PROGRESS_SECONDS = 5.0
MAX_CREATIONS = 100
"""The limit of topics that auto-creation creates at a time: one request can have very many."""


class BrokerState(IntEnum):
    NOT_RUNNING = 0
    STARTING = 1
    RECOVERING_FROM_UNCLEAN_SHUTDOWN = 2
    RUNNING_AS_BROKER = 3
    RUNNING_AS_CONTROLLER = 4
    PENDING_CONTROLLED_SHUTDOWN = 6
    BROKER_SHUTTING_DOWN = 7


class Broker(LogManagerListener):
    def __init__(self, config: BrokerConfig, loop: BrokerLoop) -> None:
        self.config = config
        self.state = BrokerState.NOT_RUNNING
        self.broker_id = config.broker_id
        self.failed = asyncio.Event()
        self.registry = Registry()
        self._loop = loop
        self._clock = loop.clock
        self._tree: EmbeddedTree | None = None
        self._logs: LogManager | None = None
        self._cleaner: LogCleaner | None = None
        self._moves: ReplicaMoves | None = None
        self._controller: SingleController | None = None
        self._replicas: ReplicaManager | None = None
        self._host: BrokerHost | None = None
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._server: SocketServer | None = None
        self._router: Router | None = None
        self._creating: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._registered_epoch = -1
        self._has_logs = False  # whether the logs are open, and belong to this broker's tree
        self._metrics_server: MetricsServer | None = None

    # -- start -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, until the broker answers requests. Raises StartFailed; also then the caller calls `stop`."""
        started = time.monotonic()
        self.state = BrokerState.STARTING
        try:
            dynamic = DynamicConfig(self.config)
            logs = self._open_log_dirs(dynamic)
            controller = self._open_tree(logs, dynamic)
            cluster = await controller.load()
            dynamic.load(cluster, self.broker_id)
            logs.recovery_threads.per_log_dir = self.config.num_recovery_threads_per_data_dir
            self._loop.set_io_threads(self.config.num_io_threads)
            services = self._assemble(logs, controller, dynamic)
            self._server = server = self._bind(services)
            self._metrics_server = metrics_server = await self._bind_metrics()
            topics = dynamic.topics
            overrides = {name: topic.configs for name, topic in cluster.topics.items()}
            self._check_tree(logs, cluster.topics)
            await self._load_logs(logs, lambda topic: topics.log_config(overrides.get(topic, {})))
            check_logs(logs.logs, cluster.topics)
            self._has_logs = True
            if self._identities:
                name_empty_folders(self._new_folders, {*logs.logs, *logs.failed}, cluster.topics)
            self._host = host = BrokerHost(
                services.replicas,
                services.metadata,
                topics,
                lambda topic: controller.state.topics[topic].configs,
            )
            host.coordinators[OFFSETS_TOPIC] = services.groups.runtime
            host.coordinators[TRANSACTIONS_TOPIC] = services.transactions.runtime
            await controller.raise_leader_epochs(logs.recovered())
            broker = await controller.register(self._advertised(server), self.config.broker_rack)
            self._registered_epoch = broker.epoch
            await controller.activate(host)
            host.takes_new_partitions = True
            services.groups.start()
            self.registry.collect(GroupMetrics(services.groups, services.replicas).families)
            services.transactions.start()
            self._name_strays(logs)
            logs.start(intervals(self.config))
            self._cleaner = cleaner = LogCleaner(logs, self._loop, cleaner_settings(self.config))
            cleaner.start()
            services.metrics.add_cleaner(cleaner, logs.log_dirs)
            self._moves = services.moves = ReplicaMoves(
                services.replicas, self._loop, cleaner, move_settings(self.config)
            )
            self._moves.start()
            self._follow_settings(host, server, cleaner, self._moves)
            if metrics_server is not None:
                metrics_server.start()
            server.start()
        except (LogDirRefused, StaleTree, TreeUnavailable, TreeError) as error:
            raise StartFailed(str(error)) from error
        self.state = BrokerState.RUNNING_AS_BROKER
        log.info(
            "started",
            extra={
                "fields": {
                    "broker": self.broker_id,
                    "cluster": cluster.cluster_id,
                    "listeners": ",".join(f"{name}://{address}" for name, address in self.addresses.items()),
                    "partitions": len(logs.logs),
                    "ms": round((time.monotonic() - started) * 1000),
                }
            },
        )

    def _open_log_dirs(self, dynamic: DynamicConfig) -> LogManager:
        logs = LogManager(
            self.config.data_dirs,
            dynamic.topics.log_config({}),
            disk=RealDisk(),
            clock=self._clock,
            scheduler=self._loop,
            recovery_threads_per_dir=self.config.num_recovery_threads_per_data_dir,
        )
        try:
            identities = logs.log_dirs.lock()
        except OSError as error:
            raise StartFailed(f"the log folder cannot be used: {error}") from error
        self._logs = logs
        self._identities = [meta for meta in identities if meta is not None]
        self._new_folders = [
            log_dir.path
            for log_dir, meta in zip(logs.log_dirs, identities, strict=True)
            if meta is None and log_dir.offline is None
        ]
        logs.listen(self)
        return logs

    def _open_tree(self, logs: LogManager, dynamic: DynamicConfig) -> SingleController:
        """Open the tree, and check that folders and tree belong to this broker."""
        file = Path(self.config.data_dirs[0]) / FILE_NAME
        if not file.exists():
            check_no_logs(self.config.data_dirs)
        self._tree = EmbeddedTree(file, self._clock)
        store = MetadataStore(self._tree, self._clock)
        store.prepare()
        found_cluster = next((m.cluster_id for m in self._identities if m.cluster_id is not None), None)
        found_broker = next((m.broker_id for m in self._identities if m.broker_id is not None), None)
        cluster_id = store.cluster_id(found_cluster)
        if self.broker_id < 0:
            if found_broker is not None:
                self.broker_id = found_broker
            elif self.config.broker_id_generation_enable:
                self.broker_id = store.generate_broker_id(self.config.reserved_broker_max_id)
            else:
                raise StartFailed(
                    "broker.id is not set and broker.id.generation.enable is false: set one of them"
                )
            self.config.assume_broker_id(self.broker_id)
        logs.log_dirs.claim(cluster_id, self.broker_id)
        self._controller = SingleController(
            store,
            self.broker_id,
            dynamic,
            settings=controller_settings(self.config),
            on_entity_config=dynamic.entity_changed,
            clock=self._clock,
        )
        return self._controller

    def _assemble(self, logs: LogManager, controller: SingleController, dynamic: DynamicConfig) -> Services:
        worker = ThreadWorker("tidelog-append", self._loop.post)
        replicas = ReplicaManager(self.broker_id, logs, self._loop, worker, AllTopicMetrics(self.registry))
        self._replicas = replicas
        metadata = MetadataCache(controller.state.cluster_id)
        metadata.features = {name: high for name, (_, high) in SUPPORTED_FEATURES.items()}
        settings = GroupSettings(self.config.__getitem__, overrides_of(metadata))
        self._groups = groups = GroupCoordinator(replicas, metadata, self._loop, settings)
        producer_ids = ProducerIds(controller.allocate_producer_ids)
        self._transactions = transactions = self._make_transactions(replicas, metadata, groups, producer_ids)
        verification = TransactionVerification(transactions, replicas)
        groups.offsets.check_transaction = verification.check_offsets
        sessions = FetchSessionCache(self._clock, self.config.max_incremental_fetch_session_cache_slots)
        services = Services(
            broker_id=self.broker_id,
            clock=self._clock,
            config=self.config,
            dynamic_config=dynamic,
            logs=logs,
            replicas=replicas,
            fetcher=Fetcher(replicas),
            sessions=sessions,
            metadata=metadata,
            controller=controller,
            internal_topics=InternalTopics(controller),
            groups=groups,
            transactions=transactions,
            verification=verification,
            producer_ids=producer_ids,
            metrics=BrokerMetrics(
                self.registry, replicas, sessions, metadata, lambda: self.state, self._clock.ms()
            ),
            auto_create_topic=self._auto_create_topic,
            apis=self._apis(),
            supported_features=SUPPORTED_FEATURES,
        )
        self._router = Router(services, services.apis)
        services.respond = self._router.respond
        services.failed = self._router.failed
        return services

    def _make_transactions(
        self,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        groups: GroupCoordinator,
        producer_ids: ProducerIds,
    ) -> TransactionCoordinator:
        settings = TransactionSettings(self.config.__getitem__)
        markers = LocalMarkers(
            replicas, self._loop, lambda: groups.runtime, lambda: settings.append_timeout_ms
        )
        return TransactionCoordinator(replicas, metadata, self._loop, settings, producer_ids, markers)

    def _apis(self) -> dict[int, Api]:
        """The served APIs; if two-phase commits are enabled, with their version of InitProducerId."""
        apis = served_apis()
        if self.config.transaction_two_phase_commit_enable:
            apis[INIT_PRODUCER_ID] = replace(apis[INIT_PRODUCER_ID], max_version=INIT_WITH_TWO_PHASE)
        return apis

    def _bind(self, services: Services) -> SocketServer:
        assert self._router is not None
        server = SocketServer(
            self._loop,
            self.config.endpoints,
            self._router.handle,
            network_limits(self.config),
            self.registry,
            versions=self._router.versions,
            formatter=self._router.describe,
            fast_paths={ApiKey.PRODUCE: SmallProduces(services).take},
        )
        try:
            server.bind()
        except OSError as error:
            listeners = ", ".join(str(endpoint) for endpoint in self.config.endpoints)
            raise StartFailed(f"cannot listen on {listeners}: {error.strerror or error}") from error
        services.dynamic_config.on_level_change = server.refresh_log_level
        return server

    def _check_tree(self, logs: LogManager, topics: Mapping[str, TopicState]) -> None:
        assert self._tree is not None
        check_folders((log_dir.path for log_dir in logs.log_dirs.online), self._tree, topics)

    async def _load_logs(self, logs: LogManager, config_of: Callable[[str], LogConfig]) -> None:
        last_told = time.monotonic()
        paths = [Path(log_dir.path) for log_dir in logs.log_dirs]
        crashed = not all((path / ".kafka_cleanshutdown").exists() for path in paths)

        def progress(done: int, total: int, key: PartitionKey) -> None:
            nonlocal last_told
            now = time.monotonic()
            if now - last_told >= PROGRESS_SECONDS:
                left = (now - began) / done * (total - done)
                last_told = now
                log.info("loading logs: %d of %d, about %d s to go", done, total, round(left))

        began = time.monotonic()
        if crashed and any(any(path.glob("*-[0-9]*/*.log")) for path in paths):
            self.state = BrokerState.RECOVERING_FROM_UNCLEAN_SHUTDOWN
        await asyncio.to_thread(logs.load, config_of, progress)
        if self.state is BrokerState.RECOVERING_FROM_UNCLEAN_SHUTDOWN:
            log.info(
                "recovered %d logs after an unclean stop in %.1f s", len(logs.logs), time.monotonic() - began
            )
        if not logs.log_dirs.online:
            raise StartFailed(f"no log folder can be used: {logs.log_dirs[0].offline}")

    def _advertised(self, server: SocketServer) -> list[Endpoint]:
        """The advertised endpoints; a port 0 becomes the port that the system chose."""
        addresses = server.addresses
        bound = {endpoint.listener: endpoint for endpoint in self.config.endpoints}
        endpoints = []
        for endpoint in self.config.advertised_endpoints:
            port = endpoint.port
            if bound[endpoint.listener].port == 0 and port == 0:
                port = addresses[endpoint.listener][1]
            endpoints.append(replace(endpoint, port=port))
        return endpoints

    def _name_strays(self, logs: LogManager) -> None:
        assert self._replicas is not None
        hosted = {(p.topic, p.index) for p in self._replicas.partitions()}
        strays = sorted(set(logs.logs) - hosted)
        for topic, index in strays:
            log.warning("folder %s-%d belongs to no topic of this broker and is left alone", topic, index)
        if strays:
            log.warning("if another broker made these folders, %s", what_to_do())

    # -- settings ----------------------------------------------------------------------------------

    def _follow_settings(
        self, host: BrokerHost, server: SocketServer, cleaner: LogCleaner, moves: ReplicaMoves
    ) -> None:
        def changed(names: frozenset[str]) -> None:
            log.info("settings changed", extra={"fields": {"names": ",".join(sorted(names))}})
            assert self._controller is not None
            self._controller.settings = controller_settings(self.config)
            server.update_limits(network_limits(self.config))
            self._loop.set_io_threads(self.config.num_io_threads)
            cleaner.update_settings(cleaner_settings(self.config))
            moves.update_settings(move_settings(self.config))
            host.broker_settings_changed()

        self.config.on_change(changed)

    async def _bind_metrics(self) -> MetricsServer | None:
        if self.config.metrics_listener is None:
            return None
        from tidelog.metrics.http import MetricsServer

        host, _, port = self.config.metrics_listener.rpartition(":")
        server = MetricsServer(self.registry, host.strip("[]") or "127.0.0.1", int(port), self.health)
        try:
            await server.bind()
        except OSError as error:
            raise StartFailed(f"metrics.listener={self.config.metrics_listener}: {error}") from error
        return server

    def health(self) -> Health:
        """A broker is healthy if it answers clients and has an online log folder."""
        from tidelog.metrics.http import Health

        online = [] if self._logs is None else self._logs.log_dirs.online
        offline = [] if self._logs is None else [log_dir.path for log_dir in self._logs.log_dirs.offline]
        is_healthy = self.state is BrokerState.RUNNING_AS_BROKER and bool(online)
        state = self.state.name.lower().replace("_", " ")
        return Health(is_healthy, {"broker": self.broker_id, "state": state, "offline_log_dirs": offline})

    # -- while running -----------------------------------------------------------------------------

    def _auto_create_topic(self, name: str) -> None:
        """Create a topic that a client asked for, once for all clients.

        At the limit of topics at a time this does nothing: the client asks again.
        """
        if name in self._creating or name in INTERNAL_TOPICS or len(self._creating) >= MAX_CREATIONS:
            return
        self._creating.add(name)
        self._spawn(self._create_topic(name))

    async def _create_topic(self, name: str) -> None:
        assert self._controller is not None
        try:
            (result,) = await self._controller.create_topics([NewTopic(name)])
            if result.error is not None:
                log.warning("topic %s could not be created for a client: %s", name, result.error)
        finally:
            self._creating.discard(name)

    def log_dir_offline(self, path: str, lost: list[PartitionKey]) -> None:
        """Take the partitions of a failed folder offline until a restart.

        While logs are loaded another thread than the loop's calls this.
        """
        if self._host is None or self._controller is None or self.state is not BrokerState.RUNNING_AS_BROKER:
            return
        self._host.partitions_offline(lost)
        self._spawn(self._tell_controller(lost))
        assert self._logs is not None
        if not self._logs.log_dirs.online:
            log.critical("the last log folder failed: the broker ends")
            self.failed.set()

    async def _tell_controller(self, lost: list[PartitionKey]) -> None:
        assert self._controller is not None
        try:
            await self._controller.partitions_offline(lost)
        except KafkaError as error:
            log.error("the controller could not be told of offline partitions: %s", error)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- addresses and first screen ----------------------------------------------------------------

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT of each listener, with the ports that the system chose."""
        assert self._server is not None
        return {
            name: f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for name, (host, port) in self._server.addresses.items()
        }

    @property
    def address(self) -> str:
        """HOST:PORT of the first listener."""
        return self.addresses[self.config.endpoints[0].listener]

    def first_screen(self) -> str:
        metrics = None if self._metrics_server is None else self._metrics_server.address
        return first_screen(self.broker_id, self.addresses, self.config.data_dirs, metrics)

    # -- stop --------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answer the open requests, close the logs and mark a clean stop; also cleans up a failed start."""
        running = self.state is BrokerState.RUNNING_AS_BROKER
        self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        if self._server is not None:
            self._server.stop_accepting()
        if self._groups is not None:
            self._groups.close()
        if self._transactions is not None:
            self._transactions.close()
        if self._replicas is not None:
            self._replicas.end_waits()
        if self._server is not None:
            await self._server.close()
        if self._router is not None:
            await self._router.drain()
        self.state = BrokerState.BROKER_SHUTTING_DOWN
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if self._metrics_server is not None:
            await self._metrics_server.close()
        if self._controller is not None:
            await self._controller.close()
        if self._replicas is not None:
            self._replicas.shutdown()
        if self._moves is not None:
            self._moves.close()
            while self._moves.is_busy:  # a step of a move ends within moments
                await asyncio.sleep(0.005)
        if self._cleaner is not None:
            self._cleaner.close()
            while self._cleaner.is_busy:  # a step of the cleaner ends within moments
                await asyncio.sleep(0.005)
        if self._has_logs:
            await asyncio.to_thread(self._close_logs)
        elif self._logs is not None:
            self._logs.log_dirs.unlock()
        if self._tree is not None:
            self._tree.close()
        self.state = BrokerState.NOT_RUNNING
        if running:
            log.info("stopped")

    def _close_logs(self) -> None:
        """Close the logs and write the markers of a clean stop.

        Also after a failed start: opening the logs removed the markers of the last clean stop.
        """
        assert self._tree is not None
        assert self._logs is not None
        epoch = self._registered_epoch
        try:
            if epoch >= 0:
                note_stop(self._tree, epoch)
            else:
                epoch = last_stop(self._tree)
        except TreeError as error:
            log.warning("this stop could not be written to the tree: %s", error)
        self._logs.shutdown(epoch)
