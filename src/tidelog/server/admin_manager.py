"""AdminManager: changes of topics and settings for the clients of a broker in a cluster (Kafka's
ZkAdminManager).

The active controller changes topics; the router forwards such requests to it. Any broker changes settings: it
writes them to the tree with a notification, and every broker applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.controller import config_changes, validation
from tidelog.controller.cluster_controller import ClusterController
from tidelog.controller.interface import (
    HAVE_DEFAULTS,
    ConfigChange,
    ConfigEntity,
    ConfigKind,
    ConfigRules,
    DeletedTopic,
    MutationQuota,
    NewPartitions,
    NewTopic,
    PartitionsResult,
    TopicResult,
    TopicToDelete,
)
from tidelog.errors import (
    InvalidRequest,
    NotController,
    UnknownTopicOrPartition,
)
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.state import DEFAULT_ENTITY
from tidelog.server.config_change_listener import ConfigChangeListener
from tidelog.server.tree_timeout import in_time


class AdminManager:
    """Implements tidelog.controller.interface.Controller, which documents the public methods."""

    def __init__(
        self,
        controller: ClusterController,
        store: ClusterStore,
        metadata: MetadataCache,
        rules: ConfigRules,
        listener: ConfigChangeListener,
        *,
        timeout: float,
    ) -> None:
        """`timeout` limits a change of settings in seconds: ZooKeeper may be unreachable for long."""
        self._controller = controller
        self._store = store
        self._metadata = metadata
        self._rules = rules
        self._listener = listener
        self._timeout = timeout

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
        quota: MutationQuota | None = None,
    ) -> list[TopicResult]:
        try:
            return await self._controller.create_topics(
                topics, validate_only=validate_only, timeout=timeout, quota=quota
            )
        except NotController as error:
            names = dict.fromkeys(topic.name for topic in topics)
            return [TopicResult(name, error=error) for name in names]

    async def delete_topics(
        self,
        topics: Sequence[TopicToDelete],
        *,
        timeout: float | None = None,
        quota: MutationQuota | None = None,
    ) -> list[DeletedTopic]:
        try:
            return await self._controller.delete_topics(topics, timeout=timeout, quota=quota)
        except NotController as error:
            return [DeletedTopic(topic.name, topic.topic_id, error) for topic in topics]

    async def create_partitions(
        self,
        topics: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
        quota: MutationQuota | None = None,
    ) -> list[PartitionsResult]:
        try:
            return await self._controller.create_partitions(
                topics, validate_only=validate_only, timeout=timeout, quota=quota
            )
        except NotController as error:
            return [PartitionsResult(topic.name, error) for topic in topics]

    async def alter_configs(
        self, entity: ConfigEntity, configs: Sequence[tuple[str, str | None]], *, validate_only: bool = False
    ) -> None:
        def after(_present: Mapping[str, str]) -> dict[str, str]:
            return config_changes.replaced(configs)

        await self._alter(entity, after, validate_only)

    async def incremental_alter_configs(
        self, entity: ConfigEntity, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        def after(present: Mapping[str, str]) -> dict[str, str]:
            return config_changes.changed(present, changes, entity, self._rules)

        await self._alter(entity, after, validate_only)

    async def _alter(
        self, entity: ConfigEntity, after: Callable[[Mapping[str, str]], dict[str, str]], validate_only: bool
    ) -> None:
        self._check(entity)
        await in_time(self._change(entity, after, validate_only), self._timeout)

    async def change_entity_configs(
        self, entity_path: str, after: Callable[[Mapping[str, str]], dict[str, str]]
    ) -> None:
        async def change() -> None:
            await self._store.change_config(entity_path, after)
            await self._listener.refresh(entity_path)

        await in_time(change(), self._timeout)

    async def _change(
        self, entity: ConfigEntity, after: Callable[[Mapping[str, str]], dict[str, str]], validate_only: bool
    ) -> None:
        def wanted(present: Mapping[str, str]) -> Mapping[str, str] | None:
            configs = after(self._rules.decoded(entity, present))
            self._rules.validate(entity, configs)
            return None if validate_only else self._rules.encoded(entity, configs, present)

        await self._store.change_config(entity.path, wanted)
        if not validate_only:
            await self._listener.refresh(entity.path)

    async def entity_configs(self) -> Mapping[str, Mapping[str, str]]:
        return await in_time(self._store.read_entity_configs(), self._timeout, "read")

    def _check(self, entity: ConfigEntity) -> None:
        if entity.kind not in HAVE_DEFAULTS and entity.name in ("", DEFAULT_ENTITY):
            raise InvalidRequest(f"There are no settings for all {entity.kind} that have none of their own.")
        if entity.kind == ConfigKind.TOPIC:
            validation.check_topic_name(entity.name)
            if entity.name not in self._metadata.snapshot.topics:
                raise UnknownTopicOrPartition(f"There is no topic '{entity.name}'.")
