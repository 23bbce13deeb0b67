"""The interfaces between a broker and its controller: Controller, and the Host that it calls.

All methods of Controller are coroutines of the broker's loop. When a method returns without an error, the
change is durable in the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

from tidelog.errors import KafkaError
from tidelog.metadata.paths import decode_name, entity_path
from tidelog.metadata.state import ClusterState, PartitionState

ZERO_ID = bytes(16)


class LogsOfTopic(NamedTuple):
    """Partitions of a topic that need logs."""

    topic: str
    topic_id: bytes
    partitions: Sequence[int]


class PartitionHost(Protocol):
    """The broker that has the logs and answers requests. All calls are made on the loop."""

    async def make_logs(self, topics: Sequence[LogsOfTopic]) -> set[tuple[str, int]]:
        """Create the missing logs durably, without blocking the loop.

        Returns the partitions whose logs lack room on the disk or failed with another transient error; the
        caller retries them. Other errors are raised by `become_leader`.
        """

    def become_leader(self, topic: str, topic_id: bytes, partition: int, state: PartitionState) -> None:
        """Lead a partition from now on, after `make_logs` has created its log.

        A second call with the same state changes nothing. Raises KafkaStorageError if there is no log; the
        controller then takes the partition offline.
        """

    def delete_partition(self, topic: str, partition: int) -> None:
        """Stop serving a partition and remove its log, if there is one.

        After a crash, the log may reappear unless `sync_deletions` was done. Raises KafkaStorageError if the
        log cannot be removed; the next start tries it again.
        """

    async def sync_deletions(self) -> None:
        """Make the deletions so far durable, without blocking the loop.

        Raises KafkaStorageError if that fails; the next start tries the deletions again.
        """

    def update_topic_config(self, topic: str, overrides: dict[str, str]) -> None:
        """Replace the settings that a topic overrides."""

    def metadata_changed(self, state: ClusterState) -> None:
        """Publish the new state of the cluster, after the calls above for the same change."""


class ConfigKind:
    """Kinds of entity that have settings, by their name in the tree."""

    TOPIC = "topics"
    BROKER = "brokers"
    CLIENT = "clients"
    USER = "users"
    IP = "ips"
    GROUP = "groups"
    CLIENT_METRICS = "client-metrics"


HAVE_DEFAULTS = (ConfigKind.BROKER, ConfigKind.CLIENT, ConfigKind.USER, ConfigKind.IP)
"""Kinds that have a default entity."""


class ConfigEntity(NamedTuple):
    """An entity with settings: ConfigEntity(ConfigKind.TOPIC, "demo").

    The default entity of a kind has the name "<default>" (tidelog.metadata.state.DEFAULT_ENTITY), in requests
    an empty name. A user may have settings for one client id: `client` is its name, or "<default>".
    """

    kind: str
    name: str
    client: str | None = None

    @property
    def path(self) -> str:
        """Its path below /config, the key in ClusterState.entity_configs."""
        if self.client is not None:
            return entity_path(self.kind, self.name, ConfigKind.CLIENT, self.client)
        return entity_path(self.kind, self.name)

    @classmethod
    def at(cls, path: str) -> ConfigEntity:
        """The entity with this path below /config."""
        kind, *names = path.split("/")
        client = decode_name(names[2]) if len(names) == 3 and names[1] == ConfigKind.CLIENT else None
        return cls(kind, decode_name(names[0]) if names else "", client)


class ConfigRules(Protocol):
    """The settings that an entity may have. The server implements it: it knows all settings."""

    def validate(self, entity: ConfigEntity, overrides: Mapping[str, str]) -> None:
        """InvalidConfig, InvalidRequest or PolicyViolation unless the entity may have these settings."""

    def inherited_list(self, entity: ConfigEntity, name: str) -> str | None:
        """The default of a setting that is a list; None for other settings."""

    def encoded(
        self, entity: ConfigEntity, configs: Mapping[str, str], stored: Mapping[str, str]
    ) -> dict[str, str]:
        """The settings for the tree, with passwords encrypted; `stored` are the present ones in the tree."""

    def decoded(self, entity: ConfigEntity, stored: Mapping[str, str]) -> dict[str, str]:
        """The settings in the tree, with passwords decrypted."""


class EntityConfigListener(Protocol):
    def __call__(self, entity: ConfigEntity, overrides: dict[str, str]) -> None:
        """Called on the loop with the new settings of an entity other than a topic."""


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(slots=True)
class ConfigChange:
    """One change of IncrementalAlterConfigs. `operation` is not checked yet."""

    name: str
    operation: int
    value: str | None


@dataclass(slots=True)
class NewTopic:
    """A topic to create. -1 means the default; `assignments` may have the brokers of each partition."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


@dataclass(slots=True)
class TopicResult:
    """The result of a NewTopic: its counts and settings, or the error with -1 and no settings."""

    name: str
    topic_id: bytes = ZERO_ID
    error: KafkaError | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TopicToDelete:
    """A topic by name or by id; the other one is None or ZERO_ID."""

    name: str | None = None
    topic_id: bytes = ZERO_ID


@dataclass(slots=True)
class DeletedTopic:
    name: str | None
    topic_id: bytes
    error: KafkaError | None = None


@dataclass(slots=True)
class NewPartitions:
    """More partitions for a topic: the new total, and optionally the brokers of each new partition."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(slots=True)
class PartitionsResult:
    name: str
    error: KafkaError | None = None


class MutationQuota(Protocol):
    """Limits the number of partitions that a client creates and deletes."""

    def record(self, partitions: int) -> None:
        """Count partitions that are to be created or deleted.

        Raises ThrottlingQuotaExceeded over the quota.
        """


class Controller(Protocol):
    """Changes topics and settings for clients."""

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        quota: MutationQuota | None = None,
    ) -> list[TopicResult]:
        """Create topics independently of each other; one result for each name, in the order of the request.

        With `validate_only` the results are the same, but nothing is created.
        """

    async def delete_topics(
        self, topics: Sequence[TopicToDelete], *, quota: MutationQuota | None = None
    ) -> list[DeletedTopic]:
        """Delete topics with their data, independently of each other."""

    async def create_partitions(
        self,
        topics: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        quota: MutationQuota | None = None,
    ) -> list[PartitionsResult]:
        """Add partitions to topics, independently of each other."""

    async def alter_configs(
        self, entity: ConfigEntity, configs: Sequence[tuple[str, str | None]], *, validate_only: bool = False
    ) -> None:
        """Replace all settings of an entity. Raises a KafkaError if they are refused."""

    async def incremental_alter_configs(
        self, entity: ConfigEntity, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        """Change some settings of an entity. Raises a KafkaError if they are refused."""

    async def change_entity_configs(
        self, entity_path: str, after: Callable[[Mapping[str, str]], dict[str, str]]
    ) -> None:
        """Replace the settings of a user, client or address, by its path below /config.

        `after` returns the new settings for the present ones, or raises a KafkaError. It may be called twice.
        """

    async def entity_configs(self) -> Mapping[str, Mapping[str, str]]:
        """The settings of all entities but topics, as the tree has them (ClusterState.entity_configs)."""
