"""`tidelog bundle`: one archive with what a maintainer needs to help, and nothing that is secret."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from tidelog.cli.flags import WrongUsage, bootstrap_server, valued
from tidelog.cli.output import failing, open_admin, settings_from, tool_command

TIMEOUT_MS = 10_000


@tool_command("bundle")
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@valued("--to", "FILE", "The archive, .zip or .tar.gz; by default tidelog-bundle-TIME.zip here.")
@click.option(
    "--logs",
    "logs",
    metavar="PATH",
    multiple=True,
    help="A log file, or a folder with *.log; may be repeated.",
)
@click.option(
    "--since",
    default="-24h",
    show_default=True,
    metavar="TIME",
    help="The first time of log lines: a duration, a day or a moment.",
)
@click.option(
    "--metrics",
    "metrics",
    metavar="HOST:PORT|URL",
    multiple=True,
    help="Where brokers serve metrics; by default their metrics.listener.",
)
@click.option(
    "--metrics-interval",
    type=click.FloatRange(min=0),
    default=2.0,
    show_default=True,
    help="Seconds between two snapshots.",
)
@click.option(
    "--broker-config",
    "broker_configs",
    metavar="FILE",
    multiple=True,
    help="A properties file of a broker; may be repeated.",
)
@click.pass_context
def bundle(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: str | None,
    to: str | None,
    logs: tuple[str, ...],
    since: str,
    metrics: tuple[str, ...],
    metrics_interval: float,
    broker_configs: tuple[str, ...],
) -> None:
    """Collect metadata, settings, offsets, groups, log folders, metrics and logs, without secrets."""
    from tidelog.cli.bundle_archive import Archive
    from tidelog.cli.bundle_parts import Collector
    from tidelog.cli.formats.offsets import parse_time
    from tidelog.cli.redaction import Redactor, secrets_in
    from tidelog.config.properties import read_properties

    path = Path(to or time.strftime("tidelog-bundle-%Y%m%d-%H%M%S.zip", time.gmtime()))
    if not path.name.endswith((".zip", ".tar.gz", ".tgz")):
        raise WrongUsage(f"--to is {to}; expected a name that ends with .zip, .tar.gz or .tgz", ctx)
    with failing():
        since_ms, length, _ = parse_time(since, round(time.time() * 1000))
        if length != len(since):
            raise ValueError(f"--since is {since!r}; expected one time")
        settings = settings_from(command_config, bootstrap_servers=bootstrap_server)
        files: dict[str, dict[str, object]] = {name: dict(read_properties(name)) for name in broker_configs}
        known = [secret for each in (settings, *files.values()) for secret in secrets_in(each)]
        known += [value for name, value in os.environ.items() if "PASSWORD" in name or "SECRET" in name]
        with (
            Archive(path, Redactor(known)) as archive,
            open_admin(bootstrap_server, command_config, timeout_ms=TIMEOUT_MS) as admin,
        ):
            collector = Collector(archive, admin)
            collector.machine(settings)
            collector.broker_files(files)
            collector.logs(logs, since_ms)
            answered = collector.cluster()
            collector.metrics(metrics, metrics_interval)
            failed = collector.finish()
    click.echo(
        f"{path}: {archive.count} files" + (f", {failed} parts are missing: errors.txt" if failed else "")
    )
    if not answered:
        servers = settings["bootstrap.servers"]  # of the file, if no flag names others
        click.echo(f"tidelog: no broker answered at {servers}: the cluster is not in it", err=True)
        ctx.exit(1)
