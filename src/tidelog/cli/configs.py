"""`tidelog configs`: settings of topics, brokers, groups, users, clients and addresses, as kafka-configs."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tidelog.cli.configs_describe import describe
from tidelog.cli.flags import (
    WrongUsage,
    bootstrap_server,
    error_text,
    switch,
    valued,
    zk_tls_config_file,
)
from tidelog.cli.output import open_admin, output_option, tool_command
from tidelog.config import ConfigError
from tidelog.config.properties import read_properties
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin

TYPES = ("topics", "clients", "users", "brokers", "broker-loggers", "ips", "client-metrics", "groups")
WITH_DEFAULT = ("users", "clients", "brokers", "ips")
# The short flags: the type of their entity, and whether they mean its default.
SHORT = {
    "topic": "topics",
    "client": "clients",
    "user": "users",
    "broker": "brokers",
    "broker_logger": "broker-loggers",
    "ip": "ips",
    "client_metrics": "client-metrics",
    "group": "groups",
}
DEFAULTS = {
    "client_defaults": "clients",
    "user_defaults": "users",
    "broker_defaults": "brokers",
    "ip_defaults": "ips",
}
SCRAM = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
SCRAM_ITERATIONS = 4096
QUOTAS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
QUOTA_TYPES = {"users": "user", "clients": "client-id", "ips": "ip"}
# Commas and equals signs between [ and ] belong to a value.
OUTSIDE = r"(?=[^\]]*(?:\[|$))"


@dataclass(slots=True, frozen=True)
class Entity:
    """The owner of settings; the name "" means the default of the type, None means all of the type."""

    type: str
    name: str | None


@tool_command("configs")
@bootstrap_server
@valued("--bootstrap-controller", "HOST:PORT[,...]", "Not served: the tool connects to brokers only.")
@valued("--zookeeper", "HOST:PORT[,...]", "Change SCRAM credentials of users without a broker.")
@zk_tls_config_file
@valued("--command-config", "FILE", "A properties file with settings of the client.")
@switch("--describe", "Print settings.")
@switch("--alter", "Change settings.")
@switch("--all", "Describe unchanged settings, too.")
@click.option("--entity-type", metavar="TYPE", multiple=True, help=f"One of {', '.join(TYPES)}.")
@click.option("--entity-name", metavar="NAME", multiple=True, help="A topic, client, user, broker and so on.")
@click.option(
    "--entity-default", is_flag=True, help="The default of all users, clients, brokers or addresses."
)
@valued("--topic", "NAME", "The settings of a topic.")
@valued("--client", "ID", "The quotas of a client id.")
@valued("--user", "NAME", "The quotas and passwords of a user.")
@valued("--broker", "ID", "The settings of a broker.")
@valued("--broker-logger", "ID", "The log levels of a broker.")
@valued("--ip", "ADDRESS", "The quotas of an address.")
@valued("--client-metrics", "NAME", "A subscription of client metrics.")
@valued("--group", "ID", "The settings of a group.")
@switch("--client-defaults", "The default of all clients.")
@switch("--user-defaults", "The default of all users.")
@switch("--broker-defaults", "The default of all brokers.")
@switch("--ip-defaults", "The default of all addresses.")
@valued("--add-config", "NAME=VALUE,...", "Settings to set; NAME=[A,B] for values with commas.")
@valued("--add-config-file", "FILE", "A properties file with settings to set.")
@click.option("--delete-config", metavar="NAME,...", multiple=True, help="Settings to delete.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def configs(ctx: click.Context, /, **flags: object) -> None:
    """Describe and change settings while brokers run."""
    entities = check(ctx, flags)
    bootstrap = str(flags["bootstrap_server"])
    file = flags["command_config"]
    try:
        if flags["zookeeper"] is not None:
            in_zookeeper(str(flags["zookeeper"]), entities, flags)
            return
        with open_admin(bootstrap, None if file is None else str(file)) as admin:
            admin.connect()
            if flags["describe"]:
                describe(
                    admin, [(e.type, e.name) for e in entities], bool(flags["all"]), str(flags["output"])
                )
            else:
                alter(admin, entities, added(flags), deleted(flags))
    except (ValueError, ConfigError) as error:
        click.echo(str(error), err=True)
        ctx.exit(1)
    except KafkaError as error:
        click.echo(f"Error while executing config command: {error_text(error)}", err=True)
        ctx.exit(1)


def in_zookeeper(connect: str, entities: list[Entity], flags: dict[str, object]) -> None:
    import asyncio

    from tidelog.cli.configs_zookeeper import run
    from tidelog.cli.zookeeper_settings import zookeeper_settings
    from tidelog.metadata.tree import TreeError, TreeUnavailable

    file = flags["zk_tls_config_file"]
    try:
        settings = zookeeper_settings(None if file is None else str(file))
        work = run(connect, settings, entities, added(flags), deleted(flags), alters=bool(flags["alter"]))
        asyncio.run(work)
    except (TreeError, TreeUnavailable) as error:
        raise ValueError(str(error)) from None


def check(ctx: click.Context, flags: dict[str, object]) -> list[Entity]:
    """The entities of the flags. Raises WrongUsage if the flags do not go together."""
    if flags["bootstrap_controller"] is not None:
        raise WrongUsage("--bootstrap-controller is not served: use --bootstrap-server", ctx)
    if bool(flags["describe"]) == bool(flags["alter"]):
        raise WrongUsage("expected one of --describe and --alter", ctx)
    entities = entities_of(ctx, flags)
    if flags["zk_tls_config_file"] is not None and flags["zookeeper"] is None:
        raise WrongUsage("--zk-tls-config-file goes with --zookeeper alone", ctx)
    types = [entity.type for entity in entities]
    if not types:
        raise WrongUsage("expected --entity-type, or --topic, --broker, --user and so on", ctx)
    if len(types) > 1 and set(types) != {"users", "clients"}:
        raise WrongUsage("Only 'users' and 'clients' entity types may be specified together", ctx)
    if flags["alter"]:
        if not (flags["add_config"] or flags["add_config_file"] or flags["delete_config"]):
            raise WrongUsage(
                "At least one of --add-config, --add-config-file, or --delete-config must be specified with "
                "--alter",
                ctx,
            )
        if flags["add_config"] and flags["add_config_file"]:
            raise WrongUsage("--add-config does not go with --add-config-file", ctx)
        if any(entity.name is None for entity in entities):
            raise WrongUsage("An entity name must be specified for every entity type", ctx)
    if flags["entity_default"] or any(entity.name == "" for entity in entities):
        for entity in entities:
            if entity.name == "" and entity.type not in WITH_DEFAULT:
                raise WrongUsage(f"--entity-default does not go with {entity.type}", ctx)
    for entity in entities:
        if entity.type in ("brokers", "broker-loggers") and entity.name and not entity.name.isdigit():
            raise WrongUsage(f"the broker {entity.name!r}: expected its number", ctx)
        if entity.type == "ips" and entity.name and not resolves(entity.name):
            raise WrongUsage(f"{entity.name!r} is neither an address nor a host that can be resolved", ctx)
    return entities


def resolves(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def entities_of(ctx: click.Context, flags: dict[str, object]) -> list[Entity]:
    types, names = flags["entity_type"], flags["entity_name"]
    assert isinstance(types, tuple)
    assert isinstance(names, tuple)
    short = [Entity(kind, str(flags[flag])) for flag, kind in SHORT.items() if flags[flag] is not None]
    short += [Entity(kind, "") for flag, kind in DEFAULTS.items() if flags[flag]]
    if types and short:
        raise WrongUsage("--entity-type does not go with --topic, --broker, --user and so on", ctx)
    if short:
        if names or flags["entity_default"]:
            raise WrongUsage("--entity-name and --entity-default need --entity-type", ctx)
        return short
    for kind in types:
        if kind not in TYPES:
            raise WrongUsage(f"--entity-type is {kind!r}; expected one of {', '.join(TYPES)}", ctx)
    given: list[str | None] = [*names]
    if flags["entity_default"]:
        given.append("")
    if len(given) > len(types):
        raise WrongUsage("there are more names than --entity-type", ctx)
    given += [None] * (len(types) - len(given))
    return [Entity(kind, name) for kind, name in zip(types, given, strict=True)]


def added(flags: dict[str, object]) -> dict[str, str]:
    if flags["add_config_file"] is not None:
        return read_properties(str(flags["add_config_file"]))
    text = flags["add_config"]
    return {} if text is None else parse_configs(str(text))


def parse_configs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in re.split("," + OUTSIDE, text):
        pair = re.split(r"\s*=\s*" + OUTSIDE, part)
        if len(pair) != 2:
            raise ValueError(
                'Invalid entity config: all configs to be added must be in the format "key=val" or '
                '"key=[val1,val2]" to group values which contain commas.'
            )
        found[pair[0].strip()] = pair[1].replace("[", "").replace("]", "").strip()
    for name in found:
        if not re.fullmatch(r"[a-zA-Z0-9._-]*", name):
            raise ValueError(f"Invalid character found for config key: {name}")
    return found


def deleted(flags: dict[str, object]) -> list[str]:
    texts = flags["delete_config"]
    assert isinstance(texts, tuple)
    return [name.strip() for text in texts for name in str(text).split(",") if name.strip()]


def alter(admin: Admin, entities: list[Entity], add: dict[str, str], remove: list[str]) -> None:
    first = entities[0]
    if first.type in QUOTA_TYPES:
        alter_users(admin, entities, add, remove)
    else:
        alter_resource(admin, first, add, remove)
    if first.name:
        click.echo(f"Completed updating config for {first.type[:-1]} {first.name}.")
    else:
        click.echo(f"Completed updating default config for {first.type} in the cluster.")


def alter_resource(admin: Admin, entity: Entity, add: dict[str, str], remove: Iterable[str]) -> None:
    from tidelog.cli.configs_describe import RESOURCES
    from tidelog.clients.admin import AlterConfigOp, ConfigResource, OpType, ResourceType

    resource = ConfigResource(ResourceType[RESOURCES[entity.type]], entity.name or "")
    if entity.type == "broker-loggers":
        known = admin.describe_configs([resource])[resource]
        unknown = [name for name in (*remove, *add) if name not in known]
        if unknown:
            raise ValueError(f"Invalid broker logger(s): {','.join(unknown)}")
    changes = [AlterConfigOp(name, value) for name, value in add.items()]
    changes += [AlterConfigOp(name, "", OpType.DELETE) for name in remove]
    admin.incremental_alter_configs({resource: changes})


def alter_users(admin: Admin, entities: list[Entity], add: dict[str, str], remove: list[str]) -> None:
    kind = entities[0].type
    passwords = [name for name in (*add, *remove) if name in SCRAM]
    known = ("connection_creation_rate",) if kind == "ips" else QUOTAS
    unknown = [name for name in (*add, *remove) if name not in known and name not in SCRAM]
    only_users = len(entities) == 1 and kind == "users"
    if unknown or (passwords and not only_users):
        allowed = (
            "quota and SCRAM credential" if only_users else "connection quota" if kind == "ips" else "quota"
        )
        names = ", ".join(unknown or passwords)
        raise ValueError(
            f"Only {allowed} configs can be changed for '{kind}'. Unexpected config names: {names}"
        )
    if not passwords:
        alter_quotas(admin, entities, add, remove)
        return
    if len(passwords) != len(add) + len(remove):
        raise ValueError("Cannot alter both quota and SCRAM credential configs simultaneously for 'users'.")
    if not entities[0].name:
        raise ValueError("The default of all users has no SCRAM credentials: name a user.")
    alter_passwords(admin, entities[0].name, add, remove)


def alter_quotas(admin: Admin, entities: list[Entity], add: dict[str, str], remove: list[str]) -> None:
    ops: dict[str, float | None] = dict.fromkeys(remove)
    for name, text in add.items():
        try:
            ops[name] = float(text)
        except ValueError:
            raise ValueError(f"Cannot parse quota configuration value for {name}: {text}") from None
    entity = tuple((QUOTA_TYPES[found.type], found.name or None) for found in entities)
    admin.alter_client_quotas({entity: ops})


def alter_passwords(admin: Admin, user: str, add: dict[str, str], remove: list[str]) -> None:
    from tidelog.clients.admin import (
        ScramMechanism,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )

    changes: list[UserScramCredentialDeletion | UserScramCredentialUpsertion] = [
        UserScramCredentialDeletion(user, ScramMechanism(SCRAM[name])) for name in remove
    ]
    for name, text in add.items():
        iterations, password = scram_password(name, text)
        changes.append(UserScramCredentialUpsertion(user, password, ScramMechanism(SCRAM[name]), iterations))
    admin.alter_user_scram_credentials(changes)


def scram_password(name: str, text: str) -> tuple[int, str]:
    """Iterations and password of [iterations=N,password=TEXT]. Raises ValueError."""
    match = re.fullmatch(r"(?:iterations=(-?[0-9]*),)?password=(.*)", text)
    if match is None:
        raise ValueError(f"Invalid credential property {name}: expected [iterations=N,password=TEXT]")
    iterations = int(match[1]) if match[1] not in (None, "", "-1") else SCRAM_ITERATIONS
    if iterations < SCRAM_ITERATIONS:
        raise ValueError(
            f"Iterations {iterations} is less than the minimum {SCRAM_ITERATIONS} required for {name}"
        )
    return iterations, match[2]
