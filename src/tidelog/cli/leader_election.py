"""`tidelog leader-election`: elects the leaders of partitions, as kafka-leader-election."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import (
    KafkaStyleCommand,
    WrongUsage,
    bootstrap_server,
    error_text,
    not_both,
    switch,
    valued,
)
from tidelog.cli.output import connected_admin, failing, output_option, print_json
from tidelog.cli.partition_file import is_id, list_field, parse_object, shortened
from tidelog.cli.reassignment_file import partition_names
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.clients.admin import ElectionType, Results

ELECTION_TYPES = ("preferred", "unclean")


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@valued("--admin.config", "FILE", "The older name of --command-config.")
@valued(
    "--election-type",
    "preferred|unclean",
    "preferred: the first replica leads again if it is in sync. unclean: a partition without a leader gets "
    "one, also a replica that is not in sync: records are lost. Required.",
)
@valued("--topic", "NAME", "The topic of the partition; with --partition.")
@valued("--partition", "N", "The partition; with --topic.", int)
@switch("--all-topic-partitions", "All partitions of the cluster that need the election.")
@valued(
    "--path-to-json-file",
    "FILE",
    'The partitions: {"partitions": [{"topic": "t", "partition": 0}]}.',
)
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def leader_election(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: str | None,
    admin_config: str | None,
    election_type: str | None,
    topic: str | None,
    partition: int | None,
    all_topic_partitions: bool,
    path_to_json_file: str | None,
    output: str,
) -> None:
    """Elect the preferred leaders of partitions, or a leader for partitions without one."""
    from tidelog.protocol.election_type import ElectionType

    not_both(ctx, "--command-config", command_config, "--admin.config", admin_config)
    if election_type is None:
        raise WrongUsage("--election-type must be specified", ctx)
    if election_type.lower() not in ELECTION_TYPES:
        raise WrongUsage(f"--election-type {election_type}: expected {' or '.join(ELECTION_TYPES)}", ctx)
    if sum((topic is not None, all_topic_partitions, path_to_json_file is not None)) != 1:
        raise WrongUsage(
            "expected exactly one of --topic, --all-topic-partitions and --path-to-json-file", ctx
        )
    if (topic is None) != (partition is None):
        raise WrongUsage("--topic and --partition go together", ctx)
    kind = ElectionType[election_type.upper()]
    with failing(""):
        wanted: list[PartitionKey] | None = None
        if topic is not None and partition is not None:
            wanted = [(topic, partition)]
        elif path_to_json_file is not None:
            wanted = parse_partitions(Path(path_to_json_file).read_text())
        if wanted == []:
            return
        with connected_admin(bootstrap_server, command_config or admin_config) as admin:
            elected = admin.elect_leaders(kind, wanted, partial=True)
    if output == "json":
        print_json(as_json(elected))
    else:
        print_results(elected, kind)
    if elected.errors:
        click.echo(f"{len(elected.errors)} replica(s) could not be elected", err=True)
        ctx.exit(1)


def parse_partitions(text: str) -> list[PartitionKey]:
    """The partitions of a file. Raises ValueError."""
    what = "list of partitions"
    found = parse_object(text, what)
    partitions: list[PartitionKey] = []
    for entry in list_field(found, "partitions", what, required=True):
        partition = parse_entry(entry)
        if partition in partitions:
            raise ValueError(f"the {what} names {partition[0]}-{partition[1]} twice")
        partitions.append(partition)
    return partitions


def parse_entry(entry: object) -> PartitionKey:
    if isinstance(entry, Mapping):
        topic, partition = entry.get("topic"), entry.get("partition")
        if isinstance(topic, str) and is_id(partition):
            return topic, partition
    raise ValueError(f"{shortened(entry)}: expected an object with topic and partition")


def print_results(elected: Results[PartitionKey, bool], kind: ElectionType) -> None:
    _print_partitions(
        f"Successfully completed leader election ({kind.name}) for partitions",
        (partition for partition, was_needed in elected.items() if was_needed),
    )
    _print_partitions(
        "Valid replica already elected for partitions",
        (partition for partition, was_needed in elected.items() if not was_needed),
    )
    for (topic, index), error in sorted(elected.errors.items()):
        click.echo(
            f"Error completing leader election ({kind.name}) for partition: {topic}-{index}: "
            f"{error_text(error)}"
        )


def _print_partitions(words: str, partitions: Iterable[PartitionKey]) -> None:
    names = partition_names(partitions, ", ")
    if names:
        click.echo(f"{words} {names}")


def as_json(elected: Results[PartitionKey, bool]) -> list[dict[str, object]]:
    outcomes: dict[PartitionKey, bool | KafkaError] = {**elected, **elected.errors}
    return [
        {
            "topic": topic,
            "partition": index,
            "elected": outcome is True,
            "error": error_text(outcome) if isinstance(outcome, KafkaError) else None,
        }
        for (topic, index), outcome in sorted(outcomes.items())
    ]
