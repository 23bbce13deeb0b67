"""`tidelog topics --zookeeper`: writes and reads topics in the tree itself, as kafka-topics before 3.0.

No broker is asked. A controller that watches the tree elects leaders of new partitions and deletes topics.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import FlagDefault, WrongUsage
from tidelog.cli.topics import Options, at_least_one, parse_assignment, parse_configs, select
from tidelog.cli.topics_output import joined
from tidelog.cli.zookeeper_settings import zookeeper_settings
from tidelog.clock import SystemClock
from tidelog.controller.interface import ConfigEntity, ConfigKind, NewPartitions, NewTopic
from tidelog.controller.planning import ControllerSettings, Planner
from tidelog.errors import TopicAlreadyExists, UnknownTopicOrPartition
from tidelog.metadata import operations, paths, topic_writes
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.nodes import topic_id_text
from tidelog.metadata.state import NO_LEADER, NO_TOPIC_ID, ClusterState, PartitionState, TopicState
from tidelog.metadata.tree import NodeExists
from tidelog.metadata.zookeeper import ZooKeeperTree
from tidelog.slices import finished

if TYPE_CHECKING:
    from tidelog.server.dynamic_config import DynamicConfig

# The text is that of Kafka's tools. They print it to standard output, where it would be a topic of --list.
DEPRECATED = (
    "Warning: --zookeeper is deprecated and will be removed in a future version of Kafka.\n"
    "Use --bootstrap-server instead to specify a broker to connect to."
)
NOT_IN_THE_TREE = (
    "command_config",
    "topic_id",
    "under_min_isr_partitions",
    "at_min_isr_partitions",
    "partition_size_limit_per_response",
)
"""Flags of requests to brokers, and of settings that only brokers know."""


def check(action: str, options: Options, ctx: click.Context) -> None:
    """Raise WrongUsage for flags that do not go with --zookeeper."""
    if not isinstance(options.bootstrap_server, FlagDefault):
        raise WrongUsage("Only one of --bootstrap-server or --zookeeper must be specified", ctx)
    for name in NOT_IN_THE_TREE:
        if options.given(name):
            raise WrongUsage(f"--{name.replace('_', '-')} does not go with --zookeeper", ctx)
    if options.output == "json":
        raise WrongUsage("--output json does not go with --zookeeper", ctx)
    if action == "create" and not options.replica_assignment:
        for name in ("partitions", "replication_factor"):
            if not options.given(name):
                # The defaults of the cluster are known to its brokers alone.
                raise WrongUsage(f"--create needs --{name.replace('_', '-')} with --zookeeper", ctx)


async def run(action: str, options: Options) -> None:
    """Raises KafkaError, ValueError and TreeError."""
    click.echo(DEPRECATED, err=True)
    connect = options.zookeeper or ""
    rng = random.Random()
    settings = zookeeper_settings(options.zk_tls_config_file)
    async with await ZooKeeperTree.connect(connect, settings, rng=rng, create_chroot=False) as tree:
        if await tree.exists(paths.TOPICS) is None:
            raise ValueError(f"there is no cluster at {connect}: it has no node {paths.TOPICS}")
        service = ZooKeeperTopicService(ClusterStore(tree, SystemClock(), rng), options, rng)
        await {
            "list": service.list_topics,
            "describe": service.describe_topics,
            "create": service.create_topic,
            "alter": service.alter_topics,
            "delete": service.delete_topics,
        }[action]()


class ZooKeeperTopicService:
    """The actions of the tool on one tree."""

    def __init__(self, store: ClusterStore, options: Options, rng: random.Random) -> None:
        self._store = store
        self._tree = store.tree
        self._options = options
        self._rng = rng

    # --- reading

    async def list_topics(self) -> None:
        marked = set(await self._store.topics_to_delete())
        for topic in await self._select():
            click.echo(f"{topic.name} - marked for deletion" if topic.name in marked else topic.name)

    async def describe_topics(self) -> None:
        names = [topic.name for topic in await self._matching()]
        marked = set(await self._store.topics_to_delete())
        live = set(await self._store.read_brokers())
        configs = await self._store.topic_configs(names)
        for name, topic in (await self._store.read_topics(names)).items():
            topic.configs = configs[name]
            for line in self._lines(topic, live):
                click.echo(f"{line}\tMarkedForDeletion: true" if name in marked else line)

    def _lines(self, topic: TopicState, live: set[int]) -> Iterator[str]:
        options = self._options
        some = options.under_replicated_partitions or options.unavailable_partitions
        if not some and (topic.configs or not options.topics_with_overrides):
            yield topic_line(topic)
        if options.topics_with_overrides:
            return
        for index, state in topic.partitions.items():
            under_replicated = len(state.isr) < len(state.replicas)
            if (
                not some
                or (options.under_replicated_partitions and under_replicated)
                or (options.unavailable_partitions and state.leader not in live)
            ):
                yield partition_line(topic.name, index, state)

    # --- writing

    async def create_topic(self) -> None:
        options, name = self._options, self._options.topic or ""
        assignment = parse_assignment(options.replica_assignment) if options.replica_assignment else []
        new = NewTopic(
            name,
            -1 if assignment else at_least_one("partitions", options.partitions or 0),
            -1 if assignment else at_least_one("replication-factor", options.replication_factor or 0),
            list(enumerate(assignment)),
            list(parse_configs(options.config).items()),
        )
        try:
            (result,), made = await finished((await self._planner()).topics([new]))
            if result.error is not None:
                raise result.error
            refused = await topic_writes.create_topics(self._tree, made)
            if isinstance(refused.get(name), NodeExists):
                raise TopicAlreadyExists(f"Topic '{name}' already exists.")
            for error in refused.values():
                raise error
        except TopicAlreadyExists:
            if not options.if_not_exists:
                raise
        else:
            click.echo(f"Created topic {name}.")

    async def alter_topics(self) -> None:
        for topic in await self._matching():
            if self._options.config or self._options.delete_config:
                await self._alter_config(topic)
            if self._options.partitions is not None:
                await self._add_partitions(topic, self._options.partitions)

    async def _alter_config(self, topic: TopicState) -> None:
        click.echo(
            "WARNING: Altering the settings of topics is deprecated here: see tidelog configs --alter."
        )
        entity = ConfigEntity(ConfigKind.TOPIC, topic.name)
        configs = await self._store.read_config(entity.path) | parse_configs(self._options.config)
        for name in self._options.delete_config:
            configs.pop(name.strip(), None)
        _rules().validate(entity, configs)
        await self._store.write_config(entity.path, configs)
        click.echo(f"Updated config for topic {topic.name}.")

    async def _add_partitions(self, topic: TopicState, count: int) -> None:
        if topic.is_internal:
            raise ValueError(
                f"The number of partitions for the internal topic {topic.name} cannot be changed."
            )
        click.echo(
            "WARNING: Records with the same key may go to another partition after partitions are added."
        )
        planner = await self._planner((await self._store.read_topics([topic.name])).values())
        assignment: list[list[int]] | None = None
        if self._options.replica_assignment:
            # The assignment lists all partitions; existing partitions keep their replicas.
            present = len(planner.state.topics[topic.name].partitions)
            assignment = parse_assignment(self._options.replica_assignment)[present:]
        (result,), grown = await finished(planner.growth([NewPartitions(topic.name, count, assignment)]))
        if result.error is not None:
            raise result.error
        refused = await topic_writes.set_assignments(self._tree, {state.name: state for state in grown})
        for error in refused.values():
            raise error
        click.echo("Adding partitions succeeded!")

    async def delete_topics(self) -> None:
        for topic in await self._matching():
            if topic.is_internal:
                raise ValueError(
                    f"Topic {topic.name} is an internal topic and cannot be marked for deletion."
                )
            refused = await topic_writes.mark_for_deletion(self._tree, [topic.name])
            for error in refused.values():
                if not isinstance(error, NodeExists):
                    raise error
            if refused:
                click.echo(f"Topic {topic.name} is already marked for deletion.")
                continue
            click.echo(f"Topic {topic.name} is marked for deletion.")
            click.echo("Note: This will have no impact if delete.topic.enable is not set to true.")

    # --- common parts

    async def _select(self) -> list[TopicState]:
        """The topics that match --topic, by name alone."""
        named = [_named(name) for name in await self._store.read_topic_names()]
        return select(named, self._options.topic, self._options.exclude_internal)

    async def _matching(self) -> list[TopicState]:
        """The topics that match --topic. Without a match it is an error, except with --if-exists."""
        found = await self._select()
        if not found and self._options.topic and not self._options.if_exists:
            raise UnknownTopicOrPartition(f"Topic '{self._options.topic}' does not exist as expected")
        return found

    async def _planner(self, known: Iterable[TopicState] = ()) -> Planner:
        """Plans changes as the controller does. The other topics of the cluster have names alone."""
        topics = {name: _named(name) for name in await self._store.read_topic_names()}
        topics |= {topic.name: topic for topic in known}
        state = ClusterState("", brokers=await self._store.read_brokers(), topics=topics)
        deleting = set(await self._store.topics_to_delete())
        return Planner(state, deleting, ControllerSettings(), _rules(), self._rng)


def _named(name: str) -> TopicState:
    return operations.topic_state(name, NO_TOPIC_ID, {}, {})


def _rules() -> DynamicConfig:
    from tidelog.server.config.broker import BrokerConfig  # few actions need it, and it takes a while
    from tidelog.server.dynamic_config import DynamicConfig

    return DynamicConfig(BrokerConfig({}))


def topic_line(topic: TopicState) -> str:
    shown_id = "" if topic.topic_id == NO_TOPIC_ID else f"\tTopicId: {topic_id_text(topic.topic_id)}"
    configs = ",".join(f"{name}={value}" for name, value in topic.configs.items())
    return (
        f"Topic: {topic.name}{shown_id}\tPartitionCount: {len(topic.partitions)}"
        f"\tReplicationFactor: {topic.replication_factor}\tConfigs: {configs}"
    )


def partition_line(topic: str, index: int, state: PartitionState) -> str:
    leader = "none" if state.leader == NO_LEADER else state.leader
    return (
        f"\tTopic: {topic}\tPartition: {index}\tLeader: {leader}"
        f"\tReplicas: {joined(state.replicas)}\tIsr: {joined(state.isr)}"
    )
