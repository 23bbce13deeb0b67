"""Spark's source, sink and pipelines on three brokers, each of which is restarted in turn meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.hands import Hands
from tests.spark.test_exactly_once_kills import Killing
from tests.spark.test_pipeline_kills import SECONDS, Story
from tests.support.cluster import ClusterOfBrokers
from tests.support.own_cluster import BrokersInTurn
from tests.support.wait import eventually, patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfBrokers]:
    settings = {"transaction.two.phase.commit.enable": "true"}
    with ClusterOfBrokers(tmp_path_factory.mktemp("cluster"), 3, settings) as brokers:
        yield brokers


def test_every_row_comes_from_the_source_to_the_sink_once(cluster: ClusterOfBrokers, tmp_path: Path) -> None:
    brokers = BrokersInTurn(cluster)
    with Hands(brokers.bootstrap) as hands:
        killing = Killing(tmp_path, brokers, hands, 17, "local[2,8]")
        killing.run("broker", "broker", "broker")
        killing.check()


def test_the_tables_of_a_pipeline_are_right_to_the_last_unit(
    spark: SparkSession, cluster: ClusterOfBrokers, tmp_path: Path
) -> None:
    brokers = BrokersInTurn(cluster)
    with Hands(brokers.bootstrap) as hands:
        story = Story(tmp_path, hands, 17)
        story.app.send(200)
        tables = story.data / "tables"
        with story.running(None, "earnings", "region", "--trigger", "available-now") as process:
            eventually(
                lambda: tables.exists() or process.poll() is not None, "the first rows", patience(SECONDS)
            )
            assert process.poll() is None, story.told()
            brokers.restart()
            process.wait(patience(SECONDS))
        story.finish()
        assert story.faults(spark) == []
