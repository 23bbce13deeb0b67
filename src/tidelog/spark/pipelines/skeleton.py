"""The skeleton of a new pipeline: one file that runs, and a test beside it that passes."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from string import Template

from tidelog.spark.pipelines import batch_metrics, quarantine
from tidelog.spark.pipelines.registry import BUILT_IN

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

PIPELINE = Template('''"""$name: counts the events of each user by day."""

from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tidelog.spark.pipelines.declare import Flow, Pipeline, Setting, Source, Table, Topic
from tidelog.spark.pipelines.expectations import NotNull, Range

TOPIC = "${module}_events"
SCHEMA = StructType(
    [
        StructField("event_id", StringType(), nullable=False),
        StructField("ts", LongType(), nullable=False),  # milliseconds since 1970
        StructField("user_id", StringType(), nullable=False),
        StructField("amount", LongType()),
    ]
)


def large_enough(rows, context):
    """A step: rows in, rows out, on the stream."""
    return rows.where(F.coalesce("amount", F.lit(0)) >= context.number("least_amount"))


def by_day(rows, context):
    """The totals of a user and a day. In mode `update` a micro-batch has only the totals that changed."""
    rows = rows.dropDuplicates(["event_id"])  # an event that was sent twice counts once
    day = F.to_date(F.timestamp_millis("ts")).alias("day")
    return rows.groupBy("user_id", day).agg(F.count("*").alias("events"), F.sum("amount").alias("amount"))


def flows(settings):
    return (
        Flow(
            "totals",
            Source((TOPIC,), SCHEMA),
            steps=(large_enough, by_day),
            sinks=(
                Table("$module", keys=("user_id", "day"), expect=(NotNull("user_id"), Range("events", 1))),
                Topic("${module}_totals", key="user_id", compacted=True),
            ),
            output_mode="update",
        ),
    )


PIPELINE = Pipeline(
    name="$name",
    title="Events of each user by day.",
    doc=__doc__,
    flows=flows,
    settings=(
        Setting("least_amount", 0, "The smallest amount that counts.", lambda value: value >= 0, "0 or more"),
    ),
)
''')

TEST = Template('''"""$name on a broker and a Spark session of the test. The fixtures come with tidelog."""

from datetime import date

from $module import PIPELINE, TOPIC

NOON = 1_794_571_200_000  # 2026-11-13, 12:00 UTC


def event(number, user="alice", **fields):
    return {"event_id": f"e-{number}", "ts": NOON + number, "user_id": user, "amount": 5, **fields}


def test_events_are_counted_by_user_and_day(tidelog_pipeline):
    events = [event(1), event(2), event(2), event(3, user="bob"), "not JSON"]
    run = tidelog_pipeline.run(PIPELINE, {TOPIC: events})
    totals = {row["user_id"]: row for row in run.table("$module")}
    assert totals["alice"] == {"user_id": "alice", "day": date(2026, 11, 13), "events": 2, "amount": 10}
    assert totals["bob"]["events"] == 1
    assert {row["user_id"] for row in run.topic("${module}_totals")} == {"alice", "bob"}

    run = tidelog_pipeline.run(PIPELINE, {TOPIC: [event(4)]}, settings={"least_amount": 5})
    assert {row["user_id"]: row["events"] for row in run.table("$module")} == {"alice": 3, "bob": 1}
''')


class SkeletonError(ValueError):
    """The skeleton cannot be written. The message says why."""


def write(name: str, folder: Path) -> tuple[Path, Path]:
    """Write the pipeline and its test into `folder`; returns both files. Existing files are not touched."""
    if not _NAME.fullmatch(name):
        raise SkeletonError(f"{name!r} cannot be the name of a pipeline: expected one such as daily-totals")
    if name in BUILT_IN:
        raise SkeletonError(f"there is a pipeline named {name} already: choose another name")
    module = name.replace("-", "_")
    if keyword.iskeyword(module):
        raise SkeletonError(
            f"{name} is a word of Python, which no module can have as its name: choose another"
        )
    if module in (batch_metrics.TABLE, quarantine.TABLE):
        raise SkeletonError(f"every run writes a table {module} of its own: choose another name")
    files = {folder / f"{module}.py": PIPELINE, folder / f"test_{module}.py": TEST}
    for path in files:
        if path.exists():
            raise SkeletonError(f"{path} exists already, and nothing was written: choose another name")
    if importlib.util.find_spec(module) is not None:
        raise SkeletonError(
            f"Python has a module {module} already, which {module}.py would hide: choose another name"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        with path.open("x", encoding="utf-8") as file:  # never over a file that appeared meanwhile
            file.write(text.substitute(name=name, module=module))
    pipeline, test = files
    return pipeline, test
