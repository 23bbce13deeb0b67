"""`tidelog groups`: lists the groups of every type, with the flags and output of kafka-groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import (
    KafkaStyleCommand,
    WrongUsage,
    bootstrap_server,
    brief_words,
    switch,
    valued,
)
from tidelog.cli.output import connected_admin, output_option, print_json
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.clients.admin import GroupListing

CONSUMER_PROTOCOL = "consumer"
KINDS = ("classic", "consumer", "share", "streams")


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@click.option("--list", "listing", is_flag=True, help="Print the groups.")
@valued("--group-type", "TYPE", f"Only groups of a type: {', '.join(KINDS)}.")
@valued("--protocol", "PROTOCOL", "Only groups of a protocol, such as consumer or connect.")
@switch("--consumer", "Only groups of consumers: of that type or protocol, or with offsets only.")
@switch("--share", "Only share groups.")
@switch("--streams", "Only streams groups.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def groups(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: str | None,
    listing: bool,
    group_type: str | None,
    protocol: str | None,
    consumer: bool,
    share: bool,
    streams: bool,
    output: str,
) -> None:
    """List all groups with their type and protocol."""
    if not listing:
        raise WrongUsage("expected --list", ctx)
    chosen = {
        "--consumer": consumer,
        "--share": share,
        "--streams": streams,
        "--group-type": group_type is not None,
        "--protocol": protocol is not None,
    }
    given = [name for name, wanted in chosen.items() if wanted]
    if len(given) > 1 and (consumer or share or streams):
        raise WrongUsage(f"{given[0]} does not go with {given[1]}", ctx)
    if group_type is not None and group_type.lower() not in KINDS:
        raise WrongUsage(f"--group-type is {group_type!r}; expected one of {', '.join(KINDS)}", ctx)
    kind = "share" if share else "streams" if streams else group_type
    try:
        with connected_admin(bootstrap_server, command_config) as admin:
            found = admin.list_groups()
    except KafkaError as error:
        click.echo(f"Error while executing groups command : {brief_words(error)}", err=output != "text")
        ctx.exit(1)
    except (OSError, ValueError) as error:
        click.echo(f"Error while executing groups command : {error}", err=output != "text")
        ctx.exit(1)
    chosen_groups = [group for group in found if wanted_group(group, kind, protocol, consumer)]
    if output == "json":
        print_json(
            [
                {
                    "group": group.group_id,
                    "type": group.type,
                    "protocol": group.protocol,
                    "state": group.state,
                }
                for group in chosen_groups
            ]
        )
    else:
        print_groups(chosen_groups)


def wanted_group(group: GroupListing, kind: str | None, protocol: str | None, consumer: bool) -> bool:
    if consumer:
        return group.protocol in ("", CONSUMER_PROTOCOL) or group.type.lower() == "consumer"
    return (kind is None or group.type.lower() == kind.lower()) and protocol in (None, group.protocol)


def print_groups(found: list[GroupListing]) -> None:
    lines = [(group.group_id, group.type.capitalize(), group.protocol) for group in found]
    width = max([20, *(len(item) for line in lines for item in line)])
    click.echo(f"{'GROUP':<{width}} {'TYPE':<{width}} {'PROTOCOL':<{width}}")
    for group_id, kind, protocol in lines:
        click.echo(f"{group_id:<{width}} {kind:<{width}} {protocol:<{width}} ")
