"""`tidelog security`: makes keys, certificates, users and settings for a cluster with TLS, SCRAM and ACLs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import zk_tls_config_file

if TYPE_CHECKING:
    from tidelog.security.security_folder import BrokerAddress, FolderOptions

LOCAL_BROKERS = 3
AUTHORITY_DAYS = 3650


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def security() -> None:
    """Make keys, certificates, users and settings for a secure cluster."""


@security.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--brokers",
    type=click.IntRange(1, 100),
    help=f"The number of brokers on this machine (default {LOCAL_BROKERS}).",
)
@click.option("--hosts", metavar="HOST,...", help="A broker on each of these hosts, in place of --brokers.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=9092,
    show_default=True,
    help="The port of the brokers; the brokers on this machine have it and the ones after it.",
)
@click.option(
    "--san", "names", metavar="NAME,...", multiple=True, help="More names for the certificates of brokers."
)
@click.option(
    "--days",
    type=click.IntRange(1, 36500),
    default=365,
    show_default=True,
    help="How long certificates are valid; the authority is valid for 3650 days or as long.",
)
@click.option(
    "--key-type",
    type=click.Choice(["EC", "RSA"], case_sensitive=False),
    default="EC",
    show_default=True,
    help="Keys on the curve P-256, or RSA keys with 3072 bits.",
)
@click.option(
    "--store-type",
    type=click.Choice(["PEM", "PKCS12"], case_sensitive=False),
    default="PEM",
    show_default=True,
    help="The files that the settings name; both are made.",
)
@click.option(
    "--path",
    "installed",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The folder in the settings, if the files are copied to another one.",
)
@click.option("--zookeeper", metavar="HOST:PORT,...", help="Write this zookeeper.connect for the brokers.")
@click.option(
    "--force",
    is_flag=True,
    help="Replace the files of an earlier call; its certificates are no longer trusted.",
)
def init(
    folder: Path,
    brokers: int | None,
    hosts: str | None,
    port: int,
    names: tuple[str, ...],
    days: int,
    key_type: str,
    store_type: str,
    installed: Path | None,
    zookeeper: str | None,
    force: bool,
) -> None:
    """Make keys, users and settings for a new cluster in DIR.

    Makes an authority, certificates and SCRAM users. The brokers and the user admin are super users.
    `tidelog cluster start --security DIR` runs such a cluster on this machine.
    """
    from tidelog.security.security_folder import FolderOptions, FolderRefused, SecurityFolder

    options = FolderOptions(
        addresses(brokers, hosts, port),
        split(names),
        days=days,
        key_type=key_type.upper(),
        store_type=store_type.upper(),
        installed=installed,
        zookeeper=zookeeper,
    )
    try:
        SecurityFolder(folder).create(options, force=force)
    except (FolderRefused, ValueError) as error:
        raise click.ClickException(str(error)) from None
    print_folder(folder, options, local=hosts is None)


@security.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--days",
    type=click.IntRange(1, 36500),
    default=365,
    show_default=True,
    help="How long the new certificates are valid.",
)
@click.option(
    "--new-authority",
    is_flag=True,
    help="Make another authority that signs from the next call on, and let everyone trust both.",
)
@click.option("--drop-authority", is_flag=True, help="Trust only the authority that signs, as the last step.")
def renew(folder: Path, days: int, new_authority: bool, drop_authority: bool) -> None:
    """Make new keys and certificates for a cluster in DIR.

    The same authority signs them, for brokers and users. Running brokers on this machine notice the new
    files by themselves. Users, passwords and settings stay.

    A new authority takes three calls: with --new-authority, without, and with --drop-authority. Copy the
    files to brokers and clients after each, and restart clients that keep running.
    """
    from tidelog.security.certificate_renewal import CertificateRenewal
    from tidelog.security.security_folder import FolderRefused

    if new_authority and drop_authority:
        raise click.UsageError("--new-authority and --drop-authority cannot be specified together")
    renewal = CertificateRenewal(folder)
    trust = "Copy ca.pem and truststore.p12 to all brokers and clients"
    try:
        if new_authority:
            files = renewal.add_authority(max(days, AUTHORITY_DAYS))
            told = f"A new authority is trusted, too. {trust}, then call renew without --new-authority."
        elif drop_authority:
            files = renewal.drop_authority()
            told = f"The old authority is no longer trusted. {trust}."
        else:
            files = renewal.renew(days)
            told = f"Renewed for {days} days. Copy the files of brokers on other hosts to them."
    except FolderRefused as error:
        raise click.ClickException(str(error)) from None
    for file in files:
        click.echo(str(file))
    click.echo(told)


@security.command("add-brokers")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--brokers", type=click.IntRange(1, 100), help="So many more brokers on this machine.")
@click.option("--hosts", metavar="HOST,...", help="A broker on each of these hosts, in place of --brokers.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="The port of the brokers (default that of the first broker, on this machine the next ones).",
)
@click.option(
    "--san", "names", metavar="NAME,...", multiple=True, help="More names for the certificates of brokers."
)
@click.option(
    "--days",
    type=click.IntRange(1, 36500),
    default=365,
    show_default=True,
    help="How long the certificates are valid.",
)
def add_brokers(
    folder: Path, brokers: int | None, hosts: str | None, port: int | None, names: tuple[str, ...], days: int
) -> None:
    """Make keys and settings for more brokers of the cluster in DIR.

    They have the settings of the first broker and the ids after the highest one. Running brokers go on.
    """
    from tidelog.security.broker_addition import BrokerAddition
    from tidelog.security.security_folder import FolderRefused

    if (brokers is None) == (hosts is None):
        raise click.UsageError("name --brokers or --hosts")
    try:
        addition = BrokerAddition(folder)
        known = addition.addresses.values()
        if hosts is None:
            begin = port or max(address.port for address in known) + 1
            added = [("localhost", begin + number) for number in range(brokers or 0)]
        else:
            added = [(host, port or next(iter(known)).port) for host in split((hosts,))]
        files = addition.add(added, split(names), days)
    except (FolderRefused, ValueError) as error:
        raise click.ClickException(str(error)) from None
    for file in files:
        click.echo(str(file))


@security.command("add-users")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--zookeeper", required=True, metavar="HOST:PORT,...[/CHROOT]", help="The tree of the cluster.")
@zk_tls_config_file
def add_users(folder: Path, zookeeper: str, zk_tls_config_file: str | None) -> None:
    """Store the SCRAM users of DIR in ZooKeeper.

    Do so before the brokers start: they log in to each other.
    """
    from tidelog.cli.zookeeper_settings import zookeeper_settings
    from tidelog.metadata.tree import TreeError
    from tidelog.security.security_folder import FolderRefused, SecurityFolder
    from tidelog.server.cluster_users import store_users

    try:
        users = SecurityFolder(folder).users()
        store_users(zookeeper, users, zookeeper_settings(zk_tls_config_file))
    except (FolderRefused, TreeError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"Stored the credentials of {', '.join(users)} at {zookeeper}.")


def addresses(brokers: int | None, hosts: str | None, port: int) -> list[BrokerAddress]:
    """The brokers of the flags. UsageError if the flags do not go together."""
    from tidelog.security.security_folder import BrokerAddress

    if hosts is None:
        count = brokers or LOCAL_BROKERS
        if port + count - 1 > 65535:
            raise click.UsageError(f"--port {port}: there are not {count} ports from there on")
        return [BrokerAddress(number + 1, "localhost", port + number) for number in range(count)]
    if brokers is not None:
        raise click.UsageError("--brokers and --hosts cannot be specified together")
    names = split((hosts,))
    if not names:
        raise click.UsageError("--hosts: expected the names of hosts")
    if len(set(names)) < len(names):
        raise click.UsageError(f"--hosts {hosts}: a host occurs twice")
    return [BrokerAddress(number, host, port) for number, host in enumerate(names, 1)]


def split(texts: tuple[str, ...]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def print_folder(folder: Path, options: FolderOptions, *, local: bool) -> None:
    settings = folder / f"broker-{options.brokers[0].broker_id}.properties"
    number = options.brokers[0].broker_id
    click.echo(f"The settings for broker {number}, from {settings}; its passwords are in the file alone:\n")
    for line in settings.read_text().splitlines():
        name, _, value = line.partition("=")
        if not line.startswith("#"):
            click.echo(f"{name}={'[hidden]' if is_secret(name) else value}")
    used = options.installed or folder
    click.echo(f"\nclients use   {used}/client.properties (the user client has no rights yet)")
    click.echo(f"tools use     --command-config {used}/admin.properties")
    if local:
        click.echo(f"run it with   tidelog cluster start --security {folder}")
    else:
        there = "the same folder" if options.installed is None else str(options.installed)
        trust = "ca.pem" if options.store_type == "PEM" else "truststore.p12"
        click.echo(f"first         tidelog security add-users {folder} --zookeeper HOST:PORT")
        click.echo(f"then          copy to {there}, each with {trust}: broker-N files to their hosts,")
        click.echo("              admin files to hosts with tools, client files to hosts with clients")
        click.echo("at last       tidelog start broker-N.properties on each host")
    click.echo(f"keep safe     {folder}/ca.key signs certificates that all of them trust")


def is_secret(name: str) -> bool:
    return name.endswith(("password", "jaas.config"))
