"""`tidelog adopt`: adopts log folders of Kafka, after a clean stop or a crash."""

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
@click.option("--broker-id", type=int, help="The broker's id, if no meta.properties has it.")
@click.option("--dry-run", is_flag=True, help="Print the changes without making them.")
def adopt(folders: tuple[Path, ...], broker_id: int | None, dry_run: bool) -> None:
    """Make a log folder of Kafka usable for tidelog. DIR is a folder of its log.dirs, in the same order.

    Topics and their ids come from the folders. Settings of topics are not in the folders, so retention is
    switched off until you set it. Segments of message formats 0 and 1 (Kafka before 0.11, or a
    message.format.version below it) are converted to format 2: a new file replaces the old one when it is
    complete. All other logs stay unchanged. After an interruption a second call continues.
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

    # The bar counts bytes and topics together: if there is much to convert, the topics take only a moment.
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
            click.echo(f"    missing partitions, which will be empty: {numbers}")
        report_old(found, topic, converted is None)
    if converted is not None and converted.segments:
        click.echo(
            f"Converted {converted.records} records in {converted.segments} segments from "
            f"{converted.old_bytes} to {converted.new_bytes} bytes."
        )
        for path, size in converted.torn.items():
            click.echo(f"  {path} ends with {size} bytes of an incomplete message: the first start cuts them")
    if found.left_alone:
        click.echo(f"Left unchanged: {', '.join(sorted(found.left_alone))}")
    click.echo(
        "A log folder does not contain these settings; check them with the old cluster: "
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
