"""Everything here needs Cassandra's jars and runs with `make test-cassandra`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cassandra.server import Cassandra
from tests.spark.conftest import spark_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cassandra)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tidelog.spark.session import session

    spark = session("tests", "local[2]", **spark_settings(tmp_path_factory.mktemp("spark")))
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cassandra]:
    with Cassandra(tmp_path_factory.mktemp("cassandra")) as cassandra:
        yield cassandra
