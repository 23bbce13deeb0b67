"""collect into a real Cassandra: every good event is there once, through replays, kills and absences."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cassandra.server import Cassandra
from tests.spark.collected import Expected, PipelineProcess, assert_collected, expected, generate
from tests.support.wait import eventually
from tidelog.config import ConfigError
from tidelog.spark.pipelines.cassandra import TABLES, Target, connected, make_tables
from tidelog.spark.pipelines.collect import PIPELINE
from tidelog.spark.pipelines.events import LOGS
from tidelog.spark.pipelines.reasons import FlowFailed
from tidelog.spark.pipelines.runner import run
from tidelog.spark.pipelines.settings import resolve
from tidelog.spark.tables import Tables
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Collecting:
    """Runs collect over what a broker has, into tables and a keyspace."""

    def __init__(self, spark: SparkSession, broker: Broker, cassandra: Cassandra, data: Path) -> None:
        self.spark = spark
        self.bootstrap = broker.bootstrap_servers
        self.data = data
        self.settings: dict[str, object] = {
            "cassandra.contact.points": "127.0.0.1",
            "cassandra.port": cassandra.port,
            "cassandra.keyspace": f"events_{random.randrange(1 << 40):x}",
        }

    @property
    def target(self) -> Target:
        return Target.of(resolve([PIPELINE], self.settings)["collect"])

    def run(self) -> None:
        run(
            "collect",
            bootstrap=self.bootstrap,
            data=str(self.data),
            trigger="available-now",
            settings=self.settings,
            spark=self.spark,
        )

    def check(self) -> None:
        wanted = expected(self.bootstrap)
        assert_collected(Tables(self.spark, str(self.data / "tables")), wanted)
        assert self.found() == wanted_rows(wanted)

    def count(self) -> int:
        """The rows of all tables; none before the tables are made."""
        from cassandra import InvalidRequest

        try:
            return sum(rows.total() for rows in self.found().values())
        except InvalidRequest:
            return 0

    def found(self) -> dict[str, Counter[tuple[str, ...]]]:
        """(kind, subject, day, event id) of every row, by table."""
        rows: dict[str, Counter[tuple[str, ...]]] = {}
        with connected(self.target) as session:
            for table, subject in TABLES.items():
                answer = session.execute(
                    f"SELECT kind, {subject}, day, event_id FROM {self.target.keyspace}.{table}"
                )
                rows[table] = Counter(tuple(map(str, row)) for row in answer)  # type: ignore[attr-defined]
        return rows


def wanted_rows(wanted: Expected) -> dict[str, Counter[tuple[str, ...]]]:
    """One row for an event and each thing that it is about, however often it was sent."""
    rows: dict[str, Counter[tuple[str, ...]]] = {}
    for table, subject in TABLES.items():
        keys = set()
        for schema in LOGS:
            if subject not in schema.names:
                continue
            for row in wanted.good[schema.table]:
                about = row[schema.names.index(subject)]
                if about is not None:
                    keys.add((schema.table, str(about), str(row[-1]), str(row[0])))
        rows[table] = Counter(keys)
    return rows


@pytest.fixture
def collecting(spark: SparkSession, cassandra: Cassandra, tmp_path: Path) -> Iterator[Collecting]:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with Broker() as broker:
        generate(broker.bootstrap_servers, 3_000, seed)
        yield Collecting(spark, broker, cassandra, tmp_path / "data")


def test_every_good_event_is_there_for_its_user_device_and_ad(collecting: Collecting) -> None:
    collecting.run()
    collecting.check()


def test_a_log_that_is_collected_again_changes_nothing(collecting: Collecting) -> None:
    collecting.run()
    shutil.rmtree(collecting.data)
    collecting.run()
    collecting.check()


def test_a_pipeline_killed_at_a_random_point_leaves_every_event_once(collecting: Collecting) -> None:
    collecting.settings["cassandra.concurrency"] = 2
    with PipelineProcess(collecting.bootstrap, collecting.data, collecting.settings) as pipeline:
        pipeline.wait_for_a_batch()
        most = sum(rows.total() for rows in wanted_rows(expected(collecting.bootstrap)).values())
        there = random.randrange(most)  # anywhere in a batch
        print(f"killed when {there} of {most} rows are there")
        eventually(lambda: collecting.count() >= there, f"{there} of {most} rows are there", 120)
    collecting.run()
    collecting.check()


def test_a_killed_cassandra_is_waited_for_and_loses_nothing(
    collecting: Collecting, cassandra: Cassandra
) -> None:
    collecting.run()
    generate(collecting.bootstrap, 1_000, 17)
    cassandra.kill()
    collecting.settings["cassandra.wait.seconds"] = 1.0
    try:
        with pytest.raises(FlowFailed, match=r"Cassandra .* has not answered for 1 s; nothing is lost"):
            collecting.run()
    finally:
        cassandra.start()
    collecting.settings["cassandra.wait.seconds"] = 60.0
    collecting.run()
    collecting.check()


def test_columns_that_came_later_are_added(collecting: Collecting) -> None:
    target = collecting.target
    with connected(target) as session:
        make_tables(session, target, LOGS)
        session.execute(f"ALTER TABLE {target.keyspace}.events_by_user DROP amount")
    collecting.run()
    with connected(target) as session:
        found = session.execute(f"SELECT amount FROM {target.keyspace}.events_by_user")
        assert any(row.amount is not None for row in found)  # type: ignore[attr-defined]


def test_a_user_without_a_password_is_refused(collecting: Collecting) -> None:
    collecting.settings["cassandra.username"] = "ann"
    with pytest.raises(ConfigError, match="expected a user name and a password, or neither"):
        collecting.run()
