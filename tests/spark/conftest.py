"""What the tests with a real Spark share: one session, a broker, and hands to produce and to read with.

The session is one for a run (one for each worker of pytest-xdist); brokers and topics belong to a module.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.hands import Hands
from tests.support.s3 import S3, s3_server
from tests.support.versitygw import versitygw
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores of this machine, with everything it writes in a temporary folder."""
    from tidelog.spark.session import session

    folder = tmp_path_factory.mktemp("spark")
    spark = session("tests", "local[2]", **spark_settings(folder))
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def tidelog_spark(spark: SparkSession) -> SparkSession:
    """The session of the fixture `tidelog_pipeline`: this process can have only one."""
    return spark


@pytest.fixture(params=["moto", pytest.param("versitygw", marks=pytest.mark.s3)])
def any_s3(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A server that drivers, and the session of this process, know from the environment."""
    with s3_server() if request.param == "moto" else versitygw(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def spark_settings(folder: Path) -> dict[str, str]:
    """Quiet, small and without a trace outside `folder`."""
    return {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder / 'derby'}",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def hands(broker: Broker) -> Iterator[Hands]:
    """Produces to the module's broker and reads from it, without Spark."""
    with Hands(broker.bootstrap_servers) as hands:
        yield hands
