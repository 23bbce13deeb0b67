"""`tidelog acls`: adds, removes and lists access rules, with the flags and output of kafka-acls.

As kafka-acls of Kafka 3.9, it can change the rules in ZooKeeper without a broker: with
`--authorizer-properties zookeeper.connect=HOST:PORT`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from tidelog.cli.acl_flags import AclFlags, filters_of
from tidelog.cli.flags import (
    KafkaStyleCommand,
    WrongUsage,
    bootstrap_server,
    error_text,
    switch,
    valued,
    zk_tls_config_file,
)
from tidelog.cli.output import connected_admin, output_option, pairs, print_json
from tidelog.errors import KafkaError
from tidelog.metadata.tree import TreeError
from tidelog.security.acl import AccessControlEntry, AclBinding, AclBindingFilter, ResourcePattern

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin

FAILED = "Error while executing ACL command: "


class Rules(Protocol):
    """Where the rules are: a broker, or the tree."""

    def add(self, bindings: Sequence[AclBinding]) -> None: ...

    def remove(self, filters: Sequence[AclBindingFilter]) -> None: ...

    def find(self, wanted: AclBindingFilter) -> list[AclBinding]: ...


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@click.option(
    "--authorizer-properties",
    metavar="NAME=VALUE",
    multiple=True,
    help="zookeeper.connect=HOST:PORT changes the rules in ZooKeeper, without a broker.",
)
@zk_tls_config_file
@click.option("--add", is_flag=True, help="Add rules.")
@click.option("--remove", is_flag=True, help="Remove rules.")
@click.option("--list", "listing", is_flag=True, help="Print all rules, or the rules of the named resources.")
@click.option("--topic", "topics", metavar="NAME", multiple=True, help="A topic; * for all.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="A group; * for all.")
@click.option("--cluster", is_flag=True, help="The cluster.")
@click.option(
    "--transactional-id",
    "transactional_ids",
    metavar="ID",
    multiple=True,
    help="A transactional id; * for all.",
)
@click.option(
    "--delegation-token",
    "delegation_tokens",
    metavar="ID",
    multiple=True,
    help="A delegation token; * for all.",
)
@click.option(
    "--user-principal",
    "user_principals",
    metavar="PRINCIPAL",
    multiple=True,
    help="A user whose delegation tokens others may create and describe.",
)
@click.option(
    "--resource-pattern-type",
    "pattern",
    metavar="literal|prefixed|any|match",
    default="literal",
    show_default=True,
    help="How names match resources. any and match are for --list and --remove: match finds every rule that "
    "is about the named resource.",
)
@click.option(
    "--allow-principal",
    "allow_principals",
    metavar="TYPE:NAME",
    multiple=True,
    help="Allow this principal, such as User:alice.",
)
@click.option(
    "--deny-principal", "deny_principals", metavar="TYPE:NAME", multiple=True, help="Deny this principal."
)
@click.option(
    "--allow-host", "allow_hosts", metavar="IP", multiple=True, help="Allow it from this address (default *)."
)
@click.option(
    "--deny-host", "deny_hosts", metavar="IP", multiple=True, help="Deny it from this address (default *)."
)
@click.option(
    "--principal",
    "principals",
    metavar="TYPE:NAME",
    multiple=True,
    help="List only the rules of this principal.",
)
@click.option(
    "--operation",
    "operations",
    metavar="NAME",
    multiple=True,
    help="The operation, such as Read (default All).",
)
@switch("--producer", "What a producer needs: Write, Describe and Create on the topic.")
@switch("--consumer", "What a consumer needs: Read and Describe on the topic, Read on the group.")
@switch("--idempotent", "With --producer: also IdempotentWrite on the cluster.")
@switch("--force", "Do not ask before rules are removed.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def acls(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: str | None,
    authorizer_properties: Sequence[str],
    zk_tls_config_file: str | None,
    add: bool,
    remove: bool,
    listing: bool,
    topics: Sequence[str],
    groups: Sequence[str],
    cluster: bool,
    transactional_ids: Sequence[str],
    delegation_tokens: Sequence[str],
    user_principals: Sequence[str],
    pattern: str,
    allow_principals: Sequence[str],
    deny_principals: Sequence[str],
    allow_hosts: Sequence[str],
    deny_hosts: Sequence[str],
    principals: Sequence[str],
    operations: Sequence[str],
    producer: bool,
    consumer: bool,
    idempotent: bool,
    force: bool,
    output: str,
) -> None:
    """Add, remove and list access rules: who may do what on which resources."""
    flags = AclFlags(
        add,
        remove,
        listing,
        topics,
        groups,
        transactional_ids,
        delegation_tokens,
        user_principals,
        cluster,
        pattern,
        allow_principals,
        deny_principals,
        allow_hosts,
        deny_hosts,
        principals,
        operations,
        producer,
        consumer,
        idempotent,
    )
    try:
        flags.check()
        flags.rules()
        properties = pairs(authorizer_properties, "--authorizer-properties")
        zookeeper = properties.get("zookeeper.connect")
        if properties and zookeeper is None:
            raise ValueError("--authorizer-properties needs zookeeper.connect=HOST:PORT")
        if zk_tls_config_file is not None and zookeeper is None:
            raise ValueError("--zk-tls-config-file goes with --authorizer-properties zookeeper.connect alone")
    except ValueError as error:
        raise WrongUsage(str(error), ctx) from None
    try:
        with open_rules(bootstrap_server, command_config, zookeeper, zk_tls_config_file) as rules:
            if listing:
                list_rules(rules, flags, output == "json")
            elif add:
                add_rules(rules, flags, output == "json")
            else:
                remove_rules(rules, flags, force)
    except KafkaError as error:
        click.echo(f"{FAILED}{error_text(error)}", err=output != "text")
        ctx.exit(1)
    except (OSError, ValueError, TreeError) as error:
        click.echo(f"{FAILED}{error}", err=output != "text")
        ctx.exit(1)


def list_rules(rules: Rules, flags: AclFlags, as_json: bool) -> None:
    found = _grouped(binding for wanted in flags.filters() for binding in rules.find(wanted))
    if as_json:
        print_json(
            [
                _as_json(AclBinding.of(resource, entry))
                for resource, entries in found.items()
                for entry in entries
                if not flags.principals or entry.principal in flags.principals
            ]
        )
        return
    if not flags.principals:
        _print_current(found)
    for principal in flags.principals:
        click.echo(f"ACLs for principal `{principal}`")
        _print_current(
            {
                resource: [entry for entry in entries if entry.principal == principal]
                for resource, entries in found.items()
            }
        )


def add_rules(rules: Rules, flags: AclFlags, as_json: bool) -> None:
    wanted = flags.rules()
    if not as_json:
        for resource, entries in wanted.items():
            click.echo(f"Adding ACLs for resource `{_shown(resource)}`: \n {_lines(entries)}\n")
    bindings = flags.bindings()
    rules.add(bindings)
    if as_json:
        print_json([_as_json(binding) for binding in bindings])


def remove_rules(rules: Rules, flags: AclFlags, force: bool) -> None:
    for resource, entries in flags.rules().items():
        if entries:
            question = f"remove ACLs: \n {_lines(entries)}\n from resource filter `{_shown(resource)}`? (y/n)"
        else:
            question = f"delete all ACLs for resource filter `{_shown(resource)}`? (y/n)"
        if force or _confirmed(f"Are you sure you want to {question}"):
            rules.remove(filters_of(resource, list(entries)))


def _confirmed(question: str) -> bool:
    click.echo(question)
    return sys.stdin.readline().strip().lower() == "y"


def _grouped(bindings: Iterable[AclBinding]) -> dict[ResourcePattern, list[AccessControlEntry]]:
    found: dict[ResourcePattern, dict[AccessControlEntry, None]] = {}
    for binding in bindings:
        found.setdefault(binding.pattern, {})[binding.entry] = None
    return {resource: list(entries) for resource, entries in found.items()}


def _print_current(found: dict[ResourcePattern, list[AccessControlEntry]]) -> None:
    for resource, entries in found.items():
        if entries:
            click.echo(f"Current ACLs for resource `{_shown(resource)}`:\n{_lines(entries)}\n")


def _shown(resource: ResourcePattern) -> str:
    kind, name, pattern = resource
    return f"ResourcePattern(resourceType={kind.name}, name={name}, patternType={pattern.name})"


def _lines(entries: Iterable[AccessControlEntry]) -> str:
    return "\n".join(
        f"\t(principal={entry.principal}, host={entry.host}, operation={entry.operation.name}, "
        f"permissionType={entry.permission.name})"
        for entry in entries
    )


def _as_json(binding: AclBinding) -> dict[str, str]:
    return {
        "resource_type": binding.resource_type.name,
        "name": binding.name,
        "pattern_type": binding.pattern_type.name,
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation.name,
        "permission": binding.permission.name,
    }


@contextmanager
def open_rules(
    bootstrap: str, command_config: str | None, zookeeper: str | None, zk_tls_config: str | None
) -> Iterator[Rules]:
    if zookeeper is not None:
        yield RulesInTree(zookeeper, zk_tls_config)
        return
    with connected_admin(bootstrap, command_config) as admin:
        yield RulesOfBroker(admin)


class RulesOfBroker:
    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def add(self, bindings: Sequence[AclBinding]) -> None:
        self._admin.create_acls(bindings)

    def remove(self, filters: Sequence[AclBindingFilter]) -> None:
        self._admin.delete_acls(filters)

    def find(self, wanted: AclBindingFilter) -> list[AclBinding]:
        return self._admin.describe_acls(wanted)


class RulesInTree:
    """The rules in ZooKeeper. Brokers follow a change as if one of them had made it."""

    def __init__(self, connect: str, zk_tls_config: str | None) -> None:
        self._connect = connect
        self._zk_tls_config = zk_tls_config

    def add(self, bindings: Sequence[AclBinding]) -> None:
        asyncio.run(self._call(bindings=bindings))

    def remove(self, filters: Sequence[AclBindingFilter]) -> None:
        asyncio.run(self._call(filters=filters))

    def find(self, wanted: AclBindingFilter) -> list[AclBinding]:
        return asyncio.run(self._call(wanted=wanted))

    async def _call(
        self,
        bindings: Sequence[AclBinding] = (),
        filters: Sequence[AclBindingFilter] = (),
        wanted: AclBindingFilter | None = None,
    ) -> list[AclBinding]:
        import random

        from tidelog.cli.zookeeper_settings import zookeeper_settings
        from tidelog.metadata.zookeeper import ZooKeeperTree
        from tidelog.security.acl_authorizer import AclAuthorizer

        settings = zookeeper_settings(self._zk_tls_config)
        tree = await ZooKeeperTree.connect(self._connect, settings, rng=random.Random(), create_chroot=False)
        async with tree:
            authorizer = AclAuthorizer()
            try:
                await authorizer.start(tree)
                errors = await authorizer.create_acls(TOOL, bindings)
                for removed in await authorizer.delete_acls(TOOL, filters):
                    errors += [error for _, error in removed]
                for error in errors:
                    if error is not None:
                        raise error
                found = () if wanted is None else authorizer.acls(wanted)
                return [binding for binding in found if binding is not None]
            finally:
                await authorizer.close()


class _Tool:
    """The tool itself. No rule limits it: access to ZooKeeper is enough to change the rules."""

    principal = "User:ANONYMOUS"
    client_address = "127.0.0.1"
    listener = ""
    client_id: str | None = None


TOOL = _Tool()
