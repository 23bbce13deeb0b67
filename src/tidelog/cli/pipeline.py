"""`tidelog pipeline`: runs the pipelines on Spark, lists and describes them, shows their status, stops them.

`run` ends after Ctrl-C, SIGTERM or `stop`: it finishes the running micro-batches and begins no others. With
--trigger available-now it ends at the end of the log. A terminal shows a live table; a pipe gets a line in
each interval. Exit codes: 0 after a normal end, 1 after a failure, 128 plus the number of a signal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import KafkaStyleGroup, bootstrap_server, valued
from tidelog.cli.output import (
    Signals,
    event_output_option,
    output_option,
    pairs,
    print_json,
    settings_from,
    tool_command,
)
from tidelog.cli.pipeline_control import status, stop
from tidelog.cli.pipeline_failing import checkpoints_option, data_option, pipeline_failing
from tidelog.cli.pipeline_repair import backfill, replay
from tidelog.cli.pipeline_submit import submit

if TYPE_CHECKING:
    from tidelog.spark.pipelines.declare import Pipeline
    from tidelog.spark.pipelines.run_options import Options
    from tidelog.spark.pipelines.runner import Outcome, Running
    from tidelog.spark.pipelines.state import FlowStatus

SETTINGS_NOTE = "Set one with `--set NAME=VALUE`, or in a file with `--config FILE`."


@click.group(cls=KafkaStyleGroup, context_settings={"help_option_names": ["-h", "--help"]})
def pipeline() -> None:
    """Run, list, describe and stop pipelines on Spark."""


def several(name: str, metavar: str, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    attribute = name.lstrip("-").replace("-", "_")
    return click.option(name, attribute, metavar=metavar, multiple=True, help=text)


@tool_command("run")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the clients, for example security.")
@data_option
@checkpoints_option
@click.option(
    "--trigger",
    metavar="WHEN",
    default="10 seconds",
    show_default=True,
    help="When micro-batches start: an interval, available-now, or once.",
)
@several("--set", "NAME=VALUE", "A setting of a pipeline; pipeline.name=value if several have it.")
@valued("--config", "FILE", "Settings of pipelines in a file: TOML, or properties.")
@valued("--master", "URL", "The Spark master; by default the cores of this machine (local[*]).")
@several("--spark-conf", "NAME=VALUE", "A setting of Spark.")
@click.option(
    "--max-offsets-per-trigger",
    metavar="COUNT",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="The largest number of records in a micro-batch.",
)
@valued(
    "--state-partitions",
    "COUNT",
    "State partitions of new checkpoints, on any master (default 4). See `pipeline repartition`.",
)
@click.option("--create-topics", is_flag=True, help="Create missing topics of the sources.")
@click.option(
    "--metrics-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=None,
    help="Serve Prometheus metrics at this port; 0 takes a free one. By default none are served.",
)
@click.option(
    "--metrics-host",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="The address that metrics are served at.",
)
@click.option(
    "--stop-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="How long a stop waits for the running micro-batches.",
)
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="The time between two lines in a pipe.",
)
@event_output_option
@click.pass_context
def run(
    ctx: click.Context,
    names: tuple[str, ...],
    bootstrap_server: str,
    command_config: str | None,
    data: str,
    checkpoints: str,
    trigger: str,
    set: tuple[str, ...],
    config: str | None,
    master: str | None,
    spark_conf: tuple[str, ...],
    max_offsets_per_trigger: int,
    state_partitions: str | None,
    create_topics: bool,
    metrics_port: int | None,
    metrics_host: str,
    stop_timeout: float,
    interval: float,
    output: str,
) -> None:
    """Run pipelines, all in one Spark session.

    NAME is a pipeline of `tidelog pipeline list`, `all` for all of these, or your own file or module:
    ./mine.py, package.module.
    """
    with pipeline_failing():
        from tidelog.spark.pipelines.run_options import Options
        from tidelog.spark.pipelines.settings import read_settings
        from tidelog.spark.pipelines.state_partitions import SETTING

        settings = {**(read_settings(config) if config else {}), **pairs(set, "--set")}
        if state_partitions is not None:
            settings[SETTING] = state_partitions
        client = {name: str(value) for name, value in settings_from(command_config).items()}
        client.pop("bootstrap.servers", None)
        options = Options(
            bootstrap=bootstrap_server,
            data=data,
            checkpoints=checkpoints,
            master=master,
            trigger=trigger,
            settings=settings,
            client=client,
            spark_conf=pairs(spark_conf, "--spark-conf"),
            create_topics=create_topics,
            max_offsets_per_trigger=max_offsets_per_trigger,
            stop_seconds=stop_timeout,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            spark_log=True,
        )
        code = run_until_stopped(names, options, Report(interval, output))
    ctx.exit(code)


def run_until_stopped(names: tuple[str, ...], options: Options, report: Report) -> int:
    """Run until a signal or the end; returns the exit code."""
    from tidelog.spark.pipelines.runner import start

    stop_request = StopRequest()
    with Signals(stop_request.stop) as early:
        running = start(names, options)
        try:
            with (
                running,
                Signals(stop_request.stop) as signals,
            ):  # again, as Spark's session replaces the handler of SIGINT
                report.begun(running)
                with report:
                    outcome = running.wait(each_turn=stop_request.each_turn(report))
        except KeyboardInterrupt:
            print_cut_off(running.cut_off)
            raise
        report.ended(outcome)
        if not outcome.stopped_cleanly:
            print_cut_off(outcome.cut_off)
            return 1
        return signals.exit_code or early.exit_code


def print_cut_off(batches: tuple[str, ...]) -> None:
    """Print the micro-batches that the stop did not wait for."""
    what = f"{' and '.join(batches)} {'was' if len(batches) == 1 else 'were'}" if batches else "the run was"
    click.echo(
        f"tidelog: {what} interrupted; the next start finishes the work, without lost or duplicate rows",
        err=True,
    )


class StopRequest:
    """Stops the run, also if the request comes before the run has started."""

    def __init__(self) -> None:
        self.requested = False

    def stop(self) -> None:
        if self.requested:
            raise KeyboardInterrupt  # the second request ends the tool at once
        self.requested = True

    def each_turn(self, report: Report) -> Callable[[Running], None]:
        def turn(running: Running) -> None:
            if self.requested:
                running.stop()
            report.show(running)

        return turn


class Report:
    """Prints the progress of a run, for people or as JSON."""

    def __init__(self, interval: float, output: str) -> None:
        self._interval = interval
        self._json = output == "json"
        self._next = time.monotonic() + interval
        self._live = LiveTable() if sys.stderr.isatty() and not self._json else None

    def __enter__(self) -> Report:
        if self._live is not None:
            self._live.open()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.close()

    def begun(self, running: Running) -> None:
        names = ", ".join(each.name for each in running.pipelines)
        if self._json:
            print_json({"event": "started", "pipelines": [each.name for each in running.pipelines]})
        else:
            where = running.options
            click.echo(f"{names} on {where.bootstrap}, data in {where.data}; Ctrl-C stops", err=True)
            if running.metrics is not None:
                click.echo(f"metrics at {running.metrics.url}", err=True)

    def show(self, running: Running) -> None:
        if self._live is not None:
            self._live.show(running)
            return
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval
            self._line(running)

    def _line(self, running: Running) -> None:
        from tidelog.spark.pipelines.progress import line, together

        if self._json:
            for each in running.pipelines:
                flows = {name: asdict(flow) for name, flow in running.flows(each).items()}
                print_json({"event": "progress", "pipeline": each.name, "flows": flows})
        else:
            shown = [(each.name, together(running.flows(each).values())) for each in running.pipelines]
            click.echo(line(shown))

    def ended(self, outcome: Outcome) -> None:
        for name, found in outcome.pipelines.items():
            if self._json:
                print_json({"event": "ended", "pipeline": name, **asdict(found)})
            else:
                lag = "" if found.lag is None else f", {found.lag:,} not read yet"
                click.echo(f"{name}: {found.state}, {found.rows:,} rows read{lag}")


class LiveTable:
    """A table at the bottom of the terminal, with a line for each flow."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
        self._next = 0.0

    def open(self) -> None:
        self._live.start()

    def close(self) -> None:
        self._live.stop()

    def show(self, running: Running) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.5
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        table.add_column("flow")
        for title in ("rows", "rows/s", "lag", "batch", "batch time"):
            table.add_column(title, justify="right")
        for each in running.pipelines:
            for name, flow in running.flows(each).items():
                table.add_row(
                    f"{each.name}/{name}",
                    f"{flow.rows:,}",
                    f"{flow.rows_per_second:,.0f}",
                    "" if flow.lag is None else f"{flow.lag:,}",
                    *batch_cells(flow),
                )
        self._live.update(table, refresh=True)


