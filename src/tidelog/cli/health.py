"""`tidelog health`: whether a cluster is well, and what is wrong if it is not; exit code 10 tells scripts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import bootstrap_server, switch, valued
from tidelog.cli.output import failing, open_admin, output_option, print_json, tool_command
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.cli.cluster_health import ClusterHealth

UNHEALTHY = 10  # rpk's exit code
DEFAULT_INTERVAL = 2.0
TIMEOUT_MS = 10_000


@tool_command("health")
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@click.option("-w", "--watch", is_flag=True, help="Look again and again, and print every change.")
@switch("--exit-when-healthy", "Watch until the cluster is healthy.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=DEFAULT_INTERVAL,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option(
    "--disk-free",
    type=click.FloatRange(0, 100),
    default=10.0,
    show_default=True,
    help="The percentage of a disk below which it counts as nearly full.",
)
@output_option
@click.pass_context
def health(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: str | None,
    watch: bool,
    exit_when_healthy: bool,
    interval: float,
    disk_free: float,
    output: str,
) -> None:
    """Print whether the cluster is healthy, with the reasons if it is not: then the exit code is 10."""
    from tidelog.cli.cluster_health import ask_health

    code = 0
    with failing(), open_admin(bootstrap_server, command_config, timeout_ms=TIMEOUT_MS) as admin:
        if not (watch or exit_when_healthy):
            admin.connect()  # fails at once if no broker answers
        before: ClusterHealth | None = None
        while True:
            try:
                found = ask_health(admin, disk_free)
            except KafkaError as error:
                if not (watch or exit_when_healthy):
                    raise
                found = no_answer(str(error))  # who watches wants to see the cluster come back
            if found != before:
                show(found, output)
            before, code = found, 0 if found.healthy else UNHEALTHY
            if not (watch or exit_when_healthy) or (exit_when_healthy and found.healthy):
                break
            time.sleep(interval)
    ctx.exit(code)


def no_answer(words: str) -> ClusterHealth:
    """The health of a cluster that does not answer."""
    from tidelog.cli.cluster_health import ClusterHealth, Reason

    return ClusterHealth("unknown", None, (), 0, 0, (Reason("no-answer", words),))


def show(found: ClusterHealth, output: str) -> None:
    if output != "text":
        print_json(found.as_json())
        return
    click.echo(f"{'healthy' if found.healthy else 'unhealthy'}: {found.summary()}")
    for reason in found.reasons:
        click.echo(f"  {reason.text()}")
