"""`tidelog adopt`: take over log folders that Kafka 3.x or 4.x wrote, cleanly stopped or crashed."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument(
    "folders",
    nargs=-1,
    required=True,
    metavar="DIR...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--broker-id", type=int, help="The broker's id, where no meta.properties names it.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
def adopt(folders: tuple[Path, ...], broker_id: int | None, dry_run: bool) -> None:
    """Make a tidelog folder of Kafka's: DIR is its log.dirs, several of them in their order.

    No log is changed or deleted. Topics and their ids are read from the folders; settings are not
    written there, so retention is switched off until you set it.
    """
    from tidelog.server.adopt import UNKNOWN_SETTINGS, CannotAdopt, survey
    from tidelog.server.adopt import adopt as take_over

    try:
        found = survey(folders)
        if not dry_run:
            with click.progressbar(length=len(found.topics), label="Topics") as bar:
                take_over(found, broker_id, lambda _: bar.update(1))
    except CannotAdopt as error:
        raise click.ClickException(str(error)) from error
    broker = found.broker_id if broker_id is None else broker_id
    state = "cleanly stopped" if found.clean else "not cleanly stopped: the first start recovers its logs"
    click.echo(f"Cluster {found.cluster_id or '(a new id)'}, broker {broker}, {state}.")
    for topic in sorted(found.topics.values(), key=lambda topic: topic.name):
        settings = ",".join(f"{name}={value}" for name, value in topic.settings.items())
        click.echo(f"  {topic.name}: {len(topic.partitions)} partitions, {settings}")
        if topic.missing:
            numbers = ", ".join(map(str, topic.missing))
            click.echo(f"    partitions that are not here and will be empty: {numbers}")
    if found.left_alone:
        click.echo(f"Left alone: {', '.join(sorted(found.left_alone))}")
    click.echo(
        "Settings that a log folder does not tell, to be checked with the old cluster: "
        + ", ".join(UNKNOWN_SETTINGS)
    )
    if dry_run:
        click.echo("Nothing was changed (--dry-run).")
    else:
        dirs = ",".join(str(folder) for folder in found.folders)
        click.echo(f"Start it with: tidelog start --override log.dirs={dirs}")
