"""The parts of a broker that belongs to a cluster, for the handlers of requests between brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelog.cluster.replica_states import ReplicaStates
from tidelog.cluster.topic_overrides import TopicOverrides
from tidelog.errors import ClusterAuthorizationFailed, KafkaError
from tidelog.metadata.state import PartitionState
from tidelog.network.request import Request
from tidelog.partitions import PartitionKey, TopicPartition
from tidelog.protocol.election_type import ElectionType
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from tidelog.server.forwarding import ForwardingManager


class ActiveController(Protocol):
    """The part of controller.cluster_controller.ClusterController that answers other brokers.

    Every method raises NotController if another broker is the controller.
    """

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Sequence[PartitionKey]:
        """Move the leaders of a broker that is about to stop; returns the partitions that it still leads.

        Raises StaleBrokerEpoch, or BrokerNotAvailable if the broker is not registered.
        """

    async def alter_partition(self, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
        """Change the in-sync replicas of partitions, as their leaders ask."""

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None,
        election_type: ElectionType,
        *,
        timeout: float | None = None,
    ) -> Mapping[TopicPartition, KafkaError | None]:
        """Elect the leaders of these partitions, or of all for None; returns the error of each one."""

    async def alter_partition_reassignments(
        self,
        wanted: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> Mapping[TopicPartition, KafkaError | None]:
        """Begin reassignments; None instead of replicas cancels one. Returns the error of each partition."""

    async def list_partition_reassignments(
        self, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, PartitionState]:
        """The partitions that are being reassigned, of all for None."""

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """A block of producer ids for a broker. Raises StaleBrokerEpoch."""


@dataclass(slots=True)
class ClusterServices:
    controller: ActiveController
    states: ReplicaStates
    overrides: TopicOverrides
    forwarding: ForwardingManager
    # The epoch of this broker's registration; -1 before the first one.
    broker_epoch: Callable[[], int]
    # The inter-broker listener and the control-plane listener.
    listeners: frozenset[str]
    # Whether the address of a broker refuses a connection from here.
    refuses_connections: Callable[[int], Awaitable[bool]]

    def check_listener(self, request: Request) -> None:
        """Raise ClusterAuthorizationFailed unless the request came over a listener of the brokers."""
        if request.listener not in self.listeners:
            raise ClusterAuthorizationFailed(
                f"{request.entry.name} is for brokers, and listener {request.listener} is for clients"
            )
