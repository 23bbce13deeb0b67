"""`tidelog broker-api-versions`: the APIs and versions that brokers serve, as kafka-broker-api-versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import bootstrap_server, valued
from tidelog.cli.output import connected_admin, failing, output_option, print_json, tool_command

if TYPE_CHECKING:
    from tidelog.clients.admin import VersionRange
    from tidelog.clients.metadata import BrokerNode


@tool_command("broker-api-versions")
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the client.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def broker_api_versions(
    ctx: click.Context, bootstrap_server: str, command_config: str | None, output: str
) -> None:
    """Print the APIs and versions of each broker, and the newest version that our clients support too."""
    found: list[tuple[BrokerNode, bool, dict[int, VersionRange]]] = []
    with failing(), connected_admin(bootstrap_server, command_config) as admin:
        cluster = admin.describe_cluster()
        for node in cluster.nodes:
            found.append((node, node.id in cluster.fenced, admin.describe_api_versions(node.id)))
    if output == "json":
        print_json([as_json(node, versions) for node, _, versions in found])
        return
    for node, fenced, versions in found:
        click.echo(as_text(node, fenced, versions))


def client_apis() -> list[int]:
    """The APIs that clients use, without the APIs between brokers."""
    from tidelog.protocol.api import API, ZOOKEEPER_ONLY, ApiKey

    among_brokers = {ApiKey.ALTER_PARTITION, ApiKey.ENVELOPE, ApiKey.ALLOCATE_PRODUCER_IDS}
    return [key for key in API if key not in ZOOKEEPER_ONLY and key not in among_brokers]


def as_text(node: BrokerNode, fenced: bool, versions: dict[int, VersionRange]) -> str:
    rack = "null" if node.rack is None else node.rack
    keys = sorted({*client_apis(), *versions})
    lines = ",\n\t".join(line(key, versions.get(key)) for key in keys)
    return f"{node.address} (id: {node.id} rack: {rack} isFenced: {str(fenced).lower()}) -> (\n\t{lines}\n)"


def line(key: int, served: VersionRange | None) -> str:
    from tidelog.protocol.api import API

    info = API.get(key)
    name = f"{'UNKNOWN' if info is None else info.name}({key})"
    if served is None:
        return f"{name}: UNSUPPORTED"
    text = str(served.low) if served.low == served.high else f"{served.low} to {served.high}"
    if info is None:
        return f"{name}: {text}"
    usable = min(served.high, info.stable_max_version)
    if usable >= max(served.low, info.min_version):
        return f"{name}: {text} [usable: {usable}]"
    return f"{name}: {text} [unusable: node too {'old' if served.high < info.min_version else 'new'}]"


def as_json(node: BrokerNode, versions: dict[int, VersionRange]) -> dict[str, object]:
    from tidelog.protocol.api import API

    apis = [
        {
            "key": key,
            "name": API[key].name if key in API else None,
            "min": served.low,
            "max": served.high,
            "usable": min(served.high, API[key].stable_max_version) if key in API else None,
        }
        for key, served in sorted(versions.items())
    ]
    return {"id": node.id, "host": node.host, "port": node.port, "rack": node.rack, "apis": apis}
