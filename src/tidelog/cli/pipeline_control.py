"""`pipeline status` and `pipeline stop`: both find the pipelines by their data, on whatever host they run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tidelog.cli.output import output_option, pairs, print_json, tool_command
from tidelog.cli.pipeline_failing import data_option, pipeline_failing

if TYPE_CHECKING:
    from tidelog.spark.pipelines.state import PipelineStatus, StateFolder

store_conf_option = click.option(
    "--spark-conf",
    "spark_conf",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting of Spark for the store of the data, for example its endpoint; keys are better in AWS_*.",
)


@tool_command("status")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@data_option
@store_conf_option
@output_option
@click.pass_context
def status(
    ctx: click.Context, names: tuple[str, ...], data: str, spark_conf: tuple[str, ...], output: str
) -> None:
    """Print the status of the pipelines of a data folder. The exit code is 1 if one failed or was killed."""
    with pipeline_failing():
        from tidelog.spark.pipelines.state import FAILED, KILLED, StateFolder, store_of

        folder = StateFolder(data, store_of(data, pairs(spark_conf, "--spark-conf")))
        found: list[PipelineStatus] = []
        for name in names or folder.names():
            each = folder.read(name)
            if each is None:
                raise ValueError(f"pipeline {name} has not run with its data in {data}")
            found.append(each)
        if output == "json":
            print_json([asdict(each) for each in found])
        elif not found:
            click.echo(f"no pipeline has run with its data in {data}")
        else:
            print_status(found)
    ctx.exit(1 if any(each.state in (FAILED, KILLED) for each in found) else 0)


def print_status(found: Iterable[PipelineStatus]) -> None:
    from tidelog.spark.pipelines.progress import running as running_batch

    now = time.time()
    for each in found:
        at_work = each.state in ("starting", "running", "stopping")
        process = f", process {each.pid} on {each.host}" if at_work else ""
        click.echo(f"{each.pipeline}: {each.state}{process}, {each.rows:,} rows since its start")
        if each.error:
            click.echo(f"  {each.error}")
        for name, flow in each.flows.items():
            lag = "unknown" if flow.lag is None else f"{flow.lag:,}"
            parts = [f"{flow.rows:,} rows", f"{flow.rows_per_second:,.0f} rows/s", f"lag {lag}"]
            if flow.batch is not None:
                ago = now - flow.updated_at
                parts.append(f"batch {flow.batch} in {flow.batch_ms / 1000:.1f} s, {ago:,.0f} s ago")
            being_written = running_batch(flow) if at_work else None
            if being_written is not None:
                parts.append(being_written)
            elif flow.batch is None:
                parts.append("no micro-batch yet")
            click.echo(f"  {name}: {', '.join(parts)}")


@tool_command("stop")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@data_option
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=90.0,
    show_default=True,
    help="How long to wait for the end of the running micro-batches.",
)
@store_conf_option
@click.pass_context
def stop(
    ctx: click.Context, names: tuple[str, ...], data: str, timeout: float, spark_conf: tuple[str, ...]
) -> None:
    """Stop pipelines after their running micro-batches.

    Without names it stops all that run.
    """
    with pipeline_failing():
        from tidelog.spark.pipelines.state import StateFolder, store_of

        folder = StateFolder(data, store_of(data, pairs(spark_conf, "--spark-conf")))
        running = [name for name in names or folder.names() if folder.runs(name)]
        for name in names:
            if name not in running:
                click.echo(f"{name} does not run with its data in {data}")
        for name in running:
            folder.request_stop(name)
        deadline = time.monotonic() + timeout
        left = list(running)
        while left and time.monotonic() < deadline:
            left = [name for name in left if not stopped(folder, name)]
            time.sleep(folder.poll_seconds if left else 0)
        for name in running:
            click.echo(f"{name}: {'still running' if name in left else 'stopped'}")
    if left:
        click.echo(
            f"tidelog: {', '.join(left)}: not stopped within {timeout:g} s; the request stays in effect",
            err=True,
        )
    ctx.exit(1 if left else 0)


def stopped(folder: StateFolder, name: str) -> bool:
    """Whether a pipeline has ended. Its process, and its lock, may serve other pipelines longer."""
    from tidelog.spark.pipelines.state import ENDED

    found = folder.read(name)
    return not folder.runs(name) or (found is not None and found.state in ENDED)
