"""The present leaders of partitions that this broker does not lead (KIP-951), for produce and fetch answers.

With them, a client can retry without a metadata request.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.server.services import Services


class LeaderNode(NamedTuple):
    """A broker that leads partitions, with its endpoint on the client's listener."""

    broker_id: int
    host: str
    port: int
    rack: str | None


class CurrentLeaders:
    """Finds the leaders of partitions, and collects the brokers that lead them."""

    def __init__(self, services: Services, listener: str) -> None:
        self._services = services
        self._listener = listener
        self._nodes: dict[int, LeaderNode] = {}

    def of(self, topic: str | bytes, index: int) -> tuple[int, int]:
        """The leader of a partition and its epoch in this broker's metadata; -1 for an unknown one."""
        leader, epoch = self._find(topic, index)
        state = self._services.metadata.snapshot
        broker = state.brokers.get(leader)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        if broker is not None and endpoint is not None:
            self._nodes[leader] = LeaderNode(leader, endpoint.host, endpoint.port, broker.rack)
        return leader, epoch

    def _find(self, topic: str | bytes, index: int) -> tuple[int, int]:
        replicas = self._services.replicas
        hosted = replicas.topics.get(topic) if isinstance(topic, str) else replicas.topics_by_id.get(topic)
        partition = None if hosted is None else hosted.partitions.get(index)
        if partition is not None:
            return partition.leader_id, partition.leader_epoch
        state = self._services.metadata.find_partition(topic, index)
        return (-1, -1) if state is None else (state.leader, state.leader_epoch)

    @property
    def nodes(self) -> list[LeaderNode]:
        """The leaders so far."""
        return list(self._nodes.values())
