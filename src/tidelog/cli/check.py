"""`tidelog check`: looks at a cluster and at settings for ways to lose records, and for what is open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from tidelog.cli.durability_rules import (
    RULES,
    Durability,
    Finding,
    Status,
    look_at_brokers,
    look_at_consumer,
    look_at_producer,
    look_at_topics,
    unseen,
)
from tidelog.cli.exposure import Exposed, look_at_broker_file, look_at_exposure, print_exposures
from tidelog.cli.flags import KafkaStyleCommand, WrongUsage, bootstrap_server, switch, valued
from tidelog.cli.output import connected_admin, failing, output_option, print_json
from tidelog.config.properties import read_properties

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, ConfigEntry

MARKS = {Status.OK: "ok    ", Status.WARNING: "warn  ", Status.BROKEN: "BROKEN", Status.UNSEEN: "unseen"}
MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
DEFAULT_FACTOR = "default.replication.factor"


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@click.option("--topic", "topics", metavar="NAME", multiple=True, help="Only this topic; may be repeated.")
@click.option(
    "--producer-config",
    "producers",
    metavar="FILE",
    multiple=True,
    help="A properties file with the settings of a producer; may be repeated.",
)
@click.option(
    "--consumer-config",
    "consumers",
    metavar="FILE",
    multiple=True,
    help="A properties file with the settings of a consumer; may be repeated.",
)
@click.option(
    "--broker-config",
    "brokers",
    metavar="FILE",
    multiple=True,
    help="A properties file of a broker, to list what it leaves open; may be repeated.",
)
@switch("--clients-only", "Check the files alone, without a cluster.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def check(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: str | None,
    topics: tuple[str, ...],
    producers: tuple[str, ...],
    consumers: tuple[str, ...],
    brokers: tuple[str, ...],
    clients_only: bool,
    output: str,
) -> None:
    """Check a cluster and its clients against the eight rules for losing no record, and list what is open.

    The exit code is 1 if a rule is broken; what is open changes nothing about it.
    """
    if clients_only and not (producers or consumers or brokers):
        raise WrongUsage("--clients-only needs --producer-config, --consumer-config or --broker-config", ctx)
    if clients_only and topics:
        raise WrongUsage("--topic does not go with --clients-only", ctx)
    findings: list[Finding] = []
    opened: list[Exposed] = []
    with failing():
        findings += look_at_files(producers, consumers)
        for file in (*brokers, *producers, *consumers):
            opened += look_at_broker_file(file, is_broker=file in brokers)
        findings += unseen(bool(producers), bool(consumers), cluster=not clients_only)
        if not clients_only:
            with connected_admin(bootstrap_server, command_config) as admin:
                findings += look_at_cluster(admin, topics)
                if not topics:
                    opened += look_at_exposure(admin)
    findings.sort(key=lambda finding: finding.rule)
    if output == "json":
        print_json([*(finding.as_json() for finding in findings), *(each.as_json() for each in opened)])
    else:
        print_findings(findings, opened)
    if any(finding.status is Status.BROKEN for finding in findings):
        ctx.exit(1)


def look_at_files(producers: tuple[str, ...], consumers: tuple[str, ...]) -> Iterator[Finding]:
    for file in producers:
        yield from look_at_producer(file, read_properties(file))
    for file in consumers:
        yield look_at_consumer(file, read_properties(file))


def look_at_cluster(admin: Admin, topics: tuple[str, ...]) -> list[Finding]:
    """The given topics, or all topics and the defaults of the brokers."""
    brokers = [node.id for node in admin.describe_cluster().nodes]
    names = list(topics) or list(admin.list_topics(list_internal=True))
    findings = look_at_topics(topic_durability(admin, names), len(brokers))
    if not topics:
        findings += look_at_brokers(broker_durability(admin, sorted(brokers)))
    return findings


def topic_durability(admin: Admin, names: list[str]) -> list[Durability]:
    from tidelog.clients.admin.configs import ConfigResource, ResourceType

    if not names:
        return []
    described = admin.describe_topics(names)
    configs = admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in names], names=[MIN_ISR, UNCLEAN]
    )
    return [
        Durability(
            name,
            min((len(partition.replicas) for partition in described[name].partitions), default=0),
            number(configs[ConfigResource(ResourceType.TOPIC, name)], MIN_ISR),
            switched_on(configs[ConfigResource(ResourceType.TOPIC, name)], UNCLEAN),
        )
        for name in sorted(names)
    ]


def broker_durability(admin: Admin, brokers: list[int]) -> list[Durability]:
    from tidelog.clients.admin.configs import ConfigResource, ResourceType

    configs = admin.describe_configs(
        [ConfigResource(ResourceType.BROKER, str(broker)) for broker in brokers],
        names=[MIN_ISR, UNCLEAN, DEFAULT_FACTOR],
    )
    return [
        Durability(
            resource.name,
            number(entries, DEFAULT_FACTOR),
            number(entries, MIN_ISR),
            switched_on(entries, UNCLEAN),
        )
        for resource, entries in configs.items()
    ]


def number(entries: Mapping[str, ConfigEntry], name: str) -> int:
    return int(entries[name].value or 1) if name in entries else 1


def switched_on(entries: Mapping[str, ConfigEntry], name: str) -> bool:
    return name in entries and entries[name].value == "true"


def print_findings(findings: list[Finding], opened: list[Exposed]) -> None:
    for finding in findings:
        files = f" ({', '.join(finding.where)})" if finding.rule in (2, 3, 8) and finding.where else ""
        mark = MARKS[finding.status]
        click.echo(f"{finding.rule}  {mark}  {RULES[finding.rule]}: {finding.text}{files}")
        if finding.advice:
            click.echo(f"           {finding.advice}")
    print_exposures(opened)
    broken = sorted({finding.rule for finding in findings if finding.status is Status.BROKEN})
    if broken:
        click.echo(f"broken: {', '.join(f'rule {rule}' for rule in broken)}")
