"""The `tidelog` command: a table of tools, each imported only when it is called.

Starting a broker must not pay for the tools beside it, so listing them needs none of them either.
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
    "demo": Tool("tidelog.cli.demo", "demo", "Run a broker, events for it, and all pipelines over them."),
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
    "groups": Tool("tidelog.cli.groups", "groups", "List the groups of every kind."),
    "transactions": Tool(
        "tidelog.cli.transactions", "transactions", "List and describe transactions, and end those that hang."
    ),
    "log-dirs": Tool("tidelog.cli.log_dirs", "log_dirs", "Print what lies in the brokers' log folders."),
    "delete-records": Tool(
        "tidelog.cli.delete_records", "delete_records", "Delete the oldest records of partitions."
    ),
    "get-offsets": Tool("tidelog.cli.get_offsets", "get_offsets", "Print the offsets of partitions."),
    "configs": Tool("tidelog.cli.configs", "configs", "Describe and change settings while brokers run."),
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
        "tidelog.cli.end_to_end_latency", "end_to_end_latency", "Measure how long a record is on its way."
    ),
    "verifiable-producer": Tool(
        "tidelog.cli.verifiable_producer", "verifiable_producer", "Write numbers, and tell how each fared."
    ),
    "verifiable-consumer": Tool(
        "tidelog.cli.verifiable_consumer", "verifiable_consumer", "Read in a group, and tell everything."
    ),
    "consume-with": Tool(
        "tidelog.cli.consume_with", "consume_with", "Run handlers of records that a file declares."
    ),
    "pipeline": Tool("tidelog.cli.pipeline", "pipeline", "Run pipelines on Spark, and look after them."),
    "generate": Tool("tidelog.cli.generate", "generate", "Write events for the pipelines to work on."),
    "dump-log": Tool(
        "tidelog.cli.dump_log", "dump_log", "Print what segment, index and snapshot files hold."
    ),
    "adopt": Tool("tidelog.cli.adopt", "adopt", "Take over a log folder that Kafka wrote."),
    "tree": Tool("tidelog.cli.tree", "tree", "Move the metadata tree to other stores."),
    "doctor": Tool("tidelog.cli.doctor", "doctor", "Check what this machine lacks."),
    "completion": Tool("tidelog.cli.completion", "completion", "Print a script that completes flags."),
    "config-docs": Tool(
        "tidelog.cli.config_docs", "config_docs", "Print every setting with its documentation."
    ),
}


class ToolGroup(click.Group):
    """A command group that knows its commands by name and summary before any of them is imported."""

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
    """A distributed commit log that speaks Kafka's protocol and keeps Kafka's files."""
