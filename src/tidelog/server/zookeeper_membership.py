"""ZooKeeperMembership: one of several brokers, with a ZooKeeper session.

The broker registers itself, competes to be the controller, and follows the active controller. If its session
expires, it registers again and continues. Clients notice that only if the controller has moved leaderships
meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tidelog.clock import Clock, Scheduler
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.replica_states import ReplicaStates
from tidelog.cluster.topic_overrides import TopicOverrides
from tidelog.cluster.transport import refuses_connections
from tidelog.controller.channel_manager import ChannelSettings
from tidelog.controller.cluster_controller import ClusterController
from tidelog.controller.interface import ConfigEntity, ConfigKind
from tidelog.coordinator.group.coordinator import OFFSETS_TOPIC
from tidelog.coordinator.transaction.coordinator import TOPIC as TRANSACTIONS_TOPIC
from tidelog.coordinator.transaction.markers import MarkerChannel
from tidelog.coordinator.transaction.remote_verification import RemoteVerification
from tidelog.endpoints import Endpoint
from tidelog.errors import KafkaError
from tidelog.metadata.async_tree import AsyncTree, SessionEvent, within_one_session
from tidelog.metadata.cluster_store import ClusterStore, KRaftController
from tidelog.metadata.nodes import BrokerNode
from tidelog.metadata.paths import decode_name
from tidelog.metadata.state import DEFAULT_ENTITY, ClusterState
from tidelog.metadata.tree import NodeExists, TreeUnavailable
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from tidelog.server.admin_manager import AdminManager
from tidelog.server.broker_transport import BrokerTransport, transport_to
from tidelog.server.cluster_features import ClusterFeatures, Features
from tidelog.server.cluster_services import ClusterServices
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.quotas import QUOTA_KINDS
from tidelog.server.config_change_listener import ConfigChangeListener
from tidelog.server.controller_channel import ControllerChannel, ControllerNode
from tidelog.server.controller_client import ControllerClient
from tidelog.server.controller_metrics import register_controller_metrics
from tidelog.server.dynamic_config import DynamicConfig
from tidelog.server.fetcher_metrics import FetcherMetrics
from tidelog.server.follower_replication import FollowerReplication
from tidelog.server.forwarding import ForwardingManager
from tidelog.server.membership import Identity, known_broker_id, known_cluster_id
from tidelog.server.part_settings import controller_settings
from tidelog.server.platform import Platform, SessionGuardian
from tidelog.server.replication import LeaderReplication
from tidelog.server.run import StartFailed
from tidelog.server.services import Services
from tidelog.server.session_metrics import register_session_metrics
from tidelog.server.transaction_links import TransactionLinks
from tidelog.storage.checkpoints import MetaProperties
from tidelog.storage.log_manager import LogManager
from tidelog.storage.partition_folders import parse_partition

if TYPE_CHECKING:
    from tidelog.server.token_changes import ClusterTokenStore

log = logging.getLogger("tidelog.server")

UNCLEAN_ELECTIONS = "unclean.leader.election.enable"

SESSION_MARGIN = 1.5
"""ZooKeeper ends the session of a dead process within this multiple of its time-out."""

ATTEMPT_SECONDS = 1.0
"""How long a broker tries to reach another one of which the controller asks whether it is gone."""

REGISTER_SECONDS = 10.0
"""How long the answers of ZooKeeper to a registration may take. Then it is logged and begins anew."""

UNREACHABLE_SECONDS = 5.0
"""How long a stop waits for the controller while ZooKeeper is away."""


class ZooKeeperMembership:
    """Implements tidelog.server.membership.Membership, which documents the public methods."""

    def __init__(
        self,
        config: BrokerConfig,
        dynamic: DynamicConfig,
        clock: Clock,
        platform: Platform,
    ) -> None:
        assert config.cluster is not None
        self._config = config
        self._cluster = config.cluster
        self._dynamic = dynamic
        self._clock = clock
        self._platform = platform
        self._rng = platform.rng
        self._broker_id = -1
        self._broker_epoch = -1
        self._endpoints: Sequence[Endpoint] = ()
        self._supported_features: Features = {}
        self._features: ClusterFeatures | None = None
        self._tree: AsyncTree | None = None
        self._metadata: MetadataCache | None = None
        self._listener: ConfigChangeListener | None = None
        self._controller: ClusterController | None = None
        self._channel: ControllerChannel | None = None
        self._control_transport: BrokerTransport | None = None
        self._links: TransactionLinks | None = None
        self._replication: LeaderReplication | None = None
        self._following: FollowerReplication | None = None
        self._services: ClusterServices | None = None
        self._has_joined = False
        self._questions: set[asyncio.Task[None]] = set()
        self._is_connected = True  # to ZooKeeper
        self._hand_over_limit: asyncio.Timeout | None = None
        self._guardian: SessionGuardian | None = None

    @property
    def candidate(self) -> ClusterController | None:
        """This broker as a candidate for the controller; None before its start has read the tree."""
        return self._controller

    # --- start

    async def identify(self, folders: Sequence[MetaProperties]) -> Identity:
        self._check_broker_id()
        folder = self._config.data_dirs[0]
        self._tree = await self._platform.connect_zookeeper(self._cluster, folder)
        self._tree.listen(self._session_changed)
        self._store = ClusterStore(self._tree, self._clock, self._rng)
        found = known_broker_id(self._config, folders)

        async def identify() -> None:
            nonlocal found
            await self._store.read_controller()
            await self._store.prepare()
            self._cluster_id = await self._store.cluster_id(known_cluster_id(folders))
            if found is None:
                found = await self._store.generate_broker_id(self._config.reserved_broker_max_id)

        try:
            await within_one_session(self._tree, identify)
        except KRaftController as error:
            raise StartFailed(str(error)) from error
        assert found is not None
        self._broker_id = found
        return Identity(self._cluster_id, found)

    def _check_broker_id(self) -> None:
        """Refuse a configured id above the limit: ZooKeeper may generate it for another broker later."""
        config, largest = self._config, self._config.reserved_broker_max_id
        if config.broker_id_generation_enable and config.broker_id > largest:
            raise StartFailed(
                f"broker.id={config.broker_id} is above reserved.broker.max.id={largest}: ZooKeeper makes "
                "such ids for brokers without one. Set a smaller broker.id or a larger reserved.broker.max.id"
            )

    async def load(self, metadata: MetadataCache, logs: LogManager) -> ClusterState:
        self._metadata = metadata
        self._listener = listener = ConfigChangeListener(self._store)
        self._overrides = TopicOverrides(self._store.topic_configs)
        state = ClusterState(self._cluster_id)

        async def load() -> None:
            await listener.begin()
            state.entity_configs = await self._store.read_entity_configs()
            for entity_path, configs in state.entity_configs.items():
                metadata.set_entity_configs(entity_path, configs)
            await self._overrides.load(topics_with_logs(logs))

        await within_one_session(self.async_tree(), load)
        self._make_controller(metadata, listener)
        self._links = TransactionLinks(self._config, self._broker_id, metadata)
        return state

    def _make_controller(self, metadata: MetadataCache, listener: ConfigChangeListener) -> None:
        config, cluster = self._config, self._cluster
        listener_of_brokers = config.inter_broker_listener
        control = cluster.control_plane_listener or listener_of_brokers
        self._control_transport = transport_to(config, control, str(self._broker_id))
        self._controller = ClusterController(
            self._broker_id,
            self._store,
            self._control_transport,
            self._dynamic,
            self._register_again,
            settings=controller_settings(config),
            channels=ChannelSettings(control, cluster.controller_socket_timeout_ms / 1000),
            inter_broker_listener=listener_of_brokers,
            clock=self._clock,
            rng=self._rng,
        )
        self._channel = self._make_channel()
        self._admin = AdminManager(
            self._controller,
            self._store,
            metadata,
            self._dynamic,
            listener,
            timeout=cluster.request_timeout_ms / 1000,
        )
        self._requests = ControllerClient(
            self._channel,
            self._broker_id,
            lambda: self._broker_epoch,
            timeout_ms=cluster.request_timeout_ms,
        )

    def _make_channel(self) -> ControllerChannel:
        return ControllerChannel(
            transport_to(self._config, self._config.inter_broker_listener, str(self._broker_id)),
            self._controller_node,
            timeout=self._cluster.controller_socket_timeout_ms / 1000,
            retry_timeout=self._cluster.request_timeout_ms / 1000,
        )

    def _controller_node(self) -> ControllerNode | None:
        assert self._metadata is not None
        state = self._metadata.snapshot
        broker = state.brokers.get(state.controller_id)
        endpoint = None if broker is None else broker.endpoint(self._config.inter_broker_listener)
        return None if endpoint is None else ControllerNode(state.controller_id, endpoint)

    async def _refuses_connections(self, broker_id: int) -> bool:
        assert self._metadata is not None
        assert self._control_transport is not None
        broker = self._metadata.snapshot.brokers.get(broker_id)
        control = self._cluster.control_plane_listener or self._config.inter_broker_listener
        endpoint = None if broker is None else broker.endpoint(control)
        return endpoint is not None and await refuses_connections(
            self._control_transport, broker_id, endpoint, timeout=ATTEMPT_SECONDS
        )

    def async_tree(self) -> AsyncTree:
        assert self._tree is not None
        return self._tree

    @property
    def controller(self) -> AdminManager:
        return self._admin

    @property
    def requests(self) -> ControllerClient:
        return self._requests

    def token_store(self) -> ClusterTokenStore:
        from tidelog.metadata.tokens import ZooKeeperTokens
        from tidelog.server.token_changes import ClusterTokenStore

        assert self._tree is not None
        return ClusterTokenStore(ZooKeeperTokens(self._tree), self._cluster.request_timeout_ms / 1000)

    @property
    def remote_verification(self) -> RemoteVerification:
        assert self._links is not None
        return self._links.verification

    def markers(self, local: MarkerChannel, scheduler: Scheduler) -> MarkerChannel:
        assert self._links is not None
        return self._links.markers(local, scheduler)

    def overrides_of(self, topic: str) -> Mapping[str, str]:
        return self._overrides.of(topic)

    def check_folders(self, logs: LogManager) -> None:
        """Do nothing: all brokers share the tree, so it cannot be older than the folders."""

    def check_logs(self, logs: LogManager, new_folders: Sequence[str]) -> None:
        """Do nothing: topic ids are checked when the controller assigns partitions to this broker."""

    async def join(self, services: Services, endpoints: Sequence[Endpoint]) -> None:
        assert self._controller is not None
        assert self._channel is not None
        assert self._listener is not None
        topics = services.dynamic_config.topics
        states = ReplicaStates(
            services.replicas,
            services.metadata,
            self._overrides,
            lambda overrides: topics.log_config(dict(overrides)),
            {OFFSETS_TOPIC: services.groups.runtime, TRANSACTIONS_TOPIC: services.transactions.runtime},
        )
        controller = self._controller
        control = self._cluster.control_plane_listener
        services.cluster = self._services = ClusterServices(
            controller,
            states,
            self._overrides,
            ForwardingManager(self._channel, lambda: controller.is_active, self._has_our_controller),
            lambda: self._broker_epoch,
            frozenset(filter(None, (self._config.inter_broker_listener, control))),
            self._refuses_connections,
        )
        register_controller_metrics(services.metrics.registry, controller)
        register_session_metrics(services.metrics.registry, self.async_tree())
        self._following = FollowerReplication(
            self._config,
            self._broker_id,
            services.metadata,
            services.replicas.scheduler,
            lambda: self._broker_epoch,
        )
        states.fetchers = self._following.fetchers
        states.on_lacking_room = self._lacks_room
        FetcherMetrics(services.metrics.registry, self._following.fetchers)
        self._replication = LeaderReplication(
            services, self._cluster, self._make_channel(), lambda: self._broker_epoch
        )
        self._listener.start(self)
        self._endpoints = endpoints
        self._supported_features = services.supported_features
        features = self._follow_features(services)

        async def register() -> None:
            await self._register()
            await features.load()

        assert self._tree is not None
        try:
            # The controller handles expired sessions from its start on.
            await within_one_session(self._tree, register)
        except NodeExists as error:
            raise StartFailed(
                f"broker id {self._broker_id} is taken: {error}; stop that broker, or set another broker.id"
            ) from None
        services.metadata.brokers_changed = self._brokers_changed
        controller.start()
        self._has_joined = True
        if self._cluster.guardian_enable:
            # Before the broker says that it is ready: it may be killed at once then.
            self._guardian = self._platform.guard_session(self._cluster, self._tree)

    def _has_our_controller(self) -> bool:
        assert self._metadata is not None
        controller_id = self._metadata.snapshot.controller_id
        return self._features is None or not self._features.is_kafka(controller_id)

    def _follow_features(self, services: Services) -> ClusterFeatures:
        def changed(levels: Mapping[str, int]) -> None:
            services.groups.settings.group_version = levels.get("group.version", 0)
            services.transactions.settings.transaction_version = levels.get("transaction.version", 0)

        services.metadata.features = {}
        changed({})
        self._features = features = ClusterFeatures(
            self._store, services.metadata, services.supported_features, changed
        )
        return features

    async def _register(self) -> None:
        """Register at the start, and again after each session that expired."""
        node = BrokerNode(
            list(self._endpoints),
            self._clock.ms(),
            self._config.broker_rack,
            features=_announced(self._supported_features),
        )
        registration = await self._store.register_broker(
            self._broker_id,
            node,
            wait_seconds=self._wait_seconds,
        )
        self._broker_epoch = registration.epoch
        log.info(
            "registered", extra={"fields": {"broker": self._broker_id, "broker_epoch": self._broker_epoch}}
        )
        if self._has_joined and self._features is not None:
            # A broker may have been replaced by one with other features while this one had no session.
            self._features.brokers_changed()

    @property
    def _wait_seconds(self) -> float:
        """The time to wait for the end of another session with this broker's node.

        ZooKeeper has its own limits: a session may live longer than `zookeeper.session.timeout.ms`.
        """
        return self.async_tree().session_timeout * SESSION_MARGIN

    async def _register_again(self) -> None:
        """Register in a new session. Raises TimeoutError if ZooKeeper does not answer in time."""
        async with asyncio.timeout(self._wait_seconds + REGISTER_SECONDS):
            await self._register()

    def _brokers_changed(self) -> None:
        if self._features is not None:
            self._features.brokers_changed()
        if self._replication is not None:
            self._replication.brokers_changed()

    # --- settings (config_change_listener.SettingsOfEntities)

    def entity_changed(self, entity_path: str, configs: dict[str, str]) -> None:
        assert self._metadata is not None
        assert self._services is not None
        assert self._controller is not None
        kind, _, name = entity_path.partition("/")
        if kind == ConfigKind.TOPIC:
            self._services.states.topic_config_changed(name, configs)
            if configs.get(UNCLEAN_ELECTIONS, "").lower() == "true":
                self._controller.unclean_election_enabled(name)
            return
        self._metadata.set_entity_configs(entity_path, configs)
        if kind == ConfigKind.BROKER and name in (DEFAULT_ENTITY, str(self._broker_id)):
            self._dynamic.entity_changed(ConfigEntity(kind, decode_name(name)), configs)
        elif kind in QUOTA_KINDS:
            self._dynamic.entity_changed(ConfigEntity.at(entity_path), configs)

    def entities(self) -> Collection[str]:
        assert self._metadata is not None
        return self._metadata.snapshot.entity_configs

    def topics(self) -> Collection[str]:
        return self._overrides.loaded()

    def settings_changed(self) -> None:
        assert self._controller is not None
        assert self._services is not None
        before, settings = self._controller.settings, controller_settings(self._config)
        is_enabled = settings.unclean_leader_election_enable and not before.unclean_leader_election_enable
        self._controller.update_settings(settings)
        if is_enabled:
            self._controller.unclean_election_enabled()
        self._services.states.broker_settings_changed()
        if self._following is not None:
            self._following.settings_changed()
        if self._replication is not None and self._config.cluster is not None:
            self._replication.settings_changed(self._config.cluster)

    # --- failures

    def partitions_offline(self, partitions: Sequence[PartitionKey]) -> None:
        if self._services is not None:
            self._services.states.partitions_offline(partitions)

    async def tell_controller(self, partitions: Sequence[PartitionKey]) -> None:
        await self._store.write_log_dir_event(self._broker_id)

    def _lacks_room(self) -> None:
        """Ask the controller for the states of all partitions, as after the failure of a log folder."""
        task = asyncio.get_running_loop().create_task(self._ask_for_states())
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _ask_for_states(self) -> None:
        try:
            await self.tell_controller(())
        except TreeUnavailable as error:
            # After its registration in the next session a broker gets all states.
            log.info("the controller is not asked for the partitions without room: %s", error)

    # --- stop

    def _session_changed(self, event: SessionEvent) -> None:
        self._is_connected = event is SessionEvent.CONNECTED
        limit = self._hand_over_limit
        if limit is not None and not self._is_connected and not limit.expired():
            soon = asyncio.get_running_loop().time() + UNREACHABLE_SECONDS
            limit.reschedule(min(soon, limit.when() or soon))

    async def leave(self) -> None:
        """Move leaderships to other brokers and stop being the controller.

        Another broker can be the controller while this one waits for its last requests.
        """
        await self._move_leaderships()
        await self._close_controller()

    async def _move_leaderships(self) -> None:
        """Ask the controller for a controlled shutdown, as often as the settings say.

        Without ZooKeeper only once, and for a few seconds, because no controller can be elected then.
        """
        if not self._cluster.controlled_shutdown_enable:
            return
        if self._following is not None:
            self._following.leave()
        backoff = self._cluster.controlled_shutdown_retry_backoff_ms / 1000
        for attempt in range(self._cluster.controlled_shutdown_max_retries):
            if attempt:
                await asyncio.sleep(backoff)
            if await self._hand_over():
                return
            if not self._is_connected:
                break
        log.warning("stopping without a controlled shutdown: leaderships move when the session ends")

    async def _hand_over(self) -> bool:
        """Move the leaderships; returns whether this broker has none left that another broker could take."""
        assert self._channel is not None
        request = ControlledShutdownRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch)
        seconds = self._cluster.controller_socket_timeout_ms / 1000
        if not self._is_connected:
            seconds = min(seconds, UNREACHABLE_SECONDS)
        try:
            async with asyncio.timeout(seconds) as self._hand_over_limit:
                answer = await self._channel.call(request, ControlledShutdownResponse, timeout=seconds)
        except (KafkaError, TimeoutError) as error:
            log.warning("the controller could not be asked for a controlled shutdown: %r", error)
            return False
        finally:
            self._hand_over_limit = None
        if answer.error_code:
            log.warning("the controller refused a controlled shutdown with error code %d", answer.error_code)
            return False
        if answer.remaining_partitions:
            remaining = ", ".join(f"{p.topic_name}-{p.partition_index}" for p in answer.remaining_partitions)
            log.warning("partitions without another leader so far: %s", remaining)
            return False
        return True

    def disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._links is not None:
            self._links.close()
        if self._replication is not None:
            self._replication.disconnect()
        if self._following is not None:
            self._following.disconnect()

    async def resign(self) -> None:
        for question in self._questions:
            question.cancel()
        if self._replication is not None:
            await self._replication.close()
        if self._following is not None:
            await self._following.close()
        if self._services is not None:
            await self._services.forwarding.drain()
        await self._close_controller()
        if self._listener is not None:
            await self._listener.close()
        if self._features is not None:
            await self._features.close()

    async def _close_controller(self) -> None:
        if self._controller is not None:
            await self._controller.close()

    def note_stop(self) -> int:
        return self._broker_epoch

    async def close(self) -> None:
        if self._tree is not None:
            await self._tree.close()
        if self._guardian is not None:
            await self._guardian.stop()


def _announced(features: Features) -> dict[str, tuple[int, int]]:
    """The features in the registration. Version 0 means off, and Kafka's ranges begin at 1."""
    return {name: (max(1, low), high) for name, (low, high) in features.items()}


def topics_with_logs(logs: LogManager) -> list[str]:
    """The topics of the readable folders. The load of the logs takes unreadable folders offline."""
    found: set[str] = set()
    for log_dir in logs.log_dirs.online:
        with suppress(OSError):
            keys = map(parse_partition, logs.disk.listdir(log_dir.path))
            found.update(key[0] for key in keys if key is not None)
    return sorted(found)
