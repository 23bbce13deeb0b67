"""`tidelog pipeline migrate`: turns tables of the format before Delta into Delta tables."""

from __future__ import annotations

from collections.abc import Sequence

import click


def migrate_tables(data: str, writers: Sequence[str]) -> None:
    """Migrate the data folder, and print the progress and what can be removed."""
    from tidelog.spark.pipelines.migrate import migrate

    done = migrate(data, writers=writers, progress=lambda line: click.echo(line, err=True))
    if not done:
        click.echo(f"no table in {data} is of the format before Delta")
        return
    for table in done:
        batches = ", ".join(f"batch {number} of {writer}" for writer, number in sorted(table.batches.items()))
        click.echo(f"{table.name}: {table.rows:,} rows, up to {batches or 'no batch'}")
    folders = " ".join(f"{data.rstrip('/')}/tables/{table.name}/_tidelog" for table in done)
    click.echo(
        "The pipelines continue from their checkpoints. The logs of the old format are no longer read; remove"
        f" them when you like: rm -r {folders}"
    )
