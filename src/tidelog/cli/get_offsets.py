"""`tidelog get-offsets`: prints offsets of partitions, as kafka-get-offsets."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import bootstrap_server, switch, valued
from tidelog.cli.output import failing, open_admin, output_option, print_json, tool_command
from tidelog.partitions import PartitionKey
from tidelog.protocol import offset_specs

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin

Fits = Callable[[str, int], bool]

RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?\Z")
SPECS = {
    "latest": offset_specs.LATEST,
    "earliest": offset_specs.EARLIEST,
    "max-timestamp": offset_specs.MAX_TIMESTAMP,
    "earliest-local": offset_specs.EARLIEST_LOCAL,
    "latest-tiered": offset_specs.LATEST_TIERED,
    "earliest-pending-upload": offset_specs.EARLIEST_PENDING_UPLOAD,
}
UNKNOWN_OFFSET = -1


@tool_command("get-offsets")
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the client.")
@valued("--topic", "PATTERN", "Only topics whose whole name matches a regular expression.")
@valued("--partitions", "N,...", "Only these partitions.")
@valued(
    "--topic-partitions",
    "RULE,...",
    "TOPIC:PARTITIONS, with partitions such as 3, 0-3 (without 3), 2- or -3; either side may be empty.",
)
@valued("--time", "TIME", f"Milliseconds, or one of {', '.join(SPECS)}; by default latest.")
@switch("--exclude-internal-topics", "Leave out internal topics.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def get_offsets(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: str | None,
    topic: str | None,
    partitions: str | None,
    topic_partitions: str | None,
    time: str | None,
    exclude_internal_topics: bool,
    output: str,
) -> None:
    """Print the offsets of partitions: the last, the first, or the offsets of a time."""
    with failing("Error occurred: "):
        if topic_partitions is not None and (topic is not None or partitions is not None):
            raise ValueError("--topic-partitions cannot be used with --topic or --partitions")
        spec = parse_time(time or "latest")
        fits = parse_rules(topic_partitions) if topic_partitions else parse_filters(topic, partitions)
        with open_admin(bootstrap_server, command_config, "get-offsets") as admin:
            admin.connect()
            found = offsets(admin, fits, spec, not exclude_internal_topics)
    if output == "json":
        print_json([{"topic": name, "partition": index, "offset": at} for (name, index), at in found.items()])
        return
    for (name, index), at in found.items():
        click.echo(f"{name}:{index}:{at}")


def offsets(admin: Admin, fits: Fits, spec: int, internal: bool) -> dict[PartitionKey, int]:
    """The offsets in the order of Kafka's tool: sorted by the text TOPIC-PARTITION."""
    names = list(admin.list_topics(list_internal=internal))
    described = admin.describe_topics(names)
    wanted = [
        (name, partition.partition)
        for name, topic in described.items()
        for partition in topic.partitions
        if fits(name, partition.partition)
    ]
    if not wanted:
        raise ValueError("Could not match any topic-partitions with the specified filters")
    results = admin.list_offsets(dict.fromkeys(wanted, spec), partial=True)
    for (name, index), error in results.errors.items():
        click.echo(f"Skip getting offsets for topic-partition {name}-{index} due to error: {error}", err=True)
    found = {key: info.offset for key, info in results.items() if info.offset != UNKNOWN_OFFSET}
    return dict(sorted(found.items(), key=lambda item: f"{item[0][0]}-{item[0][1]}"))


def parse_time(text: str) -> int:
    if text in SPECS:
        return SPECS[text]
    try:
        return int(text)
    except ValueError:
        names = " / ".join(f"{number} or {name}" for name, number in SPECS.items())
        raise ValueError(
            f"Malformed time argument {text}. Please use {names}, or a specified long format timestamp"
        ) from None


def parse_filters(topic: str | None, partitions: str | None) -> Fits:
    """A filter by a pattern of topics and numbers of partitions; by default everything passes."""
    name_fits = _pattern(".*" if topic is None else topic)
    if not partitions:
        return lambda name, index: name_fits(name)
    try:
        numbers = {int(text) for text in partitions.split(",")}
    except ValueError:
        raise ValueError(
            "--partitions expects a comma separated list of numeric partition ids, "
            f"but received: {partitions}"
        ) from None
    return lambda name, index: name_fits(name) and index in numbers


def parse_rules(text: str) -> Fits:
    """A filter of partitions that match at least one of the rules."""
    rules = [_rule(part) for part in text.split(",")]
    return lambda name, index: any(rule(name, index) for rule in rules)


def _rule(text: str) -> Fits:
    match = RULE.match(text)
    if match is None:
        raise ValueError(f"Invalid rule specification: {text}")
    topic, single, low, high = match.groups()
    name_fits = _pattern(topic or ".*")
    if single:
        return lambda name, index: name_fits(name) and index == int(single)
    start, end = int(low or 0), int(high or 2**31)
    return lambda name, index: name_fits(name) and start <= index < end


def _pattern(text: str) -> Callable[[str], bool]:
    pattern = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern} is an invalid regex: {error}") from None
    return lambda name: compiled.fullmatch(name) is not None
