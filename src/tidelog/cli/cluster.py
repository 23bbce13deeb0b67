"""`tidelog cluster`: runs brokers on this machine, shows the state of any cluster, and is kafka-cluster.

Exit codes of `start`: 0 after Ctrl-C or SIGTERM, 1 if a process cannot start or a broker was lost meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tidelog.cli.cluster_tool import cluster_id, list_endpoints, unregister
from tidelog.cli.flags import bootstrap_server, brief_words, valued
from tidelog.cli.output import connected_admin, output_option, print_json
from tidelog.cli.start import parse_override
from tidelog.cli.stop_signals import StopAsked, ignore_stop_signals, stop_signals
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.cli.cluster_status import ClusterStatus
    from tidelog.security.security_folder import SecurityFolder
    from tidelog.server.cluster_processes import BrokerProcess, LocalCluster

PER_CORE = "auto"

OWN_SETTINGS = ("broker.id", "node.id", "log.dir", "log.dirs")
"""Settings that no two brokers of a machine share."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cluster() -> None:
    """Run several brokers on this machine, and show the state of a cluster."""


cluster.add_command(cluster_id, "cluster-id")
cluster.add_command(unregister)
cluster.add_command(list_endpoints, "list-endpoints")


def _count(_ctx: click.Context, _option: click.Parameter, value: str) -> int:
    if value == PER_CORE:
        from tidelog.server.cluster_processes import brokers_for_this_machine

        return brokers_for_this_machine()
    if not value.isdecimal() or not 1 <= int(value) <= 100:
        raise click.BadParameter(f"{value!r}: expected a number from 1 to 100, or {PER_CORE}")
    return int(value)


@cluster.command()
@click.option(
    "--brokers",
    default="3",
    show_default=True,
    callback=_count,
    help=f"The number of brokers; {PER_CORE} means one for each core.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tidelog-cluster"),
    show_default=True,
    help="The folder with a folder for ZooKeeper and for each broker.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65000),
    default=9092,
    show_default=True,
    help="The port of the first broker, the others follow; 0 lets the system choose all ports.",
)
@click.option(
    "--zookeeper-port",
    type=click.IntRange(1, 65535),
    help="ZooKeeper's port (default 2181; with --port 0 one that the system chooses).",
)
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of all brokers; may be repeated.",
)
@click.option(
    "--log-level",
    type=click.Choice(["TRACE", "DEBUG", "INFO", "WARN", "ERROR"], case_sensitive=False),
    help="The level of the brokers' logs (default INFO).",
)
@click.option(
    "--security",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Use TLS, SCRAM and ACLs with the files that tidelog security init made in DIR.",
)
@click.pass_context
def start(
    ctx: click.Context,
    brokers: int,
    data: Path,
    port: int,
    zookeeper_port: int | None,
    overrides: tuple[str, ...],
    log_level: str | None,
    security: Path | None,
) -> None:
    """Run ZooKeeper and several brokers on this machine.

    They run until Ctrl-C. The brokers have the ids 1, 2, 3 and so on, and the name of this machine as
    broker.rack. A broker that ends is named, and the others go on.
    """
    from tidelog.security.security_folder import SecurityFolder
    from tidelog.server.cluster_processes import ClusterFailed, LocalCluster, LocalClusterOptions

    settings = dict(map(parse_override, overrides))
    for name in OWN_SETTINGS:
        if name in settings:
            raise click.BadParameter(f"{name}: each broker has its own", param_hint="--override")
    folder = None if security is None else SecurityFolder(security)
    if folder is not None and ctx.get_parameter_source("brokers") is ParameterSource.DEFAULT:
        brokers = folder.broker_count()
    local = LocalCluster(
        LocalClusterOptions(brokers, data, port, zookeeper_port, settings, log_level, folder)
    )
    lost: list[int] = []

    def name_lost(broker: BrokerProcess) -> None:
        lost.append(broker.broker_id)
        click.echo(f"tidelog: {broker.obituary()}", err=True)

    try:
        with stop_signals():
            _run(local, folder, name_lost)
    except StopAsked:
        ignore_stop_signals()
        local.name_ended(name_lost)
        local.stop()
    except ClusterFailed as error:
        ignore_stop_signals()
        local.stop()
        raise click.ClickException(str(error)) from None
    if lost:
        raise click.ClickException(f"brokers that ended by themselves: {', '.join(map(str, lost))}")


def _run(
    local: LocalCluster, security: SecurityFolder | None, name_lost: Callable[[BrokerProcess], None]
) -> None:
    for number, broker in enumerate(local.start()):
        if number == 0:
            click.echo(f"  ZooKeeper  {local.zookeeper.address:<22} {local.zookeeper.data_dir}")
        click.echo(f"  broker {broker.broker_id:<3} {broker.address:<22} {broker.folder}")
    first = local.brokers[0].address
    config = "" if security is None else f" --command-config {security.admin_properties}"
    click.echo(f"\n  status     tidelog cluster status --bootstrap-server {first}{config}")
    click.echo("  Ctrl-C stops all of them cleanly.")
    local.wait(name_lost)


@cluster.command()
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@output_option
def status(bootstrap_server: str, command_config: str | None, output: str) -> None:
    """Show the brokers, and the partitions that need attention.

    These are the partitions without a leader and those with replicas out of sync.
    """
    from tidelog.cli.cluster_status import cluster_status

    try:
        with connected_admin(bootstrap_server, command_config) as admin:
            found = cluster_status(admin)
    except KafkaError as error:
        raise click.ClickException(brief_words(error)) from None
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if output == "json":
        print_json(found.as_json())
    else:
        _print_status(found)


def _print_status(found: ClusterStatus) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("broker", justify="right")
    table.add_column("address")
    table.add_column("rack")
    for name in ("leaders", "replicas", "out of sync"):
        table.add_column(name, justify="right")
    table.add_column("")
    for broker in found.brokers:
        table.add_row(
            str(broker.broker_id),
            Text(broker.address or "not running"),
            Text(broker.rack or ""),
            *(f"{count:,}" for count in (broker.leaders, broker.replicas, broker.out_of_sync)),
            "controller" if broker.broker_id == found.controller else "",
        )
    console = Console(highlight=False)
    console.print(table)
    for line in found.lines():
        click.echo(line)