def batch_cells(flow: FlowStatus) -> tuple[str, str]:
    """The running micro-batch and its time so far, or the last one."""
    if flow.running_batch is not None:
        return str(flow.running_batch), f"{time.time() - flow.running_since:.0f} s, running"
    return "" if flow.batch is None else str(flow.batch), f"{flow.batch_ms / 1000:.1f} s"


@tool_command("list")
@output_option
def list_(output: str) -> None:
    """List the pipelines that come with the package."""
    with pipeline_failing():
        from tidelog.spark.pipelines.registry import BUILT_IN, find

        found = [find(name) for name in BUILT_IN]
        if output == "json":
            print_json([{"name": each.name, "title": each.title} for each in found])
            return
        width = max(len(each.name) for each in found)
        for each in found:
            click.echo(f"{each.name:<{width}}  {each.title}")


@tool_command("describe")
@click.argument("name")
@output_option
def describe(name: str, output: str) -> None:
    """Describe the sources, sinks and settings of a pipeline."""
    with pipeline_failing():
        from tidelog.spark.pipelines.registry import check_flows, find
        from tidelog.spark.pipelines.settings import resolve

        found = find(name)
        flows = found.flows(resolve([found], {})[found.name])
        check_flows(found, flows)
        described = {
            "name": found.name,
            "title": found.title,
            "doc": found.doc,
            "flows": [
                {
                    "name": flow.name,
                    "topics": list(flow.source.topics),
                    "sinks": [f"{type(sink).__name__.lower()} {sink.name}" for sink in flow.sinks],
                }
                for flow in flows
            ],
            "settings": [
                {"name": each.name, "default": each.default, "allowed": each.allowed, "doc": each.doc}
                for each in found.settings
            ],
        }
        print_json(described) if output == "json" else print_description(found, described["flows"])


