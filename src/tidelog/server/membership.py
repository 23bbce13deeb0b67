"""Membership: how a broker belongs to its cluster.

The broker alone has its tree in its log folder and is its own controller. A broker of several has a ZooKeeper
session, and follows the elected controller. `Broker` starts and stops either through this interface.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidelog.endpoints import Endpoint
from tidelog.metadata.state import ClusterState, TopicState
from tidelog.partitions import PartitionKey
from tidelog.server.run import StartFailed
from tidelog.storage.checkpoints import MetaProperties
from tidelog.storage.log_manager import LogManager

if TYPE_CHECKING:
    from tidelog.controller.interface import Controller
    from tidelog.server.config.broker import BrokerConfig
    from tidelog.server.host import BrokerHost


@dataclass(slots=True, frozen=True)
class Identity:
    """The ids that meta.properties of the log folders keeps."""

    cluster_id: str
    broker_id: int


class Membership(Protocol):
    """Methods are called in this order; `close` also after a start that failed anywhere."""

    async def identify(self, folders: Sequence[MetaProperties]) -> Identity:
        """Open the tree; returns the ids of the cluster and of this broker.

        Raises StartFailed, TreeError or TreeUnavailable.
        """

    async def load(self) -> ClusterState:
        """Read what is needed before logs are loaded: stored settings and topics."""

    @property
    def controller(self) -> Controller:
        """Where handlers send changes of topics and settings; available after `identify`."""

    def check_folders(self, folders: Collection[str], topics: Mapping[str, TopicState]) -> None:
        """Raise StaleTree if another cluster used the log folders; before logs are loaded."""

    def check_logs(
        self, logs: LogManager, new_folders: Sequence[str], topics: Mapping[str, TopicState]
    ) -> None:
        """The same for the loaded logs; `new_folders` were added to folders that a broker used before."""

    async def join(self, host: BrokerHost, logs: LogManager, endpoints: Sequence[Endpoint]) -> None:
        """Register this broker with its advertised endpoints, and let the host serve partitions."""

    def settings_changed(self) -> None:
        """Read the settings of the broker again."""

    async def partitions_offline(self, partitions: Sequence[PartitionKey]) -> None:
        """The log folder of these partitions failed. Raises KafkaError if the controller is not informed."""

    async def leave(self) -> None:
        """Give up leaderships before the broker stops to answer; a failed start does not call this."""

    async def resign(self) -> None:
        """Complete the running change of the controller and stop it, after the last request is answered."""

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
