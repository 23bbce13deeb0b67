"""`tidelog delete-records`: moves the log start offsets of partitions forward, as kafka-delete-records.

The offsets come from a file: `{"partitions": [{"topic": "t", "partition": 0, "offset": 10}], "version": 1}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from tidelog.cli.flags import (
    KafkaStyleCommand,
    WrongUsage,
    bootstrap_server,
    came_as_code,
    exception_name,
    file_words,
    valued,
)
from tidelog.cli.output import connected_admin, output_option, print_json
from tidelog.cli.partition_file import is_integer, list_field, parse_object, shortened
from tidelog.errors import KafkaError, error_name
from tidelog.partitions import PartitionKey

FILE = "file of offsets"


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@valued(
    "--offset-json-file",
    "FILE",
    "The first offset to keep of each partition, -1 to delete all records; required. "
    '{"partitions": [{"topic": "orders", "partition": 0, "offset": 10}], "version": 1}',
)
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def delete_records(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: str | None,
    offset_json_file: str | None,
    output: str,
) -> None:
    """Delete the records of partitions below given offsets."""
    if offset_json_file is None:
        raise WrongUsage("--offset-json-file must be specified", ctx)
    try:
        offsets = parse_offsets(Path(offset_json_file).read_text())
        with connected_admin(bootstrap_server, command_config) as admin:
            if output != "json":
                click.echo("Executing records delete operation")
            deleted = admin.delete_records(offsets, partial=True)
            results: dict[PartitionKey, int | KafkaError] = {**deleted, **deleted.errors}
    except (KafkaError, ValueError, OSError) as error:
        click.echo(file_words(error), err=True)
        ctx.exit(1)
    if output == "json":
        print_json([as_json(partition, result) for partition, result in sorted(results.items())])
        return
    click.echo("Records delete operation completed:")
    for (topic, partition), result in sorted(results.items()):
        click.echo(f"partition: {topic}-{partition}\t{status_text(result)}")


def as_json(partition: PartitionKey, result: int | KafkaError) -> dict[str, object]:
    shown: dict[str, object] = {"topic": partition[0], "partition": partition[1]}
    if isinstance(result, KafkaError):
        return {**shown, "error": error_text(result)}
    return {**shown, "low_watermark": result}


def status_text(result: int | KafkaError) -> str:
    if isinstance(result, KafkaError):
        return f"error: {error_text(result)}"
    return f"low_watermark: {result}"


def error_text(error: KafkaError) -> str:
    """The class and message of an error, for a line that already names the partition."""
    return f"{exception_name(error)}: {error_name(error.code) if came_as_code(error) else error}"


def parse_offsets(text: str) -> dict[PartitionKey, int]:
    """The partitions and offsets of the file. Raises ValueError."""
    found = parse_object(text, FILE)
    offsets: dict[PartitionKey, int] = {}
    for entry in list_field(found, "partitions", FILE, required=True):
        partition, offset = parse_entry(entry)
        if partition in offsets:
            raise ValueError(f"the {FILE} names {partition[0]}-{partition[1]} twice")
        offsets[partition] = offset
    return offsets


def parse_entry(entry: object) -> tuple[PartitionKey, int]:
    if isinstance(entry, Mapping):
        topic, partition, offset = (entry.get(name) for name in ("topic", "partition", "offset"))
        if isinstance(topic, str) and is_integer(partition) and is_integer(offset):
            return (topic, partition), offset
    raise ValueError(f"{shortened(entry)}: expected an object with topic, partition and offset")
