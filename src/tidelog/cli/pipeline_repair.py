"""`tidelog pipeline replay` and `backfill`: bring events into tables after a fix, beside a running stream."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import bootstrap_server, valued
from tidelog.cli.output import output_option, pairs, print_json, settings_from, tool_command
from tidelog.cli.pipeline_failing import checkpoints_option, data_option, pipeline_failing

if TYPE_CHECKING:
    from tidelog.spark.pipelines.replay import Outcome

REASONS_SHOWN = 10


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A time in UTC, as milliseconds since 1970: `2026-11-15` or `2026-11-15T10:30:00`."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value}: expected a time such as 2026-11-15 or 2026-11-15T10:30:00", param, ctx)
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


@tool_command("replay")
@click.argument("what", metavar="quarantine", type=click.Choice(["quarantine"]))
@data_option
@click.option("--since", metavar="TIME", type=Moment(), required=True, help="Records of this time or later.")
@click.option("--until", metavar="TIME", type=Moment(), default=None, help="Records before this time.")
@click.option("--topic", metavar="TOPIC", default=None, help="Only events of this topic.")
@click.option("--reason", metavar="TEXT", default=None, help="Only events with this text in their error.")
@click.option("--dry-run", is_flag=True, help="Count the events and change nothing.")
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="A setting of collect.")
@valued("--config", "FILE", "Settings of collect in a file: TOML, or properties.")
@output_option
def replay(
    what: str,
    data: str,
    since: int,
    until: int | None,
    topic: str | None,
    reason: str | None,
    dry_run: bool,
    settings: tuple[str, ...],
    config: str | None,
    output: str,
) -> None:
    """Parse quarantined events again.

    Moves the good ones into their tables, each once. A replay that was interrupted is finished by the
    next one. Pipelines may run meanwhile.
    """
    with pipeline_failing():
        from tidelog.spark.pipelines.collect import PIPELINE
        from tidelog.spark.pipelines.event_times import ahead_ms
        from tidelog.spark.pipelines.events import LOGS
        from tidelog.spark.pipelines.replay import Replays, Selection
        from tidelog.spark.pipelines.settings import resolve

        if topic is not None and topic not in {schema.topic for schema in LOGS}:
            raise ValueError(f"no log of collect has the topic {topic}")
        given = given_settings(config, settings)
        replays = Replays(data, ahead=ahead_ms(resolve([PIPELINE], given)[PIPELINE.name]))
        for plan in [] if dry_run else replays.unfinished():
            click.echo(f"finishing replay {plan.id}, which was interrupted", err=True)
        found = replays.run(Selection(since, until, topic, reason), dry_run=dry_run)
        if output == "json":
            print_json({"dry_run": dry_run, "replayed": found.good, "still_bad": dict(found.bad)})
        else:
            print_replayed(found, dry_run)


def given_settings(config: str | None, settings: tuple[str, ...]) -> dict[str, object]:
    """The settings of a file and of flags; a flag comes first."""
    from tidelog.spark.pipelines.settings import read_settings

    return {**(read_settings(config) if config else {}), **pairs(settings, "--set")}


def print_replayed(found: Outcome, dry_run: bool) -> None:
    parts = ", ".join(f"{count:,} into {table}" for table, count in found.good.items())
    verb = "would be" if dry_run else "were"
    click.echo(f"{found.replayed:,} events {verb} replayed{': ' + parts if parts else ''}")
    if found.bad:
        click.echo(f"{found.bad.total():,} events are still bad")
        for error, count in found.bad.most_common(REASONS_SHOWN):
            click.echo(f"  {count:,}: {error}")


class Day(click.ParamType):  # type: ignore[type-arg]
    """A day in UTC: `2026-11-15`."""

    name = "day"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> date:
        if isinstance(value, date):
            return value
        try:
            return date.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value}: expected a day such as 2026-11-15", param, ctx)


@tool_command("backfill")
@click.argument("flow", metavar="NAME/FLOW")
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the clients, for example security.")
@data_option
@checkpoints_option
@click.option("--from", "first", metavar="DAY", type=Day(), required=True, help="The first day, in UTC.")
@click.option("--to", "end", metavar="DAY", type=Day(), required=True, help="The day after the last one.")
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="A setting of the pipeline.")
@valued("--config", "FILE", "Settings of the pipeline in a file: TOML, or properties.")
@valued("--master", "URL", "The Spark master; by default the cores of this machine (local[*]).")
@click.option("--spark-conf", metavar="NAME=VALUE", multiple=True, help="A setting of Spark.")
@output_option
def backfill(
    flow: str,
    bootstrap_server: str,
    command_config: str | None,
    data: str,
    checkpoints: str,
    first: date,
    end: date,
    settings: tuple[str, ...],
    config: str | None,
    master: str | None,
    spark_conf: tuple[str, ...],
    output: str,
) -> None:
    """Compute days of a flow's tables again from the log.

    One commit replaces them. The stream may run meanwhile: its new batches stay as they are.
    """
    with pipeline_failing():
        from tidelog.spark.pipelines.backfill import Backfill, Days
        from tidelog.spark.pipelines.query import Place
        from tidelog.spark.pipelines.registry import find
        from tidelog.spark.pipelines.run_options import Options
        from tidelog.spark.pipelines.run_session import check_spark, new_session
        from tidelog.spark.pipelines.settings import resolve

        name, _, flow_name = flow.rpartition("/")
        if not name:
            raise ValueError(f"{flow}: expected a pipeline and its flow, such as collect/credits")
        days = Days(first, end)
        check_spark()
        found = find(name)
        chosen = resolve([found], given_settings(config, settings))[found.name]
        client = {key: str(value) for key, value in settings_from(command_config).items()}
        client.pop("bootstrap.servers", None)
        place = Place(bootstrap_server, data.rstrip("/"), client, 0, checkpoints)
        options = Options(
            data=data, master=master, spark_conf=pairs(spark_conf, "--spark-conf"), spark_log=True
        )
        spark = new_session(options)
        try:
            done = Backfill(found, flow_name, chosen, place, spark).run(days)
        finally:
            spark.stop()
        if output == "json":
            print_json([{"table": one.table, "before": one.before, "now": one.now} for one in done])
            return
        for one in done:
            click.echo(f"{one.table}: {one.now:,} rows from {first} up to {end}, {one.before:,} before")
