"""`tidelog cluster cluster-id`, `unregister` and `list-endpoints`: the commands of kafka-cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import KafkaStyleCommand, WrongUsage, bootstrap_server, brief_words, switch, valued
from tidelog.cli.output import connected_admin, output_option, print_json
from tidelog.errors import KafkaError, UnsupportedVersion

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, ClusterDescription
    from tidelog.clients.metadata import BrokerNode

RACK_WIDTH = 10  # of the column if no broker has a rack

config = valued("--config", "FILE", "A properties file with settings of the connection.")


@contextmanager
def admin_of(bootstrap: str, config_file: str | None) -> Iterator[Admin]:
    """An admin client whose errors end the tool with one line and 1."""
    try:
        with connected_admin(bootstrap, config_file) as admin:
            yield admin
    except BrokenPipeError:
        raise
    except KafkaError as error:
        raise click.ClickException(brief_words(error)) from None
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None


@click.command(cls=KafkaStyleCommand)
@bootstrap_server
@config
@output_option
def cluster_id(bootstrap_server: str, config: str | None, output: str) -> None:
    """Print the id of the cluster."""
    with admin_of(bootstrap_server, config) as admin:
        found = admin.describe_cluster().cluster_id
    if output == "json":
        print_json({"cluster_id": found})
    else:
        click.echo(f"Cluster ID: {found}")


@click.command(cls=KafkaStyleCommand)
@bootstrap_server
@config
@valued("--id", "ID", "The broker that will not come back; required.", int)
@click.pass_context
def unregister(ctx: click.Context, bootstrap_server: str, config: str | None, id: int | None) -> None:
    """Remove a broker from a KRaft cluster.

    On ZooKeeper the registration of a broker ends with its session.
    """
    if id is None:
        raise WrongUsage("--id must be specified", ctx)
    with admin_of(bootstrap_server, config) as admin:
        try:
            admin.unregister_broker(id)
        except UnsupportedVersion:
            click.echo("The target cluster does not support the broker unregistration API.")
            return
    click.echo(f"Broker {id} is no longer registered.")


@click.command(cls=KafkaStyleCommand)
@bootstrap_server
@config
@switch("--include-fenced-brokers", "Also list brokers that are registered and do not take part.")
@output_option
def list_endpoints(
    bootstrap_server: str, config: str | None, include_fenced_brokers: bool, output: str
) -> None:
    """Print the addresses of the brokers."""
    with admin_of(bootstrap_server, config) as admin:
        try:
            found = admin.describe_cluster(include_fenced_brokers=include_fenced_brokers)
        except UnsupportedVersion as error:
            click.echo(str(error))
            return
    if output == "json":
        print_json([endpoint_as_json(node, found) for node in found.nodes])
        return
    for line in endpoint_lines(found):
        click.echo(line)


def state_of(node: BrokerNode, found: ClusterDescription) -> str:
    return "fenced" if node.id in found.fenced else "unfenced"


def endpoint_as_json(node: BrokerNode, found: ClusterDescription) -> dict[str, object]:
    return {
        "id": node.id,
        "host": node.host,
        "port": node.port,
        "rack": node.rack,
        "state": state_of(node, found),
    }


def endpoint_lines(found: ClusterDescription) -> list[str]:
    """A table whose columns for host and rack are as wide as the widest one."""
    if not found.nodes:
        return []
    host_width = max(len(node.host) for node in found.nodes)
    rack_width = max((len(node.rack) for node in found.nodes if node.rack), default=RACK_WIDTH)

    def line(*cells: object) -> str:
        broker, host, port, rack, state, kind = map(str, cells)
        return f"{broker:<10} {host:<{host_width}} {port:<10} {rack:<{rack_width}} {state:<10} {kind:<15}"

    rows = [
        line(node.id, node.host, node.port, node.rack or "null", state_of(node, found), "broker")
        for node in sorted(found.nodes, key=lambda node: node.id)
    ]
    return [line("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"), *rows]
