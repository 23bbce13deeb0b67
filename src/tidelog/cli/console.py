"""`tidelog console`: serves the console for any Kafka clusters, until Ctrl-C.

Exit codes: 0 after Ctrl-C or SIGTERM, 1 if it cannot start, 2 for wrong flags.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from tidelog.cli.output import failing, settings_from
from tidelog.cli.stop_signals import StopAsked, stop_signals

if TYPE_CHECKING:
    from tidelog.console.access import Access
    from tidelog.console.clusters import Clusters


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--bootstrap-server",
    "bootstrap_server",
    metavar="HOST:PORT[,HOST:PORT]",
    help="Brokers of the cluster; it is named `cluster`.",
)
@click.option(
    "--cluster",
    "named",
    multiple=True,
    metavar="NAME=HOST:PORT[,HOST:PORT]",
    help="A named cluster; may be repeated: each has a colour.",
)
@click.option(
    "--command-config",
    "command_config",
    multiple=True,
    metavar="[NAME=]FILE",
    help="A file with client settings, for all clusters or for the one of this name; may be repeated.",
)
@click.option(
    "--listener",
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the console answers; port 0 takes any free port.",
)
@click.option(
    "--rules-file",
    metavar="FILE",
    help="A JSON file with decoders, schema files and masking rules of topics.",
)
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option("--access-config", metavar="FILE", default="", help="A TOML file with logins and roles.")
@click.option(
    "--pipelines", multiple=True, metavar="DIR", help="A data folder of pipelines to show; may be repeated."
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Another name under which the console answers (*.example.com: those below one); may be repeated.",
)
@click.pass_context
def console(
    ctx: click.Context,
    bootstrap_server: str | None,
    named: tuple[str, ...],
    command_config: tuple[str, ...],
    listener: str,
    rules_file: str | None,
    read_only: bool,
    access_config: str,
    pipelines: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
) -> None:
    """Serve web pages and a JSON API for Kafka clusters; Ctrl-C stops it."""
    from tidelog.console.extra import missing_packages

    if missing := missing_packages():
        click.echo(f"tidelog: {missing}", err=True)
        ctx.exit(1)
    addresses = _addresses(bootstrap_server, named)
    files = _files(command_config, addresses)
    host, _, port = listener.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise click.UsageError(f"--listener {listener}: expected HOST:PORT")
    with failing():
        settings = {
            name: settings_from(files.get(name, files.get("")), (), bootstrap_servers=address)
            for name, address in addresses.items()
        }
        from tidelog.console.access import Access
        from tidelog.console.access_file import read_settings

        access = Access(read_only=read_only, settings=read_settings(access_config))
        address = host.strip("[]") or "127.0.0.1", int(port)
        _serve(address, settings, access, pipelines, rules_file, allowed_hosts)


def _serve(
    address: tuple[str, int],
    settings: Mapping[str, Mapping[str, object]],
    access: Access,
    pipelines: tuple[str, ...],
    rules_file: str | None,
    allowed_hosts: tuple[str, ...],
) -> None:
    from tidelog.console.clusters import COLOURS, Cluster, Clusters
    from tidelog.console.records.rules import RecordRules
    from tidelog.console.server import ConsoleServer

    def make_clusters() -> Clusters:
        return Clusters(
            [
                Cluster(name, of_cluster, colour=COLOURS[at % len(COLOURS)], pipelines=pipelines)
                for at, (name, of_cluster) in enumerate(settings.items())
            ]
        )

    rules = None if rules_file is None else RecordRules.load(rules_file)
    server = ConsoleServer(*address, make_clusters, access, rules=rules, allowed_hosts=allowed_hosts)
    try:
        with stop_signals():
            server.start()
            click.echo(f"The console answers at {server.url}. Ctrl-C stops it.")
            threading.Event().wait()
    except StopAsked:
        pass
    finally:
        server.close()


def _addresses(bootstrap_server: str | None, named: tuple[str, ...]) -> dict[str, str]:
    """The bootstrap servers of each cluster by name."""
    found = {} if bootstrap_server is None else {"cluster": bootstrap_server}
    for text in named:
        name, equals, address = text.partition("=")
        if not equals or not name or not address or not name.isprintable() or "/" in name:
            raise click.UsageError(f"--cluster {text}: expected NAME=HOST:PORT, a name without a slash")
        if name in found:
            raise click.UsageError(f"--cluster {text}: there are two clusters of this name")
        found[name] = address
    if not found:
        raise click.UsageError("name a cluster: --bootstrap-server HOST:PORT or --cluster NAME=HOST:PORT")
    return found


def _files(given: tuple[str, ...], addresses: Mapping[str, str]) -> dict[str, str]:
    """The file of settings of each cluster; "" for the clusters that have none of their own."""
    files: dict[str, str] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if equals and name in addresses:
            files[name] = file
        else:
            files[""] = text
    return files