def print_description(found: Pipeline, flows: object) -> None:
    click.echo(f"{found.name}: {found.title}\n")
    click.echo(f"{found.doc.strip()}\n")
    assert isinstance(flows, list)
    for flow in flows:
        click.echo(f"flow {flow['name']}: {', '.join(flow['topics'])} -> {', '.join(flow['sinks'])}")
    if found.settings:
        click.echo(f"\nSettings. {SETTINGS_NOTE}")
        for each in found.settings:
            allowed = f" ({each.allowed})" if each.allowed else ""
            click.echo(f"  {each.name} = {shown(each.default)}{allowed}\n      {each.doc}")


def shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "(empty)"


@tool_command("new")
@click.argument("name")
@click.option("--out", metavar="DIR", default=".", show_default=True, help="The folder of the new files.")
def new(name: str, out: str) -> None:
    """Write the skeleton of a pipeline and its test. Existing files are not changed."""
    with pipeline_failing():
        from tidelog.spark.pipelines.skeleton import write

        pipeline, test = write(name, Path(out))
        click.echo(f"{pipeline}\n{test}")
        click.echo(f"run it with `tidelog pipeline run {named(pipeline)}`, test it with `pytest {test}`")


def named(path: Path) -> str:
    """A file as an argument: with a slash, as `find` wants it."""
    return str(path) if path.is_absolute() else f"./{path}"


@tool_command("repartition")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--state-partitions",
    metavar="COUNT",
    type=click.IntRange(1, 100_000),
    required=True,
    help="The new number of state partitions.",
)
@data_option
@checkpoints_option
@several("--set", "NAME=VALUE", "A setting of a pipeline, if it changes its flows.")
@valued("--config", "FILE", "Settings of pipelines in a file: TOML, or properties.")
@valued("--master", "URL", "The Spark master; by default the cores of this machine (local[*]).")
@several("--spark-conf", "NAME=VALUE", "A setting of Spark.")
def repartition(
    names: tuple[str, ...],
    state_partitions: int,
    data: str,
    checkpoints: str,
    set: tuple[str, ...],
    config: str | None,
    master: str | None,
    spark_conf: tuple[str, ...],
) -> None:
    """Change the number of state partitions of stopped pipelines. Their results stay the same."""
    with pipeline_failing():
        from tidelog.spark.pipelines.repartition import repartition
        from tidelog.spark.pipelines.run_options import Options
        from tidelog.spark.pipelines.settings import read_settings

        settings = {**(read_settings(config) if config else {}), **pairs(set, "--set")}
        conf = pairs(spark_conf, "--spark-conf")
        options = Options(
            data=data,
            checkpoints=checkpoints,
            master=master,
            settings=settings,
            spark_conf=conf,
            spark_log=True,
        )
        for each in repartition(names, state_partitions, options):
            if each.before is None:
                click.echo(f"{each.flow}: no state")
            elif each.before == each.after:
                click.echo(f"{each.flow}: {each.after} state partitions already")
            else:
                click.echo(f"{each.flow}: {each.before} state partitions before, {each.after} now")


@tool_command("report")
@data_option
@click.option(
    "--out",
    metavar="FILE",
    default=None,
    help="The file to write; by default report.html in a local data folder, else in the current folder.",
)
def report(data: str, out: str | None) -> None:
    """Write one page with plots of the pipelines' results."""
    with pipeline_failing():
        from tidelog.spark.pipelines.report import write
        from tidelog.spark.pipelines.state import local_path

        local = local_path(data)
        click.echo(write(data, out or (local / "report.html" if local is not None else "report.html")))


@tool_command("migrate")
@data_option
@several("--writer", "NAME", "A writer of the old tables, pipeline/flow, without a checkpoint in the folder.")
def migrate(data: str, writer: tuple[str, ...]) -> None:
    """Bring tables of earlier versions into the form of today.

    It is done once. Run a migration that was killed again.
    """
    with pipeline_failing():
        from tidelog.cli.pipeline_migrate import migrate_tables

        migrate_tables(data, writer)


COMMANDS = (run, submit, list_, describe, new, status, stop, repartition, replay, backfill, report, migrate)
for command in COMMANDS:
    pipeline.add_command(command)
