"""The `tidelog` command: a table of tools. Each tool is imported only when it is called.

So a broker starts without importing the other tools, and `tidelog --help` imports none.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

import click


class Tool(NamedTuple):
    module: str
    attribute: str
    summary: str


TOOLS: dict[str, Tool] = {
    "start": Tool("tidelog.cli.start", "start", "Run a broker."),
    "cluster": Tool(
        "tidelog.cli.cluster", "cluster", "Run several brokers, and show the state of a cluster."
    ),
    "demo": Tool("tidelog.cli.demo", "demo", "Run a broker with events, and all pipelines on them."),
    "console": Tool("tidelog.cli.console", "console", "Serve web pages for Kafka clusters."),
    "produce": Tool("tidelog.cli.produce", "produce", "Write the records of standard input, in any form."),
    "consume": Tool("tidelog.cli.consume", "consume", "Print records in any form, between any two times."),
    "console-producer": Tool(
        "tidelog.cli.console_producer", "console_producer", "Write the lines of standard input to a topic."
    ),
    "console-consumer": Tool(
        "tidelog.cli.console_consumer", "console_consumer", "Print the records of topics."
    ),
    "topics": Tool("tidelog.cli.topics", "topics", "Create, list, describe, alter and delete topics."),
    "consumer-groups": Tool(
        "tidelog.cli.consumer_groups", "consumer_groups", "List, describe, reset and delete consumer groups."
    ),
    "groups": Tool("tidelog.cli.groups", "groups", "List the groups of every type."),
    "transactions": Tool(
        "tidelog.cli.transactions", "transactions", "List and describe transactions, and abort hanging ones."
    ),
    "log-dirs": Tool("tidelog.cli.log_dirs", "log_dirs", "Print the sizes in the brokers' log folders."),
    "reassign-partitions": Tool(
        "tidelog.cli.reassign_partitions",
        "reassign_partitions",
        "Move partitions to other brokers.",
    ),
    "leader-election": Tool(
        "tidelog.cli.leader_election", "leader_election", "Elect the leaders of partitions."
    ),
    "replica-verification": Tool(
        "tidelog.cli.replica_verification", "replica_verification", "Compare the replicas of partitions."
    ),
    "delete-records": Tool(
        "tidelog.cli.delete_records", "delete_records", "Delete the oldest records of partitions."
    ),
    "get-offsets": Tool("tidelog.cli.get_offsets", "get_offsets", "Print the offsets of partitions."),
    "configs": Tool("tidelog.cli.configs", "configs", "Describe and change settings while brokers run."),
    "acls": Tool("tidelog.cli.acls", "acls", "Add, remove and list access rules."),
    "delegation-tokens": Tool(
        "tidelog.cli.delegation_tokens", "delegation_tokens", "Create, renew, expire and list tokens."
    ),
    "client-metrics": Tool(
        "tidelog.cli.client_metrics", "client_metrics", "Show and change which metrics clients push."
    ),
    "broker-api-versions": Tool(
        "tidelog.cli.broker_api_versions", "broker_api_versions", "Print the APIs that brokers serve."
    ),
    "producer-perf-test": Tool(
        "tidelog.cli.producer_perf_test", "producer_perf_test", "Measure how fast records are written."
    ),
    "consumer-perf-test": Tool(
        "tidelog.cli.consumer_perf_test", "consumer_perf_test", "Measure how fast records are read."
    ),
    "end-to-end-latency": Tool(
        "tidelog.cli.end_to_end_latency", "end_to_end_latency", "Measure the time from producer to consumer."
    ),
    "verifiable-producer": Tool(
        "tidelog.cli.verifiable_producer", "verifiable_producer", "Write numbers, and print a line for each."
    ),
    "verifiable-consumer": Tool(
        "tidelog.cli.verifiable_consumer", "verifiable_consumer", "Read in a group, and print every event."
    ),
    "consume-with": Tool("tidelog.cli.consume_with", "consume_with", "Run the record handlers of a file."),
    "pipeline": Tool("tidelog.cli.pipeline", "pipeline", "Run, list, describe and stop pipelines on Spark."),
    "generate": Tool("tidelog.cli.generate", "generate", "Write events for the pipelines."),
    "dump-log": Tool("tidelog.cli.dump_log", "dump_log", "Print segment, index and snapshot files."),
    "security": Tool(
        "tidelog.cli.security", "security", "Make keys, users and settings for a secure cluster."
    ),
    "adopt": Tool("tidelog.cli.adopt", "adopt", "Adopt a log folder of Kafka."),
    "zookeeper": Tool("tidelog.cli.zookeeper", "zookeeper", "Run a ZooKeeper server."),
    "tree": Tool("tidelog.cli.tree", "tree", "Copy the metadata tree to other stores."),
    "profile": Tool("tidelog.cli.profile", "profile", "Keep named clusters, and choose one of them."),
    "sql": Tool("tidelog.cli.sql", "sql", "Run a query over topics."),
    "top": Tool("tidelog.cli.top", "top", "Show brokers, topics and groups live in the terminal."),
    "health": Tool("tidelog.cli.health", "health", "Print whether a cluster is healthy, and why not."),
    "bundle": Tool("tidelog.cli.bundle", "bundle", "Collect what a maintainer needs, without secrets."),
    "doctor": Tool("tidelog.cli.doctor", "doctor", "Check whether this machine can run a broker."),
    "check": Tool("tidelog.cli.check", "check", "Check a cluster for ways to lose records."),
    "completion": Tool("tidelog.cli.completion", "completion", "Print a script that completes words."),
    "config-docs": Tool(
        "tidelog.cli.config_docs", "config_docs", "Print every setting with its documentation."
    ),
}


class ToolGroup(click.Group):
    """A command group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(TOOLS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        tool = TOOLS.get(cmd_name)
        if tool is None:
            return None
        command = getattr(importlib.import_module(tool.module), tool.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(
                f"{tool.module}.{tool.attribute} is a {type(command).__name__}, not a click command"
            )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, tool.summary) for name, tool in TOOLS.items()])


def print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from tidelog import __version__
        from tidelog.records.loops import COMPILED

        click.echo(f"tidelog {__version__}" + ("" if COMPILED else " (without the compiled module)"))
        ctx.exit()


@click.group(cls=ToolGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=print_version,
    help="Print the version.",
)
def main() -> None:
    """A Kafka broker in Python, its tools, and pipelines on Spark.

    A tool ends with 0 if all was done, and with 1 or 2 otherwise. The exceptions are in
    docs/exit-codes.md.
    """
