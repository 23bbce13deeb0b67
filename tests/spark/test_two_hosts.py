"""Two hosts start one pipeline on the same data at the same moment: one runs it, and the other takes it over.

A host is a namespace of processes with a home folder of its own.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.hands import Hands
from tests.spark.killed_driver import SECONDS, Drivers, end, events
from tests.spark.readers import readers, table_faults
from tests.spark.recomputed import recomputed
from tests.spark.test_pipeline_kills import balance_faults
from tests.support.s3 import S3
from tests.support.wait import eventually, patience
from tidelog.spark.pipelines.state import StateFolder
from tidelog.spark.tables.store import s3_options
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APART = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
PIPELINE = "earnings"


@pytest.fixture
def hands() -> Iterator[Hands]:
    with Broker() as broker, Hands(broker.bootstrap_servers) as hands:
        yield hands


@pytest.mark.long
def test_of_two_hosts_one_runs_the_pipeline_and_the_other_takes_it_over(
    spark: SparkSession, tmp_path: Path, hands: Hands
) -> None:
    assert one_after_the_other(spark, tmp_path, hands, str(tmp_path / "data")) == []


@pytest.mark.long
def test_of_two_hosts_one_runs_the_pipeline_on_s3_and_the_other_takes_it_over(
    spark: SparkSession, tmp_path: Path, hands: Hands, any_s3: S3
) -> None:
    beside = ("--checkpoints", str(tmp_path / "checkpoints"))
    options = s3_options("tables", any_s3.hadoop, {})
    assert one_after_the_other(spark, tmp_path, hands, "s3://tables/data", beside, options) == []


def one_after_the_other(
    spark: SparkSession,
    tmp_path: Path,
    hands: Hands,
    data: str,
    beside: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
) -> list[str]:
    """Both start, one gives way; it finishes when the other is killed. Returns faults of tables and topic."""
    if shutil.which("unshare") is None or subprocess.run([*APART, "true"], check=False).returncode:
        pytest.skip("this system gives no namespaces to users")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    parts = events(seed, 4_000, 2)
    hosts = [
        Drivers(tmp_path / name, hands, seed, data=data, environment=home(tmp_path / name))
        for name in ("alpha", "beta")
    ]
    hosts[0].send(next(parts))
    for host in hosts:
        host.arguments = ("--trigger", "1 second", "--set", "tables.maintenance.seconds=5", *beside)
    drivers = [host.start(None, PIPELINE, prefix=APART) for host in hosts]
    try:
        eventually(lambda: any(one.poll() is not None for one in drivers), "one gives way", patience(SECONDS))
        loser = next(number for number, one in enumerate(drivers) if one.poll() is not None)
        winner = 1 - loser
        assert drivers[loser].wait() == 1
        told = hosts[loser].log.read_text()
        assert f"{PIPELINE} already runs on this data folder (process " in told, told
        folder = StateFolder(data)

        def written() -> bool:
            if drivers[winner].poll() is not None:  # a machine that is too busy for Spark gets another chance
                assert hosts[winner].overloaded(), hosts[winner].told()
                drivers[winner] = hosts[winner].start(None, PIPELINE, prefix=APART)
            status = folder.read(PIPELINE)
            return status is not None and status.rows > 0

        eventually(written, "the winner writes", patience(SECONDS), 0.2)
        hosts[0].send(next(parts))
    finally:
        for driver in drivers:
            end(driver)
    hosts[loser].arguments = beside
    hosts[loser].finish(PIPELINE, prefix=APART)
    expected = recomputed(hands.bootstrap, PIPELINE)
    found = table_faults(readers(f"{data}/tables", spark, options), expected)
    values = map(json.loads, hands.log("ml_balances"))
    return [*found, *balance_faults(values, expected["balances"].rows)]


def home(folder: Path) -> dict[str, str]:
    folder.mkdir()
    return {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
