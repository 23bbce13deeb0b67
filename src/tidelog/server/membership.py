"""Membership: the interface between a broker and its cluster.

A broker alone has its tree in its log folder, and is its own controller. One of several brokers has a
ZooKeeper session, and follows the elected controller. `Broker` starts and stops both kinds through this
interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidelog.endpoints import Endpoint
from tidelog.metadata.state import ClusterState
from tidelog.partitions import PartitionKey
from tidelog.server.run import StartFailed
from tidelog.storage.checkpoints import MetaProperties
from tidelog.storage.log_manager import LogManager

if TYPE_CHECKING:
    from tidelog.clock import Scheduler
    from tidelog.cluster.metadata_cache import MetadataCache
    from tidelog.controller.interface import Controller, NewTopic, TopicResult
    from tidelog.coordinator.transaction.markers import MarkerChannel
    from tidelog.coordinator.transaction.remote_verification import RemoteVerification
    from tidelog.metadata.async_tree import AsyncTree
    from tidelog.server.config.broker import BrokerConfig
    from tidelog.server.services import Services
    from tidelog.server.token_changes import ClusterTokenStore, EmbeddedTokenStore


@dataclass(slots=True, frozen=True)
class Identity:
    """The ids in meta.properties of the log folders."""

    cluster_id: str
    broker_id: int


class ControllerRequests(Protocol):
    """The requests of this broker itself to the controller, for its clients and coordinators."""

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[TopicResult]:
        """Create topics; one result for each."""

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids that was never allocated before. Raises KafkaError."""


class Membership(Protocol):
    """The methods are called in this order. `close` is also called after a failed start."""

    async def identify(self, folders: Sequence[MetaProperties]) -> Identity:
        """Open the tree; returns the ids of the cluster and of this broker.

        Raises StartFailed, TreeError or TreeUnavailable.
        """

    async def load(self, metadata: MetadataCache, logs: LogManager) -> ClusterState:
        """Read the stored settings, before logs are loaded."""

    def async_tree(self) -> AsyncTree:
        """The tree, for parts with their own data in it. Available after `identify`."""

    @property
    def controller(self) -> Controller:
        """The receiver of handlers' changes of topics and settings. Available after `load`."""

    @property
    def requests(self) -> ControllerRequests:
        """Available after `load`."""

    def token_store(self) -> EmbeddedTokenStore | ClusterTokenStore:
        """The store of delegation tokens. Available after `load`."""

    @property
    def remote_verification(self) -> RemoteVerification | None:
        """Asks coordinators of transactions on other brokers; available after `load`."""

    def markers(self, local: MarkerChannel, scheduler: Scheduler) -> MarkerChannel:
        """Writes transaction markers on any broker; `local` writes the markers of this broker's
        partitions."""

    def overrides_of(self, topic: str) -> Mapping[str, str]:
        """The settings that a topic overrides; available after `load` for topics with logs here."""

    def check_folders(self, logs: LogManager) -> None:
        """Raise StaleTree if another cluster used the log folders; before logs are loaded."""

    def check_logs(self, logs: LogManager, new_folders: Sequence[str]) -> None:
        """Raise StaleTree if another cluster used the loaded logs.

        `new_folders` were added to used folders.
        """

    async def join(self, services: Services, endpoints: Sequence[Endpoint]) -> None:
        """Register this broker with its advertised endpoints, and serve partitions from now on."""

    def settings_changed(self) -> None:
        """Apply changed settings of the broker, which are the defaults of topics."""

    def partitions_offline(self, partitions: Sequence[PartitionKey]) -> None:
        """Stop serving these partitions, because their log folder failed."""

    async def tell_controller(self, partitions: Sequence[PartitionKey]) -> None:
        """Inform the controller of these offline partitions. Raises KafkaError or TreeUnavailable."""

    async def leave(self) -> None:
        """Give up leaderships and, in a cluster, the role of controller, while the broker still answers.

        Not called after a failed start.
        """

    def disconnect(self) -> None:
        """Fail the requests to the controller, so that no answer to a client waits for them."""

    async def resign(self) -> None:
        """Stop following the controller, and stop this broker's own controller.

        No request is waiting then.
        """

    def note_stop(self) -> int:
        """The broker epoch for the marker of a clean stop, after logs are closed."""

    async def close(self) -> None:
        """Close the tree."""


def known_broker_id(config: BrokerConfig, folders: Sequence[MetaProperties]) -> int | None:
    """The id of the settings or of the log folders; None if one has to be generated."""
    if config.broker_id >= 0:
        return config.broker_id
    found = next((folder.broker_id for folder in folders if folder.broker_id is not None), None)
    if found is None and not config.broker_id_generation_enable:
        raise StartFailed("broker.id is not set and broker.id.generation.enable is false: set one of them")
    return found


def known_cluster_id(folders: Sequence[MetaProperties]) -> str | None:
    return next((folder.cluster_id for folder in folders if folder.cluster_id is not None), None)
