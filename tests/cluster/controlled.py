"""A World whose partitions follow a controller: LeaderAndIsr, StopReplica and UpdateMetadata."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.cluster.world import SELF, World
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.metadata_update import PARTIAL_UPDATE
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_states import ReplicaStates
from tidelog.cluster.topic_overrides import TopicOverrides
from tidelog.cluster.worker import Worker
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tidelog.protocol.messages.stop_replica import StopReplicaRequest
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk

T = TypeVar("T")

OTHER = 1
TOPIC_ID = b"A" * 16
OTHER_ID = b"B" * 16
NO_ID = bytes(16)

TopicState = UpdateMetadataRequest.UpdateMetadataTopicState


class Coordinator:
    """Notes what a coordinator is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, int]] = []

    def elected(self, partition: Partition) -> None:
        self.events.append(("elected", partition.index, partition.leader_epoch))

    def resigned(self, partition: int) -> None:
        self.events.append(("resigned", partition, -1))


def leader_and_isr(
    topic: str = "t",
    index: int = 0,
    *,
    topic_id: bytes = TOPIC_ID,
    leader: int = SELF,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    replicas: Sequence[int] = (SELF,),
    isr: Sequence[int] | None = None,
    controller_epoch: int = 1,
    is_new: bool = True,
) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(
        controller_id=OTHER,
        controller_epoch=controller_epoch,
        topic_states=[
            LeaderAndIsrRequest.LeaderAndIsrTopicState(
                topic_name=topic,
                topic_id=topic_id,
                partition_states=[
                    LeaderAndIsrRequest.LeaderAndIsrPartitionState(
                        partition_index=index,
                        controller_epoch=controller_epoch,
                        leader=leader,
                        leader_epoch=leader_epoch,
                        isr=list(replicas if isr is None else isr),
                        partition_epoch=partition_epoch,
                        replicas=list(replicas),
                        is_new=is_new,
                    )
                ],
            )
        ],
    )


def stop_replica(
    topic: str = "t",
    index: int = 0,
    *,
    leader_epoch: int = -2,
    delete: bool = True,
    controller_epoch: int = 1,
) -> StopReplicaRequest:
    return StopReplicaRequest(
        controller_id=OTHER,
        controller_epoch=controller_epoch,
        topic_states=[
            StopReplicaRequest.StopReplicaTopicState(
                topic_name=topic,
                partition_states=[
                    StopReplicaRequest.StopReplicaPartitionState(
                        partition_index=index, leader_epoch=leader_epoch, delete_partition=delete
                    )
                ],
            )
        ],
    )


def topic_state(
    name: str, topic_id: bytes = TOPIC_ID, leaders: Mapping[int, int] | None = None
) -> TopicState:
    """A topic of an update, with the leader of each partition; replicas 0 and 1."""
    return UpdateMetadataRequest.UpdateMetadataTopicState(
        topic_name=name,
        topic_id=topic_id,
        partition_states=[
            UpdateMetadataRequest.UpdateMetadataPartitionState(
                partition_index=index,
                controller_epoch=1,
                leader=leader,
                leader_epoch=7,
                isr=[SELF],
                zk_version=3,
                replicas=[SELF, OTHER],
                offline_replicas=[OTHER],
            )
            for index, leader in (leaders or {0: SELF}).items()
        ],
    )


def live_broker(
    broker_id: int, listeners: Sequence[str] = ("PLAINTEXT",), rack: str | None = None
) -> UpdateMetadataRequest.UpdateMetadataBroker:
    return UpdateMetadataRequest.UpdateMetadataBroker(
        id=broker_id,
        endpoints=[
            UpdateMetadataRequest.UpdateMetadataEndpoint(
                port=9000 + broker_id * 10 + number, host=f"host{broker_id}", listener=listener
            )
            for number, listener in enumerate(listeners)
        ],
        rack=rack,
    )


def update_metadata(
    *topics: TopicState,
    brokers: Sequence[UpdateMetadataRequest.UpdateMetadataBroker] | None = None,
    controller_epoch: int = 1,
    type: int = PARTIAL_UPDATE,
) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        controller_id=OTHER,
        controller_epoch=controller_epoch,
        type=type,
        topic_states=list(topics),
        live_brokers=[live_broker(SELF), live_broker(OTHER)] if brokers is None else list(brokers),
    )


class Controlled(World):
    """Broker 0; the tests are its controller."""

    def __init__(self, folder: Path, *, worker: Worker | None = None, disk: Disk | None = None) -> None:
        super().__init__(folder, worker=worker, disk=disk)
        self.metadata = MetadataCache("cluster")
        self.replicas.metadata = self.metadata
        self.tree: dict[str, dict[str, str]] = {}
        self.reads: list[list[str]] = []
        self.overrides = TopicOverrides(self._read)
        self.offsets, self.transactions = Coordinator(), Coordinator()
        self.states = ReplicaStates(
            self.replicas,
            self.metadata,
            self.overrides,
            self._log_config,
            {"__consumer_offsets": self.offsets, "__transaction_state": self.transactions},
        )

    async def _read(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        self.reads.append(list(topics))
        return {topic: self.tree[topic] for topic in topics if topic in self.tree}

    def _log_config(self, overrides: Mapping[str, str]) -> LogConfig:
        return LogConfig(**{name: int(value) for name, value in overrides.items()})  # type: ignore[arg-type]

    def run(self, work: Coroutine[None, None, T]) -> T:
        """Run a coroutine, and the blocking work that it waits for."""

        async def driven() -> T:
            task = asyncio.ensure_future(work)
            for _ in range(10_000):
                if task.done():
                    return task.result()
                self.advance()
                await asyncio.sleep(0)
            raise AssertionError("the request is not answered")

        return asyncio.run(driven())

    def lead(self, topic: str = "t", index: int = 0, **state: object) -> int:
        """Apply a LeaderAndIsr for one partition; returns its error code."""
        request = leader_and_isr(topic, index, **state)  # type: ignore[arg-type]
        answer = self.run(self.states.leader_and_isr(request))
        assert answer.error_code == 0
        ((error,),) = [answered.partition_errors for answered in answer.topics]
        assert answer.topics[0].topic_id == request.topic_states[0].topic_id
        assert error.partition_index == index
        return error.error_code

    def stop(self, topic: str = "t", index: int = 0, **state: object) -> int:
        answer = self.run(self.states.stop_replica(stop_replica(topic, index, **state)))  # type: ignore[arg-type]
        (error,) = answer.partition_errors
        assert (error.topic_name, error.partition_index) == (topic, index)
        return error.error_code

    def update(self, *topics: TopicState, **options: object) -> None:
        answer = self.run(self.states.update_metadata(update_metadata(*topics, **options)))  # type: ignore[arg-type]
        assert answer.error_code == 0

    def hosted(self, topic: str = "t", index: int = 0) -> Partition:
        return self.replicas.partition(topic, index)
