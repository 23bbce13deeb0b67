"""EmbeddedMembership: the only broker of its cluster, with its tree in the first log folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from tidelog.clock import Clock, Scheduler
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.controller.single import SingleController
from tidelog.coordinator.group.coordinator import OFFSETS_TOPIC
from tidelog.coordinator.transaction.coordinator import TOPIC as TRANSACTIONS_TOPIC
from tidelog.coordinator.transaction.markers import MarkerChannel
from tidelog.endpoints import Endpoint
from tidelog.metadata.state import ClusterState
from tidelog.metadata.store import MetadataStore
from tidelog.metadata.tree import Tree, TreeError
from tidelog.partitions import PartitionKey
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.dynamic_config import DynamicConfig
from tidelog.server.host import BrokerHost
from tidelog.server.membership import Identity, known_broker_id, known_cluster_id
from tidelog.server.part_settings import controller_settings
from tidelog.server.platform import Platform
from tidelog.server.services import Services
from tidelog.server.stale_tree import (
    check_folders,
    check_logs,
    check_no_logs,
    last_stop,
    name_empty_folders,
    note_stop,
    what_to_do,
)
from tidelog.storage.checkpoints import MetaProperties
from tidelog.storage.log_manager import LogManager

if TYPE_CHECKING:
    from tidelog.metadata.async_tree import AsyncTree
    from tidelog.metadata.threaded_tree import BlockingTree, ThreadedTree
    from tidelog.server.token_changes import EmbeddedTokenStore

log = logging.getLogger("tidelog.server")


class EmbeddedMembership:
    """Implements tidelog.server.membership.Membership, which documents the public methods."""

    def __init__(
        self, config: BrokerConfig, dynamic: DynamicConfig, clock: Clock, platform: Platform
    ) -> None:
        self._config = config
        self._platform = platform
        self._dynamic = dynamic
        self._clock = clock
        self._tree: Tree | None = None
        self._async_tree: ThreadedTree | None = None
        self._controller: SingleController | None = None
        self._host: BrokerHost | None = None
        self._registered_epoch = -1

    async def identify(self, folders: Sequence[MetaProperties]) -> Identity:
        folders_of_logs = self._config.data_dirs
        if not self._platform.has_tree(folders_of_logs[0]):
            check_no_logs(self._platform.disk, folders_of_logs)
        self._tree = self._platform.open_tree(folders_of_logs[0], self._clock)
        store = MetadataStore(self._tree, self._clock)
        store.prepare()
        cluster_id = store.cluster_id(known_cluster_id(folders))
        broker_id = known_broker_id(self._config, folders)
        if broker_id is None:
            broker_id = store.generate_broker_id(self._config.reserved_broker_max_id)
        self._controller = SingleController(
            store,
            broker_id,
            self._dynamic,
            settings=controller_settings(self._config),
            on_entity_config=self._dynamic.entity_changed,
            clock=self._clock,
            rng=self._platform.rng,
        )
        return Identity(cluster_id, broker_id)

    def async_tree(self) -> AsyncTree:
        if self._async_tree is None:
            from tidelog.metadata.threaded_tree import ThreadedTree  # few brokers need it

            assert self._tree is not None
            self._async_tree = ThreadedTree(cast("BlockingTree", self._tree), shared=True)
        return self._async_tree

    @property
    def controller(self) -> SingleController:
        assert self._controller is not None
        return self._controller

    @property
    def requests(self) -> SingleController:
        return self.controller

    async def load(self, metadata: MetadataCache, logs: LogManager) -> ClusterState:
        return await self.controller.load()

    def token_store(self) -> EmbeddedTokenStore:
        from tidelog.server.token_changes import EmbeddedTokenStore

        return EmbeddedTokenStore(self.controller)

    @property
    def remote_verification(self) -> None:
        return None

    def markers(self, local: MarkerChannel, scheduler: Scheduler) -> MarkerChannel:
        return local

    def overrides_of(self, topic: str) -> dict[str, str]:
        found = self.controller.state.topics.get(topic)
        return {} if found is None else found.configs

    def check_folders(self, logs: LogManager) -> None:
        assert self._tree is not None
        folders = [log_dir.path for log_dir in logs.log_dirs.online]
        check_folders(self._platform.disk, folders, self._tree, self.controller.state.topics)

    def check_logs(self, logs: LogManager, new_folders: Sequence[str]) -> None:
        topics = self.controller.state.topics
        check_logs(logs.logs, topics)
        name_empty_folders(new_folders, {*logs.logs, *logs.failed}, topics)

    async def join(self, services: Services, endpoints: Sequence[Endpoint]) -> None:
        controller, logs = self.controller, services.logs
        self._host = host = BrokerHost(
            services.replicas, services.metadata, services.dynamic_config.topics, self.overrides_of
        )
        host.coordinators[OFFSETS_TOPIC] = services.groups.runtime
        host.coordinators[TRANSACTIONS_TOPIC] = services.transactions.runtime
        await controller.raise_leader_epochs(logs.recovered())
        broker = await controller.register(endpoints, self._config.broker_rack)
        self._registered_epoch = broker.epoch
        await controller.activate(host)
        host.takes_new_partitions = True
        self._name_strays(services)

    def _name_strays(self, services: Services) -> None:
        hosted = {(partition.topic, partition.index) for partition in services.replicas.partitions()}
        strays = sorted(set(services.logs.logs) - hosted)
        for topic, index in strays:
            log.warning("folder %s-%d belongs to no topic of this broker and is left alone", topic, index)
        if strays:
            log.warning("if another broker made these folders, %s", what_to_do())

    def settings_changed(self) -> None:
        self.controller.settings = controller_settings(self._config)
        if self._host is not None:
            self._host.broker_settings_changed()

    def partitions_offline(self, partitions: Sequence[PartitionKey]) -> None:
        if self._host is not None:
            self._host.partitions_offline(partitions)

    async def tell_controller(self, partitions: Sequence[PartitionKey]) -> None:
        await self.controller.partitions_offline(partitions)

    async def leave(self) -> None:
        """There is no other broker that could lead the partitions."""

    def disconnect(self) -> None:
        """The controller is in this process."""

    async def resign(self) -> None:
        if self._controller is not None:
            await self._controller.close()

    def note_stop(self) -> int:
        """Write this stop to the tree; after a failed start the marker gets the epoch of the last stop.

        Opening the logs removed the markers of that stop.
        """
        assert self._tree is not None
        epoch = self._registered_epoch
        try:
            if epoch >= 0:
                note_stop(self._tree, epoch)
            else:
                epoch = last_stop(self._tree)
        except TreeError as error:
            log.warning("this stop could not be written to the tree: %s", error)
        return epoch

    async def close(self) -> None:
        if self._async_tree is not None:
            await self._async_tree.close()
        if self._tree is not None:
            self._tree.close()
