"""LeaderReplication: the parts of a broker in a cluster for the followers of the partitions that it leads."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.cluster.alter_partition_manager import AlterPartitionManager
from tidelog.cluster.isr_manager import IsrManager, IsrMeters
from tidelog.cluster.replica_selector import selector_of
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from tidelog.server.config.cluster import ClusterConfig
from tidelog.server.controller_channel import ControllerChannel
from tidelog.server.services import Services


class LeaderReplication:
    """Asks the controller over its own `channel`, so that it does not wait behind requests of clients."""

    def __init__(
        self, services: Services, cluster: ClusterConfig, channel: ControllerChannel, epoch: Callable[[], int]
    ) -> None:
        self._channel = channel
        self._alter_partitions = AlterPartitionManager(services.broker_id, epoch, self._send)
        replicas = services.replicas
        replicas.isr_rules.metadata = services.metadata
        replicas.isr_rules.max_lag_seconds = cluster.replica_lag_time_max_ms / 1000
        services.fetcher.selector = selector_of(cluster.replica_selector_class)
        self._quota = services.fetcher.leader_quota
        self.settings_changed(cluster)
        meters = IsrMeters(services.metrics.registry)
        self._isr_manager = IsrManager(replicas, self._alter_partitions, meters, epoch)
        replicas.isr_manager = self._isr_manager
        self._isr_manager.start()

    async def _send(self, request: AlterPartitionRequest, *, version: int) -> AlterPartitionResponse:
        return await self._channel.call(request, AlterPartitionResponse, version=version)

    def settings_changed(self, cluster: ClusterConfig) -> None:
        self._quota.configure(
            cluster.leader_replication_throttled_rate,
            cluster.replication_quota_window_num,
            cluster.replication_quota_window_size_seconds,
        )

    def brokers_changed(self) -> None:
        """Handle a change of the live brokers."""
        self._isr_manager.brokers_changed()

    def disconnect(self) -> None:
        """Stop changing ISRs."""
        self._isr_manager.close()
        self._channel.close()

    async def close(self) -> None:
        await self._alter_partitions.close()
