"""What a broker asks of the controller, whoever it is, and what the controller asks of the broker.

All methods of Controller are coroutines of the broker's loop. When one returns without an error the change
is durable in the tree, the partitions concerned are led (or gone), and `state` shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

from tidelog.endpoints import Endpoint
from tidelog.errors import KafkaError
from tidelog.metadata.paths import entity_path
from tidelog.metadata.state import BrokerRegistration, ClusterState, PartitionState

ZERO_ID = bytes(16)


class LogsOfTopic(NamedTuple):
    """Partitions of a topic that are to have logs."""

    topic: str
    topic_id: bytes
    partitions: Sequence[int]


class PartitionHost(Protocol):
    """The broker's side: it holds logs and answers requests. All calls are made on the loop."""

    async def make_logs(self, topics: Sequence[LogsOfTopic]) -> set[tuple[str, int]]:
        """Make the logs that are missing, durably, while others are served.

        What goes wrong is told by `become_leader`. Gives the partitions that can be asked for again, because
        what their logs lack, such as room on the disk, may come back.
        """

    def become_leader(self, topic: str, topic_id: bytes, partition: int, state: PartitionState) -> None:
        """Lead a partition from now on; its log was made by `make_logs`.

        Called again with the same state it changes nothing. Raises KafkaStorageError where no log can be
        had; the controller then takes the partition offline.
        """

    def delete_partition(self, topic: str, partition: int) -> None:
        """Stop serving a partition and remove its log; a crash may bring it back until `sync_deletions`.

        Nothing happens where there is none. Raises KafkaStorageError where it could not be removed; it is
        tried again at the next start.
        """

    async def sync_deletions(self) -> None:
        """Bring the deletions so far to the disk, while others are served.

        Raises KafkaStorageError where that fails; the deletions are tried again at the next start.
        """

    def update_topic_config(self, topic: str, overrides: dict[str, str]) -> None:
        """The settings that a topic overrides are now these, and no others."""

    def metadata_changed(self, state: ClusterState) -> None:
        """This is what the cluster looks like now. Comes after the calls above that belong to the change."""


class ConfigKind:
    """Kinds of entity that have settings, by their name in the tree."""

    TOPIC = "topics"
    BROKER = "brokers"
    CLIENT = "clients"
    USER = "users"
    IP = "ips"
    GROUP = "groups"
    CLIENT_METRICS = "client-metrics"


class ConfigEntity(NamedTuple):
    """Something with settings: ConfigEntity(ConfigKind.TOPIC, "demo").

    The name of the entity that holds for all others of its kind is "<default>"
    (tidelog.metadata.state.DEFAULT_ENTITY), which requests write as an empty name.
    """

    kind: str
    name: str

    @property
    def path(self) -> str:
        """Its path below /config, as ClusterState.entity_configs names it."""
        return entity_path(self.kind, self.name)


class ConfigRules(Protocol):
    """What settings an entity may have. Given by the server, which knows them all."""

    def validate(self, entity: ConfigEntity, overrides: Mapping[str, str]) -> None:
        """Raise InvalidConfig (or InvalidRequest, PolicyViolation) unless these may be its settings."""

    def inherited_list(self, entity: ConfigEntity, name: str) -> str | None:
        """For a setting that is a list, its value where the entity does not override it; None for others."""


class EntityConfigListener(Protocol):
    def __call__(self, entity: ConfigEntity, overrides: dict[str, str]) -> None:
        """The settings of an entity other than a topic are now these. Called on the loop."""


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(slots=True)
class ConfigChange:
    """One step of an incremental change. `operation` is as it came, so that an unknown one can be refused."""

    name: str
    operation: int
    value: str | None


@dataclass(slots=True)
class NewTopic:
    """A topic to be made: -1 for the defaults, or the brokers of each partition by hand."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


@dataclass(slots=True)
class TopicResult:
    """What became of a NewTopic: its numbers and settings, or -1 and none with an error."""

    name: str
    topic_id: bytes = ZERO_ID
    error: KafkaError | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TopicToDelete:
    """A topic named by name or by id; the other is None and ZERO_ID."""

    name: str | None = None
    topic_id: bytes = ZERO_ID


@dataclass(slots=True)
class DeletedTopic:
    name: str | None
    topic_id: bytes
    error: KafkaError | None = None


@dataclass(slots=True)
class NewPartitions:
    """More partitions for a topic: the new total, and by hand the brokers of each one that is added."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(slots=True)
class PartitionsResult:
    name: str
    error: KafkaError | None = None


class Controller(Protocol):
    @property
    def state(self) -> ClusterState:
        """The cluster as of the last change; a snapshot that is never changed."""

    async def load(self) -> ClusterState:
        """First: become the controller, read the tree, and choose leaders where there are none."""

    async def raise_leader_epochs(self, partitions: Collection[tuple[str, int]]) -> None:
        """Lead these with a new leader epoch, because their logs may have lost their ends in a crash.

        A client that knows the old epoch then asks where it ended, and notices what is gone.
        """

    async def register(self, endpoints: Sequence[Endpoint], rack: str | None = None) -> BrokerRegistration:
        """Second: make this broker known under its advertised addresses."""

    async def activate(self, host: PartitionHost) -> None:
        """Third: have the host lead its partitions, and finish deletions that were begun before a crash."""

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Make topics, each on its own; one result per name, in the order of the request.

        With `validate_only` nothing is made, and the results are those that would come.
        """

    async def delete_topics(self, topics: Sequence[TopicToDelete]) -> list[DeletedTopic]:
        """Delete topics, each on its own, with their data."""

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[PartitionsResult]:
        """Give topics more partitions, each on its own."""

    async def alter_configs(
        self, entity: ConfigEntity, configs: Sequence[tuple[str, str | None]], *, validate_only: bool = False
    ) -> None:
        """Replace all settings of an entity. Raises the KafkaError where that may not be."""

    async def incremental_alter_configs(
        self, entity: ConfigEntity, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        """Change some settings of an entity. Raises the KafkaError where that may not be."""

    async def allocate_producer_ids(self) -> range:
        """Ids for new producers, never given before."""

    async def partitions_offline(self, partitions: Sequence[tuple[str, int]]) -> None:
        """The log folder of these partitions failed: they have no leader until the next start."""

    async def close(self) -> None:
        """Finish what is being done and stop. The tree stays open for whoever opened it."""
