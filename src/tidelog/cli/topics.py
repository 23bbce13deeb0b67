"""`tidelog topics`: creates, lists, describes, alters and deletes topics, as kafka-topics."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from tidelog.cli.flags import (
    KafkaStyleCommand,
    WrongUsage,
    bootstrap_server,
    switch,
    valued,
    zk_tls_config_file,
)
from tidelog.cli.output import connected_admin, output_option, print_json
from tidelog.cli.topics_output import Shown, describe_as_json, print_descriptions, topic_configs
from tidelog.errors import (
    InvalidReplicaAssignment,
    KafkaError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.protocol.wire import uuid_from_text, uuid_to_text

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, TopicListing

# The actions of each flag; a flag that is missing here goes with all actions.
ONLY_WITH: dict[str, tuple[str, ...]] = {
    "partitions": ("create", "alter"),
    "replication_factor": ("create",),
    "replica_assignment": ("create", "alter"),
    "config": ("create",),
    "like": ("create",),
    "if_not_exists": ("create",),
    "if_exists": ("alter", "delete", "describe"),
    "exclude_internal": ("list", "describe"),
    "topics_with_overrides": ("describe",),
    "under_replicated_partitions": ("describe",),
    "under_min_isr_partitions": ("describe",),
    "at_min_isr_partitions": ("describe",),
    "unavailable_partitions": ("describe",),
    "topic_id": ("describe",),
    "partition_size_limit_per_response": ("describe",),
}
# Before Kafka 3.0 the tool altered settings of topics, too.
ON_ZOOKEEPER_ONLY_WITH: dict[str, tuple[str, ...]] = {
    "config": ("create", "alter"),
    "delete_config": ("alter",),
}


class NamedTopic(Protocol):
    """A topic that `select` selects by its name."""

    @property
    def name(self) -> str: ...

    @property
    def is_internal(self) -> bool: ...


T = TypeVar("T", bound=NamedTopic)


@dataclass(slots=True, frozen=True)
class Options:
    """The flags of one call; a flag that is not given is false, None or empty."""

    listing: bool
    describe: bool
    create: bool
    alter: bool
    delete: bool
    bootstrap_server: str
    zookeeper: str | None
    command_config: str | None
    topic: str | None
    topic_id: str | None
    partitions: int | None
    replication_factor: int | None
    replica_assignment: str | None
    config: tuple[str, ...]
    delete_config: tuple[str, ...]
    if_exists: bool
    if_not_exists: bool
    exclude_internal: bool
    topics_with_overrides: bool
    under_replicated_partitions: bool
    under_min_isr_partitions: bool
    at_min_isr_partitions: bool
    unavailable_partitions: bool
    partition_size_limit_per_response: int | None
    like: str | None = None
    output: str = "text"
    zk_tls_config_file: str | None = None

    def given(self, name: str) -> bool:
        return getattr(self, name) not in (None, False, ())

    def actions(self) -> list[str]:
        asked = {
            "list": self.listing,
            "describe": self.describe,
            "create": self.create,
            "alter": self.alter,
            "delete": self.delete,
        }
        return [action for action, given in asked.items() if given]

    def partition_filters(self) -> list[str]:
        names = ("under_replicated", "under_min_isr", "at_min_isr", "unavailable")
        return [name for name in names if self.given(f"{name}_partitions")]

    def shown(self) -> Shown:
        return Shown(
            topics_with_overrides=self.topics_with_overrides,
            under_replicated=self.under_replicated_partitions,
            under_min_isr=self.under_min_isr_partitions,
            at_min_isr=self.at_min_isr_partitions,
            unavailable=self.unavailable_partitions,
        )


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued(
    "--zookeeper",
    "HOST:PORT[,...][/CHROOT]",
    "DEPRECATED: change and read topics in ZooKeeper itself, without a broker.",
)
@zk_tls_config_file
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@click.option("--list", "listing", is_flag=True, help="Print the names of the topics.")
@switch("--describe", "Print topics with their partitions and settings.")
@switch("--create", "Create a topic.")
@switch("--alter", "Add partitions to topics.")
@switch("--delete", "Delete topics.")
@valued(
    "--topic", "NAME", "The topic; with other actions than --create a regular expression for the whole name."
)
@valued("--topic-id", "ID", "The topic to describe, by its id.")
@valued("--partitions", "N", "The number of partitions; new topics have the cluster's default.", int)
@valued("--replication-factor", "N", "The replicas of each partition; by default the cluster's default.", int)
@valued("--replica-assignment", "B:B,B:B,...", "Brokers of each partition, the preferred leader first.")
@click.option(
    "--config", metavar="NAME=VALUE", multiple=True, help="A setting of the new topic; may be repeated."
)
@valued("--like", "NAME", "Create the topic with the partitions, replicas and settings of another one.")
@click.option(
    "--delete-config", metavar="NAME", multiple=True, help="Not served: use tidelog configs --alter."
)
@switch("--if-exists", "Do not fail if no topic matches.")
@switch("--if-not-exists", "Do not fail if the topic exists.")
@switch("--exclude-internal", "Leave out the internal topics.")
@switch("--topics-with-overrides", "Describe only topics with settings of their own.")
@switch("--under-replicated-partitions", "Describe only partitions with replicas that are not in sync.")
@switch("--under-min-isr-partitions", "Describe only partitions with too few replicas in sync.")
@switch("--at-min-isr-partitions", "Describe only partitions with no more replicas in sync than needed.")
@switch("--unavailable-partitions", "Describe only partitions without a live leader.")
@valued("--partition-size-limit-per-response", "N", "The largest number of partitions in a response.", int)
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def topics(ctx: click.Context, /, **flags: object) -> None:
    """Create, list, describe, alter and delete topics."""
    options = Options(**flags)  # type: ignore[arg-type]  # click has made values of the declared types
    action = check(options, ctx)
    if options.zookeeper is not None:
        run_on_zookeeper(action, options, ctx)
        return
    try:
        with connected_admin(options.bootstrap_server, options.command_config) as admin:
            run(action, admin, options)
    except (KafkaError, ValueError) as error:
        click.echo(f"Error while executing topic command : {error}", err=options.output != "text")
        ctx.exit(1)


def check(options: Options, ctx: click.Context) -> str:
    """The action of the flags. Raises WrongUsage if it is not exactly one, or a flag does not go with it."""
    actions = options.actions()
    if len(actions) != 1:
        raise WrongUsage("expected exactly one of --list, --describe, --create, --alter and --delete", ctx)
    (action,) = actions
    if options.output == "json" and action not in ("list", "describe"):
        raise WrongUsage(f"--output json goes with --list and --describe, not with --{action}", ctx)
    on_zookeeper = options.zookeeper is not None
    if options.zk_tls_config_file is not None and not on_zookeeper:
        raise WrongUsage("--zk-tls-config-file goes with --zookeeper alone", ctx)
    for name, fitting in (ONLY_WITH | (ON_ZOOKEEPER_ONLY_WITH if on_zookeeper else {})).items():
        if options.given(name) and action not in fitting:
            raise WrongUsage(f"--{name.replace('_', '-')} does not go with --{action}", ctx)
    alters_config = on_zookeeper and bool(options.config or options.delete_config)
    if options.delete_config and not on_zookeeper:
        raise WrongUsage("--delete-config is not served: use tidelog configs --alter", ctx)
    if options.like is not None and on_zookeeper:
        raise WrongUsage("--like does not go with --zookeeper", ctx)
    if action in ("create", "delete", "alter") and not options.topic:
        raise WrongUsage(f"--{action} needs --topic", ctx)
    if action == "alter" and options.partitions is None and not alters_config:
        raise WrongUsage("--alter needs --partitions", ctx)
    if (
        action == "create"
        and options.replica_assignment
        and (options.partitions or options.replication_factor)
    ):
        raise WrongUsage(
            "--replica-assignment sets the counts; leave out --partitions and --replication-factor", ctx
        )
    if options.topics_with_overrides and options.partition_filters():
        raise WrongUsage(
            "--topics-with-overrides shows topics, not partitions; leave out the other filters", ctx
        )
    return action


def run_on_zookeeper(action: str, options: Options, ctx: click.Context) -> None:
    import asyncio

    from tidelog.cli import topics_zookeeper
    from tidelog.metadata.tree import TreeError

    topics_zookeeper.check(action, options, ctx)
    if action == "create":
        warn_of_collisions(options.topic or "")
    try:
        asyncio.run(topics_zookeeper.run(action, options))
    except (KafkaError, ValueError, TreeError) as error:
        click.echo(f"Error while executing topic command : {error}")
        ctx.exit(1)


def run(action: str, admin: Admin, options: Options) -> None:
    if action == "list":
        list_topics(admin, options)
    elif action == "describe":
        describe_topics(admin, options)
    elif action == "create":
        create_topic(admin, options)
    elif action == "alter":
        alter_topics(admin, options)
    else:
        admin.delete_topics([topic.name for topic in matching(admin, options)])


def list_topics(admin: Admin, options: Options) -> None:
    found = select(all_topics(admin), options.topic, options.exclude_internal)
    if options.output == "json":
        print_json(
            [{"name": topic.name, "id": topic.topic_id, "internal": topic.is_internal} for topic in found]
        )
        return
    click.echo("\n".join(topic.name for topic in found))


def describe_topics(admin: Admin, options: Options) -> None:
    found = matching_id(admin, options) if options.topic_id else matching(admin, options)
    limit = options.partition_size_limit_per_response
    names = [topic.name for topic in found]
    results = admin.describe_topics(names, partition_size_limit_per_response=2000 if limit is None else limit)
    described = list(results.values())
    if options.output == "json":
        print_json(describe_as_json(admin, described, options.shown()))
    else:
        print_descriptions(admin, described, options.shown())


def create_topic(admin: Admin, options: Options) -> None:
    from tidelog.clients.admin.topics import NewTopic

    name = options.topic or ""
    if options.like is not None:
        options = cloned(admin, options, options.like)
    warn_of_collisions(name)
    new = NewTopic(
        name,
        -1 if options.partitions is None else at_least_one("partitions", options.partitions),
        -1
        if options.replication_factor is None
        else at_least_one("replication-factor", options.replication_factor),
        dict(enumerate(parse_assignment(options.replica_assignment))) if options.replica_assignment else {},
        parse_configs(options.config),
    )
    try:
        admin.create_topics([new])
    except TopicAlreadyExists:
        if not options.if_not_exists:
            raise
    else:
        click.echo(f"Created topic {name}.")


def cloned(admin: Admin, options: Options, original: str) -> Options:
    """The flags with what another topic has and they leave out. Its records are not copied."""
    from tidelog.config.entries import ConfigSource

    topic = admin.describe_topics([original])[original]
    entries = topic_configs(admin, [topic])[original]
    own = [
        f"{entry.name}={entry.value}"
        for entry in entries
        if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG and entry.value is not None
    ]
    if options.replica_assignment:
        return replace(options, config=(*own, *options.config))
    return replace(
        options,
        partitions=options.partitions or len(topic.partitions),
        replication_factor=options.replication_factor or len(topic.partitions[0].replicas),
        config=(*own, *options.config),
    )


def warn_of_collisions(name: str) -> None:
    if "." in name or "_" in name:
        click.echo(
            f"WARNING: '.' and '_' are the same in the names of metrics: no topic should differ from {name} "
            "in these alone."
        )


def alter_topics(admin: Admin, options: Options) -> None:
    from tidelog.clients.admin.topics import NewPartitions

    count = options.partitions or 0
    found = matching(admin, options)
    described = admin.describe_topics(topic.name for topic in found)
    for topic in found:
        new: list[list[int]] | None = None
        if options.replica_assignment:
            # The assignment lists all partitions; existing partitions keep their replicas.
            new = parse_assignment(options.replica_assignment)[len(described[topic.name].partitions) :]
        admin.create_partitions({topic.name: NewPartitions(count, new)})


def all_topics(admin: Admin) -> Iterable[TopicListing]:
    return admin.list_topics(list_internal=True).values()


def matching(admin: Admin, options: Options) -> list[TopicListing]:
    """The topics that match --topic. Without a match it is an error, except with --if-exists."""
    found = select(all_topics(admin), options.topic, options.exclude_internal)
    if not found and options.topic and not options.if_exists:
        raise UnknownTopicOrPartition(f"Topic '{options.topic}' does not exist as expected")
    return found


def matching_id(admin: Admin, options: Options) -> list[TopicListing]:
    text = options.topic_id or ""
    wanted = uuid_to_text(uuid_from_text(text))
    found = [
        topic
        for topic in select(all_topics(admin), None, options.exclude_internal)
        if topic.topic_id == wanted
    ]
    if not found and not options.if_exists:
        raise UnknownTopicId(f"TopicId '{text}' does not exist as expected")
    return found


def select(listed: Iterable[T], pattern: str | None, exclude_internal: bool) -> list[T]:
    """The topics whose whole name matches one of the patterns; commas or bars separate patterns."""
    if pattern is None:
        fits = re.compile("", re.DOTALL)
    else:
        text = pattern.strip().strip("\"'").replace(",", "|").replace(" ", "")
        try:
            fits = re.compile(rf"(?:{text})\Z")
        except re.error as error:
            raise ValueError(f"--topic {pattern!r} is not a regular expression: {error}") from None
    return [
        topic for topic in listed if fits.match(topic.name) and not (exclude_internal and topic.is_internal)
    ]


def at_least_one(flag: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"--{flag} is {value}; it must be greater than 0")
    return value


def parse_assignment(text: str) -> list[list[int]]:
    """The brokers of each partition: `1:2,2:1` is two partitions with two replicas. Raises ValueError."""
    assignment: list[list[int]] = []
    for index, part in enumerate(text.split(",")):
        try:
            replicas = [int(broker) for broker in part.split(":")]
        except ValueError:
            raise ValueError(
                f"--replica-assignment: {part!r} is not a list of broker ids such as 1:2"
            ) from None
        if len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"partition {index} names a broker twice: {part}")
        if assignment and len(replicas) != len(assignment[0]):
            raise InvalidReplicaAssignment(
                f"partition {index} has {len(replicas)} replicas, partition 0 has {len(assignment[0])}"
            )
        assignment.append(replicas)
    return assignment


def parse_configs(given: tuple[str, ...]) -> dict[str, str]:
    configs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--config {text!r}: expected name=value")
        configs[name.strip()] = value.strip()
    return configs
