"""`tidelog log-dirs`: sizes of partitions by broker and log folder, as kafka-log-dirs."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import (
    KafkaStyleCommand,
    WrongUsage,
    bootstrap_server,
    exception_name,
    switch,
    valued,
)
from tidelog.cli.output import connected_admin, output_option, print_json
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, LogDirDescription

JSON_VERSION = 1


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@switch("--describe", "Print the log folders; required.")
@valued("--topic-list", "NAME,...", "Only partitions of these topics; by default all.")
@valued("--broker-list", "ID,...", "Only folders of these brokers; by default all.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def log_dirs(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: str | None,
    describe: bool,
    topic_list: str | None,
    broker_list: str | None,
    output: str,
) -> None:
    """Print the log folders of brokers with the sizes of the partitions in them, as one line of JSON."""
    if not describe:
        raise WrongUsage("--describe must be specified", ctx)
    try:
        with connected_admin(bootstrap_server, command_config) as admin:
            brokers = wanted_brokers(admin, broker_list)
            if output == "text":
                click.echo("Querying brokers for log directories information")
            found = admin.describe_log_dirs(brokers)
    except BrokenPipeError:
        raise
    except (KafkaError, ValueError, OSError) as error:
        click.echo(f"ERROR: {error}", err=True)
        ctx.exit(1)
    if output != "text":
        print_json(
            [row for broker, folders in found.items() for row in rows(broker, folders, names(topic_list))]
        )
        return
    click.echo(f"Received log directory information from brokers {','.join(map(str, brokers))}")
    click.echo(as_json(found, set(names(topic_list))))


def names(text: str | None) -> list[str]:
    """The items of a list with commas, without empty ones."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def wanted_brokers(admin: Admin, broker_list: str | None) -> list[int]:
    present = sorted(node.id for node in admin.describe_cluster().nodes)
    try:
        asked = sorted({int(name) for name in names(broker_list)})
    except ValueError:
        raise ValueError(f"--broker-list {broker_list!r}: expected broker ids such as 0,1,2") from None
    missing = [broker for broker in asked if broker not in present]
    if missing:
        raise ValueError(
            f"--broker-list names brokers that the cluster does not have: {','.join(map(str, missing))}. "
            f"It has {','.join(map(str, present))}"
        )
    return asked or present


def rows(
    broker: int, folders: Mapping[str, LogDirDescription], topics: Container[str]
) -> Iterator[dict[str, object]]:
    """A row for each partition in the folders of a broker."""
    for folder in folders.values():
        for (topic, index), replica in sorted(folder.replicas.items()):
            if not topics or topic in topics:
                yield {
                    "broker": broker,
                    "logDir": folder.path,
                    "topic": topic,
                    "partition": index,
                    "size": replica.size,
                    "offsetLag": replica.offset_lag,
                    "isFuture": replica.is_future,
                }


def as_json(found: Mapping[int, Mapping[str, LogDirDescription]], topics: set[str]) -> str:
    brokers = [
        {"broker": broker, "logDirs": [log_dir_as_json(folder, topics) for folder in folders.values()]}
        for broker, folders in found.items()
    ]
    return json.dumps({"brokers": brokers, "version": JSON_VERSION}, separators=(",", ":"))


def log_dir_as_json(folder: LogDirDescription, topics: set[str]) -> dict[str, object]:
    return {
        "partitions": [
            {
                "partition": f"{topic}-{index}",
                "size": replica.size,
                "offsetLag": replica.offset_lag,
                "isFuture": replica.is_future,
            }
            for (topic, index), replica in folder.replicas.items()
            if not topics or topic in topics
        ],
        "error": None if folder.error is None else exception_name(folder.error),
        "logDir": folder.path,
    }
