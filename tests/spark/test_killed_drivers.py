"""Drivers of all five pipelines that are killed lose and double nothing, on `local` and on a cluster.

In the end the tables equal a computation from the log, as DuckDB, polars and Spark read them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.spark.hands import Hands
from tests.spark.killed_driver import CHEATERS, START, Drivers, events
from tests.spark.readers import Expected, readers, table_faults
from tests.spark.recomputed import PIPELINES, recomputed
from tests.spark.standalone import cluster, settings, tasks_by_worker
from tests.support.s3 import S3
from tests.support.scale import scale
from tidelog.spark.pipelines.alerts import IDLE_INVITEES
from tidelog.spark.pipelines.days import DAY_MS
from tidelog.spark.pipelines.generator_scenes import Scenes
from tidelog.spark.tables.store import s3_options
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 6_000


@pytest.fixture
def hands() -> Iterator[Hands]:
    with Broker() as broker, Hands(broker.bootstrap_servers) as hands:
        yield hands


def tell(story: Drivers, rounds: int) -> None:
    """One kill in a write of each pipeline in each round, beside another one, and a run to the end."""
    victims = [name for _ in range(rounds) for name in story.draw.sample(PIPELINES, len(PIPELINES))]
    parts = events(story.seed, EVENTS, len(victims) + 1)
    for name in victims:
        story.send(next(parts))
        other = story.draw.choice([each for each in PIPELINES if each != name])
        story.kill(story.a_point(name), name, other)
    for part in parts:
        story.send(part)
    story.finish()


@pytest.mark.long
def test_killed_drivers_of_all_pipelines_on_one_machine(
    spark: SparkSession, tmp_path: Path, hands: Hands
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    story = Drivers(tmp_path, hands, seed)
    tell(story, scale(1, 3))
    assert story.faults(spark) == []


@pytest.mark.long
def test_killed_drivers_of_all_pipelines_on_a_cluster_of_two_workers(
    spark: SparkSession, tmp_path: Path, hands: Hands
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with cluster(tmp_path / "cluster") as workers:
        story = Drivers(tmp_path, hands, seed, workers.address, settings(tmp_path))
        tell(story, scale(1, 3))
        pages = {f"http://{address}" for address in tasks_by_worker(tmp_path / "events")}
        assert pages == workers.alive(), "tasks ran on both workers and not in the driver"
    assert story.faults(spark) == []


@pytest.mark.long
def test_drivers_killed_before_and_after_their_commits_on_s3(
    spark: SparkSession, tmp_path: Path, hands: Hands, any_s3: S3
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    beside = ("--checkpoints", str(tmp_path / "checkpoints"))
    story = Drivers(tmp_path, hands, seed, data="s3://tables/data", arguments=beside)
    points = [(name, when) for name in ("collect", "earnings") for when in ("before", "after")]
    points = points if scale(0, 1) else points[1:3]
    parts = events(seed, EVENTS, len(points) + 1)
    for name, when in points:
        story.send(next(parts))
        story.kill({"pipeline": name, "write": story.draw.randrange(1, 3), "when": when}, name)
    for part in parts:
        story.send(part)
    story.finish("collect", "earnings")
    options = s3_options("tables", any_s3.hadoop, {})
    assert story.faults(spark, "collect", "earnings", options=options) == []


def test_the_computation_from_the_log_finds_what_was_planted(tmp_path: Path, hands: Hands) -> None:
    seed = random.randrange(1 << 32)
    story = Drivers(tmp_path, hands, seed)
    for part in events(seed, EVENTS, 1):
        story.send(part)
    expected = recomputed(hands.bootstrap)
    assert all(table.rows for table in expected.values())
    found: dict[str, set[str]] = {}
    for (alert,) in [*expected["device_alerts"].rows, *expected["invite_alerts"].rows]:
        rule, subject, _ = alert.split("/")
        found.setdefault(rule, set()).add(subject)
    planted = Scenes(seed, START, DAY_MS, CHEATERS, 0).caught
    idle = found.pop(IDLE_INVITEES, set())  # those of the evening are not decided yet
    assert idle <= set(planted[IDLE_INVITEES]), f"seed {seed}"
    assert found == {rule: set(names) for rule, names in planted.items() if rule != IDLE_INVITEES}


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (["a", "b"], None),
        (["a", "b", "b"], "finds ('b',) 2 times, not 1 times"),
        (["a"], "finds ('b',) 0 times, not 1 times"),
        (["a", "b", "c"], "finds ('c',) 1 times, not 0 times"),
    ],
    ids=["right", "doubled", "missing", "invented"],
)
def test_rows_that_are_wrong_are_found_by_every_reader(
    spark: SparkSession, tmp_path: Path, rows: list[str], fault: str | None
) -> None:
    write_deltalake(str(tmp_path / "words"), pa.table({"word": rows}))
    wanted = {"words": Expected.of(("word",), [("a",), ("b",)]), "others": Expected.of(("word",), [])}
    found = table_faults(readers(str(tmp_path), spark), wanted)
    assert found == (
        [] if fault is None else [f"words: {name} {fault}" for name in ("DuckDB", "polars", "Spark")]
    )
