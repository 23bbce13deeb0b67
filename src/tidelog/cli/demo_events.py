"""Writes the events of the demo, if the topics are empty."""

from __future__ import annotations

import time
from pathlib import Path

import click

from tidelog.clients.admin import Admin
from tidelog.protocol.offset_specs import LATEST
from tidelog.spark.pipelines.days import DAY_MS
from tidelog.spark.pipelines.events import EVENTS
from tidelog.spark.pipelines.generator import Plan, Truth
from tidelog.spark.pipelines.generator_scenes import Cheaters
from tidelog.spark.pipelines.generator_writer import write

TRUTH = "truth.json"
"""A file in the pipelines' folder with the planted cheaters; the demo compares the alerts with it."""
MOST_CHEATERS = 8  # of each kind


def prepare(bootstrap: str, pipeline_data: Path, events: int, seed: int, partitions: int) -> bool:
    """Write events if the topics are empty. False if the pipelines' folder belongs to another log."""
    there = sum(records(bootstrap).values())
    if there:
        click.echo(f"\nThe topics already have {there:,} records: no events are written.")
        return True
    checkpoints = pipeline_data / "checkpoints"
    if checkpoints.is_dir() and any(checkpoints.iterdir()):
        click.echo(
            f"\nThe pipelines do not run: the topics are empty, and {pipeline_data} has checkpoints of "
            "another log. Remove that folder, or choose another one with --pipeline-data."
        )
        return False
    plan = Plan(
        events=events,
        start=int(time.time() * 1000) - DAY_MS,
        seed=seed,
        cheaters=Cheaters.few(max(2, min(MOST_CHEATERS, events // 5000))),
        late=0.02,
        out_of_order=0.05,
        broken=0.005,
        duplicates=0.01,
    )
    click.echo(f"\nMaking {events:,} events of {plan.user_count:,} users (seed {seed}) ...")
    started = time.monotonic()
    truth = write(plan, bootstrap, partitions=partitions)
    pipeline_data.mkdir(parents=True, exist_ok=True)
    (pipeline_data / TRUTH).write_text(truth.to_json())
    good, broken = sum(truth.events.values()), sum(truth.broken.values())
    written = sum(records(bootstrap).values())
    click.echo(
        f"{written:,} records are in {len(EVENTS)} topics after {time.monotonic() - started:.1f} s: "
        f"{good:,} good events, {truth.duplicates:,} of them sent twice, and {broken:,} broken ones. "
        f"{sum(map(len, truth.cheaters.values())):,} cheaters are among the users."
    )
    return True


def records(bootstrap: str) -> dict[str, int]:
    """The number of records ever written to each topic of the events."""
    with Admin(bootstrap_servers=bootstrap, client_id="tidelog-demo") as admin:
        names = [name for name in admin.list_topics() if name in EVENTS]
        if not names:
            return {}
        wanted = {
            (name, partition.partition): LATEST
            for name, topic in admin.describe_topics(names).items()
            for partition in topic.partitions
        }
        written = dict.fromkeys(names, 0)
        for (name, _), info in admin.list_offsets(wanted).items():
            written[name] += info.offset
        return written


def truth(pipeline_data: Path) -> Truth | None:
    """The description of the events, if the demo wrote them."""
    try:
        return Truth.from_json((pipeline_data / TRUTH).read_text())
    except FileNotFoundError:
        return None
