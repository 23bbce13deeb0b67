"""`tidelog tree`: the metadata tree of a stopped broker, moved to where other brokers can use it."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.group()
def tree() -> None:
    """Move the metadata tree to other stores."""


@tree.command()
@click.argument(
    "folder",
    metavar="[DIR]",
    default="tidelog-data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--zookeeper", required=True, metavar="HOST:PORT[,...][/CHROOT]", help="Where the tree goes.")
@click.option("--force", is_flag=True, help="Replace a cluster that the ZooKeeper holds already.")
def export(folder: Path, zookeeper: str, force: bool) -> None:
    """Write the tree of the broker whose first log folder is DIR into a ZooKeeper.

    Kafka 3.9 on that ZooKeeper can then take the folders over. The broker must be stopped; nothing of it
    is changed. DIR is ./tidelog-data where it is not given.
    """
    from tidelog.metadata.embedded import FILE_NAME, EmbeddedTree
    from tidelog.metadata.export import ExportRefused, export_tree
    from tidelog.metadata.tree import TreeError
    from tidelog.metadata.zookeeper import ZooKeeperTree

    file = folder / FILE_NAME
    if not file.exists():
        raise click.ClickException(f"{folder} has no {FILE_NAME}: it is not the first log folder of a broker")
    try:
        with (
            EmbeddedTree(file) as source,
            ZooKeeperTree(zookeeper) as target,
            click.progressbar(length=1, label="Nodes", file=sys.stderr) as bar,
        ):

            def show(done: int, total: int) -> None:
                bar.length = total
                bar.update(done - bar.pos)

            written = export_tree(source, target, force=force, progress=show)
    except (ExportRefused, TreeError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"Wrote {written.nodes} nodes with {written.topics} topics to {zookeeper}.")
