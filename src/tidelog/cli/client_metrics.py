"""`tidelog client-metrics`: which metrics clients push, with the flags of kafka-client-metrics."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import KafkaStyleCommand, WrongUsage, bootstrap_server, brief_words, switch, valued
from tidelog.cli.output import connected_admin, output_option, print_json
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin

SETTINGS = ("interval.ms", "match", "metrics")


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@switch("--alter", "Create or change a subscription.")
@switch("--delete", "Delete a subscription.")
@switch("--describe", "Print the settings of a subscription, or of all.")
@click.option("--list", "listing", is_flag=True, help="Print the names of the subscriptions.")
@valued("--name", "NAME", "The name of the subscription.")
@switch("--generate-name", "Give a new subscription a random name.")
@valued("--interval", "MS", "How often clients push: 100 to 3600000 ms; empty for the default.")
@valued("--match", "KEY=PATTERN,...", "The clients, such as client_id=app.*; empty for all.")
@valued("--metrics", "PREFIX,...", "The beginnings of names of metrics, * for all; empty for none.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def client_metrics(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: str | None,
    alter: bool,
    delete: bool,
    describe: bool,
    listing: bool,
    name: str | None,
    generate_name: bool,
    interval: str | None,
    match: str | None,
    metrics: str | None,
    output: str,
) -> None:
    """Show and change which metrics clients push to the brokers."""
    given = {"interval.ms": interval, "match": match, "metrics": metrics}
    changes = {setting: value for setting, value in given.items() if value is not None}
    if [alter, delete, describe, listing].count(True) != 1:
        raise WrongUsage("expected one of --alter, --delete, --describe and --list", ctx)
    if alter and generate_name == (name is not None):
        raise WrongUsage("--alter needs one of --name and --generate-name", ctx)
    if delete and name is None:
        raise WrongUsage("--delete needs --name", ctx)
    if listing and name is not None:
        raise WrongUsage("--list does not go with --name", ctx)
    if not alter and (changes or generate_name):
        raise WrongUsage("--interval, --match, --metrics and --generate-name need --alter", ctx)
    try:
        with connected_admin(bootstrap_server, command_config) as admin:
            if alter:
                change(admin, name if name is not None else random_name(), changes)
            elif delete:
                change(admin, name or "", dict.fromkeys(SETTINGS, ""), "Deleted")
            elif listing:
                show_names(admin.list_client_metrics_resources(), output)
            else:
                show(admin, name, output)
    except KafkaError as error:
        words = f"Error while executing client metrics command : {brief_words(error)}"
        click.echo(words, err=output != "text")
        ctx.exit(1)
    except (OSError, ValueError) as error:
        click.echo(f"Error while executing client metrics command : {error}", err=output != "text")
        ctx.exit(1)


def random_name() -> str:
    from tidelog.protocol.wire import uuid_to_text

    return uuid_to_text(os.urandom(16))


def change(admin: Admin, name: str, changes: dict[str, str], done: str = "Altered") -> None:
    """Set settings; an empty value means the default."""
    from tidelog.clients.admin import AlterConfigOp, ConfigResource, OpType, ResourceType

    operations = [
        AlterConfigOp(setting, value) if value else AlterConfigOp(setting, "", OpType.DELETE)
        for setting, value in changes.items()
    ]
    admin.incremental_alter_configs({ConfigResource(ResourceType.CLIENT_METRICS, name): operations})
    click.echo(f"{done} client metrics config for {name}.")


def show_names(names: list[str], output: str) -> None:
    if output == "json":
        print_json(sorted(names))
        return
    for name in sorted(names):
        click.echo(name)


def show(admin: Admin, name: str | None, output: str) -> None:
    from tidelog.clients.admin import ConfigResource, ResourceType

    known = sorted(admin.list_client_metrics_resources())
    if name is not None and name not in known:
        if output == "json":
            print_json({})
        else:
            click.echo(f"The client metric resource {name} doesn't exist and doesn't have dynamic config.")
        return
    resources = [ConfigResource(ResourceType.CLIENT_METRICS, each) for each in known if name in (None, each)]
    described = admin.describe_configs(resources) if resources else {}
    settings = {
        resource.name: {entry.name: entry.value for entry in described[resource].values()}
        for resource in resources
    }
    if output == "json":
        print_json(settings)
        return
    for each, entries in settings.items():
        click.echo(f"Client metrics configs for {each} are:")
        for setting, value in entries.items():
            click.echo(f"  {setting}={value}")
