"""`tidelog pipeline submit`: what it refuses, and a driver that spark-submit starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.spark.app_events import App
from tests.spark.hands import Hands
from tidelog.cli import pipeline_submit
from tidelog.cli.main import main
from tidelog.config import ConfigError
from tidelog.spark.pipelines.report_readers import LocalReader
from tidelog.spark.pipelines.run_options import Options, check_deploy_mode
from tidelog.spark.pipelines.state_partitions import in_offset_log
from tidelog.testing import Broker

SECONDS = 400.0


@pytest.fixture
def hands() -> Iterator[Hands]:
    with Broker() as broker, Hands(broker.bootstrap_servers) as hands:
        yield hands


def test_options_come_before_the_dashes_and_pipelines_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(pipeline_submit, "spark_submit", lambda: "/spark/bin/spark-submit")
    monkeypatch.setattr(os, "execv", lambda program, arguments: called.append(arguments))
    options = ["--master", "yarn", "--deploy-mode", "cluster", "--conf", "spark.x=1"]
    run = ["earnings", "--data", "hdfs://names/data", "--set", "a=--b"]
    done = CliRunner().invoke(main, ["pipeline", "submit", *options, "--", *run])
    assert done.exit_code == 0, done.output
    [call] = called
    assert call == ["/spark/bin/spark-submit", *options, str(pipeline_submit.MAIN_FILE), *run]
    assert pipeline_submit.MAIN_FILE.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--master", "spark://m:1", "--deploy-mode", "cluster", "--", "region"],
            "no Python driver inside a sta",
        ),
        (
            ["--master=spark://m:1", "--deploy-mode=cluster", "--", "region"],
            "no Python driver inside a standalone",
        ),
        (["--master", "yarn"], "write options of spark-submit, then --, then pipelines"),
        (["--master", "yarn", "--"], "write options of spark-submit, then --, then pipelines"),
    ],
    ids=["a standalone cluster", "with equal signs", "no pipeline", "nothing behind the dashes"],
)
def test_what_spark_would_refuse_is_said_in_one_line(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(main, ["pipeline", "submit", *arguments])
    assert done.exit_code == 1
    assert words in done.output
    assert len(done.output.splitlines()) == 1


def test_a_driver_that_runs_here_does_not_move_into_a_cluster() -> None:
    with pytest.raises(ConfigError, match=r"spark\.submit\.deployMode.*`tidelog pipeline submit` starts one"):
        check_deploy_mode(Options(spark_conf={"spark.submit.deployMode": "cluster"}))
    check_deploy_mode(Options(spark_conf={"spark.submit.deployMode": "client"}))


def test_spark_submit_starts_a_driver_with_its_own_master_and_settings(tmp_path: Path, hands: Hands) -> None:
    app = App(hands.bootstrap, 13, users=10)
    app.make_topics()
    app.send(80)
    data = tmp_path / "data"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tidelog", "pipeline", "submit", "--master", "local[2]"),
            *("--driver-memory", "768m", "--conf", "spark.sql.shuffle.partitions=3"),
            *("--conf", f"spark.local.dir={tmp_path / 'local'}"),
            *("--", "region", "--trigger", "available-now", "--bootstrap-server", hands.bootstrap),
            *("--data", str(data)),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "region: stopped" in done.stdout
    rows = LocalReader(data / "tables").counts("user_regions", ("user_id", "country", "number_type"))
    assert (set(rows), set(rows.values())) == (app.regions(), {1})
    [offsets] = (data / "checkpoints" / "region").glob("*/offsets/0")
    assert in_offset_log(offsets.read_text()) == 3, "the setting of spark-submit counts"
