"""A host that remembers what it was told, rules for a few settings, and a controller over a real tree."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tidelog.clock import ManualClock
from tidelog.controller.interface import ConfigEntity, LogsOfTopic
from tidelog.controller.planning import ControllerSettings
from tidelog.controller.single import SingleController
from tidelog.endpoints import Endpoint
from tidelog.errors import InvalidConfig, KafkaStorageError
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.state import ClusterState, PartitionState
from tidelog.metadata.store import MetadataStore

BROKER = 7
ADDRESS = [Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)]


class RecordingHost:
    def __init__(self) -> None:
        self.leads: dict[tuple[str, int], PartitionState] = {}
        self.ids: dict[str, bytes] = {}
        self.deleted: list[tuple[str, int]] = []
        self.configs: dict[str, dict[str, str]] = {}
        self.states: list[ClusterState] = []
        self.broken: set[tuple[str, int]] = set()
        self.no_room: set[tuple[str, int]] = set()
        self.syncs = 0

    async def make_logs(self, topics: Sequence[LogsOfTopic]) -> set[tuple[str, int]]:
        wanted = {(topic.topic, partition) for topic in topics for partition in topic.partitions}
        return wanted & self.no_room

    def become_leader(self, topic: str, topic_id: bytes, partition: int, state: PartitionState) -> None:
        if (topic, partition) in self.broken | self.no_room:
            raise KafkaStorageError("the disk is gone")
        self.leads[topic, partition] = state
        self.ids[topic] = topic_id

    def delete_partition(self, topic: str, partition: int) -> None:
        if (topic, partition) in self.broken:
            raise KafkaStorageError("the disk is gone")
        self.leads.pop((topic, partition), None)
        self.deleted.append((topic, partition))

    async def sync_deletions(self) -> None:
        self.syncs += 1

    def update_topic_config(self, topic: str, overrides: dict[str, str]) -> None:
        self.configs[topic] = overrides

    def metadata_changed(self, state: ClusterState) -> None:
        self.states.append(state)


class FewRules:
    """retention.ms is an integer, cleanup.policy a list with the default "delete"; there is little else."""

    def validate(self, entity: ConfigEntity, overrides: Mapping[str, str]) -> None:
        for name, value in overrides.items():
            if name == "retention.ms" and value.lstrip("-").isdecimal():
                continue
            if name in ("cleanup.policy", "log.cleaner.threads"):
                continue
            raise InvalidConfig(f"{name}={value}")

    def inherited_list(self, entity: ConfigEntity, name: str) -> str | None:
        return "delete" if name == "cleanup.policy" else None

    def encoded(
        self, entity: ConfigEntity, configs: Mapping[str, str], stored: Mapping[str, str]
    ) -> dict[str, str]:
        return dict(configs)

    def decoded(self, entity: ConfigEntity, stored: Mapping[str, str]) -> dict[str, str]:
        return dict(stored)


@asynccontextmanager
async def running(
    folder: Path,
    host: RecordingHost | None = None,
    *,
    settings: ControllerSettings | None = None,
    broker_id: int = BROKER,
) -> AsyncIterator[SingleController]:
    """A controller that is started on the tree in `folder`, and stopped as a broker stops it."""
    clock = ManualClock()
    with EmbeddedTree(folder / FILE_NAME, clock) as tree:
        store = MetadataStore(tree, clock)
        controller = SingleController(store, broker_id, FewRules(), settings=settings, clock=clock)
        await controller.load()
        await controller.register(ADDRESS)
        await controller.activate(host or RecordingHost())
        try:
            yield controller
        finally:
            await controller.close()
