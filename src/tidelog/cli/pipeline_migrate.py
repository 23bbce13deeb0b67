"""`tidelog pipeline migrate`: brings the tables of earlier versions into the form of today."""

from __future__ import annotations

from collections.abc import Sequence

import click


def migrate_tables(data: str, writers: Sequence[str]) -> None:
    """Migrate the data folder, and print the progress and what can be removed."""
    from tidelog.spark.pipelines.migrate import lay_out_tables, migrate

    def progress(line: str) -> None:
        click.echo(line, err=True)

    done = migrate(data, writers=writers, progress=progress)
    moved = lay_out_tables(data, progress=progress)
    for name, rows in moved.items():
        click.echo(f"{name}: {rows:,} rows in new folders")
    if not done:
        if not moved:
            click.echo(f"no table in {data} is of the format before Delta, and none has other folders")
        return
    for table in done:
        batches = ", ".join(f"batch {number} of {writer}" for writer, number in sorted(table.batches.items()))
        click.echo(f"{table.name}: {table.rows:,} rows, up to {batches or 'no batch'}")
    folders = " ".join(f"{data.rstrip('/')}/tables/{table.name}/_tidelog" for table in done)
    click.echo(
        "The pipelines continue from their checkpoints. The logs of the old format are no longer read; remove"
        f" them when you like: rm -r {folders}"
    )
