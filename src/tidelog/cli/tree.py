"""`tidelog tree`: copies the metadata tree of a stopped broker to a store that other brokers can use."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import zk_tls_config_file

if TYPE_CHECKING:
    from tidelog.metadata.export import Exported
    from tidelog.metadata.tree import Tree
    from tidelog.metadata.zookeeper import ZooKeeperSettings


@click.group()
def tree() -> None:
    """Copy the metadata tree to other stores."""


@tree.command()
@click.argument(
    "folder",
    metavar="[DIR]",
    default="tidelog-data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--zookeeper", required=True, metavar="HOST:PORT[,...][/CHROOT]", help="Where the tree goes.")
@zk_tls_config_file
@click.option("--force", is_flag=True, help="Replace a cluster that is already in ZooKeeper.")
def export(folder: Path, zookeeper: str, zk_tls_config_file: str | None, force: bool) -> None:
    """Write the tree of a broker to ZooKeeper. DIR is its first log folder, by default ./tidelog-data.

    Kafka 3.9 with that ZooKeeper can then use the log folders. The broker must be stopped; its folders stay
    unchanged.
    """
    from tidelog.cli.zookeeper_settings import zookeeper_settings
    from tidelog.metadata.embedded_tree import FILE_NAME
    from tidelog.metadata.export import ExportRefused
    from tidelog.metadata.tree import TreeError

    file = folder / FILE_NAME
    if not file.exists():
        raise click.ClickException(f"{folder} has no {FILE_NAME}: it is not the first log folder of a broker")
    try:
        written = asyncio.run(_export(file, zookeeper, zookeeper_settings(zk_tls_config_file), force))
    except (ExportRefused, TreeError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"Wrote {written.nodes} nodes with {written.topics} topics to {zookeeper}.")


async def _export(file: Path, zookeeper: str, settings: ZooKeeperSettings, force: bool) -> Exported:
    from tidelog.metadata.embedded_tree import EmbeddedTree
    from tidelog.metadata.export import export_tree
    from tidelog.metadata.zookeeper import ZooKeeperTree

    with (
        EmbeddedTree(file) as source,
        click.progressbar(length=1, label="Nodes", file=sys.stderr) as bar,
    ):
        refuse_passwords(source)

        def show(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        target = await ZooKeeperTree.connect(zookeeper, settings, rng=random.Random())
        try:
            return await export_tree(source, target, force=force, progress=show)
        finally:
            await target.close()


def refuse_passwords(source: Tree) -> None:
    """ExportRefused if a broker has stored a password that the target would show to everyone."""
    from tidelog.metadata import paths
    from tidelog.metadata.export import ExportRefused
    from tidelog.metadata.nodes import decode_config
    from tidelog.metadata.tree import walk
    from tidelog.server.config.stored_passwords import unencrypted_passwords

    for path, data, _ in walk(source, f"{paths.CONFIG}/brokers"):
        names = unencrypted_passwords(decode_config(data)) if data else []
        if names:
            broker = path.rpartition("/")[2]
            raise ExportRefused(
                f"the stored settings of broker {broker} have the password {names[0]} unencrypted, and Kafka"
                " would not take it: start the broker and delete it with tidelog configs --alter"
                f" --delete-config {names[0]}, or set password.encoder.secret and store it again"
            )
