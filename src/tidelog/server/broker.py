"""Broker: starts the parts of a broker in the order of their dependencies, and stops them (Kafka's
KafkaServer).

The states are Kafka's. The broker binds its listeners before it recovers logs, which may take minutes, so
that a port in use is reported at once. It accepts connections when every partition can be served.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING

from tidelog.cluster.fetch import Fetcher
from tidelog.cluster.fetch_session import FetchSessionCache
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.moves import ReplicaMoves
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.cluster.topic_metrics import AllTopicMetrics
from tidelog.config.values import ConfigError
from tidelog.coordinator.group.coordinator import GroupCoordinator
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.transaction.coordinator import TransactionCoordinator
from tidelog.coordinator.transaction.markers import LocalMarkers
from tidelog.coordinator.transaction.settings import TransactionSettings
from tidelog.coordinator.transaction.verification import TransactionVerification
from tidelog.endpoints import Endpoint
from tidelog.errors import KafkaError
from tidelog.metadata.nodes import BadNode
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
from tidelog.server.apis.small_transactions import SmallTransactions
from tidelog.server.broker_quotas import follow_quotas, make_quotas
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.group import overrides_of
from tidelog.server.dynamic_config import DynamicConfig
from tidelog.server.first_screen import first_screen
from tidelog.server.internal_topics import InternalTopics
from tidelog.server.membership import Membership
from tidelog.server.metrics import BrokerMetrics
from tidelog.server.observability import Observability
from tidelog.server.open_addresses import open_address_lines
from tidelog.server.part_settings import (
    cleaner_settings,
    intervals,
    move_settings,
    network_limits,
)
from tidelog.server.platform import Platform, RealPlatform
from tidelog.server.producer_ids import ProducerIds
from tidelog.server.quota.quota_managers import QuotaManagers
from tidelog.server.run import StartFailed
from tidelog.server.services import Services
from tidelog.server.stale_tree import StaleTree
from tidelog.server.telemetry.client_telemetry import ClientTelemetry
from tidelog.server.topic_creation import AutoTopicCreation
from tidelog.storage.checkpoints import CLEAN_SHUTDOWN, MetaProperties
from tidelog.storage.cleaner.log_cleaner import LogCleaner
from tidelog.storage.config import LogConfig
from tidelog.storage.log_dir import LogDirRefused
from tidelog.storage.log_manager import LogManager
from tidelog.storage.log_manager_listener import LogManagerListener
from tidelog.storage.partition_folders import has_log_files

if TYPE_CHECKING:
    from tidelog.metrics.http import Health
    from tidelog.security.authorizer import Authorizer
    from tidelog.server.audit_topic import AuditTopic
    from tidelog.server.broker_security import BrokerSecurity
    from tidelog.server.console_process import ConsoleProcess
    from tidelog.server.group_lag import GroupLag

log = logging.getLogger("tidelog.server")

# The versions in Kafka 4.3 of the features that the served APIs need.
SUPPORTED_FEATURES = {"group.version": (0, 1), "metadata.version": (7, 30), "transaction.version": (0, 2)}
# Two-phase commits need a newer version of this API.
INIT_PRODUCER_ID, INIT_WITH_TWO_PHASE = 22, 6
PROGRESS_SECONDS = 5.0
# The time limit of a stop for changes that read or write ZooKeeper, which may be unreachable.
TREE_SECONDS = 5.0


class BrokerState(IntEnum):
    NOT_RUNNING = 0
    STARTING = 1
    RECOVERING_FROM_UNCLEAN_SHUTDOWN = 2
    RUNNING_AS_BROKER = 3
    RUNNING_AS_CONTROLLER = 4
    PENDING_CONTROLLED_SHUTDOWN = 6
    BROKER_SHUTTING_DOWN = 7


class Broker(LogManagerListener):
    def __init__(self, config: BrokerConfig, loop: BrokerLoop, platform: Platform | None = None) -> None:
        self.config = config
        self._platform = platform or RealPlatform()
        self.state = BrokerState.NOT_RUNNING
        self.broker_id = config.broker_id
        self.failed = asyncio.Event()
        self.registry = Registry()
        self._loop = loop
        self._clock = loop.clock
        self._membership: Membership | None = None
        self._logs: LogManager | None = None
        self._cleaner: LogCleaner | None = None
        self._moves: ReplicaMoves | None = None
        self._replicas: ReplicaManager | None = None
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._server: SocketServer | None = None
        self._router: Router | None = None
        self._producer_ids: ProducerIds | None = None
        self._quotas: QuotaManagers | None = None
        self._topic_creation: AutoTopicCreation | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._identities: list[MetaProperties] = []
        self._new_folders: list[str] = []  # beside folders that a broker used before
        self._has_logs = False  # whether the logs are open, and belong to this broker's tree
        self._observability = Observability(config, self.registry)
        self._console: ConsoleProcess | None = None
        self._security: BrokerSecurity | None = None  # None without TLS, SASL and delegation tokens
        self._authorizer: Authorizer | None = None
        self._audit_topic: AuditTopic | None = None

    # -- start -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the broker until it answers requests. After StartFailed, too, the caller calls `stop`."""
        started = time.monotonic()
        self.state = BrokerState.STARTING
        try:
            dynamic = DynamicConfig(self.config)
            logs = self._open_log_dirs(dynamic)
            self._membership = membership = self._make_membership(dynamic)
            identity = await membership.identify(self._identities)
            self.broker_id = identity.broker_id
            if self.config.broker_id < 0:
                self.config.assume_broker_id(self.broker_id)
            logs.log_dirs.claim(identity.cluster_id, self.broker_id)
            metadata = MetadataCache(identity.cluster_id)
            stored = await membership.load(metadata, logs)
            dynamic.load(stored, self.broker_id)
            logs.recovery_threads.per_log_dir = self.config.num_recovery_threads_per_data_dir
            self._loop.set_io_threads(self.config.num_io_threads)
            self._quotas = make_quotas(self.config, self._clock)
            services = self._assemble(logs, metadata, membership, dynamic, self._quotas)
            if self.config.needs_security:
                from tidelog.server.broker_security import BrokerSecurity

                self._security = BrokerSecurity(self.config, self._loop)
                await self._security.start(services, membership)
            self._start_audit(services)
            await self._start_authorizer(services, membership)
            self._server = server = self._bind(services)
            follow_quotas(services, server, stored, self.registry)
            await self._observability.bind(self.health, self._security)
            topics = dynamic.topics
            membership.check_folders(logs)
            await self._load_logs(logs, lambda topic: topics.log_config(membership.overrides_of(topic)))
            membership.check_logs(logs, self._new_folders)
            self._has_logs = True
            await membership.join(services, self._advertised(server))
            services.groups.start()
            services.transactions.start()
            logs.start(intervals(self.config))
            self._cleaner = cleaner = LogCleaner(logs, self._loop, cleaner_settings(self.config))
            cleaner.start()
            services.metrics.add_cleaner(cleaner, logs.log_dirs)
            self._moves = services.moves = ReplicaMoves(
                services.replicas, self._loop, cleaner, move_settings(self.config)
            )
            self._moves.start()
            if services.cluster is not None:
                services.cluster.states.on_hosted = self._moves.partition_hosted
            self._follow_settings(membership, server, cleaner, self._moves)
            self._observability.start(services)
            self._observability.start_tracing(server, self.broker_id)
            server.start()
            self._observability.start_canary(services, self.addresses)
            if self.config.console_listener is not None:
                from tidelog.server.console import start_console

                self._console = start_console(self.config, services, server, self.address)
        except (LogDirRefused, StaleTree, TreeUnavailable, TreeError) as error:
            raise StartFailed(str(error)) from error
        self.state = BrokerState.RUNNING_AS_BROKER
        log.info(
            "started",
            extra={
                "fields": {
                    "broker": self.broker_id,
                    "cluster": identity.cluster_id,
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
            disk=self._platform.disk,
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
        if self._identities:
            self._new_folders = [
                log_dir.path
                for log_dir, meta in zip(logs.log_dirs, identities, strict=True)
                if meta is None and log_dir.offline is None
            ]
        logs.listen(self)
        return logs

    def _make_membership(self, dynamic: DynamicConfig) -> Membership:
        if self.config.cluster is not None:
            from tidelog.server.zookeeper_membership import ZooKeeperMembership

            return ZooKeeperMembership(self.config, dynamic, self._clock, self._platform)
        from tidelog.server.embedded_membership import EmbeddedMembership

        return EmbeddedMembership(self.config, dynamic, self._clock, self._platform)

    def _assemble(
        self,
        logs: LogManager,
        metadata: MetadataCache,
        membership: Membership,
        dynamic: DynamicConfig,
        quotas: QuotaManagers,
    ) -> Services:
        worker = self._platform.append_worker(self._loop)
        replicas = ReplicaManager(self.broker_id, logs, self._loop, worker, AllTopicMetrics(self.registry))
        self._replicas = replicas
        replicas.metadata = metadata
        metadata.features = {name: high for name, (_, high) in SUPPORTED_FEATURES.items()}
        settings = GroupSettings(self.config.__getitem__, overrides_of(metadata))
        self._groups = groups = GroupCoordinator(replicas, metadata, self._loop, settings)
        self._producer_ids = producer_ids = ProducerIds(membership.requests.allocate_producer_ids)
        transaction_settings = TransactionSettings(self.config.__getitem__)
        local = LocalMarkers(
            replicas,
            self._loop,
            lambda: groups.runtime,
            lambda: transaction_settings.append_timeout_ms,
        )
        self._transactions = transactions = TransactionCoordinator(
            replicas,
            metadata,
            self._loop,
            transaction_settings,
            producer_ids,
            membership.markers(local, self._loop),
            local,
        )
        verification = TransactionVerification(transactions, replicas, membership.remote_verification)
        groups.offsets.check_transaction = verification.check_offsets
        topic_creation = AutoTopicCreation(membership.requests, self.config.num_partitions)
        self._topic_creation = topic_creation
        sessions = FetchSessionCache(
            self._clock, self.config.max_incremental_fetch_session_cache_slots, self._platform.rng
        )
        telemetry = ClientTelemetry(self._clock, metadata, self.config.telemetry_max_bytes)
        self.registry.collect(telemetry.families)
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
            controller=membership.controller,
            internal_topics=InternalTopics(membership.requests, metadata),
            groups=groups,
            transactions=transactions,
            verification=verification,
            producer_ids=producer_ids,
            metrics=BrokerMetrics(
                self.registry, replicas, sessions, metadata, lambda: self.state, self._clock.ms()
            ),
            quotas=quotas,
            telemetry=telemetry,
            auto_create_topic=topic_creation.create,
            apis=self._apis(),
            supported_features=SUPPORTED_FEATURES,
        )
        self._router = Router(services, services.apis)
        services.handle = self._router.handle
        services.respond = self._router.respond
        services.failed = self._router.failed
        return services

    def _start_audit(self, services: Services) -> None:
        if not self.config.tidelog_audit_topic:
            return
        from tidelog.server.audit_topic import AuditTopic

        self._audit_topic = topic = AuditTopic(
            self.config.tidelog_audit_topic, self.broker_id, services.replicas, services.internal_topics
        )
        services.audit.is_on = True
        services.audit.on_event = topic.record
        self.registry.collect(topic.families)

    async def _start_authorizer(self, services: Services, membership: Membership) -> None:
        """Make and start the authorizer of the settings, if there is one."""
        if not self.config.authorizer_class_name.strip():
            return
        from tidelog.security.authorizer import make_authorizer
        from tidelog.server.authorizer_metrics import AuthorizerMetrics

        try:
            authorizer = make_authorizer(self.config.authorizer_class_name)
            assert authorizer is not None
            self._authorizer = authorizer
            authorizer.configure(self.config.texts())
            await authorizer.start(membership.async_tree())
        except (BadNode, ConfigError) as error:
            raise StartFailed(str(error)) from error
        services.authorizer = authorizer
        services.audit.is_on = True
        self.registry.collect(AuthorizerMetrics(authorizer, services.audit).families)

    def _apis(self) -> dict[int, Api]:
        """The served APIs; if two-phase commits are enabled, with their version of InitProducerId."""
        apis = served_apis(cluster=self.config.cluster is not None)
        if self.config.transaction_two_phase_commit_enable:
            apis[INIT_PRODUCER_ID] = replace(apis[INIT_PRODUCER_ID], max_version=INIT_WITH_TWO_PHASE)
        return apis

    def _bind(self, services: Services) -> SocketServer:
        assert self._router is not None
        small_transactions = SmallTransactions(services)
        server = SocketServer(
            self._loop,
            self.config.endpoints,
            self._router.handle,
            network_limits(self.config),
            self.registry,
            versions=self._router.versions,
            formatter=self._router.describe,
            fast_paths={
                ApiKey.PRODUCE: SmallProduces(services).take,
                ApiKey.ADD_PARTITIONS_TO_TXN: small_transactions.add_partitions,
                ApiKey.END_TXN: small_transactions.end,
            },
            security=None if self._security is None else self._security.listeners,
        )
        try:
            server.bind()
        except OSError as error:
            listeners = ", ".join(str(endpoint) for endpoint in self.config.endpoints)
            raise StartFailed(f"cannot listen on {listeners}: {error.strerror or error}") from error
        services.dynamic_config.on_level_change = server.refresh_log_level
        return server

    async def _load_logs(self, logs: LogManager, config_of: Callable[[str], LogConfig]) -> None:
        last_told = time.monotonic()
        disk = self._platform.disk
        crashed = not all(disk.exists(f"{log_dir.path}/{CLEAN_SHUTDOWN}") for log_dir in logs.log_dirs)

        def progress(done: int, total: int, key: PartitionKey) -> None:
            nonlocal last_told
            now = time.monotonic()
            if now - last_told >= PROGRESS_SECONDS:
                remaining = (now - began) / done * (total - done)
                last_told = now
                log.info("loading logs: %d of %d, about %d s to go", done, total, round(remaining))

        began = time.monotonic()
        if crashed and any(has_log_files(disk, log_dir.path) for log_dir in logs.log_dirs.online):
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

    # -- settings ----------------------------------------------------------------------------------

    def _follow_settings(
        self, membership: Membership, server: SocketServer, cleaner: LogCleaner, moves: ReplicaMoves
    ) -> None:
        def changed(names: frozenset[str]) -> None:
            log.info("settings changed", extra={"fields": {"names": ",".join(sorted(names))}})
            server.update_limits(network_limits(self.config))
            self._loop.set_io_threads(self.config.num_io_threads)
            cleaner.update_settings(cleaner_settings(self.config))
            moves.update_settings(move_settings(self.config))
            if self._security is not None:
                self._security.settings_changed()
            membership.settings_changed()

        self.config.on_change(changed)

    def health(self) -> Health:
        """Whether the broker is healthy: it answers clients and has an online log folder."""
        from tidelog.metrics.http import Health

        online = [] if self._logs is None else self._logs.log_dirs.online
        offline = self.offline_log_dirs
        is_healthy = self.state is BrokerState.RUNNING_AS_BROKER and bool(online)
        state = self.state.name.lower().replace("_", " ")
        return Health(is_healthy, {"broker": self.broker_id, "state": state, "offline_log_dirs": offline})

    @property
    def offline_log_dirs(self) -> list[str]:
        """The log folders that failed since the start, or at the start."""
        return [] if self._logs is None else [log_dir.path for log_dir in self._logs.log_dirs.offline]

    # -- while running -----------------------------------------------------------------------------

    def log_dir_offline(self, path: str, lost: list[PartitionKey]) -> None:
        """Take the partitions of a failed folder offline until a restart.

        During the load of the logs, another thread than the loop's calls this.
        """
        # Clients are served until the controller has moved leaderships away, which may take minutes.
        serves = (BrokerState.RUNNING_AS_BROKER, BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        if self._membership is None or not self._has_logs or self.state not in serves:
            return
        self._membership.partitions_offline(lost)
        self._spawn(self._tell_controller(lost))
        assert self._logs is not None
        if not self._logs.log_dirs.online:
            log.critical("the last log folder failed: the broker ends")
            self.failed.set()

    async def _tell_controller(self, lost: list[PartitionKey]) -> None:
        assert self._membership is not None
        try:
            await self._membership.tell_controller(lost)
        except (KafkaError, TreeUnavailable) as error:
            log.error("the controller could not be told of offline partitions: %s", error)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- addresses and first screen ----------------------------------------------------------------

    @property
    def replicas(self) -> ReplicaManager | None:
        """The replicas on this broker; None before its logs are open."""
        return self._replicas

    @property
    def membership(self) -> Membership | None:
        """The place of this broker in its cluster; None before it starts."""
        return self._membership

    @property
    def group_lag(self) -> GroupLag | None:
        """The lag of the groups that this broker coordinates; None before it starts."""
        return self._observability.group_lag

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
        console = None if self._console is None else self._console.url
        protocols = {endpoint.listener: endpoint.security_protocol for endpoint in self.config.endpoints}
        warnings = open_address_lines(self.config)
        return first_screen(
            self.broker_id,
            self.addresses,
            protocols,
            self.config.data_dirs,
            self._observability.url,
            warnings,
            console,
        )

    # -- stop --------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answer the open requests, close the logs and mark a clean stop; also cleans up a failed start."""
        running = self.state is BrokerState.RUNNING_AS_BROKER
        self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        await self._observability.stop_canary()
        if self._console is not None:
            await self._console.close()
        if running and self._membership is not None:
            await self._membership.leave()
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
        if self._producer_ids is not None:
            self._producer_ids.close()
        if self._membership is not None:
            self._membership.disconnect()
        tree_seconds = None if self.config.cluster is None else TREE_SECONDS
        if self._router is not None:
            await self._router.drain(tree_seconds)
        self.state = BrokerState.BROKER_SHUTTING_DOWN
        if self._audit_topic is not None:
            self._audit_topic.close()
        if self._topic_creation is not None:
            await self._topic_creation.drain()
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks), timeout=tree_seconds)
            for task in late:
                task.cancel()
        await self._observability.close()
        if self._security is not None:
            await self._security.close()
        if self._quotas is not None:
            self._quotas.close()
        if self._membership is not None:
            await self._membership.resign()
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
        if self._authorizer is not None:
            await self._authorizer.close()
        if self._membership is not None:
            await self._membership.close()
        self.state = BrokerState.NOT_RUNNING
        if running:
            log.info("stopped")

    def _close_logs(self) -> None:
        """Close the logs and write the markers of a clean stop."""
        assert self._membership is not None
        assert self._logs is not None
        self._logs.shutdown(self._membership.note_stop())
