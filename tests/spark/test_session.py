"""The session: quick by itself, changed by who asks, and plain about what is missing."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pyspark
import pytest

from tests.spark.hands import Hands
from tidelog.spark import session as module
from tidelog.spark.pipelines.run_options import Options
from tidelog.spark.pipelines.runner import start
from tidelog.spark.session import (
    SparkMissing,
    java_version,
    register,
    session,
    settings,
    why_spark_cannot_run,
    worker_python,
)
from tidelog.spark.tables import TableError, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fake_java(folder: Path, says: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    program.chmod(0o755)
    return program


def test_what_is_asked_for_comes_before_what_we_think_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER", raising=False)
    found = settings(None, {"spark.sql.shuffle.partitions": "7"})
    assert found["spark.master"] == "local[*]"
    assert found["spark.sql.shuffle.partitions"] == "7"
    assert found["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings("spark://host:7077", {})["spark.master"] == "spark://host:7077"
    assert "spark.sql.shuffle.partitions" not in settings("spark://host:7077", {}), "a cluster knows better"


def test_the_master_of_spark_submit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER", raising=False)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name x --master spark://host:7077 pyspark-shell")
    assert settings(None, {})["spark.master"] == "spark://host:7077"


def test_workers_run_this_python_and_its_own_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    archive = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    program = (
        "import sys, pyspark; print(sys.executable, pyspark.__file__, [p for p in sys.path if 'here' in p])"
    )
    environment = {"PYTHONPATH": f"{archive}:/somewhere/else:/over here", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [worker_python(), "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    found = f"{sys.executable} {pyspark.__file__} ['/somewhere/else', '/over here']"
    assert done.stdout.strip() == found


def test_another_spark_keeps_its_own_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python() == sys.executable


def test_without_java_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        SparkMissing, match="needs Java 17 or newer, and none is installed: apt-get install"
    ) as caught:
        session("x")
    assert "\n" not in str(caught.value)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "none is installed" in (why_spark_cannot_run() or "")


def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_java(tmp_path, 'openjdk version "1.8.0_402"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_version(str(program)) == 8
    assert f"{program} is 8" in (why_spark_cannot_run() or "")


@pytest.mark.parametrize(
    ("says", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "25" 2025-09-16', 25), ("?", None)],
)
def test_versions_of_java_are_read(tmp_path: Path, says: str, version: int | None) -> None:
    assert java_version(str(fake_java(tmp_path, says))) == version


def test_without_pyspark_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert why_spark_cannot_run() == f"PySpark is not installed: {module.INSTALL_SPARK}"


def test_spark_connect_is_refused_before_anything_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ConnectSession:
        """As the session of Spark Connect: no subclass of SparkSession, and without a JVM."""

    with pytest.raises(TableError, match="a session of Spark Connect has none here: make a session with a"):
        Tables(cast("SparkSession", ConnectSession()), str(tmp_path))
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(SparkMissing, match="SPARK_REMOTE asks for Spark Connect, which has none here: unset"):
        start(["collect"], Options(data=str(tmp_path / "data")))
    assert not (tmp_path / "data").exists()


@pytest.fixture
def foreign_python(tmp_path: Path) -> Path:
    """A `python3` without any packages, as a PATH may have."""
    program = tmp_path / "path" / "python3"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    program.chmod(0o755)
    return program


PLAIN = """
import sys
from pyspark.sql import SparkSession
from tidelog.spark.session import register

def count():
    rows = spark.read.format("tidelog").option("kafka.bootstrap.servers", sys.argv[1])
    return rows.option("subscribe", "orders").load().count()

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "700m").config("spark.local.dir", sys.argv[2]).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
try:
    count()
except Exception as error:
    assert "DATA_SOURCE_NOT_FOUND" in str(error), error
    print("not found")
register(spark)
print(count())
spark.stop()
"""


def test_a_plain_session_reads_after_it_is_registered_whatever_python_is_in_the_path(
    hands: Hands, tmp_path: Path, foreign_python: Path
) -> None:
    hands.produce(hands.topic(name="orders"), range(5))
    environment = {**os.environ, "PATH": f"{foreign_python.parent}:{os.environ['PATH']}"}
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, hands.bootstrap, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
        check=False,
    )
    assert done.stdout.split("\n")[:2] == ["not found", "5"], done.stdout + done.stderr[-3000:]


def test_a_python_without_the_package_is_named(foreign_python: Path) -> None:
    context = SimpleNamespace(master="spark://host:7077", pythonExec=str(foreign_python))
    with pytest.raises(SparkMissing, match=f"Spark runs {foreign_python}, which has no tidelog: before"):
        register(SimpleNamespace(sparkContext=context))  # type: ignore[arg-type]
