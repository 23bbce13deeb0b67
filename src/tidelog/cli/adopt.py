"""`tidelog adopt`: take over log folders that Kafka wrote, cleanly stopped or crashed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tidelog.server.adopt import FoundTopic, Survey
    from tidelog.storage.convert import Converted


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

    Topics and their ids are read from the folders; settings are not written there, so retention is
    switched off until you set it. Logs stay as they are, but for segments of message formats 0 and 1
    (Kafka before 0.11, or a message.format.version below it): those are rewritten in format 2, each beside
    itself before the old one goes. Interrupted, a second call goes on where the first one was.
    """
    from tidelog.server.adopt import CannotAdopt, survey

    try:
        found = survey(folders)
        converted = None if dry_run else take_over(found, broker_id)
    except CannotAdopt as error:
        raise click.ClickException(str(error)) from error
    report(found, broker_id, converted)
    if dry_run:
        click.echo("Nothing was changed (--dry-run).")
    else:
        dirs = ",".join(str(folder) for folder in found.folders)
        click.echo(f"Start it with: tidelog start --override log.dirs={dirs}")


def take_over(found: Survey, broker_id: int | None) -> Converted:
    from tidelog.server.adopt import adopt as adopt_folders

    # Bytes and topics are counted together: where there is much to convert, topics are a moment at its end.
    with click.progressbar(length=found.old_bytes + len(found.topics), label="Adopting") as bar:
        return adopt_folders(found, broker_id, lambda _: bar.update(1), bar.update)


def report(found: Survey, broker_id: int | None, converted: Converted | None) -> None:
    from tidelog.server.adopt import UNKNOWN_SETTINGS

    broker = found.broker_id if broker_id is None else broker_id
    state = "cleanly stopped" if found.clean else "not cleanly stopped: the first start recovers its logs"
    click.echo(f"Cluster {found.cluster_id or '(a new id)'}, broker {broker}, {state}.")
    for topic in sorted(found.topics.values(), key=lambda topic: topic.name):
        settings = ",".join(f"{name}={value}" for name, value in topic.settings.items())
        click.echo(f"  {topic.name}: {len(topic.partitions)} partitions, {settings}")
        if topic.missing:
            numbers = ", ".join(map(str, topic.missing))
            click.echo(f"    partitions that are not here and will be empty: {numbers}")
        report_old(found, topic, converted is None)
    if converted is not None and converted.segments:
        click.echo(
            f"Converted {converted.records} records in {converted.segments} segments from "
            f"{converted.old_bytes} to {converted.new_bytes} bytes."
        )
        for path, size in converted.torn.items():
            click.echo(f"  {path} ends in {size} bytes that are no whole message: the first start cuts them")
    if found.left_alone:
        click.echo(f"Left alone: {', '.join(sorted(found.left_alone))}")
    click.echo(
        "Settings that a log folder does not tell, to be checked with the old cluster: "
        + ", ".join(UNKNOWN_SETTINGS)
    )


def report_old(found: Survey, topic: FoundTopic, dry_run: bool) -> None:
    old = [
        segment for folder, _ in topic.partitions.values() for segment in found.old_segments.get(folder, [])
    ]
    if old:
        done = "to be converted" if dry_run else "converted"
        size = sum(segment.size for segment in old)
        click.echo(f"    message format 0 or 1, {done} to 2: {len(old)} segments, {size} bytes")
